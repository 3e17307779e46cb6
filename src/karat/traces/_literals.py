"""Read arguments written as text: JSON, Python literals, `name(json)` and `name(key="value", n=3)`.

Nothing is evaluated. The parser is linear in the length of the text and bounds the depth of nesting. Python's `ast` is
not used: it can exhaust the C stack on hostile text, warns about unknown escapes, and does not read `true`, `null`,
JSON's surrogate pairs or line breaks in quotes.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import msgspec

from karat.datasets.readers.json import repeated_key
from karat.traces.steps import TraceError

DEPTH = 64
"""The maximum nesting of lists and dicts in a literal."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_NAME = re.compile(r"[^\W\d][\w.\-]*")
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[^\W\d]\w*")
_CONSTANTS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_UNTIL = {quote: re.compile(rf"[^{quote}\\]*") for quote in ("'", '"')}
_CLOSING = {"[": "]", "(": ")"}


def read_arguments(value: object) -> tuple[Any, str | None]:
    """Return `(arguments, None)`, or `({}, text)` where the text is not JSON or repeats a key.

    JSON that the parser cannot hold, because it is nested too deeply or has a number out of range, is a `TraceError`:
    as text it would never equal the same values written differently.
    """
    if not isinstance(value, str):
        return ({} if value is None else value), None
    try:
        decoded = _decode(value)
    except (RecursionError, msgspec.ValidationError) as error:
        raise unreadable(value, error) from error
    except ValueError:
        return ({}, None) if not value.strip() else ({}, value)
    if repeats_key(value, decoded):
        return {}, value
    return ({} if decoded is None else decoded), None


def repeats_key(text: str, decoded: object) -> bool:
    """Return whether an object in a JSON text has a key twice, of which `decoded` has only the last."""
    if type(decoded) is not dict and type(decoded) is not list:
        return False
    # Without the repeated key there are fewer quotes. Escaped quotes in other spellings are rare.
    return text.count('"') != _encode(decoded).count(b'"') and repeated_key(text) is not None


def unreadable(text: str, error: Exception) -> TraceError:
    """Return the error for JSON that is too much for the parser."""
    problem = "is nested too deeply" if isinstance(error, RecursionError) else "has a number out of range"
    return TraceError(f"text of {len(text):,} characters {problem} to be read: {text[:60]!r}…")


def read_loose_arguments(value: object) -> tuple[Any, str | None]:
    """Read arguments that may also be a Python dict, as some exporters write it (`{'city': 'Oslo'}`)."""
    arguments, raw = read_arguments(value)
    if raw is not None:
        try:
            return read_literal(raw), None
        except ValueError:
            pass
    return arguments, raw


def read_literal(text: str) -> Any:
    """Return the value of a JSON or Python literal. Raises ValueError for anything else."""
    reader = _Reader(text)
    value = reader.value(0)
    reader.end()
    return value


def read_call(text: str) -> tuple[str, Any, str | None] | None:
    """Return `(name, arguments, raw)` of one `name(…)` or bare `name`; None where the text is not a call."""
    text = text.strip()
    match = _NAME.match(text)
    if match is None:
        return None
    name, tail = match.group(), text[match.end() :].strip()
    if not tail:
        return name, {}, None
    if not (tail.startswith("(") and tail.endswith(")")):
        return None
    inside = tail[1:-1].strip()
    arguments, raw = read_arguments(inside)
    if raw is None:
        return name, arguments, None
    try:
        return name, _Reader(inside).arguments(), None
    except ValueError:
        return name, {}, inside


def read_calls(text: str) -> list[tuple[str, Any]] | None:
    """Return `(name, arguments)` of each call in `[f(a=1), g(b=2)]` or in a single `f(a=1)`; None for other text."""
    reader = _Reader(text)
    listed = reader.peek() == "["
    reader.at += listed
    calls: list[tuple[str, Any]] = []
    try:
        while reader.peek() != ("]" if listed else ""):
            calls.append(reader.call())
            if listed:
                reader.separator("]")
        reader.at += listed
        reader.end()
    except ValueError:
        return None
    return calls if calls or listed else None


