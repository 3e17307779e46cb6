"""Overrides as YAML and as functions, parameters that are checked, and scores against brute force."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.errors import RequestError
from karat.evaluators import TrajectoryMatchEvaluator, build_evaluator
from karat.evaluators._base import resolve_evaluator
from karat.evaluators.trajectory._arguments import FieldsRule, build_check, without
from karat.evaluators.trajectory._pairing import _pair_out_of_order
from karat.traces import Step, ToolCall, TraceError, register_format, unregister_format


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def message(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}


def verdict(agent: list[Any], reference: list[Any], **params: Any) -> bool:
    result = TrajectoryMatchEvaluator(**params).evaluate(outputs=agent, reference_outputs=reference)
    return bool(result.value)


YAML = """
name: trajectory_match
key: path
params:
  mode: unordered
  tool_args_match_mode: exact
  tool_args_match_overrides:
    look: ignore
    search: [q, filter.city]
    compare: operator.eq
    book:
      price: {tolerance: 0.5}
      guests.0.name: ignore_case
      code: {regex: "[A-Z]{3}"}
      note: any
      "*": superset
  optional: [look]
"""


def test_all_kinds_of_overrides_are_written_in_yaml() -> None:
    name, params, evaluator = resolve_evaluator(yaml.safe_load(YAML))
    assert (name, evaluator.key) == ("trajectory_match", "path")
    reference = [
        call("look", at=1),
        call("search", q="x", filter={"city": "Oslo"}, page=1),
        call("compare", a=1),
        call("book", price=10, guests=[{"name": "Ada", "age": 36}], code="ABC", note="y"),
    ]
    guest = {"name": "ADA", "age": 36}
    agent = [
        call("book", price=10.4, guests=[guest], code="XYZ", extra=1),
        call("compare", a=1),
        call("search", q="x", filter={"city": "Oslo"}),
    ]
    result = evaluator.evaluate(outputs=agent, reference_outputs=reference)
    assert result.score == 1.0, result.comment
    for field, wrong in (
        ("price", 10.6),
        ("code", "xyz"),
        ("guests", [{**guest, "age": 3}]),
        ("guests", [{**guest, "name": "Bob"}]),
        ("guests", [guest, guest]),
    ):
        agent[0] = call("book", **{"price": 10.4, "guests": [guest], "code": "XYZ", "extra": 1, field: wrong})
        assert evaluator.evaluate(outputs=agent, reference_outputs=reference).score == 0.0, field
    assert (
        json.loads(json.dumps(evaluator.params))["tool_args_match_overrides"]
        == (params["tool_args_match_overrides"])
    )


@pytest.mark.parametrize(
    ("value", "path", "left"),
    [
        ({"a": 1, "b": 2}, "a", {"b": 2}),
        ({"a": {"x": 1}}, "a.x", {}),
        ({"a": {}}, "a.x", {"a": {}}),
        ({"a": [{"x": 1, "y": 2}]}, "a.0.x", {"a": [{"y": 2}]}),
        ({"a": [1, 2]}, "a.0", {"a": [None, 2]}),
        ({"a": [1]}, "a.3", {"a": [1]}),
        ({"a.b": 1, "c": 2}, "a.b", {"c": 2}),
        ([{"x": 1}], "0.x", [{}]),
        (3, "a", 3),
    ],
)
def test_the_rest_beside_a_field(value: Any, path: str, left: Any) -> None:
    before = json.dumps(value)
    assert without(value, path) == left
    assert json.dumps(value) == before


def test_a_function_for_a_field_that_raises_is_an_error_and_no_verdict(refuses) -> None:
    override = {"f": {"x": lambda a, b: a["no"]}}
    with refuses(TraceError):
        verdict([call("f", x=1)], [call("f", x=1)], tool_args_match_overrides=override)


@pytest.mark.parametrize(
    "params",
    [
        {"graded": "no"},
        {"mode": "subset", "allow_repeats": 1},
        {"tool_args_match_overrides": ["f"]},
        {"tool_args_match_overrides": {"f": []}},
        {"tool_args_match_overrides": {"f": {"x": {"tolerance": float("nan")}}}},
        {"optional": [True]},
        {"optional": [-1]},
        {"optional": 3},
    ],
)
def test_parameters_are_checked_when_it_is_built(params: dict[str, Any], refuses) -> None:
    with refuses(RequestError):
        TrajectoryMatchEvaluator(**params)
    with refuses(RequestError):
        build_evaluator("trajectory_match", params)


@pytest.mark.parametrize(
    ("name", "params", "problem"),
    [
        ("tool_use", {"expected_tool": "f", "expected_args": [1]}, "expected_args"),
        ("tool_call_accuracy", {"args_match_overrides": "f"}, "args_match_overrides"),
        ("redundant_calls", {"consecutive": "yes"}, "consecutive"),
        ("redundant_calls", {"ignore_tools": 3}, "ignore_tools"),
        ("graph_trajectory_match", {"graded": 1}, "graded"),
        ("graph_trajectory_match", {"compare": []}, "compare"),
    ],
)
def test_parameters_of_other_trajectory_evaluators_are_checked(
    name: str, params: dict[str, Any], problem: str
) -> None:
    with pytest.raises(RequestError, match=problem):
        build_evaluator(name, params)


def test_another_function_is_another_configuration() -> None:
    first, second = (
        lambda a, b: True,
        lambda a, b: False,
    )

    def configured(given: Any) -> Any:
        return TrajectoryMatchEvaluator(tool_args_match_overrides={"f": given}).configuration()

    assert configured(first) == configured(first)
    assert configured({"x": first}) == configured({"x": first})
    assert configured(first)["tool_args_match_overrides"] == configured(second)["tool_args_match_overrides"]
    assert configured(first) != configured(second)
    # What cannot be known, as the source of a builtin, is like nothing else.
    assert configured(max) != configured(max)
    assert configured("operator.eq") != configured("operator.eq")
    assert configured("ignore") == configured("ignore")
    assert json.dumps(configured(first))


def test_evaluators_try_registered_formats_first() -> None:
    class Renaming:
        name = "renaming"

        def detect(self, value: Any) -> bool:
            return isinstance(value, dict) and value.get("role") == "assistant"

        def read(self, value: dict[str, Any]) -> Any:
            yield Step("assistant", tool_calls=[ToolCall(None, "renamed")])

    chat = [message("f", "{}")]
    register_format(Renaming())
    try:
        assert verdict(chat, [call("renamed")])
    finally:
        unregister_format("renaming")
    assert verdict(chat, [call("f")])


SPELLINGS = ["1", "1.0", "1e0", "10e-1", "1.00"]


@pytest.mark.parametrize("mode", ["strict", "unordered", "subset", "superset", "in_order"])
def test_numbers_are_what_they_are_worth_and_true_is_none(mode: str) -> None:
    for one, other in itertools.product(SPELLINGS, SPELLINGS):
        agent, reference = [message("f", f'{{"x": {one}}}')], [message("f", f'{{"x": {other}}}')]
        assert verdict(agent, reference, mode=mode)
        assert verdict(agent, [call("f", x=1.0)], mode=mode)
        assert not verdict(agent, [message("f", '{"x": true}')], mode=mode)
        assert not verdict([call("f", x=True)], reference, mode=mode)
    big = [message("f", '{"x": 100000000000000000000}')]
    assert verdict(big, [message("f", '{"x": 1e20}')], mode=mode)
    assert not verdict(big, [message("f", '{"x": 100000000000000000001}')], mode=mode)


points = st.lists(st.tuples(st.sampled_from("fg"), st.integers(0, 4)), max_size=5)


@settings(max_examples=200, deadline=None)
@given(points, points, st.sampled_from(["unordered", "subset", "superset"]), st.booleans())
def test_the_graded_score_is_that_of_the_largest_pairing(
    agent: Any, reference: Any, mode: str, written: bool
) -> None:
    """With a tolerance, equality is not transitive: a greedy pairing would find too few pairs."""
    largest = 0
    for order in itertools.permutations(range(len(reference)), min(len(agent), len(reference))):
        for chosen in itertools.combinations(range(len(agent)), len(order)):
            pairs = zip(chosen, order, strict=True)
            largest = max(largest, sum(near(agent[i], reference[j]) for i, j in pairs))
    found = graded(agent, reference, mode, written)
    total = len(agent) + len(reference)
    assert found == pytest.approx(2 * largest / total if total else 1.0)


@settings(max_examples=200, deadline=None)
@given(points, points, st.booleans())
def test_the_graded_score_in_order_is_that_of_the_longest_alignment(
    agent: Any, reference: Any, written: bool
) -> None:
    table = [[0] * (len(reference) + 1) for _ in range(len(agent) + 1)]
    for i, have in enumerate(agent):
        for j, want in enumerate(reference):
            table[i + 1][j + 1] = max(table[i][j + 1], table[i + 1][j], table[i][j] + near(have, want))
    total = len(agent) + len(reference)
    expected = 2 * table[-1][-1] / total if total else 1.0
    assert graded(agent, reference, "in_order", written) == pytest.approx(expected)


def near(one: tuple[str, int], other: tuple[str, int]) -> bool:
    return one[0] == other[0] and (abs(one[1] - other[1]) <= 1 if one[0] == "f" else one[1] == other[1])


def graded(agent: Any, reference: Any, mode: str, written: bool) -> float | None:
    rule = {"f": {"x": {"tolerance": 1}}}
    evaluator = build_evaluator(
        "trajectory_match", {"mode": mode, "graded": True, "tool_args_match_overrides": rule}
    )
    sides = [
        [message(name, json.dumps({"x": x})) if written else call(name, x=x) for name, x in side]
        for side in (agent, reference)
    ]
    score: float | None = evaluator.evaluate(outputs=sides[0], reference_outputs=sides[1]).score
    return score


@settings(max_examples=150, deadline=None)
@given(points, points, st.sampled_from(["unordered", "subset", "superset", "in_order"]))
def test_repeats_that_are_forgiven_are_as_if_they_were_not_made(
    agent: Any, reference: Any, mode: str
) -> None:
    """It passes exactly where it would pass for some of the agent's calls, the others repeating the reference."""
    have, want = [call(n, x=x) for n, x in agent], [call(n, x=x) for n, x in reference]
    droppable = [i for i, each in enumerate(agent) if each in reference]
    expected = any(
        verdict([each for i, each in enumerate(have) if i not in dropped], want, mode=mode)
        for size in range(len(droppable) + 1)
        for dropped in itertools.combinations(droppable, size)
    )
    assert verdict(have, want, mode=mode, allow_repeats=True) == expected


