"""What `karat run X` was given: an experiment file, a graph task, or a function."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal, NamedTuple

from karat.errors import RequestError, UnknownName, nearest

YAML = (".yaml", ".yml")


class Target(NamedTuple):
    """A thing to run."""

    kind: Literal["experiment", "graph", "function"]
    name: str
    """The file of an experiment; the name or path of a graph task; `file.py:function` or a dotted path."""


def recognise(text: str) -> Target:
    """Classify X: a graph task, an experiment file or folder, `file.py:function` or a dotted path."""
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
                names[each.name] = each
                names.setdefault(each.stem, each)
    except OSError:
        return None
    close = nearest(Path(file).name, names, 1)
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
