"""Batches whose results are wrong, that end early, whose submission is interrupted: nothing is lost or sent twice."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import urllib.request

import pytest

import karat
from karat import models
from karat.models import _batches, _transport
from karat.models._runtime import shared
from karat.tasks.prompt import PromptTask
from karat.testing import FakeProvider

PROVIDERS = {"openai": "openai/gpt-4o-mini", "anthropic": "anthropic/claude-haiku-4-5"}
COUNT = 6


@pytest.fixture(params=list(PROVIDERS))
def kind(request):
    return request.param


@pytest.fixture
def server(monkeypatch):
    with FakeProvider() as server:
        for name in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{name}_BASE_URL", server.url)
            monkeypatch.setenv(f"{name}_API_KEY", "a-key-for-tests")
        yield server


class Clock:
    """Time that passes only by waiting."""

    def __init__(self):
        self.now = 1000.0
        self.waits = []

    def time(self):
        return self.now

    async def sleep(self, seconds):
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """Waits of batches take no time, and are noted."""
    clock = Clock()
    monkeypatch.setattr(shared().service, "clock", clock)
    return clock


def run(kind, tmp_path, **options):
    data = karat.Dataset.from_examples([{"id": str(n), "input": f"q{n}"} for n in range(COUNT)], name="d")
    task = PromptTask("{input}", model=PROVIDERS[kind])
    return karat.run(task, data, store=tmp_path / "k.db", batch=True, **options)


def post(url, body):
    """A request of another client."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"x-api-key": "k"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def open_requests(tmp_path):
    with sqlite3.connect(tmp_path / "replies.db") as file:
        return file.execute("SELECT count(*) FROM batch_requests").fetchone()[0]


@pytest.mark.parametrize("duration", [0.0, 0.4, 3.0, 11.0, 30.0, 100.0, 600.0, 5000.0, 86_000.0])
def test_a_batch_that_has_ended_is_noticed_within_thirty_seconds(kind, server, clock, tmp_path, duration):
    state, ended = server.batches._state, []

    def at_the_time(name):
        if not ended:
            ended.append(clock.now + duration)
        server.batches._left[name] = 0 if clock.now >= ended[0] else 1
        return state(name)

    server.batches._state = at_the_time
    assert run(kind, tmp_path).counts.ok == COUNT
    assert 0 <= clock.now - ended[0] <= 30
    polls = clock.waits[1:]
    assert max(polls, default=0.0) <= 20
    assert polls == sorted(polls), "polling backs off"
    assert len(polls) < 20 + duration / 15


# Results --------------------------------------------------------------------------


def lines(content):
    return [json.loads(line) for line in content.splitlines()]


def joined(rows):
    return "\n".join(map(json.dumps, rows)).encode()


def with_id(row, custom_id):
    return {**row, "custom_id": custom_id}


FOREIGN = "ab" * 20
UNREADABLE = {
    "no id": lambda rows: joined([{key: row[key] for key in row if key != "custom_id"} for row in rows]),
    "ids that are no text": lambda rows: joined([with_id(row, 7) for row in rows]),
    "ids of another batch": lambda rows: joined([with_id(row, FOREIGN) for row in rows]),
    "ids that are not hexadecimal": lambda rows: joined([with_id(row, "q" * 40) for row in rows]),
    "an empty file": lambda rows: b"",
    "a page of HTML": lambda rows: b"<html><body>404</body></html>",
    "lists": lambda rows: b"[]\n[1, 2]\nnull",
    "not UTF-8": lambda rows: b"\xff\xfe\x00",
    "too deep": lambda rows: b"[" * 100_000,
    "results of another kind": lambda rows: joined(
        [{"custom_id": row["custom_id"], "result": 5, "response": 5} for row in rows]
    ),
}


