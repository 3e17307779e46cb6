"""The contract of evaluators, the registry, and how functions and foreign objects become evaluators.

An evaluator judges one output (`evaluate`), a pair of runs' outputs (`compare`), or all runs' outputs of an example
(`evaluate_runs`). It is built once and used for every record, from several threads; it changes nothing it is given.
Where it cannot judge, it raises or returns an `error`; `NotApplicable` skips an item. It never turns a failure into a
score.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar, cast, overload

import msgspec

from karat.errors import FAILURES, RequestError, did_you_mean, for_thread
from karat.keys import code_fingerprint
from karat.records import Example, Output, Result, Value
from karat.registry import SHIPPED_PLUGIN, Registry, check_parameters, check_spec, qualified_name
from karat.serialization import annotations_of, converter

# Checks of the parameters of evaluators and unit metrics, made when they are built.

Paths = str | Mapping[str, str] | None
"""A path for output and reference alike, or one for each."""


class ParameterCheck:
    """Checks of values one by one, each of which returns its value or raises a `RequestError`."""

    def __init__(self, who: str) -> None:
        self.who = who

    def refuse(self, name: str, wanted: str, value: object) -> RequestError:
        """The error for an invalid parameter: what it must be, and what was given."""
        try:
            given = repr(value)
        except Exception:  # a foreign object's repr may raise anything
            given = f"{type(value).__name__} object"
        return RequestError(f"{self.who}: {name} must be {wanted}, not {given[:80]}")

    def flag(self, name: str, value: object) -> bool:
        """True or false, and nothing that merely looks like it."""
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false", value)
        return value

    def number(self, name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite number within bounds."""
        wanted = "a number"
        if low != -math.inf:
            wanted += f" of {low:g} or more" if high == math.inf else f" between {low:g} and {high:g}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(name, wanted, value)
        if not math.isfinite(value) or not low <= value <= high:
            raise self.refuse(name, wanted, value)
        return float(value)

    def whole(self, name: str, value: object, low: int) -> int:
        """Check an integer of at least `low`."""
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.refuse(name, f"a whole number of {low} or more", value)
        return value

    def choice(self, name: str, value: object, known: Iterable[str]) -> str:
        """Check a word from a list of choices."""
        known = list(known)
        if not isinstance(value, str) or value not in known:
            hint = did_you_mean(value, known) if isinstance(value, str) else f"known: {', '.join(known)}"
            raise RequestError(f"{self.who}: {name} has no {str(value)[:80]!r}: {hint}")
        return value

    def mapping(self, name: str, value: object) -> dict[str, Any]:
        """An object whose keys are texts, as a copy; None is an empty one."""
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.refuse(name, "an object of names and values", value)
        return dict(value)

    def text(self, name: str, value: object) -> str:
        """Check a text that is not empty."""
        if not isinstance(value, str) or not value:
            raise self.refuse(name, "non-empty text", value)
        return value

    def path(self, name: str, value: object) -> str | None:
        """A dotted path, or None for the value itself."""
        return None if value is None else self.text(name, value)

    def paths(self, name: str, value: object) -> tuple[str | None, str | None]:
        """Read the paths in the output and in the reference: one dotted path for both, or `{output, reference}`."""
        if not isinstance(value, Mapping):
            return (self.path(name, value),) * 2
        for side in value:
            self.choice(name, side, ["output", "reference"])
        output, reference = (self.path(f"{name}.{side}", value.get(side)) for side in ("output", "reference"))
        return output, reference

    def texts(self, name: str, value: object) -> list[str]:
        """Return one text or a list of texts as a list; an empty text is an error."""
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)) or not value:
            raise self.refuse(name, "text or a list of texts", value)
        return [self.text(name, each) for each in value]


def code_of(function: Callable[..., Any]) -> str:
    """A hash of the source; a unique value if the source is unknown, so that no cached result is reused for it."""
    is_placed = getattr(function, "__module__", None) is not None
    code = code_fingerprint(function) if is_placed else None
    if code is None:
        return uuid.uuid4().hex
    # All lambdas of a function have one name; their lines tell them apart.
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", "")
    return f"{code}:{line}"


