"""karat's own shapes: steps and calls as structs or dicts, and bare tool calls as people write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from karat.traces.literals import read_arguments
from karat.traces.steps import Step, ToolCall, Trajectory, Unused, rest, text_or_none

name = "own"

_STEP = {"role", "content", "tool_calls", "tool_result"}
_ARGUMENTS = ("arguments", "args", "input", "parameters")
_NAMES = ("name", "tool", "tool_name")
_BARE = {*_NAMES, "id", "type"}


def detect(value: Any) -> bool:
    """A step, a call, their dicts, or a dict that names a tool and its arguments and is no message."""
    if isinstance(value, (Step, ToolCall)):
        return True
    if not isinstance(value, dict):
        return False
    if value.keys() >= _STEP:
        return isinstance(value["tool_calls"], list)
    if value.keys() == {"steps", "unused"}:
        return isinstance(value["steps"], list) and isinstance(value["unused"], list)
    return is_bare_call(value)


def read(value: Any) -> Iterator[Step | Unused]:
    """The steps as they are; a bare call becomes a step of its own."""
    if isinstance(value, Step):
        yield value
    elif isinstance(value, ToolCall):
        yield Step("assistant", tool_calls=[value])
    elif is_bare_call(value):
        yield Step("assistant", tool_calls=[read_bare_call(value)])
    else:
        try:
            if "steps" in value:
                whole = msgspec.convert(value, Trajectory)
                yield from whole.steps
                yield from whole.unused
            else:
                yield msgspec.convert(value, Step)
        except msgspec.ValidationError as error:
            yield Unused("", f"not a step: {error}", value)


def read_bare_call(value: dict[str, Any]) -> ToolCall:
    """A call from a dict with a name and arguments under one of their usual words."""
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
    """Whether a dict names a tool, with its arguments or nothing else, and is no message."""
    if "role" in value or "kind" in value or "content" in value or "output" in value:
        return False
    if value.get("type", "tool_call") not in ("tool_call", "function", "function_call"):
        return False
    named = any(isinstance(value.get(key), str) for key in _NAMES)
    given = sum(key in value for key in _ARGUMENTS)
    if given == 0:
        return named and value.keys() <= _BARE
    return named and given == 1 and "run_type" not in value and "call_id" not in value
