"""smolagents: the messages of `to_messages`, where calls are text, and the steps of an agent's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._calls import read_call, result_step, simple
from karat.traces._objects import plain
from karat.traces._text_calls import read_text
from karat.traces.steps import Step, ToolCall, UnreadCall, Unused, rest, text_of

name = "smolagents"

_ROLES = ("tool-call", "tool-response")
_STEP = frozenset(("tool_calls", "observations", "model_output", "action_output", "code_action"))


def detect(value: object) -> bool:
    """A message with one of smolagents' own roles, or a step of its memory."""
    if not isinstance(value, dict):
        return False
    if "role" in value:
        return value["role"] in _ROLES
    if "step_number" in value:
        return not _STEP.isdisjoint(value)
    return (isinstance(value.get("task"), str) and "task_images" in value) or (
        "plan" in value and "model_output_message" in value
    )


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the steps of a message, or of a step of the memory."""
    if "role" in value:
        yield from _read_message(value)
    elif "step_number" in value:
        yield from _read_step(value)
    elif "task" in value:
        yield Step("user", value["task"], extra=rest(value, "task"))
    else:
        yield Step("assistant", value["plan"], extra=rest(value, "plan"))


def _read_message(value: dict[str, Any]) -> Iterator[Step | Unused]:
    content, extra = simple(value.get("content")), rest(value, "role", "content")
    text = text_of(content)
    if not isinstance(content, (str, type(None))):
        extra["content"] = content  # blocks with more than their text
    if value["role"] == "tool-response":
        yield result_step(None, None, text.removeprefix("Observation:\n"), False, extra)
        return
    found = read_text("assistant", text, extra)
    if found is None:
        yield UnreadCall("content", "a tool call that is not written `Calling tools:` and a list", value)
    else:
        yield from found


def _read_step(value: dict[str, Any]) -> Iterator[Step | Unused]:
    calls: list[ToolCall] = []
    given = plain(value.get("tool_calls"))
    if given and not isinstance(given, list):
        yield UnreadCall("tool_calls", "tool_calls is not a list", given)
        return
    for position, each in enumerate(given or ()):
        call = read_call(plain(each))
        if call is None:
            yield UnreadCall(f"tool_calls[{position}]", "a tool call without a name", each)
        else:
            calls.append(call)
    extra = rest(value, "tool_calls", "model_output", "observations")
    yield Step("assistant", value.get("model_output"), calls, extra=extra)
    observed = value.get("observations")
    if observed is not None or value.get("error") is not None:
        failed = value.get("error") is not None
        yield result_step(None, None, value["error"] if observed is None else observed, failed)
