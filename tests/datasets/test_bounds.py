"""Readers bound their memory: compressed bombs, endless lines, huge values."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from karat.datasets import Dataset
from karat.datasets.readers import csv, parquet, rows
from karat.datasets.readers import json as json_reader
from karat.errors import DataError
from karat.tasks import RecordedOutputs

ROW = 1 << 16


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rows, json_reader, csv, parquet):
        monkeypatch.setattr(module, "MAX_ROW", ROW)
    monkeypatch.setattr(json_reader, "_CHUNK", ROW // 4)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("line.jsonl", b'{"input": "' + b"a" * 2 * ROW + b'"}\n'),
        ("line.jsonl.gz", b'{"input": "' + b"a" * 2 * ROW + b'"}\n'),
        ("endless.jsonl.gz", b"0" * 20 * ROW),
        ("spaces.jsonl.gz", b" " * 20 * ROW),
        ("value.json", b'[{"input": "' + b"a" * 9 * ROW + b'"}]'),
        ("value.json.gz", b'[{"input": "' + b"a" * 9 * ROW),
        ("line.csv", b"input\n" + b"a" * 2 * ROW + b"\n"),
        ("line.tsv.gz", b"input\n" + b"a" * 20 * ROW),
    ],
)
def test_a_row_without_end_is_refused(
    tmp_path: Path, small: None, name: str, content: bytes, refuses
) -> None:
    with refuses(DataError):
        Dataset.from_file(write(tmp_path / name, content))


def test_rows_up_to_the_bound_are_read(tmp_path: Path, small: None) -> None:
    text = "a" * (ROW - 100)
    lines = "".join(json.dumps({"input": text}) + "\n" for _ in range(3)).encode()
    assert [len(example.input) for example in Dataset.from_file(write(tmp_path / "a.jsonl.gz", lines))] == [
        len(text)
    ] * 3
    assert len(Dataset.from_file(write(tmp_path / "a.json", json.dumps([{"input": text}] * 3).encode()))) == 3


def test_a_row_group_that_decompresses_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses
) -> None:
    table = pyarrow.table({"input": ["a" * 1_000 + str(i) for i in range(2_000)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    assert (tmp_path / "a.parquet").stat().st_size < 1_000_000
    monkeypatch.setattr(parquet, "MAX_GROUP", 1_000_000)
    with refuses(DataError):
        Dataset.from_file(tmp_path / "a.parquet")


@pytest.mark.parametrize("encoded", [False, True])
def test_rows_that_are_many_times_larger_than_their_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoded: bool, refuses
) -> None:
    """A dictionary holds a value once that every row refers to."""
    texts = pyarrow.array(["a" * 10_000] * 2_000)
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"input": texts.dictionary_encode() if encoded else texts}), path
    )
    assert len(Dataset.from_file(path)) == 2_000
    monkeypatch.setattr(parquet, "MAX_GROUP", 5_000_000)
    with refuses(DataError):
        Dataset.from_file(path)


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("kind", ["text", "list", "struct"])
def test_rows_that_refer_to_a_dictionary_are_refused_before_most_of_them_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, encoded: bool, refuses
) -> None:
    """2 GiB of rows in a file of 3 kB took 30 s until they were refused."""
    texts = pyarrow.array(["small"] * 5 + ["a" * 10_000] * 2_000)
    texts = texts.dictionary_encode() if encoded else texts
    column = {
        "text": lambda: texts,
        "list": lambda: pyarrow.ListArray.from_arrays(
            pyarrow.array(range(len(texts) + 1), pyarrow.int32()), texts
        ),
        "struct": lambda: pyarrow.StructArray.from_arrays([texts], ["part"]),
    }[kind]()
    pyarrow.parquet.write_table(pyarrow.table({"input": column}), tmp_path / "a.parquet")
    monkeypatch.setattr(parquet, "SUSPICIOUS", 1_000_000)
    monkeypatch.setattr(parquet, "MAX_ROW", 100_000)  # how much is converted at once
    read = []
    with (tmp_path / "a.parquet").open("rb") as file:
        for row in parquet.read_parquet(file, "a.parquet"):
            read.append(row)
        assert len(read) == 2_005
        del read[:]
        monkeypatch.setattr(parquet, "MAX_GROUP", 5_000_000)
        with refuses(DataError):
            for row in parquet.read_parquet(file, "a.parquet"):
                read.append(row)
        assert len(read) < 200


@pytest.mark.parametrize("encoded", [False, True])
def test_a_row_of_parquet_is_bounded_like_any_other(
    tmp_path: Path, small: None, encoded: bool, refuses
) -> None:
    """The first rows are short, so that many are read at once; then one is too long."""
    texts = pyarrow.array(["a", "b", "c" * (ROW - 100), "d" * 2 * ROW])
    path = tmp_path / "a.parquet"
    for count in (3, 4):
        column = texts[:count].dictionary_encode() if encoded else texts[:count]
        pyarrow.parquet.write_table(pyarrow.table({"input": column}), path)
        if count == 3:
            assert [len(example.input) for example in Dataset.from_file(path)] == [1, 1, ROW - 100]
    with refuses(DataError):
        Dataset.from_file(path)


def test_a_value_that_many_rows_share_is_not_copied_for_all_of_them_at_once(
    tmp_path: Path, small: None
) -> None:
    table = pyarrow.table({"input": ["a" * (ROW // 4)] * 2_000})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", use_dictionary=True)
    assert (tmp_path / "a.parquet").stat().st_size < ROW
    pool = pyarrow.default_memory_pool()
    before = pool.bytes_allocated()
    peak = 0
    with (tmp_path / "a.parquet").open("rb") as file:
        for count, (_, row) in enumerate(parquet.read_parquet(file, "a.parquet"), 1):
            peak = max(peak, pool.bytes_allocated() - before)
            assert len(row["input"]) == ROW // 4
            if count == 50:
                break
    assert peak < 100 * ROW


@pytest.mark.parametrize(
    "text", ['{"input": "\\ud800"}', '{"input": {"a": ["x", "\\udc00x"]}}', '{"\\ud800": 1}']
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_lone_surrogate_in_a_file_is_named(tmp_path: Path, text: str, name: str) -> None:
    content = f"[{text}]" if name == "a.json" else text
    with pytest.raises(DataError, match=r"line 1.*lone surrogate"):
        Dataset.from_file(write(tmp_path / name, content.encode()))


class TestRecordedOutputs:
    def test_a_line_without_end_is_refused(self, tmp_path: Path, small: None, refuses) -> None:
        with refuses(DataError):
            RecordedOutputs(write(tmp_path / "r.jsonl", b'{"id": 1, "output": "' + b"a" * 2 * ROW + b'"}'))

    def test_the_field_of_the_output_may_be_named(self, tmp_path: Path, refuses) -> None:
        from karat.records import Example
        from karat.tasks import Context

        def call(task: RecordedOutputs, id: str) -> Any:
            example = Example(id, "q")
            return task.call(example, Context("run", example, 1, 1, {}))

        lines = [
            {
                "id": "a",
                "messages": [{"role": "user", "content": "hi"}],
                "result": {"text": "x"},
                "output": "wrong",
            },
            {"id": "b", "messages": None, "result": {"text": "y"}},
            {"id": "c", "error": "timeout"},
        ]
        file = write(tmp_path / "traces.jsonl", "\n".join(map(json.dumps, lines)).encode())
        task = RecordedOutputs(file, output="messages")
        assert task.name == "traces"
        assert call(task, "a") == [{"role": "user", "content": "hi"}]
        assert call(task, "b") is None
        with pytest.raises(Exception, match="timeout"):
            call(task, "c")
        assert call(RecordedOutputs(file, output="result.text"), "b") == "y"
        assert task.configuration() != RecordedOutputs(file, output="result.text").configuration()
        with refuses(DataError):
            RecordedOutputs(file, output="mesages")
