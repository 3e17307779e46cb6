"""Plots as marks: lines, rectangles, circles and texts at computed places, and their SVG.

A plot is plain data. The HTML report writes it as SVG; the viewer gets it as JSON and draws the same marks. Colours are
named (`tone`) and defined by the style sheet, for light and dark. Every plot repeats in words or shapes what it
shows by colour, and has a title and a description.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import msgspec

from karat.analysis.comparison import Difference
from karat.analysis.outcomes import FailureKind
from karat.formatting import escape_html, number, probability, visible
from karat.records import Estimate, interval_text, missing_text

if TYPE_CHECKING:
    from karat.analysis.judges.agreement import CalibrationBin

Tone = Literal[
    "ink", "muted", "grid", "accent", "good", "bad", "heat-1", "heat-2", "heat-3", "heat-4", "heat-5"
]
Anchor = Literal["start", "middle", "end"]
About = dict[str, str]
"""What a mark stands for (`run`, `evaluator`, `group` …): the viewer opens the rows behind it."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="line"):
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    tone: Tone = "ink"
    width: float = 1.0
    dashed: bool = False
    title: str = ""
    about: About = {}


class Rect(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="rect"):
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    tone: Tone = "accent"
    title: str = ""
    about: About = {}


class Circle(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="circle"):
    """A circle; hollow unless `filled`."""

    x: float
    y: float
    r: float = 4.0
    tone: Tone = "accent"
    filled: bool = True
    title: str = ""
    about: About = {}


class Text(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="text"):
    """A line of text; `y` is its baseline."""

    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    tone: Tone = "ink"
    bold: bool = False
    small: bool = False
    title: str = ""
    about: About = {}


Mark = Line | Rect | Circle | Text


class Plot(msgspec.Struct, frozen=True):
    """Marks on a canvas, with the words for those who cannot see it."""

    title: str
    description: str
    width: float
    height: float
    marks: list[Mark]


# ---------------------------------------------------------------- SVG


def svg(plot: Plot, id: str) -> str:
    """The plot as an SVG element. `id` must be unique in its document."""
    head = (
        f'<svg class="plot" viewBox="0 0 {_n(plot.width)} {_n(plot.height)}" width="{_n(plot.width)}"'
        f' height="{_n(plot.height)}" role="img" aria-labelledby="{escape_html(id)}-t {escape_html(id)}-d">'
        f'<title id="{escape_html(id)}-t">{escape_html(plot.title)}</title>'
        f'<desc id="{escape_html(id)}-d">{escape_html(plot.description)}</desc>'
    )
    # Lines of one style become one path: a large report has thousands. Lines lie on areas and under points and texts.
    joined: dict[tuple[Tone, float, bool], list[Line]] = {}
    areas: list[str] = []
    lines: list[str] = []
    rest: list[str] = []
    for mark in plot.marks:
        if isinstance(mark, Line) and not mark.title:
            joined.setdefault((mark.tone, mark.width, mark.dashed), []).append(mark)
        else:
            where = areas if isinstance(mark, Rect) else lines if isinstance(mark, Line) else rest
            where.append(_element(mark))
    return head + "".join([*areas, *map(_path, joined.values()), *lines, *rest]) + "</svg>"


def _path(lines: Sequence[Line]) -> str:
    """Lines as one path. A step is absolute or relative to the one before, whichever is shorter."""
    first, steps = lines[0], []
    x = y = math.inf
    for line in lines:
        # Places are rounded before they are subtracted: errors would add up along the path.
        x1, y1, x2, y2 = (round(value, 1) for value in (line.x1, line.y1, line.x2, line.y2))
        start = f"M{_n(x1)} {_n(y1)}"
        steps.append(start if math.isinf(x) else min(start, f"m{_pair(x1 - x, y1 - y)}", key=len))
        if y1 == y2:
            steps.append(min(f"H{_n(x2)}", f"h{_n(x2 - x1)}", key=len))
        elif x1 == x2:
            steps.append(min(f"V{_n(y2)}", f"v{_n(y2 - y1)}", key=len))
        else:
            steps.append(min(f"L{_n(x2)} {_n(y2)}", f"l{_pair(x2 - x1, y2 - y1)}", key=len))
        x, y = x2, y2
    return f'<path d="{"".join(steps)}"{_stroke(first)} class="l m-{first.tone}"/>'


