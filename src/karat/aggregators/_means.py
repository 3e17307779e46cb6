"""Means and shares: the mean score, the share of correct items, of one given value, and of each value.

All are clustered by example where there are several attempts.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from typing import Any, Self

import msgspec

from karat import paths
from karat.aggregators._base import Aggregate, Aggregator, Group, Passing, Values, register_aggregator
from karat.records import Estimate, EvaluatorSpec, Ok, Result
from karat.stats._means import MeanState
from karat.stats._validation import check_confidence


class _State:
    __slots__ = ("graded", "ones", "unscored", "values", "zeros")

    def __init__(self) -> None:
        self.values = Values()
        self.zeros = 0
        """Examples of one result that is 0; nearly all results are this or the next …"""
        self.ones = 0
        """… 1: counting them is faster than adding them up, and comes to the same."""
        self.unscored = 0
        """Ok results without a score: labels, which have no mean."""
        self.graded = False


class _Scores(Aggregator[_State]):
    """Base of mean and accuracy: the scores of an example are a cluster; items without a score are counted."""

    _ends_stand = False
    """Whether `_value` gives the scores 0 and 1 back and notes nothing."""

    def __init__(self, cluster: str | None = None, confidence: float = 0.95) -> None:
        self.cluster = cluster
        self.confidence = check_confidence(confidence)

    def start(self) -> _State:
        return _State()

    def add(self, state: _State, group: Group) -> _State:
        results = group.results
        if len(results) == 1 and self.cluster is None and not group.pending:
            outcome = results[0].outcome
            if isinstance(outcome, Ok) and (score := outcome.value.score) is not None:
                # A call for each score that stands as it is would cost more than counting it.
                plain = self._ends_stand and (score == 1.0 or score == 0.0)
                value = score if plain else self._value(state, score)
                if value == 0.0:
                    state.zeros += 1
                elif value == 1.0:
                    state.ones += 1
                else:
                    state.values.mean.add_one(value)
                return state
        scores = group.scores()
        state.values.add([self._value(state, score) for score in scores], group.metadata, self.cluster)
        state.values.missing += group.missing
        state.unscored += sum(isinstance(r.outcome, Ok) for r in results) - len(scores)
        return state

    def add_verdicts(self, state: _State, verdicts: Sequence[bool | None]) -> _State:
        """Add the verdicts on one example, None for a missing one: its scores are 1 and 0."""
        if len(verdicts) == 1 and self.cluster is None:
            [verdict] = verdicts
            if verdict is None:
                state.values.missing += 1
            elif verdict:
                state.ones += 1
            else:
                state.zeros += 1
            return state
        state.values.add([float(each) for each in verdicts if each is not None], {}, self.cluster)
        state.values.missing += verdicts.count(None)
        return state

    def merge(self, a: _State, b: _State) -> _State:
        a.values.merge(b.values)
        a.zeros += b.zeros
        a.ones += b.ones
        a.unscored += b.unscored
        a.graded |= b.graded
        return a

    def _value(self, state: _State, score: float) -> float:
        return score

    def _total(self, state: _State) -> tuple[MeanState, int]:
        """All scores, and of how many items."""
        mean, graded = MeanState(), state.values.total(self.cluster)
        if graded.n:
            mean.merge(graded)
        mean.add_one(0.0, state.zeros)
        mean.add_one(1.0, state.ones)
        if state.unscored and not mean.n:
            raise ValueError("these results have labels, but no scores: use count_by")
        return mean, mean.n + state.values.missing + state.unscored


@register_aggregator("mean")
class Mean(_Scores):
    """The mean score with its interval, clustered by example or by a field of the metadata (`cluster`).

    `low` and `high` are the range of the scores: they bound the interval and what missing items could do. By default
    they are the bounds that the evaluator declares, else 0 and 1.
    """

    name = "mean"
    _ends_stand = True

    def __init__(
        self,
        low: float | None = None,
        high: float | None = None,
        cluster: str | None = None,
        confidence: float = 0.95,
    ) -> None:
        super().__init__(cluster, confidence)
        self.low = low
        self.high = high
        self._set_range((0.0, 1.0))

    def _set_range(self, declared: tuple[float | None, float | None]) -> None:
        low = declared[0] if self.low is None else self.low
        high = declared[1] if self.high is None else self.high
        self._bounds = low, high

    def for_evaluator(self, spec: EvaluatorSpec) -> Mean:
        """The same aggregator with the bounds that an evaluator declares."""
        adapted = copy.copy(self)
        adapted._set_range(spec.bounds or (0.0, 1.0))
        return adapted

    def finish(self, state: _State) -> Aggregate:
        mean, of = self._total(state)
        return Aggregate([mean_estimate(mean, self._bounds, of, self.confidence)])


def mean_estimate(
    mean: MeanState, bounds: tuple[float | None, float | None], of: int, confidence: float
) -> Estimate:
    """The mean of scores whose range an evaluator declares; None on a side without a limit."""
    low, high = bounds
    if low is not None and high is not None and low <= mean.least and mean.most <= high:
        return mean.estimate(confidence, of=of, bounds=(low, high))
    # A range that is open, or that a score lies outside of, bounds nothing: a missing score could be any.
    return msgspec.structs.replace(mean.estimate(confidence, of=of), lowest=None, highest=None)


@register_aggregator("accuracy")
class Accuracy(Passing, _Scores):
    """The share of correct items (score at least `threshold`) with Wilson's interval, clustered by example.

    Where lower scores are better, an item is correct if its score is at most `threshold`.

    `cluster` names a field of the metadata (a conversation, a document) whose examples belong together.
    """

    name = "accuracy"

    def __init__(self, threshold: float = 0.5, cluster: str | None = None, confidence: float = 0.95) -> None:
        super().__init__(cluster, confidence)
        self.threshold = threshold
        self._ends_stand = 0.0 < threshold <= 1.0

    def for_evaluator(self, spec: EvaluatorSpec) -> Self:
        """The same aggregator with the direction that an evaluator declares."""
        adapted = super().for_evaluator(spec)
        adapted._ends_stand = self._ends_stand and not adapted.lower_is_better
        return adapted

    def _value(self, state: _State, score: float) -> float:
        if score not in (0.0, 1.0):
            state.graded = True
        return 1.0 if self.passes(score) else 0.0

    def finish(self, state: _State) -> Aggregate:
        mean, of = self._total(state)
        estimate = mean.proportion(self.confidence, of=of)
        if state.graded:
            estimate.metadata["threshold"] = self.threshold
        return self.oriented(Aggregate([estimate]))


# Rates of values: the share of one given value, and of each value.

MOST_VALUES = 1000
MOST_SHARES = 50
"""Values that get an estimate of their own, the most frequent ones; all stand in the table."""
LONGEST_VALUE = 80


def field_value(result: Result, field: str) -> Any:
    """A field of a result: its `value`, `score` or `comment`, or a field of its metadata."""
    if field in ("value", "score", "comment"):
        return getattr(result, field)
    return paths.get(result.metadata, field.removeprefix("metadata."))


def value_text(value: object) -> str:
    """A value as text for a table: text unchanged, other values as JSON."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    )
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


