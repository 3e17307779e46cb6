"""Code of a task that does what it should not: changes what others see, ends the process, gives what cannot be kept."""

from __future__ import annotations

import json

import pytest

from karat.cli import main
from karat.errors import ConfigError, RequestError
from tests.graph.yaml_parts import filled

SHARED = """
data_config: {source: {examples: [{id: 1}, {id: 2}]}}
graph_config:
  nodes:
    draw:
      node_type: weighted_sampler
      attributes: {drawn: {values: [[0]]}}
    change: {node_type: lambda, lambda: code.change, output_keys: [drawn]}
output_config:
  output_map:
    given: {from: given}
    drawn: {from: drawn}
    fixed: {value: [0], transform: code.changed}
"""
CHANGING = """
def change(state):
    state["given"].append(state["id"])
    state["drawn"].append(state["id"])
    return state

def changed(value, state):
    value.append(state["id"])
    return value
"""


def test_a_record_does_not_see_changes_of_another(project):
    project.write("t/graph_config.yaml", SHARED)
    project.write("t/code.py", CHANGING)
    given = {"given": []}
    records = project.run("t", run_args=given).records
    assert records == [{"given": [n], "drawn": [0, n], "fixed": [0, n]} for n in (1, 2)]
    assert given == {"given": []}


JUDGED = filled("""
data_config: {source: {examples: [{id: 1, answer: x, said: x}]}}
graph_config: {nodes: {metrics: JUDGING}}
output_config: {output_map: {id: {from: id}, exact_match: {from: exact_match}}}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    FILTER
    params:
      aggregator_metrics_map:
        - {name: accuracy, unit_metrics_results: [exact_match]}
        - {name: theirs, unit_metrics_results: [exact_match]}
""")
THEIRS = """
import sys

import numpy

from karat.graph.metrics import BaseAggregatorMetric, aggregator_metric

@aggregator_metric("theirs")
class Theirs(BaseAggregatorMetric):
    def calculate(self, results):
        return GIVES

def keep(record):
    sys.exit()
"""


@pytest.mark.parametrize(
    "gives",
    [
        "{'x': float('nan')}",
        "{'x': object()}",
        "{('a', 1): 2}",
        "None",
        "3",
        "sys.exit()",
    ],
)
def test_an_aggregator_that_fails_is_reported_and_the_others_are_computed(project, capsys, gives, says):
    project.write("t/graph_config.yaml", JUDGED.replace("FILTER", ""))
    project.write("t/metrics.py", THEIRS.replace("GIVES", gives))
    assert main(["run", "t", "--output_with_ts", "False"]) == 1
    [report] = json.loads((project.folder / "t/MetricCollatorPostProcessor.json").read_text())
    assert report["evaluation_summary"]["status"] == "partial"
    assert report["results"]["exact_match-accuracy"]["accuracy"] == 1.0
    says(report["results"]["exact_match-theirs"]["error"])
    capsys.readouterr()


def test_numbers_of_numpy_are_numbers(project, capsys):
    project.write("t/graph_config.yaml", JUDGED.replace("FILTER", ""))
    project.write("t/metrics.py", THEIRS.replace("GIVES", "{'x': numpy.int64(3), 'y': [numpy.float32(0.5)]}"))
    assert main(["run", "t", "--output_with_ts", "False", "--json"]) == 0
    [report] = json.loads((project.folder / "t/MetricCollatorPostProcessor.json").read_text())
    assert report["results"]["exact_match-theirs"] == {"x": 3, "y": [0.5]}
    capsys.readouterr()


CLOSE = """
import numpy

from karat.graph.metrics import BaseUnitMetric, UnitMetricResult, unit_metric

@unit_metric("close_enough")
class Close(BaseUnitMetric):
    def evaluate(self, golden, predicted):
        told = {"distance": numpy.float64(0.5), "seen": numpy.int64(2)}
        return [GIVES]
"""


@pytest.mark.parametrize(
    "gives",
    [
        "UnitMetricResult(numpy.isclose(1, 1), 1, 1, told)",
        "{'correct': numpy.isclose(1, 1), 'golden': 1, 'predicted': 1, 'metadata': told}",
    ],
)
def test_verdicts_of_numpy_are_verdicts(project, capsys, gives):
    project.write("t/graph_config.yaml", JUDGED.replace("FILTER", "").replace("exact_match", "close_enough"))
    project.write("t/metrics.py", THEIRS.replace("GIVES", "{'x': 1}") + CLOSE.replace("GIVES", gives))
    assert main(["run", "t", "--output_with_ts", "False"]) == 0, capsys.readouterr()
    record = json.loads((project.folder / "t/output.json").read_text())[0]["close_enough"]
    assert (record["correct"], record["metadata"]) == (True, {"distance": 0.5, "seen": 2})
    capsys.readouterr()


