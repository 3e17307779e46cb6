"""mem0: the conformance tests, its dates, its telemetry, and replies that it would skip."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
import time_machine

from karat.errors import DataError, RequestError
from karat.memory import memory_systems
from karat.testing import FakeProvider, MemorySystemConformance
from tests.memory.systems.scripted import extracting

pytest.importorskip("mem0")

CHAT = [
    ("Ann", "My dog Rex is afraid of thunder.", "2024-05-01"),
    ("Ben", "I booked flights to Lisbon for July.", "2024-05-02T09:30:00"),
]


@pytest.fixture(scope="module")
def provider():
    with extracting() as running:
        yield running


@pytest.fixture(autouse=True)
def _year_2031():
    with time_machine.travel("2031-03-01T12:00:00Z", tick=True):
        yield


class TestWithAModel(MemorySystemConformance):
    @pytest.fixture(autouse=True)
    def _provider(self, provider):
        self.model = provider.spec()

    def make(self):
        return memory_systems.get("mem0")(model=self.model)


class TestRawTurns(MemorySystemConformance):
    def make(self):
        return memory_systems.get("mem0")(infer=False)


def test_the_prompt_has_the_dialogues_date(drive, provider):
    provider.reset()
    system = drive("mem0", CHAT, model=provider.spec())
    prompts = json.dumps(provider.requests)
    assert "## Observation Date\\n2024-05-02 09:30" in prompts
    assert "## Current Date\\n2024-05-02 09:30" in prompts
    assert "2031" not in prompts
    assert [memory.metadata["time"] for memory in system.snapshot()] == ["2024-05-02T09:30:00"] * 2
    system.close()


def test_a_repeated_dialogue_asks_and_stores_the_same(drive, provider):
    provider.reset()
    first = drive("mem0", CHAT, CHAT[:1], model=provider.spec())
    asked = provider.requests
    provider.reset()
    second = drive("mem0", CHAT, CHAT[:1], model=provider.spec())
    assert first.snapshot() == second.snapshot()
    assert provider.requests in ([], asked)  # the second time, karat may answer from its cache
    first.close()
    second.close()


@pytest.mark.parametrize(
    "reply", ["not JSON", "[]", '{"memory": "a"}', '{"memory": [{"txt": "a"}]}', "{}", ""]
)
def test_a_reply_that_cannot_be_read_is_an_error(drive, reply):
    with FakeProvider(reply) as hostile, pytest.raises(Exception, match=r"mem0|empty|answer"):
        drive("mem0", CHAT, model=hostile.spec())


def test_a_memory_of_little_similarity_is_found(drive):
    system = drive("mem0", CHAT, infer=False)
    found = system.retrieve("Who repaired the carburettor?", 5, None).items
    assert [
        item.score for item in found if item.score is not None and 0 < item.score < 0.1
    ]  # below mem0's threshold
    system.close()


def test_an_empty_memory_is_not_an_error(drive):
    with FakeProvider('{"memory": []}') as quiet:
        system = drive("mem0", CHAT, model=quiet.spec())
    assert system.snapshot() == []
    system.close()


def test_it_needs_a_model_only_to_extract(monkeypatch, refuses):
    for name in ("KARAT_MODEL", "OPENAI_MODEL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with refuses(RequestError):
        memory_systems.get("mem0")()
    assert memory_systems.get("mem0")(infer=False).capabilities().provenance
    with pytest.raises(RequestError, match="infer"):
        memory_systems.get("mem0")(infer="no")


def test_a_damaged_file_is_not_loaded(drive, tmp_path):
    system = drive("mem0", infer=False)
    (tmp_path / "karat.json").write_text("{")
    with pytest.raises(DataError, match=r"karat\.json"):
        system.load(tmp_path)
    system.close()


def test_nothing_leaves_the_machine_from_import_to_exit(tmp_path, provider):
    """In a process of its own, because telemetry is set up at import and sent at exit."""
    script = f"""
        import atexit, os, sys
        from pathlib import Path
        from karat.testing import only_loopback
        guard = only_loopback()
        attempts = guard.__enter__()
        atexit.register(lambda: os.write(1, ("attempts: " + repr(attempts) + "\\n").encode()))
        import mem0  # with telemetry on, as a user's program may have imported it
        from karat.memory import Turn, memory_systems
        system = memory_systems.get("mem0")(model={provider.spec()!r})
        system.reset(Path({str(tmp_path)!r}))
        system.ingest_turn(Turn(turn_id="t", speaker="Ann", text="I live in Oslo."))
        system.end_session("S")
        print(len(system.snapshot()), len(system.retrieve("Where?", 5, None).items))
        system.close()
        """
    environment = {"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True, text=True, env=environment, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 1" in done.stdout
    assert "attempts: []" in done.stdout
