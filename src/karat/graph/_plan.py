"""A compiled graph: its edges, and the execution of one record on it.

A node runs when the record has reached it and no running branch can still reach it. Branches therefore run in
parallel, and a join waits for the branches that were taken and for no others. If every record takes the same path, the
plan is that list of nodes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
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
        self.anywhere = False
        """Whether its condition may name any node; then `targets` is one list for all such edges."""
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
        self.bits = {node: 1 << number for number, node in enumerate(after)}
        """A bit for each node, for sets of nodes as integers: all that `ahead` holds is a bit for each pair."""

    @cached_property
    def ahead(self) -> dict[str, int]:
        """The nodes that can come after each node, by their bits; one pass over the edges."""
        directly: dict[str | None, list[str | None]] = {}
        for node, edges in self.after.items():
            directly[node] = []
            for edge in edges:
                if edge.anywhere:  # all of them lead there through None
                    directly[None] = list(edge.targets)
                    directly[node].append(None)
                else:
                    directly[node] += edge.targets
        out: dict[str | None, int] = {None: 0}
        for component in _components(directly):
            inside, found = set(component), 0
            for node in component:
                for target in directly.get(node, ()):
                    found |= 0 if target is None else self.bits.get(target, 0)  # END has none
                    if target not in inside:
                        found |= out[target]
            out |= dict.fromkeys(component, found)
        return {node: out[node] for node in self.after}

    def comes_after(self, name: str, other: str) -> bool:
        """Whether a record can come to a node after another."""
        return bool(self.ahead[other] & self.bits[name])

    def chain(self) -> list[str] | None:
        """The nodes in their order, where every record goes the same single way."""
        order: dict[str, None] = {}
        at = START
        while at != END:
            edges = self.after.get(at, [])
            if not edges and at != START:
                break
            if len(edges) != 1 or edges[0].condition is not None or len(edges[0].targets) != 1:
                return None
            at = edges[0].targets[0]
            if at in order:
                return None
            if at != END:
                order[at] = None
        return list(order)

    def targets(self, node: str, state: object) -> list[str]:
        """Return the nodes that follow for a record."""
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


def _components(directly: Mapping[Any, Iterable[Any]]) -> Iterator[list[Any]]:
    """The nodes of a graph by strongly connected components, each after those that it leads to (Tarjan)."""
    numbers: dict[Any, int] = {}
    lowest: dict[Any, int] = {}
    stack: dict[Any, None] = {}
    for root in directly:
        way = [] if root in numbers else [(root, iter([root]))]
        while way:
            node, targets = way[-1]
            for target in targets:
                if target not in numbers:
                    numbers[target] = lowest[target] = len(numbers)
                    stack[target] = None
                    way.append((target, iter(directly.get(target, ()))))
                    break
                if target in stack:
                    lowest[node] = min(lowest[node], numbers[target])
            else:
                way.pop()
                parent = way[-1][0] if way else node
                lowest[parent] = min(lowest[parent], lowest[node])
                if lowest[node] == numbers[node] and node in stack:
                    component: list[Any] = []
                    while not component or component[-1] != node:
                        component.append(stack.popitem()[0])
                    yield component


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
    starts, ends, understood = dict.fromkeys([START, *nodes]), dict.fromkeys([*nodes, END]), True
    anywhere = list(ends)
    for section in graph.sections("edges"):
        before = len(section.problems)
        section.known(EDGE_KEYS)
        section.without_effect("max_iterations", instead="graph_properties.max_iterations is the bound")
        sources = section.texts("from")
        if not sources:
            section.problem("needs 'from': a node or START")
        meant = [_meant(source, starts, section, "from") for source in sources]
        edge = _edge(section, ends, anywhere, building, sources)
        if edge is not None:
            edge.guessed = len(section.problems) > before
        understood &= edge is not None and bool(meant) and None not in meant
        for source in meant:
            if source is not None and edge is not None:
                after[source].append(edge)
    return Edges(after), understood


def _meant(
    name: str, known: Collection[str], section: Section, *steps: str, but: Collection[str] = ()
) -> str | None:
    """The node with a name. An unknown name is reported, and the nearest known node is used instead."""
    if name in known:
        return name
    section.problem(f"there is no node {name!r}: {did_you_mean(name, known)}", *steps)
    close = next(iter(nearest(name, known, 1)), None)
    return None if close in but else close


def _edge(
    section: Section, known: Collection[str], anywhere: list[str], building: Building, sources: list[str]
) -> Edge | None:
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
    reachable = _names(list(paths.values())) or _names(targets)
    edge = Edge(list(dict.fromkeys(reachable)), condition, {k: t for k, t in paths.items() if t is not None})
    if not reachable:  # the condition names the nodes themselves, so that it may lead to any of them
        edge.targets, edge.anywhere = anywhere, True
    return edge


def _names(given: list[str | None]) -> list[str]:
    return [name for name in given if name is not None]


def check_edges(edges: Edges, nodes: Mapping[str, Node], graph: Section) -> None:
    """Report problems of the whole graph: no entry, unreachable nodes, endless loops, clashes of names."""
    if not edges.after.get(START):
        graph.problem("no edge leads from START to a node", "edges")
        return
    endless = _endless(edges)
    for name in nodes:
        if not edges.comes_after(name, START):
            graph.problem("is never reached: no edge leads from START to it", "nodes", name)
    for name in nodes:
        if name in endless:
            graph.problem(
                "is in a loop without a bound: an edge of the loop needs a condition that can leave it",
                "nodes",
                name,
            )
    _check_clashes(edges, nodes, graph)


def _endless(edges: Edges) -> set[str]:
    """The nodes to which a record that reaches them always returns, independent of conditions."""
    certain = {
        node: [
            target
            for edge in after
            if not edge.guessed and (edge.condition is None or len(edge.targets) == 1)
            for target in edge.targets
        ]
        for node, after in edges.after.items()
    }
    return {
        node
        for component in _components(certain)
        for node in component
        if len(component) > 1 or node in certain.get(node, ())
    }


def _check_clashes(edges: Edges, nodes: Mapping[str, Node], graph: Section) -> None:
    """Refuse nodes that run in parallel and set the same field: which value stays would be chance.

    Each is reported with the next node in the file that does so.
    """
    setters: dict[str, list[str]] = {}
    for name, node in nodes.items():
        for key in dict.fromkeys(node.output_keys):
            if key != "messages":
                setters.setdefault(key, []).append(name)
    several = {key: names for key, names in setters.items() if len(names) > 1}
    number = {name: at for at, name in enumerate(nodes)}
    found: dict[tuple[str, str], str] = {}
    for after in edges.after.values():
        branches = dict.fromkeys(
            t for edge in after if edge.condition is None for t in edge.targets if t != END
        )
        if not several or len(branches) < 2:
            continue
        of = _branches_of([edges.ahead.get(each, 0) | edges.bits[each] for each in branches], edges)
        for key, names in several.items():
            for one, other in _apart([name for name in names if name in of], of):
                found[key, one] = min(found.get((key, one), other), other, key=number.__getitem__)
    for (key, one), other in found.items():
        graph.problem(
            f"sets {key!r} in parallel with {other!r}: rename the variable in one of them", "nodes", one
        )


def _branches_of(sides: list[int], edges: Edges) -> dict[str, int]:
    """The branches of a fork that lead to each node, by bits, of nodes to which some lead and others do not."""
    anywhere, everywhere = 0, -1
    for side in sides:
        anywhere |= side
        everywhere &= side
    names = list(edges.after)
    out: dict[str, int] = {}
    for branch, side in enumerate(sides):
        left = side & anywhere & ~everywhere
        while left:
            last = left.bit_length() - 1
            out[names[last]] = out.get(names[last], 0) | 1 << branch
            left ^= 1 << last
    return out


def _apart(names: list[str], of: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Each node with the next one so that a branch leads to the first alone, and another to the second alone."""
    later: dict[int, str] = {}
    for name in reversed(names):
        for branches in reversed(later):  # the nearest first
            if branches & ~of[name] and of[name] & ~branches:
                yield name, later[branches]
                break
        later.pop(of[name], None)
        later[of[name]] = name


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
    """Return a pydantic error in one line; its own text has several, each with an address."""
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
        self.numbers = {name: number for number, name in enumerate(nodes)}
        """The place of each node in the file."""
        chain = edges.chain()
        self.chain = None if chain is None else [nodes[name] for name in chain]
        self._async_nodes = any(node.is_async for node in nodes.values())
        self.is_async = self._async_nodes or any(condition.is_async for condition in edges.conditions)

    # What is known of it before it runs ------------------------------------------------

    def output_keys(self) -> list[str]:
        """Return the keys that the nodes set."""
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
        """Return what the nodes' results depend on beside the file and the code."""
        return {name: node.outcome for name, node in self.nodes.items() if node.outcome is not None}

    def unset(self) -> list[str]:
        """The variables of prompts that no node before them sets: a record has to bring them."""
        return list(dict.fromkeys(name for names in self.wanted().values() for name in names))

    def wanted(self) -> dict[str, list[str]]:
        """Return, for each node, the variables of its prompt that no earlier node is known to set."""
        asking = {name: [(v, paths.parse(v).steps[0]) for v in n.variables] for name, n in self.nodes.items()}
        set_before = dict.fromkeys((key for pairs in asking.values() for pair in pairs for key in pair), 0)
        unknown = 0  # the nodes for which code may have set something: a record will tell
        for name, node in self.nodes.items() if set_before else ():
            if not node.declared:
                unknown |= self.edges.ahead[name]
            for key in node.sets:
                if key in set_before:
                    set_before[key] |= self.edges.ahead[name]
        out: dict[str, list[str]] = {}
        for name, pairs in asking.items():
            bit = self.edges.bits[name]
            missing = [v for v, first in pairs if not (set_before[v] | set_before[first] | unknown) & bit]
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
                for task in sorted(done, key=lambda task: self.numbers[under_way[task]]):
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
        return sorted(self._running, key=self._plan.numbers.__getitem__)

    def arrive(self, source: str, targets: list[str]) -> None:
        """Mark a node as done and move the record on."""
        self._running.discard(source)
        for target in targets:
            if target != END:
                self._waiting[target] = None
                self._distances[target] = max(self._distances.get(target, 0), self._distances[source] + 1)

    def place(self, name: str) -> tuple[int, int]:
        """The distance of a node from the start, which does not depend on what ends first, and its number."""
        return self._distances[name], self._plan.numbers[name]

    def start(self, name: str) -> None:
        """Record that a node starts."""
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
        ahead, bits = self._plan.edges.ahead, self._plan.edges.bits
        active = [*waiting, *running]
        reached = 0
        for name in active:
            reached |= ahead[name]
        ready = [
            name
            for name in waiting
            if name not in running
            and not (
                reached & bits[name] and any(ahead[other] & bits[name] for other in active if other != name)
            )
        ]
        if not ready and not running:  # they wait for each other, in a loop: the first one written goes first
            ready = [min(waiting, key=self._plan.numbers.__getitem__)]
        return sorted(ready, key=self._plan.numbers.__getitem__)
