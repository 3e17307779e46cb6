"""Compare runs with a baseline, paired by example: differences with intervals, tests, and regressions.

Each ID is a run, or an evaluation whose runs are compared. The first run is the baseline. The command compares stored
results; -e evaluates the runs first. A metric is an evaluator's key, "KEY accuracy" (the pass rate) or "KEY mean".
--fail-if-worse is a gate: it holds (exit code 0), fails (1) or is undecided (4). The comparison is stored as an
aggregation.

    karat compare run-1a run-2b
    karat compare run-1a run-2b -e exact_match --fail-if-worse accuracy:0.01
    karat compare eval-3c --cluster conversation --format markdown
"""

from __future__ import annotations

import argparse

from karat.cli.parser import (
    Parser,
    UsageError,
    add_confidence_option,
    add_part_option,
    import_from_here,
    integer,
)
from karat.cli.terminal import Terminal

FORMATS = ("text", "markdown", "json")
TESTS = ("auto", "mcnemar", "t", "permutation", "bootstrap")


def add_arguments(parser: Parser) -> None:
    """Declare the runs, the metrics and the output."""
    parser.add_argument("ids", metavar="ID", nargs="+", help="the baseline, then the runs to compare with it")
    add_part_option(parser, "-e", "--evaluator", "evaluate the runs with this evaluator first")
    parser.option(
        "--metric", action="append", default=[], metavar="METRIC", help="compare only this metric; repeatable"
    )
    parser.option("--cluster", metavar="FIELD", help="metadata field that groups examples into clusters")
    parser.option("--test", choices=TESTS, default="auto", help="the statistical test (default: auto)")
    parser.option(
        "--fail-if-worse",
        action="append",
        default=[],
        metavar="METRIC:MARGIN",
        help="a gate: fail if a run is worse by more than MARGIN; repeatable",
    )
    parser.option(
        "--examples",
        type=integer(0),
        default=5,
        metavar="N",
        help="number of regressed examples to show (default: 5)",
    )
    add_confidence_option(parser)
    parser.option(
        "--unequal",
        action="store_true",
        help="compare memory systems although their settings differ, and print the differences",
    )
    parser.option("--format", choices=FORMATS, help="output format (default: text)")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Compare, print, and return the exit code of the gates."""
    from karat.analysis.comparison import compare, comparison_blocks
    from karat.analysis.gates import EXIT_CODES
    from karat.store import open_existing

    if terminal.as_json and given.format not in (None, "json"):
        raise UsageError(f"--json and --format {given.format} contradict each other: remove one of them")
    import_from_here()
    with open_existing(given.store) as store:
        made = compare(
            given.ids,
            evaluators=given.evaluator or None,
            metrics=given.metric or None,
            cluster=given.cluster,
            test=given.test,
            fail_if_worse=given.fail_if_worse or None,
            examples=given.examples,
            confidence=given.confidence,
            unequal=given.unequal,
            store=store,
            progress=terminal.listener,
        )
    terminal.as_json = terminal.as_json or given.format == "json"
    terminal.show(
        made.to_dict(),
        made.markdown if given.format == "markdown" else lambda: comparison_blocks(made),
    )
    terminal.notice(f"stored as {made.id}" if made.id else "")
    if made.verdict is not None:
        terminal.notice(f"gate: {made.verdict}")
    return EXIT_CODES[made.verdict]
