"""Columns beside the records: status, score, seconds, cost and tokens of every item, as arrays.

A batch of records is committed together with one segment, which has the same items in packed form. Segments are added
in the order of commits, so they are right for runs that are going on, were interrupted, retried or extended: of an item
with several tries the latest counts, as for the records. A reader that has seen some segments asks for the later ones.
When a stage ends, its many small segments are joined to a few large ones, which say what they were made of: a reader
that has seen a part of these starts again.

Records that were stored without columns (by an earlier karat, or by a backend that does not keep them) are read once
instead, and the columns are kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, product
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from karat import paths
from karat.errors import StoreError
from karat.files import cache_folder
from karat.keys import digest
from karat.records import (
    POINTS,
    Call,
    EvaluationHeader,
    Failed,
    Failure,
    Ok,
    Result,
    Skipped,
    Usage,
    order_verdicts,
    usage_of,
)
from karat.serialization import prepared
from karat.store.backend import REUSED, Cells, ItemKeys, RecordDecoder, StoredRow, item_order
from karat.store.sql import check_time_limit

try:
    import fcntl
except ImportError:  # not POSIX: drafts of killed processes stay until the cache is full
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from karat.store.handles import Evaluation, Run, StoredDataset

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


# The user's cache of columns that a store does not have: those of older stores, and those of datasets.
#
# Files are named by what they describe and its state, readable by their owner alone, checked when they are read, and
# removed, oldest first, when they take more than a gibibyte together. Without a place to write to, nothing is kept.

MOST_BYTES = 1 << 30
_HEAD = b"karat-columns-1\n"
_BLOCK = 1 << 20


def columns_folder() -> Path:
    """Beside the reply cache that `$KARAT_CACHE` names, else in the cache folder."""
    chosen = os.environ.get("KARAT_CACHE")
    # The variable names a file: a folder of that name would take its place.
    return Path(f"{chosen}-columns") if chosen else cache_folder() / "columns"


def cached_segments(
    handle: Run | Evaluation, report: Report | None = None
) -> Iterator[tuple[int, int, bytes]]:
    """Segments made from the records, for what was stored without columns; kept in the user's cache.

    Those of something that is being written are not kept.
    """
    finished = handle.header.finished
    if finished is None and handle.status == "running":
        yield from _read_segments(handle, report)
        return
    backend = handle.store.backend
    state = (sorted(backend.counts(handle.number).items()), backend.last_segment(handle.number))
    name = f"{handle.store.url}\n{handle.id}\n{handle.header.created!r}\n{finished!r}\n{state}"
    found = read_cached(name)
    if found is None and _needed(handle):
        found = read_cached(name)
    if found is not None:
        for number, payload in enumerate(found, 1):
            yield number, 0, payload
        return
    with keeping(name) as keep:
        for segment in _read_segments(handle, report):
            keep(segment[2])
            yield segment


# Columns that are made in the background.

Report: TypeAlias = Callable[[float], None]
"""A callback that gets the share of the columns that is built, from 0 to 1."""

_make_elsewhere: ContextVar[Callable[[Run | Evaluation | StoredDataset], None] | None] = ContextVar(
    "make_elsewhere", default=None
)


@contextmanager
def made_elsewhere(need: Callable[[Run | Evaluation | StoredDataset], None]) -> Iterator[None]:
    """Within this context, call `need` rather than make columns that the cache lacks.

    It returns when they are in the cache, or when they are to be made here after all; otherwise it raises.
    """
    token = _make_elsewhere.set(need)
    try:
        yield
    finally:
        _make_elsewhere.reset(token)


def _needed(what: Run | Evaluation | StoredDataset) -> bool:
    """Ask for columns to be made elsewhere; false where they are made here."""
    need = _make_elsewhere.get()
    if need is None:
        return False
    need(what)
    return True


def _file(name: str) -> Path:
    return columns_folder() / digest(name.encode("utf-8", "surrogatepass"), 20)


def read_cached(name: str) -> Iterator[bytes] | None:
    """The parts that were kept under a name; None where there are none, or the file is damaged or not ours."""
    path = _file(name)
    try:
        file = path.open("rb")
    except OSError:
        return None
    try:
        mine = os.fstat(file.fileno()).st_uid == os.getuid()
        head, expected, found = file.read(len(_HEAD)), file.read(4), 0
        while mine and head == _HEAD and (block := file.read(_BLOCK)):
            found = crc32(block, found)
        if not mine or head != _HEAD or found != int.from_bytes(expected, "little"):
            file.close()
            return None
        os.utime(path)
    except OSError:
        file.close()
        return None
    return _parts(file)


def _parts(file: BinaryIO) -> Iterator[bytes]:
    with file:
        file.seek(len(_HEAD) + 4)
        while size := file.read(8):
            yield file.read(int.from_bytes(size, "little"))


@contextmanager
def keeping(name: str) -> Iterator[Callable[[bytes], None]]:
    """Keep parts under a name, where that is possible: yields a function that is given one after the other.

    They are written as they come, so that they take no memory, and have their name when all have come.
    """
    import tempfile

    path = _file(name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        descriptor, temporary = tempfile.mkstemp(_DRAFT, "", path.parent)  # mode 0600
        _lock(descriptor)
    except OSError:
        yield lambda part: None
        return
    file, checksum, lost = os.fdopen(descriptor, "wb"), 0, False

    def keep(part: bytes) -> None:
        nonlocal checksum, lost
        size = len(part).to_bytes(8, "little")
        checksum = crc32(part, crc32(size, checksum))
        try:
            file.write(size + part)
        except OSError:  # no space
            lost = True

    try:
        file.seek(len(_HEAD) + 4)
        yield keep
        with contextlib.suppress(OSError):
            file.seek(0)
            file.write(_HEAD + checksum.to_bytes(4, "little"))
            file.close()
            if not lost:
                Path(temporary).replace(path)
                _prune(path.parent)
    finally:
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            Path(temporary).unlink(missing_ok=True)


_DRAFT = ".draft"


def _lock(descriptor: int) -> bool:
    """Lock a file until it is closed or its process ends; False where another process has it, or there are no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_abandoned(folder: Path) -> None:
    """Remove the files that killed processes were writing."""
    for path in folder.glob(f"*{_DRAFT}"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if _lock(file.fileno()):
                path.unlink()


def _prune(folder: Path) -> None:
    entries = sorted(((each.stat(), each) for each in folder.iterdir()), key=lambda pair: pair[0].st_mtime)
    total = sum(stat.st_size for stat, _ in entries)
    for stat, path in entries:
        if total <= MOST_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= stat.st_size


LONGEST_KIND = 1000
"""Characters of the kind of a failure, or of the reason of a skip."""

# What the columns of a record are ------------------------------------------------


def cells_of_output(
    outcome: Ok[Any] | Failed | Skipped, seconds: float, queue: float, trace: Sequence[Call] | None
) -> Cells:
    """Return the columns of an output."""
    if type(outcome) is Ok and not trace and not queue:
        return None, seconds
    return None, seconds, queue, *_spent(trace or ()), kind_of_outcome(outcome)


def cells_of_result(
    outcome: Ok[Result] | Failed | Skipped, seconds: float, queue: float, trace: Sequence[Call] | None
) -> Cells:
    """Return the columns of a result."""
    score, orders = None, None
    if isinstance(outcome, Ok):
        score, orders = outcome.value.score, outcome.value.metadata.get("orders")
    if type(outcome) is Ok and not trace and not queue and orders is None:
        return score, seconds
    cells = score, seconds, queue, *_spent(trace or ()), kind_of_outcome(outcome)
    return cells if orders is None else (*cells, _order_code(orders))


ORDERS = [(), *product(POINTS.values(), repeat=2)]
"""The verdicts of a judge in two orders, by their codes."""
NOT_KNOWN = 255
"""The code where the record has to be read: it has something else, or was stored before there were codes."""


def _order_code(orders: object) -> int:
    found = order_verdicts({"orders": orders})
    return ORDERS.index(found) if found else NOT_KNOWN


def _spent(trace: Sequence[Call]) -> tuple[float | None, int, int]:
    """The cost, input tokens and output tokens of model calls."""
    if not trace:
        return None, 0, 0
    if len(trace) == 1:
        spent = trace[0].usage or Usage()
        return spent.cost, spent.input_tokens, spent.output_tokens
    usage = usage_of(trace)
    tokens_in = sum(each.input_tokens for each in usage.values())
    tokens_out = sum(each.output_tokens for each in usage.values())
    return cost_of(usage.values()), tokens_in, tokens_out


def cost_of(usages: Iterable[Usage]) -> float | None:
    """Return the cost of all model calls; None without calls, and if one price is unknown."""
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


class CellFields(NamedTuple):
    """The columns of some records, each a sequence with one element for a record; None where all have the default."""

    scores: Sequence[float | None]
    seconds: Sequence[float]
    queues: Sequence[float] | None = None
    costs: Sequence[float | None] | None = None
    read: Sequence[int] | None = None
    written: Sequence[int] | None = None
    kinds: Sequence[str] | None = None
    orders: Sequence[int] | None = None

    @classmethod
    def of(cls, cells: Sequence[Cells]) -> CellFields:
        """Return the columns of records that were given one by one."""
        lengths = set(map(len, cells))
        if len(lengths) > 1:
            longest = max(lengths)
            cells = [(*each, *_DEFAULTS[len(each) : longest]) for each in cells]
        return cls(*zip(*cells, strict=True))

    def cells(self) -> list[Cells]:
        """The columns record by record."""
        count = len(self.scores)
        fields = [
            [default] * count if field is None else field
            for field, default in zip(self, _DEFAULTS, strict=True)
        ]
        return list(zip(*fields, strict=True))


_DEFAULTS = (None, 0.0, 0.0, None, 0, 0, "", 0)
"""What the short forms of `Cells` leave out."""


class _Ordered(msgspec.Struct, gc=False):
    orders: Any = None


class _Scored(msgspec.Struct, gc=False):
    score: float | None = None
    metadata: _Ordered | None = None


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
    trace: Sequence[Call] = ()


class _ResultCells(msgspec.Struct, gc=False):
    """The cells of a result."""

    outcome: _Judged | Failed | Skipped
    seconds: float = 0.0
    queue_seconds: float = 0.0
    trace: Sequence[Call] = ()


def cell_reader(kind: str) -> Callable[[Sequence[bytes]], CellFields]:
    """A function that reads the columns of stored records: of outputs, or of results of an evaluation.

    Most records succeeded and called no model: these are read without a call for each.
    """
    type_: Any = _OutputCells if kind == "run" else _ResultCells
    decode_all = RecordDecoder[_OutputCells | _ResultCells](type_).decode_all
    good = _Given if kind == "run" else _Judged

    def read(payloads: Sequence[bytes]) -> CellFields:
        records = decode_all(payloads)
        outcomes = list(map(_OUTCOME, records))
        values = [each.value if type(each) is _Judged else NO_RESULT for each in outcomes]
        queues, described = list(map(_QUEUE, records)), list(map(_METADATA, values))
        fields = CellFields(
            list(map(_SCORE, values)),
            list(map(_SECONDS, records)),
            queues if any(queues) else None,
            orders=None
            if described.count(None) == len(described)
            else [_order_code(each.orders) if each and each.orders is not None else 0 for each in described],
        )
        odd: Sequence[int] = ()
        if any(map(_TRACE, records)):
            odd = [
                place for place, each in enumerate(records) if each.trace or type(each.outcome) is not good
            ]
        elif set(map(type, outcomes)) != {good}:
            odd = [place for place, each in enumerate(outcomes) if type(each) is not good]
        if odd:
            size = len(records)
            costs: list[float | None] = [None] * size
            read, written, kinds = [0] * size, [0] * size, [""] * size
            for place in odd:
                costs[place], read[place], written[place] = _spent(records[place].trace)
                if type(outcomes[place]) is not good:
                    kinds[place] = kind_of_outcome(outcomes[place])
            fields = fields._replace(costs=costs, read=read, written=written, kinds=kinds)
        return fields

    return read


NO_RESULT = _Scored()
_OUTCOME, _SECONDS, _QUEUE, _TRACE = map(attrgetter, ("outcome", "seconds", "queue_seconds", "trace"))
_SCORE, _METADATA = map(attrgetter, ("score", "metadata"))


def with_cells(kind: str, rows: Sequence[StoredRow]) -> list[StoredRow]:
    """Rows of a run or an evaluation, as they are read, with the columns of their records."""
    cells = cell_reader(kind)([row.payload for row in rows]).cells()
    return [row._replace(cells=each) for row, each in zip(rows, cells, strict=True)]


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
    orders: bytes | None = None
    """uint8, the place in `ORDERS` of a comparison; empty where none has one, None in segments of an earlier karat."""
    since: int = 0
    """The number of the first of the segments that were joined to this one; 0 where it was not joined."""


SEGMENT_FORMAT = 1
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(prepared(Segment)).decode


if sys.byteorder == "little":

    def _pack(type_: str, values: Iterable[Any]) -> bytes:
        return array(type_, values).tobytes()

else:

    def _pack(type_: str, values: Iterable[Any]) -> bytes:
        made = array(type_, values)
        made.byteswap()
        return made.tobytes()


def pack(rows: Sequence[StoredRow], keys: ItemKeys) -> bytes | None:
    """Encode a batch of records as a segment; None if a record has no columns.

    This is most of the cost of columns for the writer, so it leaves the loops to `zip`, `map` and `array`.
    """
    if rows[0].cells is None:  # examples
        return None
    positions, items, tries, statuses, _, _, cells = zip(*rows, strict=True)
    try:
        fields = CellFields.of(cells)
    except TypeError:  # None
        return None
    stored = {item: key for item, (key, _) in keys.items()}
    return _pack_fields(positions, items, tries, statuses, fields, stored)


def _pack_fields(
    positions: Sequence[int],
    items: Sequence[str] | Sequence[bytes],
    tries: Sequence[int],
    statuses: Sequence[int],
    cells: CellFields,
    stored: Mapping[Any, bytes],
) -> bytes:
    """Encode columns as a segment; `stored` has the stored form of every item."""
    scores, seconds, queues, paid, read, written, kinds, orders = cells
    kind_codes = b""
    known: list[str] = []
    if kinds and any(kinds):
        known = [kind for kind in dict.fromkeys(kinds) if kind]
        places = {"": 0, **{kind: place for place, kind in enumerate(known, 1)}}
        kind_codes = _pack("i", map(places.__getitem__, kinds))
    codes = b""
    if len(stored) > 1:
        codes = _pack("i", map({item: place for place, item in enumerate(stored)}.__getitem__, items))
    return _encode(
        Segment(
            SEGMENT_FORMAT,
            _pack("i", positions),
            list(stored.values()),
            codes,
            bytes(statuses),
            _pack("i", tries) if max(tries) > 1 else b"",
            _floats(scores),
            _pack("d", seconds),
            _pack("d", queues) if queues and any(queues) else b"",
            _floats(paid) if paid else b"",
            _pack("q", read) if read and any(read) else b"",
            _pack("q", written) if written and any(written) else b"",
            [kind.encode("utf-8", "surrogatepass") for kind in known],
            kind_codes,
            bytes(orders) if orders and any(orders) else b"",
        )
    )


def _floats(values: Sequence[float | None]) -> bytes:
    types = set(map(type, values))
    if type(None) not in types:
        return _pack("d", values)
    if len(types) == 1:
        return b""
    nan = math.nan
    return _pack("d", [nan if value is None else value for value in values])


# Reading -------------------------------------------------------------------------

REPORT_EXAMPLES = 4096
"""Examples after which the progress of a build is reported."""
JOINED_RECORDS = 1 << 16
"""Records of small segments that are joined before they become arrays, or when a stage ends …"""
MOST_SEGMENTS = 1000
"""… where there are more of them than so many: fewer are read in some milliseconds, and joining them loads NumPy."""


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
WHOLE["orders"] = ("<u1", NOT_KNOWN)  # loaded where it is asked for: only comparisons have it


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
    orders: NDArray[np.uint8]
    """The place in `ORDERS` of a comparison's verdicts in both orders; `NOT_KNOWN` if its record has to be read."""
    last: int
    """The number of the last segment that was read."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def service_seconds(self) -> Floats:
        """The time of the work itself, without waiting."""
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
            return _load(handle, fields, only, statuses)
        except _Retried:
            return _load(handle, fields, only, None).having(statuses)
    return _load(handle, fields, only, None)


class _Retried(Exception):
    """An item has several tries, so its status is that of the latest."""


class _Joined(Exception):
    """Segments that were read have since been joined with later ones."""


def _load(
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
            while True:
                try:
                    segments = _all_of(handle, backend.segments(handle.number))
                    return _assemble(handle.kind, segments, capacity, fields, last, only, statuses)
                except _Joined:
                    continue
        except msgspec.DecodeError as error:
            raise StoreError(f"the columns of {handle.id} cannot be read: {error}") from error
    return _assemble(handle.kind, cached_segments(handle), 0, fields, 0, only, statuses)


def empty_columns(handle: Run | Evaluation) -> ItemColumns:
    """The columns of a run or an evaluation without any item."""
    return _assemble(handle.kind, (), 0, FIELDS, 0, None)


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
    """The number of items of each status in a run or an evaluation, kept up to date from later segments."""

    def __init__(self) -> None:
        self.last = 0
        self.counts = [0] * (REUSED + 1)
        self._retried = False

    def update(self, handle: Run | Evaluation) -> list[int]:
        """Read the segments that are new, and return the counts by status."""
        backend = handle.store.backend
        if not backend.has_columns(handle.number):
            stored = backend.counts(handle.number)
            return [stored.get(status, 0) for status in range(len(self.counts))]
        if not self._retried:
            for number, _, payload in backend.segments(handle.number, self.last):
                segment = _decode(payload)
                if segment.tries:
                    self._retried = True
                    break
                if segment.since and segment.since <= self.last:
                    self.last, self.counts = 0, [0] * len(self.counts)  # a part of it is counted already
                    return self.update(handle)
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


def _read_segments(
    handle: Run | Evaluation, report: Report | None = None
) -> Iterator[tuple[int, int, bytes]]:
    from karat.store.handles import Chunks, check_complete

    found = 0
    backend, read = handle.store.backend, cell_reader(handle.kind)
    extent = backend.extent(handle.number)
    chunks = Chunks(0, extent)
    number = 0
    for start, stop in chunks:
        fields = chunks.saw_fields(backend.scan_fields(handle.number, start, stop))
        if report is not None:
            report(stop / extent)
        if fields.positions:
            number += 1
            stored = {item: item for item in sorted(set(fields.items))}
            cells = read(fields.payloads)
            packed = _pack_fields(
                fields.positions, fields.items, fields.tries, fields.statuses, cells, stored
            )
            found += len(fields.positions)
            yield number, len(fields.positions), packed
    check_complete(handle, found)


def _all_of(
    handle: Run | Evaluation, segments: Iterable[tuple[int, int, bytes]]
) -> Iterator[tuple[int, int, bytes]]:
    """The segments; raises StoreError at their end where some are missing."""
    from karat.store.handles import check_complete

    found = 0
    for segment in segments:
        found += segment[1]
        yield segment
    check_complete(handle, found)


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
        self._unwanted = bytes(set(range(256)) - set(statuses or ()))
        self.fields = [field for field in (*FLOATS, *WHOLE) if field in set(fields)]
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
        self._special = {"kind_codes": self._kind_codes, "orders": self._orders}

    def add(self, payload: bytes, seen: int = 0) -> None:
        """Add the records of a segment; `done` joins the last ones. `seen` is the number of the segment before it."""
        segment = _decode(payload)
        if segment.format != SEGMENT_FORMAT:
            raise msgspec.DecodeError(f"format {segment.format} is not known")
        if segment.since and segment.since <= seen:
            raise _Joined
        statuses = segment.statuses
        if self.statuses is not None:
            if segment.tries:
                raise _Retried
            if not statuses.translate(None, self._unwanted):
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
        check_time_limit()
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
            read = self._special.get(field) or attrgetter(field)
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

    def _orders(self, segment: Segment) -> bytes:
        """The codes of the verdicts in both orders; empty where they are not known."""
        return b"" if segment.orders is None else segment.orders or bytes(len(segment.statuses))

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


def join_segments(handle: Run | Evaluation) -> None:
    """Join the small segments of a run or an evaluation to large ones, where there are many.

    A million examples come in some ten thousand segments between the records. A reader would have to look for each.
    """
    backend = handle.store.backend
    if not backend.has_columns(handle.number) or backend.segment_count(handle.number) <= MOST_SEGMENTS:
        return
    waiting: list[tuple[int, int, bytes]] = []
    records = 0

    def join() -> None:
        if len(waiting) > 1:
            payload = _encode(_join(handle.kind, waiting, records))
            backend.join_segments(handle.number, waiting[0][0], waiting[-1][0], records, payload)
        waiting.clear()

    for segment in backend.segments(handle.number):
        if segment[1] < JOINED_RECORDS:
            waiting.append(segment)
            records += segment[1]
        if max(segment[1], records) >= JOINED_RECORDS:
            join()
            records = 0
    join()


def _join(kind: str, segments: Sequence[tuple[int, int, bytes]], records: int) -> Segment:
    assembly = _Assembly(kind, (*FLOATS, *WHOLE), records, None, None)
    for _, _, payload in segments:
        assembly.add(payload)
    assembly.done()
    fields = {name: array[: assembly.count].tobytes() for name, array in assembly.arrays.items()}
    return Segment(
        SEGMENT_FORMAT,
        items=list(assembly.items),
        kinds=list(assembly.kinds)[1:],
        since=_decode(segments[0][2]).since or segments[0][0],
        **fields,
    )


def _assemble(
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
        assembly.add(payload, seen)
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
    for field in assembly.fields:
        if field in arrays:
            setattr(found, field, taken(arrays.pop(field)[:count]))
        else:
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


# The ids and the metadata of a dataset's examples as columns: id → position, and the fields that slices are made by.
#
# A dataset never changes, so they are made once, when they are first needed, and kept in the user's cache.

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


LONGEST_SORTED = 64
"""Bytes of ids that are sorted as an array."""


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
        for start in range(0, len(self), JOINED_RECORDS):
            check_time_limit()
            yield from map(self.id, range(start, min(start + JOINED_RECORDS, len(self))))

    def ranks(self) -> NDArray[np.int32]:
        """The place of each example among the ids in their order."""
        import numpy as np

        lengths = np.diff(self._offsets)
        longest = int(lengths.max(initial=0))
        ranks = np.empty(len(self), np.int32)
        if longest > LONGEST_SORTED:
            order: Any = sorted(range(len(self)), key=list(self.ids()).__getitem__)
        else:
            # The order of UTF-8 is that of the characters. Texts of Python would take ten times the memory.
            padded = np.zeros((len(self), max(1, longest)), np.uint8)
            text = np.frombuffer(self._text, np.uint8)
            for column in range(longest):
                inside = lengths > column
                padded[inside, column] = text[self._offsets[:-1][inside] + column]
            order = np.argsort(padded.view(f"S{padded.shape[1]}").ravel(), kind="stable")
        ranks[order] = np.arange(len(self), dtype=np.int32)
        return ranks

    def position(self, id: str) -> int | None:
        """The position of an example; None where the dataset has no such id."""
        from hashlib import blake2b

        import numpy as np

        def hash_of(id: str) -> int:
            return int.from_bytes(
                blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
            )

        if self._hashes is None:
            hashes = np.fromiter(map(hash_of, self.ids()), dtype=np.uint64, count=len(self))
            order = np.argsort(hashes, kind="stable")
            self._hashes = hashes[order], order
        hashes, order = self._hashes
        wanted = np.uint64(hash_of(id))
        at = int(np.searchsorted(hashes, wanted))
        while at < len(hashes) and hashes[at] == wanted:
            if self.id(int(order[at])) == id:
                return int(order[at])
            at += 1
        return None


NO_METADATA = msgspec.Raw(b"{}")
MOST_REPEATED = 1 << 16
"""Different metadata that are recognised when they come again …"""
LONGEST_REPEATED = 1000
"""… each of at most so many bytes."""


class _Described(msgspec.Struct, gc=False):
    id: str
    metadata: msgspec.Raw = NO_METADATA


def example_columns(dataset: StoredDataset, report: Report | None = None) -> ExampleColumns:
    """The columns of a dataset, from the user's cache or made now."""
    import numpy as np

    name = f"{_FORMAT}\n{dataset.store.url}\n{dataset.id}\n{len(dataset)}"
    kept = read_cached(name)
    if kept is None and _needed(dataset):
        kept = read_cached(name)
    if kept is not None:
        return _unpack(list(kept))
    decode_all, decode_metadata = RecordDecoder(_Described).decode_all, RecordDecoder(dict[str, Any]).decode
    lengths = array("q")
    text = bytearray()
    building: dict[str, _Building] = {}
    # Metadata often repeat: they are decoded once, and copied to the other examples at the end.
    first: dict[bytes, int] = {}
    copies, originals = array("q"), array("q")
    chunks = map(decode_all, dataset.payload_chunks())
    for position, example in enumerate(chain.from_iterable(chunks)):
        if report is not None and not position % REPORT_EXAMPLES:
            report(position / len(dataset))
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
    with keeping(name) as keep:
        for part in _packed_examples(columns):
            keep(part)
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


def _packed_examples(columns: ExampleColumns) -> list[bytes]:
    parts = [columns._text, columns._offsets.tobytes()]
    for name, field in columns.fields.items():
        parts += [
            name.encode("utf-8", "surrogatepass"),
            msgspec.json.encode(field.values),
            b"" if field.codes is None else field.codes.tobytes(),
            b"" if field.numbers is None else field.numbers.tobytes(),
        ]
    return parts


def _unpack(parts: Sequence[bytes]) -> ExampleColumns:
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
