"""karat's own traces: lists of `records.Call`, and Outputs that carry one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.records import Call, Output
from karat.traces.observations import Observation, combine, messages
from karat.traces.reading import read as read_any
from karat.traces.steps import Step, ToolResult, Unused, rest
from karat.traces.tool_runs import tool_run

name = "calls"


def detect(value: Any) -> bool:
    """An Output, a Call, a Call's dict, or a list of Calls."""
    if isinstance(value, list):
        return bool(value) and all(_is_call(item) for item in value)
    return isinstance(value, Output) or _is_call(value)


def read(value: Any) -> Iterator[Step | Unused]:
    """The calls in the order in which they were made; of an Output without any, what it gave."""
    if isinstance(value, Output):
        if not value.trace:
            yield from read_any(value.value)
            return
        value = value.trace
    given = value if isinstance(value, list) else [value]
    yield from combine(_observe(call, f"[{position}]") for position, call in enumerate(given))


def _is_call(value: Any) -> bool:
    if isinstance(value, Call):
        return True
    return (
        isinstance(value, dict)
        and value.get("kind") in ("model", "tool")
        and isinstance(value.get("name"), str)
    )


def _observe(call: Any, where: str) -> Observation:
    fields = call if isinstance(call, dict) else {key: getattr(call, key) for key in Call.__struct_fields__}
    name, given, output, error = (fields.get(key) for key in ("name", "input", "output", "error"))
    if fields["kind"] == "tool":
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
    """What a call says beside its messages; fields at their defaults say nothing."""
    return {key: part for key, part in rest(fields, "kind", *used).items() if part not in (0.0, False, {})}
