"""Calls as evaluators compare them: the fast path for plain messages changes no verdict."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat.evaluators import RedundantCallsEvaluator, TrajectoryMatchEvaluator
from karat.evaluators.trajectory import _calls
from karat.evaluators.trajectory._arguments import MODES, ArgumentMode, Malformed, ModeRule
from karat.evaluators.trajectory._calls import Calls, fast_calls, read_calls, storable
from karat.evaluators.trajectory._equality import canonical, equal
from karat.evaluators.trajectory._pairing import align
from karat.traces import TraceError, normalize
from karat.traces._literals import read_arguments

names = st.sampled_from(["q", "n", "é", ""])
scalars = (
    st.booleans() | st.none() | st.sampled_from([0, 1, 10**20, 0.0, -0.0, 1.0, 0.5, 1e20, "1", "é", "a\nb"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(names, values, max_size=3)
sides = st.lists(st.tuples(st.sampled_from("fg"), objects), max_size=5)


def messages(calls: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": text}}]}
        for name, text in calls
    ]


def respelt(arguments: dict[str, Any]) -> str:
    return json.dumps(dict(reversed(arguments.items())), indent=1, ensure_ascii=False)


@settings(max_examples=200, deadline=None)
@given(st.lists(objects, max_size=5))
def test_keys_from_text_are_those_of_the_values(arguments: list[dict[str, Any]]) -> None:
    texts = [json.dumps(each) for each in arguments] + [respelt(each) for each in arguments]
    calls = read_calls(messages([("f", text) for text in texts]), {})
    assert calls.as_text
    assert list(calls.keys()) == [canonical(each) for each in [*arguments, *arguments]]


@pytest.mark.parametrize(
    "text", ["1],[2", '{"q": 1},{"q": 2}', '{"q": 1}\n{"q": 2}', '{"q": ', '{"q": "\\ud800"}']
)
def test_text_that_is_not_json_has_no_key_and_affects_no_other(text: str) -> None:
    calls = Calls(["f"] * 3, ['{"q": 1}', text, '{"q": 1.0}'], str)
    assert list(calls.keys()) == [b'{"q":1}', None, b'{"q":1}']


@settings(max_examples=300, deadline=None)
@given(sides, sides, st.data())
def test_calls_as_text_are_judged_as_calls_with_values(
    agent: Any, reference: Any, data: st.DataObject
) -> None:
    mode = data.draw(st.sampled_from(["strict", "unordered", "subset", "superset", "in_order"]))
    arguments = data.draw(st.sampled_from(["exact", "ignore", "subset", "superset"]))
    agent = data.draw(st.permutations(agent + reference)) if data.draw(st.booleans()) else agent
    evaluator = TrajectoryMatchEvaluator(mode=mode, tool_args_match_mode=arguments, graded=True)
    quick = evaluator.evaluate(
        outputs=messages([(name, respelt(each)) for name, each in agent]),
        reference_outputs=messages([(name, json.dumps(each)) for name, each in reference]),
    )
    whole = evaluator.evaluate(
        outputs=[{"name": name, "arguments": each} for name, each in agent],
        reference_outputs=[{"name": name, "arguments": each} for name, each in reference],
    )
    assert (quick.score, quick.value) == (whole.score, whole.value)
    assert quick.metadata["counts"] == whole.metadata["counts"]
    assert_pairs_are_pairs(quick.metadata["matched"], agent, reference, arguments)


def assert_pairs_are_pairs(matched: list[Any], agent: Any, reference: Any, arguments: str) -> None:
    """Each call is in one pair at most, with a call of its name and arguments."""
    ours, theirs = [pair["agent"] for pair in matched], [pair["reference"] for pair in matched]
    assert len(set(ours)) == len(set(theirs)) == len(matched)
    for i, j in zip(ours, theirs, strict=True):
        assert agent[i][0] == reference[j][0]
        assert arguments != "exact" or equal(agent[i][1], reference[j][1])


def test_values_that_are_not_json_have_keys() -> None:
    nan = float("nan")
    alike = [({"x": nan}, {"x": float("nan")}), ({"x": [b"a"]}, {"x": (b"a",)}), ({1: 2.0}, {1: 2})]
    for a, b in alike:
        assert canonical(a) == canonical(b) is not None
        assert equal(a, b)
    apart = [
        {"x": nan},
        {"x": None},
        {"x": "nan"},
        {"x": b"a"},
        {"x": "a"},
        {"x": float("inf")},
        {1: True},
        {1: 1},
    ]
    assert len({canonical(each) for each in apart}) == len(apart)
    assert canonical({"x": object()}) is None


def test_repeats_with_nan_are_found() -> None:
    calls = [{"name": "f", "arguments": {"x": float("nan"), "i": n % 1000}} for n in range(2000)]
    assert RedundantCallsEvaluator().evaluate(outputs=calls).score == 0.5


@pytest.mark.parametrize("mode", ["unordered", "in_order", "superset"])
def test_too_many_comparisons_are_an_error(mode: Any) -> None:
    agent = [{"name": "f", "arguments": {"x": n + 0.5}} for n in range(1500)]
    evaluator = TrajectoryMatchEvaluator(
        mode=mode, tool_args_match_overrides={"f": {"x": {"tolerance": 0.1}}}
    )
    with pytest.raises(TraceError):
        evaluator.evaluate(outputs=agent, reference_outputs=agent[::-1])


alike = st.sampled_from([1, True, 1.0, 2, float("nan"), None, (1,), [1], [True], "1", {"n": 1}, {"n": True}])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("fgh"), alike), min_size=7, max_size=24),
    st.randoms(use_true_random=False),
    st.integers(0, 6),
)
def test_values_that_python_or_json_take_for_equal_are_aligned_by_their_equality(
    calls: list[tuple[str, Any]], chance: Random, removed: int
) -> None:
    shuffled = chance.sample(calls, len(calls) - removed)
    agent, reference = [
        Calls([name for name, _ in each], given, False, given)
        for each in (shuffled, calls)
        for given in [[{"x": value} for _, value in each]]
    ]
    pairs, misplaced = align(agent, reference, lambda tool: ModeRule("exact"))
    longest = [[0] * (len(calls) + 1) for _ in range(len(shuffled) + 1)]
    for i, (name, value) in enumerate(shuffled):
        for j, (asked, wanted) in enumerate(calls):
            same = name == asked and equal(value, wanted)
            longest[i + 1][j + 1] = max(longest[i][j] + same, longest[i][j + 1], longest[i + 1][j])
    assert len(pairs) == longest[-1][-1]
    assert list(pairs) == sorted(pairs)
    assert list(pairs.values()) == sorted(set(pairs.values()))
    found = pairs | misplaced
    assert len(found) == len(pairs) + len(misplaced) == len(set(found.values()))
    for i, j in found.items():
        assert shuffled[i][0] == calls[j][0]
        assert equal(shuffled[i][1], calls[j][1])


TEXTS = (
    "",
    "done",
    "Action: rm\nAction Input: {}",
    '[{"type": "tool_use", "id": "a", "name": "rm", "input": {}}]',
    '{"name": "rm", "arguments": {}}',
    '{"name": "rm", "parameters": {}}',
    ' <tool_call>{"name": "rm", "arguments": {}}</tool_call>',
    "[done] {x}",
    "<|python_tag|>rm()",
    None,
)
GIVEN = ("{}", '{"a": 1}', {}, {"a": 1}, None, "", "x", "[1]", 3, [1], {"a": {"name": "rm", "arguments": {}}})
ADDED = (None, "x", {}, [], 1, {"name": "rm", "arguments": {}}, [{"name": "rm", "arguments": {}}])
FIELDS = [
    "id",
    "type",
    "name",
    "input",
    "args",
    "arguments",
    "function",
    "raw",
    "custom",
    "content",
    "tool_use_id",
    "is_error",
    "role",
    "refusal",
    "annotations",
    "tool_call_id",
    "function_call",
    "toolCalls",
    "invalid_tool_calls",
    "recipient",
    "executed_tools",
    "action",
    "status",
    "kind",
]


class Documents:
    """Random messages, blocks, turns and bare calls, with fields added and removed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def changed(self, value: dict[str, Any]) -> dict[str, Any]:
        if self.random.random() < 0.15:
            value[self.random.choice(FIELDS)] = self.random.choice(ADDED)
        if value and self.random.random() < 0.1:
            del value[self.random.choice(list(value))]
        return value

    def name(self) -> Any:
        return self.random.choice(("rm", "ls", "a-b", "é", "", " ", None, 3, *["rm"] * 8))

    def call(self) -> dict[str, Any]:
        name, given = self.name(), self.random.choice(GIVEN)
        forms = (
            {"id": "c", "type": "function", "function": {"name": name, "arguments": given}},
            {"id": "c", "type": "tool_call", "name": name, "args": given},
            {"name": name, "arguments": given},
            {"id": "c", "type": "custom", "custom": {"name": name, "input": given}},
        )
        return self.changed(dict(self.random.choice(forms)))

    def block(self) -> dict[str, Any]:
        forms = (
            {"type": "text", "text": self.random.choice(TEXTS)},
            {"type": "tool_use", "id": "c", "name": self.name(), "input": self.random.choice(GIVEN)},
            {"type": "tool_result", "tool_use_id": "c", "content": self.random.choice(TEXTS)},
            {"type": "web_search_call", "id": "w"},
            {"type": "action", "action": "click"},
        )
        return self.changed(dict(self.random.choice(forms)))

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": self.random.choice(("user", "assistant", "assistant", "tool", "agent"))
        }
        if self.random.random() < 0.7:
            message["content"] = self.random.choice(TEXTS)
        else:
            message["content"] = [self.block() for _ in range(self.random.randrange(4))]
        if self.random.random() < 0.4:
            message["tool_calls"] = [self.call() for _ in range(self.random.randrange(3))]
        if message["role"] == "tool":
            message["tool_call_id"] = "c"
        return self.changed(message)

    def turn(self) -> dict[str, Any]:
        texts = ('rm({"a": 1})', "rm(a=1)", "ls -la", "(action) rm({})", "", None, 'rm({})\nls({"b": 2})')
        speakers = ("Agent (Action)", "User", "Agent", "Environment")
        return self.changed({"speaker": self.random.choice(speakers), "text": self.random.choice(texts)})

    def document(self) -> list[dict[str, Any]]:
        made = self.random.choice((self.message, self.message, self.turn, self.call))
        return [made() for _ in range(self.random.randrange(1, 4))]


