"""The aggregation stage: every number with its interval and denominator; one that raises spoils no other."""

from __future__ import annotations

import msgspec
import pytest

import karat
from karat.aggregators import Aggregate, Aggregator
from karat.errors import RequestError, StoreError
from karat.evaluators import Evaluator
from karat.records import Counts, Estimate
from tests.execution.test_evaluate import DATA, Closer, equal, run_adding


@pytest.fixture
def store(tmp_path):
    with karat.open_store(tmp_path / "karat.db") as opened:
        yield opened


def same(value):
    return value


def half_right(outputs, expected):
    return outputs == expected and expected < 3


def test_accuracy_and_mean_with_interval_and_denominator(store):
    aggregation = karat.aggregate(karat.evaluate(run_adding(store, 0), [half_right]), ["accuracy", "mean"])
    accuracy = aggregation.estimates.get(evaluator="half_right", aggregator="accuracy")
    assert (accuracy.value, accuracy.n, accuracy.of, accuracy.method) == (0.5, 6, 6, "clopper-pearson")
    assert accuracy.low < 0.5 < accuracy.high
    assert aggregation.estimates.get(evaluator="half_right", aggregator="mean").value == 0.5
    assert "0.500  [0.118, 0.882]  6 of 6" in aggregation.report()


def test_failures_stay_in_the_denominator_and_bound_the_number(store, says):
    run = run_adding(store, 0, broken={0, 1})
    estimate = karat.aggregate(karat.evaluate(run, [equal]), ["accuracy"]).estimates.get(
        evaluator="equal", aggregator="accuracy"
    )
    assert (estimate.value, estimate.n, estimate.of) == (1.0, 4, 6)
    assert (estimate.lowest, estimate.highest) == (pytest.approx(4 / 6), 1.0)
    says(estimate)


def test_attempts_of_an_example_are_a_cluster(store):
    run = run_adding(store, 0, attempts=5)
    estimate = karat.aggregate(karat.evaluate(run, [half_right]), ["accuracy"]).estimates["accuracy"]
    assert estimate.n == 30
    assert estimate.metadata["clusters"] == 6
    assert estimate.metadata["design_effect"] > 4


@pytest.mark.parametrize("params", [{"by": "topc"}, {"cluster": "topc"}, {"by": ["topic", "topc"]}])
def test_an_unknown_metadata_field_is_refused_before_anything_is_stored(store, refuses, params):
    data = [
        {"id": str(i), "input": i, "expected": i, **({"metadata": {"topic": i % 3}} if i > 120 else {})}
        for i in range(150)
    ]
    evaluation = karat.evaluate(karat.run(same, data, store=store, progress=False), [equal])
    with refuses(RequestError):
        karat.aggregate(evaluation, [{"name": "accuracy", "params": params}])
    assert not list(store.aggregations.list())
    assert karat.aggregate(evaluation, [{"name": "accuracy", "params": {"by": "topic"}}]).status == "success"


def test_several_runs_have_numbers_of_their_own(store, refuses):
    runs = [run_adding(store, 0), run_adding(store, 1)]
    aggregation = karat.aggregate(karat.evaluate(runs, [equal]), ["accuracy"])
    assert {e.run: e.value for e in aggregation.estimates} == {runs[0].id: 1.0, runs[1].id: 0.0}
    assert {(e.evaluator, e.aggregator, e.group) for e in aggregation.estimates} == {
        ("equal", "accuracy", None)
    }
    with refuses(RequestError) as refused:
        aggregation.estimates["accuracy"]
    assert runs[0].id in str(refused.value)
    assert aggregation.estimates.get(aggregator="accuracy", run=runs[1].id).value == 0.0
    with refuses(RequestError):
        aggregation.estimates["acuracy"]
    with refuses(LookupError):
        aggregation.estimates.get(evaluator="eqaul")


