"""Evaluators of the `agentevals` and `openevals` packages under karat's contract.

`karat.evaluate` accepts their functions as they are. The packages are imported when an evaluator of theirs is built,
never before. karat's own `trajectory_match` and `graph_trajectory_match` need neither and have more modes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from karat.errors import MissingDependency
from karat.evaluators._base import Evaluator, as_result
from karat.records import Result
from karat.traces import TraceError

PACKAGES = ("agentevals", "openevals")


def is_available() -> bool:
    """Return whether `agentevals` is installed, without importing it."""
    return find_spec("agentevals") is not None


def graph_trajectory_strict_match(key: str | None = None) -> Evaluator:
    """Build an evaluator that compares the steps of two LangGraph threads."""
    _require("graph_trajectory_strict_match")
    from agentevals.graph_trajectory.strict import graph_trajectory_strict_match as function

    return AgentEvalsEvaluator(function, key or "graph_trajectory_strict_match", {})


def graph_trajectory_llm_judge(key: str | None = None, **options: Any) -> Evaluator:
    """Build an evaluator that asks a model about a LangGraph thread; it takes the options of agentevals."""
    _require("graph_trajectory_llm_judge")
    from agentevals.graph_trajectory.llm import create_graph_trajectory_llm_as_judge

    return AgentEvalsEvaluator(
        create_graph_trajectory_llm_as_judge(**options), key or "graph_trajectory_accuracy", options
    )


def is_foreign(function: object) -> bool:
    """Return whether a function comes from one of the packages."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in PACKAGES


def adapt(function: Callable[..., Any], key: str | None = None) -> Evaluator:
    """Return a function of one of the packages as an evaluator; the key is what its results are called there."""
    options = _options(function)
    return AgentEvalsEvaluator(function, key or _key(function, options), options)


class AgentEvalsEvaluator(Evaluator):
    """A function of `agentevals` or `openevals` as an evaluator."""

    name = "agentevals"

    def __init__(self, function: Callable[..., Any], key: str, options: dict[str, Any]) -> None:
        super().__init__(key)
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        package = str(function.__module__).partition(".")[0]
        self.package = package if package in PACKAGES else "agentevals"
        parameters = inspect.signature(function).parameters
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        # The JSON evaluators of openevals pass an `inputs` of their own on, beside everything they are given.
        passes_on = takes_all and function.__module__ != "openevals.json.match"
        self._takes_inputs = passes_on or "inputs" in parameters
        self.params = {
            name: value
            if isinstance(value, (str, int, float, bool, type(None), list, dict))
            else repr(type(value))
            for name, value in {"function": _name(function), **options}.items()
        }
        if any(callable(value) for value in options.values()):
            # What a judge or a function answers cannot be known from its type.
            self.reuse = False

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        """Return the package's verdict. An exception or a reply without a score is an error and no score."""
        try:
            found = self.function(**self._arguments(outputs, reference_outputs, inputs))
        except Exception as error:
            raise self._failure(error) from error
        return self._result(found)

    async def evaluate_async(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        """Do the same; functions that are coroutines are awaited."""
        if not self.is_async:
            return await super().evaluate_async(
                outputs=outputs, reference_outputs=reference_outputs, inputs=inputs, **context
            )
        try:
            found = await self.function(**self._arguments(outputs, reference_outputs, inputs))
        except Exception as error:
            raise self._failure(error) from error
        return self._result(found)

    def _arguments(self, outputs: Any, reference_outputs: Any, inputs: Any) -> dict[str, Any]:
        given = {"outputs": outputs, "reference_outputs": reference_outputs}
        if not self._takes_inputs:
            return given
        # A thread holds an input for each of its steps; what the example asked has another shape.
        if isinstance(outputs, Mapping) and outputs.get("inputs") is not None:
            given["inputs"] = outputs["inputs"]
        elif inputs is not None:
            given["inputs"] = inputs
        return given

    def _hint(self, score: Any) -> str:
        """Return a comment that explains more than False."""
        if score is not False or self.package != "agentevals":
            return ""
        own = "graph_trajectory_match" if "graph" in _name(self.function) else "trajectory_match"
        what = "nodes and transitions" if own.startswith("graph") else "calls"
        return f" and no reason; {own} names the {what} that differ"

    def _failure(self, error: Exception) -> TraceError:
        return TraceError(f"{self.package} could not judge: {type(error).__name__}: {error}")

    def _result(self, found: Any) -> Result:
        metadata: dict[str, Any] = {"source": self.package}
        if isinstance(found, list) and len(found) == 1:
            found = found[0]
        if isinstance(found, list):
            problem = f"{self.package} returned {len(found)} results for one output: set its aggregator"
            return Result(self.key, error=problem, metadata=metadata)
        score = found.get("score") if isinstance(found, Mapping) else found
        if not isinstance(score, (bool, int, float)):
            return Result(self.key, error=f"{self.package} returned no score", metadata=metadata)
        details = found if isinstance(found, Mapping) else {}
        if isinstance(details.get("metadata"), Mapping):
            metadata = {**details["metadata"], **metadata}
        comment = details.get("comment") or f"{self.package} returned {score}{self._hint(score)}"
        return as_result(
            {"score": float(score), "value": score, "comment": comment, "metadata": metadata}, self.key
        )


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _options(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the values that a function was created with: its closure."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=False)}


def _key(function: Callable[..., Any], options: Mapping[str, Any]) -> str:
    if isinstance(options.get("feedback_key"), str):
        return str(options["feedback_key"])
    if isinstance(options.get("trajectory_match_mode"), str):
        return f"trajectory_{options['trajectory_match_mode']}_match"
    name = getattr(function, "__name__", "")
    if name and "wrapped" not in name:
        return name
    return "_".join(str(function.__module__).split(".")[1:]) or "agentevals"


def _require(name: str) -> None:
    if not is_available():
        raise MissingDependency("agentevals", "agentevals", name)
