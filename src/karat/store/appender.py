"""Group commits: an append returns when its record is committed."""

from __future__ import annotations

import asyncio
import time

from karat.store.backend import Backend, StoredRow

LONGEST_DELAY = 0.05
FIRST_DELAY = 0.002
SHARE = 10
"""A group is kept open SHARE times as long as a commit takes, so that committing costs at most about
a tenth of the time, whether a commit takes 0.1 ms (SQLite) or 5 ms (a server)."""
GROWTH = 1.2
"""How much the expected duration grows after a slower commit: a single slow one may only have waited for the
interpreter lock."""

LARGEST_BYTES = 4 << 20
"""A group of large records is committed at this size, to bound memory."""


class Appender:
    """Collects rows of one parent and commits them together, while `owner` holds its lease.

    A group is committed when everyone who could add to it is already waiting for it (`slots`), when it has
    become large, or when its time is up. Only one commit is under way at a time.
    """

    def __init__(self, backend: Backend, parent: int, slots: int, owner: str | None = None) -> None:
        self._backend = backend
        self._owner = owner
        self._parent = parent
        self._slots = slots
        self._rows: list[StoredRow] = []
        self._bytes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._opened = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._delay = FIRST_DELAY
        self._commit: asyncio.Task[None] | None = None
        self._unreported: BaseException | None = None

    async def append(self, *rows: StoredRow) -> None:
        """Add the rows of one item and return when they are committed.

        A caller that is cancelled while it waits gets no result, but its rows are committed with their group.
        """
        self._rows.extend(rows)
        for row in rows:
            self._bytes += len(row.payload)
        full = len(self._waiting) + 1 >= self._slots or self._bytes >= LARGEST_BYTES
        if full and self._backend.commits_briefly:
            self._commit_here()
            return
        loop = asyncio.get_running_loop()
        # A future for each: cancelling one that is shared would cancel everyone who waits for it.
        committed = loop.create_future()
        if not self._waiting:
            self._opened = loop.time()
        self._waiting.append(committed)
        if self._commit is None:
            self._commit_or_wait(loop)
        await committed

    def _commit_or_wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if len(self._waiting) >= self._slots or self._bytes >= LARGEST_BYTES:
            self._time_is_up()
        elif self._waiting and self._timer is None:
            self._timer = loop.call_at(self._opened + self._delay, self._time_is_up)

    async def close(self) -> None:
        """Wait for the commit in progress and commit the rest; raise an error that reached no caller."""
        while self._commit is not None:
            await asyncio.wait([self._commit])
        if self._rows:
            self._commit_here()
        if self._unreported is not None:
            raise self._unreported

    def _time_is_up(self) -> None:
        if not self._backend.commits_briefly:
            rows, waiting = self._take()
            self._commit = asyncio.get_running_loop().create_task(self._commit_in_thread(rows, waiting))
            return
        waiting = self._waiting
        try:
            self._commit_here()
        except Exception as error:
            if all(each.cancelled() for each in waiting):
                self._unreported = error

    def _take(self) -> tuple[list[StoredRow], list[asyncio.Future[None]]]:
        rows, waiting = self._rows, self._waiting
        self._rows, self._waiting, self._bytes = [], [], 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return rows, waiting

    def _commit_here(self) -> None:
        rows, waiting = self._take()
        start = time.perf_counter()
        try:
            self._backend.append(self._parent, rows, self._owner)
        except BaseException as error:
            _resolve(waiting, error)
            raise
        self._delay = min(LONGEST_DELAY, SHARE * (time.perf_counter() - start), self._delay * GROWTH)
        if waiting:
            _resolve(waiting, None)

    async def _commit_in_thread(self, rows: list[StoredRow], waiting: list[asyncio.Future[None]]) -> None:
        start = time.perf_counter()
        try:
            await asyncio.to_thread(self._backend.append, self._parent, rows, self._owner)
        except asyncio.CancelledError:
            self._commit = None
            raise
        except BaseException as error:
            if all(each.cancelled() for each in waiting):
                self._unreported = error
            _resolve(waiting, error)
        else:
            _resolve(waiting, None)
        self._delay = min(LONGEST_DELAY, SHARE * (time.perf_counter() - start), self._delay * GROWTH)
        self._commit = None
        self._commit_or_wait(asyncio.get_running_loop())


def _resolve(waiting: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for each in waiting:
        if each.done():
            continue  # cancelled while it waited
        if error is None:
            each.set_result(None)
        else:
            each.set_exception(error)
            each.exception()  # retrieved: the waiter raises it, unless it is cancelled at this very moment
