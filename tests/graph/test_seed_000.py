"""The examples of the guide to evaluation tasks, with its names, structure and calls."""

from __future__ import annotations

import json

import pytest

from karat.errors import ConfigError
from karat.graph import load_task
from karat.graph.metrics import UnitMetricRegistry

CAPITALS = [
    {
        "id": "q001",
        "question": "Capital of France?",
        "answer": {"text": "Paris"},
        "predicted_answer": {"text": "paris"},
    },
    {
        "id": "q002",
        "question": "Capital of Japan?",
        "answer": {"text": "Tokyo"},
        "predicted_answer": {"text": "Tokio"},
    },
    {
        "id": "q003",
        "question": "Capital of Peru?",
        "answer": {"text": "Lima"},
        "predicted_answer": {"text": "Quito"},
    },
]

QUESTION_ANSWERING = """
# Unit metrics node
unit_metrics:
  node_type: lambda
  lambda: tasks.eval.utils.UnitMetrics
  golden_key: "answer"
  predicted_key: "predicted_answer"
  unit_metrics_map:
    - name: "exact_match"
      params:
        key: "text"
    - name: "fuzzy_match"
      params:
        key: "text"
        threshold: 0.8
  output_keys:
    - exact_match
    - fuzzy_match

# Output configuration
output_config:
  output_map:
    id:
      from: "id"
    answer:
      from: "answer"
    predicted_answer:
      from: "predicted_answer"
    exact_match:
      from: "exact_match"
    fuzzy_match:
      from: "fuzzy_match"

# Aggregator metrics
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      aggregator_metrics_map:
        - name: "accuracy"
          params:
            key: "text"
          unit_metrics_results:
            - "exact_match"
        - name: "accuracy"
          params:
            key: "text"
          unit_metrics_results:
            - "fuzzy_match"
"""

CLASSIFICATION = """
unit_metrics:
  node_type: lambda
  lambda: tasks.eval.utils.UnitMetrics
  golden_key: "topic"
  predicted_key: "predicted_topic"
  unit_metrics_map:
    - name: "exact_match"
      params:
        key: "text"
  output_keys:
    - exact_match

graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      aggregator_metrics_map:
        - name: "accuracy"
          params:
            key: "text"
          unit_metrics_results:
            - "exact_match"
        - name: "precision"
          params:
            predicted_key: "text"
          unit_metrics_results:
            - "exact_match"
        - name: "recall"
          params:
            golden_key: "text"
          unit_metrics_results:
            - "exact_match"
        - name: "f1_score"
          params:
            predicted_key: "text"
            golden_key: "text"
          unit_metrics_results:
            - "exact_match"
"""


def test_question_answering_with_several_validators(project):
    project.write("tasks/eval/question_answering/capitals/graph_config.yaml", QUESTION_ANSWERING)
    project.rows("capitals.jsonl", CAPITALS)
    outcome = project.run("tasks.eval.question_answering.capitals", data="capitals.jsonl")

    assert outcome.records[0] == {
        "id": "q001",
        "answer": {"text": "Paris"},
        "predicted_answer": {"text": "paris"},
        "exact_match": {
            "correct": True,
            "golden": {"text": "Paris"},
            "predicted": {"text": "paris"},
            "metadata": {
                "validator": "exact_match",
                "case_sensitive": False,
                "golden_text": "Paris",
                "predicted_text": "paris",
                "normalize_whitespace": True,
            },
        },
        "fuzzy_match": {
            "correct": True,
            "golden": {"text": "Paris"},
            "predicted": {"text": "paris"},
            "metadata": {"validator": "fuzzy_match", "similarity": 1.0, "threshold": 0.8},
        },
    }
    report = outcome.report()
    assert report["evaluation_summary"]["total_records"] == 3
    assert report["evaluation_summary"]["status"] == "success"
    assert set(report["results"]) == {"exact_match-accuracy", "fuzzy_match-accuracy"}
    assert report["results"]["exact_match-accuracy"]["accuracy"] == pytest.approx(1 / 3)
    assert report["results"]["fuzzy_match-accuracy"]["accuracy"] == pytest.approx(2 / 3)
    assert outcome.written.output.name.startswith("output_")
    assert outcome.written.reports["MetricCollatorPostProcessor"].name.startswith(
        "MetricCollatorPostProcessor_"
    )


