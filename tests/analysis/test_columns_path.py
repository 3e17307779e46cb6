"""Comparisons, rankings, reports and lists of failures are the same from columns as from records.

Random runs with failures, attempts, units, skips, retries, interrupted runs, selections and several datasets.
"""

from __future__ import annotations

import math
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pytest

import karat
from karat.analysis.outcomes import failure_kinds, latency_of
from karat.analysis.ranking import tally_results, tally_scores
from karat.analysis.scores import Source, pair_scores, read_scores, shared_examples
from karat.analysis.tables import RunTable
from karat.errors import Aborted, NotApplicable
from karat.stats._means import MeanState
from karat.tasks import Context, FunctionTask, Task
from tests.analysis.record_reader import (
    RecordScores,
    kinds_of,
    mean_state,
    pairs_of,
    tallied,
    tallied_results,
)

SEEDS = range(60)


class Turns(Task):
    """One output for each word of the input; a word that is a number above 7 fails."""

    units_declared = True
    version = "1"

    def __init__(self, shift: int) -> None:
        self.name = f"turns{shift}"
        self.shift = shift

    def units(self, example: karat.Example) -> list[str]:
        return [f"turn/{number}" for number in range(len(example.input))]

    def call_units(self, example: karat.Example, context: Context) -> Iterator[tuple[str, Any]]:
        for number, value in enumerate(example.input):
            if f"turn/{number}" not in context.done:
                value = (value + self.shift) % 10
                yield f"turn/{number}", value if value < 8 else ValueError("too large")


class World:
    """A store with a few random runs over one or two datasets, and evaluations of them."""

    def __init__(self, seed: int, url: str = "memory://") -> None:
        self.random = random.Random(seed)
        self.store = karat.open_store(url)
        self.units = seed % 4 == 3
        count = self.random.choice([1, 5, 30, 80])
        self.data = [self._examples(count)]
        if seed % 5 == 4:
            self.data.append(self._examples(count + 3))
        self.runs = [self._run(number) for number in range(self.random.choice([2, 3]))]
        self.evaluations: dict[str, karat.Evaluation] = {}
        for run in self.runs:
            self._evaluate(run, seed)

    def _examples(self, count: int) -> karat.Dataset:
        def value() -> Any:
            return [self.random.randrange(10) for _ in range(self.random.choice([1, 2, 12]))]

        rows = []
        for number in range(count):
            given = value() if self.units else number
            rows.append(
                {"id": f"e{number}", "input": given, "expected": 3, "metadata": {"third": number % 3}}
            )
        return karat.Dataset.from_examples(rows, name="numbers")

    def _run(self, number: int) -> karat.Run:
        chance = self.random
        options: dict[str, Any] = {"progress": False, "store": self.store}
        data = chance.choice(self.data)
        if chance.random() < 0.3:
            options |= {"offset": chance.randrange(3), "limit": chance.choice([2, 20])}
        if self.units:
            return karat.run(Turns(number), data, **options)
        options["attempts"] = chance.choice([1, 1, 1, 3]) if chance.random() < 0.7 else 2
        bad = {chance.randrange(80) for _ in range(chance.choice([0, 4, 20]))}
        stops = chance.random() < 0.25

        def task(value: int, broken: bool) -> float:
            if broken and value in bad:
                raise ValueError(f"cannot {value % 2}")
            return float((value * (number + 3)) % 7) / 6

        # The parameter is the same, so that the run is continued.
        made = FunctionTask(lambda value: task(value, True), name=f"task{number}")
        made.code = lambda: f"task {number}"  # type: ignore[method-assign]
        if stops and bad:
            try:
                return karat.run(made, data, **options, abort_on_error=True, concurrency=1)
            except Aborted:
                return self.store.runs.list()[-1]
        run = karat.run(made, data, **options)
        if chance.random() < 0.4 and run.counts.failed:
            again = FunctionTask(lambda value: task(value, False), name=f"task{number}")
            again.code = lambda: f"task {number}"  # type: ignore[method-assign]
            run = karat.run(again, data, **options, retry_failed=True)
        return run

    def _evaluate(self, run: karat.Run, seed: int) -> None:
        chance = random.Random(seed + 1)
        binary, odd = chance.random() < 0.5, chance.choice([0, 5, 9])

        def judge(outputs: Any, inputs: Any) -> karat.Result:
            value = outputs if isinstance(outputs, float) else float(outputs) / 8
            number = inputs if isinstance(inputs, int) else sum(inputs)
            if odd and number % odd == 1:
                raise NotApplicable("odd")
            if odd and number % odd == 2:
                raise ValueError("no verdict")
            return karat.Result("judge", float(value > 0.5) if binary else value)

        judge.version = f"{binary} {odd}"  # type: ignore[attr-defined]
        self.evaluations[run.id] = karat.evaluate(run, [judge], store=self.store, progress=False)

    def scores(self) -> tuple[list[Any], list[RecordScores]]:
        sources = []
        for run in self.runs:
            evaluation = self.evaluations[run.id]
            sources.append((run, Source(evaluation, evaluation.header.evaluators[0])))
        return read_scores(sources), [
            RecordScores(run, self.evaluations[run.id], "judge") for run in self.runs
        ]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path))


