"""Arrow tables made from stored bytes hold the same values as the rows, which are Python objects."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pandas
import pyarrow
import pytest
from pyarrow import parquet

import karat
from karat.errors import Aborted, NotApplicable, StoreError
from karat.records import FORMAT, Call, Ok, Output, Usage
from karat.reporting import export
from karat.serialization import encode
from karat.store import arrow
from karat.store.backend import OK, StoredRow
from karat.tasks import Context, FunctionTask, Task

TEXTS = [
    "",
    "plain",
    'quo"te',
    "back\\slash",
    "line\nbreak\ttab",
    "é 漢字 🙂",
    "\x00\x1f\x7f\u2028",
    "null",
    "12",
    "\\u0041",
]
NUMBERS = [
    0,
    1,
    -7,
    0.5,
    -0.0,
    1e-300,
    1.7976931348623157e308,
    2**53,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**63,
    10**30,
]
NESTED = [
    {},
    [],
    {"a": None, "é": [1, {"b": "x\ny"}]},
    [None, True, 1.5, "x"],
    {"value": 1, "status": "failed"},
]
POOLS: list[list[Any]] = [
    TEXTS,
    [0, 1, -7, 40],
    [0.5, -0.0, 1e-300, 2, 2**53],
    NUMBERS,
    [True, False],
    NESTED,
    [*TEXTS, *NUMBERS, *NESTED, True, None],
    [None],
]


class Values:
    """Random JSON values: of one type for a whole column, or of several."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._pool = chance.choice(POOLS)
        self._none = chance.random() < 0.5

    def __call__(self) -> Any:
        chance = self._chance
        return None if self._none and chance.random() < 0.3 else chance.choice(self._pool)


class Turns(Task):
    """Several outputs for an example; some fail."""

    units_declared = True
    version = "1"
    name = "turns"

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def units(self, example: karat.Example) -> list[str]:
        return [f"turn/{number}" for number in range(len(example.id))]

    def call_units(self, example: karat.Example, context: Context) -> Iterator[tuple[str, Any]]:
        for number in range(len(example.id)):
            if f"turn/{number}" not in context.done:
                yield f"turn/{number}", self.values[number] if number != 1 else ValueError("no 'turn'")


class Longer:
    """Compares two outputs."""

    version = "1"

    def compare(self, example: karat.Example, first: Any, second: Any) -> str:
        return "win" if len(encode(first.value)) > len(encode(second.value)) else "tie"


class Joint:
    """Compares all outputs."""

    version = "1"

    def compare_all(self, example: karat.Example, outputs: Any) -> str:
        return "0"


def make(store: karat.Store, seed: int) -> tuple[list[karat.Run], list[karat.Evaluation]]:
    """Runs with failures, retries, attempts, units, model calls, selections, and evaluations of them."""
    chance = random.Random(seed)
    inputs, expected, outputs, verdicts = (Values(chance) for _ in range(4))
    count = chance.choice([1, 3, 25])
    fields = [{}, {"topic": "é\n"}, {"a": {"b": [1, None]}}]
    examples = [
        {"id": f'e{number}\n"', "input": inputs(), "expected": expected(), "metadata": chance.choice(fields)}
        for number in range(count)
    ]
    data = karat.Dataset.from_examples(examples, name="some")
    if seed % 6 == 5:
        runs = [karat.run(Turns([outputs() for _ in range(5)]), data, store=store, progress=False)]
    else:
        runs = [run_once(store, data, chance, outputs, place) for place in range(chance.choice([1, 2, 3]))]

    def judge(outputs: Any, example: karat.Example) -> karat.Result:
        number = len(example.id) + len(encode(outputs))
        if number % 7 == 1:
            raise NotApplicable('odd "one"')
        if number % 7 == 2:
            raise ValueError("no verdict\n")
        score = None if number % 7 == 3 else number % 5 / 4
        return karat.Result("judge", score, value=verdicts(), comment=chance.choice(TEXTS))

    judge.version = "1"  # type: ignore[attr-defined]
    choices: list[list[Any]] = [[judge, "json_valid"], [judge], ["json_valid"]]
    evaluators = choices[seed % 3]
    evaluations = [karat.evaluate(runs, evaluators, store=store, progress=False)]
    if len(runs) > 1:
        evaluations.append(karat.evaluate(runs[:2], [Longer()], store=store, progress=False))
        evaluations.append(karat.evaluate(runs, [*evaluators, Longer()], store=store, progress=False))
        evaluations.append(
            karat.evaluate(runs[-1], evaluators, amend=[evaluations[0]], store=store, progress=False)
        )
    return runs, evaluations


