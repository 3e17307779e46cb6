"""Evaluators of short answers: numbers, choices, sets and shared words."""

from __future__ import annotations

import decimal
import string
import unicodedata
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar

import msgspec
import regex

from karat.errors import CannotJudge, RequestError, clip, plural
from karat.evaluators._base import Evaluator, ParameterCheck, Paths, register_evaluator
from karat.evaluators._values import (
    NotJSON,
    ReferenceEvaluator,
    TextRules,
    json_text,
    number_field,
    parse_json,
    plain,
    reference_text,
    text_of,
    value_at,
)
from karat.evaluators.trajectory._equality import with_integers
from karat.records import Result

EXACT = decimal.Context(prec=500_000, Emax=999_999, Emin=-999_999, traps=[])
"""Has room for every digit of the difference of two numbers that are read; a short number costs no more for it."""

NARROW_SPACES = "\u00a0\u202f\u2009"
"""Spaces that do not break, or are thin, between the digits of a number."""

MAX_DIGITS = 200_000
MAX_EXPONENT = 9_999
"""A number with more digits, or another power of ten, is an error of the item."""


_UNIT = regex.compile(r"[\p{L}\p{Sc}\p{Sm}%‰°′″/·²³^-]*[\p{L}\p{Sc}%‰°′″][\p{L}\p{Sc}\p{Sm}%‰°′″/·²³^-]*")
"""Something that may be a unit: letters, a currency, a per cent or degree sign; no digits, no other signs alone."""

_LEFT = regex.compile(r"\p{Sc}")
_RIGHT = regex.compile(r"[\p{L}\p{Sc}%‰°]")
"""What is part of a unit when it touches a number."""

_GROUPED = regex.compile(r"[-+\u2212]?\d++(?:[.,'’_\s]\d++)++")


class Quantity(msgspec.Struct, frozen=True):
    """A number as written, its unit ("" for none), and its value in the base unit."""

    number: Decimal
    unit: str = ""
    value: Decimal = Decimal(0)


