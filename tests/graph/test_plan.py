"""How a record goes through a graph: joins wait for the branches that were taken, in any order."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.documents import Document
from karat.errors import StoreError
from karat.graph._functions import applied
from karat.graph._plan import Edge, Edges, GraphPlan, NodeFailed, check_edges
from karat.graph._reading import Problems, Section
from karat.graph._state import CHAT_HISTORY, END, START, SygraState
from karat.graph.nodes._base import Node, Record


class Noted(Node):
    """Notes when it begins and ends; asynchronous ones give way to others in between."""

    def __init__(self, name: str, turns: int | None = None) -> None:
        super().__init__(name)
        self.is_async = turns is not None
        self.turns = turns or 0

    def run(self, state, record) -> None:
        state.setdefault("began", []).append(self.name)
        state.setdefault("ended", []).append(self.name)

    async def run_async(self, state, record) -> None:
        state.setdefault("began", []).append(self.name)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        state.setdefault("ended", []).append(self.name)


@st.composite
def graphs(draw):
    """A graph without loops: each node has edges to later ones, and START to those without any before them."""
    count = draw(st.integers(1, 7))
    names = [f"n{i}" for i in range(count)]
    links = {
        name: draw(st.lists(st.sampled_from([*names[at + 1 :], END]), max_size=3, unique=True))
        for at, name in enumerate(names)
    }
    headless = [name for name in names if not any(name in targets for targets in links.values())]
    after = {
        START: [Edge(headless)],
        **{name: [Edge(targets)] if targets else [] for name, targets in links.items()},
    }
    turns = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    return links, Edges(after), dict(zip(names, turns, strict=True))


def check(links, state) -> None:
    began, ended = state["began"], state["ended"]
    assert sorted(began) == sorted(links)  # each once
    for source, targets in links.items():
        for target in targets:
            if target != END:
                assert ended.index(source) <= began.index(target)


@given(graphs())
def test_every_node_runs_once_and_after_all_that_lead_to_it(made):
    links, edges, turns = made
    state = SygraState()
    GraphPlan({name: Noted(name) for name in links}, edges).run(state, Record())
    check(links, state)
    state = SygraState()
    asyncio.run(
        GraphPlan({name: Noted(name, turns[name]) for name in links}, edges).run_async(state, Record())
    )
    check(links, state)


def test_a_branch_that_is_not_taken_is_not_waited_for():
    choose = applied(lambda state: "left", 1, "choose")
    edges = Edges({
        START: [Edge(["left", "right"], choose, {"left": "left", "right": "right"})],
        "left": [Edge(["join"])],
        "right": [Edge(["join"])],
        "join": [Edge([END])],
    })  # fmt: skip
    state = SygraState()
    GraphPlan({name: Noted(name) for name in ("left", "right", "join")}, edges).run(state, Record())
    assert state["ended"] == ["left", "join"]


def test_two_loops_that_wait_for_each_other_go_in_the_order_they_are_written():
    def done(state):
        return "END" if len(state["ended"]) > 4 else "on"

    condition = applied(done, 1, "done")
    edges = Edges({
        START: [Edge(["a", "b"])],
        "a": [Edge(["b", END], condition, {"on": "b", "END": END})],
        "b": [Edge(["a", END], condition, {"on": "a", "END": END})],
    })  # fmt: skip
    state = SygraState()
    GraphPlan({name: Noted(name) for name in ("a", "b")}, edges).run(state, Record())
    assert state["ended"][:3] == ["a", "b", "a"]


class Broken(Node):
    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.error = error

    def run(self, state, record) -> None:
        raise self.error


def test_a_failure_names_its_node_and_keeps_the_lines_it_came_from():
    edges = Edges({START: [Edge(["bad"])], "bad": []})
    with pytest.raises(NodeFailed) as caught:
        GraphPlan({"bad": Broken("bad", ValueError("no"))}, edges).run(SygraState(), Record())
    assert str(caught.value) == "node bad: ValueError: no"
    assert caught.value.node == "bad"
    frames = []
    at = caught.value.__traceback__
    while at is not None:
        frames.append(at.tb_frame.f_code.co_qualname if hasattr(at.tb_frame.f_code, "co_qualname") else "")
        at = at.tb_next
    assert "Broken.run" in frames


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("error", [SystemExit(2), Mute()])
def test_any_exception_of_a_node_names_the_node(error):
    edges = Edges({START: [Edge(["bad"])], "bad": []})
    with pytest.raises(NodeFailed, match=r"^node bad: "):
        GraphPlan({"bad": Broken("bad", error)}, edges).run(SygraState(), Record())


def test_an_error_that_stops_the_run_does_not_fail_the_record():
    edges = Edges({START: [Edge(["bad"])], "bad": []})
    with pytest.raises(StoreError):
        GraphPlan({"bad": Broken("bad", StoreError("lost"))}, edges).run(SygraState(), Record())


def test_when_a_branch_fails_the_others_are_stopped():
    edges = Edges({START: [Edge(["slow", "bad"])], "slow": [], "bad": []})
    state = SygraState()

    class Slow(Noted):
        async def run_async(self, state, record) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                state["stopped"] = True
                raise

    bad = Broken("bad", ValueError("no"))
    with pytest.raises(NodeFailed):
        asyncio.run(GraphPlan({"slow": Slow("slow", 1), "bad": bad}, edges).run_async(state, Record()))
    assert state["stopped"]


class Says(Noted):
    """Adds a message and an entry of the history when it ends."""

    async def run_async(self, state, record) -> None:
        await super().run_async(state, record)
        state.merge({"messages": [self.name]}, self.name)
        state.append(CHAT_HISTORY, [{"name": self.name}])


@given(graphs(), st.lists(st.integers(0, 5), min_size=7, max_size=7))
def test_messages_of_branches_do_not_depend_on_what_ends_first(made, others):
    links, edges, turns = made
    again = dict(zip(links, others, strict=False))
    found = []
    for each in (turns, again):
        state = SygraState(messages=["before"])
        plan = GraphPlan({name: Says(name, each[name]) for name in links}, edges)
        asyncio.run(plan.run_async(state, Record()))
        assert [entry["name"] for entry in state[CHAT_HISTORY]] == state["messages"][1:]
        found.append(state["messages"])
    assert found[0] == found[1]


def test_a_join_sees_the_messages_of_branches_in_the_order_of_the_file():
    edges = Edges(
        {START: [Edge(["slow", "quick"])], "slow": [Edge(["join"])], "quick": [Edge(["join"])], "join": []}
    )

    class Join(Noted):
        async def run_async(self, state, record) -> None:
            state["seen"] = list(state["messages"])

    state = SygraState()
    nodes = {"slow": Says("slow", 9), "quick": Says("quick", 1), "join": Join("join", 1)}
    asyncio.run(GraphPlan(nodes, edges).run_async(state, Record()))
    assert state["seen"] == ["slow", "quick"]


@st.composite
def tangled(draw):
    """A graph of any edges, also loops, conditions and guesses, in which nodes set few different fields."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 6)))]
    after: dict[str, list[Edge]] = {}
    for name in (START, *names):
        after[name] = []
        for targets in draw(st.lists(st.lists(st.sampled_from([*names, END]), unique=True), max_size=2)):
            edge = Edge(targets, draw(st.sampled_from([None, applied(lambda state: END, 1, "condition")])))
            if edge.condition is not None and draw(st.booleans()):
                edge.targets, edge.anywhere = [*names, END], True
            edge.guessed = draw(st.booleans())
            after[name].append(edge)
    keys = st.lists(st.sampled_from(["x", "y"]), max_size=2)
    return Edges(after), {name: Node(name, draw(keys)) for name in names}


