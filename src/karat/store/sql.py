"""The backend interface in the SQL that SQLite and PostgreSQL share; each dialect adds what differs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from typing import Any, TypeVar
from zlib import crc32

from karat.errors import RequestError, StoreBusy, StoreError, TookTooLong, plural, wait_or_new
from karat.store.backend import (
    OK,
    REUSED,
    HeaderRow,
    LeaseRow,
    Mark,
    ScannedFields,
    StoredRow,
    TextPattern,
    checksum,
    item_order,
    restore_from_copy,
)

_HEADER = "number, kind, id, configuration, created, finished, payload"
_ROWS = " FROM karat_rows WHERE parent = ? AND position >= ? AND position < ?"
_ORDER = " ORDER BY position, item, try_number"
_RANGE = _ROWS + _ORDER
_COUNTS = "SELECT status, count(*), max(try_number) FROM karat_rows r WHERE parent = ?{} GROUP BY status"
_LATEST = (
    " AND NOT EXISTS (SELECT 1 FROM karat_rows l WHERE l.parent = r.parent AND"
    " l.position = r.position AND l.item = r.item AND l.try_number > r.try_number)"
)
_KEYS_AT_ONCE = 500
_SPARSE = 16
"""Positions further apart than this are looked up one by one; nearer ones are read together."""
MOST_PROBLEMS = 20
"""Damaged records that are listed one by one."""

T = TypeVar("T")

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
"""When reading has to end, by the monotonic clock; of this thread or task, because connections are shared."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let every read in this context raise `TookTooLong` when so many seconds have passed, also within a query."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def has_time_limit() -> bool:
    """Whether reading has to end at some time."""
    return _deadline.get() is not None


def check_time_limit() -> None:
    """Raise `TookTooLong` where the time has passed: for computations between reads, step by step."""
    deadline = _deadline.get()
    if deadline is not None and time.monotonic() > deadline:
        raise _took_too_long()


def _took_too_long() -> TookTooLong:
    return TookTooLong("reading the store timed out: narrow the request")


