"""The deterministic matcher: decides without a model whether texts state a gold point or a gold answer.

It compares words, numbers, dates, times and negation, and for coverage embeddings where they are installed. It is a
second opinion beside a judge, and the only one with `--judge deterministic`. It knows few synonyms beyond what
embeddings find, so it is strict about paraphrases. `tests/memory/matching_cases.jsonl` has labelled cases.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from karat.evaluators import TokenF1
from karat.memory._language import (
    ENDED_FORMS,
    Facts,
    Word,
    content_words,
    counted_words,
    dates,
    facts_of,
    is_plan,
    is_refusal,
    other_subject,
    sentences,
    statements,
    subject_of,
    without_dates,
    word_sequence,
)

COVERED = 0.6
"""The share of a point's words that one passage has to contain."""
JOINED = 0.75
"""The share that a passage over several memories has to contain."""
NEAR = 0.3
"""The share that is enough where the embedding of the passage is close as well."""
CLOSE = 0.7
"""The cosine similarity that counts as close."""
SIMILAR = 0.55
"""The cosine similarity of two single words that mean about the same: `bought` and `purchased` have 0.77, `brother` and
`cousin` 0.45, `gym` and `choir` -0.02."""
SUPPORTED = 0.6
"""The share of a memory's words that its sources have to contain; a memory with less is a hallucination."""
F1_CORRECT = 0.6
RECALL_CORRECT = 0.8
PRECISION_PARTIAL = 0.75
WINDOW = 3
"""Adjacent sentences of a memory that are read as one passage."""
ACROSS = 6
"""Adjacent sentences of several memories that are read as one passage."""
LONGEST_ORDERED = 1_000
"""Characters of a sentence in which the order of words is looked at: the time grows with the square of it."""
MOST_NUMBERS = 3
"""An answer with more numbers than this names none in particular."""

_f1 = TokenF1()


# ---------------------------------------------------------------- coverage of points by memories


def _recall(words: frozenset[str], passage: str) -> float:
    return len(words & content_words(passage)) / len(words) if words else 0.0


_NOTHING = facts_of("")


class _Point:
    """A gold point, and what a passage has to contain to state it."""

    def __init__(self, text: str, against: Iterable[str]) -> None:
        self.text = text
        self.facts = facts_of(text)
        self.words = _without_numbers(self.facts.words) or self.facts.words
        self.subject = subject_of(text) & self.words
        spelled_one = {1.0} if not re.search(r"(?<!\d)1(?!\d)", text) else set()
        self.numbers = self.facts.numbers - spelled_one
        self.list = _last_words(text)
        self.plan = is_plan(text)
        self.names = [names for names in _names(text) if not names & self.subject]
        self.relative = other_subject(text)
        self.against = [content_words(each) for each in against]

    def without_others(self, sentence: Facts) -> Facts:
        """A sentence; one that says nothing if it speaks of a relative or a friend whom the point does not name."""
        return _NOTHING if any(not about & self.facts.words for about in sentence.others) else sentence

    def share(self, passage: Facts) -> float:
        """The share of the words that a passage has. Who says `I` need not say the name."""
        words = self.words
        if passage.first_person and not self.subject <= passage.words and words - self.subject:
            words = words - self.subject
        return len(words & passage.words) / len(words)

    def allowed(self, passage: Facts) -> bool:
        """Whether a passage has the numbers, dates and times of the point and does not say the opposite."""
        return (
            (self.numbers <= passage.numbers or bool(self.facts.spans & passage.spans))
            and all(any(date.within(other) for other in passage.dates) for date in self._dates())
            and all(any(time.same(other) for other in passage.times) for time in self.facts.times)
            and (not self.list & passage.words or 2 * len(self.list - passage.words) < len(self.list))
            and not self.facts.contradicts(passage)
            and self._states_fact(passage)
            and all(_nearer(self.facts.words, old, passage.words) for old in self.against)
        )

    def _states_fact(self, passage: Facts) -> bool:
        """Whether a passage states something, of the same people, that has happened."""
        if passage.asks:
            return False
        if self.relative and not self.relative & passage.words:
            return False
        missing = sum(2 * len(names - passage.words) > len(names) for names in self.names)
        speaks_of_others = passage.first_person and self.subject <= passage.words - passage.speakers
        if missing > speaks_of_others:  # who says `I` may be one of them
            return False
        shared = self.words & passage.words
        return self.plan or 3 * len(shared & (passage.unreal - passage.real)) < len(shared)

    def _dates(self) -> list[Any]:
        """The dates that have to be there: a gold point spells out a year that a dialogue leaves out."""
        return [date for date in self.facts.dates if date.month is not None]


