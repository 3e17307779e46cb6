"""A compiled graph: its edges, and the execution of one record on it.

A node runs when the record has reached it and no running branch can still reach it. Branches therefore run in
parallel, and a join waits for the branches that were taken and for no others. If every record takes the same path, the
plan is that list of nodes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Any

from karat import paths
from karat.errors import KaratError, Stopped, did_you_mean, is_cancelled, message_of, nearest
from karat.graph._functions import Applied
from karat.graph._reading import Section
from karat.graph._state import END, ENDINGS, PLACE, START, SygraState
from karat.graph.nodes._base import Building, Node, Record

# Edges: where a record goes after a node, and the checks that need no record.

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
        """The next nodes, for conditions that are coroutines."""
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
        section.problem("is given together with path_map: remove one of them", "to")
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
    """Refuse two nodes that run in parallel and set the same field: which value stays would be chance."""
    setters: dict[str, list[str]] = {}
    for name, node in nodes.items():
        for key in dict.fromkeys(node.output_keys):
            if key != "messages":
                setters.setdefault(key, []).append(name)
    forks: list[list[frozenset[str]]] = []
    for after in edges.after.values():
        branches = dict.fromkeys(
            t for edge in after if edge.condition is None for t in edge.targets if t != END
        )
        if len(branches) > 1:
            forks.append([edges.reach.get(branch, frozenset()) | {branch} for branch in branches])
    for key, names in setters.items():
        for one, other in combinations(names, 2):
            if any(_are_apart(one, other, sides) for sides in forks):
                graph.problem(
                    f"sets {key!r} in parallel with {other!r}: rename the variable in one of them",
                    "nodes",
                    one,
                )


def _are_apart(one: str, other: str, sides: list[frozenset[str]]) -> bool:
    """Whether one branch of a fork leads to the first node alone, and another to the second alone."""
    ways = {(one in side, other in side) for side in sides}
    return (True, False) in ways and (False, True) in ways


MOST_VISITS = 25
"""How often a record may come to the same node, unless `graph_properties.max_iterations` says otherwise."""


PASSED_ON: tuple[type[BaseException], ...] = (Stopped, KeyboardInterrupt, GeneratorExit)
"""Exceptions that end the run. Every other exception, of any base class, fails the node that raises it."""


class NodeFailed(KaratError):
    """A node that failed for a record; the message names both the node and the error."""

    exit_code = 1

    def __init__(self, node: str, error: BaseException) -> None:
        message = _mistakes(error) or message_of(error)
        super().__init__(f"node {node}: {type(error).__name__}{message and ': '}{message}")
        self.node = node
        metadata = getattr(error, "metadata", None)
        self.metadata = {**(metadata if isinstance(metadata, dict) else {}), "node": node}


def _mistakes(error: BaseException) -> str:
    """What a pydantic model refused, in one line; its own text is several, with an address in each."""
    if type(error).__name__ != "ValidationError" or not callable(errors := getattr(error, "errors", None)):
        return ""
    try:
        found = [(".".join(map(str, each["loc"])), each["msg"]) for each in errors(include_url=False)]
    except Exception:  # another library's class of that name
        return ""
    return "; ".join(f"{where}: {what}" if where else what for where, what in found)


class LoopBound(Exception):
    """A record that went round a loop too often."""


def failed(node: str, error: BaseException) -> NodeFailed:
    """The failure of a node, with the lines where the error was raised; of a subgraph's node, with both names."""
    if isinstance(error, NodeFailed):
        return NodeFailed(f"{node}.{error.node}", error.__cause__ or error).with_traceback(
            error.__traceback__
        )
    return NodeFailed(node, error).with_traceback(error.__traceback__)


