"""A graph drawn: as Mermaid text, and as an SVG made here without anything else."""

from __future__ import annotations

import unicodedata
from html import escape

from karat.graph.layout import HEIGHT, WIDTH, Layout, Point
from karat.graph.plan import Plan
from karat.graph.state import END, START

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


def arrows(plan: Plan) -> list[Arrow]:
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


def mermaid(plan: Plan) -> str:
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


def svg(plan: Plan) -> str:
    """The graph as an SVG, in layers from START to END; ways back are drawn on the right."""
    answers: dict[tuple[str, str], list[str]] = {}
    for source, target, answer in arrows(plan):
        answers.setdefault((source, target), []).append(answer)
    texts = {way: " / ".join(said) if all(said) else "" for way, said in answers.items()}
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
            labels.append(_label(_near(*points) if len(points) == 2 else _between(*points[1:3]), text))
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


def _between(one: Point, other: Point) -> Point:
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
    """What a condition says, on white so that no line runs through it."""
    shown, width = _short(text), _label_width(text)
    return (
        f'<rect x="{at[0] - width // 2}" y="{at[1] - 8}" width="{width}" height="15" fill="#ffffff"/>'
        f'<text x="{at[0]}" y="{at[1] + 4}" text-anchor="middle" fill="{INK}">{_safe(shown)}</text>'
    )


def _box(name: str, plan: Plan, x: int, y: int) -> str:
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
    """How long a text is in letters of usual width: those of some scripts are twice as wide."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _short(text: str) -> str:
    if _letters(text) <= LONGEST:
        return text
    while _letters(text) > LONGEST - 1:
        text = text[:-1]
    return text + "…"
