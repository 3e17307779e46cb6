"""Memory systems: how they are driven through dialogues, and how good their memories and answers are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import exports
from karat.registry import Registry

if TYPE_CHECKING:
    from karat.memory._evaluate import MemoryEvaluation as MemoryEvaluation
    from karat.memory._evaluate import evaluate as evaluate
    from karat.memory._evaluate import evaluate_async as evaluate_async
    from karat.memory._system import Attachment as Attachment
    from karat.memory._system import Capabilities as Capabilities
    from karat.memory._system import ControlSystem as ControlSystem
    from karat.memory._system import Evidence as Evidence
    from karat.memory._system import MemoryPoint as MemoryPoint
    from karat.memory._system import MemorySystem as MemorySystem
    from karat.memory._system import Question as Question
    from karat.memory._system import Retrieval as Retrieval
    from karat.memory._system import RetrievedMemory as RetrievedMemory
    from karat.memory._system import Sample as Sample
    from karat.memory._system import Session as Session
    from karat.memory._system import StoredMemory as StoredMemory
    from karat.memory._system import Turn as Turn
    from karat.memory._system import count_tokens as count_tokens
    from karat.memory._system import cut_tokens as cut_tokens
    from karat.memory._system import turn_text as turn_text
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            "_evaluate": "MemoryEvaluation evaluate evaluate_async",
            "_system": "Attachment Capabilities ControlSystem Evidence MemoryPoint MemorySystem Question "
            "Retrieval RetrievedMemory Sample Session StoredMemory Turn count_tokens cut_tokens "
            "turn_text",
        },
        "memory_systems",
    )


memory_systems: Registry[Any] = Registry("memory system", builtin=["karat.memory.systems"])
"""Memory systems by name: a class, or a function that returns a `MemorySystem`."""
