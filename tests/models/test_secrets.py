"""A key reaches the provider and nothing else: not the trace, an error, the cache, a log, a repr or an identity."""

from __future__ import annotations

import json
import logging
import threading

import msgspec
import pytest

from karat import models
from karat.errors import CredentialsRefused, KaratError, RequestError
from karat.models import _request_context
from karat.models._endpoints import resolve
from karat.models._request_context import keep_key, secrets_of
from karat.testing import Failing, FakeProvider

CANARY = "sk-canary-5f3a9b7c1d2e"


@pytest.fixture(params=["openai", "anthropic", "api_key_env", "headers_env"])
def keyed(request, provider, monkeypatch, define):
    """A model that is given the canary in one of the places a key can be given."""
    if request.param == "openai":
        monkeypatch.setenv("OPENAI_API_KEY", CANARY)
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        return models.get("openai/gpt-4o-mini")
    if request.param == "anthropic":
        monkeypatch.setenv("ANTHROPIC_API_KEY", f"  {CANARY}\n")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        return models.get("anthropic/claude-sonnet-4-5")
    monkeypatch.setenv("MY_SECRET", CANARY)
    field = "api_key_env: MY_SECRET" if request.param == "api_key_env" else "headers_env: {X-Own: MY_SECRET}"
    define(
        f"mine:\n  model: m\n  base_url: {provider.url}\n  {field}\n  retries: {{limit: 1, base: 0.001}}\n"
    )
    return models.get("mine")


def everything(folder, *objects):
    """All text that could have been written anywhere."""
    found = [repr(each) for each in objects]
    found += [msgspec.json.encode(msgspec.to_builtins(each, enc_hook=repr)).decode() for each in objects]
    for path in folder.rglob("*"):
        if path.is_file():
            found.append(path.read_bytes().decode("latin-1"))
    return "\n".join(found)


async def test_the_key_arrives(keyed, provider):
    await keyed.generate("hi")
    assert CANARY in str(provider.headers[0])


