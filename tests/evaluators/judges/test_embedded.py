"""Every judge with the embedded model, held to the contract by its grammar: the shape and the bookkeeping are right.

What a model of 135 million parameters thinks of an answer is not tested, nor worth much.
"""

from __future__ import annotations

from typing import Any

import pytest

from karat.evaluators import ItemJudge, PairwiseJudge, build_evaluator
from karat.records import Result

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


class Mentioned(ItemJudge):
    """Labels items by whether the notes mention them."""

    name = "mentioned"
    labels = ("mentioned", "missing")

    async def judge_output(self, output: Any) -> Result:
        verdicts, metadata = await self.label_items(output["items"], {"notes": output["notes"]})
        return Result(
            self.key, value=[(verdict.id, verdict.label) for verdict in verdicts], metadata=metadata
        )


def test_each_item_of_a_list_gets_one_readable_verdict_at_once():
    items = ["a dog", "a cat", "a boat", "a train", "a bicycle", "a kite", "a piano"]
    judge = Mentioned(judge="local/smollm2-135m", prompt="Does a note mention the item?\n")
    result = judge.evaluate(outputs={"items": items, "notes": ["- We saw a dog.", "- The boat was late."]})
    assert [number for number, _ in result.value] == [1, 2, 3, 4, 5, 6, 7]
    assert {label for _, label in result.value} <= set(Mentioned.labels)
    assert result.metadata["requests"] == 1


def test_material_longer_than_the_context_is_judged_in_parts():
    notes = [
        f"- On day {number} we walked along the river and saw nothing new there." for number in range(120)
    ]
    judge = Mentioned(judge="local/smollm2-135m", prompt="Does a note mention the item?\n")
    result = judge.evaluate(outputs={"items": ["a dog"], "notes": notes})
    assert [number for number, _ in result.value] == [1]
    assert result.metadata["requests"] > 1
    assert (
        result.metadata["usage"]["calls"] == result.metadata["requests"]
    )  # no request was refused or repeated
