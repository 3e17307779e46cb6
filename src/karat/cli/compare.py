"""Compares runs with the first of them, paired by example: differences with intervals and tests, and what got worse.

A and B are runs, or evaluations whose runs are meant. What evaluations hold of them is compared; -e judges the runs
first. A metric is an evaluator's key, or KEY-accuracy (the share that passes) and KEY-mean. --fail-if-worse is a gate:
it holds, fails or is undecided, and the exit code is 1 unless it holds.

    karat compare run-1a run-2b
    karat compare run-1a run-2b -e exact_match --fail-if-worse accuracy:0.01
    karat compare eval-3c --cluster conversation --format markdown
"""

from __future__ import annotations

import argparse

from karat.cli.commands import UsageError
from karat.cli.options import import_from_here, part, share, whole
from karat.cli.parser import Parser
from karat.cli.terminal import Terminal

FORMATS = ("text", "markdown", "json")
TESTS = ("auto", "mcnemar", "t", "permutation", "bootstrap")


def add_arguments(parser: Parser) -> None:
    """Which runs, by what, and how it is told."""
    parser.add_argument("ids", metavar="ID", nargs="+", help="the baseline, then the runs to compare with it")
    parser.option(
        "-e",
        "--evaluator",
        action="append",
        default=[],
        type=part,
        metavar="NAME|JSON",
        help="judge the runs by this first; repeatable",
    )
    parser.option("--metric", action="append", default=[], metavar="METRIC", help="only this one; repeatable")
    parser.option("--cluster", metavar="FIELD", help="a metadata field whose examples belong together")
    parser.option("--test", choices=TESTS, default="auto", help="how to test (default: auto)")
    parser.option(
        "--fail-if-worse",
        action="append",
        default=[],
        metavar="METRIC:MARGIN",
        help="exit with 1 unless it is certain that no run is worse by more; repeatable",
    )
    parser.option(
        "--examples", type=whole(0), default=5, metavar="N", help="that got worse, shown (default: 5)"
    )
    parser.option(
        "--confidence", type=share, default=0.95, metavar="C", help="of the intervals (default: 0.95)"
    )
    parser.option("--format", choices=FORMATS, help="text, markdown or json (default: text)")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Compares, and tells; 1 when a gate does not hold."""
    from karat.analysis.comparison import compare
    from karat.store.existing import open_existing

    if terminal.as_json and given.format not in (None, "json"):
        raise UsageError(f"--json and --format {given.format} are two formats: leave one of them out")
    import_from_here()
    with open_existing(given.store) as store:
        options = {"progress": terminal.progress} if given.evaluator else {}
        made = compare(
            given.ids,
            evaluators=given.evaluator or None,
            metrics=given.metric or None,
            cluster=given.cluster,
            test=given.test,
            fail_if_worse=given.fail_if_worse or None,
            examples=given.examples,
            confidence=given.confidence,
            store=store,
            **options,
        )
    terminal.as_json = terminal.as_json or given.format == "json"
    terminal.show(made.to_dict(), made.markdown if given.format == "markdown" else made.report)
    if made.gates:
        terminal.notice(f"gate: {made.verdict}")
    return 0 if made.verdict == "holds" else 1
