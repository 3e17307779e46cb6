"""What `karat run X` was given: an experiment file, a graph task, or a function."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NamedTuple

from karat.errors import RequestError, UnknownName, nearest

YAML = (".yaml", ".yml")
_GRAPH = re.compile(r"^graph_config\s*:", re.MULTILINE)


class Target(NamedTuple):
    """What there is to run."""

    kind: Literal["experiment", "graph", "function"]
    name: str
    """The file of an experiment; the name or path of a graph task; `file.py:function` or a dotted path."""


def recognise(text: str) -> Target:
    """Decides by the look of it: a graph task, an experiment's file or folder, `file.py:function`, a dotted path."""
    from karat.experiments.plan import refuse_missing

    path = Path(text)
    if _is_graph(text):
        return Target("graph", text)
    if path.is_dir():
        inside = path / "experiment.yaml"
        if inside.is_file():
            return Target("experiment", str(inside))
        raise RequestError(
            f"{text} is a folder without an experiment.yaml or a graph_config.yaml: name a file in it"
        )
    if path.suffix in YAML:
        refuse_missing(path)
        return Target("experiment", text)
    file, colon, function = text.partition(":")
    if file.endswith(".py"):
        refuse_missing(Path(file))
        if not colon or not function:
            raise RequestError(f"{file} has functions: say which, as {file}:FUNCTION")
        return Target("function", text)
    if "." in text and all(word.isidentifier() for word in text.split(".")):
        return Target("function", text)
    raise RequestError(
        f"{text!r} cannot be run: give an experiment (experiment.yaml), a graph task (eval/x/y), file.py:function"
        f" or package.module.function{_near_task(text)}"
    )


def _is_graph(text: str) -> bool:
    """Whether a name or path leads to a graph task; any other YAML file is an experiment."""
    from karat.tasks.graph.lookup import NAMES, find_task

    try:
        file = find_task(text).file
    except UnknownName:
        return False
    if file.name in NAMES:
        return True
    return _GRAPH.search(file.read_text(encoding="utf-8", errors="replace")) is not None


def _near_task(text: str) -> str:
    from karat.tasks.graph.lookup import known_tasks

    close = nearest(text.removeprefix("tasks/"), known_tasks(), 1)
    return f"; did you mean the task {close[0]}?" if close else ""
