"""Model specs and their meaning."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from karat import models
from karat.errors import ConfigError, RequestError, UnknownName
from karat.models import _endpoints
from karat.models._endpoints import provider_named, resolve
from karat.models.providers import providers


def test_providers_have_their_usual_variables(monkeypatch):
    endpoint = resolve("openai/gpt-4o-mini")
    assert (endpoint.base_url, endpoint.key_env, endpoint.model) == (
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        "gpt-4o-mini",
    )
    assert resolve("anthropic/claude-sonnet-4-5").key_env == "ANTHROPIC_API_KEY"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gateway:8000/v1/")
    assert resolve("openai/gpt-4o-mini").base_url == "http://gateway:8000/v1"


def test_any_compatible_server():
    endpoint = resolve("meta/llama-3@http://localhost:8000/v1")
    assert (endpoint.model, endpoint.base_url, endpoint.provider) == (
        "meta/llama-3",
        "http://localhost:8000/v1",
        "openai",
    )
    assert endpoint.price is None


def test_a_key_goes_only_to_the_provider_it_belongs_to(monkeypatch):
    assert resolve("m@http://elsewhere:1/v1").key_env == ""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gateway:8000/v1")
    assert resolve("m@http://gateway:8000/v1").key_env == "OPENAI_API_KEY"


def test_defaults_come_from_the_environment(monkeypatch):
    with pytest.raises(RequestError, match="KARAT_MODEL"):
        models.get()
    monkeypatch.setenv("OPENAI_MODEL", "gpt-4o-mini")
    assert models.get().spec == "openai/gpt-4o-mini"
    monkeypatch.setenv("KARAT_MODEL", "openai/gpt-4o")
    assert models.get().spec == "openai/gpt-4o"
    assert models.get(role="judge").spec == "openai/gpt-4o-mini"
    monkeypatch.delenv("OPENAI_MODEL")
    assert models.get(role="judge").spec == "openai/gpt-4o"
    monkeypatch.setenv("KARAT_JUDGE_MODEL", "anthropic/claude-sonnet-4-5")
    assert models.get(role="judge").spec == "anthropic/claude-sonnet-4-5"
    assert models.get().spec == "openai/gpt-4o"


@pytest.mark.parametrize(
    "spec", ["gpt-4o-mini", "opnai/gpt-4o", "openai/", "@http://h/v1", "m@http://", "m@http://h:0/v1"]
)
def test_impossible_requests_are_refused(spec):
    with pytest.raises(RequestError):
        resolve(spec)


def test_an_unknown_name_gets_the_nearest_right_one(refuses):
    with refuses(UnknownName):
        resolve("gpt-4o-mini")


def test_models_yaml(define):
    define("""
fast:
  model: openai/gpt-4o-mini
  parameters: {temperature: 0, extra: {top_p: 0.9}}
  limits: {concurrency: 7, requests_per_minute: 60, tokens_per_minute: 1000, adaptive: false}
  timeouts: {connect: 1, read: 2, total: 3}
  retries: {limit: 4}
  prices: {input: 1, output: 2}
mine:
  model: org/llama
  base_url: http://localhost:8000/v1
  api_key_env: MY_KEY
claude:
  model: some-claude
  wire: anthropic
  base_url: http://localhost:9000
""")
    fast, mine, claude = resolve("fast"), resolve("mine"), resolve("claude")
    assert (fast.spec, fast.model, fast.key_env) == ("fast", "gpt-4o-mini", "OPENAI_API_KEY")
    assert fast.limits == models.Limits(
        concurrency=7, requests_per_minute=60, tokens_per_minute=1000, adaptive=False
    )
    assert fast.timeouts == models.Timeouts(connect=1, read=2, total=3)
    assert fast.retries.limit == 4
    assert fast.price == models.Price(1, 2)
    assert (mine.model, mine.provider, mine.key_env, mine.price) == ("org/llama", "openai", "MY_KEY", None)
    assert (claude.provider, claude.model) == ("anthropic", "some-claude")
    assert models.defined_names() == ["claude", "fast", "mine"]


def test_the_embedded_model_is_waited_for_unless_timeouts_are_given(define):
    define("""
