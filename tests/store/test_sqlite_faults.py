"""Faults of an SQLite file: each gives one clear error, and all committed data is intact."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec
import pytest

import karat
from karat.datasets import Dataset
from karat.errors import KaratError, StoreError, StoreRefused
from karat.store import Store, open_store
from karat.store.backend import OK, HeaderRow, StoredRow
from karat.store.columns import load_columns
from karat.store.lease import Held
from karat.store.sql import SqlBackend
from karat.store.sqlite import APPLICATION
from tests.store.conftest import Child, add_header

FIXTURE = Path(__file__).with_name("fixtures") / "schema-1.sqlite"


def refused_untouched(path: Path, match: str) -> None:
    """Opening is refused with a sentence, and nothing in the folder has changed."""
    before = {each.name: each.read_bytes() for each in path.parent.iterdir() if each.is_file()}
    with pytest.raises(StoreRefused, match=match):
        open_store(path)
    assert {each.name: each.read_bytes() for each in path.parent.iterdir() if each.is_file()} == before


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"not a database",
        b"id,input\n1,2\n" * 500,
        b"SQLite format 3\0",
        b"SQLite format 3\0" + b"\0" * 84,
    ],
    ids=["a byte", "a line", "a table", "a beginning", "a header"],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    refused_untouched(path, r"notes\.txt .*(store|damaged)")


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_an_sqlite_file_of_another_program_is_refused(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "places.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute("CREATE TABLE places (url TEXT)")
    connection.commit()
    connection.close()
    refused_untouched(path, r"places\.sqlite .*another program")


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "karat.db"
    content = FIXTURE.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    refused_untouched(path, r"karat\.db .*truncated")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path, refuses) -> None:
    with refuses(StoreRefused):
        open_store(tmp_path)
    with refuses(StoreRefused):
        open_store(tmp_path / "missing" / "karat.db")


@pytest.mark.parametrize("read_only", [False, True])
def test_a_pipe_or_a_device_in_place_of_a_file_is_refused(tmp_path: Path, read_only: bool, refuses) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with refuses(StoreRefused):
            open_store(path, read_only=read_only)


@pytest.mark.parametrize("schema", [0, -5])
def test_a_schema_that_never_was_is_damage(tmp_path: Path, schema: int, refuses) -> None:
    open_store(tmp_path / "karat.db").close()
    with closing(sqlite3.connect(tmp_path / "karat.db")) as connection:
        connection.execute(f"PRAGMA user_version = {schema}")
        connection.commit()
    with refuses(StoreRefused):
        open_store(tmp_path / "karat.db")


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "karat.db"
    path.touch()
    with open_store(path) as store:
        assert store.check() == []
    assert int.from_bytes(path.read_bytes()[68:72], "big") == APPLICATION


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_a_folder_that_may_not_be_written(tmp_path: Path, child: Callable[..., Child], says) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o005 != 0o005 and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o005)
    new, old = tmp_path / "new.db", Path(shutil.copy(FIXTURE, tmp_path / "old.db"))
    current = Path(shutil.copy(FIXTURE, tmp_path / "current.db"))
    open_store(current).close()  # upgrades it
    for path in (old, current):
        path.chmod(0o644)
    before = old.read_bytes(), current.read_bytes()
    refusals = {path: child("open_as_nobody", f"sqlite:///{path}").result() for path in (new, old, current)}
    for path, (kind, sentence, *_) in refusals.items():
        assert kind == "StoreRefused"
        assert sentence.startswith(f"{path} ")
        says(sentence)
    assert [seen for _, _, *seen in refusals.values()] == [[], [1, 3], [1, 3]], "what is there can be read"
    assert not new.exists()
    assert (old.read_bytes(), current.read_bytes()) == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["current.db", "old.db"]


def test_a_file_may_not_grow_any_more(tmp_path: Path, child: Callable[..., Child]) -> None:
    url = f"sqlite:///{tmp_path}/karat.db"
    with open_store(url) as store:
        run = add_header(store)
    told = child("fill", url, 1_000_000).result()
    assert told["error"] is not None
    assert told["error"][0] == "StoreError"
    assert "written: " in told["error"][1]
    assert told["acknowledged"] > 10
    assert told["readable"] == 10 * told["acknowledged"], "the process that met the error can still read"
    with open_store(url) as store:
        assert store.check() == []
        assert store.backend.counts(run) == {OK: 10 * told["acknowledged"]}
        store.backend.append(run, [StoredRow(10_000, "1", 1, OK, None, b"after")])


def _can_mount() -> bool:
    tool = shutil.which("unshare")
    command = "mount -t tmpfs tmpfs /mnt"
    return (
        tool is not None
        and subprocess.run([tool, "-m", "sh", "-c", command], capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not _can_mount(), reason="mounting a small file system is not permitted here")
def test_the_disk_is_full(tmp_path: Path, child: Callable[..., Child], says) -> None:
    told = child("fill_a_small_file_system", str(tmp_path), 2, before=["unshare", "-m"]).result()
    assert told["error"] is not None
    assert told["error"][0] == "StoreError"
    says(told["error"][1])
    assert told["acknowledged"] > 10
    assert told["readable"] == 10 * told["acknowledged"]
    assert told["whole"], "every batch that was acknowledged is there, whole"
    assert told["problems"] == []
    assert told["after"] == 1, "with room made, the store goes on"


@pytest.mark.skipif(not _can_mount(), reason="mounting a small file system is not permitted here")
def test_a_store_on_a_full_disk_can_be_read(tmp_path: Path, child: Callable[..., Child], says) -> None:
    """SQLite makes the index of its log before it reads, and there is no room for it."""
    told = child("open_on_a_full_disk", str(tmp_path), before=["unshare", "-m"]).result()
    headers, kind, sentence, *again, after = told
    assert (headers, kind, after) == (1, "StoreError", 1)
    says(sentence)
    assert again == [headers, kind, sentence]


@pytest.mark.skipif(not _can_mount(), reason="mounting a small file system is not permitted here")
def test_a_copy_to_a_full_disk_leaves_no_file_that_is_not_a_store(
    tmp_path: Path, child: Callable[..., Child], says
) -> None:
    url = f"sqlite:///{tmp_path}/karat.db"
    with open_store(url) as store:
        run = karat.run(str.upper, [{"input": "x"}], store=store)
    arguments = (url, run.id, str(tmp_path), [4, 16, 40, 80])
    told = child("copy_to_a_small_file_system", *arguments, before=["unshare", "-m"]).result()
    assert [(kind, left) for kind, _, left in told] == [("StoreError", [])] * 4
    for _, sentence, _ in told:
        says(sentence)


def test_opening_a_store_twice_in_a_process_keeps_its_locks(
    tmp_path: Path, child: Callable[..., Child]
) -> None:
    """POSIX drops all locks of a process on a file when any descriptor of it is closed: SQLite knows, Python not.

    Without its locks, the log of the first store would be deleted by the next process to close the file.
    """
    url = f"sqlite:///{tmp_path}/karat.db"
    with open_store(url) as first:
        run = add_header(first)
        open_store(url).close()
        log = (tmp_path / "karat.db-wal").stat().st_ino
        assert child("write_and_close", url, run).result() == 1
        assert (tmp_path / "karat.db-wal").stat().st_ino == log
        first.backend.append(run, [StoredRow(1, "1", 1, OK, None, b"{}")])
        assert first.backend.counts(run) == {OK: 2}
        assert first.check() == []
    with open_store(url) as again:
        assert again.backend.counts(run) == {OK: 2}
        assert again.check() == []


def test_a_new_store_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with open_store(tmp_path / "karat.db") as store:
            add_header(store)
            modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"karat.db": 0o600, "karat.db-wal": 0o600, "karat.db-shm": 0o600}


@pytest.mark.parametrize("how", ["deleted", "replaced", "log deleted"])
def test_a_store_that_is_deleted_or_replaced_is_noticed(tmp_path: Path, how: str, refuses) -> None:
    path = tmp_path / "karat.db"
    with open_store(path) as store:
        run = add_header(store)
        store.backend.append(run, [StoredRow(0, "1", 1, OK, None, b"{}")])
        held = Held.take(store.backend, run)
        held.beat()
        held.check()
        if how == "log deleted":
            Path(f"{path}-wal").unlink()
        else:
            path.unlink()
        if how == "replaced":
            open_store(path).close()
        with refuses(StoreError):
            store.backend.ensure_present()
        with refuses(StoreError):
            held.beat()
        with refuses(StoreError):
            held.check()
        if how != "log deleted":
            with refuses(StoreError):
                store.backend.append(run, [StoredRow(1, "1", 1, OK, None, b"{}")])


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(Random(3).randbytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        ("", _truncate),
        ("", _overwrite),
        ("-wal", _truncate),
        ("-wal", _overwrite),
        ("-shm", Path.unlink),
    ],
    ids=["truncated", "overwritten", "log truncated", "log overwritten", "index deleted"],
)
def test_a_stage_whose_records_cannot_be_read_back_fails(
    tmp_path: Path, suffix: str, damage: Callable[[Path], None]
) -> None:
    """The connection that wrote them still finds them in its cache."""
    path = tmp_path / "karat.db"
    data = [{"id": str(n), "input": f"{n} {'x' * 400}"} for n in range(60)]
    with open_store(path) as store:
        dataset = store.datasets.put(Dataset.from_examples(data))
        in_log = suffix == "-wal"
        if not in_log:  # records that are in the file itself
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()

        def task(input: str) -> str:
            if input.startswith("55 "):
                damage(Path(f"{path}{suffix}"))
            return input

        with pytest.raises(StoreError, match=r"damaged|truncated|deleted|malformed"):
            karat.run(task, dataset, store=store, concurrency=1)


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("stage", ["aggregate", "copy"])
def test_an_aggregation_or_a_copy_that_cannot_be_read_back_fails(
    tmp_path: Path, suffix: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages of a new store are all in the log, unless a checkpoint has just moved them to the file."""
    path = tmp_path / "karat.db"
    data = [{"id": str(n), "input": f"{n} {'x' * 400}", "expected": "x"} for n in range(60)]
    with open_store(path) as store, open_store("memory://") as other:
        origin = other if stage == "copy" else store
        evaluation = karat.evaluate(karat.run(_echo, data, store=origin), ["exact_match"], store=origin)
        insert = store.backend.insert_header

        def damaged_before(header: HeaderRow, *given: Any) -> int | None:
            if header.kind in ("aggregation", "run"):
                if not suffix:
                    with sqlite3.connect(path) as connection:
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    connection.close()
                _truncate(Path(f"{path}{suffix}"))
            return insert(header, *given)

        monkeypatch.setattr(store.backend, "insert_header", damaged_before)

        def work() -> object:
            if stage == "copy":
                return other.copy(evaluation.id, store)
            return karat.aggregate(evaluation, ["mean"], store=store)

        with pytest.raises(StoreError, match=r"damaged|truncated|malformed"):
            work()


