"""Read one tool call from a dict, however its name and arguments are spelled."""

from __future__ import annotations

from typing import Any

from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces.steps import ToolCall, rest, text_or_none

NAMES = ("name", "tool", "tool_name", "toolName")
ARGUMENTS = (
    "arguments",
    "args",
    "input",
    "parameters",
    "tool_input",
    "toolInput",
    "kwargs",
    "tool_kwargs",
    "tool_args",
)
IDS = ("id", "call_id", "tool_call_id", "toolCallId", "toolUseId", "tool_use_id")
_BARE_NAMES = ("name", "tool", "tool_name")
_BARE_ARGUMENTS = ("arguments", "args", "input", "parameters", "kwargs")
_BARE = {*_BARE_NAMES, "id", "type"}
_BARE_TYPES = ("tool_call", "function", "function_call")


def read_call(call: object) -> ToolCall | None:
    """Read a call of a list of tool calls: OpenAI's, LangChain's, Inspect's or a bare one. None without a name."""
    if isinstance(call, ToolCall):
        return call
    if not isinstance(call, dict):
        return None
    function = plain(call.get("function"))
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        arguments, raw = read_arguments(function.get("arguments"))
        others = {**rest(call, "id", "type", "function"), **rest(function, "name", "arguments")}
        return named_call(call.get("id"), function["name"], arguments, raw, others)
    custom = plain(call.get("custom"))
    if isinstance(custom, dict) and isinstance(custom.get("name"), str):
        # A custom tool takes free text as its only argument.
        others = {**rest(call, "id", "custom"), **rest(custom, "name", "input")}
        return named_call(call.get("id"), custom["name"], custom.get("input"), None, others)
    if isinstance(function, str) and "name" not in call:
        arguments, raw = read_arguments(call.get("arguments"))
        if raw is None and isinstance(call.get("parse_error"), str):
            # Inspect could not parse the arguments, and keeps only the reason.
            arguments, raw = {}, str(call.get("arguments"))
        others = rest(call, "id", "type", "function", "arguments")
        return named_call(call.get("id"), function, arguments, raw, others)
    return read_bare_call(call) if any(isinstance(call.get(key), str) for key in NAMES) else None


def read_bare_call(value: dict[str, Any]) -> ToolCall | None:
    """Read a call from a dict with a name and arguments under one of their usual keys."""
    named = next(key for key in NAMES if isinstance(value.get(key), str))
    given = next((key for key in ARGUMENTS if key in value), "arguments")
    identity = next((key for key in IDS if value.get(key) is not None), "id")
    arguments, raw = read_arguments(value.get(given))
    if isinstance(value.get("raw"), str):
        raw = value["raw"]
    extra = value.get("extra")
    others = rest(value, named, given, identity, "type", "raw", "extra")
    return named_call(
        value.get(identity),
        value[named],
        arguments,
        raw,
        {**extra, **others} if isinstance(extra, dict) else others,
    )


def named_call(
    identity: object,
    name: object,
    arguments: object,
    raw: str | None = None,
    extra: dict[str, Any] | None = None,
) -> ToolCall | None:
    """Return a call, or None where its name is not text or is blank."""
    if not isinstance(name, str) or not name.strip():
        return None
    return ToolCall(text_or_none(identity), name, arguments, raw, extra or {})


def is_bare_call(value: dict[str, Any]) -> bool:
    """Return whether a dict names a tool, with its arguments or nothing else, and is not a message."""
    if "role" in value or "kind" in value or "content" in value or "output" in value:
        return False
    if value.get("type", "tool_call") not in _BARE_TYPES:
        return False
    named = any(isinstance(value.get(key), str) for key in _BARE_NAMES)
    given = sum(key in value for key in _BARE_ARGUMENTS)
    if given == 0:
        return named and value.keys() <= _BARE
    return named and given == 1 and "run_type" not in value and "call_id" not in value
