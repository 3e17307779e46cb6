"""Two runs over the same items."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from karat.stats import PairedComparison, holm, mcnemar, newcombe, paired, smallest_effect, tango
from karat.stats._paired import pair_correction, score_differences, score_test

rng = np.random.default_rng(0)
before = rng.normal(size=30)
after = before + rng.normal(0.3, 0.5, size=30)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 7), (5, 5), (30, 12), (0, 6), (480, 530)])
def test_mcnemar_as_statsmodels_has_it(b: int, c: int) -> None:
    theirs = reference_mcnemar([[10, b], [c, 10]], exact=True).pvalue if b + c else 1.0
    assert mcnemar(b, c).p_value == pytest.approx(min(1.0, theirs), rel=1e-9)


def test_the_mid_p_of_the_textbook() -> None:
    # Airway responsiveness before and after transplantation: Fagerland, Lydersen & Laake (2013)
    assert mcnemar(1, 7).p_value == pytest.approx(0.0703, abs=5e-5)
    assert mcnemar(1, 7, mid_p=True).p_value == pytest.approx(0.0391, abs=5e-5)


def test_published_intervals_for_paired_proportions() -> None:
    # The same data, Fagerland, Lydersen & Laake (2014): Tango 0.026 to 0.517, Newcombe 0.026 to 0.507
    score, squared = tango(1, 7, 21), newcombe(1, 1, 7, 12)
    assert (score.value, score.low, score.high) == pytest.approx((6 / 21, 0.026, 0.517), abs=5e-4)
    assert (squared.value, squared.low, squared.high) == pytest.approx((6 / 21, 0.026, 0.507), abs=5e-4)


@pytest.mark.parametrize(("b", "c", "n"), [(1, 7, 21), (5, 9, 50), (0, 3, 30), (12, 2, 40), (3, 3, 20)])
def test_tango_against_the_likelihood_maximised_numerically(b: int, c: int, n: int) -> None:
    def score(delta: float) -> float:
        def loss(q: float) -> float:
            cells = ((b, q), (c, q + delta), (n - b - c, 1 - 2 * q - delta))
            return -sum(times * math.log(max(p, 1e-300)) for times, p in cells if times)

        span = (max(0.0, -delta), (1 - delta) / 2)
        q = optimize.minimize_scalar(loss, bounds=span, method="bounded", options={"xatol": 1e-12}).x
        return (c - b - n * delta) / math.sqrt(n * (2 * q + delta * (1 - delta)))

    z = stats.norm.ppf(0.975)
    estimate = tango(b, c, n)
    assert estimate.low == pytest.approx(
        optimize.brentq(lambda d: score(d) - z, -0.999, (c - b) / n), abs=1e-6
    )
    assert estimate.high == pytest.approx(
        optimize.brentq(lambda d: score(d) + z, (c - b) / n, 0.999), abs=1e-6
    )


counts = st.integers(1, 60).flatmap(
    lambda n: st.integers(0, n).flatmap(lambda b: st.tuples(st.just(b), st.integers(0, n - b), st.just(n)))
)


@given(counts)
def test_tango_laws(cell: tuple[int, int, int]) -> None:
    b, c, n = cell
    estimate, mirrored = tango(b, c, n), tango(c, b, n)
    assert -1 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert (mirrored.low, mirrored.high) == pytest.approx((-estimate.high, -estimate.low), abs=1e-9)


@given(counts, st.integers(0, 40))
def test_newcombe_laws(cell: tuple[int, int, int], both: int) -> None:
    b, c, n = cell
    estimate = newcombe(both, b, c, n - b - c)
    assert -1 <= estimate.low <= estimate.value <= estimate.high <= 1


def test_means_as_scipy_has_them() -> None:
    result = paired(before, after)
    theirs = stats.ttest_rel(after, before)
    assert result.p_value == pytest.approx(theirs.pvalue)
    assert result.difference.value == pytest.approx((after - before).mean())
    low, high = theirs.confidence_interval()
    assert (result.difference.low, result.difference.high) == pytest.approx((low, high))
    assert result.wins + result.losses == 30
    assert result.test.statistic == pytest.approx(theirs.statistic)


def test_turning_the_sides_turns_everything() -> None:
    one, other = paired(before, after), paired(after, before)
    assert one.difference.low == -other.difference.high
    assert (one.wins, one.losses, one.p_value) == (other.losses, other.wins, other.p_value)


def test_scores_of_0_and_1_are_binary() -> None:
    a = [1] * 20 + [0] * 10
    b = [1] * 18 + [0] * 2 + [1] * 7 + [0] * 3
    result = paired(a, b)
    assert (result.losses, result.wins, result.ties) == (2, 7, 21)
    assert result.difference == tango_with_bounds(2, 7, 30)
    assert result.test == score_test(2, 7, 0.2)
    assert result.first.method == "beta"
    graded = paired(a, b, binary=False)
    assert graded.difference.method == "gaffke"
    assert paired(a, b, test="mcnemar").test == mcnemar(2, 7)
    assert graded.difference.value == pytest.approx(result.difference.value)


def tango_with_bounds(b: int, c: int, n: int) -> object:
    import msgspec

    estimate = tango(b, c, n, correction=0.2)
    return msgspec.structs.replace(estimate, lowest=estimate.value, highest=estimate.value)


def test_missing_items_are_left_out_counted_and_bounded() -> None:
    result = paired([1, 0, 1, None], [1, 1, None, 0])
    assert (result.difference.n, result.difference.of) == (2, 4)
    assert result.difference.value == 0.5
    # at worst: 0, 1, −1, −1; at best: 0, 1, 0, 0
    assert (result.difference.lowest, result.difference.highest) == (-0.25, 0.25)
    assert (result.first.n, result.first.of) == (2, 4)


def test_clusters_widen_correlated_differences() -> None:
    change = np.repeat(rng.normal(0.2, 1, 25), 4)
    base = rng.normal(size=100)
    clusters = np.repeat(np.arange(25), 4)
    plain, clustered = paired(base, base + change), paired(base, base + change, clusters)
    assert clustered.difference.metadata["design_effect"] > 3
    assert clustered.p_value > plain.p_value
    assert clustered.smallest_effect > 1.8 * plain.smallest_effect


def test_clustered_binary_scores_are_differences_by_cluster() -> None:
    a = np.repeat(rng.integers(0, 2, 25), 4)
    b = np.where(np.repeat(rng.random(25) < 0.5, 4), a, 1)
    clustered = paired(a, b, np.repeat(np.arange(25), 4))
    plain = paired(a, b)
    assert clustered.difference.method == "gaffke, clustered"
    assert clustered.difference.low < plain.difference.low
    assert clustered.difference.value == plain.difference.value
    assert clustered.test.method == "gaffke, clustered"
    with pytest.raises(ValueError, match="independent pairs"):
        paired(a, b, np.repeat(np.arange(25), 4), test="mcnemar")


def test_equal_graded_differences_leave_room_for_rare_losses() -> None:
    two = paired([0.5, 0.7], [0.5, 0.7])
    assert two.difference.low < -0.5 < 0.5 < two.difference.high
    fifty = paired([0.5] * 50, [0.5] * 50)
    # A loss of 1 in 7 % of all pairs would have been missed by 50 pairs with a probability of 2.5 %.
    assert fifty.difference.low == pytest.approx(0.025 ** (1 / 50) - 1, abs=1e-3)
    assert fifty.difference.high == pytest.approx(-fifty.difference.low)
    assert fifty.p_value == 1


def test_equal_differences_without_bounds_have_no_limits() -> None:
    result = paired([10.0, 20.0, 30.0], [11.0, 21.0, 31.0])
    assert (result.difference.value, result.difference.low, result.difference.high) == (1.0, None, None)
    assert result.p_value is None
    assert "bounds" in result.difference.metadata["reason"]
    declared = paired([10.0, 20.0, 30.0], [11.0, 21.0, 31.0], bounds=(0, 100))
    assert declared.difference.low < 0 < 1 < declared.difference.high


scores_in_bounds = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    min_size=6,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(
    scores_in_bounds,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["auto", "t", "permutation", "bootstrap", "mcnemar"]),
)
def test_the_p_value_inverts_the_interval(
    pairs: list[tuple[float, float]], clustered: bool, binary: bool, test: str
) -> None:
    if test == "mcnemar":
        binary, clustered = True, False
    a, b = zip(*pairs, strict=True)
    if binary:
        a, b = [round(x) for x in a], [round(x) for x in b]
    clusters = [i // 3 for i in range(len(a))] if clustered else None
    result = paired(a, b, clusters, test=test, n_resamples=500)  # type: ignore[arg-type]  # one of its literals
    low, high, p = result.difference.low, result.difference.high, result.p_value
    if p is None or low is None or high is None:
        return
    if low > 1e-6 or high < -1e-6:
        assert p <= 0.05 + 5e-3
    if low < -1e-6 and high > 1e-6:
        assert p >= 0.05 - 5e-3


@pytest.mark.parametrize("kind", ["binary", "graded", "tied", "declared", "skewed"])
@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_p_is_small_exactly_where_the_interval_leaves_out_0(
    kind: str, clustered: bool, confidence: float
) -> None:
    for seed in range(40):
        draw = np.random.default_rng(seed)
        n, shift = int(draw.integers(5, 80)), draw.choice([0.0, 0.05, 0.15])
        first = draw.random(n)
        second = np.clip(first + draw.normal(shift, 0.15, n), 0.0, 1.0)
        if kind == "binary":
            first, second = np.round(first), (second > 0.5) * 1.0
        elif kind == "tied":
            second = np.where(draw.random(n) < 0.8, first, second)
        elif kind == "skewed":
            first, second = 0.0 * first, draw.lognormal(0.0, 1.0, n) - draw.choice([0.8, 1.2, 2.0])
        bounds = (-1.0, 3.0) if kind == "declared" else None
        clusters = (np.arange(n) // 3).tolist() if clustered else None
        found = paired(first, second, clusters, bounds=bounds, confidence=confidence)
        low, high, p = found.difference.low, found.difference.high, found.p_value
        if p is None:
            assert low is None
            continue
        assert low is not None
        assert high is not None
        if min(abs(low), abs(high)) > 1e-7:
            assert (low > 0 or high < 0) == (p < 1 - confidence), seed


@pytest.mark.parametrize("clustered", [False, True])
def test_a_long_tail_without_bounds_has_a_longer_interval_on_its_side(clustered: bool) -> None:
    """Of 20 lognormal values t covered the mean 85 times of 100."""
    values = np.random.default_rng(1).lognormal(0.0, 1.0, 24)
    clusters = (np.arange(24) // 2).tolist() if clustered else None
    plain, longer = paired(0 * values, values, clusters, test="t"), paired(0 * values, values, clusters)
    assert longer.difference.low == plain.difference.low
    assert longer.difference.high > plain.difference.high
    assert longer.difference.method.endswith("skewed")
    turned = paired(values, 0 * values, clusters).difference
    assert (turned.low, turned.high) == pytest.approx((-longer.difference.high, -longer.difference.low))


def test_few_or_unequal_clusters_state_no_smallest_effect(says) -> None:
    """Of 15 clusters, a few of them large, effects were stated that were found in less than 60 % of other data."""
    draw = np.random.default_rng(0)
    for sizes, stated in (([5] * 15, False), ([1] * 24 + [20] * 6, False), ([5] * 40, True)):
        owner = np.repeat(np.arange(len(sizes)), sizes)
        first = draw.uniform(0.3, 0.5, len(owner))
        found = paired(first, first + draw.normal(0.0, 0.1, len(owner)), owner.tolist())
        assert (found.smallest_effect is not None) == stated
        assert (found.effect_reason == "") == stated
        says(found.effect_reason)
    says(paired([1, 0, 1], [1, 0, 1]).effect_reason)


@pytest.mark.parametrize("n", [12, 25, 60])
def test_tango_and_its_test_agree_about_zero_in_every_table(n: int) -> None:
    for b in range(n + 1):
        for c in range(n + 1 - b):
            for correction in (0.0, pair_correction(b, c, n)):
                found, tested = tango(b, c, n, correction=correction), score_test(b, c, correction)
                assert (found.low > 0 or found.high < 0) == (tested.p_value < 0.05)


@pytest.mark.parametrize("n", [20, 30, 40, 80, 100])
def test_binary_differences_cover_where_all_discordant_pairs_are_of_one_kind(n: int) -> None:
    """Exact sums: without the correction the least coverage was 0.927 to 0.930."""
    found = [paired([1] * n, [0] * b + [1] * (n - b)).difference for b in range(n + 1)]
    low, high = np.array([each.low for each in found]), np.array([each.high for each in found])
    edges = -np.concatenate([low, high])
    edges = edges[(edges > 1e-6) & (edges < 1 - 1e-6)]
    share = np.concatenate([edges - 1e-9, edges + 1e-9])
    chances = stats.binom.pmf(np.arange(n + 1)[:, None], n, share)
    covered = (chances * ((low[:, None] <= -share) & (-share <= high[:, None]))).sum(axis=0)
    assert covered.min() >= 0.93


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_bootstrap_limit_of_exactly_0_does_not_leave_out_0(sign: float) -> None:
    """Most resamples of pairs that mostly tie are 0: the share of those beyond 0 said p < 0.05."""
    a, b = [0.5] * 40, [0.5] * 37 + [0.5 + sign * 0.5] * 3
    for confidence in (0.8, 0.9, 0.95, 0.99):
        found = paired(a, b, test="bootstrap", confidence=confidence, n_resamples=999)
        low, high, p = found.difference.low, found.difference.high, found.p_value
        assert (low > 0 or high < 0) == (p < 1 - confidence - 1e-9), confidence


def test_resamples_that_are_all_on_one_side_of_0_reject() -> None:
    found = paired([0.9, 0.8, 0.95, 0.7, 0.99], [0.1, 0.2, 0.1, 0.3, 0.65], test="bootstrap", confidence=0.99)
    assert found.difference.high < 0
    assert found.p_value < 0.01


def test_too_few_pairs_for_a_permutation_interval_say_so() -> None:
    found = paired([0.1, 0.2, 0.3], [0.3, 0.5, 0.4], test="permutation")
    assert (found.difference.low, found.difference.high) == (None, None)
    assert "too few" in found.difference.metadata["reason"]


def test_other_tests_can_be_asked_for(refuses) -> None:
    assert paired(before, after, test="permutation").p_value < 0.01
    resampled = paired(before, after, test="bootstrap")
    assert resampled.difference.method == "bootstrap, bca"
    assert resampled.difference.low == pytest.approx(paired(before, after).difference.low, abs=0.05)
    with refuses(ValueError):
        paired(before, after, test="permutations")  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("n", [10, 20, 50, 200])
def test_the_smallest_effect_as_statsmodels_solves_it(n: int) -> None:
    exact = TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8)
    assert smallest_effect(1 / math.sqrt(n), n - 1) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(("n", "noise"), [(40, 0), (60, 0), (60, 6), (200, 10), (2000, 400)])
def test_the_smallest_binary_effect_is_found_four_times_of_five(n: int, noise: int) -> None:
    a = np.array([0] * (noise // 2) + [1] * (n - noise // 2))
    b = np.array([1] * (noise // 2) + [0] * (noise // 2) + [1] * (n - noise))
    effect = paired(a, b).smallest_effect
    draws = np.random.default_rng(n)
    found = 0
    for _ in range(4000):
        lost, won, _ = draws.multinomial(
            n, [0.5 * noise / n, 0.5 * noise / n + effect, 1 - noise / n - effect]
        )
        found += score_test(int(lost), int(won), pair_correction(lost, won, n)).p_value < 0.05
    assert 0.78 <= found / 4000 <= 0.96


@pytest.mark.parametrize(("lost", "won", "n"), [(25, 20, 60), (36, 0, 38), (30, 30, 60), (140, 140, 300)])
def test_the_smallest_binary_effect_where_most_pairs_differ(lost: int, won: int, n: int) -> None:
    """Runs that disagree on more than two thirds of the pairs: it was up to 0, with a power of 0.05."""
    effect = paired(
        [1] * lost + [0] * won + [1] * (n - lost - won), [0] * lost + [1] * (n - lost)
    ).smallest_effect
    assert effect is not None
    share = min(1.0, (lost + won) / n + effect)
    draws = np.random.default_rng(n).multinomial(
        n, [(share - effect) / 2, (share + effect) / 2, 1 - share], size=4000
    )
    found = np.mean(
        [(score_test(int(b), int(c), pair_correction(b, c, n)).p_value or 0.0) < 0.05 for b, c, _ in draws]
    )
    assert 0.78 <= found <= 0.96


def test_too_few_pairs_show_no_effect() -> None:
    assert paired([1, 0, 1], [1, 0, 1]).smallest_effect is None


def test_edges(refuses) -> None:
    empty = paired([], [])
    assert (empty.difference.value, empty.p_value, empty.smallest_effect) == (None, None, None)
    one = paired([0.2], [0.9])
    assert (one.difference.value, one.difference.low, one.p_value) == (pytest.approx(0.7), None, None)
    alike = paired([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
    assert (alike.difference.value, alike.p_value) == (0, 1)
    shifted = paired([0.25, 0.5, 0.75], [0.5, 0.75, 1.0])
    assert shifted.difference.low < 0
    assert shifted.p_value > 0.05
    with pytest.raises(ValueError, match=r"b\[1\] is nan"):
        paired([1, 0], [1, math.nan])
    with refuses(ValueError):
        paired([1], [1, 0])
    with pytest.raises(ValueError, match="set binary=False"):
        paired([0.5], [1], binary=True)
    with pytest.raises(ValueError, match="concordant"):
        tango(3, 3, 5)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_as_statsmodels_has_it(p_values: list[float]) -> None:
    theirs = multipletests(p_values, method="holm")[1] if p_values else []
    assert holm(p_values) == pytest.approx(list(theirs))


def test_holm_does_not_count_tests_that_were_not_made() -> None:
    assert holm([0.01, None, 0.04]) == [0.02, None, 0.04]
    with pytest.raises(ValueError, match=r"p_values\[0\] is 2"):
        holm([2])


@pytest.mark.parametrize("test", ["auto", "t", "bootstrap", "permutation"])
@pytest.mark.parametrize("clusters", [None, [0, 1, 1, 2, 0, 2, 3]])
def test_rounding_errors_are_not_spread(test: Any, clusters: list[int] | None) -> None:
    """4.1 − 4.0 and 1.1 − 1.0 differ in their last bits: that made intervals of no width."""
    before = [4.0, 5.0, 1.0, 0.0, 7.0, 501.8, 0.3]
    result = paired(before, [score + 0.1 for score in before], clusters, test=test, n_resamples=500)
    assert result.difference.value == pytest.approx(0.1)
    assert (result.difference.low, result.difference.high) == (None, None)
    assert "equal" in result.difference.metadata["reason"] or "same" in result.difference.metadata["reason"]
    assert result.p_value is None  # it would say more than the interval


def test_200_differences_of_which_most_tie_are_as_wide_as_t() -> None:
    """Ties beside many equal steps are not sparse: the interval of grades was 1.4 times as wide as t's."""
    steps = [0.0] * 130 + [0.25] * 45 + [-0.25] * 25
    grades = [0.5] * 200
    changed = [grade + step for grade, step in zip(grades, steps, strict=True)]
    ours, t = (paired(grades, changed, test=test).difference for test in ("auto", "t"))
    assert ours.high - ours.low <= 1.01 * (t.high - t.low)
    rare = [0.5] * 195 + [0.0] * 5  # these are
    ours, t = (paired(grades, rare, test=test).difference for test in ("auto", "t"))
    assert ours.high - ours.low > 1.3 * (t.high - t.low)


