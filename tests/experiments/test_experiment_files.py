"""The contents of experiment files, and the errors for invalid ones."""

import json
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import karat
from karat import Dataset
from karat.documents import read_document
from karat.errors import ConfigError, RequestError
from karat.experiments import carry_out, experiment_schema, read_experiment
from karat.store import open_store
from karat.tasks.prompt import PromptTask

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    for name in ("KARAT_STORE", "KARAT_MODEL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "qa.jsonl").write_text(
        '{"id": "a", "question": "x", "answer": "X"}\n{"id": "b", "question": "y", "answer": "Y"}\n'
    )
    (tmp_path / "loud.py").write_text(
        "def loud(text, end=''):\n    return text.upper() + end\n"
        "def same(outputs, reference_outputs):\n    return outputs == reference_outputs\n"
        "class Sayer:\n"
        "    def __init__(self, word): self.word = word\n"
        "    def __call__(self, text): return self.word\n"
    )
    return tmp_path


def written(text: str, name: str = "experiment.yaml") -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_experiment(written(text))
    return caught.value.problems


DATASET = "dataset: {path: qa.jsonl, input: question, expected: answer}\n"


def test_every_mistake_is_reported_at_once_with_its_line(says):
    found = problems(
        "name: wrong\n"
        "dataset:\n"
        "  pth: qa.jsonl\n"
        "  input: 3\n"
        "task: lod.py:loud\n"
        "evaluatrs: []\n"
        "evaluators:\n"
        "  - exact_mach\n"
        "  - {name: contains, params: {substrng: x}}\n"
        "  - {name: exact_match, key: same}\n"
        "  - {name: exact_match, key: same}\n"
        "  - 5\n"
        "aggregators:\n"
        "  - acuracy\n"
        "attempts: 0\n"
        "concurrency: many\n"
        "timeout: -1\n"
    )
    lines = [*range(2, 7), 8, 9, 11, 12, *range(14, 18)]
    assert [problem.split(": ")[0] for problem in found] == [f"line {number}" for number in lines]
    says(*found)


@pytest.mark.parametrize(
    "text",
    [
        "task: loud.py:loud\n",
        DATASET,
        DATASET + "task: loud.py:lod\n",
        DATASET + "task:\n",
        DATASET + "tsk: loud.py:loud\n",
        DATASET + "task: loud.py:loud\nbudget: 3\n",
        "dataset:\n  path: qa.jsonl\n  input: quesion\ntask: loud.py:loud\n",
        "dataset:\n  path: qa.jsonl\n  input: []\ntask: loud.py:loud\n",
        DATASET + "task: {functon: loud.py:loud}\n",
        DATASET + "task: {function: loud.py:loud, params: {ed: x}}\n",
        DATASET + "task: {function: loud.py:Sayer}\n",
        DATASET + "task: {recorded: none.jsonl}\n",
        DATASET + "task: {prompt: 'hi', model: openai/x}\n",
        DATASET + "task:\n  prompt: '{questoin}'\n  model: openai/x\n",
        DATASET + "task: {prompt: '{input}', model: opnai/x}\n",
        DATASET + "task: {prompt: '{input}'}\n",
        DATASET + "task: {prompt: '{input}', model: openai/x}\nmodels: [openai/y]\n",
        DATASET + "task: {prompt: [{role: usr, content: '{input}'}], model: openai/x}\n",
        DATASET + "task: loud.py:loud\naggregators: [mean]\n",
        DATASET + "task: loud.py:loud\nevaluators: [exact_match]\naggregators: [{name: mean, of: x}]\n",
        DATASET + "task: loud.py:loud\nevaluators: [exact_match]\naggregators: [win_rate]\n",
        "dataset: [{inpt: 1}]\ntask: loud.py:loud\n",
        "dataset: qx.jsonl\ntask: loud.py:loud\n",
        "dataset: nobody\ntask: loud.py:loud\n",
        "dataset: 5\ntask: loud.py:loud\n",
        "dataset: {path: qa.jsonl, input: quesion}\ntask: loud.py:loud\n",
        "task: x\ntask: y\n",
        "a: {b: 1, c: {d: 1, d: 2}}\n",
        "",
        "- a\n",
        "a: [\n",
        "a: &a [*a]\n",
        "a: !!python/object/apply:os.system [ls]\n",
        "? [a]\n: b\n",
    ],
)
def test_a_mistake_says_what_where_and_the_nearest_right_thing(text, says):
    says(*problems(text))


TYPED = "def typed(text: str, n: int = 1) -> str:\n    return text * n\nclass Empty:\n    pass\ndef none():\n    pass\n"


