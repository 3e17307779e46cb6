"""The plan of an experiment file or a command line with every part built, and whether the parts fit each other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from karat.aggregators._base import Resolved, fits, folding_part, kinds_text, metadata_fields
from karat.aggregators._pass_k import OverAttempts
from karat.documents import Place
from karat.errors import (
    ConfigError,
    MissingDependency,
    RequestError,
    did_you_mean,
    near_file,
    refuse_nul,
    unknown_metadata,
    wording,
)
from karat.evaluators._base import kind_of, threshold_problem
from karat.json_schema import refuse_remote_references
from karat.paths import MISSING, find
from karat.records import Example
from karat.registry import load_object
from karat.serialization import annotations_of
from karat.store.handles import StoredDataset
from karat.tasks import Task, as_task, tasks
from karat.tasks.function import PLAIN, FunctionTask
from karat.tasks.prompt import PromptTask
from karat.tasks.recorded import RecordedOutputs

YAML = (".yaml", ".yml")


class PlannedRun(msgspec.Struct, kw_only=True):
    """One run: a task and, optionally, its model."""

    task: Task
    model: str | None = None
    """The model of the experiment or of `--model`; None if the task selects its own."""
    matrix: dict[str, Any] = {}
    """The values of the experiment's matrix for this run."""
    output_dir: Path | None = None
    """The folder for the output files of a graph."""


class Plan(msgspec.Struct, kw_only=True):
    """The dataset, runs, evaluators, aggregators and options of an experiment."""

    dataset: Any
    runs: list[PlannedRun]
    evaluators: list[Any] = []
    aggregators: list[Any] = []
    name: str = ""
    description: str = ""
    labels: list[str] = []
    store: str | None = None
    confidence: float = 0.95
    options: dict[str, Any] = {}
    """Options of the run stage: concurrency, attempts, limit, offset, timeout, retries, abort_on_error."""


def function_task(
    name: str, params: dict[str, Any], title: str | None = None, folder: Path | None = None
) -> Task:
    """The task at `file.py:function` (relative to a folder), a dotted path or a registered name."""
    name, found = function_at(name, folder)
    if isinstance(found, type):
        built = _built(found, name, params)
        if isinstance(built, Task):
            return built
        return FunctionTask(built, name=title)
    if isinstance(found, Task):
        if params:
            raise RequestError(f"task {name!r} is an instance and takes no parameters")
        return found
    if not callable(found):
        raise RequestError(f"{name} is {type(found).__name__}, not a function or a class with __call__")
    if not params and title is None:
        return as_task(found)
    for key, value in params.items():
        refuse_unknown(name, found, key)
        refuse_unfit(name, found, key, value)
    return FunctionTask(found, name=title, parameters=dict(params))


def function_at(name: str, folder: Path | None = None) -> tuple[str, Any]:
    """Load a function; returns its name, relative to the working folder, and the object."""
    if ":" not in name:
        return name, tasks.get(name)
    name = file_beside(name, folder or Path())
    refuse_missing(Path(name.partition(":")[0]))
    return name, load_object(name)


def refuse_unknown(name: str, found: Any, parameter: str) -> None:
    """Raise, with the nearest name, if a function or class has no such parameter."""
    known = inspect.signature(found).parameters.values()
    if any(p.kind is p.VAR_KEYWORD or p.name == parameter for p in known):
        return
    near = did_you_mean(parameter, [p.name for p in known])
    raise RequestError(f"task {name!r} has no parameter {parameter!r}: {near}")


def refuse_unfit(name: str, function: Any, parameter: str, value: Any) -> None:
    """Raise if a value is not of the plain type that a parameter annotates; a parameter's default always fits."""
    code: Any = getattr(function, "__init__", None) if isinstance(function, type) else function
    wanted: Any = annotations_of(code).get(parameter)
    if wanted not in PLAIN or isinstance(value, PLAIN[wanted]):
        return
    declared = inspect.signature(function).parameters.get(parameter)
    if declared is None or declared.default is not value:
        raise RequestError(
            f"task {name!r} takes {parameter}: {wanted.__name__}, and the parameter {parameter!r} is {value!r:.60}"
        )


