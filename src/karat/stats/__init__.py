"""Intervals, paired tests, agreement and ranking, usable alone.

Names are imported where they are used, so that importing this package costs next to nothing: NumPy is loaded
by the first function that needs it.
"""

from __future__ import annotations

from typing import Any

from karat.lazy import load

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
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
