"""Evaluators that compare two runs' outputs: by a metric, or by a function of yours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from karat.errors import CannotJudge, RequestError
from karat.evaluators.base import (
    Evaluator,
    as_result,
    kind_of,
    register_evaluator,
    resolve_evaluator,
)
from karat.evaluators.parameters import ParameterCheck
from karat.records import Example, Output, Result
from karat.registry import load_object


@register_evaluator("by_metric")
class ByMetric(Evaluator):
    """Compares two outputs by the score that another evaluator gives each: the higher one wins.

    `metric` is an evaluator of single outputs, by its name or as {name, params}. Scores within `margin` tie.
    """

    name = "by_metric"

    def __init__(self, metric: Any = "exact_match", margin: float = 0.0) -> None:
        name, params, self.metric = resolve_evaluator(metric)
        if kind_of(self.metric) != "single":
            raise RequestError(f"by_metric: {name!r} does not judge single outputs")
        super().__init__(f"by_{self.metric.key}")
        self.margin = ParameterCheck("by_metric").number("margin", margin, 0.0)
        self.params = {"metric": {"name": name, "params": params}, "margin": self.margin}
        if getattr(self.metric, "is_async", False):
            self.compare = self._compare_async  # type: ignore[method-assign]  # it waits for its metric

    def compare(self, example: Example, first: Output, second: Output) -> Any:
        """Win, loss or tie for the first."""
        return self._verdict(*(self.metric.evaluate(**_arguments(example, each)) for each in (first, second)))

    async def _compare_async(self, example: Example, first: Output, second: Output) -> Result:
        judged = [await self.metric.evaluate_async(**_arguments(example, each)) for each in (first, second)]
        return self._verdict(*judged)

    def _verdict(self, *judged: Any) -> Result:
        a, b = (_score(as_result(each, self.metric.key)) for each in judged)
        score = 0.5 if abs(a - b) <= self.margin else float(a > b)
        word = {1.0: "win", 0.5: "tie", 0.0: "loss"}[score]
        return Result(self.key, score, word, f"{self.metric.key}: {a:g} and {b:g}", {"first": a, "second": b})


def _arguments(example: Example, output: Output) -> dict[str, Any]:
    return {
        "outputs": output.value,
        "reference_outputs": example.expected,
        "inputs": example.input,
        "example": example,
        "output": output,
    }


def _score(result: Result) -> float:
    if result.error is not None or result.score is None:
        raise CannotJudge(
            f"{result.key} gave no score to compare: {result.error or result.comment or 'none'}"
        )
    return result.score


@register_evaluator("by_function")
class ByFunction(Evaluator):
    """Compares two outputs by a function of yours: `function(example, first, second)`.

    It says win, loss or tie for the first, or 1, 0 and 0.5, or gives a Result. `first` and `second` are what the
    runs gave; ask for `first_output` and `second_output` to see the whole outputs. `function` is one, or where it
    is: `file.py:better` or `package.module.better`. `both_orders` shows every pair in both orders.
    """

    name = "by_function"

    def __init__(self, function: Any, both_orders: bool = False) -> None:
        self.function: Callable[..., Any] = load_object(function) if isinstance(function, str) else function
        if not callable(self.function):
            raise RequestError(f"by_function: {function!r} cannot be called")
        said = function if isinstance(function, str) else getattr(self.function, "__qualname__", "function")
        super().__init__(getattr(self.function, "__name__", "function"))
        self.both_orders = ParameterCheck("by_function").flag("both_orders", both_orders)
        self.params = {"function": said, "both_orders": both_orders}
        self._names = _asked(self.function, self.key)
        if inspect.iscoroutinefunction(self.function):
            self.compare = self._compare_async  # type: ignore[method-assign]  # it waits for the function

    def compare(self, example: Example, first: Output, second: Output) -> Any:
        """What the function says."""
        return self.function(**self._arguments(example, first, second))

    async def _compare_async(self, example: Example, first: Output, second: Output) -> Any:
        return await self.function(**self._arguments(example, first, second))

    def _arguments(self, example: Example, first: Output, second: Output) -> dict[str, Any]:
        have = {
            "example": example,
            "first": first.value,
            "second": second.value,
            "first_output": first,
            "second_output": second,
            "inputs": example.input,
            "input": example.input,
            "reference_outputs": example.expected,
            "expected": example.expected,
        }
        return {name: have[name] for name in self._names}


KNOWN = frozenset(
    [
        "example",
        "first",
        "second",
        "first_output",
        "second_output",
        "inputs",
        "input",
        "reference_outputs",
        "expected",
    ]
)


def _asked(function: Callable[..., Any], key: str) -> list[str]:
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise RequestError(f"by_function: the parameters of {key!r} cannot be read") from None
    for name, parameter in parameters.items():
        if name not in KNOWN and parameter.default is parameter.empty:
            raise RequestError(
                f"comparison {key!r} asks for {name!r}; a function may ask for {', '.join(sorted(KNOWN))}"
            )
    return [name for name in parameters if name in KNOWN]
