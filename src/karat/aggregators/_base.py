"""The contract of aggregators: they fold the results of examples into estimates, in memory that does not grow.

An aggregator gets rows grouped by example, so that clustering, pass@k and bounds for failures can be
written. `merge` joins two states in any grouping and order and gives the same value to the last bit, so the
same code runs on one machine and on a cluster.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import msgspec

from karat import paths
from karat.errors import RequestError, unknown_metadata
from karat.paths import get
from karat.records import AggregateTable, Estimate, EvaluatorSpec, ItemResult, Ok, Result, Skipped
from karat.registry import SHIPPED_PLUGIN, Registry, check_parameters, check_spec, parameters_of
from karat.stats._classification import ConfusionState
from karat.stats._exact import ExactSum
from karat.stats._means import MeanState

S = TypeVar("S")

METHODS = 8
"""Raised when the same results give other numbers: what an earlier version computed is then computed again."""


class Group(msgspec.Struct, frozen=True):
    """The results of one example for one aggregator: those of one evaluator key and run, or of all its pairs."""

    example: str
    metadata: dict[str, Any]
    results: list[ItemResult]
    """The current try of every item: its attempts and units, with failures and skips."""
    pending: int = 0
    """Items of this example that have no result yet."""
    attempts: int = 1
    """The attempts of the run at the example, or at each of its units."""

    @property
    def missing(self) -> int:
        """Items that should have a score and have none: failed, pending, or skipped though applicable."""
        skipped = sum(1 for r in self.results if not isinstance(r.outcome, Ok) and not not_applicable(r))
        return skipped + self.pending

    def scores(self) -> list[float]:
        """The scores, without missing ones."""
        return [
            r.outcome.value.score
            for r in self.results
            if isinstance(r.outcome, Ok) and r.outcome.value.score is not None
        ]


def not_applicable(result: ItemResult) -> bool:
    """Whether the evaluator declared that it does not apply to an item."""
    return isinstance(result.outcome, Skipped) and not result.outcome.applicable


class Aggregate(msgspec.Struct):
    """What an aggregator computes: estimates, of which the one without a name is the main one, and tables."""

    estimates: list[Estimate] = []
    tables: list[AggregateTable] = []
    """JSON-able tables, such as a confusion matrix."""

    def add(
        self,
        estimate: Estimate,
        name: str = "",
        *,
        run: str | None = None,
        group: Mapping[str, str] | None = None,
    ) -> None:
        """Add a number: what it is called, the run and the group it is about."""
        self.estimates.append(estimate.about(name=name, run=run, group=group))

    def add_table(self, value: object, name: str = "") -> None:
        """Add a table."""
        self.tables.append(AggregateTable(value, name))

    def get(
        self, name: str = "", *, run: str | None = None, group: Mapping[str, str] | None = None
    ) -> Estimate:
        """Return the estimate with this name, run and group."""
        for each in self.estimates:
            if each.name == name and each.run == run and (each.group or {}) == dict(group or {}):
                return each
        raise KeyError(name)


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
        """Merge two states."""
        raise NotImplementedError

    def finish(self, state: S) -> Aggregate:
        """The estimates and tables of a state."""
        raise NotImplementedError


class Passing:
    """What an aggregator of passes shares: a score of at least `threshold` passes, or of at most, if lower is better.

    So its estimates are better when higher, for scores of either direction.
    """

    threshold: float = 0.5
    lower_is_better: bool = False

    def for_evaluator(self, spec: EvaluatorSpec) -> Self:
        """The same aggregator with the direction that an evaluator declares."""
        adapted = copy.copy(self)
        adapted.lower_is_better = not spec.higher_is_better
        return adapted

    def passes(self, score: float) -> bool:
        """Whether a score passes."""
        return score <= self.threshold if self.lower_is_better else score >= self.threshold

    def oriented(self, made: Aggregate) -> Aggregate:
        """The aggregate, with the direction of its estimates where it is not that of the scores."""
        if self.lower_is_better:
            made.estimates = [higher_is_better(each) for each in made.estimates]
        return made


def higher_is_better(estimate: Estimate) -> Estimate:
    """Mark an estimate as better when higher, in either direction of the evaluator's scores."""
    return msgspec.structs.replace(estimate, metadata={**estimate.metadata, "better": "higher"})


