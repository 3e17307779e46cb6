"""Paired comparison of two sets of scores: the difference, its interval, its test and its power.

The p-value is the one that inverts the interval: it is at most 1 − confidence exactly where the interval leaves out 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from karat.errors import did_you_mean
from karat.records import Estimate
from karat.stats._bounded_mean import MARGIN, few_clusters
from karat.stats._distributions import (
    binomial_cdf,
    binomial_probability,
    critical,
    normal_cdf,
    t_quantile,
    t_two_sided,
)
from karat.stats._exact import array_total
from karat.stats._means import MeanState, with_clusters_noted
from karat.stats._proportions import wilson_limits
from karat.stats._resampling import bootstrap_test, permutation_interval
from karat.stats._validation import (
    MOST_RESAMPLES,
    StatisticsError,
    check_bounds,
    check_confidence,
    count,
    finite,
    same_length,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Scores: TypeAlias = Sequence[float | None] | Sequence[float] | NDArray[Any]
    """Scores, None where one is missing."""


class PairedTest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a test: its p-value, None where it could not be made, with the reason in the metadata."""

    p_value: float | None
    method: str
    n: int = 0
    """How many pairs (for McNemar: discordant ones) it is over."""
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


_CORRECTION, _FEW_OTHERS = 0.2, 10
"""Tango's interval is widened by this part of a pair at both ends, and by up to half a pair where up to this many pairs
are not of the one kind that most are of: without it, it covers 0.927 where all discordant pairs are of one kind, and
less where nearly all pairs are."""


def pair_correction(b: int, c: int, n: int) -> float:
    """The continuity correction, in pairs, with which Tango's interval covers at least 0.93 from 20 pairs on."""
    others = min(_FEW_OTHERS, n - abs(c - b))
    return 0.5 - (0.5 - _CORRECTION) * others / _FEW_OTHERS


def score_test(b: int, c: int, correction: float = 0.0) -> PairedTest:
    """McNemar's test, (|c − b| − correction)²/(b + c): Tango's interval leaves out 0 where it rejects.

    `b` pairs had only the first succeed, `c` only the second. Without discordant pairs p is 1.
    """
    gap = math.copysign(max(0.0, abs(c - b) - correction), c - b)
    z = gap / math.sqrt(b + c) if b + c else 0.0
    method = "McNemar (corrected)" if correction else "McNemar, score"
    return PairedTest(t_two_sided(z, math.inf), method, b + c, statistic=z)


