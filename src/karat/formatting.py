"""Reports as text, Markdown and HTML: numbers for people, and the blocks that reports are made of.

Everything in a block may be untrusted; the renderers make it safe for where it is shown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from karat.errors import plural
from karat.layout import (
    MARKS,
    PLAIN,
    Columns,
    Layout,
    Styled,
    display_width,
    pad,
    paint,
    style_of,
    table_text,
    wrap_spans,
)
from karat.records import (
    AggregationHeader,
    Counts,
    Estimate,
    Example,
    group_text,
    interval_text,
    missing_text,
)


def clean(text: object, longest: int = 200) -> str:
    """Make untrusted text safe for a terminal: one line, no control or bidi characters, bounded length."""
    shown = printable(str(text)[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def printable(text: str) -> str:
    """The same text on one line, with characters that could steer a terminal made visible."""
    if text.isprintable():
        return text
    shown = visible(text.translate(_BREAKS))
    # Unassigned characters: terminals differ in how they show them.
    return "".join(c if c in _JOINERS or unicodedata.category(c)[0] != "C" else "�" for c in shown)


_BREAKS = dict.fromkeys(map(ord, "\n\t\r\u2028\u2029"), " ")
_JOINERS = "\u200c\u200d"
"""`visible` leaves them only where they join letters or emoji."""


def enumerated(names: Sequence[str], most: int = 4) -> str:
    """`A, B and C`, or `A, B, C and 7 more`."""
    shown = list(names) if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


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


def short_number(value: float) -> str:
    """A score in three digits, and a large one as a whole number: `0.429`, `1,270`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def bounds_text(estimate: Estimate, sign: str = "") -> str:
    """The bounds of an estimate allowing for missing items; empty if none are missing."""
    return missing_text(estimate, signed=bool(sign))


def effect_text(estimate: Estimate) -> str:
    """The design effect of clusters; empty if items are independent."""
    effect, clusters = estimate.metadata.get("design_effect"), estimate.metadata.get("clusters")
    if effect is None or clusters is None:
        return ""
    return f"design effect {effect:.2f}, {clusters:,} clusters"


def notes_text(estimate: Estimate) -> str:
    """The design effect, and the aggregator's note or why a limit of the interval is missing."""
    open_ended = estimate.low is None or estimate.high is None
    reason = estimate.metadata.get("reason", "") if open_ended else ""
    return "; ".join(filter(None, [effect_text(estimate), str(estimate.metadata.get("note") or reason)]))


MOST_NUMBERS = 20
"""Limit on the estimates shown per aggregator; free text has as many classes as answers."""


def aggregation_blocks(
    header: AggregationHeader,
    runs: Mapping[str, str],
    command: Callable[..., str],
    most: int | None = MOST_NUMBERS,
    lower_is_better: Collection[str] = (),
) -> list[Block]:
    """The headline, the estimates with their intervals and denominators, the names of tables, and failures.

    The report shows at most `most` estimates per aggregator and evaluator. `runs` maps run ids to labels; `command` is
    that of the store; `lower_is_better` are evaluator keys.
    """
    seen: dict[tuple[str, str, str | None], int] = {}
    shown: list[Estimate] = []
    for estimate in header.estimates:
        whose = (estimate.evaluator, estimate.aggregator, estimate.run)
        seen[whose] = seen.get(whose, 0) + 1
        if most is None or seen[whose] <= most:
            shown.append(estimate)
    blocks: list[Block] = [Paragraph(text) for text in headlines(header.estimates, runs)]
    if shown:
        blocks.append(estimate_table(shown, runs, lower_is_better))
    notes = []
    for (evaluator, aggregator, _), count in seen.items():
        if most is not None and count > most:
            notes.append(
                f"{evaluator} {aggregator}: {count - most:,} more estimates (see {command('show', header.id)})"
            )
    if header.tables:
        names = ", ".join(table.label for table in header.tables[:20])
        notes.append(f"tables: {names} (see {command('report', header.id)})")
    for failure in header.failures:
        error = failure.error
        notes.append(f"{failure.label} failed: {error.type}: {error.message}")
    return [*blocks, *(Paragraph(clean(note)) for note in dict.fromkeys(notes))]  # each run fails alike


