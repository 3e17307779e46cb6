"""How often the 95 % intervals of karat.stats hold the truth: exactly where it can be summed, else by simulation.

`python bench/coverage.py` prints the whole; the tests run a part of it with fixed seeds.
"""

# ruff: noqa: E402 - this folder leaves the path before anything else is imported

from __future__ import annotations

import itertools
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

# This folder holds a statistics.py, which must not hide the standard library's.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

import numpy as np

from karat.stats import (
    MeanState,
    bradley_terry,
    classification_metrics,
    cohen_kappa,
    mean_interval,
    paired,
    ppi,
    wilson,
)
from karat.stats._distributions import critical
from karat.stats._paired import tango_limits
from karat.stats._ratings import PairTable, expected_points, strengths_of

Draw = Callable[[np.random.Generator, int], np.ndarray]
Sizes = Callable[[np.random.Generator, int], np.ndarray]

SCORES: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "uniform": lambda rng, n: rng.uniform(-1.0, 1.0, size=n),
}
SIZES: dict[str, Sizes] = {
    "5 each": lambda rng, g: np.full(g, 5),
    "1 to 10": lambda rng, g: rng.integers(1, 11, g),
    "geometric": lambda rng, g: rng.geometric(0.2, g),
    "lognormal": lambda rng, g: np.ceil(rng.lognormal(1.0, 1.0, g)).astype(int),
}


def binomial(n: int, p: np.ndarray) -> np.ndarray:
    """The binomial probabilities, one row for each count, one column for each p."""
    k = np.arange(n + 1)
    logs = np.array([math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in k])
    return np.exp(logs[:, None] + k[:, None] * np.log(p) + (n - k)[:, None] * np.log1p(-p))


def wilson_coverage(n: int, p: np.ndarray) -> np.ndarray:
    """The exact coverage of Wilson's interval for each p."""
    limits = [wilson(k, n) for k in range(n + 1)]
    low, high = np.array([e.low for e in limits]), np.array([e.high for e in limits])
    inside = (low[:, None] <= p) & (p <= high[:, None])
    return (binomial(n, p) * inside).sum(axis=0)


def wilson_range(n: int, least: float = 0.05, most: float = 0.95) -> tuple[float, float, float]:
    """The average coverage over p, the least one, and the p where it is.

    Coverage jumps where p passes a limit, so the least is looked for on both sides of every limit.
    """
    grid = np.linspace(least, most, 1801)
    limits = [wilson(k, n) for k in range(n + 1)]
    jumps = np.array([edge + side for e in limits for edge in (e.low, e.high) for side in (-1e-9, 1e-9)])
    every = np.concatenate([grid, jumps[(jumps >= least) & (jumps <= most)]])
    found = wilson_coverage(n, every)
    at = int(found.argmin())
    return float(found[: len(grid)].mean()), float(found[at]), float(every[at])


def tango_coverage(n: int, shares: list[tuple[float, float]]) -> list[float]:
    """The exact coverage of Tango's interval for pairs with P(only the first), P(only the second)."""
    z = critical(0.95)
    cells = [(b, c) for b in range(n + 1) for c in range(n + 1 - b)]
    limits = np.array([tango_limits(b, c, n, z) for b, c in cells])
    b, c = np.array(cells).T
    factorial = np.array([math.lgamma(i + 1) for i in range(n + 1)])
    logs = factorial[n] - factorial[b] - factorial[c] - factorial[n - b - c]
    out = []
    for first, second in shares:
        chance = np.exp(
            logs + b * math.log(first) + c * math.log(second) + (n - b - c) * math.log1p(-first - second)
        )
        inside = (limits[:, 0] <= second - first) & (second - first <= limits[:, 1])
        out.append(float((chance * inside).sum()))
    return out


