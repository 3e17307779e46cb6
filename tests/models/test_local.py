"""The embedded model, really loaded: it answers, keeps to a form, repeats itself, and leaves Ctrl-C alone."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys

import pytest
from pydantic import BaseModel

from karat import models
from karat.errors import MissingDependency, RequestError
from karat.models._messages import Request
from karat.models.providers import _local as local

pytest.importorskip("xllamacpp", reason="the extra `local` is optional")


@pytest.fixture(scope="module")
def small():
    return models.get("local/smollm2-135m")


QUESTIONS = [f"Answer in one word. What comes after {n}?" for n in ("one", "Monday", "spring", "A")]


async def test_it_answers_and_costs_nothing(small):
    with models.recording(example="e", cache="off") as calls:
        reply = await small.generate("What is the capital of France?", temperature=0, max_tokens=8)
    assert reply.text
    assert reply.usage.input_tokens > 5
    assert 0 < reply.usage.output_tokens <= 8
    assert reply.usage.cost == 0.0
    assert calls[0].name == "local/smollm2-135m"


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 512),
        ({"max_tokens": 2000}, 2000),
        ({"extra": {"n_predict": 9}}, None),
        ({"extra": {"max_tokens": 9}}, 9),
        ({"schema": {"type": "object", "properties": {}}}, None),
    ],
)
def test_a_text_without_a_limit_has_one(small, options, limit):
    request = Request(messages=[{"role": "user", "content": "Count to a million."}], **options)
    assert local.Local().body(small.endpoint, request, True).get("max_tokens") == limit


async def test_at_temperature_0_it_repeats_itself_alone_and_in_company(small):
    async def ask(question):
        with models.recording(example="e", cache="off"):
            return (await small.generate(question, temperature=0, max_tokens=6)).text

    alone = [await ask(question) for question in QUESTIONS]
    together = await asyncio.gather(*(ask(question) for question in QUESTIONS))
    assert list(together) == alone


async def test_samples_differ_from_each_other_and_repeat_from_run_to_run(small):
    async def samples(example):
        with models.recording(example=example, cache="off"):
            return [(await small.generate("A story?", temperature=1.5, max_tokens=6)).text for _ in range(2)]

    first, again, other = await samples("a"), await samples("a"), await samples("b")
    assert len(set(first)) > 1
    assert first == again
    assert first != other


async def test_several_answers_differ_repeat_and_are_counted(small):
    async def three(**parameters):
        with models.recording(example="e", cache="off"):
            return await small.generate("A story?", temperature=1.5, max_tokens=6, n=3, **parameters)

    first, again, seeded = await three(), await three(), await three(seed=7)
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) > 1
    assert [choice.text for choice in again.choices] == texts
    assert len({choice.text for choice in seeded.choices}) > 1
    assert first.usage.calls == 3
    assert first.usage.output_tokens > 6


async def test_a_seed_repeats_an_answer(small):
    async def ask(seed):
        with models.recording(example="e", cache="off"):
            return (await small.generate("A story?", temperature=1.5, max_tokens=6, seed=seed)).text

    assert await ask(1) == await ask(1)
    assert len({await ask(seed) for seed in range(4)}) > 1


def test_there_are_as_many_calls_at_once_as_slots(monkeypatch):
    from karat.models.providers._local import Local

    assert Local().concurrency == models.get("local/smollm2-135m").endpoint.limits.concurrency == 4
    monkeypatch.setenv("KARAT_LOCAL_SLOTS", "2")
    assert Local().concurrency == 2


def test_a_chat_model_does_not_embed(small):
    with pytest.raises(RequestError, match="use local/wordllama"):
        small.embed_sync(["a"])


async def test_a_schema_is_a_grammar(small):
    class Answer(BaseModel):
        city: str
        sure: bool

    with models.recording(example="e", cache="off"):
        reply = await small.generate(
            "The capital of France, as JSON.", schema=Answer, temperature=0, max_tokens=60
        )
    assert isinstance(reply.parsed, Answer)
    assert reply.attempts == []


async def test_a_text_that_is_too_long(small):
    with pytest.raises(models.ContextTooLong):
        await small.generate("word " * 5000, max_tokens=1)


@pytest.mark.parametrize(
    ("message", "tools"),
    [
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}], None),
        ([{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}], None),
        ("hi", [{"foo": 1}]),
    ],
)
async def test_an_unreadable_request_is_not_retried(small, message, tools):
    with pytest.raises(models.BadRequest, match=r"not supported|tools") as caught:
        await small.generate([{"role": "user", "content": message}], tools=tools, max_tokens=1)
    assert len(caught.value.attempts) == 1


async def test_it_says_its_name_and_not_where_the_file_lies(small):
    with models.recording(example="e", cache="off"):
        assert (await small.generate("Hi", max_tokens=1)).served_model == "smollm2-135m"


async def test_giving_up_frees_the_slot(small):
    for _ in range(6):  # more than there are slots
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(small.generate("Count to a million.", max_tokens=1500), 0.05)
    reply = await asyncio.wait_for(small.generate("Hi", temperature=0, max_tokens=4), 30)
    assert reply.text


def test_it_works_from_sync_code_and_from_a_path(small):
    from karat.models.providers._weights import find

    by_path = models.get(f"local/{find('smollm2-135m')}")
    assert by_path.identity()["at"] == small.identity()["at"]  # the content counts, not where it lies


def test_ctrl_c_is_still_ours(small):
    small.generate_sync("Hi", temperature=0, max_tokens=2)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_nothing_is_printed_and_the_process_ends(folder):
    ask = "models.get('local/smollm2-135m').generate_sync('Hi', max_tokens=2)"
    script = f"from karat import models; print({ask}.usage.calls)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr, run.returncode) == ("1\n", "", 0)


@pytest.mark.parametrize("name", ["smollm", "absent.gguf", "some/where/else.gguf"])
def test_a_missing_file_is_reported_at_once(name):
    with pytest.raises(RequestError, match=r"local/"):
        models.get(f"local/{name}")


async def test_a_file_that_is_not_a_model(folder):
    (folder / "x.gguf").write_bytes(b"GGUF" + b"\0" * 64)
    with pytest.raises(RequestError, match=r"x\.gguf"):
        await models.get(f"local/{folder / 'x.gguf'}").generate("hi")


async def test_wordllama_embeds_offline():
    pytest.importorskip("wordllama", reason="the extra `local` is optional")
    embedder = models.get("local/wordllama")
    with models.recording(example="e") as calls:
        vectors = await embedder.embed(["a cat", "a kitten", "the stock market"])
        assert (embedder.embed_sync(["a cat"]) == vectors[:1]).all()
        assert (await embedder.embed([])).shape[0] == 0

    def near(a, b):
        return float(vectors[a] @ vectors[b] / (sum(vectors[a] ** 2) * sum(vectors[b] ** 2)) ** 0.5)

    assert vectors.shape == (3, 256)
    assert near(0, 1) > near(0, 2)
    assert [call.input["texts"] for call in calls] == [3, 1, 0]
    assert calls.usage()["local/wordllama"].cost == 0.0
    with pytest.raises(RequestError, match="use embed"):
        await embedder.generate("hi")


def test_without_the_package_the_remedy_is_told(monkeypatch, refuses):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    from karat.models.providers._local import LlamaServer

    with refuses(MissingDependency):
        LlamaServer("x.gguf")


def test_json_has_no_blank_lines_and_keeps_to_the_places_of_its_schema():
    places = [
        {
            "type": "object",
            "properties": {"id": {"const": number}, "label": {"type": "string", "enum": ["a", "b"]}},
            "required": ["id", "label"],
            "additionalProperties": False,
        }
        for number in (4, 7)
    ]
    listed = {"type": "array", "prefixItems": places, "minItems": 2, "maxItems": 2}
    schema = {"type": "object", "properties": {"verdicts": listed}, "required": ["verdicts"]}
    schema["additionalProperties"] = False
    reply = models.get("local/smollm2-135m").generate_sync("Label 4 and 7.", schema=schema, max_tokens=200)
    assert [each["id"] for each in reply.parsed["verdicts"]] == [4, 7]
    assert "\n" not in reply.text
    assert reply.text == json.dumps(json.loads(reply.text))


def test_a_schema_that_the_grammar_may_not_know_is_left_to_the_server():
    assert local.compact_grammar({"type": "object", "properties": {"a": {"type": "string"}}}) is not None
    for keyword in ({"pattern": "a+"}, {"$ref": "#/$defs/a"}, {"anyOf": [{"type": "string"}]}, {"x": 1}):
        assert local.compact_grammar({"type": "object", "properties": {"a": keyword}}) is None
