"""How often the 95 % intervals of karat.stats hold the truth, over designs drawn at random.

`python bench/coverage.py` draws designs for each family, simulates each and prints the least and the mean coverage;
`--seed` draws other designs. Proportions and paired proportions are summed exactly instead. A limit that is None is
no limit. The tests run a part of it with fixed seeds.
"""

# ruff: noqa: E402 - this folder leaves the path before anything else is imported

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# This folder holds a statistics.py, which must not hide the standard library's.
_HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]

import numpy as np

import karat
from karat.aggregators import Group, Quantiles
from karat.aggregators._pass_k import pass_at_k, pass_hat_k
from karat.analysis.comparison import Limit, compare, judge
from karat.analysis.ranking import rank
from karat.records import FORMAT, Estimate, ItemResult, Ok, Result
from karat.stats import (
    ConfusionState,
    MeanState,
    agreement_between,
    bradley_terry,
    classification_metrics,
    cohen_kappa,
    fleiss_kappa,
    krippendorff_alpha,
    mean_interval,
    paired,
    ppi,
    proportion,
    share,
    wilson,
)
from karat.stats._classification import metrics_of
from karat.stats._distributions import critical, normal_cdf, normal_quantile
from karat.stats._paired import paired_arrays
from karat.stats._ratings import PairTable, strengths_of
from karat.tasks import FunctionTask

WANTED = 0.93
Rng = np.random.Generator


class Design(NamedTuple):
    """One design: what it is, and a trial that gives estimates with their true values."""

    name: str
    trial: Callable[[Rng], list[tuple[Estimate, float]]]


class Found(NamedTuple):
    """What a simulation found: the least coverage of the estimates of a design, and how many had no limit at all."""

    design: str
    coverage: float
    without: float


def holds(estimate: Estimate, truth: float) -> bool:
    """Whether an interval holds the truth; rounding does not matter."""
    above = estimate.low is None or estimate.low <= truth + 1e-9
    return above and (estimate.high is None or estimate.high >= truth - 1e-9)


def simulate(design: Design, repeats: int, rng: Rng) -> Found:
    """Repeat a design. Estimates without a value or without both limits make no claim and are counted apart."""
    hits: dict[int, list[bool]] = {}
    without = total = 0
    for _ in range(repeats):
        for place, (estimate, truth) in enumerate(design.trial(rng)):
            total += 1
            if estimate.value is None or (estimate.low is None and estimate.high is None):
                without += 1
            else:
                hits.setdefault(place, []).append(holds(estimate, truth))
    least = min((float(np.mean(each)) for each in hits.values()), default=math.nan)
    return Found(design.name, least, without / max(1, total))


# Means and paired differences --------------------------------------------------------------------------------


def bounded_scores(rng: Rng) -> Design:
    """Scores in 0..1, skewed: beta, many ones, noise with rare zeros, rare ones, few grades, narrow logistic-normal."""
    n = int(rng.choice([15, 20, 30, 50, 80, 120, 150, 180, 199, 200, 300, 500]))
    kind = int(rng.integers(6))
    if kind == 0:
        a, b = rng.uniform(0.05, 2.0), rng.uniform(0.5, 10.0)
        draw, truth, name = (lambda r: r.beta(a, b, n)), a / (a + b), f"beta({a:.2f}, {b:.1f})"
    elif kind == 1:
        share, a, b = rng.uniform(0.5, 0.99), rng.uniform(0.3, 3.0), rng.uniform(0.3, 3.0)
        truth, name = share + (1 - share) * a / (a + b), f"{share:.2f} ones, else beta"
        draw = lambda r: np.where(r.random(n) < share, 1.0, r.beta(a, b, n))  # noqa: E731 - one of five
    elif kind == 2:
        share, centre = 10 ** rng.uniform(-2.5, -0.7), rng.uniform(0.6, 0.85)
        truth, name = (1 - share) * centre, f"{centre:.2f} ± 0.03, {share:.3f} zeros"
        draw = lambda r: np.where(r.random(n) < share, 0.0, r.normal(centre, 0.03, n))  # noqa: E731
    elif kind == 3:
        share = rng.uniform(0.005, 0.5)
        draw, truth, name = (lambda r: (r.random(n) < share) * 1.0), share, f"{share:.3f} ones, else zeros"
    elif kind == 4:
        centre, spread = rng.uniform(-4.0, 4.0), rng.uniform(0.3, 2.0)
        draw = lambda r, size=n: 1.0 / (1.0 + np.exp(-r.normal(centre, spread, size)))  # noqa: E731
        truth = float(draw(np.random.default_rng(0), 1_000_000).mean())
        name = f"logistic-normal({centre:.1f}, {spread:.1f})"
    else:
        chances = rng.dirichlet(np.full(5, 0.4))
        grades = np.arange(5) / 4
        draw, truth, name = (lambda r: r.choice(grades, n, p=chances)), float(chances @ grades), "five grades"
    return Design(f"n {n}, {name}", lambda r: [(mean_interval(draw(r).tolist()), truth)])


def unbounded_scores(rng: Rng) -> Design:
    """Scores without bounds that are not skewed: t."""
    n = int(rng.choice([15, 30, 100]))
    uniform = bool(rng.integers(2))
    draw = (lambda r: r.uniform(-3, 3, n)) if uniform else (lambda r: r.normal(size=n))
    name = f"n {n}, {'uniform' if uniform else 'normal'}"
    return Design(name, lambda r: [(mean_interval(draw(r).tolist(), bounds=None), 0.0)])


def tied_differences(rng: Rng) -> Design:
    """Graded pairs of which 70 to 98 % tie; a part of the others are large losses, the rest small gains."""
    n = int(rng.choice([20, 30, 50, 100, 200, 400]))
    ties = rng.uniform(0.7, 0.98)
    losses = rng.uniform(0.05, 1.0) * (1 - ties)
    large, small = rng.uniform(0.5, 1.0), rng.uniform(0.05, 0.5)
    truth = (1 - ties - losses) * small - losses * large

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        kind = r.choice(3, n, p=[ties, losses, 1 - ties - losses])
        first = np.where(kind == 1, large, np.where(kind == 2, 0.4, 0.5))
        second = np.where(kind == 1, 0.0, np.where(kind == 2, 0.4 + small, 0.5))
        return [(paired(first.tolist(), second.tolist()).difference, truth)]

    return Design(f"n {n}, {ties:.2f} ties, {losses:.3f} lose {large:.2f}, others gain {small:.2f}", trial)


def tied_binary_differences(rng: Rng) -> Design:
    """Pairs of 0 and 1 of which 70 to 98 % tie."""
    n = int(rng.choice([20, 30, 50, 100, 300]))
    ties = rng.uniform(0.7, 0.98)
    losses = rng.uniform(0.0, 1.0) * (1 - ties)
    gains = 1 - ties - losses

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        kind = r.choice(3, n, p=[ties, losses, gains])
        first, second = (kind != 2) * 1, (kind != 1) * 1
        return [(paired(first.tolist(), second.tolist()).difference, gains - losses)]

    return Design(f"n {n}, {losses:.3f} lost, {gains:.3f} won", trial)


# Clusters ----------------------------------------------------------------------------------------------------


def _sizes(rng: Rng, clusters: int) -> Callable[[Rng], np.ndarray]:
    kind, same = int(rng.integers(4)), int(rng.integers(2, 21))
    return [
        lambda r: r.integers(1, 21, clusters),
        lambda r: np.minimum(r.geometric(0.2, clusters), 20),
        lambda r: np.full(clusters, same),
        lambda r: np.where(r.random(clusters) < 0.2, 20, r.integers(1, 4, clusters)),
    ][kind]


def clustered_shares(rng: Rng) -> Design:
    """Shares in 10 to 40 clusters of 1 to 20 items, with a correlation within clusters up to 0.7."""
    clusters = int(rng.choice([10, 12, 15, 20, 40]))
    truth = float(rng.choice([rng.uniform(0.02, 0.98), rng.uniform(0.9, 0.98)]))
    correlation = rng.uniform(0.0, 0.7)
    sizes = _sizes(rng, clusters)
    spread = (1 - correlation) / max(correlation, 1e-3)

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        state = MeanState()
        shares = r.beta(truth * spread, (1 - truth) * spread, clusters)
        for size, chance in zip(sizes(r), shares, strict=True):
            state.add((r.random(size) < chance).astype(float).tolist())
        return [(state.proportion(), truth)]

    return Design(f"{clusters} clusters, {truth:.2f}, correlation {correlation:.2f}", trial)


