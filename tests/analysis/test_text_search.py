"""A search in the bytes of records finds the rows that a search in joined rows finds, in every kind of store."""

from __future__ import annotations

import random
import sys
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import karat
from karat.analysis import filters, text_search
from karat.analysis.tables import ComparedTable, RunTable, joined_rows
from karat.cli.show import make_filter, read_page
from karat.errors import TookTooLong
from karat.records import (
    FORMAT,
    Counts,
    EvaluationHeader,
    EvaluatorSpec,
    Failed,
    Failure,
    ItemResult,
    Ok,
    Output,
    Result,
    RunHeader,
    Skipped,
)
from karat.serialization import encode
from karat.store import Store
from karat.store.backend import FAILED, OK, SKIPPED, StoredRow
from karat.store.columns import cells_of_output, cells_of_result

LETTERS = [
    *"aAbeEfFhiIjJkKlnNsStTwWy 0123:.,;%_!*?[]{}'\"\\/-\n\t\x00\x1b\x7f",
    *"ßẞſ\u212aİıŉǰﬀﬁﬃﬆẚçÇöÖéÉñΣσςЖж日本語한ʼ\u0307\u0301\u2028\u202e\ufeff😀ⓐⒶⅷⅧ",
    *("ss", "ff", "st", "no answer", "Error: ", '":"', "\\n", "\\u001b", "\\u00e9"),
]  # fmt: skip
VALUES: list[Any] = [None, True, 0, 7, -1.5, 1e22, 10**30, 0.1]
COUNT = 60


def text_of(chance: random.Random, most: int = 12) -> str:
    return "".join(chance.choice(LETTERS) for _ in range(chance.randrange(most)))


