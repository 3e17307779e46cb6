"""Normal, t, beta and binomial distributions, and distribution-free limits for quantiles, without SciPy.

The incomplete beta function is the continued fraction of Lentz (Press et al., Numerical Recipes, 6.4); the
quantiles are found by Newton steps kept inside a bracket. Tests hold them against SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from karat.stats._validation import check_confidence

_TINY = 1e-300
_EPSILON = 1e-16
_STEPS = 200_000
"""The continued fraction needs about the square root of its larger parameter; this covers 1e10."""


def normal_cdf(x: float) -> float:
    """P(Z ≤ x) for a standard normal Z, exact in the far tails too."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _continued_fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    result = d
    for m in range(1, _STEPS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + numerator / c
            c = c if abs(c) > _TINY else _TINY
            result *= c * d
        if abs(c * d - 1.0) < _EPSILON:
            break
    return result


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _beta_front(1.0 - x, b, a) * _continued_fraction(b, a, 1.0 - x) / b
    return _beta_front(x, a, b) * _continued_fraction(a, b, x) / a


def _beta_front(x: float, a: float, b: float) -> float:
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(logarithm)


def _solve(
    excess: Callable[[float], float], density: Callable[[float], float], low: float, high: float, start: float
) -> float:
    """The root of an increasing function, by Newton steps; those that leave the bracket become bisections."""
    x = start
    for _ in range(200):
        value = excess(x)
        if value == 0.0:
            return x
        low, high = (x, high) if value < 0.0 else (low, x)
        slope = density(x)
        step = x - value / slope if slope > 0.0 else low
        if not low < step < high:
            step = 0.5 * (low + high)
        if abs(step - x) <= 4e-16 * abs(x) or step in (low, high):
            return step
        x = step
    return x


@lru_cache(maxsize=4096)
def normal_quantile(p: float) -> float:
    """The x with P(Z ≤ x) = p, for p strictly between 0 and 1."""
    if p == 0.5:
        return 0.0
    if p > 0.5:
        return -normal_quantile(1.0 - p)
    return _solve(
        lambda x: normal_cdf(x) - p,
        lambda x: math.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi),
        -40.0,
        0.0,
        -math.sqrt(-2.0 * math.log(2.0 * p)),
    )


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x with I_x(a, b) = p."""
    if p <= 0.0:
        return 0.0
    if p >= 1.0:
        return 1.0
    return _solve(
        lambda x: beta_cdf(x, a, b) - p,
        lambda x: _beta_front(x, a, b) / (x * (1.0 - x)),
        0.0,
        1.0,
        a / (a + b),
    )


def t_cdf(x: float, df: float) -> float:
    """P(T ≤ x) for Student's t with `df` degrees of freedom, which need not be whole."""
    if math.isinf(df):
        return normal_cdf(x)
    tail = 0.5 * beta_cdf(df / (df + x * x), 0.5 * df, 0.5)
    return tail if x < 0.0 else 1.0 - tail


def t_two_sided(x: float, df: float) -> float:
    """P(|T| ≥ |x|), without the cancellation of 1 − cdf."""
    if math.isinf(df):
        return math.erfc(abs(x) / math.sqrt(2.0))
    return beta_cdf(df / (df + x * x), 0.5 * df, 0.5)


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """The x with P(T ≤ x) = p."""
    if math.isinf(df) or df > 1e9:
        return normal_quantile(p)
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    z = normal_quantile(p)
    if df > _MANY_DEGREES * (1.0 + z * z):
        return _near_normal(z, df)
    tail = 2.0 * (1.0 - p)
    high = max(2.0, 2.0 * z)
    while t_two_sided(high, df) > tail:
        high *= 2.0
    logarithm = math.lgamma(0.5 * (df + 1)) - math.lgamma(0.5 * df) - 0.5 * math.log(df * math.pi)
    return _solve(
        lambda x: tail - t_two_sided(x, df),
        lambda x: 2.0 * math.exp(logarithm - 0.5 * (df + 1) * math.log1p(x * x / df)),
        0.0,
        high,
        z,
    )


_MANY_DEGREES = 300.0
"""Times 1 + the squared quantile of the normal distribution: from there on the expansion is exact to the last digits,
where the incomplete beta function loses some to the logarithms of large factorials."""


def _near_normal(z: float, df: float) -> float:
    """The quantile of t from that of the normal distribution: Abramowitz & Stegun (1964), 26.7.5."""
    s = z * z
    terms = (
        (s + 1.0) / 4.0,
        ((5.0 * s + 16.0) * s + 3.0) / 96.0,
        (((3.0 * s + 19.0) * s + 17.0) * s - 15.0) / 384.0,
        ((((79.0 * s + 776.0) * s + 1482.0) * s - 1920.0) * s - 945.0) / 92160.0,
    )
    return z + z * sum(term / df**power for power, term in enumerate(terms, 1))


def critical(confidence: float, df: float = math.inf) -> float:
    """The two-sided critical value: of the normal distribution, or of t with `df` degrees of freedom."""
    return t_quantile(0.5 + 0.5 * confidence, df)


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X ≤ k) for X binomial with n trials of probability p."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return beta_cdf(1.0 - p, n - k, k + 1.0)


def binomial_probability(k: int, n: int, p: float) -> float:
    """P(X = k) for X binomial with n trials of probability p."""
    if k < 0 or k > n:
        return 0.0
    if p <= 0.0 or p >= 1.0:
        return float(k == (0 if p <= 0.0 else n))
    logarithm = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(logarithm + k * math.log(p) + (n - k) * math.log1p(-p))


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
