"""Runs against a baseline: paired by example, with intervals, tests, gates and the examples that got worse."""

from __future__ import annotations

import pytest
from scipy.stats import chi2
from statsmodels.stats.contingency_tables import mcnemar

import karat
from karat.analysis.comparison import Limit, compare, comparison_blocks, judge, read_limit
from karat.errors import RequestError
from karat.formatting import Table
from karat.stats import tango
from karat.stats._distributions import critical
from karat.stats._means import few_clusters_note
from karat.stats._paired import PairedTest, tango_limits
from karat.tasks import FunctionTask
from tests.analysis.conftest import COUNT, answer_at, examples, right, run_at


@pytest.fixture
def three(store):
    runs = [run_at(store, 0.9), run_at(store, 0.6, broken={3, 4}), run_at(store, 0.8)]
    karat.evaluate(runs, [right], store=store)
    return runs


def test_the_difference_is_paired_and_tested(three):
    made = compare(three)
    assert [each.metric for each in made.differences] == ["right accuracy"] * 2
    worse = made.differences[0].compared
    seen = [i for i in range(COUNT) if i not in (3, 4)]
    was, now = ([answer_at(i, rate) == answer_at(i, 1) for i in seen] for rate in (0.9, 0.6))
    lost = sum(a and not b for a, b in zip(was, now, strict=True))
    won = sum(b and not a for a, b in zip(was, now, strict=True))
    assert (worse.wins, worse.losses, worse.ties) == (won, lost, len(seen) - won - lost)
    score_test = mcnemar([[0, lost], [won, 0]], exact=False, correction=False)
    assert score_test.pvalue < worse.p_value < 1.6 * score_test.pvalue  # with a correction of 0.2 pairs
    assert worse.test == PairedTest(
        pytest.approx(chi2.sf((abs(won - lost) - 0.2) ** 2 / (won + lost), 1)),
        "McNemar (corrected)",
        won + lost,
        statistic=pytest.approx((won - lost + 0.2) / (won + lost) ** 0.5),
    )
    assert (worse.difference.n, worse.difference.of) == (58, 60)
    assert worse.difference.lowest < worse.difference.value < worse.difference.highest
    assert worse.smallest_effect > 0


def test_p_values_are_corrected_for_how_many_there_are(three):
    made = compare(three).differences
    plain = [each.compared.p_value for each in made]
    assert made[0].adjusted_p_value == pytest.approx(min(1.0, 2 * min(plain)))
    assert made[1].adjusted_p_value == pytest.approx(max(plain))


def test_the_examples_that_got_worse_with_both_outputs(three):
    made = compare(three, examples=2)
    first = made.worse[0]
    assert (first.first, first.second) == (1.0, 0.0)
    assert first.first_output == first.expected != first.second_output
    assert len(made.worse) == 4
    assert compare(three, examples=0).worse == []


@pytest.mark.parametrize(
    ("margin", "verdict"), [("accuracy:0.5", "holds"), ("accuracy:0.05", "fails"), ("right:0.3", "undecided")]
)
def test_a_gate_holds_fails_or_is_undecided(three, margin, verdict):
    made = compare(three[:2], fail_if_worse=margin)
    assert made.verdict == verdict
    assert made.gates[0].reason


def test_missing_items_keep_a_gate_from_holding(store, says):
    runs = [run_at(store, 0.6), run_at(store, 0.9, broken=set(range(30)))]
    karat.evaluate(runs, [right], store=store)
    gate = compare(runs, fail_if_worse={"accuracy": 0.05}).gates[0]
    assert gate.verdict == "undecided"
    says(gate.reason)


def test_a_limit_is_written_metric_and_margin():
    assert (read_limit("a-b:0.01").metric, read_limit("a-b:0.01").margin) == ("a-b", 0.01)
    assert read_limit("accuracy").margin == 0.0
    assert read_limit("rouge 1").metric == "rouge 1"
    for bad in ("accuracy:much", ":0.1", "accuracy:-1", "accuracy:nan", "f1<=0.1", "a 0.1", ".1"):
        with pytest.raises(RequestError, match="METRIC:MARGIN"):
            read_limit(bad)


def test_a_margin_beyond_the_range_of_the_metric_is_refused(three, refuses):
    """Such a gate would always hold: people write 5 for 5 %."""

    def stars(outputs, expected):
        return 5.0 if outputs == expected else 1.0

    stars.bounds = (1.0, 5.0)  # type: ignore[attr-defined]
    karat.evaluate(list(three[:2]), [stars], store=three[0].store)
    for limit in (
        "right:5",
        "right accuracy:1.1",
        "right mean:2",
        "stars:4.5",
        "stars accuracy:2",
        "right:1e9",
    ):
        with refuses(RequestError):
            compare(three[:2], fail_if_worse=limit)
    for limit in ("right:1", "stars:4"):
        assert compare(three[:2], fail_if_worse=limit).verdict == "holds"


