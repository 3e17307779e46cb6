"""The house keeps its order: what may be imported where, how light `import karat` is, what is public."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import karat
from tests.golden_messages import owner_of

SOURCE = Path(karat.__file__).parent
EVERYWHERE = {
    *("records", "keys", "errors", "registry", "serialization", "paths", "documents", "formatting", "lazy"),
    *("redaction", "json_schema", "layout", "process", "sync", "files"),
}
"""Modules that every room may use; they use each other only."""
UPPER = ["execution", "analysis", "reporting", "experiments", "view", "cli", "__main__"]
"""The rooms that connect the others, lowest first; each may use those before it and nothing below may use them."""
PLUG_INS = {"graph", "memory", "shipped", "demo"}
"""Rooms written on the public API alone: `cli`, `experiments` and `testing` may use them."""
HEAVY = {
    "numpy", "aiohttp", "ray", "rich", "pydantic", "yaml", "pyarrow", "psycopg", "jsonschema", "rapidfuzz", "regex",
    "sqlite3", "asyncio", "xllamacpp", "wordllama", "flask", "starlette", "msgspec.inspect",
}  # fmt: skip


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


ROOMS = {room_of(path) for path in modules()}

NAMED = {("registry", "karat.graph.metrics")}
"""The one module that a room below names by a string: the plug-in that karat ships (docs/decisions.md)."""
SEARCHED = {("keys", "karat.models")}
"""A text that is looked for in the source of tasks, and imported by nobody."""


def imports(path: Path) -> set[str]:
    """The rooms that a module imports, lazily or not, or names in a string, as lazy exports and registries do.

    `if TYPE_CHECKING` imports nothing when karat runs.
    """
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    pending: list[ast.AST] = [tree]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if (
                isinstance(node, ast.If)
                and isinstance(node.test, ast.Name)
                and node.test.id == "TYPE_CHECKING"
            ):
                continue
            pending.append(node)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "karat":
                parts = node.module.split(".")
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("karat.")}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = re.fullmatch(r"karat\.(\w+)(?:\.\w+)*", node.value)
                if named and named[1] in ROOMS and (room_of(path), node.value) not in NAMED | SEARCHED:
                    found.add(named[1])
    return found - {"__version__", "__doc__"}


def house() -> dict[str, set[str]]:
    """The rooms that each room uses."""
    rooms: dict[str, set[str]] = {}
    for path in modules():
        rooms.setdefault(room_of(path), set()).update(imports(path) - {room_of(path)})
    return rooms


def test_no_room_depends_on_itself():
    rooms = house()

    def used_by(room: str) -> set[str]:
        found: set[str] = set()
        pending = [room]
        while pending:
            new = rooms.get(pending.pop(), set()) - found
            found |= new
            pending += new
        return found

    assert [room for room in rooms if room in used_by(room)] == []


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    room, used = room_of(path), imports(path)
    if room in EVERYWHERE:
        assert used <= EVERYWHERE
    if room in UPPER:
        assert not used & set(UPPER[UPPER.index(room) + 1 :])
    elif room != "__init__":
        assert not used & set(UPPER)
    if room not in {*PLUG_INS, "cli", "experiments", "testing", "core", "__init__"}:
        assert not used & PLUG_INS


def lazy_packages() -> list[Path]:
    return [path for path in SOURCE.rglob("__init__.py") if "= exports(" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", lazy_packages(), ids=lambda p: p.parent.name)
def test_every_lazily_exported_name_is_typed(path):
    """A type checker knows a name that is imported when first used from the imports under TYPE_CHECKING."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typed = {
        alias.asname
        for node in tree.body
        for each in (node.body if isinstance(node, ast.If) else [node])
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
        if alias.asname
    }
    defined = {
        getattr(node, "name", None) or ast.unparse(getattr(node, "target", node)) for node in tree.body
    }
    package = ".".join(["karat", *path.relative_to(SOURCE).parent.parts]).removesuffix(".")
    public = importlib.import_module(package).__all__
    assert set(public) - defined == typed
    assert all(hasattr(importlib.import_module(package), name) for name in public)


