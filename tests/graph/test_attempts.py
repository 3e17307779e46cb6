"""Several attempts at each record: the report of a graph has the numbers of the stored aggregation."""

from __future__ import annotations

import json

import pytest

import karat
from karat.graph import load_task, write_files
from karat.graph.metrics import AggregatorMetricRegistry, UnitMetricResult
from karat.graph.metrics._collator import MetricCollatorPostProcessor, stored_metrics

METRICS = {
    "accuracy": "{key: text}",
    "precision": "{predicted_key: text}",
    "recall": "{golden_key: text, average: macro}",
    "f1_score": "{predicted_key: text, golden_key: text}",
    "pass_at_k": "{k: 1}",
    "step_efficiency": "{}",
}
MAIN = {"precision": "average_precision", "recall": "average_recall", "f1_score": "average_f1_score"}
NAME = "MetricCollatorPostProcessor"
GRAPH = """
data_config: {source: {type: disk, file_path: rows.jsonl}}
graph_config:
  nodes:
    predict: {node_type: lambda, lambda: code.predict, output_keys: [said]}
    metrics:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetrics
      golden_key: answer
      predicted_key: said
      unit_metrics_map: [{name: exact_match, params: {key: text}}]
output_config:
  generator: code.Kept
  output_map: {id: {from: id}, exact_match: {from: exact_match}}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      aggregator_metrics_map:
ENTRIES
""".replace(
    "ENTRIES",
    "\n".join(
        f"        - {{name: {name}, params: {params}, unit_metrics_results: [exact_match]}}"
        for name, params in METRICS.items()
    ),
)
CODE = """
import itertools

CALLS = itertools.count()

def predict(state):
    number, call = int(state["id"]), next(CALLS)
    if number == 3 or (number % 7 == 2 and call % 3 == 0):
        raise ValueError("no")
    steps = 2 + number % 3
    state["answer"] = {"text": state["answer"], "optimal_steps": 2}
    said = state["answer"]["text"] if (number + call) % 4 else "abc"[call % 3]
    return {"said": {"text": said, "steps": steps}}

class Kept:
    def generate(self, state):
        if int(state["id"]) % 9 == 4:
            return None
        return {"id": state["id"], "exact_match": state["exact_match"]}
"""


@pytest.mark.parametrize("attempts", [1, 10])
def test_the_report_and_the_aggregation_agree(project, attempts):
    project.write("t/graph_config.yaml", GRAPH)
    project.write("t/code.py", CODE)
    project.rows("t/rows.jsonl", [{"id": str(i), "answer": "abc"[i % 3]} for i in range(30)])
    task = load_task("t")
    run = karat.run(task, task.dataset(), store="memory://", attempts=attempts, concurrency=1, progress=False)
    written = write_files(run, task, project.folder / "out")
    evaluators, aggregators = stored_metrics(task)
    evaluation = karat.evaluate(run, evaluators, store=run.store, progress=False)
    estimates = karat.aggregate(evaluation, aggregators, store=run.store).estimates
    [report] = json.loads(written.reports[NAME].read_text())
    summary = report["evaluation_summary"]
    assert summary["total_records"] == 30 * attempts
    assert summary.get("attempts", 1) == attempts
    assert summary["failed_records"] == run.counts.failed > 0
    for name in METRICS:
        found, key = report["results"][f"exact_match-{name}"], MAIN.get(name, name)
        names = {"name": name} if name == "step_efficiency" else {}
        estimate = estimates.get(evaluator="exact_match", aggregator=name, **names)
        assert found[key] == estimate.value, name
        assert found[f"{key}_interval"] == [estimate.low, estimate.high], name
        assert found[f"{key}_bounds"] == [estimate.lowest, estimate.highest], name
        assert (found["n"], found["of"]) == (estimate.n, estimate.of), name
        for average in ("micro", "macro", "weighted") if name in MAIN else ():
            other = estimates.get(evaluator="exact_match", aggregator=name, name=average)
            assert found[f"{average}_{name}_interval"] == [other.low, other.high]


def judged(correct: bool, **metadata: object) -> dict:
    return {"exact_match": UnitMetricResult(correct, "a", "a" if correct else "b", metadata)}


