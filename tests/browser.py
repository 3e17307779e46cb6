"""A real browser for tests: Chromium with Playwright, and axe-core for accessibility.

Tests that use it skip where there is no Chromium, and say so; with KARAT_REQUIRE_BROWSER set they fail instead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = (
    *("chromium-headless-shell", "chromium", "chromium-browser"),
    *("google-chrome", "google-chrome-stable", "chrome"),
)
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def chromium() -> str | None:
    """The path of a Chromium on this machine."""
    return os.environ.get("KARAT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def launched() -> Iterator[Browser]:
    """A headless browser; skips the test, or fails it, where there is none."""
    path = chromium()
    if path is None:
        reason = "no Chromium found: apt-get install chromium-headless-shell, or set KARAT_CHROMIUM"
        if os.environ.get("KARAT_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # In containers there is neither a sandbox nor a large /dev/shm.
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """What a page did that it should not: errors on the console, and requests to elsewhere."""

    def __init__(self, page: Page, own: str) -> None:
        self.problems: list[str] = []
        self.foreign: list[str] = []
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on(
            "request",
            lambda request: None if request.url.startswith(own) else self.foreign.append(request.url),
        )

    def _console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(text)

    def check(self) -> None:
        """Assert that there was nothing."""
        assert self.problems == []
        assert self.foreign == []


def violations(page: Page) -> list[Any]:
    """What axe-core finds on a page, by the rules of WCAG 2.0 to 2.2, A and AA."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(
        page, options={"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]}
    )
    return [
        (
            each["id"],
            [node["html"][:200] for node in each["nodes"][:3]],
            each["nodes"][0].get("failureSummary"),
        )
        for each in found.response["violations"]
    ]
