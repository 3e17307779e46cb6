"""Group commits: an append returns when committed, every waiter is notified, nothing is lost at the end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from karat.errors import StoreError
from karat.execution.pipeline import LARGEST_BYTES, LONGEST_DELAY, Appender
from karat.store import Store
from karat.store.backend import OK, StoredRow
from tests.store.conftest import add_header


class Counting:
    """A backend that remembers its commits; `gate` holds them back, `failures` makes them fail."""

    def __init__(self, *, briefly: bool, failures: int = 0) -> None:
        self.commits_briefly = briefly
        self.commits: list[list[int]] = []
        self.threads: set[int] = set()
        self.failures = failures
        self.gate = threading.Event()
        self.gate.set()

    def append(self, parent: int, rows: list[StoredRow], owner: str | None = None) -> int:
        assert self.gate.wait(30)
        self.threads.add(threading.get_ident())
        if self.failures:
            self.failures -= 1
            raise StoreError("disk I/O error")
        self.commits.append([row.position for row in rows])
        return len(rows)

    @property
    def committed(self) -> list[int]:
        return [position for commit in self.commits for position in commit]


def row(position: int, payload: bytes = b"{}") -> StoredRow:
    return StoredRow(position, "1", 1, OK, None, payload)


def appender(backend: Any, slots: int) -> Appender:
    return Appender(backend, 1, slots)


briefly = pytest.mark.parametrize("briefly", [True, False], ids=["on the loop", "in a thread"])


@briefly
async def test_an_append_returns_when_its_record_is_committed(briefly: bool) -> None:
    backend = Counting(briefly=briefly)
    rows = appender(backend, slots=4)

    async def one(position: int) -> None:
        await rows.append(row(position))
        assert position in backend.committed

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for position in range(50):
            group.create_task(one(position))
    await rows.close()
    assert sorted(backend.committed) == list(range(50))


@briefly
async def test_a_group_is_committed_as_soon_as_all_who_could_add_to_it_wait(briefly: bool) -> None:
    backend = Counting(briefly=briefly)
    rows = appender(backend, slots=8)
    rows._delay = 3600.0  # its time is never up
    async with asyncio.timeout(30):
        for start in (0, 8, 16):
            await asyncio.gather(*(rows.append(row(n)) for n in range(start, start + 8)))
    assert backend.commits == [list(range(8)), list(range(8, 16)), list(range(16, 24))]
    assert (threading.get_ident() in backend.threads) == briefly


@briefly
async def test_a_single_slot_never_waits(briefly: bool) -> None:
    backend = Counting(briefly=briefly)
    rows = appender(backend, slots=1)
    rows._delay = 3600.0
    async with asyncio.timeout(30):
        for position in range(5):
            await rows.append(row(position), row(position + 100))
    assert backend.commits == [[n, n + 100] for n in range(5)]


@briefly
async def test_a_group_that_is_not_full_is_committed_when_its_time_is_up(briefly: bool) -> None:
    backend = Counting(briefly=briefly)
    rows = appender(backend, slots=1000)
    async with asyncio.timeout(30):
        await asyncio.gather(*(rows.append(row(n)) for n in range(3)))
        await rows.append(row(3))
    assert backend.commits == [[0, 1, 2], [3]]
    assert rows._delay <= LONGEST_DELAY == 0.05


@briefly
async def test_large_records_do_not_wait_for_each_other(briefly: bool) -> None:
    backend = Counting(briefly=briefly)
    rows = appender(backend, slots=1000)
    rows._delay = 3600.0
    half = b"x" * (LARGEST_BYTES // 2)
    async with asyncio.timeout(30):
        await asyncio.gather(*(rows.append(row(n, half)) for n in range(4)))
    assert backend.commits == [[0, 1], [2, 3]]


@briefly
async def test_a_commit_that_fails_reaches_everyone_who_waits_for_it(briefly: bool) -> None:
    backend = Counting(briefly=briefly, failures=1)
    rows = appender(backend, slots=3)
    async with asyncio.timeout(30):
        told = await asyncio.gather(*(rows.append(row(n)) for n in range(3)), return_exceptions=True)
        assert [str(error) for error in told] == ["disk I/O error"] * 3
        await asyncio.gather(*(rows.append(row(n)) for n in range(3, 6)))
        await rows.close()
    assert backend.commits == [[3, 4, 5]], "the next group is not harmed, and the failed one not sent twice"


@briefly
async def test_a_commit_that_fails_when_its_time_is_up_reaches_everyone(briefly: bool) -> None:
    backend = Counting(briefly=briefly, failures=1)
    rows = appender(backend, slots=100)
    async with asyncio.timeout(30):
        told = await asyncio.gather(*(rows.append(row(n)) for n in range(3)), return_exceptions=True)
        assert [type(error) for error in told] == [StoreError] * 3
        await rows.append(row(3))
    await rows.close()
    assert backend.commits == [[3]]


@briefly
async def test_a_cancelled_waiter_loses_no_slot(briefly: bool) -> None:
    backend = Counting(briefly=briefly)
    rows = appender(backend, slots=3)
    rows._delay = 3600.0
    first, second = (asyncio.ensure_future(rows.append(row(n))) for n in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await rows.append(row(2))
        await second
    assert first.cancelled()
    assert backend.commits == [[0, 1, 2]]


@briefly
async def test_close_commits_what_cancelled_waiters_left(briefly: bool) -> None:
    backend = Counting(briefly=briefly)
    rows = appender(backend, slots=100)
    rows._delay = 3600.0
    waiting = [asyncio.ensure_future(rows.append(row(n))) for n in range(5)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert backend.commits == []
    await rows.close()
    assert backend.commits == [[0, 1, 2, 3, 4]]
    await rows.close()
    assert backend.commits == [[0, 1, 2, 3, 4]]


@briefly
async def test_close_raises_an_error_that_reached_no_caller(briefly: bool) -> None:
    backend = Counting(briefly=briefly, failures=1)
    rows = appender(backend, slots=2)
    rows._delay = 3600.0
    waiting = asyncio.ensure_future(rows.append(row(0)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    rows._time_is_up()
    with pytest.raises(StoreError):
        await rows.close()


async def test_rows_that_come_while_a_commit_is_under_way_are_committed_after_it() -> None:
    backend = Counting(briefly=False)
    backend.gate.clear()
    rows = appender(backend, slots=2)
    async with asyncio.timeout(30):
        first = [asyncio.ensure_future(rows.append(row(n))) for n in (0, 1)]
        await asyncio.sleep(0)
        # Fewer than the slots: they are committed because their time is up, not because they are enough.
        late = asyncio.ensure_future(rows.append(row(2)))
        await asyncio.sleep(0)
        assert backend.commits == []
        backend.gate.set()
        await asyncio.gather(*first, late)
    assert backend.commits == [[0, 1], [2]]


async def test_rows_that_come_while_a_commit_fails_are_committed_after_it() -> None:
    backend = Counting(briefly=False, failures=1)
    backend.gate.clear()
    rows = appender(backend, slots=1)
    async with asyncio.timeout(30):
        first, late = (asyncio.ensure_future(rows.append(row(n))) for n in range(2))
        await asyncio.sleep(0)
        backend.gate.set()
        told = await asyncio.gather(first, late, return_exceptions=True)
    assert isinstance(told[0], StoreError)
    assert told[1] is None
    assert backend.commits == [[1]]


async def test_close_waits_for_the_commit_under_way() -> None:
    backend = Counting(briefly=False)
    backend.gate.clear()
    rows = appender(backend, slots=1)
    waiting = [asyncio.ensure_future(rows.append(row(n))) for n in range(3)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    closing = asyncio.ensure_future(rows.close())
    await asyncio.sleep(0)
    assert not closing.done()
    backend.gate.set()
    async with asyncio.timeout(30):
        await closing
    assert sorted(backend.committed) == [0, 1, 2]


async def test_many_writers_over_a_real_store(store: Store) -> None:
    run = add_header(store)
    rows = Appender(store.backend, run, 16)

    async def write(worker: int) -> None:
        for n in range(25):
            await rows.append(row(worker * 25 + n))

    async with asyncio.timeout(60):
        await asyncio.gather(*(write(worker) for worker in range(16)))
        await rows.close()
    assert [r.position for r in store.backend.scan(run, 0, 400)] == list(range(400))
