"""HTML from plain text: everything is escaped unless it is markup already, and invisible characters are shown."""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, except tab and line feed
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\ufffe\uffff"  # zero width, bidirectional, filler, interlinear
    "\ud800-\udfff\ue000-\uf8ff"  # surrogates, private use
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff"  # format controls, tags, private use
    "]"
)
_JOINERS = "\u200c\u200d"
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
"""As `html.escape` does it, whose module has the names of two thousand characters to load."""


def visible(text: str) -> str:
    """Replace characters that cannot be seen, or that change the order of others, by a name.

    Controls become their pictures (`␛`), anything else its code point (`⟨U+202E⟩`). Tabs, line feeds, and joiners
    inside emoji, Arabic and Indic words stay.
    """
    return _HIDDEN.sub(_named, text)


def escape(text: object) -> str:
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
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{tag}{written}>" + ("" if tag in _EMPTY else f"{join(*children)}</{tag}>"))


def join(*children: Child) -> Markup:
    """Markup and texts one after another; texts are escaped."""
    return Markup(
        "".join(each if isinstance(each, Markup) else escape(each) for each in children if each is not None)
    )


def _named(found: re.Match[str]) -> str:
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
    return 0x0600 <= ord(character) < 0x0E00 and not _HIDDEN.match(character)
