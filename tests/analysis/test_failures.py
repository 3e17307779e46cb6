"""Failed outputs in rankings: they lose, or are left out, and never help."""

from __future__ import annotations

import pytest

import karat
from karat.analysis.ranking import rank
from karat.errors import RequestError
from karat.evaluators import Evaluator
from tests.analysis.conftest import right, run_at

COUNT = 60
BY_MATCH = {"name": "by_metric", "params": {"metric": "exact_match"}}


@pytest.fixture
def runs(store):
    """A run that is right on 4 of 5, and one that crashes on those it would get wrong and is right on the rest."""
    from tests.analysis.conftest import answer_at

    wrong = {i for i in range(COUNT) if answer_at(i, 0.8) != answer_at(i, 1.0)}
    made = [run_at(store, 0.8), run_at(store, 1.0, broken=wrong)]
    karat.evaluate(made, [right], store=store)
    return made


@pytest.mark.parametrize("by", [{"metric": "right"}, {"evaluator": BY_MATCH}])
def test_a_failed_output_loses_against_one_that_succeeded(runs, by, says):
    made = rank(runs, **by)
    assert made.n == made.of == COUNT
    assert made.failed == runs[1].counts.failed == 12
    by_run = {place.run: place for place in made.places}
    assert (by_run[runs[0].id].wins, by_run[runs[1].id].losses) == (12, 12)
    assert made.places[0].run == runs[0].id
    says(*[line for line in made.report().splitlines() if "failed" in line])
    out = rank(runs, failures="leave_out", **by)
    assert (out.n, out.of, out.failed) == (COUNT - 12, COUNT, 0)
    assert out.places[0].win_rate.lowest < out.places[0].win_rate.value
    assert "left out" in out.report()
    assert f"{COUNT - 12} of {COUNT}" in out.report()


@pytest.mark.parametrize("by", [{"metric": "right"}, {"evaluator": BY_MATCH}])
def test_two_failed_outputs_tie(store, by):
    runs = [run_at(store, 0.9, broken={1, 2, 3}), run_at(store, 0.9, broken={1, 2, 3}, new=True)]
    karat.evaluate(runs, [right], store=store)
    made = rank(runs, **by)
    assert (made.n, made.ties, made.failed) == (COUNT, COUNT, 3)
    assert [place.rank for place in made.places] == [1, 1]


def test_the_win_rate_of_the_aggregator_is_that_of_the_ranking(runs, store):
    for failures in ("lose", "leave_out"):
        made = rank(runs, evaluator=BY_MATCH, failures=failures)
        evaluation = store.evaluations.list()[-1]
        parts = [
            {"name": "win_rate", "params": {"failures": failures}},
            {"name": "ranking", "params": {"failures": failures}},
        ]
        estimates = karat.aggregate(evaluation, parts, store=store).estimates
        for place in made.places:
            rate = estimates.get(aggregator="win_rate", run=place.run)
            rating = estimates.get(aggregator="ranking", run=place.run)
            assert numbers_of(place.win_rate) == numbers_of(rate)
            # A fit adds up the runs in their order, which is another one in each: the last bit may differ.
            *mine, n, of, lowest = numbers_of(place.rating)
            *theirs, rated, out_of, least = numbers_of(rating)
            assert mine == pytest.approx(theirs, rel=1e-13)
            assert (n, of, lowest) == (rated, out_of, least)


def numbers_of(estimate):
    return (estimate.value, estimate.low, estimate.high, estimate.n, estimate.of, estimate.lowest)


@pytest.mark.parametrize("method", ["elo", "bradley_terry"])
def test_the_ranking_aggregator_takes_the_method(runs, store, method):
    made = rank(runs, evaluator=BY_MATCH, method=method)
    part = {"name": "ranking", "params": {"method": method}}
    found = karat.aggregate(store.evaluations.list()[-1], [part], store=store).estimates
    for place in made.places:
        assert found.get(aggregator="ranking", run=place.run).value == place.rating.value
    with pytest.raises(RequestError, match="method"):
        karat.aggregate(store.evaluations.list()[-1], [{"name": "ranking", "params": {"method": "els"}}])


