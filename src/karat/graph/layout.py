"""Where the boxes and arrows of a drawn graph go: in layers, and no arrow through a box.

A way that passes layers gets a lane of its own through each of them. A way back runs through the gaps between the
layers and up a margin on the right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

WIDTH, HEIGHT, ACROSS, DOWN = 170, 46, 40, 64
LANE = 24
"""The width of a lane, without the space beside it."""
EDGE = 20
"""What is free around the picture."""
SWEEPS = 8

Way = tuple[str, str]
Spot = tuple[str, ...]
"""What takes room in a layer: a node `(name,)`, or the lane of a way `(source, target, layer)`."""
Point = tuple[int, int]


class Layout:
    """The place of every node and the points that every way goes through."""

    def __init__(self, names: Sequence[str], ways: Mapping[Way, int]) -> None:
        """`names` from the beginning to the end; the `ways` between them, with the widths of what is written there."""
        self._order = {name: number for number, name in enumerate(names)}
        self._ways = ways
        self._last = names[-1]
        self.layers = self._layered()
        self._rows = self._arranged()
        self._left = self._placed()
        self._back = [way for way in self._ways if self.goes_back(*way)]
        self.inner = max(self._left[spot] + self._width(spot) for row in self._rows for spot in row)
        self.width = self.inner + EDGE + (LANE * len(self._back) if self._back else 0)
        self.height = EDGE + len(self._rows) * (HEIGHT + DOWN) - DOWN + EDGE

    def goes_back(self, source: str, target: str) -> bool:
        """Whether a way leads up, or to where it came from."""
        return self.layers[target] <= self.layers[source]

    def box(self, name: str) -> Point:
        """The upper left corner of a node's box."""
        return self._left[(name,)], self._top(self.layers[name])

    def way(self, source: str, target: str) -> list[Point]:
        """The points of a way down: out of a box, through its lanes, and into a box."""
        first, last = self.layers[source], self.layers[target]
        points = [(self._middle((source,)), self._top(first) + HEIGHT)]
        for layer in range(first + 1, last):
            x = self._middle(_lane(source, target, layer))
            points += [(x, self._top(layer)), (x, self._top(layer) + HEIGHT)]
        return [*points, (self._middle((target,)), self._top(last))]

    def way_back(self, source: str, target: str) -> list[Point]:
        """The corners of a way up: below its box, along the margin, and from above into the other box."""
        number = self._back.index((source, target))
        margin = self.inner + EDGE // 2 + LANE * number + LANE // 2
        layers = [self.layers[one] for one, _ in self._back[:number]]
        beside = layers.count(self.layers[source]) % 3
        (x1, y1), (x2, y2) = self.box(source), self.box(target)
        out, into = x1 + WIDTH - 16 - 8 * beside, x2 + WIDTH - 16 - 8 * (number % 4)
        below, above = y1 + HEIGHT + 12 + 16 * beside, y2 - 14 - 4 * (number % 4)
        return [(out, y1 + HEIGHT), (out, below), (margin, below), (margin, above), (into, above), (into, y2)]

    def _layered(self) -> dict[str, int]:
        """How far each node is from the beginning, by the longest way that does not go back."""
        layer = dict.fromkeys(self._order, 0)
        down = [
            (source, target)
            for source, target in self._ways
            if self._order[target] > self._order[source] or (target == self._last and source != target)
        ]
        for _ in self._order:
            for source, target in down:
                layer[target] = max(layer[target], layer[source] + 1)
        others = max((depth for name, depth in layer.items() if name != self._last), default=0)
        layer[self._last] = others + 1
        return layer

    def _arranged(self) -> list[list[Spot]]:
        """The spots of each layer from left to right, near to what they are connected with."""
        rows: list[list[Spot]] = [[] for _ in range(max(self.layers.values()) + 1)]
        for name, layer in self.layers.items():
            rows[layer].append((name,))
        above: dict[Spot, list[Spot]] = {}
        below: dict[Spot, list[Spot]] = {}
        for source, target in self._ways:
            if self.goes_back(source, target):
                continue
            between = range(self.layers[source] + 1, self.layers[target])
            chain = [(source,), *(_lane(source, target, layer) for layer in between), (target,)]
            for layer, spot in zip(between, chain[1:-1], strict=True):
                rows[layer].append(spot)
            for upper, lower in pairwise(chain):
                below.setdefault(upper, []).append(lower)
                above.setdefault(lower, []).append(upper)
        for sweep in range(SWEEPS):
            neighbours = below if sweep % 2 else above
            for row in reversed(rows) if sweep % 2 else rows:
                _sort(row, rows, neighbours)
        return rows

    def _placed(self) -> dict[Spot, int]:
        """The left end of each spot: layers are centred."""
        widths = [sum(map(self._width, row)) + ACROSS * (len(row) - 1) for row in self._rows]
        left: dict[Spot, int] = {}
        for row, width in zip(self._rows, widths, strict=True):
            x = EDGE + (max(widths) - width) // 2
            for spot in row:
                left[spot] = x
                x += self._width(spot) + ACROSS
        return left

    def _width(self, spot: Spot) -> int:
        if len(spot) == 1:
            return WIDTH
        source, target, layer = spot
        first = int(layer) == self.layers[source] + 1  # where it is written what the condition says
        return max(LANE, self._ways[source, target]) if first else LANE

    def _middle(self, spot: Spot) -> int:
        return self._left[spot] + self._width(spot) // 2

    def _top(self, layer: int) -> int:
        return EDGE + layer * (HEIGHT + DOWN)


def _lane(source: str, target: str, layer: int) -> Spot:
    return source, target, str(layer)


def _sort(row: list[Spot], rows: list[list[Spot]], neighbours: dict[Spot, list[Spot]]) -> None:
    """Puts the spots of a layer into the order of the middles of their neighbours."""
    where = {spot: (at + 0.5) / len(each) for each in rows for at, spot in enumerate(each)}

    def middle(spot: Spot) -> float:
        near = neighbours.get(spot)
        return where[spot] if not near else sum(where[each] for each in near) / len(near)

    row.sort(key=middle)
