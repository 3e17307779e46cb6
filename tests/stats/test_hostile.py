"""Odd values in every function of karat.stats: an answer or a StatisticsError, never NaN and never a guessed number."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from karat import stats
from karat.stats import StatisticsError

NO_NUMBERS: dict[str, Any] = {
    "NaN": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "huge integer": 10**400,
    "text of digits": "0.5",
    "bytes of digits": b"1",
    "text": "abc",
    "lone surrogate": "\ud800",
    "Decimal NaN": Decimal("nan"),
    "NumPy's NaN": np.float64("nan"),
    "date": np.datetime64("2020-01-01"),
    "complex": 1j,
    "list": [],
    "array": np.array([1.0, 2.0]),
}
NUMBERS: dict[str, Any] = {
    "boolean": True,
    "NumPy's boolean": np.bool_(True),
    "NumPy's integer": np.int64(1),
    "float32": np.float32(0.5),
    "Decimal": Decimal("0.5"),
    "Fraction": Fraction(1, 2),
    "nearly too large": 1e70,
}
OF_SCORES: dict[str, Callable[[Any], Any]] = {
    "mean_interval": lambda x: stats.mean_interval([0.1, 0.2, x, 0.4]),
    "mean_interval, clusters": lambda x: stats.mean_interval([0.1, 0.2, x, 0.4], [1, 1, 2, 2]),
    "MeanState": lambda x: _state([0.1, x]).estimate(),
    "exact_sum": lambda x: stats.exact_sum([1.0, x]).value,
    "paired, first": lambda x: stats.paired([1, 0, x, 0.5], [1, 1, 0, 0.5]),
    "paired, second": lambda x: stats.paired([1, 0, 0.2], [x, 1, 0]),
    "bootstrap": lambda x: stats.bootstrap([1, 2, x, 4.0], n_resamples=50),
    "permutation": lambda x: stats.permutation([1, -2, x, 4.0]),
    "ppi, labels": lambda x: stats.ppi([1, 0, x, 1], [1, 0, 1, 1], [1, 1, 0]),
    "ppi, judge": lambda x: stats.ppi([1, 0, 1, 1], [1, 0, x, 1], [1, 1, 0]),
    "ppi, others": lambda x: stats.ppi([1, 0, 1, 1], [1, 0, 1, 1], [1, x, 0]),
    "alpha, interval": lambda x: stats.krippendorff_alpha([[1, x], [1, 2], [2, 2]], "interval"),
}
OF_PARAMETERS: dict[str, Callable[[Any], Any]] = {
    "confidence": lambda x: stats.mean_interval([0.1, 0.2, 0.3], confidence=x),
    "lower bound": lambda x: stats.mean_interval([0.1, 0.2, 0.3], bounds=(x, 1)),
    "upper bound": lambda x: stats.paired([1, 0, 0.2], [0.1, 1, 0], bounds=(0, x)),
    "bounds of ppi": lambda x: stats.ppi([1, 0, 1, 1], [1, 0, 1, 1], [1, 0], bounds=(0, x)),
    "of": lambda x: stats.mean_interval([0.1, 0.2, 0.3], of=x),
    "successes": lambda x: stats.share(x, 10),
    "items": lambda x: stats.wilson(1, x),
    "proportion": lambda x: stats.proportion([1, 0, x, 1]),
    "mcnemar": lambda x: stats.mcnemar(x, 3),
    "tango": lambda x: stats.tango(1, 2, x),
    "newcombe": lambda x: stats.newcombe(1, 2, x, 4),
    "holm": lambda x: stats.holm([0.01, x]),
    "outcome": lambda x: stats.bradley_terry([("a", "b", x), ("b", "a", 1)]),
    "prior": lambda x: stats.bradley_terry([("a", "b", 1), ("b", "a", 1)], prior=x),
    "elo": lambda x: stats.elo([("a", "b", x)]),
    "shuffles": lambda x: stats.elo([("a", "b", 1)], shuffles=x),
    "resamples": lambda x: stats.bootstrap([1.0, 2.0, 3.0], n_resamples=x),
    "cell": lambda x: stats.classification_metrics(["a", "b"], [[3, x], [1, 4]]),
    "missing_bounds": lambda x: stats.missing_bounds(0.5, 3, 5, 0.0, x),
    "standard error": lambda x: stats.smallest_effect(x, 10),
    "power": lambda x: stats.smallest_effect(0.1, 10, power=x),
}
OF_LABELS: dict[str, Callable[[Any], Any]] = {
    "kappa": lambda x: stats.kappa(["a", "b", x, "a"], ["a", "b", "b", "b"]),
    "fleiss": lambda x: stats.fleiss_kappa([["a", "b"], [x, "a"], ["b", "b"]]),
    "alpha": lambda x: stats.krippendorff_alpha([["a", x], ["a", "b"], ["b", "b"]]),
    "classes": lambda x: stats.classification_metrics(["a", x], [[3, 1], [1, 4]]),
}


def _state(values: list[Any]) -> stats.MeanState:
    state = stats.MeanState()
    state.add([0.3, 0.4])
    state.add(values)
    return state


def numbers(found: Any) -> Iterator[float]:
    """All floats in a result."""
    if isinstance(found, float):
        yield found
    elif isinstance(found, dict):
        for each in found.values():
            yield from numbers(each)
    elif isinstance(found, (list, tuple)):
        for each in found:
            yield from numbers(each)
    elif hasattr(found, "__struct_fields__"):
        for name in found.__struct_fields__:
            yield from numbers(getattr(found, name))


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """A warning about NaN, overflow or a division by 0 is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("what", NO_NUMBERS)
@pytest.mark.parametrize("function", OF_SCORES | OF_PARAMETERS)
def test_a_value_that_is_not_a_number_is_refused(function: str, what: str) -> None:
    with pytest.raises(StatisticsError):
        (OF_SCORES | OF_PARAMETERS)[function](NO_NUMBERS[what])


