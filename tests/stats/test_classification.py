"""Metrics of a confusion matrix."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support

from karat.stats import ConfusionState, classification_metrics, proportion, share, wilson
from karat.stats._classification import METRICS, metrics_of

rng = np.random.default_rng(0)
golden = rng.integers(0, 4, 200)
predicted = np.where(rng.random(200) < 0.7, golden, rng.integers(0, 6, 200))  # 4 and 5 are never golden


def folded(clusters: list[list[tuple[object, object]]]) -> ConfusionState:
    state = ConfusionState()
    for cluster in clusters:
        state.add(cluster)
    return state


singles = [[pair] for pair in zip(golden.tolist(), predicted.tolist(), strict=True)]


@pytest.mark.parametrize("average", ["macro", "weighted", "micro"])
def test_averages_as_scikit_learn_has_them(average: str) -> None:
    theirs = precision_recall_fscore_support(golden, predicted, average=average, zero_division=0)
    ours = getattr(metrics_of(folded(singles)), average)
    for metric, expected in zip(METRICS, theirs, strict=False):
        estimate = getattr(ours, metric)
        assert estimate.value == pytest.approx(expected)
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
        assert estimate.n == 200


def test_classes_as_scikit_learn_has_them() -> None:
    labels = sorted({*golden.tolist(), *predicted.tolist()})
    theirs = precision_recall_fscore_support(golden, predicted, labels=labels, zero_division=0)
    found = metrics_of(folded(singles))
    for row, label in enumerate(labels):
        ours = found.classes[str(label)]
        for column, metric in enumerate(METRICS):
            assert (getattr(ours, metric).value or 0.0) == pytest.approx(theirs[column][row])
        assert ours.support == theirs[3][row]
    assert found.accuracy == wilson(int((golden == predicted).sum()), 200)
    assert found.accuracy.value == accuracy_score(golden, predicted)
    assert found.labels == labels
    assert found.matrix == confusion_matrix(golden, predicted, labels=labels).tolist()


def test_a_matrix_gives_the_same() -> None:
    found = metrics_of(folded(singles))
    assert classification_metrics(found.labels, found.matrix) == found


def test_what_cannot_be_said_of_a_class_is_none_with_the_reason(says) -> None:
    found = classification_metrics(["yes", "no"], [[3, 0], [2, 0]])
    assert found.classes["no"].precision.value is None
    says(found.classes["no"].precision.metadata["reason"])
    assert found.classes["no"].recall.value == 0
    assert found.classes["no"].f1.value == 0
    assert found.macro.precision.value == pytest.approx(0.3)  # (0.6 + 0) / 2


def test_all_correct_still_has_an_interval() -> None:
    found = classification_metrics(["a", "b"], [[10, 0], [0, 20]])
    assert found.macro.f1.value == 1
    assert 0.85 < found.macro.f1.low < 0.95
    assert found.weighted.recall.low == pytest.approx(0.86, abs=0.03)
    assert found.classes["a"].recall == wilson(10, 10).__class__(
        1.0, share(10, 10).low, 1.0, 10, 10, "clopper-pearson"
    )


def test_the_averages_of_many_items_are_as_wide_as_their_bootstrap() -> None:
    table = np.array([[400, 60, 20], [50, 700, 30], [40, 30, 300]])
    found = classification_metrics("abc", table.tolist())
    drawn = rng.multinomial(table.sum(), table.ravel() / table.sum(), 4000).reshape(-1, 3, 3)
    right, golden, said = np.diagonal(drawn, axis1=1, axis2=2), drawn.sum(axis=2), drawn.sum(axis=1)
    scores = {"precision": right / said, "recall": right / golden, "f1": 2 * right / (golden + said)}
    for metric, each in scores.items():
        for average, values in (
            ("macro", each.mean(axis=1)),
            ("weighted", (each * golden).sum(axis=1) / table.sum()),
        ):
            low, high = np.quantile(values, [0.025, 0.975])
            estimate = getattr(getattr(found, average), metric)
            assert 0.95 <= (estimate.high - estimate.low) / (high - low) <= 1.1


def test_the_weighted_recall_is_the_accuracy() -> None:
    found = classification_metrics("abc", [[25, 5, 0], [4, 26, 0], [0, 1, 18]])
    one, other = found.weighted.recall, found.accuracy
    assert (one.value, one.low, one.high) == (other.value, other.low, other.high)


@pytest.mark.parametrize("many", [10, 100])
def test_where_all_is_right_the_limits_of_the_classes_are_combined(many: int, says) -> None:
    found = classification_metrics("ab", [[many, 0], [0, many]])
    one = found.classes["a"].recall
    assert found.macro.recall.method != one.method
    says(found.macro.recall.method)
    assert one.low is not None
    combined = 1 - (1 - one.low) / 2**0.5
    assert one.low < found.macro.recall.low <= combined
    assert found.macro.recall.low == pytest.approx(combined, abs=0.4 / many)
    assert found.macro.recall.high == 1.0


def test_the_linearised_variance_is_the_jackknife_of_clusters() -> None:
    clusters = [singles[i][0:1] + singles[i + 1][0:1] + singles[i + 2][0:1] for i in range(0, 198, 3)]
    found = metrics_of(folded(clusters))
    apart = metrics_of(folded([[item] for cluster in clusters for item in cluster]))
    left_out = [metrics_of(folded(clusters[:i] + clusters[i + 1 :])) for i in range(66)]
    for pick in (lambda m: m.macro.f1, lambda m: m.weighted.precision, lambda m: m.accuracy):
        values = np.array([pick(m).value for m in left_out])
        jackknife = 65 / 66 * ((values - values.mean()) ** 2).sum()
        estimate = pick(found)
        # Wilson's half-width squared is close to t²·variance
        ratio = ((estimate.high - estimate.low) / 2 / 2.0) ** 2 / jackknife
        if estimate is found.accuracy:
            assert ratio == pytest.approx(1, rel=0.25)
        else:  # averages allow for small classes, as they do for independent items; here the design effect is 1
            independent = pick(apart)
            assert ratio >= 0.75
            assert estimate.high - estimate.low == pytest.approx(independent.high - independent.low, rel=0.05)


def test_copies_in_a_cluster_add_no_information() -> None:
    copied = metrics_of(folded([cluster * 5 for cluster in singles]))
    once = metrics_of(folded(singles))
    assert copied.accuracy.value == once.accuracy.value
    assert copied.accuracy.metadata["design_effect"] == pytest.approx(5, rel=0.02)
    assert copied.accuracy.low == pytest.approx(once.accuracy.low, abs=0.003)
    assert copied.macro.f1.low == pytest.approx(once.macro.f1.low, abs=0.02)


def test_clustered_accuracy_is_that_of_the_effective_items() -> None:
    clusters = [[pair for single in singles[i : i + 4] for pair in single] for i in range(0, 200, 4)]
    right = [g == p for cluster in clusters for g, p in cluster]
    found = metrics_of(folded(clusters)).accuracy
    expected = wilson(sum(right), 200, design_effect=found.metadata["design_effect"], df=49)
    assert (found.value, found.low, found.high) == pytest.approx(
        (expected.value, expected.low, expected.high), abs=2e-3
    )


labels = st.sampled_from(["a", "b", "c"])


@given(
    st.lists(st.lists(st.tuples(labels, labels), min_size=1, max_size=3), min_size=1, max_size=10),
    st.randoms(use_true_random=False),
    st.integers(0, 10),
)
def test_merging_in_any_grouping_and_order_is_the_same_to_the_last_bit(
    clusters: list[list[tuple[str, str]]], shuffler: random.Random, cut: int
) -> None:
    whole = metrics_of(folded(clusters))
    shuffled = [
        shuffler.sample(cluster, len(cluster)) for cluster in shuffler.sample(clusters, len(clusters))
    ]
    merged = folded(shuffled[cut:]).merge(folded(shuffled[:cut]))
    assert metrics_of(merged) == whole


def test_edges(refuses) -> None:
    empty = metrics_of(ConfusionState(), of=4)
    assert (empty.accuracy.value, empty.accuracy.of, empty.macro.f1.value) == (None, 4, None)
    lone = classification_metrics(["a"], [[1]], of=2)
    assert (lone.accuracy.lowest, lone.accuracy.highest) == (0.5, 1.0)
    one_cluster = metrics_of(folded([[("a", "a"), ("a", "b")]]))
    assert one_cluster.accuracy == proportion([1, 0], ["x", "x"])
    assert (one_cluster.macro.f1.value, one_cluster.macro.f1.low) == (pytest.approx(1 / 3), None)
    with refuses(ValueError):
        classification_metrics(["a", "b"], [[1, 2]])
    with pytest.raises(ValueError, match="twice"):
        classification_metrics(["a", "a"], [[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="-1"):
        classification_metrics(["a"], [[-1]])
    with refuses(ValueError):
        metrics_of(folded([[(1, "1")]]))


def test_many_classes() -> None:
    n = 300
    found = classification_metrics(list(range(n)), np.eye(n, dtype=int).tolist())
    assert found.macro.f1.value == 1
    assert len(found.classes) == n
