"""Means and their intervals, folded and merged."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from karat.stats import MeanState, clopper_pearson, mean_interval

scores = st.floats(-1e6, 1e6, allow_nan=False)
clusters_of_scores = st.lists(st.lists(scores, min_size=1, max_size=4), max_size=12)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_t_as_scipy_has_it(confidence: float) -> None:
    values = np.random.default_rng(0).normal(3, 2, 25)
    low, high = stats.t.interval(confidence, 24, values.mean(), stats.sem(values))
    estimate = mean_interval(values, confidence=confidence)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx(
        (values.mean(), low, high), rel=1e-9
    )
    assert (estimate.n, estimate.of, estimate.method) == (25, 25, "t")


def test_the_clustered_error_as_statsmodels_has_it() -> None:
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(30), rng.integers(1, 8, 30))
    values = rng.normal(size=30)[groups] + rng.normal(size=len(groups))
    fit = sm.OLS(values, np.ones(len(values))).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "use_correction": True}
    )
    estimate = mean_interval(values, clusters=groups)
    assert estimate.value == pytest.approx(fit.params[0])
    # statsmodels' factor is G/(G−1)·(n−1)/(n−1) for one parameter: the same
    assert estimate.metadata["standard_error"] == pytest.approx(fit.bse[0])
    assert estimate.metadata["design_effect"] > 1.5
    assert estimate.metadata["clusters"] == 30
    assert 1 <= estimate.metadata["df"] < 29


def test_equal_clusters_have_one_degree_less_than_there_are() -> None:
    rng = np.random.default_rng(2)
    estimate = mean_interval(rng.normal(size=60), clusters=np.arange(60) // 3)
    assert estimate.metadata["df"] == 19


def test_copies_of_an_item_add_no_information() -> None:
    values = np.random.default_rng(3).normal(size=20)
    once = mean_interval(values)
    copied = mean_interval(np.repeat(values, 4), clusters=np.repeat(np.arange(20), 4))
    assert (copied.value, copied.low, copied.high) == pytest.approx((once.value, once.low, once.high))


@given(clusters_of_scores, st.randoms(use_true_random=False), st.integers(0, 12), st.integers(0, 12))
def test_merging_in_any_grouping_and_order_is_the_same_to_the_last_bit(
    clusters: list[list[float]], shuffler: random.Random, cut: int, other: int
) -> None:
    def folded(parts: list[list[float]]) -> MeanState:
        state = MeanState()
        for part in parts:
            state.add(part)
        return state

    whole = folded(clusters).estimate(bounds=(-1e6, 1e6))
    shuffled = [
        shuffler.sample(cluster, len(cluster)) for cluster in shuffler.sample(clusters, len(clusters))
    ]
    first, second = sorted((cut, other))
    pieces = [folded(shuffled[:first]), folded(shuffled[first:second]), folded(shuffled[second:])]
    shuffler.shuffle(pieces)
    merged = MeanState().merge(pieces[0]).merge(pieces[1].merge(pieces[2]))
    assert merged.estimate(bounds=(-1e6, 1e6)) == whole


@given(clusters_of_scores)
def test_the_interval_holds_the_mean(clusters: list[list[float]]) -> None:
    state = MeanState()
    for cluster in clusters:
        state.add(cluster)
    estimate = state.estimate()
    if estimate.low is not None:
        assert estimate.low <= estimate.value <= estimate.high


def test_a_mean_is_rounded_once() -> None:
    values = [0.1] * 10 + [1e16, -1e16]
    assert mean_interval(values).value == float(sum(map(Fraction, values)) / 12)


def test_nothing_and_one_have_no_spread() -> None:
    none = mean_interval([])
    assert (none.value, none.low, none.n) == (None, None, 0)
    one = mean_interval([0.7])
    assert (one.value, one.low, one.high, one.n) == (0.7, None, None, 1)
    assert "one item" in one.metadata["reason"]
    assert "one cluster" in mean_interval([0.7, 0.9], clusters="aa").metadata["reason"]


def test_identical_clusters_still_have_an_interval() -> None:
    found = mean_interval([0.0, 1.0] * 10, clusters=[place // 2 for place in range(20)])
    assert found.value == 0.5
    assert found.low < 0.4
    assert found.high > 0.6


def test_equal_values(says) -> None:
    same = mean_interval([0.5] * 8)
    # A value of 0 or 1 in this share of all items would have been missed with a probability of 2.5 %.
    share = 1 - 0.025 ** (1 / 8)
    assert (same.low, same.high) == pytest.approx((0.5 - share / 2, 0.5 + share / 2), abs=3e-3)
    ones = mean_interval([1.0] * 8, bounds=(0, 1))
    assert (ones.value, ones.high) == (1.0, 1.0)
    assert ones.low == pytest.approx(clopper_pearson(8, 8).low, abs=3e-3)
    unbounded = mean_interval([3.0] * 8)
    assert (unbounded.value, unbounded.low, unbounded.high) == (3.0, None, None)
    says(unbounded.metadata["reason"])
    assert mean_interval([3.0] * 8, bounds=(1, 5)).low > 1


@pytest.mark.parametrize(("k", "n"), [(0, 10), (1, 15), (2, 30), (5, 20), (3, 80)])
def test_rare_ones_have_the_exact_upper_limit(k: int, n: int) -> None:
    estimate = mean_interval([1.0] * k + [0.0] * (n - k))
    assert estimate.method == "gaffke"
    assert estimate.high == pytest.approx(clopper_pearson(k, n).high, abs=2e-3)


@pytest.mark.parametrize("n", [200, 300, 1000])
@pytest.mark.parametrize("kind", ["uniform", "narrow", "skewed", "grades", "binary"])
def test_many_spread_out_values_have_an_interval_as_wide_as_t(n: int, kind: str) -> None:
    rng = np.random.default_rng(n)
    values = {
        "uniform": lambda: rng.random(n),
        "narrow": lambda: np.clip(rng.normal(0.5, 0.05, n), 0, 1),
        "skewed": lambda: rng.beta(0.5, 3.0, n),
        "grades": lambda: rng.integers(1, 6, n) / 5,
        "binary": lambda: (rng.random(n) < 0.7) * 1.0,
    }[kind]()
    estimate = mean_interval(values)
    low, high = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
    assert 0.95 <= (estimate.high - estimate.low) / (high - low) <= 1.05


@pytest.mark.parametrize("n", [150, 175, 195, 199, 200])
@pytest.mark.parametrize("centre", [-3.0, 1.7, 3.0])
def test_no_number_of_spread_out_values_makes_the_interval_narrower_than_t(n: int, centre: float) -> None:
    for seed in range(5):
        values = 1.0 / (1.0 + np.exp(-np.random.default_rng(seed).normal(centre, 0.5, n)))
        found = mean_interval(values.tolist())
        half = stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / n**0.5
        assert found.value is not None
        assert found.low is not None
        assert found.high is not None
        assert min(found.value - found.low, found.high - found.value) >= 0.9 * half


def test_bounds_speak_of_the_missing() -> None:
    estimate = mean_interval([0.9, 1.0, 1.0, 0.95], of=5, bounds=(0, 1))
    assert estimate.value < estimate.high < 1.0
    assert (estimate.lowest, estimate.highest) == pytest.approx((0.77, 0.97))
    assert (estimate.n, estimate.of) == (4, 5)
    assert mean_interval([], of=3, bounds=(1, 5)).highest == 5.0


@pytest.mark.parametrize(("n", "parts"), [(2000, 1), (2049, 2), (3000, 3), (20_000, 2)])
def test_many_distinct_values_merge_to_the_same_interval(n: int, parts: int) -> None:
    shuffler = random.Random(n)
    values = [shuffler.random() for _ in range(n)]
    whole = mean_interval(values)
    shuffler.shuffle(values)
    merged = MeanState()
    for part in range(parts + 1):
        state = MeanState()
        for value in values[part :: parts + 1]:
            state.add_one(value)
        merged.merge(state)
    assert merged.estimate() == whole
    assert len(merged.clusters.counts) <= 2048


@pytest.mark.parametrize("bad", [math.nan, math.inf, "x", None])
def test_a_value_that_is_not_a_number_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"values\[1\] is"):
        mean_interval([0.5, bad])


def test_values_beyond_the_floats_are_refused() -> None:
    with pytest.raises(ValueError, match="rescale"):
        mean_interval([1e300, -1e300, 1e300])


@pytest.mark.parametrize("n", [200, 300, 1000])
def test_values_close_together_leave_room_for_a_collapse_that_was_not_drawn(n: int) -> None:
    """Of 200 scores of 0.9 ± 0.01 none shows a collapse of 1 in 100, one time in eight: t had no room for it."""
    values = np.random.default_rng(n).normal(0.9, 0.01, n)
    estimate = mean_interval(values)
    assert estimate.low is not None
    assert estimate.low < 0.9 * (1 - 2.5 / n)
    assert estimate.high == pytest.approx(0.9, abs=0.01)


def test_a_spread_of_the_last_bits_is_none() -> None:
    estimate = mean_interval([1.1, 1.1 + 2e-16, 1.1] * 5)
    assert (estimate.low, estimate.high) == (None, None)
