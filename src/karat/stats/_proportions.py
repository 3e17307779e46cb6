"""Intervals for proportions (Wilson's, and Clopper and Pearson's), and bounds of an estimate with missing items."""

from __future__ import annotations

import functools
import math
from typing import Any

import msgspec

from karat.records import Estimate
from karat.stats._distributions import beta_quantile, critical
from karat.stats._validation import StatisticsError, check_confidence, count, finite, items_of

# Bounds on an estimate when items are missing: the worst and the best case.


def missing_bounds(
    value: float | None, n: int, of: int, lo: float = 0.0, hi: float = 1.0
) -> tuple[float | None, float | None]:
    """The mean of `of` items of which `n` average `value`, had the others all scored `lo`, and all `hi`.

    (n·value + (of − n)·lo) / of, and the same with `hi`. Nothing is assumed about why they are missing. A
    mean without any item, of no items at all, has no bounds.
    """
    lo, hi = finite(lo, "the least score"), finite(hi, "the largest score")
    if hi < lo:
        raise StatisticsError(f"lo is {lo} and hi is {hi}: lo must not exceed hi")
    n = count(n, "n")
    of = items_of(n, of)
    if of == 0:
        return None, None
    if n == 0 or value is None:
        return lo, hi
    value = finite(value)
    if of == n:
        return value, value
    lowest = (n * value + (of - n) * lo) / of
    highest = (n * value + (of - n) * hi) / of
    return min(lowest, value) if lo <= value else lowest, max(highest, value) if hi >= value else highest


def with_bounds(estimate: Estimate, of: int, lo: float = 0.0, hi: float = 1.0) -> Estimate:
    """Return the estimate over `n` of `of` items with the bounds that the missing items allow."""
    lowest, highest = missing_bounds(estimate.value, estimate.n, of, lo, hi)
    return msgspec.structs.replace(estimate, of=of, lowest=lowest, highest=highest)


def wilson_limits(p: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's interval for a share `p` of `n` items, which may be an effective number and not whole.

    (p + z²/2n ± z·√(p(1−p)/n + z²/4n²)) / (1 + z²/n), Wilson (1927). It always holds p and stays in [0, 1].
    """
    z2 = z * z
    centre = p + z2 / (2.0 * n)
    half = z * math.sqrt(max(0.0, p * (1.0 - p) / n + z2 / (4.0 * n * n)))
    scale = 1.0 + z2 / n
    low = 0.0 if p <= 0.0 else max(0.0, (centre - half) / scale)
    high = 1.0 if p >= 1.0 else min(1.0, (centre + half) / scale)
    return min(low, p), max(high, p)


def wilson(
    successes: int,
    n: int,
    confidence: float = 0.95,
    *,
    of: int | None = None,
    design_effect: float = 1.0,
    df: float = math.inf,
) -> Estimate:
    """The share of `n` items that succeeded, with Wilson's score interval (Wilson 1927).

    `of` counts the missing items too and adds the bounds they allow. With a `design_effect` the interval is
    that of n / design_effect items, with the t quantile on `df` degrees of freedom in place of the normal
    one. No items: the value is None.
    """
    confidence = check_confidence(confidence)
    n, successes = _counts(n, successes)
    of = items_of(n, of)
    if finite(design_effect, "design_effect") <= 0.0:
        raise StatisticsError(
            f"design_effect is {design_effect}: it must be positive; it is 1 where items are independent"
        )
    if n == 0:
        return with_bounds(Estimate(None, method="wilson", confidence=confidence), of)
    p = successes / n
    low, high = wilson_limits(p, n / design_effect, critical(confidence, df))
    metadata: dict[str, Any] = {}
    if design_effect != 1.0:
        metadata = {"design_effect": design_effect, "effective_n": n / design_effect}
    return with_bounds(Estimate(p, low, high, n, n, "wilson", confidence, metadata=metadata), of)


def clopper_pearson(successes: int, n: int, confidence: float = 0.95, *, of: int | None = None) -> Estimate:
    """The share of successes with Clopper & Pearson's exact interval (1934): never under its confidence."""
    confidence = check_confidence(confidence)
    n, successes = _counts(n, successes)
    of = items_of(n, of)
    if n == 0:
        return with_bounds(Estimate(None, method="clopper-pearson", confidence=confidence), of)
    low, high = exact_limits(successes, n, confidence)
    return with_bounds(Estimate(successes / n, low, high, n, n, "clopper-pearson", confidence), of)


@functools.lru_cache(4096)
def exact_limits(successes: float, n: float, confidence: float, shift: float = 0.0) -> tuple[float, float]:
    """Return Clopper and Pearson's limits, quantiles of beta distributions; n may be an effective sample size.

    With a `shift` the interval is shorter by about twice that part of an item.
    """
    tail = 0.5 * (1.0 - confidence)
    low = beta_quantile(tail, successes + shift, n - successes + 1.0 - shift) if successes else 0.0
    high = beta_quantile(1.0 - tail, successes + 1.0 - shift, n - successes + shift) if successes < n else 1.0
    return low, high


def _counts(n: int, successes: int) -> tuple[int, int]:
    n, successes = count(n, "n"), count(successes, "successes")
    if successes > n:
        raise StatisticsError(
            f"successes is {successes}, more than n, {n}: give the successes among the n items"
        )
    return n, successes


RARE = 15.0
"""Successes or failures up to which a share has limits of its own: Wilson's leave out true shares near 0 and 1."""
_FEW, _SEVERAL, _SHIFT = 4.0, 12.0, 0.3
"""Up to the first number of them the limits are Clopper and Pearson's, from the second on shorter by this shift."""


def share(successes: int, n: int, confidence: float = 0.95, *, of: int | None = None) -> Estimate:
    """The share of successes with Wilson's interval, or with beta quantiles where successes or failures are few.

    Wilson's interval leaves out true shares near 0 and 1 too often: it covers 0.86 for 15 items and a true share of
    0.99, and 0.919 for 36 items and one of 0.90. This one covers at least 0.93 for every true share and every n.
    """
    confidence = check_confidence(confidence)
    n, successes = _counts(n, successes)
    of = items_of(n, of)
    if n == 0:
        return with_bounds(Estimate(None, method="wilson", confidence=confidence), of)
    rare = min(successes, n - successes)
    method = "clopper-pearson" if rare <= _FEW else "beta" if rare <= RARE else "wilson"
    low, high = share_limits(successes, n, confidence)
    return with_bounds(Estimate(successes / n, low, high, n, n, method, confidence), of)


def share_limits(successes: float, n: float, confidence: float) -> tuple[float, float]:
    """The limits of a share; the counts may be effective ones and not whole.

    Clopper and Pearson's limits are quantiles of Beta(k, n − k + 1) and Beta(k + 1, n − k); Jeffreys' of Beta(k + ½,
    n − k + ½). Where both k and n − k exceed 4 and one is at most 15, these are in between: a shift of ½ would be
    Jeffreys'. Exact sums over n from 5 to 2,000 cover at least 0.932.
    """
    rare = min(successes, n - successes)
    if rare > RARE:
        return wilson_limits(successes / n, n, critical(confidence))
    shift = _SHIFT * min(1.0, max(0.0, (rare - _FEW) / (_SEVERAL - _FEW)))
    return exact_limits(successes, n, confidence, shift)
