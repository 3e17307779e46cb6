"""Records as files for other programs: JSON, JSONL, CSV, Parquet. Streaming, and all of a file or none of it.

A row is flat. JSON and JSONL hold values as they are; in CSV and Parquet what may be anything (inputs, outputs,
metadata) is JSON text, except that a plain text is left as it is in CSV, where a person reads it. The JSONL of a
run can be run again as recorded outputs.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from karat.errors import MissingDependency, RequestError, did_you_mean
from karat.records import Failed, Ok, Skipped, to_builtins
from karat.reporting.files import unwritable
from karat.serialization import encode
from karat.store.handles import Aggregation, Evaluation, Run, StoredDataset

FORMATS = ("json", "jsonl", "csv", "parquet")
BATCH = 1000

ANY, TEXT, NUMBER, WHOLE = "any", "text", "number", "whole"

COLUMNS: dict[str, dict[str, str]] = {
    "dataset": {"id": TEXT, "input": ANY, "expected": ANY, "metadata": ANY},
    "run": {
        "id": TEXT,
        "attempt": WHOLE,
        "unit": TEXT,
        "status": TEXT,
        "output": ANY,
        "error": TEXT,
        "input": ANY,
        "expected": ANY,
        "example_metadata": ANY,
        "seconds": NUMBER,
        "try_number": WHOLE,
        "metadata": ANY,
    },
    "evaluation": {
        "id": TEXT,
        "evaluator": TEXT,
        "runs": ANY,
        "attempt": WHOLE,
        "unit": TEXT,
        "status": TEXT,
        "score": NUMBER,
        "value": ANY,
        "comment": TEXT,
        "error": TEXT,
        "reused_from": TEXT,
        "seconds": NUMBER,
        "try_number": WHOLE,
        "metadata": ANY,
    },
    "aggregation": {
        "name": TEXT,
        "value": NUMBER,
        "low": NUMBER,
        "high": NUMBER,
        "n": WHOLE,
        "of": WHOLE,
        "method": TEXT,
        "confidence": NUMBER,
        "lowest": NUMBER,
        "highest": NUMBER,
        "metadata": ANY,
    },
}

Handle = StoredDataset | Run | Evaluation | Aggregation
Row = dict[str, Any]


def format_of(path: str | None, given: str | None) -> str:
    """The format that is asked for, or that a file's ending says; JSONL where nothing does."""
    if given is not None:
        if given not in FORMATS:
            raise RequestError(f"cannot write {given!r}: {did_you_mean(given, FORMATS)}")
        return given
    if path is None or path == "-":
        return "jsonl"
    ending = Path(path).suffix.lower().lstrip(".")
    ending = {"ndjson": "jsonl", "pq": "parquet"}.get(ending, ending)
    if ending not in FORMATS:
        raise RequestError(f"{path} does not say its format: {did_you_mean(ending, FORMATS)}, or --format")
    return ending


