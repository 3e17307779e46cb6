"""Run an experiment, or a task over a dataset, and store every output.

TARGET is one of: an experiment file, whose evaluators and aggregators run too; a graph task (tasks.eval.x.y,
eval/x/y or a path); a function (file.py:function or package.module.function) with a dataset (--data). --recorded
replaces TARGET with outputs from a file. -e evaluates and reports the outputs of a function or a file. --fail-under
is a gate on the estimates: it holds (exit code 0), fails (1) or is undecided (4).

The same command resumes an interrupted run, and returns a finished one from the store.

    karat run experiment.yaml
    karat run answer.py:answer --data questions.jsonl --input question --expected answer -e exact_match
    karat run experiment.yaml --fail-under 'exact_match accuracy:0.8'
    karat run --recorded outputs.jsonl --data questions.jsonl -e exact_match -a accuracy
    karat run eval/question_answering/demo --num_records 20 --output_dir out
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from karat.cli.parser import (
    Parser,
    UsageError,
    add_parameter_option,
    add_part_option,
    add_stage_options,
    add_threshold_option,
    add_work_options,
    cache_mode,
    import_from_here,
    integer,
    read_thresholds,
)
from karat.cli.terminal import Terminal
from karat.errors import (
    ConfigError,
    RequestError,
    UnknownName,
    did_you_mean,
    field_name,
    near_file,
    nearest,
)
from karat.formatting import Block, Details, Paragraph
from karat.layout import Styled

if TYPE_CHECKING:
    from karat.analysis.gates import Limit
    from karat.experiments.plan import DataSample, Plan
    from karat.experiments.running import Outcome
    from karat.graph import GraphTask, Written
    from karat.records import RunHeader


DEFINED_BY_EXPERIMENTS = {
    **dict.fromkeys(("data", "input", "expected", "id", "skip_bad_rows"), "its dataset"),
    **dict.fromkeys(("output", "output_id"), "its task"),
    **dict.fromkeys(("evaluator", "aggregator"), "its evaluators and aggregators"),
}


def add_arguments(parser: Parser) -> None:
    """Declare the target, the dataset and the options."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="experiment.yaml, a graph task, file.py:function or a dotted path",
    )
    parser.option("--check", action="store_true", help="check the configuration and the data, and stop")
    parser.option(
        "--estimate",
        nargs="?",
        type=integer(0),
        const=0,
        metavar="N",
        help="estimate the cost, and stop: from the prompts, or from N records that are run",
    )
    parser.option("--recorded", metavar="FILE", help="use recorded outputs: a file with id and output")
    parser.option("--data", metavar="FILE", help="the dataset: a file, or a name in the store")
    parser.option("--input", action="append", metavar="FIELD", help="the input field; repeatable")
    parser.option(
        "--expected", action="append", metavar="FIELD", help="the field with the expected output; repeatable"
    )
    parser.option("--id", metavar="FIELD", help="the field with the example id")
    parser.option("--skip-bad-rows", action="store_true", help="skip invalid rows, and list them")
    parser.option("--output", metavar="FIELD", help="the output field of --recorded (default: output)")
    parser.option("--output-id", metavar="FIELD", help="the example id field of --recorded (default: id)")
    add_part_option(parser, "-e", "--evaluator", "evaluate the outputs of a function or of --recorded")
    add_part_option(parser, "-a", "--aggregator", "aggregate the results (default: accuracy or mean)")
    add_threshold_option(parser)
    add_parameter_option(parser, "the task")
    parser.option(
        "--model", action="append", default=[], metavar="MODEL", help="run with this model; repeatable"
    )
    parser.option("--attempts", type=integer(1), metavar="K", help="independent attempts per example")
    parser.option("--limit", type=integer(1), metavar="N", help="use at most N examples")
    parser.option("--offset", type=integer(0), metavar="N", help="skip the first N examples")
    parser.option("--retries", type=integer(0), metavar="N", help="retries of an example whose task raised")
    parser.option("--accept-code-change", action="store_true", help="resume a run even if its code changed")
    add_work_options(parser)
    add_stage_options(parser)
    add_graph_arguments(parser)


