"""The files of a graph run: names, formats, reports that fail, sinks; and the same results in the store."""

from __future__ import annotations

import json
import re

import pytest

import karat
from karat.errors import RequestError
from karat.graph import load_task, write_files
from tests.graph.yaml_parts import filled

GRAPH = filled(
    """
data_config:
  examples: [{id: a, topic: Music, said: music}, {id: b, topic: Sports, said: Other}, {id: c, topic: null, said: x}]
  SINK
graph_config:
  nodes:
    unit_metrics: JUDGING
output_config:
  output_map:
    id: {from: id}
    topic: {from: topic}
    exact_match: {from: exact_match}
graph_post_process:
""",
    golden="topic",
)
COLLATOR = filled("""
  - ACCURACY
""")
OWN = """
from karat.graph import GraphPostProcessor

class Failing(GraphPostProcessor):
    def process(self, data, metadata):
        raise ValueError("cannot report")

class Wrong(GraphPostProcessor):
    def process(self, data, metadata):
        return 7

class FailingStream(GraphPostProcessor):
    def add(self, record):
        raise KeyError("nothing")

    def finish(self):
        return {}

class Flatten(GraphPostProcessor):
    def process(self, data, metadata):
        return [{"exact_match": record["exact_match"]} for record in data for _ in range(2)]

class Counts(GraphPostProcessor):
    def process(self, data, metadata):
        return {"seen": len(data), **{k: v for k, v in metadata.items() if k.endswith("_records")}}

def music(record):
    return record["topic"] == "Music"
"""


@pytest.fixture
def run(project):
    project.write("t/own.py", OWN)

    def go(processors: str = COLLATOR, sink: str = "", **options):
        project.write("t/graph_config.yaml", GRAPH.replace("SINK", sink) + processors)
        return project.run("t", **options)

    return go


def test_files_are_named_by_run_time_and_processor(run):
    outcome = run(run_name="first")
    assert re.fullmatch(r"first_output_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d\.json", outcome.written.output.name)
    assert {p.name.replace("output", "X", 1) for p in [outcome.written.output]} == {
        p.name.replace("MetricCollatorPostProcessor", "X") for p in outcome.written.reports.values()
    }
    plain = run(with_time=False)
    assert plain.written.output.name == "output.json"
    assert plain.written.failed.name == "failed.json"


def test_two_exports_in_the_same_second_do_not_overwrite_each_other(run, project):
    outcome = run()
    again = write_files(outcome.run, outcome.task, project.folder / "out")
    assert again.output != outcome.written.output
    assert again.output.read_bytes() == outcome.written.output.read_bytes()


def test_a_run_name_cannot_lead_out_of_the_folder(run, refuses):
    with refuses(RequestError):
        run(run_name="../../etc")


def test_a_record_that_cannot_be_judged_is_failed_not_wrong(run):
    outcome = run()
    [failure] = outcome.failures
    assert failure["id"] == "c"
    assert failure["node"] == "unit_metrics"
    assert "CannotJudge" in failure["error"]
    accuracy = outcome.report()["results"]["exact_match-accuracy"]
    assert (accuracy["accuracy"], accuracy["n"], accuracy["of"]) == (0.5, 2, 3)


def test_a_failed_processor_is_reported_and_the_others_run(run, says):
    outcome = run("  - own.Failing\n  - own.Wrong\n  - own.FailingStream\n" + COLLATOR.lstrip("\n"))
    assert outcome.report("Failing")["evaluation_summary"] == {
        "total_records": 3, "status": "fatal_error", "error": "ValueError: cannot report",
    }  # fmt: skip
    says(outcome.report("Wrong")["evaluation_summary"]["error"])
    assert outcome.report("FailingStream")["evaluation_summary"]["error"] == "KeyError: 'nothing'"
    assert set(outcome.written.errors) == {"Failing", "Wrong", "FailingStream"}
    assert outcome.report()["results"]["exact_match-accuracy"]["n"] == 2


def test_a_processor_can_work_on_what_the_one_before_it_gave(run):
    collator = COLLATOR.replace("params: {aggr", "params: {use_previous_output: true, aggr").lstrip("\n")
    outcome = run("  - processor: own.Flatten\n" + collator)
    items = json.loads(outcome.written.reports["Flatten"].read_text())
    assert len(items) == 4
    assert outcome.report()["results"]["exact_match-accuracy"]["of"] == 5  # four, and the record that failed


@pytest.mark.parametrize("written", ["own.music", "{topic: Music}", "{exact_match.correct: true}"])
def test_a_filter_decides_which_records_a_processor_gets(run, written):
    outcome = run(f"  - processor: own.Counts\n    filter: {written}\n" + COLLATOR.lstrip("\n"))
    assert outcome.report("Counts") == {
        "seen": 1, "total_records": 3, "failed_records": 1, "pending_records": 0, "skipped_records": 1,
    }  # fmt: skip
    assert outcome.report()["evaluation_summary"]["evaluated_records"] == 2


def test_sinks_get_the_records(run, project):
    sinks = ["{type: json, file_path: a/x.json}", "{type: jsonl, file_path: x.jsonl}", "{type: csv, file_path: x.csv}",
             "{type: disk, file_path: x.parquet}"]  # fmt: skip
    outcome = run(sink=f"sink: [{', '.join(sinks)}]")
    assert json.loads((project.folder / "a/x.json").read_text()) == outcome.records
    assert [
        json.loads(line) for line in (project.folder / "x.jsonl").read_text().splitlines()
    ] == outcome.records
    lines = (project.folder / "x.csv").read_text().splitlines()
    assert lines[0] == "id,topic,exact_match"
    assert lines[1].startswith('a,Music,"{""correct"":true')
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(project.folder / "x.parquet").column("id").to_pylist() == ["a", "b"]


