"""Agreement between raters: percent, Cohen's, weighted and Fleiss' kappa, Krippendorff's alpha."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from karat.records import Estimate
from karat.stats._means import proportion, with_clusters_noted
from karat.stats._resampling import dirichlet_limits
from karat.stats._validation import (
    MOST_RESAMPLES,
    StatisticsError,
    check_confidence,
    check_labels,
    count,
    finite,
    grouped,
    same_length,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from karat.stats._validation import Labels

    Floats = NDArray[np.float64]

Level = Literal["nominal", "ordinal", "interval"]


def krippendorff_alpha(
    ratings: Sequence[Labels] | NDArray[Any],
    level: Level = "nominal",
    *,
    order: Sequence[Hashable] | None = None,
    clusters: Iterable[Hashable] | None = None,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Krippendorff's alpha of `ratings[item][rater]`, None where a rating is missing (Krippendorff 2011).

    1 − D_o / D_e: the disagreement seen within items over that expected from all values together. Two values
    disagree by whether they differ (nominal), by how many values lie between them (ordinal: in `order`, or
    sorted), or by their squared difference (interval: numbers). Items with fewer than two ratings say nothing
    and are only counted in `of`. The limits are quantiles over random shares of the items, or clusters, with one more
    that lowers or raises alpha most (`dirichlet_limits`), seeded: they hold where one value is rare. One value only:
    None, with the reason.
    """
    import numpy as np

    confidence = check_confidence(confidence)
    count(n_resamples, "n_resamples", MOST_RESAMPLES)
    if level not in ("nominal", "ordinal", "interval"):
        raise StatisticsError(f"level is {level!r}: choose 'nominal', 'ordinal' or 'interval'")
    units = [[rating for rating in item if rating is not None] for item in ratings]
    for unit in units:
        check_labels(unit)
    names = None if clusters is None else list(clusters)
    if names is not None:
        same_length("krippendorff_alpha", ratings=ratings, clusters=names)
        names = [name for name, unit in zip(names, units, strict=True) if len(unit) >= 2]
    units = [unit for unit in units if len(unit) >= 2]
    n, of, method = len(units), len(ratings), f"krippendorff, {level}"
    values = _order_categories({rating for unit in units for rating in unit}, level, order)
    if len(values) < 2:
        reason = "only one value was used" if n else "no item has two ratings"
        return Estimate(None, n=n, of=of, method=method, confidence=confidence, metadata={"reason": reason})
    place = {value: position for position, value in enumerate(values)}
    patterns = Counter(tuple(sorted(place[rating] for rating in unit)) for unit in units)
    raters = Counter(len(unit) for unit in units).most_common(1)[0][0]
    extremes = _extreme_kinds(len(values), raters)
    kinds = sorted({*patterns, *extremes})
    times = np.array([patterns[kind] for kind in kinds], dtype=np.float64)
    scale = np.array(values, dtype=np.float64) if level == "interval" else np.arange(len(values)) * 1.0
    alpha = _Alpha(kinds, scale, level)
    value = float(alpha(times[None])[0])
    if n < 2 or (names is not None and len(set(names)) < 2):
        metadata: dict[str, Any] = {"reason": "one item or one cluster has no spread"}
        return Estimate(value, n=n, of=of, method=method, confidence=confidence, metadata=metadata)
    at = {kind: position for position, kind in enumerate(kinds)}
    cells = [at[tuple(sorted(place[rating] for rating in unit))] for unit in units]
    counts, shapes = _patterns(cells, names, len(kinds))

    def of_patterns(drawn: Floats) -> Floats:
        found: Floats = alpha(drawn if names is None else drawn @ shapes)
        return found

    first = len(counts) - len(kinds)  # the patterns that are one kind each come last
    most = _extremes(counts, of_patterns, [first + at[kind] for kind in extremes])
    width = len(values) ** 2 if level == "ordinal" else 1
    found = dirichlet_limits(
        counts, *most, of_patterns, confidence, draws=n_resamples, seed=seed, width=width
    )
    made = _with_limits(value, found, n, of, method, confidence, {"resamples": n_resamples, "seed": seed})
    return made if names is None else with_clusters_noted(made, len(set(names)))


_MOST_CLASSES = 12
"""Classes of which every two are tried as the worst disagreement; of more, only some."""