def execute(given: argparse.Namespace, terminal: Terminal) -> int:
    """Plan, run, and report the outcome."""
    from karat.cli.outcome import Gates, exit_code, label_notices, outcome_blocks
    from karat.experiments.running import carry_out
    from karat.store import open_store

    if given.check and given.estimate is not None:
        raise UsageError(
            "--check and --estimate contradict each other: remove one of them (--estimate checks too)"
        )
    import_from_here()
    cache = cache_mode(given)
    limits = read_thresholds(given.fail_under)
    target = _target(given)
    if target is not None and target.kind == "graph":
        return execute_graph(given, target.name, terminal)
    plan = _plan(given, target)
    _refuse_thresholds(limits, plan)
    plan.labels = [*plan.labels, *given.label]
    plan.description = plan.description if given.description is None else given.description
    skipped = getattr(plan.dataset, "skipped_count", 0)
    if skipped:
        terminal.notice(_skipped_notice(plan.dataset))
    for note in dict.fromkeys(note for planned in plan.runs for note in getattr(planned.task, "notes", ())):
        terminal.notice(note)
    if given.check:
        return _check_plan(plan, terminal)
    if given.estimate is not None:
        return show_estimate(plan, given.estimate, given.batch, terminal)
    started = time.time()
    with open_store(plan.store) as store:
        outcome = carry_out(
            plan,
            store,
            new=given.new,
            retry_failed=given.retry_failed,
            accept_code_change=given.accept_code_change,
            wait=given.wait,
            cache=cache,
            budget=given.budget,
            batch=given.batch,
            progress=terminal.listener,
            notify=lambda handle: terminal.notice(handle.notice),
        )
        terminal.notice(_beyond(plan, len(outcome.dataset)))
        terminal.notice(_other_selection(outcome, started))
        for notice in label_notices(outcome.runs[0], plan.labels) if len(outcome.runs) == 1 else ():
            terminal.notice(notice)
        document = {"name": plan.name, **outcome.to_dict()}
        if skipped:
            document["bad_rows"] = {
                "count": skipped,
                "first": [{"line": bad.line, "reason": bad.reason} for bad in plan.dataset.skipped],
            }
        gates = Gates(outcome.aggregation, given.fail_under)
        terminal.show({**document, **gates.document()}, lambda: [*outcome_blocks(outcome), *gates.blocks()])
        return gates.exit_code(terminal, exit_code(outcome.status))


def _other_selection(outcome: Outcome, started: float) -> str:
    """The notice that a new run does not reuse the outputs of an earlier run over other examples of the data."""
    made = outcome.runs[0]
    header = made.header
    if header.created < started or header.replicate > 1:
        return ""

    def same(other: RunHeader) -> bool:
        fields = ("dataset", "task", "parameters", "code", "attempts")
        return (
            other.created < started
            and (other.limit, other.offset) != (header.limit, header.offset)
            and all(getattr(other, name) == getattr(header, name) for name in fields)
        )

    earlier = [each for each in made.store.runs.list() if same(each.header)]
    if not earlier:
        return ""
    other = earlier[-1].header
    part = f"limit={other.limit}" if other.limit is not None else "no limit"
    part += f", offset={other.offset}" if other.offset else ""
    kept = "; replies of models came from the cache" if header.usage else ""
    return (
        f"{other.id} ({part}) selects other examples, so this is a new run; outputs of {other.id} were not reused"
        f"{kept}"
    )


