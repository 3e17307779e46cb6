"""The reply cache: one SQLite file of JSON bodies, read by key, written in groups by one thread.

Commits are grouped, and a reply is in a journal before it is used (`Journal`): a process that is killed loses
only the calls that were in flight. The file holds what providers answered and no request, no header, no key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import queue
import secrets
import sqlite3
import struct
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from karat.errors import CacheError
from karat.files import cache_folder, write_ahead

# A file beside the reply cache that holds the replies which are received and not yet committed.
#
# Commits are grouped, so a reply waits up to some milliseconds for its commit. It is copied into this file before it is
# used: what is there survives the end of the process, though not of the machine. Each process has files of its own and
# holds locks on them; the next process that opens the cache moves the replies of dead processes into the cache.
#
# The file is mapped into memory. A system call for each reply would cost as much as the rest of the journal, and would
# release the interpreter lock each time.

try:
    import fcntl
except ImportError:  # not POSIX: a reply is stored when it is committed
    fcntl = None  # type: ignore[assignment]

SIZE = 1 << 20
"""Bytes of a file: some thousand replies. A file that is full is followed by another one."""

_HEAD = struct.Struct("<4sII")
_MARK = b"krj1"
_END = bytes(_HEAD.size)
"""Follows the last row: what is behind it was committed before the file was emptied."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, str, float, float, str]).decode

Row = tuple[bytes, str, float, float, str]
"""Key, model, time, seconds and body, as the cache stores them."""


class Journal:
    """One file of rows."""

    def __init__(self, cache: Path, size: int = SIZE) -> None:
        self.end = 0
        """Where the next row goes."""
        self.uncommitted = 0
        """Rows that are not committed."""
        self._size = size
        name = f"{cache.name}.{os.getpid()}-{secrets.token_hex(4)}.journal"
        self.path = cache.with_name(name)
        draft = cache.with_name(f".{name}")
        self._file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Written, not only extended: a page without space on the disk would end the process when it is used.
            written = 0
            while written < size:
                written += os.write(self._file, bytes(size - written))
            self._memory = mmap.mmap(self._file, size)
            os.rename(draft, self.path)  # locked before another process can find it
        except OSError:
            os.close(self._file)
            with contextlib.suppress(OSError):
                draft.unlink()
            raise

    def put(self, frame: bytes) -> bool:
        """Append a row made by `frame_of`; return False if there is no room for it."""
        start, end = self.end, self.end + len(frame)
        if end > self._size:
            return False
        self._memory[start:end] = frame
        self.end = end - len(_END)
        self.uncommitted += 1
        return True

    def clear(self) -> None:
        """Empty the file: everything in it is committed."""
        self._memory[: len(_END)] = _END
        self.end = 0

    def close(self) -> None:
        """Remove the file: everything in it is committed."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self._memory.close()
        os.close(self._file)


def frame_of(row: Row) -> bytes:
    """A row as it stands in the file, followed by the mark of its end."""
    payload = _encode(row)
    return _HEAD.pack(_MARK, len(payload), zlib.crc32(payload)) + payload + _END


class Journals:
    """The files of one cache in this process; rows go to the last one."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._files: list[Journal] = []
        self._usable = fcntl is not None

    def put(self, row: Row) -> Journal | None:
        """Append a row; return None if no file can be written: the row is then stored only by its commit."""
        if not self._usable:
            return None
        frame = frame_of(row)
        files = self._files
        if not files or not files[-1].put(frame):
            try:
                files.append(Journal(self._cache, max(SIZE, len(frame))))
            except OSError:
                self._usable = False
                return None
            files[-1].put(frame)
        return files[-1]

    def committed(self, journal: Journal) -> None:
        """Note that a row is committed. A file without other rows is emptied, or removed if a later one is used."""
        journal.uncommitted -= 1
        if (
            journal.uncommitted == 0 and self._files
        ):  # none: closed, before the event loop heard of the last commits
            if journal is self._files[-1]:
                journal.clear()
            else:
                self._files.remove(journal)
                journal.close()

    def close(self) -> None:
        """Remove the files: everything is committed."""
        for each in self._files:
            each.close()
        self._files = []


