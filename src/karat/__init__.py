"""karat measures how good an LLM system is, and stores every step of the measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from karat.lazy import exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from karat import aggregators as aggregators
    from karat import evaluators as evaluators
    from karat import graph as graph
    from karat import memory as memory
    from karat import models as models
    from karat import stats as stats
    from karat import tasks as tasks
    from karat import testing as testing
    from karat import traces as traces
    from karat.aggregators import Aggregator as Aggregator
    from karat.analysis.comparison import Comparison as Comparison
    from karat.analysis.comparison import Difference as Difference
    from karat.analysis.comparison import Leader as Leader
    from karat.analysis.comparison import compare as compare
    from karat.analysis.comparison import compare_async as compare_async
    from karat.analysis.gates import ThresholdGate as ThresholdGate
    from karat.analysis.gates import gate as gate
    from karat.analysis.ranking import Place as Place
    from karat.analysis.ranking import Ranking as Ranking
    from karat.analysis.ranking import RankingPlan as RankingPlan
    from karat.analysis.ranking import plan_rank as plan_rank
    from karat.analysis.ranking import rank as rank
    from karat.analysis.ranking import rank_async as rank_async
    from karat.datasets import Dataset as Dataset
    from karat.errors import KaratError as KaratError
    from karat.errors import NotApplicable as NotApplicable
    from karat.evaluators import Evaluator as Evaluator
    from karat.execution.aggregate import aggregate as aggregate
    from karat.execution.aggregate import aggregate_async as aggregate_async
    from karat.execution.evaluate import evaluate as evaluate
    from karat.execution.evaluate import evaluate_async as evaluate_async
    from karat.execution.progress import Listener as Listener
    from karat.execution.progress import Progress as Progress
    from karat.execution.run import run as run
    from karat.execution.run import run_async as run_async
    from karat.experiments.running import Outcome as Outcome
    from karat.experiments.running import experiment as experiment
    from karat.experiments.running import experiment_async as experiment_async
    from karat.records import AggregateTable as AggregateTable
    from karat.records import Estimate as Estimate
    from karat.records import Estimates as Estimates
    from karat.records import Example as Example
    from karat.records import Output as Output
    from karat.records import Result as Result
    from karat.store import Store as Store
    from karat.store import open_store as open_store
    from karat.store.handles import Aggregation as Aggregation
    from karat.store.handles import Evaluation as Evaluation
    from karat.store.handles import Run as Run
    from karat.store.handles import StoredDataset as StoredDataset
    from karat.store.rows import Row as Row
    from karat.tasks import Task as Task
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            "aggregators": "Aggregator",
            "analysis.comparison": "Comparison Difference Leader compare compare_async",
            "analysis.gates": "ThresholdGate gate",
            "analysis.ranking": "Place Ranking RankingPlan plan_rank rank rank_async",
            "datasets": "Dataset",
            "errors": "KaratError NotApplicable",
            "evaluators": "Evaluator",
            "execution.aggregate": "aggregate aggregate_async",
            "execution.evaluate": "evaluate evaluate_async",
            "execution.progress": "Listener Progress",
            "execution.run": "run run_async",
            "experiments.running": "Outcome experiment experiment_async",
            "records": "AggregateTable Estimate Estimates Example Output Result",
            "store": "Store open_store",
            "store.handles": "Aggregation Evaluation Run StoredDataset",
            "store.rows": "Row",
            "tasks": "Task",
            ".": "aggregators evaluators graph memory models stats tasks testing traces",
        },
    )
