"""Answers are kept, and never served for another question, model, sample or attempt."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

import karat
from karat import models
from karat.errors import CacheError
from karat.models import _cache
from karat.models._client import Pending
from karat.models._messages import Request
from karat.models._request_context import RequestContext
from karat.testing import Failing, FakeProvider


def numbered():
    """Answers that differ, so that a shared answer shows."""
    count = iter(range(10_000))
    return lambda body: f"answer {next(count)}"


async def ask(model, text="q", *, example="e", attempt=1, replicate=1, cache="use", scope="", **parameters):
    with models.recording(example=example, attempt=attempt, replicate=replicate, cache=cache, scope=scope):
        return await model.generate(text, **parameters)


@pytest.mark.parametrize(
    "change",
    ["body = replace(body, 'answer 0', 'answer 9')", "seconds = seconds + 1", "seconds = 'x'", "body = 1"],
)
async def test_a_damaged_reply_is_asked_for_again(provider, folder, caplog, change):
    provider.script.answers = numbered()
    model = models.get(provider.spec())
    await ask(model)
    models.cache_stats()  # commits what is in the journal
    with contextlib.closing(sqlite3.connect(folder / "replies.db", isolation_level=None)) as file:
        assert file.execute(f"UPDATE replies SET {change}").rowcount == 1
    second, third = await ask(model), await ask(model)
    assert [(each.text, each.cached) for each in (second, third)] == [("answer 1", False), ("answer 1", True)]
    assert "damaged" in caplog.text


async def test_a_cache_without_checksums_is_read_and_upgraded(provider, folder):
    model = models.get(provider.spec())
    await ask(model)
    models.cache_stats()
    with contextlib.closing(sqlite3.connect(folder / "replies.db", isolation_level=None)) as file:
        file.execute("ALTER TABLE replies DROP COLUMN checksum")
        file.execute("PRAGMA user_version = 1")
    assert models.cache_stats()["entries"] == 1
    assert (await ask(model)).cached
    assert not (await ask(model, "another")).cached
    assert (await ask(model, "another")).cached
    models.cache_stats()
    with contextlib.closing(_cache.connect(folder / "replies.db")) as file:
        assert file.execute("SELECT count(*), count(checksum) FROM replies").fetchone() == (2, 1)


async def test_a_cache_that_cannot_be_upgraded_stops_the_call(provider, folder, monkeypatch, refuses):
    path = folder / "replies.db"
    with contextlib.closing(_cache.connect(path)) as file:
        file.execute("ALTER TABLE replies DROP COLUMN checksum")
        file.execute("PRAGMA user_version = 1")
        file.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(_cache, "BUSY_SECONDS", 0.0)
        with refuses(CacheError):
            await ask(models.get(provider.spec()))


async def test_the_same_item_asked_again_is_not_paid_again(provider):
    provider.script.answers = numbered()
    model = models.get(provider.spec())
    first, again = await ask(model), await ask(model)
    assert first.text == again.text
    assert (first.cached, again.cached) == (False, True)
    assert again.usage.cached_calls == 1
    assert again.usage.cost == 0.0
    assert again.seconds == first.seconds
    assert again.raw == first.raw
    assert provider.count == 1


async def test_five_samples_are_five_samples_and_are_all_kept(provider):
    provider.script.answers = numbered()
    model = models.get(provider.spec())

    async def five():
        with models.recording(example="e"):
            return [(await model.generate("q", temperature=1)).text for _ in range(5)]

    first, again = await five(), await five()
    assert len(set(first)) == 5
    assert again == first
    assert provider.count == 5


async def test_without_a_temperature_an_answer_is_a_sample(provider):
    provider.script.answers = numbered()
    model = models.get(provider.spec())
    assert (await ask(model, example="a")).text != (await ask(model, example="b")).text


async def test_at_temperature_0_examples_share_an_answer(provider):
    provider.script.answers = numbered()
    model = models.get(provider.spec())
    first = await ask(model, example="a", temperature=0)
    second = await ask(model, example="b", temperature=0)
    assert (second.text, second.cached) == (first.text, True)


async def test_at_temperature_0_identical_calls_in_flight_are_made_once(provider):
    provider.latency = 0.05
    model = models.get(provider.spec())
    replies = await asyncio.gather(*(ask(model, example=str(n), temperature=0) for n in range(30)))
    assert provider.count == 1
    assert sum(not reply.cached for reply in replies) == 1


async def test_a_shared_call_that_fails_fails_for_all_and_is_made_again_later(quick):
    with FakeProvider(latency=0.05, failures={1: 400}) as server:
        model = quick(server)
        failed = await asyncio.gather(*(ask(model, temperature=0) for _ in range(5)), return_exceptions=True)
        assert {type(error) for error in failed} == {models.BadRequest}
        assert (await ask(model, temperature=0)).text == "q"


async def test_a_waiter_repeats_an_abandoned_call(provider):
    provider.latency = 0.2
    model = models.get(provider.spec())
    first = asyncio.ensure_future(ask(model, temperature=0))
    while not provider.in_flight:
        await asyncio.sleep(0.001)
    second = asyncio.ensure_future(ask(model, example="other", temperature=0))
    await asyncio.sleep(0.02)
    first.cancel()
    assert (await second).text == "q"
    assert provider.count == 2


async def test_samples_outside_of_any_item_are_not_kept(provider):
    provider.script.answers = numbered()
    model = models.get(provider.spec())
    texts = [(await model.generate("q", temperature=1)).text for _ in range(3)]
    assert len(set(texts)) == 3
    assert (await model.generate("q", temperature=0)).text == (await model.generate("q", temperature=0)).text


async def test_off_and_refresh(provider):
    provider.script.answers = numbered()
    model = models.get(provider.spec())
    kept = (await ask(model, temperature=0)).text
    assert (await ask(model, temperature=0, cache="off")).text != kept
    assert (await ask(model, temperature=0)).text == kept
    fresh = (await ask(model, temperature=0, cache="refresh")).text
    assert fresh != kept
    assert (await ask(model, temperature=0)).text == fresh


OTHER = {
    "messages": [{"role": "user", "content": "other"}],
    "temperature": 0.7,
    "max_tokens": 6,
    "seed": 8,
    "stop": ["other"],
    "tools": [{"type": "function", "function": {"name": "other"}}],
    "tool_choice": "none",
    "schema": {"type": "array"},
    "n": 2,
    "extra": {"top_p": 0.1},
    "effort": "high",
    "logprobs": 3,
}
WHERE = {"attempt": 2, "replicate": 2}
SAMPLES = {"example": "other", "scope": "other", "occurrence": 2}


def request_with(temperature):
    return Request(
        messages=[{"role": "user", "content": "q"}],
        temperature=temperature,
        max_tokens=5,
        seed=7,
        stop=["x"],
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice="auto",
        schema={"type": "object"},
        n=1,
        extra={"top_p": 0.5},
    )


def key_of(model, request, **where):
    """The key under which a model's answer to a request is kept."""
    order = Pending(model, request, None).context
    return msgspec.structs.replace(order, **{"example": "e", "occurrence": 1, **where}).key()


