"""A clock on which waiting takes no time: it jumps to the next moment somebody waits for."""

from __future__ import annotations

import asyncio


class FakeClock:
    """Time for limiters and retries in tests. `slept` has every wait, in order."""

    # Everything that can run without time passing has run after so many turns of the loop.
    PATIENCE = 20

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []
        self._deadlines: list[float] = []

    def time(self) -> float:
        """Seconds that only ever grow."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Lets others work; then, when this is the next moment anybody waits for, it is that moment."""
        self.slept.append(seconds)
        deadline = self.now + seconds
        self._deadlines.append(deadline)
        try:
            while self.now < deadline:
                before = self.now
                for _ in range(self.PATIENCE):
                    await asyncio.sleep(0)
                if self.now == before and min(self._deadlines) == deadline:
                    self.now = deadline
        finally:
            self._deadlines.remove(deadline)
