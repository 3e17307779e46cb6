"""Transformations of rows before they become examples: rename, add, leave out, combine, skip.

Each is a class with `transform(rows, params)`. karat's own take and give an iterator, so that data larger than memory
goes through them; one that is written for lists gets a list.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from karat.errors import FAILURES, RequestError, did_you_mean

Row = dict[str, Any]
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "none": False}
_RANGE = re.compile(r"\s*\[\s*(-?\d*)\s*:\s*(-?\d*)\s*\]\s*")


class DataTransform(ABC):
    """Base of transformations."""

    streams: bool = False
    """Whether `transform` takes any iterable, and not only a list."""
    parameters: tuple[str, ...] | None = None
    """The parameters it knows; None for one that checks them itself."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return type(self).__name__

    @abstractmethod
    def transform(self, data: Any, params: dict[str, Any]) -> Any:
        """The rows after the transformation."""


class RenameFieldsTransform(DataTransform):
    """Gives fields other names: `mapping: {old: new}`. A field that is there already stays, unless `overwrite`."""

    streams = True
    parameters = ("mapping", "overwrite")

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        mapping = _names(self.name, _mapping(self.name, params))
        overwrite = _flag(self.name, params, "overwrite")
        for row in data:
            out = dict(row)
            for old, new in mapping.items():
                if old in out and (overwrite or new not in out):
                    out[new] = out.pop(old)
            yield out


class AddNewFieldTransform(DataTransform):
    """Adds fields with fixed values: `mapping: {field: value}`."""

    streams = True
    parameters = ("mapping",)

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        mapping = _mapping(self.name, params)
        return ({**row, **mapping} for row in data)


class SkipFieldsTransform(DataTransform):
    """Leaves fields out: `fields: [a, b]`."""

    streams = True
    parameters = ("fields",)

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        fields = params.get("fields")
        if not isinstance(fields, list) or not fields:
            raise RequestError(f"{self.name} needs fields: a list of the fields to leave out")
        return ({key: value for key, value in row.items() if key not in fields} for row in data)


class AddRetryFieldsTransform(DataTransform):
    """Adds the fields that a graph with retries counts with: `max_retries`, `curr_retries`, the original text."""

    streams = True
    parameters = ("max_retries", "initial_retry_count", "original_current_user_text")

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        added = {
            "max_retries": params.get("max_retries", 3),
            "curr_retries": params.get("initial_retry_count", 0),
            "original_current_user_text": params.get("original_current_user_text") or "",
        }
        return ({**row, **added} for row in data)


class SkipRecords(DataTransform):
    """Leaves rows out: by `count` from the start and the end, or by `range` ("[:10],[-10:]")."""

    streams = True
    parameters = ("skip_type", "count", "range")

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        kind = params.get("skip_type", "range")
        if kind == "count":
            count = params.get("count") or {}
            return _without_ends(data, int(count.get("from_start", 0)), int(count.get("from_end", 0)))
        if kind != "range":
            raise RequestError(f"{self.name}: skip_type is {kind!r}: it is count or range")
        ranges = _ranges(str(params.get("range", "")), self.name)
        if all(start >= 0 and (end is None or end >= 0) for start, end in ranges):
            return _outside(data, ranges)
        rows = list(data)  # counted from the end: their number has to be known
        size = len(rows)
        from_start = [
            (_from_start(start, size), size if end is None else _from_start(end, size))
            for start, end in ranges
        ]
        return _outside(rows, from_start)


class CombineRecords(DataTransform):
    """Joins `combine` rows into one, going on by `shift`; `join_column` says how: `page: "$1-$2"`."""

    streams = True
    parameters = ("skip", "combine", "shift", "join_column")

    def transform(self, data: Iterable[Row], params: dict[str, Any]) -> Iterator[Row]:
        combine, shift = int(params.get("combine", 1)), int(params.get("shift", 1))
        columns, skip = params.get("join_column") or {}, params.get("skip") or {}
        if combine < 1 or shift < 1:
            raise RequestError(f"{self.name}: combine and shift are at least 1")
        rows = _without_ends(data, int(skip.get("from_beginning", 0)), int(skip.get("from_end", 0)))
        window: deque[Row] = deque()
        for row in rows:
            window.append(row)
            if len(window) == combine:
                yield {column: _combined(str(how), window, column) for column, how in columns.items()}
                for _ in range(min(shift, combine)):
                    window.popleft()
                for _ in islice(rows, max(0, shift - combine)):
                    pass