@pytest.mark.parametrize(
    "holds", [lambda text: {"text": text}, lambda text: text], ids=["an object", "a text"]
)
def test_classification_with_several_metrics(project, holds):
    project.write("tasks/eval/classification/topics/graph_config.yaml", CLASSIFICATION)
    said = [("Music", "Music"), ("Music", "Other"), ("Politics", "Politics"), ("Other", "Other")]
    rows = [{"id": i, "topic": holds(g), "predicted_topic": holds(p)} for i, (g, p) in enumerate(said)]
    project.rows("topics.jsonl", rows)
    outcome = project.run("eval/classification/topics", data="topics.jsonl")

    results = outcome.report()["results"]
    assert results["exact_match-accuracy"]["accuracy"] == 0.75
    assert results["exact_match-precision"]["precision_per_class"] == {
        "Music": 1.0,
        "Politics": 1.0,
        "Other": 0.5,
    }
    assert results["exact_match-precision"]["average_precision"] == pytest.approx(2.5 / 3)
    assert results["exact_match-recall"]["recall_per_class"] == {"Music": 0.5, "Politics": 1.0, "Other": 1.0}
    assert results["exact_match-f1_score"]["f1_score_per_class"]["Music"] == pytest.approx(2 / 3)
    # without an output_config the whole state is the output
    assert outcome.records[1]["exact_match"]["golden"] == {"text": "Music"}


def test_several_sources_give_keys_of_field_and_aggregator(project):
    config = QUESTION_ANSWERING.replace(
        """          unit_metrics_results:
            - "fuzzy_match"
""",
        """          unit_metrics_results:
            - "fuzzy_match"
        - name: "precision"
          params:
            predicted_key: "text"
          unit_metrics_results:
            - "exact_match"
            - "fuzzy_match"
""",
    )
    project.write("tasks/qa/graph_config.yaml", config)
    project.rows("capitals.jsonl", CAPITALS)
    results = project.run("qa", data="capitals.jsonl").report()["results"]
    assert set(results) == {
        "exact_match-accuracy", "fuzzy_match-accuracy", "exact_match-precision", "fuzzy_match-precision",
    }  # fmt: skip


FUZZY = """    - name: "fuzzy_match"
      params:
        key: "text"
        threshold: 0.8
"""

KINDS = ("unit", "aggregator")

CUSTOM_METRIC = """
from sygra.core.eval.metrics.unit_metrics.base_unit_metric import BaseUnitMetric
from sygra.core.eval.metrics.unit_metrics.unit_metric_registry import unit_metric
from sygra.core.eval.metrics.unit_metrics.unit_metric_result import UnitMetricResult

@unit_metric("my_custom_metric")
class MyCustomMetric(BaseUnitMetric):
    def __init__(self, **config):
        super().__init__(**config)
        self.validate_config()
        self.metadata = self.get_metadata()

    def validate_config(self):
        self.letters = self.config.get("letters", 1)

    def get_metadata(self):
        return {"name": "my_custom_metric"}

    def evaluate(self, golden, predicted):
        results = []
        for g, p in zip(golden, predicted):
            is_correct = g["text"][: self.letters].lower() == p["text"][: self.letters].lower()
            results.append(UnitMetricResult(
                correct=is_correct,
                golden=g,
                predicted=p,
                metadata={"validator": "my_custom_metric"}
            ))
        return results
"""

CUSTOM_AGGREGATOR = """
from sygra.core.eval.metrics.aggregator_metrics.base_aggregator_metric import BaseAggregatorMetric
from sygra.core.eval.metrics.aggregator_metrics.aggregator_metric_registry import aggregator_metric

@aggregator_metric("my_aggregator")
class MyAggregatorMetric(BaseAggregatorMetric):
    def calculate(self, unit_metric_results):
        value = sum(1 for result in unit_metric_results if result.correct)
        return {"my_metric": value}
"""


PACKAGES = pytest.mark.parametrize("package", ["sygra", "karat"])
"""The guide's imports, and the same with karat's name."""