def test_commits_that_follow_damage_in_the_log_are_found(tmp_path: Path) -> None:
    """SQLite takes a log to end at the first damaged frame, as after a crash, and calls the rest of the file sound."""
    path, copy = tmp_path / "karat.db", tmp_path / "copy.db"
    with open_store(path) as store:
        for number in range(3):
            karat.run(_echo, [{"id": f"{number}", "input": "x"}], store=store)
        whole, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    places = Random(4)
    frame = 24 + int.from_bytes(log[8:12], "big")
    for place in (0, 9, 25, *(places.randrange(len(log) - frame) for _ in range(30))):
        content = bytearray(log)
        content[place] ^= 1 << places.randrange(8)
        copy.write_bytes(whole)
        Path(f"{copy}-wal").write_bytes(content)
        try:
            with open_store(copy, read_only=True) as store:
                assert store.verify() != [], f"bit of byte {place}"
        except KaratError:
            pass
        for each in tmp_path.glob("copy.db*"):
            each.unlink()
    copy.write_bytes(whole)
    Path(f"{copy}-wal").write_bytes(log[: len(log) - frame - 7])  # as a machine that lost power leaves it
    with open_store(copy, read_only=True) as store:
        assert store.check() == []


def test_a_stage_that_can_be_read_back_is_a_success_beside_other_damage(tmp_path: Path) -> None:
    """Another process makes the file longer and checkpoints its log: neither is damage."""
    path = tmp_path / "karat.db"
    with open_store(path) as store:

        def task(input: str) -> str:
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
            return input

        run = karat.run(task, [{"id": str(n), "input": "x" * 3000} for n in range(20)], store=store)
        assert run.status == "success"