def value_of(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(5)
    if kind == 0:
        return chance.choice(VALUES)
    if kind == 1 and depth < 2:
        return [value_of(chance, depth + 1) for _ in range(chance.randrange(3))]
    if kind == 2 and depth < 2:
        return {text_of(chance, 4): value_of(chance, depth + 1) for _ in range(chance.randrange(3))}
    return text_of(chance)


def _status(outcome: Any) -> int:
    return OK if isinstance(outcome, Ok) else FAILED if isinstance(outcome, Failed) else SKIPPED


class World:
    """Two runs with texts of every kind, failures, retries and attempts, and evaluations with comments and errors."""

    def __init__(self, seed: int, store: Store) -> None:
        self.chance = chance = random.Random(seed)
        self.store = store
        rows = [
            {
                "id": f"e{number}{text_of(chance, 4)}",
                "input": [number, value_of(chance)],
                "expected": value_of(chance),
                "metadata": {"topic": chance.choice(["law", "art"]), "note": value_of(chance)},
            }
            for number in range(COUNT)
        ]
        self.rows = rows
        self.data = store.datasets.put(karat.Dataset.from_examples(rows, name="texts"))
        self.runs = [self._run(number) for number in range(2)]

    def _run(self, number: int) -> karat.Run:
        """Records as the stages write them, without the time that stages take to look at the code of tests."""
        chance, attempts = self.chance, 1 + number
        header = RunHeader(
            format=FORMAT, id=f"run-{number:010}", dataset=self.data.id, task="task", configuration=f"c{number}",
            parameters={}, created=1.0, status="success", counts=Counts(ok=COUNT * attempts), attempts=attempts,
        )  # fmt: skip
        rows: list[StoredRow] = []
        for position, example in enumerate(self.rows):
            for attempt in range(1, attempts + 1):
                for try_number in range(1, chance.choice([2, 2, 3])):
                    outcome = self._outcome(chance, value_of(chance))
                    output = Output(
                        format=FORMAT, example=example["id"], outcome=outcome, attempt=attempt, try_number=try_number
                    )  # fmt: skip
                    cells = cells_of_output(outcome, 0.0, 0.0, None)
                    rows.append(
                        StoredRow(
                            position, str(attempt), try_number, _status(outcome), None, encode(output), cells
                        )
                    )
        self._write(self.store.runs, header, [self.data.id], rows)
        keys = ("judge", "other")
        made = EvaluationHeader(
            format=FORMAT, id=f"eval-{number:010}", dataset=self.data.id, runs=[header.id], configuration=f"e{number}",
            evaluators=[EvaluatorSpec(key, key, {}, key, bounds=(0.0, 1.0)) for key in keys],
            created=2.0, status="success", counts=Counts(ok=2 * COUNT * attempts),
        )  # fmt: skip
        results: list[StoredRow] = []
        for position, example in enumerate(self.rows):
            for place, key in enumerate(keys):
                for attempt in range(1, attempts + 1):
                    if chance.random() < 0.1:
                        continue  # pending
                    found = Result(key, chance.random(), value=value_of(chance), comment=text_of(chance))
                    judged = self._outcome(chance, found)
                    result = ItemResult(
                        format=FORMAT, example=example["id"], key=key, runs=(header.id,), outcome=judged,
                        attempt=attempt,
                    )  # fmt: skip
                    cells = cells_of_result(judged, 0.0, 0.0, None)
                    item = f"{place}.0.{attempt}"
                    results.append(StoredRow(position, item, 1, _status(judged), None, encode(result), cells))
        counts = Counts(ok=len(results), pending=2 * COUNT * attempts - len(results))
        made = msgspec.structs.replace(made, counts=counts)
        self._write(self.store.evaluations, made, [header.id], results)
        return self.store.runs.get(header.id)

    @staticmethod
    def _outcome(chance: random.Random, value: Any) -> Any:
        kind = chance.random()
        if kind < 0.2:
            return Failed(Failure(chance.choice(["ValueError", "Fußnote"]), text_of(chance)))
        return Skipped(text_of(chance)) if kind < 0.3 else Ok(value)

    def _write(self, repository: Any, header: Any, parents: list[str], rows: list[StoredRow]) -> None:
        inserted = repository._insert(header, parents, leased=False)
        self.store.backend.append(inserted[0], rows)
        repository.save(inserted[0], msgspec.structs.replace(header, finished=3.0))

    def table(self, run: karat.Run) -> RunTable:
        return RunTable(run, [each for each in self.store.evaluations.list() if run.id in each.header.runs])

    def needle(self, rows: list[Any]) -> str:
        """A part of what some row shows, in another case; or any text."""
        chance = self.chance
        if chance.random() < 0.3:
            return text_of(chance, 4)
        shown = [filters.as_text(value) for value in filters.shown_values(chance.choice(rows))]
        text = chance.choice([each for each in shown if each] or [""])
        start = chance.randrange(len(text) + 1)
        part = text[start : start + chance.randrange(1, 9)]
        return chance.choice([part, part.upper(), part.lower(), part.casefold(), part.swapcase()])

    def leaf(self, rows: list[Any]) -> filters.TextSearch | filters.Condition:
        chance = self.chance
        if chance.random() < 0.5:
            return filters.TextSearch(self.needle(rows))
        field = chance.choice(
            [*filters.TEXTS, "judge.comment", "judge.value", "judge.error", "other.comment"]
        )
        op = chance.choice(["~", "~", "~", "=", ":", "!="])
        return filters.Condition(field, op, chance.choice([self.needle(rows), "none", "7"]), False)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["sqlite", "memory", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    urls = {"sqlite": str(tmp_path / "karat.db"), "memory": "memory://"}
    url = urls.get(request.param) or request.getfixturevalue("postgres_url")
    with karat.open_store(url) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(4))
def test_the_bytes_of_records_lead_to_the_same_rows_as_the_rows_themselves(seed: int, store: Store) -> None:
    world = World(seed, store)
    tables = [world.table(run) for run in world.runs]
    compared = ComparedTable(tables[0], tables[1], "judge")
    sides = [joined_rows(table, np.arange(len(table))) for table in tables]
    rows, found = list(sides[1].values()), 0
    for _ in range(80):
        leaf = world.leaf(rows)
        for table, side in zip(tables, sides, strict=True):
            expected = {place for place, row in side.items() if filters.Filter("", leaf).matches(row)}
            chosen = set(np.flatnonzero(filters.Filter("", leaf).mask(table)).tolist())
            assert chosen == expected, leaf
            found += bool(expected) and len(expected) < len(table)
        narrowed = filters.Filter("", filters.All((filters.Condition("topic", "=", "law"), leaf)))
        expected = {place for place, row in sides[1].items() if narrowed.matches(row)}
        assert set(np.flatnonzero(narrowed.mask(tables[1])).tolist()) == expected, leaf
        if isinstance(leaf, filters.TextSearch):
            either = [
                any(
                    row >= 0 and filters.Filter("", leaf).matches(side[int(row)])
                    for row, side in zip(pair, sides, strict=True)
                )
                for pair in zip(compared.first_rows, compared.second_rows, strict=True)
            ]
            assert filters.Filter("", leaf).mask(compared).tolist() == either, leaf
    assert found > 40


def test_rows_of_datasets_and_of_evaluations_of_several_runs_are_searched_by_their_bytes(
    store: Store,
) -> None:
    world = World(11, store)
    header = EvaluationHeader(
        format=FORMAT, id="eval-both000000", dataset=world.data.id, runs=[run.id for run in world.runs],
        evaluators=[EvaluatorSpec("long", "long", {}, "long", bounds=(0.0, 1.0))], configuration="both", created=4.0,
        status="success", counts=Counts(ok=2 * COUNT),
    )  # fmt: skip
    rows = []
    for position, example in enumerate(world.rows):
        for place, run in enumerate(world.runs):
            outcome = Ok(Result("long", 1.0, comment=f"{text_of(world.chance)} ſtraße {place}"))
            record = ItemResult(
                format=FORMAT, example=example["id"], key="long", runs=(run.id,), outcome=outcome
            )
            cells = cells_of_result(outcome, 0.0, 0.0, None)
            rows.append(StoredRow(position, f"0.{place}.1", 1, OK, None, encode(record), cells))
    world._write(store.evaluations, header, header.runs, rows)
    both = store.evaluations.get(header.id)
    for handle in (store.datasets.list()[0], both):
        every = read_page(handle, count=10 * COUNT).rows
        for _ in range(30):
            needle = world.needle(every)
            page = read_page(handle, where=make_filter(None, needle), count=10 * COUNT)
            expected = [row for row in every if filters.Filter("", filters.TextSearch(needle)).matches(row)]
            assert page.rows == expected, needle
    assert read_page(both, where=make_filter('comment~"STRASSE 1"', None)).matched == COUNT


def _run_of(store: Store, texts: list[str]) -> karat.Run:
    examples = [{"id": f"q{place}", "input": text} for place, text in enumerate(texts)]
    data = store.datasets.put(karat.Dataset.from_examples(examples, name="texts"))
    header = RunHeader(
        format=FORMAT, id="run-0000000000", dataset=data.id, task="task", configuration="c", parameters={},
        created=1.0, status="success", counts=Counts(ok=len(texts)),
    )  # fmt: skip
    rows = [
        StoredRow(
            *(place, "1", 1, OK, None),
            encode(Output(format=FORMAT, example=f"q{place}", outcome=Ok(place))), (None, 0.0),
        )
        for place in range(len(texts))
    ]  # fmt: skip
    inserted = store.runs._insert(header, [data.id], leased=False)
    assert inserted is not None
    store.backend.append(inserted[0], rows)
    store.runs.save(inserted[0], msgspec.structs.replace(header, finished=2.0))
    return store.runs.get(header.id)


def test_a_search_reads_only_the_records_that_may_match(tmp_path: Path) -> None:
    with karat.open_store(str(tmp_path / "karat.db")) as store:
        table, read = RunTable(_run_of(store, [f"number {i} of many" for i in range(2000)]), []), 0
        scan = store.backend.scan

        def counted(*arguments: int) -> Any:
            nonlocal read
            found = scan(*arguments)
            read += len(found)
            return found

        store.backend.scan = counted  # type: ignore[method-assign, assignment]
        assert np.flatnonzero(filters.parse('"NUMBER 17 of"').mask(table)).tolist() == [17]
        assert read < 50


def test_a_search_stops_after_its_time_and_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_search, "POSITIONS", 100)
    with karat.open_store(str(tmp_path / "karat.db")) as store:
        table = RunTable(_run_of(store, [f"number {i}" for i in range(500)]), [])
        table.text_seconds = -1.0
        with pytest.raises(TookTooLong, match="100 of 500 examples"):
            filters.parse('"number"').mask(table)


def test_a_long_text_and_a_large_record_are_found(tmp_path: Path) -> None:
    long = "x" * 3000 + "End"
    with karat.open_store(str(tmp_path / "karat.db")) as store:
        run = _run_of(store, ["y" * 5_000_000 + long, "x" * 2999 + "End"])
        found = filters.Filter("", filters.TextSearch(long.upper())).mask(RunTable(run, []))
        assert found.tolist() == [True, False]


def test_no_character_folds_to_one_that_is_looked_for_as_it_is() -> None:
    to_ascii: set[str] = set()
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        folded = letter.casefold()
        if unicodedata.category(letter) == "Cs" or (folded == letter and not letter.isascii()):
            continue
        if letter.isascii():
            assert folded == letter.lower()
            continue
        assert not any(text_search._is_kept(each, "") for each in folded if not each.isascii()), letter
        if any(each.isascii() for each in folded):
            to_ascii.add(letter)
    assert to_ascii == set(text_search.FOLDED_TO_ASCII)