def test_runs_without_an_evaluation_name_the_call_that_makes_one(store, refuses):
    runs = [run_at(store, 0.9), run_at(store, 0.6)]
    with refuses(RequestError) as caught:
        compare(runs)
    assert f"karat.evaluate({[run.id for run in runs]}, " in str(caught.value)
    karat.evaluate(runs[0], ["exact_match"], store=store)
    with refuses(RequestError) as caught:
        compare(runs)
    assert f"karat.evaluate({[runs[1].id]}, " in str(caught.value)
    assert runs[0].id not in str(caught.value)
    assert compare(runs, evaluators=["exact_match"]).differences[0].metric == "exact_match accuracy"


def test_evaluations_made_one_by_one_are_as_good(store):
    runs = [run_at(store, 0.9), run_at(store, 0.6)]
    apart = [karat.evaluate(run, [right], store=store) for run in runs]
    together = karat.evaluate(runs, [right], store=store)
    assert compare(apart).differences == compare(together).differences
    assert compare(runs[0].id, runs[1].id, store=store).differences == compare(runs).differences


def test_attempts_are_clusters(store):
    runs = [run_at(store, 0.9, attempts=3), run_at(store, 0.6, attempts=3)]
    karat.evaluate(runs, [right], store=store)
    compared = compare(runs).differences[0].compared
    assert compared.difference.n == 3 * COUNT
    assert compared.difference.metadata["clusters"] == COUNT
    assert "note" not in compared.difference.metadata
    assert compared.difference.metadata["design_effect"] == pytest.approx(3, rel=0.05)
    assert compared.test.method == compared.difference.method == "gaffke, clustered"


def test_different_numbers_of_attempts_compare_means_of_examples(store, says):
    runs = [run_at(store, 0.9, attempts=3), run_at(store, 0.6)]
    karat.evaluate(runs, [right], store=store)
    made = compare(runs).differences[0]
    assert made.compared.difference.n == COUNT
    says(made.note)


@pytest.mark.parametrize("cluster", [None, "document"])
@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("broken", [set(), set(range(0, 60, 9))])
def test_the_p_value_inverts_the_interval_under_every_option(store, cluster, attempts, broken):
    def length(outputs):
        return karat.Result("length", len(outputs) / 12, metadata={})

    def wrong(outputs, expected):
        return karat.Result("wrong", float(outputs != expected), metadata={})

    length.version = wrong.version = "1"
    wrong.higher_is_better = False  # type: ignore[attr-defined]  # of a function
    runs = [run_at(store, rate, attempts=attempts) for rate in (0.9, 0.83, 0.78, 0.72, 0.6)]
    runs.append(run_at(store, 0.75, attempts=attempts, broken=broken))
    karat.evaluate(runs, [right, length, wrong], store=store)
    found = compare(runs, cluster=cluster).differences
    assert len(found) == 15
    for each in found:
        low, high, p = each.compared.difference.low, each.compared.difference.high, each.compared.p_value
        assert (low > 0 or high < 0) == (p < 0.05), each.conclusion
        assert low < each.compared.difference.value < high
    assert {each.compared.p_value < 0.05 for each in found} == {True, False}


def test_documents_are_clusters(three, refuses):
    plain, clustered = (
        compare(three[0], three[2], cluster=c).differences[0].compared for c in (None, "document")
    )
    assert clustered.difference.metadata["clusters"] == 15
    assert clustered.difference.metadata["note"] == few_clusters_note(15)
    assert few_clusters_note(15) in compare(three[0], three[2], cluster="document").report()
    assert "note" not in plain.difference.metadata
    assert clustered.difference.value == plain.difference.value
    with refuses(RequestError):
        compare(three, cluster="documnt")


def test_a_part_of_the_dataset_is_reported(store, says):
    runs = [run_at(store, 0.9), run_at(store, 0.6, limit=20)]
    karat.evaluate(runs, [right], store=store)
    made = compare(runs).differences[0]
    assert made.compared.difference.n == 20
    says(made.note)


def test_different_datasets_are_compared_over_what_is_the_same(store, refuses, says):
    changed = examples()
    changed[0]["expected"] = "Art"
    runs = [run_at(store, 0.9), run_at(store, 0.6, data=changed[:40])]
    for run in runs:
        karat.evaluate(run, [right], store=store)
    made = compare(runs)
    says(made.notes[0])
    assert made.differences[0].compared.difference.n == 39
    other = run_at(store, 0.6, data=[{"id": "x", "input": 1, "expected": "Art"}])
    karat.evaluate(other, [right], store=store)
    with refuses(RequestError):
        compare(runs[0], other)


