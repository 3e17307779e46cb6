"""The rest of the language: lambdas in every form, samplers, subgraphs, conditions, outputs, schemas."""

from __future__ import annotations

import pytest

import karat
from karat.errors import ConfigError
from karat.graph import find_task, load_task

FORMS = """
import asyncio

def of_state(state):
    return {"a": state["x"] + 1}

def of_node(lambda_node_dict, state):
    state["b"] = state["x"] * lambda_node_dict["factor"]
    return state

class Static:
    @staticmethod
    def apply(lambda_node_dict, state):
        return {"c": lambda_node_dict["factor"]}

class Bare:
    def apply(lambda_node_dict, state):
        state["d"] = True

class Method:
    def apply(self, lambda_node_dict, state):
        return {"e": type(self).__name__}

class Callable:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, state):
        return {"f": self.factor}

async def later(state):
    await asyncio.sleep(0)
    return {"g": "later"}
"""


def graph(nodes: str, rest: str = "", data: str = "[{id: r1, x: 2}]") -> str:
    return f"data_config: {{examples: {data}}}\ngraph_config:\n  nodes:\n{nodes}\n{rest}"


def node(name: str, keys: str) -> str:
    return f"    {name}: {{node_type: lambda, {keys}}}\n"


def test_every_form_of_a_lambda(project):
    forms = ["of_state", "of_node", "Static", "Bare", "Method", "Callable", "later"]
    keys = ["", ", factor: 3", ", factor: 5", "", "", ", factor: 7", ""]
    nodes = "".join(
        node(f"n{i}", f"lambda: forms.{form}{key}")
        for i, (form, key) in enumerate(zip(forms, keys, strict=True))
    )
    project.write("t/forms.py", FORMS)
    project.write("t/graph_config.yaml", graph(nodes))
    [record] = project.run("t").records
    assert record == {
        "id": "r1", "x": 2, "a": 3, "b": 6, "c": 5, "d": True, "e": "Method", "f": 7, "g": "later",
    }  # fmt: skip


@pytest.mark.parametrize(
    "named", ["forms.of_state", "t.forms.of_state", "tasks.any.t.forms.of_state", "forms.py:of_state"]
)
def test_functions_beside_the_task_are_found_by_any_of_their_names(project, named):
    project.write("t/forms.py", FORMS)
    project.write("t/graph_config.yaml", graph(node("n", f'lambda: "{named}"')))
    assert project.run("t").records[0]["a"] == 3


def test_a_graph_of_plain_functions_needs_no_event_loop_and_one_with_async_does(project):
    project.write("t/forms.py", FORMS)
    project.write("t/graph_config.yaml", graph(node("n", "lambda: forms.of_state")))
    assert not load_task("t").is_async
    project.write("t/graph_config.yaml", graph(node("n", "lambda: forms.of_state, blocking: true")))
    assert load_task("t").is_async
    assert project.run("t").records[0]["a"] == 3


def test_records_do_not_share_their_state(project):
    project.write("t/forms.py", "def grow(state):\n    state['seen'].append(state['id'])\n")
    rows = [{"id": f"r{i}", "seen": []} for i in range(50)]
    project.rows("rows.jsonl", rows)
    project.write("t/graph_config.yaml", graph(node("n", "lambda: forms.grow")))
    records = project.run("t", data="rows.jsonl").records
    assert [r["seen"] for r in records] == [[f"r{i}"] for i in range(50)]


SAMPLER = """
    persona:
      node_type: weighted_sampler
      attributes:
        turns: {values: [2, 3, 4]}
        tone: {values: [formal, casual], weights: [0, 1]}
        city: {values: {column: name, source: {type: disk, file_path: cities.jsonl}}}
"""


def test_draws_are_the_same_when_a_run_is_repeated_and_differ_between_records(project):
    project.rows("cities.jsonl", [{"name": "Lima"}, {"name": "Oslo"}])
    project.rows("rows.jsonl", [{"id": f"r{i}"} for i in range(40)])
    project.write("t/graph_config.yaml", graph(SAMPLER))
    first = project.run("t", data="rows.jsonl").records
    assert first == project.run("t", data="rows.jsonl").records
    assert {r["turns"] for r in first} == {2, 3, 4}
    assert {r["tone"] for r in first} == {"casual"}
    assert {r["city"] for r in first} == {"Lima", "Oslo"}


