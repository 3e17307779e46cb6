"""Fingerprints, identities and reuse keys: what is the same, what may be continued, what may be copied.

Identity says where a record belongs; the first commit of an identity wins. A reuse key says that something
was computed before from exactly the same things. `decide` is the table of cases in docs/keys.md: given what
is asked and what is there, continue, return, retry, create, or refuse.
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import os
import sys
import sysconfig
import threading
import tokenize
import types
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Literal

import msgspec

from karat.errors import CodeChanged, StoreBusy, UnsupportedType, option, wait_or_new
from karat.registry import qualified_name
from karat.serialization import canonical, to_json_value

__all__ = [
    "Decision",
    "Holder",
    "Previous",
    "Wanted",
    "canonical",
    "code_fingerprint",
    "content_hash",
    "decide",
    "fingerprint",
    "output_item",
    "result_item",
    "reuse_key",
]


def digest(data: bytes, size: int = 16) -> str:
    """Return a BLAKE2b digest of this many bytes as hex."""
    import hashlib  # loads OpenSSL, which most commands do not need

    return hashlib.blake2b(data, digest_size=size).hexdigest()


def content_hash(value: object) -> str:
    """A hash of exactly this content; only the order of keys in an object does not matter."""
    return digest(canonical(value))


def fingerprint(**parts: Any) -> str:
    """A hash of named parts, each JSON-able."""
    return digest(canonical(parts))


# ---------------------------------------------------------------- identities


def output_item(attempt: int, unit: str = "") -> str:
    """The part of an output's identity beside its run and example: `attempt/unit`."""
    return f"{attempt}/{unit}" if unit else str(attempt)


def result_item(evaluator: int, runs: Sequence[int], attempt: int, unit: str = "") -> str:
    """The same for a result: the evaluator's and the runs' places in the header, in the order shown."""
    shown = runs[0] if len(runs) == 1 else ".".join(map(str, runs))
    return f"{evaluator}.{shown}.{attempt}/{unit}" if unit else f"{evaluator}.{shown}.{attempt}"


def reuse_key(evaluator: str, example: str, outputs: Iterable[str]) -> bytes:
    """Return the reuse key of an evaluator's fingerprint and the content hashes of example and outputs, in order."""
    return bytes.fromhex(digest("\n".join((evaluator, example, *outputs)).encode()))


# ---------------------------------------------------------------- the code part of a fingerprint


def code_fingerprint(part: object) -> str | None:
    """A hash of the source a callable depends on; None where it cannot be known.

    It covers the module that defines it, the project modules that one imports (not the standard library,
    not installed packages, not karat itself) and JSON-able closure cells, defaults and attributes. Comments and blank
    lines do not count.
    A declared `version` stands in for all of it.
    """
    version = getattr(part, "version", None)
    if isinstance(version, str):
        return digest(f"version {qualified_name(part)} {version}".encode())
    try:
        sources = _sources(part, set())
    except _UnknownSourceError:
        return None
    return digest("\n".join(sources).encode("utf-8", "surrogatepass"))


DECLARED = "version "
"""Begins the code of a task that declares its version."""


def task_code(part: object) -> str | None:
    """The code of a task: the version it declares and the name of its file, or a hash of its source.

    The module is not a part of it: one file has other module names from the command line, from Python and as a script.
    """
    version = getattr(part, "version", None)
    return f"{DECLARED}{version} of {_place(part)}" if isinstance(version, str) else code_fingerprint(part)


def _place(part: Any) -> str:
    """The file of a project's callable or class, without its folder, and the name in it; elsewhere its module."""
    target = part if hasattr(part, "__qualname__") else type(part)
    file = source_file(target)
    return f"{Path(file).stem}.{target.__qualname__}" if file else qualified_name(part)


def source_file(part: object) -> str:
    """The project file that defines a callable or the class of an object; empty where no such file is known.

    For what a cell of a notebook defines it is the notebook, where Jupyter or VS Code names it.
    """
    while isinstance(part, functools.partial):
        part = part.func
    target: Any = part if hasattr(part, "__qualname__") else type(part)
    module = getattr(target, "__module__", None) or ""
    file = _file(sys.modules.get(module))
    written_in = target.__code__.co_filename if isinstance(target, types.FunctionType) else None
    if file is None and module == "__main__":
        return _notebook()
    if file is None or (written_in and Path(written_in).name != file.name):
        return ""
    return project_file(str(file))


