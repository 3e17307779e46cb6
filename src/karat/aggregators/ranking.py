"""The ranking that comparisons of runs amount to, by Bradley–Terry, as an aggregator."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from karat.aggregators.base import Aggregate, Aggregator, Group, not_applicable, register_aggregator
from karat.records import Ok

Signature = tuple[tuple[str, str, float], ...]
"""The comparisons of one example, sorted: few different ones, however many examples."""


class _State:
    __slots__ = ("missing", "missing_of", "signatures")

    def __init__(self) -> None:
        self.signatures: dict[Signature, int] = {}
        self.missing = 0
        self.missing_of: Counter[str] = Counter()
        """Of each run, where it is known which runs were to be compared."""


@register_aggregator("ranking")
class Ranking(Aggregator[_State]):
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

    def start(self) -> _State:
        return _State()

    def add(self, state: _State, group: Group) -> _State:
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

    def merge(self, a: _State, b: _State) -> _State:
        for signature, times in b.signatures.items():
            a.signatures[signature] = a.signatures.get(signature, 0) + times
        a.missing += b.missing
        a.missing_of.update(b.missing_of)
        return a

    def finish(self, state: _State) -> Aggregate:
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
