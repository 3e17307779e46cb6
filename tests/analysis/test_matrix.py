"""An experiment with a matrix: one run for each combination, kept and reused, ending in a comparison."""

from __future__ import annotations

import json

import pytest

from karat.cli import main
from karat.errors import ConfigError, RequestError
from karat.experiments import read_experiment
from karat.experiments.checking import combinations_of

TASK = """
def answer(word, times=1, shout=False):
    return (word.upper() if shout else word) * times
"""
EXPERIMENT = """
name: words
dataset:
  - {id: a, input: one, expected: ONE}
  - {id: b, input: two, expected: TWO}
  - {id: c, input: THREE, expected: THREE}
task: answer.py:answer
matrix:
  shout: [false, true]
  times: [1, 2]
evaluators: [exact_match]
aggregators: [accuracy]
"""


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answer.py").write_text(TASK)
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT)
    return path


def test_every_combination_is_a_run_and_the_end_is_a_comparison(experiment, capsys):
    assert main(["run", str(experiment), "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["metadata"]["matrix"] for run in document["runs"]] == [
        {"shout": shout, "times": times} for shout in (False, True) for times in (1, 2)
    ]
    labels = [run["label"] for run in document["comparison"]["runs"]]
    assert labels[3] == "shout=true times=2"
    best = document["comparison"]["differences"][1]["compared"]
    assert (best["wins"], best["losses"]) == (2, 0)


def test_existing_results_are_reused(experiment, capsys):
    assert main(["run", str(experiment), "--quiet"]) == 0
    capsys.readouterr()
    experiment.write_text(EXPERIMENT.replace("[1, 2]", "[1, 2, 3]"))
    assert main(["run", str(experiment), "--json", "--quiet"]) == 0
    notices = [run["notice"] for run in json.loads(capsys.readouterr().out)["runs"]]
    assert sum("already" in notice or "finished" in notice for notice in notices) == 4


def test_a_second_time_nothing_is_computed(experiment, capsys, tmp_path):
    (tmp_path / "answer.py").write_text(
        TASK.replace("    return", "    open('calls', 'a').write('.')\n    return")
    )
    documents = []
    for _ in range(2):
        assert main(["run", str(experiment), "--json", "--quiet"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
        assert len((tmp_path / "calls").read_text()) == 4 * 3
    first, second = documents
    assert [run["id"] for run in first["runs"]] == [run["id"] for run in second["runs"]]
    assert first["comparison"] == second["comparison"]


def test_prompts_and_models_are_combined(tmp_path, monkeypatch):
    path = tmp_path / "experiment.yaml"
    path.write_text(
        """
dataset: [{input: hello}]
task: {prompt: "{input}", model: openai/c}
matrix: {model: [openai/a, openai/b], temperature: [0, 1], prompt: ["Say {input}", "Write {input}"]}
"""
    )
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    plan = read_experiment(path)
    assert [list(p.matrix.values()) for p in plan.runs][:3] == [
        ["openai/a", 0, "Say {input}"],
        ["openai/a", 0, "Write {input}"],
        ["openai/a", 1, "Say {input}"],
    ]
    assert [p.model for p in plan.runs] == ["openai/a"] * 4 + ["openai/b"] * 4
    assert len({json.dumps(p.task.configuration(), sort_keys=True) for p in plan.runs}) == 8


@pytest.mark.parametrize(
    "matrix",
    [
        "{tims: [1]}",
        "{times: 1}",
        "{times: []}",
    ],
)
def test_mistakes_are_reported_with_their_place(experiment, matrix, refuses):
    head, _, rest = EXPERIMENT.partition("matrix:")
    experiment.write_text(f"{head}matrix: {matrix}\nevaluators:{rest.partition('evaluators:')[2]}")
    with refuses(ConfigError):
        read_experiment(experiment)


def test_too_many_combinations_are_refused():
    assert combinations_of({"a": [1, 2], "b": ["x"]}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    with pytest.raises(RequestError, match="10,000 combinations"):
        combinations_of({"a": range(100), "b": range(100)})


def test_models_and_prompts_are_really_asked_once_for_each_combination(tmp_path, monkeypatch, capsys):
    from karat.testing import FakeProvider

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
    with FakeProvider.in_process() as server:
        (tmp_path / "experiment.yaml").write_text(
            f"""
name: asked
dataset:
  - {{id: a, input: one, expected: one}}
  - {{id: b, input: two, expected: two}}
task: {{prompt: "{{input}}"}}
matrix:
  model: ["{server.spec("small")}", "{server.spec("large")}"]
  prompt: ["{{input}}", "Say {{input}}"]
evaluators: [exact_match]
aggregators: [accuracy]
"""
        )
        command = ["run", "experiment.yaml", "--json", "--quiet"]
        assert main(command) == 0
        document = json.loads(capsys.readouterr().out)
        assert server.stats()["count"] == 2 * 2 * 2
        assert main(command) == 0
        capsys.readouterr()
        assert server.stats()["count"] == 2 * 2 * 2
    assert len(document["runs"]) == len(document["comparison"]["runs"]) == 4
    # An echo answers rightly without the word before it, and wrongly with it.
    scores = [
        difference["compared"]["second"]["value"] for difference in document["comparison"]["differences"]
    ]
    assert scores == [0.0, 1.0, 0.0]
    assert main(["report", document["runs"][0]["id"], "--format", "markdown"]) == 0
    page = capsys.readouterr().out
    assert "tokens" in page
    assert "latency" in page.lower() or "seconds" in page.lower()


def test_a_variant_without_results_is_not_taken_for_an_equal_one(experiment, capsys, says):
    experiment.write_text(EXPERIMENT.replace("[1, 2]", "[1, many]"))
    assert main(["run", str(experiment), "--json", "--quiet"]) == 1
    document = json.loads(capsys.readouterr().out)
    (leader,) = document["comparison"]["leaders"]
    labels = {run["id"]: run["label"] for run in document["comparison"]["runs"]}
    assert [labels[run] for run in leader["without_result"]] == [
        "shout=false times=many",
        "shout=true times=many",
    ]
    assert [labels[run] for run in leader["indistinguishable"]] == ["shout=false times=1"]
    (conclusion,) = document["grid"]["conclusions"]
    says(conclusion)
