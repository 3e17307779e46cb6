"""A store whose records are not what they should be: every answer is an error that says so, never a failure."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from karat.cli import main
from karat.store import open_store
from karat.store.backend import checksum
from tests.view.conftest import Served, World

FORGED = [
    b"",
    b"{}",
    b"\xff\xfe",
    b'{"format":"one"}',
    b'{"format":1,"id":7,"example":[],"outcome":3,"metadata":[]}',
    b'{"format":1,"example":"q1","outcome":{"status":"odd"}}',
    b'{"id":"q1","input":1,"metadata":"text"}',
    b"[" * 3000,
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KARAT_CACHE", str(tmp_path / "cache"))


def forge(path: Path, what: str, payload: bytes) -> None:
    """Replace the content of all headers of a kind, or of all records of headers of a kind; checksums are right."""
    kind, _, part = what.partition(" ")
    with sqlite3.connect(path) as connection:
        if part == "header":
            connection.execute(
                "UPDATE karat_headers SET payload = ?, checksum = ? WHERE kind = ?",
                (payload, crc32(payload), kind),
            )
            return
        rows = connection.execute(
            "SELECT parent, position, item, try_number, status FROM karat_rows WHERE parent IN"
            " (SELECT number FROM karat_headers WHERE kind = ?)",
            (kind,),
        ).fetchall()
        for parent, position, item, try_number, status in rows:
            sum_ = checksum(crc32(item), position, try_number, status, payload)
            connection.execute(
                "UPDATE karat_rows SET payload = ?, checksum = ? WHERE parent = ? AND position = ? AND item = ?"
                " AND try_number = ?",
                (payload, sum_, parent, position, item, try_number),
            )
        connection.execute("UPDATE karat_headers SET columns = NULL")  # they are built from the records


@pytest.mark.parametrize(
    "what",
    ["run header", "evaluation header", "aggregation header", "dataset header", "run records", "evaluation records",
     "dataset records"],
)  # fmt: skip
def test_forged_records_are_errors_and_not_failures(
    tmp_path: Path, serve: Callable[[str], Served], capsys: pytest.CaptureFixture[str], what: str
) -> None:
    with open_store(tmp_path / "karat.db") as store:
        world = World(store)
        first, second = (run.id for run in store.runs.list()[:2])
    assert world is not None
    original = (tmp_path / "karat.db").read_bytes()
    run, pair = f"/api/r/{first}", f"/api/c/{first}..{second}"
    asked = [
        "/api/runs", "/api/changes", run, f"{run}/rows", f"{run}/rows?filter=score<1", f"{run}/rows?filter=topic:law",
        f"{run}/rows?filter=%22text%22", f"{run}/rows?sort=id", f"{run}/item?key=0.1/", f"{run}/steps?key=0.1/",
        f"{run}/field?key=0.1/&name=output", pair, f"{pair}/rows?filter=changed:worse", f"{pair}/item?key=0.1/",
        f"/api/s?runs={first},{second}&by=topic", f"/api/f/{first}", f"/api/p?runs={first},{second}",
    ]  # fmt: skip
    for number, payload in enumerate(FORGED):
        path = tmp_path / f"forged-{number}.db"
        path.write_bytes(original)
        forge(path, what, payload)
        served = serve(f"sqlite:///{path}")
        for place in asked:
            answer = served.ask(place.replace("<", "%3C"))
            # 202: columns are being built
            assert answer.status in (200, 202, 400, 404, 503), (payload, place, answer.body)
            if answer.status != 200:
                assert answer.json["error"], (payload, place)
        for command in (["ls"], ["show", first], ["compare", first, second], ["report", first]):
            code = main([*command, "--store", str(path), "--json"])
            said: Any = capsys.readouterr()
            assert code in (0, 1, 2, 3), (payload, command, said.err)
            assert "Traceback" not in said.err
            assert "bug" not in said.err.lower(), (payload, command, said.err)
