"""Graph tasks are a plug-in: they import what any plug-in may import, and nothing else of karat."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import karat
import karat.graph

PUBLIC = {
    "aggregators", "datasets", "documents", "errors", "evaluators", "formatting", "lazy", "models", "paths", "records",
    "registry", "serialization", "stats", "tasks", "testing", "traces",
}  # fmt: skip
FOLDER = Path(karat.graph.__file__).parent
MODULES = sorted(FOLDER.rglob("*.py"))


def imported(path: Path, room: str) -> list[tuple[int, str, str]]:
    """Every import of karat outside of a room, lazy ones too: line, module, name."""
    found: list[tuple[int, str, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if (node.module or "").partition(".")[0] == "karat":
                found += [(node.lineno, str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(node.lineno, a.name, "") for a in node.names if a.name.partition(".")[0] == "karat"]
    return [each for each in found if not f"{each[1]}.{each[2]}.".startswith(f"{room}.")]


def problem(module: str, name: str) -> str:
    """Why a plug-in may not import this; empty where it may."""
    parts = module.split(".")
    if parts == ["karat"]:
        return "" if name in {"", *dir(karat), *PUBLIC} else f"karat does not export {name}"
    if len(parts) > 2 or parts[1] not in PUBLIC:
        return f"{module} is not a public module"
    part = importlib.import_module(module)
    if name.startswith("_"):
        return f"{module}.{name} is private"
    if hasattr(part, "__path__") and name not in part.__all__:
        return f"{module} does not export {name}"
    return ""


def refused(path: Path, room: str) -> list[str]:
    """What a module of a room imports and a plug-in may not."""
    return [
        f"line {line}: {why}" for line, module, name in imported(path, room) if (why := problem(module, name))
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(FOLDER)))
def test_graph_tasks_import_only_what_a_plugin_may(path):
    assert refused(path, "karat.graph") == []


@pytest.mark.parametrize("room", ["aggregators", "evaluators", "tasks"])
def test_no_room_that_graph_tasks_use_imports_them(room):
    for path in sorted((FOLDER.parent / room).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for_type_checkers = {
            id(inner) for node in tree.body if isinstance(node, ast.If) for inner in ast.walk(node)
        }
        for node in (each for each in ast.walk(tree) if id(each) not in for_type_checkers):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if (name or "").startswith("karat.graph")], path


def test_the_compatibility_page_names_what_plug_ins_import():
    page = (FOLDER.parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:karat\.)?(\w+)`", page.partition("Modules whose name")[0]))
    assert PUBLIC - named == set()