def test_an_empty_file_beside_a_log_with_records_is_refused(tmp_path: Path) -> None:
    """SQLite would delete the log, and with it everything that is not in the file yet."""
    path, log = tmp_path / "karat.db", tmp_path / "karat.db-wal"
    with open_store(tmp_path / "other.db") as store:
        add_header(store)
        log.write_bytes((tmp_path / "other.db-wal").read_bytes())
    path.touch()
    refused_untouched(path, r"karat\.db .*truncated \(0 bytes")


def _flip_a_bit(path: Path, marker: bytes) -> None:
    content = bytearray(path.read_bytes())
    place = content.index(marker)
    content[place + len(marker) - 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("marker", "found"),
    [(b'"input":"needle-input', "ds-"), (b"needle-output", "run-"), (b"needle-label", "header")],
)
def test_a_flipped_bit_is_found(tmp_path: Path, marker: bytes, found: str) -> None:
    path = tmp_path / "karat.db"
    with open_store(path) as store:
        data = [{"id": str(n), "input": f"needle-input {n}"} for n in range(20)]
        run = karat.run(lambda input: f"needle-output {input}", data, store=store, labels=["needle-label"])
        assert store.verify() == []
        dataset = run.dataset.id
    _flip_a_bit(path, marker)
    with open_store(path) as store:
        assert store.check() == [], "the structure of the file is intact"
        (problem,) = store.verify()
        assert {"ds-": dataset, "run-": run.id, "header": f"header of {run.id}"}[found] in problem
        if found == "run-":
            with pytest.raises(StoreError, match=f"{run.id} .*1 record"):
                list(store.runs.get(run.id).outputs())