def test_scores_that_differ_in_their_last_bits_tie() -> None:
    result = paired([0.1 + 0.2, 0.7, 0.5], [0.3, 0.1 * 7, 0.5])
    assert (result.wins, result.losses, result.ties) == (0, 0, 3)
    assert result.p_value == 1.0


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=1, max_size=20))
def test_differences_are_those_of_the_scores(pairs: list[tuple[float, float]]) -> None:
    first, second = np.array(pairs, dtype=np.float64).T
    size = np.maximum(np.abs(first), np.abs(second))
    assert np.all(np.abs(score_differences(first, second) - (second - first)) <= 1e-13 * size + 1e-22)


def test_zeros_and_ones_of_a_wider_range_are_graded() -> None:
    """They were taken for binary scores, and a missing one for 0 to 1."""
    result = paired([1.0, 0.0, 1.0, None], [1.0, 1.0, 1.0, 1.0], bounds=(0.0, 10.0))
    assert result.difference.method == "gaffke"
    assert (result.difference.lowest, result.difference.highest) == (-2.0, 0.5)
    assert result.difference.low is not None
    assert result.difference.low < -1.0


@pytest.mark.parametrize("clustered", [False, True])
def test_the_smallest_effect_does_not_depend_on_the_order_of_the_runs(clustered: bool) -> None:
    """Without a most common value the lowest was taken for it, which is the highest of the differences reversed."""
    rng = np.random.default_rng(4)
    for n in (60, 75, 120):
        first = rng.uniform(0.2, 0.8, n)
        second = np.clip(first + rng.normal(0.05, 0.1, n) ** 3 * 40, 0, 1)
        clusters = (np.arange(n) // 2).tolist() if clustered else None
        one, other = paired(first, second, clusters), paired(second, first, clusters)
        assert one.smallest_effect == pytest.approx(other.smallest_effect, rel=1e-9)
        assert one.p_value == pytest.approx(other.p_value, rel=1e-6)
        assert one.difference.low == pytest.approx(-other.difference.high)


def test_the_smallest_effect_is_found_where_few_of_noisy_scores_change() -> None:
    """The noise is 0.08, and of the second run's scores a part is higher by 0.3."""
    rng = np.random.default_rng(5)

    def pairs(effect: float) -> PairedComparison:
        first = rng.uniform(0.35, 0.6, 60)
        changed = 0.3 * (rng.random(60) < effect / 0.3)
        return paired(first, np.clip(first + rng.normal(0.0, 0.08, 60) + changed, 0, 1))

    found = []
    for _ in range(20):
        stated = pairs(0.0).smallest_effect
        assert stated is not None
        found += [(pairs(stated).p_value or 0.0) < 0.05 for _ in range(10)]
    assert np.mean(found) >= 0.74  # 200 data sets
