"""Columns beside the records: status, score, seconds, cost and tokens of every item, as arrays.

A batch of records is committed together with one segment, which has the same items in packed form. Segments are only
ever added, in the order of commits, so they are right for runs that are going on, were interrupted, retried or
extended: of an item with several tries the latest counts, as for the records. A reader that has seen some segments
asks for the later ones.

Records that were stored without columns (by an earlier karat, or by a backend that does not keep them) are read once
instead, and the columns are kept in the user's cache.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from karat.errors import StoreError
from karat.records import Call, EvaluationHeader, Failed, Failure, Ok, Result, Skipped, Usage, usage_of
from karat.store.backend import REUSED, Cells, ItemKeys, RecordDecoder, Row, item_order

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from karat.store.handles import Evaluation, Run

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

LONGEST_KIND = 1000
"""Characters of the kind of a failure, or of the reason of a skip."""

# What the columns of a record are ------------------------------------------------


def cells_of_output(
    outcome: Ok[Any] | Failed | Skipped, seconds: float, queue: float, trace: Sequence[Call] | None
) -> Cells:
    """The columns of an output."""
    if type(outcome) is Ok and not trace and not queue:
        return None, seconds
    return _measured(None, seconds, queue, trace or (), kind_of_outcome(outcome))


def cells_of_result(
    outcome: Ok[Result] | Failed | Skipped, seconds: float, queue: float, trace: Sequence[Call] | None
) -> Cells:
    """The columns of a result."""
    score = outcome.value.score if isinstance(outcome, Ok) else None
    if type(outcome) is Ok and not trace and not queue:
        return score, seconds
    return _measured(score, seconds, queue, trace or (), kind_of_outcome(outcome))


def _measured(score: float | None, seconds: float, queue: float, trace: Sequence[Call], kind: str) -> Cells:
    if not trace:
        return score, seconds, queue, None, 0, 0, kind
    if len(trace) == 1:
        spent = trace[0].usage or Usage()
        return score, seconds, queue, spent.cost, spent.input_tokens, spent.output_tokens, kind
    usage = usage_of(trace)
    tokens_in = sum(each.input_tokens for each in usage.values())
    tokens_out = sum(each.output_tokens for each in usage.values())
    return score, seconds, queue, cost_of(usage.values()), tokens_in, tokens_out, kind


def cost_of(usages: Iterable[Usage]) -> float | None:
    """What model calls cost together; None without calls, and where one price is unknown."""
    costs = [usage.cost for usage in usages]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known and len(known) == len(costs) else None


def kind_of(error: Failure) -> tuple[str, str]:
    """The kind of a failure and its message: of a graph by the node that failed and its error."""
    node = error.metadata.get("node")
    head = f"node {node}: "
    if not node or not error.message.startswith(head):
        return error.type[:LONGEST_KIND], error.message
    kind, _, message = error.message.removeprefix(head).partition(": ")
    return (head + kind)[:LONGEST_KIND], message


def kind_of_outcome(outcome: Ok[Any] | Failed | Skipped) -> str:
    """The kind of a failure, the reason of a skip; empty where it succeeded."""
    if isinstance(outcome, Failed):
        return kind_of(outcome.error)[0]
    return outcome.reason[:LONGEST_KIND] if isinstance(outcome, Skipped) else ""


class _Scored(msgspec.Struct, gc=False):
    score: float | None = None


class _Judged(msgspec.Struct, tag_field="status", tag="ok", gc=False):
    value: _Scored


class _Given(msgspec.Struct, tag_field="status", tag="ok", gc=False):
    """An output; its value is not decoded."""


class _OutputCells(msgspec.Struct, gc=False):
    """The fields of an output that columns are made of; decoding skips the rest.

    Decoded JSON has no cycles, so the garbage collector need not look at it; that is a tenth of the time.
    """

    outcome: _Given | Failed | Skipped
    seconds: float = 0.0
    queue_seconds: float = 0.0
    trace: list[Call] = []


class _ResultCells(msgspec.Struct, gc=False):
    """The same of a result."""

    outcome: _Judged | Failed | Skipped
    seconds: float = 0.0
    queue_seconds: float = 0.0
    trace: list[Call] = []


def cell_reader(kind: str) -> Callable[[bytes], Cells]:
    """A function that reads the columns of a stored record: of an output, or of a result of an evaluation."""
    if kind == "run":
        output = RecordDecoder(_OutputCells).decode

        def read(payload: bytes) -> Cells:
            record = output(payload)
            outcome = record.outcome
            kind = "" if isinstance(outcome, _Given) else kind_of_outcome(outcome)
            if not (kind or record.trace or record.queue_seconds):
                return None, record.seconds
            return _measured(None, record.seconds, record.queue_seconds, record.trace, kind)

        return read
    result = RecordDecoder(_ResultCells).decode

    def read_result(payload: bytes) -> Cells:
        record = result(payload)
        outcome = record.outcome
        judged = isinstance(outcome, _Judged)
        score = outcome.value.score if isinstance(outcome, _Judged) else None
        kind = "" if judged else kind_of_outcome(outcome)  # type: ignore[arg-type]  # not judged
        if not (kind or record.trace or record.queue_seconds):
            return score, record.seconds
        return _measured(score, record.seconds, record.queue_seconds, record.trace, kind)

    return read_result


def with_cells(kind: str, rows: Iterable[Row]) -> list[Row]:
    """Rows of a run or an evaluation with the columns of their records."""
    read = cell_reader(kind)
    return [row if row.cells is not None else row._replace(cells=read(row.payload)) for row in rows]


# Segments ------------------------------------------------------------------------


class Segment(msgspec.Struct, array_like=True, frozen=True):
    """The columns of a batch of records, as little-endian arrays; an empty one has its default everywhere."""

    format: int
    positions: bytes
    """int32."""
    items: list[bytes]
    """The different items …"""
    codes: bytes
    """… and the place in them of each record, int32; empty where all have the first."""
    statuses: bytes
    """int8."""
    tries: bytes = b""
    """int32, 1 by default."""
    scores: bytes = b""
    """float64; NaN, the default, for none."""
    seconds: bytes = b""
    """float64, from the start to the end of the work."""
    queue: bytes = b""
    """float64, of these the seconds spent waiting."""
    costs: bytes = b""
    """float64; NaN, the default, for none."""
    input_tokens: bytes = b""
    """int64."""
    output_tokens: bytes = b""
    """int64."""
    kinds: list[bytes] = []
    """The different kinds of failures and reasons of skips …"""
    kind_codes: bytes = b""
    """… and of each record the place of its kind, from 1, int32; 0, the default, for none."""


SEGMENT_FORMAT = 1
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Segment).decode


if sys.byteorder == "little":

    def _packed(type_: str, values: Iterable[Any]) -> bytes:
        return array(type_, values).tobytes()

else:

    def _packed(type_: str, values: Iterable[Any]) -> bytes:
        made = array(type_, values)
        made.byteswap()
        return made.tobytes()


def pack(rows: Sequence[Row], keys: ItemKeys) -> bytes | None:
    """Encode a batch of records as a segment; None if a record has no columns.

    This is most of the cost of columns for the writer, so it leaves the loops to `zip`, `map` and `array`.
    """
    positions, items, tries, statuses, _, _, cells = zip(*rows, strict=True)
    return _pack_fields(positions, items, tries, statuses, cells, keys)


def _pack_fields(
    positions: Sequence[int],
    items: Sequence[str],
    tries: Sequence[int],
    statuses: Sequence[int],
    cells: Sequence[Any],
    keys: ItemKeys,
) -> bytes | None:
    try:
        lengths = set(map(len, cells))
    except TypeError:  # None
        return None
    queue = costs = tokens_in = tokens_out = kind_codes = b""
    known: list[str] = []
    if lengths == {2}:
        scores, seconds = zip(*cells, strict=True)
    else:
        whole = [each if len(each) > 2 else (*each, *_PLAIN) for each in cells]
        scores, seconds, queues, paid, read, written, kinds = zip(*whole, strict=True)
        queue = _packed("d", queues) if any(queues) else b""
        costs = _floats(paid)
        tokens_in = _packed("q", read) if any(read) else b""
        tokens_out = _packed("q", written) if any(written) else b""
        if any(kinds):
            known = [kind for kind in dict.fromkeys(kinds) if kind]
            places = {"": 0, **{kind: place for place, kind in enumerate(known, 1)}}
            kind_codes = _packed("i", map(places.__getitem__, kinds))
    codes = b""
    if len(keys) > 1:
        codes = _packed("i", map({item: place for place, item in enumerate(keys)}.__getitem__, items))
    return _encode(
        Segment(
            SEGMENT_FORMAT,
            _packed("i", positions),
            [key for key, _ in keys.values()],
            codes,
            bytes(statuses),
            _packed("i", tries) if max(tries) > 1 else b"",
            _floats(scores),
            _packed("d", seconds),
            queue,
            costs,
            tokens_in,
            tokens_out,
            [kind.encode("utf-8", "surrogatepass") for kind in known],
            kind_codes,
        )
    )


_PLAIN = (0.0, None, 0, 0, "")
"""What the short form of `Cells` leaves out."""


def _floats(values: Sequence[float | None]) -> bytes:
    types = set(map(type, values))
    if type(None) not in types:
        return _packed("d", values)
    if len(types) == 1:
        return b""
    nan = math.nan
    return _packed("d", [nan if value is None else value for value in values])


# Reading -------------------------------------------------------------------------

BUILD_RECORDS = 4096
"""Records in a segment that is made from stored records."""
JOINED_RECORDS = 1 << 16
"""Records of small segments that are joined before they become arrays."""


class ItemName(NamedTuple):
    """An item of a run or an evaluation, taken apart."""

    evaluator: int
    """The evaluator's place in the header; −1 for an output."""
    runs: tuple[int, ...]
    """The places of the runs in the header, in the order shown; empty for an output."""
    attempt: int
    unit: str