def test_a_task_without_data_makes_its_records(project):
    project.write(
        "t/graph_config.yaml",
        "graph_config:\n  nodes:"
        + SAMPLER.replace(
            "        city: {values: {column: name, source: {type: disk, file_path: cities.jsonl}}}\n", ""
        ),
    )
    assert [r["id"] for r in project.run("t").records] == [str(n) for n in range(1, 11)]


def test_a_subgraph_is_one_step_with_its_nodes_changed(project):
    project.write("tasks/inner/forms.py", FORMS)
    project.write("tasks/inner/graph_config.yaml", graph(
        node("first", "lambda: tasks.inner.forms.of_node, factor: 3, output_keys: [b]")
        + node("second", "lambda: tasks.inner.forms.Boom", ), data="[]",
    ).replace("lambda: tasks.inner.forms.Boom", "lambda: tasks.inner.forms.of_state, output_keys: [a]"))  # fmt: skip
    project.write("tasks/outer/graph_config.yaml", graph("""
    inside:
      node_type: subgraph
      subgraph: tasks.inner
      node_config_map:
        first: {factor: 10}
"""))  # fmt: skip
    [record] = project.run("tasks.outer").records
    assert (record["b"], record["a"]) == (20, 3)


def test_a_failure_inside_a_subgraph_names_the_whole_way(project):
    project.write("inner/forms.py", "def boom(state):\n    raise ValueError('no')\n")
    project.write("inner/graph_config.yaml", graph(node("bad", "lambda: forms.boom"), data="[]"))
    project.write("outer/graph_config.yaml", graph("    inside: {node_type: subgraph, subgraph: ../inner}\n"))
    [failure] = project.run("outer").failures
    assert failure == {"id": "r1", "node": "inside.bad", "error": "ValueError: no"}


CONDITIONS = """
def kind(state):
    return "big" if state["x"] > 5 else "small"

def is_big(state):
    return state["x"] > 5

def again(state):
    return "count" if state["x"] < state["limit"] else "END"

def big(state):
    return {"size": "big"}

def small(state):
    return {"size": "small"}

def count(state):
    return {"x": state["x"] + 1}

def nonsense(state):
    return "bigg"
"""

BRANCHES = (
    node("big", "lambda: conditions.big, output_keys: [size]")
    + node("small", "lambda: conditions.small, output_keys: [size]")
    + node("end", "lambda: conditions.count, output_keys: [y]")
)


@pytest.mark.parametrize(
    "edge",
    [
        "condition: conditions.kind, path_map: {big: big, small: small}",
        "condition: conditions.kind",
        "condition: conditions.is_big, path_map: {true: big, false: small}",
    ],
)
def test_a_condition_decides(project, edge):
    project.write("t/conditions.py", CONDITIONS)
    edges = f"""  edges:
    - {{from: START, {edge}}}
    - {{from: [big, small], to: end}}
    - {{from: end, to: END}}
"""
    project.write("t/graph_config.yaml", graph(BRANCHES + edges, data="[{id: a, x: 2}, {id: b, x: 9}]"))
    assert [(r["size"], r["x"]) for r in project.run("t").records] == [("small", 3), ("big", 10)]


def test_an_answer_that_no_path_has_fails_the_record(project, says):
    project.write("t/conditions.py", CONDITIONS)
    paths = "{big: big, small: small, end: end}"
    edges = f"  edges:\n    - {{from: START, condition: conditions.nonsense, path_map: {paths}}}\n"
    project.write("t/graph_config.yaml", graph(BRANCHES + edges))
    [failure] = project.run("t").failures
    assert failure["node"] == "START"
    says(failure["error"])


LOOP = """  edges:
    - {from: START, to: count}
    - {from: count, condition: conditions.again, path_map: {count: count, END: END}}
"""


