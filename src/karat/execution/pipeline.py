"""The one pipeline of `run` and `evaluate`: open → missing → work → append → close.

A stage opens a run or an evaluation with a lease, gives what is missing to an engine, appends each finished item (the
slot is free again when the commit is made), and closes: it counts what is stored and writes the status. If it is
stopped (by an error, Ctrl-C, a lost store), finished items stay stored, and the same command continues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from karat import __version__
from karat.errors import Aborted, Stopped, StoreBusy, StoreError, option, wording
from karat.execution.arguments import Options
from karat.execution.engines import Engine, Work
from karat.execution.progress import Progress
from karat.keys import Decision
from karat.models._recording import counters, recording
from karat.process import fewer_collections
from karat.records import Counts, Failure, Usage, add_usage, usage_of
from karat.store.backend import Backend, StoredRow, restore_from_copy
from karat.store.columns import join_segments
from karat.store.handles import Evaluation, Run
from karat.store.lease import Held

# The surroundings of a run: versions, platform, git commit, and the variables that choose default models.

DEFAULTS = ("KARAT_MODEL", "OPENAI_MODEL", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")
"""Variables that change what code asks which takes its models from the environment; none of them holds a secret."""

JUDGE_DEFAULTS = ("KARAT_JUDGE_MODEL", *DEFAULTS)
"""The same for evaluators: a judge variable never belongs to a run."""


def environment() -> dict[str, Any]:
    """Versions of karat and Python, the platform, and the git commit if there is one: recorded with each run."""
    out: dict[str, Any] = {
        "karat": __version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
    }
    commit = git_commit(Path.cwd())
    if commit:
        out["git_commit"] = commit
    return out


def defaults(part: object, names: tuple[str, ...] = DEFAULTS) -> dict[str, str]:
    """The variables that are set, for the fingerprint of a task or an evaluator; none where it names its models."""
    found = {name: os.environ[name] for name in names if os.environ.get(name)}
    # Whether code names its models is read from its source, which takes milliseconds.
    return {} if found and getattr(part, "names_models", False) else found


def git_commit(folder: Path) -> str | None:
    """The checked-out commit, read from git's files because starting git takes longer than the rest of `open`."""
    for place in (folder, *folder.parents):
        head = place / ".git" / "HEAD"
        if not head.is_file():
            continue
        try:
            text = head.read_text().strip()
            if not text.startswith("ref: "):
                return text
            ref = text[5:]
            loose = place / ".git" / ref
            if loose.is_file():
                return loose.read_text().strip()
            for line in (place / ".git" / "packed-refs").read_text().splitlines():
                if line.endswith(" " + ref):
                    return line.split()[0]
        except OSError:
            return None
        return None
    return None


T = TypeVar("T")

_log = logging.getLogger("karat.execution")

BATCH_THREADS = 1_000
"""Items of code that is not async that wait for one batch: each has a thread."""

TICK_SECONDS = 1.0
"""How often progress is reported while no item finishes."""

WAIT_SECONDS = 0.5
"""How often `wait=True` looks whether another process has finished."""


async def open_or_wait(open_: Callable[[], T], wait: bool) -> T:
    """Call `open_`; with `wait`, again until the process that holds the lease releases it."""
    while True:
        try:
            return open_()
        except StoreBusy:
            if not wait:
                raise
            await asyncio.sleep(WAIT_SECONDS)


class Done(msgspec.Struct, frozen=True):
    """A finished item: its rows, its failures, and what its model calls used."""

    rows: Sequence[StoredRow]
    failed: int = 0
    failure: tuple[str, Failure] | None = None
    """The first failure, with the id of its example."""
    usage: dict[str, Usage] | None = None
    retries: int = 0
    """How often the task was called again."""


class Phase(NamedTuple):
    """Items for an engine, and the work on each."""

    work: Work[Any, Done]
    items: Iterator[Any]
    engine: Engine[Any, Done]


