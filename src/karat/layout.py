"""Text on a terminal: display width, wrapping, tables that fit, and colour.

All of it is given text that is already safe to print (`karat.formatting.clean`); the escape sequences written here are
the only ones that reach a terminal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec


class Layout(msgspec.Struct, frozen=True):
    """Where text is shown: the width of the terminal, and whether it has colours."""

    width: int | None = None
    """Columns; None where lines may be as long as they like."""
    colour: bool = False


PLAIN = Layout()
"""Full width and no colour: files, pipes and strings."""


class Styled(str):
    """Text with a style; everything that does not know styles takes it for the text alone."""

    __slots__ = ("style",)

    style: str

    def __new__(cls, text: str, style: str) -> Styled:
        made = super().__new__(cls, text)
        made.style = style
        return made


STYLES = {
    "bold": "1",
    "dim": "2",
    "good": "32",
    "bad": "31",
    "warning": "33",
    "best": "1;32",
    "added": "32",
    "removed": "31",
}
"""SGR parameters. Only the basic colours, which every colour scheme makes readable."""

MARKS = {"added": ("{+", "+}"), "removed": ("[-", "-]")}
"""What stands for a style where there is no colour, as `wdiff` writes it."""


def style_of(text: str) -> str:
    """The style of a text; empty for an ordinary string."""
    return text.style if isinstance(text, Styled) else ""


def paint(text: str, style: str, layout: Layout) -> str:
    """A text in a style, where the layout has colours."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if layout.colour and style in STYLES and text else text


def wants_colour(environment: Mapping[str, str], is_terminal: bool) -> bool:
    """Whether to write colours. NO_COLOR wins over FORCE_COLOR, as in Python itself."""
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "") not in ("", "0"):
        return True
    return is_terminal and environment.get("TERM") != "dumb"


_EMOJI = "\ufe0f"
"""Variation selector 16: the character before it is shown as an emoji, two columns wide."""


def display_width(text: str) -> int:
    """The columns that a text takes on a terminal: two for wide characters and emoji, none for combining marks."""
    return len(text) if text.isascii() else sum(_widths(text))


def _widths(text: str) -> Iterable[int]:
    for place, character in enumerate(text):
        width = _width(character)
        if width == 1 and text[place + 1 : place + 2] == _EMOJI:
            width = 2
        yield width


@lru_cache(maxsize=4096)
def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    # Hangul vowels and final consonants join the syllable before them.
    if "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def fit(text: str, width: int) -> str:
    """The text, or as much of its beginning as fits, with an ellipsis."""
    if display_width(text) <= width:
        return text
    return _beginning(text, width - 1) + "…" if width > 0 else ""


def _beginning(text: str, width: int) -> str:
    """Return as many characters as fit."""
    used = 0
    for place, each in enumerate(_widths(text)):
        used += each
        if used > width:
            return text[:place]
    return text


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text with spaces up to a display width."""
    space = " " * max(0, width - display_width(text))
    return space + text if right else text + space


_WORDS = re.compile(r"\s+|[^\s]+")


def wrap(text: str, width: int, most: int | None = None) -> list[str]:
    """Break a text into lines at spaces, and inside words that are too long; at most `most` lines."""
    return ["".join(part for part in line) for line in wrap_spans([text], width, most)]


def wrap_spans(spans: Iterable[str], width: int, most: int | None = None) -> list[list[str]]:
    """Break styled text into lines; each line is a list of parts that keep their styles."""
    width = max(1, width)
    lines: list[list[str]] = [[]]
    used = 0
    for span in spans:
        style = style_of(span)
        for word in _WORDS.findall(span):
            if word.isspace():
                if used and used < width:
                    lines[-1].append(_as(" ", style))
                    used += 1
                elif used:
                    lines.append([])
                    used = 0
                continue
            length = display_width(word)
            if used + length > width and used and length <= width:
                lines.append([])
                used = 0
            while used + length > width:
                head = _beginning(word, width - used) or (word[0] if not used else "")
                if head:
                    lines[-1].append(_as(head, style))
                lines.append([])
                word, used = word[len(head) :], 0
                length = display_width(word)
            if word:
                lines[-1].append(_as(word, style))
                used += length
    lines = [_strip(line) for line in lines]
    lines = [line for line in lines if line] or [[]]
    if most is not None and len(lines) > most:
        last = lines[most - 1]
        shown = _beginning("".join(last), width - 1) + "…"
        lines = [*lines[: most - 1], [_as(shown, style_of(last[-1]) if last else "")]]
    return lines


def _as(text: str, style: str) -> str:
    return Styled(text, style) if style else text


def _strip(line: list[str]) -> list[str]:
    while line and line[-1].isspace():
        line = line[:-1]
    return line


GAP = "  "
NARROW = 16
"""Columns of up to this width are never wrapped: ids, numbers, intervals, short words."""
LONGEST_WORD = 26
"""A column of words up to this length is not broken inside them."""
LINES = 3
"""Lines of a cell that are shown; the rest is cut."""


class Columns(msgspec.Struct, frozen=True):
    """How a table's columns shrink when there is little room."""

    right: Sequence[int] = ()
    """Columns of numbers."""
    drop: Sequence[int] = ()
    """Columns to leave out where there is no room, the least important first."""
    split: bool = False
    """Continue columns that do not fit in another table below, with the first column repeated."""
    lines: int = LINES


