"""Every preset and every wire format, against a fake provider that is as strict as the real ones."""

from __future__ import annotations

import json
import re
import stat

import pytest
from msgspec.structs import replace
from pydantic import BaseModel

import karat
from karat import models
from karat.models._endpoints import provider_of
from karat.models.providers import Quirks, providers
from karat.models.providers._model_rules import RULES, rules_for
from karat.models.providers._presets import PRESETS
from karat.tasks.prompt import PromptTask
from karat.testing import Failing, FakeProvider

IMAGE = "data:image/png;base64,iVBORw0KGgo="
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}

NAMES = {
    "chat": {"plain": "gpt-4o-mini", "thinking": "gpt-5-mini"},
    "responses": {"plain": "gpt-4.1", "thinking": "gpt-5.6-terra"},
    "anthropic": {"plain": "claude-haiku-4-5", "thinking": "claude-opus-4-7"},
}
"""A model that the fake provider is strict with, for each format: one that samples, one that thinks."""

CASES = [(preset.name, api) for preset in PRESETS for api in preset.apis]


class City(BaseModel):
    name: str
    people: int


@pytest.fixture(params=CASES, ids=[f"{name}-{api}" for name, api in CASES])
def endpoint(request, monkeypatch):
    """`(server, make)`: a model of a preset by its format, as models.yaml names it, with its key where it needs one."""
    name, api = request.param
    preset = next(each for each in PRESETS if each.name == name)
    with FakeProvider(keys=["right"] if preset.key_env else None) as server:
        if preset.key_env:
            monkeypatch.setenv(preset.key_env, "right")
        monkeypatch.setenv(preset.base_url_env, server.url)

        def make(kind="plain", **parameters):
            # A server with quirks of its own serves other models, of which the fake provider knows nothing.
            model = NAMES[api][kind] if preset.quirks == Quirks() else f"some-{kind}-model"
            if name == "bedrock" and api == "anthropic":
                model = f"us.anthropic.{model}"
            return models.get(f"{name}/{model}", api=api, **parameters)

        yield server, make


async def test_a_plain_question(endpoint):
    server, make = endpoint
    server.script.answers = {
        "": {"text": "yes", "usage": {"input": 20, "output": 9, "cached": 8, "reasoning": 4}}
    }
    reply = await make().generate(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Really?"}], max_tokens=50
    )
    assert (reply.text, reply.finish_reason) == ("yes", "stop")
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens) == (20, 9)
    assert (usage.cached_input_tokens, usage.reasoning_tokens) == (8, 4)
    assert not {"temperature", "top_p", "top_k", "seed", "n", "stop"} & set(server.requests[0])


async def test_an_answer_of_a_given_form(endpoint):
    server, make = endpoint
    server.script.answers = lambda body: _formed(body, {"name": "Rome", "people": 3})
    for kind in ("plain", "thinking"):
        reply = await make(kind).generate("A city?", schema=City)
        assert reply.parsed == City(name="Rome", people=3)


