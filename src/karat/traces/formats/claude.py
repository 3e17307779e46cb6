"""Claude Agent SDK messages, the `stream-json` output of Claude Code, and its session files (JSON lines)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from karat.traces._objects import plain
from karat.traces.detection import placed
from karat.traces.detection import read as read_any
from karat.traces.formats.anthropic import read_blocks
from karat.traces.steps import Step, Unused, rest

name = "claude"

_TYPES = ("assistant", "user")
_MARKS = ("session_id", "sessionId", "parent_tool_use_id", "parentUuid", "uuid", "isSidechain")
_EVENTS = {
    "summary": ("leafUuid", "summary"),
    "system": ("subtype", "session_id", "sessionId", "uuid"),
    "result": ("num_turns", "duration_ms", "session_id"),
    "file-history-snapshot": ("messageId", "snapshot"),
    "queue-operation": ("operation", "sessionId"),
    "progress": ("uuid", "sessionId"),
    "stream_event": ("event",),
    "rate_limit_event": ("uuid", "session_id"),
}
_MESSAGE = frozenset(("content", "parent_tool_use_id"))
_RESULT = frozenset(("subtype", "num_turns", "duration_ms"))


def detect(value: object) -> bool:
    """A line of `stream-json` or of a session file, a message of the SDK, which has no role, or lines that repeat."""
    if isinstance(value, list):
        return any(_repeated(value))
    if not isinstance(value, dict) or "role" in value:
        return False
    kind = value.get("type")
    if kind in _TYPES:
        return isinstance(plain(value.get("message")), dict) and any(mark in value for mark in _MARKS)
    if isinstance(kind, str):
        return any(mark in value for mark in _EVENTS.get(kind, ()))
    return value.keys() >= _MESSAGE or value.keys() >= _RESULT or value.keys() == {"subtype", "data"}


def read(value: list[Any] | dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the steps of a message; the lines between messages hold none."""
    if isinstance(value, list):
        for position, (line, is_repeated) in enumerate(zip(value, _repeated(value), strict=True)):
            if is_repeated:
                yield Unused(
                    f"[{position}]", "a line of the session, repeated", line, harmless=True, reviewed=True
                )
            else:
                yield from placed(read_any(line), f"[{position}]")
        return
    kind = value.get("type")
    if kind in _TYPES:
        message = plain(value["message"])
        # `toolUseResult` is the tool's result once more, as an object.
        beside = rest(value, "type", "message", "toolUseResult", "tool_use_result")
        for part in placed(read_any({"role": kind, **rest(message, "type")}), "message"):
            if isinstance(part, Step) and beside:
                part, beside = msgspec.structs.replace(part, extra={**part.extra, **beside}), {}
            yield part
        repeated = rest({key: value.get(key) for key in ("toolUseResult", "tool_use_result")})
        if repeated:
            yield Unused("", "the result of the tool, repeated", repeated, harmless=True, reviewed=True)
    elif kind is None and value.keys() >= _MESSAGE:
        yield from _read_sdk_message(value)
    else:
        label = kind or value.get("subtype")
        yield Unused("", f"{label!r} is an event, not a message", value, harmless=True)


def _repeated(lines: list[Any]) -> Iterator[bool]:
    """Yield for each line whether it repeats an earlier one: a session that is resumed copies its history."""
    seen: dict[str, Any] = {}
    for line in lines:
        is_message = (
            isinstance(line, dict) and line.get("type") in _TYPES and isinstance(line.get("uuid"), str)
        )
        if not is_message or (first := seen.setdefault(line["uuid"], line)) is line:
            yield False
        else:
            yield bool(first.get("message") == line.get("message"))


def _read_sdk_message(value: dict[str, Any]) -> Iterator[Step | Unused]:
    role = "assistant" if "model" in value else "user"
    extra = rest(value, "content", "tool_use_result")
    content = plain(value.get("content"))
    if isinstance(content, list):
        yield from read_blocks(role, [_typed(plain(block)) for block in content], extra)
    else:
        yield Step(role, content, extra=extra)
    if value.get("tool_use_result") is not None:
        reason = "the result of the tool, repeated"
        yield Unused("tool_use_result", reason, value["tool_use_result"], harmless=True, reviewed=True)


def _typed(block: Any) -> Any:
    """Return a block of the SDK, whose kind is its class, with its type."""
    if not isinstance(block, dict) or "type" in block:
        return block
    if "tool_use_id" in block:
        # Of a server tool the result is called the same and has no `is_error`.
        return {"type": "tool_result", **block}
    if "input" in block:  # without a name it is a call that cannot be read
        return {"type": "tool_use", **block}
    if "thinking" in block:
        return {"type": "thinking", **block}
    return {"type": "text", **block} if "text" in block else block
