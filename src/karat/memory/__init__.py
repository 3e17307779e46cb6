"""Memory systems: how they are driven through dialogues, and how good their memories and answers are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import load
from karat.registry import Registry

if TYPE_CHECKING:
    from karat.memory._evaluate import MemoryEvaluation, evaluate, evaluate_async
    from karat.memory._system import (
        Attachment,
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
        count_tokens,
        cut_tokens,
        turn_text,
    )

_WHERE = {
    **dict.fromkeys(("MemoryEvaluation", "evaluate", "evaluate_async"), "_evaluate"),
    **dict.fromkeys(
        (
            *("Attachment", "Evidence", "MemoryPoint", "Question", "Sample", "Session", "Turn"),
            *(
                "Capabilities",
                "ControlSystem",
                "MemorySystem",
                "RetrievedMemory",
                "Retrieval",
                "StoredMemory",
            ),
            *("count_tokens", "cut_tokens", "turn_text"),
        ),
        "_system",
    ),
}

__all__ = [
    "Attachment",
    "Capabilities",
    "ControlSystem",
    "Evidence",
    "MemoryEvaluation",
    "MemoryPoint",
    "MemorySystem",
    "Question",
    "Retrieval",
    "RetrievedMemory",
    "Sample",
    "Session",
    "StoredMemory",
    "Turn",
    "count_tokens",
    "cut_tokens",
    "evaluate",
    "evaluate_async",
    "memory_systems",
    "turn_text",
]


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


memory_systems: Registry[Any] = Registry("memory system", builtin=["karat.memory.systems"])
"""Memory systems by name: a class, or a function that returns a `MemorySystem`."""
