"""Every page of the viewer in a real browser: what it shows, where its numbers lead, and who can read it."""

from __future__ import annotations

import re
import threading

import pytest

import karat
from karat.tasks import FunctionTask
from tests.browser import violations
from tests.view.browser.conftest import Tab, served, until
from tests.view.conftest import forget_columns


def addresses(sample):
    """Every page, with and without an open item."""
    a, b, c = (run.id for run in sample.runs)
    d, e = (run.id for run in sample.agents)
    return {
        "home": "/",
        "home, selected": f"/?select={a},{b}",
        "rows": f"/r/{b}",
        "item": f"/r/{b}?filter=judged%3C0.5&key=14.1",
        "failed item": f"/r/{e}?filter=status%3Afailed&key=0.1",
        "trajectory": f"/r/{d}?key=3.1",
        "comparison": f"/c/{a}..{c}",
        "compared item": f"/c/{a}..{c}?filter=changed:worse&key=6.1&open=1",
        "compared calls": f"/c/{d}..{e}?key=3.1",
        "slices": f"/s/{a},{c}?by=language",
        "slices of one run": f"/s/{a}?by=topic&evaluator=judged",
        "failures": f"/f/{c}",
        "performance": f"/p/{a},{b},{c}",
    }


PAGES = [
    *("home", "home, selected", "rows", "item", "failed item", "trajectory", "comparison", "compared item"),
    *("compared calls", "slices", "slices of one run", "failures", "performance"),
]


def open_page(tab, sample, name):
    page = tab.open(addresses(sample)[name])
    if "key=" in addresses(sample)[name]:
        page.wait_for_selector(".item h2")
    if name in ("rows", "comparison") or "key=" in addresses(sample)[name]:
        page.wait_for_selector(".row a, .rows p")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_accessible_and_quiet(browser, viewer, sample, name, scheme):
    tab = Tab(browser, viewer, color_scheme=scheme)
    page = open_page(tab, sample, name)
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert violations(page) == []
    tab.close()


@pytest.mark.parametrize("name", PAGES)
def test_every_page_can_be_read_at_200_percent(browser, viewer, sample, name):
    """At 200 % zoom a window of 1280 × 860 has 640 × 430 CSS pixels: nothing is cut off to the right."""
    tab = Tab(browser, viewer, viewport={"width": 640, "height": 430}, device_scale_factor=2)
    path = addresses(sample)[name]
    page = tab.open(path + ("&open=1" if "key=" in path and "open=" not in path else ""))
    if "key=" in path:
        page.wait_for_selector(".item h2")
    assert page.evaluate("document.documentElement.scrollWidth") <= 640
    assert page.evaluate("document.querySelector('main').scrollWidth") <= 640
    assert violations(page) == []
    tab.close()


def shown(page):
    """How many rows the list says it shows, of how many."""
    until(page, "/\\d+ of \\d+ row/.test(document.body.innerText)")
    found = re.search(r"([\d,]+) of ([\d,]+) row", page.inner_text("main"))
    assert found
    return int(found[1].replace(",", "")), int(found[2].replace(",", ""))


def test_the_list_of_runs_has_status_counts_scores_and_settings(tab, sample):
    page = tab.open("/")
    text = page.inner_text("main")
    for expected in (
        "support@1",
        "orders@1",
        "medium",
        "partial",
        "intent accuracy",
        "$0.",
        "reply_words mean",
    ):
        assert expected in text
    assert page.locator("svg.plot").count() >= 1
    for run in sample.runs:
        assert run.id in text


def test_every_count_of_a_run_opens_its_rows(tab, sample):
    run = sample.runs[2]
    for name in ("ok", "failed"):
        page = tab.open("/")
        count = getattr(run.counts, name)
        page.click(f'a[href="/r/{run.id}?filter=status%3A{name}"]')
        assert shown(page) == (count, run.counts.total)


def test_an_estimate_opens_its_rows_and_the_missing_ones(tab, sample):
    run = sample.runs[2]
    page = tab.open("/")
    page.click(f'.missing[href*="{run.id}"] >> nth=0')
    assert shown(page) == (run.counts.failed, run.counts.total)
    page = tab.open("/")
    page.click(f'.estimate a[href*="{run.id}"] >> nth=0')
    assert shown(page) == (run.counts.total, run.counts.total)


