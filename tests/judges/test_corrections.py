"""Corrections of every kind of judge, in every order, and what is made of them afterwards."""

from __future__ import annotations

import itertools
import json

import pytest

import karat
from karat.analysis.judges.agreement import alignment
from karat.analysis.judges.labels import correct
from karat.cli import main
from karat.errors import RequestError
from karat.tasks import Task

from .conftest import echo, judged, says_good

DATA = [{"id": "q1", "input": {"question": "?", "context": ["c"], "answer": "A."}, "expected": "B."}]


def evaluated(store, server, name, data=DATA, **params):
    run = karat.run(echo, data, store=store)
    return karat.evaluate(run, [{"name": name, "params": {"judge": server.spec(), **params}}])


def claims(*supported):
    return {
        "analysis": "",
        "claims": [{"claim": f"claim {n}", "supported": each} for n, each in enumerate(supported)],
    }


def test_correctness_corrected_by_claims_stays_an_f1(store, serve):
    server = serve(lambda body: claims(True, False))
    evaluation = evaluated(store, server, "answer_correctness")
    assert next(evaluation.results()).score == 0.5
    [made] = correct(evaluation, "q1", claims={2: True})
    assert made.score == pytest.approx(2 * 1.0 * 0.5 / 1.5)


@pytest.mark.parametrize("order", list(itertools.permutations([(1, False), (2, True), (3, True)])))
def test_the_order_of_corrections_does_not_matter(store, serve, order):
    evaluation = evaluated(store, serve(lambda body: claims(True, False, False, True)), "groundedness")
    for number, value in order:
        [made] = correct(evaluation, "q1", claims={number: value})
    assert made.score == 0.75
    [again] = correct(evaluation, "q1", claims={1: True})
    assert (again.kind, again.score) == ("confirmation", 1.0)


TREE = {
    "key": "tree",
    "root": "a",
    "nodes": {
        "a": {"question": "A?", "choices": ["left", "right"], "branches": {"left": "b", "right": "c"}},
        "b": {
            "question": "B?",
            "choices": ["x", "y"],
            "branches": {"x": {"score": 0.1}, "y": "d"},
        },
        "c": {"question": "C?", "choices": ["x", "y"], "branches": {"x": {"score": 0.4}, "y": "d"}},
        "d": {
            "question": "D?",
            "choices": ["x", "y"],
            "branches": {"x": {"score": 0.7}, "y": {"score": 1.0}},
        },
    },
}


@pytest.fixture
def tree(store, serve):
    """The judge goes left and x everywhere else."""

    def answer(body):
        return {"analysis": "", "choice": "left" if "left" in body["messages"][0]["content"] else "x"}

    server = serve(answer)
    return server, evaluated(store, server, "rubric_dag", dag=TREE)


def test_nodes_corrected_one_after_another_continue_from_each_other(tree):
    server, evaluation = tree
    assert next(evaluation.results()).score == 0.1
    server.reset()
    [first] = correct(evaluation, "q1", nodes={"a": "right"})
    assert (first.score, server.count) == (0.4, 1)  # c is asked
    [second] = correct(evaluation, "q1", nodes={"c": "y"})
    assert (second.judged, second.score) == (None, 0.7)
    assert server.count == 2  # d is asked; a and c are decided by the person
    [third] = correct(evaluation, "q1", nodes={"d": "y"})
    assert (third.score, server.count) == (1.0, 2)
    # Back to the left: the judge said x at b, which stays; what was said of c and d does not matter there.
    [back] = correct(evaluation, "q1", nodes={"a": "left"})
    assert (back.kind, back.score, server.count) == ("confirmation", 0.1, 2)
    # And the earlier choices are still there when the path comes to them again.
    [again] = correct(evaluation, "q1", nodes={"b": "y"})
    assert (again.score, server.count) == (1.0, 2)


def test_several_nodes_at_once(tree, refuses):
    server, evaluation = tree
    server.reset()
    made = correct(evaluation, "q1", nodes={"d": "y", "c": "y", "a": "right"})
    assert [(each.part, each.score) for each in made] == [
        ("nodes/a", 1.0),
        ("nodes/c", 1.0),
        ("nodes/d", 1.0),
    ]
    assert server.count == 0
    with refuses(RequestError):
        correct(evaluation, "q1", nodes={"a": "left", "c": "x"}, annotator="bo")
    with refuses(RequestError):
        correct(evaluation, "q1", nodes={"e": "x"})


