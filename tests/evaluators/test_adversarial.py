"""Hostile values: every evaluator scores or rejects them, consistently and with bounded results."""

from __future__ import annotations

import asyncio
import collections
import copy
import dataclasses
import math
from typing import Any

import msgspec
import pydantic
import pytest

from karat.errors import KaratError, NotApplicable
from karat.evaluators import build_evaluator, evaluators
from karat.graph.metrics import unit_metrics
from karat.records import Result
from karat.serialization import encode


@dataclasses.dataclass
class Point:
    text: str = "x"
    n: int = 1


class Model(pydantic.BaseModel):
    text: str = "x"
    n: int = 1


class Struct(msgspec.Struct):
    text: str = "x"
    n: int = 1


class Raises:
    """An object of another package that raises whenever it is looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def nested(depth: int) -> list[Any]:
    out: list[Any] = []
    for _ in range(depth):
        out = [out]
    return out


CYCLE: dict[str, Any] = {}
CYCLE["text"] = CYCLE


def called(name: Any, arguments: Any) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": arguments}
    return [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}]


PLAIN: dict[str, Any] = {
    "none": None,
    "empty": "",
    "true": True,
    "one": 1,
    "huge": "ab " * 10_000,
    "digits": 10**5_000,
    "nan": math.nan,
    "infinity": {"text": math.inf},
    "bytes": b"abc",
    "no utf-8": b"\xff\xfe",
    "half character": "a\ud800b",
    "half character inside": {"text": "\udfff", "\ud800": 1},
    "right to left": "שלום \u202eabc",
    "zero width": "a\u200bb\u200d\ufeff",
    "mixed keys": {1: "a", "1": "b", None: 2, (1, 2): 3},
    "dataclass": Point(),
    "pydantic": Model(),
    "struct": Struct(),
    "named tuple": collections.namedtuple("Pair", "text n")("a", 1),  # type: ignore[call-arg]  # wrong on purpose
    "set": {1, 2},
    "deque": collections.deque([1]),
    "complex": 1j,
    "function": print,
    "foreign": Raises(),
    "foreign inside": {"text": Raises()},
    "cycle": CYCLE,
    "deep": nested(5_000),
    "deep text": "[" * 5_000,
    "nodes": {"steps": [["a", "\ud800"]]},
}
CALLS: dict[str, Any] = {
    "call": called("f", '{"x": 1}'),
    "no name": called(None, "{}"),
    "half name": called("\ud800", "{}"),
    "huge name": called("f" * 100_000, "{}"),
    "half argument": called("f", {"x": "\ud800"}),
    "half argument as text": called("f", '{"x": "\ud800"}'),
    "half argument, escaped": called("f", r'{"x": "\ud800"}'),
    "half key": called("f", {"\ud800": 1}),
    "huge argument": called("f", {"x": "y" * 100_000}),
    "huge text": called("f", '{"x": "' + "y" * 100_000 + '"}'),
    "huge number of keys": called("f", {f"key {at}": at for at in range(1_000)}),
    "long digits": called("f", {"x": 10**5_000}),
    "long digits as text": called("f", f'{{"x": 1{"0" * 5_000}}}'),
    "not a number": called("f", {"x": math.nan}),
    "mixed argument keys": called("f", {1: 2, "1": 3}),
    "argument bytes": called("f", {"x": b"\xff"}),
    "argument set": called("f", {"x": {1, 2}}),
    "argument cycle": called("f", CYCLE),
    "argument deep": called("f", {"x": nested(5_000)}),
    "argument foreign": called("f", {"x": Raises()}),
    "argument dataclass": called("f", Point()),
    "argument pydantic": called("f", Model()),
}
VALUES = {**PLAIN, **CALLS}

OVERRIDES: list[Any] = [
    "ignore",
    "superset",
    ["x", "x.0.y"],
    {"x": "any"},
    {"x": "ignore_case"},
    {"x": {"tolerance": 1}},
    {"x": {"regex": "a+"}, "*": "subset"},
    lambda agent, reference: True,
]
NAMES = [
    *(name for name in evaluators.list() if getattr(evaluators.get(name), "example", None)),
    *(f"unit:{name}" for name in unit_metrics.list()),
]
OWN = [name for name in NAMES if evaluators.get(name).__module__.startswith("karat.")]
CONFIGURATIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, dict(evaluators.get(name).example["params"])) for name in OWN),
    ("exact_match", {"case_sensitive": False, "nfkc": True}),
    ("contains", {}),
    *(
        ("trajectory_match", {"mode": mode, "tool_args_match_mode": arguments})
        for mode in ("strict", "unordered", "subset", "superset", "in_order")
        for arguments in ("exact", "ignore", "subset", "superset")
    ),
    *(
        ("trajectory_match", {"mode": "unordered", "tool_args_match_overrides": {"f": each}, "graded": True})
        for each in OVERRIDES
    ),
    ("trajectory_match", {"mode": "in_order", "optional": ["f"], "max_extra": 0}),
    ("trajectory_match", {"mode": "subset", "allow_repeats": True}),
    ("tool_use", {"expected_tool": "f", "expected_args": {"x": 1}}),
    ("redundant_calls", {"consecutive": True}),
]
SLOW = ("embedding_similarity", "chrf", "bleu", "rouge")
"""Measures whose time is spent in other packages, linearly in the text: they get no huge texts here."""


def outcome(work: Any) -> Any:
    """The result, or the documented refusal in words."""
    try:
        return work()
    except (KaratError, NotApplicable) as error:
        told = f"{type(error).__name__}: {error}"
    assert len(told) < 1_000
    return told


@pytest.mark.parametrize(("name", "params"), CONFIGURATIONS)
def test_hostile_values_are_judged_or_refused(name: str, params: dict[str, Any]) -> None:
    evaluator: Any = build_evaluator(name, params)
    for title, value in VALUES.items():
        if name in SLOW and "huge" in title:
            continue
        for reference in (value, VALUES["call"], VALUES["half character"], VALUES["half name"]):
            item = {"outputs": value, "reference_outputs": reference}
            found = outcome(lambda item=item: evaluator.evaluate(**item))
            if isinstance(found, Result):
                assert found.comment, title
                assert len(found.comment) < 3_000, title
                assert len(encode(found)) < 100_000, title
            [many] = evaluator.evaluate_many([item])
            told = f"{type(many).__name__}: {many}" if isinstance(many, Exception) else many
            assert told == found, title


@pytest.mark.parametrize("name", OWN)
def test_awaited_it_says_the_same(name: str) -> None:
    evaluator: Any = build_evaluator(name, dict(evaluators.get(name).example["params"]))

    async def all_of_them() -> None:
        for title, value in VALUES.items():
            if name in SLOW and "huge" in title:
                continue
            item = {"outputs": value, "reference_outputs": VALUES["call"]}
            found = outcome(lambda item=item: evaluator.evaluate(**item))
            try:
                awaited: Any = await evaluator.evaluate_async(**item)
            except (KaratError, NotApplicable) as error:
                awaited = f"{type(error).__name__}: {error}"
            assert awaited == found, title

    asyncio.run(all_of_them())


@pytest.mark.parametrize("name", OWN)
def test_a_generator_is_judged_or_refused(name: str) -> None:
    evaluator: Any = build_evaluator(name, dict(evaluators.get(name).example["params"]))
    found = outcome(
        lambda: evaluator.evaluate(
            outputs=(each for each in CALLS["call"]), reference_outputs=(each for each in CALLS["call"])
        )
    )
    assert isinstance(found, (Result, str))


@pytest.mark.parametrize("name", OWN)
def test_examples_are_left_as_they_were_and_judged_alike_every_time(name: str) -> None:
    example = dict(evaluators.get(name).example)
    score, params = example.pop("score"), example.pop("params")
    before = copy.deepcopy((example, params))
    evaluator: Any = build_evaluator(name, params)
    first = evaluator.evaluate(**example)
    assert first.score == pytest.approx(score)
    assert first == evaluator.evaluate(**example) == asyncio.run(evaluator.evaluate_async(**example))
    assert evaluator.evaluate_many([example, example]) == [first, first]
    assert (example, params) == before
    assert encode(evaluator.configuration())


class TestHugeTrajectories:
    SIZE = 3_000

    def side(self, prefix: str, values: int = 30) -> list[dict[str, Any]]:
        arguments = {f"{prefix}{key}": "value " * 40 for key in range(values)}
        return [{"name": f"tool_{at % 7}", "arguments": {**arguments, "at": at}} for at in range(self.SIZE)]

    @pytest.mark.parametrize("mode", ["unordered", "in_order"])
    @pytest.mark.parametrize("prefix", ["a", "b"])
    def test_a_trajectory_match_stays_small_and_counts_all(self, mode: str, prefix: str) -> None:
        evaluator = build_evaluator("trajectory_match", {"mode": mode})
        result = evaluator.evaluate(outputs=self.side(prefix), reference_outputs=self.side("a"))
        assert len(encode(result)) < 2_000_000
        kind = "matched" if prefix == "a" else "mismatched"
        assert result.metadata["counts"][kind] == self.SIZE
        assert len(result.metadata[kind]) == 100
        if prefix == "b":
            assert f"and {self.SIZE - 3} more" in result.comment

    def test_missing_extra_and_repeated_calls(self) -> None:
        agent = [{"name": f"x{at}", "arguments": {}} for at in range(self.SIZE)]
        reference = [{"name": f"y{at}", "arguments": {}} for at in range(self.SIZE)]
        for name, params in (
            ("trajectory_match", {"mode": "unordered"}),
            ("tool_call_accuracy", {}),
            ("graph_trajectory_match", {"mode": "unordered"}),
            ("tool_use", {"expected_tool": "x1"}),
            ("redundant_calls", {}),
        ):
            outputs = [*agent, *agent] if name == "redundant_calls" else agent
            given = outputs, reference
            if name == "graph_trajectory_match":
                given = [each["name"] for each in agent], [each["name"] for each in reference]
            result = build_evaluator(name, params).evaluate(outputs=given[0], reference_outputs=given[1])
            assert len(encode(result)) < 50_000, name
            if name in ("trajectory_match", "tool_call_accuracy"):
                assert result.metadata["counts"]["missing"] == self.SIZE
            if name == "redundant_calls":
                assert result.metadata["counts"] == {"calls": 2 * self.SIZE, "redundant": self.SIZE}


def score(name: str, outputs: Any, reference: Any, **params: Any) -> float | None:
    return build_evaluator(name, params).evaluate(outputs=outputs, reference_outputs=reference).score


def test_a_set_is_compared_in_one_order_in_every_process():
    names = [f"name {at}" for at in range(40)]
    assert score("exact_match", set(names), sorted(names)) == 1.0


def test_values_of_numpy_are_the_numbers_and_lists_they_hold():
    numpy = pytest.importorskip("numpy")
    assert score("numeric_match", numpy.float64(3.0), 3) == score("numeric_match", numpy.int64(3), 3) == 1.0
    assert score("exact_match", {"a": numpy.arange(2)}, {"a": [0, 1]}) == 1.0
    assert score("unit:scroll_amount", {"amount": numpy.float32(100)}, {"amount": 100}) == 1.0


def test_bytes_are_text_at_any_depth():
    assert score("exact_match", {"text": b"Paris"}, "Paris") == score("exact_match", [b"a"], ["a"]) == 1.0
    assert score("exact_match", [b"\xff"], ["a"]) == 0.0
    assert score("exact_match", [b"\xff"], [b"\xff"]) == 1.0


def test_mappings_that_are_not_dicts():
    assert score("exact_match", collections.UserDict(a=1), {"a": 1}) == 1.0


def test_a_number_of_thousands_of_digits_is_judged():
    assert score("numeric_match", 10**5_000, 1) == 0.0
    assert score("numeric_match", 10**5_000, "1" + "0" * 5_000) == 1.0


def test_a_version_is_not_read_as_a_fraction():
    assert score("numeric_match", "v1.2.3", 3, extract="last") == 1.0
