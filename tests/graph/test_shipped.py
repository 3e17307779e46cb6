"""The tasks that come with karat."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import karat
from karat import models
from karat.documents import read_document
from karat.errors import KaratError
from karat.graph import find_task, known_tasks, load_task

QUESTIONS = [
    {"original_index": 5, "problem": "Who wrote it?", "answer": "Ann Lee", "topic": "Art"},
    {"original_index": 6, "problem": "When was it?", "answer": "1984", "topic": "History"},
]


def weights() -> bool:
    try:
        models.get("local/smollm2-135m")
    except KaratError:
        return False
    return True


def test_all_are_found_by_name(project):
    assert known_tasks() == [
        "eval/agents/web_actions",
        "eval/classification/demo",
        "eval/classification/simpleqa",
        "eval/question_answering/demo",
        "eval/question_answering/simpleqa",
    ]


def test_recorded_web_actions(project):
    outcome = project.run("tasks.eval.agents.web_actions")
    by_id = {record["id"]: record for record in outcome.records}
    assert len(by_id) == 13
    assert by_id["shop-3"]["retry"] == 1
    assert by_id["shop-3"]["step_match"]["correct"] is True
    assert by_id["shop-5"]["retry"] == 2
    assert by_id["shop-5"]["tool_match"]["correct"] is True
    assert by_id["shop-5"]["step_match"]["correct"] is False
    results = outcome.report()["results"]
    assert results["tool_match-accuracy"]["accuracy"] == 1.0
    assert results["step_match-accuracy"]["accuracy"] == pytest.approx(12 / 13)
    efficiency = results["step_match-retry_efficiency"]
    assert efficiency["retry_efficiency_per_mission"]["flight"] == pytest.approx((4 + 0.6) / 5)
    assert (efficiency["n"], efficiency["of"]) == (13, 13)


@pytest.mark.parametrize(
    ("task", "answer", "metric"),
    [
        ("eval/question_answering/simpleqa", '{"predicted_answer": "Ann Lee"}', "fuzzy_match-accuracy"),
        ("eval/classification/simpleqa", '{"predicted_topic": "Art"}', "exact_match-accuracy"),
    ],
)
def test_simpleqa_over_local_data(project, task, answer, metric):
    from karat.testing import FakeProvider

    rows = [{**row, "id": row["original_index"]} for row in QUESTIONS]
    project.rows("questions.jsonl", rows)
    with FakeProvider(answers=answer) as server:
        outcome = project.run(task, data="questions.jsonl", model=server.spec())
    assert [record["id"] for record in outcome.records] == [5, 6]
    assert outcome.report()["results"][metric]["accuracy"] == 0.5


@pytest.mark.skipif(not weights(), reason="the weights of the embedded model are not installed")
@pytest.mark.parametrize(
    ("task", "field", "kinds"),
    [
        ("eval/question_answering/demo", "predicted_answer", None),
        ("eval/classification/demo", "predicted_kind", {"complaint", "praise", "question"}),
    ],
)
def test_demos_with_the_embedded_model(project, task, field, kinds):
    outcome = project.run(task, limit=2)
    assert outcome.run.counts.ok == 2
    assert all(isinstance(record[field], str) for record in outcome.records)
    if kinds is not None:
        assert {record[field] for record in outcome.records} <= kinds
    assert outcome.report()["evaluation_summary"]["total_records"] == 2


def test_data_from_the_hub_needs_its_package_or_the_network_and_says_so(project, monkeypatch, refuses):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    task = load_task("eval/question_answering/simpleqa", model="x@http://127.0.0.1:9/v1")
    with refuses(KaratError):
        task.dataset()


SAMPLING = {"temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty"}


def keys(value):
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("name", known_tasks())
def test_no_shipped_task_sets_a_sampling_parameter(name):
    assert not SAMPLING & keys(read_document(find_task(name).file).value)


PACKAGE = Path(karat.__file__).parent
FILES = sorted([*(PACKAGE / "demo").rglob("*.yaml"), *(PACKAGE / "templates").rglob("*.yaml")])


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_neither_the_demo_nor_a_template_sets_a_sampling_parameter(file):
    found = keys(read_document(file).value)
    assert found
    assert not SAMPLING & found


@pytest.mark.parametrize("file", sorted((PACKAGE / "templates").rglob("*.py")), ids=lambda file: file.name)
def test_no_code_of_a_template_sets_a_sampling_parameter(file):
    tree = ast.parse(file.read_text())
    assert not SAMPLING & {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
