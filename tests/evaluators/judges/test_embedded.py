"""Every judge with the embedded model, held to the contract by its grammar: the shape and the bookkeeping are right.

What a model of 135 million parameters thinks of an answer is not tested, nor worth much.
"""

from __future__ import annotations

import pytest

from karat.evaluators import PairwiseJudge, build_evaluator

pytest.importorskip("xllamacpp", reason="the extra `local` is optional")

JUDGE = {"model": "local/smollm2-135m", "temperature": 0, "max_tokens": 400}
TRACE = [
    {"role": "assistant", "tool_calls": [{"name": "book", "args": {"to": "Oslo"}}]},
    {"role": "assistant", "content": "Booked."},
]
CASES = {
    "llm_judge": ({"criterion": "The answer names a city."}, {"inputs": "Where?", "outputs": "Paris"}),
    "llm_judge graded": ({"continuous": True}, {"inputs": "Where?", "outputs": "Paris"}),
    "llm_trajectory_judge": ({}, {"inputs": "Book a flight.", "outputs": TRACE}),
    "rubric_dag": ({"preset": "answer_quality"}, {"inputs": "Where?", "outputs": "Paris"}),
    "context_relevance": (
        {},
        {"inputs": {"question": "Where?", "context": ["Paris is a city.", "Cats sleep."]}},
    ),
    "groundedness": (
        {},
        {"inputs": {"question": "Where?", "context": ["Paris."]}, "outputs": "It is in Paris."},
    ),
    "answer_relevance": ({}, {"inputs": "Where?", "outputs": "Paris"}),
    "answer_correctness": ({}, {"inputs": "Where?", "outputs": "Paris", "reference_outputs": "In Paris."}),
    "agent_as_judge": ({"requirements": ["A flight was booked."]}, {"inputs": "Book.", "outputs": TRACE}),
}


@pytest.mark.parametrize(("case", "given"), CASES.items(), ids=CASES)
def test_the_grammar_keeps_the_contract(case, given):
    params, item = given
    evaluator = build_evaluator(case.partition(" ")[0], {**params, "judge": JUDGE})
    result = evaluator.evaluate(**item)
    assert result.score is None or 0.0 <= result.score <= 1.0
    metadata = result.metadata
    assert metadata["model"] == "local/smollm2-135m"
    assert "smollm2" in metadata["served_model"]
    assert metadata["usage"]["calls"] >= 1
    assert metadata["usage"]["output_tokens"] > 0
    assert metadata["requests"] >= 1
    assert isinstance(metadata["reasoning"], str)


def test_pairwise():
    result = PairwiseJudge(judge=JUDGE).compare_values("Where?", "Paris", "A cat")
    assert result.value in ("win", "tie", "loss")
    assert len(result.metadata["orders"]) == 2


def test_samples_differ_by_their_seed_and_are_kept_apart():
    judge = {"model": "local/smollm2-135m", "temperature": 1.0, "samples": 3, "max_tokens": 400}
    result = build_evaluator("llm_judge", {"judge": judge}).evaluate(inputs="Where?", outputs="Paris")
    assert len({vote["reasoning"] for vote in result.metadata["votes"]}) > 1
