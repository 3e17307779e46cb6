"""Anthropic content blocks: `tool_use`, `tool_result`, server and MCP tools, and the text between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

from karat.traces._calls import Found, named_call, read_parts, simple
from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces._text_calls import is_prose
from karat.traces.steps import Step, ToolCall, ToolResult, UnreadCall, Unused, rest, text_or_none

name = "anthropic"

_USES = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))
_FAST_KEYS = {
    "text": {"type", "text"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content", "is_error"},
}


def detect(value: object) -> bool:
    """A message whose content has tool blocks, or such a block by itself."""
    if not isinstance(value, dict):
        return False
    if is_tool_block(value):
        return True
    content = value.get("content")
    if not isinstance(content, list) or not isinstance(value.get("role"), str):
        return False
    return any(is_tool_block(block) for block in map(plain, content))


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Split a message into steps: a new step begins at each tool result and at text that follows a call."""
    if is_tool_block(value):
        role = "assistant" if value["type"] in _USES else "user"
        yield from read_blocks(role, [value], {})
        return
    extra = rest(value, "role", "content", "type")
    yield from read_blocks(value["role"], value["content"], extra)


def fast_blocks(role: str, content: object, names: list[str], arguments: list[Any]) -> bool:
    """Add the calls of plain content blocks to the lists; False where one of the blocks is not plain."""
    if type(content) is not list or role not in ("user", "assistant"):
        return False
    for block in content:
        kind = block["type"]
        if kind not in _FAST_KEYS or not block.keys() <= _FAST_KEYS[kind]:
            return False  # a field out of the ordinary, which may be a call
        if kind == "tool_use" and role == "assistant":
            if type(block["id"]) is not str:
                return False
            names.append(block["name"])
            arguments.append(block["input"])
        elif kind == "tool_result":
            if type(block["tool_use_id"]) is not str or type(block.get("is_error", False)) is not bool:
                return False
        elif kind == "tool_use" or not is_prose(block["text"]):
            return False
    return True


def read_blocks(role: str, blocks: list[Any], extra: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the steps of a list of content blocks."""
    return read_parts(role, blocks, extra, read_block)


def read_block(block: object) -> Found:
    """Return the call, or the result, that a content block is; None for other content."""
    if not is_tool_block(block):
        return None
    if block["type"] in _USES:
        if block.get("partial_json") and not block.get("input"):
            return UnreadCall("", "a piece of a tool call (merge the chunks of a stream first)", block)
        return _call(block) or UnreadCall("", "a tool call without a name", block)
    return _result(block)


def is_tool_block(block: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a block is a tool call or a tool result."""
    if not isinstance(block, dict) or "role" in block:
        return False
    kind = block.get("type")
    if not isinstance(kind, str):
        return False
    return kind in _USES or (kind.endswith("tool_result") and "tool_use_id" in block)


def _call(block: dict[str, Any]) -> ToolCall | None:
    arguments, raw = read_arguments(block.get("input"))
    extra = rest(block, "type", "id", "name", "input")
    if block["type"] != "tool_use":
        extra["type"] = block["type"]
    return named_call(block.get("id"), block.get("name"), arguments, raw, extra)


def _result(block: dict[str, Any]) -> Step:
    content = block.get("content")
    extra = rest(block, "type", "tool_use_id", "content", "is_error")
    if block["type"] != "tool_result":
        extra["type"] = block["type"]
    failed = block.get("is_error") is True or _is_error(content)
    result = ToolResult(text_or_none(block["tool_use_id"]), None, simple(content), failed)
    return Step("tool", result.content, tool_result=result, extra=extra)


def _is_error(content: Any) -> bool:
    """Server tools report their failures as a block whose type ends in `error`."""
    return isinstance(content, dict) and str(content.get("type", "")).endswith("_error")
