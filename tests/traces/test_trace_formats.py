"""One weather question, written in every format karat reads, comes out as the same steps."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from karat.errors import RequestError
from karat.records import FORMAT, Call, Ok, Output
from karat.traces import (
    Step,
    ToolCall,
    TraceError,
    Trajectory,
    list_formats,
    normalize,
    register_format,
    unregister_format,
)

ARGUMENTS = {"city": "Oslo", "days": 3}
TEXT = json.dumps(ARGUMENTS)

OPENAI_CHAT = [
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": TEXT}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    {"role": "assistant", "content": "It is sunny."},
]

OPENAI_LEGACY = [
    {"role": "user", "content": "Weather in Oslo?"},
    {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": TEXT}},
    {"role": "function", "name": "get_weather", "content": "sunny"},
    {"role": "assistant", "content": "It is sunny."},
]

OPENAI_RESPONSES = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather in Oslo?"}]},
    {
        "type": "function_call",
        "call_id": "c1",
        "name": "get_weather",
        "arguments": TEXT,
        "status": "completed",
    },
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "It is sunny.", "annotations": []}],
    },
]

ANTHROPIC = [
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c1", "name": "get_weather", "input": ARGUMENTS}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "It is sunny."}]},
]

GEMINI = [
    {"role": "user", "parts": [{"text": "Weather in Oslo?"}]},
    {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "get_weather", "args": ARGUMENTS}}]},
    {
        "role": "user",
        "parts": [{"functionResponse": {"id": "c1", "name": "get_weather", "response": {"result": "sunny"}}}],
    },
    {"role": "model", "parts": [{"text": "It is sunny."}]},
]

LANGCHAIN = [
    {"type": "human", "content": "Weather in Oslo?"},
    {
        "type": "ai",
        "content": "",
        "tool_calls": [{"name": "get_weather", "args": ARGUMENTS, "id": "c1", "type": "tool_call"}],
    },
    {"type": "tool", "content": "sunny", "tool_call_id": "c1", "name": "get_weather", "status": "success"},
    {"type": "ai", "content": "It is sunny.", "tool_calls": []},
]

LANGCHAIN_DATA = [
    {"type": each["type"], "data": {k: v for k, v in each.items() if k != "type"}}  # type: ignore[attr-defined]  # JSON
    for each in LANGCHAIN  # type: ignore[attr-defined]  # JSON
]

_CLASSES = {"human": "HumanMessage", "ai": "AIMessage", "tool": "ToolMessage"}
LANGCHAIN_DUMPED = [
    {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", _CLASSES[each["type"]]],
        "kwargs": {k: v for k, v in each.items() if k != "type"},  # type: ignore[attr-defined]  # JSON
    }
    for each in LANGCHAIN
]

POTATO = [
    {"speaker": "User", "text": "Weather in Oslo?"},
    {"speaker": "Agent (Action)", "text": 'get_weather(city="Oslo", days=3)'},
    {"speaker": "Environment", "text": "sunny"},
    {"speaker": "Agent", "text": "It is sunny."},
]

POTATO_JSON = [*POTATO[:1], {"speaker": "Agent (Action)", "text": f"get_weather({TEXT})"}, *POTATO[2:]]

LANGSMITH = {
    "name": "agent",
    "run_type": "chain",
    "start_time": "2024-01-01T00:00:00",
    "inputs": {"input": "Weather in Oslo?"},
    "outputs": {"output": "It is sunny."},
    "child_runs": [
        {
            "name": "ChatModel",
            "run_type": "llm",
            "start_time": "2024-01-01T00:00:01",
            "inputs": {"messages": [LANGCHAIN_DUMPED[:1]]},
            "outputs": {"generations": [[{"message": LANGCHAIN_DUMPED[1], "text": ""}]]},
        },
        {
            "name": "ChatModel",
            "run_type": "llm",
            "start_time": "2024-01-01T00:00:05",
            "inputs": {"messages": [LANGCHAIN_DUMPED[:3]]},
            "outputs": {"generations": [[{"message": LANGCHAIN_DUMPED[3], "text": "It is sunny."}]]},
        },
        {
            "name": "get_weather",
            "run_type": "tool",
            "start_time": "2024-01-01T00:00:03",
            "inputs": {"input": str(ARGUMENTS)},
            "outputs": {"output": "sunny"},
        },
    ],
}

LANGFUSE = {
    "id": "t1",
    "name": "agent",
    "observations": [
        {"type": "SPAN", "name": "loop", "startTime": "2024-01-01T00:00:00Z", "traceId": "t1"},
        {
            "type": "GENERATION",
            "name": "gpt",
            "startTime": "2024-01-01T00:00:01Z",
            "traceId": "t1",
            "input": OPENAI_CHAT[:1],
            "output": OPENAI_CHAT[1],
        },
        {
            "type": "TOOL",
            "name": "get_weather",
            "startTime": "2024-01-01T00:00:02Z",
            "traceId": "t1",
            "input": ARGUMENTS,
            "output": "sunny",
        },
        {
            "type": "GENERATION",
            "name": "gpt",
            "startTime": "2024-01-01T00:00:03Z",
            "traceId": "t1",
            "input": OPENAI_CHAT[:3],
            "output": OPENAI_CHAT[3],
        },
    ],
}


def _otel(*messages: dict[str, Any]) -> str:
    return json.dumps(messages)


_ASK = {"role": "user", "parts": [{"type": "text", "content": "Weather in Oslo?"}]}
_CALL = {
    "role": "assistant",
    "parts": [{"type": "tool_call", "id": "c1", "name": "get_weather", "arguments": ARGUMENTS}],
}
_GOT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "sunny"}]}
_SAY = {"role": "assistant", "parts": [{"type": "text", "content": "It is sunny."}], "finish_reason": "stop"}

OPENTELEMETRY = [
    {"name": "invoke_agent a", "start_time": 1, "attributes": {"gen_ai.operation.name": "invoke_agent"}},
    {
        "name": "chat gpt",
        "start_time": 2,
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": _otel(_ASK),
            "gen_ai.output.messages": _otel(_CALL),
        },
    },
    {
        "name": "execute_tool get_weather",
        "start_time": 3,
        "attributes": {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "get_weather",
            "gen_ai.tool.call.id": "c1",
            "gen_ai.tool.call.arguments": TEXT,
            "gen_ai.tool.call.result": "sunny",
        },
    },
    {
        "name": "chat gpt",
        "start_time": 4,
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": _otel(_ASK, _CALL, _GOT),
            "gen_ai.output.messages": _otel(_SAY),
        },
    },
]


def _otlp(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """The same spans as an OTLP/JSON document."""
    written = [
        {
            "name": span["name"],
            "startTimeUnixNano": str(span["start_time"]),
            "attributes": [{"key": k, "value": {"stringValue": v}} for k, v in span["attributes"].items()],
        }
        for span in spans
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": written}]}]}


OPENLLMETRY = [
    {
        "name": "openai.chat",
        "start_time": 1,
        "attributes": {
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "Weather in Oslo?",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.tool_calls.0.id": "c1",
            "gen_ai.completion.0.tool_calls.0.name": "get_weather",
            "gen_ai.completion.0.tool_calls.0.arguments": TEXT,
        },
    },
    {
        "name": "get_weather.tool",
        "start_time": 2,
        "attributes": {
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": "get_weather",
            "traceloop.entity.input": TEXT,
            "traceloop.entity.output": "sunny",
        },
    },
    {
        "name": "openai.chat",
        "start_time": 3,
        "attributes": {
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "Weather in Oslo?",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "It is sunny.",
        },
    },
]

OPENTELEMETRY_EVENTS = [
    {
        "name": "chat",
        "start_time": 1,
        "attributes": {"gen_ai.operation.name": "chat"},
        "events": [
            {"name": "gen_ai.user.message", "attributes": {"content": "Weather in Oslo?"}},
            {
                "name": "gen_ai.choice",
                "attributes": {
                    "index": 0,
                    "message": json.dumps({"tool_calls": OPENAI_CHAT[1]["tool_calls"]}),
                },
            },
        ],
    },
    {
        "name": "chat",
        "start_time": 2,
        "attributes": {"gen_ai.operation.name": "chat"},
        "events": [
            {"name": "gen_ai.user.message", "attributes": {"content": "Weather in Oslo?"}},
            {"name": "gen_ai.tool.message", "attributes": {"id": "c1", "content": "sunny"}},
            {"name": "gen_ai.choice", "attributes": {"message": {"content": "It is sunny."}}},
        ],
    },
]

_OUT = "llm.output_messages.0.message"
OPENINFERENCE = [
    {"name": "agent", "start_time": 0, "attributes": {"openinference.span.kind": "AGENT"}},
    {
        "name": "ChatCompletion",
        "start_time": 1,
        "attributes": {
            "openinference.span.kind": "LLM",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": "Weather in Oslo?",
            f"{_OUT}.role": "assistant",
            f"{_OUT}.tool_calls.0.tool_call.id": "c1",
            f"{_OUT}.tool_calls.0.tool_call.function.name": "get_weather",
            f"{_OUT}.tool_calls.0.tool_call.function.arguments": TEXT,
        },
    },
    {
        "name": "get_weather",
        "start_time": 2,
        "attributes": {
            "openinference.span.kind": "TOOL",
            "tool.name": "get_weather",
            "input.value": TEXT,
            "output.value": "sunny",
        },
    },
    {
        "name": "ChatCompletion",
        "start_time": 3,
        "attributes": {
            "openinference.span.kind": "LLM",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": "Weather in Oslo?",
            f"{_OUT}.role": "assistant",
            f"{_OUT}.contents.0.message_content.type": "text",
            f"{_OUT}.contents.0.message_content.text": "It is sunny.",
        },
    },
]

CALLS = [
    Call("model", "gpt", input=OPENAI_CHAT[:1], output=OPENAI_CHAT[1]),
    Call("tool", "get_weather", input=ARGUMENTS, output="sunny"),
    Call("model", "gpt", input=OPENAI_CHAT[:3], output="It is sunny."),
]

HAYSTACK_CALL = {"tool_name": "get_weather", "arguments": ARGUMENTS, "id": "c1", "extra": None}
HAYSTACK = [
    {"role": "user", "meta": {}, "name": None, "content": [{"text": "Weather in Oslo?"}]},
    {
        "role": "assistant",
        "meta": {"finish_reason": "tool_calls"},
        "name": None,
        "content": [{"tool_call": HAYSTACK_CALL}],
    },
    {
        "role": "tool",
        "meta": {},
        "name": None,
        "content": [{"tool_call_result": {"result": "sunny", "origin": HAYSTACK_CALL, "error": False}}],
    },
    {"role": "assistant", "meta": {}, "name": None, "content": [{"text": "It is sunny."}]},
]
LLAMA_INDEX = [
    {
        "role": "user",
        "additional_kwargs": {},
        "blocks": [{"block_type": "text", "text": "Weather in Oslo?"}],
    },
    {
        "role": "assistant",
        "additional_kwargs": {},
        "blocks": [
            {
                "block_type": "tool_call",
                "tool_call_id": "c1",
                "tool_name": "get_weather",
                "tool_kwargs": ARGUMENTS,
            }
        ],
    },
    {
        "role": "tool",
        "additional_kwargs": {"tool_call_id": "c1", "name": "get_weather"},
        "blocks": [{"block_type": "text", "text": "sunny"}],
    },
    {
        "role": "assistant",
        "additional_kwargs": {},
        "blocks": [{"block_type": "text", "text": "It is sunny."}],
    },
]


def _kernel(role: str, item: dict[str, Any]) -> dict[str, Any]:
    item = {"ai_model_id": None, "metadata": {}, **item}
    return {"content_type": "message", "role": role, "name": None, "items": [item], "metadata": {}}


KERNEL_CALL = {"id": "c1", "name": "get_weather", "function_name": "get_weather", "plugin_name": None}
SEMANTIC_KERNEL = {
    "messages": [
        _kernel("user", {"content_type": "text", "text": "Weather in Oslo?"}),
        _kernel("assistant", {"content_type": "function_call", **KERNEL_CALL, "arguments": TEXT}),
        _kernel("tool", {"content_type": "function_result", **KERNEL_CALL, "result": "sunny"}),
        _kernel("assistant", {"content_type": "text", "text": "It is sunny."}),
    ]
}


def _said(role: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "chat_message", "role": {"type": "role", "value": role}, "contents": [part]}


AGENT_FRAMEWORK = [
    _said("user", {"type": "text", "text": "Weather in Oslo?"}),
    _said("assistant", {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": TEXT}),
    _said("tool", {"type": "function_result", "call_id": "c1", "result": "sunny"}),
    _said("assistant", {"type": "text", "text": "It is sunny."}),
]


def _line(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


CODEX = [
    _line("session_meta", id="s", cwd="/", cli_version="0.65.0", source="exec"),
    _line(
        "response_item",
        type="message",
        role="user",
        content=[{"type": "input_text", "text": "Weather in Oslo?"}],
    ),
    _line("turn_context", cwd="/", approval_policy="never", model="gpt-5-codex"),
    _line("response_item", type="function_call", name="get_weather", arguments=TEXT, call_id="c1"),
    _line("event_msg", type="exec_command_end", call_id="c1", command=["weather"], exit_code=0),
    _line("response_item", type="function_call_output", call_id="c1", output="sunny"),
    _line("event_msg", type="agent_message", message="It is sunny."),
    _line(
        "response_item",
        type="message",
        role="assistant",
        content=[{"type": "output_text", "text": "It is sunny."}],
    ),
]
GEMINI_CLI = {
    "sessionId": "s",
    "projectHash": "h",
    "startTime": "2026-01-01T00:00:00Z",
    "messages": [
        {"id": "1", "timestamp": "2026-01-01T00:00:00Z", "type": "user", "content": "Weather in Oslo?"},
        {
            "id": "2",
            "type": "gemini",
            "content": "",
            "toolCalls": [
                {
                    "id": "c1",
                    "name": "get_weather",
                    "args": ARGUMENTS,
                    "result": "sunny",
                    "status": "success",
                    "displayName": "Weather",
                }
            ],
            "thoughts": [{"subject": "s", "description": "I look it up."}],
            "model": "gemini-2.5-pro",
        },
        {"id": "3", "type": "gemini", "content": "It is sunny."},
    ],
}

DOCUMENTS: dict[str, Any] = {
    "OpenAI chat": OPENAI_CHAT,
    "OpenAI chat in an envelope": {"messages": OPENAI_CHAT, "usage": {"tokens": 3}},
    "OpenAI chat, legacy": OPENAI_LEGACY,
    "OpenAI Responses": OPENAI_RESPONSES,
    "OpenAI Responses, whole": {
        "object": "response",
        "id": "r1",
        "output": [*OPENAI_RESPONSES[1:]],
    },
    "Anthropic": ANTHROPIC,
    "Gemini": GEMINI,
    "Gemini, request": {"contents": GEMINI},
    "LangChain": LANGCHAIN,
    "LangChain, messages_to_dict": LANGCHAIN_DATA,
    "LangChain, dumpd": LANGCHAIN_DUMPED,
    "LangChain, objects": [SimpleNamespace(**each) for each in LANGCHAIN],  # type: ignore[arg-type]  # generic over what it maps
    "Potato": POTATO,
    "Potato, JSON arguments": POTATO_JSON,
    "Potato, conversation": {"id": "x", "conversation": POTATO},
    "Potato, object": SimpleNamespace(conversation=POTATO, task="t"),
    "LangSmith": LANGSMITH,
    "LangSmith, flat": LANGSMITH["child_runs"],
    "Langfuse": LANGFUSE,
    "Langfuse, observations": LANGFUSE["observations"],
    "OpenTelemetry": OPENTELEMETRY,
    "OpenTelemetry, OTLP": _otlp(OPENTELEMETRY),
    "OpenTelemetry, objects": [SimpleNamespace(**span) for span in OPENTELEMETRY],
    "OpenTelemetry, events": OPENTELEMETRY_EVENTS,
    "OpenLLMetry": OPENLLMETRY,
    "OpenInference": OPENINFERENCE,
    "OpenInference, OTLP": _otlp(OPENINFERENCE),
    "Haystack": HAYSTACK,
    "LlamaIndex": LLAMA_INDEX,
    "Semantic Kernel": SEMANTIC_KERNEL,
    "Microsoft Agent Framework": AGENT_FRAMEWORK,
    "Codex": CODEX,
    "Gemini CLI": GEMINI_CLI,
    "karat's calls": CALLS,
    "karat's output": Output(format=FORMAT, example="1", outcome=Ok("It is sunny."), trace=CALLS),
}


@pytest.fixture(params=DOCUMENTS, ids=str)
def document(request: pytest.FixtureRequest) -> Any:
    return DOCUMENTS[request.param]


def test_every_format_gives_the_call_once_with_its_arguments(document: Any) -> None:
    calls = normalize(document).calls
    assert [(call.name, call.arguments, call.raw) for call in calls] == [("get_weather", ARGUMENTS, None)]


def test_every_format_gives_the_result_after_the_call(document: Any) -> None:
    steps = normalize(document).steps
    roles = [step.role for step in steps if step.role != "user"]
    assert roles == ["assistant", "tool", "assistant"]
    result = next(step.tool_result for step in steps if step.tool_result is not None)
    assert result.content in ("sunny", {"result": "sunny"})
    assert not result.error
    assert steps[-1].text == "It is sunny."


def test_every_format_keeps_the_question_once(document: Any) -> None:
    asked = [step.text for step in normalize(document).steps if step.role == "user"]
    assert asked in ([], ["Weather in Oslo?"])


def test_nothing_doubtful_is_left_unused(document: Any) -> None:
    assert [part for part in normalize(document).unused if not part.harmless] == []


def test_normalising_twice_changes_nothing(document: Any) -> None:
    once = normalize(document)
    assert normalize(once) == once
    assert normalize(once.to_dict()) == once
    assert normalize(json.dumps(once.to_dict(), default=str)).steps == once.steps
    assert normalize(once.steps).steps == once.steps
    assert normalize([step.to_dict() for step in once.steps]).steps == once.steps


def test_normalize_does_not_change_its_argument(document: Any) -> None:
    before = copy.deepcopy(document)
    normalize(document)
    assert document == before


def test_json_text_of_a_document_reads_as_the_document(document: Any) -> None:
    if isinstance(document, (list, dict)) and "namespace" not in repr(document):
        try:
            text = json.dumps(document)
        except TypeError:
            return
        assert normalize(text) == normalize(document)
        assert normalize(text.encode()) == normalize(document)


def test_json_lines_are_a_list() -> None:
    lines = "\n".join(json.dumps(message) for message in OPENAI_CHAT)
    assert normalize(lines) == normalize(OPENAI_CHAT)


@dataclass
class Message:
    """A message of a framework that karat does not know."""

    role: str
    content: str | None = None
    tool_calls: list[Any] = field(default_factory=list)


def test_unknown_objects_are_read_by_their_fields() -> None:
    call = SimpleNamespace(id="1", function=SimpleNamespace(name="f", arguments='{"x": 1}'), type="function")
    read = normalize([Message("user", "hi"), Message("assistant", None, [call])])
    assert read.calls == [ToolCall("1", "f", {"x": 1})]


def test_malformed_arguments_are_kept_raw_and_marked() -> None:
    message = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": '}}],
    }
    (call,) = normalize([message]).calls
    assert (call.raw, call.malformed, call.arguments) == ('{"x": ', True, {})


def test_langchain_invalid_tool_calls_are_malformed_calls() -> None:
    message = {"type": "ai", "content": "", "invalid_tool_calls": [{"name": "f", "args": "{x", "id": "1"}]}
    (call,) = normalize([message]).calls
    assert (call.name, call.raw) == ("f", "{x")


def test_missing_and_empty_arguments_count_as_no_arguments() -> None:
    for written in ("", "  ", None, "null", "{}"):
        message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": written}}]}
        assert normalize([message]).calls == [ToolCall(None, "f", {})]


def test_other_fields_of_a_message_are_kept() -> None:
    message = {"role": "assistant", "content": "hi", "refusal": None, "name": "bot", "audio": {"id": "a"}}
    assert normalize([message]).steps == [
        Step("assistant", "hi", extra={"name": "bot", "audio": {"id": "a"}})
    ]


def test_anthropic_text_calls_and_results_keep_their_order() -> None:
    message = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "first"},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"title": "t"}]},
            {"type": "text", "text": "then"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        ],
    }
    steps = normalize([message]).steps
    told = [(step.role, step.text, [call.name for call in step.tool_calls]) for step in steps]
    assert told == [("assistant", "first", ["web_search"]), ("tool", "", []), ("assistant", "then", ["f"])]


def test_builtin_tools_of_responses_are_calls() -> None:
    item = {"type": "web_search_call", "id": "w", "status": "completed", "action": {"query": "x"}}
    assert normalize([item]).calls == [ToolCall("w", "web_search", {"action": {"query": "x"}})]


def test_failed_tools_are_marked() -> None:
    block = {"type": "tool_result", "tool_use_id": "1", "content": "no", "is_error": True}
    for document in (
        [{"role": "user", "content": [block]}],
        [{"type": "tool", "content": "no", "tool_call_id": "1", "status": "error"}],
        [Call("tool", "f", input={}, error="no")],
    ):
        result = normalize(document).steps[-1].tool_result
        assert result is not None
        assert result.error


def test_action_lines_one_to_a_line() -> None:
    turn = {"speaker": "Agent (Action)", "text": "click(id=3)\ntype(text='hi', enter=True)\nwait"}
    calls = normalize([turn]).calls
    assert [(call.name, call.arguments) for call in calls] == [
        ("click", {"id": 3}),
        ("type", {"text": "hi", "enter": True}),
        ("wait", {}),
    ]


def test_an_action_in_raw_text_is_a_call_with_that_text() -> None:
    read = normalize([{"speaker": "Agent (Action)", "text": "I look around."}])
    assert read.steps[0].text == "I look around."
    assert [(call.name, call.arguments) for call in read.calls] == [("I look around.", {})]
    assert read.unused == []


def test_unused_parts_are_listed_with_their_place() -> None:
    read = normalize([*OPENAI_CHAT, 42])
    assert [part.where for part in read.unused] == ["[4]"]
    assert read.calls == normalize(OPENAI_CHAT).calls


def test_formats_may_be_mixed_in_a_list() -> None:
    mixed = [OPENAI_CHAT[0], ANTHROPIC[1], GEMINI[2], POTATO[3]]
    assert [step.role for step in normalize(mixed).steps] == ["user", "assistant", "tool", "assistant"]


def test_bare_calls_as_people_write_references() -> None:
    written = [{"name": "a", "arguments": {"x": 1}}, {"tool": "b", "args": {}}, {"name": "c"}]
    assert [(call.name, call.arguments) for call in normalize(written).calls] == [
        ("a", {"x": 1}),
        ("b", {}),
        ("c", {}),
    ]


def test_repeated_equal_calls_in_spans_are_all_kept() -> None:
    twice = [Call("tool", "f", input={"x": 1}, output="a"), Call("tool", "f", input={"x": 1}, output="a")]
    assert len(normalize(twice).calls) == 2
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    asked = [Call("model", "m", input="q", output=call), Call("model", "m", input="q", output=call)]
    assert len(normalize(asked).calls) == 2


@pytest.mark.parametrize("value", [None, 3, object(), {"answer": 4}, "", [1, 2], {}, [{"x": 1}]])
def test_a_value_that_is_not_a_trajectory_is_refused(value: Any) -> None:
    with pytest.raises(TraceError):
        normalize(value)


def test_nothing_happened_is_a_trajectory() -> None:
    assert normalize([]) == Trajectory()
    assert normalize({"messages": []}).steps == []


def test_plain_text_is_one_step_and_known_as_such() -> None:
    read = normalize("The answer is 4.")
    assert read.is_plain_text
    assert read.steps[0].text == "The answer is 4."
    assert normalize(read.to_dict()).is_plain_text


class Haiku:
    """A format of one's own: calls written `!name`."""

    name = "haiku"

    def detect(self, value: Any) -> bool:
        return isinstance(value, dict) and "haiku" in value

    def read(self, value: Any) -> Any:
        for word in value["haiku"].split():
            yield Step("assistant", tool_calls=[ToolCall(None, word)])


