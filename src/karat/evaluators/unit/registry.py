"""The names of unit metrics. They are apart from those of evaluators: `exact_match` is one of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from karat.errors import RequestError
from karat.evaluators.unit.base import BaseUnitMetric
from karat.registry import Registry, check_parameters

M = TypeVar("M", bound=type[BaseUnitMetric])

unit_metrics: Registry[Callable[..., Any]] = Registry("unit metric", builtin=["karat.evaluators.unit"])


def unit_metric(name: str) -> Callable[[M], M]:
    """A decorator that registers a subclass of `BaseUnitMetric` under a name."""

    def add(metric_class: M) -> M:
        UnitMetricRegistry.register(name, metric_class)
        return metric_class

    return add


class UnitMetricRegistry:
    """The registered unit metrics, as the graph tasks ask for them."""

    @classmethod
    def register(cls, name: str, metric_class: type[BaseUnitMetric]) -> None:
        """Registers a class under a name; a name that another class has is refused."""
        if not isinstance(name, str) or not name:
            raise RequestError(f"a unit metric needs a name, not {name!r}")
        if not isinstance(metric_class, type) or not issubclass(metric_class, BaseUnitMetric):
            raise RequestError(f"unit metric {name!r} has to be a subclass of BaseUnitMetric")
        unit_metrics.register(name)(metric_class)
        if not metric_class.name:
            metric_class.name = name

    @classmethod
    def get_metric(cls, name: str, /, **params: Any) -> BaseUnitMetric:
        """A metric built with its parameters; an unknown name or parameter names the nearest known one."""
        metric_class = unit_metrics.get(name)
        what = f"unit metric {name!r}"
        check_parameters(metric_class, params, what)
        try:
            metric = metric_class(**params)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{what}: {error}") from error
        if not isinstance(metric, BaseUnitMetric):
            raise RequestError(f"{what} is not a subclass of BaseUnitMetric")
        return metric

    @classmethod
    def get_metric_class(cls, name: str) -> Any:
        """The class registered under a name."""
        return unit_metrics.get(name)

    @classmethod
    def list_metrics(cls) -> list[str]:
        """All registered names, sorted."""
        return unit_metrics.list()

    @classmethod
    def has_metric(cls, name: str) -> bool:
        """Whether a name is registered."""
        return unit_metrics.has(name)

    @classmethod
    def describe(cls) -> list[dict[str, Any]]:
        """Every registered metric: `{name, description, params, …}`."""
        return [unit_metrics.describe(name) for name in unit_metrics.list()]
