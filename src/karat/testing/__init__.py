"""For tests, karat's own and yours: a scripted provider on loopback, a fake clock, tests for memory systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from karat.lazy import exports

if TYPE_CHECKING:
    from karat.testing._fake_provider import Failing as Failing
    from karat.testing._fake_provider import FakeClock as FakeClock
    from karat.testing._fake_provider import FakeProvider as FakeProvider
    from karat.testing._memory_conformance import MemorySystemConformance as MemorySystemConformance
    from karat.testing._memory_conformance import only_loopback as only_loopback
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            "_fake_provider": "Failing FakeClock FakeProvider",
            "_memory_conformance": "MemorySystemConformance only_loopback",
        },
    )