_TRUE_OR_FALSE = {value_text(True), value_text(False), value_text(None)}


@register_aggregator("rate")
class Rate(Aggregator[Values]):
    """The share of results that say one of `values`, with Wilson's interval, clustered by example.

    `field` is what is looked at: the result's `value` (default), its `score`, its `comment`, or a field of its
    metadata. A result whose field is empty is no such value, and counts. Without `values`, it is the share of true
    among values that are true or false.
    """

    name = "rate"

    def __init__(
        self,
        values: object = None,
        field: str = "value",
        cluster: str | None = None,
        confidence: float = 0.95,
    ) -> None:
        wanted = values if isinstance(values, (list, tuple, set, frozenset)) else [values]
        self._is_default = values is None
        wanted = [True] if self._is_default else wanted
        if not wanted:
            raise ValueError("values is empty: name the values that count")
        self.values = sorted({value_text(value) for value in wanted})
        self.field = field
        self.cluster = cluster
        self.confidence = check_confidence(confidence)
        self._wanted = frozenset(self.values)

    def start(self) -> Values:
        return Values()

    def add(self, state: Values, group: Group) -> Values:
        found = [
            value_text(field_value(result.outcome.value, self.field))
            for result in group.results
            if isinstance(result.outcome, Ok)
        ]
        if self._is_default and (labels := {*found} - _TRUE_OR_FALSE):
            some = ", ".join(sorted(map(repr, labels))[:3])
            raise ValueError(
                f"values is not given, and a result has the {self.field} {some}: name those that count"
            )
        hits = [1.0 if each in self._wanted else 0.0 for each in found]
        state.add(hits, group.metadata, self.cluster)
        state.missing += group.missing
        return state

    def merge(self, a: Values, b: Values) -> Values:
        a.merge(b)
        return a

    def finish(self, state: Values) -> Aggregate:
        estimate = state.proportion(self.confidence, self.cluster)
        estimate.metadata["values"] = self.values
        return Aggregate([estimate])


