"""The arguments of a call are read, or the trace is refused: a call never loses them to the key of another format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from karat.traces import TraceError, normalize

GIVEN = {"path": "/"}
ASKED = {"role": "user", "content": "Clean up."}


def message(*calls: Any, **fields: Any) -> list[Any]:
    return [ASKED, {"role": "assistant", "content": "", "tool_calls": list(calls), **fields}]


def genai_span(part: dict[str, Any]) -> list[Any]:
    output = json.dumps([{"role": "assistant", "parts": [part]}])
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": output}
    return [{"name": "chat", "context": {"trace_id": "1", "span_id": "1"}, "attributes": attributes}]


READ: dict[str, Any] = {
    "OpenAI, parameters": message({"id": "c", "function": {"name": "rm", "parameters": GIVEN}}),
    "OpenAI, args": message({"id": "c", "function": {"name": "rm", "args": json.dumps(GIVEN)}}),
    "AgentDojo": message({"id": "c", "function": "rm", "args": GIVEN, "placeholder_args": None}),
    "Responses, args": [{"type": "function_call", "call_id": "c", "name": "rm", "args": GIVEN}],
    "Responses, a custom tool": [
        {"type": "custom_tool_call", "call_id": "c", "name": "rm", "arguments": GIVEN}
    ],
}
REFUSED: dict[str, Any] = {
    "OpenAI, beside the function": message({"id": "c", "function": {"name": "rm"}, "arguments": GIVEN}),
    "LangChain": [
        {"type": "ai", "content": "", "tool_calls": [{"name": "rm", "arguments": GIVEN, "id": "c"}]}
    ],
    "Anthropic": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "rm", "arguments": GIVEN}]}
    ],
    "Bedrock": [
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c", "name": "rm", "args": GIVEN}}]}
    ],
    "the AI SDK": [
        {
            "role": "assistant",
            "content": [{"type": "tool-call", "toolCallId": "c", "toolName": "rm", "arguments": GIVEN}],
        }
    ],
    "Pydantic AI": [
        {
            "kind": "response",
            "parts": [{"part_kind": "tool-call", "tool_name": "rm", "arguments": GIVEN, "tool_call_id": "c"}],
        }
    ],
    "OpenTelemetry": genai_span({"type": "tool_call", "id": "c", "name": "rm", "args": json.dumps(GIVEN)}),
}


@pytest.mark.parametrize("name", READ)
def test_arguments_under_the_key_of_another_format_are_read(name: str) -> None:
    assert [(call.name, call.arguments) for call in normalize(READ[name]).calls] == [("rm", GIVEN)]


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_are_not_read_are_refused(name: str) -> None:
    with pytest.raises(TraceError, match="rm"):
        normalize(REFUSED[name])


def test_a_call_under_the_old_and_the_new_key_is_one() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "rm", "arguments": '{"path": "/"}'}}
    assert len(normalize(message(call, function_call=call["function"])).calls) == 1
    assert len(normalize(message(call, toolCalls=[call])).calls) == 1
    assert len(normalize(message(call, toolCalls=[call, {**call, "id": "d"}])).calls) == 2
    other = {"name": "rm", "arguments": '{"path": "/tmp"}'}
    assert len(normalize(message(call, function_call=other)).calls) == 2
