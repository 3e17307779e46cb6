"""How few tries steps took: 1 for a step that was right at once, less for each retry, 0 for one that never was.

A step's value is known once nothing that is missing could change it: a try without a verdict counts neither as right
nor as wrong, and only matters where no earlier try was right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from karat.aggregators.folding import Values
from karat.records import Estimate


def retry_of(metadata: Mapping[str, Any]) -> int | None:
    """Which try a result is of, 0 for the first: `retry_number`, or the number at the end of `retry_id`."""
    told = metadata.get("retry_number")
    if told is None:
        told = metadata.get("retry_id")
    if told is None:
        return None
    number = told.rpartition("_")[2] if isinstance(told, str) else told
    if isinstance(number, str) and number.isdecimal() and len(number) < 10:
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(
            f"{told!r:.60} tells no retry: it is a number from 0 up, or ends in one as retry_0 does"
        )
    return number


class _Step:
    """The first try at a step that was right, and the first that has no verdict."""

    __slots__ = ("right", "unjudged")

    def __init__(self) -> None:
        self.right: int | None = None
        self.unjudged: int | None = None

    @property
    def known(self) -> bool:
        """Whether its missing tries do not matter."""
        return self.unjudged is None or (self.right is not None and self.right < self.unjudged)


class Tries:
    """The tries at steps, of which `mission_id` and `step_id` tell one from another; merges in any order."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps: dict[tuple[str, str], _Step] = {}

    def add(self, metadata: Mapping[str, Any], retry: int, correct: bool | None) -> None:
        """Adds a try: whether it was right, None where that is not known."""
        name = (str(metadata.get("mission_id")), str(metadata.get("step_id")))
        step = self.steps.setdefault(name, _Step())
        if correct is None:
            step.unjudged = _first(step.unjudged, retry)
        elif correct:
            step.right = _first(step.right, retry)

    def merge(self, other: Tries) -> None:
        """Adds the tries of another."""
        for name, theirs in other.steps.items():
            step = self.steps.setdefault(name, _Step())
            step.right = _first(step.right, theirs.right)
            step.unjudged = _first(step.unjudged, theirs.unjudged)

    def efficiency(self, penalty: float, unknown: int, confidence: float) -> Estimate:
        """The mean over steps; `unknown` are results of which not even the step is known, a step each."""
        values = Values()
        for step in self.steps.values():
            if step.known:
                share = 0.0 if step.right is None else max(0.0, 1.0 - penalty * step.right)
                values.add([share], {}, None)
            else:
                values.missing += 1
        values.missing += unknown
        return values.estimate(confidence)

    def counts(self) -> dict[str, Any]:
        """Of the steps whose value is known: right at once, right later, never right."""
        rights = list(self._rights())
        found = [right for right in rights if right is not None]
        return {
            "first_attempt_correct": found.count(0),
            "retry_correct": len(found) - found.count(0),
            "never_correct": len(rights) - len(found),
            "avg_retries_when_correct": sum(found) / len(found) if found else None,
        }

    def _rights(self) -> Iterator[int | None]:
        return (step.right for step in self.steps.values() if step.known)


def _first(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
