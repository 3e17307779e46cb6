"""Answers of a given form: the schema, its check, the wording where the provider has no way of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from karat.errors import RequestError
from karat.models._failures import one_line
from karat.models._messages import Request

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)

_OF_THE_ROOT = ("$schema", "$id", "$defs", "definitions")
_DEFINED = ("#/$defs/", "#/definitions/")


class OutputSchema:
    """What a schema asks for. `schema` is plain JSON Schema; `read` checks a text and gives its value."""

    def __init__(self, schema: dict[str, Any], model: Any = None) -> None:
        self.schema = schema
        self._model = model
        self._validator: Any = None

    def read(self, text: str) -> Any:
        """The value in a text. ValueError says what does not fit."""
        value = read_json(text)
        if self._model is not None:
            return self._modelled(value)
        if self._validator is None:
            from jsonschema.validators import validator_for

            self._validator = validator_for(self.schema)(self.schema)
        for error in self._validator.iter_errors(value):
            raise ValueError(f"{_where(error.absolute_path)}: {one_line(error.message, 300)}")
        return value

    def _modelled(self, value: Any) -> Any:
        from pydantic import ValidationError

        try:
            return self._model.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise ValueError(f"{_where(first['loc'])}: {one_line(first['msg'], 300)}") from None


def _where(path: Iterable[Any]) -> str:
    steps = (f"[{step!r}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).lstrip(".") or "the answer"


_forms: WeakKeyDictionary[type, OutputSchema] = WeakKeyDictionary()


def output_schema(schema: Any) -> OutputSchema:
    """The form a JSON Schema or a pydantic model describes."""
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        if schema not in _forms:
            _forms[schema] = OutputSchema(schema.model_json_schema(), schema)
        return _forms[schema]
    if isinstance(schema, Mapping):
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for

        plain = dict(schema)
        try:
            validator_for(plain).check_schema(plain)
        except SchemaError as error:
            raise RequestError(f"the schema is not JSON Schema: {one_line(error.message, 300)}") from None
        return OutputSchema(plain)
    raise RequestError(f"a schema is a JSON Schema or a pydantic model, not {type(schema).__name__}")


def read_json(text: str) -> Any:
    """The JSON in an answer; models like to wrap it in a fence or a sentence. ValueError: there is none."""
    text = text.strip()
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        problem = error
    candidates = [match.strip() for match in _FENCED.findall(text)]
    starts = [text.find(c) for c in "{[" if c in text]
    ends = [text.rfind(c) for c in "}]" if c in text]
    if starts and ends:
        candidates.append(text[min(starts) : max(ends) + 1])
    for candidate in candidates:
        try:
            return msgspec.json.decode(candidate)
        except (msgspec.DecodeError, RecursionError):
            continue
    raise ValueError(f"not JSON: {one_line(str(problem), 200)}")


def is_object(schema: Mapping[str, Any]) -> bool:
    """Whether the root of a schema is an object, which providers demand."""
    return schema.get("type") == "object"


def in_object(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as a provider takes it: one whose root is no object becomes `answer` of one that is."""
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
    moved: dict[str, Any] = _moved(wrapper)
    return moved


def _moved(schema: Any) -> Any:
    """The wrapper with references that go through the old root leading to where it stands now."""
    if isinstance(schema, list):
        return [_moved(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    out = {name: _moved(value) for name, value in schema.items()}
    reference = out.get("$ref")
    if isinstance(reference, str) and reference[:2] in ("#", "#/") and not reference.startswith(_DEFINED):
        out["$ref"] = "#/properties/answer" + reference[1:]
    return out


def out_of_object(value: Any, schema: Mapping[str, Any]) -> Any:
    """What `in_object` had put under `answer`; a value that is not wrapped is left as it is."""
    if not is_object(schema) and isinstance(value, dict) and value.keys() == {"answer"}:
        return value["answer"]
    return value


def in_words(request: Request) -> Request:
    """The request with its schema in the prompt, for a provider that has no way of its own."""
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


def repair(request: Request, said: str, problem: str) -> Request:
    """The request for a second answer, with the first as it came and what was wrong with it."""
    messages = [
        *request.messages,
        {"role": "assistant", "content": said},
        {
            "role": "user",
            "content": f"That does not fit the form asked for: {problem}. "
            "Give the whole answer again, corrected, as JSON and nothing else.",
        },
    ]
    return msgspec.structs.replace(request, messages=messages)
