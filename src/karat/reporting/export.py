"""Records as files for other programs: JSON, JSONL, CSV, Parquet. Streaming, and all of a file or none of it.

A row is flat. JSON and JSONL hold values as they are; in CSV and Parquet what may be anything (inputs, outputs,
metadata) is JSON text, except that a plain text is left as it is in CSV, where a person reads it. The JSONL of a
run can be run again as recorded outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from karat.datasets.writers import ANY, FORMATS, NUMBER, TEXT, WHOLE, record_writer, whole_file
from karat.errors import RequestError, did_you_mean
from karat.records import Failed, Ok, Skipped, to_builtins
from karat.reporting.files import unwritable
from karat.store.handles import Aggregation, Evaluation, Run, StoredDataset

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
    """Write all records to a file and return how many. The file appears when it is complete."""
    try:
        with whole_file(path) as file:
            return write(handle, file, format)
    except OSError as error:
        raise unwritable(path, error) from error


def write(handle: Handle, file: IO[bytes], format: str) -> int:
    """Write all records to a stream and return how many."""
    head = handle.to_dict() if format == "json" else None
    writer = record_writer(file, format, columns=COLUMNS[_kind(handle)], head=head)
    count = 0
    for row in rows(handle):
        writer.add(row)
        count += 1
    writer.end()
    return count


def rows(handle: Handle) -> Iterator[Row]:
    """The records of a dataset, run, evaluation or aggregation, flat, in dataset order."""
    if isinstance(handle, StoredDataset):
        yield from (to_builtins(each) | _nothing(each) for each in handle)
    elif isinstance(handle, Run):
        yield from _run_rows(handle)
    elif isinstance(handle, Evaluation):
        yield from _evaluation_rows(handle)
    else:
        yield from map(msgspec.structs.asdict, handle.estimates)


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


def _kind(handle: Handle) -> str:
    return "dataset" if isinstance(handle, StoredDataset) else handle.kind
