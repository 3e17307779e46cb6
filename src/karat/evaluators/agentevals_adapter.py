"""The graph-trajectory evaluators of the `agentevals` package, under karat's contract.

The package is imported when one of them is built, never before. karat's own `graph_trajectory_match` needs
nothing and knows more modes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from karat.errors import MissingDependency
from karat.evaluators._base import Evaluator, as_result
from karat.records import Result
from karat.traces import TraceError


def is_available() -> bool:
    """Whether `agentevals` is installed; it is not imported for that."""
    return find_spec("agentevals") is not None


def graph_trajectory_strict_match(key: str | None = None) -> Evaluator:
    """Whether the steps of two LangGraph threads are the same."""
    _require("graph_trajectory_strict_match")
    from agentevals.graph_trajectory.strict import graph_trajectory_strict_match as function

    return AgentEvalsEvaluator(function, key or "graph_trajectory_strict_match", {})


def graph_trajectory_llm_judge(key: str | None = None, **options: Any) -> Evaluator:
    """A model's judgment of a LangGraph thread; the options (prompt, model, judge, …) are its own."""
    _require("graph_trajectory_llm_judge")
    from agentevals.graph_trajectory.llm import create_graph_trajectory_llm_as_judge

    return AgentEvalsEvaluator(
        create_graph_trajectory_llm_as_judge(**options), key or "graph_trajectory_accuracy", options
    )


class AgentEvalsEvaluator(Evaluator):
    """A function of `agentevals` as an evaluator."""

    name = "agentevals"

    def __init__(self, function: Callable[..., Any], key: str, options: dict[str, Any]) -> None:
        super().__init__(key)
        self.function = function
        self.params = {
            name: value
            if isinstance(value, (str, int, float, bool, type(None), list, dict))
            else repr(type(value))
            for name, value in options.items()
        }

    def evaluate(
        self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> Result:
        """What `agentevals` says; what it raises, or a reply without a score, is an error and no score."""
        given = {"outputs": outputs, "reference_outputs": reference_outputs}
        # A thread holds an input for each of its steps; what the example asked has another shape.
        if isinstance(outputs, Mapping) and outputs.get("inputs") is not None:
            given["inputs"] = outputs["inputs"]
        elif inputs is not None:
            given["inputs"] = inputs
        try:
            found = self.function(**given)
        except Exception as error:
            raise TraceError(f"agentevals could not judge: {type(error).__name__}: {error}") from error
        if isinstance(found, list) and len(found) == 1:
            found = found[0]
        if not isinstance(found, dict) or found.get("score") is None:
            return Result(self.key, error="agentevals gave no score", metadata={"source": "agentevals"})
        score = found["score"]
        fields = {
            "score": float(score),
            "value": score,
            "comment": found.get("comment") or _said(score),
            "metadata": {"source": "agentevals"},
        }
        return as_result(fields, self.key)


def _said(score: Any) -> str:
    """Words for a verdict that comes without any."""
    if score is not False:
        return f"agentevals gave {score}"
    return "agentevals gave False and no reason; graph_trajectory_match names the nodes and transitions that differ"


def _require(name: str) -> None:
    if not is_available():
        raise MissingDependency("agentevals", "agentevals", name)
