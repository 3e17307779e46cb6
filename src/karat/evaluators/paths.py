"""Dotted paths into outputs and references: `answer.text`, `choices.0`."""

from __future__ import annotations

from typing import Any

from karat.errors import CannotJudge
from karat.evaluators.normalise import plain
from karat.paths import MISSING, parse


def value_at(value: Any, path: str, what: str) -> Any:
    """Return the value that a path leads to. Text, numbers and None have no fields and are taken as they are.

    A path that leads nowhere is a `CannotJudge`, which names the fields that are there; it is never a match.
    """
    if type(value) is dict and type(found := value.get(path)) is str:
        return found  # nearly always
    value = plain(value, what)
    if not isinstance(value, (dict, list)):
        return value
    parsed = parse(path)
    found = parsed.find(value)
    if found is MISSING:
        raise CannotJudge(f"{what} has {parsed.why_missing(value)}")
    return found
