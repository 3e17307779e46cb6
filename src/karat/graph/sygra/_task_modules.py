"""A task's own modules, kept apart from modules of the same name in other tasks.

Two tasks may have files of the same name, and Python has one module per name. So while a task is loaded, its modules
are in `sys.modules`, and its files are executed with their own `__import__`, which finds them later: an import inside
a function runs when the function is called, and another task may have been loaded since.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from karat.registry import load_file

_swapping = threading.RLock()
"""Held while the modules of one task stand in `sys.modules` in the place of another's."""

Stamp = tuple[int, int]
"""When a file was changed last, and how long it was."""


@contextmanager
def current_modules(folder: Path) -> Iterator[None]:
    """Put a task's modules in place while it is loaded, as its files are now.

    If a file changed since its module was imported, all modules of the folder are dropped, so that none keeps parts of
    the old one: the code that runs is the code that a run's fingerprint speaks of.
    """
    with _swapping:
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        own = _folders.setdefault(folder, OwnModules(folder))
        own.refresh()
        with own.in_place():
            yield


class OwnModules:
    """The modules of one folder, by the names that its files import them by."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set()
        """What its files and the folders in it are called."""
        self.modules: dict[str, ModuleType] = {}
        self.builtins = {**vars(builtins), "__import__": self._import}
        self._stamps: dict[Path, tuple[str, Stamp]] = {}
        """Its files that were imported: their modules' names, and how they were then."""

    def refresh(self) -> None:
        """Looks at the folder again; those called as the standard library's are not its own."""
        files = [*self.folder.glob("*.py"), *(file.parent for file in self.folder.glob("*/*.py"))]
        self.names = {entry.stem for entry in files} - {*sys.stdlib_module_names, "karat"}
        if self.folder.name == "tasks":
            self.names.add("tasks")
        if any(_stamp(file) != stamp for file, (_, stamp) in self._stamps.items()):
            self._forget()

    def _forget(self) -> None:
        self.modules.clear()
        for file, (name, _) in self._stamps.items():
            if _file(sys.modules.get(name)) == file:
                del sys.modules[name]
            # Python compares a compiled file with its source by size and whole seconds only
            with suppress(OSError):
                Path(importlib.util.cache_from_source(str(file))).unlink()
        self._stamps.clear()
        importlib.invalidate_caches()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Meanwhile a name of the folder means its module; afterwards those that had the name before have it again."""
        with _swapping:
            aside = {name: each for name, each in sys.modules.copy().items() if self._is_others(name, each)}
            for name in aside:
                del sys.modules[name]
            sys.modules.update(self.modules)
            if str(self.folder) in sys.path:
                sys.path.remove(str(self.folder))
                sys.path.insert(0, str(self.folder))  # else it comes there with the first of its files
            try:
                yield
            finally:
                self._keep()
                sys.modules.update(aside)

    def _is_others(self, name: str, module: ModuleType) -> bool:
        """Whether a module has a name of the folder, and is a plain file of another, or a folder of such files."""
        if name.partition(".")[0] not in self.names or self.modules.get(name) is module:
            return False
        file = _file(module)
        if file.suffix == ".py":
            return "site-packages" not in file.parts and not file.is_relative_to(self.folder)
        try:
            paths = list(getattr(module, "__path__", ()))
        except KeyError:  # a folder without an init file asks its parent, which another task has put aside
            return True
        return bool(paths) and not any("site-packages" in Path(path).parts for path in paths)

    def _keep(self) -> None:
        """Remember the task's modules that are in `sys.modules`."""
        inside = f"{self.folder}{os.sep}"
        for name, module in sys.modules.copy().items():
            named = name.partition(".")[0] in self.names
            text = getattr(module, "__file__", None)
            if isinstance(text, str) and text.startswith(inside):
                file = Path(text)
                if file.suffix != ".py" or "site-packages" in file.parts:
                    continue
                if file not in self._stamps:
                    self._stamps[file] = (name, _stamp(file))
            elif not named or (text is not None and not name.startswith("tasks.")):
                continue
            if named:
                self.modules[name] = module

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """What `__import__` is for the files of the folder."""
        full, wanted = name, fromlist or ()
        if level and (package := (globals or {}).get("__package__")):
            full = importlib.util.resolve_name("." * level + name, package)
        elif (
            level
            and self.folder in (file := Path((globals or {}).get("__file__") or "")).parents[level - 1 :]
        ):
            return self._beside(file.parents[level - 1], name, wanted)
        first = full.partition(".")[0]
        if first not in self.names:
            return builtins.__import__(name, globals, locals, wanted, level)
        found = self.modules.get(full)
        if found is not None and all(hasattr(found, each) for each in wanted):
            return found if wanted else self.modules[first]
        with self.in_place():
            return builtins.__import__(name, globals, locals, wanted, level)

    def _beside(self, folder: Path, name: str, wanted: Sequence[str]) -> ModuleType:
        """What a relative import means in a file that is executed by its path: its folder is the package."""
        if not name:  # from . import a, b
            found = ModuleType(folder.name)
            vars(found).update({each: self._beside(folder, each, ("*",)) for each in wanted})
            return found
        steps = [*folder.relative_to(self.folder).parts, *name.split(".")]
        if self.folder.name == "tasks":
            steps.insert(0, "tasks")
        if steps[0] in self.names:
            return self._import(".".join(steps), fromlist=wanted)
        file = folder.joinpath(*name.split(".")).with_suffix(".py")  # called as one of the standard library
        if not file.is_file():
            raise ModuleNotFoundError(f"there is no {file}", name=name)
        return load_task_file(file)


_folders: dict[Path, OwnModules] = {}


class TaskLoader(SourceFileLoader):
    """Executes a file; one of a task with its task's `__import__`."""

    def exec_module(self, module: ModuleType) -> None:
        around = _around(self.path)
        if around is not None:
            module.__dict__["__builtins__"] = around.builtins
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the files of tasks where Python finds them, to be executed as those of tasks."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first = fullname.partition(".")[0]
        if not any(first in own.names for own in list(_folders.values())):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or _around(spec.loader.path) is None:
            return None
        spec.loader = TaskLoader(fullname, spec.loader.path)
        return spec


_finder = _Finder()


def load_task_file(path: Path) -> ModuleType:
    """Imports a file of a task by its path."""
    return load_file(path, TaskLoader)


def _around(path: str) -> OwnModules | None:
    """The modules of the task that a file belongs to."""
    file = Path(path)
    if "site-packages" in file.parts:
        return None
    return next((_folders[folder] for folder in file.parents if folder in _folders), None)


def _file(module: ModuleType | None) -> Path:
    return Path(getattr(module, "__file__", None) or "")


def _stamp(file: Path) -> Stamp:
    try:
        status = file.stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)
