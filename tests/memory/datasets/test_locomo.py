"""LoCoMo: evidence ids in every spelling, adversarial questions, and fields that give answers away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from karat.errors import DataError
from karat.memory.datasets import read_memory_dataset
from karat.memory.datasets._reading import REFUSAL
from tests.memory.datasets.making import only, read, seen_by_systems, write_json, write_jsonl


def say(session: int, number: int, text: str, **more: Any) -> dict[str, Any]:
    return {"speaker": "Ann" if number % 2 else "Ben", "dia_id": f"D{session}:{number}", "text": text, **more}


def conversation() -> dict[str, Any]:
    return {
        "speaker_a": "Ann",
        "speaker_b": "Ben",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            say(
                1,
                1,
                "I painted a lake.",
                blip_caption="a painting of a lake",
                query="CANARY",
                img_url=["CANARY"],
            ),
            say(1, 2, "Lovely!"),
        ],
        "session_2_date_time": "12:09 am on 13 September, 2023",
        "session_2": [say(2, 1, "I moved to Bern."), say(2, 2, "When?")],
        "session_3_date_time": "10:31 am on 13 October, 2023",
    }


def ask(
    question: str, answer: Any = None, category: int = 4, evidence: Any = (), **more: Any
) -> dict[str, Any]:
    asked = {"question": question, "category": category, "evidence": list(evidence), **more}
    return asked if answer is None else {**asked, "answer": answer}


def sample(*questions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    hidden = {"event_summary": "CANARY", "observation": "CANARY", "session_summary": {"s": "CANARY"}}
    return {
        "sample_id": "conv-1",
        "conversation": {**conversation(), **changes},
        "qa": list(questions),
        **hidden,
    }


def write(folder: Path, *questions: dict[str, Any], **changes: Any) -> Path:
    return write_json(folder / "locomo10.json", [sample(*questions, **changes)])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["D1:1; D2:2"], ["D1:1", "D2:2"]),
        (["D1:1 D2:2", "D1:1"], ["D1:1", "D2:2"]),
        (["D:2:1"], ["D2:1"]),
        (["D02:01", "D2:1"], ["D2:1"]),
        (["D1:1,D2:1"], ["D1:1", "D2:1"]),
    ],
)
def test_evidence_ids_are_split_and_unpadded_and_occur_once(tmp_path, given, found):
    question = only(write(tmp_path, ask("Where?", "Bern", evidence=given))).questions[0]
    assert [one.evidence_id for one in question.evidence] == found
    assert all(len(one.turn_ids) == 1 and one.text for one in question.evidence)


def test_ids_that_name_no_turn_are_excluded_and_listed(tmp_path):
    found = only(write(tmp_path, ask("Where?", "Bern", evidence=["D", "D9:1", "D2:1"])))
    assert [one.evidence_id for one in found.questions[0].evidence] == ["D2:1"]
    [note] = [note for note in found.notes if "question 0" in note]
    assert "'D'" in note
    assert "'D9:1'" in note


def test_answers_may_be_numbers_and_questions_may_repeat(tmp_path):
    found = only(write(tmp_path, ask("When?", 2022, 2), ask("When?", "2023", 2)))
    assert [(one.index, one.question, one.answer) for one in found.questions] == [
        (0, "When?", "2022"),
        (1, "When?", "2023"),
    ]


def test_category_five_without_an_answer_is_unanswerable(tmp_path):
    asked = [
        ask("Whose lake?", category=5, evidence=["D1:1"], adversarial_answer="CANARY"),
        ask("Is it Ann's?", "No", category=5, evidence=["D1:1"], adversarial_answer="Yes"),
    ]
    trap, known = only(write(tmp_path, *asked)).questions
    assert (trap.answerable, trap.answer, trap.evidence) == (False, REFUSAL, ())
    assert (known.answerable, known.answer, len(known.evidence)) == (True, "No", 1)
    assert (trap.type_abbrev, known.type_abbrev) == ("AD", "AD")


def test_dates_of_missing_sessions_make_no_session(tmp_path):
    found = only(write(tmp_path, ask("Where?", "Bern")))
    assert [one.session_id for one in found.sessions] == ["S01", "S02"]
    assert found.sessions[0].time == "2023-05-08T13:56:00"
    assert found.questions[0].now == "2023-09-13T00:09:00"
    assert any("missing" in note and "3" in note for note in found.notes)


def test_a_session_without_a_date_is_read(tmp_path):
    found = only(write(tmp_path, ask("Where?", "Bern"), session_2_date_time=None))
    assert found.sessions[1].time is None
    assert any("session 2 " in note and " date" in note for note in found.notes)


def test_nothing_that_gives_answers_away_is_visible(tmp_path):
    asked = ask("Whose?", category=5, evidence=["D1:1"], adversarial_answer="CANARY")
    found = only(write(tmp_path, asked, ask("Where?", "CANARY", evidence=["D2:1"])))
    seen = seen_by_systems(found)
    assert "CANARY" not in seen
    assert "[image S01_img_1: a painting of a lake]" in seen
    assert "D1:1" not in seen


def test_the_older_release_has_one_file_per_conversation(tmp_path):
    asked = [ask("Where?", "Bern", evidence=["D2:1"])]
    write_json(
        tmp_path / "old" / "26.json", {**conversation(), "qa": asked, "events_session_1": {"Ann": ["CANARY"]}}
    )
    old, new = only(tmp_path / "old"), only(write(tmp_path, *asked))
    assert (old.sessions, old.questions) == (new.sessions, new.questions)
    assert old.sample_id == "26"


@pytest.mark.parametrize(
    ("changes", "asked", "words"),
    [
        ({"session_2": "text"}, ask("Where?", "x"), ["conversation.session_2"]),
        ({"session_2": [{"text": "x"}]}, ask("Where?", "x"), ["session_2[0]", "'speaker'"]),
        ({}, ask("Where?"), ["qa[0]", "answer"]),
        ({}, {"answer": "x", "category": 1}, ["qa[0]", "'question'"]),
        ({}, ask("Where?", {"a": 1}), ["qa[0].answer"]),
        ({"session_1": None, "session_2": None}, ask("Where?", "x"), ["no sessions"]),
    ],
)
def test_an_error_names_the_place(tmp_path, changes, asked, words, refuses):
    path = write(tmp_path, asked, **changes)
    with refuses(DataError) as caught:
        read(path)
    assert all(word in str(caught.value) for word in ["locomo10.json line 1", *words]), str(caught.value)


def test_corrections_lie_over_the_labels_and_give_a_ceiling(tmp_path):
    asked = [ask(f"Question {number}?", "old", evidence=["D1:1"]) for number in range(4)]
    asked[3]["question"] = "Question 2?"
    path = write(tmp_path, *asked)
    overlay = write_jsonl(
        tmp_path / "fixes.jsonl",
        {"sample_id": "conv-1", "index": 1, "answer": "new", "evidence": ["D2:1"], "question": "Question 1?"},
        {"sample_id": "conv-1", "index": 2, "exclude": True, "reason": "ambiguous"},
        {"sample_id": "conv-1", "index": 3, "evidence": ["D2:2"]},
    )
    dataset = read_memory_dataset(path, corrections=overlay)
    [found] = dataset.samples()
    assert [one.answer for one in found.questions] == ["old", "new", "old"]
    assert [one.index for one in found.questions] == [0, 1, 2]
    assert [one.evidence[0].turn_ids for one in found.questions] == [("S01:1",), ("S02:1",), ("S02:2",)]
    assert "at most 0.500" in str(dataset.ceiling())
    assert dataset.corrections is not None
    assert (dataset.corrections.changed, dataset.corrections.excluded, dataset.corrections.questions) == (
        1,
        1,
        4,
    )
    assert dataset.hash != read_memory_dataset(path).hash
    assert read_memory_dataset(path).ceiling() is None


def test_the_public_audit_is_read_as_it_is(tmp_path):
    path = write(tmp_path, ask("A?", "old", evidence=["D1:1"]), ask("B?", 2022, evidence=["D1:2"]))
    audit = write_json(
        tmp_path / "errors.json",
        [
            {
                "question_id": "locomo_0_qa0",
                "question": "A?",
                "error_type": "HALLUCINATION",
                "correct_answer": "new",
            },
            {
                "question_id": "locomo_0_qa1",
                "error_type": "WRONG_CITATION",
                "correct_evidence": ["D2:1"],
                "correct_answer": "The year 2022",
            },
        ],
    )
    [found] = read_memory_dataset(path, corrections=audit).samples()
    assert [one.answer for one in found.questions] == ["new", "2022"]
    assert found.questions[1].evidence[0].evidence_id == "D2:1"


@pytest.mark.parametrize(
    "row",
    [
        {"sample_id": "conv-1", "index": 7, "answer": "x"},
        {"sample_id": "conv-2", "index": 0, "answer": "x"},
        {"sample_id": "conv-1", "index": 0, "question": "Other?"},
        {"sample_id": "conv-1", "index": 0, "evidence": ["D9:9"]},
        {"sample_id": "conv-1", "index": "0"},
        {"question_id": "q1"},
    ],
)
def test_a_correction_that_does_not_fit_is_refused(tmp_path, row, refuses):
    path = write(tmp_path, ask("Where?", "Bern"))
    overlay = write_jsonl(tmp_path / "fixes.jsonl", row)
    with refuses(DataError) as caught:
        list(read_memory_dataset(path, corrections=overlay).samples())
    assert "fixes.jsonl line 1" in str(caught.value)
