"""The filter grammar of `karat view` and `karat show --where`: text to a mask over columns, or to a test of one row.

    status:failed score<0.5 topic:law changed:worse "text"
    score<0.5 and topic=law
    (cost>0.01 or seconds>=10) not split:train

- Conditions that follow each other must all hold; `and`, `or`, `not` and parentheses combine them.
- `field=value` is exact, `field:value` ignores case, `!=` is the opposite of `=`. `<`, `<=`, `>`, `>=` compare numbers.
  `field~text` is true where the field contains the text, ignoring case.
- A quoted text, or a word alone, is searched in everything that a row shows.
- `none` (not quoted) matches a missing value: `score:none`. A missing number satisfies no `<` or `>`.

A filter is never turned into SQL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from karat import paths
from karat.errors import RequestError, did_you_mean
from karat.serialization import encode
from karat.store.rows import Row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Mask: TypeAlias = NDArray[np.bool_]

LONGEST = 2000
"""Characters of a filter."""
MOST_CONDITIONS = 100
DEEPEST = 20

STATUSES = ("ok", "failed", "skipped", "pending")
CHANGES = ("better", "worse", "same", "missing", "not applicable")

FIELDS: dict[str, str] = {
    "id": "the example's id",
    "status": "of the output: ok, failed, skipped or pending",
    "result": "the status of any result",
    "score": "any evaluator's score; KEY or KEY.score is the score by one of them",
    "changed": "in a comparison: better, worse, same or missing",
    "seconds": "service time of the output",
    "cost": "in dollars",
    "tokens": "input and output tokens",
    "attempt": "the number of the attempt",
    "unit": "the unit's name",
    "try": "the number of the try",
    "run": "the run's id or label",
    "error": "the error of the output or of a result",
    "input": "the example's input",
    "expected": "the example's expected output",
    "output": "the output",
    "comment": "the comment of a result",
}
"""Fields that every row has. Any other name is an evaluator's key or a field of the example's metadata."""

WHOLE_NUMBERS = ("tokens", "try")

TEXTS = ("input", "expected", "output", "error", "comment")
"""Fields that are read from the records, not from columns."""

Value: TypeAlias = Any
"""A JSON value of a row; None is missing."""


class FilterError(RequestError):
    """A filter that cannot be read, or that names an unknown field."""


class Condition(msgspec.Struct, frozen=True, tag=True):
    """`field op value`."""

    field: str
    op: str
    value: str
    quoted: bool = False

    @property
    def is_missing(self) -> bool:
        """Whether the value is `none`: a value that is missing."""
        return self.value == "none" and not self.quoted

    @property
    def number(self) -> float | None:
        """The value as a number; None where it is not a number."""
        return _number(self.value)


class TextSearch(msgspec.Struct, frozen=True, tag="Text"):
    """A text that a row shows somewhere."""

    text: str


class Not(msgspec.Struct, frozen=True, tag=True):
    """The opposite of an expression."""

    inner: Expression


class All(msgspec.Struct, frozen=True, tag=True):
    """Expressions that all hold."""

    parts: tuple[Expression, ...]


class Any_(msgspec.Struct, frozen=True, tag=True):
    """Expressions of which at least one holds."""

    parts: tuple[Expression, ...]


Expression: TypeAlias = "Condition | TextSearch | Not | All | Any_"


class Columns(Protocol):
    """Rows as columns, for `Filter.mask`."""

    def __len__(self) -> int:
        """The number of rows."""

    def numbers(self, field: str) -> Sequence[NDArray[np.float64]] | None:
        """The numbers of a field, NaN where missing; several for `score`. None where the field has no numbers."""

    def labels(self, field: str) -> tuple[NDArray[Any], Sequence[Sequence[Value]]] | None:
        """The values of a field: for each row an index into a list of values, each with its alternatives."""

    def is_text(self, condition: Condition) -> bool:
        """Whether only the records can answer a condition."""

    def searched(self, leaf: Condition | TextSearch, within: Mask | None) -> Mask:
        """The rows whose records satisfy a condition; nothing is said of rows that are not `within`."""

    def named(self, condition: Condition) -> Mask:
        """The rows whose example id satisfies a condition."""

    def has_further_fields(self) -> bool:
        """Whether the metadata may have fields without a column, because it has too many."""

    def fields(self) -> Iterable[str]:
        """The names of evaluators and metadata fields, for messages."""


def unknown_field(field: str, columns: Columns) -> FilterError:
    """The error for a field that no column has."""
    from karat.store.columns import MOST_FIELDS

    if columns.has_further_fields():
        return FilterError(
            f"the field {field!r} cannot be used in a filter: only the first {MOST_FIELDS} fields of the metadata can,"
            " and the dataset has as many or more; search for a text"
        )
    known = [*FIELDS, *columns.fields()]
    return FilterError(f"unknown field {field!r} in the filter: {did_you_mean(field, known)}")


class Filter:
    """A parsed filter."""

    def __init__(self, text: str, expression: Expression) -> None:
        self.text = text
        self.expression = expression

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"

    @property
    def fields(self) -> list[str]:
        """Return the fields that the filter names."""
        return list(
            dict.fromkeys(each.field for each in _leaves(self.expression) if isinstance(each, Condition))
        )

    def check(self, known: Iterable[str]) -> None:
        """Raise where it names a field that is neither built in nor among the known names."""
        names = {*FIELDS, *known}
        for field in self.fields:
            if not names.intersection((field, *_owners(field))):
                raise FilterError(f"unknown field {field!r} in the filter: {did_you_mean(field, names)}")

    @property
    def leaves(self) -> int:
        """Count the conditions and texts."""
        return sum(1 for _ in _leaves(self.expression))

    @property
    def conditions(self) -> list[Condition]:
        """The conditions in it, without the texts that are searched everywhere."""
        return [each for each in _leaves(self.expression) if isinstance(each, Condition)]

    def matches(
        self,
        row: Row,
        more: Mapping[str, Value] | None = None,
        decided: Mapping[Condition, bool] | None = None,
    ) -> bool:
        """Whether a joined row satisfies it.

        `more` has fields that the row lacks, such as `changed`; `decided` says of conditions whether they hold.
        """
        return _matches(self.expression, row, more or {}, decided or {})

    def mask(self, columns: Columns) -> Mask:
        """The rows that satisfy it: columns first, so that records are searched only for what they leave."""
        import numpy as np

        parts = self.expression.parts if isinstance(self.expression, All) else (self.expression,)
        searched = [_reads_records(part, columns) for part in parts]
        found: Mask = np.full(len(columns), True)
        for dear in (False, True):
            for part, reads in zip(parts, searched, strict=True):
                if reads is dear:
                    found &= _mask(part, columns, found)
        return found


def parse(text: str) -> Filter:
    """Parse a filter; an empty one holds for every row."""
    if len(text) > LONGEST:
        raise FilterError(f"the filter has {len(text):,} characters: use at most {LONGEST:,}")
    return Filter(text, _Parser(text).parse())


# Parsing -----------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<paren>[()])
      | (?P<op><=|>=|!=|==|[:=<>~])
      | "(?P<quoted>(?:[^"\\]|\\.)*)"
      | (?P<word>[^\s()"<>=:~!]+(?:![^\s()"<>=:~!]+)*)
    )""",
    re.VERBOSE | re.DOTALL,
)
_SINGLE_QUOTED = re.compile(r"""\s*'(?P<text>(?:[^'\\]|\\.)*)'(?=[\s()]|$)""", re.DOTALL)
"""A value as SQL and Python write it; an apostrophe inside of a word is only that."""
_BARE_VALUE = re.compile(r"""\s*(?P<word>[^\s()"]+)""")


