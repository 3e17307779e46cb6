"""Evaluators of structure: whether an output is JSON, and whether it is the JSON that was asked for."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from datetime import datetime, time
from typing import Any, ClassVar

import regex

from karat import json_schema
from karat.errors import CannotJudge, NotApplicable, RequestError, clip
from karat.evaluators._base import Evaluator, ParameterCheck, register_evaluator
from karat.evaluators._values import NotJSON, UnreadableJSON, looks_fenced, parse_json, plain, value_at
from karat.records import Result, Value
from karat.serialization import storable

MAX_PROBLEMS = 1_000
"""Violations of a schema after which the search stops: the verdict is clear, and a list can have many."""

MAX_BRANCHES = 20_000
"""Violations in the branches of `oneOf` and `anyOf` after which the search stops; each costs some 20 µs."""

SHOWN_PROBLEMS = 20
"""How many violations of a schema are listed; a long list can have thousands."""


class _JSONEvaluator(Evaluator):
    """Base of both: text is parsed, any other value is taken as parsed JSON."""

    gives_labels = False

    reuse = False

    def __init__(self, fenced: bool, path: str | None) -> None:
        super().__init__()
        check = ParameterCheck(self.name)
        self._fenced = check.flag("fenced", fenced)
        self._path = check.path("path", path)

    def _value(self, outputs: object) -> Any:
        """The JSON value of an output; `NotJSON` when its text has none."""
        value = plain(outputs, "the output")
        if self._path is not None:
            value = value_at(value, self._path, "the output")
        if value is None:
            raise NotJSON("there is no output")
        if not isinstance(value, str):
            return value
        try:
            return parse_json(value, fenced=self._fenced)
        except NotJSON as error:
            hint = "; fenced accepts a fenced block" if not self._fenced and looks_fenced(value) else ""
            raise NotJSON(f"{error}{hint}, in {clip(value)}") from None


@register_evaluator("json_valid")
class JSONValid(_JSONEvaluator):
    """Whether the output is valid JSON; an output that is parsed already is.

    `fenced` also accepts one Markdown fence with prose around it. NaN and Infinity are not JSON. `types`
    restricts what the JSON has to be (`object`, `array`, `string`, `number`, `boolean`, `null`).
    """

    name: ClassVar[str] = "json_valid"
    pass_fail = True
    batched = True
    example: ClassVar[dict[str, Any]] = {
        "params": {},
        "outputs": '{"city": "Paris"}',
        "score": 1.0,
    }

    def __init__(
        self, fenced: bool = False, types: str | list[str] | None = None, path: str | None = None
    ) -> None:
        super().__init__(fenced, path)
        check = ParameterCheck(self.name)
        self._types = None if types is None else check.texts("types", types)
        for each in self._types or ():
            check.choice("types", each, _KINDS)
        self.params = {"fenced": fenced, "types": self._types, "path": path}

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        try:
            value = self._value(outputs)
        except NotJSON as error:
            return Result(self.key, 0.0, False, f"not valid JSON: {error}")
        kind = kind_of_json(value)
        if self._types is not None and kind not in self._types:
            wanted = " or ".join(_KINDS[each] for each in self._types)
            return Result(self.key, 0.0, False, f"valid JSON, but {_KINDS[kind]} and not {wanted}")
        return Result(self.key, 1.0, True, f"valid JSON: {_KINDS[kind]}")


_KINDS = {
    "object": "an object",
    "array": "an array",
    "string": "a string",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


def kind_of_json(value: object) -> str:
    """Return the JSON name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


