"""Names → parts: decorator, look-ups, plug-ins, dotted paths, files, and the errors for unknown names."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import types
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypedDict, Unpack

import pytest

from karat.errors import RequestError, UnknownName
from karat.registry import Registry, check_parameters, load_object, parameters_of, qualified_name


@pytest.fixture
def fruit():
    registry = Registry("fruit")

    @registry.register("apple", "malus")
    class Apple:
        """A crisp one.

        More about it.
        """

        def __init__(self, size: int, colour: str = "red"):
            self.size = size

    return registry


def test_a_part_is_found_by_its_name_and_its_aliases(fruit):
    assert fruit.get("apple") is fruit.get("malus")
    assert fruit.has("apple")
    assert fruit.has("malus")
    assert not fruit.has("pear")
    assert fruit.list() == ["apple"]


def test_a_description_has_the_first_line_and_the_parameters(fruit):
    described = fruit.describe("apple")
    assert described["description"] == "A crisp one."
    assert described["params"] == {
        "size": {"type": "int", "required": True},
        "colour": {"type": "str", "default": "red"},
    }
    assert described["aliases"] == ["malus"]


def test_an_unknown_name_names_the_nearest_known_ones(fruit, refuses):
    with refuses(UnknownName):
        fruit.get("aple")
    with pytest.raises(UnknownName, match="known: apple"):
        fruit.get("zucchini")


def test_a_name_belongs_to_one_part(fruit, refuses):
    with refuses(RequestError):
        fruit.register("apple")(lambda: None)
    with refuses(RequestError):
        fruit.register("pear", "malus")(lambda: None)


def test_a_qualified_name_leaves_out_the_private_package_of_a_task_alone():
    names = {"karat_task_12.wording": "wording", "my_karat_task_12.wording": "my_karat_task_12.wording"}
    for module, shown in names.items():
        assert qualified_name(type("Opt", (), {"__module__": module})) == f"{shown}.Opt"


def test_parts_of_another_kind_are_used_with_their_prefix(fruit):
    fruit.prefix("dried", lambda name: f"dried {name}")
    assert fruit.get("dried:apricot") == "dried apricot"


def test_dotted_paths_and_files(fruit, tmp_path):
    assert fruit.get("collections.OrderedDict").__name__ == "OrderedDict"
    (tmp_path / "own.py").write_text("class Pear:\n    class Seed:\n        pass\n")
    assert fruit.get(f"{tmp_path}/own.py:Pear").__name__ == "Pear"
    assert load_object(f"{tmp_path}/own.py:Pear.Seed").__name__ == "Seed"


@pytest.mark.parametrize(
    "path",
    [
        "collections.OrderedDct",
        "no_such_module.thing",
        "{folder}/missing.py:Pear",
        "{folder}/own.py:Peer",
        "{folder}/own.py",
        "{folder}/broken.py:Pear",
    ],
)
def test_a_part_that_cannot_be_loaded_is_reported(tmp_path, path, refuses):
    (tmp_path / "own.py").write_text("class Pear:\n    pass\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with refuses(RequestError):
        load_object(path.format(folder=tmp_path))


def test_parameters_are_checked_with_the_nearest_name(fruit, refuses):
    apple = fruit.get("apple")
    check_parameters(apple, {"size": 1}, "fruit 'apple'")
    with refuses(RequestError):
        check_parameters(apple, {"size": 1, "color": "green"}, "fruit 'apple'")
    with refuses(RequestError):
        check_parameters(apple, {}, "fruit 'apple'")


def test_plugins_are_found_by_their_entry_point_and_can_be_switched_off(tmp_path, says):
    package = tmp_path / "karat_fruit"
    package.mkdir()
    (package / "__init__.py").write_text(
        textwrap.dedent("""
        from karat.evaluators import register_evaluator

        @register_evaluator("is_ripe")
        def is_ripe(outputs):
            return outputs == "ripe"
        """)
    )
    info = tmp_path / "karat_fruit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: karat-fruit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[karat.plugins]\nfruit = karat_fruit\nrotten = karat_fruit:no_such\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from karat.evaluators import evaluators\nprint(evaluators.has('is_ripe'))"
    )

    def run(**environment):
        import os

        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **environment}
        )

    on = run(KARAT_PLUGINS="1")
    assert on.stdout.strip() == "True"
    says(on.stderr)
    assert run(KARAT_PLUGINS="0").stdout.strip() == "False"


def test_there_is_an_instance_for_each_kind_of_part():
    from karat.aggregators import aggregators
    from karat.evaluators import evaluators
    from karat.execution.engines import engines
    from karat.graph.metrics import unit_metrics
    from karat.memory import memory_systems
    from karat.models.providers import providers
    from karat.store import stores
    from karat.tasks import tasks

    kinds = [evaluators, unit_metrics, aggregators, tasks, providers, stores, engines, memory_systems]
    assert all(isinstance(registry, Registry) for registry in kinds)
    assert len({registry.kind for registry in kinds}) == 8
    assert (evaluators.has("exact_match"), unit_metrics.has("exact_match"), engines.has("local")) == (
        True,
    ) * 3


def test_threads_that_look_for_a_part_at_once_all_find_it(tmp_path, monkeypatch):
    registry = Registry("slow part", builtin=["parts_that_load_slowly"])
    entered = threading.Barrier(8)
    holder = types.SimpleNamespace(registry=registry)
    monkeypatch.setitem(sys.modules, "registry_of_slow_parts", holder)
    (tmp_path / "parts_that_load_slowly.py").write_text(
        "import threading\nfrom registry_of_slow_parts import registry\n"
        "threading.Event().wait(0.05)  # until the others look too\nregistry.register('part')(object)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def look(_):
        entered.wait()
        return registry.get("part")

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(look, range(8))) == [object] * 8


class Stage:
    """Lets a module that one thread imports wait until another thread has looked at it."""

    def __init__(self, name, monkeypatch, **members):
        self.reached, self.go_on = threading.Event(), threading.Event()
        vars(self).update(members)
        monkeypatch.setitem(sys.modules, name, self)

    def wait(self):
        self.reached.set()
        assert self.go_on.wait(30)

    def looking(self, first, second):
        """What both find: `second` begins when `first` has reached `wait`, which ends when `second` waits too."""
        with ThreadPoolExecutor(2) as threads:
            one = threads.submit(first)
            assert self.reached.wait(30)
            other = threads.submit(second)
            done, _ = wait([other], timeout=0.2)  # without the fix it returns at once
            self.go_on.set()
            return one.result(), other.result(), bool(done)


def test_a_part_is_not_given_away_before_its_module_is_complete(tmp_path, monkeypatch):
    registry = Registry("half part", builtin=["parts_of_a_half_module"])
    stage = Stage("stage_of_half_parts", monkeypatch, registry=registry)
    (tmp_path / "parts_of_a_half_module.py").write_text(
        "import stage_of_half_parts as stage\n\n"
        "@stage.registry.register('part')\nclass Part:\n    def __init__(self):\n        self.made = later()\n\n"
        "stage.wait()\n\ndef later():\n    return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def make():
        return registry.get("part")().made

    assert stage.looking(lambda: registry.list() and make(), make) == (1, 1, False)


def test_two_threads_import_a_file_once_and_get_all_of_it(tmp_path, monkeypatch):
    stage = Stage("stage_of_a_file", monkeypatch, times=[])
    file = tmp_path / "own.part.py"
    file.write_text(
        "import stage_of_a_file as stage\nstage.times.append(1)\nstage.wait()\n\ndef part():\n    pass\n"
    )

    def load():
        return load_object(f"{file}:part")

    one, other, early = stage.looking(load, load)
    assert one is other
    assert (stage.times, early) == ([1], False)


def test_another_thread_may_remove_the_last_module():
    class Emptied(list):
        """The list of modules just before another thread removes its last entry."""

        def __bool__(self):
            was = len(self) > 0
            self.clear()
            return was

    registry = Registry("part", builtin=["json"])
    registry._builtin = Emptied(registry._builtin)
    assert not registry.has("nothing")


class _Options(TypedDict, total=False):
    ripe: bool
    colour: str


class _Base:
    def __init__(self, *, ripe: bool = True, colour: str = "red", size: int = 1) -> None:
        self.ripe = ripe


class _Child(_Base):
    def __init__(self, name: str = "", **options: Unpack[_Options]) -> None:
        super().__init__(**options)


def test_options_of_a_typed_dict_are_parameters_with_the_defaults_of_the_base_class(refuses):
    described = parameters_of(_Child)
    assert list(described) == ["name", "ripe", "colour"]
    assert described["colour"]["default"] == "red"
    check_parameters(_Child, {"ripe": False}, "child")
    with refuses(RequestError):
        check_parameters(_Child, {"color": "green"}, "child")
    with pytest.raises(RequestError):
        check_parameters(_Child, {"size": 2}, "child")
