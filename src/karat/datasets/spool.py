"""Encoded examples, a line each: in memory while they are few, in a temporary file beyond."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Iterator

IN_MEMORY = 8 << 20
_BLOCK = 1 << 20


class Spool:
    """Lines that are written once, then read any number of times, also at once. Gone with its last reader."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - closed when collected
        self._lock = threading.Lock()
        weakref.finalize(self, self._file.close)

    def append(self, line: bytes) -> None:
        """Add a line, which has no line break in it."""
        with self._lock:
            self._file.seek(0, 2)
            self._file.write(line)
            self._file.write(b"\n")

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        position = 0
        while True:
            with self._lock:
                self._file.seek(position)
                block = self._file.read(_BLOCK)
            if not block:
                return
            position += len(block)
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            yield from lines
