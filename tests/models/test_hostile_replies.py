"""Replies that are meant to harm, or are merely broken: none hangs the loop, exhausts memory or spoils the accounts."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import json
import shutil
import ssl
import subprocess
import threading
import zlib

import pydantic
import pytest

import karat
from karat import models
from karat.errors import BudgetReached, RequestError
from karat.models import _transport
from karat.models._retry import requested_wait
from karat.models._structured import output_schema, read_json
from karat.models.providers import read_tokens
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


async def test_a_validator_that_does_not_end_is_left_behind_at_the_timeout(quick):
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
async def test_references_out_of_the_schema_are_refused_before_anything_is_sent(schema, provider):
    with pytest.raises(RequestError, match="outside of it"):
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
async def test_the_limit_of_a_body_counts_decompressed_bytes(quick, monkeypatch, encoding, size, fits):
    monkeypatch.setattr(_transport, "LARGEST_BODY", 1 << 20)
    body = Failing(body=compressed(size, encoding), headers={"Content-Encoding": encoding.split()[-1]})
    assert len(body.body) < 20_000
    with FakeProvider(failures=dict.fromkeys(range(1, 9), body)) as server:
        model = quick(server)
        if fits:
            assert (await model.generate("x")).text == "a" * size
        else:
            with pytest.raises(models.BrokenBody, match="larger than 1 MB"):
                await model.generate("x")
        assert server.count == 1


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("br", b"abc"), ("gzip", b"no gzip"), ("gzip", gzip.compress(b"{}" * 99, mtime=0)[:20])],
    ids=["unknown", "not gzip", "cut short"],
)
async def test_what_cannot_be_decompressed_is_a_broken_body(quick, encoding, body):
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


def test_more_cached_tokens_than_tokens_is_implausible():
    assert read_tokens(10, 5, 11) is None
    assert read_tokens(10, 5, 10).cache_read == 10
    assert read_tokens(10, 5, 11, cached_apart=True).input == 21
    assert read_tokens(None, None).input == 0


@pytest.mark.parametrize("text", ["1e9", "999999999999", "1e308", "inf", "100000d"])
async def test_a_wait_that_is_too_long_is_a_clear_failure(quick, text):
    assert requested_wait({"retry-after": text}) >= 1e9
    failing = Failing(status=429, headers={"Retry-After": text})
    with FakeProvider(failures=dict.fromkeys(range(1, 99), failing)) as server:
        with pytest.raises(models.RateLimited, match="longest_wait allows"):
            await quick(server).generate("x")
        assert server.count == 1


@pytest.mark.parametrize("text", ["-1", "nan", "soon", ""])
def test_a_wait_that_cannot_be_read_is_none(text):
    assert requested_wait({"retry-after": text}) is None


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
async def test_a_certificate_that_is_not_trusted_is_said_to_be_the_problem(tmp_path, define):
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
        with pytest.raises(
            models.CertificateRejected, match=r"certificate is not accepted \(self.signed"
        ) as caught:
            await models.get("tls").generate("x")
        assert len(caught.value.attempts) == 1
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_a_server_that_does_not_speak_tls_is_said_so(define, provider):
    define(f"tls:\n  model: m\n  base_url: {provider.url.replace('http:', 'https:')}\n")
    with pytest.raises(models.CertificateRejected, match="does not speak TLS"):
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
