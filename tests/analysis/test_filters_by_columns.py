"""Filters and sort orders give the same rows from columns as from the joined rows, over random runs and metadata."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import karat
from karat.analysis import filters
from karat.analysis.filters import parse
from karat.analysis.tables import ComparedTable, RunTable, joined_rows
from karat.cli.show import make_filter, read_page
from karat.errors import NotApplicable
from karat.store import Store
from karat.store.columns import MOST_FIELDS
from karat.tasks import FunctionTask

SEEDS = range(25)
ODD: list[Any] = [
    None, True, False, 0, 1, -1.5, 10**30, 2**63, 1e308, "", "none", "None", "1", "1.0", "law", "LAW", "ß", "SS", "ﬀ",
    "日本", "👩‍👩‍👧", "\u202eevil", "a\x00b", [], ["law", 1], [None], [["law"]], {}, {"b": 1}, {"b": {"c": "law"}},
    {"b": {"c": {"d": {"e": 7}}}},
]  # fmt: skip
FIELDS = [
    "topic", "metadata.topic", "a", "a.b", "a.b.c", "a.b.c.d.e", "x.y", "status", "score", "first", "second.score",
    "first.status", "result", "seconds", "cost", "attempt", "unit", "try", "id", "size", "input", "expected", "output",
    "error", "comment", "first.comment", "first.value", "second.error",
]  # fmt: skip
VALUES = [
    "none", '"none"', "None", "1", "1.0", "-1.5", "0", "0.5", "1e30", "law", "LAW", "SS", '"ss"', "ff", "日", "true",
    '""', "ok", "failed", "skipped", "pending", '"{\\"b\\":1}"', "e1", "2", "9223372036854775808", '"a\x00b"',
]  # fmt: skip


class World:
    """A run with failures, attempts, retries and pending items, and one or two evaluations of it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = chance = random.Random(seed)
        self.store: Store = karat.open_store(str(folder / "karat.db"))
        rows: list[dict[str, Any]] = []
        for number in range(chance.choice([1, 7, 40])):
            metadata: dict[str, Any] = {"size": chance.choice([number, number / 3, str(number)])}
            for name in ("topic", "a", "a.b", "x.y", "x"):
                if chance.random() < 0.5:
                    metadata[name] = chance.choice(ODD)
            rows.append({"id": f"e{number}", "input": number, "expected": number % 3, "metadata": metadata})
        self.data = karat.Dataset.from_examples(rows, name="odd")
        self.runs = [self._run(number) for number in range(2)]
        if seed % 5 == 0:  # as in a store of an earlier karat
            self.store.backend._write(  # type: ignore[attr-defined]
                lambda cursor: cursor.execute("UPDATE karat_headers SET columns = NULL")
            )
            self.runs = [self.store.runs.get(run.id) for run in self.runs]

    def _run(self, number: int) -> karat.Run:
        chance, bad = self.chance, {self.chance.randrange(40) for _ in range(8)}
        options: dict[str, Any] = {
            "store": self.store,
            "progress": False,
            "attempts": chance.choice([1, 1, 2]),
        }
        broken = True

        def task(value: int) -> int:
            if broken and value in bad:
                raise (ValueError if value % 2 else TimeoutError)("no answer")
            return value % (3 + number)

        made = FunctionTask(task, name=f"task{number}")
        made.code = lambda: f"task {number}"  # type: ignore[method-assign]
        if chance.random() < 0.3:
            options["limit"] = 5
        run = karat.run(made, self.data, **options)
        if chance.random() < 0.5:
            broken = False
            run = karat.run(made, self.data, **options, retry_failed=True)
        for key in ("first", "second"):
            self._evaluate(run, key, chance.choice([0, 3, 4]))
        return run

    def _evaluate(self, run: karat.Run, key: str, odd: int) -> None:
        def judge(outputs: Any, inputs: Any) -> karat.Result:
            if odd and inputs % odd == 1:
                raise NotApplicable("odd")
            if odd and inputs % odd == 2:
                raise ValueError("no verdict")
            return karat.Result(key, None if inputs % 11 == 5 else outputs / 3)

        judge.__name__ = judge.__qualname__ = key
        judge.version = f"{key} {odd}"  # type: ignore[attr-defined]
        karat.evaluate(run, [judge], store=self.store, progress=False)

    def filter(self) -> str:
        chance = self.chance

        def condition() -> str:
            field, op = chance.choice(FIELDS), chance.choice([":", "=", "!=", "~", "<", "<=", ">", ">="])
            value = chance.choice(VALUES)
            if field in ("status", "changed") and op in (":", "=", "!="):
                value = chance.choice(filters.STATUSES)
            if op in ("<", "<=", ">", ">="):
                value = chance.choice(["0", "0.5", "1", "-2", "1e30"])
            return f"{chance.choice(['', '', 'not '])}{field}{op}{value}"

        return chance.choice([" ", " or "]).join(condition() for _ in range(chance.choice([1, 1, 2, 3])))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_select_and_order_the_rows_that_records_do(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)
    run = world.runs[0]
    evaluations = world.store.evaluations.list()
    table = RunTable(run, [each for each in evaluations if run.id in each.header.runs])
    rows = joined_rows(table, np.arange(len(table)))
    assert len(rows) == len(table)
    known = {*filters.FIELDS, *table.fields()}
    answered = 0
    for _ in range(60):
        text = world.filter()
        parsed = parse(text)
        try:
            chosen = set(np.flatnonzero(parsed.mask(table)).tolist())
        except filters.FilterError:
            # No example has the field; an answer would have been the same as none.
            assert any(each not in known for each in parsed.fields), text
            continue
        answered += 1
        assert chosen == {place for place, row in rows.items() if parsed.matches(row)}, text
        shown = read_page(run, where=make_filter(text, None), count=len(rows))
        assert shown.matched == len(chosen), text
    assert answered > 20
    for field in ("first", "second", "seconds", "try", "size"):
        for sign in (1.0, -1.0):
            try:
                order = table.order(("-" if sign < 0 else "") + field, np.arange(len(table)))
            except filters.FilterError:
                continue
            if field == "size":
                continue  # numbers and texts: ordered as texts
            values = [filters.row_values(field, rows[int(place)])[0] for place in order]
            keys = [(value is None, 0.0 if value is None else sign * value) for value in values]
            assert keys == sorted(keys), field


