"""Read one tool call from a dict, however its name and arguments are spelled."""

from __future__ import annotations

from typing import Any

from karat.traces._literals import read_arguments
from karat.traces.steps import ToolCall, rest, text_or_none

_ARGUMENTS = ("arguments", "args", "input", "parameters")
_NAMES = ("name", "tool", "tool_name")
_BARE = {*_NAMES, "id", "type"}


def read_bare_call(value: dict[str, Any]) -> ToolCall:
    """Read a call from a dict with a name and arguments under one of their usual keys."""
    named = next(key for key in _NAMES if isinstance(value.get(key), str))
    given = next((key for key in _ARGUMENTS if key in value), "arguments")
    arguments, raw = read_arguments(value.get(given))
    if isinstance(value.get("raw"), str):
        raw = value["raw"]
    extra = value.get("extra")
    others = rest(value, named, given, "id", "type", "raw", "extra")
    return ToolCall(
        text_or_none(value.get("id")),
        value[named],
        arguments,
        raw,
        {**extra, **others} if isinstance(extra, dict) else others,
    )


def is_bare_call(value: dict[str, Any]) -> bool:
    """Return whether a dict names a tool, with its arguments or nothing else, and is not a message."""
    if "role" in value or "kind" in value or "content" in value or "output" in value:
        return False
    if value.get("type", "tool_call") not in ("tool_call", "function", "function_call"):
        return False
    named = any(isinstance(value.get(key), str) for key in _NAMES)
    given = sum(key in value for key in _ARGUMENTS)
    if given == 0:
        return named and value.keys() <= _BARE
    return named and given == 1 and "run_type" not in value and "call_id" not in value