_POSSESSIVE = re.compile(r"(?:[A-Z]\w*\s+)*[A-Z]\w*['\u2019]s?\s")
_NAME = re.compile(r"[A-Z][\w'\u2019-]*(?: [A-Z][\w'\u2019-]*)*")
_WEEKDAYS = content_words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday I")
_LIST = re.compile(r"\b(\w+)(?:, (?:the |an? )?(\w+))*,? and (?:the |an? )?(\w+)\W*$")


def _names(text: str) -> list[frozenset[str]]:
    """The names in a statement after its first word: `New York` and `Jenny` in `She took Jenny to New York`."""
    rest = without_dates(text).partition(" ")[2]
    return [words for found in _NAME.findall(rest) if (words := content_words(found) - _WEEKDAYS)]


def _last_words(text: str) -> frozenset[str]:
    """The single words of a list at the end of a statement: a passage has all of them, or is about something else."""
    found = _LIST.search(text[-LONGEST_ORDERED:])
    return (
        frozenset().union(*(content_words(each) for each in found.groups() if each)) if found else frozenset()
    )


def _without_numbers(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if not word.isdigit())


class Matcher:
    """The decision whether a text covers a gold point. `embeddings=None` uses them where `wordllama` is installed."""

    def __init__(self, embeddings: bool | None = None) -> None:
        installed = importlib.util.find_spec("wordllama") is not None
        self.embeddings = installed if embeddings is None else embeddings

    @property
    def method(self) -> str:
        """The name of the method, as stated in every verdict."""
        return "matcher: words and embeddings" if self.embeddings else "matcher: words"

    def covered_by(self, point: str, memories: Sequence[str], against: Iterable[str] = ()) -> int | None:
        """Return the position of the first memory that states a point; None if no memory does.

        A point may also be stated by adjacent memories together; the position is that of the first of them.
        `against` are statements that the point replaces: a passage that is nearer to one of them does not count.
        """
        wanted = _Point(point, against)
        if not wanted.words:
            return None
        near: list[tuple[int, str]] = []
        parts = [
            (place, wanted.without_others(each))
            for place, memory in enumerate(memories)
            for each in statements(memory)
        ]
        for place, start, end, passage in _passages(parts, wanted.words):
            share = wanted.share(passage)
            several = parts[end - 1][0] != place
            if share < (JOINED if several else NEAR) or not wanted.allowed(passage):
                continue
            if several:
                return place
            text = _text_of(memories[place], start - _first(parts, start), end - start)
            if any(
                self.replaced(point, each, passage.words) or swapped(point, each) for each in sentences(text)
            ):
                continue
            if share >= COVERED or share + self._similar_share(wanted.words, point, passage, text) >= COVERED:
                return place
            near.append((place, text))
        return self._close(point, near) if self.embeddings and near else None

    def replaced(self, wanted: str, given: str, known: frozenset[str]) -> bool:
        """Whether a sentence says the same of something else: `joined a choir` instead of `joined a gym`.

        That is so where one or two words stand in the place of others, between words that both share, and mean
        something else, while all other words but one agree. `known` are words that are stated elsewhere. The word
        after the subject is a verb, for which there are too many ways to say the same.
        """
        if max(len(wanted), len(given)) > LONGEST_ORDERED:
            return False
        ours, theirs = word_sequence(wanted), word_sequence(given)
        name = len(subject_of(wanted))
        if ours[:name] and facts_of(given).first_person and ours[0].form not in known:
            ours, name = ours[name:], 0
        verb = name if name and not _POSSESSIVE.match(wanted) else -1
        found = difflib.SequenceMatcher(
            None, [word.form for word in ours], [word.form for word in theirs], autojunk=False
        ).get_opcodes()
        equal = sum(end - start for kind, start, end, _, _ in found if kind == "equal")
        for number, (kind, start, end, begin, stop) in enumerate(found):
            if kind != "replace" or start == verb or end - start > 2 or stop - begin > 2:
                continue
            if not equal or len(ours) - equal - (end - start) > 1:
                continue
            if number == 0 and (begin or start or stop - begin != end - start):
                continue
            old, new = ours[start:end], theirs[begin:stop]
            if known.isdisjoint(word.form for word in old) and not self._same_meaning(old, new):
                return True
        return False

    def recall(self, words: frozenset[str], wanted: str, given: str) -> float:
        """The share of some words of a text that another text has, or has in other words."""
        if not words:
            return 0.0
        found = _recall(words, given)
        return found + self._similar_share(words, wanted, facts_of(given), given)

    def _same_meaning(self, ours: Sequence[Word], theirs: Sequence[Word]) -> bool:
        if not self.embeddings:
            return False
        return any(_similarity(a.written, b.written) >= SIMILAR for a in ours for b in theirs)

    def _similar_share(self, words: frozenset[str], point: str, passage: Facts, text: str) -> float:
        """The share of a point's words for which a passage has another word of the same meaning."""
        if not self.embeddings:
            return 0.0
        missing = [word for word in word_sequence(point) if word.form in words - passage.words]
        said = {word.written.casefold() for word in word_sequence(text)}
        found = {
            word.form
            for word in missing
            if any(_similarity(word.written.casefold(), other) >= SIMILAR for other in said)
        }
        return len(found) / len(words)

    def _close(self, point: str, near: list[tuple[int, str]]) -> int | None:
        """The place of the first passage whose embedding is close to that of the point."""
        import numpy

        from karat import models

        vectors: Any = models.get("local/wordllama").embed_sync([point, *(passage for _, passage in near)])
        norms = numpy.linalg.norm(vectors, axis=1)
        similar = vectors[1:] @ vectors[0] / numpy.maximum(norms[1:] * norms[0], 1e-12)
        return next((place for (place, _), value in zip(near, similar, strict=True) if value >= CLOSE), None)


