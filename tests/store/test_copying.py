"""Copying an item with its parents to another store, unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import karat
from karat.errors import StoreBusy, StoreError, UnknownName
from karat.records import FORMAT, AggregationHeader, Estimate
from karat.store import Store, open_store
from karat.store.lease import Held
from tests.store.conftest import Kind
from tests.store.faulty import FaultyBackend

DATA = [{"id": str(n), "input": n, "expected": n % 3} for n in range(40)]


def remainder(number: int) -> int:
    if number == 7:
        raise ValueError("no seven")
    return number % 3


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "source.db") as opened:
        yield opened


def measured(store: Store) -> Any:
    dataset = karat.Dataset.from_examples(DATA, name="numbers", labels=["small"])
    run = karat.run(remainder, dataset, store=store, labels=["first"])
    evaluation = karat.evaluate(run, ["exact_match"])
    return karat.aggregate(evaluation, ["accuracy"])


def content(aggregation: Any) -> list[Any]:
    (evaluation,) = aggregation.evaluations
    (run,) = evaluation.runs
    return [
        aggregation.header,
        evaluation.header,
        run.header,
        run.dataset.label,
        run.dataset.labels,
        list(run.dataset),
        list(run.outputs(history=True)),
        list(evaluation.results(history=True)),
        aggregation.status,
        aggregation.store.parents(evaluation.id),
        aggregation.store.descendants(run.dataset.id),
    ]


def test_a_copy_is_what_it_was(source: Store, kind: Kind, url_of: Callable[[Kind], str]) -> None:
    aggregation = measured(source)
    with open_store(url_of(kind)) as target:
        copy = source.copy(aggregation.id, target)
        assert copy.store is target
        assert content(copy) == content(aggregation)
        assert target.verify() == []
        assert source.copy(aggregation.id, target).id == copy.id, "what is there is not copied again"
        assert len(target.runs.list()) == 1
        again = karat.run(remainder, DATA, store=target)
        assert again.id == aggregation.runs[0].id, "the same run to whoever asks for it there"


def test_a_copy_takes_only_the_parents(source: Store, tmp_path: Path) -> None:
    aggregation = measured(source)
    run = aggregation.runs[0]
    copy = source.copy(run.id[:8], tmp_path / "target.db")
    assert copy.id == run.id
    assert copy.store.evaluations.list() == []
    copy.store.close()
    with pytest.raises(UnknownName):
        source.copy("run-0123456789", "memory://")


def test_a_copy_that_fails_at_any_write_is_completed_by_the_next(source: Store) -> None:
    aggregation = measured(source)
    fail_at = 1
    while True:
        with open_store("memory://") as target:
            faulty = FaultyBackend(target.backend)
            faulty.fail_at = fail_at
            try:
                source.copy(aggregation.id, Store(faulty))  # type: ignore[arg-type]  # it has every method
            except StoreError:
                assert fail_at <= faulty.writes
            else:
                break
            faulty.fail_at = 0
            copy = source.copy(aggregation.id, target)
            assert content(copy) == content(aggregation)
        fail_at += 1
    assert fail_at > 8


def test_what_is_being_worked_on_is_not_copied(source: Store, refuses) -> None:
    run = measured(source).runs[0]
    held = Held.take(source.backend, run.number)
    with refuses(StoreBusy) as caught:
        source.copy(run.id, "memory://")
    assert run.id in str(caught.value)
    held.release()
    assert source.copy(run.id, "memory://").id == run.id


def test_an_unfinished_run_is_copied_and_continued_there(source: Store) -> None:
    broken = [True]

    def task(number: int) -> int:
        if number == 20 and broken:
            raise StoreError("gone")
        return number

    task.version = "1"  # type: ignore[attr-defined]  # of a function
    with pytest.raises(StoreError):
        karat.run(task, DATA, store=source, concurrency=1)
    run = source.runs.get("latest")
    broken.clear()
    with open_store("memory://") as target:
        copy = source.copy(run.id, target)
        assert (copy.counts, copy.header.finished) == (run.counts, None)
        done = karat.run(task, DATA, store=target)
        assert (done.id, done.status) == (run.id, "success")


def test_an_aggregation_may_be_about_runs(source: Store) -> None:
    """What `compare` and `rank` store: other parents, and the settings they were called with."""
    run = measured(source).runs[0]
    header = AggregationHeader(
        format=FORMAT,
        id="",
        configuration="c",
        runs=[run.id],
        made_by="rank",
        settings={"method": "elo"},
        estimates=[Estimate(0.5, n=1, of=2, run=run.id)],
        status="success",
        finished=1.0,
    )
    made = source.aggregations.add(header)
    found = source.get(made.id)
    assert (found.header.made_by, found.header.settings) == ("rank", {"method": "elo"})
    assert [each.id for each in found.runs] == [run.id]
    assert source.parents(made.id) == [run.id]
    assert found.to_dict()["kind"] == "aggregation"
    assert made.id in source.descendants(run.id)
    assert content_of_rank(source.copy(made.id, "memory://")) == content_of_rank(found)


def content_of_rank(aggregation: Any) -> list[Any]:
    return [aggregation.header, [each.id for each in aggregation.runs]]
