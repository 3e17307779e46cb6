"""Evaluate a memory system: drive it through dialogues, judge what it stores and answers, and write five files.

Stage 1 writes pipeline_sessions.jsonl and pipeline_qa.jsonl. Stage 2 judges them and writes session_records.jsonl,
qa_records.jsonl and aggregate_metrics.json. --eval-only repeats stage 2 from the files alone. The same command
continues an interrupted evaluation. Everything is in the store too: compare, rank, report, show, view and export work
on the runs.

NAME is a memory system (FUMemory, STMemory, LTMemory, BM25Memory, GAMemory, MGMemory, RFMemory, an adapter such as
mem0, or file.py:Class) or a control (no_memory, always_refuse, full_context, oracle). The judge is --judge, else
KARAT_JUDGE_MODEL, OPENAI_MODEL or KARAT_MODEL; the answering model is --model, else KARAT_MODEL or OPENAI_MODEL.

    karat memory --dataset demo --baseline FUMemory --output-dir results/FU --judge deterministic --model extractive
    karat memory --dataset locomo10.json --baseline BM25Memory --output-dir results/BM25 --context-tokens 2000
    OPENAI_MODEL=NAME karat memory --baseline FUMemory --output-dir results/FU --eval-only
"""

from __future__ import annotations

import argparse
import os

from karat.cli.parser import (
    Parser,
    UsageError,
    add_call_options,
    add_parameter_option,
    cache_mode,
    fraction,
    import_from_here,
    integer,
)
from karat.cli.terminal import Terminal


def add_arguments(parser: Parser) -> None:
    """Declare the data, the system, the models and the output."""
    parser.option("--dataset", metavar="PATH", help="a file or folder of a memory benchmark, or demo")
    parser.option("--baseline", metavar="NAME", help="the memory system: a name, or file.py:Class")
    parser.option("--output-dir", metavar="DIR", help="where the five files are written")
    parser.option("--dataset-type", metavar="TYPE", help="the format of the dataset (default: detected)")
    parser.option("--corrections", metavar="FILE", help="label corrections to apply to the dataset")
    parser.option("--judge", metavar="MODEL", help="the judge: a model, or deterministic for none")
    parser.option("--model", metavar="MODEL", help="the answering model, or extractive for none")
    add_parameter_option(parser, "the memory system")
    parser.option(
        "--top-k", type=integer(1), default=5, metavar="K", help="memories per question (default: 5)"
    )
    parser.option(
        "--context-tokens", type=integer(1), metavar="N", help="cut the retrieved memories to N tokens"
    )
    parser.option(
        "--controls", action="store_true", help="run the four controls too, for the report to compare with"
    )
    parser.option("--max-samples", type=integer(1), metavar="N", help="use at most N samples")
    parser.option("--eval-only", action="store_true", help="only judge the pipeline files in --output-dir")
    parser.option(
        "--snapshots",
        choices=("all", "checkpoints"),
        default="all",
        help="write the snapshot of every session, or only of those with judgments or questions (default: all)",
    )
    parser.option(
        "--max-judge-errors",
        type=fraction,
        default=0.05,
        metavar="SHARE",
        help="exit with code 1 if a larger share of judgments fails (default: 0.05)",
    )
    parser.option(
        "--seed", type=integer(0), default=0, metavar="N", help="random seed of the system (default: 0)"
    )
    parser.option(
        "--concurrency", type=integer(1), metavar="N", help="number of samples at a time (default: 4)"
    )
    parser.option("--new", action="store_true", help="start again even if the same run is already stored")
    parser.option(
        "--accept-code-change",
        action="store_true",
        help="continue a run even if the code of the memory system changed",
    )
    parser.option(
        "--retry-failed", action="store_true", help="retry failed sessions, questions and judgments"
    )
    add_call_options(parser)


def _check_given(given: argparse.Namespace) -> None:
    """Name all options that are missing at once."""
    from karat.memory._evaluate import JUDGE_VARIABLES

    needed = {"--output-dir DIR": given.output_dir}
    if not given.eval_only:
        needed = {"--dataset PATH": given.dataset, "--baseline NAME": given.baseline, **needed}
    missing = [name for name, value in needed.items() if value is None]
    if not missing:
        return
    if given.judge is None and not any(os.environ.get(name) for name in JUDGE_VARIABLES):
        missing.append("--judge MODEL (or deterministic)")
    raise UsageError(f"missing {'option' if len(missing) == 1 else 'options'}: {', '.join(missing)}")


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Run both stages, or the second alone; return 1 if units failed or too many judgments did."""
    from karat.memory import evaluate
    from karat.store import open_store

    _check_given(given)

    import_from_here()
    with open_store(given.store) as store:
        made = evaluate(
            given.dataset,
            given.baseline,
            output_dir=given.output_dir,
            dataset_type=given.dataset_type,
            corrections=given.corrections,
            judge=given.judge,
            model=given.model,
            top_k=given.top_k,
            context_tokens=given.context_tokens,
            max_samples=given.max_samples,
            eval_only=given.eval_only,
            concurrency=given.concurrency,
            max_judge_errors=given.max_judge_errors,
            snapshots=given.snapshots,
            seed=given.seed,
            params=dict(given.param),
            controls=given.controls,
            store=store,
            progress=terminal.listener,
            new=given.new,
            accept_code_change=given.accept_code_change,
            retry_failed=given.retry_failed,
            wait=given.wait,
            cache=cache_mode(given),
            budget=given.budget,
        )
        terminal.show(made.to_dict(), made.blocks)
    return made.exit_code
