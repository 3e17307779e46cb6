"""Batch APIs: requests of a stage sent together, at half the price, and answered within a day.

A batched request waits here until the stage has no more to send. Then all waiting requests are written to the cache
file as an intent and submitted, and the id of the batch is added to the intent. Once the intent is written, no
interruption can cause a second submission: a later process finds it in the file and attaches to the batch. Results go
into the reply cache by the request's id, in any order.

OpenAI: files of JSON lines, at most 50,000 requests and 200 MB (developers.openai.com/api/reference, `batches`).
Anthropic: at most 100,000 requests and 256 MB (platform.claude.com/docs/en/build-with-claude/batch-processing). Both
read 2026-11-16.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import re
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp
import msgspec

from karat.errors import CredentialsRefused, KaratError, RequestError, Stopped, option, wording
from karat.models import _transport
from karat.models._cache import connect
from karat.models._endpoints import Endpoint, provider_of
from karat.models._failures import BrokenBody, ModelFailure, QuotaExhausted, ServerFailed, one_line
from karat.models._replies import beside, read_reply
from karat.models._request_context import ProviderReply, RequestContext
from karat.models._transport import Target, error_body, failure_of, read_body
from karat.serialization import decode_untrusted

if TYPE_CHECKING:
    from karat.models._service import Service

SETTLED = 0.5
"""Seconds without another request after which the collected requests are submitted."""

FIRST_POLL, LONGEST_POLL = 1.0, 20.0
"""Seconds between polls of a batch: at first, and at most. A batch that has ended is noticed within 20 s."""

ARRIVAL = 60.0
"""Seconds after which a submitted batch is in the provider's list, if it arrived at all."""
CLOCK_ERROR = 3600.0
"""Seconds by which the clocks of this machine and of a provider may differ."""

LARGEST_RESULTS = 2 << 30
UNREACHABLE = 20
"""Failed polls or downloads in a row after which the stage stops; the batch continues."""
DOWNLOADS = 3
"""How often results are fetched that lack requests of their batch or have lines that cannot be read."""
LIST_PAGES = 1000
"""Pages of the provider's list of batches that are read at most."""

LIMITS = {"openai": (50_000, 190 << 20), "anthropic": (100_000, 240 << 20)}
"""Requests and bytes of one batch, a little below what the providers allow."""

T = TypeVar("T")

_log = logging.getLogger("karat.models")
_encode = msgspec.json.Encoder().encode


class BatchOpen(Stopped):
    """This process cannot follow a batch any further; the batch continues, and the same command attaches to it."""


class BatchFailed(Stopped):
    """The provider refused a batch as a whole and processed none of its requests."""


class _ForeignBatch(Exception):
    """A batch of the provider's list that was taken for an intent's, and has none of its requests."""


class _Waiting:
    """A request of a batch, and the future of its result."""

    __slots__ = ("body", "context", "custom_id", "future", "target")

    def __init__(self, custom_id: str, body: bytes, context: RequestContext, target: Target) -> None:
        self.custom_id = custom_id
        self.body = body
        self.context = context
        self.target = target
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class _Intent(msgspec.Struct, frozen=True):
    """A batch as recorded in the cache file. `batch` is empty until the provider has returned its id."""

    id: str
    place: str
    """Provider, model and URL of its requests, and a short hash of the account."""
    batch: str
    requests: int
    created: float


