// Parts of pages: plots, fields, diffs, estimates, the filter box and the list of rows.
import {
  Component, Problem, address, ask, bytes, change, createRef, dollars, html, interval, number, plural, quoted, runPath, seconds,
  whole,
} from "./lib.js";

/** @typedef {import("./types").Row} Row */

// ---------------------------------------------------------------- plots

let plots = 0;
/** How far a plot is scaled down before it scrolls: its text stays readable. */
const SMALLEST = 0.85;

/**
 * The marks of a plot as SVG. `link` says which address a mark opens.
 * @param {{plot: import("./types").Plot | null, link?: (about: import("./types").About) => string | null}} props
 */
export function Plot({ plot, link = () => null }) {
  if (!plot) return null;
  const id = `plot-${(plots += 1)}`;
  const drawn = plot.marks.map((mark) => {
    const tone = `m-${mark.tone ?? (mark.kind === "rect" || mark.kind === "circle" ? "accent" : "ink")}`;
    const title = mark.title ? html`<title>${mark.title}</title>` : null;
    const target = mark.about ? link(mark.about) : null;
    if (mark.kind === "line") {
      return html`<line class="l ${tone}" x1=${mark.x1} y1=${mark.y1} x2=${mark.x2} y2=${mark.y2}
        stroke-width=${mark.width ?? 1} stroke-dasharray=${mark.dashed ? "2 3" : undefined}>${title}</line>`;
    }
    if (mark.kind === "rect") {
      return html`<rect class=${tone} x=${mark.x} y=${mark.y} width=${mark.width} height=${mark.height}>${title}</rect>`;
    }
    if (mark.kind === "circle") {
      const hollow = mark.filled === false ? " hollow" : "";
      return html`<circle class=${tone + hollow} cx=${mark.x} cy=${mark.y} r=${mark.r ?? 4}>${title}</circle>`;
    }
    const names = `${tone}${mark.bold ? " b" : ""}${mark.small ? " s" : ""}`;
    const text = html`<text class=${names} x=${mark.x} y=${mark.y} text-anchor=${mark.anchor ?? "start"}>${title}${mark.text}</text>`;
    return target ? html`<a href=${target}>${text}</a>` : text;
  });
  // Links inside an image would not be announced: a plot with links is a group of texts.
  const linked = plot.marks.some((mark) => mark.kind === "text" && mark.about && link(mark.about));
  return html`<figure>
    <figcaption>${plot.title}</figcaption>
    <div class="scroll" tabindex="0" role="region" aria-label=${plot.title}>
      <svg class="plot" viewBox="0 0 ${plot.width} ${plot.height}" width=${plot.width} height=${plot.height} style=${{ minWidth: `${SMALLEST * plot.width}px` }}
        role=${linked ? "group" : "img"} aria-labelledby="${id}-t ${id}-d">
        <title id="${id}-t">${plot.title}</title><desc id="${id}-d">${plot.description}</desc>${drawn}
      </svg>
    </div>
  </figure>`;
}

// ---------------------------------------------------------------- values

/** A status as a sign and a word; `short` shows the sign alone. An item that is ok has no sign: a mark beside a wrong answer
 * would say that it is right. @param {{status: string, short?: boolean}} props */
export function Status({ status, short = false }) {
  if (short && status === "ok") return html`<span class="hidden">answered</span>`;
  const signs = { ok: "", success: "", failed: "✗", fatal_error: "✗", skipped: "–", pending: "…", running: "▶", better: "▲", worse: "▼" };
  const words = { ok: "answered", success: "finished", fatal_error: "stopped by an error", no_data: "no data" };
  const tones = { better: "good", failed: "bad", fatal_error: "bad", worse: "bad", partial: "warn", interrupted: "warn" };
  const sign = /** @type {Record<string, string>} */ (signs)[status] ?? "•";
  const word = /** @type {Record<string, string>} */ (words)[status] ?? status;
  return html`<span class="status ${/** @type {Record<string, string>} */ (tones)[status] ?? "muted"}" title=${short ? word : undefined}>${sign} ${short ? html`<span class="hidden">${word}</span>` : word}</span>`;
}

