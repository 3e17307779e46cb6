"""Graphiti with Kuzu: runs where the extra `graphiti` is installed, which no other extra needs."""

from __future__ import annotations

import json
import re

import pytest
import time_machine

from karat.memory import memory_systems
from karat.testing import FakeProvider, MemorySystemConformance

pytest.importorskip("graphiti_core")
pytest.importorskip("kuzu")


def answer(body):
    """One fact for each turn, between two things that occur in no other turn."""
    prompt = body["messages"][-1]["content"]
    wanted = re.search(r'"title": "(\w+)", "type": "object"}?\s*$', prompt)
    name = wanted[1] if wanted else ""
    shown = prompt.partition("<CURRENT MESSAGE>")[2].partition("</CURRENT MESSAGE>")[0] or prompt
    said = re.findall(r"^\[(2019-[\d-]+)[^\]]*\] (\w+): (.*)$", shown, re.MULTILINE)
    number = lambda text: (re.search(r"number (\d+)", text) or [0, text[:20]])[1]  # noqa: E731
    if name == "ExtractedEntities":
        names = [f"{side} {number(text)}" for _, _, text in said for side in ("thing", "place")]
        return json.dumps({"extracted_entities": [{"name": each, "entity_type_id": 0} for each in names]})
    if name == "ExtractedEdges":
        edges = [
            {
                "source_entity_name": f"thing {number(text)}",
                "target_entity_name": f"place {number(text)}",
                "relation_type": "IS_IN",
                "fact": text or "nothing",
                "valid_at": f"{date}T00:00:00Z",
                "invalid_at": None,
            }
            for date, _, text in said
        ]
        return json.dumps({"edges": edges})
    return json.dumps(
        {"entity_resolutions": [], "summaries": [], "duplicate_facts": [], "contradicted_facts": []}
    )


@pytest.fixture(scope="module")
def provider():
    with FakeProvider(answer, strict=False) as running:
        yield running


@pytest.fixture(autouse=True)
def _year_2031():
    with time_machine.travel("2031-03-01T12:00:00Z", tick=True):
        yield


class TestGraphiti(MemorySystemConformance):
    verbatim = False
    long_text = 20_000

    @pytest.fixture(autouse=True)
    def _provider(self, provider):
        self.model = provider.spec()

    def make(self):
        return memory_systems.get("graphiti")(model=self.model)


def test_no_prompt_has_todays_date(drive, provider):
    provider.reset()
    chat = [("Ann", "The kettle number 7 is in the attic.", "2019-05-01")]
    system = drive("graphiti", chat, model=provider.spec())
    assert [memory.text for memory in system.snapshot()] == [
        "[2019-05-01] The kettle number 7 is in the attic."
    ]
    assert provider.requests
    assert "2031" not in json.dumps(provider.requests)
    system.close()
