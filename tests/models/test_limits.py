"""Concurrency, rate limits and back-off, on a fake clock."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.errors import RequestError
from karat.models import Limits, RateLimited, get, recording
from karat.models._limits import Limiter
from karat.testing import Failing, FakeClock, FakeProvider


class Server:
    """Something with limits of its own, for limiters to press."""

    def __init__(self, clock, seconds=1.0):
        self.clock, self.seconds = clock, seconds
        self.active = self.most = 0
        self.started = []

    async def call(self, limiter, tokens=0.0):
        permit = await limiter.acquire(tokens)
        self.active += 1
        self.most = max(self.most, self.active)
        self.started.append(self.clock.time())
        await self.clock.sleep(self.seconds)
        self.active -= 1
        limiter.succeeded(permit, None)


async def test_no_more_than_allowed_are_in_flight_and_all_get_their_turn():
    clock = FakeClock()
    limiter, server = Limiter(Limits(concurrency=7), clock), Server(clock)
    await asyncio.gather(*(server.call(limiter) for _ in range(50)))
    assert server.most == 7
    assert len(server.started) == 50
    assert limiter.active == 0


async def test_requests_per_minute_are_kept_to():
    clock = FakeClock()
    limiter, server = Limiter(Limits(requests_per_minute=120), clock), Server(clock, 0.0)
    await asyncio.gather(*(server.call(limiter) for _ in range(50)))
    started = sorted(server.started)
    for first in started:
        assert sum(first <= other < first + 10 for other in started) <= 22  # 2 a second, and 2 at once
    assert started[-1] - started[0] == pytest.approx(24, abs=1)


async def test_tokens_per_minute_are_kept_to_and_corrected():
    clock = FakeClock()
    limiter = Limiter(Limits(tokens_per_minute=6000), clock)
    permit = await limiter.acquire(100)
    limiter.succeeded(permit, 1100)  # it took a thousand more than expected: ten seconds' worth
    before = clock.time()
    await limiter.acquire(100)
    assert clock.time() - before == pytest.approx(11)


async def test_a_429_halves_once_however_many_were_under_way():
    clock = FakeClock()
    limiter = Limiter(Limits(concurrency=64), clock)
    permits = [await limiter.acquire(0) for _ in range(64)]
    for permit in permits:
        limiter.limited(permit)
    assert limiter.allowed == 32
    clock.now += 2
    limiter.limited(await limiter.acquire(0))
    assert limiter.allowed == 16


async def test_it_never_goes_below_one_and_grows_back():
    clock = FakeClock()
    limiter = Limiter(Limits(concurrency=100), clock)
    for _ in range(20):
        limiter.limited(await limiter.acquire(0))
        clock.now += 2
    assert limiter.allowed == 1
    successes = 0
    while limiter.allowed < 100:
        limiter.succeeded(await limiter.acquire(0), None)
        successes += 1
    assert successes < 2000


async def test_adaptation_can_be_switched_off():
    limiter = Limiter(Limits(concurrency=10, adaptive=False), FakeClock())
    limiter.limited(await limiter.acquire(0))
    assert limiter.allowed == 10


async def test_a_pause_holds_everybody():
    clock = FakeClock()
    limiter, server = Limiter(Limits(), clock), Server(clock, 0.0)
    limiter.pause(30)
    await asyncio.gather(*(server.call(limiter) for _ in range(5)))
    assert min(server.started) >= 1030


async def test_a_cancelled_waiter_frees_its_slot():
    clock = FakeClock()
    limiter = Limiter(Limits(concurrency=1), clock)
    held = await limiter.acquire(0)
    gives_up = asyncio.ensure_future(limiter.acquire(0))
    waits = asyncio.ensure_future(limiter.acquire(0))
    await asyncio.sleep(0)
    limiter.failed(held)
    gives_up.cancel()  # it had its place already when it was cancelled
    permit = await waits
    limiter.failed(permit)
    assert limiter.active == 0


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["ok", "limited", "failed", "wait"]), max_size=200), st.integers(1, 40))
async def test_the_adaptive_limit_stays_in_bounds(events, concurrency):
    clock = FakeClock()
    limiter = Limiter(Limits(concurrency=concurrency), clock)
    for event in events:
        if event == "wait":
            clock.now += 1.5
            continue
        permit = await limiter.acquire(0)
        if event == "ok":
            limiter.succeeded(permit, None)
        elif event == "limited":
            limiter.limited(permit)
        else:
            limiter.failed(permit)
        assert 1 <= limiter.allowed <= concurrency
        assert limiter.active == 0


async def test_the_models_own_limit_is_kept_to_over_http(quick):
    with FakeProvider(latency=0.005) as server:
        model = quick(server, limits="{concurrency: 5}")
        await asyncio.gather(*(model.generate(f"{n}") for n in range(40)))
        assert server.most_in_flight == 5


async def test_a_storm_of_429_and_dropped_connections_is_weathered(quick):
    """30 % of 2,000 requests get a 429 and 5 % are dropped; all succeed, none is asked more than its retries."""
    from karat.models._runtime import shared

    with FakeProvider(rates={"429": 0.3, "drop": 0.05}, seed=7) as server:
        model = quick(server, limits="{concurrency: 64}", retries="{limit: 10, base: 0.002, cap: 0.02}")
        process = shared()
        limiter = process.service.limiter(model.endpoint)
        cut = []

        async def ask(number):
            with recording(example=str(number)) as calls:
                reply = await model.generate(f"question {number}")
            cut.append(limiter.allowed)
            assert reply.text == f"question {number}"
            assert len(reply.attempts) <= 10
            assert not calls[0].error

        gate = asyncio.Semaphore(200)

        async def gated(number):
            async with gate:
                await ask(number)

        await asyncio.gather(*(gated(number) for number in range(2000)))
        assert max(server.counts.values()) <= 11
        assert server.count > 2800
        assert limiter.cuts >= 1
        assert min(cut) < 64
        server.script.rates = {}
        await asyncio.gather(*(gated(number) for number in range(2000, 3000)))
        assert limiter.allowed == 64


async def test_nothing_left_pauses_the_model(quick):
    from karat.models._runtime import shared

    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "40ms"}
    with FakeProvider(failures={1: Failing(status=429, headers=headers)}) as server:
        reply = await quick(server).generate("x")
        assert reply.attempts[0].waited >= 0.04
        assert shared().service.limiter(get("quick").endpoint).cuts == 1


async def test_retry_after_pauses_all_requests_of_the_model(quick):
    """The second request starts no earlier than the first one's retry."""
    from karat.models._runtime import shared
    from karat.models._service import Service

    clock = FakeClock()
    headers = {"retry-after": "30"}
    with FakeProvider(failures={1: Failing(status=429, headers=headers)}) as server:
        model = quick(server, limits="{concurrency: 1}")

        async def two():
            service = Service(clock, lambda: 0.5)
            try:
                orders = [model._pending(text, {}).context for text in "ab"]
                await asyncio.gather(*map(service.generate, orders))
            finally:
                await service.aclose()

        await shared().background.call(two())
        assert server.count == 3
    assert clock.time() >= 1030
    assert all(wait >= 29 for wait in clock.slept)


