"""Values as evaluators read them: JSON from text, text from JSON, paths into both, when two are the same; and the
base class of evaluators that compare an output with a reference.

Outputs and references are text or parsed JSON; any other object is converted by the rules of karat.serialization. None
is nothing: it equals None alone and never the text "None" or "null". True is not 1.
"""

from __future__ import annotations

import functools
import json
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, cast

import msgspec
import regex

from karat.errors import CannotJudge, UnsupportedType
from karat.evaluators._base import Evaluator, Item, ParameterCheck, Paths
from karat.paths import MISSING, parse
from karat.records import Result, Value
from karat.serialization import MAX_DEPTH, is_too_deep, to_json_value


class NotJSON(ValueError):
    """The text is not JSON; the message has the position of the error."""


class UnreadableJSON(CannotJudge):
    """The text may be valid JSON, but it is nested too deeply, or has a number too long, to be read."""


def parse_json(text: str, *, fenced: bool = False) -> Any:
    """Return the value of a JSON text. NaN and Infinity, which Python would accept, are not JSON.

    With `fenced` the text may also hold exactly one Markdown fence (```` ```json ````) with prose around it. JSON
    that the parser cannot read is an `UnreadableJSON`: it is an error of the item, never a score.
    """
    try:
        return _loads(text)
    except NotJSON:
        inside = _fences(text) if fenced else []
        if len(inside) > 1:
            raise NotJSON(
                f"there are {len(inside)} fenced blocks: it is unclear which one holds the value"
            ) from None
        if not inside:
            raise
        return _loads(inside[0])


def looks_fenced(text: str) -> bool:
    """Whether a text that is not JSON has a fence, so that a comment can name the option."""
    return "```" in text or "~~~" in text


def _fences(text: str) -> list[str]:
    """The content of Markdown fences that are unnamed or named json, in linear time."""
    found: list[str] = []
    fence = ""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        mark = line.strip()
        if not fence:
            if mark.startswith(("```", "~~~")):
                name = mark.lstrip(mark[0])
                fence = mark[: len(mark) - len(name)]
                lines = []
                wanted = name.strip().lower() in ("", "json", "jsonc", "json5")
        elif len(mark) >= len(fence) and not mark.strip(fence[0]) and mark:
            if wanted:
                found.append("".join(lines))
            fence = ""
        else:
            lines.append(line)
    return found


