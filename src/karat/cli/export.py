"""Export the records of a dataset, run, evaluation or aggregation as JSON, JSONL, CSV or Parquet.

The file is written atomically. Without -o the records go to stdout, as JSONL unless --format is given. karat run
--recorded reads the JSONL of a run.

    karat export run-1a2b -o outputs.csv
    karat export eval-3c4d --format jsonl | head
"""

from __future__ import annotations

import argparse
import codecs
from pathlib import Path
from typing import Any, BinaryIO

from karat.cli.parser import Parser, UsageError
from karat.cli.terminal import Terminal
from karat.formatting import printable
from karat.records import HUMAN


def add_arguments(parser: Parser) -> None:
    """Declare the id, the file and the format."""
    parser.add_argument(
        "id", metavar="ID", help="the id to export, or latest (the latest run); for a dataset also its name"
    )
    parser.option("-o", "--output", metavar="FILE", help="the output file; - is stdout (default: stdout)")
    parser.option(
        "--format", metavar="FORMAT", help="json, jsonl, csv or parquet (default: from the file extension)"
    )


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Export the records."""
    from karat.cli.outcome import latest_notice
    from karat.errors import plural
    from karat.formatting import clean
    from karat.reporting.export import export, format_of, write
    from karat.store import open_existing

    to_stdout = given.output in (None, "-", "/dev/stdout")
    format = format_of(None if to_stdout else given.output, given.format)
    if to_stdout and terminal.as_json and format != "json":
        if given.format is not None:
            raise UsageError(
                f"--json and --format {format} contradict each other on stdout: name a file with -o"
            )
        format = "json"
    if to_stdout and format == "parquet":
        raise UsageError("Parquet cannot be written to stdout: name a file with -o")
    with open_existing(given.store) as store:
        handle = store.get(given.id)
        if given.id == "latest":
            notice = latest_notice(handle)
            scored = [
                each.id
                for each in store.evaluations.list()
                if handle.id in each.header.runs and any(s.name != HUMAN for s in each.header.evaluators)
            ]
            if scored:
                notice += f"; for its rows with scores: {store.command('export', scored[-1])}"
            terminal.notice(notice)
        if to_stdout:
            with terminal.writing():
                file: Any = _Harmless(terminal.binary) if terminal.binary.isatty() else terminal.binary
                write(handle, file, format)
                terminal.binary.flush()
            return 0
        count = export(handle, Path(given.output), format)
        terminal.done(
            {"id": handle.id, "file": given.output, "format": format, "records": count},
            f"wrote {plural(count, 'record')} of {handle.id} to {clean(given.output)}",
        )
    return 0


class _Harmless:
    """A terminal as a file: control characters in records do not reach it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def write(self, data: bytes) -> int:
        """Write text without the characters that could control the terminal."""
        text = self._decode(bytes(data))
        shown = "\n".join(printable(line) for line in text.split("\n"))
        self._file.write(shown.encode())
        return len(data)

    def flush(self) -> None:
        """Write what is buffered."""
        self._file.flush()