def _refuse_thresholds(limits: list[Limit], plan: Plan) -> None:
    """Refuse a metric of --fail-under that the plan does not have, or a value it cannot have, before the run."""
    if not limits:
        return
    from karat.aggregators._base import resolve_aggregator
    from karat.analysis.gates import refuse_unreachable
    from karat.evaluators._base import resolve_evaluator

    if not plan.evaluators:
        raise UsageError("--fail-under needs results: add an evaluator, such as -e exact_match")
    evaluators = [resolve_evaluator(each).evaluator for each in plan.evaluators]
    aggregators = [resolve_aggregator(each, plan.confidence) for each in plan.aggregators]
    known = [each.key for each in evaluators]
    known += [each.key for each in aggregators] or ["accuracy", "mean", "win_rate"]
    for metric in (limit.metric for limit in limits):
        if not any(metric == each or metric.startswith(f"{each} ") for each in known):
            raise UnknownName(f"--fail-under: no metric {metric!r}: {did_you_mean(metric, known)}")
    refuse_unreachable(limits, evaluators, aggregators)


def show_estimate(plan: Any, sample: int, batch: bool, terminal: Terminal) -> int:
    """Print the estimated tokens and cost of a plan."""
    import msgspec

    from karat.experiments.cost_estimate import estimate_plan, estimate_text
    from karat.store import open_store

    if isinstance(plan.dataset, str):
        with open_store(plan.store) as store:
            estimates = estimate_plan(plan, store, sample=sample, batch=batch)
    else:
        estimates = estimate_plan(plan, sample=sample, batch=batch)
    terminal.show({"estimates": msgspec.to_builtins(estimates)}, lambda: estimate_text(estimates))
    return 0


def _target(given: argparse.Namespace) -> Target | None:
    """Return the target of the command, or None if it has none."""
    if given.task is not None:
        if given.target is not None:
            raise UsageError(f"{given.target} and --task {given.task} are both tasks: remove one of them")
        return Target("graph", given.task)
    target = None
    if given.target is not None and given.recorded is None:
        try:
            target = recognise(given.target)
        except RequestError as error:
            unexplained = type(error) in (RequestError, UnknownName) and "did you mean" not in str(error)
            close = near(given.target) if unexplained else None
            if close is None:
                raise
            raise type(error)(f"{error}; did you mean {close}?") from error
    for name in ONLY_GRAPHS if target is None or target.kind != "graph" else ():
        if getattr(given, name) not in (None, ""):
            raise UsageError(
                f"--{name} applies to graph tasks only, and {given.target or given.recorded} is not one"
            )
    return target


def _plan(given: argparse.Namespace, target: Target | None) -> Plan:
    """The plan for the arguments."""
    if given.target is not None and given.recorded is not None:
        raise UsageError(f"{given.target} and --recorded are both tasks: remove one of them")
    if given.recorded is not None:
        return _task_plan(given, lambda: _recorded_task(given))
    if target is None:
        raise UsageError("name what to run: karat run experiment.yaml, file.py:function, or --recorded FILE")
    if target.kind == "experiment":
        return _experiment_plan(given, target)
    return _task_plan(given, lambda: _function(given, target))


def _options(given: argparse.Namespace) -> dict[str, Any]:
    from karat.execution.arguments import LEAST, check_numbers

    names = ("concurrency", "attempts", "limit", "offset", "timeout", "retries", "abort_on_error")
    options = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    check_numbers(**{name: value for name, value in options.items() if name in LEAST})
    return options


def _experiment_plan(given: argparse.Namespace, target: Target) -> Plan:
    from karat.experiments.checking import read_experiment

    for name, what in DEFINED_BY_EXPERIMENTS.items():
        if getattr(given, name):
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} does not apply to an experiment file: {target.name} defines {what}")
    params = dict(given.param)
    return read_experiment(
        target.name, store=given.store, models=given.model, params=params, options=_options(given)
    )


