"""Raters who agree, and how far."""

from __future__ import annotations

import math

import evalica
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import aggregate_raters, cohens_kappa
from statsmodels.stats.inter_rater import fleiss_kappa as reference_fleiss

from karat.stats import (
    agreement_between,
    cohen_kappa,
    fleiss_kappa,
    kappa,
    krippendorff_alpha,
    percent_agreement,
    share,
)

rng = np.random.default_rng(0)
first = rng.integers(0, 4, 120)
second = np.where(rng.random(120) < 0.6, first, rng.integers(0, 4, 120))
third = np.where(rng.random(120) < 0.5, first, rng.integers(0, 4, 120))
ratings = np.stack([first, second, third], axis=1)


def test_percent_is_a_proportion() -> None:
    assert percent_agreement("aabb", "aaba") == share(3, 4)
    partly = percent_agreement(["a", None, "b"], ["a", "a", "b"])
    assert (partly.value, partly.n, partly.of) == (1.0, 2, 3)


@pytest.mark.parametrize("weights", [None, "linear", "quadratic"])
def test_kappa_and_its_error_as_scikit_learn_and_statsmodels_have_them(weights: str | None) -> None:
    ours = cohen_kappa(first.tolist(), second.tolist(), weights)  # type: ignore[arg-type]  # parametrised
    assert ours.value == pytest.approx(cohen_kappa_score(first, second, weights=weights))
    table = np.zeros((4, 4))
    np.add.at(table, (first, second), 1)
    theirs = cohens_kappa(table, wt=weights)
    assert ours.metadata["standard_error"] == pytest.approx(theirs.std_kappa * math.sqrt(120 / 119))
    assert (ours.low, ours.high) == pytest.approx((theirs.kappa_low, theirs.kappa_upp), abs=0.06)


def test_kappa_is_the_short_name() -> None:
    assert kappa is cohen_kappa


def test_a_clustered_kappa_is_less_sure() -> None:
    a, b = np.repeat(first, 5).tolist(), np.repeat(second, 5).tolist()
    clustered = kappa(a, b, clusters=np.repeat(np.arange(120), 5).tolist())
    once = kappa(first.tolist(), second.tolist())
    assert clustered.value == pytest.approx(once.value)
    assert clustered.low == pytest.approx(once.low, abs=0.03)
    assert clustered.metadata["design_effect"] > 4.5


def test_a_clustered_alpha_is_less_sure() -> None:
    pairs = list(zip(np.repeat(first, 5).tolist(), np.repeat(second, 5).tolist(), strict=True))
    clusters = np.repeat(np.arange(120), 5).tolist()
    clustered, once = krippendorff_alpha(pairs, clusters=clusters), krippendorff_alpha(pairs[::5])
    assert clustered.value == pytest.approx(once.value, abs=0.01)
    assert clustered.low == pytest.approx(once.low, abs=0.04)
    assert clustered.high - clustered.low > 1.8 * (
        krippendorff_alpha(pairs).high - krippendorff_alpha(pairs).low
    )
    together = agreement_between([a for a, _ in pairs], [b for _, b in pairs], clusters)
    assert together.alpha == clustered
    alone = krippendorff_alpha(pairs, clusters=[1] * len(pairs))
    assert (alone.low, alone.high) == (None, None)


def test_the_order_of_the_labels_matters_to_weights_alone(refuses) -> None:
    a, b = ["low", "mid", "high", "mid"], ["low", "high", "high", "low"]
    one, other = (kappa(a, b, labels=order) for order in (["low", "mid", "high"], ["mid", "low", "high"]))
    assert one.value == pytest.approx(other.value)
    assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=0.1)
    ordered = kappa(a, b, "linear", labels=["low", "mid", "high"])
    assert ordered.value == pytest.approx(
        cohen_kappa_score(a, b, labels=["low", "mid", "high"], weights="linear")
    )
    with refuses(ValueError):
        kappa(a, b, labels=["low", "high"])