def test_items_that_an_evaluator_does_not_apply_to_are_not_missing(browser, tmp_path):
    from karat.errors import NotApplicable

    def even(outputs):
        if outputs % 3 == 0:
            raise NotApplicable("a multiple of three")
        return float(outputs % 2 == 0)

    def count(number):
        return 1 // 0 if number == 7 else number

    with karat.open_store(tmp_path / "na.db") as store:
        data = karat.Dataset.from_examples(
            [{"input": n, "metadata": {"size": "small" if n < 6 else "large"}} for n in range(12)],
            name="numbers",
        )
        run = karat.run(count, data, store=store, progress=False)
        karat.evaluate(run, [even], store=store, progress=False)
        with served(store.url) as viewer:
            tab = Tab(browser, viewer)
            page = tab.open(f"/r/{run.id}", ".estimate")
            page.click(".missing >> nth=0")
            until(page, "document.body.innerText.includes('1 of 12 rows')")
            page = tab.open(f"/r/{run.id}", ".estimate")
            page.click(".estimate a >> nth=0")
            until(page, "document.body.innerText.includes('8 of 12 rows')")
            page = tab.open(f"/s/{run.id}?by=size", ".estimate")
            page.click("tr:has-text('small') .estimate a")
            until(page, "document.body.innerText.includes('4 of 12 rows')")
            tab.close()


def test_every_number_of_the_slices_opens_its_rows(tab, sample):
    a, c = sample.runs[0].id, sample.runs[2].id
    page = tab.open(f"/s/{a},{c}?by=language", "tbody tr")
    targets = page.eval_on_selector_all(
        "tbody a", "all => all.map((each) => [each.getAttribute('href'), each.innerText])"
    )
    items = {"en": 72, "de": 24, "fr": 24}
    first = [row.split()[0] for row in page.locator("tbody tr").all_inner_texts()]
    assert sorted(first) == sorted(items)
    checked = 0
    for href, text in targets:
        if text in items:
            page = tab.open(href)
            assert shown(page)[0] == items[text]
            checked += 1
        elif "missing" in text:
            page = tab.open(href)
            assert shown(page)[0] == int(text.split()[0])
            checked += 1
    assert checked >= 3


def test_every_number_of_cost_and_time_opens_its_rows(tab, sample):
    run = sample.runs[2]
    page = tab.open(f"/p/{','.join(each.id for each in sample.runs)}", "tbody tr")
    row = page.locator(f"tbody tr:has(a[data-row='{run.id}'])")
    cells = row.locator("td.n")
    assert cells.count() == 7, "cost twice, tokens twice, median, p95 and waiting"
    targets = [cells.nth(place).locator("a").get_attribute("href") for place in range(7)]
    for href in targets[:5]:
        assert shown(tab.open(href)) == (run.counts.total, run.counts.total)
    few, total = shown(tab.open(targets[5]))
    assert 1 <= few <= total / 10, "the slowest"


def test_the_difference_of_a_comparison_opens_what_was_compared(tab, sample):
    a, c = sample.runs[0].id, sample.runs[2].id
    page = tab.open(f"/c/{a}..{c}", ".chip")
    better, worse, same, missing = (int(text.split()[-1]) for text in page.locator(".chip").all_inner_texts())
    assert missing
    for path in (f"/c/{a}..{c}", f"/s/{a},{c}?by=topic"):
        page = tab.open(path, "a strong")
        page.click("a:has(strong)")
        until(page, "document.location.search.includes('changed')")
        until(page, f"document.body.innerText.includes('{better + worse + same} of')")


def test_contributions_add_up_to_the_difference(tab, sample):
    a, c = sample.runs[0].id, sample.runs[2].id
    page = tab.open(f"/s/{a},{c}?by=topic", "tbody tr")
    whole = float(page.inner_text("p strong"))
    parts = [float(cell) for cell in page.locator("tbody td:last-child").all_inner_texts()]
    assert abs(sum(parts) - whole) < 0.003


