"""Malicious and broken replies: none hangs the loop, exhausts memory or spoils the accounts."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.server
import json
import shutil
import ssl
import subprocess
import threading
import zlib
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import karat
from karat import models
from karat.errors import BudgetReached, RequestError
from karat.models import _batches, _transport
from karat.models._limits import requested_wait
from karat.models._replies import read_reply
from karat.models._structured import output_schema, read_json
from karat.models._transport import error_body
from karat.models.providers import read_arguments, read_tokens, wire_format
from karat.serialization import MOST_PARTS
from karat.tasks.prompt import PromptTask
from karat.testing import Failing, FakeProvider

HOSTILE_TEXTS = [
    "```\n" * 15_000,
    "```" + "\n" * 60_000,
    "```json\n" * 8_000,
    "`" * 60_000,
    "{" * 60_000,
    "[" * 30_000 + "]" * 30_000,
    "```\n{" * 12_000,
]


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
def test_looking_for_json_takes_time_in_proportion_to_the_text(text):
    class Counted(str):
        looked = 0

        def find(self, *given):
            Counted.looked += 1
            return super().find(*given)

    with pytest.raises(ValueError, match="not JSON"):
        read_json(Counted(text))
    assert Counted.looked <= 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('Here:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}),
        ("```\n[1, 2]\n```", [1, 2]),
        ("```\nnot json\n```\n```json\n3\n```", 3),
        ('The answer is {"a": {"b": 2}}, I think.', {"a": {"b": 2}}),
        ('```{"a": 1}```', {"a": 1}),
        ('```python\nx = 1\n```\n{"a": 2}', {"a": 2}),
    ],
)
def test_json_is_found_in_a_fence_or_a_sentence(text, value):
    assert read_json(text) == value


PARTS = {"objects": "{},", "lists": "[[1]],", "numbers": "0,", "fields": '{"a":0,"b":{}},'}


@pytest.mark.parametrize("part", PARTS.values(), ids=list(PARTS))
def test_json_of_too_many_parts_is_refused_before_it_is_decoded(part, refuses):
    """Decoding releases the interpreter lock at no point: 30 MB of `{}` held up heartbeats and timeouts for 7 s."""
    weight = part.count(",") + 8 * (part.count("{") + part.count("["))
    text = "[" + part * (MOST_PARTS // weight + 1) + "0]"
    endpoint = models.get("m@http://127.0.0.1:9/v1").endpoint
    with refuses(models.BrokenBody) as caught:
        read_reply(endpoint, text.encode(), 0.1)
    assert caught.value.most == 0
    with refuses(ValueError):
        read_json(text)
    assert read_arguments(text) is text


def test_an_error_body_of_many_parts_is_not_decoded():
    body = b'{"error": {"message": "no"}, "more": [' + b"{}," * 100_000 + b"0]}"
    assert error_body(body) == body[:4000].decode()
    assert error_body(b'{"error": "no"}') == {"error": "no"}


async def test_a_pattern_that_does_not_end_holds_up_nobody(monkeypatch):
    """The answer is checked in a thread: other calls are answered while its pattern is at work."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|a|aa)+$"}}}
    hostile = json.dumps({"a": "a" * 60 + "!"})
    with FakeProvider(lambda body: hostile if "slow" in str(body) else "quick") as server:
        model = models.get(server.spec())
        slow = asyncio.ensure_future(model.generate("slow", schema=schema))
        while server.count < 1:
            await asyncio.sleep(0.001)
        for number in range(20):
            assert (await model.generate(f"{number}")).text == "quick"
        assert not slow.done()
        with pytest.raises(models.SchemaMismatch, match="pattern"):
            await slow


async def test_a_large_reply_is_read_beside_other_calls(quick, monkeypatch):
    """Redacting and reading some megabytes takes seconds: other calls are answered meanwhile, from the cache too."""
    threads: list[str] = []
    parse = wire_format("chat").parse

    def noted(raw):
        threads.append(threading.current_thread().name)
        return parse(raw)

    monkeypatch.setattr(wire_format("chat"), "parse", noted)
    with FakeProvider(lambda body: "x" * (1 << 20) if "large" in str(body) else "small") as server:
        model = quick(server)
        for _ in range(2):
            await model.generate("large", temperature=0)
            await model.generate("other", temperature=0)
        assert server.count == 2
    assert [name == "karat-models" for name in threads] == [False, True] * 2


