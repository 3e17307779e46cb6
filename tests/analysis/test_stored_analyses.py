"""Comparisons and rankings are stored as aggregations, found by the commands, and returned while nothing changed."""

from __future__ import annotations

import json

import msgspec
import pytest

import karat
from karat.analysis import comparison, ranking
from karat.analysis.comparison import compare
from karat.analysis.outcomes import latency_of
from karat.analysis.ranking import rank
from karat.cli import main
from karat.errors import RequestError
from karat.serialization import encode
from karat.store.backend import OK, StoredRow
from tests.analysis.conftest import right, run_at

BY_MATCH = {"name": "by_metric", "params": {"metric": "exact_match"}}


@pytest.fixture
def runs(store):
    made = [run_at(store, 0.9), run_at(store, 0.6)]
    karat.evaluate(made, [right], store=store)
    return made


def test_a_comparison_is_an_aggregation_with_structured_estimates(runs, store):
    made = compare(runs, fail_if_worse="accuracy:0.05")
    aggregation = store.aggregations.get(made.id)
    assert aggregation.header.evaluations == [store.evaluations.list()[0].id]
    assert store.parents(made.id) == aggregation.header.evaluations
    estimate = aggregation.estimates.get(evaluator="right", aggregator="difference", run=runs[1].id)
    assert estimate.value == made.differences[0].compared.difference.value
    assert estimate.metadata["baseline"] == runs[0].id
    settings = aggregation.header.aggregators[0].params
    assert (settings["limits"], settings["confidence"]) == ({"right accuracy": 0.05}, 0.95)
    assert aggregation.tables[0].value["verdict"] == "fails"


def test_a_ranking_is_an_aggregation_with_structured_estimates(runs, store):
    made = rank(runs, evaluator=BY_MATCH)
    aggregation = store.aggregations.get(made.id)
    for place in made.places:
        found = aggregation.estimates.get(aggregator="ranking", run=place.run)
        assert found.value == place.rating.value
        assert aggregation.estimates.get(name="win_rate", run=place.run).value == place.win_rate.value
    assert aggregation.tables[0].value["places"][0]["run"] == made.places[0].run


def test_the_same_call_returns_it_without_computing(runs, store, monkeypatch):
    first, second = compare(runs), rank(runs, metric="right")

    def computed(*args, **kwargs):
        raise AssertionError("computed again")

    monkeypatch.setattr(comparison, "read_scores", computed)
    monkeypatch.setattr(ranking, "read_scores", computed)
    assert compare(runs) == first
    assert rank(runs, metric="right") == second
    with pytest.raises(AssertionError):
        compare(runs, confidence=0.9)
    with pytest.raises(AssertionError):
        compare(runs, new=True)
    with pytest.raises(AssertionError):
        rank(runs, metric="right", failures="leave_out")


def test_results_that_were_added_give_another_one(store):
    failing = set(range(10))
    runs = [run_at(store, 0.9), run_at(store, 0.6)]

    def flaky(outputs, expected, inputs):
        if inputs in failing:
            raise ValueError("not yet")
        return float(outputs == expected)

    flaky.version = "1"
    karat.evaluate(runs, [flaky], store=store)
    before = compare(runs)
    assert before.differences[0].compared.difference.n == 50
    failing.clear()
    karat.evaluate(runs, [flaky], store=store, retry_failed=True)
    after = compare(runs)
    assert after.id != before.id
    assert after.differences[0].compared.difference.n == 60


def test_ls_show_and_report_find_them(runs, store, capsys):
    made = [compare(runs), rank(runs, metric="right")]
    where = ["--store", store.url]
    assert main(["ls", "aggregations", *where]) == 0
    listed = capsys.readouterr().out
    for each, word in zip(made, ("comparison", "ranking"), strict=True):
        assert each.id in listed
        assert word in listed
        assert main(["show", each.id, *where]) == 0
        assert "right" in capsys.readouterr().out
        assert main(["report", each.id, *where]) == 0
        shown = capsys.readouterr().out
        assert each.conclusions[0] in shown
        assert main(["report", each.id, "--json", *where]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["aggregations"] == [each.id]
        assert document["tables"][0]["value"]["kind"] == word


def test_a_report_of_runs_is_still_of_their_own_numbers(runs, store, capsys):
    aggregation = karat.aggregate(store.evaluations.list()[0], ["accuracy"], store=store)
    compare(runs)
    rank(runs, metric="right")
    assert main(["report", runs[0].id, "--json", "--store", store.url]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["aggregations"] == [aggregation.id]


def test_no_gate_no_verdict(runs, store, capsys):
    assert compare(runs).verdict is None
    ids = [run.id for run in runs]
    assert main(["compare", *ids, "--json", "--store", store.url]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] is None


def test_the_public_names():
    assert karat.Ranking is ranking.Ranking
    assert karat.Comparison is comparison.Comparison
    assert "Ranking" not in dir(karat.aggregators)


def test_evaluators_of_one_key_with_different_parameters_are_named(store, refuses):
    runs = [run_at(store, 0.9), run_at(store, 0.6)]
    for run, sensitive in zip(runs, (True, False), strict=True):
        part = {"name": "exact_match", "params": {"case_sensitive": sensitive}}
        karat.evaluate(run, [part], store=store)
    for call in (lambda: rank(runs, metric="exact_match"), lambda: compare(runs)):
        with refuses(RequestError):
            call()


def test_the_seconds_of_outputs_are_in_comparisons_and_reports(runs, store, capsys):
    made = compare(runs).to_dict()["runs"][0]
    for name in ("service_seconds", "queue_seconds"):
        assert set(made[name]) == {"mean", "median", "p95", "max"}
    assert made["service_seconds"]["median"] <= made["service_seconds"]["p95"]
    assert main(["report", runs[0].id, "--json", "--store", store.url]) == 0
    document = json.loads(capsys.readouterr().out)["runs"][0]
    assert document["service_seconds"] == made["service_seconds"]
    assert document["queue_seconds"]["median"] == 0.0


def test_waiting_is_not_part_of_the_service_time(store):
    run = run_at(store, 0.9, count=3)
    outputs = [
        msgspec.structs.replace(output, try_number=2, seconds=3.0, queue_seconds=2.0 + place / 4)
        for place, output in enumerate(run.outputs())
    ]
    rows = [StoredRow(place, "1", 2, OK, None, encode(output)) for place, output in enumerate(outputs)]
    store.backend.append(run.number, rows)
    latency = latency_of(run)
    assert latency.service == {"mean": 0.75, "median": 0.75, "p95": pytest.approx(0.975), "max": 1.0}
    assert latency.queue == {"mean": 2.25, "median": 2.25, "p95": pytest.approx(2.475), "max": 2.5}


def test_a_store_that_can_only_be_read_is_compared_and_ranked(runs, store):
    gate = "accuracy:0.05"
    with karat.open_store(store.url, read_only=True) as reader:
        seen = [reader.runs.get(run.id) for run in runs]
        compared, ranked = compare(seen, fail_if_worse=gate), rank(seen, metric="right")
    assert (compared.id, ranked.id, store.aggregations.list()) == ("", "", [])
    for made, stored in (
        (compared, compare(runs, fail_if_worse=gate)),
        (ranked, rank(runs, metric="right")),
    ):
        assert msgspec.structs.replace(made, id=stored.id) == stored