def takes_model(task: Task) -> bool:
    """Whether a function task has a parameter called `model`."""
    if not isinstance(task, FunctionTask):
        return False
    try:
        return "model" in inspect.signature(task.function).parameters
    except (TypeError, ValueError):
        return False


def _built(found: type, name: str, params: dict[str, Any]) -> Any:
    from karat.registry import check_parameters

    check_parameters(found, params, f"task {name!r}")
    for key, value in params.items():
        refuse_unfit(name, found, key, value)
    try:
        built = found(**params)
    except Exception as error:  # user code, for example an environment variable that is not set
        raise RequestError(f"cannot create task {name!r}: {type(error).__name__}: {error}") from error
    if not callable(built) and not isinstance(built, Task):
        raise RequestError(f"task {name!r} is not callable: define __call__")
    return built


def refuse_missing(path: Path) -> None:
    """Raise, with the nearest name, if a file does not exist."""
    if path.is_file():
        return
    folder = path.parent
    if not folder.is_dir():
        raise RequestError(f"file not found: {path} (no folder {folder})")
    endings = YAML if path.suffix in YAML else (path.suffix,)
    names = [each.name for each in folder.iterdir() if each.suffix in endings]
    raise RequestError(f"file not found: {path}{near_file(path, names)}")


def file_beside(name: str, folder: Path) -> str:
    """Resolve `file.py:Name` in a folder, relative to the working folder; return other names unchanged."""
    file, colon, member = name.partition(":")
    if not colon or not file.endswith(".py"):
        # Also after a prefix, as in unit:mine.py:Name.
        return f"{file}:{file_beside(member, folder)}" if ".py:" in member else name
    refuse_nul(file)
    path = (folder / file).resolve()
    # Relative to the working folder if possible: the name is part of the cache key of results.
    try:
        return f"{path.relative_to(Path.cwd())}:{member}"
    except ValueError:
        return f"{path}:{member}"


def runs_for(task: Task, models: list[str]) -> list[PlannedRun]:
    """A run of a function task for each model, passed as its parameter `model`, or as the default model."""
    if not models:
        return [PlannedRun(task=task)]
    for spec in models:
        refuse_absent(spec)
    if not isinstance(task, FunctionTask):
        raise RequestError(f"task {task.name!r} uses no model: remove {wording('--model', 'models=')}")
    if not takes_model(task):
        return [
            PlannedRun(
                task=FunctionTask(
                    task.function, name=task.name, parameters=task.parameters, default_model=spec
                ),
                model=spec,
            )
            for spec in models
        ]
    return [
        PlannedRun(
            task=FunctionTask(task.function, name=task.name, parameters={**task.parameters, "model": spec}),
            model=spec,
        )
        for spec in models
    ]


def check_models(given: Sequence[str]) -> None:
    """Refuse models of `--model` that are unknown, not installed, or given twice."""
    for place, spec in enumerate(given):
        try:
            refuse_absent(spec)
        except MissingDependency:
            raise
        except RequestError as error:
            raise RequestError(f"{wording('--model', 'models')}: {error}") from error
        if spec in given[:place]:
            raise RequestError(f"{wording('--model', 'models')}: {spec} is listed twice: remove one of them")


def refuse_absent(spec: str | None) -> None:
    """Raise if a model is unknown, or is a local model that is not installed."""
    from karat.models import get
    from karat.models._client import Embedder

    model = get(spec)
    if isinstance(model, Embedder):
        raise RequestError(f"{model.spec} is an embedding model and generates no text")
    if model.endpoint.provider != "local":
        return
    from importlib.util import find_spec

    from karat.models.providers._weights import find

    if find_spec("xllamacpp") is None:
        raise MissingDependency("xllamacpp", "local", model.spec)
    find(model.endpoint.model)


