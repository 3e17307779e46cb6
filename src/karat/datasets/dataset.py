"""A dataset: a named, immutable list of examples whose id is a hash of its content."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import msgspec

from karat.datasets.fields import Fields, Selection
from karat.datasets.rows import BadRow, RowSource
from karat.errors import RequestError
from karat.records import Example

_decode_example = msgspec.json.Decoder(Example).decode
_VERSIONED = re.compile(r".*@[0-9]+", re.DOTALL)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Dataset:
    """Examples in their order, read as often as needed and never held all at once.

    Made with `from_examples` or `from_file`; a store makes its own with `read`, which gives the encoded
    examples from a position on.
    """

    name: str
    id: str
    """`ds-` and 24 hex digits: the same examples in the same order have the same id, whatever the name."""
    count: int
    read: Callable[[int], Iterator[tuple[str, bytes]]] = field(repr=False)
    source: str = ""
    """Name of the file it was read from; empty for examples made in memory."""
    metadata: dict[str, Any] = field(default_factory=dict)
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
        skipped = f", {self.skipped_count} rows skipped" if self.skipped_count else ""
        return f"<Dataset {self.name!r}, {self.count} examples{skipped}, {self.id}>"

    def encoded(self, start: int = 0) -> Iterator[tuple[str, bytes]]:
        """The id and the JSON of each example, in order, from a position on."""
        if start < 0:
            raise RequestError(f"start={start}: examples are counted from 0")
        return self.read(start)

    @classmethod
    def from_examples(
        cls,
        examples: Iterable[Example | Mapping[str, Any] | tuple[Any, ...]],
        *,
        name: str = "examples",
        metadata: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """A dataset of examples made in memory.

        Each is an Example, a mapping with `input` and perhaps `id`, `expected` and `metadata`, or a tuple
        `(input, expected, metadata)` of which the last two may be left out. Each is encoded at once:
        changing the objects afterwards changes nothing.
        """
        from karat.datasets.memory import MemoryExamples

        kept = MemoryExamples(examples)
        return cls(
            name=checked_name(name),
            id=kept.dataset_id,
            count=kept.count,
            read=kept.read,
            metadata=_checked_metadata(metadata),
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
    ) -> Dataset:
        """A dataset read from a JSON, JSONL, CSV, TSV or Parquet file, streaming.

        `input` and `expected` name a field, a dotted path (`a.b[0].c`), or a list of them (an object then).
        Rows that have an `input` are taken as examples; otherwise, what is not named is the whole row for the
        input and nothing for `expected`. `id` names the field of the id (default: `id`, where a row has
        it; False for none). `metadata` lists the fields to keep; default is every field that is not used.
        """
        from karat.datasets.file import FileExamples

        selection = Selection(input, expected, id, metadata)
        if not isinstance(path, (str, PathLike)):
            raise RequestError(f"from_file takes the path of a file, not a {type(path).__qualname__}")
        source = RowSource(Path(path), format)
        examples = FileExamples(source, selection, skip_bad_rows=skip_bad_rows)
        return cls(
            name=checked_name(source.stem if name is None else name),
            id=examples.dataset_id,
            count=examples.count,
            read=examples.read,
            source=source.path.name,
            skipped=examples.skipped,
            skipped_count=examples.skipped_count,
        )


def checked_name(name: str) -> str:
    """A name that a store can keep and find again: `name@2` means its second version."""
    if not isinstance(name, str) or not name:
        raise RequestError(f"name={name!r:.60}: a dataset needs a name")
    if _VERSIONED.fullmatch(name):
        raise RequestError(f"name={name!r:.60}: a name that ends like a version is taken for one, say name=…")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RequestError(f"name={name!r:.60} is not Unicode text: say name=…") from None
    return name


def _checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    from karat.serialization import to_json_value

    kept: dict[str, Any] = to_json_value(dict(metadata or {}), "metadata")
    return kept
