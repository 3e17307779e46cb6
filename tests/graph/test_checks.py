"""The whole file is checked before the first record: every mistake at once, each at its line."""

from __future__ import annotations

import pytest

from karat.errors import ConfigError
from karat.graph import load_outline, load_task
from tests.graph.yaml_parts import filled

BROKEN = """\
data_config:
  source:
    type: dsk
graph_confg: {}
graph_config:
  nodes:
    first:
      node_type: lamda
    second:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetric
    metrics:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetrics
      golden_kye: answer
      predicted_key: said
      unit_metrics_map: [{name: exact_mtach}]
    alone:
      node_type: weighted_sampler
      attributes: {a: {values: [1, 2], weights: [1]}}
  edges:
    - {from: START, to: frist}
    - {from: metrics, too: END}
    - {from: metrics, to: second, path_map: {a: b}}
output_config:
  output_map:
    id: {form: id}
    twice: {from: a, value: b}
    gone: {value: $data_config.sorce.type}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      aggregator_metrics_map:
        - {name: acuracy, unit_metrics_results: [exact_match]}
        - {name: accuracy, unit_metrics_result: [exact_match]}
"""


def problems(project, text: str, data: list | None = None) -> list[str]:
    project.write("t/graph_config.yaml", text)
    project.rows("rows.jsonl", data or [{"id": 1}])
    with pytest.raises(ConfigError) as caught:
        load_task("t").dataset(file="rows.jsonl")
    return caught.value.problems


def test_every_mistake_at_once_with_its_line(project, says):
    found = problems(project, BROKEN)
    says(*found)
    lines = [int(p.split(":")[0].removeprefix("line ")) for p in found]
    assert lines == sorted(lines)
    assert set(lines) >= {3, 4, 8, 11, 12, 15, 17, 20, 22, 23, 24, 27, 28, 29, 34, 35}


def graph(nodes: str, edges: str = "", rest: str = "") -> str:
    return f"graph_config:\n  nodes:\n{nodes}{edges}{rest}"


CONST = "    {name}: {{node_type: weighted_sampler, attributes: {{{key}: {{values: [1]}}}}}}\n"


def const(name: str, key: str | None = None) -> str:
    return CONST.format(name=name, key=key or name)


def edges(*lines: str) -> str:
    return "  edges:\n" + "".join(f"    - {{{line}}}\n" for line in lines)


def one(keys: str) -> str:
    return graph(f"    a: {{{keys}}}\n")


def asking(keys: str, model: str = "name: x@http://127.0.0.1:9/v1", kind: str = "llm") -> str:
    return one(f"node_type: {kind}, {keys}, model: {{{model}}}")


FORM = "name: x@http://127.0.0.1:9/v1, structured_output: {schema: {fields: {b: {type: strr}}}}"
HUB = "data_config: {source: {type: hf, repo_id: a/b, token: secret}}\n"

TRANSFORMED = """data_config:
  source:
    examples: [{a: 1}]
    transformations:
      - {transform: add, params: {mapping: [b]}}
      - {transform: rename, params: {mapping: {a: b}, overwrite: perhaps}}
"""

UNUSABLE = """data_config:
  source:
    examples: [{a: 1}]
    transformations:
      - {transform: combine, params: {combine: [2]}}
      - {transform: combine, params: {combine: 2, skip: {from_begining: 1}}}
      - {transform: skip_records, params: {skip_type: count, count: 3}}
      - {transform: combine, params: {combine: 2, join_column: page}}
"""

