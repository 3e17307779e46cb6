"""The content of a report: everything about some runs, evaluations and aggregations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from karat.aggregators._base import Aggregate
from karat.aggregators._comparisons import RankRuns
from karat.analysis.comparison import Comparison, Difference, arrow, leader_sentence
from karat.analysis.outcomes import FailureKind, Spread, failure_kinds, latency_of
from karat.analysis.ranking import tally_results
from karat.analysis.scores import Source, not_the_same, read_scores, sources_of, usual_estimate
from karat.analysis.stored_analyses import is_analysis, is_outdated
from karat.errors import RequestError, wording
from karat.formatting import Block, Heading, Paragraph, Table, interval, number
from karat.layout import Styled
from karat.records import (
    AggregateTable,
    Counts,
    Estimate,
    Status,
    Usage,
    group_text,
    interval_text,
)
from karat.store import Store
from karat.store.handles import Aggregation, Evaluation, Run
from karat.store.run_labels import run_labels, settings_of

SHOWN_FAILURES = 3


class RunSummary(msgspec.Struct, frozen=True):
    """A run: what it is, what became of its items, what it cost and how long it took."""

    id: str
    label: str
    task: str
    dataset: str
    examples: int
    status: Status
    counts: Counts
    created: float = 0.0
    settings: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    description: str = ""
    usage: dict[str, Usage] = {}
    service_seconds: Spread = {}
    """How long an output took without waiting: `mean`, `median`, `p95`, `max`."""
    queue_seconds: Spread = {}
    """How long its model calls waited for a slot, a rate limit or a retry."""


class Metric(msgspec.Struct, frozen=True):
    """One estimate, and the aggregation or evaluation it comes from."""

    estimate: Estimate
    source: str = ""

    @property
    def identity(self) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
        """The evaluator, aggregator and group of the metric, without the run."""
        each = self.estimate
        return each.evaluator, each.aggregator, each.name, tuple(sorted((each.group or {}).items()))


class Summary(msgspec.Struct, frozen=True):
    """A report's content."""

    runs: list[RunSummary]
    metrics: list[Metric] = []
    tables: list[AggregateTable] = []
    failures: list[FailureKind] = []
    notes: list[str] = []
    evaluations: list[dict[str, Any]] = []
    aggregations: list[str] = []

    @property
    def lower_is_better(self) -> set[str]:
        """The keys of the evaluators whose lower scores are better."""
        return {
            evaluator["key"]
            for evaluation in self.evaluations
            for evaluator in evaluation["evaluators"]
            if not evaluator["higher_is_better"]
        }

    @property
    def next_step(self) -> str:
        """The command that evaluates the runs, for a report without metrics."""
        ids = " ".join(run.id for run in self.runs)
        return f"Nothing has judged these runs yet: {wording(f'karat evaluate {ids} -e NAME', 'call karat.evaluate')}."

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"kind": "report", **msgspec.to_builtins(self)}


def summarise(store: Store, ids: Sequence[Any], confidence: float = 0.95) -> Summary:
    """Collect what belongs to some ids: of a run the newest judgment by each evaluator, of an evaluation its newest
    aggregation. Of several runs, the newest judgments by evaluators that they share."""
    return _Gathering(store, confidence).of(
        [store.get(each) if isinstance(each, str) else each for each in ids]
    )