async def test_an_endless_validator_is_abandoned_at_the_timeout(quick):
    release = threading.Event()

    class Stubborn(pydantic.BaseModel):
        a: int

        @pydantic.field_validator("a")
        @classmethod
        def _wait(cls, value):
            release.wait()
            return value

    with FakeProvider('{"a": 1}') as server:
        model = quick(server)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(model.generate("x", schema=Stubborn), 0.2)
        assert (await model.generate("another", schema={"type": "object"})).parsed == {"a": 1}
    release.set()


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:1/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"properties": {"a": {"$ref": "other.json"}}},
        {"$id": "http://127.0.0.1:1/", "items": {"$ref": "x.json"}},
        {"allOf": [{"$dynamicRef": "https://example.com/a#x"}]},
        {"$defs": {"a": {"$ref": "/etc/passwd"}}, "$ref": "#/$defs/a"},
    ],
)
async def test_references_out_of_the_schema_are_refused_before_anything_is_sent(schema, provider, refuses):
    with refuses(RequestError):
        await models.get(provider.spec()).generate("x", schema=schema)
    assert provider.count == 0


def test_references_within_the_schema_are_followed():
    schema = {
        "$defs": {"n": {"type": "integer"}, "m": {"$id": "m.json", "type": "string"}},
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/n"},
            "b": {"$ref": "m.json"},
            "c": {"const": {"$ref": "http://x"}},
        },
    }
    read = output_schema(schema).read
    assert read('{"a": 1, "b": "x"}') == {"a": 1, "b": "x"}
    for wrong in ('{"a": "x"}', '{"b": 1}', '{"c": 1}'):
        with pytest.raises(ValueError, match=r"^[abc]: "):
            read(wrong)


def compressed(size: int, encoding: str) -> bytes:
    content = json.dumps(
        {"choices": [{"message": {"content": "a" * size}, "finish_reason": "stop"}]}
    ).encode()
    if encoding == "gzip":
        return gzip.compress(content)
    if encoding == "raw deflate":
        packer = zlib.compressobj(wbits=-15)
        return packer.compress(content) + packer.flush()
    return zlib.compress(content)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate"])
@pytest.mark.parametrize(("size", "fits"), [(1000, True), (900_000, True), (1_100_000, False)])
async def test_the_limit_of_a_body_counts_decompressed_bytes(
    quick, monkeypatch, encoding, size, fits, refuses
):
    monkeypatch.setattr(_transport, "LARGEST_BODY", 1 << 20)
    body = Failing(body=compressed(size, encoding), headers={"Content-Encoding": encoding.split()[-1]})
    assert len(body.body) < 20_000
    with FakeProvider(failures=dict.fromkeys(range(1, 9), body)) as server:
        model = quick(server)
        if fits:
            assert (await model.generate("x")).text == "a" * size
        else:
            with refuses(models.BrokenBody):
                await model.generate("x")
        assert server.count == 1


def test_a_compressed_body_may_have_several_members_and_padding():
    halves = gzip.compress(b'{"a": ') + gzip.compress(b"1}")
    assert _transport._decompress(halves + b"\0\0", "gzip", "m", 100) == b'{"a": 1}'
    with pytest.raises(models.BrokenBody, match="larger"):
        _transport._decompress(gzip.compress(b"a" * 60) * 2, "gzip", "m", 100)


async def test_an_encoding_that_was_not_asked_for_is_not_asked_for_again(quick):
    """The reply is paid for, and would be compressed in the same way."""
    failing = Failing(body=b"abc", headers={"Content-Encoding": "br"})
    with FakeProvider(failures=dict.fromkeys(range(1, 9), failing)) as server:
        with pytest.raises(models.BrokenBody, match="'br'"):
            await quick(server).generate("x")
        assert server.count == 1