def export(handle: Handle, path: Path, format: str) -> int:
    """Writes all records to a file and returns how many; the file appears when it is complete."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            count = write(handle, file, format)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_mask())
        os.replace(name, path)
        return count
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write(handle: Handle, file: BinaryIO, format: str) -> int:
    """Writes all records to a stream and returns how many."""
    counted = _Counted(rows(handle))
    {"json": _json, "jsonl": _jsonl, "csv": _csv, "parquet": _parquet}[format](handle, counted, file)
    return counted.count


class _Counted:
    """Rows, counted as they pass."""

    def __init__(self, source: Iterator[Row]) -> None:
        self._source = source
        self.count = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._source:
            self.count += 1
            yield row


# ---------------------------------------------------------------- rows


def rows(handle: Handle) -> Iterator[Row]:
    """The records of a dataset, run, evaluation or aggregation, flat, in dataset order."""
    if isinstance(handle, StoredDataset):
        yield from (to_builtins(each) | _nothing(each) for each in handle)
    elif isinstance(handle, Run):
        yield from _run_rows(handle)
    elif isinstance(handle, Evaluation):
        yield from _evaluation_rows(handle)
    else:
        for name, estimate in handle.estimates.items():
            yield {"name": name, **msgspec.structs.asdict(estimate)}


def _nothing(example: Any) -> Row:
    """Fields that a record leaves out when they are empty."""
    return {"expected": example.expected, "metadata": example.metadata}


def _run_rows(run: Run) -> Iterator[Row]:
    """Outputs beside what they answer. Both come in dataset order, so the examples are read once, alongside."""
    examples = iter(run.dataset)
    example = next(examples, None)
    for output in run.outputs():
        while example is not None and example.id != output.example:
            example = next(examples, None)
        assert example is not None  # an output belongs to an example of the run's dataset
        yield {
            "id": output.example,
            "attempt": output.attempt,
            "unit": output.unit,
            "status": output.outcome.status,
            "output": output.value,
            "error": _error(output.outcome),
            "input": example.input,
            "expected": example.expected,
            "example_metadata": example.metadata,
            "seconds": output.seconds,
            "try_number": output.try_number,
            "metadata": {**output.metadata, **_history(output.outcome)},
        }


def _evaluation_rows(evaluation: Evaluation) -> Iterator[Row]:
    for item in evaluation.results():
        result = item.result
        yield {
            "id": item.example,
            "evaluator": item.key,
            "runs": list(item.runs),
            "attempt": item.attempt,
            "unit": item.unit,
            "status": item.outcome.status,
            "score": result.score if result else None,
            "value": result.value if result else None,
            "comment": result.comment if result else "",
            "error": _error(item.outcome),
            "reused_from": item.reused_from,
            "seconds": item.seconds,
            "try_number": item.try_number,
            "metadata": result.metadata if result else _history(item.outcome),
        }


def _error(outcome: Ok[Any] | Failed | Skipped) -> str | None:
    if isinstance(outcome, Failed):
        return f"{outcome.error.type}: {outcome.error.message}"
    return outcome.reason if isinstance(outcome, Skipped) else None


def _history(outcome: Ok[Any] | Failed | Skipped) -> Row:
    """What is known of a failure beside its message: how often a model was asked, and what it answered."""
    return outcome.error.metadata if isinstance(outcome, Failed) else {}


# ---------------------------------------------------------------- formats


def _json(handle: Handle, source: _Counted, file: BinaryIO) -> None:
    """One document: what is known of it, and its records."""
    head = encode(handle.to_dict())
    file.write(head[:-1] + b',"records":[')
    for number, row in enumerate(source):
        file.write((b",\n" if number else b"\n") + encode(row))
    file.write(b"\n]}\n")


def _jsonl(handle: Handle, source: _Counted, file: BinaryIO) -> None:
    for row in source:
        file.write(encode(row) + b"\n")


def _csv(handle: Handle, source: _Counted, file: BinaryIO) -> None:
    columns = COLUMNS[_kind(handle)]
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in source:
        writer.writerow([_cell(row.get(name), kind) for name, kind in columns.items()])
    text.detach()


def _cell(value: Any, kind: str) -> Any:
    if value is None or isinstance(value, str):
        return value
    return encode(value).decode() if kind is ANY else value


def _parquet(handle: Handle, source: _Counted, file: BinaryIO) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingDependency("pyarrow", "parquet", "writing Parquet") from None
    types: dict[str, Callable[[], Any]] = {NUMBER: pyarrow.float64, WHOLE: pyarrow.int64}
    columns = COLUMNS[_kind(handle)]
    schema = pyarrow.schema([(name, types.get(kind, pyarrow.string)()) for name, kind in columns.items()])
    with parquet.ParquetWriter(file, schema) as writer:
        stream = iter(source)
        while batch := list(islice(stream, BATCH)):
            arrays = {name: [_typed(row.get(name), kind) for row in batch] for name, kind in columns.items()}
            writer.write_table(pyarrow.table(arrays, schema=schema))


def _typed(value: Any, kind: str) -> Any:
    return encode(value).decode() if kind is ANY and value is not None else value


def _kind(handle: Handle) -> str:
    return "dataset" if isinstance(handle, StoredDataset) else handle.kind
