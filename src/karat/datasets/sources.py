"""`data_config` of a graph task: its sources as rows, and the rows as a dataset."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from karat.datasets.dataset import Dataset
from karat.datasets.readers.rows import FORMATS, BadRow, RowSource
from karat.datasets.transformations import SHORT, check_params, find_transform, transformed
from karat.documents import Place
from karat.errors import ConfigError, DataError, KaratError, did_you_mean
from karat.records import Example

Row = dict[str, Any]
Load = Callable[[str], Any]

COMMON_KEYS = (
    "type", "transformations", "alias", "join_type", "primary_key", "join_key", "fields", "limit", "seed",
    "description",
)  # fmt: skip
KEYS = {
    "hf": ("repo_id", "config_name", "split", "revision", "streaming", "shard"),
    "disk": ("file_path", "file_format", "encoding"),
    "examples": ("examples",),
}


def source_rows(
    source: Mapping[str, Any] | Sequence[Mapping[str, Any]], folder: Path, load: Load
) -> Iterator[Row]:
    """The rows of a source, or of several that are joined. Relative paths are also searched in `folder`."""
    problems = source_problems(source, load)
    if problems:
        raise ConfigError([sentence for _, sentence in problems])
    if isinstance(source, Mapping):
        return _rows(source, folder, load)
    reads = [_reader(each, folder, load) for each in source]
    if source[0]["join_type"] == "vstack":
        return stacked(reads)
    first = next(at for at, each in enumerate(source) if each["join_type"] == "primary")
    sides = [
        Side(
            str(each["alias"]),
            each["join_type"],
            reads[at],
            str(each.get("primary_key", "")),
            str(each.get("join_key", "")),
            int(each.get("seed", 0)),
        )
        for at, each in enumerate(source)
        if at != first
    ]
    return joined(reads[first](), str(source[first]["alias"]), sides)


def _reader(source: Mapping[str, Any], folder: Path, load: Load) -> Callable[[], Iterator[Row]]:
    return lambda: _rows(source, folder, load)


def kind_of_source(source: Mapping[str, Any]) -> str | None:
    """`hf`, `disk` or `examples`; inferred from the keys if not given."""
    if source.get("type"):
        return str(source["type"])
    for kind, key in (("examples", "examples"), ("disk", "file_path"), ("hf", "repo_id")):
        if key in source:
            return kind
    return None


def _rows(source: Mapping[str, Any], folder: Path, load: Load) -> Iterator[Row]:
    kind = kind_of_source(source)
    rows: Iterator[Row]
    if kind == "hf":
        from karat.datasets.readers.hub import hub_rows

        rows = hub_rows(source)
    elif kind == "disk":
        rows = file_rows(source_file(str(source["file_path"]), folder), source.get("file_format"))
    else:
        rows = (dict(row) for row in source["examples"])
    if source.get("limit"):
        rows = islice(rows, int(source["limit"]))
    fields = source.get("fields")
    if fields:
        rows = ({key: row[key] for key in row if key in fields or key == "id"} for row in rows)
    for entry in source.get("transformations") or ():
        rows = transformed(rows, find_transform(entry["transform"], load), dict(entry.get("params") or {}))
    return rows


def source_file(path: str, folder: Path) -> Path:
    """A data file of a task: as it is named from the task's folder or those around it, else from the working folder."""
    given = Path(path).expanduser()
    if given.is_absolute():
        return given
    if os.path.exists(folder / given):  # False too for a name that no file can have
        return folder / given
    if "tasks" in folder.parts:
        for base in folder.parents:
            if os.path.exists(base / given):
                return base / given
            if base.name == "tasks":
                beside = base.parent / given
                return beside if os.path.exists(beside) else given
    return given


