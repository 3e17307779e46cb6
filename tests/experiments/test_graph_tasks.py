"""Graph tasks in experiments: named by path, with their own data and metrics or those of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from karat.cli import main

GRAPH = """
data_config:
  examples: [{id: a, answer: Paris, said: paris}, {id: b, answer: Rome, said: roma}]
graph_config:
  nodes:
    predict: {node_type: lambda, lambda: predicting.predict, output_keys: [predicted]}
    metrics:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetrics
      golden_key: answer
      predicted_key: predicted
      unit_metrics_map: [{name: exact_match}]
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params: {aggregator_metrics_map: [{name: accuracy, unit_metrics_results: [exact_match]}]}
"""
PREDICT = "def predict(state):\n    return {'predicted': state.get('always') or state['said']}\n"


@pytest.fixture
def karat(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("KARAT_STORE", "KARAT_MODEL"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "experiments"
    (place / "qa").mkdir(parents=True)
    (place / "qa" / "graph_config.yaml").write_text(GRAPH)
    (place / "qa" / "predicting.py").write_text(PREDICT)

    def run(text: str, *more: str):
        path = place / "experiment.yaml"
        path.write_text(text)
        capsys.readouterr()
        code = main(["run", str(path), "--json", *more])
        captured = capsys.readouterr()
        return code, json.loads(captured.out), captured.out + captured.err

    return run


@pytest.mark.parametrize("task", ["qa", "{graph: qa}", "{graph: qa/graph_config.yaml, name: qa}"])
def test_a_graph_brings_its_data_and_its_metrics(karat, task):
    code, document, _ = karat(f"task: {task}\n")
    assert code == 0
    assert document["runs"][0]["counts"]["ok"] == 2
    assert document["runs"][0]["task"] == "qa"
    assert document["evaluation"]["counts"]["ok"] == 2
    assert [e["value"] for e in document["aggregation"]["estimates"]] == [0.5]


def test_a_dataset_evaluators_and_aggregators_of_the_file(karat):
    text = (
        "task: qa\n"
        "dataset: [{id: x, input: {answer: Oslo, said: oslo}}, {id: y, input: {answer: Bonn, said: bonn}}]\n"
        "evaluators: [{name: from_output, params: {field: exact_match}, key: same}]\n"
        "aggregators: [mean]\n"
    )
    code, document, _ = karat(text)
    assert code == 0
    [estimate] = document["aggregation"]["estimates"]
    assert (estimate["value"], estimate["n"]) == (1.0, 2)


def test_a_matrix_over_the_variables_of_a_graph_is_compared(karat, capsys):
    code, document, _ = karat("task: {graph: qa}\nmatrix: {always: [Paris, Milan]}\n")
    assert code == 0
    assert [run["metadata"]["matrix"] for run in document["runs"]] == [
        {"always": "Paris"},
        {"always": "Milan"},
    ]
    assert "comparison" in document
    first, second = (run["id"] for run in document["runs"])
    assert main(["compare", first, second, "--json"]) == 0
    assert main(["rank", document["evaluation"]["id"], "--json"]) == 0
    assert main(["report", document["aggregation"]["id"]]) == 0
    capsys.readouterr()


def test_params_of_the_command_line_are_variables(karat):
    _, document, _ = karat("task: {graph: qa, run_args: {always: Milan}}\n", "--param", "always=Rome")
    outputs = document["runs"][0]
    assert outputs["parameters"]["run_args"] == {"always": "Rome"}


def test_mistakes_of_both_files_are_reported_at_once(karat, says):
    Path("experiments/qa/graph_config.yaml").write_text(
        GRAPH.replace("golden_key: answer", "golden_kye: answer")
    )
    code, _, told = karat("task: {graph: qa}\naggregators: [accurcy]\n")
    assert code == 2
    says("\n".join(json.loads(told)["error"]["problems"]))


def test_a_dataset_that_lacks_what_the_graph_asks_for(karat, says):
    code, _, told = karat("task: qa\ndataset: [{input: {said: oslo}}]\n")
    assert code == 2
    says(json.loads(told)["error"]["message"])


def test_a_function_needs_a_dataset_although_a_graph_has_its_own(karat, says):
    code, _, told = karat("task: predicting.py:predict\n")
    assert code == 2
    says(json.loads(told)["error"]["message"])


def test_checking_runs_nothing(karat, tmp_path):
    code, document, _ = karat("task: qa\n", "--check")
    assert (code, document["examples"], document["evaluators"]) == (0, 2, 1)
    assert not (tmp_path / "karat.db").exists()


def test_a_field_that_a_graph_judged_is_an_evaluator(karat):
    code, made, said = karat(
        "task: {graph: qa}\nevaluators: [{from_output: exact_match}]\naggregators: [accuracy]\n"
    )
    assert code == 0, said
    (estimate,) = [e for e in made["aggregation"]["estimates"] if e["aggregator"] == "accuracy"]
    assert (estimate["value"], estimate["n"]) == (0.5, 2)


def test_a_mistake_beside_the_field_names_what_there_is(karat, says):
    code, _, said = karat("task: {graph: qa}\nevaluators: [{from_output: exact_match, keyy: x}]\n")
    assert code == 2
    says(json.loads(said)["error"]["message"])


def test_the_files_of_a_graph_are_written_where_the_experiment_says_so(karat):
    assert "files" not in karat("task: qa\n")[1]
    text = "task: {graph: qa, output_dir: out}\nmatrix: {always: ['', Rome]}\n"
    code, document, told = karat(text)
    assert code == 0
    folder = Path("experiments/out")
    runs = [run["id"] for run in document["runs"]]
    names = sorted(f"{run}_{word}.json" for run in runs for word in ("output", "MetricCollatorPostProcessor"))
    assert sorted(Path(file).name for file in document["files"]) == names
    assert sorted(file.name for file in folder.iterdir()) == names
    assert "wrote" in told
    reports = [
        json.loads((folder / f"{run}_MetricCollatorPostProcessor.json").read_text())[0] for run in runs
    ]
    assert [report["results"]["exact_match-accuracy"]["accuracy"] for report in reports] == [0.5, 0.5]
    said = [[r["predicted"] for r in json.loads((folder / f"{run}_output.json").read_text())] for run in runs]
    assert said == [["paris", "roma"], ["Rome", "Rome"]]
    karat(text)  # returns the runs, and writes the same files again
    assert sorted(file.name for file in folder.iterdir()) == names


def test_a_post_processor_that_fails_is_reported(karat):
    folder = Path("experiments/qa")
    (folder / "reporting.py").write_text(
        "class Mine:\n    def process(self, data):\n        raise ValueError('no')\n"
    )
    (folder / "graph_config.yaml").write_text(GRAPH + "  - processor: reporting.Mine\n")
    _, document, told = karat("task: {graph: qa, output_dir: out}\n")
    assert "ValueError: no" in told
    assert document["runs"][0]["status"] == "success"


def test_a_graph_that_asks_no_model_does_not_depend_on_model_variables(karat, monkeypatch):
    _, first, _ = karat("task: qa\n")
    monkeypatch.setenv("KARAT_MODEL", "openai/other")
    monkeypatch.setenv("OPENAI_MODEL", "another")
    _, second, _ = karat("task: qa\n")
    assert second["runs"][0]["id"] == first["runs"][0]["id"]
