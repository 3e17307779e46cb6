"""Graph tasks: a folder with a `graph_config.yaml`, compiled into a plan that every record goes through.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import load

if TYPE_CHECKING:
    from karat.graph._drawing import arrows, mermaid, svg
    from karat.graph._file_schema import graph_schema
    from karat.graph._files import Written, prepare_files, write_files
    from karat.graph._functions import (
        AsyncLambdaFunction,
        EdgeCondition,
        LambdaFunction,
        NodePostProcessor,
        NodePostProcessorWithState,
        NodePreProcessor,
    )
    from karat.graph._lookup import find_task, is_shipped, known_tasks, names_graph
    from karat.graph._output import BaseOutputGenerator
    from karat.graph._plan import NodeFailed
    from karat.graph._postprocess import GraphPostProcessor, SemanticDedupPostProcessor
    from karat.graph._state import SygraMessage, SygraState
    from karat.graph._task import GraphTask, load_outline, load_task
    from karat.graph.metrics._collator import MetricCollatorPostProcessor, stored_metrics
    from karat.graph.metrics._unit import UnitMetrics

_WHERE = {
    "AsyncLambdaFunction": "_functions",
    "BaseOutputGenerator": "_output",
    "EdgeCondition": "_functions",
    "GraphPostProcessor": "_postprocess",
    "GraphTask": "_task",
    "LambdaFunction": "_functions",
    "MetricCollatorPostProcessor": "metrics._collator",
    "NodeFailed": "_plan",
    "NodePostProcessor": "_functions",
    "NodePostProcessorWithState": "_functions",
    "NodePreProcessor": "_functions",
    "SemanticDedupPostProcessor": "_postprocess",
    "SygraMessage": "_state",
    "SygraState": "_state",
    "UnitMetrics": "metrics._unit",
    "Written": "_files",
    "arrows": "_drawing",
    "find_task": "_lookup",
    "graph_schema": "_file_schema",
    "is_shipped": "_lookup",
    "known_tasks": "_lookup",
    "load_outline": "_task",
    "load_task": "_task",
    "mermaid": "_drawing",
    "names_graph": "_lookup",
    "prepare_files": "_files",
    "stored_metrics": "metrics._collator",
    "svg": "_drawing",
    "write_files": "_files",
}

__all__ = [
    "AsyncLambdaFunction",
    "BaseOutputGenerator",
    "EdgeCondition",
    "GraphPostProcessor",
    "GraphTask",
    "LambdaFunction",
    "MetricCollatorPostProcessor",
    "NodeFailed",
    "NodePostProcessor",
    "NodePostProcessorWithState",
    "NodePreProcessor",
    "SemanticDedupPostProcessor",
    "SygraMessage",
    "SygraState",
    "UnitMetrics",
    "Written",
    "arrows",
    "find_task",
    "graph_schema",
    "is_shipped",
    "known_tasks",
    "load_outline",
    "load_task",
    "mermaid",
    "names_graph",
    "prepare_files",
    "stored_metrics",
    "svg",
    "write_files",
]


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
