"""Every registered evaluator answers, or gives an error, on hostile inputs of 100 kB within a bounded CPU time."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from karat import json_schema
from karat.errors import CannotJudge, KaratError, NotApplicable
from karat.evaluators import RunOutput, build_evaluator, evaluators
from karat.evaluators._pairwise import ByFunction, ByMetric
from karat.records import FORMAT, Example, Ok
from karat.testing import FakeProvider

SIZE = 100_000
JUDGE_CPU_SECONDS = 12.0
"""Of a judge with the client and the server of its model, which are in this process: a hundred requests of 100 kB."""

draw = random.Random(1)
WORDS = [f"w{i}" for i in range(4_000)]
LINES = "\n".join(draw.choice(WORDS) for _ in range(SIZE // 5))
OTHER_LINES = "\n".join(draw.choice(WORDS) for _ in range(SIZE // 5))
OTHER_SCRIPTS = "".join(chr(draw.randrange(0x100, 0x2FFF)) for _ in range(SIZE // 3))
ITEMS = [f"item {i}" for i in range(SIZE // 12)]
INTEGERS = list(range(SIZE // 7))
DEEP: Any = 1
for _ in range(300):
    DEEP = [DEEP]

PAIRS: dict[str, tuple[Any, Any]] = {
    "one character": ("a" * SIZE, "b" * SIZE),
    "two words": ("x y\n" * (SIZE // 4), "x z\n" * (SIZE // 4)),
    "lines": (LINES, OTHER_LINES),
    "newlines": ("\n" * SIZE, "\n" * SIZE),
    "fences": ("```\n" * (SIZE // 4), "```json\n" * (SIZE // 8)),
    "digits": ("1" * SIZE, "1," * (SIZE // 2)),
    "brackets": ("[" * SIZE, "[" * (SIZE // 2) + "]" * (SIZE // 2)),
    "statements": ("A or B, the answer is " * (SIZE // 22), "A"),
    "words without spaces": ("text {" * (SIZE // 6), '{"a":' * (SIZE // 5)),
    "actions": ('Action: f\nAction Input: {"a": 1}\n' * (SIZE // 34), "Action: g[1]\n" * (SIZE // 13)),
    "spaces": (" " * SIZE, "\u00a0" * SIZE),
    "calls": (
        [{"name": "f", "arguments": {"a": i, "b": {"c": i}}} for i in range(SIZE // 50)],
        [{"name": "f", "arguments": {"a": -i, "b": {"c": i}}} for i in range(SIZE // 50)],
    ),
    "repeated calls": (
        [{"name": "f", "arguments": {"a": [i % 3]}} for i in range(SIZE // 45)],
        [{"name": "f", "arguments": {"a": [i % 2], "x": 1}} for i in range(SIZE // 45)],
    ),
    "accents": ("a" + "\u0301" * (SIZE // 2), "e\u0301" * (SIZE // 3)),
    "accents out of order": ("a" + "\u0301\u0316" * (SIZE // 4), "a" + "\u0316\u0301" * (SIZE // 4)),
    "accents that decompose": ("a" + "\u0f73" * (SIZE // 3), "a" + "\u0f72\u0f71" * (SIZE // 6)),
    "numbers with one hash": ([i * (2**61 - 1) for i in range(SIZE // 20)], json.dumps([2**61 - 1] * 4_000)),
    "answers in tags": ("<answer>A</answer>" * (SIZE // 18), "\\boxed{" * (SIZE // 7)),
    "permuted words": (" ".join(WORDS * 4), " ".join(WORDS[::-1] * 4)),
    "calls with odd names": (
        [{"name": "f", "arguments": {f"k{i}": 1}} for i in range(SIZE // 45)],
        [{"name": "f", "arguments": {f"k{i}": 1, "z": 2}} for i in range(SIZE // 50)],
    ),
    "text of a call": (
        [{"role": "assistant", "content": "Calling tools:\n" + "[{'id': " * (SIZE // 8)}],
        [{"speaker": "Agent (Action)", "text": "f(" + "a=[" * (SIZE // 3)}],
    ),
    "many keys": (
        {f"k{i}": i for i in range(SIZE // 12)},
        json.dumps({f"k{i}": i for i in range(SIZE // 12)}),
    ),
    "many items": (ITEMS, ITEMS[::-1]),
    "text and many items": (LINES, ITEMS),
    "JSON text and many items": (json.dumps(INTEGERS), [[i] for i in INTEGERS]),
    "integers": (INTEGERS, INTEGERS[::-1]),
    "deep": (DEEP, DEEP),
    "many empty items": ([""] * (SIZE // 3), [[]] * (SIZE // 3)),
    "other scripts": (OTHER_SCRIPTS, OTHER_SCRIPTS[::-1]),
    "NaN": ([float("nan")] * (SIZE // 5), [float("nan")] * (SIZE // 5)),
}

DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"

PARAMS: dict[str, list[dict[str, Any]]] = {
    "exact_match": [{}, {"any_of": True}, {"any_of": True, "case_sensitive": False, "nfkc": True}],
    "contains": [{}, {"substring": ["a" * 1_000, "b"]}],
    "regex_match": [{"pattern": "(a+)+$"}, {"pattern": "(x|x)*y"}],
    "edit_distance": [{}, {"any_of": True}],
    "numeric_match": [{}, {"extract": "last", "any_of": True}, {"units": ["km", "m"], "extract": "first"}],
    "set_match": [{}, {"separator": ","}, {"any_of": True}],
    "token_f1": [{}, {"any_of": True}, {"tokens": "characters"}],
    "json_schema_match": [
        {"schema": {"uniqueItems": True}},
        {"schema": {"items": {"enum": INTEGERS[:200]}}},
        {"schema": {"items": {"oneOf": [{"const": -i} for i in range(1, 300)]}}},
        {"schema": {"patternProperties": {"^(k+)+$": {}}, "additionalProperties": False}},
        {"schema": {"unevaluatedItems": False, "allOf": [{"contains": {"type": "integer"}}]}},
        {"schema": {"unevaluatedItems": False, "items": {"type": "string"}, "$schema": DRAFT_2019}},
        {"schema": {"unevaluatedProperties": False, "patternProperties": {"^(k+)+$": {}}}},
    ],
    "rouge": [{"variant": each} for each in ("rouge1", "rouge2", "rougeL", "rougeLsum")] + [{"any_of": True}],
    "bleu": [{}, {"any_of": True}],
    "chrf": [{}, {"any_of": True}],
    "embedding_similarity": [{}, {"any_of": True}],
    "from_output": [{"field": "k1"}],
    "trajectory_match": [
        {"mode": "strict"},
        {"mode": "unordered", "tool_args_match_mode": "superset", "allow_repeats": True},
        {"mode": "in_order", "tool_args_match_mode": "subset", "optional": ["f"]},
        {"mode": "unordered", "tool_args_match_overrides": {"f": {"a": {"tolerance": 1}}}},
    ],
    "tool_use": [{"expected_tool": "f"}],
}
NAMES = [
    name
    for name in evaluators.list()
    if name not in ("by_metric", "by_function")
    and not evaluators.get(name).__module__.startswith("karat.evaluators.judges")
]
JUDGES = [
    name
    for name in evaluators.list()
    if evaluators.get(name).__module__.startswith("karat.evaluators.judges")
]


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_or_an_error(name: str, limited: Any) -> None:
    for params in PARAMS.get(name, [{}]):
        evaluator = build_evaluator(name, params)
        with contextlib.suppress(KaratError, NotApplicable):  # loads what it needs: packages, the embeddings
            evaluator.evaluate(outputs="a", reference_outputs="a", inputs="q")
        for what, (output, reference) in PAIRS.items():
            limited()
            try:
                result = evaluator.evaluate(outputs=output, reference_outputs=reference, inputs="q")
            except (KaratError, NotApplicable):
                continue
            except TimeoutError as error:
                pytest.fail(f"{name} {params} on {what}: {error}")
            assert result.score is None or 0 <= result.score <= 1, what
            assert len(result.comment) < 2_000


ODD: list[Any] = [math.nan, math.inf, 10**400, Decimal("0.1"), np.float64(0.5), np.int64(3), True, -0.0, 1j]
ODD += [None, "", "1", "1e400", "nan", "a\ud800b", b"\xff", [], {}, [1]]


@pytest.mark.parametrize("name", NAMES)
def test_odd_values_are_judged_or_refused(name: str) -> None:
    for params in PARAMS.get(name, [{}]):
        evaluator = build_evaluator(name, params)
        for output, reference in itertools.product(ODD, repeat=2):
            with contextlib.suppress(KaratError, NotApplicable):
                score = evaluator.evaluate(outputs=output, reference_outputs=reference, inputs="q").score
                assert score is None or 0 <= score <= 1, (output, reference)


@pytest.mark.parametrize("name", ["bleu", "chrf", "rouge", "embedding_similarity", "edit_distance"])
def test_many_long_references_are_bounded_together(name: str, limited: Any) -> None:
    evaluator = build_evaluator(name, {"any_of": True})
    references = [f"{at} {LINES}"[:SIZE] for at in range(30)]
    limited()
    with pytest.raises(CannotJudge):
        evaluator.evaluate(outputs=LINES[:SIZE], reference_outputs=references)
    limited()
    assert evaluator.evaluate(outputs="a b", reference_outputs=["a b", "b c"]).score == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("set_match", {}),
        ("set_match", {"measure": "exact"}),
        ("rouge", {"variant": "rouge1"}),
        ("rouge", {"variant": "rouge2"}),
        ("edit_distance", {}),
        ("chrf", {}),
    ],
    ids=str,
)
def test_many_short_references_cost_their_own_length(name: str, params: Any, limited: Any) -> None:
    """What has to be known of the output is found once, and not for each reference."""
    evaluator = build_evaluator(name, {"any_of": True, **params})
    output, references = OTHER_SCRIPTS * 3, [OTHER_SCRIPTS[at : at + 100] for at in range(0, 33_000, 33)]
    if name == "rouge":
        output, references = "x y " * (SIZE // 4), [f"x y {at}" for at in range(1_000)]
    elif name == "set_match":
        output, references = json.dumps([[at] for at in INTEGERS]), [f"[[{at}]]" for at in range(1_000)]
    limited()
    with contextlib.suppress(CannotJudge):
        assert evaluator.evaluate(outputs=output, reference_outputs=references).score is not None


@pytest.mark.parametrize("measure", ["f1", "precision", "recall", "exact"])
@pytest.mark.parametrize("duplicates", [True, False])
def test_the_best_list_of_several_is_judged_as_if_alone(measure: str, duplicates: bool) -> None:
    source = random.Random(5)
    params = {"measure": measure, "duplicates": duplicates}
    alone, several = (
        build_evaluator("set_match", params),
        build_evaluator("set_match", {**params, "any_of": True}),
    )
    for _ in range(60):
        output, *references = ([source.choice("abcd") for _ in range(source.randrange(5))] for _ in range(4))
        each = [alone.evaluate(outputs=output, reference_outputs=one) for one in references]
        best = several.evaluate(outputs=output, reference_outputs=references)
        at = best.metadata["reference"]
        assert best.score == max(one.score or 0.0 for one in each) == each[at].score
        assert (best.value, best.metadata) == (each[at].value, {**each[at].metadata, "reference": at})


def test_short_references_beside_a_long_output_are_embedded_quickly(limited: Any) -> None:
    """Texts that are embedded in one call are padded to the longest, and the output is written as text once."""
    evaluator = build_evaluator("embedding_similarity", {"any_of": True})
    evaluator.evaluate(outputs="a", reference_outputs=["a"])
    output = [f"item {at}" for at in range(6_000)]
    limited()
    assert evaluator.evaluate(outputs=output, reference_outputs=[f"item {at}" for at in range(900)]).score


def test_a_long_output_without_a_number_is_read_once(limited: Any) -> None:
    output = [{"speaker": "Agent", "text": "f(" + "(" * 90} for _ in range(900)]
    evaluator = build_evaluator("numeric_match", {"extract": "last", "any_of": True})
    limited()
    result = evaluator.evaluate(outputs=output, reference_outputs=[f"b={at}" for at in range(900)])
    assert (result.score, "no number" in result.comment) == (0.0, True)


def _doubling(keyword: str, leaf: Any, depth: int = 40) -> dict[str, Any]:
    """A schema of a few kB that applies its last part two to the power of the depth times."""
    parts = {f"d{at}": {keyword: [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(depth)}
    return {"$defs": {**parts, f"d{depth}": leaf}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    "schema",
    [
        _doubling("allOf", {}),
        _doubling("anyOf", {"type": "null"}),
        _doubling("oneOf", {}),
        {"items": {"not": {"enum": [{"a": at} for at in range(3_000)]}}},
    ],
    ids=["allOf", "anyOf", "oneOf", "enum"],
)
def test_a_schema_that_takes_too_long_is_an_error(
    schema: Any, monkeypatch: Any, limited: Any, refuses
) -> None:
    monkeypatch.setattr(json_schema, "SECONDS", 0.1)
    evaluator = build_evaluator("json_schema_match", {"schema": schema})
    limited()
    with refuses(CannotJudge):
        evaluator.evaluate(outputs=[{"a": -1}] * 3_000)


def test_a_large_value_may_take_longer(monkeypatch: Any, refuses) -> None:
    monkeypatch.setattr(json_schema, "SECONDS", 0.001)
    evaluator = build_evaluator(
        "json_schema_match", {"schema": {"items": {"$ref": "#/$defs/n"}, "$defs": {"n": {}}}}
    )
    value = [1] * 3_000
    with refuses(CannotJudge):
        evaluator.evaluate(outputs=value)
    monkeypatch.setattr(json_schema, "PARTS", 1)
    assert evaluator.evaluate(outputs=value).score == 1.0


@pytest.mark.parametrize("what", PAIRS)
@pytest.mark.parametrize(
    "evaluator",
    [
        ByMetric("edit_distance"),
        ByMetric("rouge"),
        ByFunction(lambda first, second: str(first) > str(second)),
    ],
    ids=["edit_distance", "rouge", "function"],
)
def test_a_comparison_of_two_outputs_is_bounded(evaluator: Any, what: str, limited: Any) -> None:
    output, reference = PAIRS[what]
    example = Example("e", "q", reference)
    first, second = (RunOutput(format=FORMAT, example="e", run=run, outcome=Ok(output)) for run in ("a", "b"))
    limited()
    with contextlib.suppress(KaratError, NotApplicable):
        evaluator.compare(example, first, second)


@pytest.fixture
def server(tmp_path: Any, monkeypatch: Any) -> Iterator[None]:
    """A judge for those whose example names no reply: it answers with a verdict between two outputs."""
    with FakeProvider('{"reasoning": "r", "verdict": "A", "winner": "A"}') as provider:
        if "KARAT_JUDGE_MODEL" not in os.environ:
            monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "replies.db"))
            monkeypatch.setenv("KARAT_JUDGE_MODEL", provider.spec())
        yield


@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_answers_or_gives_an_error(name: str, limited: Any, server: Any) -> None:
    part = evaluators.get(name)
    evaluator = build_evaluator(name, dict(getattr(part, "example", {}).get("params", {})))
    for what in ("one character", "fences", "brackets", "words without spaces", "many keys", "calls"):
        output, reference = PAIRS[what]
        limited(JUDGE_CPU_SECONDS)
        try:
            if hasattr(evaluator, "compare_values"):
                evaluator.compare_values("q", output, reference)
            else:
                evaluator.evaluate(outputs=output, reference_outputs=reference, inputs="q")
        except (KaratError, NotApplicable):
            continue
        except TimeoutError as error:
            pytest.fail(f"{name} on {what}: {error}")
