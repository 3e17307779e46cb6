"""Several sources of rows as one: beside each other, or one after the other.

The rows of the primary source stream; those of the others are held, since they are looked up. Fields get their
source's alias before their name (`roles->skill`), except in a `vstack`, where the fields that all have are kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from karat.errors import DataError, did_you_mean

Row = dict[str, Any]
JOINER = "->"
SIDE_JOINS = ("sequential", "random", "cross", "column")
JOIN_TYPES = ("primary", *SIDE_JOINS, "vstack")


class Side(msgspec.Struct, frozen=True):
    """A source that is joined to the primary one."""

    alias: str
    join_type: str
    rows: Callable[[], Iterator[Row]]
    primary_key: str = ""
    join_key: str = ""
    seed: int = 0


def prefixed(row: Row, alias: str) -> Row:
    """A row with its source's alias before each field."""
    return {f"{alias}{JOINER}{key}": value for key, value in row.items()}


def stacked(sources: Sequence[Callable[[], Iterator[Row]]]) -> Iterator[Row]:
    """The rows of all sources, one source after the other, with the fields that every source has.

    Which those are is told by the first row of each.
    """
    common: list[str] | None = None
    for source in sources:
        first = next(source(), None)
        if first is None:
            continue
        common = list(first) if common is None else [key for key in common if key in first]
    if common is not None and not common:
        raise DataError("the stacked sources have no field in common: rename fields so that they do")
    for source in sources:
        for row in source():
            yield {key: row.get(key) for key in common or ()}


def joined(primary: Iterable[Row], alias: str, sides: Sequence[Side]) -> Iterator[Row]:
    """Each row of the primary source with what the others add to it."""
    rows: Iterator[Row] = (prefixed(row, alias) for row in primary)
    for side in sides:
        held = [prefixed(row, side.alias) for row in side.rows()]
        if not held:
            raise DataError(f"source {side.alias!r} has no rows to join")
        rows = _JOINS[side.join_type](rows, held, side, alias)
    return rows


def _sequential(rows: Iterator[Row], held: list[Row], side: Side, alias: str) -> Iterator[Row]:
    for at, row in enumerate(rows):
        yield {**row, **held[at % len(held)]}


def _random(rows: Iterator[Row], held: list[Row], side: Side, alias: str) -> Iterator[Row]:
    draw = random.Random(f"{side.seed}/{side.alias}")
    for row in rows:
        yield {**row, **held[draw.randrange(len(held))]}


def _cross(rows: Iterator[Row], held: list[Row], side: Side, alias: str) -> Iterator[Row]:
    return ({**row, **other} for row in rows for other in held)


def _column(rows: Iterator[Row], held: list[Row], side: Side, alias: str) -> Iterator[Row]:
    """Every match; a row without one keeps its place, with nothing in the other's fields."""
    key, other_key = f"{alias}{JOINER}{side.primary_key}", f"{side.alias}{JOINER}{side.join_key}"
    if other_key not in held[0]:
        raise _unknown_key(side.alias, side.join_key, held[0])
    index: dict[Any, list[Row]] = {}
    for other in held:
        index.setdefault(_hashable(other.get(other_key)), []).append(other)
    nothing = [dict.fromkeys(held[0])]
    for row in rows:
        if key not in row:
            raise _unknown_key(alias, side.primary_key, row)
        for other in index.get(_hashable(row[key]), nothing):
            yield {**row, **other}


def _unknown_key(alias: str, key: str, row: Row) -> DataError:
    own = [field.removeprefix(f"{alias}{JOINER}") for field in row if field.startswith(f"{alias}{JOINER}")]
    return DataError(f"source {alias!r} has no field {key!r} to join by: {did_you_mean(key, own)}")


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else msgspec.json.encode(value)


_JOINS = {"sequential": _sequential, "random": _random, "cross": _cross, "column": _column}
