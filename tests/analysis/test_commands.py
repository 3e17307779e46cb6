"""`karat compare`, `karat rank` and `karat report` as people call them."""

from __future__ import annotations

import json

import pytest

import karat
from karat.cli import main
from tests.analysis.conftest import right, run_at


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with karat.open_store("karat.db") as store:
        made = [run_at(store, 0.9), run_at(store, 0.6)]
        karat.evaluate(made, [right], store=store)
    return [run.id for run in made]


def test_compare_prints_a_table_and_gates_by_exit_code(runs, capsys):
    assert main(["compare", *runs]) == 0
    assert "right accuracy" in capsys.readouterr().out
    assert main(["compare", *runs, "--fail-if-worse", "accuracy:0.05"]) == 1
    assert "gate: fails" in capsys.readouterr().out
    assert main(["compare", *runs, "--fail-if-worse", "accuracy:0.3"]) == 4
    assert "gate: undecided" in capsys.readouterr().out
    assert main(["compare", *runs, "--fail-if-worse", "accuracy:0.6"]) == 0


def test_compare_as_json_and_markdown(runs, capsys):
    assert main(["compare", *runs, "--json", "--fail-if-worse", "right:0.05"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "fails"
    assert document["differences"][0]["compared"]["losses"] > 0
    assert main(["compare", *runs, "--format", "markdown"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# ")
    assert "| better | worse | same | missing |" in page


def test_compare_evaluates_first_where_asked(runs, capsys):
    assert main(["compare", *runs, "-e", "exact_match", "--quiet"]) == 0
    assert "exact_match accuracy" in capsys.readouterr().out


def test_mistakes_are_one_sentence(runs, capsys, says):
    assert main(["compare", runs[0]]) == 2
    says(capsys.readouterr().err)
    assert main(["compare", *runs, "--metric", "exact_match"]) == 2
    says(capsys.readouterr().err)
    assert main(["rank", *runs, "--plan"]) == 2
    assert "--evaluator" in capsys.readouterr().err
    assert main(["report", runs[0], "-o", "report.docx"]) == 2
    assert ".md" in capsys.readouterr().err


def test_rank_by_scores_by_comparisons_and_as_a_plan(runs, capsys, says):
    assert main(["rank", *runs, "--metric", "right"]) == 0
    says(capsys.readouterr().out.splitlines()[0])
    judge = '{"name": "by_metric", "params": {"metric": "exact_match"}}'
    assert main(["rank", *runs, "--evaluator", judge, "--plan"]) == 0
    assert "0 done, 60 missing" in capsys.readouterr().out
    assert main(["rank", *runs, "--evaluator", judge, "--elo", "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [place["label"] for place in document["places"]] == ["rate=0.9", "rate=0.6"]
    assert main(["rank", *runs, "--evaluator", judge, "--plan"]) == 0
    assert "60 done, 0 missing" in capsys.readouterr().out


def test_rank_amends_an_evaluation(runs, capsys, tmp_path, says):
    with karat.open_store("karat.db") as store:
        judge = {"name": "by_metric", "params": {"metric": "exact_match"}}
        from karat.analysis.ranking import as_pairwise_evaluator

        as_pairwise_evaluator("by_metric")
        first = karat.evaluate(runs, [judge], store=store).id
        third = run_at(store, 0.75).id
    assert main(["rank", third, "--amend", first, "--quiet"]) == 0
    says(capsys.readouterr().out.splitlines()[0])


def test_report_in_every_format(runs, capsys, tmp_path):
    assert main(["report", *runs]) == 0
    assert "right      accuracy" in capsys.readouterr().out
    for name, sign in (
        ("report.md", "# answer"),
        ("report.json", "{"),
        ("report.csv", "evaluator,aggregator,"),
        ("report.txt", "answer"),
    ):
        assert main(["report", *runs, "-o", name]) == 0
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(sign)
    capsys.readouterr()
    assert main(["report", runs[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "report"


def test_plain_accuracy_is_of_the_metric_that_was_asked_for(runs, capsys):
    assert main(["compare", *runs, "-e", "exact_match", "--quiet"]) == 0
    assert main(["compare", *runs, "--fail-if-worse", "accuracy:0.6"]) == 2
    assert "is ambiguous" in capsys.readouterr().err
    assert main(["compare", *runs, "--metric", "right", "--fail-if-worse", "accuracy:0.6"]) == 0
    assert "right accuracy" in capsys.readouterr().out.partition("gate: holds")[2]


def test_confidence_widens_every_interval(runs, capsys):
    def shown(*command):
        main([*command, "--json", "--quiet"])
        return json.loads(capsys.readouterr().out)

    def width(estimate):
        return estimate["high"] - estimate["low"]

    compared = [
        width(shown("compare", *runs, "--confidence", c)["differences"][0]["compared"]["difference"])
        for c in ("0.8", "0.99")
    ]
    ranked = [
        width(shown("rank", *runs, "--metric", "right", "--confidence", c)["places"][0]["rating"])
        for c in ("0.8", "0.99")
    ]
    reported = [
        width(shown("report", *runs, "--confidence", c)["metrics"][0]["estimate"]) for c in ("0.8", "0.99")
    ]
    for narrow, wide in (compared, ranked, reported):
        assert narrow < wide


@pytest.fixture
def shared_runs(postgres_url):
    with karat.open_store(postgres_url) as store:
        made = [run_at(store, 0.9, broken={3}), run_at(store, 0.6)]
        karat.evaluate(made, [right], store=store)
    return postgres_url, [run.id for run in made]


def test_compare_on_postgresql(shared_runs, capsys):
    url, ids = shared_runs
    assert main(["compare", *ids, "--store", url, "--fail-if-worse", "accuracy:0.05", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "fails"
    assert document["differences"][0]["compared"]["difference"]["of"] == 60
    assert document["worse"]


def test_rank_on_postgresql(shared_runs, capsys):
    url, ids = shared_runs
    judge = '{"name": "by_metric", "params": {"metric": "exact_match"}, "key": "match"}'
    rank = ["rank", *ids, "--store", url, "--evaluator", judge, "--json", "--quiet"]
    assert main(rank) == 0
    document = json.loads(capsys.readouterr().out)
    assert [place["run"] for place in document["places"]] == ids
    assert (document["n"], document["of"], document["failed"]) == (60, 60, 1)
    assert main([*rank, "--failures", "leave_out"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["n"], document["of"], document["failures"]) == (59, 60, "leave_out")
    assert main(["rank", *ids, "--store", url, "--evaluator", judge, "--plan"]) == 0
    assert "59 done, 0 missing" in capsys.readouterr().out


def test_report_on_postgresql(shared_runs, capsys, tmp_path):
    url, ids = shared_runs
    assert main(["report", *ids, "--store", url, "-o", str(tmp_path / "report.md")]) == 0
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "59 of 60" in page
    assert "ValueError" in page


def test_rank_by_a_function_in_a_file(runs, capsys, tmp_path, says):
    judge = tmp_path / "judge.py"
    judge.write_text("def better(first, second, expected):\n    return (first == expected) * 0.5 + 0.25\n")
    assert main(["rank", *runs, "--evaluator", "judge.py:better", "--quiet"]) == 0
    says(capsys.readouterr().out.splitlines()[0])
    assert main(["rank", *runs, "--evaluator", "judge.py:better", "--plan"]) == 0
    assert "60 done, 0 missing" in capsys.readouterr().out


def test_rank_by_an_evaluator_of_single_outputs_judges_nothing_first(runs, capsys, says):
    assert main(["rank", *runs, "--evaluator", "exact_match"]) == 2
    says(capsys.readouterr().err)
    with karat.open_store("karat.db") as store:
        assert len(store.evaluations.list()) == 1
