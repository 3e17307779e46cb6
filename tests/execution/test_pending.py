"""Items that are still pending count in every denominator: units, attempts, comparisons in both orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import karat
from karat.errors import StoreError
from karat.execution.expected_items import Together, run_lengths
from karat.records import Example
from karat.tasks import Context, Task

DATA = [{"id": str(n), "input": n} for n in range(12)]


class Parts(Task):
    """As many units as the input modulo three, and one more."""

    name = "parts"
    units_declared = True

    def __init__(self, name: str = "parts", stop_at: int | None = None) -> None:
        self.name = name
        self.version = name
        self.stop_at = stop_at

    def configuration(self) -> Any:
        return {"task": self.name}

    def units(self, example: Example) -> list[str]:
        return [f"part/{n}" for n in range(1 + example.input % 3)]

    def call_units(self, example: Example, context: Context) -> Iterator[tuple[str, Any]]:
        for unit in self.units(example):
            if example.input == self.stop_at and unit == "part/1":
                raise StoreError("gone")
            if unit not in context.done:
                yield unit, example.input


TOTAL = 4 * (1 + 2 + 3)


def judging(until: int | None) -> Any:
    """An evaluator that gives 1, and ends the stage after so many."""
    given = []

    def judge(outputs: Any) -> float:
        if until is not None and len(given) >= until:
            raise StoreError("gone")
        given.append(1)
        return 1.0

    judge.version = "1"  # type: ignore[attr-defined]  # of a function
    return judge


class First:
    """The first always wins; ends the stage after so many comparisons."""

    key = "first"
    version = "1"

    def __init__(self, both_orders: bool, until: int | None) -> None:
        self.both_orders = both_orders
        self.until = until
        self.params = {"both_orders": both_orders}
        self.made = 0

    def compare(self, example: Example, first: Any, second: Any) -> str:
        if self.until is not None and self.made >= self.until:
            raise StoreError("gone")
        self.made += 1
        return "win"


@pytest.fixture
def store() -> Iterator[Any]:
    with karat.open_store("memory://") as opened:
        yield opened


def denominator(evaluation: Any, aggregator: str) -> tuple[int, int]:
    aggregation = karat.aggregate(evaluation, aggregator)
    estimate = aggregation.estimates[0]
    assert aggregation.counts.total == evaluation.counts.total
    return estimate.n, estimate.of


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("until", [0, 1, 7, None])
def test_units_that_are_not_judged_yet_count(store: Any, until: int | None, attempts: int) -> None:
    run = karat.run(Parts(), DATA, store=store, attempts=attempts)
    total = attempts * TOTAL
    assert run.counts.ok == total
    if until is None:
        evaluation = karat.evaluate(run, judging(None))
    else:
        with pytest.raises(StoreError):
            karat.evaluate(run, judging(until), concurrency=1)
        evaluation = store.evaluations.get("latest")
    done = total if until is None else until
    assert (evaluation.counts.ok, evaluation.counts.pending) == (done, total - done)
    assert denominator(evaluation, "mean") == (done, total)


@pytest.mark.parametrize("stop_at", [1, 5, 11])
def test_units_that_the_run_has_not_made_yet_count(store: Any, stop_at: int) -> None:
    with pytest.raises(StoreError):
        karat.run(Parts(stop_at=stop_at), DATA, store=store, concurrency=1)
    run = store.runs.get("latest")
    assert run.counts.total == TOTAL
    assert run.counts.pending > 0
    evaluation = karat.evaluate(run, judging(None))
    assert (evaluation.counts.ok, evaluation.counts.total) == (run.counts.ok, TOTAL)
    assert evaluation.status == "partial"
    assert denominator(evaluation, "mean") == (run.counts.ok, TOTAL)
    karat.run(Parts(), DATA, store=store)  # continues it
    again = karat.evaluate(run.id, judging(None), store=store)
    assert (again.id, again.status, again.counts.ok) == (evaluation.id, "success", TOTAL)


@pytest.mark.parametrize("until", [0, 1, 7, None])
@pytest.mark.parametrize("both_orders", [False, True])
@pytest.mark.parametrize("units", [False, True])
def test_comparisons_that_are_not_made_yet_count(
    store: Any, both_orders: bool, until: int | None, units: bool
) -> None:
    if units:
        runs = [karat.run(Parts(name), DATA, store=store) for name in ("a", "b", "c")]
    else:
        runs = [karat.run(lambda input: input, DATA, store=store, new=True) for _ in range(3)]
    total = (6 if both_orders else 3) * (TOTAL if units else len(DATA))
    if until is None:
        evaluation = karat.evaluate(runs, First(both_orders, None))
    else:
        with pytest.raises(StoreError):
            karat.evaluate(runs, First(both_orders, until), concurrency=1)
        evaluation = store.evaluations.get("latest")
    done = total if until is None else until
    assert evaluation.header.evaluators[0].both_orders is both_orders
    assert (evaluation.counts.ok, evaluation.counts.pending) == (done, total - done)
    aggregation = karat.aggregate(evaluation, "win_rate")
    # Each comparison counts for both of its runs.
    rates = [each for each in aggregation.estimates if each.run is not None and not each.name]
    assert sum(each.of for each in rates) == 2 * total
    assert sum(each.n for each in rates) == 2 * done
    assert aggregation.counts.total == total


def test_a_selection_of_examples_with_units(store: Any) -> None:
    run = karat.run(Parts(), DATA, store=store, offset=1, limit=4)
    assert run.header.units == [(2, 1), (3, 1), (1, 1), (2, 1)]
    items = Together([run], len(DATA))
    assert [items.at(position) for position in range(6)] == [0, 2, 3, 1, 2, 0]
    assert items.between(0, 6) == [0, 2, 3, 1, 2, 0]
    assert items.total() == run.counts.total == 8
    assert run_lengths([]) == []
    assert run_lengths([2, 2, 2, 1, 1, 2]) == [(2, 3), (1, 2), (2, 1)]
