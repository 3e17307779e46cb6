"""The judges: rubric, RAG triad, answer correctness, agent as judge, pairwise."""

from __future__ import annotations

import copy
import json

import pytest
import yaml

import karat
from karat.errors import CannotJudge, ConfigError, RequestError
from karat.evaluators import (
    RUBRIC_PRESETS,
    AgentAsJudgeEvaluator,
    LLMTrajectoryJudge,
    PairwiseJudge,
    build_evaluator,
    evaluators,
    make_rubric_dag,
    rag_triad,
)
from karat.evaluators.judges import AnswerCorrectnessEvaluator, JudgeFailure, RubricDagEvaluator

from .conftest import instructions, material

SEED = """
evaluators:
  - name: rubric_dag
    params:
      dag:
        key: answer_quality
        root: answers
        nodes:
          answers:
            question: "Does the response directly answer the question?"
            choices: [yes, partially, no]
            branches:
              yes: grounded                          # -> next node
              partially: {score: 0.5, label: partial}# -> leaf
              no: {score: 0.0, label: no answer}
          grounded:
            question: "Is the answer well-supported (no fabricated claims)?"
            choices: [yes, no]
            branches:
              yes: {score: 1.0, label: complete}
              no:  {score: 0.7, label: unsourced}
"""


def choose(value):
    return {"analysis": f"I choose {value}.", "choice": value}


# ---------------------------------------------------------------- rubric


def test_the_seeds_rubric_as_yaml_loads_it(serve):
    [spec] = yaml.safe_load(SEED)["evaluators"]
    assert spec["params"]["dag"]["nodes"]["grounded"]["choices"] == [
        True,
        False,
    ]  # what YAML 1.1 makes of yes and no
    server = serve(lambda body: choose("yes" if "directly answer" in instructions(body) else "no"))
    spec["params"]["judge"] = server.spec()
    evaluator = build_evaluator(spec["name"], spec["params"])
    result = evaluator.evaluate(inputs="Capital of France?", outputs="Paris [gouvernement.fr].")
    assert (result.key, result.score, result.value) == ("answer_quality", 0.7, "unsourced")
    assert result.metadata["path"] == [
        {
            "node": "answers",
            "question": "Does the response directly answer the question?",
            "choice": "yes",
            "reasoning": "I choose yes.",
        },
        {
            "node": "grounded",
            "question": "Is the answer well-supported (no fabricated claims)?",
            "choice": "no",
            "reasoning": "I choose no.",
        },
    ]
    assert result.metadata["leaf"] == {"score": 0.7, "label": "unsourced"}


def test_the_seeds_python(serve):
    config = {"judge": {"model": serve([choose("yes")]).spec()}}
    result = make_rubric_dag(config, preset="answer_quality").evaluate(
        inputs="Capital of France?", outputs="Paris [gouvernement.fr]."
    )
    assert result.score == 1.0


def test_models_that_do_not_write_json_are_understood(serve):
    result = make_rubric_dag(
        dag=RUBRIC_PRESETS["answer_quality"], judge=serve(["Yes.", "No"]).spec()
    ).evaluate(outputs="x")
    assert result.score == 0.7


def test_presets_are_valid_and_can_be_extended(serve, monkeypatch, refuses):
    assert len(RUBRIC_PRESETS) >= 5
    for name in RUBRIC_PRESETS:
        assert RubricDagEvaluator(preset=name, judge="openai/x").key == name
    own = {
        "key": "mine",
        "root": "a",
        "nodes": {"a": {"question": "?", "choices": [1, 2], "branches": {1: {"score": 1}, 2: {"score": 0}}}},
    }
    monkeypatch.setitem(RUBRIC_PRESETS, "mine", own)
    assert (
        make_rubric_dag(preset="mine", judge=serve([choose("2")]).spec()).evaluate(outputs="x").score == 0.0
    )
    with refuses(RequestError):
        make_rubric_dag(preset="answer_qualty", judge="openai/x")


def broken(change):
    dag = copy.deepcopy(yaml.safe_load(SEED)["evaluators"][0]["params"]["dag"])
    change(dag, dag["nodes"])
    return dag


