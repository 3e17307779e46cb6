"""Aggregator metrics among aggregators: `metric:NAME`, and any object with `calculate`, over stored results."""

from __future__ import annotations

import inspect
import math
from typing import Any

from karat.aggregators.base import Aggregate, Aggregator, Group, aggregators, not_applicable
from karat.aggregators.metrics import AggregatorMetricRegistry, aggregator_metrics
from karat.evaluators.unit.base import UnitMetricResult
from karat.records import Estimate, Ok, Result

SIBLINGS = ("_interval", "_bounds", "_n", "_of")
"""What stands beside a number: `accuracy_interval`, `accuracy_bounds`, and its own n and denominator."""


def as_unit_result(result: Result) -> UnitMetricResult | None:
    """A stored result as a unit metric result; None where it has neither verdict nor score."""
    if isinstance(result.value, bool):
        correct = result.value
    elif result.score is not None:
        correct = result.score >= 0.5
    else:
        return None
    metadata = {k: v for k, v in result.metadata.items() if k not in ("golden", "predicted")}
    return UnitMetricResult(
        correct, result.metadata.get("golden"), result.metadata.get("predicted"), metadata
    )


class MetricAggregator(Aggregator[Any]):
    """An aggregator metric over the results of an evaluation; what has no verdict is added as None.

    Its numbers become estimates, with the interval that stands beside them (`accuracy_interval`); whatever else it
    gives becomes a table. Every result is an item of its own: where examples have several attempts, the aggregator
    of the same name knows that they belong together.
    """

    def __init__(self, metric: Any) -> None:
        self.metric = self.wraps = metric
        self.name = getattr(metric, "name", "") or type(metric).__name__  # type: ignore[misc]  # of this one
        self.params = dict(getattr(metric, "config", {}) or {})

    def start(self) -> Any:
        return [self.metric.start(), 0, 0]  # the metric's own, the items, those of them with a verdict

    def add(self, state: Any, group: Group) -> Any:
        for result in group.results:
            if not not_applicable(result):
                unit = as_unit_result(result.outcome.value) if isinstance(result.outcome, Ok) else None
                state[0] = self.metric.add(state[0], unit)
                state[1] += 1
                state[2] += unit is not None
        for _ in range(group.pending):
            state[0] = self.metric.add(state[0], None)
            state[1] += 1
        return state

    def merge(self, a: Any, b: Any) -> Any:
        return [self.metric.merge(a[0], b[0]), a[1] + b[1], a[2] + b[2]]

    def finish(self, state: Any) -> Aggregate:
        given = self.metric.finish(state[0])
        if not isinstance(given, dict):
            raise ValueError(f"{self.name} gave {type(given).__name__}, not a dict of metric values")
        if not all(isinstance(key, str) for key in given):
            raise ValueError(f"{self.name} gave a dict whose keys are not all texts")
        of = given.get("of", state[1])
        n = given.get("n", state[2])
        out = Aggregate()
        for key, value in given.items():
            if key in ("n", "of") or _is_sibling(key, given):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                if value is not None:
                    out.tables[key] = value
            elif math.isfinite(value):
                low, high = given.get(f"{key}_interval") or (None, None)
                lowest, highest = given.get(f"{key}_bounds") or (None, None)
                out.estimates[key] = Estimate(
                    float(value),
                    low,
                    high,
                    given.get(f"{key}_n", n),
                    given.get(f"{key}_of", of),
                    "" if low is None else "as given",
                    self.params.get("confidence", 0.95),
                    lowest=lowest,
                    highest=highest,
                )
        return out


def _is_sibling(key: str, given: dict[str, Any]) -> bool:
    """Whether a field only says something about the number it is named after."""
    return any(key.removesuffix(ending) in given for ending in SIBLINGS if key.endswith(ending))


class _Named:
    """What `metric:NAME` resolves to: callable with the metric's parameters."""

    def __init__(self, name: str) -> None:
        part = aggregator_metrics.get(name)
        self.name = name
        self.__doc__ = inspect.getdoc(part)
        self.__module__ = part.__module__
        self.__qualname__ = getattr(part, "__qualname__", name)
        self.__signature__ = inspect.signature(part)

    def __call__(self, **params: Any) -> Any:
        return AggregatorMetricRegistry.get_metric(self.name, **params)


aggregators.prefix("metric", _Named)