def _loads(text: str) -> Any:
    """The value of a JSON text; how deep it may be does not depend on what this version of Python can read."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise NotJSON("it is empty") from None
        if _may_be_deep(text) and _is_deep(text, error.pos):
            raise _too_deep() from None
        message = error.msg.removesuffix(" at")  # one of Python's messages ends so
        raise NotJSON(f"{message} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        if not _is_deep(text, len(text)):
            raise NotJSON("its brackets are not closed") from None
        raise _too_deep() from None
    except NotJSON:
        raise
    except ValueError:  # the limit of Python's own
        raise UnreadableJSON("the text has an integer with too many digits") from None
    if _may_be_deep(text) and is_too_deep(value):
        raise _too_deep()
    return value


def _too_deep() -> UnreadableJSON:
    return UnreadableJSON(f"the text is JSON nested too deeply to be read (more than {MAX_DEPTH} levels)")


def _may_be_deep(text: str) -> bool:
    return text.count("[") + text.count("{") > MAX_DEPTH


_STRING_OR_BRACKET = regex.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]')


def _is_deep(text: str, end: int) -> bool:
    """Whether every bracket outside of a string is closed, and before `end` more levels are open than may be read."""
    open_brackets: list[str] = []
    deepest = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        found = match.group()
        if found in "[{":
            open_brackets.append("]" if found == "[" else "}")
            if match.start() <= end:
                deepest = max(deepest, len(open_brackets))
        elif found in "]}" and (not open_brackets or open_brackets.pop() != found):
            return False
    return not open_brackets and deepest > MAX_DEPTH


@functools.lru_cache(maxsize=4)
def _parsed_container(text: str) -> Any:
    """The object or list of a JSON text, or None; remembered, for one output is compared with many references."""
    try:
        parsed = _loads(text)
    except NotJSON:
        return None
    return parsed if isinstance(parsed, (dict, list)) else None


def _refuse(constant: str) -> NoReturn:
    raise NotJSON(f"{constant} is not JSON")


Normaliser = Callable[[str], str]

TEXT_FIELDS = ("output", "text", "content", "answer", "final_answer")
"""Where an object keeps its text, by the custom of many frameworks; read when exactly one is there."""

SCALARS = frozenset({str, int, bool, type(None)})


class TextRules(msgspec.Struct, frozen=True):
    """The rules by which two texts count as the same."""

    case_sensitive: bool = True
    strip: bool = False
    """Whitespace at both ends does not count."""
    normalize_whitespace: bool = False
    """Every run of whitespace counts as one space, at the ends as none."""
    nfkc: bool = False
    """Unicode compatibility forms (ﬁ and fi, composed and decomposed é) count as the same."""

    def checked(self, who: str) -> TextRules:
        """Itself, when every field is true or false."""
        check = ParameterCheck(who)
        for name in self.__struct_fields__:
            check.flag(name, getattr(self, name))
        return self

    def normaliser(self) -> Normaliser:
        """The rules as one function; the plain `str` method where that is all there is to do."""
        steps: list[Normaliser] = []
        if self.nfkc:
            steps.append(nfkc)
        if not self.case_sensitive:
            steps.append(str.casefold)
        if self.nfkc and not self.case_sensitive:
            steps.append(nfkc)  # folding can leave a text that is no longer in normal form
        if self.normalize_whitespace:
            steps.append(_collapse)
        elif self.strip:
            steps.append(str.strip)
        if len(steps) == 1:
            return steps[0]
        return _chain(steps) if steps else unchanged


def unchanged(text: str) -> str:
    """The rules when there is none; a loop may skip calling it."""
    return text


_MARKS = 500
"""A run of so many combining marks may be normalised as it is: Python's time grows with the square of the run."""


def nfkc(text: str) -> str:
    """Return a text in Unicode's NFKC, in a time that grows with its length alone."""
    if len(text) > _MARKS and not text.isascii() and any(map(_ends_in_mark, text[::_MARKS])):
        # Python sorts a run of marks by insertion: 50 kB of them took 4 s. Sorted marks are left as they are.
        text = _with_sorted_marks(text)
    return unicodedata.normalize("NFKC", text)


def _ends_in_mark(character: str) -> bool:
    return unicodedata.combining(unicodedata.normalize("NFKD", character)[-1]) > 0


def _with_sorted_marks(text: str) -> str:
    """Return a text decomposed, with the marks after each letter in the order of normal forms."""
    out: list[str] = []
    marks: list[str] = []
    for character in text:
        for part in character if character.isascii() else unicodedata.normalize("NFKD", character):
            if unicodedata.combining(part):
                marks.append(part)
                continue
            if marks:
                out += sorted(marks, key=unicodedata.combining)
                marks.clear()
            out.append(part)
    return "".join(out + sorted(marks, key=unicodedata.combining))


def _collapse(text: str) -> str:
    return " ".join(text.split())