def _notebook() -> str:
    """The notebook whose kernel this process is; empty where it is none, or one that is not told its notebook."""
    named = getattr(sys.modules["__main__"], "__vsc_ipynb_file__", None)
    if named is None and "ipykernel" in sys.modules:  # programs that a kernel starts inherit its environment
        named = os.environ.get("JPY_SESSION_NAME")
    path = Path(str(named or "")).absolute()
    return str(path) if path.suffix == ".ipynb" and path.is_file() else ""


def project_file(path: str) -> str:
    """The path of a file of the project; empty for one of karat, of Python or of an installed package, and for none."""
    return path if path and _is_project(Path(path)) else ""


def may_ask_models(part: object) -> bool:
    """Whether code may ask a model that an environment variable names; True where that cannot be excluded.

    It can be excluded for code that uses neither `karat.models`, nor the environment, nor other programs, nor an
    installed package that could be a client of a provider.
    """
    try:
        sources = _sources(part, set())
    except _UnknownSourceError:
        return True
    return any(_mentions_models(source) for source in sources)


_HARMLESS = frozenset(
    {"karat", "msgspec", "numpy", "pandas", "pyarrow", "pydantic", "pytest", "rapidfuzz", "regex"}
)
"""Installed packages that ask no model on their own."""

_ASKING = frozenset(
    {
        *("models", "model", "default_model", "llm", "environ", "environb", "getenv", "getenvb", "putenv"),
        *("system", "popen", "__import__", "import_module", "exec", "eval", "load_object"),
        *("subprocess", "multiprocessing", "importlib", "runpy", "ctypes", "socket", "http", "urllib"),
        *("create_subprocess_exec", "create_subprocess_shell", "open_connection"),
    }
)
"""Names by which code reaches a model, the environment, another program or code that is not seen here."""


@functools.lru_cache(256)
def _mentions_models(source: str) -> bool:
    if "\n" not in source and "lambda" not in source:  # a name, or the JSON of closure cells and attributes
        return "karat.models" in source
    tree = _parse(source)
    if tree is None:
        return True
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, (ast.Name, ast.Attribute, ast.arg)):
            found = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", "")
            if found in _ASKING:
                return True
            continue
        if any(word in _ASKING for name in names for word in name.split(".")):
            return True
        if isinstance(node, ast.ImportFrom) and node.level:
            continue
        roots = {name.partition(".")[0] for name in names[: 1 if isinstance(node, ast.ImportFrom) else None]}
        if any(root and not _is_known(root) for root in roots):
            return True
    return False


def _is_known(package: str) -> bool:
    """Whether a package is of the standard library, of the project (whose source is looked at), or harmless."""
    if package in sys.stdlib_module_names or package in _HARMLESS:
        return True
    path = _file(sys.modules.get(package))
    return path is not None and _is_project(path)


class _UnknownSourceError(Exception):
    pass


def _sources(part: Any, seen: set[int]) -> list[str]:
    if id(part) in seen:
        return []
    seen.add(id(part))
    if isinstance(part, functools.partial):
        given = _json_or_type({"args": part.args, "keywords": part.keywords})
        return [
            *_sources(part.func, seen),
            given,
            *_sources_of_values([*part.args, *part.keywords.values()], seen),
        ]
    if isinstance(part, types.MethodType):
        return [*_sources(part.__func__, seen), *_sources_of_instance(part.__self__, seen)]
    if isinstance(part, types.BuiltinFunctionType):
        raise _UnknownSourceError
    if isinstance(part, types.FunctionType):
        return _sources_of_function(part, seen)
    if isinstance(part, type):
        return _sources_of_definition(part, seen)
    if inspect.iscoroutinefunction(part) or callable(part):
        wrapped = getattr(part, "__wrapped__", None)
        if wrapped is not None:
            return _sources(wrapped, seen)
    return _sources_of_instance(part, seen)


def _sources_of_instance(instance: Any, seen: set[int]) -> list[str]:
    if isinstance(instance, types.ModuleType):
        return []
    out = _sources_of_definition(type(instance), seen)
    attributes = getattr(instance, "__dict__", {})
    out.append(_json_or_type(attributes))
    return out + _sources_of_values(attributes.values(), seen)


_WITH_SOURCE = (types.FunctionType, types.MethodType, type, functools.partial)


def _sources_of_values(values: Iterable[Any], seen: set[int]) -> list[str]:
    """The sources of functions and classes among arguments and attributes, which JSON does not have."""
    return [text for each in values if isinstance(each, _WITH_SOURCE) for text in _sources(each, seen)]


