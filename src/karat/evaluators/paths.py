"""Dotted paths into outputs and references: `answer.text`, `choices.0`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from karat.errors import CannotJudge, did_you_mean
from karat.evaluators.normalise import clip, plain


def value_at(value: Any, path: str, what: str) -> Any:
    """The value a path leads to. Plain text, numbers and None have no fields and are taken as they are.

    A key that is not there is a `CannotJudge`, which names the keys that are; it is never a match.
    """
    if type(value) is dict and type(found := value.get(path)) is str:
        return found  # nearly always
    value = plain(value, what)
    if not isinstance(value, (dict, list)):
        return value
    if isinstance(value, dict) and path in value:
        return value[path]
    at = value
    for step in path.split("."):
        if isinstance(at, dict) and step in at:
            at = at[step]
        elif isinstance(at, list) and _is_index(step) and int(step) < len(at):
            at = at[int(step)]
        else:
            raise CannotJudge(f"{what} has no {path!r}: {_instead(at, step)}")
    return at


def _is_index(step: str) -> bool:
    return step.isascii() and step.isdigit() and len(step) < 10


def _instead(at: Any, step: str) -> str:
    if isinstance(at, Mapping):
        if not at:
            return f"the object where {clip(step)} is looked for is empty"
        return did_you_mean(step, [str(key)[:40] for key in list(at)[:50]])
    if isinstance(at, list):
        return f"where {clip(step)} is looked for there is a list of {len(at)}"
    return f"where {clip(step)} is looked for there is no object"
