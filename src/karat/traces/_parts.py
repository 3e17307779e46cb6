"""Divide a message's parts into steps: content, tool calls, and tool results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from karat.traces._objects import plain
from karat.traces.steps import Step, ToolCall, ToolResult, Unused, rest

Found = ToolCall | Step | Unused | list[ToolCall | Step | Unused] | None
"""What a part is: a call, a tool result, something that cannot be read, several of them, or (None) content."""


def read_parts(
    role: str,
    parts: Iterable[Any],
    extra: dict[str, Any],
    read_part: Callable[[Any], Found],
    path: str = "content",
) -> Iterator[Step | Unused]:
    """Yield the steps of a message: a new one begins with each tool result, and with content after a call."""
    content: list[Any] = []
    calls: list[ToolCall] = []
    for position, given in enumerate(parts):
        part = plain(given)
        found = read_part(part)
        if found is None:
            if calls:
                yield Step(role, simple(content), calls, extra=extra)
                content, calls, extra = [], [], {}
            content.append(part)
            continue
        for each in found if isinstance(found, list) else [found]:
            if isinstance(each, ToolCall):
                calls.append(each)
            elif isinstance(each, Unused):
                yield msgspec.structs.replace(each, where=f"{path}[{position}]{each.where}")
            else:
                if content or calls:
                    yield Step(role, simple(content), calls, extra=extra)
                    content, calls, extra = [], [], {}
                elif extra and extra.keys().isdisjoint(each.extra):
                    # A message of results alone: its other fields go to the first of them.
                    each, extra = msgspec.structs.replace(each, extra={**extra, **each.extra}), {}
                yield each
    if content or calls or extra:
        yield Step(role, simple(content), calls, extra=extra)


def result_step(
    identity: str | None,
    name: object,
    content: object,
    failed: bool = False,
    extra: dict[str, Any] | None = None,
) -> Step:
    """Return the step of a tool's result."""
    result = ToolResult(identity, name if isinstance(name, str) else None, content, failed)
    return Step("tool", content, tool_result=result, extra=extra or {})


def simple(content: object) -> Any:
    """Return the text of a single text block, None for no block, and anything else unchanged."""
    if isinstance(content, (list, tuple)):
        content = [plain(block) for block in content]
        if not content:
            return None
        only = content[0]
        if len(content) == 1 and isinstance(only, dict):
            keys = rest(only).keys()
            if keys == {"type", "text"} or keys == {"text"}:
                return only["text"]
            if keys == {"type", "content"} and only["type"] == "text":
                return only["content"]
    return content
