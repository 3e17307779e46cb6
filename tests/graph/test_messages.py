"""What a person reads when a task is wrong: each mistake once, with its line and the nearest right thing."""

from __future__ import annotations

import pytest

from karat.errors import ConfigError
from karat.tasks.graph import load_task
from karat.tasks.graph.state import Message, SygraMessage

DRAW = "{node_type: weighted_sampler, attributes: {v: {values: [1]}}}"


def problems(project, text):
    project.write("t/graph_config.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_task("t").dataset(count=1)
    return caught.value.problems


def test_a_misspelt_target_is_one_mistake(project):
    [told] = problems(project, f"""
data_config: {{examples: [{{id: a}}]}}
graph_config:
  nodes: {{one: {DRAW}, two: {DRAW.replace("v:", "w:")}}}
  edges: [{{from: START, to: one}}, {{from: one, to: onne}}, {{from: two, to: END}}]
""")  # fmt: skip
    assert "there is no node 'onne': did you mean 'one'" in told


def test_nor_is_a_loop_told_that_a_guess_made(project):
    [told] = problems(project, f"""
data_config: {{examples: [{{id: a}}]}}
graph_config:
  nodes: {{first: {DRAW}, second: {DRAW.replace("v:", "w:")}, firsts: {DRAW.replace("v:", "x:")}}}
  edges:
    - {{from: START, to: first}}
    - {{from: first, to: [second, firsts]}}
    - {{from: second, to: firrst}}
""")  # fmt: skip
    assert "there is no node 'firrst'" in told


def test_a_file_without_a_graph_is_one_mistake(project):
    assert problems(project, "data_config: {examples: [{id: a}]}\n") == [
        "line 1: needs graph_config: with its nodes and edges"
    ]


def test_columns_are_named_once(project):
    [told] = problems(project, f"""
graph_config: {{nodes: {{one: {DRAW}}}}}
output_config: {{output_map: {{a: {{from: v}}, b: {{from: v}}}}}}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params: {{aggregator_metrics_map: [{{name: accuracy, unit_metrics_results: [quite_another]}}]}}
""")  # fmt: skip
    assert told.count("a, b") == 1


def test_known_fields_are_named_once(project):
    [told] = problems(project, """
data_config: {examples: [{id: a, d: 1}]}
graph_config:
  nodes: {ask: {node_type: llm, prompt: [{user: "{zzzzz}"}], model: "m@http://127.0.0.1:9/v1", output_keys: said}}
""")  # fmt: skip
    assert "known: d, id (" in told


def test_a_missing_data_file_is_told_with_its_line_and_a_file_that_is_near(project):
    project.rows("t/questions.jsonl", [{"id": "a"}])
    [told] = problems(project, f"""
data_config:
  source:
    type: disk
    file_path: t/question.jsonl
graph_config: {{nodes: {{one: {DRAW}}}}}
""")  # fmt: skip
    assert told.startswith("line 5: data_config.source.file_path: t/question.jsonl does not exist")
    assert "'questions.jsonl'" in told
    assert len(load_task("t").dataset(file="t/questions.jsonl")) == 1


def test_two_processors_of_one_name_have_a_remedy(project):
    project.write("t/code.py", "class Prev:\n    def process(self, data, metadata):\n        return data\n")
    told = problems(project, f"""
graph_config: {{nodes: {{one: {DRAW}}}}}
graph_post_process: [{{processor: code.Prev}}, {{processor: code.Prev}}]
""")  # fmt: skip
    assert "extend the class under another name" in told[0]


def test_what_a_pydantic_model_refuses_is_one_line(project):
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
    assert "n: Input should be a valid integer" in told
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
