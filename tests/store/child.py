"""What the tests do in other processes: `python child.py FUNCTION ARGUMENTS`, arguments and result as JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from karat.datasets import Dataset
from karat.errors import KaratError
from karat.keys import Wanted
from karat.records import FORMAT, RunHeader
from karat.store import open_store
from karat.store.backend import OK, StoredRow
from karat.store.lease import Held


def _say(word: str) -> None:
    print(word, flush=True)


def _wait() -> None:
    sys.stdin.readline()


def append(url: str, parent: int, worker: int, batches: int, size: int) -> int:
    """Appends batches of rows that no other worker appends, and the first row of each position for all."""
    with open_store(url) as store:
        _say("ready")
        _wait()
        new = 0
        for batch in range(batches):
            own = [StoredRow(batch, f"{worker}.{n}", 1, OK, None, b"%d" % batch) for n in range(size)]
            contested = StoredRow(batch, "contested", 1, OK, None, b"%d" % worker)
            new += store.backend.append(parent, [*own, contested])
        return new


def append_forever(url: str, parent: int, size: int) -> None:
    """Appends whole batches until it is killed."""
    with open_store(url) as store:
        _say("ready")
        position = 0
        while True:
            store.backend.append(
                parent, [StoredRow(position, str(n), 1, OK, None, b"x" * 200) for n in range(size)]
            )
            position += 1


def open_and_close(url: str) -> str:
    """Opens a store, at the same moment as others."""
    _say("ready")
    _wait()
    with open_store(url) as store:
        return store.url


def write_and_close(url: str, parent: int) -> int:
    """Adds one row and closes."""
    with open_store(url) as store:
        return store.backend.append(parent, [StoredRow(0, f"process {os.getpid()}", 1, OK, None, b"1")])


def name(url: str, name: str, contents: list[str]) -> list[int]:
    """The versions that some contents get under one name, at the same moment as others."""
    with open_store(url) as store:
        _say("ready")
        _wait()
        datasets = [Dataset.from_examples([{"input": text}], name=name) for text in contents]
        return [store.datasets.put(dataset).version for dataset in datasets]


def hold(url: str, number: int) -> None:
    """Takes a lease and keeps it until it is killed."""
    with open_store(url) as store:
        Held.take(store.backend, number)
        _say("held")
        _wait()


def open_run(url: str, dataset: str) -> list[Any]:
    """Asks for a run at the same moment as others, and says what came of it."""
    with open_store(url) as store:
        _say("ready")
        _wait()
        header = RunHeader(format=FORMAT, id="", dataset=dataset, task="t", configuration="c", code="k")
        try:
            run, decision, _ = store.runs.open(header, Wanted("c", "k"), [dataset])
        except KaratError as error:
            answer: list[Any] = [type(error).__name__, str(error)]
        else:
            answer = [decision.action, run.header.replicate]
        _say("asked")
        _wait()
        return answer


def fill(url: str, bytes_allowed: int | None) -> dict[str, Any]:
    """Appends until the store says no, and tells how many batches it had acknowledged."""
    if bytes_allowed is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_allowed, bytes_allowed))
    acknowledged = 0
    with open_store(url) as store:
        parent = store.backend.headers()[0].number
        try:
            while acknowledged < 10_000:
                rows = [StoredRow(acknowledged, str(n), 1, OK, None, os.urandom(1000)) for n in range(10)]
                store.backend.append(parent, rows)
                acknowledged += 1
        except KaratError as error:
            told = [type(error).__name__, str(error)]
            readable = len(store.backend.scan(parent, 0, acknowledged))
            return {"acknowledged": acknowledged, "error": told, "readable": readable}
    return {"acknowledged": acknowledged, "error": None, "readable": 0}


def fill_a_small_file_system(folder: str, megabytes: int) -> dict[str, Any]:
    """The same on a file system of its own, mounted where only this process sees it; then makes room."""
    mounted = os.system(f"mount -t tmpfs -o size={megabytes}m tmpfs '{folder}'")
    assert mounted == 0
    url = f"sqlite:///{folder}/karat.db"
    ballast = Path(folder, "ballast")
    ballast.write_bytes(b"x" * 200_000)
    _add_run(url)
    told = fill(url, None)
    ballast.unlink()
    with open_store(url) as store:
        parent = store.backend.headers()[0].number
        after = store.backend.append(parent, [StoredRow(10_000, "1", 1, OK, None, b"after")])
        whole = [len(store.backend.scan(parent, n, n + 1)) for n in range(told["acknowledged"])]
        return {**told, "after": after, "whole": set(whole) == {10}, "problems": store.check()}


def open_on_a_full_disk(folder: str) -> list[Any]:
    """Opens a store twice on a file system without any room, reads it and tries to write; then makes room."""
    mounted = os.system(f"mount -t tmpfs -o size=1m tmpfs '{folder}'")
    assert mounted == 0
    url = f"sqlite:///{folder}/karat.db"
    _add_run(url)
    ballast = Path(folder, "ballast")
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    told: list[Any] = []
    for _ in range(2):  # the first leaves an empty log behind
        with open_store(url) as store:
            told.append(len(store.backend.headers()))
            try:
                store.backend.append(1, [StoredRow(0, "1", 1, OK, None, b"{}")])
            except KaratError as error:
                told += [type(error).__name__, str(error)]
    ballast.unlink()
    with open_store(url) as store:
        return [*told, store.backend.append(1, [StoredRow(0, "1", 1, OK, None, b"{}")])]


def copy_to_a_small_file_system(source: str, run: str, folder: str, sizes: list[int]) -> list[Any]:
    """Copies a run to file systems of some kilobytes; what was said, and what was left in each."""
    told: list[Any] = []
    with open_store(source) as store:
        for number, kilobytes in enumerate(sizes):
            mounted = Path(folder, str(number))
            mounted.mkdir()
            assert os.system(f"mount -t tmpfs -o size={kilobytes}k tmpfs '{mounted}'") == 0
            try:
                store.copy(run, mounted / "copy.db")
            except KaratError as error:
                left = sorted(each.name for each in mounted.iterdir())
                told.append([type(error).__name__, str(error), left])
    return told


def _add_run(url: str) -> None:
    from karat.store.backend import HeaderRow

    with open_store(url) as store:
        store.backend.insert_header(HeaderRow(0, "run", "run-0000000001", "c", 1.0, None, b"{}"), (), None)


def open_as_nobody(url: str) -> list[Any]:
    """Opens a store as a user without rights, reads it, tries to write, and says what came of it."""
    open_store("memory://").close()  # imports what is needed: a user without rights may not be able to
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    seen: tuple[int, ...] = ()
    try:
        with open_store(url) as store:
            seen = len(store.runs.list()), sum(1 for run in store.runs.list() for _ in run.outputs())
            _add_run(store.url)
    except KaratError as error:
        return [type(error).__name__, str(error), *seen]
    return ["opened", url]


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*json.loads(sys.argv[2]))))
