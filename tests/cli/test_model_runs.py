"""Experiments that ask a model: keys, budgets, kept answers. The provider is on loopback."""

import datetime
import json
import re

import pytest

from karat.execution.progress import ProgressLine
from karat.testing import FakeProvider


@pytest.fixture
def provider():
    with FakeProvider(lambda _: {"text": "ONE", "usage": (100, 4)}) as listening:
        yield listening


@pytest.fixture
def prompt(project, provider):
    """An experiment that asks the provider, which has a price."""
    (project / "models.yaml").write_text(
        f"priced:\n  model: small\n  base_url: {provider.url}\n  prices: {{input: 1000, output: 1000}}\n"
    )
    (project / "prompt.yaml").write_text(
        "dataset: {path: good.jsonl, input: question, expected: answer}\n"
        "task: {prompt: 'Say {input}', model: priced, temperature: 0, max_tokens: 4}\n"
        "evaluators: [exact_match]\n"
        "aggregators: [accuracy]\n"
        "concurrency: 1\n"
    )
    return project


def test_a_prompt_is_asked_and_its_cost_is_reported(karat, prompt, provider):
    said = karat("run", "prompt.yaml")
    assert said.code == 0
    assert re.search(r"priced +4 +0 +400 +16 +\$0\.4160", said.out)
    assert provider.count == 4


@pytest.mark.parametrize("known", [True, False])
def test_a_parameter_that_the_model_refuses_is_one_sentence_and_fails_no_record(karat, prompt, known, says):
    """Before the first record at the provider's own address, otherwise with the first answer."""
    with FakeProvider() as server:
        spec = "anthropic/claude-opus-4-7" if known else server.spec("gpt-5-mini")
        text = (prompt / "prompt.yaml").read_text().replace("model: priced", f"model: '{spec}'")
        (prompt / "prompt.yaml").write_text(text.replace("concurrency: 1", "concurrency: 4"))
        said = karat("run", "prompt.yaml")
        assert said.code == 2
        assert spec in said.err
        says(said.err)
        assert (server.count == 0) is known
        runs = [] if known else karat("ls", "runs", "--json").json["runs"]
        assert [run["counts"]["failed"] for run in runs] == ([] if known else [0])


def test_ls_has_the_cost_of_a_run(karat, prompt):
    karat("run", "prompt.yaml")
    lines = karat("ls", "runs").out.splitlines()
    head, row = next((one, lines[at + 2]) for at, one in enumerate(lines) if one.startswith("id "))
    assert "cost" in head.split()
    assert "$0.4160" in row.split()


def test_several_models_end_with_a_grid_and_the_cost_of_each(karat, prompt, provider):
    with (prompt / "models.yaml").open("a") as file:
        file.write(f"free:\n  model: other\n  base_url: {provider.url}\n  prices: {{input: 0, output: 0}}\n")
    said = karat("run", "prompt.yaml", "--model", "priced", "--model", "free", "--json").json
    assert said["grid"]["variants"] == ["priced", "free"]
    assert [row[0]["indistinguishable"] for row in said["grid"]["cells"]] == [False, True]
    text = karat("run", "prompt.yaml", "--model", "priced", "--model", "free").out
    assert re.search(r"^priced .*\$0\.4160$", text, re.MULTILINE)


def test_runs_that_no_evaluator_can_compare_are_reported_without_a_grid(karat, project):
    (project / "never.py").write_text(
        "import karat\n\n\ndef never(outputs):\n    raise karat.NotApplicable('never')\n"
    )
    (project / "never.yaml").write_text(
        "dataset: {path: good.jsonl, input: question, expected: answer}\n"
        "task: task.py:shout\nmatrix: {end: ['', '!']}\nevaluators: ['never.py:never']\n"
    )
    said = karat("run", "never.yaml", "--json")
    assert "error" not in said.json
    assert len(said.json["runs"]) == 2
    assert "comparison" not in said.json


def test_answers_are_kept_refreshed_or_neither(karat, prompt, provider):
    karat("run", "prompt.yaml")
    karat("run", "prompt.yaml", "--store", "memory://")
    assert provider.count == 4, "kept answers are used"
    karat("run", "prompt.yaml", "--store", "memory://", "--refresh")
    assert provider.count == 8
    karat("run", "prompt.yaml", "--store", "memory://", "--no-cache")
    assert provider.count == 12
    assert karat("models", "cache", "stats", "--json").json["entries"] == 4
    assert karat("models", "cache", "clear", "--json").json == {"cleared": 4}


