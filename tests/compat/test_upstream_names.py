"""Names of SyGra beside the metrics' own that tasks import: they are parts of karat, or say what to do instead."""

from __future__ import annotations

import importlib

import pytest

from karat.compat import task_imports
from karat.errors import RequestError

METRICS = "sygra.core.eval.metrics"


@pytest.fixture(autouse=True)
def _active():
    task_imports(None)


@pytest.mark.parametrize(
    ("module", "name", "registered"),
    [
        ("accuracy", "AccuracyMetric", "accuracy"),
        ("precision", "PrecisionMetric", "precision"),
        ("recall", "RecallMetric", "recall"),
        ("f1_score", "F1ScoreMetric", "f1_score"),
        ("pass_at_k", "PassAtKMetric", "pass@k"),
        ("pass_power_k", "PassPowerKMetric", "pass^k"),
        ("step_efficiency", "StepEfficiencyMetric", "step_efficiency"),
    ],
)
def test_aggregator_metrics_have_modules_of_their_own(module, name, registered):
    from karat.aggregators.metrics import AggregatorMetricRegistry

    found = getattr(importlib.import_module(f"{METRICS}.aggregator_metrics.{module}"), name)
    assert found is AggregatorMetricRegistry.get_metric_class(registered)


def test_the_configuration_of_a_metric_is_checked_as_the_metric_checks_it():
    module = importlib.import_module(f"{METRICS}.unit_metrics.exact_match")
    config = module.ExactMatchMetricConfig(key="text")
    assert (config.key, config.case_sensitive) == ("text", False)
    assert module.ExactMatchMetric(**config.model_dump()).config == config.model_dump()
    with pytest.raises(AttributeError, match="no parameter 'nothing'"):
        _ = config.nothing
    with pytest.raises((RequestError, ValueError, TypeError), match="case_sensitive"):
        module.ExactMatchMetricConfig(case_sensitive="perhaps")


def test_the_simple_answer_is_a_schema():
    module = importlib.import_module("sygra.core.models.structured_output.schemas_factory")
    assert module.SimpleResponse(message="done").model_dump() == {"message": "done", "success": True}


def test_a_condition_may_return_langgraphs_end():
    from karat.tasks.graph.edges import Edge

    end = importlib.import_module("langgraph.graph").END
    assert Edge(["again", "END"], None, {"again": "again", "END": "END"}).decided(end) == ["END"]


def test_a_task_executor_says_where_its_work_is_done_here():
    base = importlib.import_module("sygra.core.base_task_executor").BaseTaskExecutor
    with pytest.raises(
        RequestError, match=r"extends BaseTaskExecutor, which has no effect.*graph_config\.yaml"
    ):
        type("TaskExecutor", (base,), {})
    with pytest.raises(RequestError, match="karat run"):
        base({})
