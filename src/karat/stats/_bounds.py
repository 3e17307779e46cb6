"""Bounds on an estimate when items are missing: the worst and the best case."""

from __future__ import annotations

import msgspec

from karat.records import Estimate
from karat.stats._validation import StatisticsError, count, finite, items_of


def missing_bounds(
    value: float | None, n: int, of: int, lo: float = 0.0, hi: float = 1.0
) -> tuple[float | None, float | None]:
    """The mean of `of` items of which `n` average `value`, had the others all scored `lo`, and all `hi`.

    (n·value + (of − n)·lo) / of, and the same with `hi`. Nothing is assumed about why they are missing. A
    mean without any item, of no items at all, has no bounds.
    """
    lo, hi = finite(lo, "the least score"), finite(hi, "the largest score")
    if hi < lo:
        raise StatisticsError(f"scores lie between {lo} and {hi}: the first must not be the larger")
    n = count(n, "n")
    of = items_of(n, of)
    if of == 0:
        return None, None
    if n == 0 or value is None:
        return lo, hi
    value = finite(value)
    if of == n:
        return value, value
    lowest = (n * value + (of - n) * lo) / of
    highest = (n * value + (of - n) * hi) / of
    return min(lowest, value) if lo <= value else lowest, max(highest, value) if hi >= value else highest


def with_bounds(estimate: Estimate, of: int, lo: float = 0.0, hi: float = 1.0) -> Estimate:
    """Return the estimate over `n` of `of` items with the bounds that the missing items allow."""
    lowest, highest = missing_bounds(estimate.value, estimate.n, of, lo, hi)
    return msgspec.structs.replace(estimate, of=of, lowest=lowest, highest=highest)
