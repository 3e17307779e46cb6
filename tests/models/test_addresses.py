"""Addresses with a slash, a path or a query, servers that are none, redirections, and commands that print keys."""

from __future__ import annotations

import pytest

from karat import models
from karat.errors import RequestError
from karat.models import _request_context
from karat.models._endpoints import provider_of, resolve, with_api
from karat.testing import Failing, FakeProvider

PATHS = {"chat": "/chat/completions", "responses": "/responses", "anthropic": "/messages"}


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize(
    ("base", "before", "after"),
    [
        ("http://h:1/v1", "http://h:1/v1", ""),
        ("http://h:1/v1/", "http://h:1/v1", ""),
        ("http://h:1/v1///", "http://h:1/v1", ""),
        ("http://h:1", "http://h:1", ""),
        ("http://h:1/a/b/v1", "http://h:1/a/b/v1", ""),
        ("http://h:1/v1?api-version=2026-01-01", "http://h:1/v1", "?api-version=2026-01-01"),
        ("http://h:1/v1/?a=1&b=2", "http://h:1/v1", "?a=1&b=2"),
        ("http://[::1]:1/v1", "http://[::1]:1/v1", ""),
    ],
)
def test_a_path_is_added_to_a_base_url(api, base, before, after):
    endpoint = with_api(resolve(f"m@{base}"), api)
    assert provider_of(endpoint).url(endpoint.base_url, endpoint, {}) == before + PATHS[api] + after


@pytest.mark.parametrize("path", PATHS.values())
def test_a_base_url_with_the_path_of_requests_is_refused(path, refuses):
    with refuses(RequestError):
        resolve(f"m@http://127.0.0.1:1/v1{path}")


async def test_a_query_arrives(provider):
    reply = await models.get(f"fake@{provider.url}/?version=7").generate("hi")
    assert reply.text == "hi"


def test_a_batch_keeps_the_query_of_its_base_url(monkeypatch, tmp_path):
    import karat
    from karat.models import _batches
    from karat.tasks.prompt import PromptTask

    monkeypatch.setattr(_batches, "SETTLED", 0.05)
    monkeypatch.setattr(_batches, "FIRST_POLL", 0.01)
    asked = []
    with FakeProvider() as server:
        handle = server.batches.handle

        def noting(request, content):
            asked.append(request.path_qs)
            return handle(request, content)

        server.batches.handle = noting
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/?tenant=7")
        monkeypatch.setenv("OPENAI_API_KEY", "a-key-for-tests")
        task = PromptTask("{input}", model="openai/gpt-4o-mini")
        run = karat.run(task, [{"id": "1", "input": "q"}], store=tmp_path / "k.db", batch=True)
    assert run.counts.ok == 1
    assert all("tenant=7" in each for each in asked)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", PATHS)
async def test_a_page_of_html_with_status_200_is_a_failure(quick, api, stream):
    page = Failing(body="<!doctype html><html>Sign in</html>", headers={"X": "y"})
    with FakeProvider(failures=dict.fromkeys(range(1, 9), page)) as server:
        quick(server, retries="{limit: 0}")
        with pytest.raises(models.BrokenBody, match="not JSON"):
            await models.get("quick", api=api).generate("?", stream=stream)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_does_not_follow_a_redirection(monkeypatch, status, stream):
    with FakeProvider() as other, FakeProvider() as server:
        server.script.failures = {
            n: Failing(status=status, headers={"Location": other.url + "/chat/completions"})
            for n in range(1, 9)
        }
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key-for-tests")
        with pytest.raises(models.BadRequest, match="set base_url"):
            await models.get("openai/gpt-4o-mini").generate("?", stream=stream)
        assert (server.count, other.count) == (1, 0)


COMMANDS = {
    "printf ''": "printed nothing",
    "printf '  \\n '": "printed nothing",
    "printf 'one\\ntwo\\n'": "one line",
    "printf 'ke\\001y'": "characters",
    "printf 'schl\\303\\274ssel'": "characters",
    "printf '\\377\\376'": "characters",
    "sh -c 'echo a-key; exit 3'": "exit code 3",
    "no-such-command-of-karat": "be run",
    "'unbalanced": "be run",
}


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_that_prints_no_key_stops_the_run(provider, define, command):
    import yaml

    define(yaml.safe_dump({"mine": {"model": "m", "base_url": provider.url, "api_key_command": command}}))
    with pytest.raises(models.CredentialsRefused, match=COMMANDS[command]) as caught:
        await models.get("mine").generate("?")
    assert "a-key" not in str(caught.value)
    assert provider.count == 0


async def test_a_command_that_hangs_is_killed_with_what_it_started(
    provider, define, monkeypatch, tmp_path, refuses
):
    monkeypatch.setattr(_request_context, "KEY_COMMAND_SECONDS", 0.3)
    script = tmp_path / "hangs"
    script.write_text("#!/bin/sh\nsleep 300 &\nsleep 300\n")
    script.chmod(0o700)
    define(f"mine:\n  model: m\n  base_url: {provider.url}\n  api_key_command: {script}\n")
    with refuses(models.CredentialsRefused):
        await models.get("mine").generate("?")
    assert provider.count == 0


async def test_a_printed_key_that_is_refused_names_the_command(define):
    with FakeProvider(keys=["another-key"]) as server:
        define(f"mine:\n  model: m\n  base_url: {server.url}\n  api_key_command: echo a-wrong-key\n")
        with pytest.raises(models.CredentialsRefused, match="correct api_key_command") as refused:
            await models.get("mine").generate("?")
        assert "a-wrong-key" not in str(refused.value)
        assert server.count == 2  # once more with what the command prints then
