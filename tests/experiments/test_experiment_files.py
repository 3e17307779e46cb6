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


def test_every_mistake_is_reported_at_once_with_its_line():
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
    expected = [
        ("line 2", "dataset: needs 'path'"),
        ("line 3", "dataset.pth: unknown key: did you mean 'path'?"),
        ("line 4", "dataset.input: must be a string or a list"),
        ("line 5", "task: file not found: lod.py: did you mean loud.py?"),
        ("line 6", "evaluatrs: unknown key: did you mean 'evaluators'?"),
        ("line 8", "did you mean 'exact_match'"),
        ("line 9", "did you mean 'substring'"),
        ("line 11", "duplicate key 'same'"),
        ("line 12", "evaluators[4]: must be a name or {name, params, key}"),
        ("line 14", "did you mean 'accuracy'"),
        ("line 15", "attempts: must be greater than or equal to 1"),
        ("line 16", "concurrency: must be an integer"),
        ("line 17", "timeout: must be greater than 0"),
    ]
    assert len(found) == len(expected)
    for problem, (line, text) in zip(found, expected, strict=True):
        assert problem.startswith(f"{line}: "), problem
        assert text in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("task: loud.py:loud\n", "line 1: dataset: is missing"),
        (DATASET, "line 1: task: is missing"),
        (DATASET + "task: loud.py:lod\n", "line 2: task: loud.py has no 'lod': did you mean 'loud'"),
        (
            DATASET + "task: {functon: loud.py:loud}\n",
            "line 2: task.functon: unknown key: did you mean 'function'?",
        ),
        (
            DATASET + "task: {function: loud.py:loud, params: {ed: x}}\n",
            "has no parameter 'ed': did you mean 'end'?",
        ),
        (DATASET + "task: {function: loud.py:Sayer}\n", "needs the parameter 'word'"),
        (DATASET + "task: {recorded: none.jsonl}\n", "line 2: task: none.jsonl does not exist"),
        (DATASET + "task: {prompt: 'hi', model: openai/x}\n", "the prompt has no {variable}"),
        (
            DATASET + "task:\n  prompt: '{questoin}'\n  model: openai/x\n",
            "line 3: task.prompt: the prompt asks for",
        ),
        (DATASET + "task: {prompt: '{input}', model: opnai/x}\n", "unknown model 'opnai/x'"),
        (DATASET + "task: {prompt: '{input}'}\n", "no model is named"),
        (DATASET + "task: {prompt: '{input}', model: openai/x}\nmodels: [openai/y]\n", "both name models"),
        (
            DATASET + "task: {prompt: [{role: usr, content: '{input}'}], model: openai/x}\n",
            "task.prompt[0].role",
        ),
        (DATASET + "task: loud.py:loud\naggregators: [mean]\n", "no evaluators"),
        (
            DATASET + "task: loud.py:loud\nevaluators: [exact_match]\naggregators: [{name: mean, of: x}]\n",
            "line 4: aggregators[0].of: no evaluator has the key 'x'",
        ),
        (
            DATASET + "task: loud.py:loud\nevaluators: [exact_match]\naggregators: [win_rate]\n",
            "needs results of a pair evaluator",
        ),
        ("dataset: [{inpt: 1}]\ntask: loud.py:loud\n", "dataset[0].inpt: unknown key: did you mean 'input'?"),
        ("dataset: qx.jsonl\ntask: loud.py:loud\n", "qx.jsonl"),
        ("dataset: nobody\ntask: loud.py:loud\n", "there is no store"),
        ("dataset: 5\ntask: loud.py:loud\n", "dataset: must be a file, a name"),
        ("dataset: {path: qa.jsonl, input: quesion}\ntask: loud.py:loud\n", "quesion"),
        ("task: x\ntask: y\n", "line 2: duplicate key 'task', first on line 1"),
        ("a: {b: 1, c: {d: 1, d: 2}}\n", "duplicate key 'd'"),
        ("", "is empty"),
        ("- a\n", "line 1: an experiment is a mapping"),
        ("a: [\n", "line 2, column 1"),
        ("a: &a [*a]\n", "nested too deeply"),
        ("a: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
        ("? [a]\n: b\n", "a key must be a scalar"),
    ],
)
def test_a_mistake_says_what_where_and_the_nearest_right_thing(text, expected):
    assert any(expected in problem for problem in problems(text)), problems(text)


TYPED = "def typed(text: str, n: int = 1) -> str:\n    return text * n\nclass Empty:\n    pass\ndef none():\n    pass\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DATASET + "task: {function: typed.py:typed, params: {n: x}}\n", "line 2: task.params.n: task"),
        (DATASET + "task: typed.py:typed\nmatrix: {n: [1, x]}\n", "line 3: matrix.n[1]: task"),
        (
            "dataset: qa.jsonl\ntask: typed.py:typed\n",
            "line 1: dataset: example 'a': typed() takes text: str",
        ),
        (
            DATASET + "task: {recorded: others.jsonl}\n",
            "line 2: task: no record of others.jsonl belongs to an",
        ),
        (DATASET + "task: loud.py:loud\nevaluators: [typed.py:Empty]\n", "has none of the methods evaluate"),
        (
            DATASET + "task: loud.py:loud\nevaluators: [{name: by_metric, params: {metric: exact_match}}]\n",
            "line 3: evaluators[0]: 'by_exact_match' compares runs, and there is one",
        ),
        (
            DATASET
            + "task: loud.py:loud\nevaluators:\n"
            + "- {name: json_schema_match, params: {schema: {$ref: 'http://127.0.0.1:9/x'}}}\n",
            "line 4: evaluators[0]: 'json_schema_match': the schema refers to 'http://127.0.0.1:9/x'",
        ),
        (
            DATASET + "task: loud.py:loud\nevaluators: [exact_match]\naggregators: [typed.py:none]\n",
            "line 4: aggregators[0]: 'typed.py:none' has to take one parameter",
        ),
        (
            DATASET
            + "task: loud.py:loud\nevaluators: [exact_match]\n"
            + "aggregators: [{name: mean, params: {confidence: 95}}]\n",
            "line 4: aggregators[0].params.confidence: 95 is not a number between 0 and 1",
        ),
        (DATASET + "task: {prompt: '{input}', model: openai/x, stop: ''}\n", "task.stop: must not be empty"),
        (DATASET + "task: loud.py:loud\nmodels: []\n", "models: must not be empty"),
        (
            DATASET
            + "task: {prompt: '{input}', model: openai/x}\nmatrix: {prompt: ['{input}', '{inptu}']}\n",
            "line 3: matrix.prompt: the prompt asks for {inptu}",
        ),
        *[
            (DATASET + f"task: {{prompt: '{{input}}', model: openai/x, schema: {schema}}}\n", expected)
            for schema, expected in [
                ("{type: strin}", "line 2: task: the schema is wrong at $.type"),
                ("{$ref: 'file:///etc/hostname'}", "the schema refers to 'file:///etc/hostname'"),
                ("{$ref: '#/$defs/none'}", "the schema refers to '#/$defs/none', which it does not contain"),
                ("typed.Empty", "a schema is a JSON Schema or a pydantic model"),
            ]
        ],
    ],
)
def test_what_would_fail_later_is_found_before_anything_runs(folder, text, expected):
    (folder / "typed.py").write_text(TYPED)
    (folder / "others.jsonl").write_text('{"id": "z", "output": "x"}\n')
    assert any(expected in problem for problem in problems(text)), problems(text)


def test_a_short_stored_dataset_is_checked_too(folder, says):
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


def test_plain_words_mean_what_editors_show():
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
