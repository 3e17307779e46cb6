"""Reports as plain text, for a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from karat.records import Counts, Estimate

if TYPE_CHECKING:
    from karat.store.handles import Aggregation


def clean(text: Any, longest: int = 200) -> str:
    """Text from outside, on one line: control characters cannot reach the terminal, and it is bounded."""
    shown = "".join(
        c if unicodedata.category(c)[0] != "C" else " " if c in "\n\t\r" else "�"
        for c in str(text)[: longest + 1]
    )
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


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
    return f"{counts.total:,} items: {', '.join(parts)}"


def number(value: float | None, digits: int = 3) -> str:
    """A number as reports show it; an em dash where there is none."""
    return "—" if value is None else f"{value:.{digits}f}"


def estimate_row(name: str, estimate: Estimate) -> list[str]:
    """A row of the table of estimates."""
    interval = "—"
    if estimate.low is not None and estimate.high is not None:
        interval = f"[{estimate.low:.3f}, {estimate.high:.3f}]"
    notes = [bounds_text(estimate), effect_text(estimate)]
    return [
        clean(name, 80),
        number(estimate.value),
        interval,
        f"{estimate.n:,} of {estimate.of:,}",
        "; ".join(note for note in notes if note),
    ]


def bounds_text(estimate: Estimate, sign: str = "") -> str:
    """What missing items could make of a number; empty where none is missing."""
    missing = estimate.of - estimate.n
    if not missing or estimate.lowest is None or estimate.highest is None:
        return ""
    return (
        f"between {estimate.lowest:{sign}.3f} and {estimate.highest:{sign}.3f}"
        f" whatever the {missing:,} {'was' if missing == 1 else 'were'}"
    )


def effect_text(estimate: Estimate) -> str:
    """How much clusters widen an interval; empty where items are independent."""
    effect, clusters = estimate.metadata.get("design_effect"), estimate.metadata.get("clusters")
    if effect is None or clusters is None:
        return ""
    return f"design effect {effect:.2f}, {clusters:,} clusters"


MOST_NUMBERS = 20
"""Of one aggregator, in a terminal: classes of free text are as many as there are answers."""


def aggregation_report(aggregation: Aggregation, most: int | None = MOST_NUMBERS) -> str:
    """Estimates with their intervals and denominators, tables by name, failures in their place.

    Of each aggregator over each evaluator the first `most` numbers are shown, and it is said how many more there are.
    """
    header = aggregation.header
    lines = [f"aggregation {aggregation.id}  {header.status}  {counts_text(header.counts)}", ""]
    runs = _run_labels(aggregation)
    rows = [["metric", "value", "interval", "n", "", *(["run"] if runs else [])]]
    confidences = {e.confidence for e in header.estimates.values()}
    if len(confidences) == 1:
        rows[0][2] = f"{100 * confidences.pop():g} % interval"
    keys = sorted((spec.key for spec in header.aggregators), key=len, reverse=True)
    seen: dict[str, int] = {}
    for name, estimate in header.estimates.items():
        whose = _aggregated(name, keys)
        seen[whose] = seen.get(whose, 0) + 1
        if most is None or seen[whose] <= most:
            row = estimate_row(name, estimate)
            rows.append([*row, clean(_label(name, runs), 80)] if runs else row)
    lines.append(table(rows, right=(1, 3)))
    for whose, count in seen.items():
        if most is not None and count > most:
            lines.append(
                f"{clean(whose, 80)}: {count - most:,} more numbers (karat show {aggregation.id} has all)"
            )
    if header.tables:
        names = ", ".join(clean(name, 80) for name in list(header.tables)[:20])
        lines.append(f"tables: {names} (karat report {aggregation.id} shows them)")
    for name, failure in header.failures.items():
        lines.append(f"{clean(name, 80)} failed: {clean(failure.type, 60)}: {clean(failure.message)}")
    return "\n".join(lines)


def _run_labels(aggregation: Aggregation) -> dict[str, str]:
    """What to call the runs that names such as `accuracy@run-1a2b` speak of; empty where they speak of none."""
    if not any("@" in name for name in aggregation.estimates):
        return {}
    from karat.analysis.run_labels import run_labels

    found = {run.id: run.header for each in aggregation.evaluations for run in each.runs}
    return run_labels(list(found.values())) if len(found) > 1 else {}


def _label(name: str, runs: dict[str, str]) -> str:
    """The label of the run that an estimate's name ends in, before what it is split by."""
    _, _, tail = name.rpartition("@")
    return next((label for run, label in runs.items() if tail == run or tail.startswith(f"{run}.")), "")


def _aggregated(name: str, keys: Sequence[str]) -> str:
    """The part of an estimate's name that says whose it is: `match-precision` of `match-precision.class=Paris`."""
    for key in keys:
        found = re.search(rf"(^|-){re.escape(key)}(@[^.]*)?(?=\.)", name)
        if found:
            return name[: found.end()]
    return name


CELL = 200
PARAGRAPH = 2000


class Heading(msgspec.Struct, frozen=True):
    """The title of what follows."""

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
    """The longest that a cell may be."""


Block = Heading | Paragraph | Table


def as_text(blocks: Iterable[Block]) -> str:
    """For a terminal."""
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
    """As Markdown; text from outside can be no markup."""
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
    """Text as Markdown that shows as that text: no emphasis, code, link, HTML, mention or cell border."""
    shown = clean(text, longest)
    shown = _MARKUP.sub(r"\\\1", shown).replace("\\&", "&amp;").replace("\\<", "&lt;").replace("\\>", "&gt;")
    shown = _LINK.sub(lambda found: f"{found.group(1)}&#58;", shown)
    shown = _LIST.sub(lambda found: f"{found.group(1)}\\{found.group(2)}{found.group(3)}", shown)
    # A zero-width space keeps @name from notifying anybody; ordinary addresses stay readable.
    return re.sub(r"(^|[\s(])@(?=\w)", "\\1@\u200b", shown)


def interval(low: float | None, high: float | None, *, signed: bool = False, digits: int = 3) -> str:
    """`[0.82, 0.86]`, or a dash."""
    if low is None or high is None:
        return "—"
    sign = "+" if signed else ""
    return f"[{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def probability(p: float | None) -> str:
    """A p-value as people read it."""
    return "—" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def percent(confidence: float) -> str:
    """`95 %`."""
    return f"{100 * confidence:g} %"


def matrix_table(corner: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
    """A square of numbers with names on both sides."""
    return Table(
        [corner, *columns], [[name, *cells] for name, cells in rows], list(range(1, len(columns) + 1))
    )
