"""What a notebook shows: tables of datasets, runs, evaluations, aggregations, comparisons, rankings, and progress."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

import karat

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31m \u202e & ' \""
HARMLESS = {
    "div",
    "p",
    "strong",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "ins",
    "del",
    "h3",
    "h4",
    "progress",
}


class Tags(HTMLParser):
    """The elements and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def made(tmp_path):
    rows = [
        {"id": f"{EVIL}{n}", "input": EVIL, "expected": EVIL, "metadata": {"topic": EVIL}} for n in range(12)
    ]
    data = karat.Dataset.from_examples(rows, name="evil")
    store = f"sqlite:///{tmp_path}/karat.db"

    def echo(text):
        return text

    def other(text):
        return EVIL[::-1]

    runs = [karat.run(task, data, store=store) for task in (echo, other)]
    evaluation = karat.evaluate(runs, ["exact_match"])
    return {
        "dataset": data,
        "stored dataset": runs[0].dataset,
        "run": runs[0],
        "evaluation": evaluation,
        "aggregation": karat.aggregate(evaluation, ["accuracy"]),
        "comparison": karat.compare(runs),
        "ranking": karat.rank(runs, metric="exact_match"),
    }


@pytest.mark.parametrize(
    "kind", ["dataset", "stored dataset", "run", "evaluation", "aggregation", "comparison", "ranking"]
)
def test_notebook_output_is_escaped_and_has_no_script(made, kind):
    page = Tags(made[kind]._repr_html_())
    assert page.elements <= HARMLESS
    assert page.attributes <= {"class", "style"}
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text
    if kind not in ("aggregation", "ranking"):
        assert "<script>alert(1)</script>" in page.text, "it is there, as text"


def test_a_long_dataset_says_how_much_more_there_is(made):
    assert "and 2 more" in made["dataset"]._repr_html_()
    assert "and 2 more" in made["run"]._repr_html_()


KERNEL = """
import karat, time
async def work(text):
    return text.upper()
run = karat.run(work, [{"id": str(n), "input": "x<b>"} for n in range(20)], store="memory://", progress=True)
run
"""


def test_progress_and_results_are_shown_in_a_notebook(tmp_path):
    """In a real kernel, which has a running event loop: the bar is displayed, updated in place and ends full."""
    manager = pytest.importorskip("jupyter_client").KernelManager()
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        messages: list[dict[str, Any]] = []
        reply = client.execute_interactive(KERNEL, timeout=120, output_hook=messages.append)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
    shown = [m["content"]["data"]["text/html"] for m in messages if m["msg_type"] == "display_data"]
    updates = [m["content"]["data"]["text/html"] for m in messages if m["msg_type"] == "update_display_data"]
    assert len(shown) == 1
    assert "<progress value='20' max='20'>" in [*shown, *updates][-1]
    [result] = [m["content"]["data"] for m in messages if m["msg_type"] == "execute_result"]
    assert "20 items: 20 ok" in result["text/html"]
    assert "X&lt;B&gt;" in result["text/html"]


@pytest.mark.parametrize("kind", ["comparison", "ranking"])
def test_a_comparison_is_printed_as_its_report_and_shown_in_a_shell_as_its_conclusion(made, kind):
    shown = made[kind]
    assert str(shown) == shown.report()
    assert repr(shown) == f"<{kind} {shown.id}: {' '.join(shown.conclusions)}>"
    assert "\x1b" not in repr(shown)
