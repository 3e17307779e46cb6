"""Rankings by Bradley and Terry's model."""

from __future__ import annotations

import math

import evalica
import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from karat.stats import MeanState, bradley_terry, elo, wilson
from karat.stats import _ratings as comparisons_module
from karat.stats._means import win_rate
from karat.stats._ratings import _inverse


def tournament(
    runs: int, n: int, ties: float = 0.1, seed: int = 0, bias: float = 0.0
) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    strength = np.linspace(1, -1, runs)
    first = rng.integers(0, runs, n)
    second = (first + rng.integers(1, runs, n)) % runs
    win = rng.random(n) < 1 / (1 + np.exp(strength[second] - strength[first] - bias))
    return first, second, np.where(rng.random(n) < ties, 0.5, win * 1.0)


def columns(data: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    return dict(zip(("first", "second", "outcomes"), data, strict=True))


def test_the_strengths_are_evalicas() -> None:
    first, second, outcomes = data = tournament(8, 3000)
    words = {1.0: evalica.Winner.X, 0.0: evalica.Winner.Y, 0.5: evalica.Winner.Draw}
    theirs = evalica.bradley_terry(
        first.tolist(), second.tolist(), [words[o] for o in outcomes], tolerance=1e-12, limit=10_000
    ).scores
    logs = np.log(theirs)
    ours = bradley_terry(**columns(data), prior=0, elo_scale=False)
    assert {run.name: run.rating.value for run in ours.runs} == pytest.approx(
        (logs - logs.mean()).to_dict(), abs=1e-9
    )


def test_the_covariance_is_that_of_a_clustered_logistic_regression() -> None:
    first, second, outcomes = tournament(5, 800, ties=0.0)
    clusters = np.random.default_rng(1).integers(0, 60, 800)
    design = np.zeros((800, 5))
    design[np.arange(800), first] += 1
    design[np.arange(800), second] -= 1
    fit = sm.GLM(outcomes, design[:, 1:] - 0 * design[:, :1], family=sm.families.Binomial()).fit(
        cov_type="cluster", cov_kwds={"groups": clusters, "use_correction": False}
    )
    to_centred = np.vstack([np.zeros(4), np.eye(4)]) - 1 / 5
    expected = to_centred @ fit.cov_params() @ to_centred.T * 60 / 59 * 799 / 796
    ours = bradley_terry(
        first=first, second=second, outcomes=outcomes, clusters=clusters, prior=0, elo_scale=False
    )
    order = [run.name for run in ours.runs]
    assert np.array(ours.covariance) == pytest.approx(expected[np.ix_(order, order)], rel=1e-6)
    assert ours.clusters == 60


def test_without_clusters_every_comparison_is_its_own() -> None:
    data = tournament(4, 300)
    plain = bradley_terry(**columns(data))
    spelled_out = bradley_terry(**columns(data), clusters=np.arange(300))
    assert plain == spelled_out
    # the same by the way that sums over clusters, with one of them holding two
    clusters = np.arange(300)
    clusters[1] = 0
    nearly = bradley_terry(**columns(data), clusters=clusters)
    assert np.array(nearly.covariance) == pytest.approx(np.array(plain.covariance), rel=0.05)


def test_clusters_in_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tournament(4, 500)
    clusters = np.random.default_rng(2).integers(0, 90, 500)
    whole = bradley_terry(**columns(data), clusters=clusters)
    monkeypatch.setattr(comparisons_module, "_BLOCK", 40)
    cut = bradley_terry(**columns(data), clusters=clusters)
    assert np.array(cut.covariance) == pytest.approx(np.array(whole.covariance), rel=1e-9)
    assert cut.runs[0].win_rate.low == pytest.approx(whole.runs[0].win_rate.low)


def test_copies_of_an_example_add_no_information() -> None:
    data = tournament(4, 300)
    once = bradley_terry(**columns(data), prior=0)
    copied = bradley_terry(
        **columns(tuple(np.repeat(c, 5) for c in data)), clusters=np.repeat(np.arange(300), 5), prior=0
    )
    assert copied.runs[0].rating.low == pytest.approx(once.runs[0].rating.low, abs=1.0)
    assert copied.runs[0].win_rate.low == pytest.approx(once.runs[0].win_rate.low, abs=0.01)
    naive = bradley_terry(**columns(tuple(np.repeat(c, 5) for c in data)), prior=0)
    width = naive.runs[0].rating.high - naive.runs[0].rating.low
    assert width < 0.5 * (once.runs[0].rating.high - once.runs[0].rating.low)


@pytest.mark.parametrize("n", [10, 30, 100])
def test_unanimous_results_are_finite_and_about_as_sure_as_wilson(n: int, refuses) -> None:
    ranking = bradley_terry([("a", "b", 1)] * n)
    chance = ranking.against("a", "b")
    assert 0.9 < chance.value < 1
    assert chance.low == pytest.approx(wilson(n, n).low, abs=0.04 if n > 10 else 0.21)
    assert ranking.runs[0].win_rate.value == 1
    with refuses(ValueError):
        bradley_terry([("a", "b", 1)] * n, prior=0)


def test_names_tuples_and_arrays_say_the_same() -> None:
    first, second, outcomes = data = tournament(3, 60)
    by_array = bradley_terry(**columns(data))
    named = [("abc"[f], "abc"[s], o) for f, s, o in zip(first, second, outcomes, strict=True)]
    by_tuple = bradley_terry(named)
    assert {r.name: r.rating.value for r in by_tuple.runs} == pytest.approx(
        {"abc"[r.name]: r.rating.value for r in by_array.runs}
    )
    assert [r.rank for r in by_tuple.runs] == [1, 2, 3]
    assert sum(r.wins for r in by_tuple.runs) == sum(r.losses for r in by_tuple.runs)
    assert sum(r.ties for r in by_tuple.runs) == 2 * by_tuple.ties


def test_components_are_reported_and_not_compared(refuses) -> None:
    ranking = bradley_terry([("a", "b", 1), ("b", "a", 0), ("c", "d", 1), ("d", "e", 0.5)], names="abcdef")
    assert ranking.components == [["c", "d", "e"], ["a", "b"], ["f"]]
    assert ranking.against("a", "c").value is None
    assert "no chain" in ranking.against("a", "c").metadata["reason"]
    lonely = ranking.runs[-1]
    assert (lonely.name, lonely.rating.n, lonely.rating.low, lonely.win_rate.value) == ("f", 0, None, None)
    assert all(run.rank_low == 1 for run in ranking.runs)
    with refuses(ValueError):
        ranking.against("a", "z")


def test_rank_ranges_hold_the_rank_and_narrow_with_data() -> None:
    few, many = (bradley_terry(**columns(tournament(5, n))) for n in (60, 20_000))
    for run in few.runs:
        assert run.rank_low <= run.rank <= run.rank_high
    assert few.runs[2].rank_high - few.runs[2].rank_low >= 2
    assert [(run.rank_low, run.rank_high) for run in many.runs] == [(i, i) for i in range(1, 6)]


def test_win_probabilities() -> None:
    ranking = bradley_terry(**columns(tournament(4, 500)))
    chances = np.array(ranking.win_probability)
    assert chances + chances.T == pytest.approx(np.ones((4, 4)))
    best, worst = ranking.runs[0].name, ranking.runs[-1].name
    one = ranking.against(best, worst)
    assert one.value == pytest.approx(chances[0, 3])
    assert one.low < one.value < one.high
    gap = (ranking.runs[0].rating.value - ranking.runs[-1].rating.value) / 400
    assert one.value == pytest.approx(1 / (1 + 10**-gap))


def test_ratings_average_1500() -> None:
    ranking = bradley_terry(**columns(tournament(6, 400)))
    assert np.mean([run.rating.value for run in ranking.runs]) == pytest.approx(1500)


def test_position_bias_is_found() -> None:
    biased = bradley_terry(**columns(tournament(5, 6000, bias=0.5)))
    bias = biased.position_bias
    assert bias.low < 1 / (1 + math.exp(-0.5)) + 0.01  # ties halve a little of it
    assert bias.low > 0.55
    fair = bradley_terry(**columns(tournament(5, 6000)))
    assert fair.position_bias.low < 0.5 < fair.position_bias.high


def test_position_is_adjusted_for_where_it_is_unbalanced() -> None:
    # Two equal runs; a is shown first nine times of ten, and the first wins seven of ten.
    rng = np.random.default_rng(3)
    a_first = rng.random(4000) < 0.9
    first = np.where(a_first, 0, 1)
    outcomes = (rng.random(4000) < 0.7) * 1.0
    plain = bradley_terry(first=first, second=1 - first, outcomes=outcomes)
    adjusted = bradley_terry(first=first, second=1 - first, outcomes=outcomes, adjust_position=True)
    ratings = {run.name: run.rating for run in adjusted.runs}
    assert plain.runs[0].rating.low > 1500
    assert ratings[0].low < 1500 < ratings[0].high
    assert adjusted.position_bias.value == pytest.approx(0.7, abs=0.03)


def test_position_that_cannot_be_known_is_none() -> None:
    ranking = bradley_terry([("a", "b", 1), ("a", "b", 0), ("b", "c", 1), ("b", "c", 0)])
    assert ranking.position_bias.value is None
    assert "both orders" in ranking.position_bias.metadata["reason"]
    with pytest.raises(ValueError, match="both orders"):
        bradley_terry([("a", "b", 1), ("a", "b", 0)], adjust_position=True)


def test_davidsons_ties_are_the_maximum_of_his_likelihood() -> None:
    first, second, outcomes = data = tournament(3, 400, ties=0.3)
    prior = 1.0

    def loss(parameters: np.ndarray) -> float:
        theta, tie = parameters[:3], math.exp(parameters[3])
        gap = theta[first] - theta[second]
        total = np.exp(gap / 2) + np.exp(-gap / 2) + tie
        seen = np.where(outcomes == 0.5, tie, np.exp(np.where(outcomes == 1, gap, -gap) / 2))
        weak = prior * np.log(np.exp(parameters / 2) + np.exp(-parameters / 2)).sum()
        return float(-np.log(seen / total).sum() + weak)

    best = optimize.minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-8}).x
    ranking = bradley_terry(**columns(data), ties="davidson", elo_scale=False)
    centred = best[:3] - best[:3].mean()
    assert {r.name: r.rating.value for r in ranking.runs} == pytest.approx(dict(enumerate(centred)), abs=1e-5)
    assert ranking.tie == pytest.approx(math.exp(best[3]), rel=1e-5)
    i, j = (run.name for run in ranking.runs[:2])
    gap = centred[i] - centred[j]
    e = math.exp(-gap / 2)
    assert ranking.against(i, j).value == pytest.approx(
        (1 + ranking.tie * e / 2) / (1 + e * e + ranking.tie * e), abs=1e-5
    )


