"""karat measures how good an LLM system is, and keeps every step of the measurement."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from karat.lazy import load

__version__ = "0.1.0"

if TYPE_CHECKING:
    from karat import aggregators, evaluators, models, stats, traces
    from karat.analysis.comparison import compare, compare_async
    from karat.analysis.ranking import rank, rank_async
    from karat.datasets import Dataset
    from karat.errors import KaratError, NotApplicable
    from karat.execution.aggregate import aggregate, aggregate_async
    from karat.execution.evaluate import evaluate, evaluate_async
    from karat.execution.run import run, run_async
    from karat.records import Estimate, Example, Output, Result
    from karat.store import open_store

_WHERE = {
    "Dataset": "datasets",
    "Estimate": "records",
    "Example": "records",
    "KaratError": "errors",
    "NotApplicable": "errors",
    "Output": "records",
    "Result": "records",
    "aggregate": "execution.aggregate",
    "aggregate_async": "execution.aggregate",
    "compare": "analysis.comparison",
    "compare_async": "analysis.comparison",
    "evaluate": "execution.evaluate",
    "evaluate_async": "execution.evaluate",
    "open_store": "store",
    "rank": "analysis.ranking",
    "rank_async": "analysis.ranking",
    "run": "execution.run",
    "run_async": "execution.run",
}
_MODULES = ("aggregators", "evaluators", "models", "stats", "traces")

__all__ = [
    "Dataset",
    "Estimate",
    "Example",
    "KaratError",
    "NotApplicable",
    "Output",
    "Result",
    "aggregate",
    "aggregate_async",
    "aggregators",
    "compare",
    "compare_async",
    "evaluate",
    "evaluate_async",
    "evaluators",
    "models",
    "open_store",
    "rank",
    "rank_async",
    "run",
    "run_async",
    "stats",
    "traces",
]


def __getattr__(name: str) -> Any:
    # Names are imported when first used, so that `import karat` costs next to nothing.
    found = importlib.import_module(f"karat.{name}") if name in _MODULES else load("karat", _WHERE, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