@pytest.mark.parametrize("status", [400, 401, 500])
@pytest.mark.parametrize("body", [b"[" * 200_000, b"\xff\xfe{", b'{"error": "\xff"}', b"", b"null", b"[[]]"])
async def test_an_error_body_that_is_not_json_is_a_failure_with_its_status(quick, status, body):
    failing = Failing(status=status, body=body)
    expected = {400: models.BadRequest, 401: models.CredentialsRefused, 500: models.ServerFailed}[status]
    with FakeProvider(failures=dict.fromkeys(range(1, 9), failing)) as server, pytest.raises(expected):
        await quick(server, retries="{limit: 0}").generate("x")


async def test_a_byte_order_mark_is_not_part_of_the_reply(quick):
    body = b"\xef\xbb\xbf" + json.dumps({"choices": [{"message": {"content": "yes"}}]}).encode()
    with FakeProvider(failures={1: Failing(body=body)}) as server:
        assert (await quick(server).generate("x")).text == "yes"


async def test_an_error_in_a_list_with_status_200_is_what_it_says(quick):
    body = json.dumps([{"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}])
    with FakeProvider(failures={1: Failing(body=body)}) as server:
        reply = await quick(server).generate("x")
    assert [attempt.error for attempt in reply.attempts] == ["RateLimited"]


@pytest.mark.parametrize("logprob", ["nan", "-inf", "NaN", None, {}, "x"])
async def test_a_logprob_that_is_not_finite_is_not_recorded(quick, logprob):
    def choice(content):
        return {"choices": [{"message": {"content": "a"}, "logprobs": {"content": content}}]}

    broken = Failing(body=json.dumps(choice([{"token": "a", "logprob": logprob}])))
    top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": logprob if logprob != {} else None}]
    fine = choice([{"token": "a", "logprob": -0.1, "top_logprobs": top if logprob != "x" else top[:1]}])
    with FakeProvider(failures={1: broken, 2: Failing(body=json.dumps(fine))}) as server:
        reply = await quick(server).generate("x", logprobs=2)
    assert [attempt.error for attempt in reply.attempts] == ["BrokenBody"]
    assert reply.logprobs == [{"token": "a", "logprob": -0.1, "top": {"a": -0.1}}]


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("br", b"abc"), ("gzip", b"no gzip"), ("gzip", gzip.compress(b"{}" * 99, mtime=0)[:20])],
    ids=["unknown", "not gzip", "cut short"],
)
async def test_a_body_that_cannot_be_decompressed_is_broken(quick, encoding, body):
    failing = Failing(body=body, headers={"Content-Encoding": encoding})
    with (
        FakeProvider(failures=dict.fromkeys(range(1, 99), failing)) as server,
        pytest.raises(models.BrokenBody),
    ):
        await quick(server, retries="{limit: 0}").generate("x")


USAGES = [
    (-5, 5),
    (5, -5),
    (1e308, 1),
    (1, 1e308),
    (10**12, 1),
    ("7", 1),
    (True, 1),
    (1.5, 1),
    ([1], 1),
]


@pytest.mark.parametrize(("given", "taken"), USAGES)
@pytest.mark.parametrize("format", ["chat/completions", "messages"])
async def test_an_implausible_count_is_an_unknown_cost_and_stops_a_budget_cleanly(
    quick, given, taken, format, monkeypatch
):
    names = (
        ("prompt_tokens", "completion_tokens")
        if format.startswith("chat")
        else ("input_tokens", "output_tokens")
    )
    usage = dict(zip(names, (given, taken), strict=True))
    raw = {
        "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}],
        "content": [{"type": "text", "text": "yes"}],
        "stop_reason": "end_turn",
        "usage": usage,
    }
    with FakeProvider({"": {"raw": raw}}) as server:
        fields = {"prices": "{input: 1000, output: 2000, max_output: 50}"}
        if format == "messages":
            fields["wire"] = "anthropic"
        model = quick(server, **fields)
        budget = models.Budget(0.5)
        with models.recording(example="1", budget=budget) as calls:
            reply = await model.generate("x", max_tokens=5)
        assert reply.usage.cost is None
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (0, 0)
        assert calls[0].usage.cost is None
        assert 0 < budget.spent <= 0.5

        async def more():
            for number in range(100):
                with models.recording(example=f"more {number}", budget=budget):
                    await model.generate(f"y{number}", max_tokens=5)

        with pytest.raises(BudgetReached):
            await more()
        assert budget.spent <= 0.5


BODIES = {
    "chat": {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]},
    "responses": {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "yes"}]}],
    },
    "anthropic": {"content": [{"type": "text", "text": "yes"}], "stop_reason": "end_turn"},
}
COUNTS = {
    "chat": ("prompt_tokens", "completion_tokens"),
    "responses": ("input_tokens", "output_tokens"),
    "anthropic": ("input_tokens", "output_tokens"),
}
DETAILS: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"prompt_tokens_details": {"cached_tokens": -1}}),
    ("chat", {"prompt_tokens_details": {"cached_tokens": 10**9}}),
    ("chat", {"completion_tokens_details": {"reasoning_tokens": 6}}),
    ("chat", {"completion_tokens_details": {"audio_tokens": "5"}}),
    ("responses", {"output_tokens_details": {"reasoning_tokens": -3}}),
    ("responses", {"input_tokens_details": {"cached_tokens": 11}}),
    ("anthropic", {"cache_read_input_tokens": -1}),
    ("anthropic", {"cache_creation_input_tokens": 1e300}),
    ("anthropic", {"output_tokens_details": {"thinking_tokens": 6}}),
]


