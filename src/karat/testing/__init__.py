"""For tests, karat's own and yours: a provider on loopback that answers as told, and a clock that obeys."""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {"FakeProvider": "provider", "FakeClock": "clock", "Failing": "script"}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"karat.testing.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