def listed(scores: Any) -> list[float | None]:
    return [None if np.isnan(score) else score for score in scores.tolist()]


def exact(state: MeanState) -> tuple[Any, ...]:
    return state.n, state.total, state.squares, state.least, state.most, state.clusters.counts, state.sizes


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_and_records_give_the_same_scores_pairs_and_tallies(seed: int) -> None:
    check_scores(World(seed))


@pytest.mark.parametrize("seed", range(0, 60, 9))
def test_columns_and_records_give_the_same_on_postgresql(seed: int, postgres_url: str) -> None:
    world = World(seed, postgres_url)
    try:
        check_scores(world)
        check_rows(world)
    finally:
        world.store.close()


@pytest.mark.parametrize("seed", range(0, 60, 9))
def test_columns_and_records_give_the_same_after_a_copy_and_a_removal(seed: int, tmp_path: Path) -> None:
    world = World(seed)
    with karat.open_store(str(tmp_path / "copy.db")) as other:
        for evaluation in world.evaluations.values():
            world.store.copy(evaluation.id, other)
        world.store.close()
        world.store = other
        world.runs = [other.runs.get(run.id) for run in world.runs]
        world.evaluations = {run: other.evaluations.get(each.id) for run, each in world.evaluations.items()}
        check_scores(world)
        check_rows(world)
        gone = world.runs.pop()
        if len(world.runs) > 1 and gone.id not in [run.id for run in world.runs]:
            del world.evaluations[gone.id]
            other.remove(gone.id, cascade=True)
            check_scores(world)
            check_rows(world)


def check_scores(world: World) -> None:
    """Scores, pairs and tallies are the same from columns as from records."""
    tables, oracle = world.scores()
    for table, expected in zip(tables, oracle, strict=True):
        ids = [example.id for example in table.run.dataset]
        found = {
            (ids[position], *table.names[code]): score
            for position, code, score in zip(
                table.positions.tolist(), table.codes.tolist(), listed(table.scores), strict=True
            )
        }
        assert found == expected.items
        assert table.unlisted == expected.unlisted
        assert len(table.not_applicable[0]) == len(expected.not_applicable)
        assert int(table.failed.sum()) == len(expected.failed)
        known, state = ~np.isnan(table.scores), MeanState()
        state.add_values(table.scores[known], table.positions[known])
        assert exact(state) == exact(mean_state(expected))
    first, one = tables[0], oracle[0]
    ids = [example.id for example in first.run.dataset]
    for second, other in zip(tables[1:], oracle[1:], strict=True):
        datasets = list(dict.fromkeys([first.run.header.dataset, second.run.header.dataset]))
        try:
            shared, _ = shared_examples(world.store, datasets)
        except karat.errors.RequestError:
            continue  # they share no example
        common = None
        if len(datasets) > 1:
            contents = [
                {(e.id, str(e.input), str(e.expected)) for e in table.run.dataset}
                for table in (first, second)
            ]
            common = {id for id, _, _ in contents[0] & contents[1]}
        for passed in (None, first.source.spec):
            pairs = pair_scores(first, second, shared, passed=passed)
            expected_pairs, several = pairs_of(one, other, common, passed and 0.5)
            examples = [ids[place] if place >= 0 else "" for place in pairs.examples.tolist()]
            assert (
                list(zip(examples, listed(pairs.first), listed(pairs.second), strict=True)) == expected_pairs
            )
            assert pairs.several == several
    for failures in ("lose", "leave_out"):
        tally = tally_scores(tables, failures, 0.1)  # type: ignore[arg-type]
        signatures, missing = tallied(oracle, 1.0, failures == "lose", 0.1)
        counted = {tuple(each[:4] for each in key): n for key, n in tally.signatures.items()}
        assert Counter(counted) == signatures
        assert +tally.missing == missing


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_and_records_give_the_same_failures_times_and_rows(seed: int) -> None:
    check_rows(World(seed))


