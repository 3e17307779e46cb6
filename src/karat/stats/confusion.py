"""A confusion matrix, folded cluster by cluster and merged exactly, with the moments its variance needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from karat.stats.clusters import Sizes

Cell = tuple[Hashable, Hashable]
"""What was right, and what was said."""


class Misused(NamedTuple):
    """A class that was said and is the golden one, of an item that is wrong for more than its class."""

    label: Hashable


def class_of(said: Hashable) -> Hashable:
    """The class that was said, however it was meant."""
    return said.label if isinstance(said, Misused) else said


class ConfusionState:
    """Counts of (golden, predicted), and of how often two of them fall in one cluster.

    All are whole numbers, so `merge` in any grouping and order gives the same metrics to the last bit. The
    memory is that of the distinct cells, and of the distinct pairs of cells seen within clusters of several
    items.
    """

    __slots__ = ("counts", "pairs", "several", "singles")

    def __init__(self) -> None:
        self.counts: Counter[Cell] = Counter()
        self.pairs: Counter[tuple[Cell, Cell]] = Counter()
        """Σ over clusters of several items of count(cell)·count(other), less the count where both are one
        cell: with the counts themselves this is the second moment of the clusters' matrices."""
        self.several = Sizes()
        """The sizes of the clusters of several items."""
        self.singles = 0
        """How many clusters have one item."""

    def add_one(self, golden: Hashable, predicted: Hashable) -> None:
        """Adds a cluster of one item."""
        self.counts[golden, predicted] += 1
        self.singles += 1

    def add(self, items: Iterable[Cell]) -> None:
        """Adds the (golden, predicted) pairs of one cluster: the attempts at one example."""
        inside = Counter(items)
        size = inside.total()
        if not size:
            return
        self.counts.update(inside)
        if size == 1:
            self.singles += 1
            return
        self.several.add(size)
        for cell, times in inside.items():
            for other, others in inside.items():
                product = times * (others - 1) if cell == other else times * others
                if product:
                    self.pairs[cell, other] += product

    def merge(self, other: ConfusionState) -> ConfusionState:
        """This state with the clusters of another added; a cluster must be wholly in one of them."""
        self.counts.update(other.counts)
        self.pairs.update(other.pairs)
        self.several.merge(other.several)
        self.singles += other.singles
        return self

    @property
    def n(self) -> int:
        """How many items were added."""
        return self.several.items + self.singles

    @property
    def sizes(self) -> Sizes:
        """The sizes of all clusters."""
        return self.several.with_singles(self.singles)

    def labels(self) -> list[Hashable]:
        """The union of the golden and the predicted classes, in an order that does not depend on arrival."""
        seen = {class_of(label) for cell in self.counts for label in cell}
        return sorted(seen, key=lambda label: (type(label).__name__, _sortable(label)))

    def matrix(self) -> tuple[list[Hashable], list[list[int]]]:
        """The labels and the counts: one row for each golden class, one column for each predicted."""
        labels, counts = self.labels(), Counter[Cell]()
        for (golden, said), times in self.counts.items():
            counts[golden, class_of(said)] += times
        return labels, [[counts[row, column] for column in labels] for row in labels]


def _sortable(label: Hashable) -> tuple[int, float, str]:
    if isinstance(label, (int, float)):
        return 0, float(label), ""
    return 1, 0.0, str(label)


def state_of_matrix(labels: Iterable[Hashable], counts: Iterable[Iterable[int]]) -> ConfusionState:
    """The state of a confusion matrix of independent items."""
    names = list(labels)
    state = ConfusionState()
    for golden, row in zip(names, counts, strict=True):
        for predicted, times in zip(names, row, strict=True):
            if times:
                state.counts[golden, predicted] += int(times)
                state.singles += int(times)
    return state
