"""Aggregators: what folds results into estimates."""

from __future__ import annotations

from typing import Any

from karat.lazy import load

_WHERE = {
    "Aggregate": "base",
    "Aggregator": "base",
    "Group": "base",
    "aggregators": "base",
    "register_aggregator": "base",
    "Accuracy": "means",
    # Aggregator metrics are a built-in plug-in: they are named here and never imported by this package.
    "AggregatorMetricRegistry": "karat.graph.metrics",
    "BaseAggregatorMetric": "karat.graph.metrics",
    "aggregator_metric": "karat.graph.metrics",
    "ClassificationReport": "classification",
    "CountBy": "rates",
    "F1Score": "classification",
    "Grouped": "grouping",
    "Histogram": "distributions",
    "MajorityAtK": "pass_k",
    "Mean": "means",
    "PassAtK": "pass_k",
    "PassHatK": "pass_k",
    "Precision": "classification",
    "Quantiles": "distributions",
    "Ranking": "ranking",
    "Rate": "rates",
    "Recall": "classification",
    "StepEfficiency": "efficiency",
    "WinRate": "comparisons",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