/** Whether a score is the best or the worst that an evaluator gives. @param {any} spec @param {number | null | undefined} score */
export function tone(spec, score) {
  const [low, high] = spec?.bounds ?? [null, null];
  if (score === null || score === undefined || low === high) return "";
  const [worst, best] = spec.higher_is_better ? [low, high] : [high, low];
  return score === best ? "good" : score === worst ? "bad" : "";
}

const SHORT = 2000;

/** A field: folded where it is long, with a download where it is too long to be shown. */
export class Field extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.state = { whole: false };
  }
  render() {
    /** @type {{field: import("./types").Field | undefined, pieces?: any}} */
    const { field, pieces } = this.props;
    if (!field || field.kind === "none") return html`<p class="muted">none</p>`;
    const long = field.text.length > SHORT;
    const most = long && !this.state.whole ? SHORT : field.text.length;
    const text = `${field.text.slice(0, most)}${most < field.text.length ? "…" : ""}`;
    const more = long && !this.state.whole
      ? html`<button type="button" onClick=${() => this.setState({ whole: true })}>
          Show ${field.cut ? "the first 20,000 characters" : "all"} (${bytes(field.size)})</button>`
      : null;
    const download = field.download ? html`<a class="download" href=${field.download} download>Download all ${bytes(field.size)}</a>` : null;
    return html`<div class="field">
      <pre dir="auto" tabindex="0" class=${field.kind}>${pieces ? [...drawn(pieces, most), most < field.text.length ? "…" : ""] : (text === "" ? html`<span class="muted">(empty)</span>` : text)}</pre>
      ${more}${download}
    </div>`;
  }
}

/** Of a text, the part that has to be the same for its differences to be worth marking. */
const ALIKE = 0.1;

/**
 * One side of a word diff; undefined where the texts have next to nothing in common.
 * @param {import("./types").Piece[] | null | undefined} pieces @param {"removed" | "added"} mine
 */
export function side(pieces, mine) {
  const letters = { same: 0, removed: 0, added: 0 };
  for (const { kind, text } of pieces ?? []) letters[kind] += (text.match(/\w/gu) ?? []).length;
  const { same, removed, added } = letters;
  if (!same || same < ALIKE * (same + Math.max(removed, added))) return undefined;
  return pieces?.filter((piece) => piece.kind === "same" || piece.kind === mine);
}

/** The first characters of a side of a diff, as elements. @param {import("./types").Piece[]} pieces @param {number} most */
function drawn(pieces, most) {
  let left = most;
  return pieces.map(({ kind, text }) => {
    const part = text.slice(0, Math.max(0, left));
    left -= text.length;
    if (!part || kind === "same") return part;
    return kind === "removed" ? html`<del>${part}</del>` : html`<ins>${part}</ins>`;
  });
}

/** Which output of an example it is, where there are several. @param {{attempt: number, unit: string}} of */
export const part = ({ attempt, unit }) =>
  attempt > 1 || unit ? html`<span class="part">${attempt > 1 ? ` · attempt ${attempt}` : ""}${unit ? ` · ${unit}` : ""}</span>` : null;

/** The filter of the rows of an estimate's group. @param {Record<string, string> | null | undefined} group */
export const groupFilter = (group) =>
  Object.entries(group ?? {}).map(([name, value]) => `${quoted(name)}=${quoted(value)}`).join(" ");

/**
 * An estimate: its value opens all rows behind it, the number of missing ones opens those.
 * `rows` is how many there are: where an estimate is of fewer, the evaluator did not apply to the others.
 * @param {{estimate: any, run: string, filter?: string, rows: number}} props
 */
export function Estimate({ estimate, run, filter = "", rows }) {
  const key = estimate.evaluator;
  const missing = estimate.of - estimate.n;
  const applies = estimate.of < rows ? `not ${quoted(`${key}.status`)}:"not applicable"` : "";
  const all = address(runPath(run), { filter: `${filter} ${applies}`.trim(), sort: key });
  const lacking = address(runPath(run), { filter: `${filter} ${quoted(key)}:none ${applies}`.trim() });
  return html`<span class="estimate">
    <a href=${all} title="the rows behind this number">${number(estimate.value)}</a> <span class="muted">${interval(estimate)}</span>
    ${missing > 0 ? html` <a class="missing" href=${lacking}>${plural(missing, "missing item")}</a>` : null}
  </span>`;
}

