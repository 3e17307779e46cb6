"""How a record goes through a graph: joins wait for the branches that were taken, whatever order they end in."""

from __future__ import annotations

import asyncio
import time
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
def test_whatever_a_node_raises_names_the_node(error):
    edges = Edges({START: [Edge(["bad"])], "bad": []})
    with pytest.raises(NodeFailed, match=r"^node bad: "):
        GraphPlan({"bad": Broken("bad", error)}, edges).run(SygraState(), Record())


def test_what_stops_a_run_is_not_a_failure_of_the_record():
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


def test_checking_a_dense_graph_takes_moderate_time():
    names = [f"n{number}" for number in range(150)]
    after = {name: [Edge(names[at:])] for at, name in enumerate([START, *names])}
    nodes = {name: Node(name, [f"k{name}"]) for name in names}
    start = time.process_time()
    edges = Edges(after)
    middle = time.process_time()
    check_edges(edges, nodes, Section({}, (), Problems(Document(Path(), {}, {}))))
    assert time.process_time() - middle < 100 * (middle - start)  # about 5