class NumberReader:
    """A reader of numbers in text, with a fixed thousands separator and decimal point."""

    def __init__(self, thousands: str, decimal_point: str, units: Mapping[str, Decimal]) -> None:
        if " " in thousands:
            thousands += NARROW_SPACES  # what typesetting puts where a person types a space
        self._thousands = thousands
        self._point = decimal_point
        self._factors = units
        group = f"[{regex.escape(thousands)}]" if thousands else ""
        grouped = rf"\d{{1,3}}(?:{group}\d{{3}})+(?!\d)|" if thousands else ""
        point = regex.escape(decimal_point)
        names = "|".join(regex.escape(unit) for unit in sorted(units, key=len, reverse=True))
        before = rf"(?P<before>{names})?[ \u00a0\u202f]?" if units else ""
        after = rf"(?:[ \u00a0\u202f]?(?P<after>{names})(?![^\W\d_]))?" if units else ""
        self._pattern = regex.compile(
            rf"(?P<lead>(?<![\w]){before})?(?P<sign>(?<![\w)])[-+\u2212])?{before.replace('before', 'inner')}"
            rf"(?P<digits>(?:{grouped}\d+)(?:{point}\d+)?|(?<!\d){point}\d+)(?P<exponent>[eE][-+]?\d++)?{after}"
        )

    def whole(self, text: str) -> Quantity | None:
        """Return the number if the text is nothing else, except for a full stop at its end; else None."""
        text = text.strip()
        match = self._pattern.fullmatch(text) or self._pattern.fullmatch(text.removesuffix("."))
        return self._quantity(match) if match else None

    def first(self, text: str) -> Quantity | None:
        """The first number in a text, or None."""
        match = next(self._found(text), None)
        return self._quantity(match) if match else None

    def last(self, text: str) -> Quantity | None:
        """The last number in a text, or None."""
        found = deque(self._found(text), maxlen=1)
        return self._quantity(found[0]) if found else None

    def has_number(self, text: str) -> bool:
        """Whether there is a number in a text."""
        return next(self._found(text), None) is not None

    def _found(self, text: str) -> Iterator[Any]:
        """The numbers in a text. Where units are given, a number with another unit is left out.

        What touches the number decides, or the word beside it where there is no other: in a sentence a word
        may be anything.
        """
        for match in self._pattern.finditer(text):
            if not (self._factors and self._bears_another(match, text)):
                yield match

    def _bears_another(self, match: Any, text: str) -> bool:
        if _RIGHT.match(text, pos=match.end()) or (
            match.start() and _LEFT.match(text, pos=match.start() - 1)
        ):
            return True
        alone = not _unit(match) and not text[: match.start()].strip()
        return alone and _UNIT.fullmatch(text[match.end() :].strip(" .")) is not None

    def beside(self, text: str) -> str:
        """The text around the only number of a short text, where a unit would be: `$`, `%`, `EUR`; empty otherwise."""
        match = self._pattern.search(text)
        if match is None:
            return ""
        around = [text[: match.start()].strip(), text[match.end() :].strip()]
        words = [part for part in around if part]
        is_unit = len(words) == 1 and len(words[0]) <= 12 and _UNIT.fullmatch(words[0])
        return words[0] if is_unit else ""

    def is_grouped(self, text: str) -> bool:
        """Whether a text is digits with characters between them, as another country groups or divides them."""
        return _GROUPED.fullmatch(text.strip()) is not None

    def of_number(self, value: int | float | Decimal) -> Quantity | None:
        """A number that is one already; None when it is not finite."""
        if isinstance(value, int) and value.bit_length() > MAX_DIGITS * 3:
            raise _too_long(f"about {value.bit_length() * 3 // 10:,} digits")
        # an integer as it is: Python does not write one of more than 4,300 digits
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if not number.is_finite():
            return None
        if abs(number.adjusted()) > MAX_DIGITS or len(number.as_tuple().digits) > MAX_DIGITS:
            raise _too_long(f"the size 1e{number.adjusted():+d}")
        return Quantity(number, "", number)

    def _quantity(self, match: Any) -> Quantity:
        digits = match["digits"]
        if len(digits) > MAX_DIGITS:
            raise _too_long(f"{len(digits):,} digits")
        for separator in self._thousands:
            digits = digits.replace(separator, "")
        exponent = match["exponent"] or ""
        if len(exponent) > 5 and len(exponent.lstrip("eE+-0")) > len(str(MAX_EXPONENT)):
            raise _too_long(f"the exponent {clip(exponent, 20)}")
        sign = "-" if match["sign"] in ("-", "\u2212") else ""
        number = Decimal(sign + digits.replace(self._point, ".") + exponent)
        unit = _unit(match)
        factor = self._factors.get(unit, Decimal(1))
        return Quantity(number, unit, EXACT.multiply(number, factor))


def _unit(match: Any) -> str:
    named = match.groupdict()
    return named.get("after") or named.get("inner") or named.get("before") or ""


def _too_long(has: str) -> CannotJudge:
    limits = f"at most {MAX_DIGITS:,} digits and an exponent of {MAX_EXPONENT:,}"
    return CannotJudge(f"the number has {has}; numbers are read with {limits}")


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
    """A reader of the label that a text chooses; it tries the clearest sign first."""

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
        """The label in a text without "the answer is": alone on a line, at the start, or the only label."""
        alone = {self._label(match["label"]) for line in text.splitlines() if (match := self._line(line))}
        if len(alone) == 1:
            return alone.pop(), "the letter on a line of its own"
        opening = [self._opening_label(line) for line in text.splitlines() if line.strip()][:2]
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

    def _opening_label(self, line: str) -> str | None:
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