@pytest.mark.parametrize(
    "model", ["claude-opus-4-7", "claude-opus-4-6", "claude-sonnet-5-5", "claude-opus-4-5"]
)
async def test_a_form_and_thinking_go_together_at_anthropic(model, monkeypatch):
    """A forced tool beside thinking is a 400, so that the schema goes into `output_config.format`."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-for-tests")
    with FakeProvider('{"name": "Rome", "people": 3}') as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        reply = await models.get(f"anthropic/{model}").generate("A city?", schema=City, effort="low")
    assert reply.parsed == City(name="Rome", people=3)
    (sent,) = server.requests
    assert sent["output_config"]["effort"] == "low"
    assert sent["output_config"]["format"]["type"] == "json_schema"
    assert "tool_choice" not in sent


async def test_a_form_and_thinking_go_together_where_there_is_no_json_format(define):
    """Of a model that is not known nothing but the tool is known to work, and thinking forbids to force it."""
    with FakeProvider(lambda body: _formed(body, {"name": "Rome", "people": 3})) as server:
        define(f"mine:\n  model: some-model\n  base_url: {server.url}\n  wire: anthropic\n")
        reply = await models.get("mine").generate("A city?", schema=City, effort="low", max_tokens=2000)
    assert reply.parsed == City(name="Rome", people=3)
    assert server.requests[0]["thinking"] == {"type": "adaptive"}
    assert (server.requests[0].get("tool_choice") or {}).get("type") not in ("any", "tool")


async def test_a_request_of_the_responses_api_has_its_own_fields(provider):
    provider.script.answers = lambda body: json.dumps({"name": "Rome", "people": 3})
    model = models.get(provider.spec("gpt-5.6-terra"), api="responses")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "A city?"},
        {"role": "assistant", "content": "Rome."},
        {"role": "user", "content": "As JSON."},
    ]
    await model.generate(messages, schema=City, tools=[TOOL], effort="low", max_tokens=500)
    sent = provider.requests[0]
    assert sent["instructions"] == "Be brief."
    assert [item["role"] for item in sent["input"]] == ["user", "assistant", "user"]
    assert (sent["tools"][0]["type"], sent["tools"][0]["name"]) == ("function", "add")
    assert sent["reasoning"]["effort"] == "low"
    assert sent["text"]["format"]["type"] == "json_schema"
    assert sent["max_output_tokens"] == 500
    assert not {
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "reasoning_effort",
        "response_format",
    } & set(sent)


def _formed(body, value):
    """The value where the format asks for it: the text, or the arguments of the one tool that is forced."""
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "tool":
        return {"tool_calls": [{"name": choice["name"], "arguments": value}]}
    return json.dumps(value)


async def test_a_conversation_with_tools(endpoint):
    """Reasoning is given back between the turns: the strict provider refuses thinking without its signature."""
    server, make = endpoint
    server.script.answers = lambda body: (
        {"text": "It is 3."}
        if "tool_result" in str(body)
        or "function_call_output" in str(body)
        or '"role": "tool"' in json.dumps(body)
        else {"thinking": "I have to add.", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}
    )
    kind = "plain" if make().endpoint.api == "chat" else "thinking"
    model = make(kind)
    messages = [{"role": "user", "content": "1 + 2?"}]
    reply = await model.generate(messages, tools=[TOOL], tool_choice="auto")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("add", {"a": 1})]
    assert (reply.thinking, reply.finish_reason) == ("I have to add.", "tool_calls")
    messages += [reply.message, {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "3"}]
    assert (await model.generate(messages, tools=[TOOL])).text == "It is 3."
    if model.endpoint.api != "chat":
        assert "sealed" in json.dumps(server.requests[-1])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("spec", "variable"),
    [("gemini/gemini-3-flash-preview", "GEMINI"), ("deepseek/deepseek-v4-pro", "DEEPSEEK")],
)
async def test_thinking_is_sent_back_with_tool_results(spec, variable, stream, monkeypatch):
    """Gemini 3 seals its thoughts in the calls, and DeepSeek has them in a field: both answer 400 without them."""
    answers = [
        {"thinking": "I have to add.", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]},
        {"thinking": "Once more.", "tool_calls": [{"name": "add", "arguments": {"a": 2}}]},
        "It is 3.",
    ]
    with FakeProvider(answers) as server:
        monkeypatch.setenv(f"{variable}_API_KEY", "a-key-for-tests")
        monkeypatch.setenv(f"{variable}_BASE_URL", server.url)
        model = models.get(spec)
        messages = [{"role": "user", "content": "1 + 2?"}]
        for _ in range(2):
            reply = await model.generate(messages, tools=[TOOL], stream=stream)
            messages += [
                reply.message,
                {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "3"},
            ]
        assert (await model.generate(messages, tools=[TOOL], stream=stream)).text == "It is 3."
        forgotten = [{k: v for k, v in each.items() if k != "provider_items"} for each in messages]
        with pytest.raises(models.BadRequest, match=r"thought_signature|reasoning_content"):
            await model.generate(forgotten, tools=[TOOL])
        other = models.get(server.spec("another-model"), api="responses")  # does not know what it cannot use
        assert (await other.generate(messages, tools=[TOOL])).text == "It is 3."


async def test_the_result_of_a_tool_may_have_an_image(endpoint):
    server, make = endpoint
    server.script.answers = [{"tool_calls": [{"name": "add", "arguments": {}}] * 2}, "seen"]
    model = make()
    messages = [{"role": "user", "content": "?"}]
    reply = await model.generate(messages, tools=[TOOL])
    part = {"type": "image_url", "image_url": {"url": IMAGE}}
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": f"result {n}"}, part]}
        for n, call in enumerate(reply.tool_calls)
    ]
    assert len(results) == 2  # parallel calls
    assert (await model.generate([*messages, reply.message, *results], tools=[TOOL])).text == "seen"
    sent = json.dumps(server.requests[-1])
    assert sent.count("iVBORw0KGgo=") == 2
    assert "result 0" in sent
    assert "result 1" in sent


async def test_an_image(endpoint):
    server, make = endpoint
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    reply = await make().generate([{"role": "user", "content": parts}])
    assert reply.text == "What is it?"
    assert "iVBORw0KGgo=" in json.dumps(server.requests[0])


async def test_thinking_is_kept_apart_from_the_answer(endpoint):
    server, make = endpoint
    server.script.answers = {"": {"text": "42", "thinking": "six times seven"}}
    model = make("thinking")
    with models.recording(example="1") as calls:
        reply = await model.generate("?", effort="low", max_tokens=2000)
    assert (reply.text, reply.thinking) == ("42", "six times seven")
    assert calls[0].output == "42"
    assert calls[0].metadata["thinking"] == "six times seven"
    sent = server.requests[0]
    efforts = (sent.get("reasoning_effort"), sent.get("reasoning"), sent.get("output_config"))
    assert any(each in ("low", {"effort": "low"}) for each in efforts)
    if model.endpoint.api == "anthropic":
        known = rules_for(model.endpoint.model)
        display = {"display": "summarized"} if known is not None and known.hides_thinking else {}
        assert sent["thinking"] == {"type": "adaptive", **display}


@pytest.mark.parametrize(("model", "hidden"), [("claude-opus-4-7", True), ("claude-opus-4-6", False)])
async def test_models_that_hide_what_they_think_are_asked_for_a_summary(model, hidden, monkeypatch):
    """github.com/anthropics/claude-code/issues/49708: the default of `thinking.display` changed with Opus 4.7."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-for-tests")
    with FakeProvider({"": {"text": "42", "thinking": "hm"}}) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        asked = models.get(f"anthropic/{model}")
        reply = await asked.generate("?", effort="low")
        assert reply.thinking == "hm"
        silent = await asked.generate("?", extra={"thinking": {"type": "adaptive"}})
        assert silent.thinking == ("" if hidden else "hm")


@pytest.mark.parametrize(("model", "accepted"), [("claude-fable-5", True), ("claude-fable-5-1", False)])
async def test_a_forced_tool_is_refused_as_the_real_model_does(model, accepted, define, refuses):
    with FakeProvider({"": {"tool_calls": [{"name": "f", "arguments": {}}]}}) as server:
        define(f"mine:\n  model: {model}\n  base_url: {server.url}\n  wire: anthropic\n")
        asked = models.get("mine").generate("?", tools=[TOOL], tool_choice="required")
        if accepted:
            assert (await asked).tool_calls
        else:
            with refuses(models.ParameterRefused):
                await asked


