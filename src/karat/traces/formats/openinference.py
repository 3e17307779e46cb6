"""OpenInference spans (Phoenix, Arize): `llm.input_messages`, flat or nested, and spans of the kind TOOL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.traces._observations import Observation, check_name, combine, messages, tool_run
from karat.traces._spans import Span, spans_of, strays_of
from karat.traces.formats import opentelemetry
from karat.traces.steps import Step, Unused, rest

name = "openinference"

_KIND = "openinference.span.kind"
_KINDS = frozenset(("LLM", "TOOL", "RETRIEVER", "AGENT", "CHAIN", "EMBEDDING", "RERANKER", "GUARDRAIL"))


def detect(value: object) -> bool:
    """Spans of which at least one has an OpenInference kind."""
    return any(_kind(span) is not None for span in spans_of(value))


def read(value: object) -> Iterator[Step | Unused]:
    """The model and tool spans in the order in which they began; `gen_ai.*` spans among them are read too."""
    yield from strays_of(value)
    yield from combine(
        _observe(span) if _kind(span) is not None else opentelemetry.observe(span) for span in spans_of(value)
    )


def _kind(span: Span) -> str | None:
    kind = span.attributes.get(_KIND)
    if isinstance(kind, str):
        return kind.upper()
    kind = span.value.get("span_kind")
    return kind if isinstance(kind, str) and kind in _KINDS else None


def _observe(span: Span) -> Observation:
    kind = _kind(span)
    if kind in ("TOOL", "RETRIEVER"):
        return _tool(span)
    given = [_message(item, "user") for item in span.take_list("llm.input_messages")]
    output = [_message(item, "assistant") for item in span.take_list("llm.output_messages")]
    return Observation(
        kind="model" if kind == "LLM" else "group",
        name=span.name,
        where=span.where,
        start=span.start,
        input=messages(given or span.take("input.value"), "user"),
        output=messages(output or span.take("output.value"), "assistant"),
        value=span.value,
        beside=span.left(),
    )


def _tool(span: Span) -> Observation:
    called = span.take("tool.name")
    called = check_name(called if isinstance(called, str) else span.value.get("name"), span.where)
    # `tool.parameters` is the tool's schema in some instrumentations and its arguments in others, while
    # `input.value` is always what it was given.
    given, answer = span.take("input.value", "tool.parameters"), span.answer("output.value")
    run = tool_run(called, given, answer, identity=span.take("tool_call.id", "tool.id"), failed=span.failed)
    return Observation(
        kind="tool",
        name=called,
        where=span.where,
        start=span.start,
        call=run.call,
        result=run.result,
        value=span.value,
        beside={**span.left(), **run.beside},
    )


def _message(item: Any, role: str) -> dict[str, Any]:
    """A message of OpenInference as a chat message."""
    fields = item.get("message") if isinstance(item, dict) else None
    if not isinstance(fields, dict):
        return {"role": role, "content": item}
    used = ("tool_calls", "function_call_name", "function_call_arguments_json")
    message: dict[str, Any] = {"role": role, **rest(item, "message"), **rest(fields, *used)}
    if message["role"] == "model":
        message["role"] = "assistant"
    calls = fields.get("tool_calls")
    calls = [_call(call) for call in calls] if isinstance(calls, list) else []
    if isinstance(message.get("contents"), list) and "content" not in message:
        blocks = message.pop("contents")
        # A call may also be one of the content blocks.
        in_blocks = [_call(block) for block in blocks if isinstance(block, dict) and "tool_call" in block]
        calls += [call for call in in_blocks if call not in calls]
        message["content"] = [
            _block(block) for block in blocks if not (isinstance(block, dict) and "tool_call" in block)
        ]
    if calls:
        message["tool_calls"] = calls
    if "function_call_name" in fields:
        message["function_call"] = {
            "name": fields["function_call_name"],
            "arguments": fields.get("function_call_arguments_json"),
        }
    return message


def _call(item: Any) -> Any:
    """Read a call from the list of calls or from a content block, without the redundant kind of the block."""
    call = item.get("tool_call") if isinstance(item, dict) else None
    if not isinstance(call, dict):
        return item
    inside = item.get("message_content")
    beside = rest(inside, "type") if isinstance(inside, dict) else {}
    return {**rest(item, "tool_call", "message_content"), **beside, **call}


def _block(block: Any) -> Any:
    inside = block.get("message_content") if isinstance(block, dict) else None
    return inside if isinstance(inside, dict) else block
