"""The interface that a kind of store implements, and the rows it stores.

A backend knows nothing of runs or results. It stores headers (one for each dataset, run, evaluation and aggregation),
links between them, names of datasets, and rows: numbered by the position of the example, so that a scan is in dataset
order, and unique by (parent, position, item, try), so that the first commit wins.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, pairwise
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from zlib import crc32

import msgspec

from karat.errors import StoreError, StoreRefused, wording
from karat.serialization import prepared

T = TypeVar("T")

SCHEMA = 3
"""Version of the tables. A store with a newer one is refused untouched; an older one is upgraded."""

OK, FAILED, SKIPPED, NOT_APPLICABLE, REUSED = range(5)
"""The status of an item in its row; `REUSED` is ok, copied from an earlier evaluation."""


Cells: TypeAlias = (
    tuple[float | None, float]
    | tuple[float | None, float, float, float | None, int, int, str]
    | tuple[float | None, float, float, float | None, int, int, str, int]
)
"""The columns of a record: score, seconds, seconds of them spent waiting, cost, input tokens, output tokens, the kind
of its failure or the reason of its skip, and a judge's verdicts in both orders. A plain tuple, because one is made for
every record. A record that succeeded without model calls has the first two alone, so that a batch of such records is
packed as two columns; only a comparison in both orders has the last."""


class NoStoreYet(StoreRefused):
    """A server has no tables of karat."""


class StoredRow(NamedTuple):
    """One stored record."""

    position: int
    item: str
    try_number: int
    status: int
    reuse: bytes | None
    payload: bytes
    cells: Cells | None = None
    """Its columns, when it is appended; None for an example, and for a record that is read."""


def restore_from_copy() -> str:
    """Say how to restore a damaged store."""
    return f"restore the store from a copy ({wording('karat doctor', 'store.verify()')} lists the damage)"


class RecordDecoder(Generic[T]):
    """A decoder of stored content of one type. Content of another type is an error of the store, not of the caller."""

    def __init__(self, type: type[T]) -> None:
        self._type = type
        self._decode = msgspec.json.Decoder(prepared(type)).decode
        self._decode_list: Callable[[bytes], list[T]] | None = None

    def decode(self, payload: bytes) -> T:
        """Decode a header or a record."""
        try:
            return self._decode(payload)
        except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
            raise StoreError(
                f"the store has a record that is not {self._type.__name__.strip('_')}: {error};"
                f" {restore_from_copy()}"
            ) from error

    def decode_all(self, payloads: Sequence[bytes]) -> list[T]:
        """Decode records in one step, as the elements of one array: less time than a call for each."""
        if self._decode_list is None:
            self._decode_list = msgspec.json.Decoder(prepared(list[self._type])).decode  # type: ignore[name-defined]
        try:
            found = self._decode_list(b"[%b]" % b",".join(payloads))
        except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
            found = []
        if len(found) != len(payloads):
            found = [self.decode(payload) for payload in payloads]  # raises at the one that cannot be read
        return found


class ItemKeys(dict[str, tuple[bytes, int]]):
    """Items as they are stored, with their part of a row's checksum; most batches have very few different ones.

    Bytes, because a text column of PostgreSQL cannot hold NUL or half a surrogate pair.
    """

    def __missing__(self, item: str) -> tuple[bytes, int]:
        stored = item.encode("utf-8", "surrogatepass")
        found = self[item] = stored, crc32(stored)
        return found


def checksum(item: int, position: int, try_number: int, status: int, payload: bytes) -> int:
    """CRC-32 of a row: `item` is that of its item, as `ItemKeys` gives it."""
    return crc32(payload, (item + 64 * position + 8 * try_number + status) & 0xFFFFFFFF)


@functools.lru_cache(4096)
def item_order(item: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """The sort key of items: numbers in them compare as numbers, attempt 2 before 10."""
    parts = re.split("([0-9]+)", item)
    # A number is compared by its length and its digits: int() refuses long ones, and a unit may be anything.
    parts[1::2] = (number.lstrip("0") for number in parts[1::2])
    return tuple((len(part) if place % 2 else 0, part) for place, part in enumerate(parts)), item


def latest(rows: Sequence[StoredRow]) -> Iterable[StoredRow]:
    """The current try of every item; rows come by position, item and try, as a scan gives them."""
    several = len({row[0] for row in rows}) < len(rows)
    return _latest(rows) if several else rows


def _latest(rows: Sequence[StoredRow]) -> Iterator[StoredRow]:
    previous: StoredRow | None = None
    for row in rows:
        if previous is not None and (previous.item != row.item or previous.position != row.position):
            yield previous
        previous = row
    if previous is not None:
        yield previous


class Mark(NamedTuple):
    """A row without its payload."""

    position: int
    item: str
    try_number: int
    status: int


class TextPattern(NamedTuple):
    """What the content of a record may contain: pieces in this order, ASCII letters in either case."""

    pieces: tuple[str, ...]
    beyond_ascii: bool = False
    """Whether it has a character beyond ASCII too …"""
    one_of: str = ""
    """… and one of these."""


class ScannedFields(NamedTuple):
    """The fields of some rows, each a sequence with one element for a row."""

    positions: Sequence[int]
    items: Sequence[bytes]
    """As they are stored."""
    codes: Sequence[int]
    """Eight times the try, and the status, in one number."""
    payloads: Sequence[bytes]

    @property
    def tries(self) -> Sequence[int]:
        """The try of each row."""
        return [code >> 3 for code in self.codes] if self._have_tries() else (1,) * len(self.codes)

    @property
    def statuses(self) -> bytes:
        """The status of each row."""
        return bytes([code & 7 for code in self.codes])

    def latest(self) -> ScannedFields:
        """The current try of every item."""
        if not self._have_tries():
            return self
        names = pairwise(zip(self.positions, self.items, strict=True))
        last = [*(name != following for name, following in names), True]
        return ScannedFields._make(list(compress(column, last)) for column in self)

    def _have_tries(self) -> bool:
        return max(self.codes, default=0) >= 16


class HeaderRow(NamedTuple):
    """One header, with the fields that can be searched."""

    number: int
    kind: str
    id: str
    configuration: str
    created: float
    finished: float | None
    payload: bytes


class LeaseRow(NamedTuple):
    """Who holds a header: `owner` is unique to a process and a moment."""

    owner: str
    host: str
    process: int
    process_started: float
    since: float
    heartbeat: float


class Backend(Protocol):
    """A kind of store. Every method is safe to call from any thread."""

    url: str
    """Its location, without secrets."""
    commits_briefly: bool
    """Whether a commit is so short that it may be made on the event loop."""
    shared: bool
    """Whether another process can open the same store."""

    def close(self) -> None:
        """Close connections and files."""

    def check(self) -> list[str]:
        """The problems that an integrity check of the structure finds; empty when there are none."""

    def damaged(self) -> list[str]:
        """Headers and records whose content does not match its checksum; reads everything."""

    def is_replaced(self) -> bool:
        """Whether the file that was opened is no longer the one at its path: deleted, or another."""

    def ensure_present(self) -> None:
        """Raise where the store was deleted, replaced or truncated since it was opened."""

    def ensure_readable(self, number: int) -> None:
        """Raise unless another process could read the records of a header, and what it was made from."""

    def now(self) -> float:
        """The clock that leases are measured by."""

    def append(self, parent: int, rows: Sequence[StoredRow], owner: str | None = None) -> int:
        """Commit a batch as a whole and return the number of new rows; an existing identity is not changed.

        A batch for a header that has been deleted is refused, and so is one of an `owner` that no longer holds the
        lease: both are checked in the transaction of the batch. The columns of the rows (`cells`) are committed with
        them, as one segment.
        """

    def scan(self, parent: int, start: int, stop: int) -> list[StoredRow]:
        """All rows with start ≤ position < stop, by position, item (in `item_order`) and try.

        A row whose content does not match its checksum raises.
        """

    def scan_fields(self, parent: int, start: int, stop: int) -> ScannedFields:
        """The same rows by field, in the same order, which is cheaper for many."""

    def marks(self, parent: int, start: int, stop: int) -> list[Mark]:
        """Yield the rows without payloads, the tries of an item in their order."""

    def marks_matching(
        self, parent: int, start: int, stop: int, patterns: Sequence[TextPattern]
    ) -> list[Mark]:
        """The same of the rows whose content matches one of the patterns, and perhaps of some more."""

    def has_columns(self, parent: int) -> bool:
        """Whether every record of a header has its columns in a segment."""

    def segments(self, parent: int, after: int = 0) -> Iterator[tuple[int, int, bytes]]:
        """`(number, records, payload)` of the segments after a number, in the order of their commits."""

    def segment_count(self, parent: int) -> int:
        """Count the segments of a header."""

    def join_segments(self, parent: int, first: int, last: int, records: int, payload: bytes) -> None:
        """Replace several segments by one with the same records, under the number of the last."""

    def last_segment(self, parent: int) -> tuple[int, int]:
        """The number of the newest segment of a header, and how many records its segments have together."""

    def is_live(self) -> bool:
        """Whether a run or an evaluation is not finished."""

    def version(self) -> int:
        """A number that changes when anything in the store has changed; cheap enough to ask for often."""

    def scan_at(self, parent: int, positions: Sequence[int]) -> list[StoredRow]:
        """All rows at some positions, in the order of `scan`."""

    def extent(self, parent: int) -> int:
        """One more than the largest position."""

    def counts(self, parent: int) -> dict[int, int]:
        """Count the items of each status by their latest try."""

    def reusable(self, keys: Sequence[bytes]) -> dict[bytes, tuple[int, bytes]]:
        """For each reuse key that an ok row has: the number of its parent, and its payload; the oldest wins."""

    def insert_header(
        self, header: HeaderRow, parents: Sequence[str], lease: LeaseRow | None, siblings: int | None = None
    ) -> int | None:
        """Add a header with its links, all or nothing, and return its number; the first of an id wins.

        `siblings` is the expected number of headers of the same kind and configuration: if another process has added
        one, nothing is added and None is returned. A parent that does not exist is refused.
        """

    def update_header(
        self,
        number: int,
        payload: bytes,
        finished: float | None,
        owner: str | None = None,
        replacing: bytes | None = None,
    ) -> bool:
        """Replace the content of a header; with `finished`, its lease is released in the same transaction.

        With `owner`, only while that owner holds the lease; with `replacing`, only while that is its content. False
        when nothing was replaced.
        """

    def headers(
        self, kind: str | None = None, *, id_prefix: str | None = None, configuration: str | None = None
    ) -> list[HeaderRow]:
        """The headers that match all conditions, oldest first."""

    def header(self, number: int) -> HeaderRow | None:
        """Return the header with a number."""

    def links(self, *, child: str | None = None, parent: str | None = None) -> list[str]:
        """The parents of a child, or the children of a parent."""

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Delete headers with their rows and links, all or nothing.

        Returns the ids of other things that were made from them; if there are any, nothing was deleted.
        """

    def name_dataset(self, name: str, dataset: str) -> int:
        """The version of a dataset under a name; a new one gets the next number.

        A number is never used twice, even when its dataset is deleted.
        """

    def named(self, name: str | None = None, dataset: str | None = None) -> list[tuple[str, int, str]]:
        """`(name, version, dataset)` of a name or a dataset or of all that exist, oldest version first."""

    def lease(self, number: int) -> LeaseRow | None:
        """The lease of a header; None when it is free."""

    def take_lease(self, number: int, lease: LeaseRow, from_owner: str | None) -> bool:
        """Take a lease from `from_owner` (None: it is free); return False if another process was faster."""

    def beat(self, number: int, owner: str, heartbeat: float) -> bool:
        """Renew a lease; False when `owner` no longer holds it."""

    def release(self, number: int, owner: str) -> None:
        """Release a lease, if `owner` holds it."""