def check_rows(world: World) -> None:
    """Failures, times and rows are the same from columns as from records."""
    handles: list[Any] = [*world.runs, *world.evaluations.values()]
    for handle in handles:
        found = {(kind.what, kind.status, kind.type): kind.count for kind in failure_kinds(handle)}
        assert found == kinds_of(handle)
    for run in world.runs:
        seconds = [output.service_seconds for output in run.outputs()]
        latency = latency_of(run)
        if seconds:
            assert latency.service["mean"] == pytest.approx(math.fsum(seconds) / len(seconds))
            assert latency.service["max"] == max(seconds)
        else:
            assert latency.service == {}
        table = RunTable(run, [world.evaluations[run.id]])
        ids = [example.id for example in run.dataset]
        names = {"ok": 0, "failed": 1, "skipped": 2, "pending": 5}
        rows = {
            (row.id, row.attempt, row.unit): (
                row.status,
                row.results["judge"].status,
                row.results["judge"].score,
            )
            for row in world.evaluations[run.id].rows()
        }
        assert {
            (ids[position], attempt, unit): (
                next(name for name, code in names.items() if code == status),
                {0: "ok", 1: "failed", 2: "skipped", 3: "skipped", 4: "ok", 5: "pending"}[judged],
                score,
            )
            for row in range(len(table))
            for position, attempt, unit in [table.name(row)]
            for status, judged in [(int(table.statuses[row]), int(table.results["judge"].statuses[row]))]
            for score in listed(table.results["judge"].scores[row : row + 1])
        } == rows


class Choosing:
    """Compares two numbers: some verdicts in both orders, in several forms, some without a score, some not at all."""

    version, key = "1", "choosing"

    def __init__(self, both_orders: bool) -> None:
        self.both_orders = both_orders

    def compare(self, example: karat.Example, first: karat.Output, second: karat.Output) -> karat.Result:
        number = example.input
        if number % 11 == 3:
            raise NotApplicable("three")
        if number % 11 == 4:
            raise ValueError(f"no verdict on {number}")
        score = 0.5 if first.value == second.value else float(first.value > second.value)
        position = ("first", "tie", "second", None, "else")[number % 5]
        orders: list[Any] = [
            None,
            [],
            "first",
            [{"position": "first"}, {"position": position}],
            ({"position": "tie"}, {"position": "second"}),
            [{"position": position}, {"position": "second"}],
            [{"position": "first"}, {"place": 1}],
            [1, 2],
        ]
        about = {"orders": orders[number % 8]} if number % 9 else {}
        ranks = {"ranks": [1, 2]} if number % 3 else None
        return karat.Result("choosing", None if number % 11 == 5 else score, ranks, metadata=about)