def test_every_kind_of_failure_opens_exactly_its_rows(tab, sample):
    page = tab.open(f"/f/{sample.runs[2].id}", ".kind")
    kinds = page.eval_on_selector_all(
        ".kind h2", "all => all.map((each) => [each.querySelector('a').getAttribute('href'), each.innerText])"
    )
    assert kinds
    for href, text in kinds:
        page = tab.open(href)
        assert shown(page)[0] == int(text.split()[-1])


def test_the_changes_of_a_comparison_are_filters(tab, sample):
    a, c = sample.runs[0].id, sample.runs[2].id
    page = tab.open(f"/c/{a}..{c}", ".chip")
    total = 0
    for place in range(4):
        chip = page.locator(".chip").nth(place)
        count = int(chip.inner_text().split()[-1])
        chip.click()
        page.wait_for_selector(".chip[aria-current]")
        until(page, f"document.body.innerText.includes('{count} of 120 rows')")
        total += count
        page.locator(".chip").nth(place).click()
        until(page, "document.body.innerText.includes('120 of 120 rows')")
    assert total == 120


def test_an_item_shows_output_beside_expected_with_a_diff_results_and_raw(tab, sample):
    run = sample.runs[1]
    page = tab.open(f"/r/{run.id}?filter=judged%3C0.5", ".row a")
    page.click(".row a >> nth=0")
    page.wait_for_selector(".item del")
    page.wait_for_selector(".item ins")
    text = page.inner_text(".item")
    for expected in ("Expected", "Output", "Reasoning", "contradicts the reference", "judged", "Raw record"):
        assert expected in text
    assert "key=" in page.url


@pytest.mark.parametrize("name", ["home", "rows", "item", "compared item", "trajectory"])
def test_no_mark_beside_a_score_looks_like_a_verdict(tab, sample, name):
    page = open_page(tab, sample, name)
    text = page.inner_text("main")
    assert "✓" not in text
    if name == "rows":
        worst = page.locator(".row .score b.bad").first
        assert float(worst.inner_text()) == 0.0


def test_a_trajectory_is_shown_as_steps_and_calls_are_aligned(tab, sample):
    careful, other = sample.agents
    page = tab.open(f"/r/{careful.id}?key=3.1", ".steps")
    assert "find_order" in page.inner_text(".steps >> nth=0")
    page = tab.open(f"/c/{careful.id}..{other.id}?key=3.1", ".item table")
    text = page.inner_text(".item")
    assert "Tool calls" in text
    assert "find_order" in text
    assert page.locator(".item tr.divergence").count() == 0, "the calls are the same"
    page = tab.open(f"/c/{careful.id}..{other.id}?key=1.1", ".item tr.divergence")
    assert page.locator(".item tr.divergence").count() == 1
    assert "first divergence" in page.inner_text(".item tr.divergence")


def test_failures_come_before_the_skips_that_follow_from_them(tab, sample):
    run = sample.runs[2]
    page = tab.open(f"/f/{run.id}", ".kind")
    text = page.inner_text("main")
    assert re.search(rf"{run.counts.failed} outputs? .*failed\. \d+ results were skipped\.", text)
    assert text.index("failed") < text.index("Skipped")
    link = page.locator("h2:has-text('Skipped') + ul a[data-row]").first
    count = int(link.inner_text().replace(",", ""))
    link.click()
    assert shown(page)[0] == count


def test_a_narrow_page_keeps_plots_and_scores_readable(browser, viewer, sample):
    tab = Tab(browser, viewer, viewport={"width": 700, "height": 800})
    page = tab.open("/", "svg.plot")
    plot = "document.querySelector('svg.plot')"
    scale = f"{plot}.getBoundingClientRect().width / {plot}.getAttribute('width')"
    assert page.evaluate(scale) >= 0.84
    assert page.evaluate("document.querySelector('td.scores').getBoundingClientRect().width") > 200
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    tab.close()


