"""What tokens cost: dated rows with a source, kinds of tokens, long contexts, batches, and a file of one's own."""

from __future__ import annotations

import json
import re
from datetime import date

import pytest

from karat import models
from karat.models._budget import worst_cost
from karat.models._messages import Request
from karat.models._prices import LongContext, Price, bundled
from karat.models._request_context import usage_of
from karat.models.providers import Tokens, wire_format
from karat.records import add_usage


def test_the_bundled_table_is_dated_and_every_row_has_a_source():
    table = bundled()
    date.fromisoformat(table.date)
    for name, price in table.models.items():
        assert price.source, name
        assert 0 <= price.input <= price.output or "embedding" in name, name
        assert price.cache_read is None or 0 < price.cache_read <= price.input, name
        assert price.batch in (None, 0.5), name


def test_each_kind_of_token_has_its_price():
    price = Price(
        10.0,
        50.0,
        cache_read=1.0,
        cache_write=12.5,
        audio_input=100.0,
        audio_output=200.0,
        image_input=5.0,
        image_output=300.0,
    )
    tokens = Tokens(
        1000,
        100,
        cache_read=300,
        cache_write=200,
        reasoning=70,
        audio_input=50,
        audio_output=10,
        image_input=40,
        image_output=20,
    )
    plain = 1000 - 300 - 200 - 50 - 40
    expected = plain * 10 + 300 * 1 + 200 * 12.5 + 50 * 100 + 40 * 5 + 70 * 50 + 10 * 200 + 20 * 300
    assert price.cost(tokens) == pytest.approx(expected / 1e6)


def test_a_long_context_costs_more_than_its_first_part():
    price = Price(1.0, 5.0, long_context=LongContext(1000, 2.0, 10.0))
    assert price.cost(Tokens(1000, 10)) == pytest.approx((1000 + 50) / 1e6)
    assert price.cost(Tokens(1001, 10)) == pytest.approx((2002 + 100) / 1e6)
    request = Request(messages=[{"role": "user", "content": "x"}], max_tokens=10)
    worst = worst_cost(price, request, 5000, "m")
    assert worst >= price.cost(Tokens(5000, 10))
    spoken = Price(1.0, 5.0, audio_input=9.0, long_context=LongContext(1000, 2.0, 10.0))
    assert spoken.cost(Tokens(2000, 0, audio_input=500)) == pytest.approx((1500 * 2 + 500 * 9) / 1e6)


def test_an_hour_in_the_cache_costs_twice_the_input():
    price = Price(3.0, 15.0, cache_read=0.3, cache_write=3.75)
    raw = {
        "content": [{"type": "text", "text": "x"}],
        "stop_reason": "end_turn",
        "usage": {
            "input_tokens": 10,
            "output_tokens": 1,
            "cache_creation_input_tokens": 300,
            "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
        },
    }
    tokens = wire_format("anthropic").parse(raw).tokens
    assert (tokens.input, tokens.cache_write, tokens.cache_write_long) == (310, 300, 200)
    assert price.cost(tokens) == pytest.approx((10 * 3 + 100 * 3.75 + 200 * 6 + 15) / 1e6)
    request = Request(messages=[{"role": "user", "content": "x"}], max_tokens=1)
    assert worst_cost(price, request, 310, "m", True) >= price.cost(tokens)
    raw["usage"]["cache_creation"]["ephemeral_1h_input_tokens"] = 301  # more than all that was written
    assert wire_format("anthropic").parse(raw).tokens is None


@pytest.mark.parametrize("details", [{}, {"reasoning_tokens": 2809}, {"reasoning_tokens": 0}])
def test_thinking_that_is_not_counted_as_output_is_priced_as_output(details):
    """xAI and Gemini count it in the total only; the figures are those of a reply of xAI."""
    usage = {"prompt_tokens": 10120, "completion_tokens": 1499, "total_tokens": 14428}
    if details:
        usage |= {"prompt_tokens_details": {"cached_tokens": 128}, "completion_tokens_details": details}
    raw = {"choices": [{"message": {"content": "x"}}], "usage": usage}
    tokens = wire_format("chat").parse(raw).tokens
    assert (tokens.input, tokens.output, tokens.reasoning) == (10120, 4308, 2809)
    if details:
        assert Price(1.25, 2.5, cache_read=0.2).cost(tokens) == pytest.approx(0.0232856)


def test_thinking_that_is_counted_as_output_is_not_added_to_it():
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 50,
        "total_tokens": 60,
        "completion_tokens_details": {"reasoning_tokens": 40},
    }
    tokens = wire_format("chat").parse({"choices": [{"message": {"content": "x"}}], "usage": usage}).tokens
    assert (tokens.output, tokens.reasoning) == (50, 40)


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
        ("gemini/gemini-2.5-pro", (1.25, 10.0, 0.125)),
        ("deepseek/deepseek-v4-flash", (0.14, 0.28, 0.0028)),
        ("groq/llama-3.3-70b-versatile", (0.59, 0.79, None)),
    ],
)
def test_rows_are_as_their_source_has_them(model, row):
    price = models.find_price(model)
    assert (price.input, price.output, price.cache_read) == row


@pytest.mark.parametrize(
    "provider",
    ["gemini", "vertex", "mistral", "groq", "together", "fireworks", "deepseek", "xai", "bedrock"],
)
def test_every_hosted_provider_has_dated_prices(provider):
    rows = [price for name, price in bundled().models.items() if name.startswith(f"{provider}/")]
    assert len(rows) >= 2
    assert all(re.search(r"\d{4}-\d{2}", price.source) for price in rows)


CHAT = {"prompt_tokens": 100, "completion_tokens": 50}
RESPONSES = {"input_tokens": 100, "output_tokens": 50}


@pytest.mark.parametrize(
    ("api", "usage", "given", "made"),
    [
        ("chat", CHAT, "prompt_tokens_details", "completion_tokens_details"),
        ("responses", RESPONSES, "input_tokens_details", "output_tokens_details"),
    ],
)
def test_audio_and_image_tokens_are_recorded_and_priced(api, usage, given, made):
    """Providers count them inside of the totals; a count beyond its total is not believed."""
    detailed = {
        **usage,
        given: {"audio_tokens": 10, "image_tokens": 40},
        made: {"audio_tokens": 5, "image_tokens": 20},
    }
    body = {
        "chat": {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]},
        "responses": {
            "status": "completed",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}],
        },
    }[api]
    tokens = wire_format(api).parse({**body, "usage": detailed}).tokens
    assert (tokens.audio_input, tokens.image_input) == (10, 40)
    assert (tokens.audio_output, tokens.image_output) == (5, 20)
    recorded = usage_of(tokens, calls=1, cost=None)
    assert (recorded.audio_tokens, recorded.image_tokens) == (15, 60)
    assert add_usage({"m": recorded}, {"m": recorded})["m"].image_tokens == 120
    detailed[given] = {"image_tokens": 101}
    assert wire_format(api).parse({**body, "usage": detailed}).tokens is None
