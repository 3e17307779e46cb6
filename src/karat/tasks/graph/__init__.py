"""Graph tasks: a folder with a `graph_config.yaml`, compiled into a plan that every record goes through.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "GraphPostProcessor": "postprocess",
    "GraphTask": "task",
    "MetricCollatorPostProcessor": "collator",
    "NodeFailed": "plan",
    "SygraState": "state",
    "UnitMetrics": "unit_metrics",
    "find_task": "lookup",
    "known_tasks": "lookup",
    "load_task": "task",
    "write_files": "files",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"karat.tasks.graph.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