def named(given: object) -> Any:
    """A parameter as JSON: functions in it by their names."""
    if callable(given):
        return qualified_name(given)
    if isinstance(given, Mapping):
        return {key: named(each) for key, each in given.items()}
    return [named(each) for each in given] if isinstance(given, (list, tuple)) else given


def codes_in(given: object) -> list[str]:
    """The code of every function in a parameter, in its order."""
    if callable(given):
        return [code_of(given)]
    if isinstance(given, Mapping):
        return [code for each in given.values() for code in codes_in(each)]
    return [code for each in given for code in codes_in(each)] if isinstance(given, (list, tuple)) else []


Kind = Literal["single", "pair", "joint"]

Bounds = tuple[float | None, float | None]
"""The lowest and the highest score that an evaluator can give; None for no limit on that side."""


class Item(TypedDict, total=False):
    """One judgment asked of `evaluate_many`: the keyword arguments of `evaluate`."""

    outputs: Any
    reference_outputs: Any
    inputs: Any
    example: Example
    output: Output


class RunOutput(Output, frozen=True, omit_defaults=True, kw_only=True):
    """An output with the id of its run: what `compare` and `evaluate_runs` get."""

    run: str


class ComparesPairs(Protocol):
    """An object that compares the outputs of two runs."""

    def compare(self, example: Example, first: RunOutput, second: RunOutput, /) -> Any:
        """Return win, tie or loss of the first, a number from 0 to 1, or a Result."""


class EvaluatesRuns(Protocol):
    """An object that judges the outputs of all runs of an example together."""

    def evaluate_runs(self, example: Example, outputs: list[RunOutput], /) -> Any:
        """Return a score for each run (`{run: score}`), the runs in order, best first, or a Result."""


class Scores(Protocol):
    """The declared range and direction of scores: an evaluator, or its stored description."""

    @property
    def key(self) -> str:
        """The key of the results."""


