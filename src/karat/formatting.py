"""Reports as plain text, for a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from karat.records import AggregationHeader, Counts, Estimate, group_text, interval_text, missing_text


def clean(text: Any, longest: int = 200) -> str:
    """Make untrusted text safe for a terminal: one line, no control characters, bounded length."""
    shown = "".join(
        c if unicodedata.category(c)[0] != "C" else " " if c in "\n\t\r" else "�"
        for c in str(text)[: longest + 1]
    )
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def plural(count: int, noun: str) -> str:
    """`1 example`, `3 examples`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns padded to their widest cell; the first row is the head."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = [
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
        if number == 0:
            lines.append("  ".join("─" * w for w in widths).rstrip())
    return "\n".join(lines)


def counts_text(counts: Counts) -> str:
    """`1,000 items: 950 ok, 50 failed`."""
    parts = [f"{counts.ok:,} ok"]
    for name in ("failed", "skipped", "pending"):
        if value := getattr(counts, name):
            note = (
                f" ({counts.not_applicable:,} not applicable)"
                if name == "skipped" and counts.not_applicable
                else ""
            )
            parts.append(f"{value:,} {name}{note}")
    if counts.reused:
        parts[0] += f" ({counts.reused:,} reused)"
    return f"{plural(counts.total, 'item')}: {', '.join(parts)}"


def number(value: float | None, digits: int = 3) -> str:
    """A number as reports show it; an em dash for None."""
    return "—" if value is None else f"{value:.{digits}f}"


def bounds_text(estimate: Estimate, sign: str = "") -> str:
    """The bounds of an estimate allowing for missing items; empty if none are missing."""
    return missing_text(estimate, signed=bool(sign))


def effect_text(estimate: Estimate) -> str:
    """The design effect of clusters; empty if items are independent."""
    effect, clusters = estimate.metadata.get("design_effect"), estimate.metadata.get("clusters")
    if effect is None or clusters is None:
        return ""
    return f"design effect {effect:.2f}, {clusters:,} clusters"


MOST_NUMBERS = 20
"""Limit on the estimates shown per aggregator; free text has as many classes as answers."""


def aggregation_report(
    header: AggregationHeader, runs: Mapping[str, str], most: int | None = MOST_NUMBERS
) -> str:
    """Estimates with their intervals and denominators, then the names of tables, then failures.

    The report shows at most `most` estimates per aggregator and evaluator. `runs` maps run ids to labels.
    """
    lines = [f"aggregation {header.id}  {header.status}  {counts_text(header.counts)}", ""]
    seen: dict[tuple[str, str, str | None], int] = {}
    shown: list[Estimate] = []
    for estimate in header.estimates:
        whose = (estimate.evaluator, estimate.aggregator, estimate.run)
        seen[whose] = seen.get(whose, 0) + 1
        if most is None or seen[whose] <= most:
            shown.append(estimate)
    if shown:
        lines.append(as_text([estimate_table(shown, runs)]))
    for (evaluator, aggregator, _), count in seen.items():
        if most is not None and count > most:
            whose_text = clean(f"{evaluator} {aggregator}", 80)
            lines.append(f"{whose_text}: {count - most:,} more estimates (see karat show {header.id})")
    if header.tables:
        names = ", ".join(clean(table.label, 80) for table in header.tables[:20])
        lines.append(f"tables: {names} (see karat report {header.id})")
    for failure in header.failures:
        error = failure.error
        lines.append(f"{clean(failure.label, 80)} failed: {clean(error.type, 60)}: {clean(error.message)}")
    return "\n".join(lines)


