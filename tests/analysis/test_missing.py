"""Pending and failed items are missing items: in comparisons, gates, rankings and summaries."""

from __future__ import annotations

import pytest

import karat
from karat.analysis.comparison import compare
from karat.analysis.ranking import rank
from karat.analysis.summary import summarise
from karat.errors import KaratError, StoreError
from karat.view.data import Viewer
from tests.analysis.conftest import right, run_at
from tests.execution.test_pending import DATA, TOTAL, First, Parts, judging

COUNT = 80


def stopping(limit):
    """An evaluator of the key `right` that ends the stage after so many judgments, as a lost store does."""
    made = []

    def right_until(outputs, expected):
        if len(made) >= limit:
            raise StoreError("the store is lost")
        made.append(1)
        return karat.Result("right", float(outputs == expected), metadata={})

    right_until.version = "1"
    return right_until


def interrupted(runs, evaluator, store):
    with pytest.raises(StoreError):
        karat.evaluate(runs, [evaluator], store=store, concurrency=1)
    return store.evaluations.list()[-1]


def test_a_gate_on_an_interrupted_evaluation_is_undecided(store, says):
    runs = [run_at(store, 0.9, count=COUNT), run_at(store, 0.9, count=COUNT, attempts=1, new=True)]
    evaluation = interrupted(runs, stopping(60), store)
    made = compare(evaluation, fail_if_worse="accuracy:0.2")
    difference = made.differences[0].compared.difference
    assert (difference.n, difference.of) == (30, COUNT)
    assert difference.lowest < -0.5 < 0.5 < difference.highest
    assert made.verdict == "undecided"
    assert f"{COUNT - 30} " in made.gates[0].reason
    says(made.gates[0].reason)
    assert made.gates[0].examples_needed is None


def test_outputs_that_are_pending_are_missing(store):
    calls = []

    def answer(number):
        if len(calls) >= 20:
            raise StoreError("the store is lost")
        calls.append(number)
        return "Music"

    whole = run_at(store, 0.9)
    data = store.datasets.get(whole.header.dataset)
    with pytest.raises(StoreError):
        karat.run(answer, data, store=store, concurrency=1, progress=False)
    part = store.runs.list()[-1]
    karat.evaluate([whole, part], [right], store=store)
    difference = compare(whole, part).differences[0].compared.difference
    assert (difference.n, difference.of) == (20, 60)
    assert compare(whole, part, fail_if_worse="accuracy:0.75").verdict == "undecided"
    ranking = rank(whole, part, metric="right")
    assert (ranking.n, ranking.of) == (20, 60)
    assert {place.win_rate.of for place in ranking.places} == {60}


def test_an_evaluation_that_is_older_than_its_run_misses_the_new_outputs(store):
    available = [20]

    def answer(number):
        if number >= available[0]:
            raise StoreError("the store is lost")
        return "Music"

    whole = run_at(store, 0.9)
    data = store.datasets.get(whole.header.dataset)
    answer.version = "1"
    with pytest.raises(StoreError):
        karat.run(answer, data, store=store, concurrency=1, progress=False)
    part = store.runs.list()[-1]
    karat.evaluate([whole, part], [right], store=store)
    available[0] = 60
    assert karat.run(answer, data, store=store, concurrency=1, progress=False).id == part.id
    part = store.runs.get(part.id)
    assert part.counts.ok == 60
    made = compare(whole, part, fail_if_worse="accuracy:0.75")
    assert (made.differences[0].compared.difference.n, made.differences[0].compared.difference.of) == (20, 60)
    assert made.verdict == "undecided"
    ranking = rank(whole, part, metric="right")
    assert (ranking.n, ranking.of) == (20, 60)


def test_examples_outside_the_selection_are_not_missing(store):
    runs = [run_at(store, 0.9, limit=20), run_at(store, 0.6, limit=20)]
    karat.evaluate(runs, [right], store=store)
    assert compare(runs).differences[0].compared.difference.of == 20


