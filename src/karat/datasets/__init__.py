"""Datasets: named, immutable lists of examples, made in memory or read from files.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from karat.lazy import exports

if TYPE_CHECKING:
    from karat.datasets.dataset import Dataset as Dataset
    from karat.datasets.readers.hub import resolved_revision as resolved_revision
    from karat.datasets.readers.rows import MAX_ROW as MAX_ROW
    from karat.datasets.readers.rows import BadRow as BadRow
    from karat.datasets.readers.rows import RowSource as RowSource
    from karat.datasets.readers.rows import bounded_lines as bounded_lines
    from karat.datasets.sources import JOINER as JOINER
    from karat.datasets.sources import file_rows as file_rows
    from karat.datasets.sources import kind_of_source as kind_of_source
    from karat.datasets.sources import rows_dataset as rows_dataset
    from karat.datasets.sources import source_file as source_file
    from karat.datasets.sources import source_problems as source_problems
    from karat.datasets.sources import source_rows as source_rows
    from karat.datasets.writers import RecordWriter as RecordWriter
    from karat.datasets.writers import check_writable as check_writable
    from karat.datasets.writers import record_file as record_file
    from karat.datasets.writers import record_writer as record_writer
    from karat.datasets.writers import unwritable as unwritable
    from karat.datasets.writers import whole_file as whole_file
    from karat.process import fewer_collections as fewer_collections
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            "dataset": "Dataset",
            "readers.hub": "resolved_revision",
            "readers.rows": "BadRow MAX_ROW RowSource bounded_lines",
            "sources": "JOINER file_rows kind_of_source rows_dataset source_file source_problems source_rows",
            "writers": "RecordWriter check_writable record_file record_writer unwritable whole_file",
            "karat.process": "fewer_collections",
        },
    )
