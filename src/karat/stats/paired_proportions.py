"""Intervals for the difference of two paired proportions: Tango's score interval and Newcombe's."""

from __future__ import annotations

import math
from collections.abc import Callable

from karat.records import Estimate
from karat.stats.distributions import critical
from karat.stats.proportions import wilson_limits
from karat.stats.validation import StatisticsError, check_confidence, count


def tango_limits(b: float, c: float, n: float, z: float) -> tuple[float, float]:
    """Tango's limits for the difference (c − b)/n; the counts may be effective ones and not whole.

    The δ for which (c − b − nδ)² = z²·n·(2q̃ + δ(1 − δ)), where q̃ is the probability of a pair counted in b
    under the difference δ, at its maximum likelihood: the larger root of 2n·q² + (δ(2n + b − c) − b − c)·q −
    bδ(1 − δ) = 0 (Tango 1998).
    """
    estimate = (c - b) / n

    def score(delta: float) -> float:
        # With q = P(only the first succeeds), P(only the second) = q + delta.
        linear = delta * (2.0 * n + b - c) - b - c
        constant = -b * delta * (1.0 - delta)
        root = math.sqrt(max(0.0, linear * linear - 8.0 * n * constant))
        q = min(max(0.0, -delta, (root - linear) / (4.0 * n)), (1.0 - delta) / 2.0)
        variance = n * (2.0 * q + delta * (1.0 - delta))
        gap = c - b - n * delta
        if variance <= 0.0:
            return math.copysign(math.inf, gap) if gap else 0.0
        return gap / math.sqrt(variance)

    return _crossing(score, z, -1.0, estimate), _crossing(score, -z, estimate, 1.0)


def _crossing(score: Callable[[float], float], level: float, low: float, high: float) -> float:
    """Where the score, which falls with the difference, passes a level, by bisection to the last bits."""
    for _ in range(100):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if score(middle) > level:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def tango(b: int, c: int, n: int, confidence: float = 0.95) -> Estimate:
    """The difference (c − b)/n of two paired proportions with Tango's score interval (Tango 1998).

    Of `n` pairs, `b` had only the first succeed and `c` only the second; so positive means the second is
    better.
    """
    confidence, b, c, n = _checked(confidence, b, c, n)
    if n == 0:
        return Estimate(None, method="tango", confidence=confidence)
    low, high = tango_limits(b, c, n, critical(confidence))
    return Estimate((c - b) / n, low, high, n, n, "tango", confidence)


def newcombe(both: int, b: int, c: int, neither: int, confidence: float = 0.95) -> Estimate:
    """The difference (c − b)/n of two paired proportions with Newcombe's interval (Newcombe 1998, method 10).

    It squares and adds the Wilson intervals of the two proportions, with their correlation φ, whose numerator
    is continuity-corrected when positive. `both` pairs had both succeed, `b` only the first, `c` only the
    second.
    """
    n = sum(count(each, "a count of pairs") for each in (both, b, c, neither))
    confidence, b, c, n = _checked(confidence, b, c, n)
    if n == 0:
        return Estimate(None, method="newcombe", confidence=confidence)
    z = critical(confidence)
    first, second = (both + b) / n, (both + c) / n
    low_1, high_1 = wilson_limits(first, n, z)
    low_2, high_2 = wilson_limits(second, n, z)
    product = both * neither - b * c
    margins = (both + b) * (c + neither) * (both + c) * (b + neither)
    corrected = max(product - n / 2.0, 0.0) if product > 0 else float(product)
    phi = corrected / math.sqrt(margins) if margins else 0.0

    def spread(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2.0 * phi * x * y + y * y))

    value = (c - b) / n
    low = max(-1.0, value - spread(second - low_2, high_1 - first))
    high = min(1.0, value + spread(high_2 - second, first - low_1))
    return Estimate(value, low, high, n, n, "newcombe", confidence, metadata={"phi": phi})


def _checked(confidence: float, b: int, c: int, n: int) -> tuple[float, int, int, int]:
    b, c, n = count(b, "b"), count(c, "c"), count(n, "n")
    if b + c > n:
        raise StatisticsError(f"b + c is {b + c}, more than the {n} pairs: n counts the concordant pairs too")
    return check_confidence(confidence), b, c, n
