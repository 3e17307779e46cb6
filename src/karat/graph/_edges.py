"""Edges: where a record goes after a node, and the checks that need no record."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from karat.errors import did_you_mean, nearest
from karat.graph._functions import Applied
from karat.graph._reading import Section
from karat.graph._state import END, ENDINGS, START
from karat.graph.nodes._base import Building, Node

EDGE_KEYS = ("from", "to", "condition", "path_map", "max_iterations", "description")


class UnknownPath(Exception):
    """A condition that returned what its `path_map` does not have."""


class Edge:
    """An edge from one node to others, unconditional or with a condition."""

    def __init__(
        self, targets: list[str], condition: Applied | None = None, paths: Mapping[str, str] | None = None
    ):
        self.targets = targets
        """Where it can lead."""
        self.condition = condition
        self.paths = dict(paths or {})
        self.guessed = False
        """Whether a name of it is wrong, so that a loop through it may not be the file's."""

    def decided(self, given: object) -> list[str]:
        """The targets that a condition's answer means."""
        answers = given if isinstance(given, (list, tuple)) else [given]
        return [self._target(answer) for answer in answers]

    def _target(self, answer: Any) -> str:
        word = str(answer).lower() if isinstance(answer, bool) else str(answer)
        if word in self.paths:
            return self.paths[word]
        if word in ENDINGS and (not self.paths or END in self.paths.values()):
            return END
        if not self.paths and word in self.targets:
            return word
        known = list(self.paths) or self.targets
        raise UnknownPath(f"the condition returned {answer!r:.80}: {did_you_mean(word, known)}")


class Edges:
    """All edges of a graph, by the node they start from."""

    def __init__(self, after: dict[str, list[Edge]]) -> None:
        self.after = after
        self.reach = {node: self._reached(node) for node in after}

    def _reached(self, node: str) -> frozenset[str]:
        """The nodes that can come after a node."""
        found: set[str] = set()
        front = [node]
        while front:
            for edge in self.after.get(front.pop(), ()):
                for target in edge.targets:
                    if target not in found:
                        found.add(target)
                        front.append(target)
        return frozenset(found)

    def chain(self) -> list[str] | None:
        """The nodes in their order, where every record goes the same single way."""
        order: list[str] = []
        at = START
        while at != END:
            edges = self.after.get(at, [])
            if not edges and at != START:
                return order
            if len(edges) != 1 or edges[0].condition is not None or len(edges[0].targets) != 1:
                return None
            at = edges[0].targets[0]
            if at in order:
                return None
            if at != END:
                order.append(at)
        return order

    def targets(self, node: str, state: object) -> list[str]:
        """Where a record goes after a node."""
        out: list[str] = []
        for edge in self.after.get(node, ()):
            out += edge.targets if edge.condition is None else edge.decided(edge.condition(state))
        return out

    async def targets_async(self, node: str, state: object) -> list[str]:
        """The same, for conditions that wait on something."""
        out: list[str] = []
        for edge in self.after.get(node, ()):
            if edge.condition is None:
                out += edge.targets
                continue
            given = edge.condition(state)
            out += edge.decided(await given if inspect.isawaitable(given) else given)
        return out

    @property
    def conditions(self) -> list[Applied]:
        """The functions that decide."""
        found = [edge.condition for edges in self.after.values() for edge in edges]
        return [condition for condition in found if condition is not None]


def read_edges(graph: Section, nodes: list[str], building: Building) -> tuple[Edges, bool]:
    """The edges of a graph; without any, the nodes one after the other as written.

    An unknown name is reported and replaced by the nearest node, so that other errors of the graph are found at the
    same time. The second value is whether it is known what every edge means.
    """
    after: dict[str, list[Edge]] = {name: [] for name in (START, *nodes)}
    if "edges" not in graph:
        for here, there in zip([START, *nodes], [*nodes, END], strict=True):
            after[here].append(Edge([there]))
        return Edges(after), True
    understood = True
    for section in graph.sections("edges"):
        before = len(section.problems)
        section.known(EDGE_KEYS)
        section.without_effect("max_iterations", instead="graph_properties.max_iterations is the bound")
        sources = section.texts("from")
        if not sources:
            section.problem("needs 'from': a node or START")
        meant = [_meant(source, [START, *nodes], section, "from") for source in sources]
        edge = _edge(section, nodes, building, sources)
        if edge is not None:
            edge.guessed = len(section.problems) > before
        understood &= edge is not None and bool(meant) and None not in meant
        for source in meant:
            if source is not None and edge is not None:
                after[source].append(edge)
    return Edges(after), understood


