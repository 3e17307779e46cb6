"""Evaluators of trajectories: tool calls against a reference, use of tools, and paths through a graph."""

from __future__ import annotations

from karat.evaluators.trajectory.graph import GraphTrajectoryMatchEvaluator
from karat.evaluators.trajectory.match import TrajectoryMatchEvaluator
from karat.evaluators.trajectory.tools import (
    RedundantCallsEvaluator,
    ToolCallAccuracyEvaluator,
    ToolUseEvaluator,
)

__all__ = [
    "GraphTrajectoryMatchEvaluator",
    "RedundantCallsEvaluator",
    "ToolCallAccuracyEvaluator",
    "ToolUseEvaluator",
    "TrajectoryMatchEvaluator",
]