def _task_plan(given: argparse.Namespace, task: Callable[[], Any]) -> Plan:
    from karat.aggregators._base import resolve_aggregator
    from karat.evaluators._base import resolve_evaluator
    from karat.experiments.plan import Plan, check_models, runs_for

    if given.data is None:
        raise UsageError(f"{given.target or given.recorded} needs a dataset: --data FILE")
    for option, field in (("--output", given.output), ("--output-id", given.output_id)):
        if field is not None and given.recorded is None:
            raise UsageError(f"{option} applies to recorded outputs: add --recorded FILE")
    if given.aggregator and not given.evaluator:
        raise UsageError("-a needs results to aggregate: add -e NAME, such as -e exact_match")
    dataset, sample = _dataset(given)
    check_models(given.model)
    runs = runs_for(task(), given.model)
    evaluators = [resolve_evaluator(each) for each in given.evaluator]
    aggregators = [resolve_aggregator(each) for each in given.aggregator]
    _check_parts(given, sample, runs, evaluators, aggregators)
    return Plan(
        dataset=dataset,
        runs=runs,
        evaluators=evaluators,
        aggregators=aggregators,
        store=given.store,
        options=_options(given),
    )


def _check_parts(
    given: argparse.Namespace,
    sample: DataSample,
    runs: list[Any],
    evaluators: list[Any],
    aggregators: list[Any],
) -> None:
    """Refuse parts that do not fit each other or the data, before anything runs."""
    from karat.experiments import plan as checks

    first = sample.examples[0] if sample.examples else None
    fields = list(first.input) if first is not None and isinstance(first.input, dict) else []
    found = sample.problems_of(runs[0].task)
    if found:
        raise ConfigError(found, given.data)
    for each in evaluators:
        if checks.lacks_reference(each.evaluator, sample):
            others = _one_of([*fields, *(first.metadata if first is not None else ())])
            raise UsageError(
                f"{each.evaluator.key} needs an expected output and no example of {given.data} has one:"
                f" name its field with --expected{others}"
            )
        problem = checks.evaluator_problem(each.evaluator, runs)
        if problem is not None:
            raise UsageError(f"-e {each.name}: {problem}")
    by_key = {each.evaluator.key: each.evaluator for each in evaluators}
    for short, keys in (
        ("-e", [each.evaluator.key for each in evaluators]),
        ("-a", [a.key for a in aggregators]),
    ):
        for key in checks.repeated(keys)[:1]:
            other = f"""{short} '{{"name": …, "key": "another"}}'"""
            raise UsageError(f"two of {short} have the key {key!r}: give one of them another, as {other}")
    for each in aggregators:
        for place, text in (
            *checks.field_problems(each, sample),
            *checks.aggregator_problems(each, by_key, given.attempts or 1),
        ):
            raise UsageError(
                f"-a {each.name}: {'.'.join(map(str, (*place, '')))[:-1]}{': ' if place else ''}{text}"
            )


def _one_of(fields: list[Any]) -> str:
    return f", one of {', '.join(map(field_name, fields[:10]))}" if fields else ""


def _function(given: argparse.Namespace, target: Target) -> Any:
    from karat.experiments.plan import function_task

    return function_task(target.name, dict(given.param))


def _recorded_task(given: argparse.Namespace) -> Any:
    from karat.tasks.recorded import RecordedOutputs

    if given.param:
        raise UsageError("recorded outputs take no --param")
    return RecordedOutputs(given.recorded, output=given.output, id=given.output_id)


def _dataset(given: argparse.Namespace) -> tuple[Any, DataSample]:
    """The dataset of --data, or the name of a stored one; and its first examples."""
    from pathlib import Path

    from karat.datasets.dataset import Dataset
    from karat.datasets.readers.rows import FORMATS
    from karat.experiments.plan import DataSample
    from karat.store import open_existing

    if given.data == "-":
        raise UsageError("--data: standard input is not read: write it to a file, as cat > data.jsonl does")
    path = Path(given.data)
    if not path.exists() and path.suffix not in FORMATS and path.parent == Path():
        try:
            with open_existing(given.store) as store:
                stored = store.datasets.get(given.data)
                return stored.label, DataSample(stored)
        except (RequestError, UnknownName) as error:
            close = near_file(path, [each.name for each in Path().iterdir() if each.suffix in FORMATS])
            stored_as = " As the name of a dataset" if close else ", and as the name of a dataset"
            raise UnknownName(f"--data: there is no file {given.data}{close}{stored_as}: {error}") from None
    dataset = Dataset.from_file(
        path,
        input=_fields(given.input),
        expected=_fields(given.expected),
        id=given.id,
        skip_bad_rows=given.skip_bad_rows,
    )
    return dataset, DataSample(dataset)


