"""Write a report on runs, evaluations or aggregations: estimates, groups, cost, time and failures.

For a run, the report uses the newest results of each evaluator (for several runs, of one that they share); for an
evaluation, its newest aggregation. The file extension selects the format: HTML with plots and the examples that
changed, in one file without scripts; Markdown; LaTeX tables for a paper; JSON with all data; CSV with one row per
estimate; or plain text. With several runs, HTML compares them with the first.

    karat report agg-1a
    karat report run-2b run-3c -o report.html
"""

from __future__ import annotations

import argparse
from pathlib import Path

from karat.cli.parser import Parser, UsageError, add_confidence_option
from karat.cli.terminal import Terminal

FORMATS = ("text", "markdown", "html", "latex", "json", "csv")


def add_arguments(parser: Parser) -> None:
    """Declare the ids, the file and the format."""
    parser.add_argument(
        "ids", metavar="ID", nargs="+", help="runs, evaluations or aggregations; latest is the latest run"
    )
    parser.option(
        "-o",
        "--output",
        metavar="FILE",
        help="the output file: report.html, .md, .tex, .json, .csv or .txt (default: stdout)",
    )
    parser.option("--format", choices=FORMATS, help="output format (default: from the file extension)")
    add_confidence_option(parser, "computed intervals")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Write the report."""
    from karat.analysis.summary import summarise
    from karat.cli.outcome import latest_notice
    from karat.datasets.writers import write_whole
    from karat.errors import plural
    from karat.formatting import clean
    from karat.reporting.html_report import html_report
    from karat.reporting.rendering import FORMATS as ENDINGS
    from karat.reporting.rendering import render, summary_blocks
    from karat.store import open_existing

    form = given.format
    if given.output is not None and form is None:
        form = ENDINGS.get(Path(given.output).suffix)
        if form is None:
            raise UsageError(
                f"{given.output}: unknown file extension: use {', '.join(sorted(ENDINGS))}, or add --format"
            )
    if given.output is None and terminal.as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} contradict each other: remove one of them")
    with open_existing(given.store) as store:
        handles = [store.get(each) for each in given.ids]
        for asked, found in zip(given.ids, handles, strict=True):
            terminal.notice(latest_notice(found) if asked == "latest" else "")
        summary = summarise(store, handles, given.confidence)
        written = html_report(store, summary, given.confidence) if form == "html" else None
    if given.output is not None:
        write_whole(given.output, written or render(summary, form or "text"))
        terminal.done(
            {"file": given.output, "format": form, "runs": [run.id for run in summary.runs]},
            f"wrote the report on {plural(len(summary.runs), 'run')} to {clean(given.output)}",
        )
        return 0
    terminal.as_json = terminal.as_json or form == "json"
    if form in (None, "text"):
        terminal.show(summary.to_dict(), lambda: summary_blocks(summary))
    else:
        terminal.show(summary.to_dict(), lambda: written or render(summary, form))
    return 0
