"""Every built-in system and control passes the conformance tests, with the machine's clock in the year 2031."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import time_machine

from karat.memory import memory_systems
from karat.testing import MemorySystemConformance

BUILT_IN = ["BM25Memory", "FUMemory", "GAMemory", "LTMemory", "MGMemory", "RFMemory", "STMemory"]
CONTROLS = ["always_refuse", "full_context", "no_memory", "oracle"]


@pytest.fixture(autouse=True)
def _year_2031():
    with time_machine.travel("2031-03-01T12:00:00Z", tick=True):
        yield


class ByName(MemorySystemConformance):
    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make(self):
        return memory_systems.get(self.name)()


@pytest.mark.parametrize("name", [*BUILT_IN, "full_context", "oracle"])
class TestSystemsThatStoreTurns(ByName):
    pass


@pytest.mark.parametrize("name", ["no_memory", "always_refuse"])
class TestControlsThatStoreNothing(ByName):
    stores = False


def test_the_demo_runs_every_system_and_control():
    made = (Path(__file__).parents[3] / "Makefile").read_text()
    named = dict(re.findall(r"^(CONTROLS|SYSTEMS) := (.*)$", made, re.MULTILINE))
    assert sorted(named["SYSTEMS"].split()) == BUILT_IN
    assert sorted(named["CONTROLS"].split()) == CONTROLS


def test_every_registered_system_is_tested():
    adapters = {"command", "graphiti", "http", "langgraph", "langmem", "mem0"}  # in files of their own
    assert set(memory_systems.list()) - adapters == {*BUILT_IN, *CONTROLS}
