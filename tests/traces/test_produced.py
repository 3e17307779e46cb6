"""One conversation, recorded by the real SDKs, frameworks and tracers, gives the same calls and messages."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from karat.traces import Trajectory, normalize
from tests.traces.test_lossless import CONSTANTS, kept, leaves, places

PRODUCED = Path(__file__).parent / "produced"
DOCUMENTS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(PRODUCED.glob("*.json"))}

SYSTEM = "Answer in one sentence."
QUESTION = "Find a quiet hotel in Oslo, and is it sunny?"
BETWEEN = "Two more checks."
ANSWER = "The Fjord is quiet and it is sunny."
SEARCH = {"city": "Oslo", "filter": {"price": {"max": 120.5}, "tags": ["quiet", "øst"]}}
CALLS: list[tuple[str, Any]] = [
    ("search_hotels", SEARCH),
    ("get_weather", {"city": "Oslo", "days": [1, 2]}),
    ("convert", {"amount": 120, "to": {"currency": "EUR"}}),
    ("search_hotels", SEARCH),
]
MALFORMED = ("get_weather", '{"city": "Oslo", "days": [')
HOTELS = '{"hotels": [{"id": 7, "name": "Fjord"}]}'
RESULTS = [HOTELS, "sunny", '{"amount": 10.5}', HOTELS]
NO_JSON = ("the arguments are no JSON", "Tool call get_weather with id call_e could not be executed")

WELL_FORMED = ("anthropic", "genai", "langgraph_history", "langgraph_values")
"""Providers whose arguments are values, which cannot be malformed."""
LEAVES_OUT = ("openllmetry_langchain", "openinference_langchain")
"""Tracers that leave a malformed call out of the model's message, though not the answer to it."""
WITHOUT_SYSTEM = (
    "openai_responses",
    "anthropic_messages",
    "google_genai",
    "langchain_",
    "langgraph_",
    "potato",
)
"""Where the system prompt stands in the request, and not among the messages that are kept."""
TAGS = """
tool_call_response invalid_tool_call gen_ai.client.inference.operation.details text message error
SystemMessage LLMResult
"""
"""More of the formats' own words, as in `CONSTANTS`."""


@pytest.fixture(params=DOCUMENTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def reports_malformed(name: str) -> bool:
    return not any(word in name for word in WELL_FORMED)


def contents(trajectory: Trajectory) -> list[Any]:
    """What the tools gave back, without the envelope that Gemini wants around it."""
    found = [step.tool_result.content for step in trajectory.steps if step.tool_result is not None]
    return [part["result"] if isinstance(part, dict) else part for part in found]


def test_every_call_is_there_once_with_its_arguments(name: str) -> None:
    calls = normalize(DOCUMENTS[name]).calls
    told = [(call.name, call.arguments) for call in calls if not call.malformed]
    assert told == CALLS
    malformed = [(call.name, call.raw) for call in calls if call.malformed]
    assert malformed == ([MALFORMED] if reports_malformed(name) and name not in LEAVES_OUT else [])


def test_every_result_is_there_once(name: str) -> None:
    found = contents(normalize(DOCUMENTS[name]))
    failed = [part for part in found if part.startswith(NO_JSON)]
    assert [part for part in found if part not in failed] == RESULTS
    assert len(failed) == reports_malformed(name)


def test_results_are_of_the_calls_that_were_asked_for(name: str) -> None:
    steps = normalize(DOCUMENTS[name]).steps
    asked = {call.id for step in steps for call in step.tool_calls}
    answered = {step.tool_result.call_id for step in steps if step.tool_result is not None}
    if (
        name == "openllmetry_responses"
    ):  # it writes the id of the item for the call, and the call's for the answer
        answered = {f"fc_{identity}" for identity in answered}
    elif name in LEAVES_OUT:
        asked |= {"call_e"}
    elif answered == {None}:  # Gemini's SDK and Potato write no ids
        return
    assert asked == answered


def test_every_message_is_there_once_and_in_order(name: str) -> None:
    steps = normalize(DOCUMENTS[name]).steps
    without_system = name.startswith(WITHOUT_SYSTEM)
    assert [step.text for step in steps if step.role == "system"] == ([] if without_system else [SYSTEM])
    assert [step.text for step in steps if step.role == "user"] == [QUESTION]
    said = [step.text for step in steps if step.text in (BETWEEN, ANSWER)]
    assert said == [BETWEEN, ANSWER]
    assert {step.role for step in steps} <= {"system", "user", "assistant", "tool"}
    first = next(step.role for step in steps if step.role != "system")
    assert (first, steps[-1].text) == ("user", ANSWER)


def test_nothing_doubtful_is_left_unused(name: str) -> None:
    assert [part for part in normalize(DOCUMENTS[name]).unused if not part.harmless] == []


def test_every_value_is_kept(name: str) -> None:
    found = kept(DOCUMENTS[name])
    known = CONSTANTS | set(TAGS.split())
    assert {leaf for leaf in leaves(DOCUMENTS[name]) if leaf not in known and str(leaf) not in found} == set()


def test_an_unknown_field_is_kept_at_any_depth(name: str) -> None:
    for position in range(sum(1 for _ in places(DOCUMENTS[name]))):
        document = copy.deepcopy(DOCUMENTS[name])
        place = list(places(document))[position]
        if "key" in place or any(key.endswith(("Value", "values")) for key in place):
            continue  # a typed value of OTLP has no fields of its own
        place["unheard_of"] = "MARK"
        assert "MARK" in json.dumps(normalize(document).to_dict()), f"added to {json.dumps(place)[:300]}"


def test_reading_changes_nothing_the_first_or_second_time(name: str) -> None:
    before = copy.deepcopy(DOCUMENTS[name])
    once = normalize(DOCUMENTS[name])
    assert DOCUMENTS[name] == before
    assert normalize(once) == once
    assert normalize(once.to_dict()) == once
    assert normalize(json.dumps(once.to_dict())) == once
    assert normalize(json.dumps(before)) == once
