"""MemoryAgentBench: a context in pieces, questions with several answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from karat.errors import DataError
from karat.memory import evaluate
from karat.memory.datasets._memoryagentbench import PIECE
from karat.testing import FakeProvider
from tests.memory.datasets.making import only, read, seen_by_systems, write_jsonl


def row(**changes: Any) -> dict[str, Any]:
    return {
        "context": "The sky is blue. " * 1000 + "x" * 9000,
        "questions": ["What is blue?", "What is green?"],
        "answers": [["The sky", "sky"], ["You did not say."]],
        "metadata": {
            "source": "longmemeval_s_-1_500",
            "question_ids": ["1", "2_abs"],
            "question_types": ["single-session-user", "multi-session"],
            "question_dates": ["2023/05/30 (Tue) 23:40", "2023/05/31 (Wed) 10:00"],
            "haystack_sessions": [[[{"content": "CANARY", "has_answer": True}]]],
            "demo": "CANARY",
        },
        **changes,
    }


def test_the_context_is_cut_into_pieces_and_nothing_is_lost(tmp_path):
    sample = only(write_jsonl(tmp_path / "AR.jsonl", row()))
    texts = [turn.text for turn in sample.sessions[0].turns]
    assert all(len(text) <= PIECE for text in texts)
    assert "".join(texts).replace(" ", "") == row()["context"].replace(" ", "")


def test_questions_have_all_their_answers(tmp_path):
    first, second = only(write_jsonl(tmp_path / "AR.jsonl", row())).questions
    assert (first.answer, first.answers, first.now) == ("The sky", ("sky",), "2023-05-30T23:40:00")
    assert first.type_abbrev == "SSU"
    assert (second.answerable, second.type_abbrev) == (False, "A")


def test_metadata_of_questions_may_be_beside_it(tmp_path):
    inside = row()
    beside = row(
        metadata={}, **{name: inside["metadata"][name] for name in inside["metadata"] if name != "demo"}
    )
    assert (
        only(write_jsonl(tmp_path / "AR.jsonl", beside)).questions
        == only(write_jsonl(tmp_path / "b" / "AR.jsonl", inside)).questions
    )


def test_one_question_has_the_whole_list(tmp_path):
    one = row(
        questions=["Summarise."],
        answers=["a", "b"],
        metadata={"source": "infbench_sum", "keypoints": ["k1", "k2"]},
    )
    question = only(write_jsonl(tmp_path / "LRU.jsonl", one)).questions[0]
    assert (question.answer, question.answers, question.rubric) == ("a", ("b",), ("k1", "k2"))


def test_labels_are_not_visible(tmp_path):
    seen = seen_by_systems(only(write_jsonl(tmp_path / "AR.jsonl", row())))
    assert not any(word in seen for word in ("CANARY", "_abs", "longmemeval", "single-session"))


def test_parquet_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "Accurate_Retrieval-00000-of-00001.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([row()]), path)
    assert len(only(path).questions) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"answers": [["x"]]},
        {"answers": [["x"], []]},
        {"context": 5},
        {"metadata": [1]},
    ],
)
def test_an_error_names_the_place(tmp_path, changes, refuses):
    with refuses(DataError) as caught:
        read(write_jsonl(tmp_path / "AR.jsonl", row(**changes)))
    assert "AR.jsonl line 1" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("ruler_qa1_197K", "only the answer"),
        ("longmemeval_s*", "briefly"),
        ("eventqa_full", "happens next"),
        ("icl_banking77_5900shot_balance", "label: NUMBER"),
        ("recsys_redial_full", "20 recommendations"),
        ("infbench_sum_eng_shots2", "Summarise"),
        ("detective_qa", "output format"),
        ("factconsolidation_mh_262k", "largest number"),
    ],
)
def test_each_source_has_its_instruction(tmp_path, source, word):
    one = row(metadata={**row()["metadata"], "source": source})
    questions = only(write_jsonl(tmp_path / "AR.jsonl", one)).questions
    assert all(word in question.instruction for question in questions)
    assert [question.question for question in questions] == row()["questions"]


def test_an_instruction_reaches_the_answering_model_and_not_the_memory_system(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    one = row(metadata={**row()["metadata"], "source": "icl_banking77"})
    path = write_jsonl(tmp_path / "TTL.jsonl", one)
    with FakeProvider('{"answer": "label: 3", "cited": []}') as provider:
        made = evaluate(
            path, "BM25Memory", output_dir=tmp_path / "out", judge="deterministic", model=provider.spec(),
            store="memory://",
        )  # fmt: skip
        prompts = [request["messages"][-1]["content"] for request in provider.requests]
    assert made.exit_code == 0
    assert all('as "label: NUMBER"' in prompt for prompt in prompts)
    records = [json.loads(line) for line in (tmp_path / "out" / "qa_records.jsonl").read_text().splitlines()]
    assert [record["retrieval"]["query"] for record in records] == row()["questions"]
