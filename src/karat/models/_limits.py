"""When requests are sent: the limits of a model, retries with exponential back-off, and requests made together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from re import compile as pattern
from typing import Any, Protocol, TypeVar

from karat.models._endpoints import Limits, Retries
from karat.models._failures import Attempt, ModelFailure
from karat.models._recording import counters

# The limits of one model: concurrent calls, requests and tokens per minute, and backing off after a 429.

Sleep = Callable[[float], Awaitable[None]]
"""Wait for some seconds; raise if the request has become pointless during the wait."""


class Clock(Protocol):
    """A source of time; tests use a fake one."""

    def time(self) -> float:
        """Return the seconds of a monotonic clock."""

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""


class RealClock:
    """The clock of the running event loop."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Bucket:
    """A rate per minute, spread evenly over it.

    One second's worth can be used at once. A larger amount makes the level negative, and its user waits until the level
    is back at zero.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self.rate = per_minute / 60
        self.capacity = max(self.rate, 1.0)
        self.level = self.capacity
        self.updated = now

    def take(self, amount: float, now: float) -> float:
        """Take an amount and return the seconds to wait before using it."""
        self.level = min(self.capacity, self.level + (now - self.updated) * self.rate)
        self.updated = now
        self.level -= amount
        return max(0.0, -self.level / self.rate)


class Permit:
    """Permission for one request: the number of cuts before it, and the tokens that were reserved for it."""

    __slots__ = ("generation", "tokens")

    def __init__(self, generation: int, tokens: float) -> None:
        self.generation = generation
        self.tokens = tokens


class Limiter:
    """The limits of one model. It must be used on one event loop only.

    A 429 halves the concurrency. It grows back by one for each success up to half of its former value, and then by a
    twentieth of the ceiling for each round of successes. A request that was in flight at a cut does not cut again, and
    neither does any request within a second of it, so that one overload causes one cut.
    """

    CUT_INTERVAL = 1.0
    """Seconds after a cut in which no other cut is made."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        now = clock.time()
        self.limits = limits
        self.clock = clock
        self.ceiling = float(limits.concurrency)
        self.allowed = self.ceiling
        self.active = 0
        self.cuts = 0
        self._threshold = self.ceiling
        self._cut_at = float("-inf")
        self._paused_until = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._requests = Bucket(limits.requests_per_minute, now) if limits.requests_per_minute else None
        self._tokens = Bucket(limits.tokens_per_minute, now) if limits.tokens_per_minute else None

    def try_acquire(self, tokens: float) -> Permit | None:
        """Take a slot that is free now; None if there is something to wait for, or a rate to keep."""
        if (
            self._waiting
            or self._paused_until
            or self._requests is not None
            or self._tokens is not None
            or self.active >= int(self.allowed)
        ):
            return None
        self.active += 1
        return Permit(self.cuts, tokens)

    async def acquire(self, tokens: float, sleep: Sleep | None = None) -> Permit:
        """Wait for a free slot, first come, first served, and for the rates. `tokens` is the expected usage."""
        if self.active >= int(self.allowed) or self._waiting:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._release()
                raise
        else:
            self.active += 1
        if self._requests is not None or self._tokens is not None or self._paused_until:
            try:
                await self._wait_for_rates(tokens, sleep or self.clock.sleep)
            except BaseException:
                self._release()
                raise
        return Permit(self.cuts, tokens)

    async def _wait_for_rates(self, tokens: float, sleep: Sleep) -> None:
        now = due = self.clock.time()
        if self._requests is not None:
            due = max(due, now + self._requests.take(1, now))
        if self._tokens is not None:
            due = max(due, now + self._tokens.take(tokens, now))
        while (wait := max(due, self._paused_until) - self.clock.time()) > 0:
            await sleep(wait)  # the pause may have been extended during the wait
        self._paused_until = 0.0

    def succeeded(self, permit: Permit, tokens: float | None) -> None:
        """Release the slot of a request that succeeded; `tokens` is its usage, if known."""
        if self._tokens is not None and tokens is not None:
            self._tokens.take(tokens - permit.tokens, self.clock.time())
        if self.allowed < self.ceiling:
            step = 1.0 if self.allowed < self._threshold else max(1.0, self.ceiling / 20) / self.allowed
            self.allowed = min(self.ceiling, self.allowed + step)
        self._release()

    def limited(self, permit: Permit, wait: float | None = None) -> None:
        """Release the slot of a request that got a 429. With `wait`, no request starts before that many seconds."""
        now = self.clock.time()
        if wait:
            self.pause(wait)
        if (
            self.limits.adaptive
            and permit.generation == self.cuts
            and now - self._cut_at >= self.CUT_INTERVAL
        ):
            self.cuts += 1
            self._cut_at = now
            self.allowed = max(1.0, self.allowed / 2)
            self._threshold = self.allowed
        self._release()

    def failed(self, permit: Permit) -> None:
        """Release the slot of a request that failed in another way or was cancelled."""
        self._release()

    def pause(self, seconds: float) -> None:
        """Start no request for some seconds: the provider reports that its limit is used up until then."""
        self._paused_until = max(self._paused_until, self.clock.time() + seconds)

    def _release(self) -> None:
        self.active -= 1
        while self._waiting and self.active < int(self.allowed):
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.active += 1
                waiter.set_result(None)


T = TypeVar("T")

_DURATION = pattern(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")

_RESETS = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
)


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
    """The seconds a provider wants waited: Retry-After, or the reset of a limit of which nothing remains.

    A date counts from that of the reply, by the provider's own clock: the one of this machine may be hours off.
    """
    now = now or _moment(headers.get("date", ""))
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
    """Seconds until a limit resets of which the headers say that nothing remains; dates as in `requested_wait`."""
    resets = [headers.get(reset, "") for remaining, reset in _RESETS if headers.get(remaining) == "0"]
    if not resets:
        return None
    now = now or _moment(headers.get("date", ""))
    return max((wait for reset in resets if (wait := _seconds(reset, now)) is not None), default=None)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return (
        number if number >= 0 else None
    )  # NaN is neither; 1e9 seconds are a wait that is too long to wait for


_NO_DATE = (ValueError, TypeError, OverflowError, OSError, IndexError, AttributeError)
"""What the readers of dates raise for odd texts, and for years and zones beyond those of a `datetime`."""


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
    moment = _moment(text)
    return None if moment is None else max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())


def _moment(text: str) -> datetime | None:
    """The time that an HTTP date or an ISO time means; None for anything else."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = read(text.strip()[:64])
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        except _NO_DATE:
            continue
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
