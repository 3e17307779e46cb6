"""Estimates from labelled samples: prediction-powered ones, and samples with known, unequal probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from karat.records import Estimate
from karat.stats._distributions import critical
from karat.stats._means import few_clusters_note, mean_interval, with_clusters_noted
from karat.stats._resampling import dirichlet_limits
from karat.stats._validation import (
    StatisticsError,
    check_bounds,
    check_confidence,
    finite_values,
    same_length,
)

if TYPE_CHECKING:
    from karat.stats._validation import Numbers


# Estimates from a sample whose items were drawn with known, unequal probabilities.
#
# Each item counts 1/p times, where p is its inclusion probability (Horvitz & Thompson 1952, as a ratio: Hájek 1971).
# Limits are quantiles over random shares of the sampled items or clusters, with one more item that moves the estimate
# most (`dirichlet_limits`), so that a sample without a single error does not give an interval without width.

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[Any]

DRAWS = 2000
"""Random shares from which limits are taken."""

MANY, FEWEST_DRAWS = 2000, 400
"""Patterns above which fewer shares are drawn, and how few: limits of large samples need no more."""


class WeightedSample:
    """Items with inclusion probabilities, in clusters.

    An estimate is a function of weighted sums: `values` has a row for each item (its cell of a table, its value and
    1, …), and the statistic takes rows of such sums.
    """

    def __init__(self, probabilities: Sequence[float], clusters: Sequence[Hashable] | None = None) -> None:
        import numpy as np

        given = np.asarray(probabilities, dtype=np.float64)
        if not len(given) or not np.all((given > 0.0) & (given <= 1.0)):
            raise StatisticsError("inclusion probabilities must be above 0 and at most 1")
        self.weights: Floats = 1.0 / given
        names = list(range(len(given))) if clusters is None else list(clusters)
        if len(names) != len(given):
            raise StatisticsError("there must be a cluster for each item")
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self.cluster: Floats = np.array([places[name] for name in names])
        self.clusters = len(places)

    @property
    def effective(self) -> float:
        """The number of items of equal weight that carry as much information (Kish 1965)."""
        return float(self.weights.sum() ** 2 / (self.weights**2).sum())

    def sums(self, values: Floats) -> Floats:
        """The weighted sum of the rows of each cluster."""
        import numpy as np

        out = np.zeros((self.clusters, values.shape[1]))
        np.add.at(out, self.cluster, values * self.weights[:, None])
        return out

    def value(self, values: Floats, statistic: Callable[[Floats], Floats]) -> float | None:
        """The statistic of all weighted sums; None where it is undefined."""
        found = float(statistic(self.sums(values).sum(axis=0)[None])[0])
        return None if math.isnan(found) else found

    def limits(
        self,
        values: Floats,
        statistic: Callable[[Floats], Floats],
        extremes: Floats,
        confidence: float,
        population: int = 0,
    ) -> tuple[float, float] | None:
        """Limits of a statistic; `extremes` are rows of items that may move it most and that the sample may lack.

        Such an item weighs as much as the heaviest in the sample. Where the sample is of so many items (`population`)
        and stands for fewer, those that are most seldom drawn are missing in it, and it weighs as much as they all.
        """
        import numpy as np

        if self.clusters < 2:
            return None
        rows = self.sums(values)
        per_cluster = len(values) / self.clusters
        heaviest = max(float(self.weights.max()), (population - float(self.weights.sum())) / per_cluster)
        total = rows.sum(axis=0)
        rows, times_seen = np.unique(rows, axis=0, return_counts=True)  # alike clusters are one pattern
        shapes = np.vstack([rows, extremes * (per_cluster * heaviest)])
        counts = np.concatenate([times_seen, np.zeros(len(extremes))]).astype(np.float64)
        more = total + shapes[len(rows) :]
        moved = statistic(more)
        if np.all(np.isnan(moved)):
            return None
        least, most = (len(rows) + int(pick(moved)) for pick in (np.nanargmin, np.nanargmax))
        return dirichlet_limits(
            counts,
            least,
            most,
            lambda times: statistic(times @ shapes),
            confidence,
            draws=max(FEWEST_DRAWS, min(DRAWS, DRAWS * MANY // len(rows))),
            seed=0,
            width=shapes.shape[1],
        )

    def estimate(
        self,
        values: Floats,
        statistic: Callable[[Floats], Floats],
        extremes: Floats,
        confidence: float,
        method: str = "weighted",
    ) -> Estimate:
        """The statistic with its limits."""
        n = len(values)
        found = self.value(values, statistic)
        metadata: dict[str, Any] = {"effective_n": self.effective, "clusters": self.clusters}
        limits = None if found is None else self.limits(values, statistic, extremes, confidence)
        if found is None or limits is None:
            metadata["reason"] = "too few items: the spread cannot be estimated"
            return Estimate(found, n=n, of=n, method=method, confidence=confidence, metadata=metadata)
        low, high = min(limits[0], found), max(limits[1], found)
        return Estimate(found, low, high, n, n, method, confidence, metadata=metadata)


def weighted_kappa(
    a: Sequence[Hashable],
    b: Sequence[Hashable],
    probabilities: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Cohen's kappa over all items, from a sample with inclusion probabilities."""
    import numpy as np

    from karat.stats._agreement import _Kappa

    names = sorted({*a, *b}, key=str)
    if len(names) < 2:
        reason = {"reason": "only one class was used: chance agreement is total"}
        return Estimate(
            None, n=len(a), of=len(a), method="cohen, weighted", confidence=confidence, metadata=reason
        )
    table = _Kappa(len(names), None)
    cells = [names.index(x) * table.k + names.index(y) for x, y in zip(a, b, strict=True)]
    rows, extremes = np.eye(table.k**2)[cells], np.eye(table.k**2)[table.extreme_cells()]
    sample = WeightedSample(probabilities, clusters)
    return sample.estimate(rows, table, extremes, confidence, "cohen, weighted")


