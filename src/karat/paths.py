"""Dotted paths into data, such as `answer.text`, `choices.0` or `choices[0].text`: their only reader.

- Steps are separated by dots. In an object a step is a key; in a list it is a position, counted from 0.
- `[0]` is another way to write `.0`: `a.b[0].c` and `a.b.0.c` are the same path.
- A key that contains dots or brackets wins over the steps it looks like: `a.b` finds the key `a.b` where an object
  has it, also below the top (`x.a.b`). Where such a key leads nowhere, its steps are tried.
- A value that is not there is `MISSING`, which is not None: None is a value.

Objects are mappings, lists are lists and tuples. Negative positions, wildcards and attributes are not paths.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from karat.errors import RequestError, did_you_mean, plural


class _Missing(enum.Enum):
    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing.MISSING
"""What a path that leads nowhere gives."""

Missing = Literal[_Missing.MISSING]

MAX_STEPS = 100

_POSITION = re.compile(r"\[([0-9]{1,9})\](?=[.\[]|$)")


class Path:
    """A parsed path. Parse it once where it is used for many records; `find` parses and remembers."""

    __slots__ = ("_keys", "steps", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        spans = _spans(text)
        if len(spans) > MAX_STEPS:
            raise RequestError(
                f"the path {_quote(text)} has {len(spans)} steps; at most {MAX_STEPS} are read"
            )
        self.steps: tuple[str, ...] = tuple(step for step, _, _ in spans)
        """`("a", "b", "0", "c")` for `a.b[0].c`."""
        # For each step: the keys that may start there, longest first, with the step that follows each.
        self._keys = [
            [(text[start : spans[last][2]], last + 1) for last in range(len(spans) - 1, first - 1, -1)]
            + ([(step, first + 1)] if text[start:end] != step else [])  # `[0]` is also the key `0`
            for first, (step, start, end) in enumerate(spans)
        ]

    def __repr__(self) -> str:
        return f"Path({self.text!r})"

    def find(self, data: object) -> Any:
        """Return the value that the path leads to, or `MISSING`."""
        if type(data) is dict and self.text in data:
            return data[self.text]
        return self._find(data, 0)

    def get(self, data: object, default: object = None) -> Any:
        """Return the value that the path leads to, or a default."""
        found = self.find(data)
        return default if found is MISSING else found

    def _find(self, data: Any, at: int) -> Any:
        if at == len(self.steps):
            return data
        if isinstance(data, Mapping):
            for key, after in self._keys[at]:
                if key in data and (found := self._find(data[key], after)) is not MISSING:
                    return found
        elif isinstance(data, (list, tuple)) and _is_position(self.steps[at]):
            position = int(self.steps[at])
            if position < len(data):
                return self._find(data[position], at + 1)
        return MISSING

    def root(self, data: Mapping[str, Any]) -> str:
        """Return the key of an object that the path starts with: the longest one that the object has."""
        for key, after in self._keys[0]:
            if key in data and self._find(data[key], after) is not MISSING:
                return key
        return next((key for key, _ in self._keys[0] if key in data), self.steps[0])

    def why_missing(self, data: object) -> str:
        """Say why the path leads nowhere: what is there instead of the first step that is missing."""
        at = 0
        while True:
            if isinstance(data, Mapping):
                found = next(((key, after) for key, after in self._keys[at] if key in data), None)
                if found is None or found[1] == len(self.steps):
                    return self._no_key(data, at)
                data, at = data[found[0]], found[1]
            elif isinstance(data, (list, tuple)):
                step = self.steps[at]
                if not _is_position(step):
                    return f"no field {_quote(step)}{self._within(at)}: there is an array of {len(data)}"
                if int(step) >= len(data):
                    return (
                        f"no element {step}{self._within(at)}: the array has {plural(len(data), 'element')}"
                    )
                data, at = data[int(step)], at + 1
            else:
                return f"no field {_quote(self.steps[at])}{self._within(at)} in {kind_of(data)}"

    def _no_key(self, data: Mapping[Any, Any], at: int) -> str:
        step = self.steps[at]
        if not data:
            return f"no field {_quote(step)}{self._within(at)}: the object is empty"
        known = [str(key)[:80] for key, _ in zip(data, range(200), strict=False) if key != ""]
        return f"no field {_quote(step)}{self._within(at)}: {did_you_mean(step[:80], known)}"

    def _within(self, at: int) -> str:
        return f" (of {_quote(self.text)})" if len(self.steps) > 1 else ""


def _spans(text: str) -> list[tuple[str, int, int]]:
    """Each step with its start and end in the text."""
    out: list[tuple[str, int, int]] = []
    start = 0
    at_step = True  # whether a key may start here: at the beginning and after a dot
    while True:
        match = _POSITION.match(text, start)
        if match is not None and (start == 0 or not at_step):
            out.append((match[1], start, match.end()))
            start = match.end()
        else:  # also text after a position without a dot, which is a step of its own
            end = start
            while end < len(text) and text[end] != "." and not (end > start and _POSITION.match(text, end)):
                end += 1
            out.append((text[start:end], start, end))
            start = end
        if start == len(text):
            return out
        at_step = text[start] == "."
        start += at_step


@functools.lru_cache(1024)
def parse(text: str) -> Path:
    """Parse a path, or return the one parsed before."""
    return Path(text)


def find(data: object, path: str) -> Any:
    """Return the value that a path leads to, or `MISSING`."""
    return parse(path).find(data)


def get(data: object, path: str, default: object = None) -> Any:
    """Return the value that a path leads to, or a default."""
    return parse(path).get(data, default)


def kind_of(value: object) -> str:
    """Name the kind of a JSON value for a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "text"
    if isinstance(value, Mapping):
        return "an object"
    return "an array" if isinstance(value, (list, tuple)) else "a number"


def _is_position(step: str) -> bool:
    return step.isascii() and step.isdigit() and len(step) < 10


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
