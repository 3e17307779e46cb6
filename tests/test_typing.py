"""The public typing: what users of mypy and pyright see. The examples of README and docs pass both."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import FILE, PAGES, ROOT, blocks

pytest.importorskip("mypy")


def check(folder: Path, *files: str) -> str:
    """What `mypy --strict` says about files of a folder; empty where it finds nothing."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
    command += ["--config-file", os.devnull, "--cache-dir", str(ROOT / ".mypy_cache" / "examples"), *files]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def write_examples(folder: Path) -> dict[str, str]:
    """Write the Python of every page as one module, and the files it names beside it; the page of each file."""
    written: dict[str, str] = {}
    for page in PAGES:
        whole = []
        home = folder / page.stem.lower()
        for language, code, line in blocks(page):
            if language != "python":
                continue
            named = FILE.match(code)
            if named:
                home.mkdir(exist_ok=True)
                path = home / named[1]
                path.write_text(code)
                written[str(path.relative_to(folder))] = page.name
            else:
                whole.append("\n" * max(0, line - sum(each.count("\n") for each in whole)) + code)
        if whole:
            path = folder / f"page_{page.stem.lower()}.py"
            path.write_text("".join(whole))
            written[path.name] = page.name
    return written


def test_the_examples_of_readme_and_docs_are_typed(tmp_path):
    written = write_examples(tmp_path)
    assert len(written) > 10
    problems = []
    pages = [name for name in written if name.startswith("page_")]
    groups = [pages, *([name] for name in written if name not in pages)]
    for group in groups:
        found = check(tmp_path, *group)
        problems += [line for line in found.splitlines() if ": error:" in line]
    assert not problems, "\n".join(problems)


OWN_PARTS = """\
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import karat
from karat import models
from karat.aggregators import BaseAggregatorMetric
from karat.evaluators import ExactMatch, UnitMetricResult, register_evaluator
from karat.tasks import Context


@dataclass
class Question:
    text: str


@dataclass
class Answer:
    text: str
    sources: list[str]


def answer(question: Question) -> Answer:
    return Answer(question.text.upper(), [])


class Cited(karat.Evaluator):
    name = "cited"

    def evaluate(
        self, *, outputs: Answer, reference_outputs: str | None = None, inputs: Question | None = None, **context: Any
    ) -> karat.Result:
        return karat.Result(self.key, float(len(outputs.sources)))


class Longer(karat.Evaluator):
    name = "longer"

    def compare(self, example: karat.Example, first: karat.Output, second: karat.Output) -> str:
        return "win"


class Trimmed(ExactMatch):
    def prepare(self, output: object) -> str:
        return str(output).strip()


@register_evaluator("short")
def short(outputs: Answer) -> bool:
    return len(outputs.text) < 10


class Translate(karat.Task):
    name = "translate"
    is_async = True

    def __init__(self, model: str) -> None:
        self.model = models.get(model)

    async def call_async(self, example: karat.Example, context: Context) -> str:
        return (await self.model.generate(example.input)).text


class Share(BaseAggregatorMetric):
    def start(self) -> list[bool]:
        return []

    def add(self, state: list[bool], result: UnitMetricResult | None) -> list[bool]:
        return [*state, result is not None and result.correct]

    def finish(self, state: list[bool]) -> dict[str, Any]:
        return {"share": sum(state) / len(state)}


rows: list[dict[str, str]] = [{"input": "a", "expected": "A"}]
runs = [karat.run(answer, rows, limit=3), karat.run(Translate("openai:gpt-5"), rows)]
karat.evaluate(runs, [Cited(), Trimmed(path="text"), short, {"name": "edit_distance", "key": "close"}, Longer()])
"""

