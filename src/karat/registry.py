"""Registries of parts by name: one `Registry` per kind of part.

A part is found by its registered name, by an alias, by an entry point of the group `karat.plugins`, by a
dotted path (`package.module.Name`) or by a file (`file.py:Name`). A prefix selects a part of another kind:
`unit:exact_match` among evaluators is a unit metric.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from karat.errors import (
    FAILURES,
    ConfigError,
    RequestError,
    UnknownName,
    did_you_mean,
    failed_import,
    near_file,
    refuse_nul,
    unknown_key,
)

T = TypeVar("T")

PLUGIN_GROUP = "karat.plugins"
SHIPPED_PLUGIN = "karat.graph.metrics"
"""The plug-in that comes with karat: unit metrics among evaluators, aggregator metrics among aggregators.

Registries import it last, when a name is looked for; this is the one place where karat names a room that is built on
the rooms which use the name.
"""


class Registry(Generic[T]):
    """The parts of one kind, by name."""

    def __init__(self, kind: str, *, builtin: Iterable[str] = ()) -> None:
        self.kind = kind
        self._parts: dict[str, T] = {}
        self._aliases: dict[str, str] = {}
        self._prefixes: dict[str, Callable[[str], T]] = {}
        self._builtin = list(builtin)
        """Modules whose import registers karat's own parts; imported one by one until a name is found."""

    def register(self, name: str, *aliases: str) -> Callable[[T], T]:
        """Return a decorator that registers a part. A duplicate name is an error unless the part is the same."""

        def add(part: T) -> T:
            for each in (name, *aliases):
                owner = self._parts.get(self._aliases.get(each, each))
                if owner is not None and not _same_part(owner, part):
                    raise RequestError(
                        f"{self.kind} {each!r} is already registered by {qualified_name(owner)}"
                    )
            self._parts[name] = part
            for alias in aliases:
                self._aliases[alias] = name
            return part

        return add

    def prefix(self, word: str, resolve: Callable[[str], T]) -> None:
        """Resolve names of the form `word:name` with `resolve`."""
        self._prefixes[word] = resolve

    def get(self, name: str) -> T:
        """Return the part with a name or path; `UnknownName` suggests the nearest names."""
        if self._find(name):
            return _complete(self._parts[self._aliases.get(name, name)])
        head, colon, rest = name.partition(":")
        if colon and head in self._prefixes:
            return self._prefixes[head](rest)
        if colon and head.endswith(".py"):
            return self._check_part(load_object(name))
        if "." in name and not colon and all(part.isidentifier() for part in name.split(".")):
            return self._check_part(load_object(name))
        raise UnknownName(f"unknown {self.kind} {name!r}: {did_you_mean(name, self.list())}")

    def has(self, name: str) -> bool:
        """Whether a name is registered."""
        return self._find(name)

    def list(self) -> list[str]:
        """All registered names, sorted, without aliases."""
        self._find(None)
        return sorted(self._parts)

    def aliases(self, name: str) -> builtins.list[str]:
        """Other names of a part."""
        return sorted(a for a, n in self._aliases.copy().items() if n == name)

    def describe(self, name: str) -> dict[str, Any]:
        """Name, first line of the docstring, parameters with defaults, and where it comes from."""
        part = self.get(name)
        return {
            "name": name,
            "aliases": self.aliases(name),
            "description": (inspect.getdoc(part) or "").partition("\n")[0],
            "params": parameters_of(part),
            "from": qualified_name(part),
        }

    def _check_part(self, part: Any) -> T:
        if not callable(part):
            raise RequestError(f"{part!r} cannot be used as {self.kind}: it is not callable")
        return part  # type: ignore[no-any-return]  # its user checks what it can do

    def _find(self, name: str | None) -> bool:
        """Whether a name is known; imports built-in modules and plug-ins until it is. None imports all."""
        while self._aliases.get(name or "", name) not in self._parts:
            module = next(iter(self._builtin), None)
            if module is not None:
                importlib.import_module(module)
                # Remove it after the import: another thread must wait for the same import.
                with contextlib.suppress(ValueError):
                    self._builtin.remove(module)
            elif not load_plugins():
                # Another thread may have registered it.
                return self._aliases.get(name or "", name) in self._parts
        return True


