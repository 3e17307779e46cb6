"""Progress of a stage, and a line on the terminal that shows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

import msgspec


class Progress(msgspec.Struct):
    """The progress of a stage, which changes it in place and calls the listener after each commit."""

    what: str
    total: int
    done: int = 0
    failed: int = 0
    cost: float = 0.0
    started: float = 0.0
    before: int = 0
    """Items that were stored when the stage began."""
    retries: int = 0
    """Model requests that were sent again."""
    waiting: int = 0
    """Model requests that wait for a retry now."""

    @property
    def rate(self) -> float:
        """Items per second since the stage began."""
        seconds = time.monotonic() - self.started
        return (self.done - self.before) / seconds if seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the rate; None before there is one."""
        rate = self.rate
        return (self.total - self.done) / rate if rate > 0 else None

    @property
    def projected_cost(self) -> float | None:
        """What the stage will have cost at its end, if the items left are like those done; None without any."""
        worked = self.done - self.before
        return self.cost / worked * (self.total - self.before) if worked > 0 else None


Listener = Callable[[Progress], None]


class ProgressLine:
    """One line, rewritten in place on a terminal; nothing where the stream is not one."""

    WIDTH = 24
    EVERY = 0.1

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = 0.0
        self._length = 0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        finished = progress.done >= progress.total
        if not self._stream.isatty() or (now - self._shown < self.EVERY and not finished):
            return
        self._shown = now
        line = self.line(progress)
        self._stream.write("\r" + line.ljust(self._length))
        self._length = len(line)
        if finished:
            self._stream.write("\n")
            self._length = 0
        self._stream.flush()

    def line(self, progress: Progress) -> str:
        """`run ████████········ 4,200/10,000  1,234/s  3 failed  $0.42 of about $1.00  0:05 left`."""
        share = progress.done / progress.total if progress.total else 1.0
        full = int(share * self.WIDTH)
        parts = [
            f"{progress.what} {'█' * full}{'·' * (self.WIDTH - full)} {progress.done:,}/{progress.total:,}",
            f"{progress.rate:,.0f}/s" if progress.rate >= 10 else f"{progress.rate:.1f}/s",
        ]
        if progress.failed:
            parts.append(f"{progress.failed:,} failed")
        if progress.retries:
            waiting = f" ({progress.waiting:,} waiting)" if progress.waiting else ""
            parts.append(f"{progress.retries:,} {'retry' if progress.retries == 1 else 'retries'}{waiting}")
        if progress.cost:
            expected = progress.projected_cost
            rest = "" if expected is None or progress.done >= progress.total else f" of about ${expected:.2f}"
            parts.append(f"${progress.cost:.2f}{rest}")
        left = progress.seconds_left
        if left is not None and progress.done < progress.total:
            parts.append(f"{int(left) // 60}:{int(left) % 60:02d} left")
        return "  ".join(parts)

    def end(self) -> None:
        """End the line when work stops early."""
        if self._length:
            self._stream.write("\n")
            self._length = 0


def listener(progress: bool | Listener | None) -> Listener | None:
    """The listener for an argument `progress`: True for a line on the terminal, or a function."""
    if progress is True:
        return ProgressLine()
    return progress or None
