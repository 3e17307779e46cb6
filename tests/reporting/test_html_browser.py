"""The HTML report in a real browser: nothing is requested, nothing runs, and it can be read by everybody."""

from __future__ import annotations

import pytest

from karat.analysis.summary import summarise
from karat.reporting.html_report import html_report
from tests.browser import Watched, launched, violations
from tests.sample_store import sample_store


@pytest.fixture(scope="module")
def browser():
    with launched() as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    with sample_store(folder, 80) as sample:
        for name, runs in (("one", sample.runs[:1]), ("three", sample.runs), ("agents", sample.agents)):
            document = html_report(sample.store, summarise(sample.store, [run.id for run in runs]))
            (folder / f"{name}.html").write_text(document, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["one", "three", "agents"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible_and_quiet(browser, reports, name, scheme):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    watched = Watched(page, "file://")
    page.goto((reports / f"{name}.html").as_uri())
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert violations(page) == []
    watched.check()
    context.close()


@pytest.mark.parametrize("width", [1280, 640, 375])
def test_no_page_is_wider_than_the_window(browser, reports, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto((reports / "three.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_it_prints(browser, reports):
    page = browser.new_page()
    page.goto((reports / "three.html").as_uri())
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 640, "height": 900})  # A4 with wide margins
    wide = "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"
    assert page.evaluate(wide) == 0  # nothing is cut off: paper does not scroll
    page.close()
