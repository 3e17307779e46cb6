"""What comparisons, rankings and gates conclude, in words and in numbers of examples."""

from __future__ import annotations

import random

import pytest

import karat
from karat.analysis.comparison import Limit, compare, comparison_blocks, judge
from karat.analysis.ranking import rank
from karat.formatting import Table, as_text
from karat.layout import Layout
from karat.records import Estimate
from karat.stats import paired
from karat.tasks import FunctionTask
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


def test_a_narrow_table_of_several_runs_tells_their_rows_apart(compared):
    made = compared(0.9, 0.6, 0.3)
    [table] = [
        each for each in comparison_blocks(made) if isinstance(each, Table) and "difference" in each.head
    ]
    shown = as_text([table], Layout(60))
    assert "no room for" in shown
    assert [shown.count(f"rate={rate}") for rate in (0.6, 0.3)] == [1, 1]


def test_a_better_run_is_called_better(compared, says):
    says(compared(0.6, 0.9).conclusions[0].partition(" [")[0])


@pytest.mark.parametrize(
    ("failed", "conclusion"), [(0, "]."), (3, "]."), (28, "could undo that."), (60, "could reverse that.")]
)
def test_missing_items_qualify_a_difference(store, failed, conclusion):
    """A fifth of the examples got better; those that failed could have got worse."""

    def answer(number: int, good: bool, failed: int) -> int:
        if number < failed:
            raise ValueError("no answer")
        return number if good or number % 5 else -1

    data = [{"id": str(i), "input": i, "expected": i} for i in range(200)]
    runs = [
        karat.run(FunctionTask(answer, parameters={"good": good, "failed": failed}), data, store=store)
        for good in (False, True)
    ]
    karat.evaluate(runs, ["exact_match"], store=store)
    [found] = compare(runs).conclusions
    assert "better than" in found
    assert found.endswith(conclusion)


def test_where_no_difference_is_found_the_smallest_one_is_named(compared, says):
    made = compared(0.9, 0.89)
    effect = made.differences[0].compared.smallest_effect
    says(made.conclusions[0].replace(f"{effect:.3f}", "EFFECT"))
    assert f" {effect:.3f} " in made.conclusions[0]


@pytest.mark.parametrize("test", ["t", "permutation", "bootstrap"])
def test_equal_differences_that_cannot_be_tested_are_not_called_no_difference(compared, test, says):
    """A run that loses every example has no interval by these tests; the conclusion still says that it lost."""
    made = compared(1.0, 0.0, test=test, fail_if_worse="accuracy:0.1")
    found = made.differences[0].compared
    assert (found.difference.low, found.difference.high, found.p_value) == (None, None, None)
    reason = found.difference.metadata["reason"]
    says(made.conclusions[0])
    assert reason in made.conclusions[0]
    assert made.verdict == "undecided"
    assert reason in made.gates[0].reason


def test_the_conclusion_is_corrected_for_how_many_comparisons_there_are(store):
    runs = [run_at(store, 0.9)] + [run_at(store, 0.9 - 0.01 * step) for step in range(9, 13)]
    karat.evaluate(runs, [right], store=store)
    for each in compare(runs).differences:
        found = "is worse" in each.conclusion
        assert found == (each.adjusted_p_value <= 0.05)


def test_a_ranking_says_who_is_best(store, says):
    runs = [run_at(store, rate) for rate in (0.2, 0.95, 0.6)]
    karat.evaluate(runs, [right], store=store)
    made = rank(runs, metric="right")
    assert made.places[0].label == "rate=0.95"
    says(*made.conclusions)
    assert made.report().index(made.conclusions[0]) < made.report().index("rating")
    says(rank(runs[:2], metric="right").conclusions[0])
    same = [run_at(store, 0.6, new=True), runs[2]]
    karat.evaluate(same, [right], store=store)
    says(rank(same, metric="right").conclusions[0].partition(":")[0])


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
def test_the_suggested_number_of_examples_decides_gates_of_graded_pairs(n):
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


def _random_comparison(seed):
    """Two runs over random scores: binary or graded, tied, skewed, in documents, without a range, with failures."""
    draw = random.Random(seed)
    count, graded, wide = draw.randrange(8, 50), draw.random() < 0.5, draw.random() < 0.2
    shift, ties, failing = (
        draw.choice([0.0, 0.1, 0.3]),
        draw.choice([0.0, 0.7, 0.95]),
        draw.choice([0, 0, 0.1]),
    )
    first = [draw.betavariate(2, 1) if graded else float(draw.random() < 0.7) for _ in range(count)]
    second = [
        score
        if draw.random() < ties
        else min(1.0, max(0.0, draw.random() + shift))
        if graded
        else float(draw.random() < 0.7 + shift)
        for score in first
    ]
    scale = 10.0 if wide else 1.0
    data = [{"id": f"e{i}", "input": i, "metadata": {"document": f"d{i // 3}"}} for i in range(count)]
    store = karat.open_store("memory://")
    dataset = karat.Dataset.from_examples(data, name="scores")
    runs = []
    for name, scores in (("first", first), ("second", second)):
        kept = [None if draw.random() < failing else scale * score for score in scores]

        def answer(number, name, kept=kept):
            if kept[number] is None:
                raise ValueError("no answer")
            return kept[number]

        task = FunctionTask(answer, name="answer", parameters={"name": name})
        task.code = lambda: "answer"
        runs.append(karat.run(task, dataset, store=store, progress=False))

    def score(outputs):
        return outputs

    karat.evaluate(runs, [score], store=store, progress=False)
    cluster = "document" if draw.random() < 0.4 else None
    return compare(runs, cluster=cluster, fail_if_worse="score:0"), runs


@pytest.mark.parametrize("seed", range(24))
def test_words_gate_leader_and_json_agree_with_the_interval(seed):
    made, runs = _random_comparison(seed)
    each = made.differences[0]
    low, high = each.compared.difference.low, each.compared.difference.high
    written = made.to_dict()["differences"][0]["compared"]
    assert (written["difference"].get("low"), written["difference"].get("high")) == (low, high)
    found = low is not None and (low > 0 or high < 0)
    if each.compared.p_value is not None:
        assert written["test"]["p_value"] == each.compared.p_value
        assert (each.compared.p_value < 0.05) == found
    assert ("no difference found" not in each.conclusion) == found
    assert (" is better than " in each.conclusion) == (found and low > 0)
    assert (" is worse than " in each.conclusion) == (found and high < 0)
    assert made.leaders[0].indistinguishable == (
        [] if found else [r.id for r in runs if r.id != made.leaders[0].run]
    )
    verdict = made.gates[0].verdict
    assert (verdict == "fails") == (found and high < 0)
    if verdict == "holds":
        assert low >= 0
    assert made.verdict == verdict


def test_few_unequal_clusters_state_no_smallest_effect(store, says):
    """With 10 unequal clusters an effect was stated that was found in 12 % of other data."""
    runs = [run_at(store, 0.9, count=40), run_at(store, 0.85, count=40)]
    karat.evaluate(runs, [right], store=store)
    each = compare(runs, cluster="document").differences[0]
    assert each.compared.smallest_effect is None
    assert each.compared.effect_reason in each.conclusion
    says(each.conclusion)
    assert compare(runs).differences[0].compared.smallest_effect is not None