class Stage:
    """A run or an evaluation that this process works on.

    `phases` are worked on one after another. `total` is the number of items of all phases, as far as it is known at
    the start; a subclass may correct `total` while it reads the items.
    """

    def __init__(
        self,
        handle: Run | Evaluation,
        lease: Held,
        decision: Decision,
        options: Options,
        *,
        total: int,
        name: str,
    ) -> None:
        self.handle = handle
        self.lease = lease
        self.action = decision.action
        self.options = options
        self.total = total
        self.retries_failed = options.retry_failed or decision.action == "retry"
        self.backend = handle.store.backend
        self._repository: Any = handle.store.runs if isinstance(handle, Run) else handle.store.evaluations
        self._replicate: int = handle.header.replicate
        self._cache, self._budget, self._permit = options.cache, options.budget, lease.permit
        self._batch = options.batch
        self._progress = Progress(name, total, started=time.monotonic())
        self._usage: dict[str, Usage] = {}
        self._aborted: tuple[str, Failure] | None = None
        self._appender: Appender | None = None
        self._abandoned = 0
        self._unasked = 0
        """Items that failed again on cached replies alone."""
        self._retries_before = counters.retries
        self._retries = 0

    def recording(self, example: str, attempt: int, scope: str = "") -> recording:
        """The record of model and tool calls of one item."""
        return recording(
            example,
            attempt,
            self._replicate,
            self._cache,
            self._budget,
            scope,
            True,
            self._permit,
            self._batch,
        )

    async def work(self, phases: Iterable[Phase]) -> None:
        """Compute what is missing, store it, and close; or leave it so that it can be continued."""
        error: BaseException | None = None
        ticking: asyncio.Task[None] | None = None
        try:
            with fewer_collections():
                self._begin()
                if self.options.listen is not None and self._progress.done < self._progress.total:
                    ticking = asyncio.ensure_future(self._tick())
                for phase in phases:
                    await self._work_phase(phase)
                    if self._aborted is not None:
                        raise self._abortion(*self._aborted)
                self.lease.check()
                self.backend.ensure_readable(self.handle.number)
                if self._unasked:
                    refresh = wording("--refresh", "cache='refresh'")
                    self.handle.notice += (
                        f"; {self._unasked:,} failed again on replies from the cache:"
                        f" {option('retry_failed', True)} with {refresh} asks the model again"
                    )
        except BaseException as raised:
            error = raised
            raise
        finally:
            if ticking is not None:
                ticking.cancel()
            self._close(error)

    async def _tick(self) -> None:
        """Report progress also while nothing is committed: requests wait for a retry, or a model is loaded."""
        while self._progress.done < self._progress.total:
            with suppress(Exception):  # a listener that fails raises again at the next commit
                self._report_progress()
            await asyncio.sleep(TICK_SECONDS)

    async def _work_phase(self, phase: Phase) -> None:
        engine = phase.engine
        if self._batch and not phase.work.is_async and engine.concurrency > BATCH_THREADS:
            if self.total > BATCH_THREADS:
                _log.warning(
                    "code that is not async waits for a batch in threads, so a batch has at most %d items:"
                    " make it async for larger batches",
                    BATCH_THREADS,
                )
            engine.concurrency = BATCH_THREADS
        slots = engine.concurrency if phase.work.is_async else 1
        self._appender = Appender(self.backend, self.handle.number, slots, self.lease.owner)

        append, count, listens = self._appender.append, self._count, self.options.listen is not None

        async def deliver(done: Sequence[tuple[Any, Done]]) -> None:
            if len(done) == 1:
                await append(*done[0][1].rows)
            else:
                await append(*[row for _, each in done for row in each.rows])
            for _, each in done:
                count(each)
            if listens:
                self._report_progress()
            if self._aborted is not None:
                engine.stop()

        error: BaseException | None = None
        try:
            await engine.map(phase.work, phase.items, deliver)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._abandoned += engine.abandoned
            try:
                await self._appender.close()
            except Stopped as lost:
                if error is None:
                    raise
                error.add_note(str(lost))

    async def append(self, done: Done) -> None:
        """Store a part of an item that is still being worked on; returns when it is committed."""
        assert self._appender is not None
        await self._appender.append(*done.rows)
        self._count(done)
        self._report_progress()

    def append_known(self, rows: list[StoredRow]) -> None:
        """Store items that need no work: skipped, or copied from an earlier evaluation."""
        self.backend.append(self.handle.number, rows, self.lease.owner)
        self._count(Done(rows))
        self._report_progress()

    def _count(self, done: Done) -> None:
        progress = self._progress
        progress.done += len(done.rows)
        self._retries += done.retries
        if done.failure is not None:
            progress.failed += done.failed
            if done.usage and done.rows[0].try_number > 1:
                self._unasked += all(each.calls == each.cached_calls for each in done.usage.values())
            if self.options.abort_on_error and self._aborted is None:
                self._aborted = done.failure
        if done.usage:
            self._usage = add_usage(self._usage, done.usage)
            progress.cost = sum(usage.cost or 0.0 for usage in self._usage.values())

    def _report_progress(self) -> None:
        if self.options.listen is not None:
            self._progress.retries = counters.retries - self._retries_before + self._retries
            self._progress.waiting = counters.waiting
            self._progress.note = f"loading {counters.loading}" if counters.loading else ""
            self.options.listen(self._progress)

    def _abortion(self, example: str, failure: Failure) -> Aborted:
        return Aborted(
            f"{self.handle.kind} {self.handle.id} stopped at the first failure, example {example!r}:"
            f" {failure.type}: {failure.message}; the same {wording('command', 'call')} continues it"
        )

    def _begin(self) -> None:
        """Write to the header that work is under way, and count what an earlier process stored."""
        if self.action == "create":
            counts = Counts(pending=self.total)
            if self.handle.header.counts != counts:
                self._save(None, counts=counts)
            return
        counts = self._repository.count(self.handle.number, self.total)
        again = counts.failed if self.retries_failed else 0
        self._progress.done = self._progress.before = counts.total - counts.pending - again
        self._save(None, counts=counts, status="running", finished=None, error=None)
        for record in self.handle.records(history=True):
            if record.trace:
                self._usage = add_usage(self._usage, usage_of(record.trace))

    def _close(self, error: BaseException | None) -> None:
        """Count what is stored and write the status: finished, or stopped and to be continued.

        Only the holder of the lease writes it: another process that took over has its own status to write.
        """
        finished = None
        metadata = self.handle.header.metadata
        if self._abandoned:
            abandoned = metadata.get("abandoned_threads", 0) + self._abandoned
            metadata = {**metadata, "abandoned_threads": abandoned}
        try:
            if error is None:
                join_segments(self.handle)
            counts = self._repository.count(self.handle.number, self.total)
            # An evaluation of an unfinished run has pending items at its end, and a run none.
            done = self.total if isinstance(self.handle, Run) else min(self._progress.done, self.total)
            if error is None and counts.total - counts.pending < done:
                raise StoreError(
                    f"{self.handle.id} in {self.backend.url} has fewer records than were stored: {restore_from_copy()}"
                )
            stopped = str(error) if isinstance(error, Stopped) else None
            self._save(
                self.lease,
                counts=counts,
                usage=self._usage,
                error=stopped,
                status=counts.status if error is None else "fatal_error" if stopped else "running",
                finished=time.time() if error is None else None,
                metadata=metadata,
            )
            finished = self.handle.header.finished
        except Stopped:
            if error is None:
                raise
        finally:
            if finished is None:  # a finished header releases its lease in the same transaction
                self.lease.release()

    def _save(self, lease: Held | None, **changes: Any) -> None:
        header = msgspec.structs.replace(self.handle.header, **changes)
        self.handle.header = self._repository.save(self.handle.number, header, lease)


