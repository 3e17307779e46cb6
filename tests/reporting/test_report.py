"""Reports: everything about runs in four formats, readable and safe to open."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

import karat
from karat.aggregators import Accuracy
from karat.analysis.summary import summarise
from karat.errors import BudgetReached, RequestError, for_command_line
from karat.formatting import Heading, Paragraph, Table, as_markdown, as_text, escape, short_number
from karat.reporting.html_report import html_report
from karat.reporting.rendering import render
from tests.analysis.conftest import right, run_at


@pytest.fixture
def store(tmp_path):
    with karat.open_store(tmp_path / "karat.db") as opened:
        yield opened


@pytest.fixture
def aggregation(store):
    runs = [run_at(store, 0.9), run_at(store, 0.6, broken={3, 4})]
    evaluation = karat.evaluate(runs, [right], store=store)
    specs = ["accuracy", {"name": "f1_score", "params": {"by": "document"}}, "histogram", "count_by"]
    return karat.aggregate(evaluation, specs, store=store)


def test_the_text_has_all_that_a_paper_needs(store, aggregation, says):
    text = render(summarise(store, [aggregation.id]), "text")
    assert "answer on classes@1" in text
    says(*[line for line in text.splitlines() if "accuracy  " in line or "seconds" in line])
    assert "rate=0.6" in text
    assert "golden ↓ predicted →" in text
    assert "document=d3" in text
    assert "ValueError" in text
    assert "e3 (also e4)" in text
    assert "karat" in text.rpartition("made with")[2]


def test_a_run_brings_its_evaluation_and_that_its_aggregation(store, aggregation):
    run = aggregation.evaluations[0].runs[0]
    made = summarise(store, [run])
    assert made.aggregations == [aggregation.id]
    assert {metric.estimate.run for metric in made.metrics} == {run.id}


def test_runs_are_reported_by_the_evaluator_that_they_share(store):
    """Evaluators of one key and other settings measure something else: they do not share a column unnoticed."""
    first, second = run_at(store, 0.9), run_at(store, 0.6)
    other = {"name": "contains", "params": {"case_sensitive": True}}
    together = karat.evaluate([first, second], ["contains", right], store=store)
    alone = karat.evaluate(first, [other, "exact_match"], store=store)
    for each in (together, alone):
        karat.aggregate(each, ["accuracy"], store=store)
    made = summarise(store, [first, second])
    sources = {(m.estimate.evaluator, m.estimate.run): m.source for m in made.metrics}
    assert sources["contains", first.id] == sources["contains", second.id]
    assert sources["exact_match", first.id] != sources["contains", first.id]  # only the first run has it
    assert made.notes == []
    newest = {m.estimate.evaluator: m.source for m in summarise(store, [first]).metrics}
    assert newest["contains"] == newest["exact_match"]  # a run alone has its newest


def test_evaluators_of_one_key_that_differ_are_noted(store, says):
    first, second = run_at(store, 0.9), run_at(store, 0.6)
    given = [
        karat.evaluate(first, ["contains"], store=store),
        karat.evaluate(second, [{"name": "contains", "params": {"case_sensitive": True}}], store=store),
    ]
    for ids in (given, [first, second]):
        made = summarise(store, ids)
        assert len(made.notes) == 1
        assert made.notes[0] in render(made, "text")
        assert made.notes[0].split("'")[2][:40] in html_report(store, made)
    says(re.sub(r"(run|eval)-\w+", r"\1-ID", made.notes[0]))


class Broken(Accuracy):
    """An accuracy that cannot be computed."""

    def finish(self, state):
        raise ValueError("no number")


def test_an_aggregation_that_failed_hides_no_result(store, says):
    run = run_at(store, 0.9)
    evaluation = karat.evaluate(run, [right], store=store)
    wrong = Broken()
    failed = karat.aggregate(evaluation, [wrong], store=store)
    for ids in ([run], [evaluation], [failed]):  # the usual metric, as if nothing had aggregated it
        made = summarise(store, ids)
        assert [metric.source for metric in made.metrics] == [evaluation.id]
    says(made.notes[0])
    good = karat.aggregate(evaluation, ["accuracy"], store=store)
    karat.aggregate(evaluation, [wrong], store=store, new=True)
    made = summarise(store, [run])
    assert [metric.source for metric in made.metrics] == [good.id]
    assert made.notes == []


def test_an_evaluation_that_nothing_aggregated_has_its_means(store):
    runs = [run_at(store, 0.9), run_at(store, 0.6, broken={3})]

    def graded(outputs, expected):
        return 0.9 if outputs == expected else 0.2

    made = summarise(store, [karat.evaluate(runs, [right, graded], store=store)])
    values = {(m.estimate.label, m.estimate.run): m.estimate for m in made.metrics}
    assert values["right accuracy", runs[1].id].of == 60
    assert values["right accuracy", runs[1].id].n == 59
    assert ("graded mean", runs[0].id) in values


def test_a_run_without_an_evaluation_names_the_next_command(store, refuses):
    run = run_at(store, 0.9)
    assert "karat.evaluate" in render(summarise(store, [run.id]), "text")
    with for_command_line():
        assert f"karat evaluate {run.id} -e NAME" in render(summarise(store, [run.id]), "text")
    with refuses(RequestError):
        summarise(store, ["classes"])


def test_csv_has_a_row_for_each_number(store, aggregation):
    rows = list(csv.DictReader(io.StringIO(render(summarise(store, [aggregation.id]), "csv"))))
    accuracy = next(
        r
        for r in rows
        if (r["evaluator"], r["aggregator"]) == ("right", "accuracy") and r["run"] == "rate=0.6"
    )
    assert (accuracy["n"], accuracy["of"]) == ("58", "60")
    assert float(accuracy["low"]) < float(accuracy["value"]) < float(accuracy["high"])


@pytest.mark.parametrize("text", ["=1+1", "+A1", "-2+3", "@SUM(A1)", "\uff1d1+1", "\uff20SUM(A1)"])
def test_formulas_are_text_in_csv(store, text):
    evaluation = karat.evaluate(
        run_at(store, 0.9, labels=[text]), {"name": "exact_match", "key": text}, store=store
    )
    aggregation = karat.aggregate(evaluation, ["accuracy"], store=store)
    [row] = csv.DictReader(io.StringIO(render(summarise(store, [aggregation.id]), "csv")))
    assert row["evaluator"] == "'" + text
    assert not [cell for cell in row.values() if cell.startswith(text)]


def latex_tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, the head first."""
    tables = re.findall(r"\\begin\{tabular\}\{[lr]+\}\n(.*?)\\end\{tabular\}", text, re.DOTALL)
    rows = [[line for line in table.splitlines() if line.endswith(r" \\")] for table in tables]
    return [[re.split(r" (?<!\\)& ", line.removesuffix(r" \\")) for line in table] for table in rows]


