"""`karat run` for a graph task: its options, its stages and its files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karat.cli.commands import UsageError
from karat.cli.options import cache_mode, whole
from karat.cli.parser import Parser
from karat.cli.terminal import Terminal
from karat.errors import RequestError
from karat.formatting import Block, Details, Paragraph
from karat.layout import Styled

if TYPE_CHECKING:
    from karat.experiments.plan import Plan
    from karat.experiments.running import Outcome
    from karat.graph import GraphTask, Written

NO_MODEL = "none@http://no-model.invalid/v1"
"""A placeholder model for --check, which calls no model and so needs no default."""
RECORDS = 10
"""The default number of records."""

ONLY_GRAPHS = (
    "num_records", "start_index", "batch_size", "output_dir", "run_name", "output_with_ts", "run_args", "resume",
    "debug", "output_format",
)  # fmt: skip
SPOILED = ("partial", "no_data", "fatal_error")
"""Report statuses that mean failure; a custom report may use other words."""
NOT_GRAPHS = ("recorded", "input", "expected", "id", "skip_bad_rows")


def add_graph_arguments(parser: Parser) -> None:
    """Add the options of graph tasks, spelled as in SyGra."""
    option = parser.add_argument_group("options of graph tasks").add_argument
    option("--task", "-t", metavar="TASK", help="the task: tasks.eval.x.y, eval/x/y, or a path")
    option(
        "--num_records",
        "--num-records",
        "-n",
        type=whole(1),
        metavar="N",
        help=f"number of records (default: {RECORDS})",
    )
    option(
        "--start_index", "--start-index", "-si", type=whole(0), metavar="N", help="skip the first N records"
    )
    option(
        "--batch_size", "--batch-size", "-b", type=whole(1), metavar="N", help="number of records at a time"
    )
    option(
        "--output_dir",
        "--output-dir",
        "-od",
        metavar="FOLDER",
        help="folder for the output files (default: the task's folder)",
    )
    option(
        "--run_name",
        "--run-name",
        "-rn",
        default="",
        metavar="NAME",
        help="prefix of the output file names",
    )
    option(
        "--output_with_ts", "--output-with-ts", "-owt", type=yes, default=None, metavar="BOOL",
        help="include a timestamp in the output file names (default: True)",
    )  # fmt: skip
    option("--output-format", choices=("json", "jsonl"), help="format of the output file (default: json)")
    option(
        "--run_args",
        "--run-args",
        "-ra",
        type=arguments,
        metavar="JSON",
        help="variables added to the state of every record",
    )
    option(
        "--resume", "-r", type=yes, nargs="?", const=True, default=None, metavar="BOOL",
        help="resume an unfinished run (default: True); False starts a new one",
    )  # fmt: skip
    option(
        "--debug",
        "-d",
        type=yes,
        nargs="?",
        const=True,
        default=None,
        metavar="BOOL",
        help="print the source location of failures",
    )


def yes(text: str) -> bool:
    """`True` or `False`, as the seeds' tools write it."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is not True or False")
    return words[text.lower()]


