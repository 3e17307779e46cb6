"""The difference between two texts, word by word, and the part of it that is worth showing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

Kind = Literal["same", "removed", "added", "left_out"]

MOST_WORDS = 4000
"""Words of the differing part that are aligned: the table of an alignment grows with the product of both lengths."""

_WORDS = re.compile(r"\w+|\s+|[^\w\s]")


class Piece(msgspec.Struct, frozen=True):
    """A part of two texts: in both, only in the first (`removed`) or only in the second (`added`).

    `left_out` marks a part that is the same in both and not shown; its text is empty.
    """

    kind: Kind
    text: str


def word_diff(first: str, second: str) -> list[Piece]:
    """Align two texts word by word. The pieces, in order, make up both texts."""
    a, b = _WORDS.findall(first), _WORDS.findall(second)
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    middle = _align(a[start : len(a) - end], b[start : len(b) - end])
    return _join_pieces(
        [Piece("same", "".join(a[:start])), *middle, Piece("same", "".join(a[len(a) - end :]))]
    )


def excerpt(pieces: Sequence[Piece], around: int = 40, longest: int = 600) -> list[Piece]:
    """The changed parts with `around` characters of what surrounds them, at most about `longest` characters."""
    out: list[Piece] = []
    left = longest
    changed = any(piece.kind != "same" for piece in pieces)
    for place, piece in enumerate(pieces):
        if left <= 0:
            out.append(Piece("left_out", ""))
            break
        if piece.kind != "same" or not changed:
            out.append(Piece(piece.kind, piece.text[:left]))
            if len(piece.text) > left:
                out.append(Piece("left_out", ""))
        else:
            before = "" if place == 0 else piece.text[:around]
            after = "" if place == len(pieces) - 1 else piece.text[-around:]
            if len(before) + len(after) >= len(piece.text):
                out.append(piece)
            else:
                out += [Piece("same", before), Piece("left_out", ""), Piece("same", after)]
        left = longest - sum(len(each.text) for each in out)
    return [piece for piece in out if piece.text or piece.kind == "left_out"]


def _align(a: list[str], b: list[str]) -> list[Piece]:
    if not a or not b or len(a) > MOST_WORDS or len(b) > MOST_WORDS:
        return [Piece("removed", "".join(a)), Piece("added", "".join(b))]
    from rapidfuzz.distance import Indel

    out: list[Piece] = []
    for step in Indel.opcodes(a, b):
        removed, added = (
            "".join(a[step.src_start : step.src_end]),
            "".join(b[step.dest_start : step.dest_end]),
        )
        if step.tag == "equal":
            out.append(Piece("same", removed))
        else:
            out += [Piece("removed", removed), Piece("added", added)]
    return _words_together(out)


def _words_together(pieces: list[Piece]) -> list[Piece]:
    """Count the white space between two changes as changed: `the cat` → `a dog` is one change, not two."""
    out: list[Piece] = []
    for place, piece in enumerate(pieces):
        inner = 0 < place < len(pieces) - 1
        if piece.kind == "same" and inner and piece.text.isspace():
            out += [Piece("removed", piece.text), Piece("added", piece.text)]
        else:
            out.append(piece)
    return out


def _join_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one kind as one piece; within a change, what was removed comes before what was added."""
    out: list[Piece] = []
    removed = added = ""
    for piece in [*(each for each in pieces if each.text), Piece("same", "")]:
        if piece.kind == "removed":
            removed += piece.text
        elif piece.kind == "added":
            added += piece.text
        else:
            if removed or added:
                out += [each for each in (Piece("removed", removed), Piece("added", added)) if each.text]
                removed = added = ""
            if piece.text and out and out[-1].kind == "same":
                out[-1] = Piece("same", out[-1].text + piece.text)
            elif piece.text:
                out.append(piece)
    return out
