"""Which scores of two runs belong together: the same item of the same example, or the means of an example."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from karat.comparison.scores import Scores


class Paired(NamedTuple):
    """Two runs' scores side by side."""

    examples: list[str]
    """The example of each pair: its cluster, unless another is asked for."""
    first: list[float | None]
    second: list[float | None]
    several: bool
    """Whether examples have several pairs."""
    note: str
    """What could not be paired."""


def pair_scores(
    first: Scores, second: Scores, shared: Callable[[str], bool], transform: Callable[[float], float]
) -> Paired:
    """Pairs the scores of the examples that both runs have; attempt with attempt where they made equally many.

    An item that one run lacks within an example both have is a missing score, not a smaller comparison.
    """
    mine, theirs = _by_example(first, transform), _by_example(second, transform)
    both = [example for example in mine if example in theirs and shared(example)]
    note = _note(len(mine), len(theirs), len(both))
    if any(mine[example].keys() != theirs[example].keys() for example in both):
        if any(len(mine[example]) != len(theirs[example]) for example in both):
            note = _joined(
                note, "the runs made different numbers of attempts, so means of examples are compared"
            )
            means = [(_mean(mine[example]), _mean(theirs[example])) for example in both]
            return Paired(both, [a for a, _ in means], [b for _, b in means], False, note)
        note = _joined(note, "units that only one run has count as missing in the other")
    examples: list[str] = []
    a: list[float | None] = []
    b: list[float | None] = []
    for example in both:
        for item in dict.fromkeys([*mine[example], *theirs[example]]):
            examples.append(example)
            a.append(mine[example].get(item))
            b.append(theirs[example].get(item))
    return Paired(examples, a, b, len(examples) > len(both), note)


def _by_example(
    scores: Scores, transform: Callable[[float], float]
) -> dict[str, dict[Hashable, float | None]]:
    out: dict[str, dict[Hashable, float | None]] = {}
    for (example, attempt, unit), score in scores.items.items():
        out.setdefault(example, {})[attempt, unit] = None if score is None else transform(score)
    return out


def _mean(scores: dict[Hashable, float | None]) -> float | None:
    """The mean of an example's scores; None when one is missing, for which could be any."""
    known = [score for score in scores.values() if score is not None]
    return sum(known) / len(known) if known and len(known) == len(scores) else None


def _note(mine: int, theirs: int, both: int) -> str:
    if mine == theirs == both:
        return ""
    return f"compared over the {both:,} examples that both have, of {mine:,} and {theirs:,}"


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
