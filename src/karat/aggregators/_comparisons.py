"""Comparisons of runs: how often each run wins, how the runs rank, and how often the output shown first wins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import msgspec

from karat.aggregators._base import (
    Aggregate,
    Aggregator,
    Group,
    higher_is_better,
    not_applicable,
    register_aggregator,
)
from karat.errors import did_you_mean
from karat.records import Estimate, Failed, ItemResult, Ok, Skipped, order_verdicts
from karat.stats._means import MeanState
from karat.stats._proportions import with_bounds
from karat.stats._validation import check_confidence

Failures = Literal["lose", "leave_out"]
"""What a failed output does: it loses against one that succeeded and ties with one that failed, or it is left out."""

Method = Literal["bradley_terry", "elo"]

SHUFFLES = 100
"""Orders that classic Elo ratings are averaged over."""

SAME_RATING = 1e-6
"""Ratings that differ by less, on the Elo scale, are equal."""


class Compared(NamedTuple):
    """One comparison of two runs: 1 for a win of the first, 0.5 for a tie, 0 for a loss."""

    first: str
    second: str
    outcome: float
    by: Literal["shown", "scored", "failed"] = "shown"
    """What decided it: an evaluator that was shown the first before the second, scores, or a failed output."""
    positions: tuple[float, ...] = ()
    """Where a judge saw the outputs in both orders, its verdict in each: 1 if the output shown first won."""


class Outcomes(NamedTuple):
    """The verdicts of one result about pairs of runs."""

    compared: list[Compared]
    missing: list[tuple[str, str]]
    """The pairs that should have been compared and were not."""


def outcomes_of(result: ItemResult, failures: Failures = "lose") -> Outcomes:
    """The comparisons in the result of an evaluator that sees two runs, or all runs together.

    A failed judgment is missing, never a loss.
    """
    outcome, pairs = result.outcome, list(combinations(result.runs, 2))
    if not_applicable(result):
        return Outcomes([], [])
    if isinstance(outcome, Ok):
        if len(result.runs) == 2 and outcome.value.score is not None:
            positions = order_verdicts(outcome.value.metadata)
            return Outcomes([Compared(*result.runs, outcome.value.score, positions=positions)], [])
        ranks = _ranks(outcome.value.value)
        if len(ranks) != len(result.runs):
            return Outcomes([], pairs)
        found = [
            Compared(result.runs[i], result.runs[j], better(-ranks[i], -ranks[j]), "scored")
            for i, j in combinations(range(len(ranks)), 2)
        ]
        return Outcomes(found, [])
    failed = set(outcome.failed_outputs) if isinstance(outcome, Skipped) and failures == "lose" else set()
    decided = [pair for pair in pairs if failed.intersection(pair)]
    return Outcomes(
        [Compared(a, b, better(a not in failed, b not in failed), "failed") for a, b in decided],
        [pair for pair in pairs if not failed.intersection(pair)],
    )


def _ranks(value: Any) -> list[float]:
    """The rank of each run in the value of a joint result, 1 for the best; empty where it has none."""
    ranks = value.get("ranks") if isinstance(value, dict) else None
    return ranks if isinstance(ranks, list) else []


def better(first: float, second: float, margin: float = 0.0) -> float:
    """1 where the first is higher, 0 where it is lower, 0.5 where they differ by at most `margin`."""
    return 0.5 if abs(first - second) <= margin else float(first > second)


Signature = tuple[Compared, ...]
"""The comparisons of one example, sorted: few different ones, however many examples."""


class Tally:
    """The comparisons of examples, counted; joins in any order to the same value."""

    __slots__ = ("error", "missing", "pending", "signatures")

    def __init__(self) -> None:
        self.signatures: dict[Signature, int] = {}
        self.missing: Counter[tuple[str, str]] = Counter()
        self.pending = 0
        """Missing comparisons of which it is not known which runs they are of."""
        self.error = ""
        """The first error of a failed judgment."""

    def add(self, outcomes: Iterable[Outcomes]) -> None:
        """Add the comparisons of one example."""
        self.add_times(outcomes, 1)

    def add_times(self, outcomes: Iterable[Outcomes], times: int) -> None:
        """Add so many examples with the same comparisons."""
        found: list[Compared] = []
        for each in outcomes:
            found += each.compared
            for pair in each.missing:
                earlier, later = sorted(pair)
                self.missing[earlier, later] += times
        if found:
            signature = tuple(sorted(found))
            self.signatures[signature] = self.signatures.get(signature, 0) + times

    def add_results(self, results: Iterable[ItemResult], failures: Failures) -> None:
        """Add the results of one example."""
        listed = list(results)
        for each in listed:
            if not self.error and isinstance(each.outcome, Failed):
                self.error = f"{each.outcome.error.type}: {each.outcome.error.message}"
        self.add(outcomes_of(each, failures) for each in listed)

    def merge(self, other: Tally) -> None:
        """Add the comparisons of another tally."""
        for signature, times in other.signatures.items():
            self.signatures[signature] = self.signatures.get(signature, 0) + times
        self.missing.update(other.missing)
        self.pending += other.pending
        self.error = min(filter(None, (self.error, other.error)), default="")

    @property
    def names(self) -> list[str]:
        """Return the names of the runs."""
        found = {name for signature in self.signatures for each in signature for name in each[:2]}
        return sorted(found.union(*self.missing))

    @property
    def absent(self) -> int:
        """The number of missing comparisons."""
        return self.missing.total() + self.pending

    def missing_of(self, run: str) -> int:
        """The number of missing comparisons of one run."""
        return sum(count for pair, count in self.missing.items() if run in pair)

    def columns(self) -> tuple[list[Compared], list[int]]:
        """All comparisons, and the example of each as a number."""
        rows: list[Compared] = []
        clusters: list[int] = []
        cluster = 0
        for signature in sorted(self.signatures):
            for _ in range(self.signatures[signature]):
                rows += signature
                clusters += [cluster] * len(signature)
                cluster += 1
        return rows, clusters


class RankedRuns(msgspec.Struct, frozen=True):
    """A tally as a ranking."""

    runs: list[Any]
    """`karat.stats.RankedRun` of each run, best first. Equal ratings share a rank."""
    fit: Any
    """The `karat.stats.BradleyTerry` of all comparisons."""
    position_bias: Estimate
    n: int
    of: int
    examples: int
    failed: int
    """The comparisons that a failed output decided."""


def rank_tally(
    tally: Tally,
    names: Sequence[str],
    *,
    method: Method = "bradley_terry",
    ties: Literal["half", "davidson"] = "half",
    prior: float = 1.0,
    confidence: float = 0.95,
    seed: int = 0,
) -> RankedRuns:
    """Rank runs by their comparisons, clustered by example. `n` of `of` counts the missing ones, with bounds."""
    from karat.stats import bradley_terry

    rows, clusters = tally.columns()

    def fitted(chosen: Sequence[int]) -> Any:
        return bradley_terry(
            first=[rows[i].first for i in chosen],
            second=[rows[i].second for i in chosen],
            outcomes=[rows[i].outcome for i in chosen],
            names=names,
            clusters=[clusters[i] for i in chosen],
            prior=prior,
            ties=ties,
            confidence=confidence,
        )

    fit = fitted(range(len(rows)))
    shown = [place for place, each in enumerate(rows) if each.by == "shown"]
    twice = [place for place in shown if rows[place].positions]
    bias = fit.position_bias
    if twice:
        shown = twice
        bias = _bias_of_orders([rows[i].positions for i in twice], [clusters[i] for i in twice], confidence)
    elif not shown:
        reason = {"reason": "the comparisons do not record which output was shown first"}
        bias = Estimate(None, method=bias.method, confidence=confidence, metadata={**reason, "shown": 0})
    elif len(shown) < len(rows):
        bias = fitted(shown).position_bias
    runs = [_with_missing(run, tally) for run in fit.runs]
    if method == "elo":
        runs = _by_elo(runs, rows, confidence, seed)
    return RankedRuns(
        runs=_sharing_ranks(runs),
        fit=fit,
        position_bias=msgspec.structs.replace(bias, of=len(shown) + tally.absent),
        n=len(rows),
        of=len(rows) + tally.absent,
        examples=sum(tally.signatures.values()),
        failed=sum(each.by == "failed" for each in rows),
    )


def _bias_of_orders(
    positions: Sequence[tuple[float, ...]], clusters: Sequence[int], confidence: float
) -> Estimate:
    """Return how often the output shown first wins, from comparisons that were judged in both orders.

    Each output is first once, so the share is not of the better runs. `metadata` counts the comparisons in which the
    two orders disagree.
    """
    from karat.stats import mean_interval

    values = [value for each in positions for value in each]
    twice = [cluster for cluster in clusters for _ in range(2)]
    found = mean_interval(values, twice, confidence=confidence, bounds=(0.0, 1.0))
    disagree = sum(first != 1.0 - second for first, second in positions)
    return msgspec.structs.replace(
        found,
        n=len(positions),
        method=f"{found.method}, both orders",
        metadata={"orders_disagree": disagree, "judgments": len(values)},
    )


def _with_missing(run: Any, tally: Tally) -> Any:
    of = run.rating.n + tally.missing_of(run.name)
    return msgspec.structs.replace(
        run, rating=msgspec.structs.replace(run.rating, of=of), win_rate=with_bounds(run.win_rate, of)
    )


def _by_elo(runs: Sequence[Any], rows: Sequence[Compared], confidence: float, seed: int) -> list[Any]:
    """The same runs with classic Elo ratings, which depend on the order and have no interval for strength."""
    from karat.stats import elo

    ratings = elo([each[:3] for each in rows], shuffles=SHUFFLES, seed=seed, confidence=confidence)
    none = Estimate(None, method="elo", confidence=confidence, metadata={"reason": "no comparisons"})
    by_name = {run.name: run for run in runs}
    order = [*ratings, *(run.name for run in runs if run.name not in ratings)]
    return [
        msgspec.structs.replace(
            by_name[name],
            rating=msgspec.structs.replace(ratings.get(name, none), of=by_name[name].rating.of),
            rank_low=0,
            rank_high=0,
        )
        for name in order
    ]


def _sharing_ranks(runs: Sequence[Any]) -> list[Any]:
    """Runs in order, with ranks from 1; equal ratings of connected runs share the better rank."""
    out: list[Any] = []
    for place, run in enumerate(runs):
        rank = place + 1
        if out and out[-1].component == run.component:
            above, value = out[-1].rating.value, run.rating.value
            if above == value or (None not in (above, value) and abs(above - value) < SAME_RATING):
                rank = out[-1].rank
        out.append(msgspec.structs.replace(run, rank=rank))
    return out


class _Comparisons(Aggregator[Tally]):
    """Base of aggregators of comparisons: the tally."""

    over = frozenset({"pair", "joint"})

    def __init__(self, failures: Failures = "lose", confidence: float = 0.95) -> None:
        if failures not in ("lose", "leave_out"):
            raise ValueError(
                f"failures is {failures!r}: {did_you_mean(str(failures), ('lose', 'leave_out'))}"
            )
        self.failures = failures
        self.confidence = check_confidence(confidence)

    def start(self) -> Tally:
        return Tally()

    def add(self, state: Tally, group: Group) -> Tally:
        state.add_results(group.results, self.failures)
        state.pending += group.pending
        return state

    def merge(self, a: Tally, b: Tally) -> Tally:
        a.merge(b)
        return a


@register_aggregator("win_rate")
class WinRate(_Comparisons):
    """How often each run wins its comparisons (a tie is half a win), clustered by example, with each pair's
    wins, ties and losses, and how often the output shown first wins.

    A failed output loses against one that succeeded, unless `failures` is `leave_out`.
    """

    name = "win_rate"

    def finish(self, state: Tally) -> Aggregate:
        out = Aggregate()
        ranked = rank_tally(state, state.names, confidence=self.confidence)
        for run in sorted(ranked.runs, key=lambda each: each.name):
            out.add(higher_is_better(run.win_rate), run=run.name)
        shown, pairs = MeanState(), dict[tuple[str, str], list[int]]()
        for signature in sorted(state.signatures):
            times = state.signatures[signature]
            first = [each.outcome for each in signature if each.by == "shown"]
            for _ in range(times if first else 0):
                shown.add(first)
            for each in signature:
                outcome = each.outcome if each.first < each.second else 1.0 - each.outcome
                a, b = sorted(each[:2])
                pairs.setdefault((a, b), [0, 0, 0])[0 if outcome > 0.5 else 2 if outcome < 0.5 else 1] += (
                    times
                )
        if shown.n or not state.signatures:
            of = shown.n + state.absent
            out.add(shown.estimate(self.confidence, of=of, bounds=(0.0, 1.0)), "shown_first")
        rows: list[dict[str, Any]] = [
            {"first": a, "second": b, "wins": wins, "ties": ties, "losses": losses}
            for (a, b), (wins, ties, losses) in sorted(pairs.items())
        ]
        out.add_table(rows, "pairs")
        return out


@register_aggregator("ranking")
class RankRuns(_Comparisons):
    """Ratings of runs from their comparisons, clustered by example: Bradley–Terry on the Elo scale, or classic Elo.

    The table has rank ranges, win rates, connected components, win probabilities and the position bias. A failed
    output loses against one that succeeded, unless `failures` is `leave_out`.
    """

    name = "ranking"

    def __init__(
        self,
        method: Method = "bradley_terry",
        prior: float = 1.0,
        ties: Literal["half", "davidson"] = "half",
        failures: Failures = "lose",
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        super().__init__(failures, confidence)
        self.method = checked_method(method)
        self.prior = prior
        self.ties = ties
        self.seed = seed

    def finish(self, state: Tally) -> Aggregate:
        ranked = rank_tally(
            state,
            state.names,
            method=self.method,
            ties=self.ties,
            prior=self.prior,
            confidence=self.confidence,
            seed=self.seed,
        )
        out = Aggregate()
        for run in ranked.runs:
            out.add(higher_is_better(run.rating), run=run.name)
        out.add(ranked.position_bias, "position_bias")
        table: dict[str, Any] = {
            "runs": [msgspec.to_builtins(run) for run in ranked.runs],
            "components": ranked.fit.components,
            "win_probability": probabilities(ranked),
            "n": ranked.n,
            "of": ranked.of,
            "ties": ranked.fit.ties,
            "method": self.method,
            "failures": self.failures,
        }
        out.add_table(table, "ranking")
        return out


def probabilities(ranked: RankedRuns) -> list[list[float | None]]:
    """`[i][j]`: that the run at place i wins against that at place j; None where no comparison connects them."""
    at = {run.name: place for place, run in enumerate(ranked.fit.runs)}
    return [
        [
            ranked.fit.win_probability[at[one.name]][at[other.name]]
            if one.component == other.component
            else None
            for other in ranked.runs
        ]
        for one in ranked.runs
    ]


def checked_method(method: str) -> Method:
    """The method of a ranking by its name; hyphens and underscores are equivalent."""
    names: dict[str, Method] = {"bradley_terry": "bradley_terry", "elo": "elo"}
    written = str(method).replace("-", "_")
    if written not in names:
        raise ValueError(f"method is {method!r}: {did_you_mean(written, names)}")
    return names[written]