async def test_it_is_nowhere_even_if_the_provider_repeats_it(keyed, provider, folder, caplog):
    caplog.set_level(logging.DEBUG)
    provider.script.answers = f"your key is {CANARY}"
    with models.recording(example="e") as calls:
        reply = await keyed.generate("hi")
    assert reply.text == "your key is [secret]"
    journal = everything(folder)
    assert models.cache_stats()["entries"] == 1
    written = journal + everything(folder, keyed.endpoint, keyed.identity(), calls[0], reply, keyed.spec)
    assert "[secret]" in written
    assert CANARY not in written
    assert CANARY not in caplog.text
    assert CANARY not in repr(keyed)


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
async def test_it_is_in_no_error(keyed, provider, folder, status, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    failing = Failing(status=status, message=f"bad key {CANARY}", headers={"retry-after": "9999"})
    provider.script.failures = dict.fromkeys(range(1, 99), failing)
    import karat.models._endpoints as specs

    monkeypatch.setattr(
        keyed, "endpoint", msgspec.structs.replace(keyed.endpoint, retries=specs.Retries(limit=0))
    )
    with models.recording(example="e") as calls, pytest.raises(KaratError) as caught:
        await keyed.generate("hi")
    assert "[secret]" in str(caught.value)
    error = caught.value
    written = (
        everything(folder, calls[0])
        + str(error)
        + repr(error)
        + str(getattr(error, "metadata", ""))
        + caplog.text
    )
    assert CANARY not in written


async def test_a_key_that_slipped_into_a_prompt_is_not_recorded(keyed, provider, folder):
    with models.recording(example="e") as calls:
        await keyed.generate([{"role": "user", "content": f"use {CANARY}"}], stop=[CANARY])
    assert calls[0].input["messages"] == [{"role": "user", "content": "use [secret]"}]
    assert CANARY not in everything(folder, *calls)


def test_threads_that_pass_keys_at_once_get_names_of_their_own(monkeypatch):
    class First(str):
        """A key that is looked at while another thread passes one."""

        def __eq__(self, other):
            if not others:
                others.append(threading.Thread(target=lambda: names.append(keep_key("sk-second-0123456789"))))
                others[0].start()
                others[0].join(0.2)  # it waits for this look to end
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    others, names = [], []
    given = {"api_key #1": First("sk-first-0123456789")}
    monkeypatch.setattr(_request_context, "_given", given)
    names.append(keep_key("sk-third-0123456789"))
    others[0].join()
    assert len({*names}) == 2
    assert sorted(given.values()) == ["sk-first-0123456789", "sk-second-0123456789", "sk-third-0123456789"]


@pytest.mark.parametrize(
    "spec",
    [
        f"m@http://user:{CANARY}@127.0.0.1:1/v1",
        f"m@http://{CANARY}@127.0.0.1:1/v1",
        f"m@http://127.0.0.1:1/v1?api_key={CANARY}",
        f"m@http://127.0.0.1:1/v1?sig={CANARY}",
    ],
)
def test_an_address_with_a_secret_is_refused_without_repeating_it(spec):
    with pytest.raises(RequestError, match=r"models\.yaml") as caught:
        resolve(spec)
    assert CANARY not in str(caught.value)


def test_a_base_url_with_a_secret_is_refused_without_repeating_it(monkeypatch, define):
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://user:{CANARY}@127.0.0.1:1/v1")
    with pytest.raises(RequestError, match="OPENAI_BASE_URL") as caught:
        resolve("openai/m")
    assert CANARY not in str(caught.value)
    define(f"a:\n  model: m\n  base_url: http://user:{CANARY}@127.0.0.1:1/v1\n")
    with pytest.raises(RequestError, match=r"a\.base_url") as caught:
        resolve("a")
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "extra",
    [
        {"api_key": CANARY},
        {"Authorization": "x"},
        {"headers": {"x": "y"}},
        {"token": CANARY},
        {"provider": {"routes": [{"access_token": "x"}]}},
        {"user": {"name": CANARY}},
        {"user": f"Bearer {CANARY}"},
    ],
)
async def test_extra_takes_no_secret(provider, define, extra):
    calls = [
        lambda: models.get(provider.spec()).generate_sync("x", extra=extra),
        lambda: models.get(
            provider.spec(), extra=extra
        ),  # not only when asked: parameters are stored with runs
        lambda: resolve("a"),
    ]
    define(f"a: {{model: openai/x, parameters: {msgspec.json.encode({'extra': extra}).decode()}}}\n")
    for call in calls:
        with pytest.raises(RequestError, match="secret") as caught:
            call()
        assert CANARY not in str(caught.value)
    assert provider.count == 0


def test_extra_takes_what_only_sounds_like_one(provider):
    provider.strict = False  # such a field is unknown to every format
    extra = {"max_completion_tokens": 5, "logit_bias": {"tokens": 1}, "key_count": 2, "user": "sk"}
    models.get(provider.spec(), extra=extra).generate_sync("x")
    assert provider.requests[0]["key_count"] == 2


@pytest.mark.parametrize(
    "text",
    [
        f"a: {{model: m, api_key: {CANARY}",  # YAML that ends too soon
        f"a:\n  api_key: {CANARY}\n b: c\n",
        f"a: {{model: m, api_key: {CANARY}}}\n",
        f"a: {{model: m, api_key_env: {CANARY}}}\n",
        "a: {model: m, api_key_env: gsk_canary_in_small_letters}\n",
        "a: {model: m, headers_env: {X-Own: gsk_canary_in_small_letters}}\n",
        f"a: {{model: m, headers: {{X-Api-Key: {CANARY}}}}}\n",
        f"a: {{model: m, headers: {{X-Team: Bearer {CANARY}}}}}\n",
        f"a: {{model: m, headers: {{X-Team: {CANARY}}}}}\n",
        f"a: {{model: m, headers: {{Cookie: session={CANARY}}}}}\n",
        f"a: {{model: 'm@http://user:{CANARY}@127.0.0.1:1/v1'}}\n",
        f"a: {{model: 'm@HTTP://user:{CANARY}@127.0.0.1:1/v1'}}\n",
    ],
)
def test_a_key_in_models_yaml_is_refused_without_repeating_it(define, text):
    define(text)
    with pytest.raises(RequestError) as caught:
        resolve("a")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("name", ["m@HTTP://user:{}@h/v1", "http://user:{}@h/v1", "opnai/x@https:/user:{}@h"])
