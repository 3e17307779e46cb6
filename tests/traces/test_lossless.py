"""Nothing vanishes: every value of a trace is in its steps, in their extras, or among what is unused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from karat.traces import normalize
from tests.traces.test_trace_formats import ANTHROPIC, DOCUMENTS, GEMINI, OPENAI_CHAT

TAGS = """
message function tool_call function_call function_call_output custom_tool_call_output tool_use tool_result
model human ai constructor langchain schema messages HumanMessage AIMessage ToolMessage success
input_text output_text text tool_call_response web_search_call computer_call
gen_ai.user.message gen_ai.assistant.message gen_ai.tool.message gen_ai.choice
role function_result response_item gemini
"""
CONSTANTS = {*TAGS.split(), 1}
"""The format's own words for a role or a kind of part, which the shape of the steps says; `lc: 1`."""

COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": {"content": [{"token": "It", "logprob": -0.5}]},
            "message": OPENAI_CHAT[1],
        }
    ],
    "usage": {"prompt_tokens": 5},
}
MORE: dict[str, Any] = {
    "OpenAI completion": COMPLETION,
    "OpenAI custom tool": [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "1", "type": "custom", "custom": {"name": "py", "input": "print(1)", "format": "g"}}
            ],
        }
    ],
    "OpenAI Responses": [
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "f",
            "arguments": "{}",
            "status": "x",
        },
        {"type": "mcp_call", "id": "m", "server_label": "s", "name": "t", "arguments": "{}", "output": "r"},
        {"type": "mcp_call", "id": "m2", "name": "t", "arguments": "{}", "error": "bad", "output": "half"},
        {"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "py", "input": "print(1)"},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"query": "q"}},
        {"type": "computer_call", "id": "k", "call_id": "cc", "action": {"x": 3}, "status": "failed"},
    ],
    "Gemini response": {
        "candidates": [
            {
                "content": GEMINI[1],
                "finishReason": "STOP",
                "safetyRatings": [{"category": "HARM", "probability": "LOW"}],
            },
            {"content": {"role": "model", "parts": [{"text": "another"}]}},
        ],
        "usageMetadata": {"totalTokenCount": 3},
    },
    "Gemini parts": [
        {
            "role": "model",
            "parts": [
                {"executableCode": {"language": "PYTHON", "code": "2"}, "thoughtSignature": "sig"},
                {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2!"}, "thought": "t"},
                {"functionResponse": {"name": "f", "response": {"a": "b"}, "scheduling": "SILENT"}},
            ],
        }
    ],
    "Langfuse without observations": {
        "id": "t1",
        "name": "agent",
        "input": {"q": "Weather?"},
        "output": "It is sunny.",
        "observations": [],
        "metadata": {"a": "b"},
    },
    "LangSmith root": {
        "id": "r0",
        "name": "agent",
        "run_type": "chain",
        "inputs": {"question": "Weather?"},
        "outputs": {"output": "It is sunny.", "cost": 0.25},
        "extra": {"runtime": "py"},
    },
    "LangSmith model run": [
        {
            "name": "m",
            "run_type": "llm",
            "id": "r1",
            "inputs": {"messages": [{"role": "user", "content": "Weather?"}], "temperature": 0.75},
            "outputs": {
                "generations": [
                    [
                        {"text": "It is.", "generation_info": {"finish_reason": "length"}},
                        {"text": "Maybe."},
                    ]
                ],
                "llm_output": {"model_name": "gpt"},
            },
        },
        {
            "name": "f",
            "run_type": "tool",
            "id": "r2",
            "inputs": {"x": 7},
            "outputs": {"output": {"content": "fine", "tool_call_id": "c9", "artifact": {"z": "art"}}},
        },
    ],
    "OpenTelemetry with its resource": {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
                "scopeSpans": [
                    {
                        "scope": {"name": "openai-v2"},
                        "spans": [
                            {
                                "name": "chat gpt",
                                "spanId": "s1",
                                "startTimeUnixNano": "17",
                                "endTimeUnixNano": "19",
                                "attributes": [
                                    {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                                    {"key": "gen_ai.request.model", "value": {"stringValue": "gpt"}},
                                    {"key": "gen_ai.prompt.0.content", "value": {"stringValue": "hi"}},
                                    {"key": "gen_ai.completion.0.content", "value": {"stringValue": "ho"}},
                                    {
                                        "key": "gen_ai.completion.0.finish_reason",
                                        "value": {"stringValue": "stop"},
                                    },
                                ],
                                "events": [
                                    {"name": "exception", "attributes": [], "timeUnixNano": "18"},
                                ],
                            }
                        ],
                    }
                ],
            }
        ]
    },
    "Anthropic request": {"system": "Be brief.", "messages": ANTHROPIC, "max_tokens": 99},
}
ALL = {**{k: v for k, v in DOCUMENTS.items() if "object" not in k and "karat" not in k}, **MORE}