def test_win_rates_of_runs(store):
    a, b, c = (run_adding(store, amount) for amount in (0, 1, 1 + 1))
    aggregation = karat.aggregate(karat.evaluate([a, b, c], [Closer()]), ["win_rate"])
    rates = {e.run: e.value for e in aggregation.estimates.select(name="")}
    assert rates == {a.id: 1.0, b.id: 0.5, c.id: 0.0}
    assert aggregation.estimates["shown_first"].value == 1.0
    [pairs] = aggregation.tables
    assert (pairs.evaluator, pairs.aggregator, pairs.name, len(pairs.value)) == (
        "closer",
        "win_rate",
        "pairs",
        3,
    )


class Ordered(Evaluator):
    """Ranks all runs by their outputs, the smallest first."""

    name = "ordered"

    def evaluate_runs(self, example, outputs):
        return [output.run for output in sorted(outputs, key=lambda output: output.value)]


def test_aggregating_an_amended_comparison_with_the_old_one_counts_nothing_twice(store):
    a, b, c = (run_adding(store, amount) for amount in (0, 1, 2))
    judge = Closer()
    first = karat.evaluate([a, b], [judge])
    amended = karat.evaluate(c, [judge], amend=first)
    alone = karat.aggregate(amended, ["win_rate"]).estimates
    both = karat.aggregate([first, amended], ["win_rate"]).estimates
    assert alone == both


def test_an_amended_ranking_of_all_runs_counts_nothing_twice(store):
    a, b, c = (run_adding(store, amount) for amount in (0, 1, 2))
    first = karat.evaluate([a, b], [Ordered()])
    amended = karat.evaluate(c, [Ordered()], amend=first)
    metrics = ["win_rate", "mean"]
    alone = karat.aggregate(amended, metrics)
    both = karat.aggregate([first, amended], metrics)
    assert (alone.estimates, alone.counts) == (both.estimates, both.counts)
    apart = karat.evaluate([b, c], [Ordered()])
    assert karat.aggregate([first, apart], ["mean"]).estimates.get(run=b.id).n == 2 * first.counts.ok


def test_several_evaluations_together_serve_a_comparison_that_grew(store):
    a, b, c = (run_adding(store, amount) for amount in (0, 1, 2))
    judge = Closer()
    parts = [karat.evaluate(pair, [judge]) for pair in ([a, b], [a, c], [b, c])]
    aggregation = karat.aggregate(parts, ["win_rate"])
    assert aggregation.estimates.get(evaluator="closer", aggregator="win_rate", run=a.id).n == 12


def test_an_aggregator_that_raises_is_reported_and_the_others_stand(store, says):
    class Broken(Aggregator[int]):
        name = "broken"

        def start(self):
            return 0

        def add(self, state, group):
            if group.example == "e3":
                raise ZeroDivisionError("e3")
            return state

        def merge(self, a, b):
            return a + b

        def finish(self, state):
            return Aggregate([Estimate(1.0)])

    aggregation = karat.aggregate(karat.evaluate(run_adding(store, 0), [equal]), [Broken(), "accuracy"])
    [failure] = aggregation.header.failures
    assert (failure.evaluator, failure.aggregator, failure.error.type) == (
        "equal",
        "broken",
        "ZeroDivisionError",
    )
    assert aggregation.estimates.get(evaluator="equal", aggregator="accuracy").value == 1.0
    assert aggregation.status == "partial"
    says(*[line for line in aggregation.report().splitlines() if "ZeroDivisionError" in line])


def test_labels_without_scores_have_no_mean(store, says):
    def label(outputs):
        return "small" if outputs < 3 else "large"

    aggregation = karat.aggregate(karat.evaluate(run_adding(store, 0), [label]), ["mean"])
    says(aggregation.header.failures[0].error.message)


