"""Abandoned asyncio tasks: those that ignore cancellation. Like stuck threads, they are not waited for."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterable
from typing import Any

_left: set[asyncio.Task[Any]] = set()


def abandon(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Let the event loop end without these tasks; each is dropped if it ends after all."""
    for task in tasks:
        if not task.done():
            _hold()
            _left.add(task)
            task.add_done_callback(_left.discard)
            asyncio.tasks._unregister_task(task)  # or `asyncio.run` would wait for it for ever


def any_abandoned() -> bool:
    """Whether an abandoned task is still running."""
    return bool(_left)


@functools.cache
def _hold() -> None:
    """Keep a reference beyond the end of the interpreter, in the frame of a thread that is never joined.

    A coroutine without a reference is closed when it is collected, and closing one that ignores cancellation never
    ends.
    """
    threading.Thread(target=lambda _: threading.Event().wait(), args=(_left,), daemon=True).start()
