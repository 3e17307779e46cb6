"""Evaluate the outputs of one or more runs, and print the scores: accuracy, or the mean.

RUN is an id, a unique prefix of one, or `latest`. An evaluator is a name, or JSON with name, params and key. With
several runs, pairwise evaluators compare their outputs. --amend extends earlier evaluations: the new evaluation reuses
their runs, evaluators and results, and computes only missing results.

    karat evaluate latest -e exact_match
    karat evaluate run-1a run-2b -e '{"name": "contains", "params": {"substring": "yes"}}'
    karat evaluate run-3c --amend eval-4d
"""

from __future__ import annotations

import argparse
from typing import Any

from karat.cli.parser import (
    Parser,
    UsageError,
    add_part_option,
    add_stage_options,
    add_threshold_option,
    add_work_options,
    cache_mode,
    import_from_here,
    read_thresholds,
)
from karat.cli.terminal import Terminal


def add_arguments(parser: Parser) -> None:
    """Declare the runs and the evaluators."""
    parser.add_argument("runs", metavar="RUN", nargs="*", help="the runs to evaluate")
    add_part_option(parser, "-e", "--evaluator", "the evaluator")
    parser.option(
        "--amend", action="append", default=[], metavar="EVAL", help="an evaluation to extend; repeatable"
    )
    add_threshold_option(parser)
    add_work_options(parser)
    add_stage_options(parser)


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Evaluate, and print the scores and the counts."""
    from karat.analysis.gates import refuse_unreachable
    from karat.cli.outcome import Gates, exit_code, label_notices, latest_notice, stage_blocks
    from karat.evaluators._base import resolve_evaluator
    from karat.execution.aggregate import aggregate
    from karat.execution.evaluate import evaluate
    from karat.store import open_existing

    if not given.runs and not given.amend:
        raise UsageError(
            "karat evaluate needs RUN (an id, or latest) or --amend EVAL: karat ls runs lists them"
        )
    if not given.evaluator and not given.amend:
        raise UsageError("karat evaluate needs an evaluator: -e NAME; karat evaluators lists them")
    limits = read_thresholds(given.fail_under)
    options: dict[str, Any] = {"cache": cache_mode(given), "batch": given.batch}
    for name in ("concurrency", "timeout", "abort_on_error", "description", "budget"):
        if getattr(given, name) is not None:
            options[name] = getattr(given, name)
    import_from_here()
    if limits and given.evaluator:
        given.evaluator = [resolve_evaluator(each) for each in given.evaluator]
        refuse_unreachable(limits, [each.evaluator for each in given.evaluator], [])
    with open_existing(given.store) as store:
        runs = given.runs
        if "latest" in runs:
            latest = store.runs.get("latest")
            runs = [latest.id if each == "latest" else each for each in runs]
            terminal.notice(latest_notice(latest))
        made = evaluate(
            runs,
            given.evaluator or None,
            amend=given.amend or None,
            store=store,
            labels=given.label,
            new=given.new,
            retry_failed=given.retry_failed,
            wait=given.wait,
            progress=terminal.listener,
            **options,
        )
        for notice in label_notices(made, given.label):
            terminal.notice(notice)
        scores = aggregate(made, store=store, progress=terminal.listener)
        gates = Gates(scores, given.fail_under)
        document = {**made.to_dict(), "notice": made.notice, "aggregation": scores.to_dict()}
        terminal.show(
            {**document, **gates.document()},
            lambda: [*scores.blocks(), *stage_blocks(made), *gates.blocks()],
        )
        return gates.exit_code(terminal, exit_code(made.status))
