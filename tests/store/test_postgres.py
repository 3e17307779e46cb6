"""What only a server does: it stops, it asks for passwords, it is opened by two at once."""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import karat
from karat.errors import RequestError, StoreError, StoreRefused
from karat.store import Store, open_store, postgres, safe_url
from karat.store.backend import OK, StoredRow
from karat.store.lease import Held
from karat.store.postgres import APPEND, PostgresBackend, columns, without_password
from tests.conftest import start_postgres
from tests.store.conftest import Child, add_header


@pytest.fixture(scope="module")
def own_server() -> Iterator[Any]:
    """A server that may be stopped, with a user `guarded` who needs a password."""
    with start_postgres(Path(tempfile.gettempdir(), f"karat-{uuid.uuid4().hex}")) as server:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("CREATE ROLE guarded LOGIN PASSWORD 'correct horse'")
            connection.execute("CREATE DATABASE guarded OWNER guarded")
            rules = Path(connection.execute("SHOW hba_file").fetchone()[0])  # type: ignore[index]  # one row
            rules.write_text(f"local all guarded scram-sha-256\n{rules.read_text()}")
            connection.execute("SELECT pg_reload_conf()")
        yield server


def as_user(url: str, credentials: str) -> str:
    return url.replace("://postgres:@", f"://{credentials}@")


def rows(first: int, count: int = 10) -> list[StoredRow]:
    return [StoredRow(n, "1", 1, OK, None, b"{}") for n in range(first, first + count)]