def arguments(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a JSON object")
    return value


def execute_graph(given: argparse.Namespace, name: str, terminal: Terminal) -> int:
    """Run a graph task, store its metrics, write its files and print the outcome."""
    from karat.cli.outcome import outcome_blocks
    from karat.experiments.running import carry_out
    from karat.graph import load_task, prepare_files
    from karat.store import open_store

    for option in NOT_GRAPHS:
        if getattr(given, option, None):
            raise UsageError(
                f"--{option.replace('_', '-')} does not apply to graph tasks: set it in the graph file"
            )
    if len(given.model) > 1:
        raise UsageError("a graph task takes one --model, which replaces every model in its file")
    run_args = {**dict(given.param), **(given.run_args or {})}
    model = given.model[0] if given.model else None
    lacking = _lacking_model() if given.check else ""
    task = load_task(
        name, model=model, unnamed=NO_MODEL if lacking else None, run_args=run_args, data=given.data
    )
    if lacking and any(use.model.spec == NO_MODEL for use in task.plan.models()):
        terminal.notice(f"needed before the task can run: {lacking}")
    for note in task.notes:
        terminal.notice(note)
    count = given.num_records or given.limit or RECORDS
    dataset = task.dataset(file=given.data, count=count)
    plan = _plan(task, dataset, given, count)
    if given.check:
        return _checked(task, dataset, terminal)
    if given.estimate is not None:
        from karat.cli.run import show_estimate  # which imports this module

        return show_estimate(plan, given.estimate, terminal)
    if plan.options["offset"] >= len(dataset):
        terminal.notice(_no_records(plan.options["offset"], len(dataset)))
    prepare_files(task, **_destination(task, given))
    with open_store(given.store) as store:
        outcome = carry_out(
            plan,
            store,
            new=given.new or given.resume is False,
            retry_failed=given.retry_failed,
            accept_code_change=given.accept_code_change,
            wait=given.wait,
            cache=cache_mode(given),
            budget=given.budget,
            batch=given.batch,
            progress=terminal.listener,
            notify=lambda handle: terminal.notice(handle.notice),
        )
        written = _files(task, outcome, given)
        for note in written.notes:
            terminal.notice(note)
        if given.debug:
            _tell_failures(outcome, terminal)
        document = {"name": task.name, **outcome.to_dict(), "files": [str(path) for path in written.paths()]}
        terminal.show(document, lambda: [*outcome_blocks(outcome), *_file_blocks(written)])
        return _exit_code(outcome, written)


def _lacking_model() -> str:
    """The error for a missing default model, or an empty text."""
    from karat.models import default_spec

    try:
        default_spec()
    except RequestError as error:
        return str(error)
    return ""


def _plan(task: GraphTask, dataset: Any, given: argparse.Namespace, count: int) -> Plan:
    from karat.experiments.plan import Plan, PlannedRun
    from karat.graph import stored_metrics

    names = ("concurrency", "attempts", "timeout", "retries", "abort_on_error")
    options = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    if given.batch_size is not None:
        options.setdefault("concurrency", given.batch_size)
    options["offset"] = given.start_index if given.start_index is not None else (given.offset or 0)
    if options["offset"] + count < len(dataset):
        options["limit"] = count
    evaluators, aggregators = stored_metrics(task)
    return Plan(
        dataset=dataset,
        runs=[PlannedRun(task=task)],
        evaluators=evaluators,
        aggregators=aggregators,
        name=task.name,
        description=given.description or "",
        labels=list(given.label),
        store=given.store,
        options=options,
    )


def _no_records(offset: int, count: int) -> str:
    from karat.formatting import plural

    if not count:
        return "the dataset is empty: the report status is no_data"
    size = plural(count, "record")
    return f"--start_index {offset} is beyond the end of the dataset ({size}): the report status is no_data"


def _files(task: GraphTask, outcome: Outcome, given: argparse.Namespace) -> Written:
    from karat.graph import write_files

    with_time = given.output_with_ts is not False
    return write_files(outcome.runs[0], task, **_destination(task, given), with_time=with_time)


def _destination(task: GraphTask, given: argparse.Namespace) -> dict[str, Any]:
    """The folder, name prefix and format of the output files."""
    folder = Path(given.output_dir) if given.output_dir else _default_folder(task)
    form = given.output_format or _sink_format(task) or "json"
    return {"folder": folder, "run_name": given.run_name, "format": form}


def _default_folder(task: GraphTask) -> Path:
    """The task's folder; the working folder for tasks that are part of karat."""
    from karat.graph import is_shipped

    folder = task.graph.place.folder
    return Path.cwd() if is_shipped(folder) else folder


def _sink_format(task: GraphTask) -> str | None:
    return next((sink.format for sink in task.graph.sinks if sink.format == "jsonl"), None)


def _file_blocks(written: Written) -> list[Block]:
    files: list[Block] = [Details("", [("wrote", [str(path)]) for path in written.paths()])]
    errors = [f"{name} failed: {error}" for name, error in written.errors.items()]
    return [*files, *(Paragraph(Styled(error, "bad")) for error in errors)]


def _exit_code(outcome: Outcome, written: Written) -> int:
    from karat.cli.outcome import exit_code

    spoiled = written.errors or any(status in SPOILED for status in written.statuses.values())
    return 1 if spoiled else exit_code(outcome.runs[0].status)


def _tell_failures(outcome: Outcome, terminal: Terminal) -> None:
    from karat.records import Failed

    for output in outcome.runs[0].outputs():
        if isinstance(output.outcome, Failed):
            error = output.outcome.error
            terminal.notice(f"{output.example}: {error.message} ({error.where or 'inside karat'})")


def _checked(task: GraphTask, dataset: Any, terminal: Terminal) -> int:
    from karat.formatting import plural

    nodes: Mapping[str, Any] = task.plan.nodes
    document = {
        "ok": True,
        "name": task.name,
        "examples": len(dataset),
        "nodes": {name: node.kind for name, node in nodes.items()},
        "post_processors": [processor.name for processor in task.graph.processors],
        "notes": task.notes,
    }
    counts = {"record": len(dataset), "node": len(nodes), "post-processor": len(task.graph.processors)}
    parts = [plural(count, noun) for noun, count in counts.items()]
    terminal.show(document, f"OK: task {task.name}, {', '.join(parts)}")
    return 0