def test_latex_has_runs_by_metrics(store, aggregation):
    summary = summarise(store, [aggregation.id])
    text = render(summary, "latex")
    (head, *rows), *grouped = latex_tables(text)
    assert head[0] == "run"
    assert [row[0] for row in rows] == [run.label for run in summary.runs]
    assert {len(row) for row in rows} == {len(head)}
    cells = dict(zip(head, zip(*rows, strict=True), strict=True))
    best, other = cells["right accuracy"]
    assert best.startswith(r"\textbf{")
    assert "(58 of 60)" in other
    groups = {tuple(sorted(each.estimate.group)) for each in summary.metrics if each.estimate.group}
    assert len(grouped) == len(groups)


@pytest.mark.parametrize("text", [r"\input{/etc/passwd}", "a_b & c%d", "[x]", "~^#$", "{", "tab\tnew\nline"])
def test_names_are_text_in_latex(store, text):
    run = run_at(store, 0.9, labels=[text.replace("\t", " ").replace("\n", " ")])
    evaluation = karat.evaluate(run, {"name": "exact_match", "key": text}, store=store)
    karat.aggregate(evaluation, ["accuracy"], store=store)
    [[head, row]] = latex_tables(render(summarise(store, [evaluation.id]), "latex"))
    for cell in (head[1], row[0]):
        bare = re.sub(r"\\[&%$#_{}]|\\text\w+\{\}|^\{\}", "", cell)
        assert not set(bare) & set("&%$#_{}\\~^\n\t")