def test_loops_end_by_their_condition_or_by_their_bound(project, says):
    project.write("t/conditions.py", CONDITIONS)
    nodes = node("count", "lambda: conditions.count, output_keys: [x]")
    rows = "[{id: a, x: 0, limit: 7}, {id: b, x: 0, limit: 1000}]"
    project.write("t/graph_config.yaml", graph(nodes + LOOP, data=rows))
    outcome = project.run("t")
    assert outcome.records[0]["x"] == 7
    [failure] = outcome.failures
    assert failure["node"] == "count"
    says(failure["error"])
    bounded = graph(nodes + LOOP + "  graph_properties: {max_iterations: 2000}\n", data=rows)
    project.write("t/graph_config.yaml", bounded)
    assert [r["x"] for r in project.run("t").records] == [7, 1000]


def test_an_idle_node_is_passed_through(project):
    project.write("t/forms.py", FORMS)
    nodes = node("skip", "lambda: nowhere.at_all, node_state: idle") + node("n", "lambda: forms.of_state")
    project.write("t/graph_config.yaml", graph(nodes))
    assert project.run("t").records[0]["a"] == 3


OUTPUT = """
output_config:
  generator: generating.Generator
  output_map:
    id: {from: id}
    deep: {from: nested.list.1.name}
    missing: {from: x, transform: doubled}
    free: {from: x, transform: generating.tripled}
    fixed:
      value:
        - $graph_config.nodes.n.node_type
        - {source: "$data_config.examples[0].id", author: someone, price: $5}
"""


def test_an_output_map_takes_transforms_and_points_into_the_file(project):
    project.write("t/forms.py", FORMS)
    project.write("t/generating.py", """
from sygra.processors.output_record_generator import BaseOutputGenerator

class Generator(BaseOutputGenerator):
    def doubled(self, data, state):
        return data * 2

def tripled(data):
    return data * 3
""")  # fmt: skip
    data = "[{id: r1, x: 2, nested: {list: [{name: a}, {name: b}]}}]"
    project.write("t/graph_config.yaml", graph(node("n", "lambda: forms.of_state"), OUTPUT, data))
    assert project.run("t").records == [
        {"id": "r1", "deep": "b", "missing": 4, "free": 6,
         "fixed": ["lambda", {"source": "r1", "author": "someone", "price": "$5"}]}
    ]  # fmt: skip


def test_a_generator_may_leave_records_out_and_they_count_as_skipped(project):
    project.write("t/forms.py", FORMS)
    project.write("t/generating.py", """
from sygra.processors.output_record_generator import BaseOutputGenerator

class Generator(BaseOutputGenerator):
    def generate(self, state):
        return {"x": state["x"], "exact_match": {"correct": True}} if state["x"] > 1 else None
""")  # fmt: skip
    project.write("t/graph_config.yaml", graph(
        node("n", "lambda: forms.of_state"),
        """
output_config: {generator: generating.Generator}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params: {aggregator_metrics_map: [{name: accuracy, unit_metrics_results: [exact_match]}]}
""",
        "[{id: a, x: 1}, {id: b, x: 2}]",
    ))  # fmt: skip
    outcome = project.run("t")
    assert outcome.records == [{"x": 2, "exact_match": {"correct": True}}]
    summary = outcome.report()["evaluation_summary"]
    assert (summary["total_records"], summary["skipped_records"], summary["status"]) == (2, 1, "success")


@pytest.mark.parametrize(
    "schema",
    [
        "{fields: [{name: id, type: str}, {name: a, type: int, is_greater_than: 5}]}",
        "{fields: [{name: id, type: int}]}",
        "{schema: schemas.Wanted}",
    ],
)
def test_records_that_do_not_fit_the_schema_fail(project, schema, says):
    project.write("t/forms.py", FORMS)
    project.write(
        "t/schemas.py", "from pydantic import BaseModel\nclass Wanted(BaseModel):\n    nothing: str\n"
    )
    project.write(
        "t/graph_config.yaml", graph(node("n", "lambda: forms.of_state"), f"schema_config: {schema}\n")
    )
    [failure] = project.run("t").failures
    assert failure["node"] == "output"
    says(failure["error"])


