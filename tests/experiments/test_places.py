"""All mistakes in an experiment are reported together, each with the line of the wrong value."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from karat.errors import ConfigError
from karat.experiments import read_experiment
from tests.golden_messages import Says


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    for name in ("KARAT_STORE", "KARAT_MODEL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "qa.jsonl").write_text('{"id": "a", "input": "x", "expected": "X"}\n')
    (tmp_path / "loud.py").write_text("def loud(text, end=''):\n    return text.upper() + end\n")
    return tmp_path


def problems(text: str) -> list[str]:
    Path("experiment.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_experiment("experiment.yaml")
    return caught.value.problems


def places(text: str, says: Says) -> list[str]:
    """The line and key of each mistake; the sentences are in the golden file."""
    found = problems(text)
    says(*found)
    return [": ".join(problem.split(": ")[:2]) for problem in found]


def test_a_matrix_over_a_prompt(says: Says) -> None:
    assert places(
        "dataset: qa.jsonl\n"
        "task: {prompt: '{input}'}\n"
        "matrix:\n"
        "  model: [openai/a, lokal/x, 5]\n"
        "  temprature: [0, 1]\n"
        "  temperature:\n"
        "    - 0\n"
        "    - hot\n",
        says,
    ) == [
        "line 4: matrix.model[1]",
        "line 4: matrix.model[2]",
        "line 5: matrix.temprature",
        "line 8: matrix.temperature[1]",
    ]


def test_a_matrix_over_a_function_and_what_is_wrong_with_the_function(says: Says) -> None:
    assert places(
        "dataset: qa.jsonl\ntask:\n  function: loud.py:loud\n  params:\n    ed: '!'\nmatrix:\n  endd: [a, b]\n",
        says,
    ) == ["line 5: task.params.ed", "line 7: matrix.endd"]
    assert places("dataset: qa.jsonl\ntask: lod.py:loud\nmatrix: {model: [lokal/x]}\n", says) == [
        "line 2: task",
        "line 3: matrix.model[0]",
    ]


def test_models_and_the_file_of_the_dataset(says: Says) -> None:
    assert places(
        "dataset:\n  input: input\n  path: qx.jsonl\ntask:\n  prompt: '{input}'\n  model: lokal/x\n", says
    ) == ["line 3: dataset.path", "line 6: task.model"]
    assert places("dataset: qa.jsonl\ntask: loud.py:lod\nmodels:\n  - openai/a\n  - lokal/x\n", says) == [
        "line 2: task",
        "line 5: models[1]",
    ]


def test_parameters_of_evaluators_and_aggregators(says: Says) -> None:
    assert places(
        "dataset: qa.jsonl\n"
        "task: loud.py:loud\n"
        "evaluators:\n"
        "  - name: contains\n"
        "    params:\n"
        "      substring: x\n"
        "      case_sensitiv: true\n"
        "aggregators:\n"
        "  - name: accuracy\n"
        "    params:\n"
        "      treshold: 1\n",
        says,
    ) == ["line 7: evaluators[0].params.case_sensitiv", "line 11: aggregators[0].params.treshold"]
