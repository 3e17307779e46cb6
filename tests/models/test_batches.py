"""Batch APIs: half the price, results in any order, failures by row, and no request submitted twice."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import karat
from karat import models
from karat.cli import main
from karat.errors import BudgetReached
from karat.execution import pipeline
from karat.models import _batches
from karat.tasks.prompt import PromptTask
from karat.testing import Failing, FakeProvider

MODELS = {
    "chat": ("openai", "gpt-4o-mini", "chat"),
    "responses": ("openai", "gpt-4.1", "responses"),
    "anthropic": ("anthropic", "claude-haiku-4-5", "anthropic"),
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(_batches, "SETTLED", 0.05)
    monkeypatch.setattr(_batches, "FIRST_POLL", 0.01)
    monkeypatch.setattr(_batches, "LONGEST_POLL", 0.05)
    monkeypatch.setattr(_batches, "ARRIVAL", 0.0)


@pytest.fixture(params=list(MODELS))
def batched(request, monkeypatch):
    """`(server, task)`: a prompt for a provider with a batch API."""
    provider, model, api = MODELS[request.param]
    with FakeProvider(batch_polls=2) as server:
        for name in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{name}_BASE_URL", server.url)
            monkeypatch.setenv(f"{name}_API_KEY", "a-key-for-tests")

        def task(**parameters):
            return PromptTask("{input}", model=f"{provider}/{model}", api=api, **parameters)

        yield server, task


@pytest.fixture
def sync_task(monkeypatch):
    """`(server, function)`: a function that is not async and asks a provider with a batch API."""
    with FakeProvider(batch_polls=2) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key-for-tests")
        yield server, lambda input: models.get("openai/gpt-4o-mini").generate_sync(input).text


def questions(count):
    return karat.Dataset.from_examples([{"id": str(n), "input": f"q{n}"} for n in range(count)], name="d")


def test_a_run_is_one_batch_at_half_the_price(batched, tmp_path):
    server, task = batched
    run = karat.run(task(), questions(25), store=tmp_path / "k.db", batch=True)
    assert (run.counts.ok, run.status) == (25, "success")
    assert [output.value for output in run.outputs()] == [f"q{n}" for n in range(25)]
    assert server.batches.count == 1
    assert set(server.batches.requests.values()) == {1}
    (usage,) = run.header.usage.values()
    full = models.get(task().model.spec).endpoint.price
    output = next(iter(run.outputs()))
    tokens = output.trace[0].usage
    expected = (tokens.input_tokens * full.input + tokens.output_tokens * full.output) / 1e6 / 2
    assert tokens.cost == pytest.approx(expected)
    assert usage.cost == pytest.approx(expected * 25)


def test_cached_requests_are_not_submitted(batched, tmp_path):
    server, task = batched
    karat.run(task(), questions(5), store=tmp_path / "k.db", batch=True)
    again = karat.run(task(), questions(8), store=tmp_path / "other.db", batch=True)
    assert again.counts.ok == 8
    assert sorted(server.batches.requests.values()) == [1] * 8


def test_a_row_that_fails_fails_its_record_alone(batched, tmp_path):
    server, task = batched
    server.script.failures = {3: Failing(status=400, message="a bad question")}
    run = karat.run(task(), questions(6), store=tmp_path / "k.db", batch=True)
    assert (run.counts.ok, run.counts.failed) == (5, 1)
    (failed,) = [output for output in run.outputs() if output.value is None]
    assert failed.outcome.error.type in ("BadRequest", "ServerFailed")
    again = karat.run(task(), questions(6), store=tmp_path / "k.db", batch=True, retry_failed=True)
    assert again.counts.ok == 6
    assert sorted(server.batches.requests.values()) == [1, 1, 1, 1, 1, 2]


def test_ids_are_derived_from_the_cache_key_and_fit_the_provider(batched, tmp_path):
    server, task = batched
    karat.run(task(), questions(3), store=tmp_path / "k.db", batch=True)
    models.close()  # replies are written behind
    with sqlite3.connect(os.environ["KARAT_CACHE"]) as file:
        keys = {key.hex() for (key,) in file.execute("SELECT key FROM replies")}
    assert set(server.batches.requests) <= keys
    assert all(len(each) == 40 and each.isalnum() for each in server.batches.requests)


def test_repairs_go_into_follow_up_batches_with_a_warning(batched, tmp_path, caplog):
    server, task = batched
    server.script.answers = lambda body: '{"a": 1}' if "corrected" in str(body) else '{"a": "one"}'
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    with caplog.at_level(logging.WARNING, "karat.models"):
        run = karat.run(task(schema=schema), questions(3), store=tmp_path / "k.db", batch=True)
    assert [output.value for output in run.outputs()] == [{"a": 1}] * 3
    assert server.batches.count == 2
    assert "follow-up requests" in caplog.text


def test_an_agent_submits_a_follow_up_batch_for_each_turn_with_a_warning(batched, tmp_path, caplog):
    server, task = batched
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    called = {"tool_calls": [{"name": "add", "arguments": {}}]}
    server.script.answers = lambda body: "three" if "what add said" in str(body) else called
    model = task().model

    async def agent(input):
        messages = [{"role": "user", "content": input}]
        reply = await model.generate(messages, tools=[tool])
        result = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "what add said"}
        return (await model.generate([*messages, reply.message, result], tools=[tool])).text

    with caplog.at_level(logging.WARNING, "karat.models"):
        run = karat.run(agent, questions(3), store=tmp_path / "k.db", batch=True)
    assert [output.value for output in run.outputs()] == ["three"] * 3
    assert server.batches.count == 2
    assert "follow-up requests" in caplog.text


def test_the_commands_run_and_evaluate_send_their_calls_in_batches_at_half_the_price(
    batched, tmp_path, monkeypatch, capsys
):
    """One batch for the run and one for its judge; the same commands again submit nothing."""
    server, task = batched
    monkeypatch.chdir(tmp_path)
    model = task().model
    verdict = json.dumps({"analysis": "It is right.", "pass": True})
    server.script.answers = lambda body: _given(body, verdict) if "criterion" in str(body).lower() else "yes"
    (tmp_path / "q.jsonl").write_text("".join(f'{{"id": "{n}", "q": "question {n}"}}\n' for n in range(4)))
    (tmp_path / "e.yaml").write_text(
        "dataset: {path: q.jsonl, input: q, id: id}\n"
        f"task: {{prompt: '{{input}}', model: {model.spec}, api: {model.endpoint.api}}}\n"
    )
    judge = {"model": model.spec, "api": model.endpoint.api}
    evaluator = json.dumps({"name": "llm_judge", "params": {"criterion": "A criterion.", "judge": judge}})
    store = ["--store", "sqlite:///k.db", "--json"]
    for _ in range(2):
        assert main(["run", "e.yaml", "--batch", *store]) == 0
        assert main(["evaluate", "latest", "-e", evaluator, "--batch", *store]) == 0
        assert server.batches.count == 2
    assert sorted(server.batches.requests.values()) == [1] * 8
    capsys.readouterr()
    (evaluation,) = karat.open_store("sqlite:///k.db").evaluations.list()
    (usage,) = evaluation.header.usage.values()
    price = model.endpoint.price
    full = (usage.input_tokens * price.input + usage.output_tokens * price.output) / 1e6
    assert usage.cost == pytest.approx(full / 2)


def _given(body, text):
    """The text, or the arguments of the tool that is forced."""
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "tool":
        return {"text": "", "tool_calls": [{"name": choice["name"], "arguments": json.loads(text)}]}
    return text


@pytest.mark.parametrize(("requests", "size", "count"), [(4, 1 << 20, 3), (1000, 1000, 5), (1000, 1, 10)])
def test_a_batch_is_split_at_the_limits_of_requests_and_bytes(
    batched, tmp_path, monkeypatch, requests, size, count
):
    server, task = batched
    monkeypatch.setattr(_batches, "LIMITS", {"openai": (requests, size), "anthropic": (requests, size)})
    assert karat.run(task(), questions(10), store=tmp_path / "k.db", batch=True).counts.ok == 10
    assert server.batches.count == count
    assert set(server.batches.requests.values()) == {1}


def test_a_submission_whose_answer_is_lost_is_found_again(batched, tmp_path):
    """The intent is stored before it is sent: the provider's list says that it arrived."""
    server, task = batched
    server.batches.lose_next = True
    with pytest.raises(_batches.BatchOpen) as caught:
        karat.run(task(), questions(5), store=tmp_path / "k.db", batch=True)
    assert caught.value.exit_code == 3
    run = karat.run(task(), questions(5), store=tmp_path / "k.db", batch=True)
    assert run.counts.ok == 5
    assert server.batches.count == 1
    assert set(server.batches.requests.values()) == {1}