def events_of(api, usage):
    """The body above as the events of a stream."""
    if api == "chat":
        yield {"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]}
        yield {"choices": [], "usage": usage}
    elif api == "responses":
        yield {"type": "response.completed", "response": {**BODIES["responses"], "usage": usage}}
    else:
        yield {"type": "message_start", "message": {"content": [], "usage": usage}}
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "yes"}}
        yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
        yield {"type": "message_stop"}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("api", "usage"),
    [(api, dict(zip(COUNTS[api], each, strict=True))) for api in COUNTS for each in USAGES]
    + [(api, {**dict(zip(COUNTS[api], (10, 5), strict=True)), **more}) for api, more in DETAILS],
)
def test_an_implausible_count_is_unknown_in_every_format_and_in_streams(api, usage, streamed):
    form = wire_format(api)
    raw = form.assemble(events_of(api, usage)) if streamed else {**BODIES[api], "usage": usage}
    answer = form.parse(raw)
    assert (answer.choices[0].text, answer.tokens) == ("yes", None)


@pytest.mark.parametrize("usage", [None, 7, [], "many", {}, {"prompt_tokens": None}])
@pytest.mark.parametrize("api", list(BODIES))
def test_a_usage_of_another_kind_breaks_no_answer(api, usage):
    tokens = wire_format(api).parse({**BODIES[api], "usage": usage}).tokens
    assert tokens is None or (tokens.input, tokens.output) == (0, 0)


@pytest.mark.parametrize(("given", "taken"), USAGES)
@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "anthropic/claude-haiku-4-5"])
def test_an_implausible_count_in_a_batch_is_an_unknown_cost(model, given, taken, monkeypatch):
    monkeypatch.setattr(_batches, "SETTLED", 0.02)
    monkeypatch.setattr(_batches, "FIRST_POLL", 0.01)
    api = "chat" if model.startswith("openai") else "anthropic"
    raw = {**BODIES[api], "usage": dict(zip(COUNTS[api], (given, taken), strict=True))}
    with FakeProvider({"": {"raw": raw}}) as server:
        for name in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{name}_BASE_URL", server.url)
            monkeypatch.setenv(f"{name}_API_KEY", "a-key-for-tests")
        task = PromptTask("{input}", model=model)
        run = karat.run(task, [{"id": "1", "input": "x"}], store="memory://", batch=True)
        (output,) = run.outputs()
        assert (output.value, output.trace[0].usage.cost) == ("yes", None)
        assert output.trace[0].usage.input_tokens == 0


