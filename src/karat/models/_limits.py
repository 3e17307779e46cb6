"""How hard one model is pressed: calls in flight, requests and tokens per minute, backing off when told to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from karat.models._endpoints import Limits

Sleep = Callable[[float], Awaitable[None]]
"""Waits some seconds, or raises when there is nothing left to wait for."""


class Clock(Protocol):
    """Time, so that tests can have their own."""

    def time(self) -> float:
        """Seconds that only ever grow."""

    async def sleep(self, seconds: float) -> None:
        """Lets others work for some seconds."""


class RealClock:
    """The clock of the running loop."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Bucket:
    """So much per minute, spread evenly: a second's worth may be taken at once, more is owed and waited for."""

    def __init__(self, per_minute: float, now: float) -> None:
        self.rate = per_minute / 60
        self.most = max(self.rate, 1.0)
        self.level = self.most
        self.at = now

    def take(self, amount: float, now: float) -> float:
        """Takes an amount and says how many seconds to wait before using it."""
        self.level = min(self.most, self.level + (now - self.at) * self.rate)
        self.at = now
        self.level -= amount
        return max(0.0, -self.level / self.rate)


class Permit:
    """Leave for one request."""

    __slots__ = ("generation", "tokens")

    def __init__(self, generation: int, tokens: float) -> None:
        self.generation = generation
        self.tokens = tokens


class Limiter:
    """The limits of one model. Used on one event loop only.

    Concurrency is cut in half by a 429 and grows back: by one for each success up to half of what it was, then
    by a twentieth of the ceiling for each round of successes. Requests that were under way at a cut do not cut
    again, nor does any within a second of it: one overload is one cut.
    """

    REST = 1.0

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

    async def acquire(self, tokens: float, sleep: Sleep | None = None) -> Permit:
        """Waits for a place, in turn, and for the rates; `tokens` is what the request is expected to use."""
        if self.active >= int(self.allowed) or self._waiting:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._leave()
                raise
        else:
            self.active += 1
        if self._requests is not None or self._tokens is not None or self._paused_until:
            try:
                await self._wait_for_rates(tokens, sleep or self.clock.sleep)
            except BaseException:
                self._leave()
                raise
        return Permit(self.cuts, tokens)

    async def _wait_for_rates(self, tokens: float, sleep: Sleep) -> None:
        now = due = self.clock.time()
        if self._requests is not None:
            due = max(due, now + self._requests.take(1, now))
        if self._tokens is not None:
            due = max(due, now + self._tokens.take(tokens, now))
        while (wait := max(due, self._paused_until) - self.clock.time()) > 0:
            await sleep(wait)  # a pause may have become longer meanwhile
        self._paused_until = 0.0

    def succeeded(self, permit: Permit, tokens: float | None) -> None:
        """The request was answered; `tokens` is what it used."""
        if self._tokens is not None and tokens is not None:
            self._tokens.take(tokens - permit.tokens, self.clock.time())
        if self.allowed < self.ceiling:
            step = 1.0 if self.allowed < self._threshold else max(1.0, self.ceiling / 20) / self.allowed
            self.allowed = min(self.ceiling, self.allowed + step)
        self._leave()

    def limited(self, permit: Permit, wait: float | None = None) -> None:
        """The provider said 429, perhaps with how long to wait: then nobody asks before."""
        now = self.clock.time()
        if wait:
            self.pause(wait)
        if self.limits.adaptive and permit.generation == self.cuts and now - self._cut_at >= self.REST:
            self.cuts += 1
            self._cut_at = now
            self.allowed = max(1.0, self.allowed / 2)
            self._threshold = self.allowed
        self._leave()

    def failed(self, permit: Permit) -> None:
        """The request failed in another way, or was given up."""
        self._leave()

    def pause(self, seconds: float) -> None:
        """No request begins for some seconds: the provider says that nothing is left until then."""
        self._paused_until = max(self._paused_until, self.clock.time() + seconds)

    def _leave(self) -> None:
        self.active -= 1
        while self._waiting and self.active < int(self.allowed):
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.active += 1
                waiter.set_result(None)
