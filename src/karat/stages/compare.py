"""Compares runs with the first of them; evaluates them before, where evaluators are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from karat.comparison.gates import Limit, read_limit
from karat.comparison.pairs_of_runs import Comparison, compare_runs
from karat.comparison.scores import things_of
from karat.stages.evaluate import evaluate_async
from karat.stages.given import as_list, store_of
from karat.stages.plain import plain
from karat.store import Store


async def compare_async(
    given: Any,
    *more: Any,
    evaluators: Any = None,
    metrics: Sequence[str] | str | None = None,
    cluster: str | None = None,
    test: str = "auto",
    fail_if_worse: Any = None,
    examples: int = 5,
    confidence: float = 0.95,
    store: str | Store | None = None,
    **evaluating: Any,
) -> Comparison:
    """Compares with the first, paired by example, by what evaluations of these runs hold.

    `evaluators` judge the runs first (only what is missing is computed; further options are those of `evaluate`).
    `fail_if_worse` is `"accuracy:0.01"`, a list of such, or `{"accuracy": 0.01}`; the comparison's `verdict` is then
    `holds`, `fails` or `undecided`.
    """
    things = [*as_list(given), *more]
    the_store = store_of(store, things)
    if evaluators is not None:
        runs, _ = things_of(the_store, things)
        made = await evaluate_async(runs, evaluators, store=the_store, **evaluating)
        things = [made]
        if metrics is None and fail_if_worse is None:
            metrics = [spec.key for spec in made.header.evaluators if spec.kind == "single"]
    return compare_runs(
        the_store,
        things,
        metrics=as_list(metrics) or None,
        cluster=cluster,
        test=test,
        limits=_limits(fail_if_worse),
        examples=examples,
        confidence=confidence,
    )


compare = plain(compare_async)


def _limits(given: Any) -> list[Limit]:
    if isinstance(given, dict):
        return [read_limit(f"{metric}:{margin}") for metric, margin in given.items()]
    return [each if isinstance(each, Limit) else read_limit(each) for each in as_list(given)]