MOST_HEADLINES = 3


def headlines(estimates: Sequence[Estimate], runs: Mapping[str, str]) -> list[str]:
    """State the first metrics in a sentence each; for several runs, the range.

    `exact_match accuracy is 0.84 [0.82, 0.86], over 950 of 1,000 items.`
    """
    by_metric: dict[tuple[str, str, str], list[Estimate]] = {}
    for each in estimates:
        if not each.group:
            by_metric.setdefault((each.evaluator, each.aggregator, each.name), []).append(each)
    main = [key for key in by_metric if not key[2]] or list(by_metric)
    return [_headline(by_metric[key], runs) for key in main[:MOST_HEADLINES]]


def _headline(estimates: Sequence[Estimate], runs: Mapping[str, str]) -> str:
    known = [each for each in estimates if each.value is not None]
    if not known:
        return f"{estimates[0].label} could not be computed: no item has a value."
    if len(estimates) > 1:
        low, high = (pick(known, key=lambda each: each.value or 0.0) for pick in (min, max))
        if low.value == high.value:
            return f"{low.label} is {number(low.value)} for all {len(known)} runs."
        ends = [f"{number(each.value)} ({runs.get(each.run or '', each.run or '')})" for each in (low, high)]
        return f"{low.label} is between {ends[0]} and {ends[1]} over {len(estimates)} runs."
    return f"{estimate_sentence(known[0], known[0].label)}."


def estimate_sentence(estimate: Estimate, name: str, digits: int = 3) -> str:
    """`exact_match accuracy is 0.84 [0.82, 0.86], over 950 of 1,000 items`, without its full stop."""
    words = f"{name} is {number(estimate.value, digits)} {interval_text(estimate, digits)}".rstrip()
    items = plural(estimate.of, "item")
    return f"{words}, over {items if estimate.n == estimate.of else f'{estimate.n:,} of {items}'}"


def direction_arrow(estimate: Estimate, lower_is_better: Collection[str]) -> str:
    """` ↑` or ` ↓`; empty where every metric of a report is better when higher, or this one has no direction."""
    if not lower_is_better or not estimate.evaluator:
        return ""
    return {"higher": " ↑", "lower": " ↓", None: ""}[estimate.better(lower_is_better)]


def estimate_table(
    estimates: Sequence[Estimate], runs: Mapping[str, str], lower_is_better: Collection[str] = ()
) -> Table:
    """A table of estimates: the columns that distinguish them, then value, interval, n and notes.

    `lower_is_better` are evaluator keys; if there are any, arrows show the better direction of each metric.
    """

    def evaluator(each: Estimate) -> str:
        return each.evaluator + direction_arrow(each, lower_is_better)

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
    notes = ["; ".join(filter(None, [bounds_text(each), notes_text(each)])) for each in estimates]
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
    last = [right + 3] if any(notes) else []
    return Table(
        [*head, *(["notes"] if any(notes) else [])], rows, [right, right + 2], drop=[*last, right + 2]
    )


def example_table(examples: Iterable[Example]) -> Table:
    """Return examples as a table."""

    def text(value: object) -> str:
        if value is None or value == {}:
            return ""
        return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr).decode()

    rows = [[each.id, text(each.input), text(each.expected), text(each.metadata)] for each in examples]
    kept = [i for i in range(4) if i < 2 or any(row[i] for row in rows)]
    head = ["example", "input", "expected", "metadata"]
    return Table([head[i] for i in kept], [[row[i] for i in kept] for row in rows])


CELL = 200
PARAGRAPH = 2000