def mean_coverage(draw: Draw, n: int, repeats: int, seed: int) -> float:
    """How often the t interval of n scores of mean 0 holds 0."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(repeats):
        estimate = mean_interval(draw(rng, n).tolist())
        hits += estimate.low <= 0.0 <= estimate.high
    return hits / repeats


def clustered_scores(
    rng: np.random.Generator, draw: Draw, sizes: np.ndarray, correlation: float
) -> tuple[list[float], list[int]]:
    """Scores of mean 0 with a part that all of a cluster share, and their clusters."""
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    shared = draw(rng, len(sizes))[clusters]
    scores = math.sqrt(correlation) * shared + math.sqrt(1.0 - correlation) * draw(rng, len(clusters))
    return scores.tolist(), clusters.tolist()


def clustered_mean_coverage(
    draw: Draw, sizes: Sizes, groups: int, correlation: float, repeats: int, seed: int
) -> float:
    """How often the clustered t interval holds the mean."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(repeats):
        scores, clusters = clustered_scores(rng, draw, sizes(rng, groups), correlation)
        estimate = mean_interval(scores, clusters)
        hits += estimate.low <= 0.0 <= estimate.high
    return hits / repeats


def paired_coverage(draw: Draw, n: int, repeats: int, seed: int, sizes: Sizes | None = None) -> float:
    """How often the interval of a paired difference holds it; clustered where sizes are given."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(repeats):
        counts = np.ones(n, dtype=int) if sizes is None else sizes(rng, n)
        change, clusters = clustered_scores(rng, draw, counts, 0.0 if sizes is None else 0.4)
        base = draw(rng, len(change))
        result = paired(base.tolist(), (base + 0.3 + np.array(change)).tolist(), clusters, binary=False)
        hits += result.difference.low <= 0.3 <= result.difference.high
    return hits / repeats


def clustered_proportion_coverage(
    p: float, sizes: Sizes, groups: int, correlation: float, repeats: int, seed: int
) -> float:
    """How often the clustered Wilson interval holds p, with beta-distributed shares of the clusters."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(repeats):
        state = MeanState()
        if correlation:
            spread = (1.0 - correlation) / correlation
            shares = rng.beta(p * spread, (1.0 - p) * spread, groups)
        else:
            shares = np.full(groups, p)
        for size, share in zip(sizes(rng, groups), shares, strict=True):
            state.add((rng.random(size) < share).astype(int).tolist())
        estimate = state.proportion()
        hits += estimate.low <= p <= estimate.high
    return hits / repeats


def bradley_terry_coverage(
    runs: int,
    examples: int,
    correlation: float,
    ties: float,
    repeats: int,
    seed: int,
    every_pair: bool = True,
) -> np.ndarray:
    """How often each rating's interval holds the truth when an example favours some runs in all its comparisons.

    Each example adds to each run's strength a normal part with the standard deviation `correlation`. The
    truth is the strength that the model gives for the expected outcomes over all examples.
    """
    rng = np.random.default_rng(seed)
    strength = np.linspace(-1.0, 1.0, runs)
    pairs = np.array(list(itertools.combinations(range(runs), 2)))
    truth = _population_strengths(strength, correlation, ties)
    hits = np.zeros(runs)
    for _ in range(repeats):
        if every_pair:
            example = np.repeat(np.arange(examples), len(pairs))
            pair = np.tile(pairs, (examples, 1))
        else:
            example = np.repeat(np.arange(examples), rng.integers(1, 2 * len(pairs), examples))
            pair = pairs[rng.integers(0, len(pairs), len(example))]
        turned = rng.random(len(example)) < 0.5
        first, second = np.where(turned, pair[:, 1], pair[:, 0]), np.where(turned, pair[:, 0], pair[:, 1])
        felt = strength + correlation * rng.normal(size=(examples, runs))
        win = rng.random(len(example)) < expected_points(felt[example, first] - felt[example, second], 0.0)[0]
        outcome = np.where(rng.random(len(example)) < ties, 0.5, win * 1.0)
        ranking = bradley_terry(
            first=first, second=second, outcomes=outcome, clusters=example, names=range(runs), elo_scale=False
        )
        for run in ranking.runs:
            hits[run.name] += run.rating.low <= truth[run.name] <= run.rating.high
    return hits / repeats


