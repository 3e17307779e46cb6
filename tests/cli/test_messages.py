"""What a person who is new to karat gets wrong, and the sentence that puts it right."""

from __future__ import annotations

import json
import re
import shlex

import pytest


@pytest.fixture
def run(karat, project) -> str:
    return str(karat("run", "experiment.yaml", "--json").json["runs"][0]["id"])


def test_a_run_with_failures_that_is_returned_names_the_remedy(karat, project, run, says):
    said = karat("run", "experiment.yaml")
    told = karat("run", "experiment.yaml", "--json").json["runs"][0]["notice"]
    says(told)
    assert told.startswith(f"run {run} ")
    assert f"karat: {told}\n" in said.err
    says(karat("run", "experiment.yaml", "--refresh").err)


def test_records_of_no_example_are_reported_as_text_and_as_json(karat, project, says):
    (project / "rec.jsonl").write_text('{"id": "q0", "output": "ONE"}\n{"id": "q99", "output": "?"}\n')
    said = karat("run", "--recorded", "rec.jsonl", "--data", "good.jsonl", "--json")
    told = said.json["runs"][0]["notice"]
    says(told)
    assert told in said.err
    assert told in karat("run", "--recorded", "rec.jsonl", "--data", "good.jsonl").err


def test_an_offset_beyond_the_data(karat, project, says):
    arguments = ["run", "task.py:shout", "--data", "good.jsonl", "--input", "question", "--offset", 4]
    said = karat(*arguments, "--json")
    assert (said.code, said.json["status"]) == (1, "no_data")
    says(said.err)
    says(karat(*arguments, "--check").err)
    says(karat(*arguments[:-1], 3).err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "task.py:shout", "--data", "adir"],
        ["run", "task.py:shout", "--data", "qa.txt"],
        ["run", "experimnt"],
        ["run", "experiment.yml"],
        ["run", "taskk:shout"],
        ["ls", "--store", "mongo://x"],
        ["graph", "eval/classification/demo", "--out", "g.xyz"],
        ["graph", "eval/classification/demo", "--out", "none/g.svg"],
        ["evaluate", "RUN", "-e", '{"nme": "exact_match"}'],
        ["export", "RUN", "-o", "none/x.csv"],
        ["report", "RUN", "-o", "none/x.md"],
        ["compare", "RUN", "RUN"],
        ["compare", "RUN", "RUN", "latest"],
    ],
)
def test_each_is_one_sentence_with_the_remedy(karat, project, run, arguments, says):
    (project / "adir").mkdir()
    (project / "qa.txt").write_text((project / "qa.jsonl").read_text())
    said = karat(*(run if each == "RUN" else each for each in arguments))
    assert said.code == 2
    says(said.err)


@pytest.mark.parametrize(
    "limit",
    [
        "acuracy:0.05",
        "accuracy:5%",
        "accuracy:x%",
        "accuracy:5",
        "accuracy=0.05",
        "accuracy 0.05",
        "0.05",
    ],
)
def test_a_gate_that_is_misspelt(karat, run, limit, says):
    other = karat("run", "experiment.yaml", "--new", "--json").json["runs"][0]["id"]
    said = karat("compare", run, other, "--fail-if-worse", limit)
    assert said.code == 2
    says(said.err)


def test_a_name_that_nothing_has_shows_the_newest_of_each_kind(karat, project, run, says):
    newest = [karat("run", "experiment.yaml", "--new", "--json").json for _ in range(4)]
    said = karat("show", "zzzz").err
    runs = [each["runs"][0]["id"] for each in reversed(newest)]
    assert f" {', '.join(runs[:3])}, …" in said
    says(said)
    assert runs[3] not in said
    says(karat("show", "qaa").err)


def test_near_names_folders_and_low_scores_are_named(karat, project, run, says):
    says(karat("show", "lastest").err)
    for store in ("results/", "sqlite:///results/"):
        said = karat("ls", "--store", store)
        assert said.code == 2
        says(said.err)
    assert not (project / "results").exists()
    sound = karat("run", "experiment.yaml", "--limit", "2", "--json").json["evaluation"]["id"]
    said = karat("show", sound, "--failed").out
    assert f"karat show {sound} --where 'score<1'" in said


