"""Rows: an example joined with its output and its results; and the tables they become."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import karat
from karat.formatting import as_text
from karat.layout import Layout
from karat.reporting import export
from karat.store import arrow
from karat.store.rows import row_tables
from karat.tasks import FunctionTask


def answer(number: int) -> dict[str, int]:
    if number == 2:
        raise ValueError("no answer")
    return {"number": number}


class Larger:
    version = "1"

    def compare(self, example, first, second):
        return "win" if first.value["number"] > second.value["number"] else "tie"


@pytest.fixture
def data():
    return karat.Dataset.from_examples(
        [
            {"id": f"e{n}", "input": n, "expected": {"number": n % 2}, "metadata": {"topic": "ab"[n % 2]}}
            for n in range(4)
        ],
        name="numbers",
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    url = tmp_path / "k.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with karat.open_store(url) as opened:
        yield opened


def right(outputs, expected):
    return karat.Result("right", float(outputs == expected), comment="because")


def test_a_row_has_the_example_the_output_and_every_result(store, data):
    run = karat.run(answer, data, store=store, limit=3)
    evaluation = karat.evaluate(run, [right, "json_valid"])
    rows = list(evaluation.rows())
    assert [row.id for row in rows] == ["e0", "e1", "e2"]
    first, _, failed = rows
    assert (first.input, first.expected, first.metadata) == (0, {"number": 0}, {"topic": "a"})
    assert (first.status, first.output, first.run, first.attempt) == ("ok", {"number": 0}, run.id, 1)
    assert first.service_seconds is not None
    assert (first.results["right"].score, first.results["right"].comment) == (1.0, "because")
    assert failed.status == "failed"
    assert "no answer" in failed.error
    assert failed.results["right"].status == "skipped"
    assert set(failed.results) == {"right", "json_valid"}


def test_missing_items_have_rows(store, data):
    def stop(number: int) -> int:
        if number == 1:
            raise KeyboardInterrupt
        return number

    with pytest.raises(KeyboardInterrupt):
        karat.run(stop, data, store=store, concurrency=1, attempts=2)
    run = store.runs.list()[0]
    rows = list(run.rows())
    assert len(rows) == 8
    assert {row.status for row in rows} >= {"pending"}
    evaluation = karat.evaluate(run, [right])
    assert [row.results["right"].status for row in evaluation.rows()].count("pending") == sum(
        row.status == "pending" for row in rows
    )


def test_a_comparison_has_both_outputs_and_the_verdict(store, data):
    def more(number: int) -> dict[str, int]:
        return {"number": number + 1}

    runs = [karat.run(task, data, store=store) for task in (more, answer)]
    rows = list(karat.evaluate(runs, [Larger()]).rows())
    assert [row.id for row in rows] == ["e0", "e1", "e2", "e3"]
    row = rows[0]
    assert (row.run, row.others[0].run) == (runs[0].id, runs[1].id)
    assert (row.output, row.others[0].output) == ({"number": 1}, {"number": 0})
    assert row.results["Larger"].value == "win"
    flat = row.flat()
    assert flat["second.output"] == {"number": 0}
    assert rows[2].results["Larger"].status == "skipped"


class Ordered:
    version = "1"

    def evaluate_runs(self, example, outputs):
        return {each.run: float(each.value["number"]) for each in outputs}


def test_a_joint_evaluation_has_every_output_in_each_format(store, data):
    def shifted(number: int, shift: int) -> dict[str, int]:
        return {"number": number + shift}

    tasks = [FunctionTask(shifted, parameters={"shift": shift}) for shift in range(6)]
    runs = [karat.run(task, data, store=store, limit=2) for task in tasks]
    evaluation = karat.evaluate(runs, [Ordered()])
    records = [row.flat() for row in evaluation.rows()]
    names = ["", "second.", "third.", "fourth.", "5th.", "6th."]
    for number, record in enumerate(records):
        assert [record[f"{name}run"] for name in names] == [run.id for run in runs]
        assert [record[f"{name}output"]["number"] for name in names] == list(range(number, number + 6))
    table = evaluation.to_arrow()
    columns = export.columns_of(evaluation)
    assert set(table.column_names) == set(columns) == set(records[0])
    assert [json.loads(text) for text in table["6th.output"].to_pylist()] == [{"number": 5}, {"number": 6}]
    written = {}
    for format in ("jsonl", "csv", "parquet"):
        file = io.BytesIO()
        export.write(evaluation, file, format)
        written[format] = file.getvalue()
    assert [json.loads(line) for line in written["jsonl"].splitlines()] == records
    lines = list(csv.DictReader(io.StringIO(written["csv"].decode())))
    tabled = parquet.read_table(io.BytesIO(written["parquet"])).to_pylist()
    for name in names:
        for found in (lines, tabled):
            assert [json.loads(row[f"{name}output"]) for row in found] == [
                record[f"{name}output"] for record in records
            ]


def test_exports_are_the_joined_rows_with_nested_fields_as_json(store):
    examples = [
        {"id": f"e{n}", "input": {"n": [n]}, "expected": [{"n": n}], "metadata": {"tags": ["a", {"b": n}]}}
        for n in range(3)
    ]

    def nested(outputs):
        return karat.Result("nested", 0.5, value={"parts": [outputs]}, comment="half")

    data = karat.Dataset.from_examples(examples, name="nested")
    run = karat.run(lambda value: {"copy": value}, data, store=store)
    evaluation = karat.evaluate(run, [nested])
    records = [row.flat() for row in evaluation.rows()]
    assert records[1]["nested.value"] == {"parts": [{"copy": {"n": [1]}}]}
    for format in ("jsonl", "csv", "parquet"):
        file = io.BytesIO()
        assert export.write(evaluation, file, format) == 3
        if format == "jsonl":
            assert [json.loads(line) for line in file.getvalue().splitlines()] == records
            continue
        found = (
            list(csv.DictReader(io.StringIO(file.getvalue().decode())))
            if format == "csv"
            else parquet.read_table(io.BytesIO(file.getvalue())).to_pylist()
        )
        assert list(found[0]) == list(export.columns_of(evaluation))
        for name in ("input", "expected", "metadata", "output", "nested.value"):
            assert [json.loads(row[name]) for row in found] == [record[name] for record in records]


def test_tables(store, data):
    evaluation = karat.evaluate(karat.run(answer, data, store=store), [right])
    frame = evaluation.to_pandas()
    assert list(frame["id"]) == ["e0", "e1", "e2", "e3"]
    assert list(frame["right.score"].dropna()) == [1.0, 1.0, 0.0]
    table = evaluation.to_arrow()
    assert table.column("right.score").to_pylist() == [1.0, 1.0, None, 0.0]
    assert json.loads(table.column("expected").to_pylist()[1]) == {"number": 1}
    assert evaluation.to_polars().height == 4
    assert karat.aggregate(evaluation).to_pandas()["of"].tolist() == [4]
    assert evaluation.dataset.to_polars().columns == ["id", "input", "expected", "metadata"]
    assert evaluation.runs[0].to_arrow().num_rows == 4


@pytest.mark.parametrize("kind", ["dataset", "run", "evaluation", "aggregation"])
def test_everything_becomes_the_same_table_in_each_library(store, data, kind):
    run = karat.run(answer, data, store=store)
    evaluation = karat.evaluate(run, [right])
    made = {
        "dataset": run.dataset,
        "run": run,
        "evaluation": evaluation,
        "aggregation": karat.aggregate(evaluation),
    }[kind]
    table, frame, polars = made.to_arrow(), made.to_pandas(), made.to_polars()
    assert table.num_rows == len(frame) == polars.height == (1 if kind == "aggregation" else 4)
    assert table.column_names == list(frame.columns) == polars.columns
    for name in ("id", "status", "error", "attempt", "right.score", "value", "n", "of"):
        if name in table.column_names:
            values = table.column(name).to_pylist()
            assert polars[name].to_list() == values
            assert [None if each != each else each for each in frame[name].tolist()] == values


def test_a_row_has_its_label_cost_value_and_attempt(store, data):
    def valued(outputs):
        return karat.Result("valued", 0.5, value={"word": "x"})

    runs = [
        karat.run(answer, data, store=store, limit=1, attempts=2, labels=[label], new=True)
        for label in ("mine", "other")
    ]
    rows = list(karat.evaluate(runs, [valued]).rows())
    assert [(row.run, row.run_label, row.attempt) for row in rows] == [
        (run.id, label, attempt)
        for run, label in zip(runs, ("mine", "other"), strict=True)
        for attempt in (1, 2)
    ]
    flat = rows[0].flat()
    assert (flat["run"], flat["run_label"], flat["attempt"]) == (runs[0].id, "mine", 1)
    assert flat["valued.value"] == {"word": "x"}
    assert "cost" in flat


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text('ab"é', max_size=4),
)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "b"]), VALUES | st.lists(VALUES, max_size=2)), max_size=12
    ),
    st.integers(1, 13),
)
def test_an_arrow_table_does_not_depend_on_how_many_records_are_read_at_once(records, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "ARROW_ROWS", size)
        parts, _ = arrow.table_of_batches(arrow.record_batches(records))
        patch.setattr(arrow, "ARROW_ROWS", 100)
        whole, _ = arrow.table_of_batches(arrow.record_batches(records))
    assert parts.schema == whole.schema
    for name in whole.column_names:
        values = [record.get(name) for record in records]
        found = [table[name].to_pylist() for table in (parts, whole)]
        texts = all(isinstance(value, (str, type(None))) for value in values)
        if whole.schema.field(name).type == "string" and not texts:
            # Equal numbers may be written differently: 0 and 0.0.
            found = [[None if text is None else json.loads(text) for text in column] for column in found]
            assert found[1] == values
        assert found[0] == found[1]


def test_attempts_are_distinguishable_at_any_width_and_large_scores_are_whole_numbers(tmp_path, data):
    def characters(outputs):
        return karat.Result("characters", 7843.5)

    with karat.open_store(tmp_path / "k.db") as opened:
        run = karat.run(answer, data, store=opened, attempts=2, limit=2)
        rows = list(karat.evaluate(run, [right, characters, "json_valid"]).rows())
    for width in (60, 80, 200):
        text = as_text(row_tables(rows), Layout(width))
        assert text.splitlines()[0].split()[:2] == ["example", "attempt"]
    assert "7,844" in text