def test_davidsons_covariance_is_the_same_from_the_table_and_from_clusters() -> None:
    data = tournament(4, 400, ties=0.3)
    clusters = np.arange(400)
    clusters[1] = 0
    one = bradley_terry(**columns(data), ties="davidson", adjust_position=True)
    other = bradley_terry(**columns(data), ties="davidson", adjust_position=True, clusters=clusters)
    assert np.array(other.covariance) == pytest.approx(np.array(one.covariance), rel=0.08)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("de"), st.sampled_from([0, 0.5, 1])),
        min_size=1,
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_comparisons_and_of_sides_does_not_matter(games: list, shuffler: object) -> None:
    turned = [(b, a, 1 - outcome) for a, b, outcome in games]
    shuffler.shuffle(turned)  # type: ignore[attr-defined]  # hypothesis types its randoms as objects
    one, other = bradley_terry(games), bradley_terry(turned)
    found = {run.name: run for run in other.runs}
    for run in one.runs:
        twin = found[run.name]
        assert run.rating.value == pytest.approx(twin.rating.value, abs=1e-5)
        assert run.win_rate.value == pytest.approx(twin.win_rate.value)
        assert (run.rank_low, run.rank_high) == (twin.rank_low, twin.rank_high)
        assert math.isfinite(run.rating.value)