def test_a_finished_run_says_that_it_was_not_refreshed(karat, prompt, provider, says):
    run = karat("run", "prompt.yaml", "--json").json["runs"][0]["id"]
    said = karat("run", "prompt.yaml", "--refresh")
    told = karat("run", "prompt.yaml", "--refresh", "--json").json["runs"][0]["notice"]
    says(told)
    assert told.startswith(f"run {run} ")
    assert f"karat: {told}\n" in said.err
    assert provider.count == 4
    says(karat("run", "prompt.yaml").err)
    karat("run", "prompt.yaml", "--refresh", "--new")
    assert provider.count == 8


def test_judges_are_asked_again_where_new_answers_are_wanted(karat, prompt, provider, says):
    (prompt / "asking.py").write_text(
        "from karat import models\n"
        "def judge(outputs):\n"
        "    return len(models.get('priced').generate_sync(f'Is {outputs} good?', max_tokens=5).text) > 0\n"
    )
    karat("run", "prompt.yaml")
    first = karat("evaluate", "latest", "-e", "asking.judge", "--json").json
    asked = provider.count
    said = karat("evaluate", "latest", "-e", "asking.judge", "--refresh")
    [told] = [line for line in said.out.splitlines() if "--refresh" in line]
    says(told)
    assert first["id"] in told
    assert provider.count == asked
    again = karat("evaluate", "latest", "-e", "asking.judge", "--refresh", "--new", "--json").json
    assert (again["counts"]["ok"], again["counts"]["reused"]) == (4, 0)
    assert provider.count == asked + 4


def test_a_budget_stops_with_exit_code_3_and_a_larger_one_continues(karat, prompt, provider, says):
    said = karat("run", "prompt.yaml", "--budget", 0.3)
    assert said.code == 3
    says(said.err)
    assert provider.count == 2, "each costs 0.104, and a third could cost more than is left"
    said = karat("run", "prompt.yaml", "--budget", 100, "--json")
    assert said.code == 0
    assert said.json["runs"][0]["counts"]["ok"] == 4
    assert provider.count == 4, "nothing is paid for twice"


