"""Finding a task, and the parts that its configuration names.

A task is found as `tasks.eval.x.y`, `eval/x/y`, or the path of its folder or file: in the working folder, in its
`tasks` folder, then among the tasks shipped with karat. What a configuration names is code that will run: it is
searched in the task's folder, among karat's own parts and on the import path, and nowhere else.
"""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from karat.errors import FAILURES, RequestError, UnknownName, did_you_mean, failed_import
from karat.graph.sygra._imports import METRICS_THEIRS, SHIPPED, TABLE, own_name, own_package
from karat.graph.sygra._task_modules import TaskPackage, task_package
from karat.registry import load_object

FILE = "graph_config.yaml"
NAMES = (FILE, "graph_config.yml")
_GRAPH = re.compile(r"^graph_config\s*:", re.MULTILINE)


class TaskPlace:
    """The place of a task: its file, its folder, and the package of its modules."""

    def __init__(self, file: Path) -> None:
        self.file = file.resolve()
        self.folder = self.file.parent
        parts = self.folder.parts
        at = max((at for at, part in enumerate(parts) if part == "tasks"), default=None)
        self.root = Path(*parts[:at]) if at is not None else None
        """The folder that holds the `tasks` folder this task is in, if it is in one."""
        self.package = ".".join(parts[at:]) if at is not None else ""

    @property
    def name(self) -> str:
        """`eval/question_answering/simpleqa`, or the name of the folder."""
        return "/".join(self.package.split(".")[1:]) or self.folder.name

    @cached_property
    def modules(self) -> TaskPackage:
        """Its Python files, as they are when the first of them is asked for."""
        return task_package(self.root or self.folder, is_tree=self.root is not None)

    def load(self, name: str) -> Any:
        """The object that a configuration names."""
        ours = own_name(name)
        if ours is not None:
            return load_object(ours)
        file, colon, member = name.partition(":")
        if colon:
            inside = self.folder / file
            return self.modules.load(f"{inside if inside.is_file() else file}:{member}")
        return self._object_in_folder(name) or self.modules.load(name)

    def _object_in_folder(self, name: str) -> Any:
        """An object in a file of the task's folder, with a path relative to the folder or ending in it."""
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            raise RequestError(f"{name!r} is not a dotted path, nor written file.py:Name")
        if self.package and name.startswith(self.package + "."):
            return None  # an import like any other
        starts = [0, *(at + 1 for at, part in enumerate(parts) if part == self.folder.name)]
        for start in reversed(starts):
            for cut in range(len(parts) - 1, start, -1):
                file = self.folder.joinpath(*parts[start:cut]).with_suffix(".py")
                if file.is_file():
                    return self.modules.load(f"{file}:{'.'.join(parts[cut:])}")
        return None

    def load_module(self, name: str) -> Any:
        """The module that a name means, else the object."""
        parts = name.split(".")
        if not all(map(str.isidentifier, parts)):
            return self.load(name)
        starts = [0, *(at + 1 for at, part in enumerate(parts) if part == self.folder.name)]
        inside = bool(self.package) and name.startswith(self.package + ".")
        for start in () if inside else reversed(starts):
            file = self.folder.joinpath(*parts[start:]).with_suffix(".py")
            if start < len(parts) and file.is_file():
                return self.modules.load_file(file)
        try:
            return self.modules.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise failed_import(name, error) from error
            return self.load(name)
        except FAILURES as error:
            raise failed_import(name, error) from error

    def metrics(self) -> None:
        """Import the metrics of the task, so that their names are known.

        They are beside it, in the folders around it up to `tasks` itself, or in a tree like SyGra's, under its name
        or karat's.
        """
        from karat.graph.metrics._unit import BESIDE, registers_metrics

        for around in self._folders():
            for folder in (around, *(around / name for name in BESIDE)):
                for file in sorted(folder.glob("*.py")) if folder.is_dir() else ():
                    if not file.name.startswith(("_", "test_")) and registers_metrics(file):
                        self.modules.load_file(file)
        for root in dict.fromkeys((Path.cwd(), self.root or Path.cwd())):
            for package in METRICS_THEIRS:
                for name in (package, own_package(package)):
                    for file in sorted(root.joinpath(*name.split(".")).glob("*.py")):
                        if f"{package}.{file.stem}" not in TABLE and registers_metrics(file):
                            self.modules.load_file(file)

    def _folders(self) -> list[Path]:
        """The task's folder, and those around it that are in its `tasks` folder."""
        around = [self.folder, *self.folder.parents]
        return [
            f for f in around if self.root is not None and f.is_relative_to(self.root / "tasks")
        ] or around[:1]


def find_task(name: str) -> TaskPlace:
    """Return the task with a name."""
    file = _task_file(name)
    if file is not None:
        return TaskPlace(file)
    raise UnknownName(
        f"no task {name!r}: no folder of that name in the working folder, in tasks/, or among the shipped tasks has a"
        f" {FILE};"
        f" {did_you_mean(name.removeprefix('tasks.').replace('.', '/'), known_tasks())}"
    )


def names_graph(name: str) -> bool:
    """Whether a name or path leads to a graph task; any other YAML file is an experiment."""
    file = _task_file(name)
    if file is None or file.name in NAMES:
        return file is not None
    return _GRAPH.search(file.read_text(encoding="utf-8", errors="replace")) is not None


def _task_file(name: str) -> Path | None:
    """The YAML file that a name or path leads to; None where there is none."""
    forms = [Path(name).expanduser()]
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        forms.append(Path(*[part for part in name.split(".") if part]))
    bases = [Path.cwd(), Path.cwd() / "tasks", SHIPPED, SHIPPED / "tasks"]
    for path in (base / form for base in bases for form in forms):  # an absolute path hides its base
        if os.path.isfile(path) and path.suffix in (".yaml", ".yml"):  # False too for a name that is too long
            return path
        for file in NAMES:
            if os.path.isfile(path / file):
                return path / file
    return None


def is_shipped(folder: Path) -> bool:
    """Whether a folder is part of karat itself."""
    return folder.is_relative_to(SHIPPED)


def known_tasks() -> list[str]:
    """The names of the tasks in `tasks/` of the working folder, and of those shipped with karat."""
    found: dict[str, None] = {}
    for base in (Path.cwd() / "tasks", SHIPPED / "tasks"):
        for file in sorted(base.glob("**/" + FILE)) if base.is_dir() else ():
            found[file.parent.relative_to(base).as_posix()] = None
    return list(found)