def test_ls_says_the_version_that_the_names_say(karat, project):
    for word in ("one", "two"):
        (project / "words.jsonl").write_text(json.dumps({"input": word}) + "\n")
        karat("run", "task.py:shout", "--data", "words.jsonl")
    listed = karat("ls", "datasets", "--json").json["datasets"]
    assert [(each["version"], each["names"]) for each in listed] == [(1, ["words@1"]), (2, ["words@2"])]


def test_an_export_of_a_run_has_the_metadata_of_its_examples(karat, project):
    (project / "tagged.jsonl").write_text('{"question": "one", "topic": "numbers"}\n')
    karat("run", "task.py:shout", "--data", "tagged.jsonl", "--input", "question")
    assert json.loads(karat("export", "latest").out)["metadata"] == {"topic": "numbers"}
    karat("export", "latest", "-o", "rows.csv")
    assert '{""topic"":""numbers""}' in (project / "rows.csv").read_text()


def test_evaluate_says_where_to_look_for_what_failed(karat, project, run):
    said = karat("evaluate", run, "-e", "edit_distance")
    assert said.code == 1
    assert re.search(r"karat show eval-\w+ --failed", said.out)
    good = karat("run", "task.py:shout", "--data", "good.jsonl", "--input", "question", "--json").json
    assert "--failed" not in karat("evaluate", good["runs"][0]["id"], "-e", "json_match").out


def test_failures_of_several_runs_say_of_which_run(karat, project, run):
    other = karat("run", "experiment.yaml", "--new", "--json").json["runs"][0]["id"]
    evaluation = karat("evaluate", run, other, "-e", "exact_match", "--json").json["id"]
    [kind] = karat("show", evaluation, "--failed", "--json").json["kinds"]
    assert [each["runs"] for each in kind["examples"]] == [[run], [other]]
    assert f"q4 ({run}), q4 ({other})" in karat("show", evaluation, "--failed").out
    alone = karat("evaluate", run, "-e", "exact_match", "--json").json["id"]
    assert f"({run})" not in karat("show", alone, "--failed").out


def test_failures_of_a_kind_that_are_not_shown_are_counted(karat, project):
    (project / "bad.py").write_text("def bad(text):\n    raise ValueError(text)\n")
    karat("run", "bad.py:bad", "--data", "qa.jsonl", "--input", "question")
    [kind] = karat("show", "latest", "--failed", "--json").json["kinds"]
    assert (kind["count"], kind["status"], kind["kind"], len(kind["examples"])) == (
        6,
        "failed",
        "ValueError",
        5,
    )
    assert "q0, q1, q2, q3, q4, …" in karat("show", "latest", "--failed").out


def test_failures_of_a_graph_are_grouped_by_node_and_error(karat, project):
    (project / "graph").mkdir()
    (project / "graph" / "parts.py").write_text(
        "def first(node, state):\n"
        "    if state['question'] == 'boom':\n        raise ValueError('loud')\n    return state\n"
        "def second(node, state):\n"
        "    if state['question'] in ('one', 'two'):\n        raise KeyError('none')\n    return state\n"
    )
    (project / "graph" / "graph_config.yaml").write_text(
        "data_config: {source: {type: disk, file_path: ../qa.jsonl, file_format: jsonl}}\n"
        "graph_config:\n"
        "  nodes:\n"
        "    first: {node_type: lambda, lambda: parts.first}\n"
        "    second: {node_type: lambda, lambda: parts.second}\n"
        "  edges:\n"
        "    - {from: START, to: first}\n"
        "    - {from: first, to: second}\n"
        "    - {from: second, to: END}\n"
    )
    document = karat("run", "graph", "--json", "--output_dir", "out").json
    run = document["runs"][0]["id"]
    kinds = karat("show", run, "--failed", "--json").json["kinds"]
    found = [(kind["count"], kind["kind"], kind["examples"][0]["message"]) for kind in kinds]
    assert found == [(2, "node second: KeyError", "'none'"), (1, "node first: ValueError", "loud")]
    assert "node second: KeyError" in karat("report", run).out


