"""Values folded by cluster: an example's attempts, or all examples that share a field of their metadata.

Without a field every example is a cluster and arrives whole, so the memory does not grow. With one, a cluster
arrives in parts, from anywhere; its sums are kept, exactly, until all have been seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from karat.errors import unknown_metadata
from karat.paths import get
from karat.records import Estimate
from karat.stats._classification import ConfusionState
from karat.stats._exact import ExactSum
from karat.stats._means import MeanState

MOST_FIELDS = 50
"""Names of metadata fields that are remembered for a message about one that is not there."""


class FieldNames:
    """Whether a field was ever there, and which ones were: for a message about a name that is wrong."""

    __slots__ = ("known", "seen")

    def __init__(self) -> None:
        self.seen = False
        self.known: set[str] = set()

    def note(self, metadata: Mapping[str, Any], value: object) -> None:
        """Remembers an example: its value, or the fields it has instead."""
        if value is not None:
            self.seen = True
        elif not self.seen:
            # The smallest names are kept, so that the order of the examples does not matter.
            self.known = set(sorted({*self.known, *map(str, metadata)})[:MOST_FIELDS])

    def merge(self, other: FieldNames) -> None:
        """Merge the fields that another state has seen into this one."""
        self.seen |= other.seen
        self.known = set(sorted(self.known | other.known)[:MOST_FIELDS])

    def check(self, field: str, what: str) -> None:
        """Refuses a field that no example had, where there were examples."""
        if not self.seen:
            raise ValueError(f"{what}: {unknown_metadata(field, self.known)}")


def add_sizes(state: MeanState | ConfusionState, size: int, times: int = 1) -> None:
    """Notes clusters of one size in a state whose sums are added otherwise."""
    if size == 1:
        state.singles += times
    elif size:
        state.several.add(size, times)


class _Part:
    """The state of one cluster."""

    __slots__ = ("least", "most", "size", "squares", "total")

    def __init__(self) -> None:
        self.size = 0
        self.total = ExactSum()
        self.squares = ExactSum()
        self.least = math.inf
        self.most = -math.inf

    def add(self, values: Sequence[float]) -> None:
        self.size += len(values)
        for value in values:
            self.total.add(value)
            self.squares.add_square(value)
            self.least, self.most = min(self.least, value), max(self.most, value)

    def merge(self, other: _Part) -> None:
        self.size += other.size
        self.total.merge(other.total)
        self.squares.merge(other.squares)
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)

    def fold(self, mean: MeanState, size: int) -> None:
        """Adds this cluster, which has `size` items; those that are not known here are zeros."""
        mean.add_cluster(self.total, self.squares, size, self.least, self.most)


class Values:
    """Numbers by cluster, and how many are missing."""

    __slots__ = ("fields", "mean", "missing", "parts")

    def __init__(self) -> None:
        self.mean = MeanState()
        self.missing = 0
        self.parts: dict[str, _Part] = {}
        self.fields = FieldNames()

    def add(self, values: Sequence[float], metadata: Mapping[str, Any], cluster: str | None) -> None:
        """Add the values of one example. An example without the clustering field is its own cluster."""
        if cluster is None:
            self.mean.add(values)
            return
        label = get(metadata, cluster)
        self.fields.note(metadata, label)
        if label is None:
            self.mean.add(values)
            return
        part = self.parts.get(str(label))
        if part is None:
            part = self.parts[str(label)] = _Part()
        part.add(values)

    def merge(self, other: Values) -> None:
        """Merge the clusters of another state into this one; a cluster may be in both."""
        self.mean.merge(other.mean)
        self.missing += other.missing
        self.fields.merge(other.fields)
        for label, part in other.parts.items():
            here = self.parts.get(label)
            if here is None:
                here = self.parts[label] = _Part()
            here.merge(part)

    def total(self, cluster: str | None) -> MeanState:
        """All clusters together."""
        if not self.parts:
            if cluster is not None and self.mean.n:
                self.fields.check(cluster, "cluster")
            return self.mean
        total = MeanState().merge(self.mean)
        for part in self.parts.values():
            part.fold(total, part.size)
        return total

    def within(self, everything: Values, cluster: str | None) -> MeanState:
        """These values with zeros for all items of `everything` that they leave out, cluster by cluster."""
        total = MeanState().merge(self.mean)
        zeros = everything.mean.clusters.sizes()
        zeros.subtract(self.mean.clusters.sizes())
        for label, part in everything.parts.items():
            if label in self.parts:
                self.parts[label].fold(total, part.size)
            else:
                zeros[part.size] += 1
        for size, times in zeros.items():
            total.add_cluster(ExactSum(), ExactSum(), size, 0.0, 0.0, times)
        whole = everything.total(cluster)
        total.several, total.singles = whole.several, whole.singles
        return total

    def proportion(self, confidence: float, cluster: str | None = None) -> Estimate:
        """The share of ones, over all but the missing."""
        mean = self.total(cluster)
        return mean.proportion(confidence, of=mean.n + self.missing)

    def estimate(
        self, confidence: float, cluster: str | None = None, bounds: tuple[float, float] | None = (0.0, 1.0)
    ) -> Estimate:
        """The mean, over all but the missing."""
        mean = self.total(cluster)
        return mean.estimate(confidence, of=mean.n + self.missing, bounds=bounds)
