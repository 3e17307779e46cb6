"""Files of records, written one record at a time: JSON, JSONL, CSV, Parquet. Each appears whole or not at all."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from karat.errors import RequestError
from karat.graph.data import Sink
from karat.serialization import encode

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


def prepare(path: Path) -> None:
    """Makes the folder of a file that is to be written; where that cannot be, it is told before anything is run."""
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        with whole_file(path.with_name(f".{path.name}.try")) as file:
            file.flush()
        path.with_name(f".{path.name}.try").unlink()
    except (OSError, ValueError) as error:
        raise RequestError(
            f"{path} cannot be written: {getattr(error, 'strerror', None) or error}"
        ) from error


class SinkFile:
    """A sink at work. What goes wrong with it is told in its place: the other files stand."""

    def __init__(self, sink: Sink) -> None:
        self.path = sink.path
        self.error: str | None = None
        self._open = ExitStack()
        self._file: Any = None
        self._guarded(lambda: self._begin(sink))

    def _begin(self, sink: Sink) -> None:
        self._file = self._open.enter_context(sink_file(sink))

    def add(self, record: Any) -> None:
        if self.error is None:
            self._guarded(lambda: self._file.add(record))

    def __enter__(self) -> SinkFile:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self._drop(error)
        elif self.error is None:
            self._guarded(self._open.close)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            self._drop(error)

    def _drop(self, error: BaseException) -> None:
        with suppress(BaseException):  # what comes back is the same error again
            self._open.__exit__(type(error), error, error.__traceback__)


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