def test_the_same_command_without_new_continues(karat, project, says):
    data = ["--data", "qa.jsonl", "--input", "question", "--expected", "answer"]
    for new in ([], ["--new"]):
        said = karat("run", "task.py:shout", *data, "--abort-on-error", *new)
        assert said.code == 1
        assert ("without --new" in said.err) is bool(new)
        says(said.err)
        assert "--new" not in said.err.partition("to continue: ")[2]
    told = karat("run", "task.py:shout", *data, "--abort-on-error", "--new", "--json").json["error"]
    says(told["message"])
    assert karat(*shlex.split(told["go_on"])[1:]).json["runs"][0]["counts"]["pending"] == 0


def test_a_label_that_several_runs_have_is_noticed(karat, project, says):
    command = ["run", "experiment.yaml", "--label", "nightly", "--new"]
    first = karat(*command, "--json")
    assert "nightly" not in first.err
    second = karat(*command)
    made = karat("ls", "runs", "--json").json["runs"]
    older, newer = (run["id"] for run in made)
    [told] = [line for line in second.err.splitlines() if "nightly" in line]
    says(told)
    assert older in told
    assert f"karat tag {newer} nightly --move" in second.err
    assert karat("show", "nightly").code == 2
    assert karat("tag", newer, "nightly", "--move").code == 0
    assert karat("show", "nightly", "--json").json["id"] == newer
    assert "nightly" not in karat("run", "experiment.yaml", "--label", "nightly").err


BROKEN = """
class Broken:
    key = "broken"

    def evaluate(self, outputs, **_):
        if outputs == "ONE":
            raise KeyError("another kind")
        raise ValueError(f"no score for this output: \\x1b[31m")


class Picky:
    key = "picky"

    def evaluate(self, outputs, **_):
        if outputs == "TWO":
            raise ValueError("two is too much")
        return 1.0
"""


def test_failures_of_evaluators_are_printed_by_kind(karat, project, says):
    """With the first example of each kind and the command that shows them, by run and by evaluate."""
    (project / "broken.py").write_text(BROKEN)
    parts = ["-e", "broken.py:Broken", "-e", "broken.py:Picky", "-e", "exact_match"]
    data = ["--data", "good.jsonl", "--input", "question", "--expected", "answer"]
    ran = karat("run", "task.py:shout", *data, *parts)
    judged = karat("evaluate", "latest", *parts, "--new")
    for said in (ran, judged):
        assert said.code == 1
        says(*[line for line in said.out.splitlines() if "broken.py:" in line])
        assert "\x1b" not in said.out
        [command] = [line for line in said.out.splitlines() if "--failed" in line]
        assert karat(*command.partition("karat ")[2].split()).code == 0
        says(*[line for line in said.out.splitlines() if "exact_match accuracy" in line])
    only = karat("evaluate", "latest", "-e", "broken.py:Broken")
    assert "broken: 3 of 4 failed" in only.out


def test_an_evaluation_ends_with_its_scores(karat, project, says):
    run = karat("run", "experiment.yaml", "--json").json["runs"][0]["id"]
    said = karat("evaluate", run, "-e", "edit_distance")
    says(*[line for line in said.out.splitlines() if "edit_distance mean" in line])
    [found] = karat("evaluate", run, "-e", "edit_distance", "--json").json["aggregation"]["estimates"]
    assert (found["n"], found["of"]) == (5, 6)
    other = karat("run", "experiment.yaml", "--param", "end=!", "--json").json
    pair = '{"name": "by_metric", "params": {"metric": "exact_match"}}'
    compared = karat("evaluate", run, other["runs"][0]["id"], "-e", pair, "--json")
    assert compared.json["aggregation"]["estimates"]


def test_a_fix_is_written_as_an_option_of_the_command_line(karat, project):
    """Not as a keyword argument of Python; the command that is named works."""
    (project / "traces.jsonl").write_text('{"id": "q0", "messages": "ONE"}\n')
    data = ["--data", "qa.jsonl", "--input", "question", "--expected", "answer"]
    said = karat("run", "--recorded", "traces.jsonl", *data)
    assert "--output FIELD" in said.err
    assert karat("run", "--recorded", "traces.jsonl", *data, "--output", "messages", "--check").code == 0
    said = karat("run", "task.py:shout", *data, "-e", "llm_judge", "--check")
    assert said.code == 2
    [fix] = re.findall(r"-e '(.*)'", said.err)
    fix = fix.replace("PROVIDER/NAME", "ollama/x")
    assert karat("run", "task.py:shout", *data, "-e", fix, "--check").code == 0
