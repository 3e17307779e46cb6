"""Modules that tasks bring along: each task has its own, even under the same name."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType

import karat
from karat.errors import ConfigError
from karat.graph import load_task
from karat.graph.sygra import _task_modules
from karat.graph.sygra._task_modules import OwnModules, current_modules

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


INSIDE = """
def say(state):
    import wording
    from parts.more import MORE
    return {"said": wording.WORD + MORE}
"""


def with_imports_inside(tmp_path, *names: str) -> list[str]:
    found = folders(tmp_path, *names)
    for name in names:
        (tmp_path / name / "saying.py").write_text(INSIDE)
        (tmp_path / name / "parts").mkdir()
        (tmp_path / name / "parts" / "more.py").write_text(
            "from wording import WORD\n\nMORE = ' and ' + WORD\n"
        )
    return found


def test_an_import_inside_a_function_means_the_tasks_own_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    one, other = with_imports_inside(tmp_path, "one", "other")
    first, second = load_task(one), load_task(other)
    assert [said(first), said(second), said(first)] == ["one and one", "other and other", "one and one"]


def test_so_it_does_for_a_changed_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    one, other = with_imports_inside(tmp_path, "one", "other")
    assert [said(load_task(one)), said(load_task(other))] == ["one and one", "other and other"]
    (tmp_path / "one" / "wording.py").write_text("WORD = 'changed'\n")
    assert said(load_task(one)) == "changed and changed"


def test_so_it_does_in_two_trees_of_tasks(tmp_path):
    for name in ("one", "other"):
        folder = tmp_path / name / "tasks" / "say"
        folder.mkdir(parents=True)
        (folder / "graph_config.yaml").write_text(GRAPH.replace("saying.say", "tasks.say.task_executor.say"))
        (folder / "task_executor.py").write_text(
            "def say(state):\n"
            "    from .helpers import word\n"
            "    from tasks.say import helpers\n"
            "    return {'said': word() + helpers.word()}\n"
        )
        (folder / "helpers.py").write_text(f"def word():\n    return {name!r}\n")
    first, second = (load_task(str(tmp_path / name / "tasks" / "say")) for name in ("one", "other"))
    assert [said(first), said(second), said(first)] == ["oneone", "otherother", "oneone"]


def test_other_imports_inside_a_function_are_as_everywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    [one] = folders(tmp_path, "one")
    (tmp_path / "one" / "saying.py").write_text(
        "def say(state):\n"
        "    import os.path, json\n"
        "    from collections import abc\n"
        "    return {'said': [os.path.basename('a/b'), json.dumps(1), abc.__name__]}\n"
    )
    assert said(load_task(one)) == ["b", "1", "collections.abc"]


def test_a_module_of_the_program_stays_what_it_is_after_an_import_inside(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    [one] = with_imports_inside(tmp_path, "one")
    task = load_task(one)
    mine = ModuleType("wording")
    mine.__file__ = str(tmp_path / "program" / "wording.py")
    monkeypatch.setitem(sys.modules, "wording", mine)
    assert said(task) == "one and one"
    assert sys.modules["wording"] is mine


def test_a_relative_import_means_the_tasks_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    one, other = folders(tmp_path, "one", "other")
    for name in ("one", "other"):
        folder = tmp_path / name
        (folder / "saying.py").write_text(
            "from . import wording\nfrom .code import again\nfrom .parts.more import MORE\n\n"
            "def say(state):\n    from .wording import WORD\n    return {'said': again(WORD) + wording.WORD + MORE}\n"
        )
        (folder / "code.py").write_text(
            "def again(word):\n    return word + word\n"
        )  # as one of the standard library
        (folder / "parts").mkdir()
        (folder / "parts" / "more.py").write_text("MORE = '!'\n")
    first, second = load_task(one), load_task(other)
    assert [said(first), said(second), said(first)] == ["oneoneone!", "otherotherother!", "oneoneone!"]


def test_a_relative_import_of_what_is_not_there_says_so(tmp_path, monkeypatch, refuses):
    monkeypatch.setattr(sys, "path", list(sys.path))
    [one] = folders(tmp_path, "one")
    (tmp_path / "one" / "saying.py").write_text("from .wordng import WORD\n")
    with refuses(ConfigError):
        load_task(one)


def test_a_task_may_be_loaded_while_another_thread_imports(tmp_path, monkeypatch):
    class Names(set):
        """The names of a task that are looked at while another thread loads a task."""

        def __contains__(self, name):
            folders.setdefault(tmp_path / "new", OwnModules(tmp_path / "new"))
            return super().__contains__(name)

    own = OwnModules(tmp_path)
    own.names = Names()
    folders: dict[Path, OwnModules] = {tmp_path: own}
    monkeypatch.setattr(_task_modules, "_folders", folders)
    assert _task_modules._finder.find_spec("anything", None) is None


def test_modules_stay_in_place_while_another_thread_loads_the_changed_task(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "changing_words.py").write_text("WORD = 1\n")

    def load():
        with current_modules(tmp_path):
            import changing_words  # type: ignore[import-not-found]  # made above

            return changing_words.WORD

    assert load() == 1
    with current_modules(tmp_path):
        (tmp_path / "changing_words.py").write_text("WORD = 22\n")
        found = []
        other = threading.Thread(target=lambda: found.append(load()))
        other.start()
        other.join(0.2)  # it waits until this thread is done
        assert "changing_words" in sys.modules
    other.join()
    assert found == [22]


def test_a_folder_whose_parent_another_task_put_aside_is_another_tasks(tmp_path, monkeypatch):
    """A folder without an init file asks its parent package for its path, and that may be gone."""
    (tmp_path / "elsewhere" / "tasks" / "eval" / "agents").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    module = importlib.import_module("tasks.eval.agents")
    for name in ("tasks", "tasks.eval"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tasks.eval.agents", module)
    folder = tmp_path / "tasks"
    folder.mkdir()
    own = OwnModules(folder)
    own.refresh()
    with own.in_place():
        assert "tasks.eval.agents" not in sys.modules
    assert sys.modules["tasks.eval.agents"] is module
