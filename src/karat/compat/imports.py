"""An import hook for the Python files of graph tasks, active once a graph task is loaded.

It does two things. `tasks` becomes a package over the folders named so: that of the task, of the working folder, of
the import path and of karat's shipped tasks. And the modules of the table in `names.py` that nobody else provides
are made of karat's own parts. A file of the task's own tree under one of these names gives what it has beside them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from karat.compat.names import TABLE, stands_in
from karat.registry import load_file

SHIPPED = Path(__file__).resolve().parents[1] / "shipped"


class _TasksFinder(importlib.abc.MetaPathFinder):
    """Finds the package `tasks` itself; what is inside it is found in its folders as usual."""

    def __init__(self) -> None:
        self.root: Path | None = None

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


class _TableFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the table, and the packages they are in, where nothing else does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        inside = any(name.startswith(fullname + ".") for name in TABLE)
        if (not inside and fullname not in TABLE) or not stands_in(fullname):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin="karat", is_package=inside)

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Names of karat's own parts, under the names that tasks written for SyGra import."
        for entry, ours in TABLE.get(module.__name__, {}).items():
            theirs, _, other = entry.partition("=")
            setattr(module, theirs, getattr(importlib.import_module(ours), other or theirs))
        file = _file_of(module.__name__)
        if file is not None:
            module.__getattr__ = functools.partial(_from_file, file)  # type: ignore[method-assign]  # PEP 562


def _file_of(name: str) -> Path | None:
    """The file that the task's own tree has under a name of the table."""
    package, _, last = name.rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", ()) if package else ()
    return next((file for folder in folders if (file := Path(folder) / f"{last}.py").is_file()), None)


def _from_file(file: Path, name: str) -> Any:
    """What the file has beside the names that are karat's."""
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return getattr(load_file(file), name)
    except AttributeError:
        raise AttributeError(f"{file} has no {name!r}") from None


_tasks = _TasksFinder()
_table = _TableFinder()


def task_imports(root: Path | None) -> None:
    """Makes the Python files of a task importable; `root` is the folder that holds its `tasks` folder.

    Modules of another root's `tasks` are forgotten, so that two tasks of the same name do not share code.
    """
    for module in TABLE:
        stands_in(module)  # decided before the table can answer for itself
    if _tasks not in sys.meta_path:
        sys.meta_path.insert(0, _tasks)
        sys.meta_path.append(_table)
    importlib.invalidate_caches()
    if root is not None and root != _tasks.root:
        _tasks.root = root
        for name in [name for name in sys.modules if name == "tasks" or name.startswith("tasks.")]:
            del sys.modules[name]


_loaded: dict[Path, tuple[str, tuple[int, int]]] = {}
"""Files that came with a task: their modules' names, and when they were changed last and how long they were."""


@contextmanager
def current_modules(folder: Path) -> Iterator[None]:
    """While a task is loaded: its modules in a folder are those that the files have now.

    Where a file changed since its module was imported, all of the folder's are forgotten, so that none keeps parts of
    the old one: the code that runs is the code that a run's fingerprint speaks of.
    """
    tracked = {file: known for file, known in _loaded.items() if file.is_relative_to(folder)}
    if any(_stamp(file) != stamp for file, (_, stamp) in tracked.items()):
        for file, (name, _) in tracked.items():
            if _file(sys.modules.get(name)) == file:
                del sys.modules[name]
            del _loaded[file]
            # a compiled file is told from its source by size and whole seconds alone
            with suppress(OSError):
                Path(importlib.util.cache_from_source(str(file))).unlink()
        importlib.invalidate_caches()
    with _own_modules(folder):
        before = set(sys.modules)
        try:
            yield
        finally:
            for name in set(sys.modules) - before:
                file = _file(sys.modules[name])
                if file.suffix == ".py" and file.is_relative_to(folder) and "site-packages" not in file.parts:
                    _loaded[file] = (name, _stamp(file))


@contextmanager
def _own_modules(folder: Path) -> Iterator[None]:
    """While a task is loaded: `import helpers` in its files means its own, not another task's of the same name.

    Modules of other folders that a file of this one is called like are set aside. Those of the program come back
    afterwards; those of other tasks are held by the modules that imported them and need not.
    """
    own = {entry.stem for entry in (*folder.glob("*.py"), *(file.parent for file in folder.glob("*/*.py")))}
    aside = {
        name: module
        for name, module in sys.modules.items()
        if name.partition(".")[0] in own and _is_elsewhere(name, module, folder)
    }
    for name in aside:
        del sys.modules[name]
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
        sys.path.insert(0, str(folder))  # else it comes there with the first of its files
    try:
        yield
    finally:
        sys.modules.update({name: module for name, module in aside.items() if _file(module) not in _loaded})


def _is_elsewhere(name: str, module: ModuleType, folder: Path) -> bool:
    """Whether a module is a plain file of another folder; karat, the standard library and packages stay."""
    if name.partition(".")[0] in (*sys.stdlib_module_names, "karat", "tasks", "__main__"):
        return False
    file = _file(module)
    return file.suffix == ".py" and "site-packages" not in file.parts and not file.is_relative_to(folder)


def _file(module: ModuleType | None) -> Path:
    return Path(getattr(module, "__file__", None) or "")


def _stamp(file: Path) -> tuple[int, int]:
    try:
        told = file.stat()
    except OSError:
        return (0, 0)
    return (told.st_mtime_ns, told.st_size)
