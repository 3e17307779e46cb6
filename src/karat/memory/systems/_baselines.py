"""Baselines without a search (the whole dialogue, the last turns), and the controls.

Controls show what no memory, the whole dialogue, perfect retrieval and constant refusal score.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from karat.memory import memory_systems
from karat.memory._system import (
    Capabilities,
    ControlSystem,
    Retrieval,
    RetrievedMemory,
    StoredMemory,
    Turn,
    turn_text,
)
from karat.memory.systems._turns import TurnMemory, bundle, check_whole, newest_within, retrieved
from karat.serialization import storable


@memory_systems.register("FUMemory")
class FUMemory(TurnMemory):
    """Return the whole dialogue as one text, cut to a token budget that keeps the newest turns."""

    name = "FUMemory"

    def __init__(self, tokens: int = 8_000) -> None:
        super().__init__()
        self.tokens = check_whole(self.name, "tokens", tokens)

    def configuration(self) -> Any:
        return {"tokens": self.tokens}

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        kept = newest_within(self.entries, self.tokens) if top_k > 0 else []
        return Retrieval(
            items=(bundle(kept),) if kept else (),
            trace={
                "system": self.name,
                "stored": len(self.entries),
                "bundled": len(kept),
                "cut": len(self.entries) - len(kept),
            },
        )


@memory_systems.register("STMemory")
class STMemory(TurnMemory):
    """Return the last `k` turns, newest first; at most `top_k` of them."""

    name = "STMemory"

    def __init__(self, k: int = 20) -> None:
        super().__init__()
        self.k = check_whole(self.name, "k", k)

    def configuration(self) -> Any:
        return {"k": self.k}

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        count = max(0, min(self.k, top_k))
        newest = self.entries[: -count - 1 : -1] if count else []
        return Retrieval(
            items=tuple(retrieved(entry, None) for entry in newest),
            trace={"system": self.name, "stored": len(self.entries)},
        )


class _Empty(ControlSystem):
    """A memory that stores nothing and finds nothing."""

    def capabilities(self) -> Capabilities:
        return Capabilities(event_time="none", save=True, parallel=True, provenance=True)

    def reset(self, directory: Path) -> None:
        """Do nothing: there is nothing to store."""

    def ingest_turn(self, turn: Turn) -> None:
        """Do nothing: there is nothing to store."""

    def snapshot(self) -> list[StoredMemory]:
        return []

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        return Retrieval(items=(), trace={"system": self.name, "stored": 0})

    def save(self, directory: Path) -> None:
        """Do nothing: there is nothing to store."""

    def load(self, directory: Path) -> None:
        """Do nothing: there is nothing to store."""


@memory_systems.register("no_memory")
class NoMemory(_Empty):
    """A control that stores nothing: what the answering model knows or guesses by itself."""

    name = "no_memory"


@memory_systems.register("always_refuse")
class AlwaysRefuse(_Empty):
    """A control that refuses every question: what a benchmark gives for saying nothing."""

    name = "always_refuse"
    fixed_answer = "I don't know."


@memory_systems.register("full_context")
class FullContext(TurnMemory, ControlSystem):
    """A control that returns every turn in the order of the dialogue, for any `top_k`."""

    name = "full_context"
    every_item = True

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        return Retrieval(
            items=tuple(retrieved(entry, None) for entry in self.entries),
            trace={"system": self.name, "stored": len(self.entries)},
        )


@memory_systems.register("oracle")
class Oracle(TurnMemory, ControlSystem):
    """A control that returns the gold evidence of each question: the answering model after perfect retrieval."""

    name = "oracle"
    needs_gold = True
    every_item = True

    def __init__(self) -> None:
        super().__init__()
        self._gold: list[RetrievedMemory] = []

    def give_gold(self, evidence: Sequence[Turn], texts: Sequence[str]) -> None:
        self._gold = [
            RetrievedMemory(
                memory_id=f"gold:{turn.turn_id}", text=storable(turn_text(turn)), turn_ids=(turn.turn_id,)
            )
            for turn in evidence
        ] or [
            RetrievedMemory(memory_id=f"gold:{number}", text=storable(text))
            for number, text in enumerate(texts)
        ]

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        gold, self._gold = self._gold, []
        return Retrieval(items=tuple(gold), trace={"system": self.name, "stored": len(self.entries)})
