"""Adapters to memory systems in other programs: an HTTP service (`http`), a command with JSON lines (`command`).

Both use the protocol of `docs/memory-systems.md`. Replies are checked for size, time and form.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import select
import shlex
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TypeVar

import msgspec

from karat.errors import KaratError, RequestError, wording
from karat.memory import memory_systems
from karat.memory._system import Capabilities, MemorySystem, Retrieval, RetrievedMemory, StoredMemory, Turn
from karat.memory.systems._turns import check_share, check_whole
from karat.serialization import prepared, storable

MEGABYTE = 1_000_000
KEPT_ERRORS = 4_000
"""Bytes of a command's stderr that an error message may quote from."""

T = TypeVar("T")


class _Base(msgspec.Struct, kw_only=True):
    error: str | None = None


class _Capabilities(_Base, kw_only=True):
    event_time: Literal["native", "text", "none"] = "text"
    save: bool = False
    parallel: bool = True
    provenance: bool = False


class _Snapshot(_Base, kw_only=True):
    memories: list[StoredMemory] = []


class _Retrieved(_Base, kw_only=True):
    items: list[RetrievedMemory] = []
    trace: dict[str, Any] = {}


class ServiceFailed(KaratError):
    """A memory service failed, was too slow, or replied something that cannot be read."""

    exit_code = 1


class _ServiceMemory(MemorySystem):
    """The protocol, over any way to send a request and get the bytes of a reply."""

    def __init__(self, name: str, version: str, timeout: float, max_reply_mb: int) -> None:
        for parameter, value in (("name", name), ("version", version)):
            if not isinstance(value, str) or not value:
                raise RequestError(f"{type(self).name}: {parameter} is {value!r}: it must be a text")
        self.name, self.version = name, version
        self.timeout = check_share(name, "timeout", timeout, 0.001)
        self.max_reply = check_whole(name, "max_reply_mb", max_reply_mb) * MEGABYTE
        self._capabilities: Capabilities | None = None

    def _send(self, operation: str, body: bytes) -> bytes:
        raise TypeError(f"memory system {self.name!r} has no _send")

    def _call(self, operation: str, arguments: Mapping[str, Any], form: type[T]) -> T:
        body = msgspec.json.encode({"op": operation, **storable(arguments)})
        reply = self._send(operation, body)
        try:
            found = msgspec.json.decode(reply, type=prepared(form))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            shown = reply[:200].decode("utf-8", "replace")
            raise ServiceFailed(
                f"{self.name}: {operation}: cannot read the reply ({error}): {shown!r}"
            ) from error
        failure = getattr(found, "error", None)
        if failure is not None:
            raise ServiceFailed(f"{self.name}: {operation}: {failure[:500]}")
        return found

    def capabilities(self) -> Capabilities:
        if self._capabilities is None:
            given = self._call("capabilities", {}, _Capabilities)
            self._capabilities = Capabilities(
                event_time=given.event_time,
                save=given.save,
                parallel=given.parallel,
                provenance=given.provenance,
            )
        return self._capabilities

    def reset(self, directory: Path) -> None:
        self._call("reset", {"directory": str(directory)}, _Base)

    def ingest_turn(self, turn: Turn) -> None:
        self._call("ingest_turn", {"turn": msgspec.to_builtins(turn)}, _Base)

    def end_session(self, session_id: str) -> None:
        self._call("end_session", {"session_id": session_id}, _Base)

    def snapshot(self) -> list[StoredMemory]:
        memories = self._call("snapshot", {}, _Snapshot).memories
        if len({memory.memory_id for memory in memories}) != len(memories):
            raise ServiceFailed(f"{self.name}: snapshot: two memories have the same memory_id")
        return memories

    def retrieve(self, query: str, top_k: int, now: str | None) -> Retrieval:
        arguments = {"query": query, "top_k": top_k, "now": now}
        found = self._call("retrieve", arguments, _Retrieved)
        if len(found.items) > max(0, top_k):
            raise ServiceFailed(f"{self.name}: retrieve: {len(found.items)} items for top_k {top_k}")
        return Retrieval(items=tuple(found.items), trace=found.trace)

    def save(self, directory: Path) -> None:
        self._call("save", {"directory": str(directory)}, _Base)

    def load(self, directory: Path) -> None:
        self._call("load", {"directory": str(directory)}, _Base)


