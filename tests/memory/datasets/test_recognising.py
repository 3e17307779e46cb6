"""A dataset's type is recognised, forced or refused with a clear error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from karat.errors import DataError, RequestError, UnknownName
from karat.memory import Sample, Session
from karat.memory.datasets import memory_datasets, read_memory_dataset
from tests.memory.datasets import (
    test_beam,
    test_domain_a_v2,
    test_halumem,
    test_locomo,
    test_longmemeval,
    test_mem_gallery,
    test_memoryagentbench,
    test_personamem,
)
from tests.memory.datasets.making import write_json, write_jsonl

MADE: dict[str, Callable[[Path], Path]] = {
    "beam": test_beam.folder,
    "domain_a_v2": test_domain_a_v2.three_files,
    "halumem": lambda folder: write_jsonl(folder / "h.jsonl", test_halumem.user()),
    "locomo": lambda folder: test_locomo.write(folder, test_locomo.ask("Where?", "Bern")),
    "longmemeval": lambda folder: write_json(folder / "s.json", [test_longmemeval.row()]),
    "mem_gallery": lambda folder: write_json(folder / "d.json", test_mem_gallery.dialogue()),
    "memoryagentbench": lambda folder: write_jsonl(folder / "m.jsonl", test_memoryagentbench.row()),
    "personamem": lambda folder: test_personamem.write(folder, {}),
}


def test_every_type_has_an_example_here():
    assert memory_datasets.list() == sorted(MADE)


@pytest.mark.parametrize("name", sorted(MADE))
def test_a_dataset_is_recognised(tmp_path, name):
    path = MADE[name](tmp_path)
    dataset = read_memory_dataset(path)
    assert dataset.type == name
    assert len(list(dataset.samples())) == 1
    assert dataset.licence != "unknown"
    assert bool(dataset.notes) != dataset.tested


@pytest.mark.parametrize("name", sorted(MADE))
def test_another_type_can_be_forced_and_is_an_error_that_says_where(tmp_path, name):
    path = MADE[name](tmp_path)
    for other in sorted(MADE):
        if other != name:
            with pytest.raises(DataError) as caught:
                list(read_memory_dataset(path, other).samples())
            assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[]", "no rows"),
        (b"{}", "dataset_type"),
        (b"[1, 2]", "dataset_type"),
        (b"null", "dataset_type"),
        (b'[{"a": 1}]', "dataset_type"),
        (b"\x00\x01", "JSON"),
        (b"[" * 10_000, "JSON"),
        (b"\xff\xfe[\x00", "JSON"),
        (b'{"sessions": 5}', "dataset_type"),
    ],
)
def test_a_value_that_is_not_a_dataset_is_refused(tmp_path, content, problem):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        read_memory_dataset(path)
    assert str(path) in str(caught.value)
    for name in sorted(MADE):
        with pytest.raises(DataError):
            list(read_memory_dataset(path, name).samples())


def test_an_empty_file_is_called_empty(tmp_path, refuses):
    path = tmp_path / "x.json"
    path.write_bytes(b"")
    with refuses(DataError):
        read_memory_dataset(path)
    for name in sorted(MADE):
        with pytest.raises(DataError):
            list(read_memory_dataset(path, name).samples())


@pytest.mark.parametrize(
    ("name", "text"), [("x.json", "[]"), ("x.json", " \n"), ("x.jsonl", "\n\n"), ("x.csv", "a,b\n")]
)
def test_a_file_without_rows_is_called_so(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as caught:
        read_memory_dataset(tmp_path / name)
    assert "no rows" in str(caught.value) or "empty" in str(caught.value)
    assert "dataset_type" not in str(caught.value)


@pytest.mark.parametrize("text", ['[{"question_id": 1,', '{"uuid": "u"}\n{"uuid"'])
def test_a_file_that_is_not_json_is_refused(tmp_path, text):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(DataError) as caught:
        read_memory_dataset(tmp_path / "x.jsonl")
    assert "x.jsonl" in str(caught.value)


def test_wrong_paths_and_types_are_refused(tmp_path, refuses):
    with refuses(DataError):
        read_memory_dataset(tmp_path / "none")
    with refuses(DataError):
        read_memory_dataset("/dev/null")
    with pytest.raises(DataError, match="dataset_type"):
        read_memory_dataset(tmp_path)
    with pytest.raises(DataError):
        read_memory_dataset("a\0b")
    with pytest.raises(UnknownName, match="locomo"):
        read_memory_dataset("demo", "locomoo")
    with refuses(DataError):
        read_memory_dataset("demo", corrections=tmp_path / "none.jsonl")


def test_a_function_can_be_a_reader(tmp_path):
    code = tmp_path / "reader.py"
    code.write_text(
        "from karat.memory import Sample, Session\n"
        "def mine(path):\n"
        "    for name in path.read_text().split():\n"
        "        sessions = (Session(session_id='S01', turns=()),)\n"
        "        yield Sample(sample_id=name, uuid=name, sessions=sessions, questions=())\n"
        "nothing = 5\n"
    )
    data = tmp_path / "names.txt"
    data.write_text("a b")
    dataset = read_memory_dataset(data, f"{code}:mine")
    assert [sample.sample_id for sample in dataset.samples()] == ["a", "b"]
    assert dataset.hash
    with pytest.raises(RequestError):
        read_memory_dataset(data, f"{code}:nothing")
    data.write_text("a a")
    with pytest.raises(DataError, match="twice"):
        list(dataset.samples())


def test_a_limit_stops_reading(tmp_path):
    path = write_json(
        tmp_path / "s.json", [test_longmemeval.row(question_id=str(number)) for number in range(3)]
    )
    assert [one.sample_id for one in read_memory_dataset(path).samples(2)] == ["0", "1"]


def test_a_compressed_file_is_read(tmp_path):
    path = tmp_path / "s.json.gz"
    path.write_bytes(gzip.compress(json.dumps([test_longmemeval.row()]).encode()))
    assert len(list(read_memory_dataset(path, "longmemeval").samples())) == 1


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Samples of a long file are read and dropped one by one."""
    import tracemalloc

    big = test_longmemeval.row()
    big["haystack_sessions"][1] = [{"role": "user", "content": "x" * 200_000}]
    path = tmp_path / "s.jsonl"
    with path.open("w") as file:
        for number in range(100):
            file.write(json.dumps({**big, "question_id": str(number)}) + "\n")
    dataset = read_memory_dataset(path)
    tracemalloc.start()
    try:
        assert sum(1 for _ in dataset.samples()) == 100
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000


def test_samples_are_what_they_claim():
    """The check of ids refuses what a reader gets wrong."""
    broken = Sample(
        sample_id="a",
        uuid="a",
        sessions=(Session(session_id="S01", turns=()), Session(session_id="S01", turns=())),
        questions=(),
    )
    memory_datasets.register("broken_for_test")(lambda path: iter([broken]))
    try:
        with pytest.raises(DataError, match="'S01' occurs twice"):
            list(read_memory_dataset("demo", "broken_for_test").samples())
    finally:
        memory_datasets._parts.pop("broken_for_test")
