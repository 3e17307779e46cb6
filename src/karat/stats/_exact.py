"""Sums that are exact, so that merging them in any grouping and order gives the same value to the last bit.

Every finite float is an integer over a power of two. The sum is kept in that form, as one Python integer and
one shift; it is rounded once, when it is read. That is simpler than the expansions of Shewchuk (1997), and
the state itself, not only its value, does not depend on the order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING

from karat.stats._validation import StatisticsError, finite

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ExactSum:
    """A sum of numbers and of their products: `numerator / 2**shift`, with no rounding anywhere."""

    __slots__ = ("numerator", "shift")

    def __init__(self, numerator: int = 0, shift: int = 0) -> None:
        self.numerator = numerator
        self.shift = shift
        """The largest power of two among the denominators seen."""

    def add(self, value: float) -> None:
        """Add one finite number."""
        self.add_ratio(*ratio_of(value))

    def add_square(self, value: float) -> None:
        """Add the exact square of a finite number."""
        numerator, shift = ratio_of(value)
        self.add_ratio(numerator * numerator, 2 * shift)

    def add_multiple(self, a: ExactSum, factor: int) -> None:
        """Add a whole multiple of a sum."""
        self.add_ratio(a.numerator * factor, a.shift)

    def merge(self, other: ExactSum) -> None:
        """Add all that another sum holds."""
        self.add_ratio(other.numerator, other.shift)

    def add_ratio(self, numerator: int, shift: int) -> None:
        """Add numerator / 2**shift."""
        if shift <= self.shift:
            self.numerator += numerator << (self.shift - shift)
        else:
            self.numerator = (self.numerator << (shift - self.shift)) + numerator
            self.shift = shift

    def scaled(self, shift: int) -> int:
        """The sum times 2**shift, which is at least the shift of the sum."""
        return self.numerator << (shift - self.shift)

    @property
    def fraction(self) -> Fraction:
        """The sum as a fraction."""
        return Fraction(self.numerator, 1 << self.shift)

    @property
    def value(self) -> float:
        """The sum, rounded once to the nearest float."""
        try:
            return self.numerator / (1 << self.shift)
        except OverflowError:
            raise StatisticsError("a sum of these values exceeds the largest float: rescale them") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactSum) and self.fraction == other.fraction

    __hash__ = None  # type: ignore[assignment]  # it changes as it is added to

    def __repr__(self) -> str:
        return f"ExactSum({self.value!r})"


def ratio_of(value: float) -> tuple[int, int]:
    """A finite number as a numerator and the power of two under it."""
    try:
        numerator, denominator = value.as_integer_ratio()
    except (ValueError, OverflowError):
        raise StatisticsError(f"value is {value}: NaN and infinities cannot be summed") from None
    except AttributeError:  # NumPy's whole numbers and booleans, and what is no number
        numerator, denominator = finite(value).as_integer_ratio()
    if denominator & (denominator - 1):  # a Decimal or a Fraction
        numerator, denominator = finite(value).as_integer_ratio()
    return numerator, denominator.bit_length() - 1


def exact_sum(values: Iterable[float]) -> ExactSum:
    """The exact sum of numbers."""
    total = ExactSum()
    for value in values:
        total.add(value)
    return total


def array_total(values: NDArray[np.float64]) -> float:
    """The sum of a NumPy array, rounded once; read in parts, because a list of a million floats takes 32 MB."""
    parts = (values[start : start + _PART].tolist() for start in range(0, len(values), _PART))
    return math.fsum(chain.from_iterable(parts))


_PART = 1 << 16
