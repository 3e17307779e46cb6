"""Long lists, long trajectories and large fields."""

from __future__ import annotations

import pytest

import karat
from tests.view.browser.conftest import Tab, served, until

COUNT = 100_000
"""Enough that the list is taller than a browser lays out, so that it is scaled."""


def long_answer(number):
    if number == 1:
        return "x" * 5_000_000
    if number == 2:
        return [
            {"role": "user" if step % 2 else "assistant", "content": f"step {step}"} for step in range(10_000)
        ]
    return f"answer {number}"


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    with karat.open_store(tmp_path_factory.mktemp("large") / "k.db") as store:
        data = karat.Dataset.from_examples(
            [{"id": f"n{n}", "input": n} for n in range(COUNT)], name="numbers"
        )
        run = karat.run(long_answer, data, store=store, progress=False)
        with served(store.url) as viewer:
            yield viewer, run.id


def test_a_long_list_holds_only_the_rows_in_sight(browser, large):
    viewer, run = large
    tab = Tab(browser, viewer)
    page = tab.open(f"/r/{run}", ".row a")
    assert page.locator(".row").count() < 40
    page.evaluate("document.querySelector('.rows').scrollTop = 1e9")
    until(page, f"document.querySelector('.rows').innerText.includes('n{COUNT - 1}')")
    assert page.locator(".row").count() < 40
    page = tab.open(f"/r/{run}?key=50000.1", ".row.chosen")
    assert "n50000" in page.inner_text(".row.chosen")
    tab.close()


def test_a_field_of_5_mb_is_folded_and_can_be_downloaded(browser, large):
    viewer, run = large
    tab = Tab(browser, viewer)
    page = tab.open(f"/r/{run}?key=1.1", ".download")
    assert len(page.inner_text(".item")) < 100_000
    with page.expect_download() as started:
        page.click(".download >> nth=0")
    assert started.value.path().stat().st_size == 5_000_000
    tab.close()


def test_a_trajectory_of_10000_steps_comes_in_pages(browser, large):
    viewer, run = large
    tab = Tab(browser, viewer)
    page = tab.open(f"/r/{run}?key=2.1", ".steps")
    assert page.locator(".steps > li").count() == 200
    page.click("text=Show more of 10,000 steps")
    until(page, "document.querySelectorAll('.steps > li').length === 400")
    assert "step 399" in page.inner_text(".steps")
    tab.close()