/** @param {{run: import("./types").Run}} props */
export function Counts({ run }) {
  const names = /** @type {const} */ (["ok", "failed", "skipped", "pending"]);
  return html`<span class="counts">${names.map((name) => run.counts[name]
    ? html`<a href=${address(runPath(run.id), { filter: `status:${name}` })}>${whole(run.counts[name])} ${name}</a> `
    : null)}</span>`;
}

/**
 * A menu whose choice goes into the address.
 * @param {{name: string, label: string, value: string | null, options: string[]}} props
 */
export function Choice({ name, label, value, options }) {
  return html`<label class="choice">${label} <select value=${value ?? ""} onChange=${(/** @type {any} */ e) => change({ [name]: e.target.value, key: null })}>
    ${options.map((each) => html`<option value=${each} selected=${each === value}>${each}</option>`)}
  </select></label>`;
}

/** The filter box: Enter applies it, Escape leaves it. */
export class FilterBox extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.state = { text: props.value, of: props.value };
  }
  /** @param {any} props @param {any} state */
  static getDerivedStateFromProps(props, state) {
    return props.value === state.of ? null : { text: props.value, of: props.value };
  }
  render() {
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      change({ filter: this.state.text.trim(), key: null, open: null });
      if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
    };
    return html`<form class="filter" role="search" onSubmit=${submit}>
      <label for="filter">Filter</label>
      <input id="filter" type="search" autocomplete="off" spellcheck="false" list="fields" value=${this.state.text}
        placeholder='status:failed score<0.5 topic:law "text"' onInput=${(/** @type {any} */ e) => this.setState({ text: e.target.value })} />
      <datalist id="fields">${(this.props.fields ?? []).map((/** @type {string} */ each) => html`<option value="${quoted(each)}:"></option>`)}</datalist>
      <button type="submit">Apply</button>
      ${this.props.value ? html`<button type="button" onClick=${() => change({ filter: null, key: null })}>Clear</button>` : null}
    </form>`;
  }
}

// ---------------------------------------------------------------- the list of rows

const PAGE = 100;
const HEIGHT = 46;
const TALLEST = 4_000_000; // browsers cannot lay out elements of 40 million pixels

/**
 * A list of any number of rows, of which only those in sight exist.
 * Props: `path` (of the rows), `query` (filter, sort, evaluator), `selected` (key), `version`, `draw` (a row's content),
 * `onSelect`, `onPage` (what the server said of all rows), `label`, `own` (is given this list).
 */
