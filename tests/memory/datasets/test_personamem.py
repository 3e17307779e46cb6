"""PersonaMem: questions at places within shared chats, with options."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from karat.errors import DataError
from tests.memory.datasets.making import only, read, seen_by_systems

OPTIONS = ["(a) Jazz.", "(b) Rock, of course.", "(c) Folk."]


def messages() -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "Current user persona: a fan."},
        {"role": "user", "content": "User: I like rock."},
        {"role": "assistant", "content": "Assistant: Noted."},
        {"role": "system", "content": "Next topic."},
        {"role": "user", "content": "User: Not any more."},
    ]


def question(**changes: Any) -> dict[str, Any]:
    return {
        "persona_id": "CANARY",
        "question_id": "q1",
        "question_type": "recall_user_shared_facts",
        "topic": "CANARY",
        "user_question_or_message": "Which music?",
        "correct_answer": "(b)",
        "all_options": str(OPTIONS),
        "shared_context_id": "ctx",
        "end_index_in_shared_context": "3",
        **changes,
    }


def write(folder: Path, *questions: dict[str, Any], size: str = "32k") -> Path:
    (folder / f"shared_contexts_{size}.jsonl").write_text(json.dumps({"ctx": messages()}) + "\n")
    path = folder / f"questions_{size}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(question()))
        writer.writeheader()
        writer.writerows(question(**one) for one in questions)
    return folder


def test_a_question_is_asked_where_the_file_says(tmp_path):
    sample = only(
        write(tmp_path, {}, {"end_index_in_shared_context": "2"}, {"end_index_in_shared_context": "5"})
    )
    assert [len(one.turns) for one in sample.sessions] == [2, 1, 2]
    assert [one.after_session for one in sample.questions] == ["S02", "S01", "S03"]
    assert sample.sample_id == "ctx"


def test_options_are_choices_and_the_answer_is_one_of_them(tmp_path):
    question = only(write(tmp_path, {})).questions[0]
    assert question.choices == tuple(OPTIONS)
    assert question.answer == "(b) Rock, of course."
    assert "(b)" in question.answers
    assert question.question == "Which music?"


@pytest.mark.parametrize(
    "text",
    ["(a) Jazz.\n(b) Rock, of course.\n(c) Folk.", "['(a) Jazz.', \"(b) Rock, of course.\", '(c) Folk.']"],
)
def test_options_are_read_from_lines_and_lists(tmp_path, text):
    assert only(write(tmp_path, {"all_options": text})).questions[0].choices == tuple(OPTIONS)


def test_labels_are_not_visible(tmp_path):
    seen = seen_by_systems(only(write(tmp_path, {"correct_answer": "(B)"})))
    assert not any(word in seen for word in ("CANARY", "recall_user", "(B)"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"end_index_in_shared_context": "9"}, ["end_index_in_shared_context", "1 to 5"]),
        ({"end_index_in_shared_context": "0"}, ["end_index_in_shared_context"]),
        ({"shared_context_id": "other"}, ["'other'"]),
        ({"correct_answer": "(z)"}, ["correct_answer"]),
        ({"all_options": "nothing"}, ["all_options"]),
    ],
)
def test_an_error_names_the_place(tmp_path, changes, words):
    with pytest.raises(DataError) as caught:
        read(write(tmp_path, changes))
    assert all(word in str(caught.value) for word in ["questions_32k.csv line 2", *words]), str(caught.value)


def test_two_sizes_in_a_folder_need_the_path_of_one(tmp_path):
    write(tmp_path, {})
    write(tmp_path, {}, size="1M")
    with pytest.raises(DataError):
        read(tmp_path, "personamem")
    assert only(tmp_path / "questions_1M.csv").sample_id == "ctx"