def test_attempts_that_always_agree_tell_no_more_than_one(project):
    entry = {"name": "accuracy", "unit_metrics_results": ["exact_match"]}
    alone, together = MetricCollatorPostProcessor([entry]), MetricCollatorPostProcessor([entry])
    for number in range(20):
        alone.add(judged(number < 14))
        together.add_attempts([judged(number < 14)] * 10)
    [one], [ten] = alone.finish(), together.finish()
    narrow, wide = (each["results"]["exact_match-accuracy"]["accuracy_interval"] for each in (one, ten))
    assert ten["results"]["exact_match-accuracy"]["n"] == 200
    assert wide[0] < narrow[0] + 0.05
    assert wide[1] > narrow[1] - 0.05
    assert wide[1] - wide[0] > 0.35  # 200 independent records have 0.126


def test_a_failed_attempt_counts_for_the_same_problem():
    metric = AggregatorMetricRegistry.get_metric("pass_at_k", k=2, problem_key="problem")
    results = [
        UnitMetricResult(True, "a", "a", {"problem": 1}),
        UnitMetricResult(False, "a", "b", {"problem": 1}),
    ]
    found = metric.finish(metric.add_attempts(metric.start(), [*results, None]))
    assert (found["pass_at_2"], found["pass_at_2_bounds" if found["of"] > found["n"] else "pass_at_2"]) == (
        1.0,
        1.0,
    )
    missing = metric.finish(metric.add_attempts(metric.start(), [results[0], None]))
    assert (missing["pass_at_2"], missing["n"], missing["of"]) == (None, 0, 1)


def test_a_metric_of_your_own_gets_the_attempts_one_by_one(project):
    class Seen:
        def __init__(self) -> None:
            self.given: list = []

        def calculate(self, results):
            return {"given": len(results)}

    AggregatorMetricRegistry.register("seen_attempts", Seen)
    entry = {"name": "seen_attempts", "unit_metrics_results": ["exact_match"]}
    collator = MetricCollatorPostProcessor([entry])
    collator.start({"failed_records": 1, "attempts": 3})
    collator.add_attempts([judged(True), None, judged(False)])
    [report] = collator.finish()
    assert report["results"]["exact_match-seen_attempts"] == {"given": 2, "n": 2, "of": 3}


def test_results_that_cannot_be_read_were_not_evaluated():
    entry = {"name": "accuracy", "unit_metrics_results": ["exact_match"]}
    rows = [judged(True), judged(False), {"exact_match": {"golden": "a"}}, {"exact_match": None}]
    [report] = MetricCollatorPostProcessor([entry]).process(rows)
    summary, accuracy = report["evaluation_summary"], report["results"]["exact_match-accuracy"]
    assert summary["evaluated_records"] == accuracy["n"] == 2
    assert (summary["invalid_records"], summary["skipped_records"], summary["total_records"]) == (1, 1, 4)
    assert accuracy["of"] == 4


def test_an_invalid_result_is_named_by_its_place_among_the_records():
    collator = MetricCollatorPostProcessor([{"name": "accuracy", "unit_metrics_results": ["exact_match"]}])
    collator.start({"attempts": 2, "failed_records": 1})
    collator.add_attempts([judged(True), judged(False)])
    collator.add_attempts([None, {"exact_match": "right"}])
    [report] = collator.finish()
    first = report["evaluation_summary"]["invalid_results"]["exact_match"]["first"]
    assert first.startswith("record 3:")


COUNTING = """
from karat.graph import MetricCollatorPostProcessor

class Judged(MetricCollatorPostProcessor):
    def add(self, record):
        super().add({**record, "exact_match": {**record["exact_match"], "correct": True}})
"""


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_report_with_an_add_of_its_own_gets_every_record(project, attempts):
    entries = "{aggregator_metrics_map: [{name: accuracy, unit_metrics_results: [exact_match]}]}"
    head, _, _ = GRAPH.partition("graph_post_process:")
    reports = f"graph_post_process: [{{processor: own.Judged, params: {entries}}}]"
    project.write("t/graph_config.yaml", head + reports)
    project.write("t/code.py", CODE)
    project.write("t/own.py", COUNTING)
    project.rows("t/rows.jsonl", [{"id": str(i), "answer": "abc"[i % 3]} for i in range(12)])
    task = load_task("t")
    run = karat.run(task, task.dataset(), store="memory://", attempts=attempts, concurrency=1, progress=False)
    [report] = json.loads(write_files(run, task, project.folder / "out").reports["Judged"].read_text())
    accuracy = report["results"]["exact_match-accuracy"]
    assert accuracy["accuracy"] == 1.0
    assert accuracy["of"] == accuracy["n"] + run.counts.failed


