"""The running task, for SyGra functions that depend on it.

Several tasks may run in one process at the same time. The task is identified by the file of the calling code.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from karat.documents import read_document
from karat.errors import RequestError

MOST_FOLDERS = 8
"""How far above a Python file its task's folder is looked for."""


def calling_task() -> Any:
    """The place of the task whose code is asking; None where it is not a task's."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        found = _task_of(frame.f_code.co_filename)
        if found is not None:
            return found
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=4096)
def _task_of(file: str) -> Any:
    from karat.graph._lookup import NAMES, TaskPlace

    for folder in Path(file).parents[:MOST_FOLDERS]:
        for name in NAMES:
            if (folder / name).is_file():
                return TaskPlace(folder / name)
        if folder.name in ("tasks", "site-packages"):
            break
    return None


def current_task() -> str | None:
    """The name of the task that runs, as its files are imported by, or its folder."""
    place = calling_task()
    return None if place is None else place.package or str(place.folder)


def get_graph_properties(task_name: str | None = None) -> dict[str, Any]:
    """`graph_properties` of a task's file: the running task, unless another is named."""
    from karat.graph._lookup import find_task

    place = calling_task()
    if task_name and (place is None or task_name not in (place.package, str(place.folder))):
        try:
            place = find_task(task_name)
        except RequestError:
            return {}
    return {} if place is None else dict(_properties(place.file, place.file.stat().st_mtime_ns))


@functools.lru_cache(maxsize=64)
def _properties(file: Path, changed: int) -> dict[str, Any]:
    value = read_document(file).value
    graph = value.get("graph_config") if isinstance(value, dict) else None
    found = graph.get("graph_properties") if isinstance(graph, dict) else None
    return found if isinstance(found, dict) else {}


def get_graph_property(key: str, default_value: object, task_name: str | None = None) -> Any:
    """One graph property, or its default."""
    return get_graph_properties(task_name).get(key, default_value)


def get_file_in_task_dir(task: str, file: str) -> str:
    """The path of a file in a task's folder."""
    from karat.graph._lookup import find_task

    place = calling_task()
    if place is None or task not in (place.package, str(place.folder)):
        place = find_task(task)
    return str(place.folder / file)


def __getattr__(name: str) -> Any:
    if name == "CURRENT_TASK":  # asked for anew each time, as another task may be asking
        return current_task()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
