"""Intervals, paired tests, agreement and ranking, usable alone.

Names are imported where they are used, so that importing this package costs next to nothing: NumPy is loaded
by the first function that needs it.
"""

from __future__ import annotations

import importlib
from typing import Any

# No name here may also be the name of a module of this package: importing the module would hide it.
_WHERE = {
    "Agreement": "agreement",
    "BradleyTerry": "strengths",
    "ClassMetrics": "classification",
    "Classification": "classification",
    "ConfusionState": "confusion",
    "ExactSum": "exact",
    "MeanState": "means",
    "PairedComparison": "pairing",
    "PairedTest": "paired_tests",
    "RankedRun": "strengths",
    "StatisticsError": "validation",
    "agreement_between": "agreement",
    "bootstrap": "resampling",
    "bradley_terry": "strengths",
    "classification_metrics": "classification",
    "clopper_pearson": "proportions",
    "cohen_kappa": "agreement",
    "elo": "ranking",
    "exact_sum": "exact",
    "fleiss_kappa": "agreement",
    "holm": "multiplicity",
    "kappa": "agreement",
    "krippendorff_alpha": "krippendorff",
    "mcnemar": "paired_tests",
    "mean_interval": "means",
    "missing_bounds": "bounds",
    "newcombe": "paired_proportions",
    "paired": "pairing",
    "percent_agreement": "agreement",
    "permutation": "resampling",
    "ppi": "prediction_powered",
    "proportion": "proportions",
    "smallest_effect": "power",
    "tango": "paired_proportions",
    "wilson": "proportions",
    "with_bounds": "bounds",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
