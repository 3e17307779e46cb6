"""Checks of the parameters of evaluators and unit metrics, made when they are built."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from karat.errors import RequestError, did_you_mean
from karat.keys import code_fingerprint

Paths = str | Mapping[str, str] | None
"""A path for output and reference alike, or one for each."""


class ParameterCheck:
    """Checks values one by one and gives them back; the first wrong one is a `RequestError`."""

    def __init__(self, who: str) -> None:
        self.who = who

    def refuse(self, name: str, wanted: str, value: object) -> RequestError:
        """The error for an invalid parameter: what it must be, and what was given."""
        try:
            given = repr(value)
        except Exception:  # a foreign object's repr may raise anything
            given = f"{type(value).__name__} object"
        return RequestError(f"{self.who}: {name} has to be {wanted}, not {given[:80]}")

    def flag(self, name: str, value: object) -> bool:
        """True or false, and nothing that merely looks like it."""
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false", value)
        return value

    def number(self, name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite number within bounds."""
        wanted = "a number"
        if low != -math.inf:
            wanted += f" of {low:g} or more" if high == math.inf else f" between {low:g} and {high:g}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(name, wanted, value)
        if not math.isfinite(value) or not low <= value <= high:
            raise self.refuse(name, wanted, value)
        return float(value)

    def whole(self, name: str, value: object, low: int) -> int:
        """A whole number of at least `low`."""
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.refuse(name, f"a whole number of {low} or more", value)
        return value

    def choice(self, name: str, value: object, known: Iterable[str]) -> str:
        """One of a few words."""
        known = list(known)
        if not isinstance(value, str) or value not in known:
            hint = did_you_mean(value, known) if isinstance(value, str) else f"known: {', '.join(known)}"
            raise RequestError(f"{self.who}: {name} has no {str(value)[:80]!r}: {hint}")
        return value

    def mapping(self, name: str, value: object) -> dict[str, Any]:
        """An object whose keys are texts, as a copy; None is an empty one."""
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.refuse(name, "an object with a name for each value", value)
        return dict(value)

    def text(self, name: str, value: object) -> str:
        """Text that is not empty."""
        if not isinstance(value, str) or not value:
            raise self.refuse(name, "text that is not empty", value)
        return value

    def path(self, name: str, value: object) -> str | None:
        """A dotted path, or None for the value itself."""
        return None if value is None else self.text(name, value)

    def paths(self, name: str, value: object) -> tuple[str | None, str | None]:
        """Where to look in the output and in the reference: one dotted path for both, or `{output, reference}`."""
        if not isinstance(value, Mapping):
            return (self.path(name, value),) * 2
        for side in value:
            self.choice(name, side, ["output", "reference"])
        output, reference = (self.path(f"{name}.{side}", value.get(side)) for side in ("output", "reference"))
        return output, reference

    def texts(self, name: str, value: object) -> list[str]:
        """One text or a list of them, as a list; none of them empty."""
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)) or not value:
            raise self.refuse(name, "text or a list of texts", value)
        return [self.text(name, each) for each in value]


def name_of(function: Callable[..., Any]) -> str:
    """Module and name."""
    return (
        f"{getattr(function, '__module__', '')}."
        f"{getattr(function, '__qualname__', type(function).__qualname__)}"
    )


def code_of(function: Callable[..., Any]) -> str:
    """A hash of the source; a unique value if the source is unknown, so that no cached result is reused for it."""
    is_placed = getattr(function, "__module__", None) is not None
    code = code_fingerprint(function) if is_placed else None
    if code is None:
        return uuid.uuid4().hex
    # All lambdas of a function have one name; their lines tell them apart.
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", "")
    return f"{code}:{line}"


def named(given: object) -> Any:
    """A parameter as JSON: functions in it by their names."""
    if callable(given):
        return name_of(given)
    if isinstance(given, Mapping):
        return {key: named(each) for key, each in given.items()}
    return [named(each) for each in given] if isinstance(given, (list, tuple)) else given


def codes_in(given: object) -> list[str]:
    """The code of every function in a parameter, in its order."""
    if callable(given):
        return [code_of(given)]
    if isinstance(given, Mapping):
        return [code for each in given.values() for code in codes_in(each)]
    return [code for each in given for code in codes_in(each)] if isinstance(given, (list, tuple)) else []
