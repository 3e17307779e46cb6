"""The ids and the metadata of a dataset's examples as columns: id → position, and the fields that slices are made by.

A dataset never changes, so they are made once, when they are first needed, and kept in the user's cache.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from karat import paths
from karat.store.backend import RecordDecoder
from karat.store.column_cache import read_cached, write_cached

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from karat.store.handles import StoredDataset

MOST_FIELDS = 200
MOST_VALUES = 100_000
"""Different values of a field that are kept; a field with more is kept only if it is of numbers."""
DEEPEST = 8
"""Levels of objects in the metadata whose fields get a column: `a.b.c`."""

_FORMAT = "examples-3"
LARGEST = sys.float_info.max
"""A number beyond it is an integer that no float can stand for."""


class Field(msgspec.Struct):
    """One field of the metadata."""

    codes: NDArray[Any] | None
    """For each example the place of its value in `values`; None where there are too many values."""
    values: list[Sequence[Any]]
    """The different values, each as a list of alternatives: a list belongs to each of its elements."""
    numbers: NDArray[np.float64] | None = None
    """The numbers, NaN for none, where there are too many values."""


class ExampleColumns:
    """The examples of a dataset, without their content."""

    def __init__(self, text: bytes, offsets: NDArray[np.int64], fields: dict[str, Field]) -> None:
        self._text = text
        self._offsets = offsets
        self._hashes: tuple[Any, Any] | None = None
        self.fields = fields

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def id(self, position: int) -> str:
        """The id of the example at a position."""
        return self._text[self._offsets[position] : self._offsets[position + 1]].decode(
            "utf-8", "surrogatepass"
        )

    def ids(self) -> Iterator[str]:
        """All ids, in dataset order."""
        return map(self.id, range(len(self)))

    def position(self, id: str) -> int | None:
        """The position of an example; None where the dataset has no such id."""
        import numpy as np

        if self._hashes is None:
            hashes = np.fromiter(map(_hash, self.ids()), dtype=np.uint64, count=len(self))
            order = np.argsort(hashes, kind="stable")
            self._hashes = hashes[order], order
        hashes, order = self._hashes
        wanted = np.uint64(_hash(id))
        at = int(np.searchsorted(hashes, wanted))
        while at < len(hashes) and hashes[at] == wanted:
            if self.id(int(order[at])) == id:
                return int(order[at])
            at += 1
        return None


def _hash(id: str) -> int:
    return int.from_bytes(blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


NO_METADATA = msgspec.Raw(b"{}")
MOST_REPEATED = 1 << 16
"""Different metadata that are recognised when they come again …"""
LONGEST_REPEATED = 1000
"""… each of at most so many bytes."""


class _Described(msgspec.Struct, gc=False):
    id: str
    metadata: msgspec.Raw = NO_METADATA


def example_columns(dataset: StoredDataset) -> ExampleColumns:
    """The columns of a dataset, from the user's cache or made now."""
    import numpy as np

    name = f"{_FORMAT}\n{dataset.store.url}\n{dataset.id}\n{len(dataset)}"
    kept = read_cached(name)
    if kept is not None:
        return _unpacked(kept)
    decode, decode_metadata = RecordDecoder(_Described).decode, RecordDecoder(dict[str, Any]).decode
    lengths = array("q")
    text = bytearray()
    building: dict[str, _Building] = {}
    # Metadata often repeat: they are decoded once, and copied to the other examples at the end.
    first: dict[bytes, int] = {}
    copies, originals = array("q"), array("q")
    for position, payload in enumerate(dataset.payloads()):
        example = decode(payload)
        id = example.id.encode("utf-8", "surrogatepass")
        text += id
        lengths.append(len(id))
        metadata = bytes(example.metadata)
        if metadata == b"{}":
            continue
        original = first.get(metadata)
        if original is not None:
            copies.append(position)
            originals.append(original)
            continue
        if len(metadata) <= LONGEST_REPEATED and len(first) < MOST_REPEATED:
            first[metadata] = position
        for field, value in flat_fields(decode_metadata(metadata)):
            found = building.get(field)
            if found is None:
                if len(building) >= MOST_FIELDS:
                    continue
                found = building[field] = _Building(len(dataset))
            found.add(position, value)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.frombuffer(lengths, np.int64), out=offsets[1:])
    places = np.frombuffer(copies, np.int64), np.frombuffer(originals, np.int64)
    for each in building.values():
        each.copy(*places)
    columns = ExampleColumns(bytes(text), offsets, {field: each.done() for field, each in building.items()})
    write_cached(name, _packed(columns))
    return columns


