"""A dataset: a named, immutable list of examples whose id is a hash of its content.

An example without an id gets the hash of its content, and from its second occurrence on a number behind it
(`3f…`, `3f…#2`), so that repeated rows are kept. What has been seen is remembered in 64 bits per example; the
rest of a dataset may be larger than memory. Where 64 bits agree, the exact ids are compared by looking back.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
import tempfile
import threading
import weakref
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import msgspec

from karat.datasets.readers.rows import BadRow, RowSource
from karat.errors import DataError, RequestError, UnsupportedType, clip, did_you_mean, with_article, wording
from karat.paths import MISSING, kind_of, parse
from karat.records import JSON, Example
from karat.serialization import prepared, to_json_value

# Which fields of a row become the input, what is expected, the id and the metadata of an example.

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
            raise RowProblem(
                f"the row is {kind_of(row)}, not an object, and has no field {clip(self.name, 80)}"
            )
        if self.name in row:  # as the path does it, without another call for each row
            return row[self.name]
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
    `input` is taken to hold examples; otherwise the whole row is the input. `all_text` is for files that cannot say
    null (CSV): an empty cell is no expected output, not an empty one.
    """

    def __init__(
        self,
        input: Fields = None,
        expected: Fields = None,
        id: str | Literal[False] | None = None,
        metadata: Sequence[str] | None = None,
        *,
        all_text: bool = False,
    ) -> None:
        self._all_text = all_text
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

    def parts(self, row: JSON) -> Parts:
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
        if self._all_text:
            if isinstance(self._expected, list):
                expected = {name: value or None for name, value in expected.items()}
                expected = expected if any(value is not None for value in expected.values()) else None
            else:
                expected = expected or None
        return self._id_of(row), input, expected, self._metadata_of(row)

    def _has_shape(self, row: JSON) -> bool:
        if type(row) is not dict or "input" not in row:
            return False
        if "expected" not in row and self._expected is None:
            # A mistyped name would leave every example without what is expected, silently.
            for key in row:
                if _means_expected(key):
                    import shlex  # only for this message

                    raise RowProblem(
                        f"the row has no field 'expected' but {clip(key, 80)}: set"
                        f" {wording(f'--expected {shlex.quote(key)}', f'expected to {clip(key, 80)}')}"
                        f"{wording(' (expected: in an experiment)', '')}, or rename it if it is something else"
                    )
        return True

    def _id_of(self, row: Any) -> str | None:
        if self._id is not None:
            value = self._id.of(row)
        elif self._find_id and type(row) is dict:
            value = row.get("id")
            if value is None:
                return None
            if type(value) is not str and type(value) is not int:
                raise RowProblem(
                    f"the field 'id' is {kind_of(value)}: set"
                    + wording(
                        " --id FIELD, or id: FIELD in an experiment (id: false for none)",
                        " id to another field, or to False for none",
                    )
                )
        else:
            return None
        return checked_id(value)

    def _metadata_of(self, row: Any) -> dict[str, Any]:
        if self._metadata is not None:
            return {field.name: field.of(row) for field in self._metadata}
        if self._shaped:
            used = self._used_fields(row) if self._paths else self._names
            return {} if row.keys() <= used and "metadata" not in row else _with_own_metadata(row, used)
        if self._input is None:
            return {}
        used = self._used_fields(row)
        return {key: value for key, value in row.items() if key not in used}

    def _used_fields(self, row: dict[str, Any]) -> set[str]:
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
            f"the field {clip(min(both), 80)} is both in the row and in its metadata: keep one of them"
        )
    return {**own, **others}


def _fields(role: str, named: Fields) -> Field | list[Field] | None:
    if named is None:
        return None
    if isinstance(named, str):
        return _field(role, named)
    if isinstance(named, Mapping) or not isinstance(named, Sequence) or not named:
        raise RequestError(f"{role!r} takes a field or a list of fields, not {named!r:.60}")
    return [_field(role, name) for name in named]


def _field(role: str, name: Any) -> Field:
    if not isinstance(name, str) or not name:
        raise RequestError(f"{role!r} takes names of fields, not {name!r:.60}")
    return Field(name)


SHOWN = 10
"""Examples that a notebook shows."""