def test_an_intent_that_never_arrived_is_submitted_again(batched, tmp_path, folder):
    server, task = batched
    port = server.port
    server.batches.lose_next = True
    with pytest.raises(_batches.BatchOpen):
        karat.run(task(), questions(5), store=tmp_path / "k.db", batch=True)
    server.batches._batches.clear()  # as if it had not arrived
    server.batches.requests.clear()
    run = karat.run(task(), questions(5), store=tmp_path / "k.db", batch=True)
    assert (run.counts.ok, server.port) == (5, port)
    assert set(server.batches.requests.values()) == {1}


def test_two_batches_that_may_be_meant_stop_the_run(monkeypatch, tmp_path):
    with FakeProvider() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-for-tests")
        task = PromptTask("{input}", model="anthropic/claude-haiku-4-5")
        server.batches.lose_next = True
        with pytest.raises(_batches.BatchOpen):
            karat.run(task, questions(2), store=tmp_path / "k.db", batch=True)
        twin = dict(next(iter(server.batches._batches.values())), id="msgbatch_2")
        server.batches._batches["msgbatch_2"] = twin
        with pytest.raises(_batches.BatchOpen, match="msgbatch_2, msgbatch_1") as caught:
            karat.run(task, questions(2), store=tmp_path / "k.db", batch=True)
        assert caught.value.exit_code == 3
        assert sorted(server.batches.requests.values()) == [1, 1]


