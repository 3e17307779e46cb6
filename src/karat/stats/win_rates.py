"""The share of points each run won in its comparisons, with Wilson's interval, clustered by example."""

from __future__ import annotations

from typing import Any

import numpy as np

from karat.records import Estimate
from karat.stats.clusters import Sizes
from karat.stats.comparisons import Comparisons, PairTable
from karat.stats.distributions import critical
from karat.stats.proportions import wilson_limits


def win_rates(data: Comparisons, table: PairTable, confidence: float) -> list[Estimate]:
    """For each run: points per comparison, a tie counting ½.

    The variance is that of the points, in clusters where there are any; Wilson's interval is taken on the
    effective number rate·(1 − rate)/variance, at least that of clusters that are one item each.
    """
    games = (table.games + table.games.T).sum(axis=1)
    points = table.points.sum(axis=1) + (table.games - table.points).sum(axis=0)
    squares = table.squares.sum(axis=1) + (table.games - 2.0 * table.points + table.squares).sum(axis=0)
    powers, moments = _cluster_moments(data) if data.clusters is not None else (None, None)
    found = []
    for i in range(len(games)):
        n = round(float(games[i]))
        if not n:
            found.append(
                Estimate(None, method="wilson", confidence=confidence, metadata={"reason": "no games"})
            )
            continue
        rate = float(points[i]) / n
        plain = max(0.0, float(squares[i]) / n - rate * rate) / max(1, n - 1)
        if powers is None or moments is None:
            effective = max(float(n), rate * (1.0 - rate) / plain) if plain > 1e-15 else float(n)
            low, high = wilson_limits(rate, effective, critical(confidence))
            found.append(Estimate(rate, low, high, n, n, "wilson", confidence))
        else:
            sizes = Sizes(*(round(float(power[i])) for power in powers))
            residual = float(moments[0][i] - 2.0 * rate * moments[1][i]) + rate * rate * sizes.squares
            found.append(_clustered(rate, n, plain, residual, sizes, confidence))
    return found


def _clustered(
    rate: float, n: int, plain: float, residual: float, sizes: Sizes, confidence: float
) -> Estimate:
    method = "wilson, clustered"
    if sizes.clusters < 2:
        low, high = wilson_limits(rate, 1.0, critical(confidence))
        return Estimate(rate, low, high, n, n, method, confidence, metadata={"clusters": sizes.clusters})
    if plain > 1e-15:
        robust = max(0.0, residual) * sizes.clusters / (sizes.clusters - 1) / (n * n)
        effect = max(1.0, robust / plain)
        effective, df = rate * (1.0 - rate) / (plain * effect), sizes.degrees(effect)
    else:
        effective, df = sizes.fully_correlated(), float("inf")
        effect = n / effective
    low, high = wilson_limits(rate, effective, critical(confidence, df))
    metadata = {"design_effect": effect, "clusters": sizes.clusters}
    return Estimate(rate, low, high, n, n, method, confidence, metadata=metadata)


def _cluster_moments(data: Comparisons) -> tuple[list[Any], list[Any]]:
    """For each run: the power sums of its clusters' sizes, and Σ points² and Σ points·size over clusters."""
    k = len(data.names)
    powers = [np.zeros(k) for _ in range(6)]
    moments = [np.zeros(k) for _ in range(2)]
    for rows, cluster, count in data.by_cluster(k):
        at, size = cluster * k, count * k
        left, right, outcome = at + data.first[rows], at + data.second[rows], data.outcomes[rows]
        games = np.bincount(left, minlength=size) + np.bincount(right, minlength=size)
        points = np.bincount(left, outcome, minlength=size) + np.bincount(
            right, 1.0 - outcome, minlength=size
        )
        played = games.reshape(count, k).astype(np.float64)
        won = points.reshape(count, k)
        powers[0] += (played > 0).sum(axis=0)
        product = np.ones_like(played)
        for power in range(1, 6):
            product *= played
            powers[power] += product.sum(axis=0)
        moments[0] += (won * won).sum(axis=0)
        moments[1] += (won * played).sum(axis=0)
    return powers, moments
