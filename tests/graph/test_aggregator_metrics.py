"""Aggregator metrics as graph tasks use them: names, parameters, output keys, and the fields beside a number."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import karat
from karat.errors import RequestError
from karat.evaluators import UnitMetricResult
from karat.graph.metrics import (
    AggregatorMetricRegistry,
    BaseAggregatorMetric,
    UnitMetricRegistry,
    aggregator_metric,
)
from karat.graph.metrics._collator import MetricCollatorPostProcessor

get = AggregatorMetricRegistry.get_metric


def results(pairs):
    metric = UnitMetricRegistry.get_metric("exact_match", key="text")
    golden, predicted = zip(*pairs, strict=True)
    return metric.evaluate([{"text": g} for g in golden], [{"text": p} for p in predicted])


def test_accuracy_is_a_plain_float_with_siblings():
    made = get("accuracy", key="text").calculate(results([("a", "a"), ("b", "B"), ("c", "x"), ("d", "d")]))
    assert made["accuracy"] == 0.75
    assert made["accuracy_interval"][0] < 0.75 < made["accuracy_interval"][1]
    assert (made["n"], made["of"]) == (4, 4)


def test_items_without_a_verdict_count_in_the_denominator():
    made = get("accuracy").calculate([{"correct": True}, {"error": "the judge is down"}, None])
    assert (made["accuracy"], made["n"], made["of"]) == (1.0, 1, 3)
    assert made["accuracy_bounds"] == [pytest.approx(1 / 3), 1.0]
    assert get("accuracy").calculate([])["accuracy"] is None


def test_precision_recall_and_f1_have_the_keys_of_the_reports():
    pairs = [("Music", "music"), ("Music", "Art"), ("Art", "Art"), ("Other", "Music")]
    precision = get("precision", predicted_key="text").calculate(results(pairs))
    assert precision["precision_per_class"] == {"Art": 0.5, "Music": 0.5}
    assert (precision["average_precision"], precision["average"]) == (0.5, "seed")
    assert precision["average_precision_interval"][0] <= 0.5 <= precision["average_precision_interval"][1]
    assert precision["macro_precision"] == pytest.approx(1 / 3)
    assert precision["support"] == {"Art": 1, "Music": 2, "Other": 1}
    assert precision["confusion_matrix"] == {
        "labels": ["Art", "Music", "Other"],
        "matrix": [[1, 0, 0], [1, 1, 0], [0, 1, 0]],
    }
    recall = get("recall", golden_key="text").calculate(results(pairs))
    assert recall["recall_per_class"] == {"Art": 1.0, "Music": 0.5, "Other": 0.0}
    assert recall["average_recall"] == 0.5
    f1 = get("f1_score", predicted_key="text", golden_key="text").calculate(results(pairs))
    assert f1["average_f1_score"] == pytest.approx(0.5), (
        "the harmonic mean of the two averages, not of the classes"
    )
    assert f1["macro_f1_score"] == pytest.approx((2 / 3 + 0.5 + 0) / 3)
    assert set(f1) >= {
        "average_f1_score",
        "f1_score_per_class",
        "micro_f1_score",
        "macro_f1_score",
        "weighted_f1_score",
    }


@settings(deadline=None)  # the first call imports what it measures with
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1, max_size=40),
    st.integers(0, 5),
)
def test_the_average_f1_of_a_report_is_that_of_its_average_precision_and_recall(pairs, missing):
    keys = {"predicted_key": "text", "golden_key": "text"}
    given_results = [*results(pairs), *[None] * missing]
    precision, recall, f1 = (get(name, **keys).calculate(given_results) for name in CLASS_METRICS)
    p, r = precision["average_precision"], recall["average_recall"]
    assert f1["average_f1_score"] == pytest.approx(2 * p * r / (p + r) if p + r else 0.0)
    low, high = f1["average_f1_score_interval"]
    assert 0 <= low <= f1["average_f1_score"] <= high <= 1
    assert f1["average"] == "seed"


CLASS_METRICS = ("precision", "recall", "f1_score")


def test_the_seeds_own_average_leaves_out_classes_that_were_not_predicted():
    made = get("precision", predicted_key="text", average="seed").calculate(results([("a", "a"), ("b", "a")]))
    assert made["precision_per_class"] == {"a": 0.5}
    assert made["average_precision"] == 0.5


def test_classes_are_told_apart_as_the_metric_told_values_apart():
    pairs = [(" a", "a"), ("A", "A"), ("a b", "a  b"), ("a\n", "a")]
    golden, predicted = ([{"text": pair[at]} for pair in pairs] for at in (0, 1))

    def recall(**rules):
        metric = UnitMetricRegistry.get_metric("exact_match", key="text", **rules)
        return get("recall", golden_key="text").calculate(metric.evaluate(golden, predicted))

    exact = recall(normalize_whitespace=False)
    assert exact["recall_per_class"] == {" a": 0.0, "A": 1.0, "a b": 0.0, "a\n": 0.0}
    assert exact["average_recall"] == 0.25
    assert recall(case_sensitive=True)["recall_per_class"] == {" a": 1.0, "A": 1.0, "a b": 1.0}
    assert recall()["recall_per_class"] == {"A": 1.0, "a b": 1.0}


def test_dicts_of_an_output_file_are_as_good():
    given = results([("a", "a"), ("b", "a"), ("b", "b")])
    written = [msgspec.json.decode(msgspec.json.encode(each.to_dict())) for each in given]
    for name in ("accuracy", "f1_score"):
        assert get(name).calculate(written) == get(name).calculate(given)


@settings(deadline=None)  # the first call imports what it measures with
@given(st.integers(0, 100), st.integers(1, 40))
def test_a_fold_in_parts_is_the_whole(seed, count):
    rng = random.Random(seed)
    given_results = results([(rng.choice("abc"), rng.choice("abc")) for _ in range(count)])
    for name in ("accuracy", "precision", "recall", "f1_score", "pass_at_k"):
        metric = get(name)
        parts = [metric.start(), metric.start()]
        for result in given_results:
            at = rng.randrange(2)
            parts[at] = metric.add(parts[at], result)
        assert metric.finish(metric.merge(*parts)) == metric.calculate(given_results)


def test_pass_at_k_over_the_attempts_at_a_problem():
    attempts = [UnitMetricResult(i % 3 == 0, "g", "p", {"problem": i // 4}) for i in range(8)]
    made = get("pass@k", k=[1, 2], problem_key="problem").calculate(attempts)
    assert made["pass_at_1"] == made["pass_at_k"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert made["pass_at_2"] == pytest.approx((5 / 6 + 1 / 2) / 2)


def test_without_problems_all_results_are_attempts_at_one():
    attempts = [UnitMetricResult(i < 3, "g", "p") for i in range(5)]
    at = get("pass@k", k=3).calculate([*attempts, None])
    assert [at["pass@1"], at["pass@2"], at["pass@3"]] == [pytest.approx(v) for v in (0.6, 0.9, 1.0)]
    assert at["pass_at_k"] == at["pass@3"]
    assert at["pass@2_bounds"] == [pytest.approx(1 - 3 / 15), pytest.approx(1 - 1 / 15)]
    assert (at["pooled"], at["k"], at["n"], at["of"]) == (True, [1, 2, 3], 5, 6)
    hat = get("pass^k", k=2).calculate(attempts)
    assert (hat["success_rate"], hat["pass^2"]) == (0.6, pytest.approx(3 / 10))
    assert get("pass@k", k=3).calculate(attempts[:2])["pass@3"] is None
    assert get("pass@k", k=1).calculate(attempts)["pass@1"] == 0.6
    with pytest.raises(RequestError, match="problem_key"):  # answers to different problems have no majority
        get("maj@k", k=3)


def tried(step, retry, correct):
    metadata = {"mission_id": "m", "step_id": step, "retry_id": f"retry_{retry}"}
    return {"metadata": metadata} if correct is None else UnitMetricResult(correct, {}, {}, metadata)


def test_step_efficiency_by_tries():
    tries = [
        *(tried(1, 0, True), tried(1, 1, False)),
        *(tried(2, 2, True), tried(2, 0, False), tried(2, 1, False)),
        tried(3, 0, False),
    ]
    made = get("step_efficiency", key="tool", penalty_per_retry=0.25).calculate(tries)
    assert made["step_efficiency"] == pytest.approx((1.0 + 0.5 + 0.0) / 3)
    assert [made[key] for key in ("first_attempt_correct", "retry_correct", "never_correct")] == [1, 1, 1]
    assert (made["avg_retries_when_correct"], made["total_steps"], made["n"]) == (1.0, 3, 3)


def test_a_try_without_a_verdict_is_missing_where_it_could_matter():
    settled = [tried(1, 0, True), tried(1, 1, None)]
    assert get("step_efficiency").calculate(settled)["n"] == 1
    for open_step in ([tried(1, 0, None), tried(1, 1, True)], [tried(1, 0, False), tried(1, 1, None)]):
        made = get("step_efficiency").calculate([*open_step, tried(2, 0, True), None])
        assert (made["step_efficiency"], made["n"], made["of"]) == (1.0, 1, 3)
        assert made["step_efficiency_bounds"] == [pytest.approx(1 / 3), 1.0]


def test_results_without_a_retry_number_are_refused(refuses):
    with refuses(ValueError):
        get("step_efficiency").calculate([UnitMetricResult(True, {}, {}, {"retry_id": "last"})])
    with refuses(ValueError):
        get("step_efficiency").calculate([tried(1, 0, True), UnitMetricResult(True, {}, {})])
    with pytest.raises(RequestError, match="penalty_per_retry is 2"):
        get("step_efficiency", penalty_per_retry=2)


@given(st.data())
def test_tries_merge_in_any_order(data):
    verdicts = st.sampled_from([True, False, None])
    tries = data.draw(st.lists(st.builds(tried, st.integers(1, 3), st.integers(0, 2), verdicts), min_size=1))
    metric = get("step_efficiency")
    cut = data.draw(st.integers(0, len(tries)))
    shuffled = data.draw(st.permutations(tries))
    one, other = metric.start(), metric.start()
    for each in shuffled[:cut]:
        metric.add(one, each)
    for each in shuffled[cut:]:
        metric.add(other, each)
    assert metric.finish(metric.merge(other, one)) == metric.calculate(tries)


def test_a_label_that_is_a_part_of_what_was_judged_may_be_wrong_for_more(refuses):
    def used(golden, predicted, correct):
        return UnitMetricResult(correct, {"tool": golden}, {"tool": predicted})

    uses = [
        *(used("click", "click", True), used("click", "click", False), used("type", "click", False)),
        used("type", "type", True),
    ]
    precision = get("precision", predicted_key="tool").calculate(uses)
    assert precision["precision_per_class"] == {"click": pytest.approx(1 / 3), "type": 1.0}
    assert precision["confusion_matrix"]["matrix"] == [[2, 0], [1, 1]]
    assert precision["micro_precision"] == 0.5
    recall = get("recall", golden_key="tool").calculate(uses)
    assert recall["recall_per_class"] == {"click": 0.5, "type": 0.5}
    assert recall["average_recall_interval"][0] < 0.5 < recall["average_recall_interval"][1]
    with refuses(ValueError):  # where the label is all that there is
        get("precision").calculate([UnitMetricResult(False, "click", "click")])


@pytest.mark.parametrize("name", ["precision", "recall", "f1_score"])
def test_a_typo_in_a_key_of_labels_is_refused(name, refuses):
    judged = results(zip("AABBC", "AABAA", strict=True))
    for keys in (
        {"predicted_key": "txt", "golden_key": "text"},
        {"predicted_key": "text", "golden_key": "txt"},
    ):
        with refuses(ValueError):
            get(name, **keys).calculate(judged)


def test_a_report_says_what_the_bounds_of_an_average_assume():
    state = (metric := get("recall", golden_key="text")).start()
    for each in [*results([("a", "a")]), None]:
        metric.add(state, each)
    found = metric.finish(state)
    assert found["average_recall_bounds_assume"] == found["macro_recall_bounds_assume"]
    assert "weighted_recall_bounds_assume" not in found
    folded = metric.as_aggregator()
    estimates = folded.finish([state, 2, 1]).estimates
    assert [each.metadata for each in estimates if each.name == "average_recall"] == [
        {"bounds_assume": found["average_recall_bounds_assume"]}
    ]


def test_a_metric_of_your_own_needs_only_calculate():
    @aggregator_metric("share_of_short")
    class ShareOfShort(BaseAggregatorMetric):
        def calculate(self, unit_metric_results):
            short = [r for r in unit_metric_results if len(r.predicted["text"]) < self.config.get("than", 3)]
            return {"share_of_short": len(short) / len(unit_metric_results)}

    assert AggregatorMetricRegistry.has_metric("share_of_short")
    metric = get("share_of_short", than=2)
    given_results = results([("a", "a"), ("b", "long")])
    assert metric.calculate(given_results) == {"share_of_short": 0.5}
    state = metric.start()
    for result in given_results:
        state = metric.add(state, result.to_dict())
    assert metric.finish(metric.merge(state, metric.start())) == {"share_of_short": 0.5}


@pytest.mark.parametrize("config", [{"than": 2}, {2: "than"}, "than=2", 2])
def test_the_config_of_a_metric_of_any_class_may_be_anything(config):
    class Short:
        def __init__(self):
            self.config = config

        def calculate(self, results):
            return {"short": len(results)}

    AggregatorMetricRegistry.register(name := f"short_{config}", Short)
    collator = MetricCollatorPostProcessor([{"name": name, "unit_metrics_results": ["r"]}])
    collator.start({"failed_records": 0})
    collator.add({"r": results([("a", "a")])[0].to_dict()})
    [report] = collator.finish()
    assert [each["short"] for each in report["results"].values()] == [1]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_cannot_be_stored_is_a_failure_and_not_left_out(value, refuses):
    class Endless(BaseAggregatorMetric):
        name = "endless"

        def calculate(self, results):
            return {"share": value, "other": 0.5}

    aggregator = Endless().as_aggregator()
    with refuses(ValueError):
        aggregator.finish(aggregator.start())


def test_names_and_parameters_that_are_wrong_name_the_nearest(refuses):
    assert set(AggregatorMetricRegistry.list_metrics()) >= {
        "accuracy",
        "precision",
        "recall",
        "f1_score",
        "pass_at_k",
    }
    with refuses(RequestError):
        get("acuracy")
    with refuses(RequestError):
        get("precision", predicted_keys="text")
    with refuses(RequestError):
        get("f1_score", predicted_key=["text"])
    with pytest.raises(RequestError, match="no calculate"):
        BaseAggregatorMetric().calculate([])


@pytest.mark.parametrize("k", [None, 1.5, True, 10**9, [2, True], {}])
def test_a_k_that_is_no_number_of_attempts_is_refused(k, refuses):
    with refuses(RequestError):
        get("pass@k", k=k)


def test_step_efficiency_reads_steps_where_unit_metrics_tell_them(refuses):
    walks = [
        UnitMetricResult(True, {"optimal_steps": 2}, {"steps": ["tap", "type", "tap", "tap"]}),
        UnitMetricResult(True, {}, {}, {"optimal_steps": 3, "steps": 3}),
        UnitMetricResult(False, {"optimal_steps": 1}, {"steps": 1}),
        None,
    ]
    made = get("step_efficiency").calculate(walks)
    assert made["step_efficiency"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert (made["n"], made["of"]) == (3, 4)
    assert made["step_efficiency_bounds"] == [pytest.approx(1.5 / 4), pytest.approx(2.5 / 4)]
    assert made["step_efficiency_passed"] == 0.75
    assert made["step_efficiency_passed_n"] == 2
    with refuses(ValueError):
        get("step_efficiency", predicted_key="moves").calculate(walks[:1])


def test_every_k_has_its_own_denominator():
    attempts = [UnitMetricResult(True, "g", "p", {"problem": i}) for i in (1, 1, 2)]
    made = get("pass_at_k", k=[1, 2], problem_key="problem").calculate(attempts)
    assert (made["pass_at_1_n"], made["pass_at_1_of"]) == (2, 2)
    assert (made["pass_at_2_n"], made["pass_at_2_of"]) == (1, 2)


def test_missing_items_bound_every_class_and_average():
    made = get("recall").calculate([*results([("a", "a"), ("b", "a"), ("b", "b")]), None])
    assert (made["n"], made["of"]) == (3, 4)
    assert made["recall_per_class_bounds"] == {
        "a": [0.5, 1.0],
        "b": [pytest.approx(1 / 3), pytest.approx(2 / 3)],
    }
    for average in ("average", "macro", "micro", "weighted"):
        low, high = made[f"{average}_recall_bounds"]
        assert low < made[f"{average}_recall"] < high


@given(st.permutations([("a", True)] * 7 + [("b", False)] * 6 + [("c", False)] * 3), st.integers(0, 16))
def test_a_majority_among_many_attempts_is_the_same_in_any_order(votes, cut):
    metric = get("majority_at_k", k=7, problem_key="problem")
    given_results = [UnitMetricResult(right, "a", answer, {"problem": 1}) for answer, right in votes]
    parts = [metric.start(), metric.start()]
    for place, result in enumerate(given_results):
        parts[place < cut] = metric.add(parts[place < cut], result)
    whole = metric.calculate(sorted(given_results, key=lambda each: each.predicted))
    assert metric.finish(metric.merge(*parts)) == whole
    assert 0.5 < whole["majority_at_k"] < 0.7


def test_a_metric_of_any_class_aggregates_what_is_stored():
    class Share:
        def calculate(self, results):
            return {"share": sum(each.correct for each in results) / len(results)}

    class Count:
        def start(self):
            return 0

        def add(self, state, result):
            return state + (result is not None)

        def merge(self, one, other):
            return one + other

        def finish(self, state):
            return {"count": state}

        def calculate(self, results):
            raise AssertionError("it folds")

    AggregatorMetricRegistry.register("share_of_any", Share)
    AggregatorMetricRegistry.register("count_of_any", Count)
    examples = [{"id": str(at), "input": "a", "expected": "ab"[at % 2]} for at in range(4)]
    data = karat.Dataset.from_examples(examples, name="letters")
    run = karat.run(lambda text: text, data, store="memory://", progress=False)
    evaluation = karat.evaluate(run, ["exact_match"], progress=False)
    aggregation = karat.aggregate(evaluation, ["metric:share_of_any", "metric:count_of_any"])
    assert aggregation.status == "success"
    assert [each.value for each in aggregation.estimates] == [0.5, 4.0]