def _sources_of_function(function: types.FunctionType, seen: set[int]) -> list[str]:
    out = _sources_of_definition(function, seen)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if isinstance(value, _WITH_SOURCE):
            out += [name, *_sources(value, seen)]
        else:
            out.append(f"{name}={_json_or_type(value)}")
    out.append(_json_or_type([function.__defaults__, function.__kwdefaults__]))
    return out


def _sources_of_definition(part: Any, seen: set[int]) -> list[str]:
    """Source of a function or class, of its module, and of the project modules that one imports."""
    name = part.__module__ or ""  # exec'd code may have none
    module = sys.modules.get(name)
    file = _file(module)
    if name.partition(".")[0] == "karat" and file is not None and file.is_relative_to(_KARAT):
        return [qualified_name(part)]
    out = [part.__qualname__]
    # A function that was exec'd under the name of a module does not stand in the file of that module.
    written_in = Path(part.__code__.co_filename).name if isinstance(part, types.FunctionType) else None
    if file is not None and written_in in (None, file.name):
        if isinstance(part, types.FunctionType) and part.__name__ == "<lambda>":
            out.append(_lambda_text(part))  # several lambdas of one module share a name
        out += _module_sources(module, set())
        return out
    out.append(_source_text(part))
    if isinstance(part, types.FunctionType):
        # Defined in a notebook cell or with exec: there is no module file, so follow the names it uses.
        for name in part.__code__.co_names:
            used = part.__globals__.get(name)
            if isinstance(used, types.FunctionType) and used.__module__ == part.__module__:
                out += _sources(used, seen)
    return out


def _source_text(part: Any) -> str:
    # Python 3.13 takes the program of `python -c` for the source of code that was evaluated from a string.
    if getattr(getattr(part, "__code__", None), "co_filename", "") == "<string>":
        raise _UnknownSourceError
    try:
        return _without_comments(inspect.getsource(part))
    except (OSError, TypeError) as error:
        raise _UnknownSourceError from error


def _lambda_text(function: types.FunctionType) -> str:
    """The lines of a lambda and, where they have several, the column at which its body starts."""
    text = _source_text(function)
    if text.count("lambda") < 2:
        return text
    places = [(line, column) for line, _, column, _ in function.__code__.co_positions() if line and column]
    first = function.__code__.co_firstlineno
    return f"{text}{sorted((line - first, column) for line, column in places)[:1]}"


@functools.lru_cache(4096)  # every definition of a task asks for all modules of its project
def _without_comments(source: str) -> str:
    """A source without its comments and blank lines: adding a remark does not make other code of it."""
    lines: list[str | None] = [
        *io.StringIO(source)
    ]  # ends lines where tokenize does; splitlines knows further ends
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            row, column = token.start
            line = lines[row - 1] if row <= len(lines) else None
            if token.type == tokenize.COMMENT and line is not None:
                lines[row - 1] = line[:column].rstrip() + "\n"
            elif token.type == tokenize.NL and line is not None and not line.strip():
                lines[row - 1] = None
    except (tokenize.TokenError, SyntaxError):  # the source of a lambda may be a part of an expression
        return source
    return "".join(line for line in lines if line is not None)


_KARAT = Path(__file__).resolve().parent


@functools.cache
def _library_folders() -> tuple[Path, ...]:
    """The folders of the standard library and of installed packages."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(sysconfig.get_path(name)).resolve() for name in names})


def _file(module: types.ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    if not name or not name.endswith((".py", ".pyw")):
        return None
    path = Path(name).resolve()
    return path if path.is_file() else None


_PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages, wherever they are: of the user, of the system, or added by a .pth file."""


def _is_project(path: Path) -> bool:
    if path.is_relative_to(_KARAT) or not _PACKAGES.isdisjoint(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in _library_folders())


