"""The subgraph node: another task's graph as one step of this one, with some of its nodes changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from karat.errors import ConfigError, did_you_mean
from karat.graph._reading import Section
from karat.graph._state import SygraState
from karat.graph.nodes._base import COMMON, Building, Node, Record

if TYPE_CHECKING:
    from karat.graph._plan import Plan


class _Inside:
    """Where a record is while it is in a subgraph."""

    kind = "subgraph"

    def __init__(self, record: Record) -> None:
        self._record = record

    @property
    def running(self) -> list[str]:
        """The nodes at work in the subgraph."""
        return [name for name in self._record.running.split(", ") if name]


class SubgraphNode(Node):
    """Runs a graph on the state of the record."""

    def __init__(self, name: str, plan: Plan, outcome: object) -> None:
        super().__init__(name, plan.output_keys())
        self.plan = plan
        self.is_async = plan.is_async
        self.declared = plan.declared
        self.variables = plan.unset()
        self.parts = plan.parts()
        self.models = plan.models()
        self.outcome = {"graph": outcome, "nodes": plan.outcome()}

    def run(self, state: SygraState, record: Record) -> None:
        self.plan.run(state, self._inside(record))

    async def run_async(self, state: SygraState, record: Record) -> None:
        await self.plan.run_async(state, self._inside(record))

    def _inside(self, record: Record) -> Record:
        """The record inside of the subgraph, which the record around it asks where it is."""
        inner = Record(record.example, record.attempt, record.replicate, within=f"{self.name}.")
        if isinstance(record.at, str):  # beside nodes of other branches the subgraph itself is named
            record.at = _Inside(inner)
        return inner


def build_subgraph(name: str, section: Section, building: Building) -> Node | None:
    """A subgraph node from its section."""
    from karat.graph._configuration import read_subgraph

    section.known((*COMMON, "subgraph", "node_config_map"))
    path = section.text("subgraph", needed=True)
    if path is None:
        return None
    changes = section.section("node_config_map")
    try:
        configuration = read_subgraph(path, building, changes.given)
    except ConfigError as error:
        section.problems.add((*section.place, "subgraph"), str(error))
        return None
    for note in configuration.problems.notes():
        section.problems.note((*section.place, "subgraph"), f"{path}, {note}")
    for node in changes.given:
        if node not in configuration.node_names:
            changes.problem(
                f"{path} has no such node: {did_you_mean(str(node), configuration.node_names)}", node
            )
    return SubgraphNode(name, configuration.plan, configuration.outcome)
