"""Every key of the viewer."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from urllib.parse import parse_qsl, quote, urlsplit

import karat
from karat.tasks import FunctionTask, Task
from tests.view.browser.conftest import Tab, served, until


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


def test_j_and_k_move_through_tables(tab, sample):
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
            "--where=topic:refund judged<0.5",
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


def test_y_copies_a_command_that_opens_the_same_view(tab, sample):
    """What no command prints, the rows of a comparison and slices, is opened in the viewer again."""
    first, second = sample.runs[0].id, sample.runs[1].id
    for path in (
        f"/c/{first}..{second}?filter=changed%3Aworse+topic%3Arefund&sort=-difference&evaluator=judged",
        f"/c/{first}..{second}?key=7.1&open=1",
        f"/c/{first}..{second}?filter=changed%3Asame&evaluator=judged&key=3.1&open=1",
        f"/s/{first},{second}?evaluator=judged&by=topic",
    ):
        page = tab.open(path, ".item h2" if "key=" in path else ".plot, .chip")
        page.keyboard.press("y")
        page.wait_for_selector(".toast")
        copied = shlex.split(page.evaluate("navigator.clipboard.readText()"))
        assert copied[0] == "karat"
        opened = urlsplit(printed_url([*copied[1:], "--no-browser", "--json"]))
        assert opened.path == urlsplit(path).path
        assert {k: v for k, v in parse_qsl(opened.query) if k != "token"} == dict(
            parse_qsl(urlsplit(path).query)
        )


def test_y_names_the_attempt_and_the_unit_of_an_item(browser, tmp_path):
    class Turns(Task):
        """Two outputs for each example."""

        units_declared, version = True, "1"

        def __init__(self, name):
            self.name = name

        def units(self, example):
            return ["turn 1", "it's 2"]

        def call_units(self, example, context):
            yield "turn 1", "one"
            yield "it's 2", self.name

    store_url = f"sqlite:///{tmp_path / 'karat.db'}"
    with karat.open_store(store_url) as store:
        data = karat.Dataset.from_examples([{"id": "a b", "input": 1}, {"id": "c", "input": 2}])
        options = {"store": store, "attempts": 2, "progress": False}
        runs = [karat.run(Turns(name), data, **options) for name in ("first", "second")]
    with served(store_url) as running:
        tab = Tab(browser, running)
        path = f"/c/{runs[0].id}..{runs[1].id}"
        page = tab.open(f"{path}?key=0.2/it%27s+2&open=1", ".item h2")
        page.keyboard.press("y")
        page.wait_for_selector(".toast")
        copied = shlex.split(page.evaluate("navigator.clipboard.readText()"))
        assert copied[:-2] == [
            "karat", "view", runs[0].id, runs[1].id, "--example=a b", "--attempt=2", "--unit=it's 2",
        ]  # fmt: skip
        opened = urlsplit(printed_url([*copied[1:], "--no-browser", "--json"]))
        assert (opened.path, dict(parse_qsl(opened.query))["key"]) == (path, "0.2/it's 2")
        tab.close()


def printed_url(words: list[str]) -> str:
    """The URL that a command prints; the viewer that it starts is ended."""
    process = subprocess.Popen([sys.executable, "-m", "karat", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        text = ""
        while "}" not in text:
            line = process.stdout.readline()
            assert line, text
            text += line
        return str(json.loads(text)["url"])
    finally:
        process.terminate()
        process.wait(60)


def test_labels_with_dots_and_commas_are_addresses(tab, sample):
    labels = ["v1..2", "b, c."]
    for run, label in zip(sample.runs, labels, strict=False):
        sample.store.tag(run.id, [label])
    try:
        page = tab.open(f"/s/{','.join(map(quote, labels))}?by=topic", "[data-row]")
        assert page.locator("thead th").count() == 6
        page.click("nav >> text=Compare")
        page.wait_for_selector(".chip")
        assert page.evaluate("document.title.length") > 0
        page.click("nav >> text=Cost")
        page.wait_for_selector("h1")
        page.click("nav >> text=Rows")
        until(page, f"document.querySelector('.head code')?.innerText === '{sample.runs[1].id}'")
        page = tab.open("/c/v1..2..b, c.", ".chip")
        assert page.locator(".problem").count() == 0
    finally:
        for run, label in zip(sample.runs, labels, strict=False):
            sample.store.tag(run.id, [], remove=[label])


def test_question_mark_shows_the_keys(tab):
    from tests.browser import violations

    page = tab.open("/")
    page.keyboard.press("?")
    page.wait_for_selector("[role=dialog]")
    assert page.locator("[role=dialog] kbd").count() == 9
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.wait_for_selector("[role=dialog]", state="detached")


def test_the_keys_on_a_comparison(tab, sample):
    first, _, third = (run.id for run in sample.runs)
    page = tab.open(f"/c/{first}..{third}", ".row a")
    page.keyboard.press("j")
    until(page, "document.querySelector('.item h2')?.innerText.includes('ticket-000')")
    page.keyboard.press("j")
    until(page, "document.querySelector('.item h2').innerText.includes('ticket-001')")
    page.keyboard.press("k")
    until(page, "document.querySelector('.item h2').innerText.includes('ticket-000')")
    page.keyboard.press("Enter")
    until(page, "location.search.includes('open=1')")
    page.keyboard.press("x")
    until(page, "!location.search.includes('open')")
    page.keyboard.press("x")
    until(page, "!location.search.includes('key')")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    until(page, f"location.pathname === '/c/{third}..{first}'")


def test_w_on_a_run_opens_what_got_worse_since_the_run_before(tab, sample):
    _, second, third = (run.id for run in sample.runs)
    page = tab.open(f"/r/{third}", ".row a")
    page.keyboard.press("w")
    until(page, f"location.pathname === '/c/{second}..{third}'")
    page.wait_for_selector(".row a")
    page.keyboard.press("w")
    page.wait_for_selector(".item h2")
    assert "worse" in page.inner_text(".item h2")


def test_w_finds_the_next_of_many_regressions(browser, tmp_path):
    def answer(number, bad):
        return number if not bad or 600 <= number < 1000 else -1

    with karat.open_store(tmp_path / "many.db") as store:
        data = karat.Dataset.from_examples(
            [{"id": f"n{n}", "input": n, "expected": n} for n in range(1010)], name="numbers"
        )
        runs = [
            karat.run(FunctionTask(answer, parameters={"bad": bad}), data, store=store, progress=False)
            for bad in (False, True)
        ]
        karat.evaluate(runs, ["exact_match"], progress=False)
        with served(store.url) as viewer:
            tab = Tab(browser, viewer)
            pair = "..".join(run.id for run in runs)
            for key, following in (("900.1", "n1000"), ("1005.1", "n1006"), ("3.1", "n4")):
                page = tab.open(f"/c/{pair}?key={key}", ".item h2")
                page.wait_for_selector(".row a")
                page.keyboard.press("w")
                until(page, f"document.querySelector('.item h2').innerText.startsWith('{following} ')")
            tab.close()