def _module_sources(module: types.ModuleType | None, seen: set[str]) -> list[str]:
    """The source of a module and of every project module reachable from its names, in a stable order."""
    file = _file(module)
    if module is None or file is None or str(file) in seen:
        return []
    seen.add(str(file))
    source = file.read_text(encoding="utf-8", errors="surrogateescape")
    out = [file.name, _without_comments(source)]
    used: dict[str, types.ModuleType] = {}
    named: list[types.ModuleType | None] = []
    for value in vars(module).values():
        if isinstance(value, types.ModuleType):
            named.append(value)
        elif isinstance(value, (types.FunctionType, type)) and isinstance(value.__module__, str):
            named.append(sys.modules.get(value.__module__))
    # A module of which only constants are used, such as prompts, has left no trace but its import.
    package = module.__package__ or ""
    imported = [sys.modules.get(name) for name in _imported_modules(source, package)]
    for found in (*named, *imported):
        path = _file(found)
        if found is not None and path is not None and _is_project(path):
            used[str(path)] = found
    for _, found in sorted(used.items()):
        out += _module_sources(found, seen)
    return out + _later_sources(source, package, seen)


def _later_sources(source: str, package: str, seen: set[str]) -> list[str]:
    """The sources of project modules that functions import when they are called, whether or not they were called."""
    out: list[str] = []
    for name in _imported_modules(source, package, later=True):
        file = _module_file(name)
        if file is None or str(file) in seen:
            continue
        seen.add(str(file))
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
        inside = name if file.name == "__init__.py" else name.rpartition(".")[0]
        out += [file.name, _without_comments(text)]
        out += _later_sources(text, inside, seen)
    return out


def _module_file(name: str) -> Path | None:
    """The file of a project module, found without importing anything; None for other modules."""
    root, *rest = name.split(".")
    if root in sys.stdlib_module_names or root == "karat" or not all((root, *rest)):
        return None  # a relative import of a module without a package has an empty part
    places: Sequence[str] | None = None
    spec = None
    for depth in range(len(rest) + 1):
        spec = _spec(".".join([root, *rest[:depth]]), places)
        if spec is None:
            return None
        places = spec.submodule_search_locations
        if places is None and depth < len(rest):
            return None
    path = Path(spec.origin).resolve() if spec is not None and spec.origin else None
    return (
        path if path is not None and path.suffix == ".py" and path.is_file() and _is_project(path) else None
    )