def test_more_cached_tokens_than_tokens_is_implausible():
    assert read_tokens(10, 5, 11) is None
    assert read_tokens(10, 5, 10).cache_read == 10
    assert read_tokens(10, 5, 11, cached_apart=True).input == 21


@pytest.mark.parametrize("counts", [(None, 5), (10, None), (None, None)])
def test_a_count_that_is_not_given_is_unknown_and_not_zero(counts):
    assert read_tokens(*counts) is None


@pytest.mark.parametrize("text", ["1e9", "999999999999", "1e308", "inf", "100000d"])
async def test_a_wait_that_is_too_long_is_a_clear_failure(quick, text):
    assert requested_wait({"retry-after": text}) >= 1e9
    failing = Failing(status=429, headers={"Retry-After": text})
    with FakeProvider(failures=dict.fromkeys(range(1, 99), failing)) as server:
        with pytest.raises(models.RateLimited, match="longest_wait allows"):
            await quick(server).generate("x")
        assert server.count == 1


HUGE = "9" * 20
ODD_DATES = [
    f"Mon, 01 Jan {HUGE} 00:00:00 GMT",
    f"Mon, 01 Jan 2029 00:00:00 +{HUGE}",
    f"Mon, {HUGE} Jan 2029 00:00:00 GMT",
    "Mon, 01 Jan 2029 00:00:00 +9999999999",
    "31 Dec 9999 23:59:59 -2359",
    "01 Jan 0001 00:00:00 +2359",
    f"{HUGE}-01-01",
    "0001-01-01T00:00:00+23:59",
]


@pytest.mark.parametrize("text", ["-1", "nan", "soon", "", *ODD_DATES[:4]])
def test_a_wait_that_cannot_be_read_is_none(text):
    assert requested_wait({"retry-after": text}) is None