class Heading(msgspec.Struct, frozen=True):
    """A section title."""

    text: str
    level: int = 2


class Paragraph(msgspec.Struct, frozen=True):
    """A paragraph of text."""

    text: str


class Table(msgspec.Struct, frozen=True):
    """Rows under a head; `right` are the columns of numbers."""

    head: list[str]
    rows: list[list[str]]
    right: list[int] = []
    cell: int = CELL
    """The maximum length of a cell."""
    drop: list[int] = []
    """Columns to leave out on a narrow terminal, the least important first."""
    split: bool = False
    """On a narrow terminal, continue the columns in another table below instead."""
    lines: int = 3
    """Lines of a cell that are shown on a narrow terminal."""


class Details(msgspec.Struct, frozen=True):
    """Named texts under a title. A text is a list of spans, which may be `Styled`, for example by a word diff."""

    title: str
    fields: list[tuple[str, list[str]]]
    longest: int = PARAGRAPH


class Lines(msgspec.Struct, frozen=True):
    """Lines as they are, indented and never wrapped: code."""

    lines: list[str]


Block = Heading | Paragraph | Table | Details | Lines


def as_text(blocks: Iterable[Block], layout: Layout = PLAIN) -> str:
    """Render blocks for a terminal."""
    out = ""
    for block in blocks:
        text = _block_text(block, layout)
        if text:
            out += text + ("\n" if isinstance(block, Heading) and block.level > 1 else "\n\n")
    return out.rstrip("\n")


def _block_text(block: Block, layout: Layout) -> str:
    if isinstance(block, Heading):
        title = clean(block.text)
        shown = "\n".join(paint(line, "bold", layout) for line in _wrap_spans([title], layout))
        width = min(display_width(title), layout.width or display_width(title))
        return f"{shown}\n{'═' * width}" if block.level == 1 else shown
    if isinstance(block, Paragraph):
        lines = _wrap_spans([clean(block.text, PARAGRAPH)], layout)
        return "\n".join(paint(line, style_of(block.text), layout) for line in lines)
    if isinstance(block, Details):
        return _details_text(block, layout)
    if isinstance(block, Lines):
        return "\n".join(f"  {clean(line, PARAGRAPH)}".rstrip() for line in block.lines)
    if not block.rows:
        return ""
    rows = [[_clean_span(cell, block.cell) for cell in row] for row in [block.head, *block.rows]]
    return table_text(rows, Columns(block.right, block.drop, block.split, block.lines), layout)


def _clean_span(text: str, longest: int) -> str:
    shown = clean(text, longest)
    return Styled(shown, style_of(text)) if style_of(text) else shown


def _wrap_spans(spans: list[str], layout: Layout, indent: int = 0) -> list[str]:
    """Spans as lines that fit, each painted; marks stand for added and removed where there is no colour."""
    if not layout.colour:
        spans = [
            f"{MARKS[style_of(s)][0]}{s}{MARKS[style_of(s)][1]}" if style_of(s) in MARKS else s for s in spans
        ]
    if layout.width is None:
        return ["".join(paint(span, style_of(span), layout) for span in spans)]
    lines = wrap_spans(spans, max(10, layout.width - indent))
    return ["".join(paint(part, style_of(part), layout) for part in line) for line in lines]


def _details_text(block: Details, layout: Layout) -> str:
    names = max((display_width(clean(name, 40)) for name, _ in block.fields), default=0)
    title = _wrap_spans([clean(block.title)], layout) if block.title else []
    lines = [paint(line, "bold", layout) for line in title]
    for name, spans in block.fields:
        shown = _wrap_spans([_clean_span(span, block.longest) for span in spans], layout, names + 4)
        for number, line in enumerate(shown):
            label = paint(pad(clean(name, 40), names), "dim", layout) if number == 0 else " " * names
            lines.append(f"  {label}  {line}".rstrip())
    return "\n".join(lines)


