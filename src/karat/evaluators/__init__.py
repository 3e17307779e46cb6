"""Evaluators: they judge an output, a pair of outputs, or all runs' outputs of an example.

Every name is imported when it is first used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from karat.errors import CannotJudge as CannotJudge
from karat.lazy import exports
from karat.registry import SHIPPED_PLUGIN

if TYPE_CHECKING:
    from karat.evaluators import agentevals_adapter as agentevals_adapter
    from karat.evaluators._answers import ChoiceMatch as ChoiceMatch
    from karat.evaluators._answers import NumericMatch as NumericMatch
    from karat.evaluators._answers import SetMatch as SetMatch
    from karat.evaluators._answers import TokenF1 as TokenF1
    from karat.evaluators._base import Bounds as Bounds
    from karat.evaluators._base import Evaluator as Evaluator
    from karat.evaluators._base import FunctionEvaluator as FunctionEvaluator
    from karat.evaluators._base import Item as Item
    from karat.evaluators._base import ParameterCheck as ParameterCheck
    from karat.evaluators._base import RunOutput as RunOutput
    from karat.evaluators._base import build_evaluator as build_evaluator
    from karat.evaluators._base import evaluators as evaluators
    from karat.evaluators._base import list_evaluators as list_evaluators
    from karat.evaluators._base import register_evaluator as register_evaluator
    from karat.evaluators._pairwise import ByFunction as ByFunction
    from karat.evaluators._pairwise import ByMetric as ByMetric
    from karat.evaluators._similarity import Bleu as Bleu
    from karat.evaluators._similarity import Chrf as Chrf
    from karat.evaluators._similarity import EmbeddingDistance as EmbeddingDistance
    from karat.evaluators._similarity import Rouge as Rouge
    from karat.evaluators._structured import FromOutput as FromOutput
    from karat.evaluators._structured import JSONSchemaMatch as JSONSchemaMatch
    from karat.evaluators._structured import JSONValid as JSONValid
    from karat.evaluators._text import Contains as Contains
    from karat.evaluators._text import EditDistance as EditDistance
    from karat.evaluators._text import ExactMatch as ExactMatch
    from karat.evaluators._text import RegexMatch as RegexMatch
    from karat.evaluators._values import TextRules as TextRules
    from karat.evaluators._values import plain as plain
    from karat.evaluators._values import same as same
    from karat.evaluators._values import text_of as text_of
    from karat.evaluators._values import value_at as value_at
    from karat.evaluators.judges import RUBRIC_PRESETS as RUBRIC_PRESETS
    from karat.evaluators.judges import AgentAsJudgeEvaluator as AgentAsJudgeEvaluator
    from karat.evaluators.judges import AnswerCorrectnessEvaluator as AnswerCorrectnessEvaluator
    from karat.evaluators.judges import AnswerRelevanceEvaluator as AnswerRelevanceEvaluator
    from karat.evaluators.judges import ContextRelevanceEvaluator as ContextRelevanceEvaluator
    from karat.evaluators.judges import GroundednessEvaluator as GroundednessEvaluator
    from karat.evaluators.judges import ItemJudge as ItemJudge
    from karat.evaluators.judges import ItemVerdict as ItemVerdict
    from karat.evaluators.judges import JudgeFailure as JudgeFailure
    from karat.evaluators.judges import LLMJudge as LLMJudge
    from karat.evaluators.judges import LLMTrajectoryJudge as LLMTrajectoryJudge
    from karat.evaluators.judges import PairwiseJudge as PairwiseJudge
    from karat.evaluators.judges import RubricDagEvaluator as RubricDagEvaluator
    from karat.evaluators.judges import make_rubric_dag as make_rubric_dag
    from karat.evaluators.judges import rag_triad as rag_triad
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
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            "_answers": "ChoiceMatch NumericMatch SetMatch TokenF1",
            "_base": "Bounds Evaluator FunctionEvaluator Item ParameterCheck RunOutput build_evaluator "
            "evaluators list_evaluators register_evaluator",
            "_pairwise": "ByFunction ByMetric",
            "_similarity": "Bleu Chrf EmbeddingDistance Rouge",
            "_structured": "FromOutput JSONSchemaMatch JSONValid",
            "_text": "Contains EditDistance ExactMatch RegexMatch",
            "_values": "TextRules plain same text_of value_at",
            "judges": "AgentAsJudgeEvaluator AnswerCorrectnessEvaluator AnswerRelevanceEvaluator "
            "ContextRelevanceEvaluator GroundednessEvaluator ItemJudge ItemVerdict JudgeFailure "
            "LLMJudge LLMTrajectoryJudge PairwiseJudge RUBRIC_PRESETS RubricDagEvaluator "
            "make_rubric_dag rag_triad",
            "trajectory": "GraphTrajectoryMatchEvaluator RedundantCallsEvaluator ToolCallAccuracyEvaluator "
            "ToolUseEvaluator TrajectoryMatchEvaluator",
            # Unit metrics are a built-in plug-in: they are named here and never imported by this package.
            SHIPPED_PLUGIN: "BaseUnitMetric UnitMetricRegistry UnitMetricResult discover unit_metric",
            ".": "agentevals_adapter",
        },
        "CannotJudge",
    )