def run_once(
    store: karat.Store, data: karat.Dataset, chance: random.Random, outputs: Values, place: int
) -> karat.Run:
    options: dict[str, Any] = {"progress": False, "store": store, "attempts": chance.choice([1, 1, 3])}
    if chance.random() < 0.3:
        options |= {"offset": chance.randrange(3), "limit": chance.choice([1, 20])}
    bad = chance.choice([0.0, 0.3, 1.0])
    stops = chance.random() < 0.3

    def task(broken: bool) -> FunctionTask:
        def answer(value: Any) -> Any:
            if broken and chance.random() < bad:
                raise ValueError(f"cannot\n{chance.choice(TEXTS)}")
            return outputs()

        made = FunctionTask(answer, name=f"task{place}")
        made.code = lambda: f"task {place}"  # type: ignore[method-assign]
        return made

    if stops:
        try:
            return karat.run(task(True), data, **options, abort_on_error=True, concurrency=1)
        except Aborted:
            return store.runs.list()[-1]
    run = karat.run(task(True), data, **options)
    if chance.random() < 0.5 and run.counts.failed:
        run = karat.run(task(False), data, **options, retry_failed=True)
    return run


FIXED = (
    "score",
    "comment",
    "error",
    "run",
    "run_label",
    "status",
    "id",
    "unit",
    "attempt",
    "cost",
    "try_number",
)


def kind(values: list[Any]) -> str:
    """The type that a column of values of any type has."""
    types = {type(value) for value in values} - {type(None)}
    if types == {str}:
        return "string"
    if types == {bool}:
        return "bool"
    if types == {int}:
        return "int64" if all(-(2**63) <= value < 2**63 for value in values if value is not None) else "json"
    if types and types <= {int, float}:
        whole = [value for value in values if type(value) is int]
        return "double" if all(abs(value) <= 2**53 for value in whole) else "json"
    return "json" if types else "null"


def check(table: pyarrow.Table, records: list[dict[str, Any]]) -> None:
    """The table has the values of the records, each column with the type that fits them."""
    assert table.column_names == list(dict.fromkeys(name for record in records for name in record))
    for name in table.column_names:
        values = [record.get(name) for record in records]
        found, type_ = table[name].to_pylist(), str(table[name].type)
        if name.rpartition(".")[2] in FIXED or name.endswith("_seconds"):
            assert type_ in ("string", "double", "int64")
        elif (wanted := kind(values)) == "json":
            assert type_ == "string"
            found = [None if text is None else json.loads(text) for text in found]
        else:
            assert type_ == wanted
        assert found == values, name