def test_a_refused_key_stops_at_once_with_exit_code_3(karat, project, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-1234567890")
    with FakeProvider("ONE", keys=["another"]) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        (project / "prompt.yaml").write_text(
            "dataset: {path: good.jsonl, input: question}\ntask: {prompt: '{input}', model: openai/x}\nconcurrency: 1\n"
        )
        said = karat("run", "prompt.yaml", "--json")
    assert said.code == 3
    assert said.json["error"]["type"] == "CredentialsRefused"
    assert said.json["error"]["go_on"] == "karat run prompt.yaml --json"
    assert "canary" not in said.out + said.err
    assert provider.count == 1


def test_a_password_in_the_command_is_not_repeated():
    from karat.cli import _same_command

    said = _same_command(["run", "x.yaml", "--new", "--store", "postgresql://me:hunter2@host/db"])
    assert "hunter2" not in said
    assert "--new" not in said
    assert "me:***@host/db" in said


def test_weights_that_are_not_here_are_reported_before_the_first_record(karat, project, says):
    (project / "prompt.yaml").write_text(
        "dataset: {path: good.jsonl, input: question}\ntask: {prompt: '{input}', model: local/none.gguf}\n"
    )
    said = karat("run", "prompt.yaml")
    assert said.code == 2
    says(said.err)
    assert not (project / "karat.db").exists()


def test_why_and_how_often_a_call_failed_is_shown_and_exported(karat, project):
    with FakeProvider(rates={"500": 1.0}) as server:
        (project / "models.yaml").write_text(
            f"broken:\n  model: small\n  base_url: {server.url}\n  retries: {{limit: 2, base: 0.0001}}\n"
        )
        (project / "prompt.yaml").write_text(
            "dataset: {path: good.jsonl, input: question, expected: answer}\n"
            "task: {prompt: 'Say {input}', model: broken}\n"
        )
        assert karat("run", "prompt.yaml").code == 1
    run = karat("ls", "runs", "--json").json["runs"][0]["id"]
    rows = [json.loads(line) for line in karat("export", run, "--format", "jsonl").out.splitlines()]
    assert [attempt["status"] for attempt in rows[0]["output_metadata"]["attempts"]] == [500] * 3
    said = karat("show", run, "--example", rows[0]["id"]).out
    assert "broken (2 retries): ServerFailed: broken: injected failure (500)" in said


def test_retries_that_succeed_are_in_the_progress_and_shown_with_the_example(karat, project, monkeypatch):
    """A server that refuses each question once, in answers and in trajectories, and a task that fails twice."""
    lines: list[str] = []
    monkeypatch.setattr(ProgressLine, "__call__", lambda self, progress: lines.append(self.line(progress)))
    (project / "tasks.py").write_text(
        "from collections import Counter\n"
        "import karat\n"
        "seen = Counter()\n"
        "async def steps(text):\n"
        "    reply = await karat.models.get('flaky').generate('steps ' + text)\n"
        "    call = {'name': 'look', 'arguments': '{}'}\n"
        "    return [{'role': 'assistant', 'content': reply.text, 'tool_calls':\n"
        "             [{'id': '1', 'type': 'function', 'function': call}]}]\n"
        "def fails_twice(text):\n"
        "    seen[text] += 1\n"
        "    if seen[text] < 3:\n"
        "        raise ValueError(f'not yet, {seen[text]}')\n"
        "    return text\n"
    )
    with FakeProvider(lambda _: "ONE", failures=dict.fromkeys(range(1, 16, 2), 500)) as server:
        (project / "models.yaml").write_text(
            f"flaky:\n  model: small\n  base_url: {server.url}\n  retries: {{limit: 2, base: 0.0001}}\n"
        )
        (project / "prompt.yaml").write_text(
            "dataset: {path: good.jsonl, input: question}\ntask: {prompt: 'Say {input}', model: flaky}\n"
        )
        data = ["--data", "good.jsonl", "--input", "question"]
        one = ["--concurrency", "1", "--json"]
        for command, retries, shown in [
            (["prompt.yaml"], 4, "flaky (1 retry): ONE"),
            (["tasks.py:steps", *data], 4, "flaky (1 retry): ONE"),
            (["tasks.py:fails_twice", *data, "--retries", "2"], 8, "2 retries"),
        ]:
            lines.clear()
            run = karat("run", *command, *one).json["runs"][0]
            assert run["counts"]["ok"] == 4
            assert f"{retries} retries" in lines[-1], command
            said = karat("show", run["id"], "--example", "q0").out
            assert shown in said, command
    assert "ValueError: not yet, 1" in said
    assert "ValueError: not yet, 2" in said


def test_prices_are_shown_with_their_day_source_and_age(karat, project, monkeypatch):
    day = datetime.date.today() - datetime.timedelta(days=9)
    rows = {"mine/x": {"input": 3, "output": 4, "source": "the contract"}}
    (project / "prices.json").write_text(json.dumps({"date": day.isoformat(), "models": rows}))
    monkeypatch.setenv("KARAT_PRICES", str(project / "prices.json"))
    listed = {each["model"]: each for each in karat("models", "--prices", "--json").json["prices"]}
    mine = listed["mine/x"]
    assert (mine["date"], mine["age_days"], mine["source"]) == (day.isoformat(), 9, "the contract")
    assert all(each["date"] and each["age_days"] is not None for each in listed.values())
    assert all(each["source"] for each in listed.values())
    assert re.search(rf"mine/x +3 +4 .*{day.isoformat()} \(9 days\)", karat("models", "--prices").out)


@pytest.mark.parametrize("content", [b"no database" * 99, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_cache_that_cannot_be_used_stops_the_stage(karat, prompt, provider, monkeypatch, content, says):
    (prompt / "replies.db").write_bytes(content)
    monkeypatch.setenv("KARAT_CACHE", str(prompt / "replies.db"))
    said = karat("run", "prompt.yaml")
    assert (said.code, provider.count) == (3, 0)
    says(said.err)
    (prompt / "replies.db").unlink()
    assert karat("run", "prompt.yaml").code == 0
    assert provider.count == 4
    assert len(karat("ls", "runs", "--json").json["runs"]) == 1, "it was continued"