def leaves(value: Any) -> Iterator[Any]:
    """Every scalar of a document, inside JSON or Python text too; OTLP's attribute keys are not values."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not (key == "key" and "value" in value):
                yield from leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, str) and value.startswith(("{", "[")):
        try:
            yield from leaves(json.loads(value.replace("'", '"')))
        except ValueError:
            yield value
    elif value is not None and value != "":
        yield value


def kept(value: Any) -> set[str]:
    return {str(leaf) for leaf in leaves(msgspec.to_builtins(normalize(value).to_dict()))}


@pytest.mark.parametrize("name", ALL)
def test_every_value_is_kept(name: str) -> None:
    found = kept(ALL[name])
    assert [leaf for leaf in leaves(ALL[name]) if leaf not in CONSTANTS and str(leaf) not in found] == []


def places(value: Any) -> Iterator[dict[str, Any]]:
    """Every dict of a document."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from places(part)
    elif isinstance(value, list):
        for part in value:
            yield from places(part)


@pytest.mark.parametrize("name", ALL)
def test_an_unknown_field_is_kept_at_any_depth(name: str) -> None:
    for position in range(sum(1 for _ in places(ALL[name]))):
        document = copy.deepcopy(ALL[name])
        place = list(places(document))[position]
        if set(place) & {"stringValue", "key"}:  # a typed value of OTLP has no fields of its own
            continue
        place["unheard_of"] = "MARK"
        assert "MARK" in kept(document), f"added to {json.dumps(place)[:300]}"


def test_the_users_message_of_an_export_is_a_step() -> None:
    for name in ("Langfuse without observations", "LangSmith root"):
        assert [(step.role, step.text) for step in normalize(MORE[name]).steps] == [
            ("user", "Weather?"),
            ("assistant", "It is sunny."),
        ]


def test_input_messages_that_an_agent_returns_are_recorded_once() -> None:
    root = {
        "name": "agent",
        "run_type": "chain",
        "inputs": {"messages": OPENAI_CHAT[:1]},
        "outputs": {"messages": OPENAI_CHAT},
    }
    assert normalize(root).steps == normalize(OPENAI_CHAT).steps


def test_why_a_completion_ended_is_an_extra_of_its_step() -> None:
    (step,) = normalize(COMPLETION).steps
    assert step.extra["finish_reason"] == "tool_calls"
    (step,) = normalize({"candidates": MORE["Gemini response"]["candidates"][:1]}).steps
    assert step.extra["finishReason"] == "STOP"


@pytest.mark.parametrize(
    "request_",
    [
        {"system": "Be brief.", "messages": ANTHROPIC},
        {"system": [{"type": "text", "text": "Be brief."}], "messages": ANTHROPIC},
        {"instructions": "Be brief.", "input": [{"role": "user", "content": "hi"}]},
        {"object": "response", "instructions": "Be brief.", "output": [{"type": "reasoning", "id": "r"}]},
        {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": GEMINI},
        {"system_instruction": "Be brief.", "contents": GEMINI},
    ],
    ids=lambda request_: "+".join(request_),
)
def test_a_system_prompt_beside_the_messages_is_a_step(request_: dict[str, Any]) -> None:
    steps = normalize(request_).steps
    assert (steps[0].role, steps[0].text) == ("system", "Be brief.")
    assert [step.role for step in steps].count("system") == 1


def test_keys_that_are_not_text_are_readable_again() -> None:
    for document in (
        [{"role": "user", "content": "hi", 1: "one"}],
        [{"role": "tool", "content": {1: 2}, "tool_call_id": "c", (1, 2): "pair"}],
        [{"name": "f", "arguments": {1: 2}, None: 3}],
        {"messages": OPENAI_CHAT, 5: "five"},
        [{"name": "chat", 7: 1, "attributes": {3: 4, "gen_ai.prompt": "hi"}}],
    ):
        once = normalize(document)
        assert once.steps
        assert normalize(once.to_dict()) == once