def _extreme_kinds(values: int, raters: int) -> list[tuple[int, ...]]:
    """Items on which all raters agree, and items on which the raters are split evenly."""
    half = raters // 2
    every = range(values) if values <= _MOST_CLASSES else (0, values - 1)
    split = [tuple([a] * half + [b] * (raters - half)) for a in every for b in every if a < b]
    return [*((value,) * raters for value in every), *split]


def _extremes(times: Floats, statistic: Callable[[Floats], Floats], tried: Sequence[int]) -> tuple[int, int]:
    """The patterns among those tried of which one more observation lowers and raises a statistic most."""
    import numpy as np

    more = np.tile(times, (len(tried), 1))
    more[np.arange(len(tried)), list(tried)] += 1.0
    found = statistic(more)
    return tried[int(np.nanargmin(found))], tried[int(np.nanargmax(found))]


def _with_limits(
    value: float,
    limits: tuple[float, float] | None,
    n: int,
    of: int,
    method: str,
    confidence: float,
    metadata: dict[str, Any],
) -> Estimate:
    """An agreement with its limits, none of which leaves −1 to 1 or the value out."""
    if limits is None:
        metadata = {
            **metadata,
            "reason": "one class holds nearly all items: chance agreement is almost total",
        }
        return Estimate(value, n=n, of=of, method=method, confidence=confidence, metadata=metadata)
    low, high = min(max(-1.0, limits[0]), value), max(min(1.0, limits[1]), value)
    return Estimate(value, low, high, n, of, method, confidence, metadata=metadata)


def _order_categories(seen: set[Any], level: Level, order: Sequence[Any] | None) -> list[Any]:
    if level == "interval":
        return sorted({finite(value, "a rating") for value in seen})
    if order is not None:
        unknown = [value for value in seen if value not in set(order)]
        if unknown:
            raise StatisticsError(f"order does not list the rating {unknown[0]!r}: list every value")
        return [value for value in order if value in seen]
    try:
        return sorted(seen)
    except TypeError:
        if level == "ordinal":
            raise StatisticsError("ratings of several types have no order: give order=[…]") from None
        return sorted(seen, key=str)


class _Alpha:
    """Alpha as a function of how often each kind of item occurs, for many such tables at once."""

    def __init__(self, kinds: list[tuple[int, ...]], scale: Any, level: Level) -> None:
        import numpy as np

        self.level, self.scale, v = level, scale, len(scale)
        self.counts = np.zeros((len(kinds), v))
        for row, kind in enumerate(kinds):
            for position in kind:
                self.counts[row, position] += 1.0
        self.sizes = self.counts.sum(axis=1)
        if level == "ordinal":
            # Coincidences of every two values within each kind of item: ordinal distances weigh them.
            pairs = self.counts[:, :, None] * self.counts[:, None, :]
            pairs[:, np.arange(v), np.arange(v)] -= self.counts
            self.pairs = (pairs / (self.sizes - 1.0)[:, None, None]).reshape(len(kinds), v * v)
            return
        if level == "nominal":
            within = self.sizes**2 - (self.counts**2).sum(axis=1)
        else:
            centred = scale - scale.mean()
            within = 2.0 * (self.sizes * (self.counts @ centred**2) - (self.counts @ centred) ** 2)
        self.within = within / (self.sizes - 1.0)

    def __call__(self, times: Any) -> Any:
        """Alpha for each row of `times`; NaN where all values are the same."""
        import numpy as np

        marginal = times @ self.counts
        total = marginal.sum(axis=1)
        if self.level == "nominal":
            seen = times @ self.within
            expected = total**2 - (marginal**2).sum(axis=1)
        elif self.level == "interval":
            centred = self.scale - self.scale.mean()
            seen = times @ self.within
            expected = 2.0 * (total * (marginal @ centred**2) - (marginal @ centred) ** 2)
        else:
            seen, expected = self._ordinal(times, marginal)
        expected = np.where(expected > 1e-12 * np.maximum(total, 1.0), expected, np.nan)
        return 1.0 - (total - 1.0) * seen / expected

    def _ordinal(self, times: Any, marginal: Any) -> tuple[Any, Any]:
        """(Σ of the values from c to k, less half of both ends)², with the marginals of each table."""
        import numpy as np

        v = marginal.shape[1]
        middle = np.cumsum(marginal, axis=1) - 0.5 * marginal
        distance = (middle[:, :, None] - middle[:, None, :]) ** 2
        coincidences = (times @ self.pairs).reshape(-1, v, v)
        seen = (coincidences * distance).sum(axis=(1, 2))
        expected = (marginal[:, :, None] * marginal[:, None, :] * distance).sum(axis=(1, 2))
        return seen, expected