@pytest.mark.parametrize(
    "text",
    [
        DATASET + "task: {function: typed.py:typed, params: {n: x}}\n",
        DATASET + "task: typed.py:typed\nmatrix: {n: [1, x]}\n",
        "dataset: qa.jsonl\ntask: typed.py:typed\n",
        DATASET + "task: {recorded: others.jsonl}\n",
        DATASET + "task: loud.py:loud\nevaluators: [typed.py:Empty]\n",
        DATASET + "task: loud.py:loud\nevaluators: [{name: by_metric, params: {metric: exact_match}}]\n",
        DATASET
        + "task: loud.py:loud\nevaluators:\n"
        + "- {name: json_schema_match, params: {schema: {$ref: 'http://127.0.0.1:9/x'}}}\n",
        DATASET + "task: loud.py:loud\nevaluators: [exact_match]\naggregators: [typed.py:none]\n",
        DATASET
        + "task: loud.py:loud\nevaluators: [exact_match]\n"
        + "aggregators: [{name: mean, params: {confidence: 95}}]\n",
        DATASET + "task: {prompt: '{input}', model: openai/x, stop: ''}\n",
        DATASET + "task: loud.py:loud\nmodels: []\n",
        DATASET + "task: loud.py:loud\nretries: 1000000000\n",
        DATASET + "task: {prompt: '{input}'}\nmodels: x\n",
        DATASET + "task: {prompt: '{input}'}\nmodels: [m@http://127.0.0.1:9/v1, m@http://127.0.0.1:9/v1]\n",
        DATASET + "task: typed.py:typed\nmatrix: {n: [1, 2, 1]}\n",
        DATASET + "task: {model: openai/x}\nmatrix: {prompt: ['{input}']}\n",
        DATASET + "task: {prompt: '{input}', model: openai/x}\nmatrix: {prompt: ['{input}', '{inptu}']}\n",
        *[
            DATASET + f"task: {{prompt: '{{input}}', model: openai/x, schema: {schema}}}\n"
            for schema in (
                "{type: strin}",
                "{$ref: 'file:///etc/hostname'}",
                "{$ref: '#/$defs/none'}",
                "typed.Empty",
            )
        ],
    ],
)
def test_later_failures_are_found_before_anything_runs(folder, text, says):
    (folder / "typed.py").write_text(TYPED)
    (folder / "others.jsonl").write_text('{"id": "z", "output": "x"}\n')
    says(*problems(text))


def test_a_short_stored_dataset_is_checked(folder, says):
    with open_store("sqlite:///karat.db") as store:
        store.datasets.put(Dataset.from_examples([{"input": "x", "metadata": {"topic": "a"}}], name="stored"))
    found = problems(
        "dataset: stored\ntask: loud.py:loud\nevaluators: [json_valid]\n"
        "aggregators: [{name: mean, params: {by: tpic}}]\n"
    )
    says(found[0])


def test_a_store_beside_an_experiment_in_a_folder_of_any_name(tmp_path):
    place = tmp_path / "100% of a? #b"
    place.mkdir()
    (place / "experiment.yaml").write_text(
        "dataset: [{input: a}]\ntask: ../loud.py:loud\nstore: sqlite:///own.db\n"
    )
    with open_store(read_experiment(place / "experiment.yaml").store):
        assert (place / "own.db").is_file()


def test_aliases_cannot_blow_up(says):
    rows = "\n".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]" for i in range(9)
    )
    says(problems(f"a: &a [x, x]\n{rows}\n")[0])


def test_plain_yaml_words_are_strings():
    text = "a: no\nb: 12:30\nc: 2024-01-01\nd: 012\ne: 7\nf: 1e3\ng: true\nh: ~\ni: 0x1f\nj: .5\nk: on\n"
    assert read_document(written(text)).value == {
        "a": "no", "b": "12:30", "c": "2024-01-01", "d": "012", "e": 7, "f": 1000.0,
        "g": True, "h": None, "i": 31, "j": 0.5, "k": "on",
    }  # fmt: skip


WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the file is written anew each time
@given(VALUES)
def test_json_is_yaml(value):
    path = written(json.dumps(value, ensure_ascii=False), "any.yaml")
    assert read_document(path).value == value


def test_paths_are_relative_to_the_file(folder):
    written("dataset: ../qa.jsonl\ntask: ../loud.py:loud\nstore: sqlite:///here.db\n", "deep/experiment.yaml")
    plan = read_experiment("deep/experiment.yaml")
    assert len(plan.dataset) == 2
    assert plan.runs[0].task.name == "loud"
    assert plan.store == f"sqlite:///{folder / 'deep' / 'here.db'}"
    assert plan.name == "deep"
    assert read_experiment("deep/experiment.yaml", store="memory://").store == "memory://"