def as_markdown(blocks: Iterable[Block]) -> str:
    """Render blocks as Markdown; untrusted text is escaped."""
    parts: list[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"{'#' * block.level} {escape(block.text)}")
        elif isinstance(block, Paragraph):
            parts.append(escape(block.text, PARAGRAPH))
        elif isinstance(block, Details):
            fields = [
                f"- {escape(name)}: {_markdown_spans(spans, block.longest)}" for name, spans in block.fields
            ]
            parts.append("\n".join([*([f"**{escape(block.title)}**", ""] if block.title else []), *fields]))
        elif isinstance(block, Lines):
            parts.append("\n".join(f"    {clean(line, PARAGRAPH)}".rstrip() for line in block.lines))
        elif block.rows:
            parts.append(_markdown_table(block))
    return "\n\n".join(parts) + "\n"


_MARKDOWN = {"added": "**", "removed": "~~", "best": "**"}
_HTML = {"added": "ins", "removed": "del", "best": "strong", "bold": "strong"}


def _markdown_spans(spans: Iterable[str], longest: int) -> str:
    out = []
    for span in spans:
        mark, text = _MARKDOWN.get(style_of(span), ""), escape(span, longest)
        bare = text.strip()
        out.append(text.replace(bare, f"{mark}{bare}{mark}", 1) if mark and bare else text)
    return "".join(out)


