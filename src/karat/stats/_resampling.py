"""Intervals and tests by resampling, seeded: the bootstrap and the sign-flip permutation test."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from karat.records import Estimate
from karat.stats._distributions import normal_cdf, normal_quantile
from karat.stats._validation import (
    MOST_RESAMPLES,
    StatisticsError,
    check_confidence,
    count,
    finite_array,
    finite_values,
    grouped,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from karat.stats._validation import Numbers

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

_BLOCK = 1 << 22
"""Numbers drawn at a time, so that memory does not grow with the number of resamples."""


def bootstrap(
    values: Numbers | Sequence[Sequence[float]],
    statistic: Callable[[Floats], float | None] | None = None,
    n_resamples: int = 2000,
    seed: int = 0,
    *,
    clusters: Iterable[Hashable] | None = None,
    method: Literal["bca", "percentile"] = "bca",
    confidence: float = 0.95,
) -> Estimate:
    """Any statistic of values, with a bootstrap interval (Efron & Tibshirani 1993).

    `values` are numbers, or rows of numbers that are drawn together (paired scores, columns of a table);
    `statistic` takes the NumPy array of those drawn and is the mean unless given. With `clusters`, whole
    clusters are drawn. `bca` corrects bias and skewness with the jackknife; `percentile` takes the quantiles
    as they are. Resamples for which the statistic is undefined (None or NaN) are left out and counted in the
    metadata; when they are over half there is no interval.
    """
    import numpy as np

    confidence = check_confidence(confidence)
    if method not in ("bca", "percentile"):
        raise StatisticsError(f"method is {method!r}: choose 'bca' or 'percentile'")
    data = finite_array(values)
    n = len(data)
    name = f"bootstrap, {method}" + (", clustered" if clusters is not None else "")
    if n == 0:
        return Estimate(None, method=name, confidence=confidence)
    count(n_resamples, "n_resamples", MOST_RESAMPLES)
    blocks = _blocks(n, clusters)
    value = _defined(statistic(data) if statistic else float(data.mean()))
    metadata: dict[str, Any] = {"resamples": n_resamples, "seed": seed}
    if clusters is not None:
        metadata["clusters"] = len(blocks)
    if value is None or len(blocks) < 2 or n_resamples < 2:
        metadata["reason"] = "the statistic is undefined" if value is None else "nothing to resample"
        return Estimate(value, n=n, of=n, method=name, confidence=confidence, metadata=metadata)
    draws = np.array(list(_resample(data, blocks, statistic, n_resamples, seed)), dtype=np.float64)
    known = draws[~np.isnan(draws)]
    if len(known) < len(draws):
        metadata["undefined"] = len(draws) - len(known)
    # The same values summed in another order differ in their last bits.
    same = len(known) and known.max() - known.min() <= 1e-13 * np.abs(known).max()
    if 2 * len(known) < len(draws) or same:
        metadata["reason"] = (
            "the statistic is undefined in most resamples"
            if 2 * len(known) < len(draws)
            else "every resample gives the same value: no limit can be given"
        )
        return Estimate(value, n=n, of=n, method=name, confidence=confidence, metadata=metadata)
    tails = (0.5 * (1.0 - confidence), 0.5 * (1.0 + confidence))
    if method == "bca":
        tails = _corrected_tails(tails, known, value, _jackknife(data, blocks, statistic))
    low, high = (float(q) for q in np.quantile(known, tails))
    return Estimate(value, low, high, n, n, name, confidence, metadata=metadata)


def _defined(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def _blocks(n: int, clusters: Iterable[Hashable] | None) -> list[Integers]:
    """The positions of the items of each cluster; of each item when there are none."""
    import numpy as np

    if clusters is None:
        return list(np.arange(n, dtype=np.int64).reshape(n, 1))
    return [np.array(group, dtype=np.int64) for group in grouped(list(range(n)), clusters)]


def _resample(
    data: Floats,
    blocks: list[Integers],
    statistic: Callable[[Floats], float | None] | None,
    n_resamples: int,
    seed: int,
) -> Iterator[float]:
    import numpy as np

    rng = np.random.default_rng(seed)
    g = len(blocks)
    if statistic is None and data.ndim == 1:
        sums = np.array([data[block].sum() for block in blocks])
        sizes = np.array([len(block) for block in blocks], dtype=np.float64)
        step = max(1, _BLOCK // g)
        for start in range(0, n_resamples, step):
            picks = rng.integers(0, g, size=(min(step, n_resamples - start), g))
            yield from (sums[picks].sum(axis=1) / sizes[picks].sum(axis=1)).tolist()
        return
    whole = len(data) == g
    for _ in range(n_resamples):
        picks = rng.integers(0, g, size=g)
        rows = picks if whole else np.concatenate([blocks[pick] for pick in picks])
        drawn = statistic(data[rows]) if statistic else float(data[rows].mean())
        yield math.nan if drawn is None else float(drawn)


def _jackknife(
    data: Floats, blocks: list[Integers], statistic: Callable[[Floats], float | None] | None
) -> list[float]:
    """The statistic with each cluster left out in turn, where it is defined."""
    import numpy as np

    if statistic is None and data.ndim == 1:
        sums = np.array([data[block].sum() for block in blocks])
        sizes = np.array([len(block) for block in blocks], dtype=np.float64)
        rest: list[float] = ((sums.sum() - sums) / (sizes.sum() - sizes)).tolist()
        return rest
    keep = np.ones(len(data), dtype=bool)
    found = []
    for block in blocks:
        keep[block] = False
        value = _defined(statistic(data[keep]) if statistic else float(data[keep].mean()))
        keep[block] = True
        if value is not None:
            found.append(value)
    return found


def _bca(draws: Floats, value: float, jackknife: list[float]) -> tuple[float, float]:
    """The bias z0 from the share of draws below, and the acceleration a from the skewness (Efron 1987)."""
    below = (float((draws < value).mean()) + float((draws <= value).mean())) / 2.0
    if not 0.0 < below < 1.0:
        return 0.0, 0.0
    centre = math.fsum(jackknife) / len(jackknife) if jackknife else 0.0
    deviations = [centre - each for each in jackknife]
    spread = math.fsum(d * d for d in deviations)
    skew = math.fsum(d**3 for d in deviations) / (6.0 * spread**1.5) if spread > 0.0 else 0.0
    return normal_quantile(below), skew


def _corrected_tails(
    tails: tuple[float, float], draws: Floats, value: float, jackknife: list[float]
) -> tuple[float, float]:
    """The quantiles that BCa reads."""
    bias, skew = _bca(draws, value, jackknife)

    def moved(tail: float) -> float:
        z = bias + normal_quantile(tail)
        return normal_cdf(bias + z / (1.0 - skew * z)) if skew * z < 1.0 else float(z > 0.0)

    return moved(tails[0]), moved(tails[1])


def dirichlet_limits(
    counts: Floats,
    lowest: int,
    highest: int,
    statistic: Callable[[Floats], Floats],
    confidence: float,
    *,
    draws: int,
    seed: int,
    width: int = 1,
) -> tuple[float, float] | None:
    """Limits for a statistic of how often each pattern occurs, that hold for few and one-sided observations.

    The patterns get random shares (Dirichlet, by their counts), with one more observation of the pattern `lowest` for
    the lower limit and of `highest` for the upper one; a pattern that was not seen has no other share. For the mean of
    bounded values this is Gaffke's interval (see `_bounded_mean`). `statistic` takes one row of counts for each draw,
    which sum to the number of observations, and returns NaN where it is undefined; it may hold `width` numbers for
    each. None where it is undefined for most draws.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    total = float(counts.sum())
    step = max(1, _BLOCK // max(len(counts), width))
    found: tuple[list[Floats], list[Floats]] = ([], [])
    for start in range(0, draws, step):
        some = min(step, draws - start)
        shares = rng.standard_gamma(counts, size=(some, len(counts)))
        extra = rng.standard_exponential(some)
        for values, pattern in zip(found, (lowest, highest), strict=True):
            weights = shares.copy()
            weights[:, pattern] += extra
            values.append(statistic(weights * (total / weights.sum(axis=1, keepdims=True))))
    limits = []
    for values, tail in zip(found, (0.5 * (1.0 - confidence), 0.5 * (1.0 + confidence)), strict=True):
        drawn = np.concatenate(values)
        known = drawn[~np.isnan(drawn)]
        if 2 * len(known) < len(drawn):
            return None
        limits.append(float(np.quantile(known, tail)))
    return limits[0], limits[1]


def bootstrap_test(
    differences: Sequence[float],
    clusters: Sequence[Hashable] | None,
    confidence: float,
    *,
    n_resamples: int,
    seed: int,
) -> tuple[Estimate, float | None]:
    """The BCa interval of a mean, and the p-value that inverts it: 1 − the confidence at which a limit is 0."""
    import numpy as np

    found = bootstrap(
        differences, None, n_resamples, seed, clusters=clusters, method="bca", confidence=confidence
    )
    if found.low is None or found.value is None:
        return found, None
    data = np.asarray(differences, dtype=np.float64)
    blocks = _blocks(len(data), clusters)
    draws = np.array(list(_resample(data, blocks, None, n_resamples, seed)))
    bias, skew = _bca(draws, found.value, _jackknife(data, blocks, None))
    if found.value == 0.0:
        return found, 1.0
    moved = normal_quantile(_share_at_zero(np.sort(draws), found.value > 0.0)) - bias
    z = moved / (1.0 + skew * moved) - bias
    p = min(1.0, 2.0 * normal_cdf(-abs(z)))
    one_sided = (draws > 0.0).all() or (draws < 0.0).all()
    return found, min(p, 1.0 / n_resamples) if one_sided else p  # no quantile of such draws reaches 0


def _share_at_zero(draws: Floats, positive: bool) -> float:
    """The tail whose quantile, as NumPy interpolates it, is 0: the largest such tail for a lower limit.

    A limit of exactly 0 does not leave out 0, so draws of 0 count as not beyond it.
    """
    n = len(draws)
    below = int((draws <= 0.0).sum() if positive else (draws < 0.0).sum())
    if not 0 < below < n:
        return min(max(below, 0.5), n - 0.5) / n
    before, after = float(draws[below - 1]), float(draws[below])
    share = (below - 1.0 - before / (after - before)) / (n - 1.0)
    return min(max(share, 0.5 / n), 1.0 - 0.5 / n)


def permutation_interval(
    differences: Sequence[float],
    clusters: Sequence[Hashable] | None,
    confidence: float,
    *,
    n_resamples: int,
    seed: int,
) -> tuple[Estimate, float | None]:
    """The mean with the interval that inverts the sign-flip test, and the test's p-value for a mean of 0.

    A mean is inside when flipping the signs of the differences from it, by whole clusters, gives an absolute sum as
    large as the one seen often enough. No limit where the flips are too few to reject, or all differences are equal;
    equal differences other than 0 have no p-value either, because it would have no interval to invert.
    """
    import numpy as np

    groups = [[value] for value in differences] if clusters is None else grouped(differences, clusters)
    sums = np.array([math.fsum(group) for group in groups])
    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    g, n = len(groups), len(differences)
    exact = 2**g <= n_resamples
    if exact:
        signs = 1.0 - 2.0 * ((np.arange(2**g)[:, None] >> np.arange(g)) & 1)
        flipped, moved = signs @ sums, signs @ sizes
    else:
        rng = np.random.default_rng(seed)
        parts, step = [], max(1, _BLOCK // g)
        for start in range(0, n_resamples, step):
            flips = rng.integers(0, 2, size=(min(step, n_resamples - start), g), dtype=np.int8)
            signs = 1.0 - 2.0 * flips
            parts.append((signs @ sums, signs @ sizes))
        flipped, moved = (np.concatenate(column) for column in zip(*parts, strict=True))
    total, slack = float(sums.sum()), 1e-12 * float(np.abs(sums).sum() + abs(sums.sum()))

    def p_value(mean: float) -> float:
        hits = int(
            (np.abs(flipped - mean * moved) >= abs(total - mean * n) - slack * (1.0 + abs(mean))).sum()
        )
        return hits / len(flipped) if exact else (hits + 1) / (len(flipped) + 1)

    value, alpha = total / n, 1.0 - confidence
    method = "permutation, exact" if exact else f"permutation, {n_resamples} drawn"
    method += ", clustered" if clusters is not None and g < n else ""
    spread = float(np.abs(sums - value * sizes).max())
    if spread <= slack or g < 2:
        metadata = {"reason": "all differences are equal: no limit can be given"}
        found = Estimate(value, n=n, of=n, method=method, confidence=confidence, metadata=metadata)
        return found, 1.0 if abs(total) <= slack else None
    limits: list[float | None] = []
    for side in (-1.0, 1.0):
        inside, reach = value, spread / n
        while p_value(value + side * reach) > alpha and reach < 1e6 * spread:
            inside, reach = value + side * reach, 2.0 * reach
        if reach >= 1e6 * spread:
            limits.append(None)
            continue
        outside = value + side * reach
        for _ in range(60):
            middle = 0.5 * (inside + outside)
            inside, outside = (middle, outside) if p_value(middle) > alpha else (inside, middle)
        limits.append(inside)
    sides = [side for side, limit in zip(("lower", "upper"), limits, strict=True) if limit is None]
    reason = {"reason": f"too few differences for {' and '.join(sides)} limits"} if sides else {}
    found = Estimate(value, limits[0], limits[1], n, n, method, confidence, metadata=reason)
    return found, p_value(0.0)


def permutation(
    differences: Numbers,
    *,
    clusters: Iterable[Hashable] | None = None,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float | None, str]:
    """The two-sided p-value of "differences are as likely up as down", by flipping signs, and its method.

    The test of Fisher (1935): the share of sign assignments whose absolute sum is at least the one seen. All
    2^G assignments are enumerated when there are at most `n_resamples` of them; otherwise that many are drawn
    and the p-value is (hits + 1) / (drawn + 1), which is never 0. With `clusters` whole clusters are flipped.
    """
    import numpy as np

    numbers = finite_values(differences, "differences")
    count(n_resamples, "n_resamples", MOST_RESAMPLES)
    groups = [[number] for number in numbers] if clusters is None else grouped(numbers, clusters)
    sums = np.array([total for group in groups if (total := math.fsum(group)) != 0.0])
    if not numbers:
        return None, "permutation"
    if not len(sums):
        return 1.0, "permutation, exact"
    # Equal sums in another order differ in their last bits; those are ties and count.
    seen = abs(math.fsum(sums)) - 1e-12 * math.fsum(abs(sums))
    g = len(sums)
    if 2**g <= n_resamples:
        signs = 1.0 - 2.0 * ((np.arange(2**g)[:, None] >> np.arange(g)) & 1)
        return float((np.abs(signs @ sums) >= seen).mean()), "permutation, exact"
    rng = np.random.default_rng(seed)
    hits, step = 0, max(1, _BLOCK // g)
    for start in range(0, n_resamples, step):
        flips = rng.integers(0, 2, size=(min(step, n_resamples - start), g), dtype=np.int8)
        hits += int((np.abs((1.0 - 2.0 * flips) @ sums) >= seen).sum())
    return (hits + 1) / (n_resamples + 1), f"permutation, {n_resamples} drawn"
