"""One table: names that tasks written for SyGra use, and the parts of karat they mean."""

from __future__ import annotations

import functools
import os
import sys
from importlib.machinery import PathFinder

_METRICS = "karat.graph.metrics"
_MATCH = "karat.graph.metrics._match"
_GUI = "karat.graph.metrics._gui"
_CLASSES = "karat.graph.metrics._classification"
_ATTEMPTS = "karat.graph.metrics._attempts"
_CONFIGS = "karat.graph.sygra._metric_configs"
_UTILS = "karat.graph.sygra._functions"
_RUNNING = "karat.graph.sygra._functions"
_FUNCTIONS = "karat.graph._functions"
_STATE = "karat.graph._state"
_TRANSFORM = "karat.datasets.transformations"
_UNIT_THEIRS = "sygra.core.eval.metrics.unit_metrics"
_AGGREGATOR_THEIRS = "sygra.core.eval.metrics.aggregator_metrics"
METRICS_THEIRS = (_UNIT_THEIRS, _AGGREGATOR_THEIRS)
"""Where tasks written for SyGra put metrics of their own, beside those of the table."""

TABLE: dict[str, dict[str, str]] = {
    "tasks.eval.utils": {
        "UnitMetrics": "karat.graph.metrics._node",
        "MetricCollatorPostProcessor": "karat.graph.metrics._collator",
        "parse_response_as_json": _UTILS,
    },
    f"{_UNIT_THEIRS}.base_unit_metric": {"BaseUnitMetric": _METRICS},
    f"{_UNIT_THEIRS}.unit_metric_registry": {"UnitMetricRegistry": _METRICS, "unit_metric": _METRICS},
    f"{_UNIT_THEIRS}.unit_metric_result": {"UnitMetricResult": _METRICS},
    f"{_UNIT_THEIRS}.exact_match": {"ExactMatchMetric": _MATCH, "ExactMatchMetricConfig": _CONFIGS},
    f"{_UNIT_THEIRS}.fuzzy_match": {"FuzzyMatchMetric": _MATCH, "FuzzyMatchMetricConfig": _CONFIGS},
    f"{_UNIT_THEIRS}.action_within_bbox": {
        "ActionWithinBboxMetric": _GUI,
        "ActionWithinBboxMetricConfig": _CONFIGS,
    },
    f"{_UNIT_THEIRS}.typed_value_match": {
        "TypedValueMatchMetric": _GUI,
        "TypedValueMatchMetricConfig": _CONFIGS,
    },
    f"{_UNIT_THEIRS}.scroll_direction": {
        "ScrollDirectionMetric": _GUI,
        "ScrollDirectionMetricConfig": _CONFIGS,
    },
    f"{_UNIT_THEIRS}.scroll_amount": {
        "ScrollAmountMetric": _GUI,
        "ScrollAmountMetricConfig": _CONFIGS,
    },
    "sygra.core.eval.metrics.base_metric_metadata": {"BaseMetricMetadata=MetricMetadata": _METRICS},
    f"{_AGGREGATOR_THEIRS}.base_aggregator_metric": {"BaseAggregatorMetric": _METRICS},
    f"{_AGGREGATOR_THEIRS}.aggregator_metric_registry": {
        "AggregatorMetricRegistry": _METRICS,
        "aggregator_metric": _METRICS,
    },
    f"{_AGGREGATOR_THEIRS}.accuracy": {"AccuracyMetric": _CLASSES},
    f"{_AGGREGATOR_THEIRS}.precision": {"PrecisionMetric": _CLASSES, "PrecisionMetricConfig": _CONFIGS},
    f"{_AGGREGATOR_THEIRS}.recall": {"RecallMetric": _CLASSES, "RecallMetricConfig": _CONFIGS},
    f"{_AGGREGATOR_THEIRS}.f1_score": {"F1ScoreMetric": _CLASSES, "F1ScoreMetricConfig": _CONFIGS},
    f"{_AGGREGATOR_THEIRS}.pass_at_k": {"PassAtKMetric": _ATTEMPTS, "PassAtKMetricConfig": _CONFIGS},
    f"{_AGGREGATOR_THEIRS}.pass_power_k": {"PassPowerKMetric=PassHatKMetric": _ATTEMPTS},
    f"{_AGGREGATOR_THEIRS}.step_efficiency": {
        "StepEfficiencyMetric": _ATTEMPTS,
        "StepEfficiencyMetricConfig": _CONFIGS,
    },
    "sygra.core.base_task_executor": {
        "BaseTaskExecutor": _UTILS,
        "DefaultTaskExecutor=BaseTaskExecutor": _UTILS,
    },
    "sygra.core.models.structured_output.schemas_factory": {"SimpleResponse": "karat.graph.sygra._functions"},
    "sygra.core.graph.graph_postprocessor": {
        "GraphPostProcessor": "karat.graph._postprocess",
        "SemanticDedupPostProcessor": "karat.graph._deduplication",
    },
    "sygra.core.state": {"SygraState": _STATE},
    "sygra.core.graph.sygra_state": {"SygraState": _STATE},
    "sygra.core.graph.sygra_message": {"SygraMessage": _STATE},
    "sygra.core.graph.functions.lambda_function": {
        "LambdaFunction": _FUNCTIONS,
        "AsyncLambdaFunction": _FUNCTIONS,
    },
    "sygra.core.graph.functions.node_processor": {
        "NodePreProcessor": _FUNCTIONS,
        "NodePostProcessor": _FUNCTIONS,
        "NodePostProcessorWithState": _FUNCTIONS,
    },
    "sygra.core.graph.functions.edge_condition": {"EdgeCondition": _FUNCTIONS},
    "sygra.processors.output_record_generator": {"BaseOutputGenerator": "karat.graph._output"},
    "sygra.processors.data_transform": {
        "DataTransform": _TRANSFORM,
        "RenameFieldsTransform": _TRANSFORM,
        "AddNewFieldTransform": _TRANSFORM,
        "AddRetryFieldsTransform": _TRANSFORM,
        "SkipFieldsTransform": _TRANSFORM,
        "SkipRecords": _TRANSFORM,
        "CombineRecords": _TRANSFORM,
        "CreateImageUrlTransform": "karat.datasets.media",
        "CreateAudioUrlTransform": "karat.datasets.media",
    },
    "sygra.logger.logger_config": {"logger": _UTILS},
    "sygra.utils.constants": {
        "SYGRA_START": _UTILS,
        "SYGRA_END": _UTILS,
        "START": _STATE,
        "END": _STATE,
        "VAR_CHAT_HISTORY=CHAT_HISTORY": _STATE,
    },
    "sygra.utils.utils": {
        "get_func_from_str": _UTILS,
        "load_json_file": _UTILS,
        "load_jsonl_file": _UTILS,
        "load_yaml_file": _UTILS,
        "extract_and_load_json": _UTILS,
        "convert_messages_from_langchain_to_chat_format": _UTILS,
        "convert_messages_from_chat_format_to_langchain": _UTILS,
        "current_task=CURRENT_TASK": _RUNNING,
        "get_graph_properties": _RUNNING,
        "get_graph_property": _RUNNING,
        "get_file_in_task_dir": _RUNNING,
    },
    "langgraph.graph": {
        "START=SYGRA_START": _UTILS,
        "END=SYGRA_END": _UTILS,
    },
    "langchain_core.messages": {
        "BaseMessage=Message": _STATE,
        "AIMessage": _UTILS,
        "HumanMessage": _UTILS,
        "SystemMessage": _UTILS,
    },
    "langchain_core.tools": {"tool": _UTILS},
}
"""Module → its names → karat's module. `theirs=ours` where the name differs too."""


def is_installed(package: str) -> bool:
    """Whether a package of this name is installed; it is then left alone, and so are its names.

    A folder of that name in the working folder, such as that of a clone of SyGra, is not installed, nor is one
    elsewhere on the import path that has no `__init__.py`.
    """
    return _is_installed(package, os.getcwd())


@functools.cache
def _is_installed(package: str, folder: str) -> bool:
    here = os.path.realpath(folder)
    places = [entry for entry in sys.path if entry and os.path.realpath(entry) != here]
    try:
        spec = PathFinder.find_spec(package, places)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def stands_in(module: str) -> bool:
    """Whether the table's word counts for a module: `tasks.eval.utils` is part of sygra's own tree."""
    package = module.partition(".")[0]
    return not is_installed("sygra" if package == "tasks" else package)


def own_name(dotted: str) -> str | None:
    """karat's own dotted name for one of theirs; None where the table has none or theirs is installed."""
    module, _, name = dotted.rpartition(".")
    if module not in TABLE or not stands_in(module):
        return None
    for entry, ours in TABLE.get(module, {}).items():
        theirs, _, other = entry.partition("=")
        if theirs == name:
            return f"{ours}.{other or name}"
    return None
