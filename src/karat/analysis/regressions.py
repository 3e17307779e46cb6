"""The examples on which a run is better or worse than the baseline, with both outputs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from karat.analysis.scores import Paired, example_at
from karat.records import EvaluatorSpec, Failed, Ok, Output, Skipped
from karat.stats._paired import score_differences
from karat.store.handles import Run
from karat.store.repositories import latest, output_decoder
from karat.traces import TraceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST = 2000
"""Characters that are kept of an input or an output; reports show fewer."""


class ChangedExample(msgspec.Struct, frozen=True):
    """One example that got better or worse."""

    metric: str
    example: str
    baseline: str
    run: str
    unit: str = ""
    """The unit that changed by most, whose outputs are shown; empty for examples without units."""
    first: float = 0.0
    """The baseline's score, the mean of its attempts and units."""
    second: float = 0.0
    input: str = ""
    expected: str = ""
    first_output: str = ""
    second_output: str = ""
    calls: str = ""
    """What differs in the tool calls, where both outputs are trajectories."""


class ExampleChanges(msgspec.Struct, frozen=True):
    """How many examples are better, worse and the same, and which lack a score; the mean of their attempts counts."""

    better: int = 0
    worse: int = 0
    same: int = 0
    missing: int = 0


class Changes:
    """The mean scores of two runs for each example that both have."""

    def __init__(self, spec: EvaluatorSpec, pairs: Paired, most: int) -> None:
        """Keep so many of the examples that changed, in either direction."""
        import numpy as np

        self._spec = spec
        sign = 1.0 if spec.higher_is_better else -1.0
        complete = ~(np.isnan(pairs.first) | np.isnan(pairs.second))
        examples: NDArray[Any] = pairs.examples
        if len(examples) > 1 and not bool((examples[1:] > examples[:-1]).all()):
            examples, places = np.unique(examples, return_inverse=True)
            places, count = places[complete], len(examples)
            n = np.bincount(places, minlength=count)
            scored = n > 0
            examples, n = examples[scored], n[scored]
            first, second = (
                np.bincount(places, weights=scores[complete], minlength=count)[scored] / n
                for scores in (pairs.first, pairs.second)
            )
        else:  # a pair for each example, in order
            count = len(examples)
            examples, first, second = examples[complete], pairs.first[complete], pairs.second[complete]
            n = examples
        changes = sign * score_differences(first, second)
        better, worse = int((changes > 0).sum()), int((changes < 0).sum())
        self.counts = ExampleChanges(better, worse, len(n) - better - worse, count - len(n))

        def largest(direction: int) -> list[_Changed]:
            falls = direction * changes
            chosen = np.flatnonzero(falls < 0)
            order = chosen[np.lexsort((examples[chosen], falls[chosen]))][:most]
            columns = (examples[order].tolist(), first[order].tolist(), second[order].tolist())
            units = [unit_of(example, direction) for example in columns[0]]
            return [_Changed(*each) for each in zip(*columns, units, strict=True)]

        def unit_of(example: int, direction: int) -> str:
            """The unit of an example that changed by most."""
            if pairs.units is None:
                return ""
            here = np.flatnonzero((pairs.examples == example) & complete)
            return pairs.units(int(here[np.argmin(direction * sign * (pairs.second - pairs.first)[here])]))

        self._worse, self._better = largest(1), largest(-1)

    def examples(self, baseline: Run, run: Run, most: int, *, better: bool) -> list[ChangedExample]:
        """The examples that changed by most in one direction, at most so many, then in dataset order."""
        return [
            _side_by_side(self._spec.key, baseline, run, each)
            for each in (self._better if better else self._worse)[:most]
        ]


class _Changed(NamedTuple):
    """The position of an example, its mean scores in both runs, and the unit that changed by most."""

    position: int
    first: float
    second: float
    unit: str


def _side_by_side(key: str, baseline: Run, run: Run, changed: _Changed) -> ChangedExample:
    position = changed.position
    known = example_at(baseline.store, baseline.header.dataset, position)
    example = known.id if known else ""
    # In another dataset the same example may have another position.
    there = position if run.header.dataset == baseline.header.dataset else _position(run, example)
    mine, theirs = _output(baseline, position, changed.unit), _output(run, there, changed.unit)
    summary = mine.summary if mine is not None else {}
    return ChangedExample(
        metric=key,
        example=example,
        baseline=baseline.id,
        run=run.id,
        unit=changed.unit,
        first=changed.first,
        second=changed.second,
        input=shown(summary.get("input", known.input)) if known else "",
        expected=shown(summary.get("expected", known.expected))
        if known and known.expected is not None
        else "",
        first_output=_outcome(mine),
        second_output=_outcome(theirs),
        calls=call_differences(mine, theirs),
    )


def _position(run: Run, example: str) -> int:
    return next((place for place, each in enumerate(run.dataset) if each.id == example), -1)


def _output(run: Run, position: int, unit: str) -> Output | None:
    """The first attempt of a run at a unit of the example at a position."""
    rows = latest(run.store.backend.scan(run.number, position, position + 1)) if position >= 0 else ()
    outputs = (output_decoder.decode(row.payload) for row in rows)
    return next((output for output in outputs if output.unit == unit), None)


def _outcome(output: Output | None) -> str:
    if output is None:
        return ""
    outcome = output.outcome
    if isinstance(outcome, Ok):
        return shown(output.summary.get("output", outcome.value))
    if isinstance(outcome, Failed):
        return f"failed: {outcome.error.type}: {outcome.error.message[:LONGEST]}"
    assert isinstance(outcome, Skipped)
    return f"skipped: {outcome.reason}"


def shown(value: object) -> str:
    """Return a value as bounded text: text unchanged, anything else as JSON."""
    if isinstance(value, str):
        text = value[: LONGEST + 1]
    else:
        text = msgspec.json.encode(value, enc_hook=repr)[: 4 * LONGEST].decode("utf-8", "replace")
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def call_differences(first: Output | None, second: Output | None) -> str:
    """How the tool calls of a run differ from the baseline's, in words; empty where there are none to compare."""
    from karat.evaluators.trajectory.match import TrajectoryMatchEvaluator

    if (
        first is None
        or second is None
        or not isinstance(first.outcome, Ok)
        or not isinstance(second.outcome, Ok)
    ):
        return ""
    try:
        reference = _trajectory(first)
        if reference is None or _trajectory(second) is None:
            return ""
        judged = TrajectoryMatchEvaluator().evaluate(
            outputs=second.value, reference_outputs=reference, output=second
        )
    except TraceError:
        return ""
    if judged.score == 1.0:
        return "the same calls"
    return judged.comment.partition(": ")[2][:LONGEST]


def _trajectory(output: Output) -> Any:
    """The output as a trajectory with tool calls, or None."""
    from karat.evaluators.trajectory._calls import read_trajectory

    try:
        trajectory = read_trajectory(output.value, output.trace)
    except TraceError:
        return None
    return trajectory.to_dict()["steps"] if trajectory.calls else None
