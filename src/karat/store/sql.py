"""The backend interface in SQL that SQLite and PostgreSQL share; what differs is left to each of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from karat.errors import RequestError, StoreError
from karat.store.backend import OK, REUSED, HeaderRow, LeaseRow, Mark, Row, item_order

_HEADER = "number, kind, id, configuration, created, finished, payload"
_RANGE = (
    " FROM karat_rows WHERE parent = ? AND position >= ? AND position < ? ORDER BY position, item, try_number"
)
_COUNTS = "SELECT status, count(*), max(try_number) FROM karat_rows r WHERE parent = ?{} GROUP BY status"
_LATEST = (
    " AND NOT EXISTS (SELECT 1 FROM karat_rows l WHERE l.parent = r.parent AND"
    " l.position = r.position AND l.item = r.item AND l.try_number > r.try_number)"
)
_KEYS_AT_ONCE = 500
_position = itemgetter(0)


class SqlBackend:
    """Everything but connecting, the types of a dialect and the errors of a driver."""

    url: str
    commits_briefly = False
    shared = True

    _failures: tuple[type[Exception], ...]
    """What the driver raises."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    # What a dialect provides -------------------------------------------------

    def _begin(self) -> Any:
        """Starts a write transaction and returns a cursor in it."""
        raise AssertionError("a dialect provides this")

    def _rollback(self) -> None:
        """Ends a failed transaction as if it had never been; raises nothing of the driver's."""
        raise AssertionError("a dialect provides this")

    def _fetch(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        raise AssertionError("a dialect provides this")

    def _sql(self, sql: str) -> str:
        return sql

    def _reason(self, error: Exception) -> str:
        return str(error)

    def _one_at_a_time(self, cursor: Any) -> None:
        """Waits, inside a transaction, for others that add, delete or name headers."""

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

    def _not_written(self, error: Exception) -> StoreError:
        return StoreError(f"the store {self.url} cannot be written: {self._reason(error)}")

    def _read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            try:
                return self._fetch(self._sql(sql), parameters)
            except self._failures as error:
                raise StoreError(f"the store {self.url} cannot be read: {self._reason(error)}") from error

    # Rows --------------------------------------------------------------------

    def append(self, parent: int, rows: Sequence[Row]) -> int:
        raise AssertionError("a dialect provides this")

    def _removed(self) -> StoreError:
        return StoreError(f"what is being appended to was removed from {self.url}: start it again")

    def scan(self, parent: int, start: int, stop: int) -> list[Row]:
        found = self._read(
            f"SELECT position, item, try_number, status, reuse, payload{_RANGE}",
            (parent, start, stop),
        )
        text, make = _Texts(), Row._make
        rows = [make((p, text[i], t, s, r, d)) for p, i, t, s, r, d in found]
        if len(set(map(_position, rows))) < len(rows):
            rows.sort(key=lambda row: (row.position, item_order(row.item), row.try_number))
        return rows

    def marks(self, parent: int, start: int, stop: int) -> list[Mark]:
        found = self._read(
            f"SELECT position, item, try_number, status{_RANGE}",
            (parent, start, stop),
        )
        text, make = _Texts(), Mark._make
        return [make((p, text[i], t, s)) for p, i, t, s in found]

    def extent(self, parent: int) -> int:
        found = self._read("SELECT max(position) FROM karat_rows WHERE parent = ?", (parent,))
        return 0 if found[0][0] is None else int(found[0][0]) + 1

    def counts(self, parent: int) -> dict[int, int]:
        found = self._read(_COUNTS.format(""), (parent,))
        if any(tries > 1 for _, _, tries in found):
            found = self._read(_COUNTS.format(_LATEST), (parent,))
        return {int(status): int(count) for status, count, _ in found}

    def reusable(self, keys: Sequence[bytes]) -> dict[bytes, tuple[int, bytes]]:
        out: dict[bytes, tuple[int, bytes]] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            part = keys[start : start + _KEYS_AT_ONCE]
            sql = (
                f"SELECT reuse, parent, payload FROM karat_rows WHERE reuse IN ({', '.join('?' * len(part))})"  # noqa: S608 - only marks
                f" AND status IN ({OK}, {REUSED}) ORDER BY parent, position"
            )
            for reuse, parent, payload in self._read(sql, list(part)):
                out.setdefault(reuse, (int(parent), payload))
        return out

    # Headers -----------------------------------------------------------------

    def insert_header(
        self, header: HeaderRow, parents: Sequence[str], lease: LeaseRow | None, siblings: int | None = None
    ) -> int | None:
        with self._transaction() as cursor:
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
                    " owner, host, process, process_started, since, heartbeat)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
                ),
                (*header[1:], *(lease or (None,) * 6)),
            )
            for parent in dict.fromkeys(parents):
                cursor.execute(
                    self._sql("INSERT INTO karat_links VALUES (?, ?) ON CONFLICT DO NOTHING"),
                    (header.id, parent),
                )
            cursor.execute(self._sql("SELECT number FROM karat_headers WHERE id = ?"), (header.id,))
            return int(cursor.fetchone()[0])

    def update_header(
        self, number: int, payload: bytes, finished: float | None, owner: str | None = None
    ) -> bool:
        given_back = "" if finished is None else ", owner = NULL"
        held_by, whose = ("", ()) if owner is None else (" AND owner = ?", (owner,))
        with self._transaction() as cursor:
            cursor.execute(
                self._sql(
                    f"UPDATE karat_headers SET payload = ?, finished = ?{given_back} WHERE number = ?{held_by}"  # noqa: S608 - no value in it
                ),
                (payload, finished, number, *whose),
            )
            return int(cursor.rowcount) == 1

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
        rows = self._read(f"SELECT {_HEADER} FROM karat_headers {where}", parameters)  # noqa: S608 - no value in it
        return [HeaderRow._make(row) for row in rows]

    def links(self, *, child: str | None = None, parent: str | None = None) -> list[str]:
        if child is not None:
            rows = self._read("SELECT parent FROM karat_links WHERE child = ? ORDER BY parent", (child,))
        else:
            rows = self._read("SELECT child FROM karat_links WHERE parent = ? ORDER BY child", (parent,))
        return [row[0] for row in rows]

    def delete(self, ids: Sequence[str]) -> list[str]:
        with self._transaction() as cursor:
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
                cursor.execute(self._sql("DELETE FROM karat_links WHERE child = ?"), (id,))
        return []

    def _children(self, cursor: Any, id: str) -> list[str]:
        cursor.execute(self._sql("SELECT child FROM karat_links WHERE parent = ? ORDER BY child"), (id,))
        return [row[0] for row in cursor.fetchall()]

    def name_dataset(self, name: str, dataset: str) -> int:
        of_name = (as_bytes(name),)
        with self._transaction() as cursor:
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
        return self._lease_changed(
            "owner = ?, host = ?, process = ?, process_started = ?, since = ?, heartbeat = ?",
            lease,
            number,
            from_owner,
        )

    def beat(self, number: int, owner: str, heartbeat: float) -> bool:
        return self._lease_changed("heartbeat = ?", (heartbeat,), number, owner)

    def release(self, number: int, owner: str) -> None:
        self._lease_changed("owner = NULL", (), number, owner)

    def _lease_changed(self, change: str, values: Sequence[Any], number: int, owner: str | None) -> bool:
        """Changes a lease that `owner` (None: nobody) has, and says whether it was so."""
        held_by = "owner IS NULL" if owner is None else "owner = ?"
        with self._transaction() as cursor:
            cursor.execute(
                self._sql(f"UPDATE karat_headers SET {change} WHERE number = ? AND {held_by}"),  # noqa: S608 - no value in it
                (*values, number, *(() if owner is None else (owner,))),
            )
            return int(cursor.rowcount) == 1

    # The integrity of what is stored --------------------------------------------

    def check(self) -> list[str]:
        rows = self._read(
            "SELECT count(*) FROM karat_rows WHERE parent NOT IN (SELECT number FROM karat_headers)"
        )[0][0]
        links = self._read(
            "SELECT count(*) FROM karat_links WHERE child NOT IN (SELECT id FROM karat_headers)"
            " OR parent NOT IN (SELECT id FROM karat_headers)"
        )[0][0]
        found = {"rows": rows, "links": links}
        return [f"{count:,} {what} belong to no header" for what, count in found.items() if count]


class _Texts(dict[bytes, str]):
    """Items of one scan as text, each decoded once: most scans see very few different ones."""

    def __missing__(self, key: bytes) -> str:
        text = self[key] = _text(key)
        return text


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


def as_bytes(value: str) -> bytes:
    """A name or an item as it is kept: a text column of PostgreSQL cannot hold NUL, nor half a surrogate pair."""
    return value.encode("utf-8", "surrogatepass")
