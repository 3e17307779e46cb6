"""Strings from outside stay strings, on every page and in every field."""

from __future__ import annotations

import sys

import pytest

import karat
from karat.formatting import visible
from karat.tasks import FunctionTask
from tests.hostile import HOSTILE
from tests.view.browser.conftest import Tab, served, until

WORST = HOSTILE[2]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A store with hostile strings in every field."""
    examples = [
        {
            "id": f"{n} {text}",
            "input": text,
            "expected": text,
            "metadata": {"topic": text, text[:50] or "k": text},
        }
        for n, text in enumerate(HOSTILE)
    ]

    def grade(outputs, expected):
        if outputs == HOSTILE[4]:
            raise ValueError(WORST)
        metadata = {
            "reasoning": WORST,
            "claims": [{"claim": WORST, "verdict": WORST, "reason": WORST}],
            WORST: WORST,
        }
        return karat.Result(WORST, float(outputs == expected), outputs, comment=WORST, metadata=metadata)

    def answer(text, prompt):
        if text == HOSTILE[1]:
            raise ValueError(text)
        messages = [
            {"role": "user", "content": text},
            {"role": "assistant", "content": text, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": WORST, "arguments": '{"x": "<b>"}'}}]},
            {"role": "tool", "tool_call_id": "1", "content": text},
        ]  # fmt: skip
        return messages if len(text) % 2 else text + WORST

    folder = tmp_path_factory.mktemp("hostile")
    with karat.open_store(folder / "k.db") as store:
        data = karat.Dataset.from_examples(examples, name=HOSTILE[0])
        runs = [
            karat.run(
                FunctionTask(answer, name=HOSTILE[3], parameters={"prompt": text}),
                data, store=store, progress=False, labels=[WORST], description=WORST, metadata={WORST: WORST},
            )
            for text in (WORST, HOSTILE[12])
        ]  # fmt: skip
        evaluation = karat.evaluate(runs, [grade], store=store, progress=False)
        karat.aggregate(evaluation, ["mean", {"name": "mean", "key": WORST, "params": {"by": "topic"}}])
        with served(store.url) as viewer:
            yield viewer, [run.id for run in runs]


def check(page):
    assert page.evaluate("window.hacked") is None
    assert (
        page.evaluate("document.querySelectorAll('img, iframe, object, embed, script:not([src])').length")
        == 0
    )
    text = page.evaluate("document.body.textContent")
    assert not [c for c in text if c in "\x00\x1b\x7f\x9b\u202e\u2066\u200b\ufeff\u2028\u2029\u00ad"]
    for href in page.eval_on_selector_all("a[href]", "all => all.map((each) => each.getAttribute('href'))"):
        assert href.startswith("/")
        assert not href.startswith("//")


def test_no_page_runs_what_it_shows(browser, hostile):
    viewer, (first, second) = hostile
    tab = Tab(browser, viewer)
    for path in (
        "/",
        f"/r/{first}",
        f"/c/{first}..{second}",
        f"/s/{first},{second}?by=topic",
        f"/f/{first}",
        f"/p/{first},{second}",
    ):
        page = tab.open(path)
        until(page, "!document.body.innerText.includes('Loading …')")
        check(page)
    page = tab.open("/")
    assert "onerror=window.hacked" in page.inner_text("main")
    tab.close()


def test_no_item_runs_what_it_shows(browser, hostile):
    viewer, (first, second) = hostile
    tab = Tab(browser, viewer)
    for position in range(len(HOSTILE)):
        page = tab.open(f"/r/{first}?key={position}.1", ".item h2")
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        check(page)
        if HOSTILE[position].startswith("user\u202e"):
            assert "⟨U+202E⟩" in page.inner_text(".item")
    for position in range(0, len(HOSTILE), 5):
        page = tab.open(f"/c/{first}..{second}?key={position}.1", ".item h2")
        check(page)
    tab.close()


def test_hostile_filters_stay_in_the_box(browser, hostile):
    viewer, (first, _) = hostile
    tab = Tab(browser, viewer)
    for text in HOSTILE[:12]:
        page = tab.open(f"/r/{first}")
        page.fill("#filter", '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
        page.press("#filter", "Enter")
        until(page, "/\\d+ of \\d+ rows/.test(document.body.innerText) || document.querySelector('.problem')")
        check(page)
    tab.context.close()
    assert tab.watched.foreign == []


def test_the_browser_and_python_show_the_same_characters(browser, hostile):
    viewer, _ = hostile
    tab = Tab(browser, viewer)
    page = tab.open("/")
    for start in range(0, sys.maxunicode + 1, 0x8000):
        codes = [
            code
            for code in range(start, min(start + 0x8000, sys.maxunicode + 1))
            if not 0xD800 <= code < 0xE000
        ]
        shown = page.evaluate(
            "async (codes) => { const { visible } = await import('/static/lib.js');"
            " return codes.map((code) => visible('a' + String.fromCodePoint(code) + 'b')) }",
            codes,
        )
        assert shown == [visible(f"a{chr(code)}b") for code in codes]
    for text in ("👩\u200d👧", "می\u200cخواهم", "pass\u200dword", "\u200d", "क\u200dष", *HOSTILE):
        made = page.evaluate("async (text) => (await import('/static/lib.js')).visible(text)", text)
        assert made == visible(text)
    tab.close()


def test_a_command_that_is_copied_cannot_run_something_else(browser, hostile):
    import subprocess

    viewer, _ = hostile
    tab = Tab(browser, viewer)
    page = tab.open("/")
    for text in [*HOSTILE[:17], "a'b", "$(id)", "`id`", "a\nid\n", "-x", "~", "!!", "\\"]:
        if "\x00" in text:
            continue  # no argument of a program can hold it
        word = page.evaluate("async (text) => (await import('/static/lib.js')).shell(text)", text)
        assert not [c for c in word if c in "\n\r\x1b\u2028"]
        said = subprocess.run(
            ["bash", "-c", f"printf %s {word}"], capture_output=True, env={"LC_ALL": "C.UTF-8"}, check=True
        )
        if not text.startswith("-"):
            assert said.stdout.decode() == text
    tab.close()
