"""Records without a result, and data without records: the files and the store count them alike."""

from __future__ import annotations

import json

import pytest

import karat
from karat.cli import main
from karat.evaluators import ExactMatch
from karat.graph import load_task, write_files
from karat.graph.metrics._collator import MetricCollatorPostProcessor, stored_metrics
from karat.graph.metrics._unit import EvaluatorMetric, UnitMetricEvaluator
from karat.records import Skipped
from tests.graph.yaml_parts import filled

GRAPH = filled("""
data_config:
  source: {type: disk, file_path: rows.jsonl}
graph_config:
  nodes:
    predict: {node_type: lambda, lambda: code.predict, output_keys: [said, thought]}
    metrics: JUDGING
  edges:
    - {from: START, to: predict}
    - {from: predict, condition: code.judged, path_map: {yes_please: metrics, no_thanks: END}}
    - {from: metrics, to: END}
output_config:
  output_map: {id: {from: id}, exact_match: {from: exact_match}}
graph_post_process:
  - ACCURACY
""")
CODE = """
def predict(state):
    if state["said"] == "crash":
        raise ValueError("no")
    return {"said": state["said"]}

def judged(state):
    return "yes_please" if state["said"] else "no_thanks"
"""
WHOLE_STATE = GRAPH[: GRAPH.index("output_config:")] + GRAPH[GRAPH.index("graph_post_process:") :]
ENTRY = {"name": "accuracy", "unit_metrics_results": ["exact_match"]}


@pytest.fixture
def task(project):
    project.write("t/graph_config.yaml", GRAPH)
    project.write("t/code.py", CODE)
    rows = [{"id": "a", "answer": "x", "said": "x"}, {"id": "b", "answer": "x", "said": ""}]
    return project.rows("t/rows.jsonl", rows)


def stages(folder):
    """The report of a task, and its evaluation and aggregation in the store."""
    loaded = load_task("t")
    run = karat.run(loaded, loaded.dataset(), store="memory://", progress=False)
    written = write_files(run, loaded, folder / "out")
    evaluators, aggregators = stored_metrics(loaded)
    evaluation = karat.evaluate(run, evaluators, store=run.store, progress=False)
    [report] = json.loads(written.reports["MetricCollatorPostProcessor"].read_text())
    return report, evaluation, karat.aggregate(evaluation, aggregators, store=run.store), run, written


def test_a_record_that_never_came_to_its_unit_metrics_is_skipped_and_counts(project, task, says):
    report, evaluation, aggregation, _, _ = stages(project.folder)
    summary, accuracy = report["evaluation_summary"], report["results"]["exact_match-accuracy"]
    counts = [summary[f"{word}_records"] for word in ("total", "evaluated", "failed", "skipped")]
    assert counts == [2, 1, 0, 1]
    estimate = aggregation.estimates.get(evaluator="exact_match", aggregator="accuracy")
    assert (accuracy["n"], accuracy["of"]) == (estimate.n, estimate.of) == (1, 2)
    assert accuracy["accuracy_bounds"] == [estimate.lowest, estimate.highest] == [0.5, 1.0]
    assert (evaluation.counts.ok, evaluation.counts.skipped, evaluation.counts.not_applicable) == (1, 1, 0)
    [skipped] = [r.outcome for r in evaluation.results() if isinstance(r.outcome, Skipped)]
    says(skipped.reason)
    assert {summary["status"], evaluation.status, aggregation.status} == {"partial"}


def test_a_dropped_record_of_a_whole_state_output_is_not_applicable(project, task):
    project.write("t/graph_config.yaml", WHOLE_STATE)
    report, evaluation, aggregation, run, written = stages(project.folder)
    summary = report["evaluation_summary"]
    assert (summary["evaluated_records"], summary["skipped_records"], summary["failed_records"]) == (1, 1, 0)
    assert (evaluation.counts.ok, evaluation.counts.skipped, evaluation.counts.failed) == (1, 1, 0)
    assert (run.counts.ok, run.status) == (2, "success")
    accuracy, estimate = (
        report["results"]["exact_match-accuracy"],
        aggregation.estimates.get(evaluator="exact_match", aggregator="accuracy"),
    )
    assert (accuracy["n"], accuracy["of"]) == (estimate.n, estimate.of) == (1, 2)
    assert [record["exact_match"] is None for record in json.loads(written.output.read_text())] == [
        False,
        True,
    ]
    assert {summary["status"], evaluation.status} == {"partial"}


def test_a_golden_null_under_the_key_fails_its_record_and_no_metric_counts_it(project, task):
    more = "{name: precision, params: {predicted_key: text}, unit_metrics_results: [exact_match]}"
    reported = GRAPH.replace("aggregator_metrics_map: [", f"aggregator_metrics_map: [{more}, ")
    project.write("t/graph_config.yaml", reported)
    answers: list = [{"text": "x"}, {"text": None}, {"text": None}, None, {"text": "y"}]
    rows = [{"id": str(at), "answer": each, "said": "x"} for at, each in enumerate(answers)]
    project.rows("t/rows.jsonl", rows)
    report, _, _, run, _ = stages(project.folder)
    assert (run.counts.ok, run.counts.failed) == (2, 3)
    found = report["results"].values()
    assert [(each["n"], each["of"]) for each in found] == [(2, 5), (2, 5)]


