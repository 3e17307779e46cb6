"""Tool use, tool call accuracy and redundant calls."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.errors import NotApplicable, RequestError
from karat.evaluators import ToolCallAccuracyEvaluator, ToolUseEvaluator, build_evaluator, list_evaluators
from karat.records import FORMAT, Call, Ok, Output
from karat.traces import TraceError


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


TRACE = [call("search", q="x"), call("submit", id=1, note="done"), call("submit", id=2)]


class TestToolUse:
    @pytest.mark.parametrize(
        ("params", "score"),
        [
            ({"expected_tool": "submit"}, 1.0),
            ({"expected_tool": "delete"}, 0.0),
            ({"expected_tool": "submit", "expected_args": {"id": 1}}, 1.0),
            ({"expected_tool": "submit", "expected_args": {"id": 3}}, 0.0),
            ({"expected_tool": "submit", "expected_args": {"id": True}}, 0.0),
            ({"expected_tool": "submit", "expected_args": {"id": 1}, "args_match_mode": "exact"}, 0.0),
            ({"expected_tool": "submit", "expected_args": {"id": 2}, "args_match_mode": "exact"}, 1.0),
            (
                {"expected_tool": "submit", "expected_args": {"id": 2, "x": 1}, "args_match_mode": "subset"},
                1.0,
            ),
            ({"expected_tool": "submit", "expected_args": {"id": 9}, "args_match_mode": "ignore"}, 1.0),
            ({"expected_tool": "submit", "expected_args": {}, "args_match_mode": "exact"}, 0.0),
        ],
    )
    def test_whether_a_tool_was_called(self, params: dict[str, Any], score: float) -> None:
        result = build_evaluator("tool_use", params).evaluate(outputs=TRACE)
        assert result.score == score
        assert result.metadata["called_tools"] == ["search", "submit", "submit"]

    def test_it_says_what_was_called_instead(self, says) -> None:
        says(ToolUseEvaluator(expected_tool="x").evaluate(outputs=TRACE).comment)
        says(ToolUseEvaluator(expected_tool="x").evaluate(outputs=[]).comment)
        near = ToolUseEvaluator(expected_tool="submit", expected_args={"id": 3}).evaluate(outputs=TRACE)
        says(near.comment)

    def test_the_recorded_trace_of_an_answer(self) -> None:
        output = Output(
            format=FORMAT, example="1", outcome=Ok("4"), trace=[Call("tool", "submit", input={"id": 1})]
        )
        assert ToolUseEvaluator(expected_tool="submit").evaluate(outputs="4", output=output).score == 1.0

    def test_mistakes_are_found_when_it_is_built(self, refuses) -> None:
        with refuses(RequestError):
            build_evaluator("tool_use", {})
        with refuses(RequestError):
            build_evaluator("tool_use", {"expected_tool": "x", "args_match_mode": "subst"})
        with refuses(RequestError):
            build_evaluator("tool_use", {"expected_tool": ""})


class TestToolCallAccuracy:
    def test_partial_credit_with_precision_recall_and_f1(self, says) -> None:
        agent = [call("a", x=1), call("b", x=2), call("c")]
        reference = [call("b", x=2), call("a", x=9)]
        result = ToolCallAccuracyEvaluator(args_match_mode="exact").evaluate(
            outputs=agent, reference_outputs=reference
        )
        assert (result.score, result.value) == (0.5, "1/2")
        assert result.metadata["precision"] == pytest.approx(1 / 3)
        assert result.metadata["recall"] == 0.5
        assert result.metadata["f1"] == pytest.approx(0.4)
        says(result.comment)

    def test_each_call_counts_once(self) -> None:
        evaluator = ToolCallAccuracyEvaluator()
        result = evaluator.evaluate(outputs=[call("a")], reference_outputs=[call("a"), call("a")])
        assert result.score == 0.5

    def test_overrides(self) -> None:
        evaluator = build_evaluator(
            "tool_call_accuracy", {"args_match_overrides": {"a": {"x": {"tolerance": 1}}}}
        )
        assert evaluator.evaluate(outputs=[call("a", x=2)], reference_outputs=[call("a", x=1)]).score == 1.0

    def test_nothing_to_reproduce_is_not_applicable(self) -> None:
        with pytest.raises(NotApplicable):
            ToolCallAccuracyEvaluator().evaluate(outputs=[call("a")], reference_outputs=[])

    def test_no_reference_is_an_error(self) -> None:
        with pytest.raises(TraceError):
            ToolCallAccuracyEvaluator().evaluate(outputs=[call("a")])


class TestRedundantCalls:
    def score(self, trace: Any, **params: Any) -> float | None:
        result = build_evaluator("redundant_calls", params).evaluate(outputs=trace)
        assert msgspec.json.encode(result)
        score: float | None = result.score
        return score

    def test_the_share_of_calls_that_repeat_none(self) -> None:
        assert self.score([call("a", x=1), call("a", x=2)]) == 1.0
        assert self.score([call("a", x=1, y=2), call("b"), call("a", y=2, x=1)]) == pytest.approx(2 / 3)
        assert self.score([call("a"), call("a"), call("a"), call("a")]) == 0.25
        assert self.score([]) == 1.0
        assert self.score([call("a", x=True), call("a", x=1)]) == 1.0

    def test_tools_may_be_ignored(self) -> None:
        assert self.score([call("look"), call("look")], ignore_tools=["look"]) == 1.0

    def test_only_repetitions_that_follow_at_once(self) -> None:
        assert self.score([call("a"), call("b"), call("a")], consecutive=True) == 1.0
        assert self.score([call("a"), call("a"), call("b")], consecutive=True) == pytest.approx(2 / 3)

    def test_trying_again_what_failed_is_not_redundant(self) -> None:
        trace = [Call("tool", "a", input={}, error="timeout"), Call("tool", "a", input={}, output=1)]
        assert self.score(trace) == 1.0
        assert self.score(trace, allow_retries=False) == 0.5
        assert self.score([*trace, Call("tool", "a", input={}, output=1)]) == pytest.approx(2 / 3)

    def test_it_names_them(self) -> None:
        result = build_evaluator("redundant_calls").evaluate(outputs=[call("a", x=1), call("a", x=1)])
        assert 'a({"x":1}) repeats call 1' in result.comment
        assert result.metadata["redundant"] == [
            {"name": "a", "agent": 1, "arguments": {"x": 1}, "repeats": 0}
        ]


def test_they_are_registered_with_a_description_and_parameters() -> None:
    known = {each["name"]: each for each in list_evaluators()}
    for name in (
        "trajectory_match",
        "tool_use",
        "tool_call_accuracy",
        "redundant_calls",
        "graph_trajectory_match",
    ):
        assert known[name]["description"]
        assert known[name]["params"]


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "name", "arguments", "tool_calls", "steps", "node"]), inner
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(junk, junk)
def test_anything_is_judged_or_refused(outputs: Any, reference: Any) -> None:
    for name, params in (
        ("tool_use", {"expected_tool": "a", "expected_args": {"x": 1}}),
        ("tool_call_accuracy", {}),
        ("redundant_calls", {}),
        ("graph_trajectory_match", {"mode": "unordered"}),
    ):
        try:
            result = build_evaluator(name, params).evaluate(outputs=outputs, reference_outputs=reference)
        except (TraceError, NotApplicable):
            continue
        assert 0 <= result.score <= 1
        assert msgspec.json.encode(result)
