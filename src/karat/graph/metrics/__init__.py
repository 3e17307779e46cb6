"""Metrics of graph tasks: unit metrics judge one record inside the graph, aggregator metrics summarise them after it.

A unit metric is a `BaseUnitMetric`: `evaluate(golden, predicted)` over two lists, one `UnitMetricResult` for each pair.
An aggregator metric is a `BaseAggregatorMetric`: `calculate(results)` over unit metric results. Both are registered by
name. Among evaluators a unit metric is written `unit:NAME`, among aggregators an aggregator metric `metric:NAME`.
"""

from __future__ import annotations

from karat.graph.metrics import _unit_metrics as _unit_metrics  # registers them
from karat.graph.metrics._aggregator import (
    AggregatorMetricRegistry,
    BaseAggregatorMetric,
    aggregator_metric,
    aggregator_metrics,
)
from karat.graph.metrics._unit import (
    BaseUnitMetric,
    EvaluatorMetric,
    MetricMetadata,
    UnitMetricEvaluator,
    UnitMetricRegistry,
    UnitMetricResult,
    discover,
    unit_metric,
    unit_metrics,
)

__all__ = [
    "AggregatorMetricRegistry",
    "BaseAggregatorMetric",
    "BaseUnitMetric",
    "EvaluatorMetric",
    "MetricMetadata",
    "UnitMetricEvaluator",
    "UnitMetricRegistry",
    "UnitMetricResult",
    "aggregator_metric",
    "aggregator_metrics",
    "discover",
    "unit_metric",
    "unit_metrics",
]
