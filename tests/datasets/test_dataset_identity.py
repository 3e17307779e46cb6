"""The laws of ids: nothing collides, nothing is lost, and only content counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.datasets import Dataset
from karat.datasets.dataset import Identities, KeySet, content_of, hash_of
from karat.errors import DataError
from karat.keys import content_hash

texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
in_one_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)


def backwards(value: Any) -> Any:
    """The same value with the keys of every object in another order."""
    if isinstance(value, dict):
        return {key: backwards(item) for key, item in reversed(value.items())}
    return [backwards(item) for item in value] if isinstance(value, list) else value


@given(st.lists(values, max_size=6))
@settings(deadline=None)
def test_the_order_of_keys_does_not_change_any_id(inputs: list[Any]) -> None:
    dataset = Dataset.from_examples((value, value, {"m": value}) for value in inputs)
    turned = [backwards(value) for value in inputs]
    other = Dataset.from_examples((value, value, {"m": value}) for value in turned)
    assert other.id == dataset.id
    assert [id for id, _ in other.encoded()] == [id for id, _ in dataset.encoded()]


@given(st.lists(values, min_size=2, max_size=6, unique_by=content_hash), st.data())
@settings(deadline=None)
def test_the_order_of_examples_changes_the_id(inputs: list[Any], data: st.DataObject) -> None:
    moved = data.draw(st.integers(1, len(inputs) - 1))
    shuffled = inputs[moved:] + inputs[:moved]
    rows, others = [(value,) for value in inputs], [(value,) for value in shuffled]
    assert Dataset.from_examples(rows).id != Dataset.from_examples(others).id


@given(st.lists(st.sampled_from(["a", "b", {"k": 1}, 1, None]), max_size=20))
def test_repeated_examples_are_all_kept_with_ids_of_their_own(inputs: list[Any]) -> None:
    dataset = Dataset.from_examples([(value,) for value in inputs])
    assert [example.input for example in dataset] == inputs
    assert len({example.id for example in dataset}) == len(inputs)


@given(st.lists(texts.filter(bool), unique=True, max_size=8))
@in_one_folder
def test_ids_of_any_unicode_come_back_from_memory_and_from_a_file(tmp_path: Path, ids: list[str]) -> None:
    rows = [{"id": id, "input": number} for number, id in enumerate([*ids, "../../etc", "a.b/c", "\0", "#2"])]
    rows = list({row["id"]: row for row in rows}.values())
    dataset = Dataset.from_examples(rows)
    assert [example.id for example in dataset] == [row["id"] for row in rows]
    file = tmp_path / "ids.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    assert Dataset.from_file(file).id == dataset.id
    assert list(Dataset.from_file(file)) == list(dataset)


@given(st.lists(values, max_size=8))
@in_one_folder
def test_any_json_comes_back_from_a_file(tmp_path: Path, inputs: list[Any]) -> None:
    file = tmp_path / "values.jsonl"
    file.write_text("".join(json.dumps({"q": value}) + "\n" for value in [*inputs, 0]), encoding="utf-8")
    dataset = Dataset.from_file(file, input="q")
    assert [example.input for example in dataset] == [*inputs, 0]
    assert dataset.id == Dataset.from_examples([(value,) for value in [*inputs, 0]]).id


@given(values, values, st.dictionaries(texts, values, max_size=3))
def test_a_generated_id_is_the_content_hash_of_the_keys(
    input: Any, expected: Any, metadata: dict[str, Any]
) -> None:
    assert hash_of(content_of(input, expected, metadata)) == content_hash([input, expected, metadata])


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=600))
def test_the_key_set_is_a_set(keys: list[int]) -> None:
    table, real = KeySet(), set()
    for key in keys:
        key = key or 1  # the table takes 0 for 1: both are hashes, and a hit is always looked at exactly
        assert (key in table) == (key in real)
        assert table.add(key) == (key not in real)
        real.add(key)


def generated_id(input: str) -> str:
    return next(iter(Dataset.from_examples([(input,)]))).id


def test_a_given_id_that_equals_a_generated_one_is_refused_in_either_order(refuses) -> None:
    id = generated_id("q")
    given, plain = {"id": id, "input": "other"}, ("q",)
    with refuses(DataError):
        Dataset.from_examples([given, plain])
    with refuses(DataError):
        Dataset.from_examples([plain, given])
    second = {"id": f"{id}#2", "input": "other"}
    assert len(Dataset.from_examples([plain, second])) == 2
    with refuses(DataError):
        Dataset.from_examples([plain, second, plain])
    with refuses(DataError):
        Dataset.from_examples([plain, plain, second])


def test_the_same_in_a_file_names_both_lines(tmp_path: Path, refuses) -> None:
    id = generated_id("q")
    file = tmp_path / "q.jsonl"
    file.write_text(f'{{"input": "q"}}\n\n{{"input": "q"}}\n{{"input": "z", "id": "{id}#2"}}\n')
    with refuses(DataError):
        Dataset.from_file(file)


def test_hashes_that_agree_by_chance_are_distinguished_by_looking_back() -> None:
    looked: list[str] = []

    def nobody(id: str, count: int) -> int | None:
        looked.append(id)
        return None

    identities = Identities("examples", "example", nobody)
    identities.add("a", b"1", 1)
    identities.add("a", b"2", 2)
    assert looked == ["a"], "64 bits agree, yet looking back finds no such id: it stands"
    assert identities.total == 2