@PACKAGES
@pytest.mark.parametrize("where", ["tasks/eval/my_task", "core/eval/metrics"])
def test_a_unit_metric_and_an_aggregator_of_ones_own_are_discovered(project, package, where):
    config = """
unit_metrics:
  node_type: lambda
  lambda: tasks.eval.utils.UnitMetrics
  golden_key: "answer"
  predicted_key: "predicted_answer"
  unit_metrics_map:
    - name: "my_custom_metric"
      params:
        letters: 2
    - name: "exact_match"
      params:
        key: "text"
  output_keys:
    - my_custom_metric
    - exact_match
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      aggregator_metrics_map:
        - name: "my_aggregator"
          params:
            # your parameters
          unit_metrics_results:
            - "exact_match"
        - name: "accuracy"
          unit_metrics_results: ["my_custom_metric"]
"""
    folders = [where, where] if "tasks" in where else [f"{package}/{where}/{kind}_metrics" for kind in KINDS]
    project.write("tasks/eval/my_task/graph_config.yaml", config)
    project.write(f"{folders[0]}/my_custom_metric.py", CUSTOM_METRIC.replace("sygra", package))
    project.write(f"{folders[1]}/my_aggregator.py", CUSTOM_AGGREGATOR.replace("sygra", package))
    project.rows("capitals.jsonl", CAPITALS)
    outcome = project.run("tasks.eval.my_task", data="capitals.jsonl")
    assert [r["my_custom_metric"]["correct"] for r in outcome.records] == [True, True, False]
    assert outcome.report()["results"]["exact_match-my_aggregator"] == {"my_metric": 1}
    assert outcome.report()["results"]["my_custom_metric-accuracy"]["accuracy"] == pytest.approx(2 / 3)
    assert UnitMetricRegistry.has_metric("my_custom_metric")


@PACKAGES
def test_the_files_of_a_task_import_a_metric_from_the_tree_of_metrics(project, package):
    project.write(
        f"{package}/core/eval/metrics/unit_metrics/first_letter.py", CUSTOM_METRIC.replace("sygra", package)
    )
    project.write("tasks/t/graph_config.yaml", """
data_config: {examples: [{id: 1, answer: {text: Paris}}]}
judge: {node_type: lambda, lambda: helper.Judge}
""")  # fmt: skip
    project.write("tasks/t/helper.py", f"""
from {package}.core.eval.metrics.unit_metrics.first_letter import MyCustomMetric

class Judge:
    def __call__(self, state):
        [result] = MyCustomMetric().evaluate([state["answer"]], [state["answer"]])
        return {{"right": result.correct}}
""")  # fmt: skip
    assert [record["right"] for record in project.run("t").records] == [True]


CUSTOM_EVALUATOR = '''
from typing import Any, Dict
from sygra.core.state import SygraState

class CustomUnitMetricsLambda:
    """Custom lambda for specialized unit metric calculation."""

    def __init__(self, golden_key: str, predicted_key: str, **config):
        self.golden_key = golden_key
        self.predicted_key = predicted_key
        self.config = config

    def __call__(self, state: SygraState) -> Dict[str, Any]:
        golden = state.get(self.golden_key)
        predicted = state.get(self.predicted_key)
        custom_result = self._evaluate_custom(golden, predicted)
        state["custom_metric"] = custom_result
        return {"custom_metric": custom_result}

    def _evaluate_custom(self, golden, predicted):
        return {
            "correct": self._check_correctness(golden, predicted),
            "golden": golden,
            "predicted": predicted,
            "metadata": {
                "validator": "custom_metric",
                "confidence": self._calculate_confidence(predicted)
            }
        }

    def _check_correctness(self, golden, predicted):
        return golden["text"].lower() == predicted["text"].lower()

    def _calculate_confidence(self, predicted):
        return 0.9 if len(predicted["text"]) == 5 else 0.5
'''

