"""The second stage: evaluators over one or more runs give an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import msgspec

from karat.errors import RequestError
from karat.execution.arguments import (
    DEFAULT_CONCURRENCY,
    EvaluationLike,
    EvaluatorLike,
    RunLike,
    StageOptions,
    StoreLike,
    as_list,
    handle_of,
    notice_of,
    read_options,
    store_of,
)
from karat.execution.engines import InlineEngine, engines
from karat.execution.expected_items import Together
from karat.execution.judgments import BatchWork, EvaluatorWork, Judgment, PreparedEvaluator
from karat.execution.pipeline import Phase, Stage, environment, open_or_wait
from karat.execution.progress import Listener
from karat.keys import Decision, Wanted, content_hash, fingerprint, result_item, reuse_key
from karat.records import FORMAT, EvaluationHeader, Example, ItemResult, Ok, Output, groups_of
from karat.store import Store
from karat.store.backend import FAILED, REUSED, SKIPPED, Backend, Mark, StoredRow
from karat.store.handles import Chunks, Evaluation, Run, StoredDataset, check_complete
from karat.store.lease import Held
from karat.store.repositories import example_decoder, latest, output_decoder, result_decoder
from karat.sync import sync_twin

# Items of an evaluation that need no work: the output failed, or the result is copied from an earlier evaluation.
#
# Earlier results come from the evaluations that are amended, or from anywhere in the store by reuse key.


class _Place(NamedTuple):
    """The place of a result, independent of the evaluation that holds it."""

    position: int
    key: str
    runs: tuple[str, ...]
    attempt: int
    unit: str


class Reuse:
    """A lookup of results that can be copied into one evaluation."""

    def __init__(
        self,
        backend: Backend,
        evaluators: Sequence[PreparedEvaluator],
        run_ids: Sequence[str],
        amended: Sequence[Evaluation],
    ) -> None:
        self._backend = backend
        self._evaluators = evaluators
        self._run_ids = run_ids
        self._amended = amended

    def split(self, work: EvaluatorWork, chunk: list[Judgment]) -> tuple[list[StoredRow], list[Judgment]]:
        """Rows for items that are skipped or copied, and the judgments that remain to be made."""
        rows: list[StoredRow] = []
        remaining: list[Judgment] = []
        amended = self._amended_results(chunk) if self._amended and chunk else {}
        for judgment in chunk:
            skipped = work.skipped(judgment)
            if skipped is not None:
                rows.append(skipped)
                continue
            found = self._from_amended(judgment, amended) if amended else None
            if found is not None:
                rows.append(_copy_result(work, *found))
            else:
                remaining.append(judgment)
        # `refresh` asks models again, so results that came from the old replies are not copied.
        keys = [j.reuse for j in remaining if j.reuse is not None and work.stage.options.cache != "refresh"]
        known = self._backend.reusable(keys) if keys else {}
        if not known:
            return rows, remaining
        left = []
        for judgment in remaining:
            hit = known.get(judgment.reuse) if judgment.reuse is not None else None
            if hit is None:
                left.append(judgment)
                continue
            parent = self._backend.header(hit[0])
            rows.append(
                _copy_result(work, judgment, result_decoder.decode(hit[1]), parent.id if parent else "")
            )
        return rows, left

    def _amended_results(self, chunk: list[Judgment]) -> dict[_Place, tuple[ItemResult, str]]:
        """Results of the amended evaluations for these positions, where the evaluator is the same."""
        prints = {each.key: each.spec.fingerprint for each in self._evaluators}
        start, stop = chunk[0].position, chunk[-1].position + 1
        found: dict[_Place, tuple[ItemResult, str]] = {}
        for evaluation in self._amended:
            same = {s.key for s in evaluation.header.evaluators if prints.get(s.key) == s.fingerprint}
            for row in latest(self._backend.scan(evaluation.number, start, stop)):
                old = result_decoder.decode(row.payload)
                if old.key in same and isinstance(old.outcome, Ok):
                    place = _Place(row.position, old.key, old.runs, old.attempt, old.unit)
                    found.setdefault(place, (old, evaluation.id))
        return found

    def _from_amended(
        self, judgment: Judgment, amended: dict[_Place, tuple[ItemResult, str]]
    ) -> tuple[Judgment, ItemResult, str] | None:
        """An earlier result of the same item; a pair judged in the opposite order keeps that order."""
        evaluator, first = self._evaluators[judgment.evaluator], judgment.outputs[0]
        orders = [judgment.runs]
        # Not after an earlier try in this order: the failed or skipped item would stay beside the copied one.
        if evaluator.kind == "pair" and not evaluator.both_orders and judgment.try_number == 1:
            orders.append(judgment.runs[::-1])
        for order in orders:
            runs = tuple(self._run_ids[place] for place in order)
            hit = amended.get(_Place(judgment.position, evaluator.key, runs, first.attempt, first.unit))
            if hit is not None:
                if order != judgment.runs:
                    judgment = msgspec.structs.replace(
                        judgment, runs=order, outputs=judgment.outputs[::-1], reuse=None
                    )
                return judgment, *hit
        return None


def _copy_result(work: EvaluatorWork, judgment: Judgment, old: ItemResult, source: str) -> StoredRow:
    return work.row(
        judgment,
        old.outcome,
        REUSED,
        seconds=old.seconds,
        queue=old.queue_seconds,
        reused_from=old.reused_from or source,
    )


async def evaluate_async(
    runs: RunLike | Sequence[RunLike] | None = None,
    evaluators: EvaluatorLike | Sequence[EvaluatorLike] | None = None,
    *,
    amend: EvaluationLike | Sequence[EvaluationLike] | None = None,
    store: StoreLike | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    progress: bool | Listener | None = None,
    **options: Unpack[StageOptions],
) -> Evaluation:
    """Evaluate runs of one dataset: a single run, several, or new ones added to earlier evaluations.

    An evaluator is a name, `{name, params, key}`, a function, or an object. `amend` names earlier evaluations: the
    new evaluation has their runs first, uses their evaluators if none are given, copies their results, and computes
    only missing results.

    Further options, in groups:

    - work: `timeout` in seconds for one item, `abort_on_error`, `engine`;
    - earlier evaluations of the same configuration: `new`, `retry_failed`, `wait`;
    - model calls: `cache` (`use`, `refresh` or `off`), `budget` in dollars, `batch` (use the provider's batch API);
    - description: `labels`, `metadata`, `description`.
    """
    how = read_options(
        evaluate_async,
        StageOptions,
        options,
        concurrency=concurrency,
        progress=progress,
    )
    engines.get(how.engine)  # an unknown one is refused before anything is stored
    given, amending = as_list(runs), as_list(amend)
    the_store = store_of(store, given, amending)
    amended = [handle_of(the_store.evaluations, each) for each in amending]
    handles = _runs(the_store, given, amended)
    prepared = _prepare(evaluators, amended)
    comparing = [each.key for each in prepared if each.kind == "pair"]
    if comparing and len(handles) < 2:
        raise RequestError(
            f"evaluator {comparing[0]!r} compares runs, but there is only one: give two or more"
        )
    data = handles[0].dataset
    ids = [run.header.id for run in handles]
    configuration = fingerprint(
        runs=ids,
        evaluators=[
            [spec.key, spec.fingerprint, spec.bounds, spec.higher_is_better, spec.pass_fail]
            for spec in (each.spec for each in prepared)
        ],
        amends=[each.id for each in amended],
    )
    known = all(each.known for each in prepared)
    wanted = Wanted(configuration, "known" if known else None, how.new, how.retry_failed, what="evaluation")
    header = EvaluationHeader(
        format=FORMAT,
        id="",
        dataset=data.header.id,
        runs=ids,
        evaluators=[each.spec for each in prepared],
        configuration=configuration,
        amends=[each.id for each in amended],
        labels=how.labels,
        metadata=how.metadata,
        description=how.description,
        environment=environment(),
    )
    parents = [*ids, *(each.id for each in amended)]
    evaluation, decision, lease = await open_or_wait(
        lambda: the_store.evaluations.open(header, wanted, parents), how.wait
    )
    evaluation.notice = notice_of(the_store.evaluations, evaluation, decision, how)
    if lease is None and _is_current(evaluation, handles):
        return evaluation
    if lease is None:
        lease = await open_or_wait(lambda: Held.take(the_store.backend, evaluation.number), how.wait)
        why = f"extends evaluation {evaluation.id}"
        decision = Decision("continue", evaluation.id, evaluation.header.replicate, why)
        evaluation.notice = why
    pairing = _Pairing(handles, data, prepared)
    stage = Stage(evaluation, lease, decision, how, total=pairing.total, name="evaluate")
    await stage.work(_Phases(stage, pairing, amended))
    return evaluation


evaluate = sync_twin(evaluate_async)


def _runs(store: Store, given: Sequence[RunLike], amended: list[Evaluation]) -> list[Run]:
    """The runs of amended evaluations first, in their order, then the new ones; each once."""
    earlier = dict.fromkeys(run for evaluation in amended for run in evaluation.header.runs)
    every = [*map(store.runs.get, earlier), *(handle_of(store.runs, each) for each in given)]
    handles = list({run.header.id: run for run in every}.values())
    if not handles:
        raise RequestError("no run to evaluate: give one or more runs, or evaluations to amend")
    first = handles[0].header.dataset
    for handle in handles:
        if handle.header.dataset != first:
            raise RequestError(
                f"runs {handles[0].id} and {handle.id} have different datasets: runs that are evaluated"
                " together must have the same one"
            )
    return handles


def _prepare(
    given: EvaluatorLike | Sequence[EvaluatorLike] | None, amended: list[Evaluation]
) -> list[PreparedEvaluator]:
    entries: list[Any] = list(as_list(given))
    if not entries:
        for evaluation in amended:
            for spec in evaluation.header.evaluators:
                entry = {"name": spec.name, "params": spec.params, "key": spec.key}
                if entry not in entries:
                    entries.append(entry)
    if not entries:
        raise RequestError("no evaluator: name at least one, such as 'exact_match'")
    prepared = [PreparedEvaluator(index, entry) for index, entry in enumerate(entries)]
    keys = [each.key for each in prepared]
    for key in keys:
        if keys.count(key) > 1:
            raise RequestError(f"two evaluators have the key {key!r}: give one of them another key")
    return prepared


def _is_current(evaluation: Evaluation, runs: Sequence[Run]) -> bool:
    """Whether nothing was added to the runs since the evaluation was finished."""
    finished = evaluation.header.finished
    return finished is not None and all(
        run.header.finished is not None and run.header.finished <= finished for run in runs
    )


class _Pairing:
    """The runs that each evaluator sees together, and their positions."""

    def __init__(self, runs: list[Run], data: StoredDataset, evaluators: Sequence[PreparedEvaluator]) -> None:
        self.runs = runs
        self.data = data
        self.evaluators = evaluators
        self.run_ids = [run.header.id for run in runs]
        self.groups = {
            each.index: list(groups_of(each.kind, each.both_orders, len(runs))) for each in evaluators
        }
        """The groups of runs that each evaluator sees together, by their indices."""
        count = data.header.count
        together = [
            Together([runs[i] for i in group], count) for each in self.groups.values() for group in each
        ]
        self.total = sum(each.total() for each in together)
        """The number of items of the evaluation."""
        selected = [run.selection(count) for run in runs]
        self.first = min(each.start for each in selected)
        self.last = max(each.stop for each in selected)


class _Phases:
    """The missing results of an evaluation, in up to three phases: batched, async and sync evaluators."""

    def __init__(self, stage: Stage, pairing: _Pairing, amended: list[Evaluation]) -> None:
        self._stage = stage
        self._pairing = pairing
        self._backend = stage.backend
        self._reuse = Reuse(stage.backend, pairing.evaluators, pairing.run_ids, amended)

    def __iter__(self) -> Iterator[Phase]:
        evaluators, runs, options = self._pairing.evaluators, self._pairing.run_ids, self._stage.options
        batched = [each for each in evaluators if each.batched]
        if batched:
            work = EvaluatorWork(evaluators, runs, self._stage)
            items = self._batches(work, batched, options.concurrency)
            yield Phase(BatchWork(work), items, InlineEngine())
        for is_async in (True, False):
            chosen = [each for each in evaluators if not each.batched and each.is_async == is_async]
            if chosen:
                work = EvaluatorWork(evaluators, runs, self._stage, is_async=is_async)
                engine = engines.get(options.engine)(options.concurrency, options.timeout)
                yield Phase(work, self._items(work, chosen), engine)

    def _batches(
        self, work: EvaluatorWork, evaluators: list[PreparedEvaluator], size: int
    ) -> Iterator[list[Judgment]]:
        for chunk in self._remaining(work, evaluators):
            for evaluator in evaluators:
                mine = [judgment for judgment in chunk if judgment.evaluator == evaluator.index]
                for start in range(0, len(mine), size):
                    yield mine[start : start + size]

    def _items(self, work: EvaluatorWork, evaluators: list[PreparedEvaluator]) -> Iterator[Judgment]:
        for chunk in self._remaining(work, evaluators):
            yield from map(work.started, chunk)

    def _remaining(
        self, work: EvaluatorWork, evaluators: list[PreparedEvaluator]
    ) -> Iterator[list[Judgment]]:
        """The items to compute, a chunk at a time; items that need no work are stored on the way."""
        for chunk in self._missing(evaluators):
            rows, remaining = self._reuse.split(work, chunk)
            if rows:
                self._stage.append_known(rows)
            yield remaining

    def _missing(self, evaluators: Sequence[PreparedEvaluator]) -> Iterator[list[Judgment]]:
        """The missing results of some evaluators, a chunk of positions at a time."""
        pairing = self._pairing
        fresh = self._stage.action == "create"
        together = [(each, pairing.groups[each.index]) for each in evaluators]
        reuse = any(each.reuse for each in evaluators)
        chunks, read = Chunks(pairing.first, pairing.last), [0] * len(pairing.runs)
        for start, stop in chunks:
            self._stage.lease.check()
            found = () if fresh else self._backend.marks(self._stage.handle.number, start, stop)
            marks = {(mark.position, mark.item): mark for mark in found}
            stored = [chunks.saw(self._backend.scan(run.number, start, stop)) for run in pairing.runs]
            outputs = [_outputs_of(rows) for rows in stored]
            for place, each in enumerate(outputs):
                read[place] += sum(map(len, each.values()))
            chunk: list[Judgment] = []
            rows = chunks.saw(pairing.data.scan(start, stop))
            examples = example_decoder.decode_all([row.payload for row in rows])
            for row, example in zip(rows, examples, strict=True):
                position = row.position
                hashes = _Hashes(example) if reuse else None
                for evaluator, groups in together:
                    for group in groups:
                        for these in _shared_outputs([outputs[index].get(position) for index in group]):
                            self._add(chunk, evaluator, position, example, group, these, marks, hashes)
            yield chunk
        for run, found_here in zip(pairing.runs, read, strict=True):
            check_complete(run, found_here)

    def _add(
        self,
        chunk: list[Judgment],
        evaluator: PreparedEvaluator,
        position: int,
        example: Example,
        group: tuple[int, ...],
        outputs: tuple[Output, ...],
        marks: dict[tuple[int, str], Mark],
        hashes: _Hashes | None,
    ) -> None:
        try_number: int | None = 1
        if marks:
            item = result_item(evaluator.index, group, outputs[0].attempt, outputs[0].unit)
            try_number = self._try_number(marks.get((position, item)), outputs)
        if try_number is not None:
            reuse = hashes.reuse_key(evaluator, outputs) if evaluator.reuse and hashes is not None else None
            chunk.append(Judgment(position, example, evaluator.index, group, outputs, try_number, reuse))

    def _try_number(self, mark: Mark | None, outputs: tuple[Output, ...]) -> int | None:
        """1 for an item without a result, the next number for one to be tried again, None for one that is done."""
        if mark is None:
            return 1
        if mark.status == FAILED and self._stage.retries_failed:
            return mark.try_number + 1
        if mark.status == SKIPPED and all(isinstance(output.outcome, Ok) for output in outputs):
            return mark.try_number + 1  # the output had failed and has been computed since
        return None


class _Hashes:
    """Content hashes of an example and its outputs, made when first needed."""

    def __init__(self, example: Example) -> None:
        self._example = example
        self._of_example: str | None = None
        self._of_outputs: dict[int, str] = {}

    def reuse_key(self, evaluator: PreparedEvaluator, outputs: tuple[Output, ...]) -> bytes | None:
        if not all(isinstance(output.outcome, Ok) for output in outputs):
            return None
        if self._of_example is None:
            self._of_example = content_hash(self._example)
        return reuse_key(evaluator.spec.fingerprint, self._of_example, [self._output(o) for o in outputs])

    def _output(self, output: Output) -> str:
        found = self._of_outputs.get(id(output))
        if found is None:
            # The trace is part of what trajectory evaluators and judges look at.
            calls = [[call.kind, call.name, call.input, call.output, call.error] for call in output.trace]
            found = self._of_outputs[id(output)] = content_hash([output.value, calls])
        return found


def _outputs_of(rows: Sequence[StoredRow]) -> dict[int, list[Output]]:
    """The current outputs of a run, by position."""
    found: dict[int, list[Output]] = {}
    current = list(latest(rows))
    outputs = output_decoder.decode_all([row.payload for row in current])
    for row, output in zip(current, outputs, strict=True):
        here = found.get(row.position)
        if here is None:
            found[row.position] = [output]
        else:
            here.append(output)
    return found


def _shared_outputs(outputs: Sequence[list[Output] | None]) -> list[tuple[Output, ...]]:
    """The outputs of several runs for one example, attempt against attempt and unit against unit."""
    first = outputs[0]
    if first is None:
        return []
    if len(outputs) == 1:
        return [(output,) for output in first]
    others = [{(output.attempt, output.unit): output for output in other or ()} for other in outputs[1:]]
    keys = [(output.attempt, output.unit) for output in first]
    return [
        (output, *(other[key] for other in others))
        for output, key in zip(first, keys, strict=True)
        if all(key in other for other in others)
    ]
