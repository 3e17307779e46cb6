"""The bootstrap and the permutation test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from karat.stats import bootstrap, mean_interval, permutation

skewed = np.random.default_rng(0).exponential(size=40)


@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_about_what_scipy_gives(method: str) -> None:
    theirs = stats.bootstrap(
        (skewed,),
        np.mean,
        n_resamples=20_000,
        method=method.replace("bca", "BCa"),
        rng=np.random.default_rng(1),
    ).confidence_interval
    ours = bootstrap(skewed, n_resamples=20_000, method=method, seed=2)  # type: ignore[arg-type]  # parametrised
    assert ours.value == pytest.approx(skewed.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_a_seed_gives_the_same_and_another_seed_not() -> None:
    assert bootstrap(skewed, seed=3) == bootstrap(skewed, seed=3)
    assert bootstrap(skewed, seed=3).low != bootstrap(skewed, seed=4).low


def test_any_statistic_of_values_or_rows() -> None:
    median = bootstrap(skewed, lambda drawn: float(np.median(drawn)))
    assert median.low < median.value == np.median(skewed) < median.high
    rows = np.column_stack([skewed, skewed * 2 + np.random.default_rng(1).normal(size=40)])
    correlation = bootstrap(rows, lambda drawn: float(np.corrcoef(drawn.T)[0, 1]), n_resamples=300)
    assert 0.5 < correlation.low < correlation.value < correlation.high <= 1


def test_the_mean_by_the_fast_and_the_general_way_is_one() -> None:
    fast = bootstrap(skewed, n_resamples=500, clusters=np.arange(40) // 4)
    general = bootstrap(
        skewed, lambda drawn: float(drawn.mean()), n_resamples=500, clusters=np.arange(40) // 4
    )
    assert (fast.low, fast.high) == pytest.approx((general.low, general.high))


def test_clusters_are_drawn_whole() -> None:
    values, clusters = np.repeat(skewed, 5), np.repeat(np.arange(40), 5)
    plain, clustered = bootstrap(values), bootstrap(values, clusters=clusters)
    assert clustered.high - clustered.low > 1.8 * (plain.high - plain.low)
    by_t = mean_interval(values, clusters=clusters)
    assert clustered.low == pytest.approx(by_t.low, abs=0.15)


def test_undefined_resamples_are_counted() -> None:
    def ratio(drawn: np.ndarray) -> float | None:
        return None if drawn.sum() == 0 else float(1 / drawn.mean())

    estimate = bootstrap([1, 0, 0], ratio, n_resamples=400, method="percentile")
    assert 80 < estimate.metadata["undefined"] < 160  # (2/3)³ of 400 is 119
    assert estimate.low is not None
    never = bootstrap([1, 2, 3], lambda drawn: math.nan if len(set(drawn)) < 3 else 1.0)
    assert (never.value, never.low) == (1.0, None)
    assert "most resamples" in never.metadata["reason"]


def test_edges(refuses) -> None:
    assert bootstrap([]).value is None
    assert bootstrap([2.0]).low is None
    same = bootstrap([2.0] * 5)
    assert (same.value, same.low, same.high) == (2.0, None, None)
    assert "same value" in same.metadata["reason"]
    assert bootstrap([1.0, 2.0], lambda drawn: None).value is None
    with pytest.raises(ValueError, match="NaN"):
        bootstrap([1.0, math.nan])
    with refuses(ValueError):
        bootstrap([1.0], method="basic")  # type: ignore[arg-type]  # wrong on purpose


def test_all_sign_flips_as_scipy_has_them() -> None:
    differences = np.random.default_rng(2).normal(0.4, 1, 12)
    theirs = stats.permutation_test(
        (differences,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=np.inf
    )
    assert permutation(differences) == (pytest.approx(theirs.pvalue), "permutation, exact")


def test_drawn_sign_flips_are_close_to_the_t_test() -> None:
    differences = np.random.default_rng(3).normal(0.25, 1, 60)
    p_value, method = permutation(differences, n_resamples=20_000, seed=1)
    assert p_value == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.02)
    assert method == "permutation, 20000 drawn"


def test_permutation_edges() -> None:
    assert permutation([])[0] is None
    assert permutation([0.0, 0.0])[0] == 1.0
    assert permutation([1.0] * 5)[0] == 2 / 32
    assert permutation([1.0] * 100, n_resamples=999)[0] == 1 / 1000
    assert permutation([1.0] * 6, clusters="aabbcc")[0] == 2 / 8


def test_equal_values_have_no_limits_though_their_sums_round() -> None:
    found = bootstrap([0.1] * 87, n_resamples=500)
    assert (found.low, found.high) == (None, None)
