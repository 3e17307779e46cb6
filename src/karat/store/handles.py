"""Handles: a dataset, run, evaluation or aggregation in a store, with access to its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec

from karat.errors import StoreError, plural
from karat.formatting import (
    MOST_NUMBERS,
    Block,
    Paragraph,
    aggregation_blocks,
    as_html,
    as_text,
    counts_text,
    example_table,
)
from karat.layout import Styled
from karat.records import (
    AggregateTable,
    AggregationHeader,
    Counts,
    DatasetHeader,
    Estimates,
    EvaluationHeader,
    Example,
    ItemResult,
    Output,
    RunHeader,
    Status,
)
from karat.store.backend import RecordDecoder, ScannedFields, StoredRow, latest, restore_from_copy
from karat.store.lease import holder_of
from karat.store.rows import Row, evaluation_rows, row_tables, run_rows

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from karat.store import Store
    from karat.store.arrow import Batch

# `karat.store.arrow` is imported where a table is asked for: most commands need none.

CHUNK = 512
"""Positions read at a time: large enough to amortise a query, small enough to stay in cache."""

CHUNK_BYTES = 8 << 20
"""… and fewer of them where records are large: traces of agents are easily a mebibyte each."""

_FIRST_CHUNK = 8


class Chunks:
    """Ranges of positions, to be read one after another: up to CHUNK positions or about CHUNK_BYTES at a time.

    The reader of a range reports the rows with `saw`. The first ranges are short, because the size of rows is unknown.
    """

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._last = last
        self._bytes = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        start, size = self._first, _FIRST_CHUNK
        while start < self._last:
            stop = min(start + size, self._last)
            self._bytes = 0
            yield start, stop
            each = self._bytes // (stop - start) + 1
            start, size = stop, max(1, min(CHUNK, 4 * size, CHUNK_BYTES // each))

    def saw(self, rows: list[StoredRow]) -> list[StoredRow]:
        """Measure rows, to choose the next range; returns them."""
        self._bytes += sum([len(row.payload) for row in rows])
        return rows

    def saw_fields(self, fields: ScannedFields) -> ScannedFields:
        """The same of rows by field."""
        self._bytes += sum(map(len, fields.payloads))
        return fields


class Tabular:
    """Anything that can be read as a table: `to_pandas()`, `to_polars()`, `to_arrow()`."""

    def batches(self) -> Iterator[Batch]:
        """The records as Arrow arrays, some thousands at a time."""
        raise NotImplementedError

    def to_arrow(self) -> pyarrow.Table:
        """Return an Arrow table, one row for each record.

        A column of numbers or of texts has their type; any other, such as one of nested values, is JSON text.
        """
        from karat.store.arrow import to_arrow

        return to_arrow(self.batches())

    def to_polars(self) -> polars.DataFrame:
        """Return a Polars data frame, one row for each record; nested values are JSON text."""
        from karat.store.arrow import to_polars

        return to_polars(self.batches())

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas data frame, one row for each record; nested values are Python objects."""
        from karat.store.arrow import to_pandas

        return to_pandas(self.batches())


