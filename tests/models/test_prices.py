"""What tokens cost: dated rows with a source, kinds of tokens, long contexts, batches, and a file of one's own."""

from __future__ import annotations

import json
import re
from datetime import date

import pytest

from karat import models
from karat.errors import BudgetReached
from karat.models._messages import Request
from karat.models._prices import LongContext, Price, bundled, worst_cost
from karat.models._request_context import all_tokens, usage_of
from karat.models.providers import Tokens, wire_format
from karat.records import add_usage
from karat.testing import Failing, FakeProvider


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
        ("deepseek/deepseek-v4-flash", (0.3, 1.2, 0.006)),
        ("openai/gpt-5.6-terra", (2.0, 12.0, 0.2)),
        ("bedrock/us.anthropic.claude-sonnet-5", (2.2, 11.0, 0.22)),
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


# Service tiers and tools of providers ---------------------------------------------

TEXTS = {
    "chat": {"choices": [{"message": {"content": "x", "annotations": []}, "finish_reason": "stop"}]},
    "responses": {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}],
    },
    "anthropic": {"content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"},
}
USED = {"chat": CHAT, "responses": RESPONSES, "anthropic": RESPONSES}


def served(api, tier=None, **usage):
    """A reply that says at which tier it was served, where its format says so."""
    used = {**USED[api], **usage}
    if tier is not None and api == "anthropic":
        used["service_tier"] = tier
    top = {"service_tier": tier} if tier is not None and api != "anthropic" else {}
    return {**TEXTS[api], **top, "usage": used}


PRICED = Price(1000.0, 2000.0, tiers={"flex": 0.5, "priority": 2.0, "us": 1.1}, web_searches=10.0)
STANDARD = 0.1 + 0.1


@pytest.mark.parametrize("api", TEXTS)
@pytest.mark.parametrize(
    ("tier", "cost"),
    [
        (None, STANDARD),
        ("default", STANDARD),
        ("standard", STANDARD),
        ("flex", STANDARD / 2),
        ("priority", STANDARD * 2),
        ("scale", None),
        ("a-tier-of-next-year", None),
        (7, None),
        (["flex"], None),
    ],
)
def test_a_reply_costs_what_its_tier_costs_or_is_unknown(api, tier, cost):
    tokens = wire_format(api).parse(served(api, tier)).tokens
    assert (tokens.input, tokens.output) == (100, 50)
    assert PRICED.cost(tokens) == (cost if cost is None else pytest.approx(cost))


def test_a_region_and_a_speed_have_prices_of_their_own():
    """platform.claude.com/docs/en/manage-claude/data-residency: inference in the US costs 1.1 times as much."""
    usage = {"service_tier": "standard", "inference_geo": "us", "speed": "standard"}
    tokens = wire_format("anthropic").parse(served("anthropic", **usage)).tokens
    assert PRICED.cost(tokens) == pytest.approx(1.1 * STANDARD)
    usage["speed"] = "fast"
    fast = wire_format("anthropic").parse(served("anthropic", **usage)).tokens
    assert (fast.tier, PRICED.cost(fast)) == ("fast+us", None)


def item(kind, **fields):
    return {"type": kind, "id": "i", "status": "completed", **fields}


@pytest.mark.parametrize(
    ("items", "cost"),
    [
        ([item("web_search_call", action={"type": "search"})] * 2, STANDARD + 0.02),
        ([item("web_search_call", action={"type": "open_page"})], STANDARD),
        ([item("mcp_call", name="f")], STANDARD),
        ([item("file_search_call")], None),
        ([item("code_interpreter_call")], None),
        ([item("image_generation_call")], None),
        ([item("tool_of_next_year_call")], None),
    ],
)
def test_searches_of_openai_are_priced_and_other_tools_are_unknown(items, cost):
    raw = served("responses")
    tokens = wire_format("responses").parse({**raw, "output": [*items, *raw["output"]]}).tokens
    assert PRICED.cost(tokens) == (cost if cost is None else pytest.approx(cost))
    assert Price(1000.0, 2000.0).cost(tokens) == (STANDARD if cost == STANDARD else None)


