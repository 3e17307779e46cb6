"""Ranks runs from best to worst, with rank ranges, win probabilities and the position bias.

By an evaluator that compares two outputs (--evaluator; the comparisons that are missing are made), or by the scores
that an evaluator of single outputs gave (--metric). --amend takes the runs and comparisons of an evaluation over, so
that a new run costs its own comparisons alone; --plan says what would be made and what it would cost.

    karat rank run-1a run-2b run-3c --metric exact_match
    karat rank run-1a run-2b --evaluator '{"name": "by_metric", "params": {"metric": "edit_distance"}}'
    karat rank run-4d --amend eval-5e --evaluator judge.py:Better --plan
"""

from __future__ import annotations

import argparse

from karat.cli.commands import UsageError
from karat.cli.options import import_from_here, part, share, whole
from karat.cli.parser import Parser
from karat.cli.terminal import Terminal

FORMATS = ("text", "markdown", "json")


def add_arguments(parser: Parser) -> None:
    """Which runs, by what, and how."""
    parser.add_argument("ids", metavar="ID", nargs="*", help="runs, or evaluations whose runs are meant")
    parser.option("--evaluator", type=part, metavar="NAME|JSON", help="one that compares two outputs")
    parser.option("--metric", metavar="KEY", help="the evaluator of single outputs whose scores are compared")
    parser.option(
        "--amend", action="append", default=[], metavar="EVAL", help="an evaluation to add to; repeatable"
    )
    parser.option(
        "--plan", action="store_true", help="only say which comparisons are missing, and their cost"
    )
    parser.option(
        "--elo", action="store_true", help="classic Elo ratings, which depend on the order, averaged"
    )
    parser.option(
        "--ties", choices=("half", "davidson"), default="half", help="what a tie is (default: half a win)"
    )
    parser.option(
        "--seed", type=whole(0), default=0, metavar="N", help="of the orders for --elo (default: 0)"
    )
    parser.option(
        "--confidence", type=share, default=0.95, metavar="C", help="of the intervals (default: 0.95)"
    )
    parser.option("--format", choices=FORMATS, help="text, markdown or json (default: text)")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Ranks, or plans."""
    from karat.analysis.ranking import plan_rank, rank
    from karat.store.existing import open_existing

    if terminal.as_json and given.format not in (None, "json"):
        raise UsageError(f"--json and --format {given.format} are two formats: leave one of them out")
    if not given.ids and not given.amend:
        raise UsageError("karat rank needs RUN… or --amend EVAL: karat ls runs lists them")
    import_from_here()
    terminal.as_json = terminal.as_json or given.format == "json"
    with open_existing(given.store) as store:
        if given.plan:
            if given.evaluator is None:
                raise UsageError("--plan is about comparisons: name their --evaluator")
            plan = plan_rank(given.ids, evaluator=given.evaluator, amend=given.amend or None, store=store)
            terminal.show(plan.to_dict(), plan.report)
            return 0
        options = {"progress": terminal.progress} if given.evaluator is not None or given.amend else {}
        made = rank(
            given.ids,
            evaluator=given.evaluator,
            metric=given.metric,
            amend=given.amend or None,
            method="elo" if given.elo else "bradley-terry",
            ties=given.ties,
            seed=given.seed,
            confidence=given.confidence,
            store=store,
            **options,
        )
    terminal.show(made.to_dict(), made.markdown if given.format == "markdown" else made.report)
    return 0 if made.n == made.of else 1