_FROM_TO = re.compile(r"\bfrom\b(?P<a>[^.;,!?]{1,60}?)\bto\b(?P<b>[^.;,!?]{1,60})", re.IGNORECASE)
_BETWEEN = re.compile(
    r"(?P<a>[^.;,!?]{1,80}?)\b(?:over|than|instead of|of)\b(?P<b>[^.;,!?]{1,60})", re.IGNORECASE
)
"""`tea over coffee`, `older than Jan`, `the manager of Lee`: what stands on either side is not interchangeable."""
_BY = re.compile(
    r"(?P<a>[^.;,!?]{1,80}?)\b(?:is|are|was|were|been|being|gets?|got)\s+\w+\s+(?:[^.;,!?]{0,40}?\s)?by\b(?P<b>[^.;,!?]{1,60})",
    re.IGNORECASE,
)
_PASSIVE = re.compile(
    r"\b(?:is|are|was|were|been|being|be|gets?|got)\s+(?:\w+ly\s+)?\w+(?:ed|en|[^aeiou]t|ght|nt|ld)\b|\bby\b|\bfrom\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[,;:]")
_NOUN_MARK = re.compile(
    r"(?:\b(?:an?|the|my|our|his|her|their|your|this|that|\d+)\s+|['\u2019]s?\s+)(\w+)", re.IGNORECASE
)