class _Counts:
    __slots__ = ("everything", "values")

    def __init__(self) -> None:
        self.values: dict[str, Values] = {}
        self.everything = Values()


@register_aggregator("count_by")
class CountBy(Aggregator[_Counts]):
    """The count of each value, and its share of all results with Wilson's interval.

    `field` is what is looked at, as in `rate`. At most 1,000 different values: more are not labels.
    """

    name = "count_by"

    def __init__(self, field: str = "value", cluster: str | None = None, confidence: float = 0.95) -> None:
        self.field = field
        self.cluster = cluster
        self.confidence = check_confidence(confidence)

    def start(self) -> _Counts:
        return _Counts()

    def add(self, state: _Counts, group: Group) -> _Counts:
        found = [
            value_text(field_value(result.outcome.value, self.field))
            for result in group.results
            if isinstance(result.outcome, Ok)
        ]
        state.everything.missing += group.missing
        # Every result is in the denominator of every share; a cluster's ones are added to the values it has.
        state.everything.add([0.0] * len(found), group.metadata, self.cluster)
        for value in dict.fromkeys(found):
            hits = [1.0 if each == value else 0.0 for each in found]
            self._field_value(state, value).add(hits, group.metadata, self.cluster)
        return state

    def _field_value(self, state: _Counts, value: str) -> Values:
        have = state.values.get(value)
        if have is None:
            if len(state.values) >= MOST_VALUES:
                raise ValueError(
                    f"more than {MOST_VALUES} different values: this looks like free text, not labels"
                )
            have = state.values[value] = Values()
        return have

    def merge(self, a: _Counts, b: _Counts) -> _Counts:
        a.everything.merge(b.everything)
        for value, counts in b.values.items():
            self._field_value(a, value).merge(counts)
        return a

    def finish(self, state: _Counts) -> Aggregate:
        whole = state.everything.total(self.cluster)
        counts = {value: round(values.total(None).total.value) for value, values in state.values.items()}
        order: Sequence[str] = sorted(counts, key=lambda value: (-counts[value], value))
        out = Aggregate()
        out.add_table([{"value": value, "count": counts[value]} for value in order])
        for value in order[:MOST_SHARES]:
            share = state.values[value].within(state.everything, self.cluster)
            estimate = share.proportion(self.confidence, of=whole.n + state.everything.missing)
            out.add(estimate, group={"value": value})
        return out


# Step efficiency: the fewest steps that reach the goal, relative to the steps taken.

Steps = tuple[float | None, float | None, bool | None]
"""Steps taken, the fewest possible, whether the goal was reached; None where unknown."""


class _StepsState:
    __slots__ = ("every", "passed", "unknown")

    def __init__(self) -> None:
        self.every = Values()
        self.passed = Values()
        self.unknown = 0
        """Results without a number of steps."""


