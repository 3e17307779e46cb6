"""Recorded outputs: a run reports those that it does not use, and loses none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import karat
from karat.tasks.recorded import RecordedOutputs

EXAMPLES = [{"id": f"q{number}", "input": number} for number in range(2)]


def recorded(folder: Path, lines: list[dict[str, Any]]) -> RecordedOutputs:
    path = folder / "rec.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RecordedOutputs(path)


@pytest.mark.parametrize(
    ("strange", "said"),
    [
        ([], ""),
        (["q99"], "rec.jsonl: 1 of 3 records belongs to no example (q99)"),
        (["q99", "q98"], "rec.jsonl: 2 of 4 records belong to no example (q99, q98)"),
        (
            [f"x{n}" for n in range(9)],
            "rec.jsonl: 9 of 11 records belong to no example (x0, x1, x2, x3, x4, …)",
        ),
    ],
)
def test_records_that_belong_to_no_example_are_named(tmp_path: Path, strange: list[str], said: str) -> None:
    task = recorded(tmp_path, [{"id": id, "output": 1} for id in ["q0", "q1", *strange]])
    run = karat.run(task, karat.Dataset.from_examples(EXAMPLES, name="few"), store="memory://")
    assert run.notice == said
    assert run.counts.ok == 2


def test_records_of_attempts_that_nobody_asked_for_are_named(tmp_path: Path) -> None:
    lines = [{"id": f"q{n}", "attempt": attempt, "output": n} for n in range(2) for attempt in (1, 2)]
    task = recorded(tmp_path, lines)
    data = karat.Dataset.from_examples(EXAMPLES, name="few")
    with karat.open_store("memory://") as store:
        once = karat.run(task, data, store=store)
        assert once.notice == "rec.jsonl: 2 of 4 records are of later attempts than attempts=1 asks for"
        assert karat.run(task, data, store=store, attempts=2).notice == ""


def test_records_outside_the_selection_belong_to_an_example(tmp_path: Path) -> None:
    task = recorded(tmp_path, [{"id": "q0", "output": 0}, {"id": "q1", "output": 1}])
    data = karat.Dataset.from_examples(EXAMPLES, name="few")
    assert karat.run(task, data, store="memory://", limit=1).notice == ""
