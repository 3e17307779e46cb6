"""What the command line prints, word for word, at 80, 120 and 200 columns: tests/cli/golden/NAME.WIDTH.txt.

`UPDATE_GOLDEN=1 pytest tests/cli/test_golden.py` writes the files again; read the difference before you commit it.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from karat.cli import main
from karat.layout import display_width

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (80, 120, 200)

TASK = '''
def answer(question, style="short", sure=True):
    """Wrong about every fourth question in the long style; fails on one."""
    number = int(question.split()[-1].rstrip("?"))
    if number == 7:
        raise ValueError("cannot count \\x1b[31mto seven")
    said = number * 2 + (1 if style == "long" and number % 4 == 0 else 0)
    if style == "long":
        return f"Let me think about that for a moment. Twice {number} is, as far as I can tell, {said}."
    return str(said) if sure else f"{said}?"
'''
RUN = """
name: doubling
dataset: {path: doubles.jsonl, input: question, expected: answer}
task: {function: task.py:answer}
evaluators: [{name: contains, key: right}]
aggregators: [accuracy]
"""
MATRIX = """
name: styles
dataset: {path: doubles.jsonl, input: question, expected: answer}
task: {function: task.py:answer}
matrix: {style: [short, long], sure: [true, false]}
evaluators: [{name: contains, key: right}, {name: edit_distance, key: close}]
aggregators: [accuracy, mean]
"""
MANY = (
    """
