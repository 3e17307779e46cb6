"""Sums that do not depend on how they were cut up."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.stats import ExactSum, StatisticsError, exact_sum

numbers = st.lists(
    st.floats(allow_nan=False, allow_infinity=False, width=64, min_value=-1e300, max_value=1e300)
)


@given(numbers)
def test_the_value_is_the_correctly_rounded_sum(values: list[float]) -> None:
    if abs(sum(map(Fraction, values))) < Fraction(10) ** 300:
        assert exact_sum(values).value == math.fsum(values)


@given(numbers, st.randoms(use_true_random=False), st.integers(0, 20))
def test_any_order_and_grouping_gives_the_same_state(values: list[float], random: object, cut: int) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis types its randoms as objects
    left, right = exact_sum(shuffled[cut:]), exact_sum(shuffled[:cut])
    left.merge(right)
    whole = exact_sum(values)
    assert (left.numerator, left.shift) == (whole.numerator, whole.shift)
    assert left == whole


def test_exact_sums_keep_what_floats_lose() -> None:
    assert exact_sum([1e16, 1.0, -1e16]).value == 1.0
    assert exact_sum([0.1] * 10).value == 1.0
    total = ExactSum()
    total.add_square(0.1)
    assert total.fraction == Fraction(0.1) ** 2


def test_integers_and_booleans_are_numbers() -> None:
    assert exact_sum([True, 2, 0.5]).value == 3.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad: float, refuses) -> None:
    with refuses(ValueError):
        exact_sum([1.0, bad])
    with refuses(StatisticsError):
        ExactSum().add_square(bad)


def test_a_sum_beyond_the_floats_is_refused() -> None:
    with pytest.raises(StatisticsError, match="rescale"):
        _ = exact_sum([1.7e308, 1.7e308]).value
