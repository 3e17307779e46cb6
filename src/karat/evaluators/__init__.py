"""Evaluators: what looks at an output and says how good it is.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

from karat.errors import CannotJudge as CannotJudge
from karat.lazy import load

_WHERE = {
    "Evaluator": "base",
    "FunctionEvaluator": "base",
    "build_evaluator": "base",
    "evaluators": "base",
    "list_evaluators": "base",
    "register_evaluator": "base",
    "ExactMatch": "text",
    "Contains": "text",
    "RegexMatch": "text",
    "EditDistance": "text",
    "NumericMatch": "answers",
    "SetMatch": "overlap",
    "TokenF1": "overlap",
    "ChoiceMatch": "answers",
    "JSONValid": "structured",
    "JSONSchemaMatch": "structured",
    "EmbeddingDistance": "similarity",
    "Bleu": "similarity",
    "Chrf": "similarity",
    "Rouge": "similarity",
    "TrajectoryMatchEvaluator": "trajectory",
    "ToolUseEvaluator": "trajectory",
    "ToolCallAccuracyEvaluator": "trajectory",
    "RedundantCallsEvaluator": "trajectory",
    "GraphTrajectoryMatchEvaluator": "trajectory",
    "ByMetric": "comparison",
    "ByFunction": "comparison",
    "FromOutput": "from_output",
    # Unit metrics are a built-in plug-in: they are named here and never imported by this package.
    "UnitMetricRegistry": "karat.graph.metrics",
    "unit_metric": "karat.graph.metrics",
    "BaseUnitMetric": "karat.graph.metrics",
    "UnitMetricResult": "karat.graph.metrics",
    "discover": "karat.graph.metrics",
}

__all__ = sorted([*_WHERE, "CannotJudge", "agentevals_adapter"])


def __getattr__(name: str) -> Any:
    if name == "agentevals_adapter":
        return importlib.import_module("karat.evaluators.agentevals_adapter")
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
