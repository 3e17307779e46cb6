"""Each aggregator returns its documented value, with an interval and a denominator."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.proportion import proportion_confint

import karat
from karat.aggregators._base import resolve_aggregator
from karat.analysis.gates import limits_with_missing
from karat.errors import RequestError
from karat.stats import share
from karat.stats._means import few_clusters_note
from tests.aggregators.conftest import folded, item


def test_accuracy_is_wilsons_of_statsmodels(make):
    made = make.folded("accuracy", [[make.item(float(i < 84))] for i in range(100)]).get()
    assert (made.low, made.high) == pytest.approx(proportion_confint(84, 100, method="wilson"), abs=1e-12)
    assert (made.value, made.n, made.of) == (0.84, 100, 100)


def test_accuracy_counts_from_the_threshold_up_and_says_so(make):
    made = make.folded("accuracy", [[make.item(s)] for s in (0.2, 0.7, 0.8, 1.0)], threshold=0.75).get()
    assert made.value == 0.5
    assert made.metadata["threshold"] == 0.75


def test_the_mean_of_scores_beyond_their_range_is_scipys_t_interval(make):
    for scores, skewed in (([0.1, 0.4, 0.8, 1.2, 1.6, 1.9], False), ([0.1, 0.4, 0.35, 0.8, 1.95, 0.5], True)):
        made = make.folded("mean", [[make.item(s)] for s in scores]).get()
        low, high = scipy_stats.t.interval(0.95, 5, sum(scores) / 6, scipy_stats.sem(scores))
        assert made.low == pytest.approx(low)
        assert made.high > high + 0.1 if skewed else made.high == pytest.approx(high)


def test_failed_items_bound_the_number(make):
    rows = [[make.item(1.0)]] * 3 + [[make.item(failed=True)]]
    made = make.folded("accuracy", rows).get()
    assert (made.n, made.of, made.lowest, made.highest) == (3, 4, 0.75, 1.0)


def test_examples_of_a_conversation_are_a_cluster(make, refuses):
    rows = [({"conversation": i // 5}, [make.item(float(i // 5 % 2))]) for i in range(50)]
    plain = make.folded("accuracy", rows).get()
    clustered = make.folded("accuracy", rows, cluster="conversation").get()
    assert clustered.metadata["clusters"] == 10
    assert clustered.metadata["note"] == few_clusters_note(10)
    assert "note" not in plain.metadata
    assert clustered.metadata["design_effect"] == pytest.approx(5.44, abs=0.1)
    assert clustered.high - clustered.low > 2 * (plain.high - plain.low)
    with refuses(ValueError):
        make.folded("accuracy", rows, cluster="conversatoin")


@pytest.mark.parametrize(
    "name", ["accuracy", "mean", "count_by", "quantiles", "pass_at_k", "precision", "win_rate"]
)
@pytest.mark.parametrize("confidence", [95, 0, "high", None])
def test_a_level_of_confidence_is_checked_before_anything_runs(name, confidence):
    with pytest.raises(RequestError, match="confidence"):
        resolve_aggregator({"name": name, "params": {"confidence": confidence}})


def test_any_aggregator_by_a_metadata_field(make, refuses):
    rows = [
        ({"topic": "Music" if i % 2 else "Art", "deep": {"level": 1}}, [make.item(float(i % 4 == 1))])
        for i in range(20)
    ]
    made = make.folded("accuracy", rows, by="topic")
    assert made.get().n == 20
    music = made.get(group={"topic": "Music"})
    assert (music.value, music.n) == (0.5, 10)
    assert made.get(group={"topic": "Art"}).value == 0.0
    assert make.folded("mean", rows, by=["topic", "deep.level"]).get(group={"deep.level": "1"}).n == 20
    with refuses(ValueError):
        make.folded("accuracy", rows, by="topci")


def test_examples_without_the_field_are_a_group_of_their_own(make):
    rows = [({"topic": "Art"}, [make.item(1.0)]), ({}, [make.item(0.0)])]
    made = make.folded("accuracy", rows, by="topic")
    assert made.get(group={"topic": "(none)"}).value == 0.0


def test_an_example_with_a_list_belongs_to_the_group_of_each_value(make):
    rows = [({"tags": ["a", "b", "a"]}, [make.item(1.0)]), ({"tags": ["b"]}, [make.item(0.0)])]
    made = make.folded("accuracy", [*rows, ({"tags": []}, [make.item(1.0)])], by="tags")
    found = {each.group["tags"]: (each.value, each.n) for each in made.estimates if each.group}
    assert found == {"a": (1.0, 1), "b": (0.5, 2), "(none)": (1.0, 1)}
    assert made.get().n == 3


@pytest.mark.parametrize("name", ["mean", "accuracy", "step_efficiency"])
def test_a_group_without_a_number_leaves_the_others_theirs(make, name):
    scored = make.item(1.0, steps=2, optimal_steps=2)
    rows = [
        ({"topic": "Art"}, [scored]),
        ({"topic": "Music"}, [make.item(value="good"), make.item(failed=True)]),
    ]
    made = make.folded(name, rows, by="topic")
    assert (made.get().value, made.get().n, made.get().of) == (1.0, 1, 3)
    assert made.get(group={"topic": "Art"}).value == 1.0
    music = made.get(group={"topic": "Music"})
    assert (music.value, music.low, music.high, music.n, music.of) == (None, None, None, 0, 2)
    assert "no " in music.metadata["note"]


def test_a_field_with_too_many_values_is_refused(make, refuses):
    with refuses(ValueError):
        make.folded("accuracy", [({"id": i}, [make.item(1.0)]) for i in range(1001)], by="id")


def test_rate_is_the_share_of_a_value(make):
    rows = [[make.item(value=value)] for value in ("yes", "no", "unsure", None)]
    assert make.folded("rate", rows, values=["yes", "unsure"]).get().value == 0.5
    assert (
        make.folded("rate", [[make.item(1.0, value=True)], [make.item(0.0, value=False)]]).get().value == 0.5
    )
    assert make.folded("rate", [[make.item(tone="warm")]], values="warm", field="tone").get().value == 1.0


def test_count_by_counts_every_value_with_its_share(make):
    rows = [[make.item(value=v, attempt=a) for a in range(2)] for v in ("yes", "yes", "no")] + [
        [make.item(failed=True)]
    ]
    made = make.folded("count_by", rows)
    assert made.tables[0].value == [{"value": "yes", "count": 4}, {"value": "no", "count": 2}]
    share = made.get(group={"value": "yes"})
    assert (share.value, share.n, share.of, share.metadata["clusters"]) == (pytest.approx(4 / 6), 6, 7, 3)
    same = make.folded("rate", rows, values="yes").get()
    assert (share.low, share.high) == (same.low, same.high)
    by_document = [({"d": 1}, row) for row in rows[:2]] + [({"d": 2}, rows[2])]
    one, other = (make.folded("count_by", by_document, cluster="d").get(group={"value": "no"}),
                  make.folded("rate", by_document, values="no", cluster="d").get())  # fmt: skip
    assert (one.value, one.low, one.high) == (other.value, other.low, other.high)


def test_quantiles_and_their_limits_are_order_statistics(make):
    made = make.folded("quantiles", [[make.item(i / 100)] for i in range(1, 101)])
    assert made.get("q50").value == 0.5
    assert made.get("q50").low == pytest.approx(0.41, abs=0.011)
    assert made.get("q50").high == pytest.approx(0.60, abs=0.011)
    assert (made.get("q5").value, made.get("q95").value) == (0.05, 0.95)


def test_a_quantile_has_no_limit_where_there_are_too_few_scores(make):
    made = make.folded("quantiles", [[make.item(i / 20)] for i in range(1, 21)], probabilities=[0.95]).get(
        "q95"
    )
    assert (made.low, made.high) == (0.85, None)
    assert "upper" in made.metadata["reason"]


@given(
    st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]), min_size=1, max_size=12),
    st.lists(st.sampled_from([0.0, 0.3, 1.0]), max_size=8),
    st.sampled_from([0.0, 0.05, 0.25, 0.5, 0.9, 1.0]),
)
def test_quantiles_allow_for_missing_scores(known, missing, p):
    """For any missing scores, the quantile of all scores is within the bounds, and reaches them."""

    def quantile(scores):
        return folded("quantiles", [[item(score)] for score in scores], probabilities=[p]).estimates[0]

    rows = [[item(score)] for score in known] + [[item(failed=True)] for _ in missing]
    made = folded("quantiles", rows, probabilities=[p]).estimates[0]
    assert (made.n, made.of) == (len(known), len(known) + len(missing))
    if not missing:
        assert (made.lowest, made.highest) == (None, None)
        return
    assert made.lowest <= quantile(known + missing).value <= made.highest
    assert made.lowest == quantile(known + [0.0] * len(missing)).value
    assert made.highest == quantile(known + [1.0] * len(missing)).value
    graded = folded("quantiles", [[item(5.0)], *rows], probabilities=[p]).estimates[0]
    assert (graded.lowest, graded.highest) == (None, None)  # a missing score could be any


def test_many_different_scores_are_rounded_and_it_is_reported(make, monkeypatch):
    monkeypatch.setattr("karat.aggregators._distributions.MOST_DISTINCT", 100)
    made = make.folded("quantiles", [[make.item(i / 1000)] for i in range(1001)]).get("q50")
    assert made.value == pytest.approx(0.5, rel=1 / 4096)
    assert made.metadata["rounded"]


def test_a_histogram_counts_values_outside_its_range(make):
    table = (
        make.folded("histogram", [[make.item(s)] for s in (-1.0, 0.0, 0.1, 0.5, 1.0, 3.0)], bins=2)
        .tables[0]
        .value
    )
    assert [row["count"] for row in table["bins"]] == [2, 2]
    assert (table["below"], table["above"], table["n"]) == (1, 1, 6)
    with pytest.raises(RequestError, match="increasing"):
        make.folded("histogram", [], edges=[1, 0])


def test_a_rare_bin_has_the_limits_of_a_rare_share(make):
    scores = [0.1] * 28 + [0.9] * 2
    table = make.folded("histogram", [[make.item(s)] for s in scores], bins=4).tables[0].value
    for row in table["bins"]:
        expected = share(row["count"], 30)
        assert row["share_interval"] == pytest.approx([expected.low, expected.high])


@pytest.mark.parametrize(("name", "wins"), [("pass_at_k", any), ("pass_hat_k", all)])
def test_pass_at_k_is_the_mean_over_all_choices_of_k_attempts(make, name, wins):
    problems = [[1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 1, 0, 0]]
    rows = [[make.item(float(x), attempt=a) for a, x in enumerate(each)] for each in problems]
    made = make.folded(name, rows, k=[1, 2, 5])
    for k in (1, 2, 5):
        each = [sum(wins(c) for c in combinations(p, k)) / len(list(combinations(p, k))) for p in problems]
        assert made.get(f"k={k}").value == pytest.approx(sum(each) / 4)
    assert (made.get("k=2").n, made.get("k=2").of) == (4, 4)


def test_units_are_problems_of_their_own(make):
    rows = [[make.item(1.0, unit="q1"), make.item(0.0, unit="q2")]]
    made = make.folded("pass_at_k", rows).get()
    assert (made.value, made.n) == (0.5, 2)


def test_attempts_that_failed_bound_pass_at_k(make):
    rows = [[make.item(0.0), make.item(0.0, attempt=2), make.item(attempt=3, failed=True)]]
    made = make.folded("pass_at_k", rows, k=2).get()
    assert (made.value, made.lowest, made.highest) == (0.0, 0.0, pytest.approx(2 / 3))
    assert (made.n, made.of, made.missing) == (1, 1, 1)
    few = make.folded("pass_at_k", rows, k=3).get()
    assert (few.value, few.n, few.of, few.lowest, few.highest) == (None, 0, 1, 0.0, 1.0)


@pytest.mark.parametrize("cluster", [None, "document"])
def test_the_limits_allow_for_missing_attempts_as_if_they_all_failed_or_passed(make, cluster):
    rng = random.Random(3)
    drawn = [[rng.choice([0.0, 1.0, None]) for _ in range(4)] for _ in range(30)]

    def folded(fill):
        rows = []
        for place, problem in enumerate(drawn):
            scores = [fill if x is None else x for x in problem]
            items = [make.item(x or 0.0, attempt=a, failed=x is None) for a, x in enumerate(scores, 1)]
            rows.append(({"document": place // 2}, items))
        return make.folded("pass_hat_k", rows, k=2, cluster=cluster).get()

    found, worst, best = folded(None), folded(0.0), folded(1.0)
    assert (found.lowest, found.highest) == (pytest.approx(worst.value), pytest.approx(best.value))
    assert limits_with_missing(found) == pytest.approx((worst.low, best.high))
    assert found.missing == sum(x is None for problem in drawn for x in problem)
    assert (worst.missing, best.missing) == (0, 0)


def test_the_majority_votes_for_answers(make):
    def attempts(*answers):
        return [make.item(float(x == "a"), attempt=i, golden="a", predicted=x) for i, x in enumerate(answers)]

    # Two of five are right, and the three wrong ones disagree.
    assert make.folded("majority_at_k", [attempts("a", "a", "b", "c", "d")], k=5).get().value == 1.0
    assert make.folded("majority_at_k", [attempts("a", "b")], k=2).get().value == 0.5
    silent = [[make.item(float(x), attempt=i) for i, x in enumerate((1, 1, 0, 0, 0))]]
    assert make.folded("majority_at_k", silent, k=5).get().value == 0.0


def test_step_efficiency_is_weighted_by_success(make, refuses):
    rows = [
        ({"optimal_steps": 2}, [make.item(1.0, steps=4)]),
        ({"optimal_steps": 2}, [make.item(1.0, steps=[1, 2])]),
        ({"optimal_steps": 2}, [make.item(0.0, steps=2)]),
    ]
    made = make.folded("step_efficiency", rows)
    assert made.get().value == pytest.approx((0.5 + 1 + 0) / 3)
    assert made.get("passed").value == 0.75
    with refuses(ValueError):
        make.folded("step_efficiency", [[make.item(1.0)]])


def test_in_a_stage_over_stored_results(tmp_path):
    data = [
        {"id": str(i), "input": i, "expected": "ab"[i % 2], "metadata": {"topic": "xy"[i % 3 == 0]}}
        for i in range(12)
    ]

    def answer(number):
        if number == 5:
            raise ValueError("broken")
        return "a"

    def label(outputs, expected):
        same = outputs == expected
        return karat.Result("label", float(same), same, metadata={"golden": expected, "predicted": outputs})

    with karat.open_store(tmp_path / "karat.db") as store:
        run = karat.run(answer, karat.Dataset.from_examples(data, name="d"), store=store, progress=False)
        evaluation = karat.evaluate(run, [label], store=store)
        made = karat.aggregate(evaluation, [{"name": "f1_score", "params": {"by": "topic"}}, "metric:recall"])
        assert made.header.failures == []
        assert made.estimates.get(aggregator="f1_score").of == 12
        assert made.estimates.get(aggregator="f1_score", group={"topic": "x"}).n == 7
        assert made.estimates.get(aggregator="metric:recall", name="average_recall").value == pytest.approx(
            0.5
        )
        assert {table.name: table.value for table in made.tables}["confusion_matrix"]["labels"] == ["a", "b"]


def test_every_aggregator_and_metric_is_documented():
    from pathlib import Path

    from karat.aggregators import aggregators
    from karat.graph.metrics import AggregatorMetricRegistry

    page = (Path(__file__).parents[2] / "docs" / "aggregators.md").read_text(encoding="utf-8")
    own = [
        name
        for name in AggregatorMetricRegistry.list_metrics()
        if AggregatorMetricRegistry.get_metric_class(name).__module__.startswith("karat.")
    ]
    for name in (*aggregators.list(), *own):
        assert f"`{name}`" in page, name


@pytest.mark.parametrize("by", [3, {"topic": 1}, ["topic", 3]])
def test_a_grouping_by_no_field_is_refused(refuses, by):
    with refuses(RequestError):
        resolve_aggregator({"name": "mean", "params": {"by": by}})


def test_wins_are_better_when_higher_in_either_direction() -> None:
    """To win is to be better, also where a lower score is: win rates, ratings and the share of runs beaten."""

    class Shortest(karat.Evaluator):
        name = "shortest"
        higher_is_better = False

        def evaluate_runs(self, example: karat.Example, outputs: Sequence[Any]) -> Any:
            return {each.run: float(len(each.value)) for each in outputs}

    class Order(Shortest):
        name = "order"

        def evaluate_runs(self, example: karat.Example, outputs: Sequence[Any]) -> Any:
            return [each.run for each in sorted(outputs, key=lambda each: len(each.value))]

    def long(text: str) -> str:
        return text * 3

    def short(text: str) -> str:
        return text

    store = karat.open_store("memory://")
    data = [{"id": str(n), "input": "word"} for n in range(30)]
    runs = [karat.run(task, data, store=store) for task in (long, short)]
    evaluation = karat.evaluate(runs, [Shortest(), Order()], store=store)
    made = karat.aggregate(evaluation, ["win_rate", "ranking", "mean"])
    for evaluator, aggregator in [("shortest", "win_rate"), ("order", "win_rate"), ("order", "mean")]:
        verdicts = {each.run: each.verdict for each in karat.gate(made, f"{evaluator} {aggregator}:0.5")}
        assert verdicts == {runs[0].id: "fails", runs[1].id: "holds"}, (evaluator, aggregator)
    rating = made.estimates.get(evaluator="shortest", aggregator="ranking", name="", run=runs[1].id)
    assert rating.better({"shortest"}) == "higher"
    mean = made.estimates.get(evaluator="shortest", aggregator="mean", run=runs[1].id)
    assert mean.better({"shortest"}) == "lower", "a mean of lengths"


def test_rounding_errors_tie() -> None:
    from karat.evaluators import ByMetric

    class Given(karat.Evaluator):
        name = "given"

        def evaluate(self, *, outputs: Any, **more: Any) -> karat.Result:
            return karat.Result(self.key, float(outputs))

    class Together(karat.Evaluator):
        name = "together"

        def evaluate_runs(self, example: karat.Example, outputs: Sequence[Any]) -> Any:
            return {each.run: float(each.value) for each in outputs}

    def one(number: int) -> float:
        return 0.1 + 0.2

    def two(number: int) -> float:
        return 0.3

    store = karat.open_store("memory://")
    runs = [karat.run(task, [{"id": "a", "input": 1}], store=store) for task in (one, two)]
    made = karat.aggregate(karat.evaluate(runs, [Together(), ByMetric(Given())], store=store), ["win_rate"])
    for evaluator in ("together", "by_given"):
        for run in runs:
            found = made.estimates.get(evaluator=evaluator, aggregator="win_rate", name="", run=run.id)
            assert found.value == 0.5


def test_efficiency_of_what_passed_counts_what_is_missing() -> None:
    def steps(text: str, example: karat.Example) -> str:
        if int(example.id) % 2:
            raise ValueError("no")
        return text

    class Steps(karat.Evaluator):
        name = "steps"

        def evaluate(self, *, outputs: Any, **more: Any) -> karat.Result:
            return karat.Result(self.key, 1.0, metadata={"steps": 2, "optimal_steps": 2})

    data = [{"id": str(n), "input": "a"} for n in range(20)]
    evaluation = karat.evaluate(karat.run(steps, data, store="memory://"), [Steps()])
    made = karat.aggregate(evaluation, ["step_efficiency"])
    for name in ("", "passed"):
        found = made.estimates.get(aggregator="step_efficiency", name=name)
        assert (found.n, found.of, found.lowest) == (10, 20, 0.5 if not name else found.lowest)
        assert found.lowest is not None
        assert found.lowest < 1.0