def _meant(
    name: str, known: list[str], section: Section, *steps: str, but: Collection[str] = ()
) -> str | None:
    """The node with a name. An unknown name is reported, and the nearest known node is used instead."""
    if name in known:
        return name
    section.problem(f"there is no node {name!r}: {did_you_mean(name, known)}", *steps)
    close = next(iter(nearest(name, known, 1)), None)
    return None if close in but else close


def _edge(section: Section, nodes: list[str], building: Building, sources: list[str]) -> Edge | None:
    known = [*nodes, END]
    targets = [_meant(target, known, section, "to", but=sources) for target in section.texts("to")]
    given = section.mapping("path_map")
    paths = {
        key: _meant(str(target), known, section, "path_map", key, but=sources)
        for key, target in given.items()
    }
    if "condition" not in section:
        if "path_map" in section:
            section.problem("a path_map needs a condition", "path_map")
            return None
        if not targets:
            section.problem("needs 'to', or a condition with its path_map")
        return Edge(_names(targets)) if targets and None not in targets else None
    if "path_map" in section and "to" in section:
        section.problem("is given beside path_map: remove one of them", "to")
    condition = building.function(section, "condition", 1)
    if condition is None or None in targets or None in paths.values():
        return None
    # without a map the condition names the nodes themselves, so that it may lead to any of them
    reachable = _names(list(paths.values())) or _names(targets) or known
    return Edge(list(dict.fromkeys(reachable)), condition, {k: t for k, t in paths.items() if t is not None})


def _names(given: list[str | None]) -> list[str]:
    return [name for name in given if name is not None]


def check_edges(edges: Edges, nodes: Mapping[str, Node], graph: Section) -> None:
    """What is wrong with the graph as a whole: no way in, nodes never reached, loops that never end, clashes."""
    if not edges.after.get(START):
        graph.problem("no edge leads from START to a node", "edges")
        return
    reached = edges.reach[START]
    for name in nodes:
        if name not in reached:
            graph.problem("is never reached: no edge leads from START to it", "nodes", name)
    for name in nodes:
        if _endless(name, edges):
            graph.problem(
                "is in a loop without a bound: an edge of the loop needs a condition that can leave it",
                "nodes",
                name,
            )
    _check_clashes(edges, nodes, graph)


def _endless(name: str, edges: Edges) -> bool:
    """Whether a record that reaches this node always returns to it, independent of conditions."""
    seen: set[str] = set()
    front = [name]
    while front:
        for edge in edges.after.get(front.pop(), ()):
            if edge.guessed or (edge.condition is not None and len(set(edge.targets)) > 1):
                continue
            for target in edge.targets:
                if target == name:
                    return True
                if target not in seen:
                    seen.add(target)
                    front.append(target)
    return False


def _check_clashes(edges: Edges, nodes: Mapping[str, Node], graph: Section) -> None:
    """Two nodes that run at the same time and set the same field: which one stays would be chance."""
    found: set[tuple[str, str, str]] = set()
    for start in edges.after:
        branches = [
            t for edge in edges.after[start] if edge.condition is None for t in edge.targets if t != END
        ]
        sides = [edges.reach.get(branch, frozenset()) | {branch} for branch in dict.fromkeys(branches)]
        for at, left in enumerate(sides):
            for right in sides[at + 1 :]:
                for one in sorted(left - right):
                    for other in sorted(right - left):
                        found |= _clashes(nodes.get(one), nodes.get(other))
    for one, other, key in sorted(found):
        graph.problem(
            f"sets {key!r} at the same time as {other!r} does: let one of them set another", "nodes", one
        )


def _clashes(one: Node | None, other: Node | None) -> set[tuple[str, str, str]]:
    if one is None or other is None:
        return set()
    keys = (set(one.output_keys) & set(other.output_keys)) - {"messages"}
    return {(one.name, other.name, key) for key in keys}