Weights = Literal["linear", "quadratic"]


class Agreement(msgspec.Struct, frozen=True):
    """Agreement of two raters in the three usual measures, and the table of their labels."""

    percent: Estimate
    kappa: Estimate
    alpha: Estimate
    labels: list[Any]
    matrix: list[list[int]]
    """Rows are the first rater's labels, columns the second's."""


def agreement_between(
    a: Labels, b: Labels, clusters: Iterable[Hashable] | None = None, confidence: float = 0.95
) -> Agreement:
    """Percent agreement, Cohen's kappa and Krippendorff's alpha (nominal) of two raters, and their table."""
    kept = None if clusters is None else list(clusters)
    pairs, _ = _both(a, b, None)
    labels, matrix, _ = _table(pairs, None)
    return Agreement(
        percent=percent_agreement(a, b, kept, confidence),
        kappa=cohen_kappa(a, b, clusters=kept, confidence=confidence),
        alpha=krippendorff_alpha(list(zip(a, b, strict=True)), clusters=kept, confidence=confidence),
        labels=list(labels),
        matrix=matrix,
    )


def percent_agreement(
    a: Labels, b: Labels, clusters: Iterable[Hashable] | None = None, confidence: float = 0.95
) -> Estimate:
    """The share of items that two raters label the same, with Wilson's interval.

    None is a missing label: such items are left out and counted in `of`.
    """
    pairs, kept = _both(a, b, clusters)
    return proportion([x == y for x, y in pairs], kept, confidence, of=len(a))


