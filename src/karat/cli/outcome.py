"""The outcome of stages as terminal lines and as an exit code."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from karat.formatting import clean, counts_text, plural
from karat.records import Failed, Status
from karat.store.handles import Evaluation, Run
from karat.store.run_labels import matrix_labels

if TYPE_CHECKING:
    from karat.experiments.running import Outcome


def exit_code(status: Status) -> int:
    """0 on success; 1 if items failed or are missing, or nothing could be measured."""
    return 0 if status == "success" else 1


def counted(handle: Any) -> Any:
    """A handle with counts of the stored records: the header has none while a process works or after it was killed."""
    if isinstance(handle, (Run, Evaluation)) and handle.header.finished is None:
        repository = handle.store.runs if isinstance(handle, Run) else handle.store.evaluations
        counts = repository.count(handle.number, handle.counts.total)
        handle.header = msgspec.structs.replace(handle.header, counts=counts)
    return handle


def stage_line(handle: Any) -> str:
    """`run run-1a2b: success, 60 items: 60 ok` with the notice of the stage."""
    notice = f" ({clean(handle.notice)})" if handle.notice else ""
    return f"{handle.kind} {handle.id}: {handle.status}, {counts_text(handle.counts)}{notice}"


def usage_lines(handle: Any) -> list[str]:
    """Calls, tokens and cost of each model, or `cost unknown`."""
    lines = []
    for model, usage in handle.header.usage.items():
        cost = "cost unknown" if usage.cost is None else f"${usage.cost:.4f}" if usage.cost else "no cost"
        cached = f" ({usage.cached_calls:,} from cache)" if usage.cached_calls else ""
        tokens = f"{usage.input_tokens:,} + {usage.output_tokens:,} tokens"
        lines.append(f"{clean(model, 80)}: {plural(usage.calls, 'call')}{cached}, {tokens}, {cost}")
    return lines


def what_failed(handle: Any) -> str:
    """The common reason, if all items failed for the same one, and the command that lists failures."""
    where = f"to list failures: karat show {handle.id} --failed"
    reason = common_failure(handle)
    return f"all {handle.counts.failed:,} failed: {clean(reason, 400)}\n{where}" if reason else where


MOST_FAILURES = 1000
"""Limit on the failures that are compared to find a common reason."""


def common_failure(handle: Any) -> str:
    """The message of the first failure, where nothing succeeded and all failures are of one kind; else empty."""
    if handle.counts.ok or handle.counts.skipped or not handle.counts.failed:
        return ""
    items = handle.outputs() if isinstance(handle, Run) else handle.results()
    errors = [each.outcome.error for each in islice(items, MOST_FAILURES) if isinstance(each.outcome, Failed)]
    kinds = set()
    for error in errors:
        node = error.metadata.get("node")  # of a graph task: the type of the error is in the message
        inner = error.message.removeprefix(f"node {node}: ").partition(":")[0] if node else ""
        kinds.add((error.type, node, inner))
    if len(kinds) != 1 or not errors:
        return ""
    first = errors[0]
    named = first.message if first.metadata.get("node") else f"{first.type}: {first.message}"
    return named if len({error.message for error in errors}) == 1 else f"{named} (the first failure)"


def outcome_text(outcome: Outcome) -> str:
    """The report of an experiment: dataset, runs, evaluation and estimates."""
    dataset = outcome.dataset
    lines = [f"dataset {clean(dataset.label, 80)}  {dataset.id}  {plural(len(dataset), 'example')}"]
    matrix = matrix_labels([made.header for made in outcome.runs])
    for made, model in zip(outcome.runs, outcome.models, strict=True):
        model = None if "model" in made.header.metadata.get("matrix", {}) else model
        parts = [made.header.task, model, matrix.get(made.id), made.status, counts_text(made.counts)]
        lines.append("  ".join([f"run {made.id}", *(clean(each, 80) for each in parts if each)]))
        lines += [f"  {line}" for line in usage_lines(made)]
    evaluation = outcome.evaluation
    if evaluation is not None:
        lines.append(f"evaluation {evaluation.id}  {evaluation.status}  {counts_text(evaluation.counts)}")
        lines += [f"  {line}" for line in usage_lines(evaluation)]
    if outcome.aggregation is not None:
        lines += [outcome.aggregation.report()]
    if outcome.comparison is not None:
        lines += ["", outcome.comparison.report()]
    failed = next(
        (each for each in (*outcome.runs, evaluation) if each is not None and each.counts.failed), None
    )
    return "\n".join(lines + ([] if failed is None else ["", what_failed(failed)]))
