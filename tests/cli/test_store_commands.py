"""evaluate, aggregate, ls, show, export, rm: on what a run left in the store."""

import csv
import json
import re
import shlex
import subprocess
import sys

import pytest

from karat.errors import RequestError
from karat.keys import Wanted
from karat.store import open_store


@pytest.fixture
def made(karat, project):
    """The ids of a run, an evaluation and an aggregation of the project's experiment."""
    outcome = karat("run", "experiment.yaml", "--json").json
    return {
        "dataset": outcome["dataset"]["id"],
        "run": outcome["runs"][0]["id"],
        "evaluation": outcome["evaluation"]["id"],
        "aggregation": outcome["aggregation"]["id"],
    }


@pytest.mark.parametrize("command", ["ls", "show latest", "show AGGREGATION"])
def test_looking_into_the_store_imports_only_what_it_needs(made, command):
    command = command.replace("AGGREGATION", made["aggregation"])
    code = (
        f"import sys; before = set(sys.modules); from karat.cli import main; main({command.split()!r});"
        "heavy = {'numpy', 'pyarrow', 'asyncio', 'hashlib', 'shutil', 'html'};"
        "sys.exit(','.join(heavy & set(sys.modules) - before) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_computed_without_an_aggregator_is_listed_as_the_default(karat, made):
    karat("evaluate", made["run"], "-e", "exact_match")
    karat("aggregate", "latest")
    assert " default " in karat("ls", "aggregations").out


def test_evaluate_and_aggregate(karat, made):
    said = karat(
        "evaluate",
        made["run"],
        "-e",
        "exact_match",
        "-e",
        '{"name": "edit_distance", "key": "close"}',
        "--json",
    )
    assert said.code == 1, "a failed output leaves its results skipped"
    evaluation = said.json
    assert evaluation["counts"]["total"] == 12
    assert evaluation["counts"]["skipped"] == 2
    said = karat(
        "aggregate",
        "latest",
        "-a",
        "mean",
        "-a",
        '{"name": "accuracy", "of": "exact_match"}',
        "--confidence",
        0.9,
    )
    assert "close        mean" in said.out
    assert "90 % interval" in said.out
    assert "5 of 6" in said.out


def test_evaluate_names_unknown_arguments(karat, made, says):
    says(karat("evaluate", made["run"], "-e", "exact_mach").err)
    assert "no run 'run-zz'" in karat("evaluate", "run-zz", "-e", "exact_match").err
    says(karat("aggregate", made["evaluation"], "-a", "maen").err)


def test_amend_adds_a_run_to_an_evaluation(karat, made, project):
    other = karat("run", "experiment.yaml", "--new", "--json").json["runs"][0]["id"]
    said = karat("evaluate", other, "--amend", made["evaluation"], "--json")
    assert said.json["runs"] == [made["run"], other]
    assert said.json["amends"] == [made["evaluation"]]


def test_ls(karat, made):
    said = karat("ls")
    assert said.code == 0
    assert all(each in said.out for each in made.values())
    assert "qa@1" in said.out
    listed = karat("ls", "datasets", "--json").json
    assert listed["datasets"][0]["names"] == ["qa@1"]
    assert "runs" not in listed
    karat("run", "experiment.yaml", "--new")
    assert len(karat("ls", "runs", "--last", 1, "--json").json["runs"]) == 1


def test_show_walks_both_ways(karat, made):
    said = karat("show", made["run"], "--details")
    assert "6 items: 5 ok, 1 failed" in said.out
    assert "parents\n" in said.out
    assert made["dataset"] in said.out
    assert made["aggregation"] in said.out
    shown = karat("show", made["evaluation"], "--json").json
    assert shown["parents"] == [{"id": made["run"], "parents": [{"id": made["dataset"], "parents": []}]}]
    assert shown["children"][0]["id"] == made["aggregation"]
    assert "exact_match  accuracy" in karat("show", made["aggregation"]).out
    assert "6 examples" in karat("show", "qa").out


def ids(said):
    return [row["id"] for row in said.json["rows"]]


def test_show_prints_rows_with_scores_and_reasons(karat, made):
    rows = karat("show", made["run"], "--json").json["rows"]
    assert [row["id"] for row in rows] == ["q0", "q1", "q2", "q3", "q4", "q5"]
    assert [row["results"]["exact_match"]["score"] for row in rows] == [1.0, 1.0, 1.0, 1.0, None, 0.0]
    assert rows[5]["results"]["exact_match"]["comment"] in karat("show", made["run"]).out
    assert ids(karat("show", made["evaluation"], "--json")) == ids(karat("show", made["run"], "--json"))
    assert ids(karat("show", "qa", "--json"))[0] == "q0"


def test_show_filters_sorts_and_pages(karat, made, project):
    def shown(*options):
        return ids(karat("show", made["run"], *options, "--json"))

    assert shown("--where", "score<0.5") == ["q5"]
    assert shown("--where", "score<0.5 or status:failed") == ["q4", "q5"]
    assert shown("--grep", "THREE") == ["q2"]
    assert shown("--grep", "tWo", "--where", "score=1 and not id=q0") == ["q1"]
    assert shown("--sort", "score", "--limit", 2) == ["q5", "q0"]
    assert shown("--sort=-score", "--limit", 1) == ["q0"]
    assert shown("--sort", "score")[-1] == "q4", "without a score, last"
    assert shown("--limit", 4, "--page", 2) == ["q4", "q5"]
    assert karat("show", made["run"], "--limit", 4, "--json").json["matched"] == 6
    assert shown("--page", 9) == []


def test_an_evaluation_is_filtered_as_its_run_is(karat, made, project):
    other = karat("run", "experiment.yaml", "--new", "--json").json["runs"][0]["id"]
    both = karat("evaluate", made["run"], other, "-e", "exact_match", "--json").json["id"]
    for options in (["--where", "score<0.5"], ["--failed"], ["--sort", "score"], ["--grep", "wrong"]):
        one = ids(karat("show", made["run"], *options, "--json"))
        assert ids(karat("show", made["evaluation"], *options, "--json")) == one
        twice = ids(karat("show", both, *options, "--json"))
        assert sorted(twice) == sorted(one * 2), options


def test_show_filters_by_metadata_and_names_the_nearest_field(karat, project):
    rows = [{"id": f"t{n}", "input": "x", "topic": ["law", "art"][n % 2]} for n in range(4)]
    (project / "topics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    karat("run", "task.py:shout", "--data", "topics.jsonl", "--input", "input", "--label", "topical")
    assert ids(karat("show", "topical", "--where", "topic=law", "--json")) == ["t0", "t2"]
    said = karat("show", "topical", "--where", "topc=law")
    assert said.code == 2
    assert "'topic'" in said.err
    assert karat("show", "topical", "--where", "score<").code == 2
    assert "'score'" in karat("show", "topical", "--sort", "scor").err


def test_a_run_shows_the_newest_results_of_each_evaluator(karat, made):
    karat("evaluate", made["run"], "-e", '{"name": "edit_distance", "key": "close"}')
    [row] = karat("show", made["run"], "--where", "id=q5", "--json").json["rows"]
    assert set(row["results"]) == {"exact_match", "close"}
    again = ("evaluate", made["run"], "-e", '{"name": "exact_match", "params": {"case_sensitive": false}}')
    karat(*again)
    [row] = karat("show", made["run"], "--where", "id=q0", "--json").json["rows"]
    assert set(row["results"]) == {"exact_match", "close"}


def test_a_comparison_shows_both_runs_in_order_with_the_verdict(karat, made):
    other = karat("run", "experiment.yaml", "--new", "--json").json["runs"][0]["id"]
    judge = '{"name": "by_metric", "key": "duel", "params": {"metric": "edit_distance"}}'
    evaluation = karat("evaluate", made["run"], other, "-e", judge, "--json").json["id"]
    row = karat("show", evaluation, "--json").json["rows"][0]
    assert (row["run"], [each["run"] for each in row["others"]]) == (made["run"], [other])
    assert row["others"][0]["output"] == "ONE"
    assert row["results"]["duel"]["status"] == "ok"
    assert "shown first" in karat("show", evaluation).out
    assert row["results"]["duel"]["value"] == "tie"
    one = karat("show", evaluation, "--example", "q0").out
    assert "value         tie" in one
    assert one.index(f"shown first   {made['run']}: ONE") < one.index(f"shown second  {other}: ONE")
    for run, compared in ((made["run"], other), (other, made["run"])):
        assert karat("show", run, "--example", "q0").out.count(": ONE") == 2, "of a run, both outputs too"
        document = karat("show", run, "--example", "q0", "--json").json
        assert [each["run"] for each in document["outputs"]] == [run]
        assert [each["run"] for each in document["compared"]] == [compared]


def test_every_try_is_shown(karat, made):
    karat("run", "experiment.yaml", "--retry-failed")
    document = karat("show", made["run"], "--example", "q4", "--json").json
    assert [output.get("try_number", 1) for output in document["outputs"]] == [1, 2]
    assert "try 2" in karat("show", made["run"], "--example", "q4").out


def test_a_trajectory_is_shown_as_numbered_steps(karat, project):
    (project / "agent.py").write_text(
        "def agent(text):\n"
        "    call = {'id': 'c1', 'type': 'function', 'function': {'name': 'search', 'arguments': '{\"q\": \"x\"}'}}\n"
        "    return [{'role': 'user', 'content': text}, {'role': 'assistant', 'tool_calls': [call]},\n"
        "            {'role': 'tool', 'tool_call_id': 'c1', 'content': 'found \\x1b[2J'},\n"
        "            {'role': 'assistant', 'content': 'done'}]\n"
    )
    karat("run", "agent.py:agent", "--data", "good.jsonl", "--input", "question", "--label", "agent")
    assert "4 steps: search" in karat("show", "agent").out
    lines = karat("show", "agent", "--example", "q0").out.splitlines()
    steps = [line.split() for line in lines if line.lstrip()[:1].isdigit()]
    assert [step[:2] for step in steps] == [
        ["1", "user"],
        ["2", "assistant"],
        ["3", "tool"],
        ["4", "assistant"],
    ]
    assert "search(q=x)" in " ".join(steps[1])
    assert "\x1b" not in "\n".join(lines)


def test_an_expected_trajectory_is_shown_in_a_line_like_the_output(karat, project):
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    steps = [{"role": "user", "content": "find it"}, {"role": "assistant", "tool_calls": [call]}]
    (project / "wanted.jsonl").write_text(
        json.dumps({"id": "q0", "input": "find it", "expected": steps}) + "\n"
    )
    (project / "agent.py").write_text("def agent(text, example):\n    return example.expected\n")
    karat("run", "agent.py:agent", "--data", "wanted.jsonl", "--label", "agent")
    assert karat("show", "agent").out.count("2 steps: search") == 2


def test_labels_address_things_everywhere(karat, made):
    other = karat("run", "experiment.yaml", "--new", "--json").json["runs"][0]["id"]
    karat("evaluate", made["run"], other, "-e", "exact_match")
    assert karat("tag", made["run"], "baseline", "--json").json == {"id": made["run"], "labels": ["baseline"]}
    assert karat("tag", "latest", "candidate", "--json").json["id"] == other
    compared = karat("compare", "baseline", "candidate", "--json").json
    assert [run["id"] for run in compared["runs"]] == [made["run"], other]
    assert karat("show", "baseline", "--json").json["id"] == made["run"]
    assert [run["id"] for run in karat("ls", "--label", "candidate", "--json").json["runs"]] == [other]
    assert karat("evaluate", "baseline", "-e", "json_valid", "--json").json["runs"] == [made["run"]]


def test_a_label_of_several_runs_is_refused_until_it_is_moved(karat, made):
    karat("tag", made["run"], "best")
    other = karat("run", "experiment.yaml", "--new", "--label", "best", "--json").json["runs"][0]["id"]
    said = karat("show", "best")
    assert said.code == 2
    assert made["run"] in said.err
    assert other in said.err
    karat("tag", other, "best", "--move")
    assert karat("show", "best", "--json").json["id"] == other
    refused = karat("tag", made["run"], "best")
    assert refused.code == 2
    assert other in refused.err
    assert karat("show", "best", "--json").json["id"] == other, "nothing was changed"
    assert karat("tag", other, "best", "--json").json["labels"] == ["best"], "it has the label already"
    assert karat("tag", "best", "--remove", "best", "--json").json["labels"] == []
    assert karat("tag", other).code == 2
    assert karat("tag", other, "latest").code == 2
    assert karat("tag", other, "qa").code == 2, "the name of the dataset"
    assert karat("tag", other, "a\x1b[31mb").code == 2


@pytest.mark.parametrize("label", [".", "..", "latest", " "])
def test_a_label_that_cannot_be_an_address_is_refused_everywhere(karat, made, project, label):
    before = karat("ls", "runs", "--json").json
    assert karat("tag", made["run"], label).code == 2
    assert karat("run", "experiment.yaml", "--label", label, "--new").code == 2
    assert karat("evaluate", made["run"], "-e", "json_valid", "--label", label).code == 2
    file = project / "experiment.yaml"
    file.write_text(f"{file.read_text()}\nlabels: [{json.dumps(label)}]\n")
    said = karat("run", "experiment.yaml", "--check")
    assert said.code == 2
    assert "labels" in said.err
    assert karat("ls", "runs", "--json").json == before
    with open_store(project / "karat.db") as store, pytest.raises(RequestError):
        store.tag(made["dataset"], [label])


def test_ls_lists_what_tells_runs_apart(karat, made, project):
    for end in ("!", "?"):
        karat("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--param", f"end={end}")
    listed = karat("ls", "runs").out
    assert "end=!" in listed
    assert "end=?" in listed
    assert "0.800 [" in listed, "the headline score with its interval"
    document = karat("ls", "runs", "--json").json["runs"]
    assert document[0]["headline"]["value"] == 0.8
    assert "headline" not in document[1]
    assert len(karat("ls", "--task", "shout", "--limit", 2, "--json").json["runs"]) == 2
    assert "1 older" in karat("ls", "runs", "--limit", 2).out
    said = karat("ls", "--task", "shoot")
    assert said.code == 2
    assert "'shout'" in said.err


@pytest.mark.parametrize("kind", ["run", "evaluation", "aggregation"])
def test_show_one_example_with_its_outputs_and_results(karat, made, kind):
    said = karat("show", made[kind], "--example", "q5")
    assert "example q5" in said.out
    assert f"output of {made['run']}, attempt 1\n  output  no" in said.out
    assert "result of exact_match" in said.out
    document = karat("show", made[kind], "--example", "q4", "--json").json
    assert document["outputs"][0]["outcome"]["error"]["type"] == "ValueError"
    assert document["results"][0]["outcome"]["status"] == "skipped"


def test_show_an_example_of_a_dataset(karat, made, says):
    assert "expected  ONE" in karat("show", "qa", "--example", "q0").out
    said = karat("show", "qa", "--example", "q11")
    assert said.code == 2
    says(said.err)


def test_show_failed_by_kind(karat, made):
    document = karat("show", made["run"], "--failed", "--json").json
    assert [(kind["count"], kind["kind"]) for kind in document["kinds"]] == [(1, "ValueError")]
    assert [row["id"] for row in document["rows"]] == ["q4"]
    assert "cannot shout" in karat("show", made["run"], "--failed").out
    kinds = karat("show", made["evaluation"], "--failed", "--json").json["kinds"]
    assert [(kind["status"], kind["count"]) for kind in kinds] == [("skipped", 1)]
    assert karat("show", "qa", "--failed").code == 2


def test_export_of_a_run_can_be_run_again(karat, made, project):
    said = karat("export", made["run"], "-o", "outputs.jsonl")
    assert said.code == 0
    assert "6 records" in said.out
    again = karat("run", "--recorded", "outputs.jsonl", "--data", "qa.jsonl", "--json").json
    assert again["runs"][0]["counts"]["ok"] == 5
    assert again["runs"][0]["counts"]["failed"] == 1


def test_export_formats_say_the_same(karat, made, project):
    from pyarrow import parquet

    for kind in ("run", "evaluation", "aggregation", "dataset"):
        for ending in ("json", "jsonl", "csv", "parquet"):
            said = karat("export", made[kind], "-o", f"{kind}.{ending}", "--json")
            assert said.code == 0
            assert said.json["format"] == ending
        document = json.loads((project / f"{kind}.json").read_text())
        lines = [json.loads(line) for line in (project / f"{kind}.jsonl").read_text().splitlines()]
        with (project / f"{kind}.csv").open(newline="") as file:
            table = list(csv.DictReader(file))
        columns = parquet.read_table(project / f"{kind}.parquet").to_pylist()
        assert document["id"] == made[kind]
        assert document["records"] == lines
        assert len(lines) == len(table) == len(columns) == (1 if kind == "aggregation" else 6)
        assert set(lines[0]) == set(table[0]) == set(columns[0])
        if kind == "run":
            assert all(line["service_seconds"] > 0 and line["queue_seconds"] == 0 for line in lines)
    assert not [each for each in project.iterdir() if each.name.startswith(".")], (
        "no half-written file is left"
    )


def test_export_of_values_that_are_not_text(karat, project):
    (project / "obj.py").write_text(
        "def obj(text):\n    return {'text': text, 'list': [1, None], 'nul': '\\0'}\n"
    )
    run = karat("run", "obj.py:obj", "--data", "good.jsonl", "--input", "question", "--json").json["runs"][0][
        "id"
    ]
    karat("export", run, "-o", "out.csv")
    with (project / "out.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert json.loads(row["output"]) == {"text": "one", "list": [1, None], "nul": "\0"}
    assert row["input"] == "one"


def test_export_says_which_one_is_the_latest_and_where_the_rows_are(karat, made, says):
    said = karat("export", "latest", "-o", "outputs.csv").err
    assert made["run"] in said
    assert f"karat export {made['evaluation']}" in said
    says(re.sub(r"(run|eval)-\w+", r"\1-ID", said))
    karat("rm", made["evaluation"], "--cascade", "--yes")
    said = karat("export", "latest").err
    assert made["run"] in said
    says(re.sub(r"(run|eval)-\w+", r"\1-ID", said))


def test_latest_is_the_run_wherever_any_kind_may_be_named(karat, made):
    """A comparison or an aggregation may be newer: `latest` is the same thing in every command."""
    other = karat("run", "experiment.yaml", "--new", "--json").json["runs"][0]["id"]
    karat("compare", made["run"], other)
    karat("evaluate", made["run"], "-e", "json_valid", "--json")
    assert karat("show", "latest", "--json").json["id"] == other
    assert [run["id"] for run in karat("report", "latest", "--json").json["runs"]] == [other]
    assert {each["run"] for each in map(json.loads, karat("export", "latest").out.splitlines())} == {other}
    assert karat("tag", "latest", "newest", "--json").json["id"] == other


def test_latest_in_an_empty_store_says_what_there_is_not(karat, made, refuses):
    karat("rm", made["run"], "--cascade", "--yes")
    for command in ("show", "report", "export"):
        said = karat(command, "latest")
        assert said.code == 2
        assert "no run in" in said.err
    assert "no evaluation in" in karat("aggregate", "latest").err


def test_the_failures_of_a_judgment_are_shown_of_its_run(karat, made, project):
    (project / "stops.py").write_text("def stops(*, outputs):\n    raise ValueError('no')\n")
    karat("run", "task.py:shout", "--data", "good.jsonl", "--input", "question", "-e", "stops.py:stops")
    [kind] = karat("show", "latest", "--failed", "--json").json["kinds"]
    assert "ValueError" in kind["kind"]


def test_runs_of_one_task_are_listed_by_the_metric_that_they_share(karat, project):
    data = ("--data", "good.jsonl", "--input", "question", "--expected", "answer")
    run = ("run", "task.py:shout", *data, "-e", "exact_match", "--json")
    first = karat(*run).json["runs"][0]["id"]
    second = karat(*run, "--new").json["runs"][0]["id"]
    strict = '{"name": "exact_match", "params": {"case_sensitive": false}}'
    for part in ("json_valid", strict):
        evaluation = karat("evaluate", first, "-e", part, "--json").json["id"]
        karat("aggregate", evaluation)
    listed = {run["id"]: run["headline"] for run in karat("ls", "runs", "--json").json["runs"]}
    assert [listed[run]["evaluator"] for run in (first, second)] == ["exact_match", "exact_match"]
    assert karat("ls", "runs").out.count(" exact_match accuracy") == 1, "it heads the column"


def test_labels_are_not_repeated_as_what_differs(karat, project, monkeypatch):
    (project / "mine.py").write_text("def mine(*, outputs):\n    return len(outputs) / 9\n")
    run = ("run", "task.py:shout", "--data", "good.jsonl", "--input", "question")
    karat(*run, "--label", "before")
    karat(*run, "--new", "--label", "after")
    listed = karat("ls", "runs").out
    assert listed.count("before") == listed.count("after") == 1
    assert "replicate=2" in listed
    # On a narrow terminal they stay: they name the runs.
    for label, part in (("before", "json_valid"), ("after", "mine.py:mine")):
        karat("aggregate", karat("evaluate", label, "-e", part, "--json").json["id"])
    monkeypatch.setattr("karat.cli.terminal.Terminal.width", 40)
    narrow = karat("ls", "runs").out
    assert "metric" in narrow.splitlines()[-1], "what there is no room for"
    assert narrow.count("before") == narrow.count("after") == 1


@pytest.mark.parametrize(
    "command",
    [
        ["init", "elsewhere"],
        ["export", "RUN", "-o", "rows.csv"],
        ["report", "RUN", "-o", "report.md"],
        ["tag", "RUN", "quiet"],
        ["graph", "eval/classification/demo", "--out", "graph.svg"],
        ["rm", "RUN", "--cascade", "--yes"],
    ],
    ids=lambda words: words[0],
)
def test_quiet_commands_confirm_nothing(karat, made, command):
    said = karat(*(made["run"] if word == "RUN" else word for word in command), "--quiet")
    assert (said.code, said.out, said.err) == (0, "", "")


def test_export_into_a_folder_that_is_not_there(karat, made, says):
    said = karat("export", made["run"], "-o", "nowhere/out.csv")
    assert said.code == 2
    says(said.err)


def test_rm_is_refused_for_an_object_with_dependents(karat, made):
    said = karat("rm", made["run"])
    assert said.code == 2
    assert made["evaluation"] in said.err
    assert "--cascade" in said.err
    assert karat("rm", made["run"], made["evaluation"], made["aggregation"], "--yes").code == 0, (
        "nothing is left behind"
    )
    assert karat("ls", "--json").json["runs"] == []
    said = karat("rm", made["dataset"], "--cascade", "--json", "--yes")
    assert said.json["removed"] == [made["dataset"]]
    assert "is empty" in karat("ls").out


def test_rm_cascade(karat, made):
    said = karat("rm", made["run"], "--cascade", "--dry-run", "--json")
    assert len(said.json["would_remove"]) == 3
    assert karat("rm", made["run"], "--cascade").code == 2, "nobody can be asked here"
    assert len(karat("ls", "runs", "--json").json["runs"]) == 1
    said = karat("rm", made["run"], "--cascade", "--yes")
    assert said.out.count("removed") == 3
    assert karat("show", made["evaluation"]).code == 2


def test_rm_is_refused_while_a_process_works_on_it(karat, made, says):
    with open_store() as store:
        header = store.runs.get(made["run"]).header
        wanted = Wanted(header.configuration, header.code, new=True)
        run, _, held = store.runs.open(header, wanted, [made["dataset"]])
        for target in (run.id, made["dataset"]):
            for more in (["--dry-run"], ["--yes"]):
                said = karat("rm", target, "--cascade", *more)
                assert said.code == 3
                assert run.id in said.err
                says(said.err)
        assert len(karat("ls", "runs", "--json").json["runs"]) == 2
        held.release()
    assert karat("rm", run.id, "--yes").code == 0


def test_an_export_to_a_terminal_has_no_control_characters(karat, project):
    import os
    import pty

    (project / "rude.py").write_text("def rude(text):\n    return '\\x1b[31m' + text + '\\x9b2J'\n")
    data = ["--data", "qa.jsonl", "--input", "question"]
    run = karat("run", "rude.py:rude", *data, "--json").json["runs"][0]["id"]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "karat", "export", run, "--format", "csv"]
    done = subprocess.Popen(command, stdout=theirs, cwd=project)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux ends a terminal so
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert done.wait() == 0
    text = shown.decode()
    assert "one" in text
    assert "\x1b" not in text
    assert "\x9b" not in text


@pytest.mark.parametrize("format", ["json", "jsonl", "csv", "parquet"])
def test_stored_records_can_be_exported(karat, project, format):
    """Also what is nested more deeply than values that a task may return."""
    deep = "[" * 700 + "]" * 700
    (project / "deep.jsonl").write_text(f'{{"id": "a", "input": {deep}, "expected": "x"}}\n')
    (project / "plain.py").write_text("def plain(text):\n    return 'x'\n")
    run = karat("run", "plain.py:plain", "--data", "deep.jsonl", "-e", "exact_match", "--json").json
    for id in (run["dataset"]["id"], run["runs"][0]["id"], run["evaluation"]["id"]):
        said = karat("export", id, "-o", f"out.{format}")
        assert said.code == 0, said.err
        if format != "parquet":
            written = (project / f"out.{format}").read_text()
            assert deep in written


FULL = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
sys.argv = ["karat", *sys.argv[1:]]
runpy.run_module("karat", run_name="__main__")
"""
"""karat on a disk where a file has at most ten bytes."""


@pytest.mark.parametrize("output", [[], ["-o", "-"], ["-o", "/dev/stdout"], ["-o", "there.csv"]])
def test_an_export_to_a_full_disk_is_one_sentence(project, made, output, says):
    command = [sys.executable, "-c", FULL, "export", made["run"], "--format", "csv", *output]
    with (project / "rows.csv").open("wb") as file:
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.PIPE, text=True, check=False, cwd=project
        )
    assert done.returncode == 3, "with space, the same command goes on"
    assert not (project / "there.csv").exists()
    says(done.stderr.replace(made["run"], "RUN"))


@pytest.mark.parametrize("command", ["export", "report"])
def test_nothing_is_written_over_the_store(karat, project, made, command, says):
    for name in ("karat.db", "karat.db-wal"):
        said = karat(command, made["run"], "--format", "csv", "-o", name)
        assert said.code == 2
        says(said.err)
    assert karat("show", made["run"]).code == 0


def test_the_commands_that_are_printed_name_the_store(karat, project):
    """Each printed command works unchanged, also for a store other than the default."""
    data = ["--data", "qa.jsonl", "--input", "question", "--expected", "answer"]
    said = karat("run", "task.py:shout", *data, "-e", "exact_match", "--store", "the results.db")
    (project / "own.yaml").write_text((project / "experiment.yaml").read_text() + "store: own.db\n")
    own = karat("run", "own.yaml")
    for each in (said, own):
        printed = [line.partition("karat ")[2] for line in each.out.splitlines() if "karat show" in line]
        assert len(printed) == 2, "the failures, and the rows"
        for command in printed:
            words = shlex.split(command)
            assert "--store" in words
            assert karat(*words).code == 0, command
    assert not (project / "karat.db").exists()
