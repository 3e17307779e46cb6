"""Tests of whether two paired sets of scores differ: McNemar's exact test and the paired t test."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from karat.errors import did_you_mean
from karat.records import Estimate
from karat.stats._distributions import binomial_cdf, binomial_probability, critical, t_quantile, t_two_sided
from karat.stats._means import MeanState, state_of
from karat.stats._proportions import wilson_limits
from karat.stats._resampling import bootstrap, permutation
from karat.stats._validation import StatisticsError, check_confidence, count, finite, same_length


class PairedTest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a test says: its p-value, None where it could not be made, with the reason in the metadata."""

    p_value: float | None
    method: str
    n: int = 0
    """How many pairs (for McNemar: discordant ones) it speaks over."""
    statistic: float | None = None
    metadata: dict[str, Any] = {}


def mcnemar(b: int, c: int, *, mid_p: bool = False) -> PairedTest:
    """McNemar's exact test from the discordant pairs: in `b` the first alone succeeded, in `c` the second.

    Under no difference the smaller of b and c is binomial with b + c trials of ½: p = 2·P(X ≤ min(b, c)), at
    most 1. `mid_p` takes half of the probability of what was seen (Fagerland, Lydersen & Laake 2013), which
    is less conservative. Without discordant pairs p is 1.
    """
    b, c = count(b, "b"), count(c, "c")
    n, fewer = b + c, min(b, c)
    method = "McNemar, mid-p" if mid_p else "McNemar, exact"
    p = 2.0 * binomial_cdf(fewer, n, 0.5)
    if mid_p:
        p -= binomial_probability(fewer, n, 0.5)
    if b == c:
        p = 1.0
    return PairedTest(min(1.0, max(0.0, p)), method, n, statistic=float(fewer))


def paired_t(difference: float, standard_error: float, df: float, n: int) -> PairedTest:
    """The paired t test from a mean difference, its (cluster-robust) standard error and its degrees."""
    if standard_error > 0.0:
        t = difference / standard_error
        return PairedTest(t_two_sided(t, df), "paired t", n, statistic=t, metadata={"df": df})
    if difference == 0.0:
        return PairedTest(1.0, "paired t", n, metadata={"reason": "all differences are zero"})
    # Without spread t is infinite; what remains is that every pair went the same way.
    return PairedTest(
        math.ldexp(2.0, -max(1, math.ceil(df) + 1)),
        "sign",
        n,
        metadata={"reason": "all differences are equal: the sign test in place of t"},
    )


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


def smallest_effect(
    standard_error: float, df: float = math.inf, confidence: float = 0.95, power: float = 0.8
) -> float:
    """The true difference that a two-sided test at this confidence would find with probability `power`.

    (t_{1−α/2} + t_{power}) · standard error, with `df` degrees of freedom (Bloom 1995, the minimum detectable
    effect). It is within 1 % of the exact one from the noncentral t distribution from 10 pairs on.
    """
    check_confidence(confidence)
    if not 0.0 < power < 1.0:
        raise StatisticsError(f"power is {power!r}: give a number between 0 and 1, such as 0.8")
    if not standard_error >= 0.0:
        raise StatisticsError(f"standard_error is {standard_error!r}: it is not negative")
    return (critical(confidence, df) + t_quantile(power, df)) * standard_error


