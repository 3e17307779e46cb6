"""The summary of a comparison before its statistics: differing settings and changed examples."""

from __future__ import annotations

import msgspec
import pytest

import karat
from karat.analysis.comparison import compare, served_warnings, setting_differences
from karat.records import Call, Usage, usage_of
from karat.tasks import FunctionTask, PromptTask
from karat.testing import FakeProvider

LONG = "The answer, after much thought about the question and about its many possible meanings, is: "


@pytest.fixture
def runs(store):
    """Ten examples; the second run is right on q0, q1 and q2 and wrong on q3, both fail on q9."""
    rows = [{"id": f"q{n}", "input": f"question {n}", "expected": f"{LONG}{n}"} for n in range(10)]
    data = karat.Dataset.from_examples(rows, name="ten")

    def answer(text, wrong=()):
        number = int(text.split()[1])
        if number == 9:
            raise ValueError("no nine")
        return f"{LONG}{'x' if number in wrong else number}"

    tasks = [FunctionTask(answer, parameters={"wrong": wrong}) for wrong in ([0, 1, 2], [3])]
    made = [karat.run(task, data, store=store, progress=False) for task in tasks]
    karat.evaluate(made, ["exact_match"])
    return made


def test_changes_are_counted_in_both_directions(runs):
    made = compare(runs, examples=2)
    [difference] = made.differences
    changed = difference.changed
    assert (changed.better, changed.worse, changed.same, changed.missing) == (3, 1, 5, 1)
    assert [each.example for each in made.worse] == ["q3"]
    assert [each.example for each in made.better] == ["q0", "q1"]
    text = made.report()
    assert "1 of 1" in text
    assert "2 of 3" in text


def test_outputs_are_shown_around_their_difference(runs):
    text = compare(runs).report()
    assert "is: [-3-]" in text
    assert "is: {+x+}" in text


def test_with_many_metrics_few_changed_examples_of_each_are_shown(runs, says):
    made, replace = compare(runs, examples=5), msgspec.structs.replace
    names = [f"metric{number:02}" for number in range(12)]
    many = replace(
        made,
        differences=[replace(made.differences[0], evaluator=name) for name in names],
        worse=[replace(each, metric=name) for name in names for each in made.worse],
        better=[replace(each, metric=name) for name in names for each in made.better],
    )
    text = many.report()
    assert text.count("(better)") == text.count("(worse)") == 10
    says(*[line for line in text.splitlines() if "examples" in line])
    assert made.report().count("(better)") == 3


def test_the_report_begins_with_what_differs(runs):
    made = compare(runs)
    assert [(each.aspect, each.name) for each in made.differs] == [("parameter", "wrong")]
    text = made.report()
    places = [
        text.index(part) for part in ("[0, 1, 2] → [3]", made.conclusions[0], "missing", "got worse", "p95")
    ]
    assert places == sorted(places)


def test_code_commit_environment_and_served_models_are_compared(runs):
    first = runs[0].header
    served = Usage(calls=2, served={"m-0613": 2})
    other = msgspec.structs.replace(
        first,
        code="0123456789abcdef",
        environment={**first.environment, "git_commit": "f" * 40, "python": "2.7"},
        usage={"openai/m": msgspec.structs.replace(served, served={"m-0914": 2})},
    )
    first = msgspec.structs.replace(first, usage={"openai/m": served})
    found = {(each.aspect, each.name) for each in setting_differences([first, other], ["d@1", "d@2"])}
    assert found >= {
        ("code", "code"),
        ("code", "commit"),
        ("environment", "python"),
        ("served model", "served model"),
        ("dataset", "dataset"),
    }
    assert served_warnings([first, other], {}) == []


def test_a_changed_prompt_is_shown_by_its_words():
    data = [{"id": str(n), "input": f"q{n}", "expected": "q1"} for n in range(4)]
    prompts = ("Answer: {input}", "Answer in one word: {input}")
    store = karat.open_store("memory://")
    with FakeProvider() as server:
        tasks = [PromptTask(prompt, model=server.spec("m")) for prompt in prompts]
        made = [karat.run(task, data, store=store) for task in tasks]
        report = compare(made, evaluators=["exact_match"]).report()
    [changed] = setting_differences([run.header for run in made], ["d", "d"])
    assert (changed.name, changed.values) == ("prompt", list(prompts))
    assert report.index(f"prompt  {prompts[0]} → {prompts[1]}") < report.index("conclusion")


def test_two_served_models_within_one_run_are_a_warning(runs):
    trace = [
        Call(kind="model", name="openai/m", usage=Usage(calls=1), metadata={"served_model": name})
        for name in ("m-0613", "m-0914", "m-0914")
    ]
    usage = usage_of(trace)
    assert usage["openai/m"].served == {"m-0613": 1, "m-0914": 2}
    header = msgspec.structs.replace(runs[0].header, usage=usage)
    [warning] = served_warnings([header], {})
    assert "m-0613 (1 call)" in warning


def test_the_served_model_is_stored_with_a_run(store, tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    with FakeProvider.in_process() as server:
        model = server.spec("small")

        async def ask(text):
            return (await karat.models.get(model).generate(text)).text

        run = karat.run(ask, [{"id": "a", "input": "hello"}], store=store)
    [usage] = run.header.usage.values()
    assert sum(usage.served.values()) == 1
