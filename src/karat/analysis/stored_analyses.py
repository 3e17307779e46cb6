"""Comparisons and rankings as aggregations in a store: computed once, found again while nothing has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

import karat
from karat.errors import StoreError, StoreRefused
from karat.formatting import Block, as_html, as_markdown, as_text
from karat.keys import fingerprint
from karat.records import FORMAT, AggregateTable, AggregationHeader, AggregatorSpec, Counts, Estimate
from karat.serialization import prepared
from karat.store import Store
from karat.store.handles import Aggregation, Evaluation, Run
from karat.store.run_labels import run_labels

Kind = Literal["comparison", "ranking"]

COMMANDS: dict[Kind, str] = {"comparison": "karat compare", "ranking": "karat rank"}
"""The name under which a header lists an analysis among its aggregators."""


class Analysis:
    """Base of comparisons and rankings: their tables as text, Markdown and HTML."""

    __slots__ = ()

    def blocks(self) -> list[Block]:
        """The sentences and tables of the report."""
        raise NotImplementedError

    def report(self) -> str:
        """Tables for a terminal."""
        return as_text(self.blocks())

    def markdown(self) -> str:
        """The report as Markdown."""
        return as_markdown(self.blocks())

    def __str__(self) -> str:
        return self.report()

    def _repr_html_(self) -> str:
        return as_html(self.blocks())


class _Analysis(Protocol):
    """A comparison or a ranking."""

    @property
    def conclusions(self) -> list[str]:
        """The conclusions, as sentences."""

    def estimates(self) -> list[Estimate]:
        """The estimates, each with the evaluator, run and group that it is about."""

    def to_dict(self) -> dict[str, Any]:
        """The whole analysis as JSON-able values."""


A = TypeVar("A", bound=_Analysis)


def find_or_compute(
    kind: Kind,
    type_: type[A],
    compute: Callable[[], A],
    *,
    store: Store,
    runs: Sequence[Run],
    evaluations: Sequence[Evaluation],
    settings: Mapping[str, Any],
    new: bool = False,
    keep: bool = True,
    labels: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    description: str = "",
) -> A:
    """Return the stored analysis of these runs, evaluations and settings; compute and store it where there is none.

    A run or evaluation that has grown since, or whose failed items were tried again, gives another analysis, and so
    does a label that changes what a run is called, because the conclusions name the runs. With
    `keep=False` it is not stored: a report does not change the store.
    """
    from karat.aggregators._base import METHODS  # `karat ls` needs no statistics

    configuration = fingerprint(
        analysis=kind,
        version=[karat.__version__, METHODS],
        runs=[_state(run) for run in runs],
        names=run_labels([run.header for run in runs]),
        evaluations=[_state(evaluation) for evaluation in evaluations],
        settings=settings,
    )
    known = [] if new else store.backend.headers("aggregation", configuration=configuration)
    if known:
        found = store.aggregations.get(known[-1].id)
        return _with_id(msgspec.convert(found.tables[0].value, prepared(type_)), found.id)
    made = compute()
    if not keep:
        return made
    from karat.execution.pipeline import environment  # imports asyncio, which `karat ls` does without

    counts = _total(evaluations)
    header = AggregationHeader(
        format=FORMAT,
        id="",
        evaluations=[evaluation.id for evaluation in evaluations],
        aggregators=[AggregatorSpec(kind, COMMANDS[kind], dict(settings))],
        configuration=configuration,
        estimates=made.estimates(),
        tables=[AggregateTable(made.to_dict(), kind, aggregator=kind)],
        labels=list(labels),
        metadata={**(metadata or {}), "conclusions": made.conclusions},
        description=description,
        environment=environment(),
        created=time.time(),
        finished=time.time(),
        status=counts.status,
        counts=counts,
    )
    try:
        return _with_id(made, store.aggregations.add(header).id)
    except (StoreError, StoreRefused):
        if not getattr(store.backend, "read_only", False):
            raise
        return made  # a store that can only be read still answers


def is_analysis(aggregation: Aggregation) -> bool:
    """Whether an aggregation is a stored comparison or ranking."""
    return any(spec.name in COMMANDS.values() for spec in aggregation.header.aggregators)


def is_outdated(aggregation: Aggregation, evaluations: Mapping[str, Evaluation]) -> bool:
    """Whether evaluations have changed since they were aggregated, or runs that they compare."""
    created, members = aggregation.header.created, []
    for id in aggregation.header.evaluations:
        evaluation = evaluations.get(id) or aggregation.store.evaluations.get(id)
        members.append(evaluation)
        parts: list[Run | Evaluation] = [evaluation]
        if any(spec.kind != "single" for spec in evaluation.header.evaluators):
            parts += evaluation.runs
        if any((part.header.finished or 0.0) > created for part in parts):
            return True
    # What an unfinished evaluation has stored since does not change its header.
    unfinished = [each for each in members if each.header.finished is None]
    return len(members) == len(unfinished) == 1 and _total(members) != aggregation.header.counts


def _with_id(analysis: A, id: str) -> A:
    return msgspec.structs.replace(analysis, id=id)  # type: ignore[type-var]  # both are structs


def _state(handle: Run | Evaluation) -> list[Any]:
    """A state that changes when records are added: the time of completion, or the counts of unfinished ones."""
    finished = handle.header.finished
    stored = None if finished is not None else sorted(handle.store.backend.counts(handle.number).items())
    return [handle.id, finished, stored]


def _total(evaluations: Sequence[Evaluation]) -> Counts:
    """The items of all evaluations; what an unfinished one has stored is counted."""
    total = Counts()
    for each in evaluations:
        counts = each.counts
        if each.header.finished is None:
            counts = each.store.evaluations.count(each.number, counts.total)
        total = Counts(
            **{name: getattr(total, name) + getattr(counts, name) for name in Counts.__struct_fields__}
        )
    return total
