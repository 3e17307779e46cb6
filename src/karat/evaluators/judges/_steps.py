"""Trajectories as text for a judge: numbered steps, nothing left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from karat.errors import CannotJudge
from karat.evaluators.judges._base import Case
from karat.paths import MISSING
from karat.records import Call
from karat.traces import Step, ToolCall, ToolResult, normalize


def trajectory_of(who: str, case: Case, at: object = MISSING) -> list[Step]:
    """The steps of an item: at a configured path, in the output, or recorded while the task ran."""
    value = case.outputs if at is MISSING else at
    recorded = case.output.trace if case.output is not None else []
    if at is not MISSING and _is_calls(value):
        return steps_of_calls(recorded)
    if isinstance(value, (str, int, float, bool)) or value is None:
        steps = steps_of_calls(recorded)
        if value is not None:
            steps.append(Step("assistant", value if isinstance(value, str) else json.dumps(value)))
        return steps
    found = normalize(value)
    lost = [part for part in found.unused if not part.harmless]
    if lost and not found.steps:
        raise CannotJudge(f"{who}: the trajectory cannot be read: {lost[0].where}: {lost[0].reason}")
    steps = list(found.steps)
    # A part that became no step may be what decides: the judge sees it as it is.
    steps += [Step("unread", json.dumps(part.value, ensure_ascii=False, default=str)) for part in lost]
    if not found.steps and recorded:
        return steps_of_calls(recorded) + steps
    return steps


def _is_calls(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(e, dict) and "kind" in e for e in value)


def steps_of_calls(calls: Sequence[Call]) -> list[Step]:
    """Recorded model and tool calls as steps."""
    steps = []
    for call in calls:
        if call.kind == "tool":
            arguments = call.input if isinstance(call.input, dict) else {"input": call.input}
            content = call.error if call.error is not None else call.output
            steps.append(Step("assistant", None, [ToolCall(None, call.name, arguments)]))
            steps.append(
                Step(
                    "tool", content, tool_result=ToolResult(None, call.name, content, call.error is not None)
                )
            )
        else:
            steps.append(Step("assistant", call.output if call.error is None else f"(failed: {call.error})"))
    return steps


def render_steps(steps: Sequence[Step], first: int = 1) -> list[str]:
    """Each step as text with its number."""
    return [f"Step {number} ({step.role}):\n{render(step)}" for number, step in enumerate(steps, first)]


def render(step: Step) -> str:
    """Render a step: its text, its tool calls with arguments, or a tool's result."""
    lines = []
    if step.tool_result is not None:
        result = step.tool_result
        head = f"result of {result.name or 'a tool'}" + (" (error)" if result.error else "")
        lines.append(f"{head}: {_text(result.content if result.content is not None else step.content)}")
    elif step.content is not None and step.content != "":
        lines.append(_text(step.content))
    for call in step.tool_calls:
        arguments = (
            call.raw if call.malformed else json.dumps(call.arguments, ensure_ascii=False, default=str)
        )
        lines.append(f"calls {call.name}({arguments})")
    return "\n".join(lines) or "(nothing)"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(each, dict) and each.keys() <= {"type", "text"} and isinstance(each.get("text"), str)
        for each in value
    ):
        return "\n".join(each["text"] for each in value)
    return json.dumps(value, ensure_ascii=False, default=str)