_decode_example = msgspec.json.Decoder(prepared(Example)).decode
_VERSIONED = re.compile(r".*@[0-9]+", re.DOTALL)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Dataset:
    """Examples in their order, read as often as needed and never held all at once.

    Made with `from_examples` or `from_file`; a store makes its own with `read`, which gives the encoded
    examples from a position on.
    """

    name: str
    id: str
    """`ds-` and 24 hex digits: the same examples in the same order have the same id under any name."""
    count: int
    read: Callable[[int], Iterator[tuple[str, bytes]]] = field(repr=False)
    source: str = ""
    """Name of the file it was read from; empty for examples made in memory."""
    metadata: dict[str, Any] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    """Short names to find it by in a store."""
    skipped: list[BadRow] = field(default_factory=list)
    """The first rows that `skip_bad_rows` left out, at most 1,000 of them."""
    skipped_count: int = 0
    """How many rows were left out."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Example]:
        for _, data in self.read(0):
            yield _decode_example(data)

    def __repr__(self) -> str:
        from karat.errors import plural

        skipped = f", {plural(self.skipped_count, 'row')} skipped" if self.skipped_count else ""
        return f"<Dataset {self.name!r}, {plural(self.count, 'example')}{skipped}, {self.id}>"

    def _repr_html_(self) -> str:
        from karat.errors import plural
        from karat.formatting import Block, Paragraph, as_html, example_table
        from karat.layout import Styled

        title = Paragraph(Styled(f"dataset {self.name}: {plural(len(self), 'example')}", "bold"))
        blocks: list[Block] = [title, example_table(itertools.islice(self, SHOWN))]
        return as_html(
            [*blocks, *([Paragraph(f"and {len(self) - SHOWN:,} more")] if len(self) > SHOWN else [])]
        )

    def encoded(self, start: int = 0) -> Iterator[tuple[str, bytes]]:
        """The id and the JSON of each example, in order, from a position on."""
        if start < 0:
            raise RequestError(f"start={start}: give 0 or more")
        return self.read(start)

    @classmethod
    def from_examples(
        cls,
        examples: Iterable[Example | Mapping[str, Any] | tuple[Any, ...]],
        *,
        name: str = "examples",
        metadata: Mapping[str, Any] | None = None,
        labels: Sequence[str] = (),
    ) -> Dataset:
        """A dataset of examples made in memory.

        Each is an Example, a mapping with `input` and perhaps `id`, `expected` and `metadata`, or a tuple
        `(input, expected, metadata)` of which the last two may be left out. Each is encoded at once:
        changing the objects afterwards changes nothing.
        """
        kept = MemoryExamples(examples)
        return cls(
            name=checked_name(name),
            id=kept.dataset_id,
            count=kept.count,
            read=kept.read,
            metadata=to_json_value(dict(metadata or {}), "metadata"),
            labels=list(labels),
        )

    @classmethod
    def from_file(
        cls,
        path: str | PathLike[str],
        *,
        input: Fields = None,
        expected: Fields = None,
        id: str | Literal[False] | None = None,
        metadata: Sequence[str] | None = None,
        name: str | None = None,
        format: str | None = None,
        skip_bad_rows: bool = False,
        labels: Sequence[str] = (),
    ) -> Dataset:
        """A dataset read from a JSON, JSONL, CSV, TSV or Parquet file, streaming.

        `input` and `expected` name a field, a dotted path (`a.b[0].c`), or a list of them (an object then).
        Rows that have an `input` are taken as examples; otherwise, what is not named is the whole row for the
        input and nothing for `expected`. `id` names the field of the id (default: `id`, where a row has
        it; False for none). `metadata` lists the fields to keep; default is every field that is not used. In a CSV
        file, an empty cell is no expected output.
        """
        if not isinstance(path, (str, PathLike)):
            raise RequestError(
                f"from_file takes the path of a file, not {with_article(type(path).__qualname__)}"
            )
        source = RowSource(Path(path), format)
        all_text = source.format in ("csv", "tsv")
        selection = Selection(input, expected, id, metadata, all_text=all_text)
        examples = FileExamples(source, selection, skip_bad_rows=skip_bad_rows)
        return cls(
            name=checked_name(source.stem if name is None else name),
            id=examples.dataset_id,
            count=examples.count,
            read=examples.read,
            source=source.path.name,
            labels=list(labels),
            skipped=examples.skipped,
            skipped_count=examples.skipped_count,
        )


def checked_name(name: str) -> str:
    """A name that a store can keep and find again: `name@2` means its second version."""
    if not isinstance(name, str) or not name:
        raise RequestError(f"name={name!r:.60}: a dataset needs a name")
    if _VERSIONED.fullmatch(name):
        raise RequestError(
            f"name={name!r:.60}: a name that ends in @ and a number denotes a version: set another name=…"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RequestError(f"name={name!r:.60} is not Unicode text: set another name=…") from None
    return name


IN_MEMORY = 8 << 20
_BLOCK = 1 << 20


class Spool:
    """Lines that are written once, then read any number of times, also at once. Gone with its last reader."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - closed when collected
        self._lock = threading.Lock()
        weakref.finalize(self, self._file.close)

    def append(self, line: bytes) -> None:
        """Add a line, which has no line break in it."""
        with self._lock:
            self._file.seek(0, 2)
            self._file.write(line)
            self._file.write(b"\n")

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        position = 0
        while True:
            with self._lock:
                self._file.seek(position)
                block = self._file.read(_BLOCK)
            if not block:
                return
            position += len(block)
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            yield from lines


