"""Rows of CSV and TSV files: one object for each record, keyed by the header; all values are text."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from karat.datasets.readers.rows import (
    BYTE_ORDER_MARK,
    MAX_ROW,
    BadRow,
    Rows,
    bounded_lines,
    undecodable,
)
from karat.errors import DataError, clip, plural

LONGEST_FIELD = MAX_ROW
"""Bounds what a quote that is never closed can swallow. The csv module's own bound is 128 KiB, less than many
contexts that models are given."""


def read_csv(file: BinaryIO, source: str) -> Rows:
    """Comma-separated records."""
    return _read(file, source, ",")


def read_tsv(file: BinaryIO, source: str) -> Rows:
    """Tab-separated records."""
    return _read(file, source, "\t")


def _read(file: BinaryIO, source: str, delimiter: str) -> Rows:
    if csv.field_size_limit() < LONGEST_FIELD:
        csv.field_size_limit(LONGEST_FIELD)
    undecoded: list[BadRow] = []
    lines = _lines(file, source, undecoded)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    width = 0
    while True:
        start = reader.line_num + 1  # a record may go over several lines: it is named by its first
        try:
            record = next(reader)
        except StopIteration:
            if header is None:
                raise DataError(
                    f"{source} is empty: it needs a first line with the names of the columns"
                ) from None
            return
        except csv.Error as error:
            bad = _bad_record(error, start, source)
            undecoded.clear()
            if header is None:
                raise DataError(bad.sentence(source)) from None
            yield start, bad
            continue
        if not record:
            continue
        if header is None:
            if undecoded:
                raise DataError(undecoded[0].sentence(source))
            header = _checked_header(record, start, source, delimiter)
            width = len(header)
        elif undecoded:
            yield start, undecoded[0]
            undecoded.clear()
        elif len(record) != width:
            yield (
                start,
                BadRow(start, None, f"the row has {plural(len(record), 'column')}, the header has {width}"),
            )
        else:
            yield start, dict(zip(header, record, strict=True))


def _lines(file: BinaryIO, source: str, undecoded: list[BadRow]) -> Iterator[str]:
    for number, line in bounded_lines(file, source):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            column = len(line[: error.start].decode()) + 1
            undecoded.append(BadRow(number, column, undecodable(error, file.tell() - len(line))))
            yield line.decode(errors="replace")


def _bad_record(error: csv.Error, line: int, source: str) -> BadRow:
    reason = str(error)
    if "end of data" in reason or "field limit" in reason:
        # The quote has swallowed the rows after it: there is nothing to go on with.
        raise DataError(f"{source} line {line}: unclosed quote in this row") from None
    if "new-line character" in reason:
        reason = (
            "a line ends with a bare carriage return: save the file with \\n or \\r\\n at the ends of lines"
        )
    elif "expected after" in reason:
        reason = 'text follows a closing quote (a quote inside a quoted field is written "")'
    return BadRow(line, None, reason)


def _checked_header(header: list[str], line: int, source: str, delimiter: str) -> list[str]:
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise DataError(
            f"{source} line {line}: two columns are named {clip(twice[0], 80)}: give each its own name"
        )
    if len(header) == 1:
        other = next((mark for mark in ",;\t|" if mark != delimiter and mark in header[0]), None)
        if other is not None:
            want = "tabs" if delimiter == "\t" else "commas (or by tabs, in a .tsv file)"
            raise DataError(
                f"{source} line {line}: the header is one column, {clip(header[0], 80)}:"
                f" separate the columns by {want}, not by {other!r}"
            )
    return header
