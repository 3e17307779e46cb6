"""What callers hand to a stage: one thing or a list, a handle or an id, and where it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from karat.keys import Decision
from karat.models._recording import CacheMode, cache_mode
from karat.store import Store, open_store
from karat.store.handles import Evaluation, Run

if TYPE_CHECKING:
    from karat.models._budget import Budget


def as_list(given: Any) -> list[Any]:
    """A list of what was given, which may be one thing or none."""
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def id_of(given: Any) -> str:
    """The id of a handle, or an id as it is."""
    return given if isinstance(given, str) else str(given.id)


def store_of(store: str | Store | None, *groups: list[Any]) -> Store:
    """The store that is named, else that of the first handle that has one."""
    for group in groups:
        for each in group:
            if store is None and isinstance(getattr(each, "store", None), Store):
                return each.store  # type: ignore[no-any-return]  # a handle's store is one
    return open_store(store)


def asking(cache: str, budget: float | Budget | None) -> tuple[CacheMode, Budget | None]:
    """What a caller says about kept answers and about dollars, checked."""
    if budget is not None:
        from karat.models._budget import as_budget

        budget = as_budget(budget)
    return cache_mode(cache), budget


def notice_of(handle: Run | Evaluation, decision: Decision, cache: CacheMode, remark: str = "") -> str:
    """What is told about an earlier one, and what the task remarks; one that is finished cannot be refreshed."""
    if decision.action == "return" and cache == "refresh":
        what = f"{handle.kind} {handle.id}"
        failed = handle.counts.failed
        remedy = (
            f"--retry-failed for the {failed:,} that failed, --new for another"
            if failed
            else "--new for another"
        )
        why = f"{what} is finished already, so --refresh had nothing to ask again: add {remedy}"
    else:
        why = decision.why
    return "; ".join(each for each in (why, remark) if each)


def end_of(run: Run, count: int) -> int:
    """One more than the last position of a dataset that a run's selection has."""
    limit = run.header.limit
    return count if limit is None else min(count, run.header.offset + limit)