def reached(start: str, edges: Edges, certain: bool = False) -> set[str]:
    """The nodes that come after a node, found by following every edge from it."""
    found: set[str] = set()
    front = [start]
    while front:
        for edge in edges.after.get(front.pop(), ()):
            if certain and (edge.guessed or (edge.condition is not None and len(edge.targets) > 1)):
                continue
            front += [target for target in edge.targets if target not in found]
            found.update(edge.targets)
    return found


def apart(one: str, other: str, edges: Edges) -> bool:
    """Whether a fork has a branch that leads to the first node alone, and another to the second alone."""
    for after in edges.after.values():
        branches = {t for edge in after if edge.condition is None for t in edge.targets if t != END}
        sides = [reached(branch, edges) | {branch} for branch in branches]
        if {(True, False), (False, True)} <= {(one in side, other in side) for side in sides}:
            return True
    return False


@given(tangled())
def test_a_graph_is_checked_as_if_every_way_was_followed(made):
    edges, nodes = made
    problems = Problems(Document(Path(), {}, {}))
    check_edges(edges, nodes, Section({}, (), problems))
    said = {name: [s for s in problems.sentences() if f"nodes.{name}: " in s] for name in nodes}
    if not edges.after[START]:
        return
    names = list(nodes)
    for at, name in enumerate(names):
        assert {other for other in names if edges.comes_after(other, name)} == reached(name, edges) - {END}
        text = " ".join(said[name])
        assert ("never reached" in text) == (name not in reached(START, edges)), text
        assert ("loop" in text) == (name in reached(name, edges, certain=True)), text
        for key in ("x", "y"):
            setters = [n for n in names[at:] if key in nodes[n].output_keys]
            clashes = [other for other in setters[1:] if setters[0] == name and apart(name, other, edges)]
            first = f"{key!r} in parallel with {clashes[0]!r}" if clashes else ""
            assert (f"sets {key!r}" in text) == bool(clashes), text
            assert first in text


