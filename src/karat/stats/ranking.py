"""Classic Elo ratings. They depend on the order of the comparisons; `bradley_terry` does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from karat.records import Estimate
from karat.stats.validation import StatisticsError, check_confidence, count, finite

Outcome = tuple[Hashable, Hashable, float]


def falling_k(n: int) -> float:
    """How far one result moves a player that has been in `n` comparisons: 10·e^(−0.0005·n) + 10."""
    return 10.0 * math.exp(-0.0005 * n) + 10.0


def elo(
    comparisons: Iterable[Outcome],
    start: float = 1500.0,
    scale: float = 400.0,
    k: Callable[[int], float] | float = falling_k,
    *,
    shuffles: int = 0,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[Any, Estimate]:
    """Elo ratings from `(first, second, outcome)`, outcome 1, 0.5 or 0 for the first (Elo 1978).

    After each comparison a player moves by K·(outcome − expected), expected = 1 / (1 + 10^((other −
    own)/scale)), with `k` of the number of comparisons that player had before. With `shuffles` the ratings
    are averaged over that many seeded orders, and the interval says how much the order alone matters: it
    holds that share of the orders, and is no interval for the strength. One win gives 1510 and 1490. Best
    rating first.
    """
    confidence = check_confidence(confidence)
    shuffles = count(shuffles, "shuffles")
    names, first, second, outcomes = _encoded(comparisons)
    played = [0] * len(names)
    for a, b in zip(first, second, strict=True):
        played[a] += 1
        played[b] += 1
    steps = [k(n) if callable(k) else float(k) for n in range(max(played, default=0))]
    if shuffles:
        estimates = _shuffled(
            len(names), first, second, outcomes, steps, (start, scale), shuffles, seed, confidence, played
        )
    else:
        ratings = _in_order(len(names), first, second, outcomes, steps, start, scale)
        estimates = [
            Estimate(r, n=n, of=n, method="elo", confidence=confidence)
            for r, n in zip(ratings, played, strict=True)
        ]
    order = sorted(range(len(names)), key=lambda i: -(estimates[i].value or 0.0))
    return {names[i]: estimates[i] for i in order}


def _encoded(comparisons: Iterable[Outcome]) -> tuple[list[Hashable], list[int], list[int], list[float]]:
    index: dict[Hashable, int] = {}
    first, second, outcomes = [], [], []
    for position, (a, b, outcome) in enumerate(comparisons):
        score = finite(outcome, f"outcome of comparison {position}")
        if not 0.0 <= score <= 1.0:
            raise StatisticsError(
                f"outcome of comparison {position} is {score}: it is 1, 0.5 or 0 for the first"
            )
        if a == b:
            raise StatisticsError(
                f"comparison {position} has {a!r} on both sides: compare two different runs"
            )
        first.append(index.setdefault(a, len(index)))
        second.append(index.setdefault(b, len(index)))
        outcomes.append(score)
    return list(index), first, second, outcomes


def _in_order(
    players: int,
    first: list[int],
    second: list[int],
    outcomes: list[float],
    steps: list[float],
    start: float,
    scale: float,
) -> list[float]:
    ratings, played = [float(start)] * players, [0] * players
    for a, b, outcome in zip(first, second, outcomes, strict=True):
        expected = _expected(ratings[b] - ratings[a], scale)
        surprise = outcome - expected
        ratings[a] += steps[played[a]] * surprise
        ratings[b] -= steps[played[b]] * surprise
        played[a] += 1
        played[b] += 1
    return ratings


def _expected(gap: float, scale: float) -> float:
    exponent = gap / scale
    return 0.0 if exponent > 300.0 else 1.0 / (1.0 + 10.0**exponent)


def _shuffled(
    players: int,
    first: list[int],
    second: list[int],
    outcomes: list[float],
    steps: list[float],
    scales: tuple[float, float],
    shuffles: int,
    seed: int,
    confidence: float,
    played: list[int],
) -> list[Estimate]:
    """All orders at once: one row of ratings for each, one comparison of each order at a time."""
    import numpy as np

    start, scale = scales
    rng = np.random.default_rng(seed)
    left, right, scores = np.array(first), np.array(second), np.array(outcomes)
    k = np.array(steps)
    orders = np.stack([rng.permutation(len(left)) for _ in range(shuffles)], axis=1)
    rows = np.arange(shuffles)
    ratings = np.full((shuffles, players), float(start))
    so_far = np.zeros((shuffles, players), dtype=np.int64)
    for picks in orders:
        a, b = left[picks], right[picks]
        gap = np.clip((ratings[rows, b] - ratings[rows, a]) / scale, -300.0, 300.0)
        surprise = scores[picks] - 1.0 / (1.0 + 10.0**gap)
        ratings[rows, a] += k[so_far[rows, a]] * surprise
        ratings[rows, b] -= k[so_far[rows, b]] * surprise
        so_far[rows, a] += 1
        so_far[rows, b] += 1
    tails = np.quantile(ratings, (0.5 * (1.0 - confidence), 0.5 * (1.0 + confidence)), axis=0)
    method = f"elo, mean of {shuffles} orders"
    metadata = {"shuffles": shuffles, "seed": seed, "interval": "over orders"}
    return [
        Estimate(
            float(ratings[:, i].mean()),
            float(tails[0, i]),
            float(tails[1, i]),
            n,
            n,
            method,
            confidence,
            metadata=metadata,
        )
        for i, n in enumerate(played)
    ]
