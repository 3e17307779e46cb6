"""Make the pictures of the documentation: the HTML report and the pages of the viewer, of the sample store.

python bench/screenshots.py [docs/images]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser import launched  # noqa: E402
from tests.sample_store import Sample, sample_store  # noqa: E402

from karat.analysis.summary import summarise  # noqa: E402 - the tests' sample store is found by the path above
from karat.reporting.html_report import html_report  # noqa: E402
from karat.view.data import Viewer  # noqa: E402
from karat.view.server import Server  # noqa: E402

SIZE = {"width": 1180, "height": 720}
TALL = {"view-compare": {"width": 1180, "height": 860}}


def pages(sample: Sample) -> dict[str, tuple[str, str]]:
    """For each picture the address and what it waits for."""
    a, b, c = (run.id for run in sample.runs)
    return {
        "view-runs": (f"/?select={a},{c}", "svg.plot"),
        "view-rows": (f"/r/{b}?filter=judged%3C0.5&key=14.1", ".item ins"),
        "view-compare": (f"/c/{a}..{c}?filter=changed:worse&key=4.1", ".item ins"),
        "view-slices": (f"/s/{a},{c}?by=language", "svg.plot"),
    }


def main(folder: Path) -> None:
    """Write the pictures to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work, sample_store(Path(work)) as sample, launched() as browser:
        report = Path(work) / "report.html"
        document = html_report(sample.store, summarise(sample.store, [run.id for run in sample.runs]))
        report.write_text(document, encoding="utf-8")
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        server = Server(lambda: Viewer(sample.store.url))
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]  # a dict is enough
        page.goto(report.as_uri())
        page.screenshot(path=folder / "report.png")
        page.goto(server.url())
        page.wait_for_selector("h1")
        for name, (path, wait) in pages(sample).items():
            page.set_viewport_size(TALL.get(name, SIZE))  # type: ignore[arg-type]  # as above
            page.goto(f"http://{server.address}{path}")
            page.wait_for_selector(wait)
            page.wait_for_timeout(300)
            # The folder is another one each time.
            for place in page.locator("main > p code").all():
                place.evaluate("each => { each.textContent = 'sqlite:///results.db' }")
            page.screenshot(path=folder / f"{name}.png")
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
