"""The evaluation of memory systems is a plug-in: it imports what any plug-in may import, and nothing else of karat."""

from __future__ import annotations

from pathlib import Path

import pytest

import karat.memory
from tests.graph.test_public_api import PUBLIC, imported, problem

FOLDER = Path(karat.memory.__file__).parent
SHARED = {"lazy", "formatting"}
"""Modules that every room may use."""
READING = ("karat.datasets.readers.", "karat.datasets.sources")
"""How files are read is shared with the readers of other datasets."""


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda p: str(p.relative_to(FOLDER)))
def test_memory_imports_only_what_a_plugin_may(path):
    found = [
        f"line {line}: {why}"
        for line, module, name in imported(path)
        if not module.startswith("karat.memory")
        and module.removeprefix("karat.") not in SHARED
        and not (path.parent.name == "datasets" and module.startswith(READING))
        and not (module == "karat" and name in {"", "memory"})
        and (why := problem(module, name))
    ]
    assert found == []


def test_the_public_modules_are_those_of_any_plugin():
    assert {"tasks", "evaluators", "aggregators", "models", "stats"} <= PUBLIC
