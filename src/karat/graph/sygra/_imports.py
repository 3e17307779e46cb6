"""An import hook for the Python files of graph tasks, active once a graph task is loaded.

It does two things. It makes `tasks` a package over all folders of that name: in the task's tree, the working folder,
the import path and karat's shipped tasks. And it builds the modules in the table of `_names.py` that are not installed
from karat's own parts. A file in the task's own tree with one of these names adds its own objects to them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from karat.graph.sygra._names import TABLE, stands_in
from karat.graph.sygra._task_modules import load_task_file

_PACKAGES = {name.partition(".")[0] for name in TABLE}
SHIPPED = Path(__file__).resolve().parents[2] / "shipped"


class _TasksFinder(importlib.abc.MetaPathFinder):
    """Finds the package `tasks` itself; what is inside it is found in its folders as usual."""

    root: Path | None = None
    """The folder that holds the `tasks` folder of the task loaded last."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in TABLE and fullname.startswith("tasks."):
            return _table.find_spec(fullname, path, target)
        if fullname != "tasks":
            return None
        roots = [self.root, Path.cwd(), *(Path(entry or ".") for entry in sys.path), SHIPPED]
        folders = [str(root.resolve() / "tasks") for root in roots if root is not None]
        spec = importlib.machinery.ModuleSpec("tasks", None, is_package=True)
        spec.submodule_search_locations = [f for f in dict.fromkeys(folders) if Path(f).is_dir()]
        return spec


class TableFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the table, and the packages they are in, where nothing else does.

    With `renamed` it finds the modules under `sygra.core` with that package instead of `sygra`.
    """

    def __init__(self, renamed: str = "") -> None:
        self._renamed = renamed

    def _name(self, fullname: str) -> str | None:
        """The name that the table has for a module; None for a module that is not this finder's."""
        if not self._renamed:
            return fullname if stands_in(fullname) else None
        if not fullname.startswith(f"{self._renamed}.core."):
            return None
        return "sygra" + fullname.removeprefix(self._renamed)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        first = fullname.partition(".")[0]
        if first != self._renamed and first not in _PACKAGES:
            return None
        theirs = self._name(fullname)
        if theirs is None:
            return None
        # the folders of `tasks` are found as usual; of the other packages only what the table lacks is
        inside = first != "tasks" and any(name.startswith(theirs + ".") for name in TABLE)
        if not inside and theirs not in TABLE:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin="karat", is_package=inside)
        if (
            inside and not self._renamed
        ):  # what the table lacks may be in a clone of SyGra, or beside the task
            spec.submodule_search_locations = _folders_of(fullname)
        return spec

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Names of karat's own parts, under the names that tasks written for SyGra import."
        asked_anew: dict[str, tuple[ModuleType, str]] = {}
        for entry, ours in TABLE.get(self._name(module.__name__) or "", {}).items():
            theirs, _, other = entry.partition("=")
            part = importlib.import_module(ours)
            if (name := other or theirs) in vars(part):
                setattr(module, theirs, getattr(part, name))
            else:  # the part decides when it is asked
                asked_anew[theirs] = (part, name)
        file = None if self._renamed else _file_of(module.__name__)
        if file is not None or asked_anew:
            module.__getattr__ = functools.partial(_otherwise, asked_anew, file)  # type: ignore[method-assign]  # PEP 562


def _folders_of(name: str) -> list[str]:
    """The folders of the working folder and of the task's tree that have a package's name."""
    folders = [root.joinpath(*name.split(".")) for root in (Path.cwd(), _tasks.root) if root is not None]
    return [str(folder) for folder in dict.fromkeys(folders) if folder.is_dir()]


def _file_of(name: str) -> Path | None:
    """The file that the task's own tree has under a name of the table."""
    package, _, last = name.rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", ()) if package else ()
    return next((file for folder in folders if (file := Path(folder) / f"{last}.py").is_file()), None)


def _otherwise(asked_anew: dict[str, tuple[ModuleType, str]], file: Path | None, name: str) -> Any:
    """What changes from one asking to the next, and what the file has beside the names that are karat's."""
    if name in asked_anew:
        part, ours = asked_anew[name]
        return getattr(part, ours)
    if file is None or name.startswith("__"):
        raise AttributeError(name)
    try:
        return getattr(load_task_file(file), name)
    except AttributeError:
        raise AttributeError(f"{file} has no {name!r}") from None


_tasks = _TasksFinder()
_table = TableFinder()


def task_imports(root: Path | None) -> None:
    """Makes the Python files of a task importable; `root` is the folder that holds its `tasks` folder.

    Modules of another root's `tasks` are forgotten, so that two tasks of the same name do not share code.
    """
    for module in TABLE:
        stands_in(module)  # decided before the table can answer for itself
    if _tasks not in sys.meta_path:
        sys.meta_path.insert(0, _tasks)
        sys.meta_path.insert(1, _table)  # before a clone of SyGra in the working folder is found
    importlib.invalidate_caches()
    if root is not None and root != _tasks.root:
        _tasks.root = root
        for name in [name for name in sys.modules if name == "tasks" or name.startswith("tasks.")]:
            del sys.modules[name]
