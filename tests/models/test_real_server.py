"""The conformance cases that apply, against a real server: llama.cpp's own, with the embedded weights."""

from __future__ import annotations

import pytest

from karat import models

pytest.importorskip("xllamacpp", reason="the extra `local` is optional")

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def server():
    from karat.models.providers._local import server_for

    return server_for("smollm2-135m")


CHAT = [("llama.cpp", "chat"), ("vllm", "chat"), ("openai", "chat")]
RESPONSES, ANTHROPIC = ("llama.cpp", "responses"), ("llama.cpp", "anthropic")


@pytest.fixture(params=[*CHAT, RESPONSES, ANTHROPIC], ids="-".join)
def model(request, server, monkeypatch):
    """Asked in each wire format, and as three presets that speak chat completions."""
    name, api = request.param
    variables = {"llama.cpp": "LLAMA_CPP", "vllm": "VLLM", "openai": "OPENAI"}
    keys = {"llama.cpp": "LLAMA_API_KEY", "vllm": "VLLM_API_KEY", "openai": "OPENAI_API_KEY"}
    monkeypatch.setenv(f"{variables[name]}_BASE_URL", server.address + "/v1")
    monkeypatch.setenv(keys[name], server.key)
    return models.get(f"{name}/smollm2-135m", api=api)


def only(*cases):
    """Other cases do not apply: the format lacks it, or the server does in that format."""
    return pytest.mark.parametrize("model", cases, indirect=True, ids="-".join)


async def ask(model, *given, **options):
    with models.recording(example="e", cache="off"):
        return await model.generate(*given, **options)


async def test_a_plain_question(model):
    reply = await ask(model, "Say hello.", max_tokens=8)
    assert reply.text
    assert reply.usage.input_tokens > 3
    assert 0 < reply.usage.output_tokens <= 8
    assert reply.served_model


async def test_a_conversation_with_an_answer_in_it(model):
    turns = [("user", "Say hello."), ("assistant", "Hello!"), ("user", "Once more.")]
    short = await ask(model, "Once more.", max_tokens=8)
    reply = await ask(model, [{"role": role, "content": text} for role, text in turns], max_tokens=8)
    assert reply.text
    assert reply.usage.input_tokens > short.usage.input_tokens


@only(*CHAT, ANTHROPIC)  # llama.cpp calls every answer of its Responses API completed
async def test_a_truncated_answer_says_so(model):
    assert (await ask(model, "Count from one to a hundred.", max_tokens=3)).finish_reason == "length"


COLOR = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}},
    "required": ["color"],
    "additionalProperties": False,
}


@only(*CHAT, RESPONSES)
async def test_an_answer_of_a_given_form(model):
    reply = await ask(model, "A color?", schema=COLOR, max_tokens=30)
    assert reply.parsed["color"] in ("red", "blue")


@only(ANTHROPIC)
async def test_a_schema_that_the_server_does_not_enforce_is_checked(model):
    """llama.cpp has no field for a schema in this format, and these weights have no template for a forced tool."""
    with pytest.raises(models.SchemaMismatch) as failed:
        await ask(model, "A color?", schema=COLOR, max_tokens=8, temperature=0)
    assert [each.error for each in failed.value.attempts] == ["SchemaMismatch"] * 2  # a repair was asked for


async def test_a_stream_amounts_to_the_same_answer(model):
    whole = await ask(model, "Say hello.", temperature=0, max_tokens=12)
    streamed = await ask(model, "Say hello.", temperature=0, max_tokens=12, stream=True)
    assert streamed.text == whole.text
    assert streamed.finish_reason == whole.finish_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert 0 < streamed.first_token_seconds <= streamed.service_seconds
    assert streamed.tokens_per_second > 0


@only(*CHAT, ANTHROPIC)
async def test_a_stop_sequence_ends_the_answer(model):
    whole = (await ask(model, "Count: one two three", temperature=0, max_tokens=12)).text
    stop = whole[len(whole) // 2]
    reply = await ask(model, "Count: one two three", temperature=0, max_tokens=12, stop=[stop])
    assert reply.text == whole.partition(stop)[0] or stop not in reply.text


@only(*CHAT)
async def test_a_seed_repeats_a_sample(model):
    async def sample(seed):
        extra = {"cache_prompt": False}
        return (await ask(model, "A story?", temperature=1.5, seed=seed, max_tokens=8, extra=extra)).text

    assert await sample(1) == await sample(1)
    assert len({await sample(seed) for seed in range(4)}) > 1


async def test_tools_are_taken_and_a_conversation_with_a_call_goes_on(model):
    """The weights' template has no form for tool calls, so the model answers in words; the server takes all of it."""
    question = {"role": "user", "content": "What is the weather in Paris?"}
    for options in ({}, {"stream": True}):
        reply = await ask(model, [question], tools=[TOOL], tool_choice="auto", max_tokens=20, **options)
        assert reply.text or reply.tool_calls
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
    }
    turns = [
        question,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    assert (await ask(model, turns, tools=[TOOL], max_tokens=20)).text


@only(*CHAT)
async def test_logprobs_are_read(model):
    reply = await ask(model, "Say hello.", max_tokens=4, logprobs=2)
    assert len(reply.logprobs) == reply.usage.output_tokens or len(reply.logprobs) >= 1
    assert all(each["logprob"] <= 0 and len(each["top"]) == 2 for each in reply.logprobs)
