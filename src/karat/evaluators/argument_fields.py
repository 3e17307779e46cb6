"""How one field of a call's arguments is judged: any value, folded case, a tolerance, a regex."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from karat.errors import did_you_mean
from karat.evaluators.argument_values import equal
from karat.traces import TraceError

REGEX_SECONDS = 1.0
"""How long one pattern may run on one value before it is an error."""


class FieldCheck(msgspec.Struct, frozen=True):
    """How one field is judged."""

    test: Callable[[Any, Any], bool]
    always: bool = False
    """Any value will do, also none."""
    agent_only: bool = False
    """The reference's value does not matter."""


_OPTIONS = ("tolerance", "relative_tolerance", "ignore_case", "regex")


def build_check(rule: Any) -> FieldCheck:
    """The check a rule asks for; ValueError where it is none."""
    if rule == "any":
        return FieldCheck(lambda a, b: True, always=True)
    if rule == "exact":
        return FieldCheck(equal)
    if rule == "ignore_case":
        rule = {"ignore_case": True}
    if callable(rule):
        return FieldCheck(_by_function(rule))
    if not isinstance(rule, Mapping) or not rule:
        raise ValueError(
            f"{rule!r} is no rule: give any, exact, ignore_case, or one of {', '.join(_OPTIONS)}"
        )
    unknown = [key for key in rule if key not in _OPTIONS]
    if unknown:
        raise ValueError(f"there is no rule {unknown[0]!r}: {did_you_mean(str(unknown[0]), _OPTIONS)}")
    if "regex" in rule:
        if len(rule) > 1 and set(rule) != {"regex", "ignore_case"}:
            raise ValueError("regex goes with ignore_case alone")
        return FieldCheck(_pattern(rule["regex"], bool(rule.get("ignore_case"))), agent_only=True)
    if "ignore_case" in rule:
        if len(rule) > 1:
            raise ValueError("ignore_case is for texts, a tolerance for numbers: give one of them")
        return FieldCheck(_same_folded if rule["ignore_case"] else equal)
    return FieldCheck(_within(rule.get("tolerance", 0.0), rule.get("relative_tolerance", 0.0)))


def _by_function(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    def test(a: Any, b: Any) -> bool:
        try:
            return bool(function(a, b))
        except Exception as error:
            raise TraceError(f"the comparison of a field raised {type(error).__name__}: {error}") from error

    return test


def _within(absolute: Any, relative: Any) -> Callable[[Any, Any], bool]:
    for bound in (absolute, relative):
        if not _is_number(bound) or not bound >= 0:
            raise ValueError(f"a tolerance is a number from 0 up, not {bound!r}")

    def test(a: Any, b: Any) -> bool:
        if equal(a, b) or not (_is_number(a) and _is_number(b)):
            return equal(a, b)
        x, y = _decimal(a), _decimal(b)
        if not (x.is_finite() and y.is_finite()):
            return False
        return abs(x - y) <= max(_decimal(absolute), _decimal(relative) * max(abs(x), abs(y)))

    return test


def _decimal(number: float) -> Decimal:
    """A number as it is written: 20 and 19.99 are 0.01 apart, which in binary they are not."""
    return Decimal(number if isinstance(number, int) else repr(number))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _same_folded(a: Any, b: Any) -> bool:
    return a.casefold() == b.casefold() if isinstance(a, str) and isinstance(b, str) else equal(a, b)


def _pattern(pattern: Any, ignore_case: bool) -> Callable[[Any, Any], bool]:
    import regex

    if not isinstance(pattern, str):
        raise ValueError(f"a regex is a text, not {pattern!r}")
    try:
        compiled = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except regex.error as error:
        raise ValueError(f"the regex {pattern!r} is wrong: {error}") from error

    def test(a: Any, b: Any) -> bool:
        try:
            text = a if isinstance(a, str) else str(a) if _is_number(a) else None
        except ValueError:  # an integer of more digits than Python writes
            return False
        if text is None:
            return False
        try:
            return compiled.fullmatch(text, timeout=REGEX_SECONDS) is not None
        except TimeoutError as error:
            raise TraceError(
                f"the regex {pattern!r} ran longer than {REGEX_SECONDS:g} s on one value: make it simpler"
            ) from error

    return test
