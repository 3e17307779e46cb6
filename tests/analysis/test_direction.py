"""Evaluators whose lower scores are better: comparisons, gates, rankings and reports obey the direction."""

from __future__ import annotations

import pytest

import karat
from karat.analysis.comparison import compare
from karat.analysis.ranking import rank
from karat.analysis.summary import summarise
from karat.cli import main
from karat.evaluators import Evaluator
from karat.reporting.marks import direction_of
from karat.reporting.rendering import render
from tests.analysis.conftest import run_at


class Wrong(Evaluator):
    """1 where the output is wrong."""

    name = "wrong"
    version = "1"
    higher_is_better = False

    def evaluate(self, *, outputs, reference_outputs=None, inputs=None, **context):
        return karat.Result(self.key, float(outputs != reference_outputs))


class Mistakes(Wrong):
    """0 to 10 mistakes."""

    name = "mistakes"
    bounds = (0.0, 10.0)

    def evaluate(self, *, outputs, reference_outputs=None, inputs=None, **context):
        return karat.Result(self.key, 7.0 if outputs != reference_outputs else 0.5)


class Distance(Mistakes):
    name = "distance"
    bounds = (0.0, None)  # type: ignore[assignment]  # either handle

    def evaluate(self, *, outputs, reference_outputs=None, inputs=None, **context):
        return karat.Result(self.key, 0.75 if outputs != reference_outputs else 0.5)


class Points(Evaluator):
    """0 to 10 points, of which these outputs get 0 or 1."""

    name = "points"
    version = "1"
    bounds = (0.0, 10.0)

    def evaluate(self, *, outputs, reference_outputs=None, inputs=None, **context):
        return karat.Result(self.key, float(outputs == reference_outputs))


@pytest.fixture
def runs(store):
    made = [run_at(store, 0.9), run_at(store, 0.5)]
    karat.evaluate(made, [Wrong(), Mistakes()], store=store)
    return made


@pytest.mark.parametrize("metric", ["wrong", "mistakes"])
def test_higher_is_worse_where_lower_is_better(runs, metric, says):
    made = compare(runs, metrics=metric, fail_if_worse=f"{metric}:0.05")
    difference = made.differences[0]
    assert difference.compared.difference.value > 0
    assert (difference.compared.wins, difference.compared.losses) == (0, 24)
    assert difference.aggregator == "mean"
    assert made.verdict == "fails"
    says(made.conclusions[0].partition(" [")[0])
    assert {(each.first < each.second) for each in made.worse} == {True}
    assert "↓" in made.report()
    back = compare(runs[1], runs[0], metrics=metric, fail_if_worse=f"{metric}:0.05")
    assert back.verdict == "holds"
    says(back.conclusions[0].partition(" [")[0])
    assert back.worse == []


def test_a_plot_of_differences_has_the_worse_run_on_the_left(runs):
    for order, side in ((runs, -1), (runs[::-1], 1)):
        made = compare(order, metrics="wrong")
        [difference] = made.differences
        assert difference.improvement.value * side > 0
        assert difference.improvement.value == -difference.compared.difference.value
        assert direction_of(difference, made.confidence) == ("worse" if side < 0 else "better")


def test_the_best_run_is_the_one_with_the_lowest_score(runs):
    for order in (runs, runs[::-1]):
        assert {leader.run for leader in compare(order).leaders} == {runs[0].id}


def test_the_lower_score_wins(runs):
    made = rank(runs, metric="wrong")
    assert [place.label for place in made.places] == ["rate=0.9", "rate=0.5"]
    assert made.places[0].wins == 24
    by_metric = {"name": "by_metric", "params": {"metric": Wrong()}}
    assert rank(runs, evaluator=by_metric).places[0].label == "rate=0.9"


def test_declared_bounds_limit_the_effect_of_missing_items(store):
    runs = [run_at(store, 0.9), run_at(store, 0.9, broken=set(range(6)), new=True)]
    karat.evaluate(runs, [Mistakes(), Distance()], store=store)
    made = compare(runs, fail_if_worse=["mistakes:0.5", "distance:0.2"])
    by_key = {each.evaluator: each.compared.difference for each in made.differences}
    # Six of 60 could each be anything from 0 to 10, against what the baseline has there.
    assert by_key["mistakes"].highest == pytest.approx(by_key["mistakes"].lowest + 6 * 10 / 60)
    assert (by_key["distance"].lowest, by_key["distance"].highest) == (None, None)
    assert {gate.verdict for gate in made.gates} == {"undecided"}


def test_an_aggregation_uses_the_bounds_of_the_evaluator(store):
    run = run_at(store, 0.9, broken=set(range(6)))
    evaluation = karat.evaluate(run, [Mistakes(), Distance()], store=store)
    found = karat.aggregate(evaluation, ["mean"], store=store).estimates
    mistakes = found.get(evaluator="mistakes")
    assert mistakes.highest == pytest.approx(mistakes.lowest + 6 * 10 / 60)
    assert found.get(evaluator="distance").highest is None


