"""LongMemEval: one question per sample, sessions by date, nothing that marks the answer."""

from __future__ import annotations

from typing import Any

import pytest

from karat.errors import DataError
from tests.memory.datasets.making import only, read, seen_by_systems, write_json


def row(**changes: Any) -> dict[str, Any]:
    return {
        "question_id": "gpt4_2655b836",
        "question_type": "temporal-reasoning",
        "question": "When did I buy the car?",
        "answer": "In February.",
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/03 (Wed) 10:00"],
        "haystack_session_ids": ["answer_4be1b6b4_2", "sharegpt_yywfIrx_0"],
        "haystack_sessions": [
            [
                {"role": "user", "content": "I bought a car in February.", "has_answer": True},
                {"role": "assistant", "content": "Nice.", "has_answer": False},
            ],
            [{"role": "user", "content": "Hello."}],
        ],
        "answer_session_ids": ["answer_4be1b6b4_2"],
        **changes,
    }


def test_unsorted_sessions_are_sorted_by_date(tmp_path):
    sample = only(write_json(tmp_path / "oracle.json", [row()]))
    assert [one.time for one in sample.sessions] == ["2023-05-03T10:00:00", "2023-05-20T02:21:00"]
    assert [one.source_id for one in sample.sessions] == ["sharegpt_yywfIrx_0", "answer_4be1b6b4_2"]
    assert sample.notes != ()
    question = sample.questions[0]
    assert question.now == "2023-05-30T23:40:00"
    assert question.after_session == "S02"
    assert [one.turn_ids for one in question.evidence] == [("S02:1",)]
    assert question.type_abbrev == "TR"


def test_a_file_without_marked_turns_has_sessions_as_evidence(tmp_path):
    plain = row()
    for session in plain["haystack_sessions"]:
        for turn in session:
            turn.pop("has_answer", None)
    question = only(write_json(tmp_path / "s.json", [plain])).questions[0]
    assert [one.turn_ids for one in question.evidence] == [("S02:1", "S02:2")]


def test_abstention_questions_are_unanswerable(tmp_path):
    question = only(
        write_json(tmp_path / "s.json", [row(question_id="x_abs", answer="You did not say.")])
    ).questions[0]
    assert (question.answerable, question.evidence, question.answer) == (False, (), "You did not say.")


@pytest.mark.parametrize(
    ("type", "rules"),
    [
        *(("single-session-preference", 1), ("temporal-reasoning", 1), ("knowledge-update", 1)),
        *(("single-session-user", 0), ("multi-session", 0)),
    ],
)
def test_types_that_the_benchmark_grades_by_a_rule_of_their_own(tmp_path, type, rules):
    question = only(write_json(tmp_path / "s.json", [row(question_type=type)])).questions[0]
    assert len(question.rubric) == rules
    assert question.answer == "In February."


def test_no_label_is_visible(tmp_path):
    sample = only(write_json(tmp_path / "s.json", [row(question_id="CANARY_abs", answer="CANARY")]))
    seen = seen_by_systems(sample)
    assert not any(
        word in seen for word in ("CANARY", "answer_", "_abs", "has_answer", "sharegpt", "temporal")
    )


def test_samples_are_read_one_at_a_time(tmp_path):
    path = write_json(tmp_path / "s.json", [row(question_id=str(number)) for number in range(5)])
    path.write_text(path.read_text() + "broken")
    from karat.memory.datasets import read_memory_dataset

    samples = read_memory_dataset(path, "longmemeval").samples()
    assert [next(samples).sample_id for _ in range(4)] == ["0", "1", "2", "3"]
    with pytest.raises(DataError):
        list(samples)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"haystack_dates": ["2023/05/20 (Sat) 02:21"]}, ["2 elements, haystack_dates 1"]),
        ({"haystack_sessions": [[], [{"content": "x"}]]}, ["haystack_sessions[1][0]", "'role'"]),
        ({"answer": None}, ["answer"]),
        ({"haystack_sessions": [], "haystack_dates": [], "haystack_session_ids": []}, ["no sessions"]),
        ({"question": 5}, ["question", "a number"]),
    ],
)
def test_an_error_names_the_place(tmp_path, changes, words):
    path = write_json(tmp_path / "s.json", [row(**changes)])
    with pytest.raises(DataError) as caught:
        read(path)
    assert all(word in str(caught.value) for word in ["s.json line 1", *words]), str(caught.value)


def test_a_question_id_that_occurs_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match="twice"):
        read(write_json(tmp_path / "s.json", [row(), row()]))
