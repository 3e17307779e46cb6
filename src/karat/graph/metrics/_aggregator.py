"""Aggregator metrics as graph tasks name them: `calculate(results)` over unit metric results gives a dict.

karat's own fold one result at a time (`start`, `add`, `merge`, `finish`), and `calculate` is that fold over a
list. One that others write needs only `calculate`; it is folded by keeping the results in a list.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

from karat.aggregators import Aggregate, Aggregator, Group, aggregators, not_applicable
from karat.errors import RequestError
from karat.graph.metrics._unit import Adapter, Metric, MetricRegistry, UnitMetricResult
from karat.records import MISSING_ATTEMPTS, Estimate, EvaluatorSpec, Ok, Result
from karat.registry import Registry

M = TypeVar("M", bound=type["BaseAggregatorMetric"])

State: TypeAlias = Any
"""What a metric has folded so far, of a type of its own."""

MetricResult: TypeAlias = UnitMetricResult | dict[str, Any] | None
"""A result that is added to a metric: with its fields, as the dict of them, or None where it is missing."""

aggregator_metrics: Registry[Callable[..., Any]] = Registry(
    "aggregator metric",
    builtin=["karat.graph.metrics._aggregator_metrics"],
)


class BaseAggregatorMetric(Metric):
    """Base of aggregator metrics: override `calculate`, or the four steps of a fold."""

    over: ClassVar[frozenset[str]] = frozenset({"single"})
    locates_missing: ClassVar[bool] = False
    """Whether `add` gets `{"metadata": …}` in the place of None where more is known of a result that is missing."""

    def as_aggregator(self) -> MetricAggregator:
        """This metric as an aggregator over stored results."""
        return MetricAggregator(self)

    def state_key(self) -> Hashable:
        """Metrics with the same key fold results to the same state, which then need be folded only once.

        None for a metric whose state is its own.
        """
        return None

    def calculate(self, results: list[Any]) -> dict[str, Any]:
        """The metric over all results: `UnitMetricResult`s, or the dicts they were written as."""
        state = self.start()
        for result in results:
            state = self.add(state, result)
        return self.finish(state)

    def start(self) -> Any:
        """An empty state: a list, unless the metric folds."""
        if type(self).calculate is BaseAggregatorMetric.calculate:
            raise RequestError(f"aggregator metric {self.get_metric_name()!r} has no calculate(results)")
        return []

    def add(self, state: State, result: Any) -> Any:
        """The state with one result added: a UnitMetricResult, its dict, or None where there is none."""
        unit = unit_result(result)
        if unit is not None:
            state.append(unit)
        return state

    def add_attempts(self, state: State, results: Sequence[Any]) -> Any:
        """The state with the results of all attempts at one example added, None for each that is missing.

        Override it where attempts at one example are not independent, which an interval has to allow for.
        """
        for result in results:
            state = self.add(state, result)
        return state

    def merge(self, a: State, b: State) -> Any:
        """Merge two states."""
        return a + b

    def finish(self, state: State) -> dict[str, Any]:
        """The metric's values for a state."""
        return self.calculate(state)

    def _count_correct(self, results: Iterable[UnitMetricResult]) -> int:
        """Count the correct results; metrics written for SyGra call it."""
        return sum(result.correct for result in results)

    def _safe_divide(self, numerator: float, denominator: float) -> float:
        """A quotient; 0 where the denominator is 0. Also part of SyGra's base class."""
        return numerator / denominator if denominator else 0.0


class _Foreign(BaseAggregatorMetric):
    """A metric of a class that is not derived from the base: it gets all results at once, unless it folds."""

    def __init__(self, metric: Any) -> None:
        self.wraps = metric
        self.name = getattr(metric, "name", "") or type(metric).__name__  # type: ignore[misc]  # of this one
        self.locates_missing = getattr(metric, "locates_missing", False)  # type: ignore[misc]
        super().__init__()
        config = getattr(metric, "config", None)
        self.config = dict(config) if isinstance(config, Mapping) else {}
        if all(callable(getattr(metric, step, None)) for step in ("start", "add", "finish")):
            for step in ("start", "add", "add_attempts", "merge", "finish", "state_key"):
                if callable(own := getattr(metric, step, None)):
                    setattr(self, step, own)

    def calculate(self, results: list[Any]) -> Any:
        return self.wraps.calculate(results)


def folding(metric: object) -> BaseAggregatorMetric:
    """A metric with the steps of a fold, whatever its class."""
    return metric if isinstance(metric, BaseAggregatorMetric) else _Foreign(metric)


def unit_result(result: MetricResult) -> UnitMetricResult | None:
    """A result as a `UnitMetricResult`; None for a failed result or one without a verdict."""
    if result is None or isinstance(result, UnitMetricResult):
        return result
    if isinstance(result, dict) and not isinstance(result.get("correct"), bool):
        return None
    return UnitMetricResult.from_dict(result)