class Evaluator:
    """The base class of evaluators: override `evaluate`, `compare` or `evaluate_runs`.

    `compare(example, first, second)` judges two runs' outputs, each a `RunOutput`. It returns "win", "tie" or "loss" of
    the first, a number from 0 (loss) to 1 (win), or a Result with either. `evaluate_runs(example, outputs)` judges all
    runs' outputs of an example, a list of `RunOutput`. It returns a score for each run (`{run: score}`), or the runs in
    order, best first, where runs that tie stand in a list of their own (`["run-a", ["run-b", "run-c"]]`).
    """

    name: ClassVar[str] = ""
    """The default key of its results."""
    bounds: Bounds | None = (0.0, 1.0)
    """The lowest and the highest score it can give, None for no limit on that side; None where nothing is known."""
    higher_is_better: bool = True
    """Whether a higher score is a better one; False for distances, error rates and counts of mistakes."""
    pass_fail: bool = False
    """Whether each score is 0 or 1: the usual metric is then the accuracy, otherwise the mean."""
    reuse: bool = True
    """False where computing a result is cheaper than looking up an earlier one."""
    batched: bool = False
    """Whether `evaluate_many` is faster than one `evaluate` after the other."""
    is_async: bool = False
    """Whether `evaluate_async` is to be called instead of `evaluate`."""
    needs_reference: bool = False
    """Whether it can judge nothing without a reference: data that have none are then refused before a run."""
    gives_labels: bool | None = None
    """Whether its results have the labels `golden` and `predicted`, which classes are counted by; None: unknown."""
    version: str | None = None
    """Replaces the source code in the fingerprint, where the source says too much or too little."""
    example: ClassVar[Mapping[str, Any]] = {}
    """A use of it, for people: `params`, `outputs`, `reference_outputs`, `inputs` and the `score`."""

    names_models: bool = False
    """Whether `configuration` names every model it asks; then its fingerprint leaves out variables like KARAT_MODEL."""

    key: str
    params: dict[str, Any]
    """What it was built with, JSON-able; part of its fingerprint."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key or self.name or type(self).__name__

    def evaluate(
        self, *, outputs: Value, reference_outputs: Value = None, inputs: Value = None, **context: Any
    ) -> Result:
        """Judge one output. Inside a stage, `context` has `example` and `output`, with its trace."""
        raise RequestError(f"evaluator {self.key!r} does not judge single outputs")

    async def evaluate_async(
        self, *, outputs: Value, reference_outputs: Value = None, inputs: Value = None, **context: Any
    ) -> Result:
        """Judge one output on the event loop. Override it together with `is_async = True`."""
        return await asyncio.to_thread(
            for_thread(self.evaluate),
            outputs=outputs,
            reference_outputs=reference_outputs,
            inputs=inputs,
            **context,
        )

    def evaluate_many(self, items: Sequence[Item]) -> list[Result | Exception]:
        """Judge many outputs; the exception of an item that cannot be judged stands in its place."""
        out: list[Result | Exception] = []
        for item in items:
            try:
                out.append(self.evaluate(**item))
            except Exception as error:
                out.append(error)
        return out

    def configuration(self) -> Any:
        """Return what the results depend on beside the code: the parameters, JSON-able."""
        return getattr(self, "params", {})


Part = TypeVar("Part", bound=Callable[..., Any])


class EvaluatorRegistry(Registry[Callable[..., Any]]):
    """The evaluators by name, each with the description it was registered with."""

    def __init__(self) -> None:
        modules = (
            "_text",
            "_answers",
            "_structured",
            "_similarity",
            "trajectory",
            "_pairwise",
            "judges",
        )
        builtin = [*(f"karat.evaluators.{module}" for module in modules), SHIPPED_PLUGIN]
        super().__init__("evaluator", builtin=builtin)
        self.descriptions: dict[str, str] = {}
        self.declared: dict[str, dict[str, Any]] = {}
        """`bounds`, `higher_is_better` and `pass_fail` of the names that were registered with them."""

    def describe(self, name: str) -> dict[str, Any]:
        """Describe an evaluator: its name, description, parameters, bounds and direction."""
        part = self.get(name)
        out = super().describe(name)
        declared = self.declared.get(name, {})
        bounds = declared.get("bounds", getattr(part, "bounds", None))
        return {
            **out,
            "description": self.descriptions.get(name) or out["description"],
            "bounds": list(bounds) if bounds is not None else None,
            "higher_is_better": declared.get("higher_is_better", getattr(part, "higher_is_better", True)),
            "pass_fail": declared.get("pass_fail", _passes_or_fails(part)),
        }


evaluators: EvaluatorRegistry = EvaluatorRegistry()


@overload
def register_evaluator(
    name: str,
    factory: None = None,
    description: str = "",
    *,
    bounds: Bounds | None = None,
    higher_is_better: bool | None = None,
    pass_fail: bool | None = None,
) -> Callable[[Part], Part]: ...


@overload
def register_evaluator(
    name: str,
    factory: Part,
    description: str = "",
    *,
    bounds: Bounds | None = None,
    higher_is_better: bool | None = None,
    pass_fail: bool | None = None,
) -> Part: ...


def register_evaluator(
    name: str,
    factory: Part | None = None,
    description: str = "",
    *,
    bounds: Bounds | None = None,
    higher_is_better: bool | None = None,
    pass_fail: bool | None = None,
) -> Part | Callable[[Part], Part]:
    """Register an evaluator under a name: a class, a function that judges, or a function that builds one.

    Without a factory it is a decorator. `bounds`, `higher_is_better` and `pass_fail` say of a
    function what a class declares itself.
    """

    def add(part: Part) -> Part:
        if not callable(part):
            raise RequestError(f"evaluator {name!r}: give a class or a function, not {part!r:.60}")
        evaluators.register(name)(part if isinstance(part, type) or _judges(part) else _factory(part))
        if description:
            evaluators.descriptions[name] = description
        if declared := _check_declarations(name, bounds, higher_is_better, pass_fail):
            evaluators.declared[name] = declared
        return part

    return add if factory is None else add(factory)


def _judges(function: Callable[..., Any]) -> bool:
    """Whether a function takes `outputs`, or any keyword."""
    if getattr(function, "builds_evaluator", False):
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name in ASKED or p.kind is p.VAR_KEYWORD for p in parameters)


def _factory(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def build(*args: Any, **params: Any) -> Any:
        return function(*args, **params)

    build.builds_evaluator = True  # type: ignore[attr-defined]  # `_construct` asks for it
    return build


def _check_declarations(who: str, bounds: Any, higher_is_better: Any, pass_fail: Any) -> dict[str, Any]:
    """Check `bounds`, `higher_is_better` and `pass_fail`, and return those that are given."""
    out: dict[str, Any] = {}
    if bounds is not None:
        out["bounds"] = checked_bounds(bounds, f"evaluator {who!r}")
    for name, value in (("higher_is_better", higher_is_better), ("pass_fail", pass_fail)):
        if value is not None:
            if not isinstance(value, bool):
                raise RequestError(f"evaluator {who!r}: {name} must be true or false, not {value!r:.60}")
            out[name] = value
    return out


def _passes_or_fails(part: Any) -> bool:
    """Whether an evaluator declares that each score is 0 or 1; a function that returns a bool does."""
    declared = getattr(part, "pass_fail", None)
    if declared is None and not isinstance(part, type):
        return annotations_of(part).get("return") is bool
    return bool(declared)


def checked_bounds(bounds: object, who: str) -> Bounds | None:
    """Return bounds as `(low, high)`, where an infinite limit is None; None for bounds that are not declared."""
    if bounds is None:
        return None
    limits: list[float | None] = []
    for value in bounds if isinstance(bounds, (list, tuple)) else ():
        if value is None:
            limits.append(None)
        elif not isinstance(value, bool) and isinstance(value, (int, float)) and not math.isnan(value):
            limits.append(None if math.isinf(value) else float(value))
    if not isinstance(bounds, (list, tuple)) or len(limits) != 2 or len(bounds) != 2:
        raise RequestError(
            f"{who}: bounds must be [lowest, highest] as numbers, or null for no limit, not {bounds!r:.60}"
        )
    low, high = limits
    if low is not None and high is not None and low >= high:
        raise RequestError(f"{who}: bounds are [lowest, highest], and {low:g} is not below {high:g}")
    return low, high


def score_range(evaluator: Scores) -> tuple[float | None, float | None]:
    """Return the declared range of an evaluator's (or its spec's) scores; None for a side without a bound."""
    bounds = checked_bounds(getattr(evaluator, "bounds", None), f"evaluator {evaluator.key!r}")
    return (0.0, 1.0) if getattr(evaluator, "pass_fail", False) else bounds or (None, None)


def threshold_problem(threshold: float, evaluator: Scores) -> str | None:
    """Why no score of an evaluator (or of its spec) can be a threshold, by the bounds it declares; None if one can."""
    low, high = score_range(evaluator)
    if (low is None or low <= threshold) and (high is None or threshold <= high):
        return None
    if low is None or high is None:
        said = f"are {high:g} at most" if low is None else f"are {low:g} at least"
    else:
        said = f"lie between {low:g} and {high:g}"
    fix = f"; for {threshold:g} % write {threshold / 100:g}" if high == 1 and 1 < threshold <= 100 else ""
    return f"the scores of {evaluator.key!r} {said}{fix}"


def kind_of(evaluator: object) -> Kind:
    """Return whether an evaluator judges single outputs, pairs or all runs at once: from the methods it has."""
    cls = evaluator if isinstance(evaluator, type) else type(evaluator)
    if callable(getattr(cls, "compare", None)):
        return "pair"
    if callable(getattr(cls, "evaluate_runs", None)):
        return "joint"
    return "single"


_VALUES = frozenset({"outputs", "output", "reference_outputs", "expected", "inputs", "input"})
ASKED = frozenset({*_VALUES, "example", "trace"})
"""What a function that judges may ask for by parameter name."""


class FunctionEvaluator(Evaluator):
    """A plain function as an evaluator.

    It asks by parameter name for what it needs: `outputs` (or `output`), `reference_outputs` (or
    `expected`), `inputs` (or `input`), `example`, `trace`; values are decoded to the types it annotates. It returns a
    Result, a number, a bool, None, or a label.
    """

    bounds = None

    def __init__(self, function: Callable[..., Any], key: str | None = None) -> None:
        super().__init__(key or getattr(function, "__name__", "function"))
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        for name in ("bounds", "higher_is_better"):
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))
        self.pass_fail = _passes_or_fails(function)
        parameters = inspect.signature(function).parameters
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self._names = [p.name for p in parameters.values() if p.kind is not p.VAR_KEYWORD]
        unknown = [
            p.name
            for p in parameters.values()
            if p.name not in ASKED and p.default is p.empty and p.kind is not p.VAR_KEYWORD
        ]
        if unknown:
            raise RequestError(
                f"evaluator {self.key!r} asks for {unknown[0]!r};"
                f" a function may ask for {', '.join(sorted(ASKED))}"
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
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        return as_result(
            self.function(**self._arguments(outputs, reference_outputs, inputs, context)), self.key
        )

    async def evaluate_async(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        if not self.is_async:
            return await super().evaluate_async(
                outputs=outputs, reference_outputs=reference_outputs, inputs=inputs, **context
            )
        given = self.function(**self._arguments(outputs, reference_outputs, inputs, context))
        return as_result(await cast(Awaitable[Any], given), self.key)


def as_result(given: object, key: str) -> Result:
    """Return an evaluator's return value as a Result with its key in this evaluation."""
    if isinstance(given, Result):
        return given if given.key == key else msgspec.structs.replace(given, key=key)
    if given is None:
        return Result(key=key, comment="the function returned no verdict")
    if isinstance(given, (bool, int, float)):
        return Result(key=key, score=float(given), value=given, comment=f"the function returned {given}")
    if isinstance(given, str):
        return Result(key=key, value=given, comment=f"the function returned {given[:60]!r}")
    if isinstance(given, Mapping):
        fields = {k: v for k, v in given.items() if k in Result.__struct_fields__ and k != "key"}
        if fields and len(fields) == len([k for k in given if k != "key"]):
            return Result(key=key, **fields)
        if not fields and given and all(isinstance(each, (bool, int, float)) for each in given.values()):
            names = ", ".join(map(str, list(given)[:3]))
            raise TypeError(
                f"evaluator {key!r} returned several scores ({names}): write an evaluator for each, which returns a"
                " number, or return {'score': …, 'metadata': …}"
            )
        return Result(key=key, value=dict(given))
    raise TypeError(f"evaluator {key!r} returned {type(given).__name__}, not a Result, a number or a label")


