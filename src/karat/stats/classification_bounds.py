"""How good or bad classification metrics could be when items are missing from the confusion matrix.

A missing item may be of any of the classes seen and may have been predicted as any of them. The bounds hold whatever
the items were; those of averages are what a continuous allocation of the items to the classes reaches, so a little
wider than whole items could make them, never narrower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

Bounds = tuple[float, float]


class Tally(msgspec.Struct, frozen=True):
    """One class: items that are right, that have the class, and that were predicted as it."""

    right: int
    support: int
    predicted: int

    def ratio(self, metric: str) -> tuple[float, float]:
        """Numerator and denominator of `precision`, `recall` or `f1`."""
        if metric == "f1":
            return 2.0 * self.right, float(self.support + self.predicted)
        return float(self.right), float(self.predicted if metric == "precision" else self.support)


def class_bounds(tally: Tally, metric: str, missing: int) -> Bounds:
    """Of one class: had all missing items spoiled it, and had all been right."""
    top, bottom = tally.ratio(metric)
    each = 2.0 if metric == "f1" else 1.0  # a right item counts on both sides of F1, a wrong one on one
    if not bottom + missing:
        return 0.0, 1.0
    return top / (bottom + missing), (top + each * missing) / (bottom + each * missing)


def macro_bounds(tallies: Sequence[Tally], metric: str, missing: int, entering: int = 0) -> Bounds:
    """Of the mean over classes. `entering` more classes join it as soon as a missing item is of them."""
    worst, best = _sums(tallies, [1.0] * len(tallies), metric, missing)
    joining = min(entering, missing)
    classes = len(tallies)
    if not classes:
        return 0.0, 1.0
    return _within(worst / (classes + joining), (best + joining) / (classes + joining))


def weighted_bounds(tallies: Sequence[Tally], metric: str, missing: int) -> Bounds:
    """Of the mean over classes by support: the missing items weigh nothing at worst, and as right ones at best."""
    supports = [float(tally.support) for tally in tallies]
    items = sum(supports) + missing
    if not items:
        return 0.0, 1.0
    worst, best = _sums(tallies, supports, metric, missing)
    return _within(worst / items, (best + missing) / items)


def _sums(tallies: Sequence[Tally], weights: Sequence[float], metric: str, missing: int) -> Bounds:
    """The least and the largest Σ weight · metric that the missing items allow."""
    budget = (2.0 if metric == "f1" else 1.0) * missing
    ratios = [tally.ratio(metric) for tally in tallies]
    known = [(w, top, bottom) for w, (top, bottom) in zip(weights, ratios, strict=True) if bottom]
    worst = _least([(w * top, bottom) for w, top, bottom in known], budget)
    lost = _least([(w * (bottom - top), bottom) for w, top, bottom in known], budget)
    empty = sorted((w for w, (_, bottom) in zip(weights, ratios, strict=True) if not bottom), reverse=True)
    best = math.fsum(w for w, _, _ in known) - lost + math.fsum(empty[:missing])
    return worst, best


def _least(parts: Sequence[tuple[float, float]], budget: float) -> float:
    """The least Σ top / (bottom + x) over x ≥ 0 with Σ x = budget.

    At the least one all parts with x > 0 have the same √top / (bottom + x); those join from the largest
    √top / bottom down, for as long as theirs is larger than what the joined ones have come to.
    """
    if not budget:
        return math.fsum(top / bottom for top, bottom in parts)
    order = sorted(parts, key=lambda part: (-math.sqrt(part[0]) / part[1], part))
    roots, bottoms, joined = 0.0, budget, 0
    for top, bottom in order:
        if joined and math.sqrt(top) * bottoms <= roots * bottom:
            break
        if not top:
            break
        roots, bottoms, joined = roots + math.sqrt(top), bottoms + bottom, joined + 1
    rest = math.fsum(top / bottom for top, bottom in order[joined:])
    return rest + (roots * roots / bottoms if joined else 0.0)


def _within(low: float, high: float) -> Bounds:
    return max(0.0, low), min(1.0, high)
