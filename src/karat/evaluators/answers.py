"""Evaluators of final answers: a number, or the letter of a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar

from karat.errors import CannotJudge, RequestError
from karat.evaluators.base import register_evaluator
from karat.evaluators.choices import ChoiceReader
from karat.evaluators.normalise import TextRules, clip, number_field, plain, text_of
from karat.evaluators.numbers import EXACT, NumberReader, Quantity
from karat.evaluators.parameters import ParameterCheck, Paths
from karat.evaluators.paths import value_at
from karat.evaluators.reference import ReferenceEvaluator
from karat.records import Result


@register_evaluator("numeric_match")
class NumericMatch(ReferenceEvaluator):
    """Whether the output is the number the reference is, within a tolerance.

    The difference may be `tolerance`, or `relative_tolerance` times the reference, whichever is more; the
    default is exact, in decimal arithmetic. `extract` takes the `whole` text, or its `first` or `last`
    number. `units` is a mapping of units to factors (`{km: 1000, m: 1}`: both sides are converted) or a list
    of units (both sides have to name the same; an output that names none is accepted unless `require_unit`).
    `thousands` holds the characters that may group digits by three, `decimal` is the decimal point.
    """

    name: ClassVar[str] = "numeric_match"
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
        if isinstance(value, Decimal):
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

    def judge(self, output: Any, reference: Any) -> Result:
        expected = self._quantity(reference, "the reference")
        if expected is None:
            said = f"no number can be read from the reference {clip(reference)}{self._hint(reference)}"
            raise CannotJudge(f"{self.key}: {said}")
        given = self._quantity(output, "the output")
        if given is None:
            said = f"no number can be read from the output {clip(output)}{self._hint(output)}"
            return Result(self.key, 0.0, False, said)
        metadata = {
            "output_number": _shown(given.value),
            "reference_number": _shown(expected.value),
            "output_unit": given.unit,
            "reference_unit": expected.unit,
        }
        unit = self._unit_problem(given, expected)
        if unit:
            return Result(self.key, 0.0, False, unit, metadata)
        difference = abs(EXACT.subtract(given.value, expected.value))
        allowed = max(self._tolerance, EXACT.multiply(self._relative, abs(expected.value)))
        passed = given.value == expected.value or bool(difference <= allowed)
        metadata["difference"] = _shown(difference)
        said = (
            f"{_words(given)} is {_words(expected)}"
            if passed
            else f"{_words(given)} is not {_words(expected)}"
        )
        if given.value != expected.value:
            said += f": they differ by {_number(difference)}, {_number(allowed)} is allowed"
        return Result(self.key, float(passed), passed, said, metadata)

    def _hint(self, value: Any) -> str:
        """The option that would read a value, where there is one: for separators, for a unit, else `extract`."""
        text = None if isinstance(value, (int, float, Decimal)) else text_of(value, "the value")
        if text is None:
            return ""
        whole = self.params["extract"] == "whole"
        if whole and self._reader.is_grouped(text):
            return "; thousands and decimal say what may stand between its digits"
        unit = self._reader.beside(text)
        if unit:
            return (
                f": {clip(unit, 20)} is no unit that it knows; units names those that may stand by a number"
            )
        found = whole and self._reader.first(text) is not None
        return "; extract takes the first or last number of a text" if found else ""

    def _unit_problem(self, given: Quantity, expected: Quantity) -> str:
        if not given.unit and self._require_unit and expected.unit:
            return f"the output names no unit; the reference is in {expected.unit}"
        if self._same_unit and given.unit and expected.unit and given.unit != expected.unit:
            return f"the output is in {given.unit}, the reference in {expected.unit}"
        return ""


def _shown(number: Decimal) -> float | None:
    """For metadata; None where a float cannot hold it."""
    value = float(number)
    return value if value - value == 0 else None


def _number(number: Decimal) -> str:
    """For a comment: six digits, also of what a float cannot hold."""
    return f"{float(number):g}" if _shown(number) is not None else f"{number:.5e}"


def _words(quantity: Quantity) -> str:
    return f"{quantity.number:.17g} {quantity.unit}".rstrip()


@register_evaluator("choice_match")
class ChoiceMatch(ReferenceEvaluator):
    """Whether the output chooses what the reference chooses: the letter is found in the answer.

    `choices` are the letters, as a text (`ABCD`) or a list of labels. A letter is found when the output is
    that letter, opens with it (`B) Paris`), has it on a line of its own, or states it (`the answer is B`, `I
    choose B`, `B is correct`, `\\boxed{B}`; the last statement counts), or names one letter alone, those it
    denies (`not A`, `A is wrong`) left out. Two letters (`A or B`) choose nothing. The reference is a letter
    or a position from 0. `options_path` leads to the texts of the options in `inputs`, a list or an object by
    label, so that an answer in full text is recognised too.
    """

    name: ClassVar[str] = "choice_match"
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
        self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> Result:
        if self._options_path is None:
            return super().evaluate(outputs=outputs, reference_outputs=reference_outputs)
        options = self._options(value_at(inputs, self._options_path, "the input"))
        output, [reference] = self._sides(outputs, reference_outputs)
        return self.judge(output, reference, options)

    def _options(self, given: Any) -> list[str]:
        """The texts in the order of the labels, from a list of them or from an object by label."""
        if isinstance(given, Mapping):
            texts = {self._reader.label(str(label)): text for label, text in given.items()}
            unknown = [label for label in given if self._reader.label(str(label)) is None]
            if unknown:
                raise CannotJudge(
                    f"{self.key}: {self._options_path!r} of the input has an option {clip(unknown[0], 20)},"
                    f" which is none of the choices {', '.join(self._reader.labels[:10])}"
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
        out: list[Result | Exception] = []
        for item in items:
            try:
                out.append(self.evaluate(**item))
            except Exception as error:
                out.append(error)
        return out

    def judge(self, output: Any, reference: Any, options: Sequence[str] = ()) -> Result:
        expected = self._expected(plain(reference, "the reference"), options)
        text = text_of(output, "the output")
        if text is None:
            return Result(self.key, 0.0, None, "there is no output")
        chosen, how = self._reader.read(self._normalise(text), options)
        if chosen is None:
            return Result(self.key, 0.0, None, f"no choice can be read from the output {clip(text)}: {how}")
        passed = chosen == expected
        said = f"the output chooses {clip(chosen, 20)} ({how}); the reference is {clip(expected, 20)}"
        return Result(self.key, float(passed), chosen, said, {"expected": expected})

    def _expected(self, reference: Any, options: Sequence[str]) -> str:
        if isinstance(reference, int) and not isinstance(reference, bool):
            label = self._reader.label(str(reference)) if abs(reference) < 1_000_000 else None
            if label is None and 0 <= reference < len(self._reader.labels):
                label = self._reader.labels[reference]
        else:
            text = text_of(reference, "the reference")
            label = None if text is None else self._reader.read(text, options)[0]
        if label is None:
            known = ", ".join(self._reader.labels[:10])
            raise CannotJudge(f"{self.key}: the reference {clip(reference)} is none of the choices {known}")
        return label