@pytest.mark.parametrize("temperature", [0, 1.0, None])
@pytest.mark.parametrize("field", Request.__struct_fields__)
def test_each_field_of_the_request_changes_the_key(field, temperature):
    model, request = models.get("m@http://127.0.0.1:1/v1"), request_with(temperature)
    assert field in OTHER, f"say here what another {field} is"
    other = msgspec.structs.replace(request, **{field: OTHER[field]})
    assert key_of(model, other) != key_of(model, request)
    assert key_of(model, request) == key_of(model, request_with(temperature))


@pytest.mark.parametrize("temperature", [0, 1.0, None])
@pytest.mark.parametrize("field", WHERE)
def test_attempt_and_replicate_change_the_key_always(field, temperature):
    model, request = models.get("m@http://127.0.0.1:1/v1"), request_with(temperature)
    assert key_of(model, request, **{field: WHERE[field]}) != key_of(model, request)


@pytest.mark.parametrize("field", SAMPLES)
def test_example_scope_and_occurrence_change_the_key_of_samples_only(field):
    model = models.get("m@http://127.0.0.1:1/v1")
    for temperature, differs in ((1.0, True), (None, True), (0, False)):
        request = request_with(temperature)
        assert (key_of(model, request, **{field: SAMPLES[field]}) != key_of(model, request)) is differs


