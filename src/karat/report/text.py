"""Reports as plain text, for a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from karat.records import Counts, Estimate

if TYPE_CHECKING:
    from karat.store.handles import Aggregation


def clean(text: Any, longest: int = 200) -> str:
    """Text from outside, on one line: control characters cannot reach the terminal, and it is bounded."""
    shown = "".join(
        c if unicodedata.category(c)[0] != "C" else " " if c in "\n\t\r" else "�"
        for c in str(text)[: longest + 1]
    )
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns padded to their widest cell; the first row is the head."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = [
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
        if number == 0:
            lines.append("  ".join("─" * w for w in widths).rstrip())
    return "\n".join(lines)


def counts_text(counts: Counts) -> str:
    """`1,000 items: 950 ok, 50 failed`."""
    parts = [f"{counts.ok:,} ok"]
    for name in ("failed", "skipped", "pending"):
        if value := getattr(counts, name):
            note = (
                f" ({counts.not_applicable:,} not applicable)"
                if name == "skipped" and counts.not_applicable
                else ""
            )
            parts.append(f"{value:,} {name}{note}")
    if counts.reused:
        parts[0] += f" ({counts.reused:,} reused)"
    return f"{counts.total:,} items: {', '.join(parts)}"


def number(value: float | None, digits: int = 3) -> str:
    """A number as reports show it; an em dash where there is none."""
    return "—" if value is None else f"{value:.{digits}f}"


def estimate_row(name: str, estimate: Estimate) -> list[str]:
    """A row of the table of estimates."""
    interval = "—"
    if estimate.low is not None and estimate.high is not None:
        interval = f"[{estimate.low:.3f}, {estimate.high:.3f}]"
    notes = [bounds_text(estimate), effect_text(estimate)]
    return [
        clean(name, 80),
        number(estimate.value),
        interval,
        f"{estimate.n:,} of {estimate.of:,}",
        "; ".join(note for note in notes if note),
    ]


def bounds_text(estimate: Estimate, sign: str = "") -> str:
    """What missing items could make of a number; empty where none is missing."""
    missing = estimate.of - estimate.n
    if not missing or estimate.lowest is None or estimate.highest is None:
        return ""
    return (
        f"between {estimate.lowest:{sign}.3f} and {estimate.highest:{sign}.3f}"
        f" whatever the {missing:,} {'was' if missing == 1 else 'were'}"
    )


def effect_text(estimate: Estimate) -> str:
    """How much clusters widen an interval; empty where items are independent."""
    effect, clusters = estimate.metadata.get("design_effect"), estimate.metadata.get("clusters")
    if effect is None or clusters is None:
        return ""
    return f"design effect {effect:.2f}, {clusters:,} clusters"


MOST_NUMBERS = 20
"""Of one aggregator, in a terminal: classes of free text are as many as there are answers."""


def aggregation_report(aggregation: Aggregation, most: int | None = MOST_NUMBERS) -> str:
    """Estimates with their intervals and denominators, tables by name, failures in their place.

    Of each aggregator over each evaluator the first `most` numbers are shown, and it is said how many more there are.
    """
    header = aggregation.header
    lines = [f"aggregation {aggregation.id}  {header.status}  {counts_text(header.counts)}", ""]
    runs = _run_labels(aggregation)
    rows = [["metric", "value", "interval", "n", "", *(["run"] if runs else [])]]
    confidences = {e.confidence for e in header.estimates.values()}
    if len(confidences) == 1:
        rows[0][2] = f"{100 * confidences.pop():g} % interval"
    keys = sorted((spec.key for spec in header.aggregators), key=len, reverse=True)
    seen: dict[str, int] = {}
    for name, estimate in header.estimates.items():
        whose = _aggregated(name, keys)
        seen[whose] = seen.get(whose, 0) + 1
        if most is None or seen[whose] <= most:
            row = estimate_row(name, estimate)
            rows.append([*row, clean(_label(name, runs), 80)] if runs else row)
    lines.append(table(rows, right=(1, 3)))
    for whose, count in seen.items():
        if most is not None and count > most:
            lines.append(
                f"{clean(whose, 80)}: {count - most:,} more numbers (karat show {aggregation.id} has all)"
            )
    if header.tables:
        names = ", ".join(clean(name, 80) for name in list(header.tables)[:20])
        lines.append(f"tables: {names} (karat report {aggregation.id} shows them)")
    for name, failure in header.failures.items():
        lines.append(f"{clean(name, 80)} failed: {clean(failure.type, 60)}: {clean(failure.message)}")
    return "\n".join(lines)


def _run_labels(aggregation: Aggregation) -> dict[str, str]:
    """What to call the runs that names such as `accuracy@run-1a2b` speak of; empty where they speak of none."""
    if not any("@" in name for name in aggregation.estimates):
        return {}
    from karat.comparison.naming import run_labels

    found = {run.id: run.header for each in aggregation.evaluations for run in each.runs}
    return run_labels(list(found.values())) if len(found) > 1 else {}


def _label(name: str, runs: dict[str, str]) -> str:
    """The label of the run that an estimate's name ends in, before what it is split by."""
    _, _, tail = name.rpartition("@")
    return next((label for run, label in runs.items() if tail == run or tail.startswith(f"{run}.")), "")


def _aggregated(name: str, keys: Sequence[str]) -> str:
    """The part of an estimate's name that says whose it is: `match-precision` of `match-precision.class=Paris`."""
    for key in keys:
        found = re.search(rf"(^|-){re.escape(key)}(@[^.]*)?(?=\.)", name)
        if found:
            return name[: found.end()]
    return name
