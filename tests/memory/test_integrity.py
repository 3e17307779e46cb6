"""What reaches memory systems and the answering model: no gold, no revealing ids, no time of the machine."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import time_machine

import karat
from karat.memory import (
    Attachment,
    Evidence,
    MemoryPoint,
    Question,
    Retrieval,
    RetrievedMemory,
    Sample,
    Session,
    Turn,
)
from karat.testing import FakeProvider
from tests.memory.parts import Notes, Oracle, labels_for, sample
from tests.memory.systems.test_conformance import BUILT_IN, CONTROLS

ANSWER = '{"answer": "I do not know.", "cited": []}'
CANARY = "CANARY"


def marked() -> Sample:
    """A sample in which everything that is gold, or reveals it, is marked."""

    def point(name: str, **more: Any) -> MemoryPoint:
        return MemoryPoint(
            memory_id=f"{CANARY}-{name}",
            text=f"{CANARY} {name}",
            type=CANARY,
            source=CANARY,
            original=(f"{CANARY} before",),
            time=CANARY,
            **more,
        )

    def asked(index: int, **more: Any) -> Question:
        return Question(
            index=index,
            checkpoint_id=f"{CANARY}_abs",
            after_session="S0",
            question="What is it?",
            answer=f"{CANARY} answer",
            answers=(f"{CANARY} other",),
            rubric=(f"{CANARY} rubric",),
            evidence=(Evidence(evidence_id=f"{CANARY}-e", text=f"{CANARY} evidence", turn_ids=("T0",)),),
            type=f"{CANARY}-type",
            type_abbrev=CANARY,
            difficulty=CANARY,
            source_id=f"answer_{CANARY}",
            now="2024-01-02",
            **more,
        )

    said = Turn(
        turn_id="T0",
        speaker="user",
        text="It is a bird. [image I1: a bird]",
        time="2024-01-01",
        session_id="S0",
        attachments=(Attachment(image_id="I1", caption="a bird"),),
    )
    return Sample(
        sample_id=f"answer_{CANARY}_abs",
        uuid=f"{CANARY}-uuid",
        sessions=(
            Session(
                session_id="S0",
                turns=(said,),
                new=(point("new"),),
                updates=(point("update", is_update=True),),
                interference=(point("interference"),),
                source_id=f"answer_{CANARY}",
            ),
        ),
        questions=(
            asked(0),
            asked(1, answerable=False),
            asked(2, image_caption="a nest", choices=("a bird", "a fish"), caption_has_answer=True),
        ),
        notes=(CANARY,),
    )


class Spy(Notes):
    """Writes down everything it is given."""

    name = "spy"
    seen: list[str] = []

    def _see(self, *given: Any) -> None:
        self.seen.append(json.dumps(msgspec.to_builtins(given, enc_hook=str)))

    def reset(self, directory: Path) -> None:
        self._see(directory, sorted(map(str, directory.rglob("*"))))
        super().reset(directory)

    def ingest_turn(self, turn: Turn) -> None:
        self._see(turn)
        super().ingest_turn(turn)

    def end_session(self, session_id: str) -> None:
        self._see(session_id)

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        self._see(query, top_k, now)
        return super().retrieve(query, top_k, now)

    def save(self, directory: Path) -> None:
        self._see(directory)
        super().save(directory)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache" / "replies.db"))


def test_no_gold_reaches_the_system_or_the_answering_model(tmp_path, monkeypatch):
    monkeypatch.setattr(Spy, "seen", [])
    with FakeProvider(ANSWER) as server:
        karat.memory.evaluate(
            [marked()],
            Spy,
            output_dir=tmp_path / "out",
            model=server.spec(),
            judge="deterministic",
            store="memory://",
        )
        asked = json.dumps(server.requests)
    assert len(Spy.seen) >= 7
    assert [each for each in Spy.seen if CANARY in each] == []
    assert server.count == 3
    assert CANARY not in asked


class Receiver(Notes):
    """Keeps the turns and the dates of queries as it gets them."""

    name = "receiver"
    turns_seen: list[Turn] = []
    dates: list[str | None] = []

    def ingest_turn(self, turn: Turn) -> None:
        self.turns_seen.append(turn)
        super().ingest_turn(turn)

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        self.dates.append(now)
        return super().retrieve(query, top_k, now)


def test_a_system_gets_whole_turns_and_the_date_of_the_question(tmp_path, monkeypatch):
    monkeypatch.setattr(Receiver, "turns_seen", [])
    monkeypatch.setattr(Receiver, "dates", [])
    karat.memory.evaluate(
        [marked()],
        Receiver,
        output_dir=tmp_path,
        model="extractive",
        judge="deterministic",
        store="memory://",
    )
    [said] = Receiver.turns_seen
    assert (said.turn_id, said.speaker, said.time, said.session_id) == ("T0", "user", "2024-01-01", "S0")
    assert said.text == "It is a bird. [image I1: a bird]"
    assert [(each.image_id, each.caption) for each in said.attachments] == [("I1", "a bird")]
    assert Receiver.dates == ["2024-01-02"] * 3


class Searcher(Notes):
    """Reads every file near the directories that it is given."""

    name = "searcher"
    read: list[str] = []
    stops: list[str] = []

    def reset(self, directory: Path) -> None:
        self.near = directory.parents[2]
        super().reset(directory)

    def end_session(self, session_id: str) -> None:
        self.read += [each.read_text() for each in self.near.rglob("*") if each.is_file()]
        if session_id == "S1" and not self.stops:
            self.stops.append(session_id)
            raise KeyboardInterrupt


def test_no_gold_lies_beside_the_directory_of_a_system(tmp_path, monkeypatch):
    monkeypatch.setattr(Searcher, "read", [])
    monkeypatch.setattr(Searcher, "stops", [])
    later = Session(
        session_id="S1", turns=(Turn(turn_id="T1", speaker="user", text="Bye.", session_id="S1"),)
    )
    samples = [msgspec.structs.replace(marked(), sessions=(*marked().sessions, later))]
    options: dict[str, Any] = {"model": "extractive", "judge": "deterministic", "controls": True}
    with pytest.raises(KeyboardInterrupt):
        karat.memory.evaluate(
            samples, Searcher, output_dir=tmp_path / "out", store=tmp_path / "a.db", **options
        )
    karat.memory.evaluate(samples, Searcher, output_dir=tmp_path / "out", store=tmp_path / "a.db", **options)
    assert any('"origins"' in each for each in Searcher.read)
    assert [each for each in Searcher.read if CANARY in each] == []
    karat.memory.evaluate(samples, Notes, output_dir=tmp_path / "notes", store="memory://", **options)
    resumed = (tmp_path / "out" / "pipeline_sessions.jsonl").read_text()
    assert (
        resumed.replace("searcher", "notes") == (tmp_path / "notes" / "pipeline_sessions.jsonl").read_text()
    )


def test_the_query_is_exactly_the_question_and_its_caption(tmp_path):
    karat.memory.evaluate(
        [marked()], Notes, output_dir=tmp_path, model="extractive", judge="deterministic", store="memory://"
    )
    lines = [json.loads(line) for line in (tmp_path / "qa_records.jsonl").read_text().splitlines()]
    assert [each["retrieval"]["query"] for each in lines] == [
        "What is it?",
        "What is it?",
        "What is it? [image: a nest]",
    ]


def test_only_a_control_that_asks_for_it_gets_the_evidence(tmp_path):
    karat.memory.evaluate(
        [sample()], Oracle, output_dir=tmp_path, model="extractive", judge="deterministic", store="memory://"
    )
    lines = [json.loads(line) for line in (tmp_path / "qa_records.jsonl").read_text().splitlines()]
    assert [[item["memory_id"] for item in each["retrieval"]["items"]] for each in lines] == [
        ["T1"],
        ["T4"],
        [],
    ]


@pytest.mark.parametrize("system", [Notes, *BUILT_IN, *CONTROLS])
def test_the_clock_of_the_machine_reaches_no_memory_and_no_prompt(tmp_path, system):
    with FakeProvider(ANSWER) as server, time_machine.travel("2031-06-23T12:00:00Z", tick=True):
        assert {datetime.now().year, time.gmtime().tm_year} == {2031}
        karat.memory.evaluate(
            [sample()],
            system,
            output_dir=tmp_path,
            model=server.spec(),
            judge="deterministic",
            store="memory://",
        )
        assert server.count == (0 if system == "always_refuse" else 3)
        assert "2031" not in json.dumps([each["messages"] for each in server.requests])
    for name in ("pipeline_sessions.jsonl", "pipeline_qa.jsonl"):
        assert "2031" not in (tmp_path / name).read_text()


def test_the_clock_of_the_machine_reaches_no_prompt_of_the_judge(tmp_path):
    with FakeProvider(labels_for) as server, time_machine.travel("2031-06-23T12:00:00Z", tick=True):
        made = karat.memory.evaluate(
            [sample()], Notes, output_dir=tmp_path, model="extractive", judge=server.spec(), store="memory://"
        )
        shown = [message["content"] for each in server.requests for message in each["messages"]]
    assert made.exit_code == 0
    assert len(shown) > 10
    assert not any(re.search(r"\b2031\b", text) for text in shown)


def test_the_question_carries_its_own_date(tmp_path):
    with FakeProvider(ANSWER) as server:
        karat.memory.evaluate(
            [sample()],
            Notes,
            output_dir=tmp_path,
            model=server.spec(),
            judge="deterministic",
            store="memory://",
        )
        first = server.requests[0]["messages"][-1]["content"]
    assert "Today is 2024-03-10." in first


def test_cited_numbers_become_texts_and_invented_ones_are_counted(tmp_path):
    with FakeProvider('{"answer": "Bruno", "cited": [2, 2, 1, 0, 99]}') as server:
        made = karat.memory.evaluate(
            [sample()],
            Notes,
            output_dir=tmp_path,
            model=server.spec(),
            judge="deterministic",
            store="memory://",
        )
    first = json.loads((tmp_path / "qa_records.jsonl").read_text().splitlines()[0])
    items = [item["text"] for item in first["retrieval"]["items"]]
    assert first["cited_memories"] == [items[1], items[0]]
    assert first["num_invented_citations"] == 2
    assert made.metrics["retrieval"]["invented_citations"] == 6


def test_the_context_is_cut_to_the_budget_and_cuts_are_counted(tmp_path):
    with FakeProvider(ANSWER) as server:
        made = karat.memory.evaluate(
            [sample()],
            Notes,
            output_dir=tmp_path,
            model=server.spec(),
            judge="deterministic",
            store="memory://",
            context_tokens=5,
        )
    lines = [json.loads(line) for line in (tmp_path / "qa_records.jsonl").read_text().splitlines()]
    assert all(each["context"]["tokens"] <= 5 for each in lines)
    assert made.metrics["retrieval"]["items_cut"] > 0
    cut = sum(karat.memory.count_tokens(item["text"]) for item in lines[0]["retrieval"]["items"]) - 5
    assert lines[0]["context"]["tokens_cut"] == cut


class Flood(Notes):
    """Returns more than it was asked for."""

    name = "flood"

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        items = [RetrievedMemory(memory_id=str(n), text="x") for n in range(top_k + 1)]
        return Retrieval(items=tuple(items))


def test_more_items_than_top_k_fail_the_question(tmp_path):
    made = karat.memory.evaluate(
        [sample()], Flood, output_dir=tmp_path, model="extractive", judge="deterministic", store="memory://"
    )
    assert made.metrics["missing"] == {"sessions": 0, "questions": 3, "of_sessions": 3, "of_questions": 3}
    assert made.exit_code == 1
