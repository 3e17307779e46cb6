"""Outcomes of items besides scores: failures and skips by kind with first examples, and the latency of outputs.

Columns say which items failed and of what kind; only the records of the examples that are shown are read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from karat.records import Failed, ItemResult, Output
from karat.store.backend import FAILED, NOT_APPLICABLE, SKIPPED, latest
from karat.store.columns import ItemColumns, kind_of, load_columns
from karat.store.handles import Evaluation, Run
from karat.store.repositories import output_decoder, result_decoder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FailureKind", "ItemPlace", "failure_kinds", "failure_reasons", "kind_of"]

EXAMPLES_OF_A_KIND = 5
MOST_KINDS = 1000
"""The most kinds that are listed; further ones are counted together as `others`."""
LONGEST_MESSAGE = 1000
MOST_READ = 1000
"""The most failures whose messages are read to tell their reasons apart."""


class ItemPlace(NamedTuple):
    """The place of an item: example, unit, attempt."""

    position: int
    attempt: int
    unit: str


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

    def further(self) -> str:
        """The ids of the further examples; one that several attempts or comparisons failed of is named once."""
        ids = [each["example"] for each in self.examples]
        return ", ".join(dict.fromkeys(id for id in ids if id != ids[0]))


class PlacedKind(NamedTuple):
    """A kind of failure, and where its first examples are."""

    kind: FailureKind
    places: list[ItemPlace]


def failure_kinds(
    handle: Run | Evaluation, *, skipped: bool = True, runs: Collection[str] | None = None
) -> list[FailureKind]:
    """The kinds of failures of a run or an evaluation, most frequent first; with `runs`, of results of these runs."""
    return [placed.kind for placed in placed_kinds(handle, skipped=skipped, runs=runs)]


class Reason(NamedTuple):
    """Failures of one kind, and whether the message of the first example is known to be that of all."""

    kind: FailureKind
    is_shared: bool


def failure_reasons(handle: Run | Evaluation) -> list[Reason]:
    """The failures of a run or an evaluation by kind and message, most frequent first.

    Of more than `MOST_READ` failures the messages are not read, and kinds stay whole.
    """
    most = MOST_READ if handle.counts.failed <= MOST_READ else EXAMPLES_OF_A_KIND
    found: list[Reason] = []
    for kind, _ in placed_kinds(handle, skipped=False, most=most):
        if kind.count > len(kind.examples):
            found.append(Reason(kind, False))
            continue
        reasons: dict[str, list[dict[str, Any]]] = {}
        for example in kind.examples:
            reasons.setdefault(example.get("message", ""), []).append(example)
        for examples in reasons.values():
            part = msgspec.structs.replace(kind, count=len(examples), examples=examples[:EXAMPLES_OF_A_KIND])
            found.append(Reason(part, True))
    return sorted(found, key=lambda each: -each.kind.count)


def placed_kinds(
    handle: Run | Evaluation,
    *,
    skipped: bool = True,
    runs: Collection[str] | None = None,
    most: int = EXAMPLES_OF_A_KIND,
) -> list[PlacedKind]:
    """Return the kinds of failures with the positions of their examples, at most `most` of each.

    With `runs`, of results of these runs.
    """
    import numpy as np

    counts = handle.counts
    if not (counts.failed or counts.skipped or handle.header.finished is None):
        return []
    wanted = (FAILED, SKIPPED, NOT_APPLICABLE) if skipped else (FAILED,)
    columns = load_columns(handle, ("kind_codes",), statuses=wanted)
    chosen = np.flatnonzero(np.isin(columns.statuses, wanted))
    if runs is not None and isinstance(handle, Evaluation):
        places = {place for place, run in enumerate(handle.header.runs) if run in runs}
        mine = np.array([not places.isdisjoint(item.runs) for item in columns.items], bool)
        chosen = chosen[mine[columns.codes[chosen]]]
    if not len(chosen):
        return []
    found: dict[tuple[str, str, str], tuple[int, list[int]]] = {}
    for (what, status, type_), count, first in _group_failures(handle, columns, chosen, most):
        place = (what, status, type_)
        if place not in found and len(found) >= MOST_KINDS:
            place = (what, status, "others")
        before = found.get(place, (0, []))
        found[place] = (before[0] + count, sorted([*before[1], *first])[:most])
    made = [
        PlacedKind(
            FailureKind(handle.id, *place, count, [_example(handle, columns, row) for row in rows]),
            [_place(columns, row) for row in rows],
        )
        for place, (count, rows) in found.items()
    ]
    return sorted(made, key=lambda each: (-each.kind.count, each.kind.what, each.kind.type))


def _group_failures(
    handle: Run | Evaluation, columns: ItemColumns, chosen: NDArray[Any], most: int
) -> list[tuple[tuple[str, str, str], int, list[int]]]:
    """Group items by `(what, status, type)`: their number and the first items, in order of appearance."""
    import numpy as np

    evaluators = handle.header.evaluators if isinstance(handle, Evaluation) else []
    whats = ["output", *(spec.key for spec in evaluators)]
    what = np.array([item.evaluator + 1 for item in columns.items], np.int64)[columns.codes[chosen]]
    status = (columns.statuses[chosen] != FAILED).astype(np.int64)
    kinds = len(columns.kinds)
    key = (what * 2 + status) * kinds + columns.kind_codes[chosen]
    order = np.argsort(key, kind="stable")
    distinct, starts = np.unique(key[order], return_index=True)
    ends = [*starts[1:].tolist(), len(key)]
    out = []
    for each, start, end in zip(distinct.tolist(), starts.tolist(), ends, strict=True):
        rest, kind = divmod(each, kinds)
        rows = chosen[order[start : min(end, start + most)]].tolist()
        name = (whats[rest // 2], "skipped" if rest % 2 else "failed", columns.kinds[kind])
        out.append((name, end - start, rows))
    return sorted(out, key=lambda group: group[2][0])


def _place(columns: ItemColumns, row: int) -> ItemPlace:
    item = columns.items[columns.codes[row]]
    return ItemPlace(int(columns.positions[row]), item.attempt, item.unit)


def _example(handle: Run | Evaluation, columns: ItemColumns, row: int) -> dict[str, Any]:
    """The example of one failed item, read from its record."""
    position, name = int(columns.positions[row]), columns.items[columns.codes[row]]
    decode: Any = output_decoder.decode if isinstance(handle, Run) else result_decoder.decode
    item: Output | ItemResult | None = None
    for each in latest(handle.store.backend.scan(handle.number, position, position + 1)):
        record = decode(each.payload)
        if (record.attempt, record.unit) != (name.attempt, name.unit):
            continue
        if isinstance(handle, Run) or (
            record.key == handle.header.evaluators[name.evaluator].key
            and record.runs == tuple(handle.header.runs[run] for run in name.runs)
        ):
            item = record
    assert item is not None, "columns and records have the same items"
    message = where = ""
    if isinstance(item.outcome, Failed):
        message, where = kind_of(item.outcome.error)[1], item.outcome.error.where
    several = isinstance(handle, Evaluation) and len(handle.header.runs) > 1
    about: dict[str, Any] = {
        "example": item.example,
        "attempt": item.attempt,
        "runs": list(item.runs) if several and isinstance(item, ItemResult) else [],
        "message": message[:LONGEST_MESSAGE],
        "where": where,
    }
    return {name: value for name, value in about.items() if value}


# How long outputs took: the task's own time, and apart from it the time its model calls waited.


Spread = dict[str, float]
"""`mean`, `median`, `p95` and `max`, in seconds; empty without outputs."""


class Latency(msgspec.Struct, frozen=True):
    """The seconds of outputs; those that failed took time too."""

    service: Spread = {}
    """Without waiting."""
    queue: Spread = {}
    """Waiting for a slot, a rate limit or a retry."""


def latency_of(run: Run) -> Latency:
    """Read how long the outputs of a run took."""
    columns = load_columns(run, ("seconds", "queue"))
    return Latency(_spread(columns.service_seconds), _spread(columns.queue))


def _spread(values: NDArray[np.float64]) -> Spread:
    import numpy as np

    if not len(values):
        return {}
    median, p95 = np.quantile(values, (0.5, 0.95)).tolist()
    return {"mean": float(values.mean()), "median": median, "p95": p95, "max": float(values.max())}


def seconds_text(seconds: float) -> str:
    """Format seconds for people."""
    return "<0.001" if 0 < seconds < 0.001 else f"{seconds:.3f}"
