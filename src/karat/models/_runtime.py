"""The one background loop of a process: work is handed over from any thread or loop, results are handed back.

Both ways are batched: what one turn of a loop hands over costs one wake-up of the other side. A wake-up is most of what
crossing costs: a system call, and the two threads compete for the interpreter lock from then on.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import sys
import threading
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from karat.errors import RequestError
from karat.models._service import Service

T = TypeVar("T")


class Job(Generic[T]):
    """One piece of work, and where its result goes."""

    __slots__ = ("caller", "cancelled", "coroutine", "future", "task")

    def __init__(self, coroutine: Coroutine[Any, Any, T], future: Any, caller: Caller | None) -> None:
        self.coroutine = coroutine
        self.future = future
        self.caller = caller
        """The event loop that waits for the result; None for a thread that does."""
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False


class Caller:
    """An event loop that hands work to the background loop: its jobs, and the results that come back."""

    __slots__ = ("__weakref__", "_background", "_jobs", "_loop", "_results")

    def __init__(self, loop: asyncio.AbstractEventLoop, background: Background) -> None:
        self._loop = loop
        self._background = background
        self._jobs: list[Job[Any]] = []
        self._results: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()

    def submit(self, job: Job[Any]) -> None:
        """Hand a job over, with the others of this turn of the loop."""
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        jobs, self._jobs = self._jobs, []
        try:
            self._background.begin(jobs)
        except RuntimeError as error:  # the background loop was closed
            for job in jobs:
                job.coroutine.close()
                if not job.future.done():
                    job.future.set_exception(error)

    def add(self, future: asyncio.Future[Any], value: object, error: BaseException | None) -> bool:
        """Add a result, in the background thread; returns whether the loop has to be woken."""
        self._results.append((future, value, error))
        return len(self._results) == 1

    def wake(self) -> None:
        """Let the loop take its results, from the background thread."""
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # that loop has ended, so there is no waiter
            self._results.clear()

    def _deliver(self) -> None:
        results = self._results
        while results:
            future, value, error = results.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


class Background:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._inbox: deque[Job[Any]] = deque()
        self._awake = False
        self._ended = False
        self._callers: WeakKeyDictionary[asyncio.AbstractEventLoop, Caller] = WeakKeyDictionary()
        self._to_wake: list[Caller] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.thread = threading.Thread(target=self._run, name="karat-models", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work on the background loop, for a coroutine of any loop; cancelling cancels the work."""
        loop = asyncio.get_running_loop()
        if loop is self.loop:
            return await work
        caller = self._callers.get(loop)
        if caller is None:
            caller = self._callers[loop] = Caller(loop, self)
        future: asyncio.Future[T] = loop.create_future()
        job = Job(work, future, caller)
        caller.submit(job)
        try:
            return await future
        except asyncio.CancelledError:
            with suppress(RuntimeError):  # the background loop has ended, and the work with it
                self.loop.call_soon_threadsafe(self._cancel, job)
            raise

    def call_sync(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work on the background loop, for a thread, which waits."""
        if threading.current_thread() is self.thread:
            work.close()
            raise RequestError("generate_sync cannot be used inside karat's own loop: await generate instead")
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        job = Job(work, future, None)
        self.begin([job])
        try:
            return future.result()
        except BaseException:
            if not future.done():  # KeyboardInterrupt while waiting
                with suppress(RuntimeError):  # as above
                    self.loop.call_soon_threadsafe(self._cancel, job)
            raise

    def begin(self, jobs: list[Job[Any]]) -> None:
        """Begin jobs, from any thread."""
        self._inbox.extend(jobs)
        if self._ended:
            self._refuse()
        elif not self._awake:
            self._awake = True
            self.loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._awake = (
            False  # before the inbox is emptied: a job that is added from now on wakes this loop again
        )
        inbox = self._inbox
        while inbox and not self._ended:
            job = inbox.popleft()
            if job.cancelled:
                job.coroutine.close()
                continue
            job.task = self.loop.create_task(self._work(job))
            self._tasks.add(job.task)

    async def _work(self, job: Job[Any]) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = await job.coroutine
        except asyncio.CancelledError:
            error = concurrent.futures.CancelledError() if job.caller is None else asyncio.CancelledError()
        except BaseException as raised:
            error = raised
        # Not as a callback of the task, which would be one more turn of the loop for every call.
        self._tasks.discard(job.task)
        if job.caller is not None:
            if job.caller.add(job.future, value, error):
                if not self._to_wake:
                    self.loop.call_soon(self._wake_callers)
                self._to_wake.append(job.caller)
        elif not job.future.done():
            if error is None:
                job.future.set_result(value)
            else:
                job.future.set_exception(error)

    def _wake_callers(self) -> None:
        callers, self._to_wake = self._to_wake, []
        for caller in callers:
            caller.wake()

    def _cancel(self, job: Job[Any]) -> None:
        if job.task is None:  # it is on its way here
            job.cancelled = True
            return
        # A task that is cancelled before its first step never enters `_work`.
        job.task.add_done_callback(self._tasks.discard)
        job.task.add_done_callback(lambda _: job.coroutine.close())
        job.task.cancel()

    def cancel_all(self) -> None:
        """Cancel what is in flight and wait until it has ended."""
        if self.thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self.loop).result()

    async def _cancel_all(self) -> None:
        self._begin()  # Ctrl-C may have come before this loop was woken, which would then wait for ever
        await asyncio.sleep(0)  # a task that is cancelled before its first step never reaches its end
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """End the thread and the loop; jobs that other threads submit during this are cancelled."""
        self._ended = True
        self.cancel_all()
        if self.thread.is_alive():
            # Python 3.12 starts no thread at its end, not even to wait for others.
            with suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(self.loop.shutdown_default_executor(), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
        self.loop.close()
        self._refuse()

    def _refuse(self) -> None:
        """Cancel the jobs that came too late: nothing else would start them."""
        with suppress(IndexError):  # another thread may do the same
            while True:
                job = self._inbox.popleft()
                job.coroutine.close()
                if job.caller is None:
                    job.future.set_exception(concurrent.futures.CancelledError())
                elif job.caller.add(job.future, None, asyncio.CancelledError()):
                    job.caller.wake()


class Shared:
    """A background loop with a service on it."""

    def __init__(self) -> None:
        self.background = Background()
        self.service = self.background.call_sync(_make())

    def close(self) -> None:
        """Cancel what is in flight, keep what is finished, end the thread."""
        self.background.cancel_all()
        self.background.call_sync(self.service.aclose())
        self.background.stop()
        local = sys.modules.get("karat.models.providers._local")
        if local is not None:
            local.unload()


async def _make() -> Service:
    return Service()


_shared: Shared | None = None
_starting = threading.Lock()
_forgotten: list[Shared] = []


def shared() -> Shared:
    """The background loop and the service of this process."""
    global _shared
    if _shared is None:
        with _starting:
            if _shared is None:
                _shared = Shared()
    return _shared


def close() -> None:
    """End the background loop: calls in flight are cancelled, finished replies are kept."""
    global _shared
    with _starting:
        ending, _shared = _shared, None
    if ending is not None:
        ending.close()


async def aclose() -> None:
    """As `close`, for a coroutine."""
    await asyncio.get_running_loop().run_in_executor(None, close)


def _forget() -> None:
    # In a forked child the thread is gone and the connections are the parent's: they are kept, untouched.
    global _shared, _starting
    _starting = threading.Lock()
    if _shared is not None:
        _forgotten.append(_shared)
        _shared = None


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