@register_evaluator("numeric_match")
class NumericMatch(ReferenceEvaluator[tuple[Quantity | None, str]]):
    """Whether the output is the number the reference is, within a tolerance.

    The difference may be `tolerance`, or `relative_tolerance` times the reference, whichever is more; the
    default is exact, in decimal arithmetic. `extract` takes the `whole` text, or its `first` or `last`
    number. `units` is a mapping of units to factors (`{km: 1000, m: 1}`: both sides are converted) or a list
    of units (both sides have to name the same; an output that names none is accepted unless `require_unit`).
    `thousands` holds the characters that may group digits by three, `decimal` is the decimal point.
    """

    gives_labels = False

    name: ClassVar[str] = "numeric_match"
    pass_fail = True
    example: ClassVar[dict[str, Any]] = {
        "params": {"tolerance": 0.5, "extract": "last"},
        "outputs": "So the total is 1,234.4",
        "reference_outputs": 1234,
        "score": 1.0,
    }

    def __init__(
        self,
        tolerance: float = 0.0,
        relative_tolerance: float = 0.0,
        extract: str = "whole",
        units: Mapping[str, float] | Sequence[str] | None = None,
        require_unit: bool = False,
        thousands: str = ",",
        decimal: str = ".",
        path: Paths = None,
        any_of: bool = False,
    ) -> None:
        super().__init__(path=path, any_of=any_of)
        check = ParameterCheck(self.name)
        self._tolerance = Decimal(repr(check.number("tolerance", tolerance, low=0.0)))
        self._relative = Decimal(repr(check.number("relative_tolerance", relative_tolerance, low=0.0)))
        self._require_unit = check.flag("require_unit", require_unit)
        factors = self._factors(units, check)
        self._same_unit = units is not None and not isinstance(units, Mapping)
        if not isinstance(thousands, str) or any(c.isalnum() or c in "+-" for c in thousands):
            raise check.refuse("thousands", "text of separator characters", thousands)
        if not isinstance(decimal, str) or len(decimal) != 1 or decimal.isalnum() or decimal in thousands:
            raise check.refuse("decimal", "one character that does not group thousands", decimal)
        reader = NumberReader(thousands, decimal, factors)
        check.choice("extract", extract, ["whole", "first", "last"])
        self._reader = reader
        self._read = {"whole": reader.whole, "first": reader.first, "last": reader.last}[extract]
        self.params = {
            "tolerance": tolerance,
            "relative_tolerance": relative_tolerance,
            "extract": extract,
            "units": dict(units) if isinstance(units, Mapping) else None if units is None else list(factors),
            "require_unit": require_unit,
            "thousands": thousands,
            "decimal": decimal,
            "path": path,
            "any_of": any_of,
        }

    @staticmethod
    def _factors(units: Any, check: ParameterCheck) -> dict[str, Decimal]:
        if units is None:
            return {}
        if not isinstance(units, Mapping):
            return dict.fromkeys(check.texts("units", units), Decimal(1))
        factors = {}
        for unit, factor in units.items():
            factors[check.text("units", unit)] = Decimal(repr(check.number(f"units.{unit}", factor)))
        if not factors or any(factor == 0 for factor in factors.values()):
            raise RequestError(f"{check.who}: units needs at least one unit, and no factor may be zero")
        return factors

    def _quantity(self, value: Any, what: str) -> Quantity | None:
        if isinstance(value, Decimal) and value.is_finite():
            return self._reader.of_number(value)
        value = plain(value, what)
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, (int, float)):
            return self._reader.of_number(value)
        if isinstance(value, dict) and (number := number_field(value, what)) is not None:
            return self._reader.of_number(number)
        text = text_of(value, what)
        return None if text is None else self._read(text)

    def prepare(self, output: object) -> tuple[Quantity | None, str]:
        given = self._quantity(output, "the output")
        if given is not None:
            return given, ""
        return None, f"no number can be read from the output {clip(output)}{self._hint(output)}"

    def judge(self, output: tuple[Quantity | None, str], reference: object) -> Result:
        expected = self._quantity(reference, "the reference")
        if expected is None:
            comment = f"no number can be read from the reference {clip(reference)}{self._hint(reference)}"
            raise CannotJudge(f"{self.key}: {comment}")
        given, problem = output
        if given is None:
            return Result(self.key, 0.0, False, problem)
        metadata = {
            "output_number": _number_for_metadata(given.value),
            "reference_number": _number_for_metadata(expected.value),
            "output_unit": given.unit,
            "reference_unit": expected.unit,
        }
        unit = self._unit_problem(given, expected)
        if unit:
            return Result(self.key, 0.0, False, unit, metadata)
        # `abs` would round to the 28 digits of Python's default context
        difference = EXACT.subtract(given.value, expected.value).copy_abs()
        allowed = max(self._tolerance, EXACT.multiply(self._relative, expected.value.copy_abs()))
        passed = given.value == expected.value or bool(difference <= allowed)
        metadata["difference"] = _number_for_metadata(difference)
        comment = (
            f"{_words(given)} is {_words(expected)}"
            if passed
            else f"{_words(given)} is not {_words(expected)}"
        )
        if given.value != expected.value:
            comment += f": they differ by {_number(difference)}, {_number(allowed)} is allowed"
        return Result(self.key, float(passed), passed, comment, metadata)

    def _hint(self, value: Any) -> str:
        """The option that would read a value, where there is one: for separators, for a unit, else `extract`."""
        text = None if isinstance(value, (int, float, Decimal)) else text_of(value, "the value")
        if text is None:
            return ""
        whole = self.params["extract"] == "whole"
        if whole and self._reader.is_grouped(text):
            return "; set the parameters thousands and decimal to its separators"
        unit = self._reader.beside(text)
        if unit:
            return f": unknown unit {clip(unit, 20)}; list the units that may follow a number in the parameter units"
        found = whole and self._reader.has_number(text)
        return "; extract takes the first or last number of a text" if found else ""

    def _unit_problem(self, given: Quantity, expected: Quantity) -> str:
        if not given.unit and self._require_unit and expected.unit:
            return f"the output names no unit; the reference is in {expected.unit}"
        if self._same_unit and given.unit and expected.unit and given.unit != expected.unit:
            return f"the output is in {given.unit}, the reference in {expected.unit}"
        return ""