def _population_strengths(strength: np.ndarray, correlation: float, ties: float) -> np.ndarray:
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    gap = strength[:, None] - strength[None, :]
    points = expected_points(gap[..., None] + math.sqrt(2.0) * correlation * nodes, 0.0)[0] @ (
        weights / weights.sum()
    )
    games = np.triu(np.ones_like(gap), 1)
    expected = games * ((1.0 - ties) * points + 0.5 * ties)
    return strengths_of(PairTable(games=games, points=expected, squares=games * 0, ties=games * 0))


def ppi_coverage(labelled: int, noise: float, repeats: int, seed: int) -> float:
    """How often the prediction-powered interval holds the mean, with a judge that is off by noise and 0.3."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(repeats):
        truth = rng.normal(size=labelled + 500)
        judged = truth + 0.3 + noise * rng.normal(size=len(truth))
        estimate = ppi(truth[:labelled], judged[:labelled], judged[labelled:])
        hits += estimate.low <= 0.0 <= estimate.high
    return hits / repeats


def macro_f1_coverage(n: int, right: float, repeats: int, seed: int) -> float:
    """How often the interval of the macro F1 over three classes (shares 0.6, 0.3, 0.1) holds it."""
    rng = np.random.default_rng(seed)
    shares = np.array([0.6, 0.3, 0.1])
    table = shares[:, None] * ((1.0 - right) / 2.0 + np.eye(3) * (right - (1.0 - right) / 2.0))
    f1 = (2.0 * np.diag(table) / (table.sum(axis=0) + table.sum(axis=1))).mean()
    hits = 0
    for _ in range(repeats):
        counts = rng.multinomial(n, table.ravel()).reshape(3, 3)
        found = classification_metrics(list("abc"), counts.tolist()).macro.f1
        hits += found.low <= f1 <= found.high
    return hits / repeats


def kappa_coverage(n: int, agree: float, repeats: int, seed: int) -> float:
    """How often kappa's interval holds it: two raters, three even classes, the second copies with a chance."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(repeats):
        first = rng.integers(0, 3, n)
        second = np.where(rng.random(n) < agree, first, rng.integers(0, 3, n))
        estimate = cohen_kappa(first.tolist(), second.tolist())
        hits += estimate.value is not None and estimate.low <= agree <= estimate.high
    return hits / repeats


def _proportions() -> list[bool]:
    print("\nproportions, Wilson, exact, 0.05 ≤ p ≤ 0.95 (wanted: average 94–96.5 %, least 91 %)")
    ns = [*range(20, 201), 250, 300, 400, 500, 700, 1000]
    rows = {n: wilson_range(n) for n in ns}
    for n in (20, 25, 30, 50, 100, 200, 500, 1000):
        average, least, at = rows[n]
        print(f"  n {n:5d}   average {average:.4f}   least {least:.4f} at p {at:.4f}")
    averages, least = [row[0] for row in rows.values()], min(rows.items(), key=lambda item: item[1][1])
    print(f"  all {len(ns)} n from 20: average {min(averages):.4f} to {max(averages):.4f}, "
          f"least {least[1][1]:.4f} at n {least[0]}, p {least[1][2]:.4f}")  # fmt: skip
    print("  outside that range, for information")
    outside = np.array([0.001, 0.005, 0.01, 0.02, 0.03, 0.04])
    for n in (5, 10, 20, 50, 100, 1000):
        cells = "  ".join(
            f"p {p}: {c:.3f}" for p, c in zip(outside, wilson_coverage(n, outside), strict=True)
        )
        print(f"  n {n:5d}   {cells}")
    for n in (5, 10, 15):
        average, lowest, at = wilson_range(n)
        print(f"  n {n:5d}   0.05 ≤ p ≤ 0.95: average {average:.4f}, least {lowest:.4f} at p {at:.4f}")
    return [0.94 <= a <= 0.965 for a in averages] + [row[1] >= 0.91 for row in rows.values()]


