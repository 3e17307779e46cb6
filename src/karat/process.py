"""The process of a stage while it works: signals that end it cleanly, and fewer garbage collections.

Apart from `karat.sync`, because the command line needs the signals before it imports asyncio.
"""

from __future__ import annotations

import _thread
import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

THRESHOLDS = (20_000, 50, 100)
"""A stage creates and drops objects by the thousand, nearly none of them in cycles. A collection at every 700th object,
the default of Python, took a sixth of the CPU time of a record with a model call."""

_lock = _thread.allocate_lock()
_working = 0
_before = gc.get_threshold()


def catch_ending_signals() -> dict[int, Any]:
    """Let SIGTERM and SIGHUP act like Ctrl-C: finished items are stored, and the same command continues.

    Only in the main thread, and only in place of the default action: SIGHUP stays ignored under nohup, and a handler
    that the program has installed stays. Return the handlers that were replaced.
    """
    replaced: dict[int, Any] = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            with suppress(ValueError):  # not the main thread
                replaced[number] = signal.signal(number, _interrupt)
    return replaced


@contextmanager
def ending_signals() -> Iterator[None]:
    """While entered, SIGTERM and SIGHUP act like Ctrl-C."""
    replaced = catch_ending_signals()
    try:
        yield
    finally:
        for number, before in replaced.items():
            signal.signal(number, before)


_cancel: Callable[[], None] | None = None
"""Cancels the work of the main thread's event loop, where Ctrl-C is ignored and so the loop has no handler of it."""


@contextmanager
def cancelled_by_signals(cancel: Callable[[], None]) -> Iterator[None]:
    """While entered, the first SIGTERM or SIGHUP calls `cancel` if a shell has made SIGINT ignored.

    KeyboardInterrupt would be raised wherever the main thread is just then: in the middle of a commit, for example.
    """
    global _cancel
    import threading  # by now asyncio has imported it

    ignored = threading.current_thread() is threading.main_thread() and not callable(
        signal.getsignal(signal.SIGINT)
    )
    before, _cancel = _cancel, cancel if ignored else _cancel
    try:
        yield
    finally:
        _cancel = before


def _interrupt(number: int, frame: Any) -> None:
    global _cancel
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)  # the event loop's, while a stage works: it cancels the stage
    elif _cancel is not None:
        cancel, _cancel = _cancel, None
        cancel()
    else:
        raise KeyboardInterrupt


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Raise the thresholds while at least one stage works, in any thread; they are restored at the end."""
    global _working, _before
    with _lock:
        _working += 1
        if _working == 1:
            _before = gc.get_threshold()
            if _before[0] and _before[0] < THRESHOLDS[0]:  # 0: the user has switched it off
                gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        with _lock:
            _working -= 1
            if _working == 0:
                gc.set_threshold(*_before)