def _chain(steps: list[Normaliser]) -> Normaliser:
    def apply(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return apply


def plain(value: object, what: str) -> Any:
    """Convert a value to JSON values, as storing it would; what has no JSON form is a `CannotJudge`."""
    if type(value) in SCALARS:
        return value
    try:
        return to_json_value(value, what)
    except UnsupportedType as error:
        raise CannotJudge(str(error)) from None


def text_of(value: object, what: str) -> str | None:
    """A value as text: itself, or its JSON; of an object, the one text field it has. None stays None."""
    if type(value) is str:
        return value
    value = plain(value, what)
    if value is None or type(value) is str:
        return value
    if isinstance(value, dict):
        fields = [name for name in TEXT_FIELDS if isinstance(value.get(name), str)]
        if len(fields) == 1:
            return str(value[fields[0]])
        if fields:
            raise CannotJudge(f"{what} has text in {' and in '.join(fields)}: select one with path")
    return json_text(value, what)


def number_field(value: dict[str, Any], what: str) -> int | float | None:
    """The number in the one field where an object keeps its answer; None where there is none."""
    fields = [name for name in TEXT_FIELDS if isinstance(value.get(name), (str, int, float))]
    fields = [name for name in fields if not isinstance(value[name], bool)]
    numbers = [name for name in fields if not isinstance(value[name], str)]
    if numbers and len(fields) > 1:
        raise CannotJudge(f"{what} has answers in {' and in '.join(fields)}: select one with path")
    return value[numbers[0]] if numbers else None


def json_text(value: object, what: str) -> str:
    """A plain value as JSON, keys sorted."""
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
    except RecursionError:
        raise CannotJudge(f"{what} is nested too deeply to be judged") from None
    except ValueError:  # an integer of thousands of digits, or 1e400, which Python reads as infinite
        raise CannotJudge(f"{what} has a number too long or too large to be compared") from None


def same(a: object, b: object, normalise: Normaliser) -> bool:
    """Whether two plain values are the same: texts by the rules, text and JSON by what the text says."""
    if a is None or b is None:
        return a is b
    if isinstance(a, str) and isinstance(b, str):
        return a == b or normalise(a) == normalise(b)
    if isinstance(a, str):
        a, b = b, a
    if isinstance(b, str):
        return _same_as_text(a, b, normalise)
    return _same_json(a, b, normalise)


def _same_as_text(value: Any, text: str, normalise: Normaliser) -> bool:
    if not isinstance(value, (dict, list)):
        written = normalise(text)
        if normalise(json_text(value, "the value")) == written:
            return True
        return not isinstance(value, bool) and bool(_number_in(written) == value)
    parsed = _parsed_container(text)
    if parsed is not None:
        return same(value, parsed, normalise)
    if isinstance(value, list):
        return False
    field = text_of(value, "the object compared with a text")
    return field is not None and normalise(field) == normalise(text)


def _number_in(text: str) -> int | float | None:
    """The number that a text is, written as JSON writes numbers and nothing else; None where it is none."""
    if text[:1] not in "-0123456789" or text != text.strip():
        return None
    try:
        number = parse_json(text)
    except (NotJSON, UnreadableJSON):  # an integer too long to read is none that a value can be
        return None
    return number if isinstance(number, (int, float)) else None


def _same_json(a: Any, b: Any, normalise: Normaliser) -> bool:
    """Compare without recursion, whose depth depends on the version of Python and on who asks."""
    waiting = [(a, b, 0)]
    while waiting:
        a, b, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise CannotJudge("the values are nested too deeply to be compared")
        if isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs: Iterable[tuple[Any, Any]] = zip(a, b, strict=True)
        elif isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pairs = ((each, b[key]) for key, each in a.items())
        elif _same_scalar(a, b, normalise):
            continue
        else:
            return False
        for x, y in pairs:
            if isinstance(x, (list, dict)):
                waiting.append((x, y, depth + 1))
            elif not _same_scalar(x, y, normalise):
                return False
    return True


def _same_scalar(a: Any, b: Any, normalise: Normaliser) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    if isinstance(a, str) and isinstance(b, str):
        return a == b or normalise(a) == normalise(b)
    return a is None and b is None


def value_at(value: object, path: str, what: str) -> Any:
    """Return the value that a path leads to. Text, numbers and None have no fields and are taken as they are.

    A path that leads nowhere is a `CannotJudge`, which names the fields that are there; it is never a match.
    """
    if type(value) is dict and type(found := value.get(path)) is str:
        return found  # nearly always
    value = plain(value, what)
    if not isinstance(value, (dict, list)):
        return value
    parsed = parse(path)
    found = parsed.find(value)
    if found is MISSING:
        raise CannotJudge(f"{what} has {parsed.why_missing(value)}")
    return found


# The flow of evaluators that compare an output with a reference: paths, several references, or none.


Prepared = TypeVar("Prepared")
"""What `prepare` reads an output as."""

MAX_REFERENCES = 1_000
"""How many references `any_of` takes, except where comparing with one more costs next to nothing."""


class ReferenceEvaluator(Evaluator, Generic[Prepared]):
    """The base class: override `judge`, and `prepare` where reading the output is work.

    A path is one for both sides, or `{output, reference}`. `any_of` says that the reference is a list of acceptable
    ones; the best of them counts.
    """

    reuse = False
    batched = True
    needs_reference = True

    def __init__(self, *, path: Paths = None, any_of: bool = False) -> None:
        super().__init__()
        check = ParameterCheck(self.name)
        self._output_path, self._reference_path = check.paths("path", path)
        self._any_of = check.flag("any_of", any_of)

    max_references: ClassVar[int] = MAX_REFERENCES
    _max_length: int | None = None
    """How many characters one text may have, and all references of an item together; None for no limit."""

    def prepare(self, output: Value) -> Prepared:
        """Read the value at `path` once, for all references."""
        return cast("Prepared", output)

    def judge(self, output: Prepared, reference: Value) -> Result:
        """Judge what `prepare` returned against one reference, which is not None."""
        raise CannotJudge(f"{self.name} does not say how it compares")

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        """Judge one output against its reference."""
        try:
            return self._judge(outputs, reference_outputs)
        except RecursionError:
            raise CannotJudge(f"{self.key}: the values are nested too deeply to be judged") from None

    def evaluate_many(self, items: Sequence[Item]) -> list[Result | Exception]:
        """Judge many outputs; the exception of an item that cannot be judged stands in its place."""
        out: list[Result | Exception] = []
        for item in items:
            try:
                out.append(self._judge(item.get("outputs"), item.get("reference_outputs")))
            except RecursionError:
                out.append(CannotJudge(f"{self.key}: the values are nested too deeply to be judged"))
            except Exception as error:
                out.append(error)
        return out

    def _judge(self, outputs: Any, reference: Any) -> Result:
        output, references = self._sides(outputs, reference)
        if self._any_of:
            return self._best(output, references)
        return self.judge(self.prepare(output), references[0])

    def _sides(self, outputs: Any, reference: Any) -> tuple[Any, list[Any]]:
        """Return the two sides to compare: the output and the references, each at its path."""
        if reference is None:
            raise CannotJudge(f"{self.key} compares with a reference, but this item has none")
        if self._output_path is not None:
            outputs = value_at(outputs, self._output_path, "the output")
        if self._any_of:
            return outputs, self._several(reference)
        if self._reference_path is not None:
            reference = value_at(reference, self._reference_path, "the reference")
        return outputs, [reference]

    def _several(self, reference: Any) -> list[Any]:
        references, path = plain(reference, "the reference"), self._reference_path
        if isinstance(references, dict) and path is not None:
            references = value_at(references, path, "the reference")
        if not isinstance(references, list) or not references:
            raise CannotJudge(f"{self.key}: with any_of the reference must be a list of at least one")
        if len(references) > self.max_references:
            raise CannotJudge(
                f"{self.key}: the reference is a list of {len(references):,}; any_of takes at most"
                f" {self.max_references:,}"
            )
        if path is not None:
            references = [value_at(each, path, f"reference {at}") for at, each in enumerate(references)]
        if self._max_length is not None and len(references) > 1:
            total = sum(map(_length, references))
            if total > self._max_length:
                raise CannotJudge(
                    f"{self.key}: the references have {total:,} characters together, over max_length"
                    f" ({self._max_length:,}): give fewer, or raise max_length"
                )
        return references

    def _best(self, output: Any, references: list[Any]) -> Result:
        prepared = self.prepare(output)
        judged = [self.judge(prepared, reference) for reference in references]
        at = max(range(len(judged)), key=lambda index: judged[index].score or 0.0)
        return self._among(judged[at], references, at)

    def _among(self, best: Result, references: list[Any], at: int) -> Result:
        """The result of the best reference, with its place."""
        return msgspec.structs.replace(
            best,
            comment=f"{best.comment} (the best of {len(references)} references, number {at + 1})",
            metadata={**best.metadata, "reference": at},
        )


def _length(reference: Any) -> int:
    """The characters of a reference as text; 0 where it has none, which is an error of its own."""
    try:
        return len(text_of(reference, "the reference") or "")
    except CannotJudge:
        return 0


def reference_text(reference: object, who: str) -> str:
    """Return the reference as text; null has none to compare with."""
    text = text_of(reference, "the reference")
    if text is None:
        raise CannotJudge(f"{who}: the reference is null: there is no text to compare with")
    return text