class SqlBackend:
    """Everything but connecting, the types of a dialect and the errors of a driver."""

    url: str
    commits_briefly = False
    shared = True

    _failures: tuple[type[Exception], ...]
    """What the driver raises."""
    _checksum = "checksum"
    """The column; NULL in a store of schema 1 that cannot be upgraded because it is read-only."""
    _keeps_columns = True
    """False in a store of schema 1 or 2 that cannot be upgraded because it is read-only."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    # What a dialect provides -------------------------------------------------

    def _begin(self) -> Any:
        """Start a write transaction and return a cursor in it."""
        raise AssertionError("a dialect provides this")

    def _rollback(self) -> None:
        """Roll back a failed transaction; raises no error of the driver."""
        raise AssertionError("a dialect provides this")

    def _fetch(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        raise AssertionError("a dialect provides this")

    def _sql(self, sql: str) -> str:
        return sql

    def _matches(self, pattern: TextPattern) -> tuple[str, list[str]]:
        """A condition on `payload` that holds where it matches a pattern, and its parameters."""
        raise AssertionError("a dialect provides this")

    @contextmanager
    def _until(self, deadline: float) -> Iterator[None]:
        """Interrupt a query that is still running at the deadline."""
        yield

    def _reason(self, error: Exception) -> str:
        return str(error)

    def _one_at_a_time(self, cursor: Any) -> None:
        """Wait, inside a transaction, for other processes that add, delete or name headers."""

    # Transactions ------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A cursor inside a write transaction; commits at the end, rolls back on any error."""
        with self._lock:
            try:
                cursor = self._begin()
                try:
                    yield cursor
                    cursor.execute("COMMIT")
                except BaseException:
                    self._rollback()
                    raise
                finally:
                    cursor.close()
            except self._failures as error:
                raise self._not_written(error) from error

    def _write(self, work: Callable[[Any], T]) -> T:
        """Do `work` with the cursor of a write transaction. It may be done twice, where a server was lost."""
        with self._transaction() as cursor:
            return work(cursor)

    def _not_written(self, error: Exception) -> StoreError:
        return StoreError(f"the store {self.url} cannot be written: {self._reason(error)}")

    def _read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        deadline = _deadline.get()
        with self._lock:
            check_time_limit()
            try:
                if deadline is None:
                    return self._fetch(self._sql(sql), parameters)
                with self._until(deadline):
                    return self._fetch(self._sql(sql), parameters)
            except self._failures as error:
                if deadline is not None and time.monotonic() > deadline:
                    raise _took_too_long() from error
                raise StoreError(f"the store {self.url} cannot be read: {self._reason(error)}") from error

    # Rows --------------------------------------------------------------------

    def append(self, parent: int, rows: Sequence[StoredRow], owner: str | None = None) -> int:
        raise AssertionError("a dialect provides this")

    def is_replaced(self) -> bool:
        return False

    def ensure_present(self) -> None:
        """A server reports by itself that a database is gone."""

    def ensure_readable(self, number: int) -> None:
        """A server guards its files."""

    def _removed(self) -> StoreError:
        return StoreError(f"the records being written were removed from {self.url}: start again")

    def _taken_over(self, parent: int) -> StoreBusy:
        header, lease = self.header(parent), self.lease(parent)
        id = header.id if header is not None else "it"
        by = f"process {lease.process} on {lease.host}" if lease is not None else "another process"
        return StoreBusy(
            f"{id} was taken over by {by}, because this process did not renew its lease: {wait_or_new()}"
        )

    def scan(self, parent: int, start: int, stop: int) -> list[StoredRow]:
        rows, damaged = self._scan(parent, start, stop)
        if damaged:
            raise self._damaged_error(parent, plural(len(damaged), "record"))
        return rows

    def _damaged_error(self, parent: int, records: str = "records") -> StoreError:
        return StoreError(
            f"{self._name(parent)} in {self.url} has {records} with damaged content: {restore_from_copy()}"
        )

    def _scan(self, parent: int, start: int, stop: int) -> tuple[list[StoredRow], list[StoredRow]]:
        """All rows of a range, and those that do not match their checksum."""
        found = self._read(
            f"SELECT position, item, try_number, status, reuse, payload, {self._checksum}{_RANGE}",
            (parent, start, stop),
        )
        try:
            return self._checked(found)
        except _WRONG_TYPE:
            return self._checked_one_by_one(found)

    @staticmethod
    def _checked(found: Sequence[Any]) -> tuple[list[StoredRow], list[StoredRow]]:
        items, make = _Items(), tuple.__new__  # as `Row._make` does, which is a call of a Python function
        # `checksum` written out, because a call for each record is a fifth of the cost of a scan. A record of schema 1
        # has none.
        rows = [
            make(StoredRow, (p, item, t, s, r, d, None))
            for p, i, t, s, r, d, c in found
            for item, start in (items[i],)
            if c == crc32(d, (start + 64 * p + 8 * t + s) & 0xFFFFFFFF) or c is None
        ]
        damaged: list[StoredRow] = []
        if len(rows) < len(found):
            rows = [make(StoredRow, (p, items[i][0], t, s, r, d, None)) for p, i, t, s, r, d, _ in found]
            damaged = [
                row
                for row, (p, i, t, s, _, d, c) in zip(rows, found, strict=True)
                if c is not None and c != checksum(items[i][1], p, t, s, d)
            ]
        if not _are_in_order(text for text, _ in items.values()):
            rows.sort(key=lambda row: (row.position, item_order(row.item), row.try_number))
        return rows, damaged

    def _checked_one_by_one(self, found: Sequence[Any]) -> tuple[list[StoredRow], list[StoredRow]]:
        """The same where a column has content of another type: a flipped bit can change the type too."""
        rows: list[StoredRow] = []
        damaged: list[StoredRow] = []
        for each in found:
            try:
                good, bad = self._checked([each])
            except _WRONG_TYPE:
                good, bad = [], [StoredRow(each[0], "", 0, 0, None, b"")]
            rows += good
            damaged += bad
        return rows, damaged

    def marks(self, parent: int, start: int, stop: int) -> list[Mark]:
        return self._marks(parent, start, stop, "", ())

    def marks_matching(
        self, parent: int, start: int, stop: int, patterns: Sequence[TextPattern]
    ) -> list[Mark]:
        conditions: list[str] = []
        parameters: list[str] = []
        for pattern in patterns:
            condition, values = self._matches(pattern)
            conditions.append(condition)
            parameters += values
        return self._marks(parent, start, stop, f" AND ({' OR '.join(conditions) or '1 = 0'})", parameters)

    def _marks(
        self, parent: int, start: int, stop: int, condition: str, parameters: Sequence[str]
    ) -> list[Mark]:
        """The marks of a range; `condition` has a mark for each parameter, and no value."""
        found = self._read(
            f"SELECT position, item, try_number, status{_ROWS}{condition}{_ORDER}",
            (parent, start, stop, *parameters),
        )
        items, make = _Items(), Mark._make
        try:
            return [make((p, items[i][0], t, s)) for p, i, t, s in found]
        except _WRONG_TYPE:
            self.scan(parent, start, stop)  # raises
            raise

    def scan_fields(self, parent: int, start: int, stop: int) -> ScannedFields:
        # The try and the status in one number, as the checksum has them: each column of a row takes time.
        found = self._read(
            f"SELECT position, item, 8 * try_number + status, payload, {self._checksum}{_RANGE}",
            (parent, start, stop),
        )
        if not found:
            return ScannedFields((), (), (), ())
        positions, keys, codes, payloads, expected = zip(*found, strict=True)
        items = _Items()
        try:
            starts = [
                (items[key][1] + 64 * position + code) & 0xFFFFFFFF
                for key, position, code in zip(keys, positions, codes, strict=True)
            ]
            sound = tuple(map(crc32, payloads, starts)) == expected
        except _WRONG_TYPE:
            sound = False
        if not sound:
            self.scan(parent, start, stop)  # raises, unless the records are of schema 1 and have no checksum
        fields = ScannedFields(positions, keys, codes, payloads)
        if _are_in_order(text for text, _ in items.values()):
            return fields
        rows = zip(*fields, strict=True)
        ordered = sorted(rows, key=lambda row: (row[0], item_order(items[row[1]][0]), row[2]))
        return ScannedFields._make(zip(*ordered, strict=True))

    def scan_at(self, parent: int, positions: Sequence[int]) -> list[StoredRow]:
        rows: list[StoredRow] = []
        wanted = sorted(set(positions))
        at = 0
        while at < len(wanted):
            end = at + 1
            while end < len(wanted) and wanted[end] - wanted[end - 1] <= _SPARSE and end - at < _KEYS_AT_ONCE:
                end += 1
            chosen = set(wanted[at:end])
            found = self.scan(parent, wanted[at], wanted[end - 1] + 1)
            rows += [row for row in found if row.position in chosen]
            at = end
        return rows

    # Columns -----------------------------------------------------------------

    def has_columns(self, parent: int) -> bool:
        if not self._keeps_columns:
            return False
        found = self._read("SELECT columns FROM karat_headers WHERE number = ?", (parent,))
        return bool(found and found[0][0])

    def segments(self, parent: int, after: int = 0) -> Iterator[tuple[int, int, bytes]]:
        those = "FROM karat_columns WHERE parent = ? AND number > ?"
        sizes = f"SELECT number, records {those} ORDER BY number LIMIT 500"
        sql = f"SELECT number, records, payload, checksum {those} AND number <= ? ORDER BY number"
        while found := self._read(sizes, (parent, after)) if self._keeps_columns else []:
            # As many as have some ten thousand records together: a segment has from one to that many.
            sums = accumulate(int(records) for _, records in found)
            place = next((at for at, total in enumerate(sums) if total >= _SEGMENT_RECORDS), -1)
            last = int(found[place][0])
            for number, records, payload, expected in self._read(sql, (parent, after, last)):
                # `_is_sound` written out: a large store has some ten thousand segments.
                if not isinstance(payload, bytes) or crc32(payload) != expected:
                    raise StoreError(
                        f"the columns of {self._name(parent)} in {self.url} are damaged:"
                        f" {restore_from_copy()}"
                    )
                yield int(number), int(records), payload
            after = last

    def segment_count(self, parent: int) -> int:
        if not self._keeps_columns:
            return 0
        return int(self._read("SELECT count(*) FROM karat_columns WHERE parent = ?", (parent,))[0][0])

    def join_segments(self, parent: int, first: int, last: int, records: int, payload: bytes) -> None:
        those = "FROM karat_columns WHERE parent = ? AND number >= ? AND number"
        found = self._sql(f"SELECT coalesce(sum(records), 0) {those} <= ?")
        delete = self._sql(f"DELETE {those} < ?")
        update = self._sql("UPDATE karat_columns SET records = ?, payload = ?, checksum = ? WHERE number = ?")

        def work(cursor: Any) -> None:
            self._one_at_a_time(cursor)
            cursor.execute(found, (parent, first, last))
            if int(cursor.fetchone()[0]) == records:  # else they were deleted since
                cursor.execute(delete, (parent, first, last))
                cursor.execute(update, (records, payload, crc32(payload), last))

        self._write(work)

    def last_segment(self, parent: int) -> tuple[int, int]:
        if not self._keeps_columns:
            return 0, 0
        sql = "SELECT coalesce(max(number), 0), coalesce(sum(records), 0) FROM karat_columns WHERE parent = ?"
        number, records = self._read(sql, (parent,))[0]
        return int(number), int(records)

    def is_live(self) -> bool:
        kinds = "kind IN ('run', 'evaluation')"
        return bool(self._read(f"SELECT 1 FROM karat_headers WHERE finished IS NULL AND {kinds} LIMIT 1"))  # noqa: S608 - no value in it

    def version(self) -> int:
        newest = "(SELECT max(number) FROM karat_columns)" if self._keeps_columns else "0"
        found = self._read(
            f"SELECT {newest}, count(*), max(number), max(finished), sum(length(payload)) FROM karat_headers"  # noqa: S608 - no value in it
        )
        return crc32(repr(tuple(found[0])).encode())

    def _name(self, parent: int) -> str:
        header = self.header(parent)
        return header.id if header else "a header"

    def extent(self, parent: int) -> int:
        found = self._read("SELECT max(position) FROM karat_rows WHERE parent = ?", (parent,))
        return 0 if found[0][0] is None else int(found[0][0]) + 1

    def counts(self, parent: int) -> dict[int, int]:
        found = self._read(_COUNTS.format(""), (parent,))
        if not all(isinstance(each, int) for row in found for each in row):
            raise self._damaged_error(parent)
        if any(tries > 1 for _, _, tries in found):
            found = self._read(_COUNTS.format(_LATEST), (parent,))
        return {int(status): int(count) for status, count, _ in found}

    def reusable(self, keys: Sequence[bytes]) -> dict[bytes, tuple[int, bytes]]:
        out: dict[bytes, tuple[int, bytes]] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            part = keys[start : start + _KEYS_AT_ONCE]
            sql = (
                f"SELECT reuse, parent, position, item, try_number, status, payload, {self._checksum} FROM karat_rows"  # noqa: S608 - only marks
                f" WHERE reuse IN ({', '.join('?' * len(part))})"
                f" AND status IN ({OK}, {REUSED}) ORDER BY parent, position"
            )
            for reuse, parent, *row, payload, expected in self._read(sql, list(part)):
                # A copy gets a checksum of its own, which would confirm the damage of the original.
                if reuse not in out and (expected is None or _is_intact(row, payload, expected)):
                    out[reuse] = int(parent), payload
        return out

    # Headers -----------------------------------------------------------------

    def insert_header(
        self, header: HeaderRow, parents: Sequence[str], lease: LeaseRow | None, siblings: int | None = None
    ) -> int | None:
        def work(cursor: Any) -> int | None:
            self._one_at_a_time(cursor)
            for parent in parents:
                cursor.execute(self._sql("SELECT 1 FROM karat_headers WHERE id = ?"), (parent,))
                if cursor.fetchone() is None:
                    raise RequestError(f"{parent}, which {header.id} is made from, is not in {self.url}")
            cursor.execute(
                self._sql("SELECT count(*) FROM karat_headers WHERE kind = ? AND configuration = ?"),
                (header.kind, header.configuration),
            )
            if siblings is not None and cursor.fetchone()[0] != siblings:
                return None
            cursor.execute(
                self._sql(
                    "INSERT INTO karat_headers (kind, id, configuration, created, finished, payload,"
                    " owner, host, process, process_started, since, heartbeat, checksum, columns)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
                ),
                (*header[1:], *(lease or (None,) * 6), crc32(header.payload), 1),
            )
            for parent in dict.fromkeys(parents):
                cursor.execute(
                    self._sql("INSERT INTO karat_links VALUES (?, ?) ON CONFLICT DO NOTHING"),
                    (header.id, parent),
                )
            cursor.execute(self._sql("SELECT number FROM karat_headers WHERE id = ?"), (header.id,))
            return int(cursor.fetchone()[0])

        return self._write(work)

    def update_header(
        self,
        number: int,
        payload: bytes,
        finished: float | None,
        owner: str | None = None,
        replacing: bytes | None = None,
    ) -> bool:
        released = "" if finished is None else ", owner = NULL"
        # Released with the same content: the same update made twice, because a server was lost in between.
        held_by = "" if owner is None else " AND (owner = ? OR (owner IS NULL AND payload = ?))"
        values = [payload, finished, crc32(payload), number, *(() if owner is None else (owner, payload))]
        if replacing is not None:
            held_by += " AND payload IN (?, ?)"  # its new content: made twice, as above
            values += [replacing, payload]
        sql = self._sql(
            f"UPDATE karat_headers SET payload = ?, finished = ?, checksum = ?{released}"  # noqa: S608 - no value in it
            f" WHERE number = ?{held_by}"
        )

        def work(cursor: Any) -> bool:
            cursor.execute(sql, values)
            return int(cursor.rowcount) == 1

        return self._write(work)

    def headers(
        self, kind: str | None = None, *, id_prefix: str | None = None, configuration: str | None = None
    ) -> list[HeaderRow]:
        where, parameters = ["1 = 1"], list[Any]()
        if kind is not None:
            where.append("kind = ?")
            parameters.append(kind)
        if configuration is not None:
            where.append("configuration = ?")
            parameters.append(configuration)
        if id_prefix is not None:
            if not (id_prefix.isascii() and id_prefix.isprintable()):
                return []  # ids are plain; PostgreSQL would refuse even to look for a NUL
            where.append("substr(id, 1, ?) = ?")
            parameters += [len(id_prefix), id_prefix]
        return self._header_rows(f"WHERE {' AND '.join(where)} ORDER BY number", parameters)

    def header(self, number: int) -> HeaderRow | None:
        rows = self._header_rows("WHERE number = ?", (number,))
        return rows[0] if rows else None

    def _header_rows(self, where: str, parameters: Sequence[Any]) -> list[HeaderRow]:
        columns = f"{_HEADER}, {self._checksum}"
        rows = self._read(f"SELECT {columns} FROM karat_headers {where}", parameters)  # noqa: S608 - no value in it
        for _, kind, id, configuration, _, _, payload, expected in rows:
            are_texts = isinstance(id, str) and isinstance(kind, str) and isinstance(configuration, str)
            if not are_texts or (expected is not None and not _is_sound(payload, expected)):
                raise StoreError(
                    f"the header of {id} in {self.url} has damaged content: {restore_from_copy()}"
                )
        return [HeaderRow._make(row[:-1]) for row in rows]

    def links(self, *, child: str | None = None, parent: str | None = None) -> list[str]:
        if child is not None:
            rows = self._read("SELECT parent FROM karat_links WHERE child = ? ORDER BY parent", (child,))
        else:
            rows = self._read("SELECT child FROM karat_links WHERE parent = ? ORDER BY child", (parent,))
        return [row[0] for row in rows]

    def delete(self, ids: Sequence[str]) -> list[str]:
        def work(cursor: Any) -> list[str]:
            self._one_at_a_time(cursor)
            made_from = {each: None for id in ids for each in self._children(cursor, id) if each not in ids}
            if made_from:
                return list(made_from)
            for id in ids:
                cursor.execute(self._sql("SELECT number FROM karat_headers WHERE id = ?"), (id,))
                for (number,) in cursor.fetchall():
                    # The header first: PostgreSQL lets an append hold it, and this waits for that append.
                    cursor.execute(self._sql("DELETE FROM karat_headers WHERE number = ?"), (number,))
                    cursor.execute(self._sql("DELETE FROM karat_rows WHERE parent = ?"), (number,))
                    cursor.execute(self._sql("DELETE FROM karat_columns WHERE parent = ?"), (number,))
                cursor.execute(self._sql("DELETE FROM karat_links WHERE child = ?"), (id,))
            return []

        return self._write(work)

    def _children(self, cursor: Any, id: str) -> list[str]:
        cursor.execute(self._sql("SELECT child FROM karat_links WHERE parent = ? ORDER BY child"), (id,))
        return [row[0] for row in cursor.fetchall()]

    def name_dataset(self, name: str, dataset: str) -> int:
        of_name = (as_bytes(name),)

        def work(cursor: Any) -> int:
            self._one_at_a_time(cursor)
            cursor.execute(self._sql("SELECT version, dataset FROM karat_names WHERE name = ?"), of_name)
            versions = {known: int(version) for version, known in cursor.fetchall()}
            if dataset not in versions:
                versions[dataset] = 1 + max(versions.values(), default=0)
                cursor.execute(
                    self._sql("INSERT INTO karat_names VALUES (?, ?, ?)"),
                    (*of_name, versions[dataset], dataset),
                )
            return versions[dataset]

        return self._write(work)

    def named(self, name: str | None = None, dataset: str | None = None) -> list[tuple[str, int, str]]:
        condition, parameters = "1 = 1", []
        if name is not None:
            condition, parameters = "name = ?", [as_bytes(name)]
        elif dataset is not None:
            condition, parameters = "dataset = ?", [dataset]  # type: ignore[list-item]  # one column or the other
        rows = self._read(
            f"SELECT name, version, dataset FROM karat_names WHERE {condition}"  # noqa: S608 - no value in it
            " AND dataset IN (SELECT id FROM karat_headers) ORDER BY name, version",
            parameters,
        )
        return [(_text(n), v, d) for n, v, d in rows]

    # Leases ------------------------------------------------------------------

    def lease(self, number: int) -> LeaseRow | None:
        rows = self._read(
            "SELECT owner, host, process, process_started, since, heartbeat FROM karat_headers"
            " WHERE number = ? AND owner IS NOT NULL",
            (number,),
        )
        return LeaseRow._make(rows[0]) if rows else None

    def take_lease(self, number: int, lease: LeaseRow, from_owner: str | None) -> bool:
        return self._change_lease(
            "owner = ?, host = ?, process = ?, process_started = ?, since = ?, heartbeat = ?",
            lease,
            number,
            # Ours already: the same change made twice, because a server was lost in between.
            "(owner IS NULL OR owner = ?)" if from_owner is None else "owner IN (?, ?)",
            (lease.owner,) if from_owner is None else (from_owner, lease.owner),
        )

    def beat(self, number: int, owner: str, heartbeat: float) -> bool:
        return self._change_lease("heartbeat = ?", (heartbeat,), number, "owner = ?", (owner,))

    def release(self, number: int, owner: str) -> None:
        self._change_lease("owner = NULL", (), number, "owner = ?", (owner,))

    def _change_lease(
        self, change: str, values: Sequence[Any], number: int, held_by: str, owners: Sequence[str]
    ) -> bool:
        """Change a lease while the right owner has it; False where another has."""
        sql = self._sql(f"UPDATE karat_headers SET {change} WHERE number = ? AND {held_by}")  # noqa: S608 - no value in it

        def work(cursor: Any) -> bool:
            cursor.execute(sql, (*values, number, *owners))
            return int(cursor.rowcount) == 1

        return self._write(work)

    # The integrity of what is stored --------------------------------------------

    def check(self) -> list[str]:
        rows = self._read(
            "SELECT count(*) FROM karat_rows WHERE parent NOT IN (SELECT number FROM karat_headers)"
        )[0][0]
        links = self._read(
            "SELECT count(*) FROM karat_links WHERE child NOT IN (SELECT id FROM karat_headers)"
            " OR parent NOT IN (SELECT id FROM karat_headers)"
        )[0][0]
        found = {"row": rows, "link": links}
        return [f"{plural(count, what)} without a header" for what, count in found.items() if count]

    def damaged(self) -> list[str]:
        from karat.store.handles import Chunks

        problems: list[str] = []
        columns = f"number, id, payload, {self._checksum}"
        headers = self._read(f"SELECT {columns} FROM karat_headers ORDER BY number")  # noqa: S608 - no value in it
        for number, id, payload, expected in headers:
            if expected is not None and not _is_sound(payload, expected):
                problems.append(f"the header of {id} has damaged content")
            found: list[StoredRow] = []
            chunks = Chunks(0, self.extent(number))
            for start, stop in chunks:
                rows, damaged = self._scan(number, start, stop)
                chunks.saw(rows)
                found += damaged
            try:
                for _ in self.segments(number):
                    pass
            except StoreError:
                problems.append(f"the columns of {id} have damaged content")
            if found:
                where = ", ".join(str(row.position) for row in found[:MOST_PROBLEMS])
                more = ", …" if len(found) > MOST_PROBLEMS else ""
                problems.append(
                    f"{id} has {plural(len(found), 'record')} with damaged content, at {where}{more}"
                )
        return problems