def test_corrections_of_one_person_are_not_those_of_another(tree, refuses):
    _, evaluation = tree
    correct(evaluation, "q1", nodes={"a": "right"}, annotator="ana")
    with refuses(RequestError):
        correct(evaluation, "q1", nodes={"c": "y"}, annotator="bo")
    [made] = correct(evaluation, "q1", nodes={"c": "y"}, annotator="ana")
    assert made.score == 0.7


def test_an_undecided_requirement_is_decided_by_a_person(store, serve):
    def answer(body):
        number = answer.calls = getattr(answer, "calls", 0) + 1
        verdict = {"evidence": "", "quote": "", "steps": []}
        return {"analysis": "", "verdicts": [{**verdict, "id": 1, "satisfied": number % 2 == 0}]}

    server = serve(answer)
    run = karat.run(echo, DATA, store=store)
    params = {"judge": {"model": server.spec(), "samples": 2}, "requirements": ["r"]}
    evaluation = karat.evaluate(run, [{"name": "agent_as_judge", "params": params}])
    assert next(evaluation.results()).score is None
    [made] = correct(evaluation, "q1", requirements={1: True})
    assert (made.kind, made.judged, made.score_before, made.score) == ("correction", None, None, 1.0)


def test_a_verdict_is_corrected_by_the_judges_own_pass_mark(store, serve):
    server = serve(lambda body: {"analysis": "", "score": 3})
    evaluation = judged(store, server, {"a": "x"}, continuous=True, pass_mark=0.9)
    [made] = correct(evaluation, "a", verdict=False)
    assert (made.kind, made.judged, made.score) == ("confirmation", False, 0.0)


JUDGES = {
    "llm_judge": ({}, {"analysis": "", "pass": True}, {"verdict": False}),
    "llm_trajectory_judge": ({}, {"analysis": "", "pass": True}, {"verdict": False}),
    "context_relevance": ({}, {"analysis": "", "score": 5}, {"verdict": False}),
    "answer_relevance": ({}, {"analysis": "", "score": 5}, {"verdict": False}),
    "groundedness": ({}, claims(True), {"claims": {1: False}}),
    "answer_correctness": ({}, claims(True), {"claims": {1: False}}),
    "rubric_dag": (
        {"preset": "answer_quality"},
        {"analysis": "", "choice": "yes"},
        {"nodes": {"answers": "no"}},
    ),
    "agent_as_judge": (
        {"requirements": ["r"]},
        {
            "analysis": "",
            "verdicts": [{"evidence": "", "id": 1, "quote": "", "satisfied": True, "steps": []}],
        },
        {"requirements": {1: False}},
    ),
}


def _other(input):
    return input["answer"]


@pytest.mark.parametrize("name", JUDGES)
def test_after_a_correction_of_any_judge_everything_still_works(store, serve, folder, capsys, name):
    params, reply, given = JUDGES[name]
    runs = [karat.run(task, DATA, store=store) for task in (echo, _other)]
    judge = serve(lambda body: reply).spec()
    evaluation = karat.evaluate(runs, [{"name": name, "params": {"judge": judge, **params}}])
    first, second = evaluation.header.runs
    before = karat.aggregate(evaluation, ["mean"]).estimates.get(aggregator="mean", run=first)
    with pytest.raises(RequestError, match="run"):
        correct(evaluation, "q1", **given)
    [made] = correct(evaluation, "q1", run=first, **given)
    assert (made.kind, made.score) == ("correction", 0.0)
    after = karat.aggregate(evaluation, ["mean"])
    # The judge's own mean stays, and corrections correct no estimate.
    assert after.estimates.get(aggregator="mean", run=first).value == before.value == 1.0
    assert not after.estimates.select(aggregator="corrected")
    found = alignment(evaluation)
    assert {each.labels for each in found} == {"selected"}
    assert next(each for each in found if each.part == "").agreement.value == 0.0
    url = f"sqlite:///{folder}/karat.db"
    for command in (
        ["judge", "alignment", evaluation.id, "--json"],
        ["show", evaluation.id, "--json"],
        ["aggregate", evaluation.id, "--json"],
        ["compare", first, second, "--json"],
        ["report", after.id],
    ):
        capsys.readouterr()
        assert main([*command, "--store", url]) == 0, command
        printed = capsys.readouterr().out
        if command[-1] == "--json":
            json.loads(printed)


