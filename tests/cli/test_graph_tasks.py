"""Graph tasks on the command line: drawings without a model, names that are nearly right, distinct labels of runs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from karat import models
from karat.graph import load_task
from karat.graph.sygra._imports import task_imports
from karat.testing import FakeProvider


@pytest.fixture(autouse=True)
def _without_a_model(monkeypatch):
    for name in ("KARAT_MODEL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    yield
    models.close()


@pytest.mark.parametrize("task", ["eval/question_answering/simpleqa", "eval/classification/simpleqa"])
def test_a_drawing_needs_no_model(karat, task):
    said = karat("graph", task)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("flowchart TD")


def test_a_check_without_a_model_checks_the_rest_and_says_what_a_run_needs(karat, folder, says):
    write(folder, TASK.replace("said, model: ", "said"))
    said = karat("run", "qa", "--check")
    assert said.code == 0
    assert "OK: task" in said.out
    says(said.err)
    says(karat("run", "qa").err)
    assert karat("run", "qa", "--check", "--model", "m@http://h.invalid/v1").err == ""


def test_a_drawing_does_not_need_the_models_of_the_task(karat, folder):
    write(folder, TASK.replace("model:", "model: {name: gpt-of-another-tool}"))
    assert karat("graph", "qa").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["tasks.eval.question_answering.simplqa"],
        ["tasks.eval.question_answering.simplqa", "-n", "5"],
        ["eval.question_answering.simplqa"],
    ],
)
def test_a_misspelt_dotted_task_is_reported_as_one(karat, arguments, says):
    said = karat("run", *arguments)
    assert said.code == 2
    assert f"no task '{arguments[0]}'" in said.err
    says(said.err)


def test_a_function_of_a_module_called_tasks_is_not_a_task(karat, folder, says):
    (folder / "tasks").mkdir()
    (folder / "tasks/mine.py").write_text("def answer(question):\n    return question\n")
    says(karat("run", "tasks.mine.answer").err)


TASK = """
data_config: {examples: [{id: a, question: "2 + 2", answer: {text: "4"}}]}
graph_config:
  nodes:
    ask: {node_type: llm, prompt: [{user: "{question}"}], output_keys: said, model: }
    metrics:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetrics
      golden_key: answer
      predicted_key: said
      unit_metrics_map: [{name: exact_match}]
      output_keys: [exact_match]
output_config: {output_map: {id: {from: id}, exact_match: {from: exact_match}}}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params: {aggregator_metrics_map: [{name: accuracy, unit_metrics_results: [exact_match]}]}
"""


def write(folder: Path, text: str) -> None:
    (folder / "qa").mkdir(exist_ok=True)
    (folder / "qa/graph_config.yaml").write_text(text)


def test_runs_of_one_graph_with_two_models_are_called_by_their_models(karat, folder):
    write(folder, TASK.replace("said, model: ", "said"))
    with FakeProvider("4") as server:
        runs = [
            karat("run", "qa", "--model", f"meta-{name}@{server.url}", "--json").json["runs"][0]["id"]
            for name in "ab"
        ]
    said = karat("compare", *runs)
    assert said.code == 0, said.err
    assert "meta-a" in said.out
    assert "meta-b" in said.out
    assert "{" not in said.out


def test_a_misspelt_transformation_has_a_nearest_name(karat, folder, says):
    source = {"type": "examples", "examples": [{"id": "a"}], "transformations": [{"transform": "renam"}]}
    nodes = {"m": {"node_type": "lambda", "lambda": "json.dumps"}}
    write(folder, json.dumps({"data_config": {"source": source}, "graph_config": {"nodes": nodes}}))
    said = karat("run", "qa", "--check")
    assert said.code == 2
    says(said.err)


DRAW = "data_config: {examples: [{id: a}]}\ngraph_config: {nodes: {m: {node_type: lambda, lambda: code.f}}}\n"


def test_an_option_is_called_as_it_was_written(karat, folder, says):
    write(folder, DRAW)
    for name in ("--run_args", "--run-args", "-ra"):
        said = karat("run", "qa", name, "x").err
        assert f" {name}: " in said
        says(said)
    says(karat("run", "qa", "--output_with_ts=x").err)


def test_a_check_uses_singular_and_plural(karat, folder):
    write(folder, TASK.replace("said, model: ", "said"))
    assert (
        "2 nodes, 1 post-processor\n" in karat("run", "qa", "--check", "--model", "m@http://h.invalid/v1").out
    )


def test_the_latest_failures_are_those_of_the_run_that_had_them(karat, folder):
    write(folder, TASK.replace("said, model: ", "said"))
    with FakeProvider("") as server:
        run = karat("run", "qa", "--model", f"m@{server.url}", "--json").json["runs"][0]["id"]
    said = karat("show", "latest", "--failed", "--json").json
    assert said["id"] == run
    assert [kind["status"] for kind in said["kinds"]] == ["failed"]


def test_a_misspelt_dotted_task_is_reported_beside_tasks_that_were_loaded(karat, monkeypatch):
    """Files of tasks import `tasks` and its parts, which are found for the whole process from then on."""
    monkeypatch.setenv("KARAT_MODEL", "local/smollm2-135m")
    load_task("eval/question_answering/simpleqa")
    task_imports()
    assert importlib.import_module("tasks.eval.utils").UnitMetrics
    said = karat("run", "tasks.eval.question_answering.simplqa")
    assert "no task 'tasks.eval.question_answering.simplqa'" in said.err
