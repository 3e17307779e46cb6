"""User-defined parts: changed code, or another object, gives another result."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import karat
from karat.aggregators import BaseAggregatorMetric
from karat.evaluators import Evaluator
from karat.records import Result

DATA = [{"id": str(n), "input": n, "metadata": {"topic": "t"}, "expected": n} for n in range(4)]


class Near(Evaluator):
    """It sets no params: what it holds is all there is to tell two of them apart."""

    def __init__(self, distance: int) -> None:
        super().__init__("near")
        self.distance = distance

    def evaluate(self, *, outputs, reference_outputs=None, inputs=None, **context) -> Result:
        return Result(self.key, float(abs(outputs - reference_outputs) <= self.distance))


class Share(BaseAggregatorMetric):
    def __init__(self, add: float) -> None:
        self.extra = add

    def calculate(self, results):
        return {"share": sum(result.correct for result in results) / len(results) + self.extra}


@pytest.fixture
def run():
    return karat.run(
        lambda number: number + number % 3,
        karat.Dataset.from_examples(DATA, name="numbers"),
        store="memory://",
        progress=False,
    )


def scores(evaluation) -> list[float]:
    return [result.outcome.value.score for result in evaluation.results()]


def test_objects_without_params_are_distinguished_by_what_they_hold(run):
    near, nearer = karat.evaluate(run, [Near(1)]), karat.evaluate(run, [Near(0)])
    assert near.id != nearer.id
    assert (scores(near), scores(nearer)) == ([1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0])
    assert karat.evaluate(run, [Near(1)]).id == near.id


def test_aggregators_without_params_are_distinguished_by_what_they_hold(run):
    evaluation = karat.evaluate(run, [Near(1)])
    found = [karat.aggregate(evaluation, [Share(add)]) for add in (0.0, 1.0, 0.0)]
    values = [each.estimates[0].value for each in found]
    assert values == [0.75, 1.75, 0.75]
    assert found[0].id == found[2].id != found[1].id


METRIC = """
from karat.aggregators import BaseAggregatorMetric

class Share(BaseAggregatorMetric):
    def calculate(self, results):
        return {"share": VALUE}
"""


def test_changed_code_of_an_aggregator_is_computed_again(run, tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    evaluation = karat.evaluate(run, [Near(1)])
    values = []
    for value in ("0.25", "0.5"):
        (tmp_path / "changing_share.py").write_text(METRIC.replace("VALUE", value))
        sys.modules.pop("changing_share", None)
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        aggregation = karat.aggregate(
            evaluation,
            [
                {"name": "changing_share.Share", "params": {"by": "topic"}},
                {"name": "changing_share.Share", "key": "plain"},
            ],
        )
        values.append(next(e.value for e in aggregation.estimates if "plain" in e.aggregator))
    assert values == [0.25, 0.5]
