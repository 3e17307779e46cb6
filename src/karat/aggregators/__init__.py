"""Aggregators: they fold results into estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import load
from karat.registry import SHIPPED_PLUGIN

if TYPE_CHECKING:
    from karat.aggregators._base import Aggregate as Aggregate
    from karat.aggregators._base import Aggregator as Aggregator
    from karat.aggregators._base import FunctionAggregator as FunctionAggregator
    from karat.aggregators._base import Group as Group
    from karat.aggregators._base import Grouped as Grouped
    from karat.aggregators._base import aggregators as aggregators
    from karat.aggregators._base import not_applicable as not_applicable
    from karat.aggregators._base import register_aggregator as register_aggregator
    from karat.aggregators._classification import ClassificationReport as ClassificationReport
    from karat.aggregators._classification import F1Score as F1Score
    from karat.aggregators._classification import Precision as Precision
    from karat.aggregators._classification import Recall as Recall
    from karat.aggregators._comparisons import RankRuns as RankRuns
    from karat.aggregators._comparisons import WinRate as WinRate
    from karat.aggregators._distributions import Histogram as Histogram
    from karat.aggregators._distributions import Quantiles as Quantiles
    from karat.aggregators._means import Accuracy as Accuracy
    from karat.aggregators._means import CountBy as CountBy
    from karat.aggregators._means import Mean as Mean
    from karat.aggregators._means import Rate as Rate
    from karat.aggregators._means import StepEfficiency as StepEfficiency
    from karat.aggregators._means import count_of as count_of
    from karat.aggregators._pass_k import MajorityAtK as MajorityAtK
    from karat.aggregators._pass_k import PassAtK as PassAtK
    from karat.aggregators._pass_k import PassHatK as PassHatK
    from karat.aggregators._pass_k import Problem as Problem
    from karat.graph.metrics import AggregatorMetricRegistry as AggregatorMetricRegistry
    from karat.graph.metrics import BaseAggregatorMetric as BaseAggregatorMetric
    from karat.graph.metrics import aggregator_metric as aggregator_metric
    from karat.records import AggregateTable as AggregateTable

_WHERE = {
    "Aggregate": "_base",
    "Aggregator": "_base",
    "AggregateTable": "karat.records",
    "FunctionAggregator": "_base",
    "Group": "_base",
    "aggregators": "_base",
    "count_of": "_means",
    "not_applicable": "_base",
    "register_aggregator": "_base",
    "Accuracy": "_means",
    # Aggregator metrics are a built-in plug-in: they are named here and never imported by this package.
    "AggregatorMetricRegistry": SHIPPED_PLUGIN,
    "BaseAggregatorMetric": SHIPPED_PLUGIN,
    "aggregator_metric": SHIPPED_PLUGIN,
    "ClassificationReport": "_classification",
    "CountBy": "_means",
    "F1Score": "_classification",
    "Grouped": "_base",
    "Histogram": "_distributions",
    "MajorityAtK": "_pass_k",
    "Mean": "_means",
    "PassAtK": "_pass_k",
    "PassHatK": "_pass_k",
    "Problem": "_pass_k",
    "Precision": "_classification",
    "Quantiles": "_distributions",
    "RankRuns": "_comparisons",
    "Rate": "_means",
    "Recall": "_classification",
    "StepEfficiency": "_means",
    "WinRate": "_comparisons",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
