"""Any aggregator, once over all examples and once for each value of a metadata field: `by: topic`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from karat import paths
from karat.aggregators._base import Aggregate, Aggregator, Group, for_evaluator
from karat.aggregators._folding import FieldNames
from karat.records import EvaluatorSpec

MOST_GROUPS = 1000
LONGEST_LABEL = 80
NONE = "(none)"
"""The group of examples that do not have the field."""


class _State:
    __slots__ = ("fields", "groups", "whole")

    def __init__(self, whole: Any, fields: Sequence[str]) -> None:
        self.whole = whole
        self.groups: dict[str, dict[str, Any]] = {field: {} for field in fields}
        self.fields = {field: FieldNames() for field in fields}


class Grouped(Aggregator[_State]):
    """An aggregator over all examples and over the groups of one or more metadata fields.

    The estimates of a group carry it: `{"topic": "Music"}`. An example whose field is a list belongs to the group
    of each of its values.
    """

    def __init__(self, aggregator: Aggregator[Any], by: str | Sequence[str]) -> None:
        self.inner = self.wraps = aggregator
        self.by = [by] if isinstance(by, str) else list(by)
        if not self.by or not all(isinstance(field, str) and field for field in self.by):
            raise ValueError(f"by is {by!r}: it names a field of the examples' metadata, or a list of fields")
        self.name = getattr(aggregator, "name", "") or type(aggregator).__name__  # type: ignore[misc]  # of this one
        self.over = getattr(aggregator, "over", frozenset({"single"}))  # type: ignore[misc]  # of this one

    def for_evaluator(self, spec: EvaluatorSpec) -> Grouped:
        """The same groups of the aggregator that fits an evaluator."""
        return Grouped(for_evaluator(self.inner, spec), self.by)

    def start(self) -> _State:
        return _State(self.inner.start(), self.by)

    def add(self, state: _State, group: Group) -> _State:
        inner = self.inner
        state.whole = inner.add(state.whole, group)
        for field, groups in state.groups.items():
            value = paths.get(group.metadata, field)
            state.fields[field].note(group.metadata, value)
            for label in labels_of(value):
                have = groups.get(label)
                if have is None:
                    have = self._room(field, groups)
                groups[label] = inner.add(have, group)
        return state

    def _room(self, field: str, groups: dict[str, Any]) -> Any:
        if len(groups) >= MOST_GROUPS:
            raise ValueError(
                f"by {field!r} would make more than {MOST_GROUPS} groups: choose a field with fewer values"
            )
        return self.inner.start()

    def merge(self, a: _State, b: _State) -> _State:
        a.whole = self.inner.merge(a.whole, b.whole)
        for field, groups in a.groups.items():
            a.fields[field].merge(b.fields[field])
            for label, other in b.groups[field].items():
                have = groups.get(label)
                groups[label] = self.inner.merge(self._room(field, groups) if have is None else have, other)
        return a

    def finish(self, state: _State) -> Aggregate:
        whole: Aggregate = self.inner.finish(state.whole)
        estimates, tables = list(whole.estimates), list(whole.tables)
        for field, groups in state.groups.items():
            if groups:
                state.fields[field].check(field, "by")
            for label in sorted(groups):
                try:
                    part: Aggregate = self.inner.finish(groups[label])
                except ValueError as error:
                    raise ValueError(f"{field}={label}: {error}") from error
                here = {field: label}
                estimates += [estimate.about(group=here) for estimate in part.estimates]
                tables += [
                    msgspec.structs.replace(table, group={**(table.group or {}), **here})
                    for table in part.tables
                ]
        return Aggregate(estimates, tables)


def labels_of(value: Any) -> list[str]:
    """The groups a metadata value belongs to: one, or one for each value of a list."""
    if isinstance(value, (list, tuple)):
        return list(dict.fromkeys(map(label_of, value))) or [NONE]
    return [label_of(value)]


def label_of(value: Any) -> str:
    """A metadata value as the name of a group."""
    if value is None:
        return NONE
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    )
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"
