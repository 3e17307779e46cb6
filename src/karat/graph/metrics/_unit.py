"""The contract of unit metrics.

A unit metric is built once from its configuration and judges pairs. What a prediction gets wrong is
`correct=False`; what cannot be judged (lists of unequal length, a key that is missing, a golden value that
cannot be used) raises `CannotJudge` and names the element, so that it is never counted as a wrong answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import regex

from karat.errors import CannotJudge, RequestError
from karat.evaluators import clip, value_at
from karat.registry import Registry, check_parameters, load_file
from karat.serialization import storable


def verdict(given: Any) -> Any:
    """A NumPy boolean (from `numpy.isclose`) as a Python bool; any other value unchanged."""
    if type(given).__module__ != "numpy" or getattr(given, "ndim", None) != 0:
        return given
    plain = given.item()
    return plain if isinstance(plain, bool) else given


@dataclass
class UnitMetricResult:
    """Whether one prediction is correct, with both sides as they were given and what led to it."""

    correct: bool
    golden: Any
    predicted: Any
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.correct) is not bool:
            self.correct = verdict(self.correct)

    def to_dict(self) -> dict[str, Any]:
        """All four as valid JSON; NaN and infinities, which JSON does not have, become null."""
        return {
            "correct": self.correct,
            "golden": storable(self.golden),
            "predicted": storable(self.predicted),
            "metadata": storable(self.metadata),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> UnitMetricResult:
        """The result that `to_dict` wrote. One without a verdict is refused, not taken as wrong."""
        if not isinstance(data, Mapping):
            raise ValueError(f"a unit metric result is an object, not {clip(data)}")
        correct = verdict(data.get("correct"))
        if not isinstance(correct, bool):
            raise ValueError(f"a unit metric result needs correct: true or false, not {clip(correct)}")
        return cls(correct, data.get("golden"), data.get("predicted"), dict(data.get("metadata") or {}))


class MetricMetadata(msgspec.Struct, frozen=True):
    """Metadata of a metric, apart from its configuration."""

    name: str
    display_name: str = ""
    description: str = ""
    range: tuple[float, float] = (0.0, 1.0)
    higher_is_better: bool = True
    metric_type: str = "industry"


class BaseUnitMetric(ABC):
    """Base of unit metrics: `validate_config` reads `self.config`, `evaluate` judges.

    Override `validate_config` to check parameters (raise ValueError or RequestError), `get_metadata` to
    describe the metric.
    """

    name: ClassVar[str] = ""
    """The name it is registered under; the decorator `unit_metric` sets it where the class has none."""
    bounds: ClassVar[tuple[float | None, float | None]] = (0.0, 1.0)
    """The lowest and the highest score: a unit metric gives 1 for correct and 0 for wrong."""
    higher_is_better: ClassVar[bool] = True
    """False where `correct` marks what should not happen."""

    metadata: Any

    def __init__(self, **config: Any) -> None:
        self.config = config
        self.validate_config()
        self.metadata = self.get_metadata()

    def validate_config(self) -> None:  # noqa: B027 - a metric without parameters has nothing to check
        """Checks `self.config` and keeps what `evaluate` needs. Called once, at construction."""

    def get_metadata(self) -> Any:
        """Metadata of the metric; the first line of its docstring unless overridden."""
        name = self.get_metric_name()
        described = (type(self).__doc__ or "").strip().partition("\n")[0]
        return MetricMetadata(name, name.replace("_", " ").capitalize(), described)

    def get_metric_name(self) -> str:
        """The name it is registered under."""
        return self.name or type(self).__name__

    @abstractmethod
    def evaluate(self, golden: list[Any], predicted: list[Any]) -> list[UnitMetricResult]:
        """One result for each pair, in order."""


def check_lengths(golden: Sequence[Any], predicted: Sequence[Any], who: str) -> None:
    """Refuses two lists that cannot be paired."""
    if not isinstance(golden, (list, tuple)) or not isinstance(predicted, (list, tuple)):
        raise CannotJudge(f"{who}: golden and predicted must be lists")
    if len(golden) != len(predicted):
        raise CannotJudge(
            f"{who}: {len(golden)} golden values cannot be paired with {len(predicted)} predicted ones"
        )


def golden_value(value: object, key: str | None, at: int, who: str) -> Any:
    """The golden value of element `at`, at its key; a value that is not an object is returned unchanged."""
    what = f"{who}: golden[{at}]"
    if value is None:
        raise CannotJudge(f"{what} is None, there is nothing to compare with")
    return value if key is None else value_at(value, key, what)


def predicted_value(value: object, key: str | None, at: int, who: str) -> Any:
    """The predicted value of element `at`, at its key; None when nothing was predicted."""
    return value if key is None else value_at(value, key, f"{who}: predicted[{at}]")


M = TypeVar("M", bound=type[BaseUnitMetric])

unit_metrics: Registry[Callable[..., Any]] = Registry("unit metric", builtin=["karat.graph.metrics"])


def unit_metric(name: str) -> Callable[[M], M]:
    """A decorator that registers a subclass of `BaseUnitMetric` under a name."""

    def add(metric_class: M) -> M:
        UnitMetricRegistry.register(name, metric_class)
        return metric_class

    return add


class UnitMetricRegistry:
    """The registered unit metrics, as the graph tasks ask for them."""

    @classmethod
    def register(cls, name: str, metric_class: type[BaseUnitMetric]) -> None:
        """Registers a class under a name; a name that another class has is refused."""
        if not isinstance(name, str) or not name:
            raise RequestError(f"a unit metric needs a name, not {name!r}")
        if not isinstance(metric_class, type) or not issubclass(metric_class, BaseUnitMetric):
            raise RequestError(f"unit metric {name!r} must be a subclass of BaseUnitMetric")
        unit_metrics.register(name)(metric_class)
        if not metric_class.name:
            metric_class.name = name

    @classmethod
    def get_metric(cls, name: str, /, **params: Any) -> BaseUnitMetric:
        """A metric built with its parameters; an unknown name or parameter names the nearest known one."""
        metric_class = unit_metrics.get(name)
        what = f"unit metric {name!r}"
        check_parameters(metric_class, params, what)
        try:
            metric = metric_class(**params)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{what}: {error}") from error
        if not isinstance(metric, BaseUnitMetric):
            raise RequestError(f"{what} is not a subclass of BaseUnitMetric")
        return metric

    @classmethod
    def get_metric_class(cls, name: str) -> Any:
        """The class registered under a name."""
        return unit_metrics.get(name)

    @classmethod
    def list_metrics(cls) -> list[str]:
        """All registered names, sorted."""
        return unit_metrics.list()

    @classmethod
    def has_metric(cls, name: str) -> bool:
        """Whether a name is registered."""
        return unit_metrics.has(name)

    @classmethod
    def describe(cls) -> list[dict[str, Any]]:
        """Every registered metric: `{name, description, params, …}`."""
        return [unit_metrics.describe(name) for name in unit_metrics.list()]


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

    task_imports(None)  # files that import the names of another framework find karat's parts under them
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