async def test_a_refusal_is_a_typed_failure(endpoint):
    server, make = endpoint
    server.script.answers = {"": {"text": None, "refusal": "I cannot help with that."}}
    with pytest.raises(models.Refused) as caught:
        await make().generate("?")
    assert caught.value.tokens is not None
    assert caught.value.raw == "I cannot help with that."
    assert server.count == 1


async def test_a_truncated_answer_says_so(endpoint):
    server, make = endpoint
    server.script.answers = {"": {"text": "Once upon", "finish_reason": "length"}}
    reply = await make().generate("?", max_tokens=2)
    assert (reply.text, reply.finish_reason) == ("Once upon", "length")


async def test_a_parameter_that_the_model_refuses_is_one_failure_that_names_it(endpoint):
    """The model's address is not the provider's own, so nothing is known before its 400."""
    server, make = endpoint
    model = make("thinking")
    if model.endpoint.model.startswith("some-"):
        body = '{"error": {"message": "temperature: this parameter is not supported", "code": 400}}'
        server.script.failures = {1: Failing(status=400, body=body)}
    with (
        models.recording(example="1") as calls,
        pytest.raises(models.ParameterRefused) as caught,
    ):
        await model.generate("?", temperature=0)
    assert " temperature: " in str(caught.value)
    assert model.spec in str(caught.value)
    assert caught.value.exit_code == 2
    assert calls.stopped is caught.value
    assert server.count == 1
    reply = await model.generate("?")
    assert reply.text == "?"


async def test_a_key_that_expires_is_printed_again(endpoint, define, tmp_path):
    server, make = endpoint
    if server.keys is None:
        pytest.skip("it takes no key")
    usual = make().endpoint
    script = tmp_path / "token"
    script.write_text(f"#!/bin/sh\necho $(cat {tmp_path}/key)\necho x >> {tmp_path}/runs\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "key").write_text("wrong-at-first")
    define(
        f"expiring:\n  model: {usual.provider}/{usual.model}\n  api: {usual.api}\n  api_key_command: {script}\n"
        f"  base_url: {server.url}\n"
    )
    model = models.get("expiring")
    with pytest.raises(models.CredentialsRefused):
        await model.generate("0")
    server.keys = ["right", "wrong-at-first"]
    assert (await model.generate("1")).text == "1"
    server.keys = ["fresh"]
    (tmp_path / "key").write_text("fresh")
    assert (await model.generate("2", stream=True)).text == "2"
    assert (await model.generate("3")).text == "3"
    assert (tmp_path / "runs").read_text().count(
        "x"
    ) == 3  # at first, after the first refusal, after the second


async def test_429_is_waited_for(endpoint, monkeypatch):
    server, make = endpoint
    server.script.failures = {1: Failing(status=429, headers={"retry-after": "0.01"})}
    reply = await make().generate("?")
    assert reply.text == "?"
    assert [attempt.error for attempt in reply.attempts] == ["RateLimited"]
    assert server.count == 2


async def test_a_stream_amounts_to_the_same_answer(endpoint):
    server, make = endpoint
    answer = {
        "thinking": "hm",
        "text": "one two three",
        "tool_calls": [{"name": "add", "arguments": {"a": 1}}],
        "usage": {"input": 20, "output": 9},
    }
    server.script.answers = {"": answer}
    server.latency = 0.05  # a tenth of it between events
    kind = "plain" if make().endpoint.api == "chat" else "thinking"
    model = make(kind)
    with models.recording(example="1") as calls:
        whole = await model.generate("?", tools=[TOOL])
        streamed = await model.generate("?", tools=[TOOL], stream=True)
    for field in ("text", "thinking", "tool_calls", "finish_reason", "served_model", "usage"):
        assert getattr(streamed, field) == getattr(whole, field), field
    assert streamed.first_token_seconds > 0
    assert streamed.tokens_per_second > 0
    assert whole.first_token_seconds is None
    assert "first_token_seconds" not in calls[0].metadata
    recorded = (calls[1].metadata["first_token_seconds"], calls[1].metadata["tokens_per_second"])
    assert recorded == (streamed.first_token_seconds, streamed.tokens_per_second)
    assert server.requests[1]["stream"] is True


async def test_a_stream_that_breaks_off_is_asked_for_again(endpoint, monkeypatch):
    server, make = endpoint
    server.script.failures = {1: Failing(body='data: {"type": "message_start", "message": {}}\n\n')}
    with models.recording(example="1") as calls:
        reply = await make().generate("?", stream=True)
    assert reply.text == "?"
    assert [attempt["error"] for attempt in calls[0].metadata["attempts"]] == ["BrokenBody"]


async def test_stop_sequences_seeds_and_tool_choice_arrive(endpoint):
    server, make = endpoint
    model = make()
    api, quirks = model.endpoint.api, model.endpoint.quirks
    if api == "responses":
        with pytest.raises(models.ParameterRefused, match="no stop"):
            await model.generate("?", stop=["x"])
        with pytest.raises(models.ParameterRefused, match="no seed"):
            models.get(model, seed=1)
        assert server.count == 0
    else:
        await model.generate("?", stop=["x"], **({} if api == "anthropic" else {"seed": 1}))
        assert server.requests[0]["stop_sequences" if api == "anthropic" else "stop"] == ["x"]
        if api == "chat" and quirks.seed == "seed":
            assert server.requests[0]["seed"] == 1
    server.reset()
    if api == "chat" and quirks.required_tool != "required":
        return
    server.script.answers = {"": {"tool_calls": [{"name": "add", "arguments": {}}]}}
    await model.generate("?", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "add"}})
    expected = {
        "chat": {"type": "function", "function": {"name": "add"}},
        "responses": {"type": "function", "name": "add"},
        "anthropic": {"type": "tool", "name": "add"},
    }
    assert server.requests[0]["tool_choice"] == expected[api]