def _number_for_metadata(number: Decimal) -> float | None:
    """For metadata; None where a float cannot hold it."""
    value = float(number)
    return value if value - value == 0 else None


def _number(number: Decimal) -> str:
    """For a comment: six digits, also of what a float cannot hold."""
    return f"{float(number):g}" if _number_for_metadata(number) is not None else f"{number:.5e}"


def _words(quantity: Quantity) -> str:
    return f"{quantity.number:.17g} {quantity.unit}".rstrip()


@register_evaluator("choice_match")
class ChoiceMatch(ReferenceEvaluator[object]):
    """Whether the output chooses what the reference chooses: the letter is found in the answer.

    `choices` are the letters, as a text (`ABCD`) or a list of labels. A letter is found when the output is
    that letter, opens with it (`B) Paris`), has it on a line of its own, or states it (`the answer is B`, `I
    choose B`, `B is correct`, `\\boxed{B}`; the last statement counts), or names one letter alone, those it
    denies (`not A`, `A is wrong`) left out. Two letters (`A or B`) choose nothing. The reference is a letter
    or a position from 0. `options_path` leads to the texts of the options in `inputs`, a list or an object by
    label, so that an answer in full text is recognised too.
    """

    gives_labels = False

    name: ClassVar[str] = "choice_match"
    pass_fail = True
    example: ClassVar[dict[str, Any]] = {
        "params": {"choices": "ABCD"},
        "outputs": "Lyon is in the south, so the answer is (B).",
        "reference_outputs": "B",
        "score": 1.0,
    }

    def __init__(
        self,
        choices: str | list[str] = "ABCDE",
        case_sensitive: bool = False,
        nfkc: bool = False,
        options_path: str | None = None,
        path: Paths = None,
    ) -> None:
        super().__init__(path=path)
        check = ParameterCheck(self.name)
        self._normalise = TextRules(nfkc=nfkc).checked(self.name).normaliser()
        labels = check.texts("choices", list(choices) if isinstance(choices, str) else choices)
        if len(set(labels)) != len(labels):
            raise check.refuse("choices", "labels that all differ", choices)
        self._reader = ChoiceReader(labels, check.flag("case_sensitive", case_sensitive))
        self._options_path = check.path("options_path", options_path)
        self.params = {
            "choices": choices if isinstance(choices, str) else labels,
            "case_sensitive": case_sensitive,
            "nfkc": nfkc,
            "options_path": options_path,
            "path": path,
        }

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        if self._options_path is None:
            return super().evaluate(outputs=outputs, reference_outputs=reference_outputs)
        options = self._options(value_at(inputs, self._options_path, "the input"))
        output, [reference] = self._sides(outputs, reference_outputs)
        return self.judge(self.prepare(output), reference, options)

    def _options(self, given: Any) -> list[str]:
        """The texts in the order of the labels, from a list of them or from an object by label."""
        if isinstance(given, Mapping):
            texts = {self._reader.label(str(label)): text for label, text in given.items()}
            unknown = [label for label in given if self._reader.label(str(label)) is None]
            if unknown:
                raise CannotJudge(
                    f"{self.key}: {self._options_path!r} of the input has an option {clip(unknown[0], 20)},"
                    f" which is not one of the choices {', '.join(self._reader.labels[:10])}"
                )
            given = [texts.get(label, "") for label in self._reader.labels]
        if not isinstance(given, list) or not all(isinstance(option, str) for option in given):
            raise CannotJudge(
                f"{self.key}: {self._options_path!r} of the input is neither a list of texts nor an object"
                " with one for each label"
            )
        return given

    def evaluate_many(self, items: Sequence[Any]) -> list[Result | Exception]:
        """Many at once; the options of each item are its own."""
        if self._options_path is None:
            return super().evaluate_many(items)
        return Evaluator.evaluate_many(self, items)

    def judge(self, output: object, reference: object, options: Sequence[str] = ()) -> Result:
        expected = self._expected_label(plain(reference, "the reference"), options)
        text = text_of(output, "the output")
        if text is None:
            return Result(self.key, 0.0, None, "there is no output")
        chosen, how = self._reader.read(self._normalise(text), options)
        if chosen is None:
            return Result(self.key, 0.0, None, f"no choice can be read from the output {clip(text)}: {how}")
        passed = chosen == expected
        comment = f"the output chooses {clip(chosen, 20)} ({how}); the reference is {clip(expected, 20)}"
        return Result(self.key, float(passed), chosen, comment, {"expected": expected})

    def _expected_label(self, reference: object, options: Sequence[str]) -> str:
        if isinstance(reference, int) and not isinstance(reference, bool):
            label = self._reader.label(str(reference)) if abs(reference) < 1_000_000 else None
            if label is None and 0 <= reference < len(self._reader.labels):
                label = self._reader.labels[reference]
        else:
            text = text_of(reference, "the reference")
            label = None if text is None else self._reader.read(text, options)[0]
        if label is None:
            known = ", ".join(self._reader.labels[:10])
            raise CannotJudge(
                f"{self.key}: the reference {clip(reference)} is not one of the choices {known}"
            )
        return label


