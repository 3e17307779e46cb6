"""Means with their intervals, over items or clusters of items, folded one at a time and merged exactly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from karat.records import Estimate
from karat.stats._bounded_mean import BoundedMean
from karat.stats._distributions import critical
from karat.stats._exact import ExactSum, exact_sum, ratio_of
from karat.stats._proportions import share, wilson_limits, with_bounds
from karat.stats._validation import (
    StatisticsError,
    check_bounds,
    check_confidence,
    finite,
    grouped,
    items_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from karat.stats._validation import Numbers


# The cost of clustering: the design effect, and the degrees of freedom that unequal clusters leave.
#
# The variance is the cluster-robust one with the factor G/(G−1) (Liang & Zeger 1986). Its t distribution does
# not have G−1 degrees of freedom when clusters differ in size: 20 clusters of 1 to 10 items then cover 92 %
# instead of 95 %. The degrees are Satterthwaite's, after Bell & McCaffrey (2002), for clusters whose sums have the
# variance n_g(1 + (n_g − 1)ρ), with the intra-cluster correlation ρ taken from the design effect. Equal clusters
# give exactly G−1.


class Sizes(msgspec.Struct):
    """Power sums of the sizes of clusters: whole numbers, so that they merge exactly."""

    clusters: int = 0
    items: int = 0
    squares: int = 0
    cubes: int = 0
    fourths: int = 0
    fifths: int = 0

    def add(self, size: int, times: int = 1) -> None:
        """Add clusters of one size."""
        self.clusters += times
        self.items += size * times
        self.squares += size**2 * times
        self.cubes += size**3 * times
        self.fourths += size**4 * times
        self.fifths += size**5 * times

    def merge(self, other: Sizes) -> None:
        """Add the clusters of another."""
        self.clusters += other.clusters
        self.items += other.items
        self.squares += other.squares
        self.cubes += other.cubes
        self.fourths += other.fourths
        self.fifths += other.fifths

    def with_singles(self, times: int) -> Sizes:
        """Return the sums with this many clusters of one item added."""
        return Sizes(
            self.clusters + times,
            self.items + times,
            self.squares + times,
            self.cubes + times,
            self.fourths + times,
            self.fifths + times,
        )

    @property
    def clustered(self) -> bool:
        """Whether any cluster holds more than one item."""
        return self.squares > self.items

    def correlation(self, design_effect: float) -> float:
        """The intra-cluster correlation implied by this design effect, between 0 and 1."""
        if not self.clustered:
            return 0.0
        return min(1.0, max(0.0, (design_effect - 1.0) / (self.squares / self.items - 1.0)))

    def degrees(self, design_effect: float) -> float:
        """The degrees of freedom for this design effect; G − 1 when all sizes are equal.

        trace(C)² / trace(C²) with C the covariance of the residuals s_g − n_g·mean: D − (nvᵀ + vnᵀ)/N + w·nnᵀ,
        where v are the variances of the clusters' sums, D their diagonal matrix and w = Σv/N².
        """
        if self.clusters < 2:
            return 0.0
        if not self.clustered:
            return self.clusters - 1.0
        n, n2 = float(self.items), float(self.squares)
        b = self.correlation(design_effect)
        a = 1.0 - b
        v = a * n + b * n2
        nv = a * n2 + b * self.cubes
        nnv = a * self.cubes + b * self.fourths
        vv = a * a * n2 + 2 * a * b * self.cubes + b * b * self.fourths
        nvv = a * a * self.cubes + 2 * a * b * self.fourths + b * b * self.fifths
        w = v / n**2
        trace = v - 2 * nv / n + w * n2
        square = (
            vv
            + 2 * (nv**2 + n2 * vv) / n**2
            + (w * n2) ** 2
            - 4 * nvv / n
            + 2 * w * nnv
            - 4 * w * n2 * nv / n
        )
        return min(self.clusters - 1.0, max(1.0, trace**2 / square)) if square > 0.0 else 1.0

    def fully_correlated(self) -> float:
        """The effective sample size if all items of a cluster were one: the least it can be."""
        return self.items * self.items / self.squares


def sizes_of(sizes: Iterable[int]) -> Sizes:
    """Return the power sums of cluster sizes."""
    total = Sizes()
    for size in sizes:
        total.add(int(size))
    return total


MOST_DISTINCT = 2048
"""Distinct clusters (sum and size) that a state keeps; beyond it sums are cut to fewer binary digits."""
_ROUNDING = 1e-15
"""A spread of this part of the values is an error of their last bits."""
_DIGITS = (16, 12, 10, 8, 6)
"""Binary digits to which sums are cut, in turn. Where even the last leaves too many, only the moments are kept."""


_ENOUGH_CLUSTERS = 30
"""Clusters of which fewer than 5 % of samples lack a kind that is one cluster in ten."""


def few_clusters_note(clusters: int) -> str:
    """Say what an interval over so few clusters cannot allow for; empty if there are enough.

    If nine of ten clusters have one item and the tenth has 20 that score lower, every third sample of 10 clusters has
    no large one, and nothing in it says that there are any: no interval made from it covers.
    """
    if clusters >= _ENOUGH_CLUSTERS:
        return ""
    return f"few clusters ({clusters}): larger ones that were not drawn are not allowed for"


def with_clusters_noted(found: Estimate, clusters: int) -> Estimate:
    """An estimate over so many clusters that the caller named, with a note where they are few."""
    note = few_clusters_note(clusters)
    if not note or found.value is None:
        return found
    return msgspec.structs.replace(found, metadata={**found.metadata, "note": note})


def over_examples(found: Estimate) -> Estimate:
    """An estimate whose clusters are examples, without the note: they were made, and none is larger than it shows."""
    return msgspec.structs.replace(
        found, metadata={name: value for name, value in found.metadata.items() if name != "note"}
    )


_SYMMETRIC, _SKEWED, _BEYOND = 0.5, 1.0, 0.5
"""The skewness up to which values without bounds are taken as symmetric, from which on as skewed, and how far a value
that was not drawn may then lie beyond the farthest, in parts of the range of those drawn."""


class ClusterCounts:
    """The number of clusters of each sum and size, in bounded memory.

    To how many digits sums are kept depends on all that was added and not on its order, so `merge` is exact: cutting
    digits off in steps gives the same as cutting them off at once.
    """

    __slots__ = ("counts", "level")

    def __init__(self) -> None:
        self.counts: dict[tuple[float, int], int] = {}
        self.level = -1
        """−1: sums as they are; from 0: the place in `_DIGITS`; beyond that nothing is kept."""

    def add(self, total: float, size: int, times: int = 1) -> None:
        """Add clusters of one sum and size."""
        if self.level >= 0:
            if self.level >= len(_DIGITS):
                return
            total = _cut(total, _DIGITS[self.level])
        key = (total + 0.0, size)  # -0.0 becomes 0.0: they are one key
        counts = self.counts
        counts[key] = counts.get(key, 0) + times
        if len(counts) > MOST_DISTINCT:
            self._to_level(self.level + 1)

    def _to_level(self, level: int) -> None:
        counts, self.counts, self.level = self.counts, {}, level
        for (total, size), times in counts.items():
            self.add(total, size, times)

    def merge(self, other: ClusterCounts) -> None:
        """Add the clusters of another."""
        if other.level > self.level:
            self._to_level(other.level)
        for (total, size), times in other.counts.items():
            self.add(total, size, times)

    def sizes(self) -> Counter[int]:
        """Count the retained clusters of each size."""
        found: Counter[int] = Counter()
        for (_, size), times in self.counts.items():
            found[size] += times
        return found

    @property
    def known(self) -> bool:
        """Whether the clusters are retained, at least to a few digits."""
        return self.level < len(_DIGITS)


def _cut(value: float, digits: int) -> float:
    """A number with only its leading binary digits."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.trunc(math.ldexp(mantissa, digits)), exponent - digits)


