"""A matrix in an experiment: each combination of its values is a run.

    matrix:
      model: [openai/small, openai/large]
      temperature: [0, 0.7]

A key is `model`, a field of the prompt (`prompt`, `system`, `temperature`, …), a parameter of the function or a
variable of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from karat.errors import KaratError, RequestError, did_you_mean
from karat.experiments.plan import function_at, refuse_absent, refuse_unknown
from karat.experiments.problems import PlacedError, at
from karat.experiments.schema import FunctionEntry, PromptEntry, RecordedEntry
from karat.tasks import Task

MOST_RUNS = 1000


class Combination(NamedTuple):
    """One cell of the matrix: its values and its task."""

    values: dict[str, Any]
    entry: Any
    params: dict[str, Any]
    """Parameters of the function, variables of the graph."""
    model: str | None


def combinations_of(matrix: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last key changing fastest."""
    count = 1
    for values in matrix.values():
        count *= len(values)
    if count > MOST_RUNS:
        raise RequestError(f"{count:,} combinations exceed the limit of {MOST_RUNS:,}: list fewer values")
    return [dict(zip(matrix, values, strict=True)) for values in product(*matrix.values())]


def expand(entry: Any, matrix: Mapping[str, Sequence[Any]]) -> list[Combination]:
    """The combinations of a task and a matrix."""
    if isinstance(entry, RecordedEntry):
        raise RequestError(
            "recorded outputs take no matrix: a matrix applies to functions, prompts and graphs"
        )
    return [_combined(entry, values) for values in combinations_of(matrix)]


def problems_in(
    entry: Any, matrix: Mapping[str, Sequence[Any]], folder: Path
) -> tuple[list[PlacedError], dict[str, list[Any]]]:
    """All errors of a matrix with their places, and the valid values."""
    check = _checker(entry, folder)
    found: list[PlacedError] = []
    good: dict[str, list[Any]] = {}
    for name, values in matrix.items():
        good[name] = []
        for index, value in enumerate(values):
            try:
                check(name, index, value)
                good[name].append(value)
            except PlacedError as error:
                found += [error] if all(error.place != each.place for each in found) else []
    return found, good


def _checker(entry: Any, folder: Path) -> Callable[[str, int, Any], None]:
    """Return a function that raises a PlacedError for an invalid value of the matrix."""
    function: tuple[str, Any] | None = None
    if isinstance(entry, FunctionEntry):
        with suppress(KaratError):  # reported with the task
            function = function_at(entry.function, folder)

    def check(name: str, index: int, value: Any) -> None:
        if name == "model":
            with at("matrix", name, index):
                if not isinstance(value, str):
                    raise RequestError(f"{value!r} is not a model: model names are strings")
                refuse_absent(value)
        elif isinstance(entry, PromptEntry):
            with at("matrix", name):
                _refuse_unknown_field(name)
            with at("matrix", name, index):
                _prompt(entry, {name: value}, None)
        elif function is not None and callable(function[1]) and not isinstance(function[1], Task):
            with at("matrix", name):
                refuse_unknown(*function, name)

    return check


def _combined(entry: Any, values: dict[str, Any]) -> Combination:
    model = values.get("model")
    rest = {name: value for name, value in values.items() if name != "model"}
    if isinstance(entry, PromptEntry):
        return Combination(values, _prompt(entry, rest, model), {}, model)
    return Combination(values, entry, rest, model)


def _refuse_unknown_field(name: str) -> None:
    known = [field.alias or field_name for field_name, field in PromptEntry.model_fields.items()]
    if name not in known:
        raise RequestError(f"a prompt has no field {name!r}: {did_you_mean(name, known)}")


def _prompt(entry: PromptEntry, values: dict[str, Any], model: str | None) -> PromptEntry:
    given = {**entry.model_dump(by_alias=True, exclude_unset=True), **values}
    if model is not None:
        given.pop("model", None)
    try:
        return PromptEntry.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RequestError(first["msg"].replace("Input should be", "must be")) from error
