"""Aggregate the results of one or more evaluations into estimates with intervals.

EVAL is an id, a unique prefix of one, or `latest`. An aggregator is a name, or JSON with name, params, key and of
(the evaluator keys it applies to). Without -a, karat uses accuracy for evaluators that pass or fail, and
the mean for others. --fail-under is a gate on the estimates: it holds (exit code 0), fails (1) or is undecided (4).

    karat aggregate latest -a accuracy -a mean
    karat aggregate latest --fail-under 'exact_match accuracy:0.8'
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from karat.cli.parser import (
    Parser,
    UsageError,
    add_confidence_option,
    add_part_option,
    add_stage_options,
    add_threshold_option,
    import_from_here,
    read_thresholds,
)
from karat.cli.terminal import Terminal
from karat.errors import KaratError, UnknownName, with_article

if TYPE_CHECKING:
    from karat.store import Store
    from karat.store.handles import Evaluation


def add_arguments(parser: Parser) -> None:
    """Declare the evaluations and the aggregators."""
    parser.add_argument("evaluations", metavar="EVAL", nargs="+", help="the evaluations to aggregate")
    add_part_option(parser, "-a", "--aggregator", "the aggregator (default: accuracy or mean)")
    add_threshold_option(parser)
    add_confidence_option(parser)
    add_stage_options(parser)


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Aggregate, and print the estimates."""
    from karat.cli.outcome import Gates, latest_notice, measured_code
    from karat.execution.aggregate import aggregate
    from karat.store import open_existing

    import_from_here()
    read_thresholds(given.fail_under)  # a wrong one is found before anything is stored
    with open_existing(given.store) as store:
        evaluations = [_evaluation(store, each) for each in given.evaluations]
        for asked, found in zip(given.evaluations, evaluations, strict=True):
            terminal.notice(latest_notice(found) if asked == "latest" else "")
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
        gates = Gates(made, given.fail_under)
        document = {**made.to_dict(), "notice": made.notice, **gates.document()}
        terminal.show(document, lambda: [*made.blocks(), *gates.blocks()])
        terminal.notice(f"stored as {made.id}")
        return gates.exit_code(terminal, measured_code(made))


def _evaluation(store: Store, id: str) -> Evaluation:
    """The evaluation with an id; for a run, the command that evaluates it or aggregates its results."""
    from karat.store.handles import Run

    try:
        return store.evaluations.get(id)
    except UnknownName as unknown:
        try:
            found = store.get(id)
        except KaratError:
            raise unknown from None
        if not isinstance(found, Run):
            kind = with_article(getattr(found, "kind", "dataset"))
            raise UsageError(f"{id} is {kind}: name an evaluation") from None
        made = [each.id for each in store.evaluations.list() if found.id in each.header.runs]
        if made:
            command = store.command("aggregate", made[-1])
            raise UsageError(f"{id} is a run: name its evaluation: {command}") from None
        command = store.command("evaluate", found.id, "-e", "NAME")
        raise UsageError(f"{id} is a run without results: evaluate it first: {command}") from None