def _content(path: Path) -> list[bytes]:
    """Everything that a reader gets."""
    with open_store(path, read_only=True) as store:
        out = [msgspec.json.encode(each) for dataset in store.datasets.list() for each in dataset]
        for run in store.runs.list():
            out += [run.id.encode(), *map(msgspec.json.encode, run.outputs())]
        for evaluation in store.evaluations.list():
            out += [evaluation.id.encode(), *map(msgspec.json.encode, evaluation.results())]
            out.append(repr(evaluation.to_arrow().to_pylist()).encode())
        out += [msgspec.json.encode(each.to_dict()) for each in store.aggregations.list()]
        return out


def test_a_flipped_bit_is_an_error_or_has_no_effect(tmp_path: Path) -> None:
    """A bit may also change the type of a column, the text of the schema, or an empty place of a page."""
    path, copy = tmp_path / "karat.db", tmp_path / "copy.db"
    with open_store(path) as store:
        data = [{"id": str(n), "input": f"in {n}", "expected": f"in {n}"} for n in range(40)]
        run = karat.run(lambda input: input, data, store=store)
        evaluation = karat.evaluate(run, ["exact_match"], store=store)
        karat.aggregate(evaluation, ["accuracy"], store=store)
    whole, stored = path.read_bytes(), _content(path)
    places = Random(12)
    # The statements of the schema are on the first page; two of the others broke readers once.
    chosen = [
        *(places.randrange(100, 4096) for _ in range(40)),
        *(places.randrange(len(whole)) for _ in range(260)),
    ]
    for place in chosen:
        content = bytearray(whole)
        content[place] ^= 1 << places.randrange(8)
        copy.write_bytes(content)
        try:
            read = _content(copy)
        except KaratError:
            continue
        assert read == stored, f"bit of byte {place}"


@pytest.fixture
def three(tmp_path: Path) -> tuple[Path, karat.Run, karat.Evaluation]:
    """A store with a dataset, a run and an evaluation of 150 items."""
    path = tmp_path / "karat.db"
    data = [{"id": str(n), "input": f"in {n}", "expected": f"in {n}"} for n in range(150)]
    with open_store(path) as store:
        run = karat.run(_echo, Dataset.from_examples(data, name="q"), store=store)
        evaluation = karat.evaluate(run, ["exact_match"], store=store)
    return path, run, evaluation