def test_half_of_the_records_crash_and_the_report_says_so(project):
    project.write("t/forms.py", """
def half(state):
    if state["x"] % 2:
        raise RuntimeError("crash")
    return {"exact_match": {"correct": True, "golden": 1, "predicted": 1, "metadata": {}}}
""")  # fmt: skip
    project.rows("rows.jsonl", [{"id": str(i), "x": i} for i in range(100)])
    project.write("t/graph_config.yaml", graph(node("n", "lambda: forms.half, output_keys: [exact_match]"), """
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params: {aggregator_metrics_map: [{name: accuracy, unit_metrics_results: [exact_match]}]}
"""))  # fmt: skip
    outcome = project.run("t", data="rows.jsonl")
    assert outcome.run.status == "partial"
    report = outcome.report()
    assert report["evaluation_summary"]["failed_records"] == 50
    assert report["evaluation_summary"]["status"] == "partial"
    accuracy = report["results"]["exact_match-accuracy"]
    assert (accuracy["n"], accuracy["of"], accuracy["accuracy_bounds"]) == (50, 100, [0.5, 1.0])
    assert [r["id"] for r in outcome.records] == [str(i) for i in range(0, 100, 2)]


def test_arguments_of_the_run_are_in_every_state(project):
    project.write("t/forms.py", "def use(state):\n    return {'said': state['word']}\n")
    project.write("t/graph_config.yaml", graph(node("n", "lambda: forms.use")))
    assert project.run("t", run_args={"word": "hello"}).records[0]["said"] == "hello"


def test_a_run_is_continued_by_record_and_returned_when_finished(project):
    project.write(
        "t/forms.py",
        "import os\n\ndef flaky(state):\n    if state['x'] == 2 and not os.path.exists('fixed'):\n"
        "        raise OSError('later')\n",
    )
    project.write(
        "t/graph_config.yaml", graph(node("n", "lambda: forms.flaky"), data="[{id: a, x: 1}, {id: b, x: 2}]")
    )
    task = load_task("t")
    data = task.dataset()
    store = karat.open_store("memory://")
    first = karat.run(task, data, store=store)
    assert first.counts.failed == 1
    assert karat.run(load_task("t"), data, store=store).id == first.id
    project.write("fixed", "")
    again = karat.run(load_task("t"), data, store=store, retry_failed=True)
    assert (again.id, again.counts.ok) == (first.id, 2)


def test_a_run_that_was_stopped_continues_with_what_is_missing(project, refuses):
    project.write("t/forms.py", """
import os

def counted(state):
    with open("calls", "a") as file:
        file.write(state["id"])
    if state["id"] == "c" and not os.path.exists("fixed"):
        raise OSError("later")
""")  # fmt: skip
    rows = "[{id: a}, {id: b}, {id: c}, {id: d}, {id: e}]"
    project.write("t/graph_config.yaml", graph(node("n", "lambda: forms.counted"), data=rows))
    task = load_task("t")
    data, store = task.dataset(), karat.open_store("memory://")
    with refuses(karat.KaratError):
        karat.run(task, data, store=store, abort_on_error=True, concurrency=1)
    assert (project.folder / "calls").read_text() == "abc"
    run = karat.run(load_task("t"), data, store=store)
    assert sorted((project.folder / "calls").read_text()) == list("abcde")
    assert (run.counts.ok, run.counts.failed) == (4, 1)


def test_another_report_does_not_make_another_run_but_another_node_does(project):
    project.write("t/forms.py", FORMS)
    config = graph(node("n", "lambda: forms.of_node, factor: 2, output_keys: [b]"))
    store = karat.open_store("memory://")

    def run(text: str) -> str:
        project.write("t/graph_config.yaml", text)
        task = load_task("t")
        return karat.run(task, task.dataset(), store=store).id

    first = run(config)
    assert run(config + "description: the same\n") == first
    assert run(config.replace("factor: 2", "factor: 3")) != first


@pytest.mark.parametrize(
    "name", ["tasks.eval.x.y", "eval.x.y", "eval/x/y", "tasks/eval/x/y", "tasks/eval/x/y/graph_config.yaml"]
)
def test_a_task_is_found_by_any_of_its_names(project, name):
    project.write("tasks/eval/x/y/graph_config.yaml", "a: 1")
    assert find_task(name).name == "eval/x/y"


