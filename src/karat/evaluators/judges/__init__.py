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
from karat.evaluators.judges.criterion import LLMJudge, LLMTrajectoryJudge

__all__ = [
    "JudgeContextOverflow",
    "JudgeEmpty",
    "JudgeFailure",
    "JudgeFiltered",
    "JudgeMalformed",
    "JudgeRefused",
    "JudgeTruncated",
    "LLMJudge",
    "LLMTrajectoryJudge",
]
