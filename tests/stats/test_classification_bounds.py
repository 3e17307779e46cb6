"""Bounds of classification metrics: no way to fill in the missing items leaves them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.stats._classification import METRICS, classification_metrics

CLASSES = 3
cells = st.lists(
    st.lists(st.integers(0, 6), min_size=CLASSES, max_size=CLASSES), min_size=CLASSES, max_size=CLASSES
).filter(lambda rows: all(sum(row) + sum(r[i] for r in rows) > 0 for i, row in enumerate(rows)))


def values(rows, of=None):
    found = classification_metrics("abc", rows, of=of)
    every = {
        (name, metric): getattr(each, metric) for name, each in found.classes.items() for metric in METRICS
    }
    for name in ("micro", "macro", "weighted"):
        every |= {(name, metric): getattr(getattr(found, name), metric) for metric in METRICS}
    return every


@settings(max_examples=25, deadline=None)
@given(cells, st.integers(1, 2))
def test_bounds_allow_for_any_missing_scores(rows, missing):
    bounded = values(rows, of=sum(map(sum, rows)) + missing)
    places = list(itertools.product(range(CLASSES), repeat=2))
    for filled in itertools.combinations_with_replacement(places, missing):
        whole = [list(row) for row in rows]
        for golden, predicted in filled:
            whole[golden][predicted] += 1
        for name, estimate in values(whole).items():
            value = estimate.value or 0.0
            assert bounded[name].lowest - 1e-12 <= value <= bounded[name].highest + 1e-12, name


def test_those_of_a_class_are_reached():
    found = classification_metrics(["a", "b"], [[3, 1], [0, 4]], of=10)
    a = found.classes["a"]
    assert (a.recall.n, a.recall.of) == (4, 6)
    assert (a.recall.lowest, a.recall.highest) == (pytest.approx(3 / 6), pytest.approx(5 / 6))
    assert (a.f1.lowest, a.f1.highest) == (pytest.approx(6 / 9), pytest.approx(10 / 11))
    assert found.macro.recall.of == 10
    assert found.macro.recall.lowest < found.macro.recall.value < found.macro.recall.highest
    assert found.macro.f1.of - found.macro.f1.n == 2


def test_without_missing_items_nothing_is_reported():
    found = classification_metrics(["a", "b"], [[3, 1], [0, 4]])
    assert found.macro.f1.lowest is None
    assert found.classes["a"].f1.of == found.classes["a"].f1.n
