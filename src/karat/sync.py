"""The synchronous twin of an async function: for scripts, for notebooks, and inside a running event loop.

The first Ctrl-C cancels the work, and so do SIGTERM and SIGHUP: finished items are stored, and the same command
continues.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import re
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar

from karat.errors import nearest
from karat.process import cancelled_by_signals, ending_signals

T = TypeVar("T")
P = ParamSpec("P")

WAKE_SECONDS = 1.0
"""How often a thread that waits for a stage checks for Ctrl-C."""

PATIENCE_SECONDS = 1.0
"""How long asyncio tasks that a user's task started may take to clean up when the stage is over."""


def sync_twin(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The synchronous twin of an async function, with the same parameters: `run` of `run_async`."""

    name = function.__name__.removesuffix("_async")

    @functools.wraps(function)
    def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            work = function(*args, **kwargs)
        except TypeError as error:  # of the arguments: nothing of an async function has run yet
            raise TypeError(_in_words_of(name, function, error)) from None
        return run_plain(work)

    twin.__name__ = name
    twin.__qualname__ = function.__qualname__.removesuffix("_async")
    return twin


def _in_words_of(name: str, function: Callable[..., Any], error: TypeError) -> str:
    """Python's message about wrong arguments, naming the function that was called and the nearest right name."""
    message = str(error).partition(". Did you mean")[0].replace(f"{function.__name__}()", f"{name}()")
    unexpected = re.search(r"unexpected keyword argument '(\w+)'$", message)
    close = nearest(unexpected[1], inspect.signature(function).parameters, 1) if unexpected else []
    return f"{message}: did you mean {close[0]!r}?" if close else message


def run_plain(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion, in a separate thread if an event loop is already running."""
    with ending_signals():
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            begin = _run  # called below: a failure of the work is not one "during handling" of this error
        else:
            begin = _in_thread
        return begin(work)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, but without waiting for tasks that ignore cancellation or for threads that are stuck.

    The first Ctrl-C cancels the work; a second one, while the work ends, raises KeyboardInterrupt here.
    """
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop = runner.get_loop()
    result: list[T] = []
    interrupted = False

    async def main() -> None:
        task = asyncio.current_task()

        def cancel() -> None:
            nonlocal interrupted
            interrupted = True
            assert task is not None
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # wakes the loop: a signal alone does not

        with cancelled_by_signals(cancel):
            # Not returned: `signal.signal`, which the runner calls at its end, formats the task with what it returned.
            result.append(await work)

    try:
        runner.run(main())
        return result[0]
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()  # before the loop goes on: the next step of one may block it
        try:
            loop.run_until_complete(_end(tasks))
        finally:
            abandon(tasks)
            loop.close()


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait PATIENCE_SECONDS for cancelled tasks, and abandon the rest."""
    if tasks:
        await asyncio.wait(tasks, timeout=PATIENCE_SECONDS)
    abandon(tasks)
    if not _abandoned:  # what is left may be inside of its generators, which then cannot be closed
        closing = asyncio.ensure_future(asyncio.get_running_loop().shutdown_asyncgens())
        await asyncio.wait([closing], timeout=PATIENCE_SECONDS)
        abandon([closing])


_abandoned: set[asyncio.Task[Any]] = set()
"""Tasks that ignore cancellation. Like stuck threads, they are not waited for."""


def abandon(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Let the event loop end without these tasks; each is dropped if it ends after all."""
    for task in tasks:
        if not task.done():
            _hold()
            _abandoned.add(task)
            task.add_done_callback(_abandoned.discard)
            asyncio.tasks._unregister_task(task)  # or `asyncio.run` would wait for it for ever


@functools.cache
def _hold() -> None:
    """Keep a reference beyond the end of the interpreter, in the frame of a thread that is never joined.

    A coroutine without a reference is closed when it is collected, and closing one that ignores cancellation never
    ends.
    """
    threading.Thread(target=lambda _: threading.Event().wait(), args=(_abandoned,), daemon=True).start()


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    outcome: list[Any] = [None, None]
    started: list[Any] = []
    ready, over = threading.Event(), threading.Event()

    async def main() -> T:
        started.extend((asyncio.get_running_loop(), asyncio.current_task()))
        ready.set()
        return await work

    def target() -> None:
        try:
            outcome[0] = _run(main())
        except BaseException as error:
            outcome[1] = error
            ready.set()
        finally:
            over.set()

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(target,), name="karat-stage")
    try:
        thread.start()
        # Not `join`, which takes the thread for ended when it is interrupted (CPython 3.11, 3.12); and not for ever: a
        # signal that comes just before a thread begins to wait for a lock does not wake it.
        while not over.wait(WAKE_SECONDS):
            pass
    except KeyboardInterrupt:
        if ready.wait(WAKE_SECONDS) and started:
            started[0].call_soon_threadsafe(started[1].cancel)
            over.wait()
        raise
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]  # type: ignore[no-any-return]  # what the coroutine gave
