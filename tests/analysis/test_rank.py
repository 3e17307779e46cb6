"""Rankings: from evaluators that compare, functions, and scores; amended, planned, with their bias."""

from __future__ import annotations

import pytest

import karat
from karat.analysis.comparison import compare
from karat.analysis.ranking import plan_rank, rank
from karat.errors import RequestError
from karat.evaluators._pairwise import ByFunction, ByMetric
from karat.records import Example, Output
from karat.stats import bradley_terry
from tests.analysis.conftest import COUNT, right, run_at

BY_MATCH = {"name": "by_metric", "params": {"metric": "exact_match"}}


@pytest.fixture
def three(store):
    return [run_at(store, rate) for rate in (0.6, 0.9, 0.75)]


def output(value):
    from karat.records import FORMAT, Ok

    return Output(format=FORMAT, example="e", outcome=Ok(value))


def test_scores_become_comparisons(three, store):
    karat.evaluate(three, [right], store=store)
    made = rank(three, metric="right")
    assert [place.label for place in made.places] == ["rate=0.9", "rate=0.75", "rate=0.6"]
    assert [place.rank for place in made.places] == [1, 2, 3]
    assert made.n == made.of == 3 * COUNT
    assert made.places[0].rank_low == 1
    assert made.win_probability[0][2] > 0.5 > made.win_probability[2][0]
    assert made.position_bias.value is None


def test_an_evaluator_that_compares_by_a_metric(three):
    by_scores = rank(three, evaluator=BY_MATCH)
    assert [place.label for place in by_scores.places] == ["rate=0.9", "rate=0.75", "rate=0.6"]
    assert by_scores.source == "by_exact_match"
    assert sum(place.wins for place in by_scores.places) == sum(place.losses for place in by_scores.places)


def test_it_is_the_bradley_terry_of_the_comparisons(three, store):
    evaluation = karat.evaluate(three, [ByMetric("exact_match")], store=store)
    rows = [(*r.runs, r.score) for r in evaluation.results()]
    want = bradley_terry(rows, clusters=[r.example for r in evaluation.results()])
    made = rank(evaluation)
    assert [p.run for p in made.places] == [r.name for r in want.runs]
    assert made.places[0].rating.value == pytest.approx(want.runs[0].rating.value)
    assert made.position_bias.value == pytest.approx(want.position_bias.value)


def test_a_plain_function_compares(three):
    def first_wins(first, second, expected):
        a, b = first.value == expected, second.value == expected
        return "tie" if a == b else float(a)

    made = rank(three, evaluator=first_wins)
    assert made.places[0].label == "rate=0.9"
    assert made.source == "first_wins"


async def test_functions_and_metrics_that_wait(three):
    async def better(first, second, expected):
        return 0.5

    assert await ByFunction(better).compare(Example("e", 1, "a"), output("a"), output("b")) == 0.5


def test_valid_results_of_a_comparison(refuses):
    compared = ByMetric("exact_match").compare(Example("e", 1, "a"), output("a"), output("b"))
    assert (compared.score, compared.value) == (1.0, "win")
    assert (
        ByMetric("exact_match", margin=1.0).compare(Example("e", 1, "a"), output("a"), output("b")).value
        == "tie"
    )
    with refuses(RequestError):
        ByFunction(lambda judge: 1)
    with refuses(RequestError):
        ByMetric(ByMetric("exact_match"))


def test_classic_elo(three, refuses):
    made = rank(three, evaluator=BY_MATCH, method="elo")
    assert [place.label for place in made.places] == ["rate=0.9", "rate=0.75", "rate=0.6"]
    assert made.places[0].rating.method.startswith("elo")
    assert sum(place.rating.value for place in made.places) == pytest.approx(4500, abs=5)
    assert "over orders" in made.report()
    with refuses(RequestError):
        rank(three, evaluator=BY_MATCH, method="elos")


class Counting:
    """Compares by what is expected, and counts."""

    version, key = "1", "counting"

    def __init__(self):
        self.calls = 0

    def compare(self, example, first, second):
        self.calls += 1
        a, b = first.value == example.expected, second.value == example.expected
        return "win" if a > b else "loss" if b > a else "tie"


def test_a_new_run_costs_its_own_comparisons_alone(three, store):
    judge = Counting()
    first = karat.evaluate(three[:2], [judge], store=store)
    assert judge.calls == COUNT
    made = rank(three[2], evaluator=judge, amend=first)
    assert COUNT < judge.calls <= 3 * COUNT  # comparisons of the same outputs are copied
    assert (len(made.places), made.n) == (3, 3 * COUNT)
    before = judge.calls
    again = rank(three, evaluator=judge)
    assert judge.calls == before
    assert {p.run: p.rating.value for p in again.places} == pytest.approx(
        {p.run: p.rating.value for p in made.places}
    )


