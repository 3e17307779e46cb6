"""Functions as tasks: which parameter gets the input, and what is refused before the first record."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import karat
from karat.errors import RequestError
from karat.records import Example, Ok
from karat.tasks.function import FunctionTask


def join(style: str, text: str) -> str:
    return f"{style} {text}"


def after_the_example(example: Example, text: str) -> list[str]:
    return [example.id, text]


def example_alone(example: Example, times: int = 1) -> str:
    return example.input * times  # type: ignore[no-any-return]  # a text here


def example_and_keywords(example: Example, *, loud: bool = False) -> str:
    return example.input.upper() if loud else example.input  # type: ignore[no-any-return]  # a text here


def by_keyword(*, text: str) -> str:
    return text


def with_default(text: str = "none", context: Any = None) -> str:
    return text


def any_arguments(*values: str, **options: str) -> list[str]:
    return [*values, *options.values()]


@pytest.mark.parametrize(
    ("function", "parameters", "output"),
    [
        (join, {"style": "a"}, "a x"),
        (functools.partial(join, "b"), {}, "b x"),
        (functools.partial(join, style="c"), {}, "c x"),
        (after_the_example, {}, ["1", "x"]),
        (example_alone, {}, "x"),
        (example_alone, {"times": 2}, "xx"),
        (example_and_keywords, {}, "x"),
        (example_and_keywords, {"loud": True}, "X"),
        (by_keyword, {}, "x"),
        (with_default, {}, "x"),
        (any_arguments, {}, ["x"]),
        (any_arguments, {"end": "!"}, ["x", "!"]),
        (str.upper, {}, "X"),
    ],
)
def test_the_input_goes_to_the_first_parameter_that_nothing_else_fills(
    function: Callable[..., Any], parameters: dict[str, Any], output: object
) -> None:
    task = FunctionTask(function, parameters=parameters)
    run = karat.run(task, [{"id": "1", "input": "x"}], store="memory://")
    assert [each.outcome for each in run.outputs()] == [Ok(output)]


def only_options(**options: str) -> str:
    return ""


def generator(text: str) -> Iterator[str]:
    yield text


async def async_generator(text: str) -> AsyncIterator[str]:
    yield text


@pytest.mark.parametrize("function", [only_options, generator, async_generator])
def test_a_function_that_cannot_give_an_output_is_refused(
    function: Callable[..., Any],
    refuses,  # type: ignore[no-untyped-def]  # a fixture
) -> None:
    with refuses(RequestError):
        FunctionTask(function)


def typed(text: str) -> str:
    return text


def named_like_a_field(question):  # type: ignore[no-untyped-def]  # such a parameter takes any input
    return question


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (typed, [{"input": 1}, {"input": 2}]),
        (named_like_a_field, [{"input": {"question": "a", "answer": "b"}}]),
    ],
)
def test_inputs_of_which_none_fits_are_refused_before_the_first_record(
    function: Callable[..., Any],
    rows: list[dict[str, Any]],
    refuses,  # type: ignore[no-untyped-def]  # a fixture
) -> None:
    with karat.open_store("memory://") as store:
        with refuses(RequestError):
            karat.run(function, rows, store=store)
        assert list(store.runs.list()) == []


def test_an_input_that_does_not_fit_beside_one_that_does_is_a_failed_record() -> None:
    run = karat.run(typed, [{"input": {"a": 1}}, {"input": "x"}], store="memory://")
    assert run.counts.ok >= 1
