"""Aggregate the results of one or more evaluations into estimates with intervals.

EVAL is an id, a unique prefix of one, or `latest`. An aggregator is a name, or JSON with name, params, key and of
(the evaluator keys it applies to). Without -a, karat uses accuracy if every score is 0 or 1, and the mean otherwise.

    karat aggregate latest -a accuracy -a mean
"""

from __future__ import annotations

import argparse

from karat.cli.options import add_confidence_option, add_part_option, add_stage_options, import_from_here
from karat.cli.parser import Parser
from karat.cli.terminal import Terminal


def add_arguments(parser: Parser) -> None:
    """Declare the evaluations and the aggregators."""
    parser.add_argument("evaluations", metavar="EVAL", nargs="+", help="the evaluations to aggregate")
    add_part_option(parser, "-a", "--aggregator", "the aggregator (default: accuracy or mean)")
    add_confidence_option(parser)
    add_stage_options(parser)


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Aggregate, and print the estimates."""
    from karat.cli.outcome import exit_code
    from karat.execution.aggregate import aggregate
    from karat.store import open_existing

    import_from_here()
    with open_existing(given.store) as store:
        evaluations = [store.evaluations.get(each) for each in given.evaluations]
        made = aggregate(
            evaluations,
            given.aggregator or None,
            store=store,
            confidence=given.confidence,
            labels=given.label,
            description=given.description or "",
            new=given.new,
            progress=terminal.listener,
        )
        terminal.notice(made.notice)
        terminal.show({**made.to_dict(), "notice": made.notice}, made.report)
        return exit_code(made.status)