@pytest.mark.parametrize("way", UNREADABLE)
def test_results_that_cannot_be_used_fail_their_records(kind, server, clock, tmp_path, way):
    server.batches.alter_results = lambda content: UNREADABLE[way](lines(content))
    done = run(kind, tmp_path)
    assert (done.counts.failed, done.counts.ok) == (COUNT, 0)
    assert {output.outcome.error.type for output in done.outputs()} == {"ServerFailed"}
    assert models.cache_stats()["entries"] == 0, "nothing of it is stored, under no key"
    assert open_requests(tmp_path) == 0
    server.batches.alter_results = None
    again = run(kind, tmp_path, retry_failed=True)
    assert again.counts.ok == COUNT


def test_one_wrong_line_fails_one_record(kind, server, clock, tmp_path):
    server.batches.alter_results = lambda content: content[: content.rindex(b"\n") + 40]
    done = run(kind, tmp_path)
    assert (done.counts.ok, done.counts.failed) == (COUNT - 1, 1)
    assert models.cache_stats()["entries"] >= COUNT - 1


def test_a_huge_result_fails_its_record_alone(kind, server, clock, tmp_path, monkeypatch):
    monkeypatch.setattr(_transport, "LARGEST_BODY", 1 << 20)
    server.script.answers = lambda body: "x" * (2 << 20) if "q3" in json.dumps(body) else "short"
    made = run(kind, tmp_path)
    assert (made.counts.ok, made.counts.failed) == (COUNT - 1, 1)
    failed = [output for output in made.outputs() if not isinstance(output.outcome, karat.records.Ok)]
    assert [output.example for output in failed] == ["3"]
    assert "larger than 1 MB" in str(failed[0].outcome)


def test_a_result_that_is_missing_at_first_is_fetched_again(kind, server, clock, tmp_path):
    contents = iter([b"", b"{", None])

    def alter(content):
        changed = next(contents)
        return content if changed is None else changed

    server.batches.alter_results = alter
    assert run(kind, tmp_path).counts.ok == COUNT


def test_the_first_of_two_results_with_the_same_id_counts(kind, server, clock, tmp_path):
    def alter(content):
        rows = lines(content)
        text = json.dumps(rows)
        forged = json.loads(text.replace("q", "forged "))
        return joined(
            [*rows, *(with_id(new, old["custom_id"]) for new, old in zip(forged, rows, strict=True))]
        )

    server.batches.alter_results = alter
    done = run(kind, tmp_path)
    assert [output.value for output in done.outputs()] == [f"q{n}" for n in range(COUNT)]


def test_results_of_other_requests_do_not_enter_the_cache(kind, server, clock, tmp_path, caplog, says):
    server.batches.alter_results = lambda content: joined(
        [*lines(content), with_id(lines(content)[0], FOREIGN)]
    )
    assert run(kind, tmp_path).counts.ok == COUNT
    with sqlite3.connect(tmp_path / "replies.db") as file:
        keys = {key for (key,) in file.execute("SELECT key FROM replies")}
    assert bytes.fromhex(FOREIGN) not in keys
    says(*[record.getMessage() for record in caplog.records if "ignored" in record.getMessage()])


@pytest.mark.parametrize("status", ["expired", "cancelled"])
def test_a_batch_that_ends_early_keeps_its_results(server, clock, tmp_path, status):
    server.batches.status = status
    server.batches.alter_results = lambda content: joined(lines(content)[:2])
    done = run("openai", tmp_path)
    assert (done.counts.ok, done.counts.failed) == (2, COUNT - 2)
    (message,) = {output.outcome.error.message for output in done.outputs() if output.value is None}
    assert status in message
    server.batches.status, server.batches.alter_results = "completed", None
    assert run("openai", tmp_path, retry_failed=True).counts.ok == COUNT
    assert sorted(server.batches.requests.values()) == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("type_", ["expired", "canceled", "errored", "a new word"])
def test_message_batches_that_end_early_keep_their_results(server, clock, tmp_path, type_):
    def alter(content):
        rows = lines(content)
        return joined(rows[:2] + [{**row, "result": {"type": type_}} for row in rows[2:]])

    server.batches.alter_results = alter
    done = run("anthropic", tmp_path)
    assert (done.counts.ok, done.counts.failed) == (2, COUNT - 2)