@pytest.mark.parametrize(
    ("task", "output"),
    [
        ("loud.py:loud", "X"),
        ("{function: loud.py:loud, params: {end: '!'}}", "X!"),
        ("{function: 'loud.py:Sayer', params: {word: hi}, name: sayer}", "hi"),
        ("{recorded: recorded.jsonl}", "kept"),
    ],
)
def test_forms_of_a_task(task, output):
    Path("recorded.jsonl").write_text('{"id": "a", "output": "kept"}\n')
    plan = read_experiment(written(DATASET + f"task: {task}\nlimit: 1\n"))
    with open_store("memory://") as store:
        outcome = carry_out(plan, store)
        assert [each.value for each in outcome.runs[0].outputs()] == [output]
        assert outcome.status == "success"
        assert outcome.evaluation is None


def test_forms_of_a_dataset():
    task = "task: loud.py:loud\n"
    inline = read_experiment(
        written("name: few\ndataset: [{id: 1, input: x}, {input: no, expected: No}]\n" + task)
    )
    assert [(each.input, each.expected) for each in inline.dataset] == [("x", None), ("no", "No")]
    assert inline.dataset.name == "few"
    with open_store("sqlite:///some.db") as store:
        carry_out(inline, store)
    stored = read_experiment(written("store: sqlite:///some.db\ndataset: few\n" + task))
    assert stored.dataset == "few@1"
    Path("rows.csv").write_text("question;x\n")
    with_format = (
        "dataset: {path: qa.jsonl, format: jsonl, name: renamed, id: false, input: [id, question]}\n"
    )
    plan = read_experiment(written(with_format + task))
    assert plan.dataset.name == "renamed"
    assert next(iter(plan.dataset)).input == {"id": "a", "question": "x"}


def test_an_experiment_is_carried_out_and_then_returned(folder):
    written(
        DATASET + "task: loud.py:loud\nlabels: [first]\ndescription: loud\nconfidence: 0.9\nlimit: 1\n"
        "evaluators: [exact_match, {name: 'loud.py:same', key: own}]\naggregators: [accuracy, {name: mean, of: own}]\n"
    )
    with open_store("memory://") as store:
        outcome = carry_out(read_experiment("experiment.yaml"), store)
        assert outcome.status == "success"
        found = {(e.evaluator, e.aggregator) for e in outcome.aggregation.estimates}
        assert found == {("exact_match", "accuracy"), ("own", "accuracy"), ("own", "mean")}
        assert outcome.aggregation.estimates.get(evaluator="own", aggregator="mean").confidence == 0.9
        assert outcome.runs[0].header.labels == ["first"]
        again = carry_out(read_experiment("experiment.yaml"), store)
        assert again.to_dict()["evaluation"]["id"] == outcome.evaluation.id
        assert again.aggregation.id == outcome.aggregation.id


def test_an_experiment_in_python_has_runs_evaluation_aggregation_and_comparison(folder):
    written(
        DATASET
        + "task: loud.py:loud\nmatrix: {end: ['', '!']}\nevaluators: [exact_match]\naggregators: [accuracy]\n"
    )
    with open_store("memory://") as store:
        outcome = karat.experiment("experiment.yaml", store=store, progress=False)
        assert all(isinstance(run, karat.Run) for run in outcome.runs)
        assert isinstance(outcome.evaluation, karat.Evaluation)
        assert isinstance(outcome.aggregation, karat.Aggregation)
        assert isinstance(outcome.comparison, karat.Comparison)
        values = [outcome.aggregation.estimates.get(run=run.id).value for run in outcome.runs]
        assert values == [1.0, 0.0]
        assert outcome.comparison.differences[0].compared.difference.value == -1.0


BUILT = """
import karat
from karat.aggregators import Aggregate, Aggregator

built = []


class Same(karat.Evaluator):
    name = "same"

    def __init__(self, step=1):
        self.params = {"step": step}
        built.append("evaluator")

    def evaluate(self, *, outputs, reference_outputs=None, inputs=None, **context):
        return karat.Result(self.key, float(outputs == reference_outputs))


class Count(Aggregator):
    def __init__(self):
        self.params = {}
        built.append("aggregator")

    def start(self):
        return 0

    def add(self, state, group):
        return state + 1

    def merge(self, a, b):
        return a + b

    def finish(self, state):
        made = Aggregate()
        made.add(karat.Estimate(value=float(state), n=state, of=state, low=float(len(built))))
        return made
"""