def build_evaluator(
    name: str,
    params: Mapping[str, Any] | None = None,
    key: str | None = None,
    *,
    bounds: Bounds | None = None,
    higher_is_better: bool | None = None,
    pass_fail: bool | None = None,
) -> Evaluator:
    """Build an evaluator from its name and parameters; raises RequestError for a parameter it does not take.

    `bounds`, `higher_is_better` and `pass_fail` override what the evaluator declares.
    """
    if not isinstance(name, str):
        raise RequestError(f"give the name of an evaluator, not {name!r}")
    if params is not None and not (
        isinstance(params, Mapping) and all(isinstance(each, str) for each in params)
    ):
        raise RequestError(
            f"evaluator {name!r}: params must be an object of names and values, not {params!r}"
        )
    if key is not None and not isinstance(key, str):
        raise RequestError(f"evaluator {name!r}: key must be text, the name of its results, not {key!r}")
    declared = _check_declarations(name, bounds, higher_is_better, pass_fail)
    part = evaluators.get(name)
    evaluator: Evaluator = _construct(part, name, dict(params or {}), key)
    for attribute, value in {**evaluators.declared.get(name, {}), **declared}.items():
        setattr(evaluator, attribute, value)
    return evaluator


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
        return _build_by_factory(part, name, params, key)
    return FunctionEvaluator(part, key)