def _fields(given: list[str] | None) -> str | list[str] | None:
    return given[0] if given is not None and len(given) == 1 else given


def _beyond(plan: Plan, count: int) -> str:
    """The notice for an empty selection."""
    offset = plan.options.get("offset", 0)
    if offset < count:
        return ""
    if not count:
        return "the dataset has no examples: the status is no_data"
    return f"offset {offset:,} is beyond the end of the dataset ({count:,} examples): the status is no_data"


def _skipped_notice(dataset: Any) -> str:
    """The notice for rows skipped by --skip-bad-rows."""
    count = dataset.skipped_count
    first = "; ".join(f"line {bad.line}: {bad.reason}" for bad in dataset.skipped[:5])
    more = f"; and {count - 5:,} more" if count > 5 else ""
    return f"skipped {count:,} invalid {'row' if count == 1 else 'rows'} of {dataset.name}: {first}{more}"


def _check_plan(plan: Plan, terminal: Terminal) -> int:
    from karat.errors import plural
    from karat.experiments.plan import record_notice, reference_notice, refuse_missing_keys
    from karat.formatting import clean
    from karat.store import check_store

    check_store(plan.store)
    refuse_missing_keys(plan)
    examples = len(plan.dataset) if not isinstance(plan.dataset, str) else None
    beyond = _beyond(plan, examples) if examples is not None else ""
    terminal.notice(beyond)
    for planned in plan.runs:
        terminal.notice(record_notice(planned.task, plan.dataset))
    terminal.notice(reference_notice(plan))
    runs = len(plan.runs)
    document = {
        "ok": not beyond,
        "name": plan.name,
        "examples": examples,
        "runs": runs,
        "tasks": [planned.task.name for planned in plan.runs],
        "models": [planned.model for planned in plan.runs if planned.model],
        "evaluators": len(plan.evaluators),
        "aggregators": len(plan.aggregators),
    }
    count = plural(examples, "example") if examples is not None else clean(plan.dataset)
    task = clean(plan.runs[0].task.name, 80)
    parts = [count, f"task {task}", *([f"{runs:,} runs"] if runs > 1 else [])]
    parts.append(plural(len(plan.evaluators), "evaluator"))
    if plan.aggregators or not plan.evaluators:
        parts.append(plural(len(plan.aggregators), "aggregator"))
    else:
        parts.append("the default aggregators")
    terminal.show(document, f"{'no data' if beyond else 'OK'}: {', '.join(parts)}")
    return 1 if beyond else 0


YAML = (".yaml", ".yml")


class Target(NamedTuple):
    """The target of `karat run`."""

    kind: Literal["experiment", "graph", "function"]
    name: str
    """The file of an experiment; the name or path of a graph task; `file.py:function` or a dotted path."""


