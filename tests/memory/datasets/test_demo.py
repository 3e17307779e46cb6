"""The set that karat ships is complete and discriminates."""

from __future__ import annotations

import re

import pytest

from karat.memory import Sample
from karat.memory.datasets import read_memory_dataset

SAMPLES = list(read_memory_dataset("demo").samples())
TYPES = {"FR", "TR", "MH", "KU", "IR", "AR", "VFR", "VS", "PF", "CT"}


def texts(sample: Sample) -> dict[str, str]:
    return {turn.turn_id: turn.text for session in sample.sessions for turn in session.turns}


def test_it_is_large_enough():
    assert len(SAMPLES) >= 3
    assert all(len(sample.sessions) >= 6 for sample in SAMPLES)
    assert all(sample.notes == () for sample in SAMPLES)
    assert read_memory_dataset("demo").notes == []  # the set is its own original data


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.sample_id)
def test_a_sample_has_every_kind_of_memory_and_question(sample):
    assert all(session.new or session.updates for session in sample.sessions)
    assert sum(len(session.updates) for session in sample.sessions) >= 5
    assert sum(len(session.interference) for session in sample.sessions) >= 5
    assert {question.type_abbrev for question in sample.questions} == TYPES
    assert {question.difficulty for question in sample.questions} == {"easy", "medium", "hard"}
    assert any(turn.attachments for session in sample.sessions for turn in session.turns)
    assert len({question.after_session for question in sample.questions}) == 3


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.sample_id)
def test_gold_points_name_their_turns(sample):
    said = texts(sample)
    points = [p for s in sample.sessions for p in (*s.new, *s.updates, *s.interference)]
    assert all(point.turn_ids and set(point.turn_ids) <= set(said) for point in points)
    held = {point.text for point in points}
    assert all(set(p.original) <= held for s in sample.sessions for p in s.updates)
    for question in sample.questions:
        assert bool(question.evidence) == question.answerable
        assert all(one.turn_ids for one in question.evidence)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.sample_id)
def test_an_update_changes_an_answer(sample):
    asked: dict[str, set[str]] = {}
    for question in sample.questions:
        asked.setdefault(question.question, set()).add(question.answer)
    assert any(len(answers) > 1 for answers in asked.values())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.sample_id)
def test_an_answer_rests_on_the_turns_of_its_evidence(sample):
    """Each word of a short answer that is not computed is in the turns that its evidence names."""
    said = texts(sample)
    for question in sample.questions:
        if not question.answerable or question.type_abbrev in ("TR", "CT"):
            continue
        words = {word for word in re.findall(r"\w+", question.answer.lower()) if len(word) > 4}
        found = " ".join(
            [*(said[t] for e in question.evidence for t in e.turn_ids), *(e.text for e in question.evidence)]
        )
        assert words - {"2025"} <= set(re.findall(r"\w+", found.lower())), question.question
