"""Run a plan: run, evaluate, aggregate. Each stage computes only missing results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec

from karat.aggregators._base import aggregators, resolve_aggregator
from karat.errors import RequestError, did_you_mean, option
from karat.execution.aggregate import aggregate_async
from karat.execution.evaluate import evaluate_async
from karat.execution.progress import Listener, Progress, listener
from karat.execution.run import run_async
from karat.experiments.plan import Plan, PlannedRun
from karat.records import Status
from karat.registry import parameters_of
from karat.store import Store, open_store
from karat.store.handles import Aggregation, Evaluation, Run, StoredDataset
from karat.sync import sync_twin
from karat.tasks.prompt import PromptTask

if TYPE_CHECKING:
    from karat.analysis.comparison import Comparison
    from karat.analysis.summary import Grid

Notify = Callable[[Any], None]
"""Called with each handle when its stage ends."""


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of a plan."""

    dataset: StoredDataset
    runs: list[Run]
    models: list[str | None] = []
    files: list[str] = []
    """The output files of graphs, if the experiment sets `output_dir`."""
    evaluation: Evaluation | None = None
    aggregation: Aggregation | None = None
    comparison: Comparison | None = None
    """The comparison of the runs of a matrix, or of several models, with the first one."""
    grid: Grid | None = None
    """Variants × metrics of a matrix, with the best of each metric marked."""

    @property
    def status(self) -> Status:
        """The worst status of its stages."""
        found = {each.status for each in (*self.runs, self.evaluation, self.aggregation) if each is not None}
        for status in ("fatal_error", "running", "interrupted", "partial", "no_data"):
            if status in found:
                return status
        return "success"

    def to_dict(self) -> dict[str, Any]:
        """The headers of all stages, without the records."""
        runs = [
            {**each.to_dict(), "notice": each.notice, **({"model": model} if model else {})}
            for each, model in zip(self.runs, self.models, strict=True)
        ]
        return {
            "status": self.status,
            "dataset": self.dataset.to_dict(),
            "runs": runs,
            **{
                kind: None if handle is None else {**handle.to_dict(), "notice": handle.notice}
                for kind, handle in (("evaluation", self.evaluation), ("aggregation", self.aggregation))
            },
            **({"files": self.files} if self.files else {}),
            **({"comparison": self.comparison.to_dict()} if self.comparison is not None else {}),
            **({"grid": self.grid.to_dict()} if self.grid is not None else {}),
        }


class ExperimentOptions(TypedDict, total=False):
    """Options of `karat.experiment`: overrides of the file's settings, and options of the stages."""

    store: str | Path | Store | None
    models: list[str]
    params: Mapping[str, Any]
    concurrency: int
    attempts: int
    limit: int
    offset: int
    timeout: float
    retries: int
    new: bool
    retry_failed: bool
    accept_code_change: bool
    wait: bool
    cache: str
    budget: float
    batch: bool
    progress: bool | Listener | None


async def experiment_async(file: str | Path, **options: Unpack[ExperimentOptions]) -> Outcome:
    """Run an experiment file: its runs, its evaluation, its aggregation and, for a matrix, its comparison.

    `store`, `models`, `params`, `concurrency`, `attempts`, `limit`, `offset`, `timeout` and `retries` override the
    settings of the file; `new`, `retry_failed`, `accept_code_change`, `wait`, `cache`, `budget`, `batch` and `progress`
    are those of `karat.run`. The results stay in the store, which the returned runs keep open.
    """
    from karat.experiments.checking import OPTIONS, read_experiment

    if not isinstance(file, (str, Path)):
        raise RequestError(
            f"karat.experiment takes the path of an experiment file, not {type(file).__name__}: write the settings to"
            " a YAML file, or call karat.run, karat.evaluate and karat.aggregate"
        )
    given: dict[str, Any] = dict(options)
    known = ExperimentOptions.__annotations__
    for name in given:
        if name not in known:
            raise TypeError(f"experiment() has no option {name!r}: {did_you_mean(name, known)}")
    store = given.pop("store", None)
    progress = listener(given.pop("progress", None))
    plan = read_experiment(
        file,
        store=None if isinstance(store, Store) or store is None else str(store),
        models=given.pop("models", None),
        params=given.pop("params", None),
        options={name: given.pop(name) for name in OPTIONS if name in given},
    )
    opened = store if isinstance(store, Store) else open_store(plan.store)
    return await carry_out_async(plan, opened, progress=progress, **given)


experiment = sync_twin(experiment_async)