class MeanState:
    """All that the mean of clustered values, its interval and its design effect need, in bounded memory.

    It keeps, without rounding, the sums over items of x and x² and over clusters of s², s·n and the powers of
    n, where s is a cluster's sum and n its size; and how many clusters there are of each (s, n). So `merge` in any
    grouping and order gives the same estimate to the last bit.
    """

    __slots__ = (
        "cluster_squares",
        "clusters",
        "drawn",
        "least",
        "most",
        "products",
        "several",
        "singles",
        "squares",
        "total",
    )

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
        self.clusters = ClusterCounts()
        self.drawn = False
        """Whether clusters were drawn and named, such as documents, not made, as the attempts at an example are: those
        not drawn can be larger, even where each of these has one item."""
        self.least = math.inf
        """The smallest value …"""
        self.most = -math.inf
        """… and the largest."""

    def add_one(self, value: float, times: int = 1) -> None:
        """Add clusters of one item, with this value."""
        if not times:
            return
        numerator, shift = ratio_of(value)
        self.total.add_ratio(numerator * times, shift)
        self.squares.add_ratio(numerator * numerator * times, 2 * shift)
        self.singles += times
        self.clusters.add(value, 1, times)
        if value < self.least:
            self.least = value
        if value > self.most:
            self.most = value

    def add(self, values: Sequence[float]) -> None:
        """Add the values of one cluster: the attempts at one example, the questions on one document."""
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
        self.add_cluster(total, squares, size, min(values), max(values))

    def add_values(self, values: NDArray[Any], clusters: NDArray[Any]) -> None:
        """Add the values of NumPy arrays, each with its cluster: the same as adding them one cluster at a time."""
        import numpy as np

        if not len(values):
            return
        if len(clusters) > 1 and not (np.diff(clusters) > 0).all():
            order = np.argsort(clusters, kind="stable")
            values, clusters = values[order], clusters[order]
        starts = np.flatnonzero(np.append(True, clusters[1:] != clusters[:-1]))
        if len(starts) == len(values):
            self.add_singles(values)
            return
        listed = values.tolist()
        ends = [*starts[1:].tolist(), len(listed)]
        # Few different clusters, however many examples: each is added once, so many times.
        for group, times in Counter(
            tuple(listed[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)
        ).items():
            if len(group) == 1:
                self.add_one(group[0], times)
            else:
                squares = ExactSum()
                for value in group:
                    squares.add_square(value)
                self.add_cluster(exact_sum(group), squares, len(group), min(group), max(group), times)

    def add_singles(self, values: NDArray[Any]) -> None:
        """Add the values of a NumPy array, each as a separate cluster."""
        import numpy as np

        distinct, times = np.unique(values, return_counts=True)
        for value, count in zip(distinct.tolist(), times.tolist(), strict=True):
            self.add_one(value, count)

    def add_cluster(
        self, total: ExactSum, squares: ExactSum, size: int, least: float, most: float, times: int = 1
    ) -> None:
        """Add clusters by the sums of their values and of the squares, their size and extreme values."""
        if not size or not times:
            return
        self.total.add_multiple(total, times)
        self.squares.add_multiple(squares, times)
        self.clusters.add(total.value, size, times)
        self.least, self.most = min(self.least, least), max(self.most, most)
        if size == 1:
            self.singles += times
            return
        self.cluster_squares.add_ratio(total.numerator * total.numerator * times, 2 * total.shift)
        self.cluster_squares.add_multiple(squares, -times)
        self.products.add_multiple(total, (size - 1) * times)
        self.several.add(size, times)

    def merge(self, other: MeanState) -> MeanState:
        """Add the clusters of another state; a cluster must be wholly in one of the two states."""
        self.total.merge(other.total)
        self.squares.merge(other.squares)
        self.cluster_squares.merge(other.cluster_squares)
        self.products.merge(other.products)
        self.several.merge(other.several)
        self.singles += other.singles
        self.clusters.merge(other.clusters)
        self.drawn |= other.drawn
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)
        return self

    @property
    def n(self) -> int:
        """The number of items added."""
        return self.several.items + self.singles

    @property
    def sizes(self) -> Sizes:
        """The sizes of all clusters."""
        return self.several.with_singles(self.singles)

    @property
    def mean(self) -> float | None:
        """Σx / n, rounded once."""
        return _ratio(self.total.numerator, self.n << self.total.shift) if self.n else None

    def variances(self) -> tuple[float, float]:
        """The variance of the mean: cluster-robust, and as if items were independent (two clusters up)."""
        # In whole numbers over 4^shift: fractions would look for common divisors at every step.
        n, sizes = self.n, self.sizes
        shift = max(self.total.shift, self.products.shift, self.squares.shift, self.cluster_squares.shift)
        total, products = self.total.scaled(shift), self.products.scaled(shift)
        squares, in_clusters = self.squares.scaled(2 * shift), self.cluster_squares.scaled(2 * shift)
        plain = _ratio(n * squares - total * total, n * n * (n - 1) << 2 * shift) if n > 1 else 0.0
        # n² Σ(s − size · mean)² over the clusters
        residuals = (
            n * n * (squares + in_clusters)
            - 2 * n * total * (total + products)
            + total * total * sizes.squares
        )
        return _ratio(residuals * sizes.clusters, n**4 * (sizes.clusters - 1) << 2 * shift), plain

    def estimate(
        self,
        confidence: float = 0.95,
        *,
        of: int | None = None,
        bounds: tuple[float, float] | None = None,
        whole_clusters: bool = False,
    ) -> Estimate:
        """The mean with its interval.

        `bounds` is the range of the scores: 0 to 1 unless given or unless a value lies outside. Within bounds the
        limits are Gaffke's (see `_bounded_mean`), which hold for skewed, tied and sparse values. Without bounds they
        are t's: mean ± t·√V, V = G/(G−1) · Σ(s_g − n_g·mean)² / n² over G clusters, which for clusters of one item is
        the usual s²/n with n − 1 degrees of freedom; for others the degrees are those of `Sizes`. Values that are all
        equal and have no bounds have no limits. With bounds, `lowest` and `highest` say what missing items could do.
        `whole_clusters` allows for clusters whose items are all alike though those seen are not.
        """
        confidence = check_confidence(confidence)
        n = self.n
        of = items_of(n, of)
        bounds = self._usual_bounds() if bounds is None else check_bounds(bounds)
        bounded = self.bounded(bounds, whole_clusters) if self.sizes.clusters > 1 else None
        if bounds is None:
            return self.unbounded(confidence, of=of)
        if bounded is None:
            found = self.t(confidence, of=of)
            mean = found.value
            if mean is not None and found.low is not None and found.high is not None:
                low, high = max(found.low, min(bounds[0], mean)), min(found.high, max(bounds[1], mean))
                found = msgspec.structs.replace(found, low=low, high=high)
            return with_bounds(found, of, *bounds)
        low, high = bounded.interval(confidence)
        mean = self.mean
        assert mean is not None
        robust, plain = self.variances()
        effect = robust / plain if plain > 0.0 else 1.0
        metadata = {"standard_error": math.sqrt(robust), **self._design(effect)}
        method = self._method("gaffke")
        return with_bounds(
            Estimate(mean, min(low, mean), max(high, mean), n, of, method, confidence, metadata=metadata),
            of,
            *bounds,
        )

    def t(self, confidence: float = 0.95, *, of: int | None = None) -> Estimate:
        """The mean with the t interval, ignoring bounds: too narrow for skewed, tied or sparse values."""
        confidence = check_confidence(confidence)
        n, method = self.n, self._method("t")
        of = items_of(n, of)
        if self.sizes.clusters < 2:
            reason = "no items" if n == 0 else "one item" if n == 1 else "one cluster"
            lone: dict[str, Any] = {"reason": f"{reason}: the spread cannot be estimated"}
            return Estimate(self.mean, n=n, of=of, method=method, confidence=confidence, metadata=lone)
        mean = self.mean
        assert mean is not None
        error = math.sqrt(self.variances()[0])
        effect, df = self.design()
        metadata = {"standard_error": error, "df": df, **self._design(effect)}
        if error <= _ROUNDING * max(abs(self.least), abs(self.most)):
            metadata["reason"] = "all values are equal: no limit can be given without bounds"
            return Estimate(mean, n=n, of=of, method=method, confidence=confidence, metadata=metadata)
        half = critical(confidence, df) * error
        return Estimate(mean, mean - half, mean + half, n, of, method, confidence, metadata=metadata)

    def unbounded(self, confidence: float = 0.95, *, of: int | None = None) -> Estimate:
        """The mean without a range: t's interval, longer on the side of the tail where values are skewed.

        Of lognormal values (σ 0.9) t covers 0.85 with 20 of them: the large ones that decide the mean were not drawn.
        On that side the limit is at least Gaffke's for values up to half of their range beyond the farthest.
        """
        found, skewed = self.t(confidence, of=of), self.skewed()
        if skewed is None or found.low is None or found.high is None:
            return found
        guessed, above = skewed
        low, high = guessed.interval(confidence)
        method = f"{found.method}, skewed"
        if above:
            return msgspec.structs.replace(found, high=max(found.high, high), method=method)
        return msgspec.structs.replace(found, low=min(found.low, low), method=method)

    def skewed(self) -> tuple[BoundedMean, bool] | None:
        """The mean within a guessed range, and whether the long tail is above it; None where there is none."""
        if self.sizes.clusters < 3 or not self.clusters.known:
            return None
        counts = self.clusters.counts
        items = sum(size * times for (_, size), times in counts.items())
        mean = math.fsum(total * times for (total, _), times in counts.items()) / items
        gaps = [(total - size * mean, times) for (total, size), times in counts.items()]
        largest = max(abs(gap) for gap, _ in gaps)
        if largest <= _ROUNDING * max(abs(self.least), abs(self.most)):
            return None
        square = math.fsum(times * (gap / largest) ** 2 for gap, times in gaps) / self.sizes.clusters
        cube = math.fsum(times * (gap / largest) ** 3 for gap, times in gaps) / self.sizes.clusters
        skewness = cube / square**1.5
        share = min(1.0, (abs(skewness) - _SYMMETRIC) / (_SKEWED - _SYMMETRIC))
        if share <= 0.0:
            return None
        beyond = _BEYOND * share * (self.most - self.least)
        above = skewness > 0.0
        bounds = (self.least, self.most + beyond) if above else (self.least - beyond, self.most)
        guessed = self.bounded(bounds)
        if guessed is None:
            return None
        if self.sizes.fully_correlated() >= self.sizes.clusters:  # equal clusters are like items
            guessed.degrees = None
        return guessed, above

    def _usual_bounds(self) -> tuple[float, float] | None:
        return (0.0, 1.0) if self.least >= 0.0 and self.most <= 1.0 else None

    def _method(self, name: str) -> str:
        return f"{name}, clustered" if self.sizes.clustered else name

    def design(self) -> tuple[float, float]:
        """The design effect, and the degrees of freedom that it leaves."""
        robust, plain = self.variances()
        effect = robust / plain if plain > 0.0 else 1.0
        return effect, self.sizes.degrees(effect)

    def bounded(self, bounds: tuple[float, float] | None, whole_clusters: bool = False) -> BoundedMean | None:
        """The clusters as `_bounded_mean` takes them; None without bounds, or where they are too many."""
        if bounds is None or not self.clusters.known:
            return None
        import numpy as np

        counts = self.clusters.counts
        keys = sorted(counts)
        sums, sizes = np.array(keys, dtype=np.float64).T
        times = np.array([counts[key] for key in keys], dtype=np.float64)
        if self.clusters.level >= 0:  # the sums were cut: their mean is known exactly
            mean = _ratio(self.total.numerator, self.n << self.total.shift)
            sums = sums + sizes * (mean - (times @ sums) / (times @ sizes))
        within = (min(bounds[0], self.least), max(bounds[1], self.most))
        if not self.sizes.clustered:
            return BoundedMean(sums, sizes, times, within)
        effect, degrees = self.design()
        known = self.variances()[1] > 0.0 and not whole_clusters
        correlation = self.sizes.correlation(effect) if known else 1.0
        return BoundedMean(sums, sizes, times, within, degrees, correlation)

    def proportion(self, confidence: float = 0.95, *, of: int | None = None) -> Estimate:
        """The mean of values 0 and 1 with the interval of `share`; clustered, with that of `estimate`.

        One cluster alone counts as one item.
        """
        confidence = check_confidence(confidence)
        n = self.n
        of = items_of(n, of)
        p = self.mean
        if p is None:
            return with_bounds(Estimate(None, of=of, method="wilson", confidence=confidence), of)
        if self.squares != self.total:  # x² = x holds for 0 and 1 alone
            raise StatisticsError("a proportion needs values 0 and 1: for graded scores use the mean")
        if not self.sizes.clustered:
            found = share(round(self.total.value), n, confidence, of=of)
            return msgspec.structs.replace(found, metadata=self._design(1.0))
        if self.sizes.clusters < 2:
            low, high = wilson_limits(p, 1.0, critical(confidence))
            metadata: dict[str, Any] = {"clusters": 1, "reason": "one cluster counts as one item"}
            return with_bounds(
                Estimate(p, low, high, n, of, "wilson, clustered", confidence, metadata=metadata), of
            )
        return self.estimate(confidence, of=of, bounds=(0.0, 1.0))

    def _design(self, effect: float) -> dict[str, Any]:
        note = few_clusters_note(self.sizes.clusters) if self.drawn else ""
        noted = {"note": note} if note else {}
        if not self.sizes.clustered:
            return noted
        effect = max(1.0, effect)  # less than 1 is chance: independent items carry the most information
        return {
            "design_effect": effect,
            "effective_n": self.n / effect,
            "clusters": self.sizes.clusters,
            **noted,
        }


