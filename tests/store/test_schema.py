"""The schema of a store: a newer one is refused untouched, an older one upgraded in one transaction.

The fixtures are stores as the release with schema 1 wrote them; they are never made again.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from karat.errors import KaratError, StoreRefused
from karat.store import Store, open_store, postgres, sqlite
from karat.store.backend import SCHEMA

FIXTURES = Path(__file__).with_name("fixtures")

STATEMENTS = [
    "ALTER TABLE karat_headers ADD COLUMN colour TEXT",
    "UPDATE karat_headers SET colour = 'amber'",
    "CREATE TABLE karat_tags (header TEXT NOT NULL, tag TEXT NOT NULL)",
]


class OldStore:
    """A store of schema 1, with ways to look at it that do not go through karat."""

    def __init__(
        self, module: ModuleType, url: str, fingerprint: Callable[[], str], run: Callable[[str], None]
    ) -> None:
        self.module = module
        self.url = url
        self.fingerprint = fingerprint
        self.run = run


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OldStore]:
    """The oldest release's store."""
    if request.param == "sqlite":
        path = Path(shutil.copy(FIXTURES / "schema-1.sqlite", tmp_path))

        def run(statement: str) -> None:
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute(statement)
            connection.close()

        yield OldStore(
            sqlite, f"sqlite:///{path}", lambda: hashlib.sha256(path.read_bytes()).hexdigest(), run
        )
        return
    import psycopg

    url = str(request.getfixturevalue("postgres_url"))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((FIXTURES / "schema-1.sql").read_text())
        yield OldStore(
            postgres,
            url,
            lambda: _everything_in(connection),
            lambda statement: connection.execute(statement) and None,  # type: ignore[arg-type]  # of this test
        )


def _everything_in(connection: object) -> str:
    """A checksum of all tables, columns and rows of a schema in PostgreSQL, with the versions of the rows."""
    execute = connection.execute  # type: ignore[attr-defined]  # a psycopg connection
    tables = execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = current_schema() ORDER BY 1, ordinal_position"
    ).fetchall()
    found = [repr(tables)]
    for table in sorted({name for name, _, _ in tables}):
        found.append(repr(sorted(execute(f"SELECT xmin::text, t.*::text FROM {table} t").fetchall())))
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def _content(store: Store) -> list[object]:
    """All that a reader sees."""
    runs, evaluations, aggregations = store.runs.list(), store.evaluations.list(), store.aggregations.list()
    return [
        [[dataset.label, list(dataset)] for dataset in store.datasets.list()],
        [[run.id, run.counts, run.status, list(run.outputs(history=True))] for run in runs],
        [[each.id, each.counts, each.runs[0].id, list(each.results())] for each in evaluations],
        [[each.id, list(each.estimates), each.evaluations[0].id] for each in aggregations],
    ]


def _with_next_schema(monkeypatch: pytest.MonkeyPatch, module: ModuleType, statements: list[str]) -> None:
    monkeypatch.setattr(module, "SCHEMA", SCHEMA + 1)
    monkeypatch.setattr(module, "UPGRADES", {**module.UPGRADES, SCHEMA: statements})


def test_the_oldest_release_is_read(old: OldStore) -> None:
    with open_store(old.url) as store:
        assert store.check() == []
        run = store.runs.get("latest")
        assert [(o.example, o.value, o.try_number) for o in run.outputs()] == [
            ("a", 2, 1),
            ("../b\0", 4, 2),
            ("ü", 7, 1),
        ]
        assert [len(d) for d in (store.datasets.get("doubles@1"), store.datasets.get("doubles"))] == [1, 3]
        assert [r.score for r in store.evaluations.get("latest").results()] == [1.0, 1.0, 0.0]
        assert (
            store.aggregations.get("latest").estimates.get(evaluator="exact_match", aggregator="accuracy").n
            == 3
        )
        assert store.descendants(run.dataset.id) == [
            run.id,
            store.evaluations.list()[0].id,
            store.aggregations.list()[0].id,
        ]


def test_both_kinds_have_an_upgrade_from_every_schema() -> None:
    assert set(sqlite.UPGRADES) == set(postgres.UPGRADES) == set(range(1, SCHEMA))


def test_an_older_store_is_upgraded(old: OldStore, monkeypatch: pytest.MonkeyPatch, refuses) -> None:
    with open_store(old.url) as store:
        before = _content(store)
    _with_next_schema(monkeypatch, old.module, STATEMENTS)
    for _ in range(2):  # the second opening finds it upgraded
        with open_store(old.url) as store:
            assert _content(store) == before
            colours = store.backend._read("SELECT DISTINCT colour FROM karat_headers")  # type: ignore[attr-defined]  # of SQL
            assert [tuple(row) for row in colours] == [("amber",)]
            assert store.check() == []
    monkeypatch.undo()
    with refuses(StoreRefused):
        open_store(old.url)


@pytest.mark.parametrize("done", range(len(STATEMENTS) + 1))
def test_an_upgrade_that_fails_in_the_middle_leaves_the_store_as_it_was(
    old: OldStore, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    before = old.fingerprint()
    _with_next_schema(monkeypatch, old.module, [*STATEMENTS[:done], "UPDATE no_such_table SET a = 1"])
    with pytest.raises(KaratError, match="no_such_table"):
        open_store(old.url)
    assert old.fingerprint() == before
    monkeypatch.undo()
    with open_store(old.url) as store:
        assert store.check() == []
        assert len(store.runs.list()) == 1


def test_a_newer_schema_is_refused_untouched(old: OldStore) -> None:
    if old.module is sqlite:
        old.run(f"PRAGMA user_version = {SCHEMA + 1}")
    else:
        old.run(f"UPDATE karat_schema SET version = {SCHEMA + 1}")
    before = old.fingerprint()
    with pytest.raises(StoreRefused, match=rf"newer .*schema {SCHEMA + 1}, .* {SCHEMA}\)"):
        open_store(old.url)
    assert old.fingerprint() == before


def test_a_newer_schema_that_is_still_in_the_write_ahead_log_is_refused_untouched(
    tmp_path: Path, refuses
) -> None:
    path = Path(shutil.copy(FIXTURES / "schema-1.sqlite", tmp_path))
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    files = [path, Path(f"{path}-wal")]
    before = [file.read_bytes() for file in files]
    copies = [
        Path(shutil.copy(file, tmp_path / f"killed{file.name.removeprefix('schema-1.sqlite')}"))
        for file in files
    ]
    writer.close()
    with refuses(StoreRefused):
        open_store(f"sqlite:///{copies[0]}")
    assert [copy.read_bytes() for copy in copies] == before