def item_name(item: str, kind: str) -> ItemName:
    """The parts of an item as `keys.output_item` and `keys.result_item` write it."""
    head, _, unit = item.partition("/")
    if kind == "run":
        return ItemName(-1, (), int(head), unit)
    evaluator, *runs, attempt = map(int, head.split("."))
    return ItemName(evaluator, tuple(runs), attempt, unit)


FLOATS = {"scores": math.nan, "seconds": 0.0, "queue": 0.0, "costs": math.nan}
WHOLE = {
    "tries": ("<i4", 1),
    "input_tokens": ("<i8", 0),
    "output_tokens": ("<i8", 0),
    "kind_codes": ("<i4", 0),
}
FIELDS = (*FLOATS, *WHOLE)
"""The columns that may be left out when columns are loaded."""


class ItemColumns:
    """The current try of every item of a run or an evaluation, by position and item.

    Each attribute is an array with one element for each item; one that has its default everywhere takes no memory.
    """

    positions: NDArray[np.int32]
    codes: NDArray[np.int32]
    """The place of the item in `items`."""
    items: list[ItemName]
    statuses: NDArray[np.int8]
    """As in the rows: `OK`, `FAILED`, `SKIPPED`, `NOT_APPLICABLE`, `REUSED`."""
    tries: NDArray[np.int32]
    scores: Floats
    """NaN for none."""
    seconds: Floats
    queue: Floats
    costs: Floats
    """NaN where nothing was paid or a price is unknown."""
    input_tokens: Integers
    output_tokens: Integers
    kinds: list[str]
    """The kinds of failures and the reasons of skips; the first is empty."""
    kind_codes: NDArray[np.int32]
    last: int
    """The number of the last segment that was read."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def service_seconds(self) -> Floats:
        """How long the work itself took, without waiting."""
        import numpy as np

        return np.maximum(0.0, self.seconds - self.queue)

    def having(self, statuses: Sequence[int]) -> ItemColumns:
        """The items that have one of these statuses."""
        import numpy as np

        kept = np.flatnonzero(np.isin(self.statuses, statuses))
        found = ItemColumns()
        for name, value in vars(self).items():
            setattr(found, name, value[kept] if isinstance(value, np.ndarray) else value)
        return found

    def kind_code(self, kind: str) -> int:
        """The code of a kind; −1 where no item has it."""
        return self.kinds.index(kind) if kind in self.kinds else -1


def load_columns(
    handle: Run | Evaluation,
    fields: Iterable[str] = FIELDS,
    *,
    only: Callable[[ItemName], bool] | None = None,
    statuses: Sequence[int] | None = None,
) -> ItemColumns:
    """Load position, item, status and the named columns of a run or an evaluation; all columns by default.

    With `only`, load the items for which it returns true; with `statuses`, the items with one of these statuses.
    """
    if statuses is not None:
        try:
            return _loaded(handle, fields, only, statuses)
        except _Retried:
            return _loaded(handle, fields, only, None).having(statuses)
    return _loaded(handle, fields, only, None)


class _Retried(Exception):
    """An item has several tries, so its status is that of the latest."""


def _loaded(
    handle: Run | Evaluation,
    fields: Iterable[str],
    only: Callable[[ItemName], bool] | None,
    statuses: Sequence[int] | None,
) -> ItemColumns:
    backend = handle.store.backend
    if backend.has_columns(handle.number):
        last, records = backend.last_segment(handle.number)
        try:
            capacity = records if statuses is None else 0
            header = None if only is None else handle.header
            if isinstance(header, EvaluationHeader):  # of one evaluator and run, most likely
                capacity //= max(1, len(header.evaluators) * len(header.runs))
            segments = backend.segments(handle.number)
            return _assembled(handle.kind, segments, capacity, fields, last, only, statuses)
        except msgspec.DecodeError as error:
            raise StoreError(f"the columns of {handle.id} cannot be read: {error}") from error
    return _assembled(handle.kind, built_segments(handle), 0, fields, 0, only, statuses)


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The different values of an array, sorted.

    `np.unique` without counts or places hashes them, which takes two seconds for a million positions in order.
    """
    import numpy as np

    if len(values) < 2 or bool((values[1:] > values[:-1]).all()):
        return values
    ordered = np.sort(values)
    found: NDArray[Any] = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return found