def test_an_aggregator_for_certain_evaluators(store, refuses):
    evaluation = karat.evaluate(run_adding(store, 0), [equal, half_right])
    aggregation = karat.aggregate(evaluation, [{"name": "accuracy", "of": "equal"}, "mean"])
    found = {(e.evaluator, e.aggregator) for e in aggregation.estimates}
    assert found == {("equal", "accuracy"), ("equal", "mean"), ("half_right", "mean")}
    with refuses(RequestError):
        karat.aggregate(evaluation, [{"name": "accuracy", "of": "equl"}])


def test_requests_that_make_no_sense_are_refused(store, refuses):
    evaluation = karat.evaluate(run_adding(store, 0), [equal])
    with refuses(RequestError):
        karat.aggregate(evaluation, ["acuracy"])
    with refuses(RequestError):
        karat.aggregate(evaluation, ["win_rate"])
    with pytest.raises(RequestError, match="confidence is 95"):
        karat.aggregate(evaluation, ["accuracy"], confidence=95)
    with refuses(RequestError):
        karat.aggregate(evaluation, [{"name": "accuracy", "params": {"threshhold": 1}}])


def test_the_same_aggregation_is_returned_and_new_results_make_another(store):
    run = run_adding(store, 0, broken={1})
    first = karat.aggregate(karat.evaluate(run, ["exact_match"]), ["accuracy"])
    assert karat.aggregate(karat.evaluate(run, ["exact_match"]), ["accuracy"]).id == first.id
    run = run_adding(store, 0, retry_failed=True)
    again = karat.aggregate(karat.evaluate(run, ["exact_match"]), ["accuracy"])
    assert again.id != first.id
    assert again.estimates.get(evaluator="exact_match", aggregator="accuracy").n == len(DATA)


def test_runs_of_several_datasets_have_denominators_of_their_own(store):
    def made(count, name):
        data = karat.Dataset.from_examples(
            [{"id": f"{name}{i}", "input": i, "expected": i} for i in range(count)], name=name
        )
        return karat.evaluate(karat.run(same, data, store=store), [equal])

    few, many = made(4, "few"), made(9, "many")
    aggregation = karat.aggregate([few, many], ["accuracy"])
    found = {e.run: (e.n, e.of) for e in aggregation.estimates}
    assert found == {few.header.runs[0]: (4, 4), many.header.runs[0]: (9, 9)}
    assert (aggregation.status, aggregation.counts.total) == ("success", 13)


def test_the_latest_label_counts_in_any_order_of_evaluations(store):
    judge = Closer()
    judge.broken = {"e1", "e2"}
    first = karat.evaluate([run_adding(store, 0), run_adding(store, 1)], [judge])
    judge.broken = set()
    second = karat.evaluate(run_adding(store, 2), [judge], amend=first)
    for given in ([first, second], [second, first]):
        aggregation = karat.aggregate(given, ["win_rate"], new=True)
        assert {(e.n, e.of) for e in aggregation.estimates if e.run} == {(12, 12)}
        assert (aggregation.counts.total, aggregation.counts.failed) == (18, 0), "each item once"
        assert aggregation.status == "success"


def test_one_key_for_two_different_evaluators_is_refused(store, refuses):
    run = run_adding(store, 0)
    strict = karat.evaluate(run, ["exact_match"])
    lenient = karat.evaluate(run, [{"name": "exact_match", "params": {"case_sensitive": False}}])
    with refuses(RequestError):
        karat.aggregate([strict, lenient], ["accuracy"])


