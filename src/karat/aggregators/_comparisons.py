"""What comparisons of runs amount to: how often each run wins, and how often the first shown does."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from karat.aggregators._base import Aggregate, Aggregator, Group, not_applicable, register_aggregator
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


Signature = tuple[tuple[str, str, float], ...]
"""The comparisons of one example, sorted: few different ones, however many examples."""


class _Signatures:
    __slots__ = ("missing", "missing_of", "signatures")

    def __init__(self) -> None:
        self.signatures: dict[Signature, int] = {}
        self.missing = 0
        self.missing_of: Counter[str] = Counter()
        """Of each run, where it is known which runs were to be compared."""


@register_aggregator("ranking")
class Ranking(Aggregator[_Signatures]):
    """Ratings of runs from their comparisons (Bradley–Terry, on the Elo scale), clustered by example.

    The table has rank ranges, win rates, connected components, win probabilities and the position bias.
    """

    name = "ranking"
    over = frozenset({"pair"})

    def __init__(
        self, prior: float = 1.0, ties: Literal["half", "davidson"] = "half", confidence: float = 0.95
    ) -> None:
        self.prior = prior
        self.ties = ties
        self.confidence = confidence

    def start(self) -> _Signatures:
        return _Signatures()

    def add(self, state: _Signatures, group: Group) -> _Signatures:
        found = []
        for result in group.results:
            if isinstance(result.outcome, Ok) and result.outcome.value.score is not None:
                first, second = result.runs
                found.append((first, second, result.outcome.value.score))
            elif not not_applicable(result):
                state.missing += 1
                state.missing_of.update(result.runs)
        if found:
            signature = tuple(sorted(found))
            state.signatures[signature] = state.signatures.get(signature, 0) + 1
        state.missing += group.pending
        return state

    def merge(self, a: _Signatures, b: _Signatures) -> _Signatures:
        for signature, times in b.signatures.items():
            a.signatures[signature] = a.signatures.get(signature, 0) + times
        a.missing += b.missing
        a.missing_of.update(b.missing_of)
        return a

    def finish(self, state: _Signatures) -> Aggregate:
        import msgspec

        from karat.stats._ratings import bradley_terry

        rows: list[tuple[str, str, float]] = []
        clusters: list[int] = []
        cluster = 0
        for signature in sorted(state.signatures):
            for _ in range(state.signatures[signature]):
                rows += signature
                clusters += [cluster] * len(signature)
                cluster += 1
        names = sorted({name for row in rows for name in row[:2]})
        made = bradley_terry(
            rows, clusters=clusters, names=names, prior=self.prior, ties=self.ties, confidence=self.confidence
        )
        replace = msgspec.structs.replace
        out = Aggregate()
        for run in made.runs:
            out.add(replace(run.rating, of=run.rating.n + state.missing_of[run.name]), run=run.name)
        out.add(replace(made.position_bias, of=made.n + state.missing), "position_bias")
        table: dict[str, Any] = {
            "runs": [msgspec.to_builtins(run) for run in made.runs],
            "components": made.components,
            "win_probability": made.win_probability,
            "n": made.n,
            "of": made.n + state.missing,
            "ties": made.ties,
        }
        out.add_table(table, "ranking")
        return out
