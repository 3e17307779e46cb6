"""The embedded store: one SQLite file in WAL mode (or memory), one connection, commits in groups.

`synchronous=NORMAL`: a process that dies, by any signal, loses nothing that was committed; a machine that
loses power may lose its last commits but not the file. `?synchronous=full` in the URL buys those too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote
from zlib import crc32

from karat.errors import KaratError, StoreError, StoreRefused, plural, wording
from karat.files import write_ahead
from karat.store.backend import SCHEMA, ItemKeys, StoredRow, TextPattern, restore_from_copy
from karat.store.columns import pack
from karat.store.sql import SqlBackend, like_pattern

APPLICATION = 0x6B617261
"""`kara`, in the field of the file's header that says whose file it is."""

_COLUMN_TABLES = [
    # With a rowid: segments are some kilobytes long, and a table without one would put them on overflow pages.
    """CREATE TABLE karat_columns (
        number INTEGER PRIMARY KEY, parent INTEGER NOT NULL, records INTEGER NOT NULL, payload BLOB NOT NULL,
        checksum INTEGER NOT NULL)""",
    "CREATE INDEX karat_columns_parent ON karat_columns (parent, number, records)",
]

TABLES = [
    # AUTOINCREMENT: a number must never come to mean another run while somebody still appends to the old one.
    """CREATE TABLE karat_headers (
        number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, id TEXT NOT NULL UNIQUE,
        configuration TEXT NOT NULL, created REAL NOT NULL, finished REAL, payload BLOB NOT NULL,
        owner TEXT, host TEXT, process INTEGER, process_started REAL, since REAL, heartbeat REAL,
        checksum INTEGER, columns INTEGER)""",
    "CREATE INDEX karat_headers_configuration ON karat_headers (kind, configuration)",
    """CREATE TABLE karat_links (
        child TEXT NOT NULL, parent TEXT NOT NULL, PRIMARY KEY (child, parent)) WITHOUT ROWID""",
    "CREATE INDEX karat_links_parent ON karat_links (parent)",
    """CREATE TABLE karat_names (
        name BLOB NOT NULL, version INTEGER NOT NULL, dataset TEXT NOT NULL,
        PRIMARY KEY (name, version), UNIQUE (name, dataset)) WITHOUT ROWID""",
    """CREATE TABLE karat_rows (
        parent INTEGER NOT NULL, position INTEGER NOT NULL, item BLOB NOT NULL, try_number INTEGER NOT NULL,
        status INTEGER NOT NULL, reuse BLOB, payload BLOB NOT NULL, checksum INTEGER,
        PRIMARY KEY (parent, position, item, try_number)) WITHOUT ROWID""",
    "CREATE INDEX karat_rows_reuse ON karat_rows (reuse) WHERE reuse IS NOT NULL",
    *_COLUMN_TABLES,
]
"""The tables of the newest schema."""

UPGRADES: dict[int, list[str]] = {
    # Records of schema 1 stay without a checksum: to compute one now would confirm damage that is there already.
    1: [
        "ALTER TABLE karat_headers ADD COLUMN checksum INTEGER",
        "ALTER TABLE karat_rows ADD COLUMN checksum INTEGER",
    ],
    # Headers of schema 2 stay without columns: they are built from the records when they are first needed.
    2: ["ALTER TABLE karat_headers ADD COLUMN columns INTEGER", *_COLUMN_TABLES],
}
"""Schema n → the statements that make it n + 1."""

BUSY_SECONDS = 60.0
"""How long a process waits for the commit of another one."""

ONE_PAGE = 4096
"""A file that has its header and no table yet."""

SMALLEST_BYTES = 512
"""SQLite treats anything shorter as an empty file, and would overwrite it."""

ROWS_AT_ONCE = 16
"""Rows in one statement: 1.3 × the rate of executemany, which makes one for each; more bring no more, and a statement
for what is left over takes longer to prepare."""

PROGRESS_STEPS = 100_000
"""Instructions of SQLite between two looks at the clock: about a millisecond."""


_READ_BACK = """SELECT
    (SELECT count(*) FROM karat_headers WHERE number = :number AND checksum = karat_crc32(payload)),
    count(*),
    coalesce(sum(checksum <> karat_crc32(payload, (
        CASE item WHEN :item THEN :sum ELSE karat_crc32(item) END
        + 64 * position + 8 * try_number + status) & 4294967295)), 0),
    (SELECT count(*) FROM karat_columns WHERE parent = :number AND checksum <> karat_crc32(payload))
    FROM karat_rows WHERE parent = :number"""
