"""Graph tasks: a folder with a `graph_config.yaml`, compiled into a plan that every record goes through.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from karat.lazy import exports

if TYPE_CHECKING:
    from karat.graph._drawing import arrows as arrows
    from karat.graph._drawing import mermaid as mermaid
    from karat.graph._drawing import svg as svg
    from karat.graph._file_schema import graph_schema as graph_schema
    from karat.graph._files import Written as Written
    from karat.graph._files import prepare_files as prepare_files
    from karat.graph._files import write_files as write_files
    from karat.graph._functions import AsyncLambdaFunction as AsyncLambdaFunction
    from karat.graph._functions import EdgeCondition as EdgeCondition
    from karat.graph._functions import LambdaFunction as LambdaFunction
    from karat.graph._functions import NodePostProcessor as NodePostProcessor
    from karat.graph._functions import NodePostProcessorWithState as NodePostProcessorWithState
    from karat.graph._functions import NodePreProcessor as NodePreProcessor
    from karat.graph._lookup import find_task as find_task
    from karat.graph._lookup import is_shipped as is_shipped
    from karat.graph._lookup import known_tasks as known_tasks
    from karat.graph._lookup import names_graph as names_graph
    from karat.graph._output import BaseOutputGenerator as BaseOutputGenerator
    from karat.graph._plan import NodeFailed as NodeFailed
    from karat.graph._postprocess import GraphPostProcessor as GraphPostProcessor
    from karat.graph._postprocess import SemanticDedupPostProcessor as SemanticDedupPostProcessor
    from karat.graph._state import SygraMessage as SygraMessage
    from karat.graph._state import SygraState as SygraState
    from karat.graph._task import GraphTask as GraphTask
    from karat.graph._task import load_outline as load_outline
    from karat.graph._task import load_task as load_task
    from karat.graph.metrics._collator import MetricCollatorPostProcessor as MetricCollatorPostProcessor
    from karat.graph.metrics._collator import stored_metrics as stored_metrics
    from karat.graph.metrics._unit import UnitMetrics as UnitMetrics
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            "_drawing": "arrows mermaid svg",
            "_file_schema": "graph_schema",
            "_files": "Written prepare_files write_files",
            "_functions": "AsyncLambdaFunction EdgeCondition LambdaFunction NodePostProcessor "
            "NodePostProcessorWithState NodePreProcessor",
            "_lookup": "find_task is_shipped known_tasks names_graph",
            "_output": "BaseOutputGenerator",
            "_plan": "NodeFailed",
            "_postprocess": "GraphPostProcessor SemanticDedupPostProcessor",
            "_state": "SygraMessage SygraState",
            "_task": "GraphTask load_outline load_task",
            "metrics._collator": "MetricCollatorPostProcessor stored_metrics",
            "metrics._unit": "UnitMetrics",
        },
    )
