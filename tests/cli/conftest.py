"""A folder with a small evaluation in it, and a way to call the command line as a person would."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from karat.cli import main


class Said(NamedTuple):
    """What a command returned and wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Karat:
    """`karat("ls", "runs")` runs the command line in this process, in the test's own folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Said:
        self._capsys.readouterr()
        code = main([str(each) for each in arguments])
        captured = self._capsys.readouterr()
        return Said(code, captured.out, captured.err)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    for name in ("KARAT_STORE", "KARAT_MODEL", "OPENAI_MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache" / "replies.db"))
    return tmp_path


@pytest.fixture
def karat(capsys: pytest.CaptureFixture[str]) -> Karat:
    return Karat(capsys)


@pytest.fixture
def project(folder: Path) -> Path:
    """Six questions; the task fails on one and is wrong on another."""
    rows = [
        {"id": f"q{number}", "question": word, "answer": word.upper()}
        for number, word in enumerate(["one", "two", "three", "four", "boom", "wrong"])
    ]
    (folder / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "task.py").write_text(
        "def shout(text, end=''):\n"
        "    if text == 'boom':\n"
        "        raise ValueError('cannot shout \\x1b[31mboom')\n"
        "    return 'no' if text == 'wrong' else text.upper() + end\n"
    )
    (folder / "good.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:4]))
    (folder / "experiment.yaml").write_text(
        "dataset: {path: qa.jsonl, input: question, expected: answer}\n"
        "task: task.py:shout\n"
        "evaluators: [exact_match]\n"
        "aggregators: [accuracy]\n"
    )
    return folder