# Group commits: an append returns when its record is committed.


LONGEST_DELAY = 0.05
FIRST_DELAY = 0.002
SHARE = 10
"""A group is kept open SHARE times as long as a commit takes, so that committing costs at most about
a tenth of the time, whether a commit takes 0.1 ms (SQLite) or 5 ms (a server)."""
GROWTH = 1.2
"""How much the expected duration grows after a slower commit: a single slow one may only have waited for the
interpreter lock."""

LARGEST_BYTES = 4 << 20
"""A group of large records is committed at this size, to bound memory."""


class Appender:
    """A buffer that commits the rows of one parent together, while `owner` holds its lease.

    A group is committed when everyone who could add to it is already waiting for it (`slots`), when it has
    become large, or when its time is up. Only one commit is under way at a time.
    """

    def __init__(self, backend: Backend, parent: int, slots: int, owner: str | None = None) -> None:
        self._backend = backend
        self._owner = owner
        self._parent = parent
        self._slots = slots
        self._rows: list[StoredRow] = []
        self._bytes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._opened = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._delay = FIRST_DELAY
        self._commit: asyncio.Task[None] | None = None
        self._unreported: BaseException | None = None

    async def append(self, *rows: StoredRow) -> None:
        """Add the rows of one item and return when they are committed.

        A caller that is cancelled while it waits gets no result, but its rows are committed with their group.
        """
        self._rows.extend(rows)
        for row in rows:
            self._bytes += len(row.payload)
        full = len(self._waiting) + 1 >= self._slots or self._bytes >= LARGEST_BYTES
        if full and self._backend.commits_briefly:
            self._commit_here()
            return
        loop = asyncio.get_running_loop()
        # A future for each: cancelling one that is shared would cancel everyone who waits for it.
        committed = loop.create_future()
        if not self._waiting:
            self._opened = loop.time()
        self._waiting.append(committed)
        if self._commit is None:
            self._commit_or_wait(loop)
        await committed

    def _commit_or_wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if len(self._waiting) >= self._slots or self._bytes >= LARGEST_BYTES:
            self._time_is_up()
        elif self._waiting and self._timer is None:
            self._timer = loop.call_at(self._opened + self._delay, self._time_is_up)

    async def close(self) -> None:
        """Wait for the commit in progress and commit the rest; raise an error that reached no caller."""
        while self._commit is not None:
            await asyncio.wait([self._commit])
        if self._rows:
            self._commit_here()
        if self._unreported is not None:
            raise self._unreported

    def _time_is_up(self) -> None:
        if not self._backend.commits_briefly:
            rows, waiting = self._take()
            self._commit = asyncio.get_running_loop().create_task(self._commit_in_thread(rows, waiting))
            return
        waiting = self._waiting
        try:
            self._commit_here()
        except Exception as error:
            if all(each.cancelled() for each in waiting):
                self._unreported = error

    def _take(self) -> tuple[list[StoredRow], list[asyncio.Future[None]]]:
        rows, waiting = self._rows, self._waiting
        self._rows, self._waiting, self._bytes = [], [], 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return rows, waiting

    def _commit_here(self) -> None:
        rows, waiting = self._take()
        start = time.perf_counter()
        try:
            self._backend.append(self._parent, rows, self._owner)
        except BaseException as error:
            _resolve(waiting, error)
            raise
        self._delay = min(LONGEST_DELAY, SHARE * (time.perf_counter() - start), self._delay * GROWTH)
        if waiting:
            _resolve(waiting, None)

    async def _commit_in_thread(self, rows: list[StoredRow], waiting: list[asyncio.Future[None]]) -> None:
        start = time.perf_counter()
        try:
            await asyncio.to_thread(self._backend.append, self._parent, rows, self._owner)
        except asyncio.CancelledError:
            self._commit = None
            raise
        except BaseException as error:
            if all(each.cancelled() for each in waiting):
                self._unreported = error
            _resolve(waiting, error)
        else:
            _resolve(waiting, None)
        self._delay = min(LONGEST_DELAY, SHARE * (time.perf_counter() - start), self._delay * GROWTH)
        self._commit = None
        self._commit_or_wait(asyncio.get_running_loop())


def _resolve(waiting: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for each in waiting:
        if each.done():
            continue  # cancelled while it waited
        if error is None:
            each.set_result(None)
        else:
            each.set_exception(error)
            each.exception()  # retrieved: the waiter raises it, unless it is cancelled at this very moment
