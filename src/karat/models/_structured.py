"""Structured output: the schema, its validation, and the prompt for providers without native support."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from karat.errors import RequestError
from karat.json_schema import Undecided, refuse_remote_references, validator
from karat.models._failures import one_line
from karat.models._messages import Request
from karat.serialization import TooManyParts, decode_untrusted

SHORT = 4096
"""Characters. Reading a longer answer takes long enough to hold up the other calls of the loop."""

MOST_PARTS = 1 << 19
"""Parts of an answer with a schema, as `decode_untrusted` counts them: pydantic makes a kilobyte of errors for each."""

MOST_ERRORS = 10_000
"""Violations that are looked at for text that is meant as a number. Each takes 50 µs, and a reply may have millions."""

_EXPENSIVE = ("pattern", "patternProperties", "format")
"""Keywords whose check may take longer than the answer is long."""

_OF_THE_ROOT = ("$schema", "$id", "$defs", "definitions")
_DEFINED = ("#/$defs/", "#/definitions/")


class OutputSchema:
    """The schema of an answer. `schema` is plain JSON Schema; `read` checks a text and returns its value.

    `accepts` is what an answer is checked against where that is less than what the provider is asked for.
    """

    def __init__(
        self, schema: dict[str, Any], model: Any = None, *, accepts: dict[str, Any] | None = None
    ) -> None:
        self.schema = schema
        self._model = model
        self._validator: Any = None if model is not None else validator(accepts or schema)
        self._expensive = model is not None or _names_any(schema, _EXPENSIVE)

    def refuse_endless(self) -> None:
        """Raise RequestError where every answer would be checked without end: `{"$ref": "#"}`, for example."""
        from referencing.exceptions import Unresolvable

        values: tuple[Any, ...] = (None, "", 0, [], {})
        for value in values:
            try:
                any(self._validator.iter_errors(value))
            except RecursionError:
                raise RequestError("the schema refers to itself without end: correct its $ref") from None
            except (Undecided, Unresolvable):
                continue  # reported with an answer

    def is_quick(self, text: str) -> bool:
        """Whether `read` takes so little time that it may run on an event loop; a model's validators are any code."""
        return not self._expensive and len(text) <= SHORT

    def read(self, text: str, *, coerce: bool = True) -> Any:
        """Return the value in a text. ValueError: the text does not fit the schema.

        A number or a boolean that is written as text (`"3"` for an integer) is read as what the schema asks for,
        unless `coerce` is false.
        """
        value = read_json(text)
        if self._model is not None:
            return self._validate_model(value)
        if coerce:
            value = self._coerce(value)
        from referencing.exceptions import Unresolvable

        try:
            for error in self._validator.iter_errors(value):
                raise ValueError(f"{_place_of(error.absolute_path)}: {one_line(error.message, 300)}")
        except Undecided as error:
            raise ValueError(str(error)) from None
        except RecursionError:
            raise ValueError("it is nested too deeply to be checked") from None
        except Unresolvable as error:
            raise RequestError(
                f"the schema refers to {one_line(str(error.ref), 120)}, which it does not have"
            ) from None
        return value

    def _coerce(self, value: Any) -> Any:
        better: list[tuple[list[Any], Any]] = []
        try:
            for error in islice(self._validator.iter_errors(value), MOST_ERRORS):
                if error.validator == "type":
                    meant = _as_type(error.instance, error.validator_value)
                    if meant is None:
                        break  # the value does not fit, and `read` says why
                    better.append((list(error.absolute_path), meant))
        except Exception:  # `read` reports the error of the schema or the value
            return value
        for path, meant in better:
            if not path:
                return meant
            functools.reduce(operator.getitem, path[:-1], value)[path[-1]] = meant
        return value

    def _validate_model(self, value: Any) -> Any:
        from pydantic import ValidationError

        try:
            return self._model.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise ValueError(f"{_place_of(first['loc'])}: {one_line(first['msg'], 300)}") from None


_WORDS = {"true": True, "false": False}


def _as_type(value: Any, kinds: Any) -> Any:
    """A text as the number or boolean that a schema asks for; None where it is neither."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    kinds, text = [kinds] if isinstance(kinds, str) else list(kinds), value.strip()
    if "boolean" in kinds and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if "integer" in kinds and _WHOLE.fullmatch(text):
        return int(text)
    if "number" in kinds and _NUMBER.fullmatch(text):
        return float(text)
    return None


_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?")


class UncheckedSchema(OutputSchema):
    """A schema that the provider is held to, while the caller reads and checks the text itself."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema

    def is_quick(self, text: str) -> bool:
        return True

    def read(self, text: str, *, coerce: bool = True) -> Any:
        return text