async def test_several_answers(endpoint):
    server, make = endpoint
    reply = await make().generate("?", n=3)
    assert [choice.text for choice in reply.choices] == ["?"] * 3
    provider = models.get(make()).endpoint
    one_request = provider.api == "chat" and provider.quirks.several
    assert server.count == (1 if one_request else 3)


def test_every_preset_is_registered_and_listed(monkeypatch):
    names = set(providers.list())
    assert {preset.name for preset in PRESETS} <= names
    listed = {row["spec"].split("/")[0] for row in models.available()}
    assert {preset.name for preset in PRESETS} <= listed
    for preset in PRESETS:
        assert preset.source


@pytest.mark.parametrize(("name", "api"), CASES)
async def test_models_yaml_names_every_preset_and_each_of_its_formats(name, api, define):
    with FakeProvider() as server:
        define(f"mine:\n  model: {name}/some-model\n  api: {api}\n  base_url: {server.url}\n")
        model = models.get("mine")
        assert (model.endpoint.provider, model.endpoint.api) == (name, api)
        assert (await model.generate("?")).text == "?"


@pytest.mark.parametrize(
    ("spec", "variables", "url"),
    [
        (
            "azure/mine",
            {"AZURE_OPENAI_ENDPOINT": "https://r.openai.azure.com"},
            "https://r.openai.azure.com/openai/v1",
        ),
        (
            "bedrock/openai.gpt-oss-120b",
            {"AWS_REGION": "eu-west-1"},
            "https://bedrock-mantle.eu-west-1.api.aws/v1",
        ),
        (
            "vertex/google/gemini-3-pro",
            {"GOOGLE_CLOUD_PROJECT": "p"},
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/endpoints/openapi",
        ),
    ],
)
def test_addresses_are_filled_from_the_environment(spec, variables, url, monkeypatch):
    for name in ("AZURE_OPENAI_ENDPOINT", "AWS_REGION", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(karat.errors.RequestError, match=next(iter(variables))):
        models.get(spec)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert models.get(spec).endpoint.base_url == url


@pytest.mark.parametrize("path", ["/v1", "/openai/v1", "/anthropic/v1"])
def test_both_apis_of_bedrock_are_below_the_same_host(path, monkeypatch):
    monkeypatch.setenv("BEDROCK_BASE_URL", f"https://bedrock-runtime.eu-west-1.amazonaws.com{path}")
    endpoint = models.get("bedrock/anthropic.claude-haiku-4-5").endpoint
    url = provider_of(endpoint).url(endpoint.base_url, endpoint, {})
    assert url == "https://bedrock-runtime.eu-west-1.amazonaws.com/anthropic/v1/messages"


async def test_azure_takes_a_key_or_an_entra_token(monkeypatch):
    with FakeProvider() as server:
        monkeypatch.setenv("AZURE_OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "entra-token-123")
        await models.get("azure/mine").generate("a")
        monkeypatch.setenv("AZURE_OPENAI_API_KEY", "plain-key-123")
        await models.get("azure/mine").generate("b")
    first, second = server.headers
    assert (first["Authorization"], second["api-key"]) == ("Bearer entra-token-123", "plain-key-123")
    assert "api-key" not in first
    assert "Authorization" not in second


async def test_a_plug_in_sees_model_and_body_when_it_builds_url_and_headers():
    with FakeProvider() as server:

        @models.register_provider("signed")
        class Signed(models.Provider):
            name = "signed"
            base_url = server.url
            signs = True

            def url(self, base_url, endpoint, body):
                return f"{base_url}/models/{endpoint.model}/{len(body['messages'])}/chat/completions"

            def sign(self, url, headers, body, key, endpoint):
                return {"X-Signature": f"{endpoint.model}:{len(body)}"}

        await models.get("signed/m").generate("a")
        body = json.dumps(server.requests[0], separators=(",", ":"))
        assert server.headers[0]["X-Signature"] == f"m:{len(body)}"
        assert "/models/m/1/chat/completions" in next(iter(server.counts))


@pytest.mark.parametrize(
    ("spec", "api"),
    [
        ("openai/gpt-4o-mini", "chat"),
        ("openai/gpt-5.2", "chat"),
        ("openai/gpt-5.4", "responses"),
        ("openai/gpt-5.6-terra", "responses"),
        ("openai/gpt-6.1-sol", "responses"),
        ("openai/gpt-5-pro", "responses"),
        ("openai/o3-deep-research", "responses"),
        ("openai/gpt-5.3-chat-latest", "chat"),
        ("anthropic/claude-opus-5-5", "anthropic"),
        ("groq/openai/gpt-oss-120b", "chat"),
        ("gpt-5.6-terra@http://127.0.0.1:1/v1", "chat"),
    ],
)
def test_the_format_is_chosen_by_provider_and_model(spec, api):
    assert models.get(spec).endpoint.api == api


def test_a_format_that_a_provider_does_not_speak_is_refused(refuses):
    with refuses(karat.errors.RequestError):
        models.get("together/x", api="responses")
    with refuses(karat.errors.RequestError):
        models.get("openai/x", api="response")


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def sent_for(preset, api, effort):
    """The fields of a request by which an effort is sent."""
    if api == "anthropic":
        if effort == "none":
            return {"thinking": {"type": "disabled"}}
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}
    if api == "responses" or preset == "openrouter":
        return {"reasoning": {"effort": effort}}
    if preset == "deepseek" and effort == "none":
        return {"thinking": {"type": "disabled"}}
    return {"reasoning_effort": effort}


@pytest.mark.parametrize("effort", EFFORTS)
async def test_an_effort_is_mapped_for_every_preset_and_format(endpoint, effort):
    server, make = endpoint
    usual = make().endpoint
    model = (
        "us.anthropic.some-model"
        if usual.provider == "bedrock" and usual.api == "anthropic"
        else "some-model"
    )
    await models.get(f"{usual.provider}/{model}", api=usual.api).generate("?", effort=effort, max_tokens=5000)
    names = ("reasoning_effort", "reasoning", "thinking", "output_config")
    sent = {name: server.requests[0][name] for name in names if name in server.requests[0]}
    assert sent == sent_for(usual.provider, usual.api, effort)


EXAMPLES = (
    *("claude-opus-5-5", "claude-sonnet-5-5", "claude-fable-5", "claude-sonnet-5", "claude-opus-4-7"),
    *("claude-fable-5-2", "grok-4.20-0309-reasoning", "grok-4.3", "grok-4.5", "grok-4.6"),
    *("claude-opus-4-6", "claude-opus-4-5", "claude-haiku-4-5", "claude-3-5-sonnet-20241022"),
    *("gpt-6.1-sol", "gpt-5.6-terra", "gpt-5.5", "gpt-5.4", "gpt-5.1", "gpt-5-mini", "o3", "gpt-4o-mini"),
)


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize(
    "rules", [each for each in RULES if each.efforts is not None], ids=lambda r: r.pattern
)
def test_an_effort_that_a_model_lacks_is_refused_by_name(rules, effort, monkeypatch):
    owners = {"claude": "anthropic", "grok": "xai"}
    provider = next((owner for family, owner in owners.items() if family in rules.pattern), "openai")
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", "a-key-for-tests")
    name = next((name for name in EXAMPLES if rules_for(name) is rules), None)
    assert name is not None, f"EXAMPLES has no model for {rules.pattern}"
    if effort in rules.efforts:
        models.get(f"{provider}/{name}", effort=effort)
    else:
        with pytest.raises(models.ParameterRefused, match=f"effort '{effort}'"):
            models.get(f"{provider}/{name}", effort=effort)


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.pattern)
def test_facts_about_a_model_have_a_source_and_a_date(rules):
    assert re.search(r"\w+\.\w+/", rules.source)
    assert re.search(r"\b20\d\d-\d\d-\d\d\b", rules.source)


