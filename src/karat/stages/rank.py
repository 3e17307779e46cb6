"""Ranks runs: makes the comparisons that are missing, then folds all of them into a ranking."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from karat.comparison.missing import RankingPlan, plan_ranking
from karat.comparison.ranking import Ranking, rank_stored
from karat.comparison.scores import things_of
from karat.errors import RequestError
from karat.evaluators.base import evaluators
from karat.stages.evaluate import evaluate_async
from karat.stages.given import as_list, store_of
from karat.stages.judging import Judge
from karat.stages.plain import plain
from karat.store import Store
from karat.store.handles import Evaluation

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
    if compares is not None and (judge := Judge(0, compares)).kind != "pair":
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
    judge = Judge(0, comparing(evaluator))
    if judge.kind != "pair":
        raise RequestError(f"{judge.key!r} judges single outputs: it makes no comparisons to plan")
    return plan_ranking(the_store, runs, judge.key, judge.spec.fingerprint, both_orders=judge.both_orders)


def comparing(evaluator: Any) -> Any:
    """An evaluator as it was given; a plain function, or where there is one, becomes one that compares."""
    module = importlib.import_module("karat.evaluators.comparison")  # registers by_metric and by_function
    spec = {"name": evaluator} if isinstance(evaluator, str) else evaluator
    if isinstance(spec, Mapping) and isinstance(spec.get("name"), str) and not spec.get("params"):
        if inspect.isfunction(evaluators.get(spec["name"])) and not evaluators.has(spec["name"]):
            return {**spec, "name": "by_function", "params": {"function": spec["name"]}}
        return evaluator
    if callable(evaluator) and not isinstance(evaluator, type) and not hasattr(evaluator, "compare"):
        return module.ByFunction(evaluator)
    return evaluator


def _scored_key(store: Store, things: list[Any], metric: str) -> str:
    """The evaluator key that a metric means, also as comparisons show it: `exact_match-accuracy`."""
    _, evaluations = things_of(store, things)
    keys = {spec.key for each in evaluations for spec in each.header.evaluators if spec.kind == "single"}
    key, _, form = metric.rpartition("-")
    return key if metric not in keys and form in ("accuracy", "mean") and key in keys else metric


def _pair_key(store: Store, things: list[Any]) -> str | None:
    """The one evaluator that compares in the evaluations given."""
    handles = [store.get(each) if isinstance(each, str) and each != "latest" else each for each in things]
    if not handles or not all(isinstance(each, Evaluation) for each in handles):
        return None
    keys = dict.fromkeys(s.key for e in handles for s in e.header.evaluators if s.kind == "pair")
    return next(iter(keys)) if len(keys) == 1 else None