class _Token(msgspec.Struct, frozen=True):
    kind: str
    text: str
    start: int
    end: int


class _Parser:
    """Recursive descent over the text, with the place of each problem."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.conditions = 0

    def parse(self) -> Expression:
        if not self.text.strip():
            return All(())
        found = self._either(0)
        left = self._peek()
        if left is not None:
            raise self._error(f"unexpected {left.text!r}", left.start)
        return found

    def _either(self, depth: int) -> Expression:
        if depth > DEEPEST:
            raise self._error(f"more than {DEEPEST} nested parentheses", self.at)
        parts = [self._both(depth)]
        while self._takes_word("or"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else Any_(tuple(parts))

    def _both(self, depth: int) -> Expression:
        parts = [self._one(depth)]
        while True:
            joined = self._takes_word("and")
            token = self._peek()
            ends = (
                token is None
                or (token.kind == "paren" and token.text == ")")
                or (token.kind == "word" and token.text.lower() == "or")
            )
            if ends and not joined:
                return parts[0] if len(parts) == 1 else All(tuple(parts))
            parts.append(self._one(depth))

    def _one(self, depth: int) -> Expression:
        negated = False
        while self._takes_word("not"):
            negated = not negated
        found = self._simple(depth)
        return Not(found) if negated else found

    def _simple(self, depth: int) -> Expression:
        token = self._peek()
        if token is None:
            raise self._error("a condition is missing", len(self.text))
        if token.text == "(" and token.kind == "paren":
            self.at = token.end
            inner = self._either(depth + 1)
            closing = self._peek()
            if closing is None or closing.kind != "paren" or closing.text != ")":
                raise self._error("the parenthesis is not closed", token.start)
            self.at = closing.end
            return inner
        if token.kind in ("paren", "op"):
            raise self._error(f"a field is missing before {token.text!r}", token.start)
        self.conditions += 1
        if self.conditions > MOST_CONDITIONS:
            raise self._error(f"more than {MOST_CONDITIONS} conditions", token.start)
        self.at = token.end
        operator = self._peek()
        if operator is None or operator.kind != "op":
            return TextSearch(token.text)
        self.at = operator.end
        value, quoted = self._value(operator)
        condition = Condition(token.text, "=" if operator.text == "==" else operator.text, value, quoted)
        if condition.op in ("<", "<=", ">", ">=") and condition.number is None:
            raise self._error(f"{condition.op} compares numbers: {value!r} is not a number", operator.end)
        chosen = value.lower() if condition.op == ":" else value
        if condition.field == "status" and condition.op in (":", "=", "!=") and chosen not in STATUSES:
            raise self._error(f"unknown status {value!r}: use {', '.join(STATUSES)}", operator.end)
        if condition.field == "changed" and condition.op in (":", "=", "!=") and chosen not in CHANGES:
            raise self._error(f"unknown change {value!r}: use {', '.join(CHANGES)}", operator.end)
        return condition

    def _value(self, operator: _Token) -> tuple[str, bool]:
        token = self._peek()
        if token is not None and token.kind == "quoted":
            self.at = token.end
            return token.text, True
        if single := _SINGLE_QUOTED.match(self.text, self.at):
            self.at = single.end()
            return _unescape(single["text"]), True
        bare = _BARE_VALUE.match(self.text, self.at)  # a value may contain operators: a URL, a time
        if bare is None:
            raise self._error(f"a value is missing after {operator.text!r}", operator.end)
        self.at = bare.end()
        return bare["word"], False

    def _takes_word(self, word: str) -> bool:
        token = self._peek()
        if token is None or token.kind != "word" or token.text.lower() != word:
            return False
        after = _TOKEN.match(self.text, token.end)
        if after is not None and after["op"]:
            return False  # a field that is called `and`, `or` or `not`
        self.at = token.end
        return True

    def _peek(self) -> _Token | None:
        if not self.text[self.at :].strip():
            return None
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            start = self.at + len(self.text[self.at :]) - len(self.text[self.at :].lstrip())
            what = "the quotation mark is not closed" if self.text[start] == '"' else "unexpected text"
            raise self._error(what, start)
        kind = str(match.lastgroup)
        text = match[kind]
        if kind == "quoted":
            text = _unescape(text)
        return _Token(kind, text, match.start(kind), match.end())

    def _error(self, problem: str, at: int) -> FilterError:
        return FilterError(f"the filter is wrong at character {at + 1}: {problem}")


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _leaves(expression: Expression) -> Iterator[Condition | TextSearch]:
    if isinstance(expression, Not):
        yield from _leaves(expression.inner)
    elif isinstance(expression, (All, Any_)):
        for part in expression.parts:
            yield from _leaves(part)
    else:
        yield expression


# One value against a condition ---------------------------------------------------


def _number(value: Value) -> float | None:
    """A number, or a text that is one; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float, str)):
        try:
            found = float(value)
        except (ValueError, OverflowError):
            return None
        return found if math.isfinite(found) else None
    return None


