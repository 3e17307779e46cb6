"""Prediction-powered estimates: few human labels correct the mean of many judged ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from karat.records import Estimate
from karat.stats._distributions import critical
from karat.stats._means import mean_interval
from karat.stats._validation import StatisticsError, check_confidence, finite_values, same_length


def ppi(
    labels: Sequence[Any],
    judged_labels: Sequence[Any],
    judged_all: Sequence[Any],
    *,
    power_tuning: bool = True,
    bounds: tuple[float, float] | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """The mean of what people would say of all items, from few labels of theirs and many of a judge's.

    `labels[i]` and `judged_labels[i]` are the person's and the judge's for the same item; `judged_all` are
    the judge's for the other items, which nobody labelled. The estimate is λ·mean(judged_all) + mean(labels −
    λ·judged_labels): unbiased whatever the judge is worth, and narrower the better it is (PPI++,
    Angelopoulos, Duchi & Zrnic 2023). λ = cov(labels, judged) / ((1 + n/N)·var(judged)), kept within 0 and 1,
    so that a useless judge does no harm; `power_tuning=False` takes λ = 1, the plain method of 2023. Its
    variance is λ²·var(judged_all)/N + var(labels − λ·judged_labels)/n, and the interval is t's with the
    smaller sample's weight in the degrees of freedom (Welch). `bounds` cuts it to the scores' range. In the
    metadata: λ, and `labels_only`, the estimate from the labels alone, for comparison.
    """
    confidence = check_confidence(confidence)
    same_length("ppi", labels=labels, judged_labels=judged_labels)
    truth = finite_values(labels, "labels")
    judged = finite_values(judged_labels, "judged_labels")
    others = finite_values(judged_all, "judged_all")
    n, big = len(truth), len(others)
    method = "ppi++" if power_tuning else "ppi"
    if n == 0:
        metadata: dict[str, Any] = {"reason": "no human labels: a judge's word alone is not corrected"}
        return Estimate(None, of=big, method=method, confidence=confidence, metadata=metadata)
    alone = mean_interval(truth, confidence=confidence, bounds=bounds)
    if n < 2 or big < 2:
        metadata = {"reason": "labels alone: two labelled and two other items are needed for a correction"}
        return Estimate(alone.value, alone.low, alone.high, n, n + big, "t", confidence, metadata=metadata)
    tuned = _tuning(truth, judged, others) if power_tuning else 1.0
    gaps = [y - tuned * f for y, f in zip(truth, judged, strict=True)]
    value = tuned * _mean(others) + _mean(gaps)
    imputed, rectified = tuned**2 * _variance(others) / big, _variance(gaps) / n
    error = math.sqrt(imputed + rectified)
    metadata = {
        "lambda": tuned,
        "standard_error": error,
        "labels": n,
        "judged": big,
        "labels_only": {"value": alone.value, "low": alone.low, "high": alone.high},
    }
    low = high = value
    if error > 0.0:
        df = (imputed + rectified) ** 2 / (imputed**2 / (big - 1) + rectified**2 / (n - 1))
        half = critical(confidence, df) * error
        low, high = value - half, value + half
        metadata["df"] = df
    if bounds is not None:
        if bounds[1] < bounds[0]:
            raise StatisticsError(f"bounds are {bounds}: the first must not be the larger")
        value, low, high = (min(max(each, bounds[0]), bounds[1]) for each in (value, low, high))
    return Estimate(value, low, high, n + big, n + big, method, confidence, metadata=metadata)


def _tuning(truth: list[float], judged: list[float], others: list[float]) -> float:
    n, big = len(truth), len(others)
    mean_truth, mean_judged = _mean(truth), _mean(judged)
    covariance = (
        math.fsum((y - mean_truth) * (f - mean_judged) for y, f in zip(truth, judged, strict=True)) / n
    )
    everything = judged + others
    spread = _variance(everything)
    if spread <= 0.0:
        return 0.0
    return min(1.0, max(0.0, covariance / ((1.0 + n / big) * spread)))


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: list[float]) -> float:
    centre = _mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)