def fewest_discordant(confidence: float = 0.95) -> int:
    """How many pairs must differ, all in one direction, before the exact McNemar test can reject: 6 at 95 %.

    The smallest k with 2 · 0.5^k ≤ 1 − confidence.
    """
    check_confidence(confidence)
    return math.ceil(1.0 - math.log2(1.0 - confidence))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values adjusted by Holm's step-down method (Holm 1979), in the order given.

    The smallest of m is multiplied by m, the next by m − 1, and so on, each at least the one before and at
    most 1. Rejecting where the adjusted value is at most α keeps the chance of any false alarm at α, whatever
    the dependence. None, for a test that could not be made, stays None and is not counted.
    """
    for index, p in enumerate(p_values):
        if p is not None and not 0.0 <= p <= 1.0:
            raise StatisticsError(f"p_values[{index}] is {p!r}: a p-value lies between 0 and 1")
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(known):
        running = max(running, min(1.0, p * (len(known) - rank)))
        adjusted[index] = running
    return adjusted


Test = Literal["auto", "mcnemar", "t", "permutation", "bootstrap"]


class PairedComparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """Two sets of scores over the same items. Positive differences and wins are the second's."""

    difference: Estimate
    """Second minus first, over the items that both have."""
    test: PairedTest
    first: Estimate
    second: Estimate
    wins: int = 0
    losses: int = 0
    ties: int = 0
    smallest_effect: float | None = None
    """The true difference this data would have shown with the stated power; None where it cannot be known."""
    power: float = 0.8

    @property
    def p_value(self) -> float | None:
        """The p-value of the test."""
        return self.test.p_value