_FIELDS = ("id", "input", "expected", "metadata")
_FORMS = "give an Example, a mapping with 'input', or a tuple (input, expected, metadata)"


class _OnlyId(msgspec.Struct):
    id: str


_decode_id = msgspec.json.Decoder(prepared(_OnlyId)).decode
_encode = msgspec.json.Encoder().encode


class MemoryExamples:
    """The examples of an iterable, which is gone through once."""

    def __init__(self, examples: Iterable[Example | Mapping[str, Any] | tuple[Any, ...]]) -> None:
        frame = hasattr(examples, "columns")  # iterating over one gives the names of its columns
        if (
            isinstance(examples, (str, bytes, Mapping, Example))
            or not isinstance(examples, Iterable)
            or frame
        ):
            fix = ": give its rows, frame.to_dict('records') or frame.to_dicts()" if frame else ""
            raise DataError(
                f"from_examples takes a list of examples, not {with_article(type(examples).__qualname__)}{fix}"
            )
        self._spool = Spool()
        identities = Identities("examples", "example", self._look_back)
        for place, given in enumerate(examples, 1):
            self._spool.append(_checked_example(given, place, identities))
        self.dataset_id = identities.dataset_id
        self.count = identities.total

    def read(self, start: int) -> Iterator[tuple[str, bytes]]:
        """The id and the JSON of each example from a position on."""
        for line in itertools.islice(self._spool, start, None):
            yield _decode_id(line).id, line

    def _look_back(self, id: str, count: int) -> int | None:
        for place, (earlier, _) in enumerate(itertools.islice(self.read(0), count), 1):
            if earlier == id:
                return place
        return None


def _checked_example(given: Any, place: int, identities: Identities) -> bytes:
    try:
        id, input, expected, metadata = _parts(given)
        content = content_of(input, expected, metadata)
        if id is not None:
            id.encode()
        id = identities.add(id, content, place)
        return _encode(Example(id, input, expected, metadata))
    except RowProblem as problem:
        raise DataError(f"example {place}: {problem}") from None
    except UnsupportedType as error:
        raise UnsupportedType(f"example {place}: {error}") from None
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise UnsupportedType(
            f"example {place}: a text or the id holds {half}, half of a character (a lone surrogate),"
            " which UTF-8 cannot hold: replace it"
        ) from None


def _parts(given: Any) -> Parts:
    id: Any
    expected: Any
    metadata: Any
    if isinstance(given, Example):
        id, input, expected, metadata = given.id, given.input, given.expected, given.metadata
    elif isinstance(given, Mapping):
        unknown = [key for key in given if key not in _FIELDS]
        if unknown:
            raise RowProblem(
                f"an example has no field {unknown[0]!r:.60}: {did_you_mean(str(unknown[0]), _FIELDS)}"
            )
        if "input" not in given:
            raise RowProblem(f"it has no 'input': {_FORMS}")
        id, input = given.get("id"), given["input"]
        expected, metadata = given.get("expected"), given.get("metadata")
    elif isinstance(given, tuple) and 1 <= len(given) <= 3:
        id, (input, expected, metadata) = None, (*given, None, None)[:3]
    else:
        size = f" of {len(given)}" if isinstance(given, tuple) else ""
        raise RowProblem(f"it is {with_article(type(given).__qualname__)}{size}: {_FORMS}")
    kept = to_json_value(metadata, "metadata") if metadata is not None else {}
    if not isinstance(kept, dict):
        raise RowProblem(f"metadata is {with_article(type(metadata).__qualname__)}, not a mapping")
    checked = None if id is None else checked_id(to_json_value(id, "id"))
    return checked, to_json_value(input, "input"), to_json_value(expected, "expected"), kept


