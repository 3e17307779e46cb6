"""MGMemory: a small working context, a queue of recent turns and an archive, after MemGPT."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from karat.memory import memory_systems
from karat.memory._system import Retrieval, RetrievedMemory, Turn, count_tokens
from karat.memory.systems import _model
from karat.memory.systems._reflecting import archive, derived
from karat.memory.systems._search import EMBEDDER, EmbeddedMemory, WordIndex
from karat.memory.systems._turns import Entry, best_first, check_whole, retrieved
from karat.serialization import storable

_FACTS = """You keep a short list of facts that must be known in every later conversation with these people. A session \
has ended. Which facts does it add, and which known facts does it change?"""
TELLING = 0.3
"""The importance from which a turn may be part of the working context."""
_FUSION = 60
"""The constant of reciprocal rank fusion."""


@memory_systems.register("MGMemory")
class MGMemory(EmbeddedMemory):
    """Keeps a working context, a queue of recent turns and an archive (after MemGPT).

    The working context holds facts: with a model, the model edits them at the end of each session; without one, they
    are the most telling turns. The newest turns within `queue_tokens` are the queue, and all others the archive. A
    question gets up to a third of `top_k` from the working context, then the best of a word search in all turns and an
    embedding search in the archive, joined by reciprocal rank, then the newest turns.
    """

    name = "MGMemory"

    def __init__(
        self,
        embedder: object = EMBEDDER,
        model: object = None,
        working_tokens: int = 500,
        queue_tokens: int = 2_000,
    ) -> None:
        super().__init__(embedder)
        self._model = _model.model_of(self.name, model)
        self.working_tokens = check_whole(self.name, "working_tokens", working_tokens)
        self.queue_tokens = check_whole(self.name, "queue_tokens", queue_tokens)
        self._words = WordIndex()
        self._session_start = 0

    def configuration(self) -> Any:
        return {
            **super().configuration(),
            "model": _model.identity(self._model),
            "working_tokens": self.working_tokens,
            "queue_tokens": self.queue_tokens,
        }

    def reset(self, directory: Path) -> None:
        super().reset(directory)
        self._words = WordIndex()
        self._session_start = 0

    def ingest_turn(self, turn: Turn) -> None:
        super().ingest_turn(turn)
        importance = _model.salience(turn.text)
        self.entries[-1] = msgspec.structs.replace(self.entries[-1], importance=importance)

    def _store(self, entry: Entry) -> None:
        super()._store(entry)
        self._words.add(entry.text)

    def end_session(self, session_id: str) -> None:
        session = self.entries[self._session_start :]
        if self._model is not None and session:
            for statement in _model.state(self._model, _FACTS, session, self._working()):
                archive(self.entries, statement.replaces)
                self._store(derived(self.entries, statement, session_id, "fact"))
        self._session_start = len(self.entries)
        super().end_session(session_id)

    def _working(self) -> list[Entry]:
        """The working context, most important first (with a model, newest first), within its budget."""
        if self._model is not None:
            facts = [entry for entry in self.entries if entry.kind == "fact" and not entry.archived][::-1]
        else:
            facts = sorted(
                (entry for entry in self.entries if entry.importance >= TELLING),
                key=lambda entry: (-entry.importance, -int(entry.memory_id)),
            )
        kept: list[Entry] = []
        left = self.working_tokens
        for entry in facts:
            needed = count_tokens(entry.text)
            if needed <= left:
                kept.append(entry)
                left -= needed
        return kept

    def _tiers(self) -> dict[str, str]:
        """The tier of each memory by its id."""
        tiers: dict[str, str] = {}
        left = self.queue_tokens
        for entry in reversed(self.entries):
            if entry.kind == "turn":
                left -= count_tokens(entry.text) if left >= 0 else 0
                tiers[entry.memory_id] = "queue" if left >= 0 else "archive"
            else:
                tiers[entry.memory_id] = "archive"
        tiers.update((entry.memory_id, "working") for entry in self._working())
        return tiers

    def snapshot(self) -> list[Any]:
        tiers = self._tiers()
        return [
            msgspec.structs.replace(stored, raw_backend_type=tiers[stored.memory_id])
            for stored in super().snapshot()
        ]

    def _metadata_of(self, entry: Entry) -> Mapping[str, Any]:
        return {**super()._metadata_of(entry), "importance": entry.importance}

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        if top_k <= 0:
            return Retrieval(items=(), trace={"system": self.name, "stored": len(self.entries)})
        working = self._working()[: top_k // 3]
        candidates = [
            *((entry, None) for entry in working),
            *((self.entries[position], score) for position, score in self._ranked(storable(query), now)),
            *((entry, None) for entry in reversed(self.entries) if not entry.archived),
        ]
        chosen: dict[str, RetrievedMemory] = {}
        for entry, score in candidates:
            if len(chosen) == top_k:
                break
            if entry.memory_id not in chosen:
                chosen[entry.memory_id] = retrieved(entry, score)
        return Retrieval(
            items=tuple(chosen.values()),
            trace={"system": self.name, "stored": len(self.entries), "working": len(working)},
        )

    def _ranked(self, query: str, now: str | None) -> list[tuple[int, float]]:
        tiers = self._tiers()
        archived = [
            each
            for each in self._vectors.search(query)
            if tiers[self.entries[each[0]].memory_id] == "archive"
        ]
        fused: dict[int, float] = {}
        for ranking in (self._words.search(query), archived):
            for rank, (position, _) in enumerate(ranking):
                if not self.entries[position].archived:
                    fused[position] = fused.get(position, 0.0) + 1 / (_FUSION + rank)
        return best_first(fused.items())

    def _state(self) -> dict[str, Any]:
        return {"session_start": self._session_start}

    def _restore(self, state: dict[str, Any]) -> None:
        self._session_start = int(state["session_start"])
        self._words = WordIndex()
        for entry in self.entries:
            self._words.add(entry.text)