@memory_systems.register("http")
class HttpMemory(_ServiceMemory):
    """Drive a memory system behind HTTP: each operation is a POST of JSON to `url/OPERATION`.

    Each sample has its own `store` id, which every request carries. `token_env` names an environment variable whose
    value is sent as a bearer token. Redirects are not followed, proxies are not used.
    """

    name = "http"

    def __init__(
        self,
        url: str,
        name: str = "http",
        version: str = "1",
        timeout: float = 120.0,
        max_reply_mb: int = 64,
        token_env: str | None = None,
    ) -> None:
        super().__init__(name, version, timeout, max_reply_mb)
        parts = urllib.parse.urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(f"{name}: url is {url!r}: it must be http://HOST or https://HOST")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise RequestError(
                f"{name}: the url has credentials or a query: use token_env for a bearer token"
            )
        try:
            self._port = parts.port
        except ValueError as error:
            raise RequestError(f"{name}: the url has no valid port: {error}") from None
        self.url = url.rstrip("/")
        self._parts = parts
        self._token_env = token_env
        self._store = uuid.uuid4().hex
        self._connection: http.client.HTTPConnection | None = None

    def configuration(self) -> Any:
        return {"url": self.url, "version": self.version}

    def reset(self, directory: Path) -> None:
        self._store = uuid.uuid4().hex
        super().reset(directory)

    def close(self) -> None:
        try:
            if self._connection is not None:
                self._call("close", {}, _Base)
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, operation: str, arguments: Mapping[str, Any], form: type[T]) -> T:
        return super()._call(operation, {"store": self._store, **arguments}, form)

    def _send(self, operation: str, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token_env is not None:
            token = os.environ.get(self._token_env)
            if not token:
                raise RequestError(f"{self.name}: the environment variable {self._token_env} is not set")
            headers["Authorization"] = f"Bearer {token}"
        deadline = time.monotonic() + self.timeout
        path = f"{self._parts.path.rstrip('/')}/{operation}"
        try:
            return self._exchange(path, body, headers, deadline, operation)
        except ConnectionRefusedError as error:
            raise ServiceFailed(
                f"{self.name}: {operation}: nothing listens at {self._parts.hostname}:{self._port}: start the service,"
                f" or correct {wording('--param url', 'its parameter url')}"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self._disconnect()
            raise ServiceFailed(f"{self.name}: {operation}: {type(error).__name__}: {error}") from error
        except ServiceFailed:
            self._disconnect()  # the rest of a reply may still be on its way
            raise

    def _exchange(
        self, path: str, body: bytes, headers: dict[str, str], deadline: float, operation: str
    ) -> bytes:
        if self._connection is None:
            kind = (
                http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            )
            assert self._parts.hostname is not None
            self._connection = kind(self._parts.hostname, self._port, timeout=self.timeout)
        if self._connection.sock is not None and _has_ended(self._connection.sock):
            self._connection.close()  # a server closes a connection that is idle while a model answers
        if self._connection.sock is None:
            self._connection.connect()
        # Headers that drip and interim replies without end are read inside of getresponse, where no deadline holds.
        watchdog = threading.Timer(max(0.0, deadline - time.monotonic()), _shut, [self._connection.sock])
        watchdog.daemon = True
        watchdog.start()
        try:
            return self._reply(path, body, headers, deadline, operation)
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() < deadline:
                raise
            raise self._late(operation) from error
        finally:
            watchdog.cancel()

    def _late(self, operation: str) -> ServiceFailed:
        return ServiceFailed(f"{self.name}: {operation}: no complete reply in {self.timeout:g} seconds")

    def _reply(
        self, path: str, body: bytes, headers: dict[str, str], deadline: float, operation: str
    ) -> bytes:
        assert self._connection is not None
        self._connection.request("POST", path, body=body, headers=headers)
        reply = self._connection.getresponse()
        content = bytearray()
        while reply.length != 0:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late(operation)
            if self._connection.sock is not None:
                self._connection.sock.settimeout(left)
            piece = reply.read1(65_536)
            if not piece:
                break
            content += piece
            if len(content) > self.max_reply:
                raise ServiceFailed(
                    f"{self.name}: {operation}: the reply is larger than {self.max_reply // MEGABYTE} MB"
                )
        promised = reply.length
        reply.close()
        if time.monotonic() >= deadline:
            raise self._late(operation)
        if promised:
            raise ServiceFailed(f"{self.name}: {operation}: the response ends early")
        if reply.status != 200:
            shown = bytes(content[:300]).decode("utf-8", "replace")
            raise ServiceFailed(f"{self.name}: {operation}: HTTP {reply.status}: {shown!r}")
        return bytes(content)


def _has_ended(connection: socket.socket) -> bool:
    """Whether the other side has closed an idle connection, or sent data without a request."""
    try:
        return bool(select.select([connection], [], [], 0)[0])
    except (OSError, ValueError):
        return True


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@memory_systems.register("command")
class CommandMemory(_ServiceMemory):
    """Drive a memory system in another program that reads requests from stdin and writes replies to stdout.

    A request and a reply are one line of JSON each. Each instance starts its own process, which is killed when a reply
    takes longer than `timeout` seconds.
    """

    name = "command"

    def __init__(
        self,
        command: str | Sequence[str],
        name: str = "command",
        version: str = "1",
        timeout: float = 120.0,
        max_reply_mb: int = 64,
    ) -> None:
        super().__init__(name, version, timeout, max_reply_mb)
        words = shlex.split(command) if isinstance(command, str) else list(command)
        if not words or not all(isinstance(word, str) for word in words):
            raise RequestError(f"{name}: command is {command!r}: it must be a command line")
        self.command = words
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[bytes] = queue.Queue(maxsize=4)
        self._errors = bytearray()
        self._errors_reader: threading.Thread | None = None

    def configuration(self) -> Any:
        return {"command": self.command, "version": self.version}

    def close(self) -> None:
        process = self._process
        if process is None:
            return
        try:
            if process.poll() is None:
                self._call("close", {}, _Base)
        finally:
            self._stop()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                process = subprocess.Popen(  # noqa: S603 - the command that the user names
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # so that what it starts can be killed with it
                )
            except OSError as error:
                raise RequestError(f"{self.name}: cannot start {self.command[0]!r}: {error}") from error
            self._process, self._lines, self._errors = process, queue.Queue(maxsize=4), bytearray()
            self._read_in_thread(self._read_lines, process.stdout)
            self._errors_reader = self._read_in_thread(self._read_errors, process.stderr)
        return self._process

    def _read_in_thread(self, work: Callable[..., None], stream: IO[bytes] | None) -> threading.Thread:
        assert stream is not None
        reader = threading.Thread(
            target=work, args=(stream, self._lines, self._errors), name="karat-memory-command", daemon=True
        )
        reader.start()
        return reader

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            _kill_all(process)

    def _read_lines(self, stream: BinaryIO, lines: queue.Queue[bytes], errors: bytearray) -> None:
        with stream:
            while line := stream.readline(self.max_reply + 1):
                lines.put(line)
                if len(line) > self.max_reply:
                    return
        lines.put(b"")

    def _read_errors(self, stream: BinaryIO, lines: queue.Queue[bytes], errors: bytearray) -> None:
        with stream:
            while piece := stream.read1(4096):  # type: ignore[attr-defined]  # a pipe has it
                errors += piece
                del errors[:-KEPT_ERRORS]

    def _send(self, operation: str, body: bytes) -> bytes:
        process = self._start()
        assert process.stdin is not None
        self._check_empty(operation)
        writer = threading.Thread(target=_write, args=(process.stdin, body + b"\n"), daemon=True)
        writer.start()  # a command that does not read would block the pipe, and this thread with it
        try:
            line = self._lines.get(timeout=self.timeout)
        except queue.Empty:
            self._kill()
            raise ServiceFailed(
                f"{self.name}: {operation}: no reply in {self.timeout:g} seconds; the process was killed"
            ) from None
        if not line:
            self._kill()
            if self._errors_reader is not None:  # stderr may be behind stdout
                self._errors_reader.join(timeout=1.0)
            shown = bytes(self._errors[-300:]).decode("utf-8", "replace")
            raise ServiceFailed(
                f"{self.name}: {operation}: the command ended; the end of its stderr: {shown!r}"
            )
        if len(line) > self.max_reply:
            self._kill()
            raise ServiceFailed(
                f"{self.name}: {operation}: the reply is larger than {self.max_reply // MEGABYTE} MB"
            )
        self._check_empty(operation)
        return line

    def _check_empty(self, operation: str) -> None:
        """Refuse lines that answer no request: the next request would take them for its reply."""
        if not self._lines.empty() and self._lines.queue[0]:
            self._kill()
            raise ServiceFailed(
                f"{self.name}: {operation}: the command wrote more than one line for a request"
            )

    def _kill(self) -> None:
        if self._process is not None:
            _kill_all(self._process)
            self._process = None


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it started, such as the program that a shell runs."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _write(stream: Any, line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # the end of the process is noticed by its reader
        stream.write(line)
        stream.flush()