KNOWN_REFUSALS = [
    ("anthropic/claude-opus-4-7", {"temperature": 0}, "temperature: "),
    ("anthropic/claude-opus-4-8-20260601", {"temperature": 0.7}, " temperature"),
    ("anthropic/claude-sonnet-5", {"extra": {"top_p": 0.5}}, " top_p"),
    ("anthropic/claude-opus-5-5", {"effort": "none"}, "effort 'none'"),
    ("anthropic/claude-sonnet-5-5", {"tool_choice": "required", "tools": [TOOL]}, "forced"),
    ("anthropic/claude-fable-5-1", {"tool_choice": "required", "tools": [TOOL]}, "forced"),
    ("anthropic/claude-haiku-4-5", {"effort": "low"}, "no effort"),
    ("xai/grok-4.5", {"effort": "none"}, "low, medium, high"),
    ("anthropic/claude-haiku-4-5", {"seed": 1}, "no seed"),
    ("openai/gpt-5-mini", {"temperature": 0.5}, " temperature"),
    ("openai/o3", {"temperature": 0}, " temperature"),
    ("openai/gpt-5.1", {"temperature": 0, "effort": "low"}, "effort: none"),
    ("openai/gpt-5.1", {"effort": "minimal"}, "none, low, medium, high"),
    ("openai/gpt-5.6-terra", {"temperature": 0}, "effort: none"),
    ("openai/gpt-6.1-sol", {"effort": "none"}, "effort 'none'"),
    ("deepseek/deepseek-v4-pro", {"temperature": 0}, "ignores temperature"),
    ("deepseek/deepseek-v4-pro", {"extra": {"top_p": 0.5}, "effort": "high"}, "ignores top_p"),
]


@pytest.mark.parametrize(("spec", "parameters", "said"), KNOWN_REFUSALS)
def test_a_known_refusal_is_reported_before_the_first_record(spec, parameters, said):
    with pytest.raises(models.ParameterRefused, match=said):
        models.get(spec, **parameters)
    with pytest.raises(models.ParameterRefused, match=said):
        models.get(spec).check_options(parameters)
    task = {name: value for name, value in parameters.items() if name in ("temperature", "effort", "seed")}
    if task == parameters:
        with pytest.raises(models.ParameterRefused, match=said):
            PromptTask("{input}", model=spec, **task)


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ("anthropic/claude-opus-4-6", {"temperature": 0}),
        ("anthropic/claude-haiku-4-5", {"temperature": 0}),
        ("openai/gpt-4o", {"temperature": 0}),
        ("openai/gpt-5.1", {"temperature": 0}),
        ("anthropic/claude-opus-4-7", {"temperature": 1}),  # the default, which is no other value
        ("openai/o3", {"temperature": 1.0}),
        ("openai/gpt-5.6-terra", {"temperature": 0, "effort": "none"}),
        ("openai/gpt-5.3-chat-latest", {"temperature": 0}),
        ("openrouter/anthropic/claude-opus-4-7", {"temperature": 0}),  # which drops it in silence
        ("deepseek/deepseek-v4-pro", {"temperature": 0, "effort": "none"}),
        ("deepseek/deepseek-v4-pro", {"temperature": 1}),
        ("deepseek/deepseek-chat", {"temperature": 0}),
        ("claude-opus-4-7@http://127.0.0.1:1/v1", {"temperature": 0}),  # of which nothing is known
        ("openai/some-model-of-next-year", {"temperature": 0, "effort": "max"}),
    ],
)
def test_a_parameter_without_a_known_refusal_is_sent(spec, parameters):
    models.get(spec, **parameters)


