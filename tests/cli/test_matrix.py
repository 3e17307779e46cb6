"""The runs of a matrix are told apart wherever they are listed: by what differs between them, and shortly."""

from __future__ import annotations

from pathlib import Path

import pytest

LONG = "Answer the question in one word, without a full stop at its end: "


@pytest.fixture
def matrix(project: Path) -> Path:
    path = project / "matrix.yaml"
    path.write_text(
        "dataset: {path: good.jsonl, input: question, expected: answer}\n"
        "task: task.py:shout\n"
        f"matrix: {{end: ['', '{LONG}yes', '{LONG}no']}}\n"
        "evaluators: [exact_match]\n"
        "aggregators: [accuracy]\n"
    )
    return path


def test_check_says_how_many_runs_there_would_be(karat, matrix):
    assert "task shout, 3 runs, 1 evaluator," in karat("run", "matrix.yaml", "--check").out
    assert karat("run", "matrix.yaml", "--check", "--json").json["runs"] == 3
    assert "runs" not in karat("run", "experiment.yaml", "--check").out


def test_the_outcome_and_ls_say_what_differs(karat, matrix):
    said = karat("run", "matrix.yaml").out
    lines = [line for line in said.splitlines() if line.startswith("run run-")]
    labels = ['end=""', "end=…ts end: yes", "end=…ts end: no"]
    assert [line.split("  ")[2] for line in lines] == labels
    rows = [line for line in said.splitlines() if line.startswith("exact_match  accuracy")]
    assert [row.split("  ")[2] for row in rows] == labels
    listed = [line for line in karat("ls", "runs").out.splitlines() if line.startswith("run-")]
    assert [label in line for label, line in zip(labels, listed, strict=True)] == [True] * 3


def test_runs_of_no_matrix_have_no_such_column(karat, project):
    karat("run", "experiment.yaml")
    assert "matrix" not in karat("ls", "runs").out


def test_what_only_follows_from_a_prompt_is_not_told_beside_it(karat, folder):
    from karat.testing import FakeProvider

    with FakeProvider.in_process() as server:
        (folder / "prompts.yaml").write_text(
            "dataset: [{id: a, input: one, expected: one}]\n"
            f'task: {{prompt: "{{input}}", model: "{server.spec("small")}"}}\n'
            'matrix: {temperature: [0, 1], prompt: ["{input}", "Say {input}"]}\n'
            "evaluators: [exact_match]\n"
        )
        document = karat("run", "prompts.yaml", "--json").json
    assert [run["label"] for run in document["comparison"]["runs"]] == [
        "temperature=0.0 prompt={input}",
        "temperature=0.0 prompt=Say {input}",
        "temperature=1.0 prompt={input}",
        "temperature=1.0 prompt=Say {input}",
    ]
    assert "messages" in document["comparison"]["runs"][0]["settings"], "a program sees all that differs"