def _place_of(path: Iterable[Any]) -> str:
    steps = (f"[{step!r}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).lstrip(".") or "the answer"


_forms: WeakKeyDictionary[type, OutputSchema] = WeakKeyDictionary()


def output_schema(schema: object) -> OutputSchema:
    """Return the `OutputSchema` of a JSON Schema or a pydantic model; an `OutputSchema` is returned unchanged."""

    if isinstance(schema, OutputSchema):
        return schema
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        if schema not in _forms:
            _forms[schema] = OutputSchema(schema.model_json_schema(), schema)
        return _forms[schema]
    if isinstance(schema, Mapping):
        try:
            return _written_schema(msgspec.json.encode(schema))
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise RequestError(f"the schema is not JSON: {one_line(str(error), 200)}") from None
        except RecursionError:
            raise RequestError("the schema is nested too deeply: make it flatter") from None
    raise RequestError(f"a schema is a JSON Schema or a pydantic model, not {type(schema).__name__}")


_KEYWORDS = (
    "type", "properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems", "contains",
    "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "pattern", "format", "minLength", "maxLength", "minimum",
    "maximum", "minItems", "maxItems", "title", "description",
)  # fmt: skip


@lru_cache(maxsize=128)
def _written_schema(encoded: bytes) -> OutputSchema:
    # Kept: a task gives the same schema with every record, and reading one takes longer than a call.
    schema = msgspec.json.decode(encoded)
    refuse_remote_references(schema)
    if schema and not any(key in _KEYWORDS or key.startswith("$") for key in schema):
        raise RequestError(
            f"{next(iter(schema))!r:.60} is not a keyword of JSON Schema: give a type, properties or an enum"
        )
    form = OutputSchema(schema)
    form.refuse_endless()
    return form


def read_json(text: str) -> Any:
    """The JSON in an answer; models like to wrap it in a fence or a sentence. ValueError: there is none."""
    text = text.strip()
    try:
        return decode_untrusted(text, MOST_PARTS)
    except (msgspec.DecodeError, RecursionError) as error:
        problem = error
    for candidate in _candidates(text):
        try:
            return decode_untrusted(candidate, MOST_PARTS)
        except (msgspec.DecodeError, RecursionError):
            continue
    raise ValueError(
        str(problem) if isinstance(problem, TooManyParts) else f"not JSON: {one_line(str(problem), 200)}"
    )


def _candidates(text: str) -> Iterator[str]:
    """Parts of an answer that may be JSON: fenced blocks, then all between the outermost brackets.

    Each character is read a bounded number of times, because the answer may be hostile.
    """
    blocks = text.split("```")
    for block in blocks[1 : len(blocks) - 1 : 2]:  # inside of a fence; one that is not closed is no block
        head, newline, rest = block.partition("\n")
        yield rest.strip() if newline and head.strip().lower() in ("", "json") else block.strip()
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    end = max(text.rfind("}"), text.rfind("]"))
    if starts and end > min(starts):
        yield text[min(starts) : end + 1]


def _names_any(schema: Any, keywords: tuple[str, ...]) -> bool:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            if any(keyword in part for keyword in keywords):
                return True
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return False


def is_object(schema: Mapping[str, Any]) -> bool:
    """Whether the root of a schema is an object, which providers demand."""
    return schema.get("type") == "object"


def wrapped_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Wrap a schema whose root is not an object as the property `answer` of an object, as providers require."""
    if is_object(schema):
        return schema
    inner = {name: value for name, value in schema.items() if name not in _OF_THE_ROOT}
    wrapper = {
        "type": "object",
        "properties": {"answer": inner},
        "required": ["answer"],
        "additionalProperties": False,
        **{name: schema[name] for name in _OF_THE_ROOT if name in schema},
    }
    moved: dict[str, Any] = _move_references(wrapper)
    return moved


def _move_references(schema: Any) -> Any:
    """Rewrite references to the old root of a wrapped schema to its new place."""
    if isinstance(schema, list):
        return [_move_references(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    out = {name: _move_references(value) for name, value in schema.items()}
    reference = out.get("$ref")
    if isinstance(reference, str) and reference[:2] in ("#", "#/") and not reference.startswith(_DEFINED):
        out["$ref"] = "#/properties/answer" + reference[1:]
    return out


def unwrapped_value(value: object, schema: Mapping[str, Any]) -> Any:
    """Undo `wrapped_schema`: return the value of `answer`; a value that is not wrapped is returned unchanged."""
    if not is_object(schema) and isinstance(value, dict) and value.keys() == {"answer"}:
        return value["answer"]
    return value


def schema_in_prompt(request: Request) -> Request:
    """Put the schema into the prompt, for a provider without native structured output."""
    text = (
        "Answer with one JSON value and nothing else. It must fit this JSON Schema:\n"
        + msgspec.json.encode(request.schema).decode()
    )
    messages = list(request.messages)
    if messages[0]["role"] == "system" and isinstance(messages[0].get("content"), str):
        messages[0] = {**messages[0], "content": messages[0]["content"] + "\n\n" + text}
    else:
        messages.insert(0, {"role": "system", "content": text})
    return msgspec.structs.replace(request, messages=messages)


def repair(request: Request, answer: str, problem: str) -> Request:
    """The request for a second answer, with the first as it came and what was wrong with it."""
    messages = [
        *request.messages,
        {"role": "assistant", "content": answer},
        {
            "role": "user",
            "content": f"That does not fit the form asked for: {problem}. "
            "Give the whole answer again, corrected, as JSON and nothing else.",
        },
    ]
    return msgspec.structs.replace(request, messages=messages)
