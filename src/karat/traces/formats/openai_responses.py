"""OpenAI Responses items: messages, reasoning, tool calls of every kind with their outputs; session files of Codex."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from karat.traces._calls import APPROVAL, ARGUMENTS, unread_arguments
from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces.detection import placed
from karat.traces.detection import read as read_any
from karat.traces.steps import (
    Step,
    ToolCall,
    ToolResult,
    UnreadCall,
    Unused,
    rest,
    system_steps,
    text_or_none,
)

name = "openai_responses"

_TEXTS = frozenset(("input_text", "output_text", "summary_text", "refusal", "input_image", "input_file"))
_NOT_CALLS = ("tool_call", "server_tool_call", "invalid_tool_call")
"""Blocks of LangChain's messages, which have a name and arguments."""
_NAMED = ("function_call", "custom_tool_call", "mcp_call")
_OUTPUTS = ("_call_output", "program_output", "tool_search_output")
_NO_STEPS = (
    "mcp_list_tools",
    "additional_tools",
    "configuration_update",
    "compaction",
    "mcp_approval_request",
    "mcp_approval_response",
    "item_reference",
)
"""Items that are neither messages nor calls nor results."""
_CODEX = ("response_item", "event_msg", "session_meta", "turn_context", "compacted")
"""Lines of a session file of Codex."""
_NOT_ARGUMENTS = ("type", "id", "call_id", "status", "results", "outputs", "output", "result", "error")


def detect(value: object) -> bool:
    """A response, or one of its items."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if kind in _CODEX and isinstance(value.get("payload"), dict):
        return True
    if not isinstance(kind, str):
        return value.get("object") == "response" and isinstance(value.get("output"), list)
    if kind == "message":
        return isinstance(value.get("role"), str) and _has_response_content(value.get("content"))
    if kind == "function_call":
        return "call_id" in value or "status" in value
    return kind == "reasoning" or kind in _NO_STEPS or is_item(value)


def is_item(value: object) -> bool:
    """Return whether a value is a call, or the output of one."""
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    return is_builtin_call(value) or _is_output(value)


def _is_output(value: dict[str, Any]) -> bool:
    """Return whether an item is the output of a call; Gemini's interactions call it a result."""
    kind = value["type"]
    return kind.endswith(_OUTPUTS) or (kind.endswith("_result") and "call_id" in value)


def is_builtin_call(value: object) -> bool:
    """Return whether an item is a call whose type says what was called: `web_search_call`, or a program to be run."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if kind == "program":
        return isinstance(value.get("code"), str)
    return isinstance(kind, str) and kind.endswith("_call") and kind not in _NOT_CALLS


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """The steps of an item; of every item of a response."""
    if value.get("object") == "response":
        system = system_steps(value.get("instructions"))
        yield from system
        for position, item in enumerate(value["output"]):
            item = plain(item)
            if detect(item):
                yield from read(item)
            else:
                yield Unused(f"output[{position}]", "not an item of a response", item)
        others = rest(value, "output", *(("instructions",) if system else ()))
        yield Unused("", "fields outside 'output'", others, harmless=True)
        return
    kind = value["type"]
    if kind in _CODEX and "payload" in value:
        yield from _read_line(value)
    elif kind == "message":
        extra = rest(value, "type", "role", "content")
        yield Step(value["role"], _content(value.get("content")), extra=extra)
    elif kind == "reasoning":
        yield Step("assistant", [value])
    elif _is_output(value):
        yield _output(value)
    elif kind in _NO_STEPS:
        yield Unused("", f"{kind} is not a step", value, harmless=True)
    elif kind in _NAMED or (isinstance(value.get("name"), str) and "arguments" in value):
        yield from _named_call(value)
    else:
        yield from _builtin_call(value)


def _read_line(line: dict[str, Any]) -> Iterator[Step | Unused]:
    """Read a line of a session file of Codex: an item, or an event, most of which repeat items."""
    if line["type"] != "response_item":
        yield Unused("", f"{line['type']} is not an item", line, harmless=True)
        return
    beside = rest(line, "type", "payload")
    for part in placed(read_any(line["payload"]), "payload"):
        if isinstance(part, Step) and beside:
            part, beside = msgspec.structs.replace(part, extra={**beside, **part.extra}), {}
        yield part


def _named_call(value: dict[str, Any]) -> Iterator[Step | Unused]:
    if not isinstance(value.get("name"), str) or not value["name"].strip():
        yield UnreadCall("", "a tool call without a name", value)
        return
    identity = text_or_none(value.get("call_id", value.get("id")))
    own = "input" if value["type"] == "custom_tool_call" else "arguments"
    given = own if own in value else next((key for key in ARGUMENTS if key in value), own)
    if value["type"] == "custom_tool_call":
        call = ToolCall(identity, value["name"], value.get(given))
    else:
        arguments, raw = read_arguments(value.get(given))
        asked = value.get(APPROVAL)
        call = ToolCall(
            identity, value["name"], arguments, raw, {APPROVAL: asked} if asked is not None else {}
        )
    used = "call_id" if "call_id" in value else "id"
    beside = rest(value, used, "name", given, "error", "output", APPROVAL)
    if value["type"] == "function_call":
        del beside["type"]
    if (other := unread_arguments(call, beside)) is not None:
        yield UnreadCall("", f"the arguments of {call.name[:60]!r} under {other!r}", value)
    yield Step("assistant", tool_calls=[call], extra=beside)
    for key in ("error", "output"):
        if value.get(key) is not None:
            result = ToolResult(identity, value["name"], value[key], key == "error")
            yield Step("tool", value[key], tool_result=result)


def _builtin_call(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Read `web_search_call` and similar items: the type names the tool, the input fields are the arguments."""
    called = value["type"].removesuffix("_call")
    identity = text_or_none(value.get("call_id", value.get("id")))
    if isinstance(value.get("arguments"), dict):
        call = ToolCall(identity, called, value["arguments"])
        beside = rest(value, "arguments", *_NOT_ARGUMENTS)
    else:
        call, beside = ToolCall(identity, called, rest(value, *_NOT_ARGUMENTS)), {}
    beside |= {key: value[key] for key in ("status", "error") if value.get(key) is not None}
    if "call_id" in value and value.get("id") is not None:
        beside["id"] = value["id"]
    yield Step("assistant", tool_calls=[call], extra=beside)
    for key in ("results", "outputs", "output", "result"):
        if value.get(key) is not None:
            result = ToolResult(identity, called, value[key], value.get("status") == "failed")
            yield Step("tool", value[key], tool_result=result)


def _output(value: dict[str, Any]) -> Step:
    key = next((key for key in ("output", "result", "tools") if value.get(key) is not None), "output")
    content = value.get(key)
    failed = value.get("status") == "failed" or value.get("error") is not None
    result = ToolResult(text_or_none(value.get("call_id")), None, content, failed)
    return Step("tool", content, tool_result=result, extra=rest(value, "type", "call_id", key))


def _content(content: Any) -> Any:
    if isinstance(content, list) and len(content) == 1:
        block = plain(content[0])
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            others = {k: v for k, v in block.items() if k not in ("type", "text") and v not in (None, [])}
            return block["text"] if not others else content
    return content


def _has_response_content(content: Any) -> bool:
    if isinstance(content, str):
        return True
    if not isinstance(content, list):
        return False
    return any(isinstance(block, dict) and block.get("type") in _TEXTS for block in map(plain, content))