def _paired(text: str) -> str:
    """Join surrogates written as two escapes. Raises ValueError for a single one."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


class _Reader:
    """A parser at a position in a text of literals."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def call(self) -> tuple[str, dict[str, Any]]:
        """Read `name(key=value, …)`; positional values get the names `arg0`, `arg1`, …"""
        self.space()
        match = _NAME.match(self.text, self.at)
        if match is None:
            raise ValueError("a call without a name")
        self.at = match.end()
        self.expect("(")
        given: dict[str, Any] = {}
        while self.peek() != ")":
            word = _WORD.match(self.text, self.at)
            key, start = f"arg{len(given)}", self.at
            if word is not None:
                self.at = word.end()
                if self.peek() == "=":
                    self.at += 1
                    key = word.group()
                else:
                    self.at = start
            if key in given:
                raise ValueError("duplicate argument")
            given[key] = self.value(0)
            self.separator(")")
        self.at += 1
        return match.group(), given

    def arguments(self) -> Any:
        """Read `key=value, …`, or a single positional literal, which is then the arguments."""
        self.space()
        start, word = self.at, _WORD.match(self.text, self.at)
        if word is not None:
            self.at = word.end()
            if self.peek() == "=":
                self.at = start
                return self.keywords()
            self.at = start
        value = self.value(0)
        self.end()
        return value

    def keywords(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while True:
            self.space()
            word = _WORD.match(self.text, self.at)
            if word is None:
                raise ValueError("argument without a name")
            self.at = word.end()
            self.expect("=")
            if word.group() in out:
                raise ValueError("duplicate argument")
            out[word.group()] = self.value(0)
            if self.peek() != ",":
                self.end()
                return out
            self.at += 1
            if not self.peek():
                return out

    def value(self, depth: int) -> Any:
        if depth > DEPTH:
            raise unreadable(self.text, RecursionError())
        mark = self.peek()
        if mark in ("'", '"'):
            return self.string(mark)
        if mark == "{":
            return self.mapping(depth)
        if mark in ("[", "("):
            return self.sequence(_CLOSING[mark], depth)
        word = _WORD.match(self.text, self.at)
        if word is not None and word.group() in _CONSTANTS:
            self.at = word.end()
            return _CONSTANTS[word.group()]
        return self.number()

    def number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            raise ValueError("not a literal")
        self.at = match.end()
        digits = match.group()
        try:
            value = float(digits) if any(mark in digits for mark in ".eE") else int(digits)
        except ValueError as error:
            # int() refuses more than a few thousand digits.
            if len(digits) > 1_000:
                raise unreadable(self.text, error) from error
            raise
        if isinstance(value, float) and not isfinite(value):
            raise unreadable(self.text, ValueError())
        return value

    def string(self, quote: str) -> str:
        parts: list[str] = []
        at = self.at + 1
        while True:
            match = _UNTIL[quote].match(self.text, at)
            stop = match.end() if match is not None else at
            parts.append(self.text[at:stop])
            mark = self.text[stop : stop + 1]
            if mark == quote:
                self.at = stop + 1
                return _paired("".join(parts)) if len(parts) > 1 else parts[0]
            if not mark:
                raise ValueError("unterminated string")
            at = self.escape(stop + 1, parts)

    def escape(self, at: int, parts: list[str]) -> int:
        mark = self.text[at : at + 1]
        width = {"x": 2, "u": 4, "U": 8}.get(mark)
        if width is None:
            # An escaped quote or backslash is that character; an unknown escape stays as written, as in Python.
            parts.append(_ESCAPES.get(mark, mark if mark in ("'", '"', "\\", "/") else "\\" + mark))
            return at + 1
        digits = self.text[at + 1 : at + 1 + width]
        code = int(digits, 16) if len(digits) == width and digits.isalnum() else -1
        if not 0 <= code <= 0x10FFFF:
            raise ValueError("invalid escape")
        parts.append(chr(code))
        return at + 1 + width

    def sequence(self, closing: str, depth: int) -> list[Any]:
        self.at += 1
        out: list[Any] = []
        while self.peek() != closing:
            out.append(self.value(depth + 1))
            self.separator(closing)
        self.at += 1
        return out

    def mapping(self, depth: int) -> dict[str, Any]:
        self.at += 1
        out: dict[str, Any] = {}
        while self.peek() != "}":
            key = self.value(depth + 1)
            if not isinstance(key, str):
                raise ValueError("key that is not a string")
            self.expect(":")
            if key in out:
                raise ValueError("duplicate key")
            out[key] = self.value(depth + 1)
            self.separator("}")
        self.at += 1
        return out

    def separator(self, closing: str) -> None:
        mark = self.peek()
        if mark == ",":
            self.at += 1
        elif mark != closing:
            raise ValueError("missing comma")

    def expect(self, mark: str) -> None:
        if self.peek() != mark:
            raise ValueError(f"missing {mark}")
        self.at += 1

    def peek(self) -> str:
        self.space()
        return self.text[self.at : self.at + 1]

    def space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        if match is not None:
            self.at = match.end()

    def end(self) -> None:
        if self.peek():
            raise ValueError("unexpected text at the end")
