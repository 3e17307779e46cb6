"""Judges: evaluators that ask a model for a verdict. Importing this package registers them."""

from __future__ import annotations

from karat.evaluators.judges._core import (
    JudgeContextOverflow,
    JudgeEmpty,
    JudgeFailure,
    JudgeFiltered,
    JudgeMalformed,
    JudgeRefused,
    JudgeTruncated,
)
from karat.evaluators.judges.agent import AgentAsJudgeEvaluator
from karat.evaluators.judges.criterion import LLMJudge, LLMTrajectoryJudge
from karat.evaluators.judges.items import ItemJudge, ItemVerdict
from karat.evaluators.judges.pairwise import PairwiseJudge
from karat.evaluators.judges.rag import (
    AnswerCorrectnessEvaluator,
    AnswerRelevanceEvaluator,
    ContextRelevanceEvaluator,
    GroundednessEvaluator,
    rag_triad,
)
from karat.evaluators.judges.rubric import RUBRIC_PRESETS, RubricDagEvaluator, make_rubric_dag

__all__ = [
    "RUBRIC_PRESETS",
    "AgentAsJudgeEvaluator",
    "AnswerCorrectnessEvaluator",
    "AnswerRelevanceEvaluator",
    "ContextRelevanceEvaluator",
    "GroundednessEvaluator",
    "ItemJudge",
    "ItemVerdict",
    "JudgeContextOverflow",
    "JudgeEmpty",
    "JudgeFailure",
    "JudgeFiltered",
    "JudgeMalformed",
    "JudgeRefused",
    "JudgeTruncated",
    "LLMJudge",
    "LLMTrajectoryJudge",
    "PairwiseJudge",
    "RubricDagEvaluator",
    "make_rubric_dag",
    "rag_triad",
]