def tango_limits(b: float, c: float, n: float, z: float, correction: float = 0.0) -> tuple[float, float]:
    """Tango's limits for the difference (c − b)/n; the counts may be effective ones and not whole.

    The δ for which (|c − b − nδ| − correction)² = z²·n·(2q̃ + δ(1 − δ)), where q̃ is the probability of a pair counted
    in b under the difference δ, at its maximum likelihood: the larger root of 2n·q² + (δ(2n + b − c) − b − c)·q −
    bδ(1 − δ) = 0 (Tango 1998, without a correction).
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
        gap = math.copysign(max(0.0, abs(gap) - correction), gap)
        if variance <= 0.0:
            return math.copysign(math.inf, gap) if gap else 0.0
        return gap / math.sqrt(variance)

    return _crossing(score, z, -1.0, estimate), _crossing(score, -z, estimate, 1.0)


def _crossing(score: Callable[[float], float], level: float, low: float, high: float) -> float:
    """Return where the score, which falls with the difference, crosses a level, by bisection to the last bits."""
    for _ in range(100):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if score(middle) > level:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def tango(b: int, c: int, n: int, confidence: float = 0.95, *, correction: float = 0.0) -> Estimate:
    """The difference (c − b)/n of two paired proportions with Tango's score interval (Tango 1998).

    Of `n` pairs, `b` had only the first succeed and `c` only the second; so positive means the second is
    better. `correction` widens it by that part of a pair at both ends; `paired` takes one of 0.2 to 0.5.
    """
    confidence, b, c, n = _check_counts(confidence, b, c, n)
    if n == 0:
        return Estimate(None, method="tango", confidence=confidence)
    if not 0.0 <= finite(correction, "correction") <= 1.0:
        raise StatisticsError(f"correction is {correction!r}: give a number between 0 and 1")
    low, high = tango_limits(b, c, n, critical(confidence), correction)
    value = (c - b) / n
    metadata = {"standard_error": math.sqrt(max(0.0, (b + c) / n - value * value) / n)}
    method = "tango (corrected)" if correction else "tango"
    return Estimate(value, low, high, n, n, method, confidence, metadata=metadata)


def newcombe(both: int, b: int, c: int, neither: int, confidence: float = 0.95) -> Estimate:
    """The difference (c − b)/n of two paired proportions with Newcombe's interval (Newcombe 1998, method 10).

    It squares and adds the Wilson intervals of the two proportions, with their correlation φ, whose numerator
    is continuity-corrected when positive. `both` pairs had both succeed, `b` only the first, `c` only the
    second.
    """
    n = sum(count(each, "a count of pairs") for each in (both, b, c, neither))
    confidence, b, c, n = _check_counts(confidence, b, c, n)
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


def _check_counts(confidence: float, b: int, c: int, n: int) -> tuple[float, int, int, int]:
    b, c, n = count(b, "b"), count(c, "c"), count(n, "n")
    if b + c > n:
        raise StatisticsError(f"b + c is {b + c}, more than the {n} pairs: n counts the concordant pairs too")
    return check_confidence(confidence), b, c, n


def _check_power(power: float) -> None:
    if not 0.0 < finite(power, "power") < 1.0:
        raise StatisticsError(f"power is {power!r}: give a number between 0 and 1, such as 0.8")


def smallest_effect(
    standard_error: float, df: float = math.inf, confidence: float = 0.95, power: float = 0.8
) -> float:
    """The true difference that a two-sided test at this confidence would find with probability `power`.

    (t_{1−α/2} + t_{power}) · standard error, with `df` degrees of freedom (Bloom 1995, the minimum detectable
    effect). It is within 1 % of the exact one from the noncentral t distribution from 10 pairs on.
    """
    check_confidence(confidence)
    _check_power(power)
    standard_error = finite(standard_error, "standard_error")
    if standard_error < 0.0:
        raise StatisticsError(f"standard_error is {standard_error!r}: it must be 0 or more")
    return (critical(confidence, df) + t_quantile(power, df)) * standard_error


def smallest_binary_effect(
    discordant: int, n: int, confidence: float = 0.95, power: float = 0.8
) -> float | None:
    """The true difference of two paired proportions that the score test would find with probability `power`.

    The alternative has the discordant pairs seen, and one more, in both directions alike, and on top of them the
    difference in one direction; where these are more than all pairs, all pairs are discordant. The power is summed
    over all tables, or is Connor's (1987) where discordant pairs are many. None where no difference would be found.
    """
    check_confidence(confidence)
    noise = min(1.0, (discordant + 1.0) / n)
    z = critical(confidence)

    def missed(effect: float) -> float:
        discordant_share = min(1.0, noise + effect)
        lost, won = 0.5 * (discordant_share - effect), 0.5 * (discordant_share + effect)
        return power + MARGIN * (1.0 - power) - _score_power(lost, won, n, z)

    if missed(1.0) > 0.0:
        return None
    low, high = 0.0, 1.0
    while high - low > 0.01 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if missed(middle) > 0.0 else (low, middle)
    return high


def _score_power(lost: float, won: float, n: int, z: float) -> float:
    """The probability that the score test rejects, for pairs with these probabilities of both kinds of discordance."""
    import numpy as np

    share = min(1.0, lost + won)
    expected = n * share
    if expected > 150.0:
        spread = math.sqrt(max(1e-12, share - (won - lost) ** 2))
        gap = abs(won - lost) - _CORRECTION / n
        return normal_cdf((gap * math.sqrt(n) - z * math.sqrt(share)) / spread)
    most = min(n, int(expected + 8.0 * math.sqrt(expected) + 12.0))
    factorials = np.array([math.lgamma(i + 1.0) for i in range(most + 1)])
    m, c = np.arange(most + 1)[:, None], np.arange(most + 1)[None, :]
    inside = c <= m
    ways = factorials[m] - factorials[c] - factorials[np.where(inside, m - c, 0)]
    logs_given = ways + c * math.log(won / share) + (m - c) * math.log(max(lost, 1e-300) / share)
    chance = np.exp(np.where(inside, logs_given, -np.inf))
    gap = np.abs(2 * c - m)
    correction = 0.5 - (0.5 - _CORRECTION) * np.minimum(_FEW_OTHERS, n - gap) / _FEW_OTHERS
    rejected = inside & (np.maximum(0.0, gap - correction) ** 2 > z * z * m)
    given = (chance * rejected).sum(axis=1)
    pairs = np.arange(most + 1)
    left = np.array([math.lgamma(n - i + 1.0) for i in range(most + 1)])
    logs = math.lgamma(n + 1.0) - factorials - left + pairs * math.log(share)
    logs = logs + (n - pairs) * math.log1p(-share) if share < 1.0 else np.where(pairs == n, 0.0, -np.inf)
    return float(np.exp(logs) @ given)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values adjusted by Holm's step-down method (Holm 1979), in the order given.

    The smallest of m is multiplied by m, the next by m − 1, and so on, each at least the one before and at
    most 1. Rejecting where the adjusted value is at most α keeps the chance of any false alarm at α for any
    dependence. None, for a test that could not be made, stays None and is not counted.
    """
    for index, p in enumerate(p_values):
        if p is not None and not 0.0 <= finite(p, f"p_values[{index}]") <= 1.0:
            raise StatisticsError(f"p_values[{index}] is {p!r}: a p-value lies between 0 and 1")
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(known):
        running = max(running, min(1.0, p * (len(known) - rank)))
        adjusted[index] = running
    return adjusted


