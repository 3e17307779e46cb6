"""The plain twin of an async function: works in a script, in a notebook, and inside a running event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def plain(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The plain twin of an async function, with the same parameters: `run` of `run_async`."""

    @functools.wraps(function)
    def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_plain(function(*args, **kwargs))

    twin.__name__ = function.__name__.removesuffix("_async")
    twin.__qualname__ = function.__qualname__.removesuffix("_async")
    return twin


def run_plain(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end; in a thread of its own where a loop is running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    return _in_thread(work)


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    outcome: list[Any] = [None, None]
    started: list[Any] = []
    ready = threading.Event()

    async def main() -> T:
        started.extend((asyncio.get_running_loop(), asyncio.current_task()))
        ready.set()
        return await work

    def target() -> None:
        try:
            outcome[0] = asyncio.run(main())
        except BaseException as error:
            outcome[1] = error
            ready.set()

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(target,), name="karat-stage")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        ready.wait()
        if started:
            started[0].call_soon_threadsafe(started[1].cancel)
        thread.join()
        raise
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]  # type: ignore[no-any-return]  # what the coroutine gave
