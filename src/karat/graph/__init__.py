"""Graph tasks: a folder with a `graph_config.yaml`, compiled into a plan that every record goes through.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import Any

from karat.lazy import load

_WHERE = {
    "GraphPostProcessor": "postprocess",
    "GraphTask": "task",
    "MetricCollatorPostProcessor": "collator",
    "NodeFailed": "plan",
    "SemanticDedupPostProcessor": "deduplication",
    "SygraState": "state",
    "UnitMetrics": "unit_metrics",
    "find_task": "lookup",
    "known_tasks": "lookup",
    "load_task": "task",
    "write_files": "files",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
