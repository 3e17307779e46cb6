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


def unknown(given: dict[str, Any]) -> dict[str, Any]:
    """A call of each format with only its name and its id, and fields that no format has."""
    span = genai_span({"type": "tool_call", "id": "c", "name": "rm", **given})
    action = {"tool": "rm", "log": "", "type": "AgentAction", **given}
    return {
        "OpenAI": message({"id": "c", "type": "function", "function": {"name": "rm", **given}}),
        "OpenAI, beside the function": message({"id": "c", "function": {"name": "rm"}, **given}),
        "OpenAI, the old key": [ASKED, {"role": "assistant", "function_call": {"name": "rm", **given}}],
        "OpenAI, a custom tool": message({"id": "c", "type": "custom", "custom": {"name": "rm", **given}}),
        "Responses": [{"type": "function_call", "call_id": "c", "name": "rm", **given}],
        "Responses, MCP": [{"type": "mcp_call", "id": "c", "name": "rm", "server_label": "s", **given}],
        "LangChain": [{"type": "ai", "content": "", "tool_calls": [{"name": "rm", "id": "c", **given}]}],
        "LangChain, OpenAI's role": message({"name": "rm", "id": "c", "type": "tool_call", **given}),
        "LangChain agents": {"input": "x", "intermediate_steps": [[action, "gone"]], "output": "Done."},
        "Anthropic": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "rm", **given}]}
        ],
        "Bedrock": [
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c", "name": "rm", **given}}]}
        ],
        "Gemini": [{"role": "model", "parts": [{"functionCall": {"name": "rm", **given}}]}],
        "Gemini, beside the call": [{"role": "model", "parts": [{"functionCall": {"name": "rm"}, **given}]}],
        "ADK": [
            {
                "author": "agent",
                "invocationId": "i",
                "content": {"role": "model", "parts": [{"function_call": {"name": "rm", **given}}]},
            }
        ],
        "the AI SDK": [
            {
                "role": "assistant",
                "content": [{"type": "tool-call", "toolCallId": "c", "toolName": "rm", **given}],
            }
        ],
        "the AI SDK's parts": [
            {
                "role": "assistant",
                "parts": [{"type": "tool-rm", "toolCallId": "c", "state": "output-available", **given}],
            }
        ],
        "Pydantic AI": [
            {
                "kind": "response",
                "parts": [{"part_kind": "tool-call", "tool_name": "rm", "tool_call_id": "c", **given}],
            }
        ],
        "OpenTelemetry": span,
        "MCP": [{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "rm", **given}}],
        "AutoGen": [
            {
                "type": "ToolCallRequestEvent",
                "source": "agent",
                "content": [{"id": "c", "name": "rm", **given}],
            }
        ],
        "smolagents": [{"step_number": 1, "tool_calls": [{"id": "c", "function": {"name": "rm", **given}}]}],
        "Semantic Kernel": [
            {
                "role": "assistant",
                "items": [{"content_type": "function_call", "id": "c", "name": "rm", **given}],
            }
        ],
        "karat": [{"name": "rm", **given}],
        "karat's steps": [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "name": "rm", **given}],
                "tool_result": None,
            }
        ],
        "a <tool_call>": [
            {"role": "assistant", "content": f"<tool_call>{json.dumps({'name': 'rm', **given})}</tool_call>"}
        ],
        "an action": [{"role": "assistant", "content": f"Action: {json.dumps({'action': 'rm', **given})}"}],
    }


@pytest.mark.parametrize("value", [GIVEN, [GIVEN], json.dumps(GIVEN), f" {json.dumps([GIVEN])}"], ids=str)
@pytest.mark.parametrize("key", ["actions", "x", "toolArgs"])
@pytest.mark.parametrize("name", unknown({}))
def test_arguments_under_a_key_that_no_format_has_are_read_or_refused(
    name: str, key: str, value: Any
) -> None:
    try:
        calls = normalize(unknown({key: value})[name]).calls
    except TraceError:
        return
    assert [call.name for call in calls] == ["rm"]
    assert calls[0].arguments in (GIVEN, [GIVEN], {key: value}) or calls[0].raw


