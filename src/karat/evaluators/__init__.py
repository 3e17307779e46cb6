"""Evaluators: what looks at an output and says how good it is.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from karat.errors import CannotJudge as CannotJudge
from karat.lazy import load

if TYPE_CHECKING:
    from karat.evaluators import agentevals_adapter as agentevals_adapter
    from karat.evaluators.answers import ChoiceMatch as ChoiceMatch
    from karat.evaluators.answers import NumericMatch as NumericMatch
    from karat.evaluators.base import Evaluator as Evaluator
    from karat.evaluators.base import FunctionEvaluator as FunctionEvaluator
    from karat.evaluators.base import build_evaluator as build_evaluator
    from karat.evaluators.base import evaluators as evaluators
    from karat.evaluators.base import list_evaluators as list_evaluators
    from karat.evaluators.base import register_evaluator as register_evaluator
    from karat.evaluators.comparison import ByFunction as ByFunction
    from karat.evaluators.comparison import ByMetric as ByMetric
    from karat.evaluators.from_output import FromOutput as FromOutput
    from karat.evaluators.overlap import SetMatch as SetMatch
    from karat.evaluators.overlap import TokenF1 as TokenF1
    from karat.evaluators.similarity import Bleu as Bleu
    from karat.evaluators.similarity import Chrf as Chrf
    from karat.evaluators.similarity import EmbeddingDistance as EmbeddingDistance
    from karat.evaluators.similarity import Rouge as Rouge
    from karat.evaluators.structured import JSONSchemaMatch as JSONSchemaMatch
    from karat.evaluators.structured import JSONValid as JSONValid
    from karat.evaluators.text import Contains as Contains
    from karat.evaluators.text import EditDistance as EditDistance
    from karat.evaluators.text import ExactMatch as ExactMatch
    from karat.evaluators.text import RegexMatch as RegexMatch
    from karat.evaluators.trajectory import GraphTrajectoryMatchEvaluator as GraphTrajectoryMatchEvaluator
    from karat.evaluators.trajectory import RedundantCallsEvaluator as RedundantCallsEvaluator
    from karat.evaluators.trajectory import ToolCallAccuracyEvaluator as ToolCallAccuracyEvaluator
    from karat.evaluators.trajectory import ToolUseEvaluator as ToolUseEvaluator
    from karat.evaluators.trajectory import TrajectoryMatchEvaluator as TrajectoryMatchEvaluator
    from karat.graph.metrics import BaseUnitMetric as BaseUnitMetric
    from karat.graph.metrics import UnitMetricRegistry as UnitMetricRegistry
    from karat.graph.metrics import UnitMetricResult as UnitMetricResult
    from karat.graph.metrics import discover as discover
    from karat.graph.metrics import unit_metric as unit_metric

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
