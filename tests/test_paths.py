"""Dotted paths into data: one syntax for every part of karat."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from karat import paths
from karat.errors import RequestError
from karat.paths import MISSING, find, get, parse


@pytest.mark.parametrize(
    ("data", "path", "found"),
    [
        ({"a": 1}, "a", 1),
        ({"a": {"b": 1}}, "a.b", 1),
        ({"a": [{"b": 1}]}, "a.0.b", 1),
        ({"a": [{"b": 1}]}, "a[0].b", 1),
        ([[1, 2]], "[0][1]", 2),
        ([[1, 2]], "0.1", 2),
        (({"b": 1},), "0.b", 1),
        ({"a": {"0": 1}}, "a.0", 1),
        ({"a.b": 1, "a": {"b": 2}}, "a.b", 1),
        ({"x": {"a.b": 1, "a": {"b": 2}}}, "x.a.b", 1),
        ({"a.b": {"c": 1}}, "a.b.c", 1),
        ({"a.b": {"d": 1}, "a": {"b": {"c": 2}}}, "a.b.c", 2),
        ({"a[0]": 1, "a": [2]}, "a[0]", 1),
        ({"a[x]": 1}, "a[x]", 1),
        ({"": {"": 1}}, ".", 1),
        ({"a": None}, "a", None),
        ({"a": None}, "a.b", MISSING),
        ({"a": [1]}, "a.1", MISSING),
        ({"a": [1]}, "a.-1", MISSING),
        ({"a": [1]}, "a.²", MISSING),
        ({"a": "text"}, "a.0", MISSING),
        ("text", "a", MISSING),
        ({"a": {}}, "a.b", MISSING),
    ],
)
def test_the_syntax(data: Any, path: str, found: Any) -> None:
    assert find(data, path) is found or find(data, path) == found
    assert get(data, path, "default") == ("default" if found is MISSING else found)


def test_missing_is_not_none() -> None:
    assert find({"a": None}, "a") is None
    assert find({}, "a") is MISSING
    assert get({}, "a") is None
    assert not MISSING


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"a": {"text": 1}}, "a.txt"),
        ({}, "a"),
        ({"a": [1]}, "a.3"),
        ({"a": [1]}, "a.x"),
        ({"a": 5}, "a.x"),
    ],
)
def test_a_path_that_leads_nowhere_says_why(data: Any, path: str, says) -> None:
    says(parse(path).why_missing(data))


def test_the_key_that_a_path_starts_with() -> None:
    assert parse("a.b").root({"a.b": 1, "a": {"b": 1}}) == "a.b"
    assert parse("a.b").root({"a": {"b": 1}}) == "a"
    assert parse("a[0]").root({"a": [1]}) == "a"


def test_a_path_without_end_is_refused() -> None:
    with pytest.raises(RequestError, match="at most"):
        parse("." * 10_000)


KEYS = st.sampled_from(["a", "b", "a.b", "b.a", "0", "1", "[0]", "a[0]", ""])
DATA = st.recursive(
    st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def places(data: Any) -> list[tuple[list[str], Any]]:
    """Every value in some data with the keys that lead to it."""
    out: list[tuple[list[str], Any]] = []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        out.append(([str(key)], value))
        out += [([str(key), *more], inner) for more, inner in places(value)]
    return out


def without_brackets(path: str) -> str:
    """The same path with positions instead of brackets: `a[0]` and `a.[0]` become `a.0`."""
    return re.sub(
        r"\.?\[(\d)\]", lambda at: at[1] if at.span()[0] == 0 and at[0][0] == "[" else f".{at[1]}", path
    )


@given(DATA)
@example({"b": {"a[0]": 0}, "b.a": [None]})
def test_every_value_can_be_reached_or_is_hidden_by_a_literal_key(data: Any) -> None:
    by_path: dict[str, list[Any]] = {}
    paths_to = [(".".join(keys), value) for keys, value in places(data)]
    for path, value in paths_to:
        by_path.setdefault(without_brackets(path), []).append(value)
    for path, _ in paths_to:
        found = find(data, path)
        assert any(found is value or found == value for value in by_path[without_brackets(path)])


@pytest.mark.parametrize(
    ("text", "steps"), [("a[0]b", ["a[0]b"]), ("a[0][", ["a", "0", "["]), ("[1[0][", ["[1", "0", "["])]
)
def test_an_open_bracket_after_a_position_is_a_step(text: str, steps: list[str]) -> None:
    assert list(paths.Path(text).steps) == steps


@given(DATA, st.text(alphabet="ab.[]01", max_size=12))
def test_any_text_is_a_path(data: Any, text: str) -> None:
    path = paths.Path(text)
    assert re.sub(r"[.\[\]]", "", "".join(path.steps)) == re.sub(r"[.\[\]]", "", text)
    if path.find(data) is MISSING:
        assert path.why_missing(data).startswith("no ")
