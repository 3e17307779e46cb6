"""Recorded tool executions are joined with the calls that the model requested, in every notation."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from karat.traces import normalize
from karat.traces._observations import tool_run

ARGUMENTS = {"city": "Oslo", "days": [1, 2]}
CALLBACK = {"input_str": str(ARGUMENTS), "inputs": ARGUMENTS, "tags": ["t"], "kwargs": {"tool_call_id": "c1"}}
MESSAGE = {"content": "sunny", "type": "tool", "name": "look", "tool_call_id": "c1", "status": "success"}
CONSTRUCTOR = {
    "lc": 1,
    "type": "constructor",
    "id": ["langchain", "messages", "ToolMessage"],
    "kwargs": MESSAGE,
}


@pytest.mark.parametrize(
    "given",
    [
        ARGUMENTS,
        json.dumps(ARGUMENTS),
        str(ARGUMENTS),
        {"input": str(ARGUMENTS)},
        {"args": [], "kwargs": ARGUMENTS},
        CALLBACK,
        json.dumps(CALLBACK),
    ],
    ids=["values", "JSON", "Python", "one input", "keywords", "callback", "callback as JSON"],
)
def test_arguments_are_found_in_their_envelopes(given: Any) -> None:
    assert tool_run("look", given, None).call.arguments == ARGUMENTS


@pytest.mark.parametrize(
    "given", [{"input": "42"}, {"input": "oslo"}, {"args": [1], "kwargs": {}}, {"input": [1]}]
)
def test_arguments_that_only_look_like_an_envelope_stay(given: dict[str, Any]) -> None:
    assert tool_run("look", given, None).call.arguments == given


@pytest.mark.parametrize(
    "answer",
    [
        MESSAGE,
        json.dumps({"type": "tool", "data": MESSAGE}),
        json.dumps(CONSTRUCTOR),
        json.dumps({"output": CONSTRUCTOR, "kwargs": {"color": "green"}}),
    ],
    ids=["fields", "data", "constructor", "callback"],
)
def test_an_answer_is_what_the_message_around_it_holds(answer: Any) -> None:
    run = tool_run("look", {}, answer)
    assert run.result is not None
    assert (run.result.content, run.result.error, run.call.id) == ("sunny", False, "c1")
    assert run.beside["output"]["status"] == "success"


@pytest.mark.parametrize(
    "answer", ['{"output": "x"}', '{"content": "x"}', "sunny", {"content": "x"}, "{broken"]
)
def test_a_reply_that_is_not_a_message_is_kept_unchanged(answer: Any) -> None:
    result = tool_run("look", {}, answer).result
    assert result is not None
    assert result.content == answer


def spans(tool: dict[str, Any], **status: Any) -> list[dict[str, Any]]:
    """A model's call with arguments that are not JSON, and its execution."""
    call = {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{oslo"}}],
    }
    return [
        {
            "name": "chat",
            "attributes": {"gen_ai.operation.name": "chat", "gen_ai.completion": json.dumps([call])},
        },
        {"name": "look", "attributes": {"gen_ai.tool.name": "look", **tool}, **status},
    ]


def test_a_malformed_call_that_was_executed_is_reported_once() -> None:
    read = normalize(spans({"gen_ai.tool.call.arguments": "{oslo", "gen_ai.tool.call.result": "no JSON"}))
    assert [(call.id, call.raw) for call in read.calls] == [("c1", "{oslo")]
    assert [step.tool_result.call_id for step in read.steps if step.tool_result] == ["c1"]


@pytest.mark.parametrize(
    "status", [{"status_code": "ERROR", "description": "no luck"}, {"code": 2, "message": "no luck"}]
)
def test_a_tool_that_failed_says_why_in_its_status(status: dict[str, Any]) -> None:
    result = normalize(spans({"gen_ai.tool.call.id": "c1"}, status=status)).steps[-1].tool_result
    assert result is not None
    assert (result.content, result.error, result.call_id) == ("no luck", True, "c1")


def test_spans_as_objects_are_what_they_write_of_themselves() -> None:
    written = spans({"gen_ai.tool.call.id": "c1"}, status={"status_code": "ERROR", "description": "no luck"})
    objects = [
        SimpleNamespace(attributes={}, start_time=1, to_json=lambda span=span: json.dumps(span))
        for span in written
    ]
    assert normalize(objects) == normalize(written)


def test_spans_and_log_records_in_one_document() -> None:
    record = {"eventName": "gen_ai.user.message", "spanId": "s1", "body": {"stringValue": "Weather?"}}
    span = {"name": "chat", "spanId": "s1", "attributes": [{"key": "gen_ai.operation.name", "value": "chat"}]}
    group = {"name": "agent", "spanId": "s0"}
    document = {
        "resourceSpans": [{"scopeSpans": [{"spans": [group, span]}]}],
        "resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}],
    }
    read = normalize(document)
    assert [(step.role, step.text) for step in read.steps] == [("user", "Weather?")]
    assert [part for part in read.unused if not part.harmless] == []


def test_thinking_is_not_part_of_the_text() -> None:
    for content in (
        [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}],
        [{"type": "reasoning", "content": "Hm."}, {"type": "text", "content": "Yes."}],
    ):
        assert normalize([{"role": "assistant", "content": content}]).steps[0].text == "Yes."
    thought = {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "Yes."}]}
    assert normalize([thought]).steps[0].text == "Yes."


def test_blocks_of_a_message_may_be_objects() -> None:
    block = SimpleNamespace(type="text", text="Yes.", citations=None)
    assert normalize([{"role": "assistant", "content": [block]}]).steps[0].text == "Yes."
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [block]}
    assert normalize([{"role": "user", "content": [result]}]).steps[0].content == "Yes."


def test_other_fields_of_a_block_are_extras_of_its_call() -> None:
    message = {
        "type": "ai",
        "content": [
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"}
        ],
        "tool_calls": [{"id": "c1", "name": "look", "args": {}}],
    }
    (step,) = normalize([message]).steps
    assert (step.content, step.tool_calls[0].extra) == ([], {"id": "fc_1"})


def test_invalid_tool_calls_of_langchain_count_in_messages_with_a_role() -> None:
    bad = {"type": "invalid_tool_call", "id": "c1", "name": "look", "args": "{oslo", "error": "no JSON"}
    (call,) = normalize([{"role": "assistant", "content": "", "invalid_tool_calls": [bad]}]).calls
    assert (call.id, call.raw, call.extra) == ("c1", "{oslo", {"error": "no JSON"})
