"""YAML files with the line number of every value, for error messages.

The loader is safe and follows YAML 1.2: `no` is a string, `12:30` is not a number of seconds, `2024-01-01` is not a
date object. A duplicate key is an error.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from karat.errors import ConfigError, clip, near_file

LONGEST = 1_000_000
MOST_VALUES = 25_000
"""Bytes of a file, and keys and values with aliases followed: PyYAML reads so much in less than two seconds."""
DEEPEST = 60

Place = tuple[str | int, ...]
"""The path of a value: keys and indices from the top."""

NO_CHARACTER = (
    "cannot be read as YAML: an escape such as \\UFFFFFFFF names no character of Unicode: correct it"
)


TOO_MANY = f"more than {MOST_VALUES:,} values: move the data to a separate file"

LONGEST_INTEGER = 14_284
"""Bits of the largest integers that all have at most 4,300 digits."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's form
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}
    _depth = 0
    _count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a value; PyYAML calls itself for each level, and takes time in the square of their number."""
        if self._depth > DEEPEST:
            raise ComposerError(None, None, "nested too deeply", self.peek_event().start_mark)  # type: ignore[no-untyped-call]  # PyYAML
        if self._count > MOST_VALUES:
            raise ComposerError(None, None, TOO_MANY, self.peek_event().start_mark)  # type: ignore[no-untyped-call]  # PyYAML
        self._depth += 1
        self._count += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_int(self, node: yaml.ScalarNode) -> int:
        """Construct an integer; Python refuses one of more than 4,300 digits, in hex only when it is written."""
        error: ValueError | None = None
        try:
            number = self.construct_yaml_int(node)
            if number.bit_length() <= LONGEST_INTEGER:
                return number
        except ValueError as refused:
            error = refused
        raise ConstructorError(None, None, "the number is too long: quote it", node.start_mark) from error

    def construct_bool(self, node: yaml.ScalarNode) -> bool:
        """Construct true or false; a tag may stand before any other text."""
        if node.value.lower() in ("true", "false"):
            return bool(node.value.lower() == "true")
        raise ConstructorError(None, None, "neither true nor false", node.start_mark)

    def refuse_tag(self, node: yaml.Node) -> None:
        """Refuse the tags beyond those of JSON: YAML 1.2 has no dates, sets or bytes, and PyYAML reads them loosely."""
        tag = str(node.tag).replace("tag:yaml.org,2002:", "!!")
        raise ConstructorError(
            None, None, f"the tag {clip(tag, 60)} is not known: leave it out", node.start_mark
        )


for _name in ("null", "float", "str", "seq", "map"):
    _tag = f"tag:yaml.org,2002:{_name}"
    _Loader.add_constructor(_tag, yaml.SafeLoader.yaml_constructors[_tag])
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_int)
_Loader.add_constructor("tag:yaml.org,2002:bool", _Loader.construct_bool)
_Loader.add_constructor(None, _Loader.refuse_tag)

for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+0123456789.")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


class Document:
    """The value of a file, with line numbers."""

    def __init__(self, path: Path, value: Any, lines: dict[Place, int]) -> None:
        self.path = path
        self.value = value
        self._lines = lines

    def holding(self, value: object) -> Document:
        """A document with the same file and line numbers, and another value."""
        return Document(self.path, value, self._lines)

    def line(self, place: Place) -> int:
        """The line of a value, or of its nearest parent if it is missing."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place, 1)


