"""Which examples runs of different datasets share, and the clusters that examples belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from karat import paths
from karat.aggregators._folding import FieldNames
from karat.errors import RequestError
from karat.keys import content_hash
from karat.records import Example
from karat.store import Store


def shared_examples(store: Store, datasets: Sequence[str]) -> tuple[Callable[[str], bool], str]:
    """Whether an example is the same in all datasets, and a sentence about it where they are not one."""
    if len(datasets) == 1:
        return (lambda _: True), ""
    handles = [store.datasets.get(each) for each in datasets]
    common: dict[str, str] = {}
    for place, data in enumerate(handles):
        here = {example.id: content_hash([example.input, example.expected]) for example in data}
        common = here if place == 0 else {k: v for k, v in common.items() if here.get(k) == v}
    names = " and ".join(f"{data.label} ({len(data):,} examples)" for data in handles)
    if not common:
        raise RequestError(f"the runs are of different datasets that share no example: {names}")
    note = f"the runs are of different datasets, {names}: compared over the {len(common):,} examples that are the same"
    return common.__contains__, note


class _Described(msgspec.Struct):
    id: str
    metadata: dict[str, Any] = {}


def cluster_labels(store: Store, datasets: Sequence[str], field: str) -> dict[str, str]:
    """The cluster of each example, by a field of its metadata; an example without it is one of its own."""
    decode = msgspec.json.Decoder(_Described).decode
    fields = FieldNames()
    labels: dict[str, str] = {}
    for dataset in datasets:
        for _, payload in store.datasets.get(dataset).encoded():
            example = decode(payload)
            value = paths.get(example.metadata, field)
            fields.note(example.metadata, value)
            if value is not None:
                labels[example.id] = f"{field}={value}"
    try:
        fields.check(field, "cluster")
    except ValueError as error:
        raise RequestError(str(error)) from error
    return labels


def example_at(store: Store, dataset: str, position: int) -> Example | None:
    """The example at a position of a dataset."""
    rows = store.backend.scan(store.datasets.get(dataset).number, position, position + 1)
    return msgspec.json.decode(rows[0].payload, type=Example) if rows else None
