"""The first stage: a task over a dataset gives a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from itertools import islice
from typing import Any, Unpack

import msgspec

from karat.errors import ConfigError, RequestError
from karat.execution.arguments import (
    DEFAULT_CONCURRENCY,
    DatasetLike,
    RunOptions,
    StoreLike,
    TaskLike,
    check_numbers,
    dataset_of,
    notice_of,
    read_options,
    store_of,
)
from karat.execution.engines import engines, failure_of, item_failure
from karat.execution.expected_items import Together, run_lengths
from karat.execution.pipeline import Done, Phase, Stage, defaults, environment, open_or_wait
from karat.execution.progress import Listener
from karat.keys import Wanted, fingerprint, output_item, project_file
from karat.models._recording import recording
from karat.records import (
    FORMAT,
    NOT_QUEUED,
    SUMMARY,
    Call,
    Counts,
    Example,
    Failed,
    Failure,
    Ok,
    Output,
    RunHeader,
    usage_of,
)
from karat.serialization import encode, encode_record, to_json_value
from karat.store.backend import FAILED, OK, Cells, Mark, StoredRow
from karat.store.columns import cells_of_output
from karat.store.handles import Chunks, Run, StoredDataset
from karat.store.repositories import example_decoder, latest, output_decoder
from karat.sync import sync_twin
from karat.tasks import Context, Task, as_task


async def run_async(
    task: TaskLike,
    dataset: DatasetLike,
    *,
    store: StoreLike | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    attempts: int = 1,
    limit: int | None = None,
    offset: int = 0,
    progress: bool | Listener | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Run a task over a dataset and compute only the missing outputs of the run that these arguments describe.

    `task` is a function, a callable object, a `Task`, or `file.py:function`. `dataset` is a `Dataset`, the path of a
    file, the name of a stored dataset, or examples. `attempts` is the number of independent tries at each example;
    `limit` and `offset` select a part of the dataset; `progress=True` shows a progress line.

    Further options, in groups:

    - work: `timeout` in seconds for one example, `retries` after an exception, `abort_on_error`, `engine`;
    - earlier runs of the same configuration (the table in docs/keys.md): `new`, `retry_failed`,
      `accept_code_change`, `wait`;
    - model calls: `cache` (`use`, `refresh` or `off`), `budget` in dollars, `batch` (use the provider's batch API);
    - description: `labels`, `metadata`, `description`.
    """
    how = read_options(
        run_async,
        RunOptions,
        options,
        concurrency=concurrency,
        progress=progress,
    )
    check_numbers(attempts=attempts, limit=limit, offset=offset)
    make_engine = engines.get(how.engine)
    the_task = as_task(task)
    the_store = store_of(store, [dataset])
    data = the_store.datasets.put(dataset_of(dataset, the_store))
    data_id, count = data.header.id, data.header.count
    last = count if limit is None else min(count, offset + limit)
    problems = the_task.check_inputs(islice(data, offset, last))
    if problems:
        raise ConfigError(problems, f"task {the_task.name!r}")
    described = the_task.configuration()
    configuration = fingerprint(
        name=the_task.name,  # a task of one's own may leave it out
        task=described,
        dataset=data_id,
        environment=defaults(the_task),
        attempts=attempts,
        offset=offset,
        limit=limit,
    )
    wanted = Wanted(
        configuration,
        the_task.code(),
        source=project_file(the_task.source()),
        new=how.new,
        retry_failed=how.retry_failed,
        accept_code_change=how.accept_code_change,
    )
    header = RunHeader(
        format=FORMAT,
        id="",
        dataset=data_id,
        task=the_task.name,
        configuration=configuration,
        code=wanted.code,
        source=wanted.source,
        attempts=attempts,
        offset=offset,
        limit=limit,
        parameters=dict(described) if isinstance(described, Mapping) else {"configuration": described},
        labels=how.labels,
        metadata=how.metadata,
        description=how.description,
        environment=environment(),
        counts=Counts(pending=0 if the_task.units_declared else attempts * max(0, last - offset)),
    )
    remark = the_task.remark((id for id, _ in data.encoded()), attempts)
    run, decision, lease = await open_or_wait(
        lambda: the_store.runs.open(header, wanted, [data_id]), how.wait
    )
    run.notice = notice_of(the_store.runs, run, decision, how, remark)
    if lease is None:
        return run
    code, accepted = run.header.code, run.header.accepted_code
    if wanted.code is not None and wanted.code not in (code, *accepted):
        # Saved when the work begins, so that the same command continues it and returns it in the end.
        run.header = msgspec.structs.replace(run.header, accepted_code=[*accepted, wanted.code])
    if the_task.units_declared:
        run.header = msgspec.structs.replace(run.header, units=run_lengths(_units(the_task, data, run)))
    expected = Together([run], count)
    stage = Stage(run, lease, decision, how, total=expected.total(), name="run")
    work = _RunWork(the_task, data, run, stage, wanted.code)
    engine = make_engine(how.concurrency, how.timeout)
    try:
        await stage.work([Phase(work, work.missing(expected.last), engine)])
    finally:
        the_task.close()
    return run