CUSTOM_POSTPROCESSOR = """
import json
from typing import Any, Dict, List
from sygra.core.graph.graph_postprocessor import GraphPostProcessor

class CustomMetricAggregator(GraphPostProcessor):
    def __init__(self, **config):
        super().__init__()
        self.config = config
        self.custom_threshold = config.get("threshold", 0.8)

    def process(self, output_data: List[Dict[str, Any]]) -> Dict[str, Any]:
        unit_results = [
            record.get("custom_metric")
            for record in output_data
            if "custom_metric" in record
        ]
        total = len(unit_results)
        correct = sum(1 for r in unit_results if r.get("correct", False))
        accuracy = correct / total if total > 0 else 0.0
        high_confidence = sum(
            1 for r in unit_results
            if r.get("metadata", {}).get("confidence", 0) >= self.custom_threshold
        )
        return {
            "evaluation_summary": {
                "total_records": total,
                "correct_predictions": correct,
                "status": "success" if total > 0 else "no_data"
            },
            "metrics": {
                "accuracy": accuracy,
                "high_confidence_rate": high_confidence / total if total > 0 else 0.0
            },
            "custom_analysis": self._perform_custom_analysis(unit_results)
        }

    def _perform_custom_analysis(self, results: List[Dict]) -> Dict:
        return {"distribution": {"right": sum(r["correct"] for r in results)}}
"""

CUSTOM_TASK = """
graph_config:
  nodes:
    unit_metrics:
      node_type: lambda
      lambda: tasks.eval.my_task.custom_evaluator.CustomUnitMetricsLambda
      golden_key: "answer"
      predicted_key: "predicted_answer"
      output_keys:
        - custom_metric

output_config:
  output_map:
    custom_metric:
      from: "custom_metric"

graph_post_process:
  - processor: tasks.eval.my_task.custom_aggregator.CustomMetricAggregator
    params:
      threshold: 0.85
"""


def write_custom_task(project, config=CUSTOM_TASK, package="sygra"):
    project.write("tasks/eval/my_task/graph_config.yaml", config)
    project.write("tasks/eval/my_task/custom_evaluator.py", CUSTOM_EVALUATOR.replace("sygra", package))
    project.write("tasks/eval/my_task/custom_aggregator.py", CUSTOM_POSTPROCESSOR.replace("sygra", package))
    project.rows("capitals.jsonl", CAPITALS)


@PACKAGES
def test_a_lambda_and_a_post_processor_of_ones_own(project, package):
    write_custom_task(project, package=package)
    outcome = project.run("tasks.eval.my_task", data="capitals.jsonl")
    assert outcome.records[1] == {
        "custom_metric": {
            "correct": False,
            "golden": {"text": "Tokyo"},
            "predicted": {"text": "Tokio"},
            "metadata": {"validator": "custom_metric", "confidence": 0.9},
        }
    }
    assert outcome.written.reports["CustomMetricAggregator"].name.startswith("CustomMetricAggregator_")
    assert outcome.report("CustomMetricAggregator") == {
        "evaluation_summary": {"total_records": 3, "correct_predictions": 1, "status": "success"},
        "metrics": {"accuracy": 1 / 3, "high_confidence_rate": 1.0},
        "custom_analysis": {"distribution": {"right": 1}},
    }


def test_standard_and_custom_post_processors_together(project):
    config = QUESTION_ANSWERING.replace(
        "graph_post_process:\n",
        """graph_post_process:
  - processor: tasks.eval.my_task.custom_aggregator.CustomMetricAggregator
    params:
      threshold: 0.85
""",
    )
    write_custom_task(project, config)
    outcome = project.run("tasks.eval.my_task", data="capitals.jsonl", run_name="both")
    stamp = outcome.written.output.name.removeprefix("both_output_")
    assert {path.name for path in outcome.written.paths()} == {
        f"both_output_{stamp}",
        f"both_MetricCollatorPostProcessor_{stamp}",
        f"both_CustomMetricAggregator_{stamp}",
    }


def test_the_same_task_runs_from_any_folder_it_is_put_in(project, tmp_path):
    write_custom_task(project)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tasks/eval/my_task").rename(tmp_path / "elsewhere/my_task")
    outcome = project.run(str(tmp_path / "elsewhere/my_task"), data="capitals.jsonl")
    assert len(outcome.records) == 3