def test_import_karat_is_light():
    program = (
        "import sys; before = set(sys.modules); import karat; print('\\n'.join(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not HEAVY & set(loaded)
    assert len(loaded) < 40, loaded


def test_help_is_light():
    program = [sys.executable, "-X", "importtime", "-m", "karat", "--help"]
    shown = subprocess.run(program, capture_output=True, text=True, check=True).stderr
    loaded = {line.rpartition("|")[2].strip() for line in shown.splitlines()}
    assert "karat.cli" in loaded
    assert not HEAVY & loaded


def test_rooms_do_not_pull_in_what_only_some_of_them_need():
    program = (
        "import sys, karat.execution.run, karat.execution.evaluate, karat.execution.aggregate;"
        "import karat.store, karat.datasets;"
        "print('\\n'.join(sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not set(loaded) & {
        "numpy",
        "aiohttp",
        "ray",
        "rich",
        "pydantic",
        "pyarrow",
        "psycopg",
        "jsonschema",
    }


def test_the_public_surface():
    assert karat.__all__ == sorted(karat.__all__)
    for name in karat.__all__:
        assert getattr(karat, name) is not None
    assert dir(karat) == karat.__all__
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        karat.rum  # noqa: B018


def test_every_module_says_why_it_exists():
    silent = [
        p
        for p in modules()
        if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8"))) and p.stat().st_size
    ]
    assert silent == []


def test_records_are_frozen_and_stored_ones_carry_their_format():
    import msgspec

    from karat import records

    structs = [s for s in vars(records).values() if isinstance(s, type) and issubclass(s, msgspec.Struct)]
    assert len(structs) > 15
    for struct in structs:
        if struct.__module__ == "karat.records":
            assert struct.__struct_config__.frozen, struct
    for stored in (records.Output, records.ItemResult, records.RunHeader, records.EvaluationHeader,
                   records.AggregationHeader, records.DatasetHeader):  # fmt: skip
        assert stored.__struct_fields__[0] == "format"


def test_outcomes_are_distinguished_by_their_tag():
    import msgspec

    from karat.records import Failed, Failure, Ok, Output, Skipped

    for outcome in (
        Ok({"error": "a value that looks like a failure"}),
        Failed(Failure("E", "m")),
        Skipped("why"),
    ):
        output = Output(format=1, example="e", outcome=outcome)
        data = msgspec.json.encode(output)
        assert msgspec.json.decode(data, type=Output) == output
        assert f'"status":"{outcome.status}"'.encode() in data


def test_no_extra_installs_torch():
    """The requirements of all extras, and theirs in turn, as the installed packages declare them."""
    pending = [("karat", extra) for extra in importlib.metadata.metadata("karat").get_all("Provides-Extra")]
    seen = set(pending)
    while pending:
        name, extra = pending.pop()
        try:
            declared = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or version of Python
        for each in map(Requirement, declared):
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                new = {(each.name.lower(), inner) for inner in ("", *each.extras)} - seen
                seen |= new
                pending += new
    names = {name for name, _ in seen}
    assert {"numpy", "pyarrow", "agentevals"} <= names
    assert not names & {"torch", "sentence-transformers", "sentence_transformers"}


def test_types_are_prepared_before_msgspec_decodes_into_them() -> None:
    """Two threads that use a struct for the first time end the process; `prepared` is the guard."""
    unguarded = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            place = {"convert": 1, "Decoder": 0}.get(node.func.attr)
            called = ast.unparse(node.func)
            if not called.startswith("msgspec.") or (place is None and node.func.attr != "decode"):
                continue
            kinds = [each.value for each in node.keywords if each.arg == "type"]
            if place is not None and len(node.args) > place:
                kinds.append(node.args[place])
            for kind in kinds:
                written = ast.unparse(kind)
                builtin = set(re.findall(r"[\w.]+", written)) <= BUILT_IN
                if not written.startswith("prepared(") and not builtin and path.stem != "serialization":
                    unguarded.append(f"{path.relative_to(SOURCE)}:{node.lineno} {called}({written})")
    assert not unguarded


BUILT_IN = {"dict", "list", "tuple", "str", "int", "float", "bytes", "object", "Any", "msgspec.Raw"}


TESTS = Path(__file__).parent
REPEATED = 39
"""How many comparisons in tests share three words with a message; in most of them the text is the test's own."""


def phrases(text: str) -> Iterator[tuple[str, ...]]:
    """Three consecutive words."""
    for run in re.findall(r"[a-z'-]+(?:[,;:.]? [a-z'-]+){2,}", text.lower()):
        words = re.findall(r"[a-z'-]+", run)
        yield from zip(words, words[1:], words[2:], strict=False)


def phrases_of_strings(code: str) -> set[tuple[str, ...]]:
    """The phrases in one-line strings of a module, found without a parser, which would need seconds for all."""
    strings = re.finditer(r'"""[\s\S]*?"""|"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'', code)
    return {phrase for found in strings for phrase in phrases(found[1] or found[2] or "")}


def compared(tree: ast.Module) -> Iterator[ast.expr]:
    """What `assert` and `match=` compare with, also where it is a parameter of the test."""
    lists = {ast.unparse(n.targets[0]): n.value for n in tree.body if isinstance(n, ast.Assign)}
    lists |= {ast.unparse(n.target): n.value for n in tree.body if isinstance(n, ast.AnnAssign) and n.value}

    def of(nodes: list[ast.AST]) -> list[ast.expr]:
        checks = [node.test for node in nodes if isinstance(node, ast.Assert)]
        return checks + [
            node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "match"
        ]

    nodes = list(ast.walk(tree))
    yield from of(nodes)
    for test in nodes:
        for mark in test.decorator_list if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) else []:
            if not isinstance(mark, ast.Call) or not ast.unparse(mark.func).endswith("parametrize"):
                continue
            if not isinstance(mark.args[0], ast.Tuple):
                continue
            parts = of(list(ast.walk(test)))
            used = {name.id for part in parts for name in ast.walk(part) if isinstance(name, ast.Name)}
            names = [ast.literal_eval(name) for name in mark.args[0].elts]
            for row in ast.walk(lists.get(ast.unparse(mark.args[1]).removesuffix(".values()"), mark.args[1])):
                if isinstance(row, ast.Tuple) and len(row.elts) == len(names):
                    yield from (value for name, value in zip(names, row.elts, strict=True) if name in used)


def test_sentences_of_messages_are_in_golden_files() -> None:
    """So that prose can be improved without touching tests: `refuses` and `says` of `tests/golden_messages.py`."""
    messages: set[tuple[str, ...]] = set()
    for path in modules():
        messages |= phrases_of_strings(path.read_text(encoding="utf-8"))
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        if messages.isdisjoint(phrases_of_strings(code)):
            continue
        for part in compared(ast.parse(code)):
            texts = [node.value for node in ast.walk(part) if isinstance(node, ast.Constant)]
            if any(not messages.isdisjoint(phrases(text)) for text in texts if isinstance(text, str)):
                found.append(f"{path.relative_to(TESTS)}:{part.lineno}: {ast.unparse(part)}")
    assert len(found) <= REPEATED, "\n".join(found)


def test_golden_sentences_belong_to_tests() -> None:
    for golden in TESTS.rglob("messages.json"):
        for key in {owner_of(each) for each in json.loads(golden.read_text(encoding="utf-8"))}:
            file, *_, test = key.split("::")
            assert f"def {test}(" in (golden.parent / file).read_text(encoding="utf-8"), f"{golden}: {key}"


def test_every_test_is_collected() -> None:
    """pytest never runs a test function that is defined inside of another function."""
    hidden = []
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = [each for part in node.body for each in ast.walk(part)]
                hidden += [
                    f"{path.relative_to(TESTS)}:{each.lineno}: {each.name}"
                    for each in inside
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                    and each.name.startswith("test_")
                ]
    assert not hidden