mine: {model: local/smollm2-135m}
hasty: {model: local/smollm2-135m, timeouts: {read: 5}}
""")
    assert resolve("local/smollm2-135m").timeouts.read >= 3600
    assert resolve("mine").timeouts == resolve("local/smollm2-135m").timeouts
    assert resolve("hasty").timeouts == models.Timeouts(read=5)
    assert resolve("openai/gpt-4o-mini").timeouts == models.Timeouts()


async def test_each_field_of_models_yaml_has_an_effect(define, provider, monkeypatch):
    monkeypatch.setenv("MY_KEY", "the-key-of-mine")
    monkeypatch.setenv("MY_TEAM", "the-team-of-mine")
    define(f"""
mine:
  model: org/llama
  base_url: {provider.url}
  api_key_env: MY_KEY
  parameters: {{temperature: 0.5, max_tokens: 9, seed: 3, stop: [END], n: 2, extra: {{top_p: 0.9}}}}
  headers: {{X-Route: fast}}
  headers_env: {{X-Team: MY_TEAM}}
  prices: {{input: 1000, output: 2000}}
""")
    reply = await models.get("mine").generate("a b c d e")
    assert provider.requests[0] == {
        "model": "org/llama",
        "messages": [{"role": "user", "content": "a b c d e"}],
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 3,
        "stop": ["END"],
        "n": 2,
        "top_p": 0.9,
    }
    sent = provider.headers[0]
    assert sent["Authorization"] == "Bearer the-key-of-mine"
    assert (sent["X-Route"], sent["X-Team"]) == ("fast", "the-team-of-mine")
    assert reply.usage.cost == pytest.approx((10 * 1000 + 6 * 2000) / 1e6)


def test_a_header_is_part_of_the_identity(define):
    where = "model: m, base_url: 'http://127.0.0.1:1/v1'"
    define(
        f"a: {{{where}}}\nb: {{{where}, headers: {{X-Route: x}}}}\nc: {{{where}, headers: {{X-Route: y}}}}\n"
    )
    identities = [str(models.get(name).identity()) for name in "abc"]
    assert len(set(identities)) == 3
    assert "X-Route" not in "".join(identities)


def test_a_changed_models_yaml_is_read_again(define):
    define("a: {model: openai/one}\n")
    assert resolve("a").model == "one"
    define("a: {model: openai/another}\n")
    assert resolve("a").model == "another"


@pytest.mark.parametrize("name", ["temperature", "messages", "model", "stream", "n", "schema"])
def test_extra_does_not_change_what_is_said_elsewhere(provider, name, refuses):
    with refuses(RequestError) as caught:
        models.get(provider.spec(), extra={name: 1})
    assert f"'{name}'" in str(caught.value)


def test_another_file_is_named_by_a_variable(folder, monkeypatch):
    (folder / "other.yaml").write_text("models:\n  a: {model: openai/gpt-4o}\n")
    monkeypatch.setenv("KARAT_MODELS", "other.yaml")
    assert resolve("a").model == "gpt-4o"
    monkeypatch.setenv("KARAT_MODELS", "absent.yaml")
    with pytest.raises(RequestError, match=r"absent\.yaml"):
        resolve("openai/gpt-4o")


def test_every_mistake_in_models_yaml_is_told_at_once(define, says):
    define("""
a: {model: openai/x, limts: {concurrency: 1}}
b: {limits: {concurrency: 0, concurency: 5}}
c: {model: m, parameters: {temprature: 1}}
d: {model: m, api_key: sk-very-secret-value}
e: {model: m, headers: {Authorization: Bearer sk-very-secret-value}}
""")
    with pytest.raises(ConfigError) as caught:
        resolve("a")
    text = str(caught.value)
    says(text)
    assert "sk-very-secret-value" not in text


@pytest.mark.parametrize(
    "text",
    [
        "- a\n- b\n",
        "a: [",
        "a: !!python/object/apply:os.getcwd []\n",
        "a: openai/x\n",
        "a: " + "[" * 5000,
        f"a: {'9' * 5000}\n",
        "a: !!timestamp nope\n",
        "a: !!bool nope\n",
        'a: "\\Uffffffff"\n',
        "a: {model: m}\na: {model: n}\n",
        "a0: &a0 {k: v}\n"
        + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10)),
    ],
    ids=lambda text: text[:20].strip(),
)
def test_a_file_that_is_not_a_models_yaml(define, text):
    define(text)
    with pytest.raises(ConfigError, match=r"models\.yaml"):
        resolve("a")


def test_an_identity_has_all_that_changes_answers_and_nothing_else(define, provider):
    define(f"""