async def carry_out_async(
    plan: Plan,
    store: Store,
    *,
    new: bool = False,
    retry_failed: bool = False,
    accept_code_change: bool = False,
    wait: bool = False,
    cache: str = "use",
    budget: float | None = None,
    batch: bool = False,
    progress: Listener | None = None,
    notify: Notify | None = None,
) -> Outcome:
    """Run, evaluate and aggregate a plan. `new` starts new runs, which the later stages then use."""
    again: dict[str, Any] = {"retry_failed": retry_failed, "wait": wait, "cache": cache, "progress": progress}
    again["batch"] = batch
    if budget is not None:
        again["budget"] = _budget(plan, budget)
    about: dict[str, Any] = {"labels": plan.labels, "description": plan.description}
    origin = {"experiment": plan.name} if plan.name else {}
    data = (
        store.datasets.get(plan.dataset)
        if isinstance(plan.dataset, str)
        else store.datasets.put(plan.dataset)
    )
    _refuse_missing_keys(plan, store, data)
    outcome = Outcome(dataset=data, runs=[])
    for number, planned in enumerate(plan.runs, 1):
        metadata: dict[str, Any] = {**origin, **({"model": planned.model} if planned.model else {})}
        if planned.matrix:
            metadata["matrix"] = planned.matrix
        options: dict[str, Any] = {**plan.options, **again, **about, "metadata": metadata, "new": new}
        if progress is not None and len(plan.runs) > 1:
            options["progress"] = _variant_listener(progress, number, len(plan.runs))
        made = await run_async(
            planned.task, data, store=store, accept_code_change=accept_code_change, **options
        )
        outcome.runs.append(made)
        outcome.models.append(planned.model)
        if notify is not None:
            notify(made)
        if planned.output_dir is not None:
            exported = export(made, planned, planned.output_dir)
            outcome.files += exported.files
            if notify is not None:
                notify(exported)
    if plan.evaluators:
        judging = {
            name: plan.options[name] for name in ("concurrency", "abort_on_error") if name in plan.options
        }
        outcome.evaluation = await evaluate_async(
            outcome.runs, plan.evaluators, store=store, metadata=origin, **judging, **again, **about
        )
        if notify is not None:
            notify(outcome.evaluation)
    if outcome.evaluation is not None:
        outcome.aggregation = await aggregate_async(
            outcome.evaluation,
            plan.aggregators or None,
            store=store,
            confidence=plan.confidence,
            metadata=origin,
            progress=progress,
            **about,
        )
    if outcome.evaluation is not None and len(outcome.runs) > 1:
        outcome.comparison = _compare_runs(outcome.evaluation, plan.confidence, _cluster(plan))
    if outcome.comparison is not None and outcome.aggregation is not None:
        from karat.analysis.summary import make_grid

        specs = outcome.evaluation.header.evaluators if outcome.evaluation is not None else []
        lower = {spec.key for spec in specs if not spec.higher_is_better}
        outcome.grid = make_grid(outcome.comparison, outcome.aggregation.estimates, lower)
    return outcome


carry_out = sync_twin(carry_out_async)


def _refuse_missing_keys(plan: Plan, store: Store, data: StoredDataset) -> None:
    """Refuse a plan that will ask a model whose key is not set, before the first call of another model is paid.

    A run that has to be computed is one that no finished run of its task, model and dataset can stand for. Of a prompt
    and of a judge it is known that they ask; a function or a graph may not.
    """
    prompts = [each for each in plan.runs if isinstance(each.task, PromptTask)]
    judges = [each for each in plan.evaluators if hasattr(getattr(each, "evaluator", None), "settings")]
    if not prompts and not judges:  # most plans: the modules below take longer to import than this
        return
    from karat.experiments.plan import refuse_missing_keys

    finished = {
        (run.header.dataset, run.header.task, run.header.metadata.get("model"))
        for run in store.runs.list()
        if run.header.finished is not None
    }
    new = [each for each in plan.runs if (data.id, each.task.name, each.model) not in finished]
    if new:
        asking = [each for each in prompts if each in new]
        refuse_missing_keys(msgspec.structs.replace(plan, runs=asking, evaluators=judges))


def _variant_listener(progress: Listener, number: int, count: int) -> Listener:
    """The progress listener of one run among several, with the number of that run."""

    def listen(of: Progress) -> None:
        of.variant, of.variants = number, count
        progress(of)

    return listen


def _cluster(plan: Plan) -> str | None:
    """The metadata field by which all aggregators that can do so cluster the examples; None without one."""
    found = set()
    for each in plan.aggregators:
        resolved = resolve_aggregator(each, plan.confidence)
        if "cluster" in parameters_of(aggregators.get(resolved.name)):
            found.add(resolved.params.get("cluster"))
    return found.pop() if len(found) == 1 else None


def _compare_runs(evaluation: Evaluation, confidence: float, cluster: str | None) -> Comparison | None:
    """Compare runs with the first one; None where no evaluator scores single outputs, or none applies to all runs."""
    keys = [spec.key for spec in evaluation.header.evaluators if spec.kind == "single"]
    if not keys:
        return None
    from karat.analysis.comparison import compare_runs

    try:
        return compare_runs(
            evaluation.store, [evaluation], metrics=keys, cluster=cluster, examples=3, confidence=confidence
        )
    except RequestError:  # no example that both were judged on; the estimates are still reported
        return None


def _budget(plan: Plan, dollars: float) -> Any:
    """A budget for all stages; raises if a model has no price."""
    from karat.models import Budget, get

    for planned in plan.runs:
        model = planned.task.model if isinstance(planned.task, PromptTask) else planned.model
        if model is not None and not get(model).priced:
            raise RequestError(
                f"{option('budget')} needs the price of {get(model).spec}, which is unknown: set its prices in"
                " models.yaml"
            )
    return Budget(dollars)


class Exported(msgspec.Struct, kw_only=True):
    """The files of a graph run, with a notice."""

    files: list[str]
    notice: str


def export(made: Any, planned: PlannedRun, folder: Path) -> Exported:
    """Write the files of a run of a graph to a folder.

    File names contain the run id, not a timestamp: a matrix has several runs, and repeating the command overwrites the
    same files.
    """
    from karat.graph import write_files

    written = write_files(made, planned.task, folder, run_name=made.id, with_time=False)  # type: ignore[arg-type]  # only graphs have a folder
    paths = [str(path) for path in written.paths()]
    failed = [f"{name} failed: {error}" for name, error in written.errors.items()]
    return Exported(files=paths, notice="; ".join([f"wrote {', '.join(paths)}", *failed, *written.notes]))
