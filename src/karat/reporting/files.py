"""Why a file cannot be written, in a sentence that names the remedy."""

from __future__ import annotations

from pathlib import Path

from karat.errors import RequestError


def unwritable(path: str | Path, error: OSError) -> RequestError:
    """The error to raise in place of one that the system raised."""
    folder = Path(path).parent
    reason = f"there is no folder {folder}" if not folder.is_dir() else error.strerror
    return RequestError(f"{path} cannot be written: {reason}")
