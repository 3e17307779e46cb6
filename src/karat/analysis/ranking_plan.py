"""Which comparisons a ranking still lacks, and what they would cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import msgspec

from karat.analysis.scores import current_results
from karat.records import Ok, usage_of
from karat.store import Store
from karat.store.backend import OK
from karat.store.handles import CHUNK, Run
from karat.store.run_labels import run_labels


class MissingPair(msgspec.Struct, frozen=True):
    """What is there and what is missing of the comparisons of two runs."""

    first: str
    second: str
    done: int
    missing: int


class RankingPlan(msgspec.Struct, frozen=True):
    """The comparisons a ranking would make."""

    evaluator: str
    pairs: list[MissingPair]
    labels: dict[str, str]
    missing: int
    done: int
    cost: float | None = None
    """What the missing ones would cost, by what the others did; None where no price is known."""
    reason: str = ""
    """Why the cost is not known."""

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-able values."""
        return {"kind": "ranking plan", **msgspec.to_builtins(self)}

    def report(self) -> str:
        """A table for a terminal."""
        from karat.analysis.ranking import plan_blocks
        from karat.formatting import as_text

        return as_text(plan_blocks(self))


def plan_ranking(
    store: Store, runs: Sequence[Run], key: str, fingerprint: str, *, both_orders: bool = False
) -> RankingPlan:
    """What is missing between runs, for an evaluator that is known by its fingerprint.

    Comparisons of the same outputs that are kept under other runs are copied and not paid again, so the plan is the
    most that can be asked for.
    """
    known: dict[frozenset[str], set[tuple[Any, ...]]] = {}
    cost, priced, unpriced = 0.0, 0, 0
    wanted = {run.id for run in runs}
    for evaluation in store.evaluations.list():
        specs = {
            spec.key
            for spec in evaluation.header.evaluators
            if fingerprint and spec.fingerprint == fingerprint
        }
        if not specs or len(wanted & set(evaluation.header.runs)) < 2:
            continue
        for _, result in current_results(evaluation):
            if (
                result.key not in specs
                or not wanted.issuperset(result.runs)
                or not isinstance(result.outcome, Ok)
            ):
                continue
            order = result.runs if both_orders else ()
            known.setdefault(frozenset(result.runs), set()).add(
                (result.example, result.attempt, result.unit, order)
            )
            spent = [usage.cost for usage in usage_of(result.trace).values()]
            if spent and all(each is not None for each in spent):
                cost += sum(each for each in spent if each is not None)
                priced += 1
            elif not result.reused_from:
                unpriced += 1
    pairs = []
    items = {run.id: _judgeable(run) for run in runs}
    for one, other in combinations(runs, 2):
        total = len(items[one.id] & items[other.id]) * (2 if both_orders else 1)
        done = min(total, len(known.get(frozenset((one.id, other.id)), ())))
        pairs.append(MissingPair(one.id, other.id, done, total - done))
    missing = sum(pair.missing for pair in pairs)
    estimate = cost / priced * missing if priced and not unpriced else None
    reason = "" if estimate is not None else "no comparison by this evaluator has told what it cost"
    return RankingPlan(
        evaluator=key,
        pairs=pairs,
        labels=run_labels([run.header for run in runs]),
        missing=missing,
        done=sum(pair.done for pair in pairs),
        cost=0.0 if not missing else estimate,
        reason=reason if missing else "",
    )


def _judgeable(run: Run) -> set[tuple[int, str]]:
    """The items of a run whose output is there: what failed cannot be compared, and costs nothing."""
    backend, found = run.store.backend, set()
    for start in range(0, backend.extent(run.number), CHUNK):
        status = {
            (mark.position, mark.item): mark.status
            for mark in backend.marks(run.number, start, start + CHUNK)
        }
        found |= {item for item, last in status.items() if last == OK}
    return found