def test_a_record_that_one_metric_judged_and_another_did_not_is_evaluated():
    right = {"correct": True, "golden": "x", "predicted": "x"}
    entries = [{"name": "accuracy", "unit_metrics_results": ["exact_match", "fuzzy_match"]}]
    rows = [{"exact_match": right, "fuzzy_match": right}, {"exact_match": right, "fuzzy_match": None}]
    [report] = MetricCollatorPostProcessor(entries).process(rows)  # the metadata may be left out
    summary = report["evaluation_summary"]
    assert (summary["evaluated_records"], summary["skipped_records"], summary["status"]) == (2, 0, "partial")
    assert [report["results"][f"{field}-accuracy"]["n"] for field in ("exact_match", "fuzzy_match")] == [2, 1]


def test_a_record_that_a_generator_left_out_is_not_applicable_in_the_store_and_skipped_in_the_report(
    project, task, says
):
    project.write(
        "t/graph_config.yaml", GRAPH.replace("output_map:", "generator: code.Judged\n  output_map:")
    )
    project.write("t/code.py", CODE + """
class Judged:
    def generate(self, state):
        return {"exact_match": state["exact_match"]} if "exact_match" in state else None
""")  # fmt: skip
    report, evaluation, aggregation, _, written = stages(project.folder)
    assert written.left_out == 1
    says(*written.notes)
    assert report["evaluation_summary"]["skipped_records"] == evaluation.counts.not_applicable == 1
    assert report["evaluation_summary"]["status"] == evaluation.status == "success"
    assert aggregation.estimates.get(evaluator="exact_match", aggregator="accuracy").of == 1


