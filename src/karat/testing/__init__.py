"""For tests, karat's own and yours: a scripted provider on loopback, a fake clock, tests for memory systems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.lazy import load

if TYPE_CHECKING:
    from karat.testing._fake_provider import Failing, FakeClock, FakeProvider
    from karat.testing._memory_conformance import MemorySystemConformance, only_loopback

_WHERE = {
    "Failing": "_fake_provider",
    "FakeClock": "_fake_provider",
    "FakeProvider": "_fake_provider",
    "MemorySystemConformance": "_memory_conformance",
    "only_loopback": "_memory_conformance",
}

__all__ = ["Failing", "FakeClock", "FakeProvider", "MemorySystemConformance", "only_loopback"]


def __getattr__(name: str) -> Any:
    return load(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
