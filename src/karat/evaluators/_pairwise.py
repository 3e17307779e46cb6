"""Evaluators that compare runs' outputs: by a metric, by a function, and what an evaluator of all runs may return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from karat.errors import CannotJudge, RequestError
from karat.evaluators._base import (
    Evaluator,
    EvaluatorLike,
    ParameterCheck,
    RunOutput,
    as_result,
    kind_of,
    register_evaluator,
    resolve_evaluator,
)
from karat.records import Example, Output, Result
from karat.registry import load_object
from karat.stats._paired import score_difference


@register_evaluator("by_metric")
class ByMetric(Evaluator):
    """Compare two outputs by the score that another evaluator gives each: the better one wins.

    `metric` is an evaluator of single outputs, by its name or as {name, params}. Scores within `margin` tie.
    """

    name = "by_metric"

    def __init__(self, metric: EvaluatorLike = "exact_match", margin: float = 0.0) -> None:
        name, params, self.metric = resolve_evaluator(metric)
        if kind_of(self.metric) != "single":
            raise RequestError(f"by_metric: {name!r} does not judge single outputs")
        super().__init__(f"by_{self.metric.key}")
        self.margin = ParameterCheck("by_metric").number("margin", margin, 0.0)
        self.params = {"metric": {"name": name, "params": params}, "margin": self.margin}
        if getattr(self.metric, "is_async", False):
            self.compare = self._compare_async  # type: ignore[method-assign]  # it waits for its metric

    def compare(self, example: Example, first: Output, second: Output) -> Any:
        """Return win, loss or tie of the first."""
        return self._verdict(*(self.metric.evaluate(**_arguments(example, each)) for each in (first, second)))

    async def _compare_async(self, example: Example, first: Output, second: Output) -> Result:
        judged = [await self.metric.evaluate_async(**_arguments(example, each)) for each in (first, second)]
        return self._verdict(*judged)

    def _verdict(self, *judged: Any) -> Result:
        a, b = (_score(as_result(each, self.metric.key)) for each in judged)
        ahead = score_difference(b, a)
        better = ahead > 0 if getattr(self.metric, "higher_is_better", True) else ahead < 0
        score = 0.5 if abs(ahead) <= self.margin else float(better)
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
            f"{result.key} returned no score to compare: {result.error or result.comment or 'none'}"
        )
    return result.score


@register_evaluator("by_function")
class ByFunction(Evaluator):
    """Compare two outputs by a function of yours: `function(example, first, second)`.

    `first` and `second` are the runs' outputs, as for a class with `compare`: `first.value` is what the task gave,
    `first.trace` its calls, `first.run` its run. A function may ask for `first_value` and `second_value` instead. It
    returns "win", "tie" or "loss" of the first, a number from 0 to 1, or a Result. `function` is one, or where it is:
    `file.py:better` or `package.module.better`. `both_orders` shows every pair in both orders.
    """

    name = "by_function"

    def __init__(self, function: str | Callable[..., Any], both_orders: bool = False) -> None:
        self.function: Callable[..., Any] = load_object(function) if isinstance(function, str) else function
        if not callable(self.function):
            raise RequestError(f"by_function: {function!r} cannot be called")
        function_name = (
            function if isinstance(function, str) else getattr(self.function, "__qualname__", "function")
        )
        super().__init__(getattr(self.function, "__name__", "function"))
        self.both_orders = ParameterCheck("by_function").flag("both_orders", both_orders)
        self.params = {"function": function_name, "both_orders": both_orders}
        self._names = _accepted_arguments(self.function, self.key)
        if inspect.iscoroutinefunction(self.function):
            self.compare = self._compare_async  # type: ignore[method-assign]  # it waits for the function

    def compare(self, example: Example, first: Output, second: Output) -> Any:
        """Return what the function returns."""
        return self.function(**self._arguments(example, first, second))

    async def _compare_async(self, example: Example, first: Output, second: Output) -> Any:
        return await self.function(**self._arguments(example, first, second))

    def _arguments(self, example: Example, first: Output, second: Output) -> dict[str, Any]:
        have = {
            "example": example,
            "first": first,
            "second": second,
            "first_value": first.value,
            "second_value": second.value,
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
        "first_value",
        "second_value",
        "inputs",
        "input",
        "reference_outputs",
        "expected",
    ]
)


def _accepted_arguments(function: Callable[..., Any], key: str) -> list[str]:
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


def joint_result(given: object, key: str, runs: Sequence[str], higher_is_better: bool = True) -> Result:
    """Read what `evaluate_runs` returned: a score for each run, the runs in order, or one result for all of them.

    Scores are a mapping of run to number. An order is a list of runs (ids or outputs), best first; runs that tie stand
    in a list of their own. The value of the Result is then `{"ranks": […], "scores": […]}`, in the order of its runs; 1
    is the best rank and runs that tie share it.
    """
    result = given if isinstance(given, Result) else None
    value = given if result is None else result.value
    scores = _scores(value, key, runs)
    if scores is not None:
        sign = 1.0 if higher_is_better else -1.0
        ranks = [1 + sum(sign * score_difference(score, other) > 0.0 for other in scores) for score in scores]
        value = {"ranks": ranks, "scores": scores}
    else:
        order = _order(value, key, runs)
        if order is None:
            return as_result(given, key)
        value = {"ranks": order}
    if result is not None:
        return msgspec.structs.replace(result, key=key, value=value)
    best = [run for run, rank in zip(runs, value["ranks"], strict=True) if rank == 1]
    return Result(key, None, value, f"best: {', '.join(best[:5])}{', …' if len(best) > 5 else ''}")


def run_ranks(result: Result) -> list[int] | None:
    """Return the rank of each run in a joint result, in the order of its runs; None where it has none."""
    ranks = result.value.get("ranks") if isinstance(result.value, Mapping) else None
    return list(ranks) if isinstance(ranks, list) else None


def run_scores(result: Result) -> list[float] | None:
    """Return the score of each run in a joint result, in the order of its runs; None where it has none."""
    scores = result.value.get("scores") if isinstance(result.value, Mapping) else None
    return list(scores) if isinstance(scores, list) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0


def _scores(value: Any, key: str, runs: Sequence[str]) -> list[float] | None:
    if isinstance(value, Mapping) and any(run in value for run in runs):
        unknown = [str(run) for run in value if run not in runs]
        missing = [run for run in runs if run not in value]
        wrong = [run for run in runs if run in value and not _is_number(value[run])]
        if unknown or missing or wrong:
            problem = (
                f"unknown run {unknown[0]!r:.80}"
                if unknown
                else f"no score for run {missing[0]!r}"
                if missing
                else f"the score of run {wrong[0]!r} is {value[wrong[0]]!r:.60}, not a number"
            )
            raise ValueError(f"evaluator {key!r}: {problem}")
        return [float(value[run]) for run in runs]
    return None


def _names_run(each: Any) -> bool:
    """Whether an element of a list names a run, or runs that tie."""
    if isinstance(each, (list, tuple)):
        return any(map(_names_run, each))
    return isinstance(each, (str, RunOutput))


def _order(value: Any, key: str, runs: Sequence[str]) -> list[int] | None:
    if not isinstance(value, (list, tuple)) or not any(map(_names_run, value)):
        return None
    ranks: dict[Any, int] = {}
    for group in value:
        tied = group if isinstance(group, (list, tuple)) else [group]
        rank = len(ranks) + 1
        for each in tied:
            run: Any = getattr(each, "run", each)
            if run not in runs or run in ranks:
                problem = (
                    "names a run twice"
                    if run in ranks
                    else f"names {run!r:.80}, which is not one of its runs"
                )
                raise ValueError(f"evaluator {key!r}: the order {problem}")
            ranks[run] = rank
    missing = [run for run in runs if run not in ranks]
    if missing:
        raise ValueError(f"evaluator {key!r}: the order leaves out run {missing[0]!r}")
    return [ranks[run] for run in runs]