def _pair(x: float, y: float) -> str:
    """Two numbers of a path; a minus separates them as a space does."""
    second = _n(y)
    return _n(x) + ("" if second.startswith("-") else " ") + second


def _stroke(line: Line) -> str:
    width = f' stroke-width="{_n(line.width)}"' if line.width != 1.0 else ""
    return width + (' stroke-dasharray="2 3"' if line.dashed else "")


def _element(mark: Mark) -> str:
    title = f"<title>{escape_html(mark.title)}</title>" if mark.title else ""
    # Most marks have the tone that the style sheet gives them without a class.
    usual = "ink" if isinstance(mark, Text) else "accent"
    tone = f"m-{mark.tone}" if isinstance(mark, Line) or mark.tone != usual else ""
    if isinstance(mark, Line):
        shape = f'line x1="{_n(mark.x1)}" y1="{_n(mark.y1)}" x2="{_n(mark.x2)}" y2="{_n(mark.y2)}"'
        return _closed("line", f'{shape}{_stroke(mark)} class="l {tone}"', title)
    if isinstance(mark, Rect):
        shape = f'rect x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" height="{_n(mark.height)}"'
        return _closed("rect", shape + _class(tone), title)
    if isinstance(mark, Circle):
        shape = f'circle cx="{_n(mark.x)}" cy="{_n(mark.y)}" r="{_n(mark.r)}"'
        return _closed("circle", shape + _class(tone, "" if mark.filled else "hollow"), title)
    anchor = {"start": "", "middle": "c", "end": "e"}[mark.anchor]
    names = _class(tone, "b" if mark.bold else "", "s" if mark.small else "", anchor)
    return f'<text x="{_n(mark.x)}" y="{_n(mark.y)}"{names}>{title}{escape_html(mark.text)}</text>'


def _class(*names: str) -> str:
    known = " ".join(filter(None, names))
    return f' class="{known}"' if known else ""


def _closed(name: str, opening: str, inside: str) -> str:
    return f"<{opening}>{inside}</{name}>" if inside else f"<{opening}/>"


def _n(value: float) -> str:
    """A coordinate with one decimal at most."""
    shown = f"{value:.1f}".rstrip("0").rstrip(".")
    return "0" if shown == "-0" else shown


# ---------------------------------------------------------------- scales and texts

CHARACTER = 6.4
"""Average width of a character of 12 px, in pixels; an upper estimate for common fonts."""
SMALL = 0.86
"""The size of small text relative to that of other text."""