# Whether the parts of a plan fit each other, the data and the surroundings: what would fail later is found here.
#
# An experiment file and a command line use the same checks; each adds the place and the fix in its own words.


LOOKED_AT = 100
JUDGES = ("evaluate", "compare", "evaluate_runs", "__call__")

Problem = tuple[Place, str]
"""A problem with its place below the part that has it."""


class DataSample:
    """The first examples of a dataset; tests search the rest too, unless that is in a store."""

    def __init__(self, dataset: Any = ()) -> None:
        self.examples: list[Example] = list(islice(dataset, LOOKED_AT))
        self._whole = len(dataset) <= LOOKED_AT
        self._dataset = None if isinstance(dataset, StoredDataset) else dataset

    def may_have(self, test: Callable[[Example], bool]) -> bool:
        """Whether an example passes a test; True where that is not known."""
        if not self.examples or any(map(test, self.examples)):
            return True
        return not self._whole and (self._dataset is None or any(map(test, self._dataset)))

    def problems_of(self, task: Task) -> list[str]:
        """Why a task can make an output of none of the examples; empty where that is not known."""
        found = task.check_inputs(self.examples)
        if not found or self._whole:
            return found
        return [] if self._dataset is None else task.check_inputs(self._dataset)


def lacks_reference(evaluator: Any, sample: DataSample) -> bool:
    """Whether an evaluator needs an expected output, and no example has one."""
    needs = getattr(evaluator, "needs_reference", False)
    return bool(needs) and not sample.may_have(lambda example: example.expected is not None)


def repeated(values: Sequence[Any]) -> list[Any]:
    """The values that are there before, in their order; 1, 1.0 and true are three values."""
    kept = [msgspec.json.encode(value) for value in values]
    return [value for place, value in enumerate(values) if kept[place] in kept[:place]]


def evaluator_problem(evaluator: Any, runs: Sequence[PlannedRun]) -> str | None:
    """Why an evaluator would fail on every item, or has nothing to compare."""
    if not any(callable(getattr(evaluator, name, None)) for name in JUDGES):
        return f"{evaluator.key!r} has none of the methods {', '.join(JUDGES)}: define one of them"
    schema = getattr(evaluator, "params", {}).get("schema")
    try:
        refuse_remote_references(schema if isinstance(schema, Mapping) else {})
    except RequestError as error:
        return f"{evaluator.key!r}: {error}"
    if kind_of(evaluator) == "single" or len(runs) != 1:
        return None
    return (
        f"{evaluator.key!r} compares runs, but there is only one: list several models: or a matrix:, or compare stored"
        f" runs with {wording('karat evaluate', 'karat.evaluate')}"
    )


def aggregator_problems(
    built: Resolved, evaluators: Mapping[str, Any], attempts: int = 1
) -> Iterator[Problem]:
    """An aggregator needs evaluators of its kind, labels where it counts classes, and enough attempts."""
    part = folding_part(built.aggregator)
    if isinstance(part, OverAttempts) and max(part.k) > attempts:
        have = "there is 1" if attempts == 1 else f"there are {attempts:,}"
        yield (
            ("params", "k"),
            f"k={max(part.k):,} needs as many attempts, and {have}: set attempts to {max(part.k):,}",
        )
    function = folding_part(built.aggregator)
    if inspect.isfunction(function) and not _takes_one(function):
        yield (), f"{built.name!r} must take one parameter, the list of results"
    unknown = [key for key in built.of or () if key not in evaluators]
    for key in unknown:
        yield ("of",), f"no evaluator has the key {key!r}: {did_you_mean(key, evaluators)}"
    if unknown:
        return
    over = getattr(built.aggregator, "over", frozenset({"single"}))
    fitting = [key for key in (built.of or evaluators) if fits(kind_of(evaluators[key]), over)]
    threshold = built.params.get("threshold")
    for key in fitting:
        if isinstance(threshold, (int, float)) and (problem := threshold_problem(threshold, evaluators[key])):
            yield ("params", "threshold"), f"{threshold:g} is not a threshold: {problem}"
    if not fitting:
        yield (), f"{built.name!r} needs results of {kinds_text(over)}, and the experiment has none"
    elif getattr(folding_part(built.aggregator), "needs_labels", False):
        for key in fitting:
            if getattr(evaluators[key], "gives_labels", None) is False:
                yield (
                    (),
                    f"{built.name!r} counts classes, and the results of {key!r} have no labels: aggregate it with"
                    f" accuracy or mean, or list in of: the evaluators that {built.name!r} applies to",
                )


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True


