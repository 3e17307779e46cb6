"""A program for tests: evaluates a memory system again and again, killed each time at another moment, and resumed.

    python killed.py FOLDER SAVES COUNT [SEED]

SAVES is `saves` or `forgets`, for a small system that can or cannot save its state, or the name of a built-in system,
`mem0` or `langmem`; these two ask a scripted model on loopback, which each child starts on the same port.
Each evaluation runs in a child process. The child counts the moments at which it could be killed (before and after each
call of the memory system, each commit, each rename of a file or folder, each line written) and kills itself with
SIGKILL at the given one. The next child continues to the end. COUNT moments are drawn, one from each of as many equal
parts of the whole, by chance from SEED; with `all` it is killed at every one. Prints a JSON document with its findings.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import karat.memory._evaluate as evaluating
import karat.memory._files as files
import karat.memory._pipeline as pipeline
from karat.memory import MemorySystem, Sample, Turn, memory_systems
from karat.memory._matching import Matcher
from karat.store.sqlite import SqliteBackend
from tests.memory.parts import Notes, sample
from tests.memory.systems.scripted import extracting

ASK_A_MODEL = ("mem0", "langmem")

moments = 0
kill_at = 0
log: Path


def moment() -> None:
    global moments
    moments += 1
    if moments == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


def watched(owner: Any, name: str) -> None:
    before: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        moment()
        out = before(*args, **kwargs)
        moment()
        return out

    setattr(owner, name, call)


class Watching(MemorySystem):
    """Writes down which turns it takes in, in front of the system that is measured."""

    def ingest_turn(self, turn: Turn) -> None:
        with log.open("a") as file:
            file.write(json.dumps(["turn", turn.text.partition(":")[0], turn.session_id]) + "\n")
        super().ingest_turn(turn)


class Watched(Watching, Notes):
    """The small system."""

    name = "watched"


measured: type[MemorySystem] = Watched
port = 0
"""Where the scripted model listens; 0 for a system that asks none."""


@contextmanager
def parameters() -> Iterator[dict[str, Any] | None]:
    """The parameters of the system that is measured, with the model that it asks running."""
    if not port:
        yield None
        return
    with extracting(port) as provider:
        yield {"model": provider.spec()}


def note_saved(drive: Any, number: int, record: dict[str, Any]) -> None:
    save(drive, number, record)
    if drive.task.system.capabilities.save:
        with log.open("a") as file:
            file.write(json.dumps(["saved", record["sample_id"], record["session_id"]]) + "\n")


save = pipeline._Drive._save


def named(given: Sample) -> Sample:
    """The sample with its name at the beginning of each turn, so that the log can tell samples apart."""
    replace = msgspec.structs.replace
    sessions = [
        replace(each, turns=tuple(replace(t, text=f"{given.sample_id}: {t.text}") for t in each.turns))
        for each in given.sessions
    ]
    return replace(given, sessions=tuple(sessions))


def evaluate(folder: Path) -> list[str]:
    global log
    log = folder / "log.jsonl"
    with parameters() as params:
        made = evaluating.evaluate(
            [named(sample("ana", "Lyon")), named(sample("bea", "Rome"))],
            measured,
            output_dir=folder / "out",
            store=folder / "karat.db",
            judge="deterministic",
            model="extractive",
            params=params,
            concurrency=1,
        )
    assert made.exit_code == 0, made.report()
    return made.notices


def child(folder: Path, at: int) -> tuple[int, dict[str, Any]]:
    """Run an evaluation in a process of its own; return how it ended and what it says."""
    global kill_at
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        kill_at = at
        code = 1
        try:
            notices = evaluate(folder)
            os.write(writing, json.dumps({"moments": moments, "notices": notices}).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    said = b""
    while block := os.read(reading, 65536):
        said += block
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    return status, json.loads(said) if said else {}


def contents(folder: Path) -> dict[str, str]:
    return {name: (folder / "out" / name).read_text() for name in files.FIVE}


def ingested_again(folder: Path) -> list[Any]:
    """Turns that were taken in after the state of their session had been saved."""
    saved: set[tuple[str, str]] = set()
    again = []
    for line in (folder / "log.jsonl").read_text().splitlines():
        kind, sample_id, session = json.loads(line)
        if kind == "saved":
            saved.add((sample_id, session))
        elif (sample_id, session) in saved:
            again.append([sample_id, session])
    return again


def killed_at(root: Path, at: int) -> tuple[Path, bool]:
    """Kill an evaluation at a moment; return its folder and whether it was killed.

    Commits are grouped, so an evaluation on a busy machine may have fewer moments than the first one: one that ends
    before the moment is repeated with its own last moment.
    """
    for again in range(10):
        folder = root / f"at-{at}-{again}"
        folder.mkdir()
        status, said = child(folder, at)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return folder, True
        assert status == 0, (status, at)
        assert said["moments"] < at, "an evaluation passed the moment and lived"
        at = said["moments"]
    return folder, False


def drawn(total: int, count: str, seed: int) -> list[int]:
    """Moments from 1 to `total`: all, or one from each of `count` equal parts."""
    if count == "all":
        return list(range(1, total + 1))
    chance, parts = random.Random(seed), min(int(count), total)
    return [chance.randint(part * total // parts + 1, (part + 1) * total // parts) for part in range(parts)]


def main() -> None:
    global measured, port
    root, what, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    if what in ("saves", "forgets"):
        Watched.saves = what == "saves"
    else:
        measured = type("Measured", (Watching, memory_systems.get(what)), {"name": what})
    if what in ASK_A_MODEL:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    init: Any = Matcher.__init__
    Matcher.__init__ = lambda self, embeddings=None: init(self, False)  # type: ignore[method-assign]
    pipeline._Drive._save = note_saved  # type: ignore[method-assign, assignment]
    for name in ("reset", "ingest_turn", "end_session", "snapshot", "retrieve", "save", "load"):
        watched(measured, name)
    watched(SqliteBackend, "append")
    watched(os, "replace")
    watched(pathlib.Path, "rename")
    watched(files.LineWriter, "write")
    (root / "whole").mkdir(parents=True)
    status, said = child(root / "whole", 0)
    assert status == 0, status
    expected, total = contents(root / "whole"), said["moments"]
    found: dict[str, Any] = {"moments": total, "killed": 0, "different": [], "again": [], "notices": []}
    found["drawn"] = drawn(total, count, seed)
    for at in found["drawn"]:
        folder, died = killed_at(root, at)
        found["killed"] += died
        status, said = child(folder, 0)
        if status != 0:
            found["different"].append([at, f"status {status}"])
            continue
        found["notices"] += said["notices"]
        now = contents(folder)
        found["different"] += [[at, name] for name in expected if now[name] != expected[name]]
        if what != "forgets":
            found["again"] += [[at, *each] for each in ingested_again(folder)]
        shutil.rmtree(folder)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
