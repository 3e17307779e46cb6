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
import hashlib
import logging
import sqlite3
import time
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from karat.errors import CredentialsRefused, KaratError, RequestError, Stopped
from karat.models._cache import connect
from karat.models._endpoints import Endpoint, provider_of
from karat.models._failures import BrokenBody, ModelFailure, ServerFailed
from karat.models._replies import read_reply
from karat.models._request_context import ProviderReply, RequestContext
from karat.models._transport import Target, failure_of, read_body, refused_parameter

if TYPE_CHECKING:
    from karat.models._service import Service

SETTLED = 0.5
"""Seconds without another request after which those that wait are submitted."""

FIRST_POLL, LONGEST_POLL = 1.0, 20.0
"""Seconds between questions whether a batch has ended: at first, and at most."""

LARGEST_RESULTS = 2 << 30
UNREACHABLE = 20
"""Questions in a row that may fail before the stage stops; the batch goes on."""

LIMITS = {"openai": (50_000, 190 << 20), "anthropic": (100_000, 240 << 20)}
"""Requests and bytes of one batch, a little below what the providers allow."""

_log = logging.getLogger("karat.models")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class BatchOpen(Stopped):
    """This process cannot follow a batch any further; the batch continues, and the same command attaches to it."""


class _Waiting:
    """A request on its way into a batch, and who waits for it."""

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
    """Where it was sent: `api key-less address of the provider, and the path of its requests`."""
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
        """The intents that requests belong to, of those that belong to one."""
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
        self._waiting: dict[str, list[_Waiting]] = {}
        self._logs: dict[str, BatchLog] = {}
        self._announced: set[str] = set()

    @property
    def _log(self) -> BatchLog:
        path = self._service.cache.path
        log = self._logs.get(str(path))
        if log is None:
            log = self._logs[str(path)] = BatchLog(connect(path))
        return log

    async def ask(self, context: RequestContext, target: Target, body: bytes, worst: float) -> ProviderReply:
        """The reply to one request, sent with others."""
        endpoint = context.endpoint
        if context.cache == "off":
            raise RequestError("a batch needs the reply cache, where its results go: leave cache off out")
        digest = hashlib.blake2b(context.key() + body, digest_size=20).digest()
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
                self._say_how_to_come_back()
                raise
            cost = worst
            reply = read_reply(endpoint, raw, 0.0)
            if reply.tokens is not None and endpoint.price is not None:
                cost = endpoint.price.cost(reply.tokens)
            return reply
        finally:
            context.timing.queue += time.perf_counter() - start
            if context.budget is not None:
                context.budget.settle(worst, cost)

    def _add(self, waiting: _Waiting) -> None:
        target = waiting.target
        place = f"{target.endpoint.provider} {target.endpoint.model} {target.url}"
        self._groups.setdefault(place, {})[waiting.custom_id] = waiting
        self._waiting.setdefault(waiting.custom_id, []).append(waiting)
        running = self._flushing.get(place)
        if running is None or running.done():
            self._flushing[place] = asyncio.ensure_future(self._flush_when_settled(place))

    async def _flush_when_settled(self, place: str) -> None:
        """Submit what waits, once nothing has been added for a while."""
        seen = -1
        while (count := len(self._groups.get(place, {}))) != seen:
            seen = count
            await self._service.clock.sleep(SETTLED)
        group = self._groups.pop(place, {})
        requests = [each for each in group.values() if not each.future.done()]
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
            self._follow(intent, next(each for each in requests if known.get(each.custom_id) == intent))
        new = [each for each in requests if each.custom_id not in known]
        allowed = [each for each in new if await self._permitted(each)]
        if allowed and place in self._announced:
            _log.warning("%d follow-up requests go into another batch", len(allowed))
        for part in _parts(
            allowed, LIMITS[provider_of(allowed[0].target.endpoint).batches] if allowed else (1, 1)
        ):
            self._announced.add(place)
            intent_row = self._log.intend(place, [each.custom_id for each in part])
            if intent_row is None:  # another process was quicker
                await self._submit(place, part)
                continue
            await self._create(intent_row, part)
            self._follow(intent_row.id, part[0])

    async def _permitted(self, waiting: _Waiting) -> bool:
        try:
            if waiting.context.permit is not None:
                allowed = waiting.context.permit()
                if allowed is not None:
                    await allowed
        except Exception as error:
            self._fail([waiting], error)
            return False
        return True

    async def _create(self, intent: _Intent, part: list[_Waiting]) -> None:
        """Submit one batch. When it is unknown whether it arrived, the provider's list decides, later."""
        client = _client(self._service, part[0].target)
        try:
            batch = await client.create(intent.id, [(each.custom_id, each.body) for each in part])
        except (BatchOpen, asyncio.CancelledError):
            raise  # it may have arrived: the intent stays
        except Exception:
            self._log.forget(intent.id)  # the provider answered that there is no such batch
            raise
        self._log.submitted(intent.id, batch)
        _log.warning(
            "batch %s: %d requests to %s; interrupt at any time, the same command attaches to it",
            batch, len(part), part[0].target.endpoint.spec,
        )  # fmt: skip

    def _follow(self, intent: str, one: _Waiting) -> None:
        running = self._following.get(intent)
        if running is None or running.done():
            self._following[intent] = asyncio.ensure_future(self._follow_to_the_end(intent, one))

    async def _follow_to_the_end(self, intent_id: str, one: _Waiting) -> None:
        """Wait for a batch, and hand out its results."""
        client = _client(self._service, one.target)
        try:
            intent = self._log.read(intent_id)
            if intent is None:
                raise BatchOpen(
                    "a batch was finished by another process: repeat the command to use its results"
                )
            batch = intent.batch or await self._find(client, intent)
            if not batch:
                self._log.forget(intent_id)  # it never arrived: submitted anew
                self._again(intent_id)
                return
            await self._until_ended(client, batch)
            rows, outcomes = [], {}
            async for custom_id, outcome in client.results(batch):
                outcomes[custom_id] = outcome
                if isinstance(outcome, bytes):
                    key = bytes.fromhex(custom_id)
                    rows.append(self._service.cache.put(key, one.target.endpoint.spec, outcome, 0.0))
            if rows:
                self._service.cache.hurry()
                await asyncio.wait(rows)
            for custom_id in [each for each in self._waiting if self._belongs(each, intent_id)]:
                outcomes.setdefault(
                    custom_id, ServerFailed(f"{one.target.endpoint.spec}: the batch has no answer to it")
                )
            # First stored and forgotten, then handed out: whoever asks again finds results, not a finished batch.
            self._log.forget(intent_id)
            for custom_id, outcome in outcomes.items():
                self._deliver(custom_id, outcome)
        except BaseException as error:
            for custom_id in [each for each in list(self._waiting) if self._belongs(each, intent_id)]:
                self._deliver(custom_id, error)
            if not isinstance(error, Exception):
                raise

    def _belongs(self, custom_id: str, intent: str) -> bool:
        return self._log.open_intents([custom_id]).get(custom_id) == intent

    def _again(self, intent: str) -> None:
        for waiters in list(self._waiting.values()):
            for each in waiters:
                if not each.future.done() and not self._log.open_intents([each.custom_id]):
                    self._groups.setdefault(
                        f"{each.target.endpoint.provider} {each.target.endpoint.model} {each.target.url}", {}
                    ).setdefault(each.custom_id, each)
        for place in self._groups:
            running = self._flushing.get(place)
            if running is None or running.done():
                self._flushing[place] = asyncio.ensure_future(self._flush_when_settled(place))

    async def _find(self, client: _Client, intent: _Intent) -> str:
        """The batch of an intent whose submission was interrupted; empty: it never arrived."""
        found = await client.find(intent, self._log.known)
        if found:
            self._log.submitted(intent.id, found)
        return found

    async def _until_ended(self, client: _Client, batch: str) -> None:
        wait, failures = FIRST_POLL, 0
        while True:
            try:
                if await client.ended(batch):
                    return
                failures = 0
            except CredentialsRefused:
                raise
            except KaratError as error:
                failures += 1
                if failures > UNREACHABLE or isinstance(error, Stopped):
                    raise BatchOpen(
                        f"batch {batch} cannot be followed ({error}): it goes on, repeat the command to attach to it"
                    ) from None
            await self._service.clock.sleep(wait)
            wait = min(LONGEST_POLL, wait * 1.5)

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

    def _say_how_to_come_back(self) -> None:
        for intent in self._following:
            row = self._log.read(intent)
            if row is not None and row.batch and row.batch not in self._announced:
                self._announced.add(row.batch)
                _log.warning(
                    "batch %s goes on at the provider: repeat the command to attach to it", row.batch
                )

    async def aclose(self) -> None:
        """Stop following; the batches go on."""
        tasks = [*self._flushing.values(), *self._following.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for log in self._logs.values():
            log._connection.close()


def _parts(requests: list[_Waiting], limits: tuple[int, int]) -> Iterable[list[_Waiting]]:
    """The requests in parts of a size that the provider takes."""
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


class _Client:
    """A batch API."""

    def __init__(self, service: Service, target: Target) -> None:
        self._session = service.session
        self._target = target
        self._endpoint: Endpoint = target.endpoint
        self._base = target.url[
            : -len(provider_of(self._endpoint).format(self._endpoint).path(self._endpoint))
        ]

    async def create(self, intent: str, requests: list[tuple[str, bytes]]) -> str:
        raise NotImplementedError

    async def ended(self, batch: str) -> bool:
        raise NotImplementedError

    def results(self, batch: str) -> Any:
        raise NotImplementedError

    async def find(self, intent: _Intent, known: object) -> str:
        raise NotImplementedError

    async def _call(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> bytes:
        """One request. ServerFailed, also for a connection that ends: what came of it is not known."""
        headers = {**self._target.headers, "Content-Type": content_type}
        url = path if path.startswith("http") else self._base + path
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=self._target.timeout, allow_redirects=False,
                proxy=self._target.proxy,
            ) as response:  # fmt: skip
                answer = await read_body(response, self._endpoint.spec, LARGEST_RESULTS)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise ServerFailed(f"{self._endpoint.spec}: no answer ({type(error).__name__})") from None
        answer = self._target.redactor.in_bytes(answer)
        if response.status >= 300:
            raise self._failure(response.status, answer, response.headers)
        return answer

    def _failure(self, status: int, answer: bytes, headers: Any = None, sent: bytes = b"") -> Exception:
        try:
            raw: Any = _decode(answer)
        except msgspec.DecodeError:
            raw = answer[:4000].decode("utf-8", "replace")
        message, code = self._target.provider.error(raw)
        if status in (400, 422) and sent:
            refused = refused_parameter(self._endpoint, raw, message, code, sent)
            if refused is not None:
                return refused
        return failure_of(self._endpoint, status, message, code, headers or {})

    async def _send(self, path: str, body: bytes, content_type: str = "application/json") -> dict[str, Any]:
        """Send a request that creates something. BatchOpen: it is unknown whether the request arrived."""
        for attempt in range(5):
            try:
                return self._object(await self._call("POST", path, body, content_type))
            except ModelFailure as failure:
                if failure.status is None:
                    raise BatchOpen(
                        f"{failure}: it is unknown whether the batch was created; repeat the command to find out"
                    ) from None
                if not failure.retried or attempt == 4:
                    raise
                await asyncio.sleep(min(30.0, failure.wait or 2.0**attempt))
        raise AssertionError("unreachable")

    def _object(self, answer: bytes) -> dict[str, Any]:
        try:
            raw = _decode(answer)
        except msgspec.DecodeError:
            raise BrokenBody(f"{self._endpoint.spec}: the answer about a batch is not JSON") from None
        if not isinstance(raw, dict):
            raise BrokenBody(f"{self._endpoint.spec}: the answer about a batch is not an object")
        return raw

    async def _list(self, path: str) -> list[dict[str, Any]]:
        raw = self._object(await self._call("GET", path))
        return [each for each in raw.get("data") or () if isinstance(each, dict)]


class _OpenAI(_Client):
    """OpenAI's: a file of JSON lines, and a batch over it."""

    async def create(self, intent: str, requests: list[tuple[str, bytes]]) -> str:
        url = "/v1" + provider_of(self._endpoint).format(self._endpoint).path(self._endpoint)
        lines = b"\n".join(
            b'{"custom_id":"%s","method":"POST","url":"%s","body":%s}' % (each.encode(), url.encode(), body)
            for each, body in requests
        )
        boundary = f"karat-{intent}"
        form = (
            (
                f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
                f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{intent}.jsonl"\r\n'
                "Content-Type: application/jsonl\r\n\r\n"
            ).encode()
            + lines
            + f"\r\n--{boundary}--\r\n".encode()
        )
        try:
            file = await self._send("/files", form, f"multipart/form-data; boundary={boundary}")
        except BatchOpen as error:  # a file alone is no batch
            raise ServerFailed(str(error)) from None
        made = await self._send(
            "/batches",
            _encode(
                {
                    "input_file_id": str(file["id"]),
                    "endpoint": url,
                    "completion_window": "24h",
                    "metadata": {"karat_intent": intent},
                }
            ),
        )
        return str(made["id"])

    async def find(self, intent: _Intent, known: object) -> str:
        for batch in await self._list("/batches?limit=100"):
            if (batch.get("metadata") or {}).get("karat_intent") == intent.id:
                return str(batch["id"])
        return ""

    async def ended(self, batch: str) -> bool:
        state = self._object(await self._call("GET", f"/batches/{batch}")).get("status")
        return state in ("completed", "failed", "expired", "cancelled")

    async def results(self, batch: str) -> Any:
        state = self._object(await self._call("GET", f"/batches/{batch}"))
        if state.get("status") == "failed":
            problems = (state.get("errors") or {}).get("data") or [{}]
            raise RequestError(
                f"{self._endpoint.spec}: batch {batch} was refused: {problems[0].get('message') or 'no reason given'}"
            )
        for name in ("output_file_id", "error_file_id"):
            if not state.get(name):
                continue
            for line in (await self._call("GET", f"/files/{state[name]}/content")).splitlines():
                if line.strip():
                    yield self._outcome(_decode(line))

    def _outcome(self, row: dict[str, Any]) -> tuple[str, bytes | Exception]:
        response, error = row.get("response") or {}, row.get("error")
        status, body = response.get("status_code") or 0, response.get("body")
        if 200 <= status < 300 and isinstance(body, dict):
            return row["custom_id"], _encode(body)
        if status:
            return row["custom_id"], self._failure(status, _encode(body), sent=b"{}")
        reason = (error or {}).get("message") or (error or {}).get("code") or "no answer"
        return row["custom_id"], ServerFailed(f"{self._endpoint.spec}: in the batch: {reason}")


class _Anthropic(_Client):
    """Anthropic's: the requests in the body of one message batch."""

    async def create(self, intent: str, requests: list[tuple[str, bytes]]) -> str:
        rows = b",".join(b'{"custom_id":"%s","params":%s}' % (each.encode(), body) for each, body in requests)
        made = await self._send("/messages/batches", b'{"requests":[' + rows + b"]}")
        return str(made["id"])

    async def find(self, intent: _Intent, known: Any) -> str:
        """Find an unrecorded batch with the same number of requests, created after the intent: it has no metadata."""
        found = []
        for batch in await self._list("/messages/batches?limit=100"):
            counts = batch.get("request_counts") or {}
            made = datetime.fromisoformat(str(batch.get("created_at")).replace("Z", "+00:00")).timestamp()
            fits = sum(value for value in counts.values() if isinstance(value, int)) == intent.requests
            if fits and made >= intent.created - 60 and not known(str(batch["id"])):
                found.append(str(batch["id"]))
        if len(found) > 1:
            raise BatchOpen(
                f"{self._endpoint.spec}: it is unknown which of the batches {', '.join(found)} was submitted"
                " before the interruption: cancel those that are not needed, then repeat the command"
            )
        return found[0] if found else ""

    async def ended(self, batch: str) -> bool:
        state = self._object(await self._call("GET", f"/messages/batches/{batch}"))
        return state.get("processing_status") == "ended"

    async def results(self, batch: str) -> Any:
        for line in (await self._call("GET", f"/messages/batches/{batch}/results")).splitlines():
            if not line.strip():
                continue
            row = _decode(line)
            result = row["result"]
            if result["type"] == "succeeded":
                yield row["custom_id"], _encode(result["message"])
            elif result["type"] == "errored":
                status = 400 if "invalid_request" in str(result) else 500
                yield row["custom_id"], self._failure(status, _encode(result.get("error")), sent=b"{}")
            else:
                yield row["custom_id"], ServerFailed(f"{self._endpoint.spec}: in the batch: {result['type']}")
