"""A memory system behind the service protocol: `python service.py` speaks JSON lines, `serve()` speaks HTTP."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import msgspec

from karat.memory import Turn, memory_systems

systems = {}


def handle(request):
    """The reply to one request."""
    operation, store = request.pop("op"), request.pop("store", "")
    if operation == "capabilities":
        return msgspec.to_builtins(memory_systems.get("BM25Memory")().capabilities())
    if operation == "close":
        systems.pop(store, None)
        return {}
    system = systems.setdefault(store, memory_systems.get("BM25Memory")())
    if operation == "reset":
        system.reset(Path(request["directory"]))
    elif operation == "ingest_turn":
        system.ingest_turn(msgspec.convert(request["turn"], Turn))
    elif operation == "end_session":
        system.end_session(request["session_id"])
    elif operation == "snapshot":
        return {"memories": msgspec.to_builtins(system.snapshot())}
    elif operation == "retrieve":
        return msgspec.to_builtins(system.retrieve(request["query"], request["top_k"], request["now"]))
    elif operation in ("save", "load"):
        getattr(system, operation)(Path(request["directory"]))
    else:
        return {"error": f"unknown operation {operation!r}"}
    return {}


@contextmanager
def serve(reply=None):
    """An HTTP server on loopback; `reply(handler)` writes another answer than the right one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.requests.append((self.path, dict(self.headers), body))
            if reply is not None:
                reply(self)
                return
            answer = json.dumps(handle(json.loads(body))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.requests = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main():
    for line in sys.stdin:
        sys.stdout.write(json.dumps(handle(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