@pytest.mark.parametrize("text", ODD_DATES)
async def test_dates_beyond_the_calendar_spoil_no_answer(quick, text):
    limit = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": text, "Retry-After": text}
    requested_wait({name.lower(): value for name, value in limit.items()})
    answer = {"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}]}
    answering = Failing(status=200, body=json.dumps(answer).encode(), headers=limit)
    with FakeProvider(failures={1: answering}) as server:
        assert (await quick(server).generate("x")).text == "Paris"
        assert server.count == 1


@given(st.text("0123456789 :,+-TZGMonJaDec.", max_size=64))
def test_no_date_raises(text):
    requested_wait({"retry-after": text})


async def test_a_key_in_a_header_is_not_repeated(quick, monkeypatch, refuses):
    monkeypatch.setenv("MY_KEY", "sk-canary-5f3a9b7c1d2e")
    failing = Failing(body=b"abc", headers={"Content-Encoding": "sk-canary-5f3a9b7c1d2e"})
    with FakeProvider(failures={1: failing}) as server, refuses(models.BrokenBody) as caught:
        await quick(server, api_key_env="MY_KEY").generate("x")
    assert "canary" not in str(caught.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
async def test_an_untrusted_certificate_is_named_as_the_problem(tmp_path, define):
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        define(f"tls:\n  model: m\n  base_url: https://localhost:{server.server_port}/v1\n")
        with pytest.raises(models.CertificateRejected, match=r"certificate .*self.signed") as caught:
            await models.get("tls").generate("x")
        assert len(caught.value.attempts) == 1
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_a_server_without_tls_is_reported_as_such(define, provider):
    define(f"tls:\n  model: m\n  base_url: {provider.url.replace('http:', 'https:')}\n")
    with pytest.raises(models.CertificateRejected, match="TLS failed"):
        await models.get("tls").generate("x")


SURROGATE = '{"choices": [{"message": {"content": "half \\ud83d of it"}, "finish_reason": "stop"}], %s}'
COUNTED = '"usage": {"prompt_tokens": 10, "completion_tokens": 5}'


def test_a_lone_surrogate_is_one_failed_record_with_one_call_counted_and_paid(quick, tmp_path):
    failing = Failing(body=SURROGATE % COUNTED)
    with FakeProvider(failures={1: failing}) as server:
        quick(server, prices="{input: 1000, output: 2000}")
        dataset = karat.Dataset.from_examples(
            [{"id": "1", "input": "x"}, {"id": "2", "input": "y"}], name="d"
        )
        run = karat.run(PromptTask("{input}", model="quick"), dataset, store=tmp_path / "k.db", concurrency=1)
        assert server.count == 2
        failed, fine = run.outputs()
    assert (run.counts.failed, run.counts.ok) == (1, 1)
    assert failed.outcome.error.type == "InvalidText"
    (call,) = failed.trace
    assert (call.usage.input_tokens, call.usage.output_tokens, call.usage.calls) == (10, 5, 1)
    assert call.usage.cost == pytest.approx((10 * 1000 + 5 * 2000) / 1e6)
    assert fine.value == "y"


async def test_a_pair_of_surrogates_is_a_character(quick):
    body = SURROGATE.replace("\\ud83d", "\\ud83d\\ude00") % COUNTED
    with FakeProvider(failures={1: Failing(body=body)}) as server:
        assert (await quick(server).generate("x")).text == "half 😀 of it"


CHAT = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "model": "m"}
RESPONSE = {
    "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}],
}
MESSAGE = {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}


def called(**call):
    function = {"name": "f", "arguments": "{}"}
    message = {"content": None, "tool_calls": [{"id": "a", "function": {**function, **call}}]}
    return {"choices": [{"message": message, "finish_reason": "tool_calls"}]}


@pytest.mark.parametrize(
    ("api", "raw"),
    [
        ("chat", {**CHAT, "error": {"message": "something went wrong"}}),
        ("chat", {"choices": [{"message": {"content": "hi"}, "finish_reason": ["stop"]}]}),
        ("chat", {"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]}),
        ("chat", {"choices": CHAT["choices"] * 2000}),
        ("chat", called(name=None)),
        ("chat", called(name="")),
        ("chat", called(name={"a": 1})),
        ("responses", {**RESPONSE, "status": "queued"}),
        ("responses", {**RESPONSE, "status": "in_progress"}),
        ("responses", {**RESPONSE, "status": "cancelled"}),
        ("responses", {**RESPONSE, "status": ["completed"]}),
        ("responses", {**RESPONSE, "error": {"message": "failed"}}),
        (
            "responses",
            {**RESPONSE, "output": [{"type": "function_call", "call_id": "a", "name": "f"} for _ in "12"]},
        ),
        ("anthropic", {**MESSAGE, "stop_reason": ["end_turn"]}),
        ("anthropic", {**MESSAGE, "content": [{"type": "tool_use", "id": 5, "name": "f", "input": {}}]}),
        ("anthropic", {**MESSAGE, "content": [{"type": "tool_use", "id": "a", "name": None, "input": {}}]}),
        (
            "anthropic",
            {**MESSAGE, "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}} for _ in "12"]},
        ),
    ],
)
async def test_a_reply_that_cannot_be_trusted_is_broken(quick, api, raw):
    with FakeProvider([{"raw": raw}]) as server:
        model = models.get(quick(server, retries="{limit: 1, base: 0.0001}"), api=api)
        with pytest.raises(models.BrokenBody):
            await model.generate("?")


async def test_tool_calls_with_the_same_id_are_distinguished(quick):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    raw = {"choices": [{"message": {"content": None, "tool_calls": [call, call]}, "finish_reason": "stop"}]}
    with FakeProvider([{"raw": raw}]) as server:
        reply = await quick(server).generate("?")
    assert [each.id for each in reply.tool_calls] == ["a", "a#2"]
    assert [each["id"] for each in reply.message["tool_calls"]] == ["a", "a#2"]


@pytest.mark.parametrize(("name", "kept"), [(5, ""), (["m"], ""), ("m" * 100_000, "m" * 200), (None, "")])
async def test_the_name_of_the_served_model_is_a_short_text(quick, name, kept):
    with FakeProvider([{"raw": {**CHAT, "model": name}}]) as server:
        assert (await quick(server).generate("?")).served_model == kept


def event(data, name=None):
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"


def delta(text, reason=None):
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]})


ENDS = {
    "chat": delta("hi") + delta("", "stop") + "data: [DONE]\n\n",
    "anthropic": event({"type": "message_start", "message": {"model": "m"}}, "message_start")
    + event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "hi"}})
    + event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, "message_delta")
    + event({"type": "message_stop"}, "message_stop"),
}


