"""The kinds of nodes: each is built once from its section of the file and then run for every record."""

from __future__ import annotations

from collections.abc import Callable

from karat.errors import KaratError, did_you_mean
from karat.graph._reading import Section
from karat.graph.nodes._base import Building, Node
from karat.graph.nodes._models import build_agent, build_llm, build_multi_llm
from karat.graph.nodes._plain import build_lambda, build_sampler, build_subgraph

__all__ = ["KINDS", "Building", "Node", "build_node"]

KINDS: dict[str, Callable[[str, Section, Building], Node | None]] = {
    "llm": build_llm,
    "multi_llm": build_multi_llm,
    "agent": build_agent,
    "lambda": build_lambda,
    "weighted_sampler": build_sampler,
    "subgraph": build_subgraph,
}


class Idle(Node):
    """A node that is switched off: records go through it untouched."""


def build_node(name: str, section: Section, building: Building) -> Node | None:
    """The node of a section, or None if the section has errors, which are reported."""
    kind = section.text("node_type", needed=True)
    if kind is None:
        return None
    if kind not in KINDS:
        section.problem(f"unknown node type {kind!r}: {did_you_mean(kind, KINDS)}", "node_type")
        return None
    if kind != "lambda":  # whose function may read it
        section.without_effect("node_name", instead=f"the node is called {name}")
    state = section.text("node_state", "active")
    if state == "idle":
        return Idle(name)
    if state != "active":
        section.problem(f"must be active or idle, not {state!r}", "node_state")
    try:
        return KINDS[kind](name, section, building)
    except KaratError as error:
        section.problems.caught(section.place, error)
        return None
