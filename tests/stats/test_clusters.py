"""The degrees of freedom that clusters leave."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.stats import MeanState, agreement_between, ppi
from karat.stats._means import Sizes, sizes_of

many = st.lists(st.integers(1, 50), min_size=2, max_size=30)


@given(many, st.floats(0, 1))
def test_the_degrees_are_those_of_the_matrix(sizes: list[int], correlation: float) -> None:
    n = np.array(sizes, dtype=float)
    total = sizes_of(sizes)
    effect = 1 + correlation * (total.squares / total.items - 1)
    variance = n * (1 + (n - 1) * correlation)
    project = np.eye(len(n)) - np.outer(n, np.ones(len(n))) / n.sum()
    covariance = project @ np.diag(variance) @ project.T
    expected = np.trace(covariance) ** 2 / np.trace(covariance @ covariance)
    if total.clustered:
        assert total.degrees(effect) == pytest.approx(min(len(n) - 1, max(1, expected)), rel=1e-6)
    else:
        assert total.degrees(effect) == len(n) - 1


@given(st.integers(2, 40), st.integers(1, 9), st.floats(0.5, 9))
def test_equal_clusters_leave_one_less_than_there_are(groups: int, size: int, effect: float) -> None:
    assert sizes_of([size] * groups).degrees(effect) == pytest.approx(groups - 1)


@given(many, many)
def test_sizes_add_up(one: list[int], other: list[int]) -> None:
    left, right = sizes_of(one), sizes_of(other)
    left.merge(right)
    assert left == sizes_of(other + one)
    assert left.items == sum(one) + sum(other)
    assert left.fully_correlated() <= left.clusters + 1e-9


def test_one_cluster_leaves_nothing() -> None:
    assert sizes_of([7]).degrees(1.0) == 0
    assert Sizes().degrees(1.0) == 0


def test_large_clusters_that_fail_are_allowed_for_though_only_small_ones_did() -> None:
    rng = np.random.default_rng(4)
    held = []
    for _ in range(150):
        state = MeanState()
        for size in np.where(rng.random(60) < 0.15, 20, 1):
            state.add((rng.beta(2.0, 1.0, size) * (rng.random() >= 0.16)).tolist())
        found = state.estimate(bounds=(0.0, 1.0))
        assert found.low is not None
        assert found.high is not None
        held.append(found.low <= 0.84 * 2 / 3 <= found.high)
    assert np.mean(held) >= 0.91  # 0.81 if the missing cluster has the mean size; 150 data sets


@pytest.mark.parametrize("number", [12, 30])
def test_few_named_clusters_are_noted_by_agreement_and_prediction_powered_estimates(number):
    chance = random.Random(1)
    names = [n % number for n in range(120)]
    a = [chance.random() < 0.6 for _ in names]
    b = [x if chance.random() < 0.8 else not x for x in a]
    found = agreement_between(a, b, names)
    scores, judged = [float(x) for x in a], [float(x) for x in b]
    known = {"clusters": names, "judged_clusters": names}
    weights = [0.2 + 0.1 * (n % 3) for n in range(120)]
    estimates = [
        found.percent,
        found.kappa,
        found.alpha,
        ppi(scores, judged, judged, **known),
        ppi(scores, judged, judged, probabilities=weights, **known),
    ]
    for each in estimates:
        assert each.low is not None
        assert ("note" in each.metadata) is (number == 12)
    alone = agreement_between(a[:20], b[:20])
    assert not any("note" in each.metadata for each in (alone.percent, alone.kappa, alone.alpha))