class StatusCounts:
    """How many items of a run or an evaluation there are of each status, kept up to date from later segments."""

    def __init__(self) -> None:
        self.last = 0
        self.counts = [0] * (REUSED + 1)
        self._retried = False

    def update(self, handle: Run | Evaluation) -> list[int]:
        """Read the segments that are new, and return the counts by status."""
        backend = handle.store.backend
        if backend.has_columns(handle.number) and not self._retried:
            for number, _, payload in backend.segments(handle.number, self.last):
                segment = _decode(payload)
                if segment.tries:
                    self._retried = True
                    break
                self.last = number
                for status in range(len(self.counts)):
                    self.counts[status] += segment.statuses.count(status)
            else:
                return self.counts
        import numpy as np

        self._retried = True
        counts: list[int] = np.bincount(
            load_columns(handle, ()).statuses, minlength=len(self.counts)
        ).tolist()
        return counts


def built_segments(handle: Run | Evaluation) -> Iterator[tuple[int, int, bytes]]:
    """Segments made from the records, for what was stored without columns; kept in the user's cache."""
    from karat.store.column_cache import cached_segments

    return cached_segments(handle, lambda: _read_segments(handle))


def _read_segments(handle: Run | Evaluation) -> Iterator[tuple[int, int, bytes]]:
    from karat.store.handles import Chunks

    backend, read = handle.store.backend, cell_reader(handle.kind)
    chunks = Chunks(0, backend.extent(handle.number))
    waiting: list[list[Any]] = [[] for _ in range(5)]
    positions, items, tries, statuses, cells = waiting
    number = 0

    def segment() -> tuple[int, int, bytes]:
        keys = ItemKeys()
        for item in set(items):
            keys[item]
        packed = _pack_fields(positions, items, tries, statuses, cells, keys)
        assert packed is not None
        return number, len(positions), packed

    for start, stop in chunks:
        found = backend.scan_fields(handle.number, start, stop)
        chunks.saw_bytes(sum(map(len, found.payloads)))
        for field, more in zip(waiting, found, strict=True):
            field += map(read, found.payloads) if field is cells else more
        if len(positions) >= BUILD_RECORDS:
            number += 1
            yield segment()
            for field in waiting:
                field.clear()
    if positions:
        number += 1
        yield segment()


