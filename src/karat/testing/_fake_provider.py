"""FakeProvider: a server on loopback with scripted replies, failures and batches."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from karat.errors import RequestError, did_you_mean
from karat.testing._answers import answer_for, events_of
from karat.testing._strictness import hides_thinking, objection

# The batch APIs of a fake provider: files and batches as OpenAI has them, message batches as Anthropic has them.

Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]
"""`(status, body)` for a request at a path."""


class FakeBatches:
    """Batches of the fake provider: it accepts them, and replies to their requests after a number of polls."""

    def __init__(self, answer: Answer, polls: int) -> None:
        self._answer = answer
        self.polls = polls
        """The number of polls that report a batch as in progress before it has ended."""
        self.requests: Counter[str] = Counter()
        """How often each custom id was submitted."""
        self.lose_next: bool = False
        """Whether the next batch is created and the connection dropped before its id is sent."""
        self.status = "completed"
        """How batches of OpenAI end: completed, failed, expired or cancelled."""
        self.alter_results: Callable[[bytes], bytes] | None = None
        """Changes a file of results before it is sent."""
        self._files: dict[str, bytes] = {}
        self._batches: dict[str, dict[str, Any]] = {}
        self._results: dict[str, list[dict[str, Any]]] = {}
        self._left: dict[str, int] = {}

    @property
    def count(self) -> int:
        """The number of batches."""
        return len(self._batches)

    def handle(self, request: web.BaseRequest, content: bytes) -> web.Response | None:
        """The answer to a request that is about files or batches; None where it is not."""
        path = re.sub(r"^/v1", "", request.path)
        if path == "/files" and request.method == "POST":
            name = f"file-{len(self._files) + 1}"
            self._files[name] = _uploaded_file(content)
            return web.json_response({"id": name, "object": "file", "purpose": "batch"})
        if match := re.fullmatch(r"/files/([\w-]+)/content", path):
            return self._sent(self._files[match[1]])
        if path == "/batches":
            if request.method == "GET":
                return self._page(request, "after")
            return self._create(request, json.loads(content))
        if match := re.fullmatch(r"/batches/([\w-]+)", path):
            return web.json_response(self._state(match[1]))
        if path == "/messages/batches":
            if request.method == "GET":
                return self._page(request, "after_id")
            return self._create_messages(request, json.loads(content))
        if match := re.fullmatch(r"/messages/batches/([\w-]+)/results", path):
            lines = "\n".join(json.dumps(row) for row in self._results[match[1]])
            return self._sent(lines.encode())
        if match := re.fullmatch(r"/messages/batches/([\w-]+)", path):
            return web.json_response(self._state(match[1]))
        return None

    def _sent(self, results: bytes) -> web.Response:
        return web.Response(body=results if self.alter_results is None else self.alter_results(results))

    def _page(self, request: web.BaseRequest, after: str) -> web.Response:
        """A page of the list of batches, the newest first."""
        names = list(self._batches)[::-1]
        start = names.index(request.query[after]) + 1 if after in request.query else 0
        limit = int(request.query.get("limit", "20"))
        data = [self._batches[name] for name in names[start : start + limit]]
        return web.json_response({"data": data, "has_more": start + limit < len(names)})

    def _create(self, request: web.BaseRequest, body: dict[str, Any]) -> web.Response:
        rows = [json.loads(line) for line in self._files[body["input_file_id"]].splitlines() if line.strip()]
        problem = _wrong_ids([row["custom_id"] for row in rows])
        if problem is not None:
            return web.json_response({"error": {"message": problem, "code": "invalid_request"}}, status=400)
        name = f"batch_{len(self._batches) + 1}"
        self._batches[name] = {
            "id": name,
            "object": "batch",
            "endpoint": body["endpoint"],
            "status": "in_progress",
            "metadata": body.get("metadata"),
            "created_at": int(time.time()),
            "request_counts": {"total": len(rows), "completed": 0, "failed": 0},
        }
        self._take(name, [(row["custom_id"], row["url"], row["body"]) for row in rows])
        return self._made(request, name)

    def _create_messages(self, request: web.BaseRequest, body: dict[str, Any]) -> web.Response:
        rows = body["requests"]
        problem = _wrong_ids([row["custom_id"] for row in rows])
        if problem is not None:
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": problem}}
            return web.json_response(error, status=400)
        name = f"msgbatch_{len(self._batches) + 1}"
        self._batches[name] = {
            "id": name,
            "type": "message_batch",
            "processing_status": "in_progress",
            "created_at": datetime.now(UTC).isoformat(),
            "request_counts": {
                "processing": len(rows),
                "succeeded": 0,
                "errored": 0,
                "canceled": 0,
                "expired": 0,
            },
        }
        self._take(name, [(row["custom_id"], "/v1/messages", row["params"]) for row in rows])
        return self._made(request, name)

    def _made(self, request: web.BaseRequest, name: str) -> web.Response:
        if self.lose_next:
            self.lose_next = False
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.json_response(self._batches[name])

    def _take(self, name: str, rows: list[tuple[str, str, dict[str, Any]]]) -> None:
        self.requests.update(custom_id for custom_id, _, _ in rows)
        self._left[name] = self.polls
        anthropic = name.startswith("msg")
        results: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for custom_id, path, body in reversed(rows):  # in any order but theirs
            status, answer = self._answer(path, body)
            if anthropic:
                kind = "succeeded" if status < 300 else "errored"
                result = {"type": kind, "message" if status < 300 else "error": answer}
                results.append({"custom_id": custom_id, "result": result})
            else:
                row = {
                    "custom_id": custom_id,
                    "response": {"status_code": status, "body": answer},
                    "error": None,
                }
                (results if status < 300 else errors).append(row)
        self._results[name] = results
        if not anthropic:
            for kind, lines in (("output", results), ("error", errors)):
                if lines:
                    self._files[f"{kind}-{name}"] = "\n".join(map(json.dumps, lines)).encode()
                    self._batches[name][f"_{kind}_file_id"] = f"{kind}-{name}"

    def _state(self, name: str) -> dict[str, Any]:
        batch = self._batches[name]
        self._left[name] -= 1
        if self._left[name] < 0:
            if name.startswith("msg"):
                batch["processing_status"] = "ended"
            else:
                batch["status"] = self.status
                if self.status == "failed":
                    batch["errors"] = {
                        "data": [{"code": "token_limit_exceeded", "message": "too many tokens"}]
                    }
                else:
                    for kind in ("output", "error"):
                        batch[f"{kind}_file_id"] = batch.get(f"_{kind}_file_id")
        return {key: value for key, value in batch.items() if not key.startswith("_")}


def _uploaded_file(content: bytes) -> bytes:
    """The file in a multipart form."""
    boundary = content.partition(b"\r\n")[0]
    for part in content.split(boundary):
        head, blank, body = part.partition(b"\r\n\r\n")
        if blank and b'name="file"' in head:
            return body.removesuffix(b"\r\n")
    raise ValueError("no file in the form")


def _wrong_ids(ids: list[str]) -> str | None:
    for each in ids:
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each):
            return f"custom_id {each!r} should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
    return "custom_id has to be unique" if len(set(ids)) != len(ids) else None


WAYS = ("drop", "truncate")
"""Ways to fail without a status."""

Answers = str | Callable[[dict[str, Any]], Any] | Mapping[str, Any] | Iterable[Any] | None
"""One text; a function of the request body; texts by last user message; texts by request number; None: an echo.