def test_json_has_everything(store, aggregation):
    document = json.loads(render(summarise(store, [aggregation.id]), "json"))
    assert document["kind"] == "report"
    assert document["runs"][1]["counts"]["failed"] == 2
    assert document["failures"][0]["examples"][0]["example"] == "e3"
    assert any(table["name"] == "confusion" for table in document["tables"])


def test_markdown_from_outside_stays_text(store, aggregation):
    page = render(summarise(store, [aggregation.id]), "markdown")
    assert "\x1b" not in page
    assert "<b>" not in page
    row = next(line for line in page.splitlines() if "ValueError" in line)
    assert row.replace("\\|", "").count("|") == 7


@pytest.mark.parametrize(
    "text",
    ["a|b", "`code`", "<img src=x onerror=alert(1)>", "[x](javascript:1)", "![x](y)", "**bold**", "# head", "- item",
     "1. item", "http://example.org", "@everyone", "a\nb", "\x1b[31mred", "&lt;", "~~gone~~", "$x$"],
)  # fmt: skip
def test_no_text_can_become_markup(text):
    shown = escape(text)
    for sign in "<>\n\x1b":
        assert sign not in shown
    table = as_markdown([Table(["a"], [[text]])]).splitlines()
    assert len(table) == 3
    assert table[2].replace("\\|", "").count("|") == 2
    for opening in ("[", "`", "**", "~~", "$"):
        if opening in text:
            assert f"\\{opening[0]}" in shown
    if text.startswith(("-", "#", "1.", "!")):
        assert shown.startswith("\\")
    assert "http://" not in shown
    assert not shown.startswith("@e")


def test_blocks_for_a_terminal_are_bounded():
    text = as_text([Heading("x" * 500, 1), Paragraph("a\x07b"), Table(["h"], [["y" * 500]])])
    assert max(map(len, text.splitlines())) <= 200
    assert "\x07" not in text


def test_a_ranking_is_in_the_report(store):
    from karat.evaluators._pairwise import ByMetric

    runs = [run_at(store, rate) for rate in (0.6, 0.9, 0.75)]
    made = karat.aggregate(
        karat.evaluate(runs, [ByMetric("exact_match")], store=store), ["ranking", "win_rate"]
    )
    text = render(summarise(store, [made.id]), "text")
    assert "by_exact_match  ranking" in text
    assert "1–" in text
    assert "rate=0.9" in text.partition("by_exact_match ranking")[2]


def test_comparing_runs_hides_nothing_that_was_judged_before(store):
    from karat.evaluators._pairwise import ByMetric

    runs = [run_at(store, rate, broken={3}) for rate in (0.9, 0.6)]
    for run in runs:
        karat.aggregate(karat.evaluate(run, [right], store=store), ["accuracy", "f1_score"], store=store)
    karat.evaluate(runs, [ByMetric("exact_match")], store=store)
    made = summarise(store, [run.id for run in runs])
    accuracies = [
        (m.estimate.run, m.estimate.n, m.estimate.of)
        for m in made.metrics
        if m.estimate.label == "right accuracy"
    ]
    assert accuracies == [(run.id, 59, 60) for run in runs]
    assert len([table for table in made.tables if table.name == "confusion"]) == 2, "one for each run"
    text = render(made, "text")
    assert "right f1_score confusion, rate=0.6" in text
    assert "by_exact_match ranking" in text
    assert "ranking position_bias" in text
    macro = next(m.estimate for m in made.metrics if m.estimate.label == "right f1_score macro")
    assert macro.lowest < macro.value < macro.highest


def test_pending_items_are_in_the_denominator(store):
    run = run_at(store, 0.9)

    def sometimes(outputs, expected, example):
        if example.input >= 40:
            raise BudgetReached("the budget is spent")
        return outputs == expected

    with pytest.raises(BudgetReached):
        karat.evaluate(run, [sometimes], store=store, progress=False, concurrency=1)
    evaluation = store.evaluations.list()[-1]
    assert evaluation.counts.pending > 0
    metric = next(m for m in summarise(store, [evaluation]).metrics if m.estimate.evaluator == "sometimes")
    assert metric.estimate.n < metric.estimate.of == 60