def like_pattern(pieces: Sequence[str]) -> str:
    """A pattern of LIKE with `!` as its escape: the pieces in their order, with anything around them."""
    return "%".join(["", *(re.sub("[!%_]", r"!\g<0>", piece) for piece in pieces), ""])


_SEGMENT_RECORDS = 1 << 15
"""Records of the segments that are read together."""
_WRONG_TYPE = (TypeError, ValueError, AttributeError, OverflowError)
"""What reading a column raises whose content is of another type than it was written."""


def _is_intact(row: Sequence[Any], payload: Any, expected: object) -> bool:
    """Whether a record, of which `row` has position, item, try and status, is as it was written."""
    position, item, try_number, status = row
    try:
        return checksum(crc32(item), position, try_number, status, payload) == expected
    except _WRONG_TYPE:
        return False


def _is_sound(payload: object, expected: object) -> bool:
    return isinstance(payload, bytes) and crc32(payload) == expected


class _Items(dict[bytes, tuple[str, int]]):
    """Items of one scan as text and checksum, each decoded once: most scans see very few different ones."""

    def __missing__(self, key: bytes) -> tuple[str, int]:
        found = self[key] = _text(key), crc32(key)
        return found


def _are_in_order(items: Iterable[str]) -> bool:
    """Whether the order of the database, by bytes, is `item_order`: it is unless numbers differ in length."""
    names = sorted(items)
    return names == sorted(names, key=item_order)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


def as_bytes(value: str) -> bytes:
    """Return a name in its stored form: PostgreSQL text cannot hold NUL or a lone surrogate."""
    return value.encode("utf-8", "surrogatepass")
