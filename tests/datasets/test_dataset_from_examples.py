"""Datasets made in memory: what an example may be, and that a dataset never changes."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import gc
import threading
from types import MappingProxyType

import msgspec
import numpy
import pandas
import pydantic
import pytest

from karat.datasets import Dataset
from karat.datasets import dataset as spool_module
from karat.errors import DataError, RequestError, UnsupportedType
from karat.records import Example


def test_examples_mappings_and_tuples_are_the_same_content() -> None:
    as_examples = Dataset.from_examples([Example("a", 1, 2, {"topic": "x"}), Example("b", "q")])
    as_mappings = Dataset.from_examples(
        [
            {"metadata": {"topic": "x"}, "expected": 2, "input": 1, "id": "a"},
            MappingProxyType({"id": "b", "input": "q"}),
        ]
    )
    assert as_examples.id == as_mappings.id
    assert list(as_examples) == [Example("a", 1, 2, {"topic": "x"}), Example("b", "q")]
    without_ids = Dataset.from_examples([(1, 2, {"topic": "x"}), ("q",)])
    assert [(e.input, e.expected, e.metadata) for e in without_ids] == [
        (1, 2, {"topic": "x"}),
        ("q", None, {}),
    ]


def test_a_dataset_knows_itself() -> None:
    dataset = Dataset.from_examples([("q", "a")], name="qa", metadata={"licence": "CC0"})
    assert (dataset.name, len(dataset), dataset.source) == ("qa", 1, "")
    assert dataset.metadata == {"licence": "CC0"}
    assert dataset.id.startswith("ds-")
    assert len(dataset.id) == 3 + 24
    assert "qa" in repr(dataset)
    assert "1 example," in repr(dataset)
    assert dataset.id in repr(dataset)
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.name = "other"  # type: ignore[misc]  # that it cannot be set is what is tested


def test_the_id_is_of_the_content_and_not_of_the_name() -> None:
    rows = [("a", 1), ("b", 2)]
    assert Dataset.from_examples(rows, name="x").id == Dataset.from_examples(rows, name="y").id
    assert Dataset.from_examples(rows).id != Dataset.from_examples(rows[::-1]).id
    assert Dataset.from_examples([{"id": "1", "input": "a"}]).id != Dataset.from_examples([("a",)]).id
    assert Dataset.from_examples([(1,)]).id != Dataset.from_examples([(1.0,)]).id
    assert Dataset.from_examples([({"a": 1, "b": 2},)]).id == Dataset.from_examples([({"b": 2, "a": 1},)]).id


def test_given_ids_that_equal_the_generated_ones_are_the_same_dataset() -> None:
    dataset = Dataset.from_examples([("q", "a"), ("q", "a"), ("r",)])
    assert Dataset.from_examples(list(dataset)).id == dataset.id


def test_changing_the_callers_objects_changes_nothing() -> None:
    words = ["one"]
    metadata = {"tags": ["a"]}
    dataset = Dataset.from_examples([{"input": {"words": words}}], metadata=metadata)
    words.append("two")
    metadata["tags"].append("b")
    first = next(iter(dataset))
    assert first.input == {"words": ["one"]}
    assert dataset.metadata == {"tags": ["a"]}
    first.input["words"].append("three")
    assert next(iter(dataset)).input == {"words": ["one"]}, "each iteration gives fresh objects"


def test_a_generator_is_gone_through_once_and_read_many_times() -> None:
    dataset = Dataset.from_examples((n,) for n in range(5))
    assert [e.input for e in dataset] == [0, 1, 2, 3, 4]
    assert [e.input for e in dataset] == [0, 1, 2, 3, 4]
    first, second = iter(dataset), iter(dataset)
    assert [next(first).input, next(first).input, next(second).input] == [0, 1, 0]


def test_encoded_gives_what_a_store_writes_from_a_position_on() -> None:
    dataset = Dataset.from_examples([{"id": "a", "input": 1}, {"id": "b", "input": {"z": 1, "a": 2}}])
    assert list(dataset.encoded()) == [
        ("a", b'{"id":"a","input":1}'),
        ("b", b'{"id":"b","input":{"z":1,"a":2}}'),
    ]
    assert [id for id, _ in dataset.encoded(1)] == ["b"]
    assert list(dataset.encoded(2)) == []
    with pytest.raises(RequestError, match="give 0 or more"):
        dataset.encoded(-1)


def test_an_empty_dataset_is_a_dataset() -> None:
    dataset = Dataset.from_examples([])
    assert len(dataset) == 0
    assert list(dataset) == []


def test_repeated_examples_are_kept_and_numbered() -> None:
    ids = [e.id for e in Dataset.from_examples([("q", "a"), ("r",), ("q", "a"), ("q", "a")])]
    assert ids[2] == f"{ids[0]}#2"
    assert ids[3] == f"{ids[0]}#3"
    assert len(set(ids)) == 4


class Point(msgspec.Struct):
    x: int
    y: float = 0.5


@dataclasses.dataclass
class Question:
    text: str
    asked: datetime.date
    labels: set[str]


class Answer(pydantic.BaseModel):
    text: str
    point: dict[str, int]


class Colour(enum.StrEnum):
    RED = "red"


def test_structs_dataclasses_models_and_bytes_become_json() -> None:
    question = Question("why?", datetime.date(2024, 2, 29), {"b", "a", "c"})
    dataset = Dataset.from_examples(
        [
            (Point(3), Answer(text="so", point={"x": 1})),
            (question, [b"\xff\x00", Colour.RED, numpy.float64(0.5)]),
        ]
    )
    first, second = dataset
    assert (first.input, first.expected) == ({"x": 3, "y": 0.5}, {"text": "so", "point": {"x": 1}})
    assert second.input == {"text": "why?", "asked": "2024-02-29", "labels": ["a", "b", "c"]}
    assert second.expected == ["data:application/octet-stream;base64,/wA=", "red", 0.5]
    same = Dataset.from_examples(
        [({"y": 0.5, "x": 3}, {"text": "so", "point": {"x": 1}}), (second.input, second.expected)]
    )
    assert same.id == dataset.id, "the same content is the same dataset, whatever types it came in"


def test_integers_beyond_64_bits_are_kept() -> None:
    assert next(iter(Dataset.from_examples([(2**200,)]))).input == 2**200


@pytest.mark.parametrize(
    "given",
    [
        ({"a": [object()]},),
        ("q", None, {"f": print}),
        ({(1, 2): "a"},),
        ({"a": float("nan")},),
        ({1: "a", "1": "b"},),
        (Point(1, float("inf")),),
        ("half \ud800",),
    ],
)
def test_unsupported_values_are_refused_at_once_by_field(given: tuple[object, ...], refuses) -> None:
    with refuses(UnsupportedType):
        Dataset.from_examples([given])
    with pytest.raises(UnsupportedType, match=r"input .*ModelMetaclass"):
        Dataset.from_examples([(Answer,)])


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(UnsupportedType, match="contains itself"):
        Dataset.from_examples([(endless,)])


@pytest.mark.parametrize(
    "given",
    [
        {"input": 1, "expectd": 2},
        {"id": "a"},
        "text",
        (1, 2, {}, 4),
        (),
        {"input": 1, "metadata": [1]},
        {"input": 1, "id": ""},
        {"input": 1, "id": 1.5},
        {"input": 1, "id": True},
        {"input": 1, "id": "taken"},
    ],
)
def test_a_wrong_example_is_named_with_the_remedy(given: object, refuses) -> None:
    with refuses(DataError):
        Dataset.from_examples([{"id": "taken", "input": 0}, given])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "given", ["text", {"input": 1}, Example("a", 1), 7, pandas.DataFrame({"input": [1]})]
)
def test_one_example_is_not_a_list_of_them(given: object, refuses) -> None:
    with refuses(DataError):
        Dataset.from_examples(given)  # type: ignore[arg-type]


def test_an_id_with_a_lone_surrogate_is_refused(refuses) -> None:
    with refuses(UnsupportedType):
        Dataset.from_examples([{"id": "\udfff", "input": 1}])


@pytest.mark.parametrize("name", ["", "qa@2", "\ud800", None])
def test_a_name_that_a_store_could_not_find_again_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="name="):
        Dataset.from_examples([(1,)], name=name)


def test_many_examples_go_to_a_file_that_is_gone_with_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "IN_MEMORY", 1 << 12)
    dataset = Dataset.from_examples({"id": n, "input": "x" * 100} for n in range(1_000))
    spool = dataset.read.__self__._spool  # type: ignore[attr-defined]
    file = spool._file
    assert file._rolled
    assert [e.id for e in dataset] == [str(n) for n in range(1_000)]
    del dataset, spool
    gc.collect()
    assert file.closed


def test_threads_read_the_same_dataset_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "_BLOCK", 64)
    dataset = Dataset.from_examples((n,) for n in range(300))
    seen: list[list[object]] = []
    threads = [threading.Thread(target=lambda: seen.append([e.input for e in dataset])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [list(range(300))] * 4
