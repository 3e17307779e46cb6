"""LangGraph stores and LangMem: the conformance tests, updates, tracing, and errors that LangMem hides."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import time_machine

from karat.errors import DataError, RequestError
from karat.memory import memory_systems
from karat.testing import FakeProvider, MemorySystemConformance, only_loopback
from tests.memory.systems.scripted import extracting

pytest.importorskip("langmem")

FIRST = [("Ann", "I live in Oslo.", "2024-05-01"), ("Ben", "I play the cello.", "2024-05-01")]
SECOND = [("Ann", "I moved to Bergen.", "2024-06-01")]


@pytest.fixture(scope="module")
def provider():
    with extracting() as running:
        yield running


@pytest.fixture(autouse=True)
def _year_2031():
    with time_machine.travel("2031-03-01T12:00:00Z", tick=True):
        yield


class TestLangGraph(MemorySystemConformance):
    def make(self):
        return memory_systems.get("langgraph")()


class TestLangMem(MemorySystemConformance):
    @pytest.fixture(autouse=True)
    def _provider(self, provider):
        self.model = provider.spec()

    def make(self):
        return memory_systems.get("langmem")(model=self.model)


def shared_store():
    return SHARED


class TestALangGraphStoreOfOnesOwn(MemorySystemConformance):
    """One store for all samples: each has a namespace of its own."""

    def make(self):
        return memory_systems.get("langgraph")(store=f"{__name__}.shared_store")


def setup_module():
    global SHARED
    from langgraph.store.memory import InMemoryStore

    SHARED = InMemoryStore()


def test_a_store_of_ones_own_is_left_clean(drive):
    from langgraph.store.memory import InMemoryStore

    store = InMemoryStore()
    system = drive("langgraph", FIRST, store=store)
    assert len(store.search((), limit=10)) == 2
    system.close()
    assert store.search((), limit=10) == []


def test_a_value_that_is_not_a_store_is_refused(drive):
    with pytest.raises(RequestError, match="BaseStore"):
        drive("langgraph", store=lambda: "a store")


class Updating:
    """A model that stores the first session, and patches what it stored when it reads the second."""

    def __call__(self, body):
        prompt = json.dumps(body["messages"])
        if "Bergen" not in prompt:
            calls = [
                {"name": "Memory", "arguments": {"content": "Ann lives in Oslo."}},
                {"name": "Memory", "arguments": {"content": "Ben plays the cello."}},
            ]
            return {"text": "", "tool_calls": calls}
        key = re.search(r"<instance id=(\w+)[^<]*Oslo", prompt)[1]
        patch = {"op": "replace", "path": "/content", "value": "Ann lives in Bergen."}
        arguments = {"json_doc_id": key, "planned_edits": "she moved", "patches": [patch]}
        return {"text": "", "tool_calls": [{"name": "PatchDoc", "arguments": arguments}]}


def test_langmem_updates_a_memory_in_place(drive):
    with FakeProvider(Updating(), strict=False) as provider:
        system = drive("langmem", FIRST, SECOND, model=provider.spec())
        prompts = json.dumps(provider.requests)
    assert [(memory.text, memory.session_id) for memory in system.snapshot()] == [
        ("Ann lives in Bergen.", "S01"),
        ("Ben plays the cello.", "S00"),
    ]
    assert "[2024-06-01] Ann: I moved to Bergen." in prompts
    assert "2031" not in prompts


def test_a_repeated_dialogue_asks_and_stores_the_same(drive, provider):
    provider.reset()
    first = drive("langmem", FIRST, SECOND, model=provider.spec()).snapshot()
    asked = provider.requests
    provider.reset()
    assert drive("langmem", FIRST, SECOND, model=provider.spec()).snapshot() == first
    assert provider.requests in ([], asked)  # the second time, karat may answer from its cache


def test_tracing_that_the_environment_asks_for_stays_off(drive, provider, monkeypatch):
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("LANGSMITH_API_KEY", "a-key")
    with only_loopback() as attempts:
        system = drive("langmem", FIRST, model=provider.spec())
        assert len(system.snapshot()) == 2
    assert attempts == []


def test_a_model_that_stores_nothing_is_not_an_error(drive):
    with FakeProvider("nothing to call", strict=False) as provider:
        assert drive("langmem", FIRST, model=provider.spec()).snapshot() == []


def test_a_write_that_fails_is_an_error(drive, provider):
    class Failing:
        spec = "failing"

        def embed_sync(self, texts):
            if any("cello" in text and "[" in text[:1] for text in texts):
                raise OSError("no vectors")
            return [[1.0, 2.0]] * len(texts)

    with pytest.raises(OSError, match="no vectors"):
        drive("langmem", FIRST, model=provider.spec(), embedder=Failing())


@pytest.mark.parametrize("name", ["langgraph", "langmem"])
@pytest.mark.parametrize("content", ["{", '{"format": 1, "system": "other", "items": []}'])
def test_a_damaged_or_foreign_file_is_not_loaded(drive, provider, tmp_path, name, content):
    system = drive(name, **({"model": provider.spec()} if name == "langmem" else {}))
    (tmp_path / "items.json").write_text(content)
    with pytest.raises(DataError, match=r"items\.json"):
        system.load(tmp_path)


def test_it_prints_nothing(tmp_path, provider):
    """In a process of its own, because a library warns when it is first imported."""
    script = f"""
from pathlib import Path
from karat.memory import Turn, memory_systems
system = memory_systems.get("langmem")(model={provider.spec()!r})
system.reset(Path({str(tmp_path)!r}))
system.ingest_turn(Turn(turn_id="t", speaker="Ann", text="I live in Oslo.", time="2024-05-01"))
system.end_session("S")
print(len(system.snapshot()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "1\n", done.stderr
    assert done.stderr == ""