EVERY_COLUMN = Columns()


def table_text(rows: Sequence[Sequence[str]], columns: Columns = EVERY_COLUMN, layout: Layout = PLAIN) -> str:
    """Rows under a head, in aligned columns that fit the layout."""
    if not rows:
        return ""
    natural = [max(display_width(row[i]) for row in rows) for i in range(len(rows[0]))]
    if layout.width is None:
        return "\n".join(_lines(rows, dict(enumerate(natural)), columns, layout))
    if columns.split:
        return _parts_text(rows, natural, columns, layout, layout.width)
    left, widths = _fitting(rows, natural, columns, layout.width)
    if widths is None:  # nothing more may be left out
        shown = Columns([left.index(i) for i in columns.right if i in left], split=True, lines=columns.lines)
        text = _parts_text(
            [[row[i] for i in left] for row in rows], [natural[i] for i in left], shown, layout, layout.width
        )
        lines = text.split("\n")
        widths = dict.fromkeys(left, 0)
    else:
        lines = _lines(rows, widths, columns, layout)
    hidden = [rows[0][i] for i in range(len(natural)) if i not in widths]
    if hidden:
        note = f"(no room for: {', '.join(hidden)})"
        lines += [paint(line, "dim", layout) for line in wrap(note, layout.width)]
    return "\n".join(lines)


def _fitting(
    rows: Sequence[Sequence[str]], natural: Sequence[int], columns: Columns, width: int
) -> tuple[list[int], dict[int, int] | None]:
    """The columns that are shown, the most important ones first, and their widths; None where they do not fit."""

    def widths_of(some: Sequence[int]) -> dict[int, int] | None:
        return _widths_for(natural, rows, some, columns, width, least=NARROW)

    left = list(range(len(natural)))
    widths = widths_of(left)
    dropped: list[int] = []
    for each in dict.fromkeys(columns.drop):
        if widths is not None:
            break
        dropped.append(each)
        left.remove(each)
        widths = widths_of(left)
    if widths is not None:
        # One that was left out before a wide one may have room now.
        for each in reversed(dropped[:-1]):
            wider = widths_of(sorted([*left, each]))
            if wider is not None:
                left, widths = sorted([*left, each]), wider
    return left, widths


def _parts_text(
    rows: Sequence[Sequence[str]], natural: Sequence[int], columns: Columns, layout: Layout, width: int
) -> str:
    """The table in several parts below each other."""
    texts = []
    for part in _split(natural, width):
        widths = _widths_for(natural, rows, part, columns, width, least=NARROW)
        widths = widths or _widths_for(natural, rows, part, columns, width, least=1)
        texts.append("\n".join(_lines(rows, widths or {i: natural[i] for i in part}, columns, layout)))
    return "\n\n".join(texts)


def _widths_for(
    natural: Sequence[int],
    rows: Sequence[Sequence[str]],
    left: Sequence[int],
    columns: Columns,
    width: int,
    *,
    least: int,
) -> dict[int, int] | None:
    """The width of each column that is left; None where they do not fit."""
    room = width - len(GAP) * (len(left) - 1)
    if sum(natural[i] for i in left) <= room:
        return {i: natural[i] for i in left}
    floors = {}
    for i in left:
        floor = min(natural[i], least)
        if least == NARROW and natural[i] > NARROW and i not in columns.right:
            longest = max(display_width(word) for row in rows for word in [*row[i].split(), ""])
            floor = min(natural[i], max(NARROW, min(longest, LONGEST_WORD)))
        floors[i] = natural[i] if i in columns.right and least == NARROW else floor
    room -= sum(floors.values())
    if room < 0:
        return None
    while True:
        wanting = [i for i in left if floors[i] < natural[i]]
        if not wanting or room <= 0:
            return floors
        share = max(1, room // len(wanting))
        for i in wanting:
            more = min(share, natural[i] - floors[i], room)
            floors[i] += more
            room -= more


def _split(natural: Sequence[int], width: int) -> list[list[int]]:
    """The columns of each part: the first, and as many of the others as fit beside it."""
    first = min(natural[0], max(NARROW, width // 3)) if len(natural) > 1 else natural[0]
    parts: list[list[int]] = [[0]]
    used = first
    for i in range(1, len(natural)):
        if used + len(GAP) + natural[i] > width and len(parts[-1]) > 1:
            parts.append([0])
            used = first
        parts[-1].append(i)
        used += len(GAP) + natural[i]
    return parts


def _lines(
    rows: Sequence[Sequence[str]], widths: Mapping[int, int], columns: Columns, layout: Layout
) -> list[str]:
    out: list[str] = []
    for number, row in enumerate(rows):
        cells = {
            i: [row[i]] if display_width(row[i]) <= width else wrap(row[i], width, columns.lines)
            for i, width in widths.items()
        }
        for line in range(max((len(each) for each in cells.values()), default=0)):
            parts = []
            for i, width in widths.items():
                text = pad(cells[i][line] if line < len(cells[i]) else "", width, right=i in columns.right)
                style = "bold" if number == 0 else style_of(row[i])
                bare = text.strip()
                parts.append(text.replace(bare, paint(bare, style, layout), 1) if style and bare else text)
            out.append(GAP.join(parts).rstrip())
        if number == 0:
            out.append(paint(GAP.join("─" * width for width in widths.values()), "dim", layout))
    return out