def test_a_server_that_stops_is_an_error_and_after_a_restart_the_store_continues(
    own_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOST_SECONDS", 0.0)
    with open_store(own_server.get_uri()) as store:
        run = add_header(store)
        store.backend.append(run, rows(0))
        own_server.stop()
        for _ in range(2):
            with pytest.raises(StoreError, match=r"postgresql://.* written: "):
                store.backend.append(run, rows(10))
            with pytest.raises(StoreError, match="read: "):
                store.backend.scan(run, 0, 20)
        own_server.start()
        assert len(store.backend.scan(run, 0, 100)) == 10, "what was committed is there, and nothing else"
        assert store.backend.append(run, rows(5)) == 5
        own_server.stop()
        own_server.start()
        assert store.backend.append(run, rows(15)) == 10, "a restart between two calls is not even noticed"
        assert store.check() == []
        with open_store(own_server.get_uri()) as again:
            assert len(again.backend.scan(run, 0, 100)) == 25


def test_a_server_that_is_lost_is_waited_for(own_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def start_at_the_third(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            own_server.start()

    with open_store(own_server.get_uri()) as store:
        monkeypatch.setattr(PostgresBackend, "_sleep", staticmethod(start_at_the_third))
        run = add_header(store, "run-0000000002")
        for action in (
            lambda: store.backend.append(run, rows(0)),
            lambda: store.backend.scan(run, 0, 100),
            lambda: Held.take(store.backend, run).release(),
        ):
            waits.clear()
            own_server.stop()
            action()
            assert len(waits) >= 3
        assert len(store.backend.scan(run, 0, 100)) == 10
    own_server.stop()
    waits.clear()
    with pytest.raises(StoreRefused, match="no connection"):
        open_store(own_server.get_uri())
    assert waits == [], "a first connection that fails is reported at once"
    own_server.start()


def test_a_stage_goes_on_when_its_server_comes_back(own_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresBackend, "_sleep", staticmethod(lambda seconds: own_server.start()))

    async def task(number: int) -> int:
        if number == 25:
            own_server.stop()
        return number

    data = [{"id": str(n), "input": n} for n in range(50)]
    with open_store(own_server.get_uri()) as store:
        run = karat.run(task, data, store=store, concurrency=5)
        assert (run.status, run.counts.ok) == ("success", 50)
        assert [output.value for output in run.outputs()] == list(range(50))


@pytest.mark.parametrize("read_only", [False, True])
def test_a_connection_that_is_lost_while_a_store_is_opened_is_made_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    """A stage reopens its store, whose server was running a moment ago."""
    open_store(postgres_url).close()
    version, lost = PostgresBackend._version, []

    def losing(self: PostgresBackend, cursor: Any) -> int:
        if not lost:
            lost.append(True)
            with psycopg.connect(postgres_url, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", (self._connection.info.backend_pid,))
        return version(self, cursor)

    monkeypatch.setattr(PostgresBackend, "_version", losing)
    with open_store(postgres_url, read_only=read_only) as store:
        assert store.runs.list() == []
    assert lost


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
def test_a_change_whose_commit_is_lost_is_made_again(postgres_url: str, committed: bool) -> None:
    with open_store(postgres_url) as store, psycopg.connect(postgres_url, autocommit=True) as other:
        backend: Any = store.backend
        run = add_header(store)

        def lose_once() -> None:
            transaction, lost = backend._transaction, []

            @contextmanager
            def losing() -> Iterator[Any]:
                if lost:
                    with transaction() as cursor:
                        yield cursor
                    return
                lost.append(True)
                me = backend._connection.info.backend_pid
                with transaction() as cursor:
                    yield cursor
                    if not committed:
                        other.execute("SELECT pg_terminate_backend(%s, 10000)", (me,))
                other.execute("SELECT pg_terminate_backend(%s, 10000)", (me,))
                try:
                    backend._connection.execute("SELECT 1")
                except psycopg.Error as error:
                    raise StoreError("lost") from error

            backend._transaction = losing

        lose_once()
        held = Held.take(store.backend, run)
        lose_once()
        held.beat()
        held.check()
        lose_once()
        assert backend.update_header(run, b"new", 2.0, held.owner)
        held.let_go()
        header = backend.header(run)
        assert (header.payload, header.finished, backend.lease(run)) == (b"new", 2.0, None)


def test_a_connection_that_breaks_inside_a_transaction_leaves_nothing_of_it(
    own_server: Any, postgres_url: str, refuses
) -> None:
    with open_store(postgres_url) as store, psycopg.connect(postgres_url, autocommit=True) as other:
        run = add_header(store)
        backend: Any = store.backend

        def write() -> None:
            with backend._transaction() as cursor:
                cursor.execute(APPEND, columns(run, rows(0)))
                me = backend._connection.info.backend_pid
                other.execute("SELECT pg_terminate_backend(%s, 10000)", (me,))

        with refuses(StoreError):
            write()
        assert store.backend.scan(run, 0, 100) == []
        assert store.backend.append(run, rows(0)) == 10


def test_a_wrong_password_is_one_sentence_without_the_password(own_server: Any, refuses) -> None:
    url = as_user(own_server.get_uri("postgres"), "guarded:wrong%20battery")
    with refuses(StoreRefused) as refused:
        open_store(url)
    sentence = str(refused.value)
    assert "postgresql://guarded:***@" in sentence
    assert "battery" not in sentence
    assert "\n" not in sentence
    assert refused.value.__cause__ is None


def test_the_right_password_without_the_right_to_make_tables(own_server: Any, refuses) -> None:
    url = as_user(own_server.get_uri("template1"), "guarded:correct%20horse")
    with refuses(StoreRefused) as refused:
        open_store(url)
    assert "horse" not in str(refused.value)


def test_the_url_that_is_shown_never_has_the_password(own_server: Any) -> None:
    with open_store(as_user(own_server.get_uri("guarded"), "guarded:correct%20horse")) as store:
        assert "horse" not in store.url + repr(store)
        with pytest.raises(RequestError) as unknown:
            store.get("nothing")
        assert "horse" not in str(unknown.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://user@host:5432/db", "postgresql://user@host:5432/db"),
        ("postgresql://user:secret@host/db?sslmode=require", "postgresql://user:***@host/db?sslmode=require"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("postgresql://user:se?cr@et@host/db", "postgresql://user:***@***/db"),
        ("postgresql://user@/db?password=secret&host=/run", "postgresql://user:***@/db?host=/run"),
        ("postgresql:///db?sslpassword=secret", "postgresql:///db?sslpassword=***"),
        ("postgresql://", "postgresql://"),
        ("postgres://host/db", "postgresql://host/db"),
        ("postgres://user:secret@[::1]:5432/db", "postgresql://user:***@[::1]:5432/db"),
        ("postgresql://user:secret@one:1,two:2/db", "postgresql://user:***@one:1,two:2/db"),
        ("postgresql://one,two/db", "postgresql://one,two/db"),
        ("postgresql:///db?host=/run,/tmp&port=7", "postgresql://:7/db?host=/run%2C/tmp"),
    ],
)
def test_passwords_are_starred(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user@host/db?password=s3cr%40et",
        "postgresql://user@host/db?password=s3cr@et",
        "postgresql://host?password=s3cr@et",
        "postgresql://user@host/db?pass%77ord=s3cr@et",
        "postgresql://user@host/db?%70%61%73%73%77%6f%72%64=s3cr%40et",
        "postgresql://user@host/db?sslmode=require&password=s3cr&sslpassword=et",
        "postgresql://user:s3cr%40et@host/db",
        "postgresql://user:s3cr@et@host/db",
        "postgresql://user:s3cr/et@host/db",
        "postgresql://user:s3cr?et@host/db",
        "postgresql://user:s3cr et@host/db",
        "postgresql://user:s3cr#et@host/db",
        "postgresql://user@host/db?PASSWORD=s3cr",
        "postgresql://user@host/db?pass word=s3cr",
    ],
)
def test_no_form_of_a_password_is_shown(url: str) -> None:
    shown = [without_password(url), safe_url(url)]
    with pytest.raises(RequestError) as refused:
        open_store(url.replace("host", "127.0.0.1:1"))
    shown.append(str(refused.value))
    for text in shown:
        assert "s3cr" not in text
        assert "et@" not in text


@pytest.mark.parametrize("url", ["postgresql://user:secret@host:port/db", "postgresql://user:secret@[::1/db"])
def test_a_url_that_cannot_be_read(url: str) -> None:
    with pytest.raises(StoreRefused) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_no_server_there(refuses) -> None:
    with refuses(StoreRefused) as refused:
        open_store("postgresql://user:secret@127.0.0.1:1/db")
    assert "secret" not in str(refused.value)


def test_three_processes_make_the_tables_at_once(postgres_url: str, child: Callable[..., Child]) -> None:
    openers = [child("open_and_close", postgres_url) for _ in range(3)]
    for opener in openers:
        opener.wait_for("ready")
    for opener in openers:
        opener.go_on()
    assert {opener.result() for opener in openers} == {without_password(postgres_url)}
    with open_store(postgres_url) as store:
        assert store.check() == []


def test_two_that_append_the_same_rows_in_opposite_orders_do_not_wait_for_each_other(
    postgres_url: str,
) -> None:
    with open_store(postgres_url) as one, open_store(postgres_url) as other:
        run = add_header(one)
        new: list[int] = []

        def append(store: Store, batch: list[StoredRow]) -> None:
            new.append(store.backend.append(run, batch))

        for start in range(0, 5000, 500):
            batch = rows(start, 500)
            threads = [
                threading.Thread(target=append, args=(one, batch)),
                threading.Thread(target=append, args=(other, batch[::-1])),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sum(new) == 5000


def test_removing_waits_for_an_append_that_is_under_way(postgres_url: str) -> None:
    with open_store(postgres_url) as one, open_store(postgres_url) as other:
        run = add_header(one)
        backend: Any = one.backend
        with backend._transaction() as cursor:
            cursor.execute(APPEND, columns(run, rows(0)))
            removing = threading.Thread(target=other.backend.delete, args=(["run-0000000001"],))
            removing.start()
            with psycopg.connect(postgres_url, autocommit=True) as watcher:
                waiting = "wait_event_type = 'Lock' AND query LIKE 'DELETE%'"
                asked = f"SELECT FROM pg_stat_activity WHERE {waiting}"
                while removing.is_alive() and watcher.execute(asked).fetchone() is None:
                    pass
        removing.join()
        assert other.check() == []
        assert other.backend.scan(run, 0, 100) == []


def test_a_database_without_a_version_is_refused(postgres_url: str, refuses) -> None:
    open_store(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DELETE FROM karat_schema")
    with refuses(StoreRefused):
        open_store(postgres_url)


def test_a_closed_store_stays_closed(postgres_url: str, refuses) -> None:
    store = open_store(postgres_url)
    store.close()
    with refuses(StoreError):
        store.runs.list()
    with refuses(StoreError):
        store.backend.append(1, rows(0))
