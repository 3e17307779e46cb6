"""An exception as the failure that is stored: its type, its message, the lines that matter; bounded."""

from __future__ import annotations

import asyncio
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from karat.errors import KaratError, Stopped
from karat.records import Failure

LONGEST_MESSAGE = 4000

STOPPING: tuple[type[BaseException], ...] = (Stopped, KeyboardInterrupt, GeneratorExit)
"""Exceptions that end the stage. Everything else that a task or an evaluator raises is a failure of its item, also
what does not derive from Exception: SystemExit, a panic in an extension, the outcomes of pytest."""

_KARAT = str(Path(__file__).resolve().parents[1])


def item_failure(error: BaseException) -> Failure:
    """The failure of an item whose code raised; raises the error again where it ends the stage instead."""
    if isinstance(error, STOPPING) or (isinstance(error, asyncio.CancelledError) and _is_cancelled()):
        raise error
    return failure_of(error)


def _is_cancelled() -> bool:
    """Whether the stage is being cancelled: a task may also raise CancelledError by itself."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False  # in a thread
    return task is not None and task.cancelling() > 0


def failure_of(error: BaseException) -> Failure:
    """The stored form of an exception that a task or an evaluator raised."""
    message = _message(error).encode("utf-8", "replace").decode()
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]}… ({len(message):,} characters)"
    return Failure(type=type(error).__name__, message=message, where=_where(error), metadata=_history(error))


def _message(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception as broken:  # its `__str__` is a task's code like any other
        return f"{type(error).__name__} (its message cannot be read: {type(broken).__name__})"


def _where(error: BaseException) -> str:
    """The innermost frames outside karat, the user's own first: file name, line, function."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_KARAT)]
    frames.reverse()
    own = [frame for frame in frames if not _is_library(frame.filename)][:2]
    shown = own + [frame for frame in frames if frame not in own][: 3 - len(own)]
    return " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in shown)


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _is_library(filename: str) -> bool:
    return filename.startswith(("<frozen", *_LIBRARIES)) or "site-packages" in filename


def _history(error: BaseException) -> dict[str, Any]:
    """What a failed model call records about its attempts."""
    metadata = getattr(error, "metadata", None)
    return metadata if isinstance(error, KaratError) and isinstance(metadata, dict) else {}