def test_fleiss_as_statsmodels_has_it() -> None:
    ours = fleiss_kappa(ratings.tolist())
    assert ours.value == pytest.approx(reference_fleiss(aggregate_raters(ratings)[0]))
    estimates = [fleiss_kappa(np.delete(ratings, i, axis=0).tolist()).value for i in range(120)]
    jackknife = 119 / 120 * ((np.array(estimates) - np.mean(estimates)) ** 2).sum()
    assert ours.metadata["standard_error"] == pytest.approx(math.sqrt(jackknife), rel=0.03)


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval"])
def test_alpha_as_evalica_has_it(level: str) -> None:
    missing = rng.random(ratings.shape) < 0.2
    with_gaps = [
        [None if gap else int(r) for r, gap in zip(*row, strict=True)]
        for row in zip(ratings, missing, strict=True)
    ]
    frame = pd.DataFrame(np.where(missing, np.nan, ratings).T)
    ours = krippendorff_alpha(with_gaps, level)  # type: ignore[arg-type]  # parametrised
    assert ours.value == pytest.approx(evalica.alpha(frame, distance=level).alpha)
    assert ours.low < ours.value < ours.high
    assert ours.n == (np.sum(~missing, axis=1) >= 2).sum()
    assert ours.of == 120
    estimates = [
        krippendorff_alpha(with_gaps[:i] + with_gaps[i + 1 :], level, n_resamples=2).value for i in range(120)
    ]  # type: ignore[arg-type]  # parametrised
    error = math.sqrt(119 / 120 * ((np.array(estimates) - np.mean(estimates)) ** 2).sum())
    assert (ours.high - ours.low) / (2 * 1.96) == pytest.approx(error, rel=0.15)


def test_the_example_in_krippendorffs_own_paper() -> None:
    # Krippendorff (2011), "Computing Krippendorff's alpha-reliability", four observers and twelve units
    observers = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
        [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
    ]
    units = list(zip(*observers, strict=True))
    assert krippendorff_alpha(units).value == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(units, "ordinal").value == pytest.approx(0.815, abs=5e-4)
    assert krippendorff_alpha(units, "interval").value == pytest.approx(0.849, abs=5e-4)


def test_total_agreement_still_has_an_interval() -> None:
    summary = agreement_between("aabb" * 5, "aabb" * 5)
    for estimate in (summary.percent, summary.kappa, summary.alpha):
        assert (estimate.value, estimate.high) == (1, 1)
        assert 0.5 < estimate.low < 0.9
    assert fleiss_kappa([list("aaa"), list("bbb")] * 10).low < 0.9
    assert (summary.labels, summary.matrix) == (["a", "b"], [[10, 0], [0, 10]])


@pytest.mark.parametrize(
    "estimate",
    [
        kappa(["a", "a"], ["a", "a"]),
        kappa([], []),
        kappa([None, "a"], ["b", None]),
        fleiss_kappa([["a", "a"], ["a", "a"]]),
        fleiss_kappa([]),
        krippendorff_alpha([["a", "a"], ["a", None]]),
        krippendorff_alpha([[1, None], [None, 2]]),
        krippendorff_alpha([]),
    ],
)
def test_an_undefined_estimate_is_none_with_the_reason(estimate: object) -> None:
    assert estimate.value is None  # type: ignore[attr-defined]  # every case is an Estimate
    assert estimate.metadata["reason"]  # type: ignore[attr-defined]


def test_one_item_has_no_spread() -> None:
    assert kappa(["a"], ["b"]).low is None
    assert krippendorff_alpha([["a", "b"]]).low is None


def test_what_is_refused(refuses) -> None:
    with pytest.raises(ValueError, match="krippendorff_alpha"):
        fleiss_kappa([["a", "b"], ["a"]])
    with refuses(ValueError):
        fleiss_kappa([["a"], ["b"]])
    with pytest.raises(ValueError, match="write None"):
        kappa([math.nan], [1.0])
    with pytest.raises(ValueError, match="write None"):
        krippendorff_alpha([[math.nan, 1.0]])
    with pytest.raises(ValueError, match="'linear', 'quadratic'"):
        kappa(["a"], ["b"], "cubic")  # type: ignore[arg-type]  # wrong on purpose
    with refuses(ValueError):
        krippendorff_alpha([], "ratio")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ValueError, match="give order"):
        krippendorff_alpha([["a", 1]], "ordinal")
    with refuses(ValueError):
        krippendorff_alpha([["a", "b"]], "ordinal", order=["a"])
    with refuses(ValueError):
        kappa(["a"], ["a", "b"])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=2, max_size=40))
def test_kappa_laws(pairs: list[tuple[str, str]]) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    one, other = kappa(a, b), kappa(b, a)
    assert (one.value is None) == (other.value is None)
    if one.value is not None:
        assert one.value == pytest.approx(other.value)
        assert -1 <= one.low <= one.value <= one.high <= 1
