"""Experiments: a YAML file that names dataset, task, evaluators and aggregators, checked as a whole, then run.

Names are imported where they are used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from karat.lazy import exports

if TYPE_CHECKING:
    from karat.experiments.checking import read_experiment as read_experiment
    from karat.experiments.plan import Plan as Plan
    from karat.experiments.plan import PlannedRun as PlannedRun
    from karat.experiments.running import Outcome as Outcome
    from karat.experiments.running import carry_out as carry_out
    from karat.experiments.schema import experiment_schema as experiment_schema
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            "checking": "read_experiment",
            "plan": "Plan PlannedRun",
            "running": "Outcome carry_out",
            "schema": "experiment_schema",
        },
    )
