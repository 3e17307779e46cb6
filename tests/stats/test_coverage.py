"""A part of bench/coverage.py with fixed seeds: the 95 % intervals hold the truth at least 93 % of the time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from karat.stats import paired
from karat.stats._paired import paired_arrays


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "coverage.py"
    spec = importlib.util.spec_from_file_location("bench_coverage", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("n", [*range(15, 41), 50, 75, 100, 150, 200])
def test_proportions_exactly(coverage: ModuleType, n: int) -> None:
    average, least, _ = coverage.share_range(n)
    assert 0.94 <= average <= 0.98
    assert least >= 0.93


@pytest.mark.parametrize("n", [20, 30, 40, 47, 60, 80, 100])
def test_paired_proportions_exactly(coverage: ModuleType, n: int) -> None:
    least, _ = coverage.tango_range(n, steps=6)
    assert least >= 0.93
    rare = [(b, c) for b in (0.002, 0.01, 0.5, 0.9, 0.99) for c in (0.0, 0.002, 0.009)]
    assert min(coverage.tango_coverage(n, rare)) >= 0.93


def test_the_exact_sums_are_of_what_paired_gives(coverage: ModuleType) -> None:
    tables = np.array([(0, 0), (3, 0), (2, 7), (5, 5), (0, 20), (1, 19)]).T
    low, high = coverage._tango_tables(20, *tables, True)
    for b, c, least, most in zip(*tables.tolist(), low, high, strict=True):
        found = paired([1] * b + [0] * (20 - b), [0] * b + [1] * c + [0] * (20 - b - c)).difference
        assert (found.low, found.high) == pytest.approx((least, most), abs=1e-9)


FAMILIES = {
    "means of bounded scores": (8, 150),
    "means without bounds": (2, 400),
    "paired differences, graded": (5, 60),
    "paired differences, binary": (4, 80),
    "clustered shares": (6, 100),
    "clusters that fail as a whole": (8, 150),
    "pass@k and pass^k": (6, 100),
    "macro F1": (6, 150),
    "kappa and alpha": (3, 120),
    "quantiles": (6, 300),
    "prediction-powered means": (5, 60),
    "ratings and win rates": (4, 150),
    "classes in clusters": (5, 160),
    "paired differences in clusters": (4, 40),
    "agreement in clusters": (2, 60),
    "weighted samples": (6, 100),
    "scores of other ranges": (4, 80),
    "scores of undeclared ranges": (6, 200),
    "pairs in both orders": (2, 80),
    "prediction-powered means in clusters": (2, 60),
    "several raters": (2, 60),
    "stored comparisons, groups and ranks": (3, 10),
    "macro F1 with rare classes": (6, 150),
    "scores of other shapes": (3, 50),
    "confused classes": (5, 120),
    "uneven raters": (3, 100),
    "clusters of informative size": (5, 80),
    "few values and several changes": (4, 60),
    "uneven attempts": (4, 60),
}
"""How many random designs, and how many data sets for each."""


@pytest.mark.parametrize("family", FAMILIES)
def test_random_designs(coverage: ModuleType, family: str) -> None:
    designs, repeats = FAMILIES[family]
    found = [each.coverage for each in coverage.family(family, designs, repeats, seed=0)]
    found = [each for each in found if not np.isnan(each)]
    assert np.mean(found) >= 0.93
    assert min(found) >= 0.9  # a design of 50 to 200 data sets whose coverage is 0.95 can show this


def test_every_family_is_tested(coverage: ModuleType) -> None:
    assert list(FAMILIES) == list(coverage.FAMILIES)


def test_many_values_are_not_much_wider_than_t(coverage: ModuleType) -> None:
    assert max(coverage.widths(0, 100)) <= 1.05


@pytest.mark.parametrize(
    ("distance", "wide"), [(0.8, 1.01), (0.9, 1.04), (1.0, 1.1), (1.5, 1.42), (2.5, 2.1)]
)
def test_collapses_that_were_not_drawn(coverage: ModuleType, distance: float, wide: float) -> None:
    """At a distance of 1 it covered 0.91, and at 1.5 it was 1.65 times as wide as t's."""
    covered, ratio = coverage.collapse_coverage(200, distance)
    assert covered >= 0.925
    assert ratio <= wide


def test_few_clusters_say_what_may_be_missing(coverage: ModuleType) -> None:
    found = coverage.unseen_clusters(0, 10, 60)
    assert min(covered for _, covered, _ in found) < 0.9  # no method can
    assert np.mean([silent for _, _, silent in found]) <= 0.03
    assert max(silent for _, _, silent in found) <= 0.12  # 60 data sets


def test_the_smallest_effect_is_found_four_times_of_five(coverage: ModuleType) -> None:
    found = coverage.powers(0, 6, 100)
    assert np.mean([power for _, power in found]) >= 0.78
    assert min(power for _, power in found) >= 0.7  # 100 data sets


@pytest.mark.parametrize(("clusters", "noise"), [(50, 0.1), (30, 0.25)])
def test_the_smallest_effect_of_clusters_that_partly_change_as_a_whole(
    coverage: ModuleType, clusters: int, noise: float
) -> None:
    """Of 50 clusters it was found in 68 % of other data: the mean change of a cluster hid that few change wholly."""
    rng, found = np.random.default_rng(0), []
    for _ in range(25):
        stated = paired_arrays(
            *coverage.partly_whole_clusters(rng, clusters, 6, 0.6, noise, 0.0)
        ).smallest_effect
        assert stated is not None
        for _ in range(10):
            p_value = paired_arrays(
                *coverage.partly_whole_clusters(rng, clusters, 6, 0.6, noise, stated)
            ).p_value
            found.append(p_value is not None and p_value < 0.05)
    assert np.mean(found) >= 0.76


def test_a_gate_at_the_margin_rarely_holds(coverage: ModuleType) -> None:
    """It held in 81 % of data sets of 10 pairs with rare collapses, and in 34 % of those of 50."""
    found = coverage.false_passes(0, 8, 60)
    assert np.mean([share for _, share in found]) <= 0.05
    assert max(share for _, share in found) <= 0.12  # 60 data sets