def cohen_kappa(
    a: Labels,
    b: Labels,
    weights: Weights | None = None,
    *,
    labels: Sequence[Hashable] | None = None,
    clusters: Iterable[Hashable] | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Cohen's kappa of two raters, plain or weighted: (p_o − p_e) / (1 − p_e) (Cohen 1960, 1968).

    p_o is the agreement seen and p_e that expected from the two raters' own shares. `weights` gives credit
    for near misses by how far apart the classes are in `labels` (sorted unless given): 1 − d or 1 − d². The
    limits are quantiles over random shares of the items, or clusters, with one more that lowers or raises kappa most
    (`dirichlet_limits`): they hold where one class is rare, as intervals from the variance do not. One class
    only: kappa is undefined, and None with the reason.
    """
    import numpy as np

    confidence = check_confidence(confidence)
    if weights not in (None, "linear", "quadratic"):
        raise StatisticsError(f"weights is {weights!r}: choose 'linear', 'quadratic' or None")
    pairs, kept = _both(a, b, clusters)
    n, of = len(pairs), len(a)
    method = "cohen" if weights is None else f"cohen, {weights}"
    names, matrix, index = _table(pairs, labels)
    if len({label for pair in pairs for label in pair}) < 2:
        reason = (
            "no item was labelled by both raters"
            if not n
            else "only one class was used: chance agreement is total"
        )
        return Estimate(None, n=n, of=of, method=method, confidence=confidence, metadata={"reason": reason})
    if len(set(kept) if kept is not None else pairs) < 2:
        reason = "one item or one cluster has no spread"
        value = float(_Kappa(len(names), weights)(np.array(matrix, dtype=np.float64).reshape(1, -1))[0])
        return Estimate(value, n=n, of=of, method=method, confidence=confidence, metadata={"reason": reason})
    table = _Kappa(len(names), weights)
    cells = [index[x] * table.k + index[y] for x, y in pairs]
    value = float(table(np.bincount(cells, minlength=table.k**2).astype(np.float64)[None])[0])
    counts, shapes = _patterns(cells, kept, table.k**2)

    def of_patterns(times: Floats) -> Floats:
        return table(times @ shapes)

    first = len(counts) - table.k**2  # the patterns that are one cell each come last
    most = _extremes(counts, of_patterns, [first + cell for cell in table.extreme_cells()])
    found = dirichlet_limits(counts, *most, of_patterns, confidence, draws=_DRAWS, seed=0, width=table.k**2)
    items = table.influence(np.array(matrix, dtype=np.float64) / n)[cells]
    made = _with_limits(value, found, n, of, method, confidence, _error(items, kept))
    return made if kept is None else with_clusters_noted(made, len(set(kept)))


_DRAWS = 2000
"""Random shares from which limits are taken."""


def _error(influence: Floats, clusters: Sequence[Hashable] | None) -> dict[str, Any]:
    """The standard error from the spread of each item's influence, G/(G−1)·Σ(the cluster's sum)² / n²."""
    n = len(influence)
    centred = influence - influence.mean()
    groups = [[each] for each in centred] if clusters is None else grouped(centred.tolist(), clusters)
    g = len(groups)
    robust = math.fsum(math.fsum(group) ** 2 for group in groups) * g / (g - 1) / (n * n)
    found: dict[str, Any] = {"standard_error": math.sqrt(robust)}
    if g < n:
        plain = float(centred @ centred) / (n * (n - 1))
        found |= {"design_effect": robust / plain if plain > 0.0 else 1.0, "clusters": g}
    return found


class _Kappa:
    """Cohen's kappa as a function of the table of two raters, for many tables (one to a row) at once."""

    def __init__(self, k: int, weights: Weights | None) -> None:
        import numpy as np

        self.k = k
        self.credit = np.array([[_credit(i, j, k, weights) for j in range(k)] for i in range(k)])

    def __call__(self, tables: Floats) -> Floats:
        """Kappa of each table; NaN where chance agreement is total."""
        import numpy as np

        cells = tables.reshape(len(tables), self.k, self.k)
        total = cells.sum(axis=(1, 2))
        observed = (cells * self.credit).sum(axis=(1, 2)) / total
        chance = np.einsum("ti,ij,tj->t", cells.sum(axis=2), self.credit, cells.sum(axis=1)) / total**2
        rest = np.where(1.0 - chance > 1e-12, 1.0 - chance, np.nan)
        found: Floats = 1.0 - (1.0 - observed) / rest
        return found

    def influence(self, shares: Floats) -> Floats:
        """Return the influence of an item of each cell on kappa (Fleiss, Cohen & Everitt 1969)."""
        rows, columns = shares.sum(axis=1), shares.sum(axis=0)
        by_row, by_column = self.credit @ columns, rows @ self.credit
        observed, rest = float((shares * self.credit).sum()), 1.0 - float(rows @ by_row)
        found: Floats = (
            self.credit - (by_row[:, None] + by_column[None, :]) * (1.0 - observed) / rest
        ) / rest
        return found.ravel()

    def extreme_cells(self) -> list[int]:
        """Cells that can change kappa most: all of a small table; of a large one the diagonal, first row and column."""
        k = self.k
        return [i * k + j for i in range(k) for j in range(k) if k <= _MOST_CLASSES or i == j or 0 in (i, j)]


def _patterns(cells: Sequence[int], clusters: Sequence[Hashable] | None, size: int) -> tuple[Floats, Floats]:
    """Count the patterns of a cluster's items, and return the patterns: those seen, then one for each cell."""
    import numpy as np

    if clusters is None:
        return np.bincount(cells, minlength=size).astype(np.float64), np.eye(size)
    groups = [tuple(sorted(group)) for group in grouped(cells, clusters)]
    seen = Counter(groups)
    mean_size = len(cells) / len(groups)
    shapes = np.zeros((len(seen) + size, size))
    for row, group in enumerate(seen):
        np.add.at(shapes[row], list(group), 1.0)
    shapes[len(seen) :] = mean_size * np.eye(size)
    return np.array([*seen.values(), *([0] * size)], dtype=np.float64), shapes


kappa = cohen_kappa
"""Short name of `cohen_kappa`."""


