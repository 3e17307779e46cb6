"""Which number is shown where no aggregator is named: what the evaluator declares, for any scores."""

from __future__ import annotations

import pytest

import karat
from karat.analysis.summary import summarise
from karat.errors import RequestError
from karat.evaluators import ExactMatch, build_evaluator


def usual(evaluator, outputs, expected="abcd"):
    """The metrics in an aggregation, in a report without one, and in a comparison of two runs."""
    store = karat.open_store("memory://")
    data = karat.Dataset.from_examples(
        [{"id": str(i), "input": output, "expected": expected} for i, output in enumerate(outputs)], name="d"
    )

    def answer(given: object) -> object:
        return given

    def other(given: object) -> object:
        return answer(given)

    runs = [karat.run(task, data, store=store, progress=False) for task in (answer, other)]
    evaluation = karat.evaluate(runs, [evaluator], progress=False)
    [report] = {metric.estimate.aggregator for metric in summarise(store, [evaluation]).metrics}
    [compared] = {each.aggregator for each in karat.compare(evaluation).differences}
    [shown] = {each.aggregator for each in karat.aggregate(evaluation).estimates}
    return shown, report, compared


@pytest.mark.parametrize("outputs", [["abcd", "abcd"], ["abcd", "wxyz"], ["abcd", "abxx"], ["wxyz", "wxyz"]])
def test_the_metric_does_not_depend_on_the_scores(outputs):
    assert usual("edit_distance", outputs) == ("mean",) * 3
    assert usual("exact_match", outputs) == ("accuracy",) * 3


def test_parameters_count():
    assert usual({"name": "contains", "params": {"substring": ["a", "b"]}}, ["a", "b"]) == ("accuracy",) * 3
    graded = {"name": "contains", "params": {"substring": ["a", "b"], "graded": True}}
    assert usual(graded, ["ab", "x"]) == ("mean",) * 3
    assert build_evaluator("trajectory_match", {"graded": True}).pass_fail is False
    judge = {"judge": "local/smollm2-135m"}
    assert build_evaluator("llm_judge", judge).pass_fail is True
    for graded in ({"continuous": True}, {"choices": ["good", "fair", "bad"]}, {"criterion": ["a", "b"]}):
        assert build_evaluator("llm_judge", {**judge, **graded}).pass_fail is False
    assert build_evaluator("llm_judge", {**judge, "choices": {"yes": 1, "no": 0}}).pass_fail is True


def test_functions_declare_it_by_what_they_return():
    def short(outputs: str) -> bool:
        return len(outputs) < 5

    def share(outputs: str) -> float:
        return float(len(outputs) < 5)

    assert usual(short, ["a", "b"]) == ("accuracy",) * 3
    assert usual(share, ["a", "b"]) == ("mean",) * 3


def test_it_can_be_declared_where_the_evaluator_is_named():
    field = {"name": "from_output", "params": {"field": "output"}, "key": "right"}
    outputs = [{"output": 1}, {"output": 0}]
    assert usual({**field, "pass_fail": True}, outputs, expected=None) == ("accuracy",) * 3
    assert usual(field, outputs, expected=None) == ("mean",) * 3
    with pytest.raises(RequestError):
        build_evaluator("exact_match", pass_fail="yes")  # type: ignore[arg-type]


def test_a_lower_score_that_is_better_has_no_accuracy():
    class Wrong(ExactMatch):
        higher_is_better = False

    assert usual(Wrong(), ["abcd", "wxyz"]) == ("mean",) * 3


def test_labels_without_scores_are_counted():
    def topic(outputs: str) -> str:
        if outputs == "bad":
            raise ValueError("no topic")
        return outputs

    data = [{"id": str(i), "input": text} for i, text in enumerate(["law", "law", "art", "bad"])]

    def same(text: str) -> str:
        return text

    run = karat.run(same, data, store="memory://", progress=False)
    made = karat.aggregate(karat.evaluate(run, [topic], progress=False))
    assert not made.header.failures
    shares = {each.group["value"]: (each.value, each.n, each.of) for each in made.estimates if each.group}
    assert shares == {"law": (2 / 3, 3, 4), "art": (1 / 3, 3, 4)}
    assert {each.aggregator for each in made.estimates} == {"count_by"}
