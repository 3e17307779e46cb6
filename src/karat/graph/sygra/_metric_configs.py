"""The configuration classes of SyGra's metrics: parameters that are checked as the metric itself checks them."""

from __future__ import annotations

from typing import Any, ClassVar

from karat.graph.metrics._attempts import PassAtKMetric, StepEfficiencyMetric
from karat.graph.metrics._classification import F1ScoreMetric, PrecisionMetric, RecallMetric
from karat.graph.metrics._gui import (
    ActionWithinBboxMetric,
    ScrollAmountMetric,
    ScrollDirectionMetric,
    TypedValueMatchMetric,
)
from karat.graph.metrics._match import ExactMatchMetric, FuzzyMatchMetric


class _Config:
    """Parameters of a metric as attributes, those that were not given with their defaults."""

    metric: ClassVar[type[Any]]

    def __init__(self, **given: Any) -> None:
        self._values: dict[str, Any] = dict(self.metric(**given).config)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no parameter {name!r}") from None

    def model_dump(self) -> dict[str, Any]:
        """All settings as keyword arguments of the metric."""
        return dict(self._values)


class ExactMatchMetricConfig(_Config):
    """Parameters of `exact_match`."""

    metric = ExactMatchMetric


class FuzzyMatchMetricConfig(_Config):
    """Parameters of `fuzzy_match`."""

    metric = FuzzyMatchMetric


class ActionWithinBboxMetricConfig(_Config):
    """Parameters of `action_within_bbox`."""

    metric = ActionWithinBboxMetric


class TypedValueMatchMetricConfig(_Config):
    """Parameters of `typed_value_match`."""

    metric = TypedValueMatchMetric


class ScrollDirectionMetricConfig(_Config):
    """Parameters of `scroll_direction`."""

    metric = ScrollDirectionMetric


class ScrollAmountMetricConfig(_Config):
    """Parameters of `scroll_amount`."""

    metric = ScrollAmountMetric


class PrecisionMetricConfig(_Config):
    """Parameters of `precision`."""

    metric = PrecisionMetric


class RecallMetricConfig(_Config):
    """Parameters of `recall`."""

    metric = RecallMetric


class F1ScoreMetricConfig(_Config):
    """Parameters of `f1_score`."""

    metric = F1ScoreMetric


class PassAtKMetricConfig(_Config):
    """Parameters of `pass@k` and `pass^k`."""

    metric = PassAtKMetric


class StepEfficiencyMetricConfig(_Config):
    """Parameters of `step_efficiency`."""

    metric = StepEfficiencyMetric