@pytest.mark.parametrize(
    ("tools", "cost"),
    [
        ({"web_search_requests": 3, "web_fetch_requests": 2}, STANDARD + 0.03),
        ({"web_search_requests": 0}, STANDARD),
        ({"code_execution_requests": 1}, None),
        ({"web_search_requests": "3"}, None),
        ({"web_search_requests": -1}, None),
    ],
)
def test_searches_of_anthropic_are_priced_and_other_tools_are_unknown(tools, cost):
    tokens = wire_format("anthropic").parse(served("anthropic", server_tool_use=tools)).tokens
    assert PRICED.cost(tokens) == (cost if cost is None else pytest.approx(cost))


@pytest.mark.parametrize(
    ("message", "usage", "cost"),
    [
        ({"annotations": [{"type": "url_citation"}]}, {}, None),
        ({"annotations": [{"type": "url_citation"}]}, {"server_tool_use": {"web_search_requests": 2}}, 0.22),
        ({"executed_tools": [{"type": "search"}]}, {}, None),
        ({}, {"num_sources_used": 4}, None),
        ({}, {"num_sources_used": 0}, STANDARD),
    ],
)
def test_searches_in_chat_completions_are_priced_where_they_are_counted(message, usage, cost):
    raw = served("chat", **usage)
    raw["choices"] = [{"message": {"content": "x", **message}, "finish_reason": "stop"}]
    assert PRICED.cost(wire_format("chat").parse(raw).tokens) == (
        cost if cost is None else pytest.approx(cost)
    )


def test_turns_of_different_tiers_have_no_known_cost():
    flex = Tokens(10, 5, tier="flex", web_searches=1)
    assert all_tokens(flex, flex) == Tokens(20, 10, tier="flex", web_searches=2)
    assert all_tokens(Tokens(), flex) == flex
    assert PRICED.cost(all_tokens(flex, Tokens(10, 5))) is None
    assert all_tokens(flex, Tokens(10, 5, other_fees=True)).other_fees


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tier_and_the_searches_are_recorded(quick, stream):
    usage = {"server_tool_use": {"web_search_requests": 2}}
    raw = served("chat", "flex", **usage)
    events = [
        {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": raw["usage"], "service_tier": "flex"},
    ]
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n"
    failures = {1: Failing(body=body, headers={"Content-Type": "text/event-stream"})} if stream else {}
    with FakeProvider([{"raw": raw}], failures=failures) as server:
        model = quick(server, prices="{input: 1000, output: 2000, tiers: {flex: 0.5}, web_searches: 10}")
        with models.recording(example="e") as calls:
            reply = await model.generate("?", stream=stream, extra={"service_tier": "flex"})
    assert (reply.service_tier, reply.web_searches) == ("flex", 2)
    assert reply.usage.cost == pytest.approx(STANDARD / 2 + 0.02)
    assert calls[0].metadata["service_tier"] == "flex"
    assert calls[0].metadata["web_searches"] == 2


@pytest.mark.parametrize(
    "options",
    [
        {"extra": {"service_tier": "priority"}},
        {"extra": {"web_search_options": {}}},
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "code_execution_20260101", "name": "code_execution"}]},
    ],
)
async def test_a_budget_refuses_what_it_cannot_bound(quick, options):
    with FakeProvider() as server:
        model = quick(server, prices="{input: 1, output: 1, tiers: {flex: 0.5}}")
        with models.recording(example="e", budget=models.Budget(1)), pytest.raises(models.PriceUnknown):
            await model.generate("x", max_tokens=5, **options)
        assert server.count == 0


async def test_a_budget_reserves_what_the_tier_costs(quick):
    with FakeProvider() as server:
        model = quick(server, prices="{input: 1000, output: 1000, tiers: {flex: 0.5, priority: 2}}")
        reserved = {}
        for tier in ("default", "flex", "priority"):
            with (
                models.recording(example="e", budget=models.Budget(0.001)),
                pytest.raises(BudgetReached) as stopped,
            ):
                await model.generate("x", max_tokens=1000, extra={"service_tier": tier})
            reserved[tier] = float(re.search(r"which is \$([\d.]+)", str(stopped.value))[1])
        assert reserved["flex"] < reserved["default"] < reserved["priority"]


def test_a_short_request_is_bounded_by_the_price_of_short_ones():
    price = Price(1.0, 2.0, long_context=LongContext(above=1000, input=10.0, output=20.0))
    request = Request(messages=[{"role": "user", "content": "x"}], max_tokens=100)
    assert worst_cost(price, request, 500, "m") == worst_cost(Price(1.0, 2.0), request, 500, "m")
    assert worst_cost(price, request, 1000, "m") == worst_cost(Price(10.0, 20.0), request, 1000, "m")
