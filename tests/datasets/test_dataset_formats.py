"""Files of every format: the same content is the same dataset, and nothing is loaded whole."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from karat.datasets import Dataset
from karat.datasets.dataset import Dataset as TheDataset
from karat.datasets.readers import json as json_rows
from karat.datasets.readers import parquet as parquet_rows
from karat.errors import DataError, MissingDependency
from karat.records import Example

ROWS = [
    {"question": "2 + 2?", "answer": "4", "topic": "sums"},
    {"question": 'a line\nand, "another"', "answer": "é ☃ 😀", "topic": ""},
    {"question": "2 + 2?", "answer": "4", "topic": "sums"},
]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_json(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(rows, indent=2, ensure_ascii=False), encoding="utf-8")


def write_json_object(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(
        json.dumps({"version": 1, "meta": {"a": [1]}, "data": rows, "end": None}), encoding="utf-8"
    )


def write_csv(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write_tsv(path: Path, rows: list[dict[str, Any]]) -> None:
    write_csv(path, rows, "\t")


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)


def write_gzip(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    "qa.jsonl": write_jsonl,
    "qa.ndjson": write_jsonl,
    "qa.json": write_json,
    "qa.JSON": write_json_object,
    "qa.csv": write_csv,
    "qa.tsv": write_tsv,
    "qa.parquet": write_parquet,
    "qa.jsonl.gz": write_gzip,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_dataset(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, ROWS)
    dataset = Dataset.from_file(tmp_path / name, input="question", expected="answer")
    made = Dataset.from_examples([(r["question"], r["answer"], {"topic": r["topic"]}) for r in ROWS])
    assert dataset.id == made.id
    assert list(dataset) == list(made) == list(dataset)
    assert (dataset.name, dataset.source, len(dataset)) == ("qa", name, 3)
    assert list(dataset.encoded(1)) == list(made.encoded())[1:]


def test_the_order_of_keys_in_a_file_does_not_matter(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ROWS)
    write_jsonl(tmp_path / "b.jsonl", [dict(reversed(row.items())) for row in ROWS])
    assert Dataset.from_file(tmp_path / "a.jsonl").id == Dataset.from_file(tmp_path / "b.jsonl").id


def test_a_format_can_be_given_for_an_unknown_extension(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows", ROWS)
    dataset = Dataset.from_file(str(tmp_path / "rows"), format="jsonl", name="mine")
    assert (len(dataset), dataset.name) == (3, "mine")


def test_jsonl_ignores_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"input": 1}\r\n\r\n  \n{"input": 2}')
    assert [example.input for example in Dataset.from_file(file)] == [1, 2]


def test_rows_need_not_be_objects_when_no_field_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('"text"\n[1, 2]\n7\nnull\n')
    assert [example.input for example in Dataset.from_file(file)] == ["text", [1, 2], 7, None]


def test_a_json_file_is_read_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pieces of a few bytes every value, escape and character is cut somewhere."""
    monkeypatch.setattr(json_rows, "_CHUNK", 3)
    rows = [{"q": [1.5e10, -20, True, None, 'é\\" \u2028 😀' * n]} for n in range(12)] + [
        123456,
        "x" * 50,
        [],
    ]
    text = json.dumps({"name": "n", "rows": rows, "count": 12}, indent=1, ensure_ascii=False)
    file = tmp_path / "a.json"
    file.write_text("\ufeff" + text, encoding="utf-8")
    assert [example.input for example in Dataset.from_file(file)] == rows


def test_big_integers_and_tiny_floats_are_exact(tmp_path: Path) -> None:
    for name, text in [("a.jsonl", '{"input": %d}'), ("a.json", '[{"input": %d}]')]:
        (tmp_path / name).write_text(text % 2**100)
        assert next(iter(Dataset.from_file(tmp_path / name))).input == 2**100


def test_csv_values_stay_text_and_long_fields_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    long = "x" * 200_000
    file.write_text(f'id,input,expected\n007,1.50,\n\n8,"{long}",null\n')
    assert list(Dataset.from_file(file)) == [Example("007", "1.50", None), Example("8", long, "null")]


def test_parquet_values_become_json(tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "input": [{"a": [1, 2]}, None],
            "day": [date(2024, 2, 29), None],
            "time": [datetime(2024, 2, 29, 12, 30), None],
            "price": [Decimal("1.50"), None],
            "raw": [b"\xff", None],
            "score": [0.5, None],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    first, second = Dataset.from_file(tmp_path / "a.parquet")
    assert first.input == {"a": [1, 2]}
    assert first.metadata == {
        "day": "2024-02-29",
        "time": "2024-02-29T12:30:00",
        "price": "1.50",
        "raw": "data:application/octet-stream;base64,/w==",
        "score": 0.5,
    }
    assert second.input is None


def test_parquet_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses
) -> None:
    write_parquet(tmp_path / "a.parquet", ROWS)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with refuses(MissingDependency):
        Dataset.from_file(tmp_path / "a.parquet")