async def test_an_assistant_turn_at_the_end_is_refused_where_that_is_known(refuses):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with refuses(karat.errors.RequestError):
        await models.get("anthropic/claude-opus-4-6").generate(messages)


@pytest.mark.parametrize("model", ["gpt-4o-mini", "gpt-5-mini", "claude-haiku-4-5", "claude-opus-4-7"])
def test_the_same_prompt_runs_on_models_that_accept_temperature_and_that_refuse_it(
    model, monkeypatch, tmp_path, refuses
):
    with FakeProvider() as server:
        for variable in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{variable}_BASE_URL", server.url)
        provider = "anthropic" if model.startswith("claude") else "openai"
        dataset = karat.Dataset.from_examples([{"id": str(n), "input": f"q{n}"} for n in range(5)], name="d")
        run = karat.run(
            PromptTask("{input}", model=f"{provider}/{model}"),
            dataset,
            store=tmp_path / "k.db",
            concurrency=2,
        )
        assert (run.counts.ok, run.status) == (5, "success")
        assert server.count == 5
        server.reset()
        fixed = model in ("gpt-5-mini", "claude-opus-4-7")
        task = PromptTask("{input}", model=f"{provider}/{model}", temperature=0)
        if not fixed:
            assert karat.run(task, dataset, store=tmp_path / "k.db").counts.ok == 5
            return
        with refuses(models.ParameterRefused):
            karat.run(task, dataset, store=tmp_path / "k.db", concurrency=1)
        assert server.count == 1  # one failure of the run, not one of each record