def test_a_mistyped_address_is_not_repeated(name):
    with pytest.raises(RequestError) as caught:
        models.get(name.format(CANARY))
    assert CANARY not in str(caught.value)


async def test_a_password_of_a_proxy_is_in_no_error(define, monkeypatch, says):
    monkeypatch.setenv("http_proxy", f"http://user:{CANARY}@127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    define("far: {model: m, base_url: 'http://nowhere.invalid/v1', retries: {limit: 0}}\n")
    with models.recording(example="e") as calls, pytest.raises(models.ConnectionRefused) as caught:
        await models.get("far").generate("x")
    says(caught.value)
    assert CANARY not in str(caught.value) + repr(caught.value.metadata) + repr(calls)


async def test_a_key_no_header_can_carry(monkeypatch, provider, refuses):
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
    monkeypatch.setenv("OPENAI_API_KEY", f"{CANARY}\nX-Evil: 1")
    with refuses(CredentialsRefused) as caught:
        await models.get("openai/m").generate("x")
    assert CANARY not in str(caught.value)


async def test_a_changed_key_is_used_at_once(monkeypatch):
    with FakeProvider(keys=["right-key-123"]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "wrong-key-123")
        model = models.get("openai/m")
        with pytest.raises(CredentialsRefused, match=r"incorrect key \[secret\]"):
            await model.generate("x")
        monkeypatch.setenv("OPENAI_API_KEY", "right-key-123")
        assert (await model.generate("x")).text == "x"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Gateway", "gw-canary-5f3a9b7c"),
        ("X-Gateway", "swordfish-and-more-fish"),
        ("X-Gateway", "A1b2C3d4E5"),
        ("X-Gateway-Token", "swordfish"),
        ("PRIVATE-TOKEN", "correcthorsebattery"),
        ("X-Proxy-Auth", "swordfish"),
        ("Ocp-Apim-Subscription-Key", "swordfish"),
        ("X-Session", "20231101"),
    ],
)
async def test_a_header_of_models_yaml_is_kept_as_secret_as_a_key(
    provider, define, folder, monkeypatch, name, value
):
    monkeypatch.setenv(
        "KARAT_CACHE", str(folder / "kept" / "replies.db")
    )  # apart from models.yaml, which has it
    define(
        f"mine: {{model: m, base_url: '{provider.url}', headers: {{{name}: '{value}'}}, retries: {{limit: 0}}}}\n"
    )
    provider.script.answers = f"you sent {value}"
    provider.script.failures = {2: Failing(status=400, message=f"what is {value}?")}
    with models.recording(example="e") as calls:
        reply = await models.get("mine").generate(f"I send {value}")
        with pytest.raises(models.BadRequest, match=r"what is \[secret\]\?"):
            await models.get("mine").generate("another")
    assert provider.headers[0][name] == value
    assert reply.text == "you sent [secret]"
    assert value not in everything(folder / "kept", reply, *calls)


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "api-key", "Token", "Cookie", "X-Auth-Token"])
def test_a_header_named_like_a_key_is_a_secret_for_any_value(name):
    endpoint = msgspec.structs.replace(resolve("m@http://127.0.0.1:1/v1"), headers={name: "swordfish"})
    assert secrets_of(endpoint) == ("swordfish",)


@pytest.mark.parametrize("name", ["X-Routing-Key", "X-Max-Tokens", "X-Author", "X-Session-Length"])
def test_a_header_whose_name_only_sounds_like_a_key_is_none(name):
    endpoint = msgspec.structs.replace(resolve("m@http://127.0.0.1:1/v1"), headers={name: "production"})
    assert secrets_of(endpoint) == ()


@pytest.mark.parametrize(
    "value",
    ["application/json", "application/json; charset=utf-8", "production", "us-east-1", "2023-06-01", "fast"],
)
async def test_common_header_values_are_not_redacted(provider, define, value):
    define(f"mine: {{model: m, base_url: '{provider.url}', headers: {{X-Route: '{value}'}}}}\n")
    assert (await models.get("mine").generate(f"say {value}")).text == f"say {value}"