def test_unknown_values_are_refused(runs):
    with pytest.raises(RequestError, match="failures"):
        rank(runs, metric="right", failures="win")


class Scored(Evaluator):
    """Scores all runs of an example together: 1 for the expected class."""

    name = "scored"
    version = "1"

    def evaluate_runs(self, example, outputs):
        return {output.run: float(output.value == example.expected) for output in outputs}


class Ordered(Scored):
    name = "ordered"

    def evaluate_runs(self, example, outputs):
        good = [output.run for output in outputs if output.value == example.expected]
        bad = [output.run for output in outputs if output.value != example.expected]
        return [group for group in (good, bad) if group]


@pytest.mark.parametrize("joint", [Scored, Ordered])
def test_evaluators_of_all_runs_together_rank_them(store, joint):
    runs = [run_at(store, rate) for rate in (0.6, 0.9, 0.75)]
    karat.evaluate(runs, [right], store=store)
    made = rank(runs, evaluator=joint())
    same = rank(runs, metric="right")
    assert [place.run for place in made.places] == [place.run for place in same.places]
    assert {p.run: p.rating.value for p in made.places} == {p.run: p.rating.value for p in same.places}
    assert made.position_bias.value is None
    evaluation = store.evaluations.list()[-1]
    found = karat.aggregate(evaluation, ["ranking", "win_rate", "mean"], store=store).estimates
    for place in made.places:
        assert found.get(aggregator="ranking", run=place.run).value == place.rating.value
        assert found.get(aggregator="win_rate", run=place.run).value == place.win_rate.value
    means = {run.id: found.get(aggregator="mean", run=run.id) for run in runs}
    assert all(estimate.n == estimate.of == COUNT for estimate in means.values())
    assert means[runs[1].id].value > means[runs[2].id].value > means[runs[0].id].value
    if joint is Scored:
        assert means[runs[1].id].value == pytest.approx(0.9, abs=0.05)


def test_a_failed_output_loses_in_an_evaluation_of_all_runs_together(store):
    runs = [run_at(store, 0.6), run_at(store, 0.9), run_at(store, 0.75, broken=set(range(10)))]
    made = rank(runs, evaluator=Scored())
    assert made.failed == 20
    assert (made.n, made.of) == (3 * COUNT - 10, 3 * COUNT)


def test_a_ranking_of_some_runs_of_a_joint_evaluation(store):
    runs = [run_at(store, rate) for rate in (0.6, 0.9, 0.75)]
    evaluation = karat.evaluate(runs, [Scored()], store=store)
    from karat.analysis.ranking import rank_stored

    made = rank_stored(store, [runs[0], runs[1]], evaluator="scored")
    assert made.n == COUNT
    assert len(rank(evaluation).places) == 3


def test_first_and_second_are_the_same_in_a_function_and_in_a_class(store):
    runs = [run_at(store, rate, count=5) for rate in (0.6, 0.9)]
    seen = []

    def better(example, first, second):
        seen.append(("function", type(first), first.run, second.value))
        return "tie"

    class Better:
        version, key = "1", "better_class"

        def compare(self, example, first, second):
            seen.append(("class", type(first), first.run, second.value))
            return "tie"

    rank(runs, evaluator=better, concurrency=1)
    rank(runs, evaluator=Better(), concurrency=1)
    half = len(seen) // 2
    assert [each[1:] for each in seen[:half]] == [each[1:] for each in seen[half:]]


def test_the_kinds_of_one_run_of_an_evaluation_are_its_own(store):
    from karat.analysis.outcomes import placed_kinds

    runs = [run_at(store, 0.6, broken={1, 2}), run_at(store, 0.9, broken={3, 4, 5})]
    evaluation = karat.evaluate(runs, [right], store=store)
    everything = sum(each.kind.count for each in placed_kinds(evaluation))
    mine = [sum(each.kind.count for each in placed_kinds(evaluation, runs=[run.id])) for run in runs]
    assert (everything, mine) == (5, [2, 3])
    assert [
        place.position for each in placed_kinds(evaluation, runs=[runs[1].id]) for place in each.places
    ] == [
        3,
        4,
        5,
    ]