def test_a_parquet_file_is_read_a_batch_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "_BATCH", 2)
    rows = [{"input": n} for n in range(9)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=5)
    assert [example.input for example in Dataset.from_file(tmp_path / "a.parquet")] == list(range(9))


@pytest.mark.parametrize("name", ["big.jsonl", "big.json", "big.csv"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    rows = 40_000
    with file.open("w") as out:
        if name == "big.csv":
            out.write("question,answer\n")
            out.writelines(f"{n} {'x' * 200},{n}\n" for n in range(rows))
        elif name == "big.json":
            out.write(
                "["
                + ",\n".join(f'{{"question": "{n} {"x" * 200}", "answer": {n}}}' for n in range(rows))
                + "]"
            )
        else:
            out.writelines(f'{{"question": "{n} {"x" * 200}", "answer": {n}}}\n' for n in range(rows))
    assert file.stat().st_size > 8_000_000
    Dataset.from_file(file, input="question")  # imports and caches are not the file's
    tracemalloc.start()
    try:
        dataset = Dataset.from_file(file, input="question", expected="answer")
        assert sum(1 for _ in dataset.encoded()) == rows
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6_000_000, "a mebibyte or two of buffers, and some 16 bytes a row"


CHANGES: dict[str, Callable[[Path], object]] = {
    "longer": lambda path: path.write_bytes(path.read_bytes() + path.read_bytes()),
    "shorter": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "same size": lambda path: path.write_bytes(path.read_bytes().replace(b"2 + 2?", b"2 + 3?")),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["qa.jsonl", "qa.json", "qa.csv", "qa.parquet"])
def test_a_file_that_has_changed_is_refused_before_any_row_of_it(
    tmp_path: Path, name: str, change: str, refuses
) -> None:
    file = tmp_path / name
    WRITERS[name](file, ROWS)
    dataset = Dataset.from_file(file, input="question")
    CHANGES[change](file)
    rows = iter(dataset)
    with refuses(DataError):
        next(rows)


def test_a_file_that_was_only_touched_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "qa.jsonl"
    write_jsonl(file, ROWS)
    dataset = Dataset.from_file(file)
    file.write_bytes(file.read_bytes())
    assert len(list(dataset)) == 3


def test_a_change_far_into_the_file_is_found_when_it_is_reached(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"input": "{n:07} {"x" * 100}"}}\n' for n in range(30_000)))
    dataset = Dataset.from_file(file)
    rows = iter(dataset)
    assert next(rows).input.startswith("0000000")
    with file.open("r+b") as out:
        out.seek(-20, 2)
        out.write(b"y")
    with pytest.raises(DataError, match="has changed"):
        list(rows)


def test_the_package_gives_the_dataset_by_name() -> None:
    assert Dataset is TheDataset


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_an_empty_cell_is_no_expected_output(tmp_path, ending):
    """CSV has no null: with an empty text, an evaluator would compare where there is nothing to compare with."""
    mark = {"csv": ",", "tsv": "\t"}[ending]
    file = tmp_path / f"d.{ending}"
    file.write_text("q,a,b\nx,1,2\ny,,2\nz,,\n,1,1\n".replace(",", mark))
    one = Dataset.from_file(file, input="q", expected="a")
    assert [each.expected for each in one] == ["1", None, None, "1"]
    assert [each.input for each in one] == ["x", "y", "z", ""], "only what is expected can be absent"
    assert [each.metadata["b"] for each in one] == ["2", "2", "", "1"]
    both = Dataset.from_file(file, input="q", expected=["a", "b"])
    assert [each.expected for each in both][:3] == [{"a": "1", "b": "2"}, {"a": None, "b": "2"}, None]
    lines = tmp_path / "d.jsonl"
    lines.write_text('{"q": "x", "a": ""}\n')
    assert next(iter(Dataset.from_file(lines, input="q", expected="a"))).expected == ""


@pytest.mark.parametrize(
    ("name", "header"), [("d.csv", "q;a"), ("d.csv", "q\ta"), ("d.csv", "q|a"), ("d.tsv", "q,a")]
)
def test_another_separator_is_named(tmp_path, name, header):
    (tmp_path / name).write_text(f"{header}\n{header}\n")
    with pytest.raises(DataError, match="one column"):
        Dataset.from_file(tmp_path / name, input="q")