name: many metrics
dataset: {path: doubles.jsonl, input: question, expected: answer}
task: {function: task.py:answer}
evaluators:
"""
    + "".join(f"  - {{name: edit_distance, key: closeness_{n:02}}}\n" for n in range(12))
    + "aggregators: [mean]\n"
)


class Screen(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(folder, monkeypatch):
    """A folder with a dataset, a task and experiments, and `screen(width, *command)`, which returns what is shown."""
    topics = ["law", "music", "日本語"]
    rows = [
        {"id": f"q{n}", "question": f"What is twice {n}?", "answer": str(2 * n), "topic": topics[n % 3]}
        for n in range(24)
    ]
    (folder / "doubles.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    (folder / "task.py").write_text(TASK)
    (folder / "run.yaml").write_text(RUN)
    (folder / "matrix.yaml").write_text(MATRIX)
    (folder / "many.yaml").write_text(MANY)
    environment = {"karat": "1.0", "python": "3.11.0", "platform": "linux x86_64"}
    for module in ("execution.run", "execution.evaluate", "execution.aggregate", "analysis.stored_analyses"):
        if hasattr(__import__(f"karat.{module}", fromlist=["environment"]), "environment"):
            monkeypatch.setattr(f"karat.{module}.environment", lambda *_: dict(environment))
    monkeypatch.setattr("karat.execution.run.project_file", lambda path: f"/project/{Path(path).name}")
    for module in ("analysis.comparison", "reporting.rendering"):
        monkeypatch.setattr(f"karat.{module}.seconds_text", lambda _: "0.001")
    monkeypatch.setenv("NO_COLOR", "1")
    names: dict[str, str] = {}

    def stable(found: re.Match[str]) -> str:
        """The same id for the same thing in every run of the tests, and of the same length."""
        kind, random = found.group(1), found.group(2)
        if random not in names:
            names[random] = f"{len(names) + 1:0{len(random)}x}"
        return f"{kind}-{names[random]}"

    def show(width: int, *command: str) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        out, err = Screen(), Screen()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        code = main(list(command))
        monkeypatch.setattr(sys, "stdout", sys.__stdout__)
        monkeypatch.setattr(sys, "stderr", sys.__stderr__)
        notices = re.sub(r"\r.*\n", "", err.getvalue())  # progress, which has times
        text = notices + out.getvalue()
        text = re.sub(r"\b(run|eval|agg)-([0-9a-f]{10})\b", stable, text)
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-01-01 00:00:00", text)
        return f"$ karat {' '.join(command)}\n{text}[exit code {code}]\n"

    return show


Show = Callable[..., str]


def labelled(show: Show) -> None:
    """The runs of the matrix, two of them with labels."""
    show(120, "run", "matrix.yaml", "--quiet")
    listed = json.loads(_json(show, "ls", "runs", "--json"))["runs"]
    show(120, "tag", listed[0]["id"], "baseline")
    show(120, "tag", listed[2]["id"], "candidate")


def _json(show: Show, *command: str) -> str:
    import contextlib

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(list(command))
    return out.getvalue()


def case_run(show: Show, width: int) -> list[str]:
    return [show(width, "run", "run.yaml"), show(width, "run", "run.yaml")]


def case_matrix(show: Show, width: int) -> list[str]:
    return [show(width, "run", "matrix.yaml")]


def case_compare(show: Show, width: int) -> list[str]:
    labelled(show)
    return [
        show(width, "compare", "baseline", "candidate", "--examples", "2"),
        show(
            width,
            "compare",
            "candidate",
            "baseline",
            "--metric",
            "right",
            "--fail-if-worse",
            "right:0.01",
            "--examples",
            "1",
        ),
    ]


def case_show(show: Show, width: int) -> list[str]:
    labelled(show)
    return [
        show(width, "show", "candidate", "--limit", "5"),
        show(width, "show", "candidate", "--failed"),
        show(width, "show", "candidate", "--where", "right<0.5 and topic=law", "--sort", "close"),
        show(width, "show", "candidate", "--grep", "twice 12"),
        show(width, "show", "candidate", "--example", "q8"),
        show(width, "show", "candidate", "--details"),
        show(width, "show", "doubles", "--limit", "3"),
    ]


def case_many_metrics(show: Show, width: int) -> list[str]:
    show(width, "run", "many.yaml", "--quiet", "--label", "many")
    show(width, "run", "run.yaml", "--quiet", "--param", "style=long", "--label", "long")
    return [
        show(width, "show", "many", "--limit", "3"),
        show(width, "show", "many", "--where", "closeness_07<2", "--sort", "closeness_09", "--limit", "2"),
        show(width, "ls", "runs"),
    ]


def case_ls(show: Show, width: int) -> list[str]:
    labelled(show)
    return [
        show(width, "ls"),
        show(width, "ls", "runs", "--label", "candidate"),
        show(width, "ls", "runs", "--task", "answer", "--limit", "2"),
    ]


def case_rank(show: Show, width: int) -> list[str]:
    labelled(show)
    return [show(width, "rank", "baseline", "candidate", "--metric", "right")]


def case_report(show: Show, width: int) -> list[str]:
    labelled(show)
    return [show(width, "report", "baseline", "candidate")]


def case_errors(show: Show, width: int) -> list[str]:
    labelled(show)
    return [
        show(width, "sohw", "baseline"),
        show(width, "show", "basline"),
        show(width, "show", "candidate", "--where", "topc=law"),
        show(width, "show", "candidate", "--where", "score<"),
        show(width, "show", "candidate", "--example", "q99"),
        show(width, "compare", "baseline"),
        show(width, "compare", "baseline", "candidate", "--metric", "wrong"),
        show(width, "ls", "--label", "candidat"),
        show(width, "run", "matrx.yaml"),
        show(width, "tag", "baseline"),
    ]


CASES = {name.removeprefix("case_"): case for name, case in globals().items() if name.startswith("case_")}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CASES)
def test_what_is_printed(screen, name, width):
    text = "\n".join(CASES[name](screen, width))
    assert "\x1b" not in text
    file = GOLDEN / f"{name}.{width}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [name for name in CASES if name != "errors"])
def test_every_line_fits(name, width):
    lines = (GOLDEN / f"{name}.{width}.txt").read_text(encoding="utf-8").splitlines()
    shown = [line for line in lines if not line.startswith(("$ karat", "karat: "))]
    assert max(map(display_width, shown)) <= width


def test_every_golden_file_is_used():
    expected = {f"{name}.{width}.txt" for name in CASES for width in WIDTHS}
    assert {each.name for each in GOLDEN.iterdir()} == expected
