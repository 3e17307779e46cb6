"""The outcome of stages as blocks for the terminal and as an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from karat.errors import plural
from karat.formatting import Block, Details, Heading, Paragraph, Table, clean, counts_text
from karat.layout import Styled
from karat.records import Ok, Status
from karat.store.handles import Aggregation, Evaluation, Run
from karat.store.run_labels import matrix_labels, run_labels

if TYPE_CHECKING:
    from karat.cli.terminal import Terminal
    from karat.experiments.running import Outcome


def exit_code(status: Status) -> int:
    """0 on success; 1 if items failed or are missing, or nothing could be measured."""
    return 0 if status == "success" else 1


def measured_code(aggregation: Aggregation) -> int:
    """The exit code of an aggregation: also 1 if it has estimates and none of them a value."""
    estimates = aggregation.header.estimates
    if estimates and all(each.value is None for each in estimates):
        return 1
    return exit_code(aggregation.status)


class Gates:
    """The thresholds of --fail-under and their verdicts; without any, nothing is shown and nothing changes."""

    def __init__(self, aggregation: Aggregation | None, thresholds: Sequence[str]) -> None:
        from karat.analysis.gates import gate

        self.aggregation = aggregation
        self.gates = gate(aggregation, *thresholds) if aggregation is not None and thresholds else []

    def document(self) -> dict[str, Any]:
        """Return the document that --json prints."""
        from karat.analysis.gates import worst

        return {"gates": msgspec.to_builtins(self.gates), "verdict": worst(self.gates)} if self.gates else {}

    def blocks(self) -> list[Block]:
        """The verdicts, for a terminal."""
        from karat.analysis.gates import threshold_blocks

        return threshold_blocks(self.aggregation, self.gates) if self.aggregation is not None else []

    def exit_code(self, terminal: Terminal, otherwise: int) -> int:
        """The verdict decides: it counts failed and missing items, so that a few of them need not spoil it."""
        from karat.analysis.gates import EXIT_CODES, worst

        verdict = worst(self.gates)
        if verdict is None:
            return otherwise
        terminal.notice(f"gate: {verdict}")
        return EXIT_CODES[verdict]


def counted(handle: Any) -> Any:
    """A handle with counts of the stored records: the header has none while a process works or after it was killed."""
    if isinstance(handle, (Run, Evaluation)) and handle.header.finished is None:
        repository = handle.store.runs if isinstance(handle, Run) else handle.store.evaluations
        counts = repository.count(handle.number, handle.counts.total)
        handle.header = msgspec.structs.replace(handle.header, counts=counts)
    return handle


def latest_notice(handle: Any) -> str:
    """Say which object `latest` is, with its tasks. Returning a stored result does not make it the latest one."""
    runs = [handle] if isinstance(handle, Run) else getattr(handle, "runs", [])
    tasks = list(dict.fromkeys(run.header.task for run in runs))
    named = f" ({', '.join(tasks[:3])}{', …' if len(tasks) > 3 else ''})" if tasks else ""
    return f"latest is {handle.id}{named}"


def stage_blocks(handle: Any) -> list[Block]:
    """The outcome of one stage: what became of its items, what its models used, and how to see the rows."""
    notice = f" ({clean(handle.notice)})" if handle.notice else ""
    counts = counts_text(handle.counts)
    blocks: list[Block] = [Paragraph(f"{handle.kind} {handle.id}: {handle.status}, {counts}{notice}")]
    return [*blocks, *usage_blocks([handle]), *next_steps(handle)]


def usage_blocks(handles: Sequence[Any]) -> list[Block]:
    """Calls, tokens and cost of each model; empty where no model was called."""
    rows = []
    for handle in handles:
        for model, usage in handle.header.usage.items():
            cost = "unknown" if usage.cost is None else f"${usage.cost:.4f}"
            counts = (usage.calls, usage.cached_calls, usage.input_tokens, usage.output_tokens)
            rows.append([handle.id, model, *(f"{count:,}" for count in counts), cost])
    head = ["stage", "model", "calls", "from cache", "tokens in", "tokens out", "cost"]
    return [Table(head, rows, [2, 3, 4, 5, 6], cell=80, drop=[3, 0, 5, 4])] if rows else []


def next_steps(*handles: Any) -> list[Block]:
    """Return what failed, and the commands that show the failures and the rows."""
    there = [each for each in handles if each is not None]
    runs = [each for each in there if isinstance(each, Run) and each.counts.failed]
    failed = runs[:MOST_RUNS] + [each for each in there if not isinstance(each, Run) and each.counts.failed]
    if not failed:  # results are skipped where an output failed
        failed = [each for each in there if each.counts.skipped > each.counts.not_applicable][:1]
    last = there[-1] if there else None
    blocks: list[Block] = []
    labels = run_labels([run.header for run in runs]) if len(runs) > 1 else {}
    causes: dict[str, list[str]] = {}  # several variants often fail for one reason
    for each in failed:
        for text in failure_texts(each):
            causes.setdefault(text, []).extend([labels[each.id]] if each.id in labels else [])
    for text, of in causes.items():
        who = f"each of {len(of)} runs: " if len(of) > 2 else f"{clean(', '.join(of))}: " if of else ""
        blocks.append(Paragraph(Styled(who + text, "bad")))
    more = len(runs) - MOST_RUNS
    if more > 0:
        blocks.append(Paragraph(f"{plural(more, 'more run')} with failures"))
    blocks += [
        Paragraph(Styled("every output is null: does the task return its answer?", "warning"))
        for each in there
        if isinstance(each, Run) and each.counts.ok and _returns_nothing(each)
    ]
    if last is None or last.store.url == "memory://":  # nothing is left for another command
        return blocks
    commands = [each.store.command("show", each.id, "--failed") for each in failed]
    commands += [last.store.command("ls", "runs")] if more > 0 else []
    lines = [("" if place else "failures", [command]) for place, command in enumerate(commands)]
    if last.counts.total:
        lines.append(("rows", [last.store.command("show", last.id)]))
    if isinstance(last, Run) and last.counts.ok:
        lines.append(("scores", [last.store.command("evaluate", last.id, "-e", "NAME")]))
    return [*blocks, Details("", lines)] if lines else blocks


def _returns_nothing(run: Run) -> bool:
    """Whether a task returned None for every example, as functions without a return statement do."""
    return all(isinstance(each.outcome, Ok) and each.outcome.value is None for each in run.outputs())


MOST_RUNS = 5
"""Runs whose failures are shown."""
MOST_REASONS = 3
"""Reasons of failures that are shown of a run or an evaluation."""


def failure_texts(handle: Run | Evaluation) -> list[str]:
    """Return how often the task or each evaluator failed, with the most frequent reasons and their first example."""
    from karat.analysis.outcomes import failure_reasons

    reasons = failure_reasons(handle)
    of: int | None = handle.counts.total
    if isinstance(handle, Evaluation):
        specs = handle.header.evaluators
        of = handle.counts.total // len(specs) if all(spec.kind == "single" for spec in specs) else None
    texts = []
    for kind, is_shared in reasons[:MOST_REASONS]:
        first: dict[str, Any] = next(iter(kind.examples), {})
        who = f"{kind.what}: " if isinstance(handle, Evaluation) else ""
        many = f"all {of:,}" if kind.count == of else f"{kind.count:,}" + (f" of {of:,}" if of else "")
        message = clean(": ".join(filter(None, [kind.type, first.get("message")])), 400)
        notes = [_line(first.get("where", ""))]
        if not is_shared or kind.count != of or isinstance(handle, Evaluation):
            notes.append(f"first: example {clean(first['example'], 80)}")
        if not is_shared:
            notes.append("others may have other reasons")
        told = ", ".join(filter(None, notes))
        texts.append(f"{who}{many} failed: {message}{f' ({told})' if told else ''}")
    rest = reasons[MOST_REASONS:]
    if rest:
        count = sum(kind.count for kind, _ in rest)
        texts.append(f"and {plural(count, 'more failure')} for {plural(len(rest), 'other reason')}")
    return texts


def label_notices(handle: Run | Evaluation, labels: Sequence[str]) -> list[str]:
    """A notice for each label that others of the same kind have too, so that it names none of them."""
    repository = handle.store.runs if isinstance(handle, Run) else handle.store.evaluations
    others = repository.list() if labels else []
    notices = []
    for label in dict.fromkeys(labels):
        taken = [other.id for other in others if label in other.labels and other.id != handle.id]
        if taken:
            more = f" and {len(taken) - 1:,} more" if len(taken) > 1 else ""
            command = handle.store.command("tag", handle.id, label, "--move")
            verb = "have" if more else "has"
            notices.append(
                f"{taken[-1]}{more} also {verb} the label {clean(label)!r}, which now names several"
                f" {handle.kind}s: {command}"
            )
    return notices


def _line(where: str) -> str:
    """The line of the user's code that raised."""
    return clean(where.partition(" ")[0], 80)