_plugins_loaded = False
_loading = threading.RLock()


def load_plugins() -> bool:
    """Import every entry point of `karat.plugins` once; a broken one prints a warning.

    Returns whether this call imported them.
    """
    global _plugins_loaded
    with _loading:
        if _plugins_loaded or os.environ.get("KARAT_PLUGINS") == "0":
            return False
        _plugins_loaded = True
        from importlib.metadata import entry_points

        for point in entry_points(group=PLUGIN_GROUP):
            try:
                loaded = point.load()
                if callable(loaded) and not isinstance(loaded, type):
                    loaded()
            except FAILURES as error:
                sys.stderr.write(f"karat: plug-in {point.name} ({point.value}) failed to load: {error}\n")
        return True


MOST_SIBLINGS = 1000
"""The files of a folder that are searched for the nearest name to a mistyped one."""


def load_file(path: str | Path) -> ModuleType:
    """Import a Python file by its path, once, and add its folder to the import path."""
    import hashlib

    refuse_nul(path)
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        given = Path(path).expanduser()
        beside = [each.name for each in itertools.islice(given.parent.glob("*.py"), MOST_SIBLINGS)]
        raise RequestError(f"file not found: {path}{near_file(given, beside)}")
    stem = file.stem.replace(".", "_")  # a dot would be that of a package
    name = f"{stem}_{hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise RequestError(f"{path} is not a Python file")
        _finder.specs[name] = spec
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
    try:
        # The import system lets a second thread wait until the module is complete.
        return importlib.import_module(name)
    except FAILURES as error:  # a script without a __main__ guard may call sys.exit
        raise failed_import(path, error) from error


class _FileFinder:
    """The import finder of the files that `load_file` imports, by the names that it gives their modules."""

    def __init__(self) -> None:
        self.specs: dict[str, ModuleSpec] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return self.specs.get(fullname)


_finder = _FileFinder()


def load_object(
    path: str,
    load_file: Callable[[str], ModuleType] = load_file,
    import_module: Callable[[str], ModuleType] = importlib.import_module,
) -> Any:
    """Load the object at `package.module.Name` or `file.py:Name` (see `load_file`).

    `load_file` and `import_module` import a file by its path and a module by its name.
    """
    head, colon, name = path.partition(":")
    if colon or head.endswith(".py"):
        if not name:
            raise RequestError(f"{path}: name an object in the file, as {head}:NAME")
        module = load_file(head)
        return _member(module, name, head)
    module_name, _, _ = path.rpartition(".")
    if not module_name:
        raise UnknownName(f"{path!r} is not a dotted path")
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:cut])
        try:
            found = import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
                continue
            raise failed_import(module_name, error) from error
        except FAILURES as error:
            raise failed_import(module_name, error) from error
        return _member(found, ".".join(parts[cut:]), module_name)
    raise UnknownName(f"{path}: no module {parts[0]!r} on the import path")


_UNPACKED = re.compile(r"(?:\w+\.)?Unpack\[(\w+)\]")


def signature_of(part: object) -> inspect.Signature:
    """The signature of a part, with the fields of `**options: Unpack[SomeTypedDict]` as parameters of their own.

    A field takes its default from the constructor of the base class that declares it.
    """
    signature = inspect.signature(
        cast("Callable[..., Any]", part)
    )  # which raises TypeError for other objects
    *named, last = signature.parameters.values() or (None,)
    if last is None or last.kind is not last.VAR_KEYWORD:
        return signature
    bases = reversed(part.__mro__) if isinstance(part, type) else ()
    constructors = [vars(base)["__init__"] for base in bases if "__init__" in vars(base)] or [part]
    options = _UNPACKED.fullmatch(str(last.annotation))
    fields = getattr(constructors[-1], "__globals__", {}).get(options[1]) if options else None
    if fields is None:
        return signature
    declared: dict[str, inspect.Parameter] = {}
    for constructor in constructors:
        declared.update(inspect.signature(constructor).parameters)
    known = {parameter.name for parameter in named}
    for name in fields.__annotations__:
        if name not in known:
            given = declared.get(name)
            default = None if given is None else given.default
            annotation = inspect.Parameter.empty if given is None else given.annotation
            named.append(inspect.Parameter(name, last.KEYWORD_ONLY, default=default, annotation=annotation))
    return signature.replace(parameters=named)


