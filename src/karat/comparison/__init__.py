"""Comparing runs: paired by example, gated for continuous integration, ranked from comparisons.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "Comparison": "pairs_of_runs",
    "Gate": "gates",
    "Ranking": "ranking",
    "compare_runs": "pairs_of_runs",
    "rank_comparisons": "ranking",
    "run_labels": "naming",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"karat.comparison.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
