"""Few human labels and many of a judge."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ppi_py import ppi_mean_ci, ppi_mean_pointestimate

from karat.stats import mean_interval, ppi

rng = np.random.default_rng(0)
truth = (rng.random(2060) < 0.7) * 1.0
judged = np.where(rng.random(2060) < 0.85, truth, 1 - truth)
labels, judged_labels, judged_all = truth[:60], judged[:60], judged[60:]


@pytest.mark.parametrize("tuned", [True, False])
def test_the_estimate_is_that_of_ppi_python(tuned: bool) -> None:
    lam = None if tuned else 1
    expected = float(np.ravel(ppi_mean_pointestimate(labels, judged_labels, judged_all, lam=lam))[0])
    ours = ppi(labels, judged_labels, judged_all, power_tuning=tuned)
    assert ours.value == pytest.approx(expected, abs=1e-12)
    low, high = (
        float(np.ravel(edge)[0]) for edge in ppi_mean_ci(labels, judged_labels, judged_all, 0.05, lam=lam)
    )
    # ppi-python takes the normal quantile and divides by n; here it is t and n − 1
    assert ours.metadata["standard_error"] == pytest.approx((high - low) / (2 * 1.959964), rel=0.01)
    assert ours.low < low < high < ours.high


def test_many_labels_give_the_interval_of_ppi_python() -> None:
    y = rng.normal(size=5000)
    f, u = y + rng.normal(size=5000), rng.normal(size=20_000) * math.sqrt(2)
    low, high = (float(np.ravel(edge)[0]) for edge in ppi_mean_ci(y, f, u, 0.1))
    ours = ppi(y, f, u, confidence=0.9)
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=2e-5)


def test_a_good_judge_narrows_the_interval_and_a_useless_one_does_no_harm() -> None:
    alone = mean_interval(labels)
    ours = ppi(labels, judged_labels, judged_all, bounds=(0, 1))
    assert ours.high - ours.low < 0.9 * (alone.high - alone.low)
    assert ours.metadata["labels_only"]["low"] == pytest.approx(alone.low)
    noise = (rng.random(2060) < 0.5) * 1.0
    useless = ppi(labels, noise[:60], noise[60:])
    assert useless.metadata["lambda"] < 0.25
    assert useless.high - useless.low < 1.02 * (alone.high - alone.low)


def test_a_judge_that_errs_one_way_is_corrected() -> None:
    kind = np.maximum(truth, rng.random(2060) < 0.5)
    ours = ppi(truth[:500], kind[:500], kind[500:])
    assert kind.mean() > 0.8
    assert ours.low < 0.7 < ours.high


def test_identical_labels_still_have_an_interval() -> None:
    same = ppi([1] * 10, [1] * 10, [1] * 100)
    # A share of 31 % zeros would have been missed by 10 labels with a probability of 2.5 %.
    assert same.low == pytest.approx(0.025**0.1, abs=3e-3)
    assert same.high == 1
    unbounded = ppi([7] * 10, [7] * 10, [7] * 100)
    assert (unbounded.value, unbounded.low, unbounded.high) == (7, None, None)


def test_edges(says) -> None:
    nothing = ppi([], [], [1, 0])
    assert (nothing.value, nothing.of) == (None, 2)
    says(nothing.metadata["reason"])
    few = ppi([1, 0, 1], [1, 0, 1], [])
    assert (few.value, few.method) == (pytest.approx(2 / 3), "gaffke")
    assert ppi([1], [1], [1, 0]).low is None
    constant = ppi([1, 0, 1], [1, 1, 1], [1, 1, 1])
    assert (constant.value, constant.metadata["lambda"]) == (pytest.approx(2 / 3), 0)
    perfect = ppi([1, 1], [1, 1], [1, 1], power_tuning=False)
    assert (perfect.value, perfect.high) == (1, 1)
    assert perfect.low < 0.2
    with pytest.raises(ValueError, match="judged_labels has 1"):
        ppi([1, 0], [1], [1])
    with pytest.raises(ValueError, match=r"judged_all\[0\] is nan"):
        ppi([1, 0], [1, 0], [math.nan])
