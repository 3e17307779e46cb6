"""AutoGen: messages and events of AgentChat, and the model messages of its core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._calls import read_call, result_step
from karat.traces._objects import plain
from karat.traces.steps import Step, ToolCall, UnreadCall, Unused, rest, text_or_none

name = "autogen"

_CALLS = ("ToolCallRequestEvent", "ToolCallMessage")
_RESULTS = ("ToolCallExecutionEvent", "ToolCallResultMessage", "FunctionExecutionResultMessage")
_TEXTS = (
    "TextMessage",
    "MultiModalMessage",
    "StopMessage",
    "HandoffMessage",
    "StructuredMessage",
    "ThoughtEvent",
    "UserMessage",
    "SystemMessage",
    "AssistantMessage",
)
_EVENTS = (
    "ModelClientStreamingChunkEvent",
    "UserInputRequestedEvent",
    "MemoryQueryEvent",
    "SelectSpeakerEvent",
    "SelectorEvent",
    "CodeGenerationEvent",
    "CodeExecutionEvent",
)
_SUMMARY = "ToolCallSummaryMessage"
_KNOWN = frozenset((*_CALLS, *_RESULTS, *_TEXTS, *_EVENTS, _SUMMARY))


def detect(value: object) -> bool:
    """A message or event with one of AutoGen's types."""
    return isinstance(value, dict) and value.get("type") in _KNOWN and "content" in value


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the step of a message, or one for each result of an execution event."""
    kind, content = value["type"], plain(value["content"])
    extra = rest(value, "type", "content")
    if kind in _CALLS or (kind == "AssistantMessage" and isinstance(content, list)):
        yield from _read_calls(content, extra)
    elif kind in _RESULTS:
        yield from _read_results(content, extra)
    elif kind == _SUMMARY:
        # It repeats the calls and results of the events before it.
        step = Step("assistant", content, extra=rest(extra, "tool_calls", "results"))
        yield step
        repeated = rest({key: extra.get(key) for key in ("tool_calls", "results")})
        if repeated:
            yield Unused("", "calls and results of earlier events, repeated", repeated, harmless=True)
    elif kind in _EVENTS:
        yield Unused("", f"{kind} is not a message", value, harmless=True)
    else:
        yield Step(_role(kind, value.get("source")), content, extra=extra)


def _read_calls(content: Any, extra: dict[str, Any]) -> Iterator[Step | Unused]:
    if not isinstance(content, list):
        yield UnreadCall("content", "the tool calls are not a list", content)
        return
    calls: list[ToolCall] = []
    for position, given in enumerate(content):
        call = read_call(plain(given))
        if call is None:
            yield UnreadCall(f"content[{position}]", "a tool call without a name", given)
        else:
            calls.append(call)
    yield Step("assistant", None, calls, extra=extra)


def _read_results(content: Any, extra: dict[str, Any]) -> Iterator[Step | Unused]:
    for position, given in enumerate(content if isinstance(content, list) else [content]):
        result = plain(given)
        if not isinstance(result, dict):
            yield Unused(f"content[{position}]", "a result that is not an object", given)
            continue
        identity = text_or_none(result.get("call_id"))
        beside = {**extra, **rest(result, "content", "name", "call_id", "is_error")}
        failed = result.get("is_error") is True
        yield result_step(identity, result.get("name"), result.get("content"), failed, beside)
        extra = {}


def _role(kind: str, source: Any) -> str:
    if kind == "SystemMessage":
        return "system"
    return "user" if kind == "UserMessage" or source == "user" else "assistant"
