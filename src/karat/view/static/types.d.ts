/** Shapes of the JSON API; docs/view.md describes them. */
export interface Counts { total: number; ok: number; failed: number; skipped: number; pending: number }
export interface Evaluator { key: string; name: string; kind: string; higher_is_better: boolean; evaluation: string }
export interface Estimate {
  evaluator: string; aggregator: string; name: string; run: string | null; group: Record<string, string> | null;
  value: number | null; low: number | null; high: number | null; n: number; of: number;
  lowest: number | null; highest: number | null; method: string; confidence: number; label: string;
}
export interface Run {
  id: string; label: string; task: string; dataset: string; dataset_id: string; status: string; live: boolean;
  created: number; finished: number | null; counts: Counts; cost: number | null;
  tokens: { input: number; output: number }; settings: Record<string, string>; labels: string[]; description: string;
  evaluators: Evaluator[]; estimates: Estimate[];
}
export type About = Record<string, string>;
export interface Mark {
  kind: "line" | "rect" | "circle" | "text"; tone?: string; title?: string; about?: About;
  x?: number; y?: number; x1?: number; y1?: number; x2?: number; y2?: number; r?: number; width?: number;
  height?: number; text?: string; anchor?: string; bold?: boolean; small?: boolean; filled?: boolean; dashed?: boolean;
}
export interface Plot { title: string; description: string; width: number; height: number; marks: Mark[] }
export interface Field { kind: "text" | "json" | "none"; text: string; size: number; cut: boolean; download: string | null }
export interface Piece { kind: "same" | "removed" | "added"; text: string }
export interface Cell { status: string; score?: number | null; comment?: string; error?: string }
export interface Row {
  key: string; index: number; position: number; id: string; attempt: number; unit: string; status: string;
  error: string; input: string; expected: string; output: string; seconds: number | null; cost: number | null;
  tokens: number | null; try: number; results: Record<string, Cell>;
  changed?: string; difference?: number | null; first?: Side; second?: Side;
}
export interface Side { status: string; output: string; error: string; score: number | null; comment: string }
export interface Building { id: string; kind: string; share: number }
export interface Page { total: number; matching: number; start: number; rows: Row[]; version: unknown; counts: Record<string, number> }
export interface Call {
  kind: string; name: string; input: Field; output: Field; error: string | null; seconds: number; cached: boolean;
  tokens: { input: number; output: number }; cost: number | null;
}
export interface Step {
  number: number; kind: string; name: string; text: Field; error: boolean;
  calls: { name: string; arguments: Field; malformed: boolean }[];
}
export interface Result {
  key: string; evaluation: string; status: string; score?: number | null; value?: Field; comment?: string;
  error?: string | null; reasoning?: string; claims: { text: string; verdict: string; reason: string }[];
  metadata?: Field; seconds?: number; cost?: number | null; try?: number; reused_from?: string | null;
  tries: { try: number; status: string; score: number | null; error: string | null }[]; calls?: Call[]; runs: string[];
}
export interface Item {
  key: string; example: { id: string; position: number; input: Field; expected: Field; metadata: Field };
  attempt: number; unit: string;
  output: {
    status: string; value: Field; trajectory?: string; answer?: Field; error: string | null; where: string; seconds?: number; queue_seconds?: number;
    cost?: number | null; tokens?: { input: number; output: number }; try?: number; metadata?: Field;
  };
  steps: Step[]; steps_total: number; calls: Call[]; calls_total: number; results: Result[];
  tries: { try: number; status: string; error: string | null; seconds: number; value: Field }[]; raw: Field;
  diff?: Piece[] | null;
}
/** What a page does with the keys; every function is optional. */
export interface Keys {
  move?: (by: number) => void; open?: () => void; close?: () => void; select?: () => void; compare?: () => void;
  step?: (by: number) => void; regression?: () => void; command: () => string;
}