def test_it_agrees_with_elo_on_who_is_best() -> None:
    first, second, outcomes = data = tournament(4, 2000)
    ranking = bradley_terry(**columns(data))
    ratings = elo(zip(first.tolist(), second.tolist(), outcomes.tolist(), strict=True), shuffles=20)
    assert [run.name for run in ranking.runs] == list(ratings)


@pytest.mark.parametrize("size", [5, 40, 101, 300])
def test_the_inverse_in_quarters_is_the_inverse(size: int) -> None:
    root = np.random.default_rng(4).normal(size=(size, size))
    matrix = root @ root.T + np.eye(size)
    assert _inverse(matrix) == pytest.approx(np.linalg.inv(matrix), rel=1e-7, abs=1e-10)


def test_edges() -> None:
    empty = bradley_terry([])
    assert (empty.runs, empty.n, empty.position_bias.value) == ([], 0, None)
    one = bradley_terry([("a", "b", 1)])
    assert one.runs[0].name == "a"
    assert one.runs[0].rating.low is None
    tied = bradley_terry([("a", "b", 0.5)] * 20)
    assert tied.runs[0].rating.value == pytest.approx(1500)
    assert tied.runs[0].rating.low < 1499
    lone_cluster = bradley_terry([("a", "b", 1), ("b", "a", 1), ("a", "b", 0.5)], clusters="xxx")
    assert lone_cluster.runs[0].rating.low is None
    sparse = bradley_terry(first=np.array([0, 10**9]), second=np.array([10**9, 0]), outcomes=[1, 0])
    assert {run.name for run in sparse.runs} == {0, 10**9}


