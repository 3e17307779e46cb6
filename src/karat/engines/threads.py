"""Daemon threads for sync code: started on demand, told by a queue, abandoned when they cannot be stopped.

The executor of the standard library joins its threads at exit, so that a stuck call would hang the process;
these are left behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

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
        self._context = contextvars.copy_context()

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Runs a function in a thread, with the context that this object was made in."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._idle > 0:
            self._idle -= 1
        else:
            self._count += 1
            threading.Thread(target=self._work, name=f"karat-{self._count}", daemon=True).start()
        self._jobs.put((future, function))
        return future

    def _work(self) -> None:
        context = self._context.copy()
        while (job := self._jobs.get()) is not None:
            future, function = job
            try:
                result, error = context.run(function), None
            except BaseException as raised:
                result, error = None, raised
            try:
                self._loop.call_soon_threadsafe(self._done, future, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits for this any more

    def _done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._idle += 1
        if future.done():
            return  # abandoned
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def close(self) -> None:
        """Lets the threads end; one that is still busy ends with its work or with the process."""
        for _ in range(self._count):
            self._jobs.put(None)
