"""The examples of the description of evaluators as they are written there, with the package of karat."""

from __future__ import annotations

import json

import pytest

from .conftest import material

TRACE = [
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "book", "arguments": '{"price": 380}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "booked, refundable"},
    {"role": "assistant", "content": "Booked. I will email the itinerary."},
]


def by_schema(body):
    """An answer of the form that the request asks for."""
    field = next(
        name for name in body["response_format"]["json_schema"]["schema"]["properties"] if name != "analysis"
    )
    if field == "choice":
        return "Yes."  # a model that does not honour JSON output
    values = {
        "pass": True,
        "score": 4,
        "claims": [{"claim": "a", "supported": True}, {"claim": "b", "supported": "it" in material(body)}],
        "verdicts": [
            {"evidence": "the booking", "id": n, "quote": "booked", "satisfied": n < 3, "steps": [2]}
            for n in (1, 2, 3)
        ],
    }
    return json.dumps({"analysis": "because", field: values[field]})


@pytest.fixture
def config(serve):
    server = serve(by_schema)
    endpoint = {"model": "m", "base_url": server.url, "api_key": "sk-1", "max_tokens": 512}
    support = {"enabled": True, "endpoint_type": "openai", "ai_config": endpoint}
    return {"ai_support": {"enabled": False}, "judge_alignment": {"ai_support": support}}


def test_reference_free_judge(config):
    task_config, agent_trace, task_prompt = config, TRACE, "Book a flight."
    from karat.evaluators import LLMTrajectoryJudge

    judge = LLMTrajectoryJudge(config=task_config, continuous=True)  # 0.0–1.0 score
    result = judge.evaluate(outputs=agent_trace, inputs=task_prompt)
    assert result.score == 0.8
    assert LLMTrajectoryJudge(config=task_config).evaluate(outputs=agent_trace).value == "pass"


def test_rubric_dag(config):
    from karat.evaluators import RUBRIC_PRESETS, make_rubric_dag

    ev = make_rubric_dag(config, preset="answer_quality")
    result = ev.evaluate(inputs="Capital of France?", outputs="Paris [gouvernement.fr].")
    assert result.score == 1.0
    assert [set(step) for step in result.metadata["path"]] == [
        {"node", "question", "choice", "reasoning"}
    ] * 2
    assert result.metadata["leaf"] == {"score": 1.0, "label": "complete"}
    assert len(RUBRIC_PRESETS) >= 5
    assert isinstance(RUBRIC_PRESETS, dict)


def test_rag_triad(config):
    q, retrieved_docs, answer = "Where is it?", ["A passage."], "It is here."
    from karat.evaluators import rag_triad

    triad = rag_triad(config)  # {context_relevance, groundedness, answer_relevance}
    g = triad["groundedness"].evaluate(inputs={"question": q, "context": retrieved_docs}, outputs=answer)
    assert g.score == 1.0
    assert g.metadata["claims"] == [{"claim": "a", "supported": True}, {"claim": "b", "supported": True}]
    assert triad["context_relevance"].evaluate(inputs=q, context=retrieved_docs).score == 0.8
    assert triad["answer_relevance"].evaluate(inputs=q, outputs=answer).score == 0.8


def test_agent_as_a_judge(config):
    task, trajectory = "Book a flight.", TRACE
    from karat.evaluators import AgentAsJudgeEvaluator

    ev = AgentAsJudgeEvaluator(
        config,
        requirements=[
            "The flight is under $400",
            "The flight is refundable",
            "The itinerary was emailed to the user",
        ],
    )
    r = ev.evaluate(inputs={"question": task}, outputs=trajectory)
    assert r.score == pytest.approx(2 / 3)
    assert {"requirement", "satisfied", "evidence"} <= r.metadata["verdicts"][0].keys()
    assert isinstance(r.metadata["verdicts"][0]["evidence"], str)
    assert r.metadata["verdicts"][0]["steps"] == [2]


def test_declarative_configuration():
    from karat.evaluators import agentevals_adapter, build_evaluator, list_evaluators

    names = {each["name"] for each in list_evaluators()}
    assert {
        "llm_judge",
        "llm_trajectory_judge",
        "rubric_dag",
        "context_relevance",
        "groundedness",
        "answer_relevance",
        "agent_as_judge",
        "answer_correctness",
        "pairwise_judge",
    } <= names
    assert all(each["description"] for each in list_evaluators())
    assert build_evaluator("trajectory_match", {"mode": "unordered"})
    if agentevals_adapter.is_available():
        assert agentevals_adapter.graph_trajectory_strict_match()