@pytest.mark.parametrize("what", NUMBERS)
@pytest.mark.parametrize("function", OF_SCORES)
def test_every_kind_of_number_is_that_number(function: str, what: str) -> None:
    given = NUMBERS[what]
    found, plain = OF_SCORES[function](given), OF_SCORES[function](float(given))
    assert found == plain
    assert all(map(math.isfinite, numbers(found)))


@pytest.mark.parametrize("function", OF_PARAMETERS)
def test_large_parameters_are_answered_or_refused(function: str) -> None:
    for given in (1e70, 1e308, 10**18, Decimal("1e400")):
        try:
            found = OF_PARAMETERS[function](given)
        except StatisticsError:
            continue
        assert all(map(math.isfinite, numbers(found))), given


@pytest.mark.parametrize("what", ["NaN", "NumPy's NaN", "list", "array"])
@pytest.mark.parametrize("function", OF_LABELS)
def test_labels_that_cannot_be_counted_are_refused(function: str, what: str) -> None:
    with pytest.raises(StatisticsError):
        OF_LABELS[function](NO_NUMBERS[what])


@pytest.mark.parametrize("what", ["lone surrogate", "text of digits", "huge integer", "infinity"])
@pytest.mark.parametrize("function", OF_LABELS)
def test_any_other_label_is_a_class(function: str, what: str) -> None:
    assert OF_LABELS[function](NO_NUMBERS[what]) is not None


def test_decimals_are_added_as_floats_of_their_value() -> None:
    assert stats.exact_sum([Decimal("0.1"), Fraction(1, 3)]).value == pytest.approx(0.1 + 1 / 3)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_none_one_and_many_equal_values(value: float) -> None:
    nothing = stats.mean_interval([])
    assert (nothing.value, nothing.low, nothing.high) == (None, None, None)
    one = stats.mean_interval([value])
    assert (one.value, one.low, one.high) == (value, None, None)
    many = stats.mean_interval(np.full(100_000, value))
    assert many.low <= value <= many.high
    assert 0 < many.high - many.low < 1e-3
    compared = stats.paired([value] * 100_000, [value] * 100_000)
    assert compared.difference.low < 0 < compared.difference.high


def test_a_hundred_thousand_spread_out_values() -> None:
    values = np.random.default_rng(0).random(100_000)
    found = stats.mean_interval(values)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert found.high - found.low == pytest.approx(2 * half, rel=0.01)
