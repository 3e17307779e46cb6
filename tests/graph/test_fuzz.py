"""Loading any graph file gives a task or an error message, never a traceback."""

from __future__ import annotations

import contextlib
import copy
import tempfile
from pathlib import Path

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.errors import KaratError
from karat.graph import load_task

WHOLE = yaml.safe_load("""
data_config:
  id_column: id
  source:
    - alias: p
      join_type: primary
      type: examples
      examples: [{id: 1, x: 2}]
      transformations: [{transform: rename, params: {mapping: {x: id2}}}]
    - {alias: q, join_type: column, primary_key: id, join_key: k, type: disk, file_path: rows.jsonl, file_format: jsonl}
  sink: {type: json, file_path: sink.json}
graph_config:
  graph_properties: {chat_conversation: multiturn, chat_history_window_size: 5, max_iterations: 3}
  nodes:
    sample: {node_type: weighted_sampler, attributes: {a: {values: [1, 2], weights: [1, 2]}}}
    ask:
      node_type: llm
      prompt: [{system: hi}, {user: [{type: text, text: "{a}"}, {type: image_url, image_url: "{a}"}]}]
      output_keys: [said]
      model:
        name: "x@http://127.0.0.1:9/v1"
        parameters: {temperature: 0}
        structured_output: {schema: {fields: {said: {type: str}}}}
    both:
      node_type: multi_llm
      prompt: [{user: "{a}"}]
      models: {one: {name: "x@http://127.0.0.1:9/v1"}}
      output_keys: answers
    act:
      node_type: agent
      prompt: [{user: "{said}"}]
      tools: [json.dumps]
      inject_system_messages: {1: hm}
      model: "x@http://127.0.0.1:9/v1"
      output_keys: done
    metrics:
      node_type: lambda
      lambda: tasks.eval.utils.UnitMetrics
      golden_key: a
      predicted_key: said
      unit_metrics_map: [{name: exact_match, params: {key: text}}]
      output_keys: [exact_match]
  edges:
    - {from: START, to: sample}
    - {from: sample, to: [ask, both]}
    - {from: [ask, both], to: act}
    - {from: act, condition: operator.truth, path_map: {true: metrics, false: END}}
    - {from: metrics, to: END}
output_config:
  output_map:
    id: {from: id}
    fixed: {value: "$data_config.source[0].alias"}
    exact_match: {from: exact_match, transform: operator.truth}
schema_config: {fields: [{name: id, type: int, is_greater_than: 0}]}
graph_post_process:
  - processor: tasks.eval.utils.MetricCollatorPostProcessor
    filter: {id: 1}
    params: {aggregator_metrics_map: [{name: accuracy, params: {key: text}, unit_metrics_results: [exact_match]}]}
""")

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 99), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8), st.sampled_from([[], {}, [[]], [None], {"a": None}, {1: [2]}, {"name": 1}, ["a", "a"]]),
    st.sampled_from(["tasks.eval.utils.UnitMetrics", "os.path", "a.b:c", "$data_config[9]", "START", "a\0b", "/"]),
)  # fmt: skip


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


PLACES = [place for place in places(WHOLE) if place]


@st.composite
def mutated(draw):
    """The whole file with a few of its values replaced, removed, or added to."""
    document = copy.deepcopy(WHOLE)
    for place in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        at = document
        try:
            for step in place[:-1]:
                at = at[step]
            how = draw(st.sampled_from(["replace", "remove", "add"]))
            if how == "remove":
                del at[place[-1]]
            elif how == "add" and isinstance(at, dict):
                at[draw(st.text(min_size=1, max_size=6))] = draw(JUNK)
            else:
                at[place[-1]] = draw(JUNK)
        except (KeyError, IndexError, TypeError):
            continue  # what was there has gone already
    return document


def load(document, folder: Path) -> None:
    (folder / "graph_config.yaml").write_text(yaml.safe_dump(document))
    (folder / "rows.jsonl").write_text('{"k": 1}\n')
    task = load_task(str(folder))
    task.dataset()


def test_the_whole_file_is_right(project):
    load(WHOLE, project.folder)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutated())
def test_a_wrong_file_is_reported(project, document):
    # anything but a KaratError is a bug
    with tempfile.TemporaryDirectory(dir=project.folder) as folder, contextlib.suppress(KaratError):
        load(document, Path(folder))