class GraphPlan:
    """The nodes of a graph and the ways between them."""

    def __init__(self, nodes: dict[str, Node], edges: Edges, most_visits: int = MOST_VISITS) -> None:
        self.nodes = nodes
        self.edges = edges
        self.most_visits = most_visits
        self.order = list(nodes)
        chain = edges.chain()
        self.chain = None if chain is None else [nodes[name] for name in chain]
        self._async_nodes = any(node.is_async for node in nodes.values())
        self.is_async = self._async_nodes or any(condition.is_async for condition in edges.conditions)

    # What is known of it before it runs ------------------------------------------------

    def output_keys(self) -> list[str]:
        """What its nodes set."""
        return list(dict.fromkeys(key for node in self.nodes.values() for key in node.sets))

    @property
    def declared(self) -> bool:
        """Whether that is all they set, as far as can be known."""
        return all(node.declared for node in self.nodes.values())

    def parts(self) -> list[Any]:
        """The user's code that it calls."""
        conditions = [condition.part for condition in self.edges.conditions]
        return [part for node in self.nodes.values() for part in node.parts] + conditions

    def models(self) -> list[Any]:
        """The models that its nodes ask."""
        return [model for node in self.nodes.values() for model in node.models]

    def outcome(self) -> dict[str, Any]:
        """What its nodes' results depend on beside the file and the code."""
        return {name: node.outcome for name, node in self.nodes.items() if node.outcome is not None}

    def unset(self) -> list[str]:
        """The variables of prompts that no node before them sets: a record has to bring them."""
        return list(dict.fromkeys(name for names in self.wanted().values() for name in names))

    def wanted(self) -> dict[str, list[str]]:
        """By node, the variables of its prompt that nothing before it is known to set."""
        out: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            before = [n for other, n in self.nodes.items() if name in self.edges.reach.get(other, ())]
            if not all(n.declared for n in before):
                continue  # code may have set them: a record will tell
            have = {key for n in before for key in n.sets}
            missing = [v for v in node.variables if v not in have and paths.parse(v).steps[0] not in have]
            if missing:
                out[name] = missing
        return out

    # One record -------------------------------------------------------------------------

    def run(self, state: SygraState, record: Record) -> None:
        """Run a record through the graph, in this thread."""
        if self.chain is not None:
            for node in self.chain:
                record.at = node.name
                try:
                    node.run(state, record)
                except PASSED_ON:
                    raise
                except BaseException as error:
                    raise failed(node.name, error) from error
            return
        walk = _Walk(self)
        walk.arrive(START, self._targets(START, state))
        while (ready := walk.ready()) is not None:
            name = ready[0]
            walk.start(name)
            record.at = name
            try:
                self.nodes[name].run(state, record)
            except PASSED_ON:
                raise
            except BaseException as error:
                raise failed(name, error) from error
            walk.arrive(name, self._targets(name, state))

    def _targets(self, name: str, state: SygraState) -> list[str]:
        try:
            return self.edges.targets(name, state)
        except PASSED_ON:
            raise
        except BaseException as error:
            raise failed(name, error) from error

    async def run_async(self, state: SygraState, record: Record) -> None:
        """The same on the event loop, where branches run in parallel."""
        if self.chain is not None:
            for node in self.chain:
                record.at = node.name
                await self._step(node, state, record)
            return
        record.at = walk = _Walk(self)
        if state.appended is None:
            state.appended = []
        walk.arrive(START, await self._targets_async(START, state))
        under_way: dict[asyncio.Task[list[str]], str] = {}
        try:
            while True:
                state.sort_appended()
                ready = walk.ready() or []
                if len(ready) == 1 and not under_way:
                    walk.start(ready[0])
                    walk.arrive(ready[0], await self._visit(ready[0], state, record, walk.place(ready[0])))
                    continue
                for name in ready:
                    walk.start(name)
                    under_way[asyncio.ensure_future(self._visit(name, state, record, walk.place(name)))] = (
                        name
                    )
                if not under_way:
                    return
                done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda task: self.order.index(under_way[task])):
                    walk.arrive(under_way.pop(task), task.result())
        finally:
            for task in under_way:
                task.cancel()
            if under_way:
                await asyncio.gather(*under_way, return_exceptions=True)

    async def _visit(self, name: str, state: SygraState, record: Record, place: tuple[int, int]) -> list[str]:
        """Run a node and return the nodes that the record goes to next."""
        before = PLACE.set((*PLACE.get(), *place))
        try:
            await self._step(self.nodes[name], state, record)
        finally:
            PLACE.reset(before)
        return await self._targets_async(name, state)

    async def _step(self, node: Node, state: SygraState, record: Record) -> None:
        try:
            if node.is_async:
                await node.run_async(state, record)
            else:
                node.run(state, record)
        except PASSED_ON:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            raise failed(node.name, error) from error

    async def _targets_async(self, name: str, state: SygraState) -> list[str]:
        try:
            return await self.edges.targets_async(name, state)
        except PASSED_ON:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            raise failed(name, error) from error


class _Walk:
    """The position of one record: nodes reached, nodes running, number of visits to each node."""

    def __init__(self, plan: GraphPlan) -> None:
        self._plan = plan
        self._waiting: dict[str, None] = {}
        self._running: set[str] = set()
        self._visits: dict[str, int] = {}
        self._distances = {START: 0}

    @property
    def running(self) -> list[str]:
        """The nodes that are running, in the order of the file."""
        return [name for name in self._plan.order if name in self._running]

    def arrive(self, source: str, targets: list[str]) -> None:
        """Mark a node as done and move the record on."""
        self._running.discard(source)
        for target in targets:
            if target != END:
                self._waiting[target] = None
                self._distances[target] = max(self._distances.get(target, 0), self._distances[source] + 1)

    def place(self, name: str) -> tuple[int, int]:
        """The distance of a node from the start, which does not depend on what ends first, and its number."""
        return self._distances[name], self._plan.order.index(name)

    def start(self, name: str) -> None:
        """A node begins."""
        del self._waiting[name]
        self._running.add(name)
        self._visits[name] = visits = self._visits.get(name, 0) + 1
        if visits > self._plan.most_visits:
            raise failed(
                name,
                LoopBound(
                    f"the record reached this node more than {self._plan.most_visits} times:"
                    " graph_properties.max_iterations is the bound"
                ),
            )

    def ready(self) -> list[str] | None:
        """The nodes that may begin; None when there is nothing more to do."""
        waiting, running = self._waiting, self._running
        if not waiting:
            return [] if running else None
        if len(waiting) == 1 and not running:
            return list(waiting)
        reach = self._plan.edges.reach
        active = [*waiting, *running]
        ready = [
            name
            for name in waiting
            if name not in running and not any(name in reach[other] for other in active if other != name)
        ]
        if not ready and not running:  # they wait for each other, in a loop: the first one written goes first
            ready = [min(waiting, key=self._plan.order.index)]
        return sorted(ready, key=self._plan.order.index)