def test_a_batch_that_the_provider_refuses_as_a_whole_stops_the_run_and_is_not_kept(server, clock, tmp_path):
    server.batches.status = "failed"
    with pytest.raises(_batches.BatchFailed, match="too many tokens") as caught:
        run("openai", tmp_path)
    assert caught.value.exit_code == 3
    assert open_requests(tmp_path) == 0
    server.batches.status = "completed"
    assert run("openai", tmp_path).counts.ok == COUNT


@pytest.mark.parametrize("model", ["openai/gpt-5-mini", "anthropic/claude-opus-4-7"])
def test_a_parameter_that_the_model_refuses_is_one_failure_of_the_run(
    model, server, clock, tmp_path, refuses
):
    """At an address of one's own nothing is known before the first record."""
    data = karat.Dataset.from_examples([{"id": str(n), "input": f"q{n}"} for n in range(COUNT)], name="d")
    task = PromptTask("{input}", model=model, temperature=0.5)
    with refuses(models.ParameterRefused):
        karat.run(task, data, store=tmp_path / "k.db", batch=True)
    assert open_requests(tmp_path) == 0


def test_a_turn_that_pauses_is_continued_in_another_batch(server, clock, tmp_path):
    def answers(body):
        if body["messages"][-1]["role"] == "assistant":
            return "done"
        search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
        content = [{"type": "text", "text": "well "}, search]
        usage = {"input_tokens": 5, "output_tokens": 3}
        return {"raw": {"content": content, "stop_reason": "pause_turn", "usage": usage}}

    server.script.answers = answers
    done = run("anthropic", tmp_path)
    assert [output.value for output in done.outputs()] == ["well done"] * COUNT
    assert server.batches.count == 2


# Submission -----------------------------------------------------------------------


def answering(server, path, *responses):
    """Let the server answer requests to a path with `(status, body)`, after it has done what was asked if `made`."""
    handle, left = server.batches.handle, list(responses)

    def instead(request, content):
        from aiohttp import web

        if request.method == "POST" and request.path.endswith(path) and left:
            status, body, made = left.pop(0)
            if made:
                handle(request, content)
            return web.Response(status=status, text=body)
        return handle(request, content)

    server.batches.handle = instead


@pytest.mark.parametrize("status", [500, 502, 504, 408])
@pytest.mark.parametrize("made", [True, False])
def test_an_unclear_answer_to_a_submission_is_looked_up(
    kind, server, clock, tmp_path, monkeypatch, status, made
):
    answering(server, "/batches", (status, "{}", made))
    with pytest.raises(_batches.BatchOpen):
        run(kind, tmp_path)
    monkeypatch.setattr(_batches, "ARRIVAL", 0.0)
    assert run(kind, tmp_path).counts.ok == COUNT
    assert server.batches.count == 1
    assert set(server.batches.requests.values()) == {1}


@pytest.mark.parametrize("body", ["", "<html>", "[]", "{}", '{"id": 7}', '{"id": "../../files/x"}'])
def test_an_answer_without_an_id_is_looked_up(kind, server, clock, tmp_path, body):
    answering(server, "/batches", (200, body, True))
    with pytest.raises(_batches.BatchOpen):
        run(kind, tmp_path)
    assert run(kind, tmp_path).counts.ok == COUNT
    assert server.batches.count == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_provider_is_asked_again(kind, server, clock, tmp_path, status):
    answering(server, "/batches", (status, "{}", False), (status, "{}", False))
    assert run(kind, tmp_path).counts.ok == COUNT
    assert server.batches.count == 1


