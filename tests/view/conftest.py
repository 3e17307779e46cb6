"""A store with two runs, and a viewer of it that tests ask over HTTP, with any headers they like."""

from __future__ import annotations

import asyncio
import http.client
import json
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

import karat
from karat.store import Store, open_store
from karat.tasks import FunctionTask
from karat.view import column_builds
from karat.view.data import Viewer
from karat.view.server import Server

COUNT = 40
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "\x1b[31mred\x07",
    "\u202eright to left\u2066",
    "a\x00b\x7f",
    "javascript:alert(1)",
    "${7*7}{{7*7}}",
    "'; DROP TABLE karat_rows; --",
    "../../../etc/passwd",
    "\U0001f600 \ufeff",
]


class Answer:
    """A reply of the server."""

    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        """The document."""
        return json.loads(self.body)


class Served:
    """A viewer that listens, and a client that has signed in."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.cookie = ""

    @property
    def address(self) -> str:
        """The host and port."""
        return self.server.address

    def ask(
        self,
        path: str,
        headers: dict[str, str] | None = None,
        *,
        method: str = "GET",
        signed_in: bool = True,
        host: str | None = None,
    ) -> Answer:
        """Send a request exactly as it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if host != "":
                connection.putheader("Host", host or self.address)
            if signed_in and self.cookie:
                connection.putheader("Cookie", self.cookie)
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders()
            found = connection.getresponse()
            return Answer(found.status, found.headers, found.read())
        finally:
            connection.close()

    def get(self, path: str, **query: Any) -> Any:
        """The document of an endpoint; fails where it is not answered."""
        found = self.ask(f"{quote(path)}?{urlencode(query)}")
        assert found.status == 200, (path, query, found.status, found.body[:500])
        return found.json

    def sign_in(self) -> None:
        """Exchange the token for the cookie."""
        answer = self.ask(f"/?token={self.server.token}", signed_in=False)
        assert answer.status == 200
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[str | Store], Served]]:
    """A function that starts a viewer of a store."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    servers: list[Server] = []

    def start(store: str | Store) -> Served:
        async def made() -> Server:
            server = Server(lambda: Viewer(store))
            await server.start()
            return server

        server = asyncio.run_coroutine_threadsafe(made(), loop).result(60)
        servers.append(server)
        served = Served(server)
        served.sign_in()
        return served

    yield start
    for server in servers:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's reply cache, one for each test; columns are kept beside it."""
    file = tmp_path / "replies.db"
    monkeypatch.setenv("KARAT_CACHE", str(file))
    return file


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Columns that a store lacks are not built before it is set, and no request waits for them."""
    opened = threading.Event()
    really = column_builds.open_store

    def open_later(*arguments: Any, **options: Any) -> Store:
        assert opened.wait(60)
        return really(*arguments, **options)

    monkeypatch.setattr(column_builds, "open_store", open_later)
    monkeypatch.setattr(column_builds, "PATIENCE", 0.0)
    yield opened
    opened.set()


def forget_columns(path: Path) -> None:
    """Make a store look as if an earlier karat had written it: without columns."""
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE karat_headers SET columns = 0")
        connection.execute("DELETE FROM karat_columns")


def examples(count: int = COUNT) -> karat.Dataset:
    """Questions of two topics; some of the strings are hostile."""
    return karat.Dataset.from_examples(
        [
            {
                "id": f"q{i}",
                "input": f"word{i}" if i >= len(HOSTILE) else HOSTILE[i],
                "expected": f"WORD{i}" if i % 3 else "?",
                "metadata": {"topic": ("law", "art")[i % 2], "level": i % 5, "tags": ["x", f"t{i % 3}"]},
            }
            for i in range(count)
        ],
        name="words",
    )


def answering(variant: int) -> FunctionTask:
    """A task that fails for one word, and answers some wrongly."""

    def answer(text: str, variant: int) -> Any:
        if text == f"word{20 + variant}":
            raise ValueError(f"no answer to {text}")
        if variant and text in ("word25", "word26"):
            return "oops"
        return text.upper()

    task = FunctionTask(answer, name="answer", parameters={"variant": variant})
    task.code = lambda: "the same"  # type: ignore[method-assign]
    return task


class World:
    """Two runs over one dataset, evaluated by two evaluators and aggregated."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.data = store.datasets.put(examples())
        self.first, self.second = (
            karat.run(answering(variant), self.data, store=store, labels=[f"variant{variant}"])
            for variant in (0, 1)
        )
        self.evaluation = karat.evaluate([self.first, self.second], ["exact_match", "edit_distance"])
        karat.aggregate(self.evaluation, ["accuracy"])


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty store that several connections can open."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('store')}/karat.db"
        return
    import psycopg

    server = str(request.getfixturevalue("postgres_server"))
    schema = f"karat_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        yield f"{server}{'&' if '?' in server else '?'}options=-csearch_path%3D{schema}"


@pytest.fixture(scope="module")
def world(url: str) -> Iterator[World]:
    """The runs, in a store of each kind."""
    with open_store(url) as store:
        yield World(store)


@pytest.fixture(scope="module")
def viewer(world: World, url: str, serve: Callable[[str], Served]) -> Served:
    """A viewer of the runs, signed in."""
    return serve(url)
