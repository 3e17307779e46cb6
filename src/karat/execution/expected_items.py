"""The items that a run or an evaluation has when it is complete. Those that are not stored are pending."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from karat.records import RunHeader, Skipped
from karat.store.backend import FAILED
from karat.store.columns import load_columns
from karat.store.handles import Run


def run_lengths(counts: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers of units of examples as a header stores them: `(units, examples in a row)`."""
    out: list[tuple[int, int]] = []
    for units in counts:
        if out and out[-1][0] == units:
            out[-1] = (units, out[-1][1] + 1)
        else:
            out.append((units, 1))
    return out


class _Units:
    """The number of units of each example of a run."""

    def __init__(self, header: RunHeader) -> None:
        self._starts: list[int] = []
        self._units = [units for units, _ in header.units]
        position = header.offset
        for _, examples in header.units:
            self._starts.append(position)
            position += examples

    def at(self, position: int) -> int:
        return self._units[bisect_right(self._starts, position) - 1]


class Together:
    """Runs whose outputs an evaluator sees together, one run for most evaluators; and the items that makes."""

    def __init__(self, runs: Sequence[Run], count: int) -> None:
        """`count` is the number of examples of their dataset."""
        self.first = max(run.header.offset for run in runs)
        self.last = min(run.selection(count).stop for run in runs)
        self.attempts = min(run.header.attempts for run in runs)
        self._units = [_Units(run.header) for run in runs if run.header.units]
        if len(self._units) < len(runs):
            self._units = []  # the one without units has one output for each attempt

    def at(self, position: int) -> int:
        """The number of items of one example."""
        if not self.first <= position < self.last:
            return 0
        if not self._units:
            return self.attempts
        return self.attempts * min(units.at(position) for units in self._units)

    def between(self, start: int, stop: int) -> list[int]:
        """The number of items of each example in a range of positions."""
        if not self._units and self.first <= start and stop <= self.last:
            return [self.attempts] * (stop - start)
        return [self.at(position) for position in range(start, stop)]

    def total(self) -> int:
        """The number of items of all examples."""
        if not self._units:
            return max(0, self.last - self.first) * self.attempts
        return sum(map(self.at, range(self.first, self.last)))


PENDING = Skipped("pending")
"""The outcome of an item that has no result yet."""


class FailedOutputs:
    """The outputs of runs that have failed and were not computed since, read when they are first asked for."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = {run.id: run for run in runs}
        self._items: dict[str, set[tuple[int, int, str]]] = {}

    def current(self, skipped: Skipped, position: int, attempt: int, unit: str) -> Skipped:
        """A comparison that was skipped because outputs failed, with those that still fail; pending if none does.

        `--retry-failed` computes outputs after they have been compared. Until they are evaluated again, the stored
        skip would count as a loss of a run that has an output now.
        """
        item = position, attempt, unit
        failed = tuple(run for run in skipped.failed_outputs if item in self._lengths_of(run))
        if failed == skipped.failed_outputs:
            return skipped
        return msgspec.structs.replace(skipped, failed_outputs=failed) if failed else PENDING

    def _lengths_of(self, run: str) -> set[tuple[int, int, str]]:
        if run not in self._items:
            columns = load_columns(self._runs[run], (), statuses=[FAILED])
            places = zip(columns.positions.tolist(), columns.codes.tolist(), strict=True)
            names = columns.items
            self._items[run] = {(at, names[code].attempt, names[code].unit) for at, code in places}
        return self._items[run]