async def test_a_wait_beyond_the_limit_does_not_delay_other_requests(quick):
    with FakeProvider(failures={1: Failing(status=429, headers={"retry-after": "3600"})}) as server:
        model = quick(server)
        with pytest.raises(RateLimited):
            await model.generate("a")
        assert (await model.generate("b")).text == "b"


@pytest.mark.parametrize(
    ("limits", "seconds"), [("{requests_per_minute: 60}", 9), ("{tokens_per_minute: 600}", 9)]
)
async def test_rates_of_models_yaml_are_kept_to(quick, limits, seconds):
    from karat.models._runtime import shared
    from karat.models._service import Service

    clock = FakeClock()
    with FakeProvider(lambda body: {"text": "x", "usage": (9, 1)}) as server:
        model = quick(server, limits=limits)

        async def ten():
            service = Service(clock)
            try:
                for number in range(10):
                    await service.generate(model._pending(f"{number}", {}).context)
            finally:
                await service.aclose()

        await shared().background.call(ten())
        assert server.count == 10
    assert clock.time() - 1000 == pytest.approx(seconds, abs=2)


async def test_a_request_that_no_minute_has_room_for_is_refused(define, provider):
    define(f"slow: {{model: m, base_url: '{provider.url}', limits: {{tokens_per_minute: 100}}}}\n")
    model = get("slow")
    with pytest.raises(RequestError, match=r"tokens_per_minute is 100: lower max_tokens"):
        await model.generate("x", max_tokens=500)
    assert provider.count == 0
    assert (await model.generate("x")).text == "x"
