"""What a command says about several runs that failed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import karat
from karat.cli.outcome import MOST_RUNS, next_steps
from karat.formatting import as_text


def answer(text: str, bad: str, error: str) -> str:
    if text in bad:
        raise TimeoutError(error)
    return text


def said(folder: Path, *settings: tuple[str, str]) -> tuple[str, list[karat.Run]]:
    """What is said about a run for each setting: the texts that fail, and why."""
    examples = [{"id": f"q{text}", "input": text} for text in "abc"]
    with karat.open_store(folder / "karat.db") as store:
        runs = [
            karat.run(partial(answer, bad=bad, error=error), examples, store=store, progress=False)
            for bad, error in settings
        ]
        return as_text(next_steps(*runs)), runs


def test_every_failing_run_has_its_cause_and_its_command(tmp_path: Path) -> None:
    text, (first, good, other) = said(tmp_path, ("a", "slow"), ("", "none"), ("bc", "lost"))
    causes = [line for line in text.splitlines() if "TimeoutError" in line]
    assert ["slow" in causes[0], "lost" in causes[1]] == [True, True]
    assert ['"bad": "a"' in causes[0], '"bad": "bc"' in causes[1]] == [True, True]
    commands = [line.split() for line in text.splitlines() if "--failed" in line]
    assert [line[line.index("show") + 1] for line in commands] == [first.id, other.id]
    assert good.id not in text


def test_a_common_cause_is_reported_once(tmp_path: Path, says) -> None:
    text, runs = said(tmp_path, *((bad, "slow") for bad in ("ab", "abb", "abbb", "abbbb", "abbbbb", "ba")))
    assert text.count("TimeoutError") == 1
    says(*[line for line in text.splitlines() if "--failed" not in line])
    assert text.count("--failed") == MOST_RUNS == len(runs) - 1
