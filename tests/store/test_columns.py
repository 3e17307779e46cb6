"""Columns equal the records, for every kind of store and every state of a run."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pytest

import karat
from karat.errors import StoreError, StoreRefused, TookTooLong
from karat.records import FORMAT, Call, Failed, Ok, RunHeader, Skipped, Usage
from karat.serialization import encode
from karat.store import ReadPool, Store, open_store
from karat.store import columns as columns_module
from karat.store.backend import FAILED, OK, REUSED, SKIPPED, RecordDecoder, StoredRow
from karat.store.columns import (
    FIELDS,
    ItemColumns,
    Segment,
    StatusCounts,
    cached_segments,
    cells_of_output,
    example_columns,
    flat_fields,
    join_segments,
    kind_of_outcome,
    load_columns,
    made_elsewhere,
)
from karat.store.repositories import latest, output_decoder, result_decoder
from karat.store.sql import time_limit
from karat.tasks import Context, Task
from tests.store.conftest import add_header

FIXTURES = Path(__file__).with_name("fixtures")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path_factory.mktemp("cache") / "replies.db"
    monkeypatch.setenv("KARAT_CACHE", str(file))
    return file


failing: set[str] = set()


def shout(text: str) -> str:
    """Fails for what is in `failing`."""
    if text in failing:
        raise ValueError(f"cannot shout {text}")
    return text.upper()


def examples(count: int) -> karat.Dataset:
    return karat.Dataset.from_examples(
        [{"id": f"q{i}", "input": f"t{i}", "expected": f"T{i}" if i % 3 else "?"} for i in range(count)]
    )


def from_records(handle: Any) -> list[tuple[Any, ...]]:
    """What the columns should be, read from the records one by one."""
    decode = output_decoder.decode if handle.kind == "run" else result_decoder.decode
    backend = handle.store.backend
    found = []
    for row in latest(backend.scan(handle.number, 0, 10**6)):
        record: Any = decode(row.payload)
        score = (
            record.outcome.value.score if handle.kind != "run" and isinstance(record.outcome, Ok) else None
        )
        kind = kind_of_outcome(record.outcome)
        facts = (row.try_number, row.status, score, record.seconds, record.queue_seconds, kind)
        found.append((row.position, record.attempt, record.unit, *facts))
    return found


def from_columns(columns: ItemColumns) -> list[tuple[Any, ...]]:
    return [
        (
            int(columns.positions[i]),
            columns.items[columns.codes[i]].attempt,
            columns.items[columns.codes[i]].unit,
            int(columns.tries[i]),
            int(columns.statuses[i]),
            None if np.isnan(columns.scores[i]) else float(columns.scores[i]),
            float(columns.seconds[i]),
            float(columns.queue[i]),
            columns.kinds[columns.kind_codes[i]],
        )
        for i in range(len(columns))
    ]


def assert_same(*handles: Any) -> None:
    for handle in handles:
        assert handle.store.backend.has_columns(handle.number)
        assert from_columns(load_columns(handle)) == from_records(handle)


def test_columns_are_what_the_records_say(store: Store) -> None:
    failing.update({"t3", "t7"})
    run = karat.run(shout, examples(40), store=store, attempts=2)
    evaluation = karat.evaluate(run, ["exact_match", "edit_distance"])
    assert_same(run, evaluation)
    failing.clear()
    run = karat.run(shout, examples(40), store=store, attempts=2, retry_failed=True)
    evaluation = karat.evaluate(run, ["exact_match", "edit_distance"], retry_failed=True)
    assert run.counts.failed == 0
    assert_same(run, evaluation)
    assert max(load_columns(run).tries) == 2


class Turns(Task):
    """One output for each word."""

    name = "turns"
    version = "1"
    units_declared = True

    def units(self, example: karat.Example) -> list[str]:
        return [f"turn/{number}" for number in range(len(example.input))]

    def call_units(self, example: karat.Example, context: Context) -> Iterator[tuple[str, Any]]:
        for number, text in enumerate(example.input):
            yield f"turn/{number}", text if text != "bad" else ValueError("bad")


def test_columns_of_units(store: Store) -> None:
    words = [{"input": ["a"] * 12}, {"input": ["b", "bad"]}, {"input": ["c"]}]
    run = karat.run(Turns(), words, store=store)
    assert_same(run, karat.evaluate(run, [lambda outputs: len(outputs)]))
    units = [load_columns(run).items[code].unit for code in load_columns(run).codes]
    assert units[:12] == [f"turn/{number}" for number in range(12)]


def test_a_copy_has_columns(store: Store) -> None:
    failing.add("t2")
    run = karat.run(shout, examples(9), store=store)
    failing.clear()
    with open_store("memory://") as other:
        assert_same(store.copy(karat.evaluate(run, ["exact_match"]).id, other), other.runs.get(run.id))


class Longer:
    """Compares two outputs by their length."""

    version = "1"

    def compare(self, example: Any, first: Any, second: Any) -> str:
        return "win" if len(str(first.value)) > len(str(second.value)) else "tie"


def test_columns_of_an_amended_evaluation(store: Store) -> None:
    runs = [karat.run(shout, examples(6), store=store, new=True, progress=False) for _ in range(3)]
    first = karat.evaluate(runs[:2], [Longer()], progress=False)
    before = from_columns(load_columns(first))
    amended = karat.evaluate(runs[2], [Longer()], amend=first, progress=False)
    found = from_columns(load_columns(amended))
    assert found == from_records(amended)
    assert len(found) > len(before)
    assert from_columns(load_columns(store.evaluations.get(first.id))) == before


def test_the_first_commit_of_a_try_counts(store: Store) -> None:
    number = add_header(store)
    first: Any = (None, 1.0, 0.0, None, 0, 0, "")
    second: Any = (None, 2.0, 0.0, None, 0, 0, "")
    store.backend.append(number, [StoredRow(5, "1", 1, 0, None, b"{}", first)])
    store.backend.append(
        number, [StoredRow(5, "1", 1, 0, None, b"{}", second), StoredRow(4, "1", 1, 0, None, b"{}", first)]
    )
    store.backend.append(
        number, [StoredRow(5, "1", 2, 1, None, b"{}", second), StoredRow(5, "10", 1, 0, None, b"{}", first)]
    )
    store.backend.append(number, [StoredRow(5, "2", 1, 0, None, b"{}", first)])
    id = "run-0000000001"
    header = RunHeader(format=FORMAT, id=id, dataset="", task="", configuration="")
    handle: Any = type(
        "Handle", (), {"store": store, "number": number, "kind": "run", "id": id, "header": header}
    )
    columns = load_columns(handle)
    assert columns.positions.tolist() == [4, 5, 5, 5]
    assert [columns.items[code].attempt for code in columns.codes] == [1, 1, 2, 10]
    assert columns.tries.tolist() == [1, 2, 1, 1]
    assert columns.seconds.tolist() == [1.0, 2.0, 1.0, 1.0]
    assert store.backend.last_segment(number)[1] == 6


def test_records_without_columns_are_read_instead_and_the_cache_is_private(store: Store, cache: Path) -> None:
    failing.add("t2")
    run = karat.run(shout, examples(9), store=store)
    failing.clear()
    expected = from_columns(load_columns(run))
    (row,) = latest(store.backend.scan(run.number, 0, 1))
    store.backend.append(run.number, [row])  # it exists, but it comes without columns
    assert not store.backend.has_columns(run.number)
    assert from_columns(load_columns(run)) == expected
    assert not cache.exists()  # the reply cache is a file of this name
    (file,) = Path(f"{cache}-columns").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert from_columns(load_columns(run)) == expected
    file.write_bytes(file.read_bytes()[:-1] + b"x")  # damaged: it is made again
    assert from_columns(load_columns(run)) == expected


def test_cost_tokens_and_kinds() -> None:
    calls = [
        Call("model", "a", usage=Usage(3, 4, cost=0.5)),
        Call("model", "b", usage=Usage(1, 1, cost=0.25)),
    ]
    assert cells_of_output(Ok("x"), 1.0, 0.5, calls) == (None, 1.0, 0.5, 0.75, 4, 5, "")
    unknown = [*calls, Call("model", "c", usage=Usage(1, 0))]
    assert list(cells_of_output(Ok("x"), 1.0, 0.5, unknown))[3] is None
    failure = karat.records.Failure("E", "node ask: Timeout: late", metadata={"node": "ask"})
    assert list(cells_of_output(Failed(failure), 1.0, 0.0, []))[6] == "node ask: Timeout"
    assert list(cells_of_output(Skipped("why"), 1.0, 0.0, None))[6] == "why"


def test_removing_a_run_removes_its_columns(store: Store) -> None:
    run = karat.run(shout, examples(3), store=store)
    store.remove(run.id)
    assert store.backend.last_segment(run.number) == (0, 0)


def test_damaged_columns_are_not_read_as_data(tmp_path: Path) -> None:
    with open_store(tmp_path / "karat.db") as store:
        run = karat.run(shout, examples(3), store=store)
        with sqlite3.connect(tmp_path / "karat.db") as other:
            other.execute("UPDATE karat_columns SET payload = zeroblob(length(payload))")
        with pytest.raises(StoreError, match="columns of"):
            load_columns(run)
        assert any("columns" in problem for problem in store.verify())


def test_damaged_records_do_not_become_columns(tmp_path: Path) -> None:
    with open_store(tmp_path / "karat.db") as store:
        run = karat.run(shout, examples(3), store=store)
        with sqlite3.connect(tmp_path / "karat.db") as other:
            other.execute("UPDATE karat_headers SET columns = 0")
            other.execute("UPDATE karat_rows SET status = 1 WHERE parent = ? AND position = 1", (run.number,))
        with pytest.raises(StoreError, match="damaged"):
            load_columns(run)


@pytest.mark.parametrize("repeated", [0, 1, 3, 1 << 16])
@pytest.mark.parametrize("values", [2, 4, 1000])
def test_examples_with_equal_metadata_have_equal_columns(
    repeated: int, values: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(columns_module, "MOST_REPEATED", repeated)
    monkeypatch.setattr(columns_module, "MOST_VALUES", values)
    rows: list[dict[str, Any]] = []
    for number in range(40):
        metadata = {"topic": "ab"[number % 2], "level": number % 7, "nested": {"list": [number % 3, "x"]}}
        rows.append({"input": number, "metadata": {} if number % 5 == 4 else metadata})
    with open_store(tmp_path / "karat.db") as store:
        found = example_columns(store.datasets.put(karat.Dataset.from_examples(rows, name="some")))
    for name, field in found.fields.items():
        wanted = [dict(flat_fields(row["metadata"])).get(name) for row in rows]
        if field.codes is not None:
            got = [list(field.values[code]) for code in field.codes]
            assert got == [value if isinstance(value, list) else [value] for value in wanted]
        elif field.numbers is not None:
            assert [None if np.isnan(each) else each for each in field.numbers] == wanted
        else:
            assert len({str(value) for value in wanted}) >= values


def test_columns_of_a_store_of_schema_1(tmp_path: Path) -> None:
    path = Path(shutil.copy(FIXTURES / "schema-1.sqlite", tmp_path))
    before = path.read_bytes()
    with open_store(path, read_only=True) as store:
        handles: list[Any] = [*store.runs.list(), *store.evaluations.list()]
        assert handles
        for handle in handles:
            assert not store.backend.has_columns(handle.number)
            assert from_columns(load_columns(handle)) == from_records(handle)
    assert path.read_bytes() == before
    with open_store(path) as store:
        again: list[Any] = [*store.runs.list(), *store.evaluations.list()]
        for handle in again:
            assert from_columns(load_columns(handle)) == from_records(handle)


def test_a_read_only_store_sees_what_others_write_and_changes_nothing(url: str) -> None:
    with pytest.raises(StoreRefused):
        open_store(url, read_only=True)
    with open_store(url) as store:
        karat.run(shout, examples(3), store=store)
        with open_store(url, read_only=True) as reader:
            before = reader.backend.version()
            assert reader.backend.version() == before
            run = karat.run(shout, examples(5), store=store)
            assert reader.backend.version() != before
            assert [output.value for output in reader.runs.get(run.id).outputs()] == [
                f"T{i}" for i in range(5)
            ]
            with pytest.raises((StoreRefused, StoreError)):
                reader.remove(run.id)
            with pytest.raises((StoreRefused, StoreError)):
                reader.tag(run.id, ["x"])
        assert store.runs.get(run.id).header.labels == []


def test_a_pool_gives_a_store_to_one_thread_at_a_time(url: str) -> None:
    with open_store(url) as store:
        run = karat.run(shout, examples(3), store=store)
        pool = ReadPool(url, size=2)
        with pool.store() as one, pool.store() as other:
            assert one is not other
            assert one.get(run.id).id == other.get(run.id).id
        with pool.store() as again:
            assert again in (one, other)
        pool.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_in_a_folder_without_write_permission_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    with open_store(folder / "karat.db") as store:
        run = karat.run(shout, examples(3), store=store)
    folder.chmod(0o500)
    try:
        with open_store(folder / "karat.db", read_only=True) as reader:
            assert len(load_columns(reader.runs.get(run.id))) == 3
    finally:
        folder.chmod(0o700)


def test_columns_of_some_items_and_statuses(store: Store) -> None:
    failing.update({"t1", "t4"})
    run = karat.run(shout, examples(9), store=store)
    evaluation = karat.evaluate(run, ["exact_match", "edit_distance"])
    failing.clear()
    assert load_columns(run, statuses=(FAILED,)).positions.tolist() == [1, 4]
    second = load_columns(evaluation, only=lambda item: item.evaluator == 1)
    assert second.positions.tolist() == list(range(9))
    skipped = load_columns(evaluation, only=lambda item: item.evaluator == 1, statuses=(SKIPPED,))
    assert skipped.positions.tolist() == [1, 4]
    assert {item.evaluator for item in skipped.items} == {1}
    karat.run(shout, examples(9), store=store, retry_failed=True)
    again = store.runs.get(run.id)
    assert load_columns(again, statuses=(FAILED,)).positions.tolist() == []
    assert len(load_columns(again, statuses=(OK,))) == 9


FOREVER = {
    "sqlite": "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
    "postgresql": "SELECT count(*) FROM generate_series(1, 10000000000)",
}


def test_a_time_limit_stops_a_query(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import karat.store.postgres

    monkeypatch.setattr(karat.store.postgres, "STATEMENT_MILLISECONDS", 100)
    with open_store(url) as store, open_store(url, read_only=True) as reader:
        backend: Any = reader.backend
        with time_limit(0.05), pytest.raises(TookTooLong):
            backend._read(FOREVER[url.partition(":")[0]])
        with time_limit(-1.0), pytest.raises(TookTooLong):
            backend.headers()
        assert store.backend.headers() == backend.headers(), "the connection is usable afterwards"
        with time_limit(60.0):
            assert backend.headers() == []


def test_reading_leaves_no_files_behind(tmp_path: Path) -> None:
    path = tmp_path / "karat.db"
    with open_store(path) as store:
        karat.run(shout, examples(3), store=store, progress=False)
    before = path.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["karat.db"]
    pool = ReadPool(path)
    with pool.store() as one, pool.store() as other:
        assert len(one.runs.list()) == len(other.runs.list()) == 1
    pool.close()
    assert [each.name for each in tmp_path.iterdir()] == ["karat.db"]
    assert path.read_bytes() == before


def test_reading_leaves_the_log_of_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "karat.db"
    with open_store(path):
        pass
    reader = open_store(path, read_only=True)
    with open_store(path) as writer:
        karat.run(shout, examples(3), store=writer, progress=False)
        reader.close()
        assert len(writer.runs.list()) == 1
        karat.run(shout, examples(4), store=writer, progress=False)
    with open_store(path) as again:
        assert len(again.runs.list()) == 2
        assert again.verify() == []


@pytest.mark.parametrize(
    "change",
    [
        {"positions": b"1"},
        {"codes": b"\x07\x00\x00\x00" * 4},
        {"codes": b"1"},
        {"items": []},
        {"items": [b"x"]},
        {"items": [b"\xff"]},
        {"format": 99},
        {"seconds": b"1234567"},
        {"kind_codes": b"\x07\x00\x00\x00" * 4},
        {"statuses": b""},
        {"orders": b"12345"},
    ],
)
def test_a_segment_that_makes_no_sense_is_an_error(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "karat.db"
    with open_store(path) as store:
        run = karat.run(shout, examples(4), store=store, progress=False)
    with sqlite3.connect(path) as connection:
        number, payload = connection.execute(
            "SELECT number, payload FROM karat_columns WHERE parent = ?", (run.number,)
        ).fetchone()
        segment = msgspec.structs.replace(msgspec.msgpack.decode(payload, type=Segment), **change)
        forged = msgspec.msgpack.encode(segment)
        connection.execute(
            "UPDATE karat_columns SET payload = ?, checksum = ? WHERE number = ?",
            (forged, crc32(forged), number),
        )
    with open_store(path, read_only=True) as store, pytest.raises(StoreError):
        load_columns(store.runs.list()[0], (*FIELDS, "orders"))


@pytest.mark.parametrize("longest", [0, 64])
def test_examples_are_ranked_by_their_ids_as_texts(
    longest: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns_module, "LONGEST_SORTED", longest)
    ids = ["b", "a", "aa", "Z", "é", "日本", "\U0001f600", "\uffee", "a b", "10", "9", "x" * 40, "\x01"]
    data = karat.Dataset.from_examples([{"id": id, "input": 1} for id in ids], name="named")
    ranks = example_columns(store.datasets.put(data)).ranks().tolist()
    assert [id for _, id in sorted(zip(ranks, ids, strict=True))] == sorted(ids)


def test_building_reports_its_progress_and_keeps_nothing_when_it_is_stopped(
    store: Store, cache: Path
) -> None:
    run = karat.run(shout, examples(900), store=store)
    (row,) = latest(store.backend.scan(run.number, 0, 1))
    store.backend.append(run.number, [row])  # without columns
    shares: list[float] = []
    stopped = cached_segments(run, shares.append)
    next(stopped)
    del stopped
    assert list(Path(f"{cache}-columns").iterdir()) == []
    shares.clear()
    assert sum(records for _, records, _ in cached_segments(run, shares.append)) == 900
    assert shares == sorted(set(shares))
    assert shares[-1] == 1.0
    assert len(list(Path(f"{cache}-columns").iterdir())) == 1
    assert [each.id for each in run.dataset] == list(example_columns(run.dataset, shares.append).ids())
    assert shares[-1] == 0.0, "the share of the next examples comes before they are read"
    with made_elsewhere(lambda what: pytest.fail("they are in the cache")):
        assert len(load_columns(run)) == len(example_columns(run.dataset)) == 900


def test_an_interrupted_run_without_columns_is_built_once(store: Store, cache: Path) -> None:
    run = karat.run(shout, examples(9), store=store)
    (row,) = latest(store.backend.scan(run.number, 0, 1))
    store.backend.append(run.number, [row])
    store.runs.save(run.number, msgspec.structs.replace(run.header, finished=None, status="running"))
    run = store.runs.get(run.id)
    assert run.status == "interrupted"
    expected = from_columns(load_columns(run))
    with made_elsewhere(lambda what: pytest.fail("they are in the cache")):
        assert from_columns(load_columns(run)) == expected


def test_a_time_limit_stops_columns_and_ids(store: Store) -> None:
    run = karat.run(shout, examples(5), store=store)
    columns = example_columns(run.dataset)
    assembly = columns_module._Assembly("run", (), 0, None, None)
    for _, _, payload in store.backend.segments(run.number):
        assembly.add(payload)
    with time_limit(-1.0):
        with pytest.raises(TookTooLong):
            assembly.done()
        with pytest.raises(TookTooLong):
            list(columns.ids())


def test_records_that_are_decoded_together_are_checked_one_by_one() -> None:
    decoder = RecordDecoder(Usage)
    good = [encode(Usage(1, 2, 5)), encode(Usage(3, 4))]
    assert decoder.decode_all(good) == [Usage(1, 2, 5), Usage(3, 4)]
    assert decoder.decode_all([]) == []
    cut = good[0][:-1], b'"output_tokens":7}'  # together they are one record
    for broken in ([good[0], b""], [good[0], b"[]"], [b"%b,%b" % tuple(good)], [*cut]):
        with pytest.raises(StoreError):
            decoder.decode_all(broken)


def append_one_by_one(store: Store, patch: pytest.MonkeyPatch) -> None:
    """Give each record a segment of its own."""
    append = store.backend.append

    def append_each(parent: int, rows: list[StoredRow], owner: str | None = None) -> int:
        return sum(append(parent, [row], owner) for row in rows)

    patch.setattr(store.backend, "append", append_each)


@pytest.fixture
def small_segments(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment for each record, some of which are read and joined together."""
    append_one_by_one(store, monkeypatch)
    monkeypatch.setattr("karat.store.columns.MOST_SEGMENTS", 1)
    monkeypatch.setattr("karat.store.columns.JOINED_RECORDS", 7)
    monkeypatch.setattr("karat.store.sql._SEGMENT_RECORDS", 5)


