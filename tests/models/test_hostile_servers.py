"""Servers that break HTTP or the reply in every way: one typed failure, bounded in time, and the key is never shown."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gzip
import json
import math
import time

import msgspec
import pytest

from karat import models
from karat.errors import KaratError
from karat.models import _transport
from karat.models._messages import Request
from karat.models._replies import read_reply, read_stream, reply_of
from karat.models._request_context import RequestContext, Timing
from karat.testing._answers import answer_for, events_of

KEY = "sk-a-key-that-must-not-be-shown"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
APIS = list(PATHS)
USED = {"input": 10, "output": 5, "cached": 2, "reasoning": 1}


def whole(api, **parts):
    return answer_for(PATHS[api], {"text": "the answer", "usage": USED, **parts}, 1, "m", 1)


def events(api, body):
    """The data of each event of a stream."""
    written = "".join(
        each if isinstance(each, str) else each.decode() for each in events_of(PATHS[api], body, True)
    )
    return [line[5:].strip() for line in written.splitlines() if line.startswith("data:")]


def streamed(data):
    return "".join(f"data: {each}\n\n" for each in data).encode()


@pytest.fixture
def endpoint_of():
    def make(api):
        found = models.get("m@http://127.0.0.1:9/v1", api=api).endpoint
        return msgspec.structs.replace(found, price=models.Price(1.0, 2.0, cache_read=0.1))

    return make


# Replies of another form ----------------------------------------------------------


def nested(depth):
    out = []
    for _ in range(depth):
        out = [out]
    return out


VALUES = [None, 0, -1, 1.5, 1e308, 2**62, True, "", "x", "\0", [], {}, [None], {"type": None}, nested(60)]
LITERALS = ["1e999", "-1e999", "NaN", "9" * 5000, "-" + "9" * 400, '"\\ud800"', "[" * 5000]
"""Written into the JSON as they are: numbers and texts that Python's encoder does not write, or another reads."""