CASES = {
    "a misspelt parameter of an evaluator is an error": (
        "from karat.evaluators import ExactMatch\nExactMatch(case_sensitiv=3)\n",
        'Unexpected keyword argument "case_sensitiv"',
    ),
    "a model is a Model": (
        "import karat\nreveal_type(karat.models.get('openai:gpt-5'))\n",
        'Revealed type is "karat.models._client.Model"',
    ),
    "a run is a Run": (
        "import karat\n\n\ndef task(x: int) -> int:\n    return x\n\n\n"
        "reveal_type(karat.run(task, karat.Dataset.from_examples([], name='d')))\n",
        'Revealed type is "karat.store.handles.Run"',
    ),
    "estimates are typed": (
        "import karat\n\n\ndef f(a: karat.Aggregation) -> None:\n    reveal_type(a.estimates['accuracy'])\n",
        'Revealed type is "karat.records.Estimate"',
    ),
    "an aggregator may be a function": (
        "import karat\n\n\ndef worst(results: list[karat.Result]) -> float:\n"
        "    return min(r.score or 0.0 for r in results)\n\n\n"
        "def f(e: karat.Evaluation) -> None:\n    reveal_type(karat.aggregate(e, [worst, 'mean']))\n",
        'Revealed type is "karat.store.handles.Aggregation"',
    ),
    "a subclass of Evaluator passes": (
        "import karat\nfrom typing import Any\n\n\nclass Shorter(karat.Evaluator):\n    name = 'shorter'\n\n"
        "    def evaluate(self, *, outputs: Any, reference_outputs: Any = None, inputs: Any = None, **context: Any)"
        " -> karat.Result:\n        return karat.Result(self.key, float(len(outputs) < 3))\n\n\nShorter()\n",
        "",
    ),
    "an experiment has runs": (
        "import karat\n\nfor run in karat.experiment('e.yaml').runs:\n    reveal_type(run)\n",
        'Revealed type is "karat.store.handles.Run"',
    ),
    "a misspelt parameter of a model is an error": (
        "import karat\nkarat.models.get('openai:gpt-5', temprature=0)\n",
        'Unexpected keyword argument "temprature"',
    ),
    "a misspelt method of a ranking is an error": (
        "import karat\n\n\ndef f(a: karat.Run, b: karat.Run) -> None:\n"
        "    karat.rank([a, b], metric='accuracy', method='elos')\n",
        """expected "Literal['bradley_terry', 'elo']\"""",
    ),
    "a built evaluator is an Evaluator": (
        "from karat.evaluators import build_evaluator\nreveal_type(build_evaluator('exact_match'))\n",
        'Revealed type is "karat.evaluators._base.Evaluator"',
    ),
    "a misspelt name of a package is an error": (
        "from karat import stats\nstats.propotion([True])\n",
        'Module has no attribute "propotion"',
    ),
    "own parts may have types of their own": (OWN_PARTS, ""),
    "types of results can be named": (
        "import karat\nfrom collections.abc import Iterator\n\n\n"
        "def outcome() -> karat.Outcome:\n    return karat.experiment('e.yaml')\n\n\n"
        "def rows(evaluation: karat.Evaluation) -> Iterator[karat.Row]:\n    yield from evaluation.rows()\n\n\n"
        "def places(ranking: karat.Ranking) -> list[karat.Place]:\n    return list(ranking.places)\n\n\n"
        "def found(comparison: karat.Comparison) -> list[karat.Difference]:\n"
        "    return list(comparison.differences)\n\n\n"
        "def gate(aggregation: karat.Aggregation) -> list[karat.ThresholdGate]:\n"
        "    return karat.gate(aggregation, 'accuracy:0.8')\n\n\n"
        "def stored(store: karat.Store) -> karat.StoredDataset | karat.Run | karat.Evaluation | karat.Aggregation:\n"
        "    return store.get('x')\n\n\n"
        "def listener(progress: karat.Progress) -> None: ...\n\n\n"
        "shown: karat.Listener = listener\n",
        "",
    ),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What mypy says about each case, from one run over all of them."""
    folder = tmp_path_factory.mktemp("typing")
    names = {title: f"case_{number}.py" for number, title in enumerate(CASES)}
    for title, (code, _) in CASES.items():
        (folder / names[title]).write_text(code)
    said = check(folder, *names.values())
    return {
        title: "\n".join(line for line in said.splitlines() if line.startswith(f"{name}:"))
        for title, name in names.items()
    }


@pytest.mark.parametrize("title", CASES)
def test_the_public_surface_is_typed(title, answers):
    wanted = CASES[title][1]
    if wanted:
        assert wanted in answers[title]
    else:
        assert answers[title] == ""


PYRIGHT_CASES = {
    "a misspelt parameter of an evaluator is an error": 'No parameter named "case_sensitiv"',
    "a model is a Model": 'is "Model"',
    "a run is a Run": 'is "Run"',
    "estimates are typed": 'is "Estimate"',
    "an aggregator may be a function": 'is "Aggregation"',
    "a subclass of Evaluator passes": "",
    "an experiment has runs": 'is "Run"',
    "a misspelt parameter of a model is an error": 'No parameter named "temprature"',
    "a misspelt method of a ranking is an error": "\"Literal['elos']\" is not assignable",
    "a built evaluator is an Evaluator": 'is "Evaluator"',
    "a misspelt name of a package is an error": '"propotion" is not a known attribute',
    "own parts may have types of their own": "",
    "types of results can be named": "",
}


@pytest.fixture(scope="module")
def pyright(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What pyright says about the examples of all pages and about the cases; basedpyright brings its own Node."""
    command = shutil.which("basedpyright", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("basedpyright is not installed: it is in the extra test")
    folder = tmp_path_factory.mktemp("pyright")
    write_examples(folder)
    for number, (code, _) in enumerate(CASES.values()):
        (folder / f"case_{number}.py").write_text(code)
    settings = {
        "typeCheckingMode": "standard",
        "extraPaths": [str(ROOT / "src")],
        "reportMissingModuleSource": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [command, "--pythonpath", sys.executable, "--outputjson", "."],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["summary"]["filesAnalyzed"] > len(CASES)
    found: list[dict[str, Any]] = document["generalDiagnostics"]
    return found


def test_the_examples_of_readme_and_docs_pass_pyright(pyright):
    errors = [each for each in pyright if each["severity"] == "error" and "/case_" not in each["file"]]
    assert errors == []


@pytest.mark.parametrize("title", CASES)
def test_the_public_surface_is_typed_for_pyright(title, pyright):
    name = f"/case_{list(CASES).index(title)}.py"
    messages = [each["message"] for each in pyright if each["file"].endswith(name)]
    wanted = PYRIGHT_CASES[title]
    assert [wanted in message for message in messages] == ([True] if wanted else [])