SKIPPED_KEPT = 1000


class FileExamples:
    """The examples of a file. Of a row only a hash or two of 64 bits is kept, and only in the first pass."""

    def __init__(self, source: RowSource, selection: Selection, *, skip_bad_rows: bool = False) -> None:
        self._source = source
        self._selection = selection
        self._skip_bad_rows = skip_bad_rows
        self._is_sound = False
        """Whether all rows have been read and none is bad: a file that changes is refused by its blocks."""
        self.skipped: list[BadRow] = []
        self.skipped_count = 0
        identities = Identities(str(source.path), source.unit, self._look_back)
        for line, parts in self._parts():
            if type(parts) is BadRow:
                self.skipped_count += 1
                if self.skipped_count <= SKIPPED_KEPT:
                    self.skipped.append(parts)
            else:
                id, input, expected, metadata = parts
                identities.add(id, content_of(input, expected, metadata), line)
        self._is_sound = not self.skipped_count
        self.count = identities.total
        self.dataset_id = identities.dataset_id
        self._repeated = frozenset(identities.counts)
        if not self.count:
            self._refuse_empty()

    def read(self, start: int) -> Iterator[tuple[str, bytes]]:
        """The id and the JSON of each example from a position on."""
        return itertools.islice(self._records(), start, None)

    def _records(self) -> Iterator[tuple[str, bytes]]:
        occurrences = Occurrences(self._repeated)
        for _, parts in self._parts():
            if type(parts) is BadRow:
                continue
            id, input, expected, metadata = parts
            if id is None:
                id = occurrences.id(hash_of(content_of(input, expected, metadata)))
            yield id, _encode(Example(id, input, expected, metadata))

    def _parts(self) -> Iterator[tuple[int, Parts | BadRow]]:
        """Yield the parts of each row; an invalid row ends the reading unless such rows are skipped."""
        parts_of = self._selection.parts
        for line, row in self._source.read(check_keys=not self._is_sound):
            parts = row
            if type(row) is not BadRow:
                try:
                    parts = parts_of(row)
                except RowProblem as problem:
                    parts = BadRow(line, None, str(problem))
            if type(parts) is BadRow and not self._skip_bad_rows:
                raise DataError(parts.sentence(str(self._source.path), self._source.unit))
            yield line, parts

    def _look_back(self, wanted: str, count: int) -> int | None:
        """The line of the example that has this very id: asked only when one seems to be taken."""
        hashed = wanted.partition("#")[0]
        occurrence = 0
        good = ((line, parts) for line, parts in self._parts() if not isinstance(parts, BadRow))
        for line, parts in itertools.islice(good, count):
            id, input, expected, metadata = parts
            if id is None and hash_of(content_of(input, expected, metadata)) == hashed:
                occurrence += 1
                id = with_occurrence(hashed, occurrence)
            if id == wanted:
                return line
        return None

    def _refuse_empty(self) -> None:
        path = self._source.path
        if self.skipped_count:
            first = self.skipped[0].sentence(str(path), self._source.unit)
            raise DataError(f"{path} has no valid rows ({self.skipped_count:,} invalid); the first: {first}")
        if self._source.format in ("csv", "tsv"):
            raise DataError(f"{path} has a header and no rows")
        if self._source.format == "parquet":
            raise DataError(f"{path} has no rows")
        raise DataError(f"{path} is empty: it has no rows")


_GENERATED = re.compile(r"[0-9a-f]{32}(?:#([1-9][0-9]{0,18}))?")
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
"""As karat.serialization.canonical does it, without the look for NaN: what comes here is known to be JSON."""


def content_of(input: object, expected: object, metadata: dict[str, Any]) -> bytes:
    """The content of an example beside its id, in which the order of keys does not matter."""
    return _encode_sorted((input, expected, metadata))