def outcome_blocks(outcome: Outcome) -> list[Block]:
    """The report of an experiment: what was found, the estimates or the grid of a matrix, then the stages."""
    evaluation, aggregation, comparison = outcome.evaluation, outcome.aggregation, outcome.comparison
    blocks: list[Block] = []
    stages = [*outcome.runs, evaluation]
    failed = sum(each.counts.failed for each in outcome.runs)
    if failed:
        total = sum(each.counts.total for each in outcome.runs)
        blocks.append(Paragraph(Styled(f"{failed:,} of {plural(total, 'output')} failed.", "bad")))
    if outcome.grid is not None and comparison is not None:
        dataset, name = outcome.dataset, outcome.runs[0].header.task
        header = outcome.runs[0].header
        selected = len(range(len(dataset))[header.offset :][: header.limit])
        part = f"{selected:,} of {plural(len(dataset), 'example')}"
        size = part if selected < len(dataset) else plural(len(dataset), "example")
        title = f"{len(outcome.runs)} variants of {name} on {dataset.label} ({size})"
        from karat.analysis.summary import grid_blocks

        usage = {run.id: run.header.usage for run in outcome.runs}
        blocks = [Heading(title, 1), *blocks, *grid_blocks(outcome.grid, comparison, usage)]
        blocks += [Paragraph(Styled(f"warning: {each}", "warning")) for each in comparison.warnings]
    elif aggregation is not None:
        blocks += aggregation.blocks()
    if aggregation is not None and outcome.grid is not None:
        blocks += [
            Paragraph(f"{f.label} failed: {f.error.type}: {f.error.message}")
            for f in aggregation.header.failures
        ]
        if any(each.group for each in aggregation.header.estimates):
            show = aggregation.store.command("show", aggregation.id)
            blocks.append(Paragraph(f"The estimates of groups are not in this table: {show}"))
    blocks += [_stages(outcome), *usage_blocks([each for each in stages if each is not None])]
    return [*blocks, *next_steps(*stages)]


