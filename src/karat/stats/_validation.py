"""Checks of data and parameters, and the error that they raise."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
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


MOST_ITEMS = 2**53
"""The largest count: beyond it floats do not hold every whole number."""
MOST_RESAMPLES = 1_000_000
LARGEST = 1e70
"""The largest number: the fourth powers of larger ones, summed, exceed the floats."""


def check_confidence(confidence: float) -> float:
    """Return a confidence level strictly between 0 and 1."""
    level = _number(confidence)
    if level is None or not 0.0 < level < 1.0:
        raise StatisticsError(f"confidence is {confidence!r}: give a number between 0 and 1, such as 0.95")
    return level


def check_bounds(bounds: Sequence[float]) -> tuple[float, float]:
    """Return the range of scores: two finite numbers, the first the smaller."""
    try:
        low, high = bounds
    except (TypeError, ValueError):
        raise StatisticsError(f"bounds is {bounds!r}: give the least and the largest score") from None
    low, high = finite(low, "the lower bound"), finite(high, "the upper bound")
    if not low < high or not math.isfinite(high - low):
        raise StatisticsError(f"bounds is {bounds!r}: the first must be the smaller number")
    return low, high


def _number(value: Any) -> float | None:
    """A number as a float, infinite where it is too large for one; None for other types, and for text of digits."""
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None


def finite(value: object, what: str = "value") -> float:
    """Return a number as a float; reject NaN, infinities and other types."""
    number = value if type(value) is float else _number(value)
    if number is None:
        raise StatisticsError(f"{what} is {value!r}: give a number")
    if not math.isfinite(number):
        raise StatisticsError(f"{what} is {number}: NaN and infinities are not scores, leave such items out")
    if abs(number) > LARGEST:
        raise StatisticsError(f"{what} is {number:g}: give numbers up to {LARGEST:g}, rescale these")
    return number


def finite_values(values: Iterable[Any], what: str = "values") -> list[float]:
    """Return numbers as floats; the error names the position of one that is not finite."""
    return [finite(value, f"{what}[{index}]") for index, value in enumerate(values)]


def finite_array(values: object, what: str = "values") -> NDArray[Any]:
    """Return finite numbers, or rows of such numbers of one length, as an array of floats."""
    import numpy as np

    found = number_array(values, what)
    if not (np.abs(found) <= LARGEST).all():
        raise StatisticsError(
            f"{what} hold NaN, infinities or numbers over {LARGEST:g}: leave such items out"
        )
    return found


def number_array(values: object, what: str) -> NDArray[Any]:
    """Return numbers, or rows of numbers of one length, as an array of floats; NaN is one."""
    import numpy as np

    try:
        found = np.asarray(values)
    except ValueError:
        raise StatisticsError(f"{what} have rows of different lengths: give numbers, or equal rows") from None
    if found.dtype.kind not in "biuf":
        # Text, dates and mixtures; NumPy would read some of them as numbers. Decimals are numbers.
        listed = values.ravel().tolist() if isinstance(values, np.ndarray) else list(_flat(values))
        return np.array(finite_values(listed, what), dtype=np.float64).reshape(found.shape)
    return found.astype(np.float64, copy=False)


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def count(value: float, what: str, most: int = MOST_ITEMS) -> int:
    """Return a whole number of items, not negative."""
    number = _number(value)
    if number is None or not (math.isinf(number) or number.is_integer()):
        raise StatisticsError(f"{what} is {value!r}: give a whole number")
    if number < 0:
        raise StatisticsError(f"{what} is {value}: it must be 0 or more")
    if number > most:
        raise StatisticsError(f"{what} is {number:g}: give at most {most:,}")
    return int(value)


def check_labels(labels: Iterable[Any]) -> None:
    """Reject what cannot be counted, and NaN, which is not equal to itself and would be a new class each time."""
    for index, label in enumerate(labels):
        try:
            hash(label)
        except TypeError:
            raise StatisticsError(
                f"label {index} is a {type(label).__name__}: give text or a number"
            ) from None
        if isinstance(label, float) and math.isnan(label):
            raise StatisticsError(f"label {index} is NaN: write None for a missing label")


def items_of(n: int, of: int | None) -> int:
    """Return the number of all items, of which `n` are known."""
    if of is None:
        return n
    of = count(of, "of")
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
