"""All built-in systems and controls, mem0 and langmem, offline, in one store and one report.

On the shipped set, and on a part of a published Mem-Gallery dialogue where the data are at hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from karat.cli import main
from karat.memory import MemoryEvaluation, evaluate
from karat.testing import only_loopback
from tests.memory.datasets.making import write_json
from tests.memory.datasets.test_mem_gallery import REAL
from tests.memory.systems.scripted import extracting
from tests.memory.systems.test_conformance import BUILT_IN, CONTROLS
from tests.memory.test_files import SNIPPET

pytest.importorskip("mem0")
pytest.importorskip("langmem")

FILES = {
    "pipeline_sessions.jsonl", "pipeline_qa.jsonl", "session_records.jsonl", "qa_records.jsonl",
    "aggregate_metrics.json",
}  # fmt: skip


def evaluated(dataset: str | Path, tmp_path: Path) -> dict[str, MemoryEvaluation]:
    """Every system and control on a dataset, in one store; each has written its files, and none left the machine."""
    store = f"sqlite:///{tmp_path / 'results.db'}"
    made = {}
    with extracting() as provider, only_loopback() as attempts:
        for name in [*CONTROLS, *BUILT_IN, "mem0", "langmem"]:
            made[name] = evaluate(
                dataset,
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
    report = made["langmem"].report()
    assert [name for name in made if name not in report] == []
    return made


def test_every_system_is_evaluated_on_the_shipped_set(tmp_path, capsys, monkeypatch):
    made = evaluated("demo", tmp_path)
    correct = {
        name: json.loads((tmp_path / name / "aggregate_metrics.json").read_text())["question_answering"]
        for name in made
    }
    assert correct["oracle"]["correct_ratio"] >= correct["no_memory"]["correct_ratio"]
    assert correct["always_refuse"]["hallucination_ratio"] == 0
    runs = [each.run.id for each in made.values()]
    assert (
        main(
            ["rank", *runs, "--metric", "answer", "--store", f"sqlite:///{tmp_path / 'results.db'}", "--json"]
        )
        == 0
    )
    ranked = json.loads(capsys.readouterr().out)
    assert {place["run"] for place in ranked["places"]} == set(runs)
    for name in ("mem0", "langmem"):  # the analysis of the format runs unchanged
        (tmp_path / name / "results").mkdir()
        (tmp_path / name / "results" / "FUMemory").symlink_to(tmp_path / name)
        monkeypatch.chdir(tmp_path / name)
        exec(SNIPPET, {})
        assert "Recall: " in capsys.readouterr().out


@pytest.mark.skipif(REAL is None, reason="the Mem-Gallery dialogues are not at hand")
def test_every_system_is_evaluated_on_a_published_dialogue(tmp_path):
    """The first two sessions of a dialogue, and the questions that are about nothing else."""
    assert REAL is not None
    whole: dict[str, Any] = json.loads((REAL / "Academic_Animal_Pet_Research_Life.json").read_text())
    sessions = whole["multi_session_dialogues"][:2]
    known = {each["session_id"] for each in sessions}
    asked = [each for each in whole["human-annotated QAs"] if set(each["session_id"]) <= known]
    assert len(asked) > 10
    part = {**whole, "multi_session_dialogues": sessions, "human-annotated QAs": asked}
    made = evaluated(write_json(tmp_path / "data" / "part.json", part), tmp_path)
    totals = {each.metrics["question_answering"]["num_total"] for each in made.values()}
    assert totals == {len(asked)}
