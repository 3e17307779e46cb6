"""What all models of a process share, on the background loop: session, limits, cache, calls in flight.

The way of a call: kept answer → the same call in flight → budget → limits → request (and again) → check →
keep. Everything here runs on one thread, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from karat.errors import CredentialsRefused, RequestError
from karat.models.budget import Budget, worst_cost
from karat.models.cache import ReplyCache, cache_path
from karat.models.failures import (
    Attempt,
    BrokenBody,
    ContentFiltered,
    EmptyAnswer,
    ModelFailure,
    RateLimited,
    SchemaMismatch,
    one_line,
)
from karat.models.limits import Clock, Limiter, RealClock
from karat.models.messages import Reply, Request
from karat.models.orders import Asked, Order, read_secret, secrets_of, seed_of, together
from karat.models.retry import nothing_left, with_retries
from karat.models.specs import Endpoint, wire_of
from karat.models.structured import in_words, repair
from karat.models.wires import Answer, Tokens
from karat.records import Usage

if TYPE_CHECKING:
    from karat.models.http import Target


class _Counted(Protocol):
    @property
    def tokens(self) -> Tokens | None: ...


A = TypeVar("A", bound=_Counted)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Service:
    """Session, limits, cache and calls in flight. Made on the background loop."""

    def __init__(self, clock: Clock | None = None, draw: Callable[[], float] = random.random) -> None:
        from karat.models.http import open_session

        self.clock = clock or RealClock()
        self.draw = draw
        self.session = open_session()
        self._limiters: dict[Any, Limiter] = {}
        self._targets: dict[Any, Target] = {}
        self._flights: dict[bytes, asyncio.Future[Asked]] = {}
        self._loose = itertools.count(1)
        """Numbers samples that belong to no item."""
        self._cache: ReplyCache | None = None
        self._cache_named: tuple[str | None, str | None] = (None, None)

    async def aclose(self) -> None:
        """Closes connections and writes what is left to write."""
        await self.session.close()
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def limiter(self, endpoint: Endpoint) -> Limiter:
        """The limiter of an endpoint, shared by every model that asks it."""
        key = (endpoint.wire, endpoint.base_url, endpoint.model, endpoint.limits)
        found = self._limiters.get(key)
        if found is None:
            found = self._limiters[key] = Limiter(endpoint.limits, self.clock)
        return found

    @property
    def cache(self) -> ReplyCache:
        """The cache, opened when first needed or when `KARAT_CACHE` has changed."""
        named = os.environ.get("KARAT_CACHE"), os.environ.get("XDG_CACHE_HOME")
        if self._cache is None or self._cache_named != named:
            if self._cache is not None:
                self._cache.close()
            self._cache, self._cache_named = ReplyCache(cache_path()), named
        return self._cache

    async def generate(self, order: Order) -> Reply:
        """The reply to one call."""
        request = order.request
        if request.n > 1 and not wire_of(order.endpoint).several:
            return await self._one_by_one(order)
        if not order.kept:
            return self._reply(order, *await self._ask(order))
        key = order.key()
        if order.cache == "use":
            kept = self._kept(order, key)
            if kept is not None:
                return self._reply(order, kept, [], cached=True)
        if request.sampled:
            asked, attempts = await self._ask(order)
            await self._keep(order, key, asked)
            return self._reply(order, asked, attempts)
        return await self._shared(order, key)

    def _kept(self, order: Order, key: bytes) -> Asked | None:
        """The answer kept under a key, unless it does not fit any more (a pydantic model may have changed)."""
        entry = self.cache.get(key)
        if entry is None:
            return None
        try:
            return self._checked(order, self._understand(order, entry.body, entry.seconds))
        except ModelFailure:
            return None

    async def _shared(self, order: Order, key: bytes) -> Reply:
        """At temperature 0: identical calls in flight are made once."""
        while (flight := self._flights.get(key)) is not None:
            try:
                asked = await asyncio.shield(flight)
            except asyncio.CancelledError:
                if not flight.cancelled():
                    raise  # we are cancelled, not the one we waited for
                continue
            return self._reply(order, asked, [], cached=True)
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        try:
            asked, attempts = await self._ask(order)
            await self._keep(order, key, asked)
        except asyncio.CancelledError:
            flight.cancel()
            raise
        except BaseException as error:
            flight.set_exception(error)
            flight.exception()  # seen here, in case nobody waits
            raise
        finally:
            del self._flights[key]
        flight.set_result(asked)
        return self._reply(order, asked, attempts)

    async def _one_by_one(self, order: Order) -> Reply:
        """`n` answers from a provider that gives one at a time."""
        request = msgspec.structs.replace(order.request, n=1)
        orders = [
            msgspec.structs.replace(order, request=request, scope=f"{order.scope}#{number}")
            for number in range(order.request.n)
        ]
        replies = await asyncio.gather(*map(self.generate, orders))
        costs = [reply.usage.cost for reply in replies]
        usage = Usage(
            input_tokens=sum(reply.usage.input_tokens for reply in replies),
            output_tokens=sum(reply.usage.output_tokens for reply in replies),
            calls=sum(reply.usage.calls for reply in replies),
            cached_calls=sum(reply.usage.cached_calls for reply in replies),
            cost=None if None in costs else sum(cost for cost in costs if cost is not None),
        )
        return msgspec.structs.replace(
            replies[0],
            usage=usage,
            choices=[choice for reply in replies for choice in reply.choices],
            seconds=max(reply.seconds for reply in replies),
            cached=all(reply.cached for reply in replies),
            raw=[reply.raw for reply in replies],
            attempts=[attempt for reply in replies for attempt in reply.attempts],
        )

    async def _keep(self, order: Order, key: bytes, asked: Asked) -> None:
        await self.cache.put(key, order.endpoint.spec, asked.body, asked.seconds)

    async def _ask(self, order: Order) -> tuple[Asked, list[Attempt]]:
        """A complete answer that fits, asked for as often as it takes, with one repair of its form."""
        attempts: list[Attempt] = []
        asked = await self._request(order, order.request, attempts)
        try:
            return self._checked(order, asked), attempts
        except SchemaMismatch as mismatch:
            attempts.append(Attempt(error="SchemaMismatch", message=str(mismatch), seconds=asked.seconds))
            second = repair(order.request, asked.choices[0], str(mismatch))
            repaired = await self._request(order, second, attempts)
            try:
                return self._checked(order, together(asked, repaired)), attempts
            except SchemaMismatch as failure:
                attempts.append(
                    Attempt(error="SchemaMismatch", message=str(failure), seconds=repaired.seconds)
                )
                failure.attempts = attempts
                raise

    async def _request(self, order: Order, request: Request, attempts: list[Attempt]) -> Asked:
        """One answer of the provider, with retries."""
        endpoint = order.endpoint
        wire = wire_of(endpoint)
        target = self.target(endpoint, wire.url(await wire.locate(endpoint)))
        native = request.schema is not None and endpoint.structured == "native" and wire.takes_schema(request)
        if request.schema is not None and not native:
            request = in_words(request)
        if wire.derives_seed and request.seed is None:
            request = msgspec.structs.replace(request, seed=seed_of(order, self._loose))
        body = _encode(wire.body(endpoint.model, request, native))
        worst = 0.0
        if order.budget is not None:
            worst = worst_cost(endpoint.price, request, len(body), endpoint.spec)
        expected = len(body) / 4 + (request.max_tokens or 0)

        def understand(answer: bytes, seconds: float) -> Asked:
            return self._understand(order, answer, seconds)

        return await self.post(target, body, understand, attempts, expected, order.budget, worst)

    async def post(
        self,
        target: Target,
        body: bytes,
        understand: Callable[[bytes, float], A],
        attempts: list[Attempt],
        expected: float,
        budget: Budget | None,
        worst: float,
    ) -> A:
        """What is understood of the answer to a body, asked for within limits and budget, with retries."""

        async def once() -> A:
            return await self._once(target, body, understand, expected, budget, worst)

        return await with_retries(
            once, target.endpoint.retries, clock=self.clock, random=self.draw, attempts=attempts
        )

    async def _once(
        self,
        target: Target,
        body: bytes,
        understand: Callable[[bytes, float], A],
        expected: float,
        budget: Budget | None,
        worst: float,
    ) -> A:
        """One request: budget, limits, the wire. A place is never held while waiting to ask again."""
        limiter, price = self.limiter(target.endpoint), target.endpoint.price
        if budget is not None:
            await budget.reserve(worst)
        cost = 0.0
        try:
            permit = await limiter.acquire(expected)
            cost = worst  # from here on the provider may answer, and charge, without our knowing
            try:
                start = time.perf_counter()
                answer, headers = await target.post(self.session, body)
                asked = understand(answer, time.perf_counter() - start)
            except RateLimited:
                limiter.limited(permit)
                raise
            except BaseException:
                limiter.failed(permit)
                raise
            used = asked.tokens
            limiter.succeeded(permit, None if used is None else used.input + used.output)
            left = nothing_left(headers)
            if left:
                limiter.pause(min(left, target.endpoint.retries.longest_wait))
            if used is not None and price is not None:
                cost = price.cost(used)
            return asked
        except ModelFailure as failure:
            if not failure.charged:
                cost = 0.0
            raise
        except (CredentialsRefused, RequestError):
            cost = 0.0
            raise
        finally:
            if budget is not None:
                budget.settle(worst, cost)

    def target(self, endpoint: Endpoint, url: str) -> Target:
        """Address and headers; made again when a key in the environment has changed."""
        from karat.models.http import Target

        wire = wire_of(endpoint)
        key = read_secret(endpoint.key_env) if endpoint.key_env else None
        if key is None and endpoint.needs_key:
            raise CredentialsRefused(f"{endpoint.spec} needs a key: set {endpoint.key_env}")
        own = {name: read_secret(variable) or "" for name, variable in endpoint.headers_env.items()}
        identity = (url, key, *own.values())
        known = self._targets.get((endpoint.spec, endpoint.wire, url))
        if known is not None and known.identity == identity and known.endpoint is endpoint:
            return known
        headers = {**endpoint.headers, **wire.headers(key, endpoint), **own}
        target = self._targets[(endpoint.spec, endpoint.wire, url)] = Target(
            endpoint, wire, url, headers, secrets_of(endpoint), identity
        )
        return target

    def _understand(self, order: Order, body: bytes, seconds: float) -> Asked:
        """The answer in a body, or the failure it amounts to."""
        spec = order.endpoint.spec
        try:
            raw = _decode(body)
            answer: Answer = wire_of(order.endpoint).parse(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BrokenBody(f"{spec}: the answer is not JSON: {body[:80]!r}") from None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise BrokenBody(
                f"{spec}: the answer lacks what it should have ({type(error).__name__}: {error})"
            ) from None
        first = answer.choices[0]
        if first.finish_reason == "content_filter":
            raise ContentFiltered(f"{spec}: the provider withheld the answer", raw=first.text or None)
        if not first.text and not first.tool_calls:
            hint = ": max_tokens is too low for it" if first.finish_reason == "length" else ""
            raise EmptyAnswer(f"{spec}: the answer is empty{hint}")
        return Asked(body, raw, answer.choices, answer.tokens, answer.served_model, seconds)

    def _checked(self, order: Order, asked: Asked) -> Asked:
        """The answer with its form checked and its values read."""
        form = order.form
        if form is None:
            return asked
        wire = wire_of(order.endpoint)
        choices = []
        for choice in asked.choices:
            choice = wire.unwrap(choice, order.request)
            if choice.tool_calls and not choice.text:
                choices.append(choice)  # the model calls the caller's tools first; the form is for its answer
                continue
            try:
                parsed = form.read(choice.text)
            except ValueError as error:
                raise SchemaMismatch(
                    f"{order.endpoint.spec}: the answer does not fit the schema: {one_line(str(error), 300)}",
                    raw=choice.text,
                ) from None
            choices.append(msgspec.structs.replace(choice, parsed=parsed))
        return msgspec.structs.replace(asked, choices=choices)

    def _reply(self, order: Order, asked: Asked, attempts: list[Attempt], cached: bool = False) -> Reply:
        first, tokens, price = asked.choices[0], asked.tokens, order.endpoint.price
        if cached:
            cost: float | None = 0.0
        else:
            cost = price.cost(tokens) if price is not None and tokens is not None else None
        if cost is None and price is not None and not price.input and not price.output:
            cost = 0.0
        return Reply(
            text=first.text,
            tool_calls=first.tool_calls,
            parsed=first.parsed,
            finish_reason=first.finish_reason,
            usage=Usage(
                input_tokens=tokens.input if tokens else 0,
                output_tokens=tokens.output if tokens else 0,
                calls=1,
                cached_calls=int(cached),
                cost=cost,
            ),
            seconds=asked.seconds,
            cached=cached,
            served_model=asked.served_model,
            raw=asked.raw,
            choices=asked.choices,
            attempts=attempts,
        )