def test_metrics_that_name_different_fields_by_one_key_have_results_of_their_own(project):
    entry = "name: NAME, params: {k: 2, problem_key: problem}, unit_metrics_results: [exact_match]"
    entries = [
        f"{{{entry.replace('NAME', name)}, metadata: {{problem: {field}}}}}"
        for name, field in (("pass_at_k", "pair"), ("pass_hat_k", "six"), ("pass_at_k", "six"))
    ]
    head, _, _ = GRAPH.partition("output_config:")
    project.write(
        "t/graph_config.yaml",
        f"""{head}
output_config:
  output_map: {{exact_match: {{from: exact_match}}, pair: {{from: pair}}, six: {{from: six}}}}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params: {{aggregator_metrics_map: [{", ".join(entries)}]}}
""",
    )
    project.write("t/code.py", "def predict(state):\n    return {'said': {'text': state['said']}}\n")
    rows = [
        {"id": str(i), "answer": {"text": "a"}, "said": "ab"[i % 3 > 0], "pair": i // 2, "six": i // 6}
        for i in range(24)
    ]
    project.rows("t/rows.jsonl", rows)
    task = load_task("t")
    run = karat.run(task, task.dataset(), store="memory://", progress=False)
    written = write_files(run, task, project.folder / "out")
    [report] = json.loads(written.reports["MetricCollatorPostProcessor"].read_text())
    evaluators, aggregators = stored_metrics(task)
    evaluation = karat.evaluate(run, evaluators, store=run.store, progress=False)
    estimates = karat.aggregate(evaluation, aggregators, store=run.store).estimates
    by_pair, by_six = "exact_match", "exact_match-2"
    for key, name, value, evaluator in (
        ("exact_match-pass_at_k", "pass_at_k", "pass_at_2", by_pair),
        ("exact_match-pass_hat_k", "pass_hat_k", "pass_hat_2", by_six),
        ("exact_match-pass_at_k-2", "pass_at_k", "pass_at_2", by_six),
    ):
        stored = estimates.get(evaluator=evaluator, aggregator=name, name=value)
        assert report["results"][key][value] == stored.value, key
    assert report["results"]["exact_match-pass_at_k"] != report["results"]["exact_match-pass_at_k-2"]


BARE = """
def predict(state):
    return {"said": state["answer"]}

def judge(state):
    number = int(state["id"])
    if number % 5 == 0:
        state["exact_match"] = (True, False, 1, 0.5, "yes")[number // 5 % 5]
    return state
"""


@pytest.mark.parametrize("all_bare", [False, True])
def test_a_bare_verdict_is_read_alike_and_a_number_is_none(project, all_bare):
    node = "    judge: {node_type: lambda, lambda: code.judge, output_keys: [exact_match]}\n"
    graph = GRAPH.replace("output_config:", f"{node}output_config:").replace("  generator: code.Kept\n", "")
    project.write("t/graph_config.yaml", graph)
    project.write("t/code.py", BARE.replace("if number % 5 == 0:", "if True:") if all_bare else BARE)
    project.rows("t/rows.jsonl", [{"id": str(i), "answer": "abc"[i % 3]} for i in range(50)])
    task = load_task("t")
    run = karat.run(task, task.dataset(), store="memory://", concurrency=1, progress=False)
    [report] = json.loads(write_files(run, task, project.folder / "out").reports[NAME].read_text())
    evaluators, aggregators = stored_metrics(task)
    evaluation = karat.evaluate(run, evaluators, store=run.store, progress=False)
    aggregation = karat.aggregate(evaluation, aggregators, store=run.store)
    invalid = 30 if all_bare else 6
    assert report["evaluation_summary"]["invalid_records"] == evaluation.counts.failed == invalid
    failed = {each.aggregator for each in aggregation.header.failures}
    of_labels = {"precision", "recall", "f1_score"} if all_bare else set()
    assert failed == {"step_efficiency"} | of_labels
    for name in METRICS:
        found = report["results"][f"exact_match-{name}"]
        assert ("error" in found) is (name in failed), name
        if name in failed:
            continue
        estimate = aggregation.estimates.get(evaluator="exact_match", aggregator=name)
        assert (found["n"], found["of"]) == (estimate.n, estimate.of), name
        key = MAIN.get(name, name)
        assert found[key] == estimate.value, name
        assert found[f"{key}_interval"] == [estimate.low, estimate.high], name