@register_aggregator("step_efficiency")
class StepEfficiency(Passing, Aggregator[_StepsState]):
    """Fewest steps / steps taken for what passed, 0 for what did not (Anderson et al. 2018), averaged.

    `steps` is the field of the result's metadata that holds the steps taken (a number, or a list that is
    counted); `optimal` the fewest, in the result's or the example's metadata. `passed` is the same over the
    results that passed (score at least `threshold`) alone.
    """

    name = "step_efficiency"

    def __init__(
        self,
        steps: str = "steps",
        optimal: str = "optimal_steps",
        threshold: float = 0.5,
        cluster: str | None = None,
        confidence: float = 0.95,
    ) -> None:
        self.steps = steps
        self.optimal = optimal
        self.threshold = threshold
        self.cluster = cluster
        self.confidence = check_confidence(confidence)

    def start(self) -> _StepsState:
        return _StepsState()

    def add(self, state: _StepsState, group: Group) -> _StepsState:
        found = []
        for result in group.results:
            if not isinstance(result.outcome, Ok):
                continue
            judged = result.outcome.value
            taken = count_of(paths.get(judged.metadata, self.steps))
            fewest = count_of(paths.get(judged.metadata, self.optimal))
            if fewest is None:
                fewest = count_of(paths.get(group.metadata, self.optimal))
            found.append((taken, fewest, None if judged.score is None else self.passes(judged.score)))
        state.every.missing += group.missing
        return self.add_steps(state, found, group.metadata)

    def add_steps(self, state: _StepsState, found: Iterable[Steps], metadata: dict[str, Any]) -> _StepsState:
        """Add the results of one example: the steps taken, the fewest possible, and whether it passed."""
        every: list[float] = []
        reached: list[float] = []
        for taken, fewest, passed in found:
            if taken is None or fewest is None or passed is None:
                state.unknown += 1
                continue
            share = 1.0 if taken <= fewest else fewest / taken
            every.append(share if passed else 0.0)
            if passed:
                reached.append(share)
        state.every.add(every, metadata, self.cluster)
        state.passed.add(reached, metadata, self.cluster)
        return state

    def merge(self, a: _StepsState, b: _StepsState) -> _StepsState:
        a.every.merge(b.every)
        a.passed.merge(b.passed)
        a.unknown += b.unknown
        return a

    def finish(self, state: _StepsState) -> Aggregate:
        if state.unknown and not state.every.total(self.cluster).n:
            raise ValueError(
                f"no result has a number of steps: add {self.steps!r} to the result's metadata, and {self.optimal!r}"
                " to it or to the example's"
            )
        # What is missing could have passed.
        missing, state.passed.missing = state.every.missing, state.every.missing + state.unknown
        state.every.missing += state.unknown
        try:
            out = Aggregate([state.every.estimate(self.confidence, self.cluster)])
            out.add(state.passed.estimate(self.confidence, self.cluster), "passed")
            return self.oriented(out)
        finally:
            state.every.missing, state.passed.missing = missing, 0


def count_of(value: object) -> float | None:
    """A number of steps, or the length of a list of them; None where it is neither."""
    if isinstance(value, (list, tuple)):
        return float(len(value))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        return None
    return float(value)


class Headline(Aggregator[tuple[_State, _Counts]]):
    """The numbers that are shown where no aggregator is named: the usual metric of each evaluator.

    That is the accuracy of an evaluator that declares `pass_fail`, and the mean of any other. Results that have labels
    and no scores are counted.
    """

    name = "headline"

    def __init__(self, confidence: float = 0.95) -> None:
        self.confidence = check_confidence(confidence)
        self.metric: Accuracy | Mean = Mean(confidence=confidence)
        self.labels = CountBy(confidence=confidence)

    def for_evaluator(self, spec: EvaluatorSpec) -> Headline:
        """The same aggregator with the usual metric of an evaluator."""
        adapted = copy.copy(self)
        accuracy, mean = Accuracy(confidence=self.confidence), Mean(confidence=self.confidence)
        adapted.metric = accuracy if spec.usual_metric == "accuracy" else mean.for_evaluator(spec)
        return adapted

    def start(self) -> tuple[_State, _Counts]:
        return self.metric.start(), self.labels.start()

    def add(self, state: tuple[_State, _Counts], group: Group) -> tuple[_State, _Counts]:
        scores, labels = state
        unscored = scores.unscored, scores.values.missing
        self.metric.add(scores, group)
        if (scores.unscored, scores.values.missing) != unscored:  # as good as never, where there are scores
            self.labels.add(labels, group)
        return state

    def merge(self, a: tuple[_State, _Counts], b: tuple[_State, _Counts]) -> tuple[_State, _Counts]:
        return self.metric.merge(a[0], b[0]), self.labels.merge(a[1], b[1])

    def finish(self, state: tuple[_State, _Counts]) -> Aggregate:
        scores, labels = state
        scored = scores.zeros or scores.ones or scores.values.mean.n
        if scores.unscored and not scored and isinstance(self.metric, Mean):
            name, found = self.labels.name, self.labels.finish(labels)
        else:
            name, found = self.metric.name, self.metric.finish(scores)
        return Aggregate([each.about(aggregator=name) for each in found.estimates], found.tables)
