"""The background loop and the service of this process: started when first needed, ended with it."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading

from karat.models.background import Background
from karat.models.service import Service


class Shared:
    """A background loop with a service on it."""

    def __init__(self) -> None:
        self.background = Background()
        self.service = self.background.call_sync(_make())

    def close(self) -> None:
        """Cancels what is under way, keeps what is finished, ends the thread."""
        self.background.cancel_all()
        self.background.call_sync(self.service.aclose())
        self.background.stop()
        local = sys.modules.get("karat.models.local")
        if local is not None:
            local.unload()


async def _make() -> Service:
    return Service()


_shared: Shared | None = None
_starting = threading.Lock()
_forgotten: list[Shared] = []


def shared() -> Shared:
    """The background loop and the service of this process."""
    global _shared
    if _shared is None:
        with _starting:
            if _shared is None:
                _shared = Shared()
    return _shared


def close() -> None:
    """Ends the background loop: calls under way are cancelled, answers already there are kept."""
    global _shared
    with _starting:
        ending, _shared = _shared, None
    if ending is not None:
        ending.close()


async def aclose() -> None:
    """As `close`, for a coroutine."""
    await asyncio.get_running_loop().run_in_executor(None, close)


def _forget() -> None:
    # In a forked child the thread is gone and the connections are the parent's: they are kept, untouched.
    global _shared, _starting
    _starting = threading.Lock()
    if _shared is not None:
        _forgotten.append(_shared)
        _shared = None


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