class _Gathering:
    def __init__(self, store: Store, confidence: float) -> None:
        self.store = store
        self.confidence = confidence
        self.runs: dict[str, Run] = {}
        self.evaluations: dict[str, Evaluation] = {}
        self.aggregations: dict[str, Aggregation] = {}
        self.notes: list[str] = []
        self._newest: dict[str, set[tuple[str, str]]] = {}
        """Of an evaluation that has the newest judgments of given runs: the (evaluator, run) that it has these of."""

    def of(self, handles: Sequence[Any]) -> Summary:
        for handle in handles:
            if isinstance(handle, Run):
                self.runs[handle.id] = handle
            elif isinstance(handle, Evaluation):
                self._take_evaluation(handle)
            elif isinstance(handle, Aggregation):
                self._take_aggregation(handle)
            else:
                raise RequestError(
                    f"{handle.id} is a dataset: name runs, evaluations or aggregations to report on"
                )
        self._add_children(handles)
        labels = run_labels([run.header for run in self.runs.values()])
        metrics, tables = self._estimates()
        self._note_different_evaluators()
        return Summary(
            runs=[_run(run, labels[run.id]) for run in self.runs.values()],
            metrics=metrics,
            tables=tables,
            failures=self._failures(),
            notes=self.notes,
            evaluations=[_evaluation(evaluation) for evaluation in self.evaluations.values()],
            aggregations=list(self.aggregations),
        )

    def _take_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluations[evaluation.id] = evaluation
        self.runs.update({run.id: run for run in evaluation.runs if run.id not in self.runs})

    def _take_aggregation(self, aggregation: Aggregation) -> None:
        self.aggregations[aggregation.id] = aggregation
        for evaluation in aggregation.evaluations:
            self._take_evaluation(evaluation)
        by_aggregate = aggregation.header.made_by == "aggregate" and not is_analysis(aggregation)
        if by_aggregate and is_outdated(aggregation, self.evaluations):
            self.notes.append(self._outdated_note(aggregation, "is outdated"))

    def _add_children(self, handles: Sequence[Any]) -> None:
        """Add the newest judgments of the given runs, and the newest aggregation of those."""
        given = {run.id for run in handles if isinstance(run, Run)}
        if given and not self.evaluations:
            judged: set[tuple[str, str]] = set()
            stored_evaluations = self.store.evaluations.list()
            shared = sources_of([self.runs[run] for run in self.runs if run in given], stored_evaluations)
            for evaluation in reversed(stored_evaluations):
                here = given & set(evaluation.header.runs)
                new = {
                    (spec.key, run)
                    for spec in evaluation.header.evaluators
                    for run in here
                    if (
                        run not in shared[spec.key] or shared[spec.key][run].evaluation.id == evaluation.id
                        if spec.kind == "single"
                        else len(here) > 1 or len(given) == 1
                    )
                } - judged
                if new:
                    judged |= new
                    self.evaluations[evaluation.id] = evaluation
                    self._newest[evaluation.id] = new
        if not self.aggregations:
            stored = [each for each in self.store.aggregations.list() if not is_analysis(each)]
            for evaluation_id in self.evaluations:
                found_here = [each for each in stored if evaluation_id in each.header.evaluations]
                found_here = [each for each in found_here if _found_something(each)] or found_here
                for newest in found_here[-1:]:
                    if is_outdated(newest, self.evaluations):
                        self.notes.append(self._outdated_note(newest, "is left out"))
                    else:
                        self.aggregations[newest.id] = newest

    def _outdated_note(self, aggregation: Aggregation, what: str) -> str:
        evaluations = aggregation.header.evaluations
        again = wording(
            self.store.command("aggregate", *evaluations), f"karat.aggregate({evaluations}, store=store)"
        )
        return f"{aggregation.id} {what}: its evaluation has changed since; compute it again with {again}"

    def _note_different_evaluators(self) -> None:
        """Note the evaluators whose settings or code are not the same for all runs."""
        for key, used in self._used_results().items():
            (source, _), *others = used.values()
            for other, run in others[:1]:
                self.notes.append(not_the_same(key, source, other, run, list(self.runs.values())))

    def _used_results(self) -> dict[str, dict[str, tuple[Source, str]]]:
        """For each evaluator key, by fingerprint: the first results in the report, and a run that they are of."""
        used: dict[str, dict[str, tuple[Source, str]]] = {}
        for evaluation in self.evaluations.values():
            for spec in evaluation.header.evaluators:
                for run in evaluation.header.runs if spec.kind == "single" else ():
                    if run in self.runs and self._is_newest(evaluation.id, spec.key, run):
                        by_fingerprint = used.setdefault(spec.key, {})
                        by_fingerprint.setdefault(spec.fingerprint, (Source(evaluation, spec), run))
        return used

    def _is_newest(self, evaluation: str, key: str, run: str | None) -> bool:
        """Whether the report takes an evaluation's judgments of a run by an evaluator."""
        return evaluation not in self._newest or run is None or (key, run) in self._newest[evaluation]

    def _estimates(self) -> tuple[list[Metric], list[AggregateTable]]:
        metrics: list[Metric] = []
        tables: list[AggregateTable] = []
        covered: set[str] = set()
        for aggregation in self.aggregations.values():
            evaluations = aggregation.header.evaluations
            if not is_analysis(aggregation) and _found_something(aggregation):
                covered.update(evaluations)
            metrics += [
                Metric(estimate, aggregation.id)
                for estimate in aggregation.estimates
                if any(self._is_newest(each, estimate.evaluator, estimate.run) for each in evaluations)
            ]
            tables += aggregation.tables
            for failure in aggregation.header.failures:
                error = failure.error
                note = f"{failure.label} could not be computed: {error.type}: {error.message}"
                self.notes += [] if note in self.notes else [note]
        for evaluation in self.evaluations.values():
            if evaluation.id not in covered:
                metrics += self._means(evaluation)
                for key, made in self._rankings(evaluation).items():
                    for each in made.estimates:
                        metrics.append(Metric(each.about(evaluator=key, aggregator="ranking"), evaluation.id))
                    tables += [
                        msgspec.structs.replace(table, evaluator=key, aggregator="ranking")
                        for table in made.tables
                    ]
        newest: dict[tuple[Any, ...], Metric] = {}
        for metric in metrics:
            run = metric.estimate.run
            if run is None or run in self.runs:
                newest.setdefault((*metric.identity, run), metric)
        order = {
            identity: place
            for place, identity in enumerate(dict.fromkeys(metric.identity for metric in metrics))
        }
        runs_in_order = {run: place for place, run in enumerate(self.runs)}
        shown = sorted(
            newest.values(),
            key=lambda m: (order[m.identity], runs_in_order.get(m.estimate.run or "", -1)),
        )
        distinct = {
            (t.evaluator, t.aggregator, t.name, t.run, group_text(t.group)): t for t in reversed(tables)
        }
        return shown, list(reversed(distinct.values()))

    def _rankings(self, evaluation: Evaluation) -> dict[str, Aggregate]:
        """The ranking by each evaluator that compares, where nothing has aggregated the evaluation yet."""
        ranking, found = RankRuns(confidence=self.confidence), {}
        for spec in evaluation.header.evaluators:
            if spec.kind != "single":
                tally = tally_results([evaluation], evaluation.runs, spec.key, ranking.failures)
                if tally.signatures:
                    found[spec.key] = ranking.finish(tally)
        return found

    def _means(self, evaluation: Evaluation) -> list[Metric]:
        """The usual metric of each evaluator and run, where nothing has aggregated the evaluation yet."""
        found = []
        for spec in evaluation.header.evaluators:
            if spec.kind != "single":
                continue
            for table in read_scores([(run, Source(evaluation, spec)) for run in evaluation.runs]):
                if of := len(table.scores) + table.unlisted:
                    estimate = usual_estimate(spec, table.positions, table.scores, of, self.confidence)
                    found.append(Metric(estimate.about(run=table.run.id), evaluation.id))
        return found

    def _failures(self) -> list[FailureKind]:
        handles: list[Run | Evaluation] = [*self.runs.values(), *self.evaluations.values()]
        kinds = [kind for each in handles if each.counts.failed for kind in self._failures_of(each)]
        for kind in kinds:
            kind.examples = kind.examples[:SHOWN_FAILURES]
        place = {each.id: number for number, each in enumerate(handles)}
        return sorted(kinds, key=lambda each: (place[each.where], -each.count, each.type))

    def _failures_of(self, handle: Run | Evaluation) -> list[FailureKind]:
        """The failures of a run, or of the results that are the newest of the runs in the report."""
        if handle.id not in self._newest:
            return failure_kinds(handle, skipped=False, runs=self.runs)
        newest = self._newest[handle.id]
        by_key = {key: frozenset(run for each, run in newest if each == key) for key, _ in newest}
        return [
            kind
            for runs in set(by_key.values())
            for kind in failure_kinds(handle, skipped=False, runs=runs)
            if by_key.get(kind.what) == runs
        ]


