"""Finding the chosen letter in the answer to a multiple-choice question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import regex

# Every repetition is possessive: these patterns meet text of any length, and must not backtrack in it.
_AFTER = r"(?![\p{L}\p{N}_])"
_WITHOUT_SPACES = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]"
_STATED = (
    r"(?i:\b(?:answer|choice|option)[\s*_]*+(?:is|was|would\s++be|should\s++be|must\s++be|[:=–—-])[\s*_]*+"
    r"(?:option|choice|the\s++letter|letter|is)?\s*+:?+)"
)
_CHOSEN = (
    r"(?i:(?<!\b(?:not|never|cannot)\s|n['’]t\s)\b(?:choose|pick|select|go\s++with|going\s++with)\s++"
    r"(?:option|choice|answer|letter)?\s*+)"
)
_IS_RIGHT = (
    r"\s*+(?i:is|was|must\s++be)\s++(?i:the\s++)?+(?i:correct|right|best)\b(?i:\s++(?:answer|option|choice|one)\b)?+"
    r"(?!\s++(?!(?i:because|since|as|and|but|so|here|while)\b)\p{L})"
)
_OPEN = r"[\s*_`\"'“”‘’(\[{<]*+"
_CLOSE = r"[\s*_`\"'“”‘’)\]}>]*+"
_WORD = regex.compile(r"\s++(?!(?:or|and|nor|is|was|because|since|as)\b)\p{Ll}")
"""After a lone A or I: the word goes on as a sentence does, so the letter is an article or a pronoun."""
_DENIED_BEFORE = regex.compile(
    r"(?i:\b(?:not|never|neither|nor|except|cannot|than)|n['’]t)\s++(?i:(?:be|choose|pick|select)\s++)?+(?i:option|choice|answer|letter)?"
    r"[\s*_`\"'“”‘’(\[{<]*+$"
)
_DENIED_AFTER = regex.compile(
    rf"{_CLOSE}(?i:(?:is|was|are)(?:\s++not\b|n['’]t\b|\s++(?:wrong|incorrect|false|out)\b)|can(?:not|['’]t)\b)"
)
_SUBJECT = regex.compile(r"[)\]]?+[*_`]*+\s++(?i:is|was|are|isn['’]t|can|cannot|seems|says|would|could)\b")
"""After an opening letter: it is what a sentence is about, which does not choose it."""


class ChoiceReader:
    """Finds a label in a text, by the clearest sign first."""

    def __init__(self, labels: Sequence[str], case_sensitive: bool) -> None:
        self.labels = list(labels)
        self._fold = (lambda text: text) if case_sensitive else str.casefold
        self._by_fold = {self._fold(label): label for label in reversed(self.labels)}
        flags = 0 if case_sensitive else regex.IGNORECASE
        names = "|".join(regex.escape(label) for label in sorted(self.labels, key=len, reverse=True))
        # a Latin letter may stand right beside a character of a script that puts no spaces between words
        beside = f"(?!{_WITHOUT_SPACES})" if all(map(str.isascii, self.labels)) else ""
        before = rf"(?<!{beside}[\p{{L}}\p{{N}}_])"
        one = rf"(?P<label>{names})(?!{beside}[\p{{L}}\p{{N}}_])"
        another = rf"{_OPEN}(?:{names}){_AFTER}(?!\s++(?i:is|was)\b)"
        several = rf"(?P<several>{_CLOSE},?+(?:(?i:\s*+(?:or|and)\s)|[/&])\s*+{another})?"
        self._alone = regex.compile(rf"{_OPEN}{one}{_CLOSE}[.:;,!]*{_CLOSE}", flags)
        self._opens = regex.compile(rf"{_OPEN}{one}(?:[*_`]*+[.:)\]]|\s*+[-–—])", flags)
        self._boxed = regex.compile(rf"\\boxed\s*\{{\s*(?:\\text\s*\{{)?{_OPEN}{one}(?P<several>)?", flags)
        self._states = regex.compile(
            rf"(?:{_STATED}|{_CHOSEN}){_OPEN}{one}(?!['’][a-z]){several}"
            rf"|{before}(?<!(?:{names})(?:,|\s(?i:and|or))\s){one}{_CLOSE}{_IS_RIGHT}(?P<several>)?",
            flags,
        )
        self._named = regex.compile(rf"{before}{one}(?!['’])", 0)

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
            found = [match for match in pattern.finditer(text) if not _is_word(match, text)]
            if found and found[-1]["several"]:
                return None, "it states more than one letter"
            if found:
                return self._label(found[-1]["label"]), how
        return self._without_statement(text)

    def _without_statement(self, text: str) -> tuple[str | None, str]:
        """The label of a text that says nowhere "the answer is": on a line of its own, in front, or the only one."""
        alone = {self._label(match["label"]) for line in text.splitlines() if (match := self._line(line))}
        if len(alone) == 1:
            return alone.pop(), "the letter on a line of its own"
        opening = [self._opened(line) for line in text.splitlines() if line.strip()][:2]
        if opening[0] is not None and opening[-1] in (
            opening[0],
            None,
        ):  # two in a row are a list of the options
            return opening[0], "it opens with the letter"
        return self._named_alone(text)

    def _named_alone(self, text: str) -> tuple[str | None, str]:
        named: set[str] = set()
        denied: set[str] = set()
        for match in self._named.finditer(text):
            label = self._label(match["label"])
            if label not in named and not _is_word(match, text):
                (denied if _is_denied(match, text) else named).add(label)
        if len(named) == 1:
            how = "the only letter it does not deny" if denied - named else "the only letter it names"
            return named.pop(), how
        if named:
            return None, f"it names {len(named)} of the letters and states none"
        return None, "it only says which letter it is not" if denied else "it names no letter"

    def _line(self, line: str) -> Any:
        """A short line that is a letter and nothing else."""
        return self._alone.fullmatch(line.strip()) if len(line) < 100 else None

    def _opened(self, line: str) -> str | None:
        """The label that a line opens with and then explains."""
        match = self._opens.match(line)
        return (
            None if match is None or _SUBJECT.match(line, match.end("label")) else self._label(match["label"])
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


def _is_denied(match: Any, text: str) -> bool:
    """Whether the letter is named as what the answer is not: "not B", "B is wrong"."""
    start = match.start("label")
    before = text[max(0, start - 40) : start]
    return bool(_DENIED_BEFORE.search(before) or _DENIED_AFTER.match(text, match.end("label")))
