"""Python objects to JSON and back: one rule for each type, wherever an object comes in."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import msgspec
import numpy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import karat
from karat.errors import CannotJudge, UnsupportedType
from karat.evaluators import ExactMatch, JSONValid, TokenF1
from karat.records import Failed, Ok, Output
from karat.serialization import (
    DATA_URI,
    MAX_DEPTH,
    canonical,
    converter,
    encode,
    encode_record,
    storable,
    to_json_value,
)


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Answer:
    text: Any


@attrs.define
class Defined:
    text: Any


class Struct(msgspec.Struct, tag="struct", rename="camel", omit_defaults=True):
    the_text: Any
    labels: Any = msgspec.field(default_factory=set)


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    text: str
    when: datetime.date = datetime.date(2024, 2, 29)


class Text(str):
    __slots__ = ()


RULES: list[tuple[Any, Any]] = [
    (Text("a"), "a"),
    (Number.ONE, 1),
    (Colour.RED, "red"),
    (b"Paris", "Paris"),
    (bytearray(b"Paris"), "Paris"),
    (memoryview(b"Paris"), "Paris"),
    (b"\xff", DATA_URI + "/w=="),
    ({3, 1, 2}, [1, 2, 3]),
    (frozenset({"b", "a"}), ["a", "b"]),
    ({1, "a"}, ["a", 1]),
    ((1, (2,)), [1, [2]]),
    (Pair(1, b"x"), [1, "x"]),
    (collections.deque([1]), [1]),
    (collections.UserDict(a=1), {"a": 1}),
    ({1: 2, None: 3, 1.5: 4}, {"1": 2, "null": 3, "1.5": 4}),
    ({Colour.RED: 5, datetime.date(2024, 1, 1): 6}, {"red": 5, "2024-01-01": 6}),
    ({True: 1}, {"true": 1}),
    (datetime.datetime(2024, 1, 2, 3, 4), "2024-01-02T03:04:00"),
    (datetime.date(2024, 1, 2), "2024-01-02"),
    (datetime.time(3, 4), "03:04:00"),
    (datetime.timedelta(days=1), "P1D"),
    (decimal.Decimal("1.50"), "1.50"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Answer(b"x"), {"text": "x"}),
    (Defined({2, 1}), {"text": [1, 2]}),
    (Struct(b"x"), {"type": "struct", "theText": "x"}),
    (Struct("x", {"b", "a"}), {"type": "struct", "theText": "x", "labels": ["a", "b"]}),
    (Model(text="x"), {"text": "x", "when": "2024-02-29"}),
    (numpy.float32(0.5), 0.5),
    (numpy.int64(3), 3),
    (numpy.bool_(True), True),
    (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    ({"a": [Answer(Struct(Model(text="x")))]},
     {"a": [{"text": {"type": "struct", "theText": {"text": "x", "when": "2024-02-29"}}}]}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "json"), RULES, ids=range(len(RULES)))
def test_the_rules(value: Any, json: Any) -> None:
    assert to_json_value(value) == json
    assert msgspec.json.decode(encode(value)) == json
    assert canonical(value) == canonical(json)
    assert (
        msgspec.json.decode(encode(Output(format=1, example="e", outcome=Ok(value))))["outcome"]["value"]
        == json
    )
    assert storable(value) == json
    [example] = karat.Dataset.from_examples([(value, value)])
    assert (example.input, example.expected) == (json, json)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {"a": [1, {"b": object()}]},
        float("nan"),
        [1.5, float("inf")],
        numpy.float64("nan"),
        numpy.array([0.5, numpy.nan]),
        decimal.Decimal("NaN"),
        Answer(float("nan")),
        Struct(float("nan")),
        {(1, 2): 3},
        {1: 2, "1": 3},
        Answer,
        1j,
        iter([1]),
    ],
)
def test_a_value_without_a_json_form_is_refused_with_its_place(value: Any, refuses) -> None:
    with refuses(UnsupportedType):
        to_json_value(value)
    with refuses(UnsupportedType):
        encode(value)
    with pytest.raises(CannotJudge, match="the output"):
        ExactMatch().evaluate(outputs=value, reference_outputs="x")


def test_depth_is_bounded_and_what_is_stored_can_be_read(refuses) -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert msgspec.json.decode(encode(deep)) == deep
    for value in ([deep], Answer([deep])):
        with refuses(UnsupportedType):
            encode(value)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnsupportedType, match="contains itself"):
        to_json_value(endless)


def test_a_lone_surrogate_is_named(refuses) -> None:
    with refuses(UnsupportedType):
        encode({"a": "\ud800"})
    assert storable({"\ud800": ["\ud800"]}) == {"?": ["?"]}


def test_records_hold_what_their_values_become() -> None:
    output = Output(
        format=1,
        example="e",
        outcome=Ok({"labels": {"b", "a"}, "raw": b"x"}),
        metadata={"when": datetime.date(2024, 1, 1)},
    )
    read = msgspec.json.decode(encode(output), type=Output)
    assert read.value == {"labels": ["a", "b"], "raw": "x"}
    assert read.metadata == {"when": "2024-01-01"}


@dataclasses.dataclass
class Picture:
    content: bytes
    others: list[bytes | None]
    named: dict[str, bytes]


class Album(msgspec.Struct, rename="camel"):
    first_picture: Picture
    cover: bytes | None = None


def _nested(depth: int) -> Any:
    value: Any = "leaf"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        "text",
        None,
        {"a": [1, 2.5, {"b": True}]},
        {1: "key"},
        b"\xff",
        {"set": {3, 1, 2}},
        datetime.date(2026, 1, 2),
        (1, 2),
        float("nan"),
        {"deep": [float("inf")]},
        "\ud800",
        10**5000,
        object(),
        *map(_nested, range(MAX_DEPTH - 12, MAX_DEPTH + 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_record_whose_parts_are_named_is_encoded_as_any_other(value: Any) -> None:
    def outcome(encoding: Callable[[], bytes]) -> bytes | str:
        try:
            return encoding()
        except UnsupportedType as error:
            return str(error)

    record = Output(format=2, example="a", outcome=Ok(value))
    assert outcome(lambda: encode_record(record, value)) == outcome(lambda: encode(record))


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_bytes_come_back_as_they_were(one: bytes, two: bytes) -> None:
    for value in (one, DATA_URI.encode() + one):
        kind: Any
        for kind, given_value in (
            (bytes, value),
            (list[bytes], [value, two]),
            (Picture, Picture(value, [two, None], {"x": value})),
            (Album, Album(Picture(two, [], {}), value)),
            (bytes | None, value),
        ):
            convert = converter(kind)
            assert convert is not None
            assert convert(msgspec.json.decode(encode(given_value))) == given_value


LEAVES: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.binary(max_size=8)
    | st.dates()
    | st.decimals(allow_nan=False, allow_infinity=False, places=2)
    | st.sampled_from(
        [Colour.RED, Number.ONE, numpy.float32(0.25), numpy.int64(7), Text("t"), uuid.UUID(int=5)]
    )
    | st.sets(st.integers(0, 50) | st.text(alphabet="abc", max_size=2), max_size=4)
)
OBJECTS: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(alphabet="abtext", max_size=4) | st.integers(0, 9), inner, max_size=3)
        | inner.map(Answer)
        | inner.map(Struct)
        | inner.map(Defined)
        | st.just(Model(text="m"))
    ),
    max_leaves=8,
)


def judged(evaluator: Any, outputs: Any, reference: Any) -> Any:
    try:
        result = evaluator.evaluate(outputs=outputs, reference_outputs=reference)
    except Exception as error:
        return type(error).__name__, str(error)
    return result.score, msgspec.json.encode(result.value), result.comment


def test_direct_and_stored_evaluation_agree() -> None:
    """The same objects give the same result, evaluated directly or returned by a task, stored and then evaluated."""
    pairs: list[tuple[Any, Any]] = []

    @given(OBJECTS, OBJECTS, st.booleans())
    def collect(output: Any, expected: Any, same: bool) -> None:
        pairs.append((output, output if same else expected))

    collect()
    pairs += [(value, json) for value, json in RULES] + [(value, value) for value, _ in RULES]
    pairs = [pair for pair in pairs if _is_stored(*pair)]
    outputs = {f"e{i}": output for i, (output, _) in enumerate(pairs)}
    dataset = karat.Dataset.from_examples(
        [{"id": f"e{i}", "input": i, "expected": expected} for i, (_, expected) in enumerate(pairs)]
    )

    evaluators = [ExactMatch(), ExactMatch(case_sensitive=False), TokenF1(), JSONValid()]
    evaluators[1].key = "folded"
    run = karat.run(lambda input, example: outputs[example.id], dataset, store="memory://")
    evaluation = karat.evaluate(run, evaluators)
    seen = 0
    for item in evaluation.results():
        evaluator = next(each for each in evaluators if each.key == item.key)
        output, expected = pairs[int(item.example[1:])]
        direct = judged(evaluator, output, expected)
        if isinstance(item.outcome, Ok):
            result = item.outcome.value
            assert direct == (result.score, msgspec.json.encode(result.value), result.comment), (
                output,
                expected,
            )
        else:
            assert isinstance(item.outcome, Failed)
            assert direct == (item.outcome.error.type, item.outcome.error.message), (output, expected)
        seen += 1
    assert seen == len(pairs) * len(evaluators)


def _is_stored(*values: Any) -> bool:
    try:
        encode(values)
    except UnsupportedType:
        return False  # two keys of an object that become one
    return True


FIRST_USE = """
import threading, time
import msgspec
from karat.serialization import converter, prepared

def slow():
    looking.set()
    time.sleep(0.3)
    return int

class Inner(msgspec.Struct):
    number: "slow()"

class Outer(msgspec.Struct):
    inner: Inner

def plain():
    return msgspec.json.decode(b'{"inner": {"number": 1}}', type=%s)

def annotated():
    return converter(Outer)({"inner": {"number": 1}})

looking, seen = threading.Event(), []
first = threading.Thread(target=lambda: seen.append(plain()))
first.start()
looking.wait(30)
seen += [plain(), annotated()]
first.join()
assert [each.inner.number for each in seen] == [1, 1, 1]
"""


def test_threads_may_use_a_type_for_the_first_time_at_the_same_moment() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE % "prepared(Outer)"], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
