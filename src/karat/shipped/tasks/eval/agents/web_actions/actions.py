"""The steps of the web agent's graph: replaying what was recorded, judging it, trying again."""

from __future__ import annotations

from typing import Any

from karat.graph.metrics import BaseUnitMetric, UnitMetricRegistry


def replay(state: dict[str, Any]) -> dict[str, Any]:
    """What the agent did at this try; its last recorded action where there are no more."""
    retry = state["retry"] + 1 if "retry" in state else 0
    recorded = state["recorded"]
    return {"model_response": recorded[min(retry, len(recorded) - 1)], "retry": retry}


class JudgeAction:
    """Whether the tool is the right one, and whether it was used right: place, text or direction by its kind."""

    def __init__(self, tolerance: float = 0.0) -> None:
        self.tool: BaseUnitMetric = UnitMetricRegistry.get_metric("exact_match", key="tool")
        self.use: dict[str, BaseUnitMetric] = {
            "click": UnitMetricRegistry.get_metric("action_within_bbox", tolerance=tolerance),
            "type": UnitMetricRegistry.get_metric("typed_value_match"),
            "scroll": UnitMetricRegistry.get_metric("scroll_direction"),
        }

    def __call__(self, state: dict[str, Any]) -> dict[str, Any]:
        golden, predicted = state["golden_response"], state["model_response"]
        [tool] = self.tool.evaluate([golden], [predicted])
        step = tool
        if tool.correct:
            [step] = self.use[golden["tool"]].evaluate([golden], [predicted])
        return {"tool_match": tool.to_dict(), "step_match": step.to_dict()}


def try_again(state: dict[str, Any]) -> str:
    """Another try while the step is wrong, some are left, and there is something else to replay."""
    left = min(state["max_retries"], len(state["recorded"]) - 1) - state["retry"]
    return "again" if not state["step_match"]["correct"] and left > 0 else "done"
