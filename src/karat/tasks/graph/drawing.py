"""A graph drawn: as Mermaid text, and as an SVG made here without anything else."""

from __future__ import annotations

from html import escape

from karat.tasks.graph.plan import Plan
from karat.tasks.graph.state import END, START

WIDTH, HEIGHT, ACROSS, DOWN = 170, 46, 40, 60
COLOURS = {
    "llm": "#dbeafe", "multi_llm": "#c7d2fe", "agent": "#fde68a", "lambda": "#dcfce7",
    "weighted_sampler": "#fae8ff", "subgraph": "#e5e7eb", "idle": "#f3f4f6",
}  # fmt: skip
LONGEST = 24

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
    places = _places(plan)
    wide = max(x for x, _ in places.values()) + WIDTH + 90
    high = max(y for _, y in places.values()) + HEIGHT + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
        ' font-family="sans-serif" font-size="12">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#374151"/></marker></defs>',
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
    ]
    parts += [_arrow(places, arrow) for arrow in arrows(plan)]
    parts += [_box(name, plan, *place) for name, place in places.items()]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _layers(plan: Plan) -> dict[str, int]:
    """How far each node is from START, by the longest way that does not go back."""
    ways = [(source, target) for source, target, _ in arrows(plan)]
    order = {name: number for number, name in enumerate([START, *plan.nodes, END])}
    layer = dict.fromkeys(order, 0)
    for _ in order:
        for source, target in ways:
            back = order[target] <= order[source] and target != END
            if not back and layer[target] < layer[source] + 1 < len(order) + 1:
                layer[target] = layer[source] + 1
    layer[END] = max(layer.values()) if layer[END] == max(layer.values()) else max(layer.values()) + 1
    return layer


def _places(plan: Plan) -> dict[str, tuple[int, int]]:
    rows: dict[int, list[str]] = {}
    for name, layer in _layers(plan).items():
        rows.setdefault(layer, []).append(name)
    widest = max(map(len, rows.values())) * (WIDTH + ACROSS)
    places: dict[str, tuple[int, int]] = {}
    for at, layer in enumerate(sorted(rows)):
        names = rows[layer]
        left = 20 + (widest - len(names) * (WIDTH + ACROSS)) // 2
        for column, name in enumerate(names):
            places[name] = (left + column * (WIDTH + ACROSS), 20 + at * (HEIGHT + DOWN))
    return places


def _arrow(places: dict[str, tuple[int, int]], arrow: Arrow) -> str:
    source, target, answer = arrow
    (x1, y1), (x2, y2) = places[source], places[target]
    start, end = (x1 + WIDTH // 2, y1 + HEIGHT), (x2 + WIDTH // 2, y2)
    if y2 > y1:
        middle = (start[1] + end[1]) // 2
        path = f"M{start[0]} {start[1]}C{start[0]} {middle} {end[0]} {middle} {end[0]} {end[1]}"
        label = ((start[0] + end[0]) // 2 + 4, middle)
    else:
        right = max(x1, x2) + WIDTH + 40
        path = f"M{x1 + WIDTH} {y1 + 23}C{right} {y1 + 23} {right} {y2 + 23} {x2 + WIDTH} {y2 + 23}"
        label = (right - 12, (y1 + y2) // 2 + 23)
    dashed = ' stroke-dasharray="4 3"' if answer else ""
    drawn = f'<path d="{path}" fill="none" stroke="#374151"{dashed} marker-end="url(#head)"/>'
    if answer:
        drawn += f'<text x="{label[0]}" y="{label[1]}" fill="#374151">{_short(answer)}</text>'
    return drawn


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
        ' stroke="#374151"/>'
        f'<text x="{middle}" y="{y + 20}" text-anchor="middle" font-weight="bold">{_short(name)}</text>'
        f'<text x="{middle}" y="{y + 36}" text-anchor="middle" fill="#4b5563">{_short(node.kind)}</text>'
    )


def _short(text: str) -> str:
    return _safe(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")