def shared_count(have: Counter[Any], want: Counter[Any]) -> int:
    """Count the items that two sides share, each as often as it occurs in both."""
    # The smaller side is gone through: an output may be long, and its references many.
    smaller, larger = (have, want) if len(have) <= len(want) else (want, have)
    return sum(min(count, larger[item]) for item, count in smaller.items() if item in larger)


def f1(shared: int, output: int, reference: int) -> tuple[float, float, float]:
    """Precision, recall and F1 of `shared` items; two empty sides agree fully, one empty side not at all."""
    if output == 0 and reference == 0:
        return 1.0, 1.0, 1.0
    if shared == 0:
        return 0.0, 0.0, 0.0
    return shared / output, shared / reference, 2 * shared / (output + reference)


@register_evaluator("set_match")
class SetMatch(ReferenceEvaluator[tuple[object, Counter[Any] | None]]):
    """The overlap of the output's list with the reference's in any order: F1, precision or recall.

    A list is a JSON list, the text of one, or, with `separator`, text cut at it. An item named twice counts
    once, unless `duplicates` is true. `measure` is the score: `f1`, `precision`, `recall`, or `exact`
    (1 only when nothing is missing and nothing is extra); the others are in the metadata.
    """

    gives_labels = False

    name: ClassVar[str] = "set_match"
    example: ClassVar[dict[str, Any]] = {
        "params": {"separator": ","},
        "outputs": "red, blue",
        "reference_outputs": ["blue", "green"],
        "score": 0.5,
    }

    def __init__(
        self,
        measure: str = "f1",
        separator: str | None = None,
        duplicates: bool = False,
        case_sensitive: bool = True,
        strip: bool = True,
        nfkc: bool = False,
        path: Paths = None,
        any_of: bool = False,
    ) -> None:
        super().__init__(path=path, any_of=any_of)
        check = ParameterCheck(self.name)
        self._measure = check.choice("measure", measure, ["f1", "precision", "recall", "exact"])
        self._separator = None if separator is None else check.text("separator", separator)
        self._duplicates = check.flag("duplicates", duplicates)
        rules = TextRules(case_sensitive=case_sensitive, strip=strip, nfkc=nfkc).checked(self.name)
        self._normalise = rules.normaliser()
        self.params = {
            "measure": measure,
            "separator": separator,
            "duplicates": duplicates,
            "case_sensitive": case_sensitive,
            "strip": strip,
            "nfkc": nfkc,
            "path": path,
            "any_of": any_of,
        }

    def prepare(self, output: object) -> tuple[object, Counter[Any] | None]:
        items = self._items(output, "the output")
        return output, None if items is None else self._count(items)

    def judge(self, output: tuple[object, Counter[Any] | None], reference: object) -> Result:
        return self._compare(output, self._read_reference(reference))

    def _best(self, output: object, references: list[Any]) -> Result:
        """Score every reference in the time of its own length, and describe the best one alone."""
        prepared = self.prepare(output)
        wanted = [self._read_reference(reference) for reference in references]
        have = prepared[1]
        if have is None:
            return self._among(self._compare(prepared, wanted[0]), references, 0)
        size = have.total()
        scores = [self._measures(have, size, want)[self._measure] for want in wanted]
        at = max(range(len(scores)), key=scores.__getitem__)
        return self._among(self._compare(prepared, wanted[at]), references, at)

    def _read_reference(self, reference: object) -> Counter[Hashable]:
        expected = self._items(reference, "the reference")
        if expected is None:
            raise CannotJudge(f"{self.key}: the reference {clip(reference)} is not a list; {self._hint()}")
        return self._count(expected)

    def _measures(self, have: Counter[Hashable], size: int, want: Counter[Hashable]) -> dict[str, float]:
        shared, wanted = shared_count(have, want), want.total()
        precision, recall, score = f1(shared, size, wanted)
        exact = float(shared == size == wanted)
        return {"precision": precision, "recall": recall, "f1": score, "exact": exact}

    def _compare(self, output: tuple[object, Counter[Any] | None], want: Counter[Hashable]) -> Result:
        given, have = output
        if have is None:
            return Result(self.key, 0.0, False, f"the output {clip(given)} is not a list; {self._hint()}")
        size = have.total()
        measures = self._measures(have, size, want)
        missing, extra = _shown_items(want - have), _shown_items(have - want)
        comment = f"{shared_count(have, want)} of {want.total()} expected items found; the output has {size}"
        if missing:
            comment += f"; missing: {', '.join(missing[:5])}"
        if extra:
            comment += f"; extra: {', '.join(extra[:5])}"
        exact = bool(measures["exact"])
        metadata = {name: measures[name] for name in ("precision", "recall", "f1")}
        return Result(
            self.key,
            measures[self._measure],
            exact,
            comment,
            {**metadata, "missing": missing, "extra": extra},
        )

    def _hint(self) -> str:
        return "separator cuts a text into items" if self._separator is None else "it must be text or a list"

    def _items(self, value: Any, what: str) -> list[Any] | None:
        value = plain(value, what)
        if isinstance(value, list):
            return value
        text = text_of(value, what)
        if text is None:
            return None
        if self._separator is not None:
            return [part for part in (each.strip() for each in text.split(self._separator)) if part]
        try:
            parsed = parse_json(text)
        except NotJSON:
            return None
        return parsed if isinstance(parsed, list) else None

    def _count(self, items: list[Any]) -> Counter[Hashable]:
        found: Counter[Hashable] = Counter(self._identity(item) for item in items)
        return found if self._duplicates else Counter(dict.fromkeys(found, 1))

    def _identity(self, item: Any) -> Hashable:
        """Texts by the rules; everything else by its JSON, so that 1, true and "1" are three things."""
        if isinstance(item, str):
            return ("text", self._normalise(item))
        return ("json", json_text(with_integers(item), "an item of the list"))


