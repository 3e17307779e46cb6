"""Trajectories that do not match: what inclusion may skip, tolerances as they are written, one kind of error."""

import datetime
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.evaluators import CannotJudge, SetMatch, TrajectoryMatchEvaluator
from karat.evaluators.trajectory._arguments import Malformed, ModeRule, build_rule
from karat.evaluators.trajectory._pairing import candidates, maximum_matching

plain = st.sampled_from(["a", "b", "1", 1, 1.0, True, False, 0, None, 2.5, float("nan")])
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=4,
)
arguments = st.dictionaries(st.sampled_from("xyz"), values, max_size=3) | values


modes = st.sampled_from(["exact", "ignore", "subset", "superset"])
fields = st.dictionaries(
    st.sampled_from(["x", "y.z", "z"]),
    st.sampled_from(["any", "exact", "ignore_case", {"tolerance": 1}]),
    min_size=1,
)
anything = arguments | st.just(Malformed("{x"))


@given(
    modes.map(ModeRule) | st.builds(build_rule, st.just("f"), fields, modes),
    anything,
    st.lists(anything, max_size=6),
)
def test_nothing_that_matches_is_skipped(rule, given, wanted):
    likely = list(candidates(rule, wanted).for_(given))
    matching = [j for j, each in enumerate(wanted) if rule.matches(given, each)]
    assert [j for j in likely if rule.matches(given, wanted[j])] == matching


class Text(str):
    """A text of another class, which equals a plain one."""


@pytest.mark.parametrize("mode", ["subset", "superset"])
def test_values_of_other_classes_are_compared_and_not_looked_up(mode):
    assert list(candidates(ModeRule(mode), [{"q": Text("x")}]).for_({"q": "x"})) == [0]
    assert list(candidates(ModeRule(mode), [{"q": "x"}]).for_({"q": Text("x")})) == [0]


def test_hundreds_of_calls_of_one_tool_are_not_compared_each_with_each():
    wanted = [{"q": f"text {n}", "limit": 10} for n in range(500)]
    for mode in ("subset", "superset"):
        likely = candidates(ModeRule(mode), wanted)
        assert list(likely.for_({"q": "another", "limit": 10})) == []
        assert list(likely.for_({"q": "text 7", "limit": 10})) == [7]
    likely = candidates(build_rule("f", {"limit": {"tolerance": 1}}, "exact"), wanted)
    assert list(likely.for_({"q": "another", "limit": 10})) == []
    assert list(likely.for_({"q": "text 7", "limit": 11})) == [7]


@pytest.mark.parametrize(
    ("have", "want", "rule", "score"),
    [
        (19.99, 20, {"tolerance": 0.01}, 1.0),
        (1.1, 1, {"tolerance": 0.1}, 1.0),
        (1.11, 1, {"tolerance": 0.1}, 0.0),
        (110, 100, {"relative_tolerance": 0.1}, 1.0),
        (10**400, 10**400 + 1, {"tolerance": 2}, 1.0),
        (float("inf"), 1, {"tolerance": 1}, 0.0),
        (True, 1, {"tolerance": 1}, 0.0),
    ],
)
def test_a_tolerance_is_meant_as_it_is_written(have, want, rule, score):
    evaluator = TrajectoryMatchEvaluator(tool_args_match_overrides={"pay": {"price": rule}})
    call = [{"name": "pay", "arguments": {"price": have}}]
    wanted = [{"name": "pay", "arguments": {"price": want}}]
    assert evaluator.evaluate(outputs=call, reference_outputs=wanted).score == score


def test_an_unreadable_trajectory_cannot_be_judged():
    with pytest.raises(CannotJudge):
        TrajectoryMatchEvaluator().evaluate(outputs=[{"name": "f", "arguments": {}}], reference_outputs=None)


def test_ignored_arguments_match_in_order():
    evaluator = TrajectoryMatchEvaluator(tool_args_match_mode="ignore")
    have, want = [{"name": "f", "arguments": {"x": 1}}], [{"name": "f", "arguments": {"x": 2}}]
    assert evaluator.evaluate(outputs=have, reference_outputs=want).score == 1.0


