"""karat measures how good an LLM system is, and stores every step of the measurement."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from karat.lazy import load

__version__ = "0.1.0"

if TYPE_CHECKING:
    from karat import aggregators, evaluators, graph, memory, models, stats, tasks, testing, traces
    from karat.aggregators import Aggregator
    from karat.analysis.comparison import Comparison, Difference, Leader, compare, compare_async
    from karat.analysis.gates import ThresholdGate, gate
    from karat.analysis.ranking import Place, Ranking, RankingPlan, plan_rank, rank, rank_async
    from karat.datasets import Dataset
    from karat.errors import KaratError, NotApplicable
    from karat.evaluators import Evaluator
    from karat.execution.aggregate import aggregate, aggregate_async
    from karat.execution.evaluate import evaluate, evaluate_async
    from karat.execution.progress import Listener, Progress
    from karat.execution.run import run, run_async
    from karat.experiments.running import Outcome, experiment, experiment_async
    from karat.records import AggregateTable, Estimate, Estimates, Example, Output, Result
    from karat.store import Store, open_store
    from karat.store.handles import Aggregation, Evaluation, Run, StoredDataset
    from karat.store.rows import Row
    from karat.tasks import Task

_WHERE = {
    "AggregateTable": "records",
    "Aggregation": "store.handles",
    "Aggregator": "aggregators",
    "Comparison": "analysis.comparison",
    "Dataset": "datasets",
    "Difference": "analysis.comparison",
    "Estimate": "records",
    "Estimates": "records",
    "Evaluation": "store.handles",
    "Evaluator": "evaluators",
    "Example": "records",
    "KaratError": "errors",
    "Leader": "analysis.comparison",
    "Listener": "execution.progress",
    "NotApplicable": "errors",
    "Outcome": "experiments.running",
    "Output": "records",
    "Place": "analysis.ranking",
    "Progress": "execution.progress",
    "Ranking": "analysis.ranking",
    "RankingPlan": "analysis.ranking",
    "Result": "records",
    "Row": "store.rows",
    "Run": "store.handles",
    "Store": "store",
    "StoredDataset": "store.handles",
    "Task": "tasks",
    "ThresholdGate": "analysis.gates",
    "aggregate": "execution.aggregate",
    "aggregate_async": "execution.aggregate",
    "compare": "analysis.comparison",
    "compare_async": "analysis.comparison",
    "evaluate": "execution.evaluate",
    "evaluate_async": "execution.evaluate",
    "experiment": "experiments.running",
    "experiment_async": "experiments.running",
    "gate": "analysis.gates",
    "open_store": "store",
    "plan_rank": "analysis.ranking",
    "rank": "analysis.ranking",
    "rank_async": "analysis.ranking",
    "run": "execution.run",
    "run_async": "execution.run",
}
_MODULES = ("aggregators", "evaluators", "graph", "memory", "models", "stats", "tasks", "testing", "traces")

__all__ = [
    "AggregateTable",
    "Aggregation",
    "Aggregator",
    "Comparison",
    "Dataset",
    "Difference",
    "Estimate",
    "Estimates",
    "Evaluation",
    "Evaluator",
    "Example",
    "KaratError",
    "Leader",
    "Listener",
    "NotApplicable",
    "Outcome",
    "Output",
    "Place",
    "Progress",
    "Ranking",
    "RankingPlan",
    "Result",
    "Row",
    "Run",
    "Store",
    "StoredDataset",
    "Task",
    "ThresholdGate",
    "aggregate",
    "aggregate_async",
    "aggregators",
    "compare",
    "compare_async",
    "evaluate",
    "evaluate_async",
    "evaluators",
    "experiment",
    "experiment_async",
    "gate",
    "graph",
    "memory",
    "models",
    "open_store",
    "plan_rank",
    "rank",
    "rank_async",
    "run",
    "run_async",
    "stats",
    "tasks",
    "testing",
    "traces",
]


def __getattr__(name: str) -> Any:
    # Names are imported when first used, so that `import karat` costs next to nothing.
    found = importlib.import_module(f"karat.{name}") if name in _MODULES else load("karat", _WHERE, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