def _simulated(repeats: int) -> list[bool]:
    held = []

    def show(what: str, found: float) -> None:
        held.append(0.93 <= found <= 0.97)
        print(f"  {what:52s} {found:.4f}{'' if held[-1] else '   MISSED'}")

    print(f"\nmeans, {repeats} repeats each (wanted: 93–97 %)")
    for (name, draw), n in itertools.product(SCORES.items(), (20, 50, 200)):
        show(f"{name}, n {n}", mean_coverage(draw, n, repeats, seed=n))
    for (name, draw), (kind, sizes), rho in itertools.product(SCORES.items(), SIZES.items(), (0.0, 0.3, 1.0)):
        found = clustered_mean_coverage(draw, sizes, 20, rho, repeats, seed=1)
        show(f"{name}, 20 clusters of {kind}, correlation {rho}", found)
    print(f"\npaired differences, {repeats} repeats each (wanted: 93–97 %)")
    for name, draw in SCORES.items():
        show(f"{name}, n 20", paired_coverage(draw, 20, repeats, seed=2))
        show(f"{name}, n 100", paired_coverage(draw, 100, repeats // 2, seed=2))
        for kind in ("1 to 10", "geometric"):
            found = paired_coverage(draw, 20, repeats // 2, seed=3, sizes=SIZES[kind])
            show(f"{name}, 20 clusters of {kind}", found)
    fewer = repeats // 2
    print(
        f"\nBradley–Terry, correlated within examples, {fewer} repeats each (wanted: 93–97 %, mean of the runs)"
    )
    designs = [(3, 20, 1.0, 0.0), (4, 30, 1.0, 0.1), (5, 50, 1.5, 0.1), (8, 100, 2.0, 0.2), (2, 50, 0.0, 0.0)]
    for (runs, examples, correlation, ties), every in itertools.product(designs, (True, False)):
        found = bradley_terry_coverage(runs, examples, correlation, ties, fewer, 4, every)
        design = "all pairs" if every else "random pairs"
        show(
            f"{runs} runs, {examples} examples, sd {correlation}, ties {ties}, {design}", float(found.mean())
        )
        print(f"  {'':4s}each: {' '.join(f'{c:.3f}' for c in found)}")
    return held


def _for_information(repeats: int) -> None:
    print("\npaired proportions, Tango, exact, for information")
    shares = [(b, c) for b in (0.02, 0.05, 0.1, 0.2, 0.3) for c in (0.02, 0.05, 0.1, 0.2, 0.3)]
    for n in (20, 50, 100):
        found = tango_coverage(n, shares)
        least = min(zip(found, shares, strict=True))
        print(f"  n {n:4d}   average {np.mean(found):.4f}   least {least[0]:.4f} at {least[1]}")
    print(f"\nclustered proportions, {repeats} repeats each, for information")
    for p, (kind, sizes), rho in itertools.product((0.1, 0.5, 0.9), list(SIZES.items())[:3], (0.0, 0.3)):
        found = clustered_proportion_coverage(p, sizes, 20, rho, repeats, seed=5)
        print(f"  p {p}, 20 clusters of {kind}, correlation {rho}: {found:.4f}")
    print(f"\nothers, {repeats} repeats each, for information")
    for labelled, noise in ((20, 0.5), (50, 0.5), (50, 3.0)):
        found = ppi_coverage(labelled, noise, repeats, seed=6)
        print(f"  ppi, {labelled} labels, judge noise {noise}: {found:.4f}")
    for n, right in ((50, 0.8), (200, 0.8), (200, 0.95)):
        print(f"  macro F1, n {n}, {right} right: {macro_f1_coverage(n, right, repeats, seed=7):.4f}")
    for n, agree in ((50, 0.6), (200, 0.6), (50, 0.9)):
        print(f"  kappa {agree}, n {n}: {kappa_coverage(n, agree, repeats, seed=8):.4f}")


def main() -> int:
    """Prints the tables; 1 when a figure misses what is wanted of it."""
    started = time.perf_counter()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}"
    )
    held = _proportions() + _simulated(4000)
    _for_information(1000)
    missed = held.count(False)
    print(f"\n{len(held)} wanted, {missed} missed, {time.perf_counter() - started:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
