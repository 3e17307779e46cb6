"""What the public surface promises beside its names: estimates with fields, parts that are built once, and habits."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import karat
from karat.errors import UnknownName
from karat.evaluators import ExactMatch

ROOT = Path(__file__).parents[1]
ROWS = [
    {"id": str(n), "input": n, "expected": n % 3, "metadata": {"kind": "even" if n % 2 == 0 else "odd"}}
    for n in range(6)
]


def rest(number: int) -> int:
    return number % 3


def parity(number: int) -> int:
    return number % 2


@pytest.fixture
def store() -> Iterator[karat.Store]:
    with karat.open_store("memory://") as opened:
        yield opened


@pytest.fixture
def aggregation(store: karat.Store) -> karat.Aggregation:
    runs = [karat.run(task, ROWS, store=store) for task in (rest, parity)]
    evaluation = karat.evaluate(runs, ["exact_match", {"name": "exact_match", "key": "again"}], store=store)
    grouped = {"name": "mean", "key": "by_kind", "params": {"by": "kind"}, "of": ["again"]}
    return karat.aggregate(evaluation, ["accuracy", grouped, karat_least], store=store)


def karat_least(results: list[karat.Result]) -> float:
    return min(result.score or 0.0 for result in results)


def test_an_estimate_says_in_fields_what_it_is_about(aggregation: karat.Aggregation) -> None:
    runs = {each.run for each in aggregation.estimates}
    assert all(run is None or re.fullmatch(r"run-[0-9a-f]+", run) for run in runs)
    assert all(each.group is None or isinstance(each.group, Mapping) for each in aggregation.estimates)
    first = min(run for run in runs if run)
    found = aggregation.estimates.get(evaluator="exact_match", aggregator="accuracy", run=first)
    assert (found.evaluator, found.aggregator, found.run, found.group) == (
        "exact_match",
        "accuracy",
        first,
        None,
    )
    odd = aggregation.estimates.get(aggregator="by_kind", run=first, group={"kind": "odd"})
    assert odd.group == {"kind": "odd"}
    names = {text for each in aggregation.estimates for text in (each.evaluator, each.aggregator, each.name)}
    assert not [name for name in names if re.search(r"@|\.by\.", name or "")]
    assert {"evaluator", "aggregator", "run", "value"} <= aggregation.to_dict()["estimates"][0].keys()


def test_an_estimate_is_found_by_a_name_that_is_unique(aggregation: karat.Aggregation) -> None:
    one = aggregation.estimates.select(evaluator="exact_match", run=aggregation.estimates[0].run)
    assert one["karat_least"].value in (0.0, 1.0)
    for look_up in (lambda: aggregation.estimates["acuracy"], lambda: aggregation.estimates["accuracy"]):
        with pytest.raises(UnknownName):
            look_up()
    with pytest.raises(UnknownName, match=r"'accuracy'"):
        aggregation.estimates["acuracy"]


def test_bytes_are_judged_alike_alone_and_in_a_stage(store: karat.Store) -> None:
    run = karat.run(lambda text: text.encode(), [{"input": "Paris", "expected": "Paris"}], store=store)
    [result] = karat.evaluate(run, ["exact_match"], store=store).results()
    assert result.score == ExactMatch().evaluate(outputs=b"Paris", reference_outputs="Paris").score == 1.0


async def test_an_aggregator_that_computes_holds_up_no_event_loop(store: karat.Store) -> None:
    threads = set()

    def where(results: list[karat.Result]) -> float:
        threads.add(threading.get_ident())
        return 1.0

    evaluation = await karat.evaluate_async(await karat.run_async(rest, ROWS, store=store), ["exact_match"])
    await karat.aggregate_async(evaluation, [where])
    assert threads
    assert threading.get_ident() not in threads


def test_an_experiment_builds_each_part_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts.py").write_text(
        "import karat\nfrom karat.aggregators import Aggregate, Aggregator\n\nbuilt = []\n\n\n"
        "def task(x):\n    return x\n\n\n"
        "class Judge(karat.Evaluator):\n    def __init__(self):\n        super().__init__('judge')\n"
        "        built.append('judge')\n\n"
        "    def evaluate(self, *, outputs, reference_outputs=None, inputs=None, **context):\n"
        "        return karat.Result(self.key, 1.0)\n\n\n"
        "class Count(Aggregator):\n    def __init__(self):\n        built.append('count')\n\n"
        "    def start(self):\n        return 0\n\n    def add(self, state, group):\n        return state + 1\n\n"
        "    def merge(self, a, b):\n        return a + b\n\n"
        "    def finish(self, state):\n        out = Aggregate()\n        out.add(karat.Estimate(float(state)))\n"
        "        return out\n"
    )
    (tmp_path / "e.yaml").write_text(
        "dataset: [{input: 1}, {input: 2}]\ntask: parts.py:task\nevaluators: [parts.py:Judge]\n"
        "aggregators: [parts.py:Count]\nstore: memory://\n"
    )
    monkeypatch.chdir(tmp_path)
    outcome = karat.experiment("e.yaml")
    assert [run.counts.ok for run in outcome.runs] == [2]
    modules = [
        m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(tmp_path / "parts.py")
    ]
    assert [module.built for module in modules] == [["judge", "count"]]


@pytest.mark.parametrize("name", ["run", "evaluate", "aggregate", "compare", "rank"])
def test_a_signature_can_be_read(name: str) -> None:
    """The rest are options in documented groups, which type checkers know from their TypedDict."""
    function = getattr(karat, name)
    shown = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert len(shown) <= 16 if name in ("compare", "rank") else len(shown) <= 9
    options = inspect.signature(function).parameters.get("options")
    assert options is None or "Options" in str(options.annotation)
    if name == "run":
        from karat.execution.arguments import RunOptions, StageOptions

        missing = [
            each
            for each in (*StageOptions.__annotations__, *RunOptions.__annotations__)
            if f"`{each}`" not in (function.__doc__ or "")
        ]
        assert not missing


def test_settings_are_passed_as_parameters_and_not_by_the_environment() -> None:
    """Two adapters switch off what their libraries send; nothing else of karat writes into the environment."""
    writes = []
    for path in sorted((ROOT / "src" / "karat").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets: list[Any] = node.targets if isinstance(node, ast.Assign) else []
            writes += [path.stem for each in targets if ast.unparse(each).startswith("os.environ[")]
            if isinstance(node, ast.Call) and re.fullmatch(
                r"os\.(environ\.(setdefault|update|pop)|putenv|unsetenv)", ast.unparse(node.func)
            ):
                writes.append(path.stem)
    assert set(writes) <= {"_mem0", "_graphiti"}


def test_the_version_has_one_source() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in project
    assert '[tool.hatch.version]\npath = "src/karat/__init__.py"' in project
    assert importlib.metadata.version("karat") == karat.__version__
    written = [
        path.name
        for path in (ROOT / "src").rglob("*.py")
        if f'"{karat.__version__}"' in path.read_text(encoding="utf-8")
    ]
    assert written == ["__init__.py"]


def test_the_workflow_runs_the_tests_on_every_version_that_is_declared() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    [job] = yaml.safe_load((ROOT / ".github/workflows/test.yaml").read_text())["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == declared == ["3.11", "3.12", "3.13"]
    assert any(step.get("run", "").startswith("make test") for step in job["steps"])


def test_hooks_are_local_and_run_the_tools_of_make() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    tools = {hook["entry"].split()[0] for hook in repos[0]["hooks"]}
    assert tools == {".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/pytest"}


def test_contributing_adds_each_part_in_five_steps() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    guides = re.findall(r"^## Add an? ([\w ]+) in five steps\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert [part for part, _ in guides] == ["evaluator", "aggregator", "model provider", "trace format"]
    for _, steps in guides:
        assert re.findall(r"^(\d)\. ", steps, re.M) == list("12345")
        for path in re.findall(r"`((?:src|tests|docs)/[\w/.]+)`", steps):
            assert (ROOT / path).exists(), path
