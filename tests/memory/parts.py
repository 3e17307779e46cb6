"""A small set of samples, and memory systems that show one trait each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from karat.memory import (
    Capabilities,
    ControlSystem,
    Evidence,
    MemoryPoint,
    MemorySystem,
    Question,
    Retrieval,
    RetrievedMemory,
    Sample,
    Session,
    StoredMemory,
    Turn,
)


def turn(number: int, session: str, text: str, speaker: str = "user") -> Turn:
    return Turn(
        turn_id=f"T{number}", speaker=speaker, text=text, time=f"2024-03-{number:02}", session_id=session
    )


def sample(name: str = "ana", city: str = "Lyon") -> Sample:
    """Three sessions: a new fact, an update, and an interfering statement; answerable and unanswerable questions."""
    dog = MemoryPoint(memory_id="m1", text="Ana has a dog called Bruno", turn_ids=("T1",))
    lives = MemoryPoint(memory_id="m2", text=f"Ana lives in {city}", turn_ids=("T2",))
    moved = MemoryPoint(
        memory_id="m3",
        text="Ana lives in Oslo",
        is_update=True,
        original=(f"Ana lives in {city}",),
        turn_ids=("T4",),
    )
    joke = MemoryPoint(memory_id="m4", text="Ana owns a castle on the moon", source="interference")
    return Sample(
        sample_id=name,
        uuid=f"uuid-{name}",
        sessions=(
            Session(
                session_id="S00",
                turns=(turn(1, "S00", "My dog is called Bruno."), turn(2, "S00", f"I live in {city}.")),
                new=(dog, lives),
            ),
            Session(
                session_id="S01",
                turns=(
                    turn(3, "S01", "Nice weather today.", "assistant"),
                    turn(4, "S01", "I live in Oslo now."),
                ),
                updates=(moved,),
            ),
            Session(
                session_id="S02",
                turns=(turn(5, "S02", "In the film she owns a castle on the moon."),),
                interference=(joke,),
            ),
        ),
        questions=(
            Question(
                index=0,
                checkpoint_id="c1",
                after_session="S00",
                question="What is the dog of Ana called?",
                answer="Bruno",
                evidence=(Evidence(evidence_id="m1", text="Ana has a dog called Bruno", turn_ids=("T1",)),),
                type="factual_recall",
                type_abbrev="FR",
                difficulty="easy",
                now="2024-03-10",
            ),
            Question(
                index=1,
                checkpoint_id="c2",
                after_session="S02",
                question="Where does Ana live?",
                answer="Oslo",
                evidence=(Evidence(evidence_id="m3", text="Ana lives in Oslo", turn_ids=("T4",)),),
                type="knowledge update",
                difficulty="hard",
            ),
            Question(
                index=2,
                checkpoint_id="c2",
                after_session="S02",
                question="Where does Ana live?",
                answer="I don't know.",
                answerable=False,
                evidence=(Evidence(evidence_id="m9", text="nothing of this was said", turn_ids=()),),
                type="abstention",
                difficulty="hard",
            ),
        ),
    )


class Notes(MemorySystem):
    """Keeps every turn, finds those that share words with the query, and can save."""

    name = "notes"
    saves = True

    def __init__(self) -> None:
        self.turns: list[tuple[str, str]] = []

    def capabilities(self) -> Capabilities:
        return Capabilities(save=self.saves, provenance=True)

    def reset(self, directory: Path) -> None:
        assert list(directory.iterdir()) == []
        self.turns = []

    def ingest_turn(self, turn: Turn) -> None:
        self.turns.append((turn.turn_id, f"{turn.speaker}: {turn.text}"))

    def snapshot(self) -> list[StoredMemory]:
        return [StoredMemory(memory_id=name, text=text, turn_ids=(name,)) for name, text in self.turns]

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        words = set(query.lower().split())
        ranked = sorted(self.turns, key=lambda each: -len(words & set(each[1].lower().split())))
        items = [
            RetrievedMemory(memory_id=name, text=text, turn_ids=(name,)) for name, text in ranked[:top_k]
        ]
        return Retrieval(items=tuple(items))

    def save(self, directory: Path) -> None:
        (directory / "turns.json").write_text(json.dumps(self.turns))

    def load(self, directory: Path) -> None:
        self.turns = [(name, text) for name, text in json.loads((directory / "turns.json").read_text())]


class Oracle(Notes, ControlSystem):
    """Gets the gold evidence."""

    name = "small_oracle"
    needs_gold = True

    def give_gold(self, evidence, texts):
        self.gold = [RetrievedMemory(memory_id=each.turn_id, text=each.text) for each in evidence]

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        return Retrieval(items=tuple(self.gold))


def labels_for(body: dict[str, Any]) -> str:
    """A judge that gives every item the first label it may give."""
    wanted = body["response_format"]["json_schema"]["schema"]["properties"]["verdicts"]["items"]["properties"]
    verdicts = [{"analysis": "", "id": n, "label": wanted["label"]["enum"][0]} for n in wanted["id"]["enum"]]
    return json.dumps({"analysis": "scripted", "verdicts": verdicts})
