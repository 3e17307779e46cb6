"""Shares and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy.stats import beta, binom
from statsmodels.stats.proportion import proportion_confint

from karat.records import Estimate
from karat.stats import (
    clopper_pearson,
    mean_interval,
    missing_bounds,
    paired,
    proportion,
    share,
    wilson,
    with_bounds,
)
from karat.stats._distributions import critical
from karat.stats._means import few_clusters_note
from karat.stats._proportions import wilson_limits


@pytest.mark.parametrize(
    ("successes", "n"), [(0, 1), (1, 1), (3, 10), (0, 20), (20, 20), (84, 100), (950, 1000)]
)
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_wilson_and_clopper_pearson_as_statsmodels_has_them(
    successes: int, n: int, confidence: float
) -> None:
    for method, ours in (("wilson", wilson), ("beta", clopper_pearson)):
        low, high = proportion_confint(successes, n, alpha=1 - confidence, method=method)
        estimate = ours(successes, n, confidence)
        assert estimate.low == pytest.approx(low, abs=1e-9)
        assert estimate.high == pytest.approx(high, abs=1e-9)
        assert (estimate.value, estimate.n, estimate.of) == (successes / n, n, n)


@given(
    st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999)
)
def test_wilson_stays_in_range_and_holds_the_share(counts: tuple[int, int], confidence: float) -> None:
    successes, n = counts
    estimate = wilson(successes, n, confidence)
    assert 0.0 <= estimate.low <= successes / n <= estimate.high <= 1.0
    mirrored = wilson(n - successes, n, confidence)
    assert mirrored.low == pytest.approx(1 - estimate.high, abs=1e-12)


@given(st.integers(2, 300), st.floats(1.01, 20))
def test_a_design_effect_widens(n: int, effect: float) -> None:
    plain, clustered = wilson(n // 2, n), wilson(n // 2, n, design_effect=effect)
    assert clustered.low < plain.low
    assert clustered.high > plain.high
    assert clustered.metadata["effective_n"] == pytest.approx(n / effect)


def test_nothing_gives_nothing() -> None:
    assert wilson(0, 0) == Estimate(None, method="wilson")
    assert clopper_pearson(0, 0).value is None
    assert proportion([]).value is None


def test_missing_items_give_bounds() -> None:
    estimate = wilson(798, 950, of=1000)
    assert (estimate.n, estimate.of) == (950, 1000)
    assert (estimate.lowest, estimate.highest) == pytest.approx((0.798, 0.848))
    nothing_known = wilson(0, 0, of=7)
    assert (nothing_known.value, nothing_known.lowest, nothing_known.highest) == (None, 0.0, 1.0)


@given(st.floats(0, 1), st.integers(1, 1000), st.integers(0, 1000))
def test_bounds_hold_the_value(value: float, n: int, missing: int) -> None:
    lowest, highest = missing_bounds(value, n, n + missing)
    assert lowest <= value <= highest
    assert highest - lowest == pytest.approx(missing / (n + missing), abs=1e-9)


def test_bounds_for_scores_of_another_range(refuses) -> None:
    estimate = with_bounds(Estimate(3.0, n=8, of=8), 10, 1.0, 5.0)
    assert (estimate.lowest, estimate.highest) == pytest.approx((2.6, 3.4))
    assert missing_bounds(None, 0, 0) == (None, None)
    with refuses(ValueError):
        missing_bounds(0.5, 1, 2, 1.0, 0.0)


@pytest.mark.parametrize("n", [15, 20, 36, 50, 100, 137, 200, 500])
def test_a_share_covers_also_near_0_and_1(n: int) -> None:
    """Coverage jumps where the true share passes a limit; it was 0.919 for 36 items."""
    limits = [share(k, n) for k in range(n + 1)]
    low, high = np.array([e.low for e in limits]), np.array([e.high for e in limits])
    jumps = np.concatenate([low - 1e-9, low + 1e-9])
    p = np.concatenate([np.linspace(1e-4, 0.5, 500), jumps[(jumps > 0.0) & (jumps < 0.5)]])
    chances = binom.pmf(np.arange(n + 1)[:, None], n, p)
    covered = (chances * ((low[:, None] <= p) & (p <= high[:, None]))).sum(axis=0)
    assert covered.min() >= 0.93
    assert 0.95 <= covered[:500].mean() <= (0.966 if n > 20 else 0.99)


def test_a_share_is_wilsons_unless_one_side_is_rare() -> None:
    assert share(16, 32) == wilson(16, 32)
    assert share(17, 20) == clopper_pearson(17, 20)
    assert share(4, 20) == clopper_pearson(4, 20)
    between = share(13, 40)
    assert between.method == "beta"
    assert (between.low, between.high) == pytest.approx(
        (beta.ppf(0.025, 13.3, 27.7), beta.ppf(0.975, 13.7, 27.3))
    )


@pytest.mark.parametrize("failures", [10, 12, 15, 16, 20, 100])
def test_a_share_of_many_is_not_much_wider_than_t(failures: int) -> None:
    found = share(200 - failures, 200)
    error = (failures / 200 * (1 - failures / 200) / 199) ** 0.5
    assert found.high - found.low <= 1.05 * 2 * critical(0.95, 199) * error


def test_no_items_have_no_share() -> None:
    assert share(0, 0).value is None


def test_values_instead_of_counts() -> None:
    values = [True, False, True, True]
    assert proportion(values) == share(3, 4)


def test_clusters_of_one_change_nothing() -> None:
    found = proportion([1, 0, 1, 1, 0], clusters=range(5))
    assert found == replace(share(3, 5), metadata=found.metadata)


@pytest.mark.parametrize("clusters", [2, 10, 29])
@pytest.mark.parametrize("size", [1, 3])
def test_few_clusters_are_noted(clusters: int, size: int) -> None:
    owner = [i // size for i in range(clusters * size)]
    values = [float(i % 3 == 0) for i in range(clusters * size)]
    for found in (
        proportion(values, owner),
        mean_interval([0.5 * value for value in values], owner),
        paired(values, values[::-1], owner).difference,
    ):
        assert found.metadata["note"] == few_clusters_note(clusters)
        assert str(clusters) in found.metadata["note"]


def test_enough_clusters_and_independent_items_have_no_note() -> None:
    values = [float(i % 3 == 0) for i in range(60)]
    for clusters in (None, [i // 2 for i in range(60)]):
        assert "note" not in proportion(values, clusters).metadata
        assert "note" not in mean_interval(values, clusters).metadata
        assert "note" not in paired(values, values[::-1], clusters).difference.metadata
    assert "note" not in proportion(values[:5]).metadata


def test_copies_of_an_item_add_no_information() -> None:
    once = mean_interval([1, 0, 1, 1, 0, 1, 0, 1, 1, 0] * 3)
    values = [value for value in [1, 0, 1, 1, 0, 1, 0, 1, 1, 0] * 3 for _ in range(5)]
    copied = proportion(values, clusters=[i // 5 for i in range(150)])
    assert copied.value == once.value
    assert copied.metadata["design_effect"] == pytest.approx(5 * 149 / 150 * 30 / 29)
    assert copied.high - copied.low == pytest.approx(once.high - once.low, rel=0.06)


def test_where_all_succeed_a_cluster_counts_as_one() -> None:
    estimate = proportion([1] * 40, clusters=[i // 4 for i in range(40)])
    assert (estimate.value, estimate.high) == (1.0, 1.0)
    assert estimate.low < clopper_pearson(10, 10).low


def test_one_cluster_counts_as_one_item() -> None:
    low, high = wilson_limits(2 / 3, 1.0, critical(0.95))
    estimate = proportion([1, 1, 0], clusters="aaa")
    assert (estimate.low, estimate.high) == (low, high)


@pytest.mark.parametrize(
    "call",
    [
        lambda: wilson(5, 3),
        lambda: clopper_pearson(5, 3),
        lambda: wilson(-1, 3),
        lambda: wilson(1.5, 3),
        lambda: wilson("x", 3),
        lambda: wilson(1, 3, 95),
        lambda: wilson(1, 3, of=2),
        lambda: wilson(1, 3, design_effect=0),
        lambda: proportion([1, math.nan]),
        lambda: proportion([1, 0.5]),
        lambda: proportion([1, 0], clusters="abc"),
    ],
)
def test_what_is_refused(call: object, refuses) -> None:
    with refuses(ValueError):
        call()  # type: ignore[operator]  # the table holds calls