def test_graded_scores_are_compared_by_their_mean_or_by_a_threshold(store):
    def graded(outputs, expected):
        return 0.9 if outputs == expected else 0.2

    runs = [run_at(store, 0.9), run_at(store, 0.6)]
    karat.evaluate(runs, [graded], store=store)
    mean = compare(runs).differences[0]
    assert (mean.metric, mean.compared.test.method) == ("graded mean", "gaffke")
    share = compare(runs, metrics="graded accuracy").differences[0]
    assert share.compared.test.method == "McNemar (corrected)"
    assert mean.compared.difference.value == pytest.approx(0.7 * share.compared.difference.value)
    for test in ("permutation", "bootstrap"):
        assert compare(runs, test=test).differences[0].compared.p_value < 0.01


def test_a_metric_that_is_not_there_names_the_nearest(three, refuses):
    with refuses(RequestError):
        compare(three, metrics="rigth")
    with refuses(RequestError):
        compare(three[0])


def test_tool_calls_of_trajectories_are_aligned(store, says):
    def messages(*cities):
        calls = [{"id": str(i), "type": "function", "function": {"name": "weather", "arguments": f'{{"city": "{c}"}}'}}
                 for i, c in enumerate(cities)]  # fmt: skip
        return [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "assistant", "content": "done"},
        ]

    def run_calling(name, *cities):
        task = FunctionTask(lambda question: messages(*cities), name=name)
        task.code = lambda: name
        data = karat.Dataset.from_examples([{"id": "a", "input": "?"}, {"id": "b", "input": "!"}], name="d")
        return karat.run(task, data, store=store, progress=False)

    def two_calls(outputs):
        return len(outputs[0]["tool_calls"]) == 2

    runs = [run_calling("good", "Paris", "Rome"), run_calling("bad", "Paris")]
    made = compare(runs, evaluators=[two_calls])
    says(made.worse[0].calls)
    assert "tool calls" in made.report()


def test_reports_are_clean_and_markdown_is_escaped(store):
    evil = [{"id": "a|b`<i>", "input": "<script>\x1b[31m|`x`", "expected": "yes"}, *examples(10)]
    runs = [
        run_at(store, 0.9, data=evil, broken={"<script>\x1b[31m|`x`"}),
        run_at(store, 0.2, data=evil, broken={None}),
    ]

    def found(example):
        return example.id == "a|b`<i>" or example.input < 3

    karat.evaluate(runs, [found, right], store=store)
    made = compare(runs)
    text, page = made.report(), made.markdown()
    assert "\x1b" not in text + page
    assert "<script>" not in page
    rows = [line for line in page.splitlines() if line.startswith("| e")]
    assert all(line.replace("\\|", "").count("|") == rows[0].replace("\\|", "").count("|") for line in rows)
    assert "rate=0.9" in text
    assert made.to_dict()["runs"][0]["id"] == runs[0].id


@pytest.mark.parametrize(
    ("lost", "won", "pairs", "margin"), [(0, 0, 48, 0.05), (2, 1, 60, 0.05), (10, 4, 100, 0.1)]
)
def test_an_undecided_gate_says_about_how_many_examples_would_decide_it(lost, won, pairs, margin):
    """It said 110 for 48 pairs that all tie, where 74 do."""
    needed = judge(Limit("m", margin), "a", "b", tango(lost, won, pairs), pairs).examples_needed
    more = needed / pairs
    low, high = tango_limits(lost * more, won * more, needed, critical(0.95))
    assert (low if (won - lost) / pairs > -margin else high) == pytest.approx(-margin, abs=0.05 * margin)


def test_long_prompts_are_shown_where_they_part(store):
    """The beginning that they share would fill the table of what differs."""
    begin = "Answer in one word, without an explanation. " * 10

    def answer(text, prompt):
        return text + prompt[-1]

    data = karat.Dataset.from_examples([{"id": "a", "input": "x", "expected": "x1"}], name="d")
    runs = [
        karat.run(FunctionTask(answer, parameters={"prompt": f"{begin}{n}"}), data, store=store)
        for n in range(3)
    ]
    karat.evaluate(runs, ["exact_match"], store=store)
    made = karat.compare(runs)
    [table] = [
        block
        for block in comparison_blocks(made)
        if isinstance(block, Table) and "what differs" in block.head
    ]
    [row] = [row for row in table.rows if row[0] == "prompt"]
    assert row[1:] == ["…0", "…1", "…2"]
    assert [each.values[0] for each in made.differs if each.name == "prompt"] == [f"{begin}0"], (
        "whole in JSON"
    )
