"""Distribution-free limits for quantiles: which of the sorted values they are."""

from __future__ import annotations

import math
from collections.abc import Callable

from karat.stats._distributions import binomial_cdf
from karat.stats._validation import check_confidence


def quantile_ranks(p: float, n: int, confidence: float = 0.95) -> tuple[int | None, int | None]:
    """The ranks (from 1) of the sorted values between which the p-quantile lies; None where n values give no limit.

    The number of values below the quantile is binomial. So the value of rank l is a lower limit when P(X ≤ l − 1)
    is at most half of 1 − confidence, and that of rank u an upper one when P(X ≤ u − 1) is at least 1 − that (David &
    Nagaraja 2003, 7.1). This is exact for every distribution, and at least that for one with ties.
    """
    tail = 0.5 * (1.0 - check_confidence(confidence))
    low = _first(lambda k: binomial_cdf(k, n, p) > tail, n)  # ranks up to this one are lower limits
    high = _first(lambda k: binomial_cdf(k, n, p) >= 1.0 - tail, n) + 1
    return (low if low > 0 else None), (high if high <= n else None)


def _first(holds: Callable[[int], bool], n: int) -> int:
    """The smallest k from 0 to n for which a condition holds, that from there on always holds."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def scaled_ranks(
    p: float, n: int, effective: float, confidence: float = 0.95
) -> tuple[int | None, int | None]:
    """The same among n values that are worth only `effective` independent ones: ranks by their share."""
    fewer = max(1, math.floor(effective + 1e-9))
    if fewer >= n:
        return quantile_ranks(p, n, confidence)
    low, high = quantile_ranks(p, fewer, confidence)
    return (
        None if low is None else math.floor((low - 1) * n / fewer) + 1,
        None if high is None else math.ceil(high * n / fewer),
    )
