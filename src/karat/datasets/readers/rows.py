"""Rows of a file in any format: the choice of the reader, and rows that cannot be read.

A reader is a generator of `(line, row)`. A row is made of JSON values; one that cannot be read is a BadRow in
its place, so that reading may go on after it. What cannot be read past is raised as a DataError.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast, final

import msgspec

from karat.errors import DataError, RequestError, did_you_mean, near_file

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


FORMATS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".tsv": "tsv",
}

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

MAX_ROW = 1 << 26
"""Bytes of one row: a compressed file of a few kilobytes may hold a line that no memory can."""


@final
class BadRow(msgspec.Struct, frozen=True):
    """A row that cannot be used, with its line and the reason."""

    line: int
    """Line of a text file, or row of a Parquet file, counted from 1."""
    column: int | None
    """Character in the line, counted from 1; None where the whole row is meant."""
    reason: str

    def sentence(self, source: str, unit: str = "line") -> str:
        """The message of an error about the row: the file, the place and the reason."""
        column = f", column {self.column}" if self.column is not None else ""
        return f"{source} {unit} {self.line}{column}: {self.reason}"


Rows = Iterator[tuple[int, Any]]


class RowSource:
    """A file of rows, to be read as often as needed."""

    def __init__(self, path: Path, format: str | None = None) -> None:
        self.path = path
        self.format = _format_of(path, format)
        self._compressed = path.suffix.lower() == ".gz"
        self._file = UnchangedFile(path)
        if self._compressed and self.format == "parquet":
            raise DataError(
                f"{path} is a compressed Parquet file: decompress it, Parquet compresses by itself"
            )
        if self._file.size == 0:
            raise DataError(f"{path} is empty: it needs a {self.unit} for each example")

    @property
    def unit(self) -> str:
        """The unit of row numbers: a line, or a row of a Parquet file."""
        return "row" if self.format == "parquet" else "line"

    @property
    def stem(self) -> str:
        """The file's name without its endings."""
        name = self.path.name[:-3] if self._compressed else self.path.name
        return Path(name).stem if Path(name).suffix.lower() in FORMATS else name

    def read(self, *, check_keys: bool = True) -> Rows:
        """All rows with their lines. Raises when the file is no longer what it was.

        `check_keys=False` reads again a file in which no row had a duplicate key.
        """
        reader = _reader(self.format, check_keys)
        with self._open() as file:
            _refuse_other_encodings(file, self)
            rows = reader(file, str(self.path))
            try:
                yield from rows
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(f"{self.path} is not an intact gzip file: {error}") from error

    @contextmanager
    def _open(self) -> Iterator[io.BufferedReader]:
        with self._file.open() as file:
            if not self._compressed:
                yield file
                return
            # Iterating a GzipFile costs a Python call per line; a BufferedReader around it does not.
            plain = cast(Any, gzip.GzipFile(fileobj=file, mode="rb"))
            with io.BufferedReader(plain, buffer_size=1 << 18) as buffered:
                yield buffered


def bounded_lines(file: BinaryIO, source: str) -> Iterator[tuple[int, bytes]]:
    """Number and yield the lines of a file; a line that is longer than a row may be is a DataError."""
    for number, line in enumerate(iter(partial(file.readline, MAX_ROW + 1), b""), 1):
        if len(line) > MAX_ROW:
            raise DataError(f"{source} line {number}: {too_large()}")
        yield number, line


def too_large() -> str:
    """The reason why a row is refused for its size."""
    return f"a row has more than {MAX_ROW >> 20} MiB: split it, or keep large content in files of its own"


def undecodable(error: UnicodeDecodeError, offset: int) -> str:
    """The reason why bytes are not text; `offset` is where they begin in the file."""
    byte = error.object[error.start]
    return f"byte 0x{byte:02x} at offset {offset + error.start} is not UTF-8: convert the file to UTF-8"


def _reader(format: str, check_keys: bool) -> Callable[[BinaryIO, str], Rows]:
    # Imported here: each format needs modules that the others do not.
    if format in ("json", "jsonl"):
        from karat.datasets.readers.json import read_json, read_jsonl

        return partial(read_json if format == "json" else read_jsonl, check_keys=check_keys)
    if format == "parquet":
        from karat.datasets.readers.parquet import read_parquet

        return read_parquet
    from karat.datasets.readers.csv import read_csv, read_tsv

    return read_tsv if format == "tsv" else read_csv


def _format_of(path: Path, format: str | None) -> str:
    known = sorted(set(FORMATS.values()))
    if format is not None:
        if format not in known:
            raise RequestError(f"format {format!r} cannot be read: {did_you_mean(format, known)}")
        return format
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in FORMATS:
        if not os.path.isfile(path):
            UnchangedFile(path)  # says that there is none, and what is near
        ending = f"the ending {suffix!r} is not known" if suffix else "it has no ending"
        raise DataError(
            f"{path}: {ending} ({did_you_mean(suffix, FORMATS)}); rename it, or set its format ({', '.join(known)}):"
            " format: in an experiment, format= in Python"
        )
    return FORMATS[suffix]


def _refuse_other_encodings(file: io.BufferedReader, source: RowSource) -> None:
    try:
        start = file.peek(4)[:4]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{source.path} is not an intact gzip file: {error}") from error
    zeros = [
        byte == 0 for byte in start
    ]  # of a letter or a sign, with or without a byte order mark before it
    if start in (b"\xff\xfe\0\0", b"\0\0\xfe\xff") or zeros in (
        [False, True, True, True],
        [True, True, True, False],
    ):
        raise DataError(f"{source.path} line 1: the file is UTF-32, not UTF-8: convert it to UTF-8")
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") or zeros in ([False, True] * 2, [True, False] * 2):
        raise DataError(f"{source.path} line 1: the file is UTF-16, not UTF-8: convert it to UTF-8")
    if start[:2] == b"\x1f\x8b":
        raise DataError(f"{source.path} is compressed with gzip: give its name the ending .gz")


BLOCK = 1 << 20


class UnchangedFile:
    """A regular file as it was when first opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = size_of_regular_file(path)
        self.blocks: dict[int, bytes] = {}

    def open(self) -> io.BufferedReader:
        """The file from its beginning. Each call is independent of the others."""
        return io.BufferedReader(_Reader(self), buffer_size=BLOCK)

    def check(self, start: int, data: bytes, size: int) -> None:
        """Refuse a block that is not what it was, and a file that has another size."""
        import hashlib  # loads OpenSSL, which a stored example does not need

        digest = hashlib.blake2b(data, digest_size=16).digest()
        same = self.blocks.setdefault(start, digest) == digest
        if not same or size != self.size or len(data) != max(0, min(BLOCK, self.size - start)):
            raise DataError(f"{self.path} has changed since it was first read: create the dataset again")


class _Reader(io.RawIOBase):
    """Read whole blocks regardless of the requested size, so that every returned byte was checked."""

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


def size_of_regular_file(path: Path) -> int:
    """The size of a file; refuses what is not there or is no regular file."""
    if "\0" in str(path):
        raise DataError(f"{str(path)!r} cannot be read: a path cannot contain NUL")
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
    raise DataError(f"{path} does not exist{near_file(path, siblings)}")
