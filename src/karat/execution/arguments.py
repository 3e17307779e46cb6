"""Arguments of the stages: options shared by `run` and `evaluate`, handles or ids, one thing or a list."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar

import msgspec

from karat.errors import RequestError, UnknownName, nearest, option, with_article, wording
from karat.execution.progress import Listener, listener
from karat.keys import Decision
from karat.models._recording import CacheMode, cache_mode
from karat.records import Example
from karat.store import Store, open_store
from karat.store.handles import Evaluation, Run, StoredDataset
from karat.store.repositories import Repository
from karat.store.run_labels import check_labels

if TYPE_CHECKING:
    from karat.datasets import Dataset
    from karat.evaluators import _base as evaluators
    from karat.models._prices import Budget
    from karat.tasks import Task

DEFAULT_CONCURRENCY = 100


StoreLike: TypeAlias = str | PathLike[str] | Store
TaskLike: TypeAlias = "Task | str | Callable[..., Any]"
DatasetLike: TypeAlias = "Dataset | StoredDataset | str | Path | Iterable[Example | Mapping[str, Any]]"
RunLike: TypeAlias = Run | str
EvaluationLike: TypeAlias = Evaluation | str
EvaluatorLike: TypeAlias = "evaluators.EvaluatorLike"


class StageOptions(TypedDict, total=False):
    """The less common keyword arguments that `run` and `evaluate` share."""

    timeout: float | None
    """Work: seconds allowed for one item."""
    abort_on_error: bool
    """Work: stop at the first failed item."""
    engine: str
    """Work: where it happens, `local` by default."""
    new: bool
    """Earlier results: make another replicate instead of continuing or returning the last one."""
    retry_failed: bool
    """Earlier results: compute failed items again."""
    wait: bool
    """Earlier results: wait for another process that works on the same thing."""
    cache: CacheMode
    """Model calls: `use` cached replies, `refresh` them, or `off`."""
    budget: float | Budget | None
    """Model calls: stop before they cost more than this many dollars."""
    batch: bool
    """Model calls: collect them and send them by the provider's batch API, at its lower price."""
    labels: Sequence[str]
    """Description: short names to find it by."""
    metadata: Mapping[str, Any] | None
    """Description: anything else to record with it."""
    description: str
    """Description: a sentence for people."""


class RunOptions(StageOptions, total=False):
    """The less common keyword arguments of `run`."""

    retries: int
    """Work: how often to call the task again at once after an exception."""
    accept_code_change: bool
    """Earlier results: continue an unfinished run although the code changed; recorded with each output."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Every option of a stage, checked."""

    concurrency: int = DEFAULT_CONCURRENCY
    timeout: float | None = None
    retries: int = 0
    abort_on_error: bool = False
    engine: str = "local"
    listen: Listener | None = None
    new: bool = False
    retry_failed: bool = False
    accept_code_change: bool = False
    wait: bool = False
    cache: CacheMode = "use"
    budget: Budget | None = None
    batch: bool = False
    labels: list[str] = []
    metadata: dict[str, Any] = {}
    description: str = ""


BATCH_CONCURRENCY = 10_000
"""The default number of items in flight when calls are batched: this many wait for one batch."""

LEAST = {"concurrency": 1, "attempts": 1, "limit": 1, "offset": 0, "timeout": 0, "retries": 0}


MOST = {"concurrency": 100_000, "attempts": 100_000, "retries": 100_000}
"""More are a slip: they would be worked on without end, or take all memory before the first item."""


def check_numbers(**numbers: float | None) -> None:
    """Refuse a number below the least or above the most that makes sense."""
    for name, value in numbers.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RequestError(f"{name} is {value!r:.60}: it must be a number of at least {LEAST[name]}")
        if name != "timeout" and not isinstance(value, int):
            raise RequestError(f"{name} is {value}: it must be an integer of at least {LEAST[name]}")
        if value < LEAST[name]:
            raise RequestError(f"{name} is {value}: it must be at least {LEAST[name]}")
        if name in MOST and value > MOST[name]:
            raise RequestError(f"{name} is {value}: it must be at most {MOST[name]:,}")


def read_options(
    function: Callable[..., Any],
    known: type[StageOptions],
    given: StageOptions,
    *,
    concurrency: int,
    progress: bool | Listener | None,
) -> Options:
    """The options of a stage from the keyword arguments of a call; `function` is the async form of what was called."""
    names = known.__annotations__.keys() | StageOptions.__annotations__.keys()
    for name in given:
        if name not in names:
            close = nearest(name, [*inspect.signature(function).parameters, *names], 1)
            hint = f": did you mean {close[0]!r}?" if close else ""
            called = function.__name__.removesuffix("_async")
            raise TypeError(f"{called}() got an unexpected keyword argument {name!r}{hint}")
    values: dict[str, Any] = dict(given)
    check_numbers(concurrency=concurrency, timeout=values.get("timeout"), retries=values.get("retries", 0))
    budget = values.get("budget")
    if budget is not None:
        from karat.models._prices import as_budget

        budget = as_budget(budget)
    check_labels(values.get("labels", ()))
    if not isinstance(values.get("metadata") or {}, Mapping):
        raise RequestError(
            f"metadata is {values['metadata']!r:.60}: it must be a mapping, such as {{'by': 'ana'}}"
        )
    described = {"labels": list(values.get("labels", ())), "metadata": dict(values.get("metadata") or {})}
    cache = values.get("cache", "use")
    return Options(
        **{
            **values,
            **described,
            "cache": "use" if cache == "use" else cache_mode(cache),
            "budget": budget,
            "concurrency": BATCH_CONCURRENCY
            if values.get("batch") and concurrency == DEFAULT_CONCURRENCY
            else concurrency,
            "listen": listener(progress),
        }
    )