def test_a_plug_in_adds_a_format() -> None:
    register_format(Haiku())
    try:
        assert list_formats()[0] == "haiku"
        assert [call.name for call in normalize([{"haiku": "open shut"}]).calls] == ["open", "shut"]
        with pytest.raises(RequestError, match="haiku"):
            register_format(Haiku())
    finally:
        unregister_format("haiku")
    assert "haiku" not in list_formats()


def test_a_format_without_its_parts_is_refused() -> None:
    with pytest.raises(RequestError, match="read"):
        register_format(SimpleNamespace(name="x", detect=bool))  # type: ignore[arg-type]  # that is the mistake


def test_lines_marked_as_actions_in_a_potato_text_are_calls():
    text = 'Let me look.\n(action) search({"q": "oslo"})\n (Action) click(x=3, y=-4.5)\nThat was (action) enough.'
    turns = [{"speaker": "Agent", "text": text}, {"speaker": "User", "text": "(action) never(a=1)"}]
    trajectory = normalize(turns)
    assert [(call.name, call.arguments) for call in trajectory.calls] == [
        ("search", {"q": "oslo"}),
        ("click", {"x": 3, "y": -4.5}),
    ]
    assert trajectory.steps[0].content == text
    assert normalize(trajectory).steps == trajectory.steps
