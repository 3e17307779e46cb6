"""Rank runs from best to worst, with rank ranges, win probabilities and the position bias.

The command ranks by a pairwise evaluator (--evaluator; it computes missing comparisons), or by the scores of an
evaluator of single outputs (--metric). --amend reuses the runs and comparisons of an evaluation, so a new run costs
only its own comparisons. --plan shows the missing comparisons and their cost. A failed output loses against a
successful one, unless --failures leave_out is given. The ranking is stored as an aggregation.

    karat rank run-1a run-2b run-3c --metric exact_match
    karat rank run-1a run-2b --evaluator '{"name": "by_metric", "params": {"metric": "edit_distance"}}'
    karat rank run-4d --amend eval-5e --evaluator judge.py:Better --plan
"""

from __future__ import annotations

import argparse

from karat.cli.parser import Parser, UsageError, add_confidence_option, import_from_here, integer, part
from karat.cli.terminal import Terminal

FORMATS = ("text", "markdown", "json")


def add_arguments(parser: Parser) -> None:
    """Declare the runs, the evaluator or metric, and the method."""
    parser.add_argument("ids", metavar="ID", nargs="*", help="runs, or evaluations whose runs are ranked")
    parser.option("-e", "--evaluator", type=part, metavar="NAME|JSON", help="a pairwise evaluator")
    parser.option("--metric", metavar="KEY", help="rank by the scores of the evaluator with this key")
    parser.option(
        "--amend", action="append", default=[], metavar="EVAL", help="an evaluation to extend; repeatable"
    )
    parser.option("--plan", action="store_true", help="show the missing comparisons and their cost, and stop")
    parser.option(
        "--elo",
        action="store_true",
        help="use Elo ratings, averaged over random orders, instead of Bradley-Terry",
    )
    parser.option(
        "--ties", choices=("half", "davidson"), default="half", help="how ties count (default: half a win)"
    )
    parser.option(
        "--failures",
        choices=("lose", "leave_out"),
        default="lose",
        help="how failed outputs count (default: they lose against successful ones)",
    )
    parser.option(
        "--seed",
        type=integer(0),
        default=0,
        metavar="N",
        help="random seed of the orders for --elo (default: 0)",
    )
    add_confidence_option(parser)
    parser.option("--format", choices=FORMATS, help="output format (default: text)")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Rank, or plan; return 1 if comparisons are missing."""
    from karat.analysis.ranking import plan_blocks, plan_rank, rank, ranking_blocks
    from karat.store import open_existing

    if terminal.as_json and given.format not in (None, "json"):
        raise UsageError(f"--json and --format {given.format} contradict each other: remove one of them")
    if not given.ids and not given.amend:
        raise UsageError("karat rank needs RUN… or --amend EVAL: see karat ls runs")
    import_from_here()
    terminal.as_json = terminal.as_json or given.format == "json"
    with open_existing(given.store) as store:
        if given.plan:
            if given.evaluator is None:
                raise UsageError("--plan needs a pairwise evaluator: add --evaluator NAME")
            plan = plan_rank(given.ids, evaluator=given.evaluator, amend=given.amend or None, store=store)
            terminal.show(plan.to_dict(), lambda: plan_blocks(plan))
            return 0
        made = rank(
            given.ids,
            evaluator=given.evaluator,
            metric=given.metric,
            amend=given.amend or None,
            method="elo" if given.elo else "bradley_terry",
            ties=given.ties,
            failures=given.failures,
            seed=given.seed,
            confidence=given.confidence,
            store=store,
            progress=terminal.listener,
        )
    terminal.show(
        made.to_dict(), made.markdown if given.format == "markdown" else lambda: ranking_blocks(made)
    )
    terminal.notice(f"stored as {made.id}" if made.id else "")
    return 0 if made.n == made.of else 1
