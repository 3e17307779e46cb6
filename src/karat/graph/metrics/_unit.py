"""Unit metrics: their contract, and their use as evaluators (`unit:NAME`) and back (`evaluator:NAME`).

A unit metric is built once from its configuration and judges pairs. What a prediction gets wrong is
`correct=False`; what cannot be judged (lists of unequal length, a key that is missing, a golden value that
cannot be used) raises `CannotJudge` and names the element, so that it is never counted as a wrong answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import regex

from karat.errors import CannotJudge, RequestError, UnknownName, clip, did_you_mean, nearest
from karat.evaluators import (
    Evaluator,
    FromOutput,
    Item,
    ParameterCheck,
    build_evaluator,
    evaluators,
    value_at,
)
from karat.records import Result
from karat.registry import Registry, check_parameters, load_file
from karat.serialization import storable


@dataclasses.dataclass
class UnitMetricResult:
    """Whether one prediction is correct, with both sides as they were given and what led to it."""

    correct: bool
    golden: Any
    predicted: Any
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.correct) is not bool:
            self.correct = FromOutput.verdict(self.correct)

    def to_dict(self) -> dict[str, Any]:
        """All four as valid JSON; NaN and infinities, which JSON does not have, become null."""
        return {
            "correct": self.correct,
            "golden": storable(self.golden),
            "predicted": storable(self.predicted),
            "metadata": storable(self.metadata),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | bool) -> UnitMetricResult:
        """The result that `to_dict` wrote, or a bare verdict, which has neither golden nor predicted value.

        One without a verdict is refused, not taken as wrong; so is a number, which is no verdict.
        """
        return cls(*FromOutput.read(data))


class MetricMetadata(msgspec.Struct, frozen=True):
    """Metadata of a metric, apart from its configuration."""

    name: str
    display_name: str = ""
    description: str = ""
    range: tuple[float, float] = (0.0, 1.0)
    higher_is_better: bool = True
    metric_type: str = "industry"


class Metric:
    """Base of unit and aggregator metrics; `config` is what it was built with.

    Override `validate_config` to check parameters (raise ValueError or RequestError), `get_metadata` to
    describe the metric.
    """

    name: ClassVar[str] = ""
    """The name it is registered under; the decorator sets it where the class has none."""

    metadata: Any

    def __init__(self, **config: Any) -> None:
        self.config = config
        self.validate_config()
        self.metadata = self.get_metadata()

    def validate_config(self) -> None:  # a metric without parameters has nothing to check
        """Checks `self.config` and keeps what the metric needs. Called once, at construction."""

    def get_metadata(self) -> Any:
        """The name of the metric and the first line of its docstring, unless overridden."""
        return {
            "name": self.get_metric_name(),
            "description": (type(self).__doc__ or "").strip().partition("\n")[0],
        }

    def get_metric_name(self) -> str:
        """The name it is registered under."""
        return self.name or type(self).__name__


class BaseUnitMetric(Metric, ABC):
    """Base of unit metrics: `validate_config` reads `self.config`, `evaluate` judges."""

    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)
    """The lowest and the highest score: a unit metric gives 1 for correct and 0 for wrong."""
    higher_is_better: bool = True
    """False where `correct` marks what should not happen; `get_metadata` may say so too."""

    def get_metadata(self) -> Any:
        """Metadata of the metric; the first line of its docstring unless overridden."""
        found = super().get_metadata()
        return MetricMetadata(**found, display_name=found["name"].replace("_", " ").capitalize())

    @abstractmethod
    def evaluate(self, golden: list[Any], predicted: list[Any]) -> list[UnitMetricResult]:
        """Return one result for each pair, in order."""


def _is_higher_better(metric: BaseUnitMetric) -> bool:
    described = getattr(metric, "metadata", None)
    return metric.higher_is_better and getattr(described, "higher_is_better", True) is not False


def check_lengths(golden: Sequence[Any], predicted: Sequence[Any], who: str) -> None:
    """Refuses two lists that cannot be paired."""
    if not isinstance(golden, (list, tuple)) or not isinstance(predicted, (list, tuple)):
        raise CannotJudge(f"{who}: golden and predicted must be lists")
    if len(golden) != len(predicted):
        raise CannotJudge(
            f"{who}: {len(golden)} golden values cannot be paired with {len(predicted)} predicted ones"
        )


def golden_value(value: object, key: str | None, at: int, who: str) -> Any:
    """The golden value of element `at`, at its key; a value that is not an object is returned unchanged.

    Null cannot be judged, also under the key.
    """
    if key is not None and type(value) is dict and type(found := value.get(key)) is str:
        return found  # nearly always: as `value_at` does, before a sentence is made that nobody will read
    what = f"{who}: golden[{at}]"
    if value is None:
        raise CannotJudge(f"{what} is None: there is no value to compare with")
    if key is None:
        return value
    found = value_at(value, key, what)
    if found is None:
        raise CannotJudge(f"{what} has null at {key!r}: there is no value to compare with")
    return found


def predicted_value(value: object, key: str | None, at: int, who: str) -> Any:
    """The predicted value of element `at`, at its key; None when nothing was predicted."""
    if key is None:
        return value
    if type(value) is dict and type(found := value.get(key)) is str:
        return found
    return value_at(value, key, f"{who}: predicted[{at}]")


M = TypeVar("M", bound=type[BaseUnitMetric])

unit_metrics: Registry[Callable[..., Any]] = Registry("unit metric", builtin=["karat.graph.metrics"])


def unit_metric(name: str) -> Callable[[M], M]:
    """A decorator that registers a subclass of `BaseUnitMetric` under a name."""

    def add(metric_class: M) -> M:
        UnitMetricRegistry.register(name, metric_class)
        return metric_class

    return add


PLACES = (
    "a metric of your own is found in a file beside the task, in a folder around it up to tasks/, or in"
    " karat/core/eval/metrics/ (unit_metrics/, aggregator_metrics/) of the working folder"
)


class MetricRegistry:
    """The registered metrics of a kind, as graph tasks ask for them."""

    kind: ClassVar[str]
    article: ClassVar[str]
    registered: ClassVar[Registry[Callable[..., Any]]]

    @classmethod
    def register(cls, name: str, metric_class: type, aliases: Iterable[str] = ()) -> None:
        """Register a class under a name; a name that another class has is refused."""
        if not isinstance(name, str) or not name:
            raise RequestError(f"{cls.article} {cls.kind} needs a name, not {name!r}")
        if lacking := cls._lacking(metric_class):
            raise RequestError(f"{cls.kind} {name!r} must be {lacking}")
        cls.registered.register(name, *aliases)(metric_class)
        if issubclass(metric_class, Metric) and not metric_class.name:
            metric_class.name = name

    @classmethod
    def _lacking(cls, metric_class: object) -> str:
        """Return what a class lacks to be registered; empty if nothing."""
        raise NotImplementedError

    @classmethod
    def get_metric(cls, name: str, /, **params: Any) -> Any:
        """A metric built with its parameters; an unknown name or parameter names the nearest known one."""
        try:
            metric_class = cls.registered.get(name)
        except (
            UnknownName
        ) as error:  # of one that is like no other, the error says where metrics are looked for
            if nearest(name, cls.registered.list()):
                raise
            raise UnknownName(f"{error}; {PLACES}") from None
        what = f"{cls.kind} {name!r}"
        check_parameters(metric_class, params, what)
        try:
            return metric_class(**params)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{what}: {error}") from error

    @classmethod
    def get_metric_class(cls, name: str) -> Any:
        """The class registered under a name."""
        return cls.registered.get(name)

    @classmethod
    def list_metrics(cls) -> list[str]:
        """All registered names, sorted."""
        return cls.registered.list()

    @classmethod
    def has_metric(cls, name: str) -> bool:
        """Whether a name is registered."""
        return cls.registered.has(name)

    @classmethod
    def describe(cls) -> list[dict[str, Any]]:
        """Every registered metric: `{name, description, params, …}`."""
        return [cls.registered.describe(name) for name in cls.registered.list()]


class UnitMetricRegistry(MetricRegistry):
    """The registered unit metrics."""

    kind, article, registered = "unit metric", "a", unit_metrics

    @classmethod
    def _lacking(cls, metric_class: object) -> str:
        fits = isinstance(metric_class, type) and issubclass(metric_class, BaseUnitMetric)
        return "" if fits else "a subclass of BaseUnitMetric"

    @classmethod
    def get_metric(cls, name: str, /, **params: Any) -> BaseUnitMetric:
        """A metric built with its parameters; an unknown name or parameter names the nearest known one."""
        metric = super().get_metric(name, **params)
        if not isinstance(metric, BaseUnitMetric):
            raise RequestError(f"{cls.kind} {name!r} is not a subclass of BaseUnitMetric")
        return metric


_REGISTERS = regex.compile(
    r"^\s*@(?:\w+\.)*(?:unit_metric|aggregator_metric|register_evaluator|register_aggregator)\("
    r"|^\s*(?:\w+\.)*UnitMetricRegistry\.register\(",
    regex.MULTILINE,
)

BESIDE = ("unit_metrics", "metrics")
"""Folders beside a task in which metrics are looked for too."""


def discover(where: str | Path) -> list[str]:
    """Imports the metrics in a folder, or beside a task file; gives the names that became known.

    Only files in which a metric, evaluator or aggregator is registered are imported (a task's folder holds
    other programs too), not those whose name begins with `_` or `test_`. A file that fails to import is
    a `RequestError` that names it. What was discovered before is not imported again.
    """
    place = Path(where).expanduser()
    if place.is_file():
        folders = [place.parent, *(place.parent / name for name in BESIDE)]
    elif place.is_dir():
        folders = [place]
    else:
        raise RequestError(f"no folder {where} to look for metrics in")
    from karat.graph.sygra._imports import task_imports  # only here: most metrics are named, not discovered

    task_imports()  # files that import the names of another framework find karat's parts under them
    before = set(unit_metrics.list())
    for folder in folders:
        if folder.is_dir():
            for file in sorted(folder.glob("*.py")):
                if not file.name.startswith(("_", "test_")) and registers_metrics(file):
                    load_file(file)
    return sorted(set(unit_metrics.list()) - before)


def registers_metrics(file: Path) -> bool:
    """Whether a file looks as if it registered a metric; others are not imported."""
    return _REGISTERS.search(file.read_text(encoding="utf-8", errors="replace")) is not None


LONGEST_LABEL = 1000
"""Bytes of JSON up to which golden and predicted values are kept with a result, for the confusion matrix."""


class UnitMetricEvaluator(Evaluator):
    """A unit metric as an evaluator: the reference is golden, the output is predicted, correct scores 1."""

    reuse = False
    pass_fail = True

    def __init__(self, metric: BaseUnitMetric, name: str, params: dict[str, Any]) -> None:
        super().__init__(f"unit:{name}")
        self.metric = metric
        self.bounds = type(metric).bounds
        self.higher_is_better = _is_higher_better(metric)
        # a metric that others wrote may wait on something, and a batch is judged where nothing may wait
        self.batched = type(metric).__module__.startswith("karat.")
        self.params = {"metric": name, **params}

    def evaluate(
        self, *, outputs: object, reference_outputs: object = None, inputs: object = None, **context: Any
    ) -> Result:
        return self._result(self._evaluate_pairs([reference_outputs], [outputs])[0])

    def evaluate_many(self, items: Sequence[Item]) -> list[Result | Exception]:
        """Judge all items in one call, or one by one if the call fails."""
        try:
            golden = [item.get("reference_outputs") for item in items]
            judged = self._evaluate_pairs(golden, [item.get("outputs") for item in items])
            return [self._result(each) for each in judged]
        except Exception:
            return super().evaluate_many(items)

    def _evaluate_pairs(self, golden: list[Any], predicted: list[Any]) -> list[UnitMetricResult]:
        results = self.metric.evaluate(golden, predicted)
        if not isinstance(results, list) or len(results) != len(golden):
            raise CannotJudge(f"{self.key} did not return a list of {len(golden)} results")
        return results

    def _result(self, judged: Any) -> Result:
        if not isinstance(judged, UnitMetricResult) or not isinstance(judged.correct, bool):
            raise CannotJudge(
                f"{self.key} gave {clip(judged)}, not a UnitMetricResult that is correct or not"
            )
        plain = judged.to_dict()
        metadata = plain["metadata"]
        if metadata.get("error"):
            raise CannotJudge(f"{self.key}: {str(metadata['error'])[:200]}")
        comment = f"the prediction {clip(judged.predicted)} against the golden {clip(judged.golden)}"
        comment = f"{'correct' if judged.correct else 'wrong'}: {comment}"
        reason = str(metadata.get("reason") or _measurement(metadata))[:200]
        if reason:
            comment += f"; {reason}"
        for name in ("golden", "predicted"):
            if len(msgspec.json.encode(plain[name])) <= LONGEST_LABEL:
                metadata.setdefault(name, plain[name])
            if len(str(metadata.get(f"{name}_text", ""))) > LONGEST_LABEL:
                del metadata[f"{name}_text"]  # the store has both sides already
        return Result(self.key, float(judged.correct), judged.correct, comment, metadata)


def _measurement(metadata: Mapping[str, Any]) -> str:
    """Return what the metric measured and its limit, from the metadata of metrics that measure."""
    for name, bound, words in _MEASURES:
        measure, allowed = metadata.get(name), metadata.get(bound)
        if isinstance(measure, (int, float)) and isinstance(allowed, (int, float)):
            return f"the {name.replace('_', ' in ')} is {measure:.6g}, {words} {allowed:.6g}"
    return ""


_MEASURES = (
    ("distance", "tolerance", "allowed is"),
    ("similarity", "threshold", "needed is"),
    ("difference_percent", "tolerance_percent", "allowed is"),
    ("difference", "scroll_threshold", "allowed is"),
)


class EvaluatorMetric(BaseUnitMetric):
    """An evaluator as a unit metric: correct when its score is `threshold` or more."""

    def __init__(self, evaluator: Evaluator, name: str, threshold: float, params: dict[str, Any]) -> None:
        self.evaluator = evaluator
        self.evaluator_name = name
        self.threshold = threshold
        self.higher_is_better = evaluator.higher_is_better
        path = params.get("path")
        self._golden_path = path.get("reference") if isinstance(path, Mapping) else path
        super().__init__(threshold=threshold, **params)

    def get_metric_name(self) -> str:
        return f"evaluator:{self.evaluator_name}"

    def evaluate(self, golden: list[Any], predicted: list[Any]) -> list[UnitMetricResult]:
        name = self.get_metric_name()
        check_lengths(golden, predicted, name)
        for at, expected in enumerate(golden if isinstance(self._golden_path, str) else ()):
            if expected is not None:  # an evaluator may need no golden value
                golden_value(expected, self._golden_path, at, name)
        items: list[Item] = [
            {"outputs": given, "reference_outputs": expected}
            for expected, given in zip(golden, predicted, strict=True)
        ]
        results = []
        for at, (item, judged) in enumerate(zip(items, self._evaluate_pairs(items), strict=True)):
            if isinstance(judged, Exception):
                raise CannotJudge(f"{name}: predicted[{at}] could not be judged: {judged}") from judged
            if judged.error is not None or judged.score is None:
                raise CannotJudge(f"{name}: predicted[{at}] got no score: {judged.error or judged.comment}")
            metadata = {
                "validator": name,
                "score": judged.score,
                "threshold": self.threshold,
                "comment": judged.comment,
                **{key: value for key, value in judged.metadata.items() if key not in ("score", "threshold")},
            }
            correct = judged.score >= self.threshold
            results.append(UnitMetricResult(correct, item["reference_outputs"], item["outputs"], metadata))
        return results

    def _evaluate_pairs(self, items: list[Item]) -> list[Result | Exception]:
        if not getattr(self.evaluator, "is_async", False):
            many = getattr(self.evaluator, "evaluate_many", None)
            given = many(items) if callable(many) else [self.evaluator.evaluate(**item) for item in items]
            return list(given)

        async def all_of_them() -> list[Any]:
            calls = (self.evaluator.evaluate_async(**item) for item in items)
            return list(await asyncio.gather(*calls, return_exceptions=True))

        # in a thread of its own, for the caller may be inside an event loop
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(asyncio.run, all_of_them()).result()


class Adapter:
    """The part behind a prefixed name, callable with its parameters."""

    def __init__(self, part: Any, name: str, extra: Sequence[inspect.Parameter] = ()) -> None:
        self.name = name
        self.__doc__ = inspect.getdoc(part)
        self.__module__ = getattr(part, "__module__", type(part).__module__)
        self.__qualname__ = getattr(part, "__qualname__", type(part).__qualname__)
        try:
            own = list(inspect.signature(part).parameters.values())
        except (TypeError, ValueError):
            own = [inspect.Parameter("params", inspect.Parameter.VAR_KEYWORD)]
        named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in extra]
        at = next((at for at, p in enumerate(own) if p.kind is p.VAR_KEYWORD), len(own))
        own = [p for p in own if p.name not in {each.name for each in named}]
        self.__signature__ = inspect.Signature([*own[:at], *named, *own[at:]])


class _AsEvaluator(Adapter):
    builds_evaluator = True

    @property
    def example(self) -> dict[str, Any]:
        """The first pair of the metric's own example, as an evaluator is given it."""
        own = getattr(unit_metrics.get(self.name), "example", None)
        if not own:
            return {}
        return {
            "params": own["params"],
            "outputs": own["predicted"][0],
            "reference_outputs": own["golden"][0],
            "score": float(own["correct"][0]),
        }

    def __call__(self, **params: Any) -> UnitMetricEvaluator:
        return UnitMetricEvaluator(UnitMetricRegistry.get_metric(self.name, **params), self.name, params)