def _build_by_factory(factory: Any, name: str, params: dict[str, Any], key: str | None) -> Any:
    """Return the evaluator that a registered factory function builds from its parameters."""
    refusal = f"evaluator {name!r} is a function and takes no parameters"
    try:
        signature = inspect.signature(factory)
        signature.bind(**params)
    except (TypeError, ValueError) as error:
        raise RequestError(refusal) from error
    if "outputs" in signature.parameters or "output" in signature.parameters:
        raise RequestError(refusal)
    try:
        evaluator = factory(**params)
    except RequestError:
        raise
    except FAILURES as error:
        raise RequestError(f"evaluator {name!r}: {type(error).__name__}: {error}") from error
    if not any(
        callable(getattr(evaluator, method, None)) for method in ("evaluate", "compare", "evaluate_runs")
    ):
        raise RequestError(refusal)
    evaluator.key = key or getattr(evaluator, "key", None) or name
    if not hasattr(evaluator, "params"):
        evaluator.params = params
    return evaluator


SPEC_FIELDS = ("name", "params", "key", "bounds", "higher_is_better", "pass_fail")
"""What an evaluator may be asked for with, in a mapping and in an experiment file."""


class ResolvedEvaluator(NamedTuple):
    """A built evaluator with the name and parameters it was asked for by: built once, passed on to `evaluate`."""

    name: str
    params: dict[str, Any]
    evaluator: Any