def test_the_address_is_the_whole_state(tab, sample, browser, viewer):
    run = sample.runs[1]
    page = tab.open(f"/r/{run.id}", ".row a")
    page.fill("#filter", "topic:refund judged<0.5")
    page.press("#filter", "Enter")
    until(page, "location.search.includes('filter=')")
    page.select_option("select", "-seconds")
    until(page, "location.search.includes('sort=')")
    page.click(".row a >> nth=0")
    page.wait_for_selector(".item h2")
    before = (shown(page), page.inner_text(".item h2"))
    other = Tab(browser, viewer)
    again = other.open(page.url.removeprefix(viewer.url), ".item h2")
    assert (shown(again), again.inner_text(".item h2")) == before
    other.close()
    page.go_back()
    until(page, "!location.search.includes('key=')")
    page.go_back()
    until(page, "!location.search.includes('sort=')")


def test_a_wrong_filter_or_run_is_refused(browser, viewer, sample):
    tab = Tab(browser, viewer)
    page = tab.open(f"/r/{sample.runs[0].id}?filter=nothing%3C%3C", ".problem")
    assert page.locator(".problem").inner_text()
    page = tab.open("/r/run-unknown", ".problem")
    page = tab.open("/c/one", ".problem")
    page = tab.open("/r/%E0%A4", ".problem")
    tab.context.close()  # the browser reports answers of 400 and 404 on its console
    assert tab.watched.foreign == []
    assert all("status of 40" in problem for problem in tab.watched.problems)


def test_the_policy_forbids_scripts_and_markup_from_strings(browser, viewer):
    tab = Tab(browser, viewer)
    page = tab.open("/")
    assert (
        page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>'; return 'set' } catch (e) { return e.name } }"
        )
        == "TypeError"
    )
    script = (
        "() => { try { document.createElement('script').textContent = '1' } catch (e) { return e.name } }"
    )
    assert page.evaluate(script) == "TypeError"
    page.evaluate(
        "() => { const s = document.createElement('img'); s.src = 'http://127.0.0.1:9/x.png'; document.body.append(s) }"
    )
    page.wait_for_timeout(200)
    tab.context.close()
    assert any("Content Security Policy" in problem for problem in tab.watched.problems)


def test_numbers_are_rounded_as_in_the_terminal(tab):
    values = [place / 16 for place in range(-40, 40)] + [place / 2000 for place in range(-300, 300)]
    values += [0.8125, 2.675, 12.25, 12.35, 1000.5, 1001.5, -1000.5, 1e-9]
    page = tab.open("/")
    found = page.evaluate(
        "async (values) => { const { number } = await import('/static/lib.js'); return values.map((v) => number(v)); }",
        values,
    )
    wanted = [f"{v:.{0 if abs(v) >= 1000 else 1 if abs(v) >= 10 else 3}f}" for v in values]
    assert [text.replace("-0.000", "0.000") for text in found] == [
        text.replace("-0.000", "0.000") for text in wanted
    ]


def test_a_hidden_page_sends_no_requests(browser, tmp_path):
    with karat.open_store(tmp_path / "live.db") as store:
        data = karat.Dataset.from_examples([{"input": n} for n in range(5)], name="numbers")
        karat.run(lambda number: number, data, store=store, progress=False)
        with served(store.url) as viewer:
            tab = Tab(browser, viewer)
            tab.page.clock.install()
            page = tab.open("/")
            until(page, "document.querySelectorAll('[data-row]').length === 1")
            page.evaluate(
                "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true})"
            )
            page.evaluate("window.away = true")
            page.clock.fast_forward(11_000)  # the timer that was set before it was hidden
            asked = []
            page.on("request", lambda request: asked.append(request.url))
            page.clock.fast_forward(60_000)
            assert asked == []
            karat.run(lambda number: -number, data, store=store, progress=False)
            page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
            until(page, "document.querySelectorAll('[data-row]').length === 2")
            tab.close()


def test_news_from_the_store_appear_by_themselves(browser, tmp_path):
    with karat.open_store(tmp_path / "live.db") as store:
        data = karat.Dataset.from_examples([{"input": n} for n in range(5)], name="numbers")
        karat.run(lambda number: number, data, store=store, progress=False)
        with served(store.url) as viewer:
            tab = Tab(browser, viewer)
            tab.page.clock.install()
            page = tab.open("/")
            until(page, "document.querySelectorAll('[data-row]').length === 1")
            karat.run(lambda number: -number, data, store=store, progress=False)
            page.clock.fast_forward(11_000)
            until(page, "document.querySelectorAll('[data-row]').length === 2")
            tab.close()


