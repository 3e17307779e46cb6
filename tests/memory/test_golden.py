"""The shipped set with scripted judge replies gives exactly the expected files; every number is computed a second time.

`python -m tests.memory.test_golden` writes the expectation again, after a change of the files that is meant.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import karat
from karat.testing import FakeProvider

GOLDEN = Path(__file__).parent / "golden.json"
LINES = ("pipeline_sessions.jsonl", "pipeline_qa.jsonl", "session_records.jsonl", "qa_records.jsonl")


def chosen(text: str, labels: list[str]) -> str:
    """The label that the scripted judge gives a text: it depends on the text alone."""
    return labels[hashlib.sha256(text.strip().encode()).digest()[0] % len(labels)]


def scripted(body: dict[str, Any]) -> str:
    """A judge that reads the numbered items and labels each by its text."""
    shown = body["messages"][-1]["content"]
    listed = re.search(r"\[(\w+) begin items\]\n(.*)\n\[\1 end items\]", shown, re.DOTALL)
    assert listed is not None
    wanted = body["response_format"]["json_schema"]["schema"]["properties"]["verdicts"]["items"]["properties"]
    numbers, labels = wanted["id"]["enum"], wanted["label"]["enum"]
    marks = "|".join(rf"^{number}\. " for number in numbers)
    texts = re.split(marks, listed[2], flags=re.MULTILINE)[1:]
    assert len(texts) == len(numbers)
    verdicts = [
        {"analysis": f"scripted {number}", "id": number, "label": chosen(text, labels)}
        for number, text in zip(numbers, texts, strict=True)
    ]
    return json.dumps({"analysis": "scripted", "verdicts": verdicts})


def evaluated(folder: Path) -> dict[str, Any]:
    """The five files of FUMemory on the shipped set, as digests and metrics."""
    from karat.memory import _evaluators as evaluators
    from karat.memory._matching import Matcher

    class Words(Matcher):
        """A matcher that is the same whether embeddings are installed or not."""

        def __init__(self, embeddings: bool | None = None) -> None:
            super().__init__(False)

    before, evaluators.Matcher = evaluators.Matcher, Words  # type: ignore[misc]
    try:
        with FakeProvider(scripted, model="judge") as server:
            karat.memory.evaluate(
                "demo",
                "FUMemory",
                output_dir=folder,
                judge={"model": "judge", "base_url": server.url},
                model="extractive",
                store="memory://",
            )
    finally:
        evaluators.Matcher = before  # type: ignore[misc]
    metrics = json.loads(unaddressed(folder / "aggregate_metrics.json"))
    digests = {name: hashlib.sha256(unaddressed(folder / name)).hexdigest() for name in LINES}
    return {"digests": digests, "metrics": without_bounds(metrics)}


def without_bounds(value: Any) -> Any:
    """The metrics without the bounds of intervals, which belong to the statistics and are tested there."""
    if not isinstance(value, dict):
        return value
    assert value.get("low") is None or value["low"] <= value["high"]
    return {
        name: without_bounds(each) for name, each in value.items() if name not in ("low", "high", "method")
    }


def unaddressed(path: Path) -> bytes:
    """A file without the port of the scripted judge, which differs each time."""
    return re.sub(rb"judge@http://127\.0\.0\.1:\d+/v1", b"judge", path.read_bytes())


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache" / "replies.db"))
    return evaluated(tmp_path / "out"), tmp_path / "out"


def test_the_files_are_the_expected_ones_and_every_number_is_recomputed(made):
    found, folder = made
    expected = json.loads(GOLDEN.read_text())
    assert found == expected, "python -m tests.memory.test_golden writes the expectation again"
    sessions, questions = records(folder / "session_records.jsonl"), records(folder / "qa_records.jsonl")
    metrics = found["metrics"]
    check_sessions(sessions, metrics)
    check_questions(questions, metrics)


def check_sessions(sessions: list[dict[str, Any]], metrics: dict[str, Any]) -> None:
    recalls, update_recalls, covered_all, gold_all = [], [], 0, 0
    correct, wrong, vague, totals = [], [], [], Counter[str]()
    updates, interference = Counter[str](), Counter[str]()
    for each in sessions:
        gold, judged = each["gold_state"], each["eval"]
        new, update = gold["session_new_memories"], gold["session_update_memories"]
        delta = [change for change in each["memory_delta"] if change["op"] in ("add", "update")]
        texts = [point["memory_content"] for point in new + update]
        hits = [bool(delta) and chosen(text, ["covered", "missing"]) == "covered" for text in texts]
        assert judged["covered_count"] == sum(hits)
        assert judged["num_gold"] == len(texts)
        if texts:
            recalls.append(sum(hits) / len(texts))
            covered_all, gold_all = covered_all + sum(hits), gold_all + len(texts)
            assert judged["recall"] == recalls[-1]
        else:
            assert judged["recall"] is None
        if update:
            update_recalls.append(sum(hits[len(new) :]) / len(update))
            assert judged["update_recall"] == update_recalls[-1]
        labels = [chosen(change["text"], ["correct", "hallucination", "irrelevant"]) for change in delta]
        assert [one["label"] for one in judged["correctness_records"]] == labels
        assert [one["id"] for one in judged["correctness_records"]] == list(range(1, len(labels) + 1))
        if labels:
            correct.append(labels.count("correct") / len(labels))
            wrong.append(labels.count("hallucination") / len(labels))
            vague.append(labels.count("irrelevant") / len(labels))
            totals.update(labels)
            assert judged["correctness_rate"] == correct[-1]
        for point in update:
            before = "; ".join(point["original_memories"])
            shown = point["memory_content"] + (f" (instead of: {before})" if before else "")
            label = chosen(shown, ["updated", "both", "outdated", "neither"])
            updates["outdated" if label == "neither" else label] += 1
        for point in gold["session_interference_memories"]:
            interference[chosen(point["memory_content"], ["rejected", "memorized"])] += 1
    assert metrics["memory_recall"] == {
        "avg_recall": pytest.approx(sum(recalls) / len(recalls)),
        "avg_update_recall": pytest.approx(sum(update_recalls) / len(update_recalls)),
        "num_sessions_with_recall": len(recalls),
        "num_sessions_with_update": len(update_recalls),
        "total_covered": covered_all,
        "total_gold": gold_all,
        "num_judge_errors": 0,
        "applicable": True,
    }
    assert metrics["memory_correctness"] == {
        "avg_correctness": pytest.approx(sum(correct) / len(correct)),
        "avg_hallucination": pytest.approx(sum(wrong) / len(wrong)),
        "avg_irrelevant": pytest.approx(sum(vague) / len(vague)),
        "num_sessions": len(correct),
        "total_memories": totals.total(),
        "total_correct": totals["correct"],
        "total_hallucination": totals["hallucination"],
        "total_irrelevant": totals["irrelevant"],
        "num_judge_errors": 0,
        "applicable": True,
    }
    assert metrics["update_handling"] == {
        "score": pytest.approx((updates["updated"] + 0.5 * updates["both"]) / updates.total()),
        "num_updated": updates["updated"],
        "num_both": updates["both"],
        "num_outdated": updates["outdated"],
        "num_total": updates.total(),
        "num_judge_errors": 0,
        "applicable": True,
    }
    assert metrics["interference_rejection"] == {
        "score": pytest.approx(interference["rejected"] / interference.total()),
        "num_rejected": interference["rejected"],
        "num_memorized": interference["memorized"],
        "num_total": interference.total(),
        "num_judge_errors": 0,
        "applicable": True,
    }


def check_questions(questions: list[dict[str, Any]], metrics: dict[str, Any]) -> None:
    labels, covered, total = Counter[str](), 0, 0
    for each in questions:
        label = chosen(each["generated_answer"], ["Correct", "Hallucination", "Omission"])
        assert each["eval"]["answer_label"] == label
        labels[label] += 1
        evidence = each["gold_evidence_contents"]
        hits = [
            bool(each["cited_memories"]) and chosen(e, ["covered", "missing"]) == "covered" for e in evidence
        ]
        assert each["eval"]["evidence_hit_rate"] == (sum(hits) / len(hits) if hits else None)
        assert each["eval"]["num_evidence"] == len(evidence)
        covered, total = covered + sum(hits), total + len(hits)
    assert metrics["question_answering"] == {
        "correct_ratio": pytest.approx(labels["Correct"] / labels.total()),
        "hallucination_ratio": pytest.approx(labels["Hallucination"] / labels.total()),
        "omission_ratio": pytest.approx(labels["Omission"] / labels.total()),
        "num_total": labels.total(),
        "num_valid": labels.total(),
        "num_judge_errors": 0,
        "applicable": True,
    }
    assert metrics["evidence_coverage"] == {
        "hit_rate": pytest.approx(covered / total),
        "num_covered": covered,
        "num_total": total,
        "num_judge_errors": 0,
        "applicable": True,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        GOLDEN.write_text(json.dumps(evaluated(Path(place) / "out"), indent=2) + "\n")
    sys.stdout.write(f"wrote {GOLDEN}\n")
