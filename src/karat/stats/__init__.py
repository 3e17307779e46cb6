"""Confidence intervals, paired tests, ratings and agreement, usable on their own.

Names are loaded on first use, so that importing this package is cheap: NumPy is imported by the first function that
needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import load

if TYPE_CHECKING:
    from karat.stats._agreement import Agreement as Agreement
    from karat.stats._agreement import agreement_between as agreement_between
    from karat.stats._agreement import cohen_kappa as cohen_kappa
    from karat.stats._agreement import fleiss_kappa as fleiss_kappa
    from karat.stats._agreement import kappa as kappa
    from karat.stats._agreement import krippendorff_alpha as krippendorff_alpha
    from karat.stats._agreement import percent_agreement as percent_agreement
    from karat.stats._classification import Classification as Classification
    from karat.stats._classification import ClassMetrics as ClassMetrics
    from karat.stats._classification import ConfusionState as ConfusionState
    from karat.stats._classification import classification_metrics as classification_metrics
    from karat.stats._exact import ExactSum as ExactSum
    from karat.stats._exact import exact_sum as exact_sum
    from karat.stats._means import MeanState as MeanState
    from karat.stats._means import mean_interval as mean_interval
    from karat.stats._paired import PairedComparison as PairedComparison
    from karat.stats._paired import PairedTest as PairedTest
    from karat.stats._paired import holm as holm
    from karat.stats._paired import mcnemar as mcnemar
    from karat.stats._paired import newcombe as newcombe
    from karat.stats._paired import paired as paired
    from karat.stats._paired import smallest_effect as smallest_effect
    from karat.stats._paired import tango as tango
    from karat.stats._prediction_powered import ppi as ppi
    from karat.stats._proportions import clopper_pearson as clopper_pearson
    from karat.stats._proportions import missing_bounds as missing_bounds
    from karat.stats._proportions import proportion as proportion
    from karat.stats._proportions import share as share
    from karat.stats._proportions import wilson as wilson
    from karat.stats._proportions import with_bounds as with_bounds
    from karat.stats._ratings import BradleyTerry as BradleyTerry
    from karat.stats._ratings import RankedRun as RankedRun
    from karat.stats._ratings import bradley_terry as bradley_terry
    from karat.stats._ratings import elo as elo
    from karat.stats._resampling import bootstrap as bootstrap
    from karat.stats._resampling import permutation as permutation
    from karat.stats._validation import StatisticsError as StatisticsError

_WHERE = {
    "Agreement": "_agreement",
    "BradleyTerry": "_ratings",
    "ClassMetrics": "_classification",
    "Classification": "_classification",
    "ConfusionState": "_classification",
    "ExactSum": "_exact",
    "MeanState": "_means",
    "PairedComparison": "_paired",
    "PairedTest": "_paired",
    "RankedRun": "_ratings",
    "StatisticsError": "_validation",
    "agreement_between": "_agreement",
    "bootstrap": "_resampling",
    "bradley_terry": "_ratings",
    "classification_metrics": "_classification",
    "clopper_pearson": "_proportions",
    "cohen_kappa": "_agreement",
    "elo": "_ratings",
    "exact_sum": "_exact",
    "fleiss_kappa": "_agreement",
    "holm": "_paired",
    "kappa": "_agreement",
    "krippendorff_alpha": "_agreement",
    "mcnemar": "_paired",
    "mean_interval": "_means",
    "missing_bounds": "_proportions",
    "newcombe": "_paired",
    "paired": "_paired",
    "percent_agreement": "_agreement",
    "permutation": "_resampling",
    "ppi": "_prediction_powered",
    "proportion": "_proportions",
    "share": "_proportions",
    "smallest_effect": "_paired",
    "tango": "_paired",
    "wilson": "_proportions",
    "with_bounds": "_proportions",
}

__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
