"""Rates of values: the share of one given value, and of each value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from karat import paths
from karat.aggregators._base import Aggregate, Aggregator, Group, register_aggregator
from karat.aggregators._folding import Values
from karat.records import Ok, Result

MOST_VALUES = 1000
MOST_SHARES = 50
"""Values that get an estimate of their own, the most frequent ones; all stand in the table."""
LONGEST_VALUE = 80


def field_value(result: Result, field: str) -> Any:
    """A field of a result: its `value`, `score` or `comment`, or a field of its metadata."""
    if field in ("value", "score", "comment"):
        return getattr(result, field)
    return paths.get(result.metadata, field.removeprefix("metadata."))


def value_text(value: object) -> str:
    """A value as text for a table: text unchanged, other values as JSON."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    )
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


@register_aggregator("rate")
class Rate(Aggregator[Values]):
    """The share of results that say one of `values`, with Wilson's interval, clustered by example.

    `field` is what is looked at: the result's `value` (default), its `score`, its `comment`, or a field of its
    metadata. A result whose field is empty is no such value, and counts.
    """

    name = "rate"

    def __init__(
        self,
        values: object = True,
        field: str = "value",
        cluster: str | None = None,
        confidence: float = 0.95,
    ) -> None:
        wanted = values if isinstance(values, (list, tuple, set, frozenset)) else [values]
        if not wanted:
            raise ValueError("values is empty: name the values that count")
        self.values = sorted({value_text(value) for value in wanted})
        self.field = field
        self.cluster = cluster
        self.confidence = confidence
        self._wanted = frozenset(self.values)

    def start(self) -> Values:
        return Values()

    def add(self, state: Values, group: Group) -> Values:
        hits = [
            1.0 if value_text(field_value(result.outcome.value, self.field)) in self._wanted else 0.0
            for result in group.results
            if isinstance(result.outcome, Ok)
        ]
        state.add(hits, group.metadata, self.cluster)
        state.missing += group.missing
        return state

    def merge(self, a: Values, b: Values) -> Values:
        a.merge(b)
        return a

    def finish(self, state: Values) -> Aggregate:
        estimate = state.proportion(self.confidence, self.cluster)
        estimate.metadata["values"] = self.values
        return Aggregate([estimate])


class _Counts:
    __slots__ = ("everything", "values")

    def __init__(self) -> None:
        self.values: dict[str, Values] = {}
        self.everything = Values()


@register_aggregator("count_by")
class CountBy(Aggregator[_Counts]):
    """The count of each value, and its share of all results with Wilson's interval.

    `field` is what is looked at, as in `rate`. At most 1,000 different values: more are not labels.
    """

    name = "count_by"

    def __init__(self, field: str = "value", cluster: str | None = None, confidence: float = 0.95) -> None:
        self.field = field
        self.cluster = cluster
        self.confidence = confidence

    def start(self) -> _Counts:
        return _Counts()

    def add(self, state: _Counts, group: Group) -> _Counts:
        found = [
            value_text(field_value(result.outcome.value, self.field))
            for result in group.results
            if isinstance(result.outcome, Ok)
        ]
        state.everything.missing += group.missing
        # Every result is in the denominator of every share; a cluster's ones are added to the values it has.
        state.everything.add([0.0] * len(found), group.metadata, self.cluster)
        for value in dict.fromkeys(found):
            hits = [1.0 if each == value else 0.0 for each in found]
            self._of(state, value).add(hits, group.metadata, self.cluster)
        return state

    def _of(self, state: _Counts, value: str) -> Values:
        have = state.values.get(value)
        if have is None:
            if len(state.values) >= MOST_VALUES:
                raise ValueError(
                    f"more than {MOST_VALUES} different values: these are not labels to be counted"
                )
            have = state.values[value] = Values()
        return have

    def merge(self, a: _Counts, b: _Counts) -> _Counts:
        a.everything.merge(b.everything)
        for value, counts in b.values.items():
            self._of(a, value).merge(counts)
        return a

    def finish(self, state: _Counts) -> Aggregate:
        whole = state.everything.total(self.cluster)
        counts = {value: round(values.total(None).total.value) for value, values in state.values.items()}
        order: Sequence[str] = sorted(counts, key=lambda value: (-counts[value], value))
        out = Aggregate()
        out.add_table([{"value": value, "count": counts[value]} for value in order])
        for value in order[:MOST_SHARES]:
            share = state.values[value].within(state.everything, self.cluster)
            estimate = share.proportion(self.confidence, of=whole.n + state.everything.missing)
            out.add(estimate, group={"value": value})
        return out
