"""Retries with exponential back-off and full jitter, as long as the provider asks for; requests made together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from re import compile as pattern
from typing import Any, TypeVar

from karat.models._endpoints import Retries
from karat.models._failures import Attempt, ModelFailure
from karat.models._limits import Clock, Sleep

T = TypeVar("T")

_DURATION = pattern(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")

_RESETS = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
)


class RetryCounters:
    """Retries of this process so far, how many requests wait for one now, and which model is loaded: for progress."""

    retries = 0
    waiting = 0
    loading = ""
    """The local model that is being loaded now."""


counters = RetryCounters()


async def with_retries(
    ask: Callable[[], Awaitable[T]],
    retries: Retries,
    *,
    clock: Clock,
    sleep: Sleep | None = None,
    random: Callable[[], float],
    attempts: list[Attempt],
) -> T:
    """Call `ask`, retry as its failures allow, and append every attempt to `attempts`."""
    seen: dict[type[ModelFailure], int] = {}
    lost = False
    while True:
        start = clock.time()
        try:
            return await ask()
        except ModelFailure as failure:
            kind = type(failure)
            seen[kind] = seen.get(kind, 0) + 1
            again = failure.retried and len(attempts) < retries.limit
            if failure.most is not None and seen[kind] > failure.most:
                again = False
            wait = random() * min(retries.cap, retries.base * 2.0 ** len(attempts))
            if failure.wait is not None:
                # Add jitter to the requested wait, so that clients with the same wait do not retry together.
                wait = failure.wait + random() * retries.base
                again = again and failure.wait <= retries.longest_wait
            attempts.append(
                Attempt(
                    error=kind.__name__,
                    message=str(failure),
                    seconds=round(clock.time() - start, 6),
                    waited=round(wait, 6) if again else 0.0,
                    status=failure.status,
                )
            )
            failure.attempts = attempts
            failure.lost = lost = lost or (failure.charged and failure.tokens is None)
            if not again:
                raise
        counters.retries += 1
        counters.waiting += 1
        try:
            await (sleep or clock.sleep)(wait)
        finally:
            counters.waiting -= 1


def requested_wait(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The seconds a provider wants waited: Retry-After, or the reset of a limit of which nothing remains."""
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None and _number(milliseconds) is not None:
        return max(0.0, (_number(milliseconds) or 0.0) / 1000)
    after = headers.get("retry-after")
    if after is not None:
        seconds = _seconds(after, now)
        if seconds is not None:
            return seconds
    return reset_wait(headers, now)


def reset_wait(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds until a limit resets of which the headers say that nothing remains."""
    waits = [
        seconds
        for remaining, reset in _RESETS
        if headers.get(remaining) == "0" and (seconds := _seconds(headers.get(reset, ""), now)) is not None
    ]
    return max(waits, default=None)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return (
        number if number >= 0 else None
    )  # NaN is neither; 1e9 seconds are a wait that is too long to wait for


def _seconds(text: str, now: datetime | None) -> float | None:
    """A number of seconds, `6m0s`, an HTTP date or an ISO time."""
    text = text.strip()[:64]
    number = _number(text)
    if number is not None:
        return number
    duration = _DURATION.fullmatch(text)
    if text and duration:
        days, hours, minutes, seconds, milliseconds = (float(part or 0) for part in duration.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = read(text)
        except (ValueError, TypeError):
            continue
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
    return None


async def gather_or_cancel(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results in order; if one raises, cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