Test = Literal["auto", "mcnemar", "t", "permutation", "bootstrap"]
Bounds = tuple[float, float]


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
    effect_reason: str = ""
    """Why no smallest effect is stated: `too few clusters`, or `too few pairs`."""

    @property
    def p_value(self) -> float | None:
        """The p-value of the test."""
        return self.test.p_value


def paired(
    a: Scores,
    b: Scores,
    clusters: Iterable[Hashable] | None = None,
    *,
    binary: bool | None = None,
    test: Test = "auto",
    bounds: Bounds | None = None,
    confidence: float = 0.95,
    power: float = 0.8,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> PairedComparison:
    """Compare `b` with `a` item by item: the mean of b − a with its interval and test.

    `a[i]` and `b[i]` belong to the same item; None means missing there, and such pairs are left out and
    counted (`n of of`, with the bounds they allow where the scores' range is known). `bounds` is that range: 0 to 1
    unless given or unless a score lies outside.

    Scores that are all 0 or 1 are `binary` by default: Tango's interval and McNemar's score test, which
    inverts it. Other scores, and pairs in clusters: Gaffke's interval of the mean difference within the bounds and the
    test that inverts it, which hold where most pairs tie and large losses are rare; t where there are no bounds.

    `test` asks for another pair of test and interval: `t`; `mcnemar`, the exact test, with Tango's interval widened to
    hold 0 where that test does not reject; `permutation` and `bootstrap`, which flip or draw whole clusters. None of
    these holds for rare large losses.
    """
    check_confidence(confidence)
    import numpy as np

    same_length("paired", a=a, b=b)
    codes = None
    places: dict[Hashable, int] = {}
    if clusters is not None:
        labels = list(clusters)
        same_length("paired", a=a, clusters=labels)
        codes = np.array([places.setdefault(label, len(places)) for label in labels], np.int64)
    made = paired_arrays(
        _scores(a, "a"),
        _scores(b, "b"),
        codes,
        binary=binary,
        test=test,
        bounds=bounds,
        confidence=confidence,
        power=power,
        n_resamples=n_resamples,
        seed=seed,
    )
    return made if codes is None else with_clusters_note(made, len(places))


def with_clusters_note(compared: PairedComparison, clusters: int) -> PairedComparison:
    """The comparison of so many clusters that were drawn, with a note on its interval where they are few."""
    noted = with_clusters_noted(compared.difference, clusters)
    return msgspec.structs.replace(compared, difference=noted)


_KEPT_DIGITS = 14
"""Decimal digits of a score that a difference can rely on: one unit of the last place of a float is 16 digits away."""


def score_differences(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Second minus first, without the rounding errors of the subtraction.

    4.1 − 4.0 and 1.1 − 1.0 are 0.1 both, and 0.1 + 0.2 ties with 0.3: errors in the last bits would pass for spread,
    for wins and for losses.
    """
    import numpy as np

    size = np.maximum(np.abs(first), np.abs(second))
    digits = _KEPT_DIGITS - np.ceil(np.log10(np.where(size > 0.0, size, 1.0)))
    scale = 10.0 ** np.clip(digits, 0.0, 22.0)  # powers of ten up to 10²² are exact
    found: NDArray[np.float64] = np.rint((second - first) * scale) / scale + 0.0
    return found


def score_difference(first: float, second: float) -> float:
    """`score_differences` of two numbers, without an array."""
    size = max(abs(first), abs(second))
    digits = _KEPT_DIGITS - (math.ceil(math.log10(size)) if size else 0)
    scale = 10.0 ** min(max(digits, 0), 22)
    return round((second - first) * scale) / scale + 0.0


def _scores(values: Scores, what: str) -> NDArray[np.float64]:
    """Scores as an array, NaN where one is missing; a score that is NaN or infinite is refused."""
    import numpy as np

    return np.array(
        [math.nan if x is None else finite(x, f"{what}[{i}]") for i, x in enumerate(values)], np.float64
    )


def paired_arrays(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    clusters: NDArray[np.int64] | None = None,
    *,
    binary: bool | None = None,
    test: Test = "auto",
    bounds: Bounds | None = None,
    confidence: float = 0.95,
    power: float = 0.8,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> PairedComparison:
    """`paired` for arrays in which NaN is a missing score, and a cluster is a number."""
    import numpy as np

    check_confidence(confidence)
    count(n_resamples, "n_resamples", MOST_RESAMPLES)
    known = ("auto", "mcnemar", "t", "permutation", "bootstrap")
    if test not in known:
        raise StatisticsError(f"test is {test!r}: {did_you_mean(str(test), known)}")
    complete = ~(np.isnan(a) | np.isnan(b))
    first, second = a[complete], b[complete]
    kept = None if clusters is None else clusters[complete]
    # Each side alone: together they would be copied, 16 MB of a million pairs.
    others = [each[~(np.isnan(each) | (each == 0.0) | (each == 1.0))] for each in (a, b)]
    zero_or_one = not any(map(len, others))
    if bounds is not None:
        bounds = check_bounds(bounds)
    if binary is None:  # scores of a wider range that happen to be 0 and 1 are graded
        binary = zero_or_one and bounds in (None, (0.0, 1.0))
    if binary and not zero_or_one:
        raise StatisticsError(
            f"a binary comparison needs scores 0 and 1, not {np.concatenate(others)[0]}: set binary=False"
        )
    if binary or (bounds is None and all(((each >= 0.0) & (each <= 1.0)).all() for each in others)):
        bounds = (0.0, 1.0)
    del others
    differences = second - first if zero_or_one else score_differences(first, second)
    data = _Differences(differences, kept, binary, bounds, confidence)
    difference, tested = data.compared(test, n_resamples, seed)
    return PairedComparison(
        difference=_with_missing(difference, a, b, bounds),
        test=tested,
        first=_side(first, kept, binary, bounds, confidence, len(a)),
        second=_side(second, kept, binary, bounds, confidence, len(a)),
        wins=data.won,
        losses=data.lost,
        ties=len(differences) - data.lost - data.won,
        smallest_effect=(effect := data.smallest_effect(power)),
        power=power,
        effect_reason="" if effect is not None else data.why_no_effect(),
    )


def _side(
    scores: NDArray[np.float64],
    clusters: NDArray[np.int64] | None,
    binary: bool,
    bounds: Bounds | None,
    confidence: float,
    of: int,
) -> Estimate:
    state = _state(scores, clusters)
    return state.proportion(confidence, of=of) if binary else state.estimate(confidence, of=of, bounds=bounds)


def _state(values: NDArray[np.float64], clusters: NDArray[np.int64] | None) -> MeanState:
    state = MeanState()
    if clusters is None:
        state.add_singles(values)
    else:
        state.add_values(values, clusters)
    return state


def _with_missing(
    difference: Estimate, a: NDArray[np.float64], b: NDArray[np.float64], bounds: Bounds | None
) -> Estimate:
    """The difference over `n` of all pairs, and the bounds that missing scores allow."""
    import numpy as np

    of = len(a)
    if bounds is None or not of:
        return msgspec.structs.replace(difference, of=of, lowest=None, highest=None)
    lo, hi = bounds

    def total(missing_a: float, missing_b: float) -> float:
        y, x = np.where(np.isnan(b), missing_b, b), np.where(np.isnan(a), missing_a, a)
        return array_total(y - x)

    worst = total(hi, lo)
    best = worst if difference.n == of else total(lo, hi)
    return msgspec.structs.replace(difference, of=of, lowest=worst / of, highest=best / of)


class _Differences:
    """The differences of the complete pairs, and what follows from them."""

    def __init__(
        self,
        differences: NDArray[np.float64],
        clusters: NDArray[np.int64] | None,
        binary: bool,
        bounds: Bounds | None,
        confidence: float,
    ) -> None:
        self.differences = differences
        self.clusters = clusters
        self.state = _state(differences, clusters)
        self.binary = binary and not self.state.sizes.clustered
        """Whether these are independent pairs of 0 and 1."""
        self.bounds = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
        self.confidence = confidence
        self.lost, self.won = int((differences < 0).sum()), int((differences > 0).sum())

    def compared(self, test: Test, n_resamples: int, seed: int) -> tuple[Estimate, PairedTest]:
        """The difference with its interval, and the test."""
        n = len(self.differences)
        if test == "mcnemar" and not self.binary:
            raise StatisticsError(
                "McNemar's test needs independent pairs of 0 and 1: use 'auto' or 'permutation'"
            )
        if not n:
            method = "tango (corrected)" if self.binary else "gaffke"
            none = Estimate(None, method=method, confidence=self.confidence)
            return none, PairedTest(None, test, 0, metadata={"reason": "no pairs"})
        if test == "permutation":
            return self._resample(
                permutation_interval(*self._listed(), self.confidence, n_resamples=n_resamples, seed=seed)
            )
        if test == "bootstrap":
            return self._resample(
                bootstrap_test(*self._listed(), self.confidence, n_resamples=n_resamples, seed=seed)
            )
        if self.binary and test != "t":
            return self._binary(exact=test == "mcnemar")
        return self._mean(self.bounds if test == "auto" else None, plain=test == "t")

    def _listed(self) -> tuple[list[float], list[Hashable] | None]:
        return self.differences.tolist(), None if self.clusters is None else self.clusters.tolist()

    def _resample(self, found: tuple[Estimate, float | None]) -> tuple[Estimate, PairedTest]:
        difference, p_value = found
        return difference, PairedTest(p_value, difference.method, difference.n, metadata=difference.metadata)

    def _binary(self, exact: bool) -> tuple[Estimate, PairedTest]:
        n = len(self.differences)
        correction = pair_correction(self.lost, self.won, n)
        difference = tango(self.lost, self.won, n, self.confidence, correction=correction)
        if not exact:
            return difference, score_test(self.lost, self.won, correction)
        tested = mcnemar(self.lost, self.won)
        if tested.p_value is not None and tested.p_value > 1.0 - self.confidence:
            low, high = min(difference.low or 0.0, 0.0), max(difference.high or 0.0, 0.0)
            difference = msgspec.structs.replace(difference, low=low, high=high, method="tango, exact at 0")
        return difference, tested

    def _mean(self, bounds: Bounds | None, plain: bool = False) -> tuple[Estimate, PairedTest]:
        """Gaffke's interval within bounds, else t's, each with the test that inverts it."""
        state, n = self.state, len(self.differences)
        bounded = state.bounded(bounds) if state.sizes.clusters > 1 else None
        if bounds:
            difference = state.estimate(self.confidence, bounds=bounds)
        else:
            difference = state.t(self.confidence) if plain else state.unbounded(self.confidence)
        if difference.low is None:
            reason = difference.metadata.get("reason", "no interval")
            return difference, PairedTest(None, difference.method, n, metadata={"reason": reason})
        if bounded is not None:
            return difference, PairedTest(bounded.p_value(0.0), difference.method, n)
        error, df = difference.metadata["standard_error"], difference.metadata["df"]
        t = (difference.value or 0.0) / error
        p_value, skewed = t_two_sided(t, df), None if plain else state.skewed()
        if skewed is not None and skewed[1] == (t < 0.0):  # 0 is on the side of the long tail
            p_value = max(p_value, skewed[0].p_value(0.0))
        return difference, PairedTest(
            p_value, f"paired {difference.method}", n, statistic=t, metadata={"df": df}
        )

    def smallest_effect(self, power: float) -> float | None:
        """The difference that the test of `auto` finds with this power; None where it cannot be known."""
        state, n = self.state, len(self.differences)
        _check_power(power)
        if state.sizes.clusters < 2:
            return None
        if self.binary:
            return smallest_binary_effect(self.lost + self.won, n, self.confidence, power)
        bounded = state.bounded(self.bounds)
        if bounded is not None:
            return bounded.smallest_effect(self.confidence, power)
        if self._few_clusters():
            return None
        robust, _ = state.variances()
        effect = smallest_effect(math.sqrt(robust), state.design()[1], self.confidence, power)
        return effect if effect > 0.0 else None

    def why_no_effect(self) -> str:
        """The reason for which no smallest effect is stated."""
        return "too few clusters" if self._few_clusters() else "too few pairs"

    def _few_clusters(self) -> bool:
        sizes = self.state.sizes
        return sizes.clustered and few_clusters(sizes.clusters, sizes.fully_correlated())
