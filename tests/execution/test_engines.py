"""The local engine: every item is done once and delivered, for any chunk size."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import karat
from karat.errors import Stopped
from karat.execution import engines as local
from karat.records import Failed


class Doubling:
    """Work that says which calls were made."""

    is_async = False

    def __init__(self) -> None:
        self.called: list[int] = []
        self.threads: set[int] = set()

    def call(self, item: int) -> int:
        self.called.append(item)
        self.threads.add(threading.get_ident())
        return 2 * item

    def timed_out(self, item: int, seconds: float) -> int:
        raise AssertionError("nothing takes that long")


def mapped(work: Doubling, count: int, concurrency: int = 100, timeout: float | None = None) -> list[list]:
    chunks: list[list] = []

    async def deliver(done) -> None:
        chunks.append(list(done))

    asyncio.run(local.LocalEngine(concurrency, timeout).map(work, iter(range(count)), deliver))  # type: ignore[arg-type]  # generic over what it maps
    return chunks


@pytest.mark.parametrize("concurrency", [1, 2, 7, 100])
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_every_item_once(concurrency, timeout):
    work = Doubling()
    chunks = mapped(work, 250, concurrency, timeout)
    assert sorted(work.called) == list(range(250))
    assert sorted(pair for chunk in chunks for pair in chunk) == [(i, 2 * i) for i in range(250)]
    assert max(map(len, chunks)) <= concurrency
    assert threading.get_ident() not in work.threads


def test_calls_that_turn_out_slow_leave_the_rest_of_their_chunk_to_others(monkeypatch):
    """Quick at first, so that chunks are large; then every call takes longer than a chunk may."""
    monkeypatch.setattr(local, "LONGEST_CHUNK_SECONDS", -1.0)
    work = Doubling()
    chunks = mapped(work, 50, concurrency=10)
    assert sorted(work.called) == list(range(50))
    assert {len(chunk) for chunk in chunks} == {1}


def test_returned_items_do_not_start_after_a_stop(monkeypatch):
    monkeypatch.setattr(local, "LONGEST_CHUNK_SECONDS", -1.0)
    work, kept = Doubling(), []
    engine = local.LocalEngine(10)

    async def deliver(done) -> None:
        kept.extend(done)
        if len(kept) >= 3:
            engine.stop()

    asyncio.run(engine.map(work, iter(range(50)), deliver))
    assert len(work.called) == len(kept) < 50


class StopsAt(Doubling):
    """Work that meets something at an item that no item after it can survive."""

    def __init__(self, item: int) -> None:
        super().__init__()
        self.item = item

    def call(self, item: int) -> int:
        if item == self.item:
            raise Stopped("the store is lost")
        return super().call(item)


def test_what_was_finished_before_a_chunk_met_a_stop_is_delivered(monkeypatch, refuses):
    monkeypatch.setattr(local, "LONGEST_CHUNK_SECONDS", 60.0)
    monkeypatch.setattr(local, "CHUNK_SECONDS", 60.0)  # all that concurrency allows is one chunk
    kept: list[tuple[int, int]] = []

    async def deliver(done) -> None:
        kept.extend(done)

    work = StopsAt(15)
    with refuses(Stopped):
        asyncio.run(local.LocalEngine(10).map(work, iter(range(50)), deliver))
    assert sorted(item for item, _ in kept) == sorted(work.called)
    assert len(kept) == 15


def test_finished_items_of_a_chunk_are_delivered_when_the_stage_is_cancelled(monkeypatch):
    monkeypatch.setattr(local, "LONGEST_CHUNK_SECONDS", 60.0)
    monkeypatch.setattr(local, "CHUNK_SECONDS", 60.0)
    reached, release, kept = threading.Event(), threading.Event(), []

    class Stuck(Doubling):
        def call(self, item: int) -> int:
            if item == 15:
                reached.set()
                release.wait(60)
            return super().call(item)

    async def deliver(done) -> None:
        kept.extend(item for item, _ in done)

    async def interrupted() -> None:
        stage = asyncio.ensure_future(local.LocalEngine(10).map(Stuck(), iter(range(50)), deliver))  # type: ignore[arg-type]  # generic over what it maps
        while not reached.is_set():
            await asyncio.sleep(0)
        stage.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stage

    asyncio.run(interrupted())
    release.set()
    assert sorted(kept) == list(range(15))


def parse(number: str) -> int:
    return int(number)


async def parse_in_a_thread(number: str) -> int:
    return await asyncio.to_thread(parse, number)


async def parse_in_a_pool(number: str) -> int:
    return await asyncio.get_running_loop().run_in_executor(None, int, number)


@pytest.mark.parametrize("task", [parse, parse_in_a_thread, parse_in_a_pool])
def test_the_frames_of_a_failure_are_those_of_the_task(task: Callable[..., object]) -> None:
    """Not of the modules of Python that start threads, which are the same for every failure."""
    (output,) = karat.run(task, [{"input": "three"}], store="memory://").outputs()
    assert isinstance(output.outcome, Failed)
    frames = output.outcome.error.where.split(" < ")
    assert [frame.partition(":")[0] for frame in frames] == ["test_engines.py"] * len(frames)
    assert frames[-1].endswith(f" {task.__name__}")
