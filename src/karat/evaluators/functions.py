"""Functions that are handed to an evaluator: their name among its parameters, their code in its fingerprint."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from karat.keys import code_fingerprint


def name_of(function: Callable[..., Any]) -> str:
    """Module and name."""
    return (
        f"{getattr(function, '__module__', '')}."
        f"{getattr(function, '__qualname__', type(function).__qualname__)}"
    )


def code_of(function: Callable[..., Any]) -> str:
    """A hash of its source. Where that cannot be known it is like no other, so that nothing is taken for it."""
    is_placed = getattr(function, "__module__", None) is not None
    code = code_fingerprint(function) if is_placed else None
    if code is None:
        return uuid.uuid4().hex
    # All lambdas of a function have one name; their lines tell them apart.
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", "")
    return f"{code}:{line}"


def named(given: Any) -> Any:
    """A parameter as JSON: functions in it by their names."""
    if callable(given):
        return name_of(given)
    if isinstance(given, Mapping):
        return {key: named(each) for key, each in given.items()}
    return [named(each) for each in given] if isinstance(given, (list, tuple)) else given


def codes_in(given: Any) -> list[str]:
    """The code of every function in a parameter, in its order."""
    if callable(given):
        return [code_of(given)]
    if isinstance(given, Mapping):
        return [code for each in given.values() for code in codes_in(each)]
    return [code for each in given for code in codes_in(each)] if isinstance(given, (list, tuple)) else []