export class Rows extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    /** @type {Map<number, Row[]>} */
    this.pages = new Map();
    /** @type {Set<number>} */
    this.asked = new Set();
    this.box = createRef();
    this.generation = 0;
    /** What the rows that are loaded belong to. */
    this.loaded = "";
    props.own?.(this);
    this.state = { matching: -1, top: 0, height: 600, error: null };
  }
  componentDidMount() {
    this.start();
    this.observer = new ResizeObserver(() => this.measure());
    this.observer.observe(this.box.current);
  }
  componentWillUnmount() {
    this.generation += 1;
    this.observer?.disconnect();
  }
  /** @param {any} before */
  componentDidUpdate(before) {
    const key = (/** @type {any} */ props) => JSON.stringify([props.path, props.query]);
    if (key(before) !== key(this.props)) this.start();
    else if (before.version !== null && before.version !== this.props.version) this.start(this.state.matching >= 0);
    else if (before.selected !== this.props.selected) this.show(this.place(this.props.selected));
  }
  /** Whether the rows are those of the address. */
  settled() { return this.loaded === JSON.stringify([this.props.path, this.props.query]); }
  measure() {
    const box = this.box.current;
    if (box && box.clientHeight !== this.state.height) this.setState({ height: box.clientHeight });
  }
  /** Load anew; `quiet` keeps what is shown until the answer has come. @param {boolean} [quiet] */
  async start(quiet = false) {
    const generation = (this.generation += 1);
    this.asked.clear();
    const { path, query, selected } = this.props;
    const at = quiet ? { start: Math.floor(this.first() / PAGE) * PAGE } : selected ? { around: selected } : { start: 0 };
    try {
      let page = await ask(address(path, { ...query, ...at, count: PAGE }));
      const chosen = page.rows.find((/** @type {Row} */ row) => row.key === selected);
      const first = Math.floor((chosen && !quiet ? chosen.index : page.start) / PAGE) * PAGE;
      if (first !== page.start) page = await ask(address(path, { ...query, start: first, count: PAGE }));
      if (generation !== this.generation) return;
      this.pages = new Map([[first / PAGE, page.rows]]);
      this.loaded = JSON.stringify([path, query]);
      this.asked = new Set([first / PAGE]);
      this.props.onPage?.(page);
      this.setState({ matching: page.matching, error: null }, () => {
        if (!quiet) this.show(selected ? this.place(selected) : 0, true);
      });
    } catch (error) {
      if (generation === this.generation && error instanceof Error) this.setState({ error, matching: 0 });
    }
  }
  /** @param {number} number */
  async page(number) {
    const known = this.pages.get(number);
    if (known || this.asked.has(number)) return known;
    this.asked.add(number);
    const generation = this.generation;
    try {
      const page = await ask(address(this.props.path, { ...this.props.query, start: number * PAGE, count: PAGE }));
      if (generation !== this.generation) return undefined;
      this.pages.set(number, page.rows);
      for (const each of this.pages.keys()) {
        if (this.pages.size > 20 && Math.abs(each - number) > 8) { this.pages.delete(each); this.asked.delete(each); }
      }
      this.setState({ matching: page.matching });
      return page.rows;
    } catch {
      this.asked.delete(number);
      return undefined;
    }
  }
  /** The place of a row among those that are loaded. @param {string | undefined} key */
  place(key) {
    for (const rows of this.pages.values()) {
      for (const row of rows) if (row.key === key) return row.index;
    }
    return -1;
  }
  visibleRows() { return Math.max(1, Math.floor(this.state.height / HEIGHT)); }
  /** How many times taller the list is than the box that scrolls. */
  scale() {
    const tall = this.state.matching * HEIGHT;
    return tall <= TALLEST ? 1 : (tall - this.state.height) / (TALLEST - this.state.height);
  }
  first() { return Math.max(0, Math.floor((this.state.top * this.scale()) / HEIGHT)); }
  /** Scroll so that a row is in sight. @param {number} index @param {boolean} [middle] */
  show(index, middle = false) {
    const box = this.box.current;
    if (!box || index < 0) return;
    const at = index * HEIGHT, shown = box.scrollTop * this.scale();
    let wanted = shown;
    if (middle) wanted = at - this.state.height / 2 + HEIGHT;
    else if (at < shown) wanted = at;
    else if (at + HEIGHT > shown + this.state.height) wanted = at + HEIGHT - this.state.height;
    if (wanted !== shown) box.scrollTop = Math.max(0, wanted) / this.scale();
  }
  /** Select the next row, or the one before. @param {number} by */
  async move(by) {
    const now = this.place(this.props.selected);
    const next = Math.min(this.state.matching - 1, Math.max(0, now < 0 ? this.first() : now + by));
    const rows = await this.page(Math.floor(next / PAGE));
    const row = (rows ?? this.pages.get(Math.floor(next / PAGE)))?.[next % PAGE];
    if (row) this.props.onSelect(row, true);
  }
  render() {
    const { matching, top, error } = this.state;
    const first = this.first(), count = this.visibleRows() + 2;
    const rows = [];
    for (let index = first; index < Math.min(matching, first + count); index += 1) {
      const number = Math.floor(index / PAGE);
      const row = this.pages.get(number)?.[index % PAGE];
      if (!row) this.page(number);
      const y = index * HEIGHT - top * this.scale() + top;
      const style = { transform: `translateY(${y}px)`, height: `${HEIGHT}px` };
      const chosen = row && row.key === this.props.selected;
      rows.push(html`<li key=${index} class="row ${chosen ? "chosen" : ""}" style=${style} aria-setsize=${matching} aria-posinset=${index + 1}>
        ${row ? html`<a href=${address(location.pathname, { ...this.props.address, key: row.key, open: 1 })} aria-current=${chosen ? "true" : undefined}>${this.props.draw(row)}</a>` : html`<span class="muted">…</span>`}
      </li>`);
    }
    const tall = Math.min(TALLEST, Math.max(0, matching) * HEIGHT);
    return html`<div class="rows" ref=${this.box} tabindex="0" role="region" aria-label=${this.props.label}
      onScroll=${(/** @type {any} */ event) => this.setState({ top: event.target.scrollTop })}>
      <${Problem} error=${error} />
      ${matching === 0 && !error ? html`<p class="muted">No rows match.</p>` : null}
      <ul style=${{ height: `${tall}px` }}>${rows}</ul>
    </div>`;
  }
}