class _Assembly:
    """Arrays that grow as segments are added.

    Segments are small, a commit each, so they are joined before NumPy sees them: of 10,000 segments, a call for each
    column of each segment takes most of the time.
    """

    def __init__(
        self,
        kind: str,
        fields: Iterable[str],
        capacity: int,
        only: Callable[[ItemName], bool] | None,
        statuses: Sequence[int] | None,
    ) -> None:
        import numpy as np

        self.np = np
        self.kind = kind
        self.only = only
        self.statuses = statuses
        self.fields = [field for field in FIELDS if field in set(fields)]
        self.count = 0
        self.capacity = max(16, capacity)
        self.arrays: dict[str, Any] = {
            "positions": np.empty(self.capacity, "<i4"),
            "codes": np.zeros(self.capacity, "<i4"),
            "statuses": np.empty(self.capacity, np.int8),
        }
        self.items: dict[bytes, int] = {}
        self.kinds: dict[bytes, int] = {b"": 0}
        self._places: dict[tuple[bytes, ...], list[int]] = {}
        self._waiting: list[Segment] = []
        self._records = 0

    def add(self, payload: bytes) -> None:
        """Add the records of a segment; `done` joins the last ones."""
        segment = _decode(payload)
        if segment.format != SEGMENT_FORMAT:
            raise msgspec.DecodeError(f"format {segment.format} is not known")
        statuses = segment.statuses
        if self.statuses is not None:
            if segment.tries:
                raise _Retried
            if not any(status in statuses for status in self.statuses):
                return
        if max(self._places_of(segment)) < 0:
            return
        count = len(statuses)
        if len(segment.positions) != 4 * count or len(segment.codes) not in (0, 4 * count):
            raise msgspec.DecodeError("columns of different lengths")
        self._waiting.append(segment)
        self._records += count
        if self._records >= JOINED_RECORDS:
            self.done()

    def done(self) -> None:
        """Join the segments that were added last to the arrays."""
        if not self._waiting:
            return
        np, segments = self.np, self._waiting
        self._waiting, self._records = [], 0
        codes = np.frombuffer(b"".join(map(self._codes, segments)), "<i4")
        statuses = np.frombuffer(b"".join([each.statuses for each in segments]), np.int8)
        kept: Any = slice(None)
        count = len(codes)
        if self.statuses is not None or self.only is not None:
            chosen = codes >= 0
            if self.statuses is not None:
                chosen &= np.isin(statuses, self.statuses)
            kept = np.flatnonzero(chosen)
            count = len(kept)
        start, stop = self.count, self.count + count
        if stop > self.capacity:
            self._grow(stop)
        arrays = self.arrays
        arrays["codes"][start:stop] = codes[kept]
        arrays["statuses"][start:stop] = statuses[kept]
        positions = np.frombuffer(b"".join([each.positions for each in segments]), "<i4")
        arrays["positions"][start:stop] = positions[kept]
        for field in self.fields:
            read = self._kind_codes if field == "kind_codes" else attrgetter(field)
            parts: list[bytes] = [read(each) for each in segments]
            if not any(parts) and field not in arrays:
                continue
            type_, default = ("<f8", FLOATS[field]) if field in FLOATS else WHOLE[field]
            if field not in arrays:
                arrays[field] = np.full(self.capacity, default, type_)
            empty = np.array(default, type_).tobytes()
            if not all(parts):
                parts = [
                    part or empty * len(each.statuses) for part, each in zip(parts, segments, strict=True)
                ]
            joined = b"".join(parts)
            if len(joined) != len(empty) * len(codes):
                raise msgspec.DecodeError("columns of different lengths")
            arrays[field][start:stop] = np.frombuffer(joined, type_)[kept]
        self.count = stop

    def _places_of(self, segment: Segment) -> list[int]:
        """The places of a segment's items in `items`; −1 for those that are not wanted."""
        key = tuple(segment.items)
        found = self._places.get(key)
        if found is None:
            items = self.items
            found = self._places[key] = [
                items.setdefault(item, len(items)) if self._is_wanted(item) else -1 for item in key
            ]
            if not found:
                raise msgspec.DecodeError("no items")
        return found

    def _codes(self, segment: Segment) -> bytes:
        """The place of each record's item in `items`."""
        places = self._places_of(segment)
        if not segment.codes:
            return places[0].to_bytes(4, "little", signed=True) * len(segment.statuses)
        if places == list(range(len(places))):
            return segment.codes
        found: bytes = self._looked_up(places, segment.codes)
        return found

    def _kind_codes(self, segment: Segment) -> bytes:
        """The place of each record's kind in `kinds`."""
        if not segment.kind_codes:
            return b""
        kinds = self.kinds
        return self._looked_up(
            [0, *(kinds.setdefault(kind, len(kinds)) for kind in segment.kinds)], segment.kind_codes
        )

    def _looked_up(self, table: list[int], codes: bytes) -> bytes:
        try:
            found: bytes = self.np.array(table, "<i4")[self.np.frombuffer(codes, "<i4")].tobytes()
        except (IndexError, ValueError) as error:
            raise msgspec.DecodeError(str(error)) from error
        return found

    def _is_wanted(self, item: bytes) -> bool:
        try:
            name = item_name(item.decode("utf-8", "surrogatepass"), self.kind)
        except ValueError as error:
            raise msgspec.DecodeError(f"{item!r} is not an item") from error
        return self.only is None or self.only(name)

    def _grow(self, needed: int) -> None:
        self.capacity = max(needed, self.capacity * 2)
        for name, old in list(self.arrays.items()):
            new = self.np.empty(self.capacity, old.dtype)
            new[: self.count] = old[: self.count]
            if name in FLOATS or name in WHOLE:
                new[self.count :] = FLOATS[name] if name in FLOATS else WHOLE[name][1]
            self.arrays[name] = new


