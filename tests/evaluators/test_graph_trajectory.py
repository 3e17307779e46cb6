"""Graph trajectories: nodes and transitions in all modes, and the agentevals adapter."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

import karat
from karat.errors import MissingDependency, RequestError
from karat.evaluators import GraphTrajectoryMatchEvaluator, agentevals_adapter, build_evaluator
from karat.testing import FakeProvider
from karat.traces import TraceError

MODES = ["strict", "unordered", "subset", "superset", "in_order"]

TABLE: list[tuple[list[str], list[str], str]] = [
    ([], [], "strict unordered subset superset in_order"),
    (["a", "b"], ["a", "b"], "strict unordered subset superset in_order"),
    (["a"], ["a", "b"], "subset"),
    (["a", "b"], ["a"], "superset in_order"),
    (["b", "a"], ["a", "b"], ""),
    (["a", "b", "a", "b"], ["a", "b"], "superset in_order"),
    (["a", "x", "b"], ["a", "b"], ""),
    ([], ["a"], "subset"),
]


@pytest.mark.parametrize(("agent", "reference", "modes"), TABLE)
@pytest.mark.parametrize("mode", MODES)
def test_nodes_and_transitions(agent: list[str], reference: list[str], modes: str, mode: str) -> None:
    result = GraphTrajectoryMatchEvaluator(mode=mode).evaluate(  # type: ignore[arg-type]  # it is one of them
        outputs={"steps": [agent]}, reference_outputs={"steps": [reference]}
    )
    assert result.value == (mode in modes.split())
    assert result.comment.startswith("passed" if result.value else "failed")


@pytest.mark.parametrize("mode", ["unordered", "subset", "superset"])
def test_nodes_alone(mode: str) -> None:
    evaluator = build_evaluator("graph_trajectory_match", {"mode": mode, "compare": "nodes"})
    assert evaluator.evaluate(outputs=["b", "a"], reference_outputs=["a", "b"]).score == 1.0


@pytest.mark.parametrize(
    "shape",
    [
        {"inputs": [], "results": [], "steps": [["__start__", "agent", "tools"]]},
        {"outputs": {"steps": [["__start__", "agent", "tools"]]}},
        [["__start__", "agent", "tools"]],
        ["__start__", "agent", "tools"],
        [{"__start__": {}}, {"agent": {"messages": []}}, {"tools": {}}],
        [{"node": "__start__"}, {"node": "agent"}, {"node": "tools"}],
        '{"steps": [["__start__", "agent", "tools"]]}',
    ],
)
def test_the_shapes_of_a_graph_trajectory(shape: Any) -> None:
    result = GraphTrajectoryMatchEvaluator().evaluate(
        outputs=shape, reference_outputs={"steps": [["__start__", "agent", "tools"]]}
    )
    assert result.score == 1.0


def test_turns_matter_in_strict_mode() -> None:
    evaluator = build_evaluator("graph_trajectory_match", {"compare": ["nodes"]})
    result = evaluator.evaluate(outputs=[["a"], ["b"]], reference_outputs=[["a", "b"]])
    assert result.score == 0.0
    assert "turns" in result.comment


def test_graded_and_bounded_extras() -> None:
    graded = build_evaluator(
        "graph_trajectory_match", {"mode": "unordered", "compare": "nodes", "graded": True}
    )
    assert graded.evaluate(outputs=["a", "b"], reference_outputs=["a", "c"]).score == 0.5
    bounded = build_evaluator(
        "graph_trajectory_match", {"mode": "superset", "compare": "nodes", "max_extra": 1}
    )
    assert bounded.evaluate(outputs=["a", "b"], reference_outputs=["a"]).score == 1.0
    assert bounded.evaluate(outputs=["a", "b", "c"], reference_outputs=["a"]).score == 0.0


_CALL = {"id": "1", "type": "function", "function": {"name": "rm", "arguments": "{}"}}


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        {"x": 1},
        "text",
        [1],
        [["a"], "b"],
        # Conversations, of which the keys of the messages were taken for nodes: any two of them were equal.
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [_CALL]}],
        [{"role": "tool", "name": "rm", "content": "done"}],
        {"steps": [[{"type": "human", "content": "hi"}]]},
        AIMessage("hi", name="agent"),
        [AIMessage("hi", name="agent")],
    ],
)
def test_a_value_that_is_not_a_graph_trajectory_is_refused(value: Any) -> None:
    with pytest.raises(TraceError):
        GraphTrajectoryMatchEvaluator().evaluate(outputs=value, reference_outputs=["a"])
    with pytest.raises(TraceError):
        GraphTrajectoryMatchEvaluator().evaluate(outputs=["a"], reference_outputs=value)


@pytest.mark.parametrize(
    "params", [{"mode": "strct"}, {"compare": ["edges"]}, {"compare": []}, {"max_extra": 1}]
)
def test_mistakes_are_found_when_it_is_built(params: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        build_evaluator("graph_trajectory_match", params)


THREAD = {"inputs": [{"__start__": {}}], "results": [{}], "steps": [["__start__", "agent"]]}


def test_agentevals_judges(says) -> None:
    assert agentevals_adapter.is_available()
    evaluator = agentevals_adapter.graph_trajectory_strict_match()
    assert evaluator.evaluate(outputs=THREAD, reference_outputs=THREAD).score == 1.0
    other = {**THREAD, "steps": [["__start__", "tools"]]}
    failed = evaluator.evaluate(outputs=other, reference_outputs=THREAD)
    assert failed.score == 0.0
    says(failed.comment)


def test_agentevals_asks_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    answers = [
        '{"reasoning": "each step follows", "score": true}',
        '{"reasoning": "no", "score": false}',
        "well",
    ]
    with FakeProvider(answers) as provider:
        judge = ChatOpenAI(model="judge", base_url=provider.url, api_key=SecretStr("key"), max_retries=0)
        evaluator = agentevals_adapter.graph_trajectory_llm_judge(judge=judge)
        sides: dict[str, Any] = {"outputs": THREAD, "reference_outputs": THREAD}
        good, bad = (evaluator.evaluate(**sides, inputs={"question": "Where to?"}) for _ in range(2))
        assert (good.key, good.score, good.comment) == ("graph_trajectory_accuracy", 1.0, "each step follows")
        assert (bad.score, bad.comment) == (0.0, "no")
        with pytest.raises(TraceError, match="OutputParserException"):  # the sentence is that of the library
            evaluator.evaluate(**sides)
        assert provider.count == 3


def test_without_agentevals_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agentevals", None)
    for build in (
        agentevals_adapter.graph_trajectory_strict_match,
        agentevals_adapter.graph_trajectory_llm_judge,
    ):
        with pytest.raises(MissingDependency, match=r"karat\[agentevals\]"):
            build()


@pytest.mark.parametrize(
    ("reply", "score"),
    [({"key": "k", "score": True, "comment": None}, 1.0), ([{"score": 0.25}], 0.25), ({"score": None}, None)],
)
def test_replies_become_results(reply: Any, score: float | None) -> None:
    evaluator = agentevals_adapter.AgentEvalsEvaluator(lambda **given: reply, "mine", {})
    result = evaluator.evaluate(outputs=THREAD, reference_outputs=THREAD)
    assert (result.key, result.score) == ("mine", score)
    assert (result.error is None) == (score is not None)


def test_an_exception_of_agentevals_is_an_error_without_a_score() -> None:
    def judge(**given: Any) -> Any:
        raise KeyError("steps")

    with pytest.raises(TraceError, match="KeyError"):
        agentevals_adapter.AgentEvalsEvaluator(judge, "mine", {}).evaluate(outputs={}, reference_outputs={})


def test_functions_of_agentevals_and_openevals_are_evaluators_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    from agentevals.trajectory.match import (
        create_async_trajectory_match_evaluator,
        create_trajectory_match_evaluator,
    )
    from openevals.exact import exact_match
    from openevals.string.levenshtein import levenshtein_distance

    def messages(tool: str) -> list[dict[str, Any]]:
        function = {"name": tool, "arguments": "{}"}
        call = {"id": "1", "type": "function", "function": function}
        return [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]

    def task(input: str) -> list[dict[str, Any]]:
        return messages(input)

    examples = [{"id": tool, "input": tool, "expected": messages("look")} for tool in ("look", "book")]
    run = karat.run(task, karat.Dataset.from_examples(examples), store="memory://")
    evaluation = karat.evaluate(
        run,
        [
            create_trajectory_match_evaluator(trajectory_match_mode="strict"),
            create_async_trajectory_match_evaluator(trajectory_match_mode="unordered"),
            exact_match,
            levenshtein_distance,
        ],
    )
    scores: dict[str, list[Any]] = {}
    for item in sorted(evaluation.results(), key=lambda item: item.example, reverse=True):
        scores.setdefault(item.key, []).append(item.outcome.value.score)
    assert scores["trajectory_strict_match"] == [1.0, 0.0]
    assert scores["trajectory_unordered_match"] == [1.0, 0.0]
    assert scores["exact_match"] == [1.0, 0.0]
    assert scores["levenshtein_distance"][0] == 1.0
    assert evaluation.status == "success"


@pytest.mark.parametrize(
    ("aggregator", "scores"), [("all", [0.0, 1.0]), ("average", [0.5, 1.0]), (None, [None, None])]
)
def test_a_json_evaluator_of_openevals_is_one_as_it_is(
    monkeypatch: pytest.MonkeyPatch, aggregator: Any, scores: list[float | None], says
) -> None:
    """It refused the input that every other function of the two packages may be given."""
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    from openevals.json import create_async_json_match_evaluator, create_json_match_evaluator

    examples = [{"id": str(n), "input": n, "expected": {"a": 1, "b": 2}} for n in range(2)]
    run = karat.run(lambda input: {"a": input, "b": 2}, examples, store="memory://")
    for create in (create_json_match_evaluator, create_async_json_match_evaluator):
        results = list(karat.evaluate(run, [create(aggregator=aggregator)], new=True).results())
        assert [item.result.score if item.result else None for item in results] == scores
        if aggregator is None:
            [told] = {item.outcome.error.message for item in results}
            says(told)
