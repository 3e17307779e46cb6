"""How memory runs look in lists, tables, reports and the viewer: answers first, short texts, right directions."""

from __future__ import annotations

import json
import re

import pytest

import karat
from karat.cli import main
from karat.memory._system import LONGEST, as_example, summary_of_unit
from karat.view.data import Viewer
from tests.memory.parts import Notes, sample
from tests.memory.test_comparing import Forgetful
from tests.memory.test_files import run


@pytest.fixture
def two(tmp_path):
    store = tmp_path / "karat.db"
    one = run(tmp_path / "one", store=store)
    other = run(tmp_path / "two", Forgetful, store=store)
    return store, one, other


def test_lists_of_runs_show_the_accuracy_of_answers(two, capsys):
    store, one, _ = two
    assert main(["ls", "--store", str(store), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    shown = next(each["headline"] for each in listed["runs"] if each["id"] == one.run.id)
    assert (shown["evaluator"], shown["aggregator"]) == ("answer", "accuracy")
    assert shown["value"] == one.metrics["question_answering"]["correct_ratio"]


def test_without_answers_the_headline_is_the_recall_of_memories(tmp_path):
    made = run(tmp_path / "one", model=None)
    assert made.aggregation.estimates[0].evaluator == "recall"


def test_items_that_do_not_apply_are_not_in_the_totals_of_a_list(two, capsys):
    store, one, _ = two
    counts = one.evaluation.counts
    assert counts.not_applicable > 0
    assert main(["ls", "--store", str(store)]) == 0
    assert f"{counts.ok} of {counts.ok}" in capsys.readouterr().out


def test_rows_show_sessions_and_questions_as_text(two):
    _, one, _ = two
    rows = {(row.id, row.unit): row for row in one.evaluation.rows()}
    question = rows["ana", "question/0"]
    assert question.shown("input") == "What is the dog of Ana called?"
    assert question.shown("expected") == "Bruno"
    assert question.shown("output").splitlines()[0] == question.output["generated_answer"]
    assert "retrieved: " in question.shown("output")
    session = rows["ana", "session/S00"]
    assert session.shown("input").splitlines()[0] == "user: My dog is called Bruno."
    assert "new: Ana has a dog called Bruno" in session.shown("expected")
    assert session.shown("output").startswith("add: ")
    assert session.output["memory_delta"]  # the value itself is unchanged


def test_an_example_is_shown_as_text_and_without_what_does_not_apply(two, capsys):
    store, one, _ = two
    assert main(["show", one.evaluation.id, "--example", "ana", "--store", str(store)]) == 0
    shown = capsys.readouterr().out
    question = shown[shown.index("unit question/0") :].splitlines()
    assert [line.split(maxsplit=1) for line in question[1:3]] == [
        ["input", "What is the dog of Ana called?"],
        ["expected", "Bruno"],
    ]
    assert '"memory_delta"' not in shown
    assert '"gold_answer"' not in shown
    assert "for sessions" not in shown
    assert "for questions" not in shown
    assert "result of recall" in shown


def test_a_failed_question_shows_its_text(tmp_path):
    class Refusing(Notes):
        def retrieve(self, query, top_k, now):
            raise OSError("no index")

    made = run(tmp_path / "one", Refusing, samples=[sample()])
    rows = {row.unit: row for row in made.run.rows()}
    assert rows["question/1"].status == "failed"
    assert rows["question/1"].shown("input") == "Where does Ana live?"


def test_summaries_are_bounded():
    record = {
        "retrieval": {"query": "q" * 5000, "items": [{"text": "m" * 5000}] * 500},
        "generated_answer": None,
        "gold_answer": "g" * 5000,
    }
    made = summary_of_unit(as_example(sample()), "question/0", record)
    assert made["output"].startswith("no answer\n")
    assert all(len(text) <= LONGEST for text in made.values())


def test_a_comparison_shows_the_unit_that_changed(two):
    store, one, other = two
    compared = karat.compare([one.run.id, other.run.id], store=store)
    better = next(each for each in compared.better if each.metric == "answer")
    assert (better.unit, better.input, better.expected) == (
        "question/2",
        "Where does Ana live?",
        "I don't know.",
    )
    assert better.first_output.splitlines()[0] == "user: I live in Lyon."
    assert better.second_output.splitlines()[0] == "I don't know."
    by_recall = next(each for each in compared.worse if each.metric == "recall")
    assert by_recall.unit.startswith("session/")


def test_the_viewer_does_not_count_items_as_missing_that_do_not_apply(two):
    store, one, other = two
    viewer = Viewer(str(store))
    try:
        found = viewer.compared_rows(one.run.id, other.run.id, evaluator="answer")
        row = next(each for each in found["rows"] if each["unit"] == "question/1")
        item = viewer.item(one.run.id, row["key"])
        alone = viewer.compared_rows(
            one.run.id, other.run.id, evaluator="answer", where='changed:"not applicable"'
        )
    finally:
        viewer.close()
    sessions = sum(unit.startswith("session") for _, unit in {(r.id, r.unit) for r in one.run.rows()})
    assert found["counts"]["missing"] == 0
    assert found["counts"]["not applicable"] == sessions == alone["matching"]
    assert row["input"] == "Where does Ana live?"
    assert item["example"]["input"]["text"] == "Where does Ana live?"
    assert item["output"]["value"]["kind"] == "text"


def test_the_viewer_slices_by_distance_and_by_updates(two):
    store, one, other = two
    viewer = Viewer(str(store))
    try:
        found = {
            by: viewer.slices([one.run.id, other.run.id], by, "answer")
            for by in (None, "session_distance", "updates_since")
        }
    finally:
        viewer.close()
    for by in ("session_distance", "updates_since"):
        page = found[by]
        assert by in page["fields"]
        assert page["by"] == by
        stated = one.metrics[f"accuracy_by_{by}"]
        assert {group["value"]: (group["runs"][0]["value"], group["of"]) for group in page["groups"]} == {
            value: (each["correct"], each["n"]) for value, each in stated.items()
        }
        assert page["plot"] is not None
    assert found[None]["by"]


def test_reports_plot_accuracy_by_distance_and_by_updates(two, tmp_path):
    store, one, other = two
    for ids in ([one.run.id], [one.run.id, other.run.id]):
        assert main(["report", *ids, "--store", str(store), "-o", str(tmp_path / "report.html")]) == 0
        page = (tmp_path / "report.html").read_text()
        titles = re.findall(r"<figcaption>([^<]+)</figcaption>", page)
        assert any(
            title.startswith("answer accuracy") and title.endswith("by session_distance") for title in titles
        )
        plot = page[page.index("by session_distance</figcaption>") :]
        plot = plot[: plot.index("</figure>")]
        assert "at 0" in plot
        assert "at 1" in plot


def test_every_rate_has_its_own_direction(two, tmp_path):
    store, one, other = two
    better = {
        (each.evaluator, each.name): each.better({"context_tokens"})
        for each in one.aggregation.estimates
        if each.group is None
    }
    assert better["answer", ""] == "higher"
    assert better["answer", "hallucination_ratio"] == better["correctness", "avg_hallucination"] == "lower"
    assert better["answer", "false_refusal_rate"] == "lower"
    assert better["context_tokens", "share_of_store"] is None
    assert (
        main(["report", one.run.id, other.run.id, "--store", str(store), "-o", str(tmp_path / "report.html")])
        == 0
    )
    titles = re.findall(r"<figcaption>([^<]+)</figcaption>", (tmp_path / "report.html").read_text())
    assert "answer hallucination_ratio ↓" in titles
    assert "answer accuracy ↑" in titles


def test_reports_of_runs_write_question_types_out(tmp_path):
    made = karat.memory.evaluate(
        [sample(), sample("bea", "Rome")],
        Notes,
        output_dir=tmp_path / "out",
        judge="deterministic",
        model="extractive",
        store="memory://",
    )
    metrics = made.metrics
    grouped = [each for each in made.aggregation.estimates if "question_type" in (each.group or {})]
    shown = {
        each.group["question_type"]: each.metadata["note"] for each in grouped if each.evaluator == "answer"
    }
    assert shown
    assert {short: note.split("; ")[0] for short, note in shown.items()} == metrics["question_types"]
    report = made.aggregation.report()
    assert all(name in report for name in metrics["question_types"].values())
