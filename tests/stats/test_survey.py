"""Estimates from samples with inclusion probabilities and from clustered samples: coverage over random designs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from karat.stats import StatisticsError, cohen_kappa, ppi
from karat.stats._prediction_powered import WeightedSample, weighted_kappa

ROUNDS = 200


def population(draw: random.Random, examples: int, sizes: list[int]):
    """Outputs of examples of several sizes; larger examples are better, so that sizes cannot be ignored."""
    out = []
    for example in range(examples):
        size = draw.choice(sizes)
        share = 0.4 + 0.1 * size
        shared, luck = draw.random() < share, draw.random()
        for _ in range(size):
            truth = shared if draw.random() < 0.7 else draw.random() < share
            x = luck if draw.random() < 0.5 else draw.random()
            out.append((example, truth, x < (0.92 if truth else 0.3)))
    return out


def mean_truth(sizes: list[int]) -> float:
    return sum(size * (0.4 + 0.1 * size) for size in sizes) / sum(sizes)


def covers(estimate, truth: float) -> bool:
    return estimate.low is None or estimate.low <= truth <= estimate.high


@pytest.mark.parametrize("sizes", [[1], [1, 2, 5]])
@pytest.mark.parametrize("design", ["outputs", "examples", "probabilities"])
def test_a_corrected_mean_covers_the_truth(sizes, design):
    draw, hits, errors = random.Random(4), 0, []
    for _ in range(ROUNDS):
        items = population(draw, 120, sizes)
        chances = [0.6 if judged else 0.15 for *_, judged in items]
        if design == "outputs":
            chosen = set(draw.sample(range(len(items)), len(items) // 5))
        elif design == "examples":
            names = set(draw.sample(range(120), 24))
            chosen = {place for place, (example, *_) in enumerate(items) if example in names}
        else:
            chosen = {place for place, chance in enumerate(chances) if draw.random() < chance}
        mine = sorted(chosen)
        rest = [place for place in range(len(items)) if place not in chosen]
        found = ppi(
            [items[n][1] for n in mine],
            [items[n][2] for n in mine],
            [items[n][2] for n in rest],
            clusters=[items[n][0] for n in mine],
            judged_clusters=[items[n][0] for n in rest],
            probabilities=[chances[n] for n in mine] if design == "probabilities" else None,
        )
        hits += covers(found, mean_truth(sizes))
        errors.append(found.value - mean_truth(sizes))
    assert hits / ROUNDS >= 0.93
    assert abs(sum(errors) / ROUNDS) < 0.02  # the estimate itself is not off


def test_clusters_of_one_item_change_nothing_and_shared_clusters_widen():
    draw = random.Random(2)
    y = [draw.random() < 0.6 for _ in range(40)]
    f = [each if draw.random() < 0.85 else not each for each in y]
    others = [draw.random() < 0.6 for _ in range(200)]
    plain = ppi(y, f, others)
    single = ppi(y, f, others, clusters=list(range(40)), judged_clusters=list(range(40, 240)))
    assert (single.value, single.low, single.high) == pytest.approx((plain.value, plain.low, plain.high))
    by_four = ppi(
        y, f, others, clusters=[n // 4 for n in range(40)], judged_clusters=[n // 4 for n in range(200)]
    )
    assert by_four.value == pytest.approx(plain.value)
    assert by_four.metadata["clusters"] == 50
    with pytest.raises(StatisticsError):
        ppi(y, f, others, clusters=list(range(40)))
    with pytest.raises(StatisticsError):
        ppi(y, f, others, probabilities=[0.0] * 40)


def test_equal_probabilities_are_the_plain_kappa():
    draw = random.Random(3)
    a = [draw.choice("xyz") for _ in range(80)]
    b = [each if draw.random() < 0.7 else draw.choice("xyz") for each in a]
    weighted, plain = weighted_kappa(a, b, [0.3] * 80), cohen_kappa(a, b)
    assert weighted.value == pytest.approx(plain.value)
    assert weighted.low < weighted.value < weighted.high


def test_weights_remove_the_bias_of_a_selective_sample():
    """Half of the passes and a twentieth of the fails are labelled: the plain share is far off."""
    draw, hits = random.Random(5), 0
    for _ in range(ROUNDS):
        truth = [draw.random() < 0.3 for _ in range(600)]
        judged = [each if draw.random() < 0.9 else not each for each in truth]
        chances = [0.5 if each else 0.05 for each in judged]
        mine = [n for n in range(600) if draw.random() < chances[n]]
        found = WeightedSample([chances[n] for n in mine]).estimate(
            np.array([[float(truth[n]), 1.0] for n in mine]),
            lambda sums: sums[:, 0] / sums[:, 1],
            np.array([[0.0, 1.0], [1.0, 1.0]]),
            0.95,
        )
        hits += covers(found, 0.3)
    assert hits / ROUNDS >= 0.93


def test_a_sample_without_an_error_has_a_width():
    sample = WeightedSample([0.5] * 10 + [0.1] * 10)
    rows = np.ones((20, 2))
    found = sample.estimate(
        rows, lambda sums: sums[:, 0] / sums[:, 1], np.array([[0.0, 1.0], [1.0, 1.0]]), 0.95
    )
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low < 0.95
    assert sample.effective < 20


@pytest.mark.parametrize("passed", [0, 1, 2])
def test_items_that_were_not_drawn_because_they_seldom_are_widen_the_interval(passed):
    """Of 600 items none of the 200 that the judge passes was drawn; they may all be right."""
    labels = [1.0] * passed + [0.0] * (20 - passed)
    found = ppi(labels, [0.0] * 20, [0.0] * 380 + [1.0] * 200, probabilities=[0.05] * 20)
    assert found.high > (400 * passed / 20 + 200) / 600
