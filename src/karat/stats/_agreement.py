"""Krippendorff's alpha: agreement of any number of raters, with missing ratings, on any scale."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from karat.records import Estimate
from karat.stats._clusters import sizes_of
from karat.stats._distributions import critical
from karat.stats._proportions import proportion, wilson_limits
from karat.stats._validation import StatisticsError, check_confidence, finite, same_length

Level = Literal["nominal", "ordinal", "interval"]
_MOST_PATTERNS = 4_000_000
"""Patterns × classes² held at once; beyond it the resamples are drawn in more, smaller blocks."""


def krippendorff_alpha(
    ratings: Sequence[Sequence[Any]],
    level: Level = "nominal",
    *,
    order: Sequence[Any] | None = None,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Krippendorff's alpha of `ratings[item][rater]`, None where a rating is missing (Krippendorff 2011).

    1 − D_o / D_e: the disagreement seen within items over that expected from all values together. Two values
    disagree by whether they differ (nominal), by how many values lie between them (ordinal: in `order`, or
    sorted), or by their squared difference (interval: numbers). Items with fewer than two ratings say nothing
    and are only counted in `of`. The interval is the percentile one over resampled items, seeded; agreement
    on everything gets Wilson's limit on the share of items that could disagree. One value only: None, with
    the reason.
    """
    import numpy as np

    confidence = check_confidence(confidence)
    if level not in ("nominal", "ordinal", "interval"):
        raise StatisticsError(f"level is {level!r}: known are 'nominal', 'ordinal' and 'interval'")
    units = [[rating for rating in item if rating is not None] for item in ratings]
    units = [unit for unit in units if len(unit) >= 2]
    n, of, method = len(units), len(ratings), f"krippendorff, {level}"
    values = _ordered({rating for unit in units for rating in unit}, level, order)
    if len(values) < 2:
        reason = "only one value was used" if n else "no item has two ratings"
        return Estimate(None, n=n, of=of, method=method, confidence=confidence, metadata={"reason": reason})
    place = {value: position for position, value in enumerate(values)}
    patterns = Counter(tuple(sorted(place[rating] for rating in unit)) for unit in units)
    kinds = sorted(patterns)
    times = np.array([patterns[kind] for kind in kinds], dtype=np.float64)
    scale = np.array(values, dtype=np.float64) if level == "interval" else np.arange(len(values)) * 1.0
    alpha = _Alpha(kinds, scale, level)
    value = float(alpha(times[None])[0])
    if n < 2:
        metadata: dict[str, Any] = {"reason": "one item has no spread"}
        return Estimate(value, n=n, of=of, method=method, confidence=confidence, metadata=metadata)
    metadata = {"resamples": n_resamples, "seed": seed}
    if all(len(set(kind)) == 1 for kind in kinds):
        share, _ = wilson_limits(1.0, n, critical(confidence))
        low = max(-1.0, 1.0 - (1.0 - share) / alpha.chance_of_differing(times))
        return Estimate(value, low, value, n, of, method, confidence, metadata={"reason": "agreement on all"})
    rng = np.random.default_rng(seed)
    step = max(1, _MOST_PATTERNS // (len(kinds) + len(values) ** 2))
    drawn = np.concatenate(
        [
            alpha(rng.multinomial(n, times / n, size=min(step, n_resamples - start)).astype(np.float64))
            for start in range(0, n_resamples, step)
        ]
    )
    known = drawn[~np.isnan(drawn)]
    if len(known) < len(drawn):
        metadata["undefined"] = len(drawn) - len(known)
    low, high = (float(q) for q in np.quantile(known, (0.5 * (1 - confidence), 0.5 * (1 + confidence))))
    return Estimate(value, min(low, value), max(high, value), n, of, method, confidence, metadata=metadata)


def _ordered(seen: set[Any], level: Level, order: Sequence[Any] | None) -> list[Any]:
    if level == "interval":
        return sorted({finite(value, "a rating") for value in seen})
    if any(isinstance(value, float) and math.isnan(value) for value in seen):
        raise StatisticsError("a rating is NaN: write None for a missing rating")
    if order is not None:
        unknown = [value for value in seen if value not in set(order)]
        if unknown:
            raise StatisticsError(f"order lacks {unknown[0]!r}, which is a rating: list every value")
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

    def chance_of_differing(self, times: Any) -> float:
        """The probability that two values drawn from all differ."""
        marginal = times @ self.counts
        total = float(marginal.sum())
        return float(total**2 - (marginal**2).sum()) / (total * (total - 1.0))


Weights = Literal["linear", "quadratic"]


class Agreement(msgspec.Struct, frozen=True):
    """How far two raters agree, said in the three usual ways, and where they do not."""

    percent: Estimate
    kappa: Estimate
    alpha: Estimate
    labels: list[Any]
    matrix: list[list[int]]
    """Rows are the first rater's labels, columns the second's."""


def agreement_between(
    a: Sequence[Any], b: Sequence[Any], clusters: Iterable[Hashable] | None = None, confidence: float = 0.95
) -> Agreement:
    """Percent agreement, Cohen's kappa and Krippendorff's alpha (nominal) of two raters, and their table."""
    kept = None if clusters is None else list(clusters)
    pairs, _ = _both(a, b, None)
    labels, matrix, _ = _table(pairs, None)
    return Agreement(
        percent=percent_agreement(a, b, kept, confidence),
        kappa=cohen_kappa(a, b, clusters=kept, confidence=confidence),
        alpha=krippendorff_alpha(list(zip(a, b, strict=True)), confidence=confidence),
        labels=list(labels),
        matrix=matrix,
    )


def percent_agreement(
    a: Sequence[Any], b: Sequence[Any], clusters: Iterable[Hashable] | None = None, confidence: float = 0.95
) -> Estimate:
    """The share of items that two raters label the same, with Wilson's interval.

    None is a missing label: such items are left out and counted in `of`.
    """
    pairs, kept = _both(a, b, clusters)
    return proportion([x == y for x, y in pairs], kept, confidence, of=len(a))


def cohen_kappa(
    a: Sequence[Any],
    b: Sequence[Any],
    weights: Weights | None = None,
    *,
    labels: Sequence[Hashable] | None = None,
    clusters: Iterable[Hashable] | None = None,
    confidence: float = 0.95,
) -> Estimate:
    """Cohen's kappa of two raters, plain or weighted: (p_o − p_e) / (1 − p_e) (Cohen 1960, 1968).

    p_o is the agreement seen and p_e that expected from the two raters' own shares. `weights` gives credit
    for near misses by how far apart the classes stand in `labels` (sorted unless given): 1 − d or 1 − d². The
    variance is that of Fleiss, Cohen & Everitt (1969), here the spread of each item's influence, summed
    within clusters where there are any. The interval is Wilson's for the agreement at that variance, since a
    symmetric one covers too little near 1. One class only: kappa is undefined, and None with the reason.
    """
    confidence = check_confidence(confidence)
    if weights not in (None, "linear", "quadratic"):
        raise StatisticsError(f"weights is {weights!r}: known are 'linear', 'quadratic' and None")
    pairs, kept = _both(a, b, clusters)
    n, of = len(pairs), len(a)
    method = "cohen" if weights is None else f"cohen, {weights}"
    names, matrix, index = _table(pairs, labels)
    if len({label for pair in pairs for label in pair}) < 2:
        reason = (
            "no items both have labelled" if not n else "only one class was used: chance agreement is total"
        )
        return Estimate(None, n=n, of=of, method=method, confidence=confidence, metadata={"reason": reason})
    k = len(names)
    credit = [[_credit(i, j, k, weights) for j in range(k)] for i in range(k)]
    rows = [sum(row) / n for row in matrix]
    columns = [sum(matrix[i][j] for i in range(k)) / n for j in range(k)]
    observed = math.fsum(credit[i][j] * matrix[i][j] for i in range(k) for j in range(k)) / n
    by_row = [math.fsum(credit[i][j] * columns[j] for j in range(k)) for i in range(k)]
    by_column = [math.fsum(credit[i][j] * rows[i] for i in range(k)) for j in range(k)]
    chance = math.fsum(rows[i] * by_row[i] for i in range(k))
    rest = 1.0 - chance
    influence = [
        [(credit[i][j] - (by_row[i] + by_column[j]) * (1.0 - observed) / rest) / rest for j in range(k)]
        for i in range(k)
    ]
    items = [influence[index[x]][index[y]] for x, y in pairs]
    return _with_interval(observed, chance, items, kept, of, confidence, method)


kappa = cohen_kappa
"""The same, by its short name."""


def fleiss_kappa(ratings: Sequence[Sequence[Any]], *, confidence: float = 0.95) -> Estimate:
    """Fleiss' kappa of several raters: `ratings[item]` holds the labels that item got, as many for each.

    (P̄ − P_e) / (1 − P_e), with P̄ the mean share of agreeing pairs of raters and P_e the sum of the squared
    shares of the classes (Fleiss 1971). The interval is made as Cohen's, from the spread of the items' influence.
    Items with missing labels: use `krippendorff_alpha`. One class only: None with the reason.
    """
    confidence = check_confidence(confidence)
    n = len(ratings)
    raters = {len(row) for row in ratings}
    if len(raters) > 1 or any(label is None for row in ratings for label in row):
        raise StatisticsError(
            "Fleiss' kappa needs as many labels for every item: use krippendorff_alpha otherwise"
        )
    m = raters.pop() if raters else 0
    if n and m < 2:
        raise StatisticsError(f"every item has {m} label: agreement needs at least two raters")
    classes = sorted({label for row in ratings for label in row}, key=str)
    if len(classes) < 2:
        reason = "only one class was used: chance agreement is total" if n else "no items"
        return Estimate(None, n=n, of=n, method="fleiss", confidence=confidence, metadata={"reason": reason})
    tallies = [[sum(label == name for label in row) for name in classes] for row in ratings]
    shares = [sum(tally[j] for tally in tallies) / (n * m) for j in range(len(classes))]
    agreeing = [sum(times * (times - 1) for times in tally) / (m * (m - 1)) for tally in tallies]
    observed = math.fsum(agreeing) / n
    chance = math.fsum(share * share for share in shares)
    rest = 1.0 - chance
    items = [
        (
            agree
            - 2.0 * (1.0 - observed) / rest * math.fsum(s * t / m for s, t in zip(shares, tally, strict=True))
        )
        / rest
        for agree, tally in zip(agreeing, tallies, strict=True)
    ]
    return _with_interval(observed, chance, items, None, n, confidence, "fleiss")


def _both(
    a: Sequence[Any], b: Sequence[Any], clusters: Iterable[Hashable] | None
) -> tuple[list[tuple[Any, Any]], list[Hashable] | None]:
    """The pairs in which neither label is missing, and their clusters."""
    same_length("agreement", a=a, b=b)
    kept = [i for i in range(len(a)) if a[i] is not None and b[i] is not None]
    for i in kept:
        for label in (a[i], b[i]):
            if isinstance(label, float) and math.isnan(label):
                raise StatisticsError(f"label {i} is NaN: write None for a missing label")
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
                f"labels lack {unknown[0]!r}, which a rater used: list every class in order"
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


def _with_interval(
    observed: float,
    chance: float,
    influence: list[float],
    clusters: list[Hashable] | None,
    of: int,
    confidence: float,
    method: str,
) -> Estimate:
    """Kappa, with Wilson's limits for the agreement seen, carried over by 1 − (1 − p)/(1 − chance).

    The number of items they are taken on is the effective one, at which the agreement would have kappa's
    variance: G/(G−1) · Σ(the cluster's summed influence)² / n².
    """
    n = len(influence)
    value = 1.0 - (1.0 - observed) / (1.0 - chance)
    centre = math.fsum(influence) / n
    sums: dict[Hashable, float] = {}
    counts: dict[Hashable, int] = {}
    for position, each in enumerate(influence):
        key = position if clusters is None else clusters[position]
        sums[key] = sums.get(key, 0.0) + each - centre
        counts[key] = counts.get(key, 0) + 1
    sizes = sizes_of(counts.values())
    groups = sizes.clusters
    if groups < 2:
        metadata: dict[str, Any] = {"reason": "one item or one cluster has no spread"}
        return Estimate(value, n=n, of=of, method=method, confidence=confidence, metadata=metadata)
    robust = math.fsum(s * s for s in sums.values()) * groups / (groups - 1) / (n * n)
    plain = math.fsum((each - centre) ** 2 for each in influence) / (n * (n - 1))
    effective, df, effect = sizes.fully_correlated(), math.inf, 1.0
    if robust > 1e-24 and 0.0 < observed < 1.0:
        effect = robust / plain
        df = sizes.degrees(effect)
        effective = observed * (1.0 - observed) / (robust * (1.0 - chance) ** 2)
    limits = wilson_limits(observed, effective, critical(confidence, df))
    low, high = (1.0 - (1.0 - limit) / (1.0 - chance) for limit in limits)
    low, high = min(max(-1.0, low), value), max(min(1.0, high), value)
    metadata = {"standard_error": math.sqrt(robust)}
    if sizes.clustered:
        metadata |= {"design_effect": effect, "clusters": groups}
    return Estimate(value, low, high, n, of, method, confidence, metadata=metadata)
