"""OpenTelemetry spans with `gen_ai.*` attributes: model calls in every spelling, and tool executions.

Reads the parts-based messages of the semantic conventions, the earlier events (`gen_ai.choice`,
`gen_ai.content.prompt` and the like, in spans or as log records), and OpenLLMetry's `gen_ai.prompt.0.role`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from karat.records import JSON
from karat.traces._calls import Found, named_call, read_parts, result_step
from karat.traces._literals import read_arguments
from karat.traces._objects import decoded, plain
from karat.traces._observations import Observation, ToolRun, check_name, combine, messages, tool_run
from karat.traces._spans import Event, Span, flat, spans_of, strays_of
from karat.traces.formats import langfuse
from karat.traces.steps import Step, UnreadCall, Unused, rest, text_or_none

name = "opentelemetry"

_MODELS = ("chat", "text_completion", "generate_content", "completion")
_DETAILS = "gen_ai.client.inference.operation.details"
_ROLES = ("system", "user", "assistant", "tool")


def detect(value: object) -> bool:
    """Spans of which at least one describes a model or tool call; or a message in typed parts."""
    return _is_message(value) or any(_speaks(span) for span in spans_of(value))


def read(value: JSON) -> Iterator[Step | Unused]:
    """The model and tool spans in the order in which they began."""
    if _is_message(value):
        yield from read_message(value)
    else:
        yield from strays_of(value)
        yield from combine(observe(span) for span in spans_of(value))


def observe(span: Span) -> Observation:
    """Read a span as a model call, a tool execution or a plain group."""
    for event in span.take_events(_DETAILS):
        details = {**flat(event.fields), **flat(event.beside)}
        other = {key: part for key, part in details.items() if span.attributes.get(key, part) != part}
        span.attributes = {**details, **span.attributes, **({_DETAILS: other} if other else {})}
    if f"{langfuse.SPAN}type" in span.attributes:
        return langfuse.of_span(span)
    operation = span.attributes.get("gen_ai.operation.name")
    tool = span.attributes.get("gen_ai.tool.name")
    if operation == "execute_tool" or (tool is not None and operation not in _MODELS):
        return _tool(span)
    if span.attributes.get("traceloop.span.kind") == "tool":
        return _traceloop_tool(span)
    given, output = _input(span), _output(span)
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
        beside=span.left(),
    )


def read_message(message: dict[str, Any]) -> Iterator[Step | Unused]:
    """The steps of one message in typed parts."""
    extra = rest(message, "role", "parts")
    yield from read_parts(message["role"], message["parts"], extra, _part, "parts")


def _part(part: Any) -> Found:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        return UnreadCall("", "a part without a type", part)
    if kind.endswith("tool_call"):
        inside = plain(part.get(kind)) if "arguments" not in part else None
        given = part.get("arguments") if inside is None else inside
        arguments, raw = read_arguments(given)
        beside = rest(part, "type", "id", "name", "arguments", *((kind,) if inside is not None else ()))
        call = named_call(part.get("id"), part.get("name"), arguments, raw, beside)
        return call or UnreadCall("", "a tool call without a name", part)
    if kind.endswith("tool_call_response"):
        key = next((key for key in ("response", "result", kind) if key in part), "response")
        return result_step(
            text_or_none(part.get("id")), None, part.get(key), False, rest(part, "type", "id", key)
        )
    return None


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    parts = value.get("parts")
    return isinstance(parts, list) and any(
        isinstance(part, dict) and "type" in part for part in map(plain, parts)
    )


def _speaks(span: Span) -> bool:
    return any(key.startswith(("gen_ai.", "traceloop.", langfuse.SPAN)) for key in span.attributes) or any(
        event.name.startswith("gen_ai.") for event in span.events
    )


_GIVEN = ("gen_ai.tool.call.arguments", "tool_arguments", "gcp.vertex.agent.tool_call_args")
_ANSWERS = (
    "gen_ai.tool.call.result",
    "tool_response",
    "gcp.vertex.agent.tool_response",
    "gen_ai.tool.message",
)
"""Where the conventions, Pydantic AI (Logfire) and ADK keep the arguments and the result of a tool."""


def _tool(span: Span) -> Observation:
    called = span.take("gen_ai.tool.name")
    if not isinstance(called, str):
        named = span.value.get("name")
        called = named.removeprefix("execute_tool").strip() if isinstance(named, str) else named
    check_name(called, span.where)
    given, identity = span.take(*_GIVEN), span.take("gen_ai.tool.call.id")
    answer = span.answer(*_ANSWERS)
    events = {event.name for event in span.events}
    if given is None and events >= {"gen_ai.tool.message", "gen_ai.choice"}:
        # Strands writes the arguments as a message to the tool, and its answer as a choice.
        (asked, *_), (told, *_) = span.take_events("gen_ai.tool.message"), span.take_events("gen_ai.choice")
        given, answer = _event_message(asked).get("content"), _event_message(told).get("content")
    failed = span.failed or "error.type" in span.attributes
    return _run(span, tool_run(called, given, answer, identity=identity, failed=failed))


def _traceloop_tool(span: Span) -> Observation:
    called = span.take("traceloop.entity.name")
    if not isinstance(called, str):
        named = span.value.get("name")
        called = named.removesuffix(".tool") if isinstance(named, str) else named
    check_name(called, span.where)
    answer = span.answer("traceloop.entity.output")
    return _run(span, tool_run(called, span.take("traceloop.entity.input"), answer, failed=span.failed))


def _run(span: Span, run: ToolRun) -> Observation:
    return Observation(
        kind="tool",
        name=run.call.name,
        where=span.where,
        start=span.start,
        call=run.call,
        result=run.result,
        value=span.value,
        beside={**span.left(), **run.beside},
    )


def _input(span: Span) -> list[Step | Unused]:
    found = _attribute_messages(span, "gen_ai.input.messages", "gen_ai.prompt", "user")
    system = messages(_system(span.take("gen_ai.system_instructions")), "system")
    if not found:
        for event in span.take_events("gen_ai.content.prompt"):
            found += messages(_content_of(event, "gen_ai.prompt"), "user")
        names = [f"gen_ai.{role}.message" for role in _ROLES]
        found += messages([_event_message(event) for event in span.take_events(*names)], "user")
    return [*system, *found]


def _output(span: Span) -> list[Step | Unused]:
    found = _attribute_messages(span, "gen_ai.output.messages", "gen_ai.completion", "assistant")
    if not found:
        for event in span.take_events("gen_ai.content.completion"):
            found += messages(_content_of(event, "gen_ai.completion"), "assistant")
        choices = [_event_message(event) for event in span.take_events("gen_ai.choice")]
        found += messages(choices[:1], "assistant")
        reason = "only the first choice is the trajectory"
        found += [Unused("", reason, choice, reviewed=True) for choice in choices[1:]]
    return found


def _attribute_messages(span: Span, whole: str, listed: str, role: str) -> list[Step | Unused]:
    """Return the messages in a span's attributes: one document, or one set of attributes per message."""
    document = span.take(whole)
    if document is not None:
        return messages(document, role)
    for prefix in (whole, listed):
        if found := span.take_list(prefix):
            return messages([_flat_message(item, role) for item in found], role)
    return messages(span.take(listed), role)


