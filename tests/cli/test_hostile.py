"""Text from datasets, tasks and errors cannot steer the terminal, in any command and at any width."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata

import pytest

from karat.cli import main
from karat.layout import display_width
from tests.hostile import HOSTILE

SGR = re.compile(r"\x1b\[(0|1|2|31|32|33|1;32)m")
"""The only sequences that karat writes itself."""
PROGRESS = re.compile(r"\r[^\n]*")
COMMANDS = [
    ["show", "first"],
    ["show", "first", "--limit", "100", "--sort", "score"],
    ["show", "first", "--failed"],
    ["show", "first", "--details"],
    ["show", "evil"],
    ["compare", "first", "second", "--examples", "30"],
    ["rank", "first", "second", "--metric", "exact_match"],
    ["report", "first", "second"],
    ["ls"],
    ["ls", "runs", "--label", HOSTILE[15]],
    ["show", HOSTILE[15]],
    ["show", "first", "--example", HOSTILE[15]],
    ["show", "first", "--where", f"a~{HOSTILE[15]}"],
]


class Screen(io.TextIOWrapper):
    """A terminal that keeps what is written to it, as text and as bytes."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined]  # a BytesIO


@pytest.fixture
def evil(karat, folder):
    rows = [
        {"id": f"{n} {text}"[:1000], "input": text, "expected": text, "metadata": {text[:50] or "x": text}}
        for n, text in enumerate(HOSTILE)
    ]
    (folder / "evil.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "task.py").write_text(
        "def echo(text, end='', fail=''):\n"
        "    if fail and fail in text:\n"
        "        raise ValueError(text)\n"
        "    return text + end\n"
    )
    base = ["run", "task.py:echo", "--data", "evil.jsonl", "-e", "exact_match"]
    karat(*base, "--label", "first", "--param", "fail=x1b", "--description", HOSTILE[15])
    karat(*base, "--label", "second", "--param", f"end={HOSTILE[15]}", "--param", "fail=red")
    return folder


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("colour", [False, True])
def test_nothing_steers_the_terminal(evil, monkeypatch, width, colour):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "" if colour else "1")
    monkeypatch.setenv("TERM", "xterm")
    for command in COMMANDS:
        out, err = Screen(), Screen()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = main(command)
        assert code in (0, 1, 2), err.text
        shown = out.text + PROGRESS.sub("", err.text)
        plain = SGR.sub("", shown)
        if not colour:
            assert plain == shown
        bad = {c for c in plain if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert bad <= {"\u200c", "\u200d"}, command
        if code == 0 and width >= 80:
            assert max(map(display_width, SGR.sub("", out.text).splitlines())) <= width, command


NUL = "a\0b"


@pytest.mark.parametrize(
    "command",
    [
        ["run", f"{NUL}.py:f", "--data", "qa.jsonl"],
        ["run", "task.py:shout", "--data", f"{NUL}.jsonl"],
        ["run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "-e", f"{NUL}.py:f"],
        ["run", f"{NUL}.yaml"],
        ["run", "nul.yaml"],
        ["run", "--recorded", NUL, "--data", "qa.jsonl"],
        ["export", "latest", "-o", f"{NUL}.csv"],
        ["report", "latest", "-o", f"{NUL}.md"],
        ["graph", "eval/classification/demo", "--out", f"{NUL}.svg"],
        ["graph", NUL],
        ["init", NUL],
        ["ls", "--store", NUL],
        ["ls", "--store", "sqlite:///a%00b.db"],
    ],
)
def test_a_nul_in_a_path_is_one_sentence(karat, project, command, says):
    karat("run", "experiment.yaml")
    (project / "nul.yaml").write_text(
        'dataset: "a\\0b.jsonl"\ntask: "a\\0b.py:f"\nevaluators: ["a\\0b.py:f"]\n'
    )
    said = karat(*command)
    assert said.code == 2
    assert "bug" not in said.err
    says(said.err)
