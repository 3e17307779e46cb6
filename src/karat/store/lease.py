"""Leases: one process at a time works on a run or an evaluation; the lease of a dead process is taken over."""

from __future__ import annotations

import _thread
import functools
import os
import platform
import threading
import time
import uuid
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from karat.errors import StoreBusy, StoreError, option, wait_or_new
from karat.keys import Holder, digest
from karat.store.backend import Backend, LeaseRow

HEARTBEAT_SECONDS = 5.0
EXPIRES_AFTER_SECONDS = 30.0
"""A holder that this process cannot look up counts as dead after this time without a heartbeat."""

PERMIT_SECONDS = 20.0
"""For this time after a confirmed heartbeat no process can have taken over, and model calls need not ask the store.
Less than EXPIRES_AFTER_SECONDS, because a request takes a while to be sent."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds on a clock that also runs while the machine is suspended or this process is stopped."""
    return time.clock_gettime(_CLOCK)


UNKNOWN, ENDED = 0.0, -1.0


@functools.cache
def _machine() -> str:
    """An id of this machine since its boot and of this process namespace, in which a process number is unique."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return digest("\n".join(parts).encode(), 8)


def process_started(process: int) -> float:
    """When a process started, in clock ticks since boot, to distinguish it from a later one with the same number.

    ENDED when it is gone, UNKNOWN where the system does not say.
    """
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return ENDED if Path("/proc/self/stat").exists() else UNKNOWN
    except OSError:
        return UNKNOWN
    state, *fields = stat.rpartition(")")[2].split()
    return ENDED if state in "ZX" else float(fields[18])  # a zombie only waits for its parent to look


def new_lease(now: float) -> LeaseRow:
    """A lease of this process, starting now."""
    process = os.getpid()
    owner = f"{_machine()}-{uuid.uuid4().hex}"
    return LeaseRow(owner, platform.node(), process, process_started(process), now, now)


@contextmanager
def taking_lease(now: float) -> Iterator[LeaseRow]:
    """A lease of this process that is being written to the store, until it is `Held`.

    It counts as alive before it is in the store: another thread of this process would otherwise take it over.
    """
    lease = new_lease(now)
    _taking.add(lease.owner)
    try:
        yield lease
    finally:
        _taking.discard(lease.owner)


def is_alive(lease: LeaseRow, now: float) -> bool:
    """Whether the holder is alive: by the process table on this machine, by its heartbeat elsewhere."""
    if lease.owner.partition("-")[0] == _machine():
        if lease.process == os.getpid():
            return lease.owner in _taking or lease.owner in _held
        started = process_started(lease.process)
        if started != UNKNOWN:
            return started == lease.process_started
    return now - lease.heartbeat < EXPIRES_AFTER_SECONDS


def holder_of(backend: Backend, number: int) -> Holder | None:
    """The live holder of a header, for messages; None when it is free or its holder is dead."""
    lease = backend.lease(number)
    if lease is None or not is_alive(lease, backend.now()):
        return None
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(lease.since))
    return Holder(f"process {lease.process} on {lease.host}", since)


class Held:
    """A lease that a background thread renews until it is released.

    It is a thread so that a task that blocks the event loop does not cost the run its lease.
    """

    def __init__(self, backend: Backend, number: int, lease: LeaseRow, asked: float | None = None) -> None:
        self._backend = backend
        self._number = number
        self.owner = lease.owner
        self._stop = threading.Event()
        self._confirmed = clock() if asked is None else asked
        """When the last heartbeat that the store confirmed was sent."""
        self._renewing = threading.Lock()
        self.lost = False
        self._gone: StoreError | None = None
        _held[self.owner] = self
        if backend.shared:
            # `Thread.start` waits until the thread runs, which took a third of opening a run.
            _thread.start_new_thread(self._keep, ())

    @classmethod
    def take(cls, backend: Backend, number: int) -> Held:
        """Take a lease that is free or held by a dead process; raise StoreBusy if a live one holds it."""
        asked = clock()
        old = backend.lease(number)
        now = backend.now()
        if old is not None and is_alive(old, now):
            raise _busy(backend, number)
        with taking_lease(now) as lease:
            if not backend.take_lease(number, lease, old.owner if old else None):
                raise _busy(backend, number)
            return cls(backend, number, lease, asked)

    def _keep(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS) and not self.lost and self._gone is None:
            with suppress(StoreError):  # the stage meets the same problem at its next commit, and reports it
                self.beat()

    def beat(self) -> None:
        """Renew the lease in the store, and learn whether another process took it or the store was replaced."""
        try:
            self._backend.ensure_present()
        except StoreError as error:
            self._gone = error
            raise
        asked = clock()
        if self._backend.beat(self._number, self.owner, self._backend.now()):
            self._confirmed = asked
        elif not self._stop.is_set():
            self.lost = True

    def check(self) -> None:
        """Raise when another process took the lease because this one was silent, or the store was replaced."""
        if self._gone is not None:
            raise self._gone
        if self.lost:
            raise _busy(self._backend, self._number)

    def permit(self) -> Awaitable[None] | None:
        """Raise unless a model call may be made now; where the last heartbeat is too old, ask the store first.

        A process that was stopped or suspended finds out here, before it makes further calls, that another one works
        on the same run.
        """
        self.check()
        if not self._backend.shared or clock() - self._confirmed < PERMIT_SECONDS:
            return None
        import asyncio  # a tenth of what starting a command costs; only stages need it

        return asyncio.to_thread(self._renew)

    def _renew(self) -> None:
        with self._renewing:
            if clock() - self._confirmed >= PERMIT_SECONDS:
                self.beat()
        self.check()

    def release(self) -> None:
        """Release the lease. Where the store cannot be written, the lease ends with this process."""
        self.let_go()
        with suppress(StoreError):
            self._backend.release(self._number, self.owner)

    def let_go(self) -> None:
        """Stop holding it, without a write to the store: this process may take it again."""
        self._stop.set()
        _held.pop(self.owner, None)

    def is_of(self, backend: Backend, number: int) -> bool:
        """Whether it is the lease of this header."""
        return self._backend is backend and self._number == number


_taking: set[str] = set()
"""The owners of leases that this process is about to hold."""

_held: dict[str, Held] = {}
"""The leases of this process by their owners. One that is in the store and not here belongs to a stage that ended
while the store could not be written, or to an earlier process with the same number."""


def let_go(backend: Backend, number: int) -> None:
    """End this process's lease of a header that could not be written: the stage that held it is over."""
    for held in list(_held.values()):
        if held.is_of(backend, number):
            held.let_go()


def _busy(backend: Backend, number: int) -> StoreBusy:
    header, holder = backend.header(number), holder_of(backend, number)
    if header is None:
        return StoreBusy(
            f"another process removed this run or evaluation from {backend.url}: start again with {option('new', True)}"
        )
    who = f"{holder.who} since {holder.since}" if holder else "another process"
    return StoreBusy(f"{header.id} is held by {who}: {wait_or_new()}")
