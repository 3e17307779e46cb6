"""Text on a terminal: width, wrapping, tables that fit, colour, and text that tries to steer the terminal."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.formatting import Details, Heading, Paragraph, Table, as_html, as_markdown, as_text, clean
from karat.layout import Columns, Layout, Styled, display_width, fit, table_text, wants_colour, wrap

SGR = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "a\x1b[31mred\x1b]0;title\x07\u202eevil\u2066x\u200f\x9b2J\u2028b\r\nc\x00"


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("plain", 5),
        ("日本語", 6),
        ("한국어", 6),
        ("👍", 2),
        ("❤\ufe0f", 2),
        ("e\u0301", 1),
        ("ｆｕｌｌ", 8),
        ("\u1112\u1161\u11ab", 2),
        ("—…→", 3),
    ],
)
def test_display_width(text, width):
    assert display_width(text) == width


@given(st.text(), st.integers(1, 30))
def test_lines_fit_and_lose_no_word(text, width):
    text = clean(text)
    lines = wrap(text, width)
    if width > 1:  # a wide character needs two columns
        assert all(display_width(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(st.text(), st.integers(2, 30))
def test_fit_is_short_enough(text, width):
    assert display_width(fit(clean(text), width)) <= width


CELLS = st.text(st.characters(exclude_categories=["C"]), max_size=60)


@given(
    st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=4), st.sampled_from([80, 120, 200])
)
def test_a_table_fits_the_width(rows, width):
    table = Table(["one", "two", "three", "four"], rows, drop=[3, 1])
    text = as_text([table], Layout(width))
    assert max(display_width(line) for line in text.splitlines()) <= width


def test_columns_are_dropped_by_importance_and_named(says):
    rows = [["id", "score", "made", "where"], ["x" * 30, "0.5", "y" * 14, "z" * 14]]
    assert "no room" not in table_text(rows, Columns(drop=[3, 2]), Layout(80))
    narrow = table_text(rows, Columns(drop=[3, 2]), Layout(60))
    says(narrow)
    assert "y" * 14 in narrow
    says(table_text(rows, Columns(drop=[3, 2]), Layout(44)))


def test_a_column_comes_back_where_a_wide_one_was_left_out(says):
    rows = [["id", "made", "where"], ["x" * 10, "y" * 10, "z" * 70]]
    text = table_text(rows, Columns(drop=[1, 2], right=[2]), Layout(60))
    says(text)
    assert "y" * 10 in text


def test_columns_that_may_not_be_left_out_continue_below():
    rows = [["example", *(f"metric_{n}" for n in range(20))], ["q1", *["0.5"] * 20]]
    text = table_text(rows, Columns(right=range(1, 21)), Layout(80))
    assert all(f" metric_{n}" in text for n in range(20))
    assert max(map(display_width, text.splitlines())) <= 80


def test_a_split_table_repeats_its_first_column_and_loses_nothing():
    table = Table(
        ["variant", *(f"metric {n}" for n in range(8))], [["a", *["0.500 [0.400, 0.600]"] * 8]], split=True
    )
    text = as_text([table], Layout(80))
    assert text.count("variant") > 1
    assert all(f"metric {n}" in text for n in range(8))
    assert max(map(len, text.splitlines())) <= 80


def test_full_width_without_a_terminal():
    text = as_text([Table(["a", "b"], [["x" * 150, "y" * 150]])])
    assert max(map(len, text.splitlines())) == 302


def test_hostile_text_is_harmless_everywhere():
    blocks = [
        Heading(HOSTILE, 1),
        Paragraph(HOSTILE),
        Table([HOSTILE], [[Styled(HOSTILE, "bad")]]),
        Details(HOSTILE, [(HOSTILE, [HOSTILE, Styled(HOSTILE, "added")])]),
    ]
    for layout in (Layout(), Layout(40), Layout(80, colour=True)):
        text = SGR.sub("", as_text(blocks, layout))
        assert all(c == "\n" or unicodedata.category(c)[0] != "C" for c in text)
        assert "␛[31mred" in text, "what was there can be seen"
        assert "\u2028" not in text
    assert "red" in as_text(blocks)


def test_html_is_escaped_and_has_no_script():
    evil = "<script>alert(1)</script><img src=x onerror=y>' \" &"
    text = as_html([Heading(evil), Paragraph(evil), Table([evil], [[evil]]), Details(evil, [(evil, [evil])])])
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text


def test_a_word_diff_has_marks_without_colour():
    block = Details("q1", [("output", ["the ", Styled("old", "removed"), " text"])])
    assert "the [-old-] text" in as_text([block])
    assert "\x1b[31mold\x1b[0m" in as_text([block], Layout(80, colour=True))
    assert "the ~~old~~ text" in as_markdown([block])
    assert "<del>old</del>" in as_html([block])


def test_colours_do_not_change_the_layout():
    rows = [[Styled("0.9", "best"), "text " * 30], [Styled("0.1", "bad"), "—"]]
    blocks = [Heading("title", 1), Table(["score", "why"], rows, [0])]
    assert SGR.sub("", as_text(blocks, Layout(60, colour=True))) == as_text(blocks, Layout(60))


@pytest.mark.parametrize(
    ("environment", "is_terminal", "colour"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_when_there_is_colour(environment, is_terminal, colour):
    assert wants_colour(environment, is_terminal) is colour
