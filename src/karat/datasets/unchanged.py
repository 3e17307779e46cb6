"""A file that is read several times and has to be the same each time.

A dataset is immutable but a file is not. Each block of the file is hashed when it is first read; when a later
pass meets another content there, it stops before a single row of it is seen. A hash per mebibyte is all that
is kept, and a file that was merely touched is still the same file.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from karat.errors import DataError, did_you_mean, nearest

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK = 1 << 20


class UnchangedFile:
    """A regular file as it was when first opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = _size_of_regular_file(path)
        self.blocks: dict[int, bytes] = {}

    def open(self) -> io.BufferedReader:
        """The file from its beginning. Each call is independent of the others."""
        return io.BufferedReader(_Reader(self), buffer_size=BLOCK)

    def check(self, start: int, data: bytes, size: int) -> None:
        """Refuse a block that is not what it was, and a file that has another size."""
        digest = hashlib.blake2b(data, digest_size=16).digest()
        same = self.blocks.setdefault(start, digest) == digest
        if not same or size != self.size or len(data) != max(0, min(BLOCK, self.size - start)):
            raise DataError(f"{self.path} has changed since it was first read: make the dataset anew")


class _Reader(io.RawIOBase):
    """Reads block by block, whatever is asked for, so that every byte handed out was checked."""

    def __init__(self, source: UnchangedFile) -> None:
        self._source = source
        try:
            self._file = open(source.path, "rb", buffering=0)  # noqa: SIM115 - closed in close()
        except OSError as error:
            raise DataError(f"{source.path} cannot be read: {error.strerror}") from error
        self._position = 0
        self._start = -1
        self._block = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        start = self._position - self._position % BLOCK
        if start != self._start:
            self._load(start)
        view = memoryview(buffer).cast("B")
        offset = self._position - start
        data = self._block[offset : offset + len(view)]
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _load(self, start: int) -> None:
        try:
            self._file.seek(start)
            data = b""
            while len(data) < BLOCK and (more := self._file.read(BLOCK - len(data))):
                data += more
            size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise DataError(f"{self._source.path} cannot be read: {error.strerror}") from error
        self._source.check(start, data, size)
        self._start, self._block = start, data

    def close(self) -> None:
        file = getattr(self, "_file", None)  # absent where opening failed
        if file is not None:
            file.close()
        super().close()


def _size_of_regular_file(path: Path) -> int:
    if "\0" in str(path):
        raise DataError(f"{str(path)!r} cannot be read: a path holds no NUL")
    try:
        if path.is_file():
            return path.stat().st_size
        exists = path.exists()
        siblings = [] if exists else [entry.name for entry in os.scandir(path.parent) if entry.is_file()]
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: there is no folder {path.parent}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if exists:
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise DataError(f"{path} is {kind}: give the path of a file")
    hint = f": {did_you_mean(path.name, siblings)}" if nearest(path.name, siblings) else ""
    raise DataError(f"{path} does not exist{hint}")
