"""Reading numbers from text: separators, units, exact decimals."""

from __future__ import annotations

import decimal
import math
from collections import deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import msgspec
import regex

EXACT = decimal.Context(prec=60, Emax=999_999, Emin=-999_999, traps=[])
"""Differences are computed with 60 digits; nothing raises, what does not fit becomes NaN or infinite."""

NARROW_SPACES = "\u00a0\u202f\u2009"
"""Spaces that do not break, or are thin, between the digits of a number."""

MAX_DIGITS = 400
"""A longer run of digits is not read as a number."""


_UNIT = regex.compile(r"[\p{L}\p{Sc}\p{Sm}%‰°′″/·²³^-]*[\p{L}\p{Sc}%‰°′″][\p{L}\p{Sc}\p{Sm}%‰°′″/·²³^-]*")
"""Something that may be a unit: letters, a currency, a per cent or degree sign; no digits, no other signs alone."""

_LEFT = regex.compile(r"\p{Sc}")
_RIGHT = regex.compile(r"[\p{L}\p{Sc}%‰°]")
"""What is part of a unit when it touches a number."""

_GROUPED = regex.compile(r"[-+\u2212]?\d++(?:[.,'’_\s]\d++)++")


class Quantity(msgspec.Struct, frozen=True):
    """A number as written, its unit ("" for none), and its value in the base unit."""

    number: Decimal
    unit: str = ""
    value: Decimal = Decimal(0)


class NumberReader:
    """Finds numbers in text by fixed conventions: what groups thousands, what is the decimal point."""

    def __init__(self, thousands: str, decimal_point: str, units: Mapping[str, Decimal]) -> None:
        if " " in thousands:
            thousands += NARROW_SPACES  # what typesetting puts where a person types a space
        self._thousands = thousands
        self._point = decimal_point
        self._factors = units
        group = f"[{regex.escape(thousands)}]" if thousands else ""
        grouped = rf"\d{{1,3}}(?:{group}\d{{3}})+(?!\d)|" if thousands else ""
        point = regex.escape(decimal_point)
        names = "|".join(regex.escape(unit) for unit in sorted(units, key=len, reverse=True))
        before = rf"(?P<before>{names})?[ \u00a0\u202f]?" if units else ""
        after = rf"(?:[ \u00a0\u202f]?(?P<after>{names})(?![^\W\d_]))?" if units else ""
        self._pattern = regex.compile(
            rf"(?P<lead>(?<![\w]){before})?(?P<sign>(?<![\w)])[-+\u2212])?{before.replace('before', 'inner')}"
            rf"(?P<digits>(?:{grouped}\d+)(?:{point}\d+)?|(?<!\d){point}\d+)(?P<exponent>[eE][-+]?\d{{1,4}}(?!\d))?{after}"
        )

    def whole(self, text: str) -> Quantity | None:
        """The number that the whole text is, or None; a full stop may end it."""
        text = text.strip()
        return self._quantity(
            self._pattern.fullmatch(text) or self._pattern.fullmatch(text.removesuffix("."))
        )

    def first(self, text: str) -> Quantity | None:
        """The first number in a text, or None."""
        return next(self._found(text), None)

    def last(self, text: str) -> Quantity | None:
        """The last number in a text, or None."""
        found = deque(self._found(text), maxlen=1)
        return found[0] if found else None

    def _found(self, text: str) -> Iterator[Quantity]:
        """The numbers in a text. Where there are units, one that bears another unit is none of them.

        That is told by what touches the number, or by the word beside it where there is no other: in a sentence a word
        may be anything.
        """
        for match in self._pattern.finditer(text):
            quantity = self._quantity(match)
            if quantity is not None and not (self._factors and self._bears_another(quantity, match, text)):
                yield quantity

    def _bears_another(self, quantity: Quantity, match: Any, text: str) -> bool:
        if _RIGHT.match(text, pos=match.end()) or (
            match.start() and _LEFT.match(text, pos=match.start() - 1)
        ):
            return True
        alone = not quantity.unit and not text[: match.start()].strip()
        return alone and _UNIT.fullmatch(text[match.end() :].strip(" .")) is not None

    def beside(self, text: str) -> str:
        """What stands around the one number of a short text, as a unit would: `$`, `%`, `EUR`; else nothing."""
        match = self._pattern.search(text)
        if match is None:
            return ""
        around = [text[: match.start()].strip(), text[match.end() :].strip()]
        words = [part for part in around if part]
        is_unit = len(words) == 1 and len(words[0]) <= 12 and _UNIT.fullmatch(words[0])
        return words[0] if is_unit else ""

    def is_grouped(self, text: str) -> bool:
        """Whether a text is digits with characters between them, as another country groups or divides them."""
        return _GROUPED.fullmatch(text.strip()) is not None

    def of_number(self, value: int | float | Decimal) -> Quantity | None:
        """A number that is one already; None when it is not finite."""
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if isinstance(value, int) and value.bit_length() > MAX_DIGITS * 3:
            return None
        number = value if isinstance(value, Decimal) else Decimal(repr(value))
        return Quantity(number, "", number) if number.is_finite() else None

    def _quantity(self, match: Any) -> Quantity | None:
        if match is None:
            return None
        digits = match["digits"]
        if len(digits) > MAX_DIGITS:
            return None
        for separator in self._thousands:
            digits = digits.replace(separator, "")
        sign = "-" if match["sign"] in ("-", "\u2212") else ""
        number = Decimal(sign + digits.replace(self._point, ".") + (match["exponent"] or ""))
        named = match.groupdict()
        unit = named.get("after") or named.get("inner") or named.get("before") or ""
        factor = self._factors.get(unit, Decimal(1))
        return Quantity(number, unit, EXACT.multiply(number, factor))
