"""Experiments: a YAML file that names dataset, task, evaluators and aggregators, checked as a whole, then run.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import load

if TYPE_CHECKING:
    from karat.experiments.checking import read_experiment as read_experiment
    from karat.experiments.plan import Plan as Plan
    from karat.experiments.plan import PlannedRun as PlannedRun
    from karat.experiments.running import Outcome as Outcome
    from karat.experiments.running import carry_out as carry_out
    from karat.experiments.schema import experiment_schema as experiment_schema

_WHERE = {
    "Outcome": "running",
    "Plan": "plan",
    "PlannedRun": "plan",
    "carry_out": "running",
    "experiment_schema": "schema",
    "read_experiment": "checking",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
