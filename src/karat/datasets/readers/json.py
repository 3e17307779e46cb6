"""Rows of JSON Lines files and of JSON files, a line or an element at a time."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterable
from typing import BinaryIO

import msgspec

from karat.datasets.readers.rows import (
    BYTE_ORDER_MARK,
    MAX_ROW,
    BadRow,
    Rows,
    bounded_lines,
    too_large,
    undecodable,
)
from karat.errors import DataError, clip

_decode = msgspec.json.Decoder().decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|NaN|-?Infinity|-?\d[\d.eE+-]*')
_NAME = re.compile(r'"(?:[^"\\]|\\.)*"(?=[ \t\n\r]*:)')
_SPACE = re.compile(r"[ \t\n\r]*")
_SEPARATOR = re.compile(r"[ \t\n\r]*([,\]])[ \t\n\r]*")
_CHUNK = 1 << 18
_LONGEST_TOKEN = 16
"""Longer than any literal or escape: an error nearer to the end of what was read may only be that end."""


def read_jsonl(file: BinaryIO, source: str, *, check_keys: bool = True) -> Rows:
    """Yield the JSON value of each line; blank lines are not rows."""
    for number, line in bounded_lines(file, source):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        try:
            row = _decode(line)
        except _UNREADABLE:
            if not line.strip():
                continue
            row = bad_line(number, line, file.tell() - len(line))
        else:
            if (
                check_keys
                and may_repeat_keys(line, row)
                and (found := repeated_key(line.decode())) is not None
            ):
                row = BadRow(number, found[0] + 1, found[1])
        yield number, row


_SPACED_COLON = re.compile(rb'"[ \t\n\r]+:')


def may_repeat_keys(text: bytes, value: object) -> bool:
    """Whether a JSON text may have an object with a duplicate key, of which `value` has only the last.

    It has none if there are as many names as keys. Names are counted as quotes before a colon, which is exact unless a
    string contains such: a lossless answer costs some ten times as much as reading the text.
    """
    colons = text.count(b":")
    if type(value) is dict and colons == len(
        value
    ):  # a flat object: the keys below the top need not be counted
        return False
    names = _keys(value)
    return colons != names and (text.count(b'":') != names or _SPACED_COLON.search(text) is not None)


def _keys(value: object) -> int:
    """Count the keys of a JSON value at all depths."""
    count, containers = 0, [value]
    for each in containers:  # grows while it is read
        if type(each) is dict:
            count += len(each)
            inside: Iterable[object] = each.values()
        elif type(each) is list:
            inside = each
        else:
            break  # a value that is neither is alone
        for inner in inside:
            if type(inner) is dict or type(inner) is list:
                containers.append(inner)
    return count


class _RepeatedKeyError(Exception):
    """The name of a duplicate key, on its way out of a decoder."""


def _refuse_repeated(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _RepeatedKeyError(name)
        seen.add(name)


_pairs_decoder = json.JSONDecoder(object_pairs_hook=_refuse_repeated, parse_int=str)


def repeated_key(text: str) -> tuple[int, str] | None:
    """The position of the second of two equal keys in an object, and the reason in words; None without any."""
    try:
        _pairs_decoder.decode(text)
    except _RepeatedKeyError as error:
        name = str(error)
        places = [match.start() for match in _NAME.finditer(text) if json.loads(match[0]) == name]
        return places[1] if len(places) > 1 else 0, f"duplicate key {clip(name, 80)}: give each its own name"
    except RecursionError:
        pass  # nested too deeply for this decoder; the values were read anyway
    return None


def bad_line(number: int, line: bytes, offset: int) -> BadRow:
    """Return where and why a line is not JSON."""
    line = line.rstrip(b"\r\n")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return BadRow(number, len(line[: error.start].decode()) + 1, undecodable(error, offset))
    position, reason = _diagnose(text)
    if number == 1 and text.strip() in ("[", "{"):
        reason += " (a JSON document that goes over several lines is format='json')"
    return BadRow(number, position + 1, reason)


def _diagnose(text: str) -> tuple[int, str]:
    """Explain where and why a text is not JSON; called only for text that is not."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos, f"not JSON: {_fault(text, error)}"
    except RecursionError:
        return 0, "not readable: nested too deeply"
    except ValueError:
        return 0, "not readable: an integer has too many digits"
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word[0] == '"':
            if _has_lone_surrogate(json.loads(word)):
                return token.start(), "not JSON: a \\u escape is a lone surrogate"
        elif word[-1] in "Ny":
            return token.start(), f"not JSON: {word} is not a JSON number"
        elif not math.isfinite(float(word)) and ("." in word or "e" in word.lower()):
            return token.start(), f"not readable: the number {clip(word, 20)} is out of range"
    return 0, "not readable as JSON"


_PYTHON = {"True": "true", "False": "false", "None": "null"}


def _fault(text: str, error: json.JSONDecodeError) -> str:
    """The fault where the decoder stopped, with the fix of those that people make most often."""
    rest = (
        text[error.pos : error.pos + 8].lstrip(",").lstrip()
    )  # from Python 3.13 on, it stops at a trailing comma
    if rest[:1] in ("]", "}") and error.msg.startswith(("Expecting", "Illegal trailing")):
        return f"a value is missing before {rest[0]!r}: remove the comma before it, or add the value"
    if rest.startswith("'"):
        return "text in single quotes: use double quotes"
    if rest.startswith(("//", "/*")):
        return "JSON has no comments: remove it"
    for word, json_word in _PYTHON.items():
        if rest.startswith(word):
            return f"write {json_word} for {word}"
    if error.msg == "Extra data":
        after = (
            "a comma: remove it" if text[error.pos] == "," else "more text: put each value on its own line"
        )
        return f"the value is followed by {after}"
    if error.msg.startswith("Unterminated string"):
        return "the text that begins here has no closing quote"
    if error.msg.startswith("Invalid control character"):
        return f"control character U+{ord(text[error.pos]):04X} in a text: write it as \\u{ord(text[error.pos]):04x}"
    return error.msg