EvaluatorLike: TypeAlias = (
    ResolvedEvaluator
    | Evaluator
    | ComparesPairs
    | EvaluatesRuns
    | str
    | Mapping[str, Any]
    | Callable[..., Any]
)
"""What `evaluate` takes as an evaluator."""


def resolve_evaluator(spec: EvaluatorLike) -> ResolvedEvaluator:
    """Build the evaluator of a name, a mapping of SPEC_FIELDS, a function, a class or an instance."""
    if isinstance(spec, ResolvedEvaluator):
        return spec
    if isinstance(spec, str):
        return ResolvedEvaluator(spec, {}, build_evaluator(spec))
    if isinstance(spec, Mapping):
        if "from_output" in spec and not {"name", "params"} & set(spec):  # the short form: only its field
            rest = {key: value for key, value in spec.items() if key != "from_output"}
            spec = {"name": "from_output", "params": {"field": spec["from_output"]}, **rest}
        check_spec(spec, SPEC_FIELDS, "evaluator")
        built = build_evaluator(**{field: spec[field] for field in SPEC_FIELDS if field in spec})
        return ResolvedEvaluator(spec["name"], dict(spec.get("params") or {}), built)
    if isinstance(spec, type):
        return ResolvedEvaluator(spec.__name__, {}, _construct(spec, spec.__name__, {}, None))
    if any(callable(getattr(spec, method, None)) for method in ("evaluate", "compare", "evaluate_runs")):
        name = getattr(spec, "name", None) or type(spec).__name__
        if not getattr(spec, "key", None):
            cast("Any", spec).key = name
        return ResolvedEvaluator(name, dict(getattr(spec, "params", {}) or {}), spec)
    if callable(spec):
        from karat.evaluators import agentevals_adapter

        foreign = agentevals_adapter.is_foreign(spec)
        function = agentevals_adapter.adapt(spec) if foreign else FunctionEvaluator(spec)
        return ResolvedEvaluator(function.key, {}, function)
    raise RequestError(
        f"{spec!r} is not an evaluator: give a name, {{name, params, key}}, a function or an object"
    )


def list_evaluators() -> list[dict[str, Any]]:
    """Every registered evaluator: `{name, description, params, …}`."""
    return [evaluators.describe(name) for name in evaluators.list()]
