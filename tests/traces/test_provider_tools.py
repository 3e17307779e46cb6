"""Calls to tools that a provider runs itself: OpenAI's items, Anthropic's blocks, LangChain's content blocks."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, messages_to_dict
from openai.types.responses import ResponseOutputItem

from karat.evaluators import TrajectoryMatchEvaluator
from karat.traces import TraceError, normalize

ASKED = HumanMessage("How many people live in Oslo?")
SEARCH = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "oslo"},
}
RUN = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "code": "1 + 1",
    "container_id": "c",
    "status": "completed",
    "outputs": [{"type": "logs", "logs": "2"}],
}
BOOK = {"id": "t1", "name": "book", "args": {"id": 7}}

OPENAI = AIMessage(
    content=[
        SEARCH,
        RUN,
        {"type": "text", "text": "So I book it."},
        {"type": "function_call", "id": "fc_1", "call_id": "t1", "name": "book", "arguments": '{"id": 7}'},
    ],
    tool_calls=[BOOK],
    response_metadata={"model_provider": "openai"},
)
ANTHROPIC = AIMessage(
    content=[
        {"type": "text", "text": "I look."},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "oslo"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s1",
            "content": [{"type": "web_search_result", "url": "https://oslo.example", "title": "Oslo"}],
        },
        {"type": "tool_use", "id": "t1", "name": "book", "input": {"id": 7}},
    ],
    tool_calls=[BOOK],
    response_metadata={"model_provider": "anthropic"},
)
GEMINI = AIMessage(
    content=[
        {"type": "executable_code", "executable_code": "print(1)", "language": "PYTHON", "id": "e1"},
        {"type": "code_execution_result", "code_execution_result": "1", "outcome": 1},
    ],
    response_metadata={"model_provider": "google_genai"},
)


def standard(message: AIMessage) -> AIMessage:
    """The same message in LangChain's own content blocks, as its package translates them."""
    blocks = [dict(block) for block in message.content_blocks]
    return AIMessage(content=list(blocks), tool_calls=message.tool_calls)


def names(document: Any) -> list[str]:
    return [call.name for call in normalize(document).calls]


MESSAGES = {
    "openai": (OPENAI, ["web_search", "code_interpreter", "book"]),
    "openai v1": (standard(OPENAI), ["web_search", "code_interpreter", "book"]),
    "anthropic": (ANTHROPIC, ["web_search", "book"]),
    "anthropic v1": (standard(ANTHROPIC), ["web_search", "book"]),
    "gemini": (GEMINI, ["code_execution"]),
    "gemini v1": (standard(GEMINI), ["code_interpreter"]),
}


@pytest.mark.parametrize("case", MESSAGES)
@pytest.mark.parametrize("form", [list, messages_to_dict, dumpd])
def test_langchain_messages_keep_the_calls_of_the_provider_in_order(case: str, form: Any) -> None:
    message, expected = MESSAGES[case]
    document = form([ASKED, message])
    assert names(document) == expected
    assert all(part.harmless for part in normalize(document).unused)


@pytest.mark.parametrize("case", MESSAGES)
def test_a_result_of_the_provider_follows_its_call(case: str) -> None:
    steps = normalize([ASKED, MESSAGES[case][0]]).steps
    first = next(at for at, step in enumerate(steps) if step.tool_calls)
    assert any(step.tool_result is not None for step in steps[first + 1 :])


def test_a_search_of_the_provider_counts_as_a_call() -> None:
    result = TrajectoryMatchEvaluator(mode="strict").evaluate(
        outputs=[ASKED, AIMessage(content=[SEARCH])], reference_outputs=[]
    )
    assert result.score == 0.0


@pytest.mark.parametrize("value", [SEARCH, {**RUN, "type": "computer_call"}])
def test_blocks_that_langchain_could_not_translate_are_read(value: dict[str, Any]) -> None:
    block = {"type": "non_standard", "value": value}
    assert names([AIMessage(content=[block])]) == [value["type"].removesuffix("_call")]


def test_a_stream_that_was_merged_has_each_call_once() -> None:
    block = {"type": "tool_call_chunk", "id": "t1", "name": "book", "args": '{"id": 7}', "index": 1}
    assert names([{"type": "AIMessageChunk", "content": [block], "tool_calls": [BOOK]}]) == ["book"]


def test_a_call_in_standard_blocks_without_a_name_is_refused() -> None:
    with pytest.raises(TraceError):
        normalize([{"type": "ai", "content": [{"type": "server_tool_call", "id": "1", "args": {}}]}])


@pytest.mark.parametrize(
    "block",
    [
        SEARCH,
        {"type": "browser_call", "id": "b", "action": {"type": "open"}},
        {"type": "non_standard", "value": SEARCH},
        {"type": "group", "items": [RUN]},
        {"type": "executable_code", "executable_code": "print(1)"},
    ],
)
def test_such_blocks_in_messages_of_another_format_are_refused(block: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match="step 1"):
        normalize([{"role": "assistant", "content": [{"type": "text", "text": "a"}, block]}])


def models_of(union: Any) -> list[Any]:
    """The models of all items of a union of the OpenAI package."""
    if hasattr(union, "model_fields"):
        return [union]
    inside = typing.get_args(union)
    if typing.get_origin(union) is typing.Annotated:
        inside = inside[:1]
    return [model for each in inside for model in models_of(each)]


ITEMS = {
    kind: set(model.model_fields)
    for model in models_of(ResponseOutputItem)
    for kind in typing.get_args(model.model_fields["type"].annotation)
    if kind != "message"
}
FIELDS = {"name": "ask", "arguments": '{"q": 1}', "input": "x", "code": "1", "call_id": "c", "id": "i"}


@pytest.mark.parametrize("kind", ITEMS)
@pytest.mark.parametrize("whole", [False, True])
def test_every_item_of_openai_is_a_call_a_result_or_neither(kind: str, whole: bool) -> None:
    item = {"type": kind, **{key: part for key, part in FIELDS.items() if key in ITEMS[kind]}}
    document: Any = {"object": "response", "output": [item]} if whole else [item]
    if kind == "mcp_approval_request":
        with pytest.raises(TraceError):  # a call that was not made so far, and may be declined
            normalize(document)
        return
    trajectory = normalize(document)
    assert len(trajectory.calls) == (kind.endswith("_call") or kind == "program")
    assert any(step.tool_result for step in trajectory) == kind.endswith("_output")
    assert all(part.harmless for part in trajectory.unused)


def test_a_call_that_was_approved_is_read_once() -> None:
    asked = {
        "type": "mcp_approval_request",
        "id": "r1",
        "name": "ask",
        "arguments": "{}",
        "server_label": "s",
    }
    answer = {"type": "mcp_approval_response", "approve": True, "approval_request_id": "r1"}
    made = {**asked, "type": "mcp_call", "id": "m1", "approval_request_id": "r1", "output": "yes"}
    trajectory = normalize([asked, answer, made])
    assert [call.name for call in trajectory.calls] == ["ask"]
    assert all(part.harmless for part in trajectory.unused)


@pytest.mark.parametrize("kind", ["server_tool_call", "invalid_tool_call"])
def test_a_block_without_its_message_is_not_named_after_its_type(kind: str) -> None:
    with pytest.raises(TraceError, match="search"):
        normalize([{"type": kind, "id": "1", "name": "search", "args": {}}])
