"""The formulas of `aggregate_metrics.json`, on hand-written pipeline files and numbers that were computed by hand.

The samples differ in size, so that means over sessions, means over samples and pooled rates differ. The scripted judge
takes the label of an item from its text.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import karat
from karat.memory._dimensions import BY_KEY
from karat.memory._evaluate import _percentile
from karat.testing import FakeProvider
from tests.memory.test_judging import shown_parts


def judge(body: dict[str, Any]) -> str:
    """Give each item the label that its text has between angle brackets and that is allowed."""
    wanted = body["response_format"]["json_schema"]["schema"]["properties"]["verdicts"]["items"]["properties"]
    shown = re.findall(r"^(\d+)\. (.*)$", body["messages"][-1]["content"], re.MULTILINE)
    verdicts = []
    for number, text in shown:
        [label] = [label for label in wanted["label"]["enum"] if f"<{label}>" in text]
        verdicts.append({"analysis": "", "id": int(number), "label": label})
    return json.dumps({"analysis": "", "verdicts": verdicts})


def session(sample: str, name: str, delta: str = "", **gold: list[str]) -> dict[str, Any]:
    """A line of `pipeline_sessions.jsonl`; `delta` lists operations and labels such as `add:correct`."""
    points = {
        kind: [{"memory_id": f"{name}-{kind}-{n}", "memory_content": text} for n, text in enumerate(texts)]
        for kind, texts in gold.items()
    }
    changes = [each.split(":") for each in delta.split()]
    return {
        "sample_id": sample,
        "sample_uuid": f"uuid-{sample}",
        "session_id": name,
        "memory_snapshot": [{"memory_id": "1", "text": "stored", "status": "active", "source": "x"}],
        "memory_delta": [
            {
                "session_id": name,
                "op": op,
                "text": f"memory {n} <{label}>",
                "linked_previous": [],
                "metadata": {},
            }
            for n, (op, label) in enumerate(changes)
        ],
        "gold_state": {
            "session_id": name,
            "cumulative_gold_memories": [],
            **{
                f"session_{kind}_memories": points.get(kind, []) for kind in ("new", "update", "interference")
            },
        },
        "dialogue": [{"turn_id": name, "speaker": "user", "text": "hello", "time": None}],
    }


def question(sample: str, answer: str | None, *evidence: str, cited: bool = True) -> dict[str, Any]:
    """A line of `pipeline_qa.jsonl`; the answer and the evidence are labels."""
    return {
        "sample_id": sample,
        "sample_uuid": f"uuid-{sample}",
        "checkpoint_id": "c",
        "question": "What is it?",
        "gold_answer": "it",
        "gold_evidence_memory_ids": [str(n) for n in range(len(evidence))],
        "gold_evidence_contents": [f"evidence {n} <{label}>" for n, label in enumerate(evidence)],
        "question_type": "factual_recall",
        "question_type_abbrev": "FR",
        "difficulty": "easy",
        "retrieval": {"query": "What is it?", "top_k": 5, "items": [], "raw_trace": {}},
        "generated_answer": None if answer is None else f"it <{answer}>",
        "cited_memories": ["stored"] if cited and answer is not None else [],
    }


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))


def judge_files(folder: Path) -> dict[str, Any]:
    with FakeProvider(judge) as server:
        made = karat.memory.evaluate(
            None, "x", output_dir=folder, eval_only=True, judge=server.spec(), store="memory://"
        )
    return made.metrics


@pytest.fixture
def judged(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    folder = tmp_path / "out"
    folder.mkdir()
    sessions = [
        session(
            "a",
            "S0",
            "add:correct add:correct update:hallucination add:irrelevant archive:correct",
            new=["p1 <covered>", "p2 <missing>"],
            update=["u1 <covered> <updated>"],
        ),
        session("b", "S0", "update:hallucination", new=["p3 <covered>"]),
        session(
            "b",
            "S1",
            "add:correct add:irrelevant",
            update=["u2 <missing> <both>", "u3 <missing> <outdated>"],
            interference=["i1 <rejected>", "i2 <memorized>"],
        ),
        session("b", "S2", interference=["i3 <rejected>"]),
        session("b", "S3", "archive:correct", new=["p4 <covered>"]),
    ]
    questions = [
        question("a", "Correct", "covered", "missing"),
        question("b", "Hallucination", "covered"),
        question("b", "Omission", "missing", "missing", "missing"),
        question("b", None, "covered"),
        question("b", "Correct"),
        question("b", "Correct", "covered", cited=False),
    ]
    write(folder / "pipeline_sessions.jsonl", sessions)
    write(folder / "pipeline_qa.jsonl", questions)
    judge_files(folder)
    return folder


def test_aggregate_metrics(judged):
    metrics = json.loads((judged / "aggregate_metrics.json").read_text())
    assert metrics["memory_recall"] == {
        "avg_recall": pytest.approx(5 / 12),  # (2/3 + 1 + 0 + 0) / 4
        "avg_update_recall": 0.5,
        "num_sessions_with_recall": 4,
        "num_sessions_with_update": 2,
        "total_covered": 3,
        "total_gold": 7,
        "num_judge_errors": 0,
        "applicable": True,
    }
    assert metrics["memory_correctness"] == {
        "avg_correctness": pytest.approx(1 / 3),  # (2/4 + 0/1 + 1/2) / 3
        "avg_hallucination": pytest.approx(5 / 12),  # (1/4 + 1/1 + 0/2) / 3
        "avg_irrelevant": pytest.approx(0.25),  # (1/4 + 0/1 + 1/2) / 3
        "num_sessions": 3,
        "total_memories": 7,
        "total_correct": 3,
        "total_hallucination": 2,
        "total_irrelevant": 2,
        "num_judge_errors": 0,
        "applicable": True,
    }
    assert metrics["update_handling"] == {
        "score": pytest.approx(0.5),  # (1 + 0.5 + 0) / 3
        "num_updated": 1,
        "num_both": 1,
        "num_outdated": 1,
        "num_total": 3,
        "num_judge_errors": 0,
        "applicable": True,
    }
    assert metrics["interference_rejection"] == {
        "score": pytest.approx(2 / 3),
        "num_rejected": 2,
        "num_memorized": 1,
        "num_total": 3,
        "num_judge_errors": 0,
        "applicable": True,
    }
    assert metrics["question_answering"] == {
        "correct_ratio": pytest.approx(0.6),
        "hallucination_ratio": pytest.approx(0.2),
        "omission_ratio": pytest.approx(0.2),
        "num_total": 6,
        "num_valid": 5,
        "num_judge_errors": 0,
        "applicable": True,
    }
    assert metrics["evidence_coverage"] == {
        "hit_rate": pytest.approx(2 / 7),
        "num_covered": 2,
        "num_total": 7,
        "num_judge_errors": 0,
        "applicable": True,
    }


def test_the_rate_of_updates_follows_the_formula_and_not_the_printed_figure(tmp_path, monkeypatch):
    """The documentation of the format prints 0.65 beside counts that give 0.718."""
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    counts = {"updated": 52, "both": 18, "outdated": 15}
    points = [f"u{n} <{label}> <covered>" for label, count in counts.items() for n in range(count)]
    write(tmp_path / "pipeline_sessions.jsonl", [session("a", "S0", update=points)])
    write(tmp_path / "pipeline_qa.jsonl", [question("a", None)])
    block = judge_files(tmp_path)["update_handling"]
    assert block["score"] == pytest.approx((52 + 0.5 * 18) / 85)
    assert [block[f"num_{name}"] for name in (*counts, "total")] == [52, 18, 15, 85]


def test_each_rate_declares_its_direction(judged):
    metrics = json.loads((judged / "aggregate_metrics.json").read_text())
    lower = {name for name, direction in metrics["directions"].items() if direction == "lower"}
    assert lower == {
        "memory_correctness.avg_hallucination", "memory_correctness.avg_irrelevant",
        "question_answering.hallucination_ratio", "question_answering.omission_ratio",
    }  # fmt: skip
    higher = metrics["directions"].keys() - lower
    assert higher == {
        "memory_recall.avg_recall", "memory_recall.avg_update_recall", "memory_correctness.avg_correctness",
        "update_handling.score", "interference_rejection.score", "question_answering.correct_ratio",
        "evidence_coverage.hit_rate",
    }  # fmt: skip


def test_rates_of_records(judged):
    lines = [json.loads(line) for line in (judged / "session_records.jsonl").read_text().splitlines()]
    found = [each["eval"] for each in lines]
    names = ("recall", "update_recall", "correctness_rate", "update_score", "interference_score")
    assert [[each[name] for name in names] for each in found] == [
        [pytest.approx(2 / 3), 1.0, 0.5, 1.0, None],
        [1.0, None, 0.0, None, None],
        [0.0, 0.0, 0.5, 0.25, 0.5],
        [None, None, None, None, 1.0],
        [0.0, None, None, None, None],  # gold, and a delta without added or updated memories
    ]
    assert [each["id"] for each in found[0]["correctness_records"]] == [1, 2, 3, 4]
    asked = [json.loads(line)["eval"] for line in (judged / "qa_records.jsonl").read_text().splitlines()]
    assert [each["answer_label"] for each in asked] == [
        "Correct", "Hallucination", "Omission", None, "Correct", "Correct",
    ]  # fmt: skip
    assert [each["evidence_hit_rate"] for each in asked] == [0.5, 1.0, 0.0, None, None, 0.0]


def test_each_dimension_is_judged_on_its_own_material(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    one = session(
        "a",
        "S0",
        "add:correct archive:correct",
        new=["p <covered>"],
        update=["u <covered> <updated>"],
        interference=["i <rejected>"],
    )
    archived = {"memory_id": "2", "text": "given up", "status": "archived", "source": "x"}
    one["memory_snapshot"].append(archived)
    asked = [
        question("a", "Correct", "covered"),
        {**question("a", "Hallucination"), "gold_answer": "not said", "answerable": False},
    ]
    write(tmp_path / "pipeline_sessions.jsonl", [one])
    write(tmp_path / "pipeline_qa.jsonl", asked)
    with FakeProvider(judge) as server:
        karat.memory.evaluate(
            None, "x", output_dir=tmp_path, eval_only=True, judge=server.spec(), store="memory://"
        )
        requests = server.requests
    shown = [shown_parts(each) for each in requests]
    by_items = {each["items"][0].removeprefix("1. "): each for each in shown if len(each["items"]) == 1}
    [recall] = [each for each in shown if len(each["items"]) == 2]
    delta, stored = ["- memory 0 <correct>"], ["- stored"]
    assert recall["memories"] == delta
    assert by_items["memory 0 <correct>"]["dialogue"] == ["user: hello"]
    assert by_items["u <covered> <updated>"]["memories"] == stored
    assert by_items["i <rejected>"]["memories"] == stored
    assert by_items["evidence 0 <covered>"]["memories"] == stored  # what the answer cites
    assert by_items["it <Correct>"]["gold"] == ["- it"]
    assert "gold" not in by_items["it <Hallucination>"]  # an unanswerable question has a rubric of its own
    rubrics = {
        each["messages"][0]["content"]
        for each, parts in zip(requests, shown, strict=True)
        if parts["items"][0].startswith("1. it <")
    }
    assert len(rubrics) == 2
    assert len(shown) == 7


def test_abstention(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    write(tmp_path / "pipeline_sessions.jsonl", [session("a", "S0")])
    answers = [
        ("I am not sure, but it is Oslo <Correct>", True),  # right, so no refusal
        ("I do not know <Omission>", True),
        ("Rome <Hallucination>", True),
        ("Oslo <Correct>", True),
        ("I do not know <Correct>", False),
        ("Rome <Hallucination>", False),
    ]
    records = [
        {**question("a", "Correct"), "generated_answer": answer, "answerable": answerable}
        for answer, answerable in answers
    ]
    write(tmp_path / "pipeline_qa.jsonl", records)
    metrics = judge_files(tmp_path)
    assert metrics["question_answering"]["correct_ratio"] == pytest.approx(3 / 6)
    assert metrics["abstention"] == {
        "accuracy_answerable": pytest.approx(2 / 4),
        "correct_refusal_rate": pytest.approx(1 / 2),
        "false_refusal_rate": pytest.approx(1 / 4),
        "undefined": [],
        "applicable": True,
        "num_unanswerable": 2,
    }


@pytest.mark.parametrize(
    ("values", "median", "high"),
    [
        ([], None, None),
        ([3.0], 3.0, 3.0),
        ([4.0, 1.0, 2.0, 3.0], 2.5, 3.85),
        ([float(n) for n in range(101)], 50.0, 95.0),
    ],
)
def test_percentiles(values, median, high):
    assert _percentile(values, 50) == median
    assert _percentile(values, 95) == (None if high is None else pytest.approx(high))


@pytest.mark.parametrize(
    ("key", "labels", "merged"),
    [
        ("recall", ["missing", "covered", "missing"], "covered"),
        ("recall", ["missing", "missing"], "missing"),
        ("evidence", ["covered", "missing"], "covered"),
        ("correctness", ["hallucination", "correct"], "correct"),
        ("correctness", ["irrelevant", "hallucination"], "irrelevant"),
        ("correctness", ["hallucination", "hallucination"], "hallucination"),
        ("interference", ["rejected", "memorized"], "memorized"),
        ("interference", ["rejected", "rejected"], "rejected"),
        ("update", ["updated", "neither"], "updated"),
        ("update", ["outdated", "neither"], "outdated"),
        ("update", ["updated", "outdated"], "both"),
        ("update", ["neither", "both"], "both"),
        ("update", ["neither", "neither"], "neither"),
    ],
)
def test_labels_given_with_parts_of_the_material_are_united(key, labels, merged):
    dimension = BY_KEY[key]
    assert dimension.merged(labels) == dimension.merged(labels[::-1]) == merged
    assert dimension.merged([merged]) == merged