def ppi(
    labels: Numbers,
    judged_labels: Numbers,
    judged_all: Numbers,
    *,
    clusters: Sequence[Hashable] | None = None,
    judged_clusters: Sequence[Hashable] | None = None,
    probabilities: Sequence[float] | None = None,
    power_tuning: bool = True,
    bounds: tuple[float, float] | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the mean of human labels over all items from few human labels and many of a judge.

    `labels[i]` and `judged_labels[i]` are the person's and the judge's for the same item; `judged_all` are
    the judge's for the other, unlabelled items. The estimate is λ·mean(judged_all) + mean(labels −
    λ·judged_labels): unbiased however good the judge is, and narrower the better it is (PPI++,
    Angelopoulos, Duchi & Zrnic 2023). λ = cov(labels, judged) / ((1 + n/N)·var(judged)), kept within 0 and 1,
    so that a useless judge does no harm; `power_tuning=False` takes λ = 1, the plain method of 2023. Its
    standard error is √(λ²·var(judged_all)/N + var(labels − λ·judged_labels)/n).

    `clusters` and `judged_clusters` say which items belong together, such as the attempts at one example; a cluster
    may have labelled and other items. `probabilities` are the inclusion probabilities of the labelled items where
    these differ: see `_weighted`.

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
    if (clusters is None) != (judged_clusters is None):
        raise StatisticsError("ppi: give clusters and judged_clusters, or neither")
    if clusters is not None and judged_clusters is not None:
        same_length("ppi", labels=labels, clusters=clusters)
        same_length("ppi", judged_all=judged_all, judged_clusters=judged_clusters)
    method = "ppi++" if power_tuning else "ppi"
    if n == 0:
        metadata: dict[str, Any] = {"reason": "no human labels: a judge's verdicts alone cannot be corrected"}
        return Estimate(None, of=big, method=method, confidence=confidence, metadata=metadata)
    if bounds is not None:
        bounds = check_bounds(bounds)
    if bounds is None and all(0.0 <= each <= 1.0 for each in (*truth, *judged, *others)):
        bounds = (0.0, 1.0)
    if probabilities is not None:
        same_length("ppi", labels=labels, probabilities=probabilities)
        made = _weighted(
            truth, judged, others, clusters, judged_clusters, probabilities, power_tuning, bounds, confidence
        )
        return made if clusters is None else with_clusters_noted(made, len(set(clusters)))
    alone = mean_interval(truth, clusters, confidence=confidence, bounds=bounds)
    if n < 2 or big < 2:
        metadata = {"reason": "labels alone: two labelled and two other items are needed for a correction"}
        return msgspec.structs.replace(alone, of=n + big, lowest=None, highest=None, metadata=metadata)
    tuned = _tuning(truth, judged, others) if power_tuning else 1.0
    gaps = [y - tuned * f for y, f in zip(truth, judged, strict=True)]
    value = tuned * _mean(others) + _mean(gaps)
    metadata = {
        "lambda": tuned,
        "labels": n,
        "judged": big,
        "labels_only": {"value": alone.value, "low": alone.low, "high": alone.high},
    }
    low, high = bounds or (-math.inf, math.inf)
    within = (low - tuned * high, high - tuned * low) if bounds is not None else None
    of_gaps = mean_interval(gaps, clusters, confidence=confidence, bounds=within)
    of_judged = mean_interval(others, judged_clusters, confidence=confidence, bounds=bounds)
    correlation = 0.0
    if clusters is not None and judged_clusters is not None:
        correlation = _correlation(
            _centred_sums(gaps, clusters), _centred_sums(others, judged_clusters), tuned
        )
        metadata["clusters"] = len({*clusters, *judged_clusters})
        if note := few_clusters_note(len(set(clusters))):
            metadata["note"] = note
        method += ", clustered"
    if bounds is not None:
        metadata["standard_error"] = _together(_error(of_gaps), tuned * _error(of_judged), correlation)
        low = value - _together(_distance(of_gaps, "low"), tuned * _distance(of_judged, "low"), correlation)
        high = value + _together(
            _distance(of_gaps, "high"), tuned * _distance(of_judged, "high"), correlation
        )
        if of_gaps.low is None or of_gaps.high is None:
            metadata["reason"] = "one labelled cluster: the spread cannot be estimated"
            return Estimate(
                value, n=n + big, of=n + big, method=method, confidence=confidence, metadata=metadata
            )
        value, low, high = (min(max(each, bounds[0]), bounds[1]) for each in (value, low, high))
        return Estimate(value, low, high, n + big, n + big, method, confidence, metadata=metadata)
    rectified, imputed = _error(of_gaps), tuned * _error(of_judged)
    error = _together(rectified, imputed, correlation)
    metadata["standard_error"] = error
    if error == 0.0 or "df" not in of_gaps.metadata:
        metadata["reason"] = "nothing varies: no limit can be given without bounds"
        return Estimate(value, n=n + big, of=n + big, method=method, confidence=confidence, metadata=metadata)
    # Welch–Satterthwaite
    degrees = [of_gaps.metadata["df"], of_judged.metadata.get("df", math.inf)]
    df = (rectified**2 + imputed**2) ** 2 / (rectified**4 / degrees[0] + imputed**4 / degrees[1])
    half = critical(confidence, df) * error
    metadata["df"] = df
    return Estimate(
        value, value - half, value + half, n + big, n + big, method, confidence, metadata=metadata
    )