CASES = [
    graph(const("a") + const("b"), edges("from: START, to: a", "from: a, to: END")),
    graph(const("a"), edges("from: a, to: END")),
    graph(const("a") + const("b"), edges("from: START, to: a", "from: a, to: b", "from: b, to: a")),
    graph(const("a", "x") + const("b", "x"), edges("from: START, to: [a, b]", "from: [a, b], to: END")),
    graph(const("START", "a")),
    one("node_type: weighted_sampler, attributes: {a: {values: []}}"),
    asking("output_keys: [b]"),
    asking("prompt: [{usr: hi}]"),
    asking("prompt: [{user: hi}]", "nam: x"),
    asking("prompt: [{user: hi}], temprature: 1"),
    asking("prompt: [{user: hi}], tools: [nowhere.at]", kind="agent"),
    asking("prompt: [{user: hi}]", "name: x@http://h/v1, parameters: {api_key: s}"),
    asking("prompt: [{user: hi}]", "name: x@http://h/v1, parameters: {temprature: 1, top_k: 5}"),
    asking("prompt: [{user: hi}]", FORM),
    one("node_type: subgraph, subgraph: nowhere.at.all"),
    one("node_type: subgraph, subgraph: ."),
    one("node_type: lambda, lambda: nowhere.at.all"),
    graph(const("a"), rest="graph_post_process: [karat.errors.KaratError]\n"),
    graph(const("a"), rest="data_config: {source: [{examples: [{a: 1}]}]}\n"),
    graph(const("a"), rest=HUB),
    graph(const("a"), rest="data_config: {sink: {type: hf, file_path: a/b}}\n"),
    graph(const("a"), rest="schema_config: {fields: [{name: a, type: whole}]}\n"),
    "- a\n",
    "data_config: {}\n",
    graph(const("a"), edges("from: START, to: a", "from: a, condition: '', path_map: {x: END}")),
    graph(const("a"), edges("from: START, condition: '  '")),
    asking("prompt: [{user: hi}], pre_process: ''"),
    asking("prompt: [{user: [{type: text, text: true}]}]"),
    asking("prompt: [{user: hi}], inject_system_messages: [true, code, {1: stop}]", kind="agent"),
    asking("prompt: [{user: hi}]", "name: x@http://127.0.0.1:9/v1, structured_output: {}"),
    asking("prompt: [{user: hi}], structured_output: {schema: {}}"),
    asking("prompt: [{user: hi}], structured_output: {schema: {fields: {}}}"),
    graph(const("a"), rest="output_config: {output_map: {a: {from: a}, both: {from: null}}}\n"),
    graph(const("a"), rest="output_config: {generator: ''}\n"),
    graph(const("a"), rest="output_config: {output_map: {b: {from: bothh}}}\n"),
    filled("graph_config: {nodes: {metrics: JUDGING}}\ngraph_post_process: [ACCURACY]\n").replace(
        "{name: accuracy, params: {key: text}", "{name: accuracy, params: {key: nope}"
    ),
    filled("graph_config: {nodes: {metrics: JUDGING}}\ngraph_post_process: [ACCURACY]\n").replace(
        "{name: accuracy, params: {key: text}",
        "{name: f1_score, params: {predicted_key: text, golden_key: null}",
    ),
    filled("graph_config: {nodes: {metrics: JUDGING}}\ngraph_post_process: [ACCURACY]\n").replace(
        "{name: accuracy, params: {key: text}", "{name: accuracy, params: {confidence: 95}"
    ),
    asking("prompt: [{user: hi}]", "name: x@http://127.0.0.1:9/v1, parameters: {MAX_TOKENS: 5}"),
    asking("prompt: [{user: hi}], output_role: asistant"),
    asking(
        "prompt: [{user: hi}], output_keys: b, structured_output: {schema: {propertys: {b: {type: string}}}}"
    ),
    asking("prompt: [{user: hi}], output_keys: b, structured_output: {schema: {fields: {b: {type: }}}}"),
    graph(const("a"), rest="data_config: {sink: {type: json, file_path: ''}}\n"),
    graph(const("a"), rest="schema_config: {fields: [{name: a, type: int, is_less_than: ten}]}\n"),
    graph(const("a"), rest=TRANSFORMED),
    graph(const("a"), rest=UNUSABLE),
    asking(
        "prompt: [{user: hi}], output_keys: b, structured_output:"
        " {schema: {fields: {b: {type: str, descripton: what it is}}}}"
    ),
    graph(const("a"), rest="  graph_properties: {chat_conversaton: singleturn}\n"),
]


@pytest.mark.parametrize("text", CASES)
def test_mistakes_are_reported(project, text, says):
    says(*problems(project, text))


INNER = "    inner: {node_type: weighted_sampler, attributes: {x: {values: [1]}}}\n"


@pytest.mark.parametrize("inner", [graph(INNER), INNER.replace("    inner", "inner")])
def test_node_config_map_is_a_mapping_of_keys(project, inner, says):
    project.write("s/graph_config.yaml", inner)
    outer = one("node_type: subgraph, subgraph: ../s, node_config_map: {inner: CHANGE}")
    says(*problems(project, outer.replace("CHANGE", '"x"')))
    project.write("t/graph_config.yaml", outer.replace("CHANGE", "{attributes: {x: {values: [2]}}}"))
    [drawn] = load_task("t").plan.nodes["a"].plan.nodes.values()  # type: ignore[attr-defined]
    assert drawn.attributes["x"][0] == [2]  # type: ignore[attr-defined]


