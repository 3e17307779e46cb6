"""The fake provider that karat's tests, and its users' tests, rely on."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from karat import models
from karat.errors import RequestError
from karat.testing import Failing, FakeClock, FakeProvider


def ask(server, text, **parameters):
    return models.get(server.spec()).generate_sync(text, **parameters).text


def test_it_echoes_by_default():
    with FakeProvider() as server:
        assert ask(server, "hello") == "hello"
        assert server.requests[0]["messages"][0]["content"] == "hello"


def test_scripted_answers():
    with FakeProvider("always this") as server:
        assert ask(server, "x") == "always this"
    with FakeProvider({"2+2?": "4", "": "I do not know"}) as server:
        assert [ask(server, "2+2?"), ask(server, "3+3?")] == ["4", "I do not know"]
    with FakeProvider(["first", "second"]) as server:
        assert [ask(server, "x") for _ in range(3)] == ["first", "second", "second"]
    with FakeProvider(lambda body: body["messages"][-1]["content"].upper()) as server:
        assert ask(server, "loud") == "LOUD"


def failing(rates, seed, texts):
    with FakeProvider(rates=rates, seed=seed) as server:

        async def status(text):
            try:
                await model.generate(text)
                return "ok"
            except models.ModelFailure as error:
                return error.status

        import msgspec

        endpoint = msgspec.structs.replace(
            models.get(server.spec()).endpoint, retries=models.Retries(limit=0)
        )
        model = models.Model(endpoint)

        async def all_of_them():
            return await asyncio.gather(*(status(text) for text in texts))

        return dict(zip(texts, asyncio.run(all_of_them()), strict=True))


def test_the_same_requests_fail_in_any_order():
    texts = [f"text {n}" for n in range(300)]
    first = failing({"500": 0.2, "429": 0.1}, 1, texts)
    assert first == failing({"500": 0.2, "429": 0.1}, 1, texts[::-1])
    assert first != failing({"500": 0.2, "429": 0.1}, 2, texts)
    assert 30 < list(first.values()).count(500) < 90
    assert 10 < list(first.values()).count(429) < 50


def test_request_number_n_fails():
    with FakeProvider(failures={2: Failing(status=400, message="the second")}) as server:
        ask(server, "a")
        with pytest.raises(models.BadRequest, match="the second"):
            ask(server, "b")
        assert ask(server, "c") == "c"
        stats = {"count": 3, "distinct": 3, "most": 1, "most_in_flight": 1, "batches": 0, "most_batched": 0}
        assert server.stats() == stats
        server.reset()
        assert server.stats()["count"] == 0


def test_only_given_keys_are_accepted(monkeypatch):
    with FakeProvider(keys=["the-right-key"]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "the-right-key")
        assert models.get("openai/m").generate_sync("hi").text == "hi"


def test_in_a_process_of_its_own():
    with FakeProvider.in_process(latency=0.001, answers="from afar") as server:
        assert ask(server, "hi") == "from afar"
        assert server.stats()["count"] == 1


def test_a_port_in_use_is_reported():
    with FakeProvider() as server, pytest.raises(OSError, match="address already in use"):
        FakeProvider(port=server.port).__enter__()


async def test_the_clock_jumps_to_the_next_moment_anybody_waits_for():
    clock, seen = FakeClock(0.0), []

    async def wait(seconds):
        await clock.sleep(seconds)
        seen.append((seconds, clock.time()))

    await asyncio.gather(*(wait(seconds) for seconds in (30, 10, 20)))
    assert seen == [(10, 10), (20, 20), (30, 30)]


@pytest.mark.parametrize(
    "options",
    [
        {"rates": {"dropp": 0.1}},
        {"rates": {"42": 0.1}},
        {"rates": {"429": 3}},
        {"rates": {"429": 0.6, "drop": 0.6}},
        {"failures": {1: "x"}},
        {"failures": {1: 5000}},
        {"failures": {0: 500}},
        {"failures": {"first": 500}},
    ],
)
def test_what_could_never_happen_is_refused(options, refuses):
    with refuses(RequestError):
        FakeProvider(**options)


def test_a_shell_gets_one_sentence():
    command = [sys.executable, "-m", "karat.testing", "--rates", '{"dropp": 0.1}']
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert said.returncode == 2
    assert "'drop'" in said.stderr
    assert "Traceback" not in said.stderr


def test_failures_in_a_process_of_its_own():
    with FakeProvider.in_process(failures={1: 400}) as server:
        with pytest.raises(models.BadRequest):
            ask(server, "a")
        assert ask(server, "b") == "b"


@pytest.mark.parametrize(
    ("api", "field"), [("chat", "temprature"), ("responses", "n_answers"), ("anthropic", "frequency_penalty")]
)
async def test_a_field_that_the_format_does_not_define_is_refused_for_any_model(provider, api, field):
    model = models.get(provider.spec("some-model"), api=api)
    with pytest.raises(models.ParameterRefused, match=field):
        await model.generate("?", extra={field: 1})
    assert provider.count == 1


async def test_a_field_that_the_format_defines_is_accepted_for_any_model(provider):
    model = models.get(provider.spec("some-model"))
    await model.generate("?", temperature=0.3, logprobs=2, extra={"top_p": 0.9, "min_p": 0.1, "top_k": 3})
    assert provider.requests[0]["top_p"] == 0.9


ASKED = [{"role": "user", "content": "?"}]
PREFILLED = [*ASKED, {"role": "assistant", "content": "{"}]
HEARD = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}]
FUNCTION = {"name": "add", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
TOOL = {"name": "add", "input_schema": {"type": "object"}}
FORCED = {"tools": [TOOL], "tool_choice": {"type": "any"}}
DEPRECATED = "`{}` is deprecated for this model."
TOOLS_REFUSED = "Function tools with reasoning_effort are not supported for {} in /v1/chat/completions."
PREFILL = "This model does not support assistant message prefill."


def chat(model, message, **fields):
    return ("chat/completions", {"model": model, "messages": ASKED, **fields}, message)


def claude(model, message, **fields):
    return ("messages", {"model": model, "messages": ASKED, "max_tokens": 9, **fields}, message)


def response(model, message, **fields):
    return ("responses", {"model": model, "input": "?", **fields}, message)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        chat("gpt-5-mini", "'temperature' does not support 0 with this model. Only the default (1)", temperature=0),
        chat("o3", "Unsupported parameter: 'top_p' is not supported with this model.", top_p=0.5),
        chat("o3", "Use 'max_completion_tokens' instead.", max_tokens=5),
        chat("gpt-5.1", "Unsupported parameter: 'temperature'", temperature=0, reasoning_effort="low"),
        chat("gpt-5.1", None, temperature=0, reasoning_effort="none"),
        chat("gpt-5.1", "Supported values are: 'none', 'low', 'medium', 'high'.", reasoning_effort="minimal"),
        chat("gpt-5.4", TOOLS_REFUSED.format("gpt-5.4"), tools=TOOLS, reasoning_effort="low"),
        chat("gpt-5.4", None, tools=TOOLS),
        chat("gpt-5.6-terra", TOOLS_REFUSED.format("gpt-5.6-terra"), tools=TOOLS),
        chat("gpt-5.6-terra", None, tools=TOOLS, reasoning_effort="none"),
        chat("gpt-4o", "Unrecognized request argument supplied: top_k", top_k=3),
        response("gpt-5.6-terra", "Unknown parameter: 'max_tokens'.", max_tokens=5),
        response("gpt-5.6-terra", "Missing required parameter: 'tools[0].name'.", tools=TOOLS),
        response("gpt-5.6-terra", None, tools=[{"type": "function", **FUNCTION}]),
        response("gpt-5.6-terra", "Invalid value: 'input_audio'.", input=HEARD),
        *(
            claude(model, DEPRECATED.format(name), **{name: value})
            for model in ("claude-opus-4-7", "claude-opus-4-8-20260601", "claude-sonnet-5")
            for name, value in (("temperature", 0), ("top_p", 0.5), ("top_k", 3))
        ),
        claude("claude-opus-4-6", None, temperature=0),
        claude("claude-opus-4-6", PREFILL, messages=PREFILLED),
        claude("claude-opus-4-7", PREFILL, messages=PREFILLED),
        claude("claude-opus-4-5", None, messages=PREFILLED),
        claude("claude-haiku-4-5", "does not support the effort parameter", output_config={"effort": "low"}),
        claude("claude-opus-4-7", "Thinking may not be enabled", thinking={"type": "adaptive"}, **FORCED),
        claude("claude-opus-4-7", None, **FORCED),
        claude("claude-opus-4-7", "seed: Extra inputs are not permitted", seed=1),
        chat("some-model", None, temperature=0, max_tokens=5, tools=TOOLS, reasoning_effort="low"),
        claude("some-model", None, temperature=0, messages=PREFILLED, output_config={"effort": "low"}),
    ],
)  # fmt: skip
def test_a_parameter_that_a_real_model_refuses_is_a_400_with_its_message(path, body, message):
    """For any client: this one is not karat's. Names that are not known accept all that the format defines."""
    headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
    with FakeProvider() as server:
        request = urllib.request.Request(f"{server.url}/{path}", json.dumps(body).encode(), headers)
        if message is None:
            with urllib.request.urlopen(request) as answer:
                assert answer.status == 200
            return
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == 400
        assert message in json.load(refused.value)["error"]["message"]