def as_text(value: object) -> str:
    """Return the text that filters search and compare: text unchanged, anything else as JSON."""
    return value if isinstance(value, str) else encode(value).decode("utf-8", "replace")


def _equal(condition: Condition, value: Value) -> bool:
    if value is None:
        return condition.is_missing
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = _number(value)
        if number is not None:
            return condition.number is not None and number == condition.number
    have, wanted = as_text(value), condition.value
    return have.casefold() == wanted.casefold() if condition.op == ":" else have == wanted


def holds(condition: Condition, values: Sequence[Value]) -> bool:
    """Whether a condition holds for a field with these alternatives: one value, several scores, a list, none."""
    op = condition.op
    if op == "!=":
        return not holds(msgspec.structs.replace(condition, op="="), values)
    if op in (":", "="):
        return any(_equal(condition, value) for value in values or (None,))
    if op == "~":
        needle = condition.value.casefold()
        return any(value is not None and needle in as_text(value).casefold() for value in values)
    compare, wanted = _COMPARE[op], condition.number
    assert wanted is not None
    return any(have is not None and compare(have, wanted) for have in map(_number, values))


_COMPARE: dict[str, Callable[[Any, float], Any]] = {
    "<": lambda have, wanted: have < wanted,
    "<=": lambda have, wanted: have <= wanted,
    ">": lambda have, wanted: have > wanted,
    ">=": lambda have, wanted: have >= wanted,
}


# A joined row --------------------------------------------------------------------