def _found_something(aggregation: Aggregation) -> bool:
    """Whether an aggregation has a result: one whose aggregators all failed has none."""
    return bool(aggregation.header.estimates or aggregation.header.tables)


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    header = evaluation.header
    return {
        "id": evaluation.id,
        "status": evaluation.status,
        "counts": evaluation.counts.to_dict(),
        "evaluators": [
            {
                "key": spec.key,
                "name": spec.name,
                "params": spec.params,
                "bounds": spec.bounds,
                "higher_is_better": spec.higher_is_better,
                "usual_metric": spec.usual_metric,
            }
            for spec in header.evaluators
        ],
        "usage": msgspec.to_builtins(header.usage),
    }


def _run(run: Run, label: str) -> RunSummary:
    header, data, latency = run.header, run.dataset, latency_of(run)
    return RunSummary(
        id=run.id,
        label=label,
        task=header.task,
        dataset=data.label,
        examples=len(data),
        status=run.status,
        counts=run.counts,
        created=header.created,
        settings=settings_of(header),
        environment=header.environment,
        description=header.description,
        usage=header.usage,
        service_seconds=latency.service,
        queue_seconds=latency.queue,
    )


# A matrix: variants × metrics with intervals, the best of each metric marked.


BEST, SAME = "★", "≈"


