"""What a person reads when a task is wrong: each mistake once, with its line and the nearest right thing."""

from __future__ import annotations

import pytest

from karat.errors import ConfigError
from karat.graph import load_task
from karat.graph._state import Message, SygraMessage

DRAW = "{node_type: weighted_sampler, attributes: {v: {values: [1]}}}"


def problems(project, text):
    project.write("t/graph_config.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_task("t").dataset(count=1)
    return caught.value.problems


def test_a_misspelt_target_is_one_mistake(project, says):
    [told] = problems(project, f"""
data_config: {{examples: [{{id: a}}]}}
graph_config:
  nodes: {{one: {DRAW}, two: {DRAW.replace("v:", "w:")}}}
  edges: [{{from: START, to: one}}, {{from: one, to: onne}}, {{from: two, to: END}}]
""")  # fmt: skip
    says(told)


def test_a_loop_found_by_a_guess_is_not_reported(project, says):
    [told] = problems(project, f"""
data_config: {{examples: [{{id: a}}]}}
graph_config:
  nodes: {{first: {DRAW}, second: {DRAW.replace("v:", "w:")}, firsts: {DRAW.replace("v:", "x:")}}}
  edges:
    - {{from: START, to: first}}
    - {{from: first, to: [second, firsts]}}
    - {{from: second, to: firrst}}
""")  # fmt: skip
    says(told)


def test_a_file_without_a_graph_is_one_mistake(project, says):
    [told] = problems(project, "data_config: {examples: [{id: a}]}\n")
    says(told)


def test_columns_are_named_once(project):
    [told] = problems(project, f"""
graph_config: {{nodes: {{one: {DRAW}}}}}
output_config: {{output_map: {{a: {{from: v}}, b: {{from: v}}}}}}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params: {{aggregator_metrics_map: [{{name: accuracy, unit_metrics_results: [quite_another]}}]}}
""")  # fmt: skip
    assert told.count("a, b") == 1


def test_known_fields_are_named_once(project, says):
    [told] = problems(project, """
data_config: {examples: [{id: a, d: 1}]}
graph_config:
  nodes: {ask: {node_type: llm, prompt: [{user: "{zzzzz}"}], model: "m@http://127.0.0.1:9/v1", output_keys: said}}
""")  # fmt: skip
    says(told)


def test_a_missing_data_file_is_reported_with_its_line_and_a_file_that_is_near(project, says):
    project.rows("t/questions.jsonl", [{"id": "a"}])
    [told] = problems(project, f"""
data_config:
  source:
    type: disk
    file_path: t/question.jsonl
graph_config: {{nodes: {{one: {DRAW}}}}}
""")  # fmt: skip
    assert told.startswith("line 5: data_config.source.file_path: ")
    says(told)
    assert len(load_task("t").dataset(file="t/questions.jsonl")) == 1


def test_two_processors_of_one_name_have_a_remedy(project, says):
    project.write("t/code.py", "class Prev:\n    def process(self, data, metadata):\n        return data\n")
    told = problems(project, f"""
graph_config: {{nodes: {{one: {DRAW}}}}}
graph_post_process: [{{processor: code.Prev}}, {{processor: code.Prev}}]
""")  # fmt: skip
    says(told[0])


def test_an_error_of_a_pydantic_model_is_one_line(project):
    project.write(
        "t/code.py",
        "from pydantic import BaseModel\n"
        "class Row(BaseModel):\n    n: int\n    m: int\n"
        "def check(state):\n    return Row(n='x', m='y').model_dump()\n",
    )
    project.write("t/graph_config.yaml", """
data_config: {examples: [{id: a}]}
graph_config: {nodes: {one: {node_type: lambda, lambda: code.check}}}
""")  # fmt: skip
    [failure] = project.run("t").failures
    told = failure["error"]["message"] if isinstance(failure["error"], dict) else failure["error"]
    assert "\n" not in told
    assert "http" not in told
    assert "ValidationError: n: " in told
    assert "; m: " in told


def test_a_message_reads_as_its_text():
    assert str(SygraMessage(Message("Paris"))) == "Paris"
    assert str(SygraMessage("Paris")) == "Paris"


def test_stacked_sources_may_have_the_same_ids(project):
    project.rows("t/one.jsonl", [{"id": 1, "x": "a"}, {"id": 2, "x": "b"}])
    project.rows("t/two.jsonl", [{"id": 1, "x": "c"}, {"id": 3, "x": "d"}])
    project.write("t/graph_config.yaml", f"""
data_config:
  id_column: id
  source:
    - {{alias: one, join_type: vstack, type: disk, file_path: t/one.jsonl}}
    - {{alias: two, join_type: vstack, type: disk, file_path: t/two.jsonl}}
graph_config: {{nodes: {{one: {DRAW}}}}}
""")  # fmt: skip
    dataset = load_task("t").dataset()
    assert [(each.id, each.input["x"]) for each in dataset] == [
        ("1", "a"),
        ("2", "b"),
        ("1-2", "c"),
        ("3", "d"),
    ]


ROWS = "data_config: {examples: [{id: a, name: Ann}]}\n"
CALLED = ROWS + "graph_config: {nodes: {n: {node_type: lambda, lambda: own.LAMBDA, output_keys: [o] MORE}}}\n"
FUNCTIONS = """
def none(): return {}
def three(node, state, other): return {}
def one(state): return {"o": 1}
def go(state): return "x"
class Made:
    def __init__(self, golden_key, letters): pass
    def __call__(self, state): return {}
class Stateless:
    def __call__(self): return {}
"""


@pytest.mark.parametrize("kind", ["llm", "agent", "multi_llm"])
def test_an_unknown_model_hides_nothing_else_of_its_node(project, kind, says):
    project.write("models.yaml", "mine: {model: x, base_url: http://127.0.0.1:9/v1}\n")
    project.write("t/own.py", FUNCTIONS)
    models = "models: {a: min, b: mine}" if kind == "multi_llm" else "model: {name: min}"
    told = problems(
        project,
        ROWS
        + f"""graph_config:
  nodes:
    a:
      node_type: {kind}
      {models}
      post_process: own.oone
      prompt: [{{user: "see {{nam}}"}}, {{usr: x}}]
""",
    )
    assert [sentence.split(": ")[0] for sentence in told] == ["line 6", "line 7", "line 8", "line 8"]
    says(*told)


def test_where_a_pre_process_is_wrong_it_is_not_known_what_it_would_have_set(project):
    project.write("t/own.py", FUNCTIONS)
    [told] = problems(
        project,
        ROWS
        + """graph_config:
  nodes:
    a: {node_type: llm, model: x@http://127.0.0.1:9/v1, pre_process: own.oone, prompt: [{user: "{hint}"}]}
""",
    )
    assert "a.pre_process: " in told


def test_every_key_of_a_class_that_does_not_fit_is_reported_at_once(project, says):
    project.write("t/own.py", FUNCTIONS)
    told = problems(project, CALLED.replace("LAMBDA", "Made").replace("MORE", ", goldn_key: x"))
    assert len(told) == 3
    says(*told)


@pytest.mark.parametrize(
    "name",
    [
        "none",
        "Stateless",
        "three",
    ],
)
def test_a_lambda_that_cannot_be_called_with_a_state(project, name, says):
    project.write("t/own.py", FUNCTIONS)
    [told] = problems(project, CALLED.replace("LAMBDA", name).replace("MORE", ""))
    assert told.startswith("line 2: graph_config.nodes.n.lambda: ")
    says(told)


def test_an_edge_that_says_twice_where_it_leads(project, says):
    project.write("t/own.py", FUNCTIONS)
    edges = "[{from: START, to: n}, {from: n, to: END, condition: own.go, path_map: {x: END}}]"
    graph = (
        CALLED.replace("LAMBDA", "one").replace("MORE", "").replace("}}}\n", "}}, edges: " + edges + "}\n")
    )
    [told] = problems(project, graph)
    says(told)
    project.write("t/graph_config.yaml", graph.replace(", path_map: {x: END}", ""))
    assert load_task("t").plan.edges.after["n"][0].targets == ["END"], (
        "without a map it names what it may lead to"
    )


REPORTED = (
    CALLED.replace("LAMBDA", "one").replace("MORE", "")
    + """\
output_config: {output_map: {id: {from: id}, o: {from: o}}}
graph_post_process: [{processor: reports.P FILTER}]
"""
)
BASE = "from karat.graph import GraphPostProcessor\n\nclass P(GraphPostProcessor):\n"


@pytest.mark.parametrize(
    "code",
    [
        BASE + "    def nope(self): pass\n",
        BASE + "    def add(self, record): pass\n",
        "class P:\n    def add(self, record): pass\n",
    ],
)
def test_a_processor_that_can_give_no_report(project, code, says):
    project.write("t/own.py", FUNCTIONS)
    project.write("t/reports.py", code)
    [told] = problems(project, REPORTED.replace("FILTER", ""))
    says(told)


def test_a_filter_on_a_field_that_no_output_has(project, says):
    project.write("t/own.py", FUNCTIONS)
    project.write("t/reports.py", BASE + "    def process(self, data): return []\n")
    [told] = problems(project, REPORTED.replace("FILTER", ", filter: {idd: 3, o.x: 1}"))
    assert "graph_post_process[0].filter.idd: " in told
    says(told)


def test_every_parameter_of_a_processor_that_does_not_fit_is_reported(project, says):
    project.write("t/own.py", FUNCTIONS)
    project.write(
        "t/reports.py", "class P:\n    def __init__(self, k): pass\n    def process(self, data): return []\n"
    )
    told = problems(project, REPORTED.replace("FILTER", ", params: {kk: 1}"))
    assert [sentence.rpartition("params")[2].split(":")[0] for sentence in told] == [".kk", ""]
    says(*told)