@pytest.mark.parametrize("status", [503, 529])
def test_a_batch_that_was_created_although_the_provider_says_it_is_busy_is_found(
    kind, server, clock, tmp_path, status
):
    answering(server, "/batches", (status, "{}", True))
    assert run(kind, tmp_path).counts.ok == COUNT
    assert server.batches.count == 1


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_batch_that_is_refused_at_once_stops_the_run_and_fails_no_record(
    kind, server, clock, tmp_path, status
):
    answering(server, "/batches", (status, '{"error": {"message": "billing limit reached"}}', False))
    with pytest.raises(_batches.BatchFailed, match="billing limit reached") as caught:
        run(kind, tmp_path)
    assert caught.value.exit_code == 3
    assert open_requests(tmp_path) == 0
    assert run(kind, tmp_path).counts.ok == COUNT
    assert set(server.batches.requests.values()) == {1}


@pytest.mark.parametrize("page", ["5", '{"data": 5}', '{"data": {"id": "x"}}', "{}", "[]", "<html>"])
def test_a_list_of_batches_that_cannot_be_read_decides_nothing(kind, server, clock, tmp_path, page):
    server.batches.lose_next = True
    with pytest.raises(_batches.BatchOpen):
        run(kind, tmp_path)
    handle = server.batches.handle

    def broken(request, content):
        from aiohttp import web

        if request.method == "GET" and request.path.endswith("/batches"):
            return web.Response(text=page)
        return handle(request, content)

    server.batches.handle = broken
    with pytest.raises(_batches.BatchOpen):
        run(kind, tmp_path)
    server.batches.handle = handle
    assert run(kind, tmp_path).counts.ok == COUNT
    assert set(server.batches.requests.values()) == {1}


@pytest.mark.parametrize("arrived", [True, False])
def test_the_batch_of_another_user_is_not_taken_for_ones_own(
    server, clock, tmp_path, monkeypatch, arrived, refuses
):
    """Message batches carry no name: another one of the same size, made at the same time, has other requests."""
    monkeypatch.setattr(_batches, "ARRIVAL", 0.0)
    answering(server, "/batches", (500, "{}", False))
    with pytest.raises(_batches.BatchOpen):
        run("anthropic", tmp_path)
    other = [
        {"custom_id": f"other-{n}", "params": {"model": "m", "max_tokens": 1, "messages": []}}
        for n in range(COUNT)
    ]
    post(f"{server.url}/messages/batches", {"requests": other})
    if arrived:
        post(f"{server.url}/messages/batches", {"requests": other})
        with refuses(_batches.BatchOpen):
            run("anthropic", tmp_path)
        return
    done = run("anthropic", tmp_path)
    assert done.counts.ok == COUNT
    assert sum(not each.startswith("other-") for each in server.batches.requests) == COUNT
    assert set(server.batches.requests.values()) == {1}


@pytest.mark.parametrize("request_number", range(1, 8))
def test_a_key_that_expires_at_any_step_of_a_batch_is_printed_again(
    kind, server, clock, tmp_path, monkeypatch, request_number
):
    keys = tmp_path / "keys"
    keys.write_text("first-key-for-tests")
    (tmp_path / "models.yaml").write_text(
        f"mine:\n  model: {PROVIDERS[kind]}\n  api_key_command: cat {keys}\n"
    )
    monkeypatch.setenv("KARAT_MODELS", str(tmp_path / "models.yaml"))
    monkeypatch.setitem(PROVIDERS, kind, "mine")

    class Expiring(list):
        """The keys of the server: the first one until a number of requests have come."""

        asked = 0

        def __contains__(self, key):
            self.asked += 1
            if self.asked == request_number:
                keys.write_text("second-key-for-tests")
                self[:] = ["second-key-for-tests"]
            return super().__contains__(key)

    server.keys, server.batches.polls = Expiring(["first-key-for-tests"]), 3
    assert run(kind, tmp_path).counts.ok == COUNT
    assert set(server.batches.requests.values()) == {1}