def _weighted(
    truth: list[float],
    judged: list[float],
    others: list[float],
    clusters: Sequence[Hashable] | None,
    judged_clusters: Sequence[Hashable] | None,
    probabilities: Sequence[float],
    power_tuning: bool,
    bounds: tuple[float, float] | None,
    confidence: float,
) -> Estimate:
    """The same with unequal inclusion probabilities: λ·mean(judge) over all items + weighted mean(labels − λ·judge).

    This is the generalised difference estimator (Särndal, Swensson & Wretman 1992, ch. 6.3) with weights 1/p.
    """
    import numpy as np

    n, big = len(truth), len(truth) + len(others)
    method = "difference estimator"
    known = clusters if clusters is not None else list(range(n))
    sample = WeightedSample(probabilities, known)
    if sample.clusters < 2:
        reason = {"reason": "two labelled items or clusters with inclusion probabilities are needed"}
        return Estimate(None, n=n, of=big, method=method, confidence=confidence, metadata=reason)
    y, f, w = np.array(truth), np.array(judged), sample.weights / sample.weights.sum()
    everything = [*judged, *others]
    spread = _variance(everything)
    tuned = 1.0
    if power_tuning:
        shared = float((w * (y - w @ y) * (f - w @ f)).sum())
        tuned = min(1.0, max(0.0, shared / spread)) if spread > 0.0 else 0.0
    gaps = y - tuned * f
    gap = float(w @ gaps)
    value = tuned * _mean(everything) + gap
    all_clusters = [*known, *(judged_clusters or range(n, big))]
    of_judged = mean_interval(everything, all_clusters, confidence=confidence, bounds=bounds)
    rows = sample.sums(np.stack([gaps - gap, np.ones(n)], axis=1))
    residuals = rows[:, 0] / sample.weights.sum()
    g = sample.clusters
    error = math.sqrt(float((residuals**2).sum()) * g / (g - 1))
    names = list(dict.fromkeys(known))
    correlation = _correlation(
        dict(zip(names, residuals.tolist(), strict=True)), _centred_sums(everything, all_clusters), tuned
    )
    metadata: dict[str, Any] = {
        "lambda": tuned,
        "labels": n,
        "effective_labels": sample.effective,
        "standard_error": _together(error, tuned * _error(of_judged), correlation),
    }
    if bounds is None:
        half = critical(confidence, max(1.0, min(g, sample.effective) - 1)) * metadata["standard_error"]
        low, high = (value - half, value + half) if half > 0.0 else (None, None)
        return Estimate(value, low, high, big, big, method, confidence, metadata=metadata)
    least, most = bounds[0] - tuned * bounds[1], bounds[1] - tuned * bounds[0]
    extremes = np.array([[least, 1.0], [most, 1.0]])
    limits = sample.limits(np.stack([gaps, np.ones(n)], axis=1), _ratio, extremes, confidence, big)
    assert limits is not None  # the sum of weights is never 0
    low = value - _together(max(0.0, gap - limits[0]), tuned * _distance(of_judged, "low"), correlation)
    high = value + _together(max(0.0, limits[1] - gap), tuned * _distance(of_judged, "high"), correlation)
    value, low, high = (min(max(each, bounds[0]), bounds[1]) for each in (value, low, high))
    return Estimate(value, low, high, big, big, method, confidence, metadata=metadata)


