"""Facts in a text, read by rules: words, numbers, dates, times of day, negations, and refusals.

The rules are for English. Other scripts are compared by characters, numbers and dates alone.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import date as CalendarDate
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import NamedTuple

LONGEST = 200_000
"""Characters of a text that are read."""

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W\d_]+)?")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_SENTENCE = re.compile(r"(?<=[.!?\u3002\uff01\uff1f])\s+|\n+|(?<=[\u3002\uff01\uff1f])")


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STOP = _listed("""
a an the and or but if then so of in on at to for from by with about into over as is are was were be been being am do
does did has have had having will would can could should may might must shall it its this that these those he she they
them his her their we us our i me my mine you your yours user assistant who whom which what when where why how there
here also just very really not no per
""")

_NEGATORS = _listed(
    "not no never without cannot neither nor none nobody nothing hardly dont doesnt didnt cant wont isnt wasnt arent"
)
_NEGATED = re.compile(r"n['\u2019]t$")
_ADVERBS = _listed(
    "always often still now again already instead longer anymore too even ever maybe perhaps actually"
)
"""Words that stand between others without changing what is said; so do words in -ly."""

# ---------------------------------------------------------------- words

_ACCENTS = re.compile(r"[\u0300-\u036f]+")
_PHRASES = tuple(
    (re.compile(pattern, re.IGNORECASE), instead)
    for pattern, instead in (
        (r"\$", " dollars "),
        (r"\u20ac", " euros "),
        (r"\u00a3", " pounds "),
        (r"%", " percent "),
        (r"\b(?:can['\u2019]?t|can ?not|could(?:n['\u2019]?t| not)) (?:stand|bear)\b", "dislike"),
        (r"\b(?:a )?(?:(?:big|huge|great) )?fan of\b", "like"),
        (r"\bturn(?:ed|s|ing)? down\b", "declined"),
        (r"\bunable to\b", "cannot"),
        (r"\b(?:fail(?:ed|s)?|refus(?:ed|es)|forg(?:ot|ets|otten)) to\b", "did not"),
        (r"\bno one\b", "nobody"),
    )
)
"""Signs and phrases that mean the same as a word that the rules know."""


@functools.lru_cache(maxsize=20_000)
def _plain(text: str) -> str:
    """A text without accents, and with words instead of some signs and phrases."""
    text = text[:LONGEST]
    if not text.isascii():  # a letter with an accent is the letter, and other scripts stay as they are
        text = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", text)))
    for pattern, instead in _PHRASES:
        text = pattern.sub(instead, text)
    return text


_FORMS = """
took:take taken:take bought:buy went:go gone:go ran:run met:meet got:get gave:give given:give made:make told:tell
thought:think began:begin begun:begin won:win lost:lose sold:sell paid:pay spent:spend wrote:write written:write
drove:drive driven:drive flew:fly flown:fly ate:eat eaten:eat drank:drink slept:sleep taught:teach built:build
broke:break broken:break chose:choose chosen:choose grew:grow grown:grow knew:know kept:keep sent:send sang:sing
swam:swim wore:wear left:leave brought:bring caught:catch fought:fight found:find held:hold led:lead rode:ride
rose:rise said:say saw:see seen:see spoke:speak stood:stand children:child feet:foot people:person wives:wife
km:kilometre kilometer:kilometre kilometers:kilometre kg:kilogram mum:mother mom:mother dad:father kid:child
kids:child euro:eur euros:eur dollars:usd dollar:usd percent:pct colour:color favourite:favorite
love:like loved:like loves:like loving:like enjoy:like enjoys:like enjoyed:like enjoying:like adore:like adores:like
teacher:teach
"""
_IRREGULAR = dict(pair.split(":") for pair in _FORMS.split())
"""Forms that a stemmer misses, and a few words that mean the same."""
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
)
_TEENS = "seventeen eighteen nineteen"
_NUMERALS = {word: number for number, word in enumerate(f"{_UNITS} {_TEENS}".split())}
_TENS = {
    word: 10 * number
    for number, word in enumerate(
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2
    )
}
_MULTIPLES = {"hundred": 100, "thousand": 1000, "million": 1_000_000, "dozen": 12}


def _stem(word: str) -> str:
    for ending, instead in (
        ("ied", "y"),
        ("ies", "y"),
        ("ing", ""),
        ("ed", ""),
        ("es", ""),
        ("s", ""),
        ("e", ""),
    ):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiou":
        word = word[:-1]
    return word


def _word(token: str) -> str:
    """A token in the form in which words are compared; empty for one without meaning."""
    if token in _NEGATORS or _NEGATED.search(token):  # what is negated is compared apart from the words
        return ""
    word = re.sub(r"['\u2019]\w*$", "", token)
    if not word or word in _STOP:
        return ""
    numeral = _NUMERALS.get(word, _TENS.get(word))
    return str(numeral) if numeral is not None else _stem(_IRREGULAR.get(word, word))


@functools.lru_cache(maxsize=20_000)
def content_words(text: str) -> frozenset[str]:
    """The words of a text that carry meaning: folded, without endings; characters for scripts without spaces."""
    out: set[str] = set()
    for match in _WORD.finditer(_plain(text).casefold()):
        out.update(_forms(match[0]))
    return frozenset(out)


class Word(NamedTuple):
    """A word that carries meaning, as it is compared and as it is written."""

    form: str
    written: str


@functools.lru_cache(maxsize=20_000)
def word_sequence(text: str) -> tuple[Word, ...]:
    """The words of a text that carry meaning, in order; without those of dates, times and numbers, and adverbs."""
    rest = _times(_dates(_plain(text))[1])[1]
    rest = _SPAN.sub(lambda found: " " if found["half"] or any(_counted(found["n"])) else found[0], rest)
    out = []
    for match in _WORD.finditer(rest):
        token = match[0].casefold()
        form = _word(token)
        if token in _ADVERBS or (token.endswith("ly") and len(token) > 5):
            continue
        if form and not form[0].isdigit() and not _WIDE.search(form):
            out.append(Word(form, re.sub(r"['\u2019]\w*$", "", match[0])))
    return tuple(out)


def _forms(token: str) -> Iterable[str]:
    if _WIDE.search(token):
        return token
    word = _word(token)
    return (word,) if word else ()


@functools.lru_cache(maxsize=5_000)
def sentences(text: str) -> tuple[str, ...]:
    """The sentences and lines of a text."""
    return tuple(part.strip() for part in _SENTENCE.split(text[:LONGEST]) if part and part.strip())


# ---------------------------------------------------------------- dates and times

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
    re.compile(r"\b(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?!\d)"),
    re.compile(r"(?<![\d./-])(?P<one>\d{1,2})(?P<sign>[./-])(?P<two>\d{1,2})(?P=sign)(?P<y>\d{4})(?!\d)"),
    re.compile(r"(?<!\d)(?P<y>(?:19|20)\d{2})(?P<m>0[1-9]|1[0-2])(?P<d>0[1-9]|[12]\d|3[01])(?!\d)"),
    re.compile(
        rf"\b(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?:\s+of)?\s+(?P<n>{_MONTH})\b\.?(?:,?\s+(?P<y>\d{{4}}))?", re.I
    ),
    re.compile(rf"\b(?P<n>{_MONTH})\b\.?\s+(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s+(?P<y>\d{{4}}))?", re.I),
    re.compile(rf"\b(?P<n>{_MONTH})\b\.?,?\s+(?P<y>\d{{4}})\b", re.I),
    re.compile(
        rf"\b(?:in|from|since|until|till|by|during|last|next|this|early|late|mid|of) (?P<n>{_MONTH})\b(?! \d)",
        re.I,
    ),
    re.compile(r"\b(?P<y>\d{4})[-/](?P<m>\d{1,2})\b"),
    re.compile(r"\b(?P<y>(?:19|20)\d{2})\b"),
)
_RELATIVE = re.compile(
    r"\b(today|tonight|this (?:morning|afternoon|evening)|yesterday|last night|tomorrow)\b", re.I
)
_SHIFTS = {"yesterday": -1, "last night": -1, "tomorrow": 1}
_TIME = re.compile(
    r"(?<![\d.,:])(?P<h>\d{1,2})(?::(?P<m>\d{2}))?(?::\d{2})?\s*(?P<half>[ap])\.?m\b"
    r"|(?<![\d.,:])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::\d{2})?(?!\d)",
    re.I,
)


class Date(NamedTuple):
    """A date, or the part of one that a text gives."""

    year: int | None
    month: int | None
    day: int | None
    swappable: bool = False
    """Whether month and day may be the other way round, as in 02/06/2024."""

    def within(self, other: Date) -> bool:
        """Whether another date has every part that this one has, with the same values.

        The other one may leave out the year of a day, which a dialogue rarely spells out.
        """
        if self.swappable or other.swappable:
            plain = self._replace(swappable=False)
            return any(
                plain.within(each)
                for each in (
                    other._replace(swappable=False),
                    other._replace(month=other.day, day=other.month, swappable=False),
                )
            )
        if self.month is not None and other.year is None:
            return self.month == other.month and self.day == other.day
        return all(mine is None or mine == theirs for mine, theirs in zip(self[:3], other[:3], strict=True))

    def shifted(self, days: int) -> Date | None:
        """A date some days later; None for a part of a date."""
        if self.year is None or self.month is None or self.day is None:
            return None
        try:
            moved = CalendarDate(self.year, self.month, self.day) + timedelta(days)
        except (ValueError, OverflowError):
            return None
        return Date(moved.year, moved.month, moved.day)


class Time(NamedTuple):
    """A time of day in minutes; `half_unknown` where 7:00 may be in the morning or in the evening."""

    minutes: int
    half_unknown: bool

    def same(self, other: Time) -> bool:
        """Whether both can be the same time."""
        if self.half_unknown or other.half_unknown:
            return self.minutes % 720 == other.minutes % 720
        return self.minutes == other.minutes


def _dates(text: str) -> tuple[list[Date], str]:
    """The dates in a text, and the text without them."""
    out: list[Date] = []
    for pattern in _DATES:
        taken: list[tuple[int, int]] = []
        for match in pattern.finditer(text):
            parts = match.groupdict()
            month = _MONTHS[parts["n"].casefold()] if parts.get("n") else parts.get("m")
            year, day = parts.get("y"), parts.get("d")
            date = Date(int(year) if year else None, int(month) if month else None, int(day) if day else None)
            if parts.get("one"):
                date = _numeric_date(int(parts["one"]), int(parts["two"]), parts["sign"], int(parts["y"]))
            if 1 <= (date.month or 1) <= 12 and 1 <= (date.day or 1) <= 31:
                taken.append(match.span())
                out.append(date)
        text = _without(text, taken)
    return out, text


def _numeric_date(one: int, two: int, sign: str, year: int) -> Date:
    """The date of 14/03/2024, 03/14/2024 or 14.03.2024; with dots the day comes first."""
    if one > 12 or (sign == "." and two <= 12):
        return Date(year, two, one)
    return Date(year, one, two, swappable=two <= 12 and one != two)


def _times(text: str) -> tuple[list[Time], str]:
    """The times of day in a text, and the text without them."""
    out: list[Time] = []
    taken: list[tuple[int, int]] = []
    for match in _TIME.finditer(text):
        half = match["half"]
        hour, minute = int(match["h"] or match["hour"]), int(match["m"] or match["minute"] or 0)
        if hour > (12 if half else 24) or minute > 59:
            continue
        if half:
            hour = hour % 12 + (12 if half.casefold() == "p" else 0)
        out.append(Time(60 * hour + minute, not half and 1 <= hour <= 12))
        taken.append(match.span())
    return out, _without(text, taken)


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    """A text with blanks in place of some parts."""
    if not spans:
        return text
    parts, last = [], 0
    for start, end in spans:
        parts += [text[last:start], " " * (end - start)]
        last = end
    return "".join([*parts, text[last:]])


def dates(text: str) -> list[Date]:
    """The dates in a text, in any of the usual forms."""
    return _dates(text[:LONGEST])[0]


def without_dates(text: str) -> str:
    """A text with blanks in place of its dates."""
    return _dates(text[:LONGEST])[1]


# ---------------------------------------------------------------- numbers

_NUMBER = re.compile(
    r"(?<![\w.])(?P<n>[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[-+]?\d+(?:\.\d+)?)(?P<k>\s?(?:k|thousand|million)\b)?",
    re.I,
)


def _number(written: str) -> float:
    """A whole number exactly (an account number may have 20 digits), one with a fraction as a float."""
    digits = written.replace(",", "")
    return float(digits) if "." in digits else int(Decimal(digits))  # `int` of text takes 4,300 digits


def numbers(text: str) -> set[float]:
    """The numbers in a text, also in words; without those of dates and times of day."""
    rest = _times(_dates(_plain(text))[1])[1]
    out: set[float] = set()
    for match in _NUMBER.finditer(rest):
        value = _number(match["n"])
        if match["k"]:
            value *= 1_000_000 if match["k"].strip().casefold() == "million" else 1000
        out.add(value)
    return out | set(_spelled(rest))


_COUNTS = {"twice": 2.0, "thrice": 3.0, "both": 2.0, "couple": 2.0}
"""Words that say how many."""


def _spelled(text: str) -> Iterator[float]:
    """Numbers in words: `seven`, `twenty-five`, `one thousand two hundred and five`, `half a dozen`, `twice`."""
    words = [match[0] for match in _WORD.finditer(text.casefold())]
    place = 0
    while place < len(words):
        word = words[place]
        if word in _COUNTS:
            yield _COUNTS[word]
        elif word == "dozen":
            yield 6.0 if words[max(0, place - 2) : place] == ["half", "a"] else 12.0
        elif word in _NUMERALS or word in _TENS:
            value, place = _spelled_at(words, place)
            yield float(value)
            continue
        place += 1


def counted_words(text: str) -> dict[str, str]:
    """The word that follows each number: `cat` for 2 in `two cats and a dog`."""
    tokens = [match[0] for match in _WORD.finditer(_plain(text).casefold())]
    out: dict[str, str] = {}
    for token, following in pairwise(tokens):
        form, word = _word(token), _word(following)
        if form.isdigit() and word and not word.isdigit():
            out.setdefault(form, word)
    return out


def _spelled_at(words: list[str], place: int) -> tuple[int, int]:
    """The number in words that begins at a place, and the place after it."""
    total, group = 0, 0
    smallest = 10**9  # what may follow is smaller than what came before: `two hundred five`, not `two five`
    while place < len(words):
        word = words[place]
        value = _NUMERALS.get(word, _TENS.get(word))
        if value is not None and value < smallest and not (group % 10 and value) and not group % 100:
            group, smallest = group + value, 100
        elif value is not None and 0 < value < 10 and group % 10 == 0 and group % 100 >= 20:
            group += value
        elif word in _MULTIPLES and group:
            multiple = _MULTIPLES[word]
            if multiple in (100, 12):
                group, smallest = group * multiple, 10**9
            else:
                total, group, smallest = total + group * multiple, 0, 10**9
        elif word == "and" and (total or group) and _continues(words, place):
            pass
        else:
            break
        place += 1
    return total + group, place


def _continues(words: list[str], place: int) -> bool:
    """Whether `and` joins the parts of one number: `two hundred and five`, not `two and five`."""
    if words[place - 1] not in ("hundred", "thousand", "million") or place + 1 >= len(words):
        return False
    return words[place + 1] in _NUMERALS or words[place + 1] in _TENS


# ---------------------------------------------------------------- negation

_ENDED = _listed("stop stops stopped stopping quit quits quitting ceased")
"""Verbs that negate the activity after them: `stopped drinking coffee`."""
ENDED_FORMS = _listed("stop quit ceas")
_NO_NEGATION = _listed(
    "only just forget mind doubt wait miss problem problems worries worry hesitate matter idea"
)
"""Words after a negator that turn it into something else: `don't forget`, `not only`, `can't wait`."""
_ENDS_SCOPE = _listed(
    "but although though because since while whereas however so instead except until unless yet rather"
)
_SUBJECTS = _listed("i we he she they it you my our his her their")
_TOKEN = re.compile(rf"(?P<word>{_WORD.pattern})|(?P<stop>[,;:.!?()\n\u2013\u2014\u3002\uff0c])")
_ALTERNATIVES = tuple(
    tuple(content_words(member) for member in line.split(" | "))
    for line in (
        "like favourite prefer | hate dislike detest despise loathe",
        "start begin | stop quit finish end",
        "buy | sell",
        "book reserve | cancel",
        "doubt | certain sure",
        "join start | leave quit resign",
        "live reside | born",
        "speak | learn",
        "run play | watch",
        "open | close",
        "accept | decline reject refuse",
        "increase rise | decrease fall",
        "win | lose",
        "pass succeed | fail",
        "arrive | leave depart",
        "left | right",
        "early | late",
        "cheap | expensive",
        "before | after",
        "indoors inside | outdoors outside",
        "monday | tuesday | wednesday | thursday | friday | saturday | sunday",
        "spring | summer | autumn fall | winter",
        "morning | afternoon | evening night tonight",
        "breakfast | lunch | dinner supper",
        "north northern | south southern | east eastern | west western",
        "red | blue | green | yellow | black | white | grey gray | brown | pink | purple violet | orange | turquoise",
        "euros | dollars | pounds | francs | yen",
        "kilometres | miles | metres",
        "mother | father | brother | sister | son | daughter | wife spouse | husband spouse | uncle | aunt | cousin"
        " | nephew | niece | grandmother grandma | grandfather grandpa | neighbour neighbor | boss manager"
        " | colleague coworker | roommate flatmate | girlfriend | boyfriend",
    )
)
"""Words of which one excludes the others: what is said of Tuesday is not said of Thursday."""


@functools.cache
def _members() -> dict[str, list[tuple[int, int]]]:
    """The places of each word in the alternatives."""
    out: dict[str, list[tuple[int, int]]] = {}
    for number, alternatives in enumerate(_ALTERNATIVES):
        for member, words in enumerate(alternatives):
            for word in words:
                out.setdefault(word, []).append((number, member))
    return out


def _chosen(words: frozenset[str]) -> dict[int, set[int]]:
    """The alternative that some words name."""
    out: dict[int, set[int]] = {}
    known = _members()
    for word in words & known.keys():
        for number, member in known[word]:
            out.setdefault(number, set()).add(member)
    return out


_FIRST_PERSON = re.compile(r"\b(?:I|my|me|mine|we|our|us|user)\b|\bI['\u2019]", re.IGNORECASE)


class Facts(NamedTuple):
    """The facts in a passage."""

    words: frozenset[str]
    """Its words, without those of dates and times."""
    negated: frozenset[str]
    """Words that stand under a negation …"""
    affirmed: frozenset[str]
    """… and words that do not; a word may do both."""
    numbers: frozenset[float]
    dates: tuple[Date, ...]
    times: tuple[Time, ...]
    first_person: bool
    spans: frozenset[tuple[str, float]] = frozenset()
    """Spans of time, in minutes or in months."""
    unreal: frozenset[str] = frozenset()
    """Words under `could`, `almost`, `would like to` or `if`: what is said with them has not happened …"""
    real: frozenset[str] = frozenset()
    """… and words that stand elsewhere."""
    asks: bool = False
    """Whether it only asks."""
    speakers: frozenset[str] = frozenset()
    """The names of those who speak, where lines begin with them."""
    others: tuple[frozenset[str], ...] = ()
    """The relatives and acquaintances of whom its sentences speak."""

    def __add__(self, other: object) -> Facts:
        """The facts of two passages together."""
        if not isinstance(other, Facts):
            return NotImplemented
        return Facts(
            self.words | other.words,
            self.negated | other.negated,
            self.affirmed | other.affirmed,
            self.numbers | other.numbers,
            self.dates + other.dates,
            self.times + other.times,
            self.first_person or other.first_person,
            self.spans | other.spans,
            self.unreal | other.unreal,
            self.real | other.real,
            self.asks and other.asks,
            self.speakers | other.speakers,
            self.others + other.others,
        )

    def contradicts(self, other: Facts) -> bool:
        """Whether the words that both share are negated in one and not in the other, or one has the opposite word."""
        shared = self.words & other.words
        opposite = (self._only_negated() & other._only_affirmed()) | (
            self._only_affirmed() & other._only_negated()
        )
        if shared and 3 * len(opposite & shared) >= len(shared):
            return True
        denied = self._only_negated() & other.words
        if denied and denied <= other._only_affirmed():
            return True
        return self.differs(other)

    def differs(self, other: Facts) -> bool:
        """Whether one has a word, a year or a span of time that excludes the one that the other has in its place."""
        mine, theirs = _chosen(self.words), _chosen(other.words)
        if any(members.isdisjoint(theirs.get(number, members)) for number, members in mine.items()):
            return True
        years, others = _years(self.dates), _years(other.dates)
        if years and others and not years <= others:
            return True
        return bool(self.spans and other.spans and not self.spans & other.spans)

    def _only_negated(self) -> frozenset[str]:
        return self.negated - self.affirmed

    def _only_affirmed(self) -> frozenset[str]:
        return self.affirmed - self.negated


@functools.lru_cache(maxsize=50_000)
def facts_of(text: str, day: Date | None = None) -> Facts:
    """The facts in a passage; `day` is its date, for words such as `yesterday`."""
    text = text[:LONGEST]
    found, rest = _dates(text)
    times, rest = _times(rest)
    for match in _RELATIVE.finditer(rest) if day is not None else ():
        word = match[1].casefold()
        shifted = day.shifted(_SHIFTS.get(word, 0)) if day is not None else None
        found += [shifted] if shifted is not None else []
    rest = _plain(rest)
    negated, affirmed = _polarity(rest)
    unreal, real = _reality(rest)
    return Facts(
        content_words(rest),
        negated,
        affirmed,
        frozenset(numbers(text)),
        tuple(found),
        tuple(times),
        bool(_FIRST_PERSON.search(text)),
        frozenset(_spans(rest)),
        unreal,
        real,
        text.rstrip(" \"')").endswith("?"),
    )


def _years(found: Iterable[Date]) -> set[int]:
    """The years that stand alone, as in `born in 1984`."""
    return {date.year for date in found if date.year is not None and date.month is None}


def _polarity(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words under a negation, which reaches to the end of its clause, and the others."""
    negated: set[str] = set()
    affirmed: set[str] = set()
    tokens = [(match["word"] or "").casefold() for match in _TOKEN.finditer(text)]
    under = False
    for place, token in enumerate(tokens):
        following = tokens[place + 1] if place + 1 < len(tokens) else ""
        if not token or token in _ENDS_SCOPE or (token in ("and", "or") and following in _SUBJECTS):
            under = False
        elif token in _NEGATORS or _NEGATED.search(token):
            under = under or following not in _NO_NEGATION
            if under and place and (token, following in _ADVERBS) == ("no", False):  # `eats no meat`
                affirmed -= set(_forms(tokens[place - 1]))
                negated.update(_forms(tokens[place - 1]))
        elif token in _ENDED and following.endswith("ing"):
            under = True
        elif under and token in _ADVERBS:
            continue
        else:
            (negated if under else affirmed).update(_forms(token))
    return frozenset(negated), frozenset(affirmed)