def test_deterministic_tells_whether_examples_share_a_reply_at_any_temperature():
    """Many current models refuse temperature 0."""
    model = models.get("m@http://127.0.0.1:1/v1")
    for temperature in (0, 1.0, None):
        for deterministic in (True, False):
            request = request_with(temperature)
            one, other = (
                msgspec.structs.replace(
                    Pending(model, request, deterministic=deterministic).context,
                    example=example,
                    occurrence=1,
                ).key()
                for example in ("a", "b")
            )
            assert (one == other) is deterministic


async def test_examples_share_an_answer_where_the_caller_says_so(provider):
    shared, apart = (models.get(provider.spec(), deterministic=each) for each in (True, False))
    for model, count in ((shared, 1), (apart, 2)):
        provider.reset()
        for example in ("1", "2"):
            for _ in range(2):
                with models.recording(example=example):
                    await model.generate("q", temperature=0 if model is apart else None)
        assert provider.count == count
        assert "deterministic" not in str(provider.requests)


def test_no_field_of_a_request_context_is_forgotten():
    covered = {*WHERE, *SAMPLES, "endpoint", "request", "digest", "deterministic"}
    not_part_of_the_answer = {
        "form",
        "cache",
        "budget",
        "uncommitted",
        "permit",
        "timing",
        "stream",
        "batch",
    }  # the form's schema is in the request
    assert set(RequestContext.__struct_fields__) == covered | not_part_of_the_answer


@pytest.mark.parametrize(
    "other",
    [
        "n@http://127.0.0.1:1/v1",
        "m@http://127.0.0.1:2/v1",
        "m@http://127.0.0.1:1/v2",
        "openai/m",
        "anthropic/m",
        "local/smollm2-135m",
    ],
)
def test_another_model_address_or_provider_is_another_key(other):
    request = request_with(0)
    assert key_of(models.get(other), request) != key_of(models.get("m@http://127.0.0.1:1/v1"), request)


def test_another_way_of_asking_for_a_form_is_another_key(define):
    where = "model: m, base_url: 'http://127.0.0.1:1/v1'"
    define(f"a: {{{where}}}\nb: {{{where}, structured: prompt}}\n")
    assert key_of(models.get("a"), request_with(0)) != key_of(models.get("b"), request_with(0))


def test_the_order_of_keys_in_an_object_does_not_matter():
    model = models.get("m@http://127.0.0.1:1/v1")
    one = Request(messages=[{"role": "user", "content": "q"}], extra={"a": 1, "b": 2})
    two = Request(messages=[{"content": "q", "role": "user"}], extra={"b": 2, "a": 1})
    assert key_of(model, one) == key_of(model, two)


async def test_only_complete_answers_are_kept(quick, folder):
    with FakeProvider(failures={1: Failing(truncate=True), 2: 500}) as server:
        await ask(quick(server))
    models.cache_stats()  # commits what is in the journal
    rows = sqlite3.connect(folder / "replies.db").execute("SELECT model, body FROM replies").fetchall()
    assert [(model, json.loads(body)["choices"][0]["message"]["content"]) for model, body in rows] == [
        ("quick", "q")
    ]


async def test_stats_and_clear(provider):
    assert models.cache_stats()["entries"] == 0
    one, two = models.get(provider.spec("one")), models.get(provider.spec("two"))
    for number in range(3):
        await ask(one, f"{number}")
    await ask(two)
    stats = models.cache_stats()
    assert stats["entries"] == 4
    assert stats["models"] == {one.spec: 3, two.spec: 1}
    assert stats["bytes"] > 0
    assert models.cache_clear(model=one.spec) == 3
    assert models.cache_clear(older_than=3600) == 0
    assert models.cache_clear() == 1
    assert models.cache_stats()["entries"] == 0
    await ask(one)
    assert models.cache_stats()["entries"] == 1


