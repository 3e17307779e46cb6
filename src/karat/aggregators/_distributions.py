"""Distributions of scores: quantiles and a histogram."""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import msgspec

from karat.aggregators._base import Aggregate, Aggregator, Group, register_aggregator
from karat.records import WITH_MISSING, Estimate, EvaluatorSpec
from karat.stats._distributions import scaled_ranks
from karat.stats._means import Sizes
from karat.stats._proportions import share_limits
from karat.stats._validation import check_confidence

MOST_DISTINCT = 50_000
"""Different scores that are kept as they are; when there are more, all are rounded to `KEPT_BITS`."""
KEPT_BITS = 12
"""Binary digits of a rounded score: an error of at most 1 part in 8,192."""


def rounded(value: float) -> float:
    """A number to its leading binary digits; it depends on nothing but the number."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * (1 << KEPT_BITS)) / (1 << KEPT_BITS), exponent)


class _Spread:
    __slots__ = ("coarse", "counts", "missing", "sizes")

    def __init__(self) -> None:
        self.counts: dict[float, int] = {}
        self.coarse = False
        self.missing = 0
        self.sizes = Sizes()

    def add(self, value: float, times: int = 1) -> None:
        value = rounded(value) if self.coarse else value
        value += 0.0  # -0.0 becomes 0.0: they are equal keys, and the first one seen would be reported
        self.counts[value] = self.counts.get(value, 0) + times
        if not self.coarse and len(self.counts) > MOST_DISTINCT:
            self.round()

    def round(self) -> None:
        """Round all scores from now on. When this starts depends on the scores that are added, not on their order."""
        counts, self.counts, self.coarse = self.counts, {}, True
        for value, times in counts.items():
            self.add(value, times)

    def merge(self, other: _Spread) -> None:
        if other.coarse and not self.coarse:
            self.round()
        for value, times in other.counts.items():
            self.add(value, times)
        self.missing += other.missing
        self.sizes.merge(other.sizes)


class _Distribution(Aggregator[_Spread]):
    def __init__(self, confidence: float = 0.95) -> None:
        self.confidence = check_confidence(confidence)

    def start(self) -> _Spread:
        return _Spread()

    def add(self, state: _Spread, group: Group) -> _Spread:
        scores = group.scores()
        for score in scores:
            state.add(score)
        if scores:
            state.sizes.add(len(scores))
        state.missing += group.missing
        return state

    def merge(self, a: _Spread, b: _Spread) -> _Spread:
        a.merge(b)
        return a


@register_aggregator("quantiles")
class Quantiles(_Distribution):
    """Quantiles of the scores, each with a distribution-free interval.

    The limits are order statistics, which hold for every distribution; the attempts at an example count as one item
    there. A limit that so few scores cannot give is None: 20 scores have no upper limit for the quantile 0.95.
    Up to 50,000 different scores the quantiles are exact, beyond that every score is rounded to one part in 8,192.
    Missing scores could lie anywhere between the bounds that the evaluator declares, else 0 and 1.
    """

    name = "quantiles"

    def __init__(
        self, probabilities: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95), confidence: float = 0.95
    ) -> None:
        super().__init__(confidence)
        given = [probabilities] if isinstance(probabilities, (int, float)) else list(probabilities)
        if not given or not all(isinstance(p, (int, float)) and 0 <= p <= 1 for p in given):
            raise ValueError(
                f"probabilities are {probabilities!r}: give numbers between 0 and 1, such as 0.5"
            )
        self.probabilities = [float(p) for p in given]
        self._bounds: tuple[float | None, float | None] = (0.0, 1.0)

    def for_evaluator(self, spec: EvaluatorSpec) -> Quantiles:
        """The same aggregator with the bounds that an evaluator declares."""
        adapted = copy.copy(self)
        adapted._bounds = spec.bounds or (0.0, 1.0)
        return adapted

    def finish(self, state: _Spread) -> Aggregate:
        values = sorted(state.counts)
        n, of = state.sizes.items, state.sizes.items + state.missing
        upto: list[int] = []
        total = 0
        for value in values:
            total += state.counts[value]
            upto.append(total)
        out = Aggregate()
        metadata: dict[str, Any] = {"rounded": True} if state.coarse else {}
        if state.sizes.clustered:
            metadata |= {"clusters": state.sizes.clusters, "effective_n": state.sizes.fully_correlated()}
        for p in self.probabilities:
            estimate = Estimate(None, n=n, of=of, method="order statistics", confidence=self.confidence)
            if n:
                ranks = scaled_ranks(p, n, state.sizes.fully_correlated(), self.confidence)
                low, high = (None if rank is None else _score_of_rank(values, upto, rank) for rank in ranks)
                sides = [side for side, limit in (("lower", low), ("upper", high)) if limit is None]
                reason = {"reason": f"too few scores for {' and '.join(sides)} limits"} if sides else {}
                estimate = Estimate(
                    _quantile_score(values, upto, p), low, high, n, of, "order statistics",
                    self.confidence, metadata={**metadata, **reason},
                )  # fmt: skip
                if state.missing:
                    estimate = self._with_missing(estimate, values, upto, p, state.sizes.fully_correlated())
            out.add(estimate, f"q{100 * p:g}")
        return out

    def _with_missing(
        self, estimate: Estimate, values: list[float], upto: list[int], p: float, effective: float
    ) -> Estimate:
        """The quantile if all missing scores were as small, or as large, as possible; None if a score is outside."""
        least, most = self._bounds
        if (least is not None and values[0] < least) or (most is not None and values[-1] > most):
            return estimate
        rank, missing = _rank(p, estimate.of), estimate.of - estimate.n
        lowest = _score_of_rank(values, upto, rank - missing) if rank > missing else least
        highest = _score_of_rank(values, upto, rank) if rank <= estimate.n else most
        # The ranks of the limits among all scores, with the missing ones below, or above, those that are there.
        below, above = scaled_ranks(p, estimate.of, effective * estimate.of / estimate.n, self.confidence)
        low = (
            None
            if below is None
            else _score_of_rank(values, upto, below - missing)
            if below > missing
            else least
        )
        high = None if above is None else _score_of_rank(values, upto, above) if above <= estimate.n else most
        metadata = {**estimate.metadata, WITH_MISSING: [low, high]}
        return msgspec.structs.replace(estimate, lowest=lowest, highest=highest, metadata=metadata)


def _quantile_score(values: list[float], upto: list[int], p: float) -> float:
    """The smallest score that at least a share `p` of all scores do not exceed."""
    return _score_of_rank(values, upto, _rank(p, upto[-1]))


def _rank(p: float, n: int) -> int:
    """The rank of the quantile `p` among `n` scores, from 1."""
    return max(1, math.ceil(p * n - 1e-9))


def _score_of_rank(values: list[float], upto: list[int], rank: int) -> float:
    """The score of a rank, counted from 1."""
    return values[min(bisect_right(upto, max(0, rank - 1)), len(values) - 1)]


@register_aggregator("histogram")
class Histogram(_Distribution):
    """How many scores fall between `edges`, with the share of each bin and its interval.

    Without edges there are `bins` equal ones from `low` to `high`. A bin holds its lower edge, the last one both.
    """

    name = "histogram"

    def __init__(
        self,
        bins: int = 10,
        low: float = 0.0,
        high: float = 1.0,
        edges: Sequence[float] | None = None,
        confidence: float = 0.95,
    ) -> None:
        super().__init__(confidence)
        if edges is None:
            if not isinstance(bins, int) or not 1 <= bins <= 1000 or not low < high:
                raise ValueError(
                    f"{bins!r} bins from {low!r} to {high!r}: give 1 to 1000 bins, low below high"
                )
            edges = [low + (high - low) * i / bins for i in range(bins)] + [high]
        self.edges = [float(edge) for edge in edges]
        if len(self.edges) < 2 or any(b <= a for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError(f"edges are {list(edges)!r}: give two or more increasing numbers")

    def finish(self, state: _Spread) -> Aggregate:
        edges, counts = self.edges, [0] * (len(self.edges) - 1)
        below = above = 0
        for value, times in state.counts.items():
            if value < edges[0]:
                below += times
            elif value > edges[-1]:
                above += times
            else:
                counts[min(bisect_right(edges, value) - 1, len(counts) - 1)] += times
        n = state.sizes.items
        rows = [
            {"low": edges[i], "high": edges[i + 1], "count": count, **self._share(count, state.sizes)}
            for i, count in enumerate(counts)
        ]
        table = {"bins": rows, "below": below, "above": above, "n": n, "of": n + state.missing}
        out = Aggregate()
        out.add_table(table)
        return out

    def _share(self, count: int, sizes: Sizes) -> dict[str, Any]:
        if not sizes.items:
            return {"share": None, "share_interval": None}
        share, effective = count / sizes.items, sizes.fully_correlated()
        low, high = share_limits(share * effective, effective, self.confidence)
        return {"share": share, "share_interval": [low, high]}
