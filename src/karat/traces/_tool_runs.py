"""Tool executions as tracers record them, unwrapped: the call and its result.

Tracers write arguments and results as the callbacks of a framework receive them: in an envelope of arguments and
keywords, or as the message that a framework builds from a result. The other fields of the envelope are kept.
"""

from __future__ import annotations

from typing import Any

import msgspec

from karat.traces._literals import read_loose_arguments
from karat.traces._objects import decoded, plain
from karat.traces.formats.langchain import tool_message
from karat.traces.steps import ToolCall, ToolResult, TraceError, rest, text_or_none


class ToolRun(msgspec.Struct, frozen=True):
    """A tool execution: the call, the result if there is one, and the other recorded fields."""

    call: ToolCall
    result: ToolResult | None
    beside: dict[str, Any]


def check_name(name: object, where: str) -> str:
    """Return the name of a recorded run of a tool; without one it is a TraceError: an invented one may match."""
    if not isinstance(name, str) or not name.strip():
        raise TraceError(f"{where or 'the trace'}: a run of a tool without a name ({name!r})"[:300])
    return name


def tool_run(
    name: str, given: object, answer: object, *, identity: object = None, failed: bool = False
) -> ToolRun:
    """Read a tool execution from its recorded input and result, in any of the known envelopes."""
    arguments, call_id, beside_given = _arguments(given)
    content, fields, beside_answer = _answer(answer)
    identity = next(
        (each for each in (identity, call_id, fields.get("tool_call_id")) if each is not None), None
    )
    beside = {"input": beside_given, "output": beside_answer}
    result = None
    if answer is not None or failed:
        result = ToolResult(None, name, content, failed or fields.get("status") == "error")
    call = ToolCall(text_or_none(identity), name, arguments)
    return ToolRun(call, result, {key: part for key, part in beside.items() if part})


def _arguments(given: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return the arguments, the id of the call if given, and the other fields.

    Text that is neither JSON nor a Python literal becomes the only argument, `input`.
    """
    given = plain(given)
    values, raw = read_loose_arguments(given)
    if raw is not None:
        return {"input": given}, None, {}
    if not isinstance(values, dict):
        return values, None, {}
    if values.keys() == {"input"}:
        inside, raw = read_loose_arguments(plain(values["input"]))
        return (inside if raw is None and isinstance(inside, dict) else values), None, {}
    if values.keys() == {"args", "kwargs"} and not values["args"] and isinstance(values["kwargs"], dict):
        return values["kwargs"], None, {}
    if "input_str" in values and isinstance(values.get("inputs"), dict):
        # As LangChain's callbacks get it.
        keywords = values.get("kwargs")
        identity = keywords.get("tool_call_id") if isinstance(keywords, dict) else None
        return values["inputs"], identity, rest(values, "inputs")
    return values, None, {}


def _answer(answer: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the content of a result, the fields of the message that contains it, and its unused fields."""
    document = decoded(answer)
    envelope: dict[str, Any] = {}
    if isinstance(document, dict) and document.keys() == {"output", "kwargs"}:
        # As LangChain's callbacks get it.
        envelope = rest(document, "output")
        answer = document = plain(document["output"])
    fields = message_of(document)
    if fields is None:
        return answer, {}, envelope
    beside = rest(fields, "content", "tool_call_id", "type")
    return (
        plain(fields["content"]),
        fields,
        {**envelope, **{k: v for k, v in beside.items() if v not in ({}, [])}},
    )


def message_of(document: object) -> dict[str, Any] | None:
    """The fields of the message that a framework made of a tool's answer; None where it is none."""
    if isinstance(document, dict) and "content" in document and "tool_call_id" in document:
        return document
    return tool_message(document)
