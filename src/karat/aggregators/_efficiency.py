"""Step efficiency: the fewest steps that reach the goal, relative to the steps taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from karat import paths
from karat.aggregators._base import Aggregate, Aggregator, Group, register_aggregator
from karat.aggregators._folding import Values
from karat.records import Ok

Steps = tuple[float | None, float | None, bool | None]
"""Steps taken, the fewest possible, whether the goal was reached; None where unknown."""


class _State:
    __slots__ = ("every", "passed", "unknown")

    def __init__(self) -> None:
        self.every = Values()
        self.passed = Values()
        self.unknown = 0
        """Results without a number of steps."""


@register_aggregator("step_efficiency")
class StepEfficiency(Aggregator[_State]):
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
        self.confidence = confidence

    def start(self) -> _State:
        return _State()

    def add(self, state: _State, group: Group) -> _State:
        found = []
        for result in group.results:
            if not isinstance(result.outcome, Ok):
                continue
            judged = result.outcome.value
            taken = count_of(paths.get(judged.metadata, self.steps))
            fewest = count_of(paths.get(judged.metadata, self.optimal))
            if fewest is None:
                fewest = count_of(paths.get(group.metadata, self.optimal))
            found.append((taken, fewest, None if judged.score is None else judged.score >= self.threshold))
        state.every.missing += group.missing
        return self.add_steps(state, found, group.metadata)

    def add_steps(self, state: _State, found: Iterable[Steps], metadata: dict[str, Any]) -> _State:
        """Adds the results of one example: steps taken, the fewest, and whether it passed."""
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

    def merge(self, a: _State, b: _State) -> _State:
        a.every.merge(b.every)
        a.passed.merge(b.passed)
        a.unknown += b.unknown
        return a

    def finish(self, state: _State) -> Aggregate:
        if state.unknown and not state.every.total(self.cluster).n:
            raise ValueError(
                f"no result has its number of steps: it needs {self.steps!r} in the result's metadata and"
                f" {self.optimal!r} there or in the example's"
            )
        state.every.missing += state.unknown
        try:
            out = Aggregate([state.every.estimate(self.confidence, self.cluster)])
            out.add(state.passed.estimate(self.confidence, self.cluster), "passed")
            return out
        finally:
            state.every.missing -= state.unknown


def count_of(value: object) -> float | None:
    """A number of steps, or the length of a list of them; None where it is neither."""
    if isinstance(value, (list, tuple)):
        return float(len(value))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        return None
    return float(value)
