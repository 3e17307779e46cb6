"""An exception as the failure that is stored: its type, its message, the lines that matter; bounded."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from karat.errors import KaratError, Stopped
from karat.records import Failure

LONGEST_MESSAGE = 4000

STOPPING: tuple[type[BaseException], ...] = (Stopped, KeyboardInterrupt, GeneratorExit)
"""What is not an item's failure when a task or an evaluator raises it: the stage ends. All else is, also what
does not derive from Exception: SystemExit, a panic in an extension, the outcomes of pytest."""
_KARAT = str(Path(__file__).resolve().parents[1])


def failure_of(error: BaseException) -> Failure:
    """What is kept of an exception that a task or an evaluator raised."""
    message = _message(error).encode("utf-8", "replace").decode()
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]}… ({len(message):,} characters)"
    return Failure(type=type(error).__name__, message=message, where=_where(error), metadata=_history(error))


def _message(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception as broken:  # its `__str__` is a task's code like any other
        return f"{type(error).__name__} (what it says cannot be had: {type(broken).__name__})"


def _where(error: BaseException) -> str:
    """The innermost frames outside karat: file name, line, function."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_KARAT)]
    return " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(own[-3:]))


def _history(error: BaseException) -> dict[str, Any]:
    """What a model call says of its attempts before it gave up."""
    metadata = getattr(error, "metadata", None)
    return metadata if isinstance(error, KaratError) and isinstance(metadata, dict) else {}
