"""The examples of the older guide: fields named `<metric>_result`, reports keyed by the aggregator alone."""

from __future__ import annotations

import json

import pytest

from karat.graph import MetricCollatorPostProcessor, UnitMetrics
from karat.graph.metrics import UnitMetricResult

NODES = """
data_config:
  source:
    type: disk
    file_path: topics.csv
    file_format: csv
graph_config:
  nodes:
    unit_metrics:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetrics
      golden_key: "answer"
      predicted_key: "predicted_answer"
      unit_metrics_map:
        - name: "exact_match"
          params:
            key: "text"
      output_keys:
        - exact_match_result
  edges:
    - from: START
      to: unit_metrics
    - from: unit_metrics
      to: END
output_config:
  output_map:
    answer:
      from: answer
    exact_match_result:
      from: exact_match_result
"""

REPORT = """
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      aggregator_metrics_map:
        - name: "accuracy"
          params:
            key: "text"
          unit_metrics_results:
            - "exact_match_result"
        - name: "f1_score"
          params:
            predicted_key: "text"
            golden_key: "text"
          unit_metrics_results:
            - "exact_match_result"
"""

CSV = "answer,predicted_answer\nMusic,music\nPolitics,Other\nOther,Other\n"


def test_fields_and_keys_follow_the_older_names(project):
    project.write("tasks/eval/topics/graph_config.yaml", NODES + REPORT)
    project.write("topics.csv", CSV)
    outcome = project.run("tasks.eval.topics")
    assert [set(record) for record in outcome.records] == [{"answer", "exact_match_result"}] * 3
    assert outcome.records[0]["exact_match_result"]["correct"] is True
    report = outcome.report()
    assert set(report["results"]) == {"accuracy", "f1_score"}
    assert report["results"]["accuracy"]["accuracy"] == pytest.approx(2 / 3)
    assert set(report["results"]["f1_score"]) >= {"average_f1_score", "f1_score_per_class"}
    assert report["evaluation_summary"]["total_records"] == 3


def test_names_that_would_collide_get_their_field(project):
    config = (
        NODES.replace(
            "      output_keys:\n        - exact_match_result\n",
            '        - name: "fuzzy_match"\n          params: {key: "text", threshold: 0.5}\n'
            "      output_keys: [exact_match_result, fuzzy_match_result]\n",
        )
        + "    fuzzy_match_result: {from: fuzzy_match_result}\n"
        + REPORT.replace(
            '- "exact_match_result"', '- "exact_match_result"\n            - "fuzzy_match_result"', 1
        )
    )
    project.write("tasks/eval/topics/graph_config.yaml", config)
    project.write("topics.csv", CSV)
    results = project.run("tasks.eval.topics").report()["results"]
    assert set(results) == {"exact_match_result-accuracy", "fuzzy_match_result-accuracy", "f1_score"}


def test_without_output_keys_the_field_follows_from_what_the_output_asks_for(project):
    project.write(
        "tasks/eval/topics/graph_config.yaml",
        NODES.replace("      output_keys:\n        - exact_match_result\n", "") + REPORT,
    )
    project.write("topics.csv", CSV)
    assert "exact_match_result" in project.run("tasks.eval.topics").records[0]


def test_results_can_be_read_back_by_a_program(project):
    project.write("tasks/eval/topics/graph_config.yaml", NODES + REPORT)
    project.write("topics.csv", CSV)
    outcome = project.run("tasks.eval.topics")
    with outcome.written.output.open() as file:
        results = [UnitMetricResult.from_dict(record["exact_match_result"]) for record in json.load(file)]
    assert sum(result.correct for result in results) == 2


def test_the_classes_can_be_used_without_a_run():
    node = UnitMetrics(
        "answer", "said", [{"name": "exact_match", "params": {"key": "text"}}], ["exact_match_result"]
    )
    state = {"answer": "Paris", "said": {"text": "paris"}}
    assert node(state)["exact_match_result"]["correct"] is True
    applied = UnitMetrics.apply(
        {
            "golden_key": "answer",
            "predicted_key": "said",
            "unit_metrics_map": [{"name": "exact_match", "params": {"key": "text"}}],
        },
        {"answer": "Paris", "said": "Lima"},
    )
    assert applied["exact_match"]["correct"] is False
    processor = MetricCollatorPostProcessor(
        aggregator_metrics_map=[{"name": "accuracy", "unit_metrics_results": ["exact_match_result"]}]
    )
    [report] = processor.process([state], {})
    assert report["results"]["accuracy"]["accuracy"] == 1.0


def test_a_missing_field_names_the_columns_and_the_others_are_computed(says):
    processor = MetricCollatorPostProcessor(
        aggregator_metrics_map=[
            {"name": "accuracy", "unit_metrics_results": ["exact_match"]},
            {"name": "accuracy", "unit_metrics_results": ["fuzy_match"]},
        ]
    )
    record = {"id": 1, "exact_match": {"correct": True, "golden": 1, "predicted": 1}}
    [report] = processor.process([record], {})
    assert report["results"]["exact_match-accuracy"]["accuracy"] == 1.0
    error = report["results"]["fuzy_match-accuracy"]["error"]
    assert error.startswith("KeyError: 'fuzy_match' ")
    says(error)
    assert report["evaluation_summary"]["status"] == "partial"


def test_nothing_to_evaluate_is_no_data_and_nothing_but_errors_is_fatal():
    processor = MetricCollatorPostProcessor([{"name": "accuracy", "unit_metrics_results": ["exact_match"]}])
    assert processor.process([], {})[0]["evaluation_summary"]["status"] == "no_data"
    [report] = processor.process([{"other": 1}], {})
    assert report["evaluation_summary"]["status"] == "fatal_error"
    assert "'exact_match' not found" in report["evaluation_summary"]["error"]
    [report] = processor.process([], {"failed_records": 3})
    assert report["evaluation_summary"]["status"] == "partial"  # as the run is
    assert report["evaluation_summary"]["total_records"] == 3


def test_a_new_graph_level_report_as_a_list_or_one_by_one(project):
    project.write(
        "tasks/eval/topics/graph_config.yaml",
        NODES
        + """
graph_post_process:
  - tasks.eval.topics.reports.Whole
  - processor: tasks.eval.topics.reports.Streamed
    filter: {answer: [Music, Politics]}
""",
    )
    project.write("tasks/eval/topics/reports.py", """
import os
from sygra.core.graph.graph_postprocessor import GraphPostProcessor

class Whole(GraphPostProcessor):
    def process(self, data: list, metadata: dict) -> list:
        return [{"records": len(data), "file": os.path.basename(metadata["output_file"])}]

class Streamed(GraphPostProcessor):
    def start(self, metadata):
        self.count = 0

    def add(self, record):
        self.count += 1

    def finish(self):
        return {"records": self.count}
""")  # fmt: skip
    project.write("topics.csv", CSV)
    outcome = project.run("tasks.eval.topics", format="jsonl")
    assert outcome.report("Whole") == {"records": 3, "file": outcome.written.output.name}
    assert outcome.report("Streamed") == {"records": 2}