def test_an_aggregation_prints_its_design_effect_its_tables_and_one_confidence(store, says):
    evaluation = karat.evaluate(run_at(store, 0.6, broken={3}), [right], store=store)
    clustered = {"name": "accuracy", "params": {"cluster": "document"}, "key": "documents"}
    made = karat.aggregate(evaluation, [clustered, "f1_score"], store=store).report()
    assert "design effect 1." in made
    assert "15 clusters" in made
    says(*[line for line in made.splitlines() if "clusters" in line or "tables: " in line])
    assert "95 % interval" in made
    mixed = {"name": "accuracy", "params": {"confidence": 0.8}, "key": "narrow"}
    assert "% interval" not in karat.aggregate(evaluation, [clustered, mixed], store=store).report()


def test_a_failure_that_all_runs_share_is_reported_once(store):
    def broken(results: list[karat.Result]) -> float:
        raise ValueError("no number")

    evaluation = karat.evaluate([run_at(store, 0.6), run_at(store, 0.9)], [right], store=store)
    aggregation = karat.aggregate(evaluation, [broken], store=store)
    assert len(aggregation.header.failures) == 2
    assert aggregation.report().count("failed: ") == 1


def test_an_estimate_without_an_interval_says_why(store, says):
    def worst(results: list[karat.Result]) -> float:
        return min(result.score or 0.0 for result in results)

    def length(outputs: str) -> int:
        return len(outputs)

    run = karat.run(lambda text: text, [{"input": "abc"}], store=store, progress=False)
    made = karat.aggregate(karat.evaluate(run, [length], progress=False), [worst, "mean"]).report()
    says(*[line for line in made.splitlines() if line.startswith("length ") and "—" in line])


def test_a_terminal_shows_the_first_numbers_of_an_aggregator_and_says_how_many_more_there_are(store, says):
    dataset = karat.Dataset.from_examples([{"input": f"t{i}", "expected": f"answer {i}"} for i in range(60)])
    run = karat.run(lambda text: text, dataset, store=store, progress=False)
    evaluation = karat.evaluate(run, ["unit:exact_match"], store=store, progress=False)
    aggregation = karat.aggregate(evaluation, ["precision", "accuracy"], store=store)
    text, whole = aggregation.report(), aggregation.report(whole=True)
    numbers = len(aggregation.estimates)
    assert numbers > 60
    [more] = [line for line in text.splitlines() if f" {numbers - 21:,} " in line]
    assert f" karat show {aggregation.id} " in more
    says(more)
    assert sum(line.startswith("unit:exact_match  precision") for line in text.splitlines()) == 20
    assert "unit:exact_match  accuracy" in text
    assert more not in whole
    assert all(each.group["class"] in whole for each in aggregation.estimates if each.group)


@pytest.mark.parametrize(
    ("score", "text"), [(0.4286, "0.429"), (1.0, "1"), (182.4, "182"), (1270.2, "1,270"), (-1270.2, "-1,270")]
)
def test_a_large_score_has_no_exponent(score, text):
    assert short_number(score) == text


def test_a_side_without_a_limit_is_shown_as_such(store, says):
    """20 scores have no upper limit for the quantile 0.95."""

    def graded(outputs, inputs):
        return inputs / 20

    evaluation = karat.evaluate(run_at(store, 0.9, count=20), [graded], store=store)
    part = {"name": "quantiles", "params": {"probabilities": [0.95]}}
    made = karat.aggregate(evaluation, [part], store=store)
    [estimate] = made.estimates
    assert estimate.low is not None
    assert estimate.high is None
    summary = summarise(store, [made.id])
    [limit] = set(re.findall(rf"\[{estimate.low:.3f}, ([^\]]+)\]", render(summary, "text")))
    says(limit)
    for shown in (render(summary, "markdown"), html_report(store, summary)):
        assert f", {limit}" in shown
    [row] = csv.DictReader(io.StringIO(render(summary, "csv")))
    assert (row["high"], float(row["low"])) == ("", estimate.low)
    assert json.loads(render(summary, "json"))["metrics"][0]["estimate"].get("high") is None
