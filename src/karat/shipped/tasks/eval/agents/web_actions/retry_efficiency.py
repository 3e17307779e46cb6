"""Retry efficiency: how few tries the right actions took."""

from __future__ import annotations

from typing import Any

from karat.graph.metrics import BaseAggregatorMetric, UnitMetricResult, aggregator_metric


@aggregator_metric("retry_efficiency")
class RetryEfficiency(BaseAggregatorMetric):
    """1 for a step that was right at once, less a penalty for each retry, 0 for one that never was; averaged.

    The results' metadata tell `retry` (0 for the first try) and, for the breakdown, `mission_id`.
    """

    def __init__(self, penalty_per_retry: float = 0.2) -> None:
        super().__init__(penalty_per_retry=penalty_per_retry)

    def validate_config(self) -> None:
        self.penalty = self.config["penalty_per_retry"]
        if not isinstance(self.penalty, (int, float)) or not 0 <= self.penalty <= 1:
            raise ValueError(f"penalty_per_retry is {self.penalty!r}: it must be a number between 0 and 1")

    def start(self) -> dict[str, Any]:
        return {"missions": {}, "of": 0}

    def add(self, state: dict[str, Any], result: UnitMetricResult | None) -> dict[str, Any]:
        state["of"] += 1
        if result is not None:
            share = max(0.0, 1.0 - self.penalty * result.metadata["retry"]) if result.correct else 0.0
            state["missions"].setdefault(str(result.metadata.get("mission_id")), []).append(share)
        return state

    def merge(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        for mission, shares in b["missions"].items():
            a["missions"].setdefault(mission, []).extend(shares)
        a["of"] += b["of"]
        return a

    def finish(self, state: dict[str, Any]) -> dict[str, Any]:
        every = [share for shares in state["missions"].values() for share in shares]
        return {
            "retry_efficiency": sum(every) / len(every) if every else None,
            "retry_efficiency_per_mission": {m: sum(s) / len(s) for m, s in state["missions"].items()},
            "n": len(every),
            "of": state["of"],
        }