class BatchLog:
    """Open batches and their requests, in the cache file: written before anything is sent."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.executescript(
            "CREATE TABLE IF NOT EXISTS batches (id TEXT PRIMARY KEY, place TEXT NOT NULL, batch TEXT NOT NULL,"
            " requests INTEGER NOT NULL, created REAL NOT NULL);"
            "CREATE TABLE IF NOT EXISTS batch_requests (custom_id TEXT PRIMARY KEY, intent TEXT NOT NULL);"
        )

    def open_intents(self, custom_ids: Iterable[str]) -> dict[str, str]:
        """The intent of each request that belongs to one."""
        found = {}
        for custom_id in custom_ids:
            row = self._connection.execute(
                "SELECT intent FROM batch_requests WHERE custom_id=?", (custom_id,)
            ).fetchone()
            if row is not None:
                found[custom_id] = row[0]
        return found

    def intend(self, place: str, custom_ids: list[str]) -> _Intent | None:
        """Write an intent with its requests; return None if another process has claimed one of the requests."""
        intent = _Intent(uuid.uuid4().hex, place, "", len(custom_ids), time.time())
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "INSERT INTO batches VALUES (?,?,?,?,?)",
                (intent.id, place, "", intent.requests, intent.created),
            )
            connection.executemany(
                "INSERT INTO batch_requests VALUES (?,?)", [(each, intent.id) for each in custom_ids]
            )
            connection.execute("COMMIT")
        except sqlite3.IntegrityError:
            connection.execute("ROLLBACK")
            return None
        return intent

    def requests(self, intent: str) -> set[str]:
        """The ids of the requests of an intent."""
        rows = self._connection.execute("SELECT custom_id FROM batch_requests WHERE intent=?", (intent,))
        return {custom_id for (custom_id,) in rows}

    def renew(self, intent: str) -> bool:
        """Note that an intent is being submitted now; return False if another process has taken it away."""
        changed = self._connection.execute(
            "UPDATE batches SET created=? WHERE id=? AND batch=''", (time.time(), intent)
        )
        return changed.rowcount == 1

    def withdraw(self, intent: _Intent) -> bool:
        """Forget an intent that never arrived; return False if its process has renewed it since it was read."""
        self._connection.execute("BEGIN IMMEDIATE")
        gone = self._connection.execute(
            "DELETE FROM batches WHERE id=? AND batch='' AND created=?", (intent.id, intent.created)
        ).rowcount
        if gone:
            self._connection.execute("DELETE FROM batch_requests WHERE intent=?", (intent.id,))
        self._connection.execute("COMMIT")
        return bool(gone)

    def submitted(self, intent: str, batch: str) -> None:
        """Write the id that the provider gave."""
        self._connection.execute("UPDATE batches SET batch=? WHERE id=?", (batch, intent))

    def read(self, intent: str) -> _Intent | None:
        """An intent by its id."""
        row = self._connection.execute(
            "SELECT id, place, batch, requests, created FROM batches WHERE id=?", (intent,)
        ).fetchone()
        return None if row is None else _Intent(*row)

    def known(self, batch: str) -> bool:
        """Whether a batch belongs to an intent already."""
        return bool(self._connection.execute("SELECT 1 FROM batches WHERE batch=?", (batch,)).fetchone())

    def forget_finished(self) -> None:
        """Forget batches whose results are all stored: a process was killed before it could do so."""
        for (intent,) in self._connection.execute("SELECT id FROM batches WHERE batch != ''").fetchall():
            stored = all(
                self._connection.execute(
                    "SELECT 1 FROM replies WHERE key=?", (bytes.fromhex(custom_id),)
                ).fetchone()
                for custom_id in self.requests(intent)
            )
            if stored:
                self.forget(intent)

    def forget(self, intent: str) -> None:
        """Forget a batch whose results are all stored, or that was never made."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("DELETE FROM batch_requests WHERE intent=?", (intent,))
        self._connection.execute("DELETE FROM batches WHERE id=?", (intent,))
        self._connection.execute("COMMIT")


