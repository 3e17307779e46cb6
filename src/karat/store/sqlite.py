"""The embedded store: one SQLite file in WAL mode (or memory), one connection, commits in groups.

`synchronous=NORMAL`: a process that dies, by any signal, loses nothing that was committed; a machine that
loses power may lose its last commits but not the file. `?synchronous=full` in the URL buys those too.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from karat.errors import KaratError, StoreError, StoreRefused
from karat.store.backend import SCHEMA, Row
from karat.store.sql import SqlBackend, as_bytes

APPLICATION = 0x6B617261
"""`kara`, in the field of the file's header that says whose file it is."""

TABLES = [
    # AUTOINCREMENT: a number must never come to mean another run while somebody still appends to the old one.
    """CREATE TABLE karat_headers (
        number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, id TEXT NOT NULL UNIQUE,
        configuration TEXT NOT NULL, created REAL NOT NULL, finished REAL, payload BLOB NOT NULL,
        owner TEXT, host TEXT, process INTEGER, process_started REAL, since REAL, heartbeat REAL)""",
    "CREATE INDEX karat_headers_configuration ON karat_headers (kind, configuration)",
    """CREATE TABLE karat_links (
        child TEXT NOT NULL, parent TEXT NOT NULL, PRIMARY KEY (child, parent)) WITHOUT ROWID""",
    "CREATE INDEX karat_links_parent ON karat_links (parent)",
    """CREATE TABLE karat_names (
        name BLOB NOT NULL, version INTEGER NOT NULL, dataset TEXT NOT NULL,
        PRIMARY KEY (name, version), UNIQUE (name, dataset)) WITHOUT ROWID""",
    """CREATE TABLE karat_rows (
        parent INTEGER NOT NULL, position INTEGER NOT NULL, item BLOB NOT NULL, try_number INTEGER NOT NULL,
        status INTEGER NOT NULL, reuse BLOB, payload BLOB NOT NULL,
        PRIMARY KEY (parent, position, item, try_number)) WITHOUT ROWID""",
    "CREATE INDEX karat_rows_reuse ON karat_rows (reuse) WHERE reuse IS NOT NULL",
]
"""The tables of the newest schema."""

UPGRADES: dict[int, list[str]] = {}
"""Schema n → the statements that make it n + 1."""

BUSY_SECONDS = 60.0
"""How long one process waits for another's commit."""

SMALLEST_BYTES = 512
"""SQLite takes anything shorter for an empty file, and would write over it."""

ROWS_AT_ONCE = 16
"""Rows in one statement: 1.3 × the rate of executemany, which makes one for each; more bring no more, and a statement
for what is left over takes longer to prepare."""

_COLUMNS = 7


@functools.cache
def _append(count: int) -> str:
    row = f"({', '.join('?' * _COLUMNS)})"
    return f"INSERT INTO karat_rows VALUES {', '.join([row] * count)} ON CONFLICT DO NOTHING"  # noqa: S608 - only marks


