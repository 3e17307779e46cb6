"""A file beside the reply cache that holds the replies which are received and not yet committed.

Commits are grouped, so a reply waits up to some milliseconds for its commit. It is copied into this file before it is
used: what is there survives the end of the process, though not of the machine. Each process has files of its own and
holds locks on them; the next process that opens the cache moves the replies of dead processes into the cache.

The file is mapped into memory. A system call for each reply would cost as much as the rest of the journal, and would
release the interpreter lock each time.
"""

from __future__ import annotations

import contextlib
import mmap
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
except ImportError:  # not POSIX: a reply is stored when it is committed
    fcntl = None  # type: ignore[assignment]

SIZE = 1 << 20
"""Bytes of a file: some thousand replies. A file that is full is followed by another one."""

_HEAD = struct.Struct("<4sII")
_MARK = b"krj1"
_END = bytes(_HEAD.size)
"""Follows the last row: what is behind it was committed before the file was emptied."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, str, float, float, str]).decode

Row = tuple[bytes, str, float, float, str]
"""Key, model, time, seconds and body, as the cache stores them."""


class Journal:
    """One file of rows."""

    def __init__(self, cache: Path, size: int = SIZE) -> None:
        self.end = 0
        """Where the next row goes."""
        self.uncommitted = 0
        """Rows that are not committed."""
        self._size = size
        name = f"{cache.name}.{os.getpid()}-{secrets.token_hex(4)}.journal"
        self.path = cache.with_name(name)
        draft = cache.with_name(f".{name}")
        self._file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Written, not only extended: a page without space on the disk would end the process when it is used.
            written = 0
            while written < size:
                written += os.write(self._file, bytes(size - written))
            self._memory = mmap.mmap(self._file, size)
            os.rename(draft, self.path)  # locked before another process can find it
        except OSError:
            os.close(self._file)
            with contextlib.suppress(OSError):
                draft.unlink()
            raise

    def put(self, frame: bytes) -> bool:
        """Append a row that `frame_of` made; False if there is no room for it."""
        start, end = self.end, self.end + len(frame)
        if end > self._size:
            return False
        self._memory[start:end] = frame
        self.end = end - len(_END)
        self.uncommitted += 1
        return True

    def clear(self) -> None:
        """Empty the file: everything in it is committed."""
        self._memory[: len(_END)] = _END
        self.end = 0

    def close(self) -> None:
        """Remove the file: everything in it is committed."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self._memory.close()
        os.close(self._file)


def frame_of(row: Row) -> bytes:
    """A row as it stands in the file, followed by the mark of its end."""
    payload = _encode(row)
    return _HEAD.pack(_MARK, len(payload), zlib.crc32(payload)) + payload + _END


class Journals:
    """The files of one cache in this process; rows go to the last one."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._files: list[Journal] = []
        self._usable = fcntl is not None

    def put(self, row: Row) -> Journal | None:
        """Append a row; None where no file can be written: the row is then stored by its commit alone."""
        if not self._usable:
            return None
        frame = frame_of(row)
        files = self._files
        if not files or not files[-1].put(frame):
            try:
                files.append(Journal(self._cache, max(SIZE, len(frame))))
            except OSError:
                self._usable = False
                return None
            files[-1].put(frame)
        return files[-1]

    def committed(self, journal: Journal) -> None:
        """Note that a row is committed. A file without other rows is emptied, or removed if a later one is used."""
        journal.uncommitted -= 1
        if (
            journal.uncommitted == 0 and self._files
        ):  # none: closed, before the event loop heard of the last commits
            if journal is self._files[-1]:
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
