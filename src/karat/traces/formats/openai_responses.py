"""OpenAI Responses items: messages, reasoning, and tool calls of every kind with their outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._literals import read_arguments
from karat.traces._objects import plain
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
_NOT_ARGUMENTS = ("type", "id", "call_id", "status", "results", "outputs", "output", "result", "error")


def detect(value: object) -> bool:
    """A response, or one of its items."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if not isinstance(kind, str):
        return value.get("object") == "response" and isinstance(value.get("output"), list)
    if kind == "message":
        return isinstance(value.get("role"), str) and _has_response_content(value.get("content"))
    if kind == "function_call":
        return "call_id" in value or "status" in value
    return kind == "reasoning" or (kind.endswith(("_call", "_call_output")) and kind != "tool_call")


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
        yield Unused("", "the fields beside 'output'", others, harmless=True)
        return
    kind = value["type"]
    if kind == "message":
        extra = rest(value, "type", "role", "content")
        yield Step(value["role"], _content(value.get("content")), extra=extra)
    elif kind == "reasoning":
        yield Step("assistant", [value])
    elif kind.endswith("_call_output"):
        yield _output(value)
    elif kind in ("function_call", "custom_tool_call", "mcp_call"):
        yield from _named_call(value)
    else:
        yield from _builtin_call(value)


def _named_call(value: dict[str, Any]) -> Iterator[Step | Unused]:
    if not isinstance(value.get("name"), str) or not value["name"].strip():
        yield UnreadCall("", "a tool call without a name", value)
        return
    identity = text_or_none(value.get("call_id", value.get("id")))
    if value["type"] == "custom_tool_call":
        call = ToolCall(identity, value["name"], value.get("input"))
    else:
        arguments, raw = read_arguments(value.get("arguments"))
        call = ToolCall(identity, value["name"], arguments, raw)
    beside = rest(value, "call_id" if "call_id" in value else "id", "name", "arguments", "error", "output")
    if value["type"] == "custom_tool_call":
        beside.pop("input", None)
    if value["type"] == "function_call":
        del beside["type"]
    yield Step("assistant", tool_calls=[call], extra=beside)
    for key in ("error", "output"):
        if value.get(key) is not None:
            result = ToolResult(identity, value["name"], value[key], key == "error")
            yield Step("tool", value[key], tool_result=result)


def _builtin_call(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Read `web_search_call` and similar items: the type names the tool, the input fields are the arguments."""
    called = value["type"].removesuffix("_call")
    identity = text_or_none(value.get("call_id", value.get("id")))
    call = ToolCall(identity, called, rest(value, *_NOT_ARGUMENTS))
    beside = {key: value[key] for key in ("status", "error") if value.get(key) is not None}
    if "call_id" in value and value.get("id") is not None:
        beside["id"] = value["id"]
    yield Step("assistant", tool_calls=[call], extra=beside)
    for key in ("results", "outputs", "output", "result"):
        if value.get(key) is not None:
            result = ToolResult(identity, called, value[key], value.get("status") == "failed")
            yield Step("tool", value[key], tool_result=result)


def _output(value: dict[str, Any]) -> Step:
    content = value.get("output")
    failed = value.get("status") == "failed" or value.get("error") is not None
    result = ToolResult(text_or_none(value.get("call_id")), None, content, failed)
    return Step("tool", content, tool_result=result, extra=rest(value, "type", "call_id", "output"))


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
