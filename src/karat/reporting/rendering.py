"""A summary written down: as text, Markdown, LaTeX, JSON or CSV."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from karat.analysis.comparison import Comparison, comparison_blocks
from karat.analysis.outcomes import seconds_text
from karat.analysis.ranking import Ranking, ranking_blocks
from karat.analysis.summary import Metric, RunSummary, Summary
from karat.datasets.writers import ANY, record_writer
from karat.errors import RequestError, plural
from karat.formatting import (
    Block,
    Heading,
    Paragraph,
    Table,
    as_markdown,
    as_text,
    clean,
    counts_text,
    estimate_table,
    headlines,
    interval,
    matrix_table,
    number,
    percent,
)
from karat.records import Estimate, Usage, group_text, interval_text
from karat.serialization import prepared

FORMATS = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
    ".csv": "csv",
    ".tex": "latex",
    ".txt": "text",
}
COLUMNS = (
    *("evaluator", "aggregator", "name", "group", "run", "run_id", "value", "low", "high"),
    *("confidence", "n", "of", "lowest", "highest", "method", "source"),
)
TIMES = ("mean", "median", "p95", "max")
MOST_CLASSES = 30
"""Classes of a confusion matrix that are shown; the JSON has all."""


def render(summary: Summary, form: str) -> str:
    """The whole report in one of the formats."""
    if form == "json":
        return json.dumps(summary.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if form == "csv":
        return _csv(summary)
    if form == "markdown":
        return as_markdown(summary_blocks(summary))
    if form == "latex":
        return _latex(summary)
    if form == "text":
        return as_text(summary_blocks(summary)) + "\n"
    raise RequestError(f"a report is text, markdown, latex, json or csv, not {form!r}")


def summary_blocks(summary: Summary) -> list[Block]:
    """The report: what was found, runs, metrics, groups, confusion matrices, rankings, cost and time, failures."""
    labels = {run.id: run.label for run in summary.runs}
    blocks: list[Block] = [Heading(_title(summary), 1)]
    found = headlines([metric.estimate for metric in summary.metrics], labels)
    blocks += [*(Paragraph(sentence) for sentence in found), _runs(summary.runs)]
    blocks += [Paragraph(f"{run.label}: {run.description}") for run in summary.runs if run.description]
    blocks += [Paragraph(note) for note in summary.notes]
    whole = [metric for metric in summary.metrics if not metric.estimate.group]
    if whole:
        table = estimate_table([metric.estimate for metric in whole], labels, summary.lower_is_better)
        blocks += [Heading("metrics"), table, *_effects(whole, labels)]
    else:
        blocks.append(Paragraph(summary.next_step))
    groups = [metric.estimate for metric in summary.metrics if metric.estimate.group]
    if groups:
        blocks += [Heading("groups"), estimate_table(groups, labels, summary.lower_is_better)]
    for each in summary.tables:
        run = labels.get(each.run or "", "") if len(labels) > 1 else ""
        blocks += _table_blocks(f"{each.label}, {run}" if run else each.label, each.value, labels)
    blocks += _cost(summary)
    if summary.failures:
        blocks += [Heading("failures"), _failures(summary, labels)]
    blocks += [Heading("made with"), _environment(summary.runs)]
    return blocks


def _title(summary: Summary) -> str:
    tasks = list(dict.fromkeys(run.task for run in summary.runs))
    data = list(dict.fromkeys(run.dataset for run in summary.runs))
    return f"{', '.join(tasks)} on {', '.join(data)}"


def _runs(runs: list[RunSummary]) -> Table:
    rows = [
        [
            run.label,
            run.id,
            run.task,
            f"{run.dataset} ({plural(run.examples, 'example')})",
            run.status,
            counts_text(run.counts),
            _settings(run.settings),
        ]
        for run in runs
    ]
    return Table(["run", "id", "task", "dataset", "status", "items", "settings"], rows, drop=[2, 6, 3, 4])


LONGEST_SETTING = 60
"""Characters of a setting in the table of runs: a prompt would fill it."""


def _settings(settings: dict[str, Any]) -> str:
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for name, value in settings.items()
    }
    return ", ".join(f"{name}={clean(text, LONGEST_SETTING)}" for name, text in texts.items())


def _effects(metrics: list[Metric], labels: dict[str, str]) -> list[Block]:
    """The design effects, where items came in clusters."""
    shown = []
    for estimate in (metric.estimate for metric in metrics):
        if "design_effect" in estimate.metadata:
            run = f" of {labels[estimate.run]}" if estimate.run in labels and len(labels) > 1 else ""
            effect, clusters = estimate.metadata["design_effect"], estimate.metadata["clusters"]
            shown.append(f"{estimate.label}{run} {effect:.2f} ({clusters:,} clusters)")
    return [Paragraph(f"Design effect: {'; '.join(shown[:20])}.")] if shown else []


def _table_blocks(name: str, table: Any, labels: dict[str, str]) -> list[Block]:
    if isinstance(table, dict) and table.get("kind") == "comparison":
        return comparison_blocks(msgspec.convert(table, prepared(Comparison)))
    if isinstance(table, dict) and table.get("kind") == "ranking":
        return ranking_blocks(msgspec.convert(table, prepared(Ranking)))
    if isinstance(table, dict) and "labels" in table and "matrix" in table:
        return _confusion(name, table)
    if isinstance(table, dict) and "runs" in table and "win_probability" in table:
        return _ranking(name, table, labels)
    if isinstance(table, dict) and "bins" in table:
        rows = [
            [f"{b['low']:g} to {b['high']:g}", f"{b['count']:,}", number(b["share"])] for b in table["bins"]
        ]
        return [Heading(name), Table(["score", "count", "share"], rows, [1, 2])]
    if isinstance(table, list) and table and all(isinstance(row, dict) for row in table):
        head = list(table[0])
        cells = [
            [labels.get(str(row.get(key)), str(row.get(key, ""))) for key in head] for row in table[:100]
        ]
        return [Heading(name), Table(head, cells)]
    return []


def _confusion(name: str, table: dict[str, Any]) -> list[Block]:
    names, matrix = table["labels"], table["matrix"]
    if len(names) > MOST_CLASSES:
        return [Heading(name), Paragraph(f"{len(names):,} classes: the JSON report has the whole matrix.")]
    rows = [(str(label), [f"{count:,}" for count in row]) for label, row in zip(names, matrix, strict=True)]
    shown = matrix_table("golden ↓ predicted →", [str(label) for label in names], rows)
    return [Heading(name), shown]


def _ranking(name: str, table: dict[str, Any], labels: dict[str, str]) -> list[Block]:
    rows = []
    for run in table["runs"]:
        rating = run["rating"]
        rows.append(
            [
                str(run["rank"]),
                f"{run['rank_low']}–{run['rank_high']}",
                labels.get(run["name"], run["name"]),
                number(rating.get("value"), 0),
                interval(rating.get("low"), rating.get("high"), digits=0),
                f"{run['wins']:,}/{run['losses']:,}/{run['ties']:,}",
            ]
        )
    return [
        Heading(name),
        Table(["rank", "range", "run", "rating", "interval", "won/lost/tied"], rows, [0, 3]),
    ]


def _cost(summary: Summary) -> list[Block]:
    rows = [[run.label, model, *_usage(usage)] for run in summary.runs for model, usage in run.usage.items()]
    for evaluation in summary.evaluations:
        for model, usage in evaluation["usage"].items():
            rows.append([f"judging, {evaluation['id']}", model, *_usage(Usage(**usage))])
    blocks: list[Block] = []
    if rows:
        head = ["run", "model", "calls", "cached", "tokens in", "tokens out", "cost"]
        blocks += [Heading("cost"), Table(head, rows, [2, 3, 4, 5, 6], drop=[3, 5, 4])]
    times = [
        [
            run.label,
            *(seconds_text(run.service_seconds[name]) for name in TIMES),
            *(seconds_text(run.queue_seconds[name]) for name in ("median", "p95")),
        ]
        for run in summary.runs
        if run.service_seconds
    ]
    if times:
        head = ["run", *TIMES, "waiting, median", "waiting, p95"]
        blocks += [
            Heading("seconds for an output"),
            Table(head, times, list(range(1, len(head))), drop=[6, 5, 1]),
        ]
    return blocks


def _usage(usage: Usage) -> list[str]:
    cost = "unknown" if usage.cost is None else f"${usage.cost:.4f}"
    counts = (usage.calls, usage.cached_calls, usage.input_tokens, usage.output_tokens)
    return [*(f"{count:,}" for count in counts), cost]


def _failures(summary: Summary, labels: dict[str, str]) -> Table:
    rows = []
    for kind in summary.failures:
        first = kind.examples[0] if kind.examples else {}
        others = kind.further()
        rows.append(
            [
                labels.get(kind.where, kind.where),
                kind.what,
                kind.type,
                f"{kind.count:,}",
                first.get("example", "") + (f" (also {others})" if others else ""),
                first.get("message", ""),
            ]
        )
    return Table(["where", "what", "type", "count", "example", "first message"], rows, [3], drop=[4])


def _environment(runs: list[RunSummary]) -> Table:
    rows = []
    for run in runs:
        made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.created))
        rows.append([run.label, made, _settings({k: v for k, v in run.environment.items() if v})])
    return Table(["run", "made", "environment"], rows)


def _csv(summary: Summary) -> str:
    """One row for each estimate. A text that a spreadsheet would take for a formula gets an apostrophe."""
    labels = {run.id: run.label for run in summary.runs}
    out = io.BytesIO()
    writer = record_writer(out, "csv", columns=dict.fromkeys(COLUMNS, ANY))
    for metric in summary.metrics:
        each = metric.estimate
        writer.add(
            {
                **{name: getattr(each, name) for name in COLUMNS if hasattr(each, name)},
                "group": group_text(each.group),
                "run": labels.get(each.run or "", ""),
                "run_id": each.run or "",
                "source": metric.source,
            }
        )
    return out.getvalue().decode()


def _latex(summary: Summary) -> str:
    """The tables of a paper, for the package booktabs: runs by metrics with intervals, then a table for each grouping.

    A value over fewer items than there are says so. The best value of a column is bold where runs can be compared.
    """
    runs = {run.id: run.label for run in summary.runs}
    tables: dict[tuple[str, ...], list[Estimate]] = {}
    for metric in summary.metrics:
        tables.setdefault(tuple(sorted(metric.estimate.group or {})), []).append(metric.estimate)
    written = [
        _latex_table(fields, estimates, runs, summary.lower_is_better)
        for fields, estimates in sorted(tables.items(), key=lambda each: len(each[0]))
    ]
    return "% \\usepackage{booktabs}\n" + "\n".join(written)


def _latex_table(
    fields: tuple[str, ...],
    estimates: list[Estimate],
    runs: Mapping[str, str],
    lower_is_better: Collection[str],
) -> str:
    columns = list(dict.fromkeys(_column(each) for each in estimates))
    several = len({each.run for each in estimates}) > 1
    order = {run: at for at, run in enumerate(runs)}
    rows: dict[tuple[str, ...], dict[str, Estimate]] = {}
    for each in sorted(estimates, key=lambda each: order.get(each.run or "", len(order))):
        run = [runs.get(each.run or "", each.run or "")] if several or not fields else []
        rows.setdefault((*run, *((each.group or {})[field] for field in fields)), {})[_column(each)] = each
    best = {} if fields else _best_values(estimates, lower_is_better)
    head = [*(["run"] if several or not fields else []), *fields]
    lines = [
        f"\\begin{{tabular}}{{{'l' * len(head)}{'r' * len(columns)}}}",
        "\\toprule",
        _latex_row([*map(_latex_text, head), *map(_latex_text, columns)]),
        "\\midrule",
    ]
    for names, cells in rows.items():
        values = [_latex_cell(cells.get(column), best.get(column)) for column in columns]
        lines.append(_latex_row([*map(_latex_text, names), *values]))
    confidences = {
        percent(each.confidence) for each in estimates if each.low is not None or each.high is not None
    }
    note = f"% intervals: {', '.join(sorted(confidences))}\n" if confidences else ""
    return note + "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _column(estimate: Estimate) -> str:
    return f"{estimate.evaluator} {estimate.metric}".strip()


def _best_values(estimates: list[Estimate], lower_is_better: Collection[str]) -> dict[str, float]:
    """The best value of each metric that has a direction and differs between runs."""
    found: dict[str, list[float]] = {}
    pick: dict[str, Callable[[list[float]], float]] = {}
    for each in estimates:
        better = each.better(lower_is_better)
        if each.value is not None and better is not None:
            found.setdefault(_column(each), []).append(each.value)
            pick[_column(each)] = min if better == "lower" else max
    return {column: pick[column](values) for column, values in found.items() if len(set(values)) > 1}


def _latex_cell(estimate: Estimate | None, best: float | None) -> str:
    if estimate is None or estimate.value is None:
        return "--"
    value = number(estimate.value)
    value = f"\\textbf{{{value}}}" if estimate.value == best else value
    missing = f" ({estimate.n:,} of {estimate.of:,})" if estimate.n < estimate.of else ""
    return f"{value} {{\\small {_latex_text(interval_text(estimate) + missing)}}}"


def _latex_row(cells: Iterable[str]) -> str:
    row = " & ".join(cells)
    # TeX would take a bracket or a star that follows a line break for an argument of it.
    return f"{{}}{row} \\\\" if row.startswith(("[", "*")) else f"{row} \\\\"


_LATEX = str.maketrans(
    {
        **{each: f"\\{each}" for each in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "—": "---",
        "–": "--",
        "…": r"\ldots{}",
    }
)


def _latex_text(text: str) -> str:
    """Text of a cell: names come from data and files, and every character with a meaning in TeX is escaped."""
    return clean(text).translate(_LATEX)
