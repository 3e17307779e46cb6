"""A guard that refuses connections to anything but this machine, and reports the attempts."""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_CONNECTING = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_guards: list[list[str]] = []
_lock = threading.Lock()
_installed = False


class LeftLoopback(ConnectionRefusedError):
    """A connection to another machine was refused because `only_loopback` is in force."""


@contextmanager
def only_loopback() -> Iterator[list[str]]:
    """Refuse every connection and name lookup that leaves this machine; give a list of those that were tried.

    It covers all threads of this process and Python's own sockets, used by any library. Libraries often
    swallow the error, so assert that the list is empty. Connections made by compiled code or by other processes are
    not seen.
    """
    global _installed
    attempts: list[str] = []
    with _lock:
        if not _installed:
            sys.addaudithook(_audit)  # an audit hook cannot be removed: without guards it does nothing
            _installed = True
        _guards.append(attempts)
    try:
        yield attempts
    finally:
        with _lock:
            _guards.remove(attempts)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _guards:
        return
    if event in _CONNECTING:
        address = arguments[1]
        target = address[0] if isinstance(address, tuple) and address else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        target = arguments[0]
    else:
        return
    # A path is a Unix socket; None is an address given earlier or the machine itself.
    if target is None or _is_loopback(target):
        return
    for attempts in _guards:
        attempts.append(f"{event} {os.fsdecode(target)}")
    raise LeftLoopback(f"{event} to {target!r} would leave this machine")


def _is_loopback(host: Any) -> bool:
    name = os.fsdecode(host) if isinstance(host, (str, bytes)) else ""
    if name in ("", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
