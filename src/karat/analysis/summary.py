"""Everything about some runs, evaluations and aggregations, gathered for a report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from karat.aggregators._base import Aggregate, Group, not_applicable
from karat.aggregators._comparisons import Ranking
from karat.aggregators._distributions import Quantiles
from karat.analysis.failure_kinds import kind_of
from karat.analysis.scores import current_results
from karat.errors import RequestError
from karat.records import (
    AggregateTable,
    Counts,
    Estimate,
    Failed,
    ItemResult,
    Output,
    Status,
    Usage,
    group_text,
)
from karat.stats._means import MeanState
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
    seconds: dict[str, float] = {}
    """Of one output: mean, median, 95th percentile, largest."""


class FailureKind(msgspec.Struct, frozen=True):
    """Failures of one type in one place, with the first few."""

    where: str
    """The run or the evaluation."""
    what: str
    """`output`, or the key of an evaluator."""
    type: str
    count: int
    examples: list[dict[str, str]] = []


class Metric(msgspec.Struct, frozen=True):
    """One estimate, and the aggregation or evaluation it comes from."""

    estimate: Estimate
    source: str = ""

    @property
    def identity(self) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
        """What it is about, apart from the run."""
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

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-able values."""
        return {"kind": "report", **msgspec.to_builtins(self)}


def summarise(store: Store, ids: Sequence[Any], confidence: float = 0.95) -> Summary:
    """Gathers what belongs to some ids: of a run the newest judgment by each evaluator, of an evaluation its newest
    aggregation."""
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
                    f"{handle.id} is a dataset: a report is of runs, evaluations and aggregations"
                )
        self._add_children(handles)
        labels = run_labels([run.header for run in self.runs.values()])
        metrics, tables = self._estimates()
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

    def _add_children(self, handles: Sequence[Any]) -> None:
        """What was made from what is given: the newest judgments of runs, the newest aggregation of those."""
        given = {run.id for run in handles if isinstance(run, Run)}
        if given and not self.evaluations:
            judged: set[tuple[str, str]] = set()
            for evaluation in reversed(self.store.evaluations.list()):
                here = given & set(evaluation.header.runs)
                new = {
                    (spec.key, run)
                    for spec in evaluation.header.evaluators
                    for run in here
                    if spec.kind == "single" or len(here) > 1 or len(given) == 1
                } - judged
                if new:
                    judged |= new
                    self.evaluations[evaluation.id] = evaluation
        if not self.aggregations:
            every_aggregation = self.store.aggregations.list()
            for judged_by in self.evaluations:
                found_here = [a for a in every_aggregation if judged_by in a.header.evaluations]
                self.aggregations.update({a.id: a for a in found_here[-1:]})

    def _estimates(self) -> tuple[list[Metric], list[AggregateTable]]:
        metrics: list[Metric] = []
        tables: list[AggregateTable] = []
        covered: set[str] = set()
        for aggregation in self.aggregations.values():
            covered.update(aggregation.header.evaluations)
            metrics += [Metric(estimate, aggregation.id) for estimate in aggregation.estimates]
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
        """Of an evaluation that nothing has aggregated yet: the ranking by each evaluator that compares."""
        ranking = Ranking(confidence=self.confidence)
        states = {spec.key: ranking.start() for spec in evaluation.header.evaluators if spec.kind == "pair"}
        if not states:
            return {}
        for _, of_example in groupby(current_results(evaluation), key=lambda each: each[0]):
            by_key: dict[str, list[ItemResult]] = {}
            for _, result in of_example:
                by_key.setdefault(result.key, []).append(result)
            for key in states.keys() & by_key.keys():
                group = Group(by_key[key][0].example, {}, by_key[key])
                states[key] = ranking.add(states[key], group)
        return {key: ranking.finish(state) for key, state in states.items() if state.signatures}

    def _means(self, evaluation: Evaluation) -> list[Metric]:
        """Of an evaluation that nothing has aggregated yet: the mean score of each evaluator and run."""
        kinds = {spec.key: spec.kind for spec in evaluation.header.evaluators}
        scores: dict[tuple[str, str], dict[str, list[float]]] = {}
        missing: dict[tuple[str, str], int] = {}
        left_out: dict[tuple[str, str], int] = {}
        for _, result in current_results(evaluation):
            if kinds[result.key] == "single":
                place = (result.key, result.runs[0])
                if result.score is not None:
                    scores.setdefault(place, {}).setdefault(result.example, []).append(result.score)
                elif not not_applicable(result):
                    missing[place] = missing.get(place, 0) + 1
                else:
                    left_out[place] = left_out.get(place, 0) + 1
        graded = {
            key
            for (key, _), by_example in scores.items()
            for v in by_example.values()
            if not {0.0, 1.0} >= set(v)
        }
        items = {run.id: run.counts.total for run in evaluation.runs}
        found = []
        for place in dict.fromkeys([*scores, *missing]):
            mean = MeanState()
            for values in scores.get(place, {}).values():
                mean.add(values)
            of = mean.n + missing.get(place, 0)
            if evaluation.counts.pending:  # what has no result yet is missing too
                of = max(of, items[place[1]] - left_out.get(place, 0))
            if place[0] in graded:
                form, estimate = "mean", mean.estimate(self.confidence, of=of)
            else:
                form, estimate = "accuracy", mean.proportion(self.confidence, of=of)
            estimate = estimate.about(evaluator=place[0], aggregator=form, run=place[1])
            found.append(Metric(estimate, evaluation.id))
        return found

    def _failures(self) -> list[FailureKind]:
        found: dict[tuple[str, str, str], tuple[int, list[dict[str, str]]]] = {}

        def note(where: str, what: str, record: Output | ItemResult) -> None:
            if isinstance(record.outcome, Failed):
                kind, message = kind_of(record.outcome.error)
                count, shown = found.get((where, what, kind), (0, []))
                if len(shown) < SHOWN_FAILURES:
                    shown = [*shown, {"example": record.example, "message": message[:1000]}]
                found[where, what, kind] = (count + 1, shown)

        for run in self.runs.values():
            if run.counts.failed:
                for output in run.outputs():
                    note(run.id, "output", output)
        for evaluation in self.evaluations.values():
            if evaluation.counts.failed:
                for _, result in current_results(evaluation):
                    note(evaluation.id, result.key, result)
        kinds = [FailureKind(*place, count, shown) for place, (count, shown) in found.items()]
        return sorted(kinds, key=lambda each: (each.where, -each.count, each.type))


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    header = evaluation.header
    return {
        "id": evaluation.id,
        "status": evaluation.status,
        "counts": evaluation.counts.to_dict(),
        "evaluators": [
            {"key": spec.key, "name": spec.name, "params": spec.params} for spec in header.evaluators
        ],
        "usage": msgspec.to_builtins(header.usage),
    }


def _run(run: Run, label: str) -> RunSummary:
    header, data = run.header, run.dataset
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
        seconds=_seconds(run),
    )


def _seconds(run: Run) -> dict[str, float]:
    """How long outputs took; those that failed took time too."""
    quantiles = Quantiles([0.5, 0.95])
    spread = quantiles.start()
    mean, largest = MeanState(), 0.0
    for output in run.outputs():
        spread.add(output.seconds)
        spread.sizes.add(1)
        mean.add_one(output.seconds)
        largest = max(largest, output.seconds)
    if not mean.n:
        return {}
    found = quantiles.finish(spread)
    return {
        "mean": mean.mean or 0.0,
        "median": found.get("q50").value or 0.0,
        "95 %": found.get("q95").value or 0.0,
        "largest": largest,
    }