class Together3:
    """Ranks all runs at once."""

    version, key = "1", "together"

    def evaluate_runs(self, example: karat.Example, outputs: list[Any]) -> dict[str, float]:
        if example.input % 7 == 2:
            raise ValueError("no order")
        return {each.run: float(each.value) for each in outputs}


def forget_orders(path: Path) -> None:
    """Make all columns those of a karat that did not store the verdicts in both orders."""
    with sqlite3.connect(path) as connection:
        for number, payload in connection.execute("SELECT number, payload FROM karat_columns").fetchall():
            older = msgspec.msgpack.encode(msgspec.msgpack.decode(payload)[:14])
            connection.execute(
                "UPDATE karat_columns SET payload = ?, checksum = ? WHERE number = ?",
                (older, crc32(older), number),
            )


@pytest.mark.parametrize("seed", range(12))
def test_comparisons_from_columns_are_those_of_the_records(seed: int, tmp_path: Path) -> None:
    chance, path = random.Random(seed), tmp_path / "karat.db"
    judges: list[Any] = [Choosing(seed % 3 == 0), Together3()]
    with karat.open_store(path) as store:
        names = [["numbers"], ["numbers", "others"]][seed % 4 == 3]
        runs = []
        for number in range(4):
            name = names[number // 2 % len(names)]
            data = karat.Dataset.from_examples(
                [{"id": f"e{n}", "input": n + len(name) % 7} for n in range(30)], name=name
            )
            bad = {chance.randrange(30) for _ in range(chance.choice([0, 3, 9]))}
            task = FunctionTask(lambda n, bad=bad, k=number: n * (k + 3) % 5 if n not in bad else 1 / 0)
            code = f"task {number}"
            task.code = partial(str, code)  # type: ignore[method-assign]
            runs.append(karat.run(task, data, store=store, attempts=chance.choice([1, 2]), progress=False))
        groups = (runs[:2], runs[2:]) if len(names) > 1 else (runs[:3], runs[:2][::-1], runs[1:])
        evaluations = [
            karat.evaluate(group, judges, store=store, new=True, progress=False) for group in groups
        ]

        def check() -> None:
            for key in ("choosing", "together"):
                for failures in ("lose", "leave_out"):
                    for chosen in (runs, runs[:2]):
                        handles = [store.evaluations.get(each.id) for each in evaluations]
                        found = tally_results(handles, chosen, key, failures)
                        expected = tallied_results(handles, chosen, key, failures)
                        assert found.signatures == expected.signatures
                        assert +found.missing == +expected.missing
                        assert found.error == expected.error
                        assert any(each.by != "failed" for every in found.signatures for each in every)

        check()
        forget_orders(path)
        check()
        for evaluation in evaluations:  # without columns: they are made from the records
            (row, *_) = store.backend.scan(evaluation.number, 0, 1)
            store.backend.append(evaluation.number, [row])
            assert not store.backend.has_columns(evaluation.number)
        check()


def test_a_ranking_by_comparisons_reads_few_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def first(number: int) -> int:
        return number

    def second(number: int) -> int:
        return 1 // number

    class Both:
        version, key = "1", "both"

        def compare(self, example: karat.Example, first: karat.Output, second: karat.Output) -> karat.Result:
            orders = [{"position": "first"}, {"position": "second"}]
            return karat.Result("both", float(first.value > second.value), metadata={"orders": orders})

    data = karat.Dataset.from_examples([{"input": number} for number in range(20)])
    with karat.open_store(tmp_path / "karat.db") as store:
        runs = [karat.run(task, data, store=store, progress=False) for task in (first, second)]
        evaluation = karat.evaluate(runs, [Both()], store=store, progress=False)
        really, read = store.backend.scan, []

        def scan(parent: int, start: int, stop: int) -> Any:
            read.append((parent, start, stop))
            return really(parent, start, stop)

        monkeypatch.setattr(store.backend, "scan", scan)
        made = karat.rank(evaluation)
        assert (made.n, made.failed, made.position_bias.metadata["orders_disagree"]) == (20, 1, 0)
        assert read == [(evaluation.number, 0, 1)]  # of the output that failed