@pytest.mark.parametrize("done", [5, 13])
def test_units_that_are_pending_are_missing(store, done):
    data = karat.Dataset.from_examples(DATA, name="units")
    runs = [karat.run(Parts(name), data, store=store, progress=False) for name in ("a", "b")]
    made = []

    def judge(outputs):
        if len(made) >= 2 * done:
            raise StoreError("the store is lost")
        made.append(1)
        return 1.0

    judge.version = "1"
    evaluation = interrupted(runs, judge, store)
    difference = compare(evaluation, metrics="judge").differences[0].compared.difference
    assert 0 < difference.n <= evaluation.counts.ok // 2
    assert difference.of == TOTAL
    ranking = rank(evaluation, metric="judge")
    assert (ranking.n, ranking.of) == (difference.n, TOTAL)
    found = {each.estimate.run: each.estimate for each in summarise(store, [evaluation]).metrics}
    assert {estimate.of for estimate in found.values()} == {TOTAL}


def test_units_that_no_output_names_yet_are_missing(store):
    data = karat.Dataset.from_examples(DATA, name="units")
    runs = []
    for name in ("a", "b"):
        with pytest.raises(StoreError):
            karat.run(Parts(name, stop_at=5), data, store=store, concurrency=1, progress=False)
        runs.append(store.runs.list()[-1])

    def judge(outputs):
        return 1.0

    evaluation = karat.evaluate(runs, [judge], store=store)
    difference = compare(evaluation).differences[0].compared.difference
    assert difference.n < difference.of == TOTAL
    ranking = rank(evaluation, metric="judge")
    assert ranking.n < ranking.of == TOTAL


@pytest.mark.parametrize("both_orders", [False, True])
def test_comparisons_that_are_pending_are_missing(store, both_orders):
    runs = [run_at(store, rate, count=20) for rate in (0.6, 0.9)]
    evaluation = interrupted(runs, First(both_orders, 7), store)
    ranking = rank(evaluation)
    assert (ranking.n, ranking.of) == (7, 20 * (1 + both_orders))
    assert {place.rating.of for place in ranking.places} == {ranking.of}
    assert ranking.places[0].win_rate.lowest < ranking.places[0].win_rate.value
    table = next(table for table in summarise(store, [evaluation]).tables if table.name == "ranking")
    assert (table.value["n"], table.value["of"]) == (ranking.n, ranking.of)
    assert "missing" in ranking.conclusions[0]


def test_a_complete_evaluation_beside_an_interrupted_one_is_complete(store):
    runs = [run_at(store, rate, count=20) for rate in (0.6, 0.9)]
    first = interrupted(runs, First(False, 7), store)
    second = karat.evaluate(runs, [First(False, None)], store=store, new=True)
    ranking = rank([first, second])
    assert (ranking.n, ranking.of) == (20, 20)


def test_a_failed_judgment_is_missing_and_never_a_loss(store):
    runs = [run_at(store, rate, count=20) for rate in (0.6, 0.9)]

    class Sometimes:
        version, key = "1", "sometimes"

        def compare(self, example, first, second):
            if example.input < 5:
                raise ValueError("the judge is down")
            return "tie"

    ranking = rank(runs, evaluator=Sometimes())
    assert (ranking.n, ranking.of, ranking.failed) == (15, 20, 0)
    assert [(place.wins, place.losses, place.ties) for place in ranking.places] == [(0, 0, 15)] * 2
    assert [place.rank for place in ranking.places] == [1, 1]
    assert any("the judge is down" in note for note in ranking.notes)


def test_when_every_comparison_fails_the_first_error_is_shown(store, refuses):
    runs = [run_at(store, rate, count=20) for rate in (0.6, 0.9)]

    def broken(first, second):
        raise ValueError("the judge is down")

    with refuses(KaratError) as raised:
        rank(runs, evaluator=broken)
    assert raised.value.exit_code == 1


def test_pending_units_are_problems_of_their_own(store):
    """Of 3 units × 2 attempts, an evaluation that stops leaves units of which nothing is known."""
    run = karat.run(Parts(), DATA, store=store, attempts=2)
    whole = karat.aggregate(karat.evaluate(run, [judging(None)], store=store), ["pass_at_k"])
    problems = whole.estimates["pass_at_k"].of
    other = karat.open_store("memory://")
    again = karat.run(Parts(), DATA, store=other, attempts=2)
    partly = interrupted([again], judging(problems + 1), other)
    made = karat.aggregate(partly, [{"name": "pass_at_k", "params": {"k": 2}}, "pass_hat_k"])
    for name in ("pass_at_k", "pass_hat_k"):
        found = made.estimates[name]
        assert found.of == problems, name
        assert found.lowest is not None
        assert found.lowest < 0.6
    assert [each.verdict for each in karat.gate(made, "pass_hat_k:0.45")] == ["undecided"]


