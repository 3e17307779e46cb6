"""How economically goals were reached: the fewest steps that would have done, against those taken."""

from __future__ import annotations

from typing import Any

from karat.aggregators.base import Aggregate, Aggregator, Group, register_aggregator
from karat.aggregators.folding import Values, field_of
from karat.records import Ok


class _State:
    __slots__ = ("every", "passed", "untold")

    def __init__(self) -> None:
        self.every = Values()
        self.passed = Values()
        self.untold = 0
        """Results that do not tell how many steps there were."""


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
        every: list[float] = []
        passed: list[float] = []
        for result in group.results:
            if not isinstance(result.outcome, Ok):
                continue
            said = result.outcome.value
            taken = _count(field_of(said.metadata, self.steps))
            fewest = _count(field_of(said.metadata, self.optimal))
            if fewest is None:
                fewest = _count(field_of(group.metadata, self.optimal))
            if taken is None or fewest is None or said.score is None:
                state.untold += 1
                continue
            share = 1.0 if taken <= fewest else fewest / taken
            every.append(share if said.score >= self.threshold else 0.0)
            if said.score >= self.threshold:
                passed.append(share)
        state.every.add(every, group.metadata, self.cluster)
        state.passed.add(passed, group.metadata, self.cluster)
        state.every.missing += group.missing
        return state

    def merge(self, a: _State, b: _State) -> _State:
        a.every.merge(b.every)
        a.passed.merge(b.passed)
        a.untold += b.untold
        return a

    def finish(self, state: _State) -> Aggregate:
        if state.untold and not state.every.total(self.cluster).n:
            raise ValueError(
                f"no result tells its steps: it needs {self.steps!r} in the result's metadata and"
                f" {self.optimal!r} there or in the example's"
            )
        state.every.missing += state.untold
        try:
            return Aggregate(
                {
                    "": state.every.estimate(self.confidence, self.cluster),
                    "passed": state.passed.estimate(self.confidence, self.cluster),
                }
            )
        finally:
            state.every.missing -= state.untold


def _count(value: Any) -> float | None:
    if isinstance(value, (list, tuple)):
        return float(len(value))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        return None
    return float(value)
