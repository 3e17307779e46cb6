"""Datasets: named, immutable lists of examples, made in memory or read from files.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from karat.datasets.dataset import Dataset
    from karat.datasets.rows import BadRow

_WHERE = {"BadRow": "rows", "Dataset": "dataset"}

__all__ = ["BadRow", "Dataset"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"karat.datasets.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
