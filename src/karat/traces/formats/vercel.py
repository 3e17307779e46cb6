"""The Vercel AI SDK: UIMessages of version 4 and 5, ModelMessages, and results of `generateText`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._calls import Found, named_call, read_parts, result_step
from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces.detection import placed
from karat.traces.steps import Step, UnreadCall, Unused, rest, text_or_none

name = "vercel"

_STEP_KEYS = ("toolCalls", "toolResults", "text", "content", "reasoning", "reasoningText", "finishReason")
_APPROVALS = ("tool-approval-request", "tool-approval-response")
_CHUNKS = tuple(
    f"tool-{chunk}"
    for chunk in (
        "input-start",
        "input-delta",
        "input-end",
        "input-available",
        "input-error",
        "output-available",
        "output-error",
        "output-denied",
        "call-delta",
        "call-streaming-start",
    )
)
"""Kinds of the chunks of a stream; a part of a message has a state."""
_UNFINISHED = ("input-streaming", "partial-call")
"""States of a call whose arguments are not complete."""
_KINDS = ("tool-call", "tool-result", "tool-error", "tool-invocation", "dynamic-tool")
_UI_KINDS = ("step-start", "text", "reasoning", "source", "source-url", "source-document", "file")


def detect(value: object) -> bool:
    """A message with tool parts or UI parts, a tool part, a step of `generateText`, or its whole result."""
    if not isinstance(value, dict):
        return False
    if "role" in value:
        if isinstance(value["role"], str) and "toolInvocations" in value:
            return True
        content = value.get("content")
        if isinstance(content, (list, tuple)) and any(map(_is_tool_part, map(plain, content))):
            return True
        parts = value.get("parts")
        return isinstance(parts, (list, tuple)) and _are_ui_parts([plain(part) for part in parts])
    return _is_tool_part(value) or _is_result(value) or _is_step(value)


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the steps of a message, or of all steps of a result."""
    if "role" in value:
        yield from _read_message(value)
    elif _is_tool_part(value):
        yield from read_parts("assistant", [value], {}, _part, "")
    elif _is_result(value):
        for position, step in enumerate(value["steps"]):
            yield from placed(_read_step(plain(step)), f"steps[{position}]")
        yield Unused("", "the fields of the result beside its steps", rest(value, "steps"), harmless=True)
    else:
        yield from _read_step(value)


def _read_message(value: dict[str, Any]) -> Iterator[Step | Unused]:
    role = value["role"]
    if isinstance(value.get("parts"), (list, tuple)) and value["parts"]:
        # Version 4 repeats the text and the calls of the parts in `content` and `toolInvocations`.
        extra = rest(value, "role", "parts", "content", "toolInvocations")
        yield from read_parts(role, value["parts"], extra, _part, "parts")
        beside = rest(value, "role", "parts", *extra)
        if beside:
            yield Unused("", "fields that repeat the parts", beside, harmless=True)
        return
    content = value.get("content")
    extra = rest(value, "role", "content", "toolInvocations")
    if isinstance(extra.get("parts"), (list, tuple)):
        del extra["parts"]  # it is empty
    parts = (
        [*content]
        if isinstance(content, (list, tuple))
        else [{"type": "text", "text": content}]
        if content
        else []
    )
    invocations = value.get("toolInvocations")
    if invocations is not None and not isinstance(invocations, (list, tuple)):
        yield UnreadCall("toolInvocations", "toolInvocations is not a list", invocations)
        return
    calls = [{"type": "tool-invocation", "toolInvocation": each} for each in invocations or ()]
    # In version 4 a message's text follows its calls.
    yield from read_parts(role, [*calls, *parts], extra, _part)


def _read_step(value: Any) -> Iterator[Step | Unused]:
    if not isinstance(value, dict):
        yield UnreadCall("", "a step that is not an object", value)
        return
    content = value.get("content")
    if isinstance(content, (list, tuple)):
        used = ("content", "text", "toolCalls", "toolResults")
        yield from read_parts("assistant", content, rest(value, *used), _part)
        repeated = {key: value[key] for key in used[1:] if value.get(key)}
        if repeated:
            yield Unused("", "fields that repeat the content", repeated, harmless=True)
        return
    text = value.get("text")
    for key in ("toolCalls", "toolResults"):
        if (given := value.get(key)) is not None and not isinstance(given, (list, tuple)):
            yield UnreadCall(key, f"{key} is not a list", given)
            return
    parts = [{"type": "text", "text": text}] if text else []
    tools: list[Any] = []
    for kind, key in (("tool-call", "toolCalls"), ("tool-result", "toolResults")):
        for position, each in enumerate(map(plain, value.get(key) or ())):
            if not isinstance(each, dict):
                yield UnreadCall(f"{key}[{position}]", "a tool call or a result that is not an object", each)
                return
            tools.append({"type": kind, **each})
    extra = rest(value, "text", "toolCalls", "toolResults")
    yield from read_parts("assistant", [*parts, *tools], extra, _part, "toolCalls")


