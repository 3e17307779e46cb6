"""Pydantic AI messages: requests and responses made of parts with a `part_kind`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._calls import Found, named_call, read_parts, result_step
from karat.traces._literals import read_arguments
from karat.traces._objects import plain
from karat.traces.steps import Step, UnreadCall, Unused, rest, system_steps, text_or_none

name = "pydantic_ai"

_ROLES = {"system-prompt": "system", "user-prompt": "user", "retry-prompt": "user"}


def detect(value: object) -> bool:
    """A request or response whose parts have a `part_kind`."""
    if not isinstance(value, dict) or not isinstance(value.get("parts"), (list, tuple)):
        return False
    return value.get("kind") in ("request", "response") or any(
        isinstance(part, dict) and "part_kind" in part for part in map(plain, value["parts"])
    )


def read(value: dict[str, Any]) -> Iterator[Step | Unused]:
    """Yield the steps of a message; each prompt of a request is a step."""
    extra = rest(value, "parts", "kind")
    if value.get("kind") == "response":
        yield from read_parts("assistant", value["parts"], extra, _part, "parts")
        return
    instructions = system_steps(extra.pop("instructions", None)) if "instructions" in extra else []
    yield from instructions
    for position, given in enumerate(value["parts"]):
        part = plain(given)
        role = _ROLES.get(str(part.get("part_kind")), "assistant") if isinstance(part, dict) else "user"
        if role in ("system", "user") and not part.get("tool_name"):
            beside = rest(part, "content", "part_kind")
            yield Step(role, part.get("content"), extra={**beside, "request": extra} if extra else beside)
        else:
            yield from read_parts(role, [part], extra, _part, f"parts[{position}]")
        extra = {}
    if extra:
        yield Unused("", "the fields of a request without parts", extra, harmless=True)


def _part(part: Any) -> Found:
    kind = part.get("part_kind") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        return UnreadCall("", "a part without a part_kind", part)
    identity, tool = text_or_none(part.get("tool_call_id")), part.get("tool_name")
    if kind.endswith("tool-call"):
        arguments, raw = read_arguments(part.get("args"))
        extra = rest(part, "tool_name", "args", "tool_call_id", "part_kind")
        if kind != "tool-call":
            extra["part_kind"] = kind
        call = named_call(identity, tool, arguments, raw, extra)
        return call or UnreadCall("", "a tool call without a name", part)
    if kind.endswith("tool-return") or (kind == "retry-prompt" and tool is not None):
        failed = kind == "retry-prompt" or part.get("outcome") in ("failed", "denied", "error")
        extra = rest(part, "tool_name", "content", "tool_call_id", "part_kind")
        if kind != "tool-return":
            extra["part_kind"] = kind
        return result_step(identity, tool, part.get("content"), failed, extra)
    return None
