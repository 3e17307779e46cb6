"""The one background loop of a process: work is handed over from any thread or loop, results are handed back.

Both ways are batched: many hand-overs cost one wake-up of the other side, which is most of what crossing costs.
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
from typing import Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from karat.errors import RequestError
from karat.models._service import Service

T = TypeVar("T")


class Job(Generic[T]):
    """One piece of work, and where its result goes."""

    __slots__ = ("coroutine", "future", "returns", "task")

    def __init__(self, coroutine: Coroutine[Any, Any, T], future: Any, returns: Returns | None) -> None:
        self.coroutine = coroutine
        self.future = future
        self.returns = returns
        self.task: asyncio.Task[None] | None = None


class Returns:
    """Results on their way back to one event loop."""

    __slots__ = ("__weakref__", "_awake", "_items", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._awake = False

    def add(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        """Hands a result over, from the background thread."""
        self._items.append((future, value, error))
        if not self._awake:
            self._awake = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # that loop has ended, so there is no waiter
                self._items.clear()

    def _deliver(self) -> None:
        # Cleared before the queue is emptied: what is added from now on wakes us again.
        self._awake = False
        items = self._items
        while items:
            future, value, error = items.popleft()
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
        self._returns: WeakKeyDictionary[asyncio.AbstractEventLoop, Returns] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self.thread = threading.Thread(target=self._run, name="karat-models", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Does the work on the background loop, for a coroutine of any loop; cancelling cancels the work."""
        loop = asyncio.get_running_loop()
        if loop is self.loop:
            return await work
        returns = self._returns.get(loop)
        if returns is None:
            returns = self._returns[loop] = Returns(loop)
        future: asyncio.Future[T] = loop.create_future()
        job = Job(work, future, returns)
        self._submit(job)
        try:
            return await future
        except asyncio.CancelledError:
            self.loop.call_soon_threadsafe(self._cancel, job)
            raise

    def call_sync(self, work: Coroutine[Any, Any, T]) -> T:
        """Does the work on the background loop, for a thread, which waits."""
        if threading.current_thread() is self.thread:
            work.close()
            raise RequestError("generate_sync cannot be used inside karat's own loop: await generate instead")
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        job = Job(work, future, None)
        self._submit(job)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # KeyboardInterrupt while waiting
                self.loop.call_soon_threadsafe(self._cancel, job)
            raise

    def _submit(self, job: Job[Any]) -> None:
        self._inbox.append(job)
        if not self._awake:
            self._awake = True
            self.loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._awake = False
        inbox = self._inbox
        while inbox:
            job = inbox.popleft()
            job.task = self.loop.create_task(self._work(job))
            self._tasks.add(job.task)

    async def _work(self, job: Job[Any]) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = await job.coroutine
        except asyncio.CancelledError:
            error = concurrent.futures.CancelledError() if job.returns is None else asyncio.CancelledError()
        except BaseException as raised:
            error = raised
        # Not as a callback of the task, which would be one more turn of the loop for every call.
        self._tasks.discard(cast("asyncio.Task[None]", job.task))
        if job.returns is not None:
            job.returns.add(job.future, value, error)
        elif not job.future.done():
            if error is None:
                job.future.set_result(value)
            else:
                job.future.set_exception(error)

    def _cancel(self, job: Job[Any]) -> None:
        assert job.task is not None  # it was begun by a callback scheduled before this one
        # A task that is cancelled before its first step never enters `_work`.
        job.task.add_done_callback(self._tasks.discard)
        job.task.add_done_callback(lambda _: job.coroutine.close())
        job.task.cancel()

    def cancel_all(self) -> None:
        """Cancels what is under way and waits until it has ended."""
        if self.thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self.loop).result()

    async def _cancel_all(self) -> None:
        await asyncio.sleep(0)  # a task that is cancelled before its first step never reaches its end
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Ends the thread and the loop."""
        if self.thread.is_alive():
            # Python 3.12 starts no thread at its end, not even to wait for others.
            with suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(self.loop.shutdown_default_executor(), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
        self.loop.close()


class Shared:
    """A background loop with a service on it."""

    def __init__(self) -> None:
        self.background = Background()
        self.service = self.background.call_sync(_make())

    def close(self) -> None:
        """Cancels what is under way, keeps what is finished, ends the thread."""
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
    """Ends the background loop: calls under way are cancelled, answers already there are kept."""
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
