"""BEAM: gold under five keys, evidence in four shapes, plan marks removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from karat.errors import DataError
from karat.memory.datasets import read_memory_dataset
from tests.memory.datasets.making import only, read, seen_by_systems, write_json, write_jsonl


def messages(start: int, *texts: str) -> list[dict[str, Any]]:
    said = []
    for number, text in enumerate(texts, start=start):
        role = "user" if number % 2 == 0 else "assistant"
        said.append({"role": role, "id": number, "index": "1,1", "question_type": "CANARY", "content": text})
    return said


def chat() -> list[dict[str, Any]]:
    first = messages(
        0, "I use Flask. ->-> 1,1", "Good.", "Version 2.3 ->-> 1,N/A Label: CANARY", "Noted ->-> 1,2 then."
    )
    first[0]["time_anchor"] = "March-15-2024"
    second = messages(4, "I like tea.\nA lot ->-> 2,1", "Fine.")
    return [
        {"batch_number": 1, "turns": [first[:2], first[2:]], "time_anchor": None},
        {"batch_number": 2, "turns": [second], "time_anchor": "April-02-2024"},
    ]


def asked() -> dict[str, Any]:
    hidden = {"plan_reference": "CANARY", "why_unanswerable": "CANARY", "difficulty": "easy"}
    return {
        "abstention": [
            {"question": "A?", "ideal_response": "No information.", "rubric": ["refuses"], **hidden}
        ],
        "contradiction_resolution": [
            {"question": "B?", "ideal_answer": "gold", "source_chat_ids": {"first": [0], "second": [2, 0]}}
        ],
        "event_ordering": [{"question": "C?", "answer": "gold", "source_chat_ids": [[0, 2], 4, ["5"]]}],
        "information_extraction": [{"question": "D?", "answer": 7, "source_chat_ids": [2, 99]}],
        "instruction_following": [{"question": "E?", "expected_compliance": "gold", "source_chat_ids": 4}],
        "summarization": [{"question": "F?", "ideal_summary": "gold", "rubric": ["a", "b"], **hidden}],
    }


def folder(root: Path, questions: Any = None, chat_file: str = "chat.json") -> Path:
    write_json(root / "100K" / "1" / chat_file, chat())
    write_json(root / "100K" / "1" / "probing_questions" / "probing_questions.json", questions or asked())
    return root


def test_gold_is_found_under_every_key(tmp_path):
    sample = only(folder(tmp_path))
    assert sample.sample_id == "100K-1"
    assert [one.answer for one in sample.questions] == [
        "No information.",
        "gold",
        "gold",
        "7",
        "gold",
        "gold",
    ]
    assert [one.answerable for one in sample.questions] == [False, True, True, True, True, True]
    assert sample.questions[5].rubric == ("a", "b")
    assert [one.type_abbrev for one in sample.questions] == ["A", "CR", "EO", "IE", "IF", "S"]


def test_evidence_is_found_in_every_shape(tmp_path):
    sample = only(folder(tmp_path))
    found = [[turn for one in question.evidence for turn in one.turn_ids] for question in sample.questions]
    assert found == [[], ["S01:1", "S01:3"], ["S01:1", "S01:3", "S02:1", "S02:2"], ["S01:3"], ["S02:1"], []]
    assert any("'99'" in note for note in sample.notes)


def test_marks_of_the_plan_are_removed(tmp_path):
    sample = only(folder(tmp_path))
    assert [turn.text for session in sample.sessions for turn in session.turns] == [
        "I use Flask.",
        "Good.",
        "Version 2.3",
        "Noted then.",
        "I like tea.\nA lot",
        "Fine.",
    ]
    seen = seen_by_systems(sample)
    assert not any(word in seen for word in ("->->", "CANARY", "question_type", "gold"))


def test_turns_carry_the_date_of_their_batch(tmp_path):
    sample = only(folder(tmp_path))
    assert [one.time for one in sample.sessions] == ["2024-03-15", "2024-04-02"]


def test_the_shortened_chat_is_preferred(tmp_path):
    folder(tmp_path)
    write_json(tmp_path / "100K" / "1" / "chat_trunecated.json", chat()[:1])
    assert len(only(tmp_path).sessions) == 1


def test_plans_of_a_long_chat_follow_each_other(tmp_path):
    write_json(tmp_path / "1" / "chat.json", [{"plan-1": chat()}, {"plan-1": None, "plan-2": chat()}])
    question = {"question": "D?", "answer": "x", "source_chat_ids": [4, 6, 10]}
    write_json(
        tmp_path / "1" / "probing_questions" / "probing_questions.json", {"temporal_reasoning": [question]}
    )
    sample = only(tmp_path)
    assert [one.session_id for one in sample.sessions] == ["S01", "S02", "S03", "S04"]
    assert [one.turn_ids for one in sample.questions[0].evidence] == [("S02:1",), ("S03:1",), ("S04:1",)]


def test_rows_of_the_hub_hold_the_questions_as_text(tmp_path):
    batches = [[message for turn in batch["turns"] for message in turn] for batch in chat()]
    path = write_jsonl(
        tmp_path / "100K.jsonl", {"conversation_id": "1", "chat": batches, "probing_questions": repr(asked())}
    )
    rows, files = only(path), only(folder(tmp_path / "files"))
    assert rows.sessions[0].turns == files.sessions[0].turns
    assert rows.questions[1].evidence == files.questions[1].evidence


@pytest.mark.parametrize(
    "text", ["__import__('os').system('true')", "(" * 100_000, "{'a': 1 +}", "5", "{'abstention': 5}"]
)
def test_text_that_is_not_an_object_is_refused(tmp_path, text):
    path = write_jsonl(
        tmp_path / "rows.jsonl",
        {"conversation_id": "1", "chat": [messages(0, "Hi.")], "probing_questions": text},
    )
    with pytest.raises(DataError, match=r"rows\.jsonl line 1"):
        read(path, "beam")


@pytest.mark.parametrize(
    ("questions", "words"),
    [
        ({"knowledge_update": [{"question": "x"}]}, ["knowledge_update[0]", "ideal_answer"]),
        (
            {"knowledge_update": [{"question": "x", "answer": "y", "source_chat_ids": [1.5]}]},
            ["source_chat_ids"],
        ),
        ({"knowledge_update": [{"answer": "y"}]}, ["knowledge_update[0]", "'question'"]),
        (
            {"knowledge_update": [{"question": "x", "answer": "y", "source_chat_ids": list(range(20_000))}]},
            ["10,000"],
        ),
    ],
)
def test_an_error_names_the_place(tmp_path, questions, words):
    with pytest.raises(DataError) as caught:
        read(folder(tmp_path, questions))
    assert all(word in str(caught.value) for word in ["probing_questions.json", *words]), str(caught.value)


def test_questions_without_a_chat_are_noted(tmp_path):
    root = folder(tmp_path)
    write_json(root / "100K" / "2" / "probing_questions" / "probing_questions.json", asked())
    found = read_memory_dataset(root)
    assert [sample.sample_id for sample in found.samples()] == ["100K-1"]
    assert [note for note in found.notes if "1 folder" in note and "100K/2" in note]
