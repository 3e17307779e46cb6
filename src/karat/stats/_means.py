"""Intervals for means: Student's t, cluster-robust where items come in clusters, foldable and mergeable."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from karat.records import Estimate
from karat.stats._bounds import with_bounds
from karat.stats._clusters import Sizes
from karat.stats._distributions import critical
from karat.stats._exact import ExactSum, ratio_of
from karat.stats._proportions import wilson_limits
from karat.stats._validation import StatisticsError, check_confidence, finite, grouped, items_of


class MeanState:
    """All that the mean of clustered values, its interval and its design effect need, in constant memory.

    It keeps, with no rounding, the sums over items of x and x² and over clusters of s², s·n and the powers of
    n, where s is a cluster's sum and n its size. So `merge` in any grouping and order gives the same estimate
    to the last bit.
    """

    __slots__ = ("cluster_squares", "products", "several", "singles", "squares", "total")

    def __init__(self) -> None:
        self.total = ExactSum()
        self.squares = ExactSum()
        self.cluster_squares = ExactSum()
        """Σs² − Σx² over clusters of several items: what being in one cluster adds."""
        self.products = ExactSum()
        """Σs·n − Σx over clusters of several items."""
        self.several = Sizes()
        """The sizes of the clusters of several items."""
        self.singles = 0
        """How many clusters have one item: counted apart, since they are most and this is quick."""

    def add_one(self, value: float) -> None:
        """Adds a cluster of one item."""
        numerator, shift = ratio_of(value)
        self.total.add_ratio(numerator, shift)
        self.squares.add_ratio(numerator * numerator, 2 * shift)
        self.singles += 1

    def add(self, values: Sequence[float]) -> None:
        """Adds the values of one cluster: the attempts at one example, the questions on one document."""
        size = len(values)
        if size <= 1:
            if size:
                self.add_one(values[0])
            return
        total = ExactSum()
        squares = ExactSum()
        for value in values:
            total.add(value)
            squares.add_square(value)
        self.total.merge(total)
        self.squares.merge(squares)
        self.cluster_squares.add_product(total, total)
        self.cluster_squares.add_multiple(squares, -1)
        self.products.add_multiple(total, size - 1)
        self.several.add(size)

    def merge(self, other: MeanState) -> MeanState:
        """This state with the clusters of another added; a cluster must be wholly in one of them."""
        self.total.merge(other.total)
        self.squares.merge(other.squares)
        self.cluster_squares.merge(other.cluster_squares)
        self.products.merge(other.products)
        self.several.merge(other.several)
        self.singles += other.singles
        return self

    @property
    def n(self) -> int:
        """How many items were added."""
        return self.several.items + self.singles

    @property
    def sizes(self) -> Sizes:
        """The sizes of all clusters."""
        return self.several.with_singles(self.singles)

    @property
    def mean(self) -> float | None:
        """Σx / n, rounded once."""
        return _to_float(self.total.fraction / self.n) if self.n else None

    def variances(self) -> tuple[float, float]:
        """The variance of the mean: cluster-robust, and as if items were independent (two clusters up)."""
        n, sizes = self.n, self.sizes
        mean = self.total.fraction / n
        spread = self.squares.fraction - mean * self.total.fraction
        plain = spread / (n * (n - 1)) if n > 1 else Fraction(0)
        residuals = (
            self.squares.fraction
            + self.cluster_squares.fraction
            - 2 * mean * (self.total.fraction + self.products.fraction)
            + mean * mean * sizes.squares
        )
        robust = residuals * Fraction(sizes.clusters, sizes.clusters - 1) / (n * n)
        return _to_float(robust), _to_float(plain)

    def estimate(
        self,
        confidence: float = 0.95,
        *,
        of: int | None = None,
        bounds: tuple[float, float] | None = None,
    ) -> Estimate:
        """The mean with its t interval.

        mean ± t·√V, V = G/(G−1) · Σ(s_g − n_g·mean)² / n² over G clusters, which for clusters of one item is
        the usual s²/n with n − 1 degrees of freedom; for others the degrees are those of `clusters.Sizes`.
        `bounds` is the range of the scores: it gives `lowest` and `highest` when items are missing, keeps the
        interval inside, and gives one when all values are equal and no spread can be seen: then at most a
        share z²/(n + z²) of all items differs (Wilson's limit for none of n), by at most the range.
        """
        confidence = check_confidence(confidence)
        n = self.n
        of = items_of(n, of)
        sizes = self.sizes
        method = "t, clustered" if sizes.clustered else "t"
        if n == 0 or sizes.clusters < 2:
            reason = "no items" if n == 0 else "one item" if n == 1 else "one cluster"
            metadata: dict[str, Any] = {"reason": f"{reason}: the spread cannot be estimated"}
            lone = Estimate(self.mean, n=n, of=of, method=method, confidence=confidence, metadata=metadata)
            return with_bounds(lone, of, *bounds) if bounds else lone
        mean = self.mean
        assert mean is not None
        robust, plain = self.variances()
        if robust == 0.0 and plain == 0.0:
            return self._all_equal(mean, confidence, of, bounds, method)
        effect = robust / plain if plain > 0.0 else 1.0
        df = sizes.degrees(effect)
        error = math.sqrt(robust)
        half = critical(confidence, df) * error
        low, high = mean - half, mean + half
        metadata = {"standard_error": error, "df": df, **self._design(effect)}
        estimate = Estimate(mean, low, high, n, of, method, confidence, metadata=metadata)
        if bounds is None:
            return estimate
        low, high = max(low, min(bounds[0], mean)), min(high, max(bounds[1], mean))
        return with_bounds(
            Estimate(mean, low, high, n, of, method, confidence, metadata=metadata), of, *bounds
        )

    def proportion(self, confidence: float = 0.95, *, of: int | None = None) -> Estimate:
        """The mean of values 0 and 1 with Wilson's interval, on the effective sample size when clustered.

        Clustered: n_effective = n / design effect, which is not taken below 1, and the t quantile with the
        degrees of `clusters.Sizes` in place of the normal one (after Korn & Graubard 1998). Where all values
        are 0 or all are 1 the design effect cannot be seen and the items of a cluster count as one.
        """
        confidence = check_confidence(confidence)
        n = self.n
        of = items_of(n, of)
        p = self.mean
        if p is None:
            return with_bounds(Estimate(None, of=of, method="wilson", confidence=confidence), of)
        if self.squares != self.total:  # x² = x holds for 0 and 1 alone
            raise StatisticsError("a proportion is of values 0 and 1: for graded scores take the mean")
        if not self.sizes.clustered:
            low, high = wilson_limits(p, float(n), critical(confidence))
            return with_bounds(Estimate(p, low, high, n, of, "wilson", confidence), of)
        return self._clustered_proportion(p, confidence, of)

    def _clustered_proportion(self, p: float, confidence: float, of: int) -> Estimate:
        n, method = self.n, "wilson, clustered"
        if self.sizes.clusters < 2:
            low, high = wilson_limits(p, 1.0, critical(confidence))
            metadata: dict[str, Any] = {"clusters": 1, "reason": "one cluster counts as one item"}
            return with_bounds(Estimate(p, low, high, n, of, method, confidence, metadata=metadata), of)
        robust, plain = self.variances()
        if plain == 0.0:
            effect, df = n / self.sizes.fully_correlated(), math.inf
        else:
            effect = max(1.0, robust / plain)
            df = self.sizes.degrees(effect)
        effective = n / effect
        low, high = wilson_limits(p, effective, critical(confidence, df))
        metadata = {"effective_n": effective, **self._design(effect)}
        return with_bounds(Estimate(p, low, high, n, of, method, confidence, metadata=metadata), of)

    def _design(self, effect: float) -> dict[str, Any]:
        if not self.sizes.clustered:
            return {}
        return {"design_effect": effect, "clusters": self.sizes.clusters}

    def _all_equal(
        self, mean: float, confidence: float, of: int, bounds: tuple[float, float] | None, method: str
    ) -> Estimate:
        metadata: dict[str, Any] = {"reason": "all values are equal", **self._design(1.0)}
        if bounds is None:
            return Estimate(mean, mean, mean, self.n, of, method, confidence, metadata=metadata)
        z2 = critical(confidence) ** 2
        differing = z2 / (self.sizes.fully_correlated() + z2)
        low = mean - differing * max(0.0, mean - bounds[0])
        high = mean + differing * max(0.0, bounds[1] - mean)
        return with_bounds(
            Estimate(mean, low, high, self.n, of, method, confidence, metadata=metadata), of, *bounds
        )


def _to_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        raise StatisticsError("these values square to more than the largest float: rescale them") from None


def state_of(values: Sequence[Any], clusters: Iterable[Hashable] | None) -> MeanState:
    """The state of values, each its own cluster unless clusters are given."""
    state = MeanState()
    numbers = [finite(value, f"values[{index}]") for index, value in enumerate(values)]
    if clusters is None:
        for number in numbers:
            state.add_one(number)
    else:
        for group in grouped(numbers, clusters):
            state.add(group)
    return state


def mean_interval(
    values: Sequence[Any],
    clusters: Iterable[Hashable] | None = None,
    confidence: float = 0.95,
    *,
    of: int | None = None,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """The mean of values with its t interval, cluster-robust where a cluster is given for each value.

    See `MeanState.estimate` for the formulas. No values: the value is None; one value, or one cluster: no
    interval, with the reason in the metadata. The design effect stands in the metadata.
    """
    return state_of(values, clusters).estimate(confidence, of=of, bounds=bounds)