def test_an_older_store_is_shown_while_its_columns_are_built(browser, tmp_path, gate):
    with karat.open_store(tmp_path / "old.db") as store:
        data = karat.Dataset.from_examples([{"id": f"n{n}", "input": n} for n in range(60)], name="numbers")
        run = karat.run(lambda number: 1 / (number % 20), data, store=store, progress=False)
        url = store.url
    forget_columns(tmp_path / "old.db")
    with served(url) as viewer:
        tab = Tab(browser, viewer)
        page = tab.open(f"/r/{run.id}", ".row a")
        page.wait_for_selector(".building progress")
        assert run.id in page.inner_text(".building")
        assert "1 of 60 rows" not in page.inner_text("main")
        page.fill("#filter", "status:failed")
        page.press("#filter", "Enter")
        until(page, "document.querySelector('.rows').innerText.includes('being built')")
        assert violations(page) == []
        gate.set()
        until(page, "document.querySelectorAll('.row a').length === 3")
        until(page, "document.querySelector('.building') === null")
        tab.close()


def test_long_texts_are_folded_and_attempts_are_distinguished(browser, tmp_path):
    name = "an-example-with-an-identifier-that-is-much-longer-than-its-place-in-a-narrow-list"
    start = "You are an assistant that answers questions, and whatever you are asked, you answer "
    with karat.open_store(tmp_path / "long.db") as store:
        data = karat.Dataset.from_examples(
            [{"id": name, "input": "a", "expected": "the last word"}, {"id": "bad", "input": "b"}]
        )

        def answer(text: str, prompt: str) -> str:
            if text == "b":
                raise ValueError("no answer")
            return "a long paragraph that goes on. " * 200 + "the last word"

        tasks = [FunctionTask(answer, parameters={"prompt": start + how}) for how in ("kindly", "rudely")]
        first, _ = (karat.run(task, data, store=store, attempts=2, progress=False) for task in tasks)
        with served(store.url) as viewer:
            tab = Tab(browser, viewer, viewport={"width": 800, "height": 860})
            settings = [each.inner_text().split() for each in tab.page.locator("td.settings").all()]
            assert [words[-1] for words in settings] == ["rudely", "kindly"], "the part that differs is shown"
            page = tab.open(f"/r/{first.id}?key=0.1&open=1", ".item h2")
            assert page.query_selector(".item ins") is None, "nearly all of it would be marked"
            assert len(page.inner_text(".beside section:nth-child(2) pre")) < 3000
            page = tab.open(f"/r/{first.id}", ".row a")
            shown = page.locator(".row .part").all()
            assert [each.inner_text().strip() for each in shown] == ["· attempt 2"] * 2
            for each in shown:
                box = each.bounding_box()
                assert box["x"] + box["width"] <= 800, "it is in sight, whatever the length of the id"
            page = tab.open(f"/f/{first.id}", ".kind li")
            assert "bad · attempt 2" in page.inner_text(".kind")
            tab.close()


def test_more_steps_are_those_of_the_run_that_is_shown(browser, tmp_path):
    def talk(_, name):
        return [{"role": ("user", "assistant")[step % 2], "content": f"{name} {step}"} for step in range(450)]

    with karat.open_store(tmp_path / "steps.db") as store:
        runs = [
            karat.run(
                FunctionTask(talk, parameters={"name": name}),
                [{"id": "a", "input": "x"}],
                store=store,
                progress=False,
            )
            for name in ("anna", "berta")
        ]
        with served(store.url) as viewer:
            tab = Tab(browser, viewer)
            page = tab.open(f"/r/{runs[0].id}?key=0.1", ".steps")
            page.click("text=Show more of 450 steps")
            until(page, "document.querySelectorAll('.steps > li').length === 400")
            page.keyboard.press("]")
            until(page, "document.querySelector('.steps').innerText.includes('berta 0')")
            assert page.locator(".steps > li").count() == 200
            assert "anna" not in page.inner_text(".steps")
            tab.close()