def test_keys_belong_to_their_calls_in_any_order():
    """With optional calls the required ones of a tool are tried first, among all of its calls."""
    wanted = [{"name": "g", "arguments": json.dumps(each)} for each in ({"x": 1}, {"x": 2}, {"x": 3}, {})]
    calls = [{"role": "assistant", "tool_calls": [{"function": call}]} for call in wanted]
    evaluator = TrajectoryMatchEvaluator("superset", optional=[0])
    agent = [calls[3], {**calls[1], "tool_calls": [{"function": {"name": "g", "arguments": '{"x": 7}'}}]}]
    result = evaluator.evaluate(outputs=agent, reference_outputs=calls)
    assert result.metadata["matched"] == [{"name": "g", "agent": 0, "reference": 3}]


def test_a_comparison_that_forgets_its_verdict_is_an_error_and_no_mismatch(refuses):
    evaluator = TrajectoryMatchEvaluator(tool_args_match_overrides={"f": lambda agent, reference: None})
    call = [{"name": "f", "arguments": {}}]
    with refuses(CannotJudge):
        evaluator.evaluate(outputs=call, reference_outputs=call)


@pytest.mark.parametrize(("have", "want", "rate"), [([], ["f"], 0.0), (["f"], [], 0.0), ([], [], 1.0)])
def test_rates_of_nothing_are_those_of_sets(have, want, rate):
    sides = [[{"name": name, "arguments": {}} for name in names] for names in (have, want)]
    metadata = TrajectoryMatchEvaluator().evaluate(outputs=sides[0], reference_outputs=sides[1]).metadata
    of_sets = SetMatch().evaluate(outputs=have, reference_outputs=want).metadata
    for name in ("precision", "recall", "f1"):
        assert metadata[name] == of_sets[name] == rate


written_values = values.filter(lambda value: "NaN" not in json.dumps(value))
JSON_CALLS = st.lists(
    st.tuples(st.sampled_from("fg"), st.dictionaries(st.sampled_from("xyz"), written_values)), max_size=10
)


def as_text(calls):
    return [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]


def as_objects(calls):
    return [{"name": name, "arguments": arguments} for name, arguments in calls]


@given(
    JSON_CALLS,
    JSON_CALLS,
    st.sampled_from(["strict", "unordered", "subset", "superset", "in_order"]),
    st.randoms(),
)
def test_arguments_as_objects_and_as_text_are_judged_alike(agent, reference, mode, chance):
    """Also where most calls are the same, in another order."""
    for wanted in (reference, chance.sample(agent, len(agent)) + reference[:1]):
        evaluator = TrajectoryMatchEvaluator(mode, graded=True)
        scores = {
            evaluator.evaluate(outputs=mine(agent), reference_outputs=theirs(wanted)).score
            for mine in (as_text, as_objects)
            for theirs in (as_text, as_objects)
        }
        assert len(scores) == 1


@pytest.mark.parametrize(
    ("have", "want"),
    [(True, 1), (b"YQ==", "YQ=="), (datetime.date(2026, 1, 2), "2026-01-02"), ({1: 2}, {"1": 2})],
)
def test_values_that_are_written_alike_and_are_not_the_same_do_not_match(have, want):
    others = [{"name": "f", "arguments": {"n": n}} for n in range(10)]
    evaluator = TrajectoryMatchEvaluator("unordered")
    mine, theirs = ([*others, {"name": "f", "arguments": {"x": value}}] for value in (have, want))
    assert evaluator.evaluate(outputs=mine, reference_outputs=mine).score == 1.0
    assert evaluator.evaluate(outputs=mine, reference_outputs=theirs).score == 0.0
    assert TrajectoryMatchEvaluator().evaluate(outputs=mine, reference_outputs=theirs).score == 0.0


def test_metadata_has_the_names_of_the_seed() -> None:
    agent = [{"name": "search", "arguments": {"q": 1}}, {"name": "book", "arguments": {}}]
    result = TrajectoryMatchEvaluator(mode="superset", tool_args_match_mode="subset").evaluate(
        outputs=agent, reference_outputs=agent[:1]
    )
    told = {
        key: result.metadata[key]
        for key in ("mode", "tool_args_match_mode", "agent_count", "reference_count")
    }
    assert told == {
        "mode": "superset",
        "tool_args_match_mode": "subset",
        "agent_count": 2,
        "reference_count": 1,
    }
    assert result.metadata["agent_tools"] == ["search", "book"]
    assert result.metadata["reference_tools"] == ["search"]


