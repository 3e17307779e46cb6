"""Memory systems behind HTTP and behind a command: the conformance tests, and hostile replies."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

import pytest
import time_machine

from karat.cli import main
from karat.errors import RequestError
from karat.memory import Turn, evaluate, memory_systems
from karat.memory.systems._services import HttpMemory, ServiceFailed
from karat.testing import MemorySystemConformance
from tests.memory.systems import service

COMMAND = [sys.executable, str(Path(service.__file__))]
GOOD = {"memories": [{"memory_id": "1", "text": "a"}]}


@pytest.fixture(autouse=True)
def _year_2031():
    with time_machine.travel("2031-03-01T12:00:00Z", tick=True):
        yield


@pytest.fixture(scope="module")
def server():
    with service.serve() as running:
        yield running


def url(server):
    return f"http://127.0.0.1:{server.server_port}/memory/"


class TestHttp(MemorySystemConformance):
    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.url = url(server)

    def make(self):
        return memory_systems.get("http")(url=self.url)


class TestCommand(MemorySystemConformance):
    def make(self):
        return memory_systems.get("command")(command=COMMAND)


def test_requests_name_the_operation_the_store_and_the_token(server, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMORY_TOKEN", "t0ken")
    server.requests.clear()
    system = memory_systems.get("http")(url=url(server), token_env="MEMORY_TOKEN")
    system.reset(tmp_path)
    system.ingest_turn(Turn(turn_id="t", speaker="Ann", text="hi", time="2024-05-01", session_id="S00"))
    system.close()
    assert [path for path, _, _ in server.requests] == [
        "/memory/reset",
        "/memory/ingest_turn",
        "/memory/close",
    ]
    bodies = [json.loads(body) for _, _, body in server.requests]
    assert len({body["store"] for body in bodies}) == 1
    assert bodies[1]["turn"] == {
        "turn_id": "t", "speaker": "Ann", "text": "hi", "time": "2024-05-01", "session_id": "S00"
    }  # fmt: skip
    assert all(headers["Authorization"] == "Bearer t0ken" for _, headers, _ in server.requests)
    assert "t0ken" not in json.dumps(system.configuration())


def answering(status=200, body=b"{}", headers=(), length=None):
    def reply(handler):
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers:
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)
        if length is not None:
            handler.close_connection = True

    return reply


HOSTILE = {
    "no JSON": answering(body=b"<html>"),
    "not an object": answering(body=b"[]"),
    "wrong types": answering(body=b'{"memories": [{"memory_id": 1, "text": "a"}]}'),
    "no text": answering(body=b'{"memories": [{"memory_id": "1"}]}'),
    "the same id twice": answering(body=json.dumps({"memories": GOOD["memories"] * 2}).encode()),
    "an error": answering(body=b'{"error": "out of order"}'),
    "status 500": answering(status=500, body=b'{"memories": []}'),
    "a redirect": answering(status=307, headers=[("Location", "http://example.com/")]),
    "broken UTF-8": answering(body=b'{"memories": [{"memory_id": "\xff", "text": "a"}]}'),
    "deep nesting": answering(body=b'{"memories": ' + b"[" * 200_000),
    "too large": answering(body=b'{"memories": [], "x": "' + b"x" * 1_100_000 + b'"}'),
    "cut short": answering(body=b'{"memories": [', length=1000),
}


@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_http_reply_is_an_error(reply):
    with service.serve(reply) as server:
        system = memory_systems.get("http")(url=url(server), max_reply_mb=1)
        with pytest.raises(ServiceFailed, match="snapshot"):
            system.snapshot()


def test_a_reply_that_drips_is_cut_off():
    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        try:
            while not stopped:
                handler.wfile.write(b" ")
                handler.wfile.flush()
        except OSError:
            pass

    stopped: list[bool] = []
    with service.serve(drip) as server:
        system = memory_systems.get("http")(url=url(server), timeout=0.2, max_reply_mb=64)
        with pytest.raises(ServiceFailed):
            system.snapshot()
        stopped.append(True)


def flooding(first, piece):
    """Reply without end: a beginning, then the same piece again and again."""

    def reply(handler):
        try:
            handler.wfile.write(first)
            while True:
                handler.wfile.write(piece)
                handler.wfile.flush()
        except OSError:
            handler.close_connection = True

    return reply


ENDLESS = {
    "interim replies": flooding(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": flooding(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X-More: 1\r\n"
    ),
    "chunks": flooding(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}


@pytest.mark.parametrize("reply", ENDLESS.values(), ids=ENDLESS)
def test_a_reply_without_end_is_cut_off(reply, refuses):
    with service.serve(reply) as server:
        system = memory_systems.get("http")(url=url(server), timeout=0.3, max_reply_mb=64)
        with refuses(ServiceFailed):
            system.snapshot()


def test_a_connection_that_the_server_closed_while_it_was_idle_is_opened_again(tmp_path):
    closed = threading.Event()

    def reply(handler):
        answering()(handler)
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True
        closed.set()

    with service.serve(reply) as server:
        system = memory_systems.get("http")(url=url(server))
        for _ in range(3):
            system.end_session("S00")
            assert closed.wait(10)
            closed.clear()
        assert len(server.requests) == 3


def test_more_items_than_asked_for_are_an_error():
    items = [{"memory_id": str(n), "text": "a"} for n in range(4)]
    with service.serve(answering(body=json.dumps({"items": items}).encode())) as server:
        system = memory_systems.get("http")(url=url(server))
        assert len(system.retrieve("q", 4, None).items) == 4
        with pytest.raises(ServiceFailed, match="top_k 3"):
            system.retrieve("q", 3, None)
        system.close()


def test_a_service_that_is_not_there_is_an_error(tmp_path):
    with service.serve() as server:
        address = url(server)
    with pytest.raises(ServiceFailed, match="reset"):
        memory_systems.get("http")(url=address).reset(tmp_path)


@pytest.mark.parametrize(
    "address", ["ftp://a", "http://", "a", "http://u:p@host/", "http://host/?q=1", "http://host:99999/", 5]
)
def test_an_address_that_cannot_be_used_is_refused(address):
    with pytest.raises(RequestError):
        memory_systems.get("http")(url=address)


def test_a_token_that_is_not_set_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.delenv("MEMORY_TOKEN", raising=False)
    with pytest.raises(RequestError, match="MEMORY_TOKEN"):
        memory_systems.get("http")(url=url(server), token_env="MEMORY_TOKEN").reset(tmp_path)


def command(program, **options):
    return memory_systems.get("command")(command=[sys.executable, "-c", program], **options)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("input(); print('<html>')", "cannot read"),
        ("input(); print('[]')", "cannot read"),
        ('input(); print(\'{"error": "no"}\')', "no"),
        ("import sys; input(); sys.exit('out of order')", "out of order"),
        ("input(); print('x' * 2_000_000)", "1 MB"),
        ("import sys; input(); sys.stderr.write('e' * 3_000_000); sys.exit(1)", "eeee"),
    ],
)
def test_a_hostile_command_is_an_error(program, said, tmp_path):
    with pytest.raises(ServiceFailed, match=said):
        command(program, max_reply_mb=1).reset(tmp_path)


@pytest.mark.parametrize("program", ["import time; time.sleep(600)", "input(); import time; time.sleep(600)"])
def test_a_command_that_does_not_answer_is_killed(program, tmp_path):
    system = command(program, timeout=0.3)
    with pytest.raises(ServiceFailed, match="killed"):
        system.ingest_turn(Turn(turn_id="t", speaker="Ann", text="x" * 300_000))
    system.close()


def test_processes_started_by_a_command_are_killed_with_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    inner = "import time; time.sleep(600)"
    program = f"import subprocess, sys; out = open({str(pipe)!r}, 'w'); out.write('started'); out.flush();"
    program += f" subprocess.run([sys.executable, '-c', {inner!r}], stdout=out)"
    with pytest.raises(ServiceFailed, match="killed"):
        command(program, timeout=2).reset(tmp_path)
    os.set_blocking(reading, True)
    assert os.read(reading, 100) == b"started"
    assert os.read(reading, 100) == b""  # the last process that could write has ended
    os.close(reading)


def test_a_line_that_answers_no_request_is_not_taken_for_a_reply(tmp_path):
    system = command("input(); print('{}', flush=True); print('{}', flush=True); input(); input()")
    with pytest.raises(ServiceFailed, match="one line"):  # noqa: PT012 - the second line may come late
        system.reset(tmp_path)
        while system._lines.empty():
            pass
        system.end_session("S00")


def test_the_process_ends_with_the_sample(tmp_path):
    system = memory_systems.get("command")(command=COMMAND)
    system.reset(tmp_path)
    process = system._process
    system.close()
    assert process.poll() is not None
    system.close()


@pytest.mark.parametrize("given", ["", [], [1]])
def test_a_command_that_is_none_is_refused(given):
    with pytest.raises(RequestError, match="command"):
        memory_systems.get("command")(command=given)


def test_a_program_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(RequestError, match="cannot start"):
        memory_systems.get("command")(command="no-such-program-here").reset(tmp_path)


def test_a_service_is_evaluated_under_the_name_it_is_given(server, tmp_path):
    made = evaluate(
        "demo",
        "http",
        output_dir=tmp_path / "out",
        judge="deterministic",
        model="extractive",
        store=f"sqlite:///{tmp_path / 'results.db'}",
        params={"url": url(server), "name": "mine"},
        max_samples=1,
        progress=False,
    )
    assert made.exit_code == 0
    assert json.loads((tmp_path / "out" / "aggregate_metrics.json").read_text())["baseline_id"] == "mine"


def test_a_service_that_is_down_is_one_line_on_the_command_line(tmp_path, capsys):
    with service.serve() as server:
        address = url(server)
    given = ["memory", "--dataset", "demo", "--baseline", "http", "--param", f"url={address}"]
    given += ["--output-dir", str(tmp_path / "out"), "--judge", "deterministic", "--model", "extractive"]
    assert main([*given, "--store", f"sqlite:///{tmp_path / 'results.db'}", "--quiet"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_unreachable_service_is_named_with_its_address():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(ServiceFailed, match=rf"127\.0\.0\.1:{port}.*its parameter url"):
        HttpMemory(url=f"http://127.0.0.1:{port}/memory", name="mine").capabilities()