class _AsUnitMetric(Adapter):
    def __call__(self, threshold: float = 1.0, **params: Any) -> EvaluatorMetric:
        bound = ParameterCheck(f"evaluator:{self.name}").number("threshold", threshold, 0.0, 1.0)
        built = build_evaluator(self.name, params)
        several = callable(getattr(built, "compare", None)) or callable(getattr(built, "evaluate_runs", None))
        if several or not callable(getattr(built, "evaluate", None)):
            raise RequestError(
                f"evaluator {self.name!r} does not judge single outputs, so it cannot be a unit metric"
            )
        return EvaluatorMetric(built, self.name, bound, params)


def _as_evaluator(name: str) -> Any:
    return _AsEvaluator(unit_metrics.get(name), name)


def _as_unit_metric(name: str) -> Any:
    threshold = inspect.Parameter(
        "threshold", inspect.Parameter.KEYWORD_ONLY, default=1.0, annotation="float"
    )
    return _AsUnitMetric(evaluators.get(name), name, [threshold])


evaluators.prefix("unit", _as_evaluator)
unit_metrics.prefix("evaluator", _as_unit_metric)


# `UnitMetrics`: the lambda node that compares a prediction with what is expected, by any number of unit metrics.

SUFFIX = "_result"
"""`exact_match_result`: the older name of a metric's field, used where the configuration asks for it."""

