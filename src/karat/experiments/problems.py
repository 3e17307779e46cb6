"""Errors in the keys and types of an experiment file, with their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from karat.documents import Place, written
from karat.errors import ConfigError, KaratError, did_you_mean
from karat.experiments.schema import FORMS, ExperimentFile

_WORDS = {
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
_FORMS_OF = {
    "dataset": "must be a file, a name, {path, …} or a list of examples",
    "task": "must be file.py:function, or have one of function:, prompt:, graph: and recorded:",
    "evaluators": "must be a name or {name, params, key}",
    "aggregators": "must be a name or {name, params, key, of}",
}


def check_schema(
    value: dict[str, Any],
) -> tuple[ExperimentFile | None, list[tuple[Place, str]], set[Place]]:
    """The valid file, or all errors with their places and the invalid top-level keys (in lists: entries)."""
    try:
        return ExperimentFile.model_validate(value), [], set()
    except ValidationError as error:
        found = [_read(each, value) for each in error.errors(include_url=False)]
    # A value that matches none of several forms has an error in each; the deepest one is the most specific.
    places = [place for place, _, _ in found]
    merged: dict[Place, list[str]] = {}
    sentences: list[tuple[Place, str]] = []
    for place, kind, text in found:
        if kind != "type":
            sentences.append((place, f"{written(place)}: {text}"))
        elif not any(len(other) > len(place) and other[: len(place)] == place for other in places):
            merged.setdefault(place, []).append(text)
    for place, words in merged.items():
        sentences.append((place, f"{written(place)}: must be {' or '.join(dict.fromkeys(words))}"))
    bad = {place[: 2 if place[0] in ("evaluators", "aggregators") else 1] for place in places if place}
    return None, sentences, bad


def _read(error: Any, value: Any) -> tuple[Place, str, str]:
    """`(place, kind, words)` of a pydantic error, whose path includes the names of forms."""
    kind, steps = error["type"], list(error["loc"])
    form: Any = ExperimentFile
    place: list[str | int] = []
    for step in steps[:-1] if kind in ("missing", "extra_forbidden") else steps:
        if isinstance(step, str) and (found := _form(step)) is not None:
            form = found
        elif (isinstance(value, dict) and step in value) or (
            isinstance(value, list) and isinstance(step, int)
        ):
            place.append(step)
            value = value[step]
            if step == "examples" or (place[:1] == ["dataset"] and isinstance(step, int)):
                form = FORMS["ExampleEntry"]
    if kind == "missing":
        return (*place,), "missing", f"needs {steps[-1]!r}"
    if kind == "extra_forbidden":
        known = [field.alias or name for name, field in form.model_fields.items()]
        return (*place, steps[-1]), "unknown", f"unknown key: {did_you_mean(str(steps[-1]), known)}"
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return (*place,), "form", _FORMS_OF[str(place[0])]
    if kind in _WORDS:
        return (*place,), "type", _WORDS[kind]
    return (*place,), "value", error["msg"].replace("Input should be", "must be").replace("'", '"')


def _form(step: str) -> Any:
    """The form that a step of pydantic's path names: `DatasetEntry`, `list[MessageEntry]`."""
    return FORMS.get(step.removeprefix("list[").removesuffix("]"))


class PlacedError(ConfigError):
    """Errors in the value at a place."""

    def __init__(self, place: Place, problems: list[str]) -> None:
        super().__init__(problems)
        self.place = place


@contextmanager
def at(*place: str | int) -> Iterator[None]:
    """Attach a place to errors raised inside; the innermost place wins."""
    try:
        yield
    except PlacedError:
        raise
    except KaratError as error:
        raise PlacedError(place, problems_of(error)) from error


def problems_of(error: KaratError) -> list[str]:
    """The messages of an error."""
    return getattr(error, "problems", None) or [str(error)]


def blamed(place: Place, params: Mapping[str, Any] | None, text: str) -> Place:
    """The place of the parameter whose name or value a message quotes; else `place`."""
    for name, value in (params or {}).items():
        if repr(name) in text or (isinstance(value, str) and repr(value) in text):
            return (*place, "params", name)
    return place
