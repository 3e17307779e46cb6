"""Writes down all that is known of runs, evaluations or aggregations: numbers, groups, cost, time and failures.

Of a run the newest judgment by each evaluator is taken, of an evaluation its newest aggregation. The file's
ending says what is written: Markdown for a page or a pull request, JSON with everything, CSV with one row for
each number.

    karat report agg-1a
    karat report run-2b run-3c -o report.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

from karat.cli.commands import UsageError
from karat.cli.options import share
from karat.cli.parser import Parser
from karat.cli.terminal import Terminal

FORMATS = ("text", "markdown", "json", "csv")


def add_arguments(parser: Parser) -> None:
    """Of what, and where to."""
    parser.add_argument("ids", metavar="ID", nargs="+", help="runs, evaluations or aggregations")
    parser.option("-o", "--output", metavar="FILE", help="report.md, report.json, report.csv or report.txt")
    parser.option(
        "--format", choices=FORMATS, help="text, markdown, json or csv (default: by the file's ending)"
    )
    parser.option(
        "--confidence", type=share, default=0.95, metavar="C", help="where it computes itself (default: 0.95)"
    )


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Gathers, and writes."""
    from karat.analysis.summary import summarise
    from karat.formatting import clean
    from karat.reporting.files import unwritable
    from karat.reporting.rendering import FORMATS as ENDINGS
    from karat.reporting.rendering import render
    from karat.store.existing import open_existing

    form = given.format
    if given.output is not None and form is None:
        form = ENDINGS.get(Path(given.output).suffix)
        if form is None:
            raise UsageError(f"{given.output}: end it in {', '.join(sorted(ENDINGS))}, or say --format")
    if given.output is None and terminal.as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} are two formats: leave one of them out")
    with open_existing(given.store) as store:
        handles = [store.runs.get("latest") if each == "latest" else store.get(each) for each in given.ids]
        summary = summarise(store, handles, given.confidence)
    if given.output is not None:
        try:
            Path(given.output).write_text(render(summary, form or "text"), encoding="utf-8")
        except OSError as error:
            raise unwritable(given.output, error) from error
        terminal.show(
            {"file": given.output, "format": form, "runs": [run.id for run in summary.runs]},
            f"the report of {len(summary.runs)} runs is in {clean(given.output)}",
        )
        return 0
    terminal.as_json = terminal.as_json or form == "json"
    terminal.show(summary.to_dict(), lambda: render(summary, form or "text"))
    return 0
