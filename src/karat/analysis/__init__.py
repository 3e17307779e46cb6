"""Comparing runs: paired by example, gated for continuous integration, ranked from comparisons.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import Any

from karat.lazy import load

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
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
