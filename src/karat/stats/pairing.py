"""Comparing two sets of scores pair by pair: the difference, its interval and its test."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from karat.errors import did_you_mean
from karat.records import Estimate
from karat.stats.distributions import critical
from karat.stats.means import MeanState, state_of
from karat.stats.paired_proportions import tango_limits
from karat.stats.paired_tests import PairedTest, mcnemar, paired_t
from karat.stats.power import fewest_discordant, smallest_effect
from karat.stats.resampling import bootstrap, permutation
from karat.stats.validation import StatisticsError, check_confidence, finite, same_length

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
