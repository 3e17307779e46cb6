"""Word diffs: they make up both texts again, show what changed, and are bounded."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from karat.analysis.text_diff import _WORDS, MOST_WORDS, Piece, excerpt, word_diff

texts = st.lists(st.sampled_from(["the", "cat", "sat", " ", "  ", ".", "é", "\n", "🙂"]), max_size=30).map(
    "".join
)


@given(texts, texts)
def test_the_pieces_make_up_both_texts(first, second):
    pieces = word_diff(first, second)
    assert "".join(p.text for p in pieces if p.kind != "added") == first
    assert "".join(p.text for p in pieces if p.kind != "removed") == second
    assert all(p.text for p in pieces)
    assert (first == second) == all(p.kind == "same" for p in pieces)
    assert all(a.kind != b.kind for a, b in pairwise(pieces))


@given(st.text("abc.!", max_size=12), st.text("abc.!", max_size=12))
def test_as_many_words_as_possible_are_the_same(first, second):
    """Compared with the longest common subsequence by its recurrence; white space joins changes and is left aside."""
    a, b = _WORDS.findall(first), _WORDS.findall(second)
    longest = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, word in enumerate(a):
        for j, other in enumerate(b):
            longest[i + 1][j + 1] = (
                longest[i][j] + 1 if word == other else max(longest[i][j + 1], longest[i + 1][j])
            )
    same = [word for p in word_diff(first, second) if p.kind == "same" for word in _WORDS.findall(p.text)]
    assert len("".join(same)) >= longest[-1][-1]
    assert len(same) <= longest[-1][-1]


def test_a_change_of_several_words_is_one_change():
    assert word_diff("it was the cat here", "it was a dog here") == [
        Piece("same", "it was "),
        Piece("removed", "the cat"),
        Piece("added", "a dog"),
        Piece("same", " here"),
    ]


def test_an_excerpt_shows_the_difference_and_not_the_beginning():
    first, second = "same " * 500 + "Paris" + " same" * 500, "same " * 500 + "London" + " same" * 500
    shown = excerpt(word_diff(first, second), around=10)
    assert [p.kind for p in shown] == ["left_out", "same", "removed", "added", "same", "left_out"]
    assert [p.text for p in shown if p.kind in ("removed", "added")] == ["Paris", "London"]
    assert sum(len(p.text) for p in shown) < 50


def test_an_excerpt_is_bounded():
    pieces = word_diff("a " * 10_000, "b " * 10_000)
    shown = excerpt(pieces, longest=300)
    assert sum(len(p.text) for p in shown) <= 300
    assert shown[-1].kind == "left_out"
    assert excerpt(word_diff("same text", "same text")) == [Piece("same", "same text")]


def test_long_texts_are_not_aligned_word_by_word():
    first, second = "x y " * MOST_WORDS, "z y " * MOST_WORDS
    assert [p.kind for p in word_diff(first, second)] == ["removed", "added", "same"]
