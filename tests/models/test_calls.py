"""What a task asks is recorded: in order, with usage, through tasks and threads, and nothing outside of an item."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import msgspec
import pytest

import karat
from karat import models
from karat.models._recording import current
from karat.records import Call, Usage


async def test_a_call_is_recorded(provider, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
    model = models.get("openai/gpt-4o-mini")
    with models.recording(example="e1") as calls:
        reply = await model.generate("hello", temperature=0, max_tokens=5)
    (call,) = calls
    assert call.kind == "model"
    assert call.name == "openai/gpt-4o-mini"
    assert call.input == {
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0,
        "max_tokens": 5,
    }
    assert call.output == "hello"
    assert call.usage == reply.usage
    assert call.usage.cost == pytest.approx((6 * 0.15 + 2 * 0.6) / 1e6)
    assert call.metadata["served_model"] == "gpt-4o-mini"
    assert msgspec.json.decode(msgspec.json.encode(call), type=Call) == call


async def test_calls_are_in_the_order_of_their_start(provider):
    waits = {"slow": 0.05, "fast": 0.0}

    async def ask(text):
        provider.latency = waits[text]
        return await models.get(provider.spec()).generate(text)

    with models.recording(example="e") as calls:
        slow = asyncio.ensure_future(ask("slow"))
        while not provider.in_flight:
            await asyncio.sleep(0.001)
        await ask("fast")
        assert not slow.done()
        assert calls[0].error == "unfinished"
        await slow
    assert [call.output for call in calls] == ["slow", "fast"]


async def test_items_that_run_side_by_side_do_not_mix(provider):
    model = models.get(provider.spec())

    async def item(name):
        with models.recording(example=name) as calls:
            await asyncio.gather(*(model.generate(f"{name} {n}") for n in range(5)))
            return [call.output for call in calls]

    found = await asyncio.gather(*(item(f"item {n}") for n in range(10)))
    assert found == [[f"item {n} {m}" for m in range(5)] for n in range(10)]


def test_threads_carry_the_context_they_are_given(provider):
    model = models.get(provider.spec())
    with models.recording(example="e") as calls:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(model.generate_sync, "from a thread"))
        thread.start()
        thread.join()
    assert [call.output for call in calls] == ["from a thread"]
    assert current() is None


async def test_usage_adds_up_and_an_unknown_price_stays_unknown(provider, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
    known, unknown = models.get("openai/gpt-4o-mini"), models.get(provider.spec("m"))
    with models.recording(example="e") as calls:
        for model in (known, known, unknown):
            await model.generate("hi there", temperature=0)
    usage = calls.usage()
    assert usage["openai/gpt-4o-mini"] == Usage(
        input_tokens=14,
        output_tokens=6,
        calls=2,
        cached_calls=1,
        cost=pytest.approx((7 * 0.15 + 3 * 0.6) / 1e6),
    )
    assert usage[unknown.spec].cost is None
    assert usage[unknown.spec].input_tokens == 7


async def test_a_cancelled_call_says_so(provider):
    provider.latency = 60
    with models.recording(example="e") as calls, pytest.raises(TimeoutError):
        await asyncio.wait_for(models.get(provider.spec()).generate("x"), 0.05)
    assert calls[0].error == "cancelled"


async def test_tools_are_recorded_plain_and_async_and_with_what_they_call():
    @models.tool
    def add(a: int, b: int = 1) -> int:
        return a + b

    @models.tool
    async def broken(x: str) -> None:
        raise KeyError(x)

    assert add(1) == 2  # outside of an item nothing is recorded
    with models.recording(example="e") as calls:
        assert add(1, b=2) == 3
        with pytest.raises(KeyError):
            await broken("y")
        models.record_tool_call("search", {"q": "z"}, result=["hit"], seconds=0.5)
    assert [(call.kind, call.name, call.input, call.output, call.error) for call in calls] == [
        ("tool", "add", {"a": 1, "b": 2}, 3, None),
        ("tool", "broken", {"x": "y"}, None, "KeyError: 'y'"),
        ("tool", "search", {"q": "z"}, ["hit"], None),
    ]
    assert calls[2].seconds == 0.5
    assert calls.usage() == {}


def test_threads_of_an_item_get_places_and_numbers_of_their_own():
    """Each of two calls, at the same moment: else one is lost from the trace, or both get one sample of the cache."""

    def at_the_same_moment(ask):
        """What `ask` returns here and in a thread that begins in the middle of it, once `interrupt` is called."""
        found, others = [], []

        def interrupt():
            if not others:
                others.append(threading.Thread(target=lambda: found.append(ask())))
                others[0].start()
                others[0].join(0.2)  # it waits until this call has its own

        return found, others, interrupt

    class Places(models.recording):
        def append(self, call):
            super().append(call)
            interrupt()

        def __len__(self):
            known = super().__len__()
            interrupt()
            return known

    class Numbers(dict):
        def get(self, *given):
            known = super().get(*given)
            interrupt()
            return known

    calls = Places(example="e")
    found, others, interrupt = at_the_same_moment(lambda: calls.begin(Call(kind="tool", name="t")))
    found.append(calls.begin(Call(kind="tool", name="t")))
    others[0].join()
    assert sorted(found) == [0, 1]

    counted = models.recording(example="e")
    found, others, interrupt = at_the_same_moment(lambda: counted.occurrence(b"request"))
    counted._seen = Numbers()
    found.append(counted.occurrence(b"request"))
    others[0].join()
    assert sorted(found) == [1, 2]


def test_recordings_nest_and_end():
    with models.recording(example="outer") as outer:
        with models.recording(example="inner") as inner:
            models.record_tool_call("a")
        models.record_tool_call("b")
    models.record_tool_call("c")
    assert [call.name for call in outer] == ["b"]
    assert [call.name for call in inner] == ["a"]


@pytest.mark.parametrize("value", [float("nan"), object()])
def test_metadata_of_a_plain_call_is_checked_before_it_is_stored(provider, value):
    model = models.get(provider.spec())

    async def annotated(question):
        reply = await model.generate(question)
        models.annotate(note=value)
        return reply.text

    async def with_a_tool(question):
        reply = await model.generate(question)
        models.record_tool_call("tool", {"argument": value})
        return reply.text

    for task in (annotated, with_a_tool):
        run = karat.run(task, [{"id": "a", "input": "a question"}], store="memory://")
        assert run.counts.failed == 1
        (output,) = run.outputs()
        assert output.outcome.error.type == "UnsupportedType"