async def test_a_foreign_file_is_refused_untouched(provider, folder, monkeypatch, refuses):
    path = folder / "mine.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    monkeypatch.setenv("KARAT_CACHE", str(path))
    with refuses(CacheError):
        await ask(models.get(provider.spec()))
    assert sqlite3.connect(path).execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


async def test_a_cache_that_fails_costs_no_answer(provider, folder, caplog):
    model = models.get(provider.spec())
    await ask(model, "first")
    with sqlite3.connect(folder / "replies.db") as connection:
        connection.execute("DROP TABLE replies")
    connection.close()
    assert (await ask(model, "second")).text == "second"
    assert (await ask(model, "third")).text == "third"
    assert [record.name for record in caplog.records if record.levelname == "WARNING"] == ["karat.models"]


def test_a_reply_that_was_handed_out_survives_a_kill(folder):
    script = textwrap.dedent("""
        import os, signal, sys
        from karat import models
        for number in range(5):
            with models.recording(example=str(number)):
                print(models.get(sys.argv[1]).generate_sync(f"question {number}").cached, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    with FakeProvider() as server:
        runs = [
            subprocess.run([sys.executable, "-c", script, server.spec()], capture_output=True, text=True)
            for _ in range(2)
        ]
        assert [run.stdout.split() for run in runs] == [["False"] * 5, ["True"] * 5], runs[0].stderr
        assert server.count == 5


def kept_in_the_files():
    """How many answers would be found after a kill: in the cache, and in the journal beside it."""
    path = Path(os.environ["KARAT_CACHE"])
    keys = set()
    for journal in path.parent.glob("*.journal"):  # first: what leaves it is committed
        keys |= {key for key, *_ in _cache._rows(journal.read_bytes())}
    with contextlib.closing(sqlite3.connect(path)) as file:
        return len(keys.union(key for (key,) in file.execute("SELECT key FROM replies")))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_within_a_run_no_call_is_made_before_the_earlier_answers_are_kept(temperature):
    found = []

    def answer(body):
        found.append(kept_in_the_files())
        return "an answer"

    with FakeProvider(answer) as server:
        model = models.get(server.spec(), temperature=temperature)

        async def task(question):
            for number in range(4):
                await model.generate(f"{question}: {number}")

        karat.run(task, [{"id": "a", "input": "a question"}], store="memory://")
    assert found == [0, 1, 2, 3]
    assert models.cache_stats()["entries"] == 4, "also of those that are still being written"


def test_an_answer_that_is_being_written_is_found_already(provider):
    model = models.get(provider.spec(), temperature=0)

    async def task(question):
        return (await model.generate("the same for all")).cached

    run = karat.run(task, [{"id": str(n), "input": n} for n in range(5)], store="memory://", concurrency=1)
    assert [output.outcome.value for output in run.outputs()] == [False, True, True, True, True]
    assert provider.count == 1


async def test_the_file_of_replies_is_readable_by_its_owner_alone(provider, folder, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(folder / "new" / "replies.db"))
    old = os.umask(0)
    try:
        with models.recording(example="1"):
            await models.get(provider.spec()).generate("a")
        models.cache_stats()
        assert stat.S_IMODE((folder / "new").stat().st_mode) == 0o700
        files = sorted(folder.glob("new/replies.db*"))
        assert files
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    finally:
        os.umask(old)


def test_all_caches_are_in_one_folder(monkeypatch, tmp_path):
    from karat.files import cache_folder
    from karat.store.columns import columns_folder

    monkeypatch.delenv("KARAT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for platform in ("linux", "darwin"):
        monkeypatch.setattr("sys.platform", platform)
        assert cache_folder() == tmp_path / ".cache" / "karat"
        assert columns_folder() == cache_folder() / "columns"
        assert models.cache_path() == cache_folder() / "replies.db"