run = sync_twin(run_async)


def _units(task: Task, data: StoredDataset, run: Run) -> Iterator[int]:
    """The number of units of each example that a run selects."""
    selected = run.selection(len(data))
    chunks = Chunks(selected.start, selected.stop)
    for start, stop in chunks:
        for row in chunks.saw(data.scan(start, stop)):
            yield len(task.units(example_decoder.decode(row.payload)))


class _Item(msgspec.Struct, frozen=True):
    """One attempt at one example."""

    position: int
    example: Example
    attempt: int
    calls: recording
    tries: dict[str, int]
    """Try numbers by unit, where there was an earlier try."""
    settled: set[str]
    """Units that are stored and are not computed again; grows while a task yields units."""


_NO_TRIES: dict[str, int] = {}
_NOTHING: set[str] = set()
"""Shared by the items that have neither: both are only read."""


class _RunWork:
    """The missing items of a run, and the work on each."""

    def __init__(self, task: Task, data: StoredDataset, run: Run, stage: Stage, code: str | None) -> None:
        self.task = task
        self.data = data
        self.run = run
        self.stage = stage
        self.is_async = task.is_async
        header = run.header
        self._id = header.id
        self._replicate = header.replicate
        self._parameters = header.parameters
        self._retries = stage.options.retries
        self._code = code if code != header.code else None
        self._units_declared = task.units_declared
        self._yields = type(task).call_units is not Task.call_units
        self._summarizes = type(task).summarize is not Task.summarize
        self._loop = asyncio.get_running_loop()

    # The work on an item ------------------------------------------------------

    def _context(self, item: _Item, encoded: bytes = b"") -> Context:
        """The context of a call; a call after a failed one gets the example as it was before that."""
        example = example_decoder.decode(encoded) if encoded else item.example
        done = self._stored_units(item) if item.settled else {}
        return Context(self._id, example, item.attempt, self._replicate, self._parameters, done)

    async def call_async(self, item: _Item) -> Done:
        context = self._context(item)
        again = encode(item.example) if self._retries else b""
        errors: list[str] = []
        with item.calls as calls:
            clock = _Clock(calls, time.perf_counter())
            while True:
                try:
                    if self._yields:
                        await self._call_units_async(item, context, clock, errors)
                        return self._done_units(item, None, clock, errors)
                    value = await self.task.call_async(context.example, context)
                    return self._done(item, Ok(value), clock, errors)
                except BaseException as error:
                    failure = item_failure(error)
                if len(errors) >= self._retries:
                    return self._done(item, Failed(failure), clock, errors)
                errors.append(f"{failure.type}: {failure.message}")
                context = self._context(item, again)

    def call(self, item: _Item) -> Done:
        context = self._context(item)
        again = encode(item.example) if self._retries else b""
        errors: list[str] = []
        with item.calls as calls:
            clock = _Clock(calls, time.perf_counter())
            while True:
                try:
                    if self._yields:
                        self._call_units(item, context, clock, errors)
                        return self._done_units(item, None, clock, errors)
                    value = self.task.call(context.example, context)
                    return self._done(item, Ok(value), clock, errors)
                except BaseException as error:
                    failure = item_failure(error)
                if len(errors) >= self._retries:
                    return self._done(item, Failed(failure), clock, errors)
                errors.append(f"{failure.type}: {failure.message}")
                context = self._context(item, again)

    def timed_out(self, item: _Item, seconds: float) -> Done:
        error = self.task.timeout_error(item.example, item.attempt, seconds)
        failure = Failure("TimeoutError", f"no output within {seconds:g} s")
        if error is not None:
            failure = failure_of(error)
        item.calls.end()
        return self._done(item, Failed(failure), _Clock(item.calls, time.perf_counter() - seconds), [])

    def _done(self, item: _Item, outcome: Ok[Any] | Failed, clock: _Clock, errors: list[str]) -> Done:
        if self._units_declared:
            return self._done_units(item, outcome, clock, errors)
        seconds, queue, trace = clock.lap()
        row, failure = self._row(item, "", outcome, seconds, queue, trace, errors)
        usage = usage_of(trace) if trace else None
        return Done((row,), 1 if failure else 0, failure, usage, len(errors))

    # Units ----------------------------------------------------------------------

    async def _call_units_async(
        self, item: _Item, context: Context, clock: _Clock, errors: list[str]
    ) -> None:
        """Store each unit that a task yields once the unit is complete."""
        async with aclosing(self.task.call_units(context.example, context)) as parts:
            async for part in parts:
                done = self._finish_unit(item, part, clock, errors)
                if done is not None:
                    await self.stage.append(done)

    def _call_units(self, item: _Item, context: Context, clock: _Clock, errors: list[str]) -> None:
        """The same in a thread: the commit is made by the event loop, and this thread waits for it."""
        with closing(self.task.call_units(context.example, context)) as parts:
            for part in parts:
                done = self._finish_unit(item, part, clock, errors)
                if done is not None:
                    asyncio.run_coroutine_threadsafe(self.stage.append(done), self._loop).result()

    def _finish_unit(self, item: _Item, part: Any, clock: _Clock, errors: list[str]) -> Done | None:
        """A yielded `(unit, output)` as a finished unit; None for one that is stored already."""
        if not (isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str)):
            raise TypeError(f"task {self.task.name!r} yielded {type(part).__name__}, not (unit, output)")
        unit, value = part
        if unit not in self.task.units(item.example):
            raise ValueError(
                f"task {self.task.name!r} yielded the unit {unit!r}, which units() does not name"
            )
        if item.calls.ended:
            raise TimeoutError(f"unit {unit!r} was yielded after its example timed out")
        if unit in item.settled:
            return None
        outcome = Failed(failure_of(value)) if isinstance(value, BaseException) else Ok(value)
        seconds, queue, trace = clock.lap()
        row, failure = self._row(item, unit, outcome, seconds, queue, trace, errors)
        item.settled.add(unit)
        return Done([row], 1 if failure else 0, failure, usage_of(trace))

    def _done_units(
        self, item: _Item, outcome: Ok[Any] | Failed | None, clock: _Clock, errors: list[str]
    ) -> Done:
        """The units of an example that are not stored yet: from a mapping, or failed with their example."""
        given = outcome.value if isinstance(outcome, Ok) else None
        seconds, queue, trace = clock.lap()
        usage = usage_of(trace)
        rows: list[StoredRow] = []
        failed, first = 0, None
        for unit in self.task.units(item.example):
            if unit in item.settled and self._yields:
                continue
            part: Ok[Any] | Failed
            if isinstance(outcome, Failed):
                part = outcome
            elif isinstance(given, Mapping) and unit in given:
                part = Ok(given[unit])
            else:
                part = Failed(Failure("MissingUnit", f"the task returned no output for unit {unit!r}"))
            row, failure = self._row(item, unit, part, seconds, queue, trace, errors)
            rows.append(row)
            trace = []  # the calls stay with the first unit
            if failure is not None:
                failed, first = failed + 1, first or failure
        return Done(rows, failed, first, usage, len(errors))

    def _stored_units(self, item: _Item) -> dict[str, Output]:
        """The settled units of an item, as they are stored."""
        rows = latest(self.stage.backend.scan(self.run.number, item.position, item.position + 1))
        outputs = [output_decoder.decode(row.payload) for row in rows]
        return {o.unit: o for o in outputs if o.attempt == item.attempt and o.unit in item.settled}

    def _row(
        self,
        item: _Item,
        unit: str,
        outcome: Ok[Any] | Failed,
        seconds: float,
        queue: float,
        trace: list[Call],
        errors: list[str],
    ) -> tuple[StoredRow, tuple[str, Failure] | None]:
        try_number = item.tries.get(unit, 1) if item.tries else 1
        metadata: dict[str, Any] = {"retried": errors} if errors else {}
        if unit and self._summarizes:
            value = outcome.value if isinstance(outcome, Ok) else None
            metadata[SUMMARY] = dict(self.task.summarize(item.example, unit, value))
        output = Output(
            format=FORMAT,
            example=item.example.id,
            outcome=outcome,
            unit=unit,
            attempt=item.attempt,
            try_number=try_number,
            seconds=seconds,
            queue_seconds=queue,
            trace=trace,
            code=self._code,
            metadata=metadata,
        )
        try:
            if isinstance(outcome, Ok) and (
                not trace or len(trace) == item.calls.plain_calls == len(item.calls)
            ):
                payload = encode_record(output, outcome.value)
            else:
                payload = encode(output)
        except RequestError as refused:
            error: BaseException = refused
            if isinstance(outcome, Ok):
                try:
                    to_json_value(outcome.value, "output")
                except RequestError as named:  # the place in the output, not in the record
                    error = self.task.storage_error(outcome.value, named)
            outcome = Failed(failure_of(error))
            output = msgspec.structs.replace(output, outcome=outcome)
            try:
                payload = encode(output)
            except RequestError:  # what the calls returned cannot be stored either
                trace = []
                payload = encode(msgspec.structs.replace(output, trace=trace))
        failure = (item.example.id, outcome.error) if isinstance(outcome, Failed) else None
        status = OK if failure is None else FAILED
        # Most outputs are plain: a call for each would cost as much as packing it.
        plain = failure is None and not trace and not queue
        cells: Cells = (None, seconds) if plain else cells_of_output(outcome, seconds, queue, trace)
        place = output_item(item.attempt, unit)
        return StoredRow(item.position, place, try_number, status, None, payload, cells), failure

    # What is missing ----------------------------------------------------------

    def missing(self, last: int) -> Iterator[_Item]:
        """The items before the position `last` that have to be computed, in dataset order, read a chunk at a time."""
        header, backend, recording = self.run.header, self.stage.backend, self.stage.recording
        decode, decode_all = example_decoder.decode, example_decoder.decode_all
        fresh = self.stage.action == "create"
        attempts = range(1, header.attempts + 1)
        chunks = Chunks(header.offset, last)
        for start, stop in chunks:
            self.stage.lease.check()
            marks = {} if fresh else _by_item(backend.marks(self.run.number, start, stop))
            rows = chunks.saw(self.data.scan(start, stop))
            for row, example in zip(rows, decode_all([row.payload for row in rows]), strict=True):
                for attempt in attempts:
                    if attempt > 1:  # a task may change what it is given
                        example = decode(row.payload)
                    tries: dict[str, int] | None = _NO_TRIES
                    settled = set[str]() if marks or self._yields else _NOTHING
                    if marks:
                        tries = self._tries(example, row.position, attempt, marks, settled)
                    if tries is not None:
                        calls = recording(example.id, attempt)
                        yield _Item(row.position, example, attempt, calls, tries, settled)

    def _tries(
        self,
        example: Example,
        position: int,
        attempt: int,
        marks: dict[tuple[int, str], Mark],
        settled: set[str],
    ) -> dict[str, int] | None:
        """Try numbers of an item that has to be computed, and its settled units; None when nothing is missing."""
        needed, tries = False, {}
        for unit in self.task.units(example):
            mark = marks.get((position, output_item(attempt, unit)))
            if mark is None:
                needed = True
            elif mark.status == FAILED and self.stage.action == "retry":
                needed, tries[unit] = True, mark.try_number + 1
            else:
                settled.add(unit)
        return tries if needed else None


class _Clock(msgspec.Struct):
    """Time and calls of an item since the last unit was stored."""

    calls: recording
    since: float
    seen: int = 0
    """The number of calls in earlier laps."""

    def lap(self) -> tuple[float, float, list[Call]]:
        """Return the seconds, the seconds spent waiting, and the calls since the last lap."""
        now = time.perf_counter()
        seconds = round(now - self.since, 6)
        self.since = now
        if not self.calls:
            return seconds, NOT_QUEUED, []
        trace, queue = self.calls[self.seen :], self.calls.queue_seconds(self.seen)
        self.seen = len(self.calls)
        return seconds, queue, trace


def _by_item(marks: Sequence[Mark]) -> dict[tuple[int, str], Mark]:
    """The latest try of each item; marks come in the order of tries."""
    return {(mark.position, mark.item): mark for mark in marks}
