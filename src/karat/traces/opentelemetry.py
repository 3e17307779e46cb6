"""OpenTelemetry spans with `gen_ai.*` attributes: model calls in every spelling, and tool executions.

Reads the parts-based messages of the semantic conventions, the earlier events (`gen_ai.choice` and the like),
and the `gen_ai.prompt.0.role` attributes of OpenLLMetry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from karat.traces.literals import read_arguments
from karat.traces.observations import Observation, call_of, combine, messages
from karat.traces.plain import plain
from karat.traces.spans import Span, nested, spans_of, strays_of
from karat.traces.steps import Step, ToolCall, ToolResult, Unused, rest, text_or_none

name = "opentelemetry"

_MODELS = ("chat", "text_completion", "generate_content", "completion")
_DETAILS = "gen_ai.client.inference.operation.details"


def detect(value: Any) -> bool:
    """Spans of which at least one speaks of a model or a tool; or a message in typed parts."""
    return _is_message(value) or any(_speaks(span) for span in spans_of(value))


def read(value: Any) -> Iterator[Step | Unused]:
    """The model and tool spans in the order in which they began."""
    if _is_message(value):
        yield from read_message(value)
    else:
        yield from strays_of(value)
        yield from combine(observe(span) for span in spans_of(value))


def observe(span: Span) -> Observation:
    """What a span says: a model call, a tool execution, or only a group."""
    attributes = {**_details(span), **span.attributes}
    operation = attributes.get("gen_ai.operation.name")
    tool = attributes.get("gen_ai.tool.name")
    if operation == "execute_tool" or (tool is not None and operation not in _MODELS):
        return _tool(span, attributes, tool)
    if attributes.get("traceloop.span.kind") == "tool":
        return _traceloop_tool(span, attributes)
    given, output = _input(attributes, span), _output(attributes, span)
    # An agent's span repeats the messages of the model calls below it.
    is_model = operation in _MODELS or (operation is None and bool(given or output))
    return Observation(
        kind="model" if is_model else "group",
        name=span.name,
        where=span.where,
        start=span.start,
        input=given,
        output=output,
        value=span.value,
    )


def read_message(message: dict[str, Any]) -> Iterator[Step | Unused]:
    """The steps of one message in typed parts."""
    role, content, calls = message["role"], [], []
    extra = rest(message, "role", "parts")
    for position, part in enumerate(map(plain, message["parts"])):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_call" and isinstance(part.get("name"), str):
            arguments, raw = read_arguments(part.get("arguments"))
            beside = rest(part, "type", "id", "name", "arguments")
            calls.append(ToolCall(text_or_none(part.get("id")), part["name"], arguments, raw, beside))
        elif kind == "tool_call_response":
            answer = part.get("response", part.get("result"))
            yield Step("tool", answer, tool_result=ToolResult(text_or_none(part.get("id")), None, answer))
        elif isinstance(part, dict) and kind != "tool_call":
            content.append(part)
        else:
            yield Unused(f"parts[{position}]", "a part without a type, or a call without a name", part)
    if content or calls:
        yield Step(role, _simple(content), calls, extra=extra)


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    parts = value.get("parts")
    return isinstance(parts, list) and any(
        isinstance(part, dict) and "type" in part for part in map(plain, parts)
    )


def _speaks(span: Span) -> bool:
    return any(key.startswith(("gen_ai.", "traceloop.")) for key in span.attributes) or any(
        event.startswith("gen_ai.") for event, _ in span.events
    )


def _details(span: Span) -> dict[str, Any]:
    return next((attributes for event, attributes in span.events if event == _DETAILS), {})


def _tool(span: Span, attributes: dict[str, Any], tool: Any) -> Observation:
    called = tool if isinstance(tool, str) else span.name.removeprefix("execute_tool ")
    answer = attributes.get("gen_ai.tool.call.result", attributes.get("gen_ai.tool.message"))
    failed = span.failed or "error.type" in attributes
    result = ToolResult(None, called, answer, failed) if answer is not None or failed else None
    call = call_of(
        called, attributes.get("gen_ai.tool.call.arguments"), attributes.get("gen_ai.tool.call.id")
    )
    return Observation(
        kind="tool",
        name=called,
        where=span.where,
        start=span.start,
        call=call,
        result=result,
        value=span.value,
    )


def _traceloop_tool(span: Span, attributes: dict[str, Any]) -> Observation:
    called = attributes.get("traceloop.entity.name")
    called = called if isinstance(called, str) else span.name.removesuffix(".tool")
    answer = attributes.get("traceloop.entity.output")
    return Observation(
        kind="tool",
        name=called,
        where=span.where,
        start=span.start,
        call=call_of(called, attributes.get("traceloop.entity.input")),
        result=None if answer is None else ToolResult(None, called, answer, span.failed),
        value=span.value,
    )


def _input(attributes: dict[str, Any], span: Span) -> list[Step | Unused]:
    told = attributes.get("gen_ai.input.messages")
    if told is not None:
        system = messages(_system(attributes.get("gen_ai.system_instructions")), "system")
        return [*system, *messages(told, "user")]
    flat = nested(attributes, "gen_ai.prompt")
    if flat:
        return messages([_flat_message(item, "user") for item in flat], "user")
    found = []
    for event, body in span.events:
        role = event.removeprefix("gen_ai.").removesuffix(".message")
        if event.startswith("gen_ai.") and event.endswith(".message"):
            found.append(_event_message(body, role))
    return messages(found, "user")


def _output(attributes: dict[str, Any], span: Span) -> list[Step | Unused]:
    told = attributes.get("gen_ai.output.messages")
    if told is not None:
        return messages(told, "assistant")
    flat = nested(attributes, "gen_ai.completion")
    if flat:
        return messages([_flat_message(item, "assistant") for item in flat], "assistant")
    choices = [body for event, body in span.events if event == "gen_ai.choice"]
    return messages([_event_message(body, "assistant") for body in choices[:1]], "assistant")


def _system(value: Any) -> Any:
    """System instructions are a bare list of parts; here they become a message."""
    value = _decoded(value)
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return {"role": "system", "parts": value}
    return value


def _flat_message(item: Any, role: str) -> Any:
    if not isinstance(item, dict):
        return {"role": role, "content": item}
    return {"role": role, **item}


def _event_message(body: dict[str, Any], role: str) -> dict[str, Any]:
    """The message of an event: its body, or the message inside a choice; parts of it may be JSON text."""
    inside = _decoded(body.get("message", body))
    fields = inside if isinstance(inside, dict) else {"content": inside}
    message = {"role": role, **rest(fields, "id", "index", "finish_reason", "gen_ai.system")}
    if "tool_calls" in message:
        message["tool_calls"] = _decoded(message["tool_calls"])
    if role == "tool":
        message["tool_call_id"] = fields.get("id")
    return message


def _decoded(value: Any) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return plain(value)
    try:
        return msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return value


def _simple(content: list[Any]) -> Any:
    if not content:
        return None
    only = content[0]
    if len(content) == 1 and only.keys() == {"type", "content"} and only["type"] == "text":
        return only["content"]
    return content