a: {{model: m, base_url: "{provider.url}", parameters: {{temperature: 0}}, limits: {{concurrency: 3}}}}
b: {{model: m, base_url: "{provider.url}", parameters: {{temperature: 0}}}}
c: {{model: m, base_url: "{provider.url}", parameters: {{temperature: 1}}}}
""")
    a, b, c = (models.get(name).identity() for name in "abc")
    assert a == b
    assert a != c


async def test_a_plug_in_adds_a_wire_format(provider):
    class Shouting(models.Provider):
        """Everything in capitals."""

        name = "shouting"
        base_url = provider.url

        def body(self, endpoint, request, native_schema):
            body = super().body(endpoint, request, native_schema)
            return {**body, "messages": [{**m, "content": m["content"].upper()} for m in body["messages"]]}

    models.register_provider("shouting")(Shouting)
    try:
        reply = await models.get("shouting/m").generate("hello")
    finally:
        del providers._parts["shouting"]
    assert reply.text == "HELLO"


def test_threads_that_need_a_provider_first_at_once_share_one():
    both = threading.Barrier(2)

    class Counting(models.Provider):
        """Made by two threads at the same moment."""

        name = "counting"

        def __init__(self):
            both.wait(30)

    models.register_provider("counting")(Counting)
    try:
        with ThreadPoolExecutor(2) as threads:
            one, other = threads.map(provider_named, ["counting"] * 2)
    finally:
        del providers._parts["counting"]
        _endpoints._instances.pop("counting", None)
    assert one is other


async def test_the_format_of_gemini_can_be_added_outside(monkeypatch):
    """The plug-in on the page about models, against a server with the model in the address and bodies of its own."""
    asked = []

    async def answer(request):
        body = await request.json()
        asked.append((request.path, request.headers["x-goog-api-key"], body))
        said = body["contents"][-1]["parts"][0]["text"].upper()
        return web.json_response(
            {
                "candidates": [{"content": {"parts": [{"text": said}]}, "finishReason": "STOP"}],
                "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2},
                "modelVersion": "g-2-001",
            }
        )

    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "gemini-native" in block]
    app = web.Application()
    app.router.add_post("/{tail:.*}", answer)
    async with TestServer(app) as server:
        monkeypatch.setenv("GEMINI_NATIVE_URL", str(server.make_url("/v1beta")))
        monkeypatch.setenv("GEMINI_API_KEY", "key-of-gemini")
        try:
            exec(code, {"models": models, "Mapping": Mapping, "Any": Any})
            turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
            reply = await models.get("gemini-native/g-2").generate([*turns, {"role": "user", "content": "c"}])
        finally:
            providers._parts.pop("gemini-native", None)
    assert (reply.text, reply.usage.input_tokens, reply.usage.output_tokens) == ("C", 3, 2)
    [(path, key, body)] = asked
    assert (path, key) == ("/v1beta/models/g-2:generateContent", "key-of-gemini")
    assert [turn["role"] for turn in body["contents"]] == ["user", "model", "user"]


@pytest.mark.parametrize(
    "spec",
    [
        "x@localhost:8000/v1",
        "org/x@gpu.example.org/v1",
        "openai/",
        "nope",
        "opnai/gpt-4o",
        "fats",
    ],
)
def test_what_names_no_model_is_told_with_what_may_be_meant(define, spec, refuses):
    define("fast: {model: openai/gpt-4o-mini}\n")
    with refuses(UnknownName) as caught:
        resolve(spec)
    assert str(caught.value).count(spec) <= 2


def test_another_field_of_the_body_is_shown_where_it_belongs(define, provider):
    define("a: {model: openai/x, parameters: {top_p: .9}}\n")
    for wrong in (lambda: resolve("a"), lambda: models.get(provider.spec(), top_p=0.9)):
        with pytest.raises(RequestError, match=r"written extra: \{top_p: 0\.9\}"):
            wrong()
