"""What an evaluator declares (bounds, direction), how it is registered, and what evaluators of several runs return."""

from __future__ import annotations

from typing import Any

import pytest

import karat
from karat.errors import RequestError
from karat.evaluators import (
    ByFunction,
    ByMetric,
    Evaluator,
    ExactMatch,
    FunctionEvaluator,
    RunOutput,
    build_evaluator,
    evaluators,
    list_evaluators,
    register_evaluator,
)
from karat.evaluators._pairwise import joint_result, run_ranks, run_scores
from karat.records import Example, Failed, Ok, Output, Result


class Errors(Evaluator):
    """Counts mistakes."""

    name = "errors"
    bounds = (0.0, None)
    higher_is_better = False

    def evaluate(
        self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> Result:
        return Result(self.key, float(len(set(outputs) ^ set(reference_outputs))))


@pytest.fixture
def store(tmp_path):
    return karat.open_store(f"sqlite:///{tmp_path / 'karat.db'}")


@pytest.fixture
def registry(monkeypatch):
    evaluators.list()  # what is built in registers itself first
    for name in ("_parts", "_aliases", "descriptions", "declared"):
        monkeypatch.setattr(evaluators, name, dict(getattr(evaluators, name)))
    return evaluators


def test_every_evaluator_declares_bounds_and_direction():
    for each in list_evaluators():
        low, high = each["bounds"] or (None, None)
        assert low is None or high is None or low < high
        assert isinstance(each["higher_is_better"], bool)


def test_a_class_is_registered_with_a_description(registry):
    assert register_evaluator("errors", Errors, "How many characters differ.") is Errors
    described = registry.describe("errors")
    assert described["description"] == "How many characters differ."
    assert (described["bounds"], described["higher_is_better"]) == ([0.0, None], False)
    assert build_evaluator("errors").evaluate(outputs="ab", reference_outputs="abc").score == 1.0
    assert "errors" in [each["name"] for each in list_evaluators()]


def test_a_factory_is_registered_and_gets_the_parameters(registry):
    def folded(case_sensitive: bool = False) -> Evaluator:
        return ExactMatch(case_sensitive=case_sensitive)

    register_evaluator("folded", folded, "Ignores case.")
    assert build_evaluator("folded").evaluate(outputs="A", reference_outputs="a").score == 1.0
    assert (
        build_evaluator("folded", {"case_sensitive": True}).evaluate(outputs="A", reference_outputs="a").score
        == 0.0
    )
    with pytest.raises(RequestError, match="case_sensitiv"):
        build_evaluator("folded", {"case_sensitiv": True})


def test_a_function_that_judges_is_registered_and_may_declare_its_direction(registry):
    register_evaluator(
        "length", lambda outputs: len(outputs), "Characters.", bounds=(0, None), higher_is_better=False
    )
    built = build_evaluator("length")
    assert built.evaluate(outputs="abc").score == 3.0
    assert (built.bounds, built.higher_is_better) == ((0.0, None), False)

    @register_evaluator("decorated", higher_is_better=False)
    def decorated(outputs: str) -> float:
        return float(len(outputs))

    assert decorated("ab") == 2.0
    assert build_evaluator("decorated").higher_is_better is False


def test_the_bounds_of_a_function_are_not_known_unless_it_declares_them():
    assert FunctionEvaluator(lambda outputs: 17).bounds is None

    def rate(outputs):
        return 1.0

    rate.bounds, rate.higher_is_better = (0, 1), False
    assert (FunctionEvaluator(rate).bounds, FunctionEvaluator(rate).higher_is_better) == ((0, 1), False)


def test_a_request_overrides_what_is_declared():
    built = build_evaluator("exact_match", bounds=(-1, 1), higher_is_better=False)
    assert (built.bounds, built.higher_is_better) == ((-1.0, 1.0), False)
    assert ExactMatch.higher_is_better is True
    assert build_evaluator("exact_match").higher_is_better is True


@pytest.mark.parametrize(
    "wrong",
    [{"bounds": [1]}, {"bounds": [1, 0]}, {"bounds": ["a", 1]}, {"bounds": 3}, {"higher_is_better": "no"}],
)
def test_wrong_declarations_are_refused(wrong):
    with pytest.raises(RequestError, match="exact_match"):
        build_evaluator("exact_match", **wrong)


def test_an_evaluation_stores_bounds_and_direction(store):
    dataset = karat.Dataset.from_examples([("a", "a")])
    run = karat.run(lambda text: text, dataset, store=store)
    lower = {"name": "exact_match", "key": "lower", "higher_is_better": False, "bounds": [0, None]}
    evaluation = karat.evaluate(run, [Errors(), "exact_match", lower])
    declared = {spec.key: (spec.bounds, spec.higher_is_better) for spec in evaluation.header.evaluators}
    assert declared == {
        "errors": ((0.0, None), False),
        "exact_match": ((0.0, 1.0), True),
        "lower": ((0.0, None), False),
    }
    again = karat.evaluate(run, [{**lower, "higher_is_better": True}])
    assert again.header.evaluators[0].higher_is_better is True


def test_another_direction_is_another_evaluation(store):
    dataset = karat.Dataset.from_examples([("a", "a")])
    run = karat.run(lambda text: text, dataset, store=store)
    one = karat.evaluate(run, ["exact_match"])
    other = karat.evaluate(run, [{"name": "exact_match", "higher_is_better": False}])
    assert one.id != other.id
    assert other.header.evaluators[0].higher_is_better is False


def output(value: Any, run: str = "r") -> RunOutput:
    return RunOutput(format=1, example="e", outcome=Ok(value), run=run)


def test_by_metric_prefers_the_lower_score_where_lower_is_better():
    example = Example("e", "in", "abc")
    better, worse = output("abc"), output("xyz")
    assert ByMetric(Errors()).compare(example, better, worse).value == "win"
    assert ByMetric(Errors()).compare(example, worse, better).value == "loss"


class TestFirstAndSecond:
    """They are outputs with their runs, in a function as in a class."""

    def test_in_a_stage(self, store):
        seen: dict[str, list[Any]] = {"function": [], "class": []}

        class Compares:
            key, version = "class", "1"

            def compare(self, example, first, second):
                seen["class"].append(
                    (type(first), first.run, first.value, type(second), second.run, second.value)
                )
                return "tie"

        def function(example, first, second):
            seen["function"].append(
                (type(first), first.run, first.value, type(second), second.run, second.value)
            )
            return "tie"

        dataset = karat.Dataset.from_examples([("a", "a")])
        a = karat.run(lambda text: text, dataset, store=store)
        b = karat.run(lambda text: text * 2, dataset, store=store)
        karat.evaluate([a, b], [Compares(), ByFunction(function)])
        assert seen["class"] == seen["function"] == [(RunOutput, a.id, "a", RunOutput, b.id, "aa")]

    def test_values_can_be_asked_for(self):
        compared = ByFunction(lambda first_value, second_value: float(first_value > second_value))
        assert compared.compare(Example("e", 1), output(2), output(1)) == 1.0


RUNS = ("a", "b", "c")


class TestEvaluateRuns:
    def test_a_score_per_run(self):
        result = joint_result({"b": 0.5, "a": 0.1, "c": 0.5}, "k", RUNS)
        assert (run_scores(result), run_ranks(result)) == ([0.1, 0.5, 0.5], [3, 1, 1])
        lower = joint_result({"b": 0.5, "a": 0.1, "c": 0.5}, "k", RUNS, higher_is_better=False)
        assert run_ranks(lower) == [1, 2, 2]

    def test_an_order(self):
        assert run_ranks(joint_result(["c", "a", "b"], "k", RUNS)) == [2, 3, 1]
        assert run_ranks(joint_result([["c", "a"], "b"], "k", RUNS)) == [1, 3, 1]
        outputs = [output(1, "b"), output(2, "a"), output(3, "c")]
        assert run_ranks(joint_result(outputs, "k", RUNS)) == [2, 1, 3]

    def test_a_result_with_either_keeps_its_comment(self):
        result = joint_result(Result("x", value=["c", "b", "a"], comment="because"), "k", RUNS)
        assert (result.key, result.comment, run_ranks(result)) == ("k", "because", [3, 2, 1])
        assert joint_result(Result("x", 0.5, value=[1, 2, 0]), "k", RUNS).value == [1, 2, 0]
        assert joint_result(0.5, "k", RUNS).score == 0.5

    @pytest.mark.parametrize(
        "wrong",
        [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3, "d": 4}, {"a": 1, "b": "x", "c": 1},
         {"a": float("nan"), "b": 1, "c": 1}, ["a", "b"], ["a", "b", "b"], ["a", "b", "d"]],
    )  # fmt: skip
    def test_a_request_that_does_not_fit_the_runs_is_an_error(self, wrong):
        with pytest.raises(ValueError, match="evaluator 'k'"):
            joint_result(wrong, "k", RUNS)

    def test_in_a_stage_with_their_runs(self, store):
        class Shortest(Evaluator):
            name, version = "shortest", "1"

            def evaluate_runs(self, example: Example, outputs: list[RunOutput]) -> Any:
                return {each.run: -len(each.value) for each in outputs}

        class Vague(Shortest):
            name = "vague"

            def evaluate_runs(self, example: Example, outputs: list[RunOutput]) -> Any:
                return ["run-nobody"]

        dataset = karat.Dataset.from_examples([("a", "a")])
        runs = [karat.run(lambda text, n=n: text * n, dataset, store=store) for n in (3, 1, 2)]
        results = {each.key: each for each in karat.evaluate(runs, [Shortest(), Vague()]).results()}
        shortest = results["shortest"]
        assert shortest.runs == tuple(run.id for run in runs)
        assert (run_scores(shortest.result), run_ranks(shortest.result)) == ([-3.0, -1.0, -2.0], [3, 1, 2])
        assert isinstance(results["vague"].outcome, Failed)
        assert "run-nobody" in results["vague"].outcome.error.message


def test_a_run_output_is_an_output():
    assert isinstance(output("x"), Output)
    assert output("x").value == "x"


def test_a_factory_function_takes_parameters() -> None:
    from karat.evaluators import Contains, build_evaluator, register_evaluator

    register_evaluator("contains_by_factory", lambda **params: Contains(**params), "a factory")
    built = build_evaluator("contains_by_factory", {"case_sensitive": False})
    assert built.evaluate(outputs="In OSLO.", reference_outputs="oslo").score == 1.0

    def plain(outputs: Any, reference_outputs: Any) -> bool:
        return bool(outputs == reference_outputs)

    register_evaluator("plain_function", plain, "a function")
    with pytest.raises(RequestError):
        build_evaluator("plain_function", {"outputs": 1})