def failing_clusters(rng: Rng) -> Design:
    """Shares and graded means in 12 to 60 clusters of 1 to 20 items, some of which score 0 as a whole."""
    clusters, failing = int(rng.choice([12, 20, 30, 60])), rng.uniform(0.05, 0.3)
    sizes, graded = _sizes(rng, clusters), bool(rng.integers(2))
    a, b = rng.uniform(0.8, 4.0), rng.uniform(0.2, 2.0)
    truth = (1 - failing) * a / (a + b)

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        state = MeanState()
        for size in sizes(r):
            scores = r.beta(a, b, size) if graded else (r.random(size) < a / (a + b)).astype(float)
            state.add((scores * (r.random() >= failing)).tolist())
        return [(state.estimate(bounds=(0.0, 1.0)), truth)]

    what = "graded" if graded else "binary"
    return Design(f"{clusters} clusters, {failing:.2f} of them fail, mean {truth:.2f}, {what}", trial)


def informative_sizes(rng: Rng) -> Design:
    """Shares in 10 to 60 clusters whose size goes with their score: smoothly, or because a part of them is large."""
    clusters, slope = int(rng.choice([10, 12, 15, 20, 30, 60])), rng.uniform(-1.5, 1.5)
    kind, rare, chance = int(rng.integers(3)), rng.uniform(0.2, 0.5), rng.uniform(0.15, 0.5)
    means = rng.uniform(0.2, 0.95, 2)

    def draw(r: Rng, count: int) -> tuple[np.ndarray, np.ndarray]:
        if kind == 2:
            large = r.random(count) < rare
            return np.where(large, 20, r.integers(1, 4, count)), means[large.astype(int)]
        sizes = r.integers(1, 21, count) if kind == 0 else np.minimum(r.geometric(chance, count), 20)
        between = r.normal(0.0, float(kind), count)
        return sizes, 1.0 / (1.0 + np.exp(-(1.0 + slope * (np.log(sizes) - 1.0) + between)))

    sizes, shares = draw(np.random.default_rng(0), 200_000)
    truth = float(sizes @ shares / sizes.sum())

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        sizes, shares = draw(r, clusters)
        owner = np.repeat(np.arange(clusters), sizes)
        return [(proportion((r.random(len(owner)) < shares[owner]).tolist(), owner.tolist()), truth)]

    what = ("1 to 20 items", "geometric", f"{rare:.2f} of 20")[kind]
    return Design(f"{clusters} clusters, {what}, slope {slope:.2f}, mean {truth:.2f}", trial)


def unseen_clusters(seed: int, designs: int, repeats: int) -> list[tuple[str, float, float]]:
    """How often the interval covers where few clusters are large and score otherwise, and how often it misses silently.

    Nothing in a sample without a large cluster says that there are any, so no interval covers there: the estimate has
    to say that its clusters are few.
    """
    rng = np.random.default_rng([seed, 103])
    found = []
    for _ in range(designs):
        clusters, large = int(rng.choice([10, 12, 15, 20, 25, 30, 40])), int(rng.choice([10, 20]))
        rare, (small_mean, large_mean) = (
            rng.uniform(0.1, 0.2),
            rng.permutation([rng.uniform(0.7, 0.95), rng.uniform(0.2, 0.6)]),
        )
        small = int(rng.choice([1, 1, 3]))
        weights = np.array([(1 - rare) * (1 + small) / 2, rare * large])
        truth = float(weights @ [small_mean, large_mean] / weights.sum())
        covered = silent = 0
        for _ in range(repeats):
            is_large = rng.random(clusters) < rare
            sizes = np.where(is_large, large, rng.integers(1, small + 1, clusters))
            owner = np.repeat(np.arange(clusters), sizes)
            passes = rng.random(len(owner)) < np.where(is_large, large_mean, small_mean)[owner]
            estimate = proportion(passes.tolist(), owner.tolist())
            hit = holds(estimate, truth)
            covered += hit
            silent += not hit and "note" not in estimate.metadata
        name = f"{clusters} clusters, {rare:.2f} of {large}, others up to {small}, {large_mean:.2f}, {small_mean:.2f}"
        found.append((name, covered / repeats, silent / repeats))
    return found


