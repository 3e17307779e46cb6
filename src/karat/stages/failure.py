"""An exception as the failure that is stored: its type, its message, the lines that matter; bounded."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from karat.errors import KaratError
from karat.records import Failure

LONGEST_MESSAGE = 4000
_KARAT = str(Path(__file__).resolve().parents[1])


def failure_of(error: BaseException) -> Failure:
    """What is kept of an exception that a task or an evaluator raised."""
    message = str(error) or type(error).__name__
    message = message.encode("utf-8", "replace").decode()
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]}… ({len(message):,} characters)"
    return Failure(type=type(error).__name__, message=message, where=_where(error), metadata=_history(error))


def _where(error: BaseException) -> str:
    """The innermost frames outside karat: file name, line, function."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_KARAT)]
    return " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(own[-3:]))


def _history(error: BaseException) -> dict[str, Any]:
    """What a model call says of its attempts before it gave up."""
    metadata = getattr(error, "metadata", None)
    return metadata if isinstance(error, KaratError) and isinstance(metadata, dict) else {}
