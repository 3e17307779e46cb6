"""Answers of a given form: the schema, its check, the wording where the provider has no way of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from karat.errors import RequestError
from karat.models.failures import one_line
from karat.models.messages import Choice, Request

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


class Form:
    """What a schema asks for. `schema` is plain JSON Schema; `read` checks a text and gives its value."""

    def __init__(self, schema: dict[str, Any], model: Any = None) -> None:
        self.schema = schema
        self._model = model
        self._validator: Any = None

    def read(self, text: str) -> Any:
        """The value in a text. ValueError says what does not fit."""
        value = _decode(text)
        if self._model is not None:
            return self._model.model_validate(value)  # pydantic's ValidationError is a ValueError
        if self._validator is None:
            from jsonschema.validators import validator_for

            self._validator = validator_for(self.schema)(self.schema)
        for error in self._validator.iter_errors(value):
            where = "".join(
                f"[{p!r}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path
            ).lstrip(".")
            raise ValueError(f"{where or 'the answer'}: {one_line(error.message, 300)}")
        return value


_forms: WeakKeyDictionary[type, Form] = WeakKeyDictionary()


def form_of(schema: Any) -> Form:
    """The form a JSON Schema or a pydantic model describes."""
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        if schema not in _forms:
            _forms[schema] = Form(schema.model_json_schema(), schema)
        return _forms[schema]
    if isinstance(schema, Mapping):
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for

        plain = dict(schema)
        try:
            validator_for(plain).check_schema(plain)
        except SchemaError as error:
            raise RequestError(f"the schema is not JSON Schema: {one_line(error.message, 300)}") from None
        return Form(plain)
    raise RequestError(f"a schema is a JSON Schema or a pydantic model, not {type(schema).__name__}")


def _decode(text: str) -> Any:
    """The JSON in an answer; models like to wrap it in a fence or a sentence."""
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


def repair(request: Request, choice: Choice, problem: str) -> Request:
    """The request for a second answer, with what was wrong with the first."""
    messages = [
        *request.messages,
        {"role": "assistant", "content": choice.text or "(nothing)"},
        {
            "role": "user",
            "content": f"That does not fit the form asked for: {one_line(problem, 500)}. "
            "Give the whole answer again, corrected, as JSON and nothing else.",
        },
    ]
    return msgspec.structs.replace(request, messages=messages)