KEY = "text"
"""Under which a metric of the task's own finds a bare value, unless its `key` says otherwise."""

ENTRY_KEYS = ("name", "params", "field")


class UnitMetrics:
    """Judge each record and keep the results in its state, one field for each metric.

    A metric's field is its name, or `<name>_result` if `output_keys` or the output map uses that name, or `field` of
    its entry. A value that is not an object is judged directly and shown under the metric's `key`; a metric defined by
    the task gets it as an object with that key, or with the key `text`.
    """

    def __init__(
        self,
        golden_key: str,
        predicted_key: str,
        unit_metrics_map: Sequence[Mapping[str, Any]],
        output_keys: Iterable[str] | None = None,
    ) -> None:
        self.golden_key = golden_key
        self.predicted_key = predicted_key
        if (
            not isinstance(unit_metrics_map, Sequence)
            or isinstance(unit_metrics_map, str)
            or not unit_metrics_map
        ):
            raise RequestError("unit_metrics_map must be a list of {name, params} with at least one of them")
        asked = set(output_keys or ())
        self._judges: list[tuple[list[str], BaseUnitMetric, str | None]] = []
        self.fields: dict[str, bool] = {}
        """The fields it sets, each with whether a higher score is better."""
        self.keys: dict[str, str] = {}
        """Those whose metric compares one key of an object, with that key."""
        for entry in unit_metrics_map:
            self._add(entry, asked)

    def _add(self, entry: Mapping[str, Any], asked: set[str]) -> None:
        if not isinstance(entry, Mapping) or "name" not in entry:
            raise RequestError(f"unit_metrics_map: {entry!r:.80} needs a name")
        for key in entry:
            if key not in ENTRY_KEYS:
                raise RequestError(
                    f"unit_metrics_map: unknown key {key!r}: {did_you_mean(str(key), ENTRY_KEYS)}"
                )
        given = entry.get("params") or {}
        if not isinstance(given, Mapping):
            raise RequestError(f"unit_metrics_map: params of {entry['name']!r:.40} must be a mapping")
        name, params = str(entry["name"]), {str(key): value for key, value in given.items()}
        metric = UnitMetricRegistry.get_metric(name, **params)
        if entry.get("field"):
            fields = [str(entry["field"])]
        else:
            fields = [field for field in (name, name + SUFFIX) if field in asked] or [name]
        for field in fields:
            if field in self.fields:
                raise RequestError(
                    f"unit_metrics_map: {field!r} is set by two metrics: give one of them field: NAME"
                )
            self.fields[field] = _is_higher_better(metric)
        within = params.get("key")
        if isinstance(within, str) and within:
            self.keys |= dict.fromkeys(fields, within)
        else:  # karat's own compare a bare value as it is
            within = None if type(metric).__module__.startswith("karat.") else KEY
        self._judges.append((fields, metric, within))

    def metrics(self) -> Iterator[BaseUnitMetric]:
        """The metrics, in their order."""
        return (metric for _, metric, _ in self._judges)

    def __call__(self, state: dict[str, Any]) -> dict[str, Any]:
        try:
            golden, predicted = state[self.golden_key], state[self.predicted_key]
        except KeyError as error:
            missing = str(error.args[0])
            raise CannotJudge(
                f"the record has no {missing!r}: {did_you_mean(missing, map(str, state))}"
            ) from None
        for fields, metric, key in self._judges:
            if key is None:
                results = metric.evaluate([golden], [predicted])
            else:
                results = metric.evaluate([_as_object(key, golden)], [_as_object(key, predicted)])
            result = _as_dict(results, metric)
            for field in fields:
                state[field] = result
        return state

    @staticmethod
    def apply(lambda_node_dict: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """The same as a plain function of the node's keys; the metrics are made anew at each call."""
        keys = ("golden_key", "predicted_key", "unit_metrics_map", "output_keys")
        return UnitMetrics(**{key: lambda_node_dict[key] for key in keys if key in lambda_node_dict})(state)


def _as_object(key: str, value: Any) -> Any:
    """`{"text": "Paris"}` of `"Paris"`, so that a result looks the same however the record holds its answer."""
    if type(value) is str:
        return {key: value}
    return value if isinstance(value, (Mapping, list)) or value is None else {key: value}


def _as_dict(results: Any, metric: BaseUnitMetric) -> dict[str, Any]:
    who = metric.get_metric_name()
    if not isinstance(results, list) or len(results) != 1:
        raise CannotJudge(f"{who} did not return a list with one result")
    result = results[0]
    if isinstance(result, UnitMetricResult):
        result = result.to_dict()
    elif isinstance(result, dict):
        result = {**result, "correct": FromOutput.verdict(result.get("correct"))}
    if not isinstance(result, dict) or not isinstance(result["correct"], bool):
        raise CannotJudge(f"{who} returned {result!r:.80}, not a result that is correct or not")
    return result