def test_requests_that_come_while_others_are_being_sent_go_into_the_next_batch(
    kind, server, clock, tmp_path, monkeypatch
):
    sending, added = threading.Event(), threading.Event()
    handle, add, places = server.batches.handle, _batches.Batches._add, []

    def slow(request, content):
        if request.method == "POST" and request.path.endswith("/batches") and not sending.is_set():
            sending.set()
            assert added.wait(60)
        return handle(request, content)

    def noted(self, waiting):
        add(self, waiting)
        places.append(waiting)
        if len(places) == COUNT:
            added.set()

    server.batches.handle = slow
    monkeypatch.setattr(_batches.Batches, "_add", noted)

    async def answer(input):
        if input != "q0":
            assert await asyncio.to_thread(sending.wait, 60)
        return (await models.get(PROVIDERS[kind]).generate(input)).text

    data = karat.Dataset.from_examples([{"id": str(n), "input": f"q{n}"} for n in range(COUNT)], name="d")
    done = karat.run(answer, data, store=tmp_path / "k.db", batch=True)
    assert [output.value for output in done.outputs()] == [f"q{n}" for n in range(COUNT)]
    assert set(server.batches.requests.values()) == {1}


def test_an_intent_that_is_being_sent_by_another_process_is_not_taken_away(tmp_path):
    first, second = (_batches.BatchLog(_batches.connect(tmp_path / "replies.db")) for _ in range(2))
    intent = first.intend("place", ["aa", "bb"])
    assert second.intend("place", ["bb"]) is None, "it is claimed"
    read = second.read(intent.id)
    assert first.renew(intent.id)
    assert not second.withdraw(read), "it was renewed since it was read"
    assert second.withdraw(second.read(intent.id))
    assert not first.renew(intent.id), "it may not be sent any more"
    assert second.intend("place", ["aa", "bb"]) is not None


def test_an_intent_is_looked_up_beyond_the_first_page(kind, server, clock, tmp_path):
    server.batches.lose_next = True
    with pytest.raises(_batches.BatchOpen):
        run(kind, tmp_path)
    ((name, batch),) = server.batches._batches.items()
    counts = {"total": 1, "completed": 1, "failed": 0}
    for number in range(250):
        other = f"{name}_later_{number}"
        server.batches._batches[other] = {**batch, "id": other, "metadata": None, "request_counts": counts}
    assert run(kind, tmp_path).counts.ok == COUNT
    assert set(server.batches.requests.values()) == {1}


def test_a_batch_that_the_provider_does_not_know_stops_the_run(kind, server, clock, tmp_path):
    """As with the key of another account: the batch is not given up."""
    server.batches.lose_next = True
    with pytest.raises(_batches.BatchOpen):
        run(kind, tmp_path)
    server.batches.requests.clear()
    with sqlite3.connect(tmp_path / "replies.db") as file:
        file.execute("UPDATE batches SET batch='batch_gone'")
    handle = server.batches.handle

    def unknown(request, content):
        from aiohttp import web

        if request.path.endswith("batch_gone"):
            return web.json_response(
                {"error": {"message": "No batch found", "code": "not_found"}}, status=404
            )
        return handle(request, content)

    server.batches.handle = unknown
    with pytest.raises(_batches.BatchOpen, match="KARAT_CACHE"):
        run(kind, tmp_path)
    assert open_requests(tmp_path) == COUNT
    assert not server.batches.requests