def test_mistakes_in_a_subgraph_are_reported_with_its_file(project, says):
    inner = graph(
        const("b") + "".join("\n" for _ in range(5)) + const("c"), edges("from: START, to: [b, cc]")
    )
    project.write("s/graph_config.yaml", inner.replace("values", "valus"))
    found = problems(project, one("node_type: subgraph, subgraph: ../s"))
    assert len(found) > 2
    assert all(each.startswith("line 3: graph_config.nodes.a.subgraph: /") for each in found)
    assert all("s/graph_config.yaml, line " in each for each in found)
    says(*found)


def test_mistakes_of_the_whole_graph_are_reported_beside_those_of_parts(project, says):
    text = graph(
        const("first") + const("second") + const("alone") + const("round") + "    broken: {node_type: lamda}\n",
        edges(
            "from: START, to: frist", "from: first, to: [second, broken]", "from: secnd, to: round",
            "from: round, to: round", "from: broken, to: END",
        ),
        rest="""
output_config: {output_map: {a: {form: a}, b: {from: first}}}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params: {aggregator_metrics_map: [{name: accuracy, unit_metrics_results: [a, exact_match]}]}
""",
    )  # fmt: skip
    found = problems(project, text)
    says(*found)
    named = ["'frist'", "'secnd'", "'lamda'", "alone: ", "round: ", "output_map.a.form: ", "'exact_match'"]
    assert [sum(name in problem for problem in found) for name in named] == [1] * len(named)
    assert not any("field 'a'" in problem or "second: " in problem for problem in found)


def test_consequences_of_an_ambiguous_edge_are_not_reported(project, says):
    text = graph(const("a") + const("b"), edges("from: START, to: a", "from: a, to: zzzzzz"))
    [problem] = problems(project, text)
    says(problem)


LAMBDAS = """
def of_state(state):
    return {}

def of_node(lambda_node_dict, state):
    return {}

class Made:
    def __init__(self, **keys):
        pass

    def __call__(self, state):
        return {}
"""


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("of_state", "ouput_keys: [x]"),
        ("of_state", "threshold: 1"),
        ("of_node", "ouput_keys: [x]"),
        ("Made", "node_stat: idle"),
    ],
)
def test_a_lambda_key_that_nothing_reads_is_reported(project, name, key, says):
    project.write("t/keys.py", LAMBDAS)
    [problem] = problems(project, one(f"node_type: lambda, lambda: keys.{name}, {key}"))
    says(problem)


@pytest.mark.parametrize("name", ["of_node", "Made"])
def test_code_that_reads_its_nodes_keys_may_have_any(project, name):
    project.write("t/keys.py", LAMBDAS)
    project.write(
        "t/graph_config.yaml", one(f"node_type: lambda, lambda: keys.{name}, threshold: 1, input_key: a")
    )
    assert list(load_task("t").plan.nodes) == ["a"]


PROMPT = """
graph_config:
  nodes:
    ask:
      node_type: llm
      prompt: [{user: "{qestion} and {{braces}} and {\\"json\\": 1}"}]
      output_keys: [said]
      model: {name: x@http://127.0.0.1:9/v1}
    judge:
      node_type: llm
      prompt: [{user: "{said} {question}"}]
      output_keys: [verdict]
      model: {name: x@http://127.0.0.1:9/v1}
"""


def test_a_variable_that_nothing_sets_is_found_before_the_run(project, says):
    [found] = problems(project, PROMPT, [{"id": 1, "question": "why"}])
    assert found.startswith("line 6: ")
    assert "{qestion}" in found
    says(found)


def test_a_variable_that_code_may_set_is_left_to_the_record(project):
    project.write("t/code.py", "def before(state):\n    return state\n")
    text = PROMPT.replace(
        'node_type: llm\n      prompt: [{user: "{q',
        'node_type: llm\n      pre_process: code.before\n      prompt: [{user: "{q',
    )
    project.write("t/graph_config.yaml", text)
    project.rows("rows.jsonl", [{"id": 1, "question": "why"}])
    assert len(load_task("t").dataset(file="rows.jsonl")) == 1


def test_a_key_that_the_data_lack_is_found_before_the_run(project, says):
    text = """
unit_metrics:
  node_type: lambda
  lambda: tasks.eval.utils.UnitMetrics
  golden_key: anser
  predicted_key: said
  unit_metrics_map: [{name: exact_match}]
"""
    [found] = problems(project, text, [{"answer": "a", "said": "b"}])
    assert found.startswith("line 5: unit_metrics.golden_key: ")
    says(found)


def test_a_file_beside_the_task_that_fails_to_import_is_named(project):
    project.write(
        "t/metric.py", "from karat.graph.metrics import unit_metric\n@unit_metric('x')\nclass X: broken\n"
    )
    text = graph(const("a"))
    [found] = problems(project, text)
    assert "metric.py" in found
    assert "NameError" in found