def recovered(cache: Path) -> Iterator[list[Row]]:
    """The rows that dead processes left, file by file; a file is removed when its rows have been taken."""
    if fcntl is None:
        return
    for path in sorted(cache.parent.glob(f"{cache.name}.*.journal")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the owner lives
            yield list(_rows(file.read()))
            path.unlink(missing_ok=True)


def _rows(content: bytes) -> Iterator[Row]:
    """The complete rows of a file; the process may have ended in the middle of the last one."""
    at = 0
    while at + _HEAD.size <= len(content):
        mark, size, check = _HEAD.unpack_from(content, at)
        payload: Any = content[at + _HEAD.size : at + _HEAD.size + size]
        if mark != _MARK or len(payload) != size or zlib.crc32(payload) != check:
            return
        try:
            yield _decode(payload)
        except msgspec.MsgspecError:
            return
        at += _HEAD.size + size


VERSION = 2
"""Version 2 added checksums; replies of version 1 stay without."""
APPLICATION = 0x6B617274  # "kart": identifies karat's cache files
GROUP = 512
BUSY_SECONDS = 30.0
"""How long a process waits for the commit of another one."""
SHORTEST, LONGEST = 0.004, 0.03
"""Seconds that the first reply of a group waits for others: a commit for each would cost a quarter of the CPU time of a
call. It is the shorter time when a call waits for the commit."""

_log = logging.getLogger("karat.models")


Uncommitted = tuple[Row, "asyncio.Future[None] | None", Journal | None]
"""A row, the future to resolve when it is committed, and the journal that holds it until then."""


class Entry(msgspec.Struct, frozen=True):
    """A cached reply."""

    body: bytes
    seconds: float
    created: float


def cache_path() -> Path:
    """The file of the reply cache: `KARAT_CACHE`, else replies.db in the cache folder."""
    return Path(os.environ["KARAT_CACHE"]) if os.environ.get("KARAT_CACHE") else cache_folder() / "replies.db"


def connect(path: Path) -> sqlite3.Connection:
    """Connect to the cache and create it if it is missing; refuse a file that is not a cache of karat."""
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)  # answers may be private
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        write_ahead(connection, BUSY_SECONDS)
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("BEGIN")  # another process may make the tables between two of these reads
        application, version = (
            connection.execute(f"PRAGMA {p}").fetchone()[0] for p in ("application_id", "user_version")
        )
        empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        connection.execute("COMMIT")
        is_own = empty or (application == APPLICATION and version <= VERSION)
        if empty:
            connection.executescript(
                f"PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION};"
                "CREATE TABLE IF NOT EXISTS replies (key BLOB PRIMARY KEY, model TEXT NOT NULL, created REAL NOT NULL,"
                " seconds REAL NOT NULL, body TEXT NOT NULL, checksum INTEGER);"
            )
        elif is_own and version < VERSION:
            _upgrade(connection)
    except (OSError, sqlite3.Error) as error:
        raise CacheError(
            f"the cache {path} cannot be used ({error}): set KARAT_CACHE to another file"
        ) from None
    if not is_own:
        connection.close()
        whose = "of a newer karat" if application == APPLICATION else "not a cache of karat"
        raise CacheError(f"{path} is {whose}: set KARAT_CACHE to another file")
    return connection


