"""Anthropic content blocks: `tool_use`, `tool_result`, server and MCP tools, and the text between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces.steps import Step, ToolCall, ToolResult, Unused, rest, text_or_none

name = "anthropic"

_USES = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))


def detect(value: Any) -> bool:
    """A message whose content has tool blocks, or such a block by itself."""
    if not isinstance(value, dict):
        return False
    if _is_tool_block(value):
        return True
    content = value.get("content")
    if not isinstance(content, list) or not isinstance(value.get("role"), str):
        return False
    return any(_is_tool_block(block) for block in map(plain, content))


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """The steps of a message: a new one begins with each tool result, and with what is said after a call."""
    if _is_tool_block(value):
        role = "assistant" if value["type"] in _USES else "user"
        yield from read_blocks(role, [value], {})
        return
    extra = rest(value, "role", "content", "type")
    yield from read_blocks(value["role"], value["content"], extra)


def fast_blocks(message: dict[str, Any], content: Any, names: list[str], arguments: list[Any]) -> bool:
    """Add the calls of plain content blocks to the lists; False where one of the blocks is not plain."""
    if type(content) is not list or "tool_calls" in message or type(message["role"]) is not str:
        return False
    for block in content:
        kind = block["type"]
        if kind == "tool_use" and message["role"] == "assistant" and "role" not in block:
            names.append(block["name"])
            arguments.append(block["input"])
        elif kind != "text" and kind != "tool_result":
            return False
    return True


def read_blocks(role: str, blocks: list[Any], extra: dict[str, Any]) -> Iterator[Step | Unused]:
    """The steps of a list of content blocks."""
    content: list[Any] = []
    calls: list[ToolCall] = []
    for position, given in enumerate(blocks):
        block = plain(given)
        if not _is_tool_block(block):
            if calls:
                yield Step(role, _simple(content), calls, extra=extra)
                content, calls, extra = [], [], {}
            content.append(block)
        elif block["type"] in _USES:
            if isinstance(block.get("name"), str):
                calls.append(_call(block))
            else:
                yield Unused(f"content[{position}]", "a tool call without a name", block)
        else:
            if content or calls:
                yield Step(role, _simple(content), calls, extra=extra)
                content, calls, extra = [], [], {}
            yield _result(block)
    if content or calls or extra:
        yield Step(role, _simple(content), calls, extra=extra)


def _is_tool_block(block: Any) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or "role" in block:
        return False
    return kind in _USES or (kind.endswith("tool_result") and "tool_use_id" in block)


def _call(block: dict[str, Any]) -> ToolCall:
    arguments, raw = read_arguments(block.get("input"))
    extra = rest(block, "type", "id", "name", "input")
    if block["type"] != "tool_use":
        extra["type"] = block["type"]
    return ToolCall(text_or_none(block.get("id")), block["name"], arguments, raw, extra)


def _result(block: dict[str, Any]) -> Step:
    content = block.get("content")
    extra = rest(block, "type", "tool_use_id", "content", "is_error")
    if block["type"] != "tool_result":
        extra["type"] = block["type"]
    failed = block.get("is_error") is True or _is_error(content)
    result = ToolResult(text_or_none(block["tool_use_id"]), None, _simple(content), failed)
    return Step("tool", result.content, tool_result=result, extra=extra)


def _is_error(content: Any) -> bool:
    """Server tools report their failures as a block whose type ends in `error`."""
    return isinstance(content, dict) and str(content.get("type", "")).endswith("_error")


def _simple(content: Any) -> Any:
    """A single text block as its text; anything else as it is."""
    if isinstance(content, (list, tuple)):
        content = [plain(block) for block in content]
        if not content:
            return None
        only = content[0]
        if len(content) == 1 and isinstance(only, dict) and rest(only).keys() == {"type", "text"}:
            return only["text"]
    return content
