"""Failed records: their errors, and their count in the reports, also after a resume."""

from __future__ import annotations

import json

import pytest

import karat
from karat.graph import load_task, write_files
from tests.graph.yaml_parts import filled

GRAPH = filled("""
data_config: {source: {type: disk, file_path: rows.jsonl}}
graph_config:
  nodes:
    score: {node_type: lambda, lambda: code.score, output_keys: [score]}
    metrics: JUDGING
output_config:
  output_map:
    id: {from: id}
    points: {from: score.value}
    said: {from: said}
    exact_match: {from: exact_match}
graph_post_process:
  - processor: code.Sum
  - processor: code.Whole
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      aggregator_metrics_map:
        - {name: accuracy, unit_metrics_results: [exact_match]}
        - {name: precision, unit_metrics_results: [exact_match]}
        - {name: recall, unit_metrics_results: [exact_match]}
        - {name: f1_score, unit_metrics_results: [exact_match]}
""")
CODE = """
from pathlib import Path
from karat.graph import GraphPostProcessor

def score(state):
    if state["said"] == "crash" and not Path("mended").exists():
        raise ValueError("no")
    return {"score": {"value": float(state["points"])}}

class Sum(GraphPostProcessor):
    def start(self, metadata):
        self.metadata, self.sum, self.count = metadata, 0, 0
    def add(self, record):
        self.sum, self.count = self.sum + record["points"], self.count + 1
    def finish(self):
        told = {key: value for key, value in self.metadata.items() if key.endswith("_records")}
        return {"sum": self.sum, "count": self.count, **told}

class Whole:
    def process(self, data, metadata):
        told = {key: value for key, value in metadata.items() if key.endswith("_records")}
        return {"sum": sum(r["points"] for r in data), "count": len(data), **told}
"""


@pytest.fixture
def task(project):
    project.write("t/graph_config.yaml", GRAPH)
    project.write("t/code.py", CODE)

    def load(rows: list[dict]):
        project.rows("rows.jsonl", rows)
        return load_task("t")

    return load


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_value_that_cannot_be_stored_is_the_failure_of_the_node_that_set_it(project, task, value, says):
    task([{"id": "a", "answer": "x", "said": "x", "points": value}])
    [failure] = project.run("t").failures
    assert failure["node"] == "score"
    assert failure["error"].startswith("UnsupportedType: ")
    says(failure["error"])


def test_a_value_that_no_one_node_set_is_the_failure_of_the_output(project, task, says):
    task([{"id": "a", "answer": "x", "said": "x", "points": "1"}])
    project.write("t/graph_config.yaml", GRAPH.replace("{from: said}", "{from: said, transform: code.far}"))
    project.write("t/code.py", CODE + "\ndef far(value, state):\n    return object()\n")
    [failure] = project.run("t").failures
    assert failure["node"] == "output"
    says(failure["error"])


def rows(count: int) -> list[dict]:
    said = {3: "crash", 5: "crash", 6: "other"}
    return [
        {"id": str(i), "answer": "yes", "said": said.get(i, "yes"), "points": str(i)} for i in range(count)
    ]


def reports(run, task, project, name: str) -> dict[str, dict]:
    written = write_files(run, task, project.folder / name)
    return {key: json.loads(path.read_text())[0] for key, path in written.reports.items()}


def test_reports_count_what_failed_and_after_a_retry_what_was_mended(project, task):
    graph = task(rows(10))
    dataset = graph.dataset()
    with karat.open_store(project.folder / "karat.db") as store:
        first = karat.run(graph, dataset, store=store, progress=False)
        found = reports(first, graph, project, "first")
        right = {"sum": 37.0, "count": 8, "total_records": 10, "failed_records": 2}
        assert found["Sum"] == found["Whole"] == {**right, "pending_records": 0, "skipped_records": 0}
        results = found["MetricCollatorPostProcessor"]["results"]
        accuracy = results["exact_match-accuracy"]
        assert (accuracy["accuracy"], accuracy["n"], accuracy["of"]) == (7 / 8, 8, 10)
        assert accuracy["accuracy_bounds"] == [0.7, 0.9]
        assert {(r["n"], r["of"]) for r in results.values()} == {(8, 10)}, "counted once for each, not thrice"

        project.write("mended", "")
        second = karat.run(graph, dataset, store=store, progress=False, retry_failed=True)
        assert second.id == first.id
        found = reports(second, graph, project, "second")
        assert found["Sum"]["sum"] == found["Whole"]["sum"] == 45.0
        assert found["Sum"]["failed_records"] == 0
        report = found["MetricCollatorPostProcessor"]
        assert report["evaluation_summary"]["status"] == "success"
        assert report["results"]["exact_match-accuracy"]["n"] == 10


