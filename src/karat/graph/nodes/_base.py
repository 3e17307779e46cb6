"""The base of nodes, and the state of their construction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from karat.errors import KaratError
from karat.graph._functions import Applied, applied
from karat.graph._lookup import TaskPlace
from karat.graph._reading import Section
from karat.graph._state import SygraState

COMMON = ("node_type", "node_state", "node_name", "description", "output_keys")
MODEL_KEYS = (
    "prompt", "model", "pre_process", "post_process", "input_key", "output_role", "chat_history",
    "structured_output", "tools", "tool_choice", "output_vars", "output_key",
)  # fmt: skip


class Record(msgspec.Struct, gc=False):
    """The record that a node works on: draws depend on it, so that a repeated run draws the same."""

    example: str = ""
    attempt: int = 1
    replicate: int = 1
    at: Any = ""
    """The node that works on it, or the walk that knows which nodes do; named in the error of a timeout."""
    within: str = ""
    """The subgraphs that the node is part of: `outer.inner.`."""

    @property
    def running(self) -> str:
        """The names of the nodes at work."""
        names = [self.at] if isinstance(self.at, str) else self.at.running
        return ", ".join(self.within + name for name in names if name)


def named(section: Section, key: str) -> str | None:
    """The name of a function at a key, or None. An empty one is reported."""
    name = section.text(key)
    if name is not None and not name.strip():
        section.problem("is empty: give the dotted name of a function, or leave it out", key)
        return None
    return name


@dataclass
class Building:
    """The parts of a task that its nodes need."""

    place: TaskPlace
    properties: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    """Stands in for the models that the nodes name."""
    unnamed: str | None = None
    """Stands where a node names none; without it, the default does."""
    asked: frozenset[str] = frozenset()
    """Fields that the output and the post-processors ask for."""
    within: tuple[str, ...] = ()
    """The files of the graphs around this one, so that none contains itself."""

    def function(self, section: Section, key: str, most: int) -> Applied | None:
        """The function that a key names, or None. A function that cannot be loaded is reported."""
        name = named(section, key)
        if name is None:
            return None
        try:
            return applied(self.place.load(name), most, f"{key} {name}")
        except KaratError as error:
            section.problems.caught((*section.place, key), error)
            return None


class Node:
    """A step of a graph. Override `run`, or with `is_async` set `run_async`."""

    is_async = False
    kind = "idle"

    def __init__(self, name: str, output_keys: list[str] | None = None) -> None:
        self.name = name
        self.output_keys = output_keys or []
        """What it promises to set; empty where nothing is declared."""
        self.beside: list[str] = []
        """State keys that it sets without being configured to."""
        self.declared = True
        """Whether `output_keys` and `beside` are all it sets, as far as can be known."""
        self.parts: list[Any] = []
        """The user's code it calls, for the fingerprint."""
        self.variables: list[str] = []
        """What its prompt asks for; each has to be set by then."""
        self.models: list[Any] = []
        self.outcome: Any = None
        """What its results depend on beside its section of the file and its code, JSON-able."""

    @property
    def sets(self) -> list[str]:
        """All that it is known to set."""
        return [*self.output_keys, *self.beside]

    def run(self, state: SygraState, record: Record) -> None:
        """Change the state of a record."""

    async def run_async(self, state: SygraState, record: Record) -> None:
        """The same, on the event loop."""
        self.run(state, record)


def output_keys_of(section: Section) -> list[str]:
    """`output_keys`, also under the older names."""
    for key in ("output_keys", "output_vars", "output_key"):
        if key in section:
            return section.texts(key)
    return []