def flat_fields(metadata: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The fields of metadata by their dotted names, and what each path leads to: an object, and each of its fields."""
    found = list(_walk(metadata, "", 1))
    if not any(is_path for _, _, is_path in found):
        return [(name, value) for name, value, _ in found]
    # A key that looks like a path hides the path, as everywhere.
    return [(name, paths.get(metadata, name)) for name in dict.fromkeys(name for name, _, _ in found)]


def _walk(metadata: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any, bool]]:
    """`(dotted name, value, whether its own key looks like a path)` of every field."""
    for name, value in metadata.items():
        yield f"{prefix}{name}", value, not name or "." in name or "[" in name
        if isinstance(value, dict) and depth < DEEPEST:
            yield from _walk(value, f"{prefix}{name}.", depth + 1)


class _Building:
    """A field whose values are being collected."""

    def __init__(self, count: int) -> None:
        import numpy as np

        self.codes: Any = np.zeros(count, np.int32)
        self.known: dict[Any, int] = {(): 0}
        """The place of each value; the first is that of examples without the field."""
        self.values: list[Sequence[Any]] = [(None,)]
        self.numbers: Any = None
        self._count = count

    def add(self, position: int, value: Any) -> None:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST
        if self.codes is None:
            if number and self.numbers is not None:
                self.numbers[position] = float(value)
            elif value is not None:
                self.numbers = None  # not all are numbers
            return
        key = (
            (type(value), value) if isinstance(value, (str, int, float, bool)) else msgspec.json.encode(value)
        )
        code = self.known.get(key)
        if code is None:
            if value is None:
                code = self.known[key] = 0
            elif len(self.values) >= MOST_VALUES:
                self._to_numbers()
                self.add(position, value)
                return
            else:
                code = self.known[key] = len(self.values)
                self.values.append(value if isinstance(value, list) else (value,))
        self.codes[position] = code

    def _to_numbers(self) -> None:
        import numpy as np

        plain = all(
            len(each) == 1
            and (each[0] is None or (type(each[0]) in (int, float) and abs(each[0]) <= LARGEST))
            for each in self.values
        )
        if plain:
            table = np.array([math.nan if each[0] is None else float(each[0]) for each in self.values])
            self.numbers = table[self.codes]
            self.numbers[self.codes == 0] = math.nan
        self.codes, self.values = None, []

    def copy(self, positions: NDArray[np.int64], originals: NDArray[np.int64]) -> None:
        """Give examples the values of others."""
        for values in (self.codes, self.numbers):
            if values is not None:
                values[positions] = values[originals]

    def done(self) -> Field:
        import numpy as np

        codes = self.codes
        if codes is not None:
            codes = codes.astype(
                np.int8 if len(self.values) < 128 else np.int16 if len(self.values) < 1 << 15 else np.int32
            )
        return Field(codes, list(self.values), self.numbers)


def _packed(columns: ExampleColumns) -> list[bytes]:
    parts = [columns._text, columns._offsets.tobytes()]
    for name, field in columns.fields.items():
        parts += [
            name.encode("utf-8", "surrogatepass"),
            msgspec.json.encode(field.values),
            b"" if field.codes is None else field.codes.tobytes(),
            b"" if field.numbers is None else field.numbers.tobytes(),
        ]
    return parts


def _unpacked(parts: Sequence[bytes]) -> ExampleColumns:
    import numpy as np

    fields: dict[str, Field] = {}
    count = max(1, len(parts[1]) // 8 - 1)
    for at in range(2, len(parts), 4):
        name, values, codes, numbers = parts[at : at + 4]
        fields[name.decode("utf-8", "surrogatepass")] = Field(
            np.frombuffer(codes, f"<i{len(codes) // count}") if codes else None,
            msgspec.json.decode(values),
            np.frombuffer(numbers, np.float64) if numbers else None,
        )
    return ExampleColumns(parts[0], np.frombuffer(parts[1], np.int64), fields)
