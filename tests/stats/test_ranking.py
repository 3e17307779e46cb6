"""Classic Elo."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.stats import elo


def test_one_win() -> None:
    ratings = elo([("a", "b", 1)])
    assert {name: estimate.value for name, estimate in ratings.items()} == {"a": 1510.0, "b": 1490.0}


def test_ten_wins() -> None:
    ratings = elo([("a", "b", 1)] * 10)
    assert ratings["a"].value == pytest.approx(1578.2811, abs=5e-5)
    assert ratings["b"].value == pytest.approx(1421.7189, abs=5e-5)
    assert ratings["a"].n == 10


def test_a_loss_for_the_first_is_a_win_for_the_second() -> None:
    assert elo([("a", "b", 0)])["b"].value == 1510
    assert elo([("a", "b", 0.5)])["a"].value == 1500


def test_other_scales() -> None:
    ratings = elo([("a", "b", 1)] * 2, start=1000, scale=200, k=32)
    expected = 1016 + 32 * (1 - 1 / (1 + 10 ** (-32 / 200)))
    assert ratings["a"].value == pytest.approx(expected)
    assert elo([("a", "b", 1)] * 2, k=lambda n: 20 if n == 0 else 0)["a"].value == 1510


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("cd"), st.sampled_from([0, 0.5, 1])), max_size=30
    )
)
def test_a_constant_k_keeps_the_sum(games: list[tuple[str, str, float]]) -> None:
    ratings = elo(games, k=20)
    assert sum(e.value for e in ratings.values()) == pytest.approx(1500 * len(ratings))
    values = [e.value for e in ratings.values()]
    assert values == sorted(values, reverse=True)


def test_shuffles_average_over_orders() -> None:
    random.seed(0)
    strength = {"a": 2.0, "b": 1.0, "c": 0.0}
    games = []
    for _ in range(300):
        x, y = random.sample("abc", 2)
        games.append((x, y, float(random.random() < 1 / (1 + math.exp(strength[y] - strength[x])))))
    ratings = elo(games, shuffles=40, seed=1)
    assert list(ratings) == ["a", "b", "c"]
    assert ratings == elo(games, shuffles=40, seed=1)
    assert ratings["a"].low < ratings["a"].value < ratings["a"].high
    assert ratings["a"].metadata == {"shuffles": 40, "seed": 1, "interval": "over orders"}


def test_one_order_is_the_plain_rating() -> None:
    assert elo([("a", "b", 1)] * 10, shuffles=3)["a"].value == pytest.approx(1578.2811, abs=5e-5)


def test_edges() -> None:
    assert elo([]) == {}
    assert elo([], shuffles=2) == {}
    with pytest.raises(ValueError, match=r"1, 0\.5 or 0"):
        elo([("a", "b", 2)])
    with pytest.raises(ValueError, match="both sides"):
        elo([("a", "a", 1)])
    with pytest.raises(ValueError, match="nan"):
        elo([("a", "b", math.nan)])