// ---------------------------------------------------------------- one item

/** @param {{calls: import("./types").Call[], total?: number, title: string}} props */
export function Calls({ calls, total, title }) {
  if (!calls?.length) return null;
  return html`<details><summary>${title}: ${whole(total ?? calls.length)}</summary>
    <ol class="steps">${calls.map((call) => html`<li>
      <strong>${call.kind} ${call.name}</strong>
      <span class="muted"> ${seconds(call.seconds)}${call.cached ? ", cached" : ""}${call.cost !== null ? `, ${dollars(call.cost)}` : ""}</span>
      ${call.error ? html`<p class="bad">${call.error}</p>` : null}
      <${Field} field=${call.input} /><${Field} field=${call.output} />
    </li>`)}</ol>
    ${total && total > calls.length ? html`<p class="muted">The first ${calls.length} are shown; raw has all.</p>` : null}
  </details>`;
}

/** A trajectory as numbered steps; further ones are loaded when asked for. */
export class Steps extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.state = { more: [], of: "", error: "" };
  }
  /** @param {any} props @param {any} state */
  static getDerivedStateFromProps(props, state) {
    const of = `${props.run} ${props.item.key}`; // another run has other steps at the same row
    return of === state.of ? null : { more: [], of };
  }
  async load() {
    const { run, item } = this.props;
    const start = item.steps.length + this.state.more.length;
    const page = await ask(address(`/api${runPath(run)}/steps`, { key: item.key, start, count: 200 }));
    this.setState({ more: [...this.state.more, ...page.steps] });
  }
  render() {
    /** @type {{item: import("./types").Item}} */
    const { item } = this.props;
    const steps = [...item.steps, ...this.state.more];
    if (!steps.length) return null;
    return html`<section><h3>Trajectory: ${plural(item.steps_total, "step")}</h3>
      <ol class="steps">${steps.map((step) => html`<li class=${step.error ? "failed" : ""}>
        <strong>${step.number + 1}. ${step.kind}${step.name ? ` ${step.name}` : ""}</strong>${step.error ? html` <span class="bad">✗ error</span>` : null}
        ${step.text.kind === "none" ? null : html`<${Field} field=${step.text} />`}
        ${step.calls.map((call) => html`<div class="call"><strong>→ ${call.name}</strong>${call.malformed ? html` <span class="bad">malformed</span>` : null}
          <${Field} field=${call.arguments} /></div>`)}
      </li>`)}</ol>
      ${steps.length < item.steps_total ? html`<button type="button" onClick=${() => this.load()}>Show more of ${plural(item.steps_total, "step")}</button>` : null}
    </section>`;
  }
}

