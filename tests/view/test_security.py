"""Access control: only the user's browser, at the exact address, with the cookie."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from karat.errors import StoreError, StoreRefused
from karat.store import open_store
from karat.view import server
from karat.view.server import HEADERS, static_files
from tests.view.conftest import Served, World


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, serve: Callable[[str], Served]) -> Served:
    path = f"sqlite:///{tmp_path_factory.mktemp('store')}/karat.db"
    with open_store(path) as store:
        World(store)
    return serve(path)


PAGES = [
    "/",
    "/r/run-1",
    "/c/a..b",
    "/s/a,b?by=topic",
    "/f/run-1",
    "/p/a",
    "/api/runs",
    "/api/changes",
    "/nothing",
]


@pytest.mark.parametrize("path", [*PAGES, "/static/index.html"])
def test_nothing_is_answered_without_the_cookie(served, path):
    assert served.ask(path, signed_in=False).status == 401
    assert served.ask(path, {"Cookie": f"{served.server.cookie}=guess"}, signed_in=False).status == 401
    assert served.ask(path, {"Cookie": f"{served.server.cookie}="}, signed_in=False).status == 401


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", "localhost:{port}",
     "[::1]:{port}", "", "127.0.0.1:{port}, evil.example", "127.1:{port}", "0.0.0.0:{port}"],
)  # fmt: skip
def test_only_the_exact_host_is_answered(served, host):
    for path in ("/", "/api/runs"):
        status = served.ask(path, host=host.format(port=served.server.port)).status
        assert status == (421 if host else 400), "without a Host it is no HTTP/1.1"
    assert served.ask("/api/runs").status == 200


def test_two_hosts_are_refused(served):
    with socket.create_connection(("127.0.0.1", served.server.port), timeout=20) as connection:
        connection.sendall(
            f"GET /api/runs HTTP/1.1\r\nHost: {served.address}\r\nHost: evil.example\r\nCookie: {served.cookie}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        status = connection.recv(4096).split()[1]
    assert status in (b"400", b"421")


def raw_answer(served: Served, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes, and read the whole answer."""
    received = b""
    with socket.create_connection(("127.0.0.1", served.server.port), timeout=20) as connection:
        connection.sendall(request)
        while data := connection.recv(65536):
            received += data
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


def signed(served: Served, target: str, *more: bytes) -> bytes:
    lines = [f"GET {target} HTTP/1.1", f"Host: {served.address}", "Connection: close"]
    if not any(line.startswith(b"Cookie") for line in more):
        lines.append(f"Cookie: {served.cookie}")
    return b"\r\n".join([*(line.encode() for line in lines), *more, b"", b""])


@pytest.mark.parametrize("place", ["http://evil.example", "http://{address}", "http://a:b@{address}"])
def test_a_target_that_names_a_host_is_refused(served, place):
    target = place.format(address=served.address) + "/api/runs"
    status, headers, _ = raw_answer(served, signed(served, target))
    assert status == 421
    assert HEADERS.items() <= headers.items()


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x00\xff<b>echo</b>\r\n\r\n", b"FOO /echo HTTP/1.1\r\n\r\n", b"GET /echo HTTP/1.1\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: x\r\n<b>echo\r\n\r\n", b"GET /\xffecho HTTP/1.1\r\nHost: x\r\n\r\n",
     b"GET /echo" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"],
)  # fmt: skip
def test_a_request_that_is_not_http_is_not_echoed(served, request_bytes):
    status, headers, body = raw_answer(served, request_bytes)
    assert status == 400
    assert HEADERS.items() <= headers.items()
    assert headers["Content-Type"].startswith("application/json")
    assert b"echo" not in body


def test_an_expectation_that_is_refused_gets_the_headers(served):
    status, headers, _ = raw_answer(served, signed(served, "/api/runs", b"Expect: something"))
    assert status == 417
    assert HEADERS.items() <= headers.items()


def test_a_cookie_that_is_not_utf8_is_a_wrong_cookie(served):
    cookie = f"Cookie: {served.server.cookie}=".encode() + b"\xff\xfe"
    assert raw_answer(served, signed(served, "/api/runs", cookie))[0] == 401


def test_a_failure_of_the_viewer_is_an_error_with_the_headers(served, monkeypatch):
    def fail() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(served.server.viewer, "changes", fail)
    answer = served.ask("/api/changes", {"Accept": "text/html"})
    assert answer.status == 500
    assert list(answer.json) == ["error"]
    assert b"secret" not in answer.body
    assert HEADERS.items() <= dict(answer.headers).items()


