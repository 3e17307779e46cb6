"""The runs of a matrix have short, distinct labels in every list, made of the settings that differ."""

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
    labels = ['end=""', "end=…end: yes", "end=…end: no"]
    lines = [line for line in said.splitlines() if " run-" in line]
    assert [label in line for label, line in zip(labels, lines, strict=True)] == [True] * 3
    listed = [line for line in karat("ls", "runs").out.splitlines() if "run-" in line]
    assert [label in line for label, line in zip(labels, listed, strict=True)] == [True] * 3


def test_a_matrix_ends_with_a_grid(karat, matrix):
    document = karat("run", "matrix.yaml", "--json").json["grid"]
    assert document["metrics"] == ["exact_match accuracy ↑"]
    assert document["variants"] == ['end=""', "end=…end: yes", "end=…end: no"]
    assert [row[0]["estimate"]["value"] for row in document["cells"]] == [1.0, 0.0, 0.0]
    assert [row[0]["best"] for row in document["cells"]] == [True, False, False]
    text = karat("run", "matrix.yaml").out
    assert text.index(document["conclusions"][0]) < text.index("★ 1.000 [")


def test_indistinguishable_variants_are_reported(karat, matrix):
    matrix.write_text(matrix.read_text().replace(f"'', '{LONG}yes', '{LONG}no'", "'!', '?'"))
    grid = karat("run", "matrix.yaml", "--json").json["grid"]
    assert [row[0]["indistinguishable"] for row in grid["cells"]] == [False, True]
    assert "not distinguishable" in grid["conclusions"][0]
    assert "≈ not distinguishable" in karat("run", "matrix.yaml").out


def test_runs_of_no_matrix_have_no_such_column(karat, project):
    karat("run", "experiment.yaml")
    assert "matrix" not in karat("ls", "runs").out


def test_consequences_of_a_wrong_prompt_are_not_reported(karat, folder):
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
    assert document["comparison"]["runs"][0]["settings"] == {"temperature": 0.0, "prompt": "{input}"}
