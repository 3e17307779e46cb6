"""Retries: back-off, jitter, and waits requested by providers, on a fake clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.errors import CredentialsRefused
from karat.models import ConnectionRefused, ModelFailure, RateLimited, Retries, ServerFailed, TimedOut
from karat.models._limits import requested_wait, reset_wait, with_retries
from karat.testing import FakeClock


def script(*steps):
    """An `ask` that raises or returns the steps, one at a time, the last one for ever."""
    left = list(steps)

    async def ask():
        step = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(step, Exception):
            raise step
        return step

    return ask


async def run(*steps, retries=None, random=lambda: 1.0):
    clock, attempts = FakeClock(), []
    asked = with_retries(script(*steps), retries or Retries(), clock=clock, random=random, attempts=attempts)
    try:
        return await asked, clock, attempts
    except ModelFailure as failure:
        return failure, clock, attempts


async def test_back_off_doubles_up_to_the_cap():
    value, clock, attempts = await run(*[ServerFailed("x", status=500) for _ in range(8)], "done")
    assert value == "done"
    assert clock.slept == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [attempt.waited for attempt in attempts] == clock.slept


async def test_jitter_is_full():
    draws = iter([0.0, 0.5, 0.25])
    _, clock, _ = await run(*[ServerFailed("x")] * 3, "done", random=lambda: next(draws))
    assert clock.slept == [0.0, 0.5, 0.5]


async def test_retry_after_is_honoured_with_a_little_jitter():
    _, clock, _ = await run(RateLimited("x", wait=7.0), "done", random=lambda: 0.5)
    assert clock.slept == [7.25]


async def test_a_wait_that_is_too_long_is_not_waited_for():
    value, clock, attempts = await run(RateLimited("x", wait=3600.0), "done")
    assert isinstance(value, RateLimited)
    assert clock.slept == []
    assert len(attempts) == 1


async def test_the_limit_counts_retries():
    value, clock, attempts = await run(RateLimited("x"), retries=Retries(limit=3))
    assert isinstance(value, RateLimited)
    assert len(clock.slept) == 3
    assert value.attempts is attempts
    assert len(attempts) == 4


@pytest.mark.parametrize(("kind", "most"), [(ConnectionRefused, 3), (TimedOut, 2)])
async def test_some_kinds_are_given_up_sooner(kind, most):
    _, clock, _ = await run(kind("x"))
    assert len(clock.slept) == most


async def test_an_error_that_stops_a_stage_is_not_retried():
    with pytest.raises(CredentialsRefused):
        await run(CredentialsRefused("no"), "done")


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12), st.floats(0.01, 10), st.floats(0.01, 60))
async def test_no_wait_is_longer_than_the_cap(draws, base, cap):
    source = iter(draws * 2)
    _, clock, _ = await run(
        RateLimited("x"), retries=Retries(base=base, cap=cap), random=lambda: next(source)
    )
    assert len(clock.slept) == 10
    assert all(0 <= wait <= min(cap, base * 2**n) for n, wait in enumerate(clock.slept))


NOW = datetime(2025, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Wed, 01 Jan 2025 12:00:10 GMT"}, 10.0),
        ({"retry-after": "Wed, 01 Jan 2025 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1s20ms"}, 1.02),
        ({"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "60s"}, None),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2025-01-01T12:00:05Z",
            },
            5.0,
        ),
        ({}, None),
    ],
)
def test_waits_that_providers_ask_for(headers, seconds):
    assert requested_wait(headers, NOW) == seconds


@given(st.text(max_size=80))
def test_no_header_breaks_anything(text):
    for headers in (
        {"retry-after": text},
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": text},
    ):
        wait = requested_wait(headers, NOW)
        assert wait is None or wait >= 0
        assert reset_wait(headers, NOW) is None or reset_wait(headers, NOW) >= 0


@pytest.mark.parametrize("hours", [-30, -3, 0, 3, 30])
@pytest.mark.parametrize("date", ["Thu, 19 Nov 2026 06:00:{:02} GMT", "Thu, 19 Nov 2026 01:00:{:02} -0500"])
def test_a_date_to_wait_for_counts_from_that_of_the_reply(hours: int, date: str, monkeypatch) -> None:
    """The clock of this machine may be hours off, or set during a run."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 11, 19, 6, tzinfo=UTC) + timedelta(hours=hours)

    monkeypatch.setattr("karat.models._limits.datetime", Clock)
    assert requested_wait({"retry-after": date.format(20), "date": date.format(13)}) == 7
    limit = {"anthropic-ratelimit-requests-remaining": "0", "date": date.format(13)}
    assert reset_wait({**limit, "anthropic-ratelimit-requests-reset": "2026-11-19T06:00:20Z"}) == 7
    assert requested_wait({"retry-after": date.format(13), "date": date.format(20)}) == 0
    assert requested_wait({"retry-after": "7", "date": "yesterday"}) == 7
