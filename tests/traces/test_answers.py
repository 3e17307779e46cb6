"""An ordinary last answer is no error: what agents quote to their users is not a call of a tool."""

from __future__ import annotations

from typing import Any

import pytest

from karat.traces import TraceError, normalize
from tests.traces.answers import ANSWERS

ASKED = {"role": "user", "content": "How is it done?"}
ARGUMENTS = {"path": "a.py"}
OPENAI = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x = 1"}
LISTED = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}


def structured(text: str) -> dict[str, Any]:
    """Traces of an agent with one call in a field of its own, whose last answer is the text."""
    block = {"type": "tool_use", "id": "c1", "name": "read_file", "input": ARGUMENTS}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "x = 1"}
    answer = {"role": "assistant", "content": text}
    openai = [ASKED, {"role": "assistant", "content": None, "tool_calls": [OPENAI]}, RESULT, answer]
    bare = {"name": "read_file", "arguments": ARGUMENTS}
    gemini = [
        {"role": "user", "parts": [{"text": "How?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "read_file", "args": ARGUMENTS}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "read_file", "response": {"x": 1}}}]},
        {"role": "model", "parts": [{"text": text}]},
    ]
    return {
        "OpenAI": openai,
        "OpenAI with the answer beside": {"messages": openai, "output": text},
        "OpenAI in a conversation": [
            *openai,
            {"role": "user", "content": "Thanks."},
            {**answer, "content": "Welcome."},
        ],
        "OpenAI without ids": [
            ASKED,
            {"role": "assistant", "content": None, "tool_calls": [bare]},
            {"role": "tool", "name": "read_file", "content": "x = 1"},
            answer,
        ],
        "Anthropic": [
            ASKED,
            {"role": "assistant", "content": [block]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": [{"type": "text", "text": text}]},
        ],
        "Gemini without ids": gemini,
        "LangChain": [
            {"type": "human", "content": "How?"},
            {
                "type": "ai",
                "content": "",
                "tool_calls": [{"name": "read_file", "args": ARGUMENTS, "id": "c1"}],
            },
            {"type": "tool", "content": "x = 1", "tool_call_id": "c1"},
            {"type": "ai", "content": text},
        ],
    }


def listed(text: str) -> dict[str, Any]:
    """Traces without a call that list the tools of the agent."""
    messages = [ASKED, {"role": "assistant", "content": text}]
    return {
        "tools beside the messages": {"messages": messages, "tools": [LISTED]},
        "Anthropic's tools": {"messages": messages, "tools": [{"name": "read_file", "input_schema": {}}]},
    }


def unstructured(text: str) -> dict[str, Any]:
    """Traces without a call and without tools."""
    return {"OpenAI": [ASKED, {"role": "assistant", "content": text}]}


def outcome(document: Any) -> list[str] | None:
    """The names of the calls; None for an error."""
    try:
        return [call.name for call in normalize(document).calls]
    except TraceError:
        return None


TEMPLATE = ("documentation: ReAct in a list", "documentation: ReAct with labels")
"""They begin as a step of ReAct does."""
ALONE = (
    *TEMPLATE,
    "configuration: a model at the end",
    "configuration: an intent",
    "code: HTML that ends with code",
    "documentation: a call in a fence at the end",
    "documentation: a call in a sentence",
    "documentation: a call of OpenAI at the end",
    "documentation: a part of a message",
    "documentation: an answer of an API",
    "documentation: Hermes in a fence at the end",
    "documentation: ReAct in a fence at the end",
    "documentation: ReAct without a fence",
)
"""They are what an agent writes that has no other way to call a tool."""


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_calls_nothing(name: str) -> None:
    text = ANSWERS[name]
    if name not in TEMPLATE:
        assert all(outcome(each) == ["read_file"] for each in structured(text).values())
    if name not in TEMPLATE and name != "documentation: ReAct without a fence":
        assert all(outcome(each) == [] for each in listed(text).values())
    if name not in ALONE:
        assert all(outcome(each) == [] for each in unstructured(text).values())


def test_few_answers_cannot_be_told_from_calls() -> None:
    assert len(ANSWERS) >= 120
    assert len(ALONE) <= len(ANSWERS) * 0.1


KNOWN = '{"name": "read_file", "arguments": {"path": "b.py"}}'
QUOTED: dict[str, str] = {
    "a call in words": "I called read_file once, and it gave the text.",
    "a call in code": "I called `read_file(path='a.py')`, which gave the text.",
    "JSON in code": f"My call was `{KNOWN}`.",
    "JSON in a fence": f"My call was\n\n```json\n{KNOWN}\n```\n\nand it worked.",
    "a tag in a fence": f"In Hermes it is\n\n```\n<tool_call>{KNOWN}</tool_call>\n```\n\nin the text.",
    "ReAct in a fence": "As ReAct:\n\n```\nAction: read_file\nAction Input: b.py\n```\n\nThat is all.",
    "a definition": 'It is defined by {"name": "read_file", "parameters": {"type": "object"}} in `tools`.',
    "other JSON": 'Save {"name": "xgboost", "parameters": {"depth": 3}}; I found it with read_file.',
}
CALLED: dict[str, str] = {
    "JSON": KNOWN,
    "JSON after a sentence": f"I read it: {KNOWN}",
    "JSON in a fence": f"```json\n{KNOWN}\n```",
    "JSON in a fence after a sentence": f"I read it.\n```json\n{KNOWN}\n```",
    "JSON in a fence that is not closed": f"I read it.\n```json\n{KNOWN}",
    "Python": '[read_file(path="b.py")]',
    "a name and its arguments": 'read_file\n{"path": "b.py"}',
    "a tag": f"I read it.\n<tool_call>{KNOWN}</tool_call>",
    "a tag in a fence at the end": f"I read it.\n```xml\n<tool_call>{KNOWN}</tool_call>\n```",
    "ReAct": "Thought: I read it.\nAction: read_file\nAction Input: b.py",
    "ReAct after a sentence": "I read it.\n\nAction: read_file\nAction Input: b.py",
}


@pytest.mark.parametrize("name", QUOTED)
def test_an_answer_may_quote_the_calls_that_were_made(name: str) -> None:
    assert all(outcome(each) == ["read_file"] for each in structured(QUOTED[name]).values())


@pytest.mark.parametrize("name", CALLED)
def test_a_call_of_a_known_tool_is_no_answer(name: str) -> None:
    for documents, before in ((structured, 1), (listed, 0), (unstructured, 0)):
        for document in documents(CALLED[name]).values():
            calls = outcome(document)
            assert calls is None or len(calls) > before


@pytest.mark.parametrize("name", ["JSON in a fence", "a call in code"])
def test_a_text_that_has_a_result_is_a_call(name: str) -> None:
    text = QUOTED[name].replace("`read_file(path='a.py')`", f"`{KNOWN}`")
    messages = [*structured(text)["OpenAI"], {"role": "tool", "tool_call_id": "c2", "content": "y = 2"}]
    assert outcome(messages) is None


def test_listing_the_tools_decides() -> None:
    text = 'Save {"name": "xgboost", "parameters": {"depth": 3}}'
    messages = unstructured(text)["OpenAI"]
    with pytest.raises(TraceError, match="'tools'"):
        normalize(messages)
    for tools in (
        [LISTED],
        [{"functionDeclarations": [{"name": "read_file"}]}],
        [{"toolSpec": {"name": "read_file"}}],
    ):
        assert outcome({"messages": messages, "tools": tools}) == []
    assert outcome({"messages": messages, "tools": [{"name": "xgboost"}]}) is None