@pytest.mark.parametrize("arrived", [True, False])
def test_an_intent_of_another_key_is_neither_submitted_again_nor_given_up(
    kind, server, clock, tmp_path, monkeypatch, arrived
):
    """Each account lists its own batches only: not to find one there does not mean that it never arrived."""
    monkeypatch.setattr(_batches, "ARRIVAL", 0.0)
    handle, accounts = server.batches.handle, {}

    def by_account(request, content):
        from aiohttp import web

        key = request.headers.get("Authorization") or request.headers.get("x-api-key")
        listed = request.method == "GET" and request.path.endswith("/batches")
        if listed and accounts.setdefault("first", key) != key:
            return web.json_response({"data": [], "has_more": False})
        accounts.setdefault("first", key)
        if request.method == "POST" and request.path.endswith("/batches") and not arrived:
            request.transport.abort()
            return web.Response()
        return handle(request, content)

    server.batches.handle = by_account
    server.batches.lose_next = arrived
    with pytest.raises(_batches.BatchOpen):
        run(kind, tmp_path)
    variable = f"{kind.upper()}_API_KEY"
    monkeypatch.setenv(variable, "the-key-of-another-account")
    with pytest.raises(_batches.BatchOpen, match="another key") as stopped:
        run(kind, tmp_path)
    assert stopped.value.exit_code == 3
    assert open_requests(tmp_path) == COUNT
    with sqlite3.connect(tmp_path / "replies.db") as file:
        stored = file.execute("SELECT place FROM batches").fetchone()[0]
    assert "key-for-tests" not in stored
    monkeypatch.setenv(variable, "a-key-for-tests")
    arrived = True
    assert run(kind, tmp_path).counts.ok == COUNT
    assert set(server.batches.requests.values()) == {1}


# Kills ----------------------------------------------------------------------------

PROGRAM = """
    import os, sys
    import karat
    from karat.models import _batches, _cache
    from karat.tasks.prompt import PromptTask

    model, store, step = sys.argv[1:]
    _batches.SETTLED, _batches.FIRST_POLL, _batches.LONGEST_POLL, _batches.ARRIVAL = 0.05, 0.02, 0.02, 0.2

    def die_at(place, name, before=False, after=0):
        real, count = getattr(place, name), [0]
        def dying(self, *arguments, **options):
            count[0] += 1
            if before and count[0] > after:
                os._exit(9)
            result = real(self, *arguments, **options)
            if not before and count[0] > after:
                if name == "commit":
                    self.flush()
                os._exit(9)
            return result
        setattr(place, name, dying)

    log, client = _batches.BatchLog, _batches._Client
    steps = {
        "before the intent": lambda: die_at(log, "intend", before=True),
        "after the intent": lambda: die_at(log, "intend"),
        "after the upload": lambda: die_at(client, "_create", before=True),
        "after the creation": lambda: die_at(log, "submitted", before=True),
        "after the id is stored": lambda: die_at(log, "submitted"),
        "while polling": lambda: (
            die_at(_batches._OpenAI, "ended"), die_at(_batches._Anthropic, "ended")
        ),
        "while downloading": lambda: die_at(client, "_lines", before=True),
        "after half of the results": lambda: die_at(_cache.ReplyCache, "commit", after=4),
        "before the intent is forgotten": lambda: die_at(log, "forget", before=True),
        "after the intent is forgotten": lambda: die_at(log, "forget"),
    }
    steps.get(step, lambda: None)()
    data = karat.Dataset.from_examples([{"id": str(n), "input": f"q{n}"} for n in range(10)], name="d")
    run = karat.run(PromptTask("{input}", model=model), data, store=store, batch=True, wait=True)
    print(run.counts.ok, [output.value for output in run.outputs()] == [f"q{n}" for n in range(10)])
"""

STEPS = (
    "before the intent",
    "after the intent",
    "after the upload",
    "after the creation",
    "after the id is stored",
    "while polling",
    "while downloading",
    "after half of the results",
    "before the intent is forgotten",
    "after the intent is forgotten",
)


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_loses_nothing_and_submits_nothing_twice(kind, server, tmp_path, step):
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), PROVIDERS[kind], str(tmp_path / "k.db")]
    first = subprocess.run([*command, step], env=os.environ, capture_output=True, text=True, check=False)
    assert first.returncode == 9, first.stderr
    second = subprocess.run([*command, ""], env=os.environ, capture_output=True, text=True, check=False)
    assert second.stdout.split() == ["10", "True"], second.stderr
    assert set(server.batches.requests.values()) == {1}
    assert len(server.batches.requests) == 10
    assert server.batches.count == 1
    assert open_requests(tmp_path) == 0