"""Sound headers, records, damaged records and damaged segments: a microsecond for each record. `item` is a frequent one
with its checksum `sum`, because a call for each record takes a fifth of that."""
_SOME_ITEM = "SELECT item FROM karat_rows WHERE parent = ? LIMIT 1"
_ANCESTORS = """WITH RECURSIVE ancestors (id) AS (
    SELECT parent FROM karat_links JOIN karat_headers ON child = id WHERE number = ?
    UNION SELECT parent FROM karat_links JOIN ancestors ON child = ancestors.id)
    SELECT number FROM karat_headers WHERE id IN (SELECT id FROM ancestors)"""
_WALK = "SELECT count(*) FROM karat_rows WHERE parent = ?"
"""Visits every page of the records without reading them: a tenth of the time."""

_ADD_SEGMENT = "INSERT INTO karat_columns (parent, records, payload, checksum) VALUES (?, ?, ?, ?)"


@functools.cache
def _append(count: int, reuse: bool) -> str:
    row = f"(?, ?, ?, ?, ?, {'?' if reuse else 'NULL'}, ?, ?)"
    return f"INSERT INTO karat_rows VALUES {', '.join([row] * count)} ON CONFLICT DO NOTHING"  # noqa: S608 - only marks


_FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""What the driver raises. A flipped bit in a text, or in the schema that an error quotes, makes it invalid UTF-8."""


class SqliteBackend(SqlBackend):
    """A SQLite file. `path=None` keeps everything in memory, for this process only."""

    commits_briefly = True
    _failures = _FAILURES

    def __init__(self, path: Path | None, *, synchronous: str = "NORMAL", read_only: bool = False) -> None:
        super().__init__()
        self.path = path
        self.shared = path is not None
        self.read_only = False
        self.url = "memory://" if path is None else f"sqlite:///{quote(os.fsencode(path))}"
        self._log_path = Path(f"{path}-wal")
        self._size = 0
        self._unwritable: KaratError = _not_writable(path)
        if path is not None:
            _refuse_foreign(path)
        try:
            if path is not None and read_only:
                if not path.exists():
                    raise StoreRefused(
                        f"there is no store {path}: {wording('karat run', 'karat.run')} creates one"
                    )
                self._open_to_read(path)
            else:
                self._open(synchronous)
        except _FAILURES as error:
            readable = path is not None and path.is_file() and path.stat().st_size
            if path is None or not readable or _code(error) not in (*_NOT_WRITABLE, *_NO_SPACE):
                raise _refusal(path, error) from error
            self._open_to_read(path)
            if _code(error) in _NO_SPACE:
                self._unwritable = StoreError(f"{path} cannot be written: {error}: free some space")
        self._identity = _identity_of(path) if path is not None else None
        logs = (self._log_path, Path(f"{path}-shm")) if path is not None else ()
        self._logs = {each: _identity_of(each) for each in logs}

    def _open(self, synchronous: str) -> None:
        with _opening:
            made = self.path is not None and _create_private(self.path)
            self._connection = _connect(":memory:" if self.path is None else self.path)
        try:
            self._prepare(synchronous)
        except BaseException:
            self._connection.close()
            if made:
                _remove_unprepared(cast("Path", self.path))
            raise

    def _open_to_read(self, path: Path) -> None:
        """Open a store for reading, where the file or its folder may not be written."""
        self.read_only = True
        try:
            try:
                self._connection = _connect(_read_only_uri(path), uri=True)
                self._connection.execute("SELECT count(*) FROM karat_headers").fetchone()
            except sqlite3.OperationalError as error:
                if _code(error) not in (*_NOT_WRITABLE, *_NO_SPACE):
                    raise
                # The write-ahead log cannot be created in this folder, so no process writes to the file.
                self._connection = _connect_to_read(path)
                self._connection.execute("SELECT count(*) FROM karat_headers").fetchone()
            schema = self._connection.execute("PRAGMA user_version").fetchone()[0]
        except _FAILURES as error:
            raise StoreRefused(f"{path} cannot be read: {error}") from error
        self._checksum = "checksum" if schema >= 2 else "NULL"
        self._keeps_columns = schema >= 3

    def _prepare(self, synchronous: str) -> None:
        execute = self._connection.execute
        if self.path is not None and write_ahead(self._connection, BUSY_SECONDS) != "wal":
            raise StoreRefused(
                f"{self.path} is on a file system without shared memory: choose another folder"
            )
        execute(f"PRAGMA synchronous = {synchronous}")
        execute("PRAGMA cache_size = -8192")
        execute("PRAGMA temp_store = MEMORY")
        if execute("PRAGMA user_version").fetchone()[0] == SCHEMA:
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._make_tables(execute)
            execute("COMMIT")
        except BaseException:
            self._rollback()
            raise

    def _make_tables(self, execute: Callable[[str], sqlite3.Cursor]) -> None:
        # Asked again: another process may have made or upgraded the tables while this one waited.
        version = execute("PRAGMA user_version").fetchone()[0]
        _refuse_newer(self.path, version)
        if version == 0:
            execute(f"PRAGMA application_id = {APPLICATION}")
        for statement in TABLES if version == 0 else ():
            execute(statement)
        for old in range(version or SCHEMA, SCHEMA):
            for statement in UPGRADES[old]:
                execute(statement)
        execute(f"PRAGMA user_version = {SCHEMA}")

    def _begin(self) -> Any:
        if self.read_only:
            raise self._unwritable
        self._ensure_file()
        if self._connection.in_transaction:  # an interrupt came just as the last one was to be ended
            self._rollback()
        return self._connection.execute("BEGIN IMMEDIATE")

    def _rollback(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return  # the caller raises the original error

    def _fetch(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        return self._connection.execute(sql, parameters).fetchall()

    def _matches(self, pattern: TextPattern) -> tuple[str, list[str]]:
        # LIKE ignores the case of ASCII letters and of no others. It does not search blobs.
        conditions, values = ["CAST(payload AS TEXT) LIKE ? ESCAPE '!'"], [like_pattern(pattern.pieces)]
        if pattern.beyond_ascii:
            conditions.append("length(CAST(payload AS TEXT)) <> length(payload)")
        if pattern.one_of:
            conditions.append("CAST(payload AS TEXT) GLOB ?")
            values.append(f"*[{pattern.one_of}]*")
        return f"({' AND '.join(conditions)})", values

    @contextmanager
    def _until(self, deadline: float) -> Iterator[None]:
        self._connection.set_progress_handler(lambda: time.monotonic() > deadline, PROGRESS_STEPS)
        try:
            yield
        finally:
            self._connection.set_progress_handler(None, 0)

    def append(self, parent: int, rows: Sequence[StoredRow], owner: str | None = None) -> int:
        with self._transaction() as cursor:
            held = cursor.execute("SELECT owner FROM karat_headers WHERE number = ?", (parent,)).fetchone()
            if held is None:
                raise self._removed()
            if owner is not None and held[0] != owner:
                raise self._taken_over(parent)
            keys = ItemKeys()
            reused = any(row.reuse is not None for row in rows)
            # The driver looks for an adapter of every None and every `bytes`, though not of a `bytearray`: that takes
            # half of the time of an insertion.
            values: list[int | bytearray | bytes | None] = []
            extend = values.extend
            for position, item, try_number, status, reuse, payload, _ in rows:
                stored, start = keys[item]
                # `checksum` written out: a call for each record costs as much as the checksum itself.
                sum = crc32(payload, (start + 64 * position + 8 * try_number + status) & 0xFFFFFFFF)
                extend((parent, position, bytearray(stored), try_number, status))
                if reused:
                    values.append(reuse)
                extend((bytearray(payload), sum))
            new, columns = 0, 8 if reused else 7
            for start in range(0, len(values), columns * ROWS_AT_ONCE):
                some = values[start : start + columns * ROWS_AT_ONCE]
                new += cursor.execute(_append(len(some) // columns, reused), some).rowcount
            segment = pack(rows, keys) if rows else None
            if segment is not None:
                cursor.execute(_ADD_SEGMENT, (parent, len(rows), segment, crc32(segment)))
            elif rows:
                cursor.execute("UPDATE karat_headers SET columns = NULL WHERE number = ?", (parent,))
            return int(new)

    def ensure_present(self) -> None:
        self._ensure_file()
        for path, opened in self._logs.items():
            if opened is not None and _identity_of(path) != opened:
                raise StoreError(f"{path}, a log of the store, was deleted or replaced: start again")

    def is_replaced(self) -> bool:
        return self.path is not None and _identity_of(self.path) != self._identity

    def _ensure_file(self) -> None:
        if self.path is None:
            return
        try:
            found = os.stat(self.path)
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            raise StoreError(f"{self.path} was deleted or replaced while it was in use: start again")
        if found.st_size < self._size:
            # No checkpoint makes it shorter. The cache of this connection would hide it until the process ends.
            raise StoreError(f"{self.path} was truncated while it was in use: restore it from a copy")
        self._size = found.st_size

    def ensure_readable(self, number: int) -> None:
        """Read through a connection with an empty cache: the one that wrote would find the records in its own."""
        if self.path is None:
            return
        self.ensure_present()
        written = self._read("SELECT count(*) FROM karat_rows WHERE parent = ?", (number,))[0][0]
        try:
            connection = _connect(_read_only_uri(self.path), uri=True)
            try:
                connection.execute("PRAGMA cache_size = -256")  # KiB: each page is read once
                connection.create_function("karat_crc32", -1, crc32, deterministic=True)
                some = connection.execute(_SOME_ITEM, (number,)).fetchone()
                item = some[0] if some and type(some[0]) is bytes else b""
                parameters = {"number": number, "item": item, "sum": crc32(item)}
                found = connection.execute(_READ_BACK, parameters).fetchone()
                for (parent,) in connection.execute(_ANCESTORS, (number,)).fetchall():
                    connection.execute(_WALK, (parent,)).fetchone()
            finally:
                connection.close()
        except _FAILURES as error:
            if _code(error) in (
                sqlite3.SQLITE_CANTOPEN,
                sqlite3.SQLITE_NOMEM,
            ):  # too many open files: no damage
                raise StoreError(
                    f"{self.path} cannot be read back: {error}: raise the limits of open files and of memory (ulimit)"
                ) from error
            raise self._not_readable(str(error)) from error
        if found != (1, written, 0, 0):
            raise self._not_readable("records are missing or damaged")

    def _not_readable(self, reason: str) -> StoreError:
        return StoreError(f"{self.path} was damaged while it was in use ({reason}): {restore_from_copy()}")

    def _reason(self, error: Exception) -> str:
        code = _code(error)
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
        return self._lost_commits() + super().check() if found == ["ok"] else found

    def _lost_commits(self) -> list[str]:
        """A problem if the log holds commits behind a damaged one: SQLite reads a log up to the first damage."""
        with self._lock:
            try:
                self._connection.execute("BEGIN")
                # From the first read on, SQLite keeps what is in the log.
                self._connection.execute("SELECT count(*) FROM karat_headers").fetchone()
                log = self._log_path.read_bytes()
            except (OSError, *_FAILURES):
                return []  # it has no log
            finally:
                self._rollback()
        lost = _commits_behind_damage(log)
        if not lost:
            return []
        return [f"{self._log_path} is damaged, and {plural(lost, 'commit')} behind the damage cannot be read"]

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            if self.read_only:
                self._remove_log()

    def _remove_log(self) -> None:
        """Remove the empty log that reading made.

        A reader makes the log and its index, and is not allowed to remove them. SQLite removes both, under its locks,
        when the last connection that may write is closed: here that is one that reads, and nothing while others exist.
        """
        try:
            if self.path is None or self.is_replaced() or self._log_path.stat().st_size:
                return
            connection = _connect(_uri(self.path, "rw"), uri=True)
            try:
                connection.execute("SELECT count(*) FROM karat_headers").fetchone()
            finally:
                connection.close()
        except (OSError, sqlite3.Error):
            return  # nothing depends on it


def _commits_behind_damage(log: bytes) -> int:
    """Count the commits of a write-ahead log (sqlite.org/fileformat.html#walformat) that follow a damaged frame.

    Frames of an earlier use of the file have another salt, and those of a transaction that was rolled back no commit.
    """
    if len(log) < _LOG_HEADER.size:
        return 0
    magic, _, page, _, salt, first, second = _LOG_HEADER.unpack_from(log)
    words = struct.Struct(f"{'>' if magic & 1 else '<'}{(8 + page) // 4}I") if 512 <= page <= 65536 else None
    sums = _log_checksum((0, 0), struct.unpack_from(f"{'>' if magic & 1 else '<'}6I", log))
    sound, lost = words is not None and sums == (first, second), 0
    if words is None:
        return 1 if len(log) > _LOG_HEADER.size else 0
    for at in range(_LOG_HEADER.size, len(log) - page - _FRAME.size + 1, page + _FRAME.size):
        pages, own, first, second = _FRAME.unpack_from(log, at)
        if sound:
            begin, content = log[at : at + 8], log[at + _FRAME.size : at + _FRAME.size + page]
            sums = _log_checksum(sums, words.unpack(begin + content))
            sound = own == salt and sums == (first, second)
        elif pages and own == salt:
            lost += 1
    return lost


_LOG_HEADER = struct.Struct(">IIII8sII")
_FRAME = struct.Struct(">4xI8sII")


def _log_checksum(sums: tuple[int, int], words: Sequence[int]) -> tuple[int, int]:
    first, second = sums
    numbers = iter(words)
    for one, two in zip(numbers, numbers, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


_opening = threading.Lock()
"""Held while a file is created: see `_create_private`."""


def _create_private(path: Path) -> bool:
    """Create a new store's file for its owner alone, and return whether it is new; SQLite gives its log the same mode.

    Under a lock: closing this descriptor drops the locks that another thread has on the file (see `_refuse_foreign`).
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError:
        return False  # it exists, or SQLite meets the same problem and reports it
    return True


def _remove_unprepared(path: Path) -> None:
    """Remove a new file without tables, which nothing could read; with a log, another process is making them."""
    log = Path(f"{path}-wal")
    with contextlib.suppress(OSError):
        if path.stat().st_size <= ONE_PAGE and not (log.exists() and log.stat().st_size):
            for each in (log, Path(f"{path}-shm"), path):
                each.unlink(missing_ok=True)


def _identity_of(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file at a path; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Connect without a log and a lock, where that is safe."""
    log = Path(f"{path}-wal")
    if not log.exists():  # no process writes in WAL mode
        return _connect(f"{_read_only_uri(path)}&immutable=1", uri=True)
    connection = _connect(_read_only_uri(path), uri=True)
    try:
        connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if _code(error) not in _NO_SPACE or log.stat().st_size:
            raise
        # The index of an empty log cannot be made on a full disk, where nobody writes either.
        return _connect(f"{_read_only_uri(path)}&immutable=1", uri=True)
    return connection


def _read_only_uri(path: Path) -> str:
    return _uri(path, "ro")


def _uri(path: Path, mode: str) -> str:
    place = quote(os.fsencode(path.absolute()))
    if place.startswith("//"):  # to SQLite, the name of a host would follow
        place = f"/{place.lstrip('/')}"
    return f"file:{place}?mode={mode}"


class _Connection(sqlite3.Connection):
    """A connection that is closed with the last handle that uses it: a caller need not close the store of a Run.

    Python 3.13 and later warn about connections that end open.
    """

    def __del__(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # one that could not be opened
            self.close()


def _connect(path: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        factory=_Connection,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        uri=uri,
    )


def _refuse_foreign(path: Path) -> None:
    """Refuse a foreign, damaged or newer file through a read-only connection, before anything is changed.

    Only SQLite ever opens the file: closing any other descriptor of it would drop the locks that this process has on
    it, and with them the store of another thread.
    """
    if str(path) == ":memory:":  # to SQLite, this is no file
        raise StoreRefused(f"{path} is not the name of a file: write memory:// for a store in memory")
    if path.is_dir():
        raise StoreRefused(f"{path} is a folder: name a file, as sqlite:///{path / 'karat.db'}")
    if not path.parent.is_dir():
        raise StoreRefused(f"{path} cannot be created: there is no folder {path.parent}")
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreRefused(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):  # SQLite would wait for a pipe, or take a device for an empty file
        raise StoreRefused(f"{path} is not a regular file: choose another path")
    size = found.st_size
    if size == 0:
        log = Path(f"{path}-wal")
        if log.exists() and log.stat().st_size:
            # SQLite writes the first page of a new file before its log, and would delete the log here.
            raise StoreRefused(
                f"{path} is truncated (0 bytes, but its log {log} has records): restore it from a copy"
            )
        return
    if size < SMALLEST_BYTES:
        raise _not_a_store(path)
    try:
        connection = _connect_to_read(path)
        try:
            _refuse_by_content(path, connection)
        finally:
            connection.close()
    except _FAILURES as error:
        raise _refusal(path, error) from error


def refuse_unwritable(path: Path) -> None:
    """Refuse a file that cannot be a store, or that this process may not write or make."""
    _refuse_foreign(path)
    places = [path, path.parent] if path.exists() else [path.parent]
    if not all(os.access(place, os.W_OK) for place in places):
        raise _not_writable(path)


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
    if pragma("user_version") < 1:
        raise StoreRefused(f"{path} is damaged (schema {pragma('user_version')}): restore it from a copy")
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


_NO_SPACE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""A log that cannot be made on a full disk is an I/O error; the file itself can still be read."""
_NOT_WRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _refusal(path: Path | None, error: Exception) -> KaratError:
    code = _code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return _not_a_store(path)
    if code == sqlite3.SQLITE_CORRUPT or isinstance(error, UnicodeDecodeError):
        return StoreRefused(f"{path} is damaged or truncated ({error}): restore it from a copy")
    if code in _NOT_WRITABLE:
        return _not_writable(path)
    fix = ": free some space, or choose another path" if code in _NO_SPACE else ""
    return StoreError(f"{path} cannot be opened as a store: {error}{fix}")


def _not_writable(path: Path | None) -> StoreRefused:
    return StoreRefused(f"{path} cannot be written: check that you may write to it and to its folder")
