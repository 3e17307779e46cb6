"""One table: names that tasks written for SyGra use, and the parts of karat they mean."""

from __future__ import annotations

import functools
import importlib.util

_GRAPH = "karat.graph"
_UNIT = "karat.evaluators.unit"
_AGGREGATOR = "karat.aggregators.metrics"
_BUILTIN = "karat.aggregators.builtin_metrics"
_ATTEMPTS = "karat.aggregators.attempt_metrics"
_CONFIGS = "karat.graph.compat.metric_configs"
_FUNCTIONS = f"{_GRAPH}.functions"
_STATE = f"{_GRAPH}.state"
_TRANSFORM = "karat.datasets.transformations"
_UNIT_THEIRS = "sygra.core.eval.metrics.unit_metrics"
_AGGREGATOR_THEIRS = "sygra.core.eval.metrics.aggregator_metrics"
METRICS_THEIRS = (_UNIT_THEIRS, _AGGREGATOR_THEIRS)
"""Where tasks written for SyGra put metrics of their own, beside those of the table."""

TABLE: dict[str, dict[str, str]] = {
    "tasks.eval.utils": {
        "UnitMetrics": f"{_GRAPH}.unit_metrics",
        "MetricCollatorPostProcessor": f"{_GRAPH}.collator",
        "parse_response_as_json": "karat.graph.compat.sygra_utils",
    },
    f"{_UNIT_THEIRS}.base_unit_metric": {"BaseUnitMetric": _UNIT},
    f"{_UNIT_THEIRS}.unit_metric_registry": {"UnitMetricRegistry": _UNIT, "unit_metric": _UNIT},
    f"{_UNIT_THEIRS}.unit_metric_result": {"UnitMetricResult": _UNIT},
    f"{_UNIT_THEIRS}.exact_match": {"ExactMatchMetric": f"{_UNIT}.match", "ExactMatchMetricConfig": _CONFIGS},
    f"{_UNIT_THEIRS}.fuzzy_match": {"FuzzyMatchMetric": f"{_UNIT}.match", "FuzzyMatchMetricConfig": _CONFIGS},
    f"{_UNIT_THEIRS}.action_within_bbox": {
        "ActionWithinBboxMetric": f"{_UNIT}.gui",
        "ActionWithinBboxMetricConfig": _CONFIGS,
    },
    f"{_UNIT_THEIRS}.typed_value_match": {
        "TypedValueMatchMetric": f"{_UNIT}.gui",
        "TypedValueMatchMetricConfig": _CONFIGS,
    },
    f"{_UNIT_THEIRS}.scroll_direction": {
        "ScrollDirectionMetric": f"{_UNIT}.gui",
        "ScrollDirectionMetricConfig": _CONFIGS,
    },
    f"{_UNIT_THEIRS}.scroll_amount": {
        "ScrollAmountMetric": f"{_UNIT}.gui",
        "ScrollAmountMetricConfig": _CONFIGS,
    },
    "sygra.core.eval.metrics.base_metric_metadata": {"BaseMetricMetadata=MetricMetadata": _UNIT},
    f"{_AGGREGATOR_THEIRS}.base_aggregator_metric": {"BaseAggregatorMetric": _AGGREGATOR},
    f"{_AGGREGATOR_THEIRS}.aggregator_metric_registry": {
        "AggregatorMetricRegistry": _AGGREGATOR,
        "aggregator_metric": _AGGREGATOR,
    },
    f"{_AGGREGATOR_THEIRS}.accuracy": {"AccuracyMetric": _BUILTIN},
    f"{_AGGREGATOR_THEIRS}.precision": {"PrecisionMetric": _BUILTIN, "PrecisionMetricConfig": _CONFIGS},
    f"{_AGGREGATOR_THEIRS}.recall": {"RecallMetric": _BUILTIN, "RecallMetricConfig": _CONFIGS},
    f"{_AGGREGATOR_THEIRS}.f1_score": {"F1ScoreMetric": _BUILTIN, "F1ScoreMetricConfig": _CONFIGS},
    f"{_AGGREGATOR_THEIRS}.pass_at_k": {"PassAtKMetric": _ATTEMPTS, "PassAtKMetricConfig": _CONFIGS},
    f"{_AGGREGATOR_THEIRS}.pass_power_k": {"PassPowerKMetric=PassHatKMetric": _ATTEMPTS},
    f"{_AGGREGATOR_THEIRS}.step_efficiency": {
        "StepEfficiencyMetric": _ATTEMPTS,
        "StepEfficiencyMetricConfig": _CONFIGS,
    },
    "sygra.core.base_task_executor": {
        "BaseTaskExecutor": "karat.graph.compat.sygra_utils",
        "DefaultTaskExecutor=BaseTaskExecutor": "karat.graph.compat.sygra_utils",
    },
    "sygra.core.models.structured_output.schemas_factory": {
        "SimpleResponse": "karat.graph.compat.sygra_schemas"
    },
    "sygra.core.graph.graph_postprocessor": {
        "GraphPostProcessor": f"{_GRAPH}.postprocess",
        "SemanticDedupPostProcessor": f"{_GRAPH}.deduplication",
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
    "sygra.processors.output_record_generator": {"BaseOutputGenerator": f"{_GRAPH}.output"},
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
    "sygra.logger.logger_config": {"logger": "karat.graph.compat.sygra_utils"},
    "sygra.utils.constants": {
        "SYGRA_START": "karat.graph.compat.sygra_utils",
        "SYGRA_END": "karat.graph.compat.sygra_utils",
        "START": _STATE,
        "END": _STATE,
        "VAR_CHAT_HISTORY=CHAT_HISTORY": _STATE,
    },
    "sygra.utils.utils": {
        "get_func_from_str": "karat.graph.compat.sygra_utils",
        "load_json_file": "karat.graph.compat.sygra_utils",
        "load_jsonl_file": "karat.graph.compat.sygra_utils",
        "load_yaml_file": "karat.graph.compat.sygra_utils",
        "extract_and_load_json": "karat.graph.compat.sygra_utils",
        "convert_messages_from_langchain_to_chat_format": "karat.graph.compat.sygra_utils",
        "convert_messages_from_chat_format_to_langchain": "karat.graph.compat.sygra_utils",
        "current_task=CURRENT_TASK": "karat.graph.compat.running_task",
        "get_graph_properties": "karat.graph.compat.running_task",
        "get_graph_property": "karat.graph.compat.running_task",
        "get_file_in_task_dir": "karat.graph.compat.running_task",
    },
    "langgraph.graph": {
        "START=SYGRA_START": "karat.graph.compat.sygra_utils",
        "END=SYGRA_END": "karat.graph.compat.sygra_utils",
    },
    "langchain_core.messages": {
        "BaseMessage=Message": _STATE,
        "AIMessage": "karat.graph.compat.sygra_utils",
        "HumanMessage": "karat.graph.compat.sygra_utils",
        "SystemMessage": "karat.graph.compat.sygra_utils",
    },
    "langchain_core.tools": {"tool": "karat.graph.compat.sygra_utils"},
}
"""Module → its names → karat's module. `theirs=ours` where the name differs too."""


@functools.cache
def is_installed(package: str) -> bool:
    """Whether a real package of this name is on the import path; it is then left alone, and so are its names.

    A folder that happens to have the name, without being a package, is none.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin not in (None, "karat")


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