def as_list(given: object) -> list[Any]:
    """A list of what was given, which may be one thing, several, or none."""
    if given is None:
        return []
    if isinstance(given, (list, tuple)) and not hasattr(given, "_fields"):  # a NamedTuple is one thing
        return list(given)
    return [given]


def store_of(store: StoreLike | None, *groups: Sequence[Any]) -> Store:
    """The store that is named, else the store of the first handle given."""
    if isinstance(store, Store):
        return store
    for group in groups:
        for each in group:
            if store is None and isinstance(getattr(each, "store", None), Store):
                return each.store  # type: ignore[no-any-return]  # a handle's store is one
    return open_store(store)


WRONG_KIND = {
    ("run", "evaluation"): "that is a run: evaluate it first",
    ("evaluation", "run"): "that is an evaluation: give its runs, or extend it with {amend}",
    ("aggregation", "run"): "that is an aggregation: give runs",
    ("aggregation", "evaluation"): "that is an aggregation: give its evaluations",
    ("dataset", "run"): "that is a dataset: run a task over it first",
    ("dataset", "evaluation"): "that is a dataset: run a task over it and evaluate the run first",
}


def _wrong_kind(kind: str, wanted: str) -> str:
    """The fix for an object of one kind where another is wanted; empty for kinds that are rarely confused."""
    return WRONG_KIND.get((kind, wanted), "").format(amend=option("amend"))


H = TypeVar("H", Run, Evaluation)


def handle_of(repository: Repository[Any, H], given: H | str) -> H:
    """The run or evaluation with an id, or of a handle. An id of another kind is an error that names the kind."""
    from karat.datasets.dataset import Dataset

    id = given if isinstance(given, str) else getattr(given, "id", None)
    wanted = repository.kind
    kind = "dataset" if isinstance(given, (Dataset, StoredDataset)) else getattr(given, "kind", None)
    if not isinstance(id, str) or (kind, wanted) in WRONG_KIND:
        problem = _wrong_kind(str(kind), wanted) or f"{type(given).__name__} is not {with_article(wanted)}"
        if inspect.iscoroutine(given):
            given.close()
            problem = f"that is a call of {given.__name__}() without await: await it, and give its result"
        raise RequestError(f"{id}: {problem}" if isinstance(id, str) else problem)
    try:
        return repository.get(id)
    except UnknownName as error:
        if not isinstance(given, str) and given.store.url != repository.store.url:
            raise RequestError(
                f"{id} is in {given.store.url}, not in {repository.store.url}: leave out store=, or copy it there"
                " with store.copy"
            ) from error
        if isinstance(given, str):
            for row in repository.store.backend.headers(id_prefix=id):
                if row.id == id and (row.kind, wanted) in WRONG_KIND:
                    raise RequestError(f"{id}: {_wrong_kind(row.kind, wanted)}") from None
        raise


def dataset_of(given: object, store: Store) -> Any:
    """A dataset from a dataset, the name of a stored one, the path of a file, or examples."""
    from karat.datasets.dataset import Dataset

    if isinstance(given, (Dataset, StoredDataset)):
        return given
    if isinstance(given, Path):
        return Dataset.from_file(given)
    if isinstance(given, str):
        return _named_dataset(given, store)
    if isinstance(given, Iterable) and not isinstance(given, (Mapping, bytes)):
        return Dataset.from_examples(list(given))
    raise RequestError(
        f"{type(given).__name__} is not a dataset: give a file, a list of examples,"
        " Dataset.from_file(…) or Dataset.from_examples(…)"
    )


def _named_dataset(text: str, store: Store) -> Any:
    """A file with a known extension, else a stored dataset, else any file."""
    from karat.datasets.dataset import Dataset
    from karat.datasets.readers.rows import FORMATS

    path = Path(text)
    known = Path(text.removesuffix(".gz")).suffix.lower() in FORMATS
    if not (known and path.is_file()):
        stored = store.datasets.by_name(text)
        if stored is not None:
            return stored
    if known or path.is_file() or "/" in text:
        return Dataset.from_file(path)
    return store.datasets.get(text)


def notice_of(
    repository: Repository[Any, H], handle: H, decision: Decision, options: Options, remark: str = ""
) -> str:
    """The sentence about an earlier run or evaluation and the task's remark; adds its labels, metadata, description."""
    why = decision.why
    if decision.action == "return" and options.cache == "refresh":
        failed = handle.counts.failed
        remedy = (
            f"{option('retry_failed', True)} for the {failed:,} that failed, {option('new', True)} for another"
            if failed
            else f"{option('new', True)} for another"
        )
        refresh = wording("--refresh", "cache='refresh'")
        why = f"{handle.kind} {handle.id} is already finished, so {refresh} repeats no call: add {remedy}"
    refused = ""
    if decision.action != "create":
        refused = repository.describe(
            handle,
            labels=options.labels,
            metadata=options.metadata,
            description=options.description,
            save=decision.action == "return",
        )
    return "; ".join(each for each in (why, refused, remark) if each)