def test_reports_after_a_run_that_was_stopped_and_continued_are_those_of_one_that_was_not(project, task):
    graph = task(rows(40))
    dataset = graph.dataset()
    with karat.open_store(project.folder / "karat.db") as store:
        with pytest.raises(karat.errors.Aborted):
            karat.run(graph, dataset, store=store, progress=False, concurrency=2, abort_on_error=True)
        [stopped] = store.runs.list()
        assert stopped.counts.pending
        found = reports(stopped, graph, project, "stopped")
        counts = stopped.counts
        assert found["Sum"]["count"] == found["Whole"]["count"] == counts.ok
        assert found["Sum"]["pending_records"] == counts.pending
        summary = found["MetricCollatorPostProcessor"]["evaluation_summary"]
        assert (summary["total_records"], summary["status"]) == (40, "partial")

        continued = karat.run(graph, dataset, store=store, progress=False)
        assert continued.id == stopped.id
        whole = karat.run(graph, dataset, store=store, progress=False, new=True)
        ours, others = (reports(r, graph, project, r.id) for r in (continued, whole))
        for report in (ours, others):
            report["MetricCollatorPostProcessor"]["evaluation_summary"].pop("timestamp")
        assert ours == others
        assert ours["Sum"]["count"] == 38


ENDS = """
class Ends(BaseException):
    pass

KINDdef score(state):
    raise Ends("now")
"""


@pytest.mark.parametrize("kind", ["", "async "])
def test_any_exception_of_a_node_is_its_failure(project, task, kind):
    task(rows(1))
    project.write("t/code.py", CODE + ENDS.replace("KIND", kind))
    assert project.run("t").failures == [{"id": "0", "node": "score", "error": "Ends: now"}]


def test_a_cancellation_raised_by_a_node_is_its_failure(project, task):
    task(rows(1))
    own = "\nimport asyncio\n\nasync def score(state):\n    raise asyncio.CancelledError\n"
    project.write("t/code.py", CODE + own)
    assert project.run("t").failures == [{"id": "0", "node": "score", "error": "CancelledError"}]


TIMED = """
data_config: {examples: [{id: a, q: x}]}
graph_config:
  nodes:
    quick: {node_type: lambda, lambda: code.quick, output_keys: [one]}
    slow: {node_type: lambda, lambda: code.SLOW, output_keys: [two]}
"""


@pytest.mark.parametrize("kind", ["waits", "blocks"])
def test_a_timeout_names_its_node(project, kind, says):
    project.write("t/code.py", """
import asyncio, threading
def quick(state): return {"one": 1}
async def waits(state): await asyncio.Event().wait()
def blocks(state): threading.Event().wait(2)
""")  # fmt: skip
    project.write("t/graph_config.yaml", TIMED.replace("SLOW", kind))
    outcome = project.run("t", timeout=0.2)
    [output] = outcome.run.outputs()
    assert output.outcome.error.metadata["node"] == "slow"
    [failure] = outcome.failures
    assert failure["node"] == "slow"
    says(failure["error"])


def test_a_timeout_inside_a_subgraph_or_beside_other_branches_names_what_was_running(project):
    project.write("t/code.py", """
import asyncio
async def quick(state): return {"one": 1}
async def waits(state): await asyncio.Event().wait()
""")  # fmt: skip
    inner = "graph_config: {nodes: {slow: {node_type: lambda, lambda: code.waits, output_keys: [two]}}}\n"
    project.write("t/part/graph_config.yaml", inner)
    project.write("t/part/code.py", (project.folder / "t/code.py").read_text())
    project.write("t/graph_config.yaml", """
data_config: {examples: [{id: a}]}
graph_config:
  nodes:
    quick: {node_type: lambda, lambda: code.quick, output_keys: [one]}
    sub: {node_type: subgraph, subgraph: part}
""")  # fmt: skip
    [failure] = project.run("t", timeout=0.2).failures
    assert failure["node"] == "sub.slow"
    project.write("t/graph_config.yaml", """
data_config: {examples: [{id: a}]}
graph_config:
  nodes:
    quick: {node_type: lambda, lambda: code.quick, output_keys: [one]}
    left: {node_type: lambda, lambda: code.waits, output_keys: [x]}
    right: {node_type: lambda, lambda: code.waits, output_keys: [y]}
  edges: [{from: START, to: [quick, left, right]}, {from: [quick, left, right], to: END}]
""")  # fmt: skip
    [failure] = project.run("t", timeout=0.2).failures
    assert failure["node"] == "left, right"