@register_evaluator("json_schema_match")
class JSONSchemaMatch(_JSONEvaluator):
    """Whether the output is JSON that a JSON Schema accepts; the metadata lists what it violates, and where.

    `schema` is the schema, its JSON text, or a pydantic model. `formats` checks `format` too (dates, e-mail
    addresses, …); a format for which no check is installed is then refused. References are resolved within the
    schema, never over the network. A `pattern` that does not decide within `timeout` seconds is an error of
    this item, and so is a schema that takes more than 1.5 s of processor time for 100 kB.
    """

    name: ClassVar[str] = "json_schema_match"
    pass_fail = True
    example: ClassVar[dict[str, Any]] = {
        "params": {"schema": {"type": "object", "required": ["city"]}},
        "outputs": '{"country": "France"}',
        "score": 0.0,
    }

    def __init__(
        self,
        schema: Mapping[str, Any] | bool | str,
        fenced: bool = False,
        formats: bool = False,
        timeout: float = 1.0,
        path: str | None = None,
    ) -> None:
        super().__init__(fenced, path)
        check = ParameterCheck(self.name)
        check.flag("formats", formats)
        seconds = check.number("timeout", timeout, low=0.001)
        loaded = _schema(schema, check)
        self._validator = _validator(loaded, formats, seconds)
        self.params = {
            "schema": loaded,
            "fenced": fenced,
            "formats": formats,
            "timeout": timeout,
            "path": path,
        }

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        try:
            value = self._value(outputs)
        except NotJSON as error:
            return Result(self.key, 0.0, False, f"not valid JSON: {error}", {"errors": []})
        problems, count, is_all = self._problems(value)
        if not count:
            return Result(self.key, 1.0, True, "the schema accepts it", {"errors": []})
        first = problems[0]
        comment = f"{first['path']}: {first['message']}"
        if count > 1:
            more = f"{count - 1} more" if is_all else f"{count - 1} or more others"
            comment += f" (and {more})"
        return Result(self.key, 0.0, False, comment, {"errors": problems})

    def _problems(self, value: Any) -> tuple[list[dict[str, str]], int, bool]:
        """Return the first violations, how many were found, and whether these are all."""
        from referencing.exceptions import Unresolvable

        problems: list[dict[str, str]] = []
        count = branches = 0
        is_all = True
        try:
            for error in self._validator.iter_errors(value):
                count += 1
                branches += _branches(error)
                if len(problems) < SHOWN_PROBLEMS:
                    problems.append(
                        {"path": storable(error.json_path[:200]), "message": clip(error.message, 300)[1:-1]}
                    )
                if count == MAX_PROBLEMS or branches > MAX_BRANCHES:
                    is_all = False
                    break
        except json_schema.Undecided as error:
            raise CannotJudge(f"{self.key}: {error}") from None
        except Unresolvable as error:
            raise CannotJudge(
                f"{self.key}: the schema refers to {clip(error.ref, 120)}, which it does not"
                " contain: karat fetches no remote schema, so put it under $defs"
            ) from None
        except (ValueError, ArithmeticError) as error:  # numbers of thousands of digits, or infinite ones
            raise CannotJudge(f"{self.key}: the output cannot be checked: {str(error)[:120]}") from None
        except RecursionError:
            raise CannotJudge(
                f"{self.key}: the output is nested too deeply to be checked, or the schema refers to itself"
            ) from None
        return problems, count, is_all


def _branches(error: Any) -> int:
    """Count the violations in the branches of one: what it took to find it."""
    return sum(1 + _branches(each) for each in error.context or ())


def _schema(schema: Any, check: ParameterCheck) -> Any:
    """The schema as JSON, a copy of what was given."""
    if isinstance(schema, str):
        try:
            schema = parse_json(schema)
        except (NotJSON, UnreadableJSON) as error:
            raise RequestError(f"{check.who}: the schema is not JSON: {error}") from None
    elif isinstance(schema, type) and callable(getattr(schema, "model_json_schema", None)):
        schema = schema.model_json_schema()  # type: ignore[attr-defined]  # just looked for
    if not isinstance(schema, (Mapping, bool)):
        raise check.refuse("schema", "a JSON Schema", schema)
    return schema if isinstance(schema, bool) else copy.deepcopy(dict(schema))


def _validator(schema: Any, formats: bool, seconds: float) -> Any:
    return json_schema.validator(
        schema,
        pattern_seconds=seconds,
        schema_formats=schema_formats(),
        formats=output_formats(schema) if formats else None,
        where="json_schema_match: the schema",
    )


STANDARD = {
    *(
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "idn-email",
        "hostname",
        "idn-hostname",
        "ipv4",
        "ipv6",
    ),
    *("uri", "uri-reference", "iri", "iri-reference", "uri-template", "uuid", "regex"),
    *("json-pointer", "relative-json-pointer"),
}
"""The formats that JSON Schema defines; any other is an annotation without a check."""

_TIME = r"\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})"
_RFC_3339 = {"time": regex.compile(_TIME), "date-time": regex.compile(rf"\d{{4}}-\d{{2}}-\d{{2}}[T ]{_TIME}")}


def output_formats(schema: object) -> Any:
    """A checker of every format that a schema names; one that would pass unchecked is refused."""
    import jsonschema

    checker = jsonschema.FormatChecker()
    for name, read in (("date-time", datetime.fromisoformat), ("time", time.fromisoformat)):
        checker.checks(name, raises=ValueError)(_time_check(_RFC_3339[name], read))
    for name in _formats_in(schema):
        if name in STANDARD and name not in checker.checkers:
            raise RequestError(
                f"json_schema_match: no installed package checks the format {name!r}: pip install"
                " 'jsonschema[format-nongpl]', or leave formats out"
            )
    return checker


def schema_formats() -> Any:
    """A checker of the schema itself: its patterns are those of the `regex` package, which run with a time limit."""
    import jsonschema

    checker = jsonschema.FormatChecker(formats=())
    checker.checks("regex", raises=(regex.error, ValueError, OverflowError))(_is_pattern)
    return checker