@pytest.fixture(params=["sqlite", "postgresql", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[karat.Store]:
    urls = {"sqlite": str(tmp_path / "k.db"), "memory": "memory://"}
    url = urls.get(request.param) or request.getfixturevalue("postgres_url")
    with karat.open_store(url) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("size", [4, 8192])
def test_a_table_has_the_values_of_the_rows(seed: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "ARROW_ROWS", size)
    with karat.open_store("memory://") as store:
        runs, evaluations = make(store, seed)
        check(runs[0].dataset.to_arrow(), [msgspec.structs.asdict(each) for each in runs[0].dataset])
        handles: list[karat.Run | karat.Evaluation] = [*runs, *evaluations]
        for handle in handles:
            records = [row.flat() for row in handle.rows()]
            check(handle.to_arrow(), records)
            frame = handle.to_pandas()
            assert list(frame.columns) == handle.to_arrow().column_names
            for name in frame.columns:
                for found, record in zip(frame[name], records, strict=True):
                    value = record.get(name)
                    assert (found is None or found != found) if value is None else found == value
            assert handle.to_polars().height == len(records)


class Stops(Longer):
    """Compares some pairs, then the store is gone."""

    def __init__(self, after: int, both_orders: bool) -> None:
        self.left = after
        self.both_orders = both_orders

    def compare(self, example: karat.Example, first: Any, second: Any) -> str:
        self.left -= 1
        if self.left < 0:
            raise StoreError("the disk is gone")
        return super().compare(example, first, second)


@pytest.mark.parametrize("both_orders", [False, True])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_comparisons_that_are_pending_have_rows(after: int, both_orders: bool) -> None:
    with karat.open_store("memory://") as store:
        runs = []
        for attempts, length in ((2, 1), (1, 2), (2, 3)):
            task = FunctionTask(lambda text, n=length: text * n, name=f"times{length}")
            runs.append(
                karat.run(
                    task, [{"input": text} for text in "abc"], attempts=attempts, store=store, progress=False
                )
            )
        with pytest.raises(StoreError):
            karat.evaluate(
                runs, ["json_valid", Stops(after, both_orders)], store=store, concurrency=1, progress=False
            )
        evaluation = store.evaluations.get("latest")
        pairs = [row for row in evaluation.rows() if row.others]
        shown = [(row.id, row.attempt, row.run, row.others[0].run) for row in pairs]
        # two runs have two attempts, so a pair of them has two comparisons, and every other pair has one
        assert len(shown) == len(set(shown)) == evaluation.counts.total - 15 == 3 * 4 * (1 + both_orders)
        statuses = [row.results["Stops"].status for row in pairs]
        assert statuses.count("pending") == len(pairs) - statuses.count("ok")
        assert statuses.count("ok") == sum(1 for each in evaluation.results() if each.key == "Stops")
        check(evaluation.to_arrow(), [row.flat() for row in evaluation.rows()])


@pytest.mark.parametrize("seed", range(0, 40, 5))
def test_every_store_gives_the_same_table(store: karat.Store, seed: int) -> None:
    runs, evaluations = make(store, seed)
    handles: list[karat.Run | karat.Evaluation] = [*runs, *evaluations]
    for handle in handles:
        check(handle.to_arrow(), [row.flat() for row in handle.rows()])


@pytest.mark.parametrize("seed", range(20))
def test_a_parquet_file_has_the_values_of_the_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "ARROW_ROWS", 4)
    with karat.open_store("memory://") as store:
        runs, evaluations = make(store, seed)
        aggregation = karat.aggregate(evaluations[0], progress=False)
        handles: list[export.Handle] = [runs[0].dataset, *runs, *evaluations, aggregation]
        for handle in handles:
            file = io.BytesIO()
            count = export.write(handle, file, "parquet")
            table = parquet.read_table(io.BytesIO(file.getvalue()))
            records = list(export.rows(handle))
            kinds = export.columns_of(handle)
            assert table.num_rows == count == len(records)
            assert table.column_names == list(kinds)
            for name, kind in kinds.items():
                found = table[name].to_pylist()
                if kind == "any":
                    found = [None if text is None else json.loads(text) for text in found]
                assert found == [record.get(name) for record in records]


def test_costs_are_those_of_the_rows(store: karat.Store) -> None:
    data = karat.Dataset.from_examples([{"input": number} for number in range(4)], name="some")
    run = karat.run(FunctionTask(lambda value: value, name="task"), data, store=store, progress=False)
    calls = [
        [Call("model", "a", usage=Usage(1, 2, 1, cost=0.1)), Call("model", "b", usage=Usage(cost=0.2))],
        [Call("model", "a", usage=Usage(1, 2, 1, cost=0.1)), Call("model", "a", usage=Usage(cost=None))],
        [Call("tool", "x", metadata={"served_model": "y"}), Call("model", "a", usage=Usage(cost=0.3))],
    ]
    for position, trace in enumerate(calls, 1):
        record = Output(
            format=FORMAT,
            example=f"{position}",
            outcome=Ok("x"),
            trace=trace,
            seconds=0.25,
            queue_seconds=1.5,
        )
        store.backend.append(run.number, [StoredRow(position, "1", 2, OK, None, encode(record))])
    records = [row.flat() for row in run.rows()]
    check(run.to_arrow(), records)
    assert [record["cost"] for record in records] == [None, pytest.approx(0.3), None, 0.3]
    assert run.to_arrow()["service_seconds"].to_pylist()[1:] == [0.0] * 3


@pytest.mark.parametrize(
    "payload",
    [
        b'{"format":2,"example":"e","outcome":{"status":"ok","value":"\xff"}}',
        b'{"format":2,"example":"e","outcome":{"status":"ok","value":"\\ud800"}}',
        b'{"format":2,"example":"e","outcome":{"status":"failed","error":{"type":"E","message":"m"}}}',
        b'{"format":2,"example":"e","outcome":{"status":"ok","value":1},"seconds":"x"}',
        b'{"format":2,"example":"e","outcome":{"status":"ok","value":1},"metadata":[]}',
        b'{"format":2,"example":"e","outcome":{"status":"ok","value":{"a":}}}',
        b"[]",
        b"",
    ],
)
def test_content_that_makes_no_sense_is_an_error_of_the_store(payload: bytes) -> None:
    with karat.open_store("memory://") as store:
        data = karat.Dataset.from_examples([{"input": 1}, {"input": 2}], name="some")
        task = FunctionTask(lambda value: "text", name="task")
        run = karat.run(task, data, store=store, progress=False)
        store.backend.append(run.number, [StoredRow(1, "1", 2, OK, None, payload)])
        with pytest.raises(StoreError):
            run.to_arrow()


def test_rows_that_are_read_do_not_become_python_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text of an input, an output or a comment is decoded on the way to Arrow."""
    with karat.open_store("memory://") as store:
        data = karat.Dataset.from_examples(
            [{"input": f"in {n}", "expected": {"n": n}} for n in range(5)], name="some"
        )
        run = karat.run(
            FunctionTask(lambda value: f"{value}\n", name="task"), data, store=store, progress=False
        )
        evaluation = karat.evaluate(run, ["exact_match"], store=store, progress=False)
        records = [row.flat() for row in evaluation.rows()]

        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("a record was decoded")

        monkeypatch.setattr(karat.store.rows, "evaluation_rows", refuse)
        monkeypatch.setattr(arrow, "encode", refuse)
        monkeypatch.setattr(arrow, "error_text", refuse)
        check(evaluation.to_arrow(), records)


def test_pandas_keeps_nested_values_as_objects() -> None:
    with karat.open_store("memory://") as store:
        data = karat.Dataset.from_examples([{"input": {"a": [1]}}, {"input": "x"}], name="some")
        frame = store.datasets.put(data).to_pandas()
        assert frame["input"].tolist() == [{"a": [1]}, "x"]
        assert isinstance(frame, pandas.DataFrame)