def test_no_answer_names_the_versions_of_the_server(served):
    for path in ("/", "/api/runs", "/nothing", "/static/none.js"):
        server = served.ask(path).headers["Server"]
        assert "Python" not in server
        assert "aiohttp" not in server


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1:1",
        "http://localhost:{port}",
    ],
)
def test_other_origins_are_refused(served, origin):
    assert served.ask("/api/runs", {"Origin": origin.format(port=served.server.port)}).status == 403
    assert served.ask("/api/runs", {"Origin": f"http://{served.address}"}).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_requests_of_other_sites_are_refused(served, site):
    for path in ("/", "/api/runs"):
        assert served.ask(path, {"Sec-Fetch-Site": site}).status == 403
    for site in ("same-origin", "none"):
        assert served.ask("/api/runs", {"Sec-Fetch-Site": site}).status == 200


def test_a_link_of_another_site_opens_a_page_only_with_the_token(served):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert served.ask(f"/?token={served.server.token}", link, signed_in=False).status == 200
    assert served.ask("/?token=wrong", link, signed_in=False).status == 403
    image = {**link, "Sec-Fetch-Dest": "image"}
    assert served.ask(f"/?token={served.server.token}", image, signed_in=False).status == 403


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(served):
    answer = served.ask(f"/r/run-1?by=%22%3E%3Cscript%3E&token={served.server.token}", signed_in=False)
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert served.server.token not in cookie
    assert served.server.token.encode() not in answer.body
    assert b"<script>" not in answer.body
    assert b"url=/r/run-1?by=" in answer.body
    assert served.ask(f"/api/runs?token={served.server.token}", signed_in=False).status == 401
    assert served.ask("/?token=%ED%A0%80%FF", signed_in=False).status == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_get_and_head_are_answered(served, method):
    answer = served.ask("/api/runs", method=method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"
    assert served.ask("/api/runs", method="HEAD").status == 200


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py", "/static//etc/passwd",
     "/static/%2fetc%2fpasswd", "/static/..\\server.py", "/static/index.html%00.js", "/static/./index.html",
     "/static/", "/static", "/../../etc/passwd", "//etc/passwd", "/static/%252e%252e/server.py", "/data.py"],
)  # fmt: skip
def test_no_path_reaches_the_file_system(served, path):
    assert served.ask(path).status in (400, 404)


def test_static_files_come_from_a_fixed_table_with_their_types(served):
    for name, file in static_files().items():
        answer = served.ask(f"/static/{name}")
        assert (answer.status, answer.body) == (200, file.body)
        assert answer.headers["Content-Type"] == file.type
        again = served.ask(f"/static/{name}", {"If-None-Match": answer.headers["ETag"]})
        assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize("path", [*PAGES, "/static/none.js"])
def test_every_answer_has_the_headers(served, path):
    for signed_in in (True, False):
        answer = served.ask(path, signed_in=signed_in)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "Server" not in answer.headers or "karat" not in answer.headers["Server"]
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "require-trusted-types-for 'script'" in policy


def test_the_headers_are_those_that_the_documentation_names(served):
    headers = served.ask("/").headers
    policy = dict(
        part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";") if part
    )
    assert policy.pop("default-src") == "'none'"
    for name in ("script-src", "style-src", "img-src", "connect-src"):
        assert policy.pop(name) == "'self'"
    assert policy.pop("require-trusted-types-for") == "'script'"
    assert set(policy.values()) <= {"'none'"}, "whatever else is named is forbidden"
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")


def test_connections_to_the_store_are_read_only(viewer, world):
    with viewer.server.viewer.pool.store() as store, pytest.raises((StoreError, StoreRefused)):
        store.tag(world.first.id, ["written"])
    assert "written" not in world.store.runs.get(world.first.id).header.labels


