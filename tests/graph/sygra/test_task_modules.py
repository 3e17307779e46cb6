"""Modules that tasks bring along: each task has its own, even under the same name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from types import ModuleType

import pytest

import karat
from karat.errors import ConfigError
from karat.graph import load_task

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


def test_an_import_inside_a_function_finds_a_changed_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    one, other = with_imports_inside(tmp_path, "one", "other")
    assert [said(load_task(one)), said(load_task(other))] == ["one and one", "other and other"]
    (tmp_path / "one" / "wording.py").write_text("WORD = 'changed'\n")
    assert said(load_task(one)) == "changed and changed"


def test_an_import_inside_a_function_stays_in_its_tree_of_tasks(tmp_path):
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


def test_a_task_may_be_loaded_while_another_thread_imports(tmp_path):
    places = with_imports_inside(tmp_path, *(f"number{number}" for number in range(20)))
    first = load_task(places[0])
    found: list[str] = []

    def import_and_run() -> None:
        for _ in range(20):
            assert importlib.util.find_spec("no_such_module_anywhere") is None
            found.append(said(first))

    other = threading.Thread(target=import_and_run)
    other.start()
    said_here = [said(load_task(place)) for place in places]
    other.join()
    assert found == ["number0 and number0"] * 20
    assert said_here == [f"number{number} and number{number}" for number in range(20)]


def test_modules_stay_in_place_while_another_thread_loads_the_changed_task(tmp_path, monkeypatch):
    [one] = folders(tmp_path, "one")
    (tmp_path / "one" / "saying.py").write_text(
        "import wording\nimport meanwhile_in_the_program\n\nmeanwhile_in_the_program.happens()\nimport later\n\n"
        "def say(state):\n    from wording import WORD\n    return {'said': wording.WORD + later.MORE + WORD}\n"
    )
    (tmp_path / "one" / "later.py").write_text("from wording import WORD\n\nMORE = f' {WORD} '\n")
    found: list[str] = []

    def happens() -> None:
        if (tmp_path / "one" / "wording.py").read_text() != "WORD = 'two'\n":
            (tmp_path / "one" / "wording.py").write_text("WORD = 'two'\n")
            other = threading.Thread(target=lambda: found.append(said(load_task(one))))
            other.start()
            other.join()

    program = ModuleType("meanwhile_in_the_program")
    program.happens = happens  # type: ignore[attr-defined]  # a module of the program
    monkeypatch.setitem(sys.modules, "meanwhile_in_the_program", program)
    assert said(load_task(one)) == "one one one"
    assert found == ["two two two"]


def test_a_folder_whose_parent_is_gone_does_not_disturb_a_task(tmp_path, monkeypatch):
    """A folder without an init file asks its parent package for its path."""
    (tmp_path / "elsewhere" / "tasks" / "eval" / "agents").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    module = importlib.import_module("tasks.eval.agents")
    for name in ("tasks", "tasks.eval"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tasks.eval.agents", module)
    folder = tmp_path / "tasks" / "eval" / "agents"
    folder.mkdir(parents=True)
    (folder / "graph_config.yaml").write_text(GRAPH.replace("saying.say", "tasks.eval.agents.saying.say"))
    (folder / "saying.py").write_text("def say(state):\n    return {'said': __name__}\n")
    assert said(load_task(str(folder))).endswith(".tasks.eval.agents.saying")
    assert sys.modules["tasks.eval.agents"] is module


def test_import_module_in_a_file_of_a_task_means_the_tasks_own_module(tmp_path):
    one, other = with_imports_inside(tmp_path, "one", "other")
    for name in ("one", "other"):
        (tmp_path / name / "saying.py").write_text(
            "import importlib, importlib.util\nfrom importlib import import_module\n\n"
            "def say(state):\n"
            "    more = import_module('parts.more').MORE + import_module('.wording', __package__).WORD\n"
            "    assert importlib.util.find_spec('json') and import_module('json').loads('1') == 1\n"
            "    return {'said': importlib.import_module('wording').WORD + more}\n"
        )
    first, second = load_task(one), load_task(other)
    assert [said(first), said(second)] == ["one and oneone", "other and otherother"]
    assert "wording" not in sys.modules


def test_the_import_path_of_the_program_stays_what_it_is(tmp_path):
    before = list(sys.path)
    [one] = with_imports_inside(tmp_path, "one")
    said(load_task(one))
    assert sys.path == before


def test_every_form_of_import_means_the_tasks_own_module(tmp_path):
    [one] = with_imports_inside(tmp_path, "one")
    (tmp_path / "one" / "parts" / "deep").mkdir()
    (tmp_path / "one" / "parts" / "deep" / "end.py").write_text(
        "from ..more import MORE\nfrom ... import wording\n"
    )
    (tmp_path / "one" / "saying.py").write_text(
        "import parts.more\nimport parts.more as again\nfrom parts import more\nimport parts.deep.end\n\n"
        "def say(state):\n"
        "    import wording as w, parts.deep.end as end\n"
        "    assert parts.more is again is more and end.MORE is more.MORE and end.wording is w\n"
        "    return {'said': parts.deep.end.wording.WORD}\n"
    )
    assert said(load_task(one)) == "one"


WITH_A_KIND = """
from dataclasses import dataclass

