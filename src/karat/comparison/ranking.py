"""Runs from best to worst: from comparisons that evaluators made, or from scores of the same examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import msgspec

from karat.comparison.naming import run_labels
from karat.comparison.scores import Scores, chosen_keys, current_results, read_scores, sources_of, things_of
from karat.errors import RequestError, did_you_mean
from karat.records import Estimate, Ok, Skipped
from karat.stats.bounds import with_bounds
from karat.stats.ranking import elo
from karat.stats.strengths import BradleyTerry, bradley_terry
from karat.store import Store
from karat.store.handles import Evaluation, Run

Method = Literal["bradley-terry", "elo"]
SHUFFLES = 100
"""Orders that classic Elo ratings are averaged over."""


class Compared(NamedTuple):
    """Comparisons as columns, and how many more there should be."""

    first: list[str]
    second: list[str]
    outcomes: list[float]
    examples: list[str]
    missing: int
    missing_of: Counter[str]
    """The same for each run; a comparison that is missing is missing to both."""


class Place(msgspec.Struct, frozen=True):
    """One run in a ranking."""

    run: str
    label: str
    rank: int
    rating: Estimate
    win_rate: Estimate
    rank_low: int = 0
    rank_high: int = 0
    wins: int = 0
    losses: int = 0
    ties: int = 0
    component: int = 0
    """Runs of different components were never compared, not even by way of others."""


class Ranking(msgspec.Struct, frozen=True):
    """Runs from best to worst, and what else their comparisons say."""

    places: list[Place]
    method: Method
    source: str
    """The comparison evaluator or the metric that it comes from."""
    n: int
    of: int
    examples: int
    ties: int
    position_bias: Estimate
    win_probability: list[list[float | None]] = []
    """`[i][j]`: that the run at place i wins against that at place j; None where nothing connects them."""
    components: list[list[str]] = []
    notes: list[str] = []
    confidence: float = 0.95

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-able values."""
        return {"kind": "ranking", **msgspec.to_builtins(self)}

    def report(self) -> str:
        """Tables for a terminal."""
        from karat.report.blocks import as_text
        from karat.report.ranking import ranking_blocks

        return as_text(ranking_blocks(self))

    def markdown(self) -> str:
        """The same as Markdown."""
        from karat.report.blocks import as_markdown
        from karat.report.ranking import ranking_blocks

        return as_markdown(ranking_blocks(self))


def compared_by_evaluator(evaluations: Sequence[Evaluation], runs: Sequence[Run], key: str) -> Compared:
    """The comparisons of some runs that evaluations hold; those that several hold count once."""
    wanted = {run.id for run in runs}
    found = Compared([], [], [], [], 0, Counter())
    seen: set[tuple[Any, ...]] = set()
    missing: set[tuple[Any, ...]] = set()
    for evaluation in reversed(evaluations):  # the newest word counts
        for _, result in current_results(evaluation):
            if result.key != key or not wanted.issuperset(result.runs):
                continue
            identity = (result.example, result.runs, result.attempt, result.unit)
            if identity in seen:
                continue
            if isinstance(result.outcome, Ok):
                seen.add(identity)
                found.first.append(result.runs[0])
                found.second.append(result.runs[1])
                found.outcomes.append(result.score)
                found.examples.append(result.example)
            elif not (isinstance(result.outcome, Skipped) and not result.outcome.applicable):
                missing.add(identity)
    absent = missing - seen
    return found._replace(missing=len(absent), missing_of=Counter(run for each in absent for run in each[1]))


def compared_by_scores(tables: Sequence[Scores], margin: float = 0.0) -> Compared:
    """Scores turned into comparisons: the higher one wins; within `margin` they tie."""
    found = Compared([], [], [], [], 0, Counter())
    missing = 0
    for one, other in combinations(tables, 2):
        for item in dict.fromkeys([*one.items, *other.items]):
            a, b = one.items.get(item), other.items.get(item)
            if a is None or b is None:
                missing += 1
                found.missing_of.update((one.run.id, other.run.id))
                continue
            found.first.append(one.run.id)
            found.second.append(other.run.id)
            found.outcomes.append(0.5 if abs(a - b) <= margin else float(a > b))
            found.examples.append(item[0])
    return found._replace(missing=missing)