def test_without_an_output_map_a_report_may_ask_for_what_nodes_set(project, says):
    text = """
unit_metrics:
  node_type: lambda
  lambda: tasks.eval.utils.UnitMetrics
  golden_key: answer
  predicted_key: said
  unit_metrics_map: [{name: exact_match}]
  output_keys: [exact_match]
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params: {aggregator_metrics_map: [{name: accuracy, unit_metrics_results: [fuzzy_match]}]}
"""
    [found] = problems(project, text, [{"answer": "a", "said": "b"}])
    says(found)


def test_a_metric_that_the_output_map_takes_from_elsewhere_is_reported_once(project, says):
    text = """
graph_config:
  nodes:
    unit_metrics:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetrics
      golden_key: answer
      predicted_key: said
      unit_metrics_map: [{name: exact_match}]
      output_keys: [exact_match]
output_config:
  output_map: {exact_match: {from: exactmatch}}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params: {aggregator_metrics_map: [{name: accuracy, unit_metrics_results: [exact_match]}]}
"""
    [found] = problems(project, text, [{"answer": "a", "said": "b"}])
    says(found)


TWO_PROMPTS = """\
data_config: {{examples: [{{id: 1, question: why}}]}}
graph_config:
  nodes:
    ask:
      node_type: llm
      prompt: [{{user: "{{quesion}}"}}]
      output_keys: [answer]
      {more}
      model: {{name: x@http://127.0.0.1:9/v1}}
    judge:
      node_type: llm
      prompt: [{{user: "{{anser}} {{word}}"}}]
      output_keys: [verdict]
      model: {{name: x@http://127.0.0.1:9/v1}}
output_config:
  output_map: {{id: {{form: id}}}}
"""


