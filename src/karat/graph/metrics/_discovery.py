"""Metrics in a folder: imports the Python files that register something, and no others."""

from __future__ import annotations

from pathlib import Path

import regex

from karat.errors import RequestError
from karat.graph.metrics._unit import unit_metrics
from karat.registry import load_file

_REGISTERS = regex.compile(
    r"^\s*@(?:\w+\.)*(?:unit_metric|aggregator_metric|register_evaluator|register_aggregator)\("
    r"|^\s*(?:\w+\.)*UnitMetricRegistry\.register\(",
    regex.MULTILINE,
)

BESIDE = ("unit_metrics", "metrics")
"""Folders beside a task in which metrics are looked for too."""


def discover(where: str | Path) -> list[str]:
    """Imports the metrics in a folder, or beside a task file; gives the names that became known.

    Only files in which a metric, evaluator or aggregator is registered are imported (a task's folder holds
    other programs too), not those whose name begins with `_` or `test_`. A file that fails to import is
    a `RequestError` that names it. What was discovered before is not imported again.
    """
    place = Path(where).expanduser()
    if place.is_file():
        folders = [place.parent, *(place.parent / name for name in BESIDE)]
    elif place.is_dir():
        folders = [place]
    else:
        raise RequestError(f"no folder {where} to look for metrics in")
    from karat.graph.sygra._imports import task_imports  # only here: most metrics are named, not discovered

    task_imports(None)  # files that import the names of another framework find karat's parts under them
    before = set(unit_metrics.list())
    for folder in folders:
        if folder.is_dir():
            for file in sorted(folder.glob("*.py")):
                if not file.name.startswith(("_", "test_")) and registers_metrics(file):
                    load_file(file)
    return sorted(set(unit_metrics.list()) - before)


def registers_metrics(file: Path) -> bool:
    """Whether a file looks as if it registered a metric; others are not imported."""
    return _REGISTERS.search(file.read_text(encoding="utf-8", errors="replace")) is not None