def hash_of(content: bytes) -> str:
    """The id that content gives an example which has none."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class Occurrences:
    """Numbers the occurrences of repeated content, given which content is repeated."""

    def __init__(self, repeated: Collection[int]) -> None:
        self._counts = dict.fromkeys(repeated, 0)

    def id(self, hashed: str) -> str:
        """The id of the next example with this hash."""
        if not self._counts:
            return hashed
        key = int(hashed[:16], 16)
        count = self._counts.get(key)
        if count is None:
            return hashed
        self._counts[key] = count = count + 1
        return with_occurrence(hashed, count)


def with_occurrence(hashed: str, occurrence: int) -> str:
    """The id of the nth example with this hash."""
    return hashed if occurrence == 1 else f"{hashed}#{occurrence}"


class Identities:
    """The ids of a dataset: assigned on the first pass, checked for duplicates, and hashed into the id of the dataset.

    `look_back(id, count)` finds the place of the one of the first `count` examples that has this very id.
    """

    def __init__(self, source: str, unit: str, look_back: Callable[[str, int], int | None]) -> None:
        self._source = source
        self._unit = unit
        self._look_back = look_back
        self._explicit = KeySet()
        self._contents = KeySet()
        self._some_look_generated = False
        self._digest = hashlib.blake2b(digest_size=12)
        self.counts: dict[int, int] = {}
        """How often repeated content has been seen, by the first 64 bits of its hash."""
        self.total = 0

    def add(self, id: str | None, content: bytes, place: int) -> str:
        """The id of the next example."""
        if id is None:
            id = self._generate(hash_of(content), place)
        else:
            self._claim(id, place)
        # JSON has no raw line break: nothing that an id or a content may hold can look like the next example.
        self._digest.update(b"%b\n%b\n" % (_encode_sorted(id), content))
        self.total += 1
        return id

    @property
    def dataset_id(self) -> str:
        """The id of the examples so far, in their order."""
        return f"ds-{self._digest.hexdigest()}"

    def _generate(self, hashed: str, place: int) -> str:
        key = int(hashed[:16], 16)
        count = 1
        if not self._contents.add(key):
            self.counts[key] = count = self.counts.get(key, 1) + 1
        id = with_occurrence(hashed, count)
        if self._some_look_generated and _key(id) in self._explicit:
            self._refuse_duplicate(id, place)
        return id

    def _claim(self, id: str, place: int) -> None:
        taken = not self._explicit.add(_key(id))
        if len(id) >= 32 and (match := _GENERATED.fullmatch(id)):
            self._some_look_generated = True
            key = int(id[:16], 16)
            taken = taken or (key in self._contents and int(match[1] or 1) <= self.counts.get(key, 1))
        if taken:
            self._refuse_duplicate(id, place)

    def _refuse_duplicate(self, id: str, place: int) -> None:
        earlier = self._look_back(id, self.total)
        if earlier is None:
            return
        both = f"{self._unit}s {earlier} and {place}"
        if earlier == place:  # a JSON file may hold many rows on one line
            both = f"two examples of {self._unit} {place}"
        raise DataError(f"{self._source}: {both} have the same id {clip(id, 80)}: give each example its own")


def _key(id: str) -> int:
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest())


class KeySet:
    """A set of 64-bit hashes in a table of 8 bytes a slot; a set of Python integers takes about 70 each."""

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * 64))
        self._count = 0

    def __contains__(self, key: int) -> bool:
        return self._table[self._slot(key or 1)] != 0

    def add(self, key: int) -> bool:
        """Add a key and return whether it was new."""
        key = key or 1  # 0 marks a free slot
        slot = self._slot(key)
        table = self._table
        if table[slot]:
            return False
        table[slot] = key
        self._count += 1
        if self._count * 3 > len(table) * 2:
            self._grow()
        return True

    def _slot(self, key: int) -> int:
        """Return the slot of the key, or the free slot for it. Keys are hashes, so their low bits choose the slot."""
        table = self._table
        mask = len(table) - 1
        slot = key & mask
        while (there := table[slot]) and there != key:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        old = self._table
        self._table = array("Q", bytes(8)) * (2 * len(old))
        for key in old:
            if key:
                self._table[self._slot(key)] = key
