"""The house keeps its order: what may be imported where, how light `import karat` is, what is public."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import karat

SOURCE = Path(karat.__file__).parent
EVERYWHERE = {"records", "keys", "errors", "registry", "serialization", "progress", "documents", "lazy"}
ABOVE = {"execution", "cli", "web", "pytest_plugin", "experiments", "__main__"}
"""What no room may import: the stages and what is built on them."""
MAY_USE_STAGES = {
    "execution",
    "analysis",
    "reporting",
    "cli",
    "web",
    "pytest_plugin",
    "experiments",
    "__init__",
    "__main__",
}
HEAVY = {
    "numpy", "aiohttp", "ray", "rich", "pydantic", "yaml", "pyarrow", "psycopg", "jsonschema", "rapidfuzz", "regex",
    "sqlite3", "asyncio", "xllamacpp", "wordllama", "flask", "starlette", "msgspec.inspect",
}  # fmt: skip


def imports(path: Path, *, lazy: bool) -> set[str]:
    """The karat rooms a module imports; lazily imported ones only when asked for."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if lazy else _top_level(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("karat"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("karat.")}
    return found


def _top_level(tree: ast.Module):
    for node in tree.body:
        if isinstance(node, ast.If):  # `if TYPE_CHECKING`
            continue
        yield node


def modules():
    return sorted(path for path in SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    room = room_of(path)
    used = imports(path, lazy=True)
    if room in EVERYWHERE:
        assert used <= EVERYWHERE | {"__version__"}
    if room not in MAY_USE_STAGES:
        assert not used & ABOVE


def test_import_karat_is_light():
    program = (
        "import sys; before = set(sys.modules); import karat; print('\\n'.join(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not HEAVY & set(loaded)
    assert len(loaded) < 40, loaded


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
    assert set(dir(karat)) == {*karat.__all__, "__version__"}
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


def test_outcomes_are_told_apart_by_their_tag():
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
