"""The service that all models of a process share, on the background loop: session, limits, cache, calls in flight.

The way of a call: kept answer → the same call in flight → budget → limits → request (and again) → check →
keep. Everything here runs on one thread, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from karat.errors import CredentialsRefused, KaratError, RequestError
from karat.models._cache import ReplyCache, cache_path
from karat.models._endpoints import Endpoint, provider_of
from karat.models._failures import (
    Attempt,
    IncompleteAnswer,
    ModelFailure,
    QuotaExhausted,
    RateLimited,
    SchemaMismatch,
)
from karat.models._limits import Clock, Limiter, Permit, RealClock, gather_or_cancel, reset_wait, with_retries
from karat.models._messages import Reply, Request
from karat.models._prices import Budget, worst_cost
from karat.models._recording import Permission
from karat.models._replies import beside, read_answers, read_reply, read_stream, reply_of
from karat.models._request_context import (
    ProviderReply,
    RequestContext,
    Timing,
    all_tokens,
    printed_keys,
    read_secret,
    redactor_of,
    run_key_command,
    secrets_of,
    seed_of,
    with_repair,
)
from karat.models._structured import repair, schema_in_prompt
from karat.models.providers import Tokens
from karat.records import Usage, add_usage

if TYPE_CHECKING:
    from karat.models._batches import Batches
    from karat.models._transport import Target


class _Counted(Protocol):
    @property
    def tokens(self) -> Tokens | None: ...


A = TypeVar("A", bound=_Counted)
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode

MOST_PAUSES = 10
"""How often a turn that the provider pauses is continued; a server that always pauses is a failure."""


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """What one request may use, and the limits that must grant it."""

    budget: Budget | None
    worst: float
    """Dollars it can cost at worst."""
    tokens: float
    """Tokens it is expected to use."""
    permit: Permission | None
    timing: Timing
    arrivals: list[tuple[int, float]] | None = None
    """Where the times of a stream go."""


class Service:
    """Session, limits, cache and calls in flight. Made on the background loop."""

    def __init__(self, clock: Clock | None = None, draw: Callable[[], float] = random.random) -> None:
        from karat.models._transport import open_session

        self.clock = clock or RealClock()
        self.draw = draw
        self.session = open_session()
        self._limiters: dict[Any, Limiter] = {}
        self._targets: dict[Any, Target] = {}
        self._flights: dict[bytes, asyncio.Future[ProviderReply]] = {}
        self._loose = itertools.count(1)
        """Numbers samples that belong to no item."""
        self._key_locks: dict[str, asyncio.Lock] = {}
        self._cache: ReplyCache | None = None
        self._cache_named: tuple[str | None, str | None] = (None, None)

    @functools.cached_property
    def batches(self) -> Batches:
        """The batches that calls of this process wait for."""
        from karat.models._batches import Batches

        return Batches(self)

    async def aclose(self) -> None:
        """Close connections and write what is still pending."""
        if "batches" in self.__dict__:
            await self.batches.aclose()
        await self.session.close()
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def limiter(self, endpoint: Endpoint) -> Limiter:
        """The limiter of an endpoint, shared by every model that asks it."""
        key = (endpoint.provider, endpoint.base_url, endpoint.model, endpoint.limits)
        found = self._limiters.get(key)
        if found is None:
            found = self._limiters[key] = Limiter(endpoint.limits, self.clock)
        return found

    @property
    def cache(self) -> ReplyCache:
        """The cache, opened when first needed or when `KARAT_CACHE` has changed."""
        file = os.environ.get("KARAT_CACHE")
        named = (file, None if file else os.environ.get("XDG_CACHE_HOME"))
        if self._cache is None or self._cache_named != named:
            if self._cache is not None:
                self._cache.close()
            self._cache, self._cache_named = ReplyCache(cache_path()), named
        return self._cache

    async def generate(self, context: RequestContext) -> Reply:
        """Return the reply to one call."""
        request = context.request
        if request.n > 1 and not provider_of(context.endpoint).several(context.endpoint):
            return await self._one_by_one(context)
        if not context.cacheable:
            return reply_of(context, *await self._ask(context))
        key = context.key()
        if context.cache == "use":
            kept = await self._cached_reply(context, key)
            if kept is not None:
                return reply_of(context, kept, [], cached=True)
        if not context.deterministic:
            asked, attempts = await self._ask(context)
            await self._store_reply(context, key, asked)
            return reply_of(context, asked, attempts)
        return await self._share_answer(context, key)

    async def _cached_reply(self, context: RequestContext, key: bytes) -> ProviderReply | None:
        """The answer kept under a key, unless it does not fit any more (a pydantic model may have changed)."""
        entry = self.cache.get(key)
        if entry is None:
            return None
        try:
            kept = await beside(entry.body, read_reply, context.endpoint, entry.body, entry.seconds)
            return await read_answers(context, kept)
        except KaratError:
            return None

    async def _share_answer(self, context: RequestContext, key: bytes) -> Reply:
        """Share one answer among examples: identical calls in flight are made once."""
        while (flight := self._flights.get(key)) is not None:
            try:
                asked = await asyncio.shield(flight)
            except asyncio.CancelledError:
                if not flight.cancelled():
                    raise  # we are cancelled, not the one we waited for
                continue
            return reply_of(context, asked, [], cached=True)
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        try:
            asked, attempts = await self._ask(context)
            await self._store_reply(context, key, asked)
        except BaseException as error:
            del self._flights[key]
            if isinstance(error, asyncio.CancelledError):
                flight.cancel()
            else:
                flight.set_exception(error)
                flight.exception()  # retrieved here, in case there is no waiter
            raise
        del self._flights[key]
        flight.set_result(asked)
        return reply_of(context, asked, attempts)

    async def _one_by_one(self, context: RequestContext) -> Reply:
        """`n` answers from a provider that gives one at a time."""
        contexts = []
        for number in range(context.request.n):
            seed = None if context.request.seed is None else context.request.seed + number
            request = msgspec.structs.replace(context.request, n=1, seed=seed)
            contexts.append(
                msgspec.structs.replace(
                    context, request=request, scope=f"{context.scope}#{number}", timing=Timing()
                )
            )
        replies = await gather_or_cancel(self.generate(each) for each in contexts)
        usage: Usage | None = None
        for reply in replies:
            usage = reply.usage if usage is None else add_usage({"": usage}, {"": reply.usage})[""]
        return msgspec.structs.replace(
            replies[0],
            usage=usage or Usage(),
            choices=[choice for reply in replies for choice in reply.choices],
            seconds=max(reply.seconds for reply in replies),
            service_seconds=max(reply.service_seconds for reply in replies),
            queue_seconds=max(reply.queue_seconds for reply in replies),
            cached=all(reply.cached for reply in replies),
            raw=[reply.raw for reply in replies],
            attempts=[attempt for reply in replies for attempt in reply.attempts],
        )

    async def _store_reply(self, context: RequestContext, key: bytes, asked: ProviderReply) -> None:
        """Store a reply before it is used: in the journal or, where there is none, in the cache.

        Without a journal, an item that is stored itself leaves it to its next call to wait for the commit.
        """
        commit = (self._cache or self.cache).put(key, context.endpoint.spec, asked.body, asked.seconds)
        if commit is None:
            return
        if context.uncommitted is None:
            await self._until_committed([commit])
        else:
            context.uncommitted.append(commit)

    async def _until_committed(self, rows: list[asyncio.Future[None]]) -> None:
        if self._cache is not None:
            self._cache.hurry()
        await asyncio.wait(rows)  # unlike awaiting them, this does not cancel them when the call is cancelled

    async def _ask(self, context: RequestContext) -> tuple[ProviderReply, list[Attempt]]:
        """Return a complete answer that fits the schema, with retries and one repair request.

        An item sends no further request until its earlier replies are stored: if the process is killed, only calls in
        flight are lost.
        """
        if context.uncommitted:
            under_way = [row for row in context.uncommitted if not row.done()]
            if under_way:
                await self._until_committed(under_way)
            context.uncommitted[:] = [row for row in context.uncommitted if not row.done()]
        attempts: list[Attempt] = []
        try:
            asked = await self._request(context, context.request, attempts)
        except IncompleteAnswer as failure:
            asked = await self._continue_turn(context, context.request, attempts, failure)
        if context.form is None:
            return asked, attempts
        try:
            return await read_answers(context, asked), attempts
        except SchemaMismatch as mismatch:
            attempts.append(Attempt(error="SchemaMismatch", message=str(mismatch), seconds=asked.seconds))
            second = repair(context.request, mismatch.raw or "", mismatch.problem)
            try:
                try:
                    repaired = await self._request(context, second, attempts)
                except IncompleteAnswer as failure:
                    repaired = await self._continue_turn(context, second, attempts, failure)
            except ModelFailure as failure:
                failure.tokens = all_tokens(asked.tokens, failure.tokens or Tokens())
                raise
            try:
                return await read_answers(context, with_repair(asked, repaired)), attempts
            except SchemaMismatch as failure:
                attempts.append(
                    Attempt(error="SchemaMismatch", message=str(failure), seconds=repaired.seconds)
                )
                failure.attempts, failure.lost = attempts, failure.tokens is None
                raise

    async def _continue_turn(
        self, context: RequestContext, request: Request, attempts: list[Attempt], pause: IncompleteAnswer
    ) -> ProviderReply:
        """Ask the model to continue a turn that the provider paused, until it is complete."""
        form = provider_of(context.endpoint).format(context.endpoint)
        paused: list[dict[str, Any]] = []
        tokens: Tokens | None = Tokens()
        failure: ModelFailure = pause
        while True:
            body = failure.paused if isinstance(failure, IncompleteAnswer) else None
            following = None
            if body is not None and len(paused) < MOST_PAUSES:
                following = form.continued(request, body)
            if body is None or following is None:
                if paused:
                    failure.lost = failure.lost or tokens is None
                    failure.tokens = all_tokens(tokens, failure.tokens or Tokens())
                raise failure
            if attempts:  # there is none for a request of a batch
                del attempts[-1]  # a pause is part of the turn, and no failed attempt at it
            paused.append(body)
            tokens, request = all_tokens(tokens, failure.tokens), following
            try:
                asked = await self._request(context, request, attempts)
                break
            except ModelFailure as next_failure:
                failure = next_failure
        counted = tokens is not None and asked.tokens is not None
        whole = _encode(form.joined(paused, asked.raw, counted))
        return read_reply(context.endpoint, whole, context.timing.service)

    async def _request(
        self, context: RequestContext, request: Request, attempts: list[Attempt]
    ) -> ProviderReply:
        """Return one answer of the provider, with retries."""
        endpoint = context.endpoint
        provider = provider_of(endpoint)
        held = request.schema is not None and context.native_schema
        if request.schema is not None and not held:
            request = schema_in_prompt(request)
        if provider.derives_seed and request.seed is None:
            request = msgspec.structs.replace(request, seed=seed_of(context, self._loose))
        fields = provider.body(endpoint, request, held)
        arrivals: list[tuple[int, float]] | None = None
        if context.stream:
            fields["stream"], arrivals = True, []
            if endpoint.api == "chat":
                fields["stream_options"] = {"include_usage": True}
        body = _encode(fields)
        worst = 0.0
        if context.budget is not None:
            worst = worst_cost(endpoint.price, request, len(body), endpoint.spec, b'"1h"' in body)
        expected = len(body) / 4 + (request.max_tokens or 0)

        def read(answer: bytes, seconds: float) -> ProviderReply:
            if arrivals is not None:
                redactor = redactor_of(secrets_of(endpoint))
                return read_stream(endpoint, answer, seconds, arrivals, context.timing, body, redactor)
            return read_reply(endpoint, answer, seconds, body)

        if context.batch:
            if endpoint.key_command:
                await self._printed_key(endpoint, None)
            url = provider.url(await provider.locate(endpoint), endpoint, fields)
            return await self.batches.ask(context, self.target(endpoint, url), body, worst)
        reservation = Reservation(context.budget, worst, expected, context.permit, context.timing, arrivals)
        url = provider.url(await provider.locate(endpoint), endpoint, fields)
        if not endpoint.key_command:
            return await self.post(self.target(endpoint, url), body, read, attempts, reservation)
        return await self._with_printed_key(endpoint, url, body, read, attempts, reservation)

    async def _with_printed_key(
        self,
        endpoint: Endpoint,
        url: str,
        body: bytes,
        read: Callable[[bytes, float], A],
        attempts: list[Attempt],
        reservation: Reservation,
    ) -> A:
        """As `post`, with a key that a command prints: it is run again, once, when the key is refused."""
        used = await self._printed_key(endpoint, None)
        try:
            return await self.post(self.target(endpoint, url), body, read, attempts, reservation)
        except QuotaExhausted:
            raise
        except CredentialsRefused:
            await self._printed_key(endpoint, used)
        return await self.post(self.target(endpoint, url), body, read, attempts, reservation)

    async def refreshed(self, target: Target, refused: str | None) -> Target:
        """The same target with the key that its command prints now."""
        await self._printed_key(target.endpoint, refused)
        return self.target(target.endpoint, target.url)

    async def _printed_key(self, endpoint: Endpoint, refused: str | None) -> str:
        """The newest key that the command printed; where that was refused, what it prints now."""
        lock = self._key_locks.setdefault(endpoint.key_command, asyncio.Lock())
        async with lock:
            known = printed_keys(endpoint.key_command)
            if known and known[-1] != refused:
                return known[-1]
            return await asyncio.get_running_loop().run_in_executor(None, run_key_command, endpoint)

    async def post(
        self,
        target: Target,
        body: bytes,
        read: Callable[[bytes, float], A],
        attempts: list[Attempt],
        reservation: Reservation,
    ) -> A:
        """Send a body within limits and budget, with retries, and return what `read` makes of the reply."""
        refusals, most = target.refusals, target.endpoint.limits.tokens_per_minute
        if most is not None and reservation.tokens > most:
            raise RequestError(
                f"{target.endpoint.spec}: this request alone may use {reservation.tokens:.0f} tokens, and"
                f" tokens_per_minute is {most:g}: lower max_tokens, shorten the messages or raise the limit"
            )
        timing = reservation.timing

        async def back_off(seconds: float) -> None:
            start = time.perf_counter()
            try:
                await target.sleep(seconds)
            finally:
                timing.queue += time.perf_counter() - start

        return await with_retries(
            functools.partial(self._send_once, target, body, read, reservation, refusals),
            target.endpoint.retries,
            clock=self.clock,
            sleep=back_off,
            random=self.draw,
            attempts=attempts,
        )

    async def _send_once(
        self,
        target: Target,
        body: bytes,
        read: Callable[[bytes, float], A],
        reservation: Reservation,
        refusals: int,
    ) -> A:
        """Send one request: budget, limits, HTTP. No slot is held while waiting for a retry."""
        budget, worst, timing = reservation.budget, reservation.worst, reservation.timing
        queued = time.perf_counter()
        permit = await self._permit(target, reservation, refusals)
        cost = worst  # from here on the provider may answer, and charge, without our knowing
        try:
            try:
                start = time.perf_counter()
                timing.queue += start - queued
                try:
                    if reservation.arrivals is not None:
                        reservation.arrivals[:] = [(0, start)]
                    reply, headers = await target.post(self.session, body, reservation.arrivals)
                finally:
                    seconds = time.perf_counter() - start
                    timing.service += seconds
                asked = await beside(reply, read, reply, seconds)
            except BaseException as error:
                _leave(target, permit, error)
                raise
            cost = _settle(target, permit, asked.tokens, headers, worst)
            return asked
        except ModelFailure as failure:
            price = target.endpoint.price
            if not failure.charged:
                cost = 0.0
            elif failure.tokens is not None and price is not None:
                known = price.cost(failure.tokens)
                cost = worst if known is None else known
            raise
        except (CredentialsRefused, RequestError):
            cost = 0.0
            raise
        finally:
            if budget is not None:
                budget.settle(worst, cost)

    async def _permit(self, target: Target, reservation: Reservation, refusals: int) -> Permit:
        """The permit for a request that may be sent now, with its highest possible cost reserved.

        While it waits for a rate limit, other calls may cost more than was reserved for them. Then it gives back what
        it reserved and asks the budget again, which may be reached.
        """
        budget, limiter = reservation.budget, target.limiter
        while True:
            if budget is not None:
                await budget.reserve(reservation.worst)
            permit = None
            try:
                permit = limiter.try_acquire(reservation.tokens)
                if permit is None:
                    permit = await limiter.acquire(reservation.tokens, target.sleep)
                if target.refusals != refusals:  # while this call waited
                    target.check(refusals)
                if reservation.permit is not None:
                    # The stage may have lost its lease while this call waited: then nothing is sent any more.
                    allowed = reservation.permit()
                    if allowed is not None:
                        await allowed
                if budget is None or not budget.overdrawn:
                    return permit
            except BaseException:
                _give_back(reservation, limiter, permit)
                raise
            _give_back(reservation, limiter, permit)

    def target(self, endpoint: Endpoint, url: str) -> Target:
        """Address and headers; made again when a key in the environment has changed."""
        if endpoint.key_command:
            key: str | None = printed_keys(endpoint.key_command)[-1]
        else:
            key = read_secret(endpoint.key_env) if endpoint.key_env else None
        token = read_secret(endpoint.token_env) if key is None and endpoint.token_env else None
        if key is None and token is None and endpoint.needs_key:
            more = f" or {endpoint.token_env}" if endpoint.token_env else ""
            raise CredentialsRefused(f"{endpoint.spec} needs a key: set {endpoint.key_env}{more}")
        own = {name: read_secret(variable) or "" for name, variable in endpoint.headers_env.items()}
        identity = (url, key, token, *own.values())
        place = (endpoint.spec, endpoint.provider, url)
        known = self._targets.get(place)
        if (
            known is not None
            and known.identity == identity
            and (known.endpoint is endpoint or known.endpoint == endpoint)
        ):
            return known
        from karat.models._transport import Target

        provider = provider_of(endpoint)
        headers = {**endpoint.headers, **provider.headers(key, endpoint), **own}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        target = self._targets[place] = Target(
            endpoint,
            provider,
            url,
            headers,
            redactor_of(secrets_of(endpoint)),
            identity,
            key=key or token,
            limiter=self.limiter(endpoint),
        )
        return target


def _give_back(reservation: Reservation, limiter: Limiter, permit: Permit | None) -> None:
    """Release what was reserved for a request that is not sent."""
    if permit is not None:
        limiter.failed(permit)
    if reservation.budget is not None:
        reservation.budget.settle(reservation.worst, 0.0)


def _leave(target: Target, permit: Permit, error: BaseException) -> None:
    """Release the permit of a failed request; a 429 also slows down the other requests."""
    if isinstance(error, RateLimited):
        # A wait beyond longest_wait fails the call, so it must not delay the other calls.
        waited_for = (error.wait or 0.0) <= target.endpoint.retries.longest_wait
        target.limiter.limited(permit, error.wait if waited_for else None)
    else:
        target.limiter.failed(permit)


def _settle(target: Target, permit: Permit, used: Tokens | None, headers: Any, worst: float) -> float:
    """Report the tokens of a request to the limiter and return its cost; `worst` if the tokens are unknown."""
    target.limiter.succeeded(permit, None if used is None else used.input + used.output)
    left = reset_wait(headers)
    if left:
        target.limiter.pause(min(left, target.endpoint.retries.longest_wait))
    price = target.endpoint.price
    cost = price.cost(used) if used is not None and price is not None else None
    return worst if cost is None else cost
