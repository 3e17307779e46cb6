"""The contract of evaluators, and how parts written otherwise are taken in.

An evaluator looks at one output (`evaluate`), at a pair of runs' outputs (`compare`), or at all runs'
outputs of an example (`evaluate_runs`). It is built once and used for every record, from several threads;
it changes nothing it was given. What it cannot judge it raises or returns as `error`; `NotApplicable` says
that an item is not its business. It never turns a failure into a score.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict, cast

import msgspec

from karat.errors import FAILURES, RequestError
from karat.records import Example, Output, Result
from karat.registry import Registry, check_parameters
from karat.serialization import annotations_of, converter

Kind = Literal["single", "pair", "joint"]


class Item(TypedDict, total=False):
    """One judgment asked of `evaluate_many`: the keyword arguments of `evaluate`."""

    outputs: Any
    reference_outputs: Any
    inputs: Any
    example: Example
    output: Output


class Evaluator:
    """Base of karat's evaluators: override `evaluate`, or `compare`, or `evaluate_runs`.

    `name` is the default key of its results. `reuse = False` says that computing a result is cheaper than
    looking an earlier one up. `batched = True` says that `evaluate_many` is worth calling.
    """

    name: ClassVar[str] = ""
    reuse: ClassVar[bool] = True
    batched: ClassVar[bool] = False
    needs_reference: bool = False
    """Whether it can judge nothing without a reference: then data that have none are refused before a run."""
    version: ClassVar[str | None] = None
    """Stands in for the source in the fingerprint, where the source says too much or too little."""
    example: ClassVar[Mapping[str, Any]] = {}
    """A use of it, for people: `params`, `outputs`, `reference_outputs`, `inputs` and the `score`."""

    key: str
    params: dict[str, Any]
    """What it was built with, JSON-able; part of its fingerprint."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key or self.name or type(self).__name__

    def evaluate(
        self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> Result:
        """The judgment of one output. Inside a stage `context` has `example` and `output`, with its trace."""
        raise RequestError(f"evaluator {self.key!r} does not judge single outputs")

    async def evaluate_async(
        self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> Result:
        """The same, for evaluators that wait on something. Override it together with `is_async = True`."""
        return await asyncio.to_thread(
            lambda: self.evaluate(
                outputs=outputs, reference_outputs=reference_outputs, inputs=inputs, **context
            )
        )

    is_async: ClassVar[bool] = False

    def evaluate_many(self, items: Sequence[Item]) -> list[Result | Exception]:
        """Many at once; an item that cannot be judged yields its exception in its place."""
        out: list[Result | Exception] = []
        for item in items:
            try:
                out.append(self.evaluate(**item))
            except Exception as error:
                out.append(error)
        return out

    def configuration(self) -> Any:
        """What the evaluator's results depend on beside its code: its parameters, JSON-able."""
        return getattr(self, "params", {})


evaluators: Registry[Callable[..., Any]] = Registry(
    "evaluator",
    builtin=[
        *(
            f"karat.evaluators.{module}"
            for module in (
                "text",
                "answers",
                "overlap",
                "structured",
                "similarity",
                "trajectory",
                "comparison",
                "from_output",
            )
        ),
        "karat.graph.metrics",
    ],
)

register_evaluator = evaluators.register


def kind_of(evaluator: Any) -> Kind:
    """Whether an evaluator judges single outputs, pairs or all runs at once: from the methods it has."""
    cls = evaluator if isinstance(evaluator, type) else type(evaluator)
    if callable(getattr(cls, "compare", None)):
        return "pair"
    if callable(getattr(cls, "evaluate_runs", None)):
        return "joint"
    return "single"


_VALUES = frozenset({"outputs", "output", "reference_outputs", "expected", "inputs", "input"})


class FunctionEvaluator(Evaluator):
    """A plain function as an evaluator.

    It asks by parameter name for what it needs: `outputs` (or `output`), `reference_outputs` (or
    `expected`), `inputs` (or `input`), `example`, `trace`; values are decoded to the types it annotates. It returns a
    Result, a number, a bool, None, or a label.
    """

    def __init__(self, function: Callable[..., Any], key: str | None = None) -> None:
        super().__init__(key or getattr(function, "__name__", "function"))
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)  # type: ignore[misc]  # per function
        parameters = inspect.signature(function).parameters
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self._names = [p.name for p in parameters.values() if p.kind is not p.VAR_KEYWORD]
        known = {"outputs", "output", "reference_outputs", "expected", "inputs", "input", "example", "trace"}
        unknown = [
            p.name
            for p in parameters.values()
            if p.name not in known and p.default is p.empty and p.kind is not p.VAR_KEYWORD
        ]
        if unknown:
            raise RequestError(
                f"evaluator {self.key!r} asks for {unknown[0]!r};"
                f" a function may ask for {', '.join(sorted(known))}"
            )
        annotated = annotations_of(function)
        converters = {name: converter(annotated.get(name)) for name in self._names if name in _VALUES}
        self._converters = {name: convert for name, convert in converters.items() if convert is not None}

    def _arguments(
        self, outputs: Any, reference: Any, inputs: Any, context: Mapping[str, Any]
    ) -> dict[str, Any]:
        output = context.get("output")
        have = {
            "outputs": outputs,
            "output": outputs,
            "reference_outputs": reference,
            "expected": reference,
            "inputs": inputs,
            "input": inputs,
            "example": context.get("example"),
            "trace": output.trace if isinstance(output, Output) else [],
        }
        asked = {name: have[name] for name in self._names if name in have}
        for name, convert in self._converters.items():
            if asked[name] is not None:
                asked[name] = convert(asked[name])
        if self._takes_all:
            return {"outputs": outputs, "reference_outputs": reference, "inputs": inputs, **context, **asked}
        return asked

    def evaluate(
        self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> Result:
        return as_result(
            self.function(**self._arguments(outputs, reference_outputs, inputs, context)), self.key
        )

    async def evaluate_async(
        self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any
    ) -> Result:
        if not self.is_async:
            return await super().evaluate_async(
                outputs=outputs, reference_outputs=reference_outputs, inputs=inputs, **context
            )
        given = self.function(**self._arguments(outputs, reference_outputs, inputs, context))
        return as_result(await cast(Awaitable[Any], given), self.key)


def as_result(given: Any, key: str) -> Result:
    """What an evaluator returned, as a Result under the key it has in this evaluation."""
    if isinstance(given, Result):
        return given if given.key == key else msgspec.structs.replace(given, key=key)
    if given is None:
        return Result(key=key, comment="the function gave no verdict")
    if isinstance(given, (bool, int, float)):
        return Result(key=key, score=float(given), value=given, comment=f"the function gave {given}")
    if isinstance(given, str):
        return Result(key=key, value=given, comment=f"the function gave {given[:60]!r}")
    if isinstance(given, Mapping):
        fields = {k: v for k, v in given.items() if k in Result.__struct_fields__ and k != "key"}
        if fields and len(fields) == len([k for k in given if k != "key"]):
            return Result(key=key, **fields)
        return Result(key=key, value=dict(given))
    raise TypeError(f"evaluator {key!r} returned {type(given).__name__}, not a Result, a number or a label")


def build_evaluator(name: str, params: Mapping[str, Any] | None = None, key: str | None = None) -> Any:
    """An evaluator from its name and parameters; a parameter it does not take is named."""
    if not isinstance(name, str):
        raise RequestError(f"an evaluator is asked for by its name, not by {name!r}")
    if params is not None and not (
        isinstance(params, Mapping) and all(isinstance(each, str) for each in params)
    ):
        raise RequestError(
            f"evaluator {name!r}: params is an object with a name for each value, not {params!r}"
        )
    if key is not None and not isinstance(key, str):
        raise RequestError(f"evaluator {name!r}: key is the name of its results, not {key!r}")
    part = evaluators.get(name)
    return _construct(part, name, dict(params or {}), key)


def _construct(part: Any, name: str, params: dict[str, Any], key: str | None) -> Any:
    if isinstance(part, type) or getattr(part, "builds_evaluator", False):
        if isinstance(part, type) and hasattr(part, "validate_config") and not issubclass(part, Evaluator):
            raise RequestError(f"{name} is a unit metric: among evaluators it is written unit:{name}")
        check_parameters(part, params, f"evaluator {name!r}")
        try:
            evaluator = part(**params)
        except RequestError:
            raise
        except (TypeError, ValueError) as error:
            raise RequestError(f"evaluator {name!r}: {error}") from error
        except FAILURES as error:
            raise RequestError(f"evaluator {name!r}: {type(error).__name__}: {error}") from error
        evaluator.key = key or getattr(evaluator, "key", None) or name
        if not hasattr(evaluator, "params"):
            evaluator.params = params
        return evaluator
    if params:
        raise RequestError(f"evaluator {name!r} is a function and takes no parameters")
    return FunctionEvaluator(part, key)


class ResolvedEvaluator(NamedTuple):
    """A built evaluator with the name and parameters it was asked for by: built once, passed on to `evaluate`."""

    name: str
    params: dict[str, Any]
    evaluator: Any


def resolve_evaluator(spec: Any) -> ResolvedEvaluator:
    """Build the evaluator of a name, a `{name, params, key}`, a function, a class or an instance."""
    return spec if isinstance(spec, ResolvedEvaluator) else ResolvedEvaluator(*_resolve_evaluator(spec))


def _resolve_evaluator(spec: Any) -> tuple[str, dict[str, Any], Any]:
    if isinstance(spec, str):
        return spec, {}, build_evaluator(spec)
    if isinstance(spec, Mapping):
        if "from_output" in spec and set(spec) <= {"from_output", "key"}:  # the field is all there is to say
            params = {"field": spec["from_output"]}
            spec = {"name": "from_output", "params": params, "key": spec.get("key")}
        unknown = [k for k in spec if k not in ("name", "params", "key")]
        if unknown or "name" not in spec:
            problem = f"has no field {unknown[0]!r}" if unknown else "needs a name"
            raise RequestError(f"evaluator {dict(spec)!r} {problem}: it is written {{name, params, key}}")
        built = build_evaluator(spec["name"], spec.get("params"), spec.get("key"))
        return spec["name"], dict(spec.get("params") or {}), built
    if isinstance(spec, type):
        return spec.__name__, {}, _construct(spec, spec.__name__, {}, None)
    if any(callable(getattr(spec, method, None)) for method in ("evaluate", "compare", "evaluate_runs")):
        if not getattr(spec, "key", None):
            spec.key = getattr(spec, "name", None) or type(spec).__name__
        return (
            getattr(spec, "name", None) or type(spec).__name__,
            dict(getattr(spec, "params", {}) or {}),
            spec,
        )
    if callable(spec):
        function = FunctionEvaluator(spec)
        return function.key, {}, function
    raise RequestError(
        f"{spec!r} is not an evaluator: give a name, {{name, params, key}}, a function or an object"
    )


def list_evaluators() -> list[dict[str, Any]]:
    """Every registered evaluator: `{name, description, params, …}`."""
    return [evaluators.describe(name) for name in evaluators.list()]