An answer is a text, or `{text, tool_calls, thinking, refusal, logprobs, finish_reason, usage, raw}`; `raw` is sent
as it is, and `usage` is `(input, output)` or `{input, output, cached, reasoning}`.
"""


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """A way to fail: with a status, by dropping the connection, or by cutting the body short."""

    status: int | None = None
    message: str = "injected failure"
    code: str = "injected"
    headers: dict[str, str] = {}
    drop: bool = False
    truncate: bool = False
    body: str | bytes | None = None
    """Sent instead of an error body, or, without a status, instead of an answer; with `headers`."""


class Script:
    """Answers and failures, decided from the request alone: the same requests fail however they are ordered."""

    def __init__(
        self,
        answers: Answers = None,
        rates: Mapping[str, float] | None = None,
        failures: Mapping[int, Failing | int] | None = None,
        seed: int = 0,
    ) -> None:
        self.answers = (
            answers
            if answers is None or isinstance(answers, (str, Mapping)) or callable(answers)
            else list(answers)
        )
        self.rates = _checked_rates(rates or {})
        self.failures = dict(_checked_failure(*each) for each in (failures or {}).items())
        self.seed = seed

    def failure(self, number: int, body: bytes, asked: int) -> Failing | None:
        """The failure of request `number`, whose body is asked for the `asked`-th time; None for an answer."""
        if number in self.failures:
            return self.failures[number]
        if not self.rates:
            return None
        digest = hashlib.blake2b(body, digest_size=8, key=f"{self.seed}:{asked}".encode()).digest()
        draw = int.from_bytes(digest, "big") / 2**64
        for way, rate in self.rates.items():
            if draw < rate:
                return _way(way)
            draw -= rate
        return None

    def answer(self, number: int, body: dict[str, Any]) -> Any:
        """Return the answer to a request."""
        answers = self.answers
        if answers is None:
            return last_user_text(body)
        if isinstance(answers, str):
            return answers
        if callable(answers):
            return answers(body)
        if isinstance(answers, Mapping):
            text = last_user_text(body)
            return answers[text] if text in answers else answers.get("", text)
        listed: Any = answers
        return listed[min(number, len(listed)) - 1]


def _way(name: str) -> Failing:
    if name in WAYS:
        return Failing(drop=name == "drop", truncate=name == "truncate")
    return Failing(status=int(name))


def _checked_rates(rates: Mapping[Any, float]) -> dict[str, float]:
    """The shares by way; one that cannot be meant would otherwise be a test that tests nothing."""
    for way, rate in rates.items():
        if str(way) not in WAYS and not _is_status(way):
            raise RequestError(
                f"unknown failure {way!r} in rates: {did_you_mean(str(way), WAYS)} (or a status from 300 to 599)"
            )
        if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not 0 <= rate <= 1:
            raise RequestError(f"rates[{way!r}] is {rate!r}: give a share from 0 to 1")
    if sum(rates.values()) > 1 + 1e-9:
        raise RequestError(
            f"rates add up to {sum(rates.values()):g}: their sum can be at most 1, every request"
        )
    return {str(way): rate for way, rate in rates.items()}


def _checked_failure(number: Any, way: Any) -> tuple[int, Failing]:
    """The request number, which JSON has as a text, and how it fails."""
    if isinstance(number, bool) or not str(number).isdecimal() or int(number) < 1:
        raise RequestError(f"failures has the request number {number!r}: requests are numbered from 1")
    if isinstance(way, Failing):
        return int(number), way
    if not isinstance(way, int) or not _is_status(way):
        raise RequestError(f"failures[{number}] is {way!r}: give a status from 300 to 599, or Failing(…)")
    return int(number), Failing(status=way)


def _is_status(way: Any) -> bool:
    return not isinstance(way, bool) and str(way).isdecimal() and 300 <= int(way) <= 599


def last_user_text(body: Mapping[str, Any]) -> str:
    """The text of the last user message of a request, in any of the formats."""
    messages = body.get("messages") or body.get("input") or []
    if isinstance(messages, str):
        return messages
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            return "".join(part.get("text") or "" for part in content or () if isinstance(part, dict))
    return ""


KEPT = 10_000
"""Requests whose bodies are remembered; beyond it only counts are."""


class FakeProvider:
    """A server in a thread of this process, as a context manager.

    `answers` scripts what it says; `rates` makes a share of the requests fail (`{"429": 0.3, "drop": 0.05,
    "truncate": 0.01}`), always the same ones for the same `seed`; `failures` makes request number n fail, counted
    from 1. `keys`, when given, are the only keys it accepts. It speaks chat completions, Responses and Anthropic's
    messages, streamed or not, and refuses what the real providers refuse for the models it knows by name, with their
    messages; `strict=False` accepts everything. `requests`, `headers`, `count` and `counts` (per body)
    tell what it was asked.
    """

    def __init__(
        self,
        answers: Answers = None,
        *,
        latency: float = 0.0,
        rates: Mapping[str, float] | None = None,
        failures: Mapping[int, Failing | int] | None = None,
        seed: int = 0,
        keys: list[str] | None = None,
        model: str | None = None,
        dimensions: int = 8,
        port: int = 0,
        strict: bool = True,
        batch_polls: int = 1,
    ) -> None:
        self.strict = strict
        self.batches = FakeBatches(self._batch_answer, batch_polls)
        self.script = Script(answers, rates, failures, seed)
        self.latency = latency
        self.keys = keys
        self.model = model
        self.dimensions = dimensions
        self.port = port
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.count = 0
        self.counts: Counter[str] = Counter()
        self.in_flight = 0
        self.most_in_flight = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._broken: BaseException | None = None

    @property
    def url(self) -> str:
        """The base URL, for `NAME@URL`, OPENAI_BASE_URL or ANTHROPIC_BASE_URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    def spec(self, name: str = "fake") -> str:
        """The spec of a model on this server."""
        return f"{name}@{self.url}"

    def reset(self) -> None:
        """Forget the requests."""
        self.requests, self.headers, self.count, self.most_in_flight = [], [], 0, 0
        self.counts.clear()

    def __enter__(self) -> FakeProvider:
        self._thread = threading.Thread(target=self._run, name="karat-fake-provider", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._broken is not None:
            raise self._broken
        return self

    def _run(self) -> None:
        try:
            asyncio.run(self.serve())
        except BaseException as error:
            self._broken = error
        finally:
            self._ready.set()

    def __exit__(self, *exception: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def serve(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until stopped; call `ready` when it listens."""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, backlog=4096)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]  # started above
        self._ready.set()
        if ready is not None:
            ready()
        try:
            await self._ended.wait()
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET" and request.path == "/stats":
            return web.json_response(self.stats())
        content = await request.read()
        batched = self.batches.handle(request, content) if self._may_ask(request) else None
        if batched is not None:
            return batched
        self.count += 1
        number = self.count
        key = request.path + "\n" + content.decode("utf-8", "replace")
        self.counts[key] += 1
        asked = self.counts[key]
        is_form = request.content_type.startswith(
            "multipart/"
        )  # the file of a batch, with a key that is refused
        body = msgspec.json.decode(content) if content and not is_form else {}
        if len(self.requests) < KEPT:
            self.requests.append(body)
            self.headers.append(dict(request.headers))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.latency:
                await asyncio.sleep(self.latency)
            return await self._respond(request, number, content, asked, body)
        finally:
            self.in_flight -= 1

    async def _respond(
        self, request: web.BaseRequest, number: int, content: bytes, asked: int, body: dict[str, Any]
    ) -> web.StreamResponse:
        if not self._may_ask(request):
            message = f"incorrect key {_key(request)}"
            return _error(Failing(status=401, message=message, code="invalid_api_key"))
        failing = self.script.failure(number, content, asked)
        if failing is not None and failing.drop:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if failing is not None and failing.status is not None:
            return _error(failing)
        refused = objection(request.path, body, request.headers) if self.strict else None
        if refused is not None:
            return web.json_response(refused, status=400)
        answer = self._answer(request.path, number, body)
        text = failing.body if failing is not None and failing.body is not None else json.dumps(answer)
        content = text if isinstance(text, bytes) else text.encode()
        if failing is not None and failing.truncate:
            return _cut_short(request, content)
        headers = _JSON | (failing.headers if failing is not None else {})
        if body.get("stream") and (failing is None or failing.body is None):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return await _stream(request, events_of(request.path, answer, usage), self.latency)
        return web.Response(body=content, headers=headers)

    def _may_ask(self, request: web.BaseRequest) -> bool:
        return self.keys is None or _key(request) in self.keys

    def _batch_answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """The answer to a request of a batch: `(status, body)`."""
        self.count += 1
        content = json.dumps(body).encode()
        if len(self.requests) < KEPT:
            self.requests.append(body)
        failing = self.script.failure(self.count, content, 1)
        if failing is not None:
            error = {"message": failing.message, "type": failing.code, "code": failing.code}
            return failing.status or 500, {"error": error}
        headers = {"anthropic-version": ""}
        refused = objection(path, body, headers) if self.strict else None
        return (200, self._answer(path, self.count, body)) if refused is None else (400, refused)

    def _answer(self, path: str, number: int, body: dict[str, Any]) -> Any:
        model = self.model or body.get("model")
        if path.endswith("/embeddings"):
            return embeddings(body, self.dimensions, model)
        given = self.script.answer(number, body)
        parts = dict(given) if isinstance(given, Mapping) else {"text": str(given)}
        if "raw" in parts:
            return parts["raw"]
        parts.setdefault(
            "usage", (len(last_user_text(body).split()) + 5, len(str(parts.get("text", "")).split()) + 1)
        )
        answer = answer_for(path, parts, number, model, body.get("n") or 1)
        if self.strict and parts.get("thinking") and hides_thinking(path, body):
            for block in answer["content"]:
                if block["type"] == "thinking":
                    block["thinking"] = ""
        return answer

    def stats(self) -> dict[str, Any]:
        """Statistics of requests: `{count, distinct, most, most_in_flight, batches, most_batched}`; also at /stats."""
        return {
            "count": self.count,
            "distinct": len(self.counts),
            "most": max(self.counts.values(), default=0),
            "most_in_flight": self.most_in_flight,
            "batches": self.batches.count,
            "most_batched": max(self.batches.requests.values(), default=0),
        }

    @classmethod
    def in_process(cls, **options: Any) -> ProviderProcess:
        """A fake provider in its own process (replies are echoes or one text), for benchmarks and kill tests."""
        return ProviderProcess(options)


class ProviderProcess:
    """A fake provider in another process, as a context manager."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._command = [sys.executable, "-m", "karat.testing", "--options", json.dumps(dict(options))]
        self.url = ""

    def spec(self, name: str = "fake") -> str:
        """The spec of a model on this server."""
        return f"{name}@{self.url}"

    def stats(self) -> dict[str, Any]:
        """Return statistics of the requests: `{count, distinct, most, most_in_flight, batches, most_batched}`."""
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/stats") as response:  # noqa: S310 - loopback
            return dict(json.load(response))

    def __enter__(self) -> ProviderProcess:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _key(request: web.BaseRequest) -> str:
    given = request.headers
    bearer = given.get("Authorization", "").removeprefix("Bearer ")
    return given.get("x-api-key") or given.get("api-key") or bearer


async def _stream(request: web.BaseRequest, events: Iterable[str], pause: float) -> web.StreamResponse:
    """Send events one by one, each after a pause."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event.encode())
        await asyncio.sleep(pause / 10)
    await response.write_eof()
    return response


def _cut_short(request: web.BaseRequest, whole: bytes) -> web.StreamResponse:
    """Announce the whole body and send half of it."""
    assert request.transport is not None
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(whole)}\r\n\r\n"
    request.transport.write(head.encode() + whole[: len(whole) // 2])
    request.transport.close()
    return web.Response()


_JSON = {"Content-Type": "application/json"}
"""The type of a body, unless the headers of a failure have another."""


def _error(failing: Failing) -> web.Response:
    body = failing.body or json.dumps(
        {"error": {"message": failing.message, "type": failing.code, "code": failing.code}}
    )
    return web.Response(
        body=body if isinstance(body, bytes) else body.encode(),
        status=failing.status or 500,
        headers=_JSON | failing.headers,
    )


def embeddings(body: Mapping[str, Any], dimensions: int, model: str | None) -> dict[str, Any]:
    """Vectors that depend on the texts alone."""
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [
        {
            "index": i,
            "object": "embedding",
            "embedding": [((len(t) + 1) * (d + 3) % 17) / 17 for d in range(dimensions)],
        }
        for i, t in enumerate(texts)
    ]
    return {
        "object": "list",
        "data": data,
        "model": model,
        "usage": {"prompt_tokens": sum(map(len, texts)) // 4},
    }


# A clock on which waiting takes no time: it jumps to the next moment that a coroutine waits for.


class FakeClock:
    """Time for limiters and retries in tests. `slept` has every wait, in order."""

    # Everything that can run without time passing has run after so many turns of the loop.
    PATIENCE = 20

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []
        self._deadlines: list[float] = []

    def time(self) -> float:
        """Seconds that only ever grow."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let other coroutines run; advance the clock when no one waits for an earlier moment."""
        self.slept.append(seconds)
        deadline = self.now + seconds
        self._deadlines.append(deadline)
        try:
            while self.now < deadline:
                before = self.now
                for _ in range(self.PATIENCE):
                    await asyncio.sleep(0)
                if self.now == before and min(self._deadlines) == deadline:
                    self.now = deadline
        finally:
            self._deadlines.remove(deadline)