def recognise(text: str) -> Target:
    """Classify TARGET: a graph task, an experiment file or folder, `file.py:function` or a dotted path."""
    from karat.datasets.readers.rows import FORMATS
    from karat.experiments.plan import refuse_missing
    from karat.graph._lookup import find_task, names_graph

    path = Path(text)
    if names_graph(text):
        return Target("graph", text)
    if path.is_dir():
        inside = path / "experiment.yaml"
        if inside.is_file():
            return Target("experiment", str(inside))
        raise RequestError(
            f"{text} is a folder without experiment.yaml or graph_config.yaml: name a file in it"
        )
    if path.suffix in YAML:
        refuse_missing(path)
        return Target("experiment", text)
    if path.is_file() and path.suffix in FORMATS:
        raise RequestError(f"{text} is a dataset: name a task, as karat run file.py:function --data {text}")
    file, colon, function = text.partition(":")
    if file.endswith(".py"):
        refuse_missing(Path(file))
        if not colon or not function:
            raise RequestError(f"{file}: name a function in the file, as {file}:FUNCTION")
        return Target("function", text)
    if "." in text and all(word.isidentifier() for word in text.split(".")):
        if _means_task(text):
            find_task(text)  # raises with the nearest names
        _refuse_unknown(text)
        return Target("function", text)
    raise RequestError(
        f"cannot run {text!r}: name an experiment (experiment.yaml), a graph task (eval/x/y), file.py:function"
        f" or package.module.function{_near_task(text)}"
    )


def _near_task(text: str) -> str:
    close = _nearest_task(text)
    return f"; did you mean the task {close[0]}?" if close else ""


def _nearest_task(text: str) -> list[str]:
    from karat.graph import known_tasks

    return nearest(text.removeprefix("tasks/"), known_tasks(), 1)


def _means_task(dotted: str) -> bool:
    """Whether a dotted path is a misspelled task: no module has that name, and a task name is near."""
    parts = dotted.split(".")
    if any(Path(*parts[:cut]).with_suffix(".py").is_file() for cut in range(1, len(parts))):
        return False
    spec = importlib.util.find_spec(parts[0])
    if spec is not None and spec.origin is not None:  # a package; a mere folder has none
        return False
    return parts[0] == "tasks" or bool(_nearest_task(dotted.replace(".", "/")))


def _refuse_unknown(dotted: str) -> None:
    """Raise for a dotted path that is neither a task nor below a known file, folder or module."""
    from karat.graph import find_task

    first = dotted.partition(".")[0]
    if Path(first).is_dir() or Path(f"{first}.py").is_file() or importlib.util.find_spec(first) is not None:
        return
    try:
        find_task(dotted)
    except UnknownName as error:
        raise UnknownName(f"{error}; no module {first!r} on the import path either") from None


RUNNABLE = (".yaml", ".yml", ".py")
MOST = 1000
"""Limit on the folder entries to search."""


def near(text: str) -> str | None:
    """The experiment, task folder or Python file in the same folder with the nearest name."""
    file, _, function = text.partition(":")
    folder = Path(file).parent
    names: dict[str, Path] = {}
    try:
        for _, each in zip(range(MOST), folder.iterdir(), strict=False):
            if _runs(each):
                names.setdefault(each.stem, each)
    except OSError:
        return None
    close = nearest(Path(file).stem, names, 1)  # an ending in common is no likeness
    if not close:
        return None
    found = names[close[0]]
    if found == Path(file):
        return None  # the file is right: the error is about what is in it
    return f"{found}:{function or 'FUNCTION'}" if found.suffix == ".py" else str(found)


def _runs(path: Path) -> bool:
    if path.is_dir():
        return any((path / name).is_file() for name in ("experiment.yaml", "graph_config.yaml"))
    return path.suffix in RUNNABLE and not path.name.startswith("__")


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
NOT_GRAPHS = {
    **dict.fromkeys(("recorded", "input", "expected", "id", "skip_bad_rows"), "set it in the graph file"),
    **dict.fromkeys(("output", "output_id"), "it applies to recorded outputs"),
    "evaluator": "run the task, then karat evaluate RUN -e NAME",
    "aggregator": "run the task, then karat evaluate RUN and karat aggregate EVAL -a NAME",
}


UNSUPPORTED = {
    **dict.fromkeys(
        ("--checkpoint_interval", "-ci"), "every record is stored when it is finished; remove it"
    ),
    **dict.fromkeys(("--clear_logs", "-cl"), "there are no log files; remove it"),
    **dict.fromkeys(("--disable_metadata", "-dm"), "there is no metadata file; remove it"),
    **dict.fromkeys(("--oasst", "-ost"), "there is no OASST mapping; map the output file"),
    **dict.fromkeys(("--quality", "-q"), "there is no tagging of data quality; run it on the output file"),
}
"""Options of SyGra, and why there are none of them."""