def _spec(name: str, places: Sequence[str] | None) -> ModuleSpec | None:
    """Return where an import would find a module: a finder may answer for a package whose files are in the project."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            spec: ModuleSpec | None = find(name, places, None) if find is not None else None
        except KeyError:  # a folder without __init__.py asks for the package it is in, which is not imported
            spec = ModuleSpec(name, None, is_package=True)
            folders = (Path(place, name.rpartition(".")[2]) for place in places or ())
            spec.submodule_search_locations = [str(each) for each in folders if each.is_dir()]
        if spec is not None:
            return spec
    return None


def _parse(source: str) -> ast.Module | None:
    """The syntax tree of a source; None where it cannot be parsed.

    CPython counts the depth of the tree that it builds in one place for all threads, so a source that is parsed in two
    threads may raise SystemError ("AST constructor recursion depth mismatch", python/cpython#106905). The lock keeps
    threads of this module apart; code elsewhere may parse at the same time, so it is tried again a few times.
    """
    for attempt in range(PARSE_ATTEMPTS):
        try:
            with _parsing:
                return ast.parse(source)
        except (SyntaxError, ValueError):
            return None
        except SystemError:
            if attempt + 1 == PARSE_ATTEMPTS:
                raise
    return None


PARSE_ATTEMPTS = 5
_parsing = threading.Lock()


def _imported_modules(source: str, package: str, later: bool = False) -> list[str]:
    """The names in `sys.modules` of what a source imports: in the files of a graph task, its own modules come first."""
    root = sys.modules.get(package.partition(".")[0])
    full_name = getattr(getattr(root, "__loader__", None), "full_name", str)
    return [full_name(name) for name in _imports(source, package, later)]


@functools.lru_cache(8192)
def _imports(source: str, package: str, later: bool = False) -> tuple[str, ...]:
    """Names of what a source imports when it is imported itself; with `later`, also what its functions import."""
    tree = _parse(source)
    if tree is None:
        return ()
    front: list[ast.AST] = [tree]
    names: list[str] = []
    while front:
        node = front.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            front += node.orelse
        elif later or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            front += ast.iter_child_nodes(node)
    return tuple(dict.fromkeys(names)) if later else tuple(names)


def json_or_types(value: object) -> Any:
    """Return a value as JSON; where a part of it has none, the name of its type stands in its place."""
    try:
        return to_json_value(value)
    except UnsupportedType:
        pass
    if isinstance(value, dict):
        return {str(key): json_or_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_or_types(item) for item in value]
    return f"<{_place(type(value))}>"


def _json_or_type(value: Any) -> str:
    return canonical(json_or_types(value)).decode()


# ---------------------------------------------------------------- the table of cases


class Holder(msgspec.Struct, frozen=True):
    """A live process that holds something."""

    who: str
    since: str


class Wanted(msgspec.Struct, frozen=True):
    """The request of a command: its fingerprints and options."""

    configuration: str
    code: str | None
    new: bool = False
    retry_failed: bool = False
    accept_code_change: bool = False
    what: str = "run"
    source: str = ""
    """The file of the task's code."""


class Previous(msgspec.Struct, frozen=True):
    """An earlier run or evaluation with the same configuration."""

    id: str
    code: str | None
    replicate: int
    finished: bool
    failed: int = 0
    total: int = 0
    holder: Holder | None = None
    created: float = 0.0
    accepted: Sequence[str] = ()
    """Other code that it was continued with, by --accept-code-change."""
    source: str = ""
    """The file that its task was in."""

    def has_code(self, code: str | None) -> bool:
        """Whether this code began it, or was accepted to continue it."""
        return code is not None and (code == self.code or code in self.accepted)

    def is_of(self, wanted: Wanted) -> bool:
        """Whether it is of the same task: of the same code, or of other code in its file.

        A project may be moved, so a file of that name elsewhere is another one only while the first is still there. Two
        files may declare the same version, so a version alone is not the same code.
        """
        if not (self.source and wanted.source) or self.source == wanted.source:
            return True
        if self.has_code(wanted.code) and not str(wanted.code).startswith(DECLARED):
            return True
        there = Path(self.source)
        return there.name == Path(wanted.source).name and not there.is_file()


class Decision(msgspec.Struct, frozen=True):
    """The action to take, and the reason in words for the user."""

    action: Literal["create", "continue", "return", "retry"]
    id: str | None = None
    replicate: int = 1
    why: str = ""


def _returned_notice(what: str, failed: int, total: int) -> str:
    """The notice for a finished run or evaluation that is returned, with the command for its failed items."""
    if not failed:
        return f"{what} is already finished: use {option('new', True)} for another"
    return (
        f"{what} is finished, {failed:,} of {total:,} failed: use {option('retry_failed', True)} to retry them,"
        f" or {option('new', True)} for another"
    )


def _recency(previous: Previous) -> tuple[int, float]:
    return previous.replicate, previous.created


def decide(wanted: Wanted, previous: Sequence[Previous]) -> Decision:
    """The table of cases. `previous` are those with the same configuration, in any order."""
    what = wanted.what
    previous = [each for each in previous if each.is_of(wanted)]
    if not previous:
        return Decision("create")
    newest = max(previous, key=_recency)
    create = Decision("create", replicate=newest.replicate + 1)
    if wanted.new:
        return msgspec.structs.replace(create, why=f"{option('new', True)}: replicate {create.replicate}")
    # Code that was changed and changed back has its own run, behind those that other code made since.
    same = [each for each in previous if each.has_code(wanted.code)]
    last = max(same, key=_recency) if same else newest
    if last.holder is not None:
        raise StoreBusy(
            f"{what} {last.id} is held by {last.holder.who} since {last.holder.since}: {wait_or_new()}"
        )
    if wanted.code is None or last.code is None:
        return msgspec.structs.replace(
            create,
            why=f"{what} {last.id} cannot be continued, because the source of its code is unknown:"
            " declare version= to allow it",
        )
    changed = not last.has_code(wanted.code)
    if last.finished and not (wanted.retry_failed and last.failed):
        if changed and not wanted.accept_code_change:
            # The same replicate: what other code asks of models in the same words was answered before.
            why = f"the code changed since {what} {last.id}"
            why += f", which {option('accept_code_change', True)} would return" if what == "run" else ""
            return Decision("create", None, last.replicate, why)
        about = f"{what} {last.id}, made with other code," if changed else f"{what} {last.id}"
        return Decision("return", last.id, last.replicate, _returned_notice(about, last.failed, last.total))
    if changed and not wanted.accept_code_change:
        raise CodeChanged(
            f"{what} {last.id} was started with different code: use {option('accept_code_change', True)}"
            f" to continue it (recorded with each output), or {option('new', True)} for another"
        )
    if last.finished or wanted.retry_failed:
        return Decision(
            "retry", last.id, last.replicate, f"{what} {last.id}: {last.failed} failed items are tried again"
        )
    return Decision("continue", last.id, last.replicate, f"continues {what} {last.id}")
