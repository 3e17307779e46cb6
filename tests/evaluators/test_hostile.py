"""Every registered evaluator answers, or gives an error, on hostile inputs of 100 kB within a bounded CPU time."""

from __future__ import annotations

import json
import random
import signal
from typing import Any

import pytest

from karat.errors import KaratError, NotApplicable
from karat.evaluators import build_evaluator, evaluators

SIZE = 100_000
CPU_SECONDS = 4.0
"""Twice the two seconds that are promised, so that a slow machine does not fail the test."""

draw = random.Random(1)
WORDS = [f"w{i}" for i in range(4_000)]
LINES = "\n".join(draw.choice(WORDS) for _ in range(SIZE // 5))
OTHER_LINES = "\n".join(draw.choice(WORDS) for _ in range(SIZE // 5))
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
    "accents": ("a" + "\u0301" * (SIZE // 2), "e\u0301" * (SIZE // 3)),
    "many keys": (
        {f"k{i}": i for i in range(SIZE // 12)},
        json.dumps({f"k{i}": i for i in range(SIZE // 12)}),
    ),
    "many items": (ITEMS, ITEMS[::-1]),
    "text and many items": (LINES, ITEMS),
    "JSON text and many items": (json.dumps(INTEGERS), [[i] for i in INTEGERS]),
    "integers": (INTEGERS, INTEGERS[::-1]),
    "deep": (DEEP, DEEP),
    "NaN": ([float("nan")] * (SIZE // 5), [float("nan")] * (SIZE // 5)),
}

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
        {"schema": {"patternProperties": {"^(k+)+$": {}}, "additionalProperties": False}},
    ],
    "rouge": [{"variant": each} for each in ("rouge1", "rouge2", "rougeL", "rougeLsum")] + [{"any_of": True}],
    "bleu": [{}, {"any_of": True}],
    "chrf": [{}, {"any_of": True}],
    "embedding_similarity": [{}, {"any_of": True}],
    "from_output": [{"field": "k1"}],
    "tool_use": [{"expected_tool": "f"}],
}
NAMES = [
    name
    for name in evaluators.list()
    if name not in ("by_metric", "by_function")
    and not evaluators.get(name).__module__.startswith("karat.evaluators.judges")
]
"""Judges ask a model: tests/evaluators/judges sends them hostile text."""


@pytest.fixture
def limited():
    """A limit on CPU time, which does not depend on what else the machine does."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {CPU_SECONDS:g} s of CPU")

    before = signal.signal(signal.SIGPROF, stop)
    yield lambda: signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_or_an_error(name: str, limited: Any) -> None:
    for params in PARAMS.get(name, [{}]):
        evaluator = build_evaluator(name, params)
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
