"""Gates against a fixed threshold: by the interval, with missing items counted, in the better direction."""

from __future__ import annotations

import math

import pytest

import karat
from karat.analysis.gates import EXIT_CODES, Limit, _judge_threshold, read_threshold, worst
from karat.errors import RequestError, UnknownName
from karat.stats import mean_interval, proportion


def aggregated(scores, *aggregators, evaluators=("exact_match",), attempts=1):
    """An aggregation of as many examples as scores: 1 is right, 0 is wrong, None fails."""

    def answer(number: int) -> int:
        if scores[number] is None:
            raise ValueError("no answer")
        return number if scores[number] else -1

    data = [
        {"id": str(i), "input": i, "expected": i, "metadata": {"half": i % 2}} for i in range(len(scores))
    ]
    run = karat.run(answer, data, store="memory://", progress=False, attempts=attempts)
    return karat.aggregate(karat.evaluate(run, list(evaluators), progress=False), list(aggregators) or None)


@pytest.mark.parametrize(
    ("right", "of", "threshold", "verdict"),
    [
        (190, 200, 0.8, "holds"),
        (100, 200, 0.8, "fails"),
        (165, 200, 0.8, "undecided"),
        (10, 10, 0.9, "undecided"),
    ],
)
def test_the_interval_decides(right, of, threshold, verdict):
    [gate] = karat.gate(aggregated([1] * right + [0] * (of - right)), f"accuracy:{threshold}")
    interval = proportion([1] * right + [0] * (of - right))
    expected = "holds" if interval.low >= threshold else "fails" if interval.high < threshold else "undecided"
    assert gate.verdict == verdict == expected
    assert (gate.metric, gate.threshold, gate.value) == ("exact_match accuracy", threshold, right / of)


def test_a_gate_exactly_at_the_limit_holds():
    low = proportion([1] * 180 + [0] * 20).low
    [gate] = karat.gate(aggregated([1] * 180 + [0] * 20), f"accuracy:{low!r}")
    assert gate.verdict == "holds"


@pytest.mark.parametrize("name", ["accuracy", "pass_at_k", "step_efficiency"])
def test_an_aggregator_with_a_threshold_that_no_score_can_have_is_refused(name, refuses):
    with refuses(RequestError):
        aggregated([1, 0], {"name": name, "params": {"threshold": 80}})


def test_missing_items_leave_a_gate_undecided():
    complete = [1] * 195
    assert karat.gate(aggregated(complete), "accuracy:0.95")[0].verdict == "holds"
    [gate] = karat.gate(aggregated([*complete, *[None] * 20]), "accuracy:0.95")
    assert gate.verdict == "undecided"
    assert gate.examples_needed is None
    assert "20" in gate.reason
    assert karat.gate(aggregated([*complete, None]), "accuracy:0.95")[0].verdict == "holds", "whatever it is"


def test_missing_items_and_chance_count_together():
    """If all missing items were wrong, 0.855 of all would be right: a value as low as 0.82 would not be surprising."""
    scores = [1] * 171 + [0] * 9 + [None] * 20
    [estimate] = aggregated(scores).estimates
    assert estimate.low > 0.9
    assert estimate.lowest == pytest.approx(0.855)
    assert karat.gate(aggregated(scores), "accuracy:0.84")[0].verdict == "undecided"
    assert karat.gate(aggregated(scores), "accuracy:0.81")[0].verdict == "holds"


def test_a_gate_does_not_fail_where_missing_items_could_save_it():
    scores = [1] * 70 + [0] * 30
    assert karat.gate(aggregated(scores), "accuracy:0.85")[0].verdict == "fails"
    [gate] = karat.gate(aggregated([*scores, *[None] * 100]), "accuracy:0.85")
    assert (gate.verdict, "up to" in gate.reason) == ("undecided", True)
    assert karat.gate(aggregated([*scores, *[None] * 5]), "accuracy:0.85")[0].verdict == "fails"


def test_pending_items_are_missing(tmp_path):
    """A run that stopped early does not pass on what it has."""
    store = karat.open_store(f"sqlite:///{tmp_path}/k.db")

    def answer(number: int) -> int:
        if number == 150:
            raise KeyboardInterrupt
        return number

    data = karat.Dataset.from_examples(
        [{"id": str(i), "input": i, "expected": i} for i in range(400)], name="n"
    )
    with pytest.raises(KeyboardInterrupt):
        karat.run(answer, data, store=store, progress=False, concurrency=1)
    evaluation = karat.evaluate(store.runs.get("latest"), ["exact_match"], progress=False)
    [gate] = karat.gate(karat.aggregate(evaluation), "accuracy:0.9")
    assert gate.verdict == "undecided"


