"""How much is read at a time: by the number of positions, and by how large their records are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from karat.store.backend import OK, StoredRow
from karat.store.handles import CHUNK, CHUNK_BYTES, Chunks


def rows(start: int, stop: int, size: int) -> list[StoredRow]:
    payload = bytes(size)
    return [StoredRow(position, "1", 1, OK, None, payload) for position in range(start, stop)]


@given(st.integers(0, 50), st.integers(0, 3000), st.integers(0, 100_000))
def test_ranges_cover_every_position_once_and_in_order(first: int, count: int, size: int) -> None:
    chunks = Chunks(first, first + count)
    seen: list[int] = []
    for start, stop in chunks:
        assert 0 < stop - start <= CHUNK
        seen += range(start, stop)
        chunks.saw(rows(start, stop, size))
    assert seen == list(range(first, first + count))


def test_few_large_records_are_read_at_a_time() -> None:
    chunks = Chunks(0, 200)
    lengths = []
    for start, stop in chunks:
        lengths.append(stop - start)
        for _ in range(2):  # two runs that are compared
            chunks.saw(rows(start, stop, 1 << 20))
    assert max(lengths[1:]) <= CHUNK_BYTES >> 21


def test_many_small_records_are_read_at_a_time() -> None:
    chunks = Chunks(0, 10_000)
    lengths = []
    for start, stop in chunks:
        lengths.append(stop - start)
        chunks.saw(rows(start, stop, 100))
    assert lengths[4:-1] == [CHUNK] * len(lengths[4:-1])
    assert len(lengths) < 25


def test_records_larger_than_a_chunk_are_read_one_at_a_time() -> None:
    chunks = Chunks(0, 12)
    lengths = []
    for start, stop in chunks:
        lengths.append(stop - start)
        chunks.saw(rows(start, stop, CHUNK_BYTES * 2))
    assert lengths == [8, 1, 1, 1, 1]