@pytest.mark.parametrize("api", ENDS)
async def test_a_stream_ends_with_its_last_event_although_the_connection_stays_open(define, api):
    gone = asyncio.Event()

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for piece in ENDS[api].encode().split(b"\n"):
                writer.write(piece + b"\n")
                await writer.drain()
            await reader.read()  # until the client closes it
        gone.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    define(
        f"mine:\n  model: m\n  base_url: http://127.0.0.1:{port}/v1\n  timeouts: {{read: 20, total: 20}}\n"
    )
    reply = await models.get("mine", api=api).generate("?", stream=True)
    assert reply.text == "hi"
    await asyncio.wait_for(gone.wait(), 20)
    server.close()


@pytest.mark.parametrize(
    "body",
    [
        delta("half an"),
        delta("x") + "data: {broken\n\n",
        event({"choices": [{"index": "a", "delta": {"content": "x"}, "finish_reason": "stop"}]}),
        ": only comments\n\n",
    ],
)
async def test_a_stream_without_its_end_fails(quick, body):
    cut = Failing(body=body, headers={"X": "y"})
    with FakeProvider(failures={1: cut, 2: cut}) as server:
        model = quick(server, retries="{limit: 1, base: 0.0001}")
        with pytest.raises(models.BrokenBody):
            await model.generate("?", stream=True)


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        ("insufficient_system_resource", models.BrokenBody),
        ("abort", models.BrokenBody),
        ("SAFETY", models.ContentFiltered),
        ("content_filter: RECITATION", models.ContentFiltered),
        ("model_length", models.ContextTooLong),
    ],
)
def test_a_reply_that_the_server_marks_as_incomplete_fails(reason, failure):
    choice = {"index": 0, "message": {"role": "assistant", "content": "half"}, "finish_reason": reason}
    body = json.dumps({"model": "m", "choices": [choice]}).encode()
    with pytest.raises(failure):
        read_reply(models.get("m@http://127.0.0.1:1/v1").endpoint, body, 0.1)


def test_a_turn_paused_for_compaction_is_not_a_reply():
    raw = {"content": [{"type": "text", "text": "half"}], "stop_reason": "compaction"}
    endpoint = models.get("m@http://127.0.0.1:1/v1", api="anthropic").endpoint
    with pytest.raises(models.IncompleteAnswer):
        read_reply(endpoint, json.dumps(raw).encode(), 0.1)


def test_comments_between_tool_calls_are_not_part_of_the_answer():
    def message(text, phase):
        content = [{"type": "output_text", "text": text}]
        return {"type": "message", "role": "assistant", "phase": phase, "content": content}

    endpoint = models.get("m@http://127.0.0.1:1/v1", api="responses").endpoint
    both = [message("I will look.", "commentary"), message("42", "final_answer")]
    for output, text, thinking in ((both, "42", "I will look."), (both[:1], "I will look.", "")):
        body = json.dumps({"status": "completed", "output": output}).encode()
        choice = read_reply(endpoint, body, 0.1).choices[0]
        assert (choice.text, choice.thinking) == (text, thinking)
        assert [item["phase"] for item in choice.provider_items] == [item["phase"] for item in output]


def test_an_answer_of_no_tokens_is_not_counted():
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    body = json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode()
    assert read_reply(models.get("m@http://127.0.0.1:1/v1").endpoint, body, 0.1).tokens is None
