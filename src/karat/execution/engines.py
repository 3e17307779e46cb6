"""Engines do the work of a stage: their interface, their registry, and the engines of this process.

The local engine runs worker coroutines for async work, and threads in chunks for sync work. Memory depends on
concurrency, not on the number of items: an item is taken when a slot is free, and a slot is free again when the outcome
of its item has been delivered, that is, committed.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from karat.errors import (
    CredentialsRefused,
    KaratError,
    Stopped,
    for_thread,
    is_cancelled,
    message_of,
    where_raised,
)
from karat.records import Failure
from karat.redaction import of_environment
from karat.registry import Registry
from karat.sync import abandon

# An exception as the failure that is stored: its type, its message, the lines that matter; bounded.

LONGEST_MESSAGE = 4000

STOPPING: tuple[type[BaseException], ...] = (Stopped, KeyboardInterrupt, GeneratorExit)
"""Exceptions that end the stage. Everything else that a task or an evaluator raises is a failure of its item, also
what does not derive from Exception: SystemExit, a panic in an extension, the outcomes of pytest."""


def item_failure(error: BaseException) -> Failure:
    """The failure of an item whose code raised; raises the error again where it ends the stage instead."""
    if isinstance(error, STOPPING) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
        raise error
    return failure_of(error)


def failure_of(error: BaseException) -> Failure:
    """The stored form of an exception that a task or an evaluator raised."""
    whole = (message_of(error) or type(error).__name__).encode("utf-8", "replace").decode()
    # Code of a task may quote the key that it uses. Before it is cut: a part of a key would not be recognised.
    message = of_environment().in_text(whole[: 2 * LONGEST_MESSAGE])
    if len(whole) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]}… ({len(whole):,} characters)"
    return Failure(
        type=type(error).__name__, message=message, where=where_raised(error), metadata=_history(error)
    )


def _history(error: BaseException) -> dict[str, Any]:
    """The attempts that a failed model call recorded."""
    metadata = getattr(error, "metadata", None)
    return metadata if isinstance(error, KaratError) and isinstance(metadata, dict) else {}


Item = TypeVar("Item")
Done = TypeVar("Done")
_Item = TypeVar("_Item", contravariant=True)
_Done = TypeVar("_Done", covariant=True)


Deliver: TypeAlias = Callable[[Sequence[tuple[Item, Done]]], Awaitable[None]]
"""Takes finished items, and returns when they are stored."""


class Work(Protocol[_Item, _Done]):
    """The work on an item. A failure is part of what it returns; an exception stops the stage."""

    is_async: bool

    async def call_async(self, item: _Item) -> _Done:
        """Do the work on the event loop."""

    def call(self, item: _Item) -> _Done:
        """Do the work in a thread."""

    def timed_out(self, item: _Item, seconds: float) -> _Done:
        """The outcome of an item that timed out."""


class Engine(Protocol[Item, Done]):
    """Maps work over items with bounded queues; a slot is free when the outcome of its item is delivered."""

    concurrency: int
    abandoned: int

    def stop(self) -> None:
        """Start no further item; those in progress are finished and delivered."""

    async def map(
        self,
        work: Work[Item, Done],
        items: Iterator[Item],
        deliver: Deliver[Item, Done],
    ) -> None:
        """Do the work of every item; `deliver` gets finished items and returns when they are stored."""


engines: Registry[Callable[[int, float | None], Engine[Any, Any]]] = Registry("engine")


CHUNK_SECONDS = 0.005
"""Sync work is sent to threads in chunks of about this duration: crossing to a thread costs about 100 µs."""

FIRST_CALL = 4
"""The first call of a run takes about this many times as long as the following ones (measured)."""

LONGEST_CHUNK_SECONDS = 0.05
"""After this time the finished items of a chunk are delivered, and the rest goes back to all threads."""

PATIENCE_SECONDS = 2.0
"""How long cancelled code may take to clean up, and calls in progress to end when a key is refused."""


@engines.register("local")
class LocalEngine(Generic[Item, Done]):
    """Work on this machine, in this process."""

    def __init__(self, concurrency: int = 1, timeout: float | None = None) -> None:
        self.concurrency = concurrency
        self.timeout = timeout
        self.abandoned = 0
        """Number of threads that timed out and could not be stopped."""
        self._stop = False

    def stop(self) -> None:
        """Start no further item; those in progress are finished and delivered."""
        self._stop = True

    async def map(
        self,
        work: Work[Item, Done],
        items: Iterator[Item],
        deliver: Deliver[Item, Done],
    ) -> None:
        """Do the work of every item; `deliver` gets finished items and returns when they are stored."""
        lane = self._async_lane if work.is_async else self._thread_lane
        if work.is_async:
            workers = [asyncio.ensure_future(lane(work, items, deliver)) for _ in range(self.concurrency)]
        else:
            workers = [asyncio.ensure_future(lane(work, items, deliver))]
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            errors = [error for worker in done if (error := worker.exception())]
            if errors:
                self._stop = True
                await self._finish(workers, errors[0])
        except asyncio.CancelledError:
            await self._cancel(workers)
            raise
        ended = [worker for worker in workers if worker.done() and not worker.cancelled()]
        errors = [error for worker in ended if (error := worker.exception())]
        for error in errors:
            if isinstance(error, Stopped):
                raise error
        if errors:
            raise errors[0]

    async def _finish(self, under_way: Collection[asyncio.Task[Any]], error: BaseException) -> int:
        """Wait for items in progress when a stage ends, briefly where a key is refused; return how many were left."""
        if not under_way:
            return 0
        patience = PATIENCE_SECONDS if isinstance(error, CredentialsRefused) else None
        done, late = await asyncio.wait(under_way, timeout=patience)
        for task in done:
            if not task.cancelled():
                task.exception()  # mark as retrieved: only the first error is reported
        if late:
            await self._cancel(late)
        return len(late)

    async def _cancel(self, workers: Collection[asyncio.Task[Any]]) -> None:
        """Cancel and wait PATIENCE_SECONDS. Code that ignores cancellation is abandoned, as a stuck thread is."""
        self.stop()
        for worker in workers:
            worker.cancel()
        abandon(workers)  # at once: a second Ctrl-C ends the loop while this waits
        done, _ = await asyncio.wait(workers, timeout=PATIENCE_SECONDS)
        for worker in done:
            if not worker.cancelled():
                worker.exception()  # mark as retrieved: only the cancellation is reported

    async def _async_lane(
        self,
        work: Work[Item, Done],
        items: Iterator[Item],
        deliver: Deliver[Item, Done],
    ) -> None:
        timeout = self.timeout
        for item in items:
            if self._stop:
                return
            if timeout is None:
                done = await work.call_async(item)
            else:
                try:
                    async with asyncio.timeout(timeout) as deadline:
                        done = await work.call_async(item)
                except TimeoutError:
                    if not deadline.expired():
                        raise
                    done = work.timed_out(item, timeout)
            await deliver(((item, done),))
            if self._stop:
                return

    async def _thread_lane(
        self,
        work: Work[Item, Done],
        items: Iterator[Item],
        deliver: Deliver[Item, Done],
    ) -> None:
        """Send calls in chunks sized by the duration of the last calls; the first chunk is a single call."""
        threads = Threads()
        under_way: dict[asyncio.Task[tuple[float, list[Item]]], int] = {}
        # Thousands of calls may wait for one batch, so nothing here looks at every task in each round.
        ended: deque[asyncio.Task[tuple[float, list[Item]]]] = deque()
        some_ended = asyncio.Event()

        def note(task: asyncio.Task[tuple[float, list[Item]]]) -> None:
            ended.append(task)
            some_ended.set()

        handed_back: list[Item] = []
        size, known, busy = 1, False, 0
        try:
            while not self._stop:
                count = min(size, self.concurrency - busy)
                chunk = handed_back[:count]
                del handed_back[:count]
                chunk += islice(items, count - len(chunk))
                if chunk:
                    task = asyncio.ensure_future(self._chunk(work, chunk, threads, deliver))
                    task.add_done_callback(note)
                    under_way[task] = len(chunk)
                    busy += len(chunk)
                elif not under_way:
                    break
                if not chunk or busy + size > self.concurrency:
                    await some_ended.wait()
                elif not known and len(under_way) == 1:
                    await asyncio.wait(under_way, timeout=CHUNK_SECONDS)
                else:
                    await asyncio.sleep(0)
                some_ended.clear()
                while ended:
                    task = ended.popleft()
                    busy -= under_way.pop(task)
                    seconds, rest = task.result()
                    handed_back += rest
                    likely = seconds if known else seconds / FIRST_CALL
                    size = max(1, min(int(CHUNK_SECONDS / (likely + 1e-9)), self.concurrency))
                    known = True
            for task in under_way:
                await task
        except asyncio.CancelledError:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            raise
        except BaseException as error:
            self.abandoned += await self._finish(under_way, error)
            raise
        finally:
            threads.close()

    async def _chunk(
        self,
        work: Work[Item, Done],
        chunk: list[Item],
        threads: Threads,
        deliver: Deliver[Item, Done],
    ) -> tuple[float, list[Item]]:
        """Work on a chunk and deliver it; return the duration of a call, and the items that were not started."""
        if self.timeout is None:
            done: list[tuple[Item, Done]] = []
            try:
                seconds = await threads.submit(lambda: _call_each(work, chunk, done))
            except BaseException:  # an item has stopped the stage, or the stage is cancelled
                if done:
                    await deliver(done[:])
                raise
            await deliver(done)
            return seconds / len(done), chunk[len(done) :]
        start = time.perf_counter()
        for item in chunk:
            future = threads.submit(functools.partial(work.call, item))
            finished, _ = await asyncio.wait([future], timeout=self.timeout)
            if finished:
                await deliver(((item, future.result()),))
            else:
                future.cancel()
                self.abandoned += 1
                await deliver(((item, work.timed_out(item, self.timeout)),))
        return max((time.perf_counter() - start) / len(chunk), CHUNK_SECONDS), []


def _call_each(work: Work[Item, Done], chunk: Sequence[Item], done: list[tuple[Item, Done]]) -> float:
    """Append the outcomes of a chunk to `done` and return the seconds taken; slow calls leave the last items undone."""
    start, seconds = time.perf_counter(), 0.0
    for item in chunk:
        done.append((item, work.call(item)))
        seconds = time.perf_counter() - start
        if seconds > LONGEST_CHUNK_SECONDS:
            break
    return seconds


class InlineEngine(LocalEngine[Item, Done]):
    """Quick work that waits for nothing: on the event loop, one item after another."""

    async def map(
        self,
        work: Work[Item, Done],
        items: Iterator[Item],
        deliver: Deliver[Item, Done],
    ) -> None:
        """Do the work of every item; other tasks of the loop get their turn every CHUNK_SECONDS."""
        since = time.perf_counter()
        for item in items:
            await deliver(((item, work.call(item)),))
            if self._stop:
                return
            if time.perf_counter() - since > CHUNK_SECONDS:
                await asyncio.sleep(0)
                since = time.perf_counter()


T = TypeVar("T")


class Threads:
    """Threads that run functions for one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._idle = 0
        self._count = 0
        self._waiting = 0
        """Functions for which the system gave no further thread."""
        self._context = contextvars.copy_context()

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in a thread, with the context in which this object was created."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._idle > 0:
            self._idle -= 1
        else:
            try:
                threading.Thread(target=self._work, name=f"karat-{self._count + 1}", daemon=True).start()
                self._count += 1
            except RuntimeError:  # no more threads: one of ours takes it when it is free
                if not self._count:
                    raise
                self._waiting += 1
        self._jobs.put((future, function))
        return future

    def _work(self) -> None:
        context = self._context.copy()
        while (job := self._jobs.get()) is not None:
            future, function = job
            try:
                result, error = context.run(for_thread(function)), None
            except BaseException as raised:
                result, error = None, raised
            try:
                self._loop.call_soon_threadsafe(self._done, future, result, error)
            except RuntimeError:
                return  # the loop is closed, so there is no waiter

    def _done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if self._waiting:
            self._waiting -= 1
        else:
            self._idle += 1
        if future.done():
            return  # abandoned
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def close(self) -> None:
        """Let idle threads end; a busy one ends with its work or with the process."""
        for _ in range(self._count):
            self._jobs.put(None)


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a daemon thread: a process that is interrupted does not wait for it at its end."""
    threads = Threads()
    try:
        return await threads.submit(function)
    finally:
        threads.close()
