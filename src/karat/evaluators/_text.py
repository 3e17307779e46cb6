"""Evaluators of plain text: equal, contained, matching a pattern, how many edits apart."""

from __future__ import annotations

import functools
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import regex

from karat.errors import CannotJudge, RequestError, clip, did_you_mean, plural
from karat.evaluators._base import Evaluator, Item, ParameterCheck, Paths, register_evaluator
from karat.evaluators._values import (
    ReferenceEvaluator,
    TextRules,
    plain,
    reference_text,
    same,
    text_of,
    unchanged,
    value_at,
)
from karat.records import Result

EQUAL = "the output equals the reference"

LABEL = 80
"""Characters up to which `exact_match` keeps both texts with its result, so that they can be counted as classes."""


@register_evaluator("exact_match")
class ExactMatch(ReferenceEvaluator[Any]):
    """Whether the output is the reference, as text or as JSON.

    Two texts are compared by the rules; two JSON values by value, in any order of keys (True is not
    1); a text and a JSON value by what the text says. None equals None alone. Short texts are kept with the result as
    `golden` and `predicted`, so that `classification` can count them.
    """

    gives_labels = True

    name: ClassVar[str] = "exact_match"
    pass_fail = True
    example: ClassVar[dict[str, Any]] = {
        "params": {"case_sensitive": False},
        "outputs": "HI",
        "reference_outputs": "hi",
        "score": 1.0,
    }

    def __init__(
        self,
        case_sensitive: bool = True,
        strip: bool = True,
        normalize_whitespace: bool = False,
        nfkc: bool = False,
        path: Paths = None,
        any_of: bool = False,
    ) -> None:
        super().__init__(path=path, any_of=any_of)
        rules = TextRules(case_sensitive, strip, normalize_whitespace, nfkc).checked(self.name)
        self._normalise = rules.normaliser()
        self.params = {
            "case_sensitive": case_sensitive,
            "strip": strip,
            "normalize_whitespace": normalize_whitespace,
            "nfkc": nfkc,
            "path": path,
            "any_of": any_of,
        }

    max_references: ClassVar[int] = 1_000_000

    def prepare(self, output: object) -> Any:
        return plain(output, "the output")

    def judge(self, output: object, reference: object) -> Result:
        reference = plain(reference, "the reference")
        if same(output, reference, self._normalise):
            return Result(self.key, 1.0, True, EQUAL, _labels(output, reference))
        return Result(self.key, 0.0, False, difference(output, reference), _labels(output, reference))

    def _best(self, output: object, references: list[Any]) -> Result:
        """Stop at the first reference that equals the output, which is normalised once for all of them."""
        output = self.prepare(output)
        normalise = functools.lru_cache(maxsize=4)(self._normalise)
        among = f"of {len(references)} references"
        for at, reference in enumerate(references):
            if same(output, reference, normalise):
                comment = f"{EQUAL} (the best {among}, number {at + 1})"
                return Result(self.key, 1.0, True, comment, {**_labels(output, reference), "reference": at})
        comment = f"{difference(output, references[0])} (the best {among}, number 1)"
        return Result(self.key, 0.0, False, comment, {**_labels(output, references[0]), "reference": 0})

    def evaluate_many(self, items: Sequence[Item]) -> list[Result | Exception]:
        """Many at once: two texts are compared without leaving the loop."""
        if self.params["path"] is not None or self._any_of:
            return super().evaluate_many(items)
        out: list[Result | Exception] = []
        key, normalise = self.key, self._normalise
        # A copy with other labels takes less time than a new result, which checks its score again.
        equal, put = Result(key, 1.0, True, EQUAL), msgspec.structs.force_setattr
        copy = Result.__copy__  # type: ignore[attr-defined]  # msgspec's stub leaves it out
        for item in items:
            try:
                output, reference = item["outputs"], item["reference_outputs"]
            except KeyError:
                output = reference = None
            if type(output) is not str or type(reference) is not str:
                out.extend(super().evaluate_many([item]))
            elif output == reference and len(output) <= LABEL and output.isascii():
                put(equal, "metadata", {"golden": reference, "predicted": output})  # as `_labels` does
                out.append(copy(equal))
            elif output == reference or normalise(output) == normalise(reference):
                out.append(Result(key, 1.0, True, EQUAL, _labels(output, reference)))
            else:
                if output.isascii() and reference.isascii() and len(output) + len(reference) <= LABEL:
                    labels = {
                        "golden": reference,
                        "predicted": output,
                    }  # as `_labels` does, without the calls
                else:
                    labels = _labels(output, reference)
                out.append(Result(key, 0.0, False, difference(output, reference), labels))
        return out