def most_pairs(masks: list[int], taken: int = 0) -> int:
    """The size of a maximum matching, by trying everything."""
    if not masks:
        return 0
    first, others = masks[0], masks[1:]
    bits = [1 << j for j in range(first.bit_length()) if first >> j & 1 and not taken >> j & 1]
    return max([most_pairs(others, taken), *(1 + most_pairs(others, taken | bit) for bit in bits)])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 31), max_size=5), st.data())
def test_as_many_calls_as_possible_are_paired_out_of_order(masks: list[int], data: Any) -> None:
    found: dict[int, int] = {}
    for i, mask in enumerate(masks):
        free = [j for j in range(5) if mask >> j & 1 and j not in found.values()]
        if free and data.draw(st.booleans()):
            found[i] = free[0]
    pairs = _pair_out_of_order(masks, found)
    assert all(masks[i] >> j & 1 for i, j in pairs.items())
    assert found.keys().isdisjoint(pairs)
    assert len({*found.values(), *pairs.values()}) == len(found) + len(pairs)
    taken = sum(1 << j for j in found.values())
    assert len(pairs) == most_pairs([mask for i, mask in enumerate(masks) if i not in found], taken)


def test_a_pattern_is_tried_once_for_each_value() -> None:
    def calls(text: str) -> list[dict[str, Any]]:
        return [{"name": "f", "arguments": {"q": text, "n": n}} for n in range(40)]

    rules = {"f": {"q": {"regex": "(?:a|aa)+b"}, "*": "ignore"}}
    evaluator = TrajectoryMatchEvaluator(mode="unordered", tool_args_match_overrides=rules)
    start = time.process_time()
    assert evaluator.evaluate(outputs=calls("a" * 24), reference_outputs=calls("x")).score == 0.0
    assert time.process_time() - start < 2