def test_the_fast_path_reads_what_normalize_reads() -> None:
    """What the fast path accepts has the calls that `normalize` finds, and none that it refuses."""
    documents, accepted = Documents(7), 0
    for _ in range(8_000):
        document = documents.document()
        found = fast_calls(document)
        if found is None:
            continue
        accepted += 1
        values = (
            (given, None) if isinstance(given, dict) else read_arguments(given) for given in found.given
        )
        fast = [(name, *value) for name, value in zip(found.names, values, strict=True)]
        assert fast == [(call.name, call.arguments, call.raw) for call in normalize(document).calls], document
    assert accepted > 1_000


@pytest.mark.parametrize("content", TEXTS[2:7])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_call_in_the_text_beside_an_empty_list_of_calls_is_not_absent(content: str, blocks: bool) -> None:
    message = {"role": "assistant", "content": [{"type": "text", "text": content}] if blocks else content}
    match = TrajectoryMatchEvaluator(mode="strict")
    for outputs in ([message], [{**message, "tool_calls": []}]):
        try:
            assert match.evaluate(outputs=outputs, reference_outputs=[]).score == 0.0
        except TraceError:
            continue


class Derived(str):
    """A name of a class derived from `str`, as some libraries return it."""


@pytest.mark.parametrize("name", ["f", "a b", "é", "x" * 400, "", " \n", Derived("g"), 5, None, ["f"]])
def test_a_name_is_read_the_second_time_as_the_first(name: Any) -> None:
    _calls._plain_names.clear()
    document = [{"name": "f", "arguments": {}}, {"name": name, "arguments": {}}]
    first, second = fast_calls(document), fast_calls(document)
    assert (first is None) == (second is None) == (not isinstance(name, str) or not name.strip())
    if first is not None and second is not None:
        assert first.labels() == second.labels() == [storable(each) for each in ("f", name)]
    assert {type(each) for each in _calls._plain_names} <= {str}


