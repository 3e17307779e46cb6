"""A working folder that is a clone of SyGra, or that has files of the names that a task's own files have."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from karat import models
from karat.errors import ConfigError
from karat.graph import load_outline, load_task
from karat.testing import FakeProvider

TASK = """
data_config: {source: {type: disk, file_path: tasks/t/rows.jsonl}}
graph_config:
  nodes:
    one: {node_type: lambda, lambda: tasks.t.task_executor.One, output_keys: [x]}
  edges:
    - {from: START, to: one}
    - {from: one, condition: tasks.t.task_executor.End, path_map: {END: END, one: one}}
"""
CODE = """
from sygra.core.graph.functions.edge_condition import EdgeCondition
from sygra.core.graph.functions.lambda_function import LambdaFunction
from sygra.extra.more import MORE
from sygra.utils import constants, utils


class One(LambdaFunction):
    @staticmethod
    def apply(node, state):
        return {"x": utils.extract_and_load_json(state["text"]), "more": MORE}


class End(EdgeCondition):
    def apply(state):
        return constants.SYGRA_END
"""


@pytest.fixture
def clone(project):
    """A folder with a package `sygra` whose modules cannot be imported, as those of a clone without its packages."""
    broken = "raise ImportError('SyGra itself was imported')\n"
    for path in (
        "sygra/__init__.py",
        "sygra/core/__init__.py",
        "sygra/core/graph/functions/edge_condition.py",
        "sygra/core/graph/functions/lambda_function.py",
        "sygra/utils/utils.py",
        "sygra/utils/constants.py",
    ):
        project.write(path, broken)
    project.write("sygra/extra/more.py", "MORE = 3\n")
    project.write("tasks/t/graph_config.yaml", TASK)
    project.write("tasks/t/task_executor.py", CODE)
    project.rows("tasks/t/rows.jsonl", [{"id": 1, "text": 'it is {"a": 1}'}])
    return project


def test_a_task_runs_inside_a_clone(clone):
    program = (
        "import sys; sys.path.insert(0, '')\n"
        "import karat, json\n"
        "from karat.graph import load_task\n"
        "task = load_task('tasks.t')\n"
        "run = karat.run(task, task.dataset(), store='memory://', progress=False)\n"
        "print(json.dumps([output.value for output in run.outputs()]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=clone.folder)
    assert done.returncode == 0, done.stderr
    [record] = json.loads(done.stdout)
    assert (record["x"], record["more"]) == ({"a": 1}, 3)


def test_a_drawing_imports_nothing_of_the_task(clone):
    clone.write("tasks/t/task_executor.py", "import no_such_package_at_all\n")
    name, plan = load_outline("tasks.t")
    assert name == "t"
    assert {node: each.kind for node, each in plan.nodes.items()} == {"one": "lambda"}
    assert [edge.targets for edge in plan.edges.after["one"]] == [["END", "one"]]
    with pytest.raises(ConfigError):
        load_task("tasks.t")


def test_a_drawing_still_finds_mistakes_in_the_graph(clone):
    clone.write(
        "tasks/t/graph_config.yaml", TASK.replace("to: one}", "to: oen}").replace("lambda,", "lamda,")
    )
    with pytest.raises(ConfigError) as caught:
        load_outline("tasks.t")
    assert len(caught.value.problems) == 2


def test_the_files_of_a_task_win_over_those_of_the_working_folder(project):
    project.rows("rows.jsonl", [{"id": "wrong"}])
    project.rows("t/rows.jsonl", [{"id": "right"}])
    project.write("t/graph_config.yaml", """
data_config: {source: {type: disk, file_path: rows.jsonl}}
graph_config: {nodes: {one: {node_type: weighted_sampler, attributes: {v: {values: [1]}}}}}
""")  # fmt: skip
    assert [record["id"] for record in project.run("t").records] == ["right"]


def test_a_file_beside_the_working_folder_is_still_found(project):
    project.rows("data/rows.jsonl", [{"id": "here"}])
    project.write("t/graph_config.yaml", """
data_config: {source: {type: disk, file_path: data/rows.jsonl}}
graph_config: {nodes: {one: {node_type: weighted_sampler, attributes: {v: {values: [1]}}}}}
""")  # fmt: skip
    assert [record["id"] for record in project.run("t").records] == ["here"]


MODELS = """
small: {model_type: vllm, model_serving_name: served, parameters: {max_new_tokens: 7, top_k: 3}}
azure 4: {model_type: azure_openai, model: gpt-4o, api_version: "2024-02-15-preview", parameters: {temperature: 1.0}}
pictures: {model_type: azure_openai, model: gpt-image-1, output_type: image, parameters: {size: big}}
cloud: {model_type: bedrock, model: us.anthropic.claude, parameters: {temperature: hot}}
"""


@pytest.mark.parametrize("place", ["models.yaml", "sygra/config/models.yaml"])
def test_a_models_file_of_sygra_is_read(project, monkeypatch, place):
    monkeypatch.delenv("KARAT_MODELS", raising=False)
    project.write(place, MODELS)
    with FakeProvider(answers="yes") as server:
        monkeypatch.setenv("SYGRA_SMALL_URL", server.url)
        assert models.get("small").generate_sync("hello").text == "yes"
        [body] = server.requests
    assert body["model"] == "served"
    assert body["top_k"] == 3
    assert 7 in (body.get("max_tokens"), body.get("max_completion_tokens"))


def test_only_the_model_that_is_used_is_checked(project, monkeypatch):
    monkeypatch.delenv("KARAT_MODELS", raising=False)
    project.write("models.yaml", MODELS)
    monkeypatch.setenv("SYGRA_AZURE_4_URL", "https://place.openai.azure.com/")
    endpoint = models.get("azure 4").endpoint
    assert endpoint.base_url == "https://place.openai.azure.com/openai/v1"
    assert endpoint.headers_env == {"api-key": "SYGRA_AZURE_4_TOKEN"}
    for name, reason in {
        "pictures": "image output",
        "cloud": "type bedrock",
        "small": "set SYGRA_SMALL_URL",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            models.get(name)


def test_a_variable_that_a_shell_cannot_export_is_reported_with_how_to_set_it(project, monkeypatch, says):
    monkeypatch.delenv("KARAT_MODELS", raising=False)
    project.write("models.yaml", "gpt-4o-mini: {model_type: azure_openai, model: gpt-4o-mini}\n")
    for file in (None, ".env"):
        if file is not None:
            project.write(file, "SYGRA_GPT-4O-MINI_URL=http://127.0.0.1:9/v1\n")
        with pytest.raises(ConfigError) as caught:
            models.get("gpt-4o-mini")
        says(*caught.value.problems)
    monkeypatch.setenv("SYGRA_GPT-4O-MINI_URL", "http://127.0.0.1:9/v1")
    assert models.get("gpt-4o-mini").endpoint.base_url == "http://127.0.0.1:9/v1"


def test_what_karat_cannot_do_is_refused_with_the_reason(project, says):
    project.write("t/graph_config.yaml", """
data_config:
  source: {type: servicenow, table: incident}
  sink: {type: servicenow, table: incident, operation: update}
graph_config:
  nodes:
    draw:
      {node_type: llm, prompt: [{user: a}], output_keys: x, model: {name: "m@http://h.invalid/v1", output_type: image}}
""")  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        load_task("t")
    assert len(caught.value.problems) == 3
    says(*caught.value.problems)