def test_an_unknown_task_names_the_nearest(project, refuses):
    project.write("tasks/eval/question/graph_config.yaml", "a: 1")
    with refuses(karat.KaratError):
        find_task("tasks.eval.questoin")


def test_a_change_inside_a_subgraph_or_in_sampled_data_makes_another_run(project):
    project.write("inner/forms.py", FORMS)
    project.write("inner/graph_config.yaml", graph(node("n", "lambda: forms.of_node, factor: 3"), data="[]"))
    project.rows("cities.jsonl", [{"name": "Lima"}])
    project.write(
        "outer/graph_config.yaml", graph("    inside: {node_type: subgraph, subgraph: ../inner}\n" + SAMPLER)
    )
    first = load_task("outer").configuration()
    assert load_task("outer").configuration() == first
    project.rows("cities.jsonl", [{"name": "Oslo"}])
    second = load_task("outer").configuration()
    assert second != first
    project.write("inner/graph_config.yaml", graph(node("n", "lambda: forms.of_node, factor: 4"), data="[]"))
    assert load_task("outer").configuration() != second


@pytest.mark.parametrize("folder", ["t", "tasks/u"])
def test_a_file_that_changed_is_imported_again_in_the_same_process(project, folder):
    """What a run's fingerprint says of its code is what ran; files that did not change stay as they are."""
    project.write(f"{folder}/graph_config.yaml", graph(node("n", "lambda: forms.of, output_keys: [v]")))
    project.write(f"{folder}/words.py", "WORD = 'old'\n")
    project.write(f"{folder}/metric.py", """
from sygra.core.eval.metrics.unit_metrics.base_unit_metric import BaseUnitMetric
from sygra.core.eval.metrics.unit_metrics.unit_metric_registry import unit_metric

@unit_metric("reloaded_metric")
class Reloaded(BaseUnitMetric):
    def evaluate(self, golden, predicted):
        return []
""")  # fmt: skip
    way = "from words import WORD" if folder == "t" else "from tasks.u.words import WORD"
    project.write(f"{folder}/forms.py", f"{way}\ndef of(state):\n    return {{'v': WORD}}\n")
    first = project.run(folder)
    assert first.records[0]["v"] == "old"
    again = load_task(folder)
    assert again.code() == first.task.code()
    assert again.plan.nodes["n"].parts[0] is first.task.plan.nodes["n"].parts[0]
    project.write(f"{folder}/words.py", "WORD = 'new'\n")
    assert project.run(folder).records[0]["v"] == "new"


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("def generate(self, state): return {'y': state['x'] + 1}", "{generator: generating.G}"),
        (
            "__slots__ = ()\n    def generate(self, state): return {'y': state['x'] + 1}",
            "{generator: generating.G}",
        ),
        (
            "def __init__(self, config): self.config = config\n"
            "    def generate(self, state): return {'y': state['x'] + len(self.config['output_map'])}",
            "{generator: generating.G, output_map: {y: {from: x}}}",
        ),
        (
            "def more(self, data, state): return data + 1",
            "{generator: generating.G, output_map: {y: {from: x, transform: more}}}",
        ),
    ],
)
def test_a_generator_is_any_class_that_generates_or_has_transforms(project, code, output):
    project.write("t/forms.py", FORMS)
    project.write("t/generating.py", f"class G:\n    {code}\n")
    nodes = node("n", "lambda: forms.of_state")
    project.write("t/graph_config.yaml", graph(nodes, f"output_config: {output}\n"))
    assert project.run("t").records == [{"y": 3}]


def test_a_generator_that_could_do_nothing_is_refused(project, refuses):
    project.write("t/forms.py", FORMS)
    project.write("t/generating.py", "class G:\n    pass\n")
    nodes = node("n", "lambda: forms.of_state")
    project.write("t/graph_config.yaml", graph(nodes, "output_config: {generator: generating.G}\n"))
    with refuses(ConfigError):
        load_task("t")