def _echo(input: str) -> str:
    return input


def _lose(path: Path, number: int, table: str = "karat_rows") -> None:
    """Lose a third of the records of something, as a flipped bit in an inner page does."""
    where = "position >= 100" if table == "karat_rows" else "number >= 0"
    with sqlite3.connect(path) as connection:
        connection.execute(f"DELETE FROM {table} WHERE parent = {number} AND {where}")
    connection.close()


READERS: dict[str, Callable[[Store, str, str], object]] = {
    "dataset": lambda store, run, _: list(store.runs.get(run).dataset),
    "dataset to_arrow": lambda store, run, _: store.runs.get(run).dataset.to_arrow(),
    "another run": lambda store, run, _: karat.run(str.upper, store.runs.get(run).dataset, store=store),
    "copy": lambda store, run, _: store.copy(run, open_store("memory://")),
    "outputs": lambda store, run, _: list(store.runs.get(run).outputs()),
    "history": lambda store, run, _: list(store.runs.get(run).outputs(history=True)),
    "rows of the run": lambda store, run, _: list(store.runs.get(run).rows()),
    "run to_arrow": lambda store, run, _: store.runs.get(run).to_arrow(),
    "evaluate": lambda store, run, _: karat.evaluate(store.runs.get(run), ["edit_distance"], store=store),
    "results": lambda store, _, evaluation: list(store.evaluations.get(evaluation).results()),
    "rows": lambda store, _, evaluation: list(store.evaluations.get(evaluation).rows()),
    "to_arrow": lambda store, _, evaluation: store.evaluations.get(evaluation).to_arrow(),
    "aggregate": lambda store, _, evaluation: karat.aggregate(evaluation, ["mean"], store=store),
    "columns": lambda store, _, evaluation: load_columns(store.evaluations.get(evaluation)),
}
OF = {
    "dataset": [
        "dataset",
        "dataset to_arrow",
        "another run",
        "copy",
        "rows of the run",
        "to_arrow",
        "aggregate",
    ],
    "run": ["copy", "outputs", "history", "rows of the run", "run to_arrow", "evaluate", "rows", "to_arrow"],
    "evaluation": ["results", "rows", "to_arrow", "aggregate"],
    "columns": ["columns"],
}


@pytest.mark.parametrize(("lost", "reader"), [(lost, reader) for lost in OF for reader in OF[lost]])
def test_records_that_are_lost_are_an_error(three, lost: str, reader: str, refuses) -> None:
    path, run, evaluation = three
    with open_store(path) as store:
        data = store.runs.get(run.id).dataset
    numbers = {"dataset": data.number, "run": run.number}
    _lose(path, numbers.get(lost, evaluation.number), "karat_columns" if lost == "columns" else "karat_rows")
    with open_store(path) as store, refuses(StoreError) as caught:
        READERS[reader](store, run.id, evaluation.id)
    assert {"dataset": data.id, "run": run.id}.get(lost, evaluation.id) in str(caught.value)


def test_an_unfinished_run_has_the_records_it_has(tmp_path: Path) -> None:
    path = tmp_path / "karat.db"
    with open_store(path) as store:
        run = karat.run(_echo, [{"id": str(n), "input": "x"} for n in range(9)], store=store)
        header = msgspec.structs.replace(run.header, finished=None)
        store.backend.update_header(run.number, msgspec.json.encode(header), None)
    with sqlite3.connect(path) as connection:
        connection.execute(f"DELETE FROM karat_rows WHERE parent = {run.number} AND position > 4")
    connection.close()
    with open_store(path) as store:
        assert len(list(store.runs.get(run.id).outputs())) == 5


@pytest.mark.parametrize("kind", ["dataset", "run", "evaluation", "aggregation"])
def test_a_damaged_header_is_an_error(three, kind: str, refuses) -> None:
    path, run, evaluation = three
    with open_store(path) as store:
        aggregation = karat.aggregate(evaluation.id, ["accuracy"], store=store)
        handles = (store.runs.get(run.id).dataset, run, evaluation, aggregation)
        number, id = next((each.number, each.id) for each in handles if each.to_dict()["kind"] == kind)
    with sqlite3.connect(path) as connection:
        (payload,) = connection.execute(
            "SELECT payload FROM karat_headers WHERE number = ?", (number,)
        ).fetchone()
        changed = payload.replace(b'"created":1', b'"created":9', 1)
        assert changed != payload
        connection.execute("UPDATE karat_headers SET payload = ? WHERE number = ?", (changed, number))
    connection.close()
    with open_store(path) as store:
        with refuses(StoreError):
            store.get(id)
        with refuses(StoreError):
            getattr(store, f"{kind}s").list()
        assert any(id in problem for problem in store.verify())