def test_all_patterns_of_an_evaluation_have_one_limit() -> None:
    calls = [{"name": "f", "arguments": {"q": "a" * (28 + n)}} for n in range(8)]
    rules = {"f": {"q": {"regex": "(?:a|aa)+b"}}}
    start = time.process_time()
    with pytest.raises(TraceError, match="regex"):
        TrajectoryMatchEvaluator(mode="unordered", tool_args_match_overrides=rules).evaluate(
            outputs=calls, reference_outputs=calls
        )
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("mode", "allow_repeats"),
    [("strict", False), ("unordered", False), ("unordered", True), ("in_order", False), ("superset", False)],
)
def test_arguments_with_rules_for_fields_are_taken_apart_once_and_not_for_each_comparison(
    monkeypatch, mode, allow_repeats
):
    count = 80
    taken_apart = []
    split = FieldsRule.split
    monkeypatch.setattr(FieldsRule, "split", lambda self, a: taken_apart.append(1) or split(self, a))

    def calls(shift):
        numbers = [{f"f{k}": 1.0 + i / 1000 + shift for k in range(5)} for i in range(count)]
        return [{"name": "t", "arguments": each} for each in numbers]

    rules = {"t": {f"f{k}": {"relative_tolerance": 0.01} for k in range(5)}}
    evaluator = TrajectoryMatchEvaluator(mode, tool_args_match_overrides=rules, allow_repeats=allow_repeats)
    assert evaluator.evaluate(outputs=calls(0.5), reference_outputs=calls(0.0)).score == 0.0
    assert count <= len(taken_apart) <= 8 * count


