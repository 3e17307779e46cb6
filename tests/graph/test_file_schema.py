"""The JSON Schema of graph files: it accepts what karat reads, and marks what karat refuses."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from karat.cli import main
from karat.documents import read_document
from karat.graph import find_task, graph_schema, known_tasks
from karat.graph._configuration import jsonable

VALIDATOR = Draft202012Validator(graph_schema())


def problems(document):
    return [error.json_path for error in VALIDATOR.iter_errors(jsonable(document))]


def test_it_is_a_schema():
    Draft202012Validator.check_schema(graph_schema())


@pytest.mark.parametrize("name", known_tasks())
def test_shipped_tasks_fit(name):
    assert problems(read_document(find_task(name).file).value) == []


NODE = {"node_type": "llm", "prompt": [{"user": "{q}"}], "output_keys": "x", "model": {"name": "m"}}


@pytest.mark.parametrize(
    ("node", "wrong"),
    [
        (NODE, False),
        ({**NODE, "model": "m"}, False),
        ({**NODE, "promt": []}, True),
        ({**NODE, "model": {"name": "m", "paramters": {}}}, True),
        ({**NODE, "node_type": "lmm"}, True),
        ({"node_type": "llm"}, True),
        ({"node_type": "lambda", "lambda": "f", "anything": 1}, False),
        ({"node_type": "lambda"}, True),
        ({"node_type": "multi_llm", "prompt": [{"user": "q"}], "models": {"a": {"name": "m"}}}, False),
        ({"node_type": "multi_llm", "prompt": [{"user": "q"}], "models": {}}, True),
        ({"node_type": "agent", "prompt": [{"user": "q"}], "max_steps": 0}, True),
        ({"node_type": "weighted_sampler", "attributes": {"a": {"values": [1]}}}, False),
        ({"node_type": "weighted_sampler", "attributes": {"a": {"value": [1]}}}, True),
        ({"node_type": "subgraph", "subgraph": "t", "node_config_map": {"n": {"model": "m"}}}, False),
    ],
)
def test_a_node_is_checked_by_its_type(node, wrong):
    nested = problems({"graph_config": {"nodes": {"n": node}}})
    assert bool(nested) is wrong
    assert bool(problems({"n": node})) is wrong, "nodes may stand at the top of a file"


@pytest.mark.parametrize(
    "document",
    [
        {"graph_config": {"nodes": {"n": NODE}, "edgs": []}},
        {"graph_config": {"nodes": {"n": NODE}, "edges": [{"form": "n"}]}},
        {"graph_config": {"nodes": {"n": NODE}, "graph_properties": {"chat_conversation": "both"}}},
        {"graph_config": {"nodes": {"n": NODE}}, "output_config": {"output_mpa": {}}},
        {"graph_config": {"nodes": {"n": NODE}}, "graph_post_process": [{"params": {}}]},
        {"graph_config": {"nodes": {"n": NODE}}, "data_confg": {}},
    ],
)
def test_a_misspelt_key_is_marked(document):
    assert problems(document)


def test_init_writes_a_graph_task_that_works_at_once_with_its_schema(project, capsys, monkeypatch):
    monkeypatch.delenv("KARAT_STORE", raising=False)
    assert main(["init", "capitals", "--graph"]) == 0
    assert sorted(path.name for path in (project.folder / "capitals").iterdir()) == [
        "answers.py",
        "graph.schema.json",
        "graph_config.yaml",
        "questions.jsonl",
    ]
    written = json.loads((project.folder / "capitals/graph.schema.json").read_text())
    assert written == graph_schema()
    config = project.folder / "capitals/graph_config.yaml"
    assert config.read_text().startswith("# yaml-language-server: $schema=graph.schema.json")
    assert problems(read_document(config).value) == []
    assert main(["run", "capitals", "--output_dir", "out", "--quiet"]) == 0
    [report] = [path for path in (project.folder / "out").iterdir() if path.name.startswith("Metric")]
    assert json.loads(report.read_text())[0]["results"]["exact_match-accuracy"]["accuracy"] == 0.75
    capsys.readouterr()
    assert main(["init", "capitals", "--graph"]) == 2, "nothing is overwritten"
