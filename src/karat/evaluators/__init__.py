"""Evaluators: they judge an output, a pair of outputs, or all runs' outputs of an example.

Every name is imported when it is first used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from karat.errors import CannotJudge as CannotJudge
from karat.lazy import load
from karat.registry import SHIPPED_PLUGIN

if TYPE_CHECKING:
    from karat.evaluators import agentevals_adapter as agentevals_adapter
    from karat.evaluators._answers import ChoiceMatch, NumericMatch, SetMatch, TokenF1
    from karat.evaluators._base import (
        Bounds,
        Evaluator,
        FunctionEvaluator,
        Item,
        ParameterCheck,
        RunOutput,
        build_evaluator,
        evaluators,
        list_evaluators,
        register_evaluator,
    )
    from karat.evaluators._pairwise import ByFunction, ByMetric
    from karat.evaluators._similarity import Bleu, Chrf, EmbeddingDistance, Rouge
    from karat.evaluators._structured import FromOutput, JSONSchemaMatch, JSONValid
    from karat.evaluators._text import Contains, EditDistance, ExactMatch, RegexMatch
    from karat.evaluators._values import TextRules, plain, same, text_of, value_at
    from karat.evaluators.judges import (
        RUBRIC_PRESETS,
        AgentAsJudgeEvaluator,
        AnswerCorrectnessEvaluator,
        AnswerRelevanceEvaluator,
        ContextRelevanceEvaluator,
        GroundednessEvaluator,
        ItemJudge,
        ItemVerdict,
        JudgeFailure,
        LLMJudge,
        LLMTrajectoryJudge,
        PairwiseJudge,
        RubricDagEvaluator,
        make_rubric_dag,
        rag_triad,
    )
    from karat.evaluators.trajectory import (
        GraphTrajectoryMatchEvaluator,
        RedundantCallsEvaluator,
        ToolCallAccuracyEvaluator,
        ToolUseEvaluator,
        TrajectoryMatchEvaluator,
    )
    from karat.graph.metrics import (
        BaseUnitMetric,
        UnitMetricRegistry,
        UnitMetricResult,
        discover,
        unit_metric,
    )

_WHERE = {
    "Bounds": "_base",
    "Evaluator": "_base",
    "FunctionEvaluator": "_base",
    "Item": "_base",
    "RunOutput": "_base",
    "ParameterCheck": "_base",
    "TextRules": "_values",
    "plain": "_values",
    "same": "_values",
    "text_of": "_values",
    "value_at": "_values",
    "build_evaluator": "_base",
    "evaluators": "_base",
    "list_evaluators": "_base",
    "register_evaluator": "_base",
    "ExactMatch": "_text",
    "Contains": "_text",
    "RegexMatch": "_text",
    "EditDistance": "_text",
    "NumericMatch": "_answers",
    "SetMatch": "_answers",
    "TokenF1": "_answers",
    "ChoiceMatch": "_answers",
    "JSONValid": "_structured",
    "JSONSchemaMatch": "_structured",
    "EmbeddingDistance": "_similarity",
    "Bleu": "_similarity",
    "Chrf": "_similarity",
    "Rouge": "_similarity",
    "TrajectoryMatchEvaluator": "trajectory",
    "ToolUseEvaluator": "trajectory",
    "ToolCallAccuracyEvaluator": "trajectory",
    "RedundantCallsEvaluator": "trajectory",
    "GraphTrajectoryMatchEvaluator": "trajectory",
    "ByMetric": "_pairwise",
    "ByFunction": "_pairwise",
    "FromOutput": "_structured",
    "RUBRIC_PRESETS": "judges",
    "AgentAsJudgeEvaluator": "judges",
    "AnswerCorrectnessEvaluator": "judges",
    "AnswerRelevanceEvaluator": "judges",
    "ContextRelevanceEvaluator": "judges",
    "GroundednessEvaluator": "judges",
    "ItemJudge": "judges",
    "ItemVerdict": "judges",
    "JudgeFailure": "judges",
    "LLMJudge": "judges",
    "LLMTrajectoryJudge": "judges",
    "PairwiseJudge": "judges",
    "RubricDagEvaluator": "judges",
    "make_rubric_dag": "judges",
    "rag_triad": "judges",
    # Unit metrics are a built-in plug-in: they are named here and never imported by this package.
    "UnitMetricRegistry": SHIPPED_PLUGIN,
    "unit_metric": SHIPPED_PLUGIN,
    "BaseUnitMetric": SHIPPED_PLUGIN,
    "UnitMetricResult": SHIPPED_PLUGIN,
    "discover": SHIPPED_PLUGIN,
}

__all__ = [
    "RUBRIC_PRESETS",
    "AgentAsJudgeEvaluator",
    "AnswerCorrectnessEvaluator",
    "AnswerRelevanceEvaluator",
    "BaseUnitMetric",
    "Bleu",
    "Bounds",
    "ByFunction",
    "ByMetric",
    "CannotJudge",
    "ChoiceMatch",
    "Chrf",
    "Contains",
    "ContextRelevanceEvaluator",
    "EditDistance",
    "EmbeddingDistance",
    "Evaluator",
    "ExactMatch",
    "FromOutput",
    "FunctionEvaluator",
    "GraphTrajectoryMatchEvaluator",
    "GroundednessEvaluator",
    "Item",
    "ItemJudge",
    "ItemVerdict",
    "JSONSchemaMatch",
    "JSONValid",
    "JudgeFailure",
    "LLMJudge",
    "LLMTrajectoryJudge",
    "NumericMatch",
    "PairwiseJudge",
    "ParameterCheck",
    "RedundantCallsEvaluator",
    "RegexMatch",
    "Rouge",
    "RubricDagEvaluator",
    "RunOutput",
    "SetMatch",
    "TextRules",
    "TokenF1",
    "ToolCallAccuracyEvaluator",
    "ToolUseEvaluator",
    "TrajectoryMatchEvaluator",
    "UnitMetricRegistry",
    "UnitMetricResult",
    "agentevals_adapter",
    "build_evaluator",
    "discover",
    "evaluators",
    "list_evaluators",
    "make_rubric_dag",
    "plain",
    "rag_triad",
    "register_evaluator",
    "same",
    "text_of",
    "unit_metric",
    "value_at",
]


def __getattr__(name: str) -> Any:
    if name == "agentevals_adapter":
        return importlib.import_module("karat.evaluators.agentevals_adapter")
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
