"""Estimates from a sample whose items were drawn with known, unequal probabilities.

Each item counts 1/p times, where p is its inclusion probability (Horvitz & Thompson 1952, as a ratio: Hájek 1971).
Limits are quantiles over random shares of the sampled items or clusters, with one more item that moves the estimate
most (`dirichlet_limits`), so that a sample without a single error does not give an interval without width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from karat.records import Estimate
from karat.stats._resampling import dirichlet_limits
from karat.stats._validation import StatisticsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[Any]

DRAWS = 2000
"""Random shares from which limits are taken."""

MANY, FEWEST_DRAWS = 2000, 400
"""Patterns above which fewer shares are drawn, and how few: limits of large samples need no more."""


class WeightedSample:
    """Items with inclusion probabilities, in clusters.

    An estimate is a function of weighted sums: `values` has a row for each item (its cell of a table, its value and
    1, …), and the statistic takes rows of such sums.
    """

    def __init__(self, probabilities: Sequence[float], clusters: Sequence[Hashable] | None = None) -> None:
        import numpy as np

        given = np.asarray(probabilities, dtype=np.float64)
        if not len(given) or not np.all((given > 0.0) & (given <= 1.0)):
            raise StatisticsError("inclusion probabilities have to be above 0 and at most 1")
        self.weights: Floats = 1.0 / given
        names = list(range(len(given))) if clusters is None else list(clusters)
        if len(names) != len(given):
            raise StatisticsError("there has to be a cluster for each item")
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self.cluster: Floats = np.array([places[name] for name in names])
        self.clusters = len(places)

    @property
    def effective(self) -> float:
        """The number of items of equal weight that carry as much information (Kish 1965)."""
        return float(self.weights.sum() ** 2 / (self.weights**2).sum())

    def sums(self, values: Floats) -> Floats:
        """The weighted sum of the rows of each cluster."""
        import numpy as np

        out = np.zeros((self.clusters, values.shape[1]))
        np.add.at(out, self.cluster, values * self.weights[:, None])
        return out

    def value(self, values: Floats, statistic: Callable[[Floats], Floats]) -> float | None:
        """The statistic of all weighted sums; None where it is undefined."""
        found = float(statistic(self.sums(values).sum(axis=0)[None])[0])
        return None if math.isnan(found) else found

    def limits(
        self,
        values: Floats,
        statistic: Callable[[Floats], Floats],
        extremes: Floats,
        confidence: float,
        population: int = 0,
    ) -> tuple[float, float] | None:
        """Limits of a statistic; `extremes` are rows of items that may move it most and that the sample may lack.

        Such an item weighs as much as the heaviest in the sample. Where the sample is of so many items (`population`)
        and stands for fewer, those that are most seldom drawn are missing in it, and it weighs as much as they all.
        """
        import numpy as np

        if self.clusters < 2:
            return None
        rows = self.sums(values)
        per_cluster = len(values) / self.clusters
        heaviest = max(float(self.weights.max()), (population - float(self.weights.sum())) / per_cluster)
        total = rows.sum(axis=0)
        rows, times_seen = np.unique(rows, axis=0, return_counts=True)  # alike clusters are one pattern
        shapes = np.vstack([rows, extremes * (per_cluster * heaviest)])
        counts = np.concatenate([times_seen, np.zeros(len(extremes))]).astype(np.float64)
        more = total + shapes[len(rows) :]
        moved = statistic(more)
        if np.all(np.isnan(moved)):
            return None
        least, most = (len(rows) + int(pick(moved)) for pick in (np.nanargmin, np.nanargmax))
        return dirichlet_limits(
            counts,
            least,
            most,
            lambda times: statistic(times @ shapes),
            confidence,
            draws=max(FEWEST_DRAWS, min(DRAWS, DRAWS * MANY // len(rows))),
            seed=0,
            width=shapes.shape[1],
        )

    def estimate(
        self,
        values: Floats,
        statistic: Callable[[Floats], Floats],
        extremes: Floats,
        confidence: float,
        method: str = "weighted",
    ) -> Estimate:
        """The statistic with its limits."""
        n = len(values)
        found = self.value(values, statistic)
        metadata: dict[str, Any] = {"effective_n": self.effective, "clusters": self.clusters}
        limits = None if found is None else self.limits(values, statistic, extremes, confidence)
        if found is None or limits is None:
            metadata["reason"] = "too few items: the spread cannot be estimated"
            return Estimate(found, n=n, of=n, method=method, confidence=confidence, metadata=metadata)
        low, high = min(limits[0], found), max(limits[1], found)
        return Estimate(found, low, high, n, n, method, confidence, metadata=metadata)


def weighted_kappa(
    a: Sequence[Hashable],
    b: Sequence[Hashable],
    probabilities: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Cohen's kappa over all items, from a sample with inclusion probabilities."""
    import numpy as np

    from karat.stats._agreement import _Kappa

    names = sorted({*a, *b}, key=str)
    if len(names) < 2:
        reason = {"reason": "only one class was used: chance agreement is total"}
        return Estimate(
            None, n=len(a), of=len(a), method="cohen, weighted", confidence=confidence, metadata=reason
        )
    table = _Kappa(len(names), None)
    cells = [names.index(x) * table.k + names.index(y) for x, y in zip(a, b, strict=True)]
    rows, extremes = np.eye(table.k**2)[cells], np.eye(table.k**2)[table.extreme_cells()]
    sample = WeightedSample(probabilities, clusters)
    return sample.estimate(rows, table, extremes, confidence, "cohen, weighted")