@pytest.mark.parametrize(
    "column",
    ["payload = 'text'", "payload = 7", "item = 'text'", "item = X'FF'", "status = X''", "try_number = 'x'"],
)
def test_a_column_of_another_type_is_damage(tmp_path: Path, column: str) -> None:
    path = tmp_path / "karat.db"
    with open_store(path) as store:
        run = karat.run(
            lambda input: input, [{"id": "a", "input": "x"}, {"id": "b", "input": "y"}], store=store
        )
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE karat_rows SET {column} WHERE parent = {run.number} AND position = 1")
    connection.close()
    with open_store(path, read_only=True) as store:
        assert any(run.id in problem for problem in store.verify())
        with pytest.raises(StoreError, match="damaged content"):
            list(store.runs.get(run.id).outputs())


def test_a_closed_store_is_an_error(tmp_path: Path, refuses) -> None:
    store = open_store(tmp_path / "karat.db")
    store.close()
    store.close()
    with refuses(StoreError):
        store.runs.list()


def test_damage_inside_the_file_is_found_by_the_check(tmp_path: Path) -> None:
    path = tmp_path / "karat.db"
    with open_store(path) as store:
        store.datasets.put(Dataset.from_examples([{"input": "x" * 500, "id": str(n)} for n in range(200)]))
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 64] = b"\xff" * 64
    path.write_bytes(content)
    with open_store(path) as store:
        assert store.check() != []


def test_a_run_is_not_finished_without_its_records(tmp_path: Path, refuses) -> None:
    """Damage inside a table can hide records from SQLite, which then counts them as if they were not there."""
    path = tmp_path / "karat.db"

    def lose(text: str) -> str:
        if text == "9":
            with sqlite3.connect(path) as other:
                other.execute("DELETE FROM karat_rows WHERE position < 3 AND item = X'31'")
            other.close()
        return text

    examples = [{"id": str(n), "input": str(n)} for n in range(10)]
    with open_store(path) as store:
        with refuses(StoreError):
            karat.run(lose, examples, store=store)
        assert store.runs.get("latest").header.finished is None


@pytest.mark.parametrize("change", ["id = CAST(id AS BLOB)", "id = 'run-0000000000'", "configuration = 'x'"])
def test_a_header_under_another_name_is_damage(three, change: str, refuses) -> None:
    path, run, _ = three
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE karat_headers SET {change} WHERE number = {run.number}")
    connection.close()
    with open_store(path) as store:
        assert store.verify() != []
        with refuses(StoreError):
            store.runs.list()


def test_a_damaged_result_is_not_reused(store: Store) -> None:
    """Its copy would have a checksum of its own, and nothing would find the damage."""
    number, backend = add_header(store), cast(SqlBackend, store.backend)
    keys = [bytes([place]) * 16 for place in range(3)]
    store.backend.append(number, [StoredRow(n, "1", 1, OK, key, b"{}") for n, key in enumerate(keys)])
    assert store.backend.reusable(keys) == dict.fromkeys(keys, (number, b"{}"))
    with backend._transaction() as cursor:
        cursor.execute("UPDATE karat_rows SET payload = payload || payload WHERE position = 1")
        cursor.execute("UPDATE karat_rows SET try_number = 2 WHERE position = 2")
    assert list(store.backend.reusable(keys)) == keys[:1]


def test_a_process_without_free_file_descriptors_is_told_so_and_not_of_damage(tmp_path: Path, says) -> None:
    with open_store(tmp_path / "karat.db") as store:
        number = add_header(store)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with open(os.devnull) as free:
            lowest = free.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(StoreError) as caught:
                store.backend.ensure_readable(number)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        says(caught.value)
        store.backend.ensure_readable(number)
