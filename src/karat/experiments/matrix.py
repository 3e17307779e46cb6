"""A matrix in an experiment: every combination of the values it lists is a run of its own.

    matrix:
      model: [openai/small, openai/large]
      temperature: [0, 0.7]

A key is `model`, a field of the prompt (`prompt`, `system`, `temperature`, …), a parameter of the function or a
variable of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from pydantic import ValidationError

from karat.errors import RequestError, did_you_mean
from karat.experiments.schema import FunctionEntry, PromptEntry, RecordedEntry

MOST_RUNS = 1000


class Combination(NamedTuple):
    """One cell of the matrix: what it sets, and the task it comes to."""

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
        raise RequestError(f"{count:,} combinations are more than {MOST_RUNS:,}: name fewer values")
    return [dict(zip(matrix, values, strict=True)) for values in product(*matrix.values())]


def expand(entry: Any, matrix: Mapping[str, Sequence[Any]]) -> list[Combination]:
    """The tasks that a matrix makes of one."""
    if isinstance(entry, RecordedEntry):
        raise RequestError(
            "recorded outputs are what they are: a matrix is for functions, prompts and graphs"
        )
    return [_combined(entry, values) for values in combinations_of(matrix)]


def _combined(entry: Any, values: dict[str, Any]) -> Combination:
    model = values.get("model")
    if model is not None and not isinstance(model, str):
        raise RequestError(f"model is {model!r}: name models as texts")
    rest = {name: value for name, value in values.items() if name != "model"}
    if isinstance(entry, PromptEntry):
        return Combination(values, _prompt(entry, rest, model), {}, model)
    if isinstance(entry, str):
        entry = FunctionEntry(function=entry)
    return Combination(values, entry, rest, model)


def _prompt(entry: PromptEntry, values: dict[str, Any], model: str | None) -> PromptEntry:
    fields = PromptEntry.model_fields
    known = [field.alias or name for name, field in fields.items()]
    for name in values:
        if name not in known:
            raise RequestError(f"a prompt has no {name!r}: {did_you_mean(name, known)}")
    given = {**entry.model_dump(by_alias=True, exclude_unset=True), **values}
    if model is not None:
        given.pop("model", None)
    try:
        return PromptEntry.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RequestError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
