"""Progress of a stage, and how it is shown: a line on a terminal, lines in a log, a bar in a notebook."""

from __future__ import annotations

import importlib
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

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
    """Model requests that were sent again, and tasks that were called again."""
    waiting: int = 0
    """Model requests that wait for a retry now."""
    variant: int = 0
    """The number of the run among those of an experiment, from 1; 0 where there is one."""
    variants: int = 0
    note: str = ""
    """What else happens now, such as a model being loaded."""

    @property
    def name(self) -> str:
        """`run`, or `run (variant 2 of 4)`."""
        return f"{self.what} (variant {self.variant} of {self.variants})" if self.variants > 1 else self.what

    @property
    def facts(self) -> list[str]:
        """Rate, failures, retries, cost and time left, as far as there is something to say."""
        found = []
        if self.done > self.before:
            slow = f"{self.rate:.1f}/s" if self.rate >= 0.1 else f"{60 * self.rate:.1f}/min"
            found.append(f"{self.rate:,.0f}/s" if self.rate >= 10 else slow)
        if self.failed:
            found.append(f"{self.failed:,} failed")
        if self.retries:
            found.append(f"{self.retries:,} {'retry' if self.retries == 1 else 'retries'}")
        if self.waiting:
            found.append(f"{self.waiting:,} waiting for retry")
        if self.cost:
            expected = self.projected_cost
            rest = "" if expected is None or self.done >= self.total else f" of about ${expected:.2f}"
            found.append(f"${self.cost:.2f}{rest}")
        left = self.seconds_left
        if left is not None and self.done < self.total:
            found.append(f"{int(left) // 60}:{int(left) % 60:02d} left")
        return [*([self.note] if self.note else []), *found]

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
        """The cost of the stage at its end, if the remaining items are like the finished ones; None without any."""
        worked = self.done - self.before
        return self.cost / worked * (self.total - self.before) if worked > 0 else None


Listener = Callable[[Progress], None]


HEARTBEAT_SECONDS = 30.0
"""How often a line is written where it cannot be rewritten in place: a log should show that work goes on."""


class ProgressLine:
    """One line, rewritten in place on a terminal; elsewhere a line every 30 seconds."""

    WIDTH = 24
    EVERY = 0.1

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._shown: float | None = None
        self._length = 0
        self._note = ""
        self._ended: Progress | None = None
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if self._stream.isatty():
                self._rewrite(progress)
            else:
                self._log(progress)

    def _rewrite(self, progress: Progress) -> None:
        now, finished = self._clock(), progress.done >= progress.total
        if self._ended is progress or (
            not finished and self._shown is not None and now - self._shown < self.EVERY
        ):
            return
        from karat.layout import display_width, fit, pad  # most stages show no progress

        self._shown = now
        line = fit(self.line(progress), max(20, shutil.get_terminal_size().columns - 1))
        self._stream.write("\r" + pad(line, self._length))
        self._length = display_width(line)
        if finished:
            self._stream.write("\n")
            self._length = 0
            self._ended = progress
        self._stream.flush()

    def _log(self, progress: Progress) -> None:
        now = self._clock()
        if self._shown is None:
            self._shown = now
        if progress.note == self._note and (
            now - self._shown < HEARTBEAT_SECONDS or progress.done >= progress.total
        ):
            return
        new_note = progress.note != self._note and progress.note
        self._note = progress.note
        if new_note or now - self._shown >= HEARTBEAT_SECONDS:
            self._shown = now
            text = ", ".join([f"{progress.done:,} of {progress.total:,}", *progress.facts])
            self._stream.write(f"karat: {progress.name}: {text}\n")
            self._stream.flush()

    def line(self, progress: Progress) -> str:
        """`run ████████········ 4,200/10,000  1,234/s  3 failed  $0.42 of about $1.00  0:05 left`."""
        share = progress.done / progress.total if progress.total else 1.0
        full = int(share * self.WIDTH)
        bar = f"{'█' * full}{'·' * (self.WIDTH - full)}"
        return "  ".join([f"{progress.name} {bar} {progress.done:,}/{progress.total:,}", *progress.facts])

    def end(self) -> None:
        """End the line when work stops early, or before something else is written."""
        if self._length:
            self._stream.write("\n")
            self._length = 0


class NotebookProgress:
    """A progress bar in the output of a notebook cell, updated in place."""

    EVERY = 0.2

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown: float | None = None
        self._bars: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        ipython: Any = importlib.import_module("IPython.display")
        with self._lock:
            now = self._clock()
            finished = progress.done >= progress.total
            if not finished and self._shown is not None and now - self._shown < self.EVERY:
                return
            self._shown = now
            shown = ipython.HTML(self.html(progress))
            bar = self._bars.get(id(progress))
            if bar is None:
                self._bars[id(progress)] = ipython.display(shown, display_id=True)
            else:
                bar.update(shown)

    def html(self, progress: Progress) -> str:
        """Return the bar and its text."""
        from karat.formatting import escape_html  # as above

        text = ", ".join([f"{progress.done:,} of {progress.total:,}", *progress.facts])
        return (
            f"<div class='karat'>{escape_html(progress.name)} <progress value='{progress.done}'"
            f" max='{max(1, progress.total)}'></progress> {escape_html(text)}</div>"
        )


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def listener(progress: bool | Listener | None) -> Listener | None:
    """The listener for an argument `progress`: a function, or True for a line on the terminal or a notebook's bar."""
    if progress is True:
        return NotebookProgress() if in_notebook() else ProgressLine()
    return progress or None