/** @param {{results: import("./types").Result[], at: string}} props */
export function Results({ results, at }) {
  if (!results.length) return html`<p class="muted">Nothing has judged this output.</p>`;
  return results.map((result) => html`<div class="result">
    <h4>${result.key} ${result.status === "ok" ? null : html`<${Status} status=${result.status} />`}
      ${result.score === null || result.score === undefined ? null : html` <strong>${number(result.score)}</strong>`}
      <span class="muted"> ${result.evaluation}${result.reused_from ? `, reused from ${result.reused_from}` : ""}</span></h4>
    ${result.runs.length > 1 ? html`<p class="compared">${result.status === "ok" ? html`Verdict <strong>${result.value?.text.slice(0, 300)}</strong>; ` : null}shown in this order:
      ${result.runs.map((run, place) => html`${place ? ", " : ""}<a href=${address(runPath(run), { key: at, open: 1 })}>${run}</a>`)}</p>` : null}
    ${result.comment ? html`<p class="text" dir="auto">${result.comment}</p>` : null}
    ${result.error ? html`<p class="bad text" dir="auto">${result.error}</p>` : null}
    ${result.reasoning ? html`<h5>Reasoning</h5><p class="text" dir="auto">${result.reasoning}</p>` : null}
    ${result.claims.length ? html`<h5>Claims</h5><ol class="claims">${result.claims.map((claim) => html`<li dir="auto">
      ${claim.text} <strong>${claim.verdict}</strong> ${claim.reason ? html`<span class="muted">${claim.reason}</span>` : null}</li>`)}</ol>` : null}
    ${result.value && result.value.kind !== "none" ? html`<details><summary>Value</summary><${Field} field=${result.value} /></details>` : null}
    ${result.metadata && result.metadata.kind !== "none" ? html`<details><summary>Details</summary><${Field} field=${result.metadata} /></details>` : null}
    ${result.tries.length > 1 ? html`<details><summary>${plural(result.tries.length, "try").replace("trys", "tries")}</summary>
      <ol>${result.tries.map((each) => html`<li>${each.status === "ok" ? null : html`<${Status} status=${each.status} /> `}${each.score === null ? "" : number(each.score)} ${each.error ?? ""}</li>`)}</ol></details>` : null}
    <${Calls} calls=${result.calls ?? []} title="Judge calls" />
  </div>`);
}

/** The output of an item: its value or its error; of a trajectory the last answer, the rest is folded. @param {{item: import("./types").Item, pieces?: any}} props */
export function Output({ item, pieces }) {
  const { output } = item;
  const answer = output.trajectory && output.answer && output.answer.kind !== "none" ? output.answer : null;
  const value = html`<${Field} field=${output.value} pieces=${output.trajectory ? null : pieces} />`;
  return html`<div>
    ${output.error ? html`<p class="bad text" dir="auto">${output.error}</p>` : null}
    ${output.where ? html`<details><summary>Where</summary><pre tabindex="0">${output.where}</pre></details>` : null}
    ${output.value.kind === "none" && output.error ? null : output.trajectory ? html`${answer ? html`<${Field} field=${answer} pieces=${pieces} />` : null}<details><summary>${output.trajectory}</summary>${value}</details>` : value}
    <p class="muted"><${Status} status=${output.status} />
      ${output.seconds === undefined ? null : ` ${output.status === "ok" ? "in" : "after"} ${seconds(output.seconds)}`}
      ${(output.queue_seconds ?? 0) >= 0.001 ? ` (+ ${seconds(output.queue_seconds)} waiting)` : null}
      ${output.tokens && output.tokens.input + output.tokens.output ? ` · ${whole(output.tokens.input + output.tokens.output)} tokens · ${output.cost === null ? "cost unknown" : dollars(output.cost)}` : null}
      ${(output.try ?? 1) > 1 ? ` · try ${output.try}` : null}</p>
  </div>`;
}

/** @param {{item: import("./types").Item}} props */
export function Tries({ item }) {
  if (item.tries.length < 2) return null;
  return html`<section><h3>Tries</h3><ol>${item.tries.map((each) => html`<li>
    <${Status} status=${each.status} /> ${seconds(each.seconds)} ${each.error ? html`<span class="bad">${each.error}</span>` : null}
    ${each.value.kind === "none" ? null : html`<${Field} field=${each.value} />`}</li>`)}</ol></section>`;
}
