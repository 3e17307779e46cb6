"""Rows of a dataset, a run or an evaluation for a person: filtered, sorted, a page at a time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from karat.analysis.filters import FIELDS, All, Filter, FilterError, TextSearch, parse, row_values
from karat.errors import did_you_mean
from karat.records import Example
from karat.store.backend import FAILED, SKIPPED, RecordDecoder
from karat.store.columns import load_columns
from karat.store.handles import Evaluation, Run, StoredDataset
from karat.store.rows import POSITIONS_AT_ONCE, Row, evaluation_rows, run_rows

Rows = StoredDataset | Run | Evaluation

MOST_FIELDS = 1000
"""Names of metadata fields that are remembered for messages."""


class RowPage(msgspec.Struct, frozen=True):
    """Some of the rows that match."""

    rows: list[Row]
    first: int
    """The place of the first of them among those that match, from 0."""
    matched: int | None = None
    """How many rows match; None where that would need reading all of them."""


def make_filter(where: str | None, grep: str | None) -> Filter | None:
    """The filter of `--where` and `--grep`; None without either."""
    parts = []
    if where is not None:
        parts.append(parse(where).expression)
    if grep is not None:
        parts.append(TextSearch(grep))
    if not parts:
        return None
    return Filter(" ".join(filter(None, [where, grep])), All(tuple(parts)))


def read_page(
    handle: Rows,
    *,
    where: Filter | None = None,
    failed: bool = False,
    sort: str | None = None,
    first: int = 0,
    count: int = 20,
) -> RowPage:
    """Read a page of rows. Without a filter and a sort order, no more rows are read than are returned.

    `sort` is a field of the filter grammar, lowest first; with a minus before it, highest first. `failed` keeps the
    rows whose output or one of whose results failed or was skipped.
    """
    if where is not None or sort is not None or failed:
        if isinstance(handle, Run):
            return _page_by_columns(handle, evaluations_of(handle), where, failed, sort, first, count)
        if isinstance(handle, Evaluation) and len(handle.header.runs) == 1 and _judges_single(handle):
            return _page_by_columns(handle.runs[0], [handle], where, failed, sort, first, count)
    rows = _rows(handle, _failed_positions(handle) if failed else _narrowed(handle, where, sort))
    if where is None and sort is None:
        if failed:
            rows = (row for row in rows if has_failed(row))
        before = sum(1 for _ in islice(rows, first))
        page = list(islice(rows, count))
        more = next(rows, None) is not None
        known = None if failed else _row_count(handle)
        return RowPage(page, first, known if more else before + len(page))
    names = _Names()
    matching = (
        row
        for row in names.seen(rows)
        if (not failed or has_failed(row)) and (where is None or where.matches(row))
    )
    page, matched = _sorted(matching, sort, first, count) if sort else _counted(matching, first, count)
    names.check(where, sort)
    return RowPage(page, first, matched)


def _page_by_columns(
    run: Run,
    evaluations: list[Evaluation],
    where: Filter | None,
    failed: bool,
    sort: str | None,
    first: int,
    count: int,
) -> RowPage:
    """A page of the rows of a run that columns select; only the records of the page are read, or all for a text."""
    import numpy as np

    from karat.analysis.tables import RunTable, joined_rows

    table = RunTable(run, evaluations)
    table.text_seconds = math.inf  # whoever waits for it can interrupt it
    mask = np.ones(len(table), bool)
    if failed:
        mask &= table.failing()
    if where is not None:
        mask &= where.mask(table)
    chosen = np.flatnonzero(mask)
    if sort is not None:
        chosen = table.order(sort, chosen)
    page = chosen[first : first + count]
    found = joined_rows(table, page)
    return RowPage([found[row] for row in page.tolist()], first, len(chosen))


def _row_count(handle: Rows) -> int | None:
    """How many rows there are, as far as that is known without reading them."""
    if isinstance(handle, StoredDataset):
        return len(handle)
    if isinstance(handle, Run):
        return handle.counts.total
    return sum(run.counts.total for run in handle.runs) if _judges_single(handle) else None


def _judges_single(evaluation: Evaluation) -> bool:
    """Whether all its evaluators judge single outputs."""
    return all(spec.kind == "single" for spec in evaluation.header.evaluators)


def has_failed(row: Row) -> bool:
    """Whether its output, or a result, failed or was skipped because of a failure."""
    return row.status in ("failed", "skipped") or any(
        judged.status in ("failed", "skipped") for judged in row.results.values()
    )


def evaluations_of(run: Run) -> list[Evaluation]:
    """The evaluations of a run, oldest first, without those that a newer one replaces."""
    found = [run.store.get(each) for each in run.store.children(run.id)]
    evaluations = sorted(
        (each for each in found if isinstance(each, Evaluation)), key=lambda each: each.header.created
    )
    covered: set[str] = set()
    needed = []
    for each in reversed(evaluations):
        keys = {spec.key for spec in each.header.evaluators if spec.kind == "single"}
        if keys - covered:
            covered |= keys
            needed.append(each)
    return needed[::-1]


def _rows(handle: Rows, positions: Sequence[int] | None) -> Iterator[Row]:
    """The rows of some examples, or of all."""
    if isinstance(handle, StoredDataset):
        for example in handle if positions is None else _examples_at(handle, positions):
            yield Row(
                id=example.id,
                input=example.input,
                expected=example.expected,
                metadata=example.metadata,
                run="",
                run_label="",
                status="",
            )
        return
    if isinstance(handle, Run):
        yield from run_rows(handle, evaluations_of(handle), positions)
    else:
        yield from evaluation_rows(handle, positions)


def _examples_at(data: StoredDataset, positions: Sequence[int]) -> Iterator[Example]:
    decode = RecordDecoder(Example).decode
    for start in range(0, len(positions), POSITIONS_AT_ONCE):
        for row in data.scan_at(positions[start : start + POSITIONS_AT_ONCE]):
            yield decode(row.payload)


def _narrowed(handle: Rows, where: Filter | None, sort: str | None) -> list[int] | None:
    """The positions that a text leaves. None without one, and where another field has to be looked for in all rows."""
    fields = [*(where.fields if where else ()), *([sort.removeprefix("-")] if sort else ())]
    if where is None or any(field not in FIELDS for field in fields):
        return None
    from karat.analysis.text_search import candidate_positions  # loads NumPy

    if isinstance(handle, Evaluation):
        return candidate_positions([handle.runs[0].dataset, *handle.runs, handle], where)
    return candidate_positions([handle], where)


def _failed_positions(handle: Rows) -> list[int] | None:
    """The positions of examples with a failed or skipped item; None for all."""
    import numpy as np

    if not isinstance(handle, Evaluation):
        return None

    columns = load_columns(handle, ())
    found: list[int] = np.unique(columns.positions[np.isin(columns.statuses, (FAILED, SKIPPED))]).tolist()
    return found


def _counted(rows: Iterator[Row], first: int, count: int) -> tuple[list[Row], int]:
    """Return a page of rows in their order, and the number of all rows."""
    page, place = [], -1
    for place, row in enumerate(rows):
        if first <= place < first + count:
            page.append(row)
    return page, place + 1


def _sorted(rows: Iterator[Row], sort: str, first: int, count: int) -> tuple[list[Row], int]:
    """A page of rows by a field; rows without a value come last. Memory grows with the pages before it."""
    field, down = sort.removeprefix("-"), sort.startswith("-")
    matched = 0

    def keyed() -> Iterator[tuple[tuple[Any, ...], int, Row]]:
        nonlocal matched
        for row in rows:
            values = [value for value in row_values(field, row) if value is not None]
            yield _sort_key(values, down), matched, row
            matched += 1

    best = heapq.nsmallest(first + count, keyed(), key=lambda each: each[:2])
    return [row for _, _, row in best[first:]], matched


def _sort_key(values: list[Any], down: bool) -> tuple[Any, ...]:
    numbers = [float(value) for value in values if isinstance(value, (int, float))]
    if numbers:
        return (0, -max(numbers) if down else min(numbers), "")
    if values:
        text = str(values[0])
        return (1, 0.0, tuple(-ord(c) for c in text) if down else tuple(map(ord, text)))
    return (2, 0.0, "")


class _Names:
    """The field names of rows, to suggest the nearest one for an unknown field in a filter."""

    def __init__(self) -> None:
        self._metadata: dict[str, None] = {}
        self._keys: set[str] = set()

    def seen(self, rows: Iterator[Row]) -> Iterator[Row]:
        """The same rows."""
        for row in rows:
            if len(self._metadata) < MOST_FIELDS:
                self._metadata.update(dict.fromkeys(row.metadata))
            self._keys.update(row.results)
            yield row

    def check(self, where: Filter | None, sort: str | None) -> None:
        """Raise where a filter or sort order names a field that no row has."""
        known = [*self._keys, *self._metadata]
        if where is not None:
            where.check(known)
        if sort is not None:
            field = sort.removeprefix("-")
            try:
                parse(f"{field}:none").check(known)
            except FilterError:
                raise FilterError(
                    f"cannot sort by {field!r}: {did_you_mean(field, [*SORTABLE, *known])}"
                ) from None


SORTABLE = ("id", "status", "score", "seconds", "cost", "attempt", "run")
