"""The outcome of a matrix: variants × metrics with intervals, the best of each metric marked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from karat.analysis.comparison import Comparison, Difference, arrow, leader_sentence
from karat.formatting import Block, Heading, Paragraph, Table, interval, number
from karat.layout import Styled
from karat.records import Estimate, Usage, interval_text

BEST, SAME = "★", "≈"


class Cell(msgspec.Struct, frozen=True):
    """A metric of a variant."""

    estimate: Estimate
    best: bool = False
    indistinguishable: bool = False
    """Whether its difference from the best is not significant."""


class Grid(msgspec.Struct, frozen=True):
    """Variants × metrics."""

    metrics: list[str]
    variants: list[str]
    runs: list[str]
    cells: list[list[Cell | None]]
    """One row for each variant."""
    conclusions: list[str]
    """The best variant by each metric, in a sentence."""

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-able values."""
        return {"kind": "grid", **msgspec.to_builtins(self)}


def make_grid(
    comparison: Comparison, estimates: Sequence[Estimate], lower_is_better: Collection[str] = ()
) -> Grid:
    """Arrange the estimates of the runs of a comparison, and mark the best run of each metric."""
    runs = [run.id for run in comparison.runs]
    labels = {run.id: run.label for run in comparison.runs}
    leaders = {(each.evaluator, each.aggregator): each for each in comparison.leaders}
    whole = [each for each in estimates if not each.group and each.run in labels]
    keys = dict.fromkeys((each.evaluator, each.aggregator, each.name) for each in whole)
    by_place = {(each.evaluator, each.aggregator, each.name, each.run): each for each in whole}
    best_values = {}
    for key in keys:
        values = [by_place[*key, run].value for run in runs if (*key, run) in by_place]
        known = [value for value in values if value is not None]
        pick = min if key[0] in lower_is_better else max
        best_values[key] = pick(known) if len(set(known)) > 1 else None
    cells: list[list[Cell | None]] = []
    for run in runs:
        row: list[Cell | None] = []
        for key in keys:
            estimate = by_place.get((*key, run))
            if estimate is None:
                row.append(None)
            elif (
                key[2] or key[:2] not in leaders
            ):  # not compared pair by pair: the best value alone is marked
                row.append(Cell(estimate, estimate.value is not None and estimate.value == best_values[key]))
            else:
                leader = leaders[key[:2]]
                row.append(Cell(estimate, leader.run == run, run in leader.indistinguishable))
        cells.append(row)
    heads = []
    for evaluator, aggregator, name in keys:
        shown = Estimate(None, evaluator=evaluator, aggregator=aggregator, name=name).label
        heads.append(f"{shown} {arrow(evaluator not in lower_is_better)}")
    named = {run: labels[run] for run in runs}
    conclusions = [f"{leader_sentence(leader, named, 'variant')}." for leader in comparison.leaders]
    return Grid(heads, [labels[run] for run in runs], runs, cells, conclusions)


def grid_blocks(grid: Grid, comparison: Comparison, usage: dict[str, dict[str, Usage]]) -> list[Block]:
    """The conclusions, the grid, and how each variant compares with the baseline, one line each."""
    costs = [_cost(usage.get(run, {})) for run in grid.runs]
    with_cost = any(costs)
    counts = {(cell.estimate.n, cell.estimate.of) for row in grid.cells for cell in row if cell is not None}
    rows = []
    for name, row, cost in zip(grid.variants, grid.cells, costs, strict=True):
        cells = [_cell(cell, with_count=len(counts) > 1) for cell in row]
        rows.append([name, *cells, *([cost] if with_cost else [])])
    blocks: list[Block] = [Paragraph(text) for text in grid.conclusions]
    blocks.append(Table(["variant", *grid.metrics, *(["cost"] if with_cost else [])], rows, split=True))
    marks = []
    if any(cell is not None and cell.best for row in grid.cells for cell in row):
        marks.append(f"{BEST} best")
    if any(cell is not None and cell.indistinguishable for row in grid.cells for cell in row):
        marks.append(f"{SAME} not distinguishable from the best")
    if len(counts) == 1:
        n, of = next(iter(counts))
        marks.append(f"each over {n:,} of {of:,} items")
    if marks:
        blocks.append(Paragraph(Styled(" · ".join(marks), "dim")))
    blocks += _lines(comparison)
    return blocks


def _cell(cell: Cell | None, *, with_count: bool) -> str:
    if cell is None:
        return "—"
    mark = BEST if cell.best else SAME if cell.indistinguishable else " "
    estimate = cell.estimate
    lacking = f" {estimate.n:,} of {estimate.of:,}" if with_count else ""
    text = f"{mark} {number(estimate.value)} {interval_text(estimate)}".rstrip() + lacking
    return Styled(text, "best") if cell.best else text


def _cost(usage: dict[str, Usage]) -> str:
    if not usage:
        return ""
    costs = [each.cost for each in usage.values()]
    return "unknown" if None in costs else f"${sum(cost or 0.0 for cost in costs):.4f}"


def _lines(comparison: Comparison) -> list[Block]:
    """One line for each variant: how it compares with the first by each metric."""
    labels = {run.id: run.label for run in comparison.runs}
    metrics = list(dict.fromkeys(each.metric for each in comparison.differences))
    rows = []
    for run in comparison.runs[1:]:
        row: list[str] = [labels[run.id]]
        for metric in metrics:
            found = [each for each in comparison.differences if each.run == run.id and each.metric == metric]
            row.append(_verdict(found[0], comparison.confidence) if found else "—")
        rows.append(row)
    if not rows:
        return []
    return [
        Heading(f"compared with {labels[comparison.runs[0].id]}, example by example"),
        Table(["variant", *metrics], rows, split=True),
        Paragraph(Styled(f"▲ better by · ▼ worse by · {SAME} no difference found", "dim")),
    ]


def _verdict(each: Difference, confidence: float) -> str:
    better, p = each.improvement, each.adjusted_p_value
    if better.value is None:
        return "no item in common"
    if p is None or p > 1.0 - confidence or not better.value:
        return f"{SAME} {better.value:+.3f}"
    side = (better.low, better.high) if better.value > 0 else (_minus(better.high), _minus(better.low))
    mark, style = ("▲", "good") if better.value > 0 else ("▼", "bad")
    return Styled(f"{mark} {number(abs(better.value))} {interval(*side)}", style)


def _minus(value: float | None) -> float | None:
    return None if value is None else -value
