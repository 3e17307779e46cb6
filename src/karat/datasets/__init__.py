"""Datasets: named, immutable lists of examples, made in memory or read from files.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import load

if TYPE_CHECKING:
    from karat.datasets.dataset import Dataset
    from karat.datasets.rows import BadRow

_WHERE = {"BadRow": "rows", "Dataset": "dataset"}

__all__ = ["BadRow", "Dataset"]


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