def loading(project, text: str, **options) -> list[str]:
    project.write("t/graph_config.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_task("t", **options)
    return caught.value.problems


def test_unknown_variables_are_reported_together_with_every_other_mistake(project, says):
    found = loading(project, TWO_PROMPTS.format(more=""))
    assert len(found) == 5, found
    assert ["output_map.id" in each for each in found] == [False, False, False, True, True]
    says(found[0])
    assert "asks for {anser}" in "".join(found)
    assert "asks for {word}" in "".join(found)


def test_a_mistake_is_not_reported_twice_through_its_consequences(project):
    found = loading(project, TWO_PROMPTS.format(more="output_kyes: [anser, word]"))
    assert any("output_kyes: " in each for each in found)
    assert any("{quesion}" in each for each in found), "its own prompt is still known"
    assert not any("{anser}" in each or "{word}" in each for each in found), found
    broken = TWO_PROMPTS.format(more="").replace("examples: [{id: 1, question: why}]", "exmples: []")
    assert not any("asks for" in each for each in loading(project, broken)), "the fields are not known"


def test_variables_are_held_against_the_data_that_will_be_run_over(project):
    project.rows("rows.jsonl", [{"quesion": "why", "word": "good"}])
    found = loading(project, TWO_PROMPTS.format(more=""), data="rows.jsonl", run_args={"anser": "no"})
    assert not any("asks for" in each for each in found), found


def test_settings_without_effect_are_reported(project, says):
    project.write(
        "t/graph_config.yaml",
        """\
data_config:
  examples: [{id: 1}]
  resumable: true
  sink: {type: json, file_path: out.json, encoding: utf-8}
graph_config:
  graph_state: {a: str}
  graph_properties: {retry_chat_injection: true, rounds_of_ours: 3}
  nodes:
    a: {node_type: weighted_sampler, attributes: {a: {values: [1]}}, node_name: first}
    b:
      node_type: llm
      prompt: [{user: hi}]
      tool_choice: auto
      output_keys: [b]
      model: {name: x@http://127.0.0.1:9/v1}
      structured_output: {schema: {fields: {b: {type: str}}}, max_parse_retries: 3}
  edges:
    - {from: START, to: a, max_iterations: 3}
    - {from: a, to: b}
    - {from: b, to: END}
""",
    )
    notes = load_task("t").notes
    keys = [note.removeprefix("t, ").split(":")[1].rpartition(".")[2] for note in notes]
    assert keys == [
        "resumable", "encoding", "graph_state", "retry_chat_injection", "rounds_of_ours", "node_name", "tool_choice",
        "max_parse_retries", "max_iterations",
    ]  # fmt: skip
    says(*notes)
    assert notes[2].startswith("t, line 6: graph_config.graph_state: ")


def test_names_of_files_that_no_file_can_have_are_mistakes_with_their_lines(project):
    name = "a" * 300
    project.write("t/graph_config.yaml", f"""\
data_config: {{source: {{type: disk, file_path: {name}}}}}
graph_config:
  nodes:
    a: {{node_type: subgraph, subgraph: {name}}}
""")  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        load_task("t")
    lines = [problem.split(":")[0] for problem in caught.value.problems]
    assert sorted(lines) == ["line 1", "line 4"]


NOWHERE = """\
data_config:
  source:
    type: disk
    file_path: rowz.jsonl
    SOURCE
graph_config:
  nodes:
    a:
      node_type: weighted_sampler
      attributes: {x: {values: [1]}}
      NODE
"""


@pytest.mark.parametrize(
    ("source", "node", "line"),
    [
        ("", "atributes: {}", 11),
        ("file_fromat: jsonl", "", 5),
    ],
)
def test_a_data_file_that_is_not_there_is_reported_beside_other_mistakes(project, source, node, line, says):
    project.write("t/graph_config.yaml", NOWHERE.replace("SOURCE", source).replace("NODE", node))
    project.rows("t/rows.jsonl", [{"id": 1}])
    missing = "line 4: data_config.source.file_path: "
    with pytest.raises(ConfigError) as caught:
        load_task("t")
    told = sorted(caught.value.problems)
    assert len(told) == 2
    assert any(each.startswith(missing) for each in told)
    assert any(each.startswith(f"line {line}: ") for each in told)
    says(*told)
    with pytest.raises(ConfigError) as caught:  # other data stand in for it
        load_task("t", data="t/rows.jsonl")
    assert not any(each.startswith(missing) for each in caught.value.problems)


def test_a_missing_data_file_is_accepted_when_other_data_replaces_it(project):
    project.write("t/graph_config.yaml", NOWHERE.replace("SOURCE", "").replace("NODE", ""))
    project.rows("rows.jsonl", [{"id": 1}])
    assert len(load_task("t").dataset(file="rows.jsonl")) == 1


LOCATED = filled("""
data_config: {examples: [{id: 1, mission: m, turn: 0, answer: {text: a}, said: {text: a}}]}
graph_config: {nodes: {metrics: JUDGING}}
output_config: {output_map: {id: {from: id}, mission: {from: mission}, exact_match: {from: exact_match}}}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    params:
      aggregator_metrics_map:
        - name: step_efficiency
          metadata: {mission_id: mision, step_id: id}
          unit_metrics_results: [exact_match]
""")


def test_a_field_that_metadata_names_and_records_lack_is_reported(project, says):
    """Else all steps would be those of one mission, and the number wrong."""
    says(
        *problems(
            project, LOCATED, [{"id": 1, "mission": "m", "answer": {"text": "a"}, "said": {"text": "a"}}]
        )
    )


def test_a_missing_field_of_an_earlier_processor_is_reported_by_the_metric(project, says):
    text = LOCATED.replace("    params:\n", "    use_previous_output: true\n    params:\n").replace(
        "graph_post_process:\n", "graph_post_process:\n  - processor: same.Same\n"
    )
    project.write("t/graph_config.yaml", text)
    project.write("t/same.py", "class Same:\n    def process(self, data):\n        return data\n")
    report = project.run("t").report()
    says(report["results"]["exact_match-step_efficiency"]["error"])
    assert report["evaluation_summary"]["status"] == "fatal_error"


def test_a_node_that_is_switched_off_needs_no_edge(project):
    project.write("t/graph_config.yaml", """
data_config: {examples: [{id: 1}]}
graph_config:
  nodes:
    a: {node_type: weighted_sampler, attributes: {x: {values: [1]}}}
    b: {node_type: llm, node_state: idle, prompt: [{user: hi}], output_keys: y, model: x@http://127.0.0.1:9/v1}
  edges: [{from: START, to: a}, {from: a, to: END}]
""")  # fmt: skip
    assert project.run("t").records == [{"id": 1, "x": 1}]
    assert [node.kind for node in load_outline("t")[1].nodes.values()] == ["weighted_sampler", "idle"]


def test_code_of_a_task_reads_a_graph_property_of_its_own(project):
    project.write(
        "t/code.py",
        """
from sygra.utils.utils import get_graph_property

def read(node, state):
    return {"found": [get_graph_property("rounds_of_ours", 0), get_graph_property("others", "none")]}
""",
    )
    project.write(
        "t/graph_config.yaml",
        """
data_config: {examples: [{id: 1}]}
graph_config:
  graph_properties: {rounds_of_ours: 3}
  nodes:
    a: {node_type: lambda, lambda: code.read, output_keys: [found]}
""",
    )
    assert project.run("t").records == [{"id": 1, "found": [3, "none"]}]
