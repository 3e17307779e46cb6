"""A prompt as a task, against a provider on loopback."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import karat
from karat.errors import ConfigError, RequestError
from karat.records import Example
from karat.tasks.prompt import PromptTask, template
from karat.testing import FakeProvider


@pytest.fixture
def server():
    """Answers with the last message in capitals; keeps what it was asked."""
    with FakeProvider(lambda body: body["messages"][-1]["content"].upper()) as provider:
        yield provider.spec("echo"), provider.requests


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))


def filled(prompt: str, given: object) -> str:
    return template(prompt)(given)


def test_a_prompt_is_run_like_any_task(server):
    spec, asked = server
    task = PromptTask("Say {word}", model=spec, system="Be loud, {word}", temperature=0, max_tokens=5)
    run = karat.run(task, [{"id": "a", "input": {"word": "hi"}}], store="memory://")
    output = next(run.outputs())
    assert output.value == "SAY HI"
    assert asked[0]["messages"] == [
        {"role": "system", "content": "Be loud, hi"},
        {"role": "user", "content": "Say hi"},
    ]
    assert asked[0]["max_tokens"] == 5
    assert output.trace[0].name == spec
    assert run.header.usage[spec].calls == 1


@pytest.mark.parametrize(
    ("parameters", "requests"),
    [
        ("", 3),
        ("deterministic: true", 1),
        ("temperature: 0", 1),
        ("temperature: 0, deterministic: false", 3),
    ],
)
def test_an_experiment_says_whether_examples_share_an_answer(server, tmp_path, parameters, requests):
    """Models that refuse a temperature are shared by `deterministic`; attempts are asked for apart either way."""
    spec, asked = server
    file = tmp_path / "e.yaml"
    file.write_text(
        "dataset: [{id: a, input: same}, {id: b, input: same}, {id: c, input: same}]\n"
        f"task: {{prompt: 'Say {{input}}', model: '{spec}', {parameters}}}\nconcurrency: 1\n"
    )
    for attempts in (1, 2):
        made = karat.experiment(file, store="memory://", attempts=attempts)
        assert made.runs[0].counts.ok == 3 * attempts
        assert len(asked) == requests * attempts
    assert not any("deterministic" in body for body in asked)


def test_an_experiment_says_the_wire_format_and_streams_and_wants_probabilities(tmp_path):
    chances = [{"token": "yes", "logprob": -0.1, "top_logprobs": []}]
    with FakeProvider({"": {"text": "yes", "logprobs": chances}}) as provider:
        (tmp_path / "e.yaml").write_text(
            "dataset: [{id: a, input: x}]\n"
            f"task: {{prompt: '{{input}}', model: '{provider.spec()}', api: responses, stream: true, logprobs: 2}}\n"
        )
        made = karat.experiment(tmp_path / "e.yaml", store="memory://")
    assert all("/responses" in each for each in provider.counts)
    call = next(made.runs[0].outputs()).trace[0]
    assert call.metadata["first_token_seconds"] > 0
    assert call.metadata["logprobs"][0]["token"] == "yes"


def test_another_model_prompt_or_parameter_is_another_configuration(server):
    spec, _ = server
    base = PromptTask("Say {input}", model=spec)
    others = [
        PromptTask("Tell {input}", model=spec),
        PromptTask("Say {input}", model="openai/other"),
        PromptTask("Say {input}", model=spec, temperature=1),
        PromptTask("Say {input}", model=spec, schema={"type": "object"}),
    ]
    configurations = [json.dumps(task.configuration(), sort_keys=True) for task in (base, *others)]
    assert len(set(configurations)) == 5
    assert base.configuration()["model"] == spec
    assert base.configuration()["base_url"].startswith("http://127.0.0.1")


@pytest.mark.parametrize(
    ("prompt", "given", "expected"),
    [
        ("Say {input}", "hi", "Say hi"),
        ("Say {input}", {"a": 1}, 'Say {"a":1}'),
        ("{a} and {b.c} and {d.1}", {"a": 1, "b": {"c": True}, "d": ["x", "y"]}, "1 and true and y"),
        ("{input.a}", {"a": "x"}, "x"),
        ("{input}", {"input": "the field", "more": 1}, "the field"),
        ('As {"answer": "{input}"}', "x", 'As {"answer": "x"}'),
        ('{"a": {"b": 1}} {} {0} { input } {input}', "x", '{"a": {"b": 1}} {} {0} { input } x'),
        ("{{input}} is {input}", "x", "{input} is x"),
        ("{input}", "{secret} {input}", "{secret} {input}"),
        ("{größe}", {"größe": "groß"}, "groß"),
    ],
)
def test_variables_are_filled_and_other_braces_stay(prompt, given, expected):
    assert filled(prompt, given) == expected


@given(st.text(), st.text(alphabet="{} .0:\"'[]"))
def test_braces_in_an_input_are_not_variables(value, around):
    assert filled(around + " {input} " + around, value) == around + f" {value} " + around


def test_a_variable_that_is_not_there_is_refused(refuses, says):
    task = PromptTask("Say {questoin} to {input}", model="openai/x")
    assert task.variables() == ["questoin", "input"]
    problems = task.check_inputs([Example("a", {"question": "why"})])
    assert len(problems) == 1
    says(problems[0])
    with refuses(RequestError):
        filled("{questoin}", {"question": "why"})


def test_a_prompt_is_refused_only_where_every_example_would_fail():
    task = PromptTask("Say {word}", model="openai/x")
    with_word, without = Example("a", {"word": "why"}), Example("b", {"question": "why"})
    assert task.check_inputs([without, with_word]) == []
    assert len(task.check_inputs([without, without])) == 1
    assert task.check_inputs([]) == []


def test_a_run_whose_every_record_would_fail_asks_nothing_and_leaves_nothing(server, refuses):
    spec, asked = server
    with karat.open_store("memory://") as store:
        with refuses(ConfigError):
            karat.run(PromptTask("Say {wrod}", model=spec), [{"input": {"word": "hi"}}] * 3, store=store)
        assert list(store.runs.list()) == []
        run = karat.run(
            PromptTask("Say {word}", model=spec), [{"input": {"x": 1}}, {"input": {"word": "b"}}], store=store
        )
        assert (run.counts.failed, run.counts.ok) == (1, 1)
        with refuses(ConfigError):  # of the selected examples
            karat.run(PromptTask("Say {word}", model=spec), run.dataset, store=store, limit=1)
    assert len(asked) == 1


def test_a_prompt_that_asks_the_same_of_every_example_is_refused(refuses):
    with refuses(RequestError):
        PromptTask("Say something", model="openai/x")


def test_messages_and_parts():
    prompt = [
        {"role": "system", "content": "You are {persona}"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "{input}"}, {"type": "image_url", "url": "{picture}"}],
        },
    ]
    task = PromptTask(prompt, model="openai/x")
    assert task.variables() == ["persona", "input", "picture"]
    assert template(prompt)({"persona": "a pirate", "picture": "http://x", "input": "hi"}) == [
        {"role": "system", "content": "You are a pirate"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "url": "http://x"}],
        },
    ]
