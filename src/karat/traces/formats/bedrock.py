"""Bedrock Converse messages, which Strands Agents also writes: content blocks `text`, `toolUse`, `toolResult`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._calls import Found, named_call, read_parts, result_step, simple
from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces.steps import Step, UnreadCall, Unused, rest, text_or_none

name = "bedrock"

_BLOCKS = frozenset(
    ("text", "toolUse", "toolResult", "reasoningContent", "image", "document", "video", "cachePoint")
)
_TELLING = frozenset(("toolUse", "toolResult", "reasoningContent", "cachePoint"))


def detect(value: object) -> bool:
    """A message of Converse blocks, or a Converse response."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("role"), str):
        content = value.get("content")
        return isinstance(content, (list, tuple)) and any(map(_is_block, map(plain, content)))
    return "stopReason" in value and _message(value) is not None


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the steps of a message, or of the message of a response."""
    message = None if "role" in value else _message(value)
    if message is None:
        yield from read_parts(value["role"], value["content"], rest(value, "role", "content"), _block)
        return
    content = message.get("content")
    parts = content if isinstance(content, (list, tuple)) else [content]
    yield from read_parts(
        str(message.get("role", "assistant")), parts, rest(message, "role", "content"), _block
    )
    yield Unused("", "the fields of the response beside its message", rest(value, "output"), harmless=True)


def _message(value: dict[str, Any]) -> dict[str, Any] | None:
    output = plain(value.get("output"))
    message = plain(output.get("message")) if isinstance(output, dict) else None
    return message if isinstance(message, dict) else None


def _is_block(block: Any) -> bool:
    return isinstance(block, dict) and "type" not in block and not _TELLING.isdisjoint(block)


def _block(block: Any) -> Found:
    if not isinstance(block, dict):
        return None
    use, result = plain(block.get("toolUse")), plain(block.get("toolResult"))
    if use is not None:
        if not isinstance(use, dict):
            return UnreadCall("", "a toolUse that is not an object", block)
        arguments, raw = read_arguments(use.get("input"))
        extra = {**rest(use, "toolUseId", "name", "input"), **rest(block, "toolUse")}
        call = named_call(use.get("toolUseId"), use.get("name"), arguments, raw, extra)
        return call or UnreadCall("", "a tool call without a name", block)
    if isinstance(result, dict):
        content = simple(result.get("content"))
        if isinstance(content, list) and len(content) == 1 and content[0].keys() == {"json"}:
            content = content[0]["json"]
        extra = {**rest(result, "toolUseId", "content", "status"), **rest(block, "toolResult")}
        identity = text_or_none(result.get("toolUseId"))
        return result_step(identity, None, content, result.get("status") == "error", extra)
    return None