import wording

@dataclass
class Kind:
    word: str

def say(state, kind=Kind(wording.WORD)):
    return {"said": kind.word}
"""


def test_the_fingerprint_of_the_code_does_not_depend_on_the_place_of_the_folder(tmp_path):
    codes = set()
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        [one] = folders(tmp_path / place, "one")
        (tmp_path / place / "one" / "saying.py").write_text(WITH_A_KIND)
        codes.add(load_task(one).code())
    assert len(codes) == 1
    assert None not in codes


@pytest.mark.parametrize("text", ["import wording", "from wording import WORD", "from .wording import WORD"])
@pytest.mark.parametrize("inside", [False, True])
def test_the_fingerprint_of_the_code_has_the_modules_that_a_file_imports(tmp_path, monkeypatch, text, inside):
    mine = ModuleType("wording")
    (tmp_path / "wording.py").write_text("WORD = 'of the program'\n")
    mine.__file__ = str(tmp_path / "wording.py")
    monkeypatch.setitem(sys.modules, "wording", mine)
    [one] = folders(tmp_path, "one")
    say = f"def say(state):\n    {text}\n" if inside else f"{text}\n\ndef say(state):\n"
    (tmp_path / "one" / "saying.py").write_text(f"{say}    return {{'said': ''}}\n")
    codes = [load_task(one).code()]
    (tmp_path / "wording.py").write_text("WORD = 'changed'\n")
    codes.append(load_task(one).code())
    (tmp_path / "one" / "wording.py").write_text("WORD = 'changed'\n")
    codes.append(load_task(one).code())
    assert codes[0] == codes[1] != codes[2]


@pytest.mark.parametrize("tasks", ["tasks/eval", "tasks/eval/v1.2", "v1.2"])
def test_a_changed_file_is_imported_again_whatever_its_name(tmp_path, tasks):
    folder = tmp_path / tasks
    folder.mkdir(parents=True)
    (folder / "graph_config.yaml").write_text(GRAPH.replace("saying.say", "say.it.py:say"))
    (folder / "say.it.py").write_text(
        "from .wording import WORD\n\ndef say(state):\n    return {'said': WORD}\n"
    )
    (folder / "wording.py").write_text("WORD = 'first'\n")
    assert said(load_task(str(folder))) == "first"
    (folder / "wording.py").write_text("WORD = 'second'\n")
    assert said(load_task(str(folder))) == "second"
    (folder / "say.it.py").write_text("def say(state):\n    return {'said': 'third'}\n")
    assert said(load_task(str(folder))) == "third"


def test_a_changed_file_with_a_name_of_the_table_is_imported_again(tmp_path):
    folder = tmp_path / "tasks" / "eval"
    folder.mkdir(parents=True)
    (folder / "graph_config.yaml").write_text(GRAPH.replace("saying.say", "tasks.eval.saying.say"))
    (folder / "saying.py").write_text(
        "from tasks.eval.utils import WORD, UnitMetrics\n\ndef say(state):\n    return {'said': WORD}\n"
    )
    for word in ("first", "second"):
        (folder / "utils.py").write_text(f"from .words import WORD\nassert WORD == {word!r}\n")
        (folder / "words.py").write_text(f"WORD = {word!r}\n")
        assert said(load_task(str(folder))) == word


def test_a_function_that_a_task_names_is_its_own(tmp_path):
    for name in ("one", "other"):
        folder = tmp_path / name / "tasks" / "say"
        folder.mkdir(parents=True)
        (folder / "graph_config.yaml").write_text(GRAPH.replace("saying.say", "tasks.say.saying.say"))
        (folder / "saying.py").write_text(
            "from sygra.utils.utils import get_func_from_str\n\n"
            "def say(state):\n    return {'said': get_func_from_str('tasks.say.wording.word')()}\n"
        )
        (folder / "wording.py").write_text(f"def word():\n    return {name!r}\n")
    first, second = (load_task(str(tmp_path / name / "tasks" / "say")) for name in ("one", "other"))
    assert [said(first), said(second), said(first)] == ["one", "other", "one"]