def _upgrade(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    # Another process may have been faster.
    if connection.execute("PRAGMA user_version").fetchone()[0] < VERSION:
        connection.execute("ALTER TABLE replies ADD COLUMN checksum INTEGER")
        connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")


_MARKS = "?,?,?,?,?,?"


def _columns(row: Row) -> tuple[bytes, str, float, float, str, int]:
    """A row as the table has it."""
    return *row, _checksum(row[0], row[3], row[4].encode())


def _checksum(key: bytes, seconds: float, body: bytes) -> int:
    """Return the checksum of a reply under its key, so that a flipped bit cannot change an answer."""
    return zlib.crc32(body, zlib.crc32(_SECONDS.pack(seconds), zlib.crc32(key)))


_SECONDS = struct.Struct("<d")


def _is_sound(key: bytes, seconds: Any, body: Any, expected: object) -> bool:
    try:
        return _checksum(key, seconds, body) == expected
    except (TypeError, struct.error):  # not even of its type
        return False


_open: weakref.WeakSet[ReplyCache] = weakref.WeakSet()


class ReplyCache:
    """The cache as one event loop uses it: reads on the loop, writes through a thread, both in groups."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = connect(path)
        self._writer = connect(path)  # not by the thread: calls would wait for ever for one that could not
        self._journals = Journals(path)
        self._recover()
        self._queue: queue.SimpleQueue[Uncommitted | threading.Event] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._complained = self._closing = False
        self._unwritten: dict[bytes, Row] = {}
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._write, name="karat-cache", daemon=True)
        self._thread.start()
        _open.add(self)

    def get(self, key: bytes) -> Entry | None:
        """Return the cached reply of a key. A cache that cannot be read counts as empty, with one warning."""
        unwritten = self._unwritten.get(key)
        if unwritten is not None:
            return Entry(unwritten[4].encode(), unwritten[3], unwritten[2])
        try:
            if not self._reader.in_transaction:
                # One transaction for all look-ups in a turn of the loop: locking the file is what takes time.
                self._reader.execute("BEGIN")
                self._loop.call_soon(self._end_reading)
            row = self._reader.execute(
                "SELECT CAST(body AS BLOB), seconds, created, checksum FROM replies WHERE key=?", (key,)
            ).fetchone()
        except sqlite3.Error as error:
            self._complain(error)
            return None
        if row is None:
            return None
        body, seconds, created, expected = row
        if expected is not None and not _is_sound(key, seconds, body, expected):
            _log.warning("a reply in the cache %s is damaged: the call is made again", self.path)
            return None
        return Entry(body, seconds, created)

    def _end_reading(self) -> None:
        """End the transaction that look-ups share, so that the next one sees what was committed since."""
        with contextlib.suppress(sqlite3.Error):
            if self._reader.in_transaction:
                self._reader.execute("ROLLBACK")

    def put(self, key: bytes, model: str, body: bytes, seconds: float) -> asyncio.Future[None] | None:
        """Store a reply: return None if it is in the journal, where a kill cannot lose it, else a future commit."""
        row = (key, model, time.time(), seconds, body.decode("utf-8", "replace"))
        journal = self._journals.put(row)
        if journal is None:
            return self._add(row)
        self._unwritten[key] = row
        self._queue.put((row, None, journal))
        return None

    def commit(self, key: bytes, model: str, body: bytes) -> asyncio.Future[None]:
        """Store a reply that can be fetched again, without the journal; the future is done when it is committed."""
        return self._add((key, model, time.time(), 0.0, body.decode("utf-8", "replace")))

    def _add(self, row: Row) -> asyncio.Future[None]:
        committed = self._loop.create_future()
        self._unwritten[row[0]] = row
        self._queue.put((row, committed, None))
        return committed

    def _recover(self) -> None:
        """Commit the replies that killed processes left in their journals."""
        try:
            take_over(self.path, self._reader)
        except sqlite3.Error as error:
            self._complain(error)

    def hurry(self) -> None:
        """Commit soon: a call waits for it."""
        self._hurry.set()

    def flush(self) -> None:
        """Commit everything that was put so far; from any thread."""
        if self._thread.is_alive():  # which it is not in a forked child
            written = threading.Event()
            self._queue.put(written)
            self._hurry.set()
            while not written.wait(LONGEST) and self._thread.is_alive():
                pass  # another thread closes the cache, which commits everything too

    def close(self) -> None:
        """Commit what is left and end the thread."""
        _open.discard(self)
        self._closing = True
        self.flush()
        self._thread.join()
        self._reader.close()
        if not self._complained:  # else the next process tries to commit what is left
            self._journals.close()

    def _write(self) -> None:
        writer = self._writer
        while not (self._closing and self._queue.empty()):
            group = [self._queue.get()]
            time.sleep(SHORTEST)
            self._hurry.wait(LONGEST - SHORTEST)
            self._hurry.clear()
            while len(group) < GROUP and not self._queue.empty():
                group.append(self._queue.get())
            items = [item for item in group if not isinstance(item, threading.Event)]
            if items:
                stored = self._commit(writer, [row for row, _, _ in items])
                with contextlib.suppress(RuntimeError):  # the loop has ended, so there is no waiter
                    self._loop.call_soon_threadsafe(self._drop_committed, items, stored)
            for item in group:
                if isinstance(item, threading.Event):
                    item.set()
        writer.close()

    def _drop_committed(self, items: list[Uncommitted], stored: bool) -> None:
        """Drop committed rows from the journal; rows that cannot be committed stay there for the next process."""
        self._end_reading()
        for row, committed, journal in items:
            if self._unwritten.get(row[0]) is row:
                del self._unwritten[row[0]]
            if journal is not None:
                if stored:
                    self._journals.committed(journal)
            elif committed is not None and not committed.done():
                committed.set_result(None)

    def _commit(self, writer: sqlite3.Connection, rows: list[Row]) -> bool:
        try:
            writer.execute("BEGIN IMMEDIATE")
            for some in _in_powers_of_two(rows):
                marks = ",".join([f"({_MARKS})"] * len(some))
                values = [value for row in some for value in _columns(row)]
                writer.execute(f"INSERT OR REPLACE INTO replies VALUES {marks}", values)  # noqa: S608 - only marks
            writer.execute("COMMIT")
        except sqlite3.Error as error:
            # The call still returns its reply: it is paid for, and more important than its copy in the cache.
            self._complain(error)
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            return False
        return True

    def _complain(self, error: sqlite3.Error) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("replies are not cached: the cache %s fails: %s", self.path, error)


def take_over(path: Path, connection: sqlite3.Connection) -> None:
    """Move the replies that dead processes left in their journals into the cache; newer ones there stay."""
    for rows in recovered(path):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            f"INSERT INTO replies VALUES ({_MARKS}) ON CONFLICT (key) DO UPDATE SET model=excluded.model,"  # noqa: S608 - only marks
            " created=excluded.created, seconds=excluded.seconds, body=excluded.body, checksum=excluded.checksum"
            " WHERE excluded.created > replies.created",
            [_columns(row) for row in rows],
        )
        connection.execute("COMMIT")


def _in_powers_of_two(rows: list[Row]) -> Iterator[list[Row]]:
    """Split rows into a few parts of a few sizes.

    A statement for each row would release the interpreter lock for each and have to wait for it again; statements of
    any size would be compiled each time.
    """
    start = 0
    while start < len(rows):
        size = min(GROUP, 1 << ((len(rows) - start).bit_length() - 1))
        yield rows[start : start + size]
        start += size


def _flush() -> Path:
    """The path of the cache, after everything that this process and dead ones have to write is committed."""
    for cache in list(_open):
        cache.flush()
    path = cache_path()
    if path.exists():
        with contextlib.closing(connect(path)) as connection:
            take_over(path, connection)
    return path


def cache_stats() -> dict[str, Any]:
    """The size of the cache: `{path, entries, bytes, oldest, models: {name: entries}}`."""
    path = _flush()
    if not path.exists():
        return {"path": str(path), "entries": 0, "bytes": 0, "oldest": None, "models": {}}
    connection = connect(path)
    try:
        rows = connection.execute(
            "SELECT model, count(*), min(created) FROM replies GROUP BY model ORDER BY 1"
        ).fetchall()
    finally:
        connection.close()
    return {
        "path": str(path),
        "entries": sum(count for _, count, _ in rows),
        "bytes": sum(p.stat().st_size for p in path.parent.glob(path.name + "*")),
        "oldest": min((oldest for *_, oldest in rows), default=None),
        "models": {model: count for model, count, _ in rows},
    }


def cache_clear(model: str | None = None, older_than: float | None = None) -> int:
    """Delete cached replies and return their number: all, those of a model, or those older than some seconds."""
    path = _flush()
    if not path.exists():
        return 0
    connection = connect(path)
    try:
        until = time.time() - older_than if older_than is not None else float("inf")
        gone = connection.execute(
            "DELETE FROM replies WHERE created <= ? AND (? IS NULL OR model = ?)", (until, model, model)
        ).rowcount
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
    return gone
