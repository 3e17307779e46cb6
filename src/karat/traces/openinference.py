"""OpenInference spans (Phoenix, Arize): flattened `llm.input_messages`, and spans of the kind TOOL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces import opentelemetry
from karat.traces.observations import Observation, call_of, combine, messages
from karat.traces.plain import plain
from karat.traces.spans import Span, nested, spans_of, strays_of
from karat.traces.steps import Step, ToolResult, Unused, rest

name = "openinference"

_KIND = "openinference.span.kind"


def detect(value: Any) -> bool:
    """Spans of which at least one says its OpenInference kind."""
    return any(_kind(span) is not None for span in spans_of(value))


def read(value: Any) -> Iterator[Step | Unused]:
    """The model and tool spans in the order in which they began; `gen_ai.*` spans among them are read too."""
    yield from strays_of(value)
    yield from combine(
        _observe(span) if _kind(span) is not None else opentelemetry.observe(span) for span in spans_of(value)
    )


def _kind(span: Span) -> str | None:
    kind = span.attributes.get(_KIND)
    if kind is None:
        inner = plain(span.attributes.get("openinference"))
        kind = plain(inner.get("span")).get("kind") if isinstance(inner, dict) and "span" in inner else None
    return kind.upper() if isinstance(kind, str) else None


def _observe(span: Span) -> Observation:
    attributes, kind = span.attributes, _kind(span)
    if kind in ("TOOL", "RETRIEVER"):
        return _tool(span, attributes)
    given = [_message(item, "user") for item in nested(attributes, "llm.input_messages")]
    output = [_message(item, "assistant") for item in nested(attributes, "llm.output_messages")]
    is_model = kind == "LLM"
    return Observation(
        kind="model" if is_model else "group",
        name=span.name,
        where=span.where,
        start=span.start,
        input=messages(given or attributes.get("input.value"), "user"),
        output=messages(output or attributes.get("output.value"), "assistant"),
        value=span.value,
    )


def _tool(span: Span, attributes: dict[str, Any]) -> Observation:
    called = attributes.get("tool.name")
    called = called if isinstance(called, str) else span.name
    # `tool.parameters` is the tool's schema in some instrumentations and its arguments in others, while
    # `input.value` is always what it was given.
    given = attributes.get("input.value", attributes.get("tool.parameters"))
    answer = attributes.get("output.value")
    result = ToolResult(None, called, answer, span.failed) if answer is not None or span.failed else None
    identity = attributes.get("tool_call.id", attributes.get("tool.id"))
    return Observation(
        kind="tool",
        name=called,
        where=span.where,
        start=span.start,
        call=call_of(called, given, identity),
        result=result,
        value=span.value,
    )


def _message(item: Any, role: str) -> dict[str, Any]:
    """A flattened message as a chat message."""
    fields = item.get("message") if isinstance(item, dict) else None
    if not isinstance(fields, dict):
        return {"role": role, "content": item}
    used = ("contents", "tool_calls", "function_call_name", "function_call_arguments_json")
    message: dict[str, Any] = {"role": role, **rest(fields, *used)}
    blocks = fields.get("contents")
    if isinstance(blocks, list) and "content" not in message:
        message["content"] = [_block(block) for block in blocks]
    calls = fields.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [
            call.get("tool_call", call) if isinstance(call, dict) else call for call in calls
        ]
    if "function_call_name" in fields:
        message["function_call"] = {
            "name": fields["function_call_name"],
            "arguments": fields.get("function_call_arguments_json"),
        }
    return message


def _block(block: Any) -> Any:
    inside = block.get("message_content") if isinstance(block, dict) else None
    return inside if isinstance(inside, dict) else block
