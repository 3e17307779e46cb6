"""What tokens cost: dated rows with a source, kinds of tokens, long contexts, batches, and a file of one's own."""

from __future__ import annotations

import json
from datetime import date

import pytest

from karat import models
from karat.models._budget import worst_cost
from karat.models._messages import Request
from karat.models._prices import LongContext, Price, bundled
from karat.models.providers import Tokens


def test_the_bundled_table_is_dated_and_every_row_has_a_source():
    table = bundled()
    date.fromisoformat(table.date)
    for name, price in table.models.items():
        assert price.source, name
        assert 0 <= price.input <= price.output or "embedding" in name, name
        assert price.cache_read is None or 0 < price.cache_read <= price.input, name
        assert price.batch in (None, 0.5), name


def test_each_kind_of_token_has_its_price():
    price = Price(10.0, 50.0, cache_read=1.0, cache_write=12.5, audio_input=100.0, audio_output=200.0)
    tokens = Tokens(1000, 100, cache_read=300, cache_write=200, reasoning=80, audio_input=50, audio_output=10)
    plain = 1000 - 300 - 200 - 50
    expected = plain * 10 + 300 * 1 + 200 * 12.5 + 50 * 100 + 90 * 50 + 10 * 200
    assert price.cost(tokens) == pytest.approx(expected / 1e6)


def test_a_long_context_costs_more_than_its_first_part():
    price = Price(1.0, 5.0, long_context=LongContext(1000, 2.0, 10.0))
    assert price.cost(Tokens(1000, 10)) == pytest.approx((1000 + 50) / 1e6)
    assert price.cost(Tokens(1001, 10)) == pytest.approx((2002 + 100) / 1e6)
    request = Request(messages=[{"role": "user", "content": "x"}], max_tokens=10)
    worst = worst_cost(price, request, 5000, "m")
    assert worst >= price.cost(Tokens(5000, 10))


def test_a_batch_costs_its_share():
    price = Price(2.0, 10.0, cache_read=0.2, batch=0.5, long_context=LongContext(10, 4.0, 20.0))
    half = price.in_batch()
    for tokens in (Tokens(8, 3, cache_read=2), Tokens(100, 30)):
        assert half.cost(tokens) == pytest.approx(price.cost(tokens) / 2)
    assert Price(2.0, 10.0).in_batch().input == 2.0  # where nothing is known of it


def test_a_file_of_ones_own_wins_and_is_listed_with_its_day(tmp_path, monkeypatch):
    own = {
        "date": "2026-12-01",
        "models": {"openai/gpt-4o": {"input": 1, "output": 2}, "mine/x": {"input": 3, "output": 4}},
    }
    (tmp_path / "prices.json").write_text(json.dumps(own))
    monkeypatch.setenv("KARAT_PRICES", str(tmp_path / "prices.json"))
    listed = {model: (price.input, day) for model, price, day in models.price_list()}
    assert listed["openai/gpt-4o"] == (1, "2026-12-01")
    assert listed["mine/x"] == (3, "2026-12-01")
    assert listed["openai/gpt-5"][1] == bundled().date


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("openai/gpt-4o-mini", (0.15, 0.6, 0.075)),
        ("openai/gpt-5.4", (2.5, 15.0, 0.25)),
        ("openai/gpt-5-nano", (0.05, 0.4, 0.005)),
        ("anthropic/claude-opus-4-7", (5.0, 25.0, 0.5)),
        ("anthropic/claude-haiku-4-5-20251001", (1.0, 5.0, 0.1)),
        ("anthropic/claude-sonnet-5-5", (2.0, 10.0, 0.1)),
    ],
)
def test_rows_are_as_their_source_has_them(model, row):
    price = models.find_price(model)
    assert (price.input, price.output, price.cache_read) == row
