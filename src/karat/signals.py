"""SIGTERM and SIGHUP end a stage as Ctrl-C does: finished items are stored, and the same command continues.

Apart from `karat.sync`, because the command line needs it before it imports asyncio.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ending_signals() -> Iterator[None]:
    """While entered, SIGTERM and SIGHUP act like Ctrl-C.

    Only in the main thread, and only in place of the default action: SIGHUP stays ignored under nohup, and a handler
    that the program has installed stays.
    """
    replaced: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                replaced[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, before in replaced.items():
            signal.signal(number, before)


def _interrupt(number: int, frame: Any) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)  # the event loop's, while a stage works: it cancels the stage
    else:
        raise KeyboardInterrupt  # a shell starts background commands with SIGINT ignored