def fits(kind: str, over: frozenset[str]) -> bool:
    """Whether an aggregator folds the results of a kind of evaluator; a joint one also gives each run a score."""
    return kind in over or (kind == "joint" and "single" in over)


def kinds_text(over: frozenset[str]) -> str:
    """The evaluators that an aggregator needs, for a message: `a pair evaluator or a joint evaluator`."""
    return " or ".join(f"a {kind} evaluator" for kind in ("single", "pair", "joint") if kind in over)


def for_evaluator(aggregator: object, spec: EvaluatorSpec) -> Any:
    """An aggregator for one evaluator: its method `for_evaluator`, if any, takes the bounds and the direction."""
    adapt = getattr(aggregator, "for_evaluator", None)
    return adapt(spec) if callable(adapt) else aggregator


aggregators: Registry[Callable[..., Any]] = Registry(
    "aggregator",
    builtin=[
        *(
            f"karat.aggregators.{module}"
            for module in (
                "_means",
                "_comparisons",
                "_classification",
                "_pass_k",
                "_distributions",
            )
        ),
        SHIPPED_PLUGIN,
    ],
)

register_aggregator = aggregators.register


AggregatorFunction = Callable[[list[Result]], "float | Estimate | Aggregate | None"]
"""A plain function of all results that are ok."""


class Resolved(NamedTuple):
    """An aggregator as a caller named it, built."""

    key: str
    name: str
    params: dict[str, Any]
    aggregator: Any
    of: list[str] | None = None
    """The evaluator keys it is for; None for all that fit."""


AggregatorLike = (
    str | Mapping[str, Any] | Aggregator[Any] | type[Aggregator[Any]] | AggregatorFunction | Resolved
)
"""What names an aggregator: a registered name, `{name, params, key, of}`, an object, a class or a function."""


def resolve_aggregator(spec: object, confidence: float = 0.95) -> Resolved:
    """Build an aggregator from a name, a mapping `{name, params, key, of}`, a function or an object.

    Every aggregator takes the parameter `by`, a field of the examples' metadata or a list of them.
    """
    if isinstance(spec, Resolved):
        return spec
    of: list[str] | None = None
    if isinstance(spec, str):
        name, params, key = spec, {}, spec
    elif isinstance(spec, Mapping):
        check_spec(spec, ("name", "params", "key", "of"), "aggregator")
        name, params = spec["name"], dict(spec.get("params") or {})
        key = spec.get("key") or name
        given = spec.get("of")
        of = [given] if isinstance(given, str) else list(given) if given else None
    else:
        name, given = _given_object(spec)
        return Resolved(name, name, dict(getattr(given, "params", {}) or {}), given)
    part = aggregators.get(name)
    takes = parameters_of(part)
    if "confidence" not in params and "confidence" in takes:
        params = {**params, "confidence": confidence}
    own = dict(params)
    by = None if "by" in takes else own.pop("by", None)
    if by is not None and not _is_text_or_texts(by):
        raise RequestError(
            f"aggregator {name!r}: by is {by!r}: give a field of the metadata, or a list of them"
        )
    if inspect.isfunction(part):
        if own:
            raise RequestError(f"aggregator {name!r} is a function and takes no parameters but 'by'")
    else:
        check_parameters(part, own, f"aggregator {name!r}")
    try:
        built: Any = FunctionAggregator(part) if inspect.isfunction(part) else as_aggregator(part(**own))
        if by is not None:
            built = Grouped(built, by)
    except (TypeError, ValueError) as error:
        raise RequestError(f"aggregator {name!r}: {error}") from error
    return Resolved(key, name, params, built, of)


def _is_text_or_texts(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
    )