def file_rows(path: Path, format: object = None) -> Iterator[Row]:
    """The rows of a file; one that cannot be read, or is no object, ends it with its line. An empty file has none."""
    if os.path.isfile(path) and path.stat().st_size == 0:
        return
    source = RowSource(path, str(format) if format else None)
    for line, row in source.read():
        if isinstance(row, BadRow):
            raise DataError(row.sentence(str(path), source.unit))
        if not isinstance(row, dict):
            bad = BadRow(line, None, "the row is not an object: a record has named fields")
            raise DataError(bad.sentence(str(path), source.unit))
        yield row


def rows_dataset(
    rows: Iterable[Row],
    *,
    name: str,
    id_column: str | None,
    golden: Sequence[str],
    metadata: Mapping[str, Any],
    repeats: bool = False,
) -> Dataset:
    """Rows as a dataset: the whole row is the input, and a golden field of it what is expected.

    Ids are those of `id_column`; without one, of a field `id`; else they are made of the content. Where the rows of a
    source are expected to come several times (`repeats`), those after the first have their number: `a`, `a-2`, `a-3`.
    """
    times: dict[str, int] = {}

    def numbered(id: str) -> str:
        times[id] = number = times.get(id, 0) + 1
        return id if number == 1 else f"{id}-{number}"

    def examples() -> Iterator[Any]:
        for number, row in enumerate(rows, 1):
            id = row.get(id_column or "id")
            if id is None and id_column:
                raise DataError(
                    f"record {number} of {name} has no field {id_column!r}, which id_column names: "
                    f"{did_you_mean(id_column, map(str, row))}"
                )
            expected = next((row[key] for key in golden if key in row), None)
            if id is None or (not id_column and not isinstance(id, (str, int))):
                yield {"input": row, "expected": expected}
            else:
                text = id if isinstance(id, str) else str(id)
                yield Example(numbered(text) if repeats else text, row, expected)

    return Dataset.from_examples(examples(), name=name, metadata=dict(metadata))


def source_problems(source: object, load: Load) -> list[tuple[Place, str]]:
    """The errors of a source or a list of sources: places and messages."""
    if isinstance(source, Mapping):
        return _source_problems(source, load)
    if not isinstance(source, list) or not source:
        return [((), "must be a source, or a list of them")]
    found: list[tuple[Place, str]] = []
    for at, each in enumerate(source):
        if not isinstance(each, Mapping):
            found.append(((at,), "must be a mapping"))
            continue
        found += [((at, *place), sentence) for place, sentence in _source_problems(each, load)]
        found += [((at, *place), sentence) for place, sentence in _join_problems(each)]
    return found + _list_problems([each for each in source if isinstance(each, Mapping)])


def _list_problems(sources: Sequence[Mapping[str, Any]]) -> list[tuple[Place, str]]:
    """Return the problems of several sources taken together."""
    kinds = [each.get("join_type") for each in sources]
    if "vstack" in kinds:
        return [] if set(kinds) == {"vstack"} else [((), "either all sources are vstack or none is")]
    found: list[tuple[Place, str]] = []
    primary = kinds.count("primary")
    if primary != 1 and (primary or all(kind in SIDE_JOINS for kind in kinds)):
        found.append(((), f"exactly one source must have join_type: primary; {primary} have it"))
    aliases = [each.get("alias") for each in sources]
    for at, alias in enumerate(aliases):
        if alias and alias in aliases[:at]:
            found.append(((at, "alias"), f"{alias!r} is the alias of another source: give each its own"))
    return found


def _join_problems(source: Mapping[str, Any]) -> list[tuple[Place, str]]:
    found: list[tuple[Place, str]] = [
        ((), f"needs {key!r}") for key in ("alias", "join_type") if not source.get(key)
    ]
    kind = source.get("join_type")
    if kind and kind not in JOIN_TYPES:
        found.append((("join_type",), f"unknown join type {kind!r}: {did_you_mean(str(kind), JOIN_TYPES)}"))
    if kind == SIDE_JOINS[-1]:
        found += [
            ((), f"join_type column needs {k!r}") for k in ("primary_key", "join_key") if not source.get(k)
        ]
    return found


