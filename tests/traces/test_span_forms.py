"""Spans are read alike from flat, nested and mixed attributes, rows of a dataframe and log records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from karat.traces import normalize
from tests.traces.test_trace_formats import (
    ARGUMENTS,
    OPENAI_CHAT,
    OPENINFERENCE,
    OPENLLMETRY,
    OPENTELEMETRY,
)


def nest(attributes: dict[str, Any]) -> Any:
    """The attributes as the tree that their dotted keys spell out, with lists for numbers."""
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        place = tree
        *path, last = key.split(".")
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return _lists(tree)


def _lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    inside = {key: _lists(value) for key, value in tree.items()}
    return list(inside.values()) if inside and all(key.isdecimal() for key in inside) else inside


def half(attributes: dict[str, Any]) -> dict[str, Any]:
    """The form of Phoenix: the first list under a dotted key, its items with dotted keys of their own."""
    out: dict[str, Any] = {}
    for key, value in attributes.items():
        parts = key.split(".")
        at = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
        if at is None:
            out[key] = value
            continue
        items = out.setdefault(".".join(parts[:at]), [])
        while len(items) <= int(parts[at]):
            items.append({})
        items[int(parts[at])][".".join(parts[at + 1 :])] = value
    return out


@pytest.mark.parametrize("form", [nest, half])
@pytest.mark.parametrize(
    "spans", [OPENINFERENCE, OPENTELEMETRY, OPENLLMETRY], ids=["inference", "otel", "llm"]
)
def test_nested_attributes_read_as_flat_ones(form: Any, spans: list[dict[str, Any]]) -> None:
    written = [{**span, "attributes": form(span["attributes"])} for span in spans]
    assert normalize(written).steps == normalize(spans).steps
    assert [(call.name, call.arguments) for call in normalize(written).calls] == [("get_weather", ARGUMENTS)]


def test_messages_of_opentelemetry_may_be_values_and_not_text() -> None:
    written = [
        {
            **span,
            "attributes": {
                key: json.loads(value) if str(value).startswith(("[", "{")) else value
                for key, value in span["attributes"].items()  # type: ignore[attr-defined]  # JSON
            },
        }
        for span in OPENTELEMETRY
    ]
    assert normalize(written).steps == normalize(OPENTELEMETRY).steps


def test_a_nested_tool_span_has_its_arguments_and_its_result() -> None:
    span = {
        "name": "run",
        "attributes": {
            "openinference": {"span": {"kind": "TOOL"}},
            "tool": {"name": "get_weather"},
            "input": {"value": ARGUMENTS},
            "output": {"value": {"sky": {"now": "sunny"}}},
        },
    }
    read = normalize([span])
    assert read.calls[0].arguments == ARGUMENTS
    assert read.steps[1].content == {"sky": {"now": "sunny"}}


def test_rows_of_a_dataframe_of_spans() -> None:
    rows = [
        {
            "name": span["name"],
            "span_kind": span["attributes"]["openinference.span.kind"],
            "context.span_id": str(position),
            "start_time": span["start_time"],
            "attributes.tool.name": float("nan"),
            **{f"attributes.{key}": value for key, value in half(span["attributes"]).items()},  # type: ignore[arg-type]  # generic over what it maps
        }
        for position, span in enumerate(OPENINFERENCE)
    ]
    assert normalize(rows).steps == normalize(OPENINFERENCE).steps
    for row in rows:
        del row["attributes.openinference.span.kind"]  # the kind has a column of its own
    assert normalize(rows).steps == normalize(OPENINFERENCE).steps


def records(**identity: str) -> list[dict[str, Any]]:
    return [
        {"event_name": "gen_ai.user.message", "body": {"content": "Weather in Oslo?"}, **identity},
        {
            "event_name": "gen_ai.choice",
            "body": {"index": 0, "finish_reason": "tool_calls", "message": OPENAI_CHAT[1]},
            "attributes": {"gen_ai.system": "openai"},
            **identity,
        },
    ]


@pytest.mark.parametrize("identity", [{}, {"span_id": "s1"}], ids=["by order", "by span"])
def test_log_records_are_events(identity: dict[str, str]) -> None:
    answer = [
        {"event_name": "gen_ai.tool.message", "body": {"id": "c1", "content": "sunny"}},
        {"event_name": "gen_ai.choice", "body": {"message": {"content": "It is sunny."}}},
    ]
    steps = normalize([*records(**identity), *answer]).steps
    assert [step.role for step in steps] == ["user", "assistant", "tool", "assistant"]
    assert steps[1].extra["finish_reason"] == "tool_calls"
    assert steps[2].tool_result is not None
    assert steps[2].tool_result.call_id == "c1"


def test_log_records_belong_to_the_span_they_name() -> None:
    span = {"name": "chat", "span_id": "s1", "attributes": {"gen_ai.operation.name": "chat"}}
    read = normalize([*records(span_id="s1"), span])
    assert [step.role for step in read.steps] == ["user", "assistant"]
    assert [part for part in read.unused if not part.harmless] == []


def test_an_otlp_document_of_log_records() -> None:
    body = {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "Weather?"}}]}}
    record = {"eventName": "gen_ai.user.message", "spanId": "s", "body": body, "timeUnixNano": "4"}
    read = normalize({"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": [record]}]}]})
    assert [(step.role, step.content) for step in read.steps] == [("user", "Weather?")]


def test_content_events() -> None:
    span = {
        "name": "chat",
        "attributes": {"gen_ai.operation.name": "chat"},
        "events": [
            {
                "name": "gen_ai.content.prompt",
                "attributes": {"gen_ai.prompt": json.dumps(OPENAI_CHAT[:1])},
            },
            {
                "name": "gen_ai.content.completion",
                "attributes": {"gen_ai.completion": json.dumps(OPENAI_CHAT[1:2])},
            },
        ],
    }
    assert normalize([span]).steps == normalize(OPENAI_CHAT[:2]).steps
    span["events"] = [{"name": "gen_ai.content.prompt", "attributes": {"gen_ai.prompt": "Weather?"}}]
    assert [(step.role, step.content) for step in normalize([span]).steps] == [("user", "Weather?")]


def test_attributes_that_are_nested_without_end_do_not_hang() -> None:
    loop: dict[str, Any] = {"gen_ai.prompt": "hi"}
    loop["self"] = {"again": loop}
    assert [step.content for step in normalize([{"name": "chat", "attributes": loop}]).steps] == ["hi"]


@pytest.mark.parametrize(
    "beside",
    [
        {"tool_calls": OPENAI_CHAT[1]["tool_calls"]},
        {"function_call": OPENAI_CHAT[1]["tool_calls"][0]["function"]},
    ],
    ids=["tool_calls", "function_call"],
)
def test_calls_kept_in_additional_kwargs_are_read(beside: dict[str, Any]) -> None:
    message = {"role": "assistant", "content": "", "additional_kwargs": beside}
    (call,) = normalize([message]).calls
    assert (call.name, call.arguments) == ("get_weather", ARGUMENTS)
    told_twice = {**message, "tool_calls": OPENAI_CHAT[1]["tool_calls"]}
    assert len(normalize([told_twice]).calls) == 1


def tool_run_span(attributes: dict[str, Any], *events: dict[str, Any]) -> list[dict[str, Any]]:
    """One span of a tool that ran, as the OpenTelemetry SDK writes it."""
    named = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "rm", "gen_ai.tool.call.id": "t1"}
    return [
        {
            "name": "execute_tool rm",
            "context": {"trace_id": "0x1", "span_id": "0x1"},
            "start_time": "2026-01-01T00:00:00Z",
            "attributes": {**named, **attributes},
            "events": list(events),
        }
    ]


STRANDS = (
    {"name": "gen_ai.tool.message", "attributes": {"role": "tool", "content": '{"path": "/"}', "id": "t1"}},
    {"name": "gen_ai.choice", "attributes": {"message": '[{"text": "gone"}]', "id": "t1"}},
)


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        (tool_run_span({}, *STRANDS), [{"text": "gone"}]),
        (tool_run_span({"tool_arguments": '{"path": "/"}', "tool_response": "gone"}), "gone"),
        (
            tool_run_span(
                {
                    "gcp.vertex.agent.tool_call_args": '{"path": "/"}',
                    "gcp.vertex.agent.tool_response": "gone",
                }
            ),
            "gone",
        ),
    ],
    ids=["Strands", "Pydantic AI", "ADK"],
)
def test_a_tool_keeps_its_arguments_under_the_names_of_frameworks(document: Any, answer: Any) -> None:
    trajectory = normalize(document)
    assert [(call.id, call.name, call.arguments) for call in trajectory.calls] == [
        ("t1", "rm", {"path": "/"})
    ]
    results = [step.tool_result for step in trajectory.steps if step.tool_result is not None]
    assert [result.content for result in results] == [answer]