def test_it_listens_on_the_loopback_address_only(served):
    assert [address[0] for address in served.server.addresses] == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/r/nothing-here", 404),
        ("/api/r/latest/rows?start=-1", 400),
        ("/api/r/latest/rows?start=1e9", 400),
        ("/api/r/latest/rows?start=99999999999999999999", 400),
        ("/api/r/latest/rows?count=abc", 400),
        ("/api/r/latest/rows?filter=%28", 400),
        ("/api/r/latest/rows?filter=" + "x" * 3000, 400),
        ("/api/r/latest/rows?filter=nofield:1", 400),
        ("/api/r/latest/rows?filter=changed:worse", 400),
        ("/api/r/latest/rows?sort=nothing", 400),
        ("/api/r/latest/rows?around=x", 400),
        ("/api/r/latest/rows?id=unknown", 404),
        ("/api/r/latest/item", 400),
        ("/api/r/latest/item?key=9999999.1", 404),
        ("/api/r/latest/item?key=0.7", 404),
        ("/api/r/latest/item?key=-1.1", 400),
        ("/api/r/latest/field?key=0.1&name=../../etc/passwd", 404),
        ("/api/r/latest/field?key=0.1&name=step.99999.text", 404),
        ("/api/r/latest/field?key=0.1&name=step.%C2%B2.text", 404),
        ("/api/r/latest/field?key=0.1&name=call.%C2%B2.input", 404),
        ("/api/c/latest", 400),
        ("/api/c/latest..latest", 400),
        ("/api/s", 400),
        ("/api/s?runs=latest&by=nothing", 400),
        ("/api/p?runs=" + ",".join(["latest"] * 60), 400),
        ("/api/nothing", 404),
    ],
)
def test_a_wrong_request_is_an_error_in_a_sentence(served, path, status):
    answer = served.ask(path)
    assert answer.status == status
    assert list(answer.json) == ["error"]
    assert "Traceback" not in answer.json["error"]


def test_the_store_is_not_changed(tmp_path, serve):
    path = tmp_path / "karat.db"
    with open_store(path) as store:
        world = World(store)
        first, second = world.first.id, world.second.id
    before = path.read_bytes()
    viewer = serve(f"sqlite:///{path}")
    viewer.get("/api/runs")
    viewer.get(f"/api/r/{first}/rows", filter='topic:law "word"')
    viewer.get(f"/api/c/{first}..{second}")
    viewer.get("/api/s", runs=f"{first},{second}", by="topic")
    assert path.read_bytes() == before
    with open_store(path) as store:
        assert len(store.aggregations.list()) == 1  # the comparison was not stored


def test_a_store_that_is_deleted_or_replaced_while_it_is_viewed(tmp_path, serve):
    path, other = tmp_path / "karat.db", tmp_path / "other.db"
    for place in (path, other):
        with open_store(place) as store:
            world = World(store)
            if place == path:
                old = world.first.id
            else:
                store.tag(world.first.id, ["replaced"])
    viewer = serve(f"sqlite:///{path}")
    viewer.get(f"/api/r/{old}/rows")
    for each in tmp_path.glob("karat.db*"):
        each.unlink()
    answer = viewer.ask("/api/runs")
    assert (answer.status, list(answer.json)) == (503, ["error"])
    other.rename(path)
    runs = [run for data in viewer.get("/api/runs")["datasets"] for run in data["runs"]]
    assert len(runs) == 2
    assert any("replaced" in run["labels"] for run in runs)
    assert viewer.ask(f"/api/r/{old}/rows").status == 404
    assert viewer.get("/api/r/replaced/rows")["total"] > 0


@pytest.fixture
def slow_clients(served):
    """Opens connections that send something and then neither send nor read."""
    opened: list[socket.socket] = []

    def connect(count: int, text: str) -> list[socket.socket]:
        made = [socket.create_connection(("127.0.0.1", served.server.port), timeout=30) for _ in range(count)]
        opened.extend(made)
        for each in made:
            each.sendall(text.encode())
        return made

    yield connect
    for each in opened:
        each.close()


def test_idle_connections_do_not_lock_others_out(served, slow_clients, monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 10)
    waiting = slow_clients(60, f"GET /api/runs HTTP/1.1\r\nHost: {served.address}\r\n")
    assert served.get("/api/changes")["live"] is False
    assert sum(is_closed(each) for each in waiting) >= 50


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_slow_clients_do_not_block_others(served, slow_clients):
    head = f"Host: {served.address}\r\nCookie: {served.cookie}\r\n"
    slow_clients(40, f"GET /api/runs HTTP/1.1\r\n{head}\r\n" * 5)
    for _ in range(3):
        assert served.get("/api/changes")["live"] is False


def test_a_connection_that_has_asked_is_kept_when_there_are_many(served, slow_clients, monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 5)
    head = f"Host: {served.address}\r\nCookie: {served.cookie}\r\n"
    request = f"GET /api/changes HTTP/1.1\r\n{head}\r\n"
    (kept,) = slow_clients(1, request)
    assert kept.recv(12) == b"HTTP/1.1 200"
    slow_clients(20, "GET / HTTP/1.1\r\n")
    served.get("/api/changes")
    while b"}" not in kept.recv(4096):
        pass
    kept.sendall(request.encode())
    assert kept.recv(12) == b"HTTP/1.1 200"
