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
    told = f"run {run} is finished, 1 of 6 failed: --retry-failed tries them again, --new makes another"
    assert f"karat: {told}\n" in said.err
    assert karat("run", "experiment.yaml", "--json").json["runs"][0]["notice"] == told
    says(karat("run", "experiment.yaml", "--refresh").err)


def test_records_of_no_example_are_reported_as_text_and_as_json(karat, project):
    (project / "rec.jsonl").write_text('{"id": "q0", "output": "ONE"}\n{"id": "q99", "output": "?"}\n')
    said = karat("run", "--recorded", "rec.jsonl", "--data", "good.jsonl", "--json")
    told = "rec.jsonl: 1 of 2 records belongs to no example (q99)"
    assert said.json["runs"][0]["notice"] == told
    assert told in said.err
    assert told in karat("run", "--recorded", "rec.jsonl", "--data", "good.jsonl").err


def test_an_offset_beyond_the_data(karat, project):
    arguments = ["run", "task.py:shout", "--data", "good.jsonl", "--input", "question", "--offset", 4]
    told = "offset 4 is beyond the end of the dataset (4 examples)"
    said = karat(*arguments, "--json")
    assert (said.code, said.json["status"]) == (1, "no_data")
    assert told in said.err
    assert told in karat(*arguments, "--check").err
    assert "beyond" not in karat(*arguments[:-1], 3).err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "task.py:shout", "--data", "adir"], "adir is a folder"),
        (["run", "task.py:shout", "--data", "qa.txt"], "rename it, or set its format (csv, json, jsonl"),
        (["run", "experimnt"], "did you mean experiment.yaml?"),
        (["run", "experiment.yml"], "did you mean experiment.yaml?"),
        (["run", "taskk:shout"], "did you mean task.py:shout?"),
        (["ls", "--store", "mongo://x"], "known: memory, postgresql, sqlite"),
        (
            ["graph", "eval/classification/demo", "--out", "g.xyz"],
            "g.xyz: unknown file extension: use .mmd, .mermaid",
        ),
        (["graph", "eval/classification/demo", "--out", "none/g.svg"], "there is no folder none"),
        (["evaluate", "RUN", "-e", '{"nme": "exact_match"}'], "'nme': unknown key: did you mean 'name'?"),
        (["export", "RUN", "-o", "none/x.csv"], "none/x.csv cannot be written: there is no folder none"),
        (["report", "RUN", "-o", "none/x.md"], "none/x.md cannot be written: there is no folder none"),
        (["compare", "RUN", "RUN"], "both are RUN: a comparison needs two different runs"),
        (["compare", "RUN", "RUN", "latest"], "all of these are RUN: a comparison needs"),
    ],
)
def test_each_is_one_sentence_with_the_remedy(karat, project, run, arguments, expected):
    (project / "adir").mkdir()
    (project / "qa.txt").write_text((project / "qa.jsonl").read_text())
    said = karat(*(run if each == "RUN" else each for each in arguments))
    assert said.code == 2
    assert expected.replace("RUN", run) in said.err


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("acuracy:0.05", "no results of 'acuracy': did you mean 'accuracy'?"),
        ("accuracy:5%", "write accuracy:0.05, margins are shares of 1"),
        ("accuracy:x%", "write accuracy:0.05, margins are shares of 1"),
    ],
)
def test_a_gate_that_is_misspelt(karat, run, limit, expected):
    other = karat("run", "experiment.yaml", "--new", "--json").json["runs"][0]["id"]
    said = karat("compare", run, other, "--fail-if-worse", limit)
    assert said.code == 2
    assert expected in said.err


def test_a_name_that_nothing_has_shows_the_newest_of_each_kind(karat, project, run, says):
    newest = [karat("run", "experiment.yaml", "--new", "--json").json for _ in range(4)]
    said = karat("show", "zzzz").err
    runs = [each["runs"][0]["id"] for each in reversed(newest)]
    assert f"datasets qa; runs {', '.join(runs[:3])}, …; evaluations " in said
    assert runs[3] not in said
    says(karat("show", "qaa").err)


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
        which = "the same command without --new continues it" if new else "the same command continues it"
        assert which in said.err
        assert "--new" not in said.err.partition("to continue: ")[2]
    told = karat("run", "task.py:shout", *data, "--abort-on-error", "--new", "--json").json["error"]
    says(told["message"])
    assert karat(*shlex.split(told["go_on"])[1:]).json["runs"][0]["counts"]["pending"] == 0


def test_a_label_that_several_runs_have_is_noticed(karat, project):
    command = ["run", "experiment.yaml", "--label", "nightly", "--new"]
    first = karat(*command, "--json")
    assert "nightly" not in first.err
    second = karat(*command)
    made = karat("ls", "runs", "--json").json["runs"]
    older, newer = (run["id"] for run in made)
    assert f"{older} has the label 'nightly' too" in second.err
    assert f"karat tag {newer} nightly --move" in second.err
    assert karat("show", "nightly").code == 2
    assert karat("tag", newer, "nightly", "--move").code == 0
    assert karat("show", "nightly", "--json").json["id"] == newer
    assert "too" not in karat("run", "experiment.yaml", "--label", "nightly").err


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


def test_failures_of_evaluators_are_printed_by_kind(karat, project):
    """With the first example of each kind and the command that shows them, by run and by evaluate."""
    (project / "broken.py").write_text(BROKEN)
    parts = ["-e", "broken.py:Broken", "-e", "broken.py:Picky", "-e", "exact_match"]
    data = ["--data", "good.jsonl", "--input", "question", "--expected", "answer"]
    ran = karat("run", "task.py:shout", *data, *parts)
    judged = karat("evaluate", "latest", *parts, "--new")
    for said in (ran, judged):
        assert said.code == 1
        assert "broken: 3 of 4 failed: ValueError: no score for this output" in said.out
        assert "first: example q1)" in said.out
        assert "broken: 1 of 4 failed: KeyError: 'another kind' (broken.py:" in said.out
        assert "picky: 1 of 4 failed: ValueError: two is too much (broken.py:" in said.out
        assert "\x1b" not in said.out
        [command] = [line for line in said.out.splitlines() if "--failed" in line]
        assert karat(*command.partition("karat ")[2].split()).code == 0
        assert "exact_match accuracy is 1.000" in said.out
    only = karat("evaluate", "latest", "-e", "broken.py:Broken")
    assert "broken: 3 of 4 failed" in only.out


def test_an_evaluation_ends_with_its_scores(karat, project):
    run = karat("run", "experiment.yaml", "--json").json["runs"][0]["id"]
    said = karat("evaluate", run, "-e", "edit_distance")
    assert "edit_distance mean is 0.800" in said.out
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