def _ratio(numerator: int, denominator: int) -> float:
    """A ratio of whole numbers, rounded once."""
    try:
        return numerator / denominator
    except OverflowError:
        raise StatisticsError("these values square to more than the largest float: rescale them") from None


def state_of(values: Numbers, clusters: Iterable[Hashable] | None) -> MeanState:
    """The state of values, each its own cluster unless clusters are given."""
    state = MeanState()
    state.drawn = clusters is not None
    numbers = [finite(value, f"values[{index}]") for index, value in enumerate(values)]
    if clusters is None:
        for number in numbers:
            state.add_one(number)
    else:
        for group in grouped(numbers, clusters):
            state.add(group)
    return state


def state_of_clusters(
    clusters: Mapping[tuple[float, int], int], squares: float, bounds: tuple[float, float]
) -> MeanState:
    """The state of clusters that are counted by sum and size already, with the sum of all squared values."""
    state = MeanState()
    ratios = [ratio_of(total) for total, _ in clusters]
    most = max((shift for _, shift in ratios), default=0)
    whole = squared = products = 0
    sizes: Counter[int] = Counter()
    for (numerator, shift), ((total, size), times) in zip(ratios, clusters.items(), strict=True):
        numerator <<= most - shift
        weighted = numerator * times
        whole += weighted
        squared += numerator * weighted
        products += weighted * (size - 1)
        state.clusters.add(total, size, times)
        sizes[size] += times
    state.total, state.products = ExactSum(whole, most), ExactSum(products, most)
    state.cluster_squares = ExactSum(squared, 2 * most)
    state.singles = sizes.pop(1, 0)
    for size, times in sizes.items():
        state.several.add(size, times)
    state.squares = exact_sum([squares])
    state.cluster_squares.add_multiple(state.squares, -1)
    if clusters:
        state.least, state.most = bounds
    return state