def _ratio(sums: Any) -> Any:
    return sums[:, 0] / sums[:, 1]


def _together(first: float, second: float, correlation: float) -> float:
    """The error of a sum from those of its parts."""
    return math.sqrt(max(0.0, first**2 + second**2 + 2.0 * correlation * first * second))


def _distance(estimate: Estimate, side: str) -> float:
    """Return the distance of a limit from the value; 0 if there is no limit."""
    limit = getattr(estimate, side)
    return abs(limit - estimate.value) if limit is not None and estimate.value is not None else 0.0


def _error(estimate: Estimate) -> float:
    return float(estimate.metadata.get("standard_error", 0.0))


def _centred_sums(values: Sequence[float], clusters: Sequence[Hashable]) -> dict[Hashable, float]:
    """Each cluster's part in the error of a mean."""
    centre, out = _mean(list(values)), dict[Hashable, float]()
    for value, name in zip(values, clusters, strict=True):
        out[name] = out.get(name, 0.0) + (value - centre) / len(values)
    return out


def _correlation(first: dict[Hashable, float], second: dict[Hashable, float], tuned: float) -> float:
    """The correlation of two errors through clusters that are in both; a negative one is not relied on."""
    shared = math.fsum(part * second.get(name, 0.0) for name, part in first.items())
    size = math.sqrt(math.fsum(v * v for v in first.values()) * math.fsum(v * v for v in second.values()))
    return min(1.0, max(0.0, shared / size)) if size > 0.0 and tuned > 0.0 else 0.0


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