class SqliteBackend(SqlBackend):
    """A SQLite file. `path=None` keeps everything in memory, for this process only."""

    commits_briefly = True
    _failures = (sqlite3.Error,)

    def __init__(self, path: Path | None, *, synchronous: str = "NORMAL") -> None:
        super().__init__()
        self.path = path
        self.shared = path is not None
        self.url = "memory://" if path is None else f"sqlite:///{quote(os.fsencode(path))}"
        if path is not None:
            _refuse_what_is_no_store(path)
        try:
            self._connection = _connect(":memory:" if path is None else path)
        except sqlite3.Error as error:
            raise _refusal(path, error) from error
        try:
            self._prepare(synchronous)
        except sqlite3.Error as error:
            self._connection.close()
            raise _refusal(path, error) from error
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, synchronous: str) -> None:
        execute = self._connection.execute
        if self.path is not None:
            _write_ahead(self._connection, self.path)
        execute(f"PRAGMA synchronous = {synchronous}")
        execute("PRAGMA cache_size = -8192")
        execute("PRAGMA temp_store = MEMORY")
        if execute("PRAGMA user_version").fetchone()[0] == SCHEMA:
            return
        with self._transaction() as cursor:
            # Asked again: another process may have made or upgraded the tables while this one waited.
            version = cursor.execute("PRAGMA user_version").fetchone()[0]
            _refuse_newer(self.path, version)
            if version == 0:
                cursor.execute(f"PRAGMA application_id = {APPLICATION}")
            for statement in TABLES if version == 0 else ():
                cursor.execute(statement)
            for old in range(version or SCHEMA, SCHEMA):
                for statement in UPGRADES[old]:
                    cursor.execute(statement)
            cursor.execute(f"PRAGMA user_version = {SCHEMA}")

    def _begin(self) -> Any:
        if self._connection.in_transaction:  # an interrupt came just as the last one was to be ended
            self._rollback()
        return self._connection.execute("BEGIN IMMEDIATE")

    def _rollback(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return  # the error that led here is the one to tell

    def _fetch(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        return self._connection.execute(sql, parameters).fetchall()

    def append(self, parent: int, rows: Sequence[Row]) -> int:
        with self._transaction() as cursor:
            if cursor.execute("SELECT 1 FROM karat_headers WHERE number = ?", (parent,)).fetchone() is None:
                raise self._removed()
            values = [
                value
                for position, item, try_number, status, reuse, payload in rows
                for value in (parent, position, as_bytes(item), try_number, status, reuse, payload)
            ]
            new = 0
            for start in range(0, len(values), _COLUMNS * ROWS_AT_ONCE):
                some = values[start : start + _COLUMNS * ROWS_AT_ONCE]
                new += cursor.execute(_append(len(some) // _COLUMNS), some).rowcount
            return int(new)

    def _reason(self, error: Exception) -> str:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            return f"another process has been writing for more than {BUSY_SECONDS:g} s"
        if code == sqlite3.SQLITE_FULL:
            return f"{error}: free some space"
        return str(error)

    def now(self) -> float:
        return time.time()

    def check(self) -> list[str]:
        try:
            found = [str(row[0]) for row in self._read("PRAGMA integrity_check(20)")]
        except StoreError as error:
            return [str(error)]
        return super().check() if found == ["ok"] else found

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _connect(path: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        uri=uri,
    )


def _write_ahead(connection: sqlite3.Connection, path: Path) -> None:
    """Sets WAL mode. SQLite does not wait for others here, so that has to be done by hand."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StoreRefused(f"{path} lies on a file system without shared memory: choose another folder")
        return


def _refuse_what_is_no_store(path: Path) -> None:
    """Refuses a foreign, damaged or newer file through a read-only connection, before anything could touch it.

    The file is never opened but by SQLite: closing any other descriptor of it would drop the locks that this
    process has on it, and with them the store of another thread.
    """
    if path.is_dir():
        raise StoreRefused(f"{path} is a folder: name a file, as sqlite:///{path}/karat.db")
    if not path.parent.is_dir():
        raise StoreRefused(f"{path} cannot be made: there is no folder {path.parent}")
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreRefused(f"{path} cannot be read: {error.strerror}") from error
    if size == 0:
        return
    if size < SMALLEST_BYTES:
        raise _not_a_store(path)
    # Without a log nobody writes to it in WAL mode: `immutable` then leaves no log and no lock behind either.
    settled = "" if Path(f"{path}-wal").exists() else "&immutable=1"
    try:
        connection = _connect(f"file:{quote(os.fsencode(path.absolute()))}?mode=ro{settled}", uri=True)
        try:
            _refuse_by_content(path, connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise _refusal(path, error) from error


def _refuse_by_content(path: Path, connection: sqlite3.Connection) -> None:
    def pragma(name: str) -> int:
        return int(connection.execute(f"PRAGMA {name}").fetchone()[0])

    connection.execute("BEGIN")
    is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if is_empty and not pragma("user_version"):
        return  # a store that another process is about to make
    if pragma("application_id") != APPLICATION:
        raise StoreRefused(f"{path} is an SQLite file of another program: choose another path")
    _refuse_newer(path, pragma("user_version"))
    have, expected = path.stat().st_size, pragma("page_size") * pragma("page_count")
    if have < expected and not Path(f"{path}-wal").exists():
        raise StoreRefused(f"{path} is truncated ({have:,} of {expected:,} bytes): restore it from a copy")


def _refuse_newer(path: Path | None, schema: int) -> None:
    if schema > SCHEMA:
        raise StoreRefused(
            f"{path} was made by a newer karat (schema {schema}, this one knows {SCHEMA}): upgrade karat"
        )


def _not_a_store(path: Path | None) -> StoreRefused:
    return StoreRefused(f"{path} is not a karat store (not an SQLite file): choose another path")


def _refusal(path: Path | None, error: sqlite3.Error) -> KaratError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return _not_a_store(path)
    if code == sqlite3.SQLITE_CORRUPT:
        return StoreRefused(f"{path} is damaged or truncated ({error}): restore it from a copy")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StoreRefused(f"{path} cannot be written: check that you may write to it and to its folder")
    return StoreError(f"{path} cannot be opened as a store: {error}")