def win_rate(points: MeanState, confidence: float = 0.95, *, of: int | None = None) -> Estimate:
    """The mean of a run's points in its comparisons, a win counting 1 and a tie ½, clustered by example.

    All comparisons in an example are of one output of the run: a bad one loses them all.
    """
    return points.estimate(confidence, of=of, bounds=(0.0, 1.0), whole_clusters=True)


def mean_interval(
    values: Numbers,
    clusters: Iterable[Hashable] | None = None,
    confidence: float = 0.95,
    *,
    of: int | None = None,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """The mean of values with its interval, cluster-robust where a cluster is given for each value.

    `bounds` is the range of the values: 0 to 1 unless given or unless a value lies outside. See
    `MeanState.estimate` for the methods. No values: the value is None; one value, or one cluster: no
    interval, with the reason in the metadata. The design effect is in the metadata.
    """
    return state_of(values, clusters).estimate(confidence, of=of, bounds=bounds)


def proportion(
    values: Numbers | Sequence[bool],
    clusters: Iterable[Hashable] | None = None,
    confidence: float = 0.95,
    *,
    of: int | None = None,
) -> Estimate:
    """The share of true values (True/False or 1/0) with the interval of `share`, clustered if clusters are given.

    Clustered, the interval is that of a bounded mean (see `MeanState.estimate`). For a share whose counts are known,
    `share(successes, n)` is shorter.
    """
    return state_of(values, clusters).proportion(confidence, of=of)
