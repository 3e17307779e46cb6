"""The failed and skipped items of a run or an evaluation, by kind, with the first examples of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from karat.records import Failed, Failure, ItemResult, Output, Skipped
from karat.store.handles import Evaluation, Run

EXAMPLES_OF_A_KIND = 5
MOST_KINDS = 1000
"""The most kinds that are listed; further ones are counted together as `others`."""
LONGEST_MESSAGE = 1000


class FailureKind(msgspec.Struct):
    """Failures, or skips, of one kind in one place."""

    where: str
    """The id of the run or the evaluation."""
    what: str
    """`output`, or the key of an evaluator."""
    status: str
    """`failed` or `skipped`."""
    type: str
    """The error's type; of a graph the node and the type; of a skip its reason."""
    count: int = 0
    examples: list[dict[str, Any]] = []
    """The first ones: `example`, `attempt`, `runs` of a comparison, `message`, `where` it was raised."""


def failure_kinds(handle: Run | Evaluation, *, skipped: bool = True) -> list[FailureKind]:
    """The kinds of failures of a run or an evaluation, most frequent first."""
    found: dict[tuple[str, str, str], FailureKind] = {}
    several = isinstance(handle, Evaluation) and len(handle.header.runs) > 1
    for item in _unfinished(handle):
        outcome = item.outcome
        if isinstance(outcome, Failed):
            (type_, message), where = kind_of(outcome.error), outcome.error.where
        elif isinstance(outcome, Skipped) and skipped:
            type_, message, where = outcome.reason, "", ""
        else:
            continue
        what = item.key if isinstance(item, ItemResult) else "output"
        place = (what, outcome.status, type_)
        if place not in found and len(found) >= MOST_KINDS:
            place = (what, outcome.status, "others")
        kind = found.get(place)
        if kind is None:
            kind = found[place] = FailureKind(handle.id, what, outcome.status, place[2], 0, [])
        kind.count += 1
        if len(kind.examples) < EXAMPLES_OF_A_KIND:
            about: dict[str, Any] = {
                "example": item.example,
                "attempt": item.attempt,
                "runs": list(item.runs) if several and isinstance(item, ItemResult) else [],
                "message": message[:LONGEST_MESSAGE],
                "where": where,
            }
            kind.examples.append({name: value for name, value in about.items() if value})
    return sorted(found.values(), key=lambda kind: (-kind.count, kind.what, kind.type))


def _unfinished(handle: Run | Evaluation) -> Iterator[Output | ItemResult]:
    """The items that may have failed; none are read where the counts say that none did."""
    counts = handle.counts
    if counts.failed or counts.skipped or handle.header.finished is None:
        yield from handle.outputs() if isinstance(handle, Run) else handle.results()


def kind_of(error: Failure) -> tuple[str, str]:
    """The kind of a failure and its message: of a graph by the node that failed and its error."""
    node = error.metadata.get("node")
    head = f"node {node}: "
    if not node or not error.message.startswith(head):
        return error.type, error.message
    kind, _, message = error.message.removeprefix(head).partition(": ")
    return head + kind, message
