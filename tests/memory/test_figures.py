"""Retrieval metrics, and accuracy by distance to the evidence, against numbers that were computed by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from karat.memory import (
    Capabilities,
    Evidence,
    MemoryPoint,
    Question,
    Retrieval,
    RetrievedMemory,
    Sample,
    Session,
    Turn,
    count_tokens,
)
from karat.testing import FakeProvider
from tests.memory.parts import Notes
from tests.memory.test_files import lines, run
from tests.memory.test_golden import scripted


def said(session: str, *turns: str) -> tuple[Turn, ...]:
    return tuple(Turn(turn_id=name, speaker="user", text=f"{name}.", session_id=session) for name in turns)


def asked(index: int, after: str, *evidence: str, **more: Any) -> Question:
    return Question(
        index=index,
        checkpoint_id="c",
        after_session=after,
        question=f"What is the answer to question {index}?",
        answer="Oslo",
        evidence=tuple(
            Evidence(evidence_id=name, text=f"{name}.", turn_ids=(name,) if name.startswith("T") else ())
            for name in evidence
        ),
        **more,
    )


class Ranked(Notes):
    """Returns the turns that are listed for a question, in that order."""

    name = "ranked"
    turns_of: ClassVar[Mapping[str, list[str]]] = {
        "0": ["T1", "T2", "T3", "T5"],
        "1": ["T6", "T1", "T3", "T4"],
        "2": ["T1", "T3"],
        "3": ["T1"],
    }

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        found = self.turns_of[query.removesuffix("?").split()[-1]]
        return Retrieval(
            items=tuple(RetrievedMemory(memory_id=name, text=name, turn_ids=(name,)) for name in found)
        )


class WithoutProvenance(Ranked):
    """Does not say which turns its memories come from."""

    name = "without_provenance"

    def capabilities(self) -> Capabilities:
        return Capabilities()


def ranking() -> Sample:
    return Sample(
        sample_id="s",
        uuid="u",
        sessions=(Session(session_id="S0", turns=said("S0", *(f"T{n}" for n in range(1, 7)))),),
        questions=(
            asked(0, "S0", "T2", "T5"),
            asked(1, "S0", "T2", "T5", "T6"),
            asked(2, "S0", "T4"),
            asked(3, "S0", "T1", answerable=False),
        ),
    )


def test_retrieval_metrics(tmp_path):
    made = run(tmp_path, Ranked, [ranking()], top_k=4)
    found = [each["eval"]["retrieval"] for each in lines(tmp_path / "qa_records.jsonl")]
    assert found[0] == {
        "recall_at_k": 1.0,  # both of two
        "mrr": 0.5,  # the first is second
        "ndcg": pytest.approx(0.650921, abs=1e-6),  # (0.630930 + 0.430677) / (1 + 0.630930)
    }
    assert found[1] == {
        "recall_at_k": pytest.approx(1 / 3),
        "mrr": 1.0,
        "ndcg": pytest.approx(0.469279, abs=1e-6),  # 1 / (1 + 0.630930 + 0.5)
    }
    assert found[2] == {"recall_at_k": 0.0, "mrr": 0.0, "ndcg": 0.0}
    assert found[3] == {"recall_at_k": None, "mrr": None, "ndcg": None}
    block = made.metrics["retrieval"]
    assert block["recall_at_k"] == pytest.approx(4 / 9)
    assert block["mrr"] == pytest.approx(0.5)
    assert block["ndcg"] == pytest.approx(0.373400, abs=1e-6)


def test_retrieval_metrics_do_not_apply_without_provenance(tmp_path):
    made = run(tmp_path, WithoutProvenance, [ranking()], top_k=4)
    assert {"recall_at_k", "mrr", "ndcg"} <= set(made.metrics["retrieval"]["undefined"])
    for record in lines(tmp_path / "qa_records.jsonl"):
        assert record["eval"]["retrieval"] == {"recall_at_k": None, "mrr": None, "ndcg": None}


class Answers(Notes):
    """Retrieves the right answer to the questions 0 and 2, and a wrong one to the others."""

    name = "answers"

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        city = "Oslo" if query.removesuffix("?").split()[-1] in ("0", "2") else "Rome"
        return Retrieval(items=(RetrievedMemory(memory_id="m", text=f"The answer is {city}."),))


def test_accuracy_by_session_distance_and_updates_since(tmp_path):
    def changed(name: str) -> MemoryPoint:
        return MemoryPoint(memory_id=name, text=f"{name} changed", is_update=True)

    several = Sample(
        sample_id="s",
        uuid="u",
        sessions=(
            Session(session_id="S0", turns=said("S0", "T1")),
            Session(session_id="S1", turns=said("S1", "T2"), updates=(changed("m1"),)),
            Session(session_id="S2", turns=said("S2", "T3"), updates=(changed("m2"), changed("m3"))),
            Session(session_id="S3", turns=said("S3", "T4")),
        ),
        questions=(
            asked(0, "S0", "T1"),
            asked(1, "S3", "T1"),
            asked(2, "S2", "T1", "T2"),  # the latest evidence counts
            asked(3, "S3", "m2"),  # a gold point that names no turn is of its session
            asked(4, "S3", "T1", answerable=False),
        ),
    )
    metrics = run(tmp_path, Answers, [several]).metrics
    placed = [
        (each["session_distance"], each["updates_since"]) for each in lines(tmp_path / "qa_records.jsonl")
    ]
    assert placed == [(0, 0), (3, 3), (1, 2), (1, 0), (None, None)]

    def shares(name: str) -> dict[str, tuple[float, int]]:
        return {key: (each["correct"], each["n"]) for key, each in metrics[f"accuracy_by_{name}"].items()}

    assert shares("session_distance") == {"0": (1.0, 1), "1": (0.5, 2), "3": (0.0, 1)}
    assert shares("updates_since") == {"0": (0.5, 2), "2": (1.0, 1), "3": (0.0, 1)}


def test_accuracy_by_type_and_difficulty_with_intervals_by_sample(tmp_path):
    kinds = [("FR", "easy"), ("FR", "hard"), ("TR", "easy"), ("TR", "hard")]  # 0 and 2 are answered
    samples = [
        Sample(
            sample_id=f"s{number}",
            uuid=f"u{number}",
            sessions=(Session(session_id="S0", turns=said("S0", "T1")),),
            questions=tuple(
                asked(n, "S0", "T1", type_abbrev=kind, difficulty=difficulty)
                for n, (kind, difficulty) in enumerate(kinds[: number + 2])
            ),
        )
        for number in range(3)
    ]
    made = run(tmp_path, Answers, samples)
    for name, expected in {
        "question_type": {"FR": (0.5, 6), "TR": (pytest.approx(2 / 3), 3)},
        "difficulty": {"easy": (1.0, 5), "hard": (0.0, 4)},
    }.items():
        found = made.metrics[f"accuracy_by_{name}"]
        assert {key: (each["correct"], each["n"]) for key, each in found.items()} == expected
    rates = [each for each in made.aggregation.estimates if each.evaluator == "answer" and not each.group]
    assert rates
    assert {each.metadata["clusters"] for each in rates} == {3}
    interval = made.metrics["intervals"]["question_answering.correct_ratio"]
    assert interval["n"] == 9
    assert 0 <= interval["low"] < 5 / 9 < interval["high"] <= 1


class Found(Notes):
    """Finds the turn of the evidence (T1) for the questions 0 and 1, and the answer for 0 and 2."""

    name = "found"

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        number = int(query.removesuffix("?").split()[-1])
        turn, city = ("T1" if number in (0, 1) else "T2"), ("Oslo" if number in (0, 2, 4) else "Rome")
        text = f"The answer is {city}."
        return Retrieval(items=(RetrievedMemory(memory_id="m", text=text, turn_ids=(turn,)),))


def test_use_of_evidence_and_accuracy_per_token(tmp_path):
    one = Sample(
        sample_id="s",
        uuid="u",
        sessions=(Session(session_id="S0", turns=said("S0", "T1", "T2")),),
        questions=(*(asked(n, "S0", "T1") for n in range(4)), asked(4, "S0")),
    )
    metrics = run(tmp_path, Found, [one]).metrics
    assert metrics["question_answering"]["correct_ratio"] == pytest.approx(3 / 5)
    used = metrics["use_of_evidence"]
    assert used["retrieved_but_not_used"] == pytest.approx(1 / 2)  # 1 of the questions 0 and 1
    assert used["answered_without_evidence"] == pytest.approx(1 / 2)  # 2 of 2 and 3; 4 has no evidence
    tokens = count_tokens("The answer is Oslo.")
    assert metrics["retrieval"]["context_tokens"] == tokens
    assert metrics["retrieval"]["accuracy_per_1000_context_tokens"] == pytest.approx(0.6 / tokens * 1000)


def test_agreement_of_judge_and_matcher_is_that_of_the_records(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    with FakeProvider(scripted) as server:
        metrics = run(tmp_path / "out", judge=server.spec()).metrics
    same: dict[str, list[bool]] = {}
    for record in [
        *lines(tmp_path / "out" / "session_records.jsonl"),
        *lines(tmp_path / "out" / "qa_records.jsonl"),
    ]:
        found = record["eval"]
        for key, of_judge in (
            ("answer", [found.get("answer_label")]),
            ("correctness", [each["label"] for each in found.get("correctness_records", [])]),
            ("interference", [each["label"] for each in found.get("interference_records", [])]),
        ):
            if key in found["matcher_labels"] and found["methods"][key] != "rule":
                pairs = zip(of_judge, found["matcher_labels"][key], strict=True)
                same.setdefault(key, []).extend(one == other for one, other in pairs)
    assert set(same) == {"answer", "correctness", "interference"}
    for key, values in same.items():
        stated = metrics["agreement_with_matcher"][key]
        assert (stated["agree"], stated["n"]) == (pytest.approx(sum(values) / len(values)), len(values))


def records_of(folder: Path, system: Any, top_k: int) -> list[tuple[int, float | None, bool, int]]:
    """What each question was answered from: stored, share retrieved, bypassed, tokens of the answer."""
    run(folder, system, top_k=top_k)
    return [
        (each["num_stored"], each["share_of_store"], each["retrieval_bypassed"], each["answer_tokens"])
        for each in lines(folder / "qa_records.jsonl")[:2]
    ]


def test_a_retrieval_that_finds_everything_is_bypassed(tmp_path):
    one, two, three = (records_of(tmp_path / str(k), Notes, k) for k in (1, 2, 5))
    assert [each[:3] for each in one] == [(2, 0.5, False), (5, 0.2, False)]
    assert [each[:3] for each in two] == [(2, 1.0, True), (5, 0.4, False)]
    assert [each[:3] for each in three] == [(2, 1.0, True), (5, 1.0, True)]
    texts = [each["generated_answer"] for each in lines(tmp_path / "5" / "qa_records.jsonl")[:2]]
    assert [each[3] for each in three] == [count_tokens(text) for text in texts]
    nothing = records_of(tmp_path / "none", "no_memory", 5)
    assert [each[:3] for each in nothing] == [(0, None, False), (0, None, False)]
    metrics = json.loads((tmp_path / "2" / "aggregate_metrics.json").read_text())["retrieval"]
    assert (metrics["retrieval_bypassed"], metrics["questions"]) == (2, 6)
    assert metrics["share_of_store"] == pytest.approx((1.0 + 0.4 + 0.4) / 3)
