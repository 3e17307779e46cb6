"""Pairwise comparisons as columns, counted by pair and by cluster for the models that rank from them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from karat.stats.validation import StatisticsError, same_length

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

_BLOCK = 1 << 22
"""Numbers of a clusters × runs table that are held at a time (32 MB)."""


class Comparisons:
    """Who met whom, with what outcome for the first, in which cluster; names and clusters as integers."""

    def __init__(
        self, first: Any, second: Any, outcomes: Any, clusters: Any = None, names: Iterable[Any] | None = None
    ) -> None:
        same_length("comparisons", first=first, second=second, outcomes=outcomes)
        self.names, self.first, self.second = _encode_runs(first, second, names)
        self.outcomes: Floats = np.asarray(outcomes, dtype=np.float64)
        inside = (self.outcomes >= 0.0) & (self.outcomes <= 1.0)
        if not inside.all():
            at = int(np.argmin(inside))
            raise StatisticsError(
                f"outcome of comparison {at} is {self.outcomes[at]}: it is 1, 0.5 or 0 for the first"
            )
        same = self.first == self.second
        if same.any():
            at = int(np.argmax(same))
            name = self.names[int(self.first[at])]
            raise StatisticsError(f"comparison {at} has {name!r} on both sides: compare two different runs")
        self.clusters: Integers | None = None
        self.cluster_count = len(self.outcomes)
        if clusters is not None:
            same_length("comparisons", first=first, clusters=clusters)
            codes, labels = _encode(clusters)
            if len(labels) < len(codes):
                self.clusters, self.cluster_count = codes, len(labels)
        self.flat: Integers = self.first * len(self.names) + self.second

    def __len__(self) -> int:
        return len(self.outcomes)

    def table(self) -> PairTable:
        """The counts of every ordered pair."""
        k = len(self.names)

        def summed(weights: Any = None) -> Floats:
            return np.bincount(self.flat, weights, minlength=k * k).reshape(k, k).astype(np.float64)

        return PairTable(
            games=summed(),
            points=summed(self.outcomes),
            squares=summed(self.outcomes * self.outcomes),
            ties=summed(self.outcomes == 0.5),
        )

    def by_cluster(self, columns: int) -> Iterator[tuple[Any, Integers, int]]:
        """Blocks of whole clusters: which comparisons, their clusters counted from 0, and how many clusters.

        A block's clusters × columns table fits into memory, however many clusters there are.
        """
        assert self.clusters is not None
        most = max(1, _BLOCK // columns)
        if self.cluster_count <= most:
            yield slice(None), self.clusters, self.cluster_count
            return
        order = np.argsort(self.clusters, kind="stable")
        sorted_clusters = self.clusters[order]
        for start in range(0, self.cluster_count, most):
            stop = min(start + most, self.cluster_count)
            low, high = np.searchsorted(sorted_clusters, (start, stop))
            yield order[low:high], sorted_clusters[low:high] - start, stop - start


class PairTable(msgspec.Struct, frozen=True):
    """For every ordered pair (first, second): how many comparisons, and the first's points in them."""

    games: Any
    points: Any
    squares: Any
    ties: Any

    def components(self) -> list[list[int]]:
        """The groups of runs that comparisons connect, largest first."""
        linked = (self.games + self.games.T) > 0
        unseen = set(range(len(linked)))
        groups = []
        while unseen:
            group, frontier = set(), {min(unseen)}
            while frontier:
                group |= frontier
                reached = np.flatnonzero(linked[list(frontier)].any(axis=0))
                frontier = set(reached.tolist()) - group
            unseen -= group
            groups.append(sorted(group))
        return sorted(groups, key=lambda group: (-len(group), group))

    def position_known(self) -> bool:
        """Whether being first can be told from being strong.

        It cannot when some heights of the runs explain every order: the first always one step above the second.
        """
        height = np.zeros(len(self.games))
        seen = np.zeros(len(self.games), dtype=bool)
        for members in self.components():
            frontier = members[:1]
            seen[frontier] = True
            while frontier:
                one = frontier.pop()
                for beside, step in ((self.games[one], -1.0), (self.games[:, one], 1.0)):
                    new = np.flatnonzero((beside > 0) & ~seen)
                    height[new], seen[new] = height[one] + step, True
                    frontier.extend(new.tolist())
        first, second = np.nonzero(self.games)
        return bool((height[first] - height[second] != 1.0).any())

    def separated(self) -> bool:
        """Whether some runs of a component never lost to the others, so that no finite maximum exists."""
        beats = (self.points + (self.games - self.points).T) > 0
        reach = (beats | np.eye(len(beats), dtype=bool)).astype(np.float32)
        for _ in range(max(1, len(beats).bit_length())):
            reach = ((reach @ reach) > 0).astype(np.float32)
        linked = (self.games + self.games.T) > 0
        return bool((linked & (reach == 0)).any())


def _encode(values: Any) -> tuple[Integers, list[Hashable]]:
    """Labels as integers from 0, and the labels."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.size:
        low, high = int(values.min()), int(values.max())
        if high - low <= 4 * len(values) + 1000:  # a table of all between is cheaper than sorting
            shifted = values.astype(np.int64) - low
            present = np.bincount(shifted, minlength=high - low + 1) > 0
            labels = np.flatnonzero(present) + low
            codes: Integers = (np.cumsum(present) - 1)[shifted]
            return codes, list(labels.tolist())
    if isinstance(values, np.ndarray):
        values = values.tolist()
    index: dict[Hashable, int] = {}
    listed = [index.setdefault(value, len(index)) for value in values]
    return np.array(listed, dtype=np.int64), list(index)


def _encode_runs(
    first: Any, second: Any, names: Iterable[Any] | None
) -> tuple[list[Any], Integers, Integers]:
    """Both columns in one numbering. Names that never meet anyone keep their place."""
    both: Any
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        both = np.concatenate([first, second])
    else:
        both = [*first, *second]
    codes, labels = _encode(both)
    if names is not None:
        listed = list(names)
        place = {name: position for position, name in enumerate(listed)}
        missing = [label for label in labels if label not in place]
        if missing:
            raise StatisticsError(f"names lack {missing[0]!r}, which is in a comparison: name every run")
        codes = np.array([place[label] for label in labels], dtype=np.int64)[codes]
        labels = listed
    return labels, codes[: len(first)], codes[len(first) :]