def read_document(path: Path) -> Document:
    """Read a file; raise a ConfigError with the line if it is invalid."""
    try:
        if path.stat().st_size > LONGEST:
            raise ConfigError(
                [f"is larger than {LONGEST:,} bytes: move the data to a separate file"], str(path)
            )
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        beside = (
            [each.name for each in path.parent.iterdir() if each.is_file()] if path.parent.is_dir() else []
        )
        raise ConfigError([f"does not exist{near_file(path, beside)}"], str(path)) from error
    except OSError as error:
        raise ConfigError([f"cannot be read: {error.strerror}"], str(path)) from error
    except UnicodeDecodeError as error:
        is_utf16 = error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        problem = "the file is UTF-16, not UTF-8" if is_utf16 else f"byte {error.start + 1} is not UTF-8"
        raise ConfigError([f"{problem}: convert the file to UTF-8"], str(path)) from error
    try:
        loader = _Loader(text)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            [
                f"line {line}: control character U+{ord(text[error.position]):04X} is not allowed in YAML: remove it"
            ],
            str(path),
        ) from error
    try:
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(
                ["the file is empty: write a task, an experiment or a configuration into it"], str(path)
            )
        lines, problems = _look(node, path)
        if problems:
            raise ConfigError(problems, str(path))
        return Document(path, loader.construct_document(node), lines)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_message(error)], str(path)) from error
    except OverflowError as error:
        raise ConfigError([NO_CHARACTER], str(path)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if "chr()" in str(error):  # what Python says of an escape beyond Unicode depends on its version
            raise ConfigError([NO_CHARACTER], str(path)) from error
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError([f"cannot be read as YAML: {reason}"], str(path)) from error
    finally:
        loader.dispose()


def _message(error: yaml.MarkedYAMLError) -> str:
    """A readable message for a YAML syntax error."""
    mark, problem = error.problem_mark or error.context_mark, error.problem or error.context or ""
    if error.context == "while scanning a quoted scalar" and "end of stream" in problem:
        mark, message = error.context_mark or mark, "unclosed quotation mark"
    elif r"'\t'" in problem:
        message = "indent with spaces, not a tab"
    elif "<block end>" in problem:
        message = "inconsistent indentation: align this line with its neighbours"
    elif problem == "mapping values are not allowed here":
        message = "unexpected colon: align the line with its neighbours, or quote the value"
    elif problem == "but found another document":
        message = "a second document (---): write one document per file"
    elif problem.startswith("found character"):
        message = f"{problem}: quote the value"
    else:
        message = problem
    return f"line {mark.line + 1}, column {mark.column + 1}: {message}" if mark else message


def _look(root: yaml.Node, path: Path) -> tuple[dict[Place, int], list[str]]:
    """The line of every value, and the duplicate keys. Aliases are followed, within bounds."""
    lines: dict[Place, int] = {}
    problems: list[str] = []
    waiting: list[tuple[Place, yaml.Node, int]] = [((), root, root.start_mark.line + 1)]
    while waiting:
        place, node, line = waiting.pop()
        if len(place) > DEEPEST or len(lines) > MOST_VALUES:
            problem = "nested too deeply" if len(place) > DEEPEST else TOO_MANY
            raise ConfigError([f"line {line}: {problem}"], str(path))
        lines[place] = line
        if isinstance(node, yaml.SequenceNode):
            waiting += [((*place, i), item, item.start_mark.line + 1) for i, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            waiting += _members(place, node, problems)
    return lines, problems


def _members(place: Place, node: yaml.MappingNode, problems: list[str]) -> list[tuple[Place, yaml.Node, int]]:
    found: list[tuple[Place, yaml.Node, int]] = []
    first: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            problems.append(f"line {line}: a key must be a scalar")
            continue
        if key.tag == "tag:yaml.org,2002:null":
            problems.append(f"line {line}: an empty key: write a name before the colon")
            continue
        if key.value in first and key.value != "<<":
            problems.append(f"line {line}: duplicate key {key.value!r}, first on line {first[key.value]}")
        first[key.value] = line
        found.append(((*place, key.value), value, line))
    return found


def format_path(place: Place) -> str:
    """Format a path: `evaluators[1].params`."""
    out = ""
    for step in place:
        out += f"[{step}]" if isinstance(step, int) else f".{step}" if out else str(step)
    return out
