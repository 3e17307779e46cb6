"""Read an experiment file into a plan. All parts are resolved and built first; all errors are reported together."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from pydantic import ValidationError

from karat.aggregators._base import Resolved, resolve_aggregator
from karat.documents import Document, Place, format_path, read_document
from karat.errors import (
    ConfigError,
    KaratError,
    RequestError,
    did_you_mean,
    refuse_nul,
    wording,
)
from karat.evaluators._base import ResolvedEvaluator, evaluators, resolve_evaluator
from karat.execution.arguments import LEAST, check_numbers
from karat.experiments.plan import (
    DataSample,
    Plan,
    PlannedRun,
    aggregator_problems,
    check_models,
    evaluator_problem,
    field_problems,
    file_beside,
    function_at,
    function_task,
    lacks_reference,
    refuse_absent,
    refuse_unfit,
    refuse_unknown,
    repeated,
    runs_for,
)
from karat.experiments.schema import (
    ExperimentFile,
    FunctionEntry,
    GraphEntry,
    PlacedError,
    PromptEntry,
    RecordedEntry,
    check_schema,
    errors_at,
    place_of_parameter,
    problems_of,
)
from karat.store import open_existing
from karat.store.run_labels import check_labels
from karat.tasks import Task
from karat.tasks.prompt import PromptTask
from karat.tasks.recorded import RecordedOutputs

T = TypeVar("T")

LISTS = ("evaluators", "aggregators")
OPTIONS = ("concurrency", "attempts", "limit", "offset", "timeout", "retries", "abort_on_error")


def read_experiment(
    path: str | Path,
    *,
    store: str | None = None,
    models: list[str] | None = None,
    params: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of an experiment file. The arguments override the settings of the file."""
    check_models(models or ())
    return _Check(Path(path), store, list(models or ()), dict(params or {}), dict(options or {})).plan()