def test_a_share_of_mistakes_is_not_called_an_accuracy(runs, store):
    evaluation = store.evaluations.list()[-1]
    assert {each.estimate.aggregator for each in summarise(store, [evaluation]).metrics} == {"mean"}
    assert {each.aggregator for each in karat.aggregate(evaluation, store=store).estimates} == {"mean"}


@pytest.mark.parametrize("name", ["accuracy", "pass_at_k", "pass_hat_k", "majority_at_k", "step_efficiency"])
def test_what_passes_is_better_when_more_whatever_the_direction(store, name):
    """The share of passes of a distance is that of the closeness: the same number, with the same verdicts."""

    class Mirrored(Evaluator):
        version = "1"

        def __init__(self, lower):
            self.name = self.key = "distance" if lower else "closeness"
            self.higher_is_better = not lower

        def evaluate(self, *, outputs, reference_outputs=None, **context):
            right = outputs == reference_outputs
            score = float(right) if self.higher_is_better else float(not right)
            return karat.Result(self.key, score, metadata={"steps": 4, "optimal_steps": 2})

    run = run_at(store, 0.9)
    evaluation = karat.evaluate(run, [Mirrored(True), Mirrored(False)], store=store)
    made = karat.aggregate(evaluation, [name])
    lower, higher = (made.estimates.get(evaluator=each, name="") for each in ("distance", "closeness"))
    assert (lower.value, lower.low, lower.high) == (higher.value, higher.low, higher.high)
    assert lower.value == pytest.approx(0.45 if name == "step_efficiency" else 0.9)
    limits = [f"{each} {name}:0.2" for each in ("distance", "closeness")]
    assert [(each.verdict, each.better) for each in karat.gate(made, *limits)] == [("holds", "higher")] * 2


def test_classes_of_an_evaluator_of_errors_are_read_as_they_are(store):
    class Error(Evaluator):
        name, version, higher_is_better = "error", "1", False

        def evaluate(self, *, outputs, reference_outputs=None, **context):
            labels = {"golden": str(reference_outputs), "predicted": str(outputs)}
            return karat.Result(self.key, float(outputs != reference_outputs), metadata=labels)

    run = run_at(store, 0.9)
    made = karat.aggregate(karat.evaluate(run, [Error()], store=store), ["classification"])
    accuracy = made.estimates.get(name="accuracy")
    assert (accuracy.value, accuracy.better({"error"})) == (pytest.approx(0.9), "higher")


def test_the_accuracy_of_a_distance_is_compared_as_passes(runs):
    """`wrong accuracy` of 0.9 and 0.5: the second run is worse, in a difference of passes."""
    made = compare(runs, metrics=["wrong accuracy", "mistakes accuracy"], fail_if_worse="wrong accuracy:0.05")
    for each in made.differences:
        assert (each.aggregator, each.higher_is_better) == ("accuracy", True)
        assert each.compared.difference.value == pytest.approx(-0.4)
        assert (each.compared.first.value, each.compared.losses) == (pytest.approx(0.9), 24)
        assert (each.changed.better, each.changed.worse) == (0, 24)
    assert made.verdict == "fails"
    assert {leader.run for leader in made.leaders} == {runs[0].id}


def test_a_report_shows_the_direction(runs, store):
    summary = summarise(store, runs)
    assert "wrong ↓" in render(summary, "text")
    assert summary.to_dict()["evaluations"][0]["evaluators"][0]["higher_is_better"] is False


def test_a_gate_on_the_command_line_obeys_the_direction(runs, store, tmp_path, capsys):
    url = store.url
    ids = [run.id for run in runs]
    gate = ["--fail-if-worse", "wrong:0.1", "--store", url]
    assert main(["compare", *ids, *gate]) == 1
    assert main(["compare", *reversed(ids), *gate]) == 0
    assert "wrong mean ↓" in capsys.readouterr().out


def test_zeros_and_ones_of_a_wider_range_are_not_passes(store):
    """A missing score of 0 to 10 was taken for one of 0 to 1, so that a gate could hold."""
    runs = [run_at(store, 0.9), run_at(store, 0.9, broken=set(range(6)), new=True)]
    evaluation = karat.evaluate(runs, [Points()], store=store)
    made = compare(runs, fail_if_worse="points:0.5")
    difference = made.differences[0]
    assert (difference.aggregator, difference.compared.difference.method) == ("mean", "gaffke")
    assert difference.compared.difference.highest == pytest.approx(
        difference.compared.difference.lowest + 6 * 10 / 60
    )
    assert made.verdict == "undecided"
    assert {each.aggregator for each in karat.aggregate(evaluation, store=store).estimates} == {"mean"}
    found = {each.estimate.aggregator for each in summarise(store, [evaluation]).metrics}
    assert found == {"mean"}
