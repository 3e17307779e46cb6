"""Export records as JSON, JSONL, CSV or Parquet: streaming, and atomic for each file.

A row is flat. JSON and JSONL hold the values themselves; in CSV and Parquet values of any type (inputs, outputs,
metadata) are JSON text, except that plain text stays plain in CSV, which people read. The JSONL of a
run can be run again as recorded outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from karat.datasets.writers import ANY, FORMATS, NUMBER, TEXT, WHOLE, record_writer, unwritable, whole_file
from karat.errors import MissingDependency, RequestError, did_you_mean, option
from karat.store.arrow import table_with
from karat.store.handles import Aggregation, Evaluation, Run, StoredDataset
from karat.store.rows import place_name

COLUMNS: dict[str, dict[str, str]] = {
    "dataset": {"id": TEXT, "input": ANY, "expected": ANY, "metadata": ANY},
    "aggregation": {
        "evaluator": TEXT,
        "aggregator": TEXT,
        "name": TEXT,
        "run": TEXT,
        "group": ANY,
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

ROW = {
    "id": TEXT,
    "input": ANY,
    "expected": ANY,
    "metadata": ANY,
    "run": TEXT,
    "run_label": TEXT,
    "attempt": WHOLE,
    "unit": TEXT,
    "status": TEXT,
    "output": ANY,
    "error": TEXT,
    "output_metadata": ANY,
    "service_seconds": NUMBER,
    "queue_seconds": NUMBER,
    "cost": NUMBER,
    "try_number": WHOLE,
}
"""The columns of a row: an example with its output."""
RESULT = {"score": NUMBER, "value": ANY, "comment": TEXT, "error": TEXT}
"""Further columns for each evaluator: `KEY.score` and so on."""
OTHER = {"run": TEXT, "run_label": TEXT, "status": TEXT, "output": ANY, "error": TEXT}
"""Further columns of a comparison, for each output after the first: `second.run` and so on."""

Handle = StoredDataset | Run | Evaluation | Aggregation
Row = dict[str, Any]


def format_of(path: str | None, given: str | None) -> str:
    """Return the requested format, or that of the file's extension; JSONL by default."""
    if given is not None:
        if given not in FORMATS:
            raise RequestError(f"cannot write {given!r}: {did_you_mean(given, FORMATS)}")
        return given
    if path is None or path == "-":
        return "jsonl"
    ending = Path(path).suffix.lower().lstrip(".")
    ending = {"ndjson": "jsonl", "pq": "parquet"}.get(ending, ending)
    if ending not in FORMATS:
        raise RequestError(
            f"{path} has no known format: {did_you_mean(ending, FORMATS)}, or {option('format')}"
        )
    return ending


def export(handle: Handle, path: Path, format: str) -> int:
    """Write all records to a file and return how many. The file appears when it is complete."""
    try:
        with whole_file(path) as file:
            return write(handle, file, format)
    except OSError as error:
        raise unwritable(path, error) from error


def write(handle: Handle, file: IO[bytes], format: str) -> int:
    """Write all records to a stream and return how many."""
    if format == "parquet":
        return _write_parquet(handle, file)
    head = handle.to_dict() if format == "json" else None
    # What could be stored can be exported: values are not checked again, for their depth for example.
    writer = record_writer(file, format, columns=columns_of(handle), head=head, stored=True)
    count = 0
    for row in rows(handle):
        writer.add(row)
        count += 1
    writer.end()
    return count


def _write_parquet(handle: Handle, file: IO[bytes]) -> int:
    """Write Arrow arrays, which are made from the stored bytes."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingDependency("pyarrow", "parquet", "writing Parquet") from None
    types = {ANY: None, TEXT: "string", NUMBER: "float64", WHOLE: "int64"}
    columns = {name: types[kind] for name, kind in columns_of(handle).items()}
    schema = pyarrow.schema([(name, type_ or "string") for name, type_ in columns.items()])
    count = 0
    with parquet.ParquetWriter(file, schema) as writer:
        for batch in handle.batches():
            table = table_with(batch, columns)
            writer.write_table(table)
            count += table.num_rows
    return count


def rows(handle: Handle) -> Iterator[Row]:
    """The records of a dataset, run, evaluation or aggregation, flat, in dataset order."""
    if isinstance(handle, StoredDataset):
        yield from (msgspec.to_builtins(each) | _nothing(each) for each in handle)
    elif isinstance(handle, (Run, Evaluation)):
        yield from (row.flat() for row in handle.rows())
    else:
        yield from map(msgspec.structs.asdict, handle.estimates)


def _nothing(example: Any) -> Row:
    """Fields that a record leaves out when they are empty."""
    return {"expected": example.expected, "metadata": example.metadata}


def columns_of(handle: Handle) -> dict[str, str]:
    """The columns of an export; of a run or an evaluation those of its rows."""
    if not isinstance(handle, (Run, Evaluation)):
        return COLUMNS[_kind(handle)]
    columns = dict(ROW)
    if isinstance(handle, Run):
        return columns
    specs = handle.header.evaluators
    for spec in specs:
        columns |= {f"{spec.key}.{name}": kind for name, kind in RESULT.items()}
    kinds = {spec.kind for spec in specs}
    shown = len(handle.header.runs) if "joint" in kinds else 2 if "pair" in kinds else 1
    for number in range(2, shown + 1):
        columns |= {f"{place_name(number)}.{name}": kind for name, kind in OTHER.items()}
    return columns


def _kind(handle: Handle) -> str:
    return "dataset" if isinstance(handle, StoredDataset) else handle.kind