@pytest.mark.parametrize(
    "arguments",
    [
        {"comparisons": [("a", "b", 2)]},
        {"comparisons": [("a", "b", math.nan)]},
        {"comparisons": [("a", "a", 1)]},
        {"comparisons": [("a", "b", 1)], "names": "ac"},
        {"comparisons": [("a", "b", 1)], "clusters": [1, 2]},
        {"comparisons": [("a", "b", 1)], "ties": "whole"},
        {"comparisons": [("a", "b", 1)], "prior": -1},
        {"first": [1]},
    ],
)
def test_what_is_refused(arguments: dict, refuses) -> None:
    with refuses(ValueError):
        bradley_terry(**arguments)


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("outcomes", [[0.0, 0.5, 1.0], [0.0, 0.3, 0.5, 0.7, 1.0]])
def test_win_rates_are_means_of_points_by_cluster(clustered: bool, outcomes: list[float]) -> None:
    draws = np.random.default_rng(5)
    rows = []
    for example in range(40):
        for _ in range(int(draws.integers(1, 5))):
            first, second = draws.choice(4, 2, replace=False).tolist()
            rows.append((first, second, float(draws.choice(outcomes)), example))
    clusters = [row[3] for row in rows] if clustered else None
    ranking = bradley_terry([row[:3] for row in rows], clusters=clusters)
    for run in ranking.runs:
        points: dict[int, list[float]] = {}
        for place, (first, second, outcome, example) in enumerate(rows):
            if run.name in (first, second):
                mine = outcome if run.name == first else 1.0 - outcome
                points.setdefault(example if clustered else place, []).append(mine)
        state = MeanState()
        for values in points.values():
            state.add(values)
        expected = win_rate(state)
        found = run.win_rate
        assert (found.value, found.low, found.high) == pytest.approx(
            (expected.value, expected.low, expected.high), abs=1e-9
        )
        assert (found.n, found.method) == (expected.n, expected.method)


def test_clusters_of_any_size_are_counted() -> None:
    # A table of all numbers of comparisons and points in a cluster would take gigabytes.
    first, second, outcomes = tournament(3, 60_000)
    clusters = np.arange(60_000) % 2
    ranking = bradley_terry(first=first, second=second, outcomes=outcomes, clusters=clusters)
    for run in ranking.runs:
        mine = np.where(first == run.name, outcomes, 1.0 - outcomes)
        played = (first == run.name) | (second == run.name)
        state = MeanState()
        state.add_values(mine[played], clusters[played])
        expected = win_rate(state)
        assert (run.win_rate.value, run.win_rate.low) == pytest.approx(
            (expected.value, expected.low), rel=1e-9
        )


def test_ties_leave_room_for_rare_wins() -> None:
    ranking = bradley_terry([("a", "b", 0.5)] * 50)
    for run in ranking.runs:
        assert run.rating.high - run.rating.low > 20
        assert run.win_rate.high - run.win_rate.low > 0.05
        assert run.rank == 1
    bias = bradley_terry([("a", "b", 0.5), ("b", "a", 0.5)] * 25).position_bias
    assert bias.high - bias.low > 0.05


def test_equal_ratings_share_a_rank() -> None:
    rows = [("a", "b", 0.5), ("b", "a", 0.5), ("a", "c", 1), ("b", "c", 1), ("c", "d", 0.5)]
    ranks = {run.name: run.rank for run in bradley_terry(rows * 3).runs}
    assert ranks["a"] == ranks["b"] == 1
    assert ranks["c"] >= 3


def test_one_cluster_gives_no_interval() -> None:
    ranking = bradley_terry([("a", "b", 1), ("a", "b", 1)], clusters=["x", "x"])
    assert "one cluster" in ranking.runs[0].rating.metadata["reason"]
    found = ranking.against("a", "b")
    assert found.value is not None
    assert found.value > 0.5
    assert (found.low, found.high) == (None, None)