WRITTEN_BY_HAND = (
    "OpenAI",
    "OpenAI, beside the function",
    "OpenAI, the old key",
    "OpenAI, a custom tool",
    "LangChain",
    "LangChain, OpenAI's role",
    "AutoGen",
    "smolagents",
    "karat",
    "karat's steps",
    "a <tool_call>",
    "an action",
)
"""The forms that people and prompts write too; the others come from SDKs, whose next version may add a text."""


@pytest.mark.parametrize("key", ["command", "x", "query", "body"])
@pytest.mark.parametrize("name", WRITTEN_BY_HAND)
def test_a_text_beside_a_call_without_a_field_for_arguments_is_refused(name: str, key: str) -> None:
    with pytest.raises(TraceError):
        normalize(unknown({key: "rm -rf /"})[name])


def test_a_text_beside_empty_arguments_is_not_one() -> None:
    call = {"id": "c", "function": {"name": "rm", "arguments": "{}"}, "unheard_of": "text"}
    assert [(each.name, each.arguments) for each in normalize(message(call)).calls] == [("rm", {})]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"status": "completed", "index": 0},
        {"metadata": {"a": 1}},
        {"x": {}},
        {"x": []},
        {"result": {"a": 1}},
        {"error": "no such file", "display_name": "Remove", "startedAt": "2026-05-01T10:00:00Z"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", unknown({}))
def test_a_call_without_arguments_is_one(name: str, given: dict[str, Any]) -> None:
    if name in ("karat", "karat's steps") and given:
        pytest.skip("karat's own calls have no other fields")
    assert [(call.name, call.arguments or {}) for call in normalize(unknown(given)[name]).calls] == [
        ("rm", {})
    ]


@pytest.mark.parametrize("nothing", [{}, "", "{}", None], ids=repr)
def test_empty_arguments_are_none(nothing: Any) -> None:
    for key in ("arguments", "args", "input"):
        for name in ("OpenAI", "LangChain", "Anthropic", "Gemini", "Pydantic AI", "the AI SDK"):
            (call,) = normalize(unknown({key: nothing})[name]).calls
            assert call.arguments == {}


def test_a_copy_with_arguments_shows_that_they_were_not_read() -> None:
    """A span of a tool may be without them, and the message with the call at a place that is not searched."""
    call = {"type": "tool_call", "id": "c", "name": "rm", "arguments": GIVEN}
    run = {
        "name": "execute_tool rm",
        "context": {"trace_id": "1", "span_id": "2"},
        "attributes": {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "rm",
            "gen_ai.tool.call.id": "c",
        },
    }
    assert [call.arguments for call in normalize([run]).calls] == [{}]
    assert [call.arguments for call in normalize([*genai_span(call), run]).calls] == [GIVEN]
    group: dict[str, Any] = {"spans": [run], "others": genai_span(call)}
    with pytest.raises(TraceError):
        normalize({"resourceSpans": [{"scopeSpans": [group]}]})


@pytest.mark.parametrize("key", ["toolCalls", "toolResults"])
def test_a_tool_call_of_the_ai_sdk_that_is_text_is_refused(key: str) -> None:
    call = {"type": "tool-call", "toolCallId": "c", "toolName": "rm", "input": GIVEN}
    step = {"text": "", "toolCalls": [call], "toolResults": [], "finishReason": "tool-calls"}
    assert len(normalize({"steps": [step]}).calls) == 1
    with pytest.raises(TraceError):
        normalize(
            {"steps": [{**step, key: [call, f"```json\n{json.dumps({**call, 'toolName': 'ls'})}\n```"]}]}
        )


def test_a_message_as_text_among_messages_is_refused() -> None:
    calls = message({"id": "c", "function": {"name": "ls", "arguments": "{}"}})
    hidden = message({"id": "d", "function": {"name": "rm", "arguments": json.dumps(GIVEN)}})[1]
    with pytest.raises(TraceError):
        normalize([*calls, f"```json\n{json.dumps(hidden)}\n```"])


def test_a_block_as_text_among_blocks_is_refused() -> None:
    made = {"type": "tool_use", "id": "c", "name": "ls", "input": {}}
    hidden = f"```json\n{json.dumps({**made, 'id': 'd', 'name': 'rm', 'input': GIVEN})}\n```"
    with pytest.raises(TraceError):
        normalize([ASKED, {"role": "assistant", "content": [made, hidden]}])
