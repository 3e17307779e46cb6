"""LangChain messages: the objects, `messages_to_dict`, `dumpd` and `model_dump` forms."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, TypeGuard

import msgspec

from karat.traces._calls import Found, NoArguments, named_call, read_call, read_parts, result_step
from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces._text_calls import NOT_AGENTS, text_steps
from karat.traces.formats import openai_responses
from karat.traces.formats.anthropic import is_tool_block, read_block
from karat.traces.formats.openai_chat import calls_beside
from karat.traces.steps import Step, ToolCall, ToolResult, UnreadCall, Unused, rest, text_or_none

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
_LISTED_BLOCKS = (
    "tool_use",
    "tool_call",
    "tool_call_chunk",
    "invalid_tool_call",
    "function_call",
    "custom_tool_call",
)
"""Content blocks that repeat a call which the message lists."""
_USED = (
    "type",
    "role",
    "content",
    "tool_calls",
    "invalid_tool_calls",
    "tool_call_id",
    "tool_call_chunks",
)


def detect(value: object) -> bool:
    """One message in any of the forms."""
    return _fields(value) is not None


def read(value: object) -> Iterator[Step | Unused]:
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
    if role == "assistant" and not calls and isinstance(content, str):
        found = text_steps(role, content, extra)
        if found is not None:
            yield from found
            return
    content, calls = _without_calls(content, calls)
    if isinstance(content, list) and role not in NOT_AGENTS:
        ids = {call.id for call in calls}

        def read_one(block: object) -> Found:
            return block if isinstance(block, ToolCall) else _block(block, bool(calls), ids)

        if any(read_one(block) is not None for block in content):
            # The provider ran its own tools before the message ended with calls to others.
            yield from read_parts(role, [*content, *calls], extra, read_one)
            return
    yield Step(role, content, calls, extra=extra)


def _block(block: Any, listed: bool, ids: Set[str | None]) -> Found:
    """Return the call, or the result, that a content block is; None for other content.

    `listed`: the message lists its calls, so that only calls to tools of the provider are missing there.
    """
    if not isinstance(block, dict):
        return None
    kind = block.get("type")
    if kind == "non_standard":
        return _block(plain(block.get("value")), listed, ids)
    if any(isinstance(block.get(key), str) and block[key] in ids for key in ("id", "call_id")):
        return None  # it is listed
    if kind in ("server_tool_result", "server_tool_call_result"):
        key = next((key for key in ("tool_call_id", "toolCallId") if key in block), "tool_call_id")
        extra = rest(block, key, "output", "status")
        failed = block.get("status") == "error"
        return result_step(text_or_none(block.get(key)), None, block.get("output"), failed, extra)
    if kind in ("executable_code", "code_execution_result"):
        if kind == "executable_code":
            return ToolCall(text_or_none(block.get("id")), "code_execution", rest(block, "type", "id"))
        failed = block.get("outcome") not in (None, 1, "OUTCOME_OK")
        return result_step(None, "code_execution", block.get(kind), failed, rest(block, kind))
    if kind == "server_tool_call" or (not listed and kind in ("tool_call", "invalid_tool_call")):
        call = _read_call(block, invalid=kind == "invalid_tool_call")
        if call is None:
            return UnreadCall("", "a tool call without a name", block)
        return (
            msgspec.structs.replace(call, extra={**call.extra, "type": kind}) if kind != "tool_call" else call
        )
    if is_tool_block(block):
        return None if listed and kind == "tool_use" else read_block(block)
    if openai_responses.is_item(block) and not (listed and kind in ("function_call", "custom_tool_call")):
        return [_whole(part) for part in openai_responses.read(block)]
    return None


def _whole(part: Step | Unused) -> ToolCall | Step | Unused:
    """Return the call of a step that is nothing else, with the fields beside it."""
    if not isinstance(part, Step) or not part.tool_calls:
        return part
    (call,) = part.tool_calls
    return msgspec.structs.replace(call, extra={**call.extra, **part.extra}) if part.extra else call


def tool_message(value: object) -> dict[str, Any] | None:
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
        named = _CLASSES.get(path[-1]) if is_path(path) else None
        others = rest(value, "kwargs", "type", "id", "lc", "name")
        return _joined(others, value["kwargs"], named) if named else None
    if not isinstance(kind, str) or kind not in _ROLES:
        return None
    data = plain(value.get("data"))
    if isinstance(data, dict) and "content" in data:
        return _joined(rest(value, "data", "type"), data, kind)
    return value if "content" in value and (kind == "chat" or "role" not in value) else None


def _joined(around: dict[str, Any], inside: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the fields of a message and those around them, which are kept apart where they have the same name."""
    hidden = {key: part for key, part in around.items() if key in inside}
    return {**around, **inside, "type": kind, **({"around": hidden} if hidden else {})}


