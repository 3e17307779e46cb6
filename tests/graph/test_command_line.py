"""`karat run` of graph tasks with the flags of their own tools, and `karat graph`."""

from __future__ import annotations

import json

import pytest

from karat.cli import main
from tests.graph.yaml_parts import filled

GRAPH = filled("""
data_config:
  source: {type: disk, file_path: rows.jsonl}
graph_config:
  nodes:
    predict: {node_type: lambda, lambda: tasks.eval.qa.code.predict, output_keys: [said]}
    unit_metrics: JUDGING
output_config:
  output_map: {id: {from: id}, said: {from: said}, exact_match: {from: exact_match}}
graph_post_process:
  - ACCURACY
""")
CODE = """
def predict(state):
    if state["answer"] == "boom":
        raise ValueError("crash")
    return {"said": state["answer"].upper() + state.get("mark", "")}
"""


@pytest.fixture
def karat(project, capsys, monkeypatch):
    monkeypatch.delenv("KARAT_STORE", raising=False)
    project.write("tasks/eval/qa/graph_config.yaml", GRAPH)
    project.write("tasks/eval/qa/code.py", CODE)
    project.rows("rows.jsonl", [{"id": f"q{i:02}", "answer": f"a{i}"} for i in range(30)])

    def run(*arguments: str):
        capsys.readouterr()
        code = main([*arguments, "--quiet"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def files(project) -> dict[str, list]:
    found = sorted((project.folder / "out").iterdir())
    return {
        path.name.split("_20")[0]: json.loads(path.read_text()) for path in found if path.suffix == ".json"
    }


def test_the_flags_of_the_guide(karat, project):
    code, out, _ = karat(
        "run", "--task", "tasks.eval.qa", "--num_records", "5", "--start_index", "10", "--batch_size", "2",
        "--output_dir", "out", "--run_name", "night", "--run_args", '{"mark": "!"}',
    )  # fmt: skip
    assert code == 0
    written = files(project)
    assert [r["id"] for r in written["night_output"]] == ["q10", "q11", "q12", "q13", "q14"]
    assert written["night_output"][0]["said"] == "A10!"
    [report] = written["night_MetricCollatorPostProcessor"]
    assert report["evaluation_summary"]["total_records"] == 5
    assert report["results"]["exact_match-accuracy"]["accuracy"] == 0.0
    assert "exact_match  accuracy" in out
    assert "wrote" in out


@pytest.mark.parametrize(
    "given",
    [
        ["--oasst", "True"],
        ["-q", "True"],
        ["-ci", "3"],
        ["--clear_logs", "True"],
        ["--disable_metadata", "True"],
    ],
)
def test_a_flag_of_sygra_that_is_not_supported_says_why(karat, project, says, given):
    code, _, error = karat("run", "eval/qa", "--output_dir", "out", *given)
    assert code == 2
    says(error)
    assert not (project.folder / "out").exists()


def test_ten_records_by_default_and_all_names_of_the_task(karat, project, says):
    for name in ("tasks.eval.qa", "eval/qa", "tasks/eval/qa", "tasks/eval/qa/graph_config.yaml"):
        code, out, _ = karat("run", name, "--output_dir", "out", "--json")
        assert code == 0
        document = json.loads(out)
        assert document["runs"][0]["counts"]["total"] == 10
        assert [e["value"] for e in document["aggregation"]["estimates"]] == [1.0]
        assert len(document["files"]) == 2
    says(document["runs"][0]["notice"])


def test_files_without_the_time_and_as_jsonl_in_the_tasks_folder(karat, project):
    code, _, _ = karat("run", "eval/qa", "-n", "3", "--output_with_ts", "False", "--output-format", "jsonl")
    assert code == 0
    folder = project.folder / "tasks/eval/qa"
    assert len((folder / "output.jsonl").read_text().splitlines()) == 3
    assert (folder / "MetricCollatorPostProcessor.json").is_file()


def test_local_data_in_place_of_the_source_and_failures_give_exit_1(karat, project):
    project.rows("mine.jsonl", [{"id": "x", "answer": "yes"}, {"id": "y", "answer": "boom"}])
    code, out, _ = karat("run", "eval/qa", "--data", "mine.jsonl", "--output_dir", "out")
    assert code == 1
    written = files(project)
    assert [r["id"] for r in written["output"]] == ["x"]
    assert written["failed"] == [{"id": "y", "node": "predict", "error": "ValueError: crash"}]
    assert written["MetricCollatorPostProcessor"][0]["evaluation_summary"]["status"] == "partial"
    assert "1 of 2" in out


def test_check_stops_before_the_first_record(karat, project, says):
    code, out, _ = karat("run", "eval/qa", "--check")
    assert code == 0
    says(out)
    project.write(
        "tasks/eval/qa/graph_config.yaml", GRAPH.replace("predicted_key: said", "predicted_key: sad")
    )
    code, _, err = karat("run", "eval/qa", "--check")
    assert code == 2
    says(err)
    assert not (project.folder / "karat.db").exists()


def test_resume_false_makes_another_run(karat):
    ids = []
    for flags in ([], ["--resume"], ["--resume", "False"]):
        _, out, _ = karat("run", "eval/qa", "--output_dir", "out", "--json", *flags)
        ids.append(json.loads(out)["runs"][0]["id"])
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(
    "line",
    [
        "run eval/qaa",
        "run --task eval/qaa",
        "run eval/qa --task eval/qa",
        "run eval/qa --input answer",
        "run eval/qa --run_args [1]",
        "run tasks/eval/qa/code.py:predict --data rows.jsonl --run_name x",
        "run eval/qa --output_with_ts maybe",
    ],
)
def test_wrong_command_lines(karat, line, says):
    code, _, err = karat(*line.split())
    assert code == 2
    says(err)


def test_graph_draws(karat, project):
    code, out, _ = karat("graph", "eval/qa")
    assert code == 0
    assert out.startswith("flowchart TD\n")
    code, out, _ = karat("graph", "eval/qa", "--out", "qa.svg")
    assert code == 0
    assert (project.folder / "qa.svg").read_text().startswith("<svg ")
    code, out, _ = karat("graph", "eval/qa", "--json")
    assert json.loads(out)["edges"][0] == {"from": "START", "to": "predict"}


def test_a_shipped_task_leaves_its_files_in_the_working_folder_and_everything_in_the_store(karat, project):
    code, out, _ = karat("run", "eval/agents/web_actions", "-n", "13", "--json")
    assert code == 0
    document = json.loads(out)
    estimates = {(e["aggregator"], e.get("name", "")): e for e in document["aggregation"]["estimates"]}
    assert document["aggregation"]["status"] == "success"
    assert estimates["accuracy", ""]["n"] == 13
    assert estimates["retry_efficiency", "retry_efficiency"]["value"] == pytest.approx(11 / 13)
    assert all((project.folder / name).is_file() for name in document["files"])


ASKING = filled("""
data_config: {source: {type: disk, file_path: rows.jsonl}}
graph_config:
  nodes:
    predict:
      node_type: llm
      prompt: [{user: "{answer}"}]
      output_keys: [said]
      model: {name: default}
    unit_metrics: JUDGING
output_config:
  output_map: {said: {from: said}, exact_match: {from: exact_match}}
graph_post_process:
  - ACCURACY
""")


def test_runs_are_compared_ranked_and_scored_again_without_a_model(karat, project):
    from karat import models
    from karat.testing import FakeProvider

    project.write("tasks/eval/qa/graph_config.yaml", ASKING)
    runs = []
    with FakeProvider(answers="a1") as server:
        for name in ("one", "two"):
            code, out, _ = karat(
                "run", "eval/qa", "--model", server.spec(name), "--output_dir", "out", "--json"
            )
            assert code == 0
            runs.append(json.loads(out)["runs"][0]["id"])
        assert server.stats()["count"] == 20
    models.close()
    # from here on there is nobody to ask
    code, out, _ = karat(
        "evaluate", *runs, "-e", '{"name": "contains", "params": {"path": "said"}}', "--json"
    )
    assert code == 0
    assert json.loads(out)["counts"]["ok"] == 20
    again = '{"name": "from_output", "params": {"field": "exact_match"}, "pass_fail": true}'
    code, out, _ = karat("evaluate", runs[0], "-e", again, "--json")
    assert (code, json.loads(out)["counts"]["ok"]) == (0, 10)
    code, out, _ = karat("compare", *runs)
    assert code == 0
    assert "exact_match accuracy" in out
    code, out, _ = karat("rank", *runs, "--metric", "exact_match", "--json")
    assert code == 0
    assert all(run in out for run in runs)


REPORTS = """
class Own:
    def process(self, output_data):
        return {"evaluation_summary": {"status": "WORD", "total_records": len(output_data)}}
"""


@pytest.mark.parametrize(("word", "code"), [("success", 0), ("reviewed", 0), ("partial", 1), ("no_data", 1)])
def test_the_status_of_a_custom_report_decides_the_exit_code(karat, project, word, code):
    project.write("tasks/eval/qa/graph_config.yaml", GRAPH + "  - processor: reports.Own\n")
    project.write("tasks/eval/qa/reports.py", REPORTS.replace("WORD", word))
    assert karat("run", "eval/qa", "-n", "2", "--output_dir", "out")[0] == code


PRESSED = """
import asyncio, os, signal

async def predict(state):
    with open("calls", "a") as file:
        file.write(state["id"] + " ")
    if state["id"] == "q03" and not os.path.exists("pressed"):
        open("pressed", "w").close()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    return {"said": state["answer"]}
"""


def test_an_interrupted_run_continues_by_record(karat, project):
    import os
    import signal
    import subprocess
    import sys

    project.write("tasks/eval/qa/code.py", PRESSED)
    command = [
        sys.executable,
        "-m",
        "karat",
        "run",
        "--task",
        "eval/qa",
        "--batch_size",
        "1",
        "--output_dir",
        "out",
    ]

    def press_as_from_a_terminal():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

    first = subprocess.run(
        command, capture_output=True, text=True, timeout=60, preexec_fn=press_as_from_a_terminal,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert first.returncode == 130, first.stderr
    assert "to continue: karat run --task eval/qa" in first.stderr
    assert not list((project.folder / "out").iterdir())
    code, _, _ = karat(
        "run", "--task", "eval/qa", "--batch_size", "1", "--output_dir", "out", "--resume", "True"
    )
    assert code == 0
    calls = (project.folder / "calls").read_text().split()
    assert calls == ["q00", "q01", "q02", "q03", "q03", *(f"q{at:02}" for at in range(4, 10))]
    assert len(files(project)["output"]) == 10


def test_a_metric_is_ranked_by_under_the_name_that_comparisons_show(karat, project, says):
    for _ in range(2):
        assert karat("run", "eval/qa", "--output_dir", "out", "--new")[0] == 0
    runs = [run["id"] for run in json.loads(karat("ls", "runs", "--json")[1])["runs"]]
    shown = json.loads(karat("compare", *runs, "--json")[1])["differences"][0]
    assert (shown["evaluator"], shown["aggregator"]) == ("exact_match", "accuracy")
    code, out, _ = karat("rank", *runs, "--metric", "exact_match accuracy", "--json")
    assert (code, json.loads(out)["source"]) == (0, "exact_match")
    says(karat("rank", *runs, "--metric", "exact_match-recal")[2])


def test_an_unknown_dotted_name_is_neither_task_nor_module(karat, says):
    code, _, told = karat("run", "evl.qa")
    assert code == 2
    assert "no task 'evl.qa'" in told
    says(told)
    code, _, told = karat("run", "nope.task")
    assert code == 2
    assert "no task 'nope.task'" in told
    says(told)
    says(karat("run", "json.dumps")[2])


def test_a_check_tells_one_record_as_one(karat, project, says):
    project.rows("rows.jsonl", [{"id": "q", "answer": "a"}])
    says(karat("run", "eval/qa", "--check")[1])


FAILING = """
data_config: {examples: [{id: a}, {id: b}, {id: c}]}
graph_config: {nodes: {one: {node_type: lambda, lambda: code.one, output_keys: [x]}}}
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise ValueError('the tokenizer is missing')", True),
        ("raise ValueError(f'no {state[\"id\"]}')", False),
        ("raise ValueError('no b' if state['id'] == 'b' else 'no')", False),
        ("raise (ValueError if state['id'] == 'a' else KeyError)('no')", False),
        ("return {'x': 1 / (state['id'] == 'a')}", False),
    ],
)
def test_when_all_records_fail_for_one_reason_it_is_reported(karat, project, body, told, says):
    project.write("t/code.py", f"def one(state):\n    {body}\n")
    project.write("t/graph_config.yaml", FAILING)
    code, out, _ = karat("run", "t", "--output_dir", "out")
    assert code == 1
    reasons = [line for line in out.splitlines() if "node one" in line]
    assert any("of 3" not in reason for reason in reasons) is told
    says(*reasons)


def test_failures_are_counted_by_their_reason(karat, project, monkeypatch, says):
    examples = ", ".join(f"{{id: '{letter}'}}" for letter in "abcdefgh")
    project.write(
        "t/code.py",
        "def one(state):\n    raise ValueError('no ' + 'xxxyyzvw'['abcdefgh'.index(state['id'])])\n",
    )
    project.write("t/graph_config.yaml", FAILING.replace("{id: a}, {id: b}, {id: c}", examples))
    _, out, _ = karat("run", "t", "--output_dir", "out")
    says(*[line for line in out.splitlines() if "of 8" in line or "more failures" in line])
    monkeypatch.setattr("karat.analysis.outcomes.MOST_READ", 7)  # of more failures, not all messages are read
    _, out, _ = karat("run", "t", "--output_dir", "out", "--new")
    says(*[line for line in out.splitlines() if "failed: node" in line])