def places(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def changed(value, path, new):
    """The value with another one at a place; `...` deletes it."""
    if not path:
        return None if new is ... else new
    out = copy.deepcopy(value)
    at = out
    for step in path[:-1]:
        at = at[step]
    if new is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return out


def variants(value):
    """The value as JSON with each of its parts replaced by each wrong one."""
    for path in places(value):
        for new in (*VALUES, ...):
            yield json.dumps(changed(value, path, new))
        marked = json.dumps(changed(value, path, "@mark@"))
        for literal in LITERALS:
            yield marked.replace('"@mark@"', literal)


def sound(endpoint, read):
    """Whether the reply is one; a KaratError is the only other way out. Whatever it says has the types it should."""
    try:
        asked = read()
        context = RequestContext(endpoint, Request(messages=[{"role": "user", "content": "?"}]), b"x")
        reply = reply_of(context, asked, [])
    except KaratError:
        return None
    assert type(reply.text) is str
    assert reply.text.strip() or reply.tool_calls
    for call in reply.tool_calls:
        assert type(call.id) is str
        assert type(call.name) is str
        assert call.name
    used = msgspec.structs.asdict(reply.usage)
    cost, served = used.pop("cost"), used.pop("served")
    assert all(type(count) is int and 0 <= count < 10**9 for count in used.values()), used
    assert served == {}
    assert cost is None or (math.isfinite(cost) and cost >= 0)
    assert {type(each) for each in (reply.finish_reason, reply.thinking, reply.served_model)} == {str}
    assert all(math.isfinite(each["logprob"]) for each in reply.logprobs or ())
    msgspec.json.encode(reply.message)
    return reply


PARTS = {
    "text": {},
    "tools": {"thinking": "hm", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]},
    "logprobs": {
        "logprobs": [
            {"token": "t", "logprob": -0.5, "top_logprobs": [{"token": "t", "logprob": -0.5}]},
        ]
    },
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("parts", PARTS)
def test_any_part_of_a_reply_may_be_something_else(endpoint_of, api, parts):
    endpoint = endpoint_of(api)
    for body in variants(whole(api, **PARTS[parts])):
        sound(endpoint, lambda body=body: read_reply(endpoint, body.encode(), 0.1, b"{}"))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("parts", PARTS)
def test_any_part_of_an_event_may_be_something_else(endpoint_of, api, parts):
    endpoint = endpoint_of(api)
    data = events(api, whole(api, **PARTS[parts]))
    distinct = {
        json.dumps(sorted(map(str, places(json.loads(each))))): at
        for at, each in enumerate(data)
        if each != "[DONE]"
    }
    for at in distinct.values():
        for new in variants(json.loads(data[at])):
            body = streamed([*data[:at], new, *data[at + 1 :]])
            arrivals = [(0, 0.0), (len(body), 0.1)]
            sound(
                endpoint,
                lambda body=body, arrivals=arrivals: read_stream(endpoint, body, 0.1, arrivals, Timing()),
            )


@pytest.mark.parametrize("api", APIS)
def test_the_order_of_stream_fields_does_not_change_the_reply(endpoint_of, api):
    """A piece of text that is lost cannot be noticed, an event of the frame can."""
    endpoint = endpoint_of(api)
    data = events(api, whole(api, **PARTS["tools"]))
    frame = [at for at, each in enumerate(data) if '"delta"' not in each or '"finish_reason": "' in each]
    for at in frame:
        rest = [*data[:at], *data[at + 1 :]]
        for order in (data[:at], rest, [*data[: at + 1], *data[at:]], [data[at], *rest], [*rest, data[at]]):
            body = streamed(order)
            arrivals = [(0, 0.0), (len(body), 0.1)]
            reply = sound(
                endpoint,
                lambda body=body, arrivals=arrivals: read_stream(endpoint, body, 0.1, arrivals, Timing()),
            )
            if reply is not None:
                assert reply.text == "the answer"
                assert [call.arguments for call in reply.tool_calls] == [{"a": 1}]


# HTTP -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def talking(
    define, monkeypatch, talk, timeouts="{connect: 5, read: 3, total: 6}", retries="{limit: 0}"
):
    """A model whose server does with each connection what `talk(reader, writer, head)` does."""
    monkeypatch.setenv("HOSTILE_KEY", KEY)
    heads = []

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                heads.append(head)
                await talk(reader, writer, head)
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 27)
    port = server.sockets[0].getsockname()[1]
    define(
        f"mine:\n  model: m\n  base_url: http://127.0.0.1:{port}/v1\n  api_key_env: HOSTILE_KEY\n"
        f"  timeouts: {timeouts}\n  retries: {retries}\n"
    )
    try:
        yield heads
    finally:
        server.close()


def head(*lines, status="HTTP/1.1 200 OK"):
    return "\r\n".join([status, *lines, "", ""]).encode()


JSON = "Content-Type: application/json"
GOOD = json.dumps(whole("chat")).encode()
BOMB = gzip.compress(gzip.compress(b"\0" * (32 << 20)))


def said(*pieces):
    async def talk(reader, writer, _):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return talk