def estimate_table(
    estimates: Sequence[Estimate], runs: Mapping[str, str], lower_is_better: Collection[str] = ()
) -> Table:
    """A table of estimates: the columns that distinguish them, then value, interval, n and notes.

    `lower_is_better` are evaluator keys; if there are any, arrows show the better direction of each metric.
    """

    def evaluator(each: Estimate) -> str:
        if not lower_is_better or not each.evaluator:
            return each.evaluator
        return f"{each.evaluator} {'↓' if each.evaluator in lower_is_better else '↑'}"

    several = len({each.run for each in estimates}) > 1
    columns: list[tuple[str, Callable[[Estimate], str]]] = [
        ("evaluator", evaluator),
        ("metric", lambda each: each.metric),
    ]
    if any(each.group for each in estimates):
        columns.append(("group", lambda each: group_text(each.group)))
    if several:
        columns.append(("run", lambda each: runs.get(each.run or "", each.run or "")))
    confidences = {each.confidence for each in estimates}
    head = [name for name, _ in columns] + ["value"]
    head += [f"{percent(confidences.pop())} interval" if len(confidences) == 1 else "interval", "n"]
    notes = [
        "; ".join(filter(None, [bounds_text(each), effect_text(each), str(each.metadata.get("note", ""))]))
        for each in estimates
    ]
    rows = [
        [
            *(text(each) for _, text in columns),
            number(each.value),
            interval_text(each) or "—",
            f"{each.n:,} of {each.of:,}",
            *([note] if any(notes) else []),
        ]
        for each, note in zip(estimates, notes, strict=True)
    ]
    right = len(columns)
    return Table([*head, *(["notes"] if any(notes) else [])], rows, [right, right + 2])


CELL = 200
PARAGRAPH = 2000


class Heading(msgspec.Struct, frozen=True):
    """A section title."""

    text: str
    level: int = 2


class Paragraph(msgspec.Struct, frozen=True):
    """One sentence or more."""

    text: str


class Table(msgspec.Struct, frozen=True):
    """Rows under a head; `right` are the columns of numbers."""

    head: list[str]
    rows: list[list[str]]
    right: list[int] = []
    cell: int = CELL
    """The maximum length of a cell."""


Block = Heading | Paragraph | Table


def as_text(blocks: Iterable[Block]) -> str:
    """Render blocks as plain text for a terminal."""
    parts: list[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            title = clean(block.text)
            parts.append(f"{title}\n{'═' * len(title)}" if block.level == 1 else title)
        elif isinstance(block, Paragraph):
            parts.append(clean(block.text, PARAGRAPH))
        elif block.rows:
            rows = [[clean(cell, block.cell) for cell in row] for row in [block.head, *block.rows]]
            parts.append(table(rows, right=block.right))
    return "\n\n".join(parts)


def as_markdown(blocks: Iterable[Block]) -> str:
    """Render blocks as Markdown; untrusted text is escaped."""
    parts: list[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"{'#' * block.level} {escape(block.text)}")
        elif isinstance(block, Paragraph):
            parts.append(escape(block.text, PARAGRAPH))
        elif block.rows:
            parts.append(_markdown_table(block))
    return "\n\n".join(parts) + "\n"


def _markdown_table(block: Table) -> str:
    rules = ["---:" if column in block.right else "---" for column in range(len(block.head))]
    lines = [block.head, rules, *([escape(cell, block.cell) for cell in row] for row in block.rows)]
    lines[0] = [escape(cell) for cell in block.head]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~!&$])")
_LINK = re.compile(r"(https?|ftp|mailto)(:)", re.IGNORECASE)
_LIST = re.compile(r"^(\s*)([-+]|\d+[.)])(\s)")


def escape(text: Any, longest: int = CELL) -> str:
    """Escape text for Markdown: no emphasis, code, link, HTML, mention or cell border."""
    shown = clean(text, longest)
    shown = _MARKUP.sub(r"\\\1", shown).replace("\\&", "&amp;").replace("\\<", "&lt;").replace("\\>", "&gt;")
    shown = _LINK.sub(lambda found: f"{found.group(1)}&#58;", shown)
    shown = _LIST.sub(lambda found: f"{found.group(1)}\\{found.group(2)}{found.group(3)}", shown)
    # A zero-width space keeps @name from notifying anybody; ordinary addresses stay readable.
    return re.sub(r"(^|[\s(])@(?=\w)", "\\1@\u200b", shown)


def interval(low: float | None, high: float | None, *, signed: bool = False, digits: int = 3) -> str:
    """`[0.82, 0.86]`, `no upper limit` for an open side, or a dash without an interval."""
    return interval_text(Estimate(None, low, high), digits, signed=signed) or "—"


def probability(p: float | None) -> str:
    """A p-value, or `<0.001`."""
    return "—" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def percent(confidence: float) -> str:
    """`95 %`."""
    return f"{100 * confidence:g} %"


def matrix_table(corner: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
    """A square of numbers with names on both sides."""
    return Table(
        [corner, *columns], [[name, *cells] for name, cells in rows], list(range(1, len(columns) + 1))
    )
