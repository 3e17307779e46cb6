"""Streams that are cut, split, encoded oddly or wrong, in every wire format."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import zlib

import msgspec
import pytest

from karat import models
from karat.models import _transport
from karat.models._endpoints import resolve
from karat.models._failures import BrokenBody
from karat.models._replies import MOST_LINES, read_stream
from karat.models._request_context import Timing
from karat.models.providers import wire_format
from karat.testing import Failing, FakeProvider


def chat(*parts):
    for part in parts:
        yield {"choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    yield {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def responses(*parts):
    for part in parts:
        yield {"type": "response.output_text.delta", "delta": part}
    item = {"type": "message", "content": [{"type": "output_text", "text": "".join(parts)}]}
    usage = {"input_tokens": 3, "output_tokens": 2}
    yield {
        "type": "response.completed",
        "response": {"status": "completed", "output": [item], "usage": usage, "model": "m"},
    }


def anthropic(*parts):
    yield {"type": "message_start", "message": {"model": "m", "content": [], "usage": {"input_tokens": 3}}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for part in parts:
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
    yield {"type": "message_stop"}


FORMATS = {"chat": chat, "responses": responses, "anthropic": anthropic}
TEXT = ("Grüße ", "aus\u2028 Köln \U0001f600")


def stream(api, *parts, line="\n", space=" ", comments=False, names=True):
    """The events of an answer as they are sent."""
    out = ""
    for event in FORMATS[api](*parts):
        if comments:
            out += f": ping{line}{line}id: 7{line}retry: 10{line}"
        if names and "type" in event:
            out += f"event:{space}{event['type']}{line}"
        out += f"data:{space}{json.dumps(event, ensure_ascii=False)}{line}{line}"
    if api == "chat":
        out += f"data:{space}[DONE]{line}{line}"
    return out.encode()


def read(api, body):
    endpoint = resolve("m@http://127.0.0.1:1/v1")
    from karat.models._endpoints import with_api

    return read_stream(with_api(endpoint, api), body, 0.1, [(0, 0.0), (len(body), 1.0)], Timing())


@pytest.fixture(params=list(FORMATS))
def api(request):
    return request.param


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"line": "\r\n"},
        {"line": "\r"},
        {"space": ""},
        {"comments": True},
        {"names": False},
        {"line": "\r\n", "space": "", "comments": True, "names": False},
    ],
)
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n\n", b"retry: 5\n\n"])
def test_every_way_of_writing_events_is_read(api, how, start):
    reply = read(api, start + stream(api, *TEXT, **how))
    assert reply.choices[0].text == "".join(TEXT)
    assert (reply.tokens.input, reply.tokens.output) == (3, 2)


def test_an_event_of_several_data_lines_is_one_event(api):
    body = b""
    for event in FORMATS[api](*TEXT):
        body += b"".join(
            b"data: " + line.encode() + b"\n" for line in json.dumps(event, indent=1).split("\n")
        )
        body += b"\n"
    assert read(api, body + (b"data: [DONE]\n\n" if api == "chat" else b"")).choices[0].text == "".join(TEXT)


def test_events_without_an_empty_line_between_them_are_read(api):
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n" for event in FORMATS[api](*TEXT))
    assert read(api, body).choices[0].text == "".join(TEXT)


def test_a_truncated_stream_fails_or_has_the_whole_reply(api):
    body = stream(api, *TEXT)
    for end in range(len(body)):
        try:
            reply = read(api, body[:end])
        except models.ModelFailure:
            continue
        assert reply.choices[0].text == "".join(TEXT), body[:end]


@pytest.mark.parametrize(
    "wrong",
    [
        b"data: {\n\n",
        b"data: \xff\xfe\n\n",
        b'data: {"a": "\xc3"}\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
        b"data: <html>\n\n",
    ],
)
def test_an_unreadable_event_fails(api, wrong):
    first, blank, rest = stream(api, *TEXT).partition(b"\n\n")
    with pytest.raises(models.BrokenBody):
        read(api, first + blank + wrong + rest)


ODD = [
    {"choices": 5},
    {"choices": [5]},
    {"choices": [{"index": [], "delta": {}}]},
    {"choices": [{"delta": 5}]},
    {"choices": [{"delta": {"content": 5}}]},
    {"choices": [{"delta": {"tool_calls": 5}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": {}, "function": 7}]}}]},
    {"type": "response.completed", "response": {"status": "completed", "output": 5}},
    {"type": "response.completed", "response": {"status": {}, "output": []}},
    {"type": "message_start"},
    {"type": "message_start", "message": 5},
    {"type": "content_block_delta", "index": 9, "delta": {}},
    {"type": "content_block_delta", "index": 0, "delta": 5},
    {"type": "content_block_start", "index": 0, "content_block": None},
    {"type": "message_delta", "delta": 5},
    {"type": 5},
]


@pytest.mark.parametrize("event", ODD)
def test_an_event_of_another_form_is_a_failure_or_ignored(api, event):
    first, blank, rest = stream(api, *TEXT).partition(b"\n\n")
    body = first + blank + b"data: " + json.dumps(event).encode() + b"\n\n" + rest
    with contextlib.suppress(models.ModelFailure):
        assert read(api, body).choices[0].text in ("".join(TEXT), TEXT[1], "".join(TEXT) + "5")


@pytest.mark.parametrize("code", [None, "overloaded_error", "500", 429])
def test_an_error_in_the_middle_is_the_failure_of_the_call(api, code):
    error = {"message": "Overloaded", "type": "overloaded_error", "code": code}
    event = {"type": "error", "error": error, "message": "Overloaded", "code": code}
    first, blank, _ = stream(api, *TEXT).partition(b"\n\n")
    with pytest.raises(models.ModelFailure, match="Overloaded"):
        read(api, first + blank + b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n")


def test_choices_that_are_interleaved_are_put_together():
    body = b""
    for index, text in ((0, "a"), (1, "x"), (0, "b"), (1, "y"), (1, "z"), (0, "c")):
        delta = {"choices": [{"index": index, "delta": {"content": text}}]}
        body += b"data: " + json.dumps(delta).encode() + b"\n\n"
    for index in (1, 0):
        end = {"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]}
        body += b"data: " + json.dumps(end).encode() + b"\n\n"
    assert [choice.text for choice in read("chat", body).choices] == ["abc", "xyz"]


KEY = "sk-canary-5f3a9b7c1d2e"
PIECES = ("it is sk-can", "ary-5f3a", "9b7c1d2e, really")


def as_events(*events):
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def chat_deltas(*deltas):
    ends = [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    return as_events(*({"choices": [{"index": 0, "delta": delta}]} for delta in deltas), *ends)


def anthropic_block(block, *deltas):
    start, *_, stop, delta, end = anthropic()
    begun = {"type": "content_block_start", "index": 0, "content_block": block}
    deltas = [{"type": "content_block_delta", "index": 0, "delta": each} for each in deltas]
    return as_events(start, begun, *deltas, stop, delta, end)


def called(part, **more):
    return {"tool_calls": [{"index": 0, "function": {"arguments": part}, **more}]}


LAST = json.dumps({"a": "".join(PIECES)})
IN_PIECES = {
    "chat text": ("chat", stream("chat", *PIECES)),
    "chat arguments": (
        "chat",
        chat_deltas(
            {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "f", "arguments": ""}}]},
            *(called(LAST[at : at + 15]) for at in range(0, len(LAST), 15)),
        ),
    ),
    "chat reasoning": (
        "chat",
        chat_deltas(*({"reasoning_content": each} for each in PIECES), {"content": "yes"}),
    ),
    "anthropic text": ("anthropic", stream("anthropic", *PIECES)),
    "anthropic arguments": (
        "anthropic",
        anthropic_block(
            {"type": "tool_use", "id": "1", "name": "f", "input": {}},
            *(
                {"type": "input_json_delta", "partial_json": LAST[at : at + 15]}
                for at in range(0, len(LAST), 15)
            ),
        ),
    ),
    "responses text": ("responses", stream("responses", *PIECES)),
}


@pytest.mark.parametrize("what", IN_PIECES)
async def test_a_key_that_comes_in_pieces_is_not_kept(define, folder, monkeypatch, what):
    api, body = IN_PIECES[what]
    monkeypatch.setenv("MY_KEY", KEY)
    async with sending(define, body):
        text = (folder / "models.yaml").read_text()
        define(text + "  api_key_env: MY_KEY\n")
        with models.recording(example="e") as calls:
            reply = await models.get("mine", api=api).generate("?", stream=True)
    models.close()
    kept = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    for written in (*kept, msgspec.json.encode(calls), repr(reply).encode()):
        assert KEY.encode() not in written
    assert b"[secret]" in msgspec.json.encode(calls)
    assert any(b"[secret]" in each for each in kept)


# Over a connection ------------------------------------------------------------------


@contextlib.asynccontextmanager
async def sending(define, *pieces, encoding="identity"):
    """A model whose server sends these bytes, each in a packet of its own."""

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                kind = f"Content-Type: text/event-stream\r\nContent-Encoding: {encoding}\r\n\r\n"
                writer.write(b"HTTP/1.1 200 OK\r\n" + kind.encode())
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 27)
    port = server.sockets[0].getsockname()[1]
    define(f"mine:\n  model: m\n  base_url: http://127.0.0.1:{port}/v1\n  retries: {{limit: 0}}\n")
    try:
        yield
    finally:
        server.close()


async def test_a_stream_in_packets_of_one_byte_is_read(define, api):
    body = stream(api, *TEXT)
    async with sending(define, *(body[at : at + 1] for at in range(len(body)))):
        reply = await models.get("mine", api=api).generate("?", stream=True)
    assert reply.text == "".join(TEXT)
    assert reply.first_token_seconds > 0


async def test_a_connection_that_closes_early_fails(define, api):
    body = stream(api, *TEXT)
    async with sending(define, body[: len(body) // 2]):
        with pytest.raises(models.BrokenBody):
            await models.get("mine", api=api).generate("?", stream=True)


async def test_a_line_without_an_end_is_bounded(define, api, monkeypatch, refuses):
    monkeypatch.setattr(_transport, "LARGEST_BODY", 1 << 20)
    async with sending(define, b"data: ", *[b"x" * 65536] * 64):
        with refuses(models.BrokenBody):
            await models.get("mine", api=api).generate("?", stream=True)


async def test_a_long_line_within_the_limit_is_an_answer(define, api):
    body = stream(api, "x" * (8 << 20))
    async with sending(define, body):
        reply = await models.get("mine", api=api).generate("?", stream=True)
    assert len(reply.text) == 8 << 20


@pytest.mark.parametrize(("encoding", "bits"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
async def test_a_stream_that_a_gateway_compresses_is_read_as_it_comes(define, api, encoding, bits):
    body, packer = stream(api, *TEXT), zlib.compressobj(wbits=bits)
    pieces = [
        packer.compress(body[at : at + 40]) + packer.flush(zlib.Z_SYNC_FLUSH)
        for at in range(0, len(body), 40)
    ]
    async with sending(define, *pieces, packer.flush(), encoding=encoding):
        reply = await models.get("mine", api=api).generate("?", stream=True)
    assert reply.text == "".join(TEXT)
    assert 0 < reply.first_token_seconds <= reply.seconds


async def test_a_compressed_stream_that_is_cut_or_too_large_is_no_answer(define, api, monkeypatch, refuses):
    body = gzip.compress(stream(api, *TEXT))
    async with sending(define, body[: len(body) // 2], encoding="gzip"):
        with pytest.raises(models.BrokenBody):
            await models.get("mine", api=api).generate("?", stream=True)
    monkeypatch.setattr(_transport, "LARGEST_BODY", 1 << 20)
    async with sending(define, gzip.compress(b"data: " + b"x" * (8 << 20)), encoding="gzip"):
        with refuses(models.BrokenBody):
            await models.get("mine", api=api).generate("?", stream=True)


def calls_in(*pieces):
    """The tool calls that a stream of chat completions with these pieces amounts to."""
    body = b""
    for piece in pieces:
        event = {"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]}
        body += b"data: " + json.dumps(event).encode() + b"\n\n"
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    body += b"data: " + json.dumps(end).encode() + b"\n\ndata: [DONE]\n\n"
    reply = read("chat", body)
    return [(call.id, call.name, call.arguments) for call in reply.choices[0].tool_calls]


def piece(at, id=None, name=None, arguments=""):
    return {"index": at, "id": id, "function": {"name": name, "arguments": arguments}}


TWO = [("a", "f", {"x": 1}), ("b", "g", {"y": 2})]


@pytest.mark.parametrize(
    "pieces",
    [
        [
            *(piece(0, "a", "f"), piece(1, "b", "g"), piece(0, arguments='{"x"'), piece(1, arguments='{"y"')),
            *(piece(0, arguments=":1}"), piece(1, arguments=":2}")),
        ],
        [piece(0, "a", "f", '{"x":1}'), piece(0, "b", "g", '{"y":2}')],
        [
            piece(0, "a", "f", '{"x"'),
            piece(0, None, None, ":1}"),
            piece(0, "b", "g", '{"y"'),
            piece(0, "", "", ":2}"),
        ],
        [piece(0, "a", "f", '{"x"'), piece(0, "a", "f", ":1}"), piece(1, "b", "g", '{"y":2}')],
    ],
    ids=["interleaved", "the same index", "the same index in pieces", "repeated id and name"],
)
def test_parallel_tool_calls_are_distinguished(pieces):
    assert calls_in(*pieces) == TWO


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("overloaded_error", models.ServerFailed),
        ("rate_limit_error", models.RateLimited),
        ("invalid_request_error", models.BadRequest),
        ("authentication_error", models.CredentialsRefused),
    ],
)
def test_an_error_in_the_middle_is_of_the_kind_that_its_status_would_be(code, failure):
    first, blank, _ = stream("anthropic", *TEXT).partition(b"\n\n")
    event = {"type": "error", "error": {"type": code, "message": "Stopped here"}}
    with pytest.raises(failure, match="Stopped here"):
        read("anthropic", first + blank + b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n")


def test_a_response_without_the_items_it_has_sent_is_put_together():
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    events = [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ]
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    assert read("responses", body).choices[0].text == "hi"


class Piece(str):
    """A piece of text that counts how often it is added to what came before: that takes quadratic time."""

    added = 0

    def __radd__(self, before):
        Piece.added += 1
        return before + str(self)


@pytest.mark.parametrize("kind", ["text", "thinking", "arguments"])
@pytest.mark.parametrize("name", ["chat", "anthropic"])
def test_the_pieces_of_a_long_reply_are_joined_once(name, kind):
    pieces = [Piece(f"{number} ") for number in range(100)]
    if name == "chat":
        deltas = {
            "text": [{"content": each} for each in pieces],
            "thinking": [{"reasoning_content": each} for each in pieces],
            "arguments": [{"tool_calls": [{"index": 0, "function": {"arguments": each}}]} for each in pieces],
        }[kind]
        events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    else:
        key, field = {
            "text": ("text_delta", "text"),
            "thinking": ("thinking_delta", "thinking"),
            "arguments": ("input_json_delta", "partial_json"),
        }[kind]
        events = [
            {"type": "message_start", "message": {}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": kind}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": key, field: each}}
                for each in pieces
            ),
            {"type": "message_stop"},
        ]
    Piece.added = 0
    whole = wire_format(name).assemble(events)
    assert Piece.added == 0
    found = whole["choices"][0]["message"] if name == "chat" else whole["content"][0]
    field = {"text": "content", "thinking": "reasoning_content", "arguments": "tool_calls"}[kind]
    value = found[field] if name == "chat" else found["input" if kind == "arguments" else kind]
    if name == "chat" and kind == "arguments":
        value = value[0]["function"]["arguments"]
    assert value == "".join(map(str, pieces))


def test_a_stream_of_too_many_lines_is_refused_before_it_is_read(api, refuses):
    with refuses(BrokenBody) as caught:
        read(api, b"data: {}\r\n" * (MOST_LINES // 2 + 1))
    assert caught.value.most == 0


def halves(api, *texts):
    """A stream whose texts are cut between the two halves of a character, as servers that count in UTF-16 do."""
    events = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in FORMATS[api](*texts))
    return events + (b"data: [DONE]\n\n" if api == "chat" else b"")


@pytest.mark.parametrize("api", FORMATS)
def test_a_character_that_is_cut_in_halves_is_joined(api):
    endpoint = msgspec.structs.replace(resolve("m@http://127.0.0.1:1/v1"), api=api)
    reply = read_stream(endpoint, halves(api, "a\ud83c", "\udf89b"), 0.0, [(0, 0.0), (9, 1.0)], Timing())
    assert reply.choices[0].text == "a\U0001f389b"
    assert (reply.tokens.input, reply.tokens.output) == (3, 2)
    assert json.loads(reply.body)


async def test_a_lone_half_of_a_stream_is_one_call_counted_and_paid(quick):
    body = halves("chat", "a\ud83c", "b")
    with FakeProvider(failures=dict.fromkeys(range(1, 9), Failing(body=body))) as server:
        with models.recording(example="e") as calls, pytest.raises(models.InvalidText):
            await quick(server, prices="{input: 1000, output: 2000}").generate("x", stream=True)
        assert server.count == 1
    assert calls[0].usage.cost == pytest.approx((3 * 1000 + 2 * 2000) / 1e6)