def is_path(value: object) -> TypeGuard[list[str]]:
    """Return whether a value is the path of a class, as serialized objects have it for an id."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(p, str) and p.isidentifier() for p in value)
    )


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
        given = plain(fields.get(key)) or []
        if not isinstance(given, list):
            bad.append(UnreadCall(key, f"{key} is not a list", given))
            continue
        for position, call in enumerate(map(plain, given)):
            read = _read_call(call, invalid=key.startswith("invalid"))
            if read is None:
                reason = "a tool call without a name (merge the chunks of a stream into messages first)"
                bad.append(UnreadCall(f"{key}[{position}]", reason, call))
            else:
                calls.append(read)
    chunks = plain(fields.get("tool_call_chunks")) or []
    for position, chunk in enumerate(map(plain, chunks if isinstance(chunks, list) else [chunks])):
        # A merged message has whole arguments in its chunks too; text that is not JSON is still being streamed.
        if not isinstance(chunk, dict) or not chunk.get("name") or read_arguments(chunk.get("args"))[1]:
            reason = "a piece of a tool call (merge the chunks of a stream into messages first)"
            bad.append(UnreadCall(f"tool_call_chunks[{position}]", reason, chunk))
    if not calls:
        calls = _older_calls(extra)
    return calls, bad


def _read_call(call: Any, *, invalid: bool) -> ToolCall | None:
    if not isinstance(call, dict):
        return None
    arguments, raw = read_arguments(call.get("args"))
    if invalid and raw is None:
        # LangChain could not use them, so they are marked as malformed in any case.
        arguments, raw = {}, str(call.get("args"))
    extra = rest(call, "id", "name", "args", "type")
    if "args" not in call:
        extra = NoArguments(extra)
    return named_call(call.get("id"), call.get("name"), arguments, raw, extra)


def _older_calls(extra: dict[str, Any]) -> list[ToolCall]:
    """Messages of older versions keep the provider's own calls in `additional_kwargs`."""
    beside = plain(extra.get("additional_kwargs"))
    if not isinstance(beside, dict):
        return []
    read = (read_call(call) for call in calls_beside(beside))
    return [call for call in read if call is not None]


def _without_calls(content: Any, calls: list[ToolCall]) -> tuple[Any, list[ToolCall]]:
    """Remove content blocks that repeat a tool call, and add their other fields to that call."""
    if not isinstance(content, list):
        return content, calls
    kept = []
    completed = list(calls)
    for block in map(plain, content):
        at, key = _repeated(block, completed)
        if key is None:
            kept.append(block)
            continue
        call = completed[at]
        repeated_keys = [
            word for word in _ARGUMENTS if read_arguments(block.get(word)) == (call.arguments, call.raw)
        ]
        beside = rest(block, "type", "name", key, *repeated_keys)
        completed[at] = msgspec.structs.replace(call, extra={**beside, **call.extra}) if beside else call
    return kept, completed


def _repeated(block: Any, calls: list[ToolCall]) -> tuple[int, str | None]:
    """Return the position of the call that a block repeats, and the block's key for the call id."""
    if isinstance(block, dict) and block.get("type") in _LISTED_BLOCKS:
        for key in ("call_id", "id"):
            for at, call in enumerate(calls):
                if call.id is not None and block.get(key) == call.id:
                    return at, key
    return 0, None
