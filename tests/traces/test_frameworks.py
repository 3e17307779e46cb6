"""Documents that agent frameworks wrote, recorded by `record_produced.py`, are read as the same calls and results."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from karat.evaluators import TrajectoryMatchEvaluator
from karat.traces import TraceError, normalize
from tests.traces.test_lossless import CONSTANTS, kept, leaves, places
from tests.traces.test_produced import ANSWER, BETWEEN, CALLS, QUESTION, RESULTS, SYSTEM, TAGS

FOLDER = Path(__file__).parent / "produced" / "frameworks"
DOCUMENTS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
FINAL = ("final_answer", {"answer": ANSWER})
WITHOUT_QUESTION = ("mcp_messages", "vercel_v4_generate_text", "vercel_v5_generate_text")
"""Forms that hold only what the agent did."""
WITHOUT_ANSWER = ("mcp_messages",)
KINDS = """
tool-call tool-result tool-invocation request response system-prompt user-prompt tool-return text assistant user
TextMessage ToolCallRequestEvent ToolCallExecutionEvent ThoughtEvent ToolCallSummaryMessage tools/call 2.0
tool_call_item tool_call_output_item message_output_item tool-search_hotels tool-get_weather tool-convert
AgentActionMessageLog ToolAgentAction AgentAction OpenAIToolAgentAction tool-response agents tool langchain
langchain_core langchain_classic output_parsers agent schema openai_tools json
"""
WORDS = CONSTANTS | set(TAGS.split()) | set(KINDS.split())
"""The formats' own words for a kind of part, which the shape of the steps says."""


@pytest.fixture(params=DOCUMENTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def expected(name: str) -> list[tuple[str, Any]]:
    """The calls of the story; smolagents ends it with a call of its own."""
    return [*CALLS, FINAL] if name.startswith("smolagents") else CALLS


def text_of(content: Any) -> Any:
    """A result without the envelope that Gemini puts around it."""
    return content["result"] if isinstance(content, dict) and content.keys() == {"result"} else content


def test_every_call_is_read_once_with_its_arguments(name: str) -> None:
    calls = normalize(DOCUMENTS[name]).calls
    assert [(call.name, call.arguments) for call in calls] == expected(name)


def test_every_result_is_read(name: str) -> None:
    steps = normalize(DOCUMENTS[name]).steps
    found = [text_of(step.tool_result.content) for step in steps if step.tool_result is not None]
    if name.startswith("smolagents"):  # it joins the results of parallel calls
        assert found == [RESULTS[0], "\n".join(RESULTS[1:3]), RESULTS[3], ANSWER]
    elif name == "crewai_react_messages":  # it repeats its instructions after a result
        assert [text.startswith(result) for text, result in zip(found, RESULTS, strict=True)] == [True] * 4
    else:
        assert found == RESULTS


def test_messages_are_read_in_order(name: str) -> None:
    steps = normalize(DOCUMENTS[name]).steps
    asked = [QUESTION in step.text for step in steps if step.role == "user"]
    assert any(asked) == (name not in WITHOUT_QUESTION)
    assert any(ANSWER in step.text for step in steps) == (name not in WITHOUT_ANSWER)
    assert {step.role for step in steps} <= {"system", "user", "assistant", "tool"}


def test_nothing_doubtful_is_left_unused(name: str) -> None:
    assert [part for part in normalize(DOCUMENTS[name]).unused if not part.harmless] == []


def test_every_value_is_kept(name: str) -> None:
    if name == "crewai_react_messages" or name.startswith("smolagents_to"):
        return  # calls in text: the text is taken apart
    found = kept(DOCUMENTS[name])
    missing = {leaf for leaf in leaves(DOCUMENTS[name]) if leaf not in WORDS and str(leaf) not in found}
    assert missing == set()


def test_an_unknown_field_is_kept_wherever_it_is(name: str) -> None:
    for position in range(sum(1 for _ in places(DOCUMENTS[name]))):
        document = copy.deepcopy(DOCUMENTS[name])
        place = list(places(document))[position]
        place["unheard_of"] = "MARK"
        assert "MARK" in json.dumps(normalize(document).to_dict()), f"added to {json.dumps(place)[:300]}"


def test_a_call_that_lost_its_name_is_refused(name: str) -> None:
    """In every format, a call without a name is an error and is not left out."""
    document = copy.deepcopy(DOCUMENTS[name])
    found = 0
    for place in places(document):
        for key in ("name", "toolName", "tool_name", "function", "tool"):
            if place.get(key) == "convert" and "content" not in place and "result" not in place:
                place[key] = None
                found += 1
        if place.get("type") == "tool-convert":
            place["type"] = "tool-"
            found += 1
    if not found:
        pytest.skip("the calls are text")
    with pytest.raises(TraceError):
        normalize(document)


def test_a_missing_call_fails_the_match(name: str) -> None:
    reference = [{"name": tool, "arguments": given} for tool, given in expected(name)]
    evaluator = TrajectoryMatchEvaluator(mode="strict")
    assert evaluator.evaluate(outputs=DOCUMENTS[name], reference_outputs=reference).score == 1.0
    result = evaluator.evaluate(
        outputs=DOCUMENTS[name], reference_outputs=[*reference, {"name": "pay", "arguments": {}}]
    )
    assert result.score == 0.0
    assert result.metadata["missing"][0]["name"] == "pay"


def test_reading_changes_nothing_the_first_or_second_time(name: str) -> None:
    before = copy.deepcopy(DOCUMENTS[name])
    once = normalize(DOCUMENTS[name])
    assert DOCUMENTS[name] == before
    assert normalize(once.to_dict()) == once
    assert normalize(json.dumps(once.to_dict())) == once
    assert normalize(json.dumps(before)) == once


def test_the_text_before_calls_stays_with_its_message() -> None:
    for name in (
        "pydantic_ai_messages",
        "vercel_v5_model_messages",
        "bedrock_converse_strands",
        "claude_code_jsonl",
    ):
        steps = normalize(DOCUMENTS[name]).steps
        (step,) = [step for step in steps if BETWEEN in step.text]
        assert [call.name for call in step.tool_calls] in (["get_weather"], ["get_weather", "convert"])


def test_the_lines_of_a_resumed_session_count_once() -> None:
    """A session of Claude Code that is resumed begins with a copy of its history, with the same identities."""
    document = DOCUMENTS["claude_code_jsonl"]
    lines = [json.loads(line) for line in document.splitlines()] if isinstance(document, str) else document
    once = normalize(lines)
    resumed = normalize([*lines, *copy.deepcopy(lines)])
    assert resumed.calls == once.calls
    assert resumed.steps == once.steps
    changed = copy.deepcopy(lines)
    for line in changed:
        if line.get("type") == "assistant":
            line["message"]["content"].append({"type": "tool_use", "id": "new", "name": "more", "input": {}})
    assert "more" in [call.name for call in normalize([*lines, *changed]).calls]


def test_a_system_prompt_is_a_step() -> None:
    for name in ("pydantic_ai_messages", "inspect_sample"):
        assert [step.text for step in normalize(DOCUMENTS[name]).steps if step.role == "system"] == [SYSTEM]
