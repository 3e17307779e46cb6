"""Replies that are received and not committed: written before they are used, taken over from dead processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat

import pytest

from karat.models._cache import ReplyCache, cache_clear, cache_stats, connect
from karat.models._reply_journal import LARGEST, Journal, Journals, recovered


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
        journal.put(each)
    if cut:
        os.ftruncate(journal._file, os.fstat(journal._file).st_size - cut)
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
    journal.put(row(b"a"))
    assert list(recovered(cache)) == []
    assert journal.path.exists()
    journal.close()
    assert not journal.path.exists()


def test_a_newer_reply_in_the_cache_stays(cache):
    with contextlib.closing(connect(cache)) as connection:
        connection.execute("INSERT INTO replies VALUES (?,?,?,?,?)", row(b"a", "new", 9.0))
        connection.execute("INSERT INTO replies VALUES (?,?,?,?,?)", row(b"b", "old", 1.0))
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
    first = journals.put(row(b"a", "x" * (LARGEST + 1)))
    second = journals.put(row(b"b"))
    assert first is not second
    journals.done(first)
    assert not first.path.exists()
    journals.done(second)
    assert (second.path.exists(), second.path.stat().st_size) == (True, 0)
    journals.close()
    assert not second.path.exists()


def test_a_folder_that_cannot_be_written_costs_only_the_journal(tmp_path):
    journals = Journals(tmp_path / "missing" / "replies.db")
    assert journals.put(row()) is None
    journals.done(None)
    journals.close()


def test_a_cache_in_use_has_its_replies_in_the_journal_before_the_commit(cache):
    async def use():
        found = ReplyCache(cache)
        done = found.put(b"a", "model", b"{}", 0.1)
        [path] = cache.parent.glob("*.journal")
        written = path.stat().st_size
        found.hurry()
        await done
        await asyncio.sleep(0)
        emptied = path.stat().st_size
        found.close()
        return written, emptied

    written, emptied = asyncio.run(use())
    assert written > 0
    assert emptied == 0
    assert not list(cache.parent.glob("*.journal"))