def _labels(output: object, reference: object) -> dict[str, Any]:
    """Return both sides as labels of a classification if they are short enough to be classes."""
    if not (_is_label(reference) and (output is None or _is_label(output))):
        return {}
    return {"golden": reference, "predicted": output}


def _is_label(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= LABEL and _storable(value)
    return isinstance(value, (bool, float)) or (isinstance(value, int) and value.bit_length() <= 64)


def _storable(text: str) -> bool:
    """Whether a text can be stored: UTF-8 has no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


MAX_SEARCH = 200_000_000
"""Texts to look for, times the characters to look in: a second or so."""


@register_evaluator("contains")
class Contains(Evaluator):
    """Whether the output contains a text, or any or all of several; without one, the reference.

    `graded` gives the share of the texts that were found instead of pass or fail.
    """

    gives_labels = False

    name: ClassVar[str] = "contains"
    pass_fail = True
    reuse = False
    batched = True
    example: ClassVar[dict[str, Any]] = {
        "params": {"substring": ["error", "timeout"], "mode": "any"},
        "outputs": "Error 504 from the gateway",
        "score": 1.0,
    }

    def __init__(
        self,
        substring: str | list[str] | None = None,
        case_sensitive: bool = False,
        mode: str = "all",
        nfkc: bool = False,
        graded: bool = False,
        path: Paths = None,
    ) -> None:
        super().__init__()
        check = ParameterCheck(self.name)
        self._wanted = None if substring is None else check.texts("substring", substring)
        self.needs_reference = substring is None
        self._normalise = TextRules(case_sensitive=case_sensitive, nfkc=nfkc).checked(self.name).normaliser()
        self._all = check.choice("mode", mode, ["all", "any"]) == "all"
        self._graded = check.flag("graded", graded)
        self.pass_fail = not self._graded
        self._path, self._reference_path = check.paths("path", path)
        self.params = {
            "substring": substring if substring is None or isinstance(substring, str) else list(substring),
            "case_sensitive": case_sensitive,
            "mode": mode,
            "nfkc": nfkc,
            "graded": graded,
            "path": path,
        }

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        wanted = self._wanted if self._wanted is not None else self._from_reference(reference_outputs)
        if self._path is not None:
            outputs = value_at(outputs, self._path, "the output")
        text = text_of(outputs, "the output")
        if text is None:
            return Result(
                self.key, 0.0, False, "there is no output", {"found": [], "missing": _show_texts(wanted)}
            )
        text = self._normalise(text)
        if len(wanted) * len(text) > MAX_SEARCH:
            raise CannotJudge(
                f"{self.key}: {len(wanted):,} texts to look for in {len(text):,} characters are too many"
            )
        found: list[str] = []
        missing: list[str] = []
        for each in wanted:
            (found if self._normalise(each) in text else missing).append(each)
        passed = not missing if self._all else bool(found)
        share = len(found) / len(wanted) if self._graded else float(passed)
        comment = f"the output contains {_list_texts(found)}" if found else ""
        if missing:
            comment += f"{'; it' if found else 'the output'} does not contain {_list_texts(missing)}"
        return Result(
            self.key, share, passed, comment, {"found": _show_texts(found), "missing": _show_texts(missing)}
        )

    def _from_reference(self, reference: object) -> list[str]:
        if reference is None:
            raise CannotJudge(f"{self.key} needs the parameter substring or a reference to look for")
        reference = plain(reference, "the reference")
        if self._reference_path is not None:
            reference = value_at(reference, self._reference_path, "the reference")
        each = reference if isinstance(reference, list) else [reference]
        wanted = [reference_text(one, self.key) for one in each]
        if not wanted or not all(wanted):
            raise CannotJudge(f"{self.key}: the reference is empty: every text would contain it")
        return wanted


def _list_texts(texts: list[str]) -> str:
    shown = ", ".join(clip(text, 30) for text in texts[:5])
    return shown if len(texts) <= 5 else f"{shown} and {len(texts) - 5} more"


def _show_texts(texts: list[str]) -> list[str]:
    return [clip(text, 200)[1:-1] for text in texts[:50]]


FLAGS = {
    "ASCII": regex.ASCII,
    "BESTMATCH": regex.BESTMATCH,
    "DOTALL": regex.DOTALL,
    "ENHANCEMATCH": regex.ENHANCEMATCH,
    "FULLCASE": regex.FULLCASE,
    "IGNORECASE": regex.IGNORECASE,
    "MULTILINE": regex.MULTILINE,
    "UNICODE": regex.UNICODE,
    "VERBOSE": regex.VERBOSE,
}
_LETTERS = {
    "A": "ASCII",
    "F": "FULLCASE",
    "I": "IGNORECASE",
    "M": "MULTILINE",
    "S": "DOTALL",
    "U": "UNICODE",
    "X": "VERBOSE",
}


@register_evaluator("regex_match")
class RegexMatch(Evaluator):
    """Whether a pattern matches the output.

    `mode` says where: anywhere (`search`), at the start (`match`) or the whole text (`fullmatch`).
    `flags` are names (`IGNORECASE`, `i`, or a list of them) or letters together (`is`). A pattern that has
    not decided after `timeout` seconds is an error of this item, never a verdict.
    """

    gives_labels = False

    name: ClassVar[str] = "regex_match"
    pass_fail = True
    reuse = False
    # not batched: a pattern may take its whole time limit, and a batch is judged where nothing may wait
    example: ClassVar[dict[str, Any]] = {
        "params": {"pattern": r"order #(\d+)", "flags": ["IGNORECASE"]},
        "outputs": "Your Order #1234 is on its way",
        "score": 1.0,
    }

    def __init__(
        self,
        pattern: str,
        flags: str | list[str] | int | None = None,
        mode: str = "search",
        timeout: float = 1.0,
        path: str | None = None,
    ) -> None:
        super().__init__()
        check = ParameterCheck(self.name)
        if not isinstance(pattern, str):
            raise check.refuse("pattern", "text", pattern)
        names = flag_names(flags, self.name)
        bits = 0
        for name in names:
            bits |= FLAGS[name]
        try:
            compiled = regex.compile(pattern, bits)
        except (regex.error, ValueError, OverflowError, RecursionError) as error:
            raise RequestError(f"{self.name}: the pattern {clip(pattern)} cannot be used: {error}") from None
        check.choice("mode", mode, ["search", "match", "fullmatch"])
        self._find: Callable[..., Any] = getattr(compiled, mode)
        self._timeout = check.number("timeout", timeout, low=0.001)
        self._path = check.path("path", path)
        self.params = {"pattern": pattern, "flags": names, "mode": mode, "timeout": timeout, "path": path}

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        if self._path is not None:
            outputs = value_at(outputs, self._path, "the output")
        text = text_of(outputs, "the output")
        pattern = clip(self.params["pattern"])
        if text is None:
            return Result(self.key, 0.0, False, f"there is no output to match {pattern}")
        try:
            match = self._find(text, timeout=self._timeout)
        except TimeoutError:
            raise CannotJudge(
                f"{self.key}: the pattern {pattern} did not finish within {self._timeout:g} s on a text of"
                f" {len(text)} characters; make it simpler or raise timeout"
            ) from None
        if match is None:
            return Result(self.key, 0.0, False, f"{pattern} does not match the output {clip(text)}")
        metadata = {"start": match.start(), "end": match.end()}
        return Result(self.key, 1.0, True, f"{pattern} matches {clip(match.group())}", metadata)


def flag_names(flags: object, who: str) -> list[str]:
    """Flags as sorted names: from names, letters (`is`), a list of them, Python's own `re` flags, or None."""
    if flags is None:
        return []
    if isinstance(flags, int) and not isinstance(flags, bool):
        known = [name for name, bit in FLAGS.items() if flags & bit]
        rest = int(flags) & ~sum(int(FLAGS[name]) for name in known)
        if rest:
            raise RequestError(
                f"{who}: unknown bits in flags: {rest}; the known flags: {', '.join(sorted(FLAGS))}"
            )
        return sorted(known)
    if isinstance(flags, str):
        flags = [part for part in regex.split(r"[\s,|]+", flags) if part]
        if len(flags) == 1 and flags[0].upper() not in FLAGS and set(flags[0].upper()) <= set(_LETTERS):
            flags = list(flags[0])
    names = set()
    for flag in flags if isinstance(flags, (list, tuple)) else [flags]:
        if not isinstance(flag, str):
            raise RequestError(f"{who}: flags must be names such as IGNORECASE, not {clip(flag)}")
        name = flag.upper().removeprefix("RE.")
        name = _LETTERS.get(name, name)
        if name not in FLAGS:
            raise RequestError(f"{who}: there is no flag {clip(flag)}: {did_you_mean(name, FLAGS)}")
        names.add(name)
    return sorted(names)


MAX_STEPS = 50_000_000
"""Steps (a character of the output with up to 64 of a reference) for several references, at the usual `max_length`.

A step takes 3 ns in Latin-1, which needs no limit, and up to 30 ns in other scripts.
"""


def _is_latin(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


@register_evaluator("edit_distance")
class EditDistance(ReferenceEvaluator[str | None]):
    """The similarity of output and reference: 1 − edits / length of the longer one.

    The edits are insertions, deletions and replacements of characters (Levenshtein); `value` is their
    number. Two empty texts are the same. Texts over `max_length` characters are an error of their item,
    for the time needed grows with the product of the lengths.
    """

    gives_labels = False

    name: ClassVar[str] = "edit_distance"
    example: ClassVar[dict[str, Any]] = {
        "params": {},
        "outputs": "kitten",
        "reference_outputs": "sitting",
        "score": 1 - 3 / 7,
    }

    def __init__(
        self,
        case_sensitive: bool = True,
        strip: bool = False,
        normalize_whitespace: bool = False,
        nfkc: bool = False,
        max_length: int = 100_000,
        path: Paths = None,
        any_of: bool = False,
    ) -> None:
        super().__init__(path=path, any_of=any_of)
        rules = TextRules(case_sensitive, strip, normalize_whitespace, nfkc).checked(self.name)
        self._normalise = rules.normaliser()
        self._max_length: int = ParameterCheck(self.name).whole("max_length", max_length, 1)
        self.params = {
            "case_sensitive": case_sensitive,
            "strip": strip,
            "normalize_whitespace": normalize_whitespace,
            "nfkc": nfkc,
            "max_length": max_length,
            "path": path,
            "any_of": any_of,
        }
        from rapidfuzz.distance import Levenshtein

        self._distance = Levenshtein.distance

    def prepare(self, output: object) -> str | None:
        text = text_of(output, "the output")
        return None if text is None else self._normalise(text)

    def judge(self, output: str | None, reference: object) -> Result:
        expected = self._normalise(reference_text(reference, self.key))
        if output is None:
            return Result(self.key, 0.0, None, f"there is no output; the reference is {clip(expected)}")
        return self._measure(output, expected)

    def _best(self, output: object, references: list[Any]) -> Result:
        """The best of all; an error where they take too long, which depends on the script."""
        text = text_of(output, "the output")
        texts = [text, *(text_of(reference, "the reference") for reference in references)]
        if text is not None and not all(each is None or _is_latin(each) for each in texts):
            steps = len(text) * sum(len(each or "") // 64 + 1 for each in texts[1:])
            most = MAX_STEPS * (self._max_length / 100_000) ** 2
            if steps > most and len(references) > 1:
                raise CannotJudge(
                    f"{self.key}: {plural(len(references), 'reference')} beside an output of {len(text):,} characters"
                    " take too long to compare: give fewer, or raise max_length"
                )
        return super()._best(output, references)

    def _measure(self, text: str, expected: str) -> Result:
        longer = max(len(text), len(expected))
        if longer > self._max_length:
            raise CannotJudge(
                f"{self.key}: a text of {longer:,} characters is over max_length ({self._max_length:,})"
            )
        if longer == 0:
            return Result(self.key, 1.0, 0, "both texts are empty")
        edits = self._distance(text, expected)
        return Result(self.key, 1.0 - edits / longer, edits, _edits(edits) + _over(longer))

    def evaluate_many(self, items: Sequence[Item]) -> list[Result | Exception]:
        """Many at once: two texts are compared without leaving the loop."""
        if self.params["path"] is not None or self._any_of:
            return super().evaluate_many(items)
        out: list[Result | Exception] = []
        key, normalise, distance, bound = self.key, self._normalise, self._distance, self._max_length
        length, over = 0, ""
        for item in items:
            try:
                text, expected = item["outputs"], item["reference_outputs"]
            except KeyError:
                text = expected = None
            if type(text) is str and type(expected) is str:
                if normalise is not unchanged:
                    text, expected = normalise(text), normalise(expected)
                longer = len(text) if len(text) > len(expected) else len(expected)
                if 0 < longer <= bound:
                    edits = distance(text, expected)
                    if longer != length:
                        length, over = longer, _over(longer)
                    out.append(Result(key, 1.0 - edits / longer, edits, _edits(edits) + over))
                    continue
            out.extend(super().evaluate_many([item]))
        return out


def _edits(edits: int) -> str:
    return f"{edits} edits" if edits != 1 else "1 edit"


def _over(longer: int) -> str:
    return f" over {longer} characters"


QUOTED = 60
"""So many characters of a text are quoted."""

REASONED = 2_000
"""Of longer texts it is not comment in what they differ: that would take longer than comparing them."""


def difference(output: object, reference: object) -> str:
    """Why two values are not equal, with the option that would make them so where there is one."""
    if output is None:
        return f"there is no output; the reference is {clip(reference)}"
    if type(output) is not str or type(reference) is not str:
        return f"the output {clip(output)} is not the reference {clip(reference)}"
    if len(output) <= QUOTED and len(reference) <= QUOTED:
        if not output or not reference or reference[0] not in _DIFFERENT.get(output[0], ""):
            return f"the output {output!r} is not the reference {reference!r}{reason(output, reference)}"
        return (
            f"the output {output!r} is not the reference {reference!r}"  # most texts: there is no one reason
        )
    why = reason(output, reference)
    if not why and output.startswith(reference[:QUOTED]):
        at = _parting(output, reference)
        return (
            f"the output is not the reference: from character {at + 1} on it is"
            f" {clip(output[at:])} and not {clip(reference[at:])}"
        )
    # cut here and not by clip: the calls would be a tenth of the time
    output = output if len(output) <= QUOTED else output[:QUOTED] + "…"
    reference = reference if len(reference) <= QUOTED else reference[:QUOTED] + "…"
    return f"the output {output!r} is not the reference {reference!r}{why}"


_PLAIN = string.ascii_letters + string.digits
_DIFFERENT = {each: frozenset(_PLAIN.replace(each.lower(), "").replace(each.upper(), "")) for each in _PLAIN}
"""For each plain letter or digit, those that a text which differs in case, form or spaces alone cannot start with."""


def _parting(a: str, b: str) -> int:
    """Find where two texts begin to differ, by bisection: each step is one fast comparison."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def reason(output: str, reference: str) -> str:
    """The one thing in which two texts differ, if it is one; cheap for the many where it is not."""
    if len(output) <= QUOTED and len(reference) <= QUOTED and output.isascii() and reference.isascii():
        if len(output) == len(reference) and output.lower() == reference.lower():
            return _CASE
        return _WHITESPACE if output.split() == reference.split() else ""
    a, b = output.strip(), reference.strip()
    if not a or not b:
        return _WHITESPACE if a == b else ""
    if a[0] != b[0] and _first(a[0]) != _first(b[0]):
        return ""
    if a[-1] != b[-1] and _last(a[-1]) != _last(b[-1]):
        return ""
    if len(a) > REASONED or len(b) > REASONED:
        return ""
    if output.isascii() and reference.isascii():
        if len(output) == len(reference):
            return _CASE if output.lower() == reference.lower() else ""
        return _WHITESPACE if _ink(output) == _ink(reference) and a.split() == b.split() else ""
    # Texts in their normal form need not be normalised, which costs more than all the rest.
    if not (_normal(a) and _normal(b)) and _nfkc(output) == _nfkc(reference):
        return ": only the Unicode form differs (nfkc)"
    if output.casefold() == reference.casefold():
        return _CASE
    return _WHITESPACE if a.split() == b.split() else ""


_CASE = ": only the case differs (case_sensitive)"
_WHITESPACE = ": only whitespace differs (strip, normalize_whitespace)"
_SPACES = b" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"

_normal = functools.partial(unicodedata.is_normalized, "NFKC")
_nfkc = functools.partial(unicodedata.normalize, "NFKC")


@functools.lru_cache(4_096)
def _first(character: str) -> str:
    """Return all first characters that a text may have in other cases, compositions or spellings of this one."""
    return unicodedata.normalize("NFKD", character.casefold()).casefold()[0]


@functools.lru_cache(4_096)
def _last(character: str) -> str:
    """The same of its end: é ends as e with its accent does."""
    return unicodedata.normalize("NFKD", character.casefold()).casefold()[-1]


def _ink(text: str) -> bytes:
    """An ASCII text without whitespace: comparing it takes a third of the time of splitting."""
    return text.encode().translate(None, _SPACES)
