"""Before each request a stage is asked; and where the time of a call went is recorded."""

from __future__ import annotations

import asyncio

import pytest

from karat import models
from karat.errors import Stopped
from karat.models import _batches
from karat.testing import Failing, FakeProvider


class Lost(Stopped):
    """The lease of a stage is lost."""


async def test_nothing_is_sent_without_permission(quick):
    asked = []

    def permit():
        asked.append(len(asked))
        if len(asked) > 2:
            raise Lost("another process holds the run")

    with FakeProvider(failures={1: 500}) as server:
        model = quick(server)
        with models.recording(example="1", permit=permit) as calls:
            assert (await model.generate("a")).text == "a"  # which took two requests
            with pytest.raises(Lost):
                await model.generate("b")
        assert server.count == 2
        assert len(asked) == 3
        assert isinstance(calls.stopped, Lost)
        assert calls[1].error.startswith("Lost: ")
        assert calls[1].usage.cost in (None, 0.0)


async def test_permission_may_take_its_time(quick):
    """A stage renews its lease in the store: that is awaited, and other calls go on."""
    released = asyncio.Event()

    async def permit():
        await asyncio.sleep(0)
        order.append("renewed")

    order: list[str] = []
    with FakeProvider() as server, models.recording(example="1", permit=permit):
        await quick(server).generate("a")
        released.set()
    assert order == ["renewed"]
    assert server.count == 1


async def test_cached_requests_need_no_permission(quick):
    with FakeProvider() as server:
        model = quick(server)
        with models.recording(example="1"):
            await model.generate("a")

        def permit():
            raise Lost("lost")

        with models.recording(example="1", permit=permit):
            assert (await model.generate("a")).cached


async def test_permission_is_asked_after_the_wait_for_a_place(quick):
    """A lease can be lost while calls wait for each other: none of those that wait is sent."""
    lost = False

    def permit():
        if lost:
            raise Lost("lost")

    with FakeProvider(latency=0.05) as server:
        model = quick(server, limits="{concurrency: 1}")
        with models.recording(example="1", permit=permit):
            calls = [asyncio.ensure_future(model.generate(f"{n}")) for n in range(5)]
            while server.count < 1:
                await asyncio.sleep(0.001)
            lost = True
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert server.count == 1
    assert [type(outcome).__name__ for outcome in outcomes] == ["Reply", *["Lost"] * 4]


async def test_permission_is_asked_before_each_batch_is_made(monkeypatch):
    """Sending the requests of a batch takes minutes: a lease can be lost before the next one."""
    monkeypatch.setattr(_batches, "SETTLED", 0.05)
    monkeypatch.setitem(_batches.LIMITS, "openai", (2, 10**6))
    with FakeProvider() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key-for-tests")

        def permit():
            if server.batches.count:
                raise Lost("another process holds the run")

        model = models.get("openai/gpt-4o-mini")
        with models.recording(example="1", permit=permit, batch=True) as calls:
            outcomes = await asyncio.gather(
                *(model.generate(f"{n}") for n in range(6)), return_exceptions=True
            )
    assert server.batches.count == 1
    assert [type(outcome).__name__ for outcome in outcomes[2:]] == ["Lost"] * 4
    assert isinstance(calls.stopped, Lost)


async def test_service_and_queue_time_are_recorded_apart(provider, define):
    """A back-off is time in the queue, not of service."""
    provider.script.failures = {1: Failing(status=429, headers={"retry-after": "0.05"}), 2: 500}
    define(f"slow:\n  model: m\n  base_url: {provider.url}\n  retries: {{base: 0.0001}}\n")
    with models.recording(example="1") as calls:
        reply = await models.get("slow").generate("a")
    (call,) = calls
    assert (call.service_seconds, call.queue_seconds) == (reply.service_seconds, reply.queue_seconds)
    assert call.queue_seconds >= 0.05  # the wait that was asked for
    assert call.service_seconds >= reply.seconds > 0  # with two attempts that failed
    with models.recording(example="1") as again:
        await models.get("slow").generate("a")
    assert again[0].cached
    assert again[0].service_seconds == pytest.approx(reply.seconds)
    assert again[0].queue_seconds == 0


async def test_a_failed_call_records_its_times(quick):
    with FakeProvider(rates={"500": 1.0}) as server:
        model = quick(server, retries="{limit: 2, base: 0.001}")
        with models.recording(example="1") as calls, pytest.raises(models.ServerFailed):
            await model.generate("a")
    assert calls[0].service_seconds > 0
    assert calls[0].queue_seconds > 0


async def test_waiting_for_a_place_counts_as_queue(quick):
    with FakeProvider(latency=0.02) as server:
        model = quick(server, limits="{concurrency: 1}")
        with models.recording(example="1") as calls:
            await asyncio.gather(*(model.generate(f"{n}") for n in range(4)))
    waits = sorted(call.queue_seconds for call in calls)
    assert waits[-1] > waits[0]
    assert all(call.service_seconds >= 0.02 for call in calls)
    assert waits[-1] >= 0.04
