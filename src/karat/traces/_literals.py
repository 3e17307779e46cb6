"""Reads arguments written as text: JSON, Python literals, `name(json)` and `name(key="value", n=3)`.

Nothing is evaluated: a small parser of its own reads strings, numbers, constants, lists and dicts, with a
bound on their depth. It is linear in the length of the text.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

DEPTH = 64
"""How deep lists and dicts may be nested in a literal."""

_decode = msgspec.json.Decoder().decode
_NAME = re.compile(r"[^\W\d][\w.\-]*")
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[^\W\d]\w*")
_CONSTANTS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_UNTIL = {quote: re.compile(rf"[^{quote}\\]*") for quote in ("'", '"')}
_CLOSING = {"[": "]", "(": ")"}


def read_arguments(value: Any) -> tuple[Any, str | None]:
    """`(arguments, None)`, or `({}, text)` where the text is no JSON."""
    if not isinstance(value, str):
        return ({} if value is None else value), None
    try:
        decoded = _decode(value)
    except (ValueError, RecursionError):
        return ({}, None) if not value.strip() else ({}, value)
    return ({} if decoded is None else decoded), None


def read_loose_arguments(value: Any) -> tuple[Any, str | None]:
    """The same, and a Python dict as some exporters write it (`{'city': 'Oslo'}`)."""
    arguments, raw = read_arguments(value)
    if raw is not None:
        try:
            return read_literal(raw), None
        except ValueError:
            pass
    return arguments, raw


def read_literal(text: str) -> Any:
    """The value of a JSON or Python literal; ValueError where it is none."""
    reader = _Reader(text)
    value = reader.value(0)
    reader.end()
    return value


def read_call(text: str) -> tuple[str, Any, str | None] | None:
    """`(name, arguments, raw)` of one `name(…)` or bare `name`; None where the text is no call at all."""
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


def _paired(text: str) -> str:
    """Surrogates written as two escapes become their character; a single one is an error."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


class _Reader:
    """A position in a text of literals."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def arguments(self) -> Any:
        """`key=value, …`; or a single positional literal, which is then the arguments."""
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
                raise ValueError("an argument without a name")
            self.at = word.end()
            self.expect("=")
            if word.group() in out:
                raise ValueError("an argument given twice")
            out[word.group()] = self.value(0)
            if self.peek() != ",":
                self.end()
                return out
            self.at += 1
            if not self.peek():
                return out

    def value(self, depth: int) -> Any:
        if depth > DEPTH:
            raise ValueError("nested too deeply")
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
        # int() refuses more than a few thousand digits with a ValueError, which is what is wanted here.
        return float(digits) if any(mark in digits for mark in ".eE") else int(digits)

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
                raise ValueError("a text without its end")
            at = self.escape(stop + 1, parts)

    def escape(self, at: int, parts: list[str]) -> int:
        mark = self.text[at : at + 1]
        width = {"x": 2, "u": 4, "U": 8}.get(mark)
        if width is None:
            # A quote or a backslash stands for itself; an unknown escape stays as written, as in Python.
            parts.append(_ESCAPES.get(mark, mark if mark in ("'", '"', "\\", "/") else "\\" + mark))
            return at + 1
        digits = self.text[at + 1 : at + 1 + width]
        code = int(digits, 16) if len(digits) == width and digits.isalnum() else -1
        if not 0 <= code <= 0x10FFFF:
            raise ValueError("a broken escape")
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
                raise ValueError("a key that is no text")
            self.expect(":")
            out[key] = self.value(depth + 1)
            self.separator("}")
        self.at += 1
        return out

    def separator(self, closing: str) -> None:
        mark = self.peek()
        if mark == ",":
            self.at += 1
        elif mark != closing:
            raise ValueError("a missing comma")

    def expect(self, mark: str) -> None:
        if self.peek() != mark:
            raise ValueError(f"{mark} is missing")
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
            raise ValueError("something follows")