def rank_comparisons(
    runs: Sequence[Run],
    compared: Compared,
    source: str,
    *,
    method: Method = "bradley-terry",
    ties: Literal["half", "davidson"] = "half",
    prior: float = 1.0,
    confidence: float = 0.95,
    seed: int = 0,
    positions: bool = True,
) -> Ranking:
    """The ranking that comparisons amount to. `positions` says whether being shown first could have mattered."""
    if not compared.outcomes:
        raise RequestError(f"there are no comparisons of these runs by {source!r}")
    labels = run_labels([run.header for run in runs])
    fit = bradley_terry(
        first=compared.first,
        second=compared.second,
        outcomes=compared.outcomes,
        names=[run.id for run in runs],
        clusters=compared.examples,
        prior=prior,
        ties=ties,
        confidence=confidence,
    )
    bias = fit.position_bias
    if not positions:
        bias = Estimate(
            None, method=bias.method, metadata={"reason": "scores have no order in which they are shown"}
        )
    places = [
        Place(
            run=each.name,
            label=labels[each.name],
            rank=each.rank,
            rating=msgspec.structs.replace(each.rating, of=each.rating.n + compared.missing_of[each.name]),
            win_rate=with_bounds(each.win_rate, each.win_rate.n + compared.missing_of[each.name]),
            rank_low=each.rank_low,
            rank_high=each.rank_high,
            wins=each.wins,
            losses=each.losses,
            ties=each.ties,
            component=each.component,
        )
        for each in fit.runs
    ]
    if method == "elo":
        places = _by_elo(places, compared, confidence, seed)
    elif method != "bradley-terry":
        raise RequestError(f"method {method!r}: {did_you_mean(str(method), ('bradley-terry', 'elo'))}")
    return Ranking(
        places=places,
        method=method,
        source=source,
        n=fit.n,
        of=fit.n + compared.missing,
        examples=len(set(compared.examples)),
        ties=fit.ties,
        position_bias=bias,
        win_probability=_probabilities(fit, [place.run for place in places]),
        components=[[str(name) for name in members] for members in fit.components],
        notes=_notes(fit, compared, labels),
        confidence=confidence,
    )


def _by_elo(places: Sequence[Place], compared: Compared, confidence: float, seed: int) -> list[Place]:
    rows = zip(compared.first, compared.second, compared.outcomes, strict=True)
    ratings = elo(rows, shuffles=SHUFFLES, seed=seed, confidence=confidence)
    by_run = {place.run: place for place in places}
    known = [by_run[name] for name in ratings]
    rest = [place for place in places if place.run not in ratings]
    none = Estimate(None, method="elo", metadata={"reason": "no comparisons"})
    return [
        msgspec.structs.replace(
            place,
            rank=rank + 1,
            rating=msgspec.structs.replace(ratings.get(place.run, none), of=place.rating.of),
            rank_low=0,
            rank_high=0,
        )
        for rank, place in enumerate([*known, *rest])
    ]


def _probabilities(fit: BradleyTerry, order: Sequence[str]) -> list[list[float | None]]:
    at = {run.name: place for place, run in enumerate(fit.runs)}
    part = {run.name: run.component for run in fit.runs}
    return [
        [fit.win_probability[at[one]][at[other]] if part[one] == part[other] else None for other in order]
        for one in order
    ]


def _notes(fit: BradleyTerry, compared: Compared, labels: dict[str, str]) -> list[str]:
    notes = []
    if len(fit.components) > 1:
        parts = "; ".join(", ".join(labels[str(name)] for name in members) for members in fit.components)
        notes.append(f"the runs fall into {len(fit.components)} parts that no comparison connects: {parts}")
    if compared.missing:
        notes.append(f"{compared.missing:,} comparisons failed or are missing and are left out.")
    unanimous = [
        run for run in fit.runs if run.wins + run.losses and not run.ties and not (run.wins and run.losses)
    ]
    if unanimous:
        names = ", ".join(labels[str(run.name)] for run in unanimous[:3])
        notes.append(f"{names} won or lost every comparison: a weak prior keeps the rating finite")
    return notes


def rank_stored(
    store: Store,
    given: Sequence[Any],
    *,
    evaluator: str | None = None,
    metric: str | None = None,
    margin: float = 0.0,
    **options: Any,
) -> Ranking:
    """Ranks runs, or the runs of evaluations, by what evaluations already hold."""
    runs, evaluations = things_of(store, given)
    if len(runs) < 2:
        raise RequestError("a ranking needs two runs or more")
    if evaluator is not None:
        kinds = {s.key: s.kind for e in evaluations for s in e.header.evaluators}
        if kinds.get(evaluator) != "pair":
            known = [key for key, kind in kinds.items() if kind == "pair"]
            hint = did_you_mean(evaluator, known) if known else "no evaluation of these runs compares them"
            raise RequestError(f"no comparisons by {evaluator!r}: {hint}")
        return rank_comparisons(
            runs, compared_by_evaluator(evaluations, runs, evaluator), evaluator, **options
        )
    sources = sources_of(store, runs, evaluations)
    key = chosen_keys(sources, runs, [metric] if metric else None)
    if len(key) > 1:
        raise RequestError(f"rank by which metric: {', '.join(key)}?")
    tables = read_scores([(run, sources[key[0]][run.id]) for run in runs])
    return rank_comparisons(runs, compared_by_scores(tables, margin), key[0], positions=False, **options)
