"""Confidence intervals, paired tests, ratings and agreement, usable on their own.

Names are loaded on first use, so that importing this package is cheap: NumPy is imported by the first function that
needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from karat.lazy import exports

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
    from karat.stats._means import proportion as proportion
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
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            "_agreement": "Agreement agreement_between cohen_kappa fleiss_kappa kappa krippendorff_alpha "
            "percent_agreement",
            "_classification": "ClassMetrics Classification ConfusionState classification_metrics",
            "_exact": "ExactSum exact_sum",
            "_means": "MeanState mean_interval proportion",
            "_paired": "PairedComparison PairedTest holm mcnemar newcombe paired smallest_effect tango",
            "_prediction_powered": "ppi",
            "_proportions": "clopper_pearson missing_bounds share wilson with_bounds",
            "_ratings": "BradleyTerry RankedRun bradley_terry elo",
            "_resampling": "bootstrap permutation",
            "_validation": "StatisticsError",
        },
    )
