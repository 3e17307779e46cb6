"""The contract of aggregators: they fold the results of examples into estimates, in memory that does not grow.

An aggregator gets rows grouped by example, so that clustering, pass@k and bounds for failures can be
written. `merge` joins two states in any grouping and order and gives the same value to the last bit, so the
same code runs on one machine and on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from karat.errors import RequestError
from karat.records import Estimate, ItemResult, Ok, Skipped
from karat.registry import Registry, check_parameters, parameters_of

S = TypeVar("S")


class Group(msgspec.Struct, frozen=True):
    """All there is of one example for one aggregator: of one evaluator key and run (or of all its pairs)."""

    example: str
    metadata: dict[str, Any]
    results: list[ItemResult]
    """The current try of every item: its attempts and units, with failures and skips."""
    pending: int = 0
    """Items of this example that have no result yet."""

    @property
    def missing(self) -> int:
        """Items that should have a score and have none: failed, pending, or skipped though applicable."""
        skipped = sum(1 for r in self.results if not isinstance(r.outcome, Ok) and not not_applicable(r))
        return skipped + self.pending

    def scores(self) -> list[float]:
        """The scores there are."""
        return [
            r.outcome.value.score
            for r in self.results
            if isinstance(r.outcome, Ok) and r.outcome.value.score is not None
        ]


def not_applicable(result: ItemResult) -> bool:
    """Whether the evaluator said that an item is not its business."""
    return isinstance(result.outcome, Skipped) and not result.outcome.applicable


class Aggregate(msgspec.Struct):
    """What an aggregator gives. The estimate under the empty name is its main one."""

    estimates: dict[str, Estimate] = {}
    tables: dict[str, Any] = {}
    """JSON-able tables, such as a confusion matrix."""


class Aggregator(Generic[S]):
    """Base of aggregators. `S` is the state: any value that `merge` can join."""

    name: ClassVar[str] = ""
    over: ClassVar[frozenset[str]] = frozenset({"single"})
    """Which kinds of evaluators it folds: `single`, `pair`, `joint`."""

    def start(self) -> S:
        """An empty state."""
        raise NotImplementedError

    def add(self, state: S, group: Group) -> S:
        """The state with one example added; it may change and return the state it was given."""
        raise NotImplementedError

    def merge(self, a: S, b: S) -> S:
        """Two states as one."""
        raise NotImplementedError

    def finish(self, state: S) -> Aggregate:
        """The estimates and tables of a state."""
        raise NotImplementedError


aggregators: Registry[Callable[..., Any]] = Registry(
    "aggregator",
    builtin=[
        *(
            f"karat.aggregators.{module}"
            for module in (
                "means",
                "comparisons",
                "rates",
                "classification",
                "pass_k",
                "distributions",
                "efficiency",
                "ranking",
            )
        ),
        "karat.graph.metrics",
    ],
)

register_aggregator = aggregators.register


def resolve_aggregator(
    spec: Any, confidence: float = 0.95
) -> tuple[str, str, dict[str, Any], Any, list[str] | None]:
    """`(key, name, params, aggregator, evaluator keys it is for)` from a name, a mapping or an object.

    Every aggregator takes the parameter `by`, a field of the examples' metadata or a list of them.
    """
    of: list[str] | None = None
    if isinstance(spec, str):
        name, params, key = spec, {}, spec
    elif isinstance(spec, Mapping):
        unknown = [k for k in spec if k not in ("name", "params", "key", "of")]
        if unknown or "name" not in spec:
            problem = f"has no field {unknown[0]!r}" if unknown else "needs a name"
            raise RequestError(
                f"aggregator {dict(spec)!r} {problem}: it is written {{name, params, key, of}}"
            )
        name, params = spec["name"], dict(spec.get("params") or {})
        key = spec.get("key") or name
        given = spec.get("of")
        of = [given] if isinstance(given, str) else list(given) if given else None
    else:
        name, built = _given_object(spec)
        return name, name, dict(getattr(built, "params", {}) or {}), built, None
    part = aggregators.get(name)
    if "confidence" not in params and "confidence" in parameters_of(part):
        params = {**params, "confidence": confidence}
    return key, name, params, _built(part, name, params), of


def _built(part: Any, name: str, params: dict[str, Any]) -> Any:
    own, by = dict(params), None
    if "by" not in parameters_of(part):
        by = own.pop("by", None)
    check_parameters(part, own, f"aggregator {name!r}")
    try:
        built = as_aggregator(part(**own))
        if by is None:
            return built
        from karat.aggregators.grouping import Grouped

        return Grouped(built, by)
    except (TypeError, ValueError) as error:
        raise RequestError(f"aggregator {name!r}: {error}") from error


def _given_object(spec: Any) -> tuple[str, Any]:
    if isinstance(spec, type):
        spec = spec()
    built = as_aggregator(spec)
    if not all(callable(getattr(built, method, None)) for method in ("start", "add", "merge", "finish")):
        raise RequestError(
            f"{spec!r} is not an aggregator: give a name, {{name, params, key, of}} or an object"
        )
    return getattr(built, "name", "") or type(built).__name__, built


def folding_part(aggregator: Any) -> Any:
    """What somebody wrote to fold results: the metric, or the aggregator, inside of what wraps it."""
    while (inner := getattr(aggregator, "wraps", None)) is not None:
        aggregator = inner
    return aggregator


def as_aggregator(part: Any) -> Any:
    """A part as it folds results: one with a method `as_aggregator`, such as an aggregator metric, says how."""
    convert = getattr(part, "as_aggregator", None)
    return convert() if callable(convert) else part
