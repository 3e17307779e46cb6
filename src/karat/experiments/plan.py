"""The plan of an experiment file or a command line, with every part built."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec

from karat.errors import MissingDependency, RequestError, did_you_mean, nearest, refuse_nul, wording
from karat.registry import load_object
from karat.serialization import annotations_of
from karat.tasks import Task, as_task, tasks
from karat.tasks.function import PLAIN, FunctionTask

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
    close = nearest(path.name, [each.name for each in folder.iterdir() if each.suffix in endings])
    raise RequestError(f"file not found: {path}" + (f": did you mean {folder / close[0]}?" if close else ""))


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
