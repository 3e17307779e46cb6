"""All built-in systems and controls, mem0 and langmem on the shipped set, offline, in one store and one report."""

from __future__ import annotations

import json

import pytest

from karat.cli import main
from karat.memory import evaluate
from karat.testing import only_loopback
from tests.memory.systems.scripted import extracting
from tests.memory.systems.test_conformance import BUILT_IN, CONTROLS

pytest.importorskip("mem0")
pytest.importorskip("langmem")

FILES = {
    "pipeline_sessions.jsonl", "pipeline_qa.jsonl", "session_records.jsonl", "qa_records.jsonl",
    "aggregate_metrics.json",
}  # fmt: skip


def test_every_system_is_evaluated_on_the_shipped_set(tmp_path, capsys):
    store = f"sqlite:///{tmp_path / 'results.db'}"
    made = {}
    with extracting() as provider, only_loopback() as attempts:
        for name in [*CONTROLS, *BUILT_IN, "mem0", "langmem"]:
            made[name] = evaluate(
                "demo",
                name,
                output_dir=tmp_path / name,
                judge="deterministic",
                model="extractive",
                store=store,
                params={"model": provider.spec()} if name in ("mem0", "langmem") else None,
                progress=False,
            )
    assert attempts == []
    assert {name: each.exit_code for name, each in made.items()} == dict.fromkeys(made, 0)
    for name in made:
        assert {path.name for path in (tmp_path / name).iterdir() if path.is_file()} == FILES
        figures = json.loads((tmp_path / name / "aggregate_metrics.json").read_text())
        assert figures["baseline_id"] == name
        assert figures["question_answering"]["num_valid"] == figures["question_answering"]["num_total"] > 0
    correct = {
        name: json.loads((tmp_path / name / "aggregate_metrics.json").read_text())["question_answering"]
        for name in made
    }
    assert correct["oracle"]["correct_ratio"] >= correct["no_memory"]["correct_ratio"]
    assert correct["always_refuse"]["hallucination_ratio"] == 0
    report = made["langmem"].report()
    assert [name for name in made if name not in report] == []
    runs = [each.run.id for each in made.values()]
    assert main(["rank", *runs, "--metric", "answer", "--store", store, "--json"]) == 0
    ranked = json.loads(capsys.readouterr().out)
    assert {place["run"] for place in ranked["places"]} == set(runs)