class StopsAfter(Closer):
    """Stops the stage, as a lost store would, after so many comparisons."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def compare(self, example, first, second):
        if len(self.calls) >= self.count:
            raise StoreError("the disk is gone")
        return super().compare(example, first, second)


def test_comparisons_that_are_pending_are_in_the_denominator(store):
    runs = [run_adding(store, amount) for amount in (0, 1)]
    with pytest.raises(StoreError):
        karat.evaluate(runs, [StopsAfter(2)], concurrency=1)
    aggregation = karat.aggregate(store.evaluations.get("latest"), ["win_rate"])
    winner = aggregation.estimates.get(evaluator="closer", aggregator="win_rate", run=runs[0].id)
    assert (winner.value, winner.n, winner.of) == (1.0, 2, 6)
    assert winner.lowest == pytest.approx(2 / 6)


def test_counts_are_of_stored_items_after_a_killed_evaluation(store):
    evaluation = karat.evaluate(run_adding(store, 0), [equal])
    begun = msgspec.structs.replace(
        evaluation.header, counts=Counts(pending=6), status="running", finished=None
    )
    store.evaluations.save(evaluation.number, begun)
    aggregation = karat.aggregate(evaluation.id, ["accuracy"], store=store)
    assert (aggregation.counts.ok, aggregation.counts.pending, aggregation.counts.total) == (6, 0, 6)


def test_an_evaluation_that_grew_without_being_finished_is_folded_again(store):
    runs = [run_adding(store, amount) for amount in (0, 1)]
    numbers = []
    for count in (2, 3):
        with pytest.raises(StoreError):
            karat.evaluate(runs, [StopsAfter(count)], concurrency=1)
        aggregation = karat.aggregate(store.evaluations.get("latest"), ["win_rate"])
        numbers.append(aggregation.estimates.get(evaluator="closer", aggregator="win_rate", run=runs[0].id).n)
    assert numbers == [2, 5]


@pytest.mark.parametrize("given", [None, Aggregate([Estimate(float("nan"))])])
def test_an_aggregator_whose_result_cannot_be_stored_is_reported_and_the_others_are_kept(store, given):
    class Odd(Aggregator):
        name = "odd"

        def start(self):
            return None

        def add(self, state, group):
            return None

        def finish(self, state):
            return given

    evaluation = karat.evaluate(run_adding(store, 0), [equal])
    aggregation = karat.aggregate(evaluation, [Odd(), "accuracy"])
    assert [each.label for each in aggregation.header.failures] == ["equal odd"]
    assert aggregation.estimates.get(evaluator="equal", aggregator="accuracy").value == 1.0


def test_confidence_widens_the_interval(store):
    evaluation = karat.evaluate(run_adding(store, 0), [half_right])
    narrow = karat.aggregate(evaluation, ["accuracy"], confidence=0.8).estimates.get(
        evaluator="half_right", aggregator="accuracy"
    )
    wide = karat.aggregate(evaluation, ["accuracy"], confidence=0.99).estimates.get(
        evaluator="half_right", aggregator="accuracy"
    )
    assert wide.low < narrow.low < narrow.high < wide.high
    assert "80 % interval" in karat.aggregate(evaluation, ["accuracy"], confidence=0.8).report()


def test_pending_items_are_in_the_denominator(store):
    from karat.errors import StoreError
    from karat.tasks import FunctionTask

    def stops(number):
        if number >= 3:
            raise StoreError("gone")
        return number

    task = FunctionTask(stops, name="stops")
    with pytest.raises(StoreError):
        karat.run(task, karat.Dataset.from_examples(DATA), store=store, concurrency=1)
    evaluation = karat.evaluate(store.runs.get("latest"), [equal])
    estimate = karat.aggregate(evaluation, ["accuracy"]).estimates.get(
        evaluator="equal", aggregator="accuracy"
    )
    assert (estimate.n, estimate.of, estimate.lowest, estimate.highest) == (3, 6, 0.5, 1.0)


def test_a_metric_that_only_calculates_speaks_over_what_was_judged(store):
    from karat.graph.metrics import BaseAggregatorMetric, aggregator_metric

    @aggregator_metric("share_right")
    class ShareRight(BaseAggregatorMetric):
        def calculate(self, results):
            return {"share": sum(result.correct for result in results) / len(results)}

    evaluation = karat.evaluate(run_adding(store, 0, broken={0, 1}), ["unit:exact_match"])
    estimates = karat.aggregate(evaluation, ["metric:share_right"]).estimates
    (estimate,) = estimates
    assert (estimate.value, estimate.n, estimate.of) == (1.0, 4, 6)
