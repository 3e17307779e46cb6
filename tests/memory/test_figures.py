"""Retrieval metrics, and accuracy by distance to the evidence, against numbers that were computed by hand."""

from __future__ import annotations

from collections.abc import Mapping
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
)
from tests.memory.parts import Notes
from tests.memory.test_files import lines, run


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