def _assembled(
    kind: str,
    segments: Iterable[tuple[int, int, bytes]],
    capacity: int,
    fields: Iterable[str],
    last: int,
    only: Callable[[ItemName], bool] | None,
    statuses: Sequence[int] | None = None,
) -> ItemColumns:
    import numpy as np

    assembly = _Assembly(kind, {*fields, "tries"}, capacity, only, statuses)
    seen = 0
    for number, _, payload in segments:
        assembly.add(payload)
        seen = number
    assembly.done()
    count, arrays = assembly.count, assembly.arrays
    texts = [item.decode("utf-8", "surrogatepass") for item in assembly.items]
    ranked = sorted(range(len(texts)), key=lambda place: item_order(texts[place]))
    rank = np.empty(max(1, len(texts)), "<i4")
    rank[ranked] = np.arange(len(texts), dtype="<i4")
    codes = rank[arrays.pop("codes")[:count]]
    positions = arrays.pop("positions")[:count]
    order = _current(positions, codes, len(texts), arrays["tries"][:count] if "tries" in arrays else None)
    found = ItemColumns()
    found.last = max(seen, last)
    found.items = [item_name(texts[place], kind) for place in ranked]
    found.kinds = [kind.decode("utf-8", "surrogatepass") for kind in assembly.kinds]

    def taken(array: Any) -> Any:
        return array if order is None else array[order]

    found.positions, found.codes = taken(positions), taken(codes)
    del positions, codes
    found.statuses = taken(arrays.pop("statuses")[:count])
    size = len(found.positions)
    for field in FIELDS:
        if field in arrays:
            setattr(found, field, taken(arrays.pop(field)[:count]))
        elif field in assembly.fields:
            type_, default = ("<f8", FLOATS[field]) if field in FLOATS else WHOLE[field]
            setattr(found, field, np.broadcast_to(np.array(default, type_), (size,)))
    return found


def _current(positions: Any, codes: Any, names: int, tries: Any) -> Any:
    """The order of the current try of every item, by position and item; None where they have it already."""
    import numpy as np

    if not len(positions):
        return None
    key = positions.astype("<i8") * max(1, names) + codes
    steps = np.diff(key)
    if (steps > 0).all():
        return None
    del steps
    order = np.argsort(key, kind="stable")
    key = key[order]
    if (key[1:] != key[:-1]).all():
        return order
    # Of an item with several tries the latest counts; of the same try twice, the one that was committed first.
    attempts = np.ones(len(order), "<i4") if tries is None else tries[order]
    order = order[np.lexsort((-np.arange(len(order)), attempts, key))]
    key = np.sort(key)
    return order[np.append(key[1:] != key[:-1], True)]
