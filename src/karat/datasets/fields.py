"""Which fields of a row become the input, what is expected, the id and the metadata of an example."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from karat.datasets.readers.rows import short
from karat.errors import RequestError
from karat.paths import MISSING, kind_of, parse

Fields = str | Sequence[str] | None
Parts = tuple[str | None, Any, Any, dict[str, Any]]
"""id (None: to be made of the content), input, expected, metadata."""


class RowProblem(Exception):
    """Why a row cannot be an example; becomes a BadRow or a DataError once the line is known."""


class Field:
    """A field of a row, by its name or by a dotted path into it (see karat.paths)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._path = parse(name)
        self.is_path = len(self._path.steps) > 1

    def of(self, row: object) -> Any:
        """Return the value of the field; raises RowProblem where the row has none."""
        if type(row) is not dict:
            raise RowProblem(f"the row is {kind_of(row)}, not an object, and has no field {short(self.name)}")
        found = self._path.find(row)
        if found is MISSING:
            raise RowProblem(f"there is {self._path.why_missing(row)}")
        return found

    def used(self, row: dict[str, Any]) -> str:
        """Return the top-level field of the row that `of` reads."""
        return self._path.root(row)


class Selection:
    """How the rows of one file become examples.

    What is not named is decided on the first row and then holds for all of them: a file whose rows have an
    `input` is taken to hold examples; otherwise the whole row is the input.
    """

    def __init__(
        self,
        input: Fields = None,
        expected: Fields = None,
        id: str | Literal[False] | None = None,
        metadata: Sequence[str] | None = None,
    ) -> None:
        self._input = _fields("input", input)
        self._expected = _fields("expected", expected)
        if not (id is None or id is False or (isinstance(id, str) and id)):
            raise RequestError(f"id= takes the name of a field, or False for none, not {id!r:.60}")
        self._id = Field(id) if isinstance(id, str) else None
        self._find_id = id is None
        if isinstance(metadata, (str, bytes)) or not (metadata is None or isinstance(metadata, Sequence)):
            raise RequestError(f"metadata= takes a list of fields, not {metadata!r:.60}")
        self._metadata = None if metadata is None else [_field("metadata", name) for name in metadata]
        self._shaped: bool | None = None if input is None or input == "input" else False
        self._own_input = Field("input")
        named = [*_each(self._input), *_each(self._expected), *_each(self._id)]
        self._names = {field.name for field in named if not field.is_path}
        self._paths = [field for field in named if field.is_path]
        if self._find_id:
            self._names.add("id")

    def parts(self, row: Any) -> Parts:
        """The parts of the example that a row is; raises RowProblem."""
        if self._shaped is None:
            self._shaped = self._has_shape(row)
            if self._shaped:
                self._names |= {"input"} if self._expected is not None else {"input", "expected"}
        shaped = self._shaped
        if self._input is not None:
            input = _value(self._input, row)
        elif shaped:
            input = self._own_input.of(row)
        else:
            input = row
        if self._expected is not None:
            expected = _value(self._expected, row)
        else:
            expected = row.get("expected") if shaped else None
        return self._id_of(row), input, expected, self._metadata_of(row)

    def _has_shape(self, row: Any) -> bool:
        if type(row) is not dict or "input" not in row:
            return False
        if "expected" not in row and self._expected is None:
            # A mistyped name would leave every example without what is expected, silently.
            for key in row:
                if _means_expected(key):
                    raise RowProblem(
                        f"the row has no field 'expected' but {short(key)}: set expected to {short(key)}"
                        f" (--expected {shlex.quote(key)}),"
                        " or rename it if it is something else"
                    )
        return True

    def _id_of(self, row: Any) -> str | None:
        if self._id is not None:
            value = self._id.of(row)
        elif self._find_id and type(row) is dict:
            value = row.get("id")
            if value is None:
                return None
            if type(value) not in (str, int):
                raise RowProblem(
                    f"the field 'id' is {kind_of(value)}: set id to another field (--id FIELD), or to False for none"
                )
        else:
            return None
        return checked_id(value)

    def _metadata_of(self, row: Any) -> dict[str, Any]:
        if self._metadata is not None:
            return {field.name: field.of(row) for field in self._metadata}
        if self._shaped:
            return _with_own_metadata(row, self._used(row))
        if self._input is None:
            return {}
        used = self._used(row)
        return {key: value for key, value in row.items() if key not in used}

    def _used(self, row: dict[str, Any]) -> set[str]:
        """The fields of a row that have another role than metadata."""
        if not self._paths:
            return self._names
        return self._names | {field.used(row) for field in self._paths}


def checked_id(value: object) -> str:
    """An id as it is kept: text, or an integer as text. Raises RowProblem."""
    if type(value) is str:
        if not value:
            raise RowProblem("the id is empty: give each example its own, or none")
        return value
    if type(value) is int:
        return str(value)
    raise RowProblem(f"the id is {kind_of(value)}: an id is text or an integer")


def _value(fields: Field | list[Field], row: Any) -> Any:
    if isinstance(fields, Field):
        return fields.of(row)
    return {field.name: field.of(row) for field in fields}


def _each(fields: Field | list[Field] | None) -> list[Field]:
    if fields is None:
        return []
    return [fields] if isinstance(fields, Field) else fields


def _means_expected(key: str) -> bool:
    key = key.lower()
    return key.startswith("expect") or bool(difflib.get_close_matches(key, ["expected"], cutoff=0.85))


def _with_own_metadata(row: dict[str, Any], used: set[str]) -> dict[str, Any]:
    """The row's own metadata, and beside it every field that has no other role."""
    own = row.get("metadata")
    if own is not None and type(own) is not dict:
        raise RowProblem(
            f"metadata is {kind_of(own)}, not an object: name the fields to keep, as in metadata: [FIELD]"
        )
    others = {key: value for key, value in row.items() if key not in used and key != "metadata"}
    if not own:
        return others
    both = own.keys() & others.keys()
    if both:
        raise RowProblem(
            f"the field {short(min(both))} is both in the row and in its metadata: keep one of them"
        )
    return {**own, **others}


def _fields(role: str, named: Fields) -> Field | list[Field] | None:
    if named is None:
        return None
    if isinstance(named, str):
        return _field(role, named)
    if isinstance(named, Mapping) or not isinstance(named, Sequence) or not named:
        raise RequestError(f"{role}= takes a field or a list of fields, not {named!r:.60}")
    return [_field(role, name) for name in named]


def _field(role: str, name: Any) -> Field:
    if not isinstance(name, str) or not name:
        raise RequestError(f"{role}= takes names of fields, not {name!r:.60}")
    return Field(name)