@pytest.mark.parametrize(
    "spec", [f"m@http://user:{CANARY}@127.0.0.1:1/v1", f"m@http://127.0.0.1:1/v1?key={CANARY}"]
)
def test_a_check_does_not_repeat_an_address_with_a_secret(spec):
    assert CANARY not in str(models.check(spec))


async def test_the_target_of_a_redirection_is_shown_without_secrets(provider, define):
    define(f"mine: {{model: m, base_url: '{provider.url}', headers: {{X-Gateway: {CANARY[3:]}}}}}\n")
    leads = f"https://user:{CANARY}@example.org/{CANARY[3:]}/v1?key={CANARY}"
    provider.script.failures = {1: Failing(status=307, headers={"Location": leads})}
    with pytest.raises(models.BadRequest, match=r"https://example\.org/\[secret\]/v1") as caught:
        await models.get("mine").generate("x")
    assert "canary" not in str(caught.value)


def written_forms(secret):
    import base64
    from urllib.parse import quote

    return {
        "json": secret,
        "unicode": "".join(f"\\u{ord(c):04x}" for c in secret),
        "percent": "".join(f"%{ord(c):02X}" for c in secret),
        "quote": quote(secret, safe=""),
        "base64": base64.b64encode(f"user:{secret}".encode()).decode(),
        "hex": secret.encode().hex(),
    }


@pytest.mark.parametrize("form", written_forms("x"))
@pytest.mark.parametrize("secret", [CANARY, 'sk/quo"ted\\key+1'])
async def test_no_form_of_a_key_is_stored_or_shown(form, secret, folder, monkeypatch, define):
    """In a reply, in a failure and in the request itself, which the trace keeps."""
    said = written_forms(secret)[form]
    escaped = said if form == "unicode" else json.dumps(said)[1:-1]
    body = '{"choices": [{"message": {"content": "key HERE"}, "finish_reason": "stop"}]}'.replace(
        "HERE", escaped
    )
    wrong = '{"error": {"message": "bad key HERE", "code": "x"}}'.replace("HERE", escaped)
    monkeypatch.setenv("MY_SECRET", secret)
    failures = {1: Failing(body=body), 2: Failing(status=400, body=wrong)}
    with FakeProvider(failures=failures) as server:
        define(f"mine:\n  model: m\n  base_url: {server.url}\n  api_key_env: MY_SECRET\n")
        model = models.get("mine")
        with models.recording(example="e") as calls:
            reply = await model.generate(f"my key is {said}")
            with pytest.raises(models.BadRequest) as caught:
                await model.generate("again")
    assert "[secret]" in reply.text
    assert "[secret]" in str(caught.value)
    assert "[secret]" in str(calls[0].input)
    written = everything(folder, reply, *calls, str(caught.value))
    hidden = said[8:24] if form == "base64" else said
    for text in (secret, hidden, json.dumps(secret)[1:-1], json.dumps(hidden)[1:-1]):
        assert text not in written


def test_the_error_of_a_tool_call_does_not_repeat_a_key(monkeypatch):
    monkeypatch.setenv("SEARCH_API_KEY", "sk-0123456789abcdef")

    @models.tool
    def look_up():
        raise ValueError("refused for sk-0123456789abcdef")

    with models.recording(example="e") as calls:
        models.record_tool_call("f", error=RuntimeError("refused for sk-0123456789abcdef"))
        with pytest.raises(ValueError, match="refused"):
            look_up()
    assert [call.error for call in calls] == [
        "RuntimeError: refused for [secret]",
        "ValueError: refused for [secret]",
    ]


@pytest.mark.parametrize("url", ["https://u:sk-live/Ab12@h/v1", "http://[sk-live/v1", "http://h:sk-live/v1"])
def test_an_address_that_cannot_be_read_is_not_repeated(monkeypatch, url):
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(RequestError) as caught:
        models.get("openai/x")
    assert "sk-live" not in str(caught.value)