@pytest.mark.parametrize(
    ("agent", "reference", "matches"),
    [
        (20, 19.99, True),
        (20, 19.98, False),
        (10**30, 10**30, True),
        (float("inf"), float("inf"), True),
        (float("inf"), 1.0, False),
        (float("nan"), float("nan"), True),
        (True, 1, False),
        ("1", 1, False),
        (None, None, True),
        ([1], (1,), True),
    ],
)
def test_a_tolerance_is_for_finite_numbers_and_everything_else_has_to_be_equal(agent, reference, matches):
    rule = FieldsRule({"x": build_check({"tolerance": 0.01})}, "exact")
    assert rule.matches({"x": agent}, {"x": reference}) is matches


@pytest.mark.parametrize("field", ["ignore_case", {"tolerance": 0.5}, "exact", {"regex": ".*"}])
def test_a_field_with_a_rule_has_to_be_given_where_the_others_are_ignored(field):
    """As with a list of the fields to compare: what is missing on one side is a difference."""
    rules = {"book": {"price": field, "*": "ignore"}}
    evaluator = TrajectoryMatchEvaluator(tool_args_match_overrides=rules)
    given, missing = call("book", price=20, seat="any"), call("book", seat="window")
    assert evaluator.evaluate(outputs=[missing], reference_outputs=[given]).score == 0.0
    if field != {"regex": ".*"}:  # about the agent's value alone
        assert evaluator.evaluate(outputs=[given], reference_outputs=[missing]).score == 0.0
    assert evaluator.evaluate(outputs=[missing], reference_outputs=[missing]).score == float(
        field != {"regex": ".*"}
    )