def as_html(blocks: Iterable[Block]) -> str:
    """Render blocks as HTML without scripts or styles of its own, for a notebook; untrusted text is escaped."""
    parts: list[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            level = min(6, block.level + 2)
            parts.append(f"<h{level}>{_html_text(block.text)}</h{level}>")
        elif isinstance(block, Paragraph):
            parts.append(f"<p>{_html_text(block.text, PARAGRAPH)}</p>")
        elif isinstance(block, Details):
            rows = "".join(
                f"<tr><th>{_html_text(name)}</th><td style='text-align:left'>"
                f"{''.join(_html_text(span, block.longest) for span in spans)}</td></tr>"
                for name, spans in block.fields
            )
            title = f"<p><strong>{_html_text(block.title)}</strong></p>" if block.title else ""
            parts.append(f"{title}<table><tbody>{rows}</tbody></table>")
        elif isinstance(block, Lines):
            parts.append(
                f"<pre>{''.join(_html_text(line, PARAGRAPH) + chr(10) for line in block.lines)}</pre>"
            )
        elif block.rows:
            parts.append(_html_table(block))
    return f"<div class='karat'>{''.join(parts)}</div>"


def _html_text(text: str, longest: int = CELL) -> str:
    shown, tag = escape_html(clean(text, longest)), _HTML.get(style_of(text))
    return f"<{tag}>{shown}</{tag}>" if tag else shown


def _html_table(block: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        align = ["right" if column in block.right else "left" for column in range(len(cells))]
        return (
            "<tr>"
            + "".join(
                f"<{tag} style='text-align:{side}'>{_html_text(cell, block.cell)}</{tag}>"
                for cell, side in zip(cells, align, strict=True)
            )
            + "</tr>"
        )

    body = "".join(row(each, "td") for each in block.rows)
    return f"<table><thead>{row(block.head, 'th')}</thead><tbody>{body}</tbody></table>"


def _markdown_table(block: Table) -> str:
    rules = ["---:" if column in block.right else "---" for column in range(len(block.head))]
    lines = [block.head, rules, *([escape(cell, block.cell) for cell in row] for row in block.rows)]
    lines[0] = [escape(cell) for cell in block.head]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# Patterns of Markdown and HTML are compiled when they are first used, by `re.sub`, which keeps them: that takes most of
# the time of importing this module, and most commands write neither.
_MARKUP = r"([\\`*_{}\[\]<>#|~!&$])"
_LINK = r"(?i)(https?|ftp|mailto)(:)"
_LIST = r"^(\s*)([-+]|\d+[.)])(\s)"


def escape(text: object, longest: int = CELL) -> str:
    """Escape text for Markdown: no emphasis, code, link, HTML, mention or cell border."""
    shown = clean(text, longest)
    shown = (
        re.sub(_MARKUP, r"\\\1", shown).replace("\\&", "&amp;").replace("\\<", "&lt;").replace("\\>", "&gt;")
    )
    shown = re.sub(_LINK, lambda found: f"{found.group(1)}&#58;", shown)
    shown = re.sub(_LIST, lambda found: f"{found.group(1)}\\{found.group(2)}{found.group(3)}", shown)
    # A zero-width space keeps @name from notifying anybody; ordinary addresses stay readable.
    return re.sub(r"(^|[\s(])@(?=\w)", "\\1@\u200b", shown)


def interval(low: float | None, high: float | None, *, signed: bool = False, digits: int = 3) -> str:
    """`[0.82, 0.86]`, `no upper limit` for an open side, or a dash without an interval."""
    return interval_text(Estimate(None, low, high), digits, signed=signed) or "—"


def probability(p: float | None) -> str:
    """Format a p-value, or `<0.001`."""
    return "—" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def percent(confidence: float) -> str:
    """`95 %`."""
    return f"{100 * confidence:g} %"


def matrix_table(corner: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
    """A square of numbers with names on both sides."""
    return Table(
        [corner, *columns], [[name, *cells] for name, cells in rows], list(range(1, len(columns) + 1))
    )


# HTML from plain text: everything is escaped unless it is markup already, and invisible characters are shown.


_HIDDEN = (
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, except tab and line feed
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\ufffe\uffff"  # zero width, bidirectional, filler, interlinear
    "\ud800-\udfff\ue000-\uf8ff"  # surrogates, private use
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff"  # format controls, tags, private use
    "]"
)
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
"""As `html.escape` does it, whose module has the names of two thousand characters to load."""


def visible(text: str) -> str:
    """Replace characters that cannot be seen, or that change the order of others, by a name.

    Controls become their pictures (`␛`), anything else its code point (`⟨U+202E⟩`). Tabs, line feeds, and joiners
    inside emoji, Arabic and Indic words stay.
    """
    return re.sub(_HIDDEN, _metric_name, text)


def escape_html(text: object) -> str:
    """Text for the content or an attribute of an HTML or SVG element."""
    return visible(str(text)).translate(_ESCAPED)


class Markup(str):
    """Text that is markup already. `element` and `join` return it; a plain string is escaped."""

    __slots__ = ()


Child = str | None
"""What an element may contain: markup, text that is escaped, or nothing."""

_EMPTY = frozenset({"br", "hr", "img", "link", "meta"})


def element(tag: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An HTML element. Attributes with None or False are left out; `class_` is the attribute `class`."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape_html(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{tag}{written}>" + ("" if tag in _EMPTY else f"{join(*children)}</{tag}>"))


def join(*children: Child) -> Markup:
    """Markup and texts one after another; texts are escaped."""
    return Markup(
        "".join(
            each if isinstance(each, Markup) else escape_html(each) for each in children if each is not None
        )
    )


def _metric_name(found: re.Match[str]) -> str:
    character = found.group()
    if character in _JOINERS and _joins(found.string, found.start()):
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def _joins(text: str, place: int) -> bool:
    """Whether a joiner stands between two characters that are written joined."""
    sides = text[max(0, place - 1) : place] + text[place + 1 : place + 2]
    return len(sides) == 2 and (all(map(_is_emoji, sides)) or all(map(_is_joined_script, sides)))


def _is_emoji(character: str) -> bool:
    return character == "\ufe0f" or 0x2600 <= ord(character) <= 0x27BF or 0x1F000 <= ord(character) <= 0x1FAFF


def _is_joined_script(character: str) -> bool:
    return 0x0600 <= ord(character) < 0x0E00 and not re.match(_HIDDEN, character)
