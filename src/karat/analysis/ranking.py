"""Runs from best to worst: from comparisons that evaluators made, or from scores of the same examples."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import msgspec

from karat.analysis.ranking_plan import RankingPlan, plan_ranking
from karat.analysis.scores import Scores, chosen_keys, current_results, read_scores, sources_of, things_of
from karat.errors import RequestError, did_you_mean
from karat.evaluators._base import evaluators
from karat.execution.arguments import as_list, store_of
from karat.execution.evaluate import evaluate_async
from karat.execution.judgments import PreparedEvaluator
from karat.execution.sync import plain
from karat.formatting import Block, Heading, Paragraph, Table, interval, matrix_table, number, percent
from karat.records import Estimate, Ok, Skipped
from karat.stats._bounds import with_bounds
from karat.stats._ratings import BradleyTerry, bradley_terry, elo
from karat.store import Store
from karat.store.handles import Evaluation, Run
from karat.store.run_labels import run_labels

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
        from karat.analysis.ranking import ranking_blocks
        from karat.formatting import as_text

        return as_text(ranking_blocks(self))

    def markdown(self) -> str:
        """The same as Markdown."""
        from karat.analysis.ranking import ranking_blocks
        from karat.formatting import as_markdown

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


RANKING = ("method", "ties", "prior", "confidence", "seed", "margin")


async def rank_async(
    given: Any = None,
    *more: Any,
    evaluator: Any = None,
    metric: str | None = None,
    amend: Any = None,
    store: str | Store | None = None,
    **options: Any,
) -> Ranking:
    """Ranks by an evaluator that compares (a name, a spec, an object or a plain function), or by a metric's scores.

    With an evaluator the missing comparisons are made first. `amend` names evaluations whose comparisons and runs
    are taken over, so that a new run costs its own comparisons alone. `method` is `bradley-terry` or `elo`; `ties`,
    `prior`, `confidence`, `seed` and `margin` (within which scores tie) are passed on, all else to `evaluate`.
    """
    things = [*as_list(given), *more]
    earlier = as_list(amend)
    the_store = store_of(store, things, earlier)
    ranking = {name: options.pop(name) for name in RANKING if name in options}
    if evaluator is not None and metric is not None:
        raise RequestError(
            "a ranking is by an evaluator that compares, or by a metric: leave one of them out"
        )
    if evaluator is None and not earlier:
        found = _pair_key(the_store, things) if metric is None else None
        metric = None if metric is None else _scored_key(the_store, things, metric)
        return rank_stored(the_store, things, evaluator=found, metric=metric, **ranking)
    runs, _ = things_of(the_store, things) if things else ([], [])
    compares = None if evaluator is None else comparing(evaluator)
    if compares is not None and (judge := PreparedEvaluator(0, compares)).kind != "pair":
        raise RequestError(
            f"{judge.key!r} judges single outputs: rank by its scores, with the metric instead"
        )
    made = await evaluate_async(
        runs, None if compares is None else [compares], amend=earlier or None, store=the_store, **options
    )
    key = next((spec.key for spec in made.header.evaluators if spec.kind == "pair"), None)
    if key is None:
        raise RequestError(
            f"{made.header.evaluators[0].key!r} judges single outputs: rank by its scores, with the metric instead"
        )
    return rank_stored(the_store, [made], evaluator=key, **ranking)


rank = plain(rank_async)


def plan_rank(
    given: Any, *more: Any, evaluator: Any, amend: Any = None, store: str | Store | None = None
) -> RankingPlan:
    """Which comparisons `rank` would make, how many are there, and what the missing ones would cost."""
    things, earlier = [*as_list(given), *more], as_list(amend)
    the_store = store_of(store, things, earlier)
    runs, _ = things_of(the_store, [*earlier, *things])
    if len(runs) < 2:
        raise RequestError("a ranking needs two runs or more")
    judge = PreparedEvaluator(0, comparing(evaluator))
    if judge.kind != "pair":
        raise RequestError(f"{judge.key!r} judges single outputs: it makes no comparisons to plan")
    return plan_ranking(the_store, runs, judge.key, judge.spec.fingerprint, both_orders=judge.both_orders)


def comparing(evaluator: Any) -> Any:
    """An evaluator as it was given; a plain function, or where there is one, becomes one that compares."""
    module = importlib.import_module("karat.evaluators._pairwise")  # registers by_metric and by_function
    spec = {"name": evaluator} if isinstance(evaluator, str) else evaluator
    if isinstance(spec, Mapping) and isinstance(spec.get("name"), str) and not spec.get("params"):
        if inspect.isfunction(evaluators.get(spec["name"])) and not evaluators.has(spec["name"]):
            return {**spec, "name": "by_function", "params": {"function": spec["name"]}}
        return evaluator
    if callable(evaluator) and not isinstance(evaluator, type) and not hasattr(evaluator, "compare"):
        return module.ByFunction(evaluator)
    return evaluator


def _scored_key(store: Store, things: list[Any], metric: str) -> str:
    """The evaluator key that a metric means, also as comparisons show it: `exact_match accuracy`."""
    _, evaluations = things_of(store, things)
    keys = {spec.key for each in evaluations for spec in each.header.evaluators if spec.kind == "single"}
    key, _, form = metric.rpartition(" ")
    return key if metric not in keys and form in ("accuracy", "mean") and key in keys else metric


def _pair_key(store: Store, things: list[Any]) -> str | None:
    """The one evaluator that compares in the evaluations given."""
    handles = [store.get(each) if isinstance(each, str) and each != "latest" else each for each in things]
    if not handles or not all(isinstance(each, Evaluation) for each in handles):
        return None
    keys = dict.fromkeys(s.key for e in handles for s in e.header.evaluators if s.kind == "pair")
    return next(iter(keys)) if len(keys) == 1 else None


MOST_IN_MATRIX = 12
"""Runs whose win probabilities are shown against each other."""


def ranking_blocks(ranking: Ranking) -> list[Block]:
    """The table of runs, what it rests on, and who would beat whom."""
    blocks: list[Block] = [
        Heading(f"{len(ranking.places)} runs ranked by {ranking.source}", 1),
        _places(ranking),
        Paragraph(_basis(ranking)),
        Paragraph(_position(ranking)),
        *(Paragraph(note) for note in ranking.notes),
    ]
    shown = ranking.places[:MOST_IN_MATRIX]
    if len(shown) > 2 or (len(shown) == 2 and ranking.method == "bradley-terry"):
        names = [place.label for place in shown]
        rows = [(name, [_cell(ranking, i, j) for j in range(len(shown))]) for i, name in enumerate(names)]
        blocks += [
            Heading("probability that the run of the row wins against that of the column"),
            matrix_table(
                "",
                [f"{i + 1}" for i in range(len(shown))],
                [(f"{i + 1} {n}", c) for i, (n, c) in enumerate(rows)],
            ),
        ]
    return blocks


def _places(ranking: Ranking) -> Table:
    elo = ranking.method == "elo"
    spread = "over orders" if elo else f"{percent(ranking.confidence)} interval"
    head = [
        "rank",
        *([] if elo else ["range"]),
        "run",
        "rating",
        spread,
        "win rate",
        "interval",
        "won/lost/tied",
        "id",
    ]
    rows = []
    for place in ranking.places:
        rows.append(
            [
                str(place.rank),
                *([] if elo else [f"{place.rank_low}–{place.rank_high}"]),
                place.label,
                number(place.rating.value, 0),
                interval(place.rating.low, place.rating.high, digits=0),
                number(place.win_rate.value),
                interval(place.win_rate.low, place.win_rate.high),
                f"{place.wins:,}/{place.losses:,}/{place.ties:,}",
                place.run,
            ]
        )
    return Table(head, rows, [0, 3 - elo, 5 - elo])


def _cell(ranking: Ranking, i: int, j: int) -> str:
    return "·" if i == j else number(ranking.win_probability[i][j], 2)


def _basis(ranking: Ranking) -> str:
    how = (
        "Bradley–Terry, clustered by example"
        if ranking.method == "bradley-terry"
        else "classic Elo, averaged over orders"
    )
    return (
        f"{ranking.n:,} of {ranking.of:,} comparisons over {ranking.examples:,} examples, {ranking.ties:,} ties; {how},"
        " on the Elo scale around 1500."
    )


def _position(ranking: Ranking) -> str:
    bias = ranking.position_bias
    if bias.value is None:
        return f"Position bias is not known: {bias.metadata.get('reason', 'no comparisons')}."
    low, high = bias.low, bias.high
    text = f"Of two equally good runs the one shown first wins with probability {bias.value:.3f} {interval(low, high)}"
    clear = low is not None and high is not None and (low > 0.5 or high < 0.5)
    return text + (": there is a position bias." if clear else ": no position bias is seen.")


def plan_blocks(plan: RankingPlan) -> list[Block]:
    """What is there, what is missing, and what it would cost."""
    rows = [
        [plan.labels[pair.first], plan.labels[pair.second], f"{pair.done:,}", f"{pair.missing:,}"]
        for pair in plan.pairs
    ]
    cost = f"about ${plan.cost:.4f}" if plan.cost is not None else f"unknown: {plan.reason}"
    return [
        Heading(f"comparisons by {plan.evaluator}: {plan.done:,} done, {plan.missing:,} missing", 1),
        Table(["run", "against", "done", "missing"], rows, [2, 3]),
        Paragraph(f"The missing ones would cost: {cost}."),
    ]
