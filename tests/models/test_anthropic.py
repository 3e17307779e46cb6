"""Anthropic's messages: conversations, tools and images go over and come back."""

from __future__ import annotations

import pytest

from karat import models


@pytest.fixture
def claude(provider, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url.removesuffix("/v1"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-for-tests")
    return models.get("anthropic/claude-sonnet-4-5")


async def test_a_plain_question(claude, provider):
    reply = await claude.generate("hello")
    assert (reply.text, reply.finish_reason, reply.served_model) == ("hello", "stop", "claude-sonnet-4-5")
    assert reply.usage.cost == pytest.approx((6 * 3 + 2 * 15) / 1e6)
    assert provider.requests[0]["max_tokens"] == 4096
    assert provider.headers[0]["x-api-key"] == "sk-ant-for-tests"
    assert provider.headers[0]["anthropic-version"]


async def test_a_conversation_with_tools(claude, provider):
    await claude.generate(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "user", "content": "thanks"},
        ],
        tools=[
            {
                "type": "function",
                "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}},
            }
        ],
        tool_choice="required",
        stop=["END"],
        temperature=0,
        max_tokens=5,
    )
    sent = provider.requests[0]
    assert sent["system"] == "be brief"
    assert sent["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"},
                {"type": "text", "text": "thanks"},
            ],
        },
    ]
    assert sent["tools"] == [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}]
    assert sent["tool_choice"] == {"type": "any"}
    assert sent["stop_sequences"] == ["END"]


async def test_images(claude, provider):
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]
    provider.script.answers = "a cat"
    await claude.generate([{"role": "user", "content": parts}], max_tokens=3)
    assert [part["source"] for part in provider.requests[0]["messages"][0]["content"]] == [
        {"type": "base64", "media_type": "image/png", "data": "QUJD"},
        {"type": "url", "url": "https://example.org/a.png"},
    ]


async def test_tool_calls_come_back(claude, provider):
    provider.script.answers = lambda body: {
        "text": "let me see",
        "tool_calls": [{"name": "f", "arguments": {"x": 1}}],
    }
    reply = await claude.generate("q")
    assert reply.text == "let me see"
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("f", {"x": 1})]
    assert reply.finish_reason == "tool_calls"


async def test_n_answers_are_n_requests_and_all_are_kept(claude, provider):
    numbers = iter(range(100))
    provider.script.answers = lambda body: f"answer {next(numbers)}"
    with models.recording(example="e"):
        reply = await claude.generate("q", n=3)
    assert sorted(choice.text for choice in reply.choices) == ["answer 0", "answer 1", "answer 2"]
    assert (reply.usage.calls, provider.count) == (3, 3)
    with models.recording(example="e"):
        again = await claude.generate("q", n=3)
    assert [choice.text for choice in again.choices] == [choice.text for choice in reply.choices]
    assert again.cached
    assert provider.count == 3


async def test_a_refusal_is_a_content_filter(claude, provider):
    provider.script.answers = lambda body: {"text": "no", "finish_reason": "refusal"}
    with pytest.raises(models.ContentFiltered):
        await claude.generate("q")


async def test_cached_input_tokens_have_their_own_price(claude, provider):
    raw = {
        "content": [{"type": "text", "text": "x"}],
        "stop_reason": "end_turn",
        "model": "c",
        "usage": {
            "input_tokens": 10,
            "output_tokens": 2,
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 1000,
        },
    }
    provider.script.answers = lambda body: {"raw": raw}
    reply = await claude.generate("q")
    usage = reply.usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens) == (1110, 100, 1000)
    assert reply.usage.cost == pytest.approx((10 * 3 + 100 * 0.3 + 1000 * 3.75 + 2 * 15) / 1e6)