@pytest.mark.parametrize("count", [1, 2])
def test_records_that_a_generator_left_out_are_counted_without_a_report(project, task, capsys, count, says):
    graph = GRAPH[: GRAPH.index("graph_post_process:")].replace(
        "output_map:", "generator: code.Some\n  output_map:"
    )
    project.write("t/graph_config.yaml", graph)
    project.write("t/code.py", CODE + f"""
class Some:
    def generate(self, state):
        return None if state["id"] in "ab"[:{count}] else {{"id": state["id"]}}
""")  # fmt: skip
    assert main(["run", "t", "--output_dir", "out", "--store", "memory://", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["left_out"] == count
    says(*[line for line in captured.err.splitlines() if "left out" in line])


def test_where_all_records_failed_the_report_is_partial_as_the_run_is(project, task, says):
    project.rows("t/rows.jsonl", [{"id": "a", "answer": "x", "said": "crash"}])
    report, evaluation, aggregation, run, _ = stages(project.folder)
    summary = report["evaluation_summary"]
    assert {summary["status"], run.status, evaluation.status, aggregation.status} == {"partial"}
    says(summary["error"])


@pytest.mark.parametrize(
    ("rows", "flags"),
    [
        ([], []),
        ([{"id": "a", "answer": "x", "said": "x"}], ["--start_index", "9"]),
        ([{"id": "a"}], ["--data", "empty.jsonl"]),
    ],
)
def test_no_records_are_no_data(project, task, capsys, rows, flags, says):
    project.rows("t/rows.jsonl", rows)
    project.write("t/rows.json", "[]")
    project.write("empty.jsonl", "")
    if not rows:
        project.write("t/graph_config.yaml", GRAPH.replace("rows.jsonl", "rows.json"))
    assert main(["run", "t", "--output_dir", "out", "--store", "memory://", *flags]) == 1
    captured = capsys.readouterr()
    says(captured.err)
    assert "run" in captured.out
    [report] = json.loads(next((project.folder / "out").glob("MetricCollator*")).read_text())
    summary = report["evaluation_summary"]
    assert (summary["status"], summary["total_records"]) == ("no_data", 0)
    assert json.loads(next((project.folder / "out").glob("output_*")).read_text()) == []


def test_null_output_fields_are_reported_with_their_count(project, task, says):
    fields = "thought: {from: thought}, deep: {from: 'notes.list[1]'}, nowhere: {from: notes.nope}, plain: {from: n}"
    project.write(
        "t/graph_config.yaml", GRAPH.replace("{id: {from: id},", "{id: {from: id}, " + fields + ",")
    )
    row = {"answer": "x", "said": "x", "n": None}
    rows = [{"id": "a", "notes": {"list": [1, 2]}, **row}, {"id": "b", "notes": {"list": [1]}, **row}]
    project.rows("t/rows.jsonl", rows)
    *_, written = stages(project.folder)
    records = json.loads(written.output.read_text())
    assert [(record["deep"], record["nowhere"]) for record in records] == [(2, None), (None, None)]
    says(*written.notes)
    assert main(["run", "t", "--output_dir", "told", "--store", "memory://"]) == 0


def test_a_filter_may_be_in_the_params_of_the_collator(project, task, refuses):
    wrong = {"id": "c", "answer": "x", "said": "y"}
    rows = [{"id": "a", "answer": "x", "said": "x"}, wrong]
    project.rows("t/rows.jsonl", rows)
    project.write("t/graph_config.yaml", GRAPH.replace("params: {aggr", "params: {filter: {id: c}, aggr"))
    report, *_ = stages(project.folder)
    assert report["results"]["exact_match-accuracy"]["accuracy"] == 0.0
    assert report["evaluation_summary"]["skipped_records"] == 1
    twice = GRAPH.replace("params: {aggr", "filter: {id: c}, params: {filter: {id: c}, aggr")
    project.write("t/graph_config.yaml", twice)
    with refuses(karat.KaratError):
        load_task("t")


def test_unit_metrics_become_an_evaluation_without_a_report(project, capsys):
    project.write(
        "t/graph_config.yaml",
        filled("""
data_config: {source: {examples: [{id: 1, answer: x, said: x}, {id: 2, answer: x, said: y}]}}
graph_config: {nodes: {metrics: JUDGING}}
output_config: {output_map: {id: {from: id}, judged: {from: exact_match}}}
"""),
    )
    assert main(["run", "t", "--json"]) == 0
    evaluation = json.loads(capsys.readouterr().out)["evaluation"]
    assert [each["key"] for each in evaluation["evaluators"]] == ["judged"]
    assert evaluation["counts"]["ok"] == 2


LOWER = """
from karat.evaluators import BaseUnitMetric, UnitMetricResult
from karat.graph.metrics import MetricMetadata, unit_metric


class Differs(BaseUnitMetric):
    def evaluate(self, golden, predicted):
        return [UnitMetricResult(g != p, g, p) for g, p in zip(golden, predicted)]


@unit_metric("declared")
class Declared(Differs):
    higher_is_better = False


@unit_metric("described")
class Described(Differs):
    def get_metadata(self):
        return MetricMetadata("described", higher_is_better=False)
"""


@pytest.mark.parametrize("name", ["declared", "described"])
def test_the_direction_of_a_unit_metric_is_that_of_its_evaluation(project, capsys, name):
    """A run with nothing but mistakes passed a gate against one without any."""
    project.write("t/my_metric.py", LOWER)
    graph = filled("""
data_config: {source: {examples: [{id: 1, answer: x, said: x}, {id: 2, answer: x, said: y}]}}
graph_config: {nodes: {metrics: JUDGING}}
output_config: {output_map: {id: {from: id}, mistake: {from: exact_match}}}
""")
    project.write("t/graph_config.yaml", graph.replace("exact_match", name))
    assert main(["run", "t", "--json"]) == 0
    [evaluator] = json.loads(capsys.readouterr().out)["evaluation"]["evaluators"]
    assert (evaluator["key"], evaluator["higher_is_better"]) == ("mistake", False)


def test_an_evaluator_among_unit_metrics_keeps_its_direction():
    class Errors(ExactMatch):
        higher_is_better = False

    metric = EvaluatorMetric(Errors(), "errors", 1.0, {})
    assert UnitMetricEvaluator(metric, "errors", {}).higher_is_better is False


def test_the_accuracy_of_a_metric_of_mistakes_is_that_of_its_file(project):
    """`correct` marks a mistake here: one command gave two accuracies, that of the mistakes and that of the others."""
    project.write("t/my_metric.py", LOWER)
    graph = filled("""
data_config:
  source: {examples: [{id: 1, answer: x, said: x}, {id: 2, answer: x, said: y}, {id: 3, answer: x, said: z}]}
graph_config: {nodes: {metrics: JUDGING}}
output_config: {output_map: {id: {from: id}, exact_match: {from: exact_match}}}
graph_post_process: [ACCURACY]
""")
    project.write("t/graph_config.yaml", graph.replace("exact_match", "declared"))
    report, evaluation, aggregation, _, _ = stages(project.folder)
    assert report["results"]["declared-accuracy"]["accuracy"] == pytest.approx(2 / 3)
    [accuracy] = [each for each in aggregation.estimates if each.evaluator == "declared" and not each.group]
    assert accuracy.value == pytest.approx(2 / 3)
    assert evaluation.header.evaluators[0].higher_is_better is False
    assert accuracy.metadata.get("better") is None  # lower, as that of the metric


def test_a_metric_over_scores_of_which_lower_is_better_counts_the_low_ones():
    def errors(output):
        return output

    errors.higher_is_better = False
    examples = [{"id": str(at), "input": score} for at, score in enumerate([0.0, 0.1, 0.2, 0.9])]
    run = karat.run(lambda score: score, examples, store="memory://", progress=False)
    evaluation = karat.evaluate(run, [errors], store=run.store, progress=False)
    found = karat.aggregate(evaluation, ["accuracy", "metric:accuracy"], store=run.store).estimates
    assert [(each.value, each.metadata.get("better")) for each in found] == [(0.75, "higher")] * 2
