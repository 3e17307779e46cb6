"""Everything that a command prints is there as one JSON document too."""

from __future__ import annotations

import pytest

from karat.cli.parser import COMMANDS

ARGUMENTS: dict[str, list[list[str]]] = {
    "init": [["new"]],
    "run": [["experiment.yaml"], ["experiment.yaml", "--check"], ["experiment.yaml", "--estimate", "2"]],
    "evaluate": [["latest", "-e", "json_valid"]],
    "aggregate": [["latest", "-a", "mean"]],
    "compare": [["first", "second"]],
    "rank": [["first", "second", "--metric", "exact_match"]],
    "report": [["first"], ["first", "-o", "report.md"]],
    "graph": [["graph"]],
    "ls": [[], ["runs"], ["--label", "first"]],
    "show": [
        ["first"],
        ["first", "--failed"],
        ["first", "--where", "score<1"],
        ["first", "--example", "q0"],
        ["first", "--details"],
        ["qa"],
        ["latest"],
    ],
    "tag": [["first", "again"]],
    "export": [["first"], ["first", "-o", "out.csv"]],
    "rm": [["second", "--cascade", "--dry-run"]],
    "evaluators": [[], ["exact_match"]],
    "models": [[], ["--prices"]],
    "models cache": [["stats"], ["clear"]],
    "doctor": [[]],
}
ELSEWHERE = {"view", "models pull", *(name for name in COMMANDS if name.split()[0] in ("judge", "memory"))}
"""`view` serves until it is stopped, `models pull` downloads; the others are tested in their own rooms."""


@pytest.fixture
def made(karat, project):
    for label in ("first", "second"):
        karat("run", "experiment.yaml", "--new", "--label", label)
    karat("evaluate", "first", "second", "-e", "exact_match")
    (project / "graph").mkdir()
    (project / "graph" / "parts.py").write_text("def first(node, state):\n    return state\n")
    (project / "graph" / "graph_config.yaml").write_text(
        "data_config: {source: {type: disk, file_path: ../qa.jsonl, file_format: jsonl}}\n"
        "graph_config:\n"
        "  nodes: {first: {node_type: lambda, lambda: parts.first}}\n"
        "  edges: [{from: START, to: first}, {from: first, to: END}]\n"
    )


def test_every_command_is_tested():
    assert set(COMMANDS) - ELSEWHERE == set(ARGUMENTS)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [(command, arguments) for command, many in ARGUMENTS.items() for arguments in many],
    ids=lambda each: " ".join(each) if isinstance(each, list) else each,
)
def test_json(karat, made, command, arguments):
    said = karat(*command.split(), *arguments, "--json")
    document = said.json
    assert said.code in (0, 1), document
    assert isinstance(document, dict)
    assert "error" not in document or command == "show"
    assert said.out.isascii()


@pytest.mark.parametrize(
    "command", ["show", "compare", "rank", "report", "evaluate", "run", "export", "rm", "tag"]
)
def test_an_error_is_json(karat, made, command):
    said = karat(command, "nothing-of-this-name", "--json")
    assert said.code == 2
    assert said.json["error"]["exit_code"] == 2
    assert said.err == ""