def clustered_differences(rng: Rng) -> Design:
    """Pairs in 10 to 60 clusters of 1 to 20 items: binary scores, clusters lost as a whole, ties with rare losses."""
    clusters, correlation = int(rng.choice([10, 15, 20, 30, 60])), rng.uniform(0.0, 0.7)
    sizes, kind = _sizes(rng, clusters), int(rng.integers(3))
    lost, within = rng.uniform(0.02, 0.3), rng.uniform(0.3, 1.0)
    shift, large = rng.uniform(-0.6, 0.6), rng.uniform(0.4, 1.0)
    spread = (1 - correlation) / max(correlation, 1e-3)

    def pairs(r: Rng, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        owner = np.repeat(np.arange(len(sizes)), sizes)
        n = len(owner)
        if kind == 0:
            shared = math.sqrt(correlation) * r.normal(size=(2, len(sizes)))[:, owner]
            first, other = shared + math.sqrt(1 - correlation) * r.normal(size=(2, n))
            return owner, (first > -0.5) * 1.0, (0.7 * first + 0.71 * other + shift > -0.5) * 1.0
        if kind == 1:
            bad = (r.random(len(sizes)) < lost)[owner] & (r.random(n) < within)
            return owner, np.ones(n), np.where(bad, 0.0, 1.0)
        share = r.beta(lost * spread, (1 - lost) * spread, len(sizes))[owner]
        changed, worse = r.random(n) < share, r.random(n) < within
        first = np.where(changed & worse, large, 0.4)
        return owner, first, np.where(changed, np.where(worse, 0.0, 0.6), first)

    many = np.random.default_rng(0)
    _, first, second = pairs(many, np.concatenate([sizes(many) for _ in range(60_000 // clusters)]))
    truth = float((second - first).mean())

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        owner, first, second = pairs(r, sizes(r))
        return [(paired_arrays(first, second, owner).difference, truth)]

    what = ("binary", f"{lost:.2f} of clusters lost", f"ties, {lost:.2f} change")[kind]
    return Design(f"{clusters} clusters, correlation {correlation:.2f}, {what}, {truth:+.3f}", trial)


def clustered_agreement(rng: Rng) -> Design:
    """Percent agreement, kappa and alpha of two raters over items in clusters."""
    clusters, size, k = int(rng.choice([15, 25, 40])), int(rng.integers(2, 8)), int(rng.choice([2, 3]))
    shares, same = rng.dirichlet(np.full(k, 2.0)), rng.uniform(0.0, 1.0)
    a, b = rng.uniform(0.5, 5.0), rng.uniform(0.2, 2.0)

    def ratings(r: Rng, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        owner = np.repeat(np.arange(count), size)
        topic = r.choice(k, count, p=shares)[owner]
        one = np.where(r.random(len(owner)) < same, topic, r.choice(k, len(owner), p=shares))
        agree = r.random(len(owner)) < r.beta(a, b, count)[owner]
        return owner, one, np.where(agree, one, r.choice(k, len(owner), p=shares))

    _, one, other = ratings(np.random.default_rng(0), 40_000)
    whole = agreement_between(one.tolist(), other.tolist())
    truths = [float(each.value or 0.0) for each in (whole.percent, whole.kappa, whole.alpha)]

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        owner, one, other = ratings(r, clusters)
        found = agreement_between(one.tolist(), other.tolist(), owner.tolist())
        return list(zip((found.percent, found.kappa, found.alpha), truths, strict=True))

    return Design(f"{clusters} clusters of {size}, {k} classes, same class {same:.2f}", trial)


def attempts(rng: Rng) -> Design:
    """pass@k and pass^k over problems with few passes."""
    problems, tries = int(rng.choice([15, 30, 60])), int(rng.choice([4, 8, 16]))
    k = int(rng.integers(2, tries + 1))
    a, b = rng.uniform(0.05, 0.6), rng.uniform(2.0, 15.0)
    chances = np.random.default_rng(0).beta(a, b, 200_000)
    at_least_one, all_of_them = float((1 - (1 - chances) ** k).mean()), float((chances**k).mean())

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        passed = r.binomial(tries, r.beta(a, b, problems)).tolist()
        found = []
        for measure, truth in ((pass_at_k, at_least_one), (pass_hat_k, all_of_them)):
            state = MeanState()
            for each in passed:
                state.add_one(measure(tries, each, k))
            found.append((state.estimate(bounds=(0.0, 1.0)), truth))
        return found

    return Design(f"{problems} problems, k {k} of {tries}, beta({a:.2f}, {b:.1f})", trial)


# Classes and raters ------------------------------------------------------------------------------------------


def macro_f1(rng: Rng) -> Design:
    """3 to 10 classes of unequal size, each with at least 3 expected items."""
    while True:
        k, n = int(rng.integers(3, 11)), int(rng.choice([60, 80, 100, 150, 300]))
        shares = rng.dirichlet(np.full(k, rng.uniform(0.6, 3.0)))
        if shares.min() * n >= 3:
            break
    right = rng.uniform(0.4, 0.97, k) if rng.random() < 0.6 else np.full(k, rng.uniform(0.5, 0.97))
    wrong = rng.dirichlet(np.full(k, rng.uniform(0.2, 2.0)), k) * (1 - np.eye(k)) + 1e-9 * (1 - np.eye(k))
    table = shares[:, None] * (np.diag(right) + ((1 - right) / wrong.sum(axis=1))[:, None] * wrong)
    truth = float((2 * np.diag(table) / (table.sum(axis=0) + table.sum(axis=1))).mean())
    labels = list(range(k))

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        counts = r.multinomial(n, table.ravel()).reshape(k, k)
        return [(classification_metrics(labels, counts.tolist()).macro.f1, truth)]

    return Design(f"n {n}, {k} classes, F1 {truth:.2f}, rarest {shares.min() * n:.0f} items", trial)


def rare_classes(rng: Rng) -> Design:
    """Macro F1 of one large class beside rare ones, with 3 expected items or more, that are mostly taken for it."""
    k, n = int(rng.integers(4, 11)), int(rng.choice([100, 150, 200, 400, 1000]))
    items, error = rng.uniform(3.0, 5.0), rng.uniform(0.1, 0.7)
    shares = np.full(k, items / n)
    shares[0] = 1 - shares[1:].sum()
    table = np.diag(shares * (1 - error))
    table[1:, 0] = shares[1:] * error
    spilled = rng.uniform(0.2, 2.0) * items * (k - 1) / n  # of the large class, taken for a rare one
    table[0] = [shares[0] - spilled, *np.full(k - 1, spilled / (k - 1))]
    truth = float((2 * np.diag(table) / (table.sum(axis=0) + table.sum(axis=1))).mean())
    labels = list(range(k))

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        counts = r.multinomial(n, table.ravel()).reshape(k, k)
        return [(classification_metrics(labels, counts.tolist()).macro.f1, truth)]

    return Design(f"n {n}, {k} classes, F1 {truth:.2f}, rarest {items:.1f} items, {error:.2f} wrong", trial)


def clustered_classes(rng: Rng) -> Design:
    """Accuracy and macro F1 where the items of a document share how hard it is, and often their class."""
    clusters, k = int(rng.choice([15, 25, 40, 80])), int(rng.integers(2, 6))
    most = int(rng.choice([3, 6, 12]))
    shares = rng.dirichlet(np.full(k, 4.0))
    right, spread, same = rng.uniform(0.5, 0.95), rng.uniform(1.0, 30.0), rng.uniform(0.0, 0.8)

    def matrices(r: Rng, count: int) -> np.ndarray:
        """The cells of the items of some clusters: one row of (cluster, golden, predicted) for each item."""
        sizes = r.integers(1, most + 1, count)
        owner = np.repeat(np.arange(count), sizes)
        hard = r.beta(right * spread, (1 - right) * spread, count)[owner]
        topic = r.choice(k, count, p=shares)[owner]
        golden = np.where(r.random(len(owner)) < same, topic, r.choice(k, len(owner), p=shares))
        other = (golden + r.integers(1, k, len(owner))) % k
        return np.stack([owner, golden, np.where(r.random(len(owner)) < hard, golden, other)], axis=1)

    table = np.zeros((k, k))
    drawn = matrices(np.random.default_rng(0), 200_000)
    np.add.at(table, (drawn[:, 1], drawn[:, 2]), 1)
    f1 = float((2 * np.diag(table) / (table.sum(axis=0) + table.sum(axis=1))).mean())
    accuracy = float(np.trace(table) / table.sum())

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        state = ConfusionState()
        items = matrices(r, clusters)
        for part in np.split(items, np.flatnonzero(np.diff(items[:, 0])) + 1):
            state.add([(int(golden), int(predicted)) for _, golden, predicted in part])
        found = metrics_of(state)
        return [(found.accuracy, accuracy), (found.macro.f1, f1)]

    return Design(f"{clusters} clusters up to {most}, {k} classes, F1 {f1:.2f}, same class {same:.2f}", trial)


def raters(rng: Rng) -> Design:
    """Kappa and alpha of two raters, mostly with one class of about 90 %."""
    n, k = int(rng.choice([20, 25, 30, 40, 50])), int(rng.choice([2, 2, 2, 3]))
    common = rng.uniform(0.85, 0.93)
    shares = np.array([common, *np.full(k - 1, (1 - common) / (k - 1))])
    if rng.random() < 0.2:
        shares = rng.dirichlet(np.full(k, 3.0))
    if rng.random() < 0.5:
        agree = rng.uniform(0.0, 0.97)
        table = agree * np.diag(shares) + (1 - agree) * np.outer(shares, shares)
    else:
        noise = rng.uniform(0.01, 0.15)
        table = shares[:, None] * ((1 - noise) * np.eye(k) + noise / k)
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    kappa = 1 - (1 - np.trace(table)) / (1 - rows @ columns)
    alpha = 1 - (1 - np.trace(table)) / (1 - (((rows + columns) / 2) ** 2).sum())

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        cells = r.choice(k * k, n, p=table.ravel())
        a, b = (cells // k).tolist(), (cells % k).tolist()
        return [
            (cohen_kappa(a, b), float(kappa)),
            (krippendorff_alpha(list(zip(a, b, strict=True))), float(alpha)),
        ]

    return Design(f"n {n}, {k} classes, {shares[0]:.2f} in the first, kappa {kappa:.2f}", trial)


# Quantiles, judges -------------------------------------------------------------------------------------------


def quantiles(rng: Rng) -> Design:
    """Quantiles of continuous and of graded scores."""
    n, p = int(rng.choice([20, 40, 60, 100])), float(rng.choice([0.05, 0.25, 0.5, 0.9, 0.95]))
    kind = int(rng.integers(3))
    a, b = rng.uniform(0.3, 3.0), rng.uniform(0.3, 3.0)
    draw = [
        lambda r, size: r.beta(a, b, size),
        lambda r, size: r.lognormal(0.0, 1.0, size),
        lambda r, size: np.round(r.beta(a, b, size) * 4) / 4,
    ][kind]
    truth = float(np.quantile(draw(np.random.default_rng(0), 1_000_001), p, method="inverted_cdf"))
    aggregator = Quantiles([p])

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        state = aggregator.start()
        for score in draw(r, n).tolist():
            outcome = Ok(Result("key", score))
            item = ItemResult(format=FORMAT, example="e", key="key", runs=("run",), outcome=outcome)
            state = aggregator.add(state, Group("e", {}, [item]))
        return [(aggregator.finish(state).estimates[0], truth)]

    return Design(f"n {n}, quantile {p}, {('beta', 'lognormal', 'five grades')[kind]}", trial)


def judged(rng: Rng) -> Design:
    """Prediction-powered means with few labels, mostly ones."""
    n, others = int(rng.choice([20, 25, 30, 50, 100])), int(rng.choice([50, 100, 500]))
    truth = float(rng.choice([rng.uniform(0.5, 0.97), rng.uniform(0.9, 0.97)]))
    hit, false = rng.uniform(0.7, 1.0), rng.uniform(0.0, 0.4)
    binary = bool(rng.random() < 0.6)

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        total = n + others
        if binary:
            labels = (r.random(total) < truth) * 1.0
            judge = (r.random(total) < np.where(labels > 0, hit, false)) * 1.0
        else:
            labels = r.beta(5 * truth, 5 * (1 - truth), total)
            judge = np.clip(labels + r.normal(0.05, 0.15, total), 0, 1)
        return [(ppi(labels[:n], judge[:n], judge[n:]), truth)]

    return Design(f"{n} labels of {n + others}, {truth:.2f}, {'binary' if binary else 'graded'}", trial)


# Ratings and win rates ---------------------------------------------------------------------------------------


def comparisons(rng: Rng) -> Design:
    """Ratings and win rates: rare collapses of a run, ties beside wins by strength, rare one-sided wins."""
    runs, examples = int(rng.choice([2, 2, 3, 4, 6])), int(rng.choice([20, 30, 50, 100]))
    pairs = np.array(list(itertools.combinations(range(runs), 2)))
    kind = int(rng.integers(3))
    ties = rng.uniform(0.0 if kind == 1 else 0.5, 0.98)
    collapses = rng.uniform(0.01, 0.1, runs) * (rng.random(runs) < 0.6)
    strength = rng.normal(0.0, 1.0, runs)

    def outcomes(r: Rng, count: int) -> np.ndarray:
        if kind == 0:
            scores = -1.0 * (r.random((count, runs)) < collapses)
        elif kind == 1:
            scores = strength + r.normal(size=(count, runs))
        else:
            scores = np.zeros((count, runs))
            scores[:, 0] = r.random(count) < 0.5 * (1 - ties)
        gap = scores[:, pairs[:, 0]] - scores[:, pairs[:, 1]]
        found = 0.5 + 0.5 * np.sign(gap)
        return np.where(r.random(found.shape) < ties, 0.5, found) if kind == 1 else found

    points = outcomes(np.random.default_rng(0), 200_000).mean(axis=0)
    games, won = np.zeros((runs, runs)), np.zeros((runs, runs))
    games[pairs[:, 0], pairs[:, 1]], won[pairs[:, 0], pairs[:, 1]] = 1.0, points
    ratings = strengths_of(PairTable(games=games, points=won, squares=0 * games, ties=0 * games))
    rates = (won.sum(axis=1) + (games - won).sum(axis=0)) / (runs - 1)

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        found = bradley_terry(
            first=np.tile(pairs[:, 0], examples),
            second=np.tile(pairs[:, 1], examples),
            outcomes=outcomes(r, examples).ravel(),
            clusters=np.repeat(np.arange(examples), len(pairs)),
            names=range(runs),
            elo_scale=False,
        )
        by_run = sorted(found.runs, key=lambda run: run.name)
        return [(run.rating, float(ratings[run.name])) for run in by_run] + [
            (run.win_rate, float(rates[run.name])) for run in by_run
        ]

    what = ("rare collapses", f"{ties:.2f} ties", f"{0.5 * (1 - ties):.2f} one-sided wins")[kind]
    return Design(f"{runs} runs, {examples} examples, {what}", trial)


def sampled_labels(rng: Rng) -> Design:
    """Prediction-powered means of a sample in which one verdict of the judge is drawn up to 20 times as seldom."""
    n, items, truth = int(rng.choice([20, 30, 50])), int(rng.choice([200, 600])), rng.uniform(0.05, 0.95)
    found, spared = rng.uniform(0.5, 1.0), rng.uniform(0.5, 1.0)
    often, seldom = rng.uniform(1.0, 20.0), int(rng.integers(2))

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        right = r.random(items) < truth
        verdicts = np.where(right, r.random(items) < found, r.random(items) >= spared) * 1.0
        weights = np.where(verdicts == seldom, 1.0, often)
        chances = np.minimum(1.0, n * weights / weights.sum())
        drawn = r.random(items) < chances
        if drawn.sum() < 2 or drawn.all():
            return []
        labels, rest = right[drawn] * 1.0, verdicts[~drawn]
        return [(ppi(labels, verdicts[drawn], rest, probabilities=chances[drawn].tolist()), truth)]

    return Design(f"{n} of {items}, mean {truth:.2f}, {seldom} drawn {often:.0f} times as seldom", trial)


# Other ranges, and pairs in both orders ----------------------------------------------------------------------


def other_ranges(rng: Rng) -> Design:
    """Scores of ranges other than 0..1, declared: grades 1 to 5, and percentages with rare collapses."""
    n, kind = int(rng.choice([15, 20, 30, 50, 100, 200])), int(rng.integers(3))
    chances, grades = rng.dirichlet(np.full(5, 0.5)), np.arange(1.0, 6.0)
    share, centre = rng.uniform(0.01, 0.2), rng.uniform(50.0, 95.0)
    bounds = [(1.0, 5.0), (0.0, 100.0), (-1.0, 1.0)][kind]
    a, b = rng.uniform(0.3, 3.0), rng.uniform(0.3, 3.0)
    draw = [
        lambda r: r.choice(grades, n, p=chances),
        lambda r: np.where(r.random(n) < share, 0.0, r.normal(centre, 1.0, n)),
        lambda r: 2.0 * r.beta(a, b, n) - 1.0,
    ][kind]
    truth = [float(chances @ grades), (1 - share) * centre, 2.0 * a / (a + b) - 1.0][kind]
    change = rng.uniform(0.02, 0.3)

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        first = draw(r)
        lost = r.random(n) < change
        second = np.where(lost, bounds[0], first)
        compared = paired(first, second, bounds=bounds, binary=False).difference
        return [(mean_interval(first, bounds=bounds), truth), (compared, change * (bounds[0] - truth))]

    name = ("grades 1 to 5", "percentages, rare zeros", "-1 to 1, beta")[kind]
    return Design(f"n {n}, {name}, mean {truth:.2f}, {change:.2f} lost", trial)


def undeclared_ranges(rng: Rng) -> Design:
    """Scores outside 0..1 whose range nobody declared: skewed, graded, and pairs of them."""
    n, kind = int(rng.choice([15, 20, 30, 50, 100, 200])), int(rng.integers(3))
    spread, shape = rng.uniform(0.3, 1.0), rng.uniform(1.0, 5.0)
    chances, grades = rng.dirichlet(np.full(5, 3.0)), np.arange(1.0, 6.0)
    draw = [
        lambda r: r.lognormal(0.0, spread, n),
        lambda r: 1.0 + r.gamma(shape, 2.0, n),
        lambda r: r.choice(grades, n, p=chances),
    ][kind]
    truth = [math.exp(spread**2 / 2), 1.0 + 2.0 * shape, float(chances @ grades)][kind]

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        first, second = draw(r), draw(r)
        return [(mean_interval(first), truth), (paired(first, second).difference, 0.0)]

    name = (f"lognormal({spread:.1f})", f"1 + gamma({shape:.1f})", "grades 1 to 5")[kind]
    return Design(f"n {n}, {name}", trial)


def swapped_pairs(rng: Rng) -> Design:
    """Ratings and win rates of pairs judged in both orders by a judge who likes the first, with judgments missing."""
    runs, examples = int(rng.choice([2, 3, 4])), int(rng.choice([20, 30, 60]))
    strength, bias, ties = rng.normal(0.0, 0.8, runs), rng.uniform(0.0, 1.0), rng.uniform(0.0, 0.6)
    missing = float(rng.choice([0.0, 0.1, 0.3]))
    pairs = np.array([(i, j) for i in range(runs) for j in range(runs) if i != j])

    def outcomes(r: Rng, count: int) -> np.ndarray:
        quality = strength + r.normal(0.0, 0.7, (count, runs))
        gap = (
            quality[:, pairs[:, 0]] - quality[:, pairs[:, 1]] + bias + r.normal(0.0, 0.5, (count, len(pairs)))
        )
        return np.where(r.random(gap.shape) < ties, 0.5, (gap > 0) * 1.0)

    points = outcomes(np.random.default_rng(0), 100_000).mean(axis=0)
    games, won = np.zeros((runs, runs)), np.zeros((runs, runs))
    games[pairs[:, 0], pairs[:, 1]], won[pairs[:, 0], pairs[:, 1]] = 1.0, points
    ratings = strengths_of(PairTable(games=games, points=won, squares=0 * games, ties=0 * games))
    rates = (won.sum(axis=1) + (games - won).sum(axis=0)) / (2 * (runs - 1))

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        known = r.random(examples * len(pairs)) >= missing
        found = bradley_terry(
            first=np.tile(pairs[:, 0], examples)[known],
            second=np.tile(pairs[:, 1], examples)[known],
            outcomes=outcomes(r, examples).ravel()[known],
            clusters=np.repeat(np.arange(examples), len(pairs))[known],
            names=range(runs),
            elo_scale=False,
        )
        return [
            (run.rating, float(ratings[run.name])) for run in sorted(found.runs, key=lambda run: run.name)
        ] + [(run.win_rate, float(rates[run.name])) for run in sorted(found.runs, key=lambda run: run.name)]

    return Design(
        f"{runs} runs, {examples} examples, bias {bias:.1f}, {ties:.2f} ties, {missing} missing", trial
    )


def judged_clusters(rng: Rng) -> Design:
    """Prediction-powered means of clustered items: some examples labelled, the attempts at all of them judged."""
    labelled, others = int(rng.choice([15, 25, 40])), int(rng.choice([40, 100]))
    size, correlation = int(rng.integers(2, 6)), rng.uniform(0.0, 0.7)
    truth, hit, false = rng.uniform(0.3, 0.95), rng.uniform(0.7, 1.0), rng.uniform(0.0, 0.4)
    spread = (1 - correlation) / max(correlation, 1e-3)

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        owner = np.repeat(np.arange(labelled + others), size)
        share = r.beta(truth * spread, (1 - truth) * spread, labelled + others)[owner]
        labels = (r.random(len(owner)) < share) * 1.0
        judge = (r.random(len(owner)) < np.where(labels > 0, hit, false)) * 1.0
        some = owner < labelled
        found = ppi(
            labels[some],
            judge[some],
            judge[~some],
            clusters=owner[some].tolist(),
            judged_clusters=owner[~some].tolist(),
        )
        return [(found, truth)]

    return Design(
        f"{labelled} of {labelled + others} clusters of {size}, {truth:.2f}, {correlation:.2f}", trial
    )


def many_raters(rng: Rng) -> Design:
    """Fleiss' kappa and alpha of three to five raters, ratings missing, mostly one class of about 90 %."""
    n, count = int(rng.choice([20, 30, 50])), int(rng.integers(3, 6))
    common, agree, missing = rng.uniform(0.6, 0.93), rng.uniform(0.2, 0.95), float(rng.choice([0.0, 0.2]))

    def ratings(r: Rng, items: int) -> np.ndarray:
        topic = (r.random(items) < common)[:, None]
        return np.where(r.random((items, count)) < agree, topic, r.random((items, count)) < common) * 1

    # The two raters of a pair agree as the shared topic makes them: 1 − (1 − agreement)/(1 − chance).
    kappa = agree * agree

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        found = ratings(r, n)
        gaps = r.random(found.shape) < missing
        rows = [
            [None if gap else int(x) for x, gap in zip(*row, strict=True)]
            for row in zip(found, gaps, strict=True)
        ]
        return [
            (fleiss_kappa(found.tolist()), kappa),
            (krippendorff_alpha(rows, "nominal"), kappa),
            (krippendorff_alpha(rows, "interval"), kappa),
        ]

    return Design(
        f"n {n}, {count} raters, {common:.2f} in one class, kappa {kappa:.2f}, {missing} missing", trial
    )


# Other shapes ------------------------------------------------------------------------------------------------


def mixed_scores(rng: Rng) -> Design:
    """Scores of other shapes: capped lognormal, exponential, ten grades, groups; differences with partial losses."""
    n, kind = int(rng.choice([15, 25, 40, 100, 200, 250, 400])), int(rng.integers(6))
    spread, scale, rare = rng.uniform(0.5, 1.5), rng.uniform(0.02, 0.2), 10 ** rng.uniform(-2.3, -0.8)
    centre, noise = rng.uniform(0.6, 0.95), rng.uniform(0.02, 0.15)
    chances = rng.dirichlet([0.05, 0.05, 0.1, 0.1, 0.2, 0.3, 0.5, 2.0, 3.0, 1.0])
    draw = [
        lambda r, m: 1.0 - np.minimum(1.0, scale * r.lognormal(0.0, spread, m)),
        lambda r, m: np.minimum(1.0, r.exponential(scale, m)),
        lambda r, m: r.choice(np.arange(1, 11) / 10, m, p=chances),
        lambda r, m: np.where(r.random(m) < rare, r.beta(2, 8, m), r.beta(30, 3, m)),
        lambda r, m: np.where(
            r.random(m) < rare, r.uniform(0.0, 0.2, m), np.clip(r.normal(centre, noise, m), 0, 1)
        ),
        lambda r, m: np.where(r.random(m) < rare, r.random(m), 1.0),
    ][kind]
    ties, lost = rng.uniform(0.7, 0.98), rng.uniform(0.05, 1.0)

    def pairs(r: Rng, m: int) -> tuple[np.ndarray, np.ndarray]:
        first = r.choice([0.5, 0.75, 1.0], m, p=[0.2, 0.3, 0.5])
        worse = r.random(m) < lost
        changed = np.where(
            worse, first * r.choice([0.0, 0.9], m, p=[0.15, 0.85]), np.minimum(1.0, first + 0.1)
        )
        return first, np.where(r.random(m) < ties, first, changed)

    many = np.random.default_rng(0)
    truth = float(draw(many, 1_000_000).mean())
    first, second = pairs(many, 1_000_000)
    change = float((second - first).mean())

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        found = paired_arrays(*pairs(r, max(20, n)))
        return [(mean_interval(draw(r, n).tolist()), truth), (found.difference, change)]

    names = ("1 − lognormal", "exponential", "ten grades", "two groups", "rare collapses", "ones, few others")
    return Design(f"n {n}, {names[kind]}, mean {truth:.2f}; {ties:.2f} ties, {change:+.3f}", trial)


def confused_classes(rng: Rng) -> Design:
    """Macro and weighted F1 where classes are taken for their neighbour, their twin, or the largest, or hardly ever."""
    k, n, kind = int(rng.integers(3, 11)), int(rng.choice([60, 80, 120, 200, 400])), int(rng.integers(4))
    shares = np.maximum(rng.dirichlet(np.full(k, rng.uniform(0.4, 2.0))), 3.3 / n)
    shares /= shares.sum()
    wrong = np.zeros((k, k))
    for i in range(k):
        others = ([i - 1, i + 1], [i ^ 1], [int(shares.argmax())], range(k))[kind]
        wrong[i, [j for j in others if 0 <= j < k and j != i] or [(i + 1) % k]] = 1.0
    errors = rng.uniform(0.005, 0.06) if kind == 3 else rng.uniform(0.05, 0.6)
    table = shares[:, None] * ((1 - errors) * np.eye(k) + errors * wrong / wrong.sum(axis=1, keepdims=True))
    f1 = 2 * np.diag(table) / (table.sum(axis=0) + table.sum(axis=1))
    labels = list(range(k))

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        found = classification_metrics(labels, r.multinomial(n, table.ravel()).reshape(k, k).tolist())
        return [(found.macro.f1, float(f1.mean())), (found.weighted.f1, float(f1 @ shares))]

    what = ("neighbours", "twins", "the largest", "any")[kind]
    return Design(f"n {n}, {k} classes, {errors:.2f} taken for {what}, F1 {f1.mean():.2f}", trial)


def uneven_raters(rng: Rng) -> Design:
    """Kappa, weighted kappas and alpha of two raters with other shares of the classes, one class about 90 %."""
    n, k, kind = int(rng.choice([20, 30, 40, 50])), int(rng.choice([2, 3, 4])), int(rng.integers(2))
    shares = np.array([0.9, *np.full(k - 1, 0.1 / (k - 1))])
    noise, other, leaning = rng.uniform(0.0, 0.1), rng.uniform(0.0, 0.3), rng.uniform(0.1, 0.8)
    uniform = np.full((k, k), 1.0 / k)
    one = (1 - noise) * np.eye(k) + noise * uniform if kind else np.eye(k)
    two = (1 - other) * np.eye(k) + other * uniform
    if not kind:  # one rater leans to the common class
        two = (1 - leaning) * np.eye(k) + leaning * (np.arange(k) == 0)
    table = np.einsum("i,ia,ib->ab", shares, one, two)
    rows, columns, gap = table.sum(axis=1), table.sum(axis=0), np.abs(np.subtract.outer(range(k), range(k)))
    mean = (rows + columns) / 2
    truths = [
        1 - float((weight * table).sum() / (weight * np.outer(rows, columns)).sum())
        for weight in (gap > 0, gap, gap**2)
    ]
    truths.append(1 - float((1 - np.trace(table)) / (1 - mean @ mean)))
    labels = list(range(k))

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        cells = r.choice(k * k, n, p=table.ravel() / table.sum())
        a, b = (cells // k).tolist(), (cells % k).tolist()
        found = [cohen_kappa(a, b, weights, labels=labels) for weights in (None, "linear", "quadratic")]
        found.append(krippendorff_alpha(list(zip(a, b, strict=True))))
        return list(zip(found, truths, strict=True))

    return Design(f"n {n}, {k} classes, {('leaning', 'noisy')[kind]}, kappa {truths[0]:.2f}", trial)


def few_values(rng: Rng) -> Design:
    """Scores of 3 to 20 values in a declared range, and pairs that mostly tie and change by several amounts."""
    n, k = int(rng.integers(15, 401)), int(rng.integers(3, 21))
    low, high = [(0.0, 1.0), (0.0, 10.0), (-1.0, 1.0)][int(rng.integers(3))]
    values = rng.uniform(0.0, 1.0, k)
    if rng.random() < 0.5:  # close together, and one at an end of the range
        values = np.clip(rng.uniform(0.1, 0.9) + 0.02 * rng.normal(size=k), 0.0, 1.0)
        values[0] = float(rng.integers(2))
    values = low + (high - low) * values
    chances = rng.dirichlet(np.full(k, float(rng.choice([0.05, 0.1, 0.3, 1.0]))))
    ties, sizes = rng.uniform(0.7, 0.98), int(rng.integers(1, 5))
    changes = np.concatenate([[0.0], rng.uniform(0.01, 0.3, sizes), -rng.uniform(0.3, 1.0, sizes)])
    shares = np.concatenate([[ties], (1 - ties) * rng.dirichlet(np.full(2 * sizes, 0.5))])
    shares /= shares.sum()

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        scores = r.choice(values, n, p=chances)
        change = r.choice(changes, max(20, n), p=shares)
        first = np.where(change < 0, -change, 0.5 - change)
        return [
            (mean_interval(scores.tolist(), bounds=(low, high)), float(values @ chances)),
            (paired_arrays(first, first + change).difference, float(changes @ shares)),
        ]

    return Design(
        f"n {n}, {k} values in {low:g} to {high:g}; {ties:.2f} ties, {sizes} sizes of changes", trial
    )


def uneven_attempts(rng: Rng) -> Design:
    """pass@k and pass^k of 15 to 80 problems with 2 to 20 attempts each, or as many at each, some problems hopeless."""
    n, most, uneven = int(rng.integers(15, 81)), int(rng.integers(2, 21)), bool(rng.integers(2))
    a, b = [
        (rng.uniform(0.05, 0.5), rng.uniform(0.5, 5.0)),
        (rng.uniform(0.5, 5.0), rng.uniform(0.05, 0.5)),
        (0.1, 0.1),
    ][int(rng.integers(3))]
    hopeless, k = rng.uniform(0.0, 0.6), int(rng.choice([1, 2] if uneven else [1, 2, most]))
    many = np.random.default_rng(0)
    chances = np.where(many.random(1_000_000) < hopeless, 0.0, many.beta(a, b, 1_000_000))
    truths = float((1 - (1 - chances) ** k).mean()), float((chances**k).mean())

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        tries = r.integers(2, most + 2, n) if uneven else np.full(n, most)
        passed = r.binomial(tries, np.where(r.random(n) < hopeless, 0.0, r.beta(a, b, n)))
        found = []
        for probability, truth in zip((pass_at_k, pass_hat_k), truths, strict=True):
            values = [probability(int(m), int(c), k) for m, c in zip(tries, passed, strict=True)]
            found.append((mean_interval(values), truth))
        return found

    what = "2 to" if uneven else "all"
    return Design(
        f"{n} problems, {what} {most} attempts, k {k}, {hopeless:.2f} hopeless, beta({a:.2f}, {b:.1f})", trial
    )


# The pipeline ------------------------------------------------------------------------------------------------


def _stored(
    scores: np.ndarray, owner: np.ndarray, topics: np.ndarray
) -> tuple[list[karat.Run], karat.Evaluation]:
    """Runs whose outputs are these scores, a row for each run, NaN where the task fails, and their evaluation."""
    examples = [
        {"id": str(i), "input": i, "metadata": {"document": f"d{d}", "topic": f"t{t}"}}
        for i, (d, t) in enumerate(zip(owner.tolist(), topics.tolist(), strict=True))
    ]
    dataset = karat.Dataset.from_examples(examples, name="simulated")
    store = karat.open_store("memory://")
    runs = []
    for place, row in enumerate(scores.tolist()):

        def answer(number: int, place: int, row: list[float] = row) -> float:
            if math.isnan(row[number]):
                raise ValueError("no answer")
            return row[number]

        task = FunctionTask(answer, name="answer", parameters={"place": place})
        task.code = lambda: "answer"
        runs.append(karat.run(task, dataset, store=store, progress=False, concurrency=1))

    def score(outputs: float) -> float:
        return outputs

    return runs, karat.evaluate(runs, [score], store=store, progress=False)


def stored_comparisons(rng: Rng) -> Design:
    """`compare` in clusters, `aggregate` by topic and `rank`, of stored runs with failed outputs."""
    clusters, graded = int(rng.choice([12, 20, 30])), bool(rng.integers(2))
    most, failing = int(rng.choice([1, 2, 4, 8])), float(rng.choice([0.0, 0.1]))
    mean, lost, spread = rng.uniform(0.5, 0.95), rng.uniform(0.02, 0.3), rng.uniform(1.0, 10.0)

    def draw(r: Rng, count: int) -> tuple[np.ndarray, np.ndarray]:
        owner = np.repeat(np.arange(count), r.integers(1, most + 1, count))
        share = r.beta(mean * spread, (1 - mean) * spread, count)[owner]
        first = (
            r.beta(4 * share + 1e-3, 4 * (1 - share) + 1e-3)
            if graded
            else (r.random(len(owner)) < share) * 1.0
        )
        worse = (r.random(count) < 0.5)[owner] & (r.random(len(owner)) < 2 * lost)
        return owner, np.stack([first, np.where(worse, 0.0, first)])

    _, many = draw(np.random.default_rng(0), 100_000)
    means = many.mean(axis=1)
    wins = float((0.5 + 0.5 * np.sign(many[1] - many[0])).mean())

    def trial(r: Rng) -> list[tuple[Estimate, float]]:
        owner, scores = draw(r, clusters)
        scores = np.where(r.random(scores.shape) < failing, np.nan, scores)
        topics = owner % 2
        runs, evaluation = _stored(scores, owner, topics)
        difference = compare(runs, cluster="document").differences[0].compared.difference
        of_groups = karat.aggregate(
            evaluation, [{"name": "mean", "params": {"by": "topic", "cluster": "document"}}]
        ).estimates
        found = [(difference, float(means[1] - means[0]))]
        for place, run in enumerate(runs):
            mine = [each for each in of_groups if each.run == run.id and each.group]
            found += [(each, float(means[place])) for each in mine]
        if most == 1:  # examples are independent, as `rank` takes them to be
            places = rank(runs, metric="score", failures="leave_out").places
            found += [(each.win_rate, wins if each.run == runs[1].id else 1 - wins) for each in places]
        return found

    what = "graded" if graded else "binary"
    return Design(f"{clusters} clusters up to {most}, {what}, {lost:.2f} lost, {failing} fail", trial)


FAMILIES: dict[str, tuple[Callable[[Rng], Design], float]] = {
    "means of bounded scores": (bounded_scores, 1.0),
    "means without bounds": (unbounded_scores, 1.0),
    "paired differences, graded": (tied_differences, 1.0),
    "paired differences, binary": (tied_binary_differences, 1.0),
    "clustered shares": (clustered_shares, 1.0),
    "clusters that fail as a whole": (failing_clusters, 1.0),
    "pass@k and pass^k": (attempts, 1.0),
    "macro F1": (macro_f1, 1.0),
    "kappa and alpha": (raters, 0.5),
    "quantiles": (quantiles, 0.5),
    "prediction-powered means": (judged, 1.0),
    "ratings and win rates": (comparisons, 0.3),
    "classes in clusters": (clustered_classes, 0.5),
    "paired differences in clusters": (clustered_differences, 0.5),
    "agreement in clusters": (clustered_agreement, 0.2),
    "weighted samples": (sampled_labels, 0.5),
    "scores of other ranges": (other_ranges, 0.5),
    "scores of undeclared ranges": (undeclared_ranges, 1.0),
    "pairs in both orders": (swapped_pairs, 0.3),
    "prediction-powered means in clusters": (judged_clusters, 0.3),
    "several raters": (many_raters, 0.2),
    "stored comparisons, groups and ranks": (stored_comparisons, 0.1),
    "macro F1 with rare classes": (rare_classes, 1.0),
    "scores of other shapes": (mixed_scores, 1.0),
    "confused classes": (confused_classes, 1.0),
    "uneven raters": (uneven_raters, 0.3),
    "clusters of informative size": (informative_sizes, 0.5),
    "few values and several changes": (few_values, 1.0),
    "uneven attempts": (uneven_attempts, 1.0),
}
"""How a family's designs are drawn, and the share of the repeats each gets."""


def family(name: str, designs: int, repeats: int, seed: int) -> list[Found]:
    """Simulate random designs of a family."""
    draw, share = FAMILIES[name]
    rng = np.random.default_rng([seed, list(FAMILIES).index(name)])
    return [simulate(draw(rng), max(1, round(repeats * share)), rng) for _ in range(designs)]


# Exact sums --------------------------------------------------------------------------------------------------


def binomial(n: int, p: np.ndarray) -> np.ndarray:
    """The binomial probabilities, one row for each count, one column for each p."""
    k = np.arange(n + 1)
    logs = np.array([math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in k])
    return np.exp(logs[:, None] + k[:, None] * np.log(p) + (n - k)[:, None] * np.log1p(-p))


Method = Callable[[int, int], Estimate]


def share_coverage(n: int, p: np.ndarray, method: Method = share) -> np.ndarray:
    """The exact coverage of the interval of a share for each p."""
    limits = [method(k, n) for k in range(n + 1)]
    low, high = np.array([e.low for e in limits]), np.array([e.high for e in limits])
    inside = (low[:, None] <= p) & (p <= high[:, None])
    return (binomial(n, p) * inside).sum(axis=0)


def share_range(
    n: int, least: float = 1e-4, most: float = 1 - 1e-4, method: Method = share
) -> tuple[float, float, float]:
    """The average coverage over p, the least one, and the p where it is.

    Coverage jumps where p passes a limit, so the least is looked for on both sides of every limit.
    """
    grid = np.linspace(least, most, 601)
    limits = [method(k, n) for k in range(n + 1)]
    jumps = np.array([edge + side for e in limits for edge in (e.low, e.high) for side in (-1e-9, 1e-9)])
    every = np.concatenate([grid, jumps[(jumps >= least) & (jumps <= most)]])
    found = share_coverage(n, every, method)
    at = int(found.argmin())
    return float(found[: len(grid)].mean()), float(found[at]), float(every[at])


def tango_coverage(n: int, shares: list[tuple[float, float]], corrected: bool = True) -> list[float]:
    """The exact coverage of the interval for pairs with P(only the first), P(only the second).

    Tables with more discordant pairs than there ever are count as covered; their probability is under 1e-9.
    """
    most = max(first + second for first, second in shares)
    few = min(n, math.ceil(n * most + 8 * math.sqrt(n * most) + 8))
    b, c = np.array([(b, c) for b in range(few + 1) for c in range(few + 1 - b)]).T
    low, high = _tango_tables(n, b, c, corrected)
    factorial = np.array([math.lgamma(i + 1) for i in range(n + 1)])
    logs = factorial[n] - factorial[b] - factorial[c] - factorial[n - b - c]
    out = []
    for first, second in shares:
        parts = [
            times * math.log(p) if p > 0.0 else np.where(times > 0, -np.inf, 0.0)
            for times, p in ((b, first), (c, second))
        ]
        chance = np.exp(logs + parts[0] + parts[1] + (n - b - c) * math.log1p(-first - second))
        outside = (low > second - first) | (second - first > high)
        out.append(1.0 - float(chance[outside].sum()))
    return out


def _tango_tables(n: int, b: np.ndarray, c: np.ndarray, corrected: bool) -> tuple[np.ndarray, np.ndarray]:
    """The limits of `paired` for many tables at once."""
    z, others = critical(0.95), np.minimum(10, n - np.abs(c - b))
    correction = (0.5 - 0.03 * others) if corrected else 0.0 * others

    def score(delta: np.ndarray) -> np.ndarray:
        linear = delta * (2.0 * n + b - c) - b - c
        root = np.sqrt(np.maximum(0.0, linear**2 + 8.0 * n * b * delta * (1.0 - delta)))
        q = np.clip((root - linear) / (4.0 * n), np.maximum(0.0, -delta), (1.0 - delta) / 2.0)
        gap = c - b - n * delta
        gap = np.sign(gap) * np.maximum(0.0, np.abs(gap) - correction)
        return gap / np.sqrt(np.maximum(1e-300, n * (2.0 * q + delta * (1.0 - delta))))

    limits = []
    for level, low, high in ((z, np.full(len(b), -1.0), (c - b) / n), (-z, (c - b) / n, np.ones(len(b)))):
        for _ in range(40):
            middle = 0.5 * (low + high)
            above = score(middle) > level
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        limits.append(0.5 * (low + high))
    return limits[0], limits[1]


def collapse_coverage(n: int, distance: float, most: int = 25) -> tuple[float, float]:
    """The least coverage over all shares of collapses, and the width against t's where there are none.

    Scores are normal around 0.8 and so narrow that a collapse to 0 moves their mean by this many standard errors. The
    limits are those of normal quantiles with so many zeros; the mean varies around them, and zeros are binomial.
    """
    centre = 0.8
    error = centre / (distance * n)
    limits = []
    for zeros in range(most + 1):
        m = n - zeros
        scores = np.array([normal_quantile((i + 0.5) / m) for i in range(m)])
        scores = np.clip(centre + scores / scores.std() * error * math.sqrt(n), 0, 1)
        found = mean_interval([0.0] * zeros + scores.tolist())
        limits.append((found.low, found.high))
    least = 1.0
    for expected in np.linspace(0.2, 10, 50):
        share = np.array([expected / n])
        truth = (1 - float(share[0])) * centre
        covered = [
            normal_cdf((truth - low) / (error * math.sqrt(1 - zeros / n)))
            - normal_cdf((truth - high) / (error * math.sqrt(1 - zeros / n)))
            for zeros, (low, high) in enumerate(limits)
        ]
        least = min(least, float(binomial(n, share)[: most + 1, 0] @ np.array(covered)))
    low, high = limits[0]
    return least, (high - low) / (2 * critical(0.95, n - 1) * error)


# Width and power ---------------------------------------------------------------------------------------------


def widths(seed: int, designs: int) -> list[float]:
    """How many times as wide as t's the interval of 200 values or more is, where none of them is rare."""
    rng = np.random.default_rng([seed, 100])
    found = []
    for _ in range(designs):
        n = int(rng.choice([200, 300, 500, 1000]))
        kind = int(rng.integers(6))
        values = [
            lambda n=n: rng.beta(rng.uniform(0.5, 3), rng.uniform(0.5, 3), n),
            lambda n=n: np.clip(rng.normal(rng.uniform(0.3, 0.7), rng.uniform(0.06, 0.2), n), 0, 1),
            lambda n=n: rng.choice(np.arange(5) / 4, n, p=rng.dirichlet(np.full(5, 5.0))),
            lambda n=n: (rng.random(n) < rng.uniform(0.2, 0.8)) * 1.0,
            lambda n=n: rng.choice(np.arange(5) / 4, n, p=[0.05, 0.05, 0.1, 0.6, 0.2]),
            # differences of grades, of which half to three quarters tie
            lambda n=n: (
                rng.choice([-0.5, -0.25, 0.0, 0.25], n, p=[0.05, 0.1, 0.5, 0.35])
                * (rng.random(n) < rng.uniform(0.5, 1.0))
            ),
        ][kind]()
        bounded = mean_interval(values.tolist(), bounds=(-1.0, 1.0) if kind == 5 else None)
        t = 2 * critical(0.95, n - 1) * values.std(ddof=1) / n**0.5
        found.append((bounded.high - bounded.low) / t)
    return found


def partly_whole_clusters(
    rng: Rng, clusters: int, size: int, whole: float, noise: float, effect: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of 0 and 1 in clusters of equal size, of which this share change as a whole, others item by item."""
    owner = np.repeat(np.arange(clusters), size)
    shared = (rng.random(clusters) < whole)[owner]
    drawn = np.where(shared, rng.random(clusters)[owner], rng.random(len(owner)))
    lost, won = drawn < noise / 2, (drawn >= noise / 2) & (drawn < noise + effect)
    return (~won) * 1.0, (~lost) * 1.0, owner


def powers(seed: int, designs: int, repeats: int) -> list[tuple[str, float]]:
    """How often the smallest detectable effect that data state is found in other data that have it."""
    rng = np.random.default_rng([seed, 101])
    found = []
    for _ in range(designs):
        n, kind = int(rng.choice([30, 60, 100, 200])), int(rng.integers(7))
        noise = float(rng.uniform(0.0, 0.2)) if kind == 0 else float(rng.uniform(0.02, 0.2))
        size, correlation, moved = int(rng.integers(2, 9)), rng.uniform(0.0, 0.7), rng.uniform(0.05, 0.7)

        def pairs(
            effect: float,
            kind: int = kind,
            n: int = n,
            noise: float = noise,
            size: int = size,
            correlation: float = correlation,
            moved: float = moved,
        ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
            if kind == 0:  # scores of 0 and 1; the effect turns zeros into ones
                which = rng.choice(3, n, p=[1 - noise - effect, noise / 2, noise / 2 + effect])
                return (which != 2) * 1.0, (which != 1) * 1.0, None
            if kind == 3:  # five grades, of which some move; the effect moves more of them up
                first = 0.25 + rng.integers(0, 5, n) / 8
                step = (rng.random(n) < moved) * np.where(rng.random(n) < 0.5, 0.125, -0.125)
                return first, first + step + 0.125 * (rng.random(n) < effect / 0.125), None
            if kind == 5:  # clusters of equal size that change as a whole
                owner = np.repeat(np.arange(n // 2), size)
                which = rng.choice(3, n // 2, p=[1 - noise - effect, noise / 2, noise / 2 + effect])[owner]
                return (which != 2) * 1.0, (which != 1) * 1.0, owner
            if kind == 6:  # scores of 0 and 1 in clusters, some of which change as a whole
                return partly_whole_clusters(rng, n, size, correlation, noise, effect)
            first = rng.uniform(0.3, 0.5, n)
            if kind == 1:  # graded scores with noise; the effect is a shift
                return first, np.clip(first + rng.normal(effect, noise, n), 0, 1), None
            if kind == 4:  # the same in clusters, whose sizes differ and are others in other data
                owner = np.repeat(np.arange(n), rng.integers(1, 2 * size, n))[:n]
                shared = math.sqrt(correlation) * rng.normal(size=n)[owner]
                error = noise * (shared + math.sqrt(1 - correlation) * rng.normal(size=n))
                return first, np.clip(first + effect + error, 0, 1), owner
            changed = rng.random(n) < effect / 0.4  # graded scores that mostly tie; some gain
            return first, np.where(changed, first + 0.4, first), None

        share, limits = [], (0.9 - noise, 0.35, 0.35, 0.12, 0.35, 0.9 - noise, 0.9 - noise)
        for _ in range(repeats // 20):
            stated = paired_arrays(*pairs(0.02 if kind == 2 else 0.0)).smallest_effect
            if stated is not None and stated < limits[kind]:
                for _ in range(20):
                    p_value = paired_arrays(*pairs(stated)).p_value
                    share.append(p_value is not None and p_value < 0.05)
        if share:
            names = ("binary", "graded, shifted", "graded, mostly ties", "five grades", "graded, clusters")
            name = (*names, "whole clusters", "partly whole clusters")[kind]
            found.append((f"n {n}, {name}, noise {noise:.2f}, moved {moved:.2f}", float(np.mean(share))))
    return found


def false_passes(seed: int, designs: int, repeats: int) -> list[tuple[str, float]]:
    """How often a gate holds though the change is exactly at the margin: 2.5 % of the time, nominally."""
    rng = np.random.default_rng([seed, 102])
    found = []
    for _ in range(designs):
        n, margin = int(rng.choice([10, 20, 50, 100, 200, 400])), float(rng.choice([0.02, 0.05, 0.1]))
        kind, large, other = int(rng.integers(4)), rng.uniform(0.5, 0.9), rng.uniform(0.01, 0.2)

        def pairs(
            n: int = n, margin: float = margin, kind: int = kind, large: float = large, other: float = other
        ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
            if kind == 0:  # pairs of 0 and 1
                which = rng.choice(3, n, p=[1 - margin - 2 * other, margin + other, other])
                return (which != 2) * 1.0, (which != 1) * 1.0, None
            if kind == 1:  # rare collapses, all else equal
                first = np.full(n, large)
                return first, np.where(rng.random(n) < margin / large, 0.0, first), None
            if kind == 2:  # rare collapses beside noise, which does not change the mean
                second = np.where(rng.random(n) < margin / large, 0.0, large + rng.uniform(-0.1, 0.1, n))
                return np.full(n, large), second, None
            owner = np.arange(5 * n) // 5  # clusters that are lost as a whole
            return np.ones(5 * n), np.where((rng.random(n) < margin)[owner], 0.0, 1.0), owner

        limit = Limit("m", margin)
        held = [
            judge(limit, "a", "b", paired_arrays(*pairs()).difference, n).verdict == "holds"
            for _ in range(repeats)
        ]
        name = ("binary", "rare collapses", "rare collapses and noise", "clusters lost")[kind]
        found.append((f"n {n}, margin {margin}, {name}", float(np.mean(held))))
    return found


def tango_range(n: int, steps: int = 10) -> tuple[float, tuple[float, float]]:
    """The least exact coverage where 70 to 98 % of n pairs tie, and where it is: on a grid, and beside all limits."""
    shares = [
        (discordant * (1 - part), discordant * part)
        for discordant in np.geomspace(0.02, 0.3, steps)
        for part in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
    ]
    alone = np.arange(n + 1)
    for limits in _tango_tables(n, alone, 0 * alone, True):
        shares += [(-x + side, 0.0) for x in limits for side in (-1e-9, 1e-9) if 0.02 < -x < 0.3]
    return min(zip(tango_coverage(n, shares), shares, strict=True))


def _exact() -> list[bool]:
    print(f"\nproportions, exact, every p (wanted: average 94–98 %, least {WANTED:.0%})")
    sizes = [*range(15, 201), 250, 300, 400, 500, 700, 1000]
    rows = {n: share_range(n) for n in sizes}
    averages, least = [row[0] for row in rows.values()], min(rows.items(), key=lambda item: item[1][1])
    print(f"  {len(sizes)} n from 15: average {min(averages):.4f} to {max(averages):.4f}, "
          f"least {least[1][1]:.4f} at n {least[0]}, p {least[1][2]:.4f}")  # fmt: skip
    outside = np.array([0.001, 0.005, 0.01, 0.02, 0.03, 0.04])
    print("  Wilson's alone, for information")
    for n in (5, 10, 20, 50, 100, 1000):
        found = share_coverage(n, outside, wilson)
        print(f"  n {n:5d}   " + "  ".join(f"p {p}: {c:.3f}" for p, c in zip(outside, found, strict=True)))
    held = [0.94 <= a <= 0.98 for a in averages] + [row[1] >= WANTED for row in rows.values()]
    print(f"\npaired proportions, exact, 70–98 % ties (wanted: {WANTED:.0%})")
    worst = []
    for n in (*range(20, 61, 2), 70, 80, 90, 100, 120, 150, 200, 250, 300):
        found, at = tango_range(n)
        worst.append((found, n, at))
    least_pairs, n, (lost, won) = min(worst)
    print(f"  {len(worst)} n from 20: least {least_pairs:.4f} at n {n}, {lost:.4f} lost, {won:.4f} won")
    return held + [found >= WANTED for found, _, _ in worst]


def main() -> int:
    """Print the tables; 1 when a figure misses what is wanted of it."""
    sys.path.append(str(_HERE))
    from machine import machine

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="draws other designs")
    parser.add_argument("--designs", type=int, default=20, help="random designs for each family")
    parser.add_argument("--repeats", type=int, default=1000, help="simulated data sets for each design")
    options = parser.parse_args()
    started = time.perf_counter()
    print(machine())
    held = _exact()
    print(
        f"\n{options.designs} random designs for each family, seed {options.seed}; wanted: {WANTED:.0%} for each"
    )
    for name, (_, part) in FAMILIES.items():
        found = family(name, options.designs, options.repeats, options.seed)
        coverages = [each.coverage for each in found if not math.isnan(each.coverage)]
        repeats = max(1, round(options.repeats * part))
        error = math.sqrt(WANTED * (1 - WANTED) / repeats)
        missed = [each for each in found if each.coverage < WANTED - 2 * error]
        held += [each not in missed for each in found]
        print(f"  {name:28s} least {min(coverages):.3f}  mean {np.mean(coverages):.3f}  "
              f"({repeats} repeats, no limits {np.mean([each.without for each in found]):.1%})")  # fmt: skip
        for each in missed:
            print(f"    MISSED {each.coverage:.3f}  {each.design}")
    ratios = widths(options.seed, 10 * options.designs)
    held.append(max(ratios) <= 1.05)
    print(f"\nwidth against t, n ≥ 200, {len(ratios)} designs without rare values (wanted: at most 1.05): "
          f"{min(ratios):.3f} to {max(ratios):.3f}")  # fmt: skip
    print(f"\nnarrow scores with rare collapses, exact (wanted: {WANTED:.0%}; up to 0.005 less is accepted)")
    for n in (200, 1000):
        figures = {each: collapse_coverage(n, each) for each in (0.6, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0)}
        print(f"  n {n:5d}   " + "  ".join(f"{d}: {c:.3f}, width {w:.2f}" for d, (c, w) in figures.items()))
        held += [covered >= WANTED - 0.005 for covered, _ in figures.values()]
    missing = unseen_clusters(options.seed, options.designs, max(1, options.repeats // 2))
    print("\nfew clusters that are large and score otherwise (wanted: at most 7 % miss without a note)")
    for name, covered, silent in sorted(missing, key=lambda item: item[1])[:3]:
        print(f"  {covered:.3f} covered, {silent:.3f} silent  {name}")
    held += [silent <= 0.07 + 0.02 for _, _, silent in missing]
    shown = powers(options.seed, options.designs, options.repeats)
    print("\npower at the smallest detectable effect (wanted: 0.78)")
    for name, power in sorted(shown, key=lambda item: item[1])[:5]:
        print(f"  {power:.3f}  {name}")
    held += [power >= 0.78 - 0.02 for _, power in shown]
    passes = false_passes(options.seed, options.designs, max(1, options.repeats // 2))
    print("\ngates that hold at the margin (wanted: at most 5 %)")
    for name, held_share in sorted(passes, key=lambda item: -item[1])[:3]:
        print(f"  {held_share:.3f}  {name}")
    held += [held_share <= 0.05 + 0.02 for _, held_share in passes]
    missed_all = held.count(False)
    print(f"\n{len(held)} wanted, {missed_all} missed, {time.perf_counter() - started:.0f} s")
    return 1 if missed_all else 0


if __name__ == "__main__":
    sys.exit(main())