def _content_of(event: Event, key: str) -> Any:
    """Return what a content event holds: messages, as values or as JSON text, or plain text."""
    inside = flat(event.fields)
    held = Span(event.name, inside, [], None, False, None, "", {})
    return held.take(key) or held.take_list(key) or held.take("content") or event.fields


def _system(value: Any) -> Any:
    """System instructions are a bare list of parts; here they become a message."""
    value = decoded(value)
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return {"role": "system", "parts": value}
    return value


def _flat_message(item: Any, role: str) -> Any:
    if not isinstance(item, dict):
        return {"role": role, "content": item}
    return {"role": role, **item}


def _event_message(event: Event) -> dict[str, Any]:
    """The message of an event: its body, or the message inside a choice; parts of it may be JSON text."""
    body = {**event.beside, **event.fields}
    held = "message" if "message" in body else "gen_ai.event.content"
    inside = decoded(body.get(held))
    if isinstance(inside, dict) and "message" in inside:
        body, held, inside = {**rest(body, held), **inside}, "message", decoded(inside["message"])
    fields = inside if isinstance(inside, dict) else {} if inside is None else {"content": inside}
    role = event.name.removeprefix("gen_ai.").removesuffix(".message")
    message = {"role": role if role in _ROLES else "assistant", **rest(body, held), **fields}
    if "tool_calls" in message:
        message["tool_calls"] = decoded(message["tool_calls"])
    if role == "tool" and "id" in message:
        message["tool_call_id"] = message.pop("id")
    return message