BROKEN = {
    "nothing": said(),
    "not HTTP": said(b"\x00\xff\x00\xff" * 100),
    "another protocol": said(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "a status line with the key": said(f"HTTP/1.1 banana {KEY}\r\n\r\n".encode()),
    "a header with the key that is no header": said(head(f"{KEY} \x01: x") + GOOD),
    "a status that is no number": said(head(status="HTTP/1.1 9999999999 OK") + GOOD),
    "half of a head": said(b"HTTP/1.1 200 OK\r\nContent-Ty"),
    "a header of a megabyte": said(head("X-Long: " + "x" * (1 << 20)) + GOOD),
    "a hundred thousand headers": said(head(*(f"X-{n}: y" for n in range(100_000))) + GOOD),
    "a length below zero": said(head(JSON, "Content-Length: -5") + GOOD),
    "a length that is no number": said(head(JSON, "Content-Length: many") + GOOD),
    "two lengths": said(head(JSON, "Content-Length: 5", "Content-Length: 50") + GOOD),
    "a longer length": said(head(JSON, f"Content-Length: {len(GOOD) + 5}") + GOOD),
    "a shorter length": said(head(JSON, f"Content-Length: {len(GOOD) - 5}") + GOOD),
    "an enormous length": said(head(JSON, f"Content-Length: {1 << 60}") + GOOD),
    "chunks without an end": said(
        head(JSON, "Transfer-Encoding: chunked") + b"%x\r\n%s\r\n" % (len(GOOD) - 1, GOOD[:-1])
    ),
    "a chunk of no size": said(head(JSON, "Transfer-Encoding: chunked") + b"zz\r\n" + GOOD),
    "a chunk of a size with 5000 digits": said(head(JSON, "Transfer-Encoding: chunked") + b"f" * 5000 + b"\r\n"),
    "no body": said(head(JSON, "Content-Length: 0")),
    "204": said(head(status="HTTP/1.1 204 No Content")),
    "206": said(head(JSON, "Content-Length: 5", status="HTTP/1.1 206 Partial Content") + b'{"cho'),
    "304": said(head(status="HTTP/1.1 304 Not Modified")),
    "101": said(head("Upgrade: websocket", "Connection: Upgrade", status="HTTP/1.1 101 Switching Protocols")),
    "a page": said(head("Content-Type: text/html", "Connection: close") + b"<html>Welcome</html>"),
    "an error with 200": said(
        head(JSON, "Connection: close") + json.dumps({"error": {"message": f"bad {KEY}", "code": 500}}).encode()
    ),
    "a bomb in a bomb": said(head(JSON, "Content-Encoding: gzip, gzip", f"Content-Length: {len(BOMB)}") + BOMB),
    "half of a gzip": said(head(JSON, "Content-Encoding: gzip", "Connection: close") + gzip.compress(GOOD)[:-9]),
    "plain text called gzip": said(head(JSON, "Content-Encoding: gzip", "Connection: close") + GOOD),
    "brotli": said(head(JSON, "Content-Encoding: br", "Connection: close") + GOOD),
    "another character set": said(
        head("Content-Type: application/json; charset=utf-16", "Connection: close") + GOOD.decode().encode("utf-16")
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("way", BROKEN)
async def test_a_malformed_reply_is_one_typed_failure(define, monkeypatch, way, stream):
    monkeypatch.setattr(_transport, "LARGEST_BODY", 4 << 20)
    async with talking(define, monkeypatch, BROKEN[way]):
        with pytest.raises(KaratError) as failed, models.recording(example="e") as calls:
            await models.get("mine").generate("?", stream=stream)
    assert KEY not in str(failed.value)
    assert KEY not in repr(calls)
    assert len(str(failed.value)) < 1000
    assert calls[0].error
    assert calls[0].usage.cost is None


async def test_an_answer_of_http_1_0_is_an_answer(define, monkeypatch):
    async with talking(define, monkeypatch, said(head(JSON, status="HTTP/1.0 200 OK") + GOOD)):
        assert (await models.get("mine").generate("?")).text == "the answer"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_slow_drip_ends_with_the_total_time(define, monkeypatch, stream):
    async def drip(reader, writer, _):
        writer.write(head("Content-Type: text/event-stream"))
        for _ in range(1000):
            writer.write(b": wait\n\n" if stream else b" ")
            await writer.drain()
            await asyncio.sleep(0.05)

    times = "{connect: 5, read: 5, total: 1}"
    async with talking(define, monkeypatch, drip, times):
        with pytest.raises(models.TimedOut):
            await models.get("mine").generate("?", stream=stream)


async def test_a_flood_of_informational_answers_ends_with_the_total_time(define, monkeypatch):
    async def flood(reader, writer, _):
        for _ in range(100_000):
            writer.write(head(status="HTTP/1.1 103 Early Hints"))
            await writer.drain()
            await asyncio.sleep(0.001)

    async with talking(define, monkeypatch, flood, "{connect: 5, read: 5, total: 1}"):
        with pytest.raises(KaratError):
            await models.get("mine").generate("?")


async def test_a_flood_of_chunks_is_bounded(define, monkeypatch, refuses):
    monkeypatch.setattr(_transport, "LARGEST_BODY", 1 << 20)

    async def flood(reader, writer, _):
        writer.write(head(JSON, "Transfer-Encoding: chunked"))
        for _ in range(1 << 16):
            writer.write(b"1\r\nx\r\n" * 64)
            await writer.drain()

    async with talking(define, monkeypatch, flood, "{connect: 5, read: 20, total: 60}"):
        with refuses(models.BrokenBody):
            await models.get("mine").generate("?")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirection_is_not_followed_and_the_key_is_not_carried_on(define, monkeypatch, status):
    asked = []

    async def elsewhere(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    other = await asyncio.start_server(elsewhere, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    where = f"Location: http://localhost:{port}/v1/chat/completions?key={KEY}"
    talk = said(head(where, "Content-Length: 0", status=f"HTTP/1.1 {status} Moved"))
    async with talking(define, monkeypatch, talk):
        with pytest.raises(models.BadRequest, match="redirects") as failed:
            await models.get("mine").generate("?")
    other.close()
    assert not asked
    assert KEY not in str(failed.value)


WAITS = {
    "0": 0.0,
    "1": 1.0,
    "0.5": 0.5,
    " 2 ": 2.0,
    "1m": 60.0,
    "Wed, 21 Oct 2015 07:28:00 GMT": 0.0,
    "2015-10-21T07:28:00Z": 0.0,
    "soon": None,
    "": None,
    "-1": None,
    "NaN": None,
    "inf": math.inf,
    "1e400": math.inf,
    "9" * 5000: math.inf,
    "Wed, 99 Oct 99999 99:99:99 GMT": None,
    "10000-01-01T00:00:00Z": None,
}


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize("text", WAITS, ids=range(len(WAITS)))
async def test_every_form_of_retry_after_is_a_wait_or_is_ignored(define, monkeypatch, status, text):
    # The server ends the connection: the second request must not be sent on it.
    headers = (f"Retry-After: {text}", "Content-Length: 2", "Connection: close")
    talk = said(head(*headers, status=f"HTTP/1.1 {status} Busy") + b"{}")
    started = time.monotonic()
    async with talking(define, monkeypatch, talk, retries="{limit: 1, base: 0.001, longest_wait: 0.1}"):
        with pytest.raises(models.ModelFailure) as failed:
            await models.get("mine").generate("?")
    assert time.monotonic() - started < 60
    wait = WAITS[text]
    again = wait is None or wait <= 0.1
    assert len(failed.value.attempts) == 1 + again
    assert failed.value.wait == wait or (wait == math.inf and failed.value.wait > 1e60)


# Embeddings -----------------------------------------------------------------------


def vectors(*rows):
    return json.dumps({"data": [{"index": at, "embedding": row} for at, row in enumerate(rows)]})


WRONG_VECTORS = {
    "null": vectors([0.5, None], [1, 2]),
    "texts": vectors(["0.5", "1"], [1, 2]),
    "a number": vectors(0.5, [1, 2]),
    "base64": vectors("AACAPwAAAEA=", "AACAPwAAAEA="),
    "empty": vectors([], []),
    "unequal": vectors([1, 2], [1]),
    "too few": vectors([1, 2]),
    "too many": vectors([1, 2], [1, 2], [1, 2]),
    "an index twice": vectors([1, 2], [1, 2]).replace('"index": 1', '"index": 0'),
    "another index": vectors([1, 2], [1, 2]).replace('"index": 1', '"index": 7'),
    "an index that is no number": vectors([1, 2], [1, 2]).replace('"index": 1', '"index": null'),
    "infinite in four bytes": vectors([1e39, 2], [1, 2]),
    "infinite": vectors([1, 2], [1, 2]).replace("[1,", "[1e999,"),
    "NaN": vectors([1, 2], [1, 2]).replace("[1,", "[NaN,"),
    "thousands of digits": vectors([1, 2], [1, 2]).replace("[1,", "[" + "9" * 5000 + ","),
    "too deep": "[" * 100_000,
    "a list": "[]",
    "null alone": "null",
    "not UTF-8": b"\xff",
}


@pytest.mark.parametrize("way", WRONG_VECTORS)
async def test_vectors_that_are_none_are_a_broken_body(define, monkeypatch, way):
    body = WRONG_VECTORS[way]
    body = body if isinstance(body, bytes) else body.encode()
    async with talking(define, monkeypatch, said(head(JSON, f"Content-Length: {len(body)}") + body)):
        with pytest.raises(models.BrokenBody), models.recording(example="e") as calls:
            await models.get("mine").embed(["a", "b"])
    assert calls[0].usage.cost is None
