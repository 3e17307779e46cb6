"""Systems without a search: everything (FUMemory), and the last turns (STMemory)."""

from __future__ import annotations

from typing import Any

from karat.memory import memory_systems
from karat.memory._system import Retrieval
from karat.memory.systems._turns import TurnMemory, bundle, check_whole, newest_within, retrieved


@memory_systems.register("FUMemory")
class FUMemory(TurnMemory):
    """Returns the whole dialogue as one text, cut to a token budget: the newest turns stay."""

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
    """Returns the last `k` turns, newest first; at most `top_k` of them."""

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
