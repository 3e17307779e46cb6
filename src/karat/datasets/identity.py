"""Which examples are the same: their ids, and the id of the dataset they make.

An example without an id gets the hash of its content, and from its second occurrence on a number behind it
(`3f…`, `3f…#2`), so that repeated rows are kept. What has been seen is remembered in 64 bits per example; the
rest of a dataset may be larger than memory. Where 64 bits agree, the exact ids are compared by looking back.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from karat.datasets.readers.rows import short
from karat.errors import DataError

_GENERATED = re.compile(r"[0-9a-f]{32}(?:#([1-9][0-9]{0,18}))?")
_encode = msgspec.json.Encoder(order="deterministic").encode
"""As karat.serialization.canonical does it, without the look for NaN: what comes here is known to be JSON."""


def content_of(input: Any, expected: Any, metadata: dict[str, Any]) -> bytes:
    """The content of an example beside its id, in which the order of keys does not matter."""
    return _encode((input, expected, metadata))


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
        return numbered(hashed, count)


def numbered(hashed: str, occurrence: int) -> str:
    """The id of the nth example with this hash."""
    return hashed if occurrence == 1 else f"{hashed}#{occurrence}"


class Identities:
    """Gives ids on the first pass, refuses one that is taken, and gathers the id of the dataset.

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
        self._digest.update(b"%b\n%b\n" % (_encode(id), content))
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
        id = numbered(hashed, count)
        if self._some_look_generated and _key(id) in self._explicit:
            self._refuse_taken(id, place)
        return id

    def _claim(self, id: str, place: int) -> None:
        taken = not self._explicit.add(_key(id))
        if len(id) >= 32 and (match := _GENERATED.fullmatch(id)):
            self._some_look_generated = True
            key = int(id[:16], 16)
            taken = taken or (key in self._contents and int(match[1] or 1) <= self.counts.get(key, 1))
        if taken:
            self._refuse_taken(id, place)

    def _refuse_taken(self, id: str, place: int) -> None:
        earlier = self._look_back(id, self.total)
        if earlier is None:
            return
        both = f"{self._unit}s {earlier} and {place}"
        if earlier == place:  # a JSON file may hold many rows on one line
            both = f"two examples of {self._unit} {place}"
        raise DataError(f"{self._source}: {both} have the same id {short(id)}: give each example its own")


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
        """Whether it was new."""
        key = key or 1  # 0 marks a free slot
        slot = self._slot(key)
        if self._table[slot]:
            return False
        self._table[slot] = key
        self._count += 1
        if self._count * 3 > len(self._table) * 2:
            self._grow()
        return True

    def _slot(self, key: int) -> int:
        """Where the key is, or the free slot where it would be. Keys are hashes: their low bits will do."""
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