def swapped(wanted: str, given: str) -> bool:
    """Whether two sentences of the same words say who did what to whom the other way round.

    That is so if the words after `from` and `to` have changed places, or a word before the verb and one behind it.
    Passive sentences are left alone, because they change places without changing the meaning.
    """
    if max(len(wanted), len(given)) > LONGEST_ORDERED:
        return False
    for pattern in (_FROM_TO, _BETWEEN):
        one, other = pattern.search(wanted), pattern.search(given)
        if one and other:
            (a, b), (c, d) = (
                (content_words(found["a"]), content_words(found["b"])) for found in (one, other)
            )
            if (a - c) & d and (c - a) & b:
                return True
    if _other_doer(wanted, given) or _other_doer(given, wanted) or _counts_others(wanted, given):
        return True
    if _PASSIVE.search(wanted) or _PASSIVE.search(given):
        return False
    return any(_is_swapped(wanted, clause) for clause in _CLAUSE.split(given))


def _other_doer(passive: str, active: str) -> bool:
    """Whether one sentence says by whom it was done, and in the other that one comes after whom it was done to."""
    found = _BY.search(passive)
    if found is None or _PASSIVE.search(active):
        return False
    order = [word.form for word in word_sequence(active)]
    done_to, done_by = (
        [order.index(form) for form in content_words(found[side]) if form in order] for side in "ab"
    )
    return bool(done_to and done_by) and max(done_to) < min(done_by)


def _counts_others(wanted: str, given: str) -> bool:
    """Whether both speak of the same two things, and one counts the one and the other the other."""
    ours, theirs = counted_words(wanted), counted_words(given)
    shared = content_words(wanted) & content_words(given)
    return any(
        theirs[number] != word and {word, theirs[number]} <= shared
        for number, word in ours.items()
        if number in theirs
    )


def _is_swapped(wanted: str, given: str) -> bool:
    ours = [word.form for word in word_sequence(wanted)]
    theirs = [word.form for word in word_sequence(given)]
    if len(set(ours)) != len(ours) or len(set(theirs)) != len(theirs):
        return False
    nouns = {
        form
        for text in (wanted, given)
        for found in _NOUN_MARK.findall(text)
        for form in content_words(found)
    }
    at = {form: place for place, form in enumerate(theirs)}
    shared = [form for form in ours if form in at]
    for place, verb in enumerate(shared):
        if verb in nouns:
            continue
        before = any(at[form] > at[verb] for form in shared[:place])
        behind = any(at[form] < at[verb] for form in shared[place + 1 :])
        if before and behind:
            return True
    return False


@functools.lru_cache(maxsize=2_000)
def _vector(word: str) -> Any:
    """The embedding of a word, of length 1."""
    import numpy

    from karat import models

    vector: Any = models.get("local/wordllama").embed_sync([word])[0]
    return vector / max(float(numpy.linalg.norm(vector)), 1e-12)


@functools.lru_cache(maxsize=20_000)
def _similarity(one: str, other: str) -> float:
    """The cosine similarity of two words."""
    return float(_vector(one) @ _vector(other))


def _passages(
    parts: Sequence[tuple[int, Facts]], words: frozenset[str]
) -> Iterator[tuple[int, int, int, Facts]]:
    """One to three adjacent sentences of a memory, then up to six over several, that begin with a shared word.

    Yields the position of the memory, the range of sentences, and what they say.
    """
    starts = [start for start, (_, each) in enumerate(parts) if words & each.words]
    for longest, across in ((WINDOW, False), (ACROSS, True)):
        for start in starts:
            place, passage = parts[start]
            if not across:
                yield place, start, start + 1, passage
            for end in range(start + 1, min(len(parts), start + longest)):
                if not across and parts[end][0] != place:
                    break
                passage = passage + parts[end][1]
                if not across or parts[end][0] != place:
                    yield place, start, end + 1, passage


