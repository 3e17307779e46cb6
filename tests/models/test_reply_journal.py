"""Replies that are received and not committed: written before they are used, taken over from dead processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
import threading

import pytest

from karat.errors import RequestError
from karat.models import _cache
from karat.models._cache import (
    SIZE,
    Journal,
    Journals,
    ReplyCache,
    _rows,
    cache_clear,
    cache_stats,
    connect,
    frame_of,
    recovered,
)


def row(key=b"k", body='{"a": 1}', created=1.0):
    return key, "model", created, 0.5, body


def rows_of(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT key, body FROM replies").fetchall())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    path = tmp_path / "replies.db"
    monkeypatch.setenv("KARAT_CACHE", str(path))
    connect(path).close()
    return path


def left_by_a_dead_process(cache, *rows, cut=0):
    journal = Journal(cache)
    for each in rows:
        assert journal.put(frame_of(each))
    journal._memory.close()
    os.truncate(journal.path, journal.end - cut)
    os.close(journal._file)  # which also ends its lock, as the end of the process does
    return journal.path


def opened(cache):
    async def open_and_close():
        found = ReplyCache(cache)
        found.close()

    asyncio.run(open_and_close())


def test_replies_of_a_dead_process_are_taken_over(cache):
    path = left_by_a_dead_process(cache, row(b"a"), row(b"b", "{}"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    opened(cache)
    assert rows_of(cache) == {b"a": '{"a": 1}', b"b": "{}"}
    assert not path.exists()


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_row_that_was_not_written_whole_is_left_out(cache, cut):
    left_by_a_dead_process(cache, row(b"a"), row(b"b"), cut=cut)
    opened(cache)
    assert set(rows_of(cache)) == {b"a"}


@pytest.mark.parametrize(
    "content", [b"", b"krj1", b"\x00" * 100, b"krj1\xff\xff\xff\xff\x00\x00\x00\x00x", os.urandom(300)]
)
def test_a_damaged_journal_holds_nothing(cache, content):
    path = cache.with_name(f"{cache.name}.1-x.journal")
    path.write_bytes(content)
    opened(cache)
    assert rows_of(cache) == {}
    assert not path.exists()


def test_a_changed_row_is_not_believed(cache):
    path = left_by_a_dead_process(cache, row(b"a"), row(b"b"))
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    opened(cache)
    assert set(rows_of(cache)) == {b"a"}


def test_the_journal_of_a_living_process_is_its_own(cache):
    journal = Journal(cache)
    journal.put(frame_of(row(b"a")))
    assert list(recovered(cache)) == []
    assert journal.path.exists()
    journal.close()
    assert not journal.path.exists()


def test_a_newer_reply_in_the_cache_stays(cache):
    with contextlib.closing(connect(cache)) as connection:
        connection.execute(
            "INSERT INTO replies (key, model, created, seconds, body) VALUES (?,?,?,?,?)",
            row(b"a", "new", 9.0),
        )
        connection.execute(
            "INSERT INTO replies (key, model, created, seconds, body) VALUES (?,?,?,?,?)",
            row(b"b", "old", 1.0),
        )
    left_by_a_dead_process(cache, row(b"a", "journal", 5.0), row(b"b", "journal", 5.0))
    opened(cache)
    assert rows_of(cache) == {b"a": "new", b"b": "journal"}


def test_statistics_and_clearing_include_what_was_left(cache):
    left_by_a_dead_process(cache, row(b"a"))
    assert cache_stats()["entries"] == 1
    left_by_a_dead_process(cache, row(b"b"))
    assert cache_clear() == 2
    opened(cache)
    assert rows_of(cache) == {}


def test_a_full_file_is_followed_by_another_and_removed_when_committed(cache):
    journals = Journals(cache)
    first = journals.put(row(b"a", "x" * (SIZE + 1)))
    second = journals.put(row(b"b"))
    assert first is not second
    assert {key for rows in held(cache) for key, *_ in rows} == {b"a", b"b"}
    journals.committed(first)
    assert not first.path.exists()
    journals.committed(second)
    assert held(cache) == [[]]
    journals.close()
    assert not second.path.exists()


def held(cache):
    """The rows in the journals of a cache, whoever has locked them."""
    return [list(_rows(path.read_bytes())) for path in sorted(cache.parent.glob("*.journal"))]


def test_old_rows_do_not_reappear_behind_shorter_ones(cache):
    journals = Journals(cache)
    for key in (b"a", b"b", b"c"):
        journal = journals.put(row(key))
    for _ in range(3):
        journals.committed(journal)
    journals.put(row(b"d"))
    assert [[key for key, *_ in rows] for rows in held(cache)] == [[b"d"]]
    journals.close()


def test_a_folder_that_cannot_be_written_costs_only_the_journal(tmp_path):
    journals = Journals(tmp_path / "missing" / "replies.db")
    assert journals.put(row()) is None
    journals.close()


def test_a_cache_in_use_has_its_replies_in_the_journal_before_the_commit(cache):
    async def use():
        found = ReplyCache(cache)
        assert found.put(b"a", "model", b"{}", 0.1) is None
        [written] = held(cache)
        found.flush()
        await asyncio.sleep(0.01)
        [emptied] = held(cache)
        found.close()
        return written, emptied

    written, emptied = asyncio.run(use())
    assert [key for key, *_ in written] == [b"a"]
    assert emptied == []
    assert not list(cache.parent.glob("*.journal"))


def test_without_a_journal_a_reply_is_stored_by_its_commit(cache, monkeypatch):
    monkeypatch.setattr(_cache, "fcntl", None)

    async def use():
        found = ReplyCache(cache)
        commit = found.put(b"a", "model", b"{}", 0.1)
        found.hurry()
        await commit
        stored = rows_of(cache)
        found.close()
        return stored

    assert asyncio.run(use()) == {b"a": "{}"}


def test_a_reply_that_cannot_be_committed_stays_in_the_journal(cache):
    """As on a full disk: the next process commits it."""
    with contextlib.closing(sqlite3.connect(cache)) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON replies BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        connection.commit()

    async def use():
        found = ReplyCache(cache)
        found.put(b"a", "model", b"{}", 0.1)
        found.flush()
        await asyncio.sleep(0.01)
        found.close()

    asyncio.run(use())
    assert [[key for key, *_ in rows] for rows in held(cache)] == [[b"a"]]
    assert rows_of(cache) == {}
    with contextlib.closing(sqlite3.connect(cache)) as connection:
        connection.execute("DROP TRIGGER full")
    [path] = cache.parent.glob("*.journal")
    other = path.with_name(path.name.replace(".journal", "-dead.journal"))
    other.write_bytes(path.read_bytes())  # this process, which is alive, holds the lock on the first one
    opened(cache)
    assert rows_of(cache) == {b"a": "{}"}


def test_a_commit_that_is_heard_of_after_the_end_changes_nothing(cache):
    """The thread that commits tells the event loop, which may run it after the files were removed."""
    journals = Journals(cache)
    journal = journals.put(row(b"a"))
    journals.close()
    journals.committed(journal)
    assert not journal.path.exists()


def test_processes_that_make_the_cache_at_the_same_moment_all_use_it(tmp_path, monkeypatch):
    """SQLite refuses one of two that set WAL mode at once; and the tables may be made between two reads."""
    path = tmp_path / "replies.db"
    real = sqlite3.connect
    steps = []

    class Watched(sqlite3.Connection):
        def execute(self, sql, *rest):
            if "journal_mode" in sql and "refused" not in steps:
                steps.append("refused")
                with contextlib.closing(real(path, isolation_level=None)) as other:
                    other.execute("BEGIN EXCLUSIVE")
                    super().execute("PRAGMA busy_timeout=0")
                    return super().execute(sql, *rest)
            if "sqlite_master" in sql and "made" not in steps:
                steps.append("made")
                _cache.connect(path).close()
            return super().execute(sql, *rest)

    monkeypatch.setattr(
        _cache.sqlite3, "connect", lambda *given, **options: real(*given, **{**options, "factory": Watched})
    )
    connection = _cache.connect(path)
    assert connection.execute("SELECT count(*) FROM replies").fetchone() == (0,)
    connection.close()
    assert steps == ["refused", "made"]


def test_a_cache_that_cannot_be_written_is_refused_before_a_call_waits_for_it(cache, monkeypatch):
    connected = [_cache.connect(cache)]

    def connect(path):
        if not connected:
            raise RequestError("the cache cannot be used")
        return connected.pop()

    monkeypatch.setattr(_cache, "connect", connect)
    with pytest.raises(RequestError):
        opened(cache)


def test_a_cache_may_be_closed_while_another_thread_waits_for_its_commits(cache):
    class Queue:
        """Closes the cache when the other thread has seen that it is open."""

        def __init__(self, real):
            self.get, self.empty, self._put = real.get, real.empty, real.put
            self.closed = False

        def put(self, item):
            if not self.closed:
                self.closed = True
                found.close()
            self._put(item)

    async def use():
        return ReplyCache(cache)

    found = asyncio.run(use())
    found._queue = Queue(found._queue)
    other = threading.Thread(target=found.flush, daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive()
