"""Datasets: named, immutable lists of examples, made in memory or read from files.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import load

if TYPE_CHECKING:
    from karat.datasets.dataset import Dataset
    from karat.datasets.readers.hub import resolved_revision
    from karat.datasets.readers.rows import MAX_ROW, BadRow, RowSource, bounded_lines
    from karat.datasets.sources import (
        JOINER,
        file_rows,
        kind_of_source,
        rows_dataset,
        source_file,
        source_problems,
        source_rows,
    )
    from karat.datasets.writers import RecordWriter, check_writable, record_file, record_writer, whole_file
    from karat.process import fewer_collections

_WHERE = {
    "BadRow": "readers.rows",
    "Dataset": "dataset",
    "JOINER": "sources",
    "MAX_ROW": "readers.rows",
    "RecordWriter": "writers",
    "RowSource": "readers.rows",
    "bounded_lines": "readers.rows",
    "check_writable": "writers",
    "fewer_collections": "karat.process",
    "file_rows": "sources",
    "kind_of_source": "sources",
    "record_file": "writers",
    "record_writer": "writers",
    "resolved_revision": "readers.hub",
    "rows_dataset": "sources",
    "source_file": "sources",
    "source_problems": "sources",
    "source_rows": "sources",
    "whole_file": "writers",
}

__all__ = [
    "JOINER",
    "MAX_ROW",
    "BadRow",
    "Dataset",
    "RecordWriter",
    "RowSource",
    "bounded_lines",
    "check_writable",
    "fewer_collections",
    "file_rows",
    "kind_of_source",
    "record_file",
    "record_writer",
    "resolved_revision",
    "rows_dataset",
    "source_file",
    "source_problems",
    "source_rows",
    "whole_file",
]


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
