"""A graph task in an experiment: how it is named, and the runs that it comes to."""

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
    """The graph that a task entry names, by a mapping or by a text alone; None where it names something else."""
    if isinstance(entry, GraphEntry):
        return entry
    if not isinstance(entry, str) or ":" in entry:
        return None
    from karat.graph import names_graph

    return GraphEntry(graph=entry) if names_graph(_found(entry, folder)) else None


def says_graph(written: Any, folder: Path) -> bool:
    """Whether what stands under `task:` is a graph, which brings its own data."""
    if isinstance(written, Mapping):
        return "graph" in written
    return graph_of(written, folder) is not None


@contextmanager
def in_file_of(graph: str) -> Iterator[None]:
    """Says of mistakes found in the graph's own file that they are there."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError([f"{graph}, {problem}" for problem in error.problems]) from error


def graph_runs(
    entry: GraphEntry, run_args: Mapping[str, Any], models: list[str], folder: Path
) -> list[PlannedRun]:
    """A run of the graph for each model, which then stands in for all that its file names."""
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
    """The files of a run of a graph, and what is to be said of them."""

    files: list[str]
    notice: str


def export(made: Any, planned: PlannedRun) -> Exported | None:
    """Writes the files of a run where the experiment asks for them.

    They are named by the run, not by the time: a matrix has several runs, and the same command, which returns them,
    writes the same files again.
    """
    if planned.output_dir is None:
        return None
    from karat.graph import write_files

    written = write_files(made, planned.task, planned.output_dir, run_name=made.id, with_time=False)  # type: ignore[arg-type]  # only graphs have a folder
    paths = [str(path) for path in written.paths()]
    failed = [f"{name} failed: {error}" for name, error in written.errors.items()]
    return Exported(files=paths, notice="; ".join([f"wrote {', '.join(paths)}", *failed, *written.notes]))


def own_metrics(task: Any) -> tuple[list[Any], list[Any]]:
    """What judges the outputs of a graph where an experiment names nothing: its unit metrics and its aggregators."""
    from karat.graph import stored_metrics

    return stored_metrics(task)


def _found(name: str, folder: Path) -> str:
    """The path of a task beside the experiment, else the name, which is looked for as everywhere."""
    beside = folder / Path(name).expanduser()
    return str(beside) if beside.exists() else name
