"""Confidence limits for the mean of bounded values that may be skewed, tied or sparse.

The method is Gaffke's (2005; Learned-Miller & Thomas 2019). Give the n values random weights, uniform over all weights
that sum to 1 (Dirichlet), and add one more value: the largest possible for the upper limit, the smallest possible
for the lower one. The limits are quantiles of that weighted mean. For values 0 and 1 this is Clopper and Pearson's
exact interval; no bounded distribution is known for which it covers less than it states. It stays honest where
t fails: when all values are equal, or when the rare values that decide the mean were not drawn.

Where enough is known the extra value is not needed, and it would make the interval wider than t. Its weight falls to 0
where values near that bound have been seen often (from 10 to 30 times). Where no few values carry the variance, it
falls to 0 from 150 to 200 values, from 1 where half of them tie and from 0.6 where they do not, unless they lie so
close together that one value at the bound would move their mean by 0.67 standard errors or more: then it keeps a part
that grows with that distance. What remains then is the empirical likelihood with t in place of the normal quantile.

Clusters (sum s, size n) take the place of values: the weights belong to clusters, and the mean is Σws / Σwn.

The weighted mean exceeds t when Σ g·(s − t·n) > 0, where the g are gamma variables. That probability is Lugannani and
Rice's saddlepoint approximation in Barndorff-Nielsen's form, Φ(r + log(u/r)/r); its saddlepoint equation is that of the
empirical likelihood (Owen 1988), and r² is its likelihood ratio.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from karat.stats._distributions import critical, normal_quantile, t_two_sided

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_SPREAD_OUT = 0.6
"""The weight of the extra value where the values are spread out: enough for 93 % where the rare values that decide
the mean were not drawn …"""
_FEW, _MANY = 150, 200
"""… up to this many values; from this many on it has none."""
_SAFE = 0.67
"""How far one value at the bound would move the mean, in standard errors: up to here t covers 93 % even where a rare
collapse was not drawn. Further away many values keep 1 − this/distance of the weight that few ones give the extra
value. That is the least that covers 93 % for every share of collapses: its limit is 1.17 times as far as t's at a
distance of 1, 1.8 times at 1.5 and 3.1 times at 2.5."""
_SELDOM, _OFTEN = 10.0, 30.0
"""Values near the bound: the same."""
_SPARSE, _DENSE = 3.0, 8.0
"""Values that carry the variance, (Σd²)²/Σd⁴: up to this many the data are sparse, from this many on they are not.
Where half of the values tie, `_SELDOM` and `_OFTEN` take their place."""
_UNSEEN = 2.0
"""How far the root of the correlation within clusters may be off, in units of 1/√clusters."""
_DOUBT = 4.0
"""How much fewer values may carry the variance in other data of the same kind: 1 + this/√values times."""
_OUTER = 0.1
"""The part of the range that counts as near the bound."""


MARGIN, _MARGIN_IN_CLUSTERS = 0.1, 0.5
"""Of the probability to miss an effect, the part that is kept for not knowing the noise: 0.82 is aimed at for 0.8, and
0.9 in clusters, whose correlation is not known well and whose sizes are others in other data."""
_FEWEST_CLUSTERS = 25.0
"""Clusters from which on a smallest effect is stated; more where they are unequal, for other data may have larger ones.
With 10 to 20 unequal clusters, effects were stated that were found in 12 to 60 % of other data, with 20 to 25 clusters
of which some change as a whole in 75 to 79 %."""


def few_clusters(clusters: float, effective: float) -> bool:
    """Whether clusters, which are worth so many of the usual size, are too few to state a smallest effect."""
    return effective * effective < _FEWEST_CLUSTERS * clusters


class BoundedMean:
    """The mean of clusters (sum, size, how many such clusters) whose items lie between `bounds`.

    `degrees` are those of t for the cluster-robust variance; None where items are independent. `correlation` is the
    one within clusters. The extra value is a cluster too: of one item where items are independent, and of the usual
    size where those of a cluster are all alike; in between its size follows the root of the correlation, which is
    allowed an error of 2/√(effective number of clusters): a rare cluster that fails as a whole and was not drawn leaves
    no correlation behind. The usual size is that of the cluster of a random item, Σsize²/Σsize.
    """

    def __init__(
        self,
        sums: Floats,
        sizes: Floats,
        counts: Floats,
        bounds: tuple[float, float],
        degrees: float | None = None,
        correlation: float = 1.0,
    ) -> None:
        import numpy as np

        self.low, self.high = bounds
        self.range = (self.high - self.low) or 1.0
        self.counts = np.asarray(counts, dtype=np.float64)
        self.sizes = np.asarray(sizes, dtype=np.float64)
        # From here on items lie between 0 and 1. What differs by less than a part in 10¹³ of that is the same.
        self.sums = np.asarray(sums, dtype=np.float64)
        if self.low != 0.0 or self.range != 1.0:
            self.sums = (self.sums - self.low * self.sizes) / self.range
        self.sums = np.rint(self.sums * 1e13) / 1e13
        self.clusters = float(self.counts.sum())
        self.items = items = float(self.counts @ self.sizes)
        self.mean = float(self.counts @ self.sums) / items
        self.usual_size = float(self.counts @ self.sizes**2) / items
        self.effective = items / self.usual_size
        residuals = self.sums - self.mean * self.sizes
        self.squares = float(self.counts @ (residuals * residuals))
        self.correlation = max(0.0, correlation)
        self.extra_size = self._size_at(self.correlation)
        self.degrees = degrees
        self.weight_low, self.weight_high = self._extra_weights()

    def _size_at(self, correlation: float) -> float:
        """The size of the extra value for this correlation within clusters."""
        share = min(1.0, math.sqrt(correlation) + _UNSEEN / math.sqrt(self.effective))
        return 1.0 + (self.usual_size - 1.0) * share

    def _extra_weights(self, doubt: float = 1.0) -> tuple[float, float]:
        """The weight of the extra value at the lower and at the upper bound, between 0 and 1.

        With `doubt` over 1, for data of which that much fewer values carry the variance.
        """
        import numpy as np

        means = self.sums / np.maximum(self.sizes, 1e-300)
        seldom = [self._seldom(means <= _OUTER), self._seldom(means >= 1.0 - _OUTER)]
        if not any(seldom):  # many values near both bounds: nothing else matters
            return 0.0, 0.0
        squares = self.squares
        fourth = float(self.counts @ (self.sums - self.mean * self.sizes) ** 4)
        carriers = squares * squares / fourth / doubt if fourth > 0.0 else 0.0
        most_common = float(self.counts.max()) / self.clusters
        few = _falling(self.clusters, _FEW, _MANY)
        most, limits = (1.0, (_SELDOM, _OFTEN)) if most_common >= 0.5 else (_SPREAD_OUT, (_SPARSE, _DENSE))
        sparse = _falling(carriers, *limits)

        def weight(seldom: float, distance: float) -> float:
            moved = distance * self.extra_size * math.sqrt(doubt / squares) if squares > 0.0 else math.inf
            some = most * max(few, 1.0 - _SAFE / max(moved, _SAFE))
            spread_out = some + (1.0 - some) * sparse
            return min(spread_out, seldom)

        return weight(seldom[0], self.mean), weight(seldom[1], 1.0 - self.mean)

    def _seldom(self, near: NDArray[np.bool_]) -> float:
        """1 where few clusters are near a bound, 0 where many are.

        They count as clusters of the usual size: many small ones say little about a large one.
        """
        counts = self.counts[near]
        items = float(counts @ self.sizes[near])
        return _falling(min(float(counts.sum()), items / self.usual_size), _SELDOM, _OFTEN)

    def _degrees(self, weight: float) -> float:
        """Degrees of freedom. The extra value makes up for the unknown variance; without it t does."""
        if self.degrees is not None:
            return self.degrees
        return (self.clusters - 1.0) / (1.0 - weight) if weight < 1.0 else math.inf

    def interval(self, confidence: float) -> tuple[float, float]:
        """The limits at this confidence."""
        low, high = self._limits(confidence)
        return self.low + self.range * low, self.low + self.range * high

    def _limits(self, confidence: float) -> tuple[float, float]:
        low, high = -self._upper(False, confidence), self._upper(True, confidence)
        return min(low, self.mean), max(high, self.mean)

    def _side(self, above: bool) -> tuple[Floats, float, float, float]:
        """Sums, their mean and bound, and the weight of the extra value; for the lower limit with the signs changed."""
        if above:
            return self.sums, self.mean, 1.0, self.weight_high
        return -self.sums, -self.mean, 0.0, self.weight_low

    def p_value(self, value: float) -> float:
        """The two-sided p-value of "the mean is `value`": 1 − the confidence at which a limit reaches it."""
        value = (value - self.low) / self.range
        if abs(value - self.mean) < 1e-13:
            return 1.0
        above = value > self.mean
        sums, _, bound, weight = self._side(above)
        found = []
        for each in _trial_weights(weight):
            root, _, _ = saddlepoint(*self._parts(sums, bound, each), value if above else -value)
            found.append(t_two_sided(root, self._degrees(each)) if root > 0.0 else 1.0)
        return max(found)

    def smallest_effect(self, confidence: float, power: float) -> float | None:
        """Return the mean difference that the test finds with this power.

        It is found when the limit of the expected data is the normal quantile of the power times the standard error
        away from 0. The expected data are the differences seen and one more, as noise in both directions, and on top
        of them the effect: a change of some values by the typical difference (by the whole range, if none is
        different), or of all values by more than that. Typical is Σd²/Σ|d|: then the effect has the variance of more
        differences like those seen. A shift of all values alike is found more easily. None where nothing would be
        found.
        """
        import numpy as np

        clustered = self.usual_size > 1.0
        if clustered and few_clusters(self.clusters, self.effective):
            return None
        z = normal_quantile(power + (_MARGIN_IN_CLUSTERS if clustered else MARGIN) * (1.0 - power))
        means = self.sums / self.sizes
        # Of values that are equally common the lowest and the highest count alike: the effect is the same in both
        # directions, and allows for a change from one end of the values to the others.
        most_common = means[self.counts == self.counts.max()]
        lowest, highest = float(most_common.min()), float(most_common.max())
        tied = lowest == highest and float(self.counts.max()) / self.clusters >= 0.5
        centre = lowest if tied else self.mean
        gaps = np.round(self.sums - centre * self.sizes, 12) + 0.0
        both = np.column_stack([np.concatenate([gaps, 0.0 - gaps]), np.concatenate([self.sizes, self.sizes])])
        kinds, place = np.unique(both, axis=0, return_inverse=True)
        noise, sizes = kinds.T
        counts: Floats = 0.5 * np.bincount(place.ravel(), np.concatenate([self.counts, self.counts])).astype(
            "f8"
        )
        typical = max(centre, 1.0 - centre)
        if (means != lowest).any():
            seen = [np.abs(means - usual) for usual in (lowest, highest)]
            typical = max(float(np.average(gap, weights=self.counts * gap)) for gap in seen)
        reach = max(typical, centre, 1.0 - centre)
        # Other data vary around what is expected of them. Where they have more ties, fewer values that carry the
        # variance or a larger correlation, the extra value counts more and the test finds less.
        doubt = 1.0 + _DOUBT / math.sqrt(self.clusters)
        extra_size = self.extra_size
        if clustered:
            design = 1.0 + (self.usual_size - 1.0) * self.correlation
            error = design * math.sqrt(2.0 / self.effective) / (self.usual_size - 1.0)
            extra_size = self._size_at(min(1.0, self.correlation + error))
        # Few differences may have been seen by chance: one more, as likely in either direction.
        noise = np.append(noise, [typical * extra_size, -typical * extra_size])
        sizes = np.append(sizes, [extra_size, extra_size])
        counts = np.append(counts * (1.0 - 1.0 / self.clusters), [0.5, 0.5])
        least = BoundedMean(noise, sizes, counts, (-reach, reach), self.degrees)._extra_weights(doubt)[0]

        def missed(effect: float) -> bool:
            if tied:
                share = effect / typical
                sums = np.append(noise, typical * extra_size)
                all_sizes = np.append(sizes, extra_size)
                times = np.append(counts * (1.0 - share), share * self.clusters)
            else:
                share = min(1.0, effect / typical)
                moved = np.minimum(noise + max(effect, typical) * sizes, reach * sizes)
                sums, all_sizes = np.append(noise, moved), np.append(sizes, sizes)
                times = np.append(counts * (1.0 - share), counts * share)
                if share == 1.0:
                    sums, all_sizes, times = moved, sizes, counts
            changed = BoundedMean(sums, all_sizes, times, (-reach, reach), self.degrees)
            changed.extra_size = extra_size
            changed.weight_low = max(changed._extra_weights(doubt)[0], least)
            spread = changed.sums - changed.mean * all_sizes
            error = math.sqrt(float(times @ spread**2)) / float(times @ all_sizes)
            low = -changed._upper(False, confidence)
            return changed.low + changed.range * low < z * error * changed.range

        few, many = 0.0, (typical if tied else reach) * (1.0 - 1e-9)
        if missed(many):
            return None
        while many - few > 0.02 * many:
            middle = 0.5 * (few + many)
            few, many = (middle, many) if missed(middle) else (few, middle)
        return self.range * many

    def _parts(self, sums: Floats, bound: float, weight: float) -> tuple[Floats, Floats, Floats]:
        """Sums, sizes and weights, with those of the extra value."""
        import numpy as np

        if weight <= 0.0:
            return sums, self.sizes, self.counts
        return (
            np.append(sums, bound * self.extra_size),
            np.append(self.sizes, self.extra_size),
            np.append(self.counts, weight),
        )

    def _upper(self, above: bool, confidence: float) -> float:
        """The upper limit of the mean; of the mean with its sign changed where not `above`."""
        sums, mean, bound, weight = self._side(above)
        if mean >= bound:
            return bound
        return max(self._upper_with(sums, mean, bound, each, confidence) for each in _trial_weights(weight))

    def _upper_with(self, sums: Floats, mean: float, bound: float, weight: float, confidence: float) -> float:
        parts = self._parts(sums, bound, weight)
        wanted = critical(confidence, self._degrees(weight))
        squares, items = self.squares, self.items
        if weight > 0.0:
            squares += weight * ((bound - mean) * self.extra_size) ** 2
            items += weight * self.extra_size
        step = wanted * math.sqrt(squares) / items
        low, high, point, start = mean, bound, min(mean + step, 0.5 * (mean + bound)), 0.0
        before = 0.0
        for _ in range(100):
            root, slope, start = saddlepoint(*parts, point, start)
            excess = root - wanted
            if excess < 0.0:
                low = point
            else:
                high = point
            if abs(excess) < 1e-8 or high - low < 1e-13 * (bound - mean):
                break
            point = point - excess / slope if slope > 0.0 and math.isfinite(excess) else math.inf
            if not low < point < high:
                point, before = 0.5 * (low + high), 0.0
            elif excess * excess < 1e-10 * abs(before):  # each step divides the excess by about the same
                break
            else:
                before = excess
        return point


def _falling(value: float, first: float, last: float) -> float:
    """1 up to the first value, 0 from the last one on."""
    return min(1.0, max(0.0, (last - value) / (last - first)))


def _trial_weights(weight: float) -> tuple[float, ...]:
    """The weights of the extra value that are tried, the one with the wider limit counts.

    The approximation fails for a far value of little weight: the limit could be nearer than without that value.
    """
    return (weight, 0.0) if 0.0 < weight < 1.0 else (weight,)


def saddlepoint(
    sums: Floats, sizes: Floats, shapes: Floats, value: float, start: float = 0.0
) -> tuple[float, float, float]:
    """r* with Φ(r*) ≈ P(Σ g·(sum − value·size) ≤ 0) for independent gamma variables g of these shapes.

    Also the derivative of r with respect to `value`, and the saddlepoint, at which a search nearby can start.
    """
    if len(sums) <= _FEW_KINDS:
        found = _saddlepoint_of_few(sums.tolist(), sizes.tolist(), shapes.tolist(), value, start)
        if found is not None:
            return found
    import numpy as np

    gaps = sums - value * sizes
    most, least = float(gaps.max()), float(gaps.min())
    if most <= 0.0:
        return math.inf, 0.0, 0.0
    if least >= 0.0:
        return -math.inf, 0.0, 0.0
    # K'(x) = Σ shape·gap / (1 − x·gap) increases from −∞ to ∞ between 1/least and 1/most.
    bottom, top = 1.0 / least, 1.0 / most
    step = start if bottom < start < top else 0.0
    for _ in range(100):
        x = step
        kept = 1.0 - x * gaps
        part = gaps / kept
        slope, curve = float(shapes @ part), float(shapes @ (part * part))
        if slope > 0.0:
            top = x
        else:
            bottom = x
        step = x - slope / curve
        if abs(step - x) <= 1e-9 * abs(step):
            break
        if not bottom < step < top:
            step = 0.5 * (bottom + top)
    root = math.copysign(math.sqrt(max(0.0, 2.0 * float(shapes @ np.log(kept)))), x)
    if abs(root) < 1e-4:
        return root, 0.0, x
    scaled = x * math.sqrt(curve)
    return root + math.log(scaled / root) / root, x * float(shapes @ (sizes / kept)) / root, x


_FEW_KINDS = 8
"""Kinds of clusters up to which plain numbers take less time than NumPy, whose calls take longer than they compute."""


def _saddlepoint_of_few(
    sums: list[float], sizes: list[float], shapes: list[float], value: float, start: float
) -> tuple[float, float, float] | None:
    """`saddlepoint` without NumPy; None where the numbers leave their range."""
    gaps = [total - value * size for total, size in zip(sums, sizes, strict=True)]
    most, least = max(gaps), min(gaps)
    if most <= 0.0:
        return math.inf, 0.0, 0.0
    if least >= 0.0:
        return -math.inf, 0.0, 0.0
    bottom, top = 1.0 / least, 1.0 / most
    step = start if bottom < start < top else 0.0
    pairs = list(zip(shapes, gaps, strict=True))
    for _ in range(100):
        x = step
        slope = curve = 0.0
        for shape, gap in pairs:
            kept = 1.0 - x * gap
            if kept <= 0.0:
                return None
            part = gap / kept
            weighted = shape * part
            slope += weighted
            curve += weighted * part
        if slope > 0.0:
            top = x
        else:
            bottom = x
        step = x - slope / curve
        if abs(step - x) <= 1e-9 * abs(step):
            break
        if not bottom < step < top:
            step = 0.5 * (bottom + top)
    ratio = sum([shape * math.log(1.0 - x * gap) for shape, gap in pairs])
    root = math.copysign(math.sqrt(max(0.0, 2.0 * ratio)), x)
    if abs(root) < 1e-4:
        return root, 0.0, x
    scaled = x * math.sqrt(curve)
    moved = sum([shape * size / (1.0 - x * gap) for (shape, gap), size in zip(pairs, sizes, strict=True)])
    return root + math.log(scaled / root) / root, x * moved / root, x
