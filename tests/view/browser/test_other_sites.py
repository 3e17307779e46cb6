"""Other sites, other names of this machine and guessed tokens get nothing from the viewer, in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from tests.view.browser.conftest import Served, Tab, until


class Page(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>other</title><h1>other</h1>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def other() -> Iterator[int]:
    """The port of another server on this machine, as any program may run one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join(30)
    server.server_close()


READ = """async (url) => {
  const tried = {};
  for (const mode of ['cors', 'no-cors']) {
    try {
      const answer = await fetch(url, { mode, credentials: 'include' });
      tried[mode] = [answer.status, await answer.text()];
    } catch (error) { tried[mode] = error.name; }
  }
  return tried;
}"""
EMBED = """(url) => {
  for (const [tag, name] of [['img', 'src'], ['script', 'src'], ['iframe', 'src'], ['link', 'href']]) {
    const made = document.createElement(tag);
    if (tag === 'link') made.rel = 'stylesheet';
    made[name] = url;
    document.body.append(made);
  }
}"""


@pytest.mark.parametrize("host", ["127.0.0.1", "evil.localhost"])
def test_a_page_of_another_origin_reads_and_embeds_nothing(browser, viewer, other, host):
    """Another port of the same address is the same site: there the browser sends the cookie along."""
    tab = Tab(browser, viewer)
    page = tab.page
    outcomes: dict[str, list[int | str]] = {}
    page.on("response", lambda answer: outcomes.setdefault(answer.url, []).append(answer.status))
    page.on("requestfailed", lambda asked: outcomes.setdefault(asked.url, []).append(str(asked.failure)))
    page.goto(f"http://{host}:{other}/")
    api, script = f"{viewer.url}/api/runs", f"{viewer.url}/static/app.js"
    assert page.evaluate(READ, api) == {"cors": "TypeError", "no-cors": "TypeError"}
    page.evaluate(EMBED, script)
    for _ in range(800):
        if len(outcomes.get(script, [])) >= 4:
            break
        page.wait_for_timeout(25)
    asked = [*outcomes[api], *outcomes[script]]
    assert len(outcomes[api]) == 2
    assert len(outcomes[script]) >= 4
    assert [each for each in asked if each != 403 and not str(each).startswith("net::ERR_")] == []
    tab.context.close()


def test_another_name_for_this_machine_is_refused(browser, viewer: Served):
    """DNS rebinding: the name of another site leads to this machine, and the page would be of the same origin."""
    tab = Tab(browser, viewer)
    port = urlsplit(viewer.url).port
    for name in ("evil.localhost", "localhost"):
        for path in ("/", f"/?token={viewer.token}", "/api/runs", "/static/app.js"):
            answer = tab.page.goto(f"http://{name}:{port}{path}")
            assert answer.status == 421, (name, path)
    assert {cookie["domain"] for cookie in tab.context.cookies()} == {"127.0.0.1"}
    tab.context.close()


def test_only_the_right_token_opens_the_viewer_and_it_leaves_the_address(browser, viewer: Served):
    context = browser.new_context()
    page = context.new_page()
    for path in ("/", "/api/runs", "/?token=", "/?token=guess", f"/?token={viewer.token[:-1]}"):
        assert page.goto(viewer.url + path).status == 401, path
    assert context.cookies() == []
    page.goto(f"{viewer.url}/?token={viewer.token}")
    page.wait_for_selector("h1")
    until(page, "!location.href.includes('token')")
    [cookie] = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert viewer.token not in cookie["value"]
    assert page.evaluate("document.cookie") == ""
    context.close()