_UNREAL = re.compile(
    r"\b(?:could|should|might|almost|nearly|wish|if|(?:would|['\u2019]d) (?:love|like) to|dream(?:ing|t|ed)? of"
    r"|(?:want(?:s|ed)?|hop(?:e|es|ed|ing)|plan(?:s|ned|ning)?|intend(?:s|ed)?|learn(?:s|ing)?) to|plan(?:s|ning)? on"
    r"|(?<!is )(?<!am )(?<!are )(?<!was )(?<!were )(?<!get )(?<!got )(?<!['\u2019]\w )used to)\b",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(r"[,;:.!?()\n]|\b(?:but|because|so|although|though|however)\b", re.IGNORECASE)
_PLANS = re.compile(
    r"\b(?:could|should|might|may|wish\w*|if|would|want\w*|like to|hop(?:es?|ing) to|plan\w*|intend\w*|dream\w*|goal"
    r"|aim\w*|consider\w*|think\w* (?:of|about)|recommend\w*|suggest\w*|advi[sc]e\w*|interested|almost|nearly"
    r"|try\w*|tries|learn\w*|used to)\b",
    re.IGNORECASE,
)


def _reality(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words that stand after `could`, `almost` and the like in their clause, and the others."""
    unreal: set[str] = set()
    rest: list[str] = []
    last = 0
    for match in _UNREAL.finditer(text):
        if match.start() < last:
            continue
        stop = _CLAUSE_END.search(text, match.end())
        end = stop.start() if stop else len(text)
        unreal |= content_words(text[match.end() : end])
        rest.append(text[last : match.start()])
        last = end
    real = content_words(" ".join([*rest, text[last:]])) if unreal else frozenset()
    return frozenset(unreal - real), real


def is_plan(text: str) -> bool:
    """Whether a statement is itself about a wish, a plan or a possibility."""
    return bool(_PLANS.search(text))


_SPAN = re.compile(
    r"\b(?P<half>half an?|a quarter of an)\s+(?P<of>hour|day|year)\b"
    r"|(?<![\w.,-])(?P<n>[\w.,]{1,15}(?:-\w{1,15})?)[\s-]{1,2}(?P<unit>minute|min|hour|hr|day|week|month|year)s?\b",
    re.IGNORECASE,
)
_MINUTES = {"minute": 1, "min": 1, "hour": 60, "hr": 60, "day": 1440, "week": 10080}
_LENGTHS = {"month": 1, "year": 12}


def _spans(text: str) -> Iterator[tuple[str, float]]:
    """The spans of time in a text: `two weeks` and `14 days` are the same."""
    for match in _SPAN.finditer(text):
        if match["half"]:
            count, unit = 0.5 if match["half"].casefold().startswith("half") else 0.25, match["of"].casefold()
        else:
            found = set(_counted(match["n"]))
            if len(found) != 1:
                continue
            count, unit = found.pop(), match["unit"].casefold()
        yield ("minutes", count * _MINUTES[unit]) if unit in _MINUTES else ("months", count * _LENGTHS[unit])


def _counted(word: str) -> Iterator[float]:
    for match in _NUMBER.finditer(word):
        yield _number(match["n"])
    yield from _spelled(word)


# ---------------------------------------------------------------- memories as sentences

_RELATIVES = (
    r"mother|mum|mom|father|dad|brother|sister|son|daughter|wife|husband|spouse|partner|uncle|aunt|cousin|nephew|niece"
    r"|grand(?:mother|father|ma|pa|son|daughter)|(?:girl|boy)?friend|fianc\u00e9?e?|neighbou?r|colleague|coworker"
    r"|room ?mate|flat ?mate|parents|kids|children|family"
)
_OWNED = r"(?:(?:my|our|his|her|their)|[A-Z]\w*['\u2019]s)\s+(?:\w+\s+){0,2}?"
_OTHER_SUBJECT = re.compile(
    rf"\W*(?:(?i:and|but|so|also|well|oh|yes|no|then)\W+)?(?i:{_OWNED})(?P<who>(?i:{_RELATIVES})s?\b(?:\s+[A-Z]\w+)?)"
    r"(?!['\u2019]?s?,?\s+and\s+(?:I|me|my)\b)"
)


def other_subject(sentence: str) -> frozenset[str]:
    """The words for a relative or an acquaintance of whom a sentence speaks: `my son Kai` in `My son Kai plays`.

    Empty if it speaks of the speaker as well.
    """
    found = _OTHER_SUBJECT.match(sentence)
    if found is None or re.search(r"\bI\b", sentence[found.end() :]):
        return frozenset()
    return content_words(found["who"])


_BEGINNING = re.compile(r"\s*\[(?P<time>[^\]\n]{4,60})\]\s*|\s*(?P<who>[^\s:\[\]][^:\n\[\]]{0,40}):\s+")


@functools.lru_cache(maxsize=10_000)
def statements(memory: str) -> tuple[Facts, ...]:
    """The sentences of a memory. Each has the speaker of its line, and the day of its line for `yesterday`.

    The time at the beginning of a line (`[2024-05-01 09:30] speaker: …`) is when it was said: no number of it counts,
    and its date counts for what is said.
    """
    out: list[Facts] = []
    day: Date | None = None
    for line in memory[:LONGEST].split("\n"):
        who = ""
        while match := _BEGINNING.match(line):
            if match["time"]:
                stated = dates(match["time"])
                if not stated:
                    break
                day = stated[0]
            else:
                who = match["who"]
                line = line[match.end() :]
                break
            line = line[match.end() :]
        for sentence in sentences(line):
            made = facts_of(sentence, day)
            about = other_subject(sentence)
            made = made._replace(others=(about,)) if about else made
            if who:
                made = made + facts_of(who)._replace(asks=True, speakers=content_words(who))
            if day is not None:
                made = made._replace(dates=(*made.dates, day))
            out.append(made)
    return tuple(out)


# ---------------------------------------------------------------- refusals

_I = r"\b(?:I|we)(?:['\u2019]m| am|['\u2019]re| are)?\b(?:\s+\w+){0,2}?\s*"
_SOURCE = (
    r"\b(?:conversations?|memor(?:y|ies)|context|dialogues?|history|records?|information|texts?|notes|data|messages"
    r"|documents?|excerpts?|sources?|user|it|this|that|question|answer)\b"
)
_NOT = (
    r"(?:do(?:es)? not|do(?:es)?n['\u2019]?t|did(?: not|n['\u2019]?t)|cannot|can ?not|can['\u2019]?t|never"
    r"|could(?: not|n['\u2019]?t))"
)
_GAP = r"\s+(?:\w+\s+){0,2}?"
_GAP_BEFORE = r"(?:\s+\w+){0,3}?\s*"
_MATERIAL = (
    r"\b(?:conversations?|chats?|memor(?:y|ies)|context|dialogues?|history|records?|notes|data|messages|documents?"
    r"|excerpts?|sources?|sessions?)\b"
)
_ABOUT = r"\b(?:on|about|in|regarding|concerning|of that)\b"
_KNOW = (
    r"(?:know|say|tell|answer|determine|find|recall|remember|see|infer|confirm|identify|provide"
    r"|have (?:any |enough |that |the |this |a )?(?:information|memory|memories|record|details|answer))\b"
)
_STATE = r"(?:say|mention|specify|contain|provide|state|include|indicate|give|tell|reveal|answer|have|show|cover)\b"
_STATED = r"(?:mentioned|specified|stated|discussed|disclosed|answerable|provided|recorded|indicated)\b"
_REFUSALS = re.compile(
    "|".join(
        [
            _I + rf"(?:{_NOT}|unable to|not able to|no way to)" + _GAP + _KNOW,
            _I + r"(?:have no (?:idea|information|memory|memories|record|answer)|not (?:sure|certain))\b",
            _SOURCE + r"(?:\s+\w+){0,4}?\s+" + _NOT + _GAP + _STATE,
            r"\b(?:no|not enough|insufficient|without)"
            + _GAP
            + r"(?:information|mention|evidence|details)\b",
            r"\b(?:there (?:is|are|was|were)|have|has|contains?|found) (?:no|not enough)"
            + _GAP
            + r"(?:records?|memor(?:y|ies)|answer|data)\b",
            r"\b(?:not|never|isn['\u2019]?t|wasn['\u2019]?t|aren['\u2019]?t|weren['\u2019]?t)\s+(?:\w+\s+){0,2}?"
            + _STATED,
            r"\b(?:he|she|they|[A-Z]\w+) (?:did not|didn['\u2019]?t|never|has not|hasn['\u2019]?t)"
            + _GAP
            + r"(?:mention(?:ed)?|specif(?:y|ied)|(?:say|said|tell|told|state|stated) (?:if|whether|wh\w+|how))\b",
            r"\b(?:only|merely|just) (?:mentions?|says?|states?)\b[^.]{1,60}\bnot\b",
            r"\bnot known\b(?!\s+(?:for|as|to))",
            r"\binformation\b[^.]{0,20}\bnot (?:available|given)\b",
            rf"^\W*(?:sorry\W+)?(?:{_NOT}|unable to)" + _GAP + _KNOW,
            r"\b(?:question|this|it|answer|that) (?:is|remains) (?:unanswerable|unknown|unclear)\b",
            r"^\W*(?:unknown|unanswerable|unclear|n/a|not sure|no idea|nobody knows|not applicable)\b\W*$",
            r"\bunanswerable\b|\bcannot be (?:answered|determined|known|inferred)\b",
            r"\b(?:impossible|hard|difficult|not possible|no way) to (?:say|tell|know|determine|answer|judge)\b",
            _I + r"(?:have|found|find|see|know) nothing" + _GAP_BEFORE + _ABOUT,
            r"\bnothing" + _GAP_BEFORE + _ABOUT + r"[^.]{0,40}?" + _MATERIAL,
            _MATERIAL + r"[^.]{0,20}?\b(?:silent|blank|say nothing|says nothing)\b",
            r"\b(?:never|not|n['\u2019]t|nobody|no one)"
            + _GAP
            + r"(?:come|came|comes|brought|bring|brings) (?:it )?up\b",
            r"\b(?:lack|lacks|lacking|missing|need more|without (?:more|further|additional))\b"
            + _GAP_BEFORE
            + r"\b(?:information|context|details?|data|evidence|memor(?:y|ies))\b",
            r"\b(?:not enough|insufficient|too little)" + _GAP + r"(?:context|to go on|data)\b",
            r"\b(?:not aware of|no knowledge of|beyond (?:what|my))\b",
            r"\b(?:no|without) (?:memor(?:y|ies)|records?|recollection|trace|reference|notes?)"
            r" (?:of|about|on|to|that)\b",
            "\u4e0d\u77e5\u9053|\u65e0\u6cd5\u56de\u7b54|\u6ca1\u6709\u63d0\u5230|\u672a\u63d0\u53ca",
        ]
    ),
    re.IGNORECASE,
)
LONGEST_REFUSAL = 60
"""The largest number of words of a refusal: a longer text that contains one gives an answer too."""


def is_refusal(text: str) -> bool:
    """Whether an answer is a refusal ("I don't know")."""
    return not text.strip() or (
        len(_WORD.findall(text[:LONGEST])) <= LONGEST_REFUSAL and bool(_REFUSALS.search(text[:LONGEST]))
    )


_NO_ANSWER = re.compile(
    r"\b(?:not (?:been )?(?:mention|provid|specif|stat|discuss|disclos|availab|given|shared|known)"
    r"|no (?:information|mention|record)|cannot be (?:determined|answered|known)|can(?:no|')t (?:determine|answer|know)"
    r"|(?:did|does|do|has|have)(?: not|n't) (?:mention|contain|provide|specify|say|share|include)"
    r"|unanswerable|unknown|insufficient information|not enough information|no answer)",
    re.IGNORECASE,
)


def states_no_answer(gold: str) -> bool:
    """Whether a gold answer states that there is no answer: unlike a refusal, it may speak of a person."""
    return bool(_NO_ANSWER.search(gold))


def subject_of(text: str) -> frozenset[str]:
    """The names at the beginning of a statement: `Mara Lindqvist` in `Mara Lindqvist is 34`."""
    out: set[str] = set()
    for match in _WORD.finditer(_plain(text)):
        if not match[0][0].isupper():
            break
        out.update(_forms(match[0].casefold()))
    return frozenset(out)