def test_evaluators_and_aggregators_are_built_once(folder):
    """What was built for the check is what the stages use; the estimate has the number of constructions."""
    (folder / "counted.py").write_text(BUILT)
    written(DATASET + "task: loud.py:loud\nevaluators: [counted.py:Same]\naggregators: [counted.py:Count]\n")
    with open_store("memory://") as store:
        [estimate] = karat.experiment("experiment.yaml", store=store, progress=False).aggregation.estimates
        assert (estimate.value, estimate.low) == (2.0, 2.0)


def test_one_more_evaluator_returns_the_run_and_computes_only_what_is_new():
    with open_store("memory://") as store:
        base = DATASET + "task: loud.py:loud\nlimit: 1\n"
        first = carry_out(read_experiment(written(base + "evaluators: [exact_match]\n")), store)
        second = carry_out(
            read_experiment(written(base + "evaluators: [exact_match, edit_distance]\n")), store
        )
        assert second.runs[0].id == first.runs[0].id
        assert second.evaluation.id != first.evaluation.id


def test_a_prompt_for_several_models():
    plan = read_experiment(written(DATASET + "task: {prompt: 'Say {input}'}\nmodels: [openai/a, openai/b]\n"))
    assert [planned.model for planned in plan.runs] == ["openai/a", "openai/b"]
    assert all(isinstance(planned.task, PromptTask) for planned in plan.runs)
    one = read_experiment("experiment.yaml", models=["openai/c"])
    assert [planned.task.model.spec for planned in one.runs] == ["openai/c"]


def test_the_schema_of_an_answer(says):
    Path("answer.json").write_text('{"type": "object"}')
    text = DATASET + "task: {prompt: '{input}', model: openai/x, schema: %s}\n"
    for schema in ("answer.json", "{type: object}"):
        task = read_experiment(written(text % schema)).runs[0].task
        assert task.configuration()["schema"] == {"type": "object"}
    says(problems(text % "none.json")[0])


def test_the_published_schema_is_the_one_in_use():
    """Make it again with: python -m karat.experiments.schema > docs/schema/experiment.schema.json"""
    published = json.loads((ROOT / "docs/schema/experiment.schema.json").read_text(encoding="utf-8"))
    assert published == experiment_schema()


@pytest.mark.parametrize("path", ["src/karat/demo/experiment.yaml", "src/karat/templates/experiment.yaml"])
def test_the_schema_accepts_what_karat_ships(path):
    jsonschema.Draft202012Validator(experiment_schema()).validate(yaml.safe_load((ROOT / path).read_text()))


def test_data_without_references_are_refused_where_an_evaluator_needs_one(folder: Path, refuses) -> None:
    head = "dataset: {path: qa.jsonl, input: question}\ntask: loud.py:loud\n"
    text = head + "evaluators: [exact_match, {name: contains, params: {substring: X}}]\n"
    (folder / "experiment.yaml").write_text(text)
    with refuses(ConfigError):
        read_experiment(folder / "experiment.yaml")
    (folder / "experiment.yaml").write_text(text.replace("exact_match", "json_valid"))
    assert len(read_experiment(folder / "experiment.yaml").evaluators) == 2


def test_parts_and_store_beside_the_experiment_are_found_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "inside").mkdir()
    (folder / "inside" / "metric.py").write_text(
        "from karat.evaluators import BaseUnitMetric, UnitMetricResult\n"
        "class Same(BaseUnitMetric):\n"
        "    def evaluate(self, golden, predicted):\n"
        "        return [UnitMetricResult(g == p, {'v': g}, {'v': p}, {}) for g, p in zip(golden, predicted)]\n"
    )
    (folder / "inside" / "experiment.yaml").write_text(
        "dataset: [{input: a, expected: A}]\ntask: ../loud.py:loud\nstore: own.db\n"
        "evaluators: [{name: 'unit:metric.py:Same', key: same}]\naggregators: [accuracy]\n"
    )
    plan = read_experiment(Path("inside/experiment.yaml"))
    assert plan.store == str(folder / "inside" / "own.db")
    with open_store(plan.store) as store:
        aggregation = carry_out(plan, store).aggregation
        assert aggregation is not None
        assert aggregation.estimates.get(evaluator="same", aggregator="accuracy").value == 1.0


@pytest.mark.parametrize("given", [{"dataset": "qa.jsonl"}, None, 3])
def test_an_experiment_is_a_file(given):
    with pytest.raises(RequestError, match=type(given).__name__):
        karat.experiment(given, progress=False)


def test_a_file_in_utf16_is_named_as_such(folder, refuses):
    (folder / "wide.yaml").write_bytes((DATASET + "task: loud.py:loud\n").encode("utf-16"))
    (folder / "wine").mkdir()
    with refuses(ConfigError):
        karat.experiment("wide.yaml")
    with refuses(ConfigError):  # a folder is no experiment that was meant
        karat.experiment("wines.yaml")