def _given_object(spec: Any) -> tuple[str, Any]:
    if isinstance(spec, type):
        spec = spec()
    elif inspect.isfunction(spec):
        spec = FunctionAggregator(spec)
    built = as_aggregator(spec)
    if not all(callable(getattr(built, method, None)) for method in ("start", "add", "merge", "finish")):
        raise RequestError(
            f"{spec!r} is not an aggregator: give a name, {{name, params, key, of}}, a function or an object"
        )
    return getattr(built, "name", "") or type(built).__name__, built


class _Results(msgspec.Struct):
    """The results a function is called with, and how many items have none."""

    results: list[Result] = []
    missing: int = 0


class FunctionAggregator(Aggregator[_Results]):
    """A plain function of all results: `def worst(results: list[Result]) -> float`.

    The function gets every result that is ok, in dataset order, and returns a number, an Estimate, an Aggregate, or
    None where there is nothing to say. It holds all results in memory: for more than some 100,000 write the
    streaming form, a class with `start`, `add`, `merge` and `finish`.
    """

    over = frozenset({"single", "pair", "joint"})

    def __init__(self, function: AggregatorFunction) -> None:
        self.function = self.wraps = function
        self.name = function.__name__  # type: ignore[misc]  # of this object

    def start(self) -> _Results:
        return _Results()

    def add(self, state: _Results, group: Group) -> _Results:
        state.results += [r.outcome.value for r in group.results if isinstance(r.outcome, Ok)]
        state.missing += group.missing
        return state

    def merge(self, a: _Results, b: _Results) -> _Results:
        return _Results(a.results + b.results, a.missing + b.missing)

    def finish(self, state: _Results) -> Aggregate:
        given = self.function(state.results)
        if isinstance(given, Aggregate):
            return given
        n, of = len(state.results), len(state.results) + state.missing
        if given is None or (isinstance(given, (int, float)) and not isinstance(given, bool)):
            value = None if given is None else float(given)
            reason = {"reason": "a bare number has no interval"}
            return Aggregate([Estimate(value, n=n, of=of, method="function", metadata=reason)])
        if isinstance(given, Estimate):
            return Aggregate([given if given.of else msgspec.structs.replace(given, n=n, of=of)])
        raise TypeError(
            f"{self.name} returned {type(given).__name__}: return a number, an Estimate or an Aggregate"
        )


def folding_part(aggregator: object) -> Any:
    """The class or function that a user wrote, without the aggregators that wrap it."""
    while (inner := getattr(aggregator, "wraps", None)) is not None:
        aggregator = inner
    return aggregator


def as_aggregator(part: object) -> Any:
    """The aggregator of a part; a part with `as_aggregator`, such as an aggregator metric, is converted."""
    convert = getattr(part, "as_aggregator", None)
    return convert() if callable(convert) else part


# Any aggregator, once over all examples and once for each value of a metadata field: `by: topic`.

MOST_GROUPS = 1000
LONGEST_LABEL = 80
NONE = "(none)"
"""The group of examples that do not have the field."""


class _State:
    __slots__ = ("fields", "groups", "items", "whole")

    def __init__(self, whole: Any, fields: Sequence[str]) -> None:
        self.whole = whole
        self.groups: dict[str, dict[str, Any]] = {field: {} for field in fields}
        self.items: dict[str, Counter[str]] = {field: Counter() for field in fields}
        """How many items each group has, for those of which nothing can be computed."""
        self.fields = {field: FieldNames() for field in fields}


def metadata_fields(part: Resolved) -> Iterator[tuple[str, str]]:
    """The fields of the examples' metadata that an aggregator groups or clusters by, each after its parameter."""
    for name in ("by", "cluster"):
        given = part.params.get(name)
        for field in [given] if isinstance(given, str) else given if isinstance(given, (list, tuple)) else []:
            if isinstance(field, str):
                yield name, field


