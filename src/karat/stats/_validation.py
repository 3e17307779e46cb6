"""Checks of data and parameters, and the error that they raise."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from karat.errors import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = Sequence[float] | NDArray[Any]
    """Numbers in a list, a tuple or a NumPy array."""
    Labels: TypeAlias = Sequence[Hashable] | NDArray[Any]
    """Labels, None where one is missing."""


class StatisticsError(RequestError, ValueError):
    """Data or a parameter that a statistic cannot be computed from."""


def check_confidence(confidence: float) -> float:
    """Return a confidence level strictly between 0 and 1."""
    if not 0.0 < confidence < 1.0:
        raise StatisticsError(f"confidence is {confidence!r}: give a number between 0 and 1, such as 0.95")
    return float(confidence)


def finite(value: Any, what: str = "value") -> float:
    """Return a number as a float; reject NaN, infinities and other types."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise StatisticsError(f"{what} is {value!r}: give a number") from None
    if not math.isfinite(number):
        raise StatisticsError(f"{what} is {number}: NaN and infinities are not scores, leave such items out")
    return number


def finite_values(values: Iterable[Any], what: str = "values") -> list[float]:
    """Return numbers as floats; the error names the position of one that is not finite."""
    return [finite(value, f"{what}[{index}]") for index, value in enumerate(values)]


def count(value: Any, what: str) -> int:
    """Return a whole number of items, not negative."""
    if isinstance(value, float) and not value.is_integer():
        raise StatisticsError(f"{what} is {value!r}: give a whole number")
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise StatisticsError(f"{what} is {value!r}: give a whole number") from None
    if number < 0:
        raise StatisticsError(f"{what} is {number}: a count is not negative")
    return number


def items_of(n: int, of: int | None) -> int:
    """Return the number of all items, of which `n` are known."""
    if of is None:
        return n
    if of < n:
        raise StatisticsError(
            f"of is {of}, less than the {n} items given: it counts those and the missing ones"
        )
    return of


def same_length(what: str, **columns: Sequence[Any] | NDArray[Any]) -> int:
    """Return the common length of columns that belong together."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        stated = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise StatisticsError(f"{what} needs columns of one length: {stated}")
    return next(iter(lengths.values()))


def grouped(values: Sequence[Any] | NDArray[Any], clusters: Iterable[Hashable]) -> list[list[Any]]:
    """Group values by cluster, in the order in which clusters first appear."""
    labels = list(clusters)
    same_length("clustering", values=values, clusters=labels)
    groups: dict[Hashable, list[Any]] = {}
    for label, value in zip(labels, values, strict=True):
        groups.setdefault(label, []).append(value)
    return list(groups.values())
