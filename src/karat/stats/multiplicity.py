"""Correcting p-values for how many were looked at."""

from __future__ import annotations

from collections.abc import Sequence

from karat.stats.validation import StatisticsError


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values adjusted by Holm's step-down method (Holm 1979), in the order given.

    The smallest of m is multiplied by m, the next by m − 1, and so on, each at least the one before and at
    most 1. Rejecting where the adjusted value is at most α keeps the chance of any false alarm at α, whatever
    the dependence. None, for a test that could not be made, stays None and is not counted.
    """
    for index, p in enumerate(p_values):
        if p is not None and not 0.0 <= p <= 1.0:
            raise StatisticsError(f"p_values[{index}] is {p!r}: a p-value lies between 0 and 1")
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(known):
        running = max(running, min(1.0, p * (len(known) - rank)))
        adjusted[index] = running
    return adjusted