async def test_a_full_context_window_is_a_failure(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k" * 20)
    with FakeProvider({"": {"text": "so far", "finish_reason": "model_context_window_exceeded"}}) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        with pytest.raises(models.ContextTooLong) as caught:
            await models.get("anthropic/claude-opus-4-7").generate("?")
        assert caught.value.tokens is not None
        assert server.count == 1


def _turn(text, reason="pause_turn", usage=(10, 5)):
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    counted = usage and {"input_tokens": usage[0], "output_tokens": usage[1], "cache_read_input_tokens": None}
    raw = {
        "content": [search, found, {"type": "text", "text": text}],
        "stop_reason": reason,
        "usage": counted,
    }
    return {"raw": {**raw, "model": "served", "container": {"id": "c1", "expires_at": "…"}}}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_paused_turn_is_continued_and_counted_as_one_answer(monkeypatch, stream):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k" * 20)
    answers = [_turn("One, "), _turn("two, "), _turn("three.", "end_turn")]
    with FakeProvider(answers) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        model = models.get("anthropic/claude-opus-4-7")
        for again in (False, True):
            with models.recording(example="1") as calls:
                reply = await model.generate("Count.", stream=stream)
            assert (reply.text, reply.finish_reason, reply.cached) == ("One, two, three.", "stop", again)
            assert (reply.usage.input_tokens, reply.usage.output_tokens) == (30, 15)
            assert len(calls) == 1
    assert server.count == 3
    assert [message["role"] for message in server.requests[2]["messages"]] == ["user", "assistant"]
    assert len(server.requests[2]["messages"][1]["content"]) == 6
    assert server.requests[1]["container"] == "c1"


async def test_a_turn_that_never_ends_is_a_failure_whose_tokens_are_counted(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k" * 20)
    with FakeProvider([_turn("on and on")]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        with pytest.raises(models.IncompleteAnswer) as caught:
            await models.get("anthropic/claude-opus-4-7").generate("?")
    assert server.count == 11
    assert (caught.value.tokens.input, caught.value.tokens.output) == (110, 55)


@pytest.mark.parametrize("content", [[], [{"type": "image"}], [{"type": "text", "text": "x"}, "y"]])
async def test_a_paused_turn_that_cannot_be_sent_back_is_a_failure(monkeypatch, content):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k" * 20)
    raw = {"content": content, "stop_reason": "pause_turn", "usage": None, "model": "m"}
    with FakeProvider([{"raw": raw}]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        with pytest.raises((models.IncompleteAnswer, models.BrokenBody)):
            await models.get("anthropic/claude-opus-4-7").generate("?")


async def test_a_pause_takes_no_retry_away(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k" * 20)
    answers = [_turn("a"), _turn("b"), _turn("c"), {"raw": {}}, _turn("d", "end_turn")]
    with FakeProvider(answers) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        endpoint = models.get("anthropic/claude-opus-4-7").endpoint
        model = models.Model(replace(endpoint, retries=models.Retries(limit=1, base=0.0001)))
        reply = await model.generate("?")
    assert reply.text == "abcd"
    assert [attempt.error for attempt in reply.attempts] == ["BrokenBody"]


async def test_the_usage_of_a_paused_turn_is_unknown_if_a_part_omits_it(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k" * 20)
    for bad in (None, (-1, 5), ("many", 5)):
        with FakeProvider([_turn("One, ", usage=bad), _turn("two.", "end_turn")]) as server:
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
            reply = await models.get("anthropic/claude-opus-4-7").generate("?")
        assert reply.text == "One, two."
        assert (reply.usage.cost, reply.usage.input_tokens) == (None, 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_probabilities_of_tokens_are_kept_in_the_trace(provider, api, stream):
    content = [{"token": "yes", "logprob": -0.1, "top_logprobs": [{"token": "no", "logprob": -2.5}]}]
    provider.script.answers = {"": {"text": "yes", "logprobs": content}}
    with models.recording(example="1") as calls:
        reply = await models.get(provider.spec(), api=api).generate("?", logprobs=1, stream=stream)
    assert reply.logprobs == [{"token": "yes", "logprob": -0.1, "top": {"no": -2.5}}]
    assert calls[0].metadata["logprobs"] == reply.logprobs
    (sent,) = provider.requests
    assert sent["top_logprobs"] == 1
    assert sent.get("logprobs") if api == "chat" else "message.output_text.logprobs" in sent["include"]


def test_the_list_of_models_says_what_each_provider_needs(monkeypatch):
    for preset in PRESETS:
        for name in (preset.key_env, preset.token_env, preset.base_url_env):
            if name:
                monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT", raising=False)
    needs = {row["spec"].split("/")[0]: row["needs"] for row in models.available()}
    assert needs["azure"] == "AZURE_OPENAI_ENDPOINT, AZURE_OPENAI_API_KEY or AZURE_OPENAI_AD_TOKEN"
    assert needs["mistral"] == "MISTRAL_API_KEY"
    assert needs["ollama"].endswith(" http://localhost:11434/v1")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://r.openai.azure.com")
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "a-token")
    assert {row["spec"].split("/")[0]: row["needs"] for row in models.available()}["azure"] == ""


async def test_a_router_is_not_to_drop_a_parameter_in_silence(monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "k" * 20)
    message = "No endpoints found that can handle the requested parameters."
    with FakeProvider(failures={3: Failing(status=404, message=message)}) as server:
        monkeypatch.setenv("OPENROUTER_BASE_URL", server.url)
        model = models.get("openrouter/some/model")
        await model.generate("?")
        await model.generate("?", temperature=0.5, extra={"provider": {"order": ["x"]}})
        with pytest.raises(models.ParameterRefused):
            await model.generate("again", temperature=0.5)
    assert "provider" not in server.requests[0]
    assert server.requests[1]["provider"] == {"require_parameters": True, "order": ["x"]}


WORDINGS = [
    # (api, options, error body, the parameter that is named), as providers write them
    (
        "chat",
        {"temperature": 0.0},
        {
            "error": {
                "message": "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1)"
                " value is supported.",
                "param": "temperature",
                "code": "unsupported_value",
            }
        },
        "temperature",
    ),
    (
        "chat",
        {"temperature": 3.0},
        {
            "error": {
                "message": "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3.",
                "param": "temperature",
                "code": "decimal_above_max_value",
            }
        },
        "temperature",
    ),
    (
        "chat",
        {"effort": "low"},
        {"error": {"message": "Unrecognized request argument supplied: reasoning_effort"}},
        "effort",
    ),
    (
        "chat",
        {"seed": 3},
        [{"error": {"message": 'Unknown name "seed": Cannot find field.', "status": "INVALID_ARGUMENT"}}],
        "seed",
    ),
    (
        "chat",
        {"temperature": 3.0},
        {"error": {"message": "it has a temperature value of 3 but the supported range is from 0 to 2"}},
        "temperature",
    ),
    (
        "chat",
        {"seed": 3},
        {
            "detail": [
                {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}
            ]
        },
        "seed",
    ),
    (
        "chat",
        {"temperature": 3.0},
        {
            "detail": [
                {
                    "type": "less_than_equal",
                    "loc": ["body", "temperature"],
                    "msg": "Input should be at most 2",
                }
            ]
        },
        "temperature",
    ),
    ("chat", {"logprobs": True}, {"error": {"message": "property 'logprobs' is unsupported"}}, "logprobs"),
    (
        "chat",
        {"extra": {"presence_penalty": 1}},
        {"error": "Argument not supported on this model: presencePenalty"},
        "presence_penalty",
    ),
    (
        "chat",
        {"temperature": 0.0},
        {"error": "Input validation error: `temperature` must be strictly positive"},
        "temperature",
    ),
    (
        "anthropic",
        {"temperature": 0.0},
        {"error": {"message": "`temperature` is deprecated for this model."}},
        "temperature",
    ),
    (
        "anthropic",
        {"temperature": 0.0},
        {"error": {"message": "`temperature` may only be set to 1 when thinking is enabled."}},
        "temperature",
    ),
    (
        "anthropic",
        {"max_tokens": 100000},
        {
            "error": {
                "message": "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens"
            }
        },
        "max_tokens",
    ),
    (
        "anthropic",
        {"effort": "low"},
        {"error": {"message": "This model does not support the effort parameter."}},
        "effort",
    ),
    (
        "anthropic",
        {"stop": ["x"]},
        {"error": {"message": "stop_sequences: Extra inputs are not permitted"}},
        "stop",
    ),
    ("anthropic", {"extra": {"top_k": 3}}, {"message": "extraneous key [top_k] is not permitted"}, "top_k"),
    (
        "responses",
        {"effort": "xhigh"},
        {
            "error": {
                "message": "Unsupported value: 'xhigh'.",
                "param": "reasoning.effort",
                "code": "unsupported_value",
            }
        },
        "effort",
    ),
    *(
        ("chat", options, {"error": {"message": message}}, named)
        for options, message, named in (
            ({"temperature": 0.0}, "Temperature is not supported for this model", "temperature"),
            ({"temperature": 0.0}, "invalid temperature: only 1 is allowed for this model", "temperature"),
            ({"temperature": 0.0}, "Setting 'temperature' isn't possible with this model", "temperature"),
            ({"temperature": 0.0}, "The value of `temperature` was not what we wanted", "temperature"),
            ({"max_tokens": 9}, "Max tokens exceeds the limit of 8", "max_tokens"),
            ({"tools": [TOOL]}, "deepseek-reasoner does not support Function Calling", "tools"),
            ({"tools": [TOOL]}, "tool calling is not supported with this model", "tools"),
            (
                {"tool_choice": "auto"},
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
                "tool_choice",
            ),
            ({"effort": "minimal"}, "Thinking level MINIMAL is not supported for this model.", "effort"),
            ({"effort": "xhigh"}, "reasoning_effort: unknown variant `xhigh`, expected `low`", "effort"),
            (
                {"effort": "minimal"},
                'invalid reasoning value: "minimal" (must be "high", "medium", "low", "max", or "none")',
                "effort",
            ),
            ({"logprobs": True}, "Logprobs are not available for this model", "logprobs"),
            ({"temperature": 0.0}, "temperature is fixed at 1.0 for this model", "temperature"),
            ({"temperature": 0.0}, "Model only supports temperature=1", "temperature"),
            ({"temperature": 0.0}, "The temperature parameter has been retired", "temperature"),
            (
                {"temperature": 0.0, "effort": "low"},
                "Sampling parameters are not available on reasoning models",
                "temperature",
            ),
            ({"temperature": 0.0}, "不支持参数 temperature", "temperature"),
            ({"seed": 3}, "this model ignores seed; strict mode forbids it", "seed"),
            ({"stop": "x"}, "Request contains unsupported param(s): stop", "stop"),
            ({"stop": "x"}, "stop sequences cannot be used with this model", "stop"),
            ({"tools": [TOOL]}, "This endpoint does not offer tool use", "tools"),
            ({"tools": [TOOL]}, "tool calling is turned off for this model", "tools"),
        )
    ),
    ("chat", {"temperature": 0.0}, {"errors": [{"message": "no", "field": "temperature"}]}, "temperature"),
    (
        "chat",
        {"temperature": 0.0},
        [
            {
                "error": {
                    "message": "bad",
                    "details": [
                        {"fieldViolations": [{"field": "generation_config.temperature", "description": "no"}]}
                    ],
                }
            }
        ],
        "temperature",
    ),
]


@pytest.mark.parametrize("status", [200, 400, 422])
@pytest.mark.parametrize(("api", "options", "body", "named"), WORDINGS)
async def test_a_400_names_a_parameter_in_any_wording(api, options, body, named, status, provider):
    """In any wording, it is one failure of the run and not one of every record."""
    if status == 200:  # as gateways do
        error = body[0]["error"] if isinstance(body, list) else body.get("error", body)
        if not isinstance(error, dict) or "message" not in error:
            return
        body = (
            [{"error": {**error, "code": 400}}]
            if isinstance(body, list)
            else {"error": {**error, "code": 400}}
        )
    way = Failing(body=json.dumps(body)) if status == 200 else Failing(status=status, body=json.dumps(body))
    provider.script.failures = {1: way}
    with pytest.raises(models.ParameterRefused, match=f" {named}: ") as caught:
        await models.get(provider.spec(), api=api).generate("?", **options)
    assert caught.value.exit_code == 2
    assert provider.count == 1


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (
            {
                "error": {
                    "message": "Invalid 'messages[0].content': string too long",
                    "param": "messages[0].content",
                }
            },
            models.BadRequest,
        ),
        ({"error": {"message": "messages.0.content: temperature is not supported here"}}, models.BadRequest),
        ({"error": {"message": "the image in the message must be a PNG"}}, models.BadRequest),
        (
            {
                "error": {
                    "message": "'max_tokens' is too large: this model's maximum context length is 4096 tokens"
                }
            },
            models.ContextTooLong,
        ),
        (
            {
                "error": {
                    "message": "stop: filtered by the content management policy",
                    "code": "content_filter",
                }
            },
            models.ContentFiltered,
        ),
        ({"error": {"message": "your answer isn't valid, n must be"}}, models.BadRequest),
        (
            {
                "error": {
                    "message": "The input token count (1048577) exceeds the maximum number of tokens allowed"
                }
            },
            models.ContextTooLong,
        ),
        (
            {
                "error": {
                    "message": "This model's maximum prompt length is 131072 but the request contains 2e5"
                }
            },
            models.ContextTooLong,
        ),
        (
            {
                "error": {
                    "message": "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 8000 `inputs`"
                }
            },
            models.ContextTooLong,
        ),
        *(
            ({"error": {"message": message}}, models.BadRequest)
            for message in (
                "the number of function response parts is equal to the number of function call parts",
                "Function call is missing a thought_signature. This is required for tools to work correctly",
                "unexpected `tool_use_id` found in `tool_result` blocks: each must have a `tool_use` block",
                "An assistant message with 'tool_calls' must be followed by tool messages",
                "Only user and assistant roles are supported!",
                "All messages must have non-empty content, stop",
                "The input has an unsupported character before the stop",
                "Invalid message: its reasoning is longer than allowed",
            )
        ),
        ({"detail": [{"loc": ["body", "messages", 0, "content"], "msg": "must be text"}]}, models.BadRequest),
        ({"detail": [{"loc": [7, None], "msg": "?"}]}, models.BadRequest),
        ({"error": {"param": 7, "message": {"a": 1}}}, models.BadRequest),
    ],
)
async def test_a_400_about_one_record_does_not_stop_the_run(body, failure, provider):
    provider.script.failures = {1: Failing(status=400, body=json.dumps(body))}
    with pytest.raises(failure) as caught:
        await models.get(provider.spec()).generate(
            "?", max_tokens=5, n=2, stop="x", temperature=1.0, tools=[TOOL], effort="low"
        )
    assert not isinstance(caught.value, models.ParameterRefused)
