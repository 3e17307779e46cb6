"""Trajectory match: the tables cell by cell, the laws of matching, and the comment of a failure."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.errors import RequestError
from karat.evaluators import TrajectoryMatchEvaluator, build_evaluator
from karat.evaluators.trajectory._equality import canonical, contains, equal
from karat.evaluators.trajectory._pairing import maximum_matching
from karat.records import FORMAT, Call, Ok, Output
from karat.traces import TraceError

MODES = ["strict", "unordered", "subset", "superset", "in_order"]
MIRROR = {"exact": "exact", "ignore": "ignore", "subset": "superset", "superset": "subset"}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A message with one call, its arguments as JSON text."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }


def passes(agent: Any, reference: Any, mode: str = "strict", **params: Any) -> bool:
    result = TrajectoryMatchEvaluator(mode=mode, **params).evaluate(
        outputs=agent, reference_outputs=reference
    )
    assert result.comment.startswith("passed" if result.value else "failed")
    assert result.error is None
    assert msgspec.json.encode(result)
    return bool(result.value)


def named(names: str) -> list[dict[str, Any]]:
    return [call(name) for name in names]


# Which modes pass for the calls of an agent against those of a reference.
TABLE = [
    ("", "", "strict unordered subset superset in_order"),
    ("a", "", "superset in_order"),
    ("", "a", "subset"),
    ("a", "a", "strict unordered subset superset in_order"),
    ("a", "b", ""),
    ("ab", "ab", "strict unordered subset superset in_order"),
    ("ba", "ab", "unordered subset superset"),
    ("aa", "a", "superset in_order"),
    ("a", "aa", "subset"),
    ("aa", "aa", "strict unordered subset superset in_order"),
    ("aab", "abb", ""),
    ("aba", "aab", "unordered subset superset"),
    ("axb", "ab", "superset in_order"),
    ("bxa", "ab", "superset"),
    ("ab", "abc", "subset"),
    ("ca", "abc", "subset"),
    ("abc", "cb", "superset"),
    ("abcb", "cb", "superset in_order"),
]


@pytest.mark.parametrize(("agent", "reference", "modes"), TABLE)
@pytest.mark.parametrize("mode", MODES)
def test_the_modes(agent: str, reference: str, modes: str, mode: str) -> None:
    assert passes(named(agent), named(reference), mode) == (mode in modes.split())


X, Y = {"x": 1}, {"x": 1, "y": 2}
DEEP, DEEPER = {"f": {"city": "Oslo"}}, {"f": {"city": "Oslo", "days": 3}, "n": 1}
# Which argument modes match for the arguments of an agent against those of a reference.
ARGUMENTS: list[tuple[Any, Any, str]] = [
    ({}, {}, "exact ignore subset superset"),
    (X, X, "exact ignore subset superset"),
    (X, Y, "ignore subset"),
    (Y, X, "ignore superset"),
    ({}, X, "ignore subset"),
    (X, {}, "ignore superset"),
    (X, {"x": 2}, "ignore"),
    (X, {"y": 1}, "ignore"),
    (DEEP, DEEPER, "ignore subset"),
    (DEEPER, DEEP, "ignore superset"),
    ({"f": {"a": 1}}, {"f": {"b": 1}}, "ignore"),
    ({"l": [{"a": 1}]}, {"l": [{"a": 1, "b": 2}]}, "ignore subset"),
    ({"l": [1]}, {"l": [1, 2]}, "ignore"),
    ({"l": [2, 1]}, {"l": [1, 2]}, "ignore"),
    ({"x": True}, {"x": 1}, "ignore"),
    ({"x": 0}, {"x": False}, "ignore"),
    ({"x": None}, {}, "ignore superset"),
    ({"x": None}, {"x": "None"}, "ignore"),
    ({"x": 1}, {"x": 1.0}, "exact ignore subset superset"),
    ({"x": "1"}, {"x": 1}, "ignore"),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "exact ignore subset superset"),
]


@pytest.mark.parametrize(("agent", "reference", "modes"), ARGUMENTS)
@pytest.mark.parametrize("arguments", ["exact", "ignore", "subset", "superset"])
@pytest.mark.parametrize("mode", MODES)
def test_the_argument_modes_mean_the_same_in_every_mode(
    agent: Any, reference: Any, modes: str, arguments: str, mode: str
) -> None:
    expected = arguments in modes.split()
    have, want = [call("f", **agent)], [call("f", **reference)]
    assert passes(have, want, mode, tool_args_match_mode=arguments) == expected
    # Arguments that are dicts already are compared as those that are JSON text.
    bare = [{"name": "f", "arguments": agent}], [{"name": "f", "arguments": reference}]
    assert passes(*bare, mode, tool_args_match_mode=arguments) == expected


def test_the_example_of_the_documentation() -> None:
    evaluator = TrajectoryMatchEvaluator(
        mode="unordered", tool_args_match_mode="subset", tool_args_match_overrides={"search": "ignore"}
    )
    agent = [call("book", id=1), call("search", q="anything")]
    reference = [call("search", q="flights"), call("book", id=1, seat="A")]
    result = evaluator.evaluate(outputs=agent, reference_outputs=reference)
    assert (result.score, result.value, result.key) == (1.0, True, "trajectory_match")


def test_a_maximum_matching_is_found_where_a_greedy_one_fails() -> None:
    agent = [call("f", x=1), call("f", x=1, y=2)]
    reference = [call("f", x=1, y=2, z=3), call("f", x=1)]
    for order in itertools.permutations(agent):
        assert passes(list(order), reference, "unordered", tool_args_match_mode="subset")


def test_malformed_arguments_equal_only_the_same_text(says) -> None:
    def written(text: str) -> list[dict[str, Any]]:
        return [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": text}}]}]

    for arguments in ("exact", "subset", "superset"):
        assert not passes(written('{"x": '), written("{}"), "unordered", tool_args_match_mode=arguments)
        assert not passes(written('{"x": '), [call("f", x=1)], "subset", tool_args_match_mode=arguments)
        assert passes(written('{"x": '), written('{"x": '), tool_args_match_mode=arguments)
    assert passes(written('{"x": '), [call("f", x=1)], tool_args_match_mode="ignore")
    result = TrajectoryMatchEvaluator().evaluate(
        outputs=written('{"x": '), reference_outputs=[call("f", x=1)]
    )
    says(result.comment)


class TestOverrides:
    def match(self, agent: dict[str, Any], reference: dict[str, Any], override: Any, **params: Any) -> bool:
        overrides = {"f": override}
        return passes(
            [call("f", **agent)], [call("f", **reference)], tool_args_match_overrides=overrides, **params
        )

    def test_one_tool_loosely_the_others_strictly(self) -> None:
        overrides = {"f": "ignore"}
        assert passes([call("f", x=1)], [call("f", x=2)], tool_args_match_overrides=overrides)
        assert not passes([call("g", x=1)], [call("g", x=2)], tool_args_match_overrides=overrides)

    def test_a_function(self) -> None:
        same_length = lambda agent, reference: len(agent["q"]) == len(reference["q"])  # noqa: E731 - as users write
        assert self.match({"q": "abc"}, {"q": "xyz"}, same_length)
        assert not self.match({"q": "ab"}, {"q": "xyz"}, same_length)

    def test_a_function_that_raises_is_an_error_and_no_verdict(self, refuses) -> None:
        with refuses(TraceError):
            self.match({}, {}, lambda agent, reference: agent["q"])

    def test_a_function_by_its_path(self) -> None:
        assert self.match({"x": 1}, {"x": 1}, "operator.eq")

    def test_dotted_paths(self) -> None:
        paths = ["filter.city", "items.0"]
        reference = {"filter": {"city": "Oslo"}, "items": [1], "page": 1}
        assert self.match({"filter": {"city": "Oslo", "x": 1}, "items": [1, 2]}, reference, paths)
        assert not self.match({"filter": {"city": "Rome"}, "items": [1]}, reference, paths)
        assert not self.match({"items": [1]}, reference, paths)
        assert self.match({}, {}, paths)

    @pytest.mark.parametrize(
        ("rule", "agent", "reference", "expected"),
        [
            ("any", {"x": 1}, {"x": 2}, True),
            ("any", {}, {"x": 2}, True),
            ("exact", {"x": 1}, {"x": 2}, False),
            ({"tolerance": 0.5}, {"x": 1.4}, {"x": 1}, True),
            ({"tolerance": 0.5}, {"x": 1.6}, {"x": 1}, False),
            ({"tolerance": 2}, {"x": True}, {"x": 1}, False),
            ({"relative_tolerance": 0.1}, {"x": 105}, {"x": 100}, True),
            ("ignore_case", {"x": "OSLO"}, {"x": "oslo"}, True),
            ({"ignore_case": True}, {"x": "STRASSE"}, {"x": "straße"}, True),
            ({"regex": r"\d{4}"}, {"x": "2024"}, {"x": "whatever"}, True),
            ({"regex": r"\d{4}"}, {"x": "20245"}, {"x": "whatever"}, False),
            ({"regex": r"\d{4}"}, {}, {"x": "2024"}, False),
            ({"regex": "oslo", "ignore_case": True}, {"x": "Oslo"}, {}, True),
            ({"tolerance": 1}, {}, {"x": 1}, False),
            (lambda a, b: a > b, {"x": 3}, {"x": 2}, True),
        ],
    )
    def test_rules_for_fields(self, rule: Any, agent: Any, reference: Any, expected: bool) -> None:
        assert self.match({"same": 1, **agent}, {"same": 1, **reference}, {"x": rule}) == expected
        assert not self.match({"same": 1, **agent}, {"same": 2, **reference}, {"x": rule})

    def test_the_other_fields_in_a_mode_of_their_own(self) -> None:
        assert self.match({"x": 1, "more": 1}, {"x": 2}, {"x": "any", "*": "superset"})
        assert not self.match({"x": 1, "more": 1}, {"x": 2}, {"x": "any"})

    def test_nested_fields(self) -> None:
        rule = {"at.lat": {"tolerance": 0.1}}
        assert self.match({"at": {"lat": 1.05, "n": 1}}, {"at": {"lat": 1, "n": 1}}, rule)
        assert not self.match({"at": {"lat": 1.05, "n": 2}}, {"at": {"lat": 1, "n": 1}}, rule)

    def test_a_catastrophic_pattern_is_an_error_not_a_stuck_run(self, refuses) -> None:
        with refuses(TraceError):
            self.match({"x": "a" * 40 + "b"}, {"x": ""}, {"x": {"regex": "(a|a|aa)+$"}})

    def test_tolerances_match_in_any_order(self) -> None:
        rule = {"f": {"x": {"tolerance": 1}}}
        agent = [call("f", x=x) for x in (2, 3, 1)]
        for order in itertools.permutations([call("f", x=x) for x in (0, 2, 4)]):
            assert passes(agent, list(order), "unordered", tool_args_match_overrides=rule)


class TestOptions:
    def test_repeats_may_be_forgiven(self) -> None:
        assert passes(named("aab"), named("ab"), "subset", allow_repeats=True)
        assert passes(named("aab"), named("ab"), "unordered", allow_repeats=True)
        assert not passes(named("aac"), named("ab"), "subset", allow_repeats=True)
        assert not passes(named("a"), named("aa"), "unordered", allow_repeats=True)

    @pytest.mark.parametrize("mode", ["strict", "unordered", "superset", "in_order"])
    def test_optional_calls_may_be_missing(self, mode: str) -> None:
        assert passes(named("ac"), named("abc"), mode, optional=["b"])
        assert passes(named("abc"), named("abc"), mode, optional=["b"])
        assert passes(named("ac"), named("abc"), mode, optional=[1])
        assert not passes(named("ab"), named("abc"), mode, optional=["b"])

    @pytest.mark.parametrize("mode", ["strict", "in_order", "unordered"])
    def test_a_mismatch_beside_optional_calls_is_not_out_of_order(self, mode: str) -> None:
        agent = [call("a"), call("a", x=1), call("b", x=1)]
        reference = [call("a"), call("a", x=1), call("b", x=2)]
        evaluator = TrajectoryMatchEvaluator(mode=mode, optional=["a"])
        counts = evaluator.evaluate(outputs=agent, reference_outputs=reference).metadata["counts"]
        assert (counts["mismatched"], counts["misplaced"]) == (1, 0)

    @pytest.mark.parametrize("mode", ["strict", "in_order", "unordered", "superset"])
    def test_as_many_optional_calls_as_are_missing_excuse_no_required_one(self, mode: str) -> None:
        reference = [call("a"), call("b"), call("c")]
        evaluator = TrajectoryMatchEvaluator(mode=mode, optional=[0, 1])
        result = evaluator.evaluate(outputs=[call("b")], reference_outputs=reference)
        assert result.value is False
        assert result.metadata["optional_missing"] == [0]

    def test_a_required_call_is_matched_before_an_optional_one(self) -> None:
        reference = [call("f", x=1, y=1), call("f", x=1)]
        for mode in ("unordered", "superset", "in_order", "strict"):
            for optional in ([0], [1]):
                assert passes(
                    [call("f", x=1)], reference, mode, tool_args_match_mode="subset", optional=optional
                )

    def test_extras_may_be_bounded(self) -> None:
        for mode in ("superset", "in_order"):
            assert passes(named("axb"), named("ab"), mode, max_extra=1)
            assert not passes(named("axyb"), named("ab"), mode, max_extra=1)

    def test_graded_gives_f1_and_the_verdict_as_value(self) -> None:
        evaluator = TrajectoryMatchEvaluator(mode="unordered", graded=True)
        result = evaluator.evaluate(outputs=named("abx"), reference_outputs=named("abc"))
        assert result.score == pytest.approx(2 / 3)
        assert result.value is False
        assert evaluator.evaluate(outputs=[], reference_outputs=[]).score == 1.0

    @pytest.mark.parametrize(
        "params",
        [
            {"mode": "unorderd"},
            {"tool_args_match_mode": "exakt"},
            {"tool_args_match_overrides": {"f": "ignor"}},
            {"tool_args_match_overrides": {"f": {"x": {"tolerence": 1}}}},
            {"tool_args_match_overrides": {"f": {"x": {"regex": "("}}}},
            {"tool_args_match_overrides": {"f": 3}},
            {"mode": "strict", "allow_repeats": True},
            {"mode": "unordered", "max_extra": 1},
            {"mode": "superset", "max_extra": -1},
            {"optional": "search"},
            {"tool_arg_match_mode": "exact"},
        ],
    )
    def test_mistakes_are_found_when_it_is_built(self, params: dict[str, Any], refuses) -> None:
        with refuses(RequestError):
            build_evaluator("trajectory_match", params)

    def test_params_are_json(self) -> None:
        evaluator = TrajectoryMatchEvaluator(tool_args_match_overrides={"f": equal, "g": {"x": contains}})
        assert "_equality.equal" in msgspec.json.encode(evaluator.configuration()).decode()


class TestWhatIsSaid:
    def test_metadata_lists_every_call_once(self, says) -> None:
        agent = [call("a", x=1), call("b", city="Rome", n=1), call("d")]
        reference = [call("a", x=1), call("b", city="Oslo"), call("c", y=2)]
        result = TrajectoryMatchEvaluator(mode="unordered").evaluate(
            outputs=agent, reference_outputs=reference
        )
        assert result.metadata["matched"] == [{"name": "a", "agent": 0, "reference": 0}]
        assert result.metadata["missing"] == [{"name": "c", "reference": 2, "arguments": {"y": 2}}]
        assert result.metadata["extra"] == [{"name": "d", "agent": 2, "arguments": {}}]
        (mismatch,) = result.metadata["mismatched"]
        assert mismatch["differences"] == [
            {"path": "city", "agent": "Rome", "reference": "Oslo"},
            {"path": "n", "agent": 1},
        ]
        says(result.comment)

    def test_another_order_is_called_that(self, says) -> None:
        result = TrajectoryMatchEvaluator().evaluate(outputs=named("ba"), reference_outputs=named("ab"))
        says(result.comment)
        assert result.metadata["missing"] == result.metadata["extra"] == []

    def test_equal_calls_in_another_order_match(self, says) -> None:
        agent, reference = [call("f", x=1), call("f", x=2)], [call("f", x=2), call("f", x=1)]
        result = TrajectoryMatchEvaluator().evaluate(outputs=agent, reference_outputs=reference)
        assert result.metadata["mismatched"] == []
        says(result.comment)

    def test_long_arguments_are_shortened(self) -> None:
        agent, reference = [call("f", x="a" * 10_000)], [call("f", x="b" * 10_000)]
        result = TrajectoryMatchEvaluator().evaluate(outputs=agent, reference_outputs=reference)
        assert len(result.comment) < 1_000
        assert len(msgspec.json.encode(result.metadata)) < 2_000

    def test_unused_parts_are_mentioned(self, says) -> None:
        result = TrajectoryMatchEvaluator().evaluate(outputs=[call("a"), 42], reference_outputs=named("a"))
        says(result.comment)
        assert result.metadata["unused"][0]["where"] == "[1]"


class TestWhereTheCallsComeFrom:
    output = Output(
        format=FORMAT, example="1", outcome=Ok("4"), trace=[Call("tool", "a", input={"x": 1}, output=2)]
    )

    @pytest.mark.parametrize(
        "answer", ["The answer is 4.", {"answer": 4}, 4, None, [], ["Paris"], {"name": "Oslo"}]
    )
    def test_the_trace_where_the_output_is_an_answer(self, answer: Any) -> None:
        result = TrajectoryMatchEvaluator().evaluate(
            outputs=answer, reference_outputs=[call("a", x=1)], output=self.output
        )
        assert result.score == 1.0

    def test_the_output_where_it_is_a_trajectory(self) -> None:
        result = TrajectoryMatchEvaluator().evaluate(
            outputs=named("b"), reference_outputs=named("b"), output=self.output
        )
        assert result.score == 1.0

    @pytest.mark.parametrize("answer", ["The answer is 4.", {"answer": 4}, None])
    def test_an_answer_without_a_trace_is_an_error_and_no_zero(self, answer: Any) -> None:
        with pytest.raises(TraceError):
            TrajectoryMatchEvaluator().evaluate(outputs=answer, reference_outputs=named("a"))

    @pytest.mark.parametrize("reference", [None, "do it", {"expected": 1}])
    def test_no_reference_is_an_error(self, reference: Any) -> None:
        with pytest.raises(TraceError):
            TrajectoryMatchEvaluator().evaluate(outputs=named("a"), reference_outputs=reference)


numbers = st.integers(0, 2) | st.booleans() | st.sampled_from([0.0, 1.0, 0.5])
nested = st.dictionaries(
    st.sampled_from("xyz"), numbers | st.dictionaries(st.sampled_from("uv"), numbers, max_size=2)
)
calls = st.lists(st.tuples(st.sampled_from("ab"), nested), max_size=5)
argument_modes = st.sampled_from(sorted(MIRROR))


def written(pairs: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [call(name, **arguments) for name, arguments in pairs]


def other_key_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: other_key_order(part) for key, part in reversed(value.items())}
    return value


@settings(max_examples=150, deadline=None)
@given(calls, calls, argument_modes, st.sampled_from(["unordered", "subset", "superset"]), st.randoms())
def test_the_order_of_calls_does_not_matter(
    agent: Any, reference: Any, arguments: str, mode: str, chance: Any
) -> None:
    verdict = passes(written(agent), written(reference), mode, tool_args_match_mode=arguments)
    chance.shuffle(agent)
    chance.shuffle(reference)
    assert passes(written(agent), written(reference), mode, tool_args_match_mode=arguments) == verdict


@settings(max_examples=150, deadline=None)
@given(calls, calls, argument_modes, st.sampled_from(MODES))
def test_the_order_of_keys_does_not_matter(agent: Any, reference: Any, arguments: str, mode: str) -> None:
    verdict = passes(written(agent), written(reference), mode, tool_args_match_mode=arguments)
    turned = [(name, other_key_order(given)) for name, given in agent]
    assert passes(written(turned), written(reference), mode, tool_args_match_mode=arguments) == verdict
    bare = [{"name": name, "arguments": given} for name, given in turned]
    assert passes(bare, written(reference), mode, tool_args_match_mode=arguments) == verdict


@settings(max_examples=200, deadline=None)
@given(calls, calls, argument_modes)
def test_subset_is_superset_seen_from_the_other_side(agent: Any, reference: Any, arguments: str) -> None:
    a, b = written(agent), written(reference)
    one = passes(a, b, "subset", tool_args_match_mode=arguments)
    assert one == passes(b, a, "superset", tool_args_match_mode=MIRROR[arguments])


@settings(max_examples=200, deadline=None)
@given(calls, calls, argument_modes)
def test_the_verdict_is_that_of_trying_every_pairing(agent: Any, reference: Any, arguments: str) -> None:
    def match(i: int, j: int) -> bool:
        (name, have), (other, want) = agent[i], reference[j]
        checks = {
            "exact": lambda: equal(have, want),
            "ignore": lambda: True,
            "subset": lambda: contains(want, have),
            "superset": lambda: contains(have, want),
        }
        return name == other and checks[arguments]()

    small, large = (agent, reference) if len(agent) <= len(reference) else (reference, agent)
    turned = small is not agent
    every = any(
        all(match(j, i) if turned else match(i, j) for i, j in enumerate(order))
        for order in itertools.permutations(range(len(large)), len(small))
    )
    expected = {
        "subset": every and len(agent) <= len(reference),
        "superset": every and len(agent) >= len(reference),
        "unordered": every and len(agent) == len(reference),
        "strict": len(agent) == len(reference) and all(match(i, i) for i in range(len(agent))),
        "in_order": any(
            all(match(i, j) for j, i in enumerate(chosen))
            for chosen in itertools.combinations(range(len(agent)), len(reference))
        ),
    }
    for mode, verdict in expected.items():
        assert passes(written(agent), written(reference), mode, tool_args_match_mode=arguments) == verdict


@settings(max_examples=100, deadline=None)
@given(
    calls,
    calls,
    argument_modes,
    st.sampled_from(["strict", "unordered", "in_order"]),
    st.sets(st.integers(0, 4)),
)
def test_optional_calls_are_as_if_some_were_not_there(
    agent: Any, reference: Any, arguments: str, mode: str, optional: set[int]
) -> None:
    droppable = [j for j in sorted(optional) if j < len(reference)]
    subsets = itertools.chain.from_iterable(
        itertools.combinations(droppable, size) for size in range(len(droppable) + 1)
    )
    expected = any(
        passes(
            written(agent),
            written([each for j, each in enumerate(reference) if j not in dropped]),
            mode,
            tool_args_match_mode=arguments,
        )
        for dropped in subsets
    )
    have = passes(
        written(agent), written(reference), mode, tool_args_match_mode=arguments, optional=sorted(optional)
    )
    assert have == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sets(st.integers(0, 5)), max_size=6))
def test_no_larger_matching_exists(edges: list[set[int]]) -> None:
    def largest(i: int, used: frozenset[int]) -> int:
        if i == len(edges):
            return 0
        return max(largest(i + 1, used), *(1 + largest(i + 1, used | {j}) for j in edges[i] - used), 0)

    found = maximum_matching([sorted(row) for row in edges], 6, [-1] * len(edges))
    partners = [j for j in found if j >= 0]
    assert len(partners) == len(set(partners)) == largest(0, frozenset())
    assert all(j in edges[i] for i, j in enumerate(found) if j >= 0)


@settings(max_examples=200, deadline=None)
@given(nested, nested)
def test_keys_are_equal_exactly_where_arguments_are(a: Any, b: Any) -> None:
    assert (canonical(a) == canonical(b)) == equal(a, b)


def test_long_augmenting_paths_do_not_recurse() -> None:
    size = 5_000
    edges = [[i, i + 1] for i in range(size)]
    # Every left node starts with the wrong partner; the last one frees all of them along one path.
    found = maximum_matching([*edges, [0]], size + 1, [*range(size), -1])
    assert found == [*range(1, size + 1), 0]


def test_nothing_given_is_changed() -> None:
    agent, reference = written([("a", {"x": {"u": 1}})]), written([("a", {"x": {"u": 2}})])
    overrides: dict[str, Any] = {"a": {"x.u": {"tolerance": 2}}}
    before = copy.deepcopy((agent, reference, overrides))
    assert passes(agent, reference, tool_args_match_overrides=overrides)
    assert (agent, reference, overrides) == before


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "tool_calls", "function", "name", "arguments", "text", "speaker", "type"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)
texts = st.text(alphabet='{}[]":,x1.e-null \\u', max_size=12)


@settings(max_examples=400, deadline=None)
@given(junk, junk, st.sampled_from(MODES), argument_modes)
def test_anything_is_judged_or_refused(outputs: Any, reference: Any, mode: str, arguments: str) -> None:
    evaluator = TrajectoryMatchEvaluator(mode=mode, tool_args_match_mode=arguments)
    try:
        result = evaluator.evaluate(outputs=outputs, reference_outputs=reference)
    except TraceError:
        return
    assert result.score in (0.0, 1.0)
    assert msgspec.json.encode(result)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(texts | junk, max_size=3),
    st.lists(texts | junk, max_size=3),
    st.sampled_from(MODES),
    argument_modes,
)
def test_any_arguments_are_compared(have: list[Any], want: list[Any], mode: str, arguments: str) -> None:
    def messages(given: list[Any]) -> list[dict[str, Any]]:
        return [
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": each}}]}
            for each in given
        ]

    evaluator = TrajectoryMatchEvaluator(mode=mode, tool_args_match_mode=arguments)
    result = evaluator.evaluate(outputs=messages(have), reference_outputs=messages(want))
    assert msgspec.json.encode(result)
    assert evaluator.evaluate(outputs=messages(have), reference_outputs=messages(copy.deepcopy(have))).value


@pytest.mark.parametrize("value", [type("Text", (str,), {})("x"), type("Number", (int,), {})(3), True])
def test_values_of_derived_types_are_reported_as_plain_ones(value: Any) -> None:
    agent, reference = ([{"name": "f", "arguments": {"n": each}}] for each in (value, None))
    result = TrajectoryMatchEvaluator().evaluate(outputs=agent, reference_outputs=reference)
    assert msgspec.json.encode(result)
    (difference,) = result.metadata["mismatched"][0]["differences"]
    assert difference == {"path": "n", "agent": value, "reference": None}
    assert type(difference["agent"]) in (str, int, bool)