def field_problems(built: Resolved, sample: DataSample) -> Iterator[Problem]:
    """The metadata fields that an aggregator groups or clusters by, and that no example has."""
    for name, field in metadata_fields(built):
        if not sample.may_have(
            lambda example, field=field: find(example.metadata, field) is not MISSING  # type: ignore[misc]  # bound now
        ):
            known = {str(key) for example in sample.examples for key in example.metadata}
            yield ("params", name), unknown_metadata(field, known)


def record_notice(task: Any, dataset: Any) -> str:
    """Say which examples have no recorded output."""
    if not isinstance(task, RecordedOutputs) or isinstance(dataset, str):
        return ""
    recorded = task.ids
    missing = [example.id for example in dataset if example.id not in recorded]
    some = f"{', '.join(missing[:5])}{', …' if len(missing) > 5 else ''}"
    return (
        f"{task.path.name} has no output for {len(missing):,} of {len(dataset):,} examples ({some})"
        if missing
        else ""
    )


def reference_notice(plan: Plan) -> str:
    """Say how many examples lack an expected output that an evaluator needs."""
    from karat.evaluators._base import resolve_evaluator

    if isinstance(plan.dataset, str):
        return ""
    evaluators = [resolve_evaluator(each).evaluator for each in plan.evaluators]
    needing = [each.key for each in evaluators if getattr(each, "needs_reference", False)]
    without = [example.id for example in plan.dataset if example.expected is None] if needing else []
    if not without:
        return ""
    some = f"{', '.join(without[:3])}{', …' if len(without) > 3 else ''}"
    have = "has" if len(without) == 1 else "have"
    return (
        f"{len(without):,} of {len(plan.dataset):,} examples {have} no expected output ({some}):"
        f" {', '.join(needing)} will fail for {'it' if len(without) == 1 else 'them'}"
    )


def refuse_missing_keys(plan: Plan) -> None:
    """Raise an error that lists the models of a plan that need a key which is not set; nothing is called."""
    from karat.models._request_context import read_secret

    found: dict[str, None] = {}
    for model in _models_of(plan):
        endpoint = getattr(model, "endpoint", None)
        if endpoint is None or not endpoint.needs_key or endpoint.key_command:
            continue
        names = [name for name in (endpoint.key_env, endpoint.token_env) if name]
        if not any(map(read_secret, names)):
            found[f"{endpoint.spec} needs a key: set {' or '.join(names)}"] = None
    if found:
        raise ConfigError(found)


def _models_of(plan: Plan) -> Iterator[Any]:
    """The models that the tasks and evaluators of a plan are known to ask."""
    from karat.evaluators._base import resolve_evaluator
    from karat.evaluators.judges._base import JudgeEvaluator
    from karat.graph import GraphTask
    from karat.models import get

    for run in plan.runs:
        if isinstance(run.task, PromptTask):
            yield run.task.model
        elif isinstance(run.task, GraphTask):
            yield from (use.model for use in run.task.plan.models())
        elif run.model:
            yield get(run.model)
    for each in plan.evaluators:
        evaluator = getattr(each, "evaluator", None) or resolve_evaluator(each).evaluator
        if isinstance(evaluator, JudgeEvaluator):
            yield from evaluator.settings.models
        embedder = getattr(evaluator, "params", {}).get("embedder")
        if isinstance(embedder, str):
            yield get(embedder)
