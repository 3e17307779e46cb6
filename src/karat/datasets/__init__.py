"""Datasets: named, immutable lists of examples, made in memory or read from files.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import load

if TYPE_CHECKING:
    from karat.datasets.dataset import Dataset
    from karat.datasets.readers.rows import BadRow
    from karat.datasets.writers import RecordWriter, check_writable, record_file, record_writer, whole_file

_WHERE = {
    "BadRow": "readers.rows",
    "Dataset": "dataset",
    "RecordWriter": "writers",
    "check_writable": "writers",
    "record_file": "writers",
    "record_writer": "writers",
    "whole_file": "writers",
}

__all__ = [
    "BadRow",
    "Dataset",
    "RecordWriter",
    "check_writable",
    "record_file",
    "record_writer",
    "whole_file",
]


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