def paired(
    a: Sequence[Any],
    b: Sequence[Any],
    clusters: Iterable[Hashable] | None = None,
    *,
    binary: bool | None = None,
    test: Test = "auto",
    bounds: tuple[float, float] | None = None,
    confidence: float = 0.95,
    power: float = 0.8,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> PairedComparison:
    """How much better `b` is than `a`, item by item: the mean of b − a with its interval and test.

    `a[i]` and `b[i]` belong to the same item; None means missing there, and such pairs are left out and
    counted (`n of of`, with the bounds they allow where the scores' range is known). Scores that are all 0 or
    1 are `binary` unless said otherwise: Tango's interval and McNemar's exact test. Others: Student's t. With
    clusters the difference is cluster-robust: t on the degrees of `clusters.Sizes`, Tango on the effective
    number of pairs, and the t test, since McNemar's supposes independent pairs. `permutation` and `bootstrap`
    flip or draw whole clusters; the bootstrap also replaces the interval, and its p-value is that of the t
    test.
    """
    check_confidence(confidence)
    known = ("auto", "mcnemar", "t", "permutation", "bootstrap")
    if test not in known:
        raise StatisticsError(f"test is {test!r}: {did_you_mean(str(test), known)}")
    pairs = _pairs(a, b)
    labels = None if clusters is None else list(clusters)
    if labels is not None:
        same_length("paired", a=a, clusters=labels)
    complete = [i for i, (x, y) in enumerate(pairs) if x is not None and y is not None]
    first = [pairs[i][0] for i in complete]
    second = [pairs[i][1] for i in complete]
    kept = None if labels is None else [labels[i] for i in complete]
    if binary is None:
        binary = all(score in (None, 0.0, 1.0) for pair in pairs for score in pair)
    differences = [y - x for x, y in zip(first, second, strict=True) if x is not None and y is not None]
    state = state_of(differences, kept)
    clustered = state.sizes.clustered
    lost, won = sum(d < 0 for d in differences), sum(d > 0 for d in differences)
    if binary:
        _check_binary(pairs)
        bounds = (0.0, 1.0)
        difference = _binary_difference(state, lost, won, confidence)
    else:
        difference = state.estimate(confidence)
    if test == "bootstrap" and differences:
        difference = bootstrap(differences, None, n_resamples, seed, clusters=kept, confidence=confidence)
    return PairedComparison(
        difference=_with_missing(difference, pairs, bounds),
        test=_test(test, binary and not clustered, state, differences, kept, lost, won, n_resamples, seed),
        first=_side(first, kept, binary, confidence, len(pairs)),
        second=_side(second, kept, binary, confidence, len(pairs)),
        wins=won,
        losses=lost,
        ties=len(differences) - lost - won,
        smallest_effect=_smallest(state, binary and not clustered, confidence, power),
        power=power,
    )


def _pairs(a: Sequence[Any], b: Sequence[Any]) -> list[tuple[float | None, float | None]]:
    same_length("paired", a=a, b=b)

    def score(value: Any, what: str) -> float | None:
        return None if value is None else finite(value, what)

    return [(score(x, f"a[{i}]"), score(y, f"b[{i}]")) for i, (x, y) in enumerate(zip(a, b, strict=True))]


def _check_binary(pairs: list[tuple[float | None, float | None]]) -> None:
    for pair in pairs:
        for score in pair:
            if score not in (None, 0.0, 1.0):
                raise StatisticsError(
                    f"a binary comparison is of scores 0 and 1, not {score}: set binary=False"
                )


def _side(
    scores: Sequence[Any], clusters: list[Hashable] | None, binary: bool, confidence: float, of: int
) -> Estimate:
    state = state_of(scores, clusters)
    return state.proportion(confidence, of=of) if binary else state.estimate(confidence, of=of)


def _binary_difference(state: MeanState, lost: int, won: int, confidence: float) -> Estimate:
    """Tango's interval; clustered, on counts divided by the design effect, which is not taken below 1."""
    n, sizes = state.n, state.sizes
    method = "tango, clustered" if sizes.clustered else "tango"
    if n == 0:
        return Estimate(None, method=method, confidence=confidence)
    effect, df = 1.0, math.inf
    metadata: dict[str, Any] = {}
    if sizes.clustered:
        robust, plain = state.variances() if sizes.clusters > 1 else (0.0, 0.0)
        if plain > 0.0:
            effect = max(1.0, robust / plain)
            df = sizes.degrees(effect)
        else:
            effect = n / sizes.fully_correlated()
        metadata = {"design_effect": effect, "clusters": sizes.clusters, "effective_n": n / effect}
    low, high = tango_limits(lost / effect, won / effect, n / effect, critical(confidence, df))
    return Estimate((won - lost) / n, low, high, n, n, method, confidence, metadata=metadata)


def _with_missing(
    difference: Estimate,
    pairs: list[tuple[float | None, float | None]],
    bounds: tuple[float, float] | None,
) -> Estimate:
    """The difference over `n` of all pairs, and what it could be were the missing scores known."""
    of = len(pairs)
    if bounds is None or not of:
        return msgspec.structs.replace(difference, of=of)
    lo, hi = bounds
    worst = math.fsum((lo if y is None else y) - (hi if x is None else x) for x, y in pairs)
    best = math.fsum((hi if y is None else y) - (lo if x is None else x) for x, y in pairs)
    return msgspec.structs.replace(difference, of=of, lowest=worst / of, highest=best / of)


def _test(
    test: Test,
    binary: bool,
    state: MeanState,
    differences: list[float],
    clusters: list[Hashable] | None,
    lost: int,
    won: int,
    n_resamples: int,
    seed: int,
) -> PairedTest:
    n = len(differences)
    if test == "mcnemar" and not binary:
        raise StatisticsError("McNemar's test is of independent pairs of 0 and 1: use 't' or 'permutation'")
    if not n:
        return PairedTest(None, test, 0, metadata={"reason": "no pairs"})
    if test == "mcnemar" or (test == "auto" and binary):
        return mcnemar(lost, won)
    if test == "permutation":
        p_value, method = permutation(differences, clusters=clusters, n_resamples=n_resamples, seed=seed)
        return PairedTest(p_value, method, n)
    if state.sizes.clusters < 2:
        return PairedTest(None, "paired t", n, metadata={"reason": "one pair or one cluster has no spread"})
    robust, plain = state.variances()
    df = state.sizes.degrees(robust / plain if plain > 0.0 else 1.0)
    return paired_t(state.mean or 0.0, math.sqrt(robust), df, n)


def _smallest(state: MeanState, binary: bool, confidence: float, power: float) -> float | None:
    """The smallest detectable effect; for binary scores not below what the exact test can reject at all."""
    if state.sizes.clusters < 2:
        return None
    robust, plain = state.variances()
    df = math.inf if binary else state.sizes.degrees(robust / plain if plain > 0.0 else 1.0)
    effect = smallest_effect(math.sqrt(robust), df, confidence, power)
    if binary:
        needed = fewest_discordant(confidence)
        return max(effect, needed / state.n) if state.n >= needed else None
    return effect if effect > 0.0 else None
