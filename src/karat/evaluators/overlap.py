"""Evaluators of overlap: how much of a list, or of the words, output and reference share."""

from __future__ import annotations

import string
import unicodedata
from collections import Counter
from collections.abc import Hashable
from typing import Any, ClassVar

from karat.errors import CannotJudge
from karat.evaluators.base import register_evaluator
from karat.evaluators.jsontext import NotJSON, parse_json
from karat.evaluators.normalise import TextRules, clip, counted, json_text, plain, text_of
from karat.evaluators.parameters import ParameterCheck, Paths
from karat.evaluators.reference import ReferenceEvaluator, reference_text
from karat.evaluators.trajectory._values import with_integers
from karat.records import Result


def f1(shared: int, output: int, reference: int) -> tuple[float, float, float]:
    """Precision, recall and F1 of `shared` items; two empty sides agree fully, one empty side not at all."""
    if output == 0 and reference == 0:
        return 1.0, 1.0, 1.0
    if shared == 0:
        return 0.0, 0.0, 0.0
    return shared / output, shared / reference, 2 * shared / (output + reference)


@register_evaluator("set_match")
class SetMatch(ReferenceEvaluator):
    """How much of the reference's list the output's list has, in any order: F1, precision or recall.

    A list is a JSON list, the text of one, or, with `separator`, text cut at it. An item named twice counts
    once, unless `duplicates` is true. `measure` is the score: `f1`, `precision`, `recall`, or `exact`
    (1 only when nothing is missing and nothing is extra); the others are in the metadata.
    """

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

    def judge(self, output: Any, reference: Any) -> Result:
        expected = self._items(reference, "the reference")
        if expected is None:
            raise CannotJudge(f"{self.key}: the reference {clip(reference)} is not a list; {self._hint()}")
        given = self._items(output, "the output")
        if given is None:
            return Result(self.key, 0.0, False, f"the output {clip(output)} is not a list; {self._hint()}")
        have, want = self._count(given), self._count(expected)
        shared = sum((have & want).values())
        precision, recall, score = f1(shared, sum(have.values()), sum(want.values()))
        missing, extra = _shown(want - have), _shown(have - want)
        exact = not missing and not extra
        measures = {"precision": precision, "recall": recall, "f1": score, "exact": float(exact)}
        said = (
            f"{shared} of the {sum(want.values())} items wanted are among the output's {sum(have.values())}"
        )
        if missing:
            said += f"; missing: {', '.join(missing[:5])}"
        if extra:
            said += f"; extra: {', '.join(extra[:5])}"
        metadata = {"precision": precision, "recall": recall, "f1": score, "missing": missing, "extra": extra}
        return Result(self.key, measures[self._measure], exact, said, metadata)

    def _hint(self) -> str:
        return (
            "separator cuts a text into items" if self._separator is None else "it has to be text or a list"
        )

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
        counted: Counter[Hashable] = Counter(self._identity(item) for item in items)
        return counted if self._duplicates else Counter(dict.fromkeys(counted, 1))

    def _identity(self, item: Any) -> Hashable:
        """Texts by the rules; everything else by its JSON, so that 1, true and "1" are three things."""
        if isinstance(item, str):
            return ("text", self._normalise(item))
        return ("json", json_text(with_integers(item), "an item of the list"))


def _shown(items: Counter[Hashable]) -> list[str]:
    """Items for a comment and metadata, in a fixed order."""
    names = sorted(str(item[1]) for item in items.elements() if isinstance(item, tuple))
    return [clip(name, 40)[1:-1] for name in names[:50]]


_PUNCTUATION = str.maketrans("", "", string.punctuation)


@register_evaluator("token_f1")
class TokenF1(ReferenceEvaluator):
    """F1 of the words that output and reference share, each as often as it occurs.

    By default as question answering is commonly scored: case folded, punctuation and English articles left
    out. `tokens: characters` compares characters, for languages written without spaces.
    """

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

    def judge(self, output: Any, reference: Any) -> Result:
        want = self._tokens(reference_text(reference, self.key))
        text = text_of(output, "the output")
        if text is None:
            return Result(self.key, 0.0, None, "there is no output")
        have = self._tokens(text)
        shared = sum((have & want).values())
        output_size, reference_size = sum(have.values()), sum(want.values())
        precision, recall, score = f1(shared, output_size, reference_size)
        unit = "character" if self._characters else "word"
        said = f"{counted(shared, unit)} {'is' if shared == 1 else 'are'} shared by"
        said += f" the output's {output_size} and the reference's {reference_size}"
        return Result(self.key, score, shared, said, {"precision": precision, "recall": recall, "f1": score})

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
