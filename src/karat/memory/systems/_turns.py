"""The base of built-in systems: a list of memories, one for each turn, saved as one JSON file; and settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from karat.errors import DataError, RequestError
from karat.memory._system import (
    Capabilities,
    MemorySystem,
    Retrieval,
    RetrievedMemory,
    StoredMemory,
    Turn,
    count_tokens,
    cut_tokens,
    turn_text,
)
from karat.serialization import prepared, storable

if TYPE_CHECKING:
    from karat.models import Model

FILE = "memory.json"
BUNDLE = "karat:bundle"
"""The id of a retrieved item that joins several memories."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored memory of a built-in system."""

    memory_id: str
    text: str
    session_id: str = ""
    turn_ids: tuple[str, ...] = ()
    time: str | None = None
    speaker: str = ""
    importance: float = 0.0
    kind: str = "turn"
    replaces: tuple[str, ...] = ()
    archived: bool = False


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    system: str
    entries: list[Entry]
    state: dict[str, Any]


class TurnMemory(MemorySystem):
    """A memory that stores each turn with its time and speaker. A subclass defines what is retrieved."""

    backend_type: ClassVar[str] = "linear"

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def capabilities(self) -> Capabilities:
        return Capabilities(event_time="text", save=True, parallel=True, provenance=True)

    def reset(self, directory: Path) -> None:
        self.entries = []

    def ingest_turn(self, turn: Turn) -> None:
        self._store(
            Entry(
                memory_id=str(len(self.entries)),
                text=storable(turn_text(turn)),
                session_id=turn.session_id,
                turn_ids=(turn.turn_id,),
                time=turn.time,
                speaker=turn.speaker,
            )
        )

    def _store(self, entry: Entry) -> None:
        self.entries.append(entry)

    def snapshot(self) -> list[StoredMemory]:
        return [
            StoredMemory(
                memory_id=entry.memory_id,
                text=entry.text,
                session_id=entry.session_id or None,
                status="archived" if entry.archived else "active",
                raw_backend_id=entry.memory_id,
                raw_backend_type=self._backend_of(entry),
                replaces=entry.replaces,
                turn_ids=entry.turn_ids,
                metadata=self._metadata_of(entry),
            )
            for entry in self.entries
        ]

    def _backend_of(self, entry: Entry) -> str:
        return self.backend_type

    def _metadata_of(self, entry: Entry) -> Mapping[str, Any]:
        return {} if entry.kind == "turn" else {"kind": entry.kind}

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        ranked = self._ranked(storable(query), now) if top_k > 0 else []
        return Retrieval(
            items=tuple(retrieved(self.entries[index], score) for index, score in ranked[:top_k]),
            trace={"system": self.name, "stored": len(self.entries)},
        )

    def _ranked(self, query: str, now: str | None) -> list[tuple[int, float]]:
        """Positions of entries with their scores, best first."""
        raise TypeError(f"memory system {self.name!r} has no ranking")

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        content = _File(format=1, system=self.name, entries=self.entries, state=self._state())
        (directory / FILE).write_bytes(msgspec.json.encode(content))

    def load(self, directory: Path) -> None:
        path = directory / FILE
        try:
            content = msgspec.json.decode(path.read_bytes(), type=prepared(_File))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot load a saved {self.name} memory: {error}") from error
        if content.format != 1 or content.system != self.name:
            raise DataError(
                f"{path}: saved by {content.system} (format {content.format}), not by {self.name} (format 1)"
            )
        self.entries = content.entries
        self._restore(content.state)

    def _state(self) -> dict[str, Any]:
        """The state that `save` writes beside the entries."""
        return {}

    def _restore(self, state: dict[str, Any]) -> None:
        """Take what `_state` returned; the entries are loaded already."""


def retrieved(entry: Entry, score: float | None) -> RetrievedMemory:
    """An entry as a retrieved memory."""
    return RetrievedMemory(
        memory_id=entry.memory_id,
        text=entry.text,
        score=None if score is None else float(score),
        raw_backend_id=entry.memory_id,
        turn_ids=entry.turn_ids,
    )


def newest_within(entries: Sequence[Entry], budget: int) -> list[Entry]:
    """Return the newest entries that fit a token budget, oldest first; the oldest entry may be cut."""
    kept: list[Entry] = []
    left = budget
    for entry in reversed(entries):
        needed = count_tokens(entry.text)
        if needed > left:
            if not kept and left > 0:
                kept.append(msgspec.structs.replace(entry, text=cut_tokens(entry.text, left)))
            break
        kept.append(entry)
        left -= needed
    return kept[::-1]


def bundle(entries: Sequence[Entry], memory_id: str = BUNDLE) -> RetrievedMemory:
    """Several entries as one retrieved memory, a line for each."""
    return RetrievedMemory(
        memory_id=memory_id,
        text="\n".join(entry.text for entry in entries),
        score=1.0,
        turn_ids=tuple(dict.fromkeys(turn for entry in entries for turn in entry.turn_ids)),
    )


def check_whole(system: str, name: str, value: object, least: int = 1) -> int:
    """A whole number that a system is configured with."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RequestError(f"{system}: {name} is {value!r}: it must be a whole number of at least {least}")
    return value


def check_share(system: str, name: str, value: object, least: float = 0.0) -> float:
    """A number that a system is configured with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < float("inf"):
        raise RequestError(f"{system}: {name} is {value!r}: it must be a number of at least {least:g}")
    return float(value)


def best_first(scores: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Positions by descending score; equal scores keep the order of the dialogue."""
    return sorted(scores, key=lambda each: (-each[1], each[0]))


def model_of(system: str, spec: object) -> Model | None:
    """The model that a system is configured with; None without one."""
    if spec is None:
        return None
    from karat import models

    if not isinstance(spec, (str, models.Model)):
        raise RequestError(f"{system}: model is {spec!r}: it must be the name of a model")
    return models.get(spec)


def identity(model: Model | None) -> Mapping[str, Any] | None:
    """A model as part of a system's configuration."""
    return None if model is None else model.identity()