def facts_of(handle: Any) -> Any:
    return from_columns(load_columns(handle)), StatusCounts().update(handle)


def test_the_segments_of_a_stage_are_joined_at_its_end(
    store: Store, small_segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = store.backend
    failing.update({"t3", "t7"})
    with monkeypatch.context() as patch:
        patch.setattr("karat.execution.pipeline.join_segments", lambda handle: None)
        apart = karat.run(shout, examples(40), store=store)
        judged = karat.evaluate(apart, ["exact_match", "edit_distance"])
    counted = StatusCounts()
    assert counted.update(apart)[OK] == 38
    for handle in (apart, judged):
        before, state = facts_of(handle), backend.last_segment(handle.number)
        many = backend.segment_count(handle.number)
        join_segments(handle)
        assert backend.segment_count(handle.number) < many / 5
        assert (facts_of(handle), backend.last_segment(handle.number)) == (before, state)
        assert counted.update(apart) == facts_of(apart)[1]
    failing.clear()
    retried = karat.run(shout, examples(40), store=store, retry_failed=True)  # adds two, and joins again
    assert retried.id == apart.id
    assert_same(retried)
    assert counted.update(retried)[OK] == 40
    joined = karat.evaluate(retried, ["exact_match", "edit_distance"], retry_failed=True)
    assert_same(joined)
    assert backend.segment_count(joined.number) < 20


def test_a_reader_is_right_while_segments_are_joined(
    store: Store, small_segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("karat.execution.pipeline.join_segments", lambda handle: None)
        run = karat.run(shout, examples(60), store=store)
    expected = from_records(run)
    read, reading = store.backend.segments, [0]

    def segments(parent: int, after: int = 0) -> Iterator[tuple[int, int, bytes]]:
        reading[0] += 1
        for place, segment in enumerate(read(parent, after)):
            yield segment
            if reading[0] == 1 and place == 10:
                reading[0] = 2
                join_segments(run)

    with monkeypatch.context() as patch:
        patch.setattr(store.backend, "segments", segments)
        assert from_columns(load_columns(run)) == expected
    counted = StatusCounts()
    # As if it had read a part of the segments before they were joined:
    counted.last, counted.counts = next(iter(read(run.number)))[0] - 2, [5, *counted.counts[1:]]
    assert counted.update(run) == [60, *[0] * REUSED]


def join_and_die(url: str, run: str, statements: int) -> None:
    """Join the segments of a run; this process is killed before so many statements of SQL have been executed."""
    try:
        with open_store(url) as store:
            handle = store.runs.get(run)
            left = iter(range(statements))
            store.backend._connection.set_trace_callback(  # type: ignore[attr-defined]
                lambda sql: os.kill(os.getpid(), signal.SIGKILL) if next(left, None) is None else None
            )
            join_segments(handle)
    finally:
        os._exit(0)


def test_a_kill_while_segments_are_joined_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/k.db"
    with open_store(url) as store, monkeypatch.context() as patch:
        append_one_by_one(store, patch)
        run = karat.run(shout, examples(40), store=store)
        expected, many = facts_of(run), store.backend.segment_count(run.number)
    monkeypatch.setattr("karat.store.columns.MOST_SEGMENTS", 1)
    monkeypatch.setattr("karat.store.columns.JOINED_RECORDS", 7)
    found, killed = [], 0
    while True:
        if (child := os.fork()) == 0:
            join_and_die(url, run.id, killed)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with open_store(url) as store:
            again = store.runs.get(run.id)
            assert facts_of(again) == expected, f"killed before statement {killed + 1}"
            found.append(store.backend.segment_count(again.number))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
    # Some kills came after a part was joined; each part is joined as a whole, or not at all.
    assert killed > 5
    assert found[0] == many > 30
    assert len(set(found)) > 3
    assert found[-1] < 8


def test_segments_deleted_during_a_join_are_not_joined(store: Store, small_segments: None) -> None:
    run = karat.run(shout, examples(9), store=store)
    first, records, _ = next(iter(store.backend.segments(run.number)))
    store.backend.join_segments(run.number, first, first, records + 1, b"not a segment")
    assert_same(run)


def test_what_a_killed_process_was_writing_is_removed(cache: Path) -> None:
    folder = columns_module.columns_folder()
    with columns_module.keeping("first") as keep:
        keep(b"1")
        (mine,) = folder.iterdir()
        (folder / "left.draft").write_bytes(b"half")
        with columns_module.keeping("second") as other:
            other(b"2")
        assert mine.exists()
    assert [len(list(columns_module.read_cached(name) or ())) for name in ("first", "second")] == [1, 1]
    assert len(list(folder.iterdir())) == 2
