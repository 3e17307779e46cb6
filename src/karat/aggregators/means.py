"""The mean score and the share of correct items, clustered by example where there are several attempts."""

from __future__ import annotations

from karat.aggregators.base import Aggregate, Aggregator, Group, register_aggregator
from karat.records import Ok
from karat.stats.means import MeanState


class _State:
    __slots__ = ("graded", "mean", "missing", "unscored")

    def __init__(self) -> None:
        self.mean = MeanState()
        self.missing = 0
        self.unscored = 0
        """Ok results without a score: labels, which have no mean."""
        self.graded = False


class _Scores(Aggregator[_State]):
    """What the two share: scores of an example are a cluster; what has no score is counted."""

    def __init__(self, confidence: float = 0.95) -> None:
        self.confidence = confidence

    def start(self) -> _State:
        return _State()

    def add(self, state: _State, group: Group) -> _State:
        results = group.results
        if len(results) == 1 and not group.pending:
            outcome = results[0].outcome
            if isinstance(outcome, Ok) and (score := outcome.value.score) is not None:
                state.mean.add_one(self._value(state, score))
                return state
        scores = group.scores()
        state.mean.add([self._value(state, score) for score in scores])
        state.missing += group.missing
        state.unscored += sum(isinstance(r.outcome, Ok) for r in results) - len(scores)
        return state

    def merge(self, a: _State, b: _State) -> _State:
        a.mean.merge(b.mean)
        a.missing += b.missing
        a.unscored += b.unscored
        a.graded |= b.graded
        return a

    def _value(self, state: _State, score: float) -> float:
        return score

    def _of(self, state: _State) -> int:
        if state.unscored and not state.mean.n:
            raise ValueError("these results have labels and no scores: count them with count_by")
        return state.mean.n + state.missing + state.unscored


@register_aggregator("mean")
class Mean(_Scores):
    """The mean score with a t interval, clustered by example.

    `low` and `high` are the range of the scores: they bound the interval and what missing items could do.
    """

    name = "mean"

    def __init__(self, low: float = 0.0, high: float = 1.0, confidence: float = 0.95) -> None:
        super().__init__(confidence)
        self.low = low
        self.high = high
        self._outside = False

    def _value(self, state: _State, score: float) -> float:
        if not self.low <= score <= self.high:
            state.graded = True  # scores outside the stated range: it bounds nothing then
        return score

    def finish(self, state: _State) -> Aggregate:
        bounds = None if state.graded else (self.low, self.high)
        return Aggregate({"": state.mean.estimate(self.confidence, of=self._of(state), bounds=bounds)})


@register_aggregator("accuracy")
class Accuracy(_Scores):
    """The share of correct items (score at least `threshold`) with Wilson's interval, clustered by example."""

    name = "accuracy"

    def __init__(self, threshold: float = 0.5, confidence: float = 0.95) -> None:
        super().__init__(confidence)
        self.threshold = threshold

    def _value(self, state: _State, score: float) -> float:
        if score not in (0.0, 1.0):
            state.graded = True
        return 1.0 if score >= self.threshold else 0.0

    def finish(self, state: _State) -> Aggregate:
        estimate = state.mean.proportion(self.confidence, of=self._of(state))
        if state.graded:
            estimate.metadata["threshold"] = self.threshold
        return Aggregate({"": estimate})
