"""Graph tasks in experiments: their names and their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from karat.errors import ConfigError
from karat.experiments.plan import PlannedRun
from karat.experiments.schema import GraphEntry


def graph_of(entry: Any, folder: Path) -> GraphEntry | None:
    """The graph of a task entry (a mapping or a string), or None."""
    if isinstance(entry, GraphEntry):
        return entry
    if not isinstance(entry, str) or ":" in entry:
        return None
    from karat.graph import names_graph

    return GraphEntry(graph=entry) if names_graph(_found(entry, folder)) else None


def says_graph(written: Any, folder: Path) -> bool:
    """Whether `task:` is a graph, which has its own data."""
    if isinstance(written, Mapping):
        return "graph" in written
    return graph_of(written, folder) is not None


@contextmanager
def in_file_of(graph: str) -> Iterator[None]:
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
        with in_file_of(entry.graph):
            task = load_task(
                _found(entry.graph, folder), model=model, run_args={**entry.run_args, **run_args}
            )
        task.name = entry.name or task.name
        output_dir = folder / Path(entry.output_dir).expanduser() if entry.output_dir else None
        runs.append(PlannedRun(task=task, model=model, output_dir=output_dir))
    return runs


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


def own_metrics(task: Any) -> tuple[list[Any], list[Any]]:
    """The default evaluators and aggregators of a graph: its unit metrics and aggregators."""
    from karat.graph import stored_metrics

    return stored_metrics(task)


def _found(name: str, folder: Path) -> str:
    """The path of a task next to the experiment file, else the name."""
    beside = folder / Path(name).expanduser()
    return str(beside) if beside.exists() else name
