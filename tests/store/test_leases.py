"""Leases: one live process works on a run; a dead one's lease is taken over."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

import karat
from karat.errors import StoreBusy, StoreError
from karat.store import Store, lease
from karat.store.backend import OK, LeaseRow, StoredRow
from karat.store.lease import (
    EXPIRES_AFTER_SECONDS,
    PERMIT_SECONDS,
    Held,
    holder_of,
    is_alive,
    new_lease,
    process_started,
)
from karat.store.repositories import Runs
from tests.store.conftest import Child, add_header
from tests.store.faulty import FaultyBackend


def elsewhere(heartbeat: float) -> LeaseRow:
    """A lease of a process on another machine."""
    return LeaseRow("another-machine-owner", "elsewhere", 1, 1.0, 0.0, heartbeat)


def row(position: int) -> StoredRow:
    return StoredRow(position, "1", 1, OK, None, b"{}")


def test_a_live_holder_is_named_with_since_when(store: Store, refuses) -> None:
    run = add_header(store)
    held = Held.take(store.backend, run)
    with refuses(StoreBusy) as refused:
        Held.take(store.backend, run)
    holder = holder_of(store.backend, run)
    assert holder is not None
    assert holder.who.startswith(f"process {os.getpid()} on ")
    assert f" {holder.who} since {holder.since}: " in str(refused.value)
    held.release()
    assert holder_of(store.backend, run) is None
    Held.take(store.backend, run).release()


def test_another_thread_does_not_take_a_lease_that_was_just_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def looked_at(name: str, number: Callable[..., int]) -> None:
        """Let another thread look between the write of a lease and what this thread does next."""
        write = getattr(store.backend, name)

        def written(*arguments: object) -> object:
            result = write(*arguments)
            seen.append(holder_of(store.backend, number(result, *arguments)) is not None)
            return result

        monkeypatch.setattr(store.backend, name, written)

    run = add_header(store)
    dataset = store.datasets.put(karat.Dataset.from_examples([{"input": "q"}]))
    looked_at("take_lease", lambda _, number, *__: number)
    looked_at("insert_header", lambda result, *_: result)
    Held.take(store.backend, run).release()
    karat.run(str.upper, dataset, store=store)
    assert seen == [True, True]  # the lease that was taken, and that of the new run


def test_a_lease_that_could_not_be_written_is_not_held(store: Store) -> None:
    run = add_header(store)
    faulty = FaultyBackend(store.backend, made=True)
    faulty.fail_at = 1
    with pytest.raises(StoreError):
        Held.take(faulty, run)  # type: ignore[arg-type]  # passes everything on to one
    assert holder_of(store.backend, run) is None
    Held.take(store.backend, run).release()


def test_a_killed_process_is_taken_over(shared: Store, url: str, child: Callable[..., Child]) -> None:
    run = add_header(shared)
    other = child("hold", url, run)
    other.wait_for("held")
    with pytest.raises(StoreBusy, match=f"process {other.process.pid} on "):
        Held.take(shared.backend, run)
    other.kill()
    os.waitid(os.P_PID, other.process.pid, os.WEXITED | os.WNOWAIT)  # a zombie, whose number still exists
    assert holder_of(shared.backend, run) is None
    Held.take(shared.backend, run).release()


def test_a_later_process_with_the_same_number_is_another(
    shared: Store, url: str, child: Callable[..., Child]
) -> None:
    other = child("hold", url, add_header(shared))
    other.wait_for("held")
    taken = new_lease(0.0)._replace(
        process=other.process.pid, process_started=process_started(other.process.pid)
    )
    assert is_alive(taken, now=1e9)
    assert not is_alive(taken._replace(process_started=taken.process_started - 1), now=1e9)


def test_a_lease_of_an_earlier_process_with_our_own_number(store: Store) -> None:
    run = add_header(store)
    assert store.backend.take_lease(run, new_lease(store.backend.now()), None)
    assert holder_of(store.backend, run) is None, "this process knows what it holds"
    Held.take(store.backend, run).release()


def test_where_processes_cannot_be_looked_up_the_heartbeat_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_alive(elsewhere(heartbeat=100.0), now=100.0 + EXPIRES_AFTER_SECONDS - 1)
    assert not is_alive(elsewhere(heartbeat=100.0), now=100.0 + EXPIRES_AFTER_SECONDS)
    monkeypatch.setattr(lease, "process_started", lambda process: lease.UNKNOWN)
    here = new_lease(100.0)._replace(process=1)
    assert is_alive(here, now=101.0)
    assert not is_alive(here, now=100.0 + EXPIRES_AFTER_SECONDS)


def test_the_same_host_name_with_other_processes_is_another_machine() -> None:
    mine = new_lease(100.0)
    container = mine._replace(owner="0123456789abcdef-other", process=2**22 + 1)
    assert is_alive(container, now=101.0), "its process table is not ours"


def test_a_lost_heartbeat_stops_the_stage(store: Store, refuses) -> None:
    run = add_header(store)
    held = Held.take(store.backend, run)
    held.beat()
    held.check()
    mine = store.backend.lease(run)
    assert mine is not None
    assert store.backend.take_lease(run, elsewhere(store.backend.now()), mine.owner)
    held.beat()
    with refuses(StoreBusy) as caught:
        held.check()
    assert "process 1 on elsewhere" in str(caught.value)
    held.release()
    assert store.backend.lease(run) is not None, "what another holds is not given back"


def test_an_append_checks_the_owner_in_its_transaction(store: Store, refuses) -> None:
    run = add_header(store)
    held = Held.take(store.backend, run)
    assert store.backend.append(run, [row(0)], held.owner) == 1
    assert store.backend.take_lease(run, elsewhere(store.backend.now()), held.owner)
    with refuses(StoreBusy) as caught:
        store.backend.append(run, [row(1)], held.owner)
    assert "process 1 on elsewhere" in str(caught.value)
    store.backend.release(run, elsewhere(0).owner)
    with refuses(StoreBusy):
        store.backend.append(run, [row(1)], held.owner)
    assert [each.position for each in store.backend.scan(run, 0, 10)] == [0]
    held.release()


async def test_a_model_call_needs_a_recent_heartbeat(
    shared: Store, monkeypatch: pytest.MonkeyPatch, refuses
) -> None:
    run = add_header(shared)
    now = [1000.0]
    monkeypatch.setattr(lease, "clock", lambda: now[0])
    held = Held.take(shared.backend, run)
    beats = []
    beat = shared.backend.beat
    monkeypatch.setattr(shared.backend, "beat", lambda *given: beats.append(1) or beat(*given))  # type: ignore[func-returns-value]  # called for its effect
    assert held.permit() is None
    now[0] += PERMIT_SECONDS - 0.1
    assert held.permit() is None
    assert beats == []
    now[0] += 0.2  # the process was stopped, or the machine suspended
    waited = held.permit()
    assert waited is not None
    await waited
    assert len(beats) == 1
    assert held.permit() is None, "renewed"
    mine = shared.backend.lease(run)
    assert mine is not None
    assert shared.backend.take_lease(run, elsewhere(shared.backend.now()), mine.owner)
    assert held.permit() is None, "a takeover needs more than PERMIT_SECONDS of silence"
    now[0] += EXPIRES_AFTER_SECONDS
    waited = held.permit()
    assert waited is not None
    with refuses(StoreBusy) as caught:
        await waited
    assert "process 1 on elsewhere" in str(caught.value)
    with pytest.raises(StoreBusy):
        held.permit()
    held.release()


def test_the_clock_of_leases_runs_while_a_machine_is_suspended() -> None:
    assert getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) == lease._CLOCK
    assert PERMIT_SECONDS < EXPIRES_AFTER_SECONDS


def test_a_lease_of_what_was_removed_is_lost(store: Store, refuses) -> None:
    run = add_header(store)
    held = Held.take(store.backend, run)
    store.backend.delete(["run-0000000001"])
    held.beat()
    with refuses(StoreBusy):
        held.check()
    held.release()


def test_a_heartbeat_renews_the_lease_in_a_separate_thread(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_header(shared)
    renewed = threading.Event()
    beat = shared.backend.beat

    def noticed(number: int, owner: str, heartbeat: float) -> bool:
        found = beat(number, owner, heartbeat)
        renewed.set()
        return found

    monkeypatch.setattr(shared.backend, "beat", noticed)
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.001)
    held = Held.take(shared.backend, run)
    before = shared.backend.lease(run)
    assert renewed.wait(30)
    after = shared.backend.lease(run)
    assert before is not None
    assert after is not None
    assert (after.owner, after.since) == (before.owner, before.since)
    assert after.heartbeat >= before.heartbeat
    held.release()


def test_a_store_that_fails_occasionally_does_not_end_the_heartbeat(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_header(shared)
    twice = threading.Semaphore(0)

    def failing(number: int, owner: str, heartbeat: float) -> bool:
        twice.release()
        raise StoreError("the network is away")

    monkeypatch.setattr(shared.backend, "beat", failing)
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.001)
    held = Held.take(shared.backend, run)
    assert twice.acquire(timeout=30)
    assert twice.acquire(timeout=30)
    held.check()
    held.release()


def test_one_of_two_processes_takes_over(store: Store) -> None:
    run = add_header(store)
    dead = new_lease(store.backend.now())
    assert store.backend.take_lease(run, dead, None)
    first, second = new_lease(store.backend.now()), new_lease(store.backend.now())
    assert store.backend.take_lease(run, first, dead.owner)
    assert not store.backend.take_lease(run, second, dead.owner)
    assert not store.backend.take_lease(run, second, None)
    assert store.backend.lease(run) == first


def test_a_stage_that_could_not_release_its_lease_does_not_lock_itself_out(store: Store) -> None:
    run = add_header(store)
    faulty = FaultyBackend(store.backend)
    held = Held.take(faulty, run)
    faulty.fail_at = faulty.writes + 1
    held.release()
    assert store.backend.lease(run) is not None
    Held.take(store.backend, run).release()


def test_a_header_that_cannot_be_written_ends_the_lease(store: Store) -> None:
    run = add_header(store)
    faulty = Store(FaultyBackend(store.backend))
    Held.take(faulty.backend, run)
    faulty.backend.fail_at = faulty.backend.writes + 1  # type: ignore[attr-defined]  # the faulty one
    with pytest.raises(StoreError):
        Runs(faulty).save(run, None)  # type: ignore[arg-type]  # whatever it says
    Held.take(store.backend, run).release()


def test_the_start_time_of_a_process() -> None:
    assert process_started(os.getpid()) > 0
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert process_started(ended.pid) == lease.ENDED