def _first(parts: Sequence[tuple[int, Facts]], start: int) -> int:
    """The position of the first sentence of the memory to which the sentence at `start` belongs."""
    while start and parts[start - 1][0] == parts[start][0]:
        start -= 1
    return start


def _text_of(memory: str, start: int, count: int) -> str:
    """Some sentences of a memory, for its embedding."""
    return " ".join(sentences(memory)[start : start + count]) or memory


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
    answer: str,
    gold: Sequence[str],
    *,
    answerable: bool = True,
    choices: Sequence[str] = (),
    matcher: Matcher | None = None,
) -> AnswerVerdict:
    """Label an answer by comparing it with the gold answers, of which any one is right."""
    matcher = matcher or Matcher()
    refuses = is_refusal(answer)
    if not answerable:
        if refuses:
            return AnswerVerdict("Correct", "the question cannot be answered, and the answer says so")
        return AnswerVerdict(
            "Hallucination", "the question cannot be answered, and the answer does not say so"
        )
    if refuses and not any(is_refusal(each) for each in gold):
        guess = re.split(r"\b(?:but|however)\b", answer, maxsplit=1, flags=re.IGNORECASE)[-1]
        if guess != answer and not is_refusal(guess):
            right = [
                each
                for each in gold
                if each.strip() and _compare_answer(guess, each, choices, matcher).label == "Correct"
            ]
            if right:
                return AnswerVerdict("Correct", "the answer expresses a doubt and gives the gold answer")
        return AnswerVerdict("Omission", "the answer says that it does not know")
    verdicts = [_compare_answer(answer, each, choices, matcher) for each in gold if each.strip()]
    if not verdicts:
        return AnswerVerdict("Omission", "there is no gold answer to compare with")
    order = ("Correct", "Omission", "Hallucination")
    best = min(verdicts, key=lambda verdict: order.index(verdict.label))
    if refuses and best.label == "Hallucination":
        return AnswerVerdict("Omission", "the answer says that it does not know")
    return best


_YES_NO = re.compile(r"\W*(yes|yeah|no|nope)\b(?:\W+|$)", re.IGNORECASE)