def _matches(
    expression: Expression, row: Row, more: Mapping[str, Value], decided: Mapping[Condition, bool]
) -> bool:
    if isinstance(expression, Not):
        return not _matches(expression.inner, row, more, decided)
    if isinstance(expression, All):
        return all(_matches(part, row, more, decided) for part in expression.parts)
    if isinstance(expression, Any_):
        return any(_matches(part, row, more, decided) for part in expression.parts)
    if isinstance(expression, TextSearch):
        needle = expression.text.casefold()
        return any(needle in as_text(value).casefold() for value in shown_values(row))
    if expression in decided:
        return decided[expression]
    return holds(expression, row_values(expression.field, row, more))


def shown_values(row: Row) -> Iterator[Value]:
    """Everything that a row shows and a text is searched in."""
    for field in ("id", *TEXTS):
        for value in row_values(field, row):
            if value is not None:
                yield value


def row_values(field: str, row: Row, more: Mapping[str, Value] | None = None) -> list[Value]:
    """The values of a field of a joined row."""
    if more and field in more:
        return [more[field]]
    results = row.results
    if field in FIELDS:
        if field == "score":
            return [judged.score for judged in results.values()]
        if field == "result":
            return [judged.status for judged in results.values()]
        if field == "error":
            return [row.error, *(judged.error for judged in results.values())]
        if field == "comment":
            return [judged.comment or None for judged in results.values()]
        if field == "run":
            return [row.run, row.run_label]
        return [getattr(row, _ATTRIBUTES.get(field, field), None)]
    if field in results:
        return [results[field].score]
    key, _, part = field.rpartition(".")
    if key in results and part in ("score", "status", "value", "comment", "error"):
        found = getattr(results[key], part)
        return [found or None if part == "comment" else found]
    value = paths.get(row.metadata, field.removeprefix("metadata."))
    return list(value) if isinstance(value, (list, tuple)) else [value]


_ATTRIBUTES = {"seconds": "service_seconds", "try": "try_number"}


def _owners(field: str) -> Iterator[str]:
    """The names that a dotted field may belong to: `a.b` of `a.b.status`, `topic` of `metadata.topic`."""
    if field.startswith("metadata."):
        yield field.removeprefix("metadata.")
    parts = field.removeprefix("metadata.").split(".")
    for end in range(1, len(parts)):
        yield ".".join(parts[:end])


# Columns -------------------------------------------------------------------------


def _reads_records(expression: Expression, columns: Columns) -> bool:
    return any(isinstance(each, TextSearch) or columns.is_text(each) for each in _leaves(expression))


def _mask(expression: Expression, columns: Columns, within: Mask) -> Mask:
    """The rows that satisfy an expression; nothing is said of rows that are not `within`."""
    import numpy as np

    if isinstance(expression, Not):
        return np.logical_not(_mask(expression.inner, columns, within))
    if isinstance(expression, (All, Any_)):
        every = isinstance(expression, All)
        found: Mask = np.full(len(columns), every)
        for part in expression.parts:
            (np.logical_and if every else np.logical_or)(found, _mask(part, columns, within), out=found)
        return found
    if isinstance(expression, TextSearch) or columns.is_text(expression):
        return columns.searched(expression, within)
    if expression.field == "id":
        return columns.named(expression)
    numbers = columns.numbers(expression.field)
    if numbers is not None:
        if expression.op == "~":
            return _digits_mask(expression, numbers, len(columns))
        return _number_mask(expression, numbers, len(columns))
    labels = columns.labels(expression.field)
    if labels is None:
        raise unknown_field(expression.field, columns)
    codes, values = labels
    chosen = np.array([holds(expression, each) for each in values], dtype=bool)
    return chosen[codes] if len(chosen) else np.zeros(len(columns), dtype=bool)


def _digits_mask(condition: Condition, numbers: Sequence[NDArray[np.float64]], count: int) -> Mask:
    """The rows one of whose numbers contains a text."""
    import numpy as np

    found: Mask = np.zeros(count, dtype=bool)
    whole = condition.field in WHOLE_NUMBERS
    for each in numbers:
        values, codes = np.unique(each, return_inverse=True)
        known = [None if math.isnan(value) else int(value) if whole else value for value in values.tolist()]
        found |= np.array([holds(condition, (value,)) for value in known], dtype=bool)[codes]
    return found


def _number_mask(condition: Condition, numbers: Sequence[NDArray[np.float64]], count: int) -> Mask:
    import numpy as np

    found: Mask = np.zeros(count, dtype=bool)
    op = "=" if condition.op in (":", "!=") else condition.op
    for each in numbers:
        if op == "=":
            if condition.is_missing:
                found |= np.isnan(each)
            elif condition.number is not None:
                found |= each == condition.number
        else:
            found |= _COMPARE[op](each, condition.number or 0.0)
    if not numbers and op == "=" and condition.is_missing:
        found[:] = True
    return np.logical_not(found) if condition.op == "!=" else found
