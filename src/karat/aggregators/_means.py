"""The mean score and the share of correct items, clustered by example where there are several attempts."""

from __future__ import annotations

import copy
import math

import msgspec

from karat.aggregators._base import Aggregate, Aggregator, Group, register_aggregator
from karat.aggregators._folding import Values
from karat.records import EvaluatorSpec, Ok
from karat.stats._means import MeanState


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
    """What the two share: scores of an example are a cluster; what has no score is counted."""

    _ends_stand = False
    """Whether `_value` gives the scores 0 and 1 back and notes nothing."""

    def __init__(self, cluster: str | None = None, confidence: float = 0.95) -> None:
        self.cluster = cluster
        self.confidence = confidence

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
            raise ValueError("these results have labels and no scores: count them with count_by")
        return mean, mean.n + state.values.missing + state.unscored


@register_aggregator("mean")
class Mean(_Scores):
    """The mean score with its interval, clustered by example or by a field of the metadata (`cluster`).

    `low` and `high` are the range of the scores: they bound the interval and what missing items could do. By default
    they are the bounds that the evaluator declares, else 0 and 1.
    """

    name = "mean"

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
        self._low = -math.inf if low is None else low
        self._high = math.inf if high is None else high
        self._ends_stand = self._low <= 0.0 and self._high >= 1.0

    def for_evaluator(self, spec: EvaluatorSpec) -> Mean:
        """The same aggregator with the bounds that an evaluator declares."""
        adapted = copy.copy(self)
        adapted._set_range(spec.bounds or (0.0, 1.0))
        return adapted

    def _value(self, state: _State, score: float) -> float:
        if not self._low <= score <= self._high:
            state.graded = True  # scores outside the stated range: it bounds nothing then
        return score

    def finish(self, state: _State) -> Aggregate:
        mean, of = self._total(state)
        bounds = (self._low, self._high)
        if not state.graded and all(map(math.isfinite, bounds)):
            return Aggregate([mean.estimate(self.confidence, of=of, bounds=bounds)])
        estimate = mean.estimate(self.confidence, of=of)
        # A missing score could be any.
        return Aggregate([msgspec.structs.replace(estimate, lowest=None, highest=None)])


@register_aggregator("accuracy")
class Accuracy(_Scores):
    """The share of correct items (score at least `threshold`) with Wilson's interval, clustered by example.

    `cluster` names a field of the metadata (a conversation, a document) whose examples belong together.
    """

    name = "accuracy"

    def __init__(self, threshold: float = 0.5, cluster: str | None = None, confidence: float = 0.95) -> None:
        super().__init__(cluster, confidence)
        self.threshold = threshold
        self._ends_stand = 0.0 < threshold <= 1.0

    def _value(self, state: _State, score: float) -> float:
        if score not in (0.0, 1.0):
            state.graded = True
        return 1.0 if score >= self.threshold else 0.0

    def finish(self, state: _State) -> Aggregate:
        mean, of = self._total(state)
        estimate = mean.proportion(self.confidence, of=of)
        if state.graded:
            estimate.metadata["threshold"] = self.threshold
        return Aggregate([estimate])


class Headline(Aggregator[tuple[_State, _State]]):
    """The number that is shown where no aggregator is named: accuracy where every score is 0 or 1, else the mean.

    Of an evaluator whose lower scores are better it is the mean: a share of failures is not an accuracy. The same goes
    for one with other bounds than 0 and 1, whose scores may happen to be these.
    """

    name = "headline"

    def __init__(self, confidence: float = 0.95) -> None:
        self.mean, self.accuracy = Mean(confidence=confidence), Accuracy(confidence=confidence)
        self.always_mean = False

    def for_evaluator(self, spec: EvaluatorSpec) -> Headline:
        """The same aggregator with the bounds and the direction of an evaluator."""
        adapted = copy.copy(self)
        adapted.mean = self.mean.for_evaluator(spec)
        adapted.always_mean = not spec.higher_is_better or spec.bounds not in (None, (0.0, 1.0))
        return adapted

    def start(self) -> tuple[_State, _State]:
        return self.mean.start(), self.accuracy.start()

    def add(self, state: tuple[_State, _State], group: Group) -> tuple[_State, _State]:
        return self.mean.add(state[0], group), self.accuracy.add(state[1], group)

    def merge(self, a: tuple[_State, _State], b: tuple[_State, _State]) -> tuple[_State, _State]:
        return self.mean.merge(a[0], b[0]), self.accuracy.merge(a[1], b[1])

    def finish(self, state: tuple[_State, _State]) -> Aggregate:
        chosen, index = (self.mean, 0) if state[1].graded or self.always_mean else (self.accuracy, 1)
        found = chosen.finish(state[index])
        return Aggregate([each.about(aggregator=chosen.name) for each in found.estimates])