def _combined(how: str, rows: Iterable[Row], column: str) -> Any:
    """`$1` alone is the value itself; in a text, each `$n` is the nth value as text."""
    values = {f"${number}": row.get(column) for number, row in enumerate(rows, 1)}
    if how in values:
        return values[how]
    return re.sub(r"\$\d+", lambda match: str(values.get(match[0], match[0])), how)


def _without_ends(data: Iterable[Row], first: int, last: int) -> Iterator[Row]:
    kept: deque[Row] = deque()
    for row in islice(data, first, None):
        kept.append(row)
        if len(kept) > last:
            yield kept.popleft()


def _ranges(text: str, who: str) -> list[tuple[int, int | None]]:
    out = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise RequestError(f"{who}: range {part!r} is written [start:end], [:10] or [-10:]")
        out.append((int(match[1] or 0), int(match[2]) if match[2] else None))
    return out


def _from_start(place: int, size: int) -> int:
    return max(0, size + place) if place < 0 else place


def _outside(data: Iterable[Row], ranges: list[tuple[int, Any]]) -> Iterator[Row]:
    for at, row in enumerate(data):
        if not any(start <= at and (end is None or at < end) for start, end in ranges):
            yield row


def _flag(name: str, params: dict[str, Any], key: str) -> bool:
    """True or false, also as the words yes and no."""
    given = params.get(key, False)
    found = _FLAGS.get(str(given).lower())
    if found is None:
        raise RequestError(f"{name}: {key} is {given!r}: it is true or false")
    return found


def _mapping(who: str, params: Mapping[str, Any]) -> dict[str, Any]:
    mapping = params.get("mapping")
    if not isinstance(mapping, Mapping) or not mapping:
        raise RequestError(f"{who} needs mapping: {{old: new}}")
    return dict(mapping)


def _names(who: str, mapping: Mapping[str, Any]) -> dict[str, str]:
    for new in mapping.values():
        if not isinstance(new, str):
            raise RequestError(f"{who}: a field's new name is a text, not {new!r:.60}")
    return dict(mapping)


OWN: dict[str, type[DataTransform]] = {
    "rename": RenameFieldsTransform,
    "add": AddNewFieldTransform,
    "skip_fields": SkipFieldsTransform,
    "skip_records": SkipRecords,
    "combine": CombineRecords,
}
"""Short names; any other transformation is named by its dotted path."""


ELSEWHERE = {
    "image_url": "karat.datasets.media.CreateImageUrlTransform",
    "audio_url": "karat.datasets.media.CreateAudioUrlTransform",
}
"""Short names of those that are imported only where they are used."""
SHORT = (*OWN, *ELSEWHERE)


def find_transform(name: str, load: Callable[[str], Any]) -> Any:
    """A transformation by its short name or dotted path, ready to be called."""
    if name.isidentifier() and name not in SHORT:
        raise RequestError(
            f"there is no transformation {name!r}: {did_you_mean(name, SHORT)}, or give a dotted name"
        )
    part = OWN[name] if name in OWN else load(ELSEWHERE.get(name, name))
    try:
        made = part() if isinstance(part, type) else part
    except FAILURES as error:
        raise RequestError(f"{name} cannot be created without parameters: {error}") from error
    if not callable(getattr(made, "transform", None)):
        raise RequestError(f"{name} is not a transformation: it has no method transform(data, params)")
    return made


def check_params(made: Any, params: Mapping[str, Any]) -> list[str]:
    """Parameters that a transformation does not know."""
    known = getattr(made, "parameters", None)
    if known is None:
        return []
    return [
        f"{made.name} has no parameter {p!r}: {did_you_mean(str(p), known)}" for p in params if p not in known
    ]


def transformed(rows: Iterable[Row], made: Any, params: dict[str, Any]) -> Iterator[Row]:
    """The rows after a transformation; one that does not stream gets them all at once."""
    given = made.transform(iter(rows) if getattr(made, "streams", False) else list(rows), params)
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        raise RequestError(f"{type(made).__name__} returned {type(given).__name__}, not rows")
    return iter(given)
