"""The deterministic matcher: decides without a model whether texts state a gold point or a gold answer.

It compares words, numbers and dates, and for coverage embeddings where they are installed. It is a second opinion
beside a judge, and the only one with `--judge deterministic`. It knows no synonyms beyond what embeddings find, so it
is strict about paraphrases.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from karat.evaluators import TokenF1

COVERED = 0.6
"""The share of a point's words that one passage has to contain."""
NEAR = 0.3
"""The share that is enough where the embedding of the passage is close as well."""
CLOSE = 0.7
"""The cosine similarity that counts as close."""
SUPPORTED = 0.6
"""The share of a memory's words that its sources have to contain; a memory with less is a hallucination."""
F1_CORRECT = 0.6
RECALL_CORRECT = 0.8
PRECISION_PARTIAL = 0.75
WINDOW = 3
"""Adjacent sentences that are read as one passage."""
LONGEST = 200_000
"""Characters of a text that are compared."""

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W\d_]+)?")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_SENTENCE = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s+|\n+|(?<=[\u3002\uff01\uff1f])")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?<![\w.])[-+]?\d+(?:\.\d+)?")
_STOP_WORDS = """
a an the and or but if then so of in on at to for from by with about into over as is are was were be been being am do
does did has have had having will would can could should may might must shall it its this that these those he she they
them his her their we us our i me my mine you your yours user assistant who whom which what when where why how there
here also just very really not no
"""
_STOP = frozenset(_STOP_WORDS.split())
_NUMERALS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty
"""
_NUMBER_WORDS = {word: number for number, word in enumerate(_NUMERALS.split())}
_MONTH_NAMES = """
january jan
february feb
march mar
april apr
may
june jun
july jul
august aug
september sep sept
october oct
november nov
december dec
"""
_MONTHS = {
    name: number for number, line in enumerate(_MONTH_NAMES.split("\n")[1:-1], 1) for name in line.split()
}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DATES = (
    re.compile(r"\b(?P<y>\d{4})[-/](?P<m>\d{1,2})[-/](?P<d>\d{1,2})\b"),
    re.compile(
        rf"\b(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?:\s+of)?\s+(?P<n>{_MONTH})\b\.?(?:,?\s+(?P<y>\d{{4}}))?", re.I
    ),
    re.compile(rf"\b(?P<n>{_MONTH})\b\.?\s+(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s+(?P<y>\d{{4}}))?", re.I),
    re.compile(rf"\b(?P<n>{_MONTH})\b\.?,?\s+(?P<y>\d{{4}})\b", re.I),
    re.compile(r"\b(?P<y>\d{4})[-/](?P<m>\d{1,2})\b"),
    re.compile(r"\b(?P<y>(?:19|20)\d{2})\b"),
)
_CANNOT = (
    r"\b(?:do(?:es)? not|do(?:es)?n['\u2019]?t|did(?: not|n['\u2019]?t)|cannot|can['\u2019]?t"
    r"|could(?: not|n['\u2019]?t)|unable to|no way to)"
)
_TO_SAY = (
    r"(?:know|say|tell|answer|determine|find|recall|remember|mention|specify|contain|provide|state"
    r"|have (?:any |enough |that |the |this )?(?:information|memory|record))"
)
_NOTHING = r"\b(?:no|not enough|insufficient|without)"
_SOURCE = r"(?:information|mention|record|evidence|memory|memories|details)"
_NEVER = r"\b(?:not|never|isn['\u2019]?t|wasn['\u2019]?t)"
_SAID = r"(?:mentioned|specified|stated|known|provided|discussed|given|available|answerable)"
_BETWEEN = r"\s+(?:\w+\s+){0,2}?"
_REFUSALS = re.compile(
    "|".join(
        [
            _CANNOT + _BETWEEN + _TO_SAY,
            _NOTHING + _BETWEEN + _SOURCE,
            _NEVER + _BETWEEN + _SAID,
            r"\bunanswerable\b|\bunknown\b|\bnot sure\b|\bI have no idea\b",
            "\u4e0d\u77e5\u9053|\u65e0\u6cd5\u56de\u7b54|\u6ca1\u6709\u63d0\u5230|\u672a\u63d0\u53ca",
        ]
    ),
    re.IGNORECASE,
)
LONGEST_REFUSAL = 60
"""The largest number of words of a refusal: a longer text that contains one gives an answer too."""

_f1 = TokenF1()


def _stem(word: str) -> str:
    for ending in ("ing", "ies", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + ("y" if ending == "ies" else "")
    return word


@functools.lru_cache(maxsize=20_000)
def content_words(text: str) -> frozenset[str]:
    """The words of a text that carry meaning: folded, without endings; characters for scripts without spaces."""
    out: set[str] = set()
    for match in _WORD.finditer(text[:LONGEST].casefold()):
        word = re.sub(r"['\u2019]\w*$", "", match[0])
        if _WIDE.search(word):
            out.update(word)
        elif word and word not in _STOP:
            out.add(str(_NUMBER_WORDS[word]) if word in _NUMBER_WORDS else _stem(word))
    return frozenset(out)


@functools.lru_cache(maxsize=5_000)
def sentences(text: str) -> tuple[str, ...]:
    """The sentences and lines of a text."""
    return tuple(part.strip() for part in _SENTENCE.split(text[:LONGEST]) if part and part.strip())


def passages(text: str) -> list[str]:
    """What is compared with a point: one to three adjacent sentences."""
    parts = sentences(text)
    out = [
        " ".join(parts[at : at + size])
        for size in range(1, WINDOW + 1)
        for at in range(len(parts) - size + 1)
    ]
    return out or [text]


def numbers(text: str) -> set[float]:
    """The numbers in a text, also in words up to twenty."""
    found = {float(match[0].replace(",", "")) for match in _NUMBER.finditer(text[:LONGEST])}
    words = (match[0] for match in _WORD.finditer(text[:LONGEST].casefold()))
    return found | {float(_NUMBER_WORDS[word]) for word in words if word in _NUMBER_WORDS}


class Date(NamedTuple):
    """A date, or the part of one that a text gives."""

    year: int | None
    month: int | None
    day: int | None

    def within(self, other: Date) -> bool:
        """Whether another date has every part that this one has, with the same values."""
        return all(mine is None or mine == theirs for mine, theirs in zip(self, other, strict=True))


def dates(text: str) -> list[Date]:
    """The dates in a text, in any of the usual forms."""
    out: list[Date] = []
    taken: list[tuple[int, int]] = []
    for pattern in _DATES:
        for match in pattern.finditer(text[:LONGEST]):
            if any(start < match.end() and match.start() < end for start, end in taken):
                continue
            parts = match.groupdict()
            month = _MONTHS[parts["n"].casefold()] if parts.get("n") else parts.get("m")
            year, day = parts.get("y"), parts.get("d")
            date = Date(int(year) if year else None, int(month) if month else None, int(day) if day else None)
            if not 1 <= (date.month or 1) <= 12 or not 1 <= (date.day or 1) <= 31:
                continue
            taken.append(match.span())
            out.append(date)
    return out


def is_refusal(text: str) -> bool:
    """Whether an answer is a refusal ("I don't know")."""
    return not text.strip() or (
        len(_WORD.findall(text[:LONGEST])) <= LONGEST_REFUSAL and bool(_REFUSALS.search(text[:LONGEST]))
    )


# ---------------------------------------------------------------- coverage of points by memories


def _recall(words: frozenset[str], passage: str) -> float:
    return len(words & content_words(passage)) / len(words) if words else 0.0


class Matcher:
    """Decides coverage. `embeddings=None` uses them where `wordllama` is installed."""

    def __init__(self, embeddings: bool | None = None) -> None:
        installed = importlib.util.find_spec("wordllama") is not None
        self.embeddings = installed if embeddings is None else embeddings

    @property
    def method(self) -> str:
        """The name of the method, as stated in every verdict."""
        return "matcher: words and embeddings" if self.embeddings else "matcher: words"

    def covered_by(self, point: str, memories: Sequence[str], against: Iterable[str] = ()) -> int | None:
        """Return the position of the first memory that states a point; None if no memory does.

        `against` are statements that the point replaces: a passage that is nearer to one of them does not count.
        """
        words = content_words(point)
        wanted = {number for number in numbers(point) if not _is_year(number)}
        if not words:
            return None
        other = [content_words(each) for each in against]
        near: list[tuple[int, str]] = []
        for place, memory in enumerate(memories):
            for passage in passages(memory):
                share = _recall(words, passage)
                if share < NEAR or not wanted <= numbers(passage):
                    continue
                if any(not _nearer(words, old, content_words(passage)) for old in other):
                    continue
                if share >= COVERED:
                    return place
                near.append((place, passage))
        return self._close(point, near) if self.embeddings and near else None

    def _close(self, point: str, near: list[tuple[int, str]]) -> int | None:
        """The place of the first passage whose embedding is close to that of the point."""
        import numpy

        from karat import models

        vectors: Any = models.get("local/wordllama").embed_sync([point, *(passage for _, passage in near)])
        norms = numpy.linalg.norm(vectors, axis=1)
        similar = vectors[1:] @ vectors[0] / numpy.maximum(norms[1:] * norms[0], 1e-12)
        return next((place for (place, _), value in zip(near, similar, strict=True) if value >= CLOSE), None)


def _is_year(number: float) -> bool:
    """Whether a number may be a year, which a gold point spells out and a dialogue leaves out."""
    return 1900 <= number <= 2100 and number == int(number)


def _nearer(words: frozenset[str], other: frozenset[str], passage: frozenset[str]) -> bool:
    """Whether a passage shares more with the words of a point than with those of the other statement."""
    own, theirs = words - other, other - words
    if not own:
        return not theirs or not theirs <= passage
    return len(own & passage) / len(own) > (len(theirs & passage) / len(theirs) if theirs else 0.0)


# ---------------------------------------------------------------- answers

AnswerLabel = Literal["Correct", "Hallucination", "Omission"]


class AnswerVerdict(NamedTuple):
    """The label of an answer, and what decided."""

    label: AnswerLabel
    reasoning: str


def judge_answer(
    answer: str, gold: Sequence[str], *, answerable: bool = True, choices: Sequence[str] = ()
) -> AnswerVerdict:
    """Label an answer by comparing it with the gold answers, of which any one is right."""
    refuses = is_refusal(answer)
    if not answerable:
        if refuses:
            return AnswerVerdict("Correct", "the question cannot be answered, and the answer says so")
        return AnswerVerdict(
            "Hallucination", "the question cannot be answered, and the answer does not say so"
        )
    if refuses and not any(is_refusal(each) for each in gold):
        return AnswerVerdict("Omission", "the answer says that it does not know")
    verdicts = [_compared(answer, each, choices) for each in gold if each.strip()]
    if not verdicts:
        return AnswerVerdict("Omission", "there is no gold answer to compare with")
    order = ("Correct", "Omission", "Hallucination")
    return min(verdicts, key=lambda verdict: order.index(verdict.label))


def _compared(answer: str, gold: str, choices: Sequence[str]) -> AnswerVerdict:
    if choices:
        return _chosen(answer, gold, choices)
    gold_dates = dates(gold)
    if gold_dates and _is_only_date(gold):
        found = dates(answer)
        if all(any(date.within(other) for other in found) for date in gold_dates):
            return AnswerVerdict("Correct", "the answer has the date of the gold answer")
        return AnswerVerdict("Hallucination", "the answer has another date than the gold answer, or none")
    wanted = numbers(gold)
    if wanted and len(content_words(gold)) <= len(wanted) + 1:
        if wanted <= numbers(answer):
            return AnswerVerdict("Correct", "the answer has the numbers of the gold answer")
        return AnswerVerdict("Hallucination", "the answer has other numbers than the gold answer, or none")
    items = _list_items(gold)
    if len(items) > 1:
        present = [item for item in items if _recall(content_words(item), answer) >= RECALL_CORRECT]
        if len(present) == len(items):
            return AnswerVerdict("Correct", f"the answer has all {len(items)} items of the gold answer")
        if present:
            return AnswerVerdict(
                "Omission", f"the answer has {len(present)} of the {len(items)} items of the gold answer"
            )
    scored = _f1.evaluate(outputs=answer, reference_outputs=gold)
    recall, words = _recall(content_words(gold), answer), content_words(answer)
    numbers_agree = wanted <= numbers(answer)
    if numbers_agree and ((scored.score or 0.0) >= F1_CORRECT or recall >= RECALL_CORRECT):
        return AnswerVerdict("Correct", f"token F1 {scored.score or 0.0:.2f}, {recall:.0%} of the gold words")
    precision = len(words & content_words(gold)) / len(words) if words else 0.0
    if precision >= PRECISION_PARTIAL and recall > 0:
        return AnswerVerdict("Omission", f"the answer has only {recall:.0%} of the gold words")
    return AnswerVerdict(
        "Hallucination", f"token F1 {scored.score or 0.0:.2f}, {recall:.0%} of the gold words"
    )


def _chosen(answer: str, gold: str, choices: Sequence[str]) -> AnswerVerdict:
    folded = answer.strip().casefold()
    named = [choice for choice in choices if choice.strip().casefold() in folded]
    letter = re.match(r"\(?([a-z])(?:[).:]|$)", folded)
    if not named and letter and ord(letter[1]) - 97 < len(choices):
        named = [choices[ord(letter[1]) - 97]]
    longest = [
        each for each in named if not any(each != o and each.casefold() in o.casefold() for o in named)
    ]
    if len(longest) == 1 and longest[0].strip().casefold() == gold.strip().casefold():
        return AnswerVerdict("Correct", "the answer names the right choice")
    if not longest:
        return AnswerVerdict("Omission", "the answer names none of the choices")
    return AnswerVerdict("Hallucination", "the answer names another choice, or several")


def _is_only_date(text: str) -> bool:
    rest = text
    for pattern in _DATES:
        rest = pattern.sub(" ", rest)
    return not (content_words(rest) - {"day", "dat", "date", "around", "since", "during"})


def _list_items(text: str) -> list[str]:
    parts = [part.strip(" .") for part in re.split(r",|;|\n|\band\b", text)]
    items = [part for part in parts if content_words(part)]
    return items if len(items) > 1 and all(len(content_words(item)) <= 5 for item in items) else []