def test_the_first_mismatches_are_explained_and_all_are_listed() -> None:
    agent = [{"name": "f", "arguments": {"x": n}} for n in range(6)]
    reference = [{"name": "f", "arguments": {"x": n + 100}} for n in range(6)]
    mismatched = (
        TrajectoryMatchEvaluator().evaluate(outputs=agent, reference_outputs=reference).metadata["mismatched"]
    )
    assert [(each["agent"], each["reference"]) for each in mismatched] == [(n, n) for n in range(6)]
    assert ["differences" in each for each in mismatched] == [True] * 3 + [False] * 3


LEAVES = [
    "a",
    "b",
    1,
    1.0,
    True,
    0,
    False,
    None,
    2.5,
    float("nan"),
    [1],
    {},
    {"k": 1},
    {"k": True, "m": 2},
    b"a",
]


def drawn_calls(chance, size, shape, leaves):
    """Calls of two tools; `shape` names the arguments that every call has, and some have another or lack one."""
    calls = []
    for _ in range(size):
        given = {name: chance.choice(leaves) for name in shape}
        if chance.random() < 0.3:
            given["more"] = chance.choice(leaves)
        if chance.random() < 0.1:
            given.pop(chance.choice(shape))
        calls.append({"name": chance.choice("fg"), "arguments": given})
    return calls


def longest_in_order(edges, width):
    row = [0] * (width + 1)
    for each in edges:
        above, row = row, [0]
        for j in range(width):
            row.append(max(above[j + 1], row[j], above[j] + 1 if j in each else 0))
    return row[-1]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    modes,
    st.sampled_from(["strict", "unordered"]),
    st.sampled_from([3, 12, 30]),
    st.sampled_from(["x", "xy"]),
    st.lists(st.sampled_from(range(len(LEAVES))), min_size=1, max_size=4),
)
def test_as_many_calls_are_paired_as_comparing_each_with_each_allows(seed, mode, order, most, shape, chosen):
    chance = random.Random(seed)
    leaves = [LEAVES[at] for at in chosen]
    agent = drawn_calls(chance, chance.randint(1, most), shape, leaves)
    reference = drawn_calls(chance, chance.randint(1, most), shape, leaves)
    rule = ModeRule(mode)
    edges = [
        [
            j
            for j, want in enumerate(reference)
            if have["name"] == want["name"] and rule.matches(have["arguments"], want["arguments"])
        ]
        for have in agent
    ]
    if order == "strict":
        largest = longest_in_order(edges, len(reference))
    else:
        largest = sum(j >= 0 for j in maximum_matching(edges, len(reference), [-1] * len(agent)))
    evaluator = TrajectoryMatchEvaluator(mode=order, tool_args_match_mode=mode)
    found = evaluator.evaluate(outputs=agent, reference_outputs=reference)
    assert found.metadata["counts"]["matched"] == largest
    assert all(each["reference"] in edges[each["agent"]] for each in found.metadata["matched"])
    assert found.score == (len(agent) == len(reference) == largest)


class Uncomparable:
    """An object whose comparison raises, as that of an array does."""

    def __eq__(self, other):
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("order", ["strict", "unordered"])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_an_object_that_cannot_be_compared_matches_only_itself(order, size):
    one = Uncomparable()
    agent = [{"name": f"f{at}", "arguments": {"q": Uncomparable()}} for at in range(size)]
    reference = [{"name": f"f{at}", "arguments": {"q": Uncomparable()}} for at in range(size)]
    agent[0]["arguments"]["q"] = reference[0]["arguments"]["q"] = one
    found = TrajectoryMatchEvaluator(mode=order).evaluate(outputs=agent, reference_outputs=reference)
    assert found.metadata["counts"]["matched"] == 1


@pytest.mark.parametrize("mode", ["subset", "superset"])
def test_a_reference_that_is_both_ends_of_a_long_trajectory_is_found(mode):
    calls = [{"name": "f", "arguments": {"q": f"text {at}"}} for at in range(40)]
    longer = [{"name": "f", "arguments": {**call["arguments"], "more": 1}} for call in calls]
    agent, reference = (calls, longer) if mode == "subset" else (longer, calls)
    evaluator = TrajectoryMatchEvaluator(mode="in_order", tool_args_match_mode=mode)
    found = evaluator.evaluate(outputs=agent, reference_outputs=[reference[0], reference[-1]])
    assert (found.score, found.metadata["counts"]["extra"]) == (1.0, 38)
