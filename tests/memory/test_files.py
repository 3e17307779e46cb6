"""The five files: fields, formulas, null rules, and the analysis that the documentation of the format shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import karat
from karat.memory import Capabilities, MemoryEvaluation
from karat.memory._evaluators import prompt_hashes
from karat.memory._pipeline import prompt_identity
from karat.memory.datasets import read_memory_dataset
from karat.memory.systems._search import BM25Memory
from karat.testing import FakeProvider
from tests.memory.parts import Notes, labels_for, sample

FIVE = [
    "aggregate_metrics.json",
    "pipeline_qa.jsonl",
    "pipeline_sessions.jsonl",
    "qa_records.jsonl",
    "session_records.jsonl",
]
SNIPPET = """
import json

# 读取汇总
with open("results/FUMemory/aggregate_metrics.json") as f:
    agg = json.load(f)
print(f"Recall: {agg['memory_recall']['avg_recall']:.2%}")
print(f"QA Correct: {agg['question_answering']['correct_ratio']:.2%}")

# 按 QA type 分析正确率
qa_by_type = {}
with open("results/FUMemory/qa_records.jsonl") as f:
    for line in f:
        rec = json.loads(line)
        qt = rec["question_type_abbrev"]
        label = rec["eval"]["answer_label"]
        qa_by_type.setdefault(qt, []).append(label)

for qt, labels in sorted(qa_by_type.items()):
    correct = sum(1 for l in labels if l == "Correct")
    print(f"  {qt}: {correct}/{len(labels)} = {correct/len(labels):.0%}")
