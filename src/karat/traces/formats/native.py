"""karat's own shapes: steps, bare tool calls, recorded `Call`s, and Outputs with a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from karat.records import JSON, Call, Output
from karat.serialization import prepared
from karat.traces._calls import is_bare_call, read_bare_call
from karat.traces._observations import Observation, check_name, combine, messages, tool_run
from karat.traces.detection import read as read_any
from karat.traces.steps import Step, ToolCall, ToolResult, Trajectory, UnreadCall, Unused, rest

name = "karat"

_STEP = {"role", "content", "tool_calls", "tool_result"}
_CALL = frozenset(ToolCall.__struct_fields__)
_FAST_KEYS = frozenset(("name", "arguments", "id"))
_IDS = frozenset((str, int, type(None)))


def detect(value: object) -> bool:
    """A step, a call, an Output, their dicts, recorded calls, or a dict that names a tool and its arguments."""
    if isinstance(value, dict):
        if value.keys() >= _STEP:
            return isinstance(value["tool_calls"], list)
        if value.keys() == {"steps", "unused"}:
            return isinstance(value["steps"], list) and isinstance(value["unused"], list)
        return is_bare_call(value) or _is_recorded(value)
    if isinstance(value, list):
        return any(map(_is_recorded, value)) and all(map(_may_be_recorded, value))
    return isinstance(value, (Step, ToolCall, Output, Call))


def read(value: JSON) -> Iterator[Step | Unused]:
    """Yield steps as they are, a bare call as a step, and recorded calls in the order in which they were made."""
    if isinstance(value, Step):
        yield value
    elif isinstance(value, ToolCall):
        yield Step("assistant", tool_calls=[value])
    elif isinstance(value, Output) and not value.trace:
        yield from read_any(value.value)
    elif isinstance(value, (Output, Call, list)) or _is_recorded(value):
        recorded = value.trace if isinstance(value, Output) else value
        listed = recorded if isinstance(recorded, list) else [recorded]
        yield from combine(_observe(call, f"[{position}]") for position, call in enumerate(listed))
    elif is_bare_call(value):
        call = read_bare_call(value)
        yield (
            UnreadCall("", "a tool call without a name", value)
            if call is None
            else Step("assistant", tool_calls=[call])
        )
    else:
        yield from _read_dict(value)


def fast_calls(items: list[Any]) -> tuple[list[str], list[Any]] | None:
    """Return names and arguments of a list of bare calls; None where it is not one."""
    keys = set().union(*items)
    if not keys <= _FAST_KEYS or ("id" in keys and not {type(item.get("id")) for item in items} <= _IDS):
        return None
    return [item["name"] for item in items], [item["arguments"] for item in items]


def _read_dict(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the steps of a trajectory's or step's own dict."""
    for step in value.get("steps", [value]):
        for call in step.get("tool_calls") or () if isinstance(step, dict) else ():
            if isinstance(call, dict) and (others := call.keys() - _CALL):
                yield UnreadCall("", f"not a tool call: unknown field {min(map(str, others))[:40]!r}", call)
    try:
        if "steps" in value:
            whole = msgspec.convert(value, prepared(Trajectory))
            yield from whole.steps
            yield from whole.unused
        else:
            yield msgspec.convert(value, prepared(Step))
    except msgspec.ValidationError as error:
        yield UnreadCall("", f"not a step: {error}", value)


def _is_recorded(value: Any) -> bool:
    if isinstance(value, Call):
        return True
    return (
        isinstance(value, dict)
        and value.get("kind") in ("model", "tool")
        and isinstance(value.get("name"), str)
    )


def _may_be_recorded(value: Any) -> bool:
    """Return whether a value is a recorded call, or one that lost its name."""
    return isinstance(value, Call) or (isinstance(value, dict) and value.get("kind") in ("model", "tool"))


def _observe(call: Any, where: str) -> Observation:
    fields = call if isinstance(call, dict) else {key: getattr(call, key) for key in Call.__struct_fields__}
    name, given, output, error = (fields.get(key) for key in ("name", "input", "output", "error"))
    if fields["kind"] == "tool":
        check_name(name, where)
        run = tool_run(str(name), given, None, identity=(fields.get("metadata") or {}).get("id"))
        result = ToolResult(None, str(name), error if error is not None else output, error is not None)
        return Observation(
            kind="tool",
            name=str(name),
            where=where,
            call=run.call,
            result=result,
            beside={**_beside(fields, "input", "error" if error is not None else "output"), **run.beside},
        )
    return Observation(
        kind="model",
        name=str(name),
        where=where,
        input=messages(given, "user"),
        output=messages(output, "assistant"),
        value=call,
        beside=_beside(fields, "input", "output"),
    )


def _beside(fields: dict[str, Any], *used: str) -> dict[str, Any]:
    """Return the other fields of a call; fields at their defaults are left out."""
    return {key: part for key, part in rest(fields, "kind", *used).items() if part not in (0.0, False, {})}