def _has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def read_json(file: BinaryIO, source: str, *, check_keys: bool = True) -> Rows:
    """The elements of an array, or of the one array that an object holds."""
    text = _Text(file, source)
    first = text.peek()
    if first == "[":
        yield from _elements(text, check_keys)
    elif first == "{":
        yield from _elements_of_object(text, check_keys)
    elif first:
        raise text.error("the file holds a single value, not an array of rows")
    if text.peek():
        raise text.error(
            "something follows the end of the JSON document (one row to a line is format='jsonl')"
        )


def _elements(text: _Text, check_keys: bool) -> Rows:
    text.take("[")
    if text.peek() == "]":
        text.take("]")
        return
    while True:
        line, column = text.place()
        element = text.value()
        try:
            row = _decode(element)
            checked = check_keys and may_repeat_keys(element.encode(), row)
            problem = repeated_key(element) if checked else None
        except _UNREADABLE:
            problem = _diagnose(element)
        if problem is not None:
            position, reason = problem
            before = element[:position]
            line += before.count("\n")
            column = column + position if "\n" not in before else position - before.rindex("\n")
            row = BadRow(line, column, reason)
        yield line, row
        if text.take_separator() == "]":
            return


def _elements_of_object(text: _Text, check_keys: bool) -> Rows:
    text.take("{")
    found: str | None = None
    ended = text.peek() == "}" and text.take("}") == "}"
    while not ended:
        if text.peek() != '"':
            raise text.error("not JSON: expecting a name in double quotes")
        name = json.loads(text.value())
        text.take(":")
        if text.peek() != "[":
            text.value()
        elif found is None:
            found = name
            yield from _elements(text, check_keys)
        else:
            both = f"{clip(found, 80)} and {clip(name, 80)}"
            raise text.error(f"the object holds two arrays, {both}: give a file with one")
        ended = text.take(",", "}") == "}"
    if found is None:
        raise text.error(
            "the object holds no array of rows: write the rows as [{…}, {…}], or one to a line in a .jsonl file"
        )


class _Text:
    """The text of a JSON file, of which only the value being read is in memory."""

    def __init__(self, file: BinaryIO, source: str) -> None:
        self._file = file
        self._source = source
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder().raw_decode
        self._text = ""
        self._position = 0
        self._read = 0
        """Bytes read from the file."""
        self._dropped = 0
        """Characters that stood before the text in memory."""
        self._counted = 0
        self._line = 1
        self._line_start = 0
        """Line and first character of the line (from the start of the file), as of `_counted`."""
        self._ended = False

    def peek(self) -> str:
        """The next character that is not space; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._position)
            assert match is not None, "the pattern matches the empty text"
            self._position = match.end()
            if self._position < len(self._text):
                return self._text[self._position]
            if self._ended:
                return ""
            self._more()

    def take(self, *wanted: str) -> str:
        """Skip one of the wanted characters."""
        found = self.peek()
        if found not in wanted or not found:
            names = " or ".join(repr(character) for character in wanted)
            if found:
                raise self.error(f"not JSON: expecting {names}")
            raise self.error(f"not JSON: the file ends where {names} is expected")
        self._position += 1
        return found

    def take_separator(self) -> str:
        """Go past what follows an element, and the space around it: in one step where that is possible."""
        match = _SEPARATOR.match(self._text, self._position)
        if match is not None and match.end() < len(self._text):
            self._position = match.end()
            return match[1]
        found = self.take(",", "]")
        self.peek()
        return found

    def value(self) -> str:
        """The text of the value that begins here; space was passed already."""
        while True:
            text = self._text
            try:
                _, end = self._scan(text, self._position)
                if end < len(text) or self._ended:
                    value = text[self._position : end]
                    self._position = end
                    return value
            except json.JSONDecodeError as error:
                open_string = error.msg.startswith("Unterminated string")
                if self._ended or (not open_string and error.pos < len(text) - _LONGEST_TOKEN):
                    self._position = error.pos
                    raise self.error(f"not JSON: {_fault(text, error)}") from None
            except RecursionError:
                raise self.error("not readable: nested too deeply") from None
            except ValueError:
                raise self.error("not readable: an integer has too many digits") from None
            self._more()

    def place(self) -> tuple[int, int]:
        """Line and column of the next character."""
        self._count(self._position)
        return self._line, self._dropped + self._position - self._line_start + 1

    def error(self, reason: str) -> DataError:
        """Return the error at the next character."""
        line, column = self.place()
        return DataError(BadRow(line, column, reason).sentence(self._source))

    def _count(self, position: int) -> None:
        newlines = self._text.count("\n", self._counted, position)
        if newlines:
            self._line += newlines
            self._line_start = self._dropped + self._text.rindex("\n", self._counted, position) + 1
        self._counted = position

    def _more(self) -> None:
        """Read on, twice as much as is held, so that a long value is not scanned again and again."""
        self._count(self._position)
        self._dropped += self._position
        kept = self._text[self._position :]
        if len(kept) > MAX_ROW:
            raise self.error(too_large())
        data = self._file.read(max(_CHUNK, len(kept)))
        try:
            decoded = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            # The decoder may have held back a few bytes of the chunk before: they are part of its object.
            begin = self._read + len(data) - len(error.object)
            self._text = kept + error.object[: error.start].decode()
            self._counted, self._position = 0, len(self._text)
            raise self.error(undecodable(error, begin)) from None
        self._read += len(data)
        self._text = kept + decoded
        self._position = self._counted = 0
        self._ended = not data
