"""Prediction-powered estimates: few human labels correct the mean of many judged ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from karat.records import Estimate
from karat.stats._distributions import critical
from karat.stats._means import mean_interval
from karat.stats._validation import StatisticsError, check_confidence, finite_values, same_length

if TYPE_CHECKING:
    from karat.stats._validation import Numbers


def ppi(
    labels: Numbers,
    judged_labels: Numbers,
    judged_all: Numbers,
    *,
    power_tuning: bool = True,
    bounds: tuple[float, float] | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the mean of human labels over all items from few human labels and many of a judge.

    `labels[i]` and `judged_labels[i]` are the person's and the judge's for the same item; `judged_all` are
    the judge's for the other items, which nobody labelled. The estimate is λ·mean(judged_all) + mean(labels −
    λ·judged_labels): unbiased however good the judge is, and narrower the better it is (PPI++,
    Angelopoulos, Duchi & Zrnic 2023). λ = cov(labels, judged) / ((1 + n/N)·var(judged)), kept within 0 and 1,
    so that a useless judge does no harm; `power_tuning=False` takes λ = 1, the plain method of 2023. Its
    standard error is √(λ²·var(judged_all)/N + var(labels − λ·judged_labels)/n).

    `bounds` is the range of the scores: 0 to 1 unless given or unless a score lies outside. Within bounds the limits
    combine Gaffke's for the two means (see `_bounded_mean`), so that labels that are all alike give no interval
    without width; without bounds they are t's, with Welch's degrees of freedom. In the metadata: λ, and
    `labels_only`, the estimate from the labels alone, for comparison.
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
    if bounds is not None and bounds[1] < bounds[0]:
        raise StatisticsError(f"bounds are {bounds}: the first must not be the larger")
    if bounds is None and all(0.0 <= each <= 1.0 for each in (*truth, *judged, *others)):
        bounds = (0.0, 1.0)
    alone = mean_interval(truth, confidence=confidence, bounds=bounds)
    if n < 2 or big < 2:
        metadata = {"reason": "labels alone: two labelled and two other items are needed for a correction"}
        return msgspec.structs.replace(alone, of=n + big, lowest=None, highest=None, metadata=metadata)
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
    if bounds is not None:
        low, high = _within_bounds(value, gaps, others, tuned, bounds, confidence)
        value, low, high = (min(max(each, bounds[0]), bounds[1]) for each in (value, low, high))
        return Estimate(value, low, high, n + big, n + big, method, confidence, metadata=metadata)
    if error == 0.0:
        metadata["reason"] = "nothing varies: no limit can be given without bounds"
        return Estimate(value, n=n + big, of=n + big, method=method, confidence=confidence, metadata=metadata)
    df = (imputed + rectified) ** 2 / (imputed**2 / (big - 1) + rectified**2 / (n - 1))
    half = critical(confidence, df) * error
    metadata["df"] = df
    return Estimate(
        value, value - half, value + half, n + big, n + big, method, confidence, metadata=metadata
    )


def _within_bounds(
    value: float,
    gaps: list[float],
    others: list[float],
    tuned: float,
    bounds: tuple[float, float],
    confidence: float,
) -> tuple[float, float]:
    """Limits from those of the two means, whose errors are independent: value ∓ √(distance² + distance²)."""
    low, high = bounds
    of_gaps = mean_interval(gaps, confidence=confidence, bounds=(low - tuned * high, high - tuned * low))
    of_judged = mean_interval(others, confidence=confidence, bounds=bounds)

    def distance(side: str) -> float:
        parts = []
        for factor, part in ((1.0, of_gaps), (tuned, of_judged)):
            limit = getattr(part, side)
            parts.append(
                factor * abs(limit - part.value) if limit is not None and part.value is not None else 0.0
            )
        return math.hypot(*parts)

    return value - distance("low"), value + distance("high")


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