class Batches:
    """The batches of one process, on its background loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._groups: dict[str, dict[str, _Waiting]] = {}
        self._flushing: dict[str, asyncio.Task[None]] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._members: dict[str, set[str]] = {}
        """The requests of this process that wait for an intent's batch."""
        self._waiting: dict[str, list[_Waiting]] = {}
        self._logs: dict[str, BatchLog] = {}
        self._announced: set[str] = set()

    @property
    def _log(self) -> BatchLog:
        return self._open_log()

    def _open_log(self) -> BatchLog:
        path = self._service.cache.path
        log = self._logs.get(str(path))
        if log is None:
            log = self._logs[str(path)] = BatchLog(connect(path))
            log.forget_finished()
        return log

    async def ask(self, context: RequestContext, target: Target, body: bytes, worst: float) -> ProviderReply:
        """The reply to one request, sent with others."""
        endpoint = context.endpoint
        if context.cache == "off":
            raise RequestError("a batch needs the reply cache for its results: remove cache: off")
        digest = hashlib.blake2b(context.key() + body, digest_size=20).digest()
        self._open_log()  # also if every reply is cached: it forgets finished batches
        entry = self._service.cache.get(digest)
        if entry is not None:
            return read_reply(endpoint, entry.body, 0.0)
        start = time.perf_counter()
        if context.budget is not None:
            await context.budget.reserve(worst)
        cost = 0.0
        try:
            waiting = _Waiting(digest.hex(), body, context, target)
            self._add(waiting)
            try:
                raw = await waiting.future
            except asyncio.CancelledError:
                self._announce_open_batches()
                raise
            cost = worst
            reply = read_reply(endpoint, raw, 0.0)
            if reply.tokens is not None and endpoint.price is not None:
                known = endpoint.price.cost(reply.tokens)
                cost = worst if known is None else known
            return reply
        finally:
            context.timing.queue += time.perf_counter() - start
            if context.budget is not None:
                context.budget.settle(worst, cost)

    def _add(self, waiting: _Waiting) -> None:
        place = _place(waiting.target)
        self._groups.setdefault(place, {})[waiting.custom_id] = waiting
        self._waiting.setdefault(waiting.custom_id, []).append(waiting)
        self._flush_later(place)

    def _flush_later(self, place: str) -> None:
        running = self._flushing.get(place)
        if running is None or running.done():
            self._flushing[place] = asyncio.ensure_future(self._flush_when_settled(place))

    async def _flush_when_settled(self, place: str) -> None:
        """Submit the collected requests once none has been added for a while, until none is left.

        More may be added while the others are being sent, which can take minutes.
        """
        while self._groups.get(place):
            seen = -1
            while (count := len(self._groups.get(place, {}))) != seen:
                seen = count
                await self._service.clock.sleep(SETTLED)
            group = self._groups.pop(place, {})
            waiters = (self._waiting.get(custom_id, ()) for custom_id in group)
            left = ([each for each in some if not each.future.done()] for some in waiters)
            requests = [some[0] for some in left if some]
            try:
                await self._submit(place, requests)
            except BaseException as error:
                self._fail(requests, error)
                if not isinstance(error, Exception):
                    raise

    async def _submit(self, place: str, requests: list[_Waiting]) -> None:
        """Attach to the open batches of these requests, and make batches of the others."""
        known = self._log.open_intents(each.custom_id for each in requests)
        for intent in dict.fromkeys(known.values()):
            self._follow(intent, [each for each in requests if known.get(each.custom_id) == intent])
        new = [each for each in requests if each.custom_id not in known]
        allowed = [each for each in new if await self._permitted_requests(each)]
        if allowed and place in self._announced:
            _log.warning("%d follow-up requests go into another batch", len(allowed))
        for part in _parts(
            allowed, LIMITS[provider_of(allowed[0].target.endpoint).batches] if allowed else (1, 1)
        ):
            self._announced.add(place)
            intent_row = self._log.intend(place, [each.custom_id for each in part])
            if intent_row is None:  # another process has just submitted one of them
                await self._submit(place, part)
                continue
            await self._create(intent_row, part)
            self._follow(intent_row.id, part)

    async def _permitted_requests(self, waiting: _Waiting) -> bool:
        try:
            await _check_permission([waiting])
        except Exception as error:
            self._fail([waiting], error)
            return False
        return True

    async def _create(self, intent: _Intent, part: list[_Waiting]) -> None:
        """Submit one batch. If it is unknown whether it arrived, the intent stays, and a later process looks it up.

        While it is being sent, which may take minutes, the intent is renewed: another process that waits for one of
        its requests would otherwise submit them after ARRIVAL seconds.
        """
        client = _client(self._service, part[0].target)
        renewing = asyncio.ensure_future(self._renew(intent.id))
        try:
            requests = [(each.custom_id, each.body) for each in part]
            batch = await client.create(
                intent, requests, self._log, functools.partial(_check_permission, part)
            )
        except (BatchOpen, asyncio.CancelledError):
            raise
        except Exception as error:
            self._log.forget(intent.id)  # the provider refused it
            if isinstance(error, Stopped):
                raise
            raise BatchFailed(
                f"{error}: the batch was not created: correct it, then repeat the"
                f" {wording('command', 'call')} to submit it again"
            ) from None
        finally:
            renewing.cancel()
        self._log.submitted(intent.id, batch)
        _log.warning(
            "batch %s: %d requests to %s; interrupt at any time, the same %s (without %s) attaches to it",
            batch, len(part), part[0].target.endpoint.spec, wording("command", "call"), option("new", True),
        )  # fmt: skip

    async def _renew(self, intent: str) -> None:
        while True:
            if not self._log.renew(intent):
                return
            await asyncio.sleep(ARRIVAL / 4 or 1.0)

    def _follow(self, intent: str, waiting: list[_Waiting]) -> None:
        """Deliver the results of an intent's batch to these requests when it has ended."""
        self._members.setdefault(intent, set()).update(each.custom_id for each in waiting)
        running = self._following.get(intent)
        if running is None or running.done():
            self._following[intent] = asyncio.ensure_future(self._follow_to_the_end(intent, waiting[0]))

    async def _follow_to_the_end(self, intent_id: str, one: _Waiting) -> None:
        """Poll a batch until it has ended, store its results and deliver them."""
        client, cache = _client(self._service, one.target), self._service.cache
        outcomes: dict[str, bytes | Exception] = {}
        problem: BaseException = BatchOpen(
            "another process has finished the batch: repeat the command to use its results"
        )
        try:
            intent = self._log.read(intent_id)
            foreign: set[str] = set()
            while True:
                batch = intent and (intent.batch or await self._find(client, intent, foreign))
                if intent is None or batch is None:
                    entries = {each: cache.get(bytes.fromhex(each)) for each in self._members[intent_id]}
                    outcomes = {each: entry.body for each, entry in entries.items() if entry is not None}
                    return
                if not batch:  # it never arrived
                    self._members.pop(intent_id)
                    self._collect_again()
                    return
                state = await self._poll(client, batch)
                client.sent = {each: self._waiting[each][0].body for each in self._members[intent_id]}
                guessed = not intent.batch and not client.identified
                try:
                    results = await self._results(
                        client, batch, state, self._log.requests(intent_id), guessed
                    )
                    break
                except _ForeignBatch:
                    foreign.add(batch)
                except BatchFailed:
                    self._log.forget(intent_id)
                    raise
            spec = one.target.endpoint.spec
            commits = [
                cache.commit(bytes.fromhex(custom_id), spec, outcome)
                for custom_id, outcome in results.items()
                if isinstance(outcome, bytes)
            ]
            if commits:
                cache.hurry()
                await asyncio.wait(commits)
            # Results are stored before the intent is forgotten: a process that is killed here fetches them again.
            self._log.forget(intent_id)
            outcomes = results
        except BaseException as error:
            problem = error
            if not isinstance(error, Exception):
                raise
        finally:
            for custom_id in self._members.pop(intent_id, ()):
                self._deliver(custom_id, outcomes.get(custom_id, problem))

    async def _results(
        self, client: _Client, batch: str, state: dict[str, Any], requests: set[str], guessed: bool
    ) -> dict[str, bytes | Exception]:
        """The outcome of every request of a batch. Results of other requests are ignored: they may be anything.

        `guessed`: the batch was found in the provider's list, and only its results tell whether it is the one.
        """
        spec = client.spec
        outcomes: dict[str, bytes | Exception] = {}
        for attempt in range(DOWNLOADS):
            if attempt:
                await self._service.clock.sleep(FIRST_POLL)
            results = await self._with_retries(client.results, batch, state)
            foreign = unreadable = 0
            for custom_id, outcome in results:
                if not custom_id:
                    unreadable += 1
                elif custom_id not in requests:
                    foreign += 1
                elif custom_id not in outcomes or not isinstance(outcomes[custom_id], bytes):
                    outcomes[custom_id] = outcome
            if not unreadable and (client.partial(state) or outcomes.keys() == requests):
                break
        if guessed and foreign and not outcomes:
            raise _ForeignBatch(batch)
        if foreign or unreadable:
            _log.warning(
                "batch %s: ignored results of other requests: %d; unreadable lines: %d", batch, foreign, unreadable
            )  # fmt: skip
        for custom_id in requests - outcomes.keys():
            outcomes[custom_id] = ServerFailed(
                f"{spec}: batch {batch} ({client.status(state)}) has no result for it"
            )
        return outcomes

    def _collect_again(self) -> None:
        """Collect the requests that wait and belong to no batch."""
        for waiters in list(self._waiting.values()):
            for each in waiters:
                if not each.future.done() and not self._log.open_intents([each.custom_id]):
                    self._groups.setdefault(_place(each.target), {}).setdefault(each.custom_id, each)
        for place in self._groups:
            self._flush_later(place)

    async def _find(self, client: _Client, intent: _Intent, foreign: set[str]) -> str | None:
        """The batch of an intent whose submission was interrupted; empty if it did not arrive, None if it has ended.

        The provider may still be working on a submission that was sent a moment ago, and another process may be
        sending it now, so an intent is looked up until it was last renewed ARRIVAL seconds ago. An intent that did not
        arrive is withdrawn. BatchOpen: it was made with another key, whose account may have the batch.
        """

        def known(batch: str) -> bool:
            return batch in foreign or self._log.known(batch)

        while True:
            found = str(await self._with_retries(client.find, intent, known))
            if found:
                if client.identified:  # otherwise its results tell whether it is the one
                    self._log.submitted(intent.id, found)
                return found
            now = self._log.read(intent.id)
            if now is None or now.batch:  # another process has finished or found it
                return None if now is None else now.batch
            young = 0 <= time.time() - now.created < ARRIVAL
            if not young and intent.place != client.place:
                raise BatchOpen(
                    f"{client.spec}: a batch of {intent.requests} requests may have been submitted with another key,"
                    " and this key's account does not have it: repeat the command with that key, or set KARAT_CACHE to"
                    " another file to submit its requests again"
                )
            if not young and now.created == intent.created and self._log.withdraw(intent):
                return ""
            intent = now
            await self._service.clock.sleep(min(ARRIVAL, FIRST_POLL))

    async def _poll(self, client: _Client, batch: str) -> dict[str, Any]:
        """The state of a batch when it has ended."""
        wait = FIRST_POLL
        while True:
            state: dict[str, Any] = await self._with_retries(client.state, batch)
            if client.ended(state):
                return state
            await self._service.clock.sleep(wait)
            wait = min(LONGEST_POLL, wait * 1.5)

    async def _with_retries(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Return the result of `ask`, repeated after failures; raise BatchOpen after too many."""
        wait = FIRST_POLL
        for _ in range(UNREACHABLE):
            try:
                return await ask(*arguments)
            except Stopped:
                raise
            except KaratError as error:
                problem = error
                if isinstance(error, ModelFailure) and not error.retried:
                    break
            await self._service.clock.sleep(wait)
            wait = min(LONGEST_POLL, wait * 1.5)
        raise BatchOpen(
            f"{problem}: the batch continues; repeat the command to attach to it with the key and base URL it was"
            " submitted with, or set KARAT_CACHE to another file to submit its requests again"
        )

    def _deliver(self, custom_id: str, outcome: bytes | BaseException) -> None:
        for waiting in self._waiting.pop(custom_id, ()):
            if waiting.future.done():
                continue
            if isinstance(outcome, bytes):
                waiting.future.set_result(outcome)
            elif isinstance(outcome, asyncio.CancelledError):
                waiting.future.cancel()
            else:
                waiting.future.set_exception(outcome)

    def _fail(self, requests: list[_Waiting], error: BaseException) -> None:
        for each in requests:
            self._deliver(each.custom_id, error)

    def _announce_open_batches(self) -> None:
        for intent in self._following:
            row = self._log.read(intent)
            if row is not None and row.batch and row.batch not in self._announced:
                self._announced.add(row.batch)
                _log.warning("batch %s continues: repeat the command to attach to it", row.batch)

    async def aclose(self) -> None:
        """Stop polling; the batches continue."""
        tasks = [*self._flushing.values(), *self._following.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for log in self._logs.values():
            log._connection.close()


def _place(target: Target) -> str:
    """The destination of one batch's requests: provider, model, URL and account.

    The account is known by its key, of which 16 bits of a hash are stored: enough to tell that two keys differ, and too
    few to find out anything about them. A command prints another key each time, and stands for its account itself.
    """
    endpoint = target.endpoint
    account = endpoint.key_command or "\n".join(map(str, target.identity[1:]))
    mark = hashlib.blake2b(account.encode("utf-8", "surrogateescape"), digest_size=2).hexdigest()
    return f"{endpoint.provider} {endpoint.model} {target.url} {mark}"


_Permit = Callable[[], Awaitable[None]]


async def _check_permission(requests: Iterable[_Waiting]) -> None:
    """Raise if a stage that asked for one of the requests may not send it any more."""
    for permit in {each.context.permit for each in requests} - {None}:
        assert permit is not None
        allowed = permit()
        if allowed is not None:
            await allowed


def _parts(requests: list[_Waiting], limits: tuple[int, int]) -> Iterable[list[_Waiting]]:
    """Split requests into batches that the provider accepts."""
    most, largest = limits
    part: list[_Waiting] = []
    size = 0
    for each in requests:
        length = len(each.body) + 300
        if part and (len(part) >= most or size + length > largest):
            yield part
            part, size = [], 0
        part.append(each)
        size += length
    if part:
        yield part


def _client(service: Service, target: Target) -> _Client:
    kind = provider_of(target.endpoint).batches
    return (_OpenAI if kind == "openai" else _Anthropic)(service, target)


Results = list[tuple[str, bytes | Exception]]
"""Request ids with their outcomes: a reply body, or a failure. The id of a line that cannot be read is empty."""


class _Client:
    """A batch API."""

    identified = False
    """Whether a batch in the provider's list names its intent."""

    def __init__(self, service: Service, target: Target) -> None:
        self._session = service.session
        self._service = service
        self._clock = service.clock
        self._target = target
        self.sent: dict[str, bytes] = {}
        """The bodies of the requests whose results are read, by id."""
        self._endpoint: Endpoint = target.endpoint
        self.spec = target.endpoint.spec
        self.place = _place(target)
        self._path = provider_of(self._endpoint).format(self._endpoint).path(self._endpoint)
        parts = urlsplit(target.url)
        self._base = parts._replace(path=parts.path.removesuffix(self._path), query="")
        self._query = parts.query

    async def create(
        self, intent: _Intent, requests: list[tuple[str, bytes]], log: BatchLog, permit: _Permit
    ) -> str:
        """Submit a batch and return its id. BatchOpen: it is unknown whether it was created."""
        raise NotImplementedError

    async def state(self, batch: str) -> dict[str, Any]:
        """What the provider reports about a batch."""
        raise NotImplementedError

    def status(self, state: dict[str, Any]) -> str:
        """The provider's word for a state."""
        raise NotImplementedError

    def ended(self, state: dict[str, Any]) -> bool:
        """Whether no further result will be added."""
        raise NotImplementedError

    def partial(self, state: dict[str, Any]) -> bool:
        """Whether a batch ended without all of its results."""
        raise NotImplementedError

    async def results(self, batch: str, state: dict[str, Any]) -> Results:
        """The results of a batch that has ended."""
        raise NotImplementedError

    async def find(self, intent: _Intent, known: Callable[[str], bool]) -> str:
        """The batch of an intent in the provider's list; empty if it is not there."""
        raise NotImplementedError

    async def _call(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json", query: str = ""
    ) -> bytes:  # fmt: skip
        """Send one request. ServerFailed also if the connection ends: the request may have arrived."""
        query = "&".join(each for each in (self._query, query) if each)
        url = urlunsplit(self._base._replace(path=self._base.path + path, query=query))
        used = self._target.key
        try:
            return await self._send(method, url, body, content_type)
        except QuotaExhausted:
            raise
        except CredentialsRefused:
            if not self._endpoint.key_command:
                raise
            self._target = await self._service.refreshed(self._target, used)
        return await self._send(method, url, body, content_type)

    async def _send(self, method: str, url: str, body: bytes | None, content_type: str) -> bytes:
        headers = {**self._target.headers, "Content-Type": content_type}
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=self._target.timeout, allow_redirects=False,
                proxy=self._target.proxy,
            ) as response:  # fmt: skip
                answer = await read_body(response, self.spec, LARGEST_RESULTS)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise ServerFailed(f"{self.spec}: no response ({type(error).__name__})") from None
        answer = await beside(answer, self._target.redactor.in_bytes, answer)
        if response.status >= 300:
            raise self._failure(response.status, answer, response.headers)
        return answer

    def _failure(self, status: int, answer: bytes, headers: Any = None, sent: bytes = b"") -> Exception:
        raw = error_body(answer)
        message, code = self._target.provider.error(raw)
        return failure_of(self._endpoint, status, message, code, headers or {}, raw, sent)

    async def _upload(self, path: str, body: bytes, content_type: str) -> str:
        """Send a request that can be repeated, and return the id of what it made."""
        for attempt in range(CREATION_TRIES):
            try:
                return self._id(await self._call("POST", path, body, content_type))
            except ModelFailure as failure:
                if not failure.retried or attempt == CREATION_TRIES - 1:
                    raise
                await self._clock.sleep(min(30.0, failure.wait or 2.0**attempt))
        raise AssertionError("unreachable")

    async def _create(self, path: str, body: bytes, intent: _Intent, log: BatchLog, permit: _Permit) -> str:
        """Create a batch and return its id. BatchOpen: it is unknown whether it was created."""
        for attempt in range(CREATION_TRIES):
            await permit()  # uploading the requests may have taken minutes, and this is what costs
            if not log.renew(intent.id):  # it took too long, and another process has submitted the requests
                raise BatchOpen(f"{self.spec}: another process has taken over the batch: repeat the command")
            try:
                return self._id(await self._call("POST", path, body))
            except ModelFailure as failure:
                not_created = failure.status is not None and (
                    failure.status < 500 or failure.status in (503, 529)
                )
                if not not_created or failure.status in (408, 409):
                    raise BatchOpen(
                        f"{failure}: it is unknown whether the batch was created; repeat the command to look it up"
                    ) from None
                if not failure.retried or attempt == CREATION_TRIES - 1:
                    raise
                status, wait = failure.status, failure.wait
            await self._clock.sleep(min(30.0, wait or 2.0**attempt))
            if status != 429:  # a gateway may say that it is busy when the batch was created behind it
                found = await self.find(intent, log.known)
                if found:
                    return found
        raise AssertionError("unreachable")

    def _id(self, answer: bytes) -> str:
        made = self._object(answer).get("id")
        if not isinstance(made, str) or not _ID.fullmatch(made):
            raise BrokenBody(f"{self.spec}: the response about a batch has no id")
        return made

    def _object(self, answer: bytes) -> dict[str, Any]:
        try:
            raw = decode_untrusted(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BrokenBody(f"{self.spec}: the response about a batch is not JSON") from None
        if not isinstance(raw, dict):
            raise BrokenBody(f"{self.spec}: the response about a batch is not an object")
        return raw

    async def _list_batches(self, path: str, after: str, since: float) -> list[dict[str, Any]]:
        """The batches in the provider's list, newest first, at least those created after a time."""
        batches: list[dict[str, Any]] = []
        query = "limit=100"
        for _ in range(LIST_PAGES):
            page = self._object(await self._call("GET", path, query=query))
            data = page.get("data")
            if not isinstance(data, list):
                raise BrokenBody(f"{self.spec}: the list of batches has no data")
            rows = [row for row in data if isinstance(row, dict) and isinstance(row.get("id"), str)]
            batches += rows
            if not page.get("has_more") or not rows or _created_at(rows[-1]) < since:
                return batches
            query = f"limit=100&{after}={quote(rows[-1]['id'], safe='')}"
        raise BatchOpen(f"{self.spec}: the list of batches has no end: repeat the command later")

    def _lines(self, answer: bytes) -> Results:
        found: Results = []
        for line in answer.splitlines():
            if not line.strip():
                continue
            try:
                row = decode_untrusted(line)
                custom_id = row["custom_id"]
                outcome = self._outcome(row)
                if isinstance(outcome, bytes) and len(outcome) > _transport.LARGEST_BODY:
                    outcome = _transport.too_large(self.spec, _transport.LARGEST_BODY)
                found.append((custom_id if isinstance(custom_id, str) else "", outcome))
            except (
                msgspec.DecodeError,
                UnicodeDecodeError,
                RecursionError,
                KeyError,
                TypeError,
                AttributeError,
            ):
                found.append(("", BrokenBody(f"{self.spec}: a result of the batch cannot be read")))
        return found

    def _outcome(self, row: dict[str, Any]) -> bytes | Exception:
        raise NotImplementedError


CREATION_TRIES = 5
_ID = re.compile(r"[\w.-]{1,200}")


def _created_at(batch: dict[str, Any]) -> float:
    """When a batch was created, in seconds; the distant past if the provider does not say."""
    created = batch.get("created_at")
    try:
        if isinstance(created, (int, float)):
            return float(created)
        return datetime.fromisoformat(str(created).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("-inf")


class _OpenAI(_Client):
    """OpenAI's batches: a file of JSON lines, and a batch of that file."""

    identified = True

    async def create(
        self, intent: _Intent, requests: list[tuple[str, bytes]], log: BatchLog, permit: _Permit
    ) -> str:
        url = "/v1" + self._path
        lines = b"\n".join(
            b'{"custom_id":"%s","method":"POST","url":"%s","body":%s}' % (each.encode(), url.encode(), body)
            for each, body in requests
        )
        boundary = f"karat-{intent.id}"
        form = (
            (
                f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
                f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{intent.id}.jsonl"\r\n'
                "Content-Type: application/jsonl\r\n\r\n"
            ).encode()
            + lines
            + f"\r\n--{boundary}--\r\n".encode()
        )
        file = await self._upload("/files", form, f"multipart/form-data; boundary={boundary}")
        return await self._create(
            "/batches",
            _encode(
                {
                    "input_file_id": file,
                    "endpoint": url,
                    "completion_window": "24h",
                    "metadata": {"karat_intent": intent.id},
                }
            ),
            intent,
            log,
            permit,
        )

    async def find(self, intent: _Intent, known: Callable[[str], bool]) -> str:
        for batch in await self._list_batches("/batches", "after", intent.created - CLOCK_ERROR):
            metadata = batch.get("metadata")
            if isinstance(metadata, dict) and metadata.get("karat_intent") == intent.id:
                return str(batch["id"])
        return ""

    async def state(self, batch: str) -> dict[str, Any]:
        return self._object(await self._call("GET", f"/batches/{batch}"))

    def status(self, state: dict[str, Any]) -> str:
        return one_line(str(state.get("status")), 40)

    def ended(self, state: dict[str, Any]) -> bool:
        return state.get("status") in ("completed", "failed", "expired", "cancelled")

    def partial(self, state: dict[str, Any]) -> bool:
        return state.get("status") != "completed"

    async def results(self, batch: str, state: dict[str, Any]) -> Results:
        files = [state[name] for name in ("output_file_id", "error_file_id") if state.get(name)]
        if state.get("status") == "failed" and not files:
            errors = state.get("errors")
            problems = errors.get("data") if isinstance(errors, dict) else None
            first = problems[0] if isinstance(problems, list) and problems else None
            reason = first.get("message") if isinstance(first, dict) else None
            raise BatchFailed(
                f"{self.spec}: batch {batch} was refused: {one_line(str(reason or 'no reason given'), 300)}:"
                " correct it, then repeat the"
                f" {wording('command', 'call')} to submit it again"
            )
        found: Results = []
        for file in files:
            found += self._lines(await self._call("GET", f"/files/{quote(str(file), safe='')}/content"))
        return found

    def _outcome(self, row: dict[str, Any]) -> bytes | Exception:
        response, error = row.get("response") or {}, row.get("error") or {}
        status, body = response.get("status_code") or 0, response.get("body")
        if 200 <= status < 300 and isinstance(body, dict):
            return _encode(body)
        if status:
            return self._failure(status, _encode(body), sent=self.sent.get(row["custom_id"], b""))
        reason = error.get("message") or error.get("code") or "no reply"
        return ServerFailed(f"{self.spec}: in the batch: {one_line(str(reason), 300)}")


class _Anthropic(_Client):
    """Anthropic's message batches: the requests are in the body."""

    async def create(
        self, intent: _Intent, requests: list[tuple[str, bytes]], log: BatchLog, permit: _Permit
    ) -> str:
        rows = b",".join(b'{"custom_id":"%s","params":%s}' % (each.encode(), body) for each, body in requests)
        return await self._create("/messages/batches", b'{"requests":[' + rows + b"]}", intent, log, permit)

    async def find(self, intent: _Intent, known: Callable[[str], bool]) -> str:
        """The only unrecorded batch with as many requests since the intent: message batches have no metadata."""
        since = intent.created - CLOCK_ERROR
        found = []
        for batch in await self._list_batches("/messages/batches", "after_id", since):
            counts = batch.get("request_counts")
            numbers = counts.values() if isinstance(counts, dict) else ()
            fits = sum(number for number in numbers if isinstance(number, int)) == intent.requests
            if fits and _created_at(batch) >= since and not known(str(batch["id"])):
                found.append(str(batch["id"]))
        if len(found) > 1:
            raise BatchOpen(
                f"{self.spec}: it is unknown which of the batches {', '.join(found)} was submitted"
                " before the interruption: cancel those that are not needed, then repeat the command"
            )
        return found[0] if found else ""

    async def state(self, batch: str) -> dict[str, Any]:
        return self._object(await self._call("GET", f"/messages/batches/{batch}"))

    def status(self, state: dict[str, Any]) -> str:
        return one_line(str(state.get("processing_status")), 40)

    def ended(self, state: dict[str, Any]) -> bool:
        return state.get("processing_status") == "ended"

    def partial(self, state: dict[str, Any]) -> bool:
        return False  # a cancelled or expired request has a line of its own

    async def results(self, batch: str, state: dict[str, Any]) -> Results:
        return self._lines(await self._call("GET", f"/messages/batches/{batch}/results"))

    def _outcome(self, row: dict[str, Any]) -> bytes | Exception:
        result = row["result"]
        if result["type"] == "succeeded":
            if not isinstance(result["message"], dict):
                raise TypeError("a message is an object")
            return _encode(result["message"])
        if result["type"] == "errored":
            _, kind = self._target.provider.error(result.get("error"))
            status = 400 if kind == "invalid_request_error" else 500
            sent = self.sent.get(row["custom_id"], b"")
            return self._failure(status, _encode(result.get("error")), sent=sent)
        return ServerFailed(f"{self.spec}: in the batch: {one_line(str(result['type']), 100)}")
