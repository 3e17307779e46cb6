"""Every key of the viewer."""

from __future__ import annotations

import shlex

from tests.view.browser.conftest import until


def chosen(page):
    return page.inner_text(".item h2").split()[0]


def test_j_and_k_move_enter_opens_and_x_closes(tab, sample):
    page = tab.open(f"/r/{sample.runs[0].id}", ".row a")
    page.keyboard.press("j")
    page.wait_for_selector(".item h2")
    until(page, "document.querySelector('.item h2').innerText.includes('ticket-000')")
    page.keyboard.press("j")
    until(page, "document.querySelector('.item h2').innerText.includes('ticket-001')")
    page.keyboard.press("k")
    until(page, "document.querySelector('.item h2').innerText.includes('ticket-000')")
    page.keyboard.press("Enter")
    until(page, "location.search.includes('open=1')")
    assert page.evaluate("document.activeElement.className") == "item"
    page.keyboard.press("x")
    until(page, "!location.search.includes('open')")
    page.keyboard.press("x")
    until(page, "!location.search.includes('key')")


def test_j_reaches_rows_beyond_the_first_page(tab, sample):
    page = tab.open(f"/r/{sample.runs[0].id}?key=98.1", ".item h2")
    page.wait_for_selector(".row.chosen")
    for number in (99, 100, 101):
        page.keyboard.press("j")
        until(page, f"document.querySelector('.item h2').innerText.includes('ticket-{number:03}')")
    assert page.locator(".row.chosen").is_visible()


def test_slash_focuses_the_filter_and_escape_leaves_it(tab, sample):
    page = tab.open(f"/r/{sample.runs[0].id}", ".row a")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.keyboard.type("status:failed")
    assert page.input_value("#filter") == "status:failed"
    page.keyboard.press("Enter")
    until(page, "location.search.includes('status')")
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") != "filter"


def test_brackets_show_the_same_row_of_the_other_runs(tab, sample):
    first, second, third = (run.id for run in sample.runs)
    page = tab.open(f"/r/{second}?key=6.1", ".item h2")
    page.keyboard.press("]")
    until(page, f"location.pathname === '/r/{third}' && location.search.includes('key=6.1')")
    until(page, f"document.querySelector('.head code').innerText === '{third}'")
    page.keyboard.press("[")
    until(page, f"location.pathname === '/r/{second}'")
    page = tab.open(f"/c/{first}..{second}", ".chip")
    page.keyboard.press("]")
    until(page, f"location.pathname === '/c/{first}..{third}'")


def test_x_selects_and_c_compares(tab, sample):
    page = tab.open("/", "[data-row]")
    for run in sample.runs[:2]:
        page.focus(f'[data-row="{run.id}"]')
        page.keyboard.press("x")
        until(page, f"location.search.includes('{run.id}')")
    page.keyboard.press("c")
    until(page, f"location.pathname === '/c/{sample.runs[0].id}..{sample.runs[1].id}'")
    page = tab.open(f"/r/{sample.runs[1].id}", ".row a")
    page.keyboard.press("c")
    until(page, f"location.pathname === '/c/{sample.runs[0].id}..{sample.runs[1].id}'")


def test_j_and_k_move_through_tables_too(tab, sample):
    page = tab.open("/", "[data-row]")
    page.keyboard.press("j")
    first = page.evaluate("document.activeElement.getAttribute('data-row')")
    page.keyboard.press("j")
    second = page.evaluate("document.activeElement.getAttribute('data-row')")
    assert first
    assert second
    assert first != second
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.getAttribute('data-row')") == first
    page.keyboard.press("Enter")
    until(page, f"location.pathname === '/r/{first}'")


def test_w_goes_to_the_next_regression(tab, sample):
    first, _, third = (run.id for run in sample.runs)
    page = tab.open(f"/c/{first}..{third}", ".chip")
    seen = []
    for _ in range(3):
        page.keyboard.press("w")
        until(
            page,
            f"!{[*seen, '']!r}.includes((document.querySelector('.item h2')?.innerText ?? '').split(' ')[0])",
        )
        seen.append(chosen(page))
        assert "worse" in page.inner_text(".item h2")
    assert len(set(seen)) == 3


def test_y_copies_the_command_line_of_the_view(tab, sample, capsys):
    from karat.cli import main

    first, second = sample.runs[0].id, sample.runs[1].id
    wanted = {
        "/": ["karat", "ls"],
        f"/r/{first}?filter=topic%3Arefund+judged%3C0.5": [
            "karat",
            "show",
            first,
            "--where",
            "topic:refund judged<0.5",
        ],
        f"/r/{first}?sort=-seconds": ["karat", "show", first, "--sort=-seconds"],
        f"/r/{first}?key=3.1": ["karat", "show", first, "--example", "ticket-003"],
        f"/c/{first}..{second}": ["karat", "compare", first, second],
        f"/c/{first}..{second}?evaluator=judged": ["karat", "compare", first, second],
        f"/f/{first}": ["karat", "show", first, "--failed"],
        f"/p/{first},{second}": ["karat", "report", first, second],
    }
    for path, words in wanted.items():
        page = tab.open(path)
        if "key=" in path:
            page.wait_for_selector(".item h2")
        page.keyboard.press("y")
        page.wait_for_selector(".toast")
        copied = shlex.split(page.evaluate("navigator.clipboard.readText()"))
        assert copied == [*words, "--store", sample.store.url]
        assert main(copied[1:]) in (0, 1), "1: something in the view failed"
        assert capsys.readouterr().out


def test_question_mark_shows_the_keys(tab):
    from tests.browser import violations

    page = tab.open("/")
    page.keyboard.press("?")
    page.wait_for_selector("[role=dialog]")
    assert page.locator("[role=dialog] kbd").count() == 9
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.wait_for_selector("[role=dialog]", state="detached")
