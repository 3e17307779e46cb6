"""The first stage: a task over a dataset gives a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from karat.errors import Aborted, RequestError, Stopped
from karat.execution.arguments import asking, notice_of
from karat.execution.engines import Engine, engines
from karat.execution.failures import STOPPING, failure_of
from karat.execution.garbage import fewer_collections
from karat.execution.lifecycle import begin, close, counting_abandoned, defaults, environment, open_or_wait
from karat.execution.progress import Listener, Progress, listener
from karat.execution.sync import plain
from karat.keys import Wanted, fingerprint, output_item
from karat.models._recording import CacheMode, recording
from karat.records import (
    FORMAT,
    Counts,
    Example,
    Failed,
    Failure,
    Ok,
    Output,
    RunHeader,
    Usage,
    add_usage,
    usage_of,
)
from karat.serialization import encode
from karat.store import Store, open_store
from karat.store.appender import Appender
from karat.store.backend import FAILED, OK, Mark, Row
from karat.store.handles import Chunks, Run, StoredDataset
from karat.store.lease import Held
from karat.store.repositories import example_decoder
from karat.tasks import Context, Task, as_task

if TYPE_CHECKING:
    from karat.models._budget import Budget

DEFAULT_CONCURRENCY = 100


async def run_async(
    task: Any,
    dataset: Any,
    *,
    store: str | Store | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    attempts: int = 1,
    limit: int | None = None,
    offset: int = 0,
    timeout: float | None = None,
    retries: int = 0,
    abort_on_error: bool = False,
    labels: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    description: str = "",
    new: bool = False,
    retry_failed: bool = False,
    accept_code_change: bool = False,
    wait: bool = False,
    cache: CacheMode = "use",
    budget: float | Budget | None = None,
    engine: str = "local",
    progress: bool | Listener | None = None,
) -> Run:
    """Runs a task over a dataset: exactly what is missing of the run that these arguments describe.

    `attempts` independent tries at each example; `limit` and `offset` select a part of the dataset; `timeout`
    in seconds for one example; `retries` at once after an exception. What happens with an earlier run of the
    same configuration is the table in docs/keys.md: `new`, `retry_failed`, `accept_code_change`, `wait`.
    """
    _check(
        concurrency=concurrency,
        attempts=attempts,
        limit=limit,
        offset=offset,
        timeout=timeout,
        retries=retries,
    )
    how = asking(cache, budget)
    the_task = as_task(task)
    the_store = open_store(store if store is not None else getattr(dataset, "store", None))
    data = the_store.datasets.put(as_dataset(dataset, the_store))
    parameters = {"attempts": attempts, "offset": offset, "limit": limit}
    configuration = fingerprint(
        task=the_task.configuration(), dataset=data.id, environment=defaults(), **parameters
    )
    wanted = Wanted(configuration, the_task.code(), new, retry_failed, accept_code_change)
    header = RunHeader(
        format=FORMAT,
        id="",
        dataset=data.id,
        task=the_task.name,
        configuration=configuration,
        code=wanted.code,
        attempts=attempts,
        offset=offset,
        limit=limit,
        parameters=_described(the_task),
        labels=list(labels),
        metadata=dict(metadata or {}),
        description=description,
        environment=environment(),
        counts=Counts(pending=0 if the_task.units_declared else attempts * _selected(data, offset, limit)),
    )
    remark = the_task.remark((id for id, _ in data.encoded()), attempts)
    handle, decision, held = await open_or_wait(lambda: the_store.runs.open(header, wanted, [data.id]), wait)
    handle.notice = notice_of(handle, decision, cache, remark)
    if held is None:
        return handle
    stage = _RunStage(the_task, data, handle, held, decision.action, wanted.code)
    stage.retries, stage.abort_on_error = retries, abort_on_error
    stage.cache, stage.budget = how
    with fewer_collections():
        await stage.work(engines.get(engine)(concurrency, timeout), listener(progress))
    return handle


run = plain(run_async)


def as_dataset(given: Any, store: Store) -> Any:
    """A dataset from a dataset, the name of a stored one, or a list of examples."""
    from karat.datasets import Dataset

    if isinstance(given, (Dataset, StoredDataset)):
        return given
    if isinstance(given, str):
        return store.datasets.get(given)
    if isinstance(given, Sequence):
        return Dataset.from_examples(given)
    raise RequestError(
        f"{type(given).__name__} is not a dataset: use Dataset.from_file or Dataset.from_examples"
    )


def _check(**numbers: Any) -> None:
    least = {"concurrency": 1, "attempts": 1, "limit": 1, "offset": 0, "timeout": 0, "retries": 0}
    for name, value in numbers.items():
        if value is not None and value < least[name]:
            raise RequestError(f"{name} is {value}: it must be at least {least[name]}")


def _selected(data: StoredDataset, offset: int, limit: int | None) -> int:
    """How many examples a run is over."""
    rest = max(0, len(data) - offset)
    return rest if limit is None else min(limit, rest)


def _described(task: Task) -> dict[str, Any]:
    configuration = task.configuration()
    return dict(configuration) if isinstance(configuration, Mapping) else {"configuration": configuration}


class _Item(NamedTuple):
    position: int
    example: Example
    attempt: int
    calls: recording
    tries: dict[str, int]
    """Try numbers by unit, where there was an earlier try."""


class _Done(NamedTuple):
    rows: list[Row]
    failed: Failure | None
    usage: dict[str, Usage]


class _RunStage:
    """One run being worked on: the work of an item for the engine, and the bookkeeping around it."""

    retries = 0
    abort_on_error = False
    cache: CacheMode = "use"
    budget: Budget | None = None

    def __init__(
        self, task: Task, data: StoredDataset, run: Run, held: Held, action: str, code: str | None
    ) -> None:
        self.task = task
        self.data = data
        self.run = run
        self.held = held
        self.action = action
        self.is_async = task.is_async
        header = run.header
        self._code = code if code != header.code else None
        self._id = header.id
        self._replicate = header.replicate
        self._parameters = header.parameters
        self._last = header.offset + _selected(data, header.offset, header.limit)
        self._aborted: tuple[str, Failure] | None = None

    # The work of an item ------------------------------------------------------

    def _context(self, item: _Item, encoded: bytes = b"") -> Context:
        """What a call may know; a call after a failed one gets the example as it was before that."""
        example = example_decoder.decode(encoded) if encoded else item.example
        return Context(self._id, example, item.attempt, self._replicate, self._parameters)

    def _recording(self, example: Example, attempt: int) -> recording:
        return recording(example.id, attempt, self._replicate, self.cache, self.budget, stored=True)

    async def call_async(self, item: _Item) -> _Done:
        context = self._context(item)
        again = encode(item.example) if self.retries else b""
        errors: list[str] = []
        with item.calls as calls:
            start = time.perf_counter()
            while True:
                try:
                    value = await self.task.call_async(context.example, context)
                    return self._done(item, Ok(value), start, calls, errors)
                except STOPPING:
                    raise
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    failure = failure_of(error)
                except BaseException as error:
                    failure = failure_of(error)
                if len(errors) >= self.retries:
                    return self._done(item, Failed(failure), start, calls, errors)
                errors.append(f"{failure.type}: {failure.message}")
                context = self._context(item, again)

    def call(self, item: _Item) -> _Done:
        context = self._context(item)
        again = encode(item.example) if self.retries else b""
        errors: list[str] = []
        with item.calls as calls:
            start = time.perf_counter()
            while True:
                try:
                    value = self.task.call(context.example, context)
                    return self._done(item, Ok(value), start, calls, errors)
                except STOPPING:
                    raise
                except BaseException as error:
                    failure = failure_of(error)
                if len(errors) >= self.retries:
                    return self._done(item, Failed(failure), start, calls, errors)
                errors.append(f"{failure.type}: {failure.message}")
                context = self._context(item, again)

    def timed_out(self, item: _Item, seconds: float) -> _Done:
        failure = Failure("TimeoutError", f"no output within {seconds:g} s")
        return self._done(item, Failed(failure), time.perf_counter() - seconds, item.calls.end(), [])

    def _done(
        self, item: _Item, outcome: Ok[Any] | Failed, start: float, calls: Sequence[Any], errors: list[str]
    ) -> _Done:
        seconds = round(time.perf_counter() - start, 6)
        trace = list(calls)
        if self.task.units_declared:
            return self._done_units(item, outcome, seconds, trace, errors)
        row, failed = self._row(item, "", outcome, seconds, trace, errors)
        return _Done([row], failed, usage_of(trace) if trace else {})

    def _done_units(
        self, item: _Item, outcome: Ok[Any] | Failed, seconds: float, trace: list[Any], errors: list[str]
    ) -> _Done:
        """An example with several outputs, all of which fail with it: the trace stays with the first of them."""
        rows: list[Row] = []
        first_failed: Failure | None = None
        for unit in self.task.units(item.example):
            part: Ok[Any] | Failed
            if isinstance(outcome, Failed):
                part = outcome
            elif isinstance(outcome.value, Mapping) and unit in outcome.value:
                part = Ok(outcome.value[unit])
            else:
                part = Failed(Failure("MissingUnit", f"the task gave no output for unit {unit!r}"))
            row, failed = self._row(item, unit, part, seconds, trace if not rows else [], errors)
            rows.append(row)
            first_failed = first_failed or failed
        return _Done(rows, first_failed, usage_of(trace))

    def _row(
        self,
        item: _Item,
        unit: str,
        outcome: Ok[Any] | Failed,
        seconds: float,
        trace: list[Any],
        errors: list[str],
    ) -> tuple[Row, Failure | None]:
        try_number = item.tries.get(unit, 1)
        output = Output(
            format=FORMAT,
            example=item.example.id,
            outcome=outcome,
            unit=unit,
            attempt=item.attempt,
            try_number=try_number,
            seconds=seconds,
            trace=trace,
            code=self._code,
            metadata={"retried": errors} if errors else {},
        )
        try:
            payload = encode(output)
        except RequestError as error:
            outcome = Failed(failure_of(error))
            payload = encode(msgspec.structs.replace(output, outcome=outcome, trace=[]))
        failed = outcome.error if isinstance(outcome, Failed) else None
        status = OK if failed is None else FAILED
        return Row(item.position, output_item(item.attempt, unit), try_number, status, None, payload), failed

    # What is missing ----------------------------------------------------------

    def _missing(self) -> Iterator[_Item]:
        header, backend = self.run.header, self.run.store.backend
        decode = example_decoder.decode
        fresh = self.action == "create"
        attempts = range(1, header.attempts + 1)
        chunks = Chunks(header.offset, self._last)
        for start, stop in chunks:
            self.held.check()
            marks = {} if fresh else _by_item(backend.marks(self.run.number, start, stop))
            for row in chunks.saw(backend.scan(self.data.number, start, stop)):
                for attempt in attempts:
                    example = decode(row.payload)  # for each attempt: a task may change what it is given
                    tries = self._tries(example, row.position, attempt, marks) if marks else {}
                    if tries is not None:
                        yield _Item(row.position, example, attempt, self._recording(example, attempt), tries)

    def _tries(
        self, example: Example, position: int, attempt: int, marks: dict[tuple[int, str], Mark]
    ) -> dict[str, int] | None:
        """Try numbers of an item that has to be computed; None when it is there."""
        needed, tries = False, {}
        for unit in self.task.units(example):
            mark = marks.get((position, output_item(attempt, unit)))
            if mark is None:
                needed = True
            elif mark.status == FAILED and self.action == "retry":
                needed, tries[unit] = True, mark.try_number + 1
        return tries if needed else None

    def _total(self) -> int:
        header = self.run.header
        if not self.task.units_declared:
            return (self._last - header.offset) * header.attempts
        units = 0
        chunks = Chunks(header.offset, self._last)
        for start, stop in chunks:
            rows = chunks.saw(self.run.store.backend.scan(self.data.number, start, stop))
            units += sum(len(self.task.units(example_decoder.decode(row.payload))) for row in rows)
        return units * header.attempts

    # The stage ----------------------------------------------------------------

    async def work(self, engine: Engine[_Item, _Done], listen: Listener | None) -> None:
        """Computes what is missing, keeps it, and closes the run; or leaves it so that it can be continued."""
        runs, number = self.run.store.runs, self.run.number
        appender = Appender(self.run.store.backend, number, engine.concurrency if self.is_async else 1)
        total = self._total()
        usage: dict[str, Usage] = {}
        progress = Progress("run", total, started=time.monotonic())

        async def deliver(done: Sequence[tuple[_Item, _Done]]) -> None:
            nonlocal usage
            rows = done[0][1].rows if len(done) == 1 else [row for _, each in done for row in each.rows]
            await appender.append(*rows)
            for item, each in done:
                progress.done += len(each.rows)
                if each.failed is not None:
                    progress.failed += 1
                    if self.abort_on_error and self._aborted is None:
                        self._aborted = (item.example.id, each.failed)
                        engine.stop()
                if each.usage:
                    usage = add_usage(usage, each.usage)
                    progress.cost = sum(u.cost or 0.0 for u in usage.values())
            if listen is not None:
                listen(progress)

        error: BaseException | None = None
        try:
            there = begin(runs, self.run, total, self.action)
            again = there.failed if self.action == "retry" else 0
            progress.done = progress.before = total - there.pending - again
            usage = {} if self.action == "create" else _stored_usage(self.run)
            await engine.map(self, self._missing(), deliver)
            if self._aborted is not None:
                example, failure = self._aborted
                raise Aborted(
                    f"run {self.run.id} stopped at the first failure, example {example!r}:"
                    f" {failure.type}: {failure.message}; the same command continues it"
                )
        except BaseException as raised:
            error = raised
            raise
        finally:
            await self._close(appender, total, usage, engine.abandoned, error)

    async def _close(
        self,
        appender: Appender,
        total: int,
        usage: dict[str, Usage],
        abandoned: int,
        error: BaseException | None,
    ) -> None:
        metadata = counting_abandoned(self.run.header.metadata, abandoned)
        try:
            await appender.close()
        except Stopped as lost:
            if error is None:
                raise
            error.add_note(str(lost))
        finally:
            close(self.run.store.runs, self.run, self.held, total, usage, error, metadata=metadata)
            self.task.close()


def _by_item(marks: Sequence[Mark]) -> dict[tuple[int, str], Mark]:
    """The latest try of each item; marks come in the order of tries."""
    return {(mark.position, mark.item): mark for mark in marks}


def _stored_usage(run: Run) -> dict[str, Usage]:
    total: dict[str, Usage] = {}
    for output in run.outputs(history=True):
        if output.trace:
            total = add_usage(total, usage_of(output.trace))
    return total