@pytest.mark.parametrize(("name", "k", "lowest"), [("pass_hat_k", 2, 1 / 6), ("metric:pass_hat_k", 1, 0.5)])
def test_attempts_that_failed_leave_a_gate_undecided_though_every_problem_has_a_value(store, name, k, lowest):
    def answers(text, context):
        if context.attempt > 2:
            raise ValueError("no answer")
        return text

    data = [{"id": f"e{n}", "input": "a"} for n in range(20)]
    run = karat.run(answers, data, store=store, attempts=4)
    judged = karat.evaluate(run, [judging(None)], store=store)
    made = karat.aggregate(judged, [{"name": name, "params": {"k": k}}])
    found = made.estimates[-1]
    assert (found.value, found.n, found.of, found.missing) == (1.0, 20, 20, 40)
    assert (found.lowest, found.highest) == (pytest.approx(lowest), 1.0)
    assert found.low > 0.7
    assert [each.verdict for each in karat.gate(made, f"{found.label}:0.7")] == ["undecided"]


@pytest.mark.parametrize("lower", [False, True])
def test_a_gate_on_a_quantile_allows_for_missing_scores(store, lower):
    def most(text, example):
        if int(example.id[1:]) % 2:
            raise ValueError("no")
        return text

    class Score(karat.Evaluator):
        name = "score"
        higher_is_better = not lower

        def evaluate(self, *, outputs, **more):
            return karat.Result(self.key, 0.0 if lower else 1.0)

    data = [{"id": f"e{n}", "input": "a"} for n in range(60)]
    run = karat.run(most, data, store=store)
    made = karat.aggregate(karat.evaluate(run, [Score()], store=store), ["quantiles"])
    limit = "score quantiles q50:0.1" if lower else "score quantiles q50:0.9"
    assert [each.verdict for each in karat.gate(made, limit)] == ["undecided"]
    assert made.estimates.get(evaluator="score", name="q50").of == 60


def test_a_repaired_output_does_not_count_as_a_loss(store):
    broken = {"now": True}

    def repaired(text, example):
        if broken["now"] and int(example.id[1:]) % 3 == 0:
            raise ValueError("no")
        return text

    repaired.version = "1"

    def whole(text):
        return text

    def length(outputs):
        return float(len(outputs))

    length.version = whole.version = "1"
    data = [{"id": f"e{n}", "input": "a"} for n in range(60)]
    runs = [karat.run(whole, data, store=store), karat.run(repaired, data, store=store)]
    karat.evaluate(runs, [length], store=store)
    assert rank([run.id for run in runs], metric="length", store=store).failed == 20
    broken["now"] = False
    karat.run(repaired, data, store=store, retry_failed=True)
    stale = rank([run.id for run in runs], metric="length", store=store)
    assert (stale.failed, stale.n, stale.of) == (0, 40, 60)


def repairable(broken):
    """A task that fails for some inputs until they are taken out of `broken`."""

    def repaired(text, example):
        if int(example.id[1:]) in broken:
            raise ValueError("no")
        return text

    repaired.version = "1"
    return repaired


class FirstWinsEven(karat.Evaluator):
    """The first output of an even example is better, the second of an odd one."""

    version, key = "1", "even"

    def compare(self, example, first, second):
        return "loss" if int(example.id[1:]) % 2 else "win"


def win_rates(store, evaluation):
    """The figures of both runs from `rank`, the aggregators and the report: they are the same."""
    ranked = rank(evaluation)
    made = karat.aggregate(evaluation, ["win_rate", "ranking"])
    table = next(table for table in made.tables if table.name == "ranking").value
    assert (table["n"], table["of"]) == (ranked.n, ranked.of)
    report = {
        each.estimate.run: each.estimate
        for each in summarise(store, [evaluation]).metrics
        if each.estimate.aggregator == "win_rate"
    }
    found = {}
    for place in ranked.places:
        estimate = made.estimates.get(aggregator="win_rate", run=place.run)
        for other in (estimate, report[place.run]):
            assert (other.value, other.low, other.high, other.n, other.of) == (
                (win := place.win_rate).value,
                win.low,
                win.high,
                win.n,
                win.of,
            )
        found[place.run] = (estimate.value, estimate.n, estimate.of)
    return [found[run.id] for run in evaluation.runs], ranked.failed


