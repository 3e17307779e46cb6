"""Arguments of the stages: files, prepared evaluators, ids; and the errors for wrong types."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import karat
from karat.aggregators._base import Aggregate, Aggregator
from karat.errors import RequestError, UnknownName
from karat.evaluators._base import resolve_evaluator

DATA = [{"id": str(n), "input": n, "expected": n} for n in range(4)]


def same(number: int) -> int:
    return number


@pytest.fixture
def store() -> Any:
    with karat.open_store("memory://") as opened:
        yield opened


def test_a_dataset_is_opened_from_the_path_of_a_file(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.jsonl").write_text("".join(json.dumps(each) + "\n" for each in DATA))
    for given in ("d.jsonl", Path("d.jsonl"), str(tmp_path / "d.jsonl")):
        assert karat.run(same, given, store=store).counts.ok == 4
    assert karat.run(same, (each for each in DATA), store=store).counts.ok == 4
    stored = karat.run(same, "d", store=store)  # by its name, now that it is stored
    assert stored.dataset.label == "d@1"
    with pytest.raises(RequestError, match=r"missing\.jsonl"):
        karat.run(same, "missing.jsonl", store=store)
    with pytest.raises(UnknownName):
        karat.run(same, "missing", store=store)
    with refuses(RequestError):
        karat.run(same, 3, store=store)  # type: ignore[arg-type]  # on purpose


def test_the_wrong_kind_of_thing_is_named_with_what_to_do(store: Any, refuses) -> None:
    run = karat.run(same, DATA, store=store)
    evaluation = karat.evaluate(run, ["exact_match"])
    aggregation = karat.aggregate(evaluation, ["mean"])
    for given in (run, run.id):
        with refuses(RequestError) as caught:
            karat.aggregate(given, ["mean"], store=store)  # type: ignore[arg-type]  # on purpose
        assert run.id in str(caught.value)
    for given in (evaluation, evaluation.id):  # type: ignore[assignment]  # either handle
        with refuses(RequestError):
            karat.evaluate(given, ["exact_match"], store=store)  # type: ignore[arg-type]  # on purpose
    with refuses(RequestError):
        karat.aggregate(aggregation, ["mean"])  # type: ignore[arg-type]  # on purpose
    with refuses(RequestError):
        karat.evaluate(run.dataset, ["exact_match"])  # type: ignore[arg-type]  # on purpose


def test_a_run_of_another_store_is_refused_with_both_stores(store: Any, tmp_path: Path, refuses) -> None:
    run = karat.run(same, DATA, store=store)
    with karat.open_store(tmp_path / "other.db") as other, refuses(RequestError):
        karat.evaluate(run, ["exact_match"], store=other)


def test_a_prepared_evaluator_is_the_one_that_was_named(store: Any) -> None:
    run = karat.run(same, DATA, store=store)
    named = karat.evaluate(run, {"name": "edit_distance", "params": {"case_sensitive": False}, "key": "near"})
    prepared = resolve_evaluator(
        {"name": "edit_distance", "params": {"case_sensitive": False}, "key": "near"}
    )
    assert resolve_evaluator(prepared) is prepared
    for given in (prepared, [prepared]):
        again = karat.evaluate(run, given)
        assert again.id == named.id


def test_unknown_options_and_impossible_numbers_are_refused(store: Any, refuses) -> None:
    with refuses(TypeError):
        karat.run(same, DATA, store=store, retry_fail=True)  # type: ignore[call-arg]  # on purpose
    run = karat.run(same, DATA, store=store)
    with refuses(TypeError):
        karat.evaluate(run, ["exact_match"], retries=3)  # type: ignore[call-arg]  # only a run has retries
    with refuses(RequestError):
        karat.evaluate(run, ["exact_match"], concurrency=0)
    with refuses(TypeError):
        karat.compare([run, run], metric="exact_match")  # type: ignore[call-arg]  # it is `metrics`


class Waits(Aggregator[None]):
    """Folds only when the event loop had a turn."""

    turn = threading.Event()

    def start(self) -> None:
        return None

    def add(self, state: None, group: Any) -> None:
        assert self.turn.wait(30), "the event loop is blocked"

    def merge(self, a: None, b: None) -> None:
        return None

    def finish(self, state: None) -> Aggregate:
        return Aggregate()


async def test_aggregating_leaves_the_event_loop_free(store: Any) -> None:
    run = await karat.run_async(same, DATA, store=store)
    evaluation = await karat.evaluate_async(run, ["exact_match"])
    folding = asyncio.ensure_future(karat.aggregate_async(evaluation, Waits()))
    await asyncio.sleep(0)
    Waits.turn.set()
    aggregation = await folding
    assert not aggregation.header.failures


def test_a_parameter_beside_the_name_is_sent_to_its_place(store: Any, refuses) -> None:
    run = karat.run(same, DATA, store=store)
    evaluation = karat.evaluate(run, ["exact_match"])
    with pytest.raises(RequestError, match=r"params: \{case_sensitive: …\}"):
        karat.evaluate(run, [{"name": "exact_match", "case_sensitive": False}])
    with pytest.raises(RequestError, match=r"params: \{by: …\}"):
        karat.aggregate(evaluation, [{"name": "mean", "by": "topic"}])
    with refuses(RequestError):
        karat.aggregate(evaluation, [{"name": "mean", "parms": {}}])


def test_a_failure_has_no_context_of_the_event_loop(store: Any) -> None:
    with pytest.raises(UnknownName) as failure:
        karat.run(same, "missing", store=store)
    assert not isinstance(failure.value.__context__, RuntimeError)


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "loca"},
        {"labels": "baseline"},
        {"labels": 5},
        {"labels": [5]},
        {"metadata": [1]},
        {"store": 5},
    ],
    ids=str,
)
def test_options_of_the_wrong_kind_are_refused_also_where_the_run_is_finished(refuses, options):
    with karat.open_store("memory://") as store:
        rows = [{"id": "a", "input": "x"}]
        karat.run(str.upper, rows, store=store)
        with refuses(RequestError):
            karat.run(str.upper, rows, **{"store": store, **options})


@pytest.mark.parametrize("task", ["anser", "experiment.yaml", "nothing.py:answer"])
def test_a_text_that_is_no_task_says_what_is(refuses, task):
    with refuses(RequestError):
        karat.run(task, [{"input": "x"}], store="memory://")


@pytest.mark.parametrize("name", ["experimnt.yaml", "nothing.yaml", "folder"])
def test_an_experiment_that_is_not_there_names_the_nearest_file(refuses, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "experiment.yaml").write_text("task: x\n")
    with refuses(RequestError):
        karat.experiment(name)