def _source_problems(source: Mapping[str, Any], load: Load) -> list[tuple[Place, str]]:
    kind = kind_of_source(source)
    if kind not in KEYS:
        wrong = (
            f"unknown type {kind!r}: {did_you_mean(str(kind), KEYS)}"
            if kind
            else f"needs a type: {', '.join(KEYS)}"
        )
        if kind == "servicenow":  # a source of SyGra
            wrong = "not supported: data from ServiceNow; export it to a file"
        return [(("type",), wrong)]
    found: list[tuple[Place, str]] = []
    known = (*COMMON_KEYS, *KEYS[kind])
    for key in source:
        if key in ("token", "api_key"):
            found.append(((key,), "do not store a secret in this file: set HF_TOKEN in the environment"))
        elif key not in known:
            found.append(((key,), f"unknown key: {did_you_mean(str(key), known)}"))
    needed = KEYS[kind][0]
    if source.get(needed) in (None, ""):
        found.append(((), f"needs {needed!r}"))
    if kind == "disk":
        found += _disk_problems(source)
    rows = source.get("examples")
    if kind == "examples" and not (isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows)):
        found.append((("examples",), "must be a list of mappings"))
    elif kind == "examples" and not rows:
        found.append((("examples",), "is an empty list: give it at least one record"))
    found += _kind_problems(source)
    return found + _transformation_problems(source, load)


_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "fields": (list, "a list of fields"),
    "limit": (int, "a whole number"),
    "seed": (int, "a whole number"),
    "file_path": (str, "a text"),
    "repo_id": (str, "a text"),
    "config_name": (str, "a text"),
    "revision": (str, "a text"),
    "split": ((str, list), "a text or a list of them"),
    "shard": (Mapping, "{num_shards, index}"),
    "alias": (str, "a text"),
    "primary_key": (str, "a text"),
    "join_key": (str, "a text"),
}


def _kind_problems(source: Mapping[str, Any]) -> list[tuple[Place, str]]:
    """Return a problem for each value of the wrong kind."""
    found: list[tuple[Place, str]] = []
    for key, (kind, words) in _KINDS.items():
        value = source.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            found.append(((key,), f"must be {words}"))
    return found


def _disk_problems(source: Mapping[str, Any]) -> list[tuple[Place, str]]:
    found: list[tuple[Place, str]] = []
    formats = sorted(set(FORMATS.values()))
    form = source.get("file_format")
    if form and form not in formats:
        found.append((("file_format",), f"unknown format {form!r}: {did_you_mean(str(form), formats)}"))
    encoding = str(source.get("encoding") or "utf-8").lower().replace("_", "-")
    if encoding not in ("utf-8", "utf8", "ascii"):
        found.append((("encoding",), f"is {encoding}: convert the file to UTF-8"))
    return found


def _transformation_problems(source: Mapping[str, Any], load: Load) -> list[tuple[Place, str]]:
    found: list[tuple[Place, str]] = []
    entries = source.get("transformations") or []
    if not isinstance(entries, list):
        return [(("transformations",), "must be a list")]
    for at, entry in enumerate(entries):
        place: Place = ("transformations", at)
        if not isinstance(entry, Mapping) or not isinstance(entry.get("transform"), str):
            found.append((place, f"needs transform: {', '.join(SHORT)}, or a dotted name"))
            continue
        for key in entry:
            if key not in ("transform", "params"):
                found.append(
                    ((*place, key), f"unknown key: {did_you_mean(str(key), ('transform', 'params'))}")
                )
        params = entry.get("params") or {}
        if not isinstance(params, Mapping):
            found.append(((*place, "params"), "must be a mapping"))
            continue
        try:
            made = find_transform(entry["transform"], load)
            found += [((*place, "params"), sentence) for sentence in check_params(made, params)]
        except KaratError as error:
            found.append(((*place, "transform"), str(error)))
    return found


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

    The first row of each source determines its fields.
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