def test_the_suggested_number_of_examples_decides_the_gate():
    """With as many examples and the same value, the gate is decided, and with half of them it is not."""
    scores = [1, 1, 1, 1, 0] * 8
    [gate] = karat.gate(aggregated(scores), "accuracy:0.7")
    assert gate.verdict == "undecided"
    needed = gate.examples_needed
    assert needed is not None
    enough = math.ceil(needed / 5)
    assert karat.gate(aggregated([1, 1, 1, 1, 0] * enough), "accuracy:0.7")[0].verdict == "holds"
    assert karat.gate(aggregated([1, 1, 1, 1, 0] * (needed // 10)), "accuracy:0.7")[0].verdict == "undecided"


@pytest.mark.parametrize("metric", ["accuracy", "mean"])
@pytest.mark.parametrize(("n", "threshold"), [(5, 0.6), (15, 0.917), (10, 0.95), (40, 0.99)])
def test_where_all_scores_are_equal_the_number_of_examples_is_exact(metric, n, threshold):
    """It said 40 for 15 ones against 0.917, where 43 decide: the width shrinks more slowly than 1/n at first."""

    def gate(count):
        interval = proportion if metric == "accuracy" else mean_interval
        estimate = interval([1.0] * count).about(evaluator="e", aggregator=metric, run="r")
        return _judge_threshold(Limit(metric, threshold), estimate, "higher")

    needed = gate(n).examples_needed
    assert gate(needed).verdict == "holds"
    assert gate(needed - (1 if needed < 100 else 10)).verdict == "undecided"


class Mistakes(karat.Evaluator):
    """How many mistakes an answer has: fewer are better."""

    name = "mistakes"
    version = "1"
    bounds = (0.0, 10.0)
    higher_is_better = False

    def evaluate(self, *, outputs, reference_outputs=None, inputs=None, **context):
        return karat.Result(self.key, 0.0 if outputs == reference_outputs else 4.0)


def test_where_lower_is_better_the_threshold_is_the_most_that_may_be():
    few = aggregated([1] * 195 + [0] * 5, evaluators=[Mistakes()])
    assert [gate.verdict for gate in karat.gate(few, "mistakes:1", "mistakes mean:0.01")] == [
        "holds",
        "fails",
    ]
    [gate] = karat.gate(few, "mean:0.12")
    assert (gate.verdict, gate.better) == ("undecided", "lower")
    assert gate.examples_needed is not None
    missing = aggregated([1] * 195 + [None] * 40, evaluators=[Mistakes()])
    assert karat.gate(missing, "mistakes:1")[0].verdict == "undecided", "the missing ones could have 10 each"


def test_each_run_has_a_verdict():
    store = karat.open_store("memory://")
    data = karat.Dataset.from_examples(
        [{"id": str(i), "input": i, "expected": i} for i in range(100)], name="n"
    )

    def right(number: int) -> int:
        return number

    def wrong(number: int) -> int:
        return -number

    runs = [karat.run(task, data, store=store, progress=False) for task in (right, wrong)]
    gates = karat.gate(karat.aggregate(karat.evaluate(runs, ["exact_match"], progress=False)), "accuracy:0.5")
    assert [(gate.run, gate.verdict) for gate in gates] == [(runs[0].id, "holds"), (runs[1].id, "fails")]
    assert worst(gates) == "fails"


def test_metrics_are_named_as_in_the_report_and_groups_are_left_out():
    made = aggregated(
        [1] * 50,
        {"name": "accuracy", "params": {"by": "half"}},
        "mean",
        {"name": "pass_at_k", "params": {"k": [1, 2]}},
        attempts=2,
    )
    labels = ["exact_match accuracy", "exact_match pass_at_k k=2", "mean"]
    assert [gate.verdict for gate in karat.gate(made, *(f"{label}:0.5" for label in labels))] == ["holds"] * 3
    with pytest.raises(RequestError, match="several"):
        karat.gate(made, "exact_match:0.5")
    with pytest.raises(UnknownName, match="'accuracy'"):
        karat.gate(made, "acuracy:0.5")


@pytest.mark.parametrize(
    "text", ["accuracy", "accuracy:", ":0.5", "accuracy:80%", "accuracy:nan", "accuracy:x", ""]
)
def test_a_value_that_is_not_a_threshold_is_refused(text):
    with pytest.raises(RequestError):
        read_threshold(text)


def test_a_gate_needs_an_aggregation():
    evaluation = aggregated([1]).evaluations[0]
    with pytest.raises(RequestError):
        karat.gate(evaluation, "accuracy:0.5")  # type: ignore[arg-type]


def test_exit_codes():
    assert EXIT_CODES == {None: 0, "holds": 0, "fails": 1, "undecided": 4}