def test_a_filter_that_ends_the_process_ends_only_its_report(project, capsys):
    project.write("t/graph_config.yaml", JUDGED.replace("FILTER", "filter: metrics.keep"))
    project.write("t/metrics.py", THEIRS.replace("GIVES", "{'x': 1}"))
    assert main(["run", "t", "--output_with_ts", "False"]) == 1
    assert "MetricCollatorPostProcessor failed: SystemExit" in capsys.readouterr().out
    assert json.loads((project.folder / "t/output.json").read_text())[0]["id"] == 1


PLAIN = """
data_config:
  source: {type: disk, file_path: rows.jsonl}
  sink: {type: SINK}
graph_config: {nodes: {same: {node_type: lambda, lambda: code.same, output_keys: [y]}}}
output_config: {output_map: {id: {from: id}, x: {from: x}}}
"""
SAME = """
from pathlib import Path

def same(state):
    Path("ran").touch()
    if state["x"] == "crash" and not Path("mended").exists():
        raise ValueError("no")
    return {"y": state["x"]}
"""


@pytest.fixture
def plain(project):
    def write(sink: str, rows: list[dict]) -> None:
        project.write("t/graph_config.yaml", PLAIN.replace("SINK", sink))
        project.write("t/code.py", SAME)
        project.rows("rows.jsonl", rows)

    return write


@pytest.mark.parametrize(
    "arguments", [["--output_dir", "rows.jsonl/out"], ["--run_name", "a/b"], ["--output_dir", "with\0nul"]]
)
def test_files_that_cannot_be_written_are_reported_before_anything_is_run(project, plain, capsys, arguments):
    plain("jsonl, file_path: out.jsonl", [{"id": 1, "x": "a"}])
    assert main(["run", "t", *arguments]) == 2
    assert "cannot be" in capsys.readouterr().err
    assert not (project.folder / "ran").exists()


def test_a_sink_that_cannot_be_written_is_reported_before_anything_is_run(project, plain, capsys, says):
    plain("jsonl, file_path: rows.jsonl/out.jsonl", [{"id": 1, "x": "a"}])
    assert main(["run", "t"]) == 2
    says(capsys.readouterr().err)
    assert not (project.folder / "ran").exists()


def test_a_sink_that_fails_leaves_the_other_files_standing(project, plain, capsys):
    plain("parquet, file_path: out.parquet", [{"id": 1, "x": "a"}, {"id": 2, "x": {"b": 1}}])
    assert main(["run", "t", "--output_with_ts", "False"]) == 1
    assert "out.parquet failed: Arrow" in capsys.readouterr().out
    assert len(json.loads((project.folder / "t/output.json").read_text())) == 2
    assert not [path for path in project.folder.iterdir() if "parquet" in path.name]


def test_failures_of_an_earlier_export_go_with_it(project, plain, capsys):
    plain("jsonl, file_path: out.jsonl", [{"id": 1, "x": "a"}, {"id": 2, "x": "crash"}])
    assert main(["run", "t", "--output_with_ts", "False"]) == 1
    assert (project.folder / "t/failed.jsonl").exists()
    project.write("mended", "")
    assert main(["run", "t", "--output_with_ts", "False", "--retry-failed"]) == 0
    assert not (project.folder / "t/failed.jsonl").exists()
    capsys.readouterr()


def test_a_field_that_only_a_late_record_has_is_there(project):
    project.write(
        "t/graph_config.yaml", PLAIN.replace("  sink: {type: SINK}\n", "").replace("from: x", "from: late")
    )
    project.write("t/code.py", SAME)
    project.rows("rows.jsonl", [{"id": n, "x": 1} for n in range(150)] + [{"id": 150, "x": 1, "late": 2}])
    assert len(project.run("t").records) == 151
    project.rows("rows.jsonl", [{"id": n, "x": 1} for n in range(151)])
    with pytest.raises(RequestError, match="late"):
        project.run("t")


def test_a_filter_without_effect_is_noted(project, says):
    text = JUDGED.replace("FILTER", "")
    text += "  - {processor: metrics.Last, use_previous_output: true, filter: {id: 1}}\n"
    project.write("t/graph_config.yaml", text.replace("{name: theirs", "{name: recall"))
    project.write("t/metrics.py", "class Last:\n    def process(self, data):\n        return data\n")
    [note] = project.run("t").task.notes
    says(note)


def test_a_module_that_cannot_be_imported_is_one_problem(project, refuses):
    project.write("t/graph_config.yaml", SHARED)
    project.write("t/code.py", "import a_package_that_nobody_has\n" + CHANGING)
    with refuses(ConfigError) as refused:
        project.run("t")
    assert len(refused.value.problems) == 1
