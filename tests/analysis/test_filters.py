"""The filter grammar: what it accepts, what it refuses, and that a mask and a row give the same answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.analysis.filters import (
    FIELDS,
    TEXTS,
    All,
    Condition,
    FilterError,
    Not,
    TextSearch,
    holds,
    parse,
    row_values,
    shown_values,
)
from karat.store.rows import Judged, Row


def row(**fields: Any) -> Row:
    return Row(
        **{"id": "q1", "input": "What?", "run": "run-1", "run_label": "first", "status": "ok", **fields}
    )


LAW = row(
    id="a1",
    input="May I sue?",
    expected="yes",
    metadata={"topic": "law", "year": 2021, "tags": ["civil", "EU"], "deep": {"level": 2}, "odd": None},
    output={"text": "No, never"},
    service_seconds=1.5,
    cost=0.25,
    results={"exact": Judged("ok", 0.0, comment="differs"), "close": Judged("ok", 0.75)},
)
FAILED = row(
    id="a2", status="failed", error="TimeoutError: too slow", metadata={"topic": "Law"}, attempt=2, unit="turn/1",
    results={"exact": Judged("skipped", error="output failed"), "close": Judged("failed", error="ValueError: x")},
)  # fmt: skip
PENDING = row(id="a3", status="pending", results={"exact": Judged("pending"), "close": Judged("pending")})
ROWS = [LAW, FAILED, PENDING]


def found(text: str) -> list[str]:
    return [each.id for each in ROWS if parse(text).matches(each)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["a1", "a2", "a3"]),
        ("status:failed", ["a2"]),
        ("status:FAILED", ["a2"]),
        ('a ")"', []),
        ('(law or ")")', []),
        ('topic:law (status:ok ")" or cost<1)', ["a1"]),
        ("status=pending", ["a3"]),
        ("result:failed", ["a2"]),
        ("score<0.5", ["a1"]),
        ("score<0.5 and topic=law", ["a1"]),
        ("score<0.5 topic:law", ["a1"]),
        ("topic:law", ["a1", "a2"]),
        ("topic=law", ["a1"]),
        ("topic!=law", ["a2", "a3"]),
        ("topic:none", ["a3"]),
        ('topic:"none"', []),
        ("odd:none", ["a1", "a2", "a3"]),
        ("exact<0.5", ["a1"]),
        ("close>=0.75", ["a1"]),
        ("close.status:failed", ["a2"]),
        ("exact.score:none", ["a2", "a3"]),
        ("year>2020", ["a1"]),
        ("year=2021.0", ["a1"]),
        ("tags:eu", ["a1"]),
        ("tags=eu", []),
        ("deep.level=2", ["a1"]),
        ("metadata.topic=Law", ["a2"]),
        ("seconds>1 cost<1", ["a1"]),
        ("attempt=2", ["a2"]),
        ("unit:turn/1", ["a2"]),
        ("run:first", ["a1", "a2", "a3"]),
        ('"never"', ["a1"]),
        ("NEVER", ["a1"]),
        ('"may i"', ["a1"]),
        ("error~timeout", ["a2"]),
        ("comment~differs", ["a1"]),
        ("output~never", ["a1"]),
        ("(status:failed or status:pending) not topic:law", ["a3"]),
        ("not not status:failed", ["a2"]),
        ("status:failed or status:pending and topic:law", ["a2"]),
        ("NOT status:ok", ["a2", "a3"]),
    ],
)
def test_a_filter_selects_rows(text, expected):
    assert found(text) == expected


@pytest.mark.parametrize(
    ("text", "character"),
    [
        ("score<", 7),
        ("<3", 1),
        ("(status:ok", 1),
        ("status:ok)", 10),
        ("status:broken", 8),
        ("changed:much", 9),
        ("score<high", 7),
        ('"open', 1),
        ("status:ok and", 14),
        ("not", 4),
        ("()", 2),
        ("(" * 40 + "a" + ")" * 40, 22),
        ("a " * 200, 201),
    ],
)
def test_a_wrong_filter_is_refused_with_the_place(text, character):
    with pytest.raises(FilterError, match=rf"at character {character}:"):
        parse(text)


def test_a_long_filter_is_refused():
    with pytest.raises(FilterError, match="2,000"):
        parse("x" * 2001)


def test_values_may_contain_operators_and_quotes():
    assert parse("url:http://a/b?c=d").expression == Condition("url", ":", "http://a/b?c=d")
    assert parse(r'note="say \"hi\" (now)"').expression == Condition("note", "=", 'say "hi" (now)', True)
    assert parse("and=3").expression == Condition("and", "=", "3")
    assert parse("not a").expression == Not(TextSearch("a"))
    assert parse("a b").expression == All((TextSearch("a"), TextSearch("b")))


def test_unknown_fields_are_named():
    parse("topic:law exact<1 close.status:ok metadata.topic:x deep.level=2").check(
        ["topic", "exact", "close", "deep"]
    )
    with pytest.raises(FilterError, match=r"'topc'.*'topic'"):
        parse("topc:law").check(["topic"])


class FromRows:
    """Columns made from joined rows in the plainest way."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def numbers(self, field: str) -> list[Any] | None:
        if field not in ("seconds", "cost", "attempt", "score", "exact", "close"):
            return None
        values = [row_values(field, row) for row in self.rows]
        return [np.array([each[place] for each in values], dtype=float) for place in range(len(values[0]))]

    def labels(self, field: str) -> tuple[Any, list[list[Any]]] | None:
        if field not in {*FIELDS, "topic", "year", "tags", "close.status"}:
            return None
        return np.arange(len(self.rows)), [row_values(field, row) for row in self.rows]

    def is_text(self, condition: Condition) -> bool:
        return condition.field in TEXTS

    def searched(self, leaf: Condition | TextSearch, within: Any) -> Any:
        if isinstance(leaf, Condition):
            return np.array([holds(leaf, row_values(leaf.field, row)) for row in self.rows])
        return np.array(
            [any(leaf.text.casefold() in str(v).casefold() for v in shown_values(row)) for row in self.rows]
        )

    def named(self, condition: Condition) -> Any:
        return np.array([holds(condition, [row.id]) for row in self.rows])

    def has_further_fields(self) -> bool:
        return False

    def fields(self) -> Iterable[str]:
        return ["topic", "exact", "close"]


