"""Writes the records of a dataset, run, evaluation or aggregation as JSON, JSONL, CSV or Parquet.

The file appears when it is complete. Without -o the records go to stdout, as JSONL where no format is named. The
JSONL of a run can be run again: karat run --recorded.

    karat export run-1a2b -o outputs.csv
    karat export eval-3c4d --format jsonl | head
"""

from __future__ import annotations

import argparse
from pathlib import Path

from karat.cli.commands import UsageError
from karat.cli.parser import Parser
from karat.cli.terminal import Terminal


def add_arguments(parser: Parser) -> None:
    """What, where to, and as what."""
    parser.add_argument("id", metavar="ID", help="what to export; a dataset also by its name")
    parser.option("-o", "--output", metavar="FILE", help="where to; - is stdout")
    parser.option(
        "--format", metavar="FORMAT", help="json, jsonl, csv or parquet (default: by the file's ending)"
    )


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Exports."""
    from karat.formatting import clean
    from karat.reporting.export import export, format_of, write
    from karat.store.existing import open_existing

    format = format_of(given.output, given.format)
    to_stdout = given.output in (None, "-")
    if to_stdout and terminal.as_json and format != "json":
        if given.format is not None:
            raise UsageError(
                f"--json prints one JSON document and --format {format} is none: name a file with -o"
            )
        format = "json"
    if to_stdout and format == "parquet":
        raise UsageError("Parquet is not for a terminal: name a file with -o")
    with open_existing(given.store) as store:
        handle = store.get(given.id)
        if to_stdout:
            try:
                write(handle, terminal.binary, format)
                terminal.binary.flush()
            except BrokenPipeError:
                terminal.reader_gone()
            return 0
        count = export(handle, Path(given.output), format)
        terminal.show(
            {"id": handle.id, "file": given.output, "format": format, "records": count},
            f"{count:,} records of {handle.id} are in {clean(given.output)}",
        )
    return 0
