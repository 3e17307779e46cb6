"""Asking a model, from async code, sync code, threads and notebooks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from karat import models
from karat.errors import RequestError


async def test_a_text_is_one_user_message(provider):
    reply = await models.get(provider.spec("m")).generate("hello there")
    assert reply.text == "hello there"
    assert reply.finish_reason == "stop"
    assert reply.served_model == "m"
    assert reply.usage.input_tokens == 7
    assert reply.usage.calls == 1
    assert not reply.cached
    assert reply.raw["id"] == "chatcmpl-1"
    assert provider.requests == [{"model": "m", "messages": [{"role": "user", "content": "hello there"}]}]


async def test_every_parameter_reaches_the_provider(provider):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    await models.get(provider.spec("m")).generate(
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "x"}],
        temperature=0.5,
        max_tokens=9,
        seed=3,
        stop="END",
        tools=[tool],
        tool_choice="auto",
        n=2,
        extra={"top_p": 0.9},
    )
    assert provider.requests[0] == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "x"}],
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 3,
        "stop": ["END"],
        "tools": [tool],
        "tool_choice": "auto",
        "n": 2,
        "top_p": 0.9,
    }


async def test_image_parts_pass_through(provider):
    content = [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
    ]
    await models.get(provider.spec()).generate([{"role": "user", "content": content}])
    assert provider.requests[0]["messages"][0]["content"] == content


async def test_several_answers(provider):
    reply = await models.get(provider.spec()).generate("hi", n=3)
    assert [choice.text for choice in reply.choices] == ["hi"] * 3
    assert provider.count == 1


async def test_tool_calls(provider):
    provider.script.answers = lambda body: {
        "text": None,
        "tool_calls": [{"name": "add", "arguments": {"a": 1}}],
    }
    reply = await models.get(provider.spec()).generate("1+1")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("add", {"a": 1})]
    assert reply.finish_reason == "tool_calls"


def test_sync_code(provider):
    assert models.get(provider.spec()).generate_sync("hello").text == "hello"


async def test_sync_code_inside_a_running_loop(provider):
    assert models.get(provider.spec()).generate_sync("hello").text == "hello"


def test_threads_share_the_session(provider):
    model, texts = models.get(provider.spec()), []
    threads = [
        threading.Thread(target=lambda i=i: texts.append(model.generate_sync(f"text {i}").text))
        for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == sorted(f"text {i}" for i in range(20))


def test_several_loops_one_after_another(provider):
    model = models.get(provider.spec())
    for number in range(3):
        assert asyncio.run(model.generate(f"loop {number}")).text == f"loop {number}"


async def test_a_slow_provider_does_not_block_the_callers_loop(provider):
    provider.latency = 0.2
    turns = 0
    call = asyncio.ensure_future(models.get(provider.spec()).generate("slow"))
    while not call.done():
        turns += 1
        await asyncio.sleep(0.001)
    assert (await call).text == "slow"
    assert turns > 5


async def test_cancelling_ends_the_request(provider):
    provider.latency = 60
    call = asyncio.ensure_future(models.get(provider.spec()).generate("never"))
    while not provider.in_flight:
        await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    while provider.in_flight:  # the connection is closed, so the server's handler is cancelled too
        await asyncio.sleep(0.001)


async def test_later_changes_of_the_messages_have_no_effect(provider):
    messages = [{"role": "user", "content": "first"}]
    with models.recording(example="e") as calls:
        reply = await models.get(provider.spec()).generate(messages)
        messages.append({"role": "assistant", "content": reply.text})
    assert calls[0].input == {"messages": [{"role": "user", "content": "first"}]}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        5,
        ["hello"],
        [{"role": "usr", "content": ""}],
        [{"role": "user", "content": object()}],
    ],
)
async def test_wrong_messages_are_told(provider, messages, refuses):
    with refuses(RequestError):
        await models.get(provider.spec()).generate(messages)
    assert provider.count == 0


async def test_wrong_n_and_wrong_parameters(provider, refuses):
    with pytest.raises(RequestError, match="n is 0"):
        await models.get(provider.spec()).generate("x", n=0)
    with refuses(RequestError):
        models.get(provider.spec(), temprature=0)


async def test_parameters_of_the_model_are_defaults(provider):
    model = models.get(provider.spec(), temperature=0.3, max_tokens=5, extra={"top_p": 1})
    await model.generate("x", max_tokens=7, extra={"top_k": 2})
    sent = provider.requests[0]
    assert (sent["temperature"], sent["max_tokens"], sent["top_p"], sent["top_k"]) == (0.3, 7, 1, 2)


async def test_embeddings_over_http(provider):
    model = models.get(provider.spec("embedder"))
    with models.recording(example="e") as calls:
        vectors = await model.embed(["a", "bb", "a"])
        again = model.embed_sync(["a", "bb", "a"])
    assert vectors.shape == (3, 8)
    assert (vectors[0] == vectors[2]).all()
    assert (again == vectors).all()
    assert [call.cached for call in calls] == [False, True]
    assert provider.count == 1


async def test_many_texts_are_embedded_in_batches_and_in_order(provider):
    texts = ["x" * (i % 40) for i in range(600)]
    vectors = await models.get(provider.spec()).embed(texts)
    assert provider.count == 3
    one = await models.get(provider.spec()).embed([texts[599]])
    assert (vectors[599] == one[0]).all()


async def test_embed_wants_texts(provider, refuses):
    with refuses(RequestError):
        await models.get(provider.spec()).embed("one text")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", 5),
        ("stop", ["END", 5]),
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", -1),
        ("temperature", True),
        ("extra", 5),
        ("tools", "x"),
        ("tools", [5]),
        ("tools", [{"type": "function", "function": {}}]),
        ("tool_choice", 5),
        ("n", 1.5),
        ("n", 0),
        ("seed", "a"),
        ("max_tokens", 0),
        ("max_tokens", "x"),
    ],
)
async def test_a_parameter_of_the_wrong_kind_is_told_before_anything_is_sent(provider, name, value, refuses):
    model = models.get(provider.spec())
    for wrong in (
        lambda: model.generate_sync("x", **{name: value}),
        lambda: models.get(provider.spec(), **{name: value}),
    ):
        with refuses(RequestError):
            wrong()
    assert provider.count == 0


async def test_numbers_of_other_libraries_are_numbers(provider):
    import numpy

    await models.get(provider.spec()).generate(
        "x", temperature=numpy.float32(0.5), max_tokens=numpy.int64(3), seed=numpy.int32(1), stop=("a", "b")
    )
    sent = provider.requests[0]
    assert [sent[name] for name in ("temperature", "max_tokens", "seed", "stop")] == [0.5, 3, 1, ["a", "b"]]
