"""A file beside the reply cache that holds the replies which are received and not yet committed.

Commits are grouped, so a reply waits up to some milliseconds for its commit. It is appended to this file before it is
used: what is written survives the end of the process, though not of the machine. Each process has a file of its own
and holds a lock on it; the next process that opens the cache moves the replies of dead processes into the cache.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

try:
    import fcntl
except ImportError:  # not POSIX: replies are kept when they are committed
    fcntl = None  # type: ignore[assignment]

LARGEST = 8 << 20
"""Bytes after which another file is begun: under constant load there is always a reply to be committed."""

_HEAD = struct.Struct("<4sII")
_MARK = b"krj1"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, str, float, float, str]).decode

Row = tuple[bytes, str, float, float, str]
"""Key, model, time, seconds and body, as the cache stores them."""


class Journal:
    """One file of rows."""

    def __init__(self, cache: Path) -> None:
        self.size = 0
        self.left = 0
        """Rows that are not committed."""
        name = f"{cache.name}.{os.getpid()}-{secrets.token_hex(4)}.journal"
        self.path = cache.with_name(name)
        draft = cache.with_name(f".{name}")
        self._file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(draft, self.path)  # locked before anyone can find it
        except OSError:
            os.close(self._file)
            with contextlib.suppress(OSError):
                draft.unlink()
            raise

    def put(self, row: Row) -> None:
        """Append a row."""
        payload = _encode(row)
        frame = _HEAD.pack(_MARK, len(payload), zlib.crc32(payload)) + payload
        self.left += 1
        self.size += os.write(self._file, frame)

    def clear(self) -> None:
        """Empty the file: everything in it is committed."""
        os.ftruncate(self._file, 0)
        self.size = 0

    def close(self) -> None:
        """Remove the file: everything in it is committed."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._file)


class Journals:
    """The files of one cache in this process; the last one is written."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._files: list[Journal] = []
        self._usable = fcntl is not None

    def put(self, row: Row) -> Journal | None:
        """Append a row; None where no file can be written: the row is then kept by its commit alone."""
        if not self._usable:
            return None
        try:
            if not self._files or self._files[-1].size > LARGEST:
                self._files.append(Journal(self._cache))
            self._files[-1].put(row)
        except OSError:
            self._usable = False
            return None
        return self._files[-1]

    def done(self, journal: Journal | None) -> None:
        """One row of a file is committed; a file without others is emptied, or removed where a later one is written."""
        if journal is None:
            return
        journal.left -= 1
        if journal.left == 0 and journal in self._files:
            if journal is self._files[-1]:
                with contextlib.suppress(OSError):
                    journal.clear()
            else:
                self._files.remove(journal)
                journal.close()

    def close(self) -> None:
        """Remove the files: everything is committed."""
        for each in self._files:
            each.close()
        self._files = []


def recovered(cache: Path) -> Iterator[list[Row]]:
    """The rows that dead processes left, file by file; a file is removed when its rows have been taken."""
    if fcntl is None:
        return
    for path in sorted(cache.parent.glob(f"{cache.name}.*.journal")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the owner lives
            yield list(_rows(file.read()))
            path.unlink(missing_ok=True)


def _rows(content: bytes) -> Iterator[Row]:
    """The complete rows of a file; the process may have ended in the middle of the last one."""
    at = 0
    while at + _HEAD.size <= len(content):
        mark, size, check = _HEAD.unpack_from(content, at)
        payload: Any = content[at + _HEAD.size : at + _HEAD.size + size]
        if mark != _MARK or len(payload) != size or zlib.crc32(payload) != check:
            return
        try:
            yield _decode(payload)
        except msgspec.MsgspecError:
            return
        at += _HEAD.size + size
