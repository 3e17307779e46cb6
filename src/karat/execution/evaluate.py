"""The second stage: evaluators over one or more runs give an evaluation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from karat.errors import Aborted, RequestError, Stopped
from karat.execution.arguments import as_list, asking, end_of, id_of, notice_of, store_of
from karat.execution.engines import Engine, engines
from karat.execution.garbage import fewer_collections
from karat.execution.judging import Begun, Judge, Judged, Judging, Judgment
from karat.execution.lifecycle import begin, close, counting_abandoned, defaults, environment, open_or_wait
from karat.execution.pairing import Hashes, outputs_of, places_of, shared
from karat.execution.progress import Listener, Progress, listener
from karat.execution.reuse import Known
from karat.execution.run import DEFAULT_CONCURRENCY
from karat.execution.sync import plain
from karat.keys import Decision, Wanted, fingerprint, result_item
from karat.models._recording import CacheMode
from karat.records import (
    FORMAT,
    EvaluationHeader,
    Example,
    Ok,
    Output,
    Usage,
    add_usage,
    usage_of,
)
from karat.store import Store
from karat.store.appender import Appender
from karat.store.backend import FAILED, SKIPPED, Mark, Row
from karat.store.handles import Chunks, Evaluation, Run, StoredDataset
from karat.store.lease import Held
from karat.store.repositories import example_decoder

if TYPE_CHECKING:
    from karat.models._budget import Budget


async def evaluate_async(
    runs: Any,
    evaluators: Any = None,
    *,
    amend: Any = None,
    store: str | Store | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    timeout: float | None = None,
    abort_on_error: bool = False,
    labels: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    description: str = "",
    new: bool = False,
    retry_failed: bool = False,
    wait: bool = False,
    cache: CacheMode = "use",
    budget: float | Budget | None = None,
    engine: str = "local",
    progress: bool | Listener | None = None,
) -> Evaluation:
    """Evaluates runs of one dataset: a single run, several, or new ones added to earlier evaluations.

    `amend` names earlier evaluations: their runs are found and come first, their evaluators are used where
    none are given, their results are copied, and only what is missing is computed.
    """
    how = asking(cache, budget)
    given = as_list(runs)
    the_store = store_of(store, given, as_list(amend))
    amended = [the_store.evaluations.get(id_of(each)) for each in as_list(amend)]
    handles = _runs(the_store, given, amended)
    judges = _judges(evaluators, amended)
    comparing = [judge.key for judge in judges if judge.kind == "pair"]
    if comparing and len(handles) < 2:
        raise RequestError(f"evaluator {comparing[0]!r} compares runs, and there is one: give two or more")
    data = handles[0].dataset
    ids = [run.id for run in handles]
    configuration = fingerprint(
        runs=ids,
        evaluators=[[j.spec.key, j.spec.fingerprint] for j in judges],
        amends=[each.id for each in amended],
        environment=defaults(),
    )
    known = all(judge.known for judge in judges)
    wanted = Wanted(configuration, "known" if known else None, new, retry_failed, what="evaluation")
    header = EvaluationHeader(
        format=FORMAT,
        id="",
        dataset=data.id,
        runs=ids,
        evaluators=[judge.spec for judge in judges],
        configuration=configuration,
        amends=[each.id for each in amended],
        labels=list(labels),
        metadata=dict(metadata or {}),
        description=description,
        environment=environment(),
    )
    parents = [*ids, *(each.id for each in amended)]
    handle, decision, held = await open_or_wait(
        lambda: the_store.evaluations.open(header, wanted, parents), wait
    )
    handle.notice = notice_of(handle, decision, cache)
    if held is None and _is_current(handle, handles):
        return handle
    if held is None:
        held = await open_or_wait(lambda: Held.take(the_store.backend, handle.number), wait)
        decision = Decision("continue", handle.id, handle.header.replicate, f"adds to evaluation {handle.id}")
        handle.notice = decision.why
    stage = _EvaluationStage(handle, handles, amended, judges, data, held, decision.action)
    stage.abort_on_error, (stage.cache, stage.budget) = abort_on_error, how
    stage.retry_failed = retry_failed
    with fewer_collections():
        await stage.work(lambda: engines.get(engine)(concurrency, timeout), concurrency, listener(progress))
    return handle


evaluate = plain(evaluate_async)


def _runs(store: Store, given: list[Any], amended: list[Evaluation]) -> list[Run]:
    """The runs of amended evaluations first, in their order, then the new ones; each once."""
    ids = [run for evaluation in amended for run in evaluation.header.runs]
    handles = [
        store.runs.get(each) for each in dict.fromkeys([*ids, *(store.runs.get(id_of(g)).id for g in given)])
    ]
    if not handles:
        raise RequestError("no run to evaluate: give one or more runs, or evaluations to amend")
    first = handles[0].header.dataset
    for handle in handles:
        if handle.header.dataset != first:
            raise RequestError(
                f"runs {handles[0].id} and {handle.id} are of different datasets: runs that are evaluated"
                " together must be of the same one"
            )
    return handles


def _judges(given: Any, amended: list[Evaluation]) -> list[Judge]:
    specs = as_list(given)
    if not specs:
        for evaluation in amended:
            for spec in evaluation.header.evaluators:
                entry = {"name": spec.name, "params": spec.params, "key": spec.key}
                if entry not in specs:
                    specs.append(entry)
    if not specs:
        raise RequestError("no evaluator: name at least one, such as 'exact_match'")
    judges = [Judge(place, spec) for place, spec in enumerate(specs)]
    keys = [judge.key for judge in judges]
    for key in keys:
        if keys.count(key) > 1:
            raise RequestError(f"two evaluators have the key {key!r}: give one of them another key")
    return judges


def _is_current(evaluation: Evaluation, runs: Sequence[Run]) -> bool:
    """Whether nothing was added to the runs since the evaluation was finished."""
    finished = evaluation.header.finished
    return finished is not None and all(
        run.header.finished is not None and run.header.finished <= finished for run in runs
    )


class _EvaluationStage:
    """One evaluation being worked on."""

    abort_on_error = False
    retry_failed = False
    cache: CacheMode = "use"
    budget: Budget | None = None

    def __init__(
        self,
        evaluation: Evaluation,
        runs: list[Run],
        amended: list[Evaluation],
        judges: list[Judge],
        data: StoredDataset,
        held: Held,
        action: str,
    ) -> None:
        self.evaluation = evaluation
        self.runs = runs
        self.judges = judges
        self.data = data
        self.held = held
        self.action = action
        self.run_ids = [run.id for run in runs]
        self._backend = evaluation.store.backend
        self._known = Known(self._backend, judges, self.run_ids, amended)
        self._first = min(run.header.offset for run in runs)
        self._last = max(end_of(run, len(data)) for run in runs)
        self._total = 0
        self._usage: dict[str, Usage] = {}
        self._aborted: str | None = None
        self._abandoned = 0

    # What there is to judge -----------------------------------------------------

    def _judgments(self, judges: Sequence[Judge]) -> Iterator[list[Judgment]]:
        """What is missing of some judges, a chunk of positions at a time."""
        fresh = self.action == "create"
        shown = [(judge, self._shown(judge)) for judge in judges]
        decode = example_decoder.decode
        reuse = any(judge.reuse for judge in judges)
        chunks = Chunks(self._first, self._last)
        for start, stop in chunks:
            self.held.check()
            found = () if fresh else self._backend.marks(self.evaluation.number, start, stop)
            marks = {(mark.position, mark.item): mark for mark in found}
            stored = [chunks.saw(self._backend.scan(run.number, start, stop)) for run in self.runs]
            outputs = [outputs_of(rows) for rows in stored]
            chunk: list[Judgment] = []
            for row in chunks.saw(self._backend.scan(self.data.number, start, stop)):
                position, example = row.position, decode(row.payload)
                hashes = Hashes(example) if reuse else None
                for judge, together in shown:
                    for places, first, last, attempts in together:
                        expected = attempts if first <= position < last else 0
                        present = shared([outputs[place].get(position) for place in places])
                        self._total += max(expected, len(present))
                        for these in present:
                            self._add_judgment(chunk, judge, position, example, places, these, marks, hashes)
            yield chunk

    def _shown(self, judge: Judge) -> list[tuple[tuple[int, ...], int, int, int]]:
        """Which runs a judge sees together, the positions that all of them have, and how many attempts."""
        out = []
        for places in places_of(judge, len(self.runs)):
            headers = [self.runs[place].header for place in places]
            first = max(header.offset for header in headers)
            last = min(end_of(self.runs[place], len(self.data)) for place in places)
            out.append((places, first, last, min(header.attempts for header in headers)))
        return out

    def _add_judgment(
        self,
        chunk: list[Judgment],
        judge: Judge,
        position: int,
        example: Example,
        places: tuple[int, ...],
        outputs: tuple[Output, ...],
        marks: dict[tuple[int, str], Mark],
        hashes: Hashes | None,
    ) -> None:
        try_number: int | None = 1
        if marks:
            item = result_item(judge.place, places, outputs[0].attempt, outputs[0].unit)
            try_number = self._try_number(marks.get((position, item)), outputs)
        if try_number is not None:
            reuse = hashes.reuse_key(judge, outputs) if judge.reuse and hashes is not None else None
            chunk.append(Judgment(position, example, judge.place, places, outputs, try_number, reuse))

    def _try_number(self, mark: Mark | None, outputs: tuple[Output, ...]) -> int | None:
        """1 for what is not there, the next for what may be tried again, None for what is done."""
        if mark is None:
            return 1
        if mark.status == FAILED and (self.retry_failed or self.action == "retry"):
            return mark.try_number + 1
        if mark.status == SKIPPED and all(isinstance(output.outcome, Ok) for output in outputs):
            return mark.try_number + 1  # the output failed then and has been computed since
        return None

    # The stage -------------------------------------------------------------------

    async def work(
        self, make_engine: Callable[[], Engine[Begun, Judged]], concurrency: int, listen: Listener | None
    ) -> None:
        """Judges what is missing, keeps it, and closes the evaluation; or leaves it to be continued."""
        expected = self._expected()
        self._progress = Progress("evaluate", expected, started=time.monotonic())
        self._listen = listen
        error: BaseException | None = None
        appenders: list[Appender] = []
        try:
            there = begin(self.evaluation.store.evaluations, self.evaluation, expected, self.action)
            again = there.failed if self.retry_failed or self.action == "retry" else 0
            self._progress.done = self._progress.before = there.total - there.pending - again
            self._usage = {} if self.action == "create" else _stored_usage(self.evaluation)
            batched = [judge for judge in self.judges if judge.batched]
            if batched:
                await self._work_batched(batched, concurrency)
            for is_async in (True, False):
                judges = [j for j in self.judges if not j.batched and j.is_async == is_async]
                if judges and self._aborted is None:
                    appender = Appender(self._backend, self.evaluation.number, concurrency if is_async else 1)
                    appenders.append(appender)
                    await self._work_single(judges, is_async, make_engine(), appender)
            if self._aborted is not None:
                raise Aborted(
                    f"evaluation {self.evaluation.id} stopped at the first failure: {self._aborted}"
                )
        except BaseException as raised:
            error = raised
            raise
        finally:
            await self._close(appenders, error)

    def _expected(self) -> int:
        """How many items there are, for the progress line; exact but for pairs of runs with units."""
        total = 0
        for judge in self.judges:
            for places, first, last, attempts in self._shown(judge):
                least = min(self.runs[place].counts.total for place in places)
                shared = max(0, last - first) * attempts
                total += least if len(places) == 1 else min(least, shared)
        return total

    def _judging(self, is_async: bool) -> Judging:
        judging = Judging(
            self.judges, self.run_ids, is_async=is_async, replicate=self.evaluation.header.replicate
        )
        judging.cache, judging.budget = self.cache, self.budget
        return judging

    async def _work_batched(self, judges: list[Judge], size: int) -> None:
        """Evaluators that take many at once and wait for nothing: on the loop, a commit for each batch."""
        judging = self._judging(False)
        for chunk in self._judgments(judges):
            rows, remaining = self._known.taken_out(judging, chunk)
            if rows:
                await self._keep(rows)
                self._told(rows)
            for judge in judges:
                mine = [j for j in remaining if j.evaluator == judge.place]
                for start in range(0, len(mine), size):
                    judged = judging.call_many(mine[start : start + size])
                    await self._keep([each.row for each in judged])
                    self._told([], judged)
                    if self._aborted is not None:
                        return
            await asyncio.sleep(0)

    async def _keep(self, rows: list[Row]) -> None:
        if self._backend.commits_briefly:
            self._backend.append(self.evaluation.number, rows)
        else:
            await asyncio.to_thread(self._backend.append, self.evaluation.number, rows)

    async def _work_single(
        self, judges: list[Judge], is_async: bool, engine: Engine[Begun, Judged], appender: Appender
    ) -> None:
        judging = self._judging(is_async)

        def items() -> Iterator[Begun]:
            for chunk in self._judgments(judges):
                rows, remaining = self._known.taken_out(judging, chunk)
                if rows:
                    self._backend.append(self.evaluation.number, rows)
                    self._told(rows)
                yield from map(judging.begun, remaining)

        async def deliver(done: Sequence[tuple[Begun, Judged]]) -> None:
            await appender.append(*[judged.row for _, judged in done])
            self._told([], [judged for _, judged in done])
            if self._aborted is not None:
                engine.stop()

        try:
            await engine.map(judging, items(), deliver)
        finally:
            self._abandoned += engine.abandoned

    def _told(self, rows: list[Row], judged: Sequence[Judged] = ()) -> None:
        progress = self._progress
        progress.done += len(rows) + len(judged)
        for each in judged:
            if each.failed is not None:
                progress.failed += 1
                if self.abort_on_error and self._aborted is None:
                    self._aborted = f"{each.failed.type}: {each.failed.message}"
            if each.usage:
                self._usage = add_usage(self._usage, each.usage)
                progress.cost = sum(u.cost or 0.0 for u in self._usage.values())
        if self._listen is not None:
            self._listen(progress)

    async def _close(self, appenders: list[Appender], error: BaseException | None) -> None:
        try:
            for appender in appenders:
                await appender.close()
        except Stopped as lost:
            if error is None:
                raise
            error.add_note(str(lost))
        finally:
            total = self._total if error is None else self._progress.total
            evaluations = self.evaluation.store.evaluations
            metadata = counting_abandoned(self.evaluation.header.metadata, self._abandoned)
            close(evaluations, self.evaluation, self.held, total, self._usage, error, metadata=metadata)


def _stored_usage(evaluation: Evaluation) -> dict[str, Usage]:
    total: dict[str, Usage] = {}
    for result in evaluation.results(history=True):
        if result.trace:
            total = add_usage(total, usage_of(result.trace))
    return total
