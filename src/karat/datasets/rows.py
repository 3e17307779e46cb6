"""Rows of a file in any format: which reader, and what a reader says of a row it cannot read.

A reader is a generator of `(line, row)`. A row is made of JSON values; one that cannot be read is a BadRow in
its place, so that reading may go on after it. What cannot be read past is raised as a DataError.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from karat.datasets.unchanged import UnchangedFile
from karat.errors import DataError, RequestError, did_you_mean

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


class BadRow(msgspec.Struct, frozen=True):
    """A row that cannot be used: where it stands, and why."""

    line: int
    """Line of a text file, or row of a Parquet file, counted from 1."""
    column: int | None
    """Character in the line, counted from 1; None where the whole row is meant."""
    reason: str


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
            raise DataError(f"{path} is empty")

    @property
    def unit(self) -> str:
        """What rows are counted in: lines, or rows of a Parquet file."""
        return "row" if self.format == "parquet" else "line"

    @property
    def stem(self) -> str:
        """The file's name without its endings."""
        name = self.path.name[:-3] if self._compressed else self.path.name
        return Path(name).stem if Path(name).suffix.lower() in FORMATS else name

    def read(self) -> Rows:
        """All rows with their lines. Raises when the file is no longer what it was."""
        reader = _reader(self.format)
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


def describe(source: str, unit: str, bad: BadRow) -> str:
    """A bad row as the sentence of an error."""
    column = f", column {bad.column}" if bad.column is not None else ""
    return f"{source} {unit} {bad.line}{column}: {bad.reason}"


def short(text: str, limit: int = 80) -> str:
    """Text from a file as an error may show it: quoted, escaped, bounded."""
    return repr(text) if len(text) <= limit else repr(text[:limit]) + "…"


def undecodable(error: UnicodeDecodeError, offset: int) -> str:
    """The reason why bytes are not text; `offset` is where they begin in the file."""
    byte = error.object[error.start]
    return f"byte 0x{byte:02x} at offset {offset + error.start} is not UTF-8: convert the file to UTF-8"


def _reader(format: str) -> Callable[[BinaryIO, str], Rows]:
    if format in ("json", "jsonl"):
        from karat.datasets import json_rows

        return json_rows.read_json if format == "json" else json_rows.read_jsonl
    if format == "parquet":
        from karat.datasets import parquet_rows

        return parquet_rows.read_parquet
    from karat.datasets import csv_rows

    return csv_rows.read_tsv if format == "tsv" else csv_rows.read_csv


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
        if not path.is_file():
            UnchangedFile(path)  # says that there is none, and what is near
        ending = f"the ending {suffix!r} is not known" if suffix else "it has no ending"
        raise DataError(
            f"{path}: {ending} ({did_you_mean(suffix, FORMATS)}); rename it, or say its format ({', '.join(known)}):"
            " format: in an experiment, format= in Python"
        )
    return FORMATS[suffix]


def _refuse_other_encodings(file: io.BufferedReader, source: RowSource) -> None:
    try:
        start = file.peek(4)[:4]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{source.path} is not an intact gzip file: {error}") from error
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(
            f"{source.path} line 1: bytes at offset 0 say UTF-16, not UTF-8: convert the file to UTF-8"
        )
    if start[:2] == b"\x1f\x8b":
        raise DataError(f"{source.path} is compressed with gzip: give its name the ending .gz")