"""


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert "\n\n" not in text
    return [json.loads(line) for line in text.splitlines()]


def run(folder: Path, system: Any = Notes, samples: Any = None, **options: Any) -> MemoryEvaluation:
    options = {"judge": "deterministic", "model": "extractive", "store": "memory://", **options}
    return karat.memory.evaluate(
        samples or [sample(), sample("bea", "Rome")], system, output_dir=folder, **options
    )


def test_the_directory_has_the_five_files_and_a_manifest(tmp_path):
    run(tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [".karat", *FIVE]
    assert [p.name for p in (tmp_path / "out" / ".karat").iterdir()] == ["manifest.json"]
    manifest = json.loads((tmp_path / "out" / ".karat" / "manifest.json").read_text())
    assert {"baseline", "version", "dataset", "models", "prompts", "top_k", "seed"} <= set(manifest)


def test_the_manifest_says_what_the_files_were_made_of(tmp_path):
    made = run(tmp_path, "BM25Memory", "demo", max_samples=1, top_k=3, context_tokens=200, seed=7)
    manifest = json.loads((tmp_path / ".karat" / "manifest.json").read_text())
    assert manifest["dataset"]["hash"] == read_memory_dataset("demo").hash
    assert (manifest["dataset"]["id"], manifest["dataset"]["samples"]) == (made.run.dataset.id, 1)
    assert (manifest["baseline"], manifest["version"]) == ("BM25Memory", BM25Memory.version)
    assert manifest["system"] == BM25Memory().configuration()
    assert manifest["models"]["answer"] == manifest["shared_settings"]["answer_model"]
    assert manifest["prompts"] == {"answer": prompt_identity(), "judge": prompt_hashes()}
    assert (manifest["top_k"], manifest["context_tokens"], manifest["seed"]) == (3, 200, 7)
    assert (manifest["run"], manifest["judge"]["judge"]) == (made.run.id, "deterministic")


def test_records_have_the_fields_of_the_format(tmp_path):
    run(tmp_path)
    session, question = lines(tmp_path / "session_records.jsonl")[0], lines(tmp_path / "qa_records.jsonl")[0]
    assert list(session)[:6] == [
        "sample_id", "sample_uuid", "session_id", "memory_snapshot", "memory_delta", "gold_state",
    ]  # fmt: skip
    assert set(session["gold_state"]) == {
        "session_id", "cumulative_gold_memories", "session_new_memories", "session_update_memories",
        "session_interference_memories",
    }  # fmt: skip
    assert set(session["memory_snapshot"][0]) >= {
        "memory_id", "text", "session_id", "status", "source", "raw_backend_id", "raw_backend_type", "metadata",
    }  # fmt: skip
    assert set(session["memory_delta"][0]) == {
        "session_id", "op", "text", "linked_previous", "raw_backend_id", "metadata",
    }  # fmt: skip
    assert set(session["dialogue"][0]) == {"turn_id", "speaker", "text", "time"}
    assert set(session["eval"]) >= {
        "session_id", "recall", "covered_count", "num_gold", "update_recall", "update_covered_count", "update_total",
        "recall_reasoning", "correctness_rate", "num_memories", "num_correct", "num_hallucination", "num_irrelevant",
        "correctness_reasoning", "correctness_records", "update_score", "update_num_updated", "update_num_both",
        "update_num_outdated", "update_total_items", "update_records", "interference_score",
        "interference_num_rejected", "interference_num_memorized", "interference_total_items", "interference_records",
    }  # fmt: skip
    assert set(question) >= {
        "sample_id", "sample_uuid", "checkpoint_id", "question", "gold_answer", "gold_evidence_memory_ids",
        "gold_evidence_contents", "question_type", "question_type_abbrev", "difficulty", "retrieval",
        "generated_answer", "cited_memories", "eval",
    }  # fmt: skip
    assert set(question["retrieval"]) == {"query", "top_k", "items", "raw_trace"}
    assert question["retrieval"]["items"][0]["rank"] == 0
    assert set(question["eval"]) >= {
        "answer_label", "answer_reasoning", "answer_is_valid", "evidence_hit_rate", "evidence_covered_count",
        "num_evidence", "evidence_reasoning", "num_cited_memories",
    }  # fmt: skip
    assert session["eval"]["correctness_records"][0]["id"] == 1
    assert set(question["retrieval"]["items"][0]) >= {"rank", "memory_id", "text", "score", "raw_backend_id"}
    assert question["retrieval"]["raw_trace"]["baseline"] == "notes"
    assert (
        session["memory_delta"][0]["metadata"]["baseline"]
        == session["memory_snapshot"][0]["source"]
        == "notes"
    )
    judged = [each["eval"] for each in lines(tmp_path / "session_records.jsonl")[:3]]
    assert set(judged[0]["correctness_records"][0]) >= {"id", "label"}
    assert set(judged[1]["update_records"][0]) >= {"memory_id", "label", "reasoning"}
    assert judged[1]["update_records"][0]["memory_id"] == "m3"
    assert set(judged[2]["interference_records"][0]) >= {"memory_id", "label"}
    assert judged[2]["interference_records"][0]["memory_id"] == "m4"


def test_pipeline_files_are_the_records_without_eval(tmp_path):
    run(tmp_path)
    for first, second in (("pipeline_sessions", "session_records"), ("pipeline_qa", "qa_records")):
        judged = lines(tmp_path / f"{second}.jsonl")
        assert [{k: v for k, v in each.items() if k != "eval"} for each in judged] == lines(
            tmp_path / f"{first}.jsonl"
        )


@pytest.mark.parametrize("judged", [True, False])
def test_every_verdict_says_its_method(tmp_path, monkeypatch, judged):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    with FakeProvider(labels_for) as server:
        run(tmp_path / "out", judge=server.spec() if judged else "deterministic")
    rates = {
        "recall": "recall", "correctness": "correctness_rate", "update": "update_score",
        "interference": "interference_score", "answer": "answer_label", "evidence": "evidence_hit_rate",
    }  # fmt: skip
    seen = set()
    for name in ("session_records.jsonl", "qa_records.jsonl"):
        for each in (record["eval"] for record in lines(tmp_path / "out" / name)):
            assert each["methods"].keys() == {
                key for key, rate in rates.items() if each.get(rate) is not None
            }
            assert all(
                how.startswith("judge: " if judged else "matcher: ") for how in each["methods"].values()
            )
            seen |= each["methods"].keys()
    assert seen == rates.keys()


def test_null_rules(tmp_path):
    run(tmp_path)
    new, update, interference = lines(tmp_path / "session_records.jsonl")[:3]
    assert (new["eval"]["update_recall"], new["eval"]["update_score"], new["eval"]["interference_score"]) == (
        None, None, None,
    )  # fmt: skip
    assert update["eval"]["update_recall"] == 1.0
    assert (interference["eval"]["recall"], interference["eval"]["num_gold"]) == (None, 0)
    assert interference["eval"]["interference_score"] == 0.0
    gold = interference["gold_state"]["cumulative_gold_memories"]
    assert [each["memory_id"] for each in gold] == ["m1", "m2", "m3"]
    unanswerable = lines(tmp_path / "qa_records.jsonl")[2]
    assert unanswerable["eval"]["num_evidence"] == 0
    assert unanswerable["eval"]["evidence_hit_rate"] is None
    assert unanswerable["eval"]["answer_label"] == "Hallucination"


def test_without_a_model_nothing_is_answered(tmp_path, monkeypatch):
    for name in ("KARAT_MODEL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    made = run(tmp_path, model=None)
    for record in lines(tmp_path / "qa_records.jsonl"):
        assert record["generated_answer"] is None
        assert record["cited_memories"] == []
        assert record["eval"]["answer_label"] is None
        assert record["eval"]["answer_is_valid"] is False
    block = made.metrics["question_answering"]
    assert block["correct_ratio"] == 0.0
    assert block["applicable"] is False
    assert (block["num_total"], block["num_valid"]) == (6, 0)
    assert made.metrics["evidence_coverage"]["applicable"] is False
    assert any("no model" in notice for notice in made.notices)


class Anonymous(Notes):
    """Does not say which turns its memories come from."""

    name = "anonymous"

    def capabilities(self) -> Capabilities:
        return Capabilities()


@pytest.mark.parametrize("model", ["extractive", None])
def test_every_rate_is_a_number_and_undefined_ones_are_named(tmp_path, monkeypatch, model):
    for name in ("KARAT_MODEL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    made = run(tmp_path, Anonymous, model=model)
    metrics = json.loads((tmp_path / "aggregate_metrics.json").read_text())
    blocks = [block for block in metrics.values() if isinstance(block, dict) and "applicable" in block]
    assert len(blocks) == 9
    for block in blocks:
        rates = {name: value for name, value in block.items() if name not in ("applicable", "undefined")}
        assert all(isinstance(value, (int, float)) for value in rates.values())
        assert all(block[name] == 0.0 for name in block.get("undefined", ()))
    unknown = metrics["abstention"]["undefined"]
    assert unknown == ([] if model else ["accuracy_answerable", "correct_refusal_rate", "false_refusal_rate"])
    assert metrics["abstention"]["applicable"] is bool(model)
    assert set(metrics["retrieval"]["undefined"]) >= {"recall_at_k", "mrr", "ndcg"}  # it has no provenance
    assert re.search(r"MRR +n/a", made.report())


def test_the_analysis_of_the_format_runs_unchanged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for model in ("extractive", None):
        run(Path("results/FUMemory") if model else tmp_path / "other", model=model)
        if not model:
            (tmp_path / "results").rename(tmp_path / "before")
            (tmp_path / "results").mkdir()
            (tmp_path / "other").rename(tmp_path / "results" / "FUMemory")
        exec(SNIPPET, {})
        printed = capsys.readouterr().out
        assert "Recall: 100.00%" in printed
        assert "FR: " in printed


def test_rates_are_recomputed_from_the_records(tmp_path):
    metrics = run(tmp_path).metrics
    sessions = [each["eval"] for each in lines(tmp_path / "session_records.jsonl")]
    questions = [each["eval"] for each in lines(tmp_path / "qa_records.jsonl")]

    def mean(values):
        values = [value for value in values if value is not None]
        return sum(values) / len(values)

    assert metrics["memory_recall"]["avg_recall"] == pytest.approx(mean(s["recall"] for s in sessions))
    assert metrics["memory_recall"]["total_gold"] == sum(s["num_gold"] for s in sessions)
    correct = metrics["memory_correctness"]
    assert correct["avg_correctness"] == pytest.approx(mean(s["correctness_rate"] for s in sessions))
    assert correct["avg_irrelevant"] == pytest.approx(
        mean(s["num_irrelevant"] / s["num_memories"] for s in sessions)
    )
    assert correct["num_sessions"] == len(sessions)
    update = metrics["update_handling"]
    assert update["score"] == (update["num_updated"] + 0.5 * update["num_both"]) / update["num_total"]
    answers = metrics["question_answering"]
    assert answers["correct_ratio"] == sum(q["answer_label"] == "Correct" for q in questions) / len(questions)
    evidence = metrics["evidence_coverage"]
    assert evidence["num_total"] == sum(q["num_evidence"] for q in questions)
    assert evidence["hit_rate"] == evidence["num_covered"] / evidence["num_total"]
