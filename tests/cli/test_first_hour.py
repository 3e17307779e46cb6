"""What goes wrong, or is looked for, in the first hour: one command from data to report, and early checks."""

from __future__ import annotations

import csv
import json
import sys

import pytest


@pytest.fixture
def answers(project):
    rows = [{"id": f"q{n}", "output": word.upper()} for n, word in enumerate(["one", "two", "three"])]
    (project / "candidate.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return project


def test_one_command_runs_evaluates_and_reports(karat, project):
    command = ["run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--expected", "answer"]
    said = karat(*command, "-e", "exact_match", "-a", "accuracy", "-a", "mean", "--json")
    found = {(e["evaluator"], e["aggregator"]): e["of"] for e in said.json["aggregation"]["estimates"]}
    assert found == {("exact_match", "accuracy"): 6, ("exact_match", "mean"): 6}
    again = karat(*command, "-e", "exact_match", "--json").json
    assert again["runs"][0]["id"] == said.json["runs"][0]["id"]
    assert [e["aggregator"] for e in again["aggregation"]["estimates"]] == ["accuracy"], "the default"


def test_recorded_outputs_are_evaluated_in_the_same_command(karat, answers):
    data = ["--data", "qa.jsonl", "--input", "question", "--expected", "answer"]
    said = karat("run", "--recorded", "candidate.jsonl", *data, "-e", "exact_match", "--json")
    [estimate] = said.json["aggregation"]["estimates"]
    assert (estimate["n"], estimate["of"]) == (3, 6)


def test_recorded_runs_are_called_by_their_file(karat, project):
    data = ["--data", "qa.jsonl", "--input", "question", "--expected", "answer", "--json"]
    for name, word in (("before", "ONE"), ("after", "TWO")):
        rows = [{"id": f"q{n}", "messages": [{"role": "assistant", "content": word}]} for n in range(6)]
        (project / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        karat("run", "--recorded", f"{name}.jsonl", "--output", "messages", *data, "-e", "json_valid")
    runs = karat("ls", "--json").json["runs"]
    assert {run["task"] for run in runs} == {"before", "after"}
    [shown] = karat("show", runs[0]["id"], "--limit", "1", "--json").json["rows"]
    assert shown["output"][0]["role"] == "assistant"


def test_an_aggregator_alone_is_refused(karat, project):
    said = karat("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "-a", "mean")
    assert said.code == 2
    assert "-e" in said.err


def test_an_input_that_does_not_fit_is_found_before_the_run(karat, project):
    (project / "typed.py").write_text("def typed(question: str) -> str:\n    return question\n")
    said = karat("run", "typed.py:typed", "--data", "qa.jsonl")
    assert said.code == 2
    assert "--input" in said.err
    assert "question" in said.err
    assert not (project / "karat.db").exists()


def test_a_whole_row_does_not_fit_a_parameter_named_like_a_field(karat, project):
    (project / "untyped.py").write_text("def untyped(question):\n    return question.upper()\n")
    refused = karat("run", "untyped.py:untyped", "--data", "qa.jsonl")
    assert refused.code == 2
    assert "--input" in refused.err
    assert not (project / "karat.db").exists()
    (project / "row.py").write_text("def row(example_row):\n    return example_row['question']\n")
    assert karat("run", "row.py:row", "--data", "qa.jsonl").code == 0


def test_a_prompt_in_a_file_is_checked_like_that_of_an_experiment(karat, project, says):
    (project / "asks.py").write_text(
        "from karat.tasks import PromptTask\nask = PromptTask('Answer {typo}', model='none@http://127.0.0.1:9/v1')\n"
    )
    command = ["run", "asks.py:ask", "--data", "qa.jsonl"]
    for said in (karat(*command), karat(*command, "--check")):
        assert said.code == 2
        says(said.err)
    assert not (project / "karat.db").exists()


def test_a_missing_expected_output_is_found_before_the_run(karat, project):
    command = ["run", "task.py:shout", "--data", "good.jsonl", "--input", "question"]
    refused = karat(*command, "-e", "exact_match")
    assert refused.code == 2
    assert "--expected" in refused.err
    assert "answer" in refused.err, "the fields it may be"
    assert not (project / "karat.db").exists()
    assert karat(*command, "-e", '{"name": "contains", "params": {"substring": "A"}}').code == 0, "needs none"


def test_help_is_a_command(karat):
    assert karat("help").out == karat("--help").out
    assert karat("help", "run").out == karat("run", "--help").out
    assert karat("help", "models", "pull").out == karat("models", "pull", "--help").out
    assert karat("help", "rnu").code == 2


EXPERIMENT = """
dataset: {path: qa.jsonl, input: question, expected: answer}
task: task.py:shout
evaluators: [exact_match]
aggregators:
  - {name: accuracy, params: {by: topc}}
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (EXPERIMENT, "topc"),
        (EXPERIMENT.replace("by: topc", "cluster: conversation"), "conversation"),
        (
            EXPERIMENT.replace("task: task.py:shout", "task: {prompt: '{input}', temperature: hot}"),
            "temperature",
        ),
    ],
)
def test_check_finds_what_would_fail_later(karat, project, text, problem):
    (project / "experiment.yaml").write_text(text)
    said = karat("run", "experiment.yaml", "--check")
    assert said.code == 2
    assert problem in said.err
    assert "line " in said.err


def test_classes_need_labels(karat, project):
    text = EXPERIMENT.replace("exact_match", "json_valid").replace(
        "name: accuracy, params: {by: topc}", "name: f1_score"
    )
    (project / "experiment.yaml").write_text(text)
    said = karat("run", "experiment.yaml", "--check")
    assert said.code == 2
    assert "labels" in said.err
    (project / "experiment.yaml").write_text(text.replace("json_valid", "exact_match"))
    assert karat("run", "experiment.yaml", "--check").code == 0


def test_failures_of_an_aggregation_lead_to_the_evaluation_or_run(karat, project):
    made = karat("run", "experiment.yaml", "--json").json
    said = karat("show", made["aggregation"]["id"], "--failed", "--json").json
    assert said["id"] == made["runs"][0]["id"]
    assert said["kinds"]
    (project / "judge.py").write_text("def judge(outputs):\n    return 1 / (len(outputs) - 2)\n")
    data = ["--data", "good.jsonl", "--input", "question", "--expected", "answer"]
    (project / "two.py").write_text("def two(text):\n    return text[:2]\n")
    made = karat("run", "two.py:two", *data, "-e", "judge.py:judge", "-a", "mean", "--json").json
    said = karat("show", made["aggregation"]["id"], "--failed", "--json").json
    assert said["id"] == made["evaluation"]["id"]
    assert ["ZeroDivisionError" in json.dumps(kind) for kind in said["kinds"]] == [True]


def test_a_failure_inside_a_library_names_the_users_own_line_first(karat, project):
    (project / "deep.py").write_text("import json\n\n\ndef deep(text):\n    return json.loads('{' + text)\n")
    data = ["--data", "qa.jsonl", "--input", "question", "--expected", "answer"]
    made = karat("run", "deep.py:deep", *data, "--json").json
    kinds = karat("show", made["runs"][0]["id"], "--failed", "--json").json["kinds"]
    assert kinds[0]["examples"][0]["where"].startswith("deep.py:5 deep")


def test_rm_asks_on_a_terminal(karat, project, monkeypatch):
    run = karat("run", "experiment.yaml", "--json").json["runs"][0]["id"]

    class Terminal:
        def __init__(self, answer):
            self.answer = answer

        def isatty(self):
            return True

        def readline(self):
            return self.answer

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert karat("rm", run, "--cascade").code == 1
    assert len(karat("ls", "runs", "--json").json["runs"]) == 1
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert karat("rm", run, "--cascade").code == 0
    assert karat("ls", "runs", "--json").json["runs"] == []


def test_rm_takes_several_and_removes_nothing_without_a_yes(karat, project):
    command = ["run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--json"]
    made = [karat(*command, *more).json["runs"][0]["id"] for more in ([], ["--new"], ["--new"])]
    assert karat("rm", *made[:2]).code == 2, "it is not a terminal: --yes is needed"
    listed = karat("rm", *made[:2], "--dry-run")
    assert listed.code == 0
    assert all(run in listed.out for run in made[:2])
    assert len(karat("ls", "runs", "--json").json["runs"]) == 3
    assert karat("rm", *made[:2], "--yes").code == 0
    assert [run["id"] for run in karat("ls", "runs", "--json").json["runs"]] == [made[2]]


def test_the_default_aggregators_fit_the_results_and_come_once(karat, project):
    command = ["run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--expected", "answer"]
    said = karat(*command, "--param", "end=!", "-e", "exact_match", "-e", "edit_distance", "--json").json
    found = [(each["evaluator"], each["aggregator"]) for each in said["aggregation"]["estimates"]]
    assert sorted(found) == [("edit_distance", "mean"), ("exact_match", "accuracy")]


def test_a_ranking_says_that_the_parameters_of_a_metric_differ(karat, project):
    command = ["run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--expected", "answer"]
    first = karat(*command, "--json").json["runs"][0]["id"]
    second = karat(*command, "--param", "end=!", "--json").json["runs"][0]["id"]
    karat("evaluate", first, "-e", "exact_match")
    assert karat(
        "evaluate", second, "-e", '{"name": "exact_match", "params": {"case_sensitive": false}}'
    ).code in (0, 1)
    said = karat("rank", first, second, "--metric", "exact_match")
    assert said.code == 2
    assert "exact_match" in said.err
    assert "case_sensitive" in said.err


def test_formulas_are_text_in_an_exported_table(karat, project):
    texts = ["=1+1", "+A1", "-2+3", "@SUM(A1)", "\tx", "\n=1", "\uff1d1+1", "\uff20SUM(A1)"]
    rows = [{"id": f"f{n}", "question": text} for n, text in enumerate(texts)]
    (project / "formulas.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (project / "same.py").write_text("def same(text):\n    return text\n")
    run = karat("run", "same.py:same", "--data", "formulas.jsonl", "--input", "question", "--json").json[
        "runs"
    ][0]
    out = project / "rows.csv"
    assert karat("export", run["id"], "-o", str(out)).code == 0
    with out.open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert any("1+1" in cell for cell in cells)
    assert not [
        cell
        for cell in cells
        if cell.startswith(("=", "+", "@", "\t", "\r", "\n", "\uff1d", "\uff20", "-2+3"))
    ]


def test_check_of_a_command_line_finds_what_fails_later(karat, project, says):
    data = ["--data", "qa.jsonl", "--input", "question", "--expected", "answer", "--check"]
    command = ["run", "task.py:shout", *data]
    for parts in [
        ["-e", "edit_distance", "-a", "classification"],
        ["-e", "exact_match", "-a", '{"name": "mean", "params": {"by": "topc"}}'],
        ["-e", "exact_match", "-a", "win_rate"],
        ["-e", '{"name": "by_metric", "params": {"metric": "exact_match"}}'],
        ["-e", "exact_match", "-a", '{"name": "mean", "of": ["exat"]}'],
        ["-e", "contains", "-e", '{"name": "contains", "params": {"mode": "any"}}'],
        ["-e", "exact_match", "-a", "mean", "-a", "mean"],
        ["-e", "taks.py:none"],
        ["--attempts", "1000000000"],
        ["-e", '{"name": "llm_judge", "params": {"model": "x", "criteria": "y"}}'],
        ["--model", "smollm2-135m"],
        ["--model", "local/smollm"],
        ["--model", "m@http://127.0.0.1:9/v1", "--model", "m@http://127.0.0.1:9/v1"],
        ["--store", "mysql://x"],
        ["--store", "nowhere/karat.db"],
    ]:
        said = karat(*command, *parts)
        assert said.code == 2, parts
        says(said.err)
    assert karat(*command).code == 0
    assert not (project / "karat.db").exists()


def test_check_names_the_key_that_is_not_set(karat, project, monkeypatch, says):
    (project / "asks.yaml").write_text(
        "dataset: [{input: a}]\ntask: {prompt: '{input}', model: openai/gpt-x}\n"
        "evaluators: [{name: llm_judge, params: {criterion: good, judge: {model: anthropic/x}}}]\n"
    )
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    said = karat("run", "asks.yaml", "--check")
    assert said.code == 2
    says(said.err)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234567890")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-1234567890")
    assert karat("run", "asks.yaml", "--check").code == 0


def test_check_reports_an_empty_selection(karat, project, says):
    (project / "empty.yaml").write_text("dataset: []\ntask: task.py:shout\n")
    for command in (["empty.yaml"], ["experiment.yaml", "--offset", "6"]):
        said = karat("run", *command, "--check", "--json")
        assert said.code == 1, "as the run would end"
        assert said.json["ok"] is False
        says(said.err)


def test_recorded_outputs_of_other_examples_are_refused(karat, project, says):
    (project / "rec.jsonl").write_text('{"id": "q0", "output": "ONE"}\n')
    (project / "others.jsonl").write_text('{"id": "z", "output": "ONE"}\n')
    data = ["--data", "qa.jsonl", "--input", "question", "--expected", "answer", "-e", "exact_match"]
    said = karat("run", "--recorded", "rec.jsonl", *data, "--check")
    assert said.code == 0
    says(said.err)
    said = karat("run", "--recorded", "others.jsonl", *data)
    assert said.code == 2
    says(said.err)


def test_recorded_outputs_whose_fields_have_other_names(karat, project, says):
    (project / "rec.csv").write_text("qid,prediction\nq0,ONE\n")
    data = ["--data", "qa.jsonl", "--input", "question", "--expected", "answer", "-e", "exact_match"]
    said = karat("run", "--recorded", "rec.csv", *data)
    assert said.code == 2
    says(said.err)
    names = ["--output-id", "qid", "--output", "prediction"]
    assert karat("run", "--recorded", "rec.csv", *names, *data, "--check").code == 0
    (project / "e.yaml").write_text(
        "dataset: {path: qa.jsonl, input: question, expected: answer}\n"
        "task: {recorded: rec.csv, id: qid, output: prediction}\n"
        "evaluators: [exact_match]\n"
    )
    assert karat("run", "e.yaml", "--check").code == 0
    for wrong in (["e.yaml"], ["eval/question_answering/demo"], ["task.py:task", "--data", "qa.jsonl"]):
        said = karat("run", *wrong, "--output-id", "qid")
        assert said.code == 2
        says(said.err)


@pytest.mark.parametrize("option", ["-e", "-a", "--output", "--input"])
def test_a_graph_refuses_the_options_of_functions(karat, option, says):
    said = karat("run", "eval/question_answering/demo", option, "exact_match", "--check")
    assert said.code == 2
    says(said.err)


def test_check_of_a_graph_names_the_key_that_is_not_set(karat, monkeypatch, says):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    task = "eval/question_answering/demo"
    for model, missing in [("anthropic/x", "ANTHROPIC_API_KEY"), ("openai/gpt-4o", "OPENAI_API_KEY")]:
        said = karat("run", task, "--model", model, "--check")
        assert said.code == 2
        assert missing in said.err
        says(said.err)
    for model in ("ollama/x", "vllm/x", "llama.cpp/x", "lmstudio/x"):
        assert karat("run", task, "--model", model, "--check").code == 0


def test_pass_at_k_shows_its_k_and_needs_as_many_attempts(karat, project):
    command = ("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--expected", "answer")
    two = '{"name": "pass_at_k", "params": {"k": 2}}'
    said = karat(*command, "-e", "exact_match", "-a", two, "--attempts", "3")
    assert "pass_at_k k=2" in said.out
    few = karat(*command, "-e", "exact_match", "-a", two)
    assert few.code == 2
    assert "attempts" in few.err
    (project / "e.yaml").write_text(
        "dataset: {path: qa.jsonl, input: question, expected: answer}\ntask: task.py:shout\n"
        "evaluators: [exact_match]\naggregators: [{name: pass_at_k, params: {k: [1, 4]}}]\n"
    )
    few = karat("run", "e.yaml", "--check")
    assert few.code == 2
    assert "line 4" in few.err
    assert karat("run", "e.yaml", "--check", "--attempts", "4").code == 0


def test_another_selection_says_that_it_is_another_run(karat, project):
    command = ("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--expected", "answer")
    first = karat(*command, "--limit", "2", "--json").json["runs"][0]["id"]
    whole = karat(*command)
    assert first in whole.err
    assert first not in karat(*command).err, "said once, when it is made"
    assert "other" not in karat(*command, "--new").err


def test_runs_that_fail_in_part_say_why(karat, project):
    said = karat("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "-e", "json_valid")
    assert said.code == 1
    [line] = [line for line in said.out.splitlines() if "failed:" in line]
    assert line.startswith("1 of 6 failed: ")
    assert "q4" in line


def test_a_store_in_memory_offers_no_further_command(karat, project):
    said = karat("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--store", "memory://")
    assert "karat show" not in said.out


def test_a_run_without_scores_says_how_to_get_them(karat, project):
    said = karat("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question")
    assert "karat evaluate run-" in said.out


def test_aggregating_a_run_leads_to_its_evaluation(karat, project):
    command = ("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--expected", "answer")
    run = karat(*command, "--json").json["runs"][0]["id"]
    alone = karat("aggregate", run)
    assert alone.code == 2
    assert f"karat evaluate {run}" in alone.err
    evaluation = karat("evaluate", run, "-e", "exact_match", "--json").json["id"]
    said = karat("aggregate", run)
    assert said.code == 2
    assert f"karat aggregate {evaluation}" in said.err
    assert karat("aggregate", "qa").code == 2


def test_latest_is_named(karat, project):
    command = ("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--expected", "answer")
    run = karat(*command, "--json").json["runs"][0]["id"]
    said = karat("evaluate", "latest", "-e", "exact_match", "--json")
    assert f"latest is {run}" in said.err
    assert f"latest is {said.json['id']}" in karat("aggregate", "latest").err


def test_recorded_outputs_are_called_by_their_file_beside_other_tasks(karat, answers):
    data = ("--data", "qa.jsonl", "--input", "question", "--expected", "answer", "-e", "exact_match")
    recorded = karat("run", "--recorded", "candidate.jsonl", *data, "--json").json["runs"][0]["id"]
    other = karat("run", "task.py:shout", *data, "--json").json["runs"][0]["id"]
    runs = karat("compare", recorded, other, "--json").json["runs"]
    assert [run["label"] for run in runs] == ["candidate", "shout"]


def test_check_counts_examples_without_an_expected_output(karat, project):
    (project / "d.csv").write_text("question,answer\none,ONE\ntwo,\nthree,\n")
    said = karat(
        "run", "task.py:shout", "--data", "d.csv", "--input", "question", "--expected", "answer", "--check",
        "-e", "exact_match",
    )  # fmt: skip
    assert said.code == 0
    assert "2 of 3 examples" in said.err


def test_a_dataset_is_not_a_task(karat, project):
    said = karat("run", "qa.jsonl")
    assert said.code == 2
    assert "--data qa.jsonl" in said.err


@pytest.mark.parametrize(
    "module",
    [
        "import math\nimport nowhere_at_all\n",
        "def shout(text):\n    return text\n\nraise RuntimeError('boom')\n",
        "import json\njson.loads('{')\n",
        "def shout(text):\n    return text +\n",
        "import sys\nsys.exit(5)\n",
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_the_line(karat, project, says, module):
    (project / "unimportable.py").write_text(module)
    for name in ("unimportable.py:shout", "unimportable.shout"):
        said = karat("run", name, "--data", "qa.jsonl", "--input", "question")
        assert said.code == 2
        says(said.err)


def test_the_terminal_names_the_line_that_failed(karat, project, says):
    (project / "typo.py").write_text("def answer(text):\n    return txet\n")
    said = karat("run", "typo.py:answer", "--data", "qa.jsonl", "--input", "question")
    says(*[line for line in said.out.splitlines() if "typo.py:2" in line])


def test_a_task_that_returns_nothing_is_noticed(karat, project, says):
    (project / "silent.py").write_text(
        "def silent(text):\n    text.upper()\ndef partly(text):\n    return text if 'e' in text else None\n"
    )
    rest = ["--data", "qa.jsonl", "--input", "question", "-e", "json_valid"]
    told, partly = (karat("run", f"silent.py:{name}", *rest).out for name in ("silent", "partly"))
    says(*[line for line in told.splitlines() if "null" in line])
    assert "null" not in partly


@pytest.mark.parametrize(
    "words",
    [
        ["run", "task.py:shout", "--data", "-"],
        ["run", "task.py:shout", "--data", "qa.jsonl", "-e", "exact_match", "--fail-under", "accuracy:80"],
        ["run", "typed.py:Bot.answer", "--data", "qa.jsonl", "--input", "question"],
        ["run", "typed.py:typed", "--data", "spaces.csv"],
        ["run", "promt.yaml"],
        ["run", "empty.yaml"],
        ["run", "task.py:shout", "--data", "x" * 300 + ".jsonl"],
        ["run", "empty.py:answer", "--data", "qa.jsonl"],
        ["run", "task.py:shout", "--data", "one.json"],
        ["run", "task.py:shout", "--data", "short.csv"],
        ["show", "latest", "--store", "sqlite:///empty.db"],
    ],
    ids=lambda words: " ".join(words[:4])[:60],
)
def test_slips_are_refused_with_the_fix(karat, project, says, words):
    (project / "typed.py").write_text(
        "def typed(text: str):\n    return text\nclass Bot:\n    def answer(self, text):\n        return text\n"
    )
    for name in ("empty.yaml", "empty.py"):
        (project / name).touch()
    (project / "one.json").write_text('{"question": "a", "answer": "b"}')
    (project / "short.csv").write_text("question,answer\na\n")
    (project / "spaces.csv").write_text(" Question Text ,answer\na,b\n")
    (project / "promt.yaml").write_text("dataset: qa.jsonl\ntask: {promt: '{question}', model: local/x}\n")
    if words[0] == "show":
        from karat.store import open_store

        open_store("sqlite:///empty.db").close()
    said = karat(*words)
    assert said.code == 2
    says(said.err)


def test_a_gate_on_a_graph_task(karat, project):
    assert karat("init", "capitals", "--graph").code == 0
    for metric in ("accuracy", "'exact_match accuracy'".strip("'")):
        said = karat("run", "capitals", "--fail-under", f"{metric}:0.01", "--json")
        assert said.code in (0, 1, 4)
        assert said.json["verdict"] in ("holds", "fails", "undecided")
    assert karat("run", "capitals", "--fail-under", "acuracy:0.5").code == 2


def test_code_that_was_changed_back_is_not_computed_again(karat, project):
    command = ("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--json")
    task = project / "task.py"
    before = task.read_text()
    first = karat(*command).json["runs"][0]["id"]
    task.write_text(before.replace("'no'", "'never'"))
    second = karat(*command).json["runs"][0]["id"]
    task.write_text(before)
    again = karat(*command)
    assert (again.json["runs"][0]["id"], first != second) == (first, True)
    assert second not in again.err
    listed = karat("ls", "runs").out
    assert listed.count("code ") == 2, "what distinguishes them"


def test_a_page_beyond_the_end_says_how_many_rows_there_are(karat, project):
    run = karat("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "--json").json["runs"][0]
    for more in ([], ["--failed"], ["--where", "attempt=1"]):
        said = karat("show", run["id"], "--page", "99", "--limit", "4", *more)
        assert f"{1 if more == ['--failed'] else 6} row" in said.out
        assert "rows on 2 pages" in said.out or more == ["--failed"]


def test_a_missing_key_is_found_before_another_model_is_paid(karat, project, monkeypatch):
    from karat.testing import FakeProvider

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with FakeProvider() as server:
        (project / "two.yaml").write_text(
            "dataset: {path: qa.jsonl, input: question, expected: answer}\n"
            f"task: {{prompt: '{{input}}'}}\nmodels: ['{server.spec()}', openai/gpt-x]\n"
            "evaluators: [exact_match]\n"
        )
        said = karat("run", "two.yaml")
        assert (said.code, server.count) == (2, 0)
        assert "OPENAI_API_KEY" in said.err
        judged = (project / "two.yaml").read_text().replace(", openai/gpt-x", "")
        judge = "[{name: llm_judge, params: {criterion: good, judge: {model: openai/gpt-x}}}]"
        (project / "judged.yaml").write_text(judged.replace("[exact_match]", judge))
        assert (karat("run", "judged.yaml").code, server.count) == (2, 0)
        (project / "one.yaml").write_text(judged)
        assert karat("run", "one.yaml").code == 0
        assert server.count == 6


def test_an_aggregation_without_any_value_is_not_a_success(karat, project):
    run = ("run", "task.py:shout", "--data", "good.jsonl", "--input", "question", "--expected", "answer")
    evaluation = karat(*run, "-e", "exact_match", "--json").json["evaluation"]["id"]
    assert karat("aggregate", evaluation, "-a", '{"name": "pass_at_k", "params": {"k": 8}}').code == 1
    assert karat("aggregate", evaluation, "-a", "mean").code == 0


def test_a_rate_of_labels_needs_the_values_that_count(karat, project):
    (project / "grade.py").write_text("def grade(outputs):\n    return 'good' if outputs else 'bad'\n")
    run = ("run", "task.py:shout", "--data", "good.jsonl", "--input", "question")
    evaluation = karat(*run, "-e", "grade.py:grade", "--json").json["evaluation"]["id"]
    said = karat("aggregate", evaluation, "-a", "rate")
    assert said.code == 1
    assert "'good'" in said.out
    counted = karat(
        "aggregate", evaluation, "-a", '{"name": "rate", "params": {"values": ["good"]}}', "--json"
    )
    assert counted.json["estimates"][0]["value"] == 1.0


def test_a_graph_says_that_it_takes_ten_records(karat, project):
    karat("init", "capitals", "--graph")
    data = project / "capitals" / "questions.jsonl"
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    many = [{**rows[n % len(rows)], "id": f"r{n}"} for n in range(30)]
    data.write_text("".join(json.dumps(row) + "\n" for row in many))
    assert "10 of 30" in karat("run", "capitals").err
    assert "30" not in karat("run", "capitals", "--num_records", "30").err


def test_latest_is_named_with_its_task(karat, project):
    (project / "quiet.py").write_text("def whisper(text):\n    return text\n")
    for name in ("task.py:shout", "quiet.py:whisper", "task.py:shout"):
        said = karat("run", name, "--data", "good.jsonl", "--input", "question")
    assert "finished" in said.err
    for command in (["show"], ["export"], ["report"], ["evaluate", "-e", "json_valid"]):
        assert "whisper" in karat(command[0], "latest", *command[1:]).err, command


def test_metrics_that_are_better_when_lower_have_an_arrow(karat, project):
    (project / "errors.py").write_text(
        "import karat\n\nclass Errors(karat.Evaluator):\n    name = 'errors'\n    higher_is_better = False\n"
        "    def evaluate(self, *, outputs, **more):\n        return karat.Result(self.key, 0.5)\n"
    )
    run = ("run", "task.py:shout", "--data", "good.jsonl", "--input", "question")
    said = karat(*run, "-e", "errors.py:Errors")
    assert "errors ↓" in said.out
    [aggregation] = karat("ls", "--json").json["aggregations"]
    assert "errors ↓" in karat("show", aggregation["id"]).out


@pytest.mark.parametrize(
    "words",
    [
        ["show", "shout"],
        ["show", "latest", "q1", "--example", "q2"],
        ["run", "task.py:shout", "--data", "good.jsonl", "--check", "--estimate"],
        ["judge", "alignment", "latest"],
        ["show", "latest", "--sort", "-score"],
        ["compare", "shout", "latest", "--fail-under", "x:1"],
        ["tag", "latest", "run-123456"],
    ],
    ids=lambda words: " ".join(words),
)
def test_requests_that_are_nearly_right_are_refused_with_the_fix(karat, project, says, words):
    karat("run", "task.py:shout", "--data", "good.jsonl", "--input", "question")
    said = karat(*words)
    assert said.code == 2
    says(said.err)


def test_an_example_is_shown_by_its_id(karat, project):
    karat("run", "task.py:shout", "--data", "good.jsonl", "--input", "question")
    assert karat("show", "latest", "q2").out == karat("show", "latest", "--example", "q2").out
    assert "THREE" in karat("show", "latest", "q2").out


def test_values_in_single_quotes(karat, project):
    karat("run", "task.py:shout", "--data", "good.jsonl", "--input", "question")
    for where in ("output='TWO'", 'output="TWO"', "output=TWO", "output='TWO' or id='q9'", "(output='TWO')"):
        rows = karat("show", "latest", "--where", where, "--json").json["rows"]
        assert [row["output"] for row in rows] == ["TWO"], where


def test_a_full_device_is_not_reported_as_a_bug(project):
    import subprocess

    run = [
        sys.executable,
        "-m",
        "karat",
        "run",
        "task.py:shout",
        "--data",
        "good.jsonl",
        "--input",
        "question",
    ]
    for more in ([], ["--json"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*run, *more], stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=project
            )
        assert done.returncode == 3
        assert "stdout" in done.stderr
        assert "bug" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["run", "task.py:shout", "--data", "qaa", "--input", "question"],
        ["run", "task.py:shout", "--data", "nothing", "--input", "question"],
        ["run", "task.py:shout", "--data", "nothing.jsonl", "--input", "question"],
        ["run", "task.py:shout", "--data", "qaa.json", "--input", "question"],
        ["run", "nothing.yaml"],
        ["run", "taks.py:shout", "--data", "qa.jsonl"],
        ["judge", "audit", "--judge", "nope"],
        ["graph", "nothing"],
    ],
    ids=" ".join,
)
def test_a_name_that_leads_nowhere_has_the_nearest_one_and_leaves_nothing(karat, project, says, words):
    (project / "other.yaml").write_text("")
    said = karat(*words)
    assert said.code == 2
    says(said.err)
    assert not (project / "karat.db").exists()


def test_a_wrong_threshold_is_found_before_the_aggregation(karat, project):
    karat("run", "task.py:shout", "--data", "qa.jsonl", "--input", "question", "-e", "json_valid")
    before = karat("ls", "aggregations", "--json").json
    said = karat(
        "aggregate", "latest", "-a", "mean", "-a", "accuracy", "--fail-under", "json_valid accuracy:x"
    )
    assert said.code == 2
    assert karat("ls", "aggregations", "--json").json == before