class StoredDataset(Tabular):
    """A dataset in a store."""

    def __init__(self, store: Store, number: int, header: DatasetHeader) -> None:
        self.store = store
        self.number = number
        self.header = header
        self.name = header.name
        self.version = header.version

    @property
    def id(self) -> str:
        """A hash of its content."""
        return self.header.id

    @property
    def source(self) -> str:
        """The file it came from, if any."""
        return self.header.source

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata recorded with it."""
        return self.header.metadata

    @property
    def labels(self) -> list[str]:
        """Short names to find it by."""
        return self.header.labels

    @property
    def label(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    def __len__(self) -> int:
        return self.header.count

    def __iter__(self) -> Iterator[Example]:
        decode = RecordDecoder(Example).decode
        for payload in self.payloads():
            yield decode(payload)

    def batches(self) -> Iterator[Batch]:
        """The examples as Arrow arrays, some thousands at a time."""
        from karat.store.arrow import example_batches

        return example_batches(self)

    def encoded(self) -> Iterator[tuple[str, bytes]]:
        """`(id, JSON)` of every example: what another store writes."""
        decode = RecordDecoder(_Identified).decode
        for payload in self.payloads():
            yield decode(payload).id, payload

    def payloads(self) -> Iterator[bytes]:
        """The JSON of every example, in order."""
        return chain.from_iterable(self.payload_chunks())

    def payload_chunks(self) -> Iterator[Sequence[bytes]]:
        """The same, of as many examples at a time as are read together."""
        chunks = Chunks(0, self.header.count)
        for start, stop in chunks:
            yield chunks.saw_fields(self.scan_fields(start, stop)).payloads

    def scan(self, start: int, stop: int) -> list[StoredRow]:
        """The records of the examples in a range of positions; raises StoreError where one of them is missing."""
        rows = self.store.backend.scan(self.number, start, stop)
        self._check(len(rows), min(stop, self.header.count) - start)
        return rows

    def scan_fields(self, start: int, stop: int) -> ScannedFields:
        """The same by field, which is cheaper for many."""
        fields = self.store.backend.scan_fields(self.number, start, stop)
        self._check(len(fields.positions), min(stop, self.header.count) - start)
        return fields

    def scan_at(self, positions: Sequence[int]) -> list[StoredRow]:
        """The same, of the examples at some positions."""
        rows = self.store.backend.scan_at(self.number, positions)
        self._check(len(rows), len({each for each in positions if 0 <= each < self.header.count}))
        return rows

    def _check(self, found: int, expected: int) -> None:
        if found < expected:
            raise _incomplete(self, f"{expected - found:,} examples are missing")

    def to_dict(self) -> dict[str, Any]:
        """All fields of its header."""
        return {
            "kind": "dataset",
            **msgspec.to_builtins(self.header),
            "name": self.name,
            "version": self.version,
        }

    def __repr__(self) -> str:
        return f"<dataset {self.label} {self.id}: {plural(len(self), 'example')}>"

    def _repr_html_(self) -> str:
        title = f"dataset {self.label}: {plural(len(self), 'example')}"
        return as_html(
            [Paragraph(Styled(title, "bold")), example_table(islice(self, SHOWN)), *_more(len(self))]
        )


SHOWN = 10
"""Rows that a notebook shows of a dataset, a run or an evaluation."""


def _more(total: int) -> list[Block]:
    return [Paragraph(f"and {total - SHOWN:,} more")] if total > SHOWN else []


def check_complete(handle: Run | Evaluation, found: int) -> None:
    """Raise StoreError where a scan of all records found fewer items than the header of something finished states.

    A flipped bit in an inner page of a database hides records without an error.
    """
    header = handle.header
    stated = header.counts.total - header.counts.pending
    if found < stated and header.finished is not None:
        raise _incomplete(handle, f"{found:,} of its {stated:,} records can be read")


def _incomplete(handle: StoredDataset | Run | Evaluation, what: str) -> StoreError:
    backend = handle.store.backend
    if backend.header(handle.number) is None:
        return StoreError(f"{handle.id} was removed from {backend.url} while it was read")
    return StoreError(f"{handle.id} in {backend.url} is damaged: {what}; {restore_from_copy()}")


class _Identified(msgspec.Struct):
    id: str


class _Stated(msgspec.Struct):
    status: Status = "running"


class _Handle(Tabular):
    """A header in a store."""

    kind: str

    def __init__(self, store: Store, number: int, header: Any) -> None:
        self.store = store
        self.number = number
        self.header = header
        self.notice = ""
        """What happened when it was asked for: created, continued, or returned as it was."""

    @property
    def id(self) -> str:
        """The id in the store."""
        return str(self.header.id)

    @property
    def labels(self) -> list[str]:
        """Short names to find it by."""
        return list(self.header.labels)

    @property
    def counts(self) -> Counts:
        """The number of items that are ok, failed, skipped and pending."""
        counts: Counts = self.header.counts
        return counts

    @property
    def status(self) -> Status:
        """`running`, `interrupted` (no live process works on it), `success`, `partial`, `no_data` or `fatal_error`."""
        status: Status = self.header.status
        backend = self.store.backend
        if status != "running" or holder_of(backend, self.number) is not None:
            return status
        row = backend.header(self.number)  # its process may have finished it since it was read
        now = RecordDecoder(_Stated).decode(row.payload).status if row is not None else status
        return "interrupted" if now == "running" else now

    def to_dict(self) -> dict[str, Any]:
        """All fields of its header."""
        header = msgspec.to_builtins(self.header)
        return {"kind": self.kind, **header, "status": self.status, "counts": self.header.counts.to_dict()}

    def __repr__(self) -> str:
        return f"<{self.kind} {self.id}: {self.status}, {self.counts.ok} ok of {self.counts.total}>"

    def _repr_html_(self) -> str:
        title = Styled(f"{self.kind} {self.id}: {self.status}", "bold")
        return as_html([Paragraph(title), Paragraph(counts_text(self.counts)), *self._content()])

    def _content(self) -> list[Block]:
        """Return the content for a notebook."""
        raise NotImplementedError


class Run(_Handle):
    """One task over one dataset."""

    kind = "run"
    header: RunHeader

    @property
    def dataset(self) -> StoredDataset:
        """The dataset of the run."""
        return self.store.datasets.get(self.header.dataset)

    def selection(self, count: int) -> range:
        """The positions that the run selects from a dataset with `count` examples."""
        limit, offset = self.header.limit, self.header.offset
        return range(offset, count if limit is None else max(offset, min(count, offset + limit)))

    def rows(self) -> Iterator[Row]:
        """Each item with its example, in dataset order; pending ones too."""
        return run_rows(self)

    def batches(self) -> Iterator[Batch]:
        """The rows as Arrow arrays, some thousands at a time."""
        from karat.store.arrow import row_batches

        return row_batches(self)

    def _content(self) -> list[Block]:
        return [*row_tables(list(islice(self.rows(), SHOWN))), *_more(self.counts.total)]

    def outputs(self, *, history: bool = False) -> Iterator[Output]:
        """The current output of every item in dataset order; with `history`, all tries."""
        return _records(self, RecordDecoder(Output).decode, history)

    records = outputs


class Evaluation(_Handle):
    """Evaluators over one or more runs."""

    kind = "evaluation"
    header: EvaluationHeader

    @property
    def runs(self) -> list[Run]:
        """The runs that were evaluated."""
        return [self.store.runs.get(each) for each in self.header.runs]

    @property
    def dataset(self) -> StoredDataset:
        """The dataset of the runs."""
        return self.store.datasets.get(self.header.dataset)

    def rows(self) -> Iterator[Row]:
        """Each item with its example, its output and its results, in dataset order; missing ones too."""
        return evaluation_rows(self)

    def batches(self) -> Iterator[Batch]:
        """The rows as Arrow arrays, some thousands at a time."""
        from karat.store.arrow import row_batches

        return row_batches(self)

    def _content(self) -> list[Block]:
        rows = list(islice(self.rows(), SHOWN + 1))
        more: list[Block] = [Paragraph("and more: rows() has all of them")] if len(rows) > SHOWN else []
        return [*row_tables(rows[:SHOWN], self.header.evaluators), *more]

    def results(self, *, history: bool = False) -> Iterator[ItemResult]:
        """The current result of every item in dataset order; with `history`, all tries."""
        return _records(self, RecordDecoder(ItemResult).decode, history)

    records = results


class Aggregation(_Handle):
    """Aggregators over one or more evaluations."""

    kind = "aggregation"
    header: AggregationHeader

    def to_dict(self) -> dict[str, Any]:
        """Return the whole aggregation as a dict; every estimate has every field."""
        estimates = [msgspec.structs.asdict(each) for each in self.header.estimates]
        tables = [msgspec.structs.asdict(each) for each in self.header.tables]
        return {**super().to_dict(), "estimates": estimates, "tables": tables}

    def batches(self) -> Iterator[Batch]:
        """The estimates as Arrow arrays."""
        from karat.store.arrow import record_batches

        return record_batches(map(msgspec.structs.asdict, self.header.estimates))

    @property
    def evaluations(self) -> list[Evaluation]:
        """The evaluations that were aggregated."""
        return [self.store.evaluations.get(each) for each in self.header.evaluations]

    @property
    def runs(self) -> list[Run]:
        """The runs that were evaluated."""
        ids = [run for each in self.evaluations for run in each.header.runs]
        return [self.store.runs.get(each) for each in dict.fromkeys([*ids, *self.header.runs])]

    @property
    def estimates(self) -> Estimates:
        """Every number with its interval, its denominator and what it is about."""
        return Estimates(self.header.estimates)

    @property
    def tables(self) -> list[AggregateTable]:
        """Everything computed that is not a single number, such as a confusion matrix."""
        return self.header.tables

    def report(self, *, whole: bool = False) -> str:
        """Return the estimates as a table for a terminal: the first of each aggregator, or all."""
        return as_text(self.blocks(None if whole else MOST_NUMBERS))

    def _content(self) -> list[Block]:
        return self.blocks()

    def blocks(self, most: int | None = MOST_NUMBERS) -> list[Block]:
        """The headline and the estimates, at most so many of each aggregator; several runs have their labels."""
        from karat.store.run_labels import run_labels

        found = {run.id: run.header for run in self.runs}
        labels = run_labels(list(found.values())) if len(found) > 1 else {}
        specs = [spec for each in self.evaluations for spec in each.header.evaluators]
        lower = {spec.key for spec in specs if not spec.higher_is_better}
        return aggregation_blocks(self.header, labels, self.store.command, most, lower)


def _records(handle: Run | Evaluation, decode: Callable[[bytes], Any], history: bool) -> Iterator[Any]:
    backend, number, found = handle.store.backend, handle.number, 0
    chunks = Chunks(0, backend.extent(number))
    for start, stop in chunks:
        rows = chunks.saw(backend.scan(number, start, stop))
        for row in rows if history else latest(rows):
            found += 1
            yield decode(row.payload)
    check_complete(handle, found)
