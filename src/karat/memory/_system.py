"""The contract of a memory system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from karat.memory._dialogue import Turn

STATUSES = ("active", "archived")
"""What the status of a stored memory may be."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a memory system can do."""

    event_time: Literal["native", "text", "none"] = "text"
    """How it stores the time of a turn: in a field, as part of the text, or not at all."""
    save: bool = False
    """Whether `save` and `load` continue a sample in another process."""
    parallel: bool = True
    """Whether two samples may be driven at the same time, each with its own instance."""
    provenance: bool = False
    """Whether stored and retrieved memories name the turns they come from."""


class StoredMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One memory in a snapshot."""

    memory_id: str
    text: str
    session_id: str | None = None
    status: str = "active"
    """`active`, or `archived` for one that no longer holds and is kept: it is not counted as stored."""
    raw_backend_id: str | None = None
    raw_backend_type: str = ""
    replaces: tuple[str, ...] = ()
    """Ids of the memories that this one replaces, where the system knows."""
    turn_ids: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}


class RetrievedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One memory that was found for a query, best first."""

    memory_id: str
    text: str
    score: float | None = None
    raw_backend_id: str | None = None
    turn_ids: tuple[str, ...] = ()


class Retrieval(msgspec.Struct, frozen=True, kw_only=True):
    """What a memory system found for a query."""

    items: tuple[RetrievedMemory, ...]
    trace: Mapping[str, Any] = {}


class MemorySystem:
    """Override `reset`, `ingest_turn`, `snapshot` and `retrieve`. All methods are called from one thread at a time.

    A system sees turns, the end of a session and queries, and nothing else of the dataset: no sample id, no gold.
    The time in a turn and in `now` is the dialogue's; a system must not look at the machine's clock.
    """

    name: str = "memory"
    version: str = "1"

    def capabilities(self) -> Capabilities:
        """What this system can do."""
        return Capabilities()

    def configuration(self) -> Any:
        """Everything configured that its memories depend on, JSON-able, without secrets."""
        return {}

    def reset(self, directory: Path) -> None:
        """Start with an empty memory. `directory` is empty, private to this sample, and removed when it is done."""
        raise TypeError(f"memory system {self.name!r} has no reset")

    def ingest_turn(self, turn: Turn) -> None:
        """Take in one message of the dialogue."""
        raise TypeError(f"memory system {self.name!r} has no ingest_turn")

    def end_session(self, session_id: str) -> None:
        """The session is over: write what is still buffered, so that the next snapshot shows it."""

    def snapshot(self) -> list[StoredMemory]:
        """Every memory that is stored, without a limit."""
        raise TypeError(f"memory system {self.name!r} has no snapshot")

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        """At most `top_k` memories for a query. It must not change what is stored."""
        raise TypeError(f"memory system {self.name!r} has no retrieve")

    def save(self, directory: Path) -> None:
        """Write everything that `load` needs into a directory. Only called with `Capabilities(save=True)`."""
        raise TypeError(f"memory system {self.name!r} cannot be saved")

    def load(self, directory: Path) -> None:
        """Continue from what `save` wrote, after `reset`."""
        raise TypeError(f"memory system {self.name!r} cannot be loaded")

    def usage(self) -> Mapping[str, float]:
        """Tokens and cost since `reset` of models that the system calls by itself (not through `karat.models`).

        Keys: `input_tokens`, `output_tokens`, `cost`.
        """
        return {}

    def close(self) -> None:
        """Free what is held; the sample is done."""


class ControlSystem(MemorySystem):
    """A control: a reference row for the rows of memory systems, and not a memory system itself.

    Controls receive more than a memory system may see, through members that a `MemorySystem` does not have. Only a
    subclass of this class is asked for them.
    """

    needs_gold: ClassVar[bool] = False
    """Whether `give_gold` is called before each `retrieve`."""
    every_item: ClassVar[bool] = False
    """Whether `retrieve` may return more than `top_k` items, as a control with the full context does."""
    fixed_answer: ClassVar[str | None] = None
    """The answer to every question, in place of a model's."""

    def give_gold(self, evidence: Sequence[Turn], texts: Sequence[str]) -> None:
        """Get the gold evidence of the next question: its turns and, where the dataset names none, its texts."""
        raise TypeError(f"control {self.name!r} has no give_gold")
