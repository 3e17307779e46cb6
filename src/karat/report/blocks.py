"""What reports are made of: headings, paragraphs and tables, written for a terminal or as Markdown.

Whatever comes from outside (labels, outputs, messages) is plain text here and is cleaned or escaped where it is
written, so that nothing in it can steer a terminal or become markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from karat.report.text import clean, table

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
