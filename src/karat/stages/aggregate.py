"""The third stage: aggregators over one or more evaluations give an aggregation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from karat.aggregators.base import Aggregate, Group, resolve_aggregator
from karat.errors import RequestError, did_you_mean
from karat.keys import fingerprint
from karat.progress import Listener, Progress, listener
from karat.records import FORMAT, AggregationHeader, AggregatorSpec, Counts, Estimate, Failure, ItemResult
from karat.stages.environment import environment
from karat.stages.evaluate import _as_list, _end, _id, _store_of
from karat.stages.failure import failure_of
from karat.stages.plain import plain
from karat.store import Store
from karat.store.handles import CHUNK, Aggregation, Evaluation, StoredDataset
from karat.store.repositories import latest, result_decoder


async def aggregate_async(
    evaluations: Any,
    aggregators: Any,
    *,
    store: str | Store | None = None,
    confidence: float = 0.95,
    labels: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    description: str = "",
    new: bool = False,
    progress: bool | Listener | None = None,
) -> Aggregation:
    """Aggregates: each aggregator over each evaluator's results, for each run.

    Results that several evaluations share (one amended the other) count once. An aggregator that raises is
    reported as failed; the others stand.
    """
    given = _as_list(evaluations)
    if not given:
        raise RequestError("no evaluation to aggregate")
    if not 0 < confidence < 1:
        raise RequestError(f"confidence is {confidence}: it lies between 0 and 1, such as 0.95")
    the_store = _store_of(store, given)
    handles = [the_store.evaluations.get(each) for each in dict.fromkeys(_id(g) for g in given)]
    parts = [resolve_aggregator(spec, confidence) for spec in _as_list(aggregators)]
    if not parts:
        raise RequestError("no aggregator: name at least one, such as 'accuracy'")
    keys = [part[0] for part in parts]
    for key in keys:
        if keys.count(key) > 1:
            raise RequestError(f"two aggregators have the key {key!r}: give one of them another key")
    specs = [AggregatorSpec(key, name, params) for key, name, params, _, _ in parts]
    configuration = fingerprint(
        evaluations=[[handle.id, handle.header.finished] for handle in handles],
        aggregators=[[part[0], part[1], part[2], part[4]] for part in parts],
        confidence=confidence,
    )
    known = the_store.backend.headers("aggregation", configuration=configuration)
    if known and not new:
        found = the_store.aggregations.get(known[-1].id)
        found.notice = f"aggregation {found.id} is there already"
        return found
    stage = _AggregationStage(handles, parts)
    stage.fold(listener(progress))
    estimates, tables, failures = stage.finish()
    counts = _sum_counts(handles)
    header = AggregationHeader(
        format=FORMAT,
        id="",
        evaluations=[handle.id for handle in handles],
        aggregators=specs,
        configuration=configuration,
        estimates=estimates,
        tables=tables,
        failures=failures,
        labels=list(labels),
        metadata=dict(metadata or {}),
        description=description,
        environment=environment(),
        created=time.time(),
        finished=time.time(),
        status="partial" if failures and counts.status == "success" else counts.status,
        counts=counts,
    )
    return the_store.aggregations.add(header)


aggregate = plain(aggregate_async)


class _Described(msgspec.Struct):
    """What an aggregator needs of an example; decoding skips the rest."""

    id: str
    metadata: dict[str, Any] = {}


_described = msgspec.json.Decoder(_Described)


class _Target:
    """One aggregator over the results of one evaluator key: of one run, or of all its pairs."""

    def __init__(self, name: str, aggregator: Any) -> None:
        self.name = name
        self.aggregator = aggregator
        self.state: Any = None
        self.failure: Failure | None = None
        try:
            self.state = aggregator.start()
        except Exception as error:
            self.failure = failure_of(error)

    def add(self, group: Group) -> None:
        if self.failure is None:
            try:
                self.state = self.aggregator.add(self.state, group)
            except Exception as error:
                self.failure = failure_of(error)

    def finish(self) -> Aggregate | None:
        if self.failure is None:
            try:
                aggregate: Aggregate = self.aggregator.finish(self.state)
                return aggregate
            except Exception as error:
                self.failure = failure_of(error)
        return None


class _AggregationStage:
    def __init__(self, evaluations: list[Evaluation], parts: list[tuple[Any, ...]]) -> None:
        self.evaluations = evaluations
        self.store = evaluations[0].store
        self.runs = {run.id: run for evaluation in evaluations for run in evaluation.runs}
        self.kinds: dict[str, str] = {}
        self.runs_of: dict[str, dict[str, None]] = {}
        for evaluation in evaluations:
            for spec in evaluation.header.evaluators:
                if self.kinds.setdefault(spec.key, spec.kind) != spec.kind:
                    raise RequestError(
                        f"evaluator key {spec.key!r} means different things in these evaluations"
                    )
                self.runs_of.setdefault(spec.key, {}).update(dict.fromkeys(evaluation.header.runs))
        self.targets: dict[tuple[str, str | None], list[_Target]] = {}
        for part in parts:
            self._add_targets(*part)

    def _add_targets(self, key: str, name: str, params: Any, aggregator: Any, of: list[str] | None) -> None:
        over = getattr(aggregator, "over", frozenset({"single"}))
        for wanted in of or ():
            if wanted not in self.kinds:
                raise RequestError(f"aggregator {key!r} is of {wanted!r}: {did_you_mean(wanted, self.kinds)}")
        fitting = [k for k in (of or self.kinds) if self.kinds[k] in over]
        if not fitting:
            raise RequestError(
                f"aggregator {name!r} folds results of {' or '.join(sorted(over))} evaluators, and there are none"
            )
        for evaluator in fitting:
            several = len(self.runs_of[evaluator]) > 1
            single = self.kinds[evaluator] == "single"
            for run in self.runs_of[evaluator] if single else [None]:
                label = f"{evaluator}-{key}" + (f"@{run}" if several and single else "")
                target = _Target(label, aggregator)
                self.targets.setdefault((evaluator, run), []).append(target)

    def fold(self, listen: Listener | None) -> None:
        """Reads every result once, grouped by example, in dataset order."""
        for dataset in dict.fromkeys(evaluation.header.dataset for evaluation in self.evaluations):
            members = [e for e in self.evaluations if e.header.dataset == dataset]
            data = self.store.datasets.get(dataset)
            ends = [(run.header.offset, _end(run, len(data))) for e in members for run in e.runs]
            first, last = min(e[0] for e in ends), max(e[1] for e in ends)
            progress = Progress("aggregate", last - first, started=time.monotonic())
            for start in range(first, last, CHUNK):
                stop = min(start + CHUNK, last)
                self._fold_chunk(members, data, start, stop)
                progress.done = stop - first
                if listen is not None:
                    listen(progress)

    def _fold_chunk(self, members: list[Evaluation], data: StoredDataset, start: int, stop: int) -> None:
        results = self._results(members, start, stop)
        folds = [
            (targets, results.get(key, {}), *self._selected(key[1], len(data)))
            for key, targets in self.targets.items()
        ]
        decode = _described.decode
        for row in self.store.backend.scan(data.number, start, stop):
            position, example = row.position, decode(row.payload)
            for targets, found, first, last, attempts in folds:
                here = found.get(position, [])
                pending = max(0, attempts - len(here)) if first <= position < last else 0
                if here or pending:
                    group = Group(example.id, example.metadata, here, pending)
                    for target in targets:
                        target.add(group)

    def _results(
        self, members: list[Evaluation], start: int, stop: int
    ) -> dict[tuple[str, str | None], dict[int, list[ItemResult]]]:
        """Current results by evaluator key and run (None for comparisons), then by position."""
        out: dict[tuple[str, str | None], dict[int, list[ItemResult]]] = {key: {} for key in self.targets}
        seen: set[tuple[Any, ...]] = set()
        decode, kinds, several = result_decoder.decode, self.kinds, len(members) > 1
        for evaluation in reversed(members):  # the latest evaluation's word counts
            for row in latest(self.store.backend.scan(evaluation.number, start, stop)):
                result = decode(row.payload)
                if several:
                    identity = (row.position, result.key, result.runs, result.attempt, result.unit)
                    if identity in seen:
                        continue
                    seen.add(identity)
                found = out.get((result.key, result.runs[0] if kinds[result.key] == "single" else None))
                if found is None:
                    continue  # no aggregator is for this evaluator
                here = found.get(row.position)
                if here is None:
                    found[row.position] = [result]
                else:
                    here.append(result)
        return out

    def _selected(self, run: str | None, count: int) -> tuple[int, int, int]:
        """The positions a run has, and how many attempts at each; none are expected of comparisons."""
        if run is None:
            return 0, 0, 0
        header = self.runs[run].header
        return header.offset, _end(self.runs[run], count), header.attempts

    def finish(self) -> tuple[dict[str, Estimate], dict[str, Any], dict[str, Failure]]:
        """All estimates, tables and failures, by name."""
        estimates: dict[str, Estimate] = {}
        tables: dict[str, Any] = {}
        failures: dict[str, Failure] = {}
        for targets in self.targets.values():
            for target in targets:
                aggregate = target.finish()
                if aggregate is None:
                    assert target.failure is not None
                    failures[target.name] = target.failure
                    continue
                estimates.update({_named(target.name, n): e for n, e in aggregate.estimates.items()})
                tables.update({_named(target.name, n): t for n, t in aggregate.tables.items()})
        return estimates, tables, failures


def _named(base: str, name: str) -> str:
    if not name or name.startswith("@"):
        return base + name
    return f"{base}.{name}"


def _sum_counts(handles: Sequence[Evaluation]) -> Counts:
    fields = Counts.__struct_fields__
    return Counts(*(sum(getattr(handle.counts, field) for handle in handles) for field in fields))
