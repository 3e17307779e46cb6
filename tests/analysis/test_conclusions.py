"""What comparisons, rankings and gates conclude, in words and in numbers of examples."""

from __future__ import annotations

import pytest

import karat
from karat.analysis.comparison import compare
from karat.analysis.gates import Limit, judge
from karat.analysis.ranking import rank
from karat.records import Estimate
from karat.stats import paired
from tests.analysis.conftest import right, run_at


@pytest.fixture
def compared(store):
    def make(*rates, **options):
        runs = [run_at(store, rate) for rate in rates]
        karat.evaluate(runs, [right], store=store)
        return compare(runs, **options)

    return make


def test_a_worse_run_is_called_worse_by_how_much(compared):
    made = compared(0.9, 0.6)
    difference = made.differences[0].compared.difference
    interval = f"[{-difference.high:.3f}, {-difference.low:.3f}]"
    shown = f"rate=0.6 is worse than rate=0.9 by {-difference.value:.3f} {interval}"
    assert made.conclusions == [f"right accuracy: {shown}."]
    report = made.report()
    assert report.index("what differs") < report.index(made.conclusions[0]) < report.index("95 % interval")


def test_a_better_run_is_called_better(compared):
    assert "rate=0.9 is better than rate=0.6 by 0.3" in compared(0.6, 0.9).conclusions[0]


def test_where_no_difference_is_found_the_smallest_one_is_named(compared):
    made = compared(0.9, 0.89)
    effect = made.differences[0].compared.smallest_effect
    assert "no difference found" in made.conclusions[0]
    assert f"one smaller than {effect:.3f} may have been missed" in made.conclusions[0]


def test_the_conclusion_is_corrected_for_how_many_comparisons_there_are(store):
    runs = [run_at(store, 0.9)] + [run_at(store, 0.9 - 0.01 * step) for step in range(9, 13)]
    karat.evaluate(runs, [right], store=store)
    for each in compare(runs).differences:
        found = "is worse" in each.conclusion
        assert found == (each.adjusted_p_value <= 0.05)


def test_a_ranking_says_who_is_best(store):
    runs = [run_at(store, rate) for rate in (0.2, 0.95, 0.6)]
    karat.evaluate(runs, [right], store=store)
    made = rank(runs, metric="right")
    assert made.conclusions == ["rate=0.95 is the best of 3 runs: it is better than each of the others."]
    assert made.report().index(made.conclusions[0]) < made.report().index("rating")
    two = rank(runs[:2], metric="right").conclusions[0]
    assert two.startswith("rate=0.95 is better than rate=0.2: it wins with probability")
    same = [run_at(store, 0.6, new=True), runs[2]]
    karat.evaluate(same, [right], store=store)
    assert "No difference found" in rank(same, metric="right").conclusions[0]


@pytest.mark.parametrize(("lost", "won", "n", "margin"), [(12, 9, 200, 0.05), (30, 12, 200, 0.06)])
def test_as_many_examples_as_an_undecided_gate_asks_for_decide_it(lost, won, n, margin):
    def gate(times):
        a = [1.0] * (lost * times) + [0.0] * (won * times) + [1.0] * ((n - lost - won) * times)
        b = [0.0] * (lost * times) + [1.0] * (won * times) + [1.0] * ((n - lost - won) * times)
        return judge(Limit("m", margin), "a", "b", paired(a, b).difference, n * times)

    first = gate(1)
    assert first.verdict == "undecided"
    times = first.examples_needed / n
    assert times > 1
    assert f"about {first.examples_needed:,} examples" in first.reason
    assert gate(round(times * 1.3 + 0.5)).verdict != "undecided"
    assert gate(max(1, int(times * 0.7))).verdict == "undecided"


@pytest.mark.parametrize("n", [20, 40])
def test_so_it_does_where_the_interval_allows_for_losses_that_were_not_seen(n):
    """Of graded pairs that mostly tie the interval shrinks faster than 1/√n: 4.7 times too many were asked for."""

    def gate(times):
        a, b = [0.6] * (n * times), ([0.6] * (n - 1) + [0.5]) * times
        return judge(Limit("m", 0.05), "a", "b", paired(a, b).difference, n * times)

    needed = gate(1).examples_needed
    decided = next(times for times in range(2, 60) if gate(times).verdict == "holds")
    assert 0.6 * decided * n <= needed <= 1.7 * decided * n


@pytest.mark.parametrize("n", [2, 10, 50])
def test_a_gate_does_not_hold_because_the_pairs_that_were_drawn_are_equal(n):
    same = [0.5 + place / 200 for place in range(n)]
    assert judge(Limit("m", 0.05), "a", "b", paired(same, same).difference, n).verdict == "undecided"


def test_a_gate_on_the_margin_itself_names_no_number():
    difference = Estimate(-0.05, -0.1, 0.0, 50, 50)
    gate = judge(Limit("m", 0.05), "a", "b", difference, 50)
    assert (gate.verdict, gate.examples_needed) == ("undecided", None)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(None, None, "undecided"), (None, -0.2, "fails"), (-0.01, None, "holds"), (None, 0.3, "undecided")],
)
def test_a_limit_that_cannot_be_given_decides_nothing_on_its_side(low, high, verdict):
    assert judge(Limit("m", 0.05), "a", "b", Estimate(0.0, low, high, 9, 9), 9).verdict == verdict