def aggregator_metric(name: str) -> Callable[[M], M]:
    """A decorator that registers a subclass of `BaseAggregatorMetric` under a name."""

    def add(metric_class: M) -> M:
        AggregatorMetricRegistry.register(name, metric_class)
        return metric_class

    return add


class AggregatorMetricRegistry(MetricRegistry):
    """The registered aggregator metrics."""

    kind, article, registered = "aggregator metric", "an", aggregator_metrics

    @classmethod
    def _lacking(cls, metric_class: object) -> str:
        fits = isinstance(metric_class, type) and callable(getattr(metric_class, "calculate", None))
        return "" if fits else "a class with calculate(results)"


SIBLINGS = ("_interval", "_bounds", "_bounds_assume", "_n", "_of", "_missing")
"""Endings of the fields that belong to a number: its interval, its bounds, its own n and of, missing attempts."""


def as_unit_result(result: Result, lower_is_better: bool = False) -> UnitMetricResult | None:
    """A stored result as a unit metric result; None where it has neither verdict nor score."""
    if isinstance(result.value, bool) and not lower_is_better:
        correct = result.value
    elif result.score is not None:
        correct = result.score <= 0.5 if lower_is_better else result.score >= 0.5
    else:
        return None
    metadata = {k: v for k, v in result.metadata.items() if k not in ("golden", "predicted")}
    return UnitMetricResult(
        correct, result.metadata.get("golden"), result.metadata.get("predicted"), metadata
    )


class MetricAggregator(Aggregator[Any]):
    """An aggregator metric over the results of an evaluation. A result without a verdict is added as None.

    Its numbers become estimates, with the interval beside them (`accuracy_interval`); its other values become tables.
    The attempts at an example are added together (`add_attempts`).
    """

    def __init__(self, metric: Any) -> None:
        self.metric = self.wraps = metric
        self.name = getattr(metric, "name", "") or type(metric).__name__  # type: ignore[misc]  # of this one
        self.params = dict(getattr(metric, "config", {}) or {})
        self.lower_is_better = False

    def for_evaluator(self, spec: EvaluatorSpec) -> MetricAggregator:
        """The same aggregator with the direction of the scores. What a unit metric calls correct stays so."""
        adapted = copy.copy(self)
        of_unit_metric = spec.name == "from_output" or spec.name.startswith("unit:")
        adapted.lower_is_better = not spec.higher_is_better and not of_unit_metric
        return adapted

    def start(self) -> Any:
        return [self.metric.start(), 0, 0]  # the metric's own, the items, those of them with a verdict

    def add(self, state: State, group: Group) -> Any:
        units = [
            as_unit_result(result.outcome.value, self.lower_is_better)
            if isinstance(result.outcome, Ok)
            else None
            for result in group.results
            if not not_applicable(result)
        ]
        units += [None] * group.pending
        if units:
            state[0] = self.metric.add_attempts(state[0], units)
        state[1] += len(units)
        state[2] += len(units) - units.count(None)
        return state

    def merge(self, a: State, b: State) -> Any:
        return [self.metric.merge(a[0], b[0]), a[1] + b[1], a[2] + b[2]]

    def finish(self, state: State) -> Aggregate:
        given = self.metric.finish(state[0])
        if not isinstance(given, dict):
            raise ValueError(f"{self.name} returned {type(given).__name__}, not a dict of metric values")
        if not all(isinstance(key, str) for key in given):
            raise ValueError(f"{self.name} returned a dict whose keys are not all text")
        of = given.get("of", state[1])
        n = given.get("n", state[2])
        out = Aggregate()
        for key, value in given.items():
            if value is None or key in ("n", "of") or _is_sibling(key, given):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                out.add_table(value, key)
                continue
            if not math.isfinite(value):
                raise ValueError(f"{self.name} returned {value} as {key}: give a finite number, or None")
            low, high = given.get(f"{key}_interval") or (None, None)
            lowest, highest = given.get(f"{key}_bounds") or (None, None)
            names = {"bounds_assume": f"{key}_bounds_assume", MISSING_ATTEMPTS: f"{key}_missing"}
            estimate = Estimate(
                float(value),
                low,
                high,
                given.get(f"{key}_n", n),
                given.get(f"{key}_of", of),
                "" if low is None else "as given",
                self.params.get("confidence", 0.95),
                lowest=lowest,
                highest=highest,
                metadata={name: found for name, field in names.items() if (found := given.get(field))},
            )
            if self.lower_is_better:
                estimate.metadata["better"] = "higher"
            out.add(estimate, key)
        return out


def _is_sibling(key: str, given: dict[str, Any]) -> bool:
    """Whether a field belongs to another number, such as `accuracy_interval` to `accuracy`."""
    return any(key.removesuffix(ending) in given for ending in SIBLINGS if key.endswith(ending))


class _AsAggregator(Adapter):
    def __call__(self, **params: Any) -> BaseAggregatorMetric:
        return folding(AggregatorMetricRegistry.get_metric(self.name, **params))


def _as_aggregator(name: str) -> Any:
    return _AsAggregator(aggregator_metrics.get(name), name)


aggregators.prefix("metric", _as_aggregator)
