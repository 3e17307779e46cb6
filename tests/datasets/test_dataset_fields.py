"""Which fields of a row become which part of an example."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from karat.datasets import Dataset
from karat.errors import DataError, RequestError
from karat.records import Example

Make = Callable[..., list[Example]]


@pytest.fixture
def read(tmp_path: Path) -> Make:
    """Rows written to a file and read back with the given fields."""

    def make(rows: list[Any], **fields: Any) -> list[Example]:
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return list(Dataset.from_file(file, **fields))

    return make


def test_a_row_in_the_shape_of_an_example_is_one(read: Make) -> None:
    assert read([{"id": "a", "input": 1, "expected": 2, "metadata": {"t": 3}}, {"id": "b", "input": 1}]) == [
        Example("a", 1, 2, {"t": 3}),
        Example("b", 1),
    ]


def test_other_fields_beside_an_input_are_metadata(read: Make) -> None:
    rows = [{"id": 1, "input": "q", "topic": "sums", "metadata": {"level": 2}}]
    assert read(rows) == [Example("1", "q", None, {"level": 2, "topic": "sums"})]
    assert read(rows, input="input") == read(rows)


def test_otherwise_the_whole_row_is_the_input(read: Make) -> None:
    [example] = read([{"question": "q", "answer": "a"}])
    assert (example.input, example.expected, example.metadata) == ({"question": "q", "answer": "a"}, None, {})
    [example] = read([{"question": "q", "answer": "a"}], expected="answer")
    assert (example.input, example.expected) == ({"question": "q", "answer": "a"}, "a")


def test_fields_by_name_leave_the_others_as_metadata(read: Make) -> None:
    row = {"key": "k1", "question": "q", "answer": "a", "topic": "t", "level": 3}
    assert read([row], input="question", expected="answer", id="key") == [
        Example("k1", "q", "a", {"topic": "t", "level": 3})
    ]
    assert read([row], input="question", expected="answer", id="key", metadata=["topic"]) == [
        Example("k1", "q", "a", {"topic": "t"})
    ]
    assert read([row], input="question", expected="answer", id="key", metadata=[]) == [
        Example("k1", "q", "a")
    ]


def test_the_field_named_id_is_the_id_by_default(read: Make) -> None:
    row = {"id": 7, "question": "q"}
    assert read([row], input="question") == [Example("7", "q")]
    assert read([row])[0].id == "7"
    [example] = read([row], input="question", id=False)
    assert example.id != "7"
    assert example.metadata == {"id": 7}
    assert read([{"id": None, "input": 1}])[0].id == read([{"input": 1}])[0].id


def test_lists_of_fields_make_an_object(read: Make) -> None:
    row = {"id": "a", "q": 1, "context": {"text": 2}, "yes": 3, "no": 4, "topic": 5}
    assert read([row], input=["q", "context.text"], expected=["yes", "no"]) == [
        Example("a", {"q": 1, "context.text": 2}, {"yes": 3, "no": 4}, {"topic": 5})
    ]


@pytest.mark.parametrize("path", ["a.b[0].c", "a.b.0.c"])
def test_dotted_paths_go_into_objects_and_arrays(read: Make, path: str) -> None:
    [example] = read([{"a": {"b": [{"c": "found"}]}, "topic": 1}], input=path)
    assert (example.input, example.metadata) == ("found", {"topic": 1})


def test_a_field_with_dots_in_its_name_comes_before_the_path(read: Make) -> None:
    [first, second] = read([{"a.b": 1, "a": {"b": 2}}, {"a": {"b": 3}}], input="a.b", metadata=[])
    assert (first.input, second.input) == (1, 3)
    [example] = read([{"a.b": 1, "a": {"b": 2}}], input="a.b")
    assert example.metadata == {"a": {"b": 2}}, "only the field that was used is left out"


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"question": 1}, {"input": "qestion"}),
        ({"a": {"name": 1}}, {"input": "a.nam"}),
        ({"a": [1]}, {"input": "a[3]"}),
        ({"a": "text"}, {"input": "a.b"}),
        ([1], {"input": "a"}),
        ("text", {"id": "a"}),
        ({}, {"input": "a"}),
        ({"q": 1}, {"input": "q", "metadata": ["topc"]}),
        ({"q": 1, "k": None}, {"input": "q", "id": "k"}),
        ({"q": 1, "k": ""}, {"input": "q", "id": "k"}),
        ({"q": 1, "id": [1]}, {"input": "q"}),
        ({"q": 1, "id": 1.0}, {}),
    ],
)
def test_a_row_without_the_field_is_named(tmp_path: Path, row: Any, fields: dict[str, Any], refuses) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n" + json.dumps(row) + "\n")
    with refuses(DataError):
        Dataset.from_file(file, **fields)


def test_a_later_row_without_an_input_is_not_silently_taken_whole(read: Make, refuses) -> None:
    with refuses(DataError):
        read([{"input": 1}, {"question": 2}])


@pytest.mark.parametrize("key", ["expectd", "Expected", "expected_output", "expect"])
def test_a_mistyped_expected_is_not_silently_metadata(read: Make, key: str, refuses) -> None:
    with refuses(DataError) as caught:
        read([{"input": "q", key: "a"}])
    assert f"'{key}'" in str(caught.value)
    assert read([{"input": "q", key: "a", "id": "1"}], expected=key) == [Example("1", "q", "a")]
    for other in ("rejected", "accepted", "output"):
        assert read([{"input": "q", other: "a"}])[0].metadata == {other: "a"}


def test_metadata_that_is_not_an_object_or_repeats_a_field_is_refused(read: Make, refuses) -> None:
    with refuses(DataError):
        read([{"input": 1, "metadata": "x"}])
    assert read([{"id": "a", "input": 1, "metadata": "x"}], metadata=["metadata"]) == [
        Example("a", 1, None, {"metadata": "x"})
    ]
    with refuses(DataError):
        read([{"input": 1, "topic": 1, "metadata": {"topic": 2}}])


@pytest.mark.parametrize(
    "fields",
    [
        {"input": 3},
        {"input": []},
        {"input": ""},
        {"input": ["a", 1]},
        {"expected": {"a": 1}},
        {"id": 3},
        {"id": ""},
        {"metadata": "topic"},
        {"metadata": [1]},
        {"metadata": 5},
    ],
)
def test_a_request_that_names_no_fields_is_refused(read: Make, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=rf"{next(iter(fields))}\W* takes"):
        read([{"a": 1}], **fields)
