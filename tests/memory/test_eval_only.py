"""--eval-only: from the files and the manifest, in another directory, with an empty store."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import karat
from karat.cli import main
from karat.errors import DataError, RequestError
from karat.testing import FakeProvider
from tests.memory.datasets import test_longmemeval
from tests.memory.datasets.making import write_json
from tests.memory.parts import Notes, labels_for, sample

PIPELINE = ("pipeline_sessions.jsonl", "pipeline_qa.jsonl")
VARIABLES = (
    "KARAT_JUDGE_MODEL",
    "OPENAI_MODEL",
    "KARAT_MODEL",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "KARAT_STORE",
)


class Other(Notes):
    """Another system with the same behaviour."""

    name = "other"


@pytest.fixture(autouse=True)
def _no_models(tmp_path, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache" / "replies.db"))
    monkeypatch.chdir(tmp_path)


def first_stage(folder: Path, system: Any = Notes, **options: Any) -> Path:
    options = {"judge": "deterministic", "model": "extractive", "store": "memory://", **options}
    karat.memory.evaluate([sample(), sample("bea", "Rome")], system, output_dir=folder, **options)
    return folder


def test_another_judge_in_another_directory_with_an_empty_store(tmp_path, monkeypatch, capsys, says):
    first_stage(tmp_path / "one")
    moved = tmp_path / "elsewhere" / "two"
    shutil.copytree(tmp_path / "one", moved)
    before = {name: (moved / name).read_bytes() for name in PIPELINE}
    with FakeProvider(labels_for) as server:
        monkeypatch.setenv("OPENAI_MODEL", "judge-1")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        code = main(
            ["memory", "--dataset", "gone.json", "--baseline", "notes", "--output-dir", str(moved), "--eval-only",
             "--store", str(tmp_path / "empty.db")]
        )  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    says(*[line for line in out.splitlines() if "named by" in line])
    assert {name: (moved / name).read_bytes() for name in PIPELINE} == before
    metrics = json.loads((moved / "aggregate_metrics.json").read_text())
    assert metrics["memory_recall"]["avg_recall"] == 1.0
    assert metrics["update_handling"]["score"] == 1.0
    assert metrics["interference_rejection"]["score"] == 1.0
    assert metrics["question_answering"]["correct_ratio"] == 1.0
    assert set(metrics["agreement_with_matcher"]) == {
        "recall", "correctness", "update", "interference", "answer", "evidence",
    }  # fmt: skip
    record = json.loads((moved / "session_records.jsonl").read_text().splitlines()[0])
    assert record["eval"]["methods"]["recall"] == "judge: openai/judge-1"


@pytest.mark.parametrize(
    "model",
    ["extractive", None],
)
def test_notes_about_stage_1_are_repeated(tmp_path, model, says):
    folder = tmp_path / "one"
    rows = write_json(tmp_path / "s.json", [test_longmemeval.row()])
    options: dict[str, Any] = {"judge": "deterministic", "store": "memory://"}
    first = karat.memory.evaluate(rows, "BM25Memory", output_dir=folder, model=model, **options)
    again = karat.memory.evaluate(None, output_dir=folder, eval_only=True, **options)
    for made in (first, again):
        says(*made.notices)


def test_the_stored_run_is_used_where_the_store_has_it(tmp_path):
    store = tmp_path / "karat.db"
    first_stage(tmp_path / "one", store=store)
    made = karat.memory.evaluate(
        None, output_dir=tmp_path / "one", eval_only=True, judge="deterministic", store=store
    )
    with karat.open_store(store) as opened:
        assert [run.id for run in opened.runs.list()] == [made.run.id]


def test_the_order_of_settings_that_name_the_judge(monkeypatch):
    from karat.memory._evaluate import choose_judge

    monkeypatch.setenv("KARAT_MODEL", "a@http://127.0.0.1:1/v1")
    assert choose_judge().named_by == "KARAT_MODEL"
    monkeypatch.setenv("OPENAI_MODEL", "b")
    assert (choose_judge().named_by, choose_judge().spec) == ("OPENAI_MODEL", "openai/b")
    monkeypatch.setenv("KARAT_JUDGE_MODEL", "c@http://127.0.0.1:1/v1")
    assert choose_judge().named_by == "KARAT_JUDGE_MODEL"
    assert choose_judge("d@http://127.0.0.1:1/v1").named_by == "judge"


def test_words_for_no_model_may_be_in_the_environment(tmp_path, monkeypatch, says):
    monkeypatch.setenv("KARAT_JUDGE_MODEL", "deterministic")
    monkeypatch.setenv("KARAT_MODEL", "extractive")
    made = karat.memory.evaluate([sample()], Notes, output_dir=tmp_path / "one", store="memory://")
    says(*[notice for notice in made.notices if "KARAT_" in notice])
    assert made.metrics["judge"]["note"].startswith("no LLM")


@pytest.mark.parametrize(("name", "judge"), [("KARAT_JUDGE_MODEL", None), ("judge", ""), ("judge", " ")])
def test_an_empty_judge_is_refused(monkeypatch, refuses, name, judge):
    from karat.memory._evaluate import choose_judge

    monkeypatch.setenv("KARAT_JUDGE_MODEL", " ")
    with refuses(RequestError):
        choose_judge(judge)


JUDGES = {"judge": "a@http://127.0.0.1:1/v1", "KARAT_JUDGE_MODEL": "b@http://127.0.0.1:1/v1", "OPENAI_MODEL": "c",
          "KARAT_MODEL": "d@http://127.0.0.1:1/v1"}  # fmt: skip


@pytest.mark.parametrize("settings", [s for n in range(1, 5) for s in itertools.combinations(JUDGES, n)])
def test_every_combination_of_settings_that_name_the_judge(monkeypatch, settings):
    from karat.memory._evaluate import choose_judge

    for name in JUDGES:
        if name.isupper():
            monkeypatch.delenv(name, raising=False)
            if name in settings:
                monkeypatch.setenv(name, JUDGES[name])
    found = choose_judge(JUDGES["judge"] if "judge" in settings else None)
    first = settings[0]  # in the order of precedence
    assert (found.named_by, found.spec) == (first, "openai/c" if first == "OPENAI_MODEL" else JUDGES[first])


MODELS = {"model": "a@http://127.0.0.1:1/v1", "KARAT_MODEL": "b@http://127.0.0.1:1/v1", "OPENAI_MODEL": "c"}


@pytest.mark.parametrize("settings", [s for n in range(4) for s in itertools.combinations(MODELS, n)])
def test_every_combination_of_settings_that_name_the_answering_model(monkeypatch, settings):
    from karat.memory._evaluate import choose_model

    for name in settings:
        if name.isupper():
            monkeypatch.setenv(name, MODELS[name])
    monkeypatch.setenv("KARAT_JUDGE_MODEL", "judge@http://127.0.0.1:1/v1")  # a judge answers nothing
    found = choose_model(MODELS["model"] if "model" in settings else None)
    if not settings:
        assert found.model is None
        return
    first = settings[0]  # in the order of precedence
    assert found.model == ("openai/c" if first == "OPENAI_MODEL" else MODELS[first])
    assert f"(named by {first if first.isupper() else f'the argument {first}'})" in found.text


def test_no_judge_is_exit_code_2_and_names_the_deterministic_one(tmp_path, capsys):
    first_stage(tmp_path / "one")
    assert main(["memory", "--output-dir", str(tmp_path / "one"), "--eval-only"]) == 2
    assert "--judge deterministic" in capsys.readouterr().err


@pytest.mark.parametrize("baseline", ["BM25Memory", Other])
def test_another_baseline_is_refused(tmp_path, baseline):
    first_stage(tmp_path / "one")
    with pytest.raises(RequestError, match="notes"):
        karat.memory.evaluate(
            None,
            baseline,
            output_dir=tmp_path / "one",
            eval_only=True,
            judge="deterministic",
            store="memory://",
        )


def test_files_without_a_manifest_are_accepted_with_a_notice(tmp_path):
    folder = first_stage(tmp_path / "one")
    expected = (folder / "aggregate_metrics.json").read_text()
    shutil.rmtree(folder / ".karat")
    made = karat.memory.evaluate(
        None, output_dir=folder, eval_only=True, judge="deterministic", store="memory://"
    )
    assert any("no .karat/manifest.json" in notice for notice in made.notices)
    assert (folder / "aggregate_metrics.json").read_text() == expected
    assert not (folder / ".karat").exists()


@pytest.mark.parametrize("manifest", [True, False])
def test_files_of_two_runs_are_refused(tmp_path, manifest):
    folder, other = first_stage(tmp_path / "one"), first_stage(tmp_path / "two", Other)
    shutil.copy(other / "pipeline_qa.jsonl", folder / "pipeline_qa.jsonl")
    if not manifest:
        shutil.rmtree(folder / ".karat")
    with pytest.raises(DataError, match="two runs"):
        karat.memory.evaluate(
            None, output_dir=folder, eval_only=True, judge="deterministic", store="memory://"
        )


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"[]\n",
        b'{"sample_id": 3}\n',
        b'{"sample_id": "ana"}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ],
)
@pytest.mark.parametrize("name", PIPELINE)
def test_damaged_lines_name_file_and_line(tmp_path, name, line):
    folder = first_stage(tmp_path / "one")
    shutil.rmtree(folder / ".karat")
    with (folder / name).open("ab") as file:
        file.write(line)
    number = len((folder / name).read_bytes().splitlines())
    with pytest.raises(DataError, match=f"{name}:{number}"):
        karat.memory.evaluate(
            None, output_dir=folder, eval_only=True, judge="deterministic", store="memory://"
        )


def test_empty_files_are_refused(tmp_path, refuses):
    folder = first_stage(tmp_path / "one")
    shutil.rmtree(folder / ".karat")
    for name in PIPELINE:
        (folder / name).write_bytes(b"")
    with refuses(DataError):
        karat.memory.evaluate(
            None, output_dir=folder, eval_only=True, judge="deterministic", store="memory://"
        )


def test_a_directory_of_another_run_is_refused(tmp_path):
    folder = first_stage(tmp_path / "one")
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for options in ({"top_k": 3}, {"model": None}, {"seed": 1}):
        with pytest.raises(RequestError, match="another run"):
            first_stage(folder, **options)
    with pytest.raises(RequestError, match="another run"):
        first_stage(folder, Other)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    shutil.rmtree(folder / ".karat")
    with pytest.raises(RequestError, match=r"no \.karat"):
        first_stage(folder)


def test_a_run_in_the_store_only_writes_its_files(tmp_path):
    class Counted(Notes):
        """Counts the turns of all its instances."""

        name = "counted"
        turns_seen = 0

        def ingest_turn(self, turn: Any) -> None:
            Counted.turns_seen += 1
            super().ingest_turn(turn)

    store = tmp_path / "karat.db"
    first_stage(tmp_path / "one", Counted, store=store)
    seen = Counted.turns_seen
    first_stage(tmp_path / "two", Counted, store=store)
    assert Counted.turns_seen == seen
    for name in (*PIPELINE, "session_records.jsonl", "qa_records.jsonl", "aggregate_metrics.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_judge_errors_are_counted_excluded_and_fail_the_run(tmp_path):
    def out_of_range(body: dict[str, Any]) -> str:
        said = json.loads(labels_for(body))
        text = json.dumps(body["messages"])
        if "castle" in text:  # the interference of each sample: an item that is not in the list
            said["verdicts"].append({"analysis": "", "id": 99, "label": said["verdicts"][0]["label"]})
        return json.dumps(said)

    folder = first_stage(tmp_path / "one")
    with FakeProvider(out_of_range) as server:
        made = karat.memory.evaluate(
            None, output_dir=folder, eval_only=True, judge=server.spec(), store="memory://"
        )
    block = made.metrics["interference_rejection"]
    assert block["num_judge_errors"] == 2
    assert (block["score"], block["num_total"], block["applicable"]) == (0.0, 0, False)
    assert made.judge_errors > 0.05
    assert made.exit_code == 1
    record = json.loads((folder / "session_records.jsonl").read_text().splitlines()[2])
    assert record["eval"]["interference_score"] is None
    assert "interference" in record["eval"]["judge_errors"]


def test_a_system_of_a_file_is_found_by_its_name(tmp_path):
    source = "from tests.memory.parts import Notes\n\n\nclass Mine(Notes):\n    name = 'mine'\n"
    (tmp_path / "mine.py").write_text(source)
    asked = f"{tmp_path / 'mine.py'}:Mine"
    karat.memory.evaluate(
        [sample()],
        asked,
        output_dir=tmp_path / "one",
        judge="deterministic",
        model="extractive",
        store="memory://",
    )
    for name in (asked, "mine"):
        made = karat.memory.evaluate(
            None, name, output_dir=tmp_path / "one", eval_only=True, judge="deterministic", store="memory://"
        )
        assert made.baseline == "mine"


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / ".karat").write_text("in the way")
    with pytest.raises(RequestError, match="cannot be"):
        first_stage(tmp_path / "one")


def test_files_without_dialogue_are_judged_in_every_dimension_but_correctness(tmp_path):
    folder = first_stage(tmp_path / "one")
    shutil.rmtree(folder / ".karat")
    path = folder / "pipeline_sessions.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        del record["dialogue"]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    expected = json.loads((folder / "aggregate_metrics.json").read_text())
    made = karat.memory.evaluate(
        None, output_dir=folder, eval_only=True, judge="deterministic", store="memory://"
    )
    correct = made.metrics["memory_correctness"]
    assert (correct["applicable"], correct["num_sessions"], correct["num_judge_errors"]) == (False, 0, 6)
    for block in ("memory_recall", "update_handling", "interference_rejection", "question_answering"):
        assert made.metrics[block] == expected[block]
    assert made.exit_code == 1
    last = json.loads((folder / "session_records.jsonl").read_text().splitlines()[-1])
    assert "dialogue" in last["eval"]["judge_errors"]["correctness"]
    assert last["eval"]["correctness_rate"] is None


@pytest.mark.parametrize(("allowed", "code"), [(24 / 24, 0), (4 / 24, 0), (3 / 24, 1), (0, 1)])
def test_the_share_of_judge_errors_that_is_allowed(tmp_path, allowed, code):
    folder = first_stage(tmp_path / "one")

    def no_answers(body: dict[str, Any]) -> str:
        return "no verdict" if "Where does Ana live?" in json.dumps(body["messages"]) else labels_for(body)

    with FakeProvider(no_answers) as server:
        given = [
            "--judge",
            server.spec(),
            "--max-judge-errors",
            str(allowed),
            "--store",
            str(tmp_path / "a.db"),
        ]
        assert main(["memory", "--output-dir", str(folder), "--eval-only", *given]) == code
    metrics = json.loads((folder / "aggregate_metrics.json").read_text())
    assert metrics["question_answering"]["num_judge_errors"] == 4
    assert metrics["judgments"] == {"ok": 20, "failed": 4}
    assert (metrics["question_answering"]["num_total"], metrics["question_answering"]["num_valid"]) == (6, 2)
    judged = [json.loads(line)["eval"] for line in (folder / "qa_records.jsonl").read_text().splitlines()]
    failed = [each for each in judged if "answer" in each.get("judge_errors", {})]
    assert [(each["answer_label"], each["answer_is_valid"]) for each in failed] == [(None, False)] * 4


def test_a_context_overflow_is_a_judge_error_with_its_kind(tmp_path):
    folder = first_stage(tmp_path / "one")

    def too_long(body: dict[str, Any]) -> Any:
        if "Where does Ana live?" in json.dumps(body["messages"]):
            return {"text": "so far", "finish_reason": "model_context_window_exceeded"}
        return labels_for(body)

    with FakeProvider(too_long) as server:
        given = ["--judge", server.spec(), "--store", str(tmp_path / "a.db")]
        assert main(["memory", "--output-dir", str(folder), "--eval-only", *given]) == 1
    metrics = json.loads((folder / "aggregate_metrics.json").read_text())
    assert metrics["question_answering"]["num_judge_errors"] == 4
    lines = (folder / "qa_records.jsonl").read_text().splitlines()
    errors = [json.loads(line)["eval"].get("judge_errors", {}).get("answer") for line in lines]
    assert sum(error is not None and "too long" in error for error in errors) == 4


def test_the_class_of_the_files_is_accepted_as_baseline(tmp_path):
    made = karat.memory.evaluate(
        None,
        Notes,
        output_dir=first_stage(tmp_path / "one"),
        eval_only=True,
        judge="deterministic",
        store="memory://",
    )
    assert made.baseline == "notes"


def test_lines_of_two_settings_are_refused_without_a_manifest(tmp_path):
    folder, other = first_stage(tmp_path / "one", top_k=2), first_stage(tmp_path / "two", top_k=3)
    shutil.rmtree(folder / ".karat")
    lines = [(each / "pipeline_qa.jsonl").read_text().splitlines(keepends=True) for each in (folder, other)]
    (folder / "pipeline_qa.jsonl").write_text(lines[0][0] + "".join(lines[1][1:]))
    with pytest.raises(DataError, match=r"pipeline_qa\.jsonl:2: .*two runs"):
        karat.memory.evaluate(
            None, output_dir=folder, eval_only=True, judge="deterministic", store="memory://"
        )


def test_files_without_a_manifest_are_compared_only_with_the_same_top_k(tmp_path):
    store, runs = tmp_path / "karat.db", []
    for top_k in (2, 3):
        folder = first_stage(tmp_path / str(top_k), top_k=top_k)
        shutil.rmtree(folder / ".karat")
        made = karat.memory.evaluate(
            None, output_dir=folder, eval_only=True, judge="deterministic", store=store
        )
        runs.append(made.run.id)
    with pytest.raises(RequestError, match="top_k"):
        karat.compare(runs, store=store)


def test_a_run_that_was_retried_since_is_not_mixed_with_its_earlier_files(tmp_path):
    class Shaky(Notes):
        """Fails on the first question, once."""

        name = "shaky"
        failed: list[str] = []

        def retrieve(self, query: str, top_k: int, now: str | None) -> Any:
            if not self.failed:
                self.failed.append(query)
                raise ConnectionError("not now")
            return super().retrieve(query, top_k, now)

    store = tmp_path / "karat.db"
    first = first_stage(tmp_path / "one", Shaky, store=store)
    later = first_stage(tmp_path / "two", Shaky, store=store, retry_failed=True)
    for folder, questions in ((first, 5), (later, 6)):
        karat.memory.evaluate(None, output_dir=folder, eval_only=True, judge="deterministic", store=store)
        for name in ("pipeline_qa.jsonl", "qa_records.jsonl"):
            assert len((folder / name).read_text().splitlines()) == questions


def test_questions_without_their_session_are_refused(tmp_path, refuses):
    folder = first_stage(tmp_path / "one")
    shutil.rmtree(folder / ".karat")
    sessions = (folder / "pipeline_sessions.jsonl").read_text().splitlines(keepends=True)
    (folder / "pipeline_sessions.jsonl").write_text("".join(sessions[:-1]))
    with refuses(DataError):
        karat.memory.evaluate(
            None, output_dir=folder, eval_only=True, judge="deterministic", store="memory://"
        )
