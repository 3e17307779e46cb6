"""Unit metrics: `evaluate(golden, predicted)` over two lists, one `UnitMetricResult` for each pair."""

from __future__ import annotations

from karat.evaluators.unit import adapters, gui, match
from karat.evaluators.unit.adapters import EvaluatorMetric, UnitMetricEvaluator
from karat.evaluators.unit.base import BaseUnitMetric, MetricMetadata, UnitMetricResult
from karat.evaluators.unit.discovery import discover
from karat.evaluators.unit.registry import UnitMetricRegistry, unit_metric, unit_metrics

__all__ = [
    "BaseUnitMetric",
    "EvaluatorMetric",
    "MetricMetadata",
    "UnitMetricEvaluator",
    "UnitMetricRegistry",
    "UnitMetricResult",
    "adapters",
    "discover",
    "gui",
    "match",
    "unit_metric",
    "unit_metrics",
]
