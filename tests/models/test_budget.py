"""A budget is never exceeded, stops cleanly, and is refused where no price is known."""

from __future__ import annotations

import asyncio
import json

import pytest

from karat import models
from karat.errors import BudgetReached, ConfigError, RequestError
from karat.models.providers import Tokens
from karat.testing import Failing, FakeProvider

PRICES = "{input: 1000, output: 2000, max_output: 50}"  # dollars for a million: easy to count


async def spend(model, budget, count, width=10, **parameters):
    """Asks `count` questions, `width` at a time, until the budget stops it; says how many were answered."""
    answered, stopped = 0, []
    numbers = iter(range(count))

    async def worker():
        nonlocal answered
        for number in numbers:
            if stopped:
                return
            try:
                with models.recording(example=str(number), budget=budget):
                    await model.generate(f"question {number}", **parameters)
                answered += 1
            except BudgetReached as error:
                stopped.append(error)

    await asyncio.gather(*(worker() for _ in range(width)))
    return answered, stopped


async def test_it_stops_before_it_is_exceeded(quick):
    with FakeProvider(latency=0.001) as server:
        budget = models.Budget(2.0)
        answered, stopped = await spend(quick(server, prices=PRICES), budget, 1000, max_tokens=10)
        assert stopped
        assert stopped[0].exit_code == 3
        assert "$2" in str(stopped[0])
        cost_of_one = (7 * 1000 + 3 * 2000) / 1e6
        assert budget.spent == pytest.approx(answered * cost_of_one)
        assert budget.spent <= 2.0
        assert budget.spent > 1.7  # what is in flight is set aside at its worst, and given back
        assert budget.reserved == 0


async def test_cached_replies_cost_nothing(quick):
    with FakeProvider() as server:
        model = quick(server, prices=PRICES)
        first = models.Budget(1.0)
        answered, _ = await spend(model, first, 20, max_tokens=5)
        assert answered == 20
        again = models.Budget(0.000001)
        assert await spend(model, again, 20, max_tokens=5) == (20, [])
        assert again.spent == 0


async def test_an_answer_lost_on_the_way_counts_at_its_worst(quick):
    with FakeProvider(failures={1: Failing(drop=True), 2: 500}) as server:
        budget = models.Budget(5.0)
        model = quick(server, prices=PRICES)
        with models.recording(example="e", budget=budget):
            reply = await model.generate("question 0", max_tokens=10)
        assert budget.spent > reply.usage.cost  # the dropped one may have been charged; the 500 was not
        assert budget.spent < 5 * reply.usage.cost + 0.2


async def test_without_a_price_it_is_refused_before_anything_is_sent(quick, refuses):
    with FakeProvider() as server:
        model = quick(server)
        assert not model.priced
        with (
            models.recording(example="e", budget=models.Budget(1)),
            refuses(RequestError),
        ):
            await model.generate("x")
        assert server.count == 0


async def test_without_any_limit_of_the_answer_it_is_refused(quick):
    with FakeProvider() as server:
        model = quick(server, prices="{input: 1, output: 1}")
        with (
            models.recording(example="e", budget=models.Budget(1)),
            pytest.raises(RequestError, match="max_tokens"),
        ):
            await model.generate("x")


async def test_the_worst_case_knows_every_way_to_limit_an_answer(quick):
    with FakeProvider() as server:
        model = quick(server, prices=PRICES)
        budget = models.Budget(1.0)
        with models.recording(example="e", budget=budget), pytest.raises(BudgetReached):
            await model.generate("x", max_tokens=5, extra={"max_completion_tokens": 5000})
        assert server.count == 0


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), "2"])
def test_a_budget_is_an_amount(limit):
    with pytest.raises(RequestError, match="dollars above 0"):
        models.Budget(limit)


def test_prices_are_dated_and_dated_versions_are_known():
    assert models.price_date() > "2025"
    assert models.find_price("openai/gpt-4o-mini-2024-07-18") == models.find_price("openai/gpt-4o-mini")
    assert models.find_price("openai/never-heard-of") is None
    assert models.get("local/smollm2-135m").endpoint.price == models.Price(0, 0)


def test_prices_can_be_overridden(folder, monkeypatch):
    table = {
        "date": "2030-01-01",
        "models": {"openai/gpt-4o-mini": {"input": 9, "output": 9}, "openai/new": {"input": 1, "output": 2}},
    }
    (folder / "prices.json").write_text(json.dumps(table))
    monkeypatch.setenv("KARAT_PRICES", str(folder / "prices.json"))
    assert models.find_price("openai/gpt-4o-mini").input == 9
    assert models.find_price("openai/new").output == 2
    assert models.find_price("openai/gpt-4o").input == 2.5
    (folder / "prices.yaml").write_text("date: 2030-01-01\nmodels:\n  openai/x: {input: 3, output: 4}\n")
    monkeypatch.setenv("KARAT_PRICES", str(folder / "prices.yaml"))
    assert models.find_price("openai/x").input == 3
    monkeypatch.setenv("KARAT_PRICES", "absent.json")
    with pytest.raises(ConfigError, match=r"absent\.json"):
        models.find_price("openai/x")


def test_cost():
    price = models.Price(2.0, 10.0, cache_read=0.5)
    assert price.cost(Tokens(input=100, output=10, cache_read=40)) == pytest.approx(
        (60 * 2 + 40 * 0.5 + 100) / 1e6
    )


async def test_calls_that_wait_for_a_rate_are_not_sent_after_others_overdrew_the_budget(quick):
    """A server may count more than was asked for: what waits for its turn asks the budget again."""

    def dear(body):
        return {"text": "x", "usage": (900, 100)}

    with FakeProvider(answers=dear) as server:
        model = quick(server, prices=PRICES, limits="{requests_per_minute: 120}")
        budget = models.Budget(3.0)
        answered, stopped = await spend(model, budget, 100, width=30, max_tokens=1)
        assert stopped
        assert budget.reserved == 0
        assert answered == server.count <= 4  # $1.10 each, so the third exceeds it; one more may be in flight


@pytest.mark.parametrize(
    ("address", "free"),
    [
        (None, True),
        ("http://127.0.0.2:1/v1", True),
        ("http://[::1]:1/v1", True),
        ("http://192.168.1.5:11434/v1", True),
        ("http://gpu-box:11434/v1", True),
        ("http://gpu.local:11434/v1", True),
        ("https://ollama.com/v1", False),
        ("http://8.8.8.8:11434/v1", False),
        ("http://127.0.0.1.example.com/v1", False),
    ],
)
def test_a_program_that_is_free_at_home_has_no_price_elsewhere(monkeypatch, address, free):
    if address is not None:
        monkeypatch.setenv("OLLAMA_BASE_URL", address)
    assert models.get("ollama/llama3").priced is free
