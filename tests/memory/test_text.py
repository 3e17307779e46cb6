"""How turns are written as text, and how tokens are counted."""

from __future__ import annotations

import pytest

from karat.memory import Turn, count_tokens, cut_tokens, turn_text


def turn(**fields):
    return Turn(**{"turn_id": "t1", "speaker": "Ann", "text": "Hello", **fields})


@pytest.mark.parametrize(
    ("time", "written"),
    [
        (None, "Ann: Hello"),
        ("", "Ann: Hello"),
        ("2024-05-01", "[2024-05-01] Ann: Hello"),
        ("2024-05-01T09:30:12", "[2024-05-01 09:30] Ann: Hello"),
        ("2024-05-01T09:30:12Z", "[2024-05-01 09:30] Ann: Hello"),
        ("8:56 pm on\n20 July, 2023", "[8:56 pm on 20 July, 2023] Ann: Hello"),
    ],
)
def test_a_turn_begins_with_its_time(time, written):
    assert turn_text(turn(time=time)) == written


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("  \n", 0),
        ("Hello, world!", 4),
        ("internationally", 2),
        ("2024-05-01", 6),
        ("记忆系统", 4),
        ("été", 1),
    ],
)
def test_tokens_are_counted_by_a_fixed_rule(text, tokens):
    assert count_tokens(text) == tokens


@pytest.mark.parametrize("budget", [0, 1, 3, 4, 100])
def test_a_cut_text_is_a_beginning_within_the_budget(budget):
    text = "Hello, world! 记忆 12345"
    cut = cut_tokens(text, budget)
    assert text.startswith(cut)
    assert count_tokens(cut) == min(budget, count_tokens(text))
