"""Finding the chosen letter in the answer to a multiple-choice question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import regex

# Every repetition is possessive: these patterns meet text of any length, and must not backtrack in it.
_BEFORE = r"(?<![\p{L}\p{N}_])"
_AFTER = r"(?![\p{L}\p{N}_])"
_STATED = (
    r"(?i:\b(?:answer|choice|option)\s*+(?:is|was|would\s++be|should\s++be|[:=–—-])\s*+"
    r"(?:option|choice|the\s++letter|letter|is)?\s*+:?+)"
)
_OPEN = r"[\s*_`\"'“”‘’(\[{<]*+"
_CLOSE = r"[\s*_`\"'“”‘’)\]}>]*+"
_WORD = regex.compile(r"\s++(?!(?:or|and|nor|is|was|because|since|as)\b)\p{Ll}")
"""After a lone A or I: the word goes on as a sentence does, so the letter is an article or a pronoun."""


class ChoiceReader:
    """Finds a label in a text, by the clearest sign first."""

    def __init__(self, labels: Sequence[str], case_sensitive: bool) -> None:
        self.labels = list(labels)
        self._fold = (lambda text: text) if case_sensitive else str.casefold
        self._by_fold = {self._fold(label): label for label in reversed(self.labels)}
        flags = 0 if case_sensitive else regex.IGNORECASE
        names = "|".join(regex.escape(label) for label in sorted(self.labels, key=len, reverse=True))
        one = rf"(?P<label>{names}){_AFTER}"
        self._alone = regex.compile(rf"{_OPEN}{one}{_CLOSE}[.:;,!]*{_CLOSE}", flags)
        self._opens = regex.compile(rf"{_OPEN}{one}(?:[*_`]*+[.:)\]]|\s*+[-–—])", flags)
        self._boxed = regex.compile(rf"\\boxed\s*\{{\s*(?:\\text\s*\{{)?{_OPEN}{one}", flags)
        self._states = regex.compile(rf"{_STATED}{_OPEN}{one}(?!['’][a-z])", flags)
        self._named = regex.compile(rf"{_BEFORE}{one}(?!['’])", 0)

    def label(self, text: str) -> str | None:
        """The label that a text is, or None."""
        return self._by_fold.get(self._fold(text.strip()))

    def read(self, text: str, options: Sequence[str] = ()) -> tuple[str | None, str]:
        """The label chosen and by which sign, or None and why not."""
        text = text.strip()
        if not text:
            return None, "it is empty"
        if match := self._alone.fullmatch(text):
            return self._label(match["label"]), "it is the letter"
        by_text = {self._fold(option.strip()): at for at, option in enumerate(options[: len(self.labels)])}
        at = by_text.get(self._fold(text.rstrip(".")), by_text.get(self._fold(text)))
        if at is not None:
            return self.labels[at], "it is the text of that option"
        for pattern, how in ((self._boxed, "boxed"), (self._states, "stated as the answer")):
            found = [match["label"] for match in pattern.finditer(text) if not _is_word(match, text)]
            if found:
                return self._label(found[-1]), how
        if match := self._opens.match(text):
            return self._label(match["label"]), "it opens with the letter"
        matches = self._named.finditer(text)
        named = {self._label(match["label"]) for match in matches if not _is_word(match, text)}
        if len(named) == 1:
            return named.pop(), "the only letter it names"
        return (
            None,
            f"it names {len(named)} of the letters and states none" if named else "it names no letter",
        )

    def _label(self, found: str) -> str:
        return self._by_fold[self._fold(found)]


def _is_word(match: Any, text: str) -> bool:
    """Whether what looks like the label A or I is the English word."""
    label = match["label"]
    if label not in ("A", "a", "I", "i") or not _WORD.match(text, match.end("label")):
        return False
    start = match.start("label")
    before = text[max(0, start - 20) : start].rstrip()
    return label != "A" or not before or before[-1] in ".!?:\n"
