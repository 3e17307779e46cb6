"""Rows, the same for every kind of store: atomic batches, first commit wins, dataset order, any content."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.datasets import Dataset
from karat.errors import StoreError
from karat.keys import output_item, result_item
from karat.store import Store, open_store
from karat.store.backend import FAILED, NOT_APPLICABLE, OK, REUSED, SKIPPED, StoredRow, item_order, latest
from tests.store.conftest import Child, add_header


def row(
    position: int, item: str = "1", try_number: int = 1, payload: bytes = b"{}", status: int = OK
) -> StoredRow:
    return StoredRow(position, item, try_number, status, None, payload)


def test_a_batch_is_read_back_in_dataset_order(store: Store) -> None:
    run = add_header(store)
    assert store.backend.append(run, [row(2), row(0, payload=b"first"), row(1)]) == 3
    assert [r.position for r in store.backend.scan(run, 0, 10)] == [0, 1, 2]
    assert [r.position for r in store.backend.scan(run, 1, 2)] == [1]
    assert store.backend.scan(run, 0, 1) == [row(0, payload=b"first")]
    assert store.backend.extent(run) == 3
    assert store.backend.scan(run + 1, 0, 10) == []
    assert store.backend.extent(run + 1) == 0


def test_an_empty_batch_changes_nothing(store: Store) -> None:
    run = add_header(store)
    assert store.backend.append(run, []) == 0
    assert store.backend.extent(run) == 0


def test_the_first_commit_of_an_identity_wins(store: Store) -> None:
    run = add_header(store)
    assert store.backend.append(run, [row(0, payload=b"first")]) == 1
    assert store.backend.append(run, [row(0, payload=b"second"), row(1)]) == 1
    assert store.backend.append(run, [row(2, payload=b"a"), row(2, payload=b"b")]) == 1
    assert [r.payload for r in store.backend.scan(run, 0, 3)] == [b"first", b"{}", b"a"]


def test_the_latest_try_is_the_current_one(store: Store) -> None:
    run = add_header(store)
    store.backend.append(run, [row(0, "2"), row(0, "1", 2, b"again"), row(0, "1", 10, b"last"), row(0, "1")])
    rows = store.backend.scan(run, 0, 1)
    assert [(r.item, r.try_number) for r in rows] == [("1", 1), ("1", 2), ("1", 10), ("2", 1)]
    assert [(r.item, r.payload) for r in latest(rows)] == [("1", b"last"), ("2", b"{}")]
    assert [(m.item, m.try_number, m.status) for m in store.backend.marks(run, 0, 1)] == [
        (r.item, r.try_number, r.status) for r in rows
    ]


def test_counts_go_by_the_latest_try_of_each_item(store: Store) -> None:
    run, other = add_header(store), add_header(store, "run-0000000002")
    store.backend.append(other, [row(0, status=FAILED)])
    assert store.backend.counts(run) == {}
    store.backend.append(run, [row(0), row(1, status=FAILED), row(2, status=SKIPPED)])
    assert store.backend.counts(run) == {OK: 1, FAILED: 1, SKIPPED: 1}
    store.backend.append(run, [row(1, "1", 2, status=FAILED), row(2, "1", 2), row(3, status=NOT_APPLICABLE)])
    assert store.backend.counts(run) == {OK: 2, FAILED: 1, NOT_APPLICABLE: 1}
    store.backend.append(run, [row(1, "1", 3, status=REUSED)])
    counts = store.runs.count(run, total=10)
    assert (counts.ok, counts.failed, counts.skipped, counts.pending) == (3, 0, 1, 6)
    assert (counts.reused, counts.not_applicable, counts.total) == (1, 1, 10)


def test_attempts_and_units_come_in_the_order_of_their_numbers(store: Store) -> None:
    run = add_header(store)
    outputs = [
        output_item(a, u) for a in (1, 2, 10) for u in ("", "question/2", "question/10", "session/S01")
    ]
    results = [
        result_item(e, runs, a) for e in (0, 2, 10) for runs in ((0, 1), (0, 10), (2, 1)) for a in (1, 2, 10)
    ]
    store.backend.append(run, [row(p, item) for item in reversed(outputs) for p in (0, 1)])
    store.backend.append(run, [row(2, item) for item in reversed(results)])
    assert [r.item for r in store.backend.scan(run, 0, 2)] == outputs * 2
    assert [r.item for r in store.backend.scan(run, 2, 3)] == results


def test_fields_are_those_of_the_rows_in_the_same_order(store: Store) -> None:
    run = add_header(store)
    items = [output_item(attempt, unit) for attempt in (1, 2, 10) for unit in ("", "question/2")]
    store.backend.append(run, [row(p, item, payload=item.encode()) for item in items for p in range(3)])
    assert store.backend.scan_fields(run, 1, 3).latest() == store.backend.scan_fields(run, 1, 3)
    store.backend.append(run, [row(1, "10", 2, b"again", FAILED), row(2, "2", 2, b"2", SKIPPED)])
    store.backend.append(run, [row(1, "10", 3, b"last")])
    for fields, rows in (
        (store.backend.scan_fields(run, 1, 3), store.backend.scan(run, 1, 3)),
        (store.backend.scan_fields(run, 1, 3).latest(), list(latest(store.backend.scan(run, 1, 3)))),
        (store.backend.scan_fields(run, 7, 9).latest(), []),
    ):
        assert list(fields.positions) == [r.position for r in rows]
        assert [item.decode() for item in fields.items] == [r.item for r in rows]
        assert list(fields.tries) == [r.try_number for r in rows]
        assert list(fields.statuses) == [r.status for r in rows]
        assert list(fields.payloads) == [r.payload for r in rows]


@given(st.lists(st.text("0123456789./aß", max_size=12), max_size=8))
def test_the_order_of_items_is_total(items: list[str]) -> None:
    backwards = items[::-1]
    assert sorted(items, key=item_order) == sorted(backwards, key=item_order)
    assert len({item_order(item) for item in items}) == len(set(items))


def test_numbers_too_long_for_int_are_ordered_all_the_same() -> None:
    assert item_order("1/" + "9" * 5000) < item_order("1/1" + "0" * 5000)


SHAPES = [
    "",
    ".",
    "a.b",
    "a/b",
    "../../etc/passwd",
    "/",
    "\0",
    "a\0b",
    "\\",
    "'; DROP TABLE karat_rows; --",
    "%s",
]
SHAPES += ["?", "\u202e", "\U0001f600", "e\u0301", "é", "\ud800", "line\nline\r\n", "x" * 100_000, "ü" * 3000]
SHAPES += ["x" * 100_000 + "y", "\uffff", " ", "A", "a", "1", "01", "latest", "*"]


def test_items_of_every_shape_are_kept_apart(store: Store) -> None:
    run = add_header(store)
    rows = [row(0, shape, payload=b"%d" % n) for n, shape in enumerate(SHAPES)]
    assert store.backend.append(run, rows) == len(SHAPES)
    assert store.backend.append(run, rows) == 0
    found = {r.item: r.payload for r in store.backend.scan(run, 0, 1)}
    assert found == {shape: b"%d" % n for n, shape in enumerate(SHAPES)}
    assert {m.item for m in store.backend.marks(run, 0, 1)} == set(SHAPES)
    assert store.backend.counts(run) == {OK: len(SHAPES)}


def test_example_ids_of_every_shape_come_back(store: Store) -> None:
    shapes = [shape for shape in SHAPES if shape.strip() and "\ud800" not in shape]
    examples = [{"id": shape, "input": {"text": shape, shape: 1}} for shape in shapes]
    stored = store.datasets.put(Dataset.from_examples(examples))
    assert [example.id for example in stored] == shapes
    assert [example.input for example in stored] == [example["input"] for example in examples]
    assert [id for id, _ in stored.encoded()] == shapes


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=64)), max_size=8))
def test_any_item_and_payload_survives(store: Store, content: list[tuple[str, bytes]]) -> None:
    run = add_header(store, f"run-{secrets.token_hex(5)}")
    first = dict(reversed(content))
    assert store.backend.append(run, [row(0, item, payload=payload) for item, payload in content]) == len(
        first
    )
    assert {r.item: r.payload for r in store.backend.scan(run, 0, 1)} == first


def test_a_record_of_one_mebibyte(store: Store) -> None:
    run = add_header(store)
    payloads = [bytes([n]) * (1 << 20) for n in range(3)]
    store.backend.append(run, [row(n, payload=payload) for n, payload in enumerate(payloads)])
    assert [r.payload for r in store.backend.scan(run, 0, 3)] == payloads


def test_reuse_keys_find_only_ok_records_and_the_oldest_first(store: Store) -> None:
    first, second = add_header(store), add_header(store, "run-0000000002")
    keyed = [StoredRow(0, "1", 1, FAILED, b"a", b"failed"), StoredRow(1, "1", 1, SKIPPED, b"b", b"skipped")]
    store.backend.append(
        second,
        [*keyed, StoredRow(2, "1", 1, OK, b"\0c", b"later"), StoredRow(3, "1", 1, REUSED, b"d", b"copied")],
    )
    store.backend.append(first, [StoredRow(9, "1", 1, OK, b"\0c", b"oldest")])
    many = [n.to_bytes(2, "big") for n in range(2000)]
    found = store.backend.reusable([b"a", b"b", b"\0c", b"d", b"", *many])
    assert found == {b"\0c": (first, b"oldest"), b"d": (second, b"copied")}
    assert store.backend.reusable([]) == {}


def test_what_was_removed_cannot_be_appended_to(store: Store, refuses) -> None:
    run = add_header(store)
    store.backend.append(run, [row(0)])
    store.backend.delete(["run-0000000001"])
    with refuses(StoreError):
        store.backend.append(run, [row(1)])
    assert add_header(store) != run, "a number never comes to mean something else"
    assert store.check() == []


def test_a_batch_that_fails_leaves_nothing(store: Store) -> None:
    run = add_header(store)
    bad = StoredRow(50, "1", 1, OK, object(), b"{}")  # type: ignore[arg-type]  # refused by the driver
    with pytest.raises(StoreError, match="written: "):
        store.backend.append(run, [*(row(n) for n in range(50)), bad])
    assert store.backend.scan(run, 0, 100) == []
    assert store.backend.append(run, [row(0)]) == 1, "and the store goes on"


def test_eight_threads_write_at_once(store: Store) -> None:
    run = add_header(store)
    start = threading.Barrier(8)

    def write(worker: int) -> int:
        start.wait()
        new = 0
        for position in range(20):
            own = [row(position, f"{worker}.{n}") for n in range(5)]
            new += store.backend.append(run, [*own, row(position, "contested", payload=b"%d" % worker)])
        return new

    with ThreadPoolExecutor(8) as threads:
        new = sum(threads.map(write, range(8)))
    rows = store.backend.scan(run, 0, 20)
    assert new == len(rows) == 20 * (8 * 5 + 1)
    assert store.check() == []


def test_three_processes_write_at_once(shared: Store, url: str, child: Callable[..., Child]) -> None:
    run = add_header(shared)
    writers = [child("append", url, run, worker, 40, 10) for worker in range(3)]
    for writer in writers:
        writer.wait_for("ready")
    for writer in writers:
        writer.go_on()
    new = sum(writer.result() for writer in writers)
    rows = shared.backend.scan(run, 0, 40)
    assert new == len(rows) == 40 * (3 * 10 + 1), "each contested row was won by exactly one"
    assert shared.check() == []


def test_readers_never_see_half_a_batch(store: Store) -> None:
    run = add_header(store)
    done = threading.Event()

    def write() -> None:
        for position in range(60):
            store.backend.append(run, [row(position, str(n)) for n in range(50)])
        done.set()

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        sizes = set()
        while not done.is_set() and not writing.done():
            extent = store.backend.extent(run)
            sizes |= {len(store.backend.scan(run, n, n + 1)) for n in range(max(0, extent - 2), extent + 1)}
        writing.result()
    assert sizes <= {0, 50}
    assert store.backend.counts(run) == {OK: 3000}


def test_another_process_never_sees_half_a_batch_even_of_a_killed_one(
    shared: Store, url: str, child: Callable[..., Child]
) -> None:
    run = add_header(shared)
    writer = child("append_forever", url, run, 50)
    writer.wait_for("ready")
    while shared.backend.extent(run) < 20:
        newest = max(0, shared.backend.extent(run) - 1)
        assert {len(shared.backend.scan(run, n, n + 1)) for n in (newest, newest + 1)} <= {0, 50}
    writer.kill()
    writer.process.wait()
    # A server may still be committing the batch that it was given last: the number may grow, by whole batches.
    counts = shared.backend.counts(run)
    assert set(counts) == {OK}
    assert counts[OK] >= 50 * 20
    assert counts[OK] % 50 == 0
    with open_store(url) as again:
        assert again.check() == []
        assert again.backend.append(run, [row(1_000_000)]) == 1