def test_a_budget_covers_batches(batched, tmp_path):
    _, task = batched
    with pytest.raises(BudgetReached):
        karat.run(task(max_tokens=100), questions(5), store=tmp_path / "k.db", batch=True, budget=1e-9)


def test_a_provider_without_a_batch_api_stops_the_run(provider, tmp_path, monkeypatch, refuses):
    monkeypatch.setenv("GROQ_BASE_URL", provider.url)
    task = PromptTask("{input}", model="groq/x")
    with refuses(models.ParameterRefused):
        karat.run(task, questions(3), store=tmp_path / "k.db", batch=True)
    assert provider.count == 0


PROGRAM = """
    import sys, karat
    from karat.models import _batches
    from karat.tasks.prompt import PromptTask
    _batches.SETTLED, _batches.FIRST_POLL, _batches.LONGEST_POLL = 0.05, 0.05, 0.05
    data = karat.Dataset.from_examples([{"id": str(n), "input": f"q{n}"} for n in range(30)], name="d")
    run = karat.run(PromptTask("{input}", model=sys.argv[1]), data, store=sys.argv[2], batch=True, wait=True)
    print(run.counts.ok)
"""


@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "anthropic/claude-haiku-4-5"])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_kill_and_resume_during_a_batch_submits_no_request_twice(model, ending, tmp_path):
    with FakeProvider.in_process(batch_polls=40) as server:
        environment = {
            **os.environ,
            "OPENAI_BASE_URL": server.url,
            "ANTHROPIC_BASE_URL": server.url,
            "OPENAI_API_KEY": "a-key-for-tests",
            "ANTHROPIC_API_KEY": "a-key-for-tests",
            "KARAT_CACHE": str(tmp_path / "replies.db"),
        }
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), model, str(tmp_path / "k.db")]
        first = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        while server.stats()["batches"] == 0:
            assert first.poll() is None
        first.send_signal(ending)
        said = first.communicate()[1]
        if ending == signal.SIGINT:
            assert "attach" in said
        second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert second.stdout.strip() == "30", second.stderr
        stats = server.stats()
    assert (stats["batches"], stats["most_batched"], stats["count"]) == (1, 1, 30)
    left = sqlite3.connect(tmp_path / "replies.db").execute("SELECT count(*) FROM batch_requests").fetchone()
    assert left == (0,)


COMMAND = """
    import sys
    from karat.cli import main
    from karat.models import _batches
    _batches.SETTLED, _batches.FIRST_POLL, _batches.LONGEST_POLL = 0.05, 0.05, 0.05
    sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_leaves_the_batch_of_a_command_running_and_says_how_to_come_back(folder):
    """With the exit code of an interrupted command that can be continued; the same command attaches to the batch."""
    (folder / "q.jsonl").write_text("".join(f'{{"id": "{n}", "q": "question {n}"}}\n' for n in range(5)))
    (folder / "e.yaml").write_text(
        "dataset: {path: q.jsonl, input: q, id: id}\ntask: {prompt: '{input}', model: openai/gpt-4o-mini}\n"
    )
    arguments = ["run", "e.yaml", "--batch", "--store", "sqlite:///k.db", "--json"]
    command = [sys.executable, "-c", textwrap.dedent(COMMAND), *arguments]
    with FakeProvider.in_process(batch_polls=40) as server:
        environment = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "a-key-for-tests"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        first = subprocess.Popen(command, env=environment, **pipes)
        while server.stats()["batches"] == 0:
            assert first.poll() is None
            time.sleep(0.02)
        first.send_signal(signal.SIGINT)
        out, said = first.communicate()
        assert first.returncode == 130, said
        assert json.loads(out)["error"]["go_on"].startswith("karat run e.yaml --batch")
        assert "attach" in said
        second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert second.returncode == 0, second.stderr
        assert json.loads(second.stdout)["runs"][0]["counts"]["ok"] == 5
        stats = server.stats()
    assert (stats["batches"], stats["most_batched"], stats["count"]) == (1, 1, 5)


def test_code_that_is_not_async_waits_in_a_bounded_number_of_threads(sync_task, monkeypatch, caplog, says):
    """10,000 threads would keep a machine busy for minutes; what does not fit goes into further batches."""
    server, task = sync_task
    monkeypatch.setattr(pipeline, "BATCH_THREADS", 10)
    with caplog.at_level(logging.WARNING, logger="karat.execution"):
        run = karat.run(task, questions(25), store="memory://", batch=True)
    assert (run.counts.ok, run.status) == (25, "success")
    assert server.batches.count >= 3
    [told] = {record.getMessage() for record in caplog.records if record.name == "karat.execution"}
    says(told)


def test_a_system_without_more_threads_gives_smaller_batches(sync_task, monkeypatch):
    _, task = sync_task
    start, started = threading.Thread.start, []

    def limited(thread):
        if thread.name.startswith("karat-") and thread.name[6:].isdigit():
            if len(started) >= 5:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    run = karat.run(task, questions(12), store="memory://", batch=True)
    assert (run.counts.ok, len(started)) == (12, 5)
