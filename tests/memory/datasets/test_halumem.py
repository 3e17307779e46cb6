"""HaluMem: flags as text, evidence as text, questions after their session."""

from __future__ import annotations

from typing import Any

import pytest

from karat.errors import DataError
from tests.memory.datasets.making import only, read, seen_by_systems, write_jsonl


def session(number: int, **more: Any) -> dict[str, Any]:
    time = f"Dec {number:02d}, 2025, 06:11:23"
    return {
        "start_time": time,
        "end_time": f"Dec {number:02d}, 2025, 07:00:00",
        "dialogue": [
            {"role": "user", "content": f"Message {number}.", "timestamp": time, "dialogue_turn": 0},
            {"role": "assistant", "content": "Reply.", "timestamp": time, "dialogue_turn": 0},
        ],
        "memory_points": [],
        **more,
    }


def point(content: str, **more: Any) -> dict[str, Any]:
    defaults = {"memory_type": "Event Memory", "memory_source": "primary", "is_update": "False"}
    return {
        "index": 1,
        "memory_content": content,
        **defaults,
        "original_memories": [],
        "importance": 0.75,
        **more,
    }


def user(**changes: Any) -> dict[str, Any]:
    points = [
        point("Mark is a director."),
        point("Mark likes tea.", memory_source="interference", is_update="True"),
        point("Mark left.", is_update="True", original_memories=["Mark is a director."]),
    ]
    asked = [
        {
            "question": "What did Mark do?",
            "answer": "He left.",
            "evidence": [{"memory_content": "Mark left.", "memory_type": "Event Memory"}],
            "difficulty": "easy",
            "question_type": "Basic Fact Recall",
        },
        {
            "question": "Which car?",
            "answer": "Unknown.",
            "evidence": [],
            "difficulty": "hard",
            "question_type": "Memory Boundary",
        },
    ]
    sessions = [session(1, memory_points=points, questions=asked), session(2, is_generated_qa_session=True)]
    return {"uuid": "u-1", "persona_info": "Name: CANARY; Gender: x", "sessions": sessions, **changes}


def test_points_are_split_by_flags_that_are_text(tmp_path):
    sample = only(write_jsonl(tmp_path / "HaluMem-Medium.jsonl", user()))
    first = sample.sessions[0]
    assert [one.text for one in first.new] == ["Mark is a director."]
    assert [one.text for one in first.updates] == ["Mark left."]
    assert [one.text for one in first.interference] == ["Mark likes tea."]
    assert first.turns[0].time == "2025-12-01T06:11:23"
    assert len({one.memory_id for one in (*first.new, *first.updates, *first.interference)}) == 3


def test_questions_are_asked_after_their_session(tmp_path):
    known, boundary = only(write_jsonl(tmp_path / "h.jsonl", user())).questions
    assert (known.after_session, known.now) == ("S01", "2025-12-01T07:00:00")
    assert [one.evidence_id for one in known.evidence] == ["mp_S01_3"]
    assert known.type_abbrev == "BFR"
    assert (boundary.answerable, boundary.evidence) == (False, ())


def test_the_persona_is_not_visible(tmp_path):
    seen = seen_by_systems(only(write_jsonl(tmp_path / "h.jsonl", user())))
    assert not any(word in seen for word in ("CANARY", "generated", "director", "Boundary"))


@pytest.mark.parametrize(
    ("sessions", "words"),
    [
        ([session(1, memory_points=[point("x", is_update="yes")])], ["memory_points[0].is_update", "'yes'"]),
        ([session(1, questions=[{"question": "x"}])], ["questions[0]", "answer"]),
        ([session(1, dialogue={"a": 1})], ["sessions[0].dialogue"]),
        ([session(1), "x"], ["sessions[1]"]),
    ],
)
def test_an_error_names_the_place(tmp_path, sessions, words, refuses):
    path = write_jsonl(tmp_path / "h.jsonl", user(), user(uuid="u-2", sessions=sessions))
    with refuses(DataError) as caught:
        read(path)
    assert all(word in str(caught.value) for word in ["h.jsonl line 2", *words]), str(caught.value)
