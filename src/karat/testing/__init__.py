"""For tests, karat's own and yours: a provider on loopback that answers as told, and a clock that obeys."""

from __future__ import annotations

from typing import Any

from karat.lazy import load

_WHERE = {"FakeProvider": "provider", "FakeClock": "clock", "Failing": "script"}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
