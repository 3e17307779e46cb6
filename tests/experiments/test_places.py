"""All mistakes in an experiment are reported together, each with the line of the wrong value."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from karat.errors import ConfigError
from karat.experiments import read_experiment


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


def said(text: str, *expected: str) -> None:
    found = problems(text)
    assert len(found) == len(expected), found
    for problem, beginning in zip(found, expected, strict=True):
        assert problem.startswith(beginning), found


def test_a_matrix_over_a_prompt() -> None:
    said(
        "dataset: qa.jsonl\n"
        "task: {prompt: '{input}'}\n"
        "matrix:\n"
        "  model: [openai/a, lokal/x, 5]\n"
        "  temprature: [0, 1]\n"
        "  temperature:\n"
        "    - 0\n"
        "    - hot\n",
        "line 4: matrix.model[1]: unknown model 'lokal/x'",
        "line 4: matrix.model[2]: 5 is not a model",
        "line 5: matrix.temprature: a prompt has no field 'temprature': did you mean 'temperature'?",
        "line 8: matrix.temperature[1]: must be a valid number",
    )


def test_a_matrix_over_a_function_and_what_is_wrong_with_the_function() -> None:
    said(
        "dataset: qa.jsonl\ntask:\n  function: loud.py:loud\n  params:\n    ed: '!'\nmatrix:\n  endd: [a, b]\n",
        "line 5: task.params.ed: task 'loud.py:loud' has no parameter 'ed': did you mean 'end'?",
        "line 7: matrix.endd: task 'loud.py:loud' has no parameter 'endd': did you mean 'end'?",
    )
    said(
        "dataset: qa.jsonl\ntask: lod.py:loud\nmatrix: {model: [lokal/x]}\n",
        "line 2: task: file not found: lod.py: did you mean loud.py?",
        "line 3: matrix.model[0]: unknown model 'lokal/x'",
    )


def test_models_and_the_file_of_the_dataset() -> None:
    said(
        "dataset:\n  input: input\n  path: qx.jsonl\ntask:\n  prompt: '{input}'\n  model: lokal/x\n",
        "line 3: dataset.path: qx.jsonl does not exist: did you mean 'qa.jsonl'?",
        "line 6: task.model: unknown model 'lokal/x'",
    )
    said(
        "dataset: qa.jsonl\ntask: loud.py:lod\nmodels:\n  - openai/a\n  - lokal/x\n",
        "line 2: task: loud.py has no 'lod'",
        "line 5: models[1]: unknown model 'lokal/x'",
    )


def test_parameters_of_evaluators_and_aggregators() -> None:
    said(
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
        "line 7: evaluators[0].params.case_sensitiv: evaluator 'contains' has no parameter 'case_sensitiv'",
        "line 11: aggregators[0].params.treshold:",
    )
