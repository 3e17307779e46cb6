"""LangChain messages: the objects, `messages_to_dict`, `dumpd` and `model_dump` forms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces.formats.openai_chat import calls_beside
from karat.traces.steps import Step, ToolCall, ToolResult, Unused, rest, text_or_none

name = "langchain"

_ROLES = {
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "human": "user",
    "HumanMessageChunk": "user",
    "system": "system",
    "SystemMessageChunk": "system",
    "tool": "tool",
    "ToolMessageChunk": "tool",
    "function": "tool",
    "FunctionMessageChunk": "tool",
    "chat": "user",
}
_CLASSES = {
    "AIMessage": "ai",
    "AIMessageChunk": "ai",
    "HumanMessage": "human",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "FunctionMessage": "function",
    "ChatMessage": "chat",
}
_ARGUMENTS = ("args", "input", "arguments")
_USED = (
    "type",
    "role",
    "content",
    "tool_calls",
    "invalid_tool_calls",
    "tool_call_id",
    "tool_call_chunks",
)


def detect(value: Any) -> bool:
    """One message in any of the forms."""
    return _fields(value) is not None


def read(value: Any) -> Iterator[Step | Unused]:
    """One message as one step."""
    fields = _fields(value)
    assert fields is not None, "read is called for what detect knows"
    kind = fields["type"]
    role = fields["role"] if kind == "chat" and isinstance(fields.get("role"), str) else _ROLES[kind]
    content = plain(fields.get("content"))
    extra = {key: part for key, part in rest(fields, *_USED).items() if part not in ({}, [], "", False)}
    if role == "tool":
        yield _tool_step(fields, content, extra)
        return
    calls, bad = _calls(fields, extra)
    yield from bad
    content, calls = _without_calls(content, calls)
    yield Step(role, content, calls, extra=extra)


def tool_message(value: Any) -> dict[str, Any] | None:
    """The fields of a tool's message, whichever form it is written in; None where it is none."""
    fields = _fields(value)
    return fields if fields is not None and _ROLES[fields["type"]] == "tool" else None


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a message with its `type`, whichever form it is written in; None where it is none."""
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    if kind == "constructor" and isinstance(value.get("kwargs"), dict):
        path = value.get("id")
        named = (
            _CLASSES.get(path[-1]) if isinstance(path, list) and path and isinstance(path[-1], str) else None
        )
        others = rest(value, "kwargs", "type", "id", "lc", "name")
        return {**others, **value["kwargs"], "type": named} if named else None
    if not isinstance(kind, str) or kind not in _ROLES:
        return None
    data = plain(value.get("data"))
    if isinstance(data, dict) and "content" in data:
        return {**rest(value, "data"), **data, "type": kind}
    return value if "content" in value and (kind == "chat" or "role" not in value) else None


def _tool_step(fields: dict[str, Any], content: Any, extra: dict[str, Any]) -> Step:
    called = extra.pop("name", None)
    result = ToolResult(
        text_or_none(fields.get("tool_call_id")),
        called if isinstance(called, str) else None,
        content,
        extra.pop("status", None) == "error",
    )
    return Step("tool", content, tool_result=result, extra=extra)


def _calls(fields: dict[str, Any], extra: dict[str, Any]) -> tuple[list[ToolCall], list[Unused]]:
    calls: list[ToolCall] = []
    bad: list[Unused] = []
    for key in ("tool_calls", "invalid_tool_calls"):
        for position, call in enumerate(map(plain, fields.get(key) or [])):
            read = _read_call(call, invalid=key.startswith("invalid"))
            if read is None:
                bad.append(Unused(f"{key}[{position}]", "a tool call without a name", call))
            else:
                calls.append(read)
    if not calls:
        calls = _older_calls(extra)
    return calls, bad


def _read_call(call: Any, *, invalid: bool) -> ToolCall | None:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments, raw = read_arguments(call.get("args"))
    if invalid and raw is None:
        # LangChain could not use them: they are marked as malformed whatever they look like.
        arguments, raw = {}, str(call.get("args"))
    extra = rest(call, "id", "name", "args", "type")
    return ToolCall(text_or_none(call.get("id")), call["name"], arguments, raw, extra)


def _older_calls(extra: dict[str, Any]) -> list[ToolCall]:
    """Messages of older versions keep the provider's own calls in `additional_kwargs`."""
    beside = plain(extra.get("additional_kwargs"))
    if not isinstance(beside, dict):
        return []
    out = []
    for call in calls_beside(beside):
        function = plain(call.get("function")) if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments, raw = read_arguments(function.get("arguments"))
            out.append(ToolCall(text_or_none(call.get("id")), function["name"], arguments, raw))
    return out


def _without_calls(content: Any, calls: list[ToolCall]) -> tuple[Any, list[ToolCall]]:
    """Content without the blocks that say again what `tool_calls` says, and the calls with what else they say."""
    if not isinstance(content, list):
        return content, calls
    kept = []
    told = list(calls)
    for block in map(plain, content):
        at, key = _repeated(block, told)
        if key is None:
            kept.append(block)
            continue
        call = told[at]
        said = [word for word in _ARGUMENTS if read_arguments(block.get(word)) == (call.arguments, call.raw)]
        beside = rest(block, "type", "name", key, *said)
        told[at] = msgspec.structs.replace(call, extra={**beside, **call.extra}) if beside else call
    return kept, told


def _repeated(block: Any, calls: list[ToolCall]) -> tuple[int, str | None]:
    """Which of the calls a block says again, and under which key it has the call's id."""
    if isinstance(block, dict) and block.get("type") in ("tool_use", "tool_call", "function_call"):
        for key in ("call_id", "id"):
            for at, call in enumerate(calls):
                if call.id is not None and block.get(key) == call.id:
                    return at, key
    return 0, None