class Grouped(Aggregator[_State]):
    """An aggregator over all examples and over the groups of one or more metadata fields.

    The estimates of a group carry it: `{"topic": "Music"}`. An example whose field is a list belongs to the group
    of each of its values.
    """

    def __init__(self, aggregator: Aggregator[Any], by: str | Sequence[str]) -> None:
        self.inner = self.wraps = aggregator
        self.by = [by] if isinstance(by, str) else list(by)
        if not self.by or not all(isinstance(field, str) and field for field in self.by):
            raise ValueError(
                f"by is {by!r}: it must be a field of the examples' metadata, or a list of fields"
            )
        self.name = getattr(aggregator, "name", "") or type(aggregator).__name__  # type: ignore[misc]  # of this one
        self.over = getattr(aggregator, "over", frozenset({"single"}))  # type: ignore[misc]  # of this one

    def for_evaluator(self, spec: EvaluatorSpec) -> Grouped:
        """The same groups of the aggregator that fits an evaluator."""
        return Grouped(for_evaluator(self.inner, spec), self.by)

    def start(self) -> _State:
        return _State(self.inner.start(), self.by)

    def add(self, state: _State, group: Group) -> _State:
        inner = self.inner
        items = sum(not not_applicable(each) for each in group.results) + group.pending
        state.whole = inner.add(state.whole, group)
        for field, groups in state.groups.items():
            value = paths.get(group.metadata, field)
            state.fields[field].note(group.metadata, value)
            for label in labels_of(value):
                have = groups.get(label)
                if have is None:
                    have = self._room(field, groups)
                groups[label] = inner.add(have, group)
                state.items[field][label] += items
        return state

    def _room(self, field: str, groups: dict[str, Any]) -> Any:
        if len(groups) >= MOST_GROUPS:
            raise ValueError(
                f"by {field!r} would make more than {MOST_GROUPS} groups: choose a field with fewer values"
            )
        return self.inner.start()

    def merge(self, a: _State, b: _State) -> _State:
        a.whole = self.inner.merge(a.whole, b.whole)
        for field, groups in a.groups.items():
            a.fields[field].merge(b.fields[field])
            a.items[field].update(b.items[field])
            for label, other in b.groups[field].items():
                have = groups.get(label)
                groups[label] = self.inner.merge(self._room(field, groups) if have is None else have, other)
        return a

    def finish(self, state: _State) -> Aggregate:
        whole: Aggregate = self.inner.finish(state.whole)
        estimates, tables = list(whole.estimates), list(whole.tables)
        confidence = getattr(self.inner, "confidence", 0.95)
        for field, groups in state.groups.items():
            if groups:
                state.fields[field].check(field, "by")
            for label in sorted(groups):
                try:
                    part: Aggregate = self.inner.finish(groups[label])
                except ValueError as error:  # of this group alone: the others have numbers
                    of = state.items[field][label]
                    part = Aggregate(
                        [Estimate(None, of=of, confidence=confidence, metadata={"note": str(error)})]
                    )
                here = {field: label}
                estimates += [estimate.about(group=here) for estimate in part.estimates]
                tables += [
                    msgspec.structs.replace(table, group={**(table.group or {}), **here})
                    for table in part.tables
                ]
        return Aggregate(estimates, tables)


def labels_of(value: object) -> list[str]:
    """The groups a metadata value belongs to: one, or one for each value of a list."""
    if isinstance(value, (list, tuple)):
        return list(dict.fromkeys(map(label_of, value))) or [NONE]
    return [label_of(value)]


def label_of(value: object) -> str:
    """A metadata value as the name of a group."""
    if value is None:
        return NONE
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    )
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"


# Values folded by cluster: an example's attempts, or all examples that share a field of their metadata.


MOST_FIELDS = 50
"""Names of metadata fields that are remembered for a message about one that is not there."""


class FieldNames:
    """Whether a field was ever there, and which ones were: for a message about a name that is wrong."""

    __slots__ = ("known", "seen")

    def __init__(self) -> None:
        self.seen = False
        self.known: set[str] = set()

    def note(self, metadata: Mapping[str, Any], value: object) -> None:
        """Record an example: its value, or the fields that it has instead."""
        if value is not None:
            self.seen = True
        elif not self.seen:
            # The smallest names are kept, so that the order of the examples does not matter.
            self.known = set(sorted({*self.known, *map(str, metadata)})[:MOST_FIELDS])

    def merge(self, other: FieldNames) -> None:
        """Merge the fields that another state has seen into this one."""
        self.seen |= other.seen
        self.known = set(sorted(self.known | other.known)[:MOST_FIELDS])

    def check(self, field: str, what: str) -> None:
        """Refuse a field that no example had, if there were examples."""
        if not self.seen:
            raise ValueError(f"{what}: {unknown_metadata(field, self.known)}")


