"""A viewer of the sample store, and a browser to look at it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from karat.view.data import Viewer
from karat.view.server import Server
from tests.browser import Watched, launched
from tests.sample_store import sample_store


class Served:
    """A running viewer: its address, and the token that opens it."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token


@contextmanager
def served(store: str) -> Iterator[Served]:
    """Serve a store from a thread with an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = Server(lambda: Viewer(store))
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
    try:
        yield Served(f"http://{server.address}", server.token)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true on a page. Playwright's own way needs `eval`, which the policy forbids."""
    for _ in range(800):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"{expression} did not become true on {page.url}: {page.inner_text('main')[:500]}")


class Tab:
    """A tab of the browser that is signed in to a viewer, and that watches for errors and foreign requests."""

    def __init__(self, browser: Any, viewer: Served, **options: Any) -> None:
        settings = {"viewport": {"width": 1280, "height": 860}, **options}
        self.context = browser.new_context(**settings)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=viewer.url)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.watched = Watched(self.page, viewer.url)
        self.viewer = viewer
        self.page.goto(f"{viewer.url}/?token={viewer.token}")
        self.page.wait_for_selector("h1")

    def open(self, path: str, wait: str = "h1") -> Any:
        """Go to a page and wait until it is drawn."""
        self.page.goto(self.viewer.url + path)
        self.page.wait_for_selector(wait)
        return self.page

    def close(self) -> None:
        """Close the tab; any error in its console fails the test."""
        self.context.close()
        self.watched.check()


@pytest.fixture(
    scope="module"
)  # a running Playwright has an event loop, in whose thread no other loop can run
def browser():
    with launched() as opened:
        yield opened


@pytest.fixture(scope="session")
def sample(tmp_path_factory):
    with sample_store(tmp_path_factory.mktemp("view"), 120) as made:
        yield made


@pytest.fixture(scope="session")
def viewer(sample):
    with served(sample.store.url) as running:
        yield running


@pytest.fixture
def tab(browser, viewer):
    opened = Tab(browser, viewer)
    yield opened
    opened.close()