def _shown_items(items: Counter[Hashable]) -> list[str]:
    """Items for a comment and metadata, in a fixed order."""
    names = sorted(str(item[1]) for item in items.elements() if isinstance(item, tuple))
    return [clip(name, 40)[1:-1] for name in names[:50]]


_PUNCTUATION = str.maketrans("", "", string.punctuation)


@register_evaluator("token_f1")
class TokenF1(ReferenceEvaluator[Counter[str] | None]):
    """F1 of the words that output and reference share, each as often as it occurs.

    By default as question answering is commonly scored: case folded, punctuation and English articles left
    out. `tokens: characters` compares characters, for languages written without spaces.
    """

    gives_labels = False

    name: ClassVar[str] = "token_f1"
    example: ClassVar[dict[str, Any]] = {
        "params": {},
        "outputs": "It is the Eiffel Tower",
        "reference_outputs": "Eiffel Tower",
        "score": 2 / 3,
    }

    def __init__(
        self,
        case_sensitive: bool = False,
        remove_punctuation: bool = True,
        remove_articles: bool = True,
        nfkc: bool = False,
        tokens: str = "words",
        path: Paths = None,
        any_of: bool = False,
    ) -> None:
        super().__init__(path=path, any_of=any_of)
        check = ParameterCheck(self.name)
        self._normalise = TextRules(case_sensitive=case_sensitive, nfkc=nfkc).checked(self.name).normaliser()
        self._punctuation = check.flag("remove_punctuation", remove_punctuation)
        self._articles = check.flag("remove_articles", remove_articles)
        self._characters = check.choice("tokens", tokens, ["words", "characters"]) == "characters"
        self.params = {
            "case_sensitive": case_sensitive,
            "remove_punctuation": remove_punctuation,
            "remove_articles": remove_articles,
            "nfkc": nfkc,
            "tokens": tokens,
            "path": path,
            "any_of": any_of,
        }

    def prepare(self, output: object) -> Counter[str] | None:
        text = text_of(output, "the output")
        return None if text is None else self._tokens(text)

    def judge(self, output: Counter[str] | None, reference: object) -> Result:
        want = self._tokens(reference_text(reference, self.key))
        if output is None:
            return Result(self.key, 0.0, None, "there is no output")
        shared = shared_count(output, want)
        output_size, reference_size = output.total(), want.total()
        precision, recall, score = f1(shared, output_size, reference_size)
        unit = "character" if self._characters else "word"
        comment = f"{plural(shared, unit)} {'is' if shared == 1 else 'are'} shared by"
        comment += f" the output's {output_size} and the reference's {reference_size}"
        return Result(
            self.key, score, shared, comment, {"precision": precision, "recall": recall, "f1": score}
        )

    def _tokens(self, text: str) -> Counter[str]:
        text = self._normalise(text)
        if self._punctuation:
            text = _without_punctuation(text)
        if self._articles and not self._characters:
            words = [word for word in text.split() if word.lower() not in ("a", "an", "the")]
        else:
            words = text.split()
        return Counter("".join(words) if self._characters else words)


def _without_punctuation(text: str) -> str:
    if text.isascii():
        return text.translate(_PUNCTUATION)
    return "".join(
        c for c in text if not unicodedata.category(c).startswith("P") and c not in string.punctuation
    )