def parameters_of(part: object) -> dict[str, Any]:
    """The constructor parameters of a part: name → `{default, type}`, or `required` without a default."""
    try:
        signature = signature_of(part)
    except (TypeError, ValueError):
        return {}
    out: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.name == "self" or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        entry: dict[str, Any] = {}
        if parameter.annotation is not parameter.empty:
            annotation = parameter.annotation
            entry["type"] = (
                annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
            )
        if parameter.default is parameter.empty:
            entry["required"] = True
        else:
            entry["default"] = parameter.default
        out[parameter.name] = entry
    return out


def check_parameters(part: object, params: dict[str, Any], what: str) -> None:
    """Raise for an unknown parameter, with the nearest name, and for a missing one."""
    try:
        signature = signature_of(part)
    except (TypeError, ValueError):
        return
    takes = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in takes):
        known = [p.name for p in takes]
        unknown = [
            f"{what} has no parameter {name!r}: {did_you_mean(name, known)}"
            for name in params
            if name not in known
        ]
        if unknown:
            raise RequestError(unknown[0]) if len(unknown) == 1 else ConfigError(unknown)
    for p in takes:
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in params:
            raise RequestError(f"{what} needs the parameter {p.name!r}")


def check_spec(spec: Mapping[str, object], keys: Collection[str], kind: str) -> None:
    """Raise for a mapping that names no part, or that has a key other than `keys`."""
    if (unknown := next((key for key in spec if key not in keys), None)) is not None:
        raise RequestError(f"{kind} {dict(spec)!r:.200}: {unknown!r}: {unknown_key(str(unknown), keys)}")
    if "name" not in spec:
        raise RequestError(f"{kind} {dict(spec)!r:.200}: needs a name")


def _member(module: ModuleType, name: str, where: str) -> Any:
    """Return the member of a module with a name, which may be dotted."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [k for k in vars(module) if not k.startswith("_")]
            near = did_you_mean(part, known) if known else "it defines nothing"
            raise UnknownName(f"{where} has no {name!r}: {near}")
        found = getattr(found, part)
    return found


def _complete(part: T) -> T:
    """Return a part when its module is imported: it is registered while the rest of the module still is not defined."""
    module = getattr(part, "__module__", None)
    if sys.modules.get(module) is not None:  # type: ignore[arg-type]  # None is no module's name
        importlib.import_module(cast("str", module))  # waits for a thread that imports it
    return part


def _same_part(a: Any, b: Any) -> bool:
    """The same object, or the same definition imported again, also under another name of its module."""
    if a is b:
        return True
    if getattr(a, "__qualname__", a) != getattr(b, "__qualname__", b):
        return False
    return qualified_name(a) == qualified_name(b) or _file_of(a) == _file_of(b) is not None


def _file_of(part: Any) -> str | None:
    module = sys.modules.get(getattr(part, "__module__", ""))
    return getattr(module, "__file__", None)


PRIVATE = "karat_task_"
"""What the names of the private packages begin with that the modules of graph tasks are in."""
_private = re.compile(rf"^{PRIVATE}\d+\.")


def qualified_name(part: object) -> str:
    """Module and name of a part or of its type; without the private package that the modules of a graph task are in."""
    target = part if hasattr(part, "__qualname__") else type(part)
    module = getattr(target, "__module__", "")
    return f"{_private.sub('', str(module))}.{target.__qualname__}"
