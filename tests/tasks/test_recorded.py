"""Recorded outputs: a run reports those that it does not use, and loses none."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

import karat
from karat.errors import DataError, RequestError
from karat.tasks.recorded import RecordedOutputs

EXAMPLES = [{"id": f"q{number}", "input": number} for number in range(2)]


def recorded(folder: Path, lines: list[dict[str, Any]]) -> RecordedOutputs:
    path = folder / "rec.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RecordedOutputs(path)


@pytest.mark.parametrize(
    "strange",
    [
        [],
        ["q99"],
        ["q99", "q98"],
        [f"x{n}" for n in range(9)],
    ],
)
def test_records_that_belong_to_no_example_are_named(tmp_path: Path, strange: list[str], says) -> None:
    task = recorded(tmp_path, [{"id": id, "output": 1} for id in ["q0", "q1", *strange]])
    run = karat.run(task, karat.Dataset.from_examples(EXAMPLES, name="few"), store="memory://")
    assert bool(run.notice) == bool(strange)
    says(run.notice)
    assert run.counts.ok == 2


def test_records_of_attempts_that_nobody_asked_for_are_named(tmp_path: Path, says) -> None:
    lines = [{"id": f"q{n}", "attempt": attempt, "output": n} for n in range(2) for attempt in (1, 2)]
    task = recorded(tmp_path, lines)
    data = karat.Dataset.from_examples(EXAMPLES, name="few")
    with karat.open_store("memory://") as store:
        once = karat.run(task, data, store=store)
        says(once.notice)
        assert karat.run(task, data, store=store, attempts=2).notice == ""


def test_records_outside_the_selection_belong_to_an_example(tmp_path: Path) -> None:
    task = recorded(tmp_path, [{"id": "q0", "output": 0}, {"id": "q1", "output": 1}])
    data = karat.Dataset.from_examples(EXAMPLES, name="few")
    assert karat.run(task, data, store="memory://", limit=1).notice == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("o.csv", "id,output\n"),
        ("o.csv", "id,output\n1,2\n1,3\n"),
        ("o.csv", "id,output\n1,2\n2\n"),
        ("o.csv", "id,attempt,output\n1,first,2\n"),
        ("o.json", "[1]"),
        ("o.jsonl", "\n\n"),
        ("o.jsonl", "id,output\n"),
        ("o.jsonl", '[{"id": 1, "output": 2}]\n'),
        ("o.jsonl", '{"question_id": 1, "output": 2}\n'),
        ("o.jsonl", '{"id": 1.5, "output": 2}\n'),
        ("o.jsonl", '{"id": true, "output": 2}\n'),
        ("o.csv", "id,prediction\n1,2\n"),
        ("o.jsonl", ""),
    ],
)
def test_files_that_are_no_recorded_outputs(tmp_path, name, text, refuses):
    (tmp_path / name).write_text(text)
    with refuses(DataError):
        RecordedOutputs(tmp_path / name)


CELLS = [
    {"id": "q0", "attempt": "1", "answer": "4, or so", "error": ""},
    {"id": "q0", "attempt": "2", "answer": "zwölf\n", "error": ""},
    {"id": "q1", "attempt": "", "answer": "", "error": ""},
    {"id": "q1", "attempt": "2", "answer": "", "error": "refused"},
]


@pytest.mark.parametrize("name", ["o.csv", "o.tsv", "o.json", "o.csv.gz", "o.parquet", "o.jsonl"])
def test_other_formats_give_the_same_outputs(tmp_path, name):
    rows = [
        {
            "id": cell["id"],
            "attempt": int(cell["attempt"] or 1),
            "answer": cell["answer"],
            "error": cell["error"] or None,
        }
        for cell in CELLS
    ]
    path = tmp_path / name
    if ".csv" in name or ".tsv" in name:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(CELLS[0]), delimiter="\t" if ".tsv" in name else ",")
        writer.writeheader()
        writer.writerows(CELLS)
        data = text.getvalue().encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    elif name.endswith(".parquet"):
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text(
            json.dumps(rows) if name == "o.json" else "".join(json.dumps(row) + "\n" for row in rows)
        )
    task = RecordedOutputs(path, output="answer")
    run = karat.run(task, EXAMPLES, store="memory://", attempts=2, progress=False)
    assert task.name == "o"
    assert [output.value for output in run.outputs()] == ["4, or so", "zwölf\n", "", None]
    assert (run.counts.ok, run.counts.failed) == (3, 1)


@pytest.mark.parametrize(
    ("name", "text", "id"),
    [
        ("o.csv", "qid,output\nq0,a\nq1,b\n", "qid"),
        (
            "o.jsonl",
            '{"id": "x", "of": {"q": "q0"}, "output": "a"}\n{"id": "x", "of": {"q": "q1"}, "output": "b"}\n',
            "of.q",
        ),
    ],
)
def test_the_id_may_have_another_name(tmp_path: Path, name: str, text: str, id: str) -> None:
    (tmp_path / name).write_text(text)
    task = RecordedOutputs(tmp_path / name, id=id)
    run = karat.run(task, EXAMPLES, store="memory://", progress=False)
    assert [output.value for output in run.outputs()] == ["a", "b"]
    assert run.notice == ""
    assert task.configuration()["id"] == id  # other ids are other outputs, and so another run


def test_a_field_of_no_name_is_refused(tmp_path: Path, refuses) -> None:
    (tmp_path / "o.jsonl").write_text('{"id": 1, "output": 2}\n')
    with refuses(RequestError):
        RecordedOutputs(tmp_path / "o.jsonl", id="")
    with refuses(RequestError):
        RecordedOutputs(tmp_path / "o.jsonl", output="")


def test_a_file_that_is_not_there_has_a_near_name(tmp_path):
    (tmp_path / "outputs.jsonl").write_text('{"id": 1, "output": 2}\n')
    with pytest.raises(DataError, match=r"outputs\.jsonl"):
        RecordedOutputs(tmp_path / "output.jsonl")
    with pytest.raises(DataError, match="folder"):
        RecordedOutputs(tmp_path)


def test_a_byte_order_mark_is_not_part_of_the_first_record(tmp_path):
    (tmp_path / "o.jsonl").write_bytes(
        b'\xef\xbb\xbf{"id": "q1", "output": 2}\r\n{"id": "q2", "output": 3}\r\n'
    )
    run = karat.run(RecordedOutputs(tmp_path / "o.jsonl"), [{"id": "q1", "input": 0}], store="memory://")
    assert [output.value for output in run.outputs()] == [2]
