"""Files of records, written one record at a time: JSON, JSONL, CSV, Parquet. Each appears whole or not at all."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from karat.tasks.graph.data import Sink
from karat.values import encode

FORMATS = ("json", "jsonl")


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears whole or not at all. It is an export of the store, and can be made again: no fsync."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            yield file
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


class _ListFile:
    """A JSON array with a record on each line, or JSONL."""

    def __init__(self, file: IO[bytes], format: str) -> None:
        self._file = file
        self._lines = format == "jsonl"
        self._count = 0

    def add(self, record: Any) -> None:
        data = encode(record)
        if self._lines:
            self._file.write(data + b"\n")
        else:
            self._file.write((b",\n" if self._count else b"[\n") + data)
        self._count += 1

    def end(self) -> None:
        if not self._lines:
            self._file.write(b"\n]\n" if self._count else b"[]\n")


@contextmanager
def list_file(path: Path, format: str) -> Iterator[_ListFile]:
    """A file that holds a list of records."""
    with whole_file(path) as file:
        out = _ListFile(file, format)
        yield out
        out.end()


@contextmanager
def sink_file(sink: Sink) -> Iterator[Any]:
    """The file of a sink."""
    if sink.format in FORMATS:
        with list_file(sink.path, sink.format) as out:
            yield out
    elif sink.format == "csv":
        with whole_file(sink.path) as file:
            yield _CsvFile(file)
    else:
        with whole_file(sink.path) as file:
            out_parquet = _ParquetFile(file)
            yield out_parquet
            out_parquet.end()


class _CsvFile:
    """A CSV with the fields of the first record; what is no text or number is written as JSON."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._fields: list[str] = []

    def write(self, text: str) -> None:
        """What the csv module writes to."""
        self._file.write(text.encode())

    def add(self, record: dict[str, Any]) -> None:
        writer = csv.writer(self)
        if not self._fields:
            self._fields = list(record)
            writer.writerow(self._fields)
        writer.writerow([_cell(record.get(field)) for field in self._fields])


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else encode(value).decode()


class _ParquetFile:
    """A Parquet file, written a thousand rows at a time with the types of the first thousand."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._rows: list[dict[str, Any]] = []
        self._writer: Any = None

    def add(self, record: dict[str, Any]) -> None:
        self._rows.append(record)
        if len(self._rows) >= 1000:
            self._flush()

    def _flush(self) -> None:
        import pyarrow
        import pyarrow.parquet

        schema = self._writer.schema if self._writer is not None else None
        table = pyarrow.Table.from_pylist(self._rows, schema=schema)
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        self._rows = []

    def end(self) -> None:
        if self._rows or self._writer is None:
            self._flush()
        self._writer.close()
