"""Async code that does not let itself be stopped: nobody waits for it, as nobody waits for a stuck thread."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterable
from typing import Any

_left: set[asyncio.Task[Any]] = set()


def leave_behind(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Lets the event loop end without these tasks; each is forgotten when it ends after all."""
    for task in tasks:
        if not task.done():
            _hold()
            _left.add(task)
            task.add_done_callback(_left.discard)
            asyncio.tasks._unregister_task(task)  # or `asyncio.run` would wait for it for ever


def any_left() -> bool:
    """Whether some task was left behind and goes on."""
    return bool(_left)


@functools.cache
def _hold() -> None:
    """Holds what is left beyond the end of the interpreter, in the frame of a thread that is never joined.

    What is not held is closed when it is collected; and closing code that goes on whatever it is told takes for ever.
    """
    threading.Thread(target=lambda _: threading.Event().wait(), args=(_left,), daemon=True).start()