@given(tangled(), st.data())
def test_variables_are_wanted_that_no_node_before_sets(made, data):
    edges, nodes = made
    for node in nodes.values():
        node.variables = data.draw(st.lists(st.sampled_from(["x", "y.part", "z"]), unique=True))
        node.declared = data.draw(st.integers(0, 5)) > 0
    expected = {}
    for name, node in nodes.items():
        before = [each for other, each in nodes.items() if name in reached(other, edges)]
        have = {key for each in before for key in each.sets}
        missing = [v for v in node.variables if v not in have and v[0] not in have]
        if missing and all(each.declared for each in before):
            expected[name] = missing
    assert GraphPlan(nodes, edges).wanted() == expected


COUNTING = """
import sys
from karat.graph import load_task

work = 0

def count(frame, event, argument):
    global work
    if event == "call" and "graph" not in frame.f_code.co_filename:
        return None
    frame.f_trace_opcodes = True
    work += event == "opcode"
    return count

for task in sys.argv[1:]:
    load_task(sys.argv[1])  # what is imported is not counted
    sys.settrace(count)
    load_task(task)
    sys.settrace(None)
    print(work)
    work = 0
"""
SAME = "def same(state):\n    return {}\n\n\ndef away(state):\n    return 'END'\n"


def node(key: str) -> dict[str, object]:
    return {"node_type": "lambda", "lambda": "parts.same", "output_keys": [key]}


def asking(before: str, key: str) -> dict[str, object]:
    return {
        "node_type": "llm",
        "model": {"name": "fake@http://127.0.0.1:1/v1"},
        "prompt": [{"user": f"{{question}} {{{before}}}"}],
        "output_keys": [key],
    }


def in_order(nodes: dict[str, object]) -> dict[str, object]:
    ways = [START, *nodes, END]
    edges = [{"from": here, "to": there} for here, there in pairwise(ways)]
    return {"nodes": nodes, "edges": edges}


def diamonds(count: int) -> dict[str, object]:
    nodes = {f"{part}{at}": node(f"{part}{at % 2}") for at in range(count // 3) for part in "abc"}
    edges: list[dict[str, object]] = [{"from": START, "to": "a0"}]
    for at in range(count // 3):
        edges.append({"from": f"a{at}", "to": [f"b{at}", f"c{at}"]})
        edges.append({"from": [f"b{at}", f"c{at}"], "to": f"a{at + 1}" if at + 1 < count // 3 else END})
    return {"nodes": nodes, "edges": edges}


def side_by_side(count: int) -> dict[str, object]:
    half = count // 2
    nodes = {f"{part}{at}": node(f"x{at}") for at in range(half) for part in "ab"}
    edges: list[dict[str, object]] = [{"from": START, "to": [f"a{at}" for at in range(half)]}]
    edges += [{"from": f"a{at}", "to": f"b{at}"} for at in range(half)]
    return {"nodes": nodes, "edges": [*edges, *({"from": f"b{at}", "to": END} for at in range(half))]}


def from_anywhere(count: int) -> dict[str, object]:
    nodes = {f"a{at}": node("x") for at in range(count)}
    edges: list[dict[str, object]] = [{"from": name, "condition": "parts.away"} for name in nodes]
    return {"nodes": nodes, "edges": [{"from": START, "to": "a0"}, *edges]}


SHAPES = {
    "chain": lambda count: in_order({f"a{at}": node("x") for at in range(count)}),
    "prompts": lambda count: in_order(
        {f"a{at}": asking(f"x{max(0, at - 1)}", f"x{at}") for at in range(count)}
    ),
    "diamonds": diamonds,
    "side_by_side": side_by_side,
    "from_anywhere": from_anywhere,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_work_of_loading_is_in_proportion_to_the_file(project, shape):
    for count in (60, 240):
        graph = {"data_config": {}, "graph_config": SHAPES[shape](count)}
        project.write(f"{shape}{count}/graph_config.yaml", json.dumps(graph))
        project.write(f"{shape}{count}/parts.py", SAME)
    command = [sys.executable, "-c", COUNTING, f"{shape}60", f"{shape}240"]
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=True)
    small, large = map(int, done.stdout.split())
    assert large < 4.5 * small, (small, large)  # four times as many nodes
