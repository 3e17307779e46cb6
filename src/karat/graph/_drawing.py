"""Drawings of a graph as Mermaid and SVG; the SVG has boxes in layers, and arrows that do not cross boxes.

An arrow across several layers gets a lane through each of them. A backward arrow runs through the gaps between the
layers and up a margin on the right.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from karat.graph._plan import GraphPlan
from karat.graph._state import END, START

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
        self.layers = self._layers()
        self._rows = self._order_layers()
        self._left = self._left_ends()
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

    def _layers(self) -> dict[str, int]:
        """The layer of each node: its distance from the start by the longest path without backward edges."""
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

    def _order_layers(self) -> list[list[Spot]]:
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

    def _left_ends(self) -> dict[Spot, int]:
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
    """Order the spots of a layer by the middles of their neighbours."""
    where = {spot: (at + 0.5) / len(each) for each in rows for at, spot in enumerate(each)}

    def middle(spot: Spot) -> float:
        near = neighbours.get(spot)
        return where[spot] if not near else sum(where[each] for each in near) / len(near)

    row.sort(key=middle)


COLOURS = {
    "llm": "#dbeafe", "multi_llm": "#c7d2fe", "agent": "#fde68a", "lambda": "#dcfce7",
    "weighted_sampler": "#fae8ff", "subgraph": "#e5e7eb", "idle": "#f3f4f6",
}  # fmt: skip
LONGEST = 21
"""Of a text in a box, in letters of usual width."""
LETTER = 7
"""The width of a letter, about."""
INK = "#374151"

Arrow = tuple[str, str, str]
"""From, to, and what the condition says."""


def arrows(plan: GraphPlan) -> list[Arrow]:
    """Every way that a record can go."""
    out: list[Arrow] = []
    for source, edges in plan.edges.after.items():
        for edge in edges:
            if edge.condition is None:
                out += [(source, target, "") for target in edge.targets]
            elif edge.paths:
                out += [(source, target, answer) for answer, target in edge.paths.items()]
            else:
                out += [(source, target, "?") for target in edge.targets]
        if not edges and source != START:
            out.append((source, END, ""))
    return out


def mermaid(plan: GraphPlan) -> str:
    """The graph as a Mermaid flowchart."""
    ids = {name: f"n{number}" for number, name in enumerate([START, *plan.nodes, END])}
    lines = ["flowchart TD", f'    {ids[START]}(["START"])']
    for name, node in plan.nodes.items():
        lines.append(f'    {ids[name]}["{_safe(name)}<br/>{_safe(node.kind)}"]')
    lines.append(f'    {ids[END]}(["END"])')
    for source, target, answer in arrows(plan):
        label = f'|"{_safe(answer)}"|' if answer else ""
        lines.append(f"    {ids[source]} {'-.->' if answer else '-->'}{label} {ids[target]}")
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    """A label that ends neither its quotes nor its line."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return escape(clean[:80], quote=True).replace("&#x27;", "'")


def svg(plan: GraphPlan) -> str:
    """The graph as an SVG, in layers from START to END; ways back are drawn on the right."""
    answers: dict[tuple[str, str], list[str]] = {}
    for source, target, answer in arrows(plan):
        answers.setdefault((source, target), []).append(answer)
    texts = {way: " / ".join(labels) if all(labels) else "" for way, labels in answers.items()}
    layout = Layout([START, *plan.nodes, END], {way: _label_width(text) for way, text in texts.items()})
    wide, high = layout.width, layout.height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
        ' font-family="sans-serif" font-size="12">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
    ]
    labels: list[str] = []
    for way, text in texts.items():
        back = layout.goes_back(*way)
        points = layout.way_back(*way) if back else layout.way(*way)
        parts.append(_arrow(_corners(points) if back else _curves(points), bool(text)))
        if text:
            labels.append(_label(_near(*points) if len(points) == 2 else _space_between(*points[1:3]), text))
    parts += [_box(name, plan, *layout.box(name)) for name in [START, *plan.nodes, END]]
    return "\n".join([*parts, *labels, "</svg>"]) + "\n"


def _curves(points: list[Point]) -> str:
    """A way down: bent between layers, straight through them."""
    path = f"M{points[0][0]} {points[0][1]}"
    for (x1, y1), (x2, y2) in zip(points[::2], points[1::2], strict=True):
        middle = (y1 + y2) // 2
        path += f"L{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2}"
    return path


def _corners(points: list[Point]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _space_between(one: Point, other: Point) -> Point:
    return (one[0] + other[0]) // 2, (one[1] + other[1]) // 2


def _near(one: Point, other: Point) -> Point:
    """A point of a way down, nearer to its end: where several leave the same box they are apart there."""
    return one[0] + (other[0] - one[0]) * 3 // 4, one[1] + (other[1] - one[1]) * 2 // 3


def _arrow(path: str, conditional: bool) -> str:
    dashed = ' stroke-dasharray="4 3"' if conditional else ""
    return f'<path d="{path}" fill="none" stroke="{INK}"{dashed} marker-end="url(#head)"/>'


def _label_width(text: str) -> int:
    return LETTER * _letters(_short(text)) + 4 if text else 0


def _label(at: Point, text: str) -> str:
    """The label of a condition, on a white background so that lines do not cross the text."""
    shown, width = _short(text), _label_width(text)
    return (
        f'<rect x="{at[0] - width // 2}" y="{at[1] - 8}" width="{width}" height="15" fill="#ffffff"/>'
        f'<text x="{at[0]}" y="{at[1] + 4}" text-anchor="middle" fill="{INK}">{_safe(shown)}</text>'
    )


def _box(name: str, plan: GraphPlan, x: int, y: int) -> str:
    node = plan.nodes.get(name)
    middle = x + WIDTH // 2
    if node is None:
        return (
            f'<rect x="{x + 40}" y="{y}" width="{WIDTH - 80}" height="{HEIGHT}" rx="23" fill="#111827"/>'
            f'<text x="{middle}" y="{y + HEIGHT // 2 + 4}" text-anchor="middle" fill="#ffffff">{name}</text>'
        )
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{COLOURS.get(node.kind, "#ffffff")}"'
        f' stroke="{INK}"/>'
        f'<text x="{middle}" y="{y + 20}" text-anchor="middle" font-weight="bold">{_safe(_short(name))}</text>'
        f'<text x="{middle}" y="{y + 36}" text-anchor="middle" fill="#4b5563">{_safe(_short(node.kind))}</text>'
    )


def _letters(text: str) -> int:
    """The width of a text in letters: those of some scripts are twice as wide."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _short(text: str) -> str:
    if _letters(text) <= LONGEST:
        return text
    while _letters(text) > LONGEST - 1:
        text = text[:-1]
    return text + "…"