def test_an_item_shows_tries_claims_and_comparisons(browser, tmp_path):
    tried = []

    def answer(text, end):
        tried.append(text)
        if end and len(tried) == 2:
            raise ValueError("not at once")
        return text + end

    def judge(outputs):
        claims = [{"claim": "water is wet", "verdict": "supported", "reason": "page 3"}]
        return karat.Result(
            "judge", 1.0, comment="fine", metadata={"reasoning": "step one", "claims": claims}
        )

    class Longer:
        version = "1"

        def compare(self, example, first, second):
            return "win" if len(first.value) > len(second.value) else "loss"

    with karat.open_store(tmp_path / "tries.db") as store:
        data = karat.Dataset.from_examples([{"id": "a", "input": "x"}], name="one")
        tasks = [FunctionTask(answer, parameters={"end": end}) for end in ("", "!")]
        runs = [karat.run(task, data, store=store, progress=False) for task in tasks]
        runs[1] = karat.run(
            tasks[1], data, store=store, progress=False, retry_failed=True, accept_code_change=True
        )
        karat.evaluate(runs, [judge, Longer()], progress=False)
        with served(store.url) as viewer:
            tab = Tab(browser, viewer)
            page = tab.open(f"/r/{runs[1].id}?key=0.1&open=1", ".item h2")
            text = page.inner_text(".item")
            for part in (
                "Tries",
                "not at once",
                "try 2",
                "step one",
                "water is wet supported page 3",
                "fine",
            ):
                assert part in text
            assert page.locator(".compared a").all_inner_texts() == [run.id for run in runs]
            assert page.inner_text(".compared strong") == "loss"
            page.click(".compared a >> nth=0")
            until(page, f"location.pathname === '/r/{runs[0].id}' && location.search.includes('key=0.1')")
            tab.close()


def test_a_run_that_is_going_on_is_live_and_its_pending_items_open(browser, tmp_path):
    reached, go_on = threading.Event(), threading.Event()

    def answer(number):
        if number == 3:
            reached.set()
            go_on.wait(60)
        return number

    def work():
        karat.run(answer, data, store=store, concurrency=1, progress=False)

    with karat.open_store(tmp_path / "live.db") as store:
        data = karat.Dataset.from_examples([{"id": f"n{n}", "input": n} for n in range(8)], name="numbers")
        worker = threading.Thread(target=work)
        worker.start()
        try:
            assert reached.wait(60)
            with served(store.url) as viewer:
                tab = Tab(browser, viewer)
                page = tab.open("/", "[data-row]")
                until(page, "document.querySelector('header [role=status]').innerText.includes('live')")
                assert "running" in page.inner_text("main")
                page.click('a[href$="filter=status%3Apending"]')
                assert shown(page) == (5, 8)
                go_on.set()
                worker.join(60)
                until(page, "document.body.innerText.includes('0 of 8 rows')")
                until(page, "document.querySelector('header [role=status]').innerText === ''")
                tab.close()
        finally:
            go_on.set()
            worker.join(60)


DRAWN = """async (url) => {
  const { marks } = (await (await fetch(url)).json()).plot;
  const places = {
    line: ['x1', 'y1', 'x2', 'y2'], rect: ['x', 'y', 'width', 'height'], circle: ['cx', 'cy'], text: ['x', 'y'],
  };
  const own = (each) => [...each.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data).join('');
  const drawn = [...document.querySelectorAll('svg.plot :is(line, rect, circle, text)')].map((each) => {
    const numbers = places[each.tagName].map((name) => Number(each.getAttribute(name)));
    return [each.tagName, ...numbers, each.tagName === 'text' ? own(each) : ''];
  });
  const wanted = marks.map((mark) => {
    const numbers = places[mark.kind].map((name) => mark[name.replace(/^c/, '')]);
    return [mark.kind, ...numbers, mark.kind === 'text' ? mark.text : ''];
  });
  return [drawn, wanted];
}"""


def test_a_plot_has_exactly_the_marks_of_the_server(tab, sample):
    a, c = sample.runs[0].id, sample.runs[2].id
    page = tab.open(f"/s/{a},{c}?by=language&evaluator=intent", "svg.plot")
    drawn, wanted = page.evaluate(DRAWN, f"/api/s?runs={a},{c}&by=language&evaluator=intent")
    assert len(wanted) > 10
    assert drawn == wanted
