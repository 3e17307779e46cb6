"""The metrics of a graph for the store: its unit metrics as evaluators, and its aggregators over them."""

from __future__ import annotations

import json
from typing import Any

from karat.aggregators import aggregators
from karat.evaluators import FromOutput
from karat.graph._task import GraphTask
from karat.graph.metrics._aggregator import AggregatorMetricRegistry
from karat.graph.metrics._collator import fields_of
from karat.graph.metrics._node import UnitMetrics
from karat.registry import parameters_of


def stored_metrics(task: GraphTask) -> tuple[list[Any], list[dict[str, Any]]]:
    """The unit metrics of a graph as evaluators of its output, and the aggregators of its reports over them."""
    fields: dict[str, dict[str, str]] = {name: {} for name in _judged(task)}
    folded: dict[tuple[str, str, bool], tuple[str, dict[str, Any], list[str]]] = {}
    for processor in task.graph.processors:
        fields |= {name: {} for _, name in processor.wants if name not in fields}
        named = processor.params.get("aggregator_metrics_map") if processor.wants else None
        for entry in named or ():
            params = dict(entry.get("params") or {})
            own = bool(entry.get("metadata")) or _is_pooled(str(entry["name"]), params)
            place = (str(entry["name"]), json.dumps(params, sort_keys=True, default=str), own)
            folded.setdefault(place, (place[0], params, []))[2].extend(fields_of(entry))
            for field in fields_of(entry):
                fields[field].update(entry.get("metadata") or {})
    evaluators = [FromOutput(field, metadata or None) for field, metadata in fields.items()]
    keys: dict[str, int] = {}
    entries = []
    for (_, _, own), (name, params, of) in folded.items():
        keys[name] = number = keys.get(name, 0) + 1
        key = name if number == 1 else f"{name}-{number}"
        made = {"name": f"metric:{name}", "params": params} if own else _aggregator(name, params)
        entries.append({**made, "key": key, "of": list(dict.fromkeys(of))})
    return evaluators, entries


def _judged(task: GraphTask) -> list[str]:
    """The output fields that hold results of its unit metrics."""
    calls = [getattr(node, "call", None) for node in task.plan.nodes.values()]
    judged = [field for call in calls if isinstance(call, UnitMetrics) for field in call.fields]
    if task.output.is_whole_state:
        return judged
    return [name for name, source in (task.output.fields or {}).items() if source in judged]


def _is_pooled(name: str, params: dict[str, Any]) -> bool:
    """Whether a metric takes all results for attempts at one problem, which the aggregator of its name does not."""
    return bool(getattr(AggregatorMetricRegistry.get_metric(name, **params), "pooled", False))


def _aggregator(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """The aggregator of a metric's name where there is one that takes its parameters, else the metric itself."""
    own = {
        key: value for key, value in params.items() if key != "key"
    }  # what was compared, not what is folded
    if aggregators.has(name) and set(own) <= set(parameters_of(aggregators.get(name))):
        if name in (
            "precision",
            "recall",
            "f1_score",
        ):  # the number of the report, not another average of the same
            own.setdefault("average", "seed")
        return {"name": name, "params": own}
    return {"name": f"metric:{name}", "params": params}
