"""Bad files: one clear sentence each, naming the file, the place, the reason and the remedy."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.datasets import BadRow, Dataset
from karat.datasets.readers import json as json_rows
from karat.errors import DataError, KaratError, RequestError

BAD_FILES: list[tuple[str, bytes, str]] = [
    ("empty.jsonl", b"", r"empty\.jsonl is empty"),
    ("blank.jsonl", b"\n \n", r"blank\.jsonl is empty"),
    ("none.json", b"[ ]", r"none\.json is empty"),
    ("space.json", b"  \n", r"space\.json is empty"),
    ("blank.csv", b"\n\n", r"blank\.csv is empty"),
    ("mark.csv", b"\xef\xbb\xbf", r"mark\.csv is empty"),
    ("header.csv", b"question,answer\n", r"header\.csv .*no rows"),
    (
        "a.jsonl",
        b'{"input": 1}\n' * 16 + b'{"input": 1,}\n',
        r"a\.jsonl line 17, column 1[23]: not JSON: .*comma",
    ),
    ("b.jsonl", b'{"input": 1}\n{"input": "x\n', r"line 2, column 11: not JSON: .*closing quote"),
    (
        "control.jsonl",
        b'{"input": "x\0y"}',
        r"line 1, column 13: not JSON: .*U\+0000",
    ),
    ("comma.jsonl", b'{"input": 1},\n{"input": 2}', r"line 1, column 13: not JSON: .*comma"),
    ("quotes.jsonl", b"{'input': 1}", r"line 1, column 2: not JSON: .*double quotes"),
    ("python.jsonl", b'{"input": True}', r"line 1, column 11: not JSON: .*true"),
    ("comment.jsonl", b'{"input": 1} // one', r"line 1, column 14: not JSON: .*comments"),
    ("c.jsonl", b'{"input": NaN}', r"line 1, column 11: not JSON: NaN"),
    ("d.jsonl", b'{"input": ["NaN", -Infinity]}', r"line 1, column 19: not JSON: -Infinity"),
    ("e.jsonl", b'{"input": 1e999}', r"line 1, column 11: not readable: .*'1e999'"),
    ("f.jsonl", b'{"input": "\\ud800"}', r"line 1, column 11: .*lone surrogate"),
    ("g.jsonl", b'{"input": 1} {"input": 2}', r"line 1, column 14: not JSON: "),
    ("h.jsonl", b'{"input": ' + b"9" * 9000 + b"}", r"line 1, column 1: .*digits"),
    ("i.jsonl", b"[" * 200_000 + b"]" * 200_000, r"line 1, column 1: .*nested"),
    ("j.jsonl", b'[\n{"input": 1}\n]', r"line 1, column 2: .*format='json'"),
    (
        "k.jsonl",
        '{"input": "é"}\n{"x": "é'.encode() + b'\xe9"}',
        r"line 2, column 9: byte 0xe9 at offset 25 .*UTF-8",
    ),
    (
        "l.jsonl",
        '{"input": 1}'.encode("utf-16"),
        r"line 1: .*UTF-16",
    ),
    ("l2.jsonl", '{"input": 1}'.encode("utf-16-le"), r"line 1: .*UTF-16"),
    ("l3.jsonl", '{"input": 1}'.encode("utf-32"), r"line 1: .*UTF-32"),
    ("l4.jsonl", '{"input": 1}'.encode("utf-32-be"), r"line 1: .*UTF-32"),
    ("l.csv", "input,expected\n1,2\n".encode("utf-16-be"), r"line 1: .*UTF-16"),
    (
        "m.jsonl",
        gzip.compress(b'{"input": 1}'),
        r"m\.jsonl .*gzip: .*\.gz",
    ),
    ("n.jsonl.gz", gzip.compress(b'{"input": 1}' * 99)[:-12], r"n\.jsonl\.gz .*intact gzip"),
    ("o.jsonl.gz", b'{"input": 1}', r"o\.jsonl\.gz .*intact gzip"),
    ("a.json", b'[{"input": 1},\n {"input": 2},]', r"a\.json line 2, column 15: not JSON: "),
    ("b.json", b'[{"input": 1}\n {"input": 2}]', r"line 2, column 2: not JSON: .*','"),
    (
        "c.json",
        b'[{"input": 1},\n {"input": 2}',
        r"line 2, column 14: not JSON: .*','",
    ),
    (
        "d.json",
        b'[{"input": 1},\n {"input":\n 1,}]',
        r"line 3, column [34]: not JSON: .*comma",
    ),
    ("e.json", b'[{"input": 1},\n {"input":\n [0, NaN]}]', r"line 3, column 6: not JSON: NaN"),
    ("f.json", b"[1, Infinity]", r"line 1, column 5: not JSON: Infinity"),
    ("g.json", b'"text"', r"line 1, column 1: .*single value"),
    ("h.json", b'{"a": [1], "b": [2]}', r"column 17: .*'a' and 'b'"),
    ("i.json", b'{"a": 1}', r"no array"),
    ("j.json", b"{}", r"no array"),
    ("k.json", b'{"input": 1}\n{"input": 2}\n', r"no array .*\.jsonl"),
    ("l.json", b"[1]\n[2]", r"line 2, column 1: .*the end"),
    (
        "m.json",
        b'[1,\n"\xe9"]',
        r"m\.json line 2, column 2: byte 0xe9 at offset 5 .*UTF-8",
    ),
    ("n.json", b"[" * 200_000, r"n\.json line 1, column 2: .*nested"),
    ("o.json", b"[" + b"9" * 9000 + b"]", r"o\.json line 1, column 2: .*digits"),
    ("p.json", b'{"a" [1]}', r"column 6: not JSON: .*':'"),
    ("q.json", b'{"a": [1], 3}', r"column 12: not JSON: .*double quotes"),
    ("s.json", b'{"a": [1],}', r"column 11: not JSON: .*double quotes"),
    ("r.json", b'["\xc3', r"column 3: byte 0xc3 at offset 2 .*UTF-8"),
    ("a.csv", b"a,b\n1,2\n3\n", r"a\.csv line 3: .*1 column, .*2"),
    ("b.csv", b'a,b\n"x\ny",2\n3,4,5\n', r"b\.csv line 4: .*3 columns, .*2"),
    ("c.csv", b'a,b\n1,2\n3,"x\n4,5\n', r"line 3: unclosed quote"),
    ("d.csv", b'a,b\n"x"y,2\n', r"line 2: .*closing quote"),
    ("e.csv", b"a,b\r1,2\r", r"line 1: .*carriage return"),
    ("f.csv", b"a,b,a\n1,2,3\n", r"line 1: .*'a'"),
    (
        "g.csv",
        b"a,b\n1,2\n\xc3\xa9,\xe9\n",
        r"line 3, column 3: byte 0xe9 at offset 11 .*UTF-8",
    ),
    ("h.csv", b"a,\xe9\n1,2\n", r"line 1, column 3: byte 0xe9 at offset 2"),
    ("a.parquet", b"PAR1 and nothing else", r"a\.parquet .*intact Parquet"),
    ("a.parquet.gz", gzip.compress(b"x"), r"compressed Parquet"),
    (
        "a.yaml",
        b"- input: 1",
        r"a\.yaml: .*'\.yaml' .*\(csv, json, jsonl, parquet",
    ),
    ("a.jsnl", b"1", r"'\.jsnl' .*'\.jsonl'"),
    ("noending", b"1", r"noending: .*no ending"),
]


@pytest.mark.parametrize(
    ("name", "content", "named"), BAD_FILES, ids=[f"{f[0]}-{f[2][:24]}" for f in BAD_FILES]
)
def test_a_bad_file_is_refused_with_one_sentence(
    tmp_path: Path, name: str, content: bytes, named: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=named) as caught:
        Dataset.from_file(tmp_path / name)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400 + len(str(tmp_path)) * 2
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("size", [1, 2, 5, 17])
def test_places_are_right_wherever_a_json_file_is_cut(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rows, "_CHUNK", size)
    for name, content, named in BAD_FILES:
        if name.endswith(".json") and len(content) < 100:
            (tmp_path / name).write_bytes(content)
            with pytest.raises(DataError, match=named):
                Dataset.from_file(tmp_path / name)


def test_a_missing_file_names_the_nearest(tmp_path: Path, refuses) -> None:
    (tmp_path / "questions.jsonl").write_text("1")
    with refuses(DataError):
        Dataset.from_file(tmp_path / "qestions.jsonl")
    with refuses(DataError):
        Dataset.from_file(tmp_path / "questions.json1")
    with refuses(DataError):
        Dataset.from_file(tmp_path / "other.csv")
    with refuses(DataError):
        Dataset.from_file(tmp_path / "nowhere" / "a.jsonl")


def test_a_path_that_is_not_a_regular_file_is_refused(tmp_path: Path, refuses) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with refuses(DataError):
        Dataset.from_file(tmp_path / "folder.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with refuses(DataError):
        Dataset.from_file(tmp_path / "pipe.jsonl")
    with refuses(DataError):
        Dataset.from_file("a\0b.jsonl")
    with refuses(RequestError):
        Dataset.from_file(3)  # type: ignore[arg-type]


def test_an_unknown_format_names_the_nearest(tmp_path: Path, refuses) -> None:
    (tmp_path / "a.txt").write_text("1")
    with refuses(RequestError):
        Dataset.from_file(tmp_path / "a.txt", format="jsonlines")


def test_two_rows_with_one_id_name_both_lines(tmp_path: Path, refuses) -> None:
    file = tmp_path / "ids.jsonl"
    file.write_text('{"id": "a", "input": 1}\n{"id": "b", "input": 1}\n\n{"id": "a", "input": 2}\n')
    with refuses(DataError):
        Dataset.from_file(file)
    file.write_text('{"id": "1", "input": 1}\n{"id": 1, "input": 2}\n')
    with refuses(DataError):
        Dataset.from_file(file, skip_bad_rows=True)
    csv = tmp_path / "ids.csv"
    csv.write_text('id,input\na,"two\nlines"\nb,1\na,2\n')
    with refuses(DataError):
        Dataset.from_file(csv)


def test_two_rows_of_one_line_with_the_same_id(tmp_path: Path, refuses) -> None:
    file = tmp_path / "ids.json"
    file.write_text('[{"id": "a", "input": 1}, {"id": "b", "input": 2}, {"id": "a", "input": 3}]')
    with refuses(DataError):
        Dataset.from_file(file)


def test_two_rows_of_parquet_with_one_id_name_both_rows(tmp_path: Path, refuses) -> None:
    pyarrow.parquet.write_table(
        pyarrow.table({"id": [5, 6, 5], "input": [1, 2, 3]}), tmp_path / "ids.parquet"
    )
    with refuses(DataError):
        Dataset.from_file(tmp_path / "ids.parquet")


def test_nan_in_parquet_names_the_row_and_the_field(tmp_path: Path, refuses) -> None:
    table = pyarrow.table({"input": [1, 2], "score": [0.5, float("nan")]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with refuses(DataError):
        Dataset.from_file(tmp_path / "a.parquet")
    dataset = Dataset.from_file(tmp_path / "a.parquet", skip_bad_rows=True)
    assert ([e.input for e in dataset], dataset.skipped_count) == ([1], 1)


def test_two_parquet_columns_with_one_name_are_refused(tmp_path: Path, refuses) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with refuses(DataError):
        Dataset.from_file(tmp_path / "a.parquet")


def test_skip_bad_rows_counts_and_lists_them(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"q": 1}\n{"q": \n{"x": 2}\n\xff\n[3]\n{"q": 4}\n')
    dataset = Dataset.from_file(file, input="q", skip_bad_rows=True)
    assert [example.input for example in dataset] == [1, 4]
    assert len(dataset) == 2
    assert dataset.skipped_count == 4
    assert [(bad.line, bad.column) for bad in dataset.skipped] == [(2, 7), (3, None), (4, 1), (5, None)]
    assert isinstance(dataset.skipped[0], BadRow)
    assert "not JSON" in dataset.skipped[0].reason
    assert "4 rows skipped" in repr(dataset)
    assert dataset.id == Dataset.from_examples([(1,), (4,)]).id


def test_bad_rows_of_csv_and_json_are_skipped_where_reading_can_continue(tmp_path: Path) -> None:
    csv = tmp_path / "a.csv"
    csv.write_bytes(b'input,b\n1,x\n2\n"a"b,x\n\xe9,x\n3,x\n')
    dataset = Dataset.from_file(csv, skip_bad_rows=True)
    assert [example.input for example in dataset] == ["1", "3"]
    assert [bad.line for bad in dataset.skipped] == [3, 4, 5]
    json = tmp_path / "a.json"
    json.write_text('[{"input": 1},\n{"input": NaN},\n3,\n{"input": 4}]')
    dataset = Dataset.from_file(json, skip_bad_rows=True)
    assert [example.input for example in dataset] == [1, 4]
    assert [bad.line for bad in dataset.skipped] == [2, 3]
    json.write_text('[{"input": 1},\n{"input": },\n3]')
    with pytest.raises(DataError, match="line 2, column 11"):
        Dataset.from_file(json, skip_bad_rows=True)


def test_the_list_of_skipped_rows_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"input": 1}\n' + "bad\n" * 1_500)
    dataset = Dataset.from_file(file, skip_bad_rows=True)
    assert (len(dataset.skipped), dataset.skipped_count, len(dataset)) == (1_000, 1_500, 1)


def test_a_parquet_file_without_rows_is_refused(tmp_path: Path, refuses) -> None:
    pyarrow.parquet.write_table(
        pyarrow.table({"input": pyarrow.array([], pyarrow.string())}), tmp_path / "a.parquet"
    )
    with refuses(DataError):
        Dataset.from_file(tmp_path / "a.parquet")


def test_a_file_with_nothing_but_bad_rows_is_refused(tmp_path: Path, refuses) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("bad\nworse\n")
    with refuses(DataError):
        Dataset.from_file(file, skip_bad_rows=True)


def test_text_of_a_file_is_shown_escaped_and_bounded(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    long = "\\u001b[31m\\u202e" + "x" * 5_000
    file.write_text(f'{{"id": "{long}", "input": 1}}\n{{"id": "{long}", "input": 2}}\n')
    with pytest.raises(KaratError) as caught:
        Dataset.from_file(file)
    message = str(caught.value)
    assert "\\x1b[31m\\u202e" in message
    assert len(message) < 300 + len(str(file))


pieces = st.lists(
    st.sampled_from(
        [b'{"input": ', b"1", b'"', b"}", b"[", b"]", b",", b"\n", b"\r", b"\\", b"\xc3", b"\xa9", b"NaN"]
    )
    | st.binary(max_size=6),
    max_size=30,
).map(b"".join)


@pytest.mark.parametrize("name", ["f.jsonl", "f.json", "f.csv", "f.parquet", "f.jsonl.gz"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(content=pieces, skip=st.booleans())
def test_any_file_is_a_dataset_or_a_clear_error(
    tmp_path: Path, name: str, content: bytes, skip: bool
) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(content) if name.endswith(".gz") and skip else content)
    try:
        dataset = Dataset.from_file(file, skip_bad_rows=skip)
    except DataError:
        return
    assert len(list(dataset)) == len(dataset) > 0
    assert Dataset.from_examples(dataset).id == dataset.id