def test_a_field_beyond_those_that_have_columns_is_refused_with_the_limit(tmp_path: Path) -> None:
    metadata = {f"field{number:03}": number for number in range(MOST_FIELDS + 1)}
    data = karat.Dataset.from_examples([{"input": 1, "metadata": metadata}], name="wide")
    with karat.open_store(str(tmp_path / "karat.db")) as store:
        run = karat.run(FunctionTask(lambda value: value, name="task"), data, store=store, progress=False)
        table = RunTable(run, [])
        assert parse("field199:199").mask(table).tolist() == [True]
        for text in ("field200:200", "field200~2"):
            with pytest.raises(filters.FilterError, match=f"first {MOST_FIELDS} fields"):
                parse(text).mask(table)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_comparison_has_the_changes_that_records_have(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)
    evaluations = world.store.evaluations.list()
    tables = [RunTable(run, [e for e in evaluations if run.id in e.header.runs]) for run in world.runs]
    sides: list[dict[Any, Any]] = []
    for table in tables:
        found = joined_rows(table, np.arange(len(table)))
        sides.append({table.name(place): row.results["first"] for place, row in found.items()})
    compared = ComparedTable(tables[0], tables[1], "first")
    expected: dict[Any, str] = {}
    for name in {*sides[0], *sides[1]}:
        results = [side.get(name) for side in sides]
        scores = [None if result is None else result.score for result in results]
        if any(result is not None and result.error == "odd" for result in results):
            expected[name] = "not applicable"
        elif None in scores:
            expected[name] = "missing"
        else:
            change = scores[1] - scores[0]
            expected[name] = "same" if change == 0 else "better" if change > 0 else "worse"
    names = [
        tables[0].name(int(a)) if a >= 0 else tables[1].name(int(b))
        for a, b in zip(compared.first_rows, compared.second_rows, strict=True)
    ]
    assert {
        name: filters.CHANGES[code] for name, code in zip(names, compared.changes, strict=True)
    } == expected
    for name, first, second in zip(names, compared.first_scores, compared.second_scores, strict=True):
        for score, side in ((first, sides[0]), (second, sides[1])):
            result = side.get(name)
            assert (None if math.isnan(score) else score) == (None if result is None else result.score)
