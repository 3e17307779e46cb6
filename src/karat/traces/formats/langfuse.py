"""Langfuse exports: traces with their observations, or the observations alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from karat.traces._objects import decoded, plain
from karat.traces._observations import Observation, check_name, combine, messages, tool_run
from karat.traces._spans import Span
from karat.traces.steps import Step, Unused, rest

name = "langfuse"

SPAN = "langfuse.observation."
"""How the attributes of the SDK's spans begin."""

_KINDS = frozenset(
    "GENERATION SPAN EVENT AGENT TOOL CHAIN RETRIEVER EVALUATOR EMBEDDING GUARDRAIL".split()  # noqa: SIM905 - reads as the table it is
)
_TOOLS = ("TOOL", "RETRIEVER")
_MARKS = ("startTime", "start_time", "traceId", "trace_id", "parentObservationId", "parent_observation_id")


def detect(value: object) -> bool:
    """A trace with observations, an observation, or a list of observations."""
    if isinstance(value, list):
        return bool(value) and all(_is_observation(plain(item)) for item in value)
    if isinstance(value, dict) and isinstance(value.get("observations"), (list, tuple)):
        return all(_is_observation(plain(item)) for item in value["observations"])
    return _is_observation(value)


def read(value: object) -> Iterator[Step | Unused]:
    """The generations and tools in the order in which they began."""
    if isinstance(value, dict) and "observations" in value:
        given = value["observations"]
        found = [_observe(plain(item), f"observations[{i}]") for i, item in enumerate(given)]
        if not any(each.kind in ("model", "tool") for each in found):
            found = [_whole(value), *found]
        elif others := rest(value, "observations"):
            yield Unused("", "fields outside 'observations'", others, harmless=True)
    else:
        found = [
            _observe(plain(item), f"[{i}]")
            for i, item in enumerate(value if isinstance(value, list) else [value])
        ]
    yield from combine(found)


def of_span(span: Span) -> Observation:
    """Read the observation in the `langfuse.observation.*` attributes of a Langfuse SDK span."""
    words = ("input", "output", "level", "status_message")
    given, output, level, message = (span.take(f"{SPAN}{word}") for word in words)
    identity = span.attributes.get(f"{SPAN}metadata.tool_call_id")
    item = {
        "type": str(span.attributes[f"{SPAN}type"]),
        "name": span.name,
        "startTime": span.start,
        "input": given,
        "output": output,
        "level": level,
        "statusMessage": message,
        "metadata": {"tool_call_id": identity.strip('"')} if isinstance(identity, str) else None,
    }
    beside = rest({"level": level, "status_message": message})
    observed = _observe(item, span.where)
    wrapped = {key: part for key, part in observed.beside.items() if key in ("input", "output")}
    return msgspec.structs.replace(observed, value=span.value, beside={**span.left(), **beside, **wrapped})


def _is_observation(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and value["type"].upper() in _KINDS
        and any(mark in value for mark in _MARKS)
    )


def _observe(item: dict[str, Any], where: str) -> Observation:
    kind, called = item["type"].upper(), item.get("name")
    start = item.get("startTime", item.get("start_time"))
    failed = str(item.get("level", "")).upper() == "ERROR"
    output = item.get("output")
    content = item.get("statusMessage", output) if failed and output is None else output
    if kind in _TOOLS:
        check_name(called, where)
    named = called if isinstance(called, str) else kind.lower()
    metadata = plain(item.get("metadata"))
    identity = metadata.get("tool_call_id") if isinstance(metadata, dict) else None
    run = tool_run(named, item.get("input"), content, identity=identity, failed=failed)
    is_model = kind == "GENERATION"
    return Observation(
        kind="model" if is_model else "tool" if kind in _TOOLS else "group",
        name=named,
        where=where,
        start=start if isinstance(start, (str, int, float)) or start is None else str(start),
        input=_messages(item.get("input"), "user") if is_model else [],
        output=_messages(output, "assistant") if is_model else [],
        call=None if is_model else run.call,
        result=None if is_model else run.result,
        value=item,
        beside={**rest(item, "input", "output"), **({} if is_model else run.beside)},
    )


def _whole(trace: dict[str, Any]) -> Observation:
    """The trace's own input and output, for exports that hold nothing else."""
    return Observation(
        kind="group",
        name=str(trace.get("name") or "trace"),
        where="",
        input=_messages(trace.get("input"), "user"),
        output=_messages(trace.get("output"), "assistant"),
        value=rest(trace, "observations"),
        beside=rest(trace, "observations", "input", "output"),
    )


def _messages(value: Any, role: str) -> list[Step | Unused]:
    value = decoded(value)
    if isinstance(value, list):
        tools = [item for item in value if _is_definition(item)]
        value = [item for item in value if item not in tools] if tools else value
        beside = [Unused("", "the definition of a tool", tool, harmless=True) for tool in tools]
        return [*messages(value, role), *beside]
    if isinstance(value, dict) and isinstance(value.get("messages"), (list, tuple)):
        others = rest(value, "messages")
        beside = [Unused("", "fields outside 'messages'", others, harmless=True)] if others else []
        return [*messages(value["messages"], role), *beside]
    return messages(value, role)


def _is_definition(item: Any) -> bool:
    """Whether it is a tool that a model may use: the callback for LangChain lists them among the messages."""
    content = item.get("content") if isinstance(item, dict) and item.get("role") == "tool" else None
    return isinstance(content, dict) and content.get("type") == "function" and "tool_call_id" not in item
