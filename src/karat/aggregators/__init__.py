"""Aggregators: they fold results into estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from karat.lazy import exports
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
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            "_base": "Aggregate Aggregator FunctionAggregator Group Grouped aggregators not_applicable "
            "register_aggregator",
            "_classification": "ClassificationReport F1Score Precision Recall",
            "_comparisons": "RankRuns WinRate",
            "_distributions": "Histogram Quantiles",
            "_means": "Accuracy CountBy Mean Rate StepEfficiency count_of",
            "_pass_k": "MajorityAtK PassAtK PassHatK Problem",
            # Aggregator metrics are a built-in plug-in: they are named here and never imported by this package.
            SHIPPED_PLUGIN: "AggregatorMetricRegistry BaseAggregatorMetric aggregator_metric",
            "karat.records": "AggregateTable",
        },
    )