def test_unit_metrics_become_an_evaluation_of_the_store(run):
    from karat.graph.metrics._collator import stored_metrics

    outcome = run()
    evaluators, aggregators = stored_metrics(outcome.task)
    evaluation = karat.evaluate(outcome.run, evaluators)
    assert (evaluation.counts.ok, evaluation.counts.skipped) == (2, 1)
    results = [item.result for item in evaluation.results() if item.result is not None]
    assert [r.score for r in results] == [1.0, 0.0]
    assert results[0].metadata["golden"] == {"text": "Music"}
    aggregation = karat.aggregate(evaluation, aggregators)
    estimate = aggregation.estimates.get(evaluator="exact_match", aggregator="accuracy")
    assert (estimate.value, estimate.n, estimate.of) == (0.5, 2, 3)


def test_outputs_can_be_scored_again_without_running(run):
    outcome = run()
    evaluation = karat.evaluate(outcome.run, [{"name": "contains", "params": {"path": "topic"}}])
    assert evaluation.counts.total == 3


def test_a_report_over_values_that_are_not_results_is_refused(run, project):
    task = load_task("t") if (project.folder / "t/graph_config.yaml").exists() else run().task
    made = task.graph.processors[0].make()
    [report] = made.process(
        [{"exact_match": {"correct": "yes"}}, {"exact_match": {"correct": True}}, {"exact_match": None}], {}
    )
    assert report["evaluation_summary"]["status"] == "partial"
    assert report["evaluation_summary"]["invalid_results"]["exact_match"]["count"] == 1
    assert report["results"]["exact_match-accuracy"]["n"] == 1
    assert report["results"]["exact_match-accuracy"]["of"] == 3


UNUSUAL = """
class Nothing:
    def start(self, metadata):
        pass

    def add(self, record):
        pass

    def finish(self):
        return []

class Unwritable:
    def process(self, data):
        return {"value": object()}

def broken(record):
    raise KeyError("no such field")
"""


def test_a_failed_or_empty_report_leaves_the_others(run, project, says):
    project.write("t/unusual.py", UNUSUAL)
    outcome = run(
        "  - unusual.Nothing\n  - unusual.Unwritable\n  - {processor: own.Counts, filter: unusual.broken}\n"
        + COLLATOR.lstrip("\n")
    )
    assert json.loads(outcome.written.reports["Nothing"].read_text()) == []
    says(outcome.report("Unwritable")["evaluation_summary"]["error"])
    assert outcome.report("Counts")["evaluation_summary"]["error"] == "KeyError: 'no such field'"
    assert set(outcome.written.errors) == {"Unwritable", "Counts"}
    assert outcome.report()["results"]["exact_match-accuracy"]["n"] == 2


def test_a_processor_of_three_steps_needs_no_base_to_be_given_records_one_by_one(run, project):
    project.write("t/unusual.py", UNUSUAL)
    outcome = run("  - unusual.Nothing\n  - unusual.Unwritable\n" + COLLATOR.lstrip("\n"))
    assert [processor.streams for processor in outcome.task.graph.processors] == [True, False, True]


LISTED = """
from karat.aggregators import BaseAggregatorMetric, aggregator_metric

@aggregator_metric("listed_share")
class ListedShare(BaseAggregatorMetric):
    def calculate(self, unit_metric_results):
        return {"share": sum(r.correct for r in unit_metric_results) / len(unit_metric_results)}
"""


def test_a_metric_that_is_given_results_alone_still_says_of_how_many(run, project):
    project.write("t/listed.py", LISTED)
    outcome = run(COLLATOR.replace("accuracy", "listed_share"))
    assert outcome.report()["results"]["exact_match-listed_share"] == {"share": 0.5, "n": 2, "of": 3}


UNFINISHED = """
import karat.errors

def until(state):
    if state["id"] == "c":
        raise karat.errors.Stopped("enough for today")
    if state["id"] == "a":
        raise ValueError("crash")
    return {"passed": True}
"""


def test_records_that_were_not_run_yet_are_pending_not_failed_and_count(run, project):
    from karat.errors import Stopped

    project.write("t/until.py", UNFINISHED)
    text = GRAPH.replace("SINK", "").replace(
        "  nodes:\n", "  nodes:\n    until: {node_type: lambda, lambda: until.until, output_keys: [passed]}\n"
    )
    project.write("t/graph_config.yaml", text + COLLATOR + "  - own.Counts\n")
    task = load_task("t")
    store = karat.open_store("memory://")
    with pytest.raises(Stopped):
        karat.run(task, task.dataset(), store=store, progress=False, concurrency=1)
    [unfinished] = store.runs.list()
    written = write_files(unfinished, task, project.folder / "out")
    [report] = json.loads(written.reports["MetricCollatorPostProcessor"].read_text())
    summary = {k: v for k, v in report["evaluation_summary"].items() if k != "timestamp"}
    assert summary == {
        "total_records": 3, "evaluated_records": 1, "failed_records": 1, "skipped_records": 0,
        "pending_records": 1, "status": "partial",
    }  # fmt: skip
    accuracy = report["results"]["exact_match-accuracy"]
    assert (accuracy["n"], accuracy["of"]) == (1, 3)
    [counts] = json.loads(written.reports["Counts"].read_text())
    assert (counts["failed_records"], counts["pending_records"]) == (1, 1)
