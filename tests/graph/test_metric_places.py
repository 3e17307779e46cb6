"""Metrics of one's own where tasks written for SyGra put them: in a tree like its own, in the working folder."""

from __future__ import annotations

import uuid

import pytest

from karat.errors import ConfigError

UNIT = """
from sygra.core.eval.metrics.unit_metrics.base_unit_metric import BaseUnitMetric
from sygra.core.eval.metrics.unit_metrics.unit_metric_registry import unit_metric
from sygra.core.eval.metrics.unit_metrics.unit_metric_result import UnitMetricResult

@unit_metric("NAME")
class MyMetric(BaseUnitMetric):
    def get_metadata(self):
        return {}
    def evaluate(self, golden, predicted):
        return [UnitMetricResult(g == p, g, p, {}) for g, p in zip(golden, predicted)]
"""
AGGREGATOR = """
from sygra.core.eval.metrics.aggregator_metrics.base_aggregator_metric import BaseAggregatorMetric
from sygra.core.eval.metrics.aggregator_metrics.aggregator_metric_registry import aggregator_metric

@aggregator_metric("NAME_all")
class All(BaseAggregatorMetric):
    def calculate(self, results):
        return {"all": all(r.correct for r in results)}
"""
TASK = """
data_config: {examples: [{id: a, answer: {text: x}, said: {text: x}}]}
graph_config:
  nodes:
    unit_metrics:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetrics
      golden_key: answer
      predicted_key: said
      unit_metrics_map: [{name: NAME}]
      output_keys: [NAME]
output_config: {output_map: {id: {from: id}, NAME: {from: NAME}}}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params: {aggregator_metrics_map: [{name: NAME_all, unit_metrics_results: [NAME]}]}
"""


@pytest.mark.parametrize("folder", ["tasks", "tasks/metrics", "tasks/eval", "tasks/eval/unit_metrics"])
def test_metrics_in_the_folders_around_a_task_are_found(project, folder):
    name = f"mine_{uuid.uuid4().hex}"
    project.write(f"{folder}/m_{name}.py", UNIT.replace("NAME", name) + AGGREGATOR.replace("NAME", name))
    project.write("tasks/other.py", "raise SystemError('registers no metric, and is not imported')\n")
    project.write("tasks/eval/t/graph_config.yaml", TASK.replace("NAME", name))
    assert project.run("eval/t").report()["results"][f"{name}-{name}_all"]["all"] is True


def test_metrics_beside_other_tasks_are_not(project):
    name = f"mine_{uuid.uuid4().hex}"
    project.write("tasks/eval/other/metric.py", UNIT.replace("NAME", name))
    project.write("metric.py", UNIT.replace("NAME", name))
    project.write("tasks/eval/t/graph_config.yaml", TASK.replace("NAME", name))
    with pytest.raises(ConfigError, match=f"metric '{name}'"):
        project.run("eval/t")


def test_a_name_like_no_other_is_reported_with_where_metrics_are_looked_for(project, says):
    project.write("t/graph_config.yaml", TASK.replace("NAME", "zzzzzzzz"))
    with pytest.raises(ConfigError) as caught:
        project.run("t")
    says(*caught.value.problems)


@pytest.mark.parametrize("package", ["sygra", "karat"])
@pytest.mark.parametrize("task", ["t", "tasks/eval/t"])
def test_metrics_in_a_tree_like_sygras_are_found(project, task, package):
    name = f"mine_{uuid.uuid4().hex}"  # registries are the process's
    folder = f"{package}/core/eval/metrics"
    project.write(f"{folder}/unit_metrics/my_custom_metric.py", UNIT.replace("NAME", name))
    project.write(f"{folder}/aggregator_metrics/my_aggregator.py", AGGREGATOR.replace("NAME", name))
    project.write(
        f"{folder}/unit_metrics/exact_match.py", "@unit_metric('one of the table')\nraise SystemError\n"
    )
    project.write(f"{task}/graph_config.yaml", TASK.replace("NAME", name))
    outcome = project.run(task)
    assert outcome.records[0][name]["correct"] is True
    assert outcome.report()["results"][f"{name}-{name}_all"]["all"] is True
