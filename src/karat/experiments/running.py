"""Carries a plan out: run, evaluate, aggregate, each computing exactly what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from karat.analysis.comparison import Comparison, compare_runs
from karat.errors import RequestError
from karat.execution.aggregate import aggregate
from karat.execution.evaluate import evaluate
from karat.execution.progress import Listener
from karat.execution.run import run
from karat.experiments.graphs import export
from karat.experiments.plan import Plan
from karat.records import Status
from karat.store import Store
from karat.store.handles import Aggregation, Evaluation, Run, StoredDataset

Told = Callable[[Any], None]
"""Called with each handle as soon as its stage is over."""


class Outcome(msgspec.Struct, kw_only=True):
    """What came of a plan."""

    dataset: StoredDataset
    runs: list[Run]
    models: list[str | None] = []
    files: list[str] = []
    """Of graphs, where the experiment says that they are to be written."""
    evaluation: Evaluation | None = None
    aggregation: Aggregation | None = None
    comparison: Comparison | None = None
    """Of the runs of a matrix with the first of them."""

    @property
    def status(self) -> Status:
        """The worst of its stages."""
        found = {each.status for each in (*self.runs, self.evaluation, self.aggregation) if each is not None}
        for status in ("fatal_error", "running", "interrupted", "partial", "no_data"):
            if status in found:
                return status
        return "success"

    def to_dict(self) -> dict[str, Any]:
        """All that is known of it, without the records."""
        runs = [
            {**each.to_dict(), "notice": each.notice, **({"model": model} if model else {})}
            for each, model in zip(self.runs, self.models, strict=True)
        ]
        return {
            "status": self.status,
            "dataset": self.dataset.to_dict(),
            "runs": runs,
            "evaluation": _dict(self.evaluation),
            "aggregation": _dict(self.aggregation),
            **({"files": self.files} if self.files else {}),
            **({"comparison": self.comparison.to_dict()} if self.comparison is not None else {}),
        }


def _dict(handle: Evaluation | Aggregation | None) -> dict[str, Any] | None:
    return None if handle is None else {**handle.to_dict(), "notice": handle.notice}


def carry_out(
    plan: Plan,
    store: Store,
    *,
    new: bool = False,
    retry_failed: bool = False,
    accept_code_change: bool = False,
    wait: bool = False,
    cache: str = "use",
    budget: float | None = None,
    progress: Listener | None = None,
    tell: Told | None = None,
) -> Outcome:
    """Runs, evaluates and aggregates what a plan says. `new` concerns the runs; what follows from them is new."""
    again: dict[str, Any] = {"retry_failed": retry_failed, "wait": wait, "cache": cache, "progress": progress}
    if budget is not None:
        again["budget"] = _budget(plan, budget)
    about: dict[str, Any] = {"labels": plan.labels, "description": plan.description}
    said = {"experiment": plan.name} if plan.name else {}
    data = (
        store.datasets.get(plan.dataset)
        if isinstance(plan.dataset, str)
        else store.datasets.put(plan.dataset)
    )
    outcome = Outcome(dataset=data, runs=[])
    for planned in plan.runs:
        metadata: dict[str, Any] = {**said, **({"model": planned.model} if planned.model else {})}
        if planned.matrix:
            metadata["matrix"] = planned.matrix
        options: Mapping[str, Any] = {**plan.options, **again, **about, "metadata": metadata, "new": new}
        made = run(planned.task, data, store=store, accept_code_change=accept_code_change, **options)
        outcome.runs.append(made)
        outcome.models.append(planned.model)
        if tell is not None:
            tell(made)
        exported = export(made, planned)
        if exported is not None:
            outcome.files += exported.files
            if tell is not None:
                tell(exported)
    if plan.evaluators:
        judging = {
            name: plan.options[name] for name in ("concurrency", "abort_on_error") if name in plan.options
        }
        outcome.evaluation = evaluate(
            outcome.runs, plan.evaluators, store=store, metadata=said, **judging, **again, **about
        )
        if tell is not None:
            tell(outcome.evaluation)
    if plan.aggregators and outcome.evaluation is not None:
        outcome.aggregation = aggregate(
            outcome.evaluation,
            plan.aggregators,
            store=store,
            confidence=plan.confidence,
            metadata=said,
            progress=progress,
            **about,
        )
    if outcome.evaluation is not None and len(outcome.runs) > 1 and any(p.matrix for p in plan.runs):
        outcome.comparison = _compared(outcome.evaluation, plan.confidence)
    return outcome


def _compared(evaluation: Evaluation, confidence: float) -> Comparison | None:
    """The runs of a matrix against its first combination, where an evaluator scores single outputs."""
    keys = [spec.key for spec in evaluation.header.evaluators if spec.kind == "single"]
    if not keys:
        return None
    return compare_runs(evaluation.store, [evaluation], metrics=keys, examples=3, confidence=confidence)


def _budget(plan: Plan, dollars: float) -> Any:
    """A budget for all stages; refused where a model that will be asked has no price."""
    from karat.models import Budget, get
    from karat.tasks.prompt import PromptTask

    for planned in plan.runs:
        model = planned.task.model if isinstance(planned.task, PromptTask) else planned.model
        if model is not None and not get(model).priced:
            raise RequestError(
                f"--budget needs a price, and none is known for {get(model).spec}: give prices for it in models.yaml"
            )
    return Budget(dollars)