def text_width(text: str) -> float:
    """About how wide a text is: wide characters count twice, combining ones not at all."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    marks = sum(unicodedata.combining(c) != 0 for c in text)
    return CHARACTER * (len(text) + wide - marks)


def fitted(text: str, width: float) -> str:
    """The text on one line, cut so that it fits."""
    text = visible(" ".join(text[:500].split()))
    if text_width(text) <= width:
        return text
    while text and text_width(text) + CHARACTER > width:
        text = text[:-1]
    return text.rstrip() + "…"


class Scale:
    """Values to places on an axis, from round number to round number."""

    def __init__(self, low: float, high: float, start: float, end: float, ticks: int = 5) -> None:
        if not (math.isfinite(low) and math.isfinite(high)):
            low, high = 0.0, 1.0
        if low == high:
            gap = abs(low) * 0.1 or 0.5
            low, high = low - gap, high + gap
        self.ticks = nice_ticks(low, high, ticks)
        self.low, self.high = min(low, self.ticks[0]), max(high, self.ticks[-1])
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def labels(self, signed: bool = False) -> list[tuple[float, str]]:
        """The place and the text of each tick."""
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 1.0
        digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
        form = f"{'+' if signed else ''},.{digits}f" if digits < 7 else "g"
        return [(self(tick), "0" if abs(tick) < step / 1e6 else format(tick, form)) for tick in self.ticks]


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two values: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)] or [low, high]


def _bounds(estimates: Iterable[Estimate], include: Iterable[float] = ()) -> tuple[float, float]:
    """The range that shows all of some estimates, with a little room."""
    values = [
        value
        for each in estimates
        for value in (
            each.value,
            each.low,
            each.high,
            *((each.lowest, each.highest) if each.missing else ()),
        )
        if value is not None and math.isfinite(value)
    ]
    values += list(include)
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 0.1
    lowest = 0.0 if low >= 0.0 and high <= 1.0 else -math.inf
    highest = 1.0 if low >= 0.0 and high <= 1.0 else math.inf
    return max(low - room, lowest), min(high + room, highest)


# ---------------------------------------------------------------- estimates with intervals


class PlotRow(msgspec.Struct, frozen=True):
    """A row of a forest plot: an estimate with its label, or a heading without an estimate."""

    label: str
    estimate: Estimate | None = None
    value: str = ""
    """The number in words; by default the value and its interval."""
    note: str = ""
    """What stands at the far right; by default `n of of`."""
    tone: Tone = "accent"
    filled: bool = True
    bold: bool = False
    about: About = {}


ROW = 24.0
WIDE = 1040.0
HALF = 510.0


def forest(
    title: str,
    rows: Sequence[PlotRow],
    *,
    width: float = WIDE,
    zero: bool = False,
    ends: tuple[str, str] | None = None,
    notes: bool = True,
) -> Plot:
    """Estimates below each other: a point, a bar for the interval, and a dashed line for what missing items could do.

    A side without a limit ends in an arrow. `zero` draws the line of no difference; `ends` names both directions.
    """
    known = [row.estimate for row in rows if row.estimate is not None]
    texts = [_in_words(row, signed=zero) for row in rows]
    beside = [row.note if row.note or row.estimate is None else _of(row.estimate) for row in rows]
    label = min(width * 0.34, max([text_width(row.label) for row in rows if row.estimate] or [0.0]) + 14)
    words = max([text_width(text) for text in texts] or [0.0]) + 16
    right = (max([text_width(text) * SMALL for text in beside] or [0.0]) + 8) if notes else 0.0
    low, high = _bounds(known, [0.0] if zero else ())
    if zero:
        low, high = -max(-low, high), max(-low, high)
    scale = Scale(low, high, label + 8, max(label + 120, width - words - right - 8), 4 if width < 600 else 6)
    top = 26.0 if ends else 10.0
    bottom = top + ROW * len(rows)
    marks: list[Mark] = []
    for x, text in scale.labels(signed=zero):
        marks.append(Line(x, top, x, bottom, "grid"))
        marks.append(Text(x, bottom + 15, text, "middle", "muted", small=True))
    if zero:
        marks.append(Line(scale(0.0), top - 4, scale(0.0), bottom, "muted", 1.5))
    if ends:
        marks.append(Text(scale(0.0) - 10, 14, f"← {ends[0]}", "end", "muted", small=True))
        marks.append(Text(scale(0.0) + 10, 14, f"{ends[1]} →", "start", "muted", small=True))
    spoken, heading = [], ""
    for place, (row, text, note) in enumerate(zip(rows, texts, beside, strict=True)):
        y = top + ROW * (place + 0.5)
        if row.estimate is None:
            heading = f"{row.label}, "
            marks.append(Text(0, y + 6, fitted(row.label, width), bold=True))
            continue
        marks.append(Text(0, y + 4, fitted(row.label, label), bold=row.bold, title=_full(row.label, label)))
        marks += _whisker(row, scale, y)
        marks.append(Text(scale.end + 14, y + 4, text, bold=row.bold, about=row.about))
        if notes:
            marks.append(Text(width, y + 4, note, "end", "muted", small=True, about=row.about))
        spoken.append(f"{heading}{row.label}: {text}" + (f", {note}" if note else ""))
    return Plot(title, _listed(spoken), width, bottom + 22, marks)


def _whisker(row: PlotRow, scale: Scale, y: float) -> list[Mark]:
    """The marks of one estimate."""
    estimate, tone = row.estimate, row.tone
    assert estimate is not None
    if estimate.value is None:
        return [Text((scale.start + scale.end) / 2, y + 4, "no value", "middle", "muted", small=True)]
    marks: list[Mark] = []
    missing = missing_text(estimate)
    if missing and estimate.lowest is not None and estimate.highest is not None:
        # Only what lies outside the interval: inside, the bar covers it.
        inner = [v for v in (estimate.low, estimate.high, estimate.value) if v is not None]
        for outer, edge in ((estimate.lowest, min(inner)), (estimate.highest, max(inner))):
            if abs(scale(outer) - scale(edge)) > 2 and (outer < min(inner) or outer > max(inner)):
                x = scale(outer)
                marks.append(Line(x, y, scale(edge), y, "muted", 1.5, dashed=True))
                marks.append(Line(x, y - 3, x, y + 3, "muted"))
    if estimate.low is not None or estimate.high is not None:
        left = scale.start if estimate.low is None else scale(estimate.low)
        right = scale.end if estimate.high is None else scale(estimate.high)
        marks += _end(left, y, -1, tone, open=estimate.low is None)
        marks.append(Line(left, y, right, y, tone, 2.5, about=row.about))
        marks += _end(right, y, 1, tone, open=estimate.high is None)
    marks.append(Circle(scale(estimate.value), y, 4.5, tone, filled=row.filled, about=row.about))
    return marks


def _end(x: float, y: float, direction: int, tone: Tone, *, open: bool) -> list[Mark]:
    """Draw the end of an interval: a stroke, or an arrow if the interval has no limit."""
    if not open:
        return [Line(x, y - 4, x, y + 4, tone, 2.5)]
    back = x - 6 * direction
    return [Line(back, y - 5, x, y, tone, 2.5), Line(back, y + 5, x, y, tone, 2.5)]


def _in_words(row: PlotRow, *, signed: bool) -> str:
    if row.value or row.estimate is None:
        return row.value
    value = row.estimate.value
    if value is None:
        return "none"
    digits = digits_of(row.estimate)
    shown = f"{value:+.{digits}f}" if signed else number(value, digits)
    return f"{shown} {interval_text(row.estimate, digits, signed=signed)}".strip()


def digits_of(estimate: Estimate) -> int:
    """Return the number of decimals for an estimate."""
    largest = max([abs(v) for v in (estimate.value, estimate.low, estimate.high) if v is not None] or [0.0])
    return 3 if largest < 10 else 1 if largest < 1000 else 0


def _of(estimate: Estimate) -> str:
    return f"n {estimate.n:,}" if estimate.n == estimate.of else f"n {estimate.n:,} of {estimate.of:,}"


def _full(label: str, width: float) -> str:
    """The whole label as a tooltip, where it was cut."""
    return label if fitted(label, width) != label else ""


MOST_SPOKEN = 6


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_SPOKEN
    return "; ".join(texts[:MOST_SPOKEN]) + (f"; and {more} more" if more > 0 else "") + "."


# ---------------------------------------------------------------- paired differences

FOUND: dict[str, tuple[str, Tone]] = {
    "better": ("▲", "good"),
    "worse": ("▼", "bad"),
    "undecided": ("○", "muted"),
}
"""How a difference is shown: by a sign and a word, and by colour."""


def direction_of(each: Difference, confidence: float) -> str:
    """`better` or `worse` where the difference is significant after the correction, else `undecided`."""
    better, p = each.improvement.value, each.adjusted_p_value
    if not better or p is None or p > 1.0 - confidence:
        return "undecided"
    return "better" if better > 0 else "worse"


def differences(
    title: str,
    found: Sequence[Difference],
    labels: Mapping[str, str],
    confidence: float,
    *,
    by_metric: bool,
    width: float = WIDE,
) -> Plot:
    """Paired differences from a baseline, positive where the run is better; rows are metrics or runs."""
    rows = []
    for each in found:
        direction = direction_of(each, confidence)
        sign, tone = FOUND[direction]
        better, compared = each.improvement, each.compared
        note = f"p {probability(each.adjusted_p_value)} · {compared.wins:,} better, {compared.losses:,} worse"
        rows.append(
            PlotRow(
                f"{sign} {each.metric if by_metric else labels[each.run]}",
                better,
                note=note,
                tone=tone,
                filled=direction != "undecided",
                about={"a": each.baseline, "b": each.run, "evaluator": each.evaluator},
            )
        )
    return forest(title, rows, width=width, zero=True, ends=("worse", "better"), notes=width > HALF)


# ---------------------------------------------------------------- cost and quality


class Point(msgspec.Struct, frozen=True):
    """A run on a plot of quality over cost."""

    label: str
    x: float
    estimate: Estimate
    about: About = {}


FRONTIER = "filled: no other run is better in both"
"""What the points of a scatter say, for the label of its axis."""


def scatter(
    title: str,
    points: Sequence[Point],
    x_label: str,
    y_label: str,
    *,
    higher_is_better: bool = True,
    width: float = WIDE,
) -> Plot:
    """Quality over cost, with the intervals of quality. Points are numbered; a list beside them has the names.

    Points that no other one beats in both are filled.
    """
    known = [point for point in points if point.estimate.value is not None]
    height, left, bottom = max(280.0, 60.0 + 20 * len(known)), 58.0, 44.0
    list_width = min(width * 0.36, max([text_width(p.label) for p in known] or [0.0]) + 120)
    low, high = _bounds([point.estimate for point in known])
    xs = [point.x for point in known] or [0.0, 1.0]
    across = Scale(0.0, max(xs) * 1.08 or 1.0, left, width - list_width - 24)
    up = Scale(low, high, height - bottom, 18.0)
    marks: list[Mark] = []
    for x, text in across.labels():
        marks.append(Line(x, up.end, x, up.start, "grid"))
        marks.append(Text(x, up.start + 15, text, "middle", "muted", small=True))
    for y, text in up.labels():
        marks.append(Line(across.start, y, across.end, y, "grid"))
        marks.append(Text(across.start - 6, y + 4, text, "end", "muted", small=True))
    marks.append(
        Text(
            (across.start + across.end) / 2,
            height - 8,
            fitted(x_label, width / 2),
            "middle",
            "muted",
            small=True,
        )
    )
    marks.append(Text(0, 10, fitted(y_label, width / 2), tone="muted", small=True))
    best = _frontier(known, 1.0 if higher_is_better else -1.0)
    spoken = []
    for place, point in enumerate(known):
        value, estimate = point.estimate.value, point.estimate
        assert value is not None
        x, y = across(point.x), up(value)
        words = f"{point.label}: {_in_words(PlotRow('', estimate), signed=False)} at {point.x:.4g}"
        low_y = up.start if estimate.low is None else up(estimate.low)
        high_y = up.end if estimate.high is None else up(estimate.high)
        if estimate.low is not None or estimate.high is not None:
            marks.append(Line(x, low_y, x, high_y, "accent", 2.0, title=words))
            for y_end, direction, is_open in (
                (low_y, 1, estimate.low is None),
                (high_y, -1, estimate.high is None),
            ):
                if is_open:
                    marks.append(Line(x - 4, y_end - 6 * direction, x, y_end, "accent", 1.5))
                    marks.append(Line(x + 4, y_end - 6 * direction, x, y_end, "accent", 1.5))
                else:
                    marks.append(Line(x - 4, y_end, x + 4, y_end, "accent", 1.5))
        marks.append(Circle(x, y, 5, "accent", filled=place in best, title=words, about=point.about))
        marks.append(Text(x + 8, y - 6, str(place + 1), bold=True, small=True))
        row = 30.0 + 20 * place
        marks.append(Circle(across.end + 32, row - 4, 4, "accent", filled=place in best))
        marks.append(
            Text(
                across.end + 42,
                row,
                fitted(f"{place + 1}  {point.label}", list_width - 24),
                about=point.about,
            )
        )
        spoken.append(words)
    return Plot(title, f"{y_label} over {x_label}. " + _listed(spoken), width, height, marks)


def lines(title: str, series: Sequence[Sequence[Point]], x_label: str, *, width: float = WIDE) -> Plot:
    """One line for each series. A single series has its intervals; several have numbers and a list beside them."""
    known = [[point for point in each if point.estimate.value is not None] for each in series]
    known = [sorted(each, key=lambda point: point.x) for each in known if each]
    one = len(known) == 1
    height, left, bottom = max(220.0, 60.0 + (0 if one else 20 * len(known))), 58.0, 44.0
    names = [each[0].label for each in known]
    beside = 0.0 if one else min(width * 0.36, max([text_width(name) for name in names] or [0.0]) + 80)
    points = [point for each in known for point in each]
    if one:
        low, high = _bounds([point.estimate for point in points])
    else:
        low, high = _bounds([Estimate(point.estimate.value) for point in points])
    xs = [point.x for point in points] or [0.0, 1.0]
    across = Scale(min(xs), max(xs), left + 12, width - beside - 24)
    up = Scale(low, high, height - bottom, 18.0)
    marks: list[Mark] = []
    for x, text in across.labels():
        marks.append(Line(x, up.end, x, up.start, "grid"))
        marks.append(Text(x, up.start + 15, text, "middle", "muted", small=True))
    for y, text in up.labels():
        marks.append(Line(left, y, across.end, y, "grid"))
        marks.append(Text(left - 6, y + 4, text, "end", "muted", small=True))
    middle = (across.start + across.end) / 2
    marks.append(Text(middle, height - 8, fitted(x_label, width / 2), "middle", "muted", small=True))
    spoken = []
    for place, each in enumerate(known):
        places = [(across(point.x), up(point.estimate.value or 0.0)) for point in each]
        for (x1, y1), (x2, y2) in pairwise(places):
            marks.append(Line(x1, y1, x2, y2, "accent", 1.5))
        for point, (x, y) in zip(each, places, strict=True):
            words = f"{point.label}: {_in_words(PlotRow('', point.estimate), signed=False)} at {point.x:g}"
            low_end, high_end = point.estimate.low, point.estimate.high
            if one and low_end is not None and high_end is not None:
                marks.append(Line(x, up(low_end), x, up(high_end), "muted", 1.5, title=words))
            marks.append(Circle(x, y, 4, "accent", filled=True, title=words, about=point.about))
            spoken.append(f"{words}, {_of(point.estimate)}")
        if not one:
            row = 30.0 + 20 * place
            marks.append(Text(places[-1][0] + 8, places[-1][1] + 4, str(place + 1), bold=True, small=True))
            marks.append(Text(across.end + 32, row, fitted(f"{place + 1}  {names[place]}", beside - 16)))
    return Plot(title, _listed(spoken), width, height, marks)


def _frontier(points: Sequence[Point], sign: float) -> set[int]:
    """Return the Pareto frontier: no other point is at least as cheap and as good, and better in one of the two."""
    facts = [(point.x, sign * (point.estimate.value or 0.0)) for point in points]
    return {
        i
        for i, (x, y) in enumerate(facts)
        if not any(x2 <= x and y2 >= y and (x2, y2) != (x, y) for x2, y2 in facts)
    }


# ---------------------------------------------------------------- counts


def bars(
    title: str, rows: Sequence[tuple[str, int, About]], *, width: float = WIDE, tone: Tone = "bad"
) -> Plot:
    """Draw counts as horizontal bars."""
    most = max([count for _, count, _ in rows] or [1])
    label = min(width * 0.5, max([text_width(name) for name, _, _ in rows] or [0.0]) + 14)
    space = width - label - 70
    marks: list[Mark] = []
    for place, (name, count, about) in enumerate(rows):
        y = 4 + ROW * place
        long = max(2.0, space * count / most)
        marks.append(Text(0, y + 15, fitted(name, label), title=_full(name, label)))
        marks.append(Rect(label, y + 3, long, ROW - 6, tone, f"{name}: {count:,}", about))
        marks.append(Text(label + long + 6, y + 15, f"{count:,}", bold=True, about=about))
    return Plot(
        title, _listed([f"{name}: {count:,}" for name, count, _ in rows]), width, 8 + ROW * len(rows), marks
    )


def failures(
    title: str, kinds: Sequence[FailureKind], labels: Mapping[str, str], *, width: float = WIDE
) -> Plot:
    """Draw the number of failures of each kind."""
    rows = []
    for kind in kinds:
        where = labels.get(kind.where, kind.where)
        about = {"where": kind.where, "what": kind.what, "type": kind.type}
        rows.append((f"{kind.type} · {kind.what}, {where}", kind.count, about))
    return bars(title, rows, width=width)


def confusion(title: str, names: Sequence[str], matrix: Sequence[Sequence[int]], about: About) -> Plot:
    """A confusion matrix: rows are the expected classes, columns the predicted ones; the diagonal is framed."""
    label = min(170.0, max([text_width(name) for name in names] or [0.0]) + 12)
    widest = max([text_width(f"{count:,}") for row in matrix for count in row] or [0.0])
    cell = max(34.0, widest + 12, min(90.0, max([text_width(name) for name in names] or [0.0]) + 10))
    high, top = 30.0, 40.0
    marks: list[Mark] = [Text(label, 12, "predicted →", tone="muted", small=True)]
    marks.append(Text(0, 30, "expected ↓", tone="muted", small=True))
    for place, name in enumerate(names):
        x = label + cell * (place + 0.5)
        marks.append(Text(x, 30, fitted(name, cell - 6), "middle", small=True, title=_full(name, cell - 6)))
    spoken = []
    for i, row in enumerate(matrix):
        total = sum(row)
        y = top + high * i
        marks.append(
            Text(label - 8, y + 19, fitted(names[i], label - 8), "end", title=_full(names[i], label - 8))
        )
        for j, count in enumerate(row):
            share = count / total if total else 0.0
            x = label + cell * j
            words = f"expected {names[i]}, predicted {names[j]}: {count:,} of {total:,}"
            here = {**about, "expected": names[i], "predicted": names[j]}
            if count:
                tones: tuple[Tone, ...] = ("heat-1", "heat-2", "heat-3", "heat-4", "heat-5")
                step = min(4, int(share * 5))
                marks.append(Rect(x + 1, y + 1, cell - 2, high - 2, tones[step], words, here))
            if i == j:
                marks += [
                    Line(x + 1, y + high - 2, x + cell - 1, y + high - 2, "ink", 2),
                ]
            marks.append(
                Text(
                    x + cell / 2,
                    y + 19,
                    f"{count:,}",
                    "middle",
                    "ink" if count else "muted",
                    bold=i == j,
                    about=here,
                )
            )
            if i != j and count:
                spoken.append((count, words))
    errors = [words for _, words in sorted(spoken, key=lambda each: -each[0])]
    right = sum(matrix[i][i] for i in range(len(names)))
    description = f"{right:,} of {sum(map(sum, matrix)):,} on the diagonal. " + (
        _listed(errors[:5]) if errors else ""
    )
    return Plot(title, description, label + cell * len(names) + 2, top + high * len(names) + 4, marks)


# ---------------------------------------------------------------- calibration


def calibration(title: str, bins: Sequence[CalibrationBin], about: About, *, width: float = HALF) -> Plot:
    """Plot people's labels over the judge's scores. The points of a well calibrated judge lie on the diagonal."""
    size, left = 250.0, 52.0
    across, up = Scale(0.0, 1.0, left, left + size), Scale(0.0, 1.0, size + 20, 20.0)
    marks: list[Mark] = []
    for x, text in across.labels():
        marks += [
            Line(x, up.end, x, up.start, "grid"),
            Text(x, up.start + 15, text, "middle", "muted", small=True),
        ]
    for y, text in up.labels():
        marks += [
            Line(left, y, left + size, y, "grid"),
            Text(left - 6, y + 4, text, "end", "muted", small=True),
        ]
    marks.append(Line(across(0), up(0), across(1), up(1), "muted", 1.5, dashed=True))
    marks.append(Text(left + size / 2, size + 52, "judge's score", "middle", "muted", small=True))
    marks.append(Text(0, 10, "share that people pass", tone="muted", small=True))
    marks.append(Text(left + size + 22, 34, "judge's score: people pass", bold=True, small=True))
    spoken = []
    for place, each in enumerate(bins):
        value = each.people.value
        if value is None:
            continue
        x = across(each.score)
        passed = _in_words(PlotRow("", each.people), signed=False)
        short = f"{each.score:.2f}: {passed}, n {each.people.n:,}"
        words = f"judge {each.score:.2f}: people pass {passed}, n {each.people.n:,}"
        low = up.start if each.people.low is None else up(each.people.low)
        high = up.end if each.people.high is None else up(each.people.high)
        marks.append(Line(x, low, x, high, "accent", 2.0, title=words))
        marks.append(Circle(x, up(value), 5, "accent", title=words, about=about))
        y = 56.0 + 20 * place
        room = (width - left - size - 22) / SMALL
        marks.append(Text(left + size + 22, y, fitted(short, room), small=True, title=words))
        spoken.append(words)
    return Plot(title, _listed(spoken), width, size + 60, marks)
