"""Names and imports of tasks written for SyGra mean karat's own parts."""

from __future__ import annotations

import importlib

import pytest

from karat.graph.sygra._functions import parse_response_as_json
from karat.graph.sygra._imports import TABLE, own_name, stands_in, task_imports
from karat.graph.sygra._task_modules import task_package
from karat.registry import load_object


@pytest.fixture(autouse=True)
def _active():
    task_imports()


@pytest.mark.parametrize("module", TABLE)
def test_every_name_of_the_table_can_be_imported(module):
    imported = importlib.import_module(module)
    for entry in TABLE[module]:
        theirs = entry.partition("=")[0]
        ours = own_name(f"{module}.{theirs}")
        if not stands_in(module):  # the package itself is installed, and is left alone
            assert ours is None
            continue
        assert ours is not None
        assert getattr(imported, theirs) is load_object(ours)


def test_names_beside_the_table_are_left_to_the_import_path():
    assert own_name("sygra.core.something.Else") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sygra.core.nothing_of_the_kind")
    with pytest.raises(ImportError):
        exec("from sygra.core.state import Nothing", {})


def test_two_tasks_of_the_same_name_do_not_share_their_code(tmp_path):
    for number in (1, 2):
        folder = tmp_path / str(number) / "tasks" / "same"
        folder.mkdir(parents=True)
        (folder / "code.py").write_text(f"NUMBER = {number}\n")
    found = []
    for number in (1, 2):
        package = task_package(tmp_path / str(number), is_tree=True)
        found.append(package.import_module("tasks.same.code").NUMBER)
    assert found == [1, 2]


def test_a_file_of_ones_own_gives_what_it_has_beside_the_names_of_the_table(tmp_path, refuses):
    folder = tmp_path / "tasks" / "eval"
    folder.mkdir(parents=True)
    (folder / "utils.py").write_text("MINE = True\nclass UnitMetrics:\n    pass\n")
    module = task_package(tmp_path, is_tree=True).import_module("tasks.eval.utils")
    assert module.MINE
    assert module.UnitMetrics is load_object("karat.graph.metrics._unit.UnitMetrics")
    with refuses(AttributeError):
        module.YOURS  # noqa: B018


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Sure: {"a": {"b": 2}} done', {"a": {"b": 2}}),
        ('{not json} then {"a": 1}', {"a": 1}),
        ("[1, 2]", {"value": [1, 2]}),
        ("nothing", None),
        (None, None),
        ("{" * 50_000, None),
    ],
)
def test_json_in_an_answer(text, found):
    assert parse_response_as_json(text) == found
