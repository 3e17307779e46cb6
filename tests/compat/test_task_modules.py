"""Modules that tasks bring along: each task has its own, whatever they are called."""

from __future__ import annotations

import sys
from types import ModuleType

import karat
from karat.tasks.graph import load_task

GRAPH = """
data_config: {examples: [{id: 1}]}
graph_config:
  nodes:
    say: {node_type: lambda, lambda: saying.say, output_keys: [said]}
"""


def said(task) -> str:
    run = karat.run(task, task.dataset(), store="memory://", progress=False)
    [output] = run.outputs()
    return output.value["said"]


def folders(tmp_path, *names: str) -> list[str]:
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "graph_config.yaml").write_text(GRAPH)
        (folder / "wording.py").write_text(f"WORD = {name!r}\n")
        (folder / "saying.py").write_text(
            "import wording\n\ndef say(state):\n    return {'said': wording.WORD}\n"
        )
    return [str(tmp_path / name) for name in names]


def test_two_tasks_whose_files_import_modules_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    one, other = folders(tmp_path, "one", "other")
    first, second = load_task(one), load_task(other)
    assert [said(first), said(second), said(load_task(one))] == ["one", "other", "one"]
    assert first.code() != second.code()


def test_a_changed_module_is_imported_again_after_another_task_had_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    one, other = folders(tmp_path, "one", "other")
    load_task(one), load_task(other)
    (tmp_path / "one" / "wording.py").write_text("WORD = 'changed'\n")
    assert said(load_task(one)) == "changed"


def test_a_module_of_the_program_stays_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    mine = ModuleType("wording")
    mine.__file__ = str(tmp_path / "program" / "wording.py")
    monkeypatch.setitem(sys.modules, "wording", mine)
    [one] = folders(tmp_path, "one")
    assert said(load_task(one)) == "one"
    assert sys.modules["wording"] is mine
