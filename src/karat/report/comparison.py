"""A comparison of runs, as blocks of a report."""

from __future__ import annotations

from karat.comparison.pairs_of_runs import Comparison, Difference
from karat.comparison.worse import Worse
from karat.report.blocks import Block, Heading, Paragraph, Table, interval, percent, probability
from karat.report.text import bounds_text, number

SHOWN = 160
"""Characters of an output that are shown side by side with the other."""


def comparison_blocks(comparison: Comparison) -> list[Block]:
    """The legend, the differences, the gates, and the examples that got worse."""
    labels = {run.id: run.label for run in comparison.runs}
    baseline = comparison.runs[0]
    blocks: list[Block] = [
        Heading(f"{len(comparison.runs)} runs compared, the baseline is {baseline.label}", 1),
        Table(
            ["run", "id", "task", "dataset"],
            [[run.label, run.id, run.task, run.dataset] for run in comparison.runs],
        ),
        *(Paragraph(note) for note in comparison.notes),
        _differences(comparison, labels),
        *(Paragraph(f"{labels[e.run]}, {e.metric}: {e.note}") for e in comparison.differences if e.note),
        Paragraph(_explained(comparison)),
    ]
    if comparison.gates:
        blocks += [
            Heading(f"gate: {comparison.verdict}"),
            Table(
                ["metric", "run", "may be worse by", "verdict", "why"],
                [[g.metric, labels[g.run], f"{g.margin:g}", g.verdict, g.reason] for g in comparison.gates],
                [2],
            ),
        ]
    for (metric, run), found in _grouped(comparison.worse).items():
        blocks += _worse(f"examples that got worse: {metric}, {labels[run]}", found)
    return blocks


def _differences(comparison: Comparison, labels: dict[str, str]) -> Table:
    several = len(comparison.differences) > 1
    head = [
        "metric",
        "run",
        "baseline",
        "run's",
        "difference",
        f"{percent(comparison.confidence)} interval",
        "p",
    ]
    head += [*(["p (Holm)"] if several else []), "won/lost/tied", "smallest effect", "n"]
    rows = []
    for each in comparison.differences:
        compared = each.compared
        row = [
            each.metric,
            labels[each.run],
            number(compared.first.value),
            number(compared.second.value),
            "—" if compared.difference.value is None else f"{compared.difference.value:+.3f}",
            interval(compared.difference.low, compared.difference.high, signed=True),
            probability(compared.p_value),
            *([probability(each.adjusted_p_value)] if several else []),
            f"{compared.wins:,}/{compared.losses:,}/{compared.ties:,}",
            number(compared.smallest_effect),
            _denominator(each),
        ]
        rows.append(row)
    return Table(head, rows, [2, 3, 4, 6, *([7] if several else [])])


def _denominator(each: Difference) -> str:
    difference = each.compared.difference
    bounds = bounds_text(difference, sign="+")
    return f"{difference.n:,} of {difference.of:,}{f'; {bounds}' if bounds else ''}"


def _explained(comparison: Comparison) -> str:
    methods = dict.fromkeys(e.compared.difference.method for e in comparison.differences)
    tests = dict.fromkeys(e.compared.test.method for e in comparison.differences)
    text = f"Paired by example. Intervals: {', '.join(methods)}; tests: {', '.join(tests)}."
    effects = [e.compared.difference.metadata.get("design_effect") for e in comparison.differences]
    known = [effect for effect in effects if effect is not None]
    if known:
        text += f" Design effect {', '.join(f'{effect:.2f}' for effect in known)}."
    power = comparison.differences[0].compared.power
    return text + f" The smallest effect is what this data would have shown with power {power:g}."


def _grouped(worse: list[Worse]) -> dict[tuple[str, str], list[Worse]]:
    out: dict[tuple[str, str], list[Worse]] = {}
    for each in worse:
        out.setdefault((each.metric, each.run), []).append(each)
    return out


def _worse(title: str, found: list[Worse]) -> list[Block]:
    calls = any(each.calls for each in found)
    head = ["example", "input", "expected", "score", "baseline's output", "run's output"]
    rows = [
        [
            each.example,
            each.input,
            each.expected,
            f"{each.first:g} → {each.second:g}",
            each.first_output,
            each.second_output,
            *([each.calls] if calls else []),
        ]
        for each in found
    ]
    return [Heading(title), Table([*head, *(["tool calls"] if calls else [])], rows, cell=SHOWN)]
