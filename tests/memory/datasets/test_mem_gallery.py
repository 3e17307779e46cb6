"""Mem-Gallery: captions, on a file made by hand and on the published dialogues where they are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from karat.errors import DataError
from tests.memory.datasets.making import only, read, seen_by_systems, write_json

REAL = next(
    (
        folder
        for parent in Path(__file__).resolve().parents
        if (folder := parent / "shared" / "data" / "mem-gallery" / "dialog").is_dir()
    ),
    None,
)


def dialogue(*questions: dict[str, Any]) -> dict[str, Any]:
    return {
        "character_profile": {"name": "CANARY", "persona_summary": "CANARY"},
        "multi_session_dialogues": [
            {
                "session_id": "D1",
                "date": "2024-06-17",
                "dialogues": [
                    {"round": "D1:1", "user": "Hi.", "assistant": "Hello."},
                    {
                        "round": "D1:2",
                        "user": "My dog.",
                        "assistant": "Cute.",
                        "image_id": ["D1:IMG_001"],
                        "input_image": ["../image/CANARY.jpg"],
                        "image_caption": ["A white Maltese on a chair."],
                    },
                ],
            }
        ],
        "human-annotated QAs": list(questions),
    }


def ask(point: str, answer: str, *clue: str, **more: Any) -> dict[str, Any]:
    return {
        "point": point,
        "question": f"Question {point}?",
        "answer": answer,
        "session_id": ["D1"],
        "clue": list(clue),
        **more,
    }


def test_captions_are_ingested_with_their_id(tmp_path):
    sample = only(write_json(tmp_path / "Dogs.json", dialogue(ask("FR", "Maltese", "D1:2"))))
    assert sample.modality == "caption"
    assert sample.sessions[0].turns[2].text == "My dog.\n[image D1:IMG_001: A white Maltese on a chair.]"
    assert sample.questions[0].evidence[0].turn_ids == ("S01:3", "S01:4")
    assert sample.questions[0].now == "2024-06-17"


def test_captions_that_contain_the_answer_are_marked(tmp_path):
    asked = [
        ask("FR", "maltese", "D1:2"),
        ask("TTL", "a chair", image_caption="It shows a chair."),
        ask("FR", "A brown dog", "D1:2"),
        ask("CD", "No.", "D1:2", image_caption="There is no dog."),
        ask("VS", "D1:IMG_001", "D1:2"),
        ask("AR", "Not mentioned.", image_caption="not mentioned"),
    ]
    sample = only(write_json(tmp_path / "Dogs.json", dialogue(*asked)))
    assert [one.caption_has_answer for one in sample.questions] == [True, True, False, False, False, False]
    assert sample.questions[1].image_caption == "It shows a chair."


def test_refusals_are_unanswerable(tmp_path):
    question = only(write_json(tmp_path / "Dogs.json", dialogue(ask("AR", "Not mentioned.")))).questions[0]
    assert (question.answerable, question.type_abbrev, question.type) == (False, "AR", "answer_refusal")


def test_the_persona_is_not_visible(tmp_path):
    sample = only(write_json(tmp_path / "Dogs.json", dialogue(ask("FR", "CANARY", "D1:1", "D7:1"))))
    assert "CANARY" not in seen_by_systems(sample)
    assert any("'D7:1'" in note for note in sample.notes)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "multi_session_dialogues",
            [{"session_id": "D1", "dialogues": [{"user": "x"}]}],
            ["dialogues[0]", "'round'"],
        ),
        ("multi_session_dialogues", [], ["no sessions"]),
        ("human-annotated QAs", [{"question": "x"}], ["'answer'"]),
    ],
)
def test_an_error_names_the_place(tmp_path, key, value, words):
    path = write_json(tmp_path / "Dogs.json", {**dialogue(), key: value})
    with pytest.raises(DataError) as caught:
        read(path)
    assert all(word in str(caught.value) for word in ["Dogs.json", *words]), str(caught.value)


@pytest.mark.skipif(REAL is None, reason="the Mem-Gallery dialogues are not at hand")
def test_the_published_dialogues_are_read_whole():
    assert REAL is not None
    samples = read(REAL)
    questions = [question for sample in samples for question in sample.questions]
    assert len(samples) == 20
    assert sum(len(sample.sessions) for sample in samples) == 240
    assert sum(len(session.turns) for sample in samples for session in sample.sessions) == 2 * 3962
    assert len(questions) == 1711
    assert sum(not one.answerable for one in questions) == 184
    assert sum(len(one.evidence) for one in questions) == 4109
    assert all(bool(one.evidence) == one.answerable for one in questions)
    assert not any(sample.notes for sample in samples)
    assert 0 < sum(one.caption_has_answer for one in questions) < 300
