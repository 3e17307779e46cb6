"""For tests, karat's own and yours: a provider on loopback that answers as told, and a clock that obeys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import load

if TYPE_CHECKING:
    from karat.testing._clock import FakeClock
    from karat.testing._fake_provider import Failing, FakeProvider

_WHERE = {"Failing": "_fake_provider", "FakeClock": "_clock", "FakeProvider": "_fake_provider"}

__all__ = ["Failing", "FakeClock", "FakeProvider"]


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