class Cell(msgspec.Struct, frozen=True):
    """A metric of a variant."""

    estimate: Estimate
    best: bool = False
    indistinguishable: bool = False
    """Whether its difference from the best is not significant."""


class Grid(msgspec.Struct, frozen=True):
    """Variants × metrics."""

    metrics: list[str]
    variants: list[str]
    runs: list[str]
    cells: list[list[Cell | None]]
    """One row for each variant."""
    conclusions: list[str]
    """The best variant by each metric, in a sentence."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"kind": "grid", **msgspec.to_builtins(self)}


def make_grid(
    comparison: Comparison, estimates: Sequence[Estimate], lower_is_better: Collection[str] = ()
) -> Grid:
    """Arrange the estimates of the runs of a comparison, and mark the best run of each metric."""
    runs = [run.id for run in comparison.runs]
    labels = {run.id: run.label for run in comparison.runs}
    leaders = {(each.evaluator, each.aggregator): each for each in comparison.leaders}
    whole = [each for each in estimates if not each.group and each.run in labels]
    keys = dict.fromkeys((each.evaluator, each.aggregator, each.name) for each in whole)
    by_place = {(each.evaluator, each.aggregator, each.name, each.run): each for each in whole}
    best_values: dict[tuple[str, str, str], float | None] = {}
    better = {(each.evaluator, each.aggregator, each.name): each.better(lower_is_better) for each in whole}
    for key in keys:
        values = [by_place[*key, run].value for run in runs if (*key, run) in by_place]
        known = [value for value in values if value is not None]
        pick = {"higher": max, "lower": min}.get(better[key] or "")
        best_values[key] = pick(known) if pick and len(set(known)) > 1 else None
    cells: list[list[Cell | None]] = []
    for run in runs:
        row: list[Cell | None] = []
        for key in keys:
            estimate = by_place.get((*key, run))
            if estimate is None:
                row.append(None)
            elif (
                key[2] or key[:2] not in leaders
            ):  # not compared pair by pair: the best value alone is marked
                row.append(Cell(estimate, estimate.value is not None and estimate.value == best_values[key]))
            else:
                leader = leaders[key[:2]]
                row.append(Cell(estimate, leader.run == run, run in leader.indistinguishable))
        cells.append(row)
    heads = []
    for evaluator, aggregator, name in keys:
        shown = Estimate(None, evaluator=evaluator, aggregator=aggregator, name=name).label
        direction = better[evaluator, aggregator, name]
        heads.append(f"{shown} {arrow(direction == 'higher')}" if direction else shown)
    named = {run: labels[run] for run in runs}
    conclusions = [f"{leader_sentence(leader, named, 'variant')}." for leader in comparison.leaders]
    return Grid(heads, [labels[run] for run in runs], runs, cells, conclusions)


def grid_blocks(grid: Grid, comparison: Comparison, usage: dict[str, dict[str, Usage]]) -> list[Block]:
    """The conclusions, the grid, and how each variant compares with the baseline, one line each."""
    costs = [_cost(usage.get(run, {})) for run in grid.runs]
    with_cost = any(costs)
    counts = {(cell.estimate.n, cell.estimate.of) for row in grid.cells for cell in row if cell is not None}
    rows = []
    for name, row, cost in zip(grid.variants, grid.cells, costs, strict=True):
        cells = [_cell(cell, with_count=len(counts) > 1) for cell in row]
        rows.append([name, *cells, *([cost] if with_cost else [])])
    blocks: list[Block] = [Paragraph(text) for text in grid.conclusions]
    blocks.append(Table(["variant", *grid.metrics, *(["cost"] if with_cost else [])], rows, split=True))
    marks = []
    if any(cell is not None and cell.best for row in grid.cells for cell in row):
        marks.append(f"{BEST} best")
    if any(cell is not None and cell.indistinguishable for row in grid.cells for cell in row):
        marks.append(f"{SAME} not distinguishable from the best")
    if len(counts) == 1:
        n, of = next(iter(counts))
        marks.append(f"each over {n:,} of {of:,} items")
    if marks:
        blocks.append(Paragraph(Styled(" · ".join(marks), "dim")))
    blocks += _lines(comparison)
    return blocks


def _cell(cell: Cell | None, *, with_count: bool) -> str:
    if cell is None:
        return "—"
    mark = BEST if cell.best else SAME if cell.indistinguishable else " "
    estimate = cell.estimate
    lacking = f" {estimate.n:,} of {estimate.of:,}" if with_count else ""
    text = f"{mark} {number(estimate.value)} {interval_text(estimate)}".rstrip() + lacking
    return Styled(text, "best") if cell.best else text


def _cost(usage: dict[str, Usage]) -> str:
    if not usage:
        return ""
    costs = [each.cost for each in usage.values()]
    return "unknown" if None in costs else f"${sum(cost or 0.0 for cost in costs):.4f}"


def _lines(comparison: Comparison) -> list[Block]:
    """Return one line for each variant that compares it with the first by each metric."""
    labels = {run.id: run.label for run in comparison.runs}
    metrics = list(dict.fromkeys(each.metric for each in comparison.differences))
    rows = []
    for run in comparison.runs[1:]:
        row: list[str] = [labels[run.id]]
        for metric in metrics:
            found = [each for each in comparison.differences if each.run == run.id and each.metric == metric]
            row.append(_verdict(found[0], comparison.confidence) if found else "—")
        rows.append(row)
    if not rows:
        return []
    legend = f"▲ better by · ▼ worse by · {SAME} no difference found"
    if len(comparison.differences) > 1:
        legend += " · the tests are corrected for all of these comparisons, the intervals are not"
    return [
        Heading(f"compared with {labels[comparison.runs[0].id]}, example by example"),
        Table(["variant", *metrics], rows, split=True),
        Paragraph(Styled(legend, "dim")),
    ]


def _verdict(each: Difference, confidence: float) -> str:
    better, p = each.improvement, each.adjusted_p_value
    if better.value is None:
        return "no item in common"
    if p is None or p > 1.0 - confidence or not better.value:
        return f"{SAME} {better.value:+.3f} {interval(better.low, better.high)}"
    side = (better.low, better.high) if better.value > 0 else (_minus(better.high), _minus(better.low))
    mark, style = ("▲", "good") if better.value > 0 else ("▼", "bad")
    return Styled(f"{mark} {number(abs(better.value))} {interval(*side)}", style)


def _minus(value: float | None) -> float | None:
    return None if value is None else -value
