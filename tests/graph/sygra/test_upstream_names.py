"""Names of SyGra beside the metrics' own that tasks import: they are parts of karat, or say what to do instead."""

from __future__ import annotations

import importlib
import sys

import pytest

from karat.errors import RequestError
from karat.graph.sygra._imports import task_imports

METRICS = "sygra.core.eval.metrics"


@pytest.fixture(autouse=True)
def _active():
    task_imports()


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
    from karat.graph.metrics import AggregatorMetricRegistry

    found = getattr(importlib.import_module(f"{METRICS}.aggregator_metrics.{module}"), name)
    assert found is AggregatorMetricRegistry.get_metric_class(registered)


def test_the_configuration_of_a_metric_is_checked_as_the_metric_checks_it(refuses):
    module = importlib.import_module(f"{METRICS}.unit_metrics.exact_match")
    config = module.ExactMatchMetricConfig(key="text")
    assert (config.key, config.case_sensitive) == ("text", False)
    assert module.ExactMatchMetric(**config.model_dump()).config == config.model_dump()
    with refuses(AttributeError):
        _ = config.nothing
    with pytest.raises((RequestError, ValueError, TypeError), match="case_sensitive"):
        module.ExactMatchMetricConfig(case_sensitive="perhaps")


def test_the_simple_answer_is_a_schema():
    module = importlib.import_module("sygra.core.models.structured_output.schemas_factory")
    assert module.SimpleResponse(message="done").model_dump() == {"message": "done", "success": True}


def test_a_condition_may_return_langgraphs_end():
    from karat.graph._plan import Edge

    end = importlib.import_module("langgraph.graph").END
    assert Edge(["again", "END"], None, {"again": "again", "END": "END"}).decided(end) == ["END"]


def test_a_task_executor_says_where_its_work_is_done_here(refuses):
    base = importlib.import_module("sygra.core.base_task_executor").BaseTaskExecutor
    with refuses(RequestError):
        type("TaskExecutor", (base,), {})
    with pytest.raises(RequestError, match=r"karat\.run"):
        base({})


CUSTOM = """
from sygra.core.eval.metrics.aggregator_metrics.base_aggregator_metric import BaseAggregatorMetric
from sygra.core.eval.metrics.base_metric_metadata import BaseMetricMetadata

class Share(BaseAggregatorMetric):
    def __init__(self, **config):
        super().__init__(**config)
        self.validate_config()
        self.metadata = self.get_metadata()
    def validate_config(self):
        self.of = self.config.get("of", 1)
    def get_metadata(self):
        return BaseMetricMetadata(name="share", display_name="Share", description="of the right ones")
    def calculate(self, results):
        return {"share": self._safe_divide(self._count_correct(results), len(results) * self.of)}
"""


def test_the_base_of_aggregator_metrics_has_what_metrics_of_ones_own_call(tmp_path):
    from karat.evaluators import UnitMetricResult
    from karat.registry import load_file

    (tmp_path / "share.py").write_text(CUSTOM)
    share = load_file(tmp_path / "share.py").Share(of=2)
    results = [UnitMetricResult(True, {}, {}), UnitMetricResult(False, {}, {})]
    assert (share.calculate(results), share.calculate([])) == ({"share": 0.25}, {"share": 0.0})


def test_the_task_that_runs_is_the_one_whose_code_asks(tmp_path, monkeypatch):
    import karat
    from karat.graph import load_task

    monkeypatch.setattr("sys.path", list(sys.path))
    tasks = []
    for name in ("one", "other"):
        folder = tmp_path / name / "tasks" / "ask"
        folder.mkdir(parents=True)
        (folder / "graph_config.yaml").write_text(
            "data_config: {examples: [{id: 1}]}\n"
            "graph_config:\n"
            f"  graph_properties: {{max_iterations: {len(name)}}}\n"
            "  nodes:\n"
            "    ask: {node_type: lambda, lambda: tasks.ask.code.ask, output_keys: [said]}\n"
        )
        (folder / "code.py").write_text(
            "from sygra.utils import utils\n"
            "def ask(state):\n"
            "    bound = utils.get_graph_property('max_iterations', 0)\n"
            "    same = utils.get_graph_properties(utils.current_task)\n"
            "    file = utils.get_file_in_task_dir(utils.current_task, 'x.json')\n"
            "    return {'said': [utils.current_task, bound, same['max_iterations'], file]}\n"
        )
        tasks.append(load_task(str(folder)))
    for task, name in zip(tasks, ("one", "other"), strict=True):
        [output] = karat.run(task, task.dataset(), store="memory://", progress=False).outputs()
        file = str(tmp_path / name / "tasks" / "ask" / "x.json")
        assert output.value["said"] == ["tasks.ask", len(name), len(name), file]
    utils = importlib.import_module("sygra.utils.utils")
    assert utils.current_task is None
    assert utils.get_graph_properties() == utils.get_graph_properties("no/such/task") == {}
