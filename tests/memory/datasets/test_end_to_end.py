"""From file to files: neither a memory system nor the answering model sees what gives answers away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from karat.cli import main
from karat.memory import MemorySystem, Retrieval, RetrievedMemory, StoredMemory, Turn, evaluate
from karat.memory._evaluate import MODEL_VARIABLES
from karat.memory.datasets import read_memory_dataset
from karat.testing import FakeProvider
from tests.memory.datasets import (
    test_beam,
    test_domain_a_v2,
    test_halumem,
    test_locomo,
    test_longmemeval,
    test_mem_gallery,
    test_memoryagentbench,
    test_personamem,
)
from tests.memory.datasets.making import write_json, write_jsonl
from tests.memory.systems.test_conformance import BUILT_IN, CONTROLS
from tests.memory.test_files import SNIPPET


class Witness(MemorySystem):
    """Keeps every turn and records every call."""

    name = "witness"
    told: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    def reset(self, directory: Path) -> None:
        self.told.append(["reset", directory.name, directory.parent.name])
        self.turns = []

    def ingest_turn(self, turn: Turn) -> None:
        self.told.append(["turn", msgspec.to_builtins(turn)])
        self.turns.append(turn)

    def end_session(self, session_id: str) -> None:
        self.told.append(["end", session_id])

    def snapshot(self) -> list[StoredMemory]:
        return [StoredMemory(memory_id=turn.turn_id, text=turn.text) for turn in self.turns]

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        self.told.append(["query", query, top_k, now])
        found = [RetrievedMemory(memory_id=turn.turn_id, text=turn.text) for turn in self.turns]
        return Retrieval(items=tuple(found[-top_k:]))


def domain_a_v2(folder: Path) -> Path:
    points, asked = test_domain_a_v2.points(), test_domain_a_v2.checkpoints()
    for one in points[0]["memory_points"]:
        one.update(
            memory_content=f"CANARY {one['memory_content']}",
            memory_type="CANARY",
            original_memories=["CANARY"],
        )
    for checkpoint in asked:
        checkpoint["checkpoint_id"] += "CANARY"
        for one in checkpoint["questions"]:
            one.update(
                answer="CANARY", difficulty="CANARY", question_type_abbrev="CANARY", answers=["CANARY"]
            )
    return test_domain_a_v2.three_files(folder, points=points, checkpoints=asked)


def locomo(folder: Path) -> Path:
    ask = test_locomo.ask
    asked = [
        ask("Whose?", category=5, evidence=["D1:1"], adversarial_answer="CANARY"),
        ask("Where?", "CANARY"),
    ]
    return test_locomo.write(folder, *asked)


def longmemeval(folder: Path) -> Path:
    rows = [test_longmemeval.row(answer="CANARY"), test_longmemeval.row(question_id="x_abs", answer="CANARY")]
    return write_json(folder / "s.json", rows)


def halumem(folder: Path) -> Path:
    text = json.dumps(test_halumem.user()).replace("Mark left.", "CANARY").replace("He left.", "CANARY")
    return write_jsonl(folder / "h.jsonl", json.loads(text))


def mem_gallery(folder: Path) -> Path:
    return write_json(
        folder / "d.json", test_mem_gallery.dialogue(test_mem_gallery.ask("FR", "CANARY", "D1:1"))
    )


MADE: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "beam": (test_beam.folder, ["->->", "gold", "question_type", "abstention"]),
    "domain_a_v2": (domain_a_v2, ["mp_S", "factual_recall", "interference"]),
    "halumem": (halumem, ["Boundary", "director", "persona", "Event Memory"]),
    "locomo": (locomo, ["D1:1", "adversarial", "observation"]),
    "longmemeval": (longmemeval, ["answer_4be", "_abs", "has_answer", "sharegpt", "temporal"]),
    "mem_gallery": (mem_gallery, ["D1:1", "factual"]),
    "memoryagentbench": (
        lambda folder: write_jsonl(folder / "m.jsonl", test_memoryagentbench.row()),
        ["_abs", "longmemeval", "single-session", "has_answer"],
    ),
    "personamem": (lambda folder: test_personamem.write(folder, {"topic": "CANARY"}), ["recall_user", "q1"]),
}


def run(
    path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[list[Any], list[Any], Path]:
    """Evaluate the witness: what it was told, what the model was asked, and where the files are."""
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache.db"))
    monkeypatch.setattr(Witness, "told", [])
    tmp_path.mkdir(exist_ok=True)
    output = tmp_path / "output"
    with FakeProvider(json.dumps({"answer": "something", "cited": [1]})) as server:
        evaluate(
            path,
            Witness,
            output_dir=output,
            model=server.spec(),
            judge="deterministic",
            store=f"sqlite:///{tmp_path / 'store.db'}",
            concurrency=1,
            **options,
        )
        return Witness.told, [each["messages"] for each in server.requests], output


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", sorted(MADE))
def test_no_gold_reaches_the_system_or_the_model(tmp_path, monkeypatch, name):
    make, words = MADE[name]
    path = make(tmp_path / "data") if name != "personamem" else make(_folder(tmp_path / "data"))
    told, asked, output = run(path, tmp_path, monkeypatch)
    seen = json.dumps([told, asked])
    assert [word for word in ["CANARY", *words] if word in seen] == []
    assert asked, "the model was asked"
    samples = list(read_memory_dataset(path).samples())
    assert sum(each[0] == "turn" for each in told) == sum(
        len(s.turns) for one in samples for s in one.sessions
    )
    assert len(lines(output / "pipeline_qa.jsonl")) == sum(len(one.questions) for one in samples)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_the_check_would_find_a_leak(tmp_path, monkeypatch):
    """The same words are in the files, which hold the gold, so that a leak could not hide in the spelling."""
    for name in ("domain_a_v2", "locomo", "halumem", "mem_gallery"):
        _, _, output = run(MADE[name][0](tmp_path / name), tmp_path / f"{name}-run", monkeypatch)
        assert "CANARY" in (output / "pipeline_qa.jsonl").read_text()


def test_questions_are_asked_between_the_sessions(tmp_path, monkeypatch):
    """A question after S02 is asked before the first turn of S03 is ingested, for every sample of the demo set."""
    told, _, _ = run("demo", tmp_path, monkeypatch)
    order = [each for each in told if each[0] in ("reset", "end", "query")]
    expected: list[Any] = []
    for sample in read_memory_dataset("demo").samples():
        expected.append("reset")
        for session in sample.sessions:
            expected.append(session.session_id)
            expected += [q.question for q in sample.questions if q.after_session == session.session_id]
    assert [each[0] if each[0] == "reset" else each[1] for each in order] == expected


def test_the_query_and_the_date_are_those_of_the_question(tmp_path, monkeypatch):
    told, asked, output = run("demo", tmp_path, monkeypatch)
    queries = [(query, now) for kind, query, _, now in (each for each in told if each[0] == "query")]
    questions = [q for sample in read_memory_dataset("demo").samples() for q in sample.questions]
    by_session = sorted(queries, key=str)
    assert by_session == sorted(((q.question, q.now) for q in questions), key=str)
    assert all(
        record["retrieval"]["query"] == record["question"] for record in lines(output / "pipeline_qa.jsonl")
    )
    assert len(asked) == len(questions)


def test_a_sample_id_is_not_in_the_path_of_the_store(tmp_path, monkeypatch):
    rows = [
        test_longmemeval.row(question_id=name) for name in ("../../up_abs", "/etc/x", "a\\b", "x" * 300, ".")
    ]
    told, _, output = run(write_json(tmp_path / "s.json", rows), tmp_path, monkeypatch)
    folders = json.dumps([each for each in told if each[0] == "reset"])
    assert len({tuple(each) for each in json.loads(folders)}) == len(rows)  # each sample has its own
    assert not any(word in folders for word in ("up_abs", "..", "etc", "xxx"))
    assert not (tmp_path.parent / "up_abs").exists()
    assert {record["sample_id"] for record in lines(output / "pipeline_qa.jsonl")} == {
        row["question_id"] for row in rows
    }


def test_unanswerable_questions_have_a_refusal_and_no_evidence(tmp_path, monkeypatch):
    _, _, output = run("demo", tmp_path, monkeypatch)
    records = lines(output / "qa_records.jsonl")
    refusals = [record for record in records if not record["answerable"]]
    assert len(refusals) == 9
    for record in refusals:
        assert record["gold_evidence_memory_ids"] == []
        assert record["eval"]["num_evidence"] == 0
        assert record["eval"]["answer_label"] == "Hallucination", "the model answered something"


def test_a_question_that_occurs_twice_is_two_records(tmp_path, monkeypatch):
    asked = [test_locomo.ask("Where?", "Bern"), test_locomo.ask("Where?", "Basel")]
    _, _, output = run(test_locomo.write(tmp_path, *asked), tmp_path, monkeypatch)
    assert [record["gold_answer"] for record in lines(output / "qa_records.jsonl")] == ["Bern", "Basel"]


def test_gold_points_of_the_demo_set_are_in_the_records(tmp_path, monkeypatch):
    _, _, output = run("demo", tmp_path, monkeypatch)
    samples = {sample.sample_id: sample for sample in read_memory_dataset("demo").samples()}
    records = lines(output / "session_records.jsonl")
    assert len(records) == sum(len(sample.sessions) for sample in samples.values())
    for record in records:
        sample = samples[record["sample_id"]]
        session = next(one for one in sample.sessions if one.session_id == record["session_id"])
        state = record["gold_state"]
        assert [p["memory_id"] for p in state["session_new_memories"]] == [p.memory_id for p in session.new]
        assert [p["memory_id"] for p in state["session_update_memories"]] == [
            p.memory_id for p in session.updates
        ]
        interference = {p.memory_id for p in session.interference}
        assert {p["memory_id"] for p in state["session_interference_memories"]} == interference
        assert not interference & {p["memory_id"] for p in state["cumulative_gold_memories"]}


def test_captions_with_the_answer_are_reported_apart(tmp_path, monkeypatch, says):
    asked = [test_mem_gallery.ask("FR", "Maltese", "D1:2"), test_mem_gallery.ask("FR", "Hello", "D1:1")]
    _, prompts, output = run(
        write_json(tmp_path / "d.json", test_mem_gallery.dialogue(*asked)), tmp_path, monkeypatch
    )
    metrics = json.loads((output / "aggregate_metrics.json").read_text())
    assert "[image D1:IMG_001: A white Maltese on a chair.]" in json.dumps(prompts)
    assert {record["modality"] for record in lines(output / "qa_records.jsonl")} == {"caption"}
    assert metrics["captions"]["with_answer"] == 1
    store = f"sqlite:///{tmp_path / 'store.db'}"
    printed = evaluate(None, output_dir=output, eval_only=True, judge="deterministic", store=store).report()
    says(*[line for line in printed.splitlines() if "in a caption" in line])


def test_label_corrections_are_used_and_their_ceiling_is_printed(tmp_path, monkeypatch, capsys):
    asked = [test_locomo.ask("Where?", "Bern"), test_locomo.ask("When?", "2022")]
    overlay = write_jsonl(tmp_path / "fixes.jsonl", {"sample_id": "conv-1", "index": 1, "answer": "2023"})
    _, _, output = run(test_locomo.write(tmp_path, *asked), tmp_path, monkeypatch, corrections=overlay)
    assert [record["gold_answer"] for record in lines(output / "qa_records.jsonl")] == ["Bern", "2023"]
    manifest = json.loads((output / ".karat" / "manifest.json").read_text())
    assert "at most 0.500" in manifest["dataset"]["notes"][0]
    given = ["memory", "--dataset", str(tmp_path / "locomo10.json"), "--dataset-type", "locomo"]
    given += [
        "--corrections",
        str(overlay),
        "--baseline",
        "STMemory",
        "--output-dir",
        str(tmp_path / "printed"),
    ]
    given += [
        "--judge",
        "deterministic",
        "--model",
        "extractive",
        "--concurrency",
        "1",
        "--store",
        "memory://",
    ]
    assert main(given) == 0
    assert "at most 0.500" in " ".join(capsys.readouterr().out.split())


def test_a_reader_that_saw_no_original_data_says_so(tmp_path, monkeypatch, says):
    _, _, output = run(longmemeval(tmp_path / "data"), tmp_path, monkeypatch)
    notes = json.loads((output / ".karat" / "manifest.json").read_text())["dataset"]["notes"]
    says(notes[0])


@pytest.mark.parametrize("model", ["extractive", None])
@pytest.mark.parametrize("name", sorted(MADE))
def test_the_analysis_of_the_format_runs_on_every_dataset(tmp_path, monkeypatch, capsys, name, model):
    for variable in MODEL_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    path = MADE[name][0](_folder(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    made = evaluate(
        path, "FUMemory", output_dir="results/FUMemory", model=model, judge="deterministic", store="memory://"
    )
    assert made.exit_code == 0
    exec(SNIPPET, {})
    printed = capsys.readouterr().out
    assert f"QA Correct: {made.metrics['question_answering']['correct_ratio']:.2%}" in printed
    records = lines(tmp_path / "results" / "FUMemory" / "qa_records.jsonl")
    assert all(
        isinstance(each["question_type_abbrev"], str) and each["question_type_abbrev"] for each in records
    )
    assert all("answer_label" in each["eval"] for each in records)


@pytest.mark.parametrize("system", [*BUILT_IN, *CONTROLS])
def test_the_analysis_of_the_format_runs_on_every_system(tmp_path, monkeypatch, capsys, system):
    monkeypatch.chdir(tmp_path)
    evaluate(
        "demo", system, output_dir="results/FUMemory", model="extractive", judge="deterministic", store="memory://",
        max_samples=1,
    )  # fmt: skip
    exec(SNIPPET, {})
    assert "Recall: " in capsys.readouterr().out
