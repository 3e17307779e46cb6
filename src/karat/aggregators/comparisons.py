"""What comparisons of runs amount to: how often each run wins, and how often the first shown does."""

from __future__ import annotations

from typing import Any

from karat.aggregators.base import Aggregate, Aggregator, Group, not_applicable, register_aggregator
from karat.records import Ok
from karat.stats._means import MeanState


class _State:
    __slots__ = ("absent", "first", "missing", "pairs", "runs")

    def __init__(self) -> None:
        self.runs: dict[str, MeanState] = {}
        self.missing: dict[str, int] = {}
        self.absent = 0
        """All comparisons that are missing; of those still pending it is not known which runs' they are."""
        self.first = MeanState()
        self.pairs: dict[tuple[str, str], list[int]] = {}
        """Wins, ties and losses of the first of two runs, by their names in order."""


@register_aggregator("win_rate")
class WinRate(Aggregator[_State]):
    """How often each run wins its comparisons (a tie is half a win), clustered by example, with each pair's
    wins, ties and losses, and how often the output shown first wins."""

    name = "win_rate"
    over = frozenset({"pair"})

    def __init__(self, confidence: float = 0.95) -> None:
        self.confidence = confidence

    def start(self) -> _State:
        return _State()

    def add(self, state: _State, group: Group) -> _State:
        state.absent += group.pending
        scores: dict[str, list[float]] = {}
        shown_first: list[float] = []
        for result in group.results:
            first, second = result.runs
            if not_applicable(result):
                continue
            if not isinstance(result.outcome, Ok):
                state.absent += 1
                for run in (first, second):
                    state.missing[run] = state.missing.get(run, 0) + 1
                continue
            score = result.outcome.value.score
            assert score is not None  # a stored comparison has one
            scores.setdefault(first, []).append(score)
            scores.setdefault(second, []).append(1.0 - score)
            shown_first.append(score)
            a, b, mine = (first, second, score) if first < second else (second, first, 1.0 - score)
            counts = state.pairs.setdefault((a, b), [0, 0, 0])
            counts[0 if mine > 0.5 else 2 if mine < 0.5 else 1] += 1
        for run, values in scores.items():
            state.runs.setdefault(run, MeanState()).add(values)
        state.first.add(shown_first)
        return state

    def merge(self, a: _State, b: _State) -> _State:
        for run, mean in b.runs.items():
            a.runs.setdefault(run, MeanState()).merge(mean)
        for run, missing in b.missing.items():
            a.missing[run] = a.missing.get(run, 0) + missing
        a.absent += b.absent
        a.first.merge(b.first)
        for pair, counts in b.pairs.items():
            have = a.pairs.setdefault(pair, [0, 0, 0])
            for index, count in enumerate(counts):
                have[index] += count
        return a

    def finish(self, state: _State) -> Aggregate:
        out = Aggregate()
        for run in sorted({*state.runs, *state.missing}):
            mean = state.runs.get(run) or MeanState()
            of = mean.n + state.missing.get(run, 0)
            out.add(mean.estimate(self.confidence, of=of, bounds=(0.0, 1.0)), run=run)
        first = state.first
        shown_first = first.estimate(self.confidence, of=first.n + state.absent, bounds=(0.0, 1.0))
        out.add(shown_first, "shown_first")
        rows: list[dict[str, Any]] = [
            {"first": a, "second": b, "wins": wins, "ties": ties, "losses": losses}
            for (a, b), (wins, ties, losses) in sorted(state.pairs.items())
        ]
        out.add_table(rows, "pairs")
        return out
