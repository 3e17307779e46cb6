"""A task's own modules: the files of a folder are the modules of a private package.

Two tasks may have files of the same name, and Python has one module per name. So a file `wording.py` of a task is the
module `karat_task_1.wording`, and the files of the task are executed with an `__import__` for which `wording` means
that module. What a module of this name is elsewhere in the program is not touched.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import itertools
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from karat.errors import FAILURES, failed_import
from karat.graph.sygra._imports import (
    PACKAGES,
    TABLE,
    TableFinder,
    own_package,
    task_imports,
    unless_installed,
    without_karat,
)
from karat.registry import PRIVATE, load_file, load_object


class TaskPackage(Loader):
    """The private package of a task's folder, or of the folder that holds the `tasks` folder of a tree of tasks."""

    def __init__(self, folder: Path, is_tree: bool) -> None:
        self.folder, self.is_tree = folder, is_tree
        self.name = f"{PRIVATE}{next(_numbers)}"
        self.names: set[str] = set()
        """What the names begin with by which its files import its modules."""
        self.builtins = {**vars(builtins), "__import__": self._import}
        self.loader = functools.partial(TaskLoader, self)
        self.table = TableFinder(self._in_table, folder, self.load_file)
        self.places = {self.name: folder}
        """Where modules are that are not found by their names: the package itself, and names with dots."""

    def look(self) -> None:
        """Look at the folder again. Its files called as modules of the standard library are not its own."""
        own = set()
        if not self.is_tree:
            own = {place.stem for place in self.folder.glob("*.py")}
            own |= {file.parent.name for file in self.folder.glob("*/*.py")}
        packages = {name for name in PACKAGES if (self.folder / name).is_dir() and unless_installed(name)}
        self.names = (own | packages) - {*sys.stdlib_module_names, "karat"}
        if (self.folder / "karat" / "core" / "eval").is_dir():  # a tree of metrics under karat's name
            self.names.add(own_package("sygra.core"))

    def is_current(self) -> bool:
        """Whether the files that were imported are as they were then."""
        modules = [each for name, each in sys.modules.copy().items() if name.startswith(f"{self.name}.")]
        loaders = [each.__loader__ for each in modules if isinstance(each.__loader__, TaskLoader)]
        return all(loader.is_current() for loader in loaders)

    def full_name(self, name: str) -> str:
        """The name of the module that a name means in the files of the folder."""
        steps = name.split(".")
        is_own = steps[0] in self.names or ".".join(steps[:2]) in self.names
        return f"{self.name}.{name}" if is_own else name

    def _in_table(self, name: str) -> str | None:
        public = name.removeprefix(f"{self.name}.")
        return without_karat(public) or unless_installed(public)

    def exec_module(self, module: ModuleType) -> None:
        """A package without code."""

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """Replace `importlib.import_module` for the files of the folder."""
        if name.startswith("."):
            return importlib.import_module(name, package)
        return self._import(name, fromlist=("__name__",))

    def load(self, path: str) -> Any:
        """Replace `karat.registry.load_object` for the files of the folder."""
        return load_object(path, self.load_file, self.import_module)

    def load_file(self, path: str | Path) -> ModuleType:
        """Import a file by its path."""
        file = Path(path).expanduser().resolve()
        if not file.is_file() or not file.is_relative_to(self.folder):
            return load_file(path)
        name, place = self.name, self.folder
        for part in file.relative_to(self.folder).with_suffix("").parts:
            name, place = f"{name}.{part.replace('.', '_')}", place / part
            self.places[name] = place
        if self._in_table(name) in TABLE:
            name += "_"
        self.places[name] = file
        try:
            return importlib.import_module(name)
        except FAILURES as error:
            raise failed_import(path, error) from error

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Replace `__import__` for the files of the folder."""
        full = name if level else self.full_name(name)
        try:
            found = builtins.__import__(full, globals, locals, fromlist, level)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(f"{self.name}."):
                raise
            public = str(error.name).removeprefix(f"{self.name}.")
            file = self.folder.joinpath(*public.split("."))
            raise ModuleNotFoundError(f"there is no {file}.py", name=public) from None
        if full != name and not fromlist:
            return sys.modules[f"{self.name}.{name.partition('.')[0]}"]
        if found is importlib:
            found = ModuleType(name)
            vars(found).update(vars(importlib), import_module=self.import_module)
        return found


class TaskLoader(SourceFileLoader):
    """Executes a file of a task with the task's own `__import__`."""

    def __init__(self, own: TaskPackage, name: str, path: str) -> None:
        super().__init__(name, path)
        self.full_name = own.full_name
        self._builtins = own.builtins
        self._source = b""

    def get_code(self, fullname: str) -> CodeType:
        # never from a compiled file: Python compares it with its source by size and whole seconds only
        self._source = self.get_data(self.path)
        return self.source_to_code(self._source, self.path)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._builtins
        super().exec_module(module)

    def is_current(self) -> bool:
        try:
            return self.get_data(self.path) == self._source
        except OSError:
            return False


class _Finder(MetaPathFinder):
    """Finds the private packages and their modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        own = _packages.get(fullname.partition(".")[0])
        if own is None:
            return None
        found = own.table.find_spec(fullname, path) or PathFinder.find_spec(fullname, path, target)
        place = own.places.get(fullname)
        if found is None and place is not None and place.is_dir():
            found = ModuleSpec(fullname, own, is_package=True)
            found.submodule_search_locations = [str(place)]
        elif found is None and place is not None:
            found = spec_from_file_location(fullname, place)
        if found is not None and type(found.loader) is SourceFileLoader:
            found.loader = own.loader(fullname, found.loader.path)
        return found


_finder = _Finder()
_numbers = itertools.count(1)
_packages: dict[str, TaskPackage] = {}
_latest: dict[tuple[Path, bool], TaskPackage] = {}
_choosing = threading.Lock()


def task_package(folder: Path, is_tree: bool) -> TaskPackage:
    """The package of a folder as its files are now.

    If a file changed since it was imported, this is a new package, so that none of its modules keeps parts of the old
    ones: the code that runs is the code that a run's fingerprint speaks of.
    """
    with _choosing:
        task_imports()
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        own = _latest.get((folder, is_tree))
        if own is None or not own.is_current():
            own = _latest[folder, is_tree] = TaskPackage(folder, is_tree)
            _packages[own.name] = own
        own.look()
        return own