def _is_pattern(value: object) -> bool:
    return not isinstance(value, str) or regex.compile(value) is not None


def _time_check(form: Any, read: Any) -> Any:
    """RFC 3339, where a second may be the sixtieth; `fromisoformat` alone takes more forms than that."""

    def check(value: object) -> bool:
        if not isinstance(value, str):
            return True
        text = value.upper()
        return form.fullmatch(text, timeout=1) is not None and read(text.replace(":60", ":59", 1)) is not None

    return check


def _formats_in(schema: Any) -> Iterator[str]:
    """Every format that a schema names, also in its parts; not those in the values it gives."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(part.get("format"), str):
                yield part["format"]
            waiting.extend(
                each for key, each in part.items() if key not in ("const", "default", "enum", "examples")
            )
        elif isinstance(part, list):
            waiting.extend(part)


# A graph's own unit-metric results, read from a field of the output.


class NotJudged(NotApplicable):
    """A result that the task owed and did not write: a skip that counts among what is missing."""

    applicable = True


@register_evaluator("from_output")
class FromOutput(Evaluator):
    """Read a field of the output: a unit metric's result, a verdict or a score that the task wrote itself.

    A field that is null was not judged: the item is skipped, and estimates count it as missing. With `pass_fail` a
    field holds verdicts: a number in it is refused. `metadata` names further fields of the output to keep with the
    result: `{name: field}`.
    """

    name: ClassVar[str] = "from_output"
    reuse = False
    batched = True
    bounds = None  # a task may write any number
    example: ClassVar[Mapping[str, Any]] = {
        "params": {"field": "exact_match"},
        "outputs": {
            "exact_match": {"correct": True, "golden": "Paris", "predicted": "paris", "metadata": {}}
        },
        "score": 1.0,
    }

    def __init__(self, field: str, metadata: dict[str, str] | None = None) -> None:
        check = ParameterCheck(self.name)
        self.field = check.text("field", field)
        self.metadata = {
            name: check.text(f"metadata.{name}", path) for name, path in (metadata or {}).items()
        }
        super().__init__(self.field)
        self.params = {"field": field, **({"metadata": metadata} if metadata else {})}

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        if outputs is None:
            raise NotApplicable("the task omitted the record")
        if not isinstance(outputs, dict):
            raise CannotJudge(f"the output is {clip(outputs)}, not an object with the field {self.field!r}")
        given = value_at(outputs, self.field, "the output")
        if given is None:
            raise NotJudged(f"the task left {self.field} empty")
        more = {name: value_at(outputs, path, "the output") for name, path in self.metadata.items()}
        if isinstance(given, (int, float)) and not isinstance(given, bool) and not self.pass_fail:
            return Result(self.key, float(given), given, f"the task wrote {given} into {self.field}", more)
        try:
            correct, golden, predicted, metadata = self.read(given)
        except ValueError as error:
            raise CannotJudge(f"{self.field}: {error}") from None
        if type(given) is not dict and not isinstance(given, Mapping):
            return Result(
                self.key, float(correct), correct, f"the task wrote {given} into {self.field}", more
            )
        metadata = {**metadata, **more, "golden": golden, "predicted": predicted}
        comment = (
            f"{self.field} says {'correct' if correct else 'wrong'}: {clip(predicted)} against {clip(golden)}"
        )
        return Result(self.key, float(correct), correct, comment, metadata)

    @staticmethod
    def read(given: object) -> tuple[bool, Any, Any, dict[str, Any]]:
        """The verdict, the golden and the predicted value and the metadata of a unit metric's result.

        It is an object, or a bare verdict, which has neither value. A number is no verdict, nor is its absence.
        """
        if type(given) is not dict and not isinstance(given, Mapping):
            if isinstance(bare := FromOutput.verdict(given), bool):
                return bare, None, None, {}
            raise ValueError(f"a unit metric result is an object, true or false, not {clip(given)}")
        correct = given.get("correct")
        if type(correct) is not bool and not isinstance(correct := FromOutput.verdict(correct), bool):
            raise ValueError(f"a unit metric result needs correct: true or false, not {clip(correct)}")
        metadata = given.get("metadata") or {}
        if type(metadata) is not dict and not isinstance(
            metadata, Mapping
        ):  # the exact type is quick to check
            raise ValueError(f"the metadata of a unit metric result is an object, not {clip(metadata)}")
        return correct, given.get("golden"), given.get("predicted"), dict(metadata)

    @staticmethod
    def verdict(value: Value) -> Value:
        """A NumPy boolean (from `numpy.isclose`) as a Python bool; any other value unchanged."""
        if type(value).__module__ != "numpy" or getattr(value, "ndim", None) != 0:
            return value
        plain = value.item()
        return plain if isinstance(plain, bool) else value