def test_a_plan_lists_what_is_missing_and_computes_nothing(three, store):
    judge = Counting()
    karat.evaluate(three[:2], [judge], store=store)
    plan = plan_rank(three, evaluator=judge)
    assert judge.calls == COUNT
    assert (plan.done, plan.missing) == (COUNT, 2 * COUNT)
    assert [(pair.done, pair.missing) for pair in plan.pairs] == [(COUNT, 0), (0, COUNT), (0, COUNT)]
    assert plan.cost is None
    assert "unknown" in plan.report()


def test_a_plan_estimates_the_cost_from_earlier_comparisons(three, store):
    from karat.models._recording import current
    from karat.records import Call, Usage

    class Priced(Counting):
        def compare(self, example, first, second):
            current().append(Call("model", "test/model", usage=Usage(10, 2, 1, cost=0.01)))
            return "tie"

    judge = Priced()
    karat.evaluate(three[:2], [judge], store=store)
    plan = plan_rank(three, evaluator=judge)
    assert plan.missing == 2 * COUNT
    assert plan.cost == pytest.approx(0.01 * 2 * COUNT)


def test_a_plan_reads_columns(three, store, monkeypatch):
    judge = Counting()
    karat.evaluate(three, [judge, right], store=store)

    def scan(*arguments):
        raise AssertionError("it reads records")

    monkeypatch.setattr(store.backend, "scan", scan)
    assert plan_rank(three, evaluator=judge).done == 3 * COUNT


def test_runs_that_nothing_connects_are_reported(store, says):
    a, b, c, d = (run_at(store, rate) for rate in (0.6, 0.9, 0.7, 0.8))
    judge = Counting()
    parts = [karat.evaluate([a, b], [judge], store=store), karat.evaluate([c, d], [judge], store=store)]
    made = rank(parts)
    assert len(made.components) == 2
    says(*[line for line in made.report().splitlines() if "connect" in line])
    assert any(cell is None for row in made.win_probability for cell in row)


def test_a_judge_that_prefers_the_first_is_found_out(three, says):
    def first_always(first, second):
        return "win"

    made = rank(three, evaluator=ByFunction(first_always, both_orders=True))
    assert made.n == 6 * COUNT
    assert made.position_bias.low > 0.9
    says(*[line for line in made.report().splitlines() if "bias" in line])


def test_failed_comparisons_are_counted(store, says):
    runs = [run_at(store, 0.6), run_at(store, 0.9, broken={1, 2})]
    made = rank(runs, evaluator=BY_MATCH, failures="leave_out")
    assert (made.n, made.of) == (58, 60)
    assert {(place.rating.n, place.rating.of, place.win_rate.of) for place in made.places} == {(58, 60, 60)}
    best = made.places[0].win_rate
    assert best.lowest < best.value < best.highest
    says(*[line for line in made.report().splitlines() if "comparisons" in line])
    parts = [{"name": name, "params": {"failures": "leave_out"}} for name in ("ranking", "win_rate")]
    told = karat.aggregate(store.evaluations.list()[-1], parts, store=store).estimates
    assert {(e.n, e.of) for e in told if e.run or e.name == "shown_first"} == {(58, 60)}
    assert "| rank |" in made.markdown()


def test_wrong_requests_name_the_fix(three, store, refuses):
    with refuses(RequestError):
        rank(three, evaluator=BY_MATCH, metric="right")
    with refuses(RequestError):
        rank(three, evaluator="exact_match")
    with refuses(RequestError):
        rank(three[0], metric="exact_match")


def test_one_example_gives_no_interval(store, says):
    """It raised a ValueError."""
    runs = [run_at(store, rate, count=1) for rate in (0.6, 0.0)]
    ranking = rank(runs, evaluator=BY_MATCH, store=store)
    assert [place.rank for place in ranking.places] == [1, 2]
    assert {(place.rating.low, place.rating.high) for place in ranking.places} == {(None, None)}
    says(ranking.conclusions[0])
    assert "over 1 example," in ranking.report()


def test_scores_that_differ_in_their_last_bits_tie(three, store):
    def sums(outputs, expected):
        return 0.1 + 0.2 if outputs == expected else 0.3

    karat.evaluate(three, [sums], store=store)
    ranking = rank(three, metric="sums")
    assert ranking.ties == ranking.n == 3 * COUNT
    changed = compare(three, metrics="sums").differences[0]
    assert (changed.changed.same, changed.compared.ties) == (COUNT, COUNT)