def test_the_names_that_are_kept_are_bounded() -> None:
    for number in range(2 * _calls.KNOWN):
        fast_calls([{"name": f"tool_{number}", "arguments": {}}])
    assert 0 < len(_calls._plain_names) <= _calls.KNOWN + 1


LEAVES = (None, True, 1, 1.0, 0, "", "1", float("nan"), (1,), [1], [True], (), Derived("1"), Malformed("{"))


def nested(random: Random, depth: int = 0) -> Any:
    """A value of a few kinds, some of which Python takes for equal and karat does not, or the other way round."""
    if depth < 3 and random.random() < 0.6:
        return {random.choice("abc"): nested(random, depth + 1) for _ in range(random.randrange(4))}
    return random.choice(LEAVES)


@pytest.mark.parametrize("mode", MODES)
def test_arguments_match_in_a_mode_exactly_where_they_do_not_differ(mode: ArgumentMode) -> None:
    rule, random, matching = ModeRule(mode), Random(3), 0
    for _ in range(3_000):
        have = nested(random)
        want = {**have, "a": nested(random, 1)} if type(have) is dict else nested(random)
        for pair in ((have, want), (want, have)):
            matches = rule.matches(*pair)
            matching += matches
            assert matches is not bool(rule.differences(*pair)), pair
    assert matching > 100
