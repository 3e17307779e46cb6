"""The third stage: aggregators over one or more evaluations give an aggregation."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from karat import __version__, paths
from karat.aggregators._base import (
    METHODS,
    Aggregate,
    AggregatorLike,
    Group,
    Resolved,
    fits,
    folding_part,
    for_evaluator,
    kinds_text,
    metadata_fields,
    resolve_aggregator,
)
from karat.aggregators._means import Headline
from karat.errors import FAILURES, RequestError, did_you_mean, unknown_metadata
from karat.evaluators._base import threshold_problem
from karat.evaluators._pairwise import run_ranks, run_scores
from karat.execution.arguments import EvaluationLike, StoreLike, as_list, handle_of, store_of
from karat.execution.engines import failure_of, in_thread
from karat.execution.expected_items import PENDING, FailedOutputs, Together
from karat.execution.labels import corrected_estimates, label_evaluations, with_audits
from karat.execution.pipeline import environment
from karat.execution.progress import Listener, Progress, listener
from karat.keys import code_fingerprint, fingerprint
from karat.process import fewer_collections
from karat.records import (
    FORMAT,
    AggregateTable,
    AggregationHeader,
    AggregatorFailure,
    AggregatorSpec,
    Counts,
    Estimate,
    EvaluatorSpec,
    Failure,
    ItemResult,
    Ok,
    Result,
    Skipped,
    groups_of,
)
from karat.serialization import encode, prepared
from karat.store.backend import SKIPPED, RecordDecoder
from karat.store.columns import item_name
from karat.store.handles import Aggregation, Chunks, Evaluation, StoredDataset, check_complete
from karat.store.repositories import count_items, result_decoder
from karat.sync import sync_twin


async def aggregate_async(
    evaluations: EvaluationLike | Sequence[EvaluationLike],
    aggregators: AggregatorLike | Sequence[AggregatorLike] | None = None,
    *,
    store: StoreLike | None = None,
    confidence: float = 0.95,
    labels: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    description: str = "",
    new: bool = False,
    progress: bool | Listener | None = None,
) -> Aggregation:
    """Aggregate the results of evaluations: every aggregator for every evaluator and run.

    Results that several evaluations share (one amended the other) count once. An aggregator that raises is
    reported as failed; the others are unaffected.
    """
    given = as_list(evaluations)
    if not given:
        raise RequestError("no evaluation to aggregate")
    if not 0 < confidence < 1:
        raise RequestError(f"confidence is {confidence}: it must be between 0 and 1, such as 0.95")
    the_store = store_of(store, given)
    every = [handle_of(the_store.evaluations, each) for each in given]
    handles = list({handle.header.id: handle for handle in every}.values())
    parts = [resolve_aggregator(spec, confidence) for spec in as_list(aggregators)]
    parts = parts or _default_aggregators(handles, confidence)
    keys = [part.key for part in parts]
    for key in keys:
        if keys.count(key) > 1:
            raise RequestError(f"two aggregators have the key {key!r}: give one of them another key")
    _refuse_unknown_fields(parts, [the_store.datasets.get(each.header.dataset) for each in handles])
    specs = [AggregatorSpec(part.key, part.name, part.params) for part in parts]
    codes = [code_fingerprint(folding_part(part.aggregator)) for part in parts]
    people = label_evaluations(
        the_store, dict.fromkeys(run for handle in handles for run in handle.header.runs)
    )
    ids = [handle.header.id for handle in handles]
    people = [each for each in people if each.id not in ids]
    runs = {run.id: run.header.finished for handle in handles for run in handle.runs}
    configuration = fingerprint(
        evaluations=[[handle.header.id, handle.header.finished] for handle in handles],
        runs=runs,
        methods=[__version__, METHODS],
        **({"labels": [[each.id, each.header.finished] for each in people]} if people else {}),
        aggregators=[[part.key, part.name, part.params, part.of] for part in parts],
        confidence=confidence,
        codes=codes,
    )
    # What is not finished may have grown since, and its header would not say so; nor is it known what became of
    # code that cannot be seen.
    finished = [*runs.values(), *(handle.header.finished for handle in handles)]
    settled = None not in codes and None not in finished
    known = the_store.backend.headers("aggregation", configuration=configuration)
    if known and settled and not new:
        found = the_store.aggregations.get(known[-1].id)
        refused = the_store.aggregations.describe(
            found, labels=labels, metadata=metadata, description=description
        )
        found.notice = "; ".join(
            each for each in (f"aggregation {found.id} is already stored", refused) if each
        )
        return found
    stage = _AggregationStage(handles, parts)
    with fewer_collections():
        try:
            estimates, tables, failures = await in_thread(lambda: stage.compute(listener(progress)))
        finally:
            stage.cancelled = True
        estimates += corrected_estimates(handles, people, confidence, estimates) if people else []
        estimates = with_audits(handles, estimates)
    counts = stage.counts()
    header = AggregationHeader(
        format=FORMAT,
        id="",
        evaluations=ids,
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


aggregate = sync_twin(aggregate_async)


def _refuse_unknown_fields(parts: Sequence[Resolved], datasets: Sequence[StoredDataset]) -> None:
    """Refuse aggregators by a metadata field that no example of the evaluations has."""
    for part in parts if any(map(len, datasets)) else ():
        for name, field in metadata_fields(part):
            known: set[str] = set()
            for example in chain.from_iterable(datasets):
                if paths.find(example.metadata, field) is not paths.MISSING:
                    break
                known.update(example.metadata)
            else:
                raise RequestError(f"aggregator {part.key!r}: {name}: {unknown_metadata(field, known)}")


class _Described(msgspec.Struct):
    """The part of an example that aggregators need; decoding skips the rest."""

    id: str
    metadata: dict[str, Any] = {}


_described = RecordDecoder(_Described)


class _Expected(NamedTuple):
    """Comparisons that an unfinished evaluation has when it is complete."""

    key: str
    runs: tuple[str, ...]
    ordered: bool
    """Whether the same runs in the opposite order are another comparison."""
    items: Together


class _Target:
    """One aggregator over the results of one evaluator key: of one run, or of all its pairs."""

    def __init__(self, evaluator: str, key: str, run: str | None, aggregator: Any) -> None:
        self.evaluator = evaluator
        self.key = key
        self.run = run
        self.aggregator = aggregator
        self.state: Any = None
        self.failure: Failure | None = None
        try:
            self.state = aggregator.start()
        except FAILURES as error:
            self.failure = failure_of(error)

    def add(self, groups: Sequence[Group]) -> None:
        """Add the groups of a chunk, unless the aggregator has failed."""
        if self.failure is None:
            add, state = self.aggregator.add, self.state
            try:
                for group in groups:
                    state = add(state, group)
            except FAILURES as error:
                self.failure = failure_of(error)
            self.state = state

    def finish(self) -> Aggregate | None:
        if self.failure is None:
            try:
                aggregate = self.aggregator.finish(self.state)
                if not isinstance(aggregate, Aggregate):
                    raise TypeError(f"finish returned {type(aggregate).__name__}, not an Aggregate")
                # A value that cannot be stored fails only this aggregator; others are returned as they will be read.
                return msgspec.json.decode(encode(aggregate), type=prepared(Aggregate))
            except FAILURES as error:
                self.failure = failure_of(error)
        return None


class _AggregationStage:
    def __init__(self, evaluations: list[Evaluation], parts: list[Resolved]) -> None:
        self.evaluations = evaluations
        self.store = evaluations[0].store
        self.runs = {run.header.id: run for evaluation in evaluations for run in evaluation.runs}
        self.specs: dict[str, EvaluatorSpec] = {}
        self.runs_of: dict[str, dict[str, None]] = {}
        self.cancelled = False
        self._ordered: set[str] = set()
        """Keys of evaluators that give an order: what is aggregated is the share of runs that a run beats."""
        self._failed_outputs = FailedOutputs(self.runs.values())
        self._statuses: Counter[int] = Counter()
        self._rows: Counter[str] = Counter()
        for evaluation in evaluations:
            for spec in evaluation.header.evaluators:
                have = self.specs.setdefault(spec.key, spec)
                if (have.kind, have.name, have.params) != (spec.kind, spec.name, spec.params):
                    raise RequestError(
                        f"evaluator key {spec.key!r} means different things in these evaluations:"
                        " aggregate them one by one, or give one of them another key"
                    )
                self.runs_of.setdefault(spec.key, {}).update(dict.fromkeys(evaluation.header.runs))
        self.targets: dict[tuple[str, str | None], list[_Target]] = {}
        for part in parts:
            self._add_targets(part)

    def _add_targets(self, part: Resolved) -> None:
        over = getattr(part.aggregator, "over", frozenset({"single"}))
        for wanted in part.of or ():
            if wanted not in self.specs:
                known = did_you_mean(wanted, self.specs)
                raise RequestError(f"aggregator {part.key!r}: unknown evaluator {wanted!r} in of: {known}")
        fitting = [k for k in (part.of or self.specs) if fits(self.specs[k].kind, over)]
        if not fitting:
            raise RequestError(
                f"aggregator {part.name!r} needs results of {kinds_text(over)}: these evaluations have none"
            )
        threshold = part.params.get("threshold")
        for evaluator in fitting:
            spec = self.specs[evaluator]
            if isinstance(threshold, (int, float)) and (problem := threshold_problem(threshold, spec)):
                raise RequestError(f"aggregator {part.key!r}: {threshold:g} is not a threshold: {problem}")
            apart = spec.kind == "single" or (spec.kind == "joint" and "joint" not in over)
            aggregator = for_evaluator(part.aggregator, spec)
            for run in self.runs_of[evaluator] if apart else [None]:
                target = _Target(evaluator, part.key, run, aggregator)
                self.targets.setdefault((evaluator, run), []).append(target)

    def compute(
        self, listen: Listener | None
    ) -> tuple[list[Estimate], list[AggregateTable], list[AggregatorFailure]]:
        """Read every result once, grouped by example, in dataset order; of a cancelled stage return nothing."""
        for dataset in dict.fromkeys(evaluation.header.dataset for evaluation in self.evaluations):
            members = [e for e in self.evaluations if e.header.dataset == dataset]
            data = self.store.datasets.get(dataset)
            count = data.header.count
            items = {
                id: Together([run], count) for id, run in self.runs.items() if run.header.dataset == dataset
            }
            first, last = (
                min(each.first for each in items.values()),
                max(each.last for each in items.values()),
            )
            unjudged = self._unjudged_comparisons(members, count)
            progress = Progress("aggregate", last - first, started=time.monotonic())
            chunks = Chunks(first, last)
            for start, stop in chunks:
                if self.cancelled:
                    return [], [], []
                self._fold_chunk(members, data, items, unjudged, chunks, start, stop)
                progress.done = stop - first
                if listen is not None:
                    listen(progress)
            for evaluation in members:
                check_complete(evaluation, self._rows[evaluation.header.id])
        return self.finish()

    def _fold_chunk(
        self,
        members: list[Evaluation],
        data: StoredDataset,
        items: dict[str, Together],
        unjudged: list[_Expected],
        chunks: Chunks,
        start: int,
        stop: int,
    ) -> None:
        results = self._results(members, chunks, start, stop)
        fields = chunks.saw_fields(data.scan_fields(start, stop))
        examples = list(zip(fields.positions, _described.decode_all(fields.payloads), strict=True))
        for key, targets in self.targets.items():
            found = results[key]
            expected = [each for each in unjudged if key == (each.key, None)]
            # The items of a run at each position, judged one by one; of comparisons see `_unjudged_comparisons`.
            own = items.get(key[1]) if key[1] is not None else None
            counts = [0] * (stop - start) if own is None else own.between(start, stop)
            attempts = 1 if own is None else own.attempts
            groups: list[Group] = []
            for position, example in examples:
                here = found.get(position) or []
                if expected:
                    here = [*here, *_not_judged(expected, position, example.id, here)]
                pending = counts[position - start] - len(here)
                if here or pending > 0:
                    groups.append(Group(example.id, example.metadata, here, max(0, pending), attempts))
            for target in targets:
                target.add(groups)

    def _results(
        self, members: list[Evaluation], chunks: Chunks, start: int, stop: int
    ) -> dict[tuple[str, str | None], dict[int, list[ItemResult]]]:
        """Current results by evaluator key and run (None for comparisons), then by position."""
        out: dict[tuple[str, str | None], dict[int, list[ItemResult]]] = {key: {} for key in self.targets}
        seen: set[tuple[Any, ...]] = set()
        seen_together: dict[tuple[Any, ...], list[set[str]]] = {}
        several = len(members) > 1
        joint = {key for key, spec in self.specs.items() if spec.kind == "joint"}
        latest_first = sorted(members, key=lambda e: e.header.finished or e.header.created, reverse=True)
        for evaluation in latest_first:  # the latest evaluation's word counts
            fields = chunks.saw_fields(self.store.backend.scan_fields(evaluation.number, start, stop))
            fields = fields.latest()
            statuses = fields.statuses
            self._rows[evaluation.header.id] += len(statuses)
            if not several:
                self._statuses.update(statuses)
            # An item names its evaluator and run: the few different ones are looked up, not those of every result.
            places = {item: out.get(_place(evaluation, item)) for item in set(fields.items)}
            decoded = result_decoder.decode_all(fields.payloads)
            for position, item, status, result in zip(
                fields.positions, fields.items, statuses, decoded, strict=True
            ):
                skipped = result.outcome if status == SKIPPED else None
                if isinstance(skipped, Skipped) and skipped.failed_outputs:
                    outcome = self._failed_outputs.current(skipped, position, result.attempt, result.unit)
                    result = msgspec.structs.replace(result, outcome=outcome)
                if several:
                    identity = (position, result.key, result.runs, result.attempt, result.unit)
                    if identity in seen:
                        continue
                    seen.add(identity)
                    if result.key in joint:
                        # Runs that a later evaluation judged together with others are in that result.
                        item_of = (position, result.key, result.attempt, result.unit)
                        sets, runs = seen_together.setdefault(item_of, []), set(result.runs)
                        if any(map(runs.issubset, sets)):
                            continue
                        sets.append(runs)
                    self._statuses[status] += 1
                if joint and result.key in joint:
                    if result.key not in self._ordered and _is_order(result):
                        self._ordered.add(result.key)
                    for run in result.runs:
                        if (found := out.get((result.key, run))) is not None:
                            found.setdefault(position, []).append(_result_of_run(result, run))
                found = places[item]
                if found is None:
                    continue  # no aggregator is for this evaluator
                here = found.get(position)
                if here is None:
                    found[position] = [result]
                else:
                    here.append(result)
        return out

    def _unjudged_comparisons(self, members: list[Evaluation], count: int) -> list[_Expected]:
        """The comparisons of evaluations with pending items: the missing ones belong in the denominator."""
        out = []
        for evaluation in members:
            if evaluation.header.finished is not None and not evaluation.header.counts.pending:
                continue
            ids = evaluation.header.runs
            for spec in evaluation.header.evaluators:
                if spec.kind == "single":
                    continue
                for group in groups_of(spec.kind, spec.both_orders, len(ids)):
                    runs = tuple(ids[index] for index in group)
                    items = Together([self.runs[run] for run in runs], count)
                    out.append(_Expected(spec.key, runs, spec.both_orders, items))
        return out

    def counts(self) -> Counts:
        """The items folded, each once; what an evaluation has no result of is pending."""
        headers = [each.header for each in self.evaluations]
        pending = [max(0, each.counts.total - self._rows[each.id]) for each in headers]
        return count_items(self._statuses, sum(pending))

    def finish(self) -> tuple[list[Estimate], list[AggregateTable], list[AggregatorFailure]]:
        """All estimates, tables and failures, each with what it is about."""
        estimates: list[Estimate] = []
        tables: list[AggregateTable] = []
        failures: list[AggregatorFailure] = []
        for targets in self.targets.values():
            for target in targets:
                aggregate = target.finish()
                if aggregate is None:
                    assert target.failure is not None
                    failures.append(
                        AggregatorFailure(target.failure, target.evaluator, target.key, target.run)
                    )
                    continue
                for each in aggregate.estimates:
                    if target.evaluator in self._ordered and "better" not in each.metadata:
                        better = {**each.metadata, "better": "higher"}
                        each = msgspec.structs.replace(each, metadata=better)
                    key = each.aggregator or target.key
                    estimates.append(each.about(evaluator=target.evaluator, aggregator=key, run=target.run))
                tables += [
                    msgspec.structs.replace(
                        each, evaluator=target.evaluator, aggregator=target.key, run=each.run or target.run
                    )
                    for each in aggregate.tables
                ]
        return estimates, tables, failures


def _default_aggregators(evaluations: list[Evaluation], confidence: float) -> list[Resolved]:
    """The default aggregators: accuracy or mean of scores, win rates of comparisons."""
    kinds = {spec.kind for evaluation in evaluations for spec in evaluation.header.evaluators}
    params = {"confidence": confidence}
    parts = []
    if kinds - {"pair"}:
        parts.append(Resolved("headline", "headline", params, Headline(confidence)))
    if "pair" in kinds:
        parts.append(resolve_aggregator("win_rate", confidence))
    return parts


def _is_order(result: ItemResult) -> bool:
    """Whether a joint result is an order of the runs, without a score for each."""
    outcome = result.outcome
    return (
        isinstance(outcome, Ok) and run_scores(outcome.value) is None and run_ranks(outcome.value) is not None
    )


def _result_of_run(result: ItemResult, run: str) -> ItemResult:
    """The part of a joint result for one run: its score, or for a mere order, the share of runs it beats."""
    outcome = result.outcome
    if isinstance(outcome, Ok):
        place, scores, ranks = result.runs.index(run), run_scores(outcome.value), run_ranks(outcome.value)
        score = outcome.value.score
        if scores is not None:
            score = scores[place]
        elif ranks is not None and len(ranks) > 1:
            beaten = sum(rank > ranks[place] for rank in ranks)
            score = (beaten + 0.5 * (ranks.count(ranks[place]) - 1)) / (len(ranks) - 1)
        outcome = Ok(Result(result.key, score, comment=outcome.value.comment))
    return msgspec.structs.replace(result, runs=(run,), outcome=outcome)


def _place(evaluation: Evaluation, item: bytes) -> tuple[str, str | None]:
    """The key of the evaluator of a stored item, and the run where it judges single outputs."""
    name = item_name(item.decode("utf-8", "surrogatepass"), evaluation.kind)
    spec = evaluation.header.evaluators[name.evaluator]
    return spec.key, evaluation.header.runs[name.runs[0]] if spec.kind == "single" else None


def _not_judged(
    expected: list[_Expected], position: int, example: str, here: list[ItemResult]
) -> Iterator[ItemResult]:
    """The comparisons of an example that are still pending, as items that were skipped."""
    in_order = Counter(result.runs for result in here)
    in_any = Counter(frozenset(result.runs) for result in here)
    for key, runs, ordered, items in expected:
        there = in_order[runs] if ordered else in_any[frozenset(runs)]
        for number in range(there, items.at(position)):
            yield ItemResult(
                format=FORMAT,
                example=example,
                key=key,
                runs=runs,
                outcome=PENDING,
                attempt=1 + number % items.attempts,
            )