conditions = st.one_of(
    st.sampled_from(
        [
            "status:failed",
            "status!=ok",
            "result:failed",
            "topic:law",
            "topic!=law",
            "topic:none",
            "tags:EU",
            "close.status:ok",
            "slow",
            '"never"',
            "error~time",
            "topic~a",
        ]
    ),
    st.tuples(
        st.sampled_from(["score", "exact", "close", "seconds", "cost", "attempt", "year"]),
        st.sampled_from(["<", "<=", ">", ">=", "=", "!=", ":"]),
        st.sampled_from(["0", "0.75", "1.5", "2", "2021", "-1"]),
    ).map("".join),
    st.sampled_from(["score:none", "exact!=none", "cost:none"]),
)
expressions = st.recursive(
    conditions,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" ", " and ", " or "]), inner).map(lambda t: f"({''.join(t)})"),
        inner.map(lambda text: f"not ({text})"),
    ),
    max_leaves=8,
)


@given(expressions)
def test_a_mask_and_a_row_give_the_same_answer(text):
    parsed = parse(text)
    assert parsed.mask(FromRows(ROWS)).tolist() == [parsed.matches(each) for each in ROWS]


def test_a_mask_refuses_unknown_fields_and_compares_texts_as_rows_do() -> None:
    with pytest.raises(FilterError, match="'topix'"):
        parse("topix:law").mask(FromRows(ROWS))
    for text in ("output=yes", "output:YES", "output!=yes", "error:none", "not output~yes"):
        parsed = parse(text)
        assert parsed.mask(FromRows(ROWS)).tolist() == [parsed.matches(row) for row in ROWS], text


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text):
    try:
        parsed = parse(text)
    except FilterError:
        return
    for each in ROWS:
        parsed.matches(each)


def test_a_quoted_parenthesis_closes_nothing():
    with pytest.raises(FilterError):
        parse('(a ")"')


def test_an_integer_beyond_floats_is_compared_as_text():
    large = row(metadata={"n": 10**400})
    assert parse(f"n={10**400}").matches(large)
    assert not parse("n=1").matches(large)
    assert not parse("n<1").matches(large)