class _Check:
    """The check of one file; collects problems with their lines."""

    def __init__(
        self,
        path: Path,
        store: str | None,
        models: list[str],
        params: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        refuse_nul(path)
        self.folder = path.resolve().parent
        self.document: Document = read_document(path)
        self.problems: list[tuple[int, str]] = []
        self.sample = DataSample()
        self.places: dict[str, list[int]] = {}
        """The indices of the valid entries of a list."""
        self.given_models, self.params, self.options = models, params, options
        self.file = self._file()
        self.store = store or self._store()

    def plan(self) -> Plan:
        """Return the plan, or raise all errors."""
        file = self.file
        if str(self.folder) not in sys.path:
            sys.path.append(str(self.folder))
        dataset = self._try(("dataset",), self._dataset)
        runs = self._try(("task",), self._runs) or []
        self._check_tasks(runs)
        own: list[Any] = []
        evaluators: list[Any] = list(self._evaluators(runs))
        if runs and graph_of(file.task, self.folder) is not None:
            task = runs[0].task
            place = "task" if file.dataset is None else "dataset"
            dataset = self._try((place,), lambda: self._data_of_graph(task, dataset))
            if not evaluators and not file.evaluators:
                evaluators, own = own_metrics(task)
                evaluators = [resolve_evaluator(each) for each in evaluators]
        aggregators = list(self._aggregators(evaluators)) or own
        self._try(("labels",), lambda: check_labels(file.labels))
        for name in LEAST:
            self._try((name,), lambda name=name: check_numbers(**{name: getattr(file, name)}))  # type: ignore[misc]  # bound now
        if self.problems:
            lines = [f"line {line}: {text}" for line, text in sorted(self.problems, key=lambda each: each[0])]
            raise ConfigError(lines, str(self.document.path))
        options = {name: getattr(file, name) for name in OPTIONS if getattr(file, name) is not None}
        options.update({name: value for name, value in self.options.items() if value is not None})
        return Plan(
            dataset=dataset,
            runs=runs,
            evaluators=evaluators,
            aggregators=aggregators,
            name=file.name or self.folder.name,
            description=file.description,
            labels=file.labels,
            store=self.store,
            confidence=file.confidence,
            options=options,
        )

    def _file(self) -> ExperimentFile:
        """The valid keys of the file; invalid keys become problems."""
        value = self.document.value
        if not isinstance(value, dict):
            raise ConfigError(
                ["line 1: an experiment is a mapping with dataset: and task:"], str(self.document.path)
            )
        file, found, bad = check_schema(value)
        self.problems += [(self.document.line(place), text) for place, text in found]
        for key in ("dataset", "task"):
            if value.get(key) is not None or (key,) in bad:
                continue
            if any(f"did you mean {key!r}?" in text for _, text in found):
                continue  # a misspelt key is one mistake
            if key == "task" or not is_graph_task(value.get("task"), self.folder):  # a graph has a dataset
                self._problem((key,), "has no value" if key in value else "is missing")
        readable = {key: item for key, item in value.items() if (key,) not in bad}
        for key in LISTS:
            if isinstance(readable.get(key), list):
                self.places[key] = [i for i in range(len(readable[key])) if (key, i) not in bad]
                readable[key] = [readable[key][i] for i in self.places[key]]
        return file or ExperimentFile.model_validate(readable)

    def _try(self, place: Place, step: Callable[[], T], params: Mapping[str, Any] | None = None) -> T | None:
        """Run a step; record an error as a problem at `place` or at the parameter that it quotes."""
        try:
            return step()
        except KaratError as error:
            for problem in problems_of(error):
                self._problem(
                    getattr(error, "place", None) or place_of_parameter(place, params, problem), problem
                )
        return None

    def _problem(self, place: Place, text: str) -> None:
        self.problems.append((self.document.line(place), f"{format_path(place)}: {text}"))

    def _path(self, name: str) -> Path:
        """A path in the file, relative to the working folder."""
        path = self.folder / Path(name).expanduser()
        try:
            return path.relative_to(Path.cwd())
        except ValueError:
            return path

    def _store(self) -> str | None:
        url = self.file.store
        if url is not None and "://" not in url:
            return str(self.folder / Path(url).expanduser())
        if url is not None and url.startswith("sqlite:///") and not url.startswith("sqlite:////"):
            name, question, rest = url.removeprefix("sqlite:///").partition("?")
            return f"sqlite:///{quote(os.fsencode(self.folder))}/{name}{question}{rest}"
        return url

    # The dataset and the task -----------------------------------------------------

    def _dataset(self) -> Any:
        from karat.datasets.dataset import Dataset
        from karat.datasets.readers.rows import RowSource

        entry = self.file.dataset
        if entry is None:
            return None
        if isinstance(entry, list):
            name = self.file.name or self.folder.name
            examples = [each.model_dump(exclude_unset=True) for each in entry]
            return self._note_dataset(Dataset.from_examples(examples, name=name))
        if isinstance(entry, str):
            return self._named_dataset(entry)
        fields = entry.model_dump(exclude={"path"}, exclude_unset=True)
        path = self._path(entry.path)
        with errors_at("dataset", "path"):
            RowSource(path, entry.format)  # says what is wrong with the file itself
        try:
            return self._note_dataset(Dataset.from_file(path, **fields))
        except KaratError as error:
            quoted = place_of_parameter((), fields, str(error))[1:]
            raise PlacedError(("dataset", *quoted), problems_of(error)) from error

    def _note_dataset(self, dataset: Any) -> Any:
        self.sample = DataSample(dataset)
        return dataset

    def _named_dataset(self, name: str) -> Any:
        from karat.datasets.dataset import Dataset
        from karat.datasets.readers.rows import FORMATS

        path = self._path(name)
        if path.is_file() or "/" in name or Path(name.removesuffix(".gz")).suffix in FORMATS:
            return self._note_dataset(Dataset.from_file(path))
        with open_existing(self.store) as store:
            stored = store.datasets.get(name)
            self._note_dataset(stored)
            return stored.label

    def _runs(self) -> list[PlannedRun]:
        entry, matrix = self.file.task, self.file.matrix
        models = self.given_models or (self._known_models() if self.file.models else [])
        wrong = not self.given_models and any(text.startswith("models") for _, text in self.problems)
        if entry is None or (wrong and not models):
            return []
        if not matrix:
            return self._runs_of(entry, self.params, models)
        if models and "model" in matrix:
            raise RequestError(
                f"both matrix: and models: (or {wording('--model', 'models=')}) name models: remove one of them"
            )
        entry = graph_of(entry, self.folder) or entry
        entry = FunctionEntry(function=entry) if isinstance(entry, str) else entry
        found, matrix = problems_in(entry, matrix, self.folder)
        for error in found:
            self._problem(error.place, error.problems[0])
        if not all(matrix.values()):
            if isinstance(entry, FunctionEntry):  # also report errors of the function itself
                params = {name: values[0] for name, values in matrix.items() if values and name != "model"}
                self._runs_of(entry, params, [])
            return []
        runs: list[PlannedRun] = []
        for values, each, params, model in expand(entry, matrix):
            made = self._runs_of(each, {**params, **self.params}, [model] if model is not None else models)
            runs += [msgspec.structs.replace(planned, matrix=values) for planned in made]
        return runs

    def _known_models(self) -> list[str]:
        """The available models of `models:`; the others become problems."""
        known = []
        for index, spec in enumerate(self.file.models or []):
            before = len(self.problems)
            if spec in known:
                self._problem(("models", index), f"{spec} is listed twice: remove one of them")
            self._try(("models", index), lambda spec=spec: refuse_absent(spec))  # type: ignore[misc]  # bound now
            known += [spec] if len(self.problems) == before else []
        return known

    def _runs_of(self, entry: Any, params: dict[str, Any], models: list[str]) -> list[PlannedRun]:
        if isinstance(entry, PromptEntry):
            return self._prompt_runs(entry, models)
        if isinstance(entry, RecordedEntry):
            return [PlannedRun(task=self._recorded_task(entry, models))]
        graph = graph_of(entry, self.folder)
        if graph is not None:
            return graph_runs(graph, params, models, self.folder)
        if isinstance(entry, str):
            entry = FunctionEntry(function=entry)
        params = {**entry.params, **params}
        try:
            return runs_for(function_task(entry.function, params, entry.name, self.folder), models)
        except RequestError as error:
            raise PlacedError(
                place_of_parameter(("task",), entry.params, str(error)), problems_of(error)
            ) from error

    def _recorded_task(self, entry: RecordedEntry, models: list[str]) -> Any:
        if models or self.params:
            raise RequestError("recorded outputs take no model and no parameters")
        return RecordedOutputs(self._path(entry.recorded), output=entry.output, id=entry.id, name=entry.name)

    def _prompt_runs(self, entry: PromptEntry, models: list[str]) -> list[PlannedRun]:
        if self.params:
            raise RequestError(
                f"a prompt takes no parameters: {wording('--param applies', 'params= apply')} to functions"
            )
        if entry.model is not None and self.file.models and not self.given_models:
            raise RequestError("model: and models: both name models: remove one of them")
        given = entry.model_dump(exclude={"prompt", "model", "answer_schema"}, exclude_none=True)
        prompt = entry.prompt if isinstance(entry.prompt, str) else [m.model_dump() for m in entry.prompt]
        schema = self._answer_schema(entry.answer_schema)
        specs: list[str | None] = [*models] or [entry.model]
        for spec in specs:
            with errors_at("task", "model") if spec is entry.model and spec is not None else nullcontext():
                refuse_absent(spec)
        return [
            PlannedRun(
                task=PromptTask(prompt, model=spec, schema=schema, **given),
                model=spec,
            )
            for spec in specs
        ]

    def _answer_schema(self, given: dict[str, Any] | str | None) -> Any:
        if not isinstance(given, str):
            return given
        if given.endswith(".json"):
            import json

            try:
                return json.loads(self._path(given).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise RequestError(f"schema {given} cannot be read: {error}") from error
        from karat.registry import load_object

        return load_object(file_beside(given, self.folder))

    def _check_tasks(self, runs: list[PlannedRun]) -> None:
        """Check the tasks against the data: the variables of a prompt, a function's parameter, recorded ids."""
        found: dict[str, Place] = {}
        for run in runs:
            place: Place = ("dataset",)
            if isinstance(run.task, PromptTask):
                place = ("matrix", "prompt") if "prompt" in run.matrix else ("task", "prompt")
            elif isinstance(run.task, RecordedOutputs):
                place = ("task",)
            found |= dict.fromkeys(self.sample.problems_of(run.task), place)
        for text, where in found.items():
            self._problem(where, text)

    def _data_of_graph(self, task: Any, dataset: Any) -> Any:
        """The dataset of the file, checked against the graph, or else the graph's own."""
        if self.file.dataset is not None:
            return dataset
        with naming_graph(task.name):
            return task.dataset()

    # Evaluators and aggregators -----------------------------------------------------

    def _evaluator(self, entry: Any) -> Any:
        spec = self._part(entry)
        return spec if self.file.judge is None else self._with_judge(spec, self.file.judge)

    def _part(self, entry: Any) -> Any:
        """The name of an evaluator or aggregator, or its fields; a file is relative to the experiment's."""
        if isinstance(entry, str):
            return file_beside(entry, self.folder)
        fields = entry.model_dump(exclude_none=True)
        if "name" in fields:
            fields["name"] = file_beside(fields["name"], self.folder)
        return fields

    def _evaluators(self, runs: list[PlannedRun]) -> Iterator[ResolvedEvaluator]:
        """Build every evaluator."""
        keys: set[str] = set()
        for index, entry in zip(self.places.get("evaluators", ()), self.file.evaluators, strict=True):
            place = ("evaluators", index)
            built = self._try(
                place,
                lambda entry=entry: resolve_evaluator(self._evaluator(entry)),  # type: ignore[misc]  # bound now
                getattr(entry, "params", None),
            )
            if built is None:
                continue
            key = built.evaluator.key
            if key in keys:
                self._problem(place, f"duplicate key {key!r}: give it another, as {{name, params, key}}")
            keys.add(key)
            if lacks_reference(built.evaluator, self.sample):
                self._problem(
                    place,
                    f"{key} needs an expected output and no example has one: set expected: FIELD in dataset"
                    f"{self._other_fields()}",
                )
            problem = evaluator_problem(built.evaluator, runs)
            if problem is not None:
                self._problem(place, problem)
            yield built

    def _with_judge(self, spec: Any, judge: str | dict[str, Any]) -> Any:
        """An evaluator that asks a judge, with the judge of the file where it names none; its own settings win."""
        name = spec if isinstance(spec, str) else spec.get("name")
        if name is None or not evaluators.has(name):
            return spec
        if not getattr(evaluators.get(name), "names_models", False):
            return spec
        spec = {"name": spec} if isinstance(spec, str) else dict(spec)
        params = dict(spec.get("params") or {})
        own = params.get("judge")
        if own is None and "config" not in params:
            params["judge"] = judge
        elif isinstance(own, Mapping) and not {"model", "models"} & own.keys():
            params["judge"] = {**({"model": judge} if isinstance(judge, str) else judge), **own}
        return {**spec, "params": params}

    def _other_fields(self) -> str:
        """The unused fields, one of which may be the expected output."""
        fields = ", ".join(str(name)[:40] for name in list(self.sample.examples[0].metadata)[:10])
        return f" (unused fields: {fields})" if fields else ""

    def _aggregators(self, evaluators: list[ResolvedEvaluator]) -> Iterator[Resolved]:
        """Build every aggregator, and check that it has something to aggregate."""
        whole = not self.problems
        if self.problems:
            graph = is_graph_task(self.document.value.get("task"), self.folder)
            from_where = ("evaluators", "task") if graph else ("evaluators",)
            whole = not any(text.startswith(from_where) for _, text in self.problems)
        if self.file.aggregators and not self.file.evaluators and not evaluators and whole:
            self._problem(("aggregators",), "no evaluators, so no results to aggregate: add evaluators:")
            return
        seen: set[str] = set()
        for index, entry in zip(self.places.get("aggregators", ()), self.file.aggregators, strict=True):
            place = ("aggregators", index)
            built = self._try(
                place,
                lambda entry=entry: resolve_aggregator(self._part(entry), self.file.confidence),  # type: ignore[misc]  # bound now
                getattr(entry, "params", None),
            )
            if built is None:
                continue
            if built.key in seen:
                self._problem(
                    place, f"duplicate key {built.key!r}: give it another, as {{name, params, key, of}}"
                )
            seen.add(built.key)
            found = list(field_problems(built, self.sample))
            if whole:
                found += aggregator_problems(
                    built,
                    {each.evaluator.key: each.evaluator for each in evaluators},
                    self.options.get("attempts") or self.file.attempts or 1,
                )
            for below, text in found:
                self._problem((*place, *below), text)
            yield built


MOST_RUNS = 1000


class Combination(NamedTuple):
    """One cell of the matrix: its values and its task."""

    values: dict[str, Any]
    entry: Any
    params: dict[str, Any]
    """Parameters of the function, variables of the graph."""
    model: str | None


def combinations_of(matrix: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last key changing fastest."""
    count = 1
    for values in matrix.values():
        count *= len(values)
    if count > MOST_RUNS:
        raise RequestError(f"{count:,} combinations exceed the limit of {MOST_RUNS:,}: list fewer values")
    return [dict(zip(matrix, values, strict=True)) for values in product(*matrix.values())]


def expand(entry: Any, matrix: Mapping[str, Sequence[Any]]) -> list[Combination]:
    """The combinations of a task and a matrix."""
    if isinstance(entry, RecordedEntry):
        raise RequestError(
            "recorded outputs take no matrix: a matrix applies to functions, prompts and graphs"
        )
    return [_combine_values(entry, values) for values in combinations_of(matrix)]


def problems_in(
    entry: Any, matrix: Mapping[str, Sequence[Any]], folder: Path
) -> tuple[list[PlacedError], dict[str, list[Any]]]:
    """All errors of a matrix with their places, and the valid values."""
    check = _checker(entry, folder)
    found: list[PlacedError] = []
    good: dict[str, list[Any]] = {}
    for name, values in matrix.items():
        good[name] = []
        for index, value in enumerate(values):
            try:
                check(name, index, value)
                if repeated([*good[name], value]):
                    problem = f"{value!r:.60} is listed twice: remove one of them"
                    raise PlacedError(("matrix", name, index), [problem])
                good[name].append(value)
            except PlacedError as error:
                found += [error] if all(error.place != each.place for each in found) else []
    return found, good


def _checker(entry: Any, folder: Path) -> Callable[[str, int, Any], None]:
    """Return a function that raises a PlacedError for an invalid value of the matrix."""
    function: tuple[str, Any] | None = None
    if isinstance(entry, FunctionEntry):
        with suppress(KaratError):  # reported with the task
            function = function_at(entry.function, folder)

    def check(name: str, index: int, value: Any) -> None:
        if name == "model":
            with errors_at("matrix", name, index):
                if not isinstance(value, str):
                    raise RequestError(f"{value!r} is not a model: model names are strings")
                refuse_absent(value)
        elif isinstance(entry, PromptEntry):
            with errors_at("matrix", name):
                _refuse_unknown_field(name)
            with errors_at("matrix", name, index):
                _prompt(entry, {name: value}, None)
        elif function is not None and callable(function[1]) and not isinstance(function[1], Task):
            with errors_at("matrix", name):
                refuse_unknown(*function, name)
            with errors_at("matrix", name, index):
                refuse_unfit(*function, name, value)

    return check


def _combine_values(entry: Any, values: dict[str, Any]) -> Combination:
    model = values.get("model")
    rest = {name: value for name, value in values.items() if name != "model"}
    if isinstance(entry, PromptEntry):
        return Combination(values, _prompt(entry, rest, model), {}, model)
    return Combination(values, entry, rest, model)


def _refuse_unknown_field(name: str) -> None:
    known = [field.alias or field_name for field_name, field in PromptEntry.model_fields.items()]
    if name not in known:
        raise RequestError(f"a prompt has no field {name!r}: {did_you_mean(name, known)}")


def _prompt(entry: PromptEntry, values: dict[str, Any], model: str | None) -> PromptEntry:
    given = {**entry.model_dump(by_alias=True, exclude_unset=True), **values}
    if model is not None:
        given.pop("model", None)
    try:
        return PromptEntry.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RequestError(first["msg"].replace("Input should be", "must be")) from error


# Graph tasks in experiments: their names and their runs.


def graph_of(entry: Any, folder: Path) -> GraphEntry | None:
    """The graph of a task entry (a mapping or a string), or None."""
    if isinstance(entry, GraphEntry):
        return entry
    if not isinstance(entry, str) or ":" in entry:
        return None
    from karat.graph import names_graph

    return GraphEntry(graph=entry) if names_graph(_found(entry, folder)) else None


def is_graph_task(written: Any, folder: Path) -> bool:
    """Whether `task:` is a graph, which has its own data."""
    if isinstance(written, Mapping):
        return "graph" in written
    return graph_of(written, folder) is not None


@contextmanager
def naming_graph(graph: str) -> Iterator[None]:
    """Prefix errors in the graph's own file with its name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError([f"{graph}, {problem}" for problem in error.problems]) from error


def graph_runs(
    entry: GraphEntry, run_args: Mapping[str, Any], models: list[str], folder: Path
) -> list[PlannedRun]:
    """A run of the graph for each model, which replaces every model in its file."""
    from karat.graph import load_task

    runs = []
    specs: list[str | None] = [*models] or [entry.model]
    for model in specs:
        with naming_graph(entry.graph):
            task = load_task(
                _found(entry.graph, folder), model=model, run_args={**entry.run_args, **run_args}
            )
        task.name = entry.name or task.name
        output_dir = folder / Path(entry.output_dir).expanduser() if entry.output_dir else None
        runs.append(PlannedRun(task=task, model=model, output_dir=output_dir))
    return runs


def own_metrics(task: Any) -> tuple[list[Any], list[Any]]:
    """The default evaluators and aggregators of a graph: its unit metrics and aggregators."""
    from karat.graph import stored_metrics

    return stored_metrics(task)


def _found(name: str, folder: Path) -> str:
    """The path of a task next to the experiment file, else the name."""
    beside = folder / Path(name).expanduser()
    return str(beside) if beside.exists() else name