def _compare_answer(answer: str, gold: str, choices: Sequence[str], matcher: Matcher) -> AnswerVerdict:
    if choices:
        return _chosen(answer, gold, choices)
    decided = _yes_or_no(answer, gold)
    if decided is not None:
        return decided
    passages = statements(answer) or (facts_of(answer),)
    found = sum(passages[1:], passages[0])
    wanted = facts_of(gold)
    if wanted.dates and _is_only_date(gold):
        stated = dates(answer)
        if all(any(date.within(other) for other in stated) for date in wanted.dates):
            return AnswerVerdict("Correct", "the answer has the date of the gold answer")
        return AnswerVerdict("Hallucination", "the answer has another date than the gold answer, or none")
    if wanted.times and len(wanted.words) <= 1:
        if all(any(time.same(other) for other in found.times) for time in wanted.times):
            return AnswerVerdict("Correct", "the answer has the time of the gold answer")
        return AnswerVerdict("Hallucination", "the answer has another time than the gold answer, or none")
    if wanted.spans and found.spans and len(_without_numbers(wanted.words)) <= 1:
        if wanted.spans & found.spans:
            return AnswerVerdict("Correct", "the answer has the span of time of the gold answer")
        return AnswerVerdict("Hallucination", "the answer has another span of time than the gold answer")
    if wanted.differs(found):
        return AnswerVerdict("Hallucination", "the answer has something else in place of the gold answer's")
    if wanted.numbers and len(_without_numbers(wanted.words)) <= 1:
        if wanted.numbers <= found.numbers and len(found.numbers) <= len(wanted.numbers) + MOST_NUMBERS - 1:
            return AnswerVerdict("Correct", "the answer has the numbers of the gold answer")
        return AnswerVerdict("Hallucination", "the answer has other numbers than the gold answer, or none")
    if wanted.contradicts(found):
        return AnswerVerdict("Hallucination", "the answer says the opposite of the gold answer")
    items = _list_items(gold)
    if len(items) > 1:
        present = [item for item in items if _recall(content_words(item), answer) >= RECALL_CORRECT]
        if len(present) == len(items):
            return AnswerVerdict("Correct", f"the answer has all {len(items)} items of the gold answer")
        others = [item for item in _list_items(answer) if _is_other(item, gold)]
        if present and others:
            return AnswerVerdict("Hallucination", f"{others[0]!r} is not in the list of the gold answer")
        if present:
            return AnswerVerdict(
                "Omission", f"the answer has {len(present)} of the {len(items)} items of the gold answer"
            )
    scored = _f1.evaluate(outputs=answer, reference_outputs=gold)
    numbers_agree = wanted.numbers <= found.numbers
    needed, words = _required_words(gold, answer), content_words(answer)
    if wanted.numbers and numbers_agree:  # 1200 may be said in words
        needed = _without_numbers(needed) or needed
    recall = matcher.recall(needed, gold, answer)
    if any(matcher.replaced(gold, each, words) or swapped(gold, each) for each in sentences(answer)):
        return AnswerVerdict("Hallucination", "the answer says the same of something else")
    if numbers_agree and ((scored.score or 0.0) >= F1_CORRECT or recall >= RECALL_CORRECT):
        return AnswerVerdict("Correct", f"token F1 {scored.score or 0.0:.2f}, {recall:.2f} of the gold words")
    precision = len(words & content_words(gold)) / len(words) if words else 0.0
    if precision >= PRECISION_PARTIAL and recall > 0:
        return AnswerVerdict("Omission", f"the answer has only {recall:.2f} of the gold words")
    return AnswerVerdict(
        "Hallucination", f"token F1 {scored.score or 0.0:.2f}, {recall:.2f} of the gold words"
    )


_PRONOUN = re.compile(r"\b(?:I|we|he|she|they)\b", re.IGNORECASE)


def _required_words(gold: str, answer: str) -> frozenset[str]:
    """The words that an answer has to contain: without the name of whom it calls `she`, and `stopped` if it negates."""
    words = content_words(gold)
    if facts_of(gold).negated and facts_of(answer).negated and words - ENDED_FORMS:
        words -= ENDED_FORMS
    name = subject_of(gold) - content_words(answer)
    return words - name if len(words) > 2 and words - name and _PRONOUN.search(answer) else words


def _yes_or_no(answer: str, gold: str) -> AnswerVerdict | None:
    """The verdict where the gold answer begins with yes or no and that alone decides; None otherwise."""
    wanted, given = _YES_NO.match(gold), _YES_NO.match(answer)
    if wanted is None or given is None:
        return None
    if (wanted[1].casefold()[0] == "y") != (given[1].casefold()[0] == "y"):
        return AnswerVerdict(
            "Hallucination", f"the answer is {given[1].casefold()}, the gold answer {wanted[1].casefold()}"
        )
    if not content_words(gold[wanted.end() :]):
        return AnswerVerdict("Correct", f"both say {wanted[1].casefold()}")
    return None


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


def _is_other(item: str, gold: str) -> bool:
    """Whether a short item of a list shares no word with the gold answer."""
    words = content_words(item)
    return len(words) <= 2 and not words & content_words(gold)


def _is_only_date(text: str) -> bool:
    return not (content_words(without_dates(text)) - _AROUND_DATES)


_AROUND_DATES = content_words("day date around since during")


def _list_items(text: str) -> list[str]:
    parts = [part.strip(" .") for part in re.split(r",|;|\n|\band\b", text)]
    items = [part for part in parts if content_words(part)]
    return items if len(items) > 1 and all(len(content_words(item)) <= 5 for item in items) else []