def test_a_failed_or_skipped_result_is_not_corrected(store, serve, refuses):
    evaluation = judged(store, serve(lambda body: "no verdict"), {"a": "x"})
    with refuses(RequestError):
        correct(evaluation, "a", verdict=True)
    good = judged(store, serve(says_good), {"b": "good"})
    with refuses(RequestError):
        correct(good, "b")


class _InUnits(Task):
    name = "in units"
    units_declared = True
    version = "1"

    def configuration(self):
        return {"task": self.name}

    def units(self, example):
        return ["one", "two"]

    def call_units(self, example, context):
        for unit in self.units(example):
            yield unit, example.input["answer"]


def test_attempt_and_unit_select_the_result(store, serve, folder, capsys):
    server = serve(lambda body: claims(True, False))
    url = f"sqlite:///{folder}/karat.db"
    spec = {"name": "groundedness", "params": {"judge": server.spec()}}
    attempts = karat.evaluate(karat.run(echo, DATA, store=store, attempts=2), [spec])
    with pytest.raises(RequestError, match=r"attempt \(1, 2\)"):
        correct(attempts, "q1", claims={1: False})
    command = ["judge", "correct", attempts.id, "q1", "--claim", "1=false", "--store", url, "--json"]
    assert main([*command, "--attempt", "2"]) == 0
    [made] = json.loads(capsys.readouterr().out)["corrections"]
    assert (made["score_before"], made["score"]) == (0.5, 0.0)
    units = karat.evaluate(karat.run(_InUnits(), DATA, store=store), [spec])
    with pytest.raises(RequestError, match=r"unit \(one, two\)"):
        correct(units, "q1", claims={1: False})
    [made] = correct(units, "q1", claims={2: True}, unit="two")
    assert made.score == 1.0


def test_a_key_in_a_judge_to_compare_is_shown_and_stored_nowhere(store, serve, folder, capsys):
    server = serve(says_good)
    evaluation = judged(store, server, {"a": "good", "b": "bad"})
    judges = [json.dumps({"model": name, "base_url": server.url, "api_key": "sk-hidden-1"}) for name in "xy"]
    command = ["judge", "compare", evaluation.id, "--judge", judges[0], "--judge", judges[1]]
    assert main([*command, "--store", f"sqlite:///{folder}/karat.db"]) == 0
    printed = capsys.readouterr()
    assert "sk-hidden-1" not in printed.out + printed.err
    store.close()
    for path in folder.iterdir():
        assert b"sk-hidden-1" not in path.read_bytes(), path.name


def test_what_no_judge_decided_is_not_corrected(store, serve, refuses):
    run = karat.run(echo, DATA, store=store)
    plain = karat.evaluate(run, ["json_valid"])
    with refuses(RequestError):
        correct(plain, "q1", verdict=True)
    judge = {"name": "answer_correctness", "params": {"judge": serve(lambda body: claims(True)).spec()}}
    both = karat.evaluate(run, ["json_valid", judge])
    with refuses(RequestError):
        correct(both, "q1", evaluator="json_valid", verdict=True)
    assert correct(both, "q1", verdict=True)
    assert [each.header.evaluators[0].name for each in store.evaluations.list()] == [
        "json_valid",
        "json_valid",
        "human",
    ]


class Mine(karat.Evaluator):
    """An evaluator of a user's own, which may ask a model."""

    name = "mine"

    def evaluate(self, *, outputs, **context):
        return karat.Result(self.key, 0.0)


def test_an_evaluator_of_ones_own_may_be_corrected(store):
    evaluation = karat.evaluate(karat.run(echo, DATA, store=store), [Mine()])
    [made] = correct(evaluation, "q1", verdict=True)
    assert (made.kind, made.score) == ("correction", 1.0)


def test_evaluators_without_a_judge_are_not_called_judges(store, refuses):
    both = karat.evaluate(karat.run(echo, DATA, store=store), ["json_valid", "exact_match"])
    with refuses(RequestError):
        correct(both, "q1", verdict=True)