def fleiss_kappa(ratings: Sequence[Labels] | NDArray[Any], *, confidence: float = 0.95) -> Estimate:
    """Fleiss' kappa of several raters: `ratings[item]` holds the labels that item got, as many for each.

    (P̄ − P_e) / (1 − P_e), with P̄ the mean share of agreeing pairs of raters and P_e the sum of the squared
    shares of the classes (Fleiss 1971). The interval is made as Cohen's.
    Items with missing labels: use `krippendorff_alpha`. One class only: None with the reason.
    """
    import numpy as np

    confidence = check_confidence(confidence)
    n = len(ratings)
    raters = {len(row) for row in ratings}
    if len(raters) > 1 or any(label is None for row in ratings for label in row):
        raise StatisticsError(
            "Fleiss' kappa needs the same number of labels for every item: use krippendorff_alpha"
        )
    m = raters.pop() if raters else 0
    if n and m < 2:
        raise StatisticsError(f"every item has {m} label: agreement needs at least two raters")
    for row in ratings:
        check_labels(row)
    classes = sorted({label for row in ratings for label in row}, key=str)
    if len(classes) < 2:
        reason = "only one class was used: chance agreement is total" if n else "no items"
        return Estimate(None, n=n, of=n, method="fleiss", confidence=confidence, metadata={"reason": reason})
    place = {name: position for position, name in enumerate(classes)}
    seen = Counter(tuple(sorted(place[label] for label in row)) for row in ratings)
    extremes = _extreme_kinds(len(classes), m)
    kinds = sorted({*seen, *extremes})
    times = np.array([seen[kind] for kind in kinds], dtype=np.float64)
    tallies = np.zeros((len(kinds), len(classes)))
    for row, kind in enumerate(kinds):
        np.add.at(tallies[row], list(kind), 1.0)
    agreeing = (tallies * (tallies - 1.0)).sum(axis=1) / (m * (m - 1))

    def fleiss(tables: Floats) -> Floats:
        total = tables.sum(axis=1)
        shares = (tables @ tallies) / (m * total)[:, None]
        rest = 1.0 - (shares**2).sum(axis=1)
        found: Floats = 1.0 - (1.0 - (tables @ agreeing) / total) / np.where(rest > 1e-12, rest, np.nan)
        return found

    value = float(fleiss(times[None])[0])
    if n < 2:
        metadata = {"reason": "one item has no spread"}
        return Estimate(value, n=n, of=n, method="fleiss", confidence=confidence, metadata=metadata)
    most = _extremes(times, fleiss, [kinds.index(kind) for kind in extremes])
    found = dirichlet_limits(times, *most, fleiss, confidence, draws=_DRAWS, seed=0)
    shares = (times @ tallies) / (n * m)
    rest = 1.0 - float(shares @ shares)
    influence = (agreeing - 2.0 * (1.0 - value) * (tallies @ shares) / m) / rest
    items = np.repeat(influence, times.astype(np.int64))
    return _with_limits(value, found, n, n, "fleiss", confidence, _error(items, None))


def _both(
    a: Labels, b: Labels, clusters: Iterable[Hashable] | None
) -> tuple[list[tuple[Any, Any]], list[Hashable] | None]:
    """The pairs in which neither label is missing, and their clusters."""
    same_length("agreement", a=a, b=b)
    kept = [i for i in range(len(a)) if a[i] is not None and b[i] is not None]
    check_labels(a)
    check_labels(b)
    if clusters is None:
        return [(a[i], b[i]) for i in kept], None
    names = list(clusters)
    same_length("agreement", a=a, clusters=names)
    return [(a[i], b[i]) for i in kept], [names[i] for i in kept]


def _table(
    pairs: list[tuple[Any, Any]], labels: Sequence[Hashable] | None
) -> tuple[list[Any], list[list[int]], dict[Any, int]]:
    seen = {label for pair in pairs for label in pair}
    if labels is None:
        try:
            names = sorted(seen)
        except TypeError:  # labels of several types have no order of their own
            names = sorted(seen, key=str)
    else:
        names = list(labels)
        unknown = [label for label in seen if label not in set(names)]
        if unknown:
            raise StatisticsError(
                f"labels does not list {unknown[0]!r}, which a rater used: list every class in order"
            )
    index = {name: position for position, name in enumerate(names)}
    matrix = [[0] * len(names) for _ in names]
    for x, y in pairs:
        matrix[index[x]][index[y]] += 1
    return names, matrix, index


def _credit(i: int, j: int, k: int, weights: Weights | None) -> float:
    if weights is None:
        return float(i == j)
    distance = abs(i - j) / (k - 1)
    return 1.0 - (distance if weights == "linear" else distance * distance)