BROKEN = {
    "no root": lambda dag, nodes: dag.pop("root"),
    "a mistyped root": lambda dag, nodes: dag.update(root="answer"),
    "a dangling branch": lambda dag, nodes: nodes["answers"]["branches"].update({True: "grounds"}),
    "a cycle": lambda dag, nodes: nodes["grounded"]["branches"].update({True: "answers"}),
    "a node that leads to itself": lambda dag, nodes: nodes["grounded"]["branches"].update(
        {True: "grounded"}
    ),
    "an unreachable node": lambda dag, nodes: nodes.update(extra=nodes["grounded"]),
    "a choice without a branch": lambda dag, nodes: nodes["grounded"]["choices"].append("maybe"),
    "a branch without a choice": lambda dag, nodes: nodes["grounded"]["branches"].update(maybe={"score": 1}),
    "a score above 1": lambda dag, nodes: nodes["grounded"]["branches"].update({True: {"score": 1.5}}),
    "a score that is NaN": lambda dag, nodes: nodes["grounded"]["branches"].update(
        {True: {"score": float("nan")}}
    ),
    "a score that is true": lambda dag, nodes: nodes["grounded"]["branches"].update({True: {"score": True}}),
    "no score": lambda dag, nodes: nodes["grounded"]["branches"].update({True: {"label": "x"}}),
    "no question": lambda dag, nodes: nodes["grounded"].pop("question"),
    "one choice": lambda dag, nodes: nodes["grounded"].update(choices=["yes"]),
    "a choice twice": lambda dag, nodes: nodes["grounded"].update(choices=[True, "yes", False]),
    "no nodes": lambda dag, nodes: dag.update(nodes={}),
    "a node that is text": lambda dag, nodes: nodes.update(grounded="yes"),
    "branches that are a list": lambda dag, nodes: nodes["grounded"].update(branches=[1]),
    "an unknown field": lambda dag, nodes: nodes["grounded"].update(choises=[]),
    "a branch that is a number": lambda dag, nodes: nodes["grounded"]["branches"].update({True: 1}),
    "an empty key": lambda dag, nodes: dag.update(key=""),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_broken_rubric_is_refused_when_it_is_built(change, refuses):
    with refuses(ConfigError):
        make_rubric_dag(dag=broken(change), judge="openai/x")


@pytest.mark.parametrize("dag", [None, [], "x", 3, {}])
def test_a_value_that_is_not_a_rubric_is_refused(dag):
    with pytest.raises(RequestError):
        make_rubric_dag(dag=dag, judge="openai/x")


def test_a_very_long_chain_is_walked():
    nodes = {
        f"n{i}": {"question": "?", "choices": ["a", "b"], "branches": {"a": f"n{i + 1}", "b": {"score": 0}}}
        for i in range(900)
    }
    nodes["n900"] = {
        "question": "?",
        "choices": ["a", "b"],
        "branches": {"a": {"score": 1}, "b": {"score": 0}},
    }
    assert len(RubricDagEvaluator(dag={"root": "n0", "nodes": nodes}, judge="openai/x").rubric.nodes) == 901


def test_a_node_whose_votes_are_split_is_undecided(serve):
    server = serve([choose("yes"), choose("no")])
    result = make_rubric_dag(preset="answer_quality", judge={"model": server.spec(), "samples": 2}).evaluate(
        outputs="x"
    )
    assert (result.score, result.value) == (None, "undecided")
    assert result.metadata["path"][0]["choice"] is None


# ---------------------------------------------------------------- RAG


def claims(*pairs):
    return {"analysis": "checked", "claims": [{"claim": text, "supported": ok} for text, ok in pairs]}


def test_the_seeds_triad(serve):
    server = serve(
        lambda body: (
            claims(("a", True), ("b", False), ("c", True))
            if "fact checker" in instructions(body)
            else {"analysis": "", "score": 4}
        )
    )
    triad = rag_triad({"judge": {"model": server.spec()}})
    assert list(triad) == ["context_relevance", "groundedness", "answer_relevance"]
    inputs = {"question": "Who?", "context": ["one", "two"]}
    result = triad["groundedness"].evaluate(inputs=inputs, outputs="A, b and c.")
    assert result.score == pytest.approx(2 / 3)
    assert result.metadata["claims"] == [
        {"claim": "a", "supported": True},
        {"claim": "b", "supported": False},
        {"claim": "c", "supported": True},
    ]
    server.reset()
    relevance = triad["context_relevance"].evaluate(inputs=inputs)
    assert relevance.score == 0.8
    assert [each["score"] for each in relevance.metadata["passages"]] == [0.8, 0.8]
    assert server.count == 2
    assert triad["answer_relevance"].evaluate(inputs="Who?", outputs="Me.").score == 0.8


def test_the_context_keyword_wins_over_the_input_over_the_path(serve):
    server = serve([claims(("a", True))])

    def source(**given):
        server.reset()
        build_evaluator("groundedness", {"judge": server.spec(), "context": "output.documents"}).evaluate(
            outputs={"documents": ["from the path"], "answer": "A."}, **given
        )
        return material(server.requests[0])

    assert "from the keyword" in source(
        inputs={"question": "?", "context": "from the input"}, context=["from the keyword"]
    )
    assert "from the input" in source(inputs={"question": "?", "context": "from the input"})
    assert "from the path" in source(inputs="the question")
    assert "the question" in source(inputs="the question")


def test_keys_of_question_and_context_can_be_named(serve):
    server = serve([claims(("a", True))])
    evaluator = build_evaluator(
        "groundedness", {"judge": server.spec(), "question_key": "q", "context_key": "docs"}
    )
    evaluator.evaluate(inputs={"q": "Why?", "docs": [{"title": "T", "page_content": "text"}]}, outputs="x")
    assert "Why?" in material(server.requests[0])
    assert "T\ntext" in material(server.requests[0])


def test_an_answer_without_claims_is_not_applicable(serve, folder):
    server = serve([claims()])
    evaluator = rag_triad(judge=server.spec())["groundedness"]
    result = evaluator.evaluate(inputs="?", outputs="I do not know.", context=["x"])
    assert (result.score, result.value, result.metadata["claims"]) == (None, "not applicable", [])
    server.reset()
    assert evaluator.evaluate(inputs="?", outputs=" ", context=["x"]).metadata["claims"] == []
    assert server.count == 0
    run = karat.run(
        _abstain,
        [{"id": "a", "input": {"question": "?", "context": ["x"]}}],
        store=f"sqlite:///{folder}/k.db",
    )
    [stored] = karat.evaluate(run, [evaluator]).results()
    assert stored.outcome.status == "skipped"
    assert not stored.outcome.applicable


def _abstain(input):
    return "I do not know."


def test_a_missing_context_is_an_error_and_an_empty_one_supports_nothing(serve):
    server = serve([claims(("a", True), ("b", True))])
    evaluator = rag_triad(judge=server.spec())["groundedness"]
    with pytest.raises(CannotJudge, match="no context"):
        evaluator.evaluate(inputs="?", outputs="A and b.")
    for nothing in ([], "", ["", " "]):
        result = evaluator.evaluate(inputs="?", outputs="A and b.", context=nothing)
        assert result.score == 0.0
        assert [claim["supported"] for claim in result.metadata["claims"]] == [False, False]
    with pytest.raises(CannotJudge):
        rag_triad(judge=server.spec())["context_relevance"].evaluate(inputs="?")


def test_a_long_answer_is_judged_in_batches_and_nothing_is_lost(serve):
    sentences = [f"Fact number {n} is stated in this sentence of the answer." for n in range(200)]

    def answer(body):
        text = material(body).split("begin statement]\n")[1]
        return claims(*((s, True) for s in sentences if s in text))

    server = serve(answer)
    result = rag_triad(judge=server.spec())["groundedness"].evaluate(
        inputs="?", outputs=" ".join(sentences), context="c"
    )
    assert [claim["claim"] for claim in result.metadata["claims"]] == sentences
    assert server.count > 5


def test_a_text_without_sentences_is_batched(serve):
    words = " ".join(f"word{n}" for n in range(3000))
    server = serve([claims(("a", True))])
    rag_triad(judge=server.spec())["groundedness"].evaluate(inputs="?", outputs=words, context="c")
    shown = " ".join(material(b).split("begin statement]\n")[1] for b in server.requests)
    assert all(f"word{n}" in shown for n in range(3000))


def test_several_votes_are_about_the_same_claims(serve):
    def answer(body):
        if "begin claims]" in material(body):
            answer.seen += 1
            return claims(("a", True), ("b", answer.seen == 1))
        return claims(("a", True), ("b", True))

    answer.seen = 0
    judge = {"model": serve(answer).spec(), "samples": 3}
    result = rag_triad(judge=judge)["groundedness"].evaluate(inputs="?", outputs="x", context="c")
    assert result.metadata["claims"] == [
        {"claim": "a", "supported": True, "share": 1.0, "spread": 0.0},
        {"claim": "b", "supported": True, "share": pytest.approx(2 / 3), "spread": pytest.approx(8 / 9)},
    ]


def test_answer_correctness(serve):
    def answer(body):
        statement = material(body).split("begin statement]\n")[1]
        return claims(("x", True), ("y", False)) if "the answer" in statement else claims(("z", True))

    evaluator = AnswerCorrectnessEvaluator(judge=serve(answer).spec())
    result = evaluator.evaluate(inputs="?", outputs="the answer", reference_outputs="gold")
    assert (result.metadata["precision"], result.metadata["recall"]) == (0.5, 1.0)
    assert result.score == pytest.approx(2 / 3)
    with pytest.raises(CannotJudge, match="no reference"):
        evaluator.evaluate(inputs="?", outputs="the answer")


# ---------------------------------------------------------------- agent as judge

REQUIREMENTS = [
    "The flight is under $400",
    "The flight is refundable",
    "The itinerary was emailed to the user",
]
TRAJECTORY = [
    {"role": "user", "content": "Book a refundable flight under $400 and email me."},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "book", "arguments": '{"max": 400}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "Booked for $380, refundable."},
    {"role": "assistant", "content": "Done. I will email the itinerary."},
]


def verdict(number, satisfied, steps=(), quote="", evidence="because"):
    return {"evidence": evidence, "id": number, "quote": quote, "satisfied": satisfied, "steps": list(steps)}


def verdicts(*entries):
    return {"analysis": "checked", "verdicts": list(entries)}


def test_the_seeds_agent_as_judge(serve):
    server = serve(
        [
            verdicts(
                verdict(1, True, [3], "$380"),
                verdict(2, True, [3], "not in any step"),
                verdict(3, False, [9]),
            )
        ]
    )
    config = {"judge": {"model": server.spec()}}
    result = AgentAsJudgeEvaluator(config, requirements=REQUIREMENTS).evaluate(
        inputs={"question": "Book it"}, outputs=TRAJECTORY
    )
    assert result.score == pytest.approx(2 / 3)
    found = result.metadata["verdicts"]
    assert [each["requirement"] for each in found] == REQUIREMENTS
    assert [each["satisfied"] for each in found] == [True, True, False]
    assert [each["evidence_verified"] for each in found] == [True, False, False]
    assert found[0]["evidence"] == "because"
    assert found[0]["steps"] == [3]
    assert (result.metadata["steps_shown"], result.metadata["steps_total"]) == (4, 4)


def test_requirements_of_the_input(serve):
    server = serve([verdicts(verdict(1, True))])
    evaluator = AgentAsJudgeEvaluator(judge=server.spec())
    result = evaluator.evaluate(
        inputs={"question": "Do it", "requirements": ["It is done"]}, outputs=TRAJECTORY
    )
    assert result.score == 1.0
    assert result.metadata["verdicts"][0]["evidence_verified"] is None
    own = AgentAsJudgeEvaluator(judge=server.spec(), requirements_key="goals")
    assert (
        own.evaluate(inputs={"question": "Do it", "goals": ["It is done"]}, outputs=TRAJECTORY).score == 1.0
    )
    with pytest.raises(CannotJudge, match="no requirements"):
        evaluator.evaluate(inputs="Do it", outputs=TRAJECTORY)


def test_omitted_requirements_are_asked_again_and_invented_ones_dropped(serve):
    server = serve(
        [
            verdicts(verdict(1, True), verdict(3, False), verdict(7, True), verdict(0, True)),
            verdicts(verdict(2, False), verdict(1, False)),
        ]
    )
    result = AgentAsJudgeEvaluator(judge=server.spec(), requirements=REQUIREMENTS).evaluate(
        outputs=TRAJECTORY
    )
    assert [each["satisfied"] for each in result.metadata["verdicts"]] == [True, False, False]
    assert server.count == 2
    again = material(server.requests[1])
    assert REQUIREMENTS[1] in again
    assert REQUIREMENTS[0] not in again.partition("begin steps]")[0]


def test_a_requirement_named_instead_of_its_id_is_aligned(serve):
    named = [
        {"requirement": text, "satisfied": n != 1, "evidence": "x"} for n, text in enumerate(REQUIREMENTS)
    ]
    server = serve([verdicts(*reversed(named))])
    result = AgentAsJudgeEvaluator(judge=server.spec(), requirements=REQUIREMENTS).evaluate(
        outputs=TRAJECTORY
    )
    assert [each["satisfied"] for each in result.metadata["verdicts"]] == [True, False, True]
    assert server.count == 1


def test_a_requirement_without_a_verdict_is_an_error_after_three_requests(serve):
    server = serve([verdicts(verdict(1, True))])
    with pytest.raises(JudgeFailure):
        AgentAsJudgeEvaluator(judge=server.spec(), requirements=REQUIREMENTS).evaluate(outputs=TRAJECTORY)
    assert server.count == 3


HOSTILE_VERDICTS = {
    "two that differ": verdicts(verdict(1, True), verdict(1, False)),
    "satisfied is yes": verdicts({**verdict(1, True), "satisfied": "yes"}),
    "satisfied is 1": verdicts({**verdict(1, True), "satisfied": 1}),
    "steps are text": verdicts({**verdict(1, True), "steps": "3"}),
    "a list of texts": {"analysis": "", "verdicts": ["true"]},
    "an object": {"analysis": "", "verdicts": {"1": True}},
}


@pytest.mark.parametrize("reply", HOSTILE_VERDICTS.values(), ids=HOSTILE_VERDICTS)
def test_hostile_verdicts_are_repaired_or_an_error(serve, reply):
    server = serve([reply])
    with pytest.raises(JudgeFailure):
        AgentAsJudgeEvaluator(judge=server.spec(), requirements=["a"]).evaluate(outputs=TRAJECTORY)
    assert server.count == 3


def test_a_long_trajectory_is_read_in_windows_and_nothing_is_cut(serve):
    steps = [{"role": "assistant", "content": f"step text {n} " + "x" * 300} for n in range(60)]
    seen: set[int] = set()

    def answer(body):
        text = material(body)
        if "findings" not in text.partition("begin findings]")[1]:
            seen.update(n for n in range(60) if f"step text {n} " in text)
            return verdicts(verdict(1, False, [2], "step text 1"))
        return verdicts(verdict(1, True, [2], "step text 1"))

    server = serve(answer)
    evaluator = AgentAsJudgeEvaluator(judge=server.spec(), requirements=["It is done"], window=4000)
    result = evaluator.evaluate(inputs="Do it", outputs=steps)
    assert seen == set(range(60))
    assert result.score == 1.0
    assert result.metadata["windows"] == server.count - 1 > 3
    assert result.metadata["steps_shown"] == result.metadata["steps_total"] == 60
    assert result.metadata["verdicts"][0]["evidence_verified"] is True
    assert "step text 1" in material(server.requests[-1])


def test_a_step_longer_than_a_window_is_shown_in_parts(serve):
    server = serve([verdicts(verdict(1, True))])
    words = " ".join(f"w{n}" for n in range(2000))
    evaluator = AgentAsJudgeEvaluator(judge=server.spec(), requirements=["a"], window=1000)
    evaluator.evaluate(outputs=[{"role": "assistant", "content": words}])
    parts = [
        material(b).split("begin steps]\n")[1].split("\n[")[0].partition("\n")[2]
        for b in server.requests
        if "begin steps]\n" in material(b)
    ]
    # Windows are asked at once and arrive in any order.
    assert "".join(sorted(parts, key=words.index)) == words


def test_calls_recorded_by_karat_are_judged(serve, folder):
    server = serve([verdicts(verdict(1, True, [2], "Booked"))])
    run = karat.run(_agent, [{"id": "a", "input": "Book it"}], store=f"sqlite:///{folder}/k.db")
    evaluator = AgentAsJudgeEvaluator(judge=server.spec(), requirements=["It is booked"])
    [stored] = karat.evaluate(run, [evaluator]).results()
    assert stored.result.metadata["verdicts"][0]["evidence_verified"] is True
    assert 'calls book({"to": "Oslo"})' in material(server.requests[0])


def _agent(input):
    from karat import models

    models.record_tool_call("book", {"to": "Oslo"}, "Booked for $380")
    return "Done."


def test_the_trajectory_judge_sees_every_step(serve):
    server = serve([{"analysis": "", "pass": False}])
    result = LLMTrajectoryJudge(judge=server.spec()).evaluate(outputs=TRAJECTORY, inputs="Book it")
    assert result.score == 0.0
    for text in ("Step 1 (user)", 'calls book({"max": 400})', "Booked for $380, refundable.", "I will email"):
        assert text in material(server.requests[0])


# ---------------------------------------------------------------- pairwise


def pick(best):
    """A judge that prefers an answer wherever it stands."""

    def answer(body):
        text = material(body)
        first = text.split("begin first]\n")[1].split("\n[")[0]
        return {"analysis": "", "choice": "first" if best in first else "second"}

    return answer


def test_pairwise_asks_both_orders(serve):
    server = serve(pick("good"))
    judge = PairwiseJudge(judge=server.spec())
    assert judge.compare_values("?", "good", "bad").value == "win"
    assert judge.compare_values("?", "bad", "good").value == "loss"
    assert server.count == 4


def test_orders_that_disagree_are_a_tie_and_show_position_bias(serve):
    judge = PairwiseJudge(judge=serve([{"analysis": "", "choice": "first"}]).spec())
    result = judge.compare_values("?", "a", "b")
    assert (result.score, result.value) == (0.5, "tie")
    assert result.metadata["agree"] is False
    assert result.metadata["position_bias"] == "first"


def test_one_order_where_asked(serve):
    server = serve([{"analysis": "", "choice": "first"}])
    assert PairwiseJudge(judge=server.spec(), both_orders=False).compare_values("?", "a", "b").value == "win"
    assert server.count == 1


def test_pairwise_ranks_runs(serve, folder):
    server = serve(
        lambda body: pick("answer 2")(body) if "answer 2" in material(body) else pick("answer 1")(body)
    )
    store = f"sqlite:///{folder}/k.db"
    data = [{"id": f"e{n}", "input": n} for n in range(6)]
    runs = [karat.run(task, data, store=store) for task in (_numbered, _first, _second)]
    ranking = karat.rank(runs, evaluator=PairwiseJudge(judge=server.spec()))
    assert server.count == 36  # 3 pairs of runs, 6 examples, both orders
    assert [each.run for each in ranking.places] == [runs[2].id, runs[1].id, runs[0].id]
    assert karat.rank(runs, evaluator=PairwiseJudge(judge=server.spec())).places == ranking.places
    assert server.count == 36


def _breaks(input):
    if input % 2:
        raise ValueError("no answer")
    return "answer 2"


def test_a_failed_output_loses_and_a_failed_judgment_is_missing(serve, folder):
    """The run that fails on half of the examples has the better answers on the other half."""

    def answer(body):
        return "no verdict" if "\n4\n" in material(body) else pick("answer 2")(body)

    server = serve(answer)
    data = [{"id": f"e{n}", "input": n} for n in range(6)]
    runs = [karat.run(task, data, store=f"sqlite:///{folder}/k.db") for task in (_breaks, _first)]
    evaluation = karat.evaluate(runs, [PairwiseJudge(judge=server.spec())])
    assert (evaluation.counts.ok, evaluation.counts.skipped, evaluation.counts.failed) == (2, 3, 1)
    rates = karat.aggregate(evaluation, ["win_rate"]).estimates
    [first] = [each for each in rates if each.run == runs[0].id]
    assert first.value == pytest.approx(2 / 5)  # two wins, three outputs failed, one judgment is missing
    assert (first.n, first.of) == (5, 6)


def _numbered(input):
    return "answer 0"


def _first(input):
    return "answer 1"


def _second(input):
    return "answer 2"


def test_examples_of_judges_are_json():
    for name in ("rubric_dag", "groundedness", "agent_as_judge", "llm_judge", "answer_correctness"):
        assert json.dumps(evaluators.get(name).example)