def _stages(outcome: Outcome) -> Table:
    """The dataset, the runs, the evaluation and the aggregation, with their ids."""
    dataset, matrix = outcome.dataset, matrix_labels([made.header for made in outcome.runs])
    rows = [["dataset", dataset.id, dataset.label, "", plural(len(dataset), "example")]]
    for made, model in zip(outcome.runs, outcome.models, strict=True):
        model = None if "model" in made.header.metadata.get("matrix", {}) else model
        name = " ".join(part for part in (made.header.task, model, matrix.get(made.id)) if part)
        rows.append(["run", made.id, name, status_text(made.status), counts_text(made.counts)])
    for each in (outcome.evaluation, outcome.aggregation, outcome.comparison):
        if isinstance(each, (Evaluation, Aggregation)):
            if isinstance(each, Evaluation):
                names = ", ".join(spec.key for spec in each.header.evaluators)
            else:
                names = ", ".join(spec.label for spec in each.header.aggregators)
            rows.append([each.kind, each.id, names, status_text(each.status), counts_text(each.counts)])
        elif each is not None:
            rows.append(["comparison", each.id, "", "", ""])
    return Table(["stage", "id", "what", "status", "items"], rows, drop=[4, 2])


STATUS_STYLES = {
    "success": "good",
    "partial": "warning",
    "interrupted": "warning",
    "fatal_error": "bad",
    "no_data": "warning",
}


def status_text(status: str) -> str:
    """Return a status with its colour."""
    return Styled(status, STATUS_STYLES.get(status, ""))
