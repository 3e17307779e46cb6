"""A write that fails, each in turn: the stage stops with a StoreError, and the same command continues it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

import karat
from karat.datasets import Dataset
from karat.errors import StoreError
from karat.store import Store, open_store
from karat.store.handles import Aggregation
from tests.store.conftest import Kind
from tests.store.faulty import FaultyBackend

COUNT, CONCURRENCY = 12, 4

calls: Counter[str] = Counter()


async def double(input: int, example: karat.Example) -> int:
    calls[example.id] += 1
    return 2 * input


def double_in_a_thread(input: int, example: karat.Example) -> int:
    calls[example.id] += 1
    return 2 * input


def whole_flow(store: Store, task: Callable[..., object], dataset: Dataset) -> Aggregation:
    run = karat.run(task, dataset, store=store, concurrency=CONCURRENCY)
    evaluation = karat.evaluate(run, ["exact_match"], concurrency=CONCURRENCY)
    return karat.aggregate(evaluation, ["accuracy"])


def assert_all_is_there_once(store: Store, aggregation: Aggregation) -> None:
    (evaluation,) = aggregation.evaluations
    (run,) = evaluation.runs
    assert [output.example for output in run.outputs()] == [f"e{n}" for n in range(COUNT)]
    assert [output.value for output in run.outputs()] == [2 * n for n in range(COUNT)]
    assert [result.example for result in evaluation.results()] == [f"e{n}" for n in range(COUNT)]
    assert len(list(run.outputs(history=True))) == len(list(evaluation.results(history=True))) == COUNT
    assert (run.status, evaluation.status, aggregation.status) == ("success",) * 3
    assert run.counts.ok == evaluation.counts.ok == COUNT
    assert len(store.runs.list()) == len(store.evaluations.list()) == 1
    assert store.backend.lease(run.number) is store.backend.lease(evaluation.number) is None
    assert store.check() == []


@pytest.mark.parametrize("made", [False, True], ids=["not made", "made but not told"])
@pytest.mark.parametrize("task", [double, double_in_a_thread])
def test_every_write_fails_once_in_turn(
    kind: Kind,
    url_of: Callable[[Kind], str],
    make_dataset: Callable[..., Dataset],
    task: Callable[..., object],
    made: bool,
) -> None:
    """Every write up to the last of a flow without failures: the nth fails in the nth of many small stores."""
    dataset = make_dataset(COUNT)
    fail_at, reached = 0, True
    with open_store(url_of(kind)) as real:
        while reached:
            fail_at += 1
            calls.clear()
            backend = FaultyBackend(real.backend, made=made)
            backend.fail_at = fail_at
            store = Store(backend)
            try:
                aggregation = whole_flow(store, task, dataset)
            except StoreError:
                aggregation = whole_flow(store, task, dataset)
            assert max(calls.values()) <= 2
            assert calls.total() <= COUNT + CONCURRENCY, "what was committed is not computed again"
            assert_all_is_there_once(real, aggregation)
            reached = backend.writes >= fail_at
            real.remove("doubles", cascade=True)
    assert fail_at > 10


def test_every_write_of_one_flow_fails(
    kind: Kind, url_of: Callable[[Kind], str], make_dataset: Callable[..., Dataset]
) -> None:
    """The flow is resumed after each failure and fails again at its next write, until it has got through."""
    dataset = make_dataset(COUNT)
    with open_store(url_of(kind)) as real:
        backend = FaultyBackend(real.backend)
        store = Store(backend)
        aggregation, patience = None, 0
        while aggregation is None:
            # It gets one write further each time, or else it could never make its second.
            patience += 1
            backend.fail_at = backend.writes + patience
            try:
                aggregation = whole_flow(store, double, dataset)
            except StoreError:
                continue
        assert_all_is_there_once(real, aggregation)
    assert patience > 5