def _part(part: Any) -> Found:
    if not isinstance(part, dict):
        return None if isinstance(part, str) else UnreadCall("", "a part that is not an object", part)
    kind = part.get("type")
    if kind == "tool-invocation":
        inside = plain(part.get("toolInvocation"))
        if not isinstance(inside, dict):
            return UnreadCall("", "a tool invocation without a toolInvocation", part)
        return _invocation({**rest(part, "type", "toolInvocation"), **inside}, inside.get("toolName"))
    if kind == "tool-call":
        return _call(part, part.get("toolName"), "type")
    if kind in ("tool-result", "tool-error"):
        key = next((key for key in ("output", "result", "error") if key in part), "output")
        content, failed = _output(part.get(key))
        failed = failed or kind == "tool-error" or part.get("isError") is True
        # A result of `generateText` repeats the arguments of its call.
        extra = rest(part, "type", "toolCallId", "toolName", key, "input", "args")
        repeated = {word: part[word] for word in ("input", "args") if word in part}
        step = result_step(text_or_none(part.get("toolCallId")), part.get("toolName"), content, failed, extra)
        found: list[Any] = [step]
        if repeated:
            found.append(
                Unused("", "the arguments of the call, repeated", repeated, harmless=True, reviewed=True)
            )
        return found
    if kind == "dynamic-tool":
        return _invocation(part, part.get("toolName"), "type")
    if kind in _APPROVALS and "approvalId" in part and "state" not in part:
        return None  # a question about a call that has a part of its own
    if kind in _CHUNKS and "state" not in part:
        return UnreadCall(
            "", "a piece of a tool call (merge the chunks of a stream into messages first)", part
        )
    if isinstance(kind, str) and kind.startswith("tool-") and ("toolCallId" in part or "state" in part):
        return _invocation(part, kind.removeprefix("tool-"), "type")
    if isinstance(kind, str) and kind.startswith("tool-") and ("input" in part or "args" in part):
        return UnreadCall("", f"a part {kind[:60]!r} without a toolCallId and a state", part)
    return None


def _call(part: dict[str, Any], tool: Any, *used: str) -> Found:
    key = next((key for key in ("input", "args", "rawInput") if part.get(key) is not None), "input")
    arguments, raw = read_arguments(part.get(key))
    call = named_call(
        part.get("toolCallId"), tool, arguments, raw, rest(part, *used, "toolCallId", "toolName", key)
    )
    return call or UnreadCall("", "a tool call without a name", part)


def _invocation(part: dict[str, Any], tool: Any, *used: str) -> Found:
    """Return a call, and its result where there is one."""
    if part.get("state") in _UNFINISHED:
        return UnreadCall(
            "", f"a tool call in the state {part['state']!r}, without all of its arguments", part
        )
    outcome = ("output", "result", "errorText")
    call = _call({key: value for key, value in part.items() if key not in outcome}, tool, *used)
    key = next((key for key in outcome if part.get(key) is not None), None)
    if key is None or isinstance(call, Unused):
        return call
    failed = key == "errorText" or part.get("state") in ("output-error", "output-denied")
    return [call, result_step(text_or_none(part.get("toolCallId")), tool, part[key], failed)]  # type: ignore[list-item]  # it is a call


def _output(output: Any) -> tuple[Any, bool]:
    """Return the value of a typed output (`{type: "json", value: …}`), and whether it is an error."""
    output = plain(output)
    if isinstance(output, dict) and output.keys() == {"type", "value"}:
        return output["value"], str(output["type"]).startswith("error")
    return output, False


def _is_tool_part(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    if kind in _KINDS:
        return "toolCallId" in part or "toolName" in part or "toolInvocation" in part
    return isinstance(kind, str) and kind.startswith("tool-") and "toolCallId" in part


def _are_ui_parts(parts: list[Any]) -> bool:
    """Return whether parts are a UIMessage's: OpenTelemetry's have `content` for text."""
    if any(map(_is_tool_part, parts)):
        return True
    return bool(parts) and all(
        isinstance(part, dict)
        and (part.get("type") in _UI_KINDS[2:] or part.get("type") == "step-start" or "text" in part)
        and isinstance(part.get("type"), str)
        for part in parts
    )


def _is_step(value: dict[str, Any]) -> bool:
    return ("toolCalls" in value or "toolResults" in value) and any(
        key in value for key in ("finishReason", "stepType", "text", "toolResults")
    )


def _is_result(value: dict[str, Any]) -> bool:
    steps = value.get("steps")
    if not isinstance(steps, (list, tuple)) or not steps:
        return False
    first = plain(steps[0])
    if not isinstance(first, dict) or "role" in first:
        return False
    content = first.get("content")
    listed = isinstance(content, (list, tuple)) and "finishReason" in first
    return _is_step(first) or listed