def test_a_unit_metric_field_that_the_output_lacks_is_reported_before_the_run(project, says):
    config = QUESTION_ANSWERING.replace('    exact_match:\n      from: "exact_match"\n', "")
    project.write("tasks/qa/graph_config.yaml", config)
    with pytest.raises(ConfigError) as caught:
        load_task("qa")
    [problem] = caught.value.problems
    line = config.splitlines().index('            - "exact_match"') + 1
    assert problem.startswith(f"line {line}: ")
    says(problem)


def test_a_field_that_no_output_keys_name_is_reported(project):
    config = QUESTION_ANSWERING.replace(
        '    - name: "fuzzy_match"\n      params:\n        key: "text"\n        threshold: 0.8\n', ""
    )
    project.write("tasks/qa/graph_config.yaml", config)
    project.rows("capitals.jsonl", CAPITALS)
    with pytest.raises(ConfigError, match="'fuzzy_match' not found"):
        load_task("qa").dataset(file="capitals.jsonl")


def test_the_report_is_json_that_json_load_reads(project):
    project.write("tasks/qa/graph_config.yaml", QUESTION_ANSWERING)
    project.rows("capitals.jsonl", CAPITALS)
    outcome = project.run("qa", data="capitals.jsonl", format="jsonl")
    assert outcome.written.output.suffix == ".jsonl"
    assert outcome.records == [json.loads(line) for line in outcome.written.output.read_text().splitlines()]
    assert outcome.report()["results"]["exact_match-accuracy"]["n"] == 3


def test_a_metric_that_another_file_of_the_task_uses_is_loaded_once(project):
    project.write("tasks/eval/once/graph_config.yaml", """
unit_metrics:
  node_type: lambda
  lambda: helper.Judge
""")  # fmt: skip
    project.write("tasks/eval/once/metric.py", CUSTOM_METRIC.replace("my_custom_metric", "loaded_once"))
    project.write(
        "tasks/eval/once/helper.py",
        "from tasks.eval.once.metric import MyCustomMetric\n\nclass Judge:\n    def __call__(self, state):\n"
        "        [result] = MyCustomMetric().evaluate([state['answer']], [state['predicted_answer']])\n"
        "        return {'judged': result.correct}\n",
    )
    project.rows("capitals.jsonl", CAPITALS)
    records = project.run("tasks.eval.once", data="capitals.jsonl").records
    assert [record["judged"] for record in records] == [True, True, False]


@pytest.mark.parametrize("computed", [FUZZY, ""])
def test_output_keys_that_leave_a_metric_out_are_reported_with_what_is_available(project, computed, says):
    config = QUESTION_ANSWERING.replace("    - exact_match\n    - fuzzy_match\n", "    - exact_match\n")
    project.write("tasks/eval/qa/graph_config.yaml", config.replace(FUZZY, computed))
    project.rows("rows.jsonl", CAPITALS)
    with pytest.raises(ConfigError) as caught:
        load_task("eval/qa").dataset(file="rows.jsonl")
    mapped, aggregated = caught.value.problems
    assert "output_map.fuzzy_match.from: " in mapped
    says(mapped)
    says(aggregated)


def test_a_custom_metric_finds_a_bare_answer_under_text_and_a_standard_one_as_it_is(project):
    project.write(
        "tasks/eval/qa/graph_config.yaml",
        """
unit_metrics:
  node_type: lambda
  lambda: tasks.eval.utils.UnitMetrics
  golden_key: "answer"
  predicted_key: "predicted_answer"
  unit_metrics_map:
    - name: "my_custom_metric"
    - name: "exact_match"
    - name: "fuzzy_match"
  output_keys: [my_custom_metric, exact_match, fuzzy_match]
""",
    )
    project.write("tasks/eval/qa/my_custom_metric.py", CUSTOM_METRIC)
    project.rows("rows.jsonl", [{"id": "q1", "answer": "Paris", "predicted_answer": "paris"}])
    outcome = project.run("eval/qa", data="rows.jsonl")
    assert not outcome.failures
    [record] = outcome.records
    assert record["my_custom_metric"]["golden"] == {"text": "Paris"}
    assert record["my_custom_metric"]["correct"]
    assert [record[name]["correct"] for name in ("exact_match", "fuzzy_match")] == [True, True]
    assert record["exact_match"]["golden"] == "Paris"