def add_graph_arguments(parser: Parser) -> None:
    """Add the options of graph tasks, spelled as in SyGra."""
    parser.unsupported = UNSUPPORTED
    option = parser.add_argument_group("options of graph tasks").add_argument
    option("--task", "-t", metavar="TASK", help="the task: tasks.eval.x.y, eval/x/y, or a path")
    option(
        "--num_records",
        "--num-records",
        "-n",
        type=integer(1),
        metavar="N",
        help=f"number of records (default: {RECORDS})",
    )
    option(
        "--start_index", "--start-index", "-si", type=integer(0), metavar="N", help="skip the first N records"
    )
    option(
        "--batch_size", "--batch-size", "-b", type=integer(1), metavar="N", help="number of records at a time"
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
        "--output_with_ts", "--output-with-ts", "-owt", type=boolean, default=None, metavar="BOOL",
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
        "--resume", "-r", type=boolean, nargs="?", const=True, default=None, metavar="BOOL",
        help="resume an unfinished run (default: True); False starts a new one",
    )  # fmt: skip
    option(
        "--debug",
        "-d",
        type=boolean,
        nargs="?",
        const=True,
        default=None,
        metavar="BOOL",
        help="print the source location of failures",
    )


def boolean(text: str) -> bool:
    """`True` or `False`, as the seeds' tools write it."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is not True or False")
    return words[text.lower()]


def arguments(text: str) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a JSON object")
    return value


def execute_graph(given: argparse.Namespace, name: str, terminal: Terminal) -> int:
    """Run a graph task, store its metrics, write its files and print the outcome."""
    from karat.cli.outcome import Gates, label_notices, outcome_blocks
    from karat.experiments.running import carry_out
    from karat.graph import load_task, prepare_files
    from karat.store import open_store

    for option, remedy in NOT_GRAPHS.items():
        if getattr(given, option, None):
            raise UsageError(f"--{option.replace('_', '-')} does not apply to graph tasks: {remedy}")
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
    plan = _graph_plan(task, dataset, given, count)
    _refuse_thresholds(read_thresholds(given.fail_under), plan)
    if given.check:
        from karat.experiments.plan import refuse_missing_keys

        refuse_missing_keys(plan)
        return _checked_graph(task, dataset, terminal)
    if given.estimate is not None:
        return show_estimate(plan, given.estimate, given.batch, terminal)
    if given.num_records is None and given.limit is None and "limit" in plan.options:
        terminal.notice(
            f"only {RECORDS} of {len(dataset):,} records, the default of graph tasks: --num_records N for more"
        )
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
        for notice in label_notices(outcome.runs[0], plan.labels):
            terminal.notice(notice)
        written = _files(task, outcome, given)
        for note in written.notes:
            terminal.notice(note)
        if given.debug:
            _tell_failures(outcome, terminal)
        document = {"name": task.name, **outcome.to_dict(), "files": [str(path) for path in written.paths()]}
        if written.left_out:
            document["left_out"] = written.left_out
        gates = Gates(outcome.aggregation, given.fail_under)
        terminal.show(
            {**document, **gates.document()},
            lambda: [*outcome_blocks(outcome), *_file_blocks(written), *gates.blocks()],
        )
        return gates.exit_code(terminal, _exit_code(outcome, written))


def _lacking_model() -> str:
    """The error for a missing default model, or an empty text."""
    from karat.models import default_spec

    try:
        default_spec()
    except RequestError as error:
        return str(error)
    return ""


def _graph_plan(task: GraphTask, dataset: Any, given: argparse.Namespace, count: int) -> Plan:
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
    from karat.errors import plural

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


def _checked_graph(task: GraphTask, dataset: Any, terminal: Terminal) -> int:
    from karat.errors import plural

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