def test_a_comparison_with_an_output_that_was_repaired_is_missing_until_it_is_made(store):
    """A skip for a failed output decides a comparison only as long as the output has failed."""
    broken = set(range(8))
    data = [{"id": f"e{n}", "input": "a"} for n in range(20)]

    def whole(text):
        return text

    whole.version = "1"
    runs = [karat.run(whole, data, store=store), karat.run(repairable(broken), data, store=store)]
    evaluation = karat.evaluate(runs, [FirstWinsEven()], store=store)
    assert win_rates(store, evaluation) == ([(0.7, 20, 20), (0.3, 20, 20)], 8)
    broken -= {0, 1, 2}
    karat.run(repairable(broken), data, store=store, retry_failed=True)
    stale = store.evaluations.get(evaluation.id)
    first, second = (5 + 6) / 17, 6 / 17
    assert win_rates(store, stale) == ([(first, 17, 20), (pytest.approx(second), 17, 20)], 5)
    again = karat.evaluate(runs, [FirstWinsEven()], store=store)
    assert again.id == evaluation.id
    assert win_rates(store, again) == ([(0.65, 20, 20), (0.35, 20, 20)], 5)


def test_two_failed_outputs_no_longer_tie_when_one_was_repaired(store):
    data = [{"id": f"e{n}", "input": "a"} for n in range(20)]
    broken = set(range(8))
    first, second = repairable(broken), repairable(set(range(8)))
    second.version = "2"
    runs = [karat.run(first, data, store=store), karat.run(second, data, store=store)]
    evaluation = karat.evaluate(runs, [FirstWinsEven()], store=store)
    assert win_rates(store, evaluation) == ([(0.5, 20, 20), (0.5, 20, 20)], 8)
    broken.clear()
    karat.run(first, data, store=store, retry_failed=True)
    for each in (store.evaluations.get(evaluation.id), karat.evaluate(runs, [FirstWinsEven()], store=store)):
        assert win_rates(store, each) == ([(0.7, 20, 20), (0.3, 20, 20)], 8)


def test_a_report_leaves_out_an_aggregation_that_is_older_than_its_evaluation(store, says):
    """An evaluation that was aggregated while it was interrupted, and then completed."""
    run, limit, made = run_at(store, 0.9, count=COUNT), [30], []

    def late(outputs, example):
        if len(made) >= limit[0]:
            raise StoreError("the store is lost")
        made.append(1)
        return float(int(example.id[1:]) < 30)

    late.version = "1"
    partly = interrupted([run], late, store)
    early = karat.aggregate(partly, ["mean"])
    assert [(each.value, each.n, each.of) for each in early.estimates] == [(1.0, 30, COUNT)]
    reported = summarise(store, [run.id])
    assert reported.aggregations == [early.id]
    limit[0] = COUNT
    whole = karat.evaluate(run, [late], store=store)
    assert whole.id == partly.id
    for given in (run.id, whole.id):
        reported = summarise(store, [given])
        assert reported.aggregations == []
        assert [(m.estimate.value, m.estimate.n, m.estimate.of) for m in reported.metrics] == [
            (30 / COUNT, COUNT, COUNT)
        ]
        assert early.id in reported.notes[-1]
    says(reported.notes[-1].replace(early.id, "AGG").replace(whole.id, "EVAL").replace(store.url, "STORE"))
    named = summarise(store, [early.id])
    assert [metric.estimate.n for metric in named.metrics] == [30]
    assert early.id in named.notes[-1]
    late_one = karat.aggregate(whole, ["mean"])
    assert late_one.id != early.id
    reported = summarise(store, [run.id])
    assert (reported.aggregations, reported.notes) == ([late_one.id], [])
    [listed] = Viewer(store).runs()["datasets"]
    [shown] = listed["runs"][0]["estimates"]
    assert (shown["value"], shown["n"]) == (30 / COUNT, COUNT)