def add_sizes(state: MeanState | ConfusionState, size: int, times: int = 1) -> None:
    """Record clusters of one size in a state whose sums are added elsewhere."""
    if size == 1:
        state.singles += times
    elif size:
        state.several.add(size, times)


class _Part:
    """The state of one cluster."""

    __slots__ = ("least", "most", "size", "squares", "total")

    def __init__(self) -> None:
        self.size = 0
        self.total = ExactSum()
        self.squares = ExactSum()
        self.least = math.inf
        self.most = -math.inf

    def add(self, values: Sequence[float]) -> None:
        self.size += len(values)
        for value in values:
            self.total.add(value)
            self.squares.add_square(value)
            self.least, self.most = min(self.least, value), max(self.most, value)

    def merge(self, other: _Part) -> None:
        self.size += other.size
        self.total.merge(other.total)
        self.squares.merge(other.squares)
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)

    def fold(self, mean: MeanState, size: int) -> None:
        """Add this cluster of `size` items; items that it does not list are zeros."""
        mean.add_cluster(self.total, self.squares, size, self.least, self.most)


class Values:
    """Numbers by cluster, and how many are missing."""

    __slots__ = ("fields", "mean", "missing", "parts")

    def __init__(self) -> None:
        self.mean = MeanState()
        self.missing = 0
        self.parts: dict[str, _Part] = {}
        self.fields = FieldNames()

    def add(self, values: Sequence[float], metadata: Mapping[str, Any], cluster: str | None) -> None:
        """Add the values of one example. An example without the clustering field is its own cluster."""
        if cluster is None:
            self.mean.add(values)
            return
        label = get(metadata, cluster)
        self.fields.note(metadata, label)
        if label is None:
            self.mean.add(values)
            return
        part = self.parts.get(str(label))
        if part is None:
            part = self.parts[str(label)] = _Part()
        part.add(values)

    def merge(self, other: Values) -> None:
        """Merge the clusters of another state into this one; a cluster may be in both."""
        self.mean.merge(other.mean)
        self.missing += other.missing
        self.fields.merge(other.fields)
        for label, part in other.parts.items():
            here = self.parts.get(label)
            if here is None:
                here = self.parts[label] = _Part()
            here.merge(part)

    def total(self, cluster: str | None) -> MeanState:
        """Add up all clusters."""
        self.mean.drawn = cluster is not None
        if not self.parts:
            if cluster is not None and self.mean.n:
                self.fields.check(cluster, "cluster")
            return self.mean
        total = MeanState().merge(self.mean)
        for part in self.parts.values():
            part.fold(total, part.size)
        return total

    def within(self, everything: Values, cluster: str | None) -> MeanState:
        """Return the values with a zero for each item of `everything` that is not among them, cluster by cluster."""
        total = MeanState().merge(self.mean)
        zeros = everything.mean.clusters.sizes()
        zeros.subtract(self.mean.clusters.sizes())
        for label, part in everything.parts.items():
            if label in self.parts:
                self.parts[label].fold(total, part.size)
            else:
                zeros[part.size] += 1
        for size, times in zeros.items():
            total.add_cluster(ExactSum(), ExactSum(), size, 0.0, 0.0, times)
        whole = everything.total(cluster)
        total.several, total.singles, total.drawn = whole.several, whole.singles, whole.drawn
        return total

    def proportion(self, confidence: float, cluster: str | None = None) -> Estimate:
        """The share of ones, over all but the missing."""
        mean = self.total(cluster)
        return mean.proportion(confidence, of=mean.n + self.missing)

    def estimate(
        self, confidence: float, cluster: str | None = None, bounds: tuple[float, float] | None = (0.0, 1.0)
    ) -> Estimate:
        """The mean, over all but the missing."""
        mean = self.total(cluster)
        return mean.estimate(confidence, of=mean.n + self.missing, bounds=bounds)
